//! ICMP: what is answered and reported, to whom, and what is believed of what others report.

use std::time::Duration;

use crate::ip::{datagram, ethernet};
use crate::ip6;
use crate::wire::{Node, PORT, Pair, address};
use bywash_stack::{Event, Timestamp, UdpError, Unreachable};
use bywash_wire::checksum::Sum;
use bywash_wire::zerocopy::IntoBytes;
use bywash_wire::{EthernetHeader, IcmpHeader, Ipv4Header, Ipv6Header, Mac, Protocol, icmpv4, icmpv6};

#[test]
fn a_closed_port_is_refused_and_the_error_comes_back() {
    let mut pair = Pair::new(1500);
    let client = pair.a.host.stack.udp_bind(None, 0).unwrap();
    pair.a.host.stack.udp_connect(client, Some((address("10.0.0.2"), 7))).unwrap();
    pair.a.host.stack.udp_send(pair.now, client, None, b"anyone?", &mut pair.a.pool).unwrap();
    pair.settle();
    let error = pair.a.host.stack.udp_receive(client).unwrap_err();
    assert_eq!(error, UdpError::Unreachable(Unreachable::Port));
    assert!(pair.a.host.stack.udp_receive(client).unwrap().is_none(), "told once");
}

#[test]
fn echoes_are_answered_but_not_for_everyone_nor_without_limit() {
    let mut pair = Pair::new(1500);
    pair.settle();
    pair.pass(Duration::from_secs(1));
    pair.trace.clear();
    let echo = |to: [u8; 4], mac: Mac| {
        let payload = b"abcdefgh";
        let mut icmp =
            IcmpHeader { kind: icmpv4::ECHO_REQUEST, code: 0, checksum: 0.into(), rest: 0x1234_0001.into() };
        icmp.checksum = Sum::new().bytes(icmp.as_bytes()).bytes(payload).checksum().into();
        let mut ip = Ipv4Header::new([10, 0, 0, 2].into(), to.into(), Protocol::ICMP.0, 16);
        // A class, and a mark of its way.
        ip.traffic_class = 0xb8 | 3;
        ip.seal();
        let mut link = ethernet(0x0800);
        link.destination = mac;
        [link.as_bytes(), ip.as_bytes(), icmp.as_bytes(), payload].concat()
    };
    let me = Mac([2, 0, 0, 0, 0, 1]);
    pair.a.put(pair.now, PORT, &echo([10, 0, 0, 1], me));
    pair.a.put(pair.now, PORT, &echo([10, 0, 0, 255], Mac::BROADCAST));
    let mut broken = echo([10, 0, 0, 1], me);
    broken[45] ^= 1;
    pair.a.put(pair.now, PORT, &broken);
    pair.settle();
    let replies: Vec<_> = pair.trace.iter().filter(|(a, p)| *a && p[23] == 1).collect();
    assert_eq!(replies.len(), 1);
    let reply = &replies[0].1;
    assert_eq!((reply[34], reply[15]), (icmpv4::ECHO_REPLY, 0xb8));
    assert_eq!(Sum::new().bytes(&reply[34..]).checksum(), 0);
    assert_eq!(reply[42..], *b"abcdefgh");
    Ipv4Header::parse(&reply[14..], reply.len() - 14).unwrap();
    pair.trace.clear();
    for _ in 0..200 {
        pair.a.put(pair.now, PORT, &echo([10, 0, 0, 1], me));
    }
    // Whoever asks for more echoes than there are keeps nobody from errors: a closed port.
    let udp = Ipv4Header::new([10, 0, 0, 2].into(), [10, 0, 0, 1].into(), Protocol::UDP.0, 8);
    let mut link = ethernet(0x0800);
    link.destination = me;
    pair.a.put(pair.now, PORT, &[link.as_bytes(), udp.as_bytes(), &[0, 7, 0, 9, 0, 8, 0, 0]].concat());
    pair.settle();
    let count = |kind: u8| pair.trace.iter().filter(|(a, p)| *a && p[34] == kind).count();
    assert!(count(icmpv4::ECHO_REPLY) <= 50, "{} at one moment", pair.trace.len());
    assert_eq!(count(icmpv4::UNREACHABLE), 1);
}

