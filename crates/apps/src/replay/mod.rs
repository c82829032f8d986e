//! Replaying a capture file: with its own timing, faster or slower, at a rate, or flat out.
//!
//! One queue sends, so that packets leave in the order of the file. All that could disturb the timing is done before a
//! packet is due; a packet then costs a copy and a look at the clock per batch.

use std::time::{Duration, Instant};

use bywash_port::frame::{Arena, BATCH};
use bywash_port::{Port, QueuePair};
use bywash_sys::worker::Stop;
use bywash_wire::line::{l1_bits, l2_bits, packets_per_second};

use crate::crew::{Crew, WorkerOptions};
use crate::live::Live;
use crate::queues::close_queues;
use crate::report::{Dial, Snapshot};
use crate::session::{App, StartError, close_port, gone, is_file, port_table, reasons};

mod events;
mod pace;
mod rewrite;
mod trace;
mod worker;

pub use events::{Start, Summary};
pub use pace::Speed;
pub use rewrite::{Map, MapError, PortMap, Rewrite, Vlan};
pub use trace::{Source, TooLong};

use crate::generate::Rate;
use trace::{Preparation, Trace};
use worker::{Figures, Orders, Replayer};

/// What to replay.
#[derive(Clone, Debug)]
pub struct Options {
    /// The file.
    pub source: Source,
    /// How fast.
    pub timing: Timing,
    /// How often; until it is stopped when `None`.
    pub loops: Option<u64>,
    /// How many packets in all; all when `None`.
    pub count: Option<u64>,
    /// It is stopped after this time, and that is what is wanted.
    pub duration: Option<Duration>,
    /// Gaps in the file that are longer are shortened to this.
    pub max_gap: Option<Duration>,
    /// What becomes of addresses.
    pub rewrite: Rewrite,
    /// What becomes of packets that are longer than the port takes.
    pub too_long: TooLong,
    /// Files with so many bytes at most are read into memory first.
    pub preload: u64,
    /// Packets handed over at once, at most; 1 to [`BATCH`].
    pub batch: usize,
    /// How the worker runs.
    pub workers: WorkerOptions,
}

/// How fast, as it is asked for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Timing {
    /// As the file's times say, so many times as fast.
    Original(f64),
    /// At a constant rate.
    Rate(Rate),
    /// As fast as it goes.
    Flat,
}

impl Options {
    /// The whole file once, with its own timing.
    #[must_use]
    pub fn of(source: Source) -> Self {
        Self {
            source,
            timing: Timing::Original(1.0),
            loops: Some(1),
            count: None,
            duration: None,
            max_gap: None,
            rewrite: Rewrite::default(),
            too_long: TooLong::default(),
            preload: 1 << 30,
            batch: BATCH,
            workers: WorkerOptions::default(),
        }
    }
}

impl Timing {
    /// What it is on a link.
    fn speed(self, link_mbps: Option<u32>) -> Result<Speed, String> {
        Ok(match self {
            Self::Original(factor) => Speed::Original(factor),
            Self::Rate(Rate::Packets(rate)) => Speed::Packets(rate),
            Self::Rate(Rate::L2(rate)) => Speed::L2(rate),
            Self::Rate(Rate::L1(rate)) => Speed::L1(rate),
            Self::Rate(Rate::Percent(share)) => {
                let mbps = link_mbps
                    .ok_or("has a link of unknown speed: ask for packets or bits per second (--rate)")?;
                Speed::L1(f64::from(mbps) * 1e4 * share)
            }
            Self::Flat => Speed::Flat,
        })
    }
}

/// A running replay.
pub struct Replay {
    crew: Crew<Replayer>,
    live: Live<Figures>,
    gaps: Dial,
    port: Box<dyn Port>,
    options: Options,
    speed: Speed,
    is_loaded: bool,
    /// Packets and nanoseconds of the file, where it is in memory.
    file: Option<(u64, u64)>,
    started: Instant,
}

