//! One worker's free frames.

use std::vec::Drain;

use crate::packet::Chain;
use crate::{Arena, Batch, Frame, Kept, Packet, Part, Piece, Segment};

/// Frames that move between a pool and its arena's spare list at once: the lock there is paid once for so many.
const EXCHANGE: usize = 256;

/// Boxes for chains that a pool keeps, so that multi-frame packets do not allocate.
const CHAINS: usize = 64;

/// One worker's free frames: no atomics, no lock while it has some and not too many.
///
/// The last frame given back is the first one taken, so that it is still in the cache. A pool whose worker only
/// receives frames of others sends its surplus home, and a pool that runs dry looks there, a few hundred at a time.
#[derive(Debug)]
pub struct Pool {
    arena: &'static Arena,
    free: Vec<Frame>,
    /// More free frames than this are surplus.
    high_water: usize,
    #[expect(clippy::vec_box, reason = "the boxes are what is kept: they move into packets and back")]
    chains: Vec<Box<Chain>>,
}

impl Pool {
    pub(crate) fn with_frames(arena: &'static Arena, free: Vec<Frame>) -> Self {
        let high_water = free.len() + 2 * EXCHANGE;
        let chains = (0..CHAINS).map(|_| Box::default()).collect();
        Self { arena, free, high_water, chains }
    }

    /// The arena the frames belong to.
    pub fn arena(&self) -> &'static Arena {
        self.arena
    }

    /// Free frames at hand.
    pub fn free(&self) -> usize {
        self.free.len()
    }

    /// A free frame, or `None` when this pool and the arena's spare list are empty.
    #[inline]
    pub fn take(&mut self) -> Option<Frame> {
        match self.free.pop() {
            Some(frame) => Some(frame),
            None => {
                self.refill();
                self.free.pop()
            }
        }
    }

    /// Takes out `n` free frames, or as many as there are here and in the arena's spare list.
    #[inline]
    pub fn take_many(&mut self, n: usize) -> Drain<'_, Frame> {
        if self.free.len() < n {
            self.refill();
        }
        self.free.drain(self.free.len().saturating_sub(n)..)
    }

    /// How many free frames can be taken at once, up to `most`: there may be more in the arena's spare list than come at a time.
    #[inline]
    pub fn at_hand(&mut self, most: usize) -> usize {
        if self.free.len() < most {
            self.refill();
        }
        self.free.len().min(most)
    }

    /// The frames that are taken next, `n` at most, the first one last.
    #[inline]
    pub fn upcoming(&self, n: usize) -> &[Frame] {
        &self.free[self.free.len().saturating_sub(n)..]
    }

    /// The free frames, to be taken from the end by whoever has looked at [`Pool::at_hand`], and given back there. The surplus
    /// stays until others are given back.
    #[inline]
    pub(crate) fn list(&mut self) -> &mut Vec<Frame> {
        &mut self.free
    }

    /// Takes a frame back.
    #[inline]
    pub fn give(&mut self, frame: Frame) {
        self.free.push(frame);
        if self.free.len() > self.high_water {
            self.send_home();
        }
    }

    /// Takes a frame back that somebody has kept, when no part of it is left in a packet; else when the last one ends.
    #[inline]
    pub fn give_kept(&mut self, kept: Kept) {
        if let Some(frame) = kept.end(self.arena) {
            self.give(frame);
        }
    }

    /// Ends a part. The last one of a frame that nobody keeps any more gives it back.
    // Apart, so that who gives back whole frames does not carry it along.
    #[inline(never)]
    pub fn give_part(&mut self, part: Part) {
        if let Some(frame) = part.end(self.arena) {
            self.give(frame);
        }
    }

    /// Takes back what a packet was made of.
    #[inline]
    pub fn give_piece(&mut self, piece: Piece) {
        match piece {
            Piece::Whole(segment) => self.give(segment.into_frame()),
            Piece::Part(part) => self.give_part(part),
        }
    }

    /// Takes frames back.
    #[inline]
    pub fn give_many(&mut self, frames: impl Iterator<Item = Frame>) {
        self.free.extend(frames);
        while self.free.len() > self.high_water {
            self.send_home();
        }
    }

    /// Takes back all frames of a packet.
    #[inline]
    pub fn give_packet(&mut self, packet: Packet) {
        if packet.is_single() {
            return self.give(packet.into_only_frame());
        }
        self.give_pieces(packet);
    }

    fn give_pieces(&mut self, packet: Packet) {
        packet.into_pieces(self, |piece, pool| pool.give_piece(piece));
    }

    /// Takes back all frames of all packets in the batch and leaves it empty.
    #[inline]
    pub fn give_batch(&mut self, batch: &mut Batch) {
        // Mostly packets of one frame alone: what room there is is looked at once for all of them.
        if let Some(segments) = batch.drain_single() {
            return self.give_many(segments.map(Segment::into_frame));
        }
        for packet in batch.drain() {
            self.give_packet(packet);
        }
    }

    pub(crate) fn take_chain(&mut self) -> Box<Chain> {
        self.chains.pop().unwrap_or_default()
    }

    /// Takes back an empty chain's box.
    pub(crate) fn keep_chain(&mut self, chain: Box<Chain>) {
        if self.chains.len() < CHAINS {
            self.chains.push(chain);
        }
    }

    #[cold]
    fn refill(&mut self) {
        let mut spare = self.arena.spare();
        let from = spare.len().saturating_sub(EXCHANGE);
        self.free.extend(spare.drain(from..));
    }

    #[cold]
    fn send_home(&mut self) {
        let from = self.free.len() - EXCHANGE;
        self.arena.spare().extend(self.free.drain(from..));
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.arena.spare().append(&mut self.free);
    }
}
