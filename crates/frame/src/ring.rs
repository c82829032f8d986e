//! Frames that are lent in order: those of a NIC's ring, which lets go of them in the order in which it was given them.
//!
//! The loops that move frames between a ring, a pool and a batch are here, because they run for every packet that a NIC's
//! driver moves: a frame is read out of one place and written to another, and no place is looked at to see whether it is empty.
#![expect(
    unsafe_code,
    reason = "places of a ring and of lists are read and written by pointer: 20 instructions less for a forwarded packet"
)]

use std::collections::VecDeque;
use std::mem::MaybeUninit;

use crate::{Arena, Batch, Frame, Packet, Part, Piece, Pool};

/// The frames that one ring has lent to a NIC, the oldest first.
///
/// As a [`Ledger`](crate::Ledger) it owns them and shows nobody their bytes; what comes back is the oldest, so that nothing
/// the NIC writes is believed. One that is dropped says nothing about the NIC: as [`RingLedger::abandon`].
#[derive(Debug)]
pub struct RingLedger {
    arena: &'static Arena,
    /// A power of two. A lent frame is in each place from number `oldest` up to `next`, and nothing in the others.
    places: Box<[MaybeUninit<Frame>]>,
    /// Free-running: numbers of places wrap.
    oldest: usize,
    next: usize,
    /// Numbers of the places, the oldest first, whose frames others keep: parts of them are lent.
    parts: VecDeque<usize>,
}

impl RingLedger {
    /// An empty one for `most` frames of `arena`, rounded up to a power of two.
    pub fn new(arena: &'static Arena, most: usize) -> Self {
        let places = (0..most.next_power_of_two()).map(|_| MaybeUninit::uninit()).collect();
        Self { arena, places, oldest: 0, next: 0, parts: VecDeque::new() }
    }

    /// How many frames are lent, and parts of kept ones.
    #[inline]
    pub fn lent(&self) -> usize {
        self.next.wrapping_sub(self.oldest)
    }

    /// The place of a number, and how many there are from it to the last one.
    #[inline]
    fn place(&self, number: usize) -> (usize, usize) {
        let place = number & (self.places.len() - 1);
        (place, self.places.len() - place)
    }

    /// Takes a frame to be lent, and returns its offset in the arena.
    ///
    /// # Panics
    /// When the frame is another arena's, or no more can be lent.
    #[inline]
    pub fn lend(&mut self, frame: Frame) -> usize {
        let offset = self.arena.offset(&frame);
        self.next_place().write(frame);
        self.next = self.next.wrapping_add(1);
        offset
    }

    /// The place of the next frame.
    #[inline]
    fn next_place(&mut self) -> &mut MaybeUninit<Frame> {
        assert!(self.lent() < self.places.len(), "the ring is full");
        let (place, _) = self.place(self.next);
        &mut self.places[place]
    }

    /// Takes what a packet is made of to be lent, and returns the offset in the arena where its bytes begin.
    ///
    /// # Panics
    /// When it is another arena's, or no more can be lent.
    #[inline]
    pub fn lend_piece(&mut self, piece: Piece) -> usize {
        let start = piece.start();
        match piece {
            Piece::Whole(segment) => self.lend(segment.into_frame()) + start,
            Piece::Part(part) => self.lend_part(part) + start,
        }
    }

    fn lend_part(&mut self, part: Part) -> usize {
        let offset = self.arena.offset(part.frame());
        // It is a part until its place is certain: who drops it before gives no frame a second owner.
        self.next_place().write(part.into_frame());
        self.parts.push_back(self.next);
        self.next = self.next.wrapping_add(1);
        offset
    }

    /// Takes back the oldest frame, when the NIC has let go of it. For rings that are lent nothing but whole frames.
    ///
    /// # Panics
    /// When parts of kept frames are lent: they have no owner here.
    #[inline]
    pub fn reclaim(&mut self) -> Option<Frame> {
        assert!(self.parts.is_empty(), "parts of frames are lent");
        self.take_oldest()
    }

    #[inline]
    fn take_oldest(&mut self) -> Option<Frame> {
        if self.lent() == 0 {
            return None;
        }
        let (place, _) = self.place(self.oldest);
        self.oldest = self.oldest.wrapping_add(1);
        // SAFETY: it was `oldest`, so a frame was in it; it is no more, so that nobody reads it out again.
        Some(unsafe { self.places[place].assume_init_read() })
    }

