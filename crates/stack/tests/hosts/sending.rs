//! The sending half as it shows on the wire: what leaves together, in whose turn, and what waits for memory or a port.

use std::time::Duration;

use bywash_frame::{Batch, Packet};
use bywash_stack::{ConnectionId, Event, Interface, Limits, Medium, Offloads, PortId, Route};

use crate::wire::trace::Trace;
use crate::wire::{PORT, address};

/// A connection the peer has opened.
fn accepted(options: &str, clock: &str) -> (Trace, ConnectionId) {
    let mut t = Trace::new();
    let id = t.accept(60_000, options, clock);
    (t, id)
}

/// Segments and pushes, as `10P` for nine without and one with.
fn shape(lines: &[String]) -> String {
    let mut shape = String::new();
    let mut n = 0;
    for line in lines {
        n += 1;
        if line.starts_with("P.") {
            shape += &format!("{n}P ");
            n = 0;
        }
    }
    if n > 0 { format!("{shape}{n}") } else { shape.trim_end().to_owned() }
}

#[test]
fn what_leaves_together_is_pushed_and_a_single_segment_of_more_is_not() {
    let (mut t, id) = accepted("mss 1000,sackOK", "");
    t.host.stack.set_nodelay(t.now, id, true, &mut t.pool).unwrap();
    t.send(id, 15_500);
    // Where the round trip is 100 ms, a super-segment would have two.
    assert_eq!(shape(&t.output()), "2P 2P 2P 2P 2P");
    // Limited transmit: one by one.
    t.pass(Duration::from_millis(20));
    t.peer(". 1:1(0) ack 1 win 60000 <sack 1001:2001>");
    t.sends(&[". 10001:11001(1000) ack 1 win 65535"]);
    // The end of all that there is.
    t.pass(Duration::from_millis(1));
    t.peer(". 1:1(0) ack 11001 win 60000");
    let lines = t.output();
    assert_eq!((shape(&lines), lines.len()), ("4P 1P".into(), 5), "{lines:?}");
    assert!(lines[4].starts_with("P. 15001:15501(500)"), "{lines:?}");
}

#[test]
fn a_fin_goes_with_the_last_bytes_and_those_before_it_together() {
    for (bytes, shape_before, last) in [
        (3000, "2P", "FP. 2001:3001(1000)"),
        (2500, "2P", "FP. 2001:2501(500)"),
        (1000, "", "FP. 1:1001(1000)"),
    ] {
        let (mut t, id) = accepted("mss 1000,sackOK", "");
        t.send(id, bytes);
        t.host.stack.shutdown(t.now, id, &mut t.pool).unwrap();
        let mut lines = t.output();
        let found = lines.pop().unwrap();
        assert_eq!(shape(&lines), shape_before, "{lines:?}");
        assert_eq!(found, format!("{last} ack 1 win 65535"));
        // The FIN counts one.
        t.peer(&format!(". 1:1(0) ack {} win 60000", bytes + 2));
        t.sends(&[]);
    }
}

#[test]
fn a_probe_of_new_data_is_pushed_only_if_nothing_is_behind_it() {
    for (bytes, probe) in [(12_000, ". 10001:11001(1000)"), (10_500, "P. 10001:10501(500)")] {
        let (mut t, id) = accepted("mss 1000,sackOK", "");
        t.send(id, bytes);
        assert_eq!(t.output().len(), 10);
        // No round trip but the handshake's, of 20 ms.
        t.after(Duration::from_millis(40), &[&format!("{probe} ack 1 win 65535")]);
    }
}

#[test]
fn a_window_that_is_used_by_half_does_not_grow_and_by_more_it_does_for_the_whole_round_trip() {
    // The last acknowledgment is of the round trip, too: nothing but ten segments were out in it.
    for (bytes, grown) in [(5000, 10_000), (8000, 16_000), (10_000, 20_000)] {
        let (mut t, id) = accepted("mss 1000,sackOK", "");
        t.send(id, bytes);
        t.output();
        // One after the other, when less and less is out.
        for ack in (2..=11).map(|n| n * 1000 + 1).filter(|ack| *ack <= bytes + 1) {
            t.peer(&format!(". 1:1(0) ack {ack} win 60000"));
            t.sends(&[]);
        }
        let window = t.host.stack.tcp_info(t.now, id).unwrap().snd_cwnd;
        assert_eq!(window, u32::try_from(grown).unwrap(), "{bytes} of 10000 bytes were used");
    }
}

