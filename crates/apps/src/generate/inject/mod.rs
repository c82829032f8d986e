//! Generating without a port: the kernel makes the packets itself, by a program of ours, and hands them to an interface.
//!
//! BPF_PROG_TEST_RUN's live frames run an XDP program on pages that nobody received and do with them what it returns:
//! ours returns that the interface is to send them (`ndo_xdp_xmit`). Nothing is copied and no socket is in between, so
//! this is several times as fast as AF_XDP where that has to copy, as on a veth. Nothing is attached to anything.

use std::cell::{Cell, RefCell};
use std::time::{Duration, Instant};

use bywash_port::Counter;
use bywash_port::frame::FRAME_DATA;
use bywash_sys::clock;
use bywash_sys::interface::{self, Interface};
use bywash_sys::route::{LinkCounters, Route};
use bywash_sys::worker::Stop;
use bywash_wire::line::FCS;
use bywash_wire::{ETHERNET_HEADER, Mac, VlanTag};

use super::plan::Plan;
use super::schedule::Schedule;
use super::share::Share;
use super::worker::Figures;
use super::{Options, Outline, Start, Summary, events, first_stream, rate, times};
use crate::crew::Crew;
use crate::live::Live;
use crate::report::{Dial, Snapshot, Times};
use crate::session::{App, PortSummary, StartError, reasons};

mod program;
mod worker;

use worker::{Injector, Loaded};

/// How long the last packets may take to leave at the end.
const DRAIN: Duration = Duration::from_millis(500);

/// A running injection.
pub struct Inject {
    crew: Crew<Injector>,
    live: Vec<Live<Figures>>,
    dials: Vec<[Dial; 2]>,
    outlet: Outlet,
    options: Options,
    outline: Outline,
    started: Instant,
    /// Packets that had left when last asked for trouble.
    seen: Cell<u64>,
}

/// The interface, and what it has counted before us.
struct Outlet {
    name: String,
    index: u32,
    /// It counts every packet that it was handed: those that left, and those that found no room.
    is_exact: bool,
    route: RefCell<Route>,
    before: LinkCounters,
}

impl Outlet {
    fn open(interface: &Interface) -> Result<Self, String> {
        let mut route = Route::open().map_err(|error| error.to_string())?;
        let before = route.counters(interface.index).map_err(|error| error.to_string())?;
        Ok(Self {
            name: interface.name.clone(),
            index: interface.index,
            is_exact: interface.kind.as_deref() == Some("veth"),
            route: RefCell::new(route),
            before: before.unwrap_or_default(),
        })
    }

    /// What it has counted since: packets that left, and packets that it dropped. Others' are among them.
    fn counted(&self) -> (u64, u64) {
        // What is gone has counted nothing.
        let now = self.route.borrow_mut().counters(self.index).ok().flatten().unwrap_or(self.before);
        let dropped = |counters: &LinkCounters| counters.tx_dropped.wrapping_add(counters.tx_errors);
        (
            now.tx_packets.saturating_sub(self.before.tx_packets),
            dropped(&now).saturating_sub(dropped(&self.before)),
        )
    }

    fn summary(&self, (left, dropped): (u64, u64)) -> PortSummary {
        PortSummary {
            name: self.name.clone(),
            mode: vec!["injected into the kernel"],
            counters: vec![
                Counter::count("interface_tx_packets", left),
                Counter::count("interface_tx_dropped", dropped),
            ],
            rules: Vec::new(),
        }
    }

