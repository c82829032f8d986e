//! `packet:` over veth pairs.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::num::NonZeroU16;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use bywash_drivers::packet::{self, Options};
use bywash_frame::{Checksum, Segmentation, SegmentationKind};
use bywash_lab::{Lab, PairOptions};

use crate::end::*;

fn row(options: &PairOptions) -> Lab {
    Lab::row(2, options).unwrap()
}

/// Opens the port at one side of the cable.
fn end(lab: &Lab, side: usize, options: &Options) -> End {
    let interface = if side == 0 { "right" } else { "left" };
    lab.hosts[side].enter(|| End::open(|arena| packet::open(interface, options, arena))).unwrap()
}

#[test]
fn every_byte_arrives_in_order_both_ways() {
    let Some(_guard) = bywash_lab::lock() else { return };
    let lab = row(&PairOptions { mtu: 9000, ..PairOptions::default() });
    let (mut near, mut far) = (end(&lab, 0, &Options::default()), end(&lab, 1, &Options::default()));
    assert_eq!(near.port.capabilities().max_len, 9000 + 14 + 8);
    assert_eq!(near.port.mac(), Some([2, 0, 0, 0, 0, 1]));
    let start = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos() as u64;
    for there in [true, false] {
        let (from, to) = if there { (&mut near, &mut far) } else { (&mut far, &mut near) };
        let lengths = [14, 15, 60, 64, 1514, 2047, 2048, 2049, 4096, 4097, 9014];
        let frames: Vec<Vec<u8>> =
            lengths.iter().cycle().take(330).enumerate().map(|(n, &len)| frame(n, len)).collect();
        for frame in &frames {
            let packet = from.packet(frame);
            from.send(packet);
        }
        let packets = to.receive(frames.len(), |packet| packet.len() < 64 || experimental(packet));
        for (packet, frame) in packets.iter().zip(&frames) {
            assert_eq!(bytes(packet), *frame);
            assert_eq!(packet.frames(), frame.len().div_ceil(2048));
            assert_eq!((packet.offload.segmentation(), packet.offload.vlan()), (None, None));
            let time = packet.offload.timestamp().unwrap();
            assert!((start..start + PATIENCE.as_nanos() as u64).contains(&time), "{time} after {start}");
        }
        packets.into_iter().for_each(|packet| to.pool.give_packet(packet));
        let bytes: usize = frames.iter().map(Vec::len).sum();
        let (sent, received) = (from.tx().counters(), to.rx().counters());
        assert_eq!((sent.packets, sent.bytes, sent.errors), (330, bytes as u64, 0));
        assert_eq!((received.packets, received.bytes, received.errors), (330, bytes as u64, 0));
    }
    near.close();
    far.close();
}

#[test]
fn it_sees_what_the_kernel_sends_and_receives_and_takes_nothing() {
    let Some(_guard) = bywash_lab::lock() else { return };
    let lab = row(&PairOptions::default());
    let mut near = end(&lab, 0, &Options::default());
    let socket =
        |side: usize, address: &str| lab.hosts[side].enter(|| UdpSocket::bind(address).unwrap()).unwrap();
    let (a, b) = (socket(0, "10.0.0.1:1000"), socket(1, "10.0.0.2:2000"));
    b.set_read_timeout(Some(PATIENCE)).unwrap();
    a.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut buffer = [0; 100];
    a.send_to(b"there", "10.0.0.2:2000").unwrap();
    assert_eq!(b.recv(&mut buffer).unwrap(), 5);
    b.send_to(b"back!", "10.0.0.1:1000").unwrap();
    assert_eq!(a.recv(&mut buffer).unwrap(), 5);
    // What the port itself sends, it does not see.
    let own = near.packet(&frame(1, 100));
    near.send(own);
    a.send_to(b"again", "10.0.0.2:2000").unwrap();
    let packets = near.receive(3, |packet| !experimental(packet) || panic!("its own packet"));
    let payloads: Vec<Vec<u8>> = packets.iter().map(|packet| packet.head()[42..47].to_vec()).collect();
    assert_eq!(payloads, [b"there", b"back!", b"again"]);
    assert_eq!(
        (&packets[0].head()[..6], &packets[1].head()[..6]),
        (&[2, 0, 0, 0, 0, 2][..], &[2, 0, 0, 0, 0, 1][..])
    );
    packets.into_iter().for_each(|packet| near.pool.give_packet(packet));
    near.close();
}