#[test]
fn after_a_pause_it_counts_what_is_used_since_wherever_the_numbers_are() {
    // First numbers go round by the clock (RFC 6528): half of them all apart.
    for earlier in [Duration::ZERO, Duration::from_micros(4) * (1 << 31)] {
        let mut t = Trace::new();
        t.pass(earlier);
        let id = t.accept(60_000, "mss 1000,sackOK", "");
        t.send(id, 10_000);
        t.output();
        t.peer(". 1:1(0) ack 10001 win 60000");
        t.pass(Duration::from_secs(5));
        t.send(id, 5000);
        t.output();
        for ack in (11..=15).map(|n| n * 1000 + 1) {
            t.peer(&format!(". 1:1(0) ack {ack} win 60000"));
            t.sends(&[]);
        }
        assert_eq!(t.host.stack.tcp_info(t.now, id).unwrap().snd_cwnd, 10_000);
    }
}

#[test]
fn a_reset_tells_our_clock_and_a_clock_comes_only_with_an_acknowledgment_of_ours() {
    let (mut t, id) = accepted("mss 1012,sackOK,TS 100", "<TS 200>");
    // It acknowledges what was never sent, and has a clock far ahead (RFC 9293, 3.10.7.4: answered, and dropped).
    t.peer("F. 1:1(0) ack 9999 win 60000 <TS 200000>");
    t.sends(&[". 1:1(0) ack 1 win 65535 <TS ecr 200>"]);
    t.peer("P. 1:11(10) ack 1 win 60000 <TS 201>");
    t.sends(&[". 1:1(0) ack 11 win 65535 <TS ecr 201>"]);
    t.host.stack.abort(t.now, id, &mut t.pool).unwrap();
    t.sends(&["R. 1:1(0) ack 11 <TS ecr 201>"]);
}

#[test]
fn what_finds_no_memory_goes_out_when_there_is_some() {
    let (mut t, id) = accepted("mss 1000,sackOK", "");
    t.send(id, 5000);
    let frames: Vec<_> = std::iter::from_fn(|| t.pool.take()).collect();
    t.sends(&[]);
    assert!(t.host.stack.counters().no_memory > 0);
    frames.into_iter().for_each(|frame| t.pool.give(frame));
    let lines = t.output();
    assert_eq!((shape(&lines), lines.len()), ("2P 2P 1P".into(), 5), "{lines:?}");
}

#[test]
fn who_found_no_memory_for_a_first_byte_is_told_when_there_is_some() {
    let (mut t, id) = accepted("mss 1000,sackOK", "");
    let frames: Vec<_> = std::iter::from_fn(|| t.pool.take()).collect();
    assert_eq!(t.host.stack.send(t.now, id, &[1; 10], &mut t.pool), Ok(0));
    t.sends(&[]);
    assert_eq!(t.events(), []);
    frames.into_iter().for_each(|frame| t.pool.give(frame));
    t.sends(&[]);
    assert_eq!(t.events(), [Event::Writable(id)]);
    t.sends(&[]);
    assert_eq!((t.events(), t.host.next_deadline().is_some_and(|at| at <= t.now)), (vec![], false));
}

#[test]
fn an_acknowledgment_that_found_no_memory_follows() {
    let (mut t, _) = accepted("mss 1000,sackOK", "");
    t.peer("P. 1:101(100) ack 1 win 1000");
    let frames: Vec<_> = std::iter::from_fn(|| t.pool.take()).collect();
    t.sends(&[]);
    frames.into_iter().for_each(|frame| t.pool.give(frame));
    t.sends(&[". 1:1(0) ack 101 win 65535"]);
}

#[test]
fn connections_take_turns() {
    let mut t = Trace::new();
    let limits = Limits { send_initial: 200_000, ..Limits::default() };
    t.host.stack.set_limits(limits);
    t.host.stack.listen(None, 80, 4).unwrap();
    let mut connections = Vec::new();
    for port in [5000, 5001] {
        t.ports.1 = port;
        t.peer("S 0:0(0) win 65535 <mss 536,sackOK>");
        t.output();
        t.peer(". 1:1(0) ack 1 win 65535");
        let events = t.events();
        let [Event::Accepted { connection, .. }] = events[..] else { panic!("{events:?}") };
        // The window grows to more than a turn.
        let (mut sent, mut acked) = (0, 0);
        while t.host.stack.tcp_info(t.now, connection).unwrap().snd_cwnd < 100 * 536 {
            t.send(connection, 80 * 536);
            sent += 80 * 536;
            while acked < sent {
                let n = t.output().len() * 536;
                acked += n;
                assert!(n > 0, "it stands still");
                t.peer(&format!(". 1:1(0) ack {} win 65535", acked + 1));
            }
        }
        connections.push(connection);
    }
    let mut order = Vec::new();
    for id in &connections {
        t.send(*id, 90 * 536);
    }
    for _ in 0..6 {
        order.extend(t.peers_of_output());
    }
    assert_eq!(order.len(), 180, "all of both");
    let first = order[0];
    let turn = order.iter().take_while(|port| **port == first).count();
    assert!((32..=64).contains(&turn), "{turn} segments in a row, then the other");
    assert_eq!(order[turn..].iter().take_while(|port| **port != first).count(), turn);
}