/// Each comes a little sooner than another answer is allowed: what is over of the time before must not be lost.
#[test]
fn of_1001_echoes_a_second_1000_are_answered() {
    let mut node = Node::new(1).with_interface(0, 1, None, 1500, "10.0.0.1/24");
    node.host.control.add_neighbour(node.interface(1), address("10.0.0.2"), Mac([2, 0, 0, 0, 0, 2])).unwrap();
    let mut now = Timestamp::from_nanos(5_000_000_000);
    node.take(now, PORT);
    let ip = Ipv4Header::new([10, 0, 0, 2].into(), [10, 0, 0, 1].into(), Protocol::ICMP.0, 8);
    let request = [ethernet(0x0800).as_bytes(), ip.as_bytes(), &[8, 0, 0xf7, 0xff, 0, 0, 0, 0]].concat();
    let mut ask = |times: u64, apart: u64| {
        let mut answered = 0;
        for _ in 0..times {
            now = now + Duration::from_nanos(apart);
            node.put(now, PORT, &request);
            answered += node.take(now, PORT).iter().filter(|sent| sent[12..14] == [8, 0]).count();
        }
        answered
    };
    assert_eq!(ask(2002, 999_001), 2002, "two of them are of those that may be answered at once");
    let answered = ask(2000, 500_500);
    assert!((1048..=1050).contains(&answered), "{answered} in 1001 milliseconds, and 48 at once");
}

