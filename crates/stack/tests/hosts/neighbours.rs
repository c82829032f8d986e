//! Neighbours under strangers: who fills the table, who claims what is not his, what comes back of our own.

use std::net::Ipv4Addr;
use std::time::Duration;

use crate::ip6::icmp;
use crate::wire::{Node, PORT, address};
use bywash_frame::Packet;
use bywash_stack::{AddressState, ControlError, NeighbourState, PortId, Timestamp};
use bywash_wire::checksum::Sum;
use bywash_wire::zerocopy::IntoBytes;
use bywash_wire::{ArpOperation, ArpPacket, Ipv4Header, Mac, icmpv6};

const OURS: Mac = Mac([2, 0, 0, 0, 0, 1]);
const OUR_LOCAL: &str = "fe80::ff:fe00:1";
const ALL_NODES: Mac = Mac([0x33, 0x33, 0, 0, 0, 1]);
const START: Timestamp = Timestamp::from_nanos(5_000_000_000);
/// More than there may be neighbours.
const MANY: u32 = 17_000;

fn arp(operation: ArpOperation, sender: (Mac, [u8; 4]), target: [u8; 4], to: Mac) -> Vec<u8> {
    let packet = ArpPacket::new(operation, (sender.0, sender.1.into()), (Mac::default(), target.into()));
    [&to.0[..], &sender.0.0, &[8, 6], packet.as_bytes()].concat()
}

/// A neighbour advertisement: flags, target, its Ethernet address if it tells one.
fn advertisement(flags: u8, target: &str, mac: Option<Mac>) -> Vec<u8> {
    let target = target.parse::<std::net::Ipv6Addr>().unwrap().octets();
    let option = mac.map(|mac| [&[2, 1][..], &mac.0].concat()).unwrap_or_default();
    [&[icmpv6::NEIGHBOUR_ADVERTISEMENT, 0, 0, 0, flags, 0, 0, 0][..], &target, &option].concat()
}

/// 10.0.0.1/8, alone.
fn wide() -> Node {
    let mut node = Node::new(1).with_interface(0, 1, None, 1500, "10.0.0.1/8");
    node.take(START, PORT);
    node
}

/// The `n`th address of many, and its Ethernet address.
fn stranger(n: u32) -> (Mac, [u8; 4]) {
    let [_, a, b, c] = n.to_be_bytes();
    (Mac([2, 9, 0, a, b, c]), [10, 200 + a, b, c])
}

fn datagram(node: &mut Node, now: Timestamp, to: [u8; 4]) -> Vec<Vec<u8>> {
    let client = node.host.stack.udp_bind(None, 0).unwrap();
    let to = Some((Ipv4Addr::from(to).into(), 9));
    node.host.stack.udp_send(now, client, to, b"x", &mut node.pool).unwrap();
    let sent = node.take(now, PORT);
    node.host.stack.udp_close(client, &mut node.pool);
    sent
}

/// Gives the host packets that come together.
fn put_all(node: &mut Node, now: Timestamp, packets: impl Iterator<Item = Vec<u8>>) {
    for bytes in packets {
        let mut packet = Packet::new(node.pool.take().unwrap());
        packet.extend_from_slice(&bytes).unwrap();
        node.batch.push(packet);
    }
    node.host.receive(now, PORT, &mut node.batch, &mut node.pool);
    node.host.advance(now, &mut node.pool);
}

/// How many packets of a kind are questions for some address, or datagrams.
fn count(sent: &[Vec<u8>], kind: [u8; 2]) -> usize {
    sent.iter().filter(|packet| packet[12..14] == kind).count()
}

const ARP: [u8; 2] = [8, 6];
const IPV4: [u8; 2] = [8, 0];

