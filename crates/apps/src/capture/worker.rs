//! The loop that captures: what one worker does with its RX queues.

use std::os::fd::BorrowedFd;
use std::sync::atomic::Ordering;

use bywash_pcap::Format;
use bywash_port::filter::Expression;
use bywash_port::frame::{Batch, FRAME_SIZE, MAX_FRAMES, Packet, Pool};
use bywash_port::{QueueCounters, QueuePair, RxQueue};
use bywash_sys::clock;
use bywash_sys::spool::{Producer, Written};
use bywash_sys::worker::{Task, Turn};
use bywash_wire::EtherType;

use super::Goal;
use crate::live::{Live, Publication};
use crate::queues::{DRY_NS, close_queues, rest};
use crate::rate::Traffic;

/// How long a packet waits for others before it goes to the file.
const FLUSH_NS: u64 = 100_000_000;

/// How soon to look for room again.
const HELD_NS: u64 = 1_000_000;

/// How long packets are still taken out of the port's ring at the end: those that keep coming must not keep us. While
/// they wait for the disk this time stands still.
const DRAIN_NS: u64 = 50_000_000;

/// Bytes of the two addresses, which a VLAN tag follows.
const ADDRESSES: usize = 12;

/// Bytes of a VLAN tag.
const VLAN_TAG: u16 = 4;

/// What one worker has done.
#[derive(Clone, Debug, Default)]
pub(super) struct Figures {
    /// By queue: its number on its port and what it counted.
    pub(super) queues: Vec<(usize, QueueCounters)>,
    /// All packets that came.
    pub(super) received: Traffic,
    /// Packets that are in the file, or on their way.
    pub(super) captured: u64,
    /// Of those, how many were longer than is kept.
    pub(super) cut: u64,
    /// Packets that the expression does not match.
    pub(super) unmatched: u64,
    /// Packets for which there was no room: the disk is too slow.
    pub(super) lost: u64,
}

impl Figures {
    /// What all workers have done together, without their queues.
    pub(super) fn sum(live: &[Live<Self>]) -> Self {
        Self::sum_of(live.iter().map(Live::read))
    }

    pub(super) fn sum_of(figures: impl IntoIterator<Item = Self>) -> Self {
        figures.into_iter().fold(Self::default(), |sum, figures| Self {
            queues: Vec::new(),
            received: sum.received + figures.received,
            captured: sum.captured + figures.captured,
            cut: sum.cut + figures.cut,
            unmatched: sum.unmatched + figures.unmatched,
            lost: sum.lost + figures.lost,
        })
    }

    /// Shows what one worker has done, with its queues.
    fn show(&self, queues: &[(usize, Box<dyn RxQueue>)], shown: &mut Self) {
        // There is room for all: nothing is allocated.
        shown.queues.clear();
        shown.queues.extend(queues.iter().map(|(number, rx)| (*number, rx.counters())));
        (shown.received, shown.captured, shown.cut) = (self.received, self.captured, self.cut);
        (shown.unmatched, shown.lost) = (self.unmatched, self.lost);
    }

    /// Packets that were captured and will never be in the file: it could not be written any more.
    pub(super) fn unwritten(&self, written: &Written) -> u64 {
        if written.failure.is_some() { self.captured.saturating_sub(written.records) } else { 0 }
    }
}

/// What one worker is to keep.
pub(super) struct Orders {
    pub(super) expression: Option<Expression>,
    pub(super) format: Format,
    pub(super) snap: u32,
    pub(super) goal: Option<Goal>,
    pub(super) flush: bool,
    /// How long packets stay where they are when all memory waits for the disk, before they are received and lost;
    /// `None` where they come out of a file, which waits.
    pub(super) patience_ns: Option<u64>,
}

/// One worker's share of the work.
pub(super) struct Capturer {
    queues: Vec<(usize, Box<dyn RxQueue>)>,
    pool: Pool,
    batch: Batch,
    producer: Producer,
    orders: Orders,
    /// Room for all bytes of a packet in a row, where there is an expression to look at them.
    whole: Box<[u8]>,
    /// Its `queues` are filled in when it is published.
    figures: Figures,
    /// When the first of the records came that are not handed over, in nanoseconds of `CLOCK_REALTIME`; `None` when none waits.
    waiting_since: Option<u64>,
    /// Since when nothing is received, in nanoseconds of `CLOCK_MONOTONIC`: there would be no room for it.
    held_since: Option<u64>,
    live: Live<Figures>,
    publication: Publication,
}