/// RFC 1122, 3.2.2 and RFC 1812, 4.3.2.7, line by line: about what no error may be sent.
#[test]
fn errors_are_sent_only_about_what_they_may_be_about() {
    let router = Node::new(3).with_interface(0, 3, None, 1500, "10.0.0.3/24");
    let wire = router.interface(1);
    let mut router = router.with_route("0.0.0.0/0", "10.0.0.2", wire);
    router.host.control.set_forwarding(true);
    router.host.control.add_neighbour(wire, address("10.0.0.2"), Mac([2, 0, 0, 0, 0, 2])).unwrap();
    let mut now = Timestamp::from_nanos(5_000_000_000);
    router.take(now, PORT);
    let (us, far) = ([10, 0, 0, 3], [192, 168, 0, 1]);
    let port = vec![0, 1, 0, 7, 0, 8, 0, 0];
    let icmp = |kind: u8| vec![kind, 0, 0, 0, 0, 0, 0, 0];
    let mac = Mac([2, 0, 0, 0, 0, 3]);
    let usual = (mac, [172, 16, 0, 1], us, 17, 64, 0, port.clone());
    for (why, errors, (mac, source, to, protocol, hops, fragment, payload)) in [
        ("a closed port", 1, usual.clone()),
        ("a protocol that nobody speaks", 1, (mac, usual.1, us, 99, 64, 0, port.clone())),
        ("hops are over", 1, (mac, usual.1, far, 17, 1, 0, port.clone())),
        ("of a first piece, too", 1, (mac, usual.1, far, 17, 1, 0x2000, port.clone())),
        ("of a later piece", 0, (mac, usual.1, far, 17, 1, 0x2001, port.clone())),
        ("of the last piece", 0, (mac, usual.1, far, 17, 1, 1, port.clone())),
        ("of an echo", 1, (mac, usual.1, far, 1, 1, 0, icmp(8))),
        ("of an echo's reply", 1, (mac, usual.1, far, 1, 1, 0, icmp(0))),
        ("of an error: unreachable", 0, (mac, usual.1, far, 1, 1, 0, icmp(3))),
        ("of an error: source quench", 0, (mac, usual.1, far, 1, 1, 0, icmp(4))),
        ("of an error: redirect", 0, (mac, usual.1, far, 1, 1, 0, icmp(5))),
        ("of an error: time exceeded", 0, (mac, usual.1, far, 1, 1, 0, icmp(11))),
        ("of an error: parameter problem", 0, (mac, usual.1, far, 1, 1, 0, icmp(12))),
        ("of a message of unknown sort", 0, (mac, usual.1, far, 1, 1, 0, icmp(77))),
        ("to everyone on the link", 0, (mac, usual.1, [10, 0, 0, 255], 17, 64, 0, port.clone())),
        ("to everyone", 0, (mac, usual.1, [255; 4], 17, 64, 0, port.clone())),
        ("to a group", 0, (mac, usual.1, [224, 0, 0, 1], 17, 64, 0, port.clone())),
        ("to everyone's Ethernet address", 0, (Mac::BROADCAST, usual.1, us, 17, 64, 0, port.clone())),
        ("to a group's", 0, (Mac([1, 0, 0x5e, 0, 0, 1]), usual.1, us, 17, 64, 0, port.clone())),
        ("from nobody", 0, (mac, [0; 4], us, 17, 64, 0, port.clone())),
        ("from loopback", 0, (mac, [127, 0, 0, 1], us, 17, 64, 0, port.clone())),
        ("from everyone", 0, (mac, [255; 4], us, 17, 64, 0, port.clone())),
        ("from everyone on the link", 0, (mac, [10, 0, 0, 255], us, 17, 64, 0, port.clone())),
        ("from a group", 0, (mac, [224, 0, 0, 1], us, 17, 64, 0, port.clone())),
        ("from class E", 0, (mac, [240, 0, 0, 1], us, 17, 64, 0, port.clone())),
        ("from the end of class E", 0, (mac, [255, 255, 255, 254], far, 17, 1, 0, port.clone())),
        ("from ourselves", 0, (mac, us, us, 17, 64, 0, port.clone())),
        ("a closed port, still", 1, usual.clone()),
    ] {
        let length = u16::try_from(payload.len()).unwrap();
        let mut ip = Ipv4Header::new(source.into(), to.into(), protocol, length);
        (ip.time_to_live, ip.fragment) = (hops, fragment.into());
        ip.seal();
        let link = EthernetHeader { destination: mac, ..ethernet(0x0800) };
        router.put(now, PORT, &[link.as_bytes(), ip.as_bytes(), &payload].concat());
        let sent = router.take(now, PORT);
        let about = |p: &&Vec<u8>| p[23] == 1 && matches!(p[34], 3 | 11);
        assert_eq!((sent.len(), sent.iter().filter(about).count()), (errors, errors), "{why}");
        now = now + Duration::from_millis(1);
    }
    router.assert_nothing_leaked();
}

/// What 10.0.0.9 says of a datagram from 10.0.0.1's port 9 to port 53 somewhere.
fn unreachable(code: u8, rest: u32, quoted: &Ipv4Header) -> Vec<u8> {
    let udp = [0, 9, 0, 53, 0, 0, 0, 0];
    let mut icmp = IcmpHeader { kind: icmpv4::UNREACHABLE, code, checksum: 0.into(), rest: rest.into() };
    let sum = Sum::new().bytes(icmp.as_bytes()).bytes(quoted.as_bytes()).bytes(&udp);
    icmp.checksum = sum.checksum().into();
    let ip = Ipv4Header::new([10, 0, 0, 9].into(), [10, 0, 0, 1].into(), 1, 36);
    let link = ethernet(0x0800);
    [link.as_bytes(), ip.as_bytes(), icmp.as_bytes(), quoted.as_bytes(), &udp].concat()
}

