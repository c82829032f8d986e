//! Rings whose descriptors say anything at any time: whatever a device writes there, nothing panics and no frame is lost. All
//! families have these rings, with and without a context for each packet.

use std::cell::RefCell;

use bywash_frame::{Arena, Batch, Checksum, FRAME_DATA, Kept, MAX_FRAMES, Packet, Pool, Segment, Stride};
use bywash_hw::ixgbe::desc::rx;
use bywash_port::{RxQueue, TxQueue};
use bywash_sys::dma::{Descriptors, DmaBuffer};
use bywash_sys::function::{DeviceAddresses, Registers};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use super::{Bar, REST, RingParts, RxBits, RxParts, RxRing, Switch, TxParts, TxRing};

const RING: u32 = 64;
const FRAMES: usize = 512;

/// Registers that are all 0: a queue that is switched off is off.
#[derive(Clone, Copy, Debug)]
struct Zero;

impl Registers for Zero {
    fn read32(&self, _: u32) -> u32 {
        0
    }

    fn write32(&self, _: u32, _: u32) {}
}

/// A ring, and its descriptors as the device has them.
fn ring(arena: &'static Arena) -> (RingParts<Zero>, Descriptors) {
    let buffer = DmaBuffer::new(RING as usize * 16).unwrap();
    let [descriptors, of_device] = [0, 1].map(|_| buffer.descriptors(0, RING).unwrap());
    let switch = Switch { offset: 0, name: ("none", 0), enable: 1, rest: REST };
    let addresses = DeviceAddresses::Linear(0);
    (RingParts { bar: Bar::new(Zero), descriptors, tail: 0, switch, arena, addresses }, of_device)
}

/// At least [`FRAMES`], all in one pool.
fn memory() -> (&'static Arena, Pool) {
    let arena = Arena::new(vec![0; Stride::Packed.memory_for(FRAMES)]).unwrap();
    (arena, arena.pool(arena.frames()).unwrap())
}

/// What a device writes back: often what makes some sense.
fn second() -> impl Strategy<Value = u64> {
    let length = prop_oneof![0..=u16::MAX, 1..=2048_u16, Just(2048), Just(2049), Just(0)];
    let done =
        (any::<u32>(), any::<bool>(), any::<bool>(), length).prop_map(|(other, last, quiet, length)| {
            let other = if quiet { other & !(rx::RXE.mask | rx::EOP.mask) } else { other };
            let status = other | rx::DD.mask | if last { rx::EOP.mask } else { 0 };
            u64::from(length) << 32 | u64::from(status)
        });
    prop_oneof![6 => done, 1 => any::<u64>(), 1 => Just(u64::MAX), 1 => Just(0)]
}

#[derive(Clone, Debug)]
enum Step {
    /// The device writes so many descriptors, one behind the other.
    Write { at: u32, words: Vec<(u64, u64)> },
    /// The driver's turn, of which it keeps the packets for some time.
    Turn,
    /// All packets that were kept go back.
    GiveBack,
    /// So many frames are left in the pool; the others are elsewhere until the next of these.
    Leave(usize),
    /// The worker would sleep.
    Arm,
}

fn step() -> impl Strategy<Value = Step> {
    let words = prop::collection::vec((any::<u64>(), second()), 1..20);
    prop_oneof![
        4 => (0..RING, words).prop_map(|(at, words)| Step::Write { at, words }),
        4 => Just(Step::Turn),
        1 => Just(Step::GiveBack),
        1 => prop_oneof![Just(0), Just(1), 0..FRAMES].prop_map(Step::Leave),
        1 => Just(Step::Arm),
    ]
}

/// Takes or gives frames until the pool has so many, or `away` is empty.
fn leave(left: usize, away: &mut Vec<bywash_frame::Frame>, pool: &mut Pool) {
    away.drain(..).for_each(|frame| pool.give(frame));
    while pool.free() > left {
        away.extend(pool.take());
    }
}

