//! The options that all packet tools share.

use bywash_apps::filter::RuleFile;
use bywash_apps::report::{Reporter, Style};
use bywash_apps::{WorkerOptions, sys::worker::Idle};
use bywash_drivers::{Ntuple, OpenOptions, XdpMode, ZeroCopy};
use bywash_port::filter::Expression;
use bywash_port::frame::Stride;
use bywash_port::{PortName, Rule, SteerError, SteerRule, check_steer};
use bywash_sys::interface;
use bywash_sys::memory::HugePages;
use clap::{Args, ValueEnum};
use std::io::IsTerminal;
use std::net::SocketAddr;
use std::time::Duration;

use crate::failure::Failure;
use crate::values;

/// How ports are opened.
#[derive(Args, Debug)]
#[command(next_help_heading = "Ports")]
pub(crate) struct PortArgs {
    /// Queues to use of each port [default: all; 1 of null:, loop: and link:]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    queues: Option<u16>,
    /// Take just the packets that this expression matches, as tcpdump writes it, and leave the others to the kernel;
    /// ARP, ND, the default gateway and ssh sessions stay with it always; xdp: only
    #[arg(long, value_name = "EXPRESSION")]
    only: Option<String>,
    /// On a port of one queue (xdp:eth1/4), have the NIC give it the packets that --only is about, by n-tuple rules, and no
    /// others; auto: where its driver can, else the XDP program takes those of them that come to the queue. The same for what --steer
    /// drops, on a port of all queues; xdp: only
    #[arg(long, value_name = "WHEN", default_value = "auto", hide_default_value = true)]
    ntuple: NtupleArg,
    /// Say what becomes of packets before anything else is asked of them: an expression as tcpdump writes it, and 'drop', 'queue N',
    /// 'pass' (to the kernel) or 'count', as in 'ip and udp dst port 53 queue 2', 'src net 10.0.0.0/8 and tcp drop', 'tcp port 22
    /// pass'; or @FILE, a rule file. Once for each rule; the first that matches counts, but for 'count'. The NIC does it, else, on
    /// xdp:, the XDP program, and a line says where each is. 'queue' is for NICs alone, and so are all rules of pci: and vfio-user:,
    /// which pass and count nothing: it must be all by EtherType, or addresses, ports and VLAN of IPv4, and may need /fdir=2k behind
    /// the port's name (82599; the 82576 has fewer filters)
    #[arg(long, value_name = "RULE", value_parser = values::steer)]
    steer: Vec<values::Steer>,
    /// Packets in each ring: a power of two from 64 to 32768
    #[arg(long, value_name = "PACKETS")]
    ring: Option<u32>,
    /// Let the NIC read and write packet memory itself; auto: where its driver can; xdp: only
    #[arg(long, value_name = "WHEN", default_value = "auto", hide_default_value = true)]
    zero_copy: ZeroCopyArg,
    /// Where the XDP program runs; auto: in the driver, else in the kernel's receive path; xdp: only
    #[arg(long, value_name = "WHERE", default_value = "auto", hide_default_value = true)]
    xdp: XdpArg,
    /// Poll the NIC from the worker's own core, so many microseconds per call; xdp: only
    #[arg(long, value_name = "MICROSECONDS", num_args = 0..=1, require_equals = true, default_missing_value = "20")]
    busy_poll: Option<u32>,
    /// Take all of an interface, or its NIC (pci:), even when the machine needs it (it has an address or the default
    /// route); send on it as fast as it goes
    #[arg(long)]
    force: bool,
    /// Drive a NIC although the machine has no IOMMU, by physical addresses of huge pages: the NIC can then overwrite any memory,
    /// the kernel's too, if there is a fault in it or here. Workers poll, without interrupts; pci: only
    #[arg(long)]
    no_iommu: bool,
    /// Packet memory, in bytes or with K, M, G [default: 64M, or what the rings of all queues of xdp: and null: ports need, twice]
    #[arg(long, value_name = "SIZE", value_parser = values::bytes)]
    memory: Option<usize>,
    /// 2 MiB pages for packet memory; auto: when free; reserve: ask the kernel for them and give them back
    #[arg(long, value_name = "WHEN", default_value = "auto", hide_default_value = true)]
    huge_pages: HugePagesArg,
    /// Bytes from one packet's frame to the next [default: 4096 where an xdp: interface's driver has zero-copy, which wants it;
    /// else 2304, which holds more packets, is faster, and does with any MTU]
    #[arg(long, value_name = "BYTES")]
    frame_stride: Option<StrideArg>,
}

