//! Links whose MTU changes while packets are under way: `ip link set dev eth1 mtu 1400`.

use std::time::Duration;

use crate::ip6;
use crate::wire::{Node, PORT, Pair, address};
use bywash_stack::{
    ConnectionId, ControlError, Entry, Event, PortId, Route, Timestamp, UdpError, Unreachable,
};
use bywash_wire::Mac;

const B: [&str; 2] = ["10.0.0.2", "fd00::2"];

/// Two hosts with addresses of both families.
pub(crate) fn pair() -> Pair {
    let mut pair = Pair::new(1500);
    for (node, own) in [(&mut pair.a, "fd00::1/64"), (&mut pair.b, "fd00::2/64")] {
        node.host.control.add_address(pair.now, node.interface(1), own.parse().unwrap()).unwrap();
    }
    (0..4).for_each(|_| pair.pass(Duration::from_millis(600)));
    pair.b.host.stack.listen(None, 80, 16).unwrap();
    pair
}

/// Opens a connection from a to b, and says how long segments a has offered to take.
pub(crate) fn open(pair: &mut Pair, to: &str) -> (ConnectionId, ConnectionId, u16) {
    pair.trace.clear();
    let id = pair.a.host.stack.connect(pair.now, (None, 0), (address(to), 80), &mut pair.a.pool).unwrap();
    pair.settle();
    let accepted = pair.b.host.stack.events().find_map(|event| match event {
        Event::Accepted { connection, .. } => Some(connection),
        _ => None,
    });
    // The option of the SYN is the first: kind 2, length 4.
    let ip = if to.contains(':') { 40 } else { 20 };
    let options = |p: &Vec<u8>| p.get(14 + ip + 20..).map(<[u8]>::to_vec);
    let syn = pair.trace.iter().filter(|(a, _)| *a).filter_map(|(_, p)| options(p));
    let mut offered =
        syn.filter(|options| options.starts_with(&[2, 4])).map(|o| u16::from_be_bytes([o[2], o[3]]));
    (id, accepted.unwrap(), offered.next_back().unwrap())
}

pub(crate) fn read(pair: &mut Pair, id: ConnectionId) -> Vec<u8> {
    let mut bytes = vec![0; 1 << 20];
    let n = pair.b.host.stack.receive_copy(pair.now, id, &mut bytes, &mut pair.b.pool).unwrap();
    bytes.truncate(n);
    bytes
}

#[test]
fn segments_fit_a_link_that_becomes_narrower() {
    for (to, headers) in B.into_iter().zip([40, 60]) {
        let mut pair = pair();
        let link = pair.a.interface(1);
        let (client, server, offered) = open(&mut pair, to);
        assert_eq!(offered, 1500 - headers);
        // Ten whole segments, with timestamps, are on their way when the link takes them no more.
        let sent: Vec<u8> = (0..10 * (usize::from(offered) - 12)).map(|i| i.to_le_bytes()[0]).collect();
        let queued = pair.a.host.stack.send(pair.now, client, &sent, &mut pair.a.pool).unwrap();
        assert_eq!((queued, pair.a.take(pair.now, PORT).len()), (sent.len(), 10));
        pair.a.host.control.set_mtu(link, 1400).unwrap();
        pair.trace.clear();
        pair.settle();
        assert_eq!(read(&mut pair, server), sent, "again at once, no timer has gone off");
        let longest = pair.trace.iter().filter(|(a, _)| *a).map(|(_, p)| p.len()).max();
        assert_eq!(longest, Some(14 + 1400));
        let counted = pair.a.host.stack.counters();
        assert_eq!((counted.tcp_timeouts, counted.tcp_recoveries), (0, 0), "it is no congestion");
        assert_eq!(open(&mut pair, to).2, 1400 - headers);
        // Wider again: who has a connection goes on as it is, as RFC 1191 has it.
        pair.a.host.control.set_mtu(link, 1500).unwrap();
        pair.settle();
        assert_eq!(open(&mut pair, to).2, 1500 - headers);
        assert_eq!(
            pair.a.host.stack.tcp_info(pair.now, client).unwrap().snd_mss,
            1400 - u32::from(headers) - 12
        );
        pair.a.assert_nothing_leaked();
    }
}

