//! `bywash filter`, and `bywash filter test`.

use std::fs::File;
use std::io::Read;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, SystemTime};

use bywash_apps::filter::{
    Audit, Filter, MOST_TOP, Options, RuleFile, TOP, TrialError, TrialRule, try_rules,
};
use bywash_apps::sys::spool::Rotation;
use bywash_apps::sys::{signals, worker::Stop};
use bywash_drivers::RulesInNic;
use bywash_drivers::xdp::{NotVerified, verify};
use bywash_port::filter::rules::FlowOptions;
use bywash_port::filter::{Expression, Hook};
use bywash_port::{Action, Condition, OpenError, PortName, Prefix, Rule, RuleSet, Rules};
use bywash_sys::interface::{self, SshConnection};
use bywash_sys::route::Route;
use clap::ValueEnum;

use crate::failure::{Failure, print, warn};
use crate::options::{PortArgs, ReportArgs, Use, WorkerArgs};
use crate::overwriting;
use crate::setup::set_up_until;
use crate::values;

const EXAMPLES: &str = "\
Examples:
  bywash filter xdp:eth1 --rules rules.toml            drop by rules; the file is read again when it changes
  bywash filter xdp:eth1 --only 'udp dst port 53'      no rules: count these packets and give them back
  bywash filter xdp:eth1/4/rx --only 'udp dst port 53' queue 4 alone: where its driver can, the NIC gives it these packets
                                                       and no others (ethtool -N, -X), until it ends
  bywash filter xdp:eth1 --rules r.toml --attach xdp   in the driver; also where packets that pass are copied for that (veth)
  bywash filter xdp:eth1 --rules r.toml --rules-in-nic auto
                                                       the NIC drops what it can; `bywash cleanup` after kill -9
  bywash filter xdp:eth1 --rules r.toml --samples s.pcapng --audit filter.log
  bywash filter test --rules r.toml --pcap attack.pcapng
                                                       what each rule would have done; --ours ADDRESS where a rule
                                                       has established = true; --gateway, --ssh: as where it will run

A rule file:
  never_drop = ['192.0.2.0/24', 'tcp port 179']        what comes from there; or expressions
  [[rule]]
  name = 'reflection'
  from_ports = [53, 123, '1900-1902']
  match = 'udp and len > 400'
  action = 'drop'                                      drop, pass, count, sample, limit, syncookie,
  [[rule]]                                             synproxy; or queue, with queue = 3: to that queue by
                                                       the NIC, and then as pass
  name = 'random subdomains'
  names = ['*.example.org']                            DNS queries for these names
  payload = [{ text = 'x', at = 0 }]                   or { bytes = 'de ad', within = 64 }
  action = 'limit'
  rate = 100
  [[rule]]
  name = 'answers'
  established = true                                   of flows that this machine has sent something of
  action = 'pass'

docs/flood-filter.md has the rest. ARP, ND, the default gateway and who is logged in by ssh are never dropped.

Exit codes: 0 it ran until its end; 1 a worker failed, the interface has gone, samples could not be written any more, or
              the capture is broken;
            2 wrong input, or the port could not be opened";

/// What `--cores` is here: of other tools the workers are free to move.
const CORES: &str = "A worker on each of these cores: 0,1 or 0-3 [default: a worker per queue, each on a core of its own while this \
                     process may use so many; at TCX one worker, on any core]";

/// Drop a flood by rules and give all else to the kernel.
#[derive(clap::Args, Debug)]
#[command(mut_arg("steer", |steer| steer.hide(true)), mut_arg("cores", |cores| cores.help(CORES)))]
#[command(after_help = EXAMPLES, args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Option<Command>,
    /// The port whose packets are filtered: an xdp: port
    #[arg(value_name = "PORT", required = true)]
    name: Option<PortName>,
    /// The rules; without them everything is counted and given back
    #[arg(long, value_name = "FILE")]
    rules: Option<PathBuf>,
    /// Keep the samples that rules ask for in this file, as pcapng; a packet's comment is the rule's name
    #[arg(long, value_name = "FILE", requires = "rules")]
    samples: Option<PathBuf>,
    /// Go on in another file of samples before one is longer than this: 100M
    #[arg(long, value_name = "SIZE", requires = "samples", value_parser = values::file_size)]
    rotate_size: Option<u64>,
    /// Keep so many files of samples, the last ones
    #[arg(long, value_name = "N", requires = "rotate_size", value_parser = clap::value_parser!(u32).range(1..))]
    files: Option<u32>,
    /// Note what is changed, when and why, at the end of this file: a JSON object on each line; SIGHUP opens it anew, when it was moved
    /// away
    #[arg(long, value_name = "FILE", requires = "rules")]
    audit: Option<PathBuf>,
    /// Where the program of the rules runs: in XDP, the cheapest place to drop; or at TCX, where nothing is copied for packets that
    /// pass, other programs go on to see these, and no packet can come to user space. auto: at TCX where XDP copies all that passes (a
    /// veth, drivers without native XDP), as long as the rules have nothing for user space, answer no SYNs and have no len, else in XDP;
    /// they move there when the file comes to have such a rule
    #[arg(long, value_name = "WHERE", default_value = "auto")]
    attach: AttachArg,
    /// Have the NIC drop what rules drop by headers alone (IPv4), by n-tuple rules, where its driver takes them and no other
    /// rule could want to see these packets; auto: what it takes; require: an error when one is not in it. Unlike all else that
    /// the filter does these do not end when it is killed or hangs, but by `bywash cleanup`; their packets count in the NIC's
    /// statistics (ethtool -S), not in the rule's counter
    #[arg(long, value_name = "WHEN", default_value = "off", requires = "rules")]
    rules_in_nic: RulesInNicArg,
    /// Tell of so many that send most above limits, and of so many blocked sources that send most
    #[arg(long, value_name = "N", default_value_t = TOP,
          value_parser = clap::value_parser!(u8).range(1..=i64::from(MOST_TOP)))]
    top: u8,
    #[command(flatten)]
    port: PortArgs,
    #[command(flatten)]
    worker: WorkerArgs,
    #[command(flatten)]
    report: ReportArgs,
}