/// `--zero-copy`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum ZeroCopyArg {
    Auto,
    Require,
    Off,
}

/// `--ntuple`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum NtupleArg {
    Auto,
    Require,
    Off,
}

/// `--xdp`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum XdpArg {
    Auto,
    Native,
    Generic,
}

/// `--huge-pages`.
#[derive(Clone, Copy, Debug)]
struct HugePagesArg(HugePages);

impl ValueEnum for HugePagesArg {
    fn value_variants<'a>() -> &'a [Self] {
        const {
            &[
                Self(HugePages::ALL[0]),
                Self(HugePages::ALL[1]),
                Self(HugePages::ALL[2]),
                Self(HugePages::ALL[3]),
            ]
        }
    }

    fn to_possible_value(&self) -> Option<clap::builder::PossibleValue> {
        Some(self.0.name().into())
    }
}

/// `--frame-stride`.
#[derive(Clone, Copy, Debug)]
struct StrideArg(Stride);

impl ValueEnum for StrideArg {
    fn value_variants<'a>() -> &'a [Self] {
        &[Self(Stride::Packed), Self(Stride::Aligned)]
    }

    fn to_possible_value(&self) -> Option<clap::builder::PossibleValue> {
        Some(self.0.name().into())
    }
}

/// Whether a port will be sent to, received from, or both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Use {
    /// Both.
    Both,
    /// Sent to.
    Send,
    /// Received from.
    Receive,
}

impl PortArgs {
    /// How to allocate packet memory.
    pub(crate) fn huge_pages(&self) -> HugePages {
        self.huge_pages.0
    }

    /// How far apart frames lie that these ports use.
    pub(crate) fn stride(&self, names: &[PortName]) -> Stride {
        match self.frame_stride {
            Some(StrideArg(stride)) => stride,
            None if self.zero_copy == ZeroCopyArg::Off => Stride::Packed,
            None => bywash_drivers::xdp::stride_for(names),
        }
    }

    /// Bytes of packet memory for these ports, each to be opened with its own of `options`.
    pub(crate) fn memory(&self, names: &[PortName], options: &[OpenOptions], stride: Stride) -> usize {
        const USUAL: usize = 64 << 20;
        self.memory.unwrap_or_else(|| {
            let rings = |(name, options)| bywash_drivers::memory_for(name, options, stride);
            names.iter().zip(options).map(rings).fold(0, usize::saturating_add).max(USUAL)
        })
    }

    /// A flood on the interface of the default route would cut the machine off, and whoever is behind that route.
    ///
    /// # Errors
    /// When it would be one, and nobody insists.
    pub(crate) fn refuse_flood(&self, name: &PortName) -> Result<(), Failure> {
        // What a TAP sends goes to this machine alone.
        let (PortName::Xdp { interface, .. } | PortName::Packet { interface }) = name else { return Ok(()) };
        // What is no interface is refused when it is opened.
        let is_default = interface::kernel_use(interface).is_ok_and(|it| it.default_route);
        if !is_default || self.force {
            return Ok(());
        }
        Err(Failure::Usage(format!(
            "the default route goes by {interface}: packets as fast as it goes would cut this machine off, and may hit others; \
             give a --rate, or --force"
        )))
    }

    /// The rules of `--steer`, in order, with those of files, if `check` has nothing against them.
    fn steer_rules(&self, check: impl Fn(&Rule) -> Result<(), SteerError>) -> Result<Vec<Rule>, Failure> {
        let mut rules = Vec::new();
        for steer in &self.steer {
            match steer {
                values::Steer::Rule(rule) => {
                    let refused = |error| Failure::Usage(format!("--steer '{}': {error}", rule.name));
                    check(rule).map_err(refused)?;
                    rules.push((**rule).clone());
                }
                values::Steer::File(path) => rules.extend(RuleFile::read(path)?.for_steer(&check)?),
            }
        }
        Ok(rules)
    }

