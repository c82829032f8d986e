//! Whatever is done with frames, each has exactly one owner, none is lost, and nobody else writes to its bytes.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::HashSet;

use bywash_frame::{
    Arena, BATCH, Batch, FRAME_DATA, FRAME_SIZE, Frame, HEADROOM, Ledger, MAX_FRAMES, Packet, Pool,
    ReclaimError, Segment, Stride,
};
use proptest::prelude::*;

/// What a user of packet memory can do.
#[derive(Clone, Debug)]
enum Step {
    Take,
    TakeMany(usize),
    Give(usize),
    GiveElsewhere(usize),
    Drop(usize),
    Lend(usize),
    Reclaim(usize),
    ReclaimTwice(usize),
    /// Makes held frames into one packet, and gives that to the pool, or drops it.
    Chain {
        frames: usize,
        dropped: bool,
    },
    /// Moves held frames through a batch as packets; some are left in it.
    Batch {
        frames: usize,
        front: usize,
    },
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => Just(Step::Take),
        1 => (0..300usize).prop_map(Step::TakeMany),
        2 => any::<usize>().prop_map(Step::Give),
        1 => any::<usize>().prop_map(Step::GiveElsewhere),
        1 => any::<usize>().prop_map(Step::Drop),
        2 => any::<usize>().prop_map(Step::Lend),
        2 => any::<usize>().prop_map(Step::Reclaim),
        1 => any::<usize>().prop_map(Step::ReclaimTwice),
        1 => (1..40usize, any::<bool>()).prop_map(|(frames, dropped)| Step::Chain { frames, dropped }),
        1 => (0..BATCH, 0..BATCH).prop_map(|(frames, front)| Step::Batch { frames, front }),
    ]
}

/// The frames in hand, each marked all over with a number of its own.
struct Hand {
    frames: Vec<(Frame, u8)>,
    mark: u8,
}

impl Hand {
    fn add(&mut self, mut frame: Frame) {
        self.mark = self.mark.wrapping_add(1);
        frame.bytes_mut().fill(self.mark);
        self.frames.push((frame, self.mark));
    }

    fn remove(&mut self, which: usize) -> Option<(Frame, u8)> {
        (!self.frames.is_empty()).then(|| self.frames.swap_remove(which % self.frames.len()))
    }

    fn take(&mut self, n: usize) -> Vec<Frame> {
        let keep = self.frames.len().saturating_sub(n);
        self.frames.drain(keep..).map(|(frame, _)| frame).collect()
    }
}

struct World {
    arena: &'static Arena,
    pool: Pool,
    other: Pool,
    hand: Hand,
    ledger: Ledger,
    lent: Vec<(usize, u8)>,
}

impl World {
    fn run(&mut self, step: Step) {
        match step {
            Step::Take => {
                if let Some(frame) = self.pool.take() {
                    self.hand.add(frame);
                }
            }
            Step::TakeMany(n) => {
                let frames: Vec<_> = self.pool.take_many(n).collect();
                assert!(frames.len() <= n);
                frames.into_iter().for_each(|frame| self.hand.add(frame));
            }
            Step::Give(which) => {
                self.hand.remove(which).into_iter().for_each(|(frame, _)| self.pool.give(frame))
            }
            Step::GiveElsewhere(which) => {
                self.hand.remove(which).into_iter().for_each(|(frame, _)| self.other.give(frame));
            }
            Step::Drop(which) => {
                let before = self.arena.orphaned();
                let dropped = self.hand.remove(which).is_some();
                assert_eq!(self.arena.orphaned() - before, u64::from(dropped));
            }
            Step::Lend(which) => {
                if let Some((frame, mark)) = self.hand.remove(which) {
                    self.lent.push((self.ledger.lend(frame), mark));
                }
            }
            Step::Reclaim(which) => self.reclaim(which, 1),
            Step::ReclaimTwice(which) => self.reclaim(which, 2),
            Step::Chain { frames, dropped } => self.chain(frames, dropped),
            Step::Batch { frames, front } => self.batch(frames, front),
        }
    }

