//! TCP between two hosts over a simulated network: streams arrive intact, connections end, nothing leaks.

use std::time::Duration;

use crate::wire::{Node, PORT, Pair, address};
use bywash_frame::Packet;
use bywash_stack::{CloseReason, ConnectionId, Event, State, TcpError, Timestamp};

const SERVER: u16 = 80;

fn payload(length: usize, seed: u32) -> Vec<u8> {
    let mut x = seed.wrapping_mul(2_654_435_761) | 1;
    (0..length)
        .map(|_| {
            x ^= x << 13;
            x ^= x >> 17;
            x ^= x << 5;
            x.to_le_bytes()[1]
        })
        .collect()
}

/// Opens a connection from a to b.
fn open(pair: &mut Pair) -> (ConnectionId, ConnectionId) {
    let listener = pair.b.host.stack.listen(None, SERVER, 16).unwrap();
    let remote = (address("10.0.0.2"), SERVER);
    let client = pair.a.host.stack.connect(pair.now, (None, 0), remote, &mut pair.a.pool).unwrap();
    pair.settle();
    assert_eq!(pair.a.host.stack.events().collect::<Vec<_>>(), [Event::Connected(client)]);
    let events: Vec<_> = pair.b.host.stack.events().collect();
    let [Event::Accepted { listener: of, connection }] = events[..] else { panic!("{events:?}") };
    assert_eq!(of, listener);
    (client, connection)
}

fn read(node: &mut Node, now: Timestamp, id: ConnectionId) -> Vec<u8> {
    let mut bytes = vec![0; 1 << 20];
    let n = node.host.stack.receive_copy(now, id, &mut bytes, &mut node.pool).unwrap();
    bytes.truncate(n);
    bytes
}

#[test]
fn a_request_an_answer_and_the_end() {
    let mut pair = Pair::new(1500);
    let (client, server) = open(&mut pair);
    // Until both know that they answer each other, acknowledgments go out at once.
    for _ in 0..2 {
        pair.a.host.stack.send(pair.now, client, b"1", &mut pair.a.pool).unwrap();
        pair.settle();
        read(&mut pair.b, pair.now, server);
        pair.b.host.stack.send(pair.now, server, b"2", &mut pair.b.pool).unwrap();
        pair.settle();
        read(&mut pair.a, pair.now, client);
    }
    pair.b.host.stack.events().for_each(drop);
    pair.trace.clear();
    pair.a.host.stack.send(pair.now, client, b"request", &mut pair.a.pool).unwrap();
    pair.settle();
    assert_eq!(pair.b.host.stack.events().collect::<Vec<_>>(), [Event::Readable(server)]);
    assert_eq!(read(&mut pair.b, pair.now, server), b"request");
    pair.b.host.stack.send(pair.now, server, b"answer", &mut pair.b.pool).unwrap();
    pair.settle();
    assert_eq!(pair.trace.len(), 2, "the answer acknowledges the request");
    assert_eq!(read(&mut pair.a, pair.now, client), b"answer");
    pair.a.host.stack.close(pair.now, client, &mut pair.a.pool).unwrap();
    pair.settle();
    assert!(pair.b.host.stack.events().any(|event| event == Event::PeerClosed(server)));
    assert_eq!(pair.b.host.stack.tcp_info(pair.now, server).unwrap().state, State::CloseWait);
    pair.b.host.stack.close(pair.now, server, &mut pair.b.pool).unwrap();
    pair.settle();
    assert_eq!(pair.a.host.stack.connections(), (0, 0, 1), "who closed first waits");
    assert_eq!(pair.b.host.stack.connections(), (0, 0, 0));
    assert_eq!(pair.a.host.stack.tcp_info(pair.now, client), Err(TcpError::Closed));
    pair.pass(Duration::from_secs(61));
    assert_eq!(pair.a.host.stack.connections(), (0, 0, 0));
    pair.a.assert_nothing_leaked();
    pair.b.assert_nothing_leaked();
}

#[test]
fn nobody_listens() {
    let mut pair = Pair::new(1500);
    let remote = (address("10.0.0.2"), SERVER);
    let client = pair.a.host.stack.connect(pair.now, (None, 0), remote, &mut pair.a.pool).unwrap();
    pair.settle();
    assert_eq!(pair.a.host.stack.events().collect::<Vec<_>>(), [Event::Closed(client, CloseReason::Refused)]);
    pair.a.host.stack.close(pair.now, client, &mut pair.a.pool).unwrap();
    assert_eq!(pair.a.host.stack.connections(), (0, 0, 0));
}

