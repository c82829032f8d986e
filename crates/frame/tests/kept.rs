//! Frames that their owner keeps while packets carry parts of them: nobody's bytes change under him, and each frame comes back once.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::HashSet;

use bywash_frame::{
    Arena, Checksum, FRAME_SIZE, Frame, HEADROOM, Kept, Ledger, NoPlace, NoRoom, Packet, Piece, Pool,
    ReclaimError, RingLedger, Segment,
};
use proptest::prelude::*;

#[derive(Clone, Copy, Debug)]
enum Step {
    /// With so many bytes in front.
    Keep(usize),
    Write(usize),
    /// Of which frames, and how much of what was written.
    Send {
        from: usize,
        parts: usize,
        start: usize,
        len: usize,
    },
    /// One of them as it is, with so many bytes of headers.
    SendWhole(usize, usize),
    /// The packet's own bytes.
    Edit(usize, u8),
    Truncate(usize, usize),
    Give(usize),
    GiveElsewhere(usize),
    Drop(usize),
    Lend(usize),
    LendInOrder(usize),
    Reclaim(usize),
    ReclaimInOrder(usize),
    LetGo(usize),
    Forget(usize),
}

fn step() -> impl Strategy<Value = Step> {
    let n = 0..1000_usize;
    prop_oneof![
        3 => prop_oneof![Just(0_usize), 1..900_usize].prop_map(Step::Keep),
        3 => (0..900_usize).prop_map(Step::Write),
        6 => (n.clone(), 1..5_usize, n.clone(), 1..900_usize)
            .prop_map(|(from, parts, start, len)| Step::Send { from, parts, start, len }),
        4 => (n.clone(), 0..400_usize).prop_map(|(which, headers)| Step::SendWhole(which, headers)),
        2 => (n.clone(), any::<u8>()).prop_map(|(which, byte)| Step::Edit(which, byte)),
        1 => (n.clone(), 0..3000_usize).prop_map(|(which, len)| Step::Truncate(which, len)),
        2 => n.clone().prop_map(Step::Give),
        1 => n.clone().prop_map(Step::GiveElsewhere),
        1 => n.clone().prop_map(Step::Drop),
        2 => n.clone().prop_map(Step::Lend),
        2 => n.clone().prop_map(Step::LendInOrder),
        2 => n.clone().prop_map(Step::Reclaim),
        2 => n.clone().prop_map(Step::ReclaimInOrder),
        2 => n.clone().prop_map(Step::LetGo),
        1 => n.prop_map(Step::Forget),
    ]
}

struct World {
    pool: Pool,
    other: Pool,
    /// With how much of each is written.
    kept: Vec<(Kept, usize)>,
    /// With what they say.
    packets: Vec<(Packet, Vec<u8>)>,
    ledger: Ledger,
    lent: Vec<usize>,
    ring: RingLedger,
    next: u8,
}

impl World {
    fn packet(&mut self, which: usize) -> Option<Packet> {
        let n = self.packets.len();
        (n > 0).then(|| self.packets.swap_remove(which % n).0)
    }

    fn kept(&mut self, which: usize) -> Option<Kept> {
        let n = self.kept.len();
        (n > 0).then(|| self.kept.swap_remove(which % n).0)
    }

