//! The receiving half of a queue: descriptors become packets, free frames go to the FILL ring.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use bywash_frame::{Batch, Ledger, Packet, Pool, Segment};
use bywash_port::{QueueCounters, RxQueue};
use bywash_sys::xsk::{Consumer, Descriptor, Producer, Socket};

use super::life::Life;
use super::program::Beat;

/// Frames given to the FILL ring at once: the kernel looks at its index less often so.
const BLOCK: u32 = 64;

/// What a receiving half is made of.
pub(super) struct Parts {
    pub(super) ring: Consumer<Descriptor>,
    pub(super) fill: Producer<u64>,
    pub(super) ledger: Ledger,
    pub(super) socket: Arc<Socket>,
    pub(super) life: Arc<Life>,
    pub(super) beat: Beat,
    pub(super) busy_poll: bool,
}

/// The receiving half of one queue.
pub(super) struct Rx {
    parts: Parts,
    /// The packet whose last frame has not come yet: the kernel may end a batch in the middle of one.
    partial: Option<Packet>,
    /// The rest of a packet that could not be taken is passed over.
    discarding: bool,
    packets: u64,
    bytes: u64,
    errors: u64,
}

impl Rx {
    pub(super) fn new(parts: Parts) -> Self {
        Self { parts, partial: None, discarding: false, packets: 0, bytes: 0, errors: 0 }
    }

    /// One descriptor.
    #[inline]
    fn take(&mut self, descriptor: Descriptor, pool: &mut Pool, batch: &mut Batch) {
        let segment = self.segment(descriptor, pool);
        if self.partial.is_none() && !self.discarding && !descriptor.continues() {
            match segment {
                Some(segment) => self.deliver(Packet::from_segment(segment), batch),
                None => self.errors += 1,
            }
            return;
        }
        self.chain(segment, descriptor.continues(), pool, batch);
    }

    /// The bytes a descriptor names; `None` when they are not those of a frame we lent.
    #[inline]
    fn segment(&mut self, descriptor: Descriptor, pool: &mut Pool) -> Option<Segment> {
        let offset = usize::try_from(descriptor.offset()).ok()?;
        let (frame, start) = self.parts.ledger.reclaim(offset).ok()?;
        match Segment::new(frame, start, descriptor.len as usize) {
            Ok(segment) if descriptor.len > 0 => Some(segment),
            Ok(segment) => {
                pool.give(segment.into_frame());
                None
            }
            Err(frame) => {
                pool.give(frame);
                None
            }
        }
    }

    /// A descriptor of a packet of several.
    #[cold]
    fn chain(&mut self, segment: Option<Segment>, continues: bool, pool: &mut Pool, batch: &mut Batch) {
        let good = match (segment, self.partial.take()) {
            (Some(segment), None) if !self.discarding => {
                self.partial = Some(Packet::from_segment(segment));
                true
            }
            (Some(segment), Some(mut packet)) => match packet.push_segment(segment, pool) {
                Ok(()) => {
                    self.partial = Some(packet);
                    true
                }
                Err(segment) => {
                    pool.give(segment.into_frame());
                    pool.give_packet(packet);
                    false
                }
            },
            (segment, packet) => {
                segment.into_iter().for_each(|segment| pool.give(segment.into_frame()));
                packet.into_iter().for_each(|packet| pool.give_packet(packet));
                false
            }
        };
        self.discarding |= !good;
        if continues {
            return;
        }
        match self.partial.take() {
            Some(packet) => self.deliver(packet, batch),
            None => self.errors += 1,
        }
        self.discarding = false;
    }

    #[inline]
    fn deliver(&mut self, packet: Packet, batch: &mut Batch) {
        self.packets += 1;
        self.bytes += packet.len() as u64;
        batch.push(packet);
    }

    /// Keeps the FILL ring full, in blocks. A pool that has run dry gives what it has.
    #[inline]
    fn refill(&mut self, pool: &mut Pool) {
        let fill = &mut self.parts.fill;
        let block = BLOCK.min(fill.size().div_ceil(2));
        let mut room = fill.room(block);
        if room < block {
            return;
        }
        while room > 0 {
            let Some(frame) = pool.take() else { break };
            let pushed = fill.push(self.parts.ledger.lend(frame) as u64);
            debug_assert!(pushed, "there was room");
            room -= 1;
        }
        fill.submit();
    }
}

impl RxQueue for Rx {
    fn rx(&mut self, pool: &mut Pool, batch: &mut Batch) -> usize {
        self.parts.beat.beat();
        if self.parts.busy_poll {
            self.parts.life.kicked(self.parts.socket.kick_rx());
        }
        let before = batch.len();
        while batch.room() > 0 {
            let Some(descriptor) = self.parts.ring.pop() else { break };
            self.take(descriptor, pool, batch);
        }
        self.parts.ring.release();
        self.refill(pool);
        if self.parts.fill.needs_wakeup() && !self.parts.busy_poll {
            self.parts.life.kicked(self.parts.socket.kick_rx());
        }
        batch.len() - before
    }

    fn arm(&mut self) -> bool {
        // With no frame in the kernel's hands no packet can come, so nothing would ever wake us.
        self.parts.ring.is_empty() && self.parts.ledger.lent() > 0
    }

    fn wake_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.parts.socket.as_fd())
    }

    fn counters(&self) -> QueueCounters {
        QueueCounters {
            packets: self.packets,
            bytes: self.bytes,
            errors: self.errors,
            no_frame: self.parts.life.statistics().rx_fill_ring_empty,
        }
    }

    fn close(mut self: Box<Self>, pool: &mut Pool) {
        if let Some(packet) = self.partial.take() {
            pool.give_packet(packet);
        }
        let Parts { ring, fill, ledger, socket, life, .. } = self.parts;
        life.stop_receiving();
        // The mappings keep the socket alive: they go first.
        drop((ring, fill, socket));
        life.close_half(ledger, pool);
    }
}
