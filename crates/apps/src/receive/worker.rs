//! The loop that receives: what one worker does with its RX queues.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bywash_port::frame::{Batch, Packet, Pool};
use bywash_port::{QueueCounters, QueuePair, RxQueue};
use bywash_sys::clock;
use bywash_sys::worker::{Stop, Task, Turn};

use super::ending::{Bounds, Ending};
use super::flows::{Flow, Flows, Numbered};
use super::payload::{Damage, damage, read};
use super::sequence::{Counts, Order};
use super::share::{Part, WORDS};
use super::streams::{MOST_STREAMS, Stream, Streams};
use crate::live::{Live, Publication};
use crate::probe::{Probe, ProbeError};
use crate::queues::{DRY_NS, close_queues, rest};
use crate::rate::Traffic;
use crate::report::{Dial, Stopwatch};

/// Packets and what they were.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Kinds {
    /// A generator's, as they were sent.
    pub(super) right: u64,
    /// A generator's, after one with a higher number.
    pub(super) reordered: u64,
    /// A generator's, again.
    pub(super) duplicates: u64,
    /// A generator's, damaged.
    pub(super) damaged: u64,
    /// Of those, how many have a number that can't be read.
    pub(super) unnumbered: u64,
    /// Somebody else's.
    pub(super) foreign: u64,
    /// A generator's, of more streams than can be told apart.
    pub(super) untracked: u64,
    /// Packets that seem to have come before they were sent.
    pub(super) clock_errors: u64,
}

/// What one queue has done.
#[derive(Clone, Copy, Debug)]
pub(super) struct QueueFigures {
    /// Its number on its port.
    pub(super) number: usize,
    pub(super) counters: QueueCounters,
    pub(super) kinds: Kinds,
}

/// What came of one stream by one queue.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct StreamFigures {
    pub(super) counts: Counts,
    pub(super) damaged: u64,
}

impl StreamFigures {
    /// Puts what came by two queues together.
    pub(super) fn merge(&mut self, other: &Self) {
        self.counts.merge(&other.counts);
        self.damaged += other.damaged;
    }
}

/// What one worker has done.
#[derive(Clone, Debug, Default)]
pub(super) struct Figures {
    pub(super) queues: Vec<QueueFigures>,
    /// A stream that came by two queues is here twice.
    pub(super) streams: Vec<(u16, StreamFigures)>,
    /// The worst and the largest flows, where they are asked for; one that came by two queues is here twice.
    pub(super) flows: Vec<Flow>,
    /// What had come of each stream by each queue when the flows were published, where these are asked for or a stream can
    /// come by several queues; and when that was, in ticks of [`PARTS_INTERVAL`].
    pub(super) parts: Vec<Part>,
    pub(super) parts_at: u64,
    /// The bits of the parts' turns.
    pub(super) came: Vec<u64>,
    /// What all other flows had.
    pub(super) other_flows: Traffic,
}

/// How many nanoseconds lie between two publications of parts and flows. All workers publish theirs at the same times, so
/// that what one has seen of a stream can be compared with what others have.
const PARTS_INTERVAL: u64 = 50_000_000;

/// How long the workers wait for each other at the end, at most: one that has died does not come.
const MEET_NS: u64 = 250_000_000;

/// How long packets are still taken out of the port's rings at the end: those that keep coming must not keep us.
const DRAIN_NS: u64 = 200_000_000;

/// How many packets are wanted, counted by all workers together.
#[derive(Clone, Debug)]
pub(super) struct Goal {
    pub(super) count: u64,
    pub(super) came: Arc<AtomicU64>,
    /// Set when they have come, so that no worker sleeps on.
    pub(super) reached: Stop,
}

/// Reads the delays of one worker's packets, and how much they differ from one packet of a stream to the next.
#[derive(Clone, Debug)]
pub(super) struct Delays {
    pub(super) latency: Dial,
    pub(super) jitter: Dial,
}

