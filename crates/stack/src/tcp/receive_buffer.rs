//! Bytes that have come: in order, to be read; out of order, to wait for what is missing.

use std::collections::VecDeque;

use arrayvec::ArrayVec;
use bywash_frame::{FRAME_SIZE, Packet, Pool};

use super::seq::Seq;
use crate::packet::slices;

/// SACK blocks to be told: RFC 2018 has room for four.
pub(super) const BLOCKS: usize = 4;

/// Payload in its packet.
#[derive(Debug)]
pub(super) struct Held {
    packet: Packet,
    start: usize,
    len: usize,
}

impl Held {
    pub(super) fn new(packet: Packet, start: usize, len: usize) -> Self {
        Self { packet, start, len }
    }

    fn trim_front(&mut self, n: usize) {
        self.start += n;
        self.len -= n;
    }

    fn cost(&self) -> usize {
        self.packet.frames() * FRAME_SIZE
    }
}

#[derive(Debug)]
struct Piece {
    start: Seq,
    end: Seq,
    held: Held,
}

/// Both halves of what a connection has received.
#[derive(Debug, Default)]
pub(super) struct ReceiveBuffer {
    ready: VecDeque<Held>,
    /// Bytes in `ready`.
    readable: usize,
    /// Sorted; they do not overlap.
    waiting: Vec<Piece>,
    /// The blocks that changed last come first (RFC 2018, section 4).
    recent: ArrayVec<Seq, BLOCKS>,
    /// Bytes of frames that both hold, whatever part of them is payload.
    cost: usize,
}

impl ReceiveBuffer {
    #[inline]
    pub(super) fn readable(&self) -> usize {
        self.readable
    }

    /// Bytes of frames in use.
    #[inline]
    pub(super) fn cost(&self) -> usize {
        self.cost
    }

