//! Routes that say which address of ours packets come from.

use std::time::Duration;

use bywash_stack::{
    Address, Control, ControlError, Entry, InterfaceId, Origin, PortId, Prefix, Route, Timestamp,
};
use bywash_wire::zerocopy::IntoBytes;
use bywash_wire::{ArpOperation, ArpPacket, Ipv4Header, Mac, Protocol};

use crate::wire::{Node, PORT, address};

const ROUTER: Mac = Mac([2, 0, 0, 0, 0, 2]);
const NOW: Timestamp = Timestamp::from_nanos(60_000_000_000);
/// Behind the route that names a source, and behind the one that names none.
const NAMED: &str = "192.0.2.7";
const OTHER: &str = "198.51.100.7";

fn prefix(text: &str) -> Prefix {
    text.parse().unwrap()
}

fn route(to: &str, via: Option<&str>, interface: InterfaceId, source: Option<&str>) -> Route {
    let (gateway, source) = (via.map(address), source.map(address));
    Route { prefix: prefix(to), gateway, interface, metric: 0, source }
}

/// A host with the addresses 10.0.0.1, 10.0.0.5 and, on another link, 10.7.0.1. Packets to 192.0.2.0/24 come from `source`.
fn host(source: &str) -> (Node, InterfaceId) {
    let node = Node::new(1).with_interface(0, 1, None, 1500, "10.0.0.1/24");
    let mut node = node.with_interface(1, 7, None, 1500, "10.7.0.1/24");
    let id = node.interface(1);
    let control = &mut node.host.control;
    control.add_address(Timestamp::ZERO, id, prefix("10.0.0.5/24")).unwrap();
    control.add_neighbour(id, address("10.0.0.2"), ROUTER).unwrap();
    control.add_route(route("0.0.0.0/0", Some("10.0.0.2"), id, None)).unwrap();
    control.add_route(route("192.0.2.0/24", Some("10.0.0.2"), id, Some(source))).unwrap();
    node.take(NOW, PORT);
    node.take(NOW, PortId(1));
    (node, id)
}

/// The source of the only IPv4 packet that goes out.
fn source_of_one(node: &mut Node) -> [u8; 4] {
    let sent = node.take(NOW, PORT);
    let [packet] = &sent[..] else { panic!("{sent:02x?}") };
    packet[26..30].try_into().unwrap()
}

/// The source of a datagram.
fn datagram(node: &mut Node, bound: Option<&str>, to: &str) -> [u8; 4] {
    let socket = node.host.stack.udp_bind(bound.map(address), 0).unwrap();
    node.host.stack.udp_send(NOW, socket, Some((address(to), 9)), b"x", &mut node.pool).unwrap();
    let source = source_of_one(node);
    node.host.stack.udp_close(socket, &mut node.pool);
    source
}

fn source_for(node: &mut Node, to: &str) -> Option<Address> {
    node.host.control.snapshot(&mut node.pool).source_for(address(to))
}

#[test]
fn who_is_bound_to_nothing_speaks_from_the_source_that_the_route_names() {
    for (source, bytes) in [("10.0.0.5", [10, 0, 0, 5]), ("10.7.0.1", [10, 7, 0, 1])] {
        let (mut node, id) = host(source);
        let elsewhere = node.interface(2);
        assert_eq!(datagram(&mut node, None, NAMED), bytes);
        assert_eq!(datagram(&mut node, Some("10.0.0.1"), NAMED), [10, 0, 0, 1], "it has chosen");
        assert_eq!(datagram(&mut node, None, OTHER), [10, 0, 0, 1], "by another route");
        for (local, to, expected) in
            [(None, NAMED, bytes), (Some("10.0.0.1"), NAMED, [10, 0, 0, 1]), (None, OTHER, [10, 0, 0, 1])]
        {
            let (peer, local) = ((address(to), 80), (local.map(address), 0));
            node.host.stack.connect(NOW, local, peer, &mut node.pool).unwrap();
            assert_eq!(source_of_one(&mut node), expected, "{to}");
        }
        assert_eq!(source_for(&mut node, NAMED), Some(address(source)));
        let (snapshot, to) = (node.host.control.snapshot(&mut node.pool).clone(), address(NAMED));
        let by = |interface| snapshot.source_by(interface, to, to).unwrap().ip().to_string();
        assert_eq!(by(id), source);
        assert_eq!(by(elsewhere), "10.7.0.1", "not by that route");
    }
}

