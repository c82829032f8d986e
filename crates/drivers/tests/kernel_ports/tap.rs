//! `tap:` against the kernel's UDP and TCP.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::num::NonZeroU16;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use bywash_drivers::port::Port;
use bywash_drivers::tap::{self, Options};
use bywash_frame::{Arena, Batch, Checksum, FRAME_SIZE, Packet, Pool, Segmentation, SegmentationKind};
use bywash_lab::sys::route::{Mac, Prefix};
use bywash_lab::sys::tun::Tap;
use bywash_lab::{Host, Lab, PairOptions};

use crate::end::*;

/// The Ethernet addresses of a tap: the kernel's, and the port's.
const MACS: [[u8; 6]; 2] = [[2, 0, 0, 0, 1, 1], [2, 0, 0, 0, 1, 2]];

/// A tap with the kernel at 10.1.0.1 and a neighbour at 10.1.0.2.
fn tap(host: &Host, options: Options) -> End {
    let options = Options { mac: Some(MACS[0]), ..options };
    let end = host.enter(|| End::open(|arena| tap::open("tap0", &options, arena))).unwrap();
    neighbour(host, 1, 2, MACS[1]);
    end
}

/// Gives a host the address 10.1.0.`own` on its tap and tells it where 10.1.0.`other` is.
fn neighbour(host: &Host, own: u8, other: u8, mac: [u8; 6]) {
    let index = host.link("tap0").unwrap().index;
    host.add_address(index, Prefix { address: [10, 1, 0, own].into(), length: 24 }).unwrap();
    host.route().add_neighbour(index, [10, 1, 0, other].into(), Mac(mac)).unwrap();
}

fn udp(packet: &Packet) -> bool {
    packet.head().len() >= 42 && packet.head()[12..14] == [8, 0] && packet.head()[23] == 17
}

/// The sum that a receiver forms over a UDP datagram in an IPv4 packet: all ones when the checksum is right.
fn udp_sum(frame: &[u8]) -> u16 {
    let len = u16::from_be_bytes([frame[38], frame[39]]);
    let pseudo = [&frame[26..34], &[0, 17], &len.to_be_bytes()].concat();
    sum(&[&pseudo, &frame[34..34 + usize::from(len)]].concat())
}

#[test]
fn datagrams_are_echoed_with_right_checksums() {
    let Some(_guard) = bywash_lab::lock() else { return };
    let host = Host::new().unwrap();
    let mut end = tap(&host, Options::default());
    assert_eq!((end.port.capabilities().max_len, end.port.mac()), (1522, None));
    let link = host.link("tap0").unwrap();
    assert!(link.up && link.mac == Some(Mac(MACS[0])));
    let socket = host.enter(|| UdpSocket::bind("10.1.0.1:1000").unwrap()).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    for (n, len) in [0, 1, 17, 18, 19, 1000, 1471, 1472].into_iter().enumerate() {
        let payload: Vec<u8> = (0..len).map(|i| (i * 7 + n) as u8).collect();
        socket.send_to(&payload, "10.1.0.2:7").unwrap();
        let mut packet = end.receive(1, udp).pop().unwrap();
        assert_eq!(packet.offload.checksum(), Checksum::Partial { start: 34, offset: 6 });
        packet.complete_checksum().unwrap();
        let frame = bytes(&packet);
        assert_eq!(&frame[42..], payload);
        assert_eq!((&frame[..6], &frame[6..12], udp_sum(&frame)), (&MACS[1][..], &MACS[0][..], 0xffff));
        end.pool.give_packet(packet);
        // The echo: every other one is left to the kernel to sum.
        let mut packet = end.packet(&datagram(1, MACS, [7, 1000], &payload));
        for (a, b) in [(0, 6), (26, 30)] {
            // From 2 to 1: the sums do not change.
            let size = if a == 0 { 6 } else { 4 };
            let (left, right) = packet.head_mut().split_at_mut(b);
            left[a..a + size].swap_with_slice(&mut right[..size]);
        }
        packet.offload.set_checksum(Checksum::Partial { start: 34, offset: 6 });
        if n % 2 == 0 {
            packet.complete_checksum().unwrap();
        }
        end.send(packet);
        let mut buffer = [0; 2000];
        let (len, from) = socket.recv_from(&mut buffer).unwrap();
        assert_eq!((&buffer[..len], from.to_string().as_str()), (&payload[..], "10.1.0.2:7"));
    }
    let (rx, tx) = (end.rx().counters(), end.tx().counters());
    assert_eq!((rx.errors, rx.no_frame, tx.packets, tx.errors), (0, 0, 8, 0));
    end.close();
    assert!(host.link("tap0").is_err(), "what was made is gone");
}

