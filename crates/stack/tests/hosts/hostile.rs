//! Whatever comes from the wire: nothing panics, nothing leaks, and the host goes on.

use std::time::Duration;

use bywash_frame::FRAME_SIZE;
use bywash_stack::{ConnectionId, Event, SocketState, State};
use bywash_wire::checksum::Sum;
use bywash_wire::zerocopy::IntoBytes;
use bywash_wire::{Ipv4Header, Ipv6Header, TcpFlags, TcpHeader};
use proptest::prelude::*;

use crate::wire::trace::Trace;
use crate::wire::{Node, PORT};

/// One thing that happens to a host with a listener and perhaps connections.
#[derive(Clone, Debug)]
enum Happening {
    Segment {
        seq: i16,
        ack: i16,
        flags: u8,
        window: u16,
        options: Vec<u8>,
        payload: usize,
        port: u16,
        far: bool,
    },
    Time(u16),
    Send(u16),
    Read,
    Close(bool),
}

fn happening() -> impl Strategy<Value = Happening> {
    let option = prop_oneof![
        any::<Vec<u8>>(),
        (any::<u32>(), any::<u32>()).prop_map(|(a, b)| [
            &[1, 1, 8, 10][..],
            &a.to_be_bytes(),
            &b.to_be_bytes()
        ]
        .concat()),
        (any::<u16>(), any::<u16>()).prop_map(|(a, b)| {
            let block = |n: u16| u32::from(n).to_be_bytes();
            [&[1, 1, 5, 10][..], &block(a), &block(b)].concat()
        }),
        Just(vec![2, 4, 0, 0, 3, 3, 255, 4, 2]),
        Just(vec![]),
    ];
    let segment = (
        -20i16..2000,
        -20i16..2000,
        any::<u8>(),
        any::<u16>(),
        option,
        0usize..1200,
        5000u16..5003,
        prop::bool::weighted(0.05),
    );
    prop_oneof![
        8 => segment.prop_map(|(seq, ack, flags, window, options, payload, port, far)| {
            Happening::Segment { seq, ack, flags, window, options, payload, port, far }
        }),
        2 => any::<u16>().prop_map(Happening::Time),
        1 => any::<u16>().prop_map(Happening::Send),
        1 => Just(Happening::Read),
        1 => any::<bool>().prop_map(Happening::Close),
    ]
}

