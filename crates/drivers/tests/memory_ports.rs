//! `null:` and `loop:`, the ports in memory.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::thread;

use bywash_drivers::{OpenOptions, memory_for, open};
use bywash_frame::{Arena, Batch, FRAME_SIZE, Kept, Packet, Pool, Segment, Stride};
use bywash_port::{Port, PortName, QueuePair};

fn arena() -> &'static Arena {
    Arena::new(vec![0; 8192 * FRAME_SIZE]).unwrap()
}

fn opened(name: &str, options: &OpenOptions, arena: &'static Arena) -> Box<dyn Port> {
    open(&name.parse().unwrap(), options, arena).unwrap().port
}

fn only_queue(port: &mut dyn Port) -> QueuePair {
    let mut queues = port.queues();
    assert!(port.queues().is_empty(), "queues are given out once");
    assert_eq!(queues.len(), 1);
    queues.remove(0)
}

fn close(pair: QueuePair, pool: &mut Pool) {
    pair.rx.unwrap().close(pool);
    pair.tx.unwrap().close(pool);
}

#[test]
fn memory_is_enough_for_the_rings_of_null() {
    for (queues, ring) in [(None, None), (Some(32), None), (Some(4), Some(32_768))] {
        let options = OpenOptions { queues, ring, ..OpenOptions::default() };
        let bytes = memory_for(&PortName::Null, &options, Stride::Packed);
        let arena = Arena::new(vec![0; bytes]).unwrap();
        // About as many are left for others: an arena does not use all of its bytes.
        assert!(open(&PortName::Null, &options, arena).is_ok(), "{options:?}");
        let rings = usize::from(queues.unwrap_or(1)) * ring.unwrap_or(512) as usize * 2;
        assert!(arena.frames() * 10 >= rings * 19, "{} of {rings}", arena.frames());
    }
}

fn numbered(pool: &mut Pool, n: u64) -> Packet {
    let mut packet = Packet::new(pool.take().unwrap());
    packet.extend_from_slice(&n.to_le_bytes()).unwrap();
    packet
}

fn number(packet: &Packet) -> u64 {
    u64::from_le_bytes(packet.head().try_into().unwrap())
}

#[test]
fn a_wire_whose_ports_were_dropped_is_gone() {
    let arena = arena();
    let two = OpenOptions { queues: Some(2), ..OpenOptions::default() };
    drop(opened("loop:dropped", &OpenOptions::default(), arena));
    let first = opened("loop:dropped", &two, arena);
    let second = opened("loop:dropped", &two, arena);
    assert!(open(&"loop:dropped".parse().unwrap(), &two, arena).is_err(), "both ends are open");
    drop(first);
    assert!(open(&"loop:dropped".parse().unwrap(), &two, arena).is_err(), "the other end is still open");
    drop(second);
    // One queue again: another wire.
    drop(opened("loop:dropped", &OpenOptions::default(), arena));
}

#[test]
fn null_rotates_its_frames_as_a_nic_does() {
    let arena = arena();
    let mut pool = arena.pool(4096).unwrap();
    let mut port = opened("null:", &OpenOptions::default(), arena);
    let mut pair = only_queue(&mut *port);
    let (rx, tx) = (pair.rx.as_mut().unwrap(), pair.tx.as_mut().unwrap());
    let mut batch = Batch::new();
    let mut seen = std::collections::HashMap::new();
    for turn in 0..200 {
        assert_eq!(rx.rx(&mut pool, &mut batch), 64);
        assert_eq!((batch.bytes(), rx.rx(&mut pool, &mut batch)), (64 * 64, 0));
        for packet in &batch {
            assert_eq!(packet.head()[12..14], [8, 0]);
            seen.entry(packet.head_segment().frame().address()).or_insert(turn);
        }
        assert_eq!((tx.tx(&mut pool, &mut batch), batch.len()), (64, 0));
        tx.flush(&mut pool);
    }
    assert!(seen.len() >= 1024, "{} frames in rotation", seen.len());
    assert_eq!(rx.counters().packets, 200 * 64);
    assert_eq!(tx.counters().bytes, 200 * 64 * 64);
    close(pair, &mut pool);
    port.close().unwrap();
    assert_eq!((pool.free(), arena.orphaned()), (4096, 0));
}

