//! The commands, one file each.

use clap::{Parser, Subcommand};

use crate::failure::Failure;

/// What the exit codes of a tool for packets mean: 0 what is said here, 1 that it is not so. One sentence for all of them.
macro_rules! exit_codes {
    ($met:literal) => {
        concat!(
            "\n\nExit codes: 0 ",
            $met,
            ";\n1 it was not so, or not all of a file was read or written, or a worker failed: `not met: ...` says why;\n",
            "2 wrong input, or a port or a file could not be opened"
        )
    };
}

mod bind;
mod capture;
mod cleanup;
mod demo;
mod filter;
mod forward;
mod generate;
mod man;
mod ports;
mod query;
mod receive;
mod registers;
mod replay;
mod serve;
mod setup;
mod tcp;
mod vf;

/// User-space networking for Linux.
#[derive(Parser, Debug)]
#[command(name = "bywash", version, arg_required_else_help = true, after_help = AFTER_HELP)]
pub(crate) struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub(crate) command: Command,
}

const AFTER_HELP: &str = "\
Ports: xdp:eth1 (AF_XDP), xdp:eth1/4 (queue 4 of it), packet:eth1 (AF_PACKET), tap:NAME, pcap:FILE,
null:, loop:NAME, link:/run/x.sock (a wire between two processes), vfio-user:SOCKET (a NIC behind a socket),
pci:0000:03:00.0 (a NIC, driven by our own driver). Behind these two: /mtu=9000 bounds their packets, /fdir=2k
(or 4k, 8k) makes room for so many flow director filters (--steer), /rss=symmetric gives both directions of a
flow to one queue

Exit codes: 0 the aim was met; 1 it was not; 2 wrong input, or a port could not be opened";

/// The commands.
#[derive(Subcommand, Debug)]
pub(crate) enum Command {
    /// Forward packets between pairs of ports, or back out of the port they came in by
    Forward(forward::Args),
    /// Send packets of any kind, as fast as it goes or on an exact schedule
    Generate(Box<generate::Args>),
    /// Receive and judge the packets of a generator: rate, loss, order, damage, delay
    Receive(receive::Args),
    /// Drop a flood by rules, in XDP where that can be, and give all else to the kernel as if nothing had been
    Filter(Box<filter::Args>),
    /// Write the packets that come to a file, a copy of them or themselves
    Capture(capture::Args),
    /// Send the packets of a capture file, with its own timing or any other
    Replay(replay::Args),
    /// Run a TCP/IP stack on ports: pings are answered, packets passed on if wanted
    Serve(serve::Args),
    // The other names are those by which iproute2 takes them.
    /// Show or change the addresses of a running instance
    #[command(aliases = ["a", "ad", "add", "addre", "addres", "address"])]
    #[command(mut_arg("words", |words| words.help(query::ADDRESS_WORDS)))]
    Addr(query::Args),
    /// Show or change its routes
    #[command(aliases = ["r", "ro", "rou", "rout"])]
    Route(query::Args),
    /// Show or change its neighbours
    #[command(aliases = ["n", "ne", "nei", "neig", "neighb", "neighbo", "neighbor", "neighbou", "neighbour"])]
    Neigh(query::Args),
    /// Show its sockets
    Sockets(query::sockets::Args),
    /// Show what it has counted
    Stats(query::StatsArgs),
    /// Serve, connect, download and measure with TCP, on Bywash or on the kernel's sockets
    Tcp(Box<tcp::Args>),
    /// Show in a few seconds that packets really move
    Demo(demo::Args),
    /// Show the NICs, what would be used of them, and what to fix
    Ports(ports::Args),
    /// Show what the registers of a NIC hold, by name and field
    Registers(registers::Args),
    /// Give NICs to programs, or show who has which
    Bind(bind::BindArgs),
    /// Give NICs back to the kernel
    Unbind(bind::UnbindArgs),
    /// Make, set, show and remove virtual functions of a NIC
    Vf(Box<vf::Args>),
    /// Prepare the machine: huge pages, and the kernel's VFIO module
    Setup(setup::Args),
    /// Undo what killed processes have left behind
    Cleanup(cleanup::Args),
    /// Write the completions for a shell to standard output
    Completions(man::CompletionsArgs),
    /// Write the manual pages into a directory
    Man(man::ManArgs),
}

impl Command {
    /// Does it. True when the aim was met.
    pub(crate) fn run(self) -> Result<bool, Failure> {
        match self {
            Self::Forward(args) => forward::run(args),
            Self::Generate(args) => generate::run(*args),
            Self::Receive(args) => receive::run(args),
            Self::Filter(args) => filter::run(*args),
            Self::Capture(args) => capture::run(args),
            Self::Replay(args) => replay::run(args),
            Self::Serve(args) => serve::run(args),
            Self::Addr(args) => query::addresses(&args),
            Self::Route(args) => query::routes(&args),
            Self::Neigh(args) => query::neighbours(&args),
            Self::Sockets(args) => query::sockets::run(&args),
            Self::Stats(args) => query::stats(&args),
            Self::Tcp(args) => tcp::run(*args),
            Self::Demo(args) => demo::run(&args),
            Self::Ports(args) => ports::run(&args),
            Self::Registers(args) => registers::run(&args),
            Self::Bind(args) => bind::bind(&args),
            Self::Unbind(args) => bind::unbind(&args),
            Self::Vf(args) => vf::run(&args),
            Self::Setup(args) => setup::run(&args),
            Self::Cleanup(args) => cleanup::run(&args),
            Self::Completions(args) => man::completions(&args),
            Self::Man(args) => man::pages(&args),
        }
    }
}