impl Capturer {
    pub(super) fn new(
        queues: Vec<(usize, Box<dyn RxQueue>)>,
        (pool, batch): (Pool, usize),
        producer: Producer,
        orders: Orders,
        live: Live<Figures>,
    ) -> Self {
        live.publish(|figures| figures.queues.reserve(queues.len()));
        let room = if orders.expression.is_some() { MAX_FRAMES * FRAME_SIZE } else { 0 };
        Self {
            queues,
            pool,
            batch: Batch::with_limit(batch),
            producer,
            orders,
            whole: vec![0; room].into(),
            figures: Figures::default(),
            waiting_since: None,
            held_since: None,
            live,
            publication: Publication::default(),
        }
    }

    pub(super) fn live(&self) -> Live<Figures> {
        self.live.clone()
    }

    /// The last figures; closes the queues, and hands over what is left.
    pub(super) fn close(mut self) -> Figures {
        self.publish_for_certain();
        let ours = self.queues.into_iter().map(|(_, rx)| QueuePair { rx: Some(rx), tx: None });
        close_queues(ours, &mut self.pool);
        self.live.read()
    }

    fn publish(&mut self) {
        self.live.publish(|shown| self.figures.show(&self.queues, shown));
    }

    /// The same before records are handed over: the file may end with them, and says then what had come.
    fn publish_for_certain(&self) {
        self.live.replace(|shown| self.figures.show(&self.queues, shown));
    }

    /// Makes records of the packets of a batch.
    #[inline]
    fn keep(&mut self, now: u64) {
        let orders = &self.orders;
        for packet in &mut self.batch {
            self.figures.received += Traffic { packets: 1, bytes: packet.len() as u64 };
            finish(packet);
            #[expect(
                clippy::cast_possible_truncation,
                reason = "a packet has at most 34 frames of 2304 bytes"
            )]
            let len = packet.len() as u32;
            let original = len + packet.offload.cut();
            if orders.expression.as_ref().is_some_and(|it| !matches(it, packet, original, &mut self.whole)) {
                self.figures.unmatched += 1;
                continue;
            }
            let captured = len.min(orders.snap);
            let record_len = orders.format.record_len(captured);
            if self.producer.hands_over_for(record_len) {
                self.live.replace(|shown| self.figures.show(&self.queues, shown));
            }
            if !self.producer.has_room(record_len) {
                self.figures.lost += 1;
                continue;
            }
            if let Some(goal) = &orders.goal
                && goal.taken.fetch_add(1, Ordering::Relaxed) >= goal.count
            {
                break;
            }
            let time = packet.offload.timestamp().unwrap_or(now);
            self.producer.put(orders.format.record_head(time, captured, original).bytes());
            let mut left = captured as usize;
            for part in packet.slices() {
                let part = &part[..left.min(part.len())];
                self.producer.put(part);
                left -= part.len();
            }
            self.producer.put(orders.format.record_tail(captured).bytes());
            self.producer.end();
            self.figures.captured += 1;
            self.figures.cut += u64::from(captured < original);
            self.waiting_since.get_or_insert(now);
        }
    }

    /// Whether to leave packets in the port's ring for now.
    #[inline]
    fn holds(&mut self) -> bool {
        if !self.producer.is_behind() {
            self.held_since = None;
            return false;
        }
        let now = clock::monotonic();
        let since = *self.held_since.get_or_insert(now);
        self.orders.patience_ns.is_none_or(|patience| now - since < patience)
    }

    fn flush_if_due(&mut self, now: u64) {
        let Some(since) = self.waiting_since else { return };
        if self.waits_for(since, now) == 0 {
            self.publish_for_certain();
            if self.producer.flush() {
                self.waiting_since = None;
            }
        }
    }

    /// How many nanoseconds more what has waited since then may wait. A clock that was set back must not keep it for long.
    fn waits_for(&self, since: u64, now: u64) -> u64 {
        if self.orders.flush { 0 } else { FLUSH_NS.saturating_sub(now.abs_diff(since)) }
    }
}

