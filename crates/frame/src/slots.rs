//! Frames that are lent by place: a NIC's ring, whose driver knows which frame lies in which descriptor.

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

    /// Lends packets' only frames in the slots from `first`, which wraps, to the last one, which must be empty as for
    /// [`SlotLedger::lend`]: as many as there are packets and slots. Tells `each` where a packet's first byte lies in the
    /// arena, and how many there are. Packets of several frames end it.
    ///
    /// # Panics
    /// When a frame is another arena's.
    #[inline]
    pub fn lend_packets<T>(
        &mut self,
        first: u32,
        beside: impl Iterator<Item = T>,
        packets: impl Iterator<Item = Packet>,
        mut each: impl FnMut(T, usize, usize),
    ) {
        let (base, mut furthest) = (self.arena.base(), 0);
        let slots = self.slots[first as usize & self.mask..].iter_mut();
        for ((beside, slot), packet) in beside.zip(slots).zip(packets) {
            let Ok(segment) = packet.into_single() else { break };
            let (start, len) = (segment.start(), segment.len());
            let frame = segment.into_frame();
            let offset = frame.address().wrapping_sub(base);
            // Looked at when all are done: a loop that can panic keeps its state in memory.
            furthest = offset.max(furthest);
            std::mem::forget(slot.replace(frame));
            each(beside, offset + start, len);
        }
        assert!(furthest < self.arena.bytes(), "a frame of another arena");
    }

    /// Puts `fresh` frames in the slots from `first`, which wraps, to the last one, and appends to `batch` what `make`
    /// makes of those that were lent there, each with its fresh one's offset in the arena: as many as there are of all, and
    /// of `beside`. An empty slot stays empty, and its fresh frame is taken for the old one.
    ///
    /// # Panics
    /// When a fresh frame is another arena's.
    #[inline]
    pub fn exchange<T>(
        &mut self,
        first: u32,
        fresh: impl Iterator<Item = Frame>,
        beside: impl Iterator<Item = T>,
        batch: &mut Batch,
        mut make: impl FnMut(Frame, usize, T) -> Packet,
    ) {
        let (base, mut furthest) = (self.arena.base(), 0);
        let slots = self.slots[first as usize & self.mask..].iter_mut();
        batch.extend(beside.zip(slots).zip(fresh).map(|((beside, slot), fresh)| {
            let offset = fresh.address().wrapping_sub(base);
            furthest = offset.max(furthest);
            let old = match slot {
                Some(lent) => std::mem::replace(lent, fresh),
                None => fresh,
            };
            make(old, offset, beside)
        }));
        assert!(furthest < self.arena.bytes(), "a frame of another arena");
    }

    /// Takes back the frames in the `count` slots from `first`, which wraps, or in those to the last slot when that is
    /// nearer. All of them must be lent.
    ///
    /// # Panics
    /// When one of them is not.
    #[inline]
    pub fn reclaim_run(&mut self, first: u32, count: usize) -> impl ExactSizeIterator<Item = Frame> {
        let slots = &mut self.slots[first as usize & self.mask..];
        let count = count.min(slots.len());
        // An iterator over a slice: what collects it knows how many there are, and looks for room once.
        slots[..count].iter_mut().map(|slot| slot.take().expect("a slot whose frame was not lent"))
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
        let mut pool = arena.pool(16).unwrap();
        let mut ledger = SlotLedger::new(arena, 8);
        let mut offsets = Vec::new();
        let packets: Vec<_> =
            pool.take_many(6).map(|frame| Packet::from_segment(Segment::received(frame, 9))).collect();
        let mut packets = packets.into_iter();
        ledger.lend_packets(13, 0.., packets.by_ref(), |beside, offset, len| {
            offsets.push((beside, offset, len))
        });
        assert_eq!(
            offsets.iter().map(|(beside, _, len)| (*beside, *len)).collect::<Vec<_>>(),
            [(0, 9), (1, 9), (2, 9)]
        );
        let run = ledger.reclaim_run(5, 6);
        assert_eq!(run.len(), 3);
        pool.give_many(run);
        packets.for_each(|packet| pool.give_packet(packet));
        assert_eq!(pool.free(), 16);
    }

    #[test]
    fn lent_frames_are_exchanged_for_fresh_ones() {
        let arena = arena();
        let mut pool = arena.pool(16).unwrap();
        let mut ledger = SlotLedger::new(arena, 4);
        let old: Vec<_> = (0..3).map(|slot| ledger.lend(slot, pool.take().unwrap())).collect();
        let fresh: Vec<_> = pool.take_many(3).collect();
        let mut batch = Batch::new();
        let mut offsets = Vec::new();
        // Slot 3 is empty, and the last one.
        ledger.exchange(5, fresh.into_iter(), 7.., &mut batch, |frame, offset, beside| {
            offsets.push(offset);
            Packet::from_segment(Segment::received(frame, beside))
        });
        let got: Vec<_> =
            batch.iter().map(|packet| (arena.offset(packet.head_segment().frame()), packet.len())).collect();
        assert_eq!(got, [(old[1], 7), (old[2], 8), (offsets[2], 9)]);
        pool.give_batch(&mut batch);
        for slot in 0..3 {
            pool.give(ledger.reclaim(slot).unwrap());
        }
        assert!(ledger.reclaim(3).is_none());
        assert_eq!(pool.free(), 16);
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
