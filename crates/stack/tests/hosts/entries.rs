//! Addresses, routes and neighbours that are entered by hand: what is refused, replaced and taken out.

use std::time::Duration;

use bywash_stack::{
    Address, AddressState, Control, ControlError, Entry, Interface, InterfaceId, Medium, NeighbourState,
    Offloads, Origin, PortId, Prefix, Route, Timestamp,
};
use bywash_wire::zerocopy::IntoBytes;
use bywash_wire::{ArpOperation, ArpPacket, Mac};

use crate::wire::{Node, PORT, address};

const MAC: Mac = Mac([2, 0, 0, 0, 0, 9]);

fn node() -> (Node, InterfaceId) {
    let node = Node::new(1).with_interface(0, 1, None, 1500, "10.0.0.1/24");
    let id = node.interface(1);
    (node, id)
}

fn prefix(text: &str) -> Prefix {
    text.parse().unwrap()
}

fn route(to: &str, via: Option<&str>, interface: InterfaceId, metric: u32) -> Route {
    Route { prefix: prefix(to), gateway: via.map(address), interface, metric, source: None }
}

/// The routers to a prefix, in the order in which they are used.
fn via(control: &Control, to: &str) -> Vec<Option<Address>> {
    control.routes().filter(|route| route.prefix == prefix(to)).map(|route| route.gateway).collect()
}

#[test]
fn a_route_is_added_once_and_then_replaced() {
    let (mut node, id) = node();
    let second = node.interface(0);
    let control = &mut node.host.control;
    let to = "10.9.0.0/16";
    let enter =
        |control: &mut Control, how, via, metric| control.enter_route(how, route(to, Some(via), id, metric));
    let absent = Err(ControlError::NoRoute(prefix(to), 0));
    assert_eq!(enter(control, Entry::Change, "10.0.0.2", 0), absent);
    assert_eq!(enter(control, Entry::Add, "10.0.0.2", 0), Ok(()));
    let there = Err(ControlError::RouteExists(prefix(to), 0));
    assert_eq!(enter(control, Entry::Add, "10.0.0.2", 0), there);
    assert_eq!(enter(control, Entry::Add, "10.0.0.3", 0), there, "whichever way it leads");
    assert_eq!(control.add_route(route(to, None, second, 0)), there, "on whichever link");
    assert_eq!(enter(control, Entry::Add, "10.0.0.4", 7), Ok(()), "another metric");
    assert_eq!(enter(control, Entry::Replace, "10.0.0.3", 0), Ok(()));
    assert_eq!(via(control, to), ["10.0.0.3", "10.0.0.4"].map(|via| Some(address(via))));
    assert_eq!(enter(control, Entry::Change, "10.0.0.5", 7), Ok(()));
    assert_eq!(enter(control, Entry::Replace, "10.0.0.6", 9), Ok(()), "there is none to be replaced");
    assert_eq!(via(control, to), ["10.0.0.3", "10.0.0.5", "10.0.0.6"].map(|via| Some(address(via))));
    let next = node.host.control.snapshot(&mut node.pool).next_hop(address("10.9.1.1"));
    assert_eq!(next, Some((id, address("10.0.0.3"))));
}

#[test]
fn bits_beyond_the_length_make_no_other_route_of_link_local_ones() {
    let (mut node, id) = node();
    let control = &mut node.host.control;
    // The zone stands where this prefix has no bits.
    let all = route("fe80::/10", None, id, 0);
    assert_eq!(control.add_route(all), Ok(()));
    assert!(matches!(control.add_route(all), Err(ControlError::RouteExists(..))));
    assert_eq!(control.enter_route(Entry::Change, Route { metric: 0, ..all }), Ok(()));
    let there = control.routes().filter(|route| route.prefix.length() == 10);
    assert_eq!(there.count(), 1);
}

