//! Links on which our Ethernet address changes while packets are under way: `ip link set dev eth1 address 02:…`.

use std::collections::BTreeMap;
use std::net::Ipv6Addr;
use std::time::Duration;

use crate::ip6::icmp;
use crate::link_mtu::{open, pair, read};
use crate::routers;
use crate::wire::{Node, PORT, Pair, address};
use bywash_stack::{
    AddressState, ConnectionId, ControlError, Interface, InterfaceId, Medium, NeighbourState, Offloads,
    PortId, Timestamp,
};
use bywash_wire::zerocopy::IntoBytes;
use bywash_wire::{ArpOperation, ArpPacket, Mac, icmpv6};

const OLD: Mac = Mac([2, 0, 0, 0, 0, 1]);
const NEW: Mac = Mac([2, 0, 0, 0, 7, 7]);

/// What a has sent since the trace was cleared.
fn sent(pair: &Pair) -> impl Iterator<Item = &Vec<u8>> {
    pair.trace.iter().filter(|(a, _)| *a).map(|(_, bytes)| bytes)
}

/// What a says of 10.0.0.1 then.
fn announcement() -> ArpPacket {
    let ours = (NEW, [10, 0, 0, 1].into());
    ArpPacket::new(ArpOperation::Request, ours, (Mac::default(), ours.1))
}

/// What b knows of an address: where it is.
fn known(pair: &Pair, of: &str) -> Option<Mac> {
    let mut all = pair.b.host.control.neighbours();
    all.find(|(_, at, _, state)| *at == address(of) && *state != NeighbourState::Failed).map(|known| known.2)
}

/// Sends bytes from b to a, and checks that they come.
fn back(pair: &mut Pair, (client, server): (ConnectionId, ConnectionId)) {
    let bytes = [9; 5000];
    assert_eq!(pair.b.host.stack.send(pair.now, server, &bytes, &mut pair.b.pool), Ok(5000));
    pair.settle();
    let mut came = [0; 6000];
    assert_eq!(pair.a.host.stack.receive_copy(pair.now, client, &mut came, &mut pair.a.pool), Ok(5000));
    assert_eq!(came[..5000], bytes);
}

#[test]
fn everyone_is_told_where_we_are_by_now_and_connections_go_on() {
    for (theirs, ours) in [("10.0.0.2", "10.0.0.1"), ("fd00::2", "fd00::1")] {
        let mut pair = pair();
        let link = pair.a.interface(1);
        let (client, server, _) = open(&mut pair, theirs);
        back(&mut pair, (client, server));
        assert_eq!(known(&pair, ours), Some(OLD));
        pair.trace.clear();
        pair.a.host.control.set_mac(pair.now, link, NEW).unwrap();
        pair.settle();
        // The first word of each address, without a question of b's.
        let told = |bytes: &&Vec<u8>| bytes[12..14] == [8, 6] || bytes[20] == 58;
        assert_eq!((sent(&pair).count(), sent(&pair).filter(told).count()), (3, 3), "IPv4, IPv6, link-local");
        assert!(pair.trace.iter().all(|(a, _)| *a), "nobody has to ask or answer");
        assert_eq!(known(&pair, ours), Some(NEW));
        back(&mut pair, (client, server));
        let bytes: Vec<u8> = (0..9000_u16).map(|i| i.to_le_bytes()[0]).collect();
        pair.a.host.stack.send(pair.now, client, &bytes, &mut pair.a.pool).unwrap();
        pair.settle();
        assert_eq!(read(&mut pair, server), bytes);
        assert!(sent(&pair).all(|bytes| bytes[6..12] == NEW.0));
        assert!(pair.trace.iter().filter(|(a, _)| !*a).all(|(_, bytes)| bytes[..6] == NEW.0));
        let counted = pair.a.host.stack.counters();
        assert_eq!((counted.tcp_timeouts, counted.tcp_recoveries), (0, 0), "nothing was lost");
        // What is for the old address is no longer ours: a segment that has come already is answered else.
        let mut again = pair.trace.iter().rfind(|(a, bytes)| !*a && bytes.len() > 1000).unwrap().1.clone();
        for (to, answers) in [(NEW, 1), (OLD, 0)] {
            again[..6].copy_from_slice(&to.0);
            pair.a.put(pair.now, PORT, &again);
            assert_eq!(pair.a.take(pair.now, PORT).len(), answers, "{to}");
        }
        pair.a.assert_nothing_leaked();
    }
}

