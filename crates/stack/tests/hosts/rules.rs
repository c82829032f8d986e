//! The rules of TCP, one by one, as they show on the wire.

use std::time::Duration;

use bywash_stack::{CloseReason, ConnectionId, Event, Limits, State, TcpError};
use bywash_wire::checksum::Sum;
use bywash_wire::zerocopy::IntoBytes;
use bywash_wire::{Ipv4Header, TcpFlags, TcpHeader};

use crate::wire::address;
use crate::wire::trace::Trace;

const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// A connection the peer has opened, with SACK, without timestamps and scale.
fn accepted() -> (Trace, ConnectionId) {
    accepted_with("mss 1000,sackOK")
}

fn accepted_with(options: &str) -> (Trace, ConnectionId) {
    let mut t = Trace::new();
    let id = t.accept(30_000, options, "");
    (t, id)
}

fn state(t: &Trace, id: ConnectionId) -> State {
    t.host.stack.tcp_info(t.now, id).unwrap().state
}

#[test]
fn options_are_offered_and_only_what_both_said_counts() {
    let mut t = Trace::new();
    t.ports.1 = 80;
    let id = t.host.stack.connect(t.now, (None, 0), (address("10.0.0.2"), 80), &mut t.pool).unwrap();
    t.sends(&["S 0:0(0) win 65535 <mss 1460,sackOK,TS ecr 0,wscale 7>"]);
    t.peer("S. 0:0(0) ack 1 win 5000 <mss 1200>");
    t.sends(&[". 1:1(0) ack 1 win 65535"]);
    let info = t.host.stack.tcp_info(t.now, id).unwrap();
    assert_eq!((info.snd_mss, info.sack, info.timestamps, info.wscale), (1200, false, false, None));
    assert_eq!(t.events(), [Event::Connected(id)]);
}

#[test]
fn the_answer_to_a_syn_repeats_its_options() {
    let mut t = Trace::new();
    t.host.stack.listen(None, 80, 4).unwrap();
    t.peer("S 0:0(0) win 1000 <mss 1460,sackOK,TS 77,wscale 9>");
    t.sends(&["S. 0:0(0) ack 1 win 65535 <mss 1460,sackOK,TS ecr 77,wscale 7>"]);
    t.peer("S 0:0(0) win 1000 <mss 1460,sackOK,TS 77,wscale 9>");
    t.sends(&["S. 0:0(0) ack 1 win 65535 <mss 1460,sackOK,TS ecr 77,wscale 7>"]);
    t.after(ms(1000), &["S. 0:0(0) ack 1 win 65535 <mss 1460,sackOK,TS ecr 77,wscale 7>"]);
    t.after(ms(2000), &["S. 0:0(0) ack 1 win 65535 <mss 1460,sackOK,TS ecr 77,wscale 7>"]);
    t.peer("R 1:1(0) win 0");
    t.sends(&[]);
    assert_eq!(t.host.stack.connections(), (0, 0, 0), "a reset ends the handshake");
}

#[test]
fn a_closed_port_resets_and_a_reset_is_not_answered() {
    let mut t = Trace::new();
    t.peer("S 0:0(0) win 1000");
    t.sends(&["R. 0:0(0) ack 1"]);
    t.peer(". 5:15(10) ack 9 win 1000");
    t.sends(&["R 9:9(0)"]);
    t.peer("R 0:0(0) win 0");
    t.sends(&[]);
}

#[test]
fn a_wrong_acknowledgment_of_our_syn_is_reset() {
    let mut t = Trace::new();
    t.ports.1 = 80;
    let id = t.host.stack.connect(t.now, (None, 0), (address("10.0.0.2"), 80), &mut t.pool).unwrap();
    t.output();
    t.peer("S. 0:0(0) ack 99 win 5000");
    t.sends(&["R 99:99(0)"]);
    t.peer("R. 0:0(0) ack 1 win 0");
    t.sends(&[]);
    assert_eq!(t.events(), [Event::Closed(id, CloseReason::Refused)]);
}

#[test]
fn a_syn_is_repeated_for_three_minutes() {
    let mut t = Trace::new();
    let id = t.host.stack.connect(t.now, (None, 0), (address("10.0.0.2"), 80), &mut t.pool).unwrap();
    t.output();
    let (start, mut copies) = (t.now, 0);
    while let Some(next) = t.host.next_deadline() {
        t.now = next.max(t.now + Duration::from_nanos(1));
        copies += t.output().len();
        if t.events().contains(&Event::Closed(id, CloseReason::TimedOut)) {
            break;
        }
    }
    assert!(
        copies >= 6 && t.now.since(start) >= Duration::from_secs(180),
        "{copies} in {:?}",
        t.now.since(start)
    );
}

