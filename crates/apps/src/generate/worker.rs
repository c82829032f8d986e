//! The loop that generates: what one worker does with its TX queue.

use std::os::fd::BorrowedFd;

use bywash_port::frame::{Batch, Pool};
use bywash_port::{QueueCounters, QueuePair, TxQueue};
use bywash_sys::clock;
use bywash_sys::worker::{Task, Turn};

use super::maker::Maker;
use super::schedule::{self, Schedule};
use crate::live::{Live, Publication};
use crate::queues::{close_queues, drain};
use crate::rate::MAX_LAG_NS;
use crate::report::{Dial, Stopwatch};

/// How soon to look again when the TX ring is full, or to fetch completions.
const TX_POLL_NS: u64 = 1_000_000;

/// What one worker has done.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Figures {
    /// The queue's number on its port.
    pub(super) number: usize,
    pub(super) counters: QueueCounters,
    /// Packets that were due and could not be sent in time.
    pub(super) missed: u64,
    /// Packets that were due before the end and left only after it.
    pub(super) overtime: u64,
    /// Packets handed over of which nobody said that they were sent.
    pub(super) in_flight: u64,
}

/// How well a schedule is kept.
#[derive(Debug, Default)]
pub(super) struct Timing {
    /// From one packet to the next, as they are handed over.
    gaps: Stopwatch,
    /// From when the first packet of a batch was due until it is made.
    late: Stopwatch,
    last: Option<u64>,
}

impl Timing {
    /// Notes `n` packets that leave together `now`, of which the first was due at `due`.
    #[inline]
    pub(super) fn note(&mut self, now: u64, due: u64, n: usize) {
        self.late.record(now.saturating_sub(due));
        if let Some(last) = self.last.replace(now) {
            self.gaps.record(now - last);
        }
        self.gaps.record_many(0, n as u64 - 1);
    }

    /// How long the gaps are, and how late packets leave.
    pub(super) fn dials(&self) -> [Dial; 2] {
        [self.gaps.dial(), self.late.dial()]
    }
}

/// What one worker is to send.
pub(super) struct Orders {
    pub(super) maker: Maker,
    /// Packets to send; `None` for no end.
    pub(super) count: Option<u64>,
    /// They go to a file.
    pub(super) is_file: bool,
}

/// One worker's share of the work.
pub(super) struct Generator {
    tx: Box<dyn TxQueue>,
    number: usize,
    /// Queues that nobody serves, to be closed with ours.
    unused: Vec<QueuePair>,
    pool: Pool,
    batch: Batch,
    orders: Orders,
    /// As fast as it goes when `None`.
    schedule: Option<Schedule>,
    end: Option<u64>,
    timing: Timing,
    /// Every free frame holds the filler: none has come from elsewhere.
    is_prepared: bool,
    is_over: bool,
    live: Live<Figures>,
    publication: Publication,
}

impl Generator {
    pub(super) fn new(
        tx: Box<dyn TxQueue>,
        number: usize,
        mut pool: Pool,
        batch: usize,
        orders: Orders,
    ) -> Self {
        let is_prepared = orders.maker.prepare(&mut pool);
        let live = Live::new(Figures { number, ..Figures::default() });
        Self {
            tx,
            number,
            unused: Vec::new(),
            pool,
            batch: Batch::with_limit(batch),
            orders,
            schedule: None,
            end: None,
            timing: Timing::default(),
            is_prepared,
            is_over: false,
            live,
            publication: Publication::default(),
        }
    }

    /// When to send, and when to end, in nanoseconds of `CLOCK_MONOTONIC`.
    pub(super) fn set_times(&mut self, schedule: Option<Schedule>, end: Option<u64>) {
        self.schedule = schedule;
        self.end = end;
    }

    /// Bytes of each packet, without FCS; these over and over.
    pub(super) fn lengths(&self) -> Vec<u32> {
        self.orders.maker.lengths()
    }

    /// Keeps queues that nobody serves until the end.
    pub(super) fn keep(&mut self, unused: QueuePair) {
        self.unused.push(unused);
    }

    /// How long the gaps are, and how late packets leave.
    pub(super) fn dials(&self) -> [Dial; 2] {
        self.timing.dials()
    }

    pub(super) fn live(&self) -> Live<Figures> {
        self.live.clone()
    }

    /// The last figures; closes the queue.
    pub(super) fn close(mut self) -> Figures {
        // What was made and not handed over was not sent, and leaves no gap: its numbers are the last ones.
        self.pool.give_batch(&mut self.batch);
        self.publish();
        let ours = QueuePair { rx: None, tx: Some(self.tx) };
        close_queues(std::iter::once(ours).chain(self.unused), &mut self.pool);
        self.live.read()
    }

    fn publish(&mut self) {
        let figures = Figures {
            number: self.number,
            counters: self.tx.counters(),
            missed: self.schedule.as_ref().map_or(0, Schedule::missed),
            overtime: self.schedule.as_ref().map_or(0, Schedule::overtime),
            in_flight: self.tx.in_flight() as u64,
        };
        self.live.publish(|to| *to = figures);
    }