#[test]
fn without_offload_packets_are_as_on_a_wire() {
    let Some(_guard) = bywash_lab::lock() else { return };
    let host = Host::new().unwrap();
    let mut end = tap(&host, Options { offload: false, mtu: Some(1000), ..Options::default() });
    assert_eq!((end.port.capabilities().max_len, host.link("tap0").unwrap().mtu), (1022, 1000));
    let socket = host.enter(|| UdpSocket::bind("10.1.0.1:1000").unwrap()).unwrap();
    socket.send_to(&[5; 900], "10.1.0.2:7").unwrap();
    let packet = end.receive(1, udp).pop().unwrap();
    assert_eq!((packet.offload.checksum(), udp_sum(&bytes(&packet))), (Checksum::Unknown, 0xffff));
    end.pool.give_packet(packet);
    end.close();
}

#[test]
fn the_kernel_takes_super_segments_and_tags() {
    let Some(_guard) = bywash_lab::lock() else { return };
    let host = Host::new().unwrap();
    let mut end = tap(&host, Options::default());
    let socket = host.enter(|| UdpSocket::bind("10.1.0.1:1000").unwrap()).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    let payload: Vec<u8> = (0..30_000_u32).map(|i| (i % 253) as u8).collect();
    // From 1 to 1's own address is dropped by the kernel: it is told that 10.1.0.2 sends to 10.1.0.1.
    let mut bytes = datagram(1, [MACS[1], MACS[0]], [7, 1000], &payload);
    let (source, destination) = bytes[26..34].split_at_mut(4);
    source.swap_with_slice(destination);
    let mut packet = end.packet(&bytes);
    packet.offload.set_checksum(Checksum::Partial { start: 34, offset: 6 });
    packet.offload.set_segmentation(Some(Segmentation {
        kind: SegmentationKind::Udp,
        size: NonZeroU16::new(1400).unwrap(),
    }));
    end.send(packet);
    let mut buffer = [0; 2000];
    for piece in payload.chunks(1400) {
        assert_eq!((socket.recv(&mut buffer).unwrap(), &buffer[..piece.len()]), (piece.len(), piece));
    }
    // A packet with a tag is not for the untagged interface, but a capture on it shows what it got.
    let mut capture = host
        .enter(|| {
            let options = bywash_drivers::packet::Options::default();
            End::open(|arena| bywash_drivers::packet::open("tap0", &options, arena))
        })
        .unwrap();
    let plain = frame(4, 3000);
    let mut packet = end.packet(&plain[..200]);
    packet.offload.set_vlan(Some(0x2009));
    end.send(packet);
    let packet = capture.receive(1, |packet| packet.head()[12..14] == [0x81, 0]).pop().unwrap();
    assert_eq!(crate::end::bytes(&packet), [&plain[..12], &[0x81, 0, 0x20, 9], &plain[12..200]].concat());
    capture.pool.give_packet(packet);
    // Bad ones are counted and hold up none.
    for (len, checksum) in [(10, Checksum::Unknown), (60, Checksum::Partial { start: 60, offset: 0 })] {
        let mut packet = end.packet(&plain[..len]);
        packet.offload.set_checksum(checksum);
        end.send(packet);
    }
    assert_eq!((end.tx().counters().packets, end.tx().counters().errors), (2, 2));
    capture.close();
    end.close();
}