impl Task for Capturer {
    #[inline]
    fn turn(&mut self) -> Turn {
        if self.producer.has_ended() {
            return Turn::Done;
        }
        if self.holds() {
            return Turn::Idle;
        }
        let mut received = 0;
        for index in 0..self.queues.len() {
            let n = self.queues[index].1.rx(&mut self.pool, &mut self.batch);
            if n > 0 {
                received += n;
                let now = clock::realtime();
                self.keep(now);
                self.pool.give_batch(&mut self.batch);
                self.flush_if_due(now);
            }
        }
        let busy = received > 0;
        if !busy && self.waiting_since.is_some() {
            self.flush_if_due(clock::realtime());
        }
        if self.publication.is_due(busy) {
            self.publish();
        }
        // Also when it is another worker that has taken the last one.
        if self.orders.goal.as_ref().is_some_and(Goal::is_reached) {
            Turn::Done
        } else if busy {
            Turn::Busy
        } else if self.queues.iter().all(|(_, rx)| rx.has_ended()) {
            Turn::Done
        } else {
            Turn::Idle
        }
    }

    fn arm(&mut self) -> bool {
        if self.held_since.is_some() {
            return true;
        }
        // All of them, also after one that says no: they are asked again before the next sleep.
        self.queues.iter_mut().fold(true, |may_sleep, (_, rx)| rx.arm() & may_sleep)
    }

    fn wake_fds<'a>(&'a self, fds: &mut Vec<BorrowedFd<'a>>) {
        fds.extend(self.queues.iter().filter_map(|(_, rx)| rx.wake_fd()));
    }

    fn next_deadline(&self, now: u64) -> Option<u64> {
        match self.held_since {
            Some(_) => Some(now + HELD_NS),
            // What should have been handed over is when the disk is no longer behind.
            None => {
                self.waiting_since.map(|since| now + self.waits_for(since, clock::realtime()).max(HELD_NS))
            }
        }
    }

    /// What came before the end is in the port's ring, and belongs into the file. What the disk has no room for in time is
    /// received all the same, so that it is known how much was lost.
    fn finish(&mut self) {
        self.queues.iter_mut().for_each(|(_, rx)| rx.stop());
        let begun = clock::monotonic();
        let (mut now, mut last, mut held) = (begun, begun, 0);
        while now - begun < DRAIN_NS + held {
            let looked = now;
            let came = if self.holds() {
                // What is in a file still is not lost.
                let Some(patience) = self.orders.patience_ns else { return };
                if held > patience {
                    self.orders.patience_ns = Some(0);
                }
                rest(held);
                held += clock::monotonic() - looked;
                true
            } else {
                match self.turn() {
                    Turn::Done => return,
                    Turn::Busy => true,
                    Turn::Idle => {
                        rest(now - last);
                        false
                    }
                }
            };
            now = clock::monotonic();
            if came {
                last = now;
            } else if looked - last >= DRY_NS {
                return;
            }
        }
    }
}

/// Whether a packet matches that had `original` bytes. What its first frame does not tell, all of them in a row do.
#[inline]
fn matches(expression: &Expression, packet: &Packet, original: u32, whole: &mut [u8]) -> bool {
    let original = original as usize;
    expression.decide(packet.head(), original).unwrap_or_else(|| {
        if packet.frames() == 1 {
            return false;
        }
        let len = packet.copy_to(whole);
        expression.matches_len(&whole[..len], original)
    })
}

/// Makes a packet's bytes what they are on a wire: with its VLAN tag, and its checksum. A super-segment's checksum
/// stays as it is, for there is none that would be right.
#[inline]
fn finish(packet: &mut Packet) {
    if !packet.offload.asks_for_work() {
        return;
    }
    if let Some(control) = packet.offload.vlan()
        && packet.head().len() >= ADDRESSES
        && let Ok(head) = packet.push_front(usize::from(VLAN_TAG))
    {
        head.copy_within(usize::from(VLAN_TAG)..usize::from(VLAN_TAG) + ADDRESSES, 0);
        head[ADDRESSES..][..2].copy_from_slice(&EtherType::VLAN.0.to_be_bytes());
        head[ADDRESSES + 2..][..2].copy_from_slice(&control.to_be_bytes());
        packet.offload.set_vlan(None);
        packet.offload.shift_checksum(VLAN_TAG);
    }
    if packet.offload.segmentation().is_none() {
        // One that names bytes which are not there is kept as it came.
        let _ = packet.complete_checksum();
    }
}
