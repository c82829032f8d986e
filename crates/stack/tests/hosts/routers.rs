//! Which of the routers that have advertised themselves a host sends by (RFC 4861, 6.3.6; RFC 4191), and what it makes of what they say.

use std::time::Duration;

use crate::ip6::icmp;
use crate::wire::{Node, PORT, address};
use bywash_stack::{AddressState, Control, Origin, PortId, Prefix, Route, Timestamp};
use bywash_wire::{Mac, Protocol, icmpv6};

const OURS: Mac = Mac([2, 0, 0, 0, 0, 1]);
const OUR_LOCAL: &str = "fe80::ff:fe00:1";
const FAR: &str = "2001:db8::7";
const STEP: Duration = Duration::from_millis(500);

/// A host that hears routers, when its addresses are its own.
pub(crate) fn host() -> (Node, Timestamp) {
    let mut host = Node::new(1).with_interface(0, 1, None, 1500, "10.0.0.1/24");
    let id = host.interface(1);
    host.host.control.add_address(Timestamp::ZERO, id, "fd00::1/64".parse().unwrap()).unwrap();
    host.host.control.autoconfigure(Timestamp::ZERO, id).unwrap();
    let mut now = Timestamp::ZERO;
    for _ in 0..10 {
        now = now + STEP;
        host.take(now, PORT);
    }
    (host, now)
}

/// The router `fe80::LAST` says that it is one, and where it is if `known`.
fn advertise(host: &mut Node, now: Timestamp, last: u8, known: bool) {
    let link = [1, 1, 2, 0, 0, 0, 0, last];
    advertise_with(host, now, last, if known { &link } else { &[] });
}

fn advertise_with(host: &mut Node, now: Timestamp, last: u8, options: &[u8]) {
    advertise_as(host, now, last, (0, [7, 8]), options);
}

/// With such flags, and as a default router for so many seconds.
fn advertise_as(host: &mut Node, now: Timestamp, last: u8, (flags, life): (u8, [u8; 2]), options: &[u8]) {
    let head = [icmpv6::ROUTER_ADVERTISEMENT, 0, 0, 0, 64, flags, life[0], life[1], 0, 0, 0, 0, 0, 0, 0, 0];
    let bytes = [&head[..], options].concat();
    let source = format!("fe80::{last}");
    host.put(now, PORT, &icmp(Mac([0x33, 0x33, 0, 0, 0, 1]), &source, "ff02::1", 255, &bytes));
}

/// The router `fe80::LAST` answers that it is there.
fn answer(host: &mut Node, now: Timestamp, last: u8) {
    let target = [0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, last];
    let head = [icmpv6::NEIGHBOUR_ADVERTISEMENT, 0, 0, 0, 0xe0, 0, 0, 0];
    let bytes = [&head[..], &target, &[2, 1, 2, 0, 0, 0, 0, last]].concat();
    host.put(now, PORT, &icmp(OURS, &format!("fe80::{last}"), OUR_LOCAL, 255, &bytes));
}

/// What a host sends that has something for a far one, again and again for some time: where datagrams go and who is asked
/// for, each when it is another than before.
fn sends(host: &mut Node, now: &mut Timestamp, time: Duration) -> Vec<String> {
    let client = host.host.stack.udp_bind(None, 0).unwrap();
    let end = *now + time;
    let mut all = Vec::new();
    while *now < end {
        let to = Some((address(FAR), 9));
        host.host.stack.udp_send(*now, client, to, b"x", &mut host.pool).unwrap();
        let words = |bytes: &Vec<u8>| match (Protocol(bytes[20]), bytes[54]) {
            (Protocol::UDP, _) => Some(format!("to {}", bytes[5])),
            (Protocol::ICMPV6, icmpv6::NEIGHBOUR_SOLICITATION) => Some(format!("who has {}", bytes[77])),
            _ => None,
        };
        all.extend(host.take(*now, PORT).iter().filter_map(words));
        *now = *now + STEP;
        host.take(*now, PORT).iter().filter_map(words).for_each(|line| all.push(line));
    }
    host.host.stack.udp_close(client, &mut host.pool);
    all.dedup();
    all
}

#[test]
fn a_router_that_is_known_comes_before_one_of_which_nothing_is_known() {
    let (mut host, mut now) = host();
    advertise(&mut host, now, 2, false);
    advertise(&mut host, now, 3, true);
    assert_eq!(sends(&mut host, &mut now, STEP), ["to 3"]);
    advertise(&mut host, now, 4, true);
    assert_eq!(sends(&mut host, &mut now, STEP), ["to 3"], "there is no reason for another");
    // It does not answer when it is doubted: what goes on is the one that is known.
    let sent = sends(&mut host, &mut now, Duration::from_secs(10));
    assert_eq!(sent, ["to 3", "who has 3", "to 3", "who has 3", "to 3", "who has 3", "to 3", "to 4"]);
    // It is there again, and has to wait.
    advertise(&mut host, now, 3, true);
    assert_eq!(sends(&mut host, &mut now, STEP), ["to 4"]);
}

