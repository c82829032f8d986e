//! What a router only passes on: both families, alone and together.

use std::net::Ipv6Addr;
use std::num::NonZeroU16;
use std::time::Duration;

use crate::wire::{Node, PORT, address};
use bywash_frame::{Checksum, Packet, Segment, Segmentation, SegmentationKind};
use bywash_stack::{Entry, Interface, Medium, Offloads, PortId, Route, Timestamp};
use bywash_wire::checksum::Sum;
use bywash_wire::zerocopy::IntoBytes;
use bywash_wire::{EtherType, Ipv4Header, Ipv6Header, Mac, Protocol, TCP_HEADER, TcpFlags, TcpHeader};

const ROUTER: Mac = Mac([2, 0, 0, 0, 0, 3]);
const NEXT: Mac = Mac([2, 0, 0, 0, 0, 9]);
const OUT: PortId = PortId(1);
/// Whom packets are from, to whom no route leads, and whom they are for.
const FROM: &str = "2002:1::1";
const TO: &str = "2001:db8:7::7";

/// A router whose second port leads to the next, and a moment when it has said all that it has to say of itself.
fn router() -> (Node, Timestamp) {
    let mut router = Node::new(3).with_interface(0, 3, None, 1500, "fd00::3/64").with_interface(
        1,
        4,
        None,
        1280,
        "fd01::3/64",
    );
    let out = router.interface(2);
    router.host.control.add_address(Timestamp::ZERO, out, "10.1.0.3/24".parse().unwrap()).unwrap();
    let mut router =
        router.with_route("2001:db8::/32", "fd01::9", out).with_route("192.168.0.0/16", "10.1.0.9", out);
    for next in ["fd01::9", "10.1.0.9"] {
        router.host.control.add_neighbour(out, address(next), NEXT).unwrap();
    }
    router.host.control.set_forwarding(true);
    let mut now = Timestamp::ZERO;
    for _ in 0..20 {
        now = now + Duration::from_millis(500);
        router.take(now, PORT);
        router.take(now, OUT);
    }
    (router, now)
}

fn framed(kind: EtherType, ip: &[u8], payload: usize) -> Vec<u8> {
    [&ROUTER.0[..], &[2, 0, 0, 0, 0, 7], &kind.0.to_be_bytes(), ip, &vec![7; payload]].concat()
}

fn six(from: &str, to: &str, hop_limit: u8, payload: u16) -> Vec<u8> {
    let mut ip = Ipv6Header::new(from.parse().unwrap(), to.parse().unwrap(), Protocol::UDP.0, payload);
    ip.hop_limit = hop_limit;
    framed(EtherType::IPV6, ip.as_bytes(), payload.into())
}

fn four(hops: u8) -> Vec<u8> {
    let mut ip = Ipv4Header::new([172, 16, 0, 1].into(), [192, 168, 7, 7].into(), Protocol::UDP.0, 30);
    ip.time_to_live = hops;
    ip.seal();
    framed(EtherType::IPV4, ip.as_bytes(), 30)
}

/// A packet as it leaves.
fn onward(mut bytes: Vec<u8>) -> Vec<u8> {
    bytes[..6].copy_from_slice(&NEXT.0);
    bytes[6..12].copy_from_slice(&[2, 0, 0, 0, 0, 4]);
    bytes
}

