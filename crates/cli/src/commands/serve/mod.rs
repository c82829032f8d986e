//! `bywash serve`.

mod app;
mod config;
mod settings;

use std::cell::Cell;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use bywash_apps::report::Reporter;
use bywash_engine::socket::ControlSocket;
use bywash_engine::{Handle, Instance, Options, Program};
use bywash_port::PortName;
use bywash_sys::worker::Stop;

use app::{Running, SpreadBy};
pub(crate) use app::{Start, Summary, Telling};
pub(crate) use config::Config;
use config::Flags;
use settings::Settings;

use crate::failure::Failure;
use crate::options::{PortArgs, ReportArgs, Use, WorkerArgs};
use crate::setup::set_up;

const EXAMPLES: &str = "\
Examples:
  bywash serve --port xdp:eth1 --addr 10.0.0.2/24      answers pings on 10.0.0.2
  bywash serve --port tap:t --addr 10.0.0.2/24 --addr fd00::2/64 --name web
  bywash serve --port xdp:eth1 --addr '10.0.0.2/24 dad'   only if no other station has it
  bywash serve --port xdp:eth1 --port xdp:eth2 --addr eth1=10.0.0.1/24 --addr eth2=10.1.0.1/24 --forward
  bywash serve --port xdp:eth1 --addr 10.0.0.2/24 --congestion newreno --ecn --keepalive 60s
  bywash serve --port xdp:eth1 --addr 10.0.0.2/24 --addr auto6     IPv6 as the link's routers say
  bywash serve --port xdp:eth1 --vlan 7 --vlan 8 --addr eth1.7=10.0.7.2/24 --addr eth1.8=10.0.8.2/24
  bywash serve --config web.toml                       all of that from a file

The file:
  name = \"web\"
  forward = true
  [[port]]
  port = \"xdp:eth1\"
  addresses = [\"10.0.0.2/24\", \"fd00::2/64\"]
  [[route]]
  prefix = \"default\"
  via = \"10.0.0.1\"
  [tcp]
  congestion_control = \"newreno\"
  keepalive_time = \"60s\"

`bywash addr`, `route`, `neigh`, `sockets` and `stats` ask it while it runs.

Exit codes: 0 it ran until its end; 1 a worker failed, other stations have all its addresses, or the interface
of a port is gone; 2 wrong input, or a port could not be opened";

/// Run a TCP/IP stack on ports.
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    #[command(flatten)]
    instance: InstanceArgs,
    /// Pass packets for others on
    #[arg(long)]
    forward: bool,
    #[command(flatten)]
    ports: PortArgs,
    #[command(flatten)]
    worker: WorkerArgs,
    #[command(flatten)]
    report: ReportArgs,
}

/// Where an instance is and what it is called.
#[derive(clap::Args, Debug)]
#[command(next_help_heading = "Instance")]
pub(crate) struct InstanceArgs {
    /// A port to work on; several for several
    #[arg(long, value_name = "PORT")]
    pub(crate) port: Vec<PortName>,
    /// Only the packets of this VLAN: the interface is called eth1.7, say. Several for several; INTERFACE=VLAN with several
    /// ports. The untagged packets of its port are taken as well where --addr or --route names eth1
    #[arg(long, value_name = "VLAN")]
    pub(crate) vlan: Vec<String>,
    /// An address with its prefix length; INTERFACE=ADDRESS with several interfaces; '10.0.0.2/24 dad' looks for seconds
    /// whether another station has it (RFC 5227), as is always done for IPv6; auto6: IPv6 addresses and routes as the link's
    /// routers say (RFC 4862)
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) addr: Vec<String>,
    /// A route: 'default via 10.0.0.1', '10.1.0.0/16 dev eth1 metric 5', 'default via 10.0.0.1 src 10.0.0.5'
    #[arg(long, value_name = "ROUTE")]
    pub(crate) route: Vec<String>,
    /// Take no ICMP redirects: packets go by the routes that are given, whatever routers say
    #[arg(long)]
    pub(crate) no_redirects: bool,
    /// Its name, by which it is asked
    #[arg(long, value_name = "NAME")]
    pub(crate) name: Option<String>,
    /// Read name, ports, addresses, routes and settings of TCP from this file; flags for the name and for TCP come first
    #[arg(long, value_name = "FILE", conflicts_with_all = ["port", "vlan", "addr", "route"])]
    pub(crate) config: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) tcp: Settings,
}

impl InstanceArgs {
    /// As a configuration.
    ///
    /// # Errors
    /// What makes no sense.
    pub(crate) fn config(&self) -> Result<Config, Failure> {
        let mut config = match &self.config {
            Some(path) => config::read(path)?,
            None => {
                let (ports, vlans) = (&self.port[..], &self.vlan[..]);
                Config::of(&Flags { ports, vlans, addresses: &self.addr, routes: &self.route })?
            }
        };
        config.no_redirects |= self.no_redirects;
        config.with_flags(self.name.clone(), self.tcp.clone())
    }
}

