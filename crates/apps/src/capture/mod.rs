//! Capturing packets into files: workers make records in memory, and one thread writes them.
//!
//! A worker never waits for the disk. When all memory for records is full, packets are lost, counted, and told of in the
//! file itself where its format can (pcapng's statistics). Packets of several queues stand in the file in the order in
//! which blocks of them were full, not sorted by time. What the port lost is asked for each second, and at the end: a file
//! that another one follows says what that was up to a second before.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bywash_pcap::{Format, Interface, MAX_PACKET, Statistics};
use bywash_port::filter::Expression;
use bywash_port::frame::{Arena, BATCH};
use bywash_port::{Port, PortName, QueuePair, RxQueue};
use bywash_sys::clock;
use bywash_sys::spool::{Plan, Rotation, Spool, Target, Written};
use bywash_sys::worker::Stop;

use crate::crew::{Crew, WorkerOptions};
use crate::live::Live;
use crate::queues::close_queues;
use crate::report::Snapshot;
use crate::session::{App, StartError, close_port, gone, is_file, reasons};

mod events;
mod worker;

pub use bywash_pcap as pcap;
pub use events::{Start, Summary};

use worker::{Capturer, Figures, Orders};

/// What to capture.
#[derive(Clone, Debug)]
pub struct Options {
    /// Where to.
    pub target: Target,
    /// In which format.
    pub format: Format,
    /// When to go on in another file.
    pub rotation: Rotation,
    /// Only what this matches; everything when `None`.
    pub expression: Option<Expression>,
    /// The port gives only what the expression matches: it was told.
    pub is_matched: bool,
    /// Bytes of each packet that are kept, at most.
    pub snap: u32,
    /// How many packets; until the end when `None`.
    pub count: Option<u64>,
    /// Bring each packet into the file at once, not when there are many.
    pub flush: bool,
    /// Memory for packets on their way to the disk, in bytes.
    pub memory: usize,
    /// Packets received at once, at most; 1 to [`BATCH`].
    pub batch: usize,
    /// How the workers run.
    pub workers: WorkerOptions,
}

impl Options {
    /// Everything, whole, into `target`.
    #[must_use]
    #[expect(clippy::cast_possible_truncation, reason = "2^18")]
    pub fn to(target: Target, format: Format) -> Self {
        Self {
            target,
            format,
            rotation: Rotation::default(),
            expression: None,
            is_matched: false,
            snap: MAX_PACKET as u32,
            count: None,
            flush: false,
            memory: 64 << 20,
            batch: BATCH,
            workers: WorkerOptions::default(),
        }
    }
}

/// How long packets stay in the port's ring when all memory waits for the disk. A queue that is not looked at for half a
/// second counts as hung.
const PATIENCE_NS: u64 = 200_000_000;

/// How many packets are wanted in all, and how many have been taken by any worker.
#[derive(Clone, Debug)]
struct Goal {
    count: u64,
    taken: Arc<AtomicU64>,
}

impl Goal {
    #[inline]
    fn is_reached(&self) -> bool {
        self.taken.load(Ordering::Relaxed) >= self.count
    }
}

/// A running capture.
pub struct Capture {
    crew: Crew<Capturer>,
    live: Vec<Live<Figures>>,
    spool: Spool,
    /// Packets that the port has lost, for the file's statistics.
    lost_by_port: Arc<AtomicU64>,
    port: Box<dyn Port>,
    options: Options,
    started: Instant,
}

