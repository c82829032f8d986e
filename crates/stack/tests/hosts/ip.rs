//! ARP, IPv4 and UDP between hosts over wires in memory.

use std::time::Duration;

use crate::wire::{Node, PORT, Pair, address};
use bywash_stack::{Event, NeighbourState, PortId, Route, Timestamp, UdpError, Unreachable};
use bywash_wire::checksum::Sum;
use bywash_wire::zerocopy::IntoBytes;
use bywash_wire::{
    DONT_FRAGMENT, EthernetHeader, IcmpHeader, Ipv4Header, Mac, Protocol, TcpFlags, TcpHeader, icmpv4,
};

pub(crate) fn ethernet(kind: u16) -> EthernetHeader {
    EthernetHeader {
        destination: Mac([2, 0, 0, 0, 0, 1]),
        source: Mac([2, 0, 0, 0, 0, 2]),
        kind: kind.into(),
    }
}

/// A router that passes 192.168.0.0/16 on by its second port, whose MTU is 576, to a neighbour that it knows.
pub(crate) fn router_to_a_narrow_link() -> (Node, Timestamp) {
    let router = Node::new(3).with_interface(0, 3, None, 1500, "10.0.0.3/24").with_interface(
        1,
        4,
        None,
        576,
        "10.1.0.3/24",
    );
    let out = router.interface(2);
    let mut router = router.with_route("192.168.0.0/16", "10.1.0.9", out);
    router.host.control.set_forwarding(true);
    router.host.control.add_neighbour(out, address("10.1.0.9"), Mac([2, 0, 0, 0, 0, 9])).unwrap();
    let now = Timestamp::from_nanos(5_000_000_000);
    router.take(now, PortId(1));
    (router, now)
}

/// A datagram's payload, whole.
pub(crate) fn read(node: &mut Node, id: bywash_stack::UdpId) -> Option<Vec<u8>> {
    let datagram = node.host.stack.udp_receive(id).expect("no error")?;
    let bytes = datagram.slices().collect::<Vec<_>>().concat();
    assert_eq!(bytes.len(), datagram.len());
    datagram.release(&mut node.pool);
    Some(bytes)
}

#[test]
fn a_datagram_waits_for_arp_and_arrives() {
    let mut pair = Pair::new(1500);
    pair.settle();
    pair.trace.clear();
    let server = pair.b.host.stack.udp_bind(None, 53).unwrap();
    let client = pair.a.host.stack.udp_bind(None, 0).unwrap();
    let to = Some((address("10.0.0.2"), 53));
    pair.a.host.stack.udp_send(pair.now, client, to, b"question", &mut pair.a.pool).unwrap();
    pair.settle();
    let kinds: Vec<_> = pair.trace.iter().map(|(a, p)| (*a, u16::from_be_bytes([p[12], p[13]]))).collect();
    assert_eq!(kinds, [(true, 0x0806), (false, 0x0806), (true, 0x0800)], "question, answer, datagram");
    assert_eq!(pair.b.host.stack.events().collect::<Vec<_>>(), [Event::UdpReadable(server)]);
    assert_eq!(read(&mut pair.b, server), Some(b"question".to_vec()));
    assert_eq!(read(&mut pair.b, server), None);
    // The server has learnt from the question where to answer.
    pair.trace.clear();
    let back = Some((address("10.0.0.1"), pair.a.host.stack.udp_port(client).unwrap()));
    pair.b.host.stack.udp_send(pair.now, server, back, b"answer", &mut pair.b.pool).unwrap();
    pair.settle();
    assert_eq!(pair.trace.len(), 1);
    assert_eq!(read(&mut pair.a, client), Some(b"answer".to_vec()));
    pair.a.assert_nothing_leaked();
    pair.b.assert_nothing_leaked();
}

