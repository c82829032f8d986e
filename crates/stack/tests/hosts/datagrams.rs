//! UDP: what sockets may hold, which ports they have, and what they may send.

use std::num::{NonZeroU8, NonZeroU16};
use std::time::Duration;

use crate::ip::{ethernet, read};
use crate::ip6;
use crate::wire::{Node, PORT, Pair, address};
use bywash_frame::{Checksum, Packet, Segmentation, SegmentationKind};
use bywash_stack::{Event, PortId, Timestamp, UdpError, UdpOptions};
use bywash_wire::zerocopy::IntoBytes;
use bywash_wire::{Ipv4Header, Mac, Protocol};

/// A datagram without payload, from 10.0.0.2 to a port of 10.0.0.1.
fn datagram(from: u16, to: u16) -> Vec<u8> {
    datagram_at([10, 0, 0, 1], from, to)
}

/// A datagram without payload, from 10.0.0.2.
fn datagram_at(local: [u8; 4], from: u16, to: u16) -> Vec<u8> {
    let ip = Ipv4Header::new([10, 0, 0, 2].into(), local.into(), 17, 8);
    let ports = [from.to_be_bytes(), to.to_be_bytes()].concat();
    [ethernet(0x0800).as_bytes(), ip.as_bytes(), &ports, &[0, 8, 0, 0]].concat()
}

/// The unspecified address is all of its family.
#[test]
fn a_socket_may_be_for_all_addresses_of_one_family() {
    let mut pair = Pair::new(1500);
    let stack = &mut pair.a.host.stack;
    let v6 = stack.udp_bind(Some(address("::")), 7).unwrap();
    let to = (address("10.0.0.2"), 7);
    assert_eq!(stack.udp_connect(v6, Some(to)), Err(UdpError::NoRoute(to.0)));
    let v4 = stack.udp_bind(Some(address("0.0.0.0")), 7).unwrap();
    for taken in [None, Some("::"), Some("0.0.0.0"), Some("10.0.0.1")] {
        assert_eq!(stack.udp_bind(taken.map(address), 7), Err(UdpError::Taken), "{taken:?}");
    }
    pair.a.put(pair.now, PORT, &datagram(5, 7));
    assert_eq!((read(&mut pair.a, v6), read(&mut pair.a, v4)), (None, Some(vec![])));
    // With a peer it has the address that this one hears from, and again all without.
    let stack = &mut pair.a.host.stack;
    let local = |stack: &bywash_stack::Stack| {
        stack.sockets().filter(|socket| socket.local.1 == 7).map(|socket| socket.local.0).max()
    };
    stack.udp_connect(v4, Some(to)).unwrap();
    assert_eq!(local(stack), Some(Some(address("10.0.0.1"))));
    stack.udp_connect(v4, None).unwrap();
    assert_eq!(local(stack), Some(Some(address("0.0.0.0"))));
}

/// As with connections: three eighths of all frames, and one for each socket.
#[test]
fn what_no_program_reads_of_many_sockets_leaves_memory_for_others() {
    let node = |number: u8| {
        Node::with_frames(number, 600).with_interface(0, number, None, 1500, &format!("10.0.0.{number}/24"))
    };
    let mut pair =
        Pair { now: Timestamp::from_nanos(1_000_000_000), a: node(1), b: node(2), trace: [].into() };
    pair.settle();
    let sockets: Vec<_> = (1..=10).map(|port| pair.a.host.stack.udp_bind(None, port).unwrap()).collect();
    for port in 1..=9 {
        (0..90).for_each(|_| pair.a.put(pair.now, PORT, &datagram(7, port)));
    }
    let counted = pair.a.host.stack.counters();
    let held = usize::try_from(counted.udp_received).unwrap();
    assert!((225..=234).contains(&held), "{held}");
    assert_eq!(counted.udp_full, 810 - counted.udp_received);
    assert_eq!(592 - pair.a.pool.free(), held);
    // Who is read goes on, and so does TCP.
    for _ in 0..5 {
        pair.a.put(pair.now, PORT, &datagram(7, 10));
        assert_eq!(read(&mut pair.a, sockets[9]), Some(vec![]));
    }
    pair.a.host.stack.listen(None, 80, 10).unwrap();
    let to = (address("10.0.0.1"), 80);
    let id = pair.b.host.stack.connect(pair.now, (None, 0), to, &mut pair.b.pool).unwrap();
    pair.settle();
    assert_eq!(pair.b.host.stack.events().collect::<Vec<_>>(), [Event::Connected(id)]);
    // There is room again for what is read or closed.
    while read(&mut pair.a, sockets[0]).is_some() {}
    pair.a.host.stack.udp_close(sockets[1], &mut pair.a.pool);
    (0..90).for_each(|_| pair.a.put(pair.now, PORT, &datagram(7, 10)));
    assert!(pair.a.host.stack.counters().udp_received >= 5 + counted.udp_received + 90);
    for socket in sockets {
        pair.a.host.stack.udp_close(socket, &mut pair.a.pool);
    }
    pair.a.assert_nothing_leaked();
}