    /// Waits until it has counted so many packets, for a bounded time, and says what it has counted.
    fn drain(&self, packets: u64) -> (u64, u64) {
        let until = Instant::now() + DRAIN;
        loop {
            let (left, dropped) = self.counted();
            if !self.is_exact || left + dropped >= packets || Instant::now() >= until {
                return (left, dropped);
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

impl Inject {
    /// Starts generating into `interface` until all are sent, the time is over or `stop` is set. Of `options`, a worker
    /// for each core counts, or one.
    ///
    /// # Errors
    /// [`StartError`]; nothing is left in the kernel then.
    pub fn start(interface: &str, options: &Options, stop: &Stop) -> Result<Self, StartError> {
        let refused = |reason: String| StartError::Refused(format!("--inject {interface}: {reason}"));
        let (tasks, outline, outlet) = prepare(interface, options).map_err(refused)?;
        let live = tasks.iter().map(Injector::live).collect();
        let dials = tasks.iter().map(Injector::dials).collect();
        let started = Instant::now();
        let crew = Crew::start("inject", &options.workers, tasks, stop).map_err(|(_, error)| error)?;
        let options = options.clone();
        Ok(Self { crew, live, dials, outlet, options, outline, started, seen: Cell::new(0) })
    }

    fn times(&self) -> Option<[Times; 2]> {
        self.outline.pace.map(|_| times(&self.dials))
    }
}

fn prepare(name: &str, options: &Options) -> Result<(Vec<Injector>, Outline, Outlet), String> {
    // The longest packet is for advice that is not asked for here.
    let interface = interface::one(name, u32::MAX).map_err(|error| error.to_string())?;
    check(&interface)?;
    let mac = interface.mac.map(|mac| Mac(mac.0));
    let plan = Plan::new(&options.frame, mac)?;
    let most = interface.mtu as usize + ETHERNET_HEADER + size_of::<VlanTag>();
    if plan.longest() > most {
        let fcs = FCS as usize;
        return Err(format!(
            "takes frames of at most {} bytes with FCS (its MTU is {}), --size {} is more",
            most + fcs,
            interface.mtu,
            plan.longest() + fcs
        ));
    }
    // The kernel puts such a packet into one page, with things of its own.
    if plan.most_frames() > 1 {
        return Err(format!(
            "frames of at most {} bytes with FCS are injected, --size {} is more; send by xdp:{name} instead",
            FRAME_DATA + FCS as usize,
            plan.longest() + FCS as usize
        ));
    }
    let link_bits = options.line_rate.or(interface.speed_mbps.map(|mbps| u64::from(mbps) * 1_000_000));
    let pace = rate::pace(options.rate, options.burst, plan.mean, link_bits)?;
    let outline = Outline {
        pace,
        mean: plan.mean,
        link_bits,
        sizes: plan.variants.len(),
        varied: plan.patches.len(),
        turns: plan.turns,
    };
    let outlet = Outlet::open(&interface)?;
    let (workers, stream) = (options.workers.cores.len().max(1), first_stream());
    let (mut tasks, mut lengths) = (Vec::with_capacity(workers), Vec::with_capacity(workers));
    for worker in 0..workers {
        let (index, of) = (worker as u64, workers as u64);
        let share = Share::new(plan.clone(), (index, of));
        lengths.push(share.plan.lengths_from(share.size));
        let stream = stream.wrapping_add(u16::try_from(worker).unwrap_or_default());
        let loaded = Loaded::new(&share, stream, interface.index)?;
        let count = options.count.map(|count| count / of + u64::from(index < count % of));
        tasks.push(Injector::new(loaded, worker, options.batch, count).map_err(|error| error.to_string())?);
    }
    // Not before now: loading takes its time.
    let start = clock::monotonic();
    let end = options.duration.map(|d| start.saturating_add(u64::try_from(d.as_nanos()).unwrap_or(u64::MAX)));
    for (worker, task) in tasks.iter_mut().enumerate() {
        let schedule = |pace| Schedule::of_packets(pace, (worker, workers), start, &lengths[worker]);
        task.set_times(pace.map(schedule), end);
    }
    Ok((tasks, outline, outlet))
}

/// Whether the interface takes what is injected, as far as can be seen before. It would drop it without a word.
fn check(interface: &Interface) -> Result<(), String> {
    let name = &interface.name;
    if !interface.ethernet {
        return Err("it is no Ethernet interface".into());
    }
    if !interface.up {
        return Err(format!("it is down: `ip link set {name} up`"));
    }
    let is_veth = interface.kind.as_deref() == Some("veth");
    if !interface.carrier {
        let partner = interface.peer.as_ref().map_or("its other end", |peer| &peer.name);
        return Err(format!("it has no carrier: {partner} is not up"));
    }
    match interface.xdp_features {
        Some(features) if !features.redirect_target && is_veth => {
            let (peer, place) = match &interface.peer {
                Some(peer) => (peer.name.as_str(), ""),
                None => ("PEER", " in the namespace of its other end PEER"),
            };
            Err(format!(
                "a veth takes such packets only while its other end has GRO or an XDP program: \
                 `ethtool -K {peer} gro on`{place}"
            ))
        }
        Some(features) if !features.redirect_target => Err(format!(
            "its driver ({}) does not send what XDP programs redirect to it; send by xdp:{name} instead",
            interface.driver.name
        )),
        // A kernel that does not tell lets us try.
        _ => Ok(()),
    }
}

/// Takes from the workers' figures what the interface dropped, and what it never counted. Whose packets those were it
/// does not say: the first one's that sent so many.
fn settle(figures: &mut [Figures], mut dropped: u64, mut lost: u64) {
    for queue in figures {
        let counters = &mut queue.counters;
        let mean = counters.bytes / counters.packets.max(1);
        let errors = dropped.min(counters.packets);
        let stuck = lost.min(counters.packets - errors);
        counters.packets -= errors + stuck;
        counters.bytes = counters.bytes.saturating_sub(mean * (errors + stuck));
        counters.errors += errors;
        queue.in_flight += stuck;
        dropped -= errors;
        lost -= stuck;
    }
}

impl App for Inject {
    type Start = Start;
    type Summary = Summary;

    fn start(&self) -> Start {
        Start::new(&self.outlet.summary((0, 0)), self.live.len(), &self.outline)
    }

    fn snapshot(&self) -> Snapshot {
        let mut figures: Vec<Figures> = self.live.iter().map(Live::read).collect();
        let counted = self.outlet.counted();
        settle(&mut figures, counted.1, 0);
        events::snapshot(&figures, self.times(), self.started.elapsed(), &self.outlet.summary(counted))
    }

    fn trouble(&self) -> Option<String> {
        let (left, _) = self.outlet.counted();
        let is_stuck = self.seen.replace(left) == left;
        // What is sent less often than once a second is not stuck.
        let is_due = self.outline.pace.is_none_or(|pace| pace.millipackets() > 2000);
        (is_stuck && is_due && self.outlet.is_exact)
            .then(|| format!("nothing leaves: {}", self.why_nothing()))
    }

    fn wait(&mut self, timeout: Duration) -> bool {
        self.crew.wait(timeout)
    }

    fn finish(self) -> Summary {
        let times = self.times();
        let why = self.why_nothing();
        let (tasks, errors) = self.crew.join();
        let elapsed = self.started.elapsed();
        let (mut figures, failures): (Vec<_>, Vec<_>) = tasks.into_iter().map(Injector::close).unzip();
        let handed = figures.iter().map(|queue| queue.counters.packets).sum();
        let (left, dropped) = self.outlet.drain(handed);
        let lost = if self.outlet.is_exact { handed.saturating_sub(left + dropped) } else { 0 };
        settle(&mut figures, dropped, lost);
        let sent = figures.iter().map(|queue| queue.counters.packets).sum::<u64>();
        let failure = failures.into_iter().flatten().next();
        let stuck = (sent == 0).then(|| failure.clone().unwrap_or(why));
        let port = self.outlet.summary((left, dropped));
        let snapshot = events::snapshot(&figures, times, elapsed, &port);
        let ended = (&self.options, &self.outline);
        let mut summary =
            Summary::new(&figures, &snapshot, reasons(&errors), ended, (port, stuck), Vec::new());
        if let Some(failure) = failure.filter(|_| sent > 0) {
            summary.fail(format!("{}: {failure}", self.outlet.name));
        }
        summary
    }
}

impl Inject {
    /// What keeps packets from leaving.
    fn why_nothing(&self) -> String {
        match interface::one(&self.outlet.name, u32::MAX) {
            Err(_) => format!("{} is gone: it was removed or moved to another namespace", self.outlet.name),
            Ok(interface) => match check(&interface) {
                Err(reason) => format!("{}: {reason}", self.outlet.name),
                Ok(()) => format!("{} drops all that it is handed", self.outlet.name),
            },
        }
    }
}