#[test]
fn who_waits_for_a_full_port_is_given_up_in_time() {
    let limits = Limits { user_timeout: Duration::from_secs(10), ..Limits::default() };
    let mut t = Trace::new();
    t.host.stack.set_limits(limits);
    let start = t.now;
    for from in 1000..1200 {
        t.host.stack.connect(t.now, (None, from), (address("10.0.0.2"), 80), &mut t.pool).unwrap();
    }
    let mut ended = 0;
    takes_nothing(&mut t, PORT);
    while let Some(next) = t.host.next_deadline().filter(|next| *next < start + Duration::from_secs(30)) {
        assert!(next > t.now || ended == 0, "it is asked for again and again");
        t.now = next.max(t.now);
        t.host.advance(t.now, &mut t.pool);
        ended += t.events().len();
    }
    assert_eq!((ended, t.now.since(start).as_secs()), (200, 10));
}

#[test]
fn who_waits_for_a_full_port_and_is_broken_off_leaves_no_memory_behind() {
    let alone = |t: &mut Trace, id| t.host.stack.abort(t.now, id, &mut t.pool).unwrap();
    let with_all = |t: &mut Trace, _| {
        assert_eq!(t.host.stack.abort_some(t.now, 0, usize::MAX, &mut t.pool), None);
    };
    for break_off in [&alone as &dyn Fn(&mut Trace, ConnectionId), &with_all] {
        let (mut t, id) = accepted("mss 1000", "");
        t.send(id, 100);
        t.output();
        t.peer(". 1:1(0) ack 101 win 30000");
        for from in 1000..1200 {
            t.host.stack.connect(t.now, (None, from), (address("10.0.0.2"), 80), &mut t.pool).unwrap();
        }
        takes_nothing(&mut t, PORT);
        let free = t.pool.free();
        t.send(id, 100);
        t.host.advance(t.now, &mut t.pool);
        for seq in [1, 1001, 2001] {
            t.peer(&format!(". {seq}:{}(1000) ack 1 win 30000", seq + 1000));
        }
        t.host.advance(t.now, &mut t.pool);
        assert_eq!(free - t.pool.free(), 4, "what is to be sent, and what is to be read");
        break_off(&mut t, id);
        t.host.advance(t.now, &mut t.pool);
        assert_eq!(free - t.pool.free(), 1, "the reset");
    }
}

/// A port that has no room is asked to send.
fn takes_nothing(t: &mut Trace, port: PortId) {
    let mut batch = Batch::with_limit(1);
    batch.push(Packet::new(t.pool.take().unwrap()));
    t.host.transmit(port, &mut batch);
    assert_eq!(batch.len(), 1);
    t.pool.give_batch(&mut batch);
}

#[test]
fn a_port_that_takes_a_few_at_a_time_takes_them_from_all_and_is_in_nobodys_way() {
    let mut t = Trace::new();
    let mut waiting = Batch::new();
    let mut few = |t: &mut Trace| -> Vec<u16> {
        t.host.advance(t.now, &mut t.pool);
        t.host.transmit(PORT, &mut waiting);
        let to = |packet: &Packet| u16::from_be_bytes([packet.head()[22], packet.head()[23]]);
        let ports = waiting.iter().take(8).map(to).collect();
        waiting.drain_front(8).for_each(|packet| t.pool.give_packet(packet));
        ports
    };
    let other = PortId(1);
    let interface = Interface {
        name: "other".into(),
        port: other,
        medium: Medium::Ip,
        mtu: 1500,
        offloads: Offloads::default(),
    };
    let interface = t.host.control.add_interface(interface).unwrap();
    t.host.control.add_address(t.now, interface, "10.0.1.1/24".parse().unwrap()).unwrap();
    t.host.stack.listen(None, 80, 4).unwrap();
    let [much, little] = [5000, 5001].map(|port| {
        t.ports.1 = port;
        t.peer("S 0:0(0) win 60000 <mss 100,sackOK>");
        t.output();
        t.peer(". 1:1(0) ack 1 win 60000");
        let [Event::Accepted { connection, .. }] = t.events()[..] else { panic!("no connection") };
        connection
    });
    // More fits the window than the queue, and all that the port takes below.
    t.ports.1 = 5000;
    let mut acked = 1;
    while t.host.stack.tcp_info(t.now, much).unwrap().snd_cwnd < 50_000 {
        t.send(much, 40_000);
        loop {
            while !t.output().is_empty() {}
            let out = t.host.stack.tcp_info(t.now, much).unwrap().unacked_bytes;
            if out == 0 {
                break;
            }
            acked += out;
            t.peer(&format!(". 1:1(0) ack {acked} win 60000"));
        }
    }
    t.send(much, 50_000);
    assert_eq!(few(&mut t), [5000; 8]);
    assert_eq!(few(&mut t), [5000; 8]);
    t.send(little, 100);
    t.host.stack.connect(t.now, (None, 0), (address("10.0.1.9"), 80), &mut t.pool).unwrap();
    few(&mut t);
    assert_eq!(takes(&mut t, other).len(), 1, "another port has nothing to do with it");
    let turns = (0..40).map(|_| few(&mut t)).position(|ports| ports.contains(&5001));
    assert!(turns.is_some_and(|turns| turns < 30), "behind what waited already: {turns:?}");
    t.pool.give_batch(&mut waiting);
}