#[test]
fn a_narrow_path_is_believed_only_of_where_something_large_went() {
    let mut node = Node::new(1).with_interface(0, 1, None, 1500, "10.0.0.1/24");
    let wire = node.interface(1);
    node.host.control.add_neighbour(wire, address("10.0.0.2"), Mac([2, 0, 0, 0, 0, 2])).unwrap();
    let now = Timestamp::from_nanos(5_000_000_000);
    node.take(now, PORT);
    let socket = node.host.stack.udp_bind(None, 9).unwrap();
    let send = |node: &mut Node, length: usize| {
        let to = Some((address("10.0.0.2"), 53));
        node.host.stack.udp_send(now, socket, to, &vec![0; length], &mut node.pool).unwrap();
        node.take(now, PORT).len()
    };
    let error = |node: &mut Node, length: u16, mtu: u32| {
        let mut quoted = Ipv4Header::new([10, 0, 0, 1].into(), [10, 0, 0, 2].into(), 17, 8);
        quoted.total_length = length.into();
        quoted.seal();
        node.put(now, PORT, &unreachable(4, mtu, &quoted));
    };
    assert_eq!(send(&mut node, 100), 1);
    error(&mut node, 1400, 600);
    assert_eq!(send(&mut node, 1372), 1, "nothing of that size had gone there");
    error(&mut node, 600, 600);
    assert_eq!(send(&mut node, 1372), 1, "what was quoted fits");
    error(&mut node, 1400, 600);
    assert_eq!(send(&mut node, 1372), 3, "576 bytes of payload in each");
    error(&mut node, 600, 100);
    assert_eq!(send(&mut node, 572), 3, "never less than 296 bytes, 272 of payload");
}

/// RFC 8201, 4: the control's own packets are replies to echoes.
#[test]
fn a_narrow_path_of_replies_is_believed_only_of_where_a_large_one_went() {
    let (me, now) = (Mac([2, 0, 0, 0, 0, 1]), Timestamp::from_nanos(5_000_000_000));
    let mut node = Node::new(1).with_interface(0, 1, None, 1500, "10.0.0.1/24");
    let wire = node.interface(1);
    node.host.control.add_address(now, wire, "fd00::1/64".parse().unwrap()).unwrap();
    for neighbour in ["fd00::2", "fd00::3"] {
        node.host.control.add_neighbour(wire, address(neighbour), Mac([2, 0, 0, 0, 0, 2])).unwrap();
    }
    (0..=40).for_each(|step| drop(node.take(now + Duration::from_millis(100) * step, PORT)));
    let now = now + Duration::from_secs(4);
    // In how many pieces a reply goes to a host that asks for one.
    let asks = |node: &mut Node, from: &str, length: usize| {
        let echo = [&[icmpv6::ECHO_REQUEST, 0, 0, 0, 0, 1, 0, 1][..], &vec![7; length]].concat();
        node.put(now, PORT, &ip6::icmp(me, from, "fd00::1", 64, &echo));
        node.take(now, PORT).len()
    };
    let error = |node: &mut Node, to: &str, kind: u8| {
        let quoted = Ipv6Header::new("fd00::1".parse().unwrap(), to.parse().unwrap(), 58, 1408);
        let head = [icmpv6::PACKET_TOO_BIG, 0, 0, 0, 0, 0, 5, 0];
        let bytes = [&head[..], quoted.as_bytes(), &[kind, 0, 0, 0, 0, 1, 0, 1]].concat();
        node.put(now, PORT, &ip6::icmp(me, "fd00::9", "fd00::1", 64, &bytes));
    };
    for to in ["fd00::2", "fd00::3"] {
        assert_eq!(asks(&mut node, to, 1000), 1);
        error(&mut node, to, icmpv6::ECHO_REPLY);
        assert_eq!(asks(&mut node, to, 1400), 1, "{to}: nothing of that size had gone there");
    }
    error(&mut node, "fd00::2", icmpv6::ECHO_REQUEST);
    error(&mut node, "fd00::2", icmpv6::NEIGHBOUR_SOLICITATION);
    assert_eq!(asks(&mut node, "fd00::2", 1400), 1, "it was no reply");
    error(&mut node, "fd00::2", icmpv6::ECHO_REPLY);
    assert_eq!(asks(&mut node, "fd00::2", 1400), 2);
    assert_eq!(asks(&mut node, "fd00::3", 1400), 1, "the other's path is as wide as it was");
    node.assert_nothing_leaked();
}

