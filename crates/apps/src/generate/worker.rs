//! The loop that generates: what one worker does with its TX queue.

use std::os::fd::BorrowedFd;

use bywash_port::frame::{Batch, HEADROOM, Packet, Pool};
use bywash_port::{QueueCounters, QueuePair, TxQueue};
use bywash_sys::clock;
use bywash_sys::worker::{Task, Turn};

use super::schedule::Schedule;
use super::template::{Fields, Template};
use crate::live::{Live, Publication};
use crate::probe::Probe;
use crate::session::close_queues;

/// How soon to look again when the TX ring is full, or to fetch completions.
const TX_POLL_NS: u64 = 1_000_000;

/// How long after the end packets that were due before it are still made.
const OVERTIME_NS: u64 = 100_000_000;

/// How long the last packets may take to leave at the end: a link that went down never completes them.
const DRAIN_NS: u64 = 500_000_000;

/// Which source is next.
#[derive(Clone, Debug)]
pub(super) struct Sources {
    pub(super) count: u32,
    pub(super) first_port: u16,
    pub(super) next: u32,
    pub(super) port: u16,
}

impl Sources {
    /// `count` sources, from number `start` on; the first one sends from `first_port`.
    pub(super) fn new(count: u32, first_port: u16, start: u32) -> Self {
        let ports = u32::from(u16::MAX - first_port) + 1;
        let offset = u16::try_from(start % ports).unwrap_or_default();
        Self { count, first_port, next: start, port: first_port + offset }
    }

    #[inline]
    #[expect(clippy::cast_possible_truncation, reason = "there are at most 65536 sources")]
    fn take(&mut self) -> (u16, u16) {
        let taken = (self.next as u16, self.port);
        self.next += 1;
        self.port = self.port.checked_add(1).unwrap_or(self.first_port);
        if self.next >= self.count {
            self.next = 0;
            self.port = self.first_port;
        }
        taken
    }
}

/// What one worker has done.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Figures {
    /// The queue's number on its port.
    pub(super) number: usize,
    pub(super) counters: QueueCounters,
    /// Packets that were due and could not be sent in time.
    pub(super) missed: u64,
    /// Packets handed over of which nobody said that they were sent.
    pub(super) in_flight: u64,
}

/// What one worker is to send.
pub(super) struct Orders {
    pub(super) template: Template,
    pub(super) sources: Sources,
    pub(super) stream: u16,
    /// Packets to send; `None` for no end.
    pub(super) count: Option<u64>,
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
    sequence: u32,
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
        prepare(&mut pool, &orders.template);
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
            sequence: 0,
            is_prepared: true,
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

    /// Keeps queues that nobody serves until the end.
    pub(super) fn keep(&mut self, unused: QueuePair) {
        self.unused.push(unused);
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
            in_flight: self.tx.in_flight() as u64,
        };
        self.live.publish(|to| *to = figures);
    }

    /// Makes the packets that are due, a batch at most.
    #[inline]
    fn make(&mut self) {
        let now = clock::monotonic();
        // What was due before the end is still sent after it, for as long as it takes to see that.
        let is_past = self.end.is_some_and(|end| now >= end);
        if self.orders.count == Some(0) || (is_past && self.schedule_is_over(now)) {
            self.is_over = true;
            return;
        }
        let most = self.orders.count.map_or(usize::MAX, |left| usize::try_from(left).unwrap_or(usize::MAX));
        let most = most.min(self.batch.room());
        let due = match &mut self.schedule {
            Some(schedule) => schedule.take_due(now, self.end.unwrap_or(u64::MAX), most),
            None => most,
        };
        if due == 0 {
            return;
        }
        let frames = self.pool.free();
        if frames < due {
            // The TX ring has our frames, or a wire in memory has carried them away. Then others' frames come from the
            // arena, and what they hold is not known.
            if frames > 0 || self.tx.in_flight() > 0 {
                return self.make_packets(due.min(frames), due);
            }
            self.is_prepared = false;
        }
        self.make_packets(due, due);
    }

    /// Gives up what has found no room when the time is over: a dead link takes nothing, ever.
    #[cold]
    fn give_up_if_over(&mut self) {
        let Some(end) = self.end else { return };
        let grace = if self.schedule.is_some() { OVERTIME_NS } else { 0 };
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

    fn schedule_is_over(&mut self, now: u64) -> bool {
        let Some(end) = self.end else { return false };
        let Some(schedule) = &mut self.schedule else { return true };
        let late = now.saturating_sub(end) > OVERTIME_NS;
        if late || !schedule.has_due_before(end) {
            schedule.close(end);
            return true;
        }
        false
    }

    /// Makes `n` packets of `due`; the others stay due.
    #[inline]
    fn make_packets(&mut self, n: usize, due: usize) {
        let time = clock::realtime() & ((1 << 48) - 1);
        let orders = &mut self.orders;
        let template = &orders.template;
        let mut made = 0;
        let (sequence, sources, is_prepared) = (&mut self.sequence, &mut orders.sources, self.is_prepared);
        self.batch.extend(self.pool.take_many(n).map(|frame| {
            let mut packet = Packet::new(frame);
            // The template fits: that was seen when the generator was started.
            let fits = packet.set_len(template.len());
            debug_assert!(fits.is_ok());
            let (source, src_port) = sources.take();
            let probe = Probe { stream: orders.stream, sequence: *sequence, time };
            if !is_prepared {
                template.write_filler(packet.head_mut());
            }
            template.write_head(packet.head_mut(), Fields { source, src_port, probe });
            *sequence = sequence.wrapping_add(1);
            made += 1;
            packet
        }));
        if let Some(left) = &mut orders.count {
            *left -= made;
        }
        if let Some(schedule) = &mut self.schedule {
            schedule.put_back(due as u64 - made);
        }
    }
}

/// Writes the filler into every frame of a pool.
fn prepare(pool: &mut Pool, template: &Template) {
    if !template.has_filler() {
        return;
    }
    let n = pool.free();
    let mut frames: Vec<_> = pool.take_many(n).collect();
    for frame in &mut frames {
        template.write_filler(&mut frame.bytes_mut()[HEADROOM..]);
    }
    pool.give_many(frames.into_iter());
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
        let until = clock::monotonic() + DRAIN_NS;
        while self.tx.in_flight() > 0 && clock::monotonic() < until {
            self.tx.flush(&mut self.pool);
            std::thread::yield_now();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sources_come_in_turn_with_ports_of_their_own() {
        let mut sources = Sources::new(3, 65_534, 1);
        let taken: Vec<_> = (0..5).map(|_| sources.take()).collect();
        assert_eq!(taken, [(1, 65_535), (2, 65_534), (0, 65_534), (1, 65_535), (2, 65_534)]);
        let mut all = Sources::new(1 << 16, 10_000, 0);
        let pairs: std::collections::HashSet<_> = (0..1 << 16).map(|_| all.take()).collect();
        assert_eq!(pairs.len(), 1 << 16);
        assert_eq!(all.take(), (0, 10_000));
    }
}
