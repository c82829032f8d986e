//! `bywash generate`.

use std::net::IpAddr;
use std::time::Duration;

use bywash_apps::generate::{Frame, Generate, Options, Rate};
use bywash_apps::report::Reporter;
use bywash_apps::wire::Mac;
use bywash_port::PortName;

use crate::failure::Failure;
use crate::options::{PortArgs, ReportArgs, Use, WorkerArgs};
use crate::setup::set_up;

const EXAMPLES: &str = "\
Examples:
  bywash generate xdp:eth1 --dst-mac 02:00:00:00:00:02        64-byte frames, as fast as it goes
  bywash generate xdp:eth1 --rate 50% --size 1518 --duration 10s
                                                              half of what the link can carry
  bywash generate xdp:eth1 --rate 1.5M --count 10M --sources 1000
                                                              10 million packets from 1000 sources
  bywash generate xdp:eth1 --rate 10GbpsL1 --json             10 Gbit/s of the link, reports as JSON
  bywash generate null: --duration 3s                         what this machine can do

A size counts the FCS, as RFC 2544 does: the shortest Ethernet frame is 64. Rates are shown as packets/s, L2 bit/s
(frames with FCS) and L1 bit/s (with preamble and gap: what fills the link). Each packet carries a stream, a sequence
number, the time and a check, by which `bywash receive` judges what came. What counts as sent is what the port says
has left.

Exit codes: 0 all was sent, at the rate that was asked; 1 it was not; 2 wrong input, or the port could not be opened";

/// Send UDP packets, as fast as it goes or on an exact schedule.
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Where to send
    #[arg(value_name = "PORT")]
    name: PortName,
    /// Bytes of each frame, with FCS: 64 to 1518 on ordinary links; IPv6 needs 84
    #[arg(long, value_name = "BYTES", default_value_t = 64)]
    size: usize,
    /// 1.5M (packets/s), 10Gbps (frames' bits/s, L2), 10GbpsL1 (the link's bits/s) or 50% (of the link)
    /// [default: as fast as it goes]
    #[arg(long, value_name = "RATE")]
    rate: Option<Rate>,
    /// Stop after so many packets: 1000, 10M
    #[arg(long, value_name = "PACKETS", value_parser = crate::values::count)]
    count: Option<u64>,
    /// Send from so many sources in turn: addresses and ports count up, 192.168.0.1:10000, 192.168.0.2:10001, ...
    #[arg(long, value_name = "N", default_value_t = 1)]
    sources: u32,
    /// Ethernet destination
    #[arg(long, value_name = "MAC", default_value_t = Frame::default().dst_mac)]
    dst_mac: Mac,
    /// Ethernet source [default: the port's own]
    #[arg(long, value_name = "MAC")]
    src_mac: Option<Mac>,
    /// First source address, IPv4 or IPv6
    #[arg(long, value_name = "IP", default_value_t = Frame::default().src_ip)]
    src_ip: IpAddr,
    /// Destination address
    #[arg(long, value_name = "IP", default_value_t = Frame::default().dst_ip)]
    dst_ip: IpAddr,
    /// First source port
    #[arg(long, value_name = "PORT", default_value_t = Frame::default().src_port)]
    src_port: u16,
    /// Destination port
    #[arg(long, value_name = "PORT", default_value_t = Frame::default().dst_port)]
    dst_port: u16,
    #[command(flatten)]
    port: PortArgs,
    #[command(flatten)]
    worker: WorkerArgs,
    #[command(flatten)]
    report: ReportArgs,
}

/// Does it.
pub(crate) fn run(args: Args) -> Result<bool, Failure> {
    let frame = Frame {
        size: args.size,
        dst_mac: args.dst_mac,
        src_mac: args.src_mac,
        src_ip: args.src_ip,
        dst_ip: args.dst_ip,
        src_port: args.src_port,
        dst_port: args.dst_port,
        sources: args.sources,
    };
    frame.check().map_err(Failure::Usage)?;
    let options = Options {
        frame,
        rate: args.rate,
        count: args.count,
        duration: args.report.duration,
        batch: args.worker.batch(),
        workers: args.worker.options(),
    };
    let patience: Option<Duration> = options.patience();
    let names = [args.name];
    let open = args.port.open_options(&names, Use::Send)?;
    let mut reporter = Reporter::stdio(args.report.style());
    let mut setup = set_up(&names, &args.port, &open, &mut reporter)?;
    let port = setup.ports.remove(0);
    let app = Generate::start(port, &options, setup.arena, &setup.stop)?;
    Ok(bywash_apps::run(app, patience, &setup.stop, &mut reporter))
}