#[test]
fn at_first_every_segment_is_acknowledged_at_once() {
    let (mut t, id) = accepted();
    for i in 0..16 {
        t.peer(&format!("P. {}:{}(10) ack 1 win 30000", 1 + 10 * i, 11 + 10 * i));
        t.sends(&[&format!(". 1:1(0) ack {} win 65535", 11 + 10 * i)]);
    }
    t.peer("P. 161:171(10) ack 1 win 30000");
    t.after(ms(40), &[". 1:1(0) ack 171 win 65535"]);
    t.pass(ms(500));
    t.peer("P. 171:181(10) ack 1 win 30000");
    t.sends(&[". 1:1(0) ack 181 win 65535"]);
    t.send(id, 10);
    t.sends(&["P. 1:11(10) ack 181 win 65535"]);
    t.peer("P. 181:191(10) ack 11 win 30000");
    t.after(ms(40), &[". 11:11(0) ack 191 win 65535"]);
}

#[test]
fn every_second_segment_is_acknowledged_and_a_single_one_late() {
    let (mut t, id) = accepted();
    t.host.stack.set_quick_ack(t.now, id, false, &mut t.pool).unwrap();
    t.peer("P. 1:1001(1000) ack 1 win 30000");
    t.after(ms(40), &[". 1:1(0) ack 1001 win 65535"]);
    t.peer("P. 1001:2001(1000) ack 1 win 30000");
    t.sends(&[]);
    t.peer("P. 2001:3001(1000) ack 1 win 30000");
    t.sends(&[". 1:1(0) ack 3001 win 65535"]);
    t.peer("P. 3001:4001(1000) ack 1 win 30000");
    t.send(id, 10);
    t.sends(&["P. 1:11(10) ack 4001 win 65535"]);
}

#[test]
fn a_gap_is_reported_at_once_and_what_fills_it_too() {
    let (mut t, id) = accepted();
    t.peer(". 1001:2001(1000) ack 1 win 30000");
    t.sends(&[". 1:1(0) ack 1 win 65535 <sack 1001:2001>"]);
    t.peer(". 3001:4001(1000) ack 1 win 30000");
    t.sends(&[". 1:1(0) ack 1 win 65535 <sack 3001:4001,sack 1001:2001>"]);
    t.peer(". 1:1001(1000) ack 1 win 30000");
    t.sends(&[". 1:1(0) ack 2001 win 65535 <sack 3001:4001>"]);
    t.peer(". 1:1001(1000) ack 1 win 30000");
    t.sends(&[". 1:1(0) ack 2001 win 65535 <sack 1:1001,sack 3001:4001>"]);
    assert_eq!(t.host.stack.readable(id).unwrap().map(<[u8]>::len).sum::<usize>(), 2000);
}

/// The examples of RFC 2883, 4.2, and what its section 4 says of the block that follows.
#[test]
fn of_what_came_twice_in_part_that_part_is_told_and_the_block_around_it() {
    let (mut t, _) = accepted();
    t.peer(". 1001:2001(1000) ack 1 win 30000");
    t.peer(". 3001:4001(1000) ack 1 win 30000");
    t.output();
    t.peer(". 1201:1501(300) ack 1 win 30000");
    t.sends(&[". 1:1(0) ack 1 win 65535 <sack 1201:1501,sack 1001:2001,sack 3001:4001>"]);
    t.peer(". 1501:2501(1000) ack 1 win 30000");
    t.sends(&[". 1:1(0) ack 1 win 65535 <sack 1501:2001,sack 1001:2501,sack 3001:4001>"]);
    t.peer(". 501:1501(1000) ack 1 win 30000");
    t.sends(&[". 1:1(0) ack 1 win 65535 <sack 1001:1501,sack 501:2501,sack 3001:4001>"]);
    // What fills the gap goes on behind it.
    t.peer(". 1:1001(1000) ack 1 win 30000");
    t.sends(&[". 1:1(0) ack 2501 win 65535 <sack 501:1001,sack 3001:4001>"]);
    // Twice on both sides of what is new: the first is told (4.2.2).
    t.peer(". 2401:3401(1000) ack 1 win 30000");
    t.sends(&[". 1:1(0) ack 4001 win 65535 <sack 2401:2501>"]);
}

#[test]
fn each_of_what_came_twice_together_is_told() {
    let (mut t, _) = accepted();
    (0..6).for_each(|n| t.peer(&format!(". {}:{}(1000) ack 1 win 30000", 1 + 1000 * n, 1001 + 1000 * n)));
    t.output();
    t.peer_together(&[1, 3001].map(|seq| format!(". {seq}:{}(1000) ack 1 win 30000", seq + 1000)));
    let told = ["1:1001", "3001:4001"].map(|twice| format!(". 1:1(0) ack 6001 win 65535 <sack {twice}>"));
    assert_eq!(t.output(), told);
    // Also of what waits.
    t.peer(". 7001:8001(1000) ack 1 win 30000");
    t.peer(". 8001:9001(1000) ack 1 win 30000");
    t.output();
    t.peer_together(&[1, 7001].map(|seq| format!(". {seq}:{}(1000) ack 1 win 30000", seq + 1000)));
    let told = ["1:1001", "7001:8001"]
        .map(|twice| format!(". 1:1(0) ack 6001 win 65535 <sack {twice},sack 7001:9001>"));
    assert_eq!(t.output(), told);
}