#[test]
fn one_route_is_taken_out_at_once_and_an_address_takes_its_own_alone() {
    let (mut node, id) = node();
    let control = &mut node.host.control;
    let to = "10.0.0.0/24";
    control.add_route(route(to, None, id, 5)).unwrap();
    control.add_route(route(to, Some("10.0.0.2"), id, 3)).unwrap();
    let any = |route: &Route| route.prefix == prefix(to);
    let removed: Vec<u32> =
        std::iter::from_fn(|| control.remove_route(any)).map(|route| route.metric).collect();
    assert_eq!(removed, [0, 3, 5], "the first that fits");
    control.add_address(Timestamp::ZERO, id, prefix("10.0.0.2/24")).unwrap();
    control.add_route(route(to, None, id, 5)).unwrap();
    let left = |control: &Control| {
        control.routes().filter(|route| any(route)).map(|route| route.metric).collect::<Vec<_>>()
    };
    assert_eq!(left(control), [0, 5], "another address has brought one");
    assert!(control.remove_address(address("10.0.0.1")));
    assert_eq!(left(control), [0, 5], "that one needs it");
    assert!(control.remove_address(address("10.0.0.2")));
    assert_eq!(left(control), [5]);
}

/// As with Linux, whose route says who has entered it.
#[test]
fn a_route_given_by_hand_outlives_an_address_of_its_prefix() {
    let (mut node, id) = node();
    let control = &mut node.host.control;
    let (hand, now) = (route("10.50.0.0/24", None, id, 0), Timestamp::ZERO);
    let origin = |control: &Control| {
        let mut routes = control.routes();
        routes.find(|route| **route == hand).map(|route| control.origin(now, route))
    };
    let come_and_go = |control: &mut Control| {
        control.add_address(now, id, prefix("10.50.0.1/24")).unwrap();
        let while_there = origin(control);
        assert!(control.remove_address(address("10.50.0.1")));
        (while_there, origin(control))
    };
    // Before the address.
    control.add_route(hand).unwrap();
    assert_eq!(come_and_go(control), (Some(Origin::User), Some(Origin::User)));
    assert!(control.remove_route(|route| *route == hand).is_some());
    assert_eq!(come_and_go(control), (Some(Origin::Address), None), "its own goes with it");
    // In place of its own.
    for replaced in [false, true] {
        control.add_address(now, id, prefix("10.50.0.1/24")).unwrap();
        if !replaced {
            assert!(control.remove_route(|route| *route == hand).is_some());
        }
        control.enter_route(Entry::Replace, hand).unwrap();
        assert_eq!(origin(control), Some(Origin::User), "{replaced}");
        assert!(control.remove_address(address("10.50.0.1")));
        assert_eq!(origin(control), Some(Origin::User), "{replaced}");
        assert!(control.remove_route(|route| *route == hand).is_some());
    }
    // One that an address of the kind has brought is the address's also when another one goes.
    control.add_address(now, id, prefix("10.50.0.1/24")).unwrap();
    control.add_address(now, id, prefix("10.50.0.2/24")).unwrap();
    assert!(control.remove_address(address("10.50.0.1")));
    assert_eq!(origin(control), Some(Origin::Address));
    assert!(control.remove_address(address("10.50.0.2")));
    assert_eq!(origin(control), None);
}

#[test]
fn a_neighbour_is_added_once_and_then_replaced() {
    let (mut node, id) = node();
    let other = Mac([2, 0, 0, 0, 0, 7]);
    let them = address("10.0.0.9");
    let control = &mut node.host.control;
    assert_eq!(control.enter_neighbour(Entry::Change, id, them, MAC), Err(ControlError::NoNeighbour(them)));
    assert_eq!(control.add_neighbour(id, them, MAC), Ok(()));
    assert_eq!(control.add_neighbour(id, them, other), Err(ControlError::NeighbourExists(them)));
    for (how, mac) in [(Entry::Replace, other), (Entry::Change, MAC)] {
        control.enter_neighbour(how, id, them, mac).unwrap();
        assert_eq!(control.neighbours().map(|(_, _, mac, _)| mac).collect::<Vec<_>>(), [mac]);
    }
    let last = address("10.0.0.8");
    assert_eq!(control.enter_neighbour(Entry::Replace, id, last, MAC), Ok(()));
}

