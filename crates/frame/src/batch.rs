//! Packets that move together.

use arrayvec::ArrayVec;

use crate::Packet;

/// Packets in a full batch.
pub const BATCH: usize = 64;

/// Up to [`BATCH`] packets, in order, moved together between a queue and what works on them.
#[derive(Debug, Default)]
pub struct Batch(ArrayVec<Packet, BATCH>);

impl Batch {
    /// An empty batch.
    pub fn new() -> Self {
        Self::default()
    }

    /// Packets in it.
    #[inline]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there is none.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// How many more fit.
    #[inline]
    pub fn room(&self) -> usize {
        self.0.remaining_capacity()
    }

    /// Appends a packet; look at [`Batch::room`] first.
    ///
    /// # Panics
    /// When the batch is full.
    #[inline]
    pub fn push(&mut self, packet: Packet) {
        self.0.push(packet);
    }

    /// The packets.
    #[inline]
    pub fn iter(&self) -> std::slice::Iter<'_, Packet> {
        self.0.iter()
    }

    /// The packets.
    #[inline]
    pub fn iter_mut(&mut self) -> std::slice::IterMut<'_, Packet> {
        self.0.iter_mut()
    }

    /// Takes all packets out, the first one first.
    #[inline]
    pub fn drain(&mut self) -> impl ExactSizeIterator<Item = Packet> + '_ {
        self.0.drain(..)
    }

    /// Takes the first `n` packets out, or all when there are fewer; the others move to the front.
    #[inline]
    pub fn drain_front(&mut self, n: usize) -> impl ExactSizeIterator<Item = Packet> + '_ {
        let n = n.min(self.0.len());
        self.0.drain(..n)
    }

    /// Takes out, in order, each packet for which `keep` is false, and hands it to `removed`.
    pub fn retain(&mut self, mut keep: impl FnMut(&mut Packet) -> bool, mut removed: impl FnMut(Packet)) {
        let mut kept = ArrayVec::new();
        for mut packet in self.0.drain(..) {
            if keep(&mut packet) {
                kept.push(packet);
            } else {
                removed(packet);
            }
        }
        self.0 = kept;
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
