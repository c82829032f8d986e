//! `bywash replay`.

use std::path::PathBuf;
use std::time::Duration;

use bywash_apps::generate::Rate;
use bywash_apps::replay::{Map, Options, PortMap, Replay, Rewrite, Source, Timing, TooLong, Vlan};
use bywash_apps::wire::Mac;
use bywash_port::PortName;
use clap::ValueEnum;

use crate::failure::Failure;
use crate::options::{PortArgs, ReportArgs, Use, WorkerArgs};
use crate::overwriting::{self, file_of};
use crate::setup::set_up;
use crate::values;

const EXAMPLES: &str = concat!(
    "\
Examples:
  bywash replay trace.pcapng xdp:eth1                    each packet when its time has come
  bywash replay trace.pcap xdp:eth1 --speed 10           ten times as fast
  bywash replay trace.pcap xdp:eth1 --rate 1Gbps --loops 0
                                                         at 1 Gbit/s, over and over, until Ctrl-C
  bywash replay trace.pcap xdp:eth1 --rate max           as fast as it goes
  bywash replay trace.pcap xdp:eth1 --dst-mac 02:00:00:00:00:02 --map-ip 10.0.0.0/8=172.0.0.0/8
                                                         for other machines; checksums stay right

It tells how far the gaps between packets, as they were handed to the port, were from those in the file. A file of at
most --preload bytes is read into memory first, a longer one by a thread that is ahead. From a pipe packets go as they
come, none before it is due after the first one. When the port takes no more for so long that packets are 100 ms late, the
rest is put off instead of sent in a burst, and that is told.",
    exit_codes!("all was sent, in time (of a broken file, what stands before the break)")
);

/// Send the packets of a capture file, with its own timing or any other.
#[derive(clap::Args, Debug)]
#[command(mut_arg("only", |only| only.hide(true)), mut_arg("xdp", |xdp| xdp.hide(true)))]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// The file, pcap or pcapng; - is standard input
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Where to send
    #[arg(value_name = "PORT")]
    name: PortName,
    /// So many times as fast as the file's own timing: 10, 0.5
    #[arg(long, value_name = "FACTOR", value_parser = speed)]
    speed: Option<f64>,
    /// At a rate: 1.5M (packets/s), 10Gbps (frames' bits/s, L2), 10GbpsL1 (the link's bits/s), 50% (of the link), or max
    #[arg(long, value_name = "RATE", value_parser = rate, conflicts_with = "speed")]
    rate: Option<Timing>,
    /// Send the file so many times; 0: until Ctrl-C
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = loops)]
    loops: u64,
    /// Stop after so many packets: 1000, 10M
    #[arg(long, value_name = "PACKETS", value_parser = values::count)]
    count: Option<u64>,
    /// Make longer gaps in the file as short as this: 1s
    #[arg(long, value_name = "TIME", value_parser = values::duration)]
    max_gap: Option<Duration>,
    /// What becomes of packets that are longer than the port takes
    #[arg(long, value_name = "WHAT", default_value = "refuse")]
    too_long: TooLongArg,
    /// Read files of at most so many bytes into memory first; 0: none
    #[arg(long, value_name = "SIZE", default_value = "1G", value_parser = values::bytes)]
    preload: usize,
    #[command(flatten)]
    rewrite: RewriteArgs,
    #[command(flatten)]
    port: PortArgs,
    #[command(flatten)]
    worker: WorkerArgs,
    #[command(flatten)]
    report: ReportArgs,
}