#[test]
fn nobody_there_is_asked_for_three_times_and_the_sender_told() {
    let mut pair = Pair::new(1500);
    pair.settle();
    let peer = (address("10.0.0.9"), 53);
    let client = pair.a.host.stack.udp_bind(None, 0).unwrap();
    pair.a.host.stack.udp_connect(client, Some(peer)).unwrap();
    pair.trace.clear();
    pair.a.host.stack.udp_send(pair.now, client, None, b"?", &mut pair.a.pool).unwrap();
    for _ in 0..12 {
        pair.pass(Duration::from_millis(500));
    }
    let requests = pair.trace.iter().filter(|(a, p)| *a && p[12..14] == [8, 6] && p[41] == 9).count();
    assert_eq!(requests, 3);
    assert_eq!(
        pair.a.host.stack.udp_receive(client).unwrap_err(),
        UdpError::Unreachable(Unreachable::Host),
        "the program hears that the host does not answer"
    );
    pair.a.assert_nothing_leaked();
}

#[test]
fn datagrams_to_a_group_stay_on_the_link() {
    let mut pair = Pair::new(1500);
    let interface = pair.a.interface(1);
    // They go to no router (RFC 1112, 6.2).
    let prefix = "0.0.0.0/0".parse().unwrap();
    let route = Route { prefix, gateway: Some(address("10.0.0.2")), interface, metric: 0, source: None };
    pair.a.host.control.add_route(route).unwrap();
    pair.a.take(pair.now, PORT);
    let client = pair.a.host.stack.udp_bind(None, 0).unwrap();
    for (to, mac, ttl) in [
        ("10.0.0.255", [0xff; 6], 64),
        ("255.255.255.255", [0xff; 6], 64),
        ("239.1.2.3", [1, 0, 0x5e, 1, 2, 3], 1),
    ] {
        let to = Some((address(to), 9));
        pair.a.host.stack.udp_send(pair.now, client, to, b"x", &mut pair.a.pool).unwrap();
        let sent = pair.a.take(pair.now, PORT);
        let datagram = sent.iter().find(|bytes| bytes[12..14] == [8, 0]).unwrap();
        assert_eq!((&datagram[..6], datagram[22]), (&mac[..], ttl), "{to:?}");
        Ipv4Header::parse(&datagram[14..], datagram.len() - 14).unwrap();
    }
}

#[test]
fn checksums_of_datagrams_are_looked_at_and_zero_means_none() {
    let mut pair = Pair::new(1500);
    let server = pair.b.host.stack.udp_bind(None, 9).unwrap();
    let client = pair.a.host.stack.udp_bind(None, 77).unwrap();
    let send = |pair: &mut Pair, payload: [u8; 2]| {
        let to = Some((address("10.0.0.2"), 9));
        pair.a.host.stack.udp_send(pair.now, client, to, &payload, &mut pair.a.pool).unwrap();
        pair.settle();
        assert_eq!(read(&mut pair.b, server), Some(payload.to_vec()));
        pair.trace.iter().rfind(|(a, p)| *a && p[12..14] == [8, 0]).unwrap().1.clone()
    };
    let mut first = send(&mut pair, [0, 0]);
    let checksum = [first[40], first[41]];
    // With its own checksum as payload a datagram's sum is zero, which would mean that there is none (RFC 768).
    assert_eq!(send(&mut pair, checksum)[40..42], [0xff, 0xff]);
    first[41] ^= 1;
    pair.b.put(pair.now, PORT, &first);
    assert_eq!((read(&mut pair.b, server), pair.b.host.stack.counters().checksum), (None, 1));
    (first[40], first[41]) = (0, 0);
    pair.b.put(pair.now, PORT, &first);
    assert_eq!(read(&mut pair.b, server), Some(vec![0, 0]), "none (RFC 1122, 4.1.3.4)");
}