/// Asks for twenty neighbours at once, each of which answers; how many datagrams went out.
fn reached(node: &mut Node, now: Timestamp) -> usize {
    for last in 0..20 {
        assert_eq!(count(&datagram(node, now, [10, 1, 0, 5 + last]), ARP), 1, "{last} is asked for");
    }
    let mut reached = 0;
    for last in 0..20 {
        let answer =
            arp(ArpOperation::Reply, (Mac([2, 0, 0, 0, 0, 77]), [10, 1, 0, 5 + last]), [10, 0, 0, 1], OURS);
        node.put(now, PORT, &answer);
        reached += count(&node.take(now, PORT), IPV4);
    }
    reached
}

#[test]
fn who_was_only_heard_of_keeps_nobody_from_being_found() {
    let (mut node, mut now) = (wide(), START);
    let server = datagram(&mut node, now, [10, 1, 1, 1]);
    assert_eq!(count(&server, ARP), 1);
    node.put(
        now,
        PORT,
        &arp(ArpOperation::Reply, (Mac([2, 0, 0, 0, 0, 9]), [10, 1, 1, 1]), [10, 0, 0, 1], OURS),
    );
    for n in 1..MANY {
        now = now + Duration::from_millis(10);
        node.put(now, PORT, &arp(ArpOperation::Request, stranger(n), [10, 0, 0, 1], Mac::BROADCAST));
        node.take(now, PORT);
    }
    assert_eq!(
        node.host.control.neighbours().count(),
        4096 + 1,
        "a quarter of all, and whom we had asked for"
    );
    assert!(node.host.control.neighbours().any(|n| n.1 == address("10.1.1.1")));
    assert_eq!(reached(&mut node, now), 20);
}

/// A segment for a closed port, which is answered.
fn syn(from: [u8; 4]) -> Vec<u8> {
    let ip = Ipv4Header::new(from.into(), [10, 0, 0, 1].into(), 6, 20);
    let mut tcp = [0x30, 0x39, 0, 99, 0, 0, 0, 1, 0, 0, 0, 0, 0x50, 2, 0xff, 0xff, 0, 0, 0, 0];
    let sum = Sum::pseudo(&from, &[10, 0, 0, 1], 6, 20).bytes(&tcp).checksum();
    tcp[16..18].copy_from_slice(&sum.to_be_bytes());
    [&OURS.0[..], &[2, 0, 0, 0, 0, 2, 8, 0], ip.as_bytes(), &tcp].concat()
}

#[test]
fn who_has_as_many_addresses_as_there_may_be_neighbours_keeps_nobody_from_being_found() {
    let node = wide();
    let link = node.interface(1);
    let mut node = node.with_route("192.0.2.0/24", "10.9.9.9", link);
    let mut now = START;
    // A gateway that is used.
    datagram(&mut node, now, [192, 0, 2, 1]);
    node.put(
        now,
        PORT,
        &arp(ArpOperation::Reply, (Mac([2, 0, 0, 0, 0, 9]), [10, 9, 9, 9]), [10, 0, 0, 1], OURS),
    );
    node.take(now, PORT);
    let all: Vec<u32> = (1..MANY).collect();
    for some in all.chunks(50) {
        now = now + Duration::from_millis(10);
        put_all(&mut node, now, some.iter().map(|n| syn(stranger(*n).1)));
        let asked = count(&node.take(now, PORT), ARP);
        assert_eq!(asked, some.len());
        let answer = |n: &u32| arp(ArpOperation::Reply, stranger(*n), [10, 0, 0, 1], OURS);
        put_all(&mut node, now, some.iter().map(answer));
        node.take(now, PORT);
    }
    assert_eq!(node.host.control.neighbours().count(), 16_384);
    let gateway = node.host.control.neighbours().find(|n| n.1 == address("10.9.9.9"));
    assert_eq!(
        gateway.map(|n| n.3),
        Some(NeighbourState::Reachable),
        "though it was confirmed before all others"
    );
    assert_eq!(reached(&mut node, now), 20);
}

