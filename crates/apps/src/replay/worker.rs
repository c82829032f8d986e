//! The loop that replays: packets are copied out of memory when they are due.

use std::os::fd::BorrowedFd;

use bywash_port::frame::{Batch, FRAME_DATA, HEADROOM, Packet, Pool, Segment};
use bywash_port::{QueueCounters, QueuePair, TxQueue};
use bywash_sys::clock;
use bywash_sys::worker::{Task, Turn};

use super::pace::{Pace, Speed};
use super::trace::{Entry, Next, Notes, Piece, Trace};
use crate::live::{Live, Publication};
use crate::queues::{close_queues, drain};
use crate::report::Stopwatch;

/// How soon to look again when the TX ring is full, nothing is read yet, or to fetch completions.
const POLL_NS: u64 = 1_000_000;

/// What the worker has done.
#[derive(Clone, Debug, Default)]
pub(super) struct Figures {
    pub(super) counters: QueueCounters,
    /// Packets handed over of which nobody said that they were sent.
    pub(super) in_flight: u64,
    /// Times that the whole file was sent.
    pub(super) loops: u64,
    /// Nanoseconds by which the replay is later than it should be.
    pub(super) put_off: u64,
    /// Turns in which packets were due and not read yet.
    pub(super) starved: u64,
    /// All that was to be sent was.
    pub(super) is_complete: bool,
    pub(super) notes: Notes,
    pub(super) failure: Option<String>,
}

/// What the worker is to send.
pub(super) struct Orders {
    pub(super) trace: Trace,
    pub(super) speed: Speed,
    /// Times that the file is sent; until it is stopped when `None`.
    pub(super) loops: Option<u64>,
    /// Packets to send in all; `None` for no end.
    pub(super) count: Option<u64>,
    /// They go to a file.
    pub(super) is_file: bool,
}

/// The worker's task.
pub(super) struct Replayer {
    tx: Box<dyn TxQueue>,
    /// Queues that nobody serves, to be closed with ours.
    unused: Vec<QueuePair>,
    pool: Pool,
    batch: Batch,
    orders: Orders,
    pace: Pace,
    /// The next packet of the piece.
    at: usize,
    /// Of this turn through the file: packets sent, and the last one's time in it.
    turn: (u64, u64),
    /// Of the packet before: when it was due, and when it was sent.
    last: Option<(u64, u64)>,
    gaps: Stopwatch,
    figures: Figures,
    is_over: bool,
    has_begun: bool,
    /// When the next packet is due, as far as is known after the last turn.
    due: Option<u64>,
    live: Live<Figures>,
    publication: Publication,
}

impl Replayer {
    pub(super) fn new(
        tx: Box<dyn TxQueue>,
        unused: Vec<QueuePair>,
        pool: Pool,
        batch: usize,
        orders: Orders,
    ) -> Self {
        let figures = Figures { notes: orders.trace.notes(), ..Figures::default() };
        Self {
            tx,
            unused,
            pool,
            batch: Batch::with_limit(batch),
            pace: Pace::new(orders.speed, 0),
            orders,
            at: 0,
            turn: (0, 0),
            last: None,
            gaps: Stopwatch::new(),
            live: Live::new(figures.clone()),
            figures,
            is_over: false,
            has_begun: false,
            due: None,
            publication: Publication::default(),
        }
    }

    pub(super) fn live(&self) -> Live<Figures> {
        self.live.clone()
    }

    /// Counts how far the gaps between packets are from what they should be.
    pub(super) fn gaps(&self) -> &Stopwatch {
        &self.gaps
    }

    /// The last figures; closes the queues.
    pub(super) fn close(mut self) -> Figures {
        self.figures.is_complete = self.is_over && self.batch.is_empty();
        self.figures.failure = self.orders.trace.failure();
        self.pool.give_batch(&mut self.batch);
        self.figures.notes = self.orders.trace.notes();
        self.publish();
        let ours = QueuePair { rx: None, tx: Some(self.tx) };
        close_queues(std::iter::once(ours).chain(self.unused), &mut self.pool);
        self.figures
    }

    fn publish(&mut self) {
        self.figures.counters = self.tx.counters();
        self.figures.in_flight = self.tx.in_flight() as u64;
        self.figures.put_off = self.pace.put_off();
        let own = &self.figures;
        self.live.publish(|figures| {
            // What the file came to is told at the end: nothing is allocated here.
            (figures.counters, figures.in_flight) = (own.counters, own.in_flight);
            (figures.loops, figures.put_off, figures.starved) = (own.loops, own.put_off, own.starved);
        });
    }