    /// How to open each of `names`. What only `xdp:` ports know goes to those alone.
    ///
    /// # Errors
    /// When such an option was given and there is no such port.
    pub(crate) fn open_options(&self, names: &[PortName], usage: Use) -> Result<Vec<OpenOptions>, Failure> {
        let given = [
            (self.only.is_some(), "--only"),
            (self.ntuple != NtupleArg::Auto, "--ntuple"),
            (self.zero_copy != ZeroCopyArg::Auto, "--zero-copy"),
            (self.xdp != XdpArg::Auto, "--xdp"),
            (self.busy_poll.is_some(), "--busy-poll"),
        ];
        let is_pci = |name: &PortName| matches!(name, PortName::Pci { .. });
        let is_xdp = |name: &PortName| matches!(name, PortName::Xdp { .. });
        if let Some((_, flag)) = given.iter().find(|(is_given, _)| *is_given)
            && !names.iter().any(is_xdp)
        {
            return Err(Failure::Usage(format!("{flag} is for xdp: ports and there is none; leave it out")));
        }
        let is_nic = |name: &PortName| is_pci(name) || matches!(name, PortName::VfioUser { .. });
        if !self.steer.is_empty() && !names.iter().any(|name| is_nic(name) || is_xdp(name)) {
            return Err(Failure::Usage(
                "--steer is for xdp:, pci: and vfio-user: ports and there is none; leave it out".into(),
            ));
        }
        if !self.steer.is_empty() && usage == Use::Send {
            return Err(Failure::Usage(
                "--steer is about packets that are received, and here none is; leave it out".into(),
            ));
        }
        let floods = |name: &PortName| usage == Use::Send && matches!(name, PortName::Packet { .. });
        if self.force && !names.iter().any(|name| is_xdp(name) || is_pci(name) || floods(name)) {
            return Err(Failure::Usage(
                "--force is for xdp: and pci: ports and there is none; leave it out".into(),
            ));
        }
        if self.no_iommu && !names.iter().any(is_pci) {
            return Err(Failure::Usage(
                "--no-iommu is for pci: ports and there is none; leave it out".into(),
            ));
        }
        let common = OpenOptions {
            queues: self.queues,
            ring: self.ring,
            tx_only: usage == Use::Send,
            rx_only: usage == Use::Receive,
            force: self.force && names.iter().all(|name| !floods(name)),
            ..OpenOptions::default()
        };
        // Each port has all of them.
        let steer = self.steer_rules(|rule| {
            let nics = names.iter().any(is_nic).then(|| SteerRule::of(rule).map(drop));
            let programs = names.iter().any(is_xdp).then(|| check_steer(rule));
            nics.into_iter().chain(programs).collect()
        })?;
        let xdp = OpenOptions {
            only: self.only.as_deref().map(str::parse::<Expression>).transpose()?,
            ntuple: match self.ntuple {
                NtupleArg::Auto => None,
                NtupleArg::Require => Some(Ntuple::Require),
                NtupleArg::Off => Some(Ntuple::Off),
            },
            zero_copy: match self.zero_copy {
                ZeroCopyArg::Auto => None,
                ZeroCopyArg::Require => Some(ZeroCopy::Require),
                ZeroCopyArg::Off => Some(ZeroCopy::Off),
            },
            xdp_mode: match self.xdp {
                XdpArg::Auto => None,
                XdpArg::Native => Some(XdpMode::Native),
                XdpArg::Generic => Some(XdpMode::Generic),
            },
            busy_poll: self.busy_poll,
            steer,
            ..common.clone()
        };
        let nic = OpenOptions { steer: xdp.steer.clone(), ..common.clone() };
        let options = |name| match name {
            name if is_xdp(name) => xdp.clone(),
            name if is_pci(name) => OpenOptions { no_iommu: self.no_iommu, ..nic.clone() },
            name if is_nic(name) => nic.clone(),
            _ => common.clone(),
        };
        Ok(names.iter().map(options).collect())
    }
}

/// How workers run.
#[derive(Args, Debug)]
#[command(next_help_heading = "Workers")]
pub(crate) struct WorkerArgs {
    /// A worker on each of these cores: 0,1 or 0-3 [default: a worker per queue, on any core]
    #[arg(long, value_name = "LIST", value_parser = values::cores)]
    cores: Option<values::Cores>,
    /// What a worker without work does: spin, sleep, spin for 50 µs and then sleep (adaptive), or leave the core to others and
    /// look again (yield)
    #[arg(long, value_name = "HOW", default_value = "adaptive")]
    idle: IdleArg,
    /// Packets moved at once, at most: fewer means less delay and more work per packet
    #[arg(long, value_name = "PACKETS", default_value_t = 64, value_parser = clap::value_parser!(u8).range(1..=64))]
    batch: u8,
}

/// `--idle`.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum IdleArg {
    Spin,
    Adaptive,
    Sleep,
    Yield,
}