#[test]
fn a_router_passes_on_counts_down_and_reports() {
    let mut now_router = Node::new(3).with_interface(0, 3, None, 1500, "10.0.0.3/24").with_interface(
        1,
        4,
        None,
        576,
        "10.1.0.3/24",
    );
    now_router.host.control.set_forwarding(true);
    let mut pair = Pair::new(1500);
    let interface = pair.a.interface(1);
    pair.a = std::mem::replace(&mut pair.a, Node::new(9)).with_route("10.1.0.0/24", "10.0.0.3", interface);
    let target = Node::new(4).with_interface(0, 5, None, 576, "10.1.0.4/24");
    let interface = target.interface(1);
    let mut target = target.with_route("0.0.0.0/0", "10.1.0.3", interface);
    let server = target.host.stack.udp_bind(None, 9).unwrap();
    let client = pair.a.host.stack.udp_bind(None, 0).unwrap();
    let turn = |a: &mut Node, router: &mut Node, target: &mut Node, now| {
        for _ in 0..10 {
            a.take(now, PORT).iter().for_each(|p| router.put(now, PORT, p));
            router.take(now, PORT).iter().for_each(|p| a.put(now, PORT, p));
            router.take(now, PortId(1)).iter().for_each(|p| target.put(now, PORT, p));
            target.take(now, PORT).iter().for_each(|p| router.put(now, PortId(1), p));
        }
    };
    for payload in [&b"hello"[..], &[7; 1400]] {
        let to = Some((address("10.1.0.4"), 9));
        pair.a.host.stack.udp_connect(client, to).unwrap();
        let sent = pair.a.host.stack.udp_send(pair.now, client, None, payload, &mut pair.a.pool);
        sent.unwrap();
        turn(&mut pair.a, &mut now_router, &mut target, pair.now);
    }
    assert_eq!(read(&mut target, server), Some(b"hello".to_vec()));
    assert_eq!(read(&mut target, server), None);
    let error = pair.a.host.stack.udp_receive(client).unwrap_err();
    assert_eq!(error, UdpError::Unreachable(Unreachable::TooBig(576)), "1400 bytes must not be cut");
    // Nobody has that port at the far end: its refusal comes back through the router.
    pair.a.host.stack.udp_connect(client, Some((address("10.1.0.4"), 10))).unwrap();
    pair.a.host.stack.udp_send(pair.now, client, None, b"x", &mut pair.a.pool).unwrap();
    turn(&mut pair.a, &mut now_router, &mut target, pair.now);
    let error = pair.a.host.stack.udp_receive(client).unwrap_err();
    assert_eq!(error, UdpError::Unreachable(Unreachable::Port));
    now_router.assert_nothing_leaked();
}

#[test]
fn vlans_are_kept_apart() {
    let mut node = Node::new(1).with_interface(0, 1, Some(7), 1500, "10.7.0.1/24").with_interface(
        0,
        1,
        None,
        1500,
        "10.0.0.1/24",
    );
    let now = Timestamp::from_nanos(5_000_000_000);
    let announcements = node.take(now, PORT);
    assert_eq!(announcements[0][12..18], [0x81, 0, 0, 7, 8, 6]);
    assert_eq!(announcements[1][12..14], [8, 6]);
    let socket = node.host.stack.udp_bind(None, 9).unwrap();
    let datagram = |tag: Option<u16>, to: [u8; 4]| {
        let udp = [0, 1, 0, 9, 0, 8, 0, 0];
        let ip = Ipv4Header::new([10, 7, 0, 9].into(), to.into(), 17, 8);
        let mut bytes = ethernet(0x0800).as_bytes()[..12].to_vec();
        if let Some(tag) = tag {
            bytes.extend([0x81, 0]);
            bytes.extend(tag.to_be_bytes());
        }
        [&bytes, &[8, 0][..], ip.as_bytes(), &udp].concat()
    };
    node.put(now, PORT, &datagram(Some(8), [10, 7, 0, 1]));
    assert_eq!(read(&mut node, socket), None, "VLAN 8 is not ours");
    node.put(now, PORT, &datagram(Some(0xe007), [10, 7, 0, 1]));
    assert_eq!(read(&mut node, socket), Some(vec![]), "whatever the priority");
}