    /// Takes back the oldest frame, or a part of it, and gives it to `pool`; false when there is none.
    fn give_oldest(&mut self, pool: &mut Pool) -> bool {
        let is_part = self.parts.pop_front_if(|number| *number == self.oldest).is_some();
        let Some(frame) = self.take_oldest() else { return false };
        if is_part {
            // SAFETY: `lend_part` has noted the number of the place in which it put a part's frame.
            pool.give_part(unsafe { Part::of(frame) });
        } else {
            pool.give(frame);
        }
        true
    }

    /// Takes back the `count` oldest frames.
    ///
    /// # Panics
    /// When fewer are lent.
    #[inline]
    pub fn reclaim_many(&mut self, count: usize, pool: &mut Pool) {
        assert!(count <= self.lent(), "more frames than are lent");
        if !self.parts.is_empty() {
            (0..count).for_each(|_| _ = self.give_oldest(pool));
            return;
        }
        // There is room for every frame of the arena; only others' could make this allocate.
        pool.list().reserve(count);
        let (place, to_last) = self.place(self.oldest);
        let first = count.min(to_last);
        self.oldest = self.oldest.wrapping_add(count);
        for run in [&self.places[place..][..first], &self.places[..count - first]] {
            if run.is_empty() {
                continue;
            }
            let free = pool.list();
            let len = free.len();
            // SAFETY: these places are some of the `count` oldest, so frames are in them, and they are read out once: they
            // lie before `oldest` now. There is room for them in the list, whose memory is not the ring's.
            unsafe {
                run.as_ptr().cast::<Frame>().copy_to_nonoverlapping(free.as_mut_ptr().add(len), run.len());
                free.set_len(len + run.len());
            }
        }
    }

    /// Lends the only frames of packets from the front of `batch`: as many as there are packets, of `beside` and of places to
    /// the last one, and up to the first packet that is not [single](Packet::is_single) or that `fill` refuses, which is told where
    /// the packet's frame lies in the arena. Returns how many.
    ///
    /// # Panics
    /// When a frame is another arena's. When `fill` does, the packets are lost.
    #[inline]
    pub fn lend_packets<T>(
        &mut self,
        beside: &[T],
        batch: &mut Batch,
        mut fill: impl FnMut(&T, &Packet, usize) -> bool,
    ) -> usize {
        let (place, to_last) = self.place(self.next);
        let room = to_last.min(self.places.len() - self.lent());
        let places = &mut self.places[place..][..room];
        let (base, bytes, mut foreign) = (self.arena.base(), self.arena.bytes(), false);
        let packets = batch.list();
        let len = packets.len();
        // SAFETY: 0 is at most any length. From here to the end nobody sees the packets but this function.
        unsafe { packets.set_len(0) };
        let mut count = 0;
        for ((place, beside), packet) in
            places.iter_mut().zip(beside).zip(&packets.spare_capacity_mut()[..len])
        {
            // SAFETY: it is one of the first `len`, which were the list's, and has not been read out.
            let packet = unsafe { packet.assume_init_ref() };
            let offset = packet.head_segment().frame().address().wrapping_sub(base);
            // Said when all are done: a loop that can panic keeps its state in memory.
            foreign = offset >= bytes;
            if foreign || !packet.is_single() || !fill(beside, packet, offset) {
                break;
            }
            // SAFETY: as above. What else is in a packet of one frame need not be dropped.
            place.write(unsafe { std::ptr::from_ref(packet).read() }.into_only_frame());
            count += 1;
        }
        if count < len {
            let first = packets.as_mut_ptr();
            // SAFETY: the packets from `count` to `len` are initialised and still the list's; they may overlap their new places.
            unsafe { first.add(count).copy_to(first, len - count) };
        }
        // SAFETY: the first `len - count` packets are initialised, and each has one owner.
        unsafe { packets.set_len(len - count) };
        self.next = self.next.wrapping_add(count);
        assert!(!foreign, "a frame of another arena");
        count
    }