#[test]
fn the_kernel_cuts_super_segments_with_cwr_itself() {
    const CWR: u8 = 0x80;
    let Some(_guard) = bywash_lab::lock() else { return };
    let host = Host::new().unwrap();
    let mut end = tap(&host, Options::default());
    let mut kernel = host
        .enter(|| {
            let options = bywash_drivers::packet::Options::default();
            End::open(|arena| bywash_drivers::packet::open("tap0", &options, arena))
        })
        .unwrap();
    // A datagram whose header becomes the beginning of TCP's.
    let rest = [&[0, 0, 0, 0, 5 << 4, 0x10, 1, 0, 0, 0, 0, 0][..], &[7; 3000]].concat();
    let mut bytes = datagram(1, MACS, [1000, 7], &rest);
    (bytes[23], bytes[24], bytes[25]) = (6, 0, 0);
    let checksum = !sum(&bytes[14..34]);
    bytes[24..26].copy_from_slice(&checksum.to_be_bytes());
    for (flag, pieces) in [(0, vec![(3000, 0)]), (CWR, vec![(1000, CWR), (1000, 0), (1000, 0)])] {
        bytes[47] = 0x10 | flag;
        let mut packet = kernel.packet(&bytes);
        packet.offload.set_checksum(Checksum::Partial { start: 34, offset: 16 });
        let size = NonZeroU16::new(1000).unwrap();
        packet.offload.set_segmentation(Some(Segmentation { kind: SegmentationKind::Tcp4, size }));
        kernel.send(packet);
        let mut came = Vec::new();
        for packet in end.receive(pieces.len(), |packet| packet.head().get(23) == Some(&6)) {
            assert_eq!(packet.offload.segmentation().is_some(), flag == 0);
            came.push((packet.len() - 54, packet.head()[47] & CWR));
            end.pool.give_packet(packet);
        }
        assert_eq!(came, pieces);
    }
    kernel.close();
    end.close();
}

/// Moves packets from one tap to another until told to stop; how many were super-segments.
fn pump(from: &mut End, to: &mut End) -> usize {
    let mut supers = 0;
    from.turn(0);
    while !from.batch.is_empty() {
        supers += from.batch.iter().filter(|packet| packet.offload.segmentation().is_some()).count();
        for packet in &from.batch {
            let Some(segmentation) = packet.offload.segmentation() else { continue };
            assert!(matches!(packet.offload.checksum(), Checksum::Partial { start: 34, offset: 16 }));
            assert_eq!(segmentation.kind, SegmentationKind::Tcp4);
            assert!(packet.len() > 66 + usize::from(segmentation.size.get()));
        }
        let tx = to.queues[0].tx.as_mut().unwrap();
        tx.tx(&mut from.pool, &mut from.batch);
        tx.flush(&mut from.pool);
    }
    supers
}

