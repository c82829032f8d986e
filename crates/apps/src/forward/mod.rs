//! Forwarding between pairs of ports, in both directions, or back out of the port a packet came in by.

use std::fmt::{self, Display};
use std::time::{Duration, Instant};

use bywash_port::Port;
use bywash_port::frame::{Arena, BATCH};
use bywash_sys::worker::Stop;
use serde::Serialize;

use crate::crew::{Crew, WorkerOptions};
use crate::live::Live;
use crate::report::Snapshot;
use crate::session::{self, App, PortSummary, StartError, close_port, launch, reasons};

mod edit;
mod plan;
mod summary;
mod worker;

pub use edit::MacEdit;
pub use summary::Summary;

use worker::{Figures, Forwarder};

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
    /// Where packets come in: a port's name, with a number behind it from the second port of the same name on (`null:#2`).
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
        let (directions, tasks) = match plan {
            Ok(plan) => (plan.directions, Ok(plan.tasks)),
            Err(reason) => (Vec::new(), Err(reason)),
        };
        let live = tasks.iter().flatten().map(Forwarder::live).collect();
        let started = Instant::now();
        let (crew, ports) =
            launch("forward", &options.workers, tasks, ports, stop, |task| drop(task.close()))?;
        Ok(Self { crew, live, directions, ports, started })
    }

    fn ports(&self) -> impl Iterator<Item = &dyn Port> + Clone {
        self.ports.iter().map(|port| &**port)
    }
}

impl App for Forward {
    type Start = Start;
    type Summary = Summary;

    fn start(&self) -> Start {
        let opened = |(port, name): (&dyn Port, String)| Opened {
            name,
            mode: port.capabilities().mode.clone(),
            link_mbps: port.capabilities().link_mbps,
        };
        Start {
            command: "forward",
            workers: self.live.len(),
            directions: self.directions.clone(),
            ports: self.ports().zip(session::names(self.ports())).map(opened).collect(),
        }
    }

    fn snapshot(&self) -> Snapshot {
        let figures: Vec<Figures> = self.live.iter().map(Live::read).collect();
        let mut snapshot = summary::snapshot(&self.directions, &figures, self.started.elapsed());
        snapshot.tables.extend(session::port_tables(self.ports()));
        snapshot
    }

    /// A direction is of no use without one of its ports, but the others are.
    fn gone(&self) -> (Vec<String>, bool) {
        let (mut sentences, mut names) = (Vec::new(), Vec::new());
        for (port, name) in self.ports().zip(session::names(self.ports())) {
            let (of_port, is_gone) = session::gone(port);
            sentences.extend(of_port);
            names.extend(is_gone.then_some(name));
        }
        let has_ended =
            |direction: &Direction| names.contains(&direction.from) || names.contains(&direction.to);
        let nothing_is_left = self.directions.iter().all(has_ended);
        (sentences, nothing_is_left)
    }

    fn wait(&mut self, timeout: Duration) -> bool {
        self.crew.wait(timeout)
    }

    fn finish(self) -> Summary {
        let names = session::names(self.ports());
        let (tasks, errors) = self.crew.join();
        let elapsed = self.started.elapsed();
        let figures: Vec<Figures> = tasks.into_iter().map(Forwarder::close).collect();
        let (mut warnings, mut unmet) = (Vec::new(), reasons(&errors));
        unmet.extend(summary::not_sent(&self.directions, &figures));
        let close = |(port, name)| PortSummary { name, ..close_port(port, &mut warnings, &mut unmet) };
        let ports = self.ports.into_iter().zip(names).map(close).collect();
        let snapshot = summary::snapshot(&self.directions, &figures, elapsed);
        Summary { met: unmet.is_empty(), unmet, snapshot, ports, warnings }
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
