//! Generating UDP packets: as fast as it goes or on an exact schedule, from one source or many, over several queues.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::time::{Duration, Instant};

use bywash_port::frame::{Arena, BATCH};
use bywash_port::{Port, QueuePair, TxQueue};
use bywash_sys::clock;
use bywash_sys::worker::Stop;
use bywash_wire::Mac;
use bywash_wire::line::packets_per_second as line_rate;

use crate::crew::{Crew, WorkerOptions};
use crate::live::Live;
use crate::rate::{Traffic, packets_per_second};
use crate::session::{App, StartError, close_port, close_queues};

mod events;
mod rate;
mod schedule;
mod template;
mod worker;

pub use events::{Interval, QueueSummary, Start, Summary};
pub use rate::{Rate, RateError};
pub use template::{Frame, MOST_SOURCES};

use schedule::Schedule;
use template::Template;
use worker::{Figures, Generator, Orders, Sources};

/// What to generate.
#[derive(Clone, Debug)]
pub struct Options {
    /// What the packets look like.
    pub frame: Frame,
    /// How fast; as fast as it goes when `None`.
    pub rate: Option<Rate>,
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

/// A running generator.
pub struct Generate {
    crew: Crew<Generator>,
    live: Vec<Live<Figures>>,
    port: Box<dyn Port>,
    options: Options,
    /// Thousandths of a packet per second.
    rate: Option<u64>,
    started: Instant,
    last: (Instant, Traffic),
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
        let queues = port.queues();
        let refused = match plan(&*port, queues, options, arena) {
            Ok((tasks, rate)) => {
                let live = tasks.iter().map(Generator::live).collect();
                let started = Instant::now();
                let last = (started, Traffic::default());
                match Crew::start("generate", &options.workers, tasks, stop) {
                    Ok(crew) => {
                        return Ok(Self { crew, live, port, options: options.clone(), rate, started, last });
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

    /// What was sent so far: what the port says has left.
    pub fn sent(&self) -> Traffic {
        self.live
            .iter()
            .map(Live::read)
            .fold(Traffic::default(), |sum, figures| sum + figures.counters.into())
    }
}

/// The workers' tasks and the rate in thousandths of a packet per second. On an error the queues are closed.
fn plan(
    port: &dyn Port,
    queues: Vec<QueuePair>,
    options: &Options,
    arena: &'static Arena,
) -> Result<(Vec<Generator>, Option<u64>), String> {
    let (mut senders, mut unused) = (Vec::new(), Vec::new());
    for (number, QueuePair { rx, tx }) in queues.into_iter().enumerate() {
        senders.extend(tx.map(|tx| (number, tx)));
        unused.extend(rx.map(|rx| QueuePair { rx: Some(rx), tx: None }));
    }
    let tasks = deal(port, &mut senders, options, arena);
    unused.extend(senders.into_iter().map(|(_, tx)| QueuePair { rx: None, tx: Some(tx) }));
    match tasks {
        Ok((mut tasks, rate)) => {
            if let Some(first) = tasks.first_mut() {
                unused.into_iter().for_each(|queue| first.keep(queue));
            }
            Ok((tasks, rate))
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
) -> Result<(Vec<Generator>, Option<u64>), String> {
    let (frame, capabilities) = (&options.frame, port.capabilities());
    frame.check()?;
    let longest = capabilities.max_len.min(bywash_port::frame::FRAME_DATA);
    let fcs = frame.size - frame.len();
    if frame.len() > longest {
        return Err(format!(
            "takes frames of at most {1} bytes with FCS, --size {0} is more",
            frame.size,
            longest + fcs
        ));
    }
    if senders.is_empty() {
        return Err("only receives: it can't be sent to".into());
    }
    let length = u32::try_from(frame.len()).unwrap_or(u32::MAX);
    let rate = options.rate.map(|rate| rate.millipackets(length, capabilities.link_mbps)).transpose()?;
    let workers = match options.workers.cores.len() {
        // No more workers than packets, so that each has something to send.
        0 => usize::try_from(options.count.unwrap_or(u64::MAX)).unwrap_or(usize::MAX).clamp(1, senders.len()),
        _ => options.workers.count(senders.len())?,
    };
    let share = options.workers.frames.unwrap_or(arena.unused() / workers);
    let pools: Vec<_> =
        (0..workers).map(|_| arena.pool(share)).collect::<Result<_, _>>().map_err(|e| e.to_string())?;
    let src_mac = frame.src_mac.or(port.mac().map(Mac)).unwrap_or(Mac([2, 0, 0, 0, 0, 1]));
    let template = Template::new(frame, src_mac);
    // Nobody else's, and not that of an earlier run: a receiver that goes on running sees a new stream, not a gap.
    let stream = RandomState::new().hash_one(std::process::id()).to_be_bytes();
    let stream = u16::from_be_bytes([stream[0], stream[1]]);
    let tasks =
        pools.into_iter().zip(senders.drain(..workers)).enumerate().map(|(worker, (pool, (number, tx)))| {
            let (index, of) = (worker as u64, workers as u64);
            let first_source = u64::from(frame.sources) * index / of;
            let orders = Orders {
                template: template.clone(),
                sources: Sources::new(
                    frame.sources,
                    frame.src_port,
                    u32::try_from(first_source).unwrap_or_default(),
                ),
                stream: stream.wrapping_add(u16::try_from(worker).unwrap_or_default()),
                count: options.count.map(|count| count / of + u64::from(index < count % of)),
            };
            Generator::new(tx, number, pool, options.batch, orders)
        });
    let mut tasks: Vec<Generator> = tasks.collect();
    // Not before now: filling the frames takes its time.
    let start = clock::monotonic();
    let end = options.duration.map(|d| start.saturating_add(u64::try_from(d.as_nanos()).unwrap_or(u64::MAX)));
    for (worker, task) in tasks.iter_mut().enumerate() {
        task.set_times(rate.map(|rate| Schedule::new(rate, (worker, workers), start)), end);
    }
    Ok((tasks, rate))
}

impl App for Generate {
    type Start = Start;
    type Interval = Interval;
    type Summary = Summary;

    fn start(&self) -> Start {
        let capabilities = self.port.capabilities();
        let length = u32::try_from(self.options.frame.len()).unwrap_or(u32::MAX);
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "at most 10^11 packets")]
        let line = |mbps: u32| line_rate(u64::from(mbps) * 1_000_000, length) as u64;
        Start {
            command: "generate",
            port: self.port.name().to_string(),
            mode: capabilities.mode.clone(),
            workers: self.live.len(),
            size_bytes: self.options.frame.size,
            sources: self.options.frame.sources,
            asked_pps: self.rate.map(events::thousandths),
            line_rate_pps: capabilities.link_mbps.map(line),
            link_mbps: capabilities.link_mbps,
        }
    }

    fn interval(&mut self) -> Interval {
        let (now, sent) = (Instant::now(), self.sent());
        let seconds = (now - self.last.0).as_secs_f64();
        let change = sent - self.last.1;
        self.last = (now, sent);
        Interval {
            elapsed_s: (now - self.started).as_secs_f64(),
            interval_s: seconds,
            tx_packets: sent.packets,
            rate_pps: packets_per_second(change.packets, seconds),
            rate_l2_bps: change.l2_rate(seconds),
            rate_l1_bps: change.l1_rate(seconds),
            missed_packets: self.live.iter().map(|live| live.read().missed).sum(),
        }
    }

    fn wait(&mut self, timeout: Duration) -> bool {
        self.crew.wait(timeout)
    }

    fn finish(self) -> Summary {
        let (tasks, errors) = self.crew.join();
        let seconds = self.started.elapsed().as_secs_f64();
        let queues: Vec<Figures> = tasks.into_iter().map(Generator::close).collect();
        let mut warnings = Vec::new();
        let link_mbps = self.port.capabilities().link_mbps;
        let port = close_port(self.port, &mut warnings);
        Summary::new((queues, &errors), &self.options, self.rate, seconds, port, (warnings, link_mbps))
    }
}

/// The packet that a generator sends with this probe, for those who test what reads it.
#[cfg(test)]
pub(crate) fn template_of(frame: &Frame, src_mac: Mac, probe: crate::probe::Probe) -> Vec<u8> {
    let template = Template::new(frame, src_mac);
    let mut packet = vec![0; template.len()];
    template.write_filler(&mut packet);
    template.write_head(&mut packet, template::Fields { source: 0, src_port: frame.src_port, probe });
    packet
}
