//! Forwarding between pairs of ports, in both directions, or back out of the port a packet came in by.

use std::fmt::{self, Display};
use std::time::{Duration, Instant};

use bywash_port::Port;
use bywash_port::frame::{Arena, BATCH};
use bywash_sys::worker::Stop;
use serde::Serialize;

use crate::crew::{Crew, WorkerOptions};
use crate::live::Live;
use crate::rate::{Traffic, packets_per_second};
use crate::session::{App, StartError, close_port};

mod edit;
mod plan;
mod worker;

pub use edit::MacEdit;
use worker::{Figures, Forwarder, QueueFigures};

/// Two ports between which packets are forwarded.
pub enum Pair {
    /// What comes in at one goes out at the other.
    Both(Box<dyn Port>, Box<dyn Port>),
    /// What comes in goes out again: a reflector.
    Same(Box<dyn Port>),
}

impl Pair {
    fn ports_mut(&mut self) -> impl Iterator<Item = &mut Box<dyn Port>> {
        let (a, b) = match self {
            Self::Both(a, b) => (a, Some(b)),
            Self::Same(a) => (a, None),
        };
        std::iter::once(a).chain(b)
    }

    fn into_ports(self) -> impl Iterator<Item = Box<dyn Port>> {
        let (a, b) = match self {
            Self::Both(a, b) => (a, Some(b)),
            Self::Same(a) => (a, None),
        };
        std::iter::once(a).chain(b)
    }
}

/// How to forward.
#[derive(Clone, Debug)]
pub struct Options {
    /// What becomes of the Ethernet addresses.
    pub edit: MacEdit,
    /// Packets moved at once, at most; 1 to [`BATCH`].
    pub batch: usize,
    /// How the workers run.
    pub workers: WorkerOptions,
}

impl Default for Options {
    fn default() -> Self {
        Self { edit: MacEdit::default(), batch: BATCH, workers: WorkerOptions::default() }
    }
}

/// One direction of a pair.
#[derive(Clone, Debug, Serialize)]
pub struct Direction {
    /// Where packets come in.
    pub from: String,
    /// Where they go out.
    pub to: String,
}

/// A running forwarder.
pub struct Forward {
    crew: Crew<Forwarder>,
    live: Vec<Live<Figures>>,
    directions: Vec<Direction>,
    ports: Vec<Box<dyn Port>>,
    started: Instant,
    /// Traffic of each direction at the last interval, and when that was.
    last: (Instant, Vec<DirectionTraffic>),
}

impl Forward {
    /// Starts forwarding between each of `pairs`, on packets in `arena`, until `stop` is set.
    ///
    /// # Errors
    /// [`StartError`], with the ports closed again.
    pub fn start(
        mut pairs: Vec<Pair>,
        options: &Options,
        arena: &'static Arena,
        stop: &Stop,
    ) -> Result<Self, StartError> {
        let plan = plan::plan(&mut pairs, options, arena);
        let ports: Vec<_> = pairs.into_iter().flat_map(Pair::into_ports).collect();
        let close_all = |ports: Vec<Box<dyn Port>>| ports.into_iter().for_each(|port| drop(port.close()));
        let plan = match plan {
            Ok(plan) => plan,
            Err(reason) => {
                close_all(ports);
                return Err(StartError::Refused(reason));
            }
        };
        let live = plan.tasks.iter().map(Forwarder::live).collect();
        let started = Instant::now();
        let last = (started, vec![DirectionTraffic::default(); plan.directions.len()]);
        match Crew::start("forward", &options.workers, plan.tasks, stop) {
            Ok(crew) => Ok(Self { crew, live, directions: plan.directions, ports, started, last }),
            Err((tasks, error)) => {
                tasks.into_iter().for_each(|task| drop(task.close()));
                close_all(ports);
                Err(error.into())
            }
        }
    }

    /// What was forwarded so far, by direction.
    pub fn traffic(&self) -> Vec<DirectionTraffic> {
        traffic(self.directions.len(), self.live.iter().map(Live::read))
    }
}

/// What one direction has carried.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DirectionTraffic {
    /// Came in.
    pub received: Traffic,
    /// Went out.
    pub sent: Traffic,
    /// Packets that came in and were dropped because the other side took none.
    pub dropped: u64,
}

fn traffic(directions: usize, figures: impl Iterator<Item = Figures>) -> Vec<DirectionTraffic> {
    let mut all = vec![DirectionTraffic::default(); directions];
    for worker in figures {
        for queue in &worker.entrances {
            all[queue.direction].received += queue.counters.into();
        }
        for queue in &worker.exits {
            all[queue.direction].sent += queue.counters.into();
            all[queue.direction].dropped += queue.dropped;
        }
    }
    all
}

