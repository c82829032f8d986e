//! Packets through `xdp:` ports over a cable: every one, byte by byte.

use std::num::NonZeroU16;
use std::time::Instant;

use bywash_drivers::xdp::{Attach, Options};
use bywash_frame::{BATCH, Batch, Checksum, Segmentation, SegmentationKind};
use bywash_lab::{PairOptions, TapPair};
use bywash_port::{Port, RxQueue};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::setup::{
    Line, PATIENCE, arena, arrived, bytes, cable, close, counter, halves, kernel_socket, open, options,
    packet, receive, row, send, udp,
};

/// All lengths from the shortest to the longest.
fn length(number: u64) -> usize {
    14 + usize::try_from(number * 7 % 1500).unwrap()
}

#[test]
fn every_packet_arrives_byte_by_byte_and_every_frame_comes_home() {
    let Some(cable) = cable(&PairOptions::default()) else { return };
    let mut line = Line::open(&cable, 2048);
    let near = &line.near;
    assert_eq!(near.capabilities().mode, ["copy", "native XDP"]);
    assert!(
        near.warnings().iter().any(|warning| warning.contains("copy mode on right")),
        "{:?}",
        near.warnings()
    );

    let (mut batch, mut sent) = (Batch::new(), 0);
    let mut total = 0;
    for _ in 0..200 {
        while batch.room() > 0 {
            let bytes = bytes(sent, length(sent));
            total += bytes.len() as u64;
            batch.push(line.packet(&bytes));
            sent += 1;
        }
        line.send(&mut batch);
        let got = line.receive(BATCH);
        for (got, number) in got.iter().zip(sent - BATCH as u64..) {
            assert!(*got == bytes(number, length(number)), "packet {number}");
        }
        assert_eq!(got.len(), BATCH);
    }
    for counters in [line.tx.counters(), line.rx.counters()] {
        assert_eq!((counters.packets, counters.bytes, counters.errors), (sent, total, 0));
    }
    assert_eq!(counter(&line.far, "rx_dropped") + counter(&line.far, "rx_ring_full"), 0);
    assert_eq!(counter(&line.near, "tx_invalid_descriptors"), 0);
    line.close();
}

#[test]
fn each_queue_sends_and_receives_its_own() {
    const QUEUES: u16 = 4;
    let Some(cable) = cable(&PairOptions { queues: QUEUES.into(), ..PairOptions::default() }) else { return };
    let arena = arena(8192);
    let mut pool = arena.pool(1024).unwrap();
    let mut near = open(cable.near(), "right", &options(), arena);
    let mut far = open(cable.far(), "left", &options(), arena);
    let (mut from, mut to) = (near.queues(), far.queues());
    assert_eq!((from.len(), to.len()), (QUEUES.into(), QUEUES.into()));
    assert!(near.queues().is_empty(), "they are given out once");
    for (queue, (from, to)) in from.iter_mut().zip(&mut to).enumerate() {
        // A queue that is not looked at for half a second loses its packets to the kernel.
        assert_eq!(to.rx.as_mut().unwrap().rx(&mut pool, &mut Batch::new()), 0);
        let (tx, rx) = (from.tx.as_mut().unwrap(), to.rx.as_mut().unwrap());
        for turn in 0..20 {
            let mut batch = Batch::new();
            let first = (queue as u64) << 32 | turn << 8;
            (0..BATCH as u64).for_each(|i| batch.push(packet(&mut pool, &bytes(first + i, 200), 2048)));
            send(tx.as_mut(), &mut pool, &mut batch);
            let got = receive(rx.as_mut(), &mut pool, BATCH);
            let wanted: Vec<_> = (0..BATCH as u64).map(|i| bytes(first + i, 200)).collect();
            assert!(got == wanted, "queue {queue}, turn {turn}: {} packets", got.len());
        }
    }
    for (from, to) in from.into_iter().zip(to) {
        for pair in [from, to] {
            pair.rx.unwrap().close(&mut pool);
            pair.tx.unwrap().close(&mut pool);
        }
    }
    assert_eq!(pool.free() + arena.unused(), arena.frames());
    far.close().unwrap();
    near.close().unwrap();
}

#[test]
fn long_packets_cross_as_chains() {
    let Some(cable) = cable(&PairOptions { mtu: 9000, ..PairOptions::default() }) else { return };
    for attach in [Attach::Native, Attach::Generic] {
        let options = Options { attach, ..options() };
        long_packets(Line::open_with(&cable, 2048, [&options, &options]));
    }
}