#[test]
fn ipv6_that_is_only_passed_on_keeps_every_rule() {
    let (mut router, now) = router();
    let counters = |router: &Node| {
        let c = router.host.stack.counters();
        [c.forwarded, c.no_route, c.martian, c.malformed, c.not_for_us]
    };
    let good = six(FROM, TO, 9, 100);
    let changed = |at: usize, to: u8| {
        let mut bytes = good.clone();
        bytes[at] = to;
        bytes
    };
    for (name, bytes, expected) in [
        ("good", good.clone(), [1, 0, 0, 0, 0]),
        ("padded", [&good[..], &[0; 6]].concat(), [1, 0, 0, 0, 0]),
        ("to a host behind the last of our addresses", six(FROM, "2001:db8:7::3", 9, 100), [1, 0, 0, 0, 0]),
        ("no route", six(FROM, "2003::1", 9, 100), [0, 1, 0, 0, 0]),
        ("last hop", six(FROM, TO, 1, 100), [0, 0, 0, 0, 0]),
        ("too big", six(FROM, TO, 9, 1300), [0, 0, 0, 0, 0]),
        ("another version", changed(14, 0x50), [0, 0, 0, 1, 0]),
        ("longer than it is", changed(18, 9), [0, 0, 0, 1, 0]),
        ("for another station", changed(5, 77), [0, 0, 0, 0, 1]),
        ("from a group", six("ff02::1", TO, 9, 100), [0, 0, 1, 0, 0]),
        ("from ourselves", six("fd00::3", TO, 9, 100), [0, 0, 1, 0, 0]),
        ("from nobody", six("::", TO, 9, 100), [0, 0, 1, 0, 0]),
        ("from one link", six("fe80::1", TO, 9, 100), [0, 0, 0, 0, 0]),
        ("to one link", six(FROM, "fe80::9", 9, 100), [0, 0, 0, 0, 1]),
        ("to a group", six(FROM, "ff0e::9", 9, 100), [0, 0, 0, 0, 1]),
        ("to the loopback", six(FROM, "::1", 9, 100), [0, 0, 1, 0, 0]),
        ("to us, and no UDP", six(FROM, "fd01::3", 9, 100), [0, 0, 0, 1, 0]),
    ] {
        let before = counters(&router);
        router.put(now, PORT, &bytes);
        let after = counters(&router);
        let grown: Vec<u64> = before.iter().zip(after).map(|(before, after)| after - before).collect();
        assert_eq!(grown, expected, "{name}");
        let mut expected = onward(bytes.clone());
        expected[21] -= 1;
        // What is behind IP stays here.
        expected.truncate(54 + usize::from(expected[19]));
        let sent = router.take(now, OUT);
        assert_eq!(sent, if grown[0] == 1 { vec![expected] } else { vec![] }, "{name}");
    }
    (0..9).for_each(|second| drop(router.take(now + Duration::from_secs(second), PORT)));
    router.assert_nothing_leaked();
}

#[test]
fn both_families_in_one_batch_leave_in_the_order_in_which_they_came() {
    let (mut router, now) = router();
    // Alone, in turns, and among what is none of either.
    for kinds in ["666666", "464646", "444664", "4x6x46"] {
        let mut expected = Vec::new();
        for (i, kind) in (10..).zip(kinds.chars()) {
            let (before, after) = match kind {
                '6' => (six(FROM, TO, i, 60), six(FROM, TO, i - 1, 60)),
                '4' => (four(i), four(i - 1)),
                _ => (framed(EtherType(0x88cc), &[6 << 4; 40], 20), Vec::new()),
            };
            let mut packet = Packet::new(router.pool.take().unwrap());
            packet.extend_from_slice(&before).unwrap();
            router.batch.push(packet);
            expected.extend((kind != 'x').then(|| onward(after)));
        }
        router.host.receive(now, PORT, &mut router.batch, &mut router.pool);
        assert_eq!(router.take(now, OUT), expected, "{kinds}");
    }
    router.assert_nothing_leaked();
}