#[test]
fn a_scan_leaves_those_who_are_there_and_finds_whom_else_we_want() {
    let (mut node, mut now) = (wide(), START);
    assert_eq!(reached(&mut node, now), 20);
    // Faster than they are given up.
    for n in 1..MANY {
        now = now + Duration::from_micros(200);
        let [_, a, b, c] = n.to_be_bytes();
        datagram(&mut node, now, [10, 100 + a, b, c]);
    }
    let there = node.host.control.neighbours().filter(|n| n.3 == NeighbourState::Reachable).count();
    assert_eq!(there, 20);
    assert_eq!(node.host.control.neighbours().count(), 8192 + 20, "half of all are being asked for");
    assert_eq!(count(&datagram(&mut node, now, [10, 2, 0, 1]), ARP), 1);
    now = now + Duration::from_millis(10);
    node.put(
        now,
        PORT,
        &arp(ArpOperation::Reply, (Mac([2, 0, 0, 0, 0, 9]), [10, 2, 0, 1]), [10, 0, 0, 1], OURS),
    );
    assert!(
        node.host
            .control
            .neighbours()
            .any(|n| n.1 == address("10.2.0.1") && n.3 == NeighbourState::Reachable)
    );
}

#[test]
fn nobody_has_no_ethernet_address_or_ours() {
    let (mut node, now) = (wide(), START);
    let id = node.interface(1);
    node.host.control.add_address(now, id, "fd00::1/64".parse().unwrap()).unwrap();
    let after = now + Duration::from_secs(3);
    (0..=30).for_each(|step| drop(node.take(now + Duration::from_millis(100) * step, PORT)));
    for mac in [Mac::default(), OURS] {
        let from = (mac, [10, 0, 0, 2]);
        node.put(after, PORT, &arp(ArpOperation::Request, from, [10, 0, 0, 1], Mac::BROADCAST));
        let [head, target] =
            [[icmpv6::NEIGHBOUR_SOLICITATION, 0, 0, 0, 0, 0, 0, 0], [1, 1, 0, 0, 0, 0, 0, 0]];
        let mut option = target;
        option[2..].copy_from_slice(&mac.0);
        let asked = "fd00::1".parse::<std::net::Ipv6Addr>().unwrap().octets();
        node.put(after, PORT, &icmp(OURS, "fd00::2", "fd00::1", 255, &[&head[..], &asked, &option].concat()));
        let known: Vec<_> =
            node.host.control.neighbours().filter(|n| n.2 == mac && n.3 == NeighbourState::Stale).collect();
        assert_eq!(known, [], "{mac}");
    }
    node.put(
        after,
        PORT,
        &arp(ArpOperation::Request, (Mac([2, 0, 0, 0, 0, 2]), [10, 0, 0, 2]), [10, 0, 0, 1], Mac::BROADCAST),
    );
    assert!(node.host.control.neighbours().any(|n| n.1 == address("10.0.0.2")));
}

/// RFC 4861, 7.2.5: what an advertisement says of routers counts only where the advertisement does.
#[test]
fn an_advertisement_that_is_ignored_takes_no_router_away() {
    let other = Some(Mac([2, 0, 0, 0, 0, 0x99]));
    let own = Some(Mac([2, 0, 0, 0, 0, 2]));
    for (why, known, flags, mac, left) in [
        ("of nobody who is known, and without an address", false, 0, None, 1),
        ("of nobody who is known", false, 0, own, 1),
        ("another address, which is not to override", true, 0, other, 1),
        ("the same address", true, 0, own, 0),
        ("no address", true, 0, None, 0),
        ("another address, which is to override", true, 0x20, other, 0),
        ("it still is a router", true, 0x80, own, 1),
    ] {
        let mut node = Node::new(1).with_interface(0, 1, None, 1500, "10.0.0.1/24");
        let id = node.interface(1);
        node.host.control.autoconfigure(Timestamp::ZERO, id).unwrap();
        let mut now = Timestamp::ZERO;
        (0..10).for_each(|_| {
            now = now + Duration::from_millis(500);
            node.take(now, PORT);
        });
        let head = [icmpv6::ROUTER_ADVERTISEMENT, 0, 0, 0, 64, 0, 7, 8, 0, 0, 0, 0, 0, 0, 0, 0];
        let option: &[u8] = if known { &[1, 1, 2, 0, 0, 0, 0, 2] } else { &[] };
        node.put(now, PORT, &icmp(ALL_NODES, "fe80::2", "ff02::1", 255, &[&head[..], option].concat()));
        let routers = |node: &Node| node.host.control.routes().filter(|route| route.metric == 1024).count();
        assert_eq!(routers(&node), 1);
        node.put(now, PORT, &icmp(OURS, "fe80::66", OUR_LOCAL, 255, &advertisement(flags, "fe80::2", mac)));
        assert_eq!(routers(&node), left, "{why}");
    }
}