#[test]
fn connections_keep_their_address_when_the_route_names_another() {
    let (mut node, id) = host("10.0.0.5");
    let named = |source| route("192.0.2.0/24", Some("10.0.0.2"), id, source);
    node.host.stack.connect(NOW, (None, 0), (address(NAMED), 80), &mut node.pool).unwrap();
    assert_eq!(source_of_one(&mut node), [10, 0, 0, 5]);
    node.host.control.enter_route(Entry::Replace, named(Some("10.7.0.1"))).unwrap();
    assert_eq!(source_for(&mut node, NAMED), Some(address("10.7.0.1")));
    node.take(NOW, PORT);
    let again = node.take(NOW + Duration::from_millis(1500), PORT);
    let [syn] = &again[..] else { panic!("{again:02x?}") };
    assert_eq!(syn[26..30], [10, 0, 0, 5], "the same segment again");
    node.host.control.enter_route(Entry::Change, named(None)).unwrap();
    assert_eq!(source_for(&mut node, NAMED), Some(address("10.0.0.1")));
}

#[test]
fn errors_come_from_it_and_what_is_passed_on_does_not() {
    let (mut node, _) = host("10.7.0.1");
    node.host.control.set_forwarding(true);
    node.take(NOW, PORT);
    let mut pass = |from: &str, to: &str, time_to_live| {
        let [from, to] = [from, to].map(|text| text.parse().unwrap());
        let mut ip = Ipv4Header::new(from, to, Protocol::UDP.0, 8);
        ip.time_to_live = time_to_live;
        ip.seal();
        let ends = [&[2, 0, 0, 0, 0, 1][..], &ROUTER.0, &[8, 0]].concat();
        node.put(NOW, PORT, &[&ends[..], ip.as_bytes(), &[0, 9, 0, 9, 0, 8, 0, 0]].concat());
        source_of_one(&mut node)
    };
    assert_eq!(pass(OTHER, NAMED, 9), [198, 51, 100, 7]);
    assert_eq!(pass(NAMED, OTHER, 1), [10, 7, 0, 1], "time exceeded, by the route to who is told");
    assert_eq!(pass(OTHER, NAMED, 1), [10, 0, 0, 1]);
}

#[test]
fn a_source_that_is_not_ours_there_is_refused() {
    let (mut node, id) = host("10.0.0.5");
    let elsewhere = node.interface(2);
    let control = &mut node.host.control;
    for (id, prefix) in [(id, "fe80::1/64"), (elsewhere, "fe80::2/64"), (id, "fd00::1/64")] {
        control.add_address(NOW, id, prefix.parse().unwrap()).unwrap();
    }
    for (to, source) in [
        ("203.0.113.0/24", "10.0.0.9"),
        ("203.0.113.0/24", "127.0.0.1"),
        ("203.0.113.0/24", "0.0.0.0"),
        ("203.0.113.0/24", "fd00::1"),
        ("2001:db8::/32", "10.0.0.1"),
        ("2001:db8::/32", "fd00::2"),
        ("2001:db8::/32", "fe80::2"),
    ] {
        for how in [Entry::Add, Entry::Replace] {
            let refused = ControlError::Source(address(source).with_zone(id));
            assert_eq!(control.enter_route(how, route(to, None, id, Some(source))), Err(refused));
        }
        assert!(control.routes().all(|route| route.prefix != prefix(to)));
    }
    assert_eq!(control.add_route(route("2001:db8::/32", None, id, Some("fe80::1"))), Ok(()));
    let there = control.routes().find(|route| route.prefix == prefix("2001:db8::/32")).unwrap();
    assert_eq!(there.source, Some(address("fe80::1").with_zone(id)));
}

