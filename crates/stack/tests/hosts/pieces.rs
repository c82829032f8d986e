//! IPv4 datagrams that are cut and put together.

use std::time::Duration;

use crate::ip::{ethernet, read, router_to_a_narrow_link};
use crate::wire::{Node, PORT, Pair, address};
use crate::{fragments, ip6};
use bywash_frame::{Checksum, Frame, Packet};
use bywash_stack::{PortId, Timestamp, UdpError};
use bywash_wire::checksum::Sum;
use bywash_wire::zerocopy::IntoBytes;
use bywash_wire::{Ipv4Header, Mac, icmpv6};

#[test]
fn long_datagrams_are_cut_and_put_together() {
    for (mtu, length) in [(1500, 1472), (1500, 1473), (1500, 65_507), (576, 65_507), (68, 3000)] {
        let mut pair = Pair::new(mtu);
        let server = pair.b.host.stack.udp_bind(None, 9).unwrap();
        let client = pair.a.host.stack.udp_bind(None, 0).unwrap();
        let payload: Vec<u8> = (0..length).map(|i: u32| i.wrapping_mul(7).to_le_bytes()[0]).collect();
        let to = Some((address("10.0.0.2"), 9));
        pair.a.host.stack.udp_send(pair.now, client, to, &payload, &mut pair.a.pool).unwrap();
        pair.settle();
        assert_eq!(
            read(&mut pair.b, server).map(|b| b == payload),
            Some(true),
            "{length} bytes at MTU {mtu}"
        );
        assert!(pair.trace.iter().all(|(_, packet)| packet.len() <= 14 + usize::from(mtu)));
        pair.b.assert_nothing_leaked();
        assert_eq!(
            pair.a.host.stack.udp_send(pair.now, client, to, &[0; 65_508], &mut pair.a.pool),
            Err(UdpError::TooLong)
        );
    }
}

#[test]
fn fragments_that_overlap_spoil_their_datagram_and_late_ones_are_given_up() {
    let mut pair = Pair::new(1500);
    let server = pair.a.host.stack.udp_bind(None, 9).unwrap();
    let piece = |id: u16, offset: u16, more: bool, payload: &[u8]| {
        let (from, to) = ([10, 0, 0, 2].into(), [10, 0, 0, 1].into());
        let mut ip = Ipv4Header::new(from, to, 17, payload.len().try_into().unwrap());
        (ip.identification, ip.fragment) = (id.into(), ((offset / 8) | (u16::from(more) << 13)).into());
        ip.seal();
        [ethernet(0x0800).as_bytes(), ip.as_bytes(), payload].concat()
    };
    let mut first = [0; 16];
    first[..8].copy_from_slice(&[0, 1, 0, 9, 0, 24, 0, 0]);
    for (id, second) in [
        (1, piece(1, 8, false, &[1; 16])),
        (2, piece(2, 16, true, &[1; 7])),
        (3, piece(3, 65_528, false, &[1; 8])),
    ] {
        pair.a.put(pair.now, PORT, &piece(id, 0, true, &first));
        pair.a.put(pair.now, PORT, &second);
    }
    // The rest of the first one would complete it, had it not been spoilt.
    pair.a.put(pair.now, PORT, &piece(1, 16, false, &[1; 8]));
    assert_eq!(read(&mut pair.a, server), None);
    // In any order, and twice, they make a datagram.
    for (offset, more) in [(16, false), (0, true), (0, true)] {
        let payload = if offset == 0 { &first[..] } else { &[1; 8] };
        pair.a.put(pair.now, PORT, &piece(4, offset, more, payload));
    }
    assert_eq!(read(&mut pair.a, server), Some([&first[8..], &[1; 8]].concat()));
    assert!(pair.a.pool.free() < 1990, "unfinished ones hold frames");
    pair.trace.clear();
    pair.pass(Duration::from_secs(31));
    let errors = pair.trace.iter().filter(|(a, p)| *a && p[12..14] == [8, 0] && p[34..36] == [11, 1]).count();
    assert_eq!(
        errors, 3,
        "for 2, 3 and the duplicate of 4: their first fragment came, and they were not spoilt"
    );
    pair.a.assert_nothing_leaked();
}

