//! Receiving what a generator sends and judging it: how much, what is missing, what was damaged, how long it took.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};

use bywash_port::frame::{Arena, BATCH};
use bywash_port::{Port, QueuePair, RxQueue};
use bywash_sys::worker::Stop;
use serde::Serialize;

use crate::crew::{Crew, WorkerOptions};
use crate::live::Live;
use crate::rate::{Traffic, packets_per_second};
use crate::session::{App, StartError, close_port, close_queues};

mod events;
mod sequence;
mod worker;

pub use events::{Interval, Percentiles, QueueSummary, Start, StreamSummary, Summary};

use sequence::Counts;
use worker::{Delays, Figures, Goal, Kinds, Receiver};

/// How to receive.
#[derive(Clone, Debug)]
pub struct Options {
    /// Packets of generators to receive; until it is stopped when `None`.
    pub count: Option<u64>,
    /// Packets received at once, at most; 1 to [`BATCH`].
    pub batch: usize,
    /// How the workers run.
    pub workers: WorkerOptions,
}

impl Default for Options {
    fn default() -> Self {
        Self { count: None, batch: BATCH, workers: WorkerOptions::default() }
    }
}

/// What was received so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
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
    /// Other packets.
    pub foreign_packets: u64,
}

impl Received {
    fn new(figures: &[Figures]) -> Self {
        let traffic = figures.iter().flat_map(|worker| &worker.queues);
        let traffic = traffic.fold(Traffic::default(), |sum, (_, counters)| sum + (*counters).into());
        let kinds = kinds(figures);
        let mut received = Self {
            rx_packets: traffic.packets,
            rx_bytes: traffic.bytes,
            right_packets: kinds.right,
            damaged_packets: kinds.damaged,
            foreign_packets: kinds.foreign,
            ..Self::default()
        };
        for counts in streams(figures).values() {
            received.lost_packets += counts.lost();
            received.reordered_packets += counts.reordered;
            received.duplicate_packets += counts.duplicates;
        }
        received
    }

    fn traffic(&self) -> Traffic {
        Traffic { packets: self.rx_packets, bytes: self.rx_bytes }
    }
}

fn kinds(figures: &[Figures]) -> Kinds {
    figures.iter().fold(Kinds::default(), |sum, worker| Kinds {
        right: sum.right + worker.kinds.right,
        damaged: sum.damaged + worker.kinds.damaged,
        foreign: sum.foreign + worker.kinds.foreign,
        untracked: sum.untracked + worker.kinds.untracked,
        clock_errors: sum.clock_errors + worker.kinds.clock_errors,
    })
}

/// The streams, put together from all queues.
fn streams(figures: &[Figures]) -> BTreeMap<u16, Counts> {
    let mut streams = BTreeMap::<u16, Counts>::new();
    for (id, counts) in figures.iter().flat_map(|worker| &worker.streams) {
        streams.entry(*id).or_default().merge(counts);
    }
    streams
}

/// A running receiver.
pub struct Receive {
    crew: Crew<Receiver>,
    live: Vec<Live<Figures>>,
    port: Box<dyn Port>,
    options: Options,
    started: Instant,
    last: (Instant, Received),
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
        let queues = port.queues();
        let refused = match plan(queues, options, arena) {
            Ok(tasks) => {
                let live = tasks.iter().map(Receiver::live).collect();
                let started = Instant::now();
                match Crew::start("receive", &options.workers, tasks, stop) {
                    Ok(crew) => {
                        let last = (started, Received::default());
                        return Ok(Self { crew, live, port, options: options.clone(), started, last });
                    }
                    Err((tasks, error)) => {
                        for task in tasks {
                            task.close();
                        }
                        error.into()
                    }
                }
            }
            Err(reason) => StartError::Refused(format!("{} {reason}", port.name())),
        };
        // Why it did not start matters more than what could not be undone.
        drop(port.close());
        Err(refused)
    }

    /// What was received so far.
    pub fn received(&self) -> Received {
        let figures: Vec<Figures> = self.live.iter().map(Live::read).collect();
        Received::new(&figures)
    }
}

/// The workers' tasks. On an error the queues are closed.
fn plan(queues: Vec<QueuePair>, options: &Options, arena: &'static Arena) -> Result<Vec<Receiver>, String> {
    let (mut receivers, mut unused) = (Vec::new(), Vec::new());
    for (number, QueuePair { rx, tx }) in queues.into_iter().enumerate() {
        receivers.extend(rx.map(|rx| (number, rx)));
        unused.extend(tx.map(|tx| QueuePair { rx: None, tx: Some(tx) }));
    }
    let tasks = deal(&mut receivers, options, arena);
    unused.extend(receivers.into_iter().map(|(_, rx)| QueuePair { rx: Some(rx), tx: None }));
    match tasks {
        Ok(mut tasks) => {
            if let Some(first) = tasks.first_mut() {
                unused.into_iter().for_each(|queue| first.keep(queue));
            }
            Ok(tasks)
        }
        Err(reason) => {
            let mut pool = arena.pool(0).map_err(|e| e.to_string())?;
            close_queues(unused, &mut pool);
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
    let share = options.workers.frames.unwrap_or(arena.unused() / workers);
    let mut shares = Vec::with_capacity(workers);
    for _ in 0..workers {
        shares.push((arena.pool(share).map_err(|e| e.to_string())?, Delays::new()?, Vec::new()));
    }
    for (index, queue) in receivers.drain(..).enumerate() {
        shares[index % workers].2.push(queue);
    }
    let reached = Arc::new(AtomicU64::new(0));
    let goal = options.count.map(|count| Goal { count, reached });
    let tasks = shares.into_iter();
    Ok(tasks
        .map(|(pool, delays, queues)| Receiver::new(queues, pool, options.batch, goal.clone(), delays))
        .collect())
}

impl App for Receive {
    type Start = Start;
    type Interval = Interval;
    type Summary = Summary;

    fn start(&self) -> Start {
        Start {
            command: "receive",
            port: self.port.name().to_string(),
            mode: self.port.capabilities().mode.clone(),
            workers: self.live.len(),
            count_packets: self.options.count,
        }
    }

    fn interval(&mut self) -> Interval {
        let (now, total) = (Instant::now(), self.received());
        let seconds = (now - self.last.0).as_secs_f64();
        let change = total.traffic() - self.last.1.traffic();
        self.last = (now, total);
        Interval {
            elapsed_s: (now - self.started).as_secs_f64(),
            interval_s: seconds,
            rate_pps: packets_per_second(change.packets, seconds),
            rate_l2_bps: change.l2_rate(seconds),
            rate_l1_bps: change.l1_rate(seconds),
            total,
        }
    }

    fn wait(&mut self, timeout: Duration) -> bool {
        self.crew.wait(timeout)
    }

    fn finish(self) -> Summary {
        let (tasks, failures) = self.crew.join();
        let seconds = self.started.elapsed().as_secs_f64();
        let (figures, delays): (Vec<Figures>, Vec<Delays>) = tasks.into_iter().map(Receiver::close).unzip();
        let mut warnings = Vec::new();
        let port = close_port(self.port, &mut warnings);
        Summary::new((&figures, delays), &failures, &self.options, seconds, (port, warnings))
    }
}