#[test]
fn an_address_is_told_of_as_often_as_the_rfcs_say() {
    let mut pair = pair();
    let link = pair.a.interface(1);
    pair.pass(Duration::from_secs(10));
    pair.trace.clear();
    // The second change before everybody has heard of the first.
    for mac in [Mac([2, 0, 0, 0, 6, 6]), NEW] {
        pair.a.host.control.set_mac(pair.now, link, mac).unwrap();
    }
    for _ in 0..100 {
        pair.pass(Duration::from_millis(100));
    }
    let arp: Vec<_> = sent(&pair).filter(|bytes| bytes[12..14] == [8, 6]).collect();
    assert_eq!(arp.len(), 2, "RFC 5227, 1.1: ANNOUNCE_NUM");
    for bytes in arp {
        assert_eq!(bytes[14..], *announcement().as_bytes());
        assert_eq!(bytes[..12], [[0xff; 6], NEW.0].concat());
    }
    let mut told = BTreeMap::new();
    for bytes in sent(&pair).filter(|bytes| bytes[12..14] == [0x86, 0xdd]) {
        // To all nodes, from an address of ours, unasked, overriding, with the new address.
        assert_eq!(bytes[..12], [[0x33, 0x33, 0, 0, 0, 1], NEW.0].concat());
        assert_eq!((bytes[54], bytes[58]), (136, 0x20));
        assert_eq!((&bytes[22..38], &bytes[78..86]), (&bytes[62..78], &[&[2, 1][..], &NEW.0].concat()[..]));
        *told.entry(Ipv6Addr::from(<[u8; 16]>::try_from(&bytes[62..78]).unwrap())).or_insert(0) += 1;
    }
    let of = |text: &str| (text.parse::<Ipv6Addr>().unwrap(), 3);
    let each = [of("fd00::1"), of("fe80::ff:fe00:1")];
    assert_eq!(told, BTreeMap::from(each), "RFC 4861, 10: MAX_NEIGHBOR_ADVERTISEMENT");
    // The same again is no news.
    pair.trace.clear();
    pair.a.host.control.set_mac(pair.now, link, NEW).unwrap();
    pair.pass(Duration::from_secs(10));
    assert_eq!(sent(&pair).count(), 0);
}

/// A station asks for a: whether it is a neighbour then.
fn is_heard(pair: &mut Pair, mac: Mac, number: u8) -> bool {
    let sender = (mac, [10, 0, 0, number].into());
    let question = ArpPacket::new(ArpOperation::Request, sender, (Mac::default(), [10, 0, 0, 1].into()));
    let bytes = [&Mac::BROADCAST.0[..], &mac.0, &[8, 6], question.as_bytes()].concat();
    pair.a.put(pair.now, PORT, &bytes);
    is_neighbour(pair, number)
}

fn is_neighbour(pair: &Pair, number: u8) -> bool {
    let at = address(&format!("10.0.0.{number}"));
    pair.a.host.control.neighbours().any(|known| known.1 == at)
}

#[test]
fn another_station_may_have_the_old_address_and_none_the_new_one() {
    let mut pair = pair();
    let link = pair.a.interface(1);
    let third = Mac([2, 0, 0, 0, 0, 3]);
    assert_eq!([(NEW, 7), (third, 3)].map(|(mac, number)| is_heard(&mut pair, mac, number)), [true, true]);
    pair.a.host.control.set_mac(pair.now, link, NEW).unwrap();
    assert_eq!([7, 3].map(|number| is_neighbour(&pair, number)), [false, true]);
    assert_eq!([(OLD, 8), (NEW, 9)].map(|(mac, number)| is_heard(&mut pair, mac, number)), [true, false]);
}

#[test]
fn what_we_have_told_everyone_may_come_back() {
    let mut pair = pair();
    let link = pair.a.interface(1);
    pair.trace.clear();
    pair.a.host.control.set_mac(pair.now, link, NEW).unwrap();
    pair.settle();
    let told: Vec<Vec<u8>> = sent(&pair).cloned().collect();
    assert_eq!(told.len(), 3);
    told.iter().for_each(|bytes| pair.a.put(pair.now, PORT, bytes));
    assert_eq!(pair.a.host.control.conflicts(), 0);
}