#[test]
fn an_address_is_replaced_where_it_is() {
    let (mut node, id) = node();
    let (control, now) = (&mut node.host.control, Timestamp::ZERO);
    let ours = |control: &Control| control.addresses().map(|(prefix, ..)| prefix).collect::<Vec<_>>();
    control.replace_address(now, id, prefix("10.0.0.1/24"), true).unwrap();
    let state = control.addresses().next().map(|(.., state)| state);
    assert_eq!(state, Some(AddressState::Preferred), "it is not looked for anew");
    control.replace_address(now, id, prefix("10.0.0.1/16"), false).unwrap();
    control.replace_address(now, id, prefix("10.0.0.2/16"), false).unwrap();
    assert_eq!(ours(control), [prefix("10.0.0.1/16"), prefix("10.0.0.2/16")]);
    let links: Vec<Prefix> = control.routes().map(|route| route.prefix).collect();
    assert_eq!(links, [prefix("10.0.0.0/16")]);
    let elsewhere = control.replace_address(now, InterfaceId::LOOPBACK, prefix("10.0.0.1/16"), false);
    assert_eq!(elsewhere, Err(ControlError::Ours(address("10.0.0.1"))));
}

#[test]
fn an_address_of_ipv6_that_is_replaced_stays_in_use() {
    let (mut node, id) = node();
    let mut now = Timestamp::ZERO;
    let ours = |node: &Node| {
        let mut all = node.host.control.addresses();
        all.find(|(prefix, ..)| prefix.address() == address("fd00::1")).map(|(ours, _, state)| (ours, state))
    };
    let links = |node: &Node| {
        let routes = node.host.control.routes().map(|route| route.prefix.to_string());
        let mut links: Vec<String> = routes.filter(|text| text.starts_with("fd")).collect();
        links.sort();
        links
    };
    let give = |node: &mut Node, now, text| {
        node.host.control.replace_address(now, id, prefix(text), false).unwrap();
        node.take(now, PORT)
    };
    give(&mut node, now, "fd00::1/64");
    give(&mut node, now, "fd00::1/56");
    assert_eq!(ours(&node), Some((prefix("fd00::1/56"), AddressState::Tentative)), "its time goes on");
    assert_eq!(links(&node), ["fd00::/56"]);
    (0..6).for_each(|_| {
        now = now + Duration::from_millis(500);
        node.take(now, PORT);
    });
    assert_eq!(ours(&node), Some((prefix("fd00::1/56"), AddressState::Preferred)));
    node.host.control.add_address(now, id, prefix("fd00::2/48")).unwrap();
    node.take(now, PORT);
    assert_eq!(give(&mut node, now, "fd00::1/48"), [[0; 0]; 0], "nothing is asked anew");
    assert_eq!(ours(&node), Some((prefix("fd00::1/48"), AddressState::Preferred)));
    assert_eq!(links(&node), ["fd00::/48"]);
    assert!(node.host.control.remove_address(address("fd00::2")));
    assert_eq!(links(&node), ["fd00::/48"], "of both");
    assert!(node.host.control.remove_address(address("fd00::1")));
    assert_eq!(links(&node), [""; 0]);
}

/// A second interface, which has no address.
fn without_address(node: &mut Node, port: u16) -> InterfaceId {
    let interface = Interface {
        name: format!("port{port}"),
        port: PortId(port),
        medium: Medium::Ethernet { mac: Mac([2, 0, 0, 0, 0, 3]), vlan: None },
        mtu: 1500,
        offloads: Offloads::default(),
    };
    node.host.control.add_interface(interface).unwrap()
}

/// A way to 172.31.0.0/16 by such an interface, on port 1.
fn leads_by_no_address() -> (Node, InterfaceId, Timestamp) {
    let (mut node, _) = node();
    let id = without_address(&mut node, 1);
    node.host.control.add_route(route("172.31.0.0/16", None, id, 0)).unwrap();
    let now = Timestamp::from_nanos(5_000_000_000);
    node.take(now, PORT);
    (node, id, now)
}

/// What 172.31.1.1 says by ARP to our interface there, or of it.
fn arp(operation: ArpOperation, target: [u8; 4]) -> Vec<u8> {
    let arp =
        ArpPacket::new(operation, (MAC, [172, 31, 1, 1].into()), (Mac([2, 0, 0, 0, 0, 3]), target.into()));
    [&[2, 0, 0, 0, 0, 3][..], &MAC.0, &[8, 6], arp.as_bytes()].concat()
}

