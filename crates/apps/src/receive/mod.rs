//! Receiving what a generator sends and judging it: how much, what is missing, what was damaged, how long it took.

use std::cell::RefCell;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bywash_port::frame::{Arena, BATCH};
use bywash_port::{Port, RxQueue};
use bywash_sys::worker::Stop;

use crate::crew::{Crew, WorkerOptions};
use crate::live::Live;
use crate::queues::{Halves, close_unused, pools};
use crate::report::Snapshot;
use crate::session::{App, StartError, close_port, gone, launch, port_tables, reasons};

mod ending;
mod events;
mod flows;
mod payload;
mod sequence;
mod share;
mod streams;
mod worker;
mod worst;

pub use events::{LATENCY, Start, Summary};
pub use flows::MOST_SHOWN as MOST_FLOWS_SHOWN;

use ending::Ending;
use share::Lost;
use worker::{Delays, Figures, Goal, Orders, Receiver};

/// How to receive.
#[derive(Clone, Debug)]
pub struct Options {
    /// Packets to receive, of generators unless all are dropped; until it is stopped when `None`.
    pub count: Option<u64>,
    /// Count packets and drop them, without a look at them.
    pub drop: bool,
    /// Tell of so many flows (protocol, addresses, ports), the worst and then the largest ones, up to [`MOST_FLOWS_SHOWN`]; 0 for
    /// none. Nothing is told of flows when all packets are dropped.
    pub flows: usize,
    /// Packets received at once, at most; 1 to [`BATCH`].
    pub batch: usize,
    /// How the workers run.
    pub workers: WorkerOptions,
}

impl Default for Options {
    fn default() -> Self {
        Self { count: None, drop: false, flows: 0, batch: BATCH, workers: WorkerOptions::default() }
    }
}

/// What was received so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Received {
    /// All packets.
    pub rx_packets: u64,
    /// Their bytes, without FCS.
    pub rx_bytes: u64,
    /// Packets of generators, as they were sent.
    pub right_packets: u64,
    /// Packets of generators that have not come, between the first and the last one that have.
    pub lost_packets: u64,
    /// Packets of generators that came after a later one.
    pub reordered_packets: u64,
    /// Packets of generators that came again.
    pub duplicate_packets: u64,
    /// Packets of generators that were damaged.
    pub damaged_packets: u64,
    /// Of those, packets with a number that can't be read: they count as lost, too.
    pub unnumbered_packets: u64,
    /// Other packets.
    pub foreign_packets: u64,
    /// Packets of generators, of more streams than could be told apart: no loss is known of those.
    pub untracked_packets: u64,
    /// Packets that came before they were sent, by the clocks of the two machines.
    pub clock_error_packets: u64,
}

/// A running receiver.
pub struct Receive {
    crew: Crew<Receiver>,
    live: Vec<Live<Figures>>,
    delays: Vec<Delays>,
    lost: RefCell<Lost>,
    port: Box<dyn Port>,
    options: Options,
    started: Instant,
}

impl Receive {
    /// Starts receiving on `port`, with frames of `arena`, until as many have come as were asked for or `stop` is set.
    ///
    /// # Errors
    /// [`StartError`], with the port closed again.
    pub fn start(
        mut port: Box<dyn Port>,
        options: &Options,
        arena: &'static Arena,
        stop: &Stop,
    ) -> Result<Self, StartError> {
        let queues = Halves::of(&mut *port);
        let lost = RefCell::new(Lost::new(queues.rx.len() > 1));
        let tasks = plan(queues, options, arena).map_err(|reason| format!("{} {reason}", port.name()));
        let live = tasks.iter().flatten().map(Receiver::live).collect();
        let delays = tasks.iter().flatten().map(Receiver::delays).collect();
        let started = Instant::now();
        let close = |task: Receiver| drop(task.close());
        let (crew, [port]) = launch("receive", &options.workers, tasks, [port], stop, close)?;
        Ok(Self { crew, live, delays, lost, port, options: options.clone(), started })
    }