    fn run(&mut self, step: Step) {
        match step {
            Step::Keep(front) => {
                self.kept.extend(self.pool.take().map(|frame| (Kept::behind(frame, front), 0)));
            }
            Step::Write(n) => {
                let Some((kept, written)) = self.kept.last_mut() else { return };
                let n = n.min(kept.bytes_mut(*written).len());
                for byte in &mut kept.bytes_mut(*written)[..n] {
                    self.next = self.next.wrapping_mul(5).wrapping_add(1);
                    *byte = self.next;
                }
                *written += n;
            }
            Step::Send { from, parts, start, len } => self.send(from, parts, start, len),
            Step::SendWhole(which, headers) => self.send_whole(which, headers),
            Step::Edit(which, byte) => {
                if self.packets.is_empty() {
                    return;
                }
                let n = which % self.packets.len();
                let (packet, bytes) = &mut self.packets[n];
                let own = packet.head_mut();
                own.fill(byte);
                bytes[..own.len()].fill(byte);
            }
            Step::Truncate(which, len) => {
                if self.packets.is_empty() {
                    return;
                }
                let n = which % self.packets.len();
                let (packet, bytes) = &mut self.packets[n];
                packet.truncate(len, &mut self.pool);
                bytes.truncate(len);
            }
            Step::Give(which) => self.packet(which).into_iter().for_each(|p| self.pool.give_packet(p)),
            Step::GiveElsewhere(which) => {
                self.packet(which).into_iter().for_each(|p| self.other.give_packet(p))
            }
            Step::Drop(which) => drop(self.packet(which)),
            Step::Lend(which) => {
                let Some(packet) = self.packet(which) else { return };
                let (ledger, lent) = (&mut self.ledger, &mut self.lent);
                packet.into_pieces(&mut self.pool, |piece, _| lent.push(ledger.lend_piece(piece)));
                assert_eq!(self.ledger.lent(), self.lent.len());
            }
            Step::LendInOrder(which) => {
                if self.ring.lent() + 8 > 64 {
                    return;
                }
                let Some(packet) = self.packet(which) else { return };
                packet.into_pieces(&mut self.pool, |piece, _| _ = self.ring.lend_piece(piece));
            }
            Step::Reclaim(which) => {
                if self.lent.is_empty() {
                    return;
                }
                let offset = self.lent.swap_remove(which % self.lent.len());
                self.ledger.give_back(offset, &mut self.other).unwrap();
            }
            Step::ReclaimInOrder(n) => self.ring.reclaim_many(n.min(self.ring.lent()), &mut self.pool),
            Step::LetGo(which) => self.kept(which).into_iter().for_each(|kept| self.pool.give_kept(kept)),
            Step::Forget(which) => drop(self.kept(which)),
        }
    }

    fn send_whole(&mut self, which: usize, headers: usize) {
        if self.kept.is_empty() {
            return;
        }
        let n = which % self.kept.len();
        let (kept, written) = &mut self.kept[n];
        let front = kept.front_mut();
        let (fresh, room) = (!front.is_empty(), front.len());
        front.fill(0x77);
        let Some(mut packet) = kept.packet(headers, *written) else {
            assert!(!fresh || headers > room);
            return;
        };
        assert!(headers <= room && kept.front_mut().is_empty() && kept.bytes_mut(*written).is_empty());
        assert!(kept.packet(0, 0).is_none(), "it is one packet");
        let bytes = [&vec![0x77; headers], &kept.bytes()[..*written]].concat();
        assert_eq!((packet.is_single(), packet.frames(), packet.head_mut().len()), (false, 1, headers));
        let longer = packet.len() + 1;
        assert_eq!((packet.extend_from_slice(b"x"), packet.set_len(longer)), (Err(NoRoom), Err(NoRoom)));
        packet.set_len(longer - 1).unwrap();
        assert_eq!(packet.extend_from_slice(b""), Err(NoRoom));
        self.packets.push((packet, bytes));
    }

    fn send(&mut self, from: usize, parts: usize, start: usize, len: usize) {
        let Some(frame) = self.pool.take() else { return };
        let mut packet = Packet::from_segment(Segment::new(frame, HEADROOM, 0).unwrap());
        packet.extend_from_slice(b"head").unwrap();
        let mut bytes = b"head".to_vec();
        for i in 0..parts.min(self.kept.len()) {
            let n = (from + i) % self.kept.len();
            let (kept, written) = &mut self.kept[n];
            let (start, end) = (start.min(*written), (start + len).min(*written));
            let part = kept.part(start, end - start).unwrap();
            bytes.extend_from_slice(part.bytes());
            let front = FRAME_SIZE - kept.bytes().len();
            assert_eq!((part.start(), part.len()), (front + start, end - start));
            packet.push_part(part, &mut self.pool).unwrap();
            // Nothing is ever written behind what is somebody else's.
            assert_eq!(packet.extend_from_slice(b"x"), Err(NoRoom));
            assert!(end == 0 || kept.bytes_mut(end - 1).is_empty());
        }
        self.packets.push((packet, bytes));
    }

    fn check(&self) {
        for (packet, bytes) in &self.packets {
            assert_eq!(packet.slices().collect::<Vec<_>>().concat(), *bytes);
            assert_eq!(packet.len(), bytes.len());
        }
    }
}

