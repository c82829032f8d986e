//! IPv6, ICMPv6 and neighbour discovery, as they show on the wire.

use std::num::NonZeroU8;
use std::time::Duration;

use crate::wire::{Node, PORT, Pair, address};
use bywash_stack::{
    AddressState, Event, InterfaceId, Limits, NeighbourState, PortId, Timestamp, UdpError, UdpId, Unreachable,
};
use bywash_wire::checksum::Sum;
use bywash_wire::zerocopy::IntoBytes;
use bywash_wire::{FragmentHeader, Ipv6Header, Mac, Protocol, icmpv6};

const A: &str = "fd00::1";
const B: &str = "fd00::2";
/// The link-local addresses of the Ethernet addresses 02:00:00:00:00:01 and :02.
const A_LOCAL: &str = "fe80::ff:fe00:1";
const B_LOCAL: &str = "fe80::ff:fe00:2";
const MAC_A: Mac = Mac([2, 0, 0, 0, 0, 1]);
const MAC_B: Mac = Mac([2, 0, 0, 0, 0, 2]);

/// Two hosts with IPv6 addresses that have been found to be theirs alone.
fn pair(mtu: u16) -> Pair {
    let mut pair = Pair::new(mtu);
    for (node, own) in [(&mut pair.a, A), (&mut pair.b, B)] {
        let id = node.interface(1);
        let prefix = format!("{own}/64").parse().unwrap();
        node.host.control.add_address(pair.now, id, prefix).unwrap();
    }
    (0..4).for_each(|_| pair.pass(Duration::from_millis(600)));
    pair.trace.clear();
    pair
}

/// An Ethernet frame from b to a with an IPv6 packet.
pub(crate) fn frame(
    to: Mac,
    source: &str,
    destination: &str,
    first: Protocol,
    hop_limit: u8,
    rest: &[u8],
) -> Vec<u8> {
    let (source, destination) = (source.parse().unwrap(), destination.parse().unwrap());
    let mut ip = Ipv6Header::new(source, destination, first.0, u16::try_from(rest.len()).unwrap());
    ip.hop_limit = hop_limit;
    [&to.0[..], &MAC_B.0, &[0x86, 0xdd], ip.as_bytes(), rest].concat()
}

fn sealed(protocol: Protocol, at: usize, source: &str, destination: &str, mut bytes: Vec<u8>) -> Vec<u8> {
    let raw = |text: &str| text.parse::<std::net::Ipv6Addr>().unwrap().octets();
    let length = u32::try_from(bytes.len()).unwrap();
    let sum = Sum::pseudo(&raw(source), &raw(destination), protocol.0, length).bytes(&bytes);
    bytes[at..at + 2].copy_from_slice(&sum.checksum().to_be_bytes());
    bytes
}

/// An ICMPv6 message from b.
pub(crate) fn icmp(to: Mac, source: &str, destination: &str, hop_limit: u8, bytes: &[u8]) -> Vec<u8> {
    let bytes = sealed(Protocol::ICMPV6, 2, source, destination, bytes.to_vec());
    frame(to, source, destination, Protocol::ICMPV6, hop_limit, &bytes)
}

pub(crate) fn udp(source: &str, destination: &str, port: u16, payload: &[u8]) -> Vec<u8> {
    let length = u16::try_from(8 + payload.len()).unwrap();
    let bytes = [&5000u16.to_be_bytes()[..], &port.to_be_bytes(), &length.to_be_bytes(), &[0, 0], payload];
    sealed(Protocol::UDP, 6, source, destination, bytes.concat())
}

/// What a packet on the wire is, in a few words; its checksums are right.
fn words(bytes: &[u8]) -> String {
    assert_eq!(bytes[12..14], [0x86, 0xdd], "IPv6");
    let ip = Ipv6Header::parse(&bytes[14..], bytes.len() - 14).unwrap();
    let mut rest = &bytes[54..];
    let mut next = ip.next_header;
    let mut what = String::new();
    if next == 0 {
        what += "alert ";
        (next, rest) = (rest[0], &rest[8..]);
    }
    let (source, destination) = (ip.source(), ip.destination());
    let what = what
        + &match Protocol(next) {
            Protocol::ICMPV6 => {
                let length = u32::try_from(rest.len()).unwrap();
                let sum = Sum::pseudo(&source.octets(), &destination.octets(), next, length);
                assert_eq!(sum.bytes(rest).checksum(), 0, "our checksum is right");
                let word = u32::from_be_bytes(*rest[4..].first_chunk().unwrap());
                match rest[0] {
                    icmpv6::NEIGHBOUR_SOLICITATION | icmpv6::NEIGHBOUR_ADVERTISEMENT => {
                        let target = std::net::Ipv6Addr::from(*rest[8..].first_chunk::<16>().unwrap());
                        let name =
                            if rest[0] == icmpv6::NEIGHBOUR_SOLICITATION { "who has" } else { "here is" };
                        let flags = ["O", "SO"][usize::from(word >> 30 & 1 == 1)];
                        let flags = if rest[0] == icmpv6::NEIGHBOUR_ADVERTISEMENT { flags } else { "" };
                        let option =
                            if rest.len() > 24 { format!(" option {}", rest[24]) } else { String::new() };
                        format!("{name} {target} {flags}{option}")
                    }
                    icmpv6::LISTENER_REPORT => format!("report {} of {}", rest[8], word & 0xffff),
                    kind => format!("icmp {kind} {} {word}", rest[1]),
                }
            }
            Protocol::UDP => format!("udp {}", rest.len()),
            Protocol::FRAGMENT => {
                let field = u16::from_be_bytes([rest[2], rest[3]]);
                format!("piece {}{}", field & !7, if field & 1 != 0 { "+" } else { "" })
            }
            protocol => protocol.to_string(),
        };
    format!("{source} > {destination} hop {}: {what}", ip.hop_limit)
        .replace(" : ", ": ")
        .trim_end()
        .to_owned()
}