#[test]
fn what_is_not_a_link_is_refused_and_ipv6_keeps_what_every_link_carries() {
    let mut pair = pair();
    let link = pair.a.interface(1);
    assert_eq!(pair.a.host.control.set_mtu(link, 67), Err(ControlError::Mtu(67)));
    pair.a.host.control.set_mtu(link, 600).unwrap();
    pair.settle();
    assert_eq!(B.map(|to| open(&mut pair, to).2), [600 - 40, 1280 - 60]);
}

#[test]
fn a_router_tells_of_a_link_that_has_become_narrower() {
    let mut a = Node::new(1).with_interface(0, 1, None, 1500, "10.0.0.1/24");
    let mut router = Node::new(3).with_interface(0, 3, None, 1500, "10.0.0.3/24").with_interface(
        1,
        4,
        None,
        1500,
        "10.1.0.3/24",
    );
    router.host.control.set_forwarding(true);
    let mut now = Timestamp::ZERO;
    let give = |node: &mut Node, number: usize, own: &str| {
        node.host.control.add_address(Timestamp::ZERO, node.interface(number), own.parse().unwrap()).unwrap();
    };
    give(&mut a, 1, "fd00::1/64");
    give(&mut router, 1, "fd00::3/64");
    give(&mut router, 2, "fd01::3/64");
    let (link, beyond) = (a.interface(1), router.interface(2));
    a = a.with_route("10.1.0.0/24", "10.0.0.3", link).with_route("fd01::/64", "fd00::3", link);
    for far in ["10.1.0.4", "fd01::4"] {
        let mac = Mac([2, 0, 0, 0, 0, 5]);
        router.host.control.add_neighbour(beyond, address(far), mac).unwrap();
    }
    // What has come out beyond the router, in bytes.
    let turn = |a: &mut Node, router: &mut Node, now| {
        let mut passed = Vec::new();
        for _ in 0..5 {
            a.take(now, PORT).iter().for_each(|p| router.put(now, PORT, p));
            router.take(now, PORT).iter().for_each(|p| a.put(now, PORT, p));
            passed.extend(router.take(now, PortId(1)).iter().map(Vec::len));
        }
        passed
    };
    for _ in 0..4 {
        now = now + Duration::from_millis(600);
        turn(&mut a, &mut router, now);
    }
    for (far, headers) in [("10.1.0.4", 28), ("fd01::4", 48)] {
        router.host.control.set_mtu(beyond, 1500).unwrap();
        let client = a.host.stack.udp_bind(None, 0).unwrap();
        a.host.stack.udp_connect(client, Some((address(far), 9))).unwrap();
        for (mtu, expected) in [(1500, vec![14 + 1500]), (1400, vec![])] {
            router.host.control.set_mtu(beyond, mtu).unwrap();
            router.take(now, PORT);
            a.host.stack.udp_send(now, client, None, &vec![7; 1500 - headers], &mut a.pool).unwrap();
            assert_eq!(turn(&mut a, &mut router, now), expected, "{far} at {mtu}");
        }
        let error = a.host.stack.udp_receive(client).unwrap_err();
        assert_eq!(error, UdpError::Unreachable(Unreachable::TooBig(1400)), "{far}");
    }
}