#[test]
fn who_makes_us_send_errors_keeps_none_from_our_own_programs() {
    let mut pair = Pair::new(1500);
    pair.settle();
    pair.pass(Duration::from_secs(1));
    let client = pair.a.host.stack.udp_bind(None, 0).unwrap();
    pair.a.host.stack.udp_connect(client, Some((address("10.0.0.9"), 53))).unwrap();
    pair.a.host.stack.udp_send(pair.now, client, None, b"?", &mut pair.a.pool).unwrap();
    let just = Duration::from_nanos(1);
    for time in
        [Duration::ZERO, Duration::from_secs(1), Duration::from_secs(1), Duration::from_secs(1) - just]
    {
        pair.pass(time);
    }
    // More than are answered at once, right before the host counts as absent.
    for _ in 0..200 {
        pair.a.put(pair.now, PORT, &datagram(Mac([2, 0, 0, 0, 0, 1]), [10, 0, 0, 1]));
    }
    assert!(pair.a.host.control.counters().icmp_error_messages_limited > 0);
    pair.pass(just);
    let error = pair.a.host.stack.udp_receive(client).unwrap_err();
    assert_eq!(error, UdpError::Unreachable(Unreachable::Host));
}

#[test]
fn an_error_about_a_later_piece_is_about_no_ports() {
    let mut node = Node::new(1).with_interface(0, 1, None, 1500, "10.0.0.1/24");
    let now = Timestamp::from_nanos(5_000_000_000);
    let socket = node.host.stack.udp_bind(None, 9).unwrap();
    node.host.stack.udp_connect(socket, Some((address("10.0.0.2"), 53))).unwrap();
    for (offset, heard) in [(0x2000u16, true), (0x20b9, false), (0x00b9, false)] {
        let mut quoted = Ipv4Header::new([10, 0, 0, 1].into(), [10, 0, 0, 2].into(), 17, 1480);
        quoted.fragment = offset.into();
        quoted.seal();
        node.put(now, PORT, &unreachable(1, 0, &quoted));
        assert_eq!(node.host.stack.udp_receive(socket).is_err(), heard, "{offset:#x}");
    }
}

/// RFC 1122, 4.1.3.3: all errors, of all sockets.
#[test]
fn a_socket_without_a_peer_hears_for_whom_an_error_was() {
    let mut node = Node::new(1).with_interface(0, 1, None, 1500, "10.0.0.1/24");
    let now = Timestamp::from_nanos(5_000_000_000);
    let socket = node.host.stack.udp_bind(None, 9).unwrap();
    let error = |node: &mut Node, host: u8| {
        let mut quoted = Ipv4Header::new([10, 0, 0, 1].into(), [10, 0, 0, 20 + host].into(), 17, 8);
        quoted.seal();
        node.put(now, PORT, &unreachable(1, 0, &quoted));
    };
    let told = |host: u8| Some(((address(&format!("10.0.0.{}", 20 + host)), 53), Unreachable::Host));
    let events = |node: &mut Node| node.host.stack.events().collect::<Vec<_>>();
    (0..10).for_each(|host| error(&mut node, host));
    assert_eq!(events(&mut node), [Event::UdpReadable(socket)]);
    assert!(matches!(node.host.stack.udp_receive(socket), Ok(None)), "they stop nobody from reading");
    for host in 2..10 {
        assert_eq!(node.host.stack.udp_error(socket), told(host), "the last eight");
    }
    assert_eq!(node.host.stack.udp_error(socket), None);
    error(&mut node, 1);
    assert_eq!(events(&mut node), [Event::UdpReadable(socket)]);
    assert_eq!(node.host.stack.udp_error(socket), told(1));
    // A path that is too narrow is one of them.
    let mut quoted = Ipv4Header::new([10, 0, 0, 1].into(), [10, 0, 0, 30].into(), 17, 1000);
    quoted.seal();
    node.put(now, PORT, &unreachable(4, 600, &quoted));
    assert_eq!(
        node.host.stack.udp_error(socket),
        Some(((address("10.0.0.30"), 53), Unreachable::TooBig(600)))
    );
    // With a peer it hears of that one only, and otherwise; what was not asked for before is forgotten.
    error(&mut node, 5);
    node.host.stack.udp_connect(socket, Some((address("10.0.0.21"), 53))).unwrap();
    (0..10).for_each(|host| error(&mut node, host));
    assert_eq!(node.host.stack.udp_error(socket), None);
    assert!(matches!(node.host.stack.udp_receive(socket), Err(UdpError::Unreachable(Unreachable::Host))));
    assert!(matches!(node.host.stack.udp_receive(socket), Ok(None)));
    node.host.stack.udp_connect(socket, None).unwrap();
    drop(events(&mut node));
    error(&mut node, 2);
    assert_eq!(
        (events(&mut node), node.host.stack.udp_error(socket)),
        (vec![Event::UdpReadable(socket)], told(2))
    );
}