#[test]
fn what_a_loopback_interface_gives_back_comes_once() {
    let Some(_guard) = bywash_lab::lock() else { return };
    let lab = row(&PairOptions::default());
    for queues in [1, 2] {
        let options = Options { queues, ..Options::default() };
        let mut port = lab.hosts[0].enter(|| End::open(|arena| packet::open("lo", &options, arena))).unwrap();
        let socket = || lab.hosts[0].enter(|| UdpSocket::bind("127.0.0.1:0").unwrap()).unwrap();
        let (from, to) = (socket(), socket());
        let mut count = [0; 3];
        let own = port.packet(&frame(1, 100));
        port.send(own);
        for payload in [1, 2] {
            from.send_to(&[payload; 20], to.local_addr().unwrap()).unwrap();
        }
        // Long after the last block has been handed over.
        let end = Instant::now() + Duration::from_millis(200);
        while Instant::now() < end {
            for queue in 0..usize::from(queues) {
                port.turn(queue);
                for packet in port.batch.drain() {
                    let which = if experimental(&packet) { 0 } else { packet.head()[42] };
                    count[usize::from(which)] += 1;
                    port.pool.give_packet(packet);
                }
            }
        }
        assert_eq!(count, [1; 3], "the port's own and two of the kernel's, with {queues} queues");
        port.close();
    }
}

#[test]
fn vlan_tags_are_where_they_were_on_the_wire() {
    let Some(_guard) = bywash_lab::lock() else { return };
    let lab = row(&PairOptions::default());
    let (mut near, mut far) = (end(&lab, 0, &Options::default()), end(&lab, 1, &Options::default()));
    let plain = frame(7, 200);
    let tagged = |tag: [u8; 4]| [&plain[..12], &tag, &plain[12..]].concat();
    // In the bytes (customer and service tags), and put in by the port.
    let mut sent = vec![tagged([0x81, 0, 0x60, 7]), tagged([0x88, 0xa8, 0x0f, 0xff])];
    for bytes in &sent {
        let packet = near.packet(bytes);
        near.send(packet);
    }
    let mut packet = near.packet(&plain);
    packet.offload.set_vlan(Some(0x6007));
    near.send(packet);
    sent.push(sent[0].clone());
    let packets = far.receive(3, |packet| packet.len() == 204);
    for (packet, sent) in packets.into_iter().zip(&sent) {
        assert_eq!(bytes(&packet), *sent);
        assert_eq!(packet.offload.vlan(), None);
        far.pool.give_packet(packet);
    }
    assert_eq!(near.tx().counters().bytes, 3 * 204);
    near.close();
    far.close();
}

#[test]
fn super_segments_of_the_kernels_tcp_come_as_chains() {
    let Some(_guard) = bywash_lab::lock() else { return };
    let lab = row(&PairOptions { offloads: true, ..PairOptions::default() });
    let mut near = end(&lab, 0, &Options::default());
    let listener = lab.hosts[1].enter(|| TcpListener::bind("10.0.0.2:80").unwrap()).unwrap();
    let mut client = lab.hosts[0].enter(|| TcpStream::connect("10.0.0.2:80").unwrap()).unwrap();
    let mut server = listener.accept().unwrap().0;
    let sent: Vec<u8> = (0..1_000_000_u32).map(|i| (i % 251) as u8).collect();
    std::thread::scope(|scope| {
        scope.spawn(|| client.write_all(&sent).unwrap());
        server.read_exact(&mut vec![0; sent.len()]).unwrap();
    });
    let packets = near.receive(10, |packet| packet.offload.segmentation().is_some());
    for packet in packets {
        let size = packet.offload.segmentation().unwrap();
        assert_eq!((size.kind, size.size.get()), (SegmentationKind::Tcp4, 1448));
        assert_eq!(packet.offload.checksum(), Checksum::Partial { start: 34, offset: 16 });
        assert!(
            packet.len() > 1514 && packet.frames() == packet.len().div_ceil(2048),
            "{} bytes",
            packet.len()
        );
        let all = bytes(&packet);
        assert_eq!(usize::from(u16::from_be_bytes([all[16], all[17]])), all.len() - 14);
        // The payload is a piece of the pattern.
        let payload = &all[66..];
        assert!(payload.windows(2).all(|w| u32::from(w[1]) == (u32::from(w[0]) + 1) % 251));
        near.pool.give_packet(packet);
    }
    near.close();
}

