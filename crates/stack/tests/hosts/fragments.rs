//! What is said of datagrams that came in pieces, for both families.

use std::time::Duration;

use crate::wire::{Node, PORT, address};
use crate::{ip6, pieces};
use bywash_stack::{Stack, Timestamp};
use bywash_wire::checksum::Sum;
use bywash_wire::zerocopy::IntoBytes;
use bywash_wire::{
    EtherType, EthernetHeader, FragmentHeader, IcmpHeader, Ipv4Header, Mac, Protocol, icmpv4, icmpv6,
};

const A: &str = "fd00::1";
const B: &str = "fd00::2";
const OURS: Mac = Mac([2, 0, 0, 0, 0, 1]);

/// A host with addresses of both families that knows one neighbour in each, and no port open.
pub(crate) fn host() -> (Node, Timestamp) {
    let mut host = Node::new(1).with_interface(0, 1, None, 1500, "10.0.0.1/24");
    let id = host.interface(1);
    host.host.control.add_address(Timestamp::ZERO, id, format!("{A}/64").parse().unwrap()).unwrap();
    for neighbour in ["10.0.0.2", B] {
        host.host.control.add_neighbour(id, address(neighbour), Mac([2, 0, 0, 0, 0, 2])).unwrap();
    }
    let mut now = Timestamp::ZERO;
    for _ in 0..10 {
        now = now + Duration::from_secs(1);
        host.take(now, PORT);
    }
    (host, now)
}

/// One of three pieces of a datagram to a port that is closed, in a frame to `to`.
fn piece(v6: bool, number: u8, to: Mac) -> Vec<u8> {
    let offset = u16::from(number) * 8;
    let mut bytes = if v6 {
        let header = FragmentHeader::new(Protocol::UDP.0, offset, number < 2, 7);
        let part = &ip6::udp(B, A, 9, &[7; 16])[usize::from(offset)..][..8];
        ip6::frame(to, B, A, Protocol::FRAGMENT, 64, &[header.as_bytes(), part].concat())
    } else {
        pieces::fragment([10, 0, 0, 2], 7, offset, number < 2, 8)
    };
    bytes[..6].copy_from_slice(&to.0);
    bytes
}

/// Kind and code of the errors that a host sends.
fn errors(host: &mut Node, now: Timestamp, v6: bool) -> Vec<[u8; 2]> {
    let (kind, protocol, at) = if v6 { ([0x86, 0xdd], 20, 54) } else { ([8, 0], 23, 34) };
    let sent = host.take(now, PORT);
    let icmp = sent.iter().filter(|p| p[12..14] == kind && matches!(p[protocol], 1 | 58));
    icmp.map(|p| [p[at], p[at + 1]]).collect()
}

/// RFC 1122, 3.2.2; RFC 4443, 2.4 (e.4) and (e.5).
#[test]
fn no_error_is_sent_about_a_datagram_of_which_a_piece_came_to_many() {
    let (mut host, mut now) = host();
    let group = Mac([0x33, 0x33, 0, 0, 0, 1]);
    for v6 in [false, true] {
        let late = if v6 { [icmpv6::TIME_EXCEEDED, 1] } else { [icmpv4::TIME_EXCEEDED, icmpv4::REASSEMBLY] };
        let closed = if v6 { [icmpv6::UNREACHABLE, 4] } else { [icmpv4::UNREACHABLE, icmpv4::PORT] };
        for (to, told) in [
            ([OURS, OURS, OURS], true),
            ([Mac::BROADCAST, OURS, OURS], false),
            ([group, OURS, OURS], false),
            ([OURS, Mac::BROADCAST, OURS], false),
        ] {
            // In IPv4 such a piece is none at all (RFC 1122, 3.3.6): the others lack it.
            let begun = told || !v6 && to[0] == OURS;
            let expected = |told, error| if told { vec![error] } else { vec![] };
            for (number, to) in (0..).zip(to) {
                host.put(now, PORT, &piece(v6, number, to));
            }
            assert_eq!(errors(&mut host, now, v6), expected(told, closed), "whole, IPv6 {v6}, {to:?}");
            for (number, to) in (0..).zip(&to[..2]) {
                host.put(now, PORT, &piece(v6, number, *to));
            }
            now = now + Duration::from_secs(61);
            assert_eq!(errors(&mut host, now, v6), expected(begun, late), "late, IPv6 {v6}, {to:?}");
        }
    }
    host.assert_nothing_leaked();
}