fn from_a(pair: &Pair) -> Vec<String> {
    let ours = pair.trace.iter().filter(|(a, p)| *a && p[12..14] == [0x86, 0xdd]);
    ours.map(|(_, p)| words(p)).collect()
}

/// What a node sends after a frame has come in.
fn answers(node: &mut Node, now: Timestamp, bytes: &[u8]) -> Vec<String> {
    node.put(now, PORT, bytes);
    node.take(now, PORT).iter().map(|p| words(p)).collect()
}

fn read(node: &mut Node, id: UdpId) -> Option<Vec<u8>> {
    let datagram = node.host.stack.udp_receive(id).expect("no error")?;
    let bytes = datagram.slices().collect::<Vec<_>>().concat();
    datagram.release(&mut node.pool);
    Some(bytes)
}

fn zoned(text: &str, id: InterfaceId) -> bywash_stack::Address {
    address(text).with_zone(id)
}

#[test]
fn an_address_is_looked_for_before_it_is_used() {
    let mut node = Node::new(1).with_interface(0, 1, None, 1500, "10.0.0.1/24");
    let now = Timestamp::from_nanos(5_000_000_000);
    node.take(now, PORT);
    node.host.control.add_address(now, node.interface(1), "fd00::1/64".parse().unwrap()).unwrap();
    let began = now;
    assert!(node.take(now, PORT).is_empty(), "hosts that were switched on together do not ask together");
    let now = node.host.next_deadline().unwrap();
    assert!(now.since(began) < Duration::from_secs(1));
    let sent: Vec<String> = node.take(now, PORT).iter().map(|p| words(p)).collect();
    assert_eq!(
        sent,
        [
            ":: > ff02::16 hop 1: alert report 4 of 1",
            ":: > ff02::1:ff00:1 hop 255: who has fe80::ff:fe00:1  option 14",
            ":: > ff02::1:ff00:1 hop 255: who has fd00::1  option 14",
        ],
        "who watches the groups hears first of the one that both have"
    );
    let states = |node: &Node| node.host.control.addresses().map(|(_, _, s)| s).collect::<Vec<_>>();
    use AddressState::{Duplicate, Preferred, Tentative};
    assert_eq!(states(&node), [Preferred, Tentative, Tentative]);
    // Nobody is answered for it yet, and it speaks to nobody.
    let ask = [&[135, 0, 0, 0, 0, 0, 0, 0][..], &"fd00::1".parse::<std::net::Ipv6Addr>().unwrap().octets()]
        .concat();
    let group = Mac([0x33, 0x33, 0xff, 0, 0, 1]);
    assert_eq!(answers(&mut node, now, &icmp(group, "fd00::2", "ff02::1:ff00:1", 255, &ask)), [""; 0]);
    // Another one looks for it, too: neither gets it.
    assert_eq!(answers(&mut node, now, &icmp(group, "::", "ff02::1:ff00:1", 255, &ask)), [""; 0]);
    assert_eq!(states(&node), [Preferred, Tentative, Duplicate]);
    let later = now + Duration::from_millis(1001);
    let sent: Vec<String> = node.take(later, PORT).iter().map(|p| words(p)).collect();
    assert_eq!(sent, ["fe80::ff:fe00:1 > ff02::16 hop 1: alert report 4 of 1"], "told twice");
    assert_eq!(states(&node), [Preferred, Preferred, Duplicate]);
    assert_eq!(node.host.control.conflicts(), 1);
    node.assert_nothing_leaked();
}

#[test]
fn what_finds_no_frame_is_not_taken_for_sent() {
    let mut node = Node::new(1).with_interface(0, 1, None, 1500, "10.0.0.1/24");
    let mut now = Timestamp::from_nanos(5_000_000_000);
    node.take(now, PORT);
    node.host.control.autoconfigure(now, node.interface(1)).unwrap();
    // Each time that something is due there is no frame at first, and then there is.
    let mut sent = Vec::new();
    while let Some(due) = node.host.next_deadline() {
        now = due;
        let frames: Vec<_> = std::iter::from_fn(|| node.pool.take()).collect();
        assert!(node.take(now, PORT).is_empty(), "there is nothing to send it in");
        frames.into_iter().for_each(|frame| node.pool.give(frame));
        now = node.host.next_deadline().unwrap_or(now);
        sent.push(node.take(now, PORT).iter().map(|p| words(p)).collect::<Vec<_>>());
    }
    sent.retain(|lines| !lines.is_empty());
    let (report, nobodys) = ("> ff02::16 hop 1: alert report 4 of 1", ":: > ff02::1:ff00:1 hop 255: who has");
    let asks = format!("{A_LOCAL} > ff02::2 hop 255: icmp 133 0 0");
    let first = sent.remove(0);
    assert_eq!(first, [format!(":: {report}"), format!("{nobodys} {A_LOCAL}  option 14")]);
    let rest: Vec<String> = sent.concat();
    assert_eq!(rest.iter().filter(|line| line.ends_with(report)).count(), 1, "told twice: {rest:?}");
    assert_eq!(rest.iter().filter(|line| **line == asks).count(), 3, "asked three times: {rest:?}");
    node.assert_nothing_leaked();
}