#[test]
fn neighbours_age_and_are_probed_when_used() {
    let mut pair = Pair::new(1500);
    pair.pass(Duration::from_secs(2));
    pair.pass(Duration::from_secs(2));
    let client = pair.a.host.stack.udp_bind(None, 0).unwrap();
    let to = Some((address("10.0.0.2"), 9));
    let state =
        |pair: &Pair| pair.a.host.control.neighbours().find(|n| n.1 == address("10.0.0.2")).map(|n| n.3);
    pair.a.host.stack.udp_send(pair.now, client, to, b"", &mut pair.a.pool).unwrap();
    pair.settle();
    assert_eq!(state(&pair), Some(NeighbourState::Reachable));
    pair.pass(Duration::from_secs(31));
    assert_eq!(state(&pair), Some(NeighbourState::Stale));
    pair.a.host.stack.udp_send(pair.now, client, to, b"", &mut pair.a.pool).unwrap();
    pair.settle();
    assert_eq!(state(&pair), Some(NeighbourState::Delay));
    pair.trace.clear();
    pair.pass(Duration::from_secs(6));
    assert_eq!(pair.trace[0].1[..6], [2, 0, 0, 0, 0, 2], "asked directly, not everyone");
    assert_eq!(state(&pair), Some(NeighbourState::Reachable));
}

#[test]
fn packets_to_ourselves_come_back() {
    let mut pair = Pair::new(1500);
    for to in ["127.0.0.1", "10.0.0.1"] {
        let server = pair.a.host.stack.udp_bind(None, 9).unwrap();
        let client = pair.a.host.stack.udp_bind(None, 0).unwrap();
        pair.a
            .host
            .stack
            .udp_send(pair.now, client, Some((address(to), 9)), b"me", &mut pair.a.pool)
            .unwrap();
        pair.settle();
        assert_eq!(read(&mut pair.a, server), Some(b"me".to_vec()), "{to}");
        pair.a.host.stack.udp_close(server, &mut pair.a.pool);
        pair.a.host.stack.udp_close(client, &mut pair.a.pool);
    }
    assert!(pair.trace.iter().all(|(_, p)| p[12..14] == [8, 6]), "nothing but ARP is on the wire");
}

#[test]
fn super_segments_are_cut_for_a_port_that_cannot() {
    let mut router = Node::new(3).with_interface(0, 3, None, 1500, "10.0.0.3/24").with_interface(
        1,
        4,
        None,
        1500,
        "10.1.0.3/24",
    );
    router.host.control.set_forwarding(true);
    let out = router.interface(2);
    router.host.control.add_neighbour(out, address("10.1.0.9"), Mac([2, 0, 0, 0, 0, 9])).unwrap();
    let now = Timestamp::from_nanos(5_000_000_000);
    router.take(now, PortId(1));
    let super_segment = |size: u16, whole: bool| {
        let payload: Vec<u8> = (0..1900u32).map(|i| i.to_le_bytes()[0]).collect();
        let flags = TcpFlags::ACK.with(TcpFlags::FIN);
        let mut tcp = TcpHeader::new((1, 2), 1000, 5, flags, 100, 0);
        let (from, to) = ([10, 0, 0, 7], [10, 1, 0, 9]);
        tcp.checksum = Sum::pseudo(&from, &to, 6, 1920).partial().into();
        let mut ip = Ipv4Header::new(from.into(), to.into(), 6, 1920);
        if !whole {
            ip.fragment = 0.into();
            ip.seal();
        }
        let mut link = ethernet(0x0800);
        link.destination = Mac([2, 0, 0, 0, 0, 3]);
        let bytes = [link.as_bytes(), ip.as_bytes(), tcp.as_bytes(), &payload].concat();
        (bytes, std::num::NonZeroU16::new(size).unwrap())
    };
    // What may not be fragmented, and what may: its segments are.
    for (whole, size, expected) in
        [(true, 1460, vec![1460, 440]), (true, 1900, vec![]), (false, 1600, vec![1460, 120, 300])]
    {
        let (bytes, size) = super_segment(size, whole);
        let mut packet = bywash_frame::Packet::new(router.pool.take().unwrap());
        packet.extend_from_slice(&bytes).unwrap();
        packet.offload.set_checksum(bywash_frame::Checksum::Partial { start: 34, offset: 16 });
        let kind = bywash_frame::SegmentationKind::Tcp4;
        packet.offload.set_segmentation(Some(bywash_frame::Segmentation { kind, size }));
        router.batch.push(packet);
        router.host.receive(now, PORT, &mut router.batch, &mut router.pool);
        let pieces = router.take(now, PortId(1));
        let lengths: Vec<usize> = pieces.iter().map(|p| p.len() - 54).collect();
        assert_eq!(lengths, expected, "pieces of {size} bytes");
        for (i, piece) in pieces.iter().enumerate() {
            let ip = Ipv4Header::parse(&piece[14..], piece.len() - 14).unwrap();
            assert_eq!((ip.time_to_live, piece[..6].to_vec()), (63, vec![2, 0, 0, 0, 0, 9]));
            if ip.fragment.get() & !DONT_FRAGMENT != 0 {
                // A part of a segment.
                continue;
            }
            let length = u32::try_from(piece.len() - 34).unwrap();
            let sum = Sum::pseudo(&[10, 0, 0, 7], &[10, 1, 0, 9], 6, length).bytes(&piece[34..]);
            assert_eq!(sum.checksum(), 0, "piece {i} is summed");
        }
    }
    assert_eq!(router.host.stack.counters().forwarded, 2, "the other is too big for the link even when cut");
    // Its sender would be told, but nobody says where he is.
    (0..9).for_each(|second| drop(router.take(now + Duration::from_secs(second), PORT)));
    router.assert_nothing_leaked();
}