/// Each change is a new snapshot for every stack.
#[test]
fn who_contradicts_what_is_known_of_a_neighbour_makes_few_snapshots() {
    let (mut node, now) = with_a_duplicate();
    let client = node.host.stack.udp_bind(None, 0).unwrap();
    let reach = |node: &mut Node, to: &str| {
        node.host.stack.udp_send(now, client, Some((address(to), 9)), b"x", &mut node.pool).unwrap();
        assert_eq!(node.take(now, PORT).len(), 1, "it is asked for");
        let answer = advertisement(0x60, to, Some(Mac([2, 0, 0, 0, 0, 9])));
        node.put(now, PORT, &icmp(OURS, to, "fd00::1", 255, &answer));
        node.take(now, PORT).iter().filter(|packet| packet[20] == 17).count()
    };
    assert_eq!(reach(&mut node, "fd00::9"), 1);
    // Another address, which is to override or not; and the same again, solicited.
    for (n, flags) in [0x20, 0x60, 0, 0x60].into_iter().cycle().take(2000).enumerate() {
        let before = node.generation();
        let mac = Mac([2, 0, 0, 0, 0, 7 + u8::from(n % 2 == 0)]);
        node.put(
            now,
            PORT,
            &icmp(OURS, "fd00::9", "fd00::1", 255, &advertisement(flags, "fd00::9", Some(mac))),
        );
        assert!(n < 256 || node.generation() == before, "{n}");
    }
    assert_eq!(reach(&mut node, "fd00::a"), 1, "who was asked is heard all the same");
}

/// A host with fd00::1, and fd00::5 which another one has.
fn with_a_duplicate() -> (Node, Timestamp) {
    let mut node = Node::new(1).with_interface(0, 1, None, 1500, "10.0.0.1/24");
    let (id, mut now) = (node.interface(1), START);
    for prefix in ["fd00::1/64", "fd00::5/64"] {
        node.host.control.add_address(now, id, prefix.parse().unwrap()).unwrap();
    }
    now = now + Duration::from_secs(1);
    node.take(now, PORT);
    let claim = advertisement(0x20, "fd00::5", Some(Mac([2, 0, 0, 0, 0, 5])));
    node.put(now, PORT, &icmp(ALL_NODES, "fd00::5", "ff02::1", 255, &claim));
    (0..6).for_each(|_| {
        now = now + Duration::from_millis(500);
        node.take(now, PORT);
    });
    let duplicate = |node: &Node| {
        node.host.control.addresses().any(|(prefix, _, state)| {
            prefix.address() == address("fd00::5") && state == AddressState::Duplicate
        })
    };
    assert!(duplicate(&node));
    (node, now)
}