#[test]
fn a_datagram_waits_for_its_neighbour_and_arrives() {
    let mut pair = pair(1500);
    let server = pair.b.host.stack.udp_bind(None, 53).unwrap();
    let client = pair.a.host.stack.udp_bind(None, 0).unwrap();
    let to = Some((address(B), 53));
    pair.a.host.stack.udp_send(pair.now, client, to, b"question", &mut pair.a.pool).unwrap();
    pair.settle();
    assert_eq!(read(&mut pair.b, server), Some(b"question".to_vec()));
    assert_eq!(pair.b.host.stack.events().collect::<Vec<_>>(), [Event::UdpReadable(server)]);
    assert_eq!(
        pair.trace.iter().map(|(_, p)| words(p)).collect::<Vec<_>>(),
        [
            "fd00::1 > ff02::1:ff00:2 hop 255: who has fd00::2  option 1",
            "fd00::2 > fd00::1 hop 255: here is fd00::2 SO option 2",
            "fd00::1 > fd00::2 hop 64: udp 16",
        ]
    );
    let said = |node: &Node| {
        let of = node.host.control.counters();
        (of.neighbour_solicitations_sent, of.neighbour_advertisements_sent)
    };
    // Beside the questions with which both have looked for their two addresses.
    assert_eq!((said(&pair.a), said(&pair.b)), ((3, 0), (2, 1)));
    // Link-local addresses need their link.
    let id = pair.a.interface(1);
    let sent =
        pair.a.host.stack.udp_send(pair.now, client, Some((address(B_LOCAL), 53)), b"?", &mut pair.a.pool);
    assert_eq!(sent, Err(UdpError::NoRoute(address(B_LOCAL))));
    pair.trace.clear();
    let to = Some((zoned(B_LOCAL, id), 53));
    pair.a.host.stack.udp_send(pair.now, client, to, b"near", &mut pair.a.pool).unwrap();
    pair.settle();
    assert_eq!(from_a(&pair).last().unwrap(), "fe80::ff:fe00:1 > fe80::ff:fe00:2 hop 64: udp 12");
    assert_eq!(read(&mut pair.b, server), Some(b"near".to_vec()));
    // Our own, over the loopback, find their link again.
    let own = pair.a.host.stack.udp_bind(None, 54).unwrap();
    for to in [zoned(A_LOCAL, id), address(A), address("::1")] {
        pair.a.host.stack.udp_send(pair.now, client, Some((to, 54)), b"me", &mut pair.a.pool).unwrap();
        pair.settle();
        assert_eq!(read(&mut pair.a, own), Some(b"me".to_vec()), "{to}");
    }
    pair.a.assert_nothing_leaked();
    pair.b.assert_nothing_leaked();
}

#[test]
fn nobody_there_is_asked_for_three_times_and_the_sender_told() {
    let mut pair = pair(1500);
    let client = pair.a.host.stack.udp_bind(None, 0).unwrap();
    pair.a.host.stack.udp_connect(client, Some((address("fd00::9"), 53))).unwrap();
    pair.a.host.stack.udp_send(pair.now, client, None, b"?", &mut pair.a.pool).unwrap();
    (0..12).for_each(|_| pair.pass(Duration::from_millis(500)));
    assert_eq!(from_a(&pair), ["fd00::1 > ff02::1:ff00:9 hop 255: who has fd00::9  option 1"; 3]);
    assert_eq!(pair.a.host.control.counters().neighbours_failed, 1);
    let error = pair.a.host.stack.udp_receive(client).unwrap_err();
    assert_eq!(error, UdpError::Unreachable(Unreachable::Host));
    pair.a.assert_nothing_leaked();
}

#[test]
fn neighbours_age_and_are_probed_when_used() {
    let mut pair = pair(1500);
    let client = pair.a.host.stack.udp_bind(None, 0).unwrap();
    let server = pair.b.host.stack.udp_bind(None, 9).unwrap();
    let send = |pair: &mut Pair| {
        let to = Some((address(B), 9));
        pair.a.host.stack.udp_send(pair.now, client, to, b"x", &mut pair.a.pool).unwrap();
        pair.settle();
        assert!(read(&mut pair.b, server).is_some());
    };
    let state = |pair: &Pair| {
        let found = pair.a.host.control.neighbours().find(|(_, a, ..)| *a == address(B));
        found.map(|(_, _, _, state)| state).unwrap()
    };
    send(&mut pair);
    assert_eq!(state(&pair), NeighbourState::Reachable);
    pair.pass(Duration::from_secs(31));
    assert_eq!(state(&pair), NeighbourState::Stale);
    send(&mut pair);
    assert_eq!(state(&pair), NeighbourState::Delay);
    pair.trace.clear();
    pair.pass(Duration::from_secs(5));
    assert_eq!(
        from_a(&pair)[0],
        "fd00::1 > fd00::2 hop 255: who has fd00::2  option 1",
        "it is asked itself"
    );
    assert_eq!(state(&pair), NeighbourState::Reachable);
}