    /// Makes the packets that are due, a batch at most.
    #[inline]
    fn make(&mut self) {
        let now = clock::monotonic();
        self.due = None;
        while self.batch.room() > 0 && !self.is_over {
            let (piece, is_first) = match self.orders.trace.piece() {
                Next::Piece(piece, is_first) => (piece, is_first),
                // Nothing more is to be sent. A file says soon whether that was all of it; who writes to a pipe may never do.
                Next::Wait if self.orders.count == Some(0) => {
                    self.is_over = self.orders.trace.is_pipe();
                    return;
                }
                Next::Wait => {
                    self.figures.starved += u64::from(self.has_begun);
                    return;
                }
                Next::End => {
                    self.is_over = true;
                    let is_whole = self.turn.0 > 0 && self.orders.trace.failure().is_none();
                    self.figures.loops += u64::from(is_whole);
                    return;
                }
            };
            if !self.has_begun {
                // Not before there is a packet: until then nothing is late.
                self.pace = Pace::new(self.orders.speed, now);
                self.has_begun = true;
            }
            if self.at == 0 && is_first && self.turn.0 > 0 {
                // The file begins again.
                self.figures.loops += 1;
                if self.orders.loops.is_some_and(|loops| self.figures.loops >= loops) {
                    self.is_over = true;
                    return;
                }
                self.pace.begin_again(self.turn.1, self.turn.0);
                self.turn = (0, 0);
            }
            while let Some(entry) = piece.entries.get(self.at).copied() {
                if self.batch.room() == 0 {
                    return;
                }
                if self.orders.count == Some(0) {
                    self.is_over = true;
                    return;
                }
                let entries = &piece.entries[self.at..];
                let left = self.orders.count.and_then(|left| usize::try_from(left).ok());
                let most = entries.len().min(self.batch.room()).min(left.unwrap_or(usize::MAX));
                let is_paced = self.orders.speed != Speed::Flat;
                let most = if is_paced {
                    let due = self.pace.due(entry.time);
                    if due > now {
                        self.due = Some(due);
                        return;
                    }
                    self.pace.catch_up(due, now);
                    self.pace.due_by(now, &entries[..most])
                } else {
                    most
                };
                // All that are due together: one by one, each would cost as much as several.
                let count = copy(piece, &entries[..most], &mut self.pool, &mut self.batch);
                let Some((last, _)) = entries[..count].split_last() else { return };
                if is_paced {
                    note(&entries[..count], now, &mut self.pace, &mut self.last, &mut self.gaps);
                }
                self.turn = (self.turn.0 + count as u64, last.time);
                self.at += count;
                if let Some(left) = &mut self.orders.count {
                    *left -= count as u64;
                }
            }
            self.at = 0;
            self.orders.trace.advance();
        }
    }
}

/// Goes on behind packets that are sent now, and counts how far the gaps between them are from what they should be.
#[inline]
fn note(entries: &[Entry], now: u64, pace: &mut Pace, last: &mut Option<(u64, u64)>, gaps: &mut Stopwatch) {
    for entry in entries {
        let due = pace.due(entry.time);
        if let Some((last_due, last_sent)) = last.replace((due, now)) {
            gaps.record((now - last_sent).abs_diff(due.saturating_sub(last_due)));
        }
        pace.advance(entry.len);
    }
}

/// Copies packets of a piece, as many as there are frames for now; how many.
#[inline]
fn copy(piece: &Piece, entries: &[Entry], pool: &mut Pool, batch: &mut Batch) -> usize {
    let fits = |entry: &&Entry| entry.len as usize <= FRAME_DATA;
    let single =
        if piece.longest <= FRAME_DATA { entries.len() } else { entries.iter().take_while(fits).count() };
    if single == 0 {
        return usize::from(
            entries.first().is_some_and(|&entry| copy_chain(piece.packet(entry), pool, batch)),
        );
    }
    let before = batch.len();
    batch.extend(pool.take_many(single).zip(entries).map(|(mut frame, &entry)| {
        // Before the packet is made, so that it is made where it will lie: one that is changed on the way there is copied in
        // larger pieces than it was written in, which stalls the processor.
        let room = frame.bytes_mut()[HEADROOM..].as_chunks_mut().0;
        match piece.blocks(entry) {
            [block] => room[0] = *block,
            blocks => room[..blocks.len()].copy_from_slice(blocks),
        }
        Packet::from_segment(Segment::received(frame, entry.len as usize))
    }));
    batch.len() - before
}

/// Copies a packet that needs several frames; false when there are too few now.
#[cold]
fn copy_chain(bytes: &[u8], pool: &mut Pool, batch: &mut Batch) -> bool {
    let Some(frame) = pool.take() else { return false };
    let mut packet = Packet::new(frame);
    let fits = packet.append(bytes, pool).is_ok();
    if fits {
        batch.push(packet);
    } else {
        pool.give_packet(packet);
    }
    fits
}

impl Task for Replayer {
    #[inline]
    fn turn(&mut self) -> Turn {
        if self.batch.is_empty() && !self.is_over {
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
        let poll = now + POLL_NS;
        // Else it is the ring that is waited for, or frames, or the file. A packet that has become due is not slept over.
        let due = self.due.filter(|_| self.batch.is_empty()).unwrap_or(poll);
        Some(if self.tx.in_flight() > 0 { due.min(poll) } else { due })
    }

    fn finish(&mut self) {
        drain(&mut *self.tx, &mut self.pool, self.orders.is_file);
    }
}