/// Each datagram would be compared with 20 000 sockets: 4 * 10^8 steps, seconds in this profile even on a fast machine.
#[test]
fn connected_sockets_that_share_a_port_are_told_apart_at_once() {
    const N: u16 = 20_000;
    let mut node = Node::new(1).with_interface(0, 1, None, 1500, "10.0.0.1/24");
    let now = Timestamp::from_nanos(5_000_000_000);
    let sockets: Vec<_> = (0..N)
        .map(|i| {
            let id = node.host.stack.udp_bind(None, 9).unwrap();
            node.host.stack.udp_connect(id, Some((address("10.0.0.2"), 1000 + i))).unwrap();
            id
        })
        .collect();
    let open = node.host.stack.udp_bind(None, 9).unwrap();
    assert_eq!(node.host.stack.udp_bind(None, 9), Err(UdpError::Taken), "one without a peer is enough");
    let datagram = |port: u16| {
        let ip = Ipv4Header::new([10, 0, 0, 2].into(), [10, 0, 0, 1].into(), 17, 8);
        let [high, low] = port.to_be_bytes();
        [ethernet(0x0800).as_bytes(), ip.as_bytes(), &[high, low, 0, 9, 0, 8, 0, 0]].concat()
    };
    let start = std::time::Instant::now();
    for (i, id) in sockets.iter().enumerate() {
        node.put(now, PORT, &datagram(1000 + u16::try_from(i).unwrap()));
        assert_eq!(read(&mut node, *id), Some(vec![]));
    }
    assert!(start.elapsed() < Duration::from_secs(3), "{:?}", start.elapsed());
    node.put(now, PORT, &datagram(999));
    assert_eq!(read(&mut node, open), Some(vec![]), "nobody's peer");
    node.host.stack.udp_close(open, &mut node.pool);
    node.host.stack.udp_connect(sockets[0], None).unwrap();
    node.put(now, PORT, &datagram(999));
    assert_eq!(read(&mut node, sockets[0]), Some(vec![]), "it has no peer any more");
    for id in sockets {
        node.host.stack.udp_close(id, &mut node.pool);
    }
    node.put(now, PORT, &datagram(1000));
    assert_eq!(node.host.stack.counters().refused, 1);
}