/// A fragment of a datagram to 10.0.0.1, of `length` bytes of a payload whose first eight are the UDP header of 24 bytes to
/// port 9.
pub(crate) fn fragment(source: [u8; 4], id: u16, offset: u16, more: bool, length: usize) -> Vec<u8> {
    let mut ip = Ipv4Header::new(source.into(), [10, 0, 0, 1].into(), 17, length.try_into().unwrap());
    (ip.identification, ip.fragment) = (id.into(), ((offset / 8) | (u16::from(more) << 13)).into());
    ip.seal();
    let mut payload = vec![1; length];
    if offset == 0 {
        payload[..8].copy_from_slice(&[0, 1, 0, 9, 0, 24, 0, 0]);
    }
    [ethernet(0x0800).as_bytes(), ip.as_bytes(), &payload].concat()
}

#[test]
fn who_never_ends_his_datagrams_keeps_nobody_from_his() {
    let mut node = Node::new(1).with_interface(0, 1, None, 9000, "10.0.0.1/24");
    let server = node.host.stack.udp_bind(None, 9).unwrap();
    let mut now = Timestamp::from_nanos(5_000_000_000);
    let begin = |node: &mut Node, now, source, id| node.put(now, PORT, &fragment(source, id, 0, true, 16));
    let end = |node: &mut Node, now, source, id| {
        node.put(now, PORT, &fragment(source, id, 16, false, 8));
        read(node, server).is_some()
    };
    // Of one source sixteen are kept: the seventeenth pushes out the first, and nobody else's.
    begin(&mut node, now, [10, 0, 0, 7], 1);
    for id in 0..17 {
        now = now + Duration::from_millis(1);
        begin(&mut node, now, [10, 0, 0, 2], id);
    }
    assert!(!end(&mut node, now, [10, 0, 0, 2], 0), "pushed out by the seventeenth");
    assert!(end(&mut node, now, [10, 0, 0, 2], 16) && end(&mut node, now, [10, 0, 0, 7], 1));
    // Of all sources 256: the table is full of strangers', and the oldest of them make room.
    for i in 0..300u16 {
        now = now + Duration::from_millis(1);
        begin(&mut node, now, [10, 1, u8::try_from(i / 8).unwrap(), 9], i);
    }
    begin(&mut node, now, [10, 0, 0, 8], 1);
    assert!(end(&mut node, now, [10, 0, 0, 8], 1), "strangers fill the table, and it is taken all the same");
    assert!(!end(&mut node, now, [10, 1, 0, 9], 0), "the oldest is gone");
    // Frames: no more than a quarter of all, whatever the pieces are.
    now = now + Duration::from_secs(61);
    node.take(now, PORT);
    let (all, free) = (node.pool.arena().frames(), node.pool.free());
    for i in 0..200u16 {
        now = now + Duration::from_millis(1);
        for piece in 0..7 {
            let [high, low] = (i / 8).to_be_bytes();
            node.put(now, PORT, &fragment([10, 2, high, low], i, piece * 8000, true, 8000));
        }
    }
    let held = free - node.pool.free();
    assert!((all / 5..=all / 4).contains(&held), "{held} of {all} frames are held");
    begin(&mut node, now, [10, 0, 0, 8], 2);
    assert!(end(&mut node, now, [10, 0, 0, 8], 2));
    now = now + Duration::from_secs(61);
    (0..9).for_each(|second| drop(node.take(now + Duration::from_secs(second), PORT)));
    node.assert_nothing_leaked();
}

#[test]
fn marks_on_pieces_count_for_the_whole_unless_its_sender_would_not_slow_down() {
    let mut pair = Pair::new(1500);
    let server = pair.a.host.stack.udp_bind(None, 9).unwrap();
    let mut payload = [0; 16];
    payload[..8].copy_from_slice(&[0, 1, 0, 9, 0, 16, 0, 0]);
    for (number, (marks, whole)) in
        [([2, 3], true), ([3, 1], true), ([0, 3], false), ([3, 0], false)].into_iter().enumerate()
    {
        for (at, mark) in marks.into_iter().enumerate() {
            let mut ip = Ipv4Header::new([10, 0, 0, 2].into(), [10, 0, 0, 1].into(), 17, 8);
            ip.identification = u16::try_from(number).unwrap().into();
            ip.fragment = if at == 0 { 0x2000 } else { 1 }.into();
            ip.traffic_class = mark;
            ip.seal();
            let piece = [ethernet(0x0800).as_bytes(), ip.as_bytes(), &payload[8 * at..8 * at + 8]].concat();
            pair.a.put(pair.now, PORT, &piece);
        }
        assert_eq!(read(&mut pair.a, server).is_some(), whole, "{marks:?}");
    }
}