/// What is sent on a port, by its source port.
fn takes(t: &mut Trace, port: PortId) -> Vec<u16> {
    let mut batch = Batch::new();
    t.host.transmit(port, &mut batch);
    let ports =
        batch.iter().map(|packet| u16::from_be_bytes([packet.head()[20], packet.head()[21]])).collect();
    t.pool.give_batch(&mut batch);
    ports
}

#[test]
fn who_waits_for_a_full_port_is_in_nobodys_way_and_follows_the_route() {
    let mut t = Trace::new();
    let slow = PortId(1);
    let interface = Interface {
        name: "slow".into(),
        port: slow,
        medium: Medium::Ip,
        mtu: 1500,
        offloads: Offloads::default(),
    };
    let interface = t.host.control.add_interface(interface).unwrap();
    t.host.control.add_address(t.now, interface, "10.0.1.1/24".parse().unwrap()).unwrap();
    t.host.advance(t.now, &mut t.pool);
    let (stuck, free) = (address("10.0.1.9"), address("10.0.0.2"));
    let connect = |t: &mut Trace, to, from| {
        t.host.stack.connect(t.now, (None, from), (to, 80), &mut t.pool).unwrap();
    };
    (1000..1200).for_each(|from| connect(&mut t, stuck, from));
    connect(&mut t, free, 2000);
    t.host.advance(t.now, &mut t.pool);
    assert_eq!(takes(&mut t, PORT), [2000]);
    takes_nothing(&mut t, slow);
    t.host.advance(t.now, &mut t.pool);
    // All SYNs are due again: 200 wait for the slow port as it is.
    t.pass(Duration::from_millis(1500));
    t.host.advance(t.now, &mut t.pool);
    assert_eq!(takes(&mut t, PORT), [2000]);
    let waits = |t: &Trace| t.host.stack.next_deadline().is_none_or(|at| at > t.now);
    assert!(waits(&t), "there is nothing to do before the port takes something");

    // As many go on as there is room for when it does,
    let first = [takes(&mut t, slow), takes(&mut t, slow)].concat();
    assert_eq!(first, (1000..1128).collect::<Vec<_>>());
    assert!(!waits(&t));
    t.host.advance(t.now, &mut t.pool);
    assert!(waits(&t));
    // the others by another port, if the route leads there then.
    takes_nothing(&mut t, slow);
    let prefix = "10.0.1.9/32".parse().unwrap();
    let interfaces = t.host.control.interfaces();
    let interface = interfaces.filter(|(_, of)| of.port == PORT).map(|(id, _)| id).next().unwrap();
    t.host
        .control
        .add_route(Route { prefix, gateway: Some(free), interface, metric: 0, source: None })
        .unwrap();
    let mut again: Vec<u16> = Vec::new();
    for port in [PORT, PORT, PORT, PORT, slow, slow] {
        t.host.advance(t.now, &mut t.pool);
        let there = takes(&mut t, port);
        again.extend(there);
    }
    let slow = again.split_off(200 - 56);
    assert_eq!(slow[..72], (1128..1200).collect::<Vec<_>>());
    again.extend(&slow[72..]);
    again.sort_unstable();
    assert_eq!(again, (1000..1200).collect::<Vec<_>>());
}