#[test]
fn what_cannot_come_from_the_link_is_ignored() {
    let mut pair = pair(1500);
    let now = pair.now;
    let target = A.parse::<std::net::Ipv6Addr>().unwrap().octets();
    let ask = [&[135, 0, 0, 0, 0, 0, 0, 0][..], &target, &[1, 1, 2, 0, 0, 0, 0, 2]].concat();
    let good = "fd00::1 > fd00::2 hop 255: here is fd00::1 SO option 2";
    assert_eq!(answers(&mut pair.a, now, &icmp(MAC_A, B, A, 255, &ask)), [good]);
    let mut broken = ask.clone();
    broken[25] = 0;
    let mut code = ask.clone();
    code[1] = 1;
    for (hop_limit, bytes) in [(254, &ask), (64, &ask), (255, &broken), (255, &code)] {
        assert_eq!(answers(&mut pair.a, now, &icmp(MAC_A, B, A, hop_limit, bytes)), [""; 0], "{hop_limit}");
    }
    // In pieces it could hide from those who watch the link (RFC 6980).
    let whole = sealed(Protocol::ICMPV6, 2, B, A, ask.clone());
    let piece = [FragmentHeader::new(58, 0, false, 7).as_bytes(), &whole].concat();
    assert_eq!(answers(&mut pair.a, now, &frame(MAC_A, B, A, Protocol::FRAGMENT, 255, &piece)), [""; 0]);
    // From nobody, it must be to the group and without a link address.
    assert_eq!(answers(&mut pair.a, now, &icmp(MAC_A, "::", A, 255, &ask)), [""; 0]);
    let group = Mac([0x33, 0x33, 0xff, 0, 0, 1]);
    let bare = &ask[..24];
    assert_eq!(
        answers(&mut pair.a, now, &icmp(group, "::", "ff02::1:ff00:1", 255, bare)),
        ["fd00::1 > ff02::1 hop 255: here is fd00::1 O option 2"]
    );
    // An answer that nobody asked for makes no neighbour.
    let nine = "fd00::9".parse::<std::net::Ipv6Addr>().unwrap().octets();
    let tell = [&[136, 0, 0, 0, 0x60, 0, 0, 0][..], &nine, &[2, 1, 2, 0, 0, 0, 0, 9]].concat();
    answers(&mut pair.a, now, &icmp(MAC_A, B, A, 255, &tell));
    assert!(pair.a.host.control.neighbours().all(|(_, a, ..)| a != address("fd00::9")));
    // A claim to our address is counted.
    let ours = [&[136, 0, 0, 0, 0x20, 0, 0, 0][..], &target].concat();
    answers(&mut pair.a, now, &icmp(MAC_A, B, "ff02::1", 255, &ours));
    assert_eq!(pair.a.host.control.conflicts(), 1);
}

#[test]
fn echoes_are_answered_also_to_all_and_not_without_limit() {
    let mut pair = pair(1500);
    let now = pair.now;
    // Who is there is known, so that answers need no question.
    pair.a.host.control.add_neighbour(pair.a.interface(1), address(B), MAC_B).unwrap();
    let echo = [128, 0, 0, 0, 0x12, 0x34, 0, 1, 9, 9, 9];
    let reply = |from: &str| vec![format!("{from} > fd00::2 hop 64: icmp 129 0 {}", 0x1234_0001)];
    assert_eq!(answers(&mut pair.a, now, &icmp(MAC_A, B, A, 64, &echo)), reply(A));
    let all = Mac([0x33, 0x33, 0, 0, 0, 1]);
    assert_eq!(answers(&mut pair.a, now, &icmp(all, B, "ff02::1", 64, &echo)), reply(A));
    let options =
        [&[58, 0, 1, 4, 0, 0, 0, 0][..], &sealed(Protocol::ICMPV6, 2, B, A, echo.to_vec())].concat();
    let behind = frame(MAC_A, B, A, Protocol::DESTINATION_OPTIONS, 64, &options);
    assert_eq!(answers(&mut pair.a, now, &behind), reply(A), "options are not echoed");
    let mut wrong = icmp(MAC_A, B, A, 64, &echo);
    wrong[60] ^= 1;
    assert_eq!(answers(&mut pair.a, now, &wrong), [""; 0]);
    let others = Mac([0x33, 0x33, 0, 0, 0, 9]);
    assert_eq!(answers(&mut pair.a, now, &icmp(others, B, "ff02::9", 64, &echo)), [""; 0], "not our group");
    let sent: usize = (0..200).map(|_| answers(&mut pair.a, now, &icmp(MAC_A, B, A, 64, &echo)).len()).sum();
    let counted = pair.a.host.control.counters();
    assert_eq!((counted.icmp_echo_replies, counted.icmp_echo_limited), (50, 153));
    assert_eq!(counted.icmp_errors, 1);
    assert!(sent <= 50, "{sent} at one moment");
    pair.a.assert_nothing_leaked();
}