#[test]
fn null_takes_chains_and_counts_a_dry_pool() {
    let arena = arena();
    let mut pool = arena.pool(700).unwrap();
    let mut hoard = arena.pool(arena.frames() - 700).unwrap();
    let mut port = opened("null:", &OpenOptions::default(), arena);
    let mut pair = only_queue(&mut *port);
    let (rx, tx) = (pair.rx.as_mut().unwrap(), pair.tx.as_mut().unwrap());
    let mut batch = Batch::new();
    for i in 0..1000 {
        let mut kept = Kept::behind(hoard.take().unwrap(), 300);
        let packet = if i % 3 == 0 {
            kept.packet(8, 5).unwrap()
        } else {
            let mut packet = numbered(&mut hoard, 1);
            if i % 3 == 1 {
                packet.push_segment(Segment::new(hoard.take().unwrap(), 0, 5).unwrap(), &mut hoard).unwrap();
            } else {
                packet.push_part(kept.part(0, 5).unwrap(), &mut hoard).unwrap();
            }
            packet
        };
        hoard.give_kept(kept);
        batch.push(packet);
        tx.tx(&mut hoard, &mut batch);
    }
    assert_eq!(tx.counters().bytes, 13_000);
    let mut kept: Vec<Packet> = Vec::new();
    while rx.rx(&mut pool, &mut batch) > 0 {
        kept.extend(batch.drain());
    }
    assert_eq!((kept.len(), rx.counters().no_frame > 0), (700 - 512, true));
    kept.into_iter().for_each(|packet| pool.give_packet(packet));
    close(pair, &mut hoard);
    port.close().unwrap();
    assert_eq!(pool.free() + hoard.free() + arena.unused(), arena.frames());
}

#[test]
fn a_loop_carries_packets_in_order_between_threads_without_a_copy() {
    const PACKETS: u64 = 200_000;
    let arena = arena();
    let mut left = opened("loop:order", &OpenOptions::default(), arena);
    let mut right = opened("loop:order", &OpenOptions::default(), arena);
    assert_eq!((left.name(), right.name()), (right.name(), &"loop:order".parse::<PortName>().unwrap()));
    let (near, far) = (only_queue(&mut *left), only_queue(&mut *right));
    thread::scope(|scope| {
        scope.spawn(move || {
            let mut pool = arena.pool(2048).unwrap();
            let mut near = near;
            let tx = near.tx.as_mut().unwrap();
            let (mut batch, mut next) = (Batch::new(), 0);
            while next < PACKETS || !batch.is_empty() {
                while batch.room() > 0 && next < PACKETS {
                    batch.push(numbered(&mut pool, next));
                    next += 1;
                }
                tx.tx(&mut pool, &mut batch);
                tx.flush(&mut pool);
            }
            assert_eq!(tx.counters().packets, PACKETS);
            // The wire keeps what was sent when its sender goes.
            close(near, &mut pool);
        });
        scope.spawn(move || {
            let mut pool = arena.pool(64).unwrap();
            let mut far = far;
            let rx = far.rx.as_mut().unwrap();
            let (mut batch, mut expected) = (Batch::new(), 0);
            while expected < PACKETS {
                if rx.rx(&mut pool, &mut batch) == 0 && rx.arm() {
                    let mut wait = [rustix::event::PollFd::from_borrowed_fd(
                        rx.wake_fd().unwrap(),
                        rustix::event::PollFlags::IN,
                    )];
                    let ten_seconds = rustix::event::Timespec { tv_sec: 10, tv_nsec: 0 };
                    let woken = rustix::event::poll(&mut wait, Some(&ten_seconds)).unwrap();
                    assert_eq!(woken, 1, "packet {expected} never woke its receiver");
                }
                for packet in batch.drain() {
                    assert_eq!(number(&packet), expected);
                    expected += 1;
                    pool.give_packet(packet);
                }
            }
            close(far, &mut pool);
        });
    });
    left.close().unwrap();
    right.close().unwrap();
    assert_eq!((arena.unused(), arena.orphaned()), (arena.frames(), 0));
}

#[test]
fn a_full_loop_takes_no_more_and_a_cut_one_counts_what_is_lost() {
    let arena = arena();
    let mut pool = arena.pool(2048).unwrap();
    let options = OpenOptions { ring: Some(64), ..OpenOptions::default() };
    let mut left = opened("loop:full", &options, arena);
    let mut right = opened("loop:full", &options, arena);
    let (mut near, mut far) = (only_queue(&mut *left), only_queue(&mut *right));
    let tx = near.tx.as_mut().unwrap();
    let mut batch = Batch::new();
    for expected in [64, 0] {
        (0..batch.room() as u64).for_each(|n| batch.push(numbered(&mut pool, n)));
        assert_eq!(tx.tx(&mut pool, &mut batch), expected);
    }
    let rx = far.rx.as_mut().unwrap();
    let mut received = Batch::new();
    assert!(!rx.arm(), "packets are there: no reason to sleep");
    assert_eq!(rx.rx(&mut pool, &mut received), 64);
    assert!(rx.arm());
    pool.give_batch(&mut received);
    assert_eq!(tx.tx(&mut pool, &mut batch), 64);
    close(far, &mut pool);
    batch.push(numbered(&mut pool, 0));
    assert_eq!((tx.tx(&mut pool, &mut batch), tx.counters().errors, tx.counters().packets), (1, 1, 128));
    close(near, &mut pool);
    left.close().unwrap();
    right.close().unwrap();
    assert_eq!((pool.free(), arena.orphaned()), (2048, 0));
}