#[test]
fn who_gives_up_a_peer_does_not_come_to_share_a_port() {
    let mut node = Node::new(1).with_interface(0, 1, None, 1500, "10.0.0.1/24");
    let now = Timestamp::from_nanos(5_000_000_000);
    let peer = Some((address("10.0.0.2"), 1000));
    for (first, second) in [(None, None), (Some("10.0.0.1"), None), (None, Some("10.0.0.1"))] {
        let stack = &mut node.host.stack;
        let tied = stack.udp_bind(first.map(address), 9).unwrap();
        stack.udp_connect(tied, peer).unwrap();
        let open = stack.udp_bind(second.map(address), 9).unwrap();
        assert_eq!(stack.udp_connect(tied, None), Err(UdpError::Taken), "{first:?} {second:?}");
        // All is as it was.
        node.put(now, PORT, &datagram(1000, 9));
        node.put(now, PORT, &datagram(999, 9));
        assert_eq!((read(&mut node, tied), read(&mut node, tied)), (Some(vec![]), None));
        assert_eq!((read(&mut node, open), read(&mut node, open)), (Some(vec![]), None));
        let stack = &mut node.host.stack;
        stack.udp_close(open, &mut node.pool);
        assert_eq!(stack.udp_connect(tied, None), Ok(()));
        assert_eq!(stack.udp_connect(tied, None), Ok(()), "it has none");
        stack.udp_close(tied, &mut node.pool);
    }
}

#[test]
fn two_sockets_are_not_tied_to_the_same_ends() {
    let mut node = Node::new(1).with_interface(0, 1, None, 1500, "10.0.0.1/24");
    let stack = &mut node.host.stack;
    let (local, peer) = ((Some(address("10.0.0.1")), 9), (address("10.0.0.2"), 53));
    let first = stack.udp_connect_where(local, peer, |_| true).unwrap();
    assert_eq!(stack.udp_connect_where(local, peer, |_| true), Err(UdpError::Taken));
    // Nothing is left of that one: its port is free for one without a peer.
    let second = stack.udp_bind(local.0, 9).unwrap();
    assert_eq!(stack.udp_connect(second, Some(peer)), Err(UdpError::Taken));
    assert_eq!(stack.udp_connect(first, Some(peer)), Ok(()), "as it is");
    stack.udp_connect(second, Some((peer.0, 54))).unwrap();
    stack.udp_close(first, &mut node.pool);
    assert_eq!(stack.udp_connect(second, Some(peer)), Ok(()));
}

#[test]
fn with_a_peer_a_socket_hears_only_at_the_address_that_the_peer_hears_from() {
    let mut node = Node::new(1).with_interface(0, 1, None, 1500, "10.0.0.1/24");
    let (now, link) = (Timestamp::from_nanos(5_000_000_000), node.interface(1));
    node.host.control.add_address(now, link, "10.0.0.3/24".parse().unwrap()).unwrap();
    let now = now + Duration::from_secs(10);
    drop(node.take(now, PORT));
    let stack = &mut node.host.stack;
    let id = stack.udp_bind(None, 9).unwrap();
    let far = address("192.0.2.1");
    assert_eq!(stack.udp_connect(id, Some((far, 7))), Err(UdpError::NoRoute(far)));
    stack.udp_connect(id, Some((address("10.0.0.2"), 1000))).unwrap();
    let local = stack.sockets().map(|socket| socket.local).collect::<Vec<_>>();
    assert_eq!(local, [(Some(address("10.0.0.1")), 9)]);
    for (to, heard) in [([10, 0, 0, 1], true), ([10, 0, 0, 3], false)] {
        node.put(now, PORT, &datagram_at(to, 1000, 9));
        assert_eq!(read(&mut node, id).is_some(), heard, "{to:?}");
    }
    // Without a peer it is as it was opened.
    node.host.stack.udp_connect(id, None).unwrap();
    node.put(now, PORT, &datagram_at([10, 0, 0, 3], 1000, 9));
    assert!(read(&mut node, id).is_some());
}

