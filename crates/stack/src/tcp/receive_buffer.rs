//! Bytes that have come: in order, to be read; out of order, to wait for what is missing.

use std::collections::VecDeque;
use std::mem::offset_of;

use arrayvec::ArrayVec;
use bywash_frame::{FRAME_SIZE, Packet, Pool, copy};

use super::seq::Seq;
use crate::packet::slices;
use crate::queue::Queue;
use crate::stack::Share;

/// SACK blocks to be told: RFC 2018 has room for four.
pub(super) const BLOCKS: usize = 4;
/// Runs of out-of-order payload at most.
const RUNS: usize = 256;

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

    pub(super) fn cost(&self) -> usize {
        self.packet.frames() * FRAME_SIZE
    }

    /// How many segments that was on the wire.
    pub(super) fn segments(&self) -> u8 {
        let each = self.packet.offload.segmentation().map_or(self.len, |of| usize::from(of.size.get()));
        u8::try_from(self.len.div_ceil(each.max(1))).unwrap_or(u8::MAX)
    }

    pub(super) fn into_packet(self) -> Packet {
        self.packet
    }

    /// Copies bytes of another packet behind its own, if there is room in its frame.
    fn takes(&mut self, packet: &Packet, start: usize, len: usize) -> bool {
        let ends = self.packet.frames() == 1 && self.packet.len() == self.start + self.len;
        let taken = ends
            && slices(packet, start..start + len)
                .try_for_each(|bytes| self.packet.extend_from_slice(bytes))
                .is_ok();
        if taken {
            self.len += len;
        }
        taken
    }
}

/// Payload without a gap in it that waits for what comes before.
#[derive(Debug)]
struct Run {
    start: Seq,
    end: Seq,
    /// The peer's FIN, which comes next, has come, too.
    fin: bool,
    pieces: VecDeque<Held>,
}

/// Both halves of what a connection has received. In front is what each segment needs.
#[derive(Debug, Default)]
#[repr(C)]
pub(super) struct ReceiveBuffer {
    ready: Queue<Held>,
    /// Bytes in `ready`.
    readable: usize,
    /// Bytes of frames that both hold, whatever part of them is payload.
    cost: usize,
    /// Bytes of frames that `waiting` holds.
    waiting_cost: usize,
    /// Sorted; between any two is a gap. A loss makes one, so however much waits, few are looked through.
    waiting: VecDeque<Run>,
    /// Queues of runs that are gone, to be used again.
    spare: Vec<VecDeque<Held>>,
    /// A number in each run that changed lately, the last first (RFC 2018, section 4).
    recent: ArrayVec<Seq, BLOCKS>,
}

impl ReceiveBuffer {
    /// Bytes in front that each segment needs.
    pub(super) const HOT: usize = offset_of!(Self, waiting);

    #[inline]
    pub(super) fn readable(&self) -> usize {
        self.readable
    }

    /// Bytes of frames in use.
    #[inline]
    pub(super) fn cost(&self) -> usize {
        self.cost
    }

    /// Bytes of frames that hold what is to be read, without the first: that each connection may have.
    #[inline]
    pub(super) fn beyond_first(&self) -> usize {
        (self.cost - self.waiting_cost).saturating_sub(FRAME_SIZE)
    }

    /// Bytes of frames that wait for what is missing.
    pub(super) fn waiting_cost(&self) -> usize {
        self.waiting_cost
    }

    #[inline]
    pub(super) fn has_gap(&self) -> bool {
        self.waiting_cost > 0
    }

    /// Appends payload that comes next.
    fn push(&mut self, mut held: Held, pool: &mut Pool) {
        if self.admit(&mut held.packet, held.start, held.len) {
            self.append(|| held);
        } else {
            pool.give_packet(held.packet);
        }
    }

    /// Makes ready for `len` bytes of a packet that come next, from `start` on, to be appended. `false`: they were moved into the
    /// last packet's end, and this one is done with.
    #[inline(always)]
    pub(super) fn admit(&mut self, packet: &mut Packet, start: usize, len: usize) -> bool {
        self.readable += len;
        // Many small segments must not pin a frame each: they are moved together in the last frame's end.
        if len <= FRAME_SIZE / 4
            && let Some(last) = self.ready.back_mut()
            && last.takes(packet, start, len)
        {
            return false;
        }
        // Padding behind the payload would be in the way of the next small one. Nothing is written where there is none: what was
        // just written in pieces is slow to be moved.
        if packet.frames() == 1 && packet.head().len() != start + len {
            let exact = packet.set_len(start + len);
            debug_assert!(exact.is_ok(), "shorter than it was");
        }
        self.cost += packet.frames() * FRAME_SIZE;
        true
    }