/// Instances are given their routes at the start, while their addresses are looked for.
#[test]
fn a_source_that_is_looked_for_is_used_once_it_is_free() {
    let (mut node, id) = host("10.0.0.5");
    let control = &mut node.host.control;
    for prefix in ["fd00::1/64", "fd00::2/64"] {
        control.add_address(NOW, id, prefix.parse().unwrap()).unwrap();
    }
    control.add_address_if_free(NOW, id, prefix("10.0.0.8/24")).unwrap();
    control.add_route(route("2001:db8::/32", None, id, Some("fd00::2"))).unwrap();
    control.add_route(route("203.0.113.0/24", None, id, Some("10.0.0.8"))).unwrap();
    assert_eq!(source_for(&mut node, "2001:db8::7"), None);
    assert_eq!(source_for(&mut node, "203.0.113.7"), Some(address("10.0.0.1")));
    let mut now = NOW;
    for _ in 0..20 {
        now = now + Duration::from_millis(500);
        node.take(now, PORT);
    }
    assert_eq!(source_for(&mut node, "2001:db8::7"), Some(address("fd00::2")));
    assert_eq!(source_for(&mut node, "203.0.113.7"), Some(address("10.0.0.8")));
}

#[test]
fn a_source_that_another_station_has_is_not_used_until_it_is_given_anew() {
    let (mut node, id) = host("10.0.0.5");
    let named = |to| route(to, None, id, Some("10.0.0.8"));
    node.host.control.add_address_if_free(NOW, id, prefix("10.0.0.8/24")).unwrap();
    node.host.control.add_route(named("203.0.113.0/24")).unwrap();
    let [ours, theirs] = [Mac::BROADCAST, Mac([2, 0, 0, 0, 0, 8])];
    let ends = ((theirs, [10, 0, 0, 8].into()), (ours, [10, 0, 0, 8].into()));
    let claim = ArpPacket::new(ArpOperation::Request, ends.0, ends.1);
    node.put(NOW, PORT, &[&ours.0[..], &theirs.0, &[8, 6], claim.as_bytes()].concat());
    assert_eq!(source_for(&mut node, "203.0.113.7"), Some(address("10.0.0.1")));
    let refused = ControlError::Source(address("10.0.0.8"));
    assert_eq!(node.host.control.add_route(named("203.0.114.0/24")), Err(refused));
    node.host.control.replace_address(NOW, id, prefix("10.0.0.8/24"), false).unwrap();
    assert_eq!(source_for(&mut node, "203.0.113.7"), Some(address("10.0.0.8")), "the route has stayed");
}

/// Linux: `fib_sync_down_addr`, `rt6_remove_prefsrc`.
#[test]
fn routes_of_ipv4_go_with_their_source_and_those_of_ipv6_lose_it() {
    let (mut node, id) = host("10.0.0.5");
    let control = &mut node.host.control;
    control.add_address(NOW, id, prefix("fd00::5/64")).unwrap();
    control.add_route(route("2001:db8::/32", None, id, Some("fd00::5"))).unwrap();
    // One of the address's own prefix, in place of the one that it has brought.
    control.enter_route(Entry::Replace, route("fd00::/64", None, id, Some("fd00::5"))).unwrap();
    let named = |control: &Control, to: &str| {
        let mut routes = control.routes();
        routes.find(|route| route.prefix == prefix(to)).map(|route| route.source)
    };
    // With another length it is ours all the time.
    control.replace_address(NOW, id, prefix("10.0.0.5/16"), false).unwrap();
    assert_eq!(named(control, "192.0.2.0/24"), Some(Some(address("10.0.0.5"))));
    assert!(control.remove_address(address("10.0.0.5")));
    assert_eq!(named(control, "192.0.2.0/24"), None);
    assert_eq!(named(control, "0.0.0.0/0"), Some(None), "it has named none");
    assert!(control.remove_address(address("fd00::5")));
    for to in ["2001:db8::/32", "fd00::/64"] {
        assert_eq!(named(control, to), Some(None));
        let route = control.routes().find(|route| route.prefix == prefix(to)).unwrap();
        assert_eq!(control.origin(NOW, route), Origin::User);
    }
    assert_eq!(source_for(&mut node, NAMED), Some(address("10.0.0.1")), "by the default route");
}
