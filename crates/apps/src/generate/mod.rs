//! Generating packets of any kind: as fast as it goes or on an exact schedule, over several queues.

use std::cell::Cell;
use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::time::{Duration, Instant};

use bywash_port::frame::{Arena, BATCH};
use bywash_port::{Port, QueuePair, TxQueue};
use bywash_sys::clock;
use bywash_sys::worker::Stop;
use bywash_wire::Mac;
use bywash_wire::line::FCS;

use crate::crew::{Crew, WorkerOptions};
use crate::live::Live;
use crate::queues::{close_queues, longest_packet};
use crate::rate::Traffic;
use crate::report::{Dial, Snapshot, Times};
use crate::session::{App, PortSummary, StartError, close_port, gone, is_file, reasons};

mod diagnosis;
mod events;
mod field;
mod frame;
mod inject;
mod layers;
mod maker;
mod payload;
mod plan;
mod rate;
mod schedule;
mod series;
mod share;
mod size;
mod template;
mod turns;
mod values;
mod worker;

pub use events::{QueueSummary, Start, Summary};
pub use field::{Field, FieldError, names as field_names};
pub use frame::{Frame, MOST_SOURCES, Network, Upper};
pub use inject::Inject;
pub use payload::{Payload, PayloadError, bytes_of_hex};
pub use rate::{Burst, Rate, RateError};
pub use size::{SizeError, Sizes};
pub use template::packet_of_file;

use maker::Maker;
use plan::Plan;
use schedule::{Pace, Schedule};
use turns::Turns;
use worker::{Figures, Generator, Orders};

/// What to generate.
#[derive(Clone, Debug)]
pub struct Options {
    /// What the packets look like.
    pub frame: Frame,
    /// How fast; as fast as it goes when `None`.
    pub rate: Option<Rate>,
    /// Packets that leave together; one by one when `None`.
    pub burst: Option<Burst>,
    /// Bits per second that the link carries; the port's own figure when `None`.
    pub line_rate: Option<u64>,
    /// How many packets; until the end when `None`.
    pub count: Option<u64>,
    /// How long; until it is stopped when `None`.
    pub duration: Option<Duration>,
    /// Packets handed over at once, at most; 1 to [`BATCH`].
    pub batch: usize,
    /// How the workers run.
    pub workers: WorkerOptions,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            frame: Frame::default(),
            rate: None,
            burst: None,
            line_rate: None,
            count: None,
            duration: None,
            batch: BATCH,
            workers: WorkerOptions::default(),
        }
    }
}

impl Options {
    /// How long to let it run before it is stopped: as long as was asked and as much longer as the last packets may
    /// take to find room.
    pub fn patience(&self) -> Option<Duration> {
        self.duration.map(|duration| duration.saturating_add(Duration::from_secs(1)))
    }
}

/// What was worked out before the start.
#[derive(Clone, Copy, Debug)]
struct Outline {
    pace: Option<Pace>,
    mean: size::Mean,
    /// Bits per second that the link carries.
    link_bits: Option<u64>,
    /// How many different sizes there are.
    sizes: usize,
    /// How many fields vary, without those of the probe.
    varied: usize,
    /// Flows that take turns, by which a receiver knows the loss of each.
    turns: Option<Turns>,
}

/// A running generator.
pub struct Generate {
    crew: Crew<Generator>,
    live: Vec<Live<Figures>>,
    /// Of each worker, those of its gaps and of how late it is.
    dials: Vec<[Dial; 2]>,
    /// Packets sent when last asked for trouble.
    seen: Cell<u64>,
    port: Box<dyn Port>,
    options: Options,
    outline: Outline,
    started: Instant,
}