#[test]
fn a_super_segment_has_half_of_the_window_at_most() {
    // Where it takes no time, all of what may be; far away what a millisecond takes, or as much as is asked for.
    for (time, least, expected) in
        [(0, 2, "5P 5P"), (100, 2, "2P 2P 2P 2P 2P"), (100, 4, "4P 4P 2P"), (100, 90, "5P 5P")]
    {
        let mut t = Trace::new();
        t.host.stack.set_limits(Limits { super_segment_min: least, ..Limits::default() });
        t.host.stack.listen(None, 80, 4).unwrap();
        t.peer("S 0:0(0) win 60000 <mss 1000>");
        t.output();
        t.pass(Duration::from_millis(time));
        t.peer(". 1:1(0) ack 1 win 60000");
        let events = t.events();
        let [Event::Accepted { connection, .. }] = events[..] else { panic!("{events:?}") };
        t.send(connection, 20_000);
        assert_eq!(shape(&t.output()), expected, "{time} ms, {least} at least");
    }
}

#[test]
fn the_end_of_a_write_waits_for_small_segments_alone() {
    let (mut t, id) = accepted("mss 1000", "");
    t.send(id, 1500);
    t.sends(&[". 1:1001(1000) ack 1 win 65535", "P. 1001:1501(500) ack 1 win 65535"]);
    // Now one is out.
    t.send(id, 1300);
    t.sends(&[". 1501:2501(1000) ack 1 win 65535"]);
    t.peer(". 1:1(0) ack 1001 win 60000");
    t.sends(&[]);
    t.peer(". 1:1(0) ack 1501 win 60000");
    t.sends(&["P. 2501:2801(300) ack 1 win 65535"]);
    // Also one that went by itself.
    t.peer(". 1:1(0) ack 2801 win 60000");
    t.send(id, 10);
    t.sends(&["P. 2801:2811(10) ack 1 win 65535"]);
    t.send(id, 10);
    t.sends(&[]);
    t.peer(". 1:1(0) ack 2811 win 60000");
    t.sends(&["P. 2811:2821(10) ack 1 win 65535"]);
}

#[test]
fn a_part_waits_for_more_or_for_the_peer() {
    let (mut t, id) = accepted("mss 1000", "");
    t.host.stack.set_nodelay(t.now, id, true, &mut t.pool).unwrap();
    let part = |t: &mut Trace, n: usize| {
        assert_eq!(t.host.stack.send_part(t.now, id, &vec![7; n], &mut t.pool), Ok(n));
    };
    // The end of a message has PSH, its parts have not.
    part(&mut t, 100);
    t.sends(&[]);
    t.send(id, 100);
    t.sends(&["P. 1:201(200) ack 1 win 65535"]);
    t.peer(". 1:1(0) ack 201 win 60000");
    part(&mut t, 1100);
    t.sends(&[". 201:1201(1000) ack 1 win 65535"]);
    // What is outside of the window may be anybody's; whatever else comes of the peer lets it go.
    t.peer(". 900000:900000(0) ack 201 win 60001");
    t.sends(&[". 1201:1201(0) ack 1 win 65535"]);
    t.peer(". 1:1(0) ack 201 win 60001");
    t.sends(&[". 1201:1301(100) ack 1 win 65535"]);
    t.peer(". 1:1(0) ack 1301 win 60000");
    part(&mut t, 100);
    t.host.stack.set_nodelay(t.now, id, true, &mut t.pool).unwrap();
    t.sends(&[". 1301:1401(100) ack 1 win 65535"]);
    t.peer(". 1:1(0) ack 1401 win 60000");
    // Nobody comes.
    part(&mut t, 100);
    let rto = t.host.stack.tcp_info(t.now, id).unwrap().rto;
    t.after(rto, &["P. 1401:1501(100) ack 1 win 65535"]);
}

fn record(t: &mut Trace, id: ConnectionId, n: usize) {
    assert_eq!(t.host.stack.send_record(t.now, id, &vec![7; n], &mut t.pool), Ok(n));
}

#[test]
fn what_follows_a_record_goes_by_itself() {
    let (mut t, id) = accepted("mss 1000,sackOK", "");
    record(&mut t, id, 100);
    t.sends(&["P. 1:101(100) ack 1 win 65535"]);
    // By Nagle a record waits as long as it is the last thing that there is.
    record(&mut t, id, 1000);
    record(&mut t, id, 300);
    t.sends(&["P. 101:1101(1000) ack 1 win 65535"]);
    t.host.stack.set_cork(t.now, id, true, &mut t.pool).unwrap();
    t.peer(". 1:1(0) ack 1101 win 60000");
    t.sends(&[]);
    t.send(id, 1200);
    t.sends(&["P. 1101:1401(300) ack 1 win 65535", ". 1401:2401(1000) ack 1 win 65535"]);
    t.host.stack.set_cork(t.now, id, false, &mut t.pool).unwrap();
    t.peer(". 1:1(0) ack 2401 win 60000");
    t.sends(&["P. 2401:2601(200) ack 1 win 65535"]);
    t.peer(". 1:1(0) ack 2601 win 60000");
    // What ended a record once does so no more when it is acknowledged.
    t.send(id, 700);
    t.sends(&["P. 2601:3301(700) ack 1 win 65535"]);
}