/// What an instance is called without a name.
pub(crate) const DEFAULT_NAME: &str = "default";

/// Does it.
pub(crate) fn run(args: Args) -> Result<bool, Failure> {
    let mut config = args.instance.config()?;
    config.forward |= args.forward;
    let plan = Plan { command: "serve", config, ports: &args.ports, worker: &args.worker };
    let mut reporter = args.report.reporter()?;
    plan.run(&mut |_, _| Box::new(()), (), args.report.duration, &mut reporter)
}

/// An instance that is to be run, with a program or without.
pub(crate) struct Plan<'a> {
    pub(crate) command: &'static str,
    pub(crate) config: Config,
    pub(crate) ports: &'a PortArgs,
    pub(crate) worker: &'a WorkerArgs,
}

impl Plan<'_> {
    /// Runs it until its end, and reports.
    ///
    /// # Errors
    /// Why it did not begin.
    pub(crate) fn run(
        self,
        program: &mut dyn FnMut(usize, usize) -> Box<dyn Program>,
        telling: impl Telling,
        duration: Option<Duration>,
        reporter: &mut Reporter,
    ) -> Result<bool, Failure> {
        let Self { command, config, ports: port_args, worker } = self;
        if config.ports.is_empty() {
            return Err(Failure::Usage(
                "there is no port to work on; name one (--port), or a file (--config)".into(),
            ));
        }
        config.check()?;
        let limits = config.tcp.limits().map_err(Failure::Usage)?;
        let name = config.name.clone().unwrap_or_else(|| DEFAULT_NAME.into());
        // Before anything is opened: two instances of one name are told apart by nobody.
        let socket = ControlSocket::open(&name)?;
        let mut open = port_args.open_options(&config.ports, Use::Both)?;
        for options in &mut open {
            // What is passed on must be as on a wire: nobody behind the other port would finish it.
            options.plain = config.forward;
        }
        let setup = set_up(&config.ports, (port_args, worker), &open, reporter);
        let mut setup = setup.map_err(|failure| config.blame(None, failure))?;
        let (ports, arena, stop) = (std::mem::take(&mut setup.ports), setup.arena, setup.stop.clone());
        if config.addresses.is_empty() {
            let cure = "give it one (--addr, or `bywash addr add` while it runs)";
            reporter.warn_at_start(format!("it has no address, so that nobody reaches it: {cure}"));
        }
        let workers = worker.options();
        let options = Options {
            cores: workers.cores,
            idle: workers.idle,
            batch: worker.batch(),
            forward: config.forward,
            redirects: !config.no_redirects,
            limits,
            interfaces: config.interfaces.clone(),
        };
        let refused_at = Cell::new(None);
        let configure = Box::new(|control: &mut _, now, ids: &[_]| {
            let done = config.apply(control, now, ids);
            done.map_err(|(at, error)| {
                refused_at.set(at);
                error
            })
        });
        let instance = Instance::start(ports, arena, &options, &stop, configure, program);
        let instance = instance.map_err(|error| config.blame(refused_at.get(), error.into()))?;
        let handle = instance.handle();
        let path = socket.path().display().to_string();
        let asked = socket.serve(handle.clone(), stop.clone());
        let asked = match asked {
            Ok(asked) => asked,
            Err(error) => {
                drop(instance.close());
                return Err(Failure::Usage(format!("no thread for the control socket: {error}")));
            }
        };
        wait_for_addresses(&handle, &stop);
        let taken = if stop.is_set() { Vec::new() } else { app::all_taken(&handle, &config.given()) };
        if !taken.is_empty() {
            // Nobody could reach it, nor it anybody.
            stop.set();
        }
        // Now, for a client that finds no way to its server without the address ends at once.
        let told = if stop.is_set() { Vec::new() } else { app::troubles(&handle) };
        told.iter().for_each(|sentence| reporter.warning(sentence));
        let start = Start {
            command,
            name,
            ports: config.ports.iter().map(ToString::to_string).collect(),
            addresses: config.addresses.iter().map(|address| address.what.to_string()).collect(),
            engines: handle.figures().len(),
            spread_by: SpreadBy::of(&handle),
            socket: Some(path),
        };
        let running = Running { start, instance, telling, told, taken, began: Instant::now() };
        let met = bywash_apps::run(running, duration, &stop, reporter);
        // It ends with `stop`, which is set by now, and takes its file away.
        drop(asked.join());
        Ok(met)
    }
}

/// Waits until all addresses are in use that can be: some are looked for on the link first.
fn wait_for_addresses(handle: &Handle, stop: &Stop) {
    // The longest is where a router answers the last of three solicitations (RFC 4861, 10), and an address is looked for then: two
    // seconds before the first, twelve for all, two for the address.
    let until = Instant::now() + Duration::from_secs(17);
    let settling = || handle.control(|control, _| control.is_settling());
    while !stop.is_set() && Instant::now() < until && settling() == Ok(true) {
        std::thread::sleep(Duration::from_millis(10));
    }
}