/// One queue and what came by it.
struct Lane {
    /// Its number on its port.
    number: usize,
    rx: Box<dyn RxQueue>,
    kinds: Kinds,
    /// None where packets are only counted.
    streams: Option<Streams>,
    /// None where nobody asked for them.
    flows: Option<Flows>,
}

impl Lane {
    fn streams(&self) -> impl Iterator<Item = &Stream> {
        self.streams.iter().flat_map(Streams::all)
    }
}

/// The delays of packets as they come.
#[derive(Default)]
struct Clocks {
    latency: Stopwatch,
    jitter: Stopwatch,
}

/// One worker's share of the work.
pub(super) struct Receiver {
    lanes: Vec<Lane>,
    /// Queues that nobody serves, to be closed with ours.
    unused: Vec<QueuePair>,
    pool: Pool,
    batch: Batch,
    clocks: Clocks,
    goal: Option<Goal>,
    live: Live<Figures>,
    publication: Publication,
    /// Flows of each queue that are published.
    shown_flows: usize,
    /// When parts and flows were published last; `None` where nobody needs them.
    parts_at: Option<u64>,
    /// Where it meets the others at the end; `None` where no queue has to be compared with another.
    ending: Option<Ending>,
}

/// What a worker is to do.
#[derive(Clone)]
pub(super) struct Orders {
    /// Packets received at once, at most.
    pub(super) batch: usize,
    /// Whether to look at the packets, or only to count them.
    pub(super) judge: bool,
    /// How many flows to tell of; 0 for none.
    pub(super) flows: usize,
    /// Whether a stream can come by several queues.
    pub(super) shared: bool,
    /// When to stop.
    pub(super) goal: Option<Goal>,
    /// Where the workers meet when they have.
    pub(super) ending: Ending,
}

impl Receiver {
    pub(super) fn new(queues: Vec<(usize, Box<dyn RxQueue>)>, pool: Pool, orders: Orders) -> Self {
        let Orders { batch, judge, flows: shown_flows, shared, goal, ending } = orders;
        let lane = |(number, rx)| Lane {
            number,
            rx,
            kinds: Kinds::default(),
            streams: judge.then(|| Streams::new(shared)),
            flows: (judge && shown_flows > 0).then(Flows::new),
        };
        let lanes: Vec<Lane> = queues.into_iter().map(lane).collect();
        let parts_at = (judge && (shared || shown_flows > 0)).then_some(0);
        let room = |needed: bool, each: usize| if needed { lanes.len() * each } else { 0 };
        let figures = Figures {
            queues: Vec::with_capacity(lanes.len()),
            streams: Vec::with_capacity(room(judge, MOST_STREAMS)),
            flows: Vec::with_capacity(room(judge, shown_flows)),
            parts: Vec::with_capacity(room(parts_at.is_some(), MOST_STREAMS)),
            parts_at: 0,
            came: Vec::with_capacity(room(judge && shared, WORDS)),
            other_flows: Traffic::default(),
        };
        Self {
            lanes,
            unused: Vec::new(),
            pool,
            batch: Batch::with_limit(batch),
            clocks: Clocks::default(),
            goal,
            live: Live::new(figures),
            publication: Publication::default(),
            shown_flows,
            parts_at,
            ending: (judge && shared).then_some(ending),
        }
    }

    /// Keeps a queue that nobody serves until the end.
    pub(super) fn keep(&mut self, unused: QueuePair) {
        self.unused.push(unused);
    }

    pub(super) fn live(&self) -> Live<Figures> {
        self.live.clone()
    }

    pub(super) fn delays(&self) -> Delays {
        Delays { latency: self.clocks.latency.dial(), jitter: self.clocks.jitter.dial() }
    }

    /// The last figures; closes the queues.
    pub(super) fn close(mut self) -> Figures {
        self.publish();
        // Nothing more comes by any queue: the last figures of all are of one moment.
        self.publish_parts(u64::MAX);
        let ours = self.lanes.into_iter().map(|lane| QueuePair { rx: Some(lane.rx), tx: None });
        close_queues(ours.chain(self.unused), &mut self.pool);
        self.live.read()
    }

