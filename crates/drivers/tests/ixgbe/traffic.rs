//! Packets through the NIC: order, sizes, chains, full rings, wake-ups, and what a batch costs in register accesses.

use bywash_drivers::ixgbe::Settings;
use bywash_drivers::port::frame::{Batch, Kept, Packet};
use bywash_drivers::port::{QueueCounters, RxQueue};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::bed::{bytes, end, frame, memory, no_violations, packet, quiet, world};

#[test]
fn packets_of_all_sizes_arrive_in_order_and_unchanged() {
    let world = world(2);
    let (arena, mut pool) = memory(8192);
    let mut near = end(&world, 0, &quiet(), arena);
    let mut far = end(&world, 1, &quiet(), arena);
    far.receive(0, &mut pool);
    let sizes = [60, 61, 64, 127, 128, 1514, 1518, 2047, 2048, 2049, 4096, 4097, 9000, 9724];
    for round in 0..40 {
        let frames: Vec<_> = sizes.iter().map(|size| frame(round, *size)).collect();
        // Cut differently each time, down to frames of 300 bytes.
        let piece = 300 + 90 * usize::from(round % 20);
        let packets: Vec<_> = frames.iter().map(|bytes| packet(bytes, piece, &mut pool)).collect();
        near.send(packets, &mut pool);
        assert_eq!(far.received(&mut pool), frames);
    }
    let total: usize = 40 * sizes.iter().sum::<usize>();
    let counters = QueueCounters { packets: 40 * 14, bytes: total as u64, ..QueueCounters::default() };
    assert_eq!(near.tx[0].counters(), counters);
    assert_eq!(far.rx[0].counters(), counters);
    assert_eq!(near.tx[0].in_flight(), 0);
    assert_eq!(near.counter("tx_good_packets"), 40 * 14);
    assert_eq!(far.counter("rx_good_bytes"), (total + 40 * 14 * 4) as u64);
    assert_eq!(far.counter("rx_1024_and_more"), 40 * 9);
    near.close(&mut pool).unwrap();
    far.close(&mut pool).unwrap();
    assert_eq!((pool.free(), arena.orphaned()), (8192, 0));
    no_violations(&world, 2);
}

#[test]
fn a_short_packet_is_padded_and_one_that_cannot_be_sent_is_counted() {
    let world = world(2);
    let (arena, mut pool) = memory(8192);
    let mut near = end(&world, 0, &quiet(), arena);
    let mut far = end(&world, 1, &quiet(), arena);
    far.receive(0, &mut pool);
    let packets: Vec<Packet> = [(14, 2048), (13, 2048), (9725, 2048), (40 * 34, 40), (9724, 300), (20, 2048)]
        .map(|(len, piece)| packet(&frame(5, len.max(14))[..len], piece, &mut pool))
        .into();
    near.send(packets, &mut pool);
    let lengths: Vec<usize> = far.received(&mut pool).iter().map(Vec::len).collect();
    assert_eq!(lengths, [60, 40 * 34, 9724, 60]);
    assert_eq!((near.tx[0].counters().errors, near.tx[0].counters().packets), (2, 4));
    // Some are too short for the NIC to pad them. What was sent is what was given, not the zeros.
    let before = near.tx[0].counters();
    for (len, piece) in [(14, 2048), (15, 2048), (16, 2048), (17, 2048), (15, 8), (16, 5)] {
        let bytes = frame(5, len);
        near.send([packet(&bytes, piece, &mut pool)], &mut pool);
        let wanted = [&bytes[..], &vec![0; 60 - len]].concat();
        assert_eq!(far.received(&mut pool), [wanted]);
    }
    let after = near.tx[0].counters();
    assert_eq!(
        (after.packets - before.packets, after.bytes - before.bytes),
        (6, 14 + 15 + 16 + 17 + 15 + 16)
    );
    near.close(&mut pool).unwrap();
    far.close(&mut pool).unwrap();
    assert_eq!(pool.free(), 8192);
    no_violations(&world, 2);
}

#[test]
fn an_empty_frame_within_a_packet_gets_no_descriptor() {
    let world = world(1);
    let (arena, mut pool) = memory(4096);
    let mut end = end(&world, 0, &Settings { loopback: true, ..quiet() }, arena);
    end.receive(0, &mut pool);
    let wanted = frame(3, 300);
    let mut sent = packet(&wanted[..100], 2048, &mut pool);
    for piece in [&[][..], &wanted[100..], &[]] {
        let mut rest = packet(&wanted[..1], 2048, &mut pool);
        rest.set_len(0).unwrap();
        rest.extend_from_slice(piece).unwrap();
        sent.push_segment(rest.into_single().unwrap(), &mut pool).unwrap();
    }
    end.send([sent], &mut pool);
    assert_eq!(end.received(&mut pool), [wanted]);
    end.close(&mut pool).unwrap();
    assert_eq!(pool.free(), 4096);
    no_violations(&world, 1);
}

