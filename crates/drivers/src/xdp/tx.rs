//! The sending half of a queue: packets become descriptors, frames come back by the COMPLETION ring, and the kernel is
//! called as rarely as it lets us. Super-segments go to a packet socket, where there is one; see [`super::whole`].

use std::sync::Arc;

use bywash_frame::{BATCH, Batch, Ledger, Packet, Pool};
use bywash_port::{QueueCounters, TxQueue};
use bywash_sys::xsk::{self, Consumer, Descriptor, Kick, Producer, Socket};

use super::life::Life;
use crate::packet::PacketTx;
use crate::virtio::{ADDRESSES, ETH_P_8021Q, ETHERNET, VLAN_TAG};

/// Frames of one packet at most.
pub(super) const MAX_FRAMES: usize = xsk::MAX_CHUNKS as usize;

/// Shortest packet: an Ethernet header.
const MIN_LEN: usize = ETHERNET;

/// What a sending half is made of.
pub(super) struct Parts {
    pub(super) ring: Producer<Descriptor>,
    pub(super) completion: Consumer<u64>,
    pub(super) ledger: Ledger,
    pub(super) socket: Arc<Socket>,
    pub(super) life: Arc<Life>,
    pub(super) busy_poll: bool,
    pub(super) max_len: usize,
    /// Frames of one packet.
    pub(super) max_frames: usize,
    pub(super) chains: bool,
    pub(super) zero_copy: bool,
    /// Descriptors that the kernel takes in one call.
    pub(super) per_call: u32,
    /// What takes super-segments.
    pub(super) whole: Option<PacketTx>,
}

/// The sending half of one queue.
pub(super) struct Tx {
    parts: Parts,
    lengths: Lengths,
    /// The last call left packets in the batch for want of room: more will follow.
    blocked: bool,
    /// Packets that the interface dropped, but that come back like those it sent.
    dropped: u64,
    submitted: u64,
    completed: u64,
    packets: u64,
    bytes: u64,
    errors: u64,
}

impl Tx {
    pub(super) fn new(parts: Parts) -> Self {
        let lengths = Lengths::new(parts.completion.size());
        Self {
            parts,
            lengths,
            blocked: false,
            dropped: 0,
            submitted: 0,
            completed: 0,
            packets: 0,
            bytes: 0,
            errors: 0,
        }
    }

    /// Descriptors that can be queued now. Never more than the COMPLETION ring can bring back: where that is full the
    /// kernel stops sending.
    #[inline]
    fn room(&mut self, wanted: u32) -> usize {
        let back = self.parts.completion.size() as usize - self.parts.ledger.lent();
        back.min(self.parts.ring.room(wanted) as usize)
    }

    /// How many of the first `count` packets of the batch there is room for. Those that will be refused need none.
    #[inline]
    fn fit(&mut self, pool: &mut Pool, batch: &Batch, count: usize) -> usize {
        let size = self.parts.ring.size() as usize;
        let chains = self.parts.chains;
        let frames = |packet: &Packet| if packet.frames() > size { 0 } else { packet.frames() };
        // Without chains a packet has one frame, or is refused: nothing has to be looked up.
        let wanted = if chains { batch.iter().take(count).map(frames).sum() } else { count };
        let asked = u32::try_from(wanted).unwrap_or(u32::MAX);
        let mut room = self.room(asked);
        if room < wanted {
            self.reap(pool);
            room = self.room(asked);
        }
        if room >= wanted {
            return count;
        }
        if !chains {
            return room;
        }
        let mut fits = |packet: &Packet| match room.checked_sub(frames(packet)) {
            Some(rest) => {
                room = rest;
                true
            }
            None => false,
        };
        batch.iter().take(count).take_while(|packet| fits(packet)).count()
    }

    /// How many packets from the batch's front on are for the ring.
    #[inline]
    fn plain(&self, batch: &Batch) -> usize {
        match self.parts.whole {
            Some(_) => batch.iter().take_while(|packet| !is_whole(packet)).count(),
            None => batch.len(),
        }
    }

    /// Queues the first `count` packets of the batch, for which there is room, and says how many of them were not refused.
    #[inline]
    fn queue(&mut self, pool: &mut Pool, batch: &mut Batch, count: usize) -> usize {
        let mut queued = 0;
        for mut packet in batch.drain_front(count) {
            if (!packet.offload.asks_for_work() || make_plain(&mut packet)) && self.is_sendable(&packet) {
                self.send(packet, pool);
                queued += 1;
            } else {
                self.errors += 1;
                pool.give_packet(packet);
            }
        }
        self.parts.ring.submit();
        queued
    }