fn segment(t: &Trace, happening: &Happening) -> Vec<u8> {
    let Happening::Segment { seq, ack, flags, window, options, payload, port, far } = happening else {
        return vec![];
    };
    let mut options = options.clone();
    options.truncate(40);
    options.resize(options.len().next_multiple_of(4), 1);
    // Near what is expected, or the stack would only drop it.
    let base = if *far { 0x8000_0000 } else { 0 };
    let near = |n: i16, first: u32| first.wrapping_add_signed(i32::from(n)).wrapping_add(base);
    let (seq, ack) = (near(*seq, 1000), near(*ack, t.first().unwrap_or(0)));
    let mut tcp = TcpHeader::new(
        (*port, 80),
        seq,
        ack,
        TcpFlags(*flags),
        *window,
        u8::try_from(options.len()).unwrap(),
    );
    let payload = vec![9; *payload];
    let (from, to) = ([10, 0, 0, 2], [10, 0, 0, 1]);
    let length = 20 + options.len() + payload.len();
    let sum = Sum::pseudo(&from, &to, 6, u32::try_from(length).unwrap());
    tcp.checksum = sum.bytes(tcp.as_bytes()).bytes(&options).bytes(&payload).checksum().into();
    let ip = Ipv4Header::new(from.into(), to.into(), 6, u16::try_from(length).unwrap());
    [ip.as_bytes(), tcp.as_bytes(), &options, &payload].concat()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn segments_of_any_sort(happenings in proptest::collection::vec(happening(), 1..60), backlog in 0usize..3) {
        let mut t = Trace::new();
        t.host.stack.listen(None, 80, backlog).unwrap();
        t.peer("S 0:0(0) win 30000 <mss 1000,sackOK>");
        t.output();
        t.peer(". 1:1(0) ack 1 win 30000");
        let mut connections = Vec::new();
        for happening in &happenings {
            connections.extend(t.events().iter().filter_map(|event| match event {
                Event::Accepted { connection, .. } => Some(*connection),
                _ => None,
            }));
            match happening {
                Happening::Segment { .. } => {
                    let bytes = segment(&t, happening);
                    t.raw(&bytes);
                }
                Happening::Time(ms) => t.pass(Duration::from_millis((*ms).into())),
                Happening::Send(n) => for id in &connections {
                    // It may have ended: then this is an error, and nothing else.
                    let _sent = t.host.stack.send(t.now, *id, &vec![1; usize::from(*n)], &mut t.pool);
                },
                Happening::Read => for id in &connections {
                    let _read = t.host.stack.receive_copy(t.now, *id, &mut [0; 4000], &mut t.pool);
                },
                Happening::Close(reset) => if let Some(id) = connections.pop() {
                    let _ended = if *reset {
                        t.host.stack.abort(t.now, id, &mut t.pool)
                    } else {
                        t.host.stack.close(t.now, id, &mut t.pool)
                    };
                },
            }
            t.output();
            let states = t.host.stack.sockets().map(|socket| socket.state);
            let is_open = |state: &SocketState| matches!(
                state, SocketState::Connection(State::Established | State::CloseWait)
            );
            prop_assert_eq!(t.host.stack.counters().tcp_established, states.filter(is_open).count() as u64);
        }
        connections.extend(t.events().iter().filter_map(|event| match event {
            Event::Accepted { connection, .. } => Some(*connection),
            _ => None,
        }));
        for id in connections {
            let _ended = t.host.stack.close(t.now, id, &mut t.pool);
        }
        // The peer says nothing any more: everything ends by itself.
        for _ in 0..400 {
            t.output();
            let Some(next) = t.host.next_deadline() else { break };
            t.now = next.max(t.now + Duration::from_millis(1));
        }
        prop_assert_eq!(t.host.stack.connections(), (0, 0, 0));
        prop_assert_eq!(t.pool.free() + t.pool.arena().unused(), t.pool.arena().frames());
    }

    #[test]
    fn frames_of_any_sort(frames in proptest::collection::vec((0usize..6, any::<Vec<u8>>()), 1..40)) {
        let mut node = Node::new(1).with_interface(0, 1, None, 1500, "10.0.0.1/24");
        node.host.control.set_forwarding(true);
        node.host.stack.udp_bind(None, 53).unwrap();
        node.host.stack.listen(None, 80, 4).unwrap();
        let now = bywash_stack::Timestamp::from_nanos(1_000_000_000);
        for (kind, bytes) in frames {
            let mac = [2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 9];
            let inside: Vec<u8> = match kind {
                0 => bytes,
                1 => [&mac[..], &[8, 6], &bytes].concat(),
                2 => [&mac[..], &[8, 6, 0, 1, 8, 0, 6, 4, 0, 1], &bytes].concat(),
                3 => [&mac[..], &[0x81, 0], &bytes].concat(),
                _ => {
                    // A right IP header around what is not: ICMP, TCP, UDP, fragments.
                    let protocol = [1, 6, 17, 99][bytes.len() % 4];
                    let to = if kind == 4 { [10, 0, 0, 1] } else { [10, 0, 0, 77] };
                    let mut ip = Ipv4Header::new([10, 0, 0, 9].into(), to.into(), protocol, u16::try_from(bytes.len()).unwrap());
                    if bytes.len() % 3 == 0 {
                        ip.fragment = u16::from_be_bytes([bytes.first().copied().unwrap_or(0) & 0x3f, 1]).into();
                        ip.seal();
                    }
                    [&mac[..], &[8, 0], ip.as_bytes(), &bytes].concat()
                }
            };
            if !inside.is_empty() {
                node.put(now, PORT, &inside);
            }
            node.take(now, PORT);
        }
        for second in 0..200 {
            node.take(now + Duration::from_secs(second), PORT);
        }
        node.assert_nothing_leaked();
    }

    #[test]
    fn packets_of_ipv6_of_any_sort(packets in proptest::collection::vec(packet6(), 1..40)) {
        let mut node = Node::new(1).with_interface(0, 1, None, 1500, "fd00::1/64");
        node.host.stack.udp_bind(None, 53).unwrap();
        node.host.stack.listen(None, 80, 4).unwrap();
        let mut now = bywash_stack::Timestamp::from_nanos(1_000_000_000);
        node.host.control.autoconfigure(now, node.interface(1)).unwrap();
        for _ in 0..4 {
            now = now + Duration::from_millis(500);
            node.take(now, PORT);
        }
        for (i, bytes) in packets.iter().enumerate() {
            node.host.control.set_forwarding(i % 7 == 6);
            node.put(now, PORT, bytes);
            node.take(now, PORT);
        }
        prop_assert!(node.host.control.addresses().count() < 30 && node.host.control.routes().count() < 60);
        node.host.control.set_forwarding(false);
        // A router may have set a minute between questions, of which there are three for a neighbour: one for a packet, and then
        // one for who is told that it did not arrive.
        for second in (0..200).chain((200..1000).step_by(20)) {
            node.take(now + Duration::from_secs(second), PORT);
        }
        node.assert_nothing_leaked();
    }
}