#[test]
fn a_receiving_ring_loses_no_frame_whatever_is_written_back() {
    let (arena, pool) = memory();
    let pool = RefCell::new(pool);
    let mut runner = TestRunner::new(Config { cases: 500, failure_persistence: None, ..Config::default() });
    let run = runner.run(&prop::collection::vec(step(), 1..120), |steps| {
        let (pool, orphaned) = (&mut *pool.borrow_mut(), arena.orphaned());
        let (parts, of_device) = ring(arena);
        let mut ring =
            Box::new(RxRing::new(RxParts { ring: parts, wake: None, bits: RxBits::IXGBE, vlans: None }));
        let (mut batch, mut kept, mut away) = (Batch::new(), Vec::new(), Vec::new());
        let (mut packets, mut bytes) = (0, 0);
        // Writes follow the ring as a device would, but for those that begin anywhere.
        let mut head = 0;
        for step in steps {
            match step {
                Step::Write { at, words } => {
                    head = if at % 4 == 0 { at } else { head };
                    for (first, second) in words {
                        of_device.at(head).put(first, second);
                        head = (head + 1) % RING;
                    }
                }
                Step::Turn => {
                    prop_assert_eq!(ring.rx(pool, &mut batch), batch.len());
                    packets += batch.len() as u64;
                    for packet in batch.drain() {
                        prop_assert!((1..=FRAME_DATA * MAX_FRAMES).contains(&packet.len()));
                        bytes += packet.len() as u64;
                        kept.push(packet);
                    }
                }
                Step::GiveBack => kept.drain(..).for_each(|packet| pool.give_packet(packet)),
                Step::Leave(left) => leave(left, &mut away, pool),
                Step::Arm => drop(ring.arm()),
            }
        }
        let counters = ring.counters();
        prop_assert_eq!((counters.packets, counters.bytes), (packets, bytes));
        kept.drain(..).for_each(|packet| pool.give_packet(packet));
        leave(arena.frames(), &mut away, pool);
        ring.close(pool);
        prop_assert_eq!((pool.free(), arena.orphaned()), (arena.frames(), orphaned));
        Ok(())
    });
    run.unwrap();
}

/// A packet of some frames, which may want a tag or a checksum, and of which some may be kept by somebody else, once or several times.
fn packet(frames: usize, length: usize, wish: u8, pool: &mut Pool) -> Option<Packet> {
    let mut packet = if wish & 0x80 == 0 {
        let mut packet = Packet::new(pool.take()?);
        packet.extend_from_slice(&vec![1; length]).unwrap();
        packet
    } else {
        let mut first = Kept::behind(pool.take()?, 300);
        let headers = length.min(40);
        let packet = first.packet(headers, length - headers).unwrap();
        pool.give_kept(first);
        packet
    };
    let mut kept = Kept::new(pool.take()?);
    for i in 1..frames {
        if wish >> 2 & i.to_le_bytes()[0] != 0 {
            packet.push_part(kept.part(256, length).unwrap(), pool).ok()?;
        } else {
            let segment = Segment::new(pool.take()?, 256, length).unwrap();
            packet.push_segment(segment, pool).ok()?;
        }
    }
    pool.give_kept(kept);
    if wish & 1 != 0 {
        packet.offload.set_vlan(Some(u16::from(wish)));
    }
    if wish & 2 != 0 {
        packet.offload.set_checksum(Checksum::Partial { start: 14, offset: 6 });
    }
    Some(packet)
}

#[derive(Clone, Debug)]
enum Sent {
    /// The device writes descriptors.
    Write { at: u32, words: Vec<(u64, u64)> },
    /// Packets are queued: frames, bytes of each, and what is wanted for each.
    Queue(Vec<(usize, usize, u8)>),
    /// The device is told.
    Flush,
}

fn sent() -> impl Strategy<Value = Sent> {
    let words = prop::collection::vec((any::<u64>(), any::<u64>()), 1..20);
    let one = (prop_oneof![4 => Just(1_usize), 1 => 1..6_usize], 1..1500_usize, any::<u8>());
    prop_oneof![
        2 => (0..RING, words).prop_map(|(at, words)| Sent::Write { at, words }),
        3 => prop::collection::vec(one, 1..40).prop_map(Sent::Queue),
        2 => Just(Sent::Flush),
    ]
}

#[test]
fn a_transmitting_ring_loses_no_frame_whatever_is_written_back() {
    let (arena, pool) = memory();
    let pool = RefCell::new(pool);
    let mut runner = TestRunner::new(Config { cases: 500, failure_persistence: None, ..Config::default() });
    let run = runner.run(&(any::<bool>(), prop::collection::vec(sent(), 1..60)), |(names_context, steps)| {
        let (pool, orphaned) = (&mut *pool.borrow_mut(), arena.orphaned());
        let (parts, of_device) = ring(arena);
        let mut ring = Box::new(TxRing::new(TxParts { ring: parts, max_len: 1518, names_context }));
        let (mut batch, mut queued) = (Batch::new(), 0);
        for step in steps {
            match step {
                Sent::Write { at, words } => {
                    for (at, (first, second)) in (at..).zip(words) {
                        of_device.at(at % RING).put(first, second);
                    }
                }
                Sent::Queue(wanted) => {
                    batch.extend(
                        wanted
                            .into_iter()
                            .map_while(|(frames, length, wish)| packet(frames, length, wish, pool)),
                    );
                    queued += ring.tx(pool, &mut batch) as u64;
                    pool.give_batch(&mut batch);
                }
                Sent::Flush => ring.flush(pool),
            }
            let counters = ring.counters();
            prop_assert_eq!(counters.packets + counters.errors + ring.in_flight() as u64, queued);
        }
        ring.close(pool);
        prop_assert_eq!((pool.free(), arena.orphaned()), (arena.frames(), orphaned));
        Ok(())
    });
    run.unwrap();
}