#[test]
fn routers_of_which_none_is_known_are_tried_in_turn() {
    let (mut host, mut now) = host();
    for last in [2, 3, 4] {
        advertise(&mut host, now, last, false);
    }
    let sent = sends(&mut host, &mut now, Duration::from_secs(18));
    let turn = ["who has 2", "who has 3", "who has 4"];
    assert_eq!(sent, [turn, turn].concat());
    let sent = sends(&mut host, &mut now, Duration::from_secs(3));
    assert_eq!(sent, ["who has 2"], "and again");
    sends(&mut host, &mut now, STEP);
    answer(&mut host, now, 3);
    let sent = sends(&mut host, &mut now, Duration::from_secs(4));
    assert_eq!(sent, ["to 3"], "as long as it is there");
}

#[test]
fn of_two_unknown_routers_one_that_never_answers_is_left_for_the_other() {
    let (mut host, mut now) = host();
    advertise(&mut host, now, 2, false);
    advertise(&mut host, now, 3, false);
    assert_eq!(sends(&mut host, &mut now, STEP), ["who has 2"], "at once");
    let sent = sends(&mut host, &mut now, Duration::from_secs(3));
    assert_eq!(sent, ["who has 2", "who has 3"]);
    answer(&mut host, now, 3);
    assert_eq!(sends(&mut host, &mut now, STEP), ["to 3"]);
    // Whoever answers is taken at once, also out of turn.
    let (mut host, mut now) = self::host();
    advertise(&mut host, now, 2, false);
    advertise(&mut host, now, 3, false);
    assert_eq!(sends(&mut host, &mut now, STEP), ["who has 2"]);
    advertise(&mut host, now, 3, true);
    let sent = sends(&mut host, &mut now, STEP);
    assert_eq!(sent, ["to 3", "who has 2"], "the other is still being asked");
}

#[test]
fn one_router_alone_is_tried_again_and_routes_by_hand_come_first() {
    let (mut host, mut now) = host();
    advertise(&mut host, now, 2, false);
    let sent = sends(&mut host, &mut now, Duration::from_secs(9));
    assert_eq!(sent, ["who has 2"]);
    answer(&mut host, now, 2);
    assert_eq!(sends(&mut host, &mut now, STEP), ["to 2"]);
    let interface = host.interface(1);
    let prefix = "::/0".parse().unwrap();
    let gateway = Some(address("fe80::9"));
    host.host.control.add_route(Route { prefix, gateway, interface, metric: 0, source: None }).unwrap();
    host.take(now, PORT);
    assert_eq!(sends(&mut host, &mut now, STEP), ["who has 9"], "though nothing is known of it");
}

// RFC 4191, 2.2: what the two bits say that a router has of preference.
const HIGH: u8 = 0b01 << 3;
const MEDIUM: u8 = 0;
const LOW: u8 = 0b11 << 3;
const RESERVED: u8 = 0b10 << 3;

/// The router `fe80::LAST` says how much it would be preferred, and where it is if `known`.
fn prefer(host: &mut Node, now: Timestamp, last: u8, preference: u8, known: bool) {
    let link = [1, 1, 2, 0, 0, 0, 0, last];
    advertise_as(host, now, last, (preference, [7, 8]), if known { &link } else { &[] });
}

#[test]
fn of_routers_that_are_reachable_the_one_that_is_preferred_is_used() {
    let (mut host, mut now) = host();
    // The reserved value is as good as none was said.
    for (last, preference, used) in
        [(2, LOW, "to 2"), (3, MEDIUM, "to 3"), (4, RESERVED, "to 3"), (5, HIGH, "to 5"), (6, MEDIUM, "to 5")]
    {
        prefer(&mut host, now, last, preference, true);
        assert_eq!(sends(&mut host, &mut now, STEP), [used], "{last}");
    }
    // The latest word counts.
    prefer(&mut host, now, 5, LOW, true);
    assert_eq!(sends(&mut host, &mut now, STEP), ["to 3"]);
    prefer(&mut host, now, 2, HIGH, true);
    assert_eq!(sends(&mut host, &mut now, STEP), ["to 2"]);
    // Of one that is no default router it says nothing.
    advertise_as(&mut host, now, 2, (HIGH, [0, 0]), &[1, 1, 2, 0, 0, 0, 0, 2]);
    assert_eq!(sends(&mut host, &mut now, STEP), ["to 4"], "3 has had its turn");
}