    /// Of a ring that is full: puts fresh frames in the places of the oldest, and appends to `batch` what `make` makes of those.
    ///
    /// There are as many as of `beside`, and no more than `pool` has at hand, `batch` has room for and there are places to the
    /// last one; they end before the first one of which `done` says `None`. What it says else is told to `make`, and the fresh
    /// frame's offset in the arena. Returns how many.
    ///
    /// # Panics
    /// When the ring is not full, or not of whole frames, or a fresh frame another arena's. When `done` or `make` does, frames are lost.
    #[inline]
    pub fn exchange<T, D>(
        &mut self,
        beside: &[T],
        pool: &mut Pool,
        batch: &mut Batch,
        mut done: impl FnMut(&T) -> Option<D>,
        mut make: impl FnMut(&T, D, Frame, usize) -> Packet,
    ) -> usize {
        assert!(
            self.lent() == self.places.len() && self.parts.is_empty(),
            "the ring is not full of whole frames"
        );
        let (place, _) = self.place(self.oldest);
        let most = pool.at_hand(batch.room().min(beside.len()));
        let (base, bytes, mut foreign) = (self.arena.base(), self.arena.bytes(), false);
        let (free, packets) = (pool.list(), batch.list());
        let left = free.len() - most;
        // SAFETY: at most the length. From here to the end nobody sees the frames behind but this function.
        unsafe { free.set_len(left) };
        let all = self.places[place..].iter_mut().zip(beside);
        let all = all.zip(&free.spare_capacity_mut()[..most]).zip(packets.spare_capacity_mut());
        let mut count = 0;
        for (((place, beside), fresh), packet) in all {
            let Some(done) = done(beside) else { break };
            // SAFETY: it was the pool's until `set_len`, and has not been read out.
            let offset = unsafe { fresh.assume_init_ref() }.address().wrapping_sub(base);
            // Said when all are done, as above.
            foreign = offset >= bytes;
            if foreign {
                break;
            }
            // SAFETY: as above; it is read out once.
            let fresh = unsafe { fresh.assume_init_read() };
            // SAFETY: the ring is full, so a frame is in every place, and one is in this one again.
            let old = std::mem::replace(unsafe { place.assume_init_mut() }, fresh);
            packet.write(make(beside, done, old, offset));
            count += 1;
        }
        let rest = most - count;
        let first = free.as_mut_ptr();
        // SAFETY: the frames from `left + count` on were not read out and are still the pool's, `rest` of them; they may
        // overlap their new places. The packets behind the batch's last have been written, `count` of them.
        unsafe {
            if rest > 0 {
                first.add(left + count).copy_to(first.add(left), rest);
            }
            free.set_len(left + rest);
            packets.set_len(packets.len() + count);
        }
        self.oldest = self.oldest.wrapping_add(count);
        self.next = self.next.wrapping_add(count);
        assert!(!foreign, "a frame of another arena");
        count
    }

    /// Takes all lent frames back. Only for when the NIC has let go of them: the queue is off and says so, or the
    /// device can reach memory no more.
    pub fn recover(mut self, pool: &mut Pool) {
        while self.give_oldest(pool) {}
    }

    /// Leaves all lent frames with the NIC for good, when it can't be known whether it has let go. Returns how many: they
    /// are never used again.
    pub fn abandon(self) -> usize {
        // Whoever drops the ring forgets the frames: its places say nothing of what is in them.
        self.lent()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{FRAME_SIZE, Segment};

    fn arena() -> &'static Arena {
        Arena::new(vec![0; 64 * FRAME_SIZE]).unwrap()
    }

    fn received(frame: Frame, len: usize) -> Packet {
        Packet::from_segment(Segment::received(frame, len))
    }

    /// Where the frames of packets lie, and how long these are.
    fn said(arena: &Arena, batch: &Batch) -> Vec<(usize, usize)> {
        batch.iter().map(|packet| (arena.offset(packet.head_segment().frame()), packet.len())).collect()
    }

    #[test]
    fn frames_come_back_once_and_in_their_order() {
        let arena = arena();
        let mut pool = arena.pool(16).unwrap();
        let mut ring = RingLedger::new(arena, 3);
        for _ in 0..3 {
            let lent: Vec<_> = (0..3).map(|_| ring.lend(pool.take().unwrap())).collect();
            assert_eq!((ring.lent(), pool.free()), (3, 13));
            for offset in lent {
                let frame = ring.reclaim().unwrap();
                assert_eq!(arena.offset(&frame), offset);
                pool.give(frame);
            }
            assert!(ring.reclaim().is_none());
        }
        assert_eq!(pool.free(), 16);
    }