/// A frame with an IPv6 header that is right, and rows of headers, pieces and messages that may be anything.
fn packet6() -> impl Strategy<Value = Vec<u8>> {
    let row = prop_oneof![
        (prop::sample::select(vec![0u8, 43, 60]), any::<[u8; 6]>()).prop_map(|(next, rest)| {
            let [a, b, c, d, e, f] = rest;
            vec![next, 0, a, b, c, d, e, f]
        }),
        (any::<u8>(), 0u8..6, any::<bool>(), 0u8..3).prop_map(|(next, offset, more, id)| {
            vec![[6, 17, 58, 44, 60][usize::from(next) % 5], 0, 0, offset << 3 | u8::from(more), 0, 0, 0, id]
        }),
    ];
    let target =
        prop::sample::select(vec!["fd00::1", "fd00::77", "fe80::ff:fe00:1", "ff02::1", "ff02::1:ff00:1"]);
    let source = prop::sample::select(vec!["fd00::2", "fe80::2", "::", "ff02::1", "fd00::1", "2001:db8::9"]);
    let message =
        (128u8..138, any::<[u8; 6]>(), any::<[u8; 16]>(), proptest::collection::vec(any::<u8>(), 0..80));
    (source, target, proptest::collection::vec(row, 0..3), any::<u8>(), message, any::<bool>()).prop_map(
        |(source, target, rows, first, (kind, rest, about, options), near)| {
            let (from, to): (std::net::Ipv6Addr, std::net::Ipv6Addr) =
                (source.parse().unwrap(), target.parse().unwrap());
            let about = if near { to.octets() } else { about };
            let mut icmp =
                [&[kind, 0, 0, 0, rest[0], rest[1], rest[2], rest[3]][..], &about, &options].concat();
            let sum = Sum::pseudo(&from.octets(), &to.octets(), 58, u32::try_from(icmp.len()).unwrap());
            let checksum = sum.bytes(&icmp).checksum();
            icmp[2..4].copy_from_slice(&checksum.to_be_bytes());
            let inside = [rows.concat(), icmp].concat();
            let next = if rows.is_empty() { 58 } else { [0, 43, 44, 60, first][usize::from(first) % 5] };
            let mut ip = Ipv6Header::new(from, to, next, u16::try_from(inside.len()).unwrap());
            ip.hop_limit = if rest[4] > 40 { 255 } else { rest[4] };
            [&[2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 9, 0x86, 0xdd][..], ip.as_bytes(), &inside].concat()
        },
    )
}