    fn publish(&mut self) {
        let lanes = &self.lanes;
        self.live.publish(|figures| {
            // Both have room for all: nothing is allocated.
            figures.queues.clear();
            figures.queues.extend(lanes.iter().map(|lane| QueueFigures {
                number: lane.number,
                counters: lane.rx.counters(),
                kinds: lane.kinds,
            }));
            figures.streams.clear();
            figures.streams.extend(
                lanes.iter().flat_map(Lane::streams).map(|stream| {
                    (stream.id, StreamFigures { counts: stream.counts, damaged: stream.damaged })
                }),
            );
        });
    }

    /// More seldom than the rest: flows are many, and have to be sorted.
    fn publish_parts(&mut self, at: u64) {
        let (lanes, most) = (&mut self.lanes, self.shown_flows);
        self.live.publish(|figures| {
            figures.flows.clear();
            figures.other_flows = Traffic::default();
            figures.parts.clear();
            figures.came.clear();
            figures.parts_at = at;
            for lane in lanes {
                let Some(streams) = &lane.streams else { continue };
                streams.publish(lane.number, &mut figures.parts, &mut figures.came);
                let Some(flows) = &mut lane.flows else { continue };
                let end_of = |id| streams.get(id).map_or(0, |stream| stream.counts.highest());
                figures.other_flows += flows.top(most, end_of, &mut figures.flows);
            }
        });
    }

    fn has_reached_goal(&self, wanted: u64) -> bool {
        self.goal.as_ref().is_some_and(|goal| {
            let is_reached = goal.came.fetch_add(wanted, Ordering::Relaxed) + wanted >= goal.count;
            if is_reached {
                goal.reached.set();
            }
            is_reached
        })
    }

    /// Looks once at all queues, and judges what came up to the `bounds` if there are some. Returns how many packets came, and
    /// how many of those count towards the goal: a generator's, or all where nobody looks.
    #[inline]
    fn receive(&mut self, bounds: Option<&Bounds>) -> (usize, u64) {
        let (mut received, mut wanted) = (0, 0);
        for lane in &mut self.lanes {
            let n = lane.rx.rx(&mut self.pool, &mut self.batch);
            if n > 0 {
                received += n;
                if lane.streams.is_some() {
                    let before = lane.kinds.right;
                    if let Some(bounds) = bounds {
                        lane.leave_out(bounds, &mut self.batch, &mut self.pool);
                    }
                    lane.look(&self.batch, &mut self.clocks);
                    wanted += lane.kinds.right - before;
                } else {
                    wanted += n as u64;
                }
                self.pool.give_batch(&mut self.batch);
            }
        }
        (received, wanted)
    }

    /// Waits until `all` the others have come to where we are, but not for one that takes too long: since `begun`.
    fn meet(&mut self, begun: u64, all: impl Fn() -> bool, mut is_busy: impl FnMut(&mut Self) -> bool) {
        let mut waited = 0;
        while waited < MEET_NS && !all() {
            if !is_busy(self) {
                rest(waited);
            }
            waited = clock::monotonic() - begun;
        }
    }
}

impl Lane {
    /// Takes packets out of a batch that were sent after all that is judged: it is known that they came, and no more.
    #[cold]
    fn leave_out(&mut self, bounds: &Bounds, batch: &mut Batch, pool: &mut Pool) {
        let kinds = &mut self.kinds;
        let is_beyond = |probe: Probe| bounds.is_beyond(probe.stream, probe.sequence);
        let judge = |packet: &mut Packet| {
            let count = match read(packet) {
                Ok(probe) if is_beyond(probe) => &mut kinds.right,
                Err(ProbeError::Damaged) => match damage(packet) {
                    Some(Damage::Beside(probe)) if is_beyond(probe) => &mut kinds.damaged,
                    _ => return true,
                },
                _ => return true,
            };
            *count += 1;
            false
        };
        batch.retain(judge, |packet| pool.give_packet(packet));
    }