    #[test]
    fn many_come_back_around_the_end() {
        let arena = arena();
        let mut pool = arena.pool(16).unwrap();
        let mut ring = RingLedger::new(arena, 8);
        (0..6).for_each(|_| _ = ring.lend(pool.take().unwrap()));
        ring.reclaim_many(5, &mut pool);
        let lent: Vec<_> = (0..7).map(|_| ring.lend(pool.take().unwrap())).collect();
        ring.reclaim_many(1, &mut pool);
        ring.reclaim_many(7, &mut pool);
        let back: Vec<_> = pool.upcoming(7).iter().map(|frame| arena.offset(frame)).collect();
        assert_eq!((back, ring.lent(), pool.free()), (lent, 0, 16));
    }

    #[test]
    #[should_panic(expected = "more frames than are lent")]
    fn an_empty_ring_has_nothing_to_give() {
        let arena = arena();
        let mut pool = arena.pool(2).unwrap();
        let mut ring = RingLedger::new(arena, 4);
        ring.lend(pool.take().unwrap());
        ring.reclaim_many(2, &mut pool);
    }

    #[test]
    #[should_panic(expected = "the ring is full")]
    fn a_full_ring_takes_no_more() {
        let arena = arena();
        let mut pool = arena.pool(3).unwrap();
        let mut ring = RingLedger::new(arena, 2);
        (0..3).for_each(|_| _ = ring.lend(pool.take().unwrap()));
    }

    #[test]
    fn packets_are_lent_up_to_the_last_place_and_to_one_that_is_refused() {
        let arena = arena();
        let mut pool = arena.pool(32).unwrap();
        let mut ring = RingLedger::new(arena, 16);
        (0..5).for_each(|_| _ = ring.lend(pool.take().unwrap()));
        ring.reclaim_many(5, &mut pool);
        let (mut batch, mut offsets) = (Batch::new(), Vec::new());
        let mut fill = |_: &(), packet: &Packet, offset| {
            offsets.push((offset, packet.len()));
            packet.len() != 9 + 13
        };
        batch.extend((0..15).map(|i| received(pool.take().unwrap(), 9 + i)));
        let packets = said(arena, &batch);
        assert_eq!(ring.lend_packets(&[(); 3], &mut batch, &mut fill), 3);
        assert_eq!(ring.lend_packets(&[(); 32], &mut batch, &mut fill), 8);
        assert_eq!(ring.lend_packets(&[(); 32], &mut batch, &mut fill), 2);
        // What is refused stays, and so does what comes behind it.
        assert_eq!((ring.lend_packets(&[(); 2], &mut batch, &mut fill), batch.len()), (0, 2));
        assert_eq!(
            (offsets, said(arena, &batch)),
            ([&packets[..14], &packets[13..14]].concat(), packets[13..].into())
        );
        ring.reclaim_many(13, &mut pool);
        assert_eq!((ring.lent(), pool.free()), (0, 30));
        pool.give_batch(&mut batch);
        assert_eq!(pool.free(), 32);
    }

    #[test]
    fn a_full_ring_takes_no_packet() {
        let arena = arena();
        let mut pool = arena.pool(8).unwrap();
        let (mut ring, mut batch) = (RingLedger::new(arena, 4), Batch::new());
        batch.extend((0..6).map(|i| received(pool.take().unwrap(), 9 + i)));
        assert_eq!(ring.lend_packets(&[(); 8], &mut batch, |(), _, _| true), 4);
        assert_eq!(ring.lend_packets(&[(); 8], &mut batch, |(), _, _| true), 0);
        pool.give_batch(&mut batch);
        assert_eq!((ring.lent(), pool.free()), (4, 4));
    }

    #[test]
    fn the_oldest_are_exchanged_for_fresh_ones() {
        let arena = arena();
        let mut pool = arena.pool(8).unwrap();
        let mut ring = RingLedger::new(arena, 4);
        let old: Vec<_> = (0..4).map(|_| ring.lend(pool.take().unwrap())).collect();
        let (mut batch, mut offsets) = (Batch::with_limit(3), Vec::new());
        let done = |length: &usize| (*length > 0).then_some(*length);
        let mut make = |_: &usize, length, frame, offset| {
            offsets.push(offset);
            received(frame, length)
        };
        assert_eq!(ring.exchange(&[7, 0, 9, 9], &mut pool, &mut batch, done, &mut make), 1);
        // Up to the batch's room, and not around the end.
        assert_eq!(ring.exchange(&[8, 9, 10, 11], &mut pool, &mut batch, done, &mut make), 2);
        assert_eq!(said(arena, &batch), [(old[0], 7), (old[1], 8), (old[2], 9)]);
        assert_eq!(pool.free(), 1);
        pool.give_batch(&mut batch);
        assert_eq!(ring.exchange(&[10, 11], &mut pool, &mut batch, done, &mut make), 1);
        assert_eq!(said(arena, &batch), [(old[3], 10)]);
        pool.give_batch(&mut batch);
        let fresh: Vec<_> = std::iter::from_fn(|| ring.reclaim()).collect();
        assert_eq!(fresh.iter().map(|frame| arena.offset(frame)).collect::<Vec<_>>(), offsets);
        pool.give_many(fresh.into_iter());
        let all: std::collections::BTreeSet<_> = pool.upcoming(8).iter().map(Frame::address).collect();
        assert_eq!((pool.free(), all.len()), (8, 8));
    }

