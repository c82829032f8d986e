//! Redirects, as they show on the wire: what is believed, from whom, and for how long.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use crate::wire::{Node, PORT, address};
use bywash_stack::{Address, Entry, Origin, Prefix, Route, Timestamp};
use bywash_wire::checksum::Sum;
use bywash_wire::zerocopy::IntoBytes;
use bywash_wire::{Ipv4Header, Ipv6Header, Mac, Protocol, icmpv4, icmpv6};

/// The last bytes of Ethernet addresses: the router of all, a better one, and one that never answers.
const ROUTER: u8 = 2;
const BETTER: u8 = 3;
const SILENT: u8 = 4;
const FAR: &str = "192.0.2.7";
const FAR6: &str = "2001:db8::7";

/// A host with a default route for each family, when its addresses are its own.
fn host() -> (Node, Timestamp) {
    let mut host = Node::new(1).with_interface(0, 1, None, 1500, "10.0.0.1/24");
    let id = host.interface(1);
    host.host.control.add_address(Timestamp::ZERO, id, "fd00::1/64".parse().unwrap()).unwrap();
    let mut host = host.with_route("0.0.0.0/0", "10.0.0.2", id).with_route("::/0", "fe80::2", id);
    for last in [ROUTER, BETTER] {
        for neighbour in [format!("10.0.0.{last}"), format!("fe80::{last}")] {
            host.host.control.add_neighbour(id, address(&neighbour), Mac([2, 0, 0, 0, 0, last])).unwrap();
        }
    }
    let mut now = Timestamp::ZERO;
    for _ in 0..20 {
        now = now + Duration::from_millis(500);
        host.take(now, PORT);
    }
    (host, now)
}

/// Where a datagram to a destination goes: the last byte of the Ethernet address; `None`: its neighbour is asked for.
fn goes_to(host: &mut Node, now: Timestamp, destination: &str) -> Option<u8> {
    host.take(now, PORT);
    let client = host.host.stack.udp_bind(None, 0).unwrap();
    let to = Some((address(destination), 9));
    host.host.stack.udp_send(now, client, to, b"x", &mut host.pool).unwrap();
    let sent = host.take(now, PORT);
    host.host.stack.udp_close(client, &mut host.pool);
    let datagram = |bytes: &&Vec<u8>| match bytes[12..14] {
        [8, 0] => bytes[23] == Protocol::UDP.0,
        [0x86, 0xdd] => bytes[20] == Protocol::UDP.0,
        _ => false,
    };
    sent.iter().find(datagram).map(|bytes| bytes[5])
}

/// What is said in a redirect, for either family.
#[derive(Clone, Copy)]
struct Said<'a> {
    source: &'a str,
    to: &'a str,
    hop: &'a str,
    destination: &'a str,
    quoted_source: &'a str,
    code: u8,
    hop_limit: u8,
}

const FOUR: Said<'_> = Said {
    source: "10.0.0.2",
    to: "10.0.0.1",
    hop: "10.0.0.3",
    destination: FAR,
    quoted_source: "10.0.0.1",
    code: 1,
    hop_limit: 64,
};
const SIX: Said<'_> = Said {
    source: "fe80::2",
    to: "fd00::1",
    hop: "fe80::3",
    destination: FAR6,
    quoted_source: "fd00::1",
    code: 0,
    hop_limit: 255,
};