/// RFC 4861, 6.3.4.
#[test]
fn what_a_router_has_said_holds_when_a_link_is_wider_again() {
    let mut node = Node::new(1).with_interface(0, 1, None, 1400, "10.0.0.1/24");
    let (id, now) = (node.interface(1), Timestamp::from_nanos(5_000_000_000));
    node.host.control.autoconfigure(now, id).unwrap();
    let own = "fd00::1/64".parse().unwrap();
    node.host.control.add_address(now, id, own).unwrap();
    let mac = Mac([2, 0, 0, 0, 0, 2]);
    node.host.control.add_neighbour(id, address("fd00::2"), mac).unwrap();
    let mut now = now;
    for _ in 0..10 {
        now = now + Duration::from_secs(1);
        node.take(now, PORT);
    }
    let client = node.host.stack.udp_bind(None, 0).unwrap();
    let longest = |node: &mut Node, mtu: u16| {
        node.host.control.set_mtu(id, mtu).unwrap();
        node.take(now, PORT);
        let to = Some((address("fd00::2"), 9));
        node.host.stack.udp_send(now, client, to, &[7; 3000], &mut node.pool).unwrap();
        node.take(now, PORT).iter().map(|p| p.len() - 14).max().unwrap()
    };
    // Pieces are cut at eight bytes.
    assert_eq!(longest(&mut node, 1400), 1400);
    let advertise = |node: &mut Node, mtu: u32| {
        let head = [134, 0, 0, 0, 64, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        let option = [&[5, 1, 0, 0][..], &mtu.to_be_bytes()].concat();
        let all = Mac([0x33, 0x33, 0, 0, 0, 1]);
        let from = "fe80::ff:fe00:2";
        node.put(now, PORT, &ip6::icmp(all, from, "ff02::1", 255, &[&head[..], &option].concat()));
    };
    advertise(&mut node, 1448);
    assert_eq!([1400, 1500, 1400, 9000].map(|mtu| longest(&mut node, mtu)), [1400, 1448, 1400, 1448]);
    advertise(&mut node, 1279);
    assert_eq!(longest(&mut node, 1500), 1448, "no link may carry less than 1280");
}

#[test]
fn segments_fit_the_link_that_a_route_leads_to_by_now() {
    let mut pair = pair();
    pair.a = std::mem::replace(&mut pair.a, Node::new(9)).with_interface(1, 9, None, 1000, "10.1.0.1/24");
    let (wide, narrow) = (pair.a.interface(1), pair.a.interface(2));
    let server = pair.b.interface(1);
    pair.b.host.control.add_address(pair.now, server, "192.168.0.2/24".parse().unwrap()).unwrap();
    pair.a.host.control.add_neighbour(narrow, address("10.1.0.2"), Mac([2, 0, 0, 0, 0, 2])).unwrap();
    let route = |interface, gateway| {
        let prefix = "192.168.0.0/24".parse().unwrap();
        Route { prefix, gateway: Some(address(gateway)), interface, metric: 0, source: None }
    };
    pair.a.host.control.add_route(route(wide, "10.0.0.2")).unwrap();
    pair.settle();
    let (client, ..) = open(&mut pair, "192.168.0.2");
    let segments = |pair: &mut Pair| {
        pair.settle();
        pair.a.host.stack.tcp_info(pair.now, client).unwrap().snd_mss
    };
    assert_eq!(segments(&mut pair), 1500 - 52);
    pair.a.host.control.enter_route(Entry::Replace, route(narrow, "10.1.0.2")).unwrap();
    assert_eq!(segments(&mut pair), 1000 - 52);
}

#[test]
fn segments_grow_with_a_link_that_becomes_wider_again() {
    for (to, headers) in B.into_iter().zip([40, 60]) {
        let mut pair = pair();
        let link = pair.a.interface(1);
        let (client, server, _) = open(&mut pair, to);
        let mss = |pair: &Pair| pair.a.host.stack.tcp_info(pair.now, client).unwrap().snd_mss;
        for mtu in [1400, 1500] {
            pair.a.host.control.set_mtu(link, mtu).unwrap();
            // Within some seconds of talk.
            for _ in 0..80 {
                pair.pass(Duration::from_millis(100));
                pair.a.host.stack.send(pair.now, client, b"a few words", &mut pair.a.pool).unwrap();
                pair.settle();
                read(&mut pair, server);
            }
            assert_eq!(mss(&pair), u32::from(mtu) - headers - 12, "{to} {mtu}");
        }
    }
}