#[test]
fn tcp_crosses_two_taps_in_super_segments() {
    const BYTES: usize = 50 << 20;
    let Some(_guard) = bywash_lab::lock() else { return };
    let (left, right) = (Host::new().unwrap(), Host::new().unwrap());
    let mut a = tap(&left, Options::default());
    let options = Options { mac: Some(MACS[1]), ..Options::default() };
    let mut b = right.enter(|| End::open(|arena| tap::open("tap0", &options, arena))).unwrap();
    neighbour(&right, 2, 1, MACS[0]);
    let done = AtomicBool::new(false);
    let pattern = |at: usize| (at % 65_521) as u8 ^ (at >> 16) as u8;
    let supers = std::thread::scope(|scope| {
        let pumping = scope.spawn(|| {
            let (mut supers, start) = (0, Instant::now());
            while !done.load(Ordering::Relaxed) {
                assert!(start.elapsed() < Duration::from_secs(60), "the transfer does not end");
                let before = (a.rx().counters().packets, b.rx().counters().packets);
                supers += pump(&mut a, &mut b);
                pump(&mut b, &mut a);
                if before == (a.rx().counters().packets, b.rx().counters().packets) {
                    a.sleep(Duration::from_millis(1));
                }
            }
            supers
        });
        let listener = right.enter(|| TcpListener::bind("10.1.0.2:80").unwrap()).unwrap();
        let mut client = left.enter(|| TcpStream::connect("10.1.0.2:80").unwrap()).unwrap();
        let mut server = listener.accept().unwrap().0;
        server.set_read_timeout(Some(PATIENCE)).unwrap();
        client.set_write_timeout(Some(PATIENCE)).unwrap();
        scope.spawn(move || {
            for at in (0..BYTES).step_by(1 << 16) {
                let piece: Vec<u8> = (at..at + (1 << 16)).map(pattern).collect();
                client.write_all(&piece).unwrap();
            }
        });
        let (mut at, mut buffer) = (0, vec![0; 1 << 16]);
        while at < BYTES {
            let n = server.read(&mut buffer).unwrap();
            assert!(n > 0, "closed after {at} bytes");
            for (i, &byte) in buffer[..n].iter().enumerate() {
                assert_eq!(byte, pattern(at + i), "byte {}", at + i);
            }
            at += n;
        }
        done.store(true, Ordering::Relaxed);
        pumping.join().unwrap()
    });
    let counters = a.rx().counters();
    assert!(supers > 500, "{supers} super-segments");
    assert!(counters.packets < BYTES as u64 / 1448 / 2, "{} packets: most are single", counters.packets);
    assert_eq!((counters.errors, b.tx().counters().errors), (0, 0));
    // Frames went from one pool to the other's port and back to the pool they came from.
    a.close();
    b.close();
}

#[test]
fn flows_are_spread_over_queues() {
    let Some(_guard) = bywash_lab::lock() else { return };
    let host = Host::new().unwrap();
    let mut end = tap(&host, Options { queues: 2, ..Options::default() });
    assert_eq!(end.queues.len(), 2);
    host.enter(|| {
        for port in 0..64_u16 {
            let socket = UdpSocket::bind(("10.1.0.1", 1000 + port)).unwrap();
            for n in 0..3 {
                socket.send_to(&[n; 30], "10.1.0.2:7").unwrap();
            }
        }
    })
    .unwrap();
    let (mut queue_of, mut count, start) = (HashMap::new(), [0; 2], Instant::now());
    while count[0] + count[1] < 192 {
        assert!(start.elapsed() < PATIENCE, "{count:?} of 192");
        for (queue, count) in count.iter_mut().enumerate() {
            end.turn(queue);
            for packet in end.batch.drain() {
                if udp(&packet) {
                    let flow = u16::from_be_bytes([packet.head()[34], packet.head()[35]]);
                    assert_eq!(*queue_of.entry(flow).or_insert(queue), queue, "flow {flow} in both queues");
                    *count += 1;
                }
                end.pool.give_packet(packet);
            }
        }
    }
    assert!(count.iter().all(|&n| n > 0), "{count:?}");
    // Either queue sends.
    let socket = host.enter(|| UdpSocket::bind("10.1.0.1:1000").unwrap()).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    for queue in [0, 1] {
        let mut bytes = datagram(1, [MACS[1], MACS[0]], [7, 1000], &[queue as u8]);
        let (source, destination) = bytes[26..34].split_at_mut(4);
        source.swap_with_slice(destination);
        let mut packet = end.packet(&bytes);
        packet.offload.set_checksum(Checksum::Partial { start: 34, offset: 6 });
        end.batch.push(packet);
        let tx = end.queues[queue].tx.as_mut().unwrap();
        assert_eq!(tx.tx(&mut end.pool, &mut end.batch), 1);
        let mut buffer = [0; 10];
        assert_eq!((socket.recv(&mut buffer).unwrap(), buffer[0]), (1, queue as u8));
    }
    end.close();
}