/// Datagrams of `length` bytes from 10.0.0.`from`, which must not be cut.
fn whole(from: u8, to: [u8; 4], length: u16) -> Vec<u8> {
    let ip = Ipv4Header::new([10, 0, 0, from].into(), to.into(), 17, length);
    let mut payload = vec![0; usize::from(length)];
    payload[..4].copy_from_slice(&[0, 9, 0, 9]);
    payload[4..6].copy_from_slice(&length.to_be_bytes());
    [&[2, 0, 0, 0, 0, 3, 2, 0, 0, 0, 0, from, 8, 0][..], ip.as_bytes(), &payload].concat()
}

/// RFC 1191, 4, and RFC 4443, 2.4 (f): who has packets refused all the time keeps no other from hearing how narrow a path is.
#[test]
fn other_errors_leave_room_for_those_about_the_size_of_packets() {
    let mut router = Node::new(3).with_interface(0, 3, None, 1500, "10.0.0.3/24").with_interface(
        1,
        4,
        None,
        600,
        "10.1.0.3/24",
    );
    let (near, far) = (router.interface(1), router.interface(2));
    for (id, neighbour) in [(near, "10.0.0.7"), (near, "10.0.0.8"), (far, "10.1.0.9")] {
        router.host.control.add_neighbour(id, address(neighbour), Mac([2, 0, 0, 0, 0, 9])).unwrap();
    }
    router.host.control.set_forwarding(true);
    let mut now = Timestamp::from_nanos(5_000_000_000);
    router.take(now, PORT);
    let (mut refused, mut too_big) = (0, 0);
    for step in 0..5000 {
        now = now + Duration::from_micros(200);
        router.put(now, PORT, &whole(8, [10, 0, 0, 3], 30));
        if step % 100 == 50 {
            router.put(now, PORT, &whole(7, [10, 1, 0, 9], 1200));
        }
        for packet in router.take(now, PORT).iter().filter(|packet| packet[23] == 1) {
            match packet[35] {
                icmpv4::PORT => refused += 1,
                icmpv4::FRAGMENTATION_NEEDED => too_big += 1,
                other => panic!("{other}"),
            }
        }
    }
    assert_eq!(too_big, 50, "each");
    assert!((900..1200).contains(&refused), "a thousand a second: {refused}");
    for _ in 0..200 {
        router.put(now, PORT, &whole(7, [10, 1, 0, 9], 1200));
    }
    let told = router.take(now, PORT).len();
    assert!((25..100).contains(&told), "they have a limit as well: {told}");
}

