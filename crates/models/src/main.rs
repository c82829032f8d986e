//! `bywash-models`: serves modelled NICs at vfio-user sockets.
#![forbid(unsafe_code)]
#![expect(clippy::print_stderr, reason = "a program that says what goes wrong")]

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::Duration;

use bywash_models::cable::Impairment;
use bywash_models::ixgbe::Board;
use bywash_models::server::{ServeError, Server};
use bywash_models::world::Shared;
use clap::{Parser, Subcommand};

/// Serve NICs in software at vfio-user sockets.
#[derive(Parser)]
#[command(version, max_term_width = 100)]
struct Args {
    #[command(subcommand)]
    model: Model,
}

#[derive(Subcommand)]
enum Model {
    /// An 82599. Its cable leads to the second one (--link), or back into itself.
    Ixgbe {
        /// Where drivers find it: QEMU's vfio-user-pci, or vfio-user:SOCKET.
        socket: PathBuf,
        /// Serve a second one here, at the other end of the cable.
        #[arg(long, value_name = "SOCKET")]
        link: Option<PathBuf>,
        /// It is a backplane board (8086:10f8), without the SFP cage of the usual one (8086:10fb).
        #[arg(long)]
        backplane: bool,
        /// It is a virtual function (8086:10ed); the model answers its mailbox.
        #[arg(long, conflicts_with_all = ["backplane", "mapped"])]
        virtual_function: bool,
        /// Let drivers map the pages of the queues' registers: faster, but takes a processor while there is traffic.
        #[arg(long)]
        mapped: bool,
        /// Time that frames are under way, in microseconds.
        #[arg(long, default_value_t = 0)]
        delay: u64,
        /// How many of a thousand frames are lost.
        #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u32).range(..=1000))]
        loss: u32,
        /// How many of a thousand frames are overtaken by others.
        #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u32).range(..=1000))]
        reorder: u32,
        /// How long an overtaken frame is held back, in microseconds.
        #[arg(long, default_value_t = 100)]
        hold: u64,
        /// How many of a thousand frames arrive with a wrong bit.
        #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u32).range(..=1000))]
        corrupt: u32,
        /// What decides which frames those are.
        #[arg(long, default_value_t = 0)]
        seed: u64,
    },
}

fn main() -> ExitCode {
    match run(Args::parse().model) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("bywash-models: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(model: Model) -> Result<(), ServeError> {
    let Model::Ixgbe {
        socket,
        link,
        backplane,
        virtual_function,
        mapped,
        delay,
        loss,
        reorder,
        hold,
        corrupt,
        seed,
    } = model;
    let impairment = Impairment { delay_us: delay, loss, reorder, hold_us: hold, corrupt, seed };
    let sockets: Vec<PathBuf> = [socket].into_iter().chain(link).collect();
    let device = match (backplane, virtual_function) {
        (true, _) => 0x10f8,
        (_, true) => 0x10ed,
        _ => 0x10fb,
    };
    let boards: Vec<Board> =
        (0..).zip(&sockets).map(|(i, _)| Board { device, mac: [2, 0, 0, 0x82, 0x59, 0x90 + i] }).collect();
    let world = Shared::new(&boards, impairment);
    let offer = if mapped { Server::mapped } else { Server::new };
    let servers = sockets.iter().enumerate().map(|(i, path)| offer(path, &world, i));
    for (mut server, path) in servers.collect::<Result<Vec<_>, _>>()?.into_iter().zip(sockets.clone()) {
        eprintln!("{}: an 82599 (8086:{device:04x})", path.display());
        thread::spawn(move || {
            loop {
                // A client that breaks the protocol ends its own session only.
                if let Err(error) = server.serve() {
                    eprintln!("bywash-models: {error}");
                    // Should the socket itself fail, not as fast as it can.
                    thread::sleep(Duration::from_millis(100));
                }
            }
        });
    }
    let signals = [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM];
    let stop = Arc::new(AtomicBool::new(false));
    for signal in signals {
        if let Err(error) = signal_hook::flag::register(signal, stop.clone()) {
            eprintln!("bywash-models: the sockets will stay behind: {error}");
        }
    }
    let time = thread::spawn({
        let (world, stop) = (world.clone(), stop.clone());
        move || world.run(&stop)
    });
    while !stop.load(Relaxed) {
        for (index, path) in sockets.iter().enumerate() {
            for violation in world.with(index, |device| device.nic.violations()) {
                eprintln!("{}: {violation}", path.display());
            }
        }
        thread::sleep(Duration::from_millis(50));
    }
    // It ends with the program, whatever it says.
    time.join().ok();
    sockets.iter().for_each(|path| {
        std::fs::remove_file(path).ok();
    });
    Ok(())
}
