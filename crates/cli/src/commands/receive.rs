//! `bywash receive`.

use bywash_apps::receive::{Options, Receive};
use bywash_apps::report::Reporter;
use bywash_port::PortName;

use crate::failure::Failure;
use crate::options::{PortArgs, ReportArgs, Use, WorkerArgs};
use crate::setup::set_up;

const EXAMPLES: &str = "\
Examples:
  bywash receive xdp:eth2                                   everything that comes, until Ctrl-C
  bywash receive xdp:eth2 --only 'udp dst port 9'           only the generator's packets; the kernel gets the rest
  bywash receive xdp:eth2/4 --count 1M --duration 30s       a million packets on queue 4, or fail after 30 s
  bywash receive xdp:eth2 --duration 10s --json | tail -1   the summary as JSON

Of the packets of `bywash generate` it tells how many were lost, came late, twice or damaged, how long they took
(both machines' clocks must agree for that) and how much that differs from one to the next; others are counted as
foreign.

Exit codes: 0 all that was asked for came, once and whole; 1 not so; 2 wrong input, or the port could not be opened";

/// Receive and judge the packets of a generator.
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Where to receive
    #[arg(value_name = "PORT")]
    name: PortName,
    /// Stop after so many packets of a generator: 1000, 10M
    #[arg(long, value_name = "PACKETS", value_parser = crate::values::count)]
    count: Option<u64>,
    #[command(flatten)]
    port: PortArgs,
    #[command(flatten)]
    worker: WorkerArgs,
    #[command(flatten)]
    report: ReportArgs,
}

/// Does it.
pub(crate) fn run(args: Args) -> Result<bool, Failure> {
    let options = Options { count: args.count, batch: args.worker.batch(), workers: args.worker.options() };
    let names = [args.name];
    let open = args.port.open_options(&names, Use::Receive)?;
    let mut reporter = Reporter::stdio(args.report.style());
    let mut setup = set_up(&names, &args.port, &open, &mut reporter)?;
    let port = setup.ports.remove(0);
    let app = Receive::start(port, &options, setup.arena, &setup.stop)?;
    Ok(bywash_apps::run(app, args.report.duration, &setup.stop, &mut reporter))
}