fn long_packets(mut line: Line) {
    assert!(line.near.capabilities().chains);
    assert_eq!(line.near.capabilities().max_len, 9022);
    let lengths = [60, 2048, 2049, 3000, 4096, 4097, 9014, 14, 6200];
    let mut sent = 0;
    for turn in 0..40 {
        let mut batch = Batch::new();
        let wanted: Vec<_> =
            (0..BATCH).map(|i| bytes(sent + i as u64, lengths[(i + turn) % lengths.len()])).collect();
        // Frames are cut in other places than the receiver's, too.
        wanted.iter().for_each(|bytes| batch.push(packet(&mut line.pool, bytes, 2048 - turn)));
        line.send(&mut batch);
        let got = line.receive(BATCH);
        let lens = |all: &[Vec<u8>]| all.iter().map(Vec::len).collect::<Vec<_>>();
        assert_eq!(lens(&got), lens(&wanted));
        assert!(got == wanted);
        sent += BATCH as u64;
    }
    let (sender, receiver) = (line.tx.counters(), line.rx.counters());
    assert_eq!((sender.packets, receiver.packets), (sent, sent));
    assert_eq!(sender.bytes, receiver.bytes);
    line.close();
}

#[test]
fn a_packet_of_more_frames_than_there_are_is_lost_as_a_whole() {
    let Some(cable) = cable(&PairOptions { mtu: 9000, ..PairOptions::default() }) else { return };
    // A FILL ring of 4 and packets of 5 frames: the kernel must give up in the middle of each, and say so.
    let tiny = Options { ring_size: 4, ..options() };
    let mut line = Line::open_with(&cable, 2048, [&options(), &tiny]);
    let mut batch = Batch::new();
    batch.push(line.packet(&bytes(1, 9014)));
    line.send(&mut batch);
    assert!(line.receive(1).is_empty());
    // What fits still comes through, whole, whatever was lost before.
    for number in 2..50 {
        batch.push(line.packet(&bytes(number, 3000)));
        line.send(&mut batch);
        assert_eq!(line.receive(1), [bytes(number, 3000)]);
    }
    line.close();
}

#[test]
fn rings_smaller_than_a_batch_do_not_get_stuck() {
    let Some(cable) = cable(&PairOptions { mtu: 9000, ..PairOptions::default() }) else { return };
    let mut line = Line::open_with(&cable, 1024, [&Options { ring_size: 4, ..options() }, &options()]);
    let mut batch = Batch::new();
    // Of packets of three frames, one fits into the ring at a time.
    let wanted: Vec<_> = (0..20).map(|number| bytes(number, 5000)).collect();
    wanted.iter().for_each(|bytes| batch.push(packet(&mut line.pool, bytes, 2000)));
    line.send(&mut batch);
    assert!(line.receive(20) == wanted);
    // One that never fits must not block the others.
    batch.push(packet(&mut line.pool, &bytes(21, 9000), 2000));
    batch.push(packet(&mut line.pool, &bytes(22, 60), 2000));
    line.send(&mut batch);
    assert_eq!(line.receive(1), [bytes(22, 60)]);
    assert_eq!((line.tx.counters().packets, line.tx.counters().errors), (21, 1));
    line.close();
}

#[test]
fn what_cannot_be_sent_is_counted_and_its_frames_come_back() {
    let Some(cable) = cable(&PairOptions::default()) else { return };
    let mut line = Line::open(&cable, 256);
    let free = line.pool.free();
    let mut batch = Batch::new();
    batch.push(line.packet(&bytes(1, 13)));
    batch.push(line.packet(&bytes(2, 1523)));
    batch.push(packet(&mut line.pool, &bytes(3, 600), 300));
    let mut cut = line.packet(&bytes(4, 100));
    let (kind, size) = (SegmentationKind::Udp, NonZeroU16::new(50).unwrap());
    cut.offload.set_segmentation(Some(Segmentation { kind, size }));
    batch.push(cut);
    let mut outside = line.packet(&bytes(5, 100));
    outside.offload.set_checksum(Checksum::Partial { start: 34, offset: 65 });
    batch.push(outside);
    batch.push(line.packet(&bytes(6, 100)));
    assert_eq!(line.tx.tx(&mut line.pool, &mut batch), 1);
    assert!(batch.is_empty());
    line.send(&mut batch);
    assert_eq!(line.pool.free(), free);
    assert_eq!((line.tx.counters().packets, line.tx.counters().errors), (1, 5));
    assert_eq!(line.receive(2), [bytes(6, 100)]);
    assert_eq!(counter(&line.near, "tx_invalid_descriptors"), 0);

    // One byte more than the interface lets pass: sent by us, dropped by it, and not counted as sent.
    batch.push(line.packet(&bytes(7, 1520)));
    line.send(&mut batch);
    let counters = line.tx.counters();
    assert_eq!((counters.packets, counters.bytes, counters.errors), (1, 100, 6));
    line.close();
}