impl App for Forward {
    type Start = Start;
    type Interval = Interval;
    type Summary = Summary;

    fn start(&self) -> Start {
        let opened = |port: &dyn Port| Opened {
            name: port.name().to_string(),
            mode: port.capabilities().mode.clone(),
            link_mbps: port.capabilities().link_mbps,
        };
        Start {
            command: "forward",
            workers: self.live.len(),
            directions: self.directions.clone(),
            ports: self.ports.iter().map(|port| opened(&**port)).collect(),
        }
    }

    fn interval(&mut self) -> Interval {
        let (now, traffic) = (Instant::now(), self.traffic());
        let seconds = (now - self.last.0).as_secs_f64();
        let change = traffic.iter().zip(&self.last.1).zip(&self.directions);
        let directions = change.map(|((new, old), direction)| DirectionInterval {
            direction: direction.clone(),
            rx_pps: packets_per_second(new.received.packets - old.received.packets, seconds),
            tx_pps: packets_per_second(new.sent.packets - old.sent.packets, seconds),
            tx_l1_bps: (new.sent - old.sent).l1_rate(seconds),
            dropped_packets: new.dropped - old.dropped,
        });
        let interval = Interval {
            elapsed_s: (now - self.started).as_secs_f64(),
            interval_s: seconds,
            directions: directions.collect(),
        };
        self.last = (now, traffic);
        interval
    }

    fn wait(&mut self, timeout: Duration) -> bool {
        self.crew.wait(timeout)
    }

    fn finish(self) -> Summary {
        let (tasks, errors) = self.crew.join();
        let seconds = self.started.elapsed().as_secs_f64();
        let figures: Vec<Figures> = tasks.into_iter().map(Forwarder::close).collect();
        let total = traffic(self.directions.len(), figures.iter().cloned());
        let mut warnings = Vec::new();
        let ports = self.ports.into_iter().map(|port| close_port(port, &mut warnings)).collect();
        let directions =
            self.directions.into_iter().zip(total).enumerate().map(|(index, (direction, traffic))| {
                let of = |queues: &Vec<QueueFigures>| {
                    queues.iter().filter(|q| q.direction == index).copied().collect()
                };
                let rx: Vec<QueueFigures> =
                    figures.iter().flat_map(|f| -> Vec<_> { of(&f.entrances) }).collect();
                let tx: Vec<QueueFigures> = figures.iter().flat_map(|f| -> Vec<_> { of(&f.exits) }).collect();
                DirectionSummary::new(direction, traffic, seconds, (rx, tx))
            });
        let directions = directions.collect();
        let unmet: Vec<String> = errors.iter().map(ToString::to_string).collect();
        Summary { met: unmet.is_empty(), unmet, duration_s: seconds, directions, ports, warnings }
    }
}

/// What is about to be forwarded.
#[derive(Debug, Serialize)]
pub struct Start {
    command: &'static str,
    workers: usize,
    directions: Vec<Direction>,
    ports: Vec<Opened>,
}

/// A port and how it was opened.
#[derive(Debug, Serialize)]
struct Opened {
    name: String,
    mode: Vec<&'static str>,
    link_mbps: Option<u32>,
}

impl Display for Start {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let directions: Vec<String> =
            self.directions.iter().map(|d| format!("{} -> {}", d.from, d.to)).collect();
        write!(f, "forwarding {} with {} worker(s)", directions.join(", "), self.workers)?;
        for port in &self.ports {
            write!(f, "\n  {} ({})", port.name, port.mode.join(", "))?;
        }
        f.write_str("\nCtrl-C ends it")
    }
}

/// What was forwarded since the last interval.
#[derive(Debug, Serialize)]
pub struct Interval {
    elapsed_s: f64,
    interval_s: f64,
    directions: Vec<DirectionInterval>,
}

/// One direction's part of an [`Interval`].
#[derive(Debug, Serialize)]
pub struct DirectionInterval {
    #[serde(flatten)]
    direction: Direction,
    rx_pps: u64,
    tx_pps: u64,
    tx_l1_bps: u64,
    dropped_packets: u64,
}

impl Display for Interval {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.0} s", self.elapsed_s)?;
        for d in &self.directions {
            let (from, to) = (&d.direction.from, &d.direction.to);
            write!(f, "   {from} -> {to} {}", crate::rate::Pps(d.tx_pps))?;
            if d.dropped_packets > 0 {
                write!(f, ", dropped {}", d.dropped_packets)?;
            }
        }
        Ok(())
    }
}

mod summary;
pub use summary::{DirectionSummary, QueueSummary, Summary};