#[test]
fn a_long_stream_arrives_over_a_perfect_wire() {
    let mut pair = Pair::new(1500);
    let (client, server) = open(&mut pair);
    let sent = payload(3_000_000, 1);
    let (mut at, mut got) = (0, Vec::new());
    for _ in 0..20_000 {
        at += pair.a.host.stack.send(pair.now, client, &sent[at..], &mut pair.a.pool).unwrap();
        pair.settle();
        got.extend(read(&mut pair.b, pair.now, server));
        if got.len() == sent.len() {
            break;
        }
        pair.pass(Duration::from_micros(100));
    }
    assert_eq!(got.len(), sent.len());
    assert!(got == sent);
    assert_eq!(pair.a.host.stack.tcp_info(pair.now, client).unwrap().total_retrans, 0);
}

#[test]
fn what_is_written_in_place_arrives() {
    let mut pair = Pair::new(1500);
    let (client, server) = open(&mut pair);
    let sent = payload(1_000_000, 2);
    let (mut at, mut got, mut writable) = (0, Vec::new(), 0);
    for round in 0..20_000 {
        // A few bytes now and then, or as much as there is room for.
        let wanted = if round % 3 == 0 { 1 + round % 1000 } else { sent.len() };
        let end = sent.len().min(at + wanted);
        let (stack, pool) = (&mut pair.a.host.stack, &mut pair.a.pool);
        let before = at;
        let write = |place: &mut [u8]| {
            let n = place.len().min(end - at);
            place[..n].copy_from_slice(&sent[at..at + n]);
            at += n;
            n
        };
        let queued = stack.send_in_place(pair.now, client, write, pool).unwrap();
        assert_eq!(queued, at - before);
        pair.settle();
        got.extend(read(&mut pair.b, pair.now, server));
        writable += pair.a.host.stack.events().filter(|event| *event == Event::Writable(client)).count();
        if got.len() == sent.len() {
            break;
        }
        pair.pass(Duration::from_micros(100));
    }
    assert!(got == sent && writable > 0, "{} of {}, {writable} times", got.len(), sent.len());
    let (stack, pool) = (&mut pair.a.host.stack, &mut pair.a.pool);
    assert_eq!(stack.send_in_place(pair.now, client, |_| 0, pool), Ok(0), "nothing to send is no error");
    stack.shutdown(pair.now, client, pool).unwrap();
    let refused = stack.send_in_place(pair.now, client, |_| unreachable!("it is shut"), pool);
    assert_eq!(refused, Err(TcpError::Shutdown));
}

/// As `xdp:` leaves tags in the bytes, so are packets of the stack's own.
#[test]
fn segments_with_a_tag_are_put_together_as_others_are() {
    let received = |vlan| {
        let node = |number: u8| {
            Node::new(number).with_interface(0, number, vlan, 1500, &format!("10.0.0.{number}/24"))
        };
        let mut pair =
            Pair { now: Timestamp::from_nanos(1_000_000_000), a: node(1), b: node(2), trace: [].into() };
        let (client, server) = open(&mut pair);
        let sent = payload(10_000, 3);
        pair.a.host.stack.send(pair.now, client, &sent, &mut pair.a.pool).unwrap();
        let packets = pair.a.take(pair.now, PORT);
        for bytes in &packets {
            let mut packet = Packet::new(pair.b.pool.take().unwrap());
            packet.extend_from_slice(bytes).unwrap();
            pair.b.batch.push(packet);
        }
        let before = pair.b.host.stack.counters().tcp_received;
        pair.b.host.receive(pair.now, PORT, &mut pair.b.batch, &mut pair.b.pool);
        assert!(read(&mut pair.b, pair.now, server) == sent);
        (packets.len(), pair.b.host.stack.counters().tcp_received - before)
    };
    // The half of a window is pushed.
    assert_eq!(received(None), (7, 2));
    assert_eq!(received(Some(7)), (7, 2));
}

/// However short the way of a connection's packets is: an address that is ours no more gets none.
#[test]
fn a_connection_hears_nothing_at_an_address_that_was_taken_away() {
    let mut pair = Pair::new(1500);
    let (client, _) = open(&mut pair);
    pair.a.host.stack.send(pair.now, client, b"1", &mut pair.a.pool).unwrap();
    pair.settle();
    assert_eq!(pair.b.host.stack.events().count(), 1, "there is something to read");
    assert!(pair.b.host.control.remove_address(address("10.0.0.2")));
    pair.settle();
    let before = pair.b.host.stack.counters();
    pair.a.host.stack.send(pair.now, client, b"2", &mut pair.a.pool).unwrap();
    pair.settle();
    let after = pair.b.host.stack.counters();
    assert_eq!(after.tcp_received, before.tcp_received);
    assert!(after.not_for_us > before.not_for_us);
}