#[test]
fn who_has_our_duplicate_address_is_a_neighbour_as_any() {
    let (mut node, now) = with_a_duplicate();
    let client = node.host.stack.udp_bind(None, 0).unwrap();
    node.host.stack.udp_send(now, client, Some((address("fd00::5"), 9)), b"x", &mut node.pool).unwrap();
    assert_eq!(node.take(now, PORT).len(), 1, "it is asked for");
    let claims = node.host.control.conflicts();
    let answer = advertisement(0x60, "fd00::5", Some(Mac([2, 0, 0, 0, 0, 5])));
    node.put(now, PORT, &icmp(OURS, "fd00::5", "fd00::1", 255, &answer));
    let sent = node.take(now, PORT);
    assert_eq!(sent.iter().map(|packet| packet[20]).collect::<Vec<_>>(), [17], "the datagram");
    assert_eq!(node.host.control.conflicts(), claims);
    // By hand as well.
    let (id, mac) = (node.interface(1), Mac([2, 0, 0, 0, 0, 5]));
    assert_eq!(node.host.control.remove_neighbour(id, address("fd00::5")), 1);
    assert_eq!(node.host.control.add_neighbour(id, address("fd00::5"), mac), Ok(()));
    let ours = node.host.control.add_neighbour(id, address("fd00::1"), mac);
    assert_eq!(ours, Err(ControlError::Ours(address("fd00::1"))));
}

/// RFC 7527: a probe with our own number is our own, as a switch or a radio link sends it back.
#[test]
fn our_own_probe_that_comes_back_takes_no_address_away_and_another_ones_does() {
    let states = |node: &Node| -> Vec<_> {
        let six = node.host.control.addresses().filter(|(prefix, ..)| !prefix.address().is_v4());
        six.map(|(.., state)| state).collect()
    };
    let probes = |alike: bool| {
        let [mut node, mut other] = [1, if alike { 1 } else { 2 }]
            .map(|number| Node::new(number).with_interface(0, 1, None, 1500, "10.0.0.1/24"));
        for node in [&mut node, &mut other] {
            node.host.control.add_address(START, node.interface(1), "fd00::1/64".parse().unwrap()).unwrap();
        }
        let mut now = START;
        for _ in 0..20 {
            now = now + Duration::from_millis(200);
            // `alike`: what comes back is what went out.
            for packet in other.take(now, PORT) {
                node.put(now, PORT, &packet);
            }
            if alike {
                node.take(now, PORT);
            }
        }
        states(&node)
    };
    assert_eq!(probes(true), [AddressState::Preferred; 2]);
    assert_eq!(probes(false), [AddressState::Duplicate; 2]);
}

/// RFC 6583: a router is asked to pass packets on to many who are not there, and to one who is.
#[test]
fn who_is_there_is_asked_for_though_more_were_named_at_once_than_are_asked_for_together() {
    let mut router = Node::with_frames(3, 8000)
        .with_interface(0, 3, None, 1500, "10.0.0.3/24")
        .with_interface(1, 4, None, 1500, "10.1.0.3/16");
    router.host.control.set_forwarding(true);
    let mut now = START;
    for port in [PORT, PortId(1)] {
        router.take(now, port);
    }
    let to = |to: [u8; 4]| {
        let ip = Ipv4Header::new([10, 0, 0, 7].into(), to.into(), 17, 30);
        [&[2, 0, 0, 0, 0, 3, 2, 0, 0, 0, 0, 7, 8, 0][..], ip.as_bytes(), &[1; 30]].concat()
    };
    for n in 0..1500u16 {
        let [a, b] = (n + 300).to_be_bytes();
        router.put(now, PORT, &to([10, 1, a, b]));
    }
    router.put(now, PORT, &to([10, 1, 0, 100]));
    let mut asked = 0;
    for _ in 0..4 {
        for packet in router.take(now, PortId(1)) {
            asked += usize::from(packet[12..14] == ARP && packet[38..42] == [10, 1, 0, 100]);
        }
        let next = router.host.next_deadline().unwrap();
        assert!(asked > 0 || next <= now + Duration::from_millis(100), "it wakes by itself");
        now = now + Duration::from_millis(100);
    }
    assert_eq!(asked, 1);
}