/// CVE-2020-25705: whoever counts the errors that he is sent must not learn how many others were.
#[test]
fn how_many_errors_are_sent_at_once_cannot_be_foreseen() {
    let mut counts: Vec<u64> = (0..8)
        .map(|number| {
            let mut node = Node::new(number).with_interface(0, 1, None, 1500, "10.0.0.1/24");
            let now = Timestamp::from_nanos(5_000_000_000);
            for _ in 0..200 {
                node.put(now, PORT, &datagram(Mac([2, 0, 0, 0, 0, 1]), [10, 0, 0, 1]));
            }
            node.host.control.counters().icmp_error_messages_sent
        })
        .collect();
    counts.sort_unstable();
    counts.dedup();
    assert!(counts.len() > 3 && counts[0] >= 25, "{counts:?}");
}

/// RFC 1122, 3.2.2.5.
#[test]
fn a_program_hears_that_a_field_of_its_datagrams_is_wrong() {
    let mut node = Node::new(1).with_interface(0, 1, None, 1500, "10.0.0.1/24");
    let now = Timestamp::from_nanos(5_000_000_000);
    let socket = node.host.stack.udp_bind(None, 9).unwrap();
    node.host.stack.udp_connect(socket, Some((address("10.0.0.2"), 53))).unwrap();
    let mut quoted = Ipv4Header::new([10, 0, 0, 1].into(), [10, 0, 0, 2].into(), 17, 8);
    quoted.seal();
    let mut error = unreachable(0, 20 << 24, &quoted);
    error[34] = icmpv4::PARAMETER_PROBLEM;
    error[36..38].fill(0);
    let sum = Sum::new().bytes(&error[34..]).checksum();
    error[36..38].copy_from_slice(&sum.to_be_bytes());
    node.put(now, PORT, &error);
    let heard = node.host.stack.udp_receive(socket).unwrap_err();
    let wrong = Unreachable::Parameter { code: 0, pointer: 20, always: false };
    assert_eq!(heard, UdpError::Unreachable(wrong));
}

/// Linux tells of them only who asks for all (IP_RECVERR); RFC 1122, 4.1.3.3 would have each told.
#[test]
fn what_may_pass_is_told_to_who_reads_and_stops_nobody_from_sending() {
    let mut node = Node::new(1).with_interface(0, 1, None, 1500, "10.0.0.1/24");
    let wire = node.interface(1);
    node.host.control.add_neighbour(wire, address("10.0.0.2"), Mac([2, 0, 0, 0, 0, 2])).unwrap();
    let now = Timestamp::from_nanos(5_000_000_000);
    node.take(now, PORT);
    let socket = node.host.stack.udp_bind(None, 9).unwrap();
    node.host.stack.udp_connect(socket, Some((address("10.0.0.2"), 53))).unwrap();
    let error = |node: &mut Node, code| {
        let mut quoted = Ipv4Header::new([10, 0, 0, 1].into(), [10, 0, 0, 2].into(), 17, 8);
        quoted.seal();
        node.put(now, PORT, &unreachable(code, 0, &quoted));
    };
    let send = |node: &mut Node| node.host.stack.udp_send(now, socket, None, b"x", &mut node.pool);
    for (codes, sends, reads) in [
        (&[1][..], None, Some(Unreachable::Host)),
        (&[0], None, Some(Unreachable::Network)),
        (&[3], Some(Unreachable::Port), None),
        (&[2], Some(Unreachable::Protocol), None),
        // The one does not hide the other.
        (&[3, 1], Some(Unreachable::Port), None),
        (&[1, 3], Some(Unreachable::Port), None),
    ] {
        codes.iter().for_each(|code| error(&mut node, *code));
        let of = |error| Some(UdpError::Unreachable(error));
        assert_eq!(send(&mut node).err(), sends.and_then(of), "{codes:?}");
        assert_eq!(send(&mut node), Ok(()), "{codes:?}");
        assert_eq!(node.host.stack.udp_receive(socket).err(), reads.and_then(of), "{codes:?}");
    }
}
