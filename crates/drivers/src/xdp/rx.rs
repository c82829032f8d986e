//! The receiving half of a queue: descriptors become packets, free frames go to the FILL ring.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use bywash_frame::{Batch, Ledger, Pool};
use bywash_port::{QueueCounters, RxQueue};
use bywash_sys::xsk::{Consumer, Descriptor, Producer, Socket};

use super::chain::{Assembly, Step};
use super::life::Life;
use super::program::Beat;
use super::unsummed;

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
    /// Packets may come from a kernel that leaves their checksums to others.
    pub(super) unsummed: bool,
}

/// The receiving half of one queue.
pub(super) struct Rx {
    ring: Consumer<Descriptor>,
    fill: Producer<u64>,
    assembly: Assembly,
    socket: Arc<Socket>,
    life: Arc<Life>,
    /// Until it takes nothing more.
    beat: Option<Beat>,
    busy_poll: bool,
    unsummed: bool,
    packets: u64,
    bytes: u64,
    errors: u64,
    no_frame: u64,
    /// The kernel has no frame of ours to receive into.
    dry: bool,
}

impl Rx {
    pub(super) fn new(parts: Parts) -> Self {
        let Parts { ring, fill, ledger, socket, life, beat, busy_poll, unsummed } = parts;
        let assembly = Assembly::new(ledger);
        Self {
            ring,
            fill,
            assembly,
            socket,
            life,
            beat: Some(beat),
            busy_poll,
            unsummed,
            packets: 0,
            bytes: 0,
            errors: 0,
            no_frame: 0,
            dry: false,
        }
    }

    /// Keeps the FILL ring full, in blocks. A pool that has run dry gives what it has.
    #[inline]
    fn refill(&mut self, pool: &mut Pool) {
        let fill = &mut self.fill;
        let block = BLOCK.min(fill.size().div_ceil(2));
        let room = fill.room(block);
        if room < block {
            return;
        }
        for frame in pool.take_many(room as usize) {
            let pushed = fill.push(self.assembly.ledger.lend(frame) as u64);
            debug_assert!(pushed, "there was room");
        }
        fill.submit();
        // Counted here, by the spell: asking the kernel how many packets each has cost is too slow for where this is read.
        let was_dry = std::mem::replace(&mut self.dry, self.assembly.ledger.lent() == 0);
        self.no_frame += u64::from(self.dry && !was_dry);
    }
}

impl RxQueue for Rx {
    fn rx(&mut self, pool: &mut Pool, batch: &mut Batch) -> usize {
        self.beat.iter_mut().for_each(Beat::beat);
        if self.busy_poll {
            self.life.kicked(self.socket.kick_rx());
        }
        let before = batch.len();
        while batch.room() > 0 {
            let Some(descriptor) = self.ring.pop() else { break };
            match self.assembly.take(descriptor, pool) {
                Step::Whole(mut packet) => {
                    if self.unsummed {
                        unsummed::note(&mut packet);
                    }
                    self.packets += 1;
                    self.bytes += packet.len() as u64;
                    batch.push(packet);
                }
                Step::More => {}
                Step::Bad => self.errors += 1,
            }
        }
        self.ring.release();
        self.refill(pool);
        if self.fill.needs_wakeup() && !self.busy_poll {
            self.life.kicked(self.socket.kick_rx());
        }
        batch.len() - before
    }

    fn arm(&mut self) -> bool {
        // With no frame in the kernel's hands no packet can come, so nothing would ever wake us.
        self.ring.is_empty() && self.assembly.ledger.lent() > 0
    }

    fn wake_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.socket.as_fd())
    }

    fn show_life(&mut self, shows: bool) {
        self.beat.iter_mut().for_each(|beat| beat.go_on(shows));
    }

    fn stop(&mut self) {
        self.beat = None;
        self.life.stop_receiving();
    }

    fn counters(&self) -> QueueCounters {
        QueueCounters {
            packets: self.packets,
            bytes: self.bytes,
            errors: self.errors,
            no_frame: self.no_frame,
        }
    }

    fn close(self: Box<Self>, pool: &mut Pool) {
        let Self { ring, fill, assembly, socket, life, .. } = *self;
        let ledger = assembly.finish(pool);
        life.stop_receiving();
        // The mappings keep the socket alive: they go first.
        drop((ring, fill, socket));
        life.close_half(ledger, pool);
    }
}