    /// Hands over the super-segments at the batch's front. What was queued before them goes before them, or they wait.
    /// Returns how many have left the batch, and how many of them were not refused.
    fn send_whole(&mut self, pool: &mut Pool, batch: &mut Batch) -> (usize, usize) {
        if self.parts.ring.pending() > 0 {
            self.kick();
        }
        match &mut self.parts.whole {
            Some(whole) if self.parts.ring.pending() == 0 => {
                let count = batch.iter().take_while(|packet| is_whole(packet)).count();
                whole.send(pool, batch, count)
            }
            _ => (0, 0),
        }
    }

    fn kick(&mut self) {
        let Parts { ring, per_call, socket, life, zero_copy, .. } = &mut self.parts;
        let (dropped, errors) = (&mut self.dropped, &mut self.errors);
        kick_for(ring.pending(), *per_call, || {
            let kick = life.kicked(socket.kick_tx());
            if kick == Some(Kick::Dropped) && !*zero_copy {
                *dropped += 1;
                *errors += 1;
            }
            kick
        });
    }

    /// Whether the kernel will take it.
    #[inline]
    fn is_sendable(&self, packet: &Packet) -> bool {
        (MIN_LEN..=self.parts.max_len).contains(&packet.len())
            && (packet.frames() == 1 || self.is_sendable_chain(packet))
    }

    #[cold]
    fn is_sendable_chain(&self, packet: &Packet) -> bool {
        self.parts.chains
            && packet.frames() <= self.parts.max_frames.min(self.parts.ring.size() as usize)
            && packet.head().len() >= MIN_LEN
            && packet.slices().all(|bytes| !bytes.is_empty())
    }

    /// Lends a packet's frames to the kernel; there is room for all of them.
    #[inline]
    fn send(&mut self, packet: Packet, pool: &mut Pool) {
        let mut left = packet.frames();
        let (parts, lengths) = (&mut self.parts, &mut self.lengths);
        packet.into_pieces(pool, |piece, _| {
            left -= 1;
            // A piece is at most a frame long.
            let len = u32::try_from(piece.bytes().len()).unwrap_or_default();
            let offset = parts.ledger.lend_piece(piece);
            let options = if left > 0 { Descriptor::CONTINUES } else { 0 };
            let pushed = parts.ring.push(Descriptor { address: offset as u64, len, options });
            debug_assert!(pushed, "there was room");
            lengths.push(len, left == 0);
        });
        self.submitted += 1;
    }

    /// Takes back the frames of what was sent.
    #[inline]
    fn reap(&mut self, pool: &mut Pool) {
        while let Some(address) = self.parts.completion.pop() {
            let offset = usize::try_from(xsk::offset(address)).unwrap_or(usize::MAX);
            if self.parts.ledger.give_back(offset, pool).is_err() {
                // Not ours: whoever wrote that, no frame changes hands.
                self.errors += 1;
                continue;
            }
            let (len, is_last) = self.lengths.pop();
            let packets = u64::from(is_last);
            self.completed += packets;
            if self.dropped == 0 {
                self.packets += packets;
                self.bytes += u64::from(len);
            } else {
                self.dropped -= packets;
            }
        }
        self.parts.completion.release();
    }

    /// Whether the kernel must be called for what it has not taken yet. In copy mode it only ever looks when called.
    /// While more packets wait than there is room for, the next call comes soon: then a call is for a batch at least,
    /// unless the kernel has nothing else whose completion would make room.
    #[inline]
    fn must_kick(&mut self) -> bool {
        let blocked = std::mem::take(&mut self.blocked);
        if self.parts.busy_poll {
            return self.submitted != self.completed;
        }
        let pending = self.parts.ring.pending() as usize;
        let now = !blocked || pending >= BATCH || pending == self.parts.ledger.lent();
        pending > 0 && now && self.parts.ring.needs_wakeup()
    }
}

impl TxQueue for Tx {
    fn tx(&mut self, pool: &mut Pool, batch: &mut Batch) -> usize {
        if batch.is_empty() {
            return 0;
        }
        let mut sent = 0;
        loop {
            let plain = self.plain(batch);
            let fit = self.fit(pool, batch, plain);
            sent += self.queue(pool, batch, fit);
            if batch.is_empty() || fit < plain {
                break;
            }
            let (left, whole) = self.send_whole(pool, batch);
            sent += whole;
            if batch.is_empty() || left == 0 {
                break;
            }
        }
        self.blocked = !batch.is_empty();
        sent
    }

    fn flush(&mut self, pool: &mut Pool) {
        if self.must_kick() {
            self.kick();
        }
        self.reap(pool);
    }

    fn in_flight(&self) -> usize {
        usize::try_from(self.submitted - self.completed).unwrap_or(usize::MAX)
    }

    fn counters(&self) -> QueueCounters {
        let own =
            QueueCounters { packets: self.packets, bytes: self.bytes, errors: self.errors, no_frame: 0 };
        [own].into_iter().chain(self.parts.whole.as_ref().map(TxQueue::counters)).sum()
    }

