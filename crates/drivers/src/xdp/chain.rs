//! From descriptors to packets: a packet of several frames comes as several descriptors, and the kernel may stop in the
//! middle of one.

use bywash_frame::{Ledger, Packet, Pool, Segment};
use bywash_sys::xsk::Descriptor;

/// What a descriptor has completed.
#[derive(Debug)]
pub(super) enum Step {
    /// A packet.
    Whole(Packet),
    /// Nothing yet.
    More,
    /// A packet that could not be taken: what the kernel named were not frames of ours, or too many. Those that were
    /// are free again.
    Bad,
}

/// The packet that is coming in, and the frames that are lent for it and its successors.
pub(super) struct Assembly {
    pub(super) ledger: Ledger,
    partial: Option<Packet>,
    /// The rest of a packet that can't be taken is passed over.
    discarding: bool,
}

impl Assembly {
    pub(super) fn new(ledger: Ledger) -> Self {
        Self { ledger, partial: None, discarding: false }
    }

    /// One descriptor.
    #[inline]
    pub(super) fn take(&mut self, descriptor: Descriptor, pool: &mut Pool) -> Step {
        let segment = self.segment(descriptor, pool);
        if self.partial.is_none() && !self.discarding && !descriptor.continues() {
            return segment.map_or(Step::Bad, |segment| Step::Whole(Packet::from_segment(segment)));
        }
        self.chain(segment, descriptor.continues(), pool)
    }

    /// Gives up the packet that has not come to its end.
    pub(super) fn finish(mut self, pool: &mut Pool) -> Ledger {
        if let Some(packet) = self.partial.take() {
            pool.give_packet(packet);
        }
        self.ledger
    }

    /// The bytes a descriptor names; `None` when they are not those of a frame we lent.
    #[inline]
    fn segment(&mut self, descriptor: Descriptor, pool: &mut Pool) -> Option<Segment> {
        let offset = usize::try_from(descriptor.offset()).ok()?;
        let (frame, start) = self.ledger.reclaim(offset).ok()?;
        match Segment::new(frame, start, descriptor.len as usize) {
            Ok(segment) if descriptor.len > 0 => Some(segment),
            Ok(segment) => {
                pool.give(segment.into_frame());
                None
            }
            Err(frame) => {
                pool.give(frame);
                None
            }
        }
    }

    /// A descriptor of a packet of several.
    #[cold]
    fn chain(&mut self, segment: Option<Segment>, continues: bool, pool: &mut Pool) -> Step {
        let partial = self.partial.take();
        let refused = match (segment, partial) {
            (Some(segment), None) if !self.discarding => {
                self.partial = Some(Packet::from_segment(segment));
                None
            }
            (Some(segment), Some(mut packet)) => match packet.push_segment(segment, pool) {
                Ok(()) => {
                    self.partial = Some(packet);
                    None
                }
                Err(segment) => Some((Some(segment), Some(packet))),
            },
            refused => Some(refused),
        };
        if let Some((segment, packet)) = refused {
            segment.into_iter().for_each(|segment| pool.give(segment.into_frame()));
            packet.into_iter().for_each(|packet| pool.give_packet(packet));
            self.discarding = true;
        }
        if continues {
            return Step::More;
        }
        self.discarding = false;
        self.partial.take().map_or(Step::Bad, Step::Whole)
    }
}

#[cfg(test)]
mod tests {
    use bywash_frame::{Arena, FRAME_SIZE, HEADROOM, MAX_FRAMES};

    use super::*;

    /// An assembly with `lent` frames, their offsets, and the pool they came from, empty.
    fn assembly(lent: usize) -> (Assembly, Vec<usize>, Pool) {
        let arena = Arena::new(vec![0_u8; lent * FRAME_SIZE]).unwrap();
        let mut pool = arena.pool(lent).unwrap();
        let mut ledger = Ledger::new(arena);
        let offsets = (0..lent).map(|_| ledger.lend(pool.take().unwrap())).collect();
        (Assembly::new(ledger), offsets, pool)
    }

    fn descriptor(offset: usize, len: u32, continues: bool) -> Descriptor {
        let options = if continues { Descriptor::CONTINUES } else { 0 };
        // As the kernel writes it for unaligned chunks.
        Descriptor { address: offset as u64 | (HEADROOM as u64) << 48, len, options }
    }

    #[test]
    fn one_descriptor_is_a_packet() {
        let (mut assembly, offsets, mut pool) = assembly(1);
        let Step::Whole(packet) = assembly.take(descriptor(offsets[0], 60, false), &mut pool) else {
            panic!()
        };
        assert_eq!((packet.len(), packet.frames(), packet.head_segment().start()), (60, 1, HEADROOM));
        assert_eq!(assembly.ledger.lent(), 0);
        pool.give_packet(packet);
    }

    #[test]
    fn a_packet_may_come_in_pieces_with_a_pause_between_them() {
        let (mut assembly, offsets, mut pool) = assembly(3);
        assert!(matches!(assembly.take(descriptor(offsets[0], 2048, true), &mut pool), Step::More));
        assert!(matches!(assembly.take(descriptor(offsets[1], 2048, true), &mut pool), Step::More));
        let Step::Whole(packet) = assembly.take(descriptor(offsets[2], 7, false), &mut pool) else {
            panic!()
        };
        assert_eq!((packet.len(), packet.frames()), (4103, 3));
        pool.give_packet(packet);
        assert_eq!(pool.free(), 3);
    }

    #[test]
    fn what_was_never_lent_spoils_its_packet_only() {
        let (mut assembly, offsets, mut pool) = assembly(4);
        assert!(matches!(assembly.take(descriptor(offsets[0], 100, true), &mut pool), Step::More));
        assert!(
            matches!(assembly.take(descriptor(offsets[0], 100, true), &mut pool), Step::More),
            "named twice"
        );
        assert_eq!(pool.free(), 1, "what had come of it is free");
        assert!(matches!(assembly.take(descriptor(offsets[1], 100, false), &mut pool), Step::Bad));
        assert_eq!(pool.free(), 2);
        assert!(matches!(assembly.take(descriptor(1 << 40, 100, false), &mut pool), Step::Bad));
        assert!(matches!(assembly.take(descriptor(offsets[2], 0, false), &mut pool), Step::Bad), "empty");
        assert!(
            matches!(assembly.take(descriptor(offsets[3], 2049, false), &mut pool), Step::Bad),
            "past its end"
        );
        assert_eq!((pool.free(), assembly.ledger.lent()), (4, 0));
    }

    #[test]
    fn a_chain_without_end_is_dropped_and_the_next_packet_taken() {
        let (mut assembly, offsets, mut pool) = assembly(MAX_FRAMES + 3);
        for &offset in &offsets[..MAX_FRAMES + 1] {
            assert!(matches!(assembly.take(descriptor(offset, 9, true), &mut pool), Step::More));
        }
        assert!(matches!(assembly.take(descriptor(offsets[MAX_FRAMES + 1], 9, false), &mut pool), Step::Bad));
        assert_eq!(pool.free(), MAX_FRAMES + 2);
        assert!(matches!(
            assembly.take(descriptor(offsets[MAX_FRAMES + 2], 9, false), &mut pool),
            Step::Whole(packet) if packet.len() == 9
        ));
    }

    #[test]
    fn half_a_packet_is_given_up_at_the_end() {
        let (mut assembly, offsets, mut pool) = assembly(2);
        assert!(matches!(assembly.take(descriptor(offsets[0], 9, true), &mut pool), Step::More));
        let ledger = assembly.finish(&mut pool);
        assert_eq!((pool.free(), ledger.lent()), (1, 1));
    }
}