/// The number of a packet on the wire that is a first piece: its protocol and number.
fn number(bytes: &[u8]) -> Option<(u8, u32)> {
    let word = |at: usize| u32::from_be_bytes(*bytes[at..].first_chunk().unwrap());
    match (bytes[12..14] == [8, 0], word(18) & 0x3fff, bytes[20]) {
        (true, 0x2000, _) => Some((bytes[23], word(16) & 0xffff)),
        (false, _, 44) if bytes[56..58] == [0, 1] => Some((44, word(58))),
        _ => None,
    }
}

/// A request for an echo of 2000 bytes that was not cut on its way, from 10.0.0.2 or from b.
fn long_echo(v6: bool) -> Vec<u8> {
    let message =
        [&[if v6 { icmpv6::ECHO_REQUEST } else { icmpv4::ECHO_REQUEST }, 0, 0, 0][..], &[7; 2000]].concat();
    if v6 {
        return ip6::icmp(OURS, B, A, 64, &message);
    }
    let mut icmp = IcmpHeader { kind: icmpv4::ECHO_REQUEST, code: 0, checksum: 0.into(), rest: 0.into() };
    icmp.checksum = Sum::new().bytes(icmp.as_bytes()).bytes(&message[8..]).checksum().into();
    let ip = Ipv4Header::new([10, 0, 0, 2].into(), [10, 0, 0, 1].into(), Protocol::ICMP.0, 2004);
    let link =
        EthernetHeader { destination: OURS, source: Mac([2, 0, 0, 0, 0, 2]), kind: EtherType::IPV4.0.into() };
    [link.as_bytes(), ip.as_bytes(), icmp.as_bytes(), &message[8..]].concat()
}

/// RFC 6864, 4.1; RFC 8200, 4.5.
#[test]
fn no_two_of_a_hosts_pieces_that_differ_have_one_number() {
    const STACKS: usize = 3;
    let (mut host, now) = host();
    let (mut seen, mut first) = (Vec::new(), Vec::new());
    let snapshot = host.host.control.snapshot(&mut host.pool).clone();
    for stack in 0..STACKS {
        let mut own = Stack::new(snapshot.clone(), [u8::try_from(stack).unwrap(); 16]);
        own.set_stacks(stack, STACKS);
        let client = own.udp_bind(None, 0).unwrap();
        for to in ["10.0.0.2", B].repeat(500) {
            let to = Some((address(to), 9));
            own.udp_send(now, client, to, &[7; 2000], &mut host.pool).unwrap();
            own.transmit(PORT, &mut host.batch);
            seen.extend(host.batch.iter().filter_map(|packet| number(packet.head())));
            host.pool.give_batch(&mut host.batch);
        }
        first.extend_from_slice(&seen[1000 * stack..][..2]);
    }
    // The control answers echoes for all of them.
    for v6 in [true, false].repeat(25) {
        host.put(now, PORT, &long_echo(v6));
        seen.extend(host.take(now, PORT).iter().filter_map(|bytes| number(bytes)));
    }
    assert_eq!(seen.len(), STACKS * 1000 + 50);
    first.extend_from_slice(&seen[STACKS * 1000..][..2]);
    seen.sort_unstable();
    assert!(seen.windows(2).all(|two| two[0] != two[1]));
    assert!(first.iter().all(|(_, number)| *number > 100), "nobody begins where all do: {first:?}");
    host.assert_nothing_leaked();
}