#[test]
fn options_go_with_the_pieces_they_belong_to() {
    let (mut router, now) = router_to_a_narrow_link();
    let packet = |options: &[u8], length: u16| {
        let mut ip = Ipv4Header::new([172, 16, 0, 1].into(), [192, 168, 7, 7].into(), 17, length);
        ip.set_header_length(u8::try_from(20 + options.len()).unwrap());
        ip.total_length = (20 + u16::try_from(options.len()).unwrap() + length).into();
        (ip.fragment, ip.checksum) = (0.into(), 0.into());
        ip.checksum = Sum::new().bytes(ip.as_bytes()).bytes(options).checksum().into();
        let mut link = ethernet(0x0800);
        link.destination = Mac([2, 0, 0, 0, 0, 3]);
        let payload: Vec<u8> = (0..length).map(|i| i.to_le_bytes()[0]).collect();
        [link.as_bytes(), ip.as_bytes(), options, &payload].concat()
    };
    // Record route, which only the first has; router alert and a stream identifier, which all have.
    let options = [7, 7, 4, 0, 0, 0, 0, 1, 148, 4, 0, 0, 136, 4, 0, 9];
    router.put(now, PORT, &packet(&options, 1100));
    let pieces = router.take(now, PortId(1));
    let mut payload = Vec::<u8>::new();
    for (i, piece) in pieces.iter().enumerate() {
        let ip = Ipv4Header::parse(&piece[14..], piece.len() - 14).expect("a right header, and its checksum");
        let expected: &[u8] = if i == 0 { &options } else { &[148, 4, 0, 0, 136, 4, 0, 9] };
        assert_eq!(&piece[34..14 + ip.header_length()], expected, "piece {i}");
        assert_eq!((ip.fragment_offset(), ip.time_to_live), (payload.len(), 63));
        assert!(piece.len() <= 14 + 576);
        payload.extend(&piece[14 + ip.header_length()..]);
    }
    assert!(payload == packet(&[], 1100)[34..]);
    router.put(now, PORT, &packet(&options, 100));
    assert_eq!(router.take(now, PortId(1))[0][34..50], options, "and with what is not cut");
    // RFC 7126: source routes, loose and strict, wherever they stand, go nowhere.
    for route in [[131, 3, 4, 0], [137, 3, 4, 0], [1, 131, 3, 4]] {
        router.put(now, PORT, &packet(&route, 100));
        assert_eq!(router.take(now, PortId(1)), Vec::<Vec<u8>>::new());
    }
    assert_eq!(router.host.stack.counters().source_route, 3);
    router.take(now, PORT);
    router.assert_nothing_leaked();
}

/// Leaves a node `free` frames; it gets the others back with [`give_back`].
fn leave(node: &mut Node, free: usize) -> Vec<Frame> {
    let mut held: Vec<_> = std::iter::from_fn(|| node.pool.take()).collect();
    give_back(node, held.drain(..free));
    held
}

fn give_back(node: &mut Node, frames: impl IntoIterator<Item = Frame>) {
    frames.into_iter().for_each(|frame| node.pool.give(frame));
}

#[test]
fn a_datagram_whose_pieces_find_no_memory_is_not_sent() {
    let (mut node, now) = fragments::host();
    let client = node.host.stack.udp_bind(None, 0).unwrap();
    // What is cut takes 30 frames.
    for (to, pieces) in [("10.0.0.2", 41), ("fd00::2", 42)] {
        for free in [1, 29, 30, 31, 30 + pieces - 1, 30 + pieces] {
            let held = leave(&mut node, free);
            let before = node.host.stack.counters().udp_sent;
            let to = Some((address(to), 9));
            let told = node.host.stack.udp_send(now, client, to, &[7; 60_000], &mut node.pool);
            let sent = node.take(now, PORT).len();
            let counted = node.host.stack.counters().udp_sent - before;
            let expected =
                if free == 30 + pieces { (Ok(()), pieces, 1) } else { (Err(UdpError::NoMemory), 0, 0) };
            assert_eq!((told, sent, counted), expected, "{to:?} with {free} frames");
            assert_eq!(node.pool.free(), free);
            give_back(&mut node, held);
        }
    }
}

