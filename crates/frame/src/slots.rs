//! Frames that are lent by place: a NIC's ring, whose driver knows which frame lies in which descriptor.

use crate::arena::{convert, take_while};
use crate::{Arena, Batch, Frame, Packet, Pool};

/// The frames that one ring has lent to a NIC, each in the slot of its descriptor.
///
/// As a [`Ledger`](crate::Ledger) it owns them and shows nobody their bytes; what comes back is named by slot, not by
/// address, so that nothing the NIC writes is believed.
#[derive(Debug)]
pub struct SlotLedger {
    arena: &'static Arena,
    slots: Box<[Option<Frame>]>,
    /// One less than the slots, a power of two: numbers of slots wrap.
    mask: usize,
}

impl SlotLedger {
    /// At least `slots` empty slots, rounded up to a power of two, for frames of `arena`.
    pub fn new(arena: &'static Arena, slots: usize) -> Self {
        let slots: Box<[_]> = (0..slots.next_power_of_two()).map(|_| None).collect();
        let mask = slots.len() - 1;
        Self { arena, slots, mask }
    }

    /// Takes a frame to be lent in slot `slot`, which wraps, and returns its offset in the arena. The slot must be
    /// empty: a frame that is still in it is never used again.
    ///
    /// # Panics
    /// When the frame is another arena's.
    #[inline]
    pub fn lend(&mut self, slot: u32, frame: Frame) -> usize {
        let offset = self.arena.offset(&frame);
        std::mem::forget(self.slots[slot as usize & self.mask].replace(frame));
        offset
    }

    /// Takes back the frame in slot `slot`, which wraps, when the NIC has let go of it.
    #[inline]
    pub fn reclaim(&mut self, slot: u32) -> Option<Frame> {
        self.slots[slot as usize & self.mask].take()
    }

    /// Lends the only frames of packets from the front of `batch` in the slots from `first`, which wraps, which must be empty
    /// as for [`SlotLedger::lend`]: as many as there are packets and of `beside`, and up to the first packet that has several
    /// frames or that `fill` refuses, which is told where the packet's frame lies in the arena. Returns how many.
    ///
    /// # Panics
    /// When a frame is another arena's, or `beside` has more than there are slots to the last one.
    #[inline]
    pub fn lend_packets<T>(
        &mut self,
        first: u32,
        beside: &[T],
        batch: &mut Batch,
        mut fill: impl FnMut(&T, &Packet, usize) -> bool,
    ) -> usize {
        let most = beside.len().min(batch.len());
        let slots = &mut self.slots[first as usize & self.mask..][..most];
        let (base, mut furthest) = (self.arena.base(), 0);
        let count = take_while(
            batch.list(),
            most,
            |i, packet| {
                let offset = packet.head_segment().frame().address().wrapping_sub(base);
                // Looked at when all are done: a loop that can panic keeps its state in memory.
                furthest = offset.max(furthest);
                packet.is_single() && fill(&beside[i], packet, offset)
            },
            |i, packet| std::mem::forget(slots[i].replace(packet.into_only_frame())),
        );
        assert!(furthest < self.arena.bytes(), "a frame of another arena");
        count
    }

    /// Puts fresh frames in the `count` slots from `first`, which wraps, and appends to `batch` what `make` makes of those that
    /// were lent there, each with its number and its fresh one's offset in the arena.
    ///
    /// # Panics
    /// When a slot is empty, a fresh frame another arena's, the last slot nearer, or when `pool` has not so many frames at hand
    /// or `batch` no room.
    #[inline]
    pub fn exchange(
        &mut self,
        first: u32,
        count: usize,
        pool: &mut Pool,
        batch: &mut Batch,
        mut make: impl FnMut(usize, Frame, usize) -> Packet,
    ) {
        let slots = &mut self.slots[first as usize & self.mask..][..count];
        assert!(count <= batch.room(), "the batch is full");
        let (base, mut furthest) = (self.arena.base(), 0);
        convert(pool.list(), batch.list(), count, |i, fresh| {
            let offset = fresh.address().wrapping_sub(base);
            // Looked at when all are done, as above.
            furthest = offset.max(furthest);
            let old = slots[i].replace(fresh);
            make(i, old.expect("a slot whose frame was not lent"), offset)
        });
        assert!(furthest < self.arena.bytes(), "a frame of another arena");
    }