#[test]
fn what_a_nic_would_do_is_done_before_sending() {
    let Some(cable) = cable(&PairOptions::default()) else { return };
    let mut line = Line::open(&cable, 256);
    let mut batch = Batch::new();
    let mut partial = line.packet(&bytes(1, 101));
    partial.offload.set_checksum(Checksum::Partial { start: 34, offset: 6 });
    batch.push(partial);
    let mut tagged = line.packet(&bytes(2, 1513));
    tagged.offload.set_vlan(Some(0x2007));
    batch.push(tagged);
    line.send(&mut batch);

    let mut summed = bytes(1, 101);
    let word = |bytes: &[u8]| u32::from(bytes[0]) << 8 | u32::from(*bytes.get(1).unwrap_or(&0));
    let sum: u32 = summed[34..].chunks(2).map(word).sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    let sum = !u16::try_from((folded & 0xffff) + (folded >> 16)).unwrap();
    summed[40..42].copy_from_slice(&sum.to_be_bytes());
    let mut with_tag = bytes(2, 1513);
    with_tag.splice(12..12, [0x81, 0, 0x20, 7]);
    let got = line.receive(2);
    assert!(got == [summed, with_tag], "{got:?}");
    assert_eq!(line.tx.counters().errors, 0);
    line.close();
}

#[test]
fn the_kernel_cuts_super_segments_in_their_turn() {
    const PIECE: u16 = 1000;
    let Some(cable) = cable(&PairOptions::default()) else { return };
    let mut line = Line::open(&cable, 512);
    assert!(line.near.capabilities().segmentation);
    let payload: Vec<u8> = (0..4500_u32).map(|i| (i % 253) as u8).collect();
    let mut super_segment = udp(&cable, &payload);
    // The pseudo-header's sum: addresses, protocol, length.
    let pseudo = 0x0a00 + 1 + 0x0a00 + 2 + 17 + 8 + u16::try_from(payload.len()).unwrap();
    super_segment[40..42].copy_from_slice(&pseudo.to_be_bytes());
    let (mut batch, mut wanted) = (Batch::new(), Vec::new());
    for round in 0..10 {
        batch.push(line.packet(&bytes(round, 100)));
        wanted.push(bytes(round, 100)[14..].to_vec());
        for _ in 0..=round % 2 {
            let mut packet = line.packet(&super_segment);
            packet.offload.set_checksum(Checksum::Partial { start: 34, offset: 6 });
            let (kind, size) = (SegmentationKind::Udp, NonZeroU16::new(PIECE).unwrap());
            packet.offload.set_segmentation(Some(Segmentation { kind, size }));
            batch.push(packet);
            wanted.extend(payload.chunks(PIECE.into()).map(<[u8]>::to_vec));
        }
    }
    line.send(&mut batch);
    let got = line.receive(wanted.len());
    assert!(got.iter().filter(|packet| packet[12..14] == [8, 0]).all(|packet| sum(packet) == 0xffff));
    let data = |packet: &Vec<u8>| packet[if packet[12..14] == [8, 0] { 42 } else { 14 }..].to_vec();
    assert!(got.iter().map(data).collect::<Vec<_>>() == wanted, "{} of {}", got.len(), wanted.len());
    let counters = line.tx.counters();
    assert_eq!((counters.packets, counters.bytes, counters.errors), (25, 10 * 100 + 15 * 4542, 0));
    line.close();
}

#[test]
fn where_packets_would_wait_super_segments_are_not_taken() {
    let Some(cable) = cable(&PairOptions::default()) else { return };
    // A TAP interface has a queueing discipline, a veth has none.
    let names = ["tapped".into(), "caller".into()];
    let unlike = PairOptions { names, addresses: [Vec::new(), Vec::new()], ..PairOptions::default() };
    let tap = TapPair::to(cable.near(), &unlike).unwrap();
    let arena = arena(4096);
    let mut pool = arena.pool(64).unwrap();
    let mut port = open(cable.near(), &tap.near.name, &Options { rx: false, ..options() }, arena);
    assert!(!port.capabilities().segmentation);
    let mut tx = port.queues().remove(0).tx.unwrap();
    let mut batch = Batch::new();
    let mut packet = packet(&mut pool, &bytes(1, 100), 2048);
    let (kind, size) = (SegmentationKind::Udp, NonZeroU16::new(50).unwrap());
    packet.offload.set_segmentation(Some(Segmentation { kind, size }));
    batch.push(packet);
    send(tx.as_mut(), &mut pool, &mut batch);
    assert_eq!((tx.counters().packets, tx.counters().errors), (0, 1));
    tx.close(&mut pool);
    port.close().unwrap();
}