/// Pieces are cut, and options are read, on the long way.
#[test]
fn packets_of_a_batch_keep_their_order_whichever_way_they_go() {
    let (mut router, now) = router();
    let with_options = |hops: u8| {
        let mut bytes = four(hops);
        // Four bytes that say nothing, a header of 24 bytes, and the length with them.
        bytes.splice(34..34, [1; 4]);
        (bytes[14], bytes[17]) = (0x46, bytes[17] + 4);
        bytes[24..26].fill(0);
        let sum = Sum::new().bytes(&bytes[14..38]).checksum();
        bytes[24..26].copy_from_slice(&sum.to_be_bytes());
        bytes
    };
    // For us, and for nobody.
    let own = six(FROM, "fd00::3", 9, 100);
    for kinds in ["osossoo", "ossx", "xoos", "soxso", "oooo"] {
        for (hops, kind) in (10..).zip(kinds.chars()) {
            let mut packet = Packet::new(router.pool.take().unwrap());
            let bytes = match kind {
                'o' => with_options(hops),
                's' => four(hops),
                _ => own.clone(),
            };
            packet.extend_from_slice(&bytes).unwrap();
            router.batch.push(packet);
        }
        router.host.receive(now, PORT, &mut router.batch, &mut router.pool);
        let left: Vec<u8> = router.take(now, OUT).iter().map(|packet| packet[22]).collect();
        let expected = (9..).zip(kinds.chars()).filter(|(_, kind)| *kind != 'x').map(|(hops, _)| hops);
        assert_eq!(left, expected.collect::<Vec<u8>>(), "{kinds}");
    }
    router.assert_nothing_leaked();
}

/// Padding of the link it came by, or what somebody has hung on, and which the next link would not take.
#[test]
fn what_stands_behind_ip_is_not_passed_on() {
    let (mut router, now) = router();
    let big = |length: u16| six(FROM, TO, 9, length - 40);
    for (name, bytes, behind) in [
        ("IPv4, padded", four(9), 6),
        ("IPv4, longer than the next link takes", four(9), 1400),
        ("IPv4, of more than one frame", four(9), 4000),
        ("the last hop but one", four(2), 6),
        ("IPv6, padded", six(FROM, TO, 9, 4), 2),
        ("IPv6, longer than the next link takes", big(1280), 1),
        ("IPv6, of more than one frame", big(1280), 4000),
    ] {
        router.put(now, PORT, &[&bytes[..], &vec![0xaa; behind]].concat());
        let mut expected = onward(bytes.clone());
        if bytes[12] == 8 {
            let hops = bytes[22] - 1;
            let mut as_left = onward(four(hops));
            as_left[..14].copy_from_slice(&expected[..14]);
            expected = as_left;
        } else {
            expected[21] -= 1;
        }
        assert_eq!(router.take(now, OUT), [expected], "{name}");
    }
    router.assert_nothing_leaked();
}

/// Whatever the frames are that a packet lies in.
#[test]
fn what_is_passed_on_in_two_frames_is_as_long_as_ip_says() {
    let (mut router, now) = router();
    // After so many bytes the second frame begins; so many stand behind IP.
    for (first, behind) in [(54, 0), (60, 0), (60, 6), (64, 6), (67, 3), (70, 6)] {
        for (bytes, as_left) in [(four(9), four(8)), (six(FROM, TO, 9, 10), six(FROM, TO, 8, 10))] {
            assert_eq!(bytes.len(), 64);
            let whole = [&bytes[..], &vec![0xaa; behind]].concat();
            let (head, rest) = whole.split_at(first.min(whole.len()));
            let mut packet = Packet::new(router.pool.take().unwrap());
            packet.extend_from_slice(head).unwrap();
            if !rest.is_empty() {
                let segment = Segment::new(router.pool.take().unwrap(), 0, 0).unwrap();
                packet.push_segment(segment, &mut router.pool).unwrap();
                packet.extend_from_slice(rest).unwrap();
            }
            router.batch.push(packet);
            router.host.receive(now, PORT, &mut router.batch, &mut router.pool);
            assert_eq!(router.take(now, OUT), [onward(as_left)], "{first}, {behind}");
        }
    }
    router.assert_nothing_leaked();
}