#[test]
fn no_packet_allocates() {
    let Some(_guard) = bywash_lab::lock() else { return };
    let (left, right) = (Host::new().unwrap(), Host::new().unwrap());
    let open = |host: &Host| {
        host.enter(|| End::open(|arena| tap::open("tap0", &Options::default(), arena))).unwrap()
    };
    let (mut end, _other) = (open(&left), right);
    neighbour(&left, 1, 2, MACS[1]);
    let socket = left.enter(|| UdpSocket::bind("10.1.0.1:1000").unwrap()).unwrap();
    socket.connect("10.1.0.2:7").unwrap();
    let echo = {
        let mac = left.link("tap0").unwrap().mac.unwrap().0;
        let mut bytes = datagram(1, [MACS[1], mac], [7, 9999], &[1; 3000]);
        bytes[14] = 0; // not IPv4: the kernel drops it
        bytes
    };
    let (mut received, mut before, start) = (0, 0, Instant::now());
    let packets = |end: &mut End| end.rx().counters().packets + end.tx().counters().packets;
    while received < 1000 || packets(&mut end) < A_MILLION {
        assert!(start.elapsed() < 6 * PATIENCE);
        // The first rounds are for what is allocated once.
        if received < 1000 {
            before = allocations();
        }
        for _ in 0..32 {
            socket.send(&[7; 100]).unwrap();
            let packet = end.packet(&echo);
            end.batch.push(packet);
        }
        let tx = end.queues[0].tx.as_mut().unwrap();
        tx.tx(&mut end.pool, &mut end.batch);
        end.pool.give_batch(&mut end.batch);
        received += end.turn(0);
        end.pool.give_batch(&mut end.batch);
        end.rx().arm();
    }
    assert_eq!(allocations() - before, 0);
    let counters = (end.rx().counters().packets, end.tx().counters().packets);
    assert!(counters.0 > A_MILLION / 4 && counters.1 > A_MILLION / 4, "both ways: {counters:?}");
    end.close();
}

#[test]
fn a_packet_wakes_a_sleeper_and_a_deleted_interface_does_so_once() {
    let Some(_guard) = bywash_lab::lock() else { return };
    let host = Host::new().unwrap();
    let mut end = tap(&host, Options { queues: 2, ..Options::default() });
    let start = Instant::now();
    while end.turn(0) + end.turn(1) > 0 || !end.rx().arm() {
        assert!(start.elapsed() < PATIENCE);
        end.pool.give_batch(&mut end.batch);
    }
    assert!(!end.sleep(Duration::from_millis(20)));
    host.enter(|| {
        for port in 0..32_u16 {
            UdpSocket::bind(("10.1.0.1", 1000 + port)).unwrap().send_to(&[1], "10.1.0.2:7").unwrap();
        }
    })
    .unwrap();
    assert!(!end.rx().arm(), "packets are there");
    assert!(end.sleep(Duration::from_millis(500)));
    while end.turn(0) + end.turn(1) > 0 {
        end.pool.give_batch(&mut end.batch);
    }
    let index = host.link("tap0").unwrap().index;
    host.route().delete_link(index).unwrap();
    assert!(end.woken(Duration::from_millis(500)), "an error waits");
    assert_eq!((end.turn(0), end.turn(1)), (0, 0));
    assert!(end.rx().arm());
    for _ in 0..3 {
        assert!(!end.sleep(Duration::from_millis(20)), "nothing wakes a dead queue");
        assert_eq!((end.turn(0), end.turn(1)), (0, 0));
    }
    assert_eq!((end.counter("interface_gone"), end.rx().counters().errors), (1, 1));
    let packet = end.packet(&frame(1, 100));
    end.send(packet);
    assert_eq!((end.tx().counters().packets, end.tx().counters().errors), (0, 1));
    end.close();
}