#[test]
fn headers_that_are_wrong_are_reported_by_rule() {
    let mut pair = pair(1500);
    let now = pair.now;
    pair.a.host.control.add_neighbour(pair.a.interface(1), address(B), MAC_B).unwrap();
    let problem = |code: u8, pointer: u32| vec![format!("{A} > {B} hop 64: icmp 4 {code} {pointer}")];
    let none: Vec<String> = Vec::new();
    let datagram = udp(B, A, 9, b"x");
    let row = |first: &[u8]| [first, &datagram].concat();
    for (first, rest, expected) in [
        // Routing type 0 with a segment left (RFC 5095), and an unknown option that asks for it.
        (Protocol::ROUTING, row(&[17, 0, 0, 1, 0, 0, 0, 0]), problem(0, 42)),
        (Protocol::DESTINATION_OPTIONS, row(&[17, 0, 0xc2, 4, 0, 0, 0, 0]), problem(2, 42)),
        (Protocol::DESTINATION_OPTIONS, row(&[17, 0, 0x42, 4, 0, 0, 0, 0]), none.clone()),
        // A protocol that nobody speaks here; nothing at all.
        (Protocol(200), vec![0; 8], problem(1, 6)),
        (Protocol::HOP_BY_HOP, [&[132, 0, 1, 4, 0, 0, 0, 0][..], &[0; 8]].concat(), problem(1, 40)),
        (Protocol::NO_NEXT_HEADER, vec![], none.clone()),
        // Pieces: not cut at eight bytes, beyond the end, without all headers.
        (
            Protocol::FRAGMENT,
            [FragmentHeader::new(17, 8, true, 1).as_bytes(), &[0; 9]].concat(),
            problem(0, 4),
        ),
        (
            Protocol::FRAGMENT,
            [FragmentHeader::new(17, 65_528, false, 1).as_bytes(), &[0; 8]].concat(),
            problem(0, 42),
        ),
        (
            Protocol::FRAGMENT,
            [FragmentHeader::new(6, 0, true, 1).as_bytes(), &[0; 16]].concat(),
            problem(3, 0),
        ),
        (Protocol::UDP, datagram.clone(), vec![format!("{A} > {B} hop 64: icmp 1 4 0")]),
    ] {
        assert_eq!(answers(&mut pair.a, now, &frame(MAC_A, B, A, first, 64, &rest)), expected, "{first:?}");
    }
    // To many: only the option that asks for it even then.
    let all = Mac([0x33, 0x33, 0, 0, 0, 1]);
    for (kind, expected) in [(0x82, problem(2, 42)), (0xc2, none.clone())] {
        let rest = [&[17, 0, kind, 4, 0, 0, 0, 0][..], &udp(B, "ff02::1", 9, b"x")].concat();
        let sent =
            answers(&mut pair.a, now, &frame(all, B, "ff02::1", Protocol::DESTINATION_OPTIONS, 64, &rest));
        assert_eq!(sent, expected);
    }
    assert_eq!(
        answers(&mut pair.a, now, &frame(all, B, "ff02::1", Protocol::UDP, 64, &udp(B, "ff02::1", 9, b"x"))),
        none
    );
    // Errors about errors, and to nobody (RFC 4443, 2.4 (e)).
    let error = [&[1, 4, 0, 0, 0, 0, 0, 0][..], &[0; 48]].concat();
    let quoted = icmp(MAC_A, B, A, 64, &error);
    assert_eq!(answers(&mut pair.a, now, &quoted), none);
    // Nor behind headers that would be reported: an option, a type of routing, a header in the wrong place, a first piece.
    for (first, header) in [
        (Protocol::DESTINATION_OPTIONS, &[58, 0, 0xc2, 4, 0, 0, 0, 0][..]),
        (Protocol::ROUTING, &[58, 0, 7, 1, 0, 0, 0, 0]),
        (Protocol::ROUTING, &[0, 0, 0, 0, 0, 0, 0, 0, 58, 0, 1, 4, 0, 0, 0, 0]),
        (Protocol::DESTINATION_OPTIONS, &[44, 0, 0xc2, 4, 0, 0, 0, 0, 58, 0, 0, 1, 0, 0, 0, 7]),
    ] {
        let hidden = |kind: u8| {
            let bytes = [header, &[kind], &error[1..]].concat();
            frame(MAC_A, B, A, first, 64, &bytes)
        };
        assert_eq!(answers(&mut pair.a, now, &hidden(1)), none, "{first:?} {header:?}");
        assert_eq!(answers(&mut pair.a, now, &hidden(137)), none, "a redirect behind {first:?}");
        assert_eq!(answers(&mut pair.a, now, &hidden(129)).len(), 1, "no error behind {first:?} {header:?}");
    }
    for source in ["ff02::1", "::", "::1", A, "::ffff:10.0.0.9", "fe80:1::1"] {
        let bytes = frame(MAC_A, source, A, Protocol(200), 64, &[0; 8]);
        assert_eq!(answers(&mut pair.a, now, &bytes), none, "from {source}");
    }
    let mut zero = datagram;
    zero[6..8].copy_from_slice(&[0, 0]);
    assert_eq!(
        answers(&mut pair.a, now, &frame(MAC_A, B, A, Protocol::UDP, 64, &zero)),
        none,
        "RFC 8200, 8.1"
    );
    pair.a.assert_nothing_leaked();
}

#[test]
fn long_datagrams_are_cut_at_the_source_and_put_together() {
    for (mtu, length) in [(1500, 1452), (1500, 1453), (1280, 65_527), (9000, 65_527)] {
        let mut pair = pair(mtu);
        let server = pair.b.host.stack.udp_bind(None, 9).unwrap();
        let client = pair.a.host.stack.udp_bind(None, 0).unwrap();
        let payload: Vec<u8> = (0..length).map(|i: u32| i.wrapping_mul(7).to_le_bytes()[0]).collect();
        let to = Some((address(B), 9));
        pair.a.host.stack.udp_send(pair.now, client, to, &payload, &mut pair.a.pool).unwrap();
        pair.settle();
        assert_eq!(read(&mut pair.b, server).map(|b| b == payload), Some(true), "{length} at {mtu}");
        assert!(pair.trace.iter().all(|(_, packet)| packet.len() <= 14 + usize::from(mtu)));
        let too_long = pair.a.host.stack.udp_send(pair.now, client, to, &[0; 65_528], &mut pair.a.pool);
        assert_eq!(too_long, Err(UdpError::TooLong));
        pair.b.assert_nothing_leaked();
    }
}

#[test]
fn overlaps_spoil_a_packet_whole_ones_do_not_wait_and_late_ones_are_given_up() {
    let mut pair = pair(1500);
    let server = pair.a.host.stack.udp_bind(None, 5).unwrap();
    pair.a.host.control.add_neighbour(pair.a.interface(1), address(B), MAC_B).unwrap();
    let datagram = udp(B, A, 5, &[7; 24]);
    let piece = |id: u32, from: usize, to: usize, more: bool| {
        let header = FragmentHeader::new(17, u16::try_from(from).unwrap(), more, id);
        frame(MAC_A, B, A, Protocol::FRAGMENT, 64, &[header.as_bytes(), &datagram[from..to]].concat())
    };
    let now = pair.now;
    // RFC 5722: what overlaps spoils everything, also what comes later.
    for bytes in [piece(1, 0, 16, true), piece(1, 8, 24, true), piece(1, 16, 32, false)] {
        assert_eq!(answers(&mut pair.a, now, &bytes), [""; 0]);
    }
    assert_eq!(read(&mut pair.a, server), None);
    // In any order, and twice.
    for bytes in [piece(2, 16, 32, false), piece(2, 16, 32, false), piece(2, 0, 16, true)] {
        pair.a.put(now, PORT, &bytes);
    }
    assert_eq!(read(&mut pair.a, server), Some(vec![7; 24]));
    // RFC 6946: a whole packet with a fragment header has nothing to do with pieces of the same number.
    pair.a.put(now, PORT, &piece(3, 0, 16, true));
    pair.a.put(now, PORT, &piece(3, 0, 32, false));
    assert_eq!(read(&mut pair.a, server), Some(vec![7; 24]));
    pair.trace.clear();
    pair.pass(Duration::from_secs(59));
    assert_eq!(from_a(&pair).iter().filter(|line| line.contains("icmp 3")).count(), 0);
    pair.pass(Duration::from_secs(2));
    assert_eq!(from_a(&pair), [format!("{A} > {B} hop 64: icmp 3 1 0")], "for 3, whose first piece came");
    pair.a.assert_nothing_leaked();
}