#[test]
fn where_an_interface_has_no_address_those_are_told_that_it_answers_for() {
    let mut node = Node::new(1).with_interface(0, 1, None, 1500, "10.0.0.1/24");
    let medium = Medium::Ethernet { mac: Mac([2, 0, 0, 0, 0, 4]), vlan: None };
    let (port, offloads) = (PortId(1), Offloads::default());
    let bare = Interface { name: "bare".into(), port, medium, mtu: 1500, offloads };
    let link = node.host.control.add_interface(bare).unwrap();
    let now = Timestamp::from_nanos(9_000_000_000);
    node.take(now, PORT);
    node.host.control.set_mac(now, link, NEW).unwrap();
    let told = node.take(now, port);
    let [told] = &told[..] else { panic!("{told:02x?}") };
    assert_eq!(told[14..], *announcement().as_bytes());
    assert_eq!(node.take(now, PORT).len(), 0, "on the other link all is as it was");
}

#[test]
fn in_ipv6_it_is_told_as_seldom_as_a_router_says() {
    let (mut host, mut now) = routers::host();
    // Retransmissions are five seconds apart.
    let message = [icmpv6::ROUTER_ADVERTISEMENT, 0, 0, 0, 64, 0, 7, 8, 0, 0, 0, 0, 0, 0, 0x13, 0x88];
    let all = Mac([0x33, 0x33, 0, 0, 0, 1]);
    host.put(now, PORT, &icmp(all, "fe80::2", "ff02::1", 255, &message));
    host.take(now, PORT);
    let link = host.interface(1);
    host.host.control.set_mac(now, link, NEW).unwrap();
    let mut told = Vec::new();
    for second in 0..20 {
        let is_told = |bytes: &Vec<u8>| bytes[12..14] == [0x86, 0xdd] && bytes[54] == 136;
        let count = host.take(now, PORT).iter().filter(|bytes| is_told(bytes)).count();
        told.extend((count > 0).then_some((second, count)));
        now = now + Duration::from_secs(1);
    }
    assert_eq!(told, [(0, 2), (5, 2), (10, 2)]);
}

#[test]
fn a_link_local_address_that_another_station_has_is_given_up_for_one_of_the_new_address() {
    let mut node = Node::new(1).with_interface(0, 1, None, 1500, "10.0.0.1/24");
    let link = node.interface(1);
    let mut now = Timestamp::ZERO;
    node.host.control.enable_ipv6(now, link).unwrap();
    node.take(now, PORT);
    let old = "fe80::ff:fe00:1".parse::<Ipv6Addr>().unwrap().octets();
    let head = [icmpv6::NEIGHBOUR_ADVERTISEMENT, 0, 0, 0, 0x20, 0, 0, 0];
    let claim = [&head[..], &old, &[2, 1], &OLD.0].concat();
    let all = Mac([0x33, 0x33, 0, 0, 0, 1]);
    // Whoever has it has our Ethernet address, too.
    node.put(now, PORT, &icmp(all, "fe80::9", "ff02::1", 255, &claim));
    let has = |node: &Node, text: &str| {
        let wanted = text.parse::<Ipv6Addr>().unwrap();
        let mut all = node.host.control.addresses();
        all.find_map(|(ours, _, state)| (ours.address().v6() == Some(wanted)).then_some(state))
    };
    assert_eq!(has(&node, "fe80::ff:fe00:1"), Some(AddressState::Duplicate));
    node.host.control.set_mac(now, link, NEW).unwrap();
    assert_eq!(has(&node, "fe80::ff:fe00:1"), None);
    assert_eq!(has(&node, "fe80::ff:fe00:707"), Some(AddressState::Tentative));
    for _ in 0..10 {
        now = now + Duration::from_millis(500);
        node.take(now, PORT);
    }
    assert_eq!(has(&node, "fe80::ff:fe00:707"), Some(AddressState::Preferred));
}

#[test]
fn what_no_station_has_is_refused_and_nothing_changes() {
    let mut pair = pair();
    let link = pair.a.interface(1);
    let before = pair.a.generation();
    let control = &mut pair.a.host.control;
    for mac in [Mac::default(), Mac::BROADCAST, Mac([1, 0, 0x5e, 0, 0, 1])] {
        assert_eq!(control.set_mac(pair.now, link, mac), Err(ControlError::NoStation(mac)));
    }
    let lo = control.set_mac(pair.now, InterfaceId::LOOPBACK, NEW);
    assert_eq!(lo, Err(ControlError::NoEthernet("lo".into())));
    pair.trace.clear();
    pair.settle();
    assert_eq!((sent(&pair).count(), pair.a.generation()), (0, before));
}