impl WorkerArgs {
    /// As the apps want it.
    pub(crate) fn options(&self) -> WorkerOptions {
        let idle = match self.idle {
            IdleArg::Spin => Idle::Spin,
            IdleArg::Adaptive => Idle::Adaptive,
            IdleArg::Sleep => Idle::Sleep,
            IdleArg::Yield => Idle::Yield,
        };
        WorkerOptions {
            cores: self.cores.clone().map(|cores| cores.0).unwrap_or_default(),
            idle,
            frames: None,
        }
    }

    /// Packets in a batch.
    pub(crate) fn batch(&self) -> usize {
        usize::from(self.batch)
    }
}

/// How long, and what is said.
#[derive(Args, Debug)]
#[command(next_help_heading = "Report")]
pub(crate) struct ReportArgs {
    /// Stop after this time: 10s, 500ms, 2m [default: at Ctrl-C]; Enter, or SIGUSR1, tells how it stands until then
    #[arg(long, value_name = "TIME", value_parser = values::duration)]
    pub(crate) duration: Option<Duration>,
    /// One JSON object per line on standard output, or on standard error where that is for data (tcp connect, pcap:-): start,
    /// interval each second, report at SIGUSR1 or Enter, warning, summary
    #[arg(long, conflicts_with = "quiet")]
    json: bool,
    /// Say nothing but why the aim was not met
    #[arg(long, short)]
    quiet: bool,
    /// A page that fills the terminal: rates, each queue, histograms; q ends it
    #[arg(long, conflicts_with_all = ["json", "quiet"])]
    tui: bool,
    /// Serve the counters at http://ADDR/metrics in Prometheus' text format while it runs: 9100 (this machine only),
    /// :9100 (all addresses), 192.0.2.1:9100
    #[arg(long, value_name = "ADDR", value_parser = values::listener)]
    prometheus: Option<SocketAddr>,
}

impl ReportArgs {
    /// What reports as was asked. Before anything is opened: what is wrong with the reports is told first.
    ///
    /// # Errors
    /// When the address is taken, or there is no terminal for the page.
    pub(crate) fn reporter(&self) -> Result<Reporter, Failure> {
        let reporter = Reporter::stdio(self.style(std::io::stderr().is_terminal()));
        self.complete(reporter.map_err(Failure::Output)?, true)
    }

    /// The same on standard error alone, where standard output is for packets.
    ///
    /// # Errors
    /// When the address is taken, or the page is wanted: there is no room for it.
    pub(crate) fn reporter_beside_data(&self) -> Result<Reporter, Failure> {
        self.on_stderr(std::io::stderr().is_terminal())
    }

    /// The same where what is typed is data, too: a line that changes would be written over it.
    ///
    /// # Errors
    /// As those of [`Self::reporter_beside_data`].
    pub(crate) fn reporter_beside_typing(&self) -> Result<Reporter, Failure> {
        self.on_stderr(std::io::stderr().is_terminal() && !std::io::stdin().is_terminal())
    }

    fn on_stderr(&self, live: bool) -> Result<Reporter, Failure> {
        if self.tui {
            return Err(Failure::Usage(
                "--tui needs standard output, which is for packets; leave it out".into(),
            ));
        }
        let reporter = Reporter::stderr(self.style(live)).map_err(Failure::Output)?;
        // What is typed may be packets or what a connection is to send.
        self.complete(reporter, false)
    }

    /// The one for what sends to these ports: `pcap:-` has standard output for itself.
    ///
    /// # Errors
    /// As those of the two others.
    pub(crate) fn reporter_for<'a>(
        &self,
        outputs: impl IntoIterator<Item = &'a PortName>,
    ) -> Result<Reporter, Failure> {
        let is_stdout = |name: &PortName| matches!(name, PortName::Pcap { file } if file == "-");
        if outputs.into_iter().any(is_stdout) { self.reporter_beside_data() } else { self.reporter() }
    }

    fn style(&self, live: bool) -> Style {
        if self.json {
            Style::Json
        } else if self.quiet {
            Style::Quiet
        } else {
            Style::Human { live }
        }
    }

    fn complete(&self, mut reporter: Reporter, keys: bool) -> Result<Reporter, Failure> {
        if let Some(address) = self.prometheus {
            reporter.serve_metrics(address).map_err(|error| {
                Failure::Usage(format!("--prometheus {address}: {error}; choose another address or port"))
            })?;
        }
        if self.tui {
            reporter.show_page().map_err(|error| {
                Failure::Usage(format!("--tui: {error}; leave it out, or use --json for a program"))
            })?;
        }
        reporter.answer(keys).map_err(Failure::Signals)?;
        Ok(reporter)
    }
}