    /// Takes back the frames in the `count` slots from `first`, which wraps, or in those to the last slot when that is
    /// nearer, and returns how many. All of them must be lent.
    ///
    /// # Panics
    /// When one of them is not.
    #[inline]
    pub fn reclaim_run(&mut self, first: u32, count: usize, pool: &mut Pool) -> usize {
        let slots = &mut self.slots[first as usize & self.mask..];
        let count = count.min(slots.len());
        let slots = &mut slots[..count];
        pool.give_run(count, |i| slots[i].take().expect("a slot whose frame was not lent"));
        count
    }

    /// Takes back what is lent in the `count` slots from `first` on, which wraps.
    pub fn reclaim_some(&mut self, first: u32, count: u32, pool: &mut Pool) {
        (0..count).filter_map(|i| self.reclaim(first.wrapping_add(i))).for_each(|frame| pool.give(frame));
    }

    /// Takes all lent frames back. Only for when the NIC has let go of them: the queue is off and says so, or the
    /// device can reach memory no more.
    pub fn recover(mut self, pool: &mut Pool) {
        pool.give_many(self.slots.iter_mut().filter_map(Option::take));
    }

    /// Leaves all lent frames with the NIC for good, when it can't be known whether it has let go. Returns how many: they
    /// are never used again.
    pub fn abandon(mut self) -> usize {
        self.forget_all()
    }

    fn forget_all(&mut self) -> usize {
        self.slots.iter_mut().filter_map(Option::take).map(std::mem::forget).count()
    }
}

impl Drop for SlotLedger {
    /// A ledger that is dropped says nothing about the NIC: as [`SlotLedger::abandon`].
    fn drop(&mut self) {
        self.forget_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{FRAME_SIZE, Segment};

    fn arena() -> &'static Arena {
        Arena::new(vec![0; 64 * FRAME_SIZE]).unwrap()
    }

    #[test]
    fn a_frame_comes_back_from_its_slot_once() {
        let arena = arena();
        let mut pool = arena.pool(16).unwrap();
        let mut ledger = SlotLedger::new(arena, 8);
        let frame = pool.take().unwrap();
        let address = frame.address();
        assert_eq!(ledger.lend(9, frame), address - arena.base());
        assert_eq!(ledger.reclaim(1).map(|frame| pool.give(frame)), Some(()));
        assert!(ledger.reclaim(9).is_none());
        assert_eq!(pool.free(), 16);
    }

    #[test]
    fn many_come_back_around_the_end() {
        let arena = arena();
        let mut pool = arena.pool(16).unwrap();
        let mut ledger = SlotLedger::new(arena, 8);
        for slot in 5..11 {
            ledger.lend(slot, pool.take().unwrap());
        }
        ledger.reclaim_some(5, 5, &mut pool);
        assert_eq!(pool.free(), 15);
        assert!(ledger.reclaim(9).is_none() && ledger.reclaim(10).map(|frame| pool.give(frame)).is_some());
        assert_eq!(pool.free(), 16);
    }

    #[test]
    fn a_run_ends_with_the_slots() {
        let arena = arena();
        let mut pool = arena.pool(32).unwrap();
        let mut ledger = SlotLedger::new(arena, 16);
        let (mut batch, mut offsets) = (Batch::new(), Vec::new());
        let mut fill = |_: &(), packet: &Packet, offset| {
            offsets.push((offset, packet.len()));
            packet.len() != 9 + 11
        };
        batch.extend((0..13).map(|i| Packet::from_segment(Segment::received(pool.take().unwrap(), 9 + i))));
        let frames: Vec<_> =
            batch.iter().map(|packet| (arena.offset(packet.head_segment().frame()), packet.len())).collect();
        assert_eq!(ledger.lend_packets(21, &[(); 11], &mut batch, &mut fill), 11);
        // What is refused stays, and so does what comes behind it.
        assert_eq!((ledger.lend_packets(0, &[(); 2], &mut batch, &mut fill), batch.len()), (0, 2));
        assert_eq!(offsets, frames[..12]);
        assert_eq!((ledger.reclaim_run(21, 10, &mut pool), pool.free()), (10, 29));
        assert_eq!((ledger.reclaim_run(31, 5, &mut pool), pool.free()), (1, 30));
        pool.give_batch(&mut batch);
        assert_eq!(pool.free(), 32);
    }