#[test]
fn where_an_interface_has_no_address_it_asks_with_another_ones() {
    let (mut node, _, now) = leads_by_no_address();
    let client = node.host.stack.udp_bind(None, 0).unwrap();
    let to = Some((address("172.31.1.1"), 9));
    node.host.stack.udp_send(now, client, to, b"x", &mut node.pool).unwrap();
    let asked = node.take(now, PortId(1));
    let [question] = &asked[..] else { panic!("{asked:02x?}") };
    let (kind, from, whom) = (&question[12..14], &question[28..32], &question[38..42]);
    assert_eq!((kind, from, whom), (&[8, 6][..], &[10, 0, 0, 1][..], &[172, 31, 1, 1][..]));
    // Who is asked answers, and gets what has waited.
    node.put(now, PortId(1), &arp(ArpOperation::Reply, [10, 0, 0, 1]));
    let sent = node.take(now, PortId(1));
    let [datagram] = &sent[..] else { panic!("{sent:02x?}") };
    assert_eq!((&datagram[..6], &datagram[26..30]), (&MAC.0[..], &[10, 0, 0, 1][..]));
}

#[test]
fn who_answers_an_interface_without_an_address_stays_a_neighbour() {
    let (mut node, id, mut now) = leads_by_no_address();
    let client = node.host.stack.udp_bind(None, 0).unwrap();
    let to = Some((address("172.31.1.1"), 9));
    let (mut asked, mut datagrams) = (0, 0);
    for second in 0..40 {
        node.host.stack.udp_send(now, client, to, b"x", &mut node.pool).unwrap();
        // A question, and then what has waited for its answer.
        for _ in 0..2 {
            for sent in node.take(now, PortId(1)) {
                if sent[12..14] == [8, 6] {
                    asked += 1;
                    node.put(now, PortId(1), &arp(ArpOperation::Reply, [10, 0, 0, 1]));
                } else {
                    datagrams += 1;
                }
            }
        }
        let known: Vec<_> = node.host.control.neighbours().map(|(link, .., state)| (link, state)).collect();
        let [(link, state)] = known[..] else { panic!("{known:?}") };
        assert!(link == id && state != NeighbourState::Failed, "{state:?} after {second} s");
        now = now + Duration::from_secs(1);
    }
    assert_eq!(datagrams, 40);
    assert!((2..=3).contains(&asked), "asked {asked} times: an answer counts for half a minute");
}

#[test]
fn who_asks_an_interface_without_an_address_gets_an_answer_for_any_of_ours() {
    let (mut node, id, now) = leads_by_no_address();
    let third = without_address(&mut node, 2);
    node.host.control.add_address(now, third, prefix("192.168.9.1/24")).unwrap();
    node.take(now, PortId(2));
    let sender = |sender: [u8; 4], target: [u8; 4]| {
        let to = (Mac([2, 0, 0, 0, 0, 3]), target.into());
        let asks = ArpPacket::new(ArpOperation::Request, (MAC, sender.into()), to);
        [&[2, 0, 0, 0, 0, 3][..], &MAC.0, &[8, 6], asks.as_bytes()].concat()
    };
    let mut answers = |asks: &[u8]| {
        node.put(now, PortId(1), asks);
        node.take(now, PortId(1))
    };
    let sent = answers(&arp(ArpOperation::Request, [10, 0, 0, 1]));
    let [answer] = &sent[..] else { panic!("{sent:02x?}") };
    assert_eq!((&answer[..6], &answer[20..22]), (&MAC.0[..], &[0, 2][..]));
    assert_eq!((&answer[22..28], &answer[28..32]), (&[2, 0, 0, 0, 0, 3][..], &[10, 0, 0, 1][..]));
    // A program may have bound that one.
    assert_eq!(answers(&arp(ArpOperation::Request, [192, 168, 9, 1])).len(), 1);
    for others in [[10, 0, 0, 2], [127, 0, 0, 1], [0; 4]] {
        assert_eq!(answers(&arp(ArpOperation::Request, others)), [[0; 0]; 0], "{others:?}");
    }
    // Who is not on that link, as far as anybody has told.
    for stranger in [[10, 0, 0, 9], [192, 168, 9, 9], [9, 9, 9, 9], [0; 4]] {
        assert_eq!(answers(&sender(stranger, [10, 0, 0, 1])), [[0; 0]; 0], "{stranger:?}");
    }
    // One that has an address has that one alone.
    node.host.control.add_address(now, id, prefix("172.31.0.1/24")).unwrap();
    node.take(now, PortId(1));
    for (target, expected) in [([172, 31, 0, 1], 1), ([10, 0, 0, 1], 0), ([192, 168, 9, 1], 0)] {
        node.put(now, PortId(1), &arp(ArpOperation::Request, target));
        assert_eq!(node.take(now, PortId(1)).len(), expected, "{target:?}");
    }
}