#[test]
fn what_the_kernel_leaves_open_of_sctp_is_filled_in_before_anybody_sees_it() {
    let Some(_guard) = bywash_lab::lock() else { return };
    let lab = row(&PairOptions { offloads: true, ..PairOptions::default() });
    let mut near = end(&lab, 0, &Options::default());
    let mut far = end(&lab, 1, &Options::default());
    // The wire's own way to leave a sum open: the kernel's SCTP goes over it just so.
    for tag in [0, 4] {
        let mut frame = vec![0; 14 + tag + 20 + 32];
        frame[..12].copy_from_slice(&[lab.pairs[0].far.mac.0, lab.pairs[0].near.mac.0].concat());
        frame[12..14].copy_from_slice(&[0x08, 0x00]);
        if tag > 0 {
            frame[12..18].copy_from_slice(&[0x81, 0x00, 0, 7, 0x08, 0x00]);
        }
        (frame[14 + tag], frame[14 + tag + 9]) = (0x45, 132);
        let start = 14 + tag + 20;
        let mut packet = near.packet(&frame);
        packet.offload.set_checksum(Checksum::Partial { start: start as u16, offset: 8 });
        near.send(packet);
        // RFC 3720, B.4: the CRC32c of 32 bytes of zeroes.
        frame[start + 8..start + 12].copy_from_slice(&[0xaa, 0x36, 0x91, 0x8a]);
        for packet in far.receive(1, |packet| bytes(packet).get(14 + tag + 9) == Some(&132)) {
            assert_eq!((bytes(&packet), packet.offload.checksum()), (frame.clone(), Checksum::Unknown));
            far.pool.give_packet(packet);
        }
    }
    near.close();
    far.close();
}

#[test]
fn the_kernel_cuts_and_sums_what_is_sent() {
    let Some(_guard) = bywash_lab::lock() else { return };
    // No offloads: what the far end's socket takes has been summed.
    let lab = row(&PairOptions::default());
    let mut near = end(&lab, 0, &Options::default());
    let socket = lab.hosts[1].enter(|| UdpSocket::bind("10.0.0.2:2000").unwrap()).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    let macs = [lab.pairs[0].near.mac.0, lab.pairs[0].far.mac.0];
    let payload: Vec<u8> = (0..4500_u32).map(|i| (i % 253) as u8).collect();
    let mut packet = near.packet(&datagram(0, macs, [1000, 2000], &payload));
    packet.offload.set_checksum(Checksum::Partial { start: 34, offset: 6 });
    packet.offload.set_segmentation(Some(Segmentation {
        kind: SegmentationKind::Udp,
        size: NonZeroU16::new(1000).unwrap(),
    }));
    near.send(packet);
    let mut buffer = [0; 2000];
    for piece in payload.chunks(1000) {
        assert_eq!(socket.recv(&mut buffer).unwrap(), piece.len());
        assert_eq!(&buffer[..piece.len()], piece);
    }
    // One that is summed here, in software, and is taken too; one with a wrong sum is not.
    let mut packet = near.packet(&datagram(0, macs, [1000, 2000], b"wrong"));
    packet.head_mut()[45] ^= 1;
    near.send(packet);
    let mut packet = near.packet(&datagram(0, macs, [1000, 2000], b"right"));
    packet.offload.set_checksum(Checksum::Partial { start: 34, offset: 6 });
    packet.complete_checksum().unwrap();
    near.send(packet);
    assert_eq!((socket.recv(&mut buffer).unwrap(), &buffer[..5]), (5, &b"right"[..]));
    assert_eq!(near.tx().counters().errors, 0);
    near.close();
}