#[test]
fn three_duplicates_bring_the_lost_one_back_without_sack() {
    let (mut t, id) = accepted_with("mss 1000");
    t.send(id, 10_000);
    assert_eq!(t.output().len(), 10);
    t.pass(ms(20));
    for _ in 0..2 {
        t.peer(". 1:1(0) ack 1 win 30000");
        t.sends(&[]);
    }
    t.peer(". 1:1(0) ack 1 win 30000");
    t.sends(&[". 1:1001(1000) ack 1 win 65535"]);
    t.peer(". 1:1(0) ack 2001 win 30000");
    assert_eq!(t.output()[0], ". 2001:3001(1000) ack 1 win 65535", "a partial acknowledgment");
}

#[test]
fn blocks_bring_back_exactly_what_is_missing() {
    let (mut t, id) = accepted();
    t.send(id, 10_000);
    assert_eq!(t.output().len(), 10);
    t.pass(ms(20));
    t.peer(". 1:1(0) ack 1001 win 30000");
    t.peer(". 1:1(0) ack 1001 win 30000 <sack 2001:4001>");
    t.sends(&[]);
    t.peer(". 1:1(0) ack 1001 win 30000 <sack 2001:5001>");
    t.sends(&[". 1001:2001(1000) ack 1 win 65535"]);
    t.pass(ms(20));
    t.peer(". 1:1(0) ack 10001 win 30000");
    t.sends(&[]);
    let info = t.host.stack.tcp_info(t.now, id).unwrap();
    assert_eq!(
        (info.total_retrans, info.unacked, info.snd_ssthresh),
        (1, 0, 6300),
        "0.7 of what was in flight"
    );
}

#[test]
fn a_silent_tail_is_probed_then_timed_out() {
    let (mut t, id) = accepted();
    t.send(id, 1000);
    t.output();
    t.pass(ms(100));
    t.peer(". 1:1(0) ack 1001 win 30000");
    t.send(id, 3000);
    assert_eq!(t.output().len(), 3);
    let rtt = t.host.stack.tcp_info(t.now, id).unwrap().rtt;
    t.after(rtt * 2, &["P. 3001:4001(1000) ack 1 win 65535"]);
    let rto = t.host.stack.tcp_info(t.now, id).unwrap().rto;
    t.after(rto, &[". 1001:2001(1000) ack 1 win 65535"]);
    assert_eq!(t.host.stack.tcp_info(t.now, id).unwrap().snd_cwnd, 1000);
    t.after(rto * 2, &[". 1001:2001(1000) ack 1 win 65535"]);
}

/// A tail of three segments, and a copy of the last to probe it; and what the window was.
fn probed() -> (Trace, ConnectionId, u32) {
    let (mut t, id) = accepted();
    t.send(id, 3000);
    assert_eq!(t.output().len(), 3);
    let info = t.host.stack.tcp_info(t.now, id).unwrap();
    t.after(info.rtt * 2, &["P. 2001:3001(1000) ack 1 win 65535"]);
    (t, id, info.snd_cwnd)
}

fn cwnd(t: &Trace, id: ConnectionId) -> u32 {
    t.host.stack.tcp_info(t.now, id).unwrap().snd_cwnd
}

/// The next segment goes out and is acknowledged: from `start` on.
fn one_more(t: &mut Trace, id: ConnectionId, start: u32) {
    t.send(id, 1000);
    t.sends(&[&format!("P. {start}:{}(1000) ack 1 win 65535", start + 1000)]);
    t.pass(ms(20));
    t.peer(&format!(". 1:1(0) ack {} win 30000", start + 1000));
}

#[test]
fn a_probe_that_came_twice_costs_nothing() {
    for told in [" <sack 2001:3001>", ""] {
        let (mut t, id, window) = probed();
        t.peer(". 1:1(0) ack 3001 win 30000");
        t.peer(&format!(". 1:1(0) ack 3001 win 30000{told}"));
        one_more(&mut t, id, 3001);
        assert!(cwnd(&t, id) >= window, "{} after {window}, told{told}", cwnd(&t, id));
    }
}

#[test]
fn a_probe_that_repaired_a_loss_counts_once() {
    let (mut t, id, window) = probed();
    t.peer(". 1:1(0) ack 3001 win 30000");
    assert!(cwnd(&t, id) >= window, "both may have come");
    one_more(&mut t, id, 3001);
    assert_eq!(cwnd(&t, id), 2100, "0.7 of what was in flight");
    one_more(&mut t, id, 4001);
    assert!(cwnd(&t, id) >= 2100);
}

#[test]
fn a_probe_of_new_data_costs_nothing() {
    let (mut t, id) = accepted();
    t.send(id, 11_000);
    assert_eq!(t.output().len(), 10);
    let info = t.host.stack.tcp_info(t.now, id).unwrap();
    t.after(info.rtt * 2, &["P. 10001:11001(1000) ack 1 win 65535"]);
    t.peer(". 1:1(0) ack 11001 win 30000");
    one_more(&mut t, id, 11_001);
    assert!(cwnd(&t, id) >= info.snd_cwnd);
}