#[test]
fn what_is_passed_on_and_finds_no_memory_for_its_pieces_is_counted() {
    let (mut router, now) = router_to_a_narrow_link();
    let mut ip = Ipv4Header::new([172, 16, 0, 1].into(), [192, 168, 7, 7].into(), 17, 1400);
    ip.fragment = 0.into();
    ip.seal();
    let mut link = ethernet(0x0800);
    link.destination = Mac([2, 0, 0, 0, 0, 3]);
    let packet = [link.as_bytes(), ip.as_bytes(), &[7; 1400]].concat();
    // One for itself, and three for its pieces.
    for (free, pieces, lost) in [(1, 0, 1), (3, 0, 1), (4, 3, 0)] {
        let held = leave(&mut router, free);
        let before = router.host.stack.counters();
        router.put(now, PORT, &packet);
        let sent = router.take(now, PortId(1)).len();
        let after = router.host.stack.counters();
        assert_eq!((sent, after.no_memory - before.no_memory), (pieces, lost), "with {free} frames");
        assert_eq!(after.forwarded - before.forwarded, 1);
        assert_eq!(router.pool.free(), free);
        give_back(&mut router, held);
    }
}

#[test]
fn a_reply_whose_pieces_find_no_memory_is_counted() {
    let (mut node, now) = fragments::host();
    let me = Mac([2, 0, 0, 0, 0, 1]);
    let mut echo = [&[8, 0, 0, 0, 0, 1, 0, 1][..], &[7; 4000]].concat();
    let sum = Sum::new().bytes(&echo).checksum();
    echo[2..4].copy_from_slice(&sum.to_be_bytes());
    let mut link = ethernet(0x0800);
    link.destination = me;
    let ip = Ipv4Header::new([10, 0, 0, 2].into(), [10, 0, 0, 1].into(), 1, 4008);
    let v4 = [link.as_bytes(), ip.as_bytes(), &echo].concat();
    let echo = [&[icmpv6::ECHO_REQUEST, 0, 0, 0, 0, 1, 0, 1][..], &[7; 4000]].concat();
    let v6 = ip6::icmp(me, "fd00::2", "fd00::1", 64, &echo);
    for request in [v4, v6] {
        // The request takes two, and so does the reply while it is cut; three are the pieces.
        let outcomes: Vec<_> = (2..=8)
            .map(|free| {
                let held = leave(&mut node, free);
                let before = node.host.control.counters();
                node.put(now, PORT, &request);
                let sent = node.take(now, PORT).len();
                let after = node.host.control.counters();
                assert_eq!(node.pool.free(), free);
                give_back(&mut node, held);
                (sent, after.no_memory - before.no_memory)
            })
            .collect();
        assert!(outcomes.iter().all(|outcome| matches!(outcome, (0, 1) | (3, 0))), "{outcomes:?}");
        assert_eq!((outcomes[0], outcomes[6]), ((0, 1), (3, 0)), "{outcomes:?}");
    }
}