proptest! {
    #[test]
    fn what_a_packet_says_stays_and_each_frame_comes_back_once(steps in prop::collection::vec(step(), 1..150)) {
        let arena = Arena::new(vec![0; 64 * FRAME_SIZE]).unwrap();
        let (pool, other) = (arena.pool(48).unwrap(), arena.pool(0).unwrap());
        let (ledger, ring) = (Ledger::new(arena), RingLedger::new(arena, 64));
        let mut world = World {
            pool, other, ledger, ring, kept: Vec::new(), packets: Vec::new(), lent: Vec::new(), next: 0,
        };
        for step in steps {
            world.run(step);
            world.check();
        }
        let World { mut pool, mut other, kept, packets, ledger, ring, .. } = world;
        kept.into_iter().for_each(|(kept, _)| pool.give_kept(kept));
        ring.recover(&mut other);
        packets.into_iter().for_each(|(packet, _)| pool.give_packet(packet));
        ledger.recover(&mut pool);
        let (free, spare) = (pool.free() + other.free(), arena.unused());
        let frames: Vec<_> =
            std::iter::from_fn(|| pool.take()).chain(std::iter::from_fn(|| other.take())).collect();
        let addresses: HashSet<_> = frames.iter().map(Frame::address).collect();
        prop_assert_eq!((free + spare, addresses.len()), (64, 64));
    }
}

#[test]
fn a_frame_is_free_when_its_owner_and_the_last_part_are_gone() {
    let arena = Arena::new(vec![0; 2 * FRAME_SIZE]).unwrap();
    let mut pool = arena.pool(2).unwrap();
    for parts_first in [false, true] {
        let mut kept = Kept::new(pool.take().unwrap());
        let parts = [kept.part(0, 20).unwrap(), kept.part(5, 5).unwrap()];
        assert_eq!((kept.bytes_mut(19).len(), kept.bytes_mut(20).len()), (0, FRAME_SIZE - 20));
        if parts_first {
            parts.into_iter().for_each(|part| pool.give_part(part));
            assert_eq!(pool.free(), 1);
            pool.give_kept(kept);
        } else {
            pool.give_kept(kept);
            let [first, second] = parts;
            pool.give_part(first);
            assert_eq!(pool.free(), 1);
            pool.give_part(second);
        }
        assert_eq!(pool.free(), 2);
    }
    let mut kept = Kept::new(pool.take().unwrap());
    assert!(kept.part(FRAME_SIZE, 1).is_none() && kept.part(usize::MAX, 2).is_none());
    assert_eq!(kept.bytes_mut(FRAME_SIZE - 3).len(), 3);
    assert!(kept.bytes_mut(FRAME_SIZE + 1).is_empty());
    pool.give_kept(kept);
    assert_eq!((pool.free(), arena.orphaned()), (2, 0));
}

#[test]
fn parts_end_on_other_cores() {
    // The reader's pool keeps some hundreds.
    let arena = Arena::new(vec![0; 2000 * FRAME_SIZE]).unwrap();
    let mut pool = arena.pool(0).unwrap();
    let (sender, receiver) = std::sync::mpsc::sync_channel::<Packet>(4);
    let rounds = if cfg!(miri) { 20 } else { 20_000_u32 };
    let reader = std::thread::spawn(move || {
        let mut pool = arena.pool(0).unwrap();
        for mut packet in receiver {
            let bytes =
                if packet.frames() == 1 { &packet.head()[40..] } else { packet.slices().nth(1).unwrap() };
            assert!(bytes.len() == 100 && bytes.iter().all(|byte| *byte == bytes[0]));
            packet.head_mut().fill(0xee);
            pool.give_packet(packet);
        }
    });
    for round in 0..rounds {
        let mut kept = Kept::behind(pool.take().unwrap(), 300);
        let byte = round.to_le_bytes()[0];
        kept.bytes_mut(0)[..100].fill(byte);
        if round % 2 == 0 {
            sender.send(kept.packet(40, 100).unwrap()).unwrap();
            // The owner goes on reading while the headers are changed.
            assert!(kept.bytes()[..100].iter().all(|there| *there == byte));
        } else {
            let mut packet = Packet::new(pool.take().unwrap());
            packet.push_part(kept.part(0, 100).unwrap(), &mut pool).unwrap();
            sender.send(packet).unwrap();
            // The owner goes on writing where nobody reads.
            kept.bytes_mut(100).fill(0xff);
        }
        pool.give_kept(kept);
    }
    drop(sender);
    reader.join().unwrap();
    drop(pool);
    assert_eq!((arena.unused(), arena.orphaned()), (arena.frames(), 0));
}