#[test]
fn packets_that_cannot_go_are_counted_and_hold_up_none() {
    let Some(_guard) = bywash_lab::lock() else { return };
    let lab = row(&PairOptions::default());
    let (mut near, mut far) = (end(&lab, 0, &Options::default()), end(&lab, 1, &Options::default()));
    for n in 0..40 {
        let (len, checksum) = match n % 4 {
            0 => (1600, Checksum::Unknown),
            1 => (100, Checksum::Partial { start: 98, offset: 6 }),
            _ => (100, Checksum::Unknown),
        };
        let mut packet = near.packet(&frame(n, len));
        packet.offload.set_checksum(checksum);
        near.batch.push(packet);
    }
    let tx = near.queues[0].tx.as_mut().unwrap();
    assert_eq!((tx.tx(&mut near.pool, &mut near.batch), near.batch.len()), (40, 0));
    assert_eq!((tx.counters().packets, tx.counters().errors, tx.counters().bytes), (20, 20, 2000));
    let packets = far.receive(20, experimental);
    assert!(
        packets.iter().zip((0..40).filter(|n| n % 4 >= 2)).all(|(packet, n)| bytes(packet) == frame(n, 100))
    );
    packets.into_iter().for_each(|packet| far.pool.give_packet(packet));
    near.close();
    far.close();
}

#[test]
fn flows_are_spread_over_queues_and_none_comes_twice() {
    let Some(_guard) = bywash_lab::lock() else { return };
    let lab = row(&PairOptions::default());
    let mut near = end(&lab, 0, &Options { bypass_qdisc: true, tx_only: true, ..Options::default() });
    let mut far = end(&lab, 1, &Options { queues: 2, rx_only: true, ..Options::default() });
    assert!(near.queues[0].rx.is_none() && far.queues[0].tx.is_none() && far.queues.len() == 2);
    let macs = [lab.pairs[0].near.mac.0, [2, 0, 0, 0, 9, 9]];
    for n in 0..640 {
        let packet = near.packet(&datagram(0, macs, [1000 + n % 64, 2000], &n.to_be_bytes()));
        near.send(packet);
    }
    let (mut queue_of, mut count, start) = (HashMap::new(), [0; 2], Instant::now());
    while count[0] + count[1] < 640 {
        assert!(start.elapsed() < PATIENCE, "{count:?} of 640");
        for (queue, count) in count.iter_mut().enumerate() {
            far.turn(queue);
            for packet in far.batch.drain() {
                let flow = u16::from_be_bytes([packet.head()[34], packet.head()[35]]);
                assert_eq!(*queue_of.entry(flow).or_insert(queue), queue, "flow {flow} in both queues");
                *count += 1;
                far.pool.give_packet(packet);
            }
        }
    }
    std::thread::sleep(Duration::from_millis(20));
    assert_eq!((far.turn(0), far.turn(1)), (0, 0), "more came than was sent");
    assert!(count.iter().all(|&n| n > 0), "{count:?}");
    near.close();
    far.close();
}