impl Generate {
    /// Starts generating on `port`, with packets in `arena`, until all are sent, the time is over or `stop` is set.
    ///
    /// # Errors
    /// [`StartError`], with the port closed again.
    pub fn start(
        mut port: Box<dyn Port>,
        options: &Options,
        arena: &'static Arena,
        stop: &Stop,
    ) -> Result<Self, StartError> {
        if let Some(why) = diagnosis::obstacle(&*port) {
            // Why it did not start matters more than what could not be undone.
            drop(port.close());
            return Err(StartError::Refused(why));
        }
        let queues = port.queues();
        let refused = match plan(&*port, queues, options, arena) {
            Ok((tasks, outline)) => {
                let live = tasks.iter().map(Generator::live).collect();
                let dials = tasks.iter().map(Generator::dials).collect();
                let started = Instant::now();
                match Crew::start("generate", &options.workers, tasks, stop) {
                    Ok(crew) => {
                        return Ok(Self {
                            crew,
                            live,
                            port,
                            options: options.clone(),
                            outline,
                            started,
                            dials,
                            seen: Cell::new(0),
                        });
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

    /// How well the schedule was kept, if there is one.
    fn times(&self) -> Option<[Times; 2]> {
        self.outline.pace.map(|_| times(&self.dials))
    }

    /// What was sent so far: what the port says has left.
    pub fn sent(&self) -> Traffic {
        self.live
            .iter()
            .map(Live::read)
            .fold(Traffic::default(), |sum, figures| sum + figures.counters.into())
    }
}

/// All workers' gaps, and how late they were.
fn times(dials: &[[Dial; 2]]) -> [Times; 2] {
    [0, 1].map(|which: usize| Times::read(dials.iter().map(|dials| &dials[which])))
}

/// The workers' tasks. On an error the queues are closed.
fn plan(
    port: &dyn Port,
    queues: Vec<QueuePair>,
    options: &Options,
    arena: &'static Arena,
) -> Result<(Vec<Generator>, Outline), String> {
    let (mut senders, mut unused) = (Vec::new(), Vec::new());
    for (number, QueuePair { rx, tx }) in queues.into_iter().enumerate() {
        senders.extend(tx.map(|tx| (number, tx)));
        unused.extend(rx.map(|rx| QueuePair { rx: Some(rx), tx: None }));
    }
    let tasks = deal(port, &mut senders, options, arena);
    unused.extend(senders.into_iter().map(|(_, tx)| QueuePair { rx: None, tx: Some(tx) }));
    match tasks {
        Ok((mut tasks, outline)) => {
            if let Some(first) = tasks.first_mut() {
                unused.into_iter().for_each(|queue| first.keep(queue));
            }
            Ok((tasks, outline))
        }
        Err(reason) => {
            let mut pool = arena.pool(0).map_err(|e| e.to_string())?;
            close_queues(unused, &mut pool);
            Err(reason)
        }
    }
}

fn deal(
    port: &dyn Port,
    senders: &mut Vec<(usize, Box<dyn TxQueue>)>,
    options: &Options,
    arena: &'static Arena,
) -> Result<(Vec<Generator>, Outline), String> {
    let capabilities = port.capabilities();
    let plan = Plan::new(&options.frame, port.mac().map(Mac))
        .map_err(|reason| format!("can't be sent this: {reason}"))?;
    let (longest, most, fcs) = (plan.longest(), longest_packet(capabilities, &plan.body), FCS as usize);
    if longest > most {
        return Err(format!(
            "takes frames of at most {} bytes with FCS, --size {} is more",
            most + fcs,
            longest + fcs,
        ));
    }
    if senders.is_empty() {
        return Err("only receives: it can't be sent to".into());
    }
    let link_bits = options.line_rate.or(capabilities.link_mbps.map(|mbps| u64::from(mbps) * 1_000_000));
    let pace = rate::pace(options.rate, options.burst, plan.mean, link_bits)?;
    let outline = Outline {
        pace,
        mean: plan.mean,
        link_bits,
        sizes: plan.variants.len(),
        varied: plan.patches.len(),
        turns: plan.turns,
    };
    let workers = match options.workers.cores.len() {
        // No more workers than packets, so that each has something to send.
        0 => usize::try_from(options.count.unwrap_or(u64::MAX)).unwrap_or(usize::MAX).clamp(1, senders.len()),
        _ => options.workers.count(senders.len())?,
    };
    let share = options.workers.frames.unwrap_or(arena.unused() / workers);
    if share < plan.most_frames() {
        return Err(format!(
            "can't be sent this: --size {} needs {} frames of memory for each packet, and a worker has {share} (--memory)",
            longest + fcs,
            plan.most_frames()
        ));
    }
    let mut shares = Vec::with_capacity(workers);
    for _ in 0..workers {
        shares.push(arena.pool(share).map_err(|e| e.to_string())?);
    }
    let stream = first_stream();
    let tasks =
        shares.into_iter().zip(senders.drain(..workers)).enumerate().map(|(worker, (pool, (number, tx)))| {
            let (index, of) = (worker as u64, workers as u64);
            let stream = stream.wrapping_add(u16::try_from(worker).unwrap_or_default());
            let orders = Orders {
                maker: Maker::new(plan.clone(), (index, of), stream),
                count: options.count.map(|count| count / of + u64::from(index < count % of)),
                is_file: is_file(port),
            };
            Generator::new(tx, number, pool, options.batch, orders)
        });
    let mut tasks: Vec<Generator> = tasks.collect();
    // Not before now: filling the frames takes its time.
    let start = clock::monotonic();
    let end = options.duration.map(|d| start.saturating_add(u64::try_from(d.as_nanos()).unwrap_or(u64::MAX)));
    for (worker, task) in tasks.iter_mut().enumerate() {
        let schedule = |pace| Schedule::of_packets(pace, (worker, workers), start, &task.lengths());
        task.set_times(pace.map(schedule), end);
    }
    Ok((tasks, outline))
}

/// The first worker's stream: nobody else's, and not that of an earlier run, so that a receiver that goes on running
/// sees a new stream, not a gap.
fn first_stream() -> u16 {
    let stream = RandomState::new().hash_one(std::process::id()).to_be_bytes();
    u16::from_be_bytes([stream[0], stream[1]])
}

impl App for Generate {
    type Start = Start;
    type Summary = Summary;

    fn start(&self) -> Start {
        Start::new(&PortSummary::of(&*self.port), self.live.len(), &self.outline)
    }

    fn snapshot(&self) -> Snapshot {
        let queues: Vec<Figures> = self.live.iter().map(Live::read).collect();
        events::snapshot(&queues, self.times(), self.started.elapsed(), &PortSummary::of(&*self.port))
    }

    fn trouble(&self) -> Option<String> {
        let figures: Vec<Figures> = self.live.iter().map(Live::read).collect();
        let sent = figures.iter().map(|queue| queue.counters.packets).sum();
        let is_stuck = self.seen.replace(sent) == sent;
        // What is sent less often than once a second is not stuck.
        let is_due = self.outline.pace.is_none_or(|pace| pace.millipackets() > 2000);
        (is_stuck && is_due)
            .then(|| format!("nothing leaves: {}", diagnosis::why_nothing(&*self.port, &figures)))
    }

    fn gone(&self) -> (Vec<String>, bool) {
        gone(&*self.port)
    }

    fn wait(&mut self, timeout: Duration) -> bool {
        self.crew.wait(timeout)
    }

    fn finish(self) -> Summary {
        let (tasks, errors) = self.crew.join();
        let elapsed = self.started.elapsed();
        let times = self.outline.pace.map(|_| times(&self.dials));
        let queues: Vec<Figures> = tasks.into_iter().map(Generator::close).collect();
        let mut warnings = Vec::new();
        let sent = queues.iter().map(|queue| queue.counters.packets).sum::<u64>();
        let stuck = (sent == 0).then(|| diagnosis::why_nothing(&*self.port, &queues));
        let mut unmet = reasons(&errors);
        let port = close_port(self.port, &mut warnings, &mut unmet);
        let snapshot = events::snapshot(&queues, times, elapsed, &port);
        let ended = (&self.options, &self.outline);
        Summary::new(&queues, &snapshot, unmet, ended, (port, stuck), warnings)
    }
}

/// The packet that a generator sends with this probe, for those who test what reads it.
#[cfg(test)]
pub(crate) fn template_of(frame: &Frame, src_mac: Mac, probe: crate::probe::Probe) -> Vec<u8> {
    let mut maker = Maker::new(Plan::new(frame, Some(src_mac)).unwrap(), (0, 1), probe.stream);
    maker.set_sequence(probe.sequence);
    let arena = Arena::new(vec![0; bywash_port::frame::FRAME_SIZE]).unwrap();
    let (mut pool, mut batch) = (arena.pool(1).unwrap(), bywash_port::frame::Batch::new());
    maker.make(1, probe.time, false, &mut pool, &mut batch);
    let packet = batch.iter().next().unwrap().head().to_vec();
    pool.give_batch(&mut batch);
    packet
}

#[cfg(test)]
mod tests;