#[test]
fn a_router_passes_on_counts_down_and_reports() {
    let mut router = Node::new(3).with_interface(0, 3, None, 1500, "fd00::3/64").with_interface(
        1,
        4,
        None,
        1280,
        "fd01::3/64",
    );
    router.host.control.set_forwarding(true);
    let mut pair = pair(1500);
    let interface = pair.a.interface(1);
    pair.a = std::mem::replace(&mut pair.a, Node::new(9)).with_route("fd01::/64", "fd00::3", interface);
    let target = Node::new(4).with_interface(0, 5, None, 1280, "fd01::4/64");
    let interface = target.interface(1);
    let mut target = target.with_route("::/0", "fd01::3", interface);
    let server = target.host.stack.udp_bind(None, 9).unwrap();
    let client = pair.a.host.stack.udp_bind(None, 0).unwrap();
    let turn = |a: &mut Node, router: &mut Node, target: &mut Node, now| {
        for _ in 0..10 {
            a.take(now, PORT).iter().for_each(|p| router.put(now, PORT, p));
            router.take(now, PORT).iter().for_each(|p| a.put(now, PORT, p));
            router.take(now, PortId(1)).iter().for_each(|p| target.put(now, PORT, p));
            target.take(now, PORT).iter().for_each(|p| router.put(now, PortId(1), p));
        }
    };
    for _ in 0..4 {
        pair.now = pair.now + Duration::from_millis(600);
        turn(&mut pair.a, &mut router, &mut target, pair.now);
    }
    pair.a.host.stack.udp_connect(client, Some((address("fd01::4"), 9))).unwrap();
    let now = pair.now;
    let send = |pair: &mut Pair, router: &mut Node, target: &mut Node, payload: &[u8]| {
        let sent = pair.a.host.stack.udp_send(now, client, None, payload, &mut pair.a.pool);
        turn(&mut pair.a, router, target, now);
        sent
    };
    send(&mut pair, &mut router, &mut target, b"hello").unwrap();
    assert_eq!(read(&mut target, server), Some(b"hello".to_vec()));
    send(&mut pair, &mut router, &mut target, &[7; 1400]).unwrap();
    assert_eq!(read(&mut target, server), None);
    let error = pair.a.host.stack.udp_receive(client).unwrap_err();
    assert_eq!(error, UdpError::Unreachable(Unreachable::TooBig(1280)), "no router cuts IPv6");
    // From now on the source cuts for this path (RFC 8201).
    send(&mut pair, &mut router, &mut target, &[7; 1400]).unwrap();
    assert_eq!(read(&mut target, server), Some(vec![7; 1400]));
    pair.a.host.stack.udp_connect(client, Some((address("fd01::4"), 10))).unwrap();
    send(&mut pair, &mut router, &mut target, b"x").unwrap();
    let error = pair.a.host.stack.udp_receive(client).unwrap_err();
    assert_eq!(error, UdpError::Unreachable(Unreachable::Port));
    // The last hop, no route, and what belongs to one link.
    let to_router = |source: &str, destination: &str, hop_limit| {
        let mut bytes =
            frame(Mac([2, 0, 0, 0, 0, 3]), source, destination, Protocol::UDP, hop_limit, &[0; 8]);
        bytes[6..12].copy_from_slice(&MAC_A.0);
        bytes
    };
    router.host.control.add_neighbour(InterfaceId::LOOPBACK, address(A), MAC_A).unwrap();
    let id = router.interface(1);
    router.host.control.add_neighbour(id, address(A_LOCAL), MAC_A).unwrap();
    for (source, destination, hop_limit, expected) in [
        (A, "fd01::4", 1, vec![format!("fd00::3 > {A} hop 64: icmp 3 0 0")]),
        (A, "fd09::4", 9, vec![format!("fd00::3 > {A} hop 64: icmp 1 0 0")]),
        (A_LOCAL, "fd01::4", 9, vec![format!("fe80::ff:fe00:3 > {A_LOCAL} hop 64: icmp 1 2 0")]),
        (A, "fe80::9", 9, vec![]),
        ("::", "fd01::4", 9, vec![]),
    ] {
        assert_eq!(
            answers(&mut router, now, &to_router(source, destination, hop_limit)),
            expected,
            "{destination}"
        );
    }
    router.assert_nothing_leaked();
}

