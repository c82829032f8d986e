//! `bywash receive`.

use std::path::PathBuf;

use bywash_apps::receive::{MOST_FLOWS_SHOWN, Options, Receive};
use bywash_port::PortName;

use crate::failure::Failure;
use crate::options::{PortArgs, ReportArgs, Use, WorkerArgs};
use crate::overwriting::{self, file_of};
use crate::setup::set_up;

const EXAMPLES: &str = concat!(
    "\
Examples:
  bywash receive xdp:eth2                                   everything that comes, until Ctrl-C
  bywash receive xdp:eth2 --only 'udp dst port 9'           only the generator's packets; the kernel gets the rest
  bywash receive xdp:eth2/4 --count 1M --duration 30s       a million packets on queue 4, or fail after 30 s
  bywash receive xdp:eth2 --duration 10s --json | tail -1   the summary as JSON
  bywash receive xdp:eth2 --flows 10                        and of the ten worst flows, each by itself
  bywash receive xdp:eth2 --hdr delays.hlog                 each second's delays, for HistogramLogProcessor
  bywash receive xdp:eth2 --tui --prometheus 9100           a page in the terminal, and metrics to be scraped
  bywash receive xdp:eth2 --drop --duration 10s             how many packets can be received at all

Of the packets of `bywash generate` it tells by queue and by stream (a generator's queue) how many were lost, came late
(after one with a higher number), again, or damaged, and how long they took. Order is judged by queue. Others are counted as
foreign. --flows tells the same of flows, a generator's and foreign ones. The loss of each flow, and of each of several
queues, is known where the generator's flows take turns: it says so at its start (`1000 flows in turn`), and does so for all
sets of addresses and ports up to 65535 flows (--spread makes 65536), but not with `every N`. Else the loss of streams alone
is shown.

Latency is from when a packet was made until it was received: both machines' clocks must agree for that. Jitter is how
much it differs from that of the packet before in the same stream and queue (ipdv, RFC 3393): clocks need not agree.",
    exit_codes!("all that was asked for came, once and whole")
);

/// Receive and judge the packets of a generator.
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Where to receive
    #[arg(value_name = "PORT")]
    name: PortName,
    /// Stop after so many packets of a generator (with --drop: of any kind), and what came in the same batch, or by other
    /// queues at the same time: 1000, 10M
    #[arg(long, value_name = "PACKETS", value_parser = crate::values::count)]
    count: Option<u64>,
    /// Count what comes and drop it, as fast as possible, without looking for a generator's packets
    #[arg(long)]
    drop: bool,
    /// Tell of so many flows too (protocol, addresses, ports): rate, loss, reordering, copies, damage of each. The worst
    /// come first, then the largest
    #[arg(long, value_name = "N", num_args = 0..=1, default_missing_value = "20", conflicts_with = "drop",
        value_parser = clap::value_parser!(u64).range(1..=MOST_FLOWS_SHOWN as u64))]
    flows: Option<u64>,
    /// Write the latencies and jitters of each second to a log that HdrHistogram's tools read; jitter has the tag jitter
    #[arg(long, value_name = "FILE", conflicts_with = "drop")]
    hdr: Option<PathBuf>,
    #[command(flatten)]
    port: PortArgs,
    #[command(flatten)]
    worker: WorkerArgs,
    #[command(flatten)]
    report: ReportArgs,
}

/// Does it.
pub(crate) fn run(args: Args) -> Result<bool, Failure> {
    let options = Options {
        count: args.count,
        drop: args.drop,
        flows: args.flows.and_then(|flows| usize::try_from(flows).ok()).unwrap_or(0),
        batch: args.worker.batch(),
        workers: args.worker.options(),
    };
    overwriting::refuse(file_of(&args.name), args.hdr.as_deref())?;
    let names = [args.name];
    let open = args.port.open_options(&names, Use::Receive)?;
    let mut reporter = args.report.reporter()?;
    if let Some(path) = &args.hdr {
        let failed = |error| Failure::Usage(format!("--hdr {}: {error}", path.display()));
        reporter.log_times(path).map_err(failed)?;
    }
    let mut setup = set_up(&names, (&args.port, &args.worker), &open, &mut reporter)?;
    let port = setup.ports.remove(0);
    let app = Receive::start(port, &options, setup.arena, &setup.stop)?;
    Ok(bywash_apps::run(app, args.report.duration, &setup.stop, &mut reporter))
}