#[test]
fn a_preferred_router_that_is_not_there_comes_after_one_that_is() {
    let (mut host, mut now) = host();
    prefer(&mut host, now, 2, LOW, true);
    prefer(&mut host, now, 3, HIGH, false);
    assert_eq!(sends(&mut host, &mut now, STEP), ["to 2"], "of the other nothing is known");
    // Nor does it answer.
    let (mut host, mut now) = self::host();
    prefer(&mut host, now, 2, LOW, true);
    prefer(&mut host, now, 3, HIGH, true);
    let sent = sends(&mut host, &mut now, Duration::from_secs(9));
    assert_eq!(sent, ["to 3", "who has 3", "to 3", "who has 3", "to 3", "who has 3", "to 3", "to 2"]);
    prefer(&mut host, now, 3, HIGH, true);
    assert_eq!(sends(&mut host, &mut now, STEP), ["to 3"], "it is there again");
    // Where nothing is known of any, each has its turn, or who is preferred and never there would keep others from theirs.
    let (mut host, mut now) = self::host();
    for (last, preference) in [(2, LOW), (3, MEDIUM), (4, HIGH)] {
        prefer(&mut host, now, last, preference, false);
    }
    let sent = sends(&mut host, &mut now, Duration::from_secs(9));
    assert_eq!(sent, ["who has 2", "who has 3", "who has 4"]);
}

/// RFC 4862, 5.5.3 (e).
#[test]
fn an_address_lives_longer_if_a_router_says_so_and_shorter_only_by_rule() {
    let seconds = |n: u64| Duration::from_secs(n);
    for (first, after, second, end) in [
        // Longer than two hours counts, be that more than is left or less.
        (10_800, 1000, 20_000, 21_000),
        (30_000, 1000, 8000, 9000),
        // More than is left counts, however short.
        (100, 50, 200, 250),
        (7000, 6900, 7200, 14_100),
        // Else two hours or less that are left stay as they are.
        (7000, 10, 100, 7000),
        (7200, 0, 7199, 7200),
        // More than two hours become two.
        (30_000, 1000, 7200, 8200),
        (30_000, 1000, 0, 8200),
    ] {
        let (mut host, start) = host();
        let lives =
            |host: &Node| host.host.control.addresses().any(|(p, ..)| p.to_string().starts_with("fd07::"));
        advertise_with(&mut host, start, 2, &prefix_option(7, first));
        for step in 0..=after.min(10) {
            host.take(start + seconds(step), PORT);
        }
        host.take(start + seconds(after), PORT);
        advertise_with(&mut host, start + seconds(after), 2, &prefix_option(7, second));
        host.take(start + seconds(end - 1), PORT);
        assert!(lives(&host), "{first} {after} {second}");
        host.take(start + seconds(end + 1), PORT);
        assert!(!lives(&host), "{first} {after} {second}");
    }
}

/// Default routes of IPv6: the router's last number, and whether a router has told of it.
fn defaults(control: &Control, now: Timestamp) -> Vec<(u128, bool)> {
    let all = control.routes().filter(|route| route.prefix.length() == 0 && !route.prefix.address().is_v4());
    all.map(|route| {
        let told = matches!(control.origin(now, route), Origin::Router(_));
        (route.gateway.unwrap().wire() & 0xff, told)
    })
    .collect()
}

#[test]
fn routers_come_and_go_and_the_users_routes_stay() {
    let (mut host, now) = host();
    let interface = host.interface(1);
    let by = |last: u8| Route {
        prefix: "::/0".parse().unwrap(),
        gateway: Some(address(&format!("fe80::{last}"))),
        interface,
        metric: 1024,
        source: None,
    };
    // The metric is the one that advertised routes have; and a router advertises just what the user has given.
    for (users, shown) in [(9, vec![(9, false), (2, true)]), (2, vec![(2, false)])] {
        host.host.control.add_route(by(users)).unwrap();
        advertise(&mut host, now, 2, true);
        host.take(now, PORT);
        assert_eq!(defaults(&host.host.control, now), shown);
        let later = now + Duration::from_secs(1801);
        host.take(later, PORT);
        assert_eq!(defaults(&host.host.control, later), [(u128::from(users), false)], "the router is over");
        assert!(host.host.control.remove_route(|route| route.metric == 1024).is_some());
    }
}