impl Said<'_> {
    fn four(&self) -> Vec<u8> {
        let ip = |text: &str| text.parse::<Ipv4Addr>().unwrap();
        let mut quoted = Ipv4Header::new(ip(self.quoted_source), ip(self.destination), Protocol::UDP.0, 9);
        quoted.seal();
        let head = [icmpv4::REDIRECT, self.code, 0, 0];
        let mut icmp = [&head[..], &ip(self.hop).octets(), quoted.as_bytes(), &[0; 8]].concat();
        let sum = Sum::new().bytes(&icmp).checksum();
        icmp[2..4].copy_from_slice(&sum.to_be_bytes());
        let length = u16::try_from(icmp.len()).unwrap();
        let mut header = Ipv4Header::new(ip(self.source), ip(self.to), Protocol::ICMP.0, length);
        header.time_to_live = self.hop_limit;
        header.seal();
        [&[2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, ROUTER, 8, 0], header.as_bytes(), &icmp].concat()
    }

    fn six(&self) -> Vec<u8> {
        let ip = |text: &str| text.parse::<Ipv6Addr>().unwrap();
        let quoted = Ipv6Header::new(ip(self.quoted_source), ip(self.destination), Protocol::UDP.0, 9);
        let option = [&[4, 6, 0, 0, 0, 0, 0, 0], quoted.as_bytes()].concat();
        self.six_with(&option)
    }

    fn six_with(&self, options: &[u8]) -> Vec<u8> {
        let ip = |text: &str| text.parse::<Ipv6Addr>().unwrap();
        let head = [icmpv6::REDIRECT, self.code, 0, 0, 0, 0, 0, 0];
        let (hop, destination) = (ip(self.hop).octets(), ip(self.destination).octets());
        let icmp = [&head[..], &hop, &destination, options].concat();
        packet6(ip(self.source), ip(self.to), self.hop_limit, icmp)
    }
}

/// A message of ICMPv6, whose checksum is filled in here.
fn packet6(source: Ipv6Addr, to: Ipv6Addr, hop_limit: u8, mut icmp: Vec<u8>) -> Vec<u8> {
    let length = u16::try_from(icmp.len()).unwrap();
    let sum = Sum::pseudo(&source.octets(), &to.octets(), Protocol::ICMPV6.0, length.into());
    let sum = sum.bytes(&icmp).checksum();
    icmp[2..4].copy_from_slice(&sum.to_be_bytes());
    let mut header = Ipv6Header::new(source, to, Protocol::ICMPV6.0, length);
    header.hop_limit = hop_limit;
    [&[2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, ROUTER, 0x86, 0xdd], header.as_bytes(), &icmp].concat()
}

/// The routes that redirects have made.
fn redirected(host: &Node) -> usize {
    host.host.control.routes().filter(|route| route.metric == 512).count()
}

#[test]
fn packets_go_by_the_better_router_for_ten_minutes() {
    let (mut host, start) = host();
    let peer = (address(FAR), 80);
    host.host.stack.connect(start, (None, 0), peer, &mut host.pool).unwrap();
    assert_eq!(host.take(start, PORT)[0][5], ROUTER);
    for far in [FAR, FAR6] {
        assert_eq!(goes_to(&mut host, start, far), Some(ROUTER));
    }
    host.put(start, PORT, &FOUR.four());
    host.put(start, PORT, &SIX.six());
    for (far, other) in [(FAR, "192.0.2.8"), (FAR6, "2001:db8::8")] {
        assert_eq!(goes_to(&mut host, start, far), Some(BETTER));
        assert_eq!(goes_to(&mut host, start, other), Some(ROUTER), "only that host");
    }
    let again = host.take(start + Duration::from_millis(1500), PORT);
    assert_eq!(again[0][5], BETTER, "the connection's next segment, too");
    let late = start + Duration::from_secs(599);
    let routes = host.host.control.routes().filter(|route| route.metric == 512);
    let origins: Vec<_> = routes.map(|route| host.host.control.origin(late, route)).collect();
    assert_eq!(origins, [Origin::Redirect(Duration::from_secs(1)); 2]);
    assert_eq!([FAR, FAR6].map(|far| goes_to(&mut host, late, far)), [Some(BETTER); 2]);
    let over = late + Duration::from_secs(1);
    assert_eq!([FAR, FAR6].map(|far| goes_to(&mut host, over, far)), [Some(ROUTER); 2]);
    assert_eq!(redirected(&host), 0);
}

