//! Packets that move together.
#![expect(
    unsafe_code,
    reason = "packets are written where they will lie and read in one piece: half of an exchange of TCP was stalls without"
)]

use std::vec::Drain;

use crate::{Packet, Segment};

/// Packets in a full batch.
pub const BATCH: usize = 64;

/// Up to [`BATCH`] packets, in order, moved together between a queue and what works on them.
///
/// It allocates when it is made and never again.
#[derive(Debug)]
pub struct Batch {
    packets: Vec<Packet>,
    limit: usize,
}

impl Default for Batch {
    fn default() -> Self {
        Self::new()
    }
}

impl Batch {
    /// An empty batch.
    pub fn new() -> Self {
        Self::with_limit(BATCH)
    }

    /// An empty batch that is full with `limit` packets: with fewer than [`BATCH`] of them, so that each one waits for
    /// fewer others.
    pub fn with_limit(limit: usize) -> Self {
        Self { packets: Vec::with_capacity(BATCH), limit: limit.min(BATCH) }
    }

    /// Packets in it.
    #[inline]
    pub fn len(&self) -> usize {
        self.packets.len()
    }

    /// Whether there is none.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.packets.is_empty()
    }

    /// How many more fit.
    #[inline]
    pub fn room(&self) -> usize {
        self.limit - self.packets.len()
    }

    /// Bytes in all packets.
    #[inline]
    pub fn bytes(&self) -> usize {
        self.packets.iter().map(Packet::len).sum()
    }

    /// Appends a packet; look at [`Batch::room`] first.
    ///
    /// # Panics
    /// When the batch is full.
    #[inline]
    pub fn push(&mut self, packet: Packet) {
        assert!(self.room() > 0, "the batch is full");
        self.packets.push(packet);
    }

    /// The place of the next packet; `None` when the batch is full.
    #[inline(always)]
    pub fn place(&mut self) -> Option<Place<'_>> {
        // Both, though the limit is never above the capacity: what `put` does rests on the second alone.
        let room = self.packets.len() < self.limit && self.packets.len() < self.packets.capacity();
        room.then_some(Place(&mut self.packets))
    }

    /// Takes all packets out, the first one first. `each` also sees those that follow.
    #[inline(always)]
    pub fn take_each(&mut self, mut each: impl FnMut(Packet, &[Packet])) {
        let n = self.packets.len();
        // SAFETY: none is none too many. A panic in `each` loses those that follow, and nothing is dropped twice.
        unsafe { self.packets.set_len(0) }
        for i in 0..n {
            let rest = &self.packets.spare_capacity_mut()[i..n];
            // SAFETY: the `n` packets that there were are as they were, from `i` on: nobody else can reach them. This one is not
            // read again.
            let packet = unsafe { rest[0].assume_init_read() };
            // SAFETY: as above.
            each(packet, unsafe { rest[1..].assume_init_ref() });
        }
    }

    /// Appends packets, as many as there is room for; the iterator is asked for no more.
    #[inline]
    pub fn extend(&mut self, packets: impl Iterator<Item = Packet>) {
        let room = self.room();
        self.packets.extend(packets.take(room));
    }

    /// The packets, to be filled as a list by whoever has looked at [`Batch::room`].
    #[inline]
    pub(crate) fn list(&mut self) -> &mut Vec<Packet> {
        &mut self.packets
    }

    /// Exchanges all packets for those of `other`, without moving one of them: nothing is done, and it is false, when
    /// one of the two would hold more than its limit.
    #[inline]
    pub fn exchange(&mut self, other: &mut Self) -> bool {
        let fits = other.len() <= self.limit && self.len() <= other.limit;
        if fits {
            std::mem::swap(&mut self.packets, &mut other.packets);
        }
        fits
    }

    /// The packets.
    #[inline]
    pub fn iter(&self) -> std::slice::Iter<'_, Packet> {
        self.packets.iter()
    }

    /// The packets.
    #[inline]
    pub fn iter_mut(&mut self) -> std::slice::IterMut<'_, Packet> {
        self.packets.iter_mut()
    }

    /// Takes all packets out, the first one first.
    #[inline]
    pub fn drain(&mut self) -> Drain<'_, Packet> {
        self.packets.drain(..)
    }

    /// Takes the first `n` packets out, or all when there are fewer; the others move to the front.
    #[inline]
    pub fn drain_front(&mut self, n: usize) -> Drain<'_, Packet> {
        let n = n.min(self.packets.len());
        self.packets.drain(..n)
    }

    /// Takes all packets out as their only segments; `None`, and nothing is taken, when one has several, or somebody
    /// else keeps its frame.
    #[inline]
    pub fn drain_single(&mut self) -> Option<impl ExactSizeIterator<Item = Segment> + '_> {
        // Looking at all of them is faster than stopping at the first.
        let single = self.packets.iter().fold(true, |single, packet| single & packet.is_single());
        single.then(|| self.packets.drain(..).map(Packet::into_only_segment))
    }

    /// Takes out, in order, each packet for which `keep` is false, and hands it to `removed`.
    pub fn retain(&mut self, mut keep: impl FnMut(&mut Packet) -> bool, removed: impl FnMut(Packet)) {
        self.packets.extract_if(.., |packet| !keep(packet)).for_each(removed);
    }
}

/// Where the next packet of a batch will lie.
///
/// A packet that is made and put here at once is written once, and in one piece. One that is handed to a function is written for
/// that, and read back as vectors right after it was written in pieces, which stalls the processor.
#[derive(Debug)]
pub struct Place<'a>(&'a mut Vec<Packet>);

impl Place<'_> {
    /// Puts a packet there.
    // It calls nothing that could fail: a packet that may have to be dropped on the way is kept in memory for that.
    #[inline(always)]
    pub fn put(self, packet: Packet) {
        let len = self.0.len();
        // SAFETY: `place` has seen that there is room for one more, and the list has been borrowed since.
        unsafe {
            self.0.as_mut_ptr().add(len).write(packet);
            self.0.set_len(len + 1);
        }
    }
}

impl<'a> IntoIterator for &'a mut Batch {
    type Item = &'a mut Packet;
    type IntoIter = std::slice::IterMut<'a, Packet>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter_mut()
    }
}

impl<'a> IntoIterator for &'a Batch {
    type Item = &'a Packet;
    type IntoIter = std::slice::Iter<'a, Packet>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}