/// `--attach`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum AttachArg {
    Auto,
    Xdp,
    Tcx,
}

impl AttachArg {
    /// As the port wants it.
    fn hook(self, has_rules: bool) -> Result<Option<Hook>, Failure> {
        match self {
            Self::Auto => Ok(None),
            Self::Xdp => Ok(Some(Hook::Xdp)),
            Self::Tcx if !has_rules => Err(Failure::Usage(
                "--attach tcx is for --rules: without them all comes to user space".into(),
            )),
            Self::Tcx => Ok(Some(Hook::Tcx)),
        }
    }
}

/// `--rules-in-nic`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum RulesInNicArg {
    Off,
    Auto,
    Require,
}

#[derive(clap::Subcommand, Debug)]
enum Command {
    /// Say what each rule would have done with the packets of a capture file
    Test(TestArgs),
}

#[derive(clap::Args, Debug)]
struct TestArgs {
    /// The rules
    #[arg(long, value_name = "FILE")]
    rules: PathBuf,
    /// The capture, pcap or pcapng; - is standard input
    #[arg(long, value_name = "FILE")]
    pcap: PathBuf,
    /// Default gateways of the machine that is to filter: as there, what comes from them or goes to them is never dropped
    #[arg(long, value_name = "ADDRESS,...", value_delimiter = ',')]
    gateway: Vec<IpAddr>,
    /// An ssh connection of who is logged in there, which is never dropped either, as SSH_CONNECTION has it:
    /// '198.51.100.7 51234 192.0.2.1 22'; may be given several times
    #[arg(long, value_name = "CONNECTION", value_parser = values::ssh)]
    ssh: Vec<SshConnection>,
    /// Addresses and prefixes that are this side's: what they send establishes flows and is not judged
    #[arg(long, value_name = "PREFIX,...", value_delimiter = ',')]
    ours: Vec<Prefix>,
    /// One JSON object
    #[arg(long)]
    json: bool,
}

/// Does it.
pub(crate) fn run(args: Args) -> Result<bool, Failure> {
    let name = match (args.command, args.name) {
        (Some(Command::Test(args)), _) => return test(&args),
        (None, Some(name)) => name,
        (None, None) => return Err(Failure::Usage("name a PORT (see `bywash filter --help`)".into())),
    };
    if !matches!(name, PortName::Xdp { .. }) {
        return Err(Failure::Usage(format!(
            "{name}: filter needs an xdp: port, which leaves the rest to the kernel"
        )));
    }
    let hook = args.attach.hook(args.rules.is_some())?;
    let mut file = args.rules.as_deref().map(RuleFile::read).transpose()?;
    if let Some(file) = &mut file {
        file.spared.gateways = gateways();
        file.keeps_samples = args.samples.is_some();
    }
    // Before one of them is opened: that would empty the rules, or write among them.
    let outputs = || args.samples.as_deref().into_iter().chain(args.audit.as_deref());
    let read = file.iter().flat_map(|file| &file.files).map(|watched| watched.path.as_path());
    overwriting::refuse(read, outputs())?;
    overwriting::refuse_twice(outputs())?;
    let idle = file.as_ref().map(|file| file.idle_rules(SystemTime::now())).unwrap_or_default();
    let rules = match &file {
        Some(file) => file.live(SystemTime::now()).map_err(Failure::Usage)?,
        None => give_back()?,
    };
    let known = file.clone();
    let reload = Arc::new(AtomicBool::new(false));
    let rotation = Rotation { bytes: args.rotate_size, time: None::<Duration>, keep: args.files };
    let options = Options {
        reload: Arc::clone(&reload),
        samples: args.samples.map(|path| (path, rotation)),
        audit: args.audit.as_deref().map(|path| audit(path, &name)).transpose()?,
        top: args.top,
        batch: args.worker.batch(),
        workers: args.worker.options(),
        ..Options::new(file, rules.clone())
    };
    let names = [name];
    let mut open = args.port.open_options(&names, Use::Both)?;
    let rules_in_nic = match args.rules_in_nic {
        RulesInNicArg::Off => None,
        RulesInNicArg::Auto => Some(RulesInNic::Auto),
        RulesInNicArg::Require => Some(RulesInNic::Require),
    };
    for open in &mut open {
        (open.rules, open.rules_in_nic, open.hook) = (Some(rules.clone()), rules_in_nic, hook);
        open.samples = options.samples.is_some();
    }
    let mut reporter = args.report.reporter()?;
    idle.into_iter().for_each(|line| reporter.warn_at_start(line));
    let stop = Stop::new().map_err(Failure::Signals)?;
    signals::stop_or_reload_on_signals(stop.clone(), reload).map_err(Failure::Signals)?;
    let setup = set_up_until(stop, &names, (&args.port, &args.worker), &open, &mut reporter);
    let mut setup = setup.map_err(|failure| match (failure, known) {
        (Failure::Open(error), Some(file)) => {
            Failure::Open(OpenError { reason: file.located(&error.reason), ..error })
        }
        (failure, _) => failure,
    })?;
    let port = setup.ports.remove(0);
    let app = Filter::start(port, options, setup.arena, &setup.stop)?;
    Ok(bywash_apps::run(app, args.report.duration, &setup.stop, &mut reporter))
}