#[test]
fn a_redirect_of_the_better_router_is_believed_and_its_old_one_no_more() {
    let (mut host, now) = host();
    host.put(now, PORT, &FOUR.four());
    host.put(now, PORT, &SIX.six());
    // From whom packets went to before, and back from whom they go to now.
    host.put(now, PORT, &Said { hop: "10.0.0.4", ..FOUR }.four());
    host.put(now, PORT, &Said { hop: "fe80::4", ..SIX }.six());
    assert_eq!([FAR, FAR6].map(|far| goes_to(&mut host, now, far)), [Some(BETTER); 2]);
    host.put(now, PORT, &Said { source: "10.0.0.3", hop: "10.0.0.2", ..FOUR }.four());
    host.put(now, PORT, &Said { source: "fe80::3", hop: "fe80::2", ..SIX }.six());
    assert_eq!([FAR, FAR6].map(|far| goes_to(&mut host, now, far)), [Some(ROUTER); 2]);
    assert_eq!(redirected(&host), 2, "one route for each destination");
    host.assert_nothing_leaked();
}

/// Linux has a redirect change the next hop alone, too.
#[test]
fn a_redirected_packet_comes_from_the_source_of_the_route() {
    let (mut host, mut now) = host();
    let interface = host.interface(1);
    for (prefix, router, ours) in
        [("0.0.0.0/0", "10.0.0.2", "10.0.0.5/24"), ("::/0", "fe80::2", "fd00::5/64")]
    {
        let ours: Prefix = ours.parse().unwrap();
        host.host.control.add_address(now, interface, ours).unwrap();
        let (prefix, gateway, source) =
            (prefix.parse().unwrap(), Some(address(router)), Some(ours.address()));
        let route = Route { prefix, gateway, interface, metric: 0, source };
        host.host.control.enter_route(Entry::Replace, route).unwrap();
    }
    for _ in 0..8 {
        now = now + Duration::from_millis(500);
        host.take(now, PORT);
    }
    host.put(now, PORT, &FOUR.four());
    host.put(now, PORT, &SIX.six());
    let snapshot = host.host.control.snapshot(&mut host.pool);
    let way = |far| {
        let (_, router) = snapshot.next_hop(address(far)).unwrap();
        (router.ip(), snapshot.source_for(address(far)))
    };
    assert_eq!(way(FAR), (address("10.0.0.3").ip(), Some(address("10.0.0.5"))));
    assert_eq!(way(FAR6), (address("fe80::3").ip(), Some(address("fd00::5"))));
    // What has been told of a route goes with the route's source.
    for ours in ["10.0.0.5", "fd00::5"] {
        assert!(host.host.control.remove_address(address(ours)));
    }
    let left: Vec<(Prefix, Option<Address>)> = host
        .host
        .control
        .routes()
        .filter(|route| route.gateway.is_some())
        .map(|route| (route.prefix, route.source))
        .collect();
    assert_eq!(left, [("::/0".parse().unwrap(), None)]);
}

#[test]
fn what_does_not_come_from_the_first_hop_about_a_packet_of_ours_is_refused() {
    let four = [
        ("another's", Said { source: "10.0.0.3", hop: "10.0.0.4", ..FOUR }),
        ("a host's beyond the link", Said { source: "192.0.2.9", ..FOUR }),
        ("an unknown code", Said { code: 4, ..FOUR }),
        ("a hop beyond the link", Said { hop: "10.0.1.3", ..FOUR }),
        ("ourselves as the hop", Said { hop: "10.0.0.1", ..FOUR }),
        ("everyone as the hop", Said { hop: "10.0.0.255", ..FOUR }),
        ("a group as the hop", Said { hop: "224.0.0.1", ..FOUR }),
        ("a packet that is not ours", Said { quoted_source: "10.0.0.9", ..FOUR }),
        ("a group as the destination", Said { destination: "224.0.0.9", ..FOUR }),
        ("a neighbour as the destination", Said { destination: "10.0.0.2", ..FOUR }),
        ("ourselves as the destination", Said { destination: "10.0.0.1", ..FOUR }),
    ];
    let six = [
        ("another's", Said { source: "fe80::3", hop: "fe80::4", ..SIX }),
        ("no link-local source", Said { source: "fd00::2", ..SIX }),
        ("a code", Said { code: 1, ..SIX }),
        ("from beyond the link", Said { hop_limit: 254, ..SIX }),
        ("a hop that is no router", Said { hop: "fd00::3", ..SIX }),
        ("ourselves as the hop", Said { hop: "fe80::ff:fe00:1", ..SIX }),
        ("a group as the hop", Said { hop: "ff02::2", ..SIX }),
        ("a packet that is not ours", Said { quoted_source: "fd00::9", ..SIX }),
        ("a group as the destination", Said { destination: "ff0e::9", ..SIX }),
        ("a neighbour as the destination", Said { destination: "fe80::2", ..SIX }),
    ];
    let other = Ipv6Header::new("fd00::1".parse().unwrap(), "2001:db8::8".parse().unwrap(), 17, 9);
    let other = [&[4, 6, 0, 0, 0, 0, 0, 0], other.as_bytes()].concat();
    let broken = [
        ("without the packet", SIX.six_with(&[])),
        ("about another packet", SIX.six_with(&other)),
        ("with an option of no length", SIX.six_with(&[&other[..], &[2, 0, 0, 0, 0, 0, 0, 0]].concat())),
    ];
    let four = four.iter().map(|(name, said)| (*name, said.four()));
    let six = six.iter().map(|(name, said)| (*name, said.six()));
    let (mut host, now) = host();
    for (name, bytes) in four.chain(six).chain(broken) {
        host.put(now, PORT, &bytes);
        host.take(now, PORT);
        assert_eq!(redirected(&host), 0, "{name}");
    }
    // They have not used up what may be taken.
    for bytes in [FOUR.four(), SIX.six()] {
        host.put(now, PORT, &bytes);
    }
    assert_eq!(redirected(&host), 2);
    host.assert_nothing_leaked();
}

