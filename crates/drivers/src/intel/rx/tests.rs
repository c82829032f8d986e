//! A ring whose descriptors a test fills in.

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use bywash_frame::{Arena, Stride};
use bywash_hw::ixgbe::desc::rss_type;
use bywash_sys::dma::DmaBuffer;

use super::*;
use crate::intel::REST;

const RING: u32 = 64;
const FRAMES: usize = 256;

/// Registers that are all 0; it is counted how often one is written.
#[derive(Clone, Debug, Default)]
struct Counting(Arc<AtomicU32>);

impl Registers for Counting {
    fn read32(&self, _: u32) -> u32 {
        0
    }

    fn write32(&self, _: u32, _: u32) {
        self.0.fetch_add(1, Relaxed);
    }
}

/// A ring, its descriptors as the device has them, its pool and its registers.
fn ring(vlans: Option<Arc<Vlans>>) -> (RxRing<Counting>, Descriptors, Pool, Counting) {
    let arena = Arena::new(vec![0; Stride::Packed.memory_for(FRAMES)]).unwrap();
    let buffer = DmaBuffer::new(RING as usize * 16).unwrap();
    let [descriptors, of_device] = [0, 1].map(|_| buffer.descriptors(0, RING).unwrap());
    let (registers, switch) =
        (Counting::default(), Switch { offset: 0, name: ("none", 0), enable: 1, rest: REST });
    let (bar, addresses) = (Bar::new(registers.clone()), DeviceAddresses::Linear(0));
    let ring = RingParts { bar, descriptors, tail: 0, switch, arena, addresses };
    let ring = RxRing::new(RxParts { ring, wake: None, bits: RxBits::IGB, vlans });
    (ring, of_device, arena.pool(FRAMES).unwrap(), registers)
}

#[test]
fn tags_of_vlans_that_a_function_has_not_asked_for_are_no_packets() {
    let tags = [7, 0x2007, 8, 0];
    for (vlans, seen) in [
        (None, tags.map(Some)),
        (Some(vec![7]), [Some(7), Some(0x2007), None, None]),
        (Some(vec![]), [None; 4]),
    ] {
        let (mut ring, of_device, mut pool, _) = ring(vlans.map(|vlans| Arc::new(Vlans::new(&vlans))));
        let mut batch = Batch::new();
        ring.rx(&mut pool, &mut batch);
        for (slot, tag) in (0..).zip(tags) {
            let done = rx::DD.mask | rx::EOP.mask | rx::VP.mask;
            of_device.at(slot).put(0, u64::from(done) | 60 << 32 | u64::from(tag) << 48);
        }
        ring.rx(&mut pool, &mut batch);
        assert_eq!(batch.iter().map(|packet| packet.offload.vlan()).collect::<Vec<_>>(), seen);
        pool.give_batch(&mut batch);
        Box::new(ring).close(&mut pool);
    }
}

#[test]
fn a_checksum_that_is_not_to_be_believed_is_unknown_and_the_hash_is_kept() {
    let (mut ring, of_device, mut pool, _) = ring(None);
    let mut batch = Batch::new();
    ring.rx(&mut pool, &mut batch);
    let looked_at = rx::DD.mask | rx::EOP.mask | rx::L4CS.mask;
    let ignored = looked_at | igb::IXSM.mask;
    let cases = [
        (looked_at, Checksum::Valid),
        (looked_at | igb::L4E.mask, Checksum::Bad),
        (ignored, Checksum::Unknown),
        (ignored | igb::L4E.mask, Checksum::Unknown),
    ];
    for (slot, (status, _)) in (0..).zip(cases) {
        let hash = u64::from(rss_type::IPV4_TCP) | 0x1234_5678 << 32;
        of_device.at(slot).put(hash, u64::from(status) | 60 << 32);
    }
    ring.rx(&mut pool, &mut batch);
    let seen: Vec<_> =
        batch.iter().map(|packet| (packet.offload.checksum(), packet.offload.hash())).collect();
    assert_eq!(seen, cases.map(|(_, checksum)| (checksum, Some(0x1234_5678))));
    pool.give_batch(&mut batch);
    Box::new(ring).close(&mut pool);
}

#[test]
fn only_a_packets_last_descriptor_says_that_it_is_damaged() {
    let (mut ring, of_device, mut pool, _) = ring(None);
    let mut batch = Batch::new();
    ring.rx(&mut pool, &mut batch);
    let (done, last) = (rx::DD.mask, rx::DD.mask | rx::EOP.mask);
    let jumbo = |slot: u32, first: u32, second: u32| {
        of_device.at(slot).put(0, u64::from(first) | 2048 << 32);
        of_device.at(slot + 1).put(0, u64::from(second) | 952 << 32);
    };
    // Whatever else it says.
    jumbo(0, done | igb::RXE.mask, last);
    jumbo(2, !rx::EOP.mask, last);
    jumbo(4, done, last | igb::RXE.mask);
    jumbo(6, done, last);
    ring.rx(&mut pool, &mut batch);
    assert_eq!(batch.iter().map(Packet::len).collect::<Vec<_>>(), [3000; 3]);
    let QueueCounters { packets, errors, .. } = ring.counters();
    assert_eq!((packets, errors), (3, 1));
    pool.give_batch(&mut batch);
    Box::new(ring).close(&mut pool);
}

#[test]
fn the_tail_is_written_when_it_is_another_one() {
    let (mut ring, of_device, mut pool, registers) = ring(None);
    let mut batch = Batch::new();
    let mut written = |ring: &mut RxRing<Counting>, pool: &mut Pool, times: usize| {
        let before = registers.0.load(Relaxed);
        for _ in 0..times {
            ring.rx(pool, &mut batch);
        }
        pool.give_batch(&mut batch);
        registers.0.load(Relaxed) - before
    };
    // A worker whose pool is empty, at first and when packets have come.
    let all = |pool: &mut Pool| std::iter::from_fn(|| pool.take()).collect::<Vec<_>>();
    let mut away = all(&mut pool);
    assert_eq!(written(&mut ring, &mut pool, 100), 0);
    pool.give_many(away.drain(..));
    assert_eq!(written(&mut ring, &mut pool, 100), 1);
    away.extend(all(&mut pool));
    for slot in 0..10 {
        of_device.at(slot).put(0, u64::from(rx::DD.mask | rx::EOP.mask) | 60 << 32);
    }
    // The slot that a full ring keeps empty, and then ten frames that have come back.
    assert_eq!(written(&mut ring, &mut pool, 1), 1);
    assert_eq!(written(&mut ring, &mut pool, 100), 1);
    pool.give_many(away.drain(..));
    Box::new(ring).close(&mut pool);
}