    #[test]
    #[should_panic(expected = "a slot whose frame was not lent")]
    fn an_empty_slot_has_nothing_to_give() {
        let arena = arena();
        let mut ledger = SlotLedger::new(arena, 4);
        ledger.reclaim_run(1, 1, &mut arena.pool(1).unwrap());
    }

    #[test]
    fn lent_frames_are_exchanged_for_fresh_ones() {
        let arena = arena();
        let mut pool = arena.pool(8).unwrap();
        let mut ledger = SlotLedger::new(arena, 4);
        let old: Vec<_> = (0..4).map(|slot| ledger.lend(slot, pool.take().unwrap())).collect();
        let (mut batch, mut offsets) = (Batch::with_limit(4), Vec::new());
        let mut make = |i, frame, offset| {
            offsets.push(offset);
            Packet::from_segment(Segment::received(frame, 7 + i))
        };
        ledger.exchange(5, 3, &mut pool, &mut batch, &mut make);
        let got: Vec<_> =
            batch.iter().map(|packet| (arena.offset(packet.head_segment().frame()), packet.len())).collect();
        assert_eq!(got, [(old[1], 7), (old[2], 8), (old[3], 9)]);
        pool.give_batch(&mut batch);
        let fresh: Vec<_> = (1..4).map(|slot| ledger.reclaim(slot).unwrap()).collect();
        assert_eq!(fresh.iter().map(|frame| arena.offset(frame)).collect::<Vec<_>>(), offsets);
        pool.give_many(fresh.into_iter());
        pool.give(ledger.reclaim(0).unwrap());
        assert_eq!(pool.free(), 8);
    }

    #[test]
    fn a_panic_in_an_exchange_gives_no_frame_two_owners() {
        let arena = arena();
        let mut pool = arena.pool(8).unwrap();
        let mut ledger = SlotLedger::new(arena, 4);
        (0..4).for_each(|slot| _ = ledger.lend(slot, pool.take().unwrap()));
        let mut batch = Batch::new();
        let exchange = std::panic::AssertUnwindSafe(|| {
            ledger.exchange(0, 4, &mut pool, &mut batch, |i, frame, _| {
                assert!(i < 2, "this one can't be made");
                Packet::from_segment(Segment::received(frame, 9))
            })
        });
        assert!(std::panic::catch_unwind(exchange).is_err() && batch.is_empty());
        let mut frames: Vec<_> = (0..4).filter_map(|slot| ledger.reclaim(slot)).collect();
        frames.extend(std::iter::from_fn(|| pool.take()));
        let offsets: std::collections::BTreeSet<_> = frames.iter().map(|frame| arena.offset(frame)).collect();
        // Two were made and one was still to be exchanged: those three are lost.
        assert_eq!((frames.len(), offsets.len()), (61, 61));
    }

    #[test]
    fn what_a_dropped_ledger_had_is_never_used_again() {
        let arena = arena();
        let mut pool = arena.pool(64).unwrap();
        let mut ledger = SlotLedger::new(arena, 8);
        ledger.lend(0, pool.take().unwrap());
        // The slot was not empty: its frame is lost, not owned twice.
        ledger.lend(0, pool.take().unwrap());
        drop(ledger);
        let mut ledger = SlotLedger::new(arena, 8);
        ledger.lend(3, pool.take().unwrap());
        assert_eq!(ledger.abandon(), 1);
        assert_eq!((pool.free(), arena.unused(), arena.orphaned()), (61, 0, 0));
        let mut ledger = SlotLedger::new(arena, 8);
        ledger.lend(3, pool.take().unwrap());
        ledger.recover(&mut pool);
        assert_eq!(pool.free(), 61);
    }
}