/// Peers who leave gaps that they never fill, each within what one connection may hold: together they hold a quarter of all
/// frames, and others go on. What they held is free again at the end, and counts no more.
#[test]
fn gaps_that_nobody_fills_leave_memory_for_others() {
    let mut t = Trace::new();
    t.host.stack.listen(None, 80, 4).unwrap();
    let (all, most) = (t.pool.free(), t.pool.arena().frames() / 4);
    for first_port in [6000, 7000] {
        for port in first_port..first_port + 10 {
            t.ports.1 = port;
            t.peer("S 0:0(0) win 30000 <mss 1000,sackOK>");
            t.output();
            t.peer(". 1:1(0) ack 1 win 30000");
            for gap in 1..100 {
                t.peer(&format!(". {}:{}(1) ack 1 win 30000", 2 * gap, 2 * gap + 1));
                t.output();
            }
        }
        assert_eq!(all - t.pool.free(), most, "as much as may be, and no more");
        t.ports.1 = first_port + 10;
        t.peer("S 0:0(0) win 30000 <mss 1000,sackOK>");
        t.output();
        t.peer(". 1:1(0) ack 1 win 30000");
        t.peer("P. 1:501(500) ack 1 win 30000");
        let answered = t.output();
        assert!(answered[0].starts_with(". 1:1(0) ack 501"), "{answered:?}");
        t.host.stack.abort_some(t.now, 0, usize::MAX, &mut t.pool);
        t.output();
        t.events();
        assert_eq!(t.pool.free(), all);
    }
}

/// A connection that the peer opens from a port.
fn opened(t: &mut Trace, port: u16) -> ConnectionId {
    t.ports.1 = port;
    t.peer("S 0:0(0) win 30000 <mss 1000>");
    t.output();
    t.peer(". 1:1(0) ack 1 win 30000");
    let accepted = t.events().into_iter().find_map(|event| match event {
        Event::Accepted { connection, .. } => Some(connection),
        _ => None,
    });
    accepted.expect("it is accepted")
}

/// A thousand peers who never acknowledge: what waits for them is half of all frames and one of each, and who comes last can
/// receive, and sends as its peer acknowledges. What they held is free again at the end, and counts no more.
#[test]
fn peers_that_never_acknowledge_leave_memory_for_others() {
    let mut t = Trace::with_frames(4000);
    t.host.stack.listen(None, 80, 4).unwrap();
    let (all, most) = (t.pool.free(), t.pool.arena().frames() / 2);
    for _ in 0..2 {
        for port in 6000..7000 {
            let id = opened(&mut t, port);
            let sent = t.host.stack.send(t.now, id, &[7; 100_000], &mut t.pool).unwrap();
            assert!(sent >= FRAME_SIZE, "{port}: {sent}");
            t.output();
        }
        assert_eq!(all - t.pool.free(), most + 1000, "as much as may be, and no more");
        t.pass(Duration::from_secs(3));
        while !t.output().is_empty() {}
        let id = opened(&mut t, 7000);
        t.host.stack.set_nodelay(t.now, id, true, &mut t.pool).unwrap();
        t.peer("P. 1:501(500) ack 1 win 30000");
        t.sends(&[". 1:1(0) ack 501 win 65535"]);
        assert_eq!(t.host.stack.receive_copy(t.now, id, &mut [0; 1000], &mut t.pool), Ok(500));
        t.events();
        let (bytes, mut sent) = ([7; 20_000], 0);
        while sent < bytes.len() {
            let n = t.host.stack.send(t.now, id, &bytes[sent..], &mut t.pool).unwrap();
            assert_eq!(n, FRAME_SIZE.min(bytes.len() - sent), "its own frame, and none else");
            sent += n;
            assert!(!t.output().is_empty());
            t.peer(&format!(". 501:501(0) ack {} win 30000", sent + 1));
            assert_eq!(t.events(), if sent < bytes.len() { vec![Event::Writable(id)] } else { vec![] });
        }
        t.host.stack.abort_some(t.now, 0, usize::MAX, &mut t.pool);
        while !t.output().is_empty() {}
        t.events();
        assert_eq!(t.pool.free() + t.pool.arena().unused(), t.pool.arena().frames());
    }
}