#[test]
fn what_stands_behind_ip_is_not_echoed() {
    let (mut router, now) = router();
    let wire = router.interface(1);
    router.host.control.add_neighbour(wire, address("fd00::7"), Mac([2, 0, 0, 0, 0, 7])).unwrap();
    router.host.control.add_address(now, wire, "172.16.0.3/24".parse().unwrap()).unwrap();
    router.host.control.add_neighbour(wire, address("172.16.0.1"), Mac([2, 0, 0, 0, 0, 7])).unwrap();
    let now = (0..5).fold(now, |now, _| {
        router.take(now, PORT);
        now + Duration::from_secs(1)
    });
    let ip = Ipv4Header::new([172, 16, 0, 1].into(), [172, 16, 0, 3].into(), Protocol::ICMP.0, 8);
    let four = framed(EtherType::IPV4, &[ip.as_bytes(), &[8, 0, 0xf7, 0xff, 0, 0, 0, 0]].concat(), 0);
    let six = crate::ip6::icmp(ROUTER, "fd00::7", "fd00::3", 64, &[128, 0, 0, 0, 0, 1, 0, 2]);
    for request in [four, six] {
        for behind in [4, 3000] {
            router.put(now, PORT, &[&request[..], &vec![0xaa; behind]].concat());
            let sent = router.take(now, PORT);
            assert_eq!(sent.iter().map(Vec::len).collect::<Vec<_>>(), [request.len()], "{behind}");
        }
    }
    router.assert_nothing_leaked();
}

/// A NIC that takes tags off says them beside the packet: the next one would put it in again.
#[test]
fn a_tag_that_a_nic_has_taken_off_is_not_passed_on() {
    let (mut router, now) = router();
    let tagged = Interface {
        name: "tagged".into(),
        port: PORT,
        medium: Medium::Ethernet { mac: ROUTER, vlan: Some(7) },
        mtu: 1500,
        offloads: Offloads::default(),
    };
    router.host.control.add_interface(tagged).unwrap();
    router.take(now, PORT);
    for (bytes, tag) in [(four(9), 0xe007), (six(FROM, TO, 9, 60), 7), (four(9), 0x6000)] {
        let mut packet = Packet::new(router.pool.take().unwrap());
        packet.extend_from_slice(&bytes).unwrap();
        packet.offload.set_vlan(Some(tag));
        router.batch.push(packet);
        router.host.receive(now, PORT, &mut router.batch, &mut router.pool);
        router.host.transmit(OUT, &mut router.batch);
        let beside: Vec<_> = router.batch.iter().map(|packet| packet.offload.vlan()).collect();
        assert_eq!(beside, [None], "{tag:x}");
        router.pool.give_batch(&mut router.batch);
    }
    router.assert_nothing_leaked();
}

/// A datagram to a port, of a host that is behind the router or on its link.
fn datagram(from: [u8; 4], to: [u8; 4]) -> Vec<u8> {
    let ip = Ipv4Header::new(from.into(), to.into(), Protocol::UDP.0, 8);
    framed(EtherType::IPV4, &[ip.as_bytes(), &[0, 7, 0, 9, 0, 8, 0, 0]].concat(), 0)
}