    /// Judges the packets of a batch that came by this queue.
    #[inline]
    fn look(&mut self, batch: &Batch, clocks: &mut Clocks) {
        // Two loops, so that who did not ask for flows does not pay for them.
        if self.flows.is_some() {
            self.look_at_flows_too(batch, clocks);
        } else {
            self.look_at_each::<false>(batch, clocks);
        }
    }

    #[inline(never)]
    fn look_at_flows_too(&mut self, batch: &Batch, clocks: &mut Clocks) {
        self.look_at_each::<true>(batch, clocks);
    }

    #[inline(always)]
    fn look_at_each<const FLOWS: bool>(&mut self, batch: &Batch, clocks: &mut Clocks) {
        let Self { kinds, streams: Some(streams), flows, .. } = self else { return };
        let now = clock::realtime();
        let mut run = Run::default();
        for packet in batch {
            let probe = match read(packet) {
                Ok(probe) => probe,
                Err(ProbeError::Damaged) => {
                    let run = std::mem::take(&mut run);
                    let flows = flows.as_mut().filter(|_| FLOWS);
                    note_damaged(packet, run, kinds, (streams, flows), clocks);
                    continue;
                }
                Err(ProbeError::Foreign) => {
                    kinds.foreign += 1;
                    if let Some(flows) = flows.as_mut().filter(|_| FLOWS) {
                        flows.note(packet.head(), packet.len(), None);
                    }
                    continue;
                }
            };
            let age = probe.age(packet.offload.timestamp().unwrap_or(now));
            // Of flows nothing can be said for several packets at once.
            if !FLOWS && run.goes_on(&probe, age) {
                continue;
            }
            std::mem::take(&mut run).end(kinds, streams, clocks);
            kinds.right += 1;
            let Some((stream, order)) = streams.note(probe.stream, probe.flows, probe.sequence) else {
                kinds.untracked += 1;
                if let Some(flows) = flows.as_mut().filter(|_| FLOWS) {
                    flows.note(packet.head(), packet.len(), None);
                }
                continue;
            };
            if let Some(flows) = flows.as_mut().filter(|_| FLOWS) {
                let places = stream.counts.place_of(probe.sequence);
                let numbered = Numbered { stream: probe.stream, turns: probe.flows, order, places };
                flows.note(packet.head(), packet.len(), Some(numbered));
            }
            if order == Order::Duplicate {
                kinds.duplicates += 1;
                continue;
            }
            match u64::try_from(age) {
                Ok(age) => clocks.latency.record(age),
                Err(_) => kinds.clock_errors += 1,
            }
            if order == Order::Late {
                kinds.reordered += 1;
            } else {
                if let Some(jitter) = stream.jitter(age) {
                    clocks.jitter.record(jitter);
                }
                run = Run::after(&probe, age);
            }
        }
        run.end(kinds, streams, clocks);
    }
}

/// Counts a packet that is damaged, after the run before it.
#[cold]
#[inline(never)]
fn note_damaged(
    packet: &Packet,
    run: Run,
    kinds: &mut Kinds,
    (streams, flows): (&mut Streams, Option<&mut Flows>),
    clocks: &mut Clocks,
) {
    run.end(kinds, streams, clocks);
    kinds.damaged += 1;
    let (stream, numbered) = match damage(packet) {
        Some(Damage::Beside(Probe { stream, sequence, flows: turns, .. })) => {
            let Some((found, order)) = streams.note_damaged(stream, sequence) else { return };
            let places = found.counts.place_of(sequence);
            (found, Some(Numbered { stream, turns, order, places }))
        }
        left => {
            kinds.unnumbered += 1;
            let Some(Damage::Of(stream)) = left else { return };
            let Some(found) = streams.known(stream) else { return };
            (found, None)
        }
    };
    stream.damaged += 1;
    // What is damaged may be what it says of its flow: one that is not known is not made of it.
    if let Some(flows) = flows {
        flows.note_damaged(packet.head(), stream.id, numbered);
    }
}

/// Packets that are alike: of one stream, each with the next number, all as old as the first. A sender makes its packets
/// by the batch, with one look at the clock, so that is what most of them are; they are counted together.
#[derive(Default)]
struct Run {
    /// The next packet's, if it goes on.
    stream: u16,
    sequence: u32,
    age: i64,
    /// How many there are after the one that it began with; `None` before there is one.
    packets: Option<u64>,
}