#[test]
fn a_record_ends_only_when_all_of_it_was_taken() {
    let (mut t, id) = accepted("mss 1000", "");
    let limits =
        Limits { send_initial: 15_000, send_max: 15_000, ..t.host.stack.connection_limits(id).unwrap() };
    t.host.stack.set_connection_limits(t.now, id, limits, &mut t.pool).unwrap();
    assert_eq!(t.host.stack.send_record(t.now, id, &[7; 15_300], &mut t.pool), Ok(15_000));
    assert_eq!(t.output().len(), 10);
    t.peer(". 1:1(0) ack 9301 win 60000");
    assert_eq!(t.host.stack.send_record(t.now, id, &[], &mut t.pool), Ok(0));
    record(&mut t, id, 300);
    t.host.stack.set_nodelay(t.now, id, true, &mut t.pool).unwrap();
    t.send(id, 100);
    let sent = t.output();
    assert_eq!(sent[5..], ["P. 15001:15301(300) ack 1 win 65535", "P. 15301:15401(100) ack 1 win 65535"]);
}

#[test]
fn records_stay_apart_where_a_port_cuts() {
    let mut t = Trace::over(Offloads { segmentation: true, ..Offloads::default() });
    let id = t.accept(60_000, "mss 1000", "");
    // Before it has sent something a connection does not know its port.
    t.send(id, 1000);
    t.sends(&["P. 1:1001(1000) ack 1 win 65535"]);
    t.pass(Duration::from_millis(20));
    t.peer(". 1:1(0) ack 1001 win 60000");
    // Two segments at once, three times.
    t.send(id, 3000);
    t.send(id, 3000);
    assert_eq!(t.peers_of_output().len(), 3);
    t.pass(Duration::from_millis(20));
    t.peer(". 1:1(0) ack 7001 win 60000");
    record(&mut t, id, 3000);
    t.send(id, 3000);
    assert_eq!(t.peers_of_output().len(), 4);
}

#[test]
fn records_stay_apart_in_copies_and_in_probes() {
    let (mut t, id) = accepted("mss 1000,sackOK", "");
    record(&mut t, id, 3000);
    record(&mut t, id, 200);
    t.send(id, 3000);
    assert_eq!(t.output().len(), 7);
    // The path has become narrower: what was sent is cut anew.
    t.unreachable(id, 4, 840, 1);
    let mut copies = t.output();
    for ack in [801, 1601, 2401, 3001, 3201, 4001, 4801, 5601, 6201] {
        t.peer(&format!(". 1:1(0) ack {ack} win 60000"));
        copies.extend(t.output());
    }
    for copy in ["P. 2401:3001(600)", "P. 3001:3201(200)", ". 3201:4001(800)"] {
        assert!(copies.iter().any(|segment| segment.starts_with(copy)), "{copies:?}");
    }
    // A window that is too small for all lets the end of one record out late, and no more with it.
    t.peer(". 1:1(0) ack 6201 win 50");
    record(&mut t, id, 30);
    record(&mut t, id, 30);
    t.sends(&["P. 6201:6231(30) ack 1 win 65535"]);
    t.peer(". 1:1(0) ack 6231 win 20");
    t.send(id, 100);
    let rto = t.host.stack.tcp_info(t.now, id).unwrap().rto;
    t.after(rto, &["P. 6231:6251(20) ack 1 win 65535"]);
    t.peer(". 1:1(0) ack 6251 win 90");
    t.sends(&["P. 6251:6261(10) ack 1 win 65535"]);
}

#[test]
fn what_comes_early_together_is_acknowledged_as_often() {
    // Who has no blocks counts; who has is told of the first three of a gap, and of all that is there.
    for (options, blocks, acks) in [("mss 1000", "", 5), ("mss 1000,sackOK", " <sack 1001:6001>", 3)] {
        let (mut t, _) = accepted(options, "");
        for i in 1..6 {
            t.peer(&format!("P. {}:{}(1000) ack 1 win 60000", 1000 * i + 1, 1000 * i + 1001));
        }
        let again = format!(". 1:1(0) ack 1 win 65535{blocks}");
        t.sends(&vec![again.as_str(); acks]);
        // One more by itself.
        t.peer("P. 6001:7001(1000) ack 1 win 60000");
        t.sends(&[&again.replace("6001", "7001")]);
        // What fills the gap, and what comes with it, is answered once.
        t.peer("P. 8001:9001(1000) ack 1 win 60000");
        t.peer("P. 1:1001(1000) ack 1 win 60000");
        t.peer("P. 7001:8001(1000) ack 1 win 60000");
        t.sends(&[". 1:1(0) ack 9001 win 65535"]);
    }
}