    /// Appends what was admitted.
    #[inline(always)]
    pub(super) fn append(&mut self, held: impl FnOnce() -> Held) {
        self.ready.push_made(held);
    }

    /// Whether a packet whose payload begins at `start` comes to an empty queue, in one frame, and ends with its payload: a message,
    /// nearly always. It need not be admitted.
    #[inline]
    pub(super) fn takes_whole(&self, packet: &Packet, start: usize, len: usize) -> bool {
        self.ready.is_empty() && packet.frames() == 1 && packet.head().len() == start + len
    }

    /// Takes such a packet.
    #[inline(always)]
    pub(super) fn take_whole(&mut self, packet: Packet, start: usize, len: usize) {
        self.readable += len;
        self.cost += FRAME_SIZE;
        self.ready.push_made(|| Held { packet, start, len });
    }

    /// Keeps payload that begins after what is ready. Returns the part that was there already, if any (RFC 2883).
    ///
    /// What comes costs O(log n) of the runs that wait, and moving them when a new one is put between: there are at most
    /// [`RUNS`], so that a peer who leaves many gaps gets no further. What would be one more is not kept.
    pub(super) fn hold(&mut self, start: Seq, mut held: Held, pool: &mut Pool) -> Option<(Seq, Seq)> {
        let (mut start, mut end) = (start, start + length(held.len));
        let at = self.waiting.partition_point(|run| !run.start.after(start));
        let mut duplicate = None;
        if let Some(before) = at.checked_sub(1).map(|i| &self.waiting[i])
            && before.end.after(start)
        {
            let until = before.end.min(end);
            duplicate = Some((start, until));
            held.trim_front((until - start) as usize);
            start = until;
        }
        // What later runs have, they keep; the new piece ends where the next begins. What lies beyond is asked for again.
        if let Some(after) = self.waiting.get(at)
            && end.after(after.start)
        {
            duplicate = duplicate.or(Some((after.start, end.min(after.end))));
            end = after.start;
            held.len = if start.before(end) { (end - start) as usize } else { 0 };
        }
        let extends = at.checked_sub(1).is_some_and(|i| self.waiting[i].end == start);
        let meets = self.waiting.get(at).is_some_and(|run| run.start == end);
        if held.len == 0 || (!extends && !meets && self.waiting.len() >= RUNS) {
            pool.give_packet(held.packet);
            // The block around what came twice follows it, or the peer takes it for one of its own (RFC 2883, 4).
            if let Some((number, _)) = duplicate {
                self.changed(number);
            }
            return duplicate;
        }
        self.cost += held.cost();
        self.waiting_cost += held.cost();
        self.changed(start);
        match (extends, meets) {
            (true, false) => {
                let run = &mut self.waiting[at - 1];
                run.pieces.push_back(held);
                // A FIN in the middle was none.
                (run.end, run.fin) = (end, false);
            }
            (false, true) => {
                self.waiting[at].pieces.push_front(held);
                self.waiting[at].start = start;
            }
            (true, true) => {
                self.waiting[at - 1].pieces.push_back(held);
                self.join(at - 1);
            }
            (false, false) => {
                let mut pieces = self.spare.pop().unwrap_or_default();
                pieces.push_back(held);
                self.waiting.insert(at, Run { start, end, fin: false, pieces });
            }
        }
        duplicate
    }

    /// Makes one run of two between which there is no gap any more. The shorter one is moved: however the runs of a
    /// window are joined, no piece moves more than a few times.
    fn join(&mut self, i: usize) {
        let Some(mut right) = self.waiting.remove(i + 1) else { return };
        let left = &mut self.waiting[i];
        (left.end, left.fin) = (right.end, right.fin);
        if left.pieces.len() >= right.pieces.len() {
            left.pieces.append(&mut right.pieces);
        } else {
            while let Some(piece) = left.pieces.pop_back() {
                right.pieces.push_front(piece);
            }
            std::mem::swap(&mut left.pieces, &mut right.pieces);
        }
        self.spare.push(right.pieces);
    }

    /// Notes that the peer's FIN has come, which has the number `at`: a block is told to hold it, as Linux does it.
    pub(super) fn note_fin(&mut self, at: Seq) {
        let i = self.waiting.partition_point(|run| run.end.before(at));
        if let Some(run) = self.waiting.get_mut(i) {
            run.fin = run.end == at;
        }
    }