/// A node that has 10.0.0.1 and 10.0.0.3, and 10.0.0.2 for a neighbour.
fn with_two_addresses() -> (Node, Timestamp) {
    let mut node = Node::new(1).with_interface(0, 1, None, 1500, "10.0.0.1/24");
    let (now, link) = (Timestamp::from_nanos(5_000_000_000), node.interface(1));
    node.host.control.add_address(now, link, "10.0.0.3/24".parse().unwrap()).unwrap();
    node.host.control.add_neighbour(link, address("10.0.0.2"), Mac([2, 0, 0, 0, 0, 9])).unwrap();
    let now = now + Duration::from_secs(10);
    drop(node.take(now, PORT));
    (node, now)
}

/// RFC 1122, 4.1.3.5.
#[test]
fn a_datagram_is_answered_from_the_address_at_which_it_came() {
    let (mut node, now) = with_two_addresses();
    let peer = (address("10.0.0.2"), 7);
    let id = node.host.stack.udp_bind(None, 9).unwrap();
    for (from, source) in [
        ("10.0.0.1", Ok([10, 0, 0, 1])),
        ("10.0.0.3", Ok([10, 0, 0, 3])),
        ("224.0.0.1", Ok([10, 0, 0, 1])),
        ("10.0.0.255", Ok([10, 0, 0, 1])),
        ("10.0.0.4", Err(UdpError::NoRoute(peer.0))),
    ] {
        let sent = node.host.stack.udp_send_from(now, id, (address(from), peer), b"x", &mut node.pool);
        assert_eq!(sent, source.map(|_| ()), "{from}");
        let out = node.take(now, PORT);
        let sources: Vec<&[u8]> = out.iter().map(|packet| &packet[26..30]).collect();
        assert_eq!(sources, source.iter().map(|source| &source[..]).collect::<Vec<_>>(), "{from}");
    }
}

/// RFC 1122, 4.1.4, and RFC 1112, 6.1 of groups.
#[test]
fn the_class_and_the_time_to_live_of_datagrams_are_the_program_s() {
    let (node, now) = with_two_addresses();
    let wire = node.interface(1);
    let mut node = node.with_route("0.0.0.0/0", "10.0.0.2", wire);
    node.host.control.add_address(now, wire, "fd00::1/64".parse().unwrap()).unwrap();
    node.host.control.add_neighbour(wire, address("fd00::2"), Mac([2, 0, 0, 0, 0, 2])).unwrap();
    (0..=40).for_each(|step| drop(node.take(now + Duration::from_millis(100) * step, PORT)));
    let now = now + Duration::from_secs(4);
    let id = node.host.stack.udp_bind(None, 9).unwrap();
    let set = |traffic_class, one, many| UdpOptions {
        traffic_class,
        hop_limit: NonZeroU8::new(one),
        group_hop_limit: NonZeroU8::new(many),
    };
    for (options, one, many) in
        [(set(0, 0, 0), (0, 64), 1), (set(0xb9, 9, 0), (0xb9, 9), 1), (set(0xb8, 0, 255), (0xb8, 64), 255)]
    {
        node.host.stack.set_udp_options(id, options).unwrap();
        for (to, length, (class, hops)) in [
            ("10.0.0.2", 1, one),
            ("10.0.0.255", 1, one),
            ("fd00::2", 1, one),
            ("224.0.0.9", 1, (one.0, many)),
            // Longer than the link takes: so are all its pieces.
            ("10.0.0.2", 2000, one),
            ("fd00::2", 2000, one),
        ] {
            let (to, bytes) = (address(to), vec![0; length]);
            node.host.stack.udp_send(now, id, Some((to, 7)), &bytes, &mut node.pool).unwrap();
            let out = node.take(now, PORT);
            assert_eq!(out.len(), if length == 1 { 1 } else { 2 }, "{to}");
            for packet in out {
                let said = match packet[14] >> 4 {
                    4 => (packet[15], packet[22]),
                    _ => (packet[14] << 4 | packet[15] >> 4, packet[21]),
                };
                assert_eq!(said, (class, hops), "{to}, {options:?}");
            }
        }
    }
    node.host.stack.udp_close(id, &mut node.pool);
    assert_eq!(node.host.stack.set_udp_options(id, UdpOptions::default()), Err(UdpError::Closed));
}