    fn close(mut self: Box<Self>, pool: &mut Pool) {
        self.reap(pool);
        let Parts { ring, completion, ledger, socket, life, .. } = self.parts;
        // The mappings keep the socket alive: they go first.
        drop((ring, completion, socket));
        life.close_half(ledger, pool);
    }
}

/// Calls the kernel for so many descriptors, of which it takes `per_call` at once; again while it stops before the end, and no oftener
/// than they take. How far it has come it does not tell before Linux 6.17: its end of the ring moves only with a call that reaches ours.
#[inline]
fn kick_for(pending: u32, per_call: u32, mut kick: impl FnMut() -> Option<Kick>) {
    for _ in 0..pending.div_ceil(per_call).max(1) {
        if kick() != Some(Kick::Again) {
            break;
        }
    }
}

/// Whether a packet stands for several.
#[inline]
fn is_whole(packet: &Packet) -> bool {
    packet.offload.asks_for_work() && packet.offload.segmentation().is_some()
}

/// Does in software what a packet asks of the NIC; false where that can't be done: super-segments are cut elsewhere.
#[cold]
fn make_plain(packet: &mut Packet) -> bool {
    packet.complete_checksum().is_ok() && packet.offload.segmentation().is_none() && put_tag_in(packet)
}

/// Puts the VLAN tag that is kept beside a packet between its addresses and its type.
fn put_tag_in(packet: &mut Packet) -> bool {
    let Some(tag) = packet.offload.vlan() else { return true };
    packet.offload.set_vlan(None);
    if packet.head().len() < ADDRESSES {
        return false;
    }
    let Ok(head) = packet.push_front(VLAN_TAG.into()) else { return false };
    head.copy_within(VLAN_TAG.into()..usize::from(VLAN_TAG) + ADDRESSES, 0);
    head[ADDRESSES..ADDRESSES + 2].copy_from_slice(&ETH_P_8021Q);
    head[ADDRESSES + 2..ADDRESSES + 4].copy_from_slice(&tag.to_be_bytes());
    true
}

/// The lengths of the frames in flight, in the order they were queued.
///
/// Completions come in about that order. Where one overtakes another, their lengths are counted in the other's place,
/// and the sums are right again when both are there: much cheaper than a length for every frame of the arena.
struct Lengths {
    entries: Box<[u32]>,
    head: usize,
    tail: usize,
}

/// Set on the last frame of a packet.
const LAST: u32 = 1 << 31;

impl Lengths {
    fn new(size: u32) -> Self {
        Self { entries: vec![0; size as usize].into(), head: 0, tail: 0 }
    }

    #[inline]
    fn push(&mut self, len: u32, is_last: bool) {
        let at = self.tail & (self.entries.len() - 1);
        self.entries[at] = len | if is_last { LAST } else { 0 };
        self.tail = self.tail.wrapping_add(1);
    }

    #[inline]
    fn pop(&mut self) -> (u32, bool) {
        let entry = self.entries[self.head & (self.entries.len() - 1)];
        self.head = self.head.wrapping_add(1);
        (entry & !LAST, entry & LAST != 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How many calls it takes to send so many, and what is left, where the kernel takes 32 at once.
    fn calls(pending: u32, per_call: u32) -> (u32, u32) {
        let (mut calls, mut left) = (0, pending);
        kick_for(pending, per_call, || {
            calls += 1;
            left -= left.min(32);
            Some(if left > 0 { Kick::Again } else { Kick::Done })
        });
        (calls, left)
    }

    #[test]
    fn what_is_more_than_one_call_takes_is_sent_by_several() {
        assert_eq!(calls(256, 32), (8, 0));
        assert_eq!(calls(33, 32), (2, 0));
        assert_eq!(calls(1, 32), (1, 0));
        // Busy polling calls for nothing, too.
        assert_eq!(calls(0, 32), (1, 0));
        // The kernel has said that it takes all.
        assert_eq!(calls(64, 64), (1, 32));
    }

    #[test]
    fn an_interface_that_is_busy_is_not_called_without_end() {
        for (answer, expected) in [(Some(Kick::Again), 8), (Some(Kick::Dropped), 1), (None, 1)] {
            let mut calls = 0;
            kick_for(256, 32, || {
                calls += 1;
                answer
            });
            assert_eq!(calls, expected, "{answer:?}");
        }
    }

    #[test]
    fn lengths_come_out_in_order_also_around_the_end() {
        let mut lengths = Lengths::new(4);
        for round in 0..10 {
            lengths.push(60 + round, true);
            lengths.push(1500, false);
            lengths.push(9, true);
            assert_eq!(lengths.pop(), (60 + round, true));
            assert_eq!(lengths.pop(), (1500, false));
            assert_eq!(lengths.pop(), (9, true));
        }
    }
}