/// Where the kernel has left a checksum open, it says where: behind the headers of a tunnel, and it may be SCTP's.
#[test]
fn an_unfinished_checksum_is_finished_where_it_stands() {
    let (mut router, now) = router_to_a_narrow_link();
    let mut link = ethernet(0x0800);
    link.destination = Mac([2, 0, 0, 0, 0, 3]);
    let payload: Vec<u8> = (0..1000u16).map(|i| i.to_le_bytes()[0]).collect();
    let datagram = |protocol, payload: &[u8]| {
        let (from, to) = ([172, 16, 0, 1].into(), [192, 168, 7, 7].into());
        let mut ip = Ipv4Header::new(from, to, protocol, payload.len().try_into().unwrap());
        ip.fragment = 0.into();
        ip.seal();
        [link.as_bytes(), ip.as_bytes(), payload].concat()
    };
    // Of UDP, which has no checksum, and of VXLAN.
    let tunnel = |protocol| {
        let inside = datagram(protocol, &payload);
        let length = u16::try_from(16 + inside.len()).unwrap().to_be_bytes();
        let front = [&[0xc0, 0, 0x12, 0xb5][..], &length, &[0, 0, 8, 0, 0, 0, 0, 0, 7, 0]].concat();
        datagram(17, &[front, inside].concat())
    };
    for (bytes, start, offset) in [
        (tunnel(17), 84, 6),
        (tunnel(6), 84, 16),
        (datagram(17, &payload), 34, 6),
        (datagram(132, &payload), 34, 8),
    ] {
        let mut packet = Packet::new(router.pool.take().unwrap());
        packet.extend_from_slice(&bytes).unwrap();
        packet.offload.set_checksum(Checksum::Partial { start, offset });
        router.batch.push(packet);
        router.host.receive(now, PORT, &mut router.batch, &mut router.pool);
        let pieces = router.take(now, PortId(1));
        assert_eq!(pieces.len(), 2);
        let sent: Vec<u8> = pieces.iter().flat_map(|piece| &piece[34..]).copied().collect();
        let mut whole = Packet::new(router.pool.take().unwrap());
        whole.extend_from_slice(&bytes).unwrap();
        whole.offload.set_checksum(Checksum::Partial { start, offset });
        whole.complete_checksum().unwrap();
        assert_ne!(whole.head(), bytes);
        assert!(sent == whole.head()[34..], "{offset} bytes behind {start}");
        router.pool.give_packet(whole);
    }
    router.take(now, PORT);
    router.assert_nothing_leaked();
}

#[test]
fn what_ends_where_no_datagram_does_is_not_cut() {
    let (mut router, now) = router_to_a_narrow_link();
    let mut sent = |offset: u16| {
        let mut ip = Ipv4Header::new([10, 0, 0, 7].into(), [10, 1, 0, 9].into(), 17, 1480);
        ip.fragment = (offset / 8).into();
        ip.seal();
        let packet = [&[2, 0, 0, 0, 0, 3, 2, 0, 0, 0, 0, 7, 8, 0][..], ip.as_bytes(), &[1; 1480]].concat();
        let before = router.host.stack.counters().malformed;
        router.put(now, PORT, &packet);
        let pieces = router.take(now, PortId(1)).iter().filter(|p| p[12..14] == [8, 0]).count();
        (pieces, router.host.stack.counters().malformed - before)
    };
    assert_eq!(sent(64_024), (3, 0), "65524 bytes with the header");
    assert_eq!(sent(64_040), (0, 1), "five too many");
    assert_eq!(sent(65_528), (0, 1));
    router.take(now, PORT);
    router.assert_nothing_leaked();
}

#[test]
fn pieces_of_one_of_several_stacks_hold_its_share_of_memory() {
    let mut node = Node::with_frames(1, 1000).with_interface(0, 1, None, 1500, "10.0.0.1/24");
    node.host.stack.set_stacks(0, 4);
    let now = Timestamp::from_nanos(5_000_000_000);
    node.take(now, PORT);
    let held = |node: &Node| 1000 - (node.pool.free() + node.pool.arena().unused());
    let before = held(&node);
    for source in 0..200u8 {
        for id in 0..4 {
            node.put(now, PORT, &fragment([10, 0, 5, source], id, 0, true, 1480));
        }
    }
    let pieces = held(&node) - before;
    assert!((30..=1000 / 4 / 4).contains(&pieces), "{pieces}");
}

#[test]
fn one_source_holds_a_quarter_of_what_pieces_may_hold() {
    let mut node = Node::with_frames(1, 4000).with_interface(0, 1, None, 1500, "10.0.0.1/24");
    let now = Timestamp::from_nanos(5_000_000_000);
    node.take(now, PORT);
    let server = node.host.stack.udp_bind(None, 9).unwrap();
    let held = |node: &Node| 4000 - (node.pool.free() + node.pool.arena().unused());
    let before = held(&node);
    node.put(now, PORT, &fragment([10, 0, 0, 2], 1, 0, true, 16));
    // Each less than what one datagram may have.
    for id in 0..16 {
        for number in 0..100 {
            node.put(now, PORT, &fragment([10, 0, 0, 66], id, number * 16, true, 16));
        }
    }
    let pieces = held(&node) - before;
    assert!((200..=251).contains(&pieces), "{pieces}");
    node.put(now, PORT, &fragment([10, 0, 0, 2], 1, 16, false, 8));
    assert!(read(&mut node, server).is_some(), "another one's is still there");
}