/// RFC 1122, 3.2.1.3; RFC 4291, 2.5.2, 2.5.3, 2.5.6, 2.7: none of these is ever on a wire.
#[test]
fn what_may_not_be_on_a_wire_is_not_sent() {
    let mut node = Node::new(1).with_interface(0, 1, None, 1500, "10.0.0.1/24").with_interface(
        1,
        3,
        None,
        1500,
        "10.1.0.1/24",
    );
    let links = [node.interface(1), node.interface(2)];
    for (id, own, router) in [(links[0], "fd00::1/64", "fe80::2"), (links[1], "fd01::1/64", "fe80::4")] {
        node.host.control.add_address(Timestamp::ZERO, id, own.parse().unwrap()).unwrap();
        node.host.control.add_neighbour(id, address(router), Mac([2, 0, 0, 0, 0, 9])).unwrap();
    }
    node.host.control.add_neighbour(links[0], address("10.0.0.9"), Mac([2, 0, 0, 0, 0, 9])).unwrap();
    let mut node = node.with_route("0.0.0.0/0", "10.0.0.9", links[0]).with_route("::/0", "fe80::2", links[0]);
    let mut now = Timestamp::ZERO;
    for _ in 0..12 {
        now = now + Duration::from_millis(600);
        [0, 1].iter().for_each(|port| drop(node.take(now, PortId(*port))));
    }
    let on = |text: &str, link: usize| address(text).with_zone(links[link]);
    let (far, far6) = (address("8.8.8.8"), address("2001:db8::9"));
    let ours = on("fe80::ff:fe00:1", 0);
    // From where, to where, and whether it is sent. TCP is told of no group.
    for (local, remote, sent) in [
        (None, far, true),
        (Some(address("10.0.0.1")), far, true),
        (Some(address("10.1.0.1")), far, true),
        (Some(address("10.0.0.7")), far, false),
        (Some(address("127.0.0.1")), far, false),
        (Some(address("::1")), far6, false),
        (Some(address("fd00::7")), far6, false),
        (Some(ours), far6, true),
        (Some(ours), on("fe80::4", 1), false),
        (Some(address("fd00::1")), far6, true),
        (None, address("0.0.0.0"), false),
        (None, address("0.1.2.3"), false),
        (None, address("::"), false),
        (None, on("ff01::1", 0), false),
        (None, on("ff00::1", 0), false),
        (None, on("ff02::1", 0), true),
    ] {
        let stack = &mut node.host.stack;
        let bound = stack.udp_bind(local, 0);
        let told = bound.and_then(|id| {
            let told = stack.udp_send(now, id, Some((remote, 9)), b"x", &mut node.pool);
            stack.udp_close(id, &mut node.pool);
            told
        });
        let out: usize = [0, 1].map(|port| node.take(now, PortId(port)).len()).iter().sum();
        assert_eq!((told.is_ok(), out), (sent, usize::from(sent)), "UDP {local:?} {remote}");
        let stack = &mut node.host.stack;
        let told = stack.connect(now, (local, 0), (remote, 80), &mut node.pool);
        let out: usize = [0, 1].map(|port| node.take(now, PortId(port)).len()).iter().sum();
        let sent = sent && !remote.is_multicast();
        assert_eq!((told.is_ok(), out), (sent, usize::from(sent)), "TCP {local:?} {remote}");
        if let Ok(id) = told {
            node.host.stack.abort(now, id, &mut node.pool).unwrap();
        }
        [0, 1].iter().for_each(|port| drop(node.take(now, PortId(*port))));
    }
    // Among ourselves it is another matter, and who hears a group speaks as himself.
    let stack = &mut node.host.stack;
    let server = stack.udp_bind(Some(address("127.0.0.1")), 9).unwrap();
    let client = stack.udp_bind(Some(address("10.0.0.1")), 0).unwrap();
    stack.udp_send(now, client, Some((address("127.0.0.1"), 9)), b"x", &mut node.pool).unwrap();
    node.take(now, PORT);
    assert_eq!(read(&mut node, server), Some(b"x".to_vec()));
    let stack = &mut node.host.stack;
    let group = stack.udp_bind(Some(address("224.0.0.1")), 5000).unwrap();
    stack.udp_send(now, group, Some((far, 9)), b"x", &mut node.pool).unwrap();
    let packets = node.take(now, PORT);
    assert_eq!(packets[0][26..30], [10, 0, 0, 1]);
    assert_eq!(
        node.host.stack.udp_bind(Some(address("10.0.0.7")), 9),
        Err(UdpError::NoRoute(address("10.0.0.7")))
    );
}