/// The ones' complement sum of a UDP datagram with its pseudo-header, which is 0xffff when its checksum is right.
fn sum(packet: &[u8]) -> u32 {
    let length = u32::from(u16::from_be_bytes([packet[38], packet[39]]));
    let words = packet[26..].as_chunks().0.iter().map(|word| u32::from(u16::from_be_bytes(*word)));
    let sum = words.sum::<u32>() + 17 + length;
    (sum & 0xffff) + (sum >> 16)
}

#[test]
fn packets_for_a_queue_without_a_socket_stay_with_the_kernel() {
    let Some(cable) = cable(&PairOptions { queues: 2, ..PairOptions::default() }) else { return };
    let arena = arena(8192);
    let mut pool = arena.pool(512).unwrap();
    let mut near = open(cable.near(), "right", &Options { rx: false, ..options() }, arena);
    let mut far = open(cable.far(), "left", &Options { max_queues: Some(1), ..options() }, arena);
    let socket = kernel_socket(cable.far());
    let (mut from, (mut rx, far_tx)) = (near.queues(), halves(&mut far));
    for (queue, pair) in (0..).zip(&mut from) {
        let mut batch = Batch::new();
        batch.push(packet(&mut pool, &udp(&cable, &[queue; 40]), 2048));
        send(pair.tx.as_mut().unwrap().as_mut(), &mut pool, &mut batch);
    }
    assert_eq!(arrived(&socket), Some(vec![1; 40]));
    assert_eq!(arrived(&socket), None);
    assert_eq!(receive(rx.as_mut(), &mut pool, 2), [udp(&cable, &[0; 40])]);
    from.into_iter().for_each(|pair| pair.tx.unwrap().close(&mut pool));
    close(far, rx, far_tx, &mut pool);
    near.close().unwrap();
    assert_eq!(pool.free() + arena.unused(), arena.frames());
}

#[test]
fn what_finds_no_free_frame_is_counted() {
    let Some(cable) = cable(&PairOptions::default()) else { return };
    let (ours, theirs) = (arena(4096), arena(1));
    let mut pool = ours.pool(1024).unwrap();
    // All of this arena's frames go to the FILL ring; packets are kept, so it runs dry.
    let mut dry = theirs.pool(theirs.frames() - 512).unwrap();
    let taken: Vec<_> = std::iter::from_fn(|| dry.take()).take(theirs.frames() - 512).collect();
    let mut near = open(cable.near(), "right", &options(), ours);
    let mut far = open(cable.far(), "left", &options(), theirs);
    let ((near_rx, mut tx), (mut rx, far_tx)) = (halves(&mut near), halves(&mut far));
    let mut kept = Vec::new();
    for number in 0..700 {
        let mut batch = Batch::new();
        batch.push(packet(&mut pool, &bytes(number, 60), 2048));
        send(tx.as_mut(), &mut pool, &mut batch);
        rx.rx(&mut dry, &mut batch);
        kept.extend(batch.drain());
    }
    assert_eq!((kept.len(), rx.counters().packets), (512, 512));
    assert_eq!(counter(&far, "rx_fill_ring_empty"), 700 - 512);
    assert_eq!(rx.counters().no_frame, 1, "one dry spell, however many packets it cost");
    assert!(!rx.arm(), "nothing would wake it");
    kept.into_iter().for_each(|packet| dry.give_packet(packet));
    assert_eq!(rx.rx(&mut dry, &mut Batch::new()), 0);
    assert!(rx.arm());
    let mut batch = Batch::new();
    batch.push(packet(&mut pool, &bytes(1000, 60), 2048));
    send(tx.as_mut(), &mut pool, &mut batch);
    assert_eq!(receive(rx.as_mut(), &mut dry, 1), [bytes(1000, 60)]);
    close(near, near_rx, tx, &mut pool);
    close(far, rx, far_tx, &mut dry);
    drop(taken);
    assert_eq!(dry.free() + theirs.unused(), theirs.frames());
}