impl Run {
    /// What may follow after this packet, which came in order.
    #[inline]
    fn after(probe: &Probe, age: i64) -> Self {
        // A clock that is wrong is counted packet by packet.
        let packets = (age >= 0).then_some(0);
        Self { stream: probe.stream, sequence: probe.sequence.wrapping_add(1), age, packets }
    }

    /// Takes a packet that goes on with it; false when it does not.
    #[inline]
    fn goes_on(&mut self, probe: &Probe, age: i64) -> bool {
        let Some(packets) = &mut self.packets else { return false };
        let goes_on = (probe.stream, probe.sequence) == (self.stream, self.sequence) && age == self.age;
        if goes_on {
            *packets += 1;
            self.sequence = self.sequence.wrapping_add(1);
        }
        goes_on
    }

    /// Counts its packets.
    #[inline]
    fn end(self, kinds: &mut Kinds, streams: &mut Streams, clocks: &mut Clocks) {
        let Some(packets @ 1..) = self.packets else { return };
        kinds.right += packets;
        streams.note_next(self.stream, packets);
        clocks.latency.record_many(self.age.unsigned_abs(), packets);
        clocks.jitter.record_many(0, packets);
    }
}

impl Task for Receiver {
    #[inline]
    fn turn(&mut self) -> Turn {
        let (received, wanted) = self.receive(None);
        let busy = received > 0;
        if self.publication.is_due(busy) {
            self.publish();
        }
        if let Some(last) = &mut self.parts_at {
            let tick = clock::monotonic() / PARTS_INTERVAL;
            if tick > *last {
                *last = tick;
                self.publish_parts(tick);
            }
        }
        if self.has_reached_goal(wanted) {
            Turn::Done
        } else if busy {
            Turn::Busy
        } else if self.lanes.iter().all(|lane| lane.rx.has_ended()) {
            // A file was read to its end.
            Turn::Done
        } else {
            Turn::Idle
        }
    }

    fn arm(&mut self) -> bool {
        // All of them, also after one that says no: they are asked again before the next sleep.
        self.lanes.iter_mut().fold(true, |may_sleep, lane| lane.rx.arm() & may_sleep)
    }

    fn wake_fds<'a>(&'a self, fds: &mut Vec<BorrowedFd<'a>>) {
        fds.extend(self.lanes.iter().filter_map(|lane| lane.rx.wake_fd()));
        fds.extend(self.goal.iter().map(|goal| goal.reached.as_fd()));
    }

    fn next_deadline(&self, _: u64) -> Option<u64> {
        // Also one without packets says that it has none, or loss would not be known.
        self.parts_at.map(|last| (last + 1) * PARTS_INTERVAL)
    }

    /// What came by one queue before the end has to be compared with what came by the others until then, and may be in their
    /// rings.
    fn finish(&mut self) {
        let Some(ending) = self.ending.clone() else { return };
        let begun = clock::monotonic();
        ending.come();
        self.meet(begun, || ending.have_all_come(), |receiver| receiver.receive(None).0 > 0);
        let streams = self.lanes.iter().flat_map(Lane::streams);
        ending.note(streams.map(|stream| (stream.id, stream.counts)));
        self.meet(begun, || ending.have_all_noted(), |_| false);
        let bounds = ending.bounds();
        if bounds.are_whole() {
            return;
        }
        // Not before: what falls to another one after that is beyond the end.
        self.lanes.iter_mut().for_each(|lane| lane.rx.stop());
        let noted = clock::monotonic();
        let (mut now, mut last) = (noted, noted);
        while now - noted < DRAIN_NS {
            let looked = now;
            let came = self.receive(Some(&bounds)).0 > 0;
            now = clock::monotonic();
            if came {
                last = now;
            } else if looked - noted >= DRY_NS {
                // Where packets keep coming rings are empty now and then.
                return;
            } else {
                rest(now - last);
            }
        }
    }
}