    /// Makes the packets that are due, a batch at most.
    #[inline]
    fn make(&mut self) {
        let now = clock::monotonic();
        // What was due before the end is still sent after it, for as long as it takes to see that.
        if self.orders.count == Some(0) || schedule::is_over(self.schedule.as_mut(), self.end, now) {
            self.is_over = true;
            return;
        }
        let most = self.orders.count.map_or(usize::MAX, |left| usize::try_from(left).unwrap_or(usize::MAX));
        let most = most.min(self.batch.room());
        let (first, due) = match &mut self.schedule {
            Some(schedule) => {
                let first = schedule.first_due(now);
                (Some(first), schedule.take_due(now, self.end.unwrap_or(u64::MAX), most))
            }
            None => (None, most),
        };
        if due == 0 {
            return;
        }
        // That of the longest packets: what is left over is given back.
        let frames = self.pool.free() / self.orders.maker.most_frames();
        if frames < due {
            // The TX ring has our frames, or a wire in memory has carried them away. Then others' frames come from the
            // arena, and what they hold is not known.
            if frames > 0 || self.tx.in_flight() > 0 {
                return self.make_packets(due.min(frames), due, (now, first));
            }
            self.is_prepared = false;
        }
        self.make_packets(due, due, (now, first));
    }

    /// Gives up what has found no room when the time is over: a dead link takes nothing, ever.
    #[cold]
    fn give_up_if_over(&mut self) {
        let Some(end) = self.end else { return };
        let grace = if self.schedule.is_some() { MAX_LAG_NS } else { 0 };
        if clock::monotonic() < end.saturating_add(grace) {
            return;
        }
        if let Some(schedule) = &mut self.schedule {
            schedule.put_back(self.batch.len() as u64);
            schedule.close(end);
        }
        self.pool.give_batch(&mut self.batch);
        self.is_over = true;
    }

    /// Makes `n` packets of `due`, at `now`, of which the first was due at a time if there is a schedule; the others stay due.
    #[inline]
    fn make_packets(&mut self, n: usize, due: usize, (now, first): (u64, Option<u64>)) {
        let maker = &mut self.orders.maker;
        let made = maker.make(n, clock::realtime(), self.is_prepared, &mut self.pool, &mut self.batch);
        // What is not made is noted when it is.
        if let Some(first) = first.filter(|_| made > 0) {
            self.timing.note(now, first, made);
        }
        let made = made as u64;
        if let Some(left) = &mut self.orders.count {
            *left -= made;
        }
        if let Some(schedule) = &mut self.schedule {
            schedule.put_back(due as u64 - made);
        }
    }
}

impl Task for Generator {
    #[inline]
    fn turn(&mut self) -> Turn {
        if !self.batch.is_empty() {
            self.give_up_if_over();
        } else if !self.is_over {
            self.make();
        }
        let sent = if self.batch.is_empty() { 0 } else { self.tx.tx(&mut self.pool, &mut self.batch) };
        self.tx.flush(&mut self.pool);
        let busy = sent > 0;
        if self.publication.is_due(busy) {
            self.publish();
        }
        if self.is_over && self.batch.is_empty() {
            Turn::Done
        } else if busy {
            Turn::Busy
        } else {
            Turn::Idle
        }
    }

    fn arm(&mut self) -> bool {
        true
    }

    fn wake_fds<'a>(&'a self, _: &mut Vec<BorrowedFd<'a>>) {}

    fn next_deadline(&self, now: u64) -> Option<u64> {
        let poll = now + TX_POLL_NS;
        let due = match &self.schedule {
            // It is the ring that is waited for, or the last look at the clock is already old.
            _ if !self.batch.is_empty() => return Some(poll),
            Some(schedule) => schedule.next_due(),
            None => poll,
        };
        let due = self.end.map_or(due, |end| due.min(end.max(now)));
        Some(if self.tx.in_flight() > 0 { due.min(poll) } else { due })
    }

    fn finish(&mut self) {
        drain(&mut *self.tx, &mut self.pool, self.orders.is_file);
    }
}

#[cfg(test)]
mod tests {
    use bywash_port::frame::{Arena, BATCH, FRAME_SIZE};

    use super::super::Frame;
    use super::super::plan::Plan;
    use super::super::schedule::Pace;
    use super::*;
    use crate::report::Times;

    /// A ring that has packets and takes none.
    struct Full;

    impl TxQueue for Full {
        fn tx(&mut self, _: &mut Pool, _: &mut Batch) -> usize {
            0
        }
        fn flush(&mut self, _: &mut Pool) {}
        fn in_flight(&self) -> usize {
            1
        }
        fn counters(&self) -> QueueCounters {
            QueueCounters::default()
        }
        fn close(self: Box<Self>, _: &mut Pool) {}
    }

    #[test]
    fn what_there_is_no_frame_for_is_noted_when_it_is_made() {
        let arena = Arena::new(vec![0; 4 * FRAME_SIZE]).unwrap();
        let maker = Maker::new(Plan::new(&Frame::default(), None).unwrap(), (0, 1), 1);
        let orders = Orders { maker, count: Some(10), is_file: false };
        let mut generator = Generator::new(Box::new(Full), 0, arena.pool(4).unwrap(), BATCH, orders);
        let schedule = Schedule::new(Pace::steady(1_000_000_000), (0, 1), clock::monotonic() - 1_000_000);
        generator.set_times(Some(schedule), None);
        let noted = |generator: &Generator| generator.dials().map(|dial| Times::read([&dial]).count());
        let frames: Vec<_> = generator.pool.take_many(4).collect();
        generator.turn();
        assert_eq!(noted(&generator), [0, 0]);
        generator.pool.give_many(frames.into_iter());
        generator.turn();
        assert_eq!(noted(&generator), [3, 1], "four packets, which leave together");
    }
}