#[test]
fn a_router_a_host_that_is_told_so_and_a_route_by_hand_take_none() {
    let all = |host: &mut Node, now: Timestamp| {
        host.put(now, PORT, &FOUR.four());
        host.put(now, PORT, &SIX.six());
        redirected(host)
    };
    let (mut host, now) = host();
    assert_eq!(all(&mut host, now), 2);
    host.host.control.set_forwarding(true);
    assert_eq!((redirected(&host), all(&mut host, now)), (0, 0), "a router forgets them");
    host.host.control.set_forwarding(false);
    assert_eq!(all(&mut host, now), 2);
    host.host.control.set_redirects(false);
    assert_eq!((redirected(&host), all(&mut host, now)), (0, 0));
    host.host.control.set_redirects(true);
    assert_eq!(all(&mut host, now), 2);
    let interface = host.interface(1);
    for (prefix, gateway) in [("192.0.2.7/32", "10.0.0.2"), ("2001:db8::7/128", "fe80::2")] {
        let (prefix, gateway) = (prefix.parse().unwrap(), Some(address(gateway)));
        host.host.control.add_route(Route { prefix, gateway, interface, metric: 9, source: None }).unwrap();
    }
    assert_eq!((redirected(&host), all(&mut host, now)), (0, 0));
    assert_eq!([FAR, FAR6].map(|far| goes_to(&mut host, now, far)), [Some(ROUTER); 2]);
}

#[test]
fn a_route_by_hand_that_is_the_same_as_a_redirects_stays() {
    let (mut host, now) = host();
    host.put(now, PORT, &FOUR.four());
    host.put(now, PORT, &SIX.six());
    let interface = host.interface(1);
    let by_hand = [("192.0.2.7/32", "10.0.0.3"), ("2001:db8::7/128", "fe80::3")].map(|(prefix, gateway)| {
        let gateway = Some(address(gateway).with_zone(interface));
        Route { prefix: prefix.parse().unwrap(), gateway, interface, metric: 512, source: None }
    });
    for route in by_hand {
        host.host.control.add_route(route).unwrap();
        assert!(host.host.control.routes().any(|other| *other == route), "{route:?}");
        assert_eq!(host.host.control.origin(now, &route), Origin::User);
    }
    assert_eq!(redirected(&host), 2);
    let later = now + Duration::from_secs(601);
    assert_eq!([FAR, FAR6].map(|far| goes_to(&mut host, later, far)), [Some(BETTER); 2], "for ever");
}

