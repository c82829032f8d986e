//! The sending half of a queue: packets are copied into slots, and stay there until the other end has read them.
//!
//! While there is no other end the slots fill up, and then it takes no more, as a NIC whose link is down. The next session
//! has a region of its own, into which what was not read is copied: only what the other end had taken is lost with it.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use bywash_frame::{Batch, Packet, Pool};
use bywash_port::{QueueCounters, TxQueue};

use super::layout::{Descriptor, Filling, MAX_PACKET, SLOT, slots_for};
use super::session::{Counts, News, Peer, QueueShared, TxSession};
use crate::virtio::Outgoing;

/// The sending half.
pub(super) struct LinkTx {
    filling: Filling,
    peer: Option<Peer>,
    /// What packets cost by the slot they begin in: the other side cannot write here.
    lens: Box<[u32]>,
    /// The slot that the oldest packet begins in that was not taken.
    oldest: u32,
    /// Packets that were not taken.
    waiting: usize,
    /// Something was filled since the last flush.
    is_fresh: bool,
    seen: u32,
    shared: Arc<QueueShared>,
    counts: Arc<Counts>,
    counters: QueueCounters,
}

/// Whether a packet found its place.
enum Put {
    Done,
    Full,
    /// It can't go over this wire.
    Refused,
}

impl LinkTx {
    /// With slots to be filled until the first session; a ring of `ring` of them.
    pub(super) fn new(filling: Filling, ring: u32, shared: Arc<QueueShared>, counts: Arc<Counts>) -> Self {
        Self {
            filling,
            peer: None,
            lens: vec![0; ring as usize].into(),
            oldest: 0,
            waiting: 0,
            is_fresh: false,
            seen: 0,
            shared,
            counts,
            counters: QueueCounters::default(),
        }
    }

    /// Takes over what has become of the wire.
    #[cold]
    fn hear(&mut self) {
        while let Some(news) = self.shared.tx.take() {
            self.complete();
            match news {
                News::Gone => self.peer = None,
                News::Session(session) => self.change(session),
            }
        }
    }

    /// Goes on in another region, with all packets that were not taken.
    fn change(&mut self, session: TxSession) {
        let TxSession { mut filling, peer } = session;
        let (mut bytes, mut kept) = ([0; SLOT], 0);
        let mut lens = vec![0; self.lens.len()].into_boxed_slice();
        if peer.receives {
            let mut index = self.oldest;
            while index != self.filling.sender.next() {
                let len = self.lens[self.place(index)];
                let (to, slots) = (filling.sender.next(), slots_for(len));
                filling.descriptors.write(to, self.filling.descriptors.read(index));
                lens[self.place(to)] = len;
                let mut left = len as usize;
                for slot in 0..slots {
                    let bytes = &mut bytes[..left.min(SLOT)];
                    self.filling.written(index.wrapping_add(slot), bytes);
                    filling.write(to.wrapping_add(slot), 0, bytes);
                    left -= bytes.len();
                }
                filling.sender.fill(slots);
                index = index.wrapping_add(slots);
                kept += 1;
            }
        } else {
            self.counters.errors += self.waiting as u64;
            self.waiting = 0;
        }
        filling.sender.publish();
        (self.filling, self.lens, self.oldest, self.peer) = (filling, lens, 0, Some(peer));
        self.counts.kept.fetch_add(kept, Ordering::Relaxed);
        self.is_fresh = true;
        self.ring();
    }

    fn place(&self, index: u32) -> usize {
        // The length is a power of two of 32 bits.
        index as usize & (self.lens.len() - 1)
    }

    /// Counts what the other end has taken.
    #[inline]
    fn complete(&mut self) {
        let Some(peer) = &self.peer else { return };
        if self.filling.sender.look(&peer.reader.tail).is_err() {
            peer.alarm.set();
            self.peer = None;
            return;
        }
        let emptied = self.filling.sender.oldest();
        while self.waiting > 0 {
            let len = self.lens[self.place(self.oldest)];
            let slots = slots_for(len);
            // A packet of which only a part was read was not taken.
            if emptied.wrapping_sub(self.oldest) < slots {
                break;
            }
            self.oldest = self.oldest.wrapping_add(slots);
            self.waiting -= 1;
            self.counters.packets += 1;
            self.counters.bytes += u64::from(len);
        }
    }

    #[inline]
    #[expect(clippy::cast_possible_truncation, reason = "it was made from 32 bits")]
    fn ring_size(&self) -> u32 {
        self.lens.len() as u32
    }

    /// Slots in which nothing lies that may be needed again.
    #[inline]
    fn room(&self) -> u32 {
        // Not the sender's own room: of a packet that was read in part, all is kept.
        self.ring_size() - self.filling.sender.next().wrapping_sub(self.oldest)
    }

    #[inline]
    fn put(&mut self, packet: &Packet) -> Put {
        let Some(outgoing) = Outgoing::new(packet) else { return Put::Refused };
        let len = packet.len() + outgoing.added();
        let Some(len) = u32::try_from(len).ok().filter(|&len| len as usize <= MAX_PACKET) else {
            return Put::Refused;
        };
        let slots = slots_for(len);
        if slots > self.room() {
            self.complete();
            if slots > self.room() {
                return Put::Full;
            }
        }
        let first = self.filling.sender.next();
        let entry = Descriptor { len, header: outgoing.header, reserved: 0 };
        self.filling.descriptors.write(first, entry);
        let (mut slot, mut at) = (first, 0);
        for mut piece in outgoing.pieces(packet) {
            while !piece.is_empty() {
                if at == SLOT {
                    (slot, at) = (slot.wrapping_add(1), 0);
                }
                let (now, later) = piece.split_at(piece.len().min(SLOT - at));
                self.filling.write(slot, at, now);
                at += now.len();
                piece = later;
            }
        }
        let place = self.place(first);
        self.lens[place] = len;
        self.filling.sender.fill(slots);
        self.waiting += 1;
        Put::Done
    }

    fn ring(&mut self) {
        if let Some(peer) = &self.peer
            && self.filling.sender.must_ring(&peer.reader.asleep)
        {
            peer.doorbell.ring();
        }
        self.is_fresh = false;
    }
}

impl TxQueue for LinkTx {
    fn tx(&mut self, pool: &mut Pool, batch: &mut Batch) -> usize {
        if self.shared.tx.has_news(&mut self.seen) {
            self.hear();
        }
        let deaf = self.peer.as_ref().is_some_and(|peer| !peer.receives);
        let mut done = 0;
        for packet in batch.iter() {
            match if deaf { Put::Refused } else { self.put(packet) } {
                Put::Done => {}
                Put::Full => break,
                Put::Refused => self.counters.errors += 1,
            }
            done += 1;
        }
        if done > 0 {
            self.filling.sender.publish();
            self.is_fresh = true;
        }
        if done == batch.len() {
            pool.give_batch(batch);
        } else {
            for packet in batch.drain_front(done) {
                pool.give_packet(packet);
            }
        }
        done
    }

    fn flush(&mut self, _: &mut Pool) {
        if self.shared.tx.has_news(&mut self.seen) {
            self.hear();
        }
        if self.is_fresh {
            self.ring();
        }
        self.complete();
    }

    fn in_flight(&self) -> usize {
        self.waiting
    }

    fn counters(&self) -> QueueCounters {
        self.counters
    }

    fn close(self: Box<Self>, _: &mut Pool) {
        // What was published is still read at the other end, which has the region mapped.
    }
}