impl Replay {
    /// Reads the file, or the beginning of it, and starts replaying on `port`, with packets in `arena`, until all are
    /// sent or `stop` is set.
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
            Ok((task, speed, (is_loaded, file))) => {
                let (live, gaps) = (task.live(), task.gaps().dial());
                let started = Instant::now();
                match Crew::start("replay", &options.workers, vec![task], stop) {
                    Ok(crew) => {
                        let options = options.clone();
                        return Ok(Self { crew, live, gaps, port, options, speed, is_loaded, file, started });
                    }
                    Err((tasks, error)) => {
                        tasks.into_iter().for_each(|task| drop(task.close()));
                        error.into()
                    }
                }
            }
            Err(reason) => StartError::Refused(reason),
        };
        // Why it did not start matters more than what could not be undone.
        drop(port.close());
        Err(refused)
    }
}

/// Whether the file is in memory, and what it came to then.
type Loaded = (bool, Option<(u64, u64)>);

/// The worker's task. On an error the queues are closed.
fn plan(
    port: &dyn Port,
    queues: Vec<QueuePair>,
    options: &Options,
    arena: &'static Arena,
) -> Result<(Replayer, Speed, Loaded), String> {
    let (mut tx, mut unused) = (None, Vec::new());
    for QueuePair { rx, tx: more } in queues {
        if tx.is_none() {
            tx = more;
        } else {
            unused.extend(more.map(|tx| QueuePair { rx: None, tx: Some(tx) }));
        }
        unused.extend(rx.map(|rx| QueuePair { rx: Some(rx), tx: None }));
    }
    let made = tx.ok_or_else(|| format!("{} only receives: it can't be sent to", port.name()));
    let made = made.and_then(|tx| match prepare(port, options, arena) {
        Ok(parts) => Ok((tx, parts)),
        Err(reason) => {
            unused.push(QueuePair { rx: None, tx: Some(tx) });
            Err(reason)
        }
    });
    match made {
        Ok((tx, (orders, pool))) => {
            let (speed, notes) = (orders.speed, orders.trace.notes());
            let is_loaded = orders.trace.is_loaded();
            let file = is_loaded.then_some((notes.packets, notes.span));
            let task = Replayer::new(tx, unused, pool, options.batch, orders);
            Ok((task, speed, (is_loaded, file)))
        }
        Err(reason) => {
            let mut pool = arena.pool(0).map_err(|e| e.to_string())?;
            close_queues(unused, &mut pool);
            Err(reason)
        }
    }
}

/// Everything but the queue.
fn prepare(
    port: &dyn Port,
    options: &Options,
    arena: &'static Arena,
) -> Result<(Orders, bywash_port::frame::Pool), String> {
    options.workers.count(1)?;
    let capabilities = port.capabilities();
    let speed =
        options.timing.speed(capabilities.link_mbps).map_err(|reason| format!("{} {reason}", port.name()))?;
    check(speed, capabilities.link_mbps).map_err(|reason| format!("{} {reason}", port.name()))?;
    if options.source == Source::Stdin && options.loops != Some(1) {
        return Err("standard input can be read once only: leave --loops out, or name a file".into());
    }
    let preparation = Preparation {
        rewrite: options.rewrite.clone(),
        capabilities: capabilities.clone(),
        too_long: options.too_long,
        max_gap: options.max_gap.map_or(u64::MAX, |gap| u64::try_from(gap.as_nanos()).unwrap_or(u64::MAX)),
    };
    let trace = Trace::open(&options.source, preparation, options.preload, options.loops)?;
    if let Some(notes) = trace.is_loaded().then(|| trace.notes()).filter(|notes| notes.packets == 0) {
        let reason = notes.broken.map_or(String::new(), |broken| format!(": {broken}"));
        return Err(format!("{} has no packet that can be sent{reason}", options.source));
    }
    let frames = options.workers.frames.unwrap_or(arena.unused());
    let pool = arena.pool(frames).map_err(|e| e.to_string())?;
    let orders = Orders { trace, speed, loops: options.loops, count: options.count, is_file: is_file(port) };
    Ok((orders, pool))
}