    /// Notes that the run that `number` is in, or will be, has changed last.
    fn changed(&mut self, number: Seq) {
        if self.recent.is_full() {
            self.recent.pop();
        }
        self.recent.insert(0, number);
    }

    /// Moves what now comes next from waiting to ready; returns the sequence number after it, and the first part of it that came
    /// twice, if any (RFC 2883). Each piece is moved once.
    pub(super) fn fill(&mut self, mut next: Seq, pool: &mut Pool) -> (Seq, Option<(Seq, Seq)>) {
        let mut duplicate = None;
        while let Some(mut run) = self.waiting.pop_front_if(|run| !run.start.after(next)) {
            let mut at = run.start;
            if at.before(next) {
                duplicate = duplicate.or(Some((at, next.min(run.end))));
            }
            while let Some(mut held) = run.pieces.pop_front() {
                self.cost -= held.cost();
                self.waiting_cost -= held.cost();
                let end = at + length(held.len);
                if end.after(next) {
                    let old = if next.after(at) { next - at } else { 0 };
                    held.trim_front(old as usize);
                    next = end;
                    self.push(held, pool);
                } else {
                    pool.give_packet(held.packet);
                }
                at = end;
            }
            self.spare.push(run.pieces);
        }
        if self.waiting.is_empty() {
            self.recent.clear();
        }
        (next, duplicate)
    }

    /// The blocks to be told to the sender, the most recent first.
    pub(super) fn blocks(&self) -> ArrayVec<(Seq, Seq), BLOCKS> {
        let mut blocks: ArrayVec<(Seq, Seq), BLOCKS> = ArrayVec::new();
        let recent = self.recent.iter().filter_map(|number| {
            let at = self.waiting.partition_point(|run| !run.start.after(*number)).checked_sub(1)?;
            self.waiting.get(at).filter(|run| number.before(run.end))
        });
        // Behind those that changed, any others: each is told several times (RFC 2018, 4), in case one is lost.
        for run in recent.chain(self.waiting.iter().take(2 * BLOCKS)) {
            let block = (run.start, run.end + u32::from(run.fin));
            if !blocks.is_full() && !blocks.contains(&block) {
                blocks.push(block);
            }
        }
        blocks
    }

    /// Payload to be read, in place.
    pub(super) fn slices(&self) -> impl Iterator<Item = &[u8]> {
        self.ready.iter().flat_map(|held| slices(&held.packet, held.start..held.start + held.len))
    }

    /// Takes bytes off the front, which have been read, as many as there are at most, and says how many.
    pub(super) fn consume(&mut self, n: usize, share: &mut Share, pool: &mut Pool) -> usize {
        let taken = n.min(self.readable);
        self.readable -= taken;
        let (mut n, before) = (taken, self.beyond_first());
        while let Some(first) = self.ready.front_mut() {
            if n < first.len {
                first.trim_front(n);
                break;
            }
            n -= first.len;
            self.cost -= first.cost();
            if let Some(held) = self.ready.pop_front() {
                pool.give_packet(held.packet);
            }
        }
        share.unread -= before - self.beyond_first();
        taken
    }

    /// Moves what is ready into `to`, as far as there is room for it, and says how much that was.
    #[inline]
    pub(super) fn read(&mut self, to: &mut [u8], share: &mut Share, pool: &mut Pool) -> usize {
        // A message that came in one frame, and is wanted whole: nothing of it stays.
        if let Some(held) = self.ready.only()
            && held.packet.frames() == 1
            && let Some(bytes) = held.packet.head().get(held.start..held.start + held.len)
            && let Some(place) = to.get_mut(..bytes.len())
        {
            place.copy_from_slice(bytes);
            let done = bytes.len();
            if let Some(held) = self.ready.take_only() {
                pool.give_packet(held.packet);
            }
            (self.readable, self.cost) = (0, self.cost - FRAME_SIZE);
            return done;
        }
        self.read_pieces(to, share, pool)
    }

    fn read_pieces(&mut self, to: &mut [u8], share: &mut Share, pool: &mut Pool) -> usize {
        let (mut done, before) = (0, self.beyond_first());
        while let Some(first) = self.ready.front_mut() {
            let n = first.len.min(to.len() - done);
            let place = &mut to[done..done + n];
            match first.packet.head().get(first.start..first.start + n) {
                Some(bytes) => copy(bytes, place),
                None => copy_all(slices(&first.packet, first.start..first.start + n), place),
            }
            done += n;
            if n < first.len {
                first.trim_front(n);
                break;
            }
            self.cost -= first.cost();
            if let Some(held) = self.ready.pop_front() {
                pool.give_packet(held.packet);
            }
        }
        self.readable -= done;
        share.unread -= before - self.beyond_first();
        done
    }