#[test]
fn a_frame_that_somebody_keeps_is_sent_as_it_is_and_stays_his() {
    let world = world(1);
    let (arena, mut pool) = memory(4096);
    let mut end = end(&world, 0, &Settings { loopback: true, ..quiet() }, arena);
    end.receive(0, &mut pool);
    for round in 0..40 {
        let (wanted, free) = (frame(round, 700), pool.free());
        let mut kept = Kept::behind(pool.take().unwrap(), 300);
        kept.bytes_mut(0)[..686].copy_from_slice(&wanted[14..]);
        kept.front_mut().last_chunk_mut::<14>().unwrap().copy_from_slice(&wanted[..14]);
        let packet = kept.packet(14, 686).unwrap();
        end.send([packet], &mut pool);
        assert_eq!(end.received(&mut pool), [&wanted[..]]);
        assert_eq!(kept.bytes()[..686], wanted[14..]);
        pool.give_kept(kept);
        world.step();
        end.tx[0].tx(&mut pool, &mut Batch::new());
        end.tx[0].flush(&mut pool);
        assert!(pool.free() + end.tx[0].in_flight() >= free, "round {round}");
    }
    end.close(&mut pool).unwrap();
    assert_eq!(pool.free(), 4096);
    no_violations(&world, 1);
}

#[test]
fn a_full_ring_takes_no_more_until_the_nic_has_sent() {
    let world = world(1);
    let (arena, mut pool) = memory(4096);
    let mut end = end(&world, 0, &Settings { ring: 64, receives: false, ..quiet() }, arena);
    assert!(end.rx.is_empty());
    let mut batch = Batch::new();
    (0..64).for_each(|i| batch.push(packet(&frame(i, 64), 2048, &mut pool)));
    assert_eq!(end.tx[0].tx(&mut pool, &mut batch), 63);
    assert_eq!((batch.len(), end.tx[0].in_flight()), (1, 63));
    assert_eq!(end.tx[0].tx(&mut pool, &mut batch), 0);
    end.tx[0].flush(&mut pool);
    assert_eq!((end.tx[0].in_flight(), end.tx[0].tx(&mut pool, &mut batch)), (0, 1));
    end.tx[0].flush(&mut pool);
    assert_eq!(end.tx[0].counters().packets, 64);
    end.close(&mut pool).unwrap();
    assert_eq!(pool.free(), 4096);
    no_violations(&world, 1);
}

#[test]
fn without_frames_packets_wait_in_the_nic_and_the_spell_is_counted() {
    let world = world(1);
    let (arena, mut pool) = memory(4096);
    let mut end = end(&world, 0, &Settings { loopback: true, ring: 64, ..quiet() }, arena);
    let _others = arena.pool(arena.unused()).unwrap();
    let mut small = arena.pool(0).unwrap();
    // Moves what the receiving side may use: 40 frames.
    let mut kept: Vec<_> = pool.take_many(4096).collect();
    kept.drain(..40).for_each(|frame| small.give(frame));
    assert!(end.receive(0, &mut small).is_empty());
    assert_eq!(small.free(), 0);
    kept.drain(..200).for_each(|frame| pool.give(frame));
    let packets: Vec<_> = (0..60).map(|i| packet(&frame(i, 100), 2048, &mut pool)).collect();
    end.send(packets, &mut pool);
    let first = end.receive(0, &mut small);
    assert_eq!((first.len(), end.rx[0].counters().no_frame), (40, 1));
    first.into_iter().for_each(|packet| small.give_packet(packet));
    let rest = end.receive(0, &mut small);
    world.step();
    let more = end.receive(0, &mut small);
    assert_eq!(rest.len() + more.len(), 20);
    rest.into_iter().chain(more).for_each(|packet| pool.give_packet(packet));
    kept.into_iter().for_each(|frame| pool.give(frame));
    end.close(&mut small).unwrap();
    no_violations(&world, 1);
}