#[test]
fn an_interface_without_an_address_asks_with_the_one_that_the_route_names_and_also_for_what_others_reach() {
    let (mut node, id, now) = leads_by_no_address();
    let third = without_address(&mut node, 2);
    node.host.control.add_address(now, third, prefix("192.168.9.1/24")).unwrap();
    let named = Route { source: Some(address("192.168.9.1")), ..route("172.31.0.0/16", None, id, 0) };
    node.host.control.enter_route(Entry::Replace, named).unwrap();
    // A gateway that is on two links, and by this one only as the second choice.
    let fourth = without_address(&mut node, 3);
    node.host.control.add_route(route("172.31.0.0/16", None, fourth, 1)).unwrap();
    node.host.control.add_route(route("10.8.0.0/16", Some("172.31.1.1"), fourth, 0)).unwrap();
    node.take(now, PORT);
    let client = node.host.stack.udp_bind(None, 0).unwrap();
    for (to, port, from) in [("172.31.1.2", 1, [192, 168, 9, 1]), ("10.8.0.1", 3, [10, 0, 0, 1])] {
        let to = Some((address(to), 9));
        node.host.stack.udp_send(now, client, to, b"x", &mut node.pool).unwrap();
        let asked = node.take(now, PortId(port));
        let [question] = &asked[..] else { panic!("{to:?}: {asked:02x?}") };
        assert_eq!((&question[12..14], &question[28..32]), (&[8, 6][..], &from[..]), "{to:?}");
    }
}

/// As clouds have it: one address alone, and a router that is on the link by a route.
#[test]
fn a_gateway_may_be_on_the_link_by_a_route() {
    let mut node = Node::new(1).with_interface(0, 1, None, 1500, "10.0.0.5/32");
    let (id, now) = (node.interface(1), Timestamp::from_nanos(5_000_000_000));
    let control = &mut node.host.control;
    let via = |id| route("0.0.0.0/0", Some("172.31.1.1"), id, 0);
    let nowhere = Err(ControlError::Gateway(address("172.31.1.1")));
    assert_eq!(control.add_route(via(id)), nowhere);
    control.add_route(route("172.31.1.1/32", None, id, 0)).unwrap();
    assert_eq!(control.add_route(via(InterfaceId::LOOPBACK)), nowhere, "not on that link");
    assert_eq!(control.add_route(via(id)), Ok(()));
    let through = route("10.9.0.0/16", Some("172.31.1.2"), id, 0);
    assert_eq!(
        control.add_route(through),
        Err(ControlError::Gateway(address("172.31.1.2"))),
        "by a router alone"
    );
    node.take(now, PORT);
    let client = node.host.stack.udp_bind(None, 0).unwrap();
    node.host.stack.udp_send(now, client, Some((address("8.8.8.8"), 9)), b"x", &mut node.pool).unwrap();
    let asked = node.take(now, PORT);
    let [question] = &asked[..] else { panic!("{asked:02x?}") };
    let (from, whom) = (&question[28..32], &question[38..42]);
    assert_eq!((from, whom), (&[10, 0, 0, 5][..], &[172, 31, 1, 1][..]));
}

#[test]
fn of_two_links_a_router_is_on_that_of_the_longer_prefix() {
    let (mut node, id) = node();
    let second = without_address(&mut node, 1);
    let control = &mut node.host.control;
    control.add_address(Timestamp::ZERO, id, prefix("10.1.0.1/8")).unwrap();
    control.add_address(Timestamp::ZERO, second, prefix("10.2.0.1/16")).unwrap();
    control.add_route(route("0.0.0.0/0", None, second, 0)).unwrap();
    control.add_route(route("10.3.0.9/32", None, second, 0)).unwrap();
    let link = |text| control.link_of(address(text), None);
    for (router, expected) in
        [("10.2.0.9", second), ("10.9.0.9", id), ("10.3.0.9", second), ("8.8.8.8", second)]
    {
        assert_eq!(link(router), Some(expected), "{router}");
    }
    assert_eq!(link("fd00::1"), None, "an IPv4 default route says nothing of IPv6");
}