#[test]
fn new_data_puts_a_probe_off_but_not_the_timeout() {
    let (mut t, id) = accepted();
    t.host.stack.set_nodelay(t.now, id, true, &mut t.pool).unwrap();
    let info = t.host.stack.tcp_info(t.now, id).unwrap();
    t.send(id, 2000);
    assert_eq!(t.output().len(), 2);
    let end = t.now + info.rto;
    t.pass(ms(30));
    t.send(id, 10);
    t.sends(&["P. 2001:2011(10) ack 1 win 65535"]);
    t.after(info.rtt * 2, &["P. 2001:2011(10) ack 1 win 65535"]);
    let (mut t, id) = accepted();
    t.host.stack.set_nodelay(t.now, id, true, &mut t.pool).unwrap();
    let first = (0..40).find(|_| {
        t.send(id, 10);
        t.output();
        t.pass(ms(10));
        !t.output().is_empty()
    });
    assert!(first.is_some() && t.now <= end + ms(15), "a copy by {:?}", t.now);
}

/// RFC 9937 acknowledgment by acknowledgment: 20 segments in flight and two more before the loss of the first is known; 15.4
/// are to remain.
#[test]
fn a_recovery_lets_go_of_what_is_in_flight_in_proportion() {
    let (mut t, id) = accepted();
    t.send(id, 40_000);
    assert_eq!(t.output().len(), 10);
    t.pass(ms(20));
    t.peer(". 1:1(0) ack 10001 win 60000");
    assert_eq!(t.output().len(), 20);
    t.pass(ms(20));
    let mut sent = Vec::new();
    for n in 1..=14 {
        t.peer(&format!(". 1:1(0) ack 10001 win 60000 <sack 11001:{}>", 11_001 + 1000 * n));
        sent.push(t.output());
    }
    assert_eq!(sent[2], [". 10001:11001(1000) ack 1 win 65535"], "the third of them says what is lost");
    let counts: Vec<usize> = sent.iter().map(Vec::len).collect();
    // The copy; 14 (of a window of 20; what went out beyond it does not count) for 20 that arrive (22 were out, of which two had
    // been told of), until 14 are in flight; then one for one.
    assert_eq!(counts, [1, 1, 1, 0, 1, 0, 1, 1, 0, 1, 1, 1, 0, 0]);
    let info = t.host.stack.tcp_info(t.now, id).unwrap();
    assert_eq!((info.snd_ssthresh, info.snd_cwnd, info.total_retrans), (14_000, 14_000, 1));
}

#[test]
fn nagle_waits_and_nodelay_does_not() {
    let (mut t, id) = accepted();
    t.send(id, 100);
    t.sends(&["P. 1:101(100) ack 1 win 65535"]);
    t.send(id, 100);
    t.sends(&[]);
    t.peer(". 1:1(0) ack 101 win 30000");
    t.sends(&["P. 101:201(100) ack 1 win 65535"]);
    t.send(id, 20);
    t.sends(&[]);
    t.host.stack.set_nodelay(t.now, id, true, &mut t.pool).unwrap();
    t.sends(&["P. 201:221(20) ack 1 win 65535"]);
    t.send(id, 50);
    t.sends(&["P. 221:271(50) ack 1 win 65535"]);
}

#[test]
fn a_shut_window_is_probed_and_opens() {
    let (mut t, id) = accepted();
    t.peer(". 1:1(0) ack 1 win 0");
    t.send(id, 500);
    let rto = t.host.stack.tcp_info(t.now, id).unwrap().rto;
    t.after(rto, &[". 0:0(0) ack 1 win 65535"]);
    t.peer(". 1:1(0) ack 1 win 0");
    t.after(rto * 2, &[". 0:0(0) ack 1 win 65535"]);
    t.peer(". 1:1(0) ack 1 win 30000");
    t.sends(&["P. 1:501(500) ack 1 win 65535"]);
}

#[test]
fn a_program_may_write_so_far_ahead_and_is_told_when_enough_has_gone() {
    const UNSENT: usize = 256 << 10;
    let mut t = Trace::with_frames(1000);
    let limits = Limits { send_initial: 1 << 20, ..Limits::default() };
    t.host.stack.set_limits(limits);
    t.host.stack.listen(None, 80, 4).unwrap();
    t.peer("S 0:0(0) win 60000 <mss 1460>");
    t.output();
    t.peer(". 1:1(0) ack 1 win 60000");
    let events = t.events();
    let [Event::Accepted { connection: id, .. }] = events[..] else { panic!("{events:?}") };
    let wanted = vec![7; 1 << 20];
    let taken = t.host.stack.send(t.now, id, &wanted, &mut t.pool).unwrap();
    assert_eq!((taken, t.host.stack.send_room(id)), (UNSENT, Ok(0)));
    // What has left makes room, acknowledged or not; little of it is not worth a word.
    let mut sent = t.output().len() * 1460;
    assert!(sent > 0);
    assert_eq!((t.host.stack.send_room(id), t.events()), (Ok(sent), Vec::new()));
    while t.events() != [Event::Writable(id)] {
        assert!(sent < UNSENT, "half of it has gone long ago");
        t.peer(&format!(". 1:1(0) ack {} win 60000", sent + 1));
        sent += t.output().len() * 1460;
    }
    let room = t.host.stack.send_room(id).unwrap();
    assert!((UNSENT / 2..UNSENT / 2 + 60_000).contains(&room), "{room}");
}