/// As with Linux: what was taken out by hand is what the next advertisement enters again.
#[test]
fn a_route_that_was_taken_out_by_hand_comes_back_with_the_next_advertisement() {
    let (mut host, now) = host();
    let on_link: std::net::Ipv6Addr = "fd07::".parse().unwrap();
    let option = [&[3, 4, 64, 0x80, 0, 0, 9, 9, 0, 0, 9, 9, 0, 0, 0, 0][..], &on_link.octets()].concat();
    let told = |host: &Node| {
        let control = &host.host.control;
        let told = control.routes().filter(|r| matches!(control.origin(now, r), Origin::Router(Some(_))));
        let mut told: Vec<String> = told.map(|route| route.prefix.to_string()).collect();
        told.sort();
        told
    };
    advertise_with(&mut host, now, 2, &option);
    for _ in 0..2 {
        assert_eq!(told(&host), ["::/0", "fd07::/64"]);
        while host.host.control.remove_route(|route| route.metric > 0).is_some() {}
        host.take(now, PORT);
        assert_eq!(told(&host), [""; 0], "until then they are gone");
        advertise_with(&mut host, now, 2, &option);
    }
    // One that the user has given meanwhile stays the user's.
    while host.host.control.remove_route(|route| route.metric > 0).is_some() {}
    let interface = host.interface(1);
    let hand =
        Route { prefix: "fd07::/64".parse().unwrap(), gateway: None, interface, metric: 256, source: None };
    host.host.control.add_route(hand).unwrap();
    advertise_with(&mut host, now, 2, &option);
    assert_eq!((told(&host), host.host.control.origin(now, &hand)), (vec!["::/0".to_owned()], Origin::User));
}

#[test]
fn of_routers_that_are_heard_no_more_nothing_stays() {
    let (mut host, now) = host();
    let id = host.interface(1);
    let all = |host: &Node| {
        let control = &host.host.control;
        let addresses = control.addresses().map(|(prefix, ..)| prefix.to_string());
        let routes = control.routes().map(|route| format!("{} {}", route.prefix, route.metric));
        let mut all: Vec<String> = addresses.chain(routes).collect();
        all.sort();
        all
    };
    let before = all(&host);
    let prefix: std::net::Ipv6Addr = "fd07::".parse().unwrap();
    let option = [&[3, 4, 64, 0xc0, 0, 0, 9, 9, 0, 0, 9, 9, 0, 0, 0, 0][..], &prefix.octets()].concat();
    advertise_with(&mut host, now, 2, &option);
    assert_eq!(all(&host).len(), before.len() + 3, "an address, its prefix, a default route");
    assert!(host.host.control.stop_autoconfiguration(id));
    assert!(!host.host.control.stop_autoconfiguration(id), "they were not heard any more");
    assert_eq!(all(&host), before);
    advertise_with(&mut host, now, 2, &option);
    assert_eq!(all(&host), before, "nor are they now");
    // Nor is any asked for that has not answered yet.
    for stop in [false, true] {
        let (mut host, mut now) = self::host();
        assert!(!stop || host.host.control.stop_autoconfiguration(id));
        let asks = |bytes: &Vec<u8>| bytes.get(54) == Some(&icmpv6::ROUTER_SOLICITATION);
        let mut asked = 0;
        for _ in 0..20 {
            now = now + STEP;
            asked += host.take(now, PORT).into_iter().filter(asks).count();
        }
        assert_eq!(asked, if stop { 0 } else { 2 });
    }
}

/// Each may be a new snapshot for every stack.
#[test]
fn who_makes_up_advertisements_makes_few_snapshots() {
    let (mut host, mut now) = host();
    let advertise = |host: &mut Node, now, hops: u8| {
        let head = [icmpv6::ROUTER_ADVERTISEMENT, 0, 0, 0, hops, 0, 7, 8, 0, 0, 0, 0, 0, 0, 0, 0];
        host.put(now, PORT, &icmp(Mac([0x33, 0x33, 0, 0, 0, 1]), "fe80::2", "ff02::1", 255, &head));
    };
    let before = host.generation();
    for n in 0..1000u16 {
        advertise(&mut host, now, 64 + n.to_le_bytes()[0] % 2);
    }
    let made = host.generation() - before;
    assert!((2..=33).contains(&made), "{made}");
    now = now + Duration::from_secs(1);
    host.take(now, PORT);
    let before = host.generation();
    advertise(&mut host, now, 7);
    assert_eq!(host.generation() - before, 1, "a second later one counts again");
}

/// The option that has a host make itself an address of `fdXX::/64` that is valid for so many seconds.
fn prefix_option(number: u8, valid: u32) -> Vec<u8> {
    let life = valid.to_be_bytes();
    let head = [&[3, 4, 64, 0xc0][..], &life, &life, &[0; 4], &[0xfd, number]].concat();
    [&head[..], &[0; 14]].concat()
}