/// RFC 3927, 2.7; RFC 1122, 3.2.1.3; RFC 1812, 5.3.7.
#[test]
fn what_means_something_on_one_link_alone_is_not_passed_on_and_reaches_who_is_on_it() {
    let (mut router, now) = router();
    let (out, wire) = (router.interface(2), router.interface(1));
    router.host.control.add_address(now, wire, "169.254.0.3/16".parse().unwrap()).unwrap();
    router.host.control.add_neighbour(wire, address("169.254.0.7"), Mac([2, 0, 0, 0, 0, 7])).unwrap();
    let mut router = router.with_route("0.0.0.0/0", "10.1.0.9", out);
    // More of 169.254.0.0/16 than that leads to its link.
    for part in ["169.254.128.0/17", "0.0.0.0/8"] {
        router = router.with_route(part, "10.1.0.9", out);
    }
    // The new address is announced.
    let now = (0..5).fold(now, |now, _| {
        router.take(now, PORT);
        now + Duration::from_secs(1)
    });
    let server = router.host.stack.udp_bind(None, 9).unwrap();
    let (near, far, link) = ([172, 16, 0, 1], [192, 168, 7, 7], [169, 254, 0, 7]);
    for (name, from, to, expected) in [
        ("from one host to another", near, far, [1, 0, 0, 0]),
        ("from a neighbour of 169.254.0.0/16", [169, 253, 255, 255], far, [1, 0, 0, 0]),
        ("to another", near, [169, 255, 0, 1], [1, 0, 0, 0]),
        ("from one link", link, far, [0, 1, 0, 0]),
        ("to one link", near, [169, 254, 200, 9], [0, 1, 0, 0]),
        ("to the link that it is on", near, link, [0, 1, 0, 0]),
        ("from this network", [0, 1, 2, 3], far, [0, 0, 1, 0]),
        ("to this network", near, [0, 1, 2, 3], [0, 1, 0, 0]),
        ("from this network to us", [0, 1, 2, 3], [10, 1, 0, 3], [0, 0, 1, 0]),
        ("from one link to us", link, [169, 254, 0, 3], [0, 0, 0, 1]),
    ] {
        let count = |router: &Node| {
            let c = router.host.stack.counters();
            [c.forwarded, c.not_for_us, c.martian, c.udp_received]
        };
        let before = count(&router);
        router.put(now, PORT, &datagram(from, to));
        let grown: Vec<u64> = before.iter().zip(count(&router)).map(|(old, new)| new - old).collect();
        assert_eq!(grown, expected, "{name}");
        assert_eq!(
            (router.take(now, OUT).len() as u64, router.take(now, PORT).len()),
            (expected[0], 0),
            "{name}"
        );
    }
    let (from, read) = match router.host.stack.udp_receive(server).unwrap() {
        Some(datagram) => (datagram.source, datagram.release(&mut router.pool)),
        None => panic!("it was received"),
    };
    assert_eq!((from, read), ((address("169.254.0.7"), 7), ()));
    // And back, to who is on the link.
    router.host.stack.udp_send(now, server, Some(from), b"x", &mut router.pool).unwrap();
    let sent = router.take(now, PORT);
    assert_eq!((sent.len(), &sent[0][..6]), (1, &[2, 0, 0, 0, 0, 7][..]));
    router.assert_nothing_leaked();
}

/// RFC 1812, 4.3.2.4: not with an address of the link where nobody answers, and least of all with one that means nothing elsewhere.
#[test]
fn who_is_told_that_nobody_is_there_hears_it_from_an_address_of_the_link_between() {
    let (mut router, mut now) = router();
    let (wire, out) = (router.interface(1), router.interface(2));
    let peer = Mac([2, 0, 0, 0, 0, 7]);
    router.host.control.add_address(now, wire, "172.16.0.3/24".parse().unwrap()).unwrap();
    for near in ["172.16.0.1", "fd00::7"] {
        router.host.control.add_neighbour(wire, address(near), peer).unwrap();
    }
    // The other link has no address of this prefix but a link-local one, which is nobody's beyond it.
    router.host.control.add_address(now, out, "fe80::4/64".parse().unwrap()).unwrap();
    let prefix = "fd02::/64".parse().unwrap();
    assert!(router.host.control.remove_address(address("fd01::3")));
    router
        .host
        .control
        .add_route(Route { prefix, gateway: None, interface: out, metric: 0, source: None })
        .unwrap();
    let mut told = Vec::new();
    for packet in [datagram([172, 16, 0, 1], [10, 1, 0, 77]), six("fd00::7", "fd02::77", 9, 100)] {
        router.put(now, PORT, &packet);
        for _ in 0..10 {
            router.take(now, OUT);
            told.extend(router.take(now, PORT).into_iter().filter(|frame| frame[..6] == peer.0));
            now = now + Duration::from_millis(500);
        }
    }
    let [four, six] = &told[..] else { panic!("{told:02x?}") };
    assert_eq!(
        (&four[26..30], four[34..36].to_vec()),
        (&[172, 16, 0, 3][..], vec![3, 1]),
        "host unreachable"
    );
    let from: Ipv6Addr = <[u8; 16]>::try_from(&six[22..38]).unwrap().into();
    assert_eq!((from, six[54..56].to_vec()), ("fd00::3".parse().unwrap(), vec![1, 3]), "address unreachable");
}