#[test]
fn a_host_takes_routers_prefixes_and_addresses_from_advertisements() {
    let mut node = Node::new(1).with_interface(0, 1, None, 1500, "10.0.0.1/24");
    let id = node.interface(1);
    let start = Timestamp::from_nanos(5_000_000_000);
    node.take(start, PORT);
    node.host.control.autoconfigure(start, id).unwrap();
    node.take(start, PORT);
    let at = |ms: u64| start + Duration::from_millis(1000 + ms);
    node.take(at(1), PORT);
    let sent: Vec<String> = node.take(at(1002), PORT).iter().map(|p| words(p)).collect();
    assert_eq!(sent[1..], ["fe80::ff:fe00:1 > ff02::2 hop 255: icmp 133 0 0"], "when the address is ours");
    let prefix = |flags: u8, valid: u32, preferred: u32| {
        let mut option = vec![3, 4, 64, flags];
        option.extend(valid.to_be_bytes());
        option.extend(preferred.to_be_bytes());
        option.extend([0; 4]);
        option.extend("fd07::".parse::<std::net::Ipv6Addr>().unwrap().octets());
        option
    };
    let advertise = |hop_limit: u8, lifetime: u16, options: &[u8]| {
        let [high, low] = lifetime.to_be_bytes();
        let head = [134, 0, 0, 0, hop_limit, 0, high, low];
        let link = [1, 1, 2, 0, 0, 0, 0, 2];
        let all = Mac([0x33, 0x33, 0, 0, 0, 1]);
        icmp(all, B_LOCAL, "ff02::1", 255, &[&head[..], &[0; 8], &link, options].concat())
    };
    let mtu = [5, 1, 0, 0, 0, 0, 0x05, 0x14];
    let options = [&prefix(0xc0, 10_000, 5000)[..], &mtu].concat();
    // From a router beyond the link, or from no router at all.
    let mut far = advertise(33, 1800, &options);
    far[21] = 254;
    node.put(at(1300), PORT, &far);
    assert_eq!(node.host.control.routes().filter(|r| r.gateway.is_some()).count(), 0);
    node.put(at(1300), PORT, &advertise(33, 1800, &options));
    let routes: Vec<String> = node
        .host
        .control
        .routes()
        .filter(|r| r.metric > 0)
        .map(|r| format!("{} {:?} {}", r.prefix, r.gateway.map(|g| g.to_string()), r.metric))
        .collect();
    assert_eq!(routes, ["fd07::/64 None 256", "::/0 Some(\"fe80::ff:fe00:2%1\") 1024"]);
    let ours = |node: &Node| {
        let mut all = node.host.control.addresses();
        all.find(|(p, ..)| p.to_string() == "fd07::ff:fe00:1/64").map(|(_, _, state)| state)
    };
    assert_eq!(ours(&node), Some(AddressState::Tentative));
    node.take(at(1400), PORT);
    node.take(at(2301), PORT);
    node.take(at(3302), PORT);
    assert_eq!(ours(&node), Some(AddressState::Preferred));
    // What routers said shows in what we send: source, way, hop limit, size.
    let client = node.host.stack.udp_bind(None, 0).unwrap();
    let to = Some((address("2001:db8::1"), 9));
    node.host.stack.udp_send(at(3302), client, to, &[0; 1253], &mut node.pool).unwrap();
    let sent = node.take(at(3302), PORT);
    assert_eq!(sent[0][..6], MAC_B.0, "the router told where it is");
    let lines: Vec<String> = sent.iter().map(|p| words(p)).collect();
    let line = "fd07::ff:fe00:1 > 2001:db8::1 hop 33: piece";
    assert_eq!(lines, [format!("{line} 0+"), format!("{line} 1248")], "1300 bytes are the link's MTU");
    // RFC 4862, 5.5.3 (e): no stranger ends an address at once.
    node.put(at(3400), PORT, &advertise(33, 0, &prefix(0xc0, 1, 1)));
    assert!(node.host.control.routes().all(|r| r.metric != 1024), "no default router any more");
    node.take(at(5000), PORT);
    assert_eq!(ours(&node), Some(AddressState::Deprecated));
    node.take(at(3400 + 7_199_000), PORT);
    assert_eq!(ours(&node), Some(AddressState::Deprecated));
    node.take(at(3400 + 7_201_000), PORT);
    assert_eq!(ours(&node), None, "after two hours");
    node.assert_nothing_leaked();
}

#[test]
fn queries_are_answered_with_the_groups_that_are_ours() {
    let mut pair = pair(1500);
    // Hop-by-hop options: the router alert, behind padding as well; and what is none.
    const ALERT: [u8; 8] = [58, 0, 5, 2, 0, 0, 1, 0];
    const LATER: [u8; 8] = [58, 0, 0, 0, 5, 2, 0, 0];
    const PADDING: [u8; 8] = [58, 0, 1, 4, 5, 2, 0, 0];
    let within = |code: u16, source: &str, group: &str, hop_limit: u8, options: &[u8], rest: &[u8]| {
        let group = group.parse::<std::net::Ipv6Addr>().unwrap().octets();
        let bytes = [&[130, 0, 0, 0][..], &code.to_be_bytes(), &[0, 0], &group, rest].concat();
        let all = [options, &sealed(Protocol::ICMPV6, 2, source, "ff02::1", bytes)].concat();
        let first = if options.is_empty() { Protocol::ICMPV6 } else { Protocol::HOP_BY_HOP };
        frame(Mac([0x33, 0x33, 0, 0, 0, 1]), source, "ff02::1", first, hop_limit, &all)
    };
    let query = |source: &str, group: &str, hop_limit: u8, options: &[u8], rest: &[u8]| {
        within(1000, source, group, hop_limit, options, rest)
    };
    for (why, bytes, answered) in [
        ("for all groups", query(B_LOCAL, "::", 1, &ALERT, &[0; 4]), true),
        ("from beyond the link", query(B_LOCAL, "::", 64, &ALERT, &[0; 4]), false),
        ("from no link's address", query(B, "::", 1, &ALERT, &[0; 4]), false),
        ("without hop-by-hop options", query(B_LOCAL, "::", 1, &[], &[0; 4]), false),
        ("without the router alert", query(B_LOCAL, "::", 1, &PADDING, &[0; 4]), false),
        ("with it behind padding", query(B_LOCAL, "::", 1, &LATER, &[0; 4]), true),
        ("of version 1", query(B_LOCAL, "::", 1, &ALERT, &[]), true),
        ("of no version (8.1)", query(B_LOCAL, "::", 1, &ALERT, &[0; 2]), false),
        ("for a group of ours", query(B_LOCAL, "ff02::1:ff00:1", 1, &ALERT, &[0; 4]), true),
        ("for another", query(B_LOCAL, "ff02::9", 1, &ALERT, &[0; 4]), false),
    ] {
        pair.a.put(pair.now, PORT, &bytes);
        pair.now = pair.now + Duration::from_secs(1);
        let sent: Vec<String> = pair.a.take(pair.now, PORT).iter().map(|p| words(p)).collect();
        let expected = "fe80::ff:fe00:1 > ff02::16 hop 1: alert report 2 of 1";
        assert_eq!(sent, if answered { vec![expected] } else { vec![] }, "{why}");
    }
    // RFC 2710, 3.4: 66 seconds at most, where version 2 has an exponent and more than two hours.
    for (rest, answered) in [(&[][..], true), (&[0; 4], false)] {
        pair.a.put(pair.now, PORT, &within(0xffff, B_LOCAL, "::", 1, &ALERT, rest));
        pair.now = pair.now + Duration::from_secs(66);
        assert_eq!(!pair.a.take(pair.now, PORT).is_empty(), answered);
    }
    // An address that goes takes its group with it.
    pair.a.host.control.add_address(pair.now, pair.a.interface(1), "fd00::77/64".parse().unwrap()).unwrap();
    pair.settle();
    pair.trace.clear();
    assert!(pair.a.host.control.remove_address(address("fd00::77")));
    pair.settle();
    assert_eq!(from_a(&pair), ["fe80::ff:fe00:1 > ff02::16 hop 1: alert report 3 of 1"]);
}