/// The payload of each packet that is sent now, by a port that cuts.
fn payloads(t: &mut Trace) -> Vec<usize> {
    let mut batch = Batch::new();
    t.host.advance(t.now, &mut t.pool);
    t.host.transmit(PORT, &mut batch);
    let payloads = batch.iter().map(|packet| packet.len() - 40).collect();
    t.pool.give_batch(&mut batch);
    payloads
}

#[test]
fn super_segments_fit_ip_s_length_however_many_segments_they_are_to_have() {
    let mut t = Trace::over(Offloads { segmentation: true, ..Offloads::default() });
    t.host.stack.set_limits(Limits { super_segment_min: u8::MAX, ..Limits::default() });
    let id = t.accept(60_000, "mss 1000,wscale 7", "");
    let mut acked = 1;
    loop {
        let window = t.host.stack.tcp_info(t.now, id).unwrap().snd_cwnd;
        if window > 200_000 {
            break;
        }
        t.send(id, window as usize);
        let mut sent = 0;
        while let payloads = payloads(&mut t)
            && !payloads.is_empty()
        {
            assert!(payloads.iter().all(|n| (1..=60_000).contains(n)), "{payloads:?}");
            sent += payloads.iter().sum::<usize>();
        }
        let out = t.host.stack.tcp_info(t.now, id).unwrap().unacked_bytes;
        assert_eq!(out as usize, sent, "what counts as sent is");
        acked += out;
        t.pass(Duration::from_millis(20));
        t.peer(&format!(". 1:1(0) ack {acked} win 60000"));
    }
}

#[test]
fn what_is_to_have_no_segments_has_one() {
    let mut t = Trace::over(Offloads { segmentation: true, ..Offloads::default() });
    t.host.stack.set_limits(Limits { super_segment_min: 0, ..Limits::default() });
    let id = t.accept(60_000, "mss 1000", "");
    t.send(id, 1000);
    t.sends(&["P. 1:1001(1000) ack 1 win 65535"]);
    t.pass(Duration::from_millis(20));
    t.peer(". 1:1(0) ack 1001 win 60000");
    t.send(id, 3000);
    assert_eq!(payloads(&mut t), [1000; 3]);
}

#[test]
fn who_wanted_room_is_told_when_limits_make_some() {
    let (mut t, id) = accepted("mss 1000", "");
    let small = Limits { send_initial: 2000, send_max: 2000, ..Limits::default() };
    t.host.stack.set_connection_limits(t.now, id, small, &mut t.pool).unwrap();
    assert_eq!(t.host.stack.send(t.now, id, &[7; 3000], &mut t.pool), Ok(2000));
    assert_eq!(t.output().len(), 2);
    assert_eq!(t.events(), []);
    let limits = Limits { send_max: 10_000, ..small };
    t.host.stack.set_connection_limits(t.now, id, limits, &mut t.pool).unwrap();
    assert_eq!(t.events(), [Event::Writable(id)]);
}

#[test]
fn who_may_send_nothing_is_not_told_to_try() {
    for limits in [
        Limits { unsent: 0, ..Limits::default() },
        Limits { send_initial: 0, send_max: 0, ..Limits::default() },
    ] {
        let (mut t, id) = accepted("mss 1000", "");
        t.host.stack.set_connection_limits(t.now, id, limits, &mut t.pool).unwrap();
        assert_eq!(t.host.stack.send(t.now, id, &[7; 10], &mut t.pool), Ok(0));
        t.sends(&[]);
        assert_eq!((t.events(), t.host.next_deadline().is_some_and(|at| at <= t.now)), (vec![], false));
        t.host.stack.set_connection_limits(t.now, id, Limits::default(), &mut t.pool).unwrap();
        assert_eq!(t.events(), [Event::Writable(id)]);
    }
}

/// A connection by a port that cuts, which owes the peer that it has slowed down, with nothing out and all of its `n` new bytes to send.
fn slowed(mtu: u16, mss: usize, n: usize) -> Trace {
    let mut t = Trace::over_mtu(mtu, Offloads { segmentation: true, ..Offloads::default() });
    t.host.stack.listen(None, 80, 4).unwrap();
    t.peer(&format!("SEW 0:0(0) win 60000 <mss {mss}>"));
    assert_eq!(t.output().len(), 1);
    t.peer(". 1:1(0) ack 1 win 60000");
    let events = t.events();
    let [Event::Accepted { connection: id, .. }] = events[..] else { panic!("{events:?}") };
    t.send(id, 1000);
    t.sends(&["P. [ect0] 1:1001(1000) ack 1 win 65535"]);
    t.peer(". 1:1(0) ack 1001 win 60000");
    t.send(id, 10_000);
    assert_eq!(payloads(&mut t).iter().sum::<usize>(), 10_000);
    t.peer(".E 1:1(0) ack 5001 win 60000");
    t.peer(". 1:1(0) ack 11001 win 60000");
    t.sends(&[]);
    t.send(id, n);
    t
}