#[test]
fn who_makes_up_neighbours_makes_few() {
    let mut node = Node::new(1).with_interface(0, 1, None, 1500, "10.0.0.1/8");
    let mut now = Timestamp::from_nanos(5_000_000_000);
    node.take(now, PORT);
    let question = |i: u16| {
        let [high, low] = i.to_be_bytes();
        let arp: &[&[u8]] =
            &[&[0, 1, 8, 0, 6, 4, 0, 1, 2, 0, 0, 9, high, low, 10, 9, high, low, 0, 0, 0, 0, 0, 0]];
        [ethernet(0x0806).as_bytes(), &arp.concat(), &[10, 0, 0, 1]].concat()
    };
    let known = |node: &Node| node.host.control.neighbours().count();
    for i in 0..2000 {
        node.put(now, PORT, &question(i));
        assert_eq!(node.take(now, PORT).len(), 1, "an answer has everyone");
    }
    assert_eq!(known(&node), 256);
    now = now + Duration::from_secs(1);
    for i in 2000..4000 {
        node.put(now, PORT, &question(i));
        node.take(now, PORT);
    }
    assert_eq!(known(&node), 356, "100 a second more");
}

#[test]
fn what_is_only_passed_on_keeps_every_rule() {
    let (mut router, now) = router_to_a_narrow_link();
    let packet = |source: [u8; 4], to: [u8; 4], length: u16, change: &dyn Fn(&mut Ipv4Header)| {
        let mut ip = Ipv4Header::new(source.into(), to.into(), 17, length);
        change(&mut ip);
        let mut link = ethernet(0x0800);
        link.destination = Mac([2, 0, 0, 0, 0, 3]);
        [link.as_bytes(), ip.as_bytes(), &vec![7; usize::from(length)]].concat()
    };
    let (from, to) = ([172, 16, 0, 1], [192, 168, 7, 7]);
    let set = |ttl: u8| {
        move |ip: &mut Ipv4Header| {
            ip.time_to_live = ttl;
            ip.seal();
        }
    };
    let good = packet(from, to, 100, &set(9));
    router.put(now, PORT, &good);
    let sent = router.take(now, PortId(1));
    let mut expected = packet(from, to, 100, &set(8));
    expected[..12].copy_from_slice(&[2, 0, 0, 0, 0, 9, 2, 0, 0, 0, 0, 4]);
    assert_eq!(sent, [expected], "one hop less, a right checksum, and new addresses in front");
    let counters = |router: &Node| {
        let c = router.host.stack.counters();
        [c.forwarded, c.checksum, c.martian, c.malformed, c.not_for_us]
    };
    let mut other_mac = good.clone();
    other_mac[5] = 77;
    let cut = |ip: &mut Ipv4Header| {
        ip.total_length = 200.into();
        ip.seal();
    };
    for (bytes, expected) in [
        (good.clone(), [1, 0, 0, 0, 0]),
        (packet(from, to, 100, &|ip| ip.time_to_live = 9), [0, 1, 0, 0, 0]),
        (packet([127, 0, 0, 1], to, 100, &set(9)), [0, 0, 1, 0, 0]),
        (packet([224, 0, 0, 1], to, 100, &set(9)), [0, 0, 1, 0, 0]),
        (packet([10, 0, 0, 3], to, 100, &set(9)), [0, 0, 1, 0, 0]),
        (packet([10, 1, 0, 255], to, 100, &set(9)), [0, 0, 1, 0, 0]),
        (packet(from, to, 100, &cut), [0, 0, 0, 1, 0]),
        (packet(from, [127, 0, 0, 1], 100, &set(9)), [0, 0, 1, 0, 0]),
        // For us, and there no UDP.
        (packet(from, [10, 0, 0, 3], 100, &set(9)), [0, 0, 0, 1, 0]),
        (packet(from, to, 100, &set(1)), [0, 0, 0, 0, 0]),
        (packet(from, to, 1000, &set(9)), [0, 0, 0, 0, 0]),
        (other_mac, [0, 0, 0, 0, 1]),
    ] {
        let before = counters(&router);
        router.put(now, PORT, &bytes);
        let after = counters(&router);
        let grown: Vec<u64> = before.iter().zip(after).map(|(before, after)| after - before).collect();
        assert_eq!(grown, expected, "{:?}", &bytes[..34]);
        assert_eq!(router.take(now, PortId(1)).len() as u64, expected[0]);
    }
    (0..9).for_each(|second| drop(router.take(now + Duration::from_secs(second), PORT)));
    router.assert_nothing_leaked();
}