#[test]
fn the_hop_limit_of_a_connection_is_the_program_s() {
    let mut pair = pair(1500);
    let (to, pool) = ((address(B), 80), &mut pair.a.pool);
    let limits = Limits { hop_limit: NonZeroU8::new(9), ..Limits::default() };
    pair.a.host.stack.connect_with(pair.now, (None, 0), to, limits, pool).unwrap();
    pair.settle();
    let hops: Vec<u8> = pair.trace.iter().filter(|(_, p)| p[20] == 6).map(|(_, p)| p[21]).collect();
    assert_eq!(hops, [9, 64], "a SYN and its refusal");
}

#[test]
fn tcp_over_ipv6_fits_its_segments_to_link_and_path() {
    let mut pair = pair(1500);
    // No entry for a handshake: everything is in the cookie.
    pair.b.host.stack.listen(None, 80, 0).unwrap();
    let open = |pair: &mut Pair| {
        let to = (address(B), 80);
        let id = pair.a.host.stack.connect(pair.now, (None, 0), to, &mut pair.a.pool).unwrap();
        pair.settle();
        assert!(pair.a.host.stack.events().any(|event| event == Event::Connected(id)));
        let accepted = pair.b.host.stack.events().find_map(|event| match event {
            Event::Accepted { connection, .. } => Some(connection),
            _ => None,
        });
        (id, accepted.expect("the cookie came back"))
    };
    // The option of the SYN: kind 2, length 4.
    let offered = |pair: &Pair| {
        let syn = pair.trace.iter().find(|(a, p)| *a && p[20] == 6 && p[67] == 2).unwrap();
        let options = &syn.1[74..];
        let at = options.windows(2).position(|w| w == [2, 4]).unwrap();
        u16::from_be_bytes([options[at + 2], options[at + 3]])
    };
    let (client, server) = open(&mut pair);
    assert_eq!(offered(&pair), 1440, "1500 less 40 and 20");
    let mss = |pair: &Pair, id| pair.a.host.stack.tcp_info(pair.now, id).unwrap().snd_mss;
    assert_eq!(mss(&pair, client), 1428, "the timestamps come off");
    let sent: Vec<u8> = (0..200_000u32).map(|i| i.wrapping_mul(13).to_le_bytes()[1]).collect();
    let (mut at, mut got) = (0, Vec::new());
    for round in 0..10_000 {
        at += pair.a.host.stack.send(pair.now, client, &sent[at..], &mut pair.a.pool).unwrap();
        if round == 1 {
            // A router on the way takes less: it quotes what is in flight.
            let quoted = pair.a.take(pair.now, PORT).pop().expect("a segment");
            let bytes = [&[2, 0, 0, 0, 0, 0, 0x05, 0x14][..], &quoted[14..][..1200]].concat();
            pair.a.put(pair.now, PORT, &icmp(MAC_A, "fd00::77", A, 64, &bytes));
            let small = [&[2, 0, 0, 0, 0, 0, 0x04, 0xff][..], &quoted[14..][..1200]].concat();
            pair.a.put(pair.now, PORT, &icmp(MAC_A, "fd00::77", A, 64, &small));
            assert_eq!(mss(&pair, client), 1300 - 60 - 12, "and less than 1280 no path takes");
        }
        pair.settle();
        let mut buffer = vec![0; 1 << 20];
        let n = pair.b.host.stack.receive_copy(pair.now, server, &mut buffer, &mut pair.b.pool).unwrap();
        got.extend_from_slice(&buffer[..n]);
        if got.len() == sent.len() {
            break;
        }
        pair.pass(Duration::from_millis(1));
    }
    assert!(got == sent, "{} of {} bytes", got.len(), sent.len());
    pair.trace.clear();
    open(&mut pair);
    assert_eq!(offered(&pair), 1440, "the way back is another one");
    let (next, _) = open(&mut pair);
    assert_eq!(mss(&pair, next), 1300 - 60 - 12, "the next connection knows");
}

#[test]
fn a_closed_port_resets_over_ipv6() {
    let mut pair = pair(1500);
    let to = (address(B), 81);
    let id = pair.a.host.stack.connect(pair.now, (None, 0), to, &mut pair.a.pool).unwrap();
    pair.settle();
    let closed = Event::Closed(id, bywash_stack::CloseReason::Refused);
    assert_eq!(pair.a.host.stack.events().collect::<Vec<_>>(), [closed]);
}