impl Capture {
    /// Starts capturing what `port` receives, with frames of `arena`, until as many packets have come as were asked for,
    /// the disk is full, or `stop` is set.
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
        let lost_by_port = Arc::new(AtomicU64::new(lost_by_port(&*port)));
        let refused = match plan(&*port, queues, options, arena, &lost_by_port) {
            Ok((tasks, spool)) => {
                let live = tasks.iter().map(Capturer::live).collect();
                let started = Instant::now();
                match Crew::start("capture", &options.workers, tasks, stop) {
                    Ok(crew) => {
                        let options = options.clone();
                        return Ok(Self { crew, live, spool, lost_by_port, port, options, started });
                    }
                    Err((tasks, error)) => {
                        tasks.into_iter().for_each(|task| drop(task.close()));
                        drop(spool.finish());
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

/// The workers' tasks, and the thread that writes. On an error the queues are closed.
fn plan(
    port: &dyn Port,
    queues: Vec<QueuePair>,
    options: &Options,
    arena: &'static Arena,
    lost_by_port: &Arc<AtomicU64>,
) -> Result<(Vec<Capturer>, Spool), String> {
    let (mut receivers, mut unused) = (Vec::new(), Vec::new());
    for (number, QueuePair { rx, tx }) in queues.into_iter().enumerate() {
        receivers.extend(rx.map(|rx| (number, rx)));
        unused.extend(tx.map(|tx| QueuePair { rx: None, tx: Some(tx) }));
    }
    let tasks = deal(port, &mut receivers, options, arena, lost_by_port);
    unused.extend(receivers.into_iter().map(|(_, rx)| QueuePair { rx: Some(rx), tx: None }));
    let mut pool = arena.pool(0).map_err(|e| e.to_string())?;
    close_queues(unused, &mut pool);
    tasks
}

fn deal(
    port: &dyn Port,
    receivers: &mut Vec<(usize, Box<dyn RxQueue>)>,
    options: &Options,
    arena: &'static Arena,
    lost_by_port: &Arc<AtomicU64>,
) -> Result<(Vec<Capturer>, Spool), String> {
    if receivers.is_empty() {
        return Err(format!("{} only sends: nothing can be captured on it", port.name()));
    }
    let workers = options.workers.count(receivers.len())?;
    let share = options.workers.frames.unwrap_or(arena.unused() / workers);
    let pools: Vec<_> =
        (0..workers).map(|_| arena.pool(share)).collect::<Result<_, _>>().map_err(|e| e.to_string())?;
    let mut hands: Vec<Vec<_>> = (0..workers).map(|_| Vec::new()).collect();
    let live: Vec<Live<Figures>> = (0..workers).map(|_| Live::new(Figures::default())).collect();
    // The last thing that can fail: a file is made only when all else is there.
    let (spool, producers) =
        Spool::start(spool(port.name(), options, &live, lost_by_port)).map_err(|e| e.to_string())?;
    for (index, queue) in receivers.drain(..).enumerate() {
        hands[index % workers].push(queue);
    }
    let goal = options.count.map(|count| Goal { count, taken: Arc::default() });
    let tasks =
        pools.into_iter().zip(hands).zip(producers).zip(live).map(|(((pool, queues), producer), live)| {
            let orders = Orders {
                expression: options.expression.clone().filter(|_| !options.is_matched),
                format: options.format,
                snap: options.snap,
                goal: goal.clone(),
                flush: options.flush,
                patience_ns: (!is_file(port)).then_some(PATIENCE_NS),
            };
            Capturer::new(queues, (pool, options.batch), producer, orders, live)
        });
    Ok((tasks.collect(), spool))
}

/// What is written, and what the file says of it.
fn spool(name: &PortName, options: &Options, live: &[Live<Figures>], lost_by_port: &Arc<AtomicU64>) -> Plan {
    let (format, start) = (options.format, clock::realtime());
    let filter = options.expression.as_ref().map(ToString::to_string);
    let (producers, live, lost_by_port) = (live.len(), live.to_vec(), Arc::clone(lost_by_port));
    let trailer = move |written: &Written| {
        let figures = Figures::sum(&live);
        let lost_by_port = lost_by_port.load(Ordering::Relaxed);
        format.statistics(&Statistics {
            start,
            end: clock::realtime(),
            // What the port lost came as far as the interface, too.
            received: Some(figures.received.packets + lost_by_port),
            accepted: Some(figures.captured + figures.lost),
            lost_interface: None,
            lost_system: Some(lost_by_port + figures.lost + figures.unwritten(written)),
            delivered: Some(written.records),
        })
    };
    let interface = interface(name);
    let header = Interface { name: &interface, snap: options.snap, filter: filter.as_deref() };
    Plan {
        target: options.target.clone(),
        rotation: options.rotation.clone(),
        header: format.file_header(&header),
        record_len: Box::new(move |bytes| format.record_len_at(bytes)),
        trailer: Box::new(trailer),
        waits_for_reader: true,
        producers,
        memory: options.memory,
    }
}

/// What the port's packets come from: what other tools know it by.
fn interface(name: &PortName) -> String {
    name.interface().map_or_else(|| name.to_string(), str::to_owned)
}

/// Counters of ports that mean packets lost before they reached us: of the kernel's rings, and of NICs.
const LOST_BY_PORT: &[&str] = &["rx_ring_full", "rx_dropped", "rx_no_buffer_space", "rx_no_descriptor"];

/// Packets that a port has lost, noted for the file's statistics.
fn note_lost_by_port(port: &dyn Port, noted: &AtomicU64) -> u64 {
    let lost = lost_by_port(port);
    noted.store(lost, Ordering::Relaxed);
    lost
}

fn lost_by_port(port: &dyn Port) -> u64 {
    let counters = port.counters();
    counters.iter().filter(|counter| LOST_BY_PORT.contains(&counter.name)).map(|counter| counter.value).sum()
}

impl App for Capture {
    type Start = Start;
    type Summary = Summary;

    fn start(&self) -> Start {
        Start {
            command: events::COMMAND,
            port: self.port.name().to_string(),
            takes: matches!(self.port.name(), PortName::Xdp { .. }),
            mode: self.port.capabilities().mode.clone(),
            workers: self.live.len(),
            file: file(&self.options.target),
            expression: self.options.expression.as_ref().map(ToString::to_string),
            snap_bytes: self.options.snap,
            count_packets: self.options.count,
        }
    }

    fn snapshot(&self) -> Snapshot {
        let lost = note_lost_by_port(&*self.port, &self.lost_by_port);
        let figures: Vec<Figures> = self.live.iter().map(Live::read).collect();
        let mut snapshot = events::snapshot(&figures, &self.spool.written(), lost, self.started.elapsed());
        snapshot.tables.extend(crate::session::port_tables([&*self.port]));
        snapshot
    }

    fn gone(&self) -> (Vec<String>, bool) {
        // Asked for each second, also where nobody is shown anything.
        note_lost_by_port(&*self.port, &self.lost_by_port);
        gone(&*self.port)
    }

    fn wait(&mut self, timeout: Duration) -> bool {
        self.crew.wait(timeout)
    }

    fn finish(self) -> Summary {
        let (tasks, failures) = self.crew.join();
        let elapsed = self.started.elapsed();
        // Before the last records are handed over: the file ends with these figures.
        let lost = note_lost_by_port(&*self.port, &self.lost_by_port);
        let figures: Vec<Figures> = tasks.into_iter().map(Capturer::close).collect();
        let is_file = is_file(&*self.port);
        let (mut warnings, mut unmet) = (Vec::new(), reasons(&failures));
        let port = close_port(self.port, &mut warnings, &mut unmet);
        // Only now: a file that takes nothing must not keep the machine as it is.
        let written = self.spool.finish();
        let snapshot = events::snapshot(&figures, &written, lost, elapsed);
        Summary::new((snapshot, &written), unmet, (&self.options, is_file), (port, warnings))
    }
}

/// What a file is called, for people.
fn file(target: &Target) -> String {
    match target {
        Target::Stdout => "standard output".into(),
        Target::File(path) => path.display().to_string(),
    }
}