/// As Linux's `UDP_SEGMENT` sends them, and ports that join datagrams leave them (Linux: `udp_unexpected_gso`).
#[test]
fn datagrams_that_come_as_one_are_given_one_by_one() {
    let mut node = Node::new(1).with_interface(0, 1, None, 1500, "10.0.0.1/24");
    let id = node.interface(1);
    node.host.control.add_address(Timestamp::ZERO, id, "fd00::1/64".parse().unwrap()).unwrap();
    let mut now = Timestamp::ZERO;
    for _ in 0..4 {
        now = now + Duration::from_secs(1);
        node.take(now, PORT);
    }
    let server = node.host.stack.udp_bind(None, 9).unwrap();
    let payload: Vec<u8> = (0..1900u16).map(|i| i.to_le_bytes()[0] ^ i.to_le_bytes()[1]).collect();
    let udp = [&[0, 7, 0, 9][..], &1908u16.to_be_bytes(), &[0, 0], &payload].concat();
    let ip = Ipv4Header::new([10, 0, 0, 2].into(), [10, 0, 0, 1].into(), 17, 1908);
    let v4 = [ethernet(0x0800).as_bytes(), ip.as_bytes(), &udp].concat();
    let v6 = ip6::frame(Mac([2, 0, 0, 0, 0, 1]), "fd00::2", "fd00::1", Protocol::UDP, 64, &udp);
    // Between the headers stands what no super-segment has.
    let options = [&[17, 0, 1, 4, 0, 0, 0, 0][..], &udp].concat();
    let behind = ip6::frame(Mac([2, 0, 0, 0, 0, 1]), "fd00::2", "fd00::1", Protocol(60), 64, &options);
    let mut come = |bytes: &[u8], checksum: Checksum, size: u16| {
        let mut packet = Packet::new(node.pool.take().unwrap());
        packet.append(bytes, &mut node.pool).unwrap();
        packet.offload.set_checksum(checksum);
        let size = NonZeroU16::new(size).unwrap();
        packet.offload.set_segmentation(Some(Segmentation { kind: SegmentationKind::Udp, size }));
        node.batch.push(packet);
        let before = node.host.stack.counters();
        node.host.receive(now, PORT, &mut node.batch, &mut node.pool);
        let after = node.host.stack.counters();
        let datagrams: Vec<Vec<u8>> = std::iter::from_fn(|| read(&mut node, server)).collect();
        assert_eq!(after.udp_received - before.udp_received, datagrams.len() as u64);
        assert!(datagrams.is_empty() || datagrams.concat() == payload);
        let lengths = datagrams.iter().map(Vec::len).collect::<Vec<_>>();
        (lengths, after.checksum - before.checksum, after.no_memory - before.no_memory)
    };
    let partial = |start| Checksum::Partial { start, offset: 6 };
    assert_eq!(come(&v4, partial(34), 950), (vec![950, 950], 0, 0));
    assert_eq!(come(&v4, Checksum::Valid, 1000), (vec![1000, 900], 0, 0));
    assert_eq!(come(&v6, partial(54), 700), (vec![700, 700, 500], 0, 0));
    assert_eq!(come(&v6, Checksum::Valid, 1900), (vec![1900], 0, 0));
    // One that is wrong is so for all.
    assert_eq!(come(&v4, Checksum::Bad, 950), (vec![], 1, 0));
    assert_eq!(come(&behind, partial(62), 950), (vec![], 0, 1), "it cannot be cut");
    node.host.stack.udp_close(server, &mut node.pool);
    node.take(now, PORT);
    node.assert_nothing_leaked();
}

/// RFC 1122, 4.1.3.5, of a socket that has an address of its own.
#[test]
fn who_answers_what_was_for_many_speaks_from_the_address_of_his_socket() {
    let (mut node, now) = with_two_addresses();
    let id = node.host.stack.udp_bind(Some(address("10.0.0.3")), 9).unwrap();
    for (from, source) in [("10.0.0.255", 3), ("224.0.0.1", 3), ("255.255.255.255", 3), ("10.0.0.1", 1)] {
        let ends = (address(from), (address("10.0.0.2"), 7));
        node.host.stack.udp_send_from(now, id, ends, b"x", &mut node.pool).unwrap();
        let sources: Vec<_> = node.take(now, PORT).iter().map(|packet| packet[26..30].to_vec()).collect();
        assert_eq!(sources, [[10, 0, 0, source]], "{from}");
    }
}