/// The payload of each packet that is sent now, and whether CWR is on it.
fn told(t: &mut Trace) -> Vec<(usize, bool)> {
    const CWR: u8 = 1 << 7;
    let mut batch = Batch::new();
    t.host.advance(t.now, &mut t.pool);
    t.host.transmit(PORT, &mut batch);
    let told = batch.iter().map(|packet| (packet.len() - 40, packet.head()[33] & CWR != 0)).collect();
    t.pool.give_batch(&mut batch);
    told
}

#[test]
fn that_we_have_slowed_down_is_on_a_segment_that_no_port_cuts() {
    let mut t = slowed(1500, 1000, 5000);
    let sent = told(&mut t);
    assert_eq!(sent[0], (1000, true), "{sent:?}");
    assert!(sent[1].0 > 1000 && sent[1..].iter().all(|(_, cwr)| !cwr), "{sent:?}");
    assert_eq!(sent.iter().map(|(payload, _)| payload).sum::<usize>(), 5000);
}

#[test]
fn a_segment_that_found_no_memory_says_later_that_we_have_slowed_down() {
    let mut t = slowed(9000, 3000, 6000);
    // One frame is enough for headers alone.
    let mut frames: Vec<_> = std::iter::from_fn(|| t.pool.take()).collect();
    t.pool.give(frames.pop().unwrap());
    assert_eq!(told(&mut t), []);
    frames.into_iter().for_each(|frame| t.pool.give(frame));
    assert_eq!(told(&mut t), [(3000, true), (3000, false)]);
}

/// RFC 2018, 4: all that do not acknowledge the highest that has come. An acknowledgment of its own may get lost.
#[test]
fn a_gap_is_told_beside_payload_that_leaves_room() {
    let (mut t, id) = accepted("mss 1000,sackOK", "");
    t.peer(". 1001:2001(1000) ack 1 win 30000");
    t.sends(&[". 1:1(0) ack 1 win 65535 <sack 1001:2001>"]);
    t.send(id, 964);
    t.sends(&["P. 1:965(964) ack 1 win 65535 <sack 1001:2001>"]);
    t.peer(". 1:1(0) ack 965 win 30000");
    t.send(id, 1000);
    t.sends(&["P. 965:1965(1000) ack 1 win 65535"]);
    t.peer(". 1:1001(1000) ack 1965 win 30000");
    t.sends(&[". 1965:1965(0) ack 2001 win 65535"]);
    t.send(id, 100);
    t.sends(&["P. 1965:2065(100) ack 2001 win 65535"]);
}

#[test]
fn a_super_segment_is_cut_where_the_route_leads_to_a_port_that_cuts_nothing_by_now() {
    let mut t = Trace::over(Offloads { segmentation: true, ..Offloads::default() });
    let id = t.accept(60_000, "mss 1000", "");
    let sent = |t: &mut Trace, port| {
        let mut batch = Batch::new();
        t.host.advance(t.now, &mut t.pool);
        t.host.transmit(port, &mut batch);
        let all = batch.iter().map(|packet| (packet.len(), packet.offload.segmentation().is_some()));
        let all: Vec<_> = all.collect();
        t.pool.give_batch(&mut batch);
        all
    };
    // Before it has sent something a connection does not know its port.
    t.send(id, 1000);
    assert_eq!(sent(&mut t, PORT), [(1040, false)]);
    t.send(id, 4000);
    assert_eq!(sent(&mut t, PORT), [(2040, true); 2]);
    let plain = PortId(1);
    let interface = Interface {
        name: "plain".into(),
        port: plain,
        medium: Medium::Ip,
        mtu: 1500,
        offloads: Offloads::default(),
    };
    let interface = t.host.control.add_interface(interface).unwrap();
    t.host.control.add_address(t.now, interface, "10.0.1.1/24".parse().unwrap()).unwrap();
    let (prefix, gateway) = ("10.0.0.2/32".parse().unwrap(), Some(address("10.0.1.9")));
    t.host.control.add_route(Route { prefix, gateway, interface, metric: 0, source: None }).unwrap();
    t.send(id, 4000);
    assert_eq!(sent(&mut t, plain), [(1040, false); 4]);
}