#[test]
fn errors_about_pieces_that_came_late_have_an_order_that_does_not_change() {
    let (mut host, now) = host();
    for id in 0..16 {
        host.put(now, PORT, &pieces::fragment([10, 0, 0, 2], id * 7 % 16, 0, true, 16));
    }
    let late = host.take(now + Duration::from_secs(31), PORT);
    // What an error quotes begins behind its own headers.
    let order = late.iter().filter(|p| p[23] == 1).map(|p| u16::from_be_bytes([p[46], p[47]]));
    assert_eq!(order.collect::<Vec<_>>(), (0..16).collect::<Vec<_>>());
}

/// What a host sends to its own link-local address does not leave the stack where both ends are.
#[test]
fn long_datagrams_to_ourselves_stay_on_their_stack() {
    let (mut host, now) = host();
    host.host.stack.set_stacks(0, 2);
    let link = host.interface(1);
    let server = host.host.stack.udp_bind(None, 9).unwrap();
    let client = host.host.stack.udp_bind(None, 0).unwrap();
    for to in [address(A), address("fe80::ff:fe00:1").with_zone(link)] {
        host.host.stack.udp_send(now, client, Some((to, 9)), &[1; 40_000], &mut host.pool).unwrap();
        host.take(now, PORT);
        assert_eq!(host.host.stack.reassembled().count(), 0, "{to}");
        let datagram = host.host.stack.udp_receive(server).unwrap().expect("it arrives");
        assert_eq!(datagram.len(), 40_000);
        datagram.release(&mut host.pool);
    }
}

/// RFC 1122, 3.3.2; RFC 8200, 4.5: also where the first to come after the time is a piece of something new.
#[test]
fn what_came_too_late_is_told_of_though_something_new_begins() {
    let (mut host, mut now) = host();
    for v6 in [false, true] {
        let late = if v6 { [icmpv6::TIME_EXCEEDED, 1] } else { [icmpv4::TIME_EXCEEDED, icmpv4::REASSEMBLY] };
        host.put(now, PORT, &piece(v6, 0, OURS));
        now = now + Duration::from_secs(61);
        host.put(now, PORT, &pieces::fragment([10, 0, 0, 2], 8, 8, true, 8));
        assert_eq!(errors(&mut host, now, v6), [late], "IPv6 {v6}");
    }
}

/// RFC 6864, 4.1: an error is longer than the smallest link takes.
#[test]
fn errors_that_are_cut_have_numbers_of_their_own() {
    let mut host = Node::new(1).with_interface(0, 1, None, 296, "10.0.0.1/24");
    let id = host.interface(1);
    host.host.control.add_neighbour(id, address("10.0.0.2"), Mac([2, 0, 0, 0, 0, 2])).unwrap();
    let now = Timestamp::from_nanos(5_000_000_000);
    host.take(now, PORT);
    let ip = Ipv4Header::new([10, 0, 0, 2].into(), [10, 0, 0, 1].into(), Protocol::UDP.0, 600);
    let link =
        EthernetHeader { destination: OURS, source: Mac([2, 0, 0, 0, 0, 2]), kind: EtherType::IPV4.0.into() };
    let udp = [&[0, 7, 0, 9, 2, 88, 0, 0][..], &[7; 592]].concat();
    let closed = [link.as_bytes(), ip.as_bytes(), &udp].concat();
    let mut seen = Vec::new();
    for _ in 0..3 {
        host.put(now, PORT, &closed);
        let sent = host.take(now, PORT);
        assert_eq!(sent.len(), 3, "576 bytes");
        let first: Vec<_> = sent.iter().filter_map(|bytes| number(bytes)).collect();
        assert!(sent.iter().all(|piece| piece[18..20] == sent[0][18..20]), "one number for all of one");
        seen.extend(first);
    }
    let [a, b, c] = seen[..] else { panic!("{seen:?}") };
    assert!(a != b && b != c && a != c, "{seen:?}");
}