#[test]
fn a_sleeping_receiver_is_woken() {
    let Some(cable) = cable(&PairOptions::default()) else { return };
    let mut line = Line::open(&cable, 64);
    let readable = |rx: &dyn RxQueue| {
        let fd = rx.wake_fd().unwrap();
        let timeout = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };
        poll(&mut [PollFd::from_borrowed_fd(fd, PollFlags::IN)], Some(&timeout)).unwrap() == 1
    };
    assert!(line.rx.arm());
    assert!(!readable(line.rx.as_ref()));
    let mut batch = Batch::new();
    batch.push(line.packet(&bytes(1, 60)));
    line.send(&mut batch);
    assert!(readable(line.rx.as_ref()));
    assert!(!line.rx.arm(), "it is there already");
    assert_eq!(line.receive(1).len(), 1);
    assert!(line.rx.arm());
    line.close();
}

#[test]
fn a_forwarded_packet_stays_in_its_frame() {
    let Some(cable) = row(3, &PairOptions::default()) else { return };
    let arena = arena(8192);
    let mut pool = arena.pool(256).unwrap();
    let hosts = &cable.lab.hosts;
    let mut ends = [(0, "right"), (1, "left"), (1, "right"), (2, "left")]
        .map(|(host, name)| open(&hosts[host], name, &options(), arena));
    let [(source_rx, mut source), (mut from, from_tx), (to_rx, mut to), (mut sink, sink_tx)] =
        ends.each_mut().map(|port| halves(port));
    let (mut worker, mut home) = (arena.pool(64).unwrap(), arena.pool(0).unwrap());
    for turn in 0..20 {
        let mut batch = Batch::new();
        let wanted: Vec<_> = (0..32).map(|i| bytes(turn * 32 + i, 300)).collect();
        wanted.iter().for_each(|bytes| batch.push(packet(&mut pool, bytes, 2048)));
        send(source.as_mut(), &mut pool, &mut batch);
        let start = Instant::now();
        while batch.len() < 32 && start.elapsed() < PATIENCE {
            from.rx(&mut worker, &mut batch);
        }
        let mut received: Vec<_> =
            batch.iter().map(|packet| packet.head_segment().frame().address()).collect();
        // What the sending interface gives back are the very frames that the receiving one filled.
        send(to.as_mut(), &mut home, &mut batch);
        let mut sent: Vec<_> =
            std::iter::from_fn(|| (home.free() > 0).then(|| home.take()).flatten()).collect();
        let mut addresses: Vec<_> = sent.iter().map(|frame| frame.address()).collect();
        sent.drain(..).for_each(|frame| worker.give(frame));
        received.sort_unstable();
        addresses.sort_unstable();
        assert_eq!((received.len(), received), (32, addresses));
        assert!(receive(sink.as_mut(), &mut pool, 32) == wanted);
    }
    for (rx, tx) in [(source_rx, source), (from, from_tx), (to_rx, to), (sink, sink_tx)] {
        rx.close(&mut pool);
        tx.close(&mut pool);
    }
    for port in ends {
        assert_eq!(counter(&port, "abandoned_frames"), 0);
        port.close().unwrap();
    }
    assert_eq!(pool.free() + worker.free() + home.free() + arena.unused(), arena.frames());
}

#[test]
fn one_flush_sends_a_full_ring() {
    let Some(cable) = cable(&PairOptions::default()) else { return };
    // The other end's own queue holds 256 packets, in the kernel.
    let ring = Options { ring_size: 256, ..options() };
    let mut line = Line::open_with(&cable, 1024, [&ring, &options()]);
    let mut batch = Batch::new();
    for turn in 0..4 {
        (0..BATCH as u64).for_each(|i| batch.push(line.packet(&bytes(turn << 8 | i, 60))));
        assert_eq!(line.tx.tx(&mut line.pool, &mut batch), BATCH);
    }
    assert_eq!(line.receive(1).len(), 0, "nothing goes before it is flushed");
    batch.push(line.packet(&bytes(9 << 8, 60)));
    assert_eq!(line.tx.tx(&mut line.pool, &mut batch), 0, "there is no room for more");
    line.tx.flush(&mut line.pool);
    // The kernel's own bound for a call is 32 packets.
    assert_eq!(line.receive(256).len(), 256);
    line.send(&mut batch);
    assert_eq!((line.tx.counters().packets, line.tx.in_flight()), (257, 0));
    line.close();
}
