//! What is said of datagrams that came in pieces, for both families.

use std::time::Duration;

use crate::wire::{Node, PORT, address};
use crate::{ip, ip6};
use bywash_stack::Timestamp;
use bywash_wire::zerocopy::IntoBytes;
use bywash_wire::{FragmentHeader, Mac, Protocol, icmpv4, icmpv6};

const A: &str = "fd00::1";
const B: &str = "fd00::2";
const OURS: Mac = Mac([2, 0, 0, 0, 0, 1]);

/// A host with addresses of both families, and no port open.
fn host() -> (Node, Timestamp) {
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
        ip::fragment([10, 0, 0, 2], 7, offset, number < 2, 8)
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
            let expected = |error| if told { vec![error] } else { vec![] };
            for (number, to) in (0..).zip(to) {
                host.put(now, PORT, &piece(v6, number, to));
            }
            assert_eq!(errors(&mut host, now, v6), expected(closed), "whole, IPv6 {v6}, {to:?}");
            for (number, to) in (0..).zip(&to[..2]) {
                host.put(now, PORT, &piece(v6, number, *to));
            }
            now = now + Duration::from_secs(61);
            assert_eq!(errors(&mut host, now, v6), expected(late), "late, IPv6 {v6}, {to:?}");
        }
    }
    host.assert_nothing_leaked();
}