#[test]
fn what_a_full_ring_drops_is_counted() {
    let Some(_guard) = bywash_lab::lock() else { return };
    let lab = row(&PairOptions::default());
    let mut near = end(&lab, 0, &Options::default());
    let mut far = end(&lab, 1, &Options { ring_bytes: 1, ..Options::default() });
    for n in 0..2000 {
        let packet = near.packet(&frame(n, 1000));
        near.send(packet);
    }
    let mut received = 0;
    let start = Instant::now();
    let dropped = loop {
        assert!(start.elapsed() < PATIENCE);
        if far.turn(0) == 0 && far.sleep(Duration::from_millis(20)) {
            continue;
        }
        received += far.batch.len() as u64;
        far.pool.give_batch(&mut far.batch);
        let dropped = far.counter("rx_ring_full");
        if received + dropped >= 2000 {
            break dropped;
        }
    };
    assert_eq!(received + dropped, 2000);
    assert!(dropped > 1000 && far.counter("rx_ring_full_times") > 0, "{dropped} dropped");
    near.close();
    far.close();
}

#[test]
fn a_dry_pool_leaves_packets_in_the_ring() {
    let Some(_guard) = bywash_lab::lock() else { return };
    let lab = row(&PairOptions { mtu: 9000, ..PairOptions::default() });
    let (mut near, mut far) = (end(&lab, 0, &Options::default()), end(&lab, 1, &Options::default()));
    let sent = frame(1, 9000);
    let packet = near.packet(&sent);
    near.send(packet);
    // Three frames are left, the packet needs five.
    let mut hoard: Vec<_> = std::iter::from_fn(|| far.pool.take()).collect();
    (0..3).for_each(|_| far.pool.give(hoard.pop().unwrap()));
    while far.rx().arm() {
        far.sleep(Duration::from_millis(100));
    }
    assert_eq!((far.turn(0), far.rx().counters().no_frame), (0, 1));
    assert_eq!(far.pool.free(), 3);
    assert!(!far.rx().arm());
    far.pool.give_many(hoard.into_iter());
    let packets = far.receive(1, |_| true);
    assert_eq!(bytes(&packets[0]), sent);
    packets.into_iter().for_each(|packet| far.pool.give_packet(packet));
    near.close();
    // What was hoarded included the arena's spare frames.
    let arena = far.pool.arena();
    let home = |end: &End| end.pool.free() + arena.unused();
    assert_eq!(home(&far), arena.frames());
}

#[test]
fn no_packet_allocates() {
    let Some(_guard) = bywash_lab::lock() else { return };
    let lab = row(&PairOptions { mtu: 3000, ..PairOptions::default() });
    let (mut near, mut far) = (end(&lab, 0, &Options::default()), end(&lab, 1, &Options::default()));
    let (small, large) = (frame(1, 64), frame(2, 3000));
    let start = Instant::now();
    let (mut received, mut before) = (0, 0);
    while received < A_MILLION as usize {
        assert!(start.elapsed() < 6 * PATIENCE);
        // The first rounds are for what is allocated once.
        if received < 1000 {
            before = allocations();
        }
        for n in 0..32 {
            let packet = near.packet(if n % 8 == 0 { &large } else { &small });
            near.batch.push(packet);
        }
        let tx = near.queues[0].tx.as_mut().unwrap();
        while !near.batch.is_empty() {
            tx.tx(&mut near.pool, &mut near.batch);
        }
        received += far.turn(0);
        far.pool.give_batch(&mut far.batch);
        far.rx().arm();
    }
    assert_eq!(allocations() - before, 0);
    near.close();
    far.close();
}