    /// Reclaims by any byte of the frame, as a NIC names them.
    fn reclaim(&mut self, which: usize, times: usize) {
        if self.lent.is_empty() {
            return;
        }
        let (offset, mark) = self.lent.swap_remove(which % self.lent.len());
        let within = which % FRAME_SIZE;
        let (frame, start) = self.ledger.reclaim(offset + within).unwrap();
        assert_eq!((start, self.arena.offset(&frame)), (within, offset));
        self.hand.frames.push((frame, mark));
        for _ in 1..times {
            assert_eq!(self.ledger.reclaim(offset).unwrap_err(), ReclaimError::NotLent);
        }
    }

    fn chain(&mut self, frames: usize, dropped: bool) {
        let mut frames = self.hand.take(frames).into_iter();
        let Some(first) = frames.next() else { return };
        let mut packet = Packet::from_segment(Segment::new(first, HEADROOM, 100).unwrap());
        let mut expected = 1;
        for frame in frames {
            let pushed = packet.push_segment(Segment::new(frame, 7, 11).unwrap(), &mut self.pool);
            assert_eq!(pushed.is_ok(), expected < MAX_FRAMES);
            match pushed {
                Ok(()) => expected += 1,
                Err(segment) => self.pool.give(segment.into_frame()),
            }
        }
        assert_eq!((packet.frames(), packet.len()), (expected, 100 + 11 * (expected - 1)));
        assert_eq!(packet.slices().map(<[u8]>::len).sum::<usize>(), packet.len());
        if dropped {
            drop(packet);
        } else {
            self.pool.give_packet(packet);
        }
    }

    fn batch(&mut self, frames: usize, front: usize) {
        let mut batch = Batch::new();
        let frames = self.hand.take(frames);
        let addresses: Vec<_> = frames.iter().map(Frame::address).collect();
        frames.into_iter().for_each(|frame| batch.push(Packet::new(frame)));
        let drained: Vec<_> = batch.drain_front(front).collect();
        let order: Vec<_> =
            drained.iter().chain(&batch).map(|p| p.head_segment().frame().address()).collect();
        assert_eq!(order, addresses);
        drained.into_iter().for_each(|packet| self.pool.give_packet(packet));
        self.pool.give_batch(&mut batch);
        assert!(batch.is_empty());
    }