#[test]
fn an_interface_that_exists_is_left_as_it_was() {
    let Some(_guard) = bywash_lab::lock() else { return };
    let host = Host::new().unwrap();
    // Another program's, whose packets have the header that a TAP begins with.
    let owner = host.enter(|| Tap::create("tap0", true).unwrap()).unwrap();
    assert_eq!(owner.header_len().unwrap(), 10);
    let index = host.link("tap0").unwrap().index;
    host.route().set_up(index, false).unwrap();
    let guest = host.enter(|| End::open(|arena| tap::open("tap0", &Options::default(), arena))).unwrap();
    assert!(!host.link("tap0").unwrap().up, "it was down");
    let features = || host.ethtool().features("tap0").unwrap()["tx-tcp-segmentation"].on;
    assert!(features());
    assert_eq!(owner.header_len().unwrap(), 12);
    guest.close();
    assert!(!features() && host.link("tap0").is_ok());
    assert_eq!(owner.header_len().unwrap(), 10);
}

#[test]
fn what_cannot_be_opened_says_why_in_a_line() {
    let Some(_guard) = bywash_lab::lock() else { return };
    let lab = Lab::row(2, &PairOptions::default()).unwrap();
    let host = &lab.hosts[0];
    let refuse = |interface: &str, options: Options, capable: bool| {
        host.enter(|| {
            if !capable {
                // Of this thread, which ends here.
                rustix::thread::set_capabilities(None, no_capabilities()).unwrap();
            }
            let arena = Arena::new(vec![0; 80 * FRAME_SIZE]).unwrap();
            tap::open(interface, &options, arena).unwrap_err().to_string()
        })
        .unwrap()
    };
    let with = |queues: u16| Options { queues, ..Options::default() };
    let right = refuse("tap1", with(1), false);
    assert!(right.starts_with("tap:tap1: ") && right.contains("CAP_NET_ADMIN"), "{right}");
    assert!(refuse("right", with(1), true).contains("'right' is not a TAP interface"));
    assert!(refuse("tap1", with(0), true).contains("0 queues"));
    assert!(refuse("tap1", with(257), true).contains("257 queues"));
    assert!(refuse("tap1", with(3), true).contains("102 frames"));
    let mtu = Options { mtu: Some(10), ..Options::default() };
    assert!(refuse("tap1", mtu, true).contains("MTU of 10"));
    assert!(host.link("tap1").is_err(), "nothing stays behind");
    // One that another has.
    let single = tap(host, with(1));
    assert!(refuse("tap0", with(1), true).contains("in use by another program"));
    assert!(refuse("tap0", with(2), true).contains("without several queues"));
    single.close();
    let several = tap(host, with(2));
    let mtu = Options { mtu: Some(9000), ..Options::default() };
    assert!(refuse("tap0", mtu, true).contains("an MTU of 1500, not 9000"));
    several.close();
}

/// Frames of two pools in one batch: what a pump between two ports of one arena does.
#[test]
fn a_port_serves_pools_that_are_not_its_own() {
    let Some(_guard) = bywash_lab::lock() else { return };
    let host = Host::new().unwrap();
    let mut end = tap(&host, Options::default());
    let mut pool: Pool = end.pool.arena().pool(64).unwrap();
    let mut batch = Batch::new();
    let socket = host.enter(|| UdpSocket::bind("10.1.0.1:1000").unwrap()).unwrap();
    socket.send_to(&[9; 64], "10.1.0.2:7").unwrap();
    let start = Instant::now();
    while batch.is_empty() {
        assert!(start.elapsed() < PATIENCE);
        end.rx().rx(&mut pool, &mut batch);
    }
    pool.give_batch(&mut batch);
    let End { mut port, queues, pool: own, .. } = end;
    for queue in queues {
        queue.rx.unwrap().close(&mut pool);
        queue.tx.unwrap().close(&mut pool);
    }
    assert!(port.queues().is_empty());
    Port::close(port).unwrap();
    assert_eq!((pool.free(), own.free(), own.arena().orphaned()), (64, FRAMES, 0));
}