#[test]
fn a_deleted_interface_is_an_error_and_lets_its_worker_sleep() {
    let Some(_guard) = bywash_lab::lock() else { return };
    let mut lab = row(&PairOptions::default());
    let mut near = end(&lab, 0, &Options { queues: 2, ..Options::default() });
    assert!(near.rx().arm());
    // Down is not gone.
    let index = lab.pairs[0].near.index;
    lab.hosts[0].route().set_up(index, false).unwrap();
    assert!(near.woken(Duration::from_millis(100)), "an error waits");
    assert_eq!((near.turn(0), near.rx().arm(), near.counter("interface_gone")), (0, true, 0));
    assert!(!near.sleep(Duration::from_millis(20)));
    lab.hosts[0].route().set_up(index, true).unwrap();
    lab.hosts[0].wait_until_running("right").unwrap();
    let far = end(&lab, 1, &Options::default());
    let mut from_far = far;
    let packet = from_far.packet(&frame(3, 100));
    from_far.send(packet);
    let start = Instant::now();
    while near.turn(0) + near.turn(1) == 0 {
        assert!(start.elapsed() < PATIENCE, "up again, it receives again");
    }
    near.pool.give_batch(&mut near.batch);
    lab.pairs.clear();
    assert!(near.woken(Duration::from_millis(100)), "an error waits");
    assert_eq!(near.turn(0), 0);
    assert!(near.rx().arm());
    for _ in 0..3 {
        assert!(!near.sleep(Duration::from_millis(20)), "nothing wakes a dead queue");
    }
    assert_eq!((near.counter("interface_gone"), near.rx().counters().errors), (1, 1));
    let packet = near.packet(&frame(3, 100));
    near.send(packet);
    assert_eq!((near.tx().counters().packets, near.tx().counters().errors), (0, 1));
    near.close();
    from_far.close();
}

#[test]
fn what_cannot_be_opened_says_why_in_a_line() {
    let Some(_guard) = bywash_lab::lock() else { return };
    let lab = row(&PairOptions::default());
    let refuse = |interface: &str, options: Options, capable: bool| {
        lab.hosts[0]
            .enter(|| {
                if !capable {
                    // Of this thread, which ends here.
                    rustix::thread::set_capabilities(None, no_capabilities()).unwrap();
                }
                let arena = bywash_frame::Arena::new(vec![0; 40 * bywash_frame::FRAME_SIZE]).unwrap();
                packet::open(interface, &options, arena).unwrap_err().to_string()
            })
            .unwrap()
    };
    assert_eq!(
        refuse("right", Options::default(), false),
        "packet:right: a packet socket needs root or CAP_NET_RAW"
    );
    assert!(
        refuse("wrong", Options::default(), true).starts_with("packet:wrong: there is no interface 'wrong'")
    );
    for (options, reason) in [
        (Options { queues: 0, ..Options::default() }, "0 queues: it can have from 1 to 256"),
        (Options { queues: 257, ..Options::default() }, "257 queues"),
        (Options { retire_ms: 0, ..Options::default() }, "after 0 ms"),
        (Options { ring_bytes: 2 << 30, ..Options::default() }, "a ring of 2147483648 bytes"),
        (Options { tx_only: true, rx_only: true, ..Options::default() }, "neither receive nor send"),
    ] {
        let error = refuse("right", options, true);
        assert!(
            error.starts_with("packet:right: ") && error.contains(reason) && !error.contains('\n'),
            "{error}"
        );
    }
}

/// A worker that has no time to sleep never takes the error that the socket has since.
#[test]
fn the_first_packet_after_an_interface_was_down_is_sent() {
    let Some(_guard) = bywash_lab::lock() else { return };
    let lab = row(&PairOptions::default());
    let (mut near, mut far) = (end(&lab, 0, &Options::default()), end(&lab, 1, &Options::default()));
    let index = lab.pairs[0].near.index;
    let set_up = |up| lab.hosts[0].route().set_up(index, up).unwrap();
    for n in 0..3 {
        set_up(false);
        // What can't be sent is an error, each time.
        let lost = 2 * n;
        for _ in 0..lost {
            let packet = near.packet(&frame(9, 100));
            near.send(packet);
        }
        set_up(true);
        lab.hosts[0].wait_until_running("right").unwrap();
        let before = near.tx().counters().errors;
        let packet = near.packet(&frame(n, 100));
        near.send(packet);
        assert_eq!(near.tx().counters().errors, before, "after {lost} were lost");
        for packet in far.receive(1, experimental) {
            assert_eq!(bytes(&packet), frame(n, 100));
            far.pool.give_packet(packet);
        }
    }
    assert_eq!((near.tx().counters().packets, near.tx().counters().errors), (3, 6));
    near.close();
    far.close();
}