/// Peers who send all that their windows let them to programs that do not read: together they hold three eighths of all frames
/// and one of each, and are told that their windows are shut. Who is read goes on, who opens a connection is answered, and one
/// whose program begins to read goes on at once. What they held is free again at the end, and counts no more.
#[test]
fn what_no_program_reads_leaves_memory_for_others() {
    let mut t = Trace::with_frames(4000);
    t.host.stack.listen(None, 80, 4).unwrap();
    let (all, most) = (t.pool.free(), t.pool.arena().frames() * 3 / 8);
    for _ in 0..2 {
        let mut connections = Vec::new();
        for port in 6000..6100 {
            connections.push(opened(&mut t, port));
            for n in 0..60 {
                let seq = 1 + 1000 * n;
                t.peer(&format!(". {seq}:{}(1000) ack 1 win 30000", seq + 1000));
            }
            t.output();
        }
        assert_eq!(all - t.pool.free(), most + 100, "as much as may be, and no more");
        assert!(t.host.stack.counters().tcp_receive_dropped > 0);
        // The last one has room for its first frame alone.
        let (last, seq) = (connections[99], 1001);
        t.peer(&format!(". {seq}:{}(1000) ack 1 win 30000", seq + 1000));
        t.sends(&[". 1:1(0) ack 1001 win 0"]);
        // It asks, and is told what it could be told; what it sends shows that there is nothing yet.
        t.pass(Duration::from_millis(300));
        t.output();
        t.peer(". 1000:1000(0) ack 1 win 30000");
        let told = t.output();
        assert!(told[0].starts_with(". 1:1(0) ack 1001 win 6"), "{told:?}");
        t.peer(&format!(". {seq}:{}(1000) ack 1 win 30000", seq + 1000));
        t.sends(&[". 1:1(0) ack 1001 win 0"]);
        t.events();
        // Another one is answered, and read.
        let id = opened(&mut t, 7000);
        for n in 0..20 {
            let seq = 1 + 1000 * n;
            t.peer(&format!("P. {seq}:{}(1000) ack 1 win 30000", seq + 1000));
            assert_eq!(t.host.stack.receive_copy(t.now, id, &mut [0; 1000], &mut t.pool), Ok(1000));
            assert!(t.output().iter().all(|told| told.ends_with("win 65535")));
        }
        // So is what comes joined: it may have a frame.
        for n in 0..4 {
            let seq = 20_001 + 2048 * n;
            let together: Vec<_> = (0..3)
                .map(|i| (seq + 1000 * i, seq + 1000 * (i + 1)))
                .map(|(from, to)| {
                    format!("{} {from}:{to}(1000) ack 1 win 30000", if to - seq < 3000 { "." } else { "P." })
                })
                .collect();
            t.peer_together(&together);
            assert_eq!(t.host.stack.receive_copy(t.now, id, &mut [0; 4000], &mut t.pool), Ok(2048));
            assert_eq!(t.output()[0], format!(". 1:1(0) ack {} win 65535", seq + 2048));
        }
        // The program reads, and the peer hears of it.
        t.ports.1 = 6099;
        assert_eq!(t.host.stack.receive_copy(t.now, last, &mut [0; 4000], &mut t.pool), Ok(1000));
        let told = t.output();
        assert!(told.len() == 1 && told[0].ends_with("ack 1001 win 65535"), "{told:?}");
        // Others make room, and who waits for some hears of it without a question.
        for reader in &connections[..20] {
            while t.host.stack.receive_copy(t.now, *reader, &mut [0; 4000], &mut t.pool).unwrap() > 0 {}
        }
        while !t.output().is_empty() {}
        t.pass(Duration::from_millis(110));
        let told = t.output();
        assert!(told.iter().any(|told| told.ends_with("ack 1001 win 65535")), "{told:?}");
        t.host.stack.abort_some(t.now, 0, usize::MAX, &mut t.pool);
        while !t.output().is_empty() {}
        t.events();
        assert_eq!(t.pool.free(), all);
    }
}