/// A checksum is only written to the packet's own bytes.
#[test]
fn no_checksum_is_written_to_what_somebody_else_keeps() {
    let arena = Arena::new(vec![0; 4 * FRAME_SIZE]).unwrap();
    let mut pool = arena.pool(4).unwrap();
    let mut kept = Kept::new(pool.take().unwrap());
    kept.bytes_mut(0)[..40].fill(1);
    let mut packet = Packet::new(pool.take().unwrap());
    packet.extend_from_slice(&[2; 20]).unwrap();
    packet.push_part(kept.part(0, 40).unwrap(), &mut pool).unwrap();
    packet.offload.set_checksum(Checksum::Partial { start: 0, offset: 19 });
    assert_eq!(packet.complete_checksum(), Err(NoPlace));
    packet.offload.set_checksum(Checksum::Partial { start: 0, offset: 16 });
    packet.complete_checksum().unwrap();
    assert_eq!(kept.bytes()[..40], [1; 40]);
    // What is appended goes to a frame of its own.
    packet.append(&[3; 5], &mut pool).unwrap();
    assert_eq!((packet.len(), packet.frames()), (65, 3));
    pool.give_packet(packet);
    pool.give_kept(kept);
    assert_eq!(pool.free(), 4);
}

#[test]
fn a_part_that_was_not_lent_does_not_come_back() {
    let arena = Arena::new(vec![0; 2 * FRAME_SIZE]).unwrap();
    let mut pool = arena.pool(2).unwrap();
    let (mut kept, mut ledger) = (Kept::new(pool.take().unwrap()), Ledger::new(arena));
    let mut packet = Packet::new(pool.take().unwrap());
    packet.push_part(kept.part(7, 9).unwrap(), &mut pool).unwrap();
    let mut offsets = Vec::new();
    packet.into_pieces(&mut pool, |piece, _| offsets.push(ledger.lend_piece(piece)));
    for offset in &offsets {
        ledger.give_back(*offset, &mut pool).unwrap();
        assert_eq!(ledger.give_back(*offset, &mut pool), Err(ReclaimError::NotLent));
    }
    assert_eq!(ledger.give_back(arena.bytes(), &mut pool), Err(ReclaimError::Outside));
    pool.give_kept(kept);
    assert_eq!((ledger.lent(), pool.free()), (0, 2));
}

#[test]
#[should_panic(expected = "parts of frames are lent")]
fn a_part_is_nobodys_frame() {
    let arena = Arena::new(vec![0; 2 * FRAME_SIZE]).unwrap();
    let mut pool = arena.pool(2).unwrap();
    let (mut kept, mut ring) = (Kept::new(pool.take().unwrap()), RingLedger::new(arena, 4));
    let mut packet = Packet::new(pool.take().unwrap());
    packet.push_part(kept.part(7, 9).unwrap(), &mut pool).unwrap();
    packet.into_pieces(&mut pool, |piece, _| _ = ring.lend_piece(piece));
    ring.reclaim();
}

#[test]
fn a_part_that_finds_no_place_ends_and_gives_no_frame_two_owners() {
    let (arena, other) =
        (Arena::new(vec![0; 2 * FRAME_SIZE]).unwrap(), Arena::new(vec![0; FRAME_SIZE]).unwrap());
    let (mut pool, mut others) = (arena.pool(2).unwrap(), other.pool(1).unwrap());
    let mut full = RingLedger::new(arena, 1);
    full.lend(pool.take().unwrap());
    for (ring, pool) in [(&mut full, &mut pool), (&mut RingLedger::new(arena, 4), &mut others)] {
        let mut kept = Kept::new(pool.take().unwrap());
        let part = kept.part(7, 9).unwrap();
        let lend = std::panic::AssertUnwindSafe(|| ring.lend_piece(Piece::Part(part)));
        assert!(std::panic::catch_unwind(lend).is_err());
        pool.give_kept(kept);
    }
    full.recover(&mut pool);
    assert_eq!((pool.free(), others.free()), (2, 1));
    assert_eq!((arena.orphaned(), other.orphaned()), (0, 0));
}