/// AccECN's counter (RFC 9768), of which CWR is a bit, is the same in all segments; a port that cuts takes CWR off all but the first.
#[test]
fn a_super_segment_whose_pieces_all_have_cwr_is_cut_before_a_port_would() {
    let mut router = Node::new(3).with_interface(0, 3, None, 1500, "10.0.0.3/24");
    let control = &mut router.host.control;
    let cuts = Interface {
        name: "cuts".into(),
        port: OUT,
        medium: Medium::Ethernet { mac: Mac([2, 0, 0, 0, 0, 4]), vlan: None },
        mtu: 1500,
        offloads: Offloads { checksum: true, segmentation: true },
    };
    let out = control.add_interface(cuts).unwrap();
    for prefix in ["10.1.0.3/24", "fd01::3/64"] {
        control.add_address(Timestamp::ZERO, out, prefix.parse().unwrap()).unwrap();
    }
    for next in ["10.1.0.9", "fd01::9"] {
        control.add_neighbour(out, address(next), NEXT).unwrap();
    }
    control.set_forwarding(true);
    let mut now = Timestamp::ZERO;
    for _ in 0..20 {
        now = now + Duration::from_millis(500);
        router.take(now, PORT);
        router.take(now, OUT);
    }
    const PAYLOAD: usize = 1900;
    let length = u16::try_from(TCP_HEADER + PAYLOAD).unwrap();
    let v4 = Ipv4Header::new([10, 0, 0, 7].into(), [10, 1, 0, 9].into(), Protocol::TCP.0, length);
    let v6 = Ipv6Header::new("fd00::7".parse().unwrap(), "fd01::9".parse().unwrap(), Protocol::TCP.0, length);
    let cwr = TcpFlags::ACK.with(TcpFlags::CWR);
    for (kind, ether_type, ip) in [
        (SegmentationKind::Tcp4, EtherType::IPV4, v4.as_bytes()),
        (SegmentationKind::Tcp6, EtherType::IPV6, v6.as_bytes()),
    ] {
        // How many packets leave.
        for (flags, on_each, expected) in
            [(cwr, true, 2), (cwr, false, 1), (TcpFlags::ACK, true, 1), (TcpFlags::ACK, false, 1)]
        {
            let tcp = TcpHeader::new((1, 2), 1000, 5, flags, 100, 0);
            let bytes = framed(ether_type, &[ip, tcp.as_bytes()].concat(), PAYLOAD);
            let mut packet = Packet::new(router.pool.take().unwrap());
            packet.extend_from_slice(&bytes).unwrap();
            let start = 14 + ip.len();
            let partial = Checksum::Partial { start: u16::try_from(start).unwrap(), offset: 16 };
            packet.offload.set_checksum(partial);
            let size = NonZeroU16::new(1400).unwrap();
            packet.offload.set_segmentation(Some(Segmentation { kind, size }));
            packet.offload.set_cwr_on_each(on_each);
            router.batch.push(packet);
            router.host.receive(now, PORT, &mut router.batch, &mut router.pool);
            let sent = router.take(now, OUT);
            let has = |packet: &Vec<u8>| TcpHeader::parse(&packet[start..]).unwrap().flags.has(TcpFlags::CWR);
            assert_eq!(sent.len(), expected, "{kind:?}, {flags:?} on each: {on_each}");
            assert!(sent.iter().all(|packet| has(packet) == flags.has(TcpFlags::CWR)), "{kind:?}");
        }
    }
    router.assert_nothing_leaked();
}