    pub(super) fn has_gap(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Appends payload that comes next.
    #[inline]
    pub(super) fn push(&mut self, mut held: Held, pool: &mut Pool) {
        self.readable += held.len;
        // Many small segments must not pin a frame each: they are moved together in the last frame's end.
        if held.len <= FRAME_SIZE / 4
            && let Some(last) = self.ready.back_mut()
            && last.packet.is_single()
            && last.packet.len() == last.start + last.len
            && slices(&held.packet, held.start..held.start + held.len)
                .try_for_each(|bytes| last.packet.extend_from_slice(bytes).map(|()| last.len += bytes.len()))
                .is_ok()
        {
            return pool.give_packet(held.packet);
        }
        // Padding behind the payload would be in the way of the next small one.
        if held.packet.is_single() {
            let exact = held.packet.set_len(held.start + held.len);
            debug_assert!(exact.is_ok(), "shorter than it was");
        }
        self.cost += held.cost();
        held.packet.offload = bywash_frame::Offload::default();
        self.ready.push_back(held);
    }

    /// Keeps payload that begins after `next`. Returns the part that was there already, if any (RFC 2883).
    pub(super) fn hold(&mut self, start: Seq, held: Held, pool: &mut Pool) -> Option<(Seq, Seq)> {
        let mut piece = Piece { start, end: start + length(held.len), held };
        let at = self.waiting.partition_point(|p| !p.start.after(piece.start));
        let mut duplicate = None;
        if let Some(before) = at.checked_sub(1).map(|i| &self.waiting[i])
            && before.end.after(piece.start)
        {
            let end = before.end.min(piece.end);
            duplicate = Some((piece.start, end));
            let n = end - piece.start;
            piece.held.trim_front(n as usize);
            piece.start = end;
        }
        // What later pieces have, they keep; the new one ends where the next begins. What lies beyond is asked for again.
        if let Some(after) = self.waiting.get(at)
            && piece.end.after(after.start)
        {
            duplicate = duplicate.or(Some((after.start, piece.end.min(after.end))));
            piece.end = after.start;
            piece.held.len = (piece.end - piece.start) as usize;
        }
        if piece.held.len == 0 || !piece.start.before(piece.end) {
            pool.give_packet(piece.held.packet);
            return duplicate;
        }
        self.cost += piece.held.cost();
        self.recent.retain(|edge| *edge != piece.start);
        if self.recent.is_full() {
            self.recent.pop();
        }
        self.recent.insert(0, piece.start);
        self.waiting.insert(at, piece);
        duplicate
    }

    /// Moves what now comes next from waiting to ready; returns the sequence number after it.
    pub(super) fn fill(&mut self, mut next: Seq, pool: &mut Pool) -> Seq {
        while let Some(first) = self.waiting.first()
            && !first.start.after(next)
        {
            let mut piece = self.waiting.remove(0);
            self.cost -= piece.held.cost();
            if !piece.end.after(next) {
                pool.give_packet(piece.held.packet);
                continue;
            }
            piece.held.trim_front((next - piece.start) as usize);
            next = piece.end;
            self.push(piece.held, pool);
        }
        if self.waiting.is_empty() {
            self.recent.clear();
        }
        next
    }

    /// The blocks to be told to the sender, the most recent first.
    pub(super) fn blocks(&self) -> ArrayVec<(Seq, Seq), BLOCKS> {
        let mut blocks: ArrayVec<(Seq, Seq), BLOCKS> = ArrayVec::new();
        for edge in &self.recent {
            let Some(mut i) = self.waiting.iter().position(|p| p.start == *edge) else { continue };
            while i > 0 && self.waiting[i - 1].end == self.waiting[i].start {
                i -= 1;
            }
            let (start, mut end) = (self.waiting[i].start, self.waiting[i].end);
            while self.waiting.get(i + 1).is_some_and(|p| p.start == end) {
                i += 1;
                end = self.waiting[i].end;
            }
            if !blocks.contains(&(start, end)) && !blocks.is_full() {
                blocks.push((start, end));
            }
        }
        blocks
    }

    /// Payload to be read, in place.
    pub(super) fn slices(&self) -> impl Iterator<Item = &[u8]> {
        self.ready.iter().flat_map(|held| slices(&held.packet, held.start..held.start + held.len))
    }

    /// Takes bytes off the front: they have been read.
    pub(super) fn consume(&mut self, mut n: usize, pool: &mut Pool) {
        n = n.min(self.readable);
        self.readable -= n;
        while let Some(first) = self.ready.front_mut() {
            if n < first.len {
                return first.trim_front(n);
            }
            n -= first.len;
            self.cost -= first.cost();
            if let Some(held) = self.ready.pop_front() {
                pool.give_packet(held.packet);
            }
        }
    }

    /// Gives everything back.
    pub(super) fn clear(&mut self, pool: &mut Pool) {
        for held in self.ready.drain(..).chain(self.waiting.drain(..).map(|piece| piece.held)) {
            pool.give_packet(held.packet);
        }
        self.recent.clear();
        (self.readable, self.cost) = (0, 0);
    }
}

/// A length as a distance between sequence numbers; no packet has more than 64 KiB.
pub(super) fn length(n: usize) -> u32 {
    u32::try_from(n).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use bywash_frame::Arena;
    use proptest::prelude::*;

    use super::*;

    fn held(bytes: &[u8], pool: &mut Pool) -> Held {
        let mut packet = Packet::new(pool.take().unwrap());
        packet.extend_from_slice(bytes).unwrap();
        Held::new(packet, 0, bytes.len())
    }

    proptest! {
        /// Pieces of one stream in any order, overlapping: what is read is the stream, and no frame is lost.
        #[test]
        fn any_order_gives_the_stream(pieces in proptest::collection::vec((0usize..2000, 1usize..700), 1..60)) {
            let mut pool = Arena::new(vec![0; 1 << 20]).unwrap().pool(400).unwrap();
            let stream: Vec<u8> = (0..3000u32).map(|i| i.wrapping_mul(31).to_le_bytes()[0]).collect();
            let (mut buffer, mut next, base) = (ReceiveBuffer::default(), 0usize, Seq(u32::MAX - 1000));
            let mut seen = vec![false; 3000];
            for (start, len) in pieces {
                if start > next {
                    buffer.hold(base + length(start), held(&stream[start..start + len], &mut pool), &mut pool);
                } else if start + len > next {
                    buffer.push(held(&stream[next..start + len], &mut pool), &mut pool);
                    next = (buffer.fill(base + length(start + len), &mut pool) - base) as usize;
                }
                seen[start..start + len].fill(true);
                for (left, right) in buffer.blocks() {
                    let (left, right) = ((left - base) as usize, (right - base) as usize);
                    prop_assert!(next < left && left < right && seen[left..right].iter().all(|s| *s));
                }
            }
            prop_assert_eq!(buffer.slices().collect::<Vec<_>>().concat(), &stream[..next]);
            buffer.consume(next / 2, &mut pool);
            prop_assert_eq!(buffer.slices().collect::<Vec<_>>().concat(), &stream[next / 2..next]);
            buffer.clear(&mut pool);
            prop_assert_eq!((pool.free(), buffer.cost()), (400, 0));
        }
    }

    #[test]
    fn the_block_that_grew_last_is_told_first() {
        let mut pool = Arena::new(vec![0; 1 << 18]).unwrap().pool(40).unwrap();
        let mut buffer = ReceiveBuffer::default();
        for start in [100, 300, 500, 110] {
            buffer.hold(Seq(start), held(&[0; 10], &mut pool), &mut pool);
        }
        let blocks: Vec<_> = buffer.blocks().iter().map(|(a, b)| (a.0, b.0)).collect();
        assert_eq!(blocks, [(100, 120), (500, 510), (300, 310)]);
        let twice = buffer.hold(Seq(505), held(&[0; 10], &mut pool), &mut pool);
        assert_eq!(twice, Some((Seq(505), Seq(510))), "what came twice is reported");
        buffer.clear(&mut pool);
    }
}