    /// What was received so far.
    pub fn received(&self) -> Received {
        let figures = self.figures();
        Received::new(&figures, &self.lost.borrow())
    }

    /// What the workers have shown last.
    fn figures(&self) -> Vec<Figures> {
        let figures: Vec<Figures> = self.live.iter().map(Live::read).collect();
        self.lost.borrow_mut().look(&figures);
        figures
    }
}

/// The workers' tasks. On an error the queues are closed.
fn plan(mut queues: Halves, options: &Options, arena: &'static Arena) -> Result<Vec<Receiver>, String> {
    match deal(&mut queues.rx, options, arena) {
        Ok(mut tasks) => {
            if let Some(first) = tasks.first_mut() {
                queues.into_pairs().for_each(|queue| first.keep(queue));
            }
            Ok(tasks)
        }
        Err(reason) => {
            close_unused(queues.into_pairs(), arena)?;
            Err(reason)
        }
    }
}

fn deal(
    receivers: &mut Vec<(usize, Box<dyn RxQueue>)>,
    options: &Options,
    arena: &'static Arena,
) -> Result<Vec<Receiver>, String> {
    if receivers.is_empty() {
        return Err("only sends: nothing can be received from it".into());
    }
    let workers = options.workers.count(receivers.len())?;
    let shared = receivers.len() > 1;
    let pools = pools(arena, workers, &options.workers)?;
    let mut hands: Vec<Vec<_>> = pools.iter().map(|_| Vec::new()).collect();
    for (index, queue) in receivers.drain(..).enumerate() {
        hands[index % workers].push(queue);
    }
    let goal = options.count.map(goal).transpose()?;
    let flows = if options.drop { 0 } else { options.flows.min(MOST_FLOWS_SHOWN) };
    let ending = Ending::of(workers);
    let orders = Orders { batch: options.batch, judge: !options.drop, flows, shared, goal, ending };
    let tasks = hands.into_iter().zip(pools);
    Ok(tasks.map(|(queues, pool)| Receiver::new(queues, pool, orders.clone())).collect())
}

fn goal(count: u64) -> Result<Goal, String> {
    let reached = Stop::new().map_err(|error| format!("can't be received from: {error}"))?;
    Ok(Goal { count, came: Arc::default(), reached })
}

impl App for Receive {
    type Start = Start;
    type Summary = Summary;

    fn start(&self) -> Start {
        Start {
            command: "receive",
            port: self.port.name().to_string(),
            mode: self.port.capabilities().mode.clone(),
            workers: self.live.len(),
            count_packets: self.options.count,
            drop: self.options.drop,
        }
    }

    fn snapshot(&self) -> Snapshot {
        let (figures, lost) = (self.figures(), self.lost.borrow());
        let elapsed = self.started.elapsed();
        let mut snapshot = events::snapshot(&figures, &self.delays, elapsed, &lost, self.options.flows);
        snapshot.tables.extend(port_tables([&*self.port]));
        snapshot
    }

    fn gone(&self) -> (Vec<String>, bool) {
        gone(&*self.port)
    }

    fn wait(&mut self, timeout: Duration) -> bool {
        self.crew.wait(timeout)
    }

    fn finish(self) -> Summary {
        let (tasks, failures) = self.crew.join();
        let elapsed = self.started.elapsed();
        let figures: Vec<Figures> = tasks.into_iter().map(Receiver::close).collect();
        let (mut warnings, mut unmet) = (Vec::new(), reasons(&failures));
        let port = close_port(self.port, &mut warnings, &mut unmet);
        let mut lost = self.lost.into_inner();
        lost.look(&figures);
        let snapshot = events::snapshot(&figures, &self.delays, elapsed, &lost, self.options.flows);
        Summary::new(Received::new(&figures, &lost), snapshot, unmet, &self.options, (port, warnings))
    }
}