    #[test]
    #[should_panic(expected = "the ring is not full of whole frames")]
    fn only_a_full_ring_exchanges() {
        let arena = arena();
        let (mut pool, mut ring) = (arena.pool(2).unwrap(), RingLedger::new(arena, 1));
        ring.exchange(
            &[()],
            &mut pool,
            &mut Batch::new(),
            |()| Some(()),
            |(), (), frame, _| received(frame, 9),
        );
    }

    #[test]
    fn a_frame_of_another_arena_is_not_lent_and_keeps_its_owner() {
        let (arena, other) = (arena(), arena());
        let (mut pool, mut others) = (arena.pool(2).unwrap(), other.pool(2).unwrap());
        let mut ring = RingLedger::new(arena, 1);
        let mut batch = Batch::new();
        batch.push(received(others.take().unwrap(), 9));
        let lend = std::panic::AssertUnwindSafe(|| ring.lend_packets(&[()], &mut batch, |(), _, _| true));
        assert!(std::panic::catch_unwind(lend).is_err());
        assert_eq!((ring.lent(), batch.len()), (0, 1));
        others.give_batch(&mut batch);
        ring.lend(pool.take().unwrap());
        let make = |(): &(), (), frame, _| received(frame, 9);
        let exchange = std::panic::AssertUnwindSafe(|| {
            ring.exchange(&[()], &mut others, &mut batch, |()| Some(()), make)
        });
        assert!(std::panic::catch_unwind(exchange).is_err());
        assert_eq!((ring.lent(), batch.len(), others.free()), (1, 0, 2));
        ring.recover(&mut pool);
        assert_eq!(pool.free(), 2);
    }

    #[test]
    fn a_panic_in_an_exchange_gives_no_frame_two_owners() {
        let arena = arena();
        let mut pool = arena.pool(8).unwrap();
        let mut ring = RingLedger::new(arena, 4);
        (0..4).for_each(|_| _ = ring.lend(pool.take().unwrap()));
        let mut batch = Batch::new();
        let exchange = std::panic::AssertUnwindSafe(|| {
            let make = |i: &usize, (), frame, _| {
                assert!(*i < 2, "this one can't be made");
                received(frame, 9)
            };
            ring.exchange(&[0, 1, 2, 3], &mut pool, &mut batch, |_| Some(()), make)
        });
        assert!(std::panic::catch_unwind(exchange).is_err() && batch.is_empty());
        let mut frames: Vec<_> = std::iter::from_fn(|| ring.reclaim()).collect();
        frames.extend(std::iter::from_fn(|| pool.take()));
        let offsets: std::collections::BTreeSet<_> = frames.iter().map(|frame| arena.offset(frame)).collect();
        // Two were made, and one was still to be exchanged: those three are lost.
        assert_eq!((frames.len(), offsets.len()), (61, 61));
    }

    #[test]
    fn what_a_dropped_ledger_had_is_never_used_again() {
        let arena = arena();
        let mut pool = arena.pool(64).unwrap();
        let mut ring = RingLedger::new(arena, 8);
        ring.lend(pool.take().unwrap());
        drop(ring);
        let mut ring = RingLedger::new(arena, 8);
        ring.lend(pool.take().unwrap());
        assert_eq!(ring.abandon(), 1);
        assert_eq!((pool.free(), arena.unused(), arena.orphaned()), (62, 0, 0));
        let mut ring = RingLedger::new(arena, 8);
        ring.lend(pool.take().unwrap());
        ring.recover(&mut pool);
        assert_eq!(pool.free(), 62);
    }
}