    /// Gives everything back.
    #[inline]
    pub(super) fn clear(&mut self, pool: &mut Pool) {
        self.recent.clear();
        // Most connections end with all read, and have never lost anything.
        if self.cost > 0 || !self.spare.is_empty() {
            self.empty(pool);
        }
    }

    /// Gives back what waits for what is missing.
    pub(super) fn clear_waiting(&mut self, pool: &mut Pool) {
        while let Some(run) = self.waiting.pop_front() {
            run.pieces.into_iter().for_each(|held| pool.give_packet(held.packet));
        }
        self.cost -= std::mem::take(&mut self.waiting_cost);
    }

    #[cold]
    fn empty(&mut self, pool: &mut Pool) {
        while let Some(held) = self.ready.pop_front() {
            pool.give_packet(held.packet);
        }
        self.clear_waiting(pool);
        self.spare.clear();
        (self.readable, self.cost) = (0, 0);
    }
}

/// A length as a distance between sequence numbers; no packet has more than 64 KiB.
pub(super) fn length(n: usize) -> u32 {
    u32::try_from(n).unwrap_or(u32::MAX)
}

/// Copies slices one after the other.
fn copy_all<'a>(slices: impl Iterator<Item = &'a [u8]>, mut to: &mut [u8]) {
    for slice in slices {
        let Some((place, rest)) = to.split_at_mut_checked(slice.len()) else { return };
        copy(slice, place);
        to = rest;
    }
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
                    next = (buffer.fill(base + length(start + len), &mut pool).0 - base) as usize;
                }
                seen[start..start + len].fill(true);
                for (left, right) in buffer.blocks() {
                    let (left, right) = ((left - base) as usize, (right - base) as usize);
                    prop_assert!(next < left && left < right && seen[left..right].iter().all(|s| *s));
                }
            }
            prop_assert_eq!(buffer.slices().collect::<Vec<_>>().concat(), &stream[..next]);
            let mut share = Share { unread: buffer.beyond_first(), ..Share::new() };
            buffer.consume(next / 2, &mut share, &mut pool);
            prop_assert_eq!(buffer.slices().collect::<Vec<_>>().concat(), &stream[next / 2..next]);
            let mut copied = vec![0; next];
            let first = buffer.read(&mut copied[..next / 3], &mut share, &mut pool);
            let then = buffer.read(&mut copied[first..], &mut share, &mut pool);
            prop_assert_eq!((&copied[..first + then], buffer.readable()), (&stream[next / 2..next], 0));
            prop_assert_eq!(share.unread, 0);
            buffer.clear(&mut pool);
            prop_assert_eq!((pool.free(), buffer.cost()), (400, 0));
        }
    }

    /// Every second of many tiny segments, the last first: the worst order, and more runs than are kept.
    #[test]
    fn many_gaps_are_bounded_and_all_come_in_order_at_last() {
        let mut pool = Arena::new(vec![0; 4 << 20]).unwrap().pool(1800).unwrap();
        let mut buffer = ReceiveBuffer::default();
        let byte = |i: u32| [i.to_le_bytes()[0]];
        for i in (1..600u32).rev().filter(|i| i % 2 == 1) {
            buffer.hold(Seq(i), held(&byte(i), &mut pool), &mut pool);
        }
        assert_eq!(buffer.waiting.len(), RUNS);
        let first = buffer.waiting[0].start.0;
        for i in (first + 1..600).filter(|i| i % 2 == 0) {
            buffer.hold(Seq(i), held(&byte(i), &mut pool), &mut pool);
        }
        assert_eq!((buffer.waiting.len(), buffer.blocks().len()), (1, 1), "joined");
        buffer.push(held(&byte(first - 1), &mut pool), &mut pool);
        assert_eq!(buffer.fill(Seq(first), &mut pool), (Seq(600), None));
        let expected: Vec<u8> = (first - 1..600).flat_map(byte).collect();
        assert_eq!(buffer.slices().collect::<Vec<_>>().concat(), expected);
        buffer.clear(&mut pool);
        assert_eq!((pool.free(), buffer.cost()), (1800, 0));
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