#[test]
fn our_window_shuts_and_opens_by_enough() {
    let mut t = Trace::new();
    let limits = Limits { receive_initial: 4000, receive_max: 4000, ..Limits::default() };
    t.host.stack.set_limits(limits);
    t.host.stack.listen(None, 80, 4).unwrap();
    t.peer("S 0:0(0) win 30000 <mss 1000>");
    t.sends(&["S. 0:0(0) ack 1 win 4000 <mss 1460>"]);
    t.peer(". 1:1(0) ack 1 win 30000");
    let events = t.events();
    let [Event::Accepted { connection: id, .. }] = events[..] else { panic!("{events:?}") };
    for i in 0..4 {
        t.peer(&format!(". {}:{}(1000) ack 1 win 30000", 1 + i * 1000, 1001 + i * 1000));
    }
    t.sends(&[". 1:1(0) ack 4001 win 0"]);
    t.peer(". 4001:4002(1) ack 1 win 30000");
    t.sends(&[". 1:1(0) ack 4001 win 0"]);
    t.host.stack.consume(t.now, id, 100, &mut t.pool).unwrap();
    t.sends(&[]);
    t.host.stack.consume(t.now, id, 1900, &mut t.pool).unwrap();
    t.sends(&[". 1:1(0) ack 4001 win 2000"]);
}

#[test]
fn without_scaling_no_more_is_taken_than_the_field_can_tell() {
    let mut t = Trace::new();
    t.host.stack.listen(None, 80, 4).unwrap();
    t.peer("S 0:0(0) win 30000 <mss 1000,sackOK>");
    t.sends(&["S. 0:0(0) ack 1 win 65535 <mss 1460,sackOK>"]);
    t.peer(". 1:1(0) ack 1 win 30000");
    let events = t.events();
    let [Event::Accepted { connection: id, .. }] = events[..] else { panic!("{events:?}") };
    t.peer(". 1:1001(1000) ack 1 win 30000");
    t.sends(&[". 1:1(0) ack 1001 win 65535"]);
    // There is room for 128 KiB, of which the peer knows 65 535 bytes: 66 536 is the first number outside.
    t.peer(". 66536:66546(10) ack 1 win 30000");
    t.sends(&[". 1:1(0) ack 1001 win 65535"]);
    t.peer(". 66526:66536(10) ack 1 win 30000");
    t.sends(&[". 1:1(0) ack 1001 win 65535 <sack 66526:66536>"]);
    // And reading says nothing that the field cannot say.
    t.host.stack.consume(t.now, id, 1000, &mut t.pool).unwrap();
    t.sends(&[]);
}

#[test]
fn half_a_close_lets_the_peer_go_on() {
    let (mut t, id) = accepted();
    t.host.stack.shutdown(t.now, id, &mut t.pool).unwrap();
    t.sends(&["F. 1:1(0) ack 1 win 65535"]);
    t.peer(". 1:1(0) ack 2 win 30000");
    assert_eq!(state(&t, id), State::FinWait2);
    t.peer("P. 1:11(10) ack 2 win 30000");
    t.peer("F. 11:11(0) ack 2 win 30000");
    t.sends(&[". 2:2(0) ack 12 win 65535"]);
    let told = t.events();
    assert_eq!(told, [Event::Readable(id), Event::PeerClosed(id), Event::Closed(id, CloseReason::Done)]);
    assert_eq!(t.host.stack.readable(id).unwrap().map(<[u8]>::len).sum::<usize>(), 10, "still to be read");
    t.peer("F. 11:11(0) ack 2 win 30000");
    t.sends(&[". 2:2(0) ack 12 win 65535"]);
    t.host.stack.close(t.now, id, &mut t.pool).unwrap();
    assert_eq!(t.host.stack.connections(), (0, 0, 1));
}

#[test]
fn a_peer_that_stays_open_is_waited_for_once_whatever_it_sends() {
    let (mut t, id) = accepted();
    t.host.stack.close(t.now, id, &mut t.pool).unwrap();
    t.sends(&["F. 1:1(0) ack 1 win 65535"]);
    for later in [0, 50_000, 9000] {
        t.pass(ms(later));
        t.peer(". 1:1(0) ack 2 win 30000");
        t.sends(&[]);
        assert_eq!(t.host.stack.connections().0, 1);
    }
    t.pass(ms(2000));
    t.sends(&[]);
    assert_eq!(t.host.stack.connections().0, 0, "a minute after its acknowledgment");
}