/// What is rewritten.
#[derive(clap::Args, Debug)]
#[command(next_help_heading = "Rewriting")]
struct RewriteArgs {
    /// Write this Ethernet source
    #[arg(long, value_name = "MAC")]
    src_mac: Option<Mac>,
    /// Write this Ethernet destination
    #[arg(long, value_name = "MAC")]
    dst_mac: Option<Mac>,
    /// Write this VLAN number into the outermost tag, or put a tag in; none takes all tags out
    #[arg(long, value_name = "NUMBER")]
    vlan: Option<Vlan>,
    /// Move addresses of a net to another, IPv4 or IPv6, in ARP too: 10.0.0.0/8=172.0.0.0/8; the first map counts
    #[arg(long, value_name = "OLD=NEW")]
    map_ip: Vec<Map>,
    /// The same for source addresses only
    #[arg(long, value_name = "OLD=NEW")]
    map_src_ip: Vec<Map>,
    /// The same for destination addresses only
    #[arg(long, value_name = "OLD=NEW")]
    map_dst_ip: Vec<Map>,
    /// Another port of TCP and UDP: 80=8080
    #[arg(long, value_name = "OLD=NEW")]
    map_port: Vec<PortMap>,
    /// Compute all checksums of IPv4, TCP, UDP and ICMP anew, for captures in which the NIC was to do that
    #[arg(long)]
    fix_checksums: bool,
}

impl RewriteArgs {
    fn rewrite(self) -> Rewrite {
        let and = |mut own: Vec<Map>| {
            own.extend_from_slice(&self.map_ip);
            own
        };
        Rewrite {
            src_mac: self.src_mac,
            dst_mac: self.dst_mac,
            vlan: self.vlan,
            src_ip: and(self.map_src_ip),
            dst_ip: and(self.map_dst_ip),
            src_port: self.map_port.clone(),
            dst_port: self.map_port,
            fix_checksums: self.fix_checksums,
        }
    }
}

/// `--too-long`.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum TooLongArg {
    /// Send nothing, or nothing more
    Refuse,
    /// Leave them out, and tell how many they are
    Skip,
    /// Send as much of them as the port takes, and tell how many they are; their headers stay those of the whole packet
    Cut,
}

/// Does it.
pub(crate) fn run(args: Args) -> Result<bool, Failure> {
    overwriting::refuse([args.file.as_path()], file_of(&args.name))?;
    let timing = args.rate.or(args.speed.map(Timing::Original));
    let source = if args.file.as_os_str() == "-" { Source::Stdin } else { Source::File(args.file) };
    let whole = Options::of(source);
    let options = Options {
        timing: timing.unwrap_or(whole.timing),
        loops: (args.loops > 0).then_some(args.loops),
        count: args.count,
        duration: args.report.duration,
        max_gap: args.max_gap,
        rewrite: args.rewrite.rewrite(),
        too_long: match args.too_long {
            TooLongArg::Refuse => TooLong::Refuse,
            TooLongArg::Skip => TooLong::Skip,
            TooLongArg::Cut => TooLong::Cut,
        },
        preload: args.preload as u64,
        batch: args.worker.batch(),
        workers: args.worker.options(),
        ..whole
    };
    let names = [args.name];
    if options.timing == Timing::Flat {
        args.port.refuse_flood(&names[0])?;
    }
    let open = args.port.open_options(&names, Use::Send)?;
    let mut reporter = args.report.reporter_for(&names)?;
    let mut setup = set_up(&names, (&args.port, &args.worker), &open, &mut reporter)?;
    let port = setup.ports.remove(0);
    let app = Replay::start(port, &options, setup.arena, &setup.stop)?;
    Ok(bywash_apps::run(app, args.report.duration, &setup.stop, &mut reporter))
}

/// `10`, `0.5`.
fn speed(text: &str) -> Result<f64, String> {
    let factor =
        text.trim_end_matches(['x', 'X']).parse::<f64>().map_err(|_| "write 10 or 0.5, say".to_owned())?;
    if (1e-6..=1e6).contains(&factor) {
        Ok(factor)
    } else {
        Err("it must lie between 0.000001 and 1000000".into())
    }
}

/// What `--loops` takes.
fn loops(text: &str) -> Result<u64, String> {
    if text == "0" { Ok(0) } else { values::count(text) }
}

/// What `--rate` takes.
fn rate(text: &str) -> Result<Timing, String> {
    if text == "max" {
        return Ok(Timing::Flat);
    }
    text.parse::<Rate>().map(Timing::Rate).map_err(|error| format!("{error}, or max"))
}