/// A datagram to port 9, from 10.0.0.2 and in a frame to `mac`.
pub(crate) fn datagram(mac: Mac, to: [u8; 4]) -> Vec<u8> {
    let ip = Ipv4Header::new([10, 0, 0, 2].into(), to.into(), Protocol::UDP.0, 8);
    let link = EthernetHeader { destination: mac, ..ethernet(0x0800) };
    [link.as_bytes(), ip.as_bytes(), &[0, 7, 0, 9, 0, 8, 0, 0]].concat()
}

/// RFC 1122, 3.2.1.3 (3) and 3.3.7; RFC 1112, 4.
#[test]
fn of_all_groups_only_that_of_all_hosts_is_ours() {
    let mut node = Node::new(1).with_interface(0, 1, None, 1500, "10.0.0.1/24");
    let now = Timestamp::from_nanos(5_000_000_000);
    let server = node.host.stack.udp_bind(None, 9).unwrap();
    for (to, ours) in [
        ([224, 0, 0, 1], true),
        ([255; 4], true),
        ([10, 0, 0, 255], true),
        ([224, 0, 0, 251], false),
        ([239, 1, 2, 3], false),
    ] {
        let before = node.host.stack.counters().not_for_us;
        let mac = if to[3] == 255 { Mac::BROADCAST } else { Mac([1, 0, 0x5e, to[1] & 0x7f, to[2], to[3]]) };
        node.put(now, PORT, &datagram(mac, to));
        let not_for_us = node.host.stack.counters().not_for_us - before;
        assert_eq!((read(&mut node, server).is_some(), not_for_us), (ours, u64::from(!ours)), "{to:?}");
    }
}

/// RFC 1122, 3.3.6.
#[test]
fn what_is_for_one_host_and_came_to_many_is_nobodys() {
    let mut pair = Pair::new(1500);
    pair.settle();
    let server = pair.a.host.stack.udp_bind(None, 9).unwrap();
    pair.a.host.stack.listen(None, 80, 4).unwrap();
    let mut icmp = IcmpHeader { kind: icmpv4::ECHO_REQUEST, code: 0, checksum: 0.into(), rest: 7.into() };
    icmp.checksum = Sum::new().bytes(icmp.as_bytes()).checksum().into();
    let mut tcp = TcpHeader::new((5000, 80), 1, 0, TcpFlags::SYN, 1000, 0);
    tcp.checksum = Sum::pseudo(&[10, 0, 0, 2], &[10, 0, 0, 1], 6, 20).bytes(tcp.as_bytes()).checksum().into();
    for (many, mac) in
        [(false, Mac([2, 0, 0, 0, 0, 1])), (true, Mac::BROADCAST), (true, Mac([1, 0, 0x5e, 0, 0, 1]))]
    {
        pair.trace.clear();
        let link = EthernetHeader { destination: mac, ..ethernet(0x0800) };
        for (protocol, bytes) in [(Protocol::ICMP, icmp.as_bytes()), (Protocol::TCP, tcp.as_bytes())] {
            let length = u16::try_from(bytes.len()).unwrap();
            let ip = Ipv4Header::new([10, 0, 0, 2].into(), [10, 0, 0, 1].into(), protocol.0, length);
            pair.a.put(pair.now, PORT, &[link.as_bytes(), ip.as_bytes(), bytes].concat());
        }
        pair.a.put(pair.now, PORT, &datagram(mac, [10, 0, 0, 1]));
        pair.settle();
        let answers = pair.trace.iter().filter(|(a, p)| *a && p[12..14] == [8, 0]).count();
        let counted = pair.a.host.stack.counters().not_for_us;
        assert_eq!((answers, read(&mut pair.a, server).is_none()), (if many { 0 } else { 2 }, many), "{mac}");
        assert_eq!(counted % 3, 0, "{counted}");
        pair.pass(Duration::from_secs(90));
    }
    assert_eq!(pair.a.host.stack.counters().not_for_us, 6);
}