fn readable(queue: &dyn RxQueue, milliseconds: i64) -> bool {
    let fd = queue.wake_fd().unwrap();
    let timeout = Timespec { tv_sec: milliseconds / 1000, tv_nsec: milliseconds % 1000 * 1_000_000 };
    poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&timeout)).unwrap() == 1
}

#[test]
fn a_worker_sleeps_until_a_packet_wakes_it() {
    let world = world(1);
    let (arena, mut pool) = memory(4096);
    let mut end = end(&world, 0, &Settings { loopback: true, ..quiet() }, arena);
    assert!(!end.rx[0].arm(), "no frame was given, so none can come");
    end.receive(0, &mut pool);
    for round in 0..3 {
        assert!(end.rx[0].arm());
        assert!(!readable(&*end.rx[0], 1));
        let sent = packet(&frame(round, 80), 2048, &mut pool);
        end.send([sent], &mut pool);
        // Moderation may hold the message back for its 20 µs.
        std::thread::sleep(std::time::Duration::from_micros(50));
        world.step();
        assert!(readable(&*end.rx[0], 1000));
        assert!(!end.rx[0].arm(), "packets are there");
        assert_eq!(end.received(&mut pool).len(), 1);
        // What came while nobody slept may ring once more, not for ever.
        for _ in 0..2 {
            end.receive(0, &mut pool);
            end.rx[0].arm();
            world.step();
        }
        end.receive(0, &mut pool);
    }
    end.close(&mut pool).unwrap();
    no_violations(&world, 1);
}

#[test]
fn ten_thousand_batches_cost_no_register_reads_and_two_writes_each() {
    let world = world(2);
    let (arena, mut pool) = memory(8192);
    let mut near = end(&world, 0, &quiet(), arena);
    let mut far = end(&world, 1, &quiet(), arena);
    far.receive(0, &mut pool);
    near.receive(0, &mut pool);
    let before = (near.observed(), far.observed());
    let mut batch = Batch::with_limit(32);
    for frame in pool.take_many(32) {
        let mut packet = Packet::new(frame);
        packet.extend_from_slice(&[0xff; 60]).unwrap();
        batch.push(packet);
    }
    // There and back again: what arrives is sent on.
    const BATCHES: u64 = 10_000;
    for _ in 0..BATCHES / 2 {
        for way in 0..2 {
            let (from, to) = if way == 0 { (&mut near, &mut far) } else { (&mut far, &mut near) };
            assert_eq!(from.tx[0].tx(&mut pool, &mut batch), 32);
            from.tx[0].flush(&mut pool);
            to.rx[0].rx(&mut pool, &mut batch);
            assert_eq!(batch.len(), 32);
        }
    }
    pool.give_batch(&mut batch);
    let after = (near.observed(), far.observed());
    for (before, after) in [(before.0, after.0), (before.1, after.1)] {
        assert_eq!(after.reads - before.reads, 0);
        // Each NIC has sent 5000 batches and received as many.
        let writes = after.writes - before.writes;
        assert!(writes <= BATCHES, "{writes} writes in {BATCHES} batches of both directions");
        assert_eq!(after.violations, 0);
    }
    assert_eq!(near.tx[0].counters().packets, 32 * BATCHES / 2);
    near.close(&mut pool).unwrap();
    far.close(&mut pool).unwrap();
    assert_eq!(pool.free(), 8192);
}

#[test]
fn many_queues_receive_and_send() {
    let world = world(2);
    let (arena, mut pool) = memory(16384);
    let settings = Settings { queues: 64, ring: 64, ..quiet() };
    let mut near = end(&world, 0, &settings, arena);
    let mut far = end(&world, 1, &quiet(), arena);
    assert_eq!((near.rx.len(), near.tx.len()), (64, 64));
    far.receive(0, &mut pool);
    let mut batch = Batch::new();
    for queue in 0..64 {
        batch.push(packet(&frame(queue, 200), 2048, &mut pool));
        let tx = &mut near.tx[usize::from(queue)];
        assert_eq!(tx.tx(&mut pool, &mut batch), 1);
        tx.flush(&mut pool);
    }
    let mut arrived: Vec<Vec<u8>> =
        far.receive(0, &mut pool).into_iter().map(|packet| bytes(packet, &mut pool)).collect();
    let mut wanted: Vec<Vec<u8>> = (0..64).map(|queue| frame(queue, 200)).collect();
    arrived.sort();
    wanted.sort();
    assert_eq!(arrived, wanted);
    near.close(&mut pool).unwrap();
    far.close(&mut pool).unwrap();
    no_violations(&world, 2);
}
