//! Packets that wait for a neighbour's address.

use std::time::Duration;

use crate::wire::{Node, PORT, Pair, address};
use bywash_stack::{Event, Request, Timestamp, UdpId};
use bywash_wire::Mac;

/// Two hosts with so many frames that have not spoken with each other.
fn pair(frames: usize) -> Pair {
    let node = |number: u8| {
        let own = format!("10.0.0.{number}/16");
        Node::with_frames(number, frames).with_interface(0, number, None, 1500, &own)
    };
    let mut pair =
        Pair { now: Timestamp::from_nanos(1_000_000_000), a: node(1), b: node(2), trace: [].into() };
    pair.settle();
    pair.trace.clear();
    pair
}

/// Sends datagrams with these numbers.
fn send(pair: &mut Pair, client: UdpId, to: &str, numbers: std::ops::Range<u16>) {
    for number in numbers {
        let (to, bytes) = (Some((address(to), 9)), number.to_be_bytes());
        pair.a.host.stack.udp_send(pair.now, client, to, &bytes, &mut pair.a.pool).unwrap();
    }
}

/// The numbers of the datagrams that have gone over the link.
fn arrived(pair: &Pair) -> Vec<u16> {
    let datagrams = pair.trace.iter().filter(|(a, p)| *a && p[12..14] == [8, 0] && p[23] == 17);
    datagrams.map(|(_, p)| u16::from_be_bytes([p[42], p[43]])).collect()
}

#[test]
fn a_thousand_connections_to_a_peer_that_nobody_knows_are_opened_at_once() {
    let mut pair = pair(12_000);
    pair.b.host.stack.listen(None, 80, 2000).unwrap();
    for _ in 0..1000 {
        let to = (address("10.0.0.2"), 80);
        pair.a.host.stack.connect(pair.now, (None, 0), to, &mut pair.a.pool).unwrap();
    }
    pair.settle();
    let connected = pair.a.host.stack.events().filter(|event| matches!(event, Event::Connected(_))).count();
    let counted = pair.a.host.stack.counters();
    assert_eq!((connected, counted.tcp_retransmitted, counted.no_memory), (1000, 0, 0));
}

#[test]
fn the_oldest_make_room_for_the_latest_and_hold_an_eighth_of_the_frames() {
    let mut pair = pair(2400);
    let client = pair.a.host.stack.udp_bind(None, 0).unwrap();
    send(&mut pair, client, "10.0.0.2", 0..1000);
    let held = 2392 - pair.a.pool.free();
    assert!((290..=310).contains(&held), "{held}");
    pair.settle();
    let arrived = arrived(&pair);
    assert_eq!(arrived, (1000 - u16::try_from(arrived.len()).unwrap()..1000).collect::<Vec<_>>());
    assert_eq!(arrived.len(), held);
    pair.a.assert_nothing_leaked();
}

#[test]
fn who_does_not_answer_leaves_room_for_others() {
    let mut pair = pair(12_000);
    let client = pair.a.host.stack.udp_bind(None, 0).unwrap();
    // Each has half of what is left.
    for absent in ["10.0.0.7", "10.0.0.8", "10.0.0.9"] {
        send(&mut pair, client, absent, 0..5000);
    }
    send(&mut pair, client, "10.0.0.2", 0..100);
    pair.settle();
    assert_eq!(arrived(&pair), (0..100).collect::<Vec<_>>());
    (0..12).for_each(|_| pair.pass(Duration::from_millis(500)));
    pair.a.assert_nothing_leaked();
}

/// One packet for each of more neighbours than there are frames: those that are there get theirs all the same.
#[test]
fn many_that_do_not_answer_take_a_quarter_of_the_frames() {
    let mut pair = pair(600);
    let client = pair.a.host.stack.udp_bind(None, 0).unwrap();
    for n in 0..1000u32 {
        let absent = std::net::Ipv4Addr::from_bits(0x0a00_1000 + n).to_string();
        send(&mut pair, client, &absent, 0..1);
        pair.a.take(pair.now, PORT);
    }
    let held = 592 - pair.a.pool.free();
    assert!((140..=160).contains(&held), "{held}");
    pair.b.host.stack.connect(pair.now, (None, 0), (address("10.0.0.1"), 80), &mut pair.b.pool).unwrap();
    pair.a.host.stack.listen(None, 80, 10).unwrap();
    pair.settle();
    let accepted = pair.a.host.stack.events().filter(|event| matches!(event, Event::Accepted { .. })).count();
    assert_eq!(accepted, 1);
    (0..24).for_each(|_| pair.pass(Duration::from_millis(500)));
    pair.a.host.stack.abort_some(pair.now, 0, 10, &mut pair.a.pool);
    pair.settle();
    pair.a.assert_nothing_leaked();
}