#[test]
fn both_close_at_once() {
    let (mut t, id) = accepted();
    t.host.stack.shutdown(t.now, id, &mut t.pool).unwrap();
    t.sends(&["F. 1:1(0) ack 1 win 65535"]);
    t.peer("F. 1:1(0) ack 1 win 30000");
    t.sends(&[". 2:2(0) ack 2 win 65535"]);
    assert_eq!(state(&t, id), State::Closing);
    t.peer(". 2:2(0) ack 2 win 30000");
    t.sends(&[]);
    assert_eq!(t.host.stack.connections().2, 1);
}

#[test]
fn closing_with_something_unread_resets() {
    let (mut t, id) = accepted();
    t.peer("P. 1:11(10) ack 1 win 30000");
    t.host.stack.close(t.now, id, &mut t.pool).unwrap();
    t.sends(&["R. 1:1(0) ack 11"]);
    assert_eq!(t.host.stack.connections(), (0, 0, 0));
}

#[test]
fn data_for_a_program_that_has_gone_is_reset() {
    let (mut t, id) = accepted();
    t.host.stack.close(t.now, id, &mut t.pool).unwrap();
    t.sends(&["F. 1:1(0) ack 1 win 65535"]);
    t.peer("P. 1:11(10) ack 2 win 30000");
    t.sends(&["R 2:2(0)"]);
    assert_eq!(t.host.stack.connections(), (0, 0, 0));
}

#[test]
fn a_reset_must_be_exact_and_a_guess_is_challenged() {
    let (mut t, id) = accepted();
    t.peer("R 100:100(0) win 0");
    t.sends(&[". 1:1(0) ack 1 win 65535"]);
    t.peer("R 200:200(0) win 0");
    t.sends(&[]);
    t.pass(ms(600));
    t.peer("R 65536:65536(0) win 0");
    t.peer("R 99999:99999(0) win 0");
    t.sends(&[]);
    t.pass(ms(600));
    t.peer("S 50:50(0) win 1000");
    t.sends(&[". 1:1(0) ack 1 win 65535"]);
    t.pass(ms(600));
    t.peer(". 1:1(0) ack -40000 win 1000");
    t.sends(&[". 1:1(0) ack 1 win 65535"]);
    t.pass(ms(600));
    t.peer("P. 1:11(10) ack 500 win 1000");
    t.sends(&[". 1:1(0) ack 1 win 65535"]);
    assert_eq!(state(&t, id), State::Established);
    t.peer("R 1:1(0) win 0");
    assert_eq!(t.events(), [Event::Closed(id, CloseReason::Reset)]);
}

#[test]
fn old_laps_are_told_by_the_clock() {
    let (mut t, id) = {
        let mut t = Trace::new();
        t.host.stack.listen(None, 80, 4).unwrap();
        t.peer("S 0:0(0) win 30000 <mss 1000,TS 100>");
        t.output();
        t.peer(". 1:1(0) ack 1 win 30000 <TS 101>");
        let events = t.events();
        let [Event::Accepted { connection, .. }] = events[..] else { panic!("{events:?}") };
        (t, connection)
    };
    t.peer("P. 1:11(10) ack 1 win 30000 <TS 99>");
    t.sends(&[". 1:1(0) ack 1 win 65535 <TS ecr 101>"]);
    t.peer("P. 1:11(10) ack 1 win 30000");
    t.sends(&[]);
    t.peer("P. 1:11(10) ack 1 win 30000 <TS 102>");
    t.sends(&[". 1:1(0) ack 11 win 65535 <TS ecr 102>"]);
    assert_eq!(t.host.stack.readable(id).unwrap().map(<[u8]>::len).sum::<usize>(), 10);
}

#[test]
fn time_wait_gives_way_to_a_newer_connection_only() {
    let (mut t, id) = accepted();
    t.host.stack.close(t.now, id, &mut t.pool).unwrap();
    t.output();
    t.peer("F. 1:1(0) ack 2 win 30000");
    t.output();
    assert_eq!(t.host.stack.connections(), (0, 0, 1));
    t.peer("R 2:2(0) win 0");
    assert_eq!(t.host.stack.connections(), (0, 0, 1), "RFC 1337");
    t.peer("S -500:-500(0) win 30000");
    t.sends(&[". 2:2(0) ack 2 win 65535"]);
    t.peer("S 9000:9000(0) win 30000 <mss 1000>");
    t.sends(&["S. 0:0(0) ack 9001 win 65535 <mss 1460>"]);
    assert_eq!(t.host.stack.connections(), (0, 1, 0));
}