#[test]
fn what_cannot_be_is_refused() {
    let (mut node, id) = node();
    let control = &mut node.host.control;
    let no_host = |address| Err(ControlError::NoHost(address));
    let never = |text| no_host(address(text));
    for (via, why) in [
        ("10.0.0.1", Err(ControlError::OurGateway(address("10.0.0.1")))),
        ("10.0.0.255", never("10.0.0.255")),
        ("224.0.0.1", never("224.0.0.1")),
        ("0.0.0.0", never("0.0.0.0")),
        ("127.0.0.1", never("127.0.0.1")),
        ("10.1.0.1", Err(ControlError::Gateway(address("10.1.0.1")))),
    ] {
        assert_eq!(control.add_route(route("10.9.0.0/16", Some(via), id, 0)), why);
        let why = match why {
            Err(ControlError::OurGateway(ours)) => Err(ControlError::Ours(ours)),
            why => why,
        };
        if via != "10.1.0.1" {
            assert_eq!(control.add_neighbour(id, address(via), MAC), why);
        }
    }
    for (to, via) in [("10.9.0.0/16", "fe80::2"), ("::/0", "10.0.0.2")] {
        let refused = Err(ControlError::Gateway(address(via).with_zone(id)));
        assert_eq!(control.add_route(route(to, Some(via), id, 0)), refused);
    }
    for to in ["127.0.0.0/8", "127.1.0.0/16", "::1/128"] {
        assert_eq!(control.add_route(route(to, None, id, 0)), Err(ControlError::Loopback(prefix(to))));
    }
    for mac in [Mac::BROADCAST, Mac([1, 0, 0x5e, 0, 0, 1]), Mac::default()] {
        let added = control.add_neighbour(id, address("10.0.0.9"), mac);
        assert_eq!(added, Err(ControlError::NoStation(mac)));
    }
    for text in ["0.1.2.3/8", "0.0.0.0/0", "224.0.0.1/24", "255.255.255.255/32", "::/64", "ff02::1/64"] {
        let refused = no_host(prefix(text).with_zone(id).address());
        assert_eq!(control.add_address(Timestamp::ZERO, id, prefix(text)), refused);
    }
    for text in ["127.0.0.5/8", "127.0.0.1/32", "::1/128"] {
        let refused = Err(ControlError::Inside(prefix(text).address()));
        assert_eq!(control.add_address(Timestamp::ZERO, id, prefix(text)), refused);
    }
    let routes: Vec<Origin> = control.routes().map(|route| control.origin(Timestamp::ZERO, route)).collect();
    assert_eq!(routes, [Origin::Address]);
    assert_eq!(control.neighbours().count(), 0);
}

#[test]
fn an_address_that_cannot_be_replaced_stays_as_it_is() {
    let mut now = Timestamp::ZERO;
    let [mut node, mut other] = [1, 2].map(|number| {
        let mut node = Node::new(number).with_interface(0, number, None, 1500, "10.0.0.1/24");
        let id = node.interface(1);
        node.host.control.add_address(now, id, prefix("fd00::5/64")).unwrap();
        node
    });
    // Both look for it at once: neither has it then.
    for _ in 0..20 {
        now = now + Duration::from_millis(200);
        for packet in other.take(now, PORT) {
            node.put(now, PORT, &packet);
        }
    }
    let (id, control) = (node.interface(1), &mut node.host.control);
    let entered = |control: &Control| {
        let addresses: Vec<_> = control.addresses().collect();
        (addresses, control.routes().copied().collect::<Vec<_>>())
    };
    let before = entered(control);
    assert!(before.0.contains(&(prefix("fd00::5/64"), id, AddressState::Duplicate)), "{before:?}");
    control.set_mtu(id, 1000).unwrap();
    let replaced = control.replace_address(now, id, prefix("fd00::5/64"), false);
    assert_eq!((replaced, entered(control)), (Err(ControlError::Mtu6(1000)), before));
}