#[test]
fn neighbours_that_nobody_has_asked_for_do_not_keep_their_packets() {
    let mut pair = pair(12_000);
    let client = pair.a.host.stack.udp_bind(None, 0).unwrap();
    // More than are asked for at once.
    for n in 0..3000u32 {
        let absent = std::net::Ipv4Addr::from_bits(0x0a00_0100 + n).to_string();
        send(&mut pair, client, &absent, 0..1);
    }
    (0..24).for_each(|_| pair.pass(Duration::from_millis(500)));
    pair.a.assert_nothing_leaked();
    send(&mut pair, client, "10.0.0.2", 0..100);
    pair.settle();
    assert_eq!(arrived(&pair), (0..100).collect::<Vec<_>>());
}

#[test]
fn a_neighbour_whose_request_was_lost_is_asked_for_again() {
    let mut pair = pair(600);
    let client = pair.a.host.stack.udp_bind(None, 0).unwrap();
    let lost = |pair: &mut Pair| {
        send(pair, client, "10.0.0.2", 0..3);
        pair.a.host.stack.requests().filter(|request| matches!(request, Request::Resolve { .. })).count()
    };
    assert_eq!(lost(&mut pair), 1, "once for all of them");
    for _ in 0..3 {
        pair.now = pair.now + Duration::from_millis(600);
        pair.a.host.stack.advance(pair.now, &mut pair.a.pool);
    }
    assert_eq!(lost(&mut pair), 1);
    (0..3).for_each(|_| pair.pass(Duration::from_millis(600)));
    send(&mut pair, client, "10.0.0.2", 3..4);
    pair.settle();
    assert_eq!(arrived(&pair).last(), Some(&3));
    pair.a.assert_nothing_leaked();
}

#[test]
fn who_does_not_answer_costs_stacks_two_snapshots_and_is_asked_for_again_later() {
    let mut pair = pair(600);
    let client = pair.a.host.stack.udp_bind(None, 0).unwrap();
    for _ in 0..2 {
        let mut pictures = Vec::new();
        pair.trace.clear();
        send(&mut pair, client, "10.0.0.9", 0..1);
        for _ in 0..14 {
            pair.settle();
            pictures.push(pair.a.host.control.snapshot(&mut pair.a.pool).clone());
            pair.pass(Duration::from_millis(500));
        }
        let questions = pair.trace.iter().filter(|(a, p)| *a && p[12..14] == [8, 6] && p[41] == 9).count();
        pictures.dedup_by(|one, other| std::sync::Arc::ptr_eq(one, other));
        assert_eq!(
            (questions, pictures.len()),
            (3, 3),
            "before, that it is absent, and that nobody knows any more"
        );
    }
}

/// RFC 6583: whoever scans a link, a question each millisecond, does not make every stack take a picture each millisecond.
#[test]
fn a_slow_scan_of_a_link_makes_few_snapshots() {
    let mut pair = pair(600);
    let client = pair.a.host.stack.udp_bind(None, 0).unwrap();
    let mut pictures = Vec::new();
    for n in 0..5000u32 {
        let absent = std::net::Ipv4Addr::from_bits(0x0a00_1000 + n).to_string();
        send(&mut pair, client, &absent, 0..1);
        pair.now = pair.now + Duration::from_nanos(1_000_007);
        pair.a.take(pair.now, PORT);
        pictures.push(pair.a.host.control.snapshot(&mut pair.a.pool).clone());
    }
    let failed = pair.a.host.control.counters().neighbours_failed;
    pictures.dedup_by(|one, other| std::sync::Arc::ptr_eq(one, other));
    assert!(failed > 1500 && pictures.len() < 40, "{failed} have not answered: {} snapshots", pictures.len());
    (0..12).for_each(|_| pair.pass(Duration::from_millis(500)));
    pair.a.assert_nothing_leaked();
}

#[test]
fn packets_that_have_waited_leave_in_an_order_that_does_not_change() {
    let order = || {
        let mut pair = pair(600);
        let client = pair.a.host.stack.udp_bind(None, 0).unwrap();
        let to = |n: u8| format!("10.0.1.{n}");
        (1..40).for_each(|n| send(&mut pair, client, &to(n), n.into()..u16::from(n) + 1));
        let link = pair.a.interface(1);
        for n in 1..40 {
            pair.a.host.control.add_neighbour(link, address(&to(n)), Mac([2, 0, 0, 0, 1, n])).unwrap();
        }
        let sent = pair.a.take(pair.now, PORT);
        sent.iter().map(|p| u16::from_be_bytes([p[42], p[43]])).collect::<Vec<_>>()
    };
    assert_eq!(order(), (1..40).collect::<Vec<_>>());
}