#[test]
fn a_better_router_that_does_not_answer_is_given_up() {
    let (mut host, start) = host();
    host.put(start, PORT, &Said { hop: "10.0.0.4", ..FOUR }.four());
    host.put(start, PORT, &Said { hop: "fe80::4", ..SIX }.six());
    for far in [FAR, FAR6] {
        assert_eq!(goes_to(&mut host, start, far), None, "it is asked for first");
    }
    let mut now = start;
    for _ in 0..8 {
        now = now + Duration::from_millis(500);
        host.take(now, PORT);
    }
    assert_eq!(redirected(&host), 0);
    host.put(now, PORT, &Said { hop: "10.0.0.4", ..FOUR }.four());
    assert_eq!(redirected(&host), 0, "nor is it believed again at once");
    assert_eq!([FAR, FAR6].map(|far| goes_to(&mut host, now, far)), [Some(ROUTER); 2]);
    host.assert_nothing_leaked();
}

#[test]
fn who_says_that_it_is_no_router_is_not_sent_through() {
    let (mut host, now) = host();
    host.put(now, PORT, &SIX.six());
    assert_eq!(goes_to(&mut host, now, FAR6), Some(BETTER));
    let better: Ipv6Addr = "fe80::3".parse().unwrap();
    // Solicited, and an address that overrides; the first bit, for routers, is not set.
    let advertisement = [&[icmpv6::NEIGHBOUR_ADVERTISEMENT, 0, 0, 0, 0x60, 0, 0, 0], &better.octets()[..]];
    let link = [2, 1, 2, 0, 0, 0, 0, BETTER];
    let icmp = [&advertisement.concat()[..], &link].concat();
    host.put(now, PORT, &packet6(better, "fd00::1".parse().unwrap(), 255, icmp));
    assert_eq!((redirected(&host), goes_to(&mut host, now, FAR6)), (0, Some(ROUTER)));
}

#[test]
fn a_destination_on_the_link_is_sent_to_itself_where_the_redirect_says_it_is() {
    let (mut host, now) = host();
    let quoted = Ipv6Header::new("fd00::1".parse().unwrap(), FAR6.parse().unwrap(), 17, 9);
    let link = [2, 1, 2, 0, 0, 0, 0, SILENT];
    let options = [&link[..], &[4, 6, 0, 0, 0, 0, 0, 0], quoted.as_bytes()].concat();
    host.put(now, PORT, &Said { hop: FAR6, ..SIX }.six_with(&options));
    assert_eq!(goes_to(&mut host, now, FAR6), Some(SILENT));
    let ours: Vec<_> = host.host.control.routes().filter(|route| route.metric == 512).collect();
    assert_eq!((ours.len(), ours[0].gateway, ours[0].interface), (1, None, host.interface(1)));
}

#[test]
fn addresses_that_change_end_the_redirects_of_their_link() {
    let (mut host, now) = host();
    let id = host.interface(1);
    host.put(now, PORT, &FOUR.four());
    host.host.control.add_address(now, id, "10.9.0.1/24".parse().unwrap()).unwrap();
    assert_eq!(redirected(&host), 0);
    host.put(now, PORT, &FOUR.four());
    assert_eq!(redirected(&host), 1);
    assert!(host.host.control.remove_address(address("10.9.0.1")));
    assert_eq!(redirected(&host), 0);
    host.put(now, PORT, &FOUR.four());
    let default = |route: &Route| route.prefix.length() == 0;
    assert!(host.host.control.remove_route(default).is_some());
    assert_eq!(redirected(&host), 0);
}

#[test]
fn ten_at_once_and_ten_a_second_are_taken_and_256_kept() {
    let (mut host, mut now) = host();
    let said = |i: u32| {
        let far = Ipv4Addr::from_bits(0xc633_0000 + i).to_string();
        (Said { destination: &far, ..FOUR }.four(), far)
    };
    for i in 0..50 {
        host.put(now, PORT, &said(i).0);
    }
    assert_eq!(redirected(&host), 10);
    for i in 50..400 {
        now = now + Duration::from_millis(100);
        host.put(now, PORT, &said(i).0);
    }
    assert_eq!(redirected(&host), 256);
    assert_eq!(goes_to(&mut host, now, &said(399).1), Some(BETTER));
    assert_eq!(goes_to(&mut host, now, &said(144).1), Some(BETTER), "the oldest that is kept");
    assert_eq!(goes_to(&mut host, now, &said(143).1), Some(ROUTER), "it made room");
}