#[test]
fn whatever_the_sizes_of_batches_a_loop_keeps_their_order_and_holds_as_many_packets() {
    const RING: usize = 128;
    let arena = arena();
    let mut pool = arena.pool(1024).unwrap();
    let options = OpenOptions { ring: Some(128), ..OpenOptions::default() };
    let mut left = opened("loop:sizes", &options, arena);
    let mut right = opened("loop:sizes", &options, arena);
    let (mut near, mut far) = (only_queue(&mut *left), only_queue(&mut *right));
    let (tx, rx) = (near.tx.as_mut().unwrap(), far.rx.as_mut().unwrap());
    let mut outgoing = Batch::new();
    // One for each limit; what is left in one is there when its turn comes again.
    let mut incoming: Vec<Batch> = (1..=64).map(Batch::with_limit).collect();
    let (mut next, mut expected, mut on_wire) = (0, 0, 0);
    for step in 0..20_000_usize {
        for _ in outgoing.len()..step * 7919 % 65 {
            outgoing.push(numbered(&mut pool, next));
            next += 1;
        }
        let sent = outgoing.len().min(RING - on_wire);
        assert_eq!(tx.tx(&mut pool, &mut outgoing), sent);
        on_wire += sent;
        let batch = &mut incoming[step * 31 % 64];
        let (before, received) = (batch.len(), batch.room().min(on_wire));
        assert_eq!(rx.rx(&mut pool, batch), received);
        on_wire -= received;
        for packet in batch.iter().skip(before) {
            assert_eq!(number(packet), expected);
            expected += 1;
        }
        let kept = if step % 3 == 0 { 1 } else { 0 };
        for packet in batch.drain_front(batch.len().saturating_sub(kept)) {
            pool.give_packet(packet);
        }
    }
    assert!(expected > 300_000, "{expected}");
    assert_eq!((tx.counters().packets, rx.counters().bytes), (expected + on_wire as u64, expected * 8));
    // What is still on the wire goes back with its receiver.
    close(far, &mut pool);
    close(near, &mut pool);
    incoming.iter_mut().chain([&mut outgoing]).for_each(|batch| pool.give_batch(batch));
    left.close().unwrap();
    right.close().unwrap();
    assert_eq!((pool.free(), arena.orphaned()), (1024, 0));
}

#[test]
fn a_wire_has_two_ends_and_both_are_alike() {
    let arena = arena();
    let two = OpenOptions { queues: Some(2), ..OpenOptions::default() };
    let refuse = |options: &OpenOptions| match open(&"loop:ends".parse().unwrap(), options, arena) {
        Ok(_) => panic!("opened"),
        Err(error) => error.to_string(),
    };
    let left = opened("loop:ends", &two, arena);
    let three = OpenOptions { queues: Some(3), ..OpenOptions::default() };
    assert!(refuse(&three).contains("with 2 queues"), "{}", refuse(&three));
    let mut right = opened("loop:ends", &OpenOptions::default(), arena);
    assert_eq!(right.queues().len(), 2);
    assert!(refuse(&two).contains("both its ends are open"));
    left.close().unwrap();
    right.close().unwrap();
    // The name is free again.
    opened("loop:ends", &three, arena).close().unwrap();
}

#[test]
fn options_that_a_port_has_no_use_for_are_refused() {
    let arena = arena();
    let refuse = |options: OpenOptions| match open(&PortName::Null, &options, arena) {
        Ok(_) => panic!("opened"),
        Err(error) => error.to_string(),
    };
    let busy_poll = OpenOptions { busy_poll: Some(20), ..OpenOptions::default() };
    assert_eq!(refuse(busy_poll), "null:: --busy-poll is for xdp: ports; leave it out");
    for ring in [0, 63, 100, 65536] {
        assert!(refuse(OpenOptions { ring: Some(ring), ..OpenOptions::default() }).contains("power of two"));
    }
    let large = OpenOptions { queues: Some(9), ring: Some(512), ..OpenOptions::default() };
    assert!(refuse(large).contains("9216 frames for its rings"));
}