/// A segment with a right checksum, from port 5000 to port 80.
fn segment(to: &str, (seq, ack): (u32, u32), flags: TcpFlags, payload: usize) -> Vec<u8> {
    let (from, to) = ("fd00::7".parse::<Ipv6Addr>().unwrap(), to.parse().unwrap());
    let length = u16::try_from(TCP_HEADER + payload).unwrap();
    let mut tcp = TcpHeader::new((5000, 80), seq, ack, flags, 30_000, 0);
    let start = Sum::pseudo(&from.octets(), &Ipv6Addr::octets(&to), Protocol::TCP.0, length.into());
    tcp.checksum = start.bytes(tcp.as_bytes()).bytes(&vec![7; payload]).checksum().into();
    let ip = Ipv6Header::new(from, to, Protocol::TCP.0, length);
    framed(EtherType::IPV6, &[ip.as_bytes(), tcp.as_bytes()].concat(), payload)
}

#[test]
fn a_router_puts_together_only_what_is_for_itself() {
    const SIZE: u32 = 1000;
    let (mut router, now) = router();
    let (near, far) = (router.interface(1), router.interface(2));
    let client = Mac([2, 0, 0, 0, 0, 7]);
    router.host.control.add_neighbour(near, address("fd00::7"), client).unwrap();
    router.host.stack.listen(None, 80, 4).unwrap();
    router.put(now, PORT, &segment("fd00::3", (999, 0), TcpFlags::SYN, 0));
    let answer = router.take(now, PORT);
    let [answer] = &answer[..] else { panic!("{answer:02x?}") };
    let theirs = TcpHeader::parse(&answer[54..]).unwrap().sequence.get() + 1;
    router.put(now, PORT, &segment("fd00::3", (1000, theirs), TcpFlags::ACK, 0));
    // Its own, what takes the short way, and what waits for a neighbour: each is a flow whose segments follow each other.
    let flow = |to: &str, n: u32| segment(to, (1000 + n * SIZE, theirs), TcpFlags::ACK, SIZE as usize);
    for to in ["fd01::77", "fd00::3", TO] {
        for n in 0..3 {
            let mut packet = Packet::new(router.pool.take().unwrap());
            packet.extend_from_slice(&flow(to, n)).unwrap();
            router.batch.push(packet);
        }
    }
    let counted = |router: &Node| {
        let counters = router.host.stack.counters();
        (counters.tcp_received, counters.forwarded)
    };
    let before = counted(&router);
    router.host.receive(now, PORT, &mut router.batch, &mut router.pool);
    let acknowledged = router.take(now, PORT);
    let acknowledged = acknowledged.iter().filter_map(|packet| TcpHeader::parse(&packet[54..]));
    let last = acknowledged.map(|tcp| tcp.acknowledgment.get()).max();
    assert_eq!(last, Some(1000 + 3 * SIZE));
    let passed_on = |to| {
        let mut segments: Vec<_> = (0..3).map(|n| onward(flow(to, n))).collect();
        segments.iter_mut().for_each(|bytes| bytes[21] -= 1);
        segments
    };
    let is_data = |packet: &Vec<u8>| packet.len() > SIZE as usize;
    let sent: Vec<_> = router.take(now, OUT).into_iter().filter(is_data).collect();
    assert_eq!(sent, passed_on(TO));
    router.host.control.enter_neighbour(Entry::Replace, far, address("fd01::77"), NEXT).unwrap();
    let sent: Vec<_> = router.take(now, OUT).into_iter().filter(is_data).collect();
    assert_eq!(sent, passed_on("fd01::77"));
    // What was made one counts once.
    assert_eq!(counted(&router), (before.0 + 1, before.1 + 6));
}