    fn check(&self) {
        let lent = self.ledger.lent();
        assert_eq!(lent, self.lent.len());
        let owned =
            self.arena.unused() + self.pool.free() + self.other.free() + self.hand.frames.len() + lent;
        assert_eq!(owned, self.arena.frames());
        let addresses: HashSet<_> = self.hand.frames.iter().map(|(frame, _)| frame.address()).collect();
        assert_eq!(addresses.len(), self.hand.frames.len());
        for (frame, mark) in &self.hand.frames {
            assert!(frame.bytes().iter().all(|byte| byte == mark), "somebody else wrote to a frame in hand");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]
    #[test]
    fn every_frame_has_one_owner(steps in prop::collection::vec(step(), 1..200), stride in prop_oneof![Just(Stride::Packed), Just(Stride::Aligned)]) {
        let arena = Arena::with_stride(vec![0; 700 * stride.bytes()], stride).unwrap();
        let (pool, other) = (arena.pool(200).unwrap(), arena.pool(8).unwrap());
        let hand = Hand { frames: Vec::new(), mark: 0 };
        let mut world = World { arena, pool, other, hand, ledger: Ledger::new(arena), lent: Vec::new() };
        for step in steps {
            world.run(step);
        }
        world.check();
        let World { mut pool, other, mut hand, ledger, .. } = world;
        ledger.recover(&mut pool);
        hand.take(usize::MAX).into_iter().for_each(|frame| pool.give(frame));
        drop((pool, other));
        prop_assert_eq!(arena.unused(), arena.frames());
    }
}

#[test]
fn no_frame_lies_across_a_page_and_none_overlaps_another() {
    for stride in [Stride::Packed, Stride::Aligned] {
        let frames = stride.frames_per_page() + 3;
        assert_eq!(stride.name(), stride.bytes().to_string());
        let arena = Arena::with_stride(vec![0; stride.memory_for(frames)], stride).unwrap();
        assert_eq!(arena.frames(), 2 * stride.frames_per_page());
        let mut pool = arena.pool(arena.frames()).unwrap();
        let all: Vec<_> = std::iter::from_fn(|| pool.take()).collect();
        let mut offsets: Vec<_> = all.iter().map(|frame| arena.offset(frame)).collect();
        offsets.sort_unstable();
        assert!(offsets.windows(2).all(|pair| pair[1] - pair[0] >= FRAME_SIZE));
        let page = bywash_frame::PAGE;
        assert!(offsets.iter().all(|offset| offset / page == (offset + FRAME_SIZE - 1) / page));
    }
}

#[test]
fn an_arena_uses_the_odd_end_of_its_memory() {
    assert!(Arena::new(vec![0; FRAME_SIZE - 1]).is_err());
    assert_eq!(Arena::new(vec![0; FRAME_SIZE]).unwrap().frames(), 1);
    assert_eq!(Arena::new(vec![0; 3 * FRAME_SIZE - 1]).unwrap().frames(), 2);
    let aligned = |bytes| Arena::with_stride(vec![0; bytes], Stride::Aligned).unwrap().frames();
    assert_eq!((aligned(4096 + FRAME_SIZE - 1), aligned(4096 + FRAME_SIZE)), (1, 2));
    let page = bywash_frame::PAGE;
    assert_eq!(Arena::new(vec![0; page + FRAME_SIZE]).unwrap().frames(), 911);
}

#[test]
fn what_was_not_lent_is_no_frame() {
    let arena = Arena::new(vec![0; bywash_frame::PAGE + 10 * FRAME_SIZE]).unwrap();
    let mut pool = arena.pool(arena.frames()).unwrap();
    let mut ledger = Ledger::new(arena);
    let last_of_page = 910 * FRAME_SIZE;
    assert_eq!(ledger.reclaim(0).unwrap_err(), ReclaimError::NotLent);
    assert_eq!(ledger.reclaim(last_of_page).unwrap_err(), ReclaimError::Outside);
    assert_eq!(ledger.reclaim(arena.bytes()).unwrap_err(), ReclaimError::Outside);
    assert_eq!(ledger.reclaim(usize::MAX).unwrap_err(), ReclaimError::Outside);
    let offset = ledger.lend(pool.take().unwrap());
    assert!(ledger.reclaim(offset + FRAME_SIZE - 1).is_ok());
}

#[test]
#[should_panic(expected = "another arena")]
fn a_frame_is_not_lent_from_another_arena() {
    let arena = || Arena::new(vec![0; 4 * FRAME_SIZE]).unwrap();
    let mut pool = arena().pool(1).unwrap();
    Ledger::new(arena()).lend(pool.take().unwrap());
}

#[test]
fn an_abandoned_ledger_keeps_its_frames_from_everyone() {
    let arena = Arena::new(vec![0; 4 * FRAME_SIZE]).unwrap();
    let mut pool = arena.pool(4).unwrap();
    let mut ledger = Ledger::new(arena);
    ledger.lend(pool.take().unwrap());
    ledger.abandon();
    drop(pool);
    assert_eq!((arena.unused(), arena.orphaned()), (3, 0));
}

#[test]
fn a_dry_pool_finds_what_others_dropped_or_had_too_many_of() {
    let arena = Arena::new(vec![0; 2000 * FRAME_SIZE]).unwrap();
    let mut receiver = arena.pool(16).unwrap();
    let mut sender = arena.pool(arena.frames() - 16).unwrap();
    assert_eq!(arena.pool(1).unwrap_err().to_string().split(',').next().unwrap(), "1 frames wanted");
    // Ten times more packets than there are frames: they only go one way, and must come home by themselves.
    for _ in 0..20_000 {
        receiver.give(sender.take().expect("frames that went to the other worker come back"));
    }
    let mut dry = arena.pool(0).unwrap();
    while sender.take().map(drop).is_some() && dry.take().map(|frame| dry.give(frame)).is_none() {}
    assert!(dry.free() > 0 && arena.orphaned() > 0);
}

#[test]
fn bytes_go_in_front_and_behind_as_far_as_the_frame_goes() {
    let arena = Arena::new(vec![0; 4 * FRAME_SIZE]).unwrap();
    let mut pool = arena.pool(4).unwrap();
    let mut packet = Packet::new(pool.take().unwrap());
    packet.extend_from_slice(&[1; FRAME_DATA]).unwrap();
    assert!(packet.extend_from_slice(&[1]).is_err() && packet.len() == FRAME_DATA);
    packet.push_front(HEADROOM).unwrap()[..HEADROOM].fill(2);
    assert!(packet.push_front(1).is_err() && packet.len() == FRAME_SIZE);
    packet.pull_front(HEADROOM - 1).unwrap();
    assert_eq!(packet.head()[..2], [2, 1]);
    assert!(packet.pull_front(FRAME_DATA + 2).is_err());
    assert!(packet.set_len(FRAME_DATA + 2).is_err() && packet.len() == FRAME_DATA + 1);

    let mut second = Packet::new(pool.take().unwrap());
    second.extend_from_slice(b"head").unwrap();
    second.push_segment(Segment::new(pool.take().unwrap(), 0, 0).unwrap(), &mut pool).unwrap();
    second.extend_from_slice(b" and tail").unwrap();
    let mut copy = [0; 64];
    let n = second.copy_to(&mut copy);
    assert_eq!((&copy[..n], second.len(), second.head()), (&b"head and tail"[..], 13, &b"head"[..]));
    assert_eq!(second.copy_to(&mut copy[..6]), 6);
    assert!(second.set_len(1).is_err());
    assert!(Segment::new(pool.take().unwrap(), FRAME_SIZE, 1).is_err());
}

#[test]
fn batches_exchange_their_packets_within_their_limits() {
    let arena = Arena::new(vec![0; 16 * FRAME_SIZE]).unwrap();
    let mut pool = arena.pool(16).unwrap();
    let filled = |n: usize, limit: usize, pool: &mut Pool| {
        let mut batch = Batch::with_limit(limit);
        batch.extend(pool.take_many(n).map(Packet::new));
        batch
    };
    let (mut few, mut many) = (filled(2, 4, &mut pool), filled(5, 8, &mut pool));
    assert!(!few.exchange(&mut many) && !many.exchange(&mut few));
    assert_eq!((few.len(), many.len()), (2, 5));
    many.drain_front(1).for_each(|packet| pool.give_packet(packet));
    assert!(few.exchange(&mut many));
    assert_eq!((few.len(), few.room(), many.len(), many.room()), (4, 0, 2, 6));
    pool.give_batch(&mut few);
    pool.give_batch(&mut many);
    assert_eq!(pool.free(), 16);
}

#[test]
fn what_is_not_kept_leaves_the_batch_in_order() {
    let arena = Arena::new(vec![0; 8 * FRAME_SIZE]).unwrap();
    let mut pool = arena.pool(8).unwrap();
    let mut batch = Batch::new();
    for n in 0..8u8 {
        let mut packet = Packet::new(pool.take().unwrap());
        packet.extend_from_slice(&[n]).unwrap();
        batch.push(packet);
    }
    let mut removed = Vec::new();
    batch.retain(|packet| packet.head()[0] % 3 != 0, |packet| removed.push(packet.head()[0]));
    assert_eq!(removed, [0, 3, 6]);
    assert_eq!(batch.iter().map(|p| p.head()[0]).collect::<Vec<_>>(), [1, 2, 4, 5, 7]);
    assert_eq!(batch.bytes(), 5);
    assert_eq!(batch.drain_single().map(|segments| segments.len()), Some(5));
}

/// A packet of some bytes.
fn packet(pool: &mut Pool, bytes: &[u8]) -> Packet {
    let mut packet = Packet::new(pool.take().unwrap());
    packet.extend_from_slice(bytes).unwrap();
    packet
}

#[test]
fn packets_are_put_in_their_places_and_taken_out_one_by_one() {
    let mut pool = Arena::new(vec![0; 1 << 20]).unwrap().pool(100).unwrap();
    let mut batch = Batch::with_limit(3);
    for n in 0..3 {
        let packet = packet(&mut pool, &[n]);
        batch.place().unwrap().put(packet);
    }
    assert!(batch.place().is_none(), "it is full");
    let mut seen = Vec::new();
    batch.take_each(|packet, others| {
        seen.push((packet.head()[0], others.iter().map(|other| other.head()[0]).collect::<Vec<_>>()));
        pool.give_packet(packet);
    });
    assert_eq!(seen, [(0, vec![1, 2]), (1, vec![2]), (2, vec![])]);
    assert_eq!((batch.len(), batch.room(), pool.free()), (0, 3, 100));
    batch.take_each(|_, _| unreachable!("it is empty"));
}

#[test]
fn a_panic_while_packets_are_taken_out_frees_none_of_them_twice() {
    let arena = Arena::new(vec![0; 1 << 20]).unwrap();
    let mut pool = arena.pool(10).unwrap();
    let mut batch = Batch::new();
    for n in 0..3 {
        let packet = packet(&mut pool, &[n]);
        batch.push(packet);
    }
    let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        batch.take_each(|packet, _| assert_eq!(packet.head()[0], 0, "the second one"));
    }));
    assert!(caught.is_err() && batch.is_empty());
    // The first was dropped by the closure, the second by the panic; the third is lost.
    assert_eq!((arena.orphaned(), pool.free()), (2, 7));
}