/// As they are at the start. Where they can't be known, the port says why it does not open.
fn gateways() -> Vec<IpAddr> {
    let found = Route::open().map(|mut route| interface::gateways(&mut route));
    found.ok().and_then(Result::ok).unwrap_or_default()
}

fn audit(path: &Path, port: &PortName) -> Result<Audit, Failure> {
    let failed = |error| Failure::Usage(format!("--audit {}: it can't be written: {error}", path.display()));
    Audit::open(path, port).map_err(failed)
}

/// What stands in for rules: everything comes to user space, is counted, and goes back.
fn give_back() -> Result<Rules, Failure> {
    let everything = Rule {
        name: "everything".into(),
        condition: Condition { expression: Some("".parse::<Expression>()?), ..Condition::default() },
        action: Action::Queue,
        sample: None,
        expires: None,
        dry_run: false,
    };
    let set = RuleSet::new(vec![everything]).map_err(|error| Failure::Usage(error.to_string()))?;
    Ok(Rules { set: Arc::new(set), never: Vec::new(), flows: FlowOptions::default() })
}

/// Asks the kernel's verifier for its opinion of rules that are to go live, where it may be asked.
fn verify_rules(file: &RuleFile) -> Result<(), Failure> {
    let refused = |why: String| Failure::Usage(file.located(&why));
    let rules = file.live(SystemTime::now()).map_err(refused)?;
    match verify(&rules, &file.spared) {
        Ok(()) => Ok(()),
        Err(NotVerified::Refused(why)) => Err(refused(why)),
        Err(NotVerified::NotAsked(why)) => {
            warn(&format!("whether the kernel's verifier takes the rules was not tried: {why}"));
            Ok(())
        }
    }
}

fn test(args: &TestArgs) -> Result<bool, Failure> {
    let mut file = RuleFile::read(&args.rules)?;
    file.spared.gateways.clone_from(&args.gateway);
    file.spared.sessions = args.ssh.iter().map(|ssh| (ssh.client, ssh.server)).collect();
    file.idle_rules(SystemTime::now()).iter().for_each(|line| warn(line));
    verify_rules(&file)?;
    let failed = |why: String| Failure::Usage(format!("{}: {why}", args.pcap.display()));
    let capture: Box<dyn Read> = if args.pcap.as_os_str() == "-" {
        Box::new(std::io::stdin().lock())
    } else {
        Box::new(File::open(&args.pcap).map_err(|error| failed(error.to_string()))?)
    };
    let trial = try_rules(&file, &args.ours, capture).map_err(|error| match error {
        TrialError::Ours(_) | TrialError::Rules(_) => Failure::Usage(error.to_string()),
        error => failed(error.to_string()),
    })?;
    if args.json {
        let json = serde_json::to_string(&trial).map_err(|error| failed(error.to_string()))?;
        print(&format!("{json}\n"));
    } else {
        print(&format!("{trial}\n"));
    }
    if trial.cut_packets > 0 {
        warn(&format!(
            "{}: {} of {} packets are cut: what was beyond was not judged; capture whole packets (tcpdump -s 0)",
            args.pcap.display(),
            trial.cut_packets,
            trial.packets
        ));
    }
    if trial.untimed_packets > 0 && trial.asks_time {
        warn(&format!(
            "{}: {} of {} packets have no time (Simple Packet Blocks): limits and established flows take them as if they had come at \
             once with the ones before; capture as pcap, or as pcapng with Enhanced Packet Blocks",
            args.pcap.display(),
            trial.untimed_packets,
            trial.packets
        ));
    }
    for TrialRule { rule, .. } in trial.rules.iter().filter(|rule| rule.answers_syns) {
        warn(&format!(
            "the rule '{rule}' answers SYNs for who listens, which a capture does not tell: here all that it is about goes on to \
             the rules behind it"
        ));
    }
    if let Some(broken) = &trial.broken {
        warn(&format!("{}: {broken}; what stands before was judged", args.pcap.display()));
    }
    Ok(trial.broken.is_none())
}