#[test]
fn beyond_the_backlog_cookies_keep_the_options() {
    let mut t = Trace::new();
    t.host.stack.listen(None, 80, 0).unwrap();
    t.peer("S 0:0(0) win 30000 <mss 1400,sackOK,TS 100,wscale 9>");
    t.sends(&["S. 0:0(0) ack 1 win 65535 <mss 1460,sackOK,TS ecr 100,wscale 7>"]);
    assert_eq!(t.host.stack.connections(), (0, 0, 0), "nothing is remembered");
    t.peer(". 1:1(0) ack 2 win 300 <TS 101>");
    t.sends(&["R 2:2(0) <TS ecr 101>"]);
    t.peer(". 1:1(0) ack 1 win 300 <TS 101>");
    let events = t.events();
    let [Event::Accepted { connection, .. }] = events[..] else { panic!("{events:?}") };
    let info = t.host.stack.tcp_info(t.now, connection).unwrap();
    assert_eq!((info.snd_mss, info.sack, info.timestamps, info.wscale), (1368, true, true, Some((9, 7))));
    assert_eq!(info.snd_wnd, 300 << 9);
}

#[test]
fn a_cookie_is_too_old_after_two_minutes() {
    let mut t = Trace::new();
    t.host.stack.listen(None, 80, 0).unwrap();
    t.peer("S 0:0(0) win 30000 <mss 1400>");
    t.output();
    t.pass(Duration::from_secs(129));
    t.peer(". 1:1(0) ack 1 win 300");
    t.sends(&["R 1:1(0)"]);
}

#[test]
fn a_narrower_path_makes_segments_shorter() {
    let (mut t, id) = accepted();
    assert_eq!(t.host.stack.tcp_info(t.now, id).unwrap().pmtu, 1500, "though the peer takes 1000 bytes");
    t.send(id, 2000);
    t.sends(&[". 1:1001(1000) ack 1 win 65535", "P. 1001:2001(1000) ack 1 win 65535"]);
    t.unreachable(id, 4, 700, 90_000);
    t.sends(&[]);
    t.unreachable(id, 4, 700, 1);
    let sent = t.output();
    assert_eq!(sent[0], ". 1:661(660) ack 1 win 65535", "700 less 40");
    assert_eq!(sent.len(), 4, "{sent:?}");
    let info = t.host.stack.tcp_info(t.now, id).unwrap();
    assert_eq!((info.snd_mss, info.pmtu), (660, 700));
    // As narrow as IPv4 can be (RFC 791, 3.2), and no narrower than that.
    for mtu in [68, 40] {
        t.unreachable(id, 4, mtu, 1);
        let sent = t.output();
        assert_eq!(t.host.stack.tcp_info(t.now, id).unwrap().snd_mss, 28);
        assert!(mtu < 68 || sent[0] == ". 1:29(28) ack 1 win 65535", "{sent:?}");
    }
    let mut acked = 1;
    while acked < 2001 {
        acked = (acked + 280).min(2001);
        // In so long the path is looked at anew.
        t.pass(Duration::from_secs(6));
        t.peer(&format!(". 1:1(0) ack {acked} win 30000"));
        assert!(t.output().iter().all(|line| line.contains("(28)") || line.contains("(12)")));
        assert_eq!(t.host.stack.tcp_info(t.now, id).unwrap().snd_mss, 28);
    }
    assert_eq!(t.host.stack.tcp_info(t.now, id).unwrap().unacked, 0);
}

#[test]
fn a_silent_peer_is_probed_if_asked_for() {
    let mut t = Trace::new();
    t.host.stack.set_limits(Limits { keepalive: true, ..Limits::default() });
    t.host.stack.listen(None, 80, 4).unwrap();
    t.peer("S 0:0(0) win 30000 <mss 1000>");
    t.output();
    t.peer(". 1:1(0) ack 1 win 30000");
    let events = t.events();
    let [Event::Accepted { connection: id, .. }] = events[..] else { panic!("{events:?}") };
    t.after(Duration::from_secs(7200), &[". 0:0(0) ack 1 win 65535"]);
    t.peer(". 1:1(0) ack 1 win 30000");
    t.after(Duration::from_secs(7200), &[". 0:0(0) ack 1 win 65535"]);
    for _ in 1..9 {
        t.after(Duration::from_secs(75), &[". 0:0(0) ack 1 win 65535"]);
    }
    t.after(Duration::from_secs(75), &["R. 1:1(0) ack 1"]);
    assert_eq!(t.events(), [Event::Closed(id, CloseReason::TimedOut)]);
}

#[test]
fn many_are_never_spoken_to_nor_listened_to() {
    let mut t = Trace::new();
    for many in ["255.255.255.255", "10.0.0.255", "224.0.0.1", "0.0.0.0"] {
        let error = t.host.stack.connect(t.now, (None, 0), (address(many), 80), &mut t.pool).unwrap_err();
        assert_eq!(error, TcpError::NoHost);
    }
    t.host.stack.listen(None, 80, 4).unwrap();
    for (from, to) in
        [([10, 0, 0, 2], [10, 0, 0, 255]), ([224, 0, 0, 1], [10, 0, 0, 1]), ([10, 0, 0, 255], [10, 0, 0, 1])]
    {
        let mut tcp = TcpHeader::new((5000, 80), 1, 0, TcpFlags::SYN, 1000, 0);
        tcp.checksum = Sum::pseudo(&from, &to, 6, 20).bytes(tcp.as_bytes()).checksum().into();
        let ip = Ipv4Header::new(from.into(), to.into(), 6, 20);
        t.raw(&[ip.as_bytes(), tcp.as_bytes()].concat());
        t.sends(&[]);
    }
    assert_eq!(t.host.stack.connections(), (0, 0, 0));
}