#[test]
fn what_is_made_up_on_one_link_keeps_nothing_from_another() {
    let mut host = Node::new(1).with_interface(0, 1, None, 1500, "10.0.0.1/24").with_interface(
        1,
        2,
        None,
        1500,
        "10.1.0.1/24",
    );
    let ids = [1, 2].map(|number| host.interface(number));
    for id in ids {
        host.host.control.autoconfigure(Timestamp::ZERO, id).unwrap();
    }
    let mut now = Timestamp::ZERO;
    for _ in 0..10 {
        now = now + STEP;
        for port in [PORT, PortId(1)] {
            host.take(now, port);
        }
    }
    let made = |host: &Node| {
        let control = &host.host.control;
        ids.map(|id| {
            let addresses = control.addresses().filter(|(prefix, of, _)| {
                *of == id && !prefix.address().is_v4() && !prefix.address().is_link_local()
            });
            let on_link = control.routes().filter(|route| route.interface == id && route.metric == 256);
            (addresses.count(), on_link.count())
        })
    };
    for number in 0..100 {
        advertise_with(&mut host, now, number, &prefix_option(number, 200));
    }
    assert_eq!(made(&host), [(16, 16), (0, 0)]);
    let head = [icmpv6::ROUTER_ADVERTISEMENT, 0, 0, 0, 64, 0, 7, 8, 0, 0, 0, 0, 0, 0, 0, 0];
    let bytes = [&head[..], &prefix_option(200, 200)].concat();
    host.put(now, PortId(1), &icmp(Mac([0x33, 0x33, 0, 0, 0, 1]), "fe80::9", "ff02::1", 255, &bytes));
    assert_eq!(made(&host), [(16, 16), (1, 1)]);
    assert!(host.host.control.stop_autoconfiguration(ids[0]));
    host.take(now, PORT);
    assert_eq!(defaults(&host.host.control, now), [(9, true)], "the other's router has its turn");
}

#[test]
fn who_makes_up_ever_new_prefixes_keeps_no_program_from_its_beginning() {
    let (mut host, mut now) = host();
    let seconds = |n: u64| Timestamp::from_nanos(n * 1_000_000_000);
    let mut number = 0;
    while now < seconds(20) {
        advertise_with(&mut host, now, 2, &prefix_option(number, 3));
        number += 1;
        let tentative =
            |host: &Node| host.host.control.addresses().any(|(.., state)| state == AddressState::Tentative);
        assert!(tentative(&host), "{now:?}");
        assert_eq!(host.host.control.is_settling(), now < seconds(16), "{now:?}");
        now = now + STEP;
        host.take(now, PORT);
    }
    // What is given by hand is waited for again.
    let id = host.interface(1);
    host.host.control.add_address(now, id, "fd00::2/64".parse().unwrap()).unwrap();
    assert!(host.host.control.is_settling());
}

/// RFC 4862, 5.4: where answers take long, so does another station's.
#[test]
fn a_new_address_is_looked_for_as_long_as_the_router_says_that_answers_take() {
    let (mut host, mut now) = host();
    // Retransmissions are five seconds apart.
    let head = [icmpv6::ROUTER_ADVERTISEMENT, 0, 0, 0, 64, 0, 7, 8, 0, 0, 0, 0, 0, 0, 0x13, 0x88];
    let bytes = [&head[..], &prefix_option(7, 200)].concat();
    host.put(now, PORT, &icmp(Mac([0x33, 0x33, 0, 0, 0, 1]), "fe80::2", "ff02::1", 255, &bytes));
    let made: std::net::Ipv6Addr = "fd07::ff:fe00:1".parse().unwrap();
    let state = |host: &Node| {
        let of = |(prefix, _, state): (Prefix, _, _)| (prefix.address() == made.into()).then_some(state);
        host.host.control.addresses().find_map(of)
    };
    for _ in 0..8 {
        now = now + STEP;
        host.take(now, PORT);
        assert_eq!(state(&host), Some(AddressState::Tentative), "{now:?}");
    }
    let head = [icmpv6::NEIGHBOUR_ADVERTISEMENT, 0, 0, 0, 0x20, 0, 0, 0];
    let theirs = [&head[..], &made.octets(), &[2, 1, 2, 0, 0, 0, 0, 9]].concat();
    host.put(now, PORT, &icmp(Mac([0x33, 0x33, 0, 0, 0, 1]), "fe80::9", "ff02::1", 255, &theirs));
    assert_eq!(state(&host), Some(AddressState::Duplicate));
}