/// The slowest rate, in packets of [`SHORTEST`] bytes per second.
const SLOWEST: f64 = 0.001;

/// Bytes of the shortest frames, without FCS.
const SHORTEST: u32 = 60;

/// Refuses what no link can carry, and what is hardly a rate.
fn check(speed: Speed, link_mbps: Option<u32>) -> Result<(), String> {
    let packets = match speed {
        Speed::Packets(rate) => rate,
        Speed::L2(rate) => rate / l2_bits(SHORTEST),
        Speed::L1(rate) => rate / l1_bits(SHORTEST),
        Speed::Original(_) | Speed::Flat => return Ok(()),
    };
    if packets < SLOWEST {
        return Err(format!("can't be given that --rate: it must be {SLOWEST} packets/s at least"));
    }
    let Some(mbps) = link_mbps else { return Ok(()) };
    let bits = u64::from(mbps) * 1_000_000;
    // Of the shortest frames; links run up to 100 ppm fast.
    let (asked, most, what) = match speed {
        Speed::Packets(rate) => (rate, packets_per_second(bits, SHORTEST), "packets/s"),
        #[expect(clippy::cast_precision_loss, reason = "a limit, and not an exact one")]
        Speed::L1(rate) | Speed::L2(rate) => (rate, bits as f64, "bit/s"),
        Speed::Original(_) | Speed::Flat => return Ok(()),
    };
    if asked > most * 1.0002 {
        return Err(format!("carries at most {most:.0} {what}; {asked:.0} were asked for (--rate)"));
    }
    Ok(())
}

impl App for Replay {
    type Start = Start;
    type Summary = Summary;

    fn start(&self) -> Start {
        Start {
            command: events::COMMAND,
            file: self.options.source.to_string(),
            port: self.port.name().to_string(),
            mode: self.port.capabilities().mode.clone(),
            timing: events::Timing::from(self.speed),
            preloaded: self.is_loaded,
            file_packets: self.file.map(|(packets, _)| packets),
            file_duration_s: self.file.map(|(_, span)| events::seconds(span)),
            loops: self.options.loops,
        }
    }

    fn snapshot(&self) -> Snapshot {
        let mut snapshot = events::snapshot(
            &self.live.read(),
            &self.gaps,
            (&self.options.source, self.speed),
            self.started.elapsed(),
        );
        snapshot.tables.push(port_table([&*self.port]));
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
        let figures = tasks.into_iter().map(Replayer::close).next().unwrap_or_default();
        let snapshot = events::snapshot(&figures, &self.gaps, (&self.options.source, self.speed), elapsed);
        let (mut warnings, mut unmet) = (Vec::new(), reasons(&failures));
        let port = close_port(self.port, &mut warnings, &mut unmet);
        Summary::new((&figures, snapshot), unmet, (&self.options, self.speed), (port, warnings))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_that_no_link_carries_or_nobody_waits_for_are_refused() {
        for speed in [Speed::Packets(0.000_9), Speed::L2(0.5), Speed::L1(0.6), Speed::Packets(0.0)] {
            for link in [None, Some(10_000)] {
                let why = check(speed, link).unwrap_err();
                assert!(why.ends_with("it must be 0.001 packets/s at least"), "{speed:?}: {why}");
            }
        }
        for speed in [Speed::Packets(0.001), Speed::L2(0.512), Speed::L1(0.672), Speed::Flat] {
            assert_eq!(check(speed, Some(10_000)), Ok(()), "{speed:?}");
        }
        let why = check(Speed::Packets(15e6), Some(10_000)).unwrap_err();
        assert!(why.starts_with("carries at most 14880952 packets/s"), "{why}");
    }
}