#[test]
fn a_cork_holds_back_what_is_no_full_segment() {
    let (mut t, id) = accepted();
    t.host.stack.set_cork(t.now, id, true, &mut t.pool).unwrap();
    t.send(id, 1200);
    t.sends(&[". 1:1001(1000) ack 1 win 65535"]);
    t.peer(". 1:1(0) ack 1001 win 30000");
    t.sends(&[]);
    t.host.stack.set_cork(t.now, id, false, &mut t.pool).unwrap();
    t.sends(&["P. 1001:1201(200) ack 1 win 65535"]);
    t.peer(". 1:1(0) ack 1201 win 30000");
    t.host.stack.set_cork(t.now, id, true, &mut t.pool).unwrap();
    t.send(id, 10);
    let rto = t.host.stack.tcp_info(t.now, id).unwrap().rto;
    t.after(rto, &["P. 1201:1211(10) ack 1 win 65535"]);
}

#[test]
fn a_connection_may_have_limits_of_its_own() {
    let (mut t, id) = accepted();
    let limits = Limits { keepalive: true, keepalive_idle: ms(5000), ..Limits::default() };
    t.host.stack.set_connection_limits(t.now, id, limits, &mut t.pool).unwrap();
    t.after(ms(5000), &[". 0:0(0) ack 1 win 65535"]);
    let limits = Limits { user_timeout: ms(3000), ..Limits::default() };
    t.host.stack.set_connection_limits(t.now, id, limits, &mut t.pool).unwrap();
    t.send(id, 10);
    let start = t.now;
    while t.events().is_empty() {
        t.now = t.host.next_deadline().unwrap().max(t.now + ms(1));
        t.output();
    }
    assert_eq!(t.host.stack.tcp_info(t.now, id).unwrap().state, State::Closed);
    assert!((ms(3000)..ms(7000)).contains(&t.now.since(start)), "{:?}", t.now.since(start));
}

#[test]
fn congestion_marks_are_echoed_until_the_sender_slows_down() {
    let mut t = Trace::new();
    t.host.stack.listen(None, 80, 4).unwrap();
    t.peer("SEW 0:0(0) win 30000 <mss 1000>");
    t.sends(&["S.E 0:0(0) ack 1 win 65535 <mss 1460>"]);
    t.peer(". 1:1(0) ack 1 win 30000");
    t.peer("P. [ce] 1:11(10) ack 1 win 30000");
    t.sends(&[".E 1:1(0) ack 11 win 65535"]);
    t.peer("P. 11:21(10) ack 1 win 30000");
    t.sends(&[".E 1:1(0) ack 21 win 65535"]);
    t.peer("P.W 21:31(10) ack 1 win 30000");
    t.sends(&[". 1:1(0) ack 31 win 65535"]);
}

#[test]
fn an_echo_halves_the_window_once_and_is_answered() {
    let mut t = Trace::new();
    t.host.stack.set_limits(Limits { ecn: true, ..Limits::default() });
    t.ports.1 = 80;
    let id = t.host.stack.connect(t.now, (None, 0), (address("10.0.0.2"), 80), &mut t.pool).unwrap();
    t.sends(&["SEW 0:0(0) win 65535 <mss 1460,sackOK,TS ecr 0,wscale 7>"]);
    t.peer("S.E 0:0(0) ack 1 win 30000 <mss 1000>");
    t.sends(&[". 1:1(0) ack 1 win 65535"]);
    t.send(id, 10_000);
    let sent = t.output();
    assert!(sent.len() == 10 && sent[0] == ". [ect0] 1:1001(1000) ack 1 win 65535", "{sent:?}");
    t.peer(".E 1:1(0) ack 1001 win 30000");
    assert_eq!(t.host.stack.tcp_info(t.now, id).unwrap().snd_cwnd, 7000, "0.7 of 10 000 in flight");
    t.peer(".E 1:1(0) ack 5001 win 30000");
    let info = t.host.stack.tcp_info(t.now, id).unwrap();
    assert_eq!(info.snd_cwnd, 7000, "once, and what tells of marks lets nothing grow");
    t.send(id, 1000);
    t.sends(&["P.W [ect0] 10001:11001(1000) ack 1 win 65535"]);
}

#[test]
fn a_lost_syn_asks_for_marks_no_more() {
    let mut t = Trace::new();
    t.host.stack.set_limits(Limits { ecn: true, ..Limits::default() });
    t.host.stack.connect(t.now, (None, 0), (address("10.0.0.2"), 80), &mut t.pool).unwrap();
    t.sends(&["SEW 0:0(0) win 65535 <mss 1460,sackOK,TS ecr 0,wscale 7>"]);
    t.after(ms(1000), &["S 0:0(0) win 65535 <mss 1460,sackOK,TS ecr 0,wscale 7>"]);
}