#[test]
fn a_packet_takes_another_ones_frame_without_its_front() {
    let mut pool = Arena::new(vec![0; 1 << 20]).unwrap().pool(100).unwrap();
    let mut whole = packet(&mut pool, b"head");
    for part in [&b"..one"[..], b"..two", b".."] {
        let part = packet(&mut pool, part);
        whole.append_rest(part, 2, &mut pool).unwrap();
    }
    let bytes: Vec<u8> = whole.slices().flatten().copied().collect();
    assert_eq!((bytes.as_slice(), whole.len(), whole.frames()), (&b"headonetwo"[..], 10, 4));
    let short = packet(&mut pool, b".");
    let short = whole.append_rest(short, 2, &mut pool).unwrap_err();
    assert_eq!(short.head(), b".", "it comes back as it was");
    let twice = short.into_single().map(Packet::from_segment).unwrap();
    let long = std::mem::replace(&mut whole, twice);
    let long = whole.append_rest(long, 0, &mut pool).unwrap_err();
    assert_eq!((long.len(), whole.len()), (10, 1), "of several frames");
    pool.give_packet(long);
    for _ in 1..MAX_FRAMES {
        let one = packet(&mut pool, b"x");
        whole.append_rest(one, 0, &mut pool).unwrap();
    }
    let last = packet(&mut pool, b"x");
    let last = whole.append_rest(last, 0, &mut pool).unwrap_err();
    pool.give_packet(last);
    pool.give_packet(whole);
    assert_eq!(pool.free(), 100);
}
