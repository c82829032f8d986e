//! Rules about time and amounts: clocks, timers, pauses, how often to acknowledge.

use std::time::Duration;

use bywash_stack::{CloseReason, ConnectionId, Event, Limits};

use crate::wire::address;
use crate::wire::trace::Trace;

const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// A connection the peer has opened; with timestamps when `clock` says one.
fn accepted(options: &str, clock: &str) -> (Trace, ConnectionId) {
    let mut t = Trace::new();
    let id = t.accept(30_000, options, clock);
    (t, id)
}

#[test]
fn the_echo_is_of_the_first_segment_that_is_not_acknowledged() {
    let (mut t, id) = accepted("mss 1012,TS 100", "<TS 101>");
    t.host.stack.set_quick_ack(t.now, id, false, &mut t.pool).unwrap();
    t.peer(". 1:1001(1000) ack 1 win 30000 <TS 110>");
    t.peer(". 1001:2001(1000) ack 1 win 30000 <TS 120>");
    t.sends(&[". 1:1(0) ack 2001 win 65535 <TS ecr 110>"]);
    t.peer(". 3001:4001(1000) ack 1 win 30000 <TS 130>");
    t.sends(&[". 1:1(0) ack 2001 win 65535 <TS ecr 110>"]);
    t.peer(". 2001:3001(1000) ack 1 win 30000 <TS 125>");
    t.sends(&[". 1:1(0) ack 4001 win 65535 <TS ecr 125>"]);
}

#[test]
fn after_24_days_the_clock_is_taken_anew() {
    let (mut t, id) = accepted("mss 1012,TS 100", "<TS 101>");
    t.pass(Duration::from_secs(24 * 24 * 3600));
    // Lower than 101 by the sign bit.
    t.peer("P. 1:11(10) ack 1 win 30000 <TS 2147483900>");
    t.sends(&[". 1:1(0) ack 11 win 65535 <TS ecr 2147483900>"]);
    t.peer("P. 11:21(10) ack 1 win 30000 <TS 2147483901>");
    t.sends(&[". 1:1(0) ack 21 win 65535 <TS ecr 2147483901>"]);
    assert_eq!(t.host.stack.readable_bytes(id), Ok(20));
}

#[test]
fn a_pause_in_sending_is_one_although_we_acknowledge() {
    let (mut t, id) = accepted("mss 1000", "");
    for round in 0..2 {
        t.send(id, 10_000);
        assert_eq!(t.output().len(), 10);
        t.pass(ms(20));
        t.peer(&format!(". 1:1(0) ack {} win 30000", 10_001 + 10_000 * round));
        t.sends(&[]);
    }
    assert!(t.host.stack.tcp_info(t.now, id).unwrap().snd_cwnd > 10_000);
    for i in 0..10 {
        t.peer(&format!("P. {}:{}(10) ack 20001 win 30000", 1 + 10 * i, 11 + 10 * i));
        t.output();
        t.pass(ms(100));
        t.output();
    }
    assert!(t.host.stack.tcp_info(t.now, id).unwrap().segs_out > 25, "acknowledgments have gone out");
    t.send(id, 30_000);
    assert_eq!(t.output().len(), 10, "no more than at the beginning");
}

#[test]
fn probes_of_a_shut_window_do_not_slow_down_what_follows() {
    let (mut t, id) = accepted("mss 1000", "");
    let rto = t.host.stack.tcp_info(t.now, id).unwrap().rto;
    t.peer(". 1:1(0) ack 1 win 0");
    t.send(id, 500);
    for i in 0..3 {
        t.after(rto * (1 << i), &[". 0:0(0) ack 1 win 65535"]);
        t.peer(". 1:1(0) ack 1 win 0");
        assert_eq!(t.host.stack.tcp_info(t.now, id).unwrap().probes, i + 1);
    }
    t.peer(". 1:1(0) ack 1 win 30000");
    t.sends(&["P. 1:501(500) ack 1 win 65535"]);
    t.after(rto, &["P. 1:501(500) ack 1 win 65535"]);
}

#[test]
fn every_reduction_is_told_to_who_marks() {
    let mut t = Trace::new();
    t.host.stack.set_limits(Limits { ecn: true, timestamps: false, ..Limits::default() });
    t.ports.1 = 80;
    let id = t.host.stack.connect(t.now, (None, 0), (address("10.0.0.2"), 80), &mut t.pool).unwrap();
    t.output();
    t.pass(ms(20));
    t.peer("S.E 0:0(0) ack 1 win 30000 <mss 1000>");
    t.output();
    t.send(id, 10_000);
    assert_eq!(t.output().len(), 10);
    for _ in 0..3 {
        t.peer(". 1:1(0) ack 1 win 30000");
    }
    t.sends(&[". 1:1001(1000) ack 1 win 65535"]);
    t.peer(". 1:1(0) ack 10001 win 30000");
    t.send(id, 2000);
    t.sends(&[".W [ect0] 10001:11001(1000) ack 1 win 65535", "P. [ect0] 11001:12001(1000) ack 1 win 65535"]);
    t.peer(". 1:1(0) ack 12001 win 30000");
    t.send(id, 500);
    t.sends(&["P. [ect0] 12001:12501(500) ack 1 win 65535"]);
    let rto = t.host.stack.tcp_info(t.now, id).unwrap().rto;
    t.after(rto, &["P. 12001:12501(500) ack 1 win 65535"]);
    t.peer(". 1:1(0) ack 12501 win 30000");
    t.send(id, 500);
    t.sends(&["P.W [ect0] 12501:13001(500) ack 1 win 65535"]);
}

#[test]
fn every_second_full_segment_counts_by_what_the_sender_sends() {
    let (mut t, id) = accepted("mss 1460", "");
    t.host.stack.set_quick_ack(t.now, id, false, &mut t.pool).unwrap();
    t.peer(". 1:537(536) ack 1 win 30000");
    t.sends(&[]);
    t.peer(". 537:1073(536) ack 1 win 30000");
    t.sends(&[". 1:1(0) ack 1073 win 65535"]);
    t.peer(". 1073:2533(1460) ack 1 win 30000");
    t.peer(". 2533:3993(1460) ack 1 win 30000");
    t.sends(&[". 1:1(0) ack 3993 win 65535"]);
    // The path has become narrower.
    t.peer(". 3993:4693(700) ack 1 win 30000");
    t.sends(&[]);
    t.peer(". 4693:5393(700) ack 1 win 30000");
    t.sends(&[". 1:1(0) ack 5393 win 65535"]);
    assert_eq!(t.host.stack.tcp_info(t.now, id).unwrap().rcv_mss, 700);
    // Messages are no segment size.
    for i in 0..4 {
        t.peer(&format!("P. {}:{}(100) ack 1 win 30000", 5393 + 100 * i, 5493 + 100 * i));
        t.sends(&[]);
    }
    assert_eq!(t.host.stack.tcp_info(t.now, id).unwrap().rcv_mss, 700);
}

#[test]
fn a_peer_that_sends_more_than_we_offer_to_take_waits_no_longer() {
    let mut t = Trace::new();
    t.host.stack.set_limits(Limits { mss: Some(700), ..Limits::default() });
    let id = t.accept(30_000, "mss 1460", "");
    t.host.stack.set_quick_ack(t.now, id, false, &mut t.pool).unwrap();
    for i in 0..3 {
        t.peer(&format!(". {}:{}(1000) ack 1 win 30000", 1 + 1000 * i, 1001 + 1000 * i));
        t.sends(&[&format!(". 1:1(0) ack {} win 65535", 1001 + 1000 * i)]);
    }
    assert_eq!(t.host.stack.tcp_info(t.now, id).unwrap().rcv_mss, 700);
    // What it should send counts as before.
    t.peer(". 3001:3701(700) ack 1 win 30000");
    t.sends(&[]);
    t.peer(". 3701:4401(700) ack 1 win 30000");
    t.sends(&[". 1:1(0) ack 4401 win 65535"]);
}

#[test]
fn when_an_acknowledgment_came_can_be_asked() {
    let (mut t, id) = accepted("mss 1000", "");
    t.pass(ms(300));
    t.peer("P. 1:11(10) ack 1 win 30000");
    t.output();
    t.pass(ms(70));
    t.peer(". 11:11(0) ack 1 win 30000");
    t.pass(ms(30));
    let info = t.host.stack.tcp_info(t.now, id).unwrap();
    assert_eq!((info.last_ack_recv, info.last_data_recv), (ms(30), ms(100)));
    assert_eq!((info.rcv_ssthresh, info.rcv_rtt), (info.rcv_space, ms(0)));
    let linux = info.to_linux();
    let word = |at: usize| u32::from_ne_bytes(linux[at..at + 4].try_into().unwrap());
    assert_eq!((word(52), word(56), word(64)), (100, 30, info.rcv_space));
}

#[test]
fn what_is_changed_besides_puts_no_probe_of_a_silent_peer_off() {
    let mut t = Trace::new();
    let idle = Duration::from_secs(100);
    t.host.stack.set_limits(Limits { keepalive: true, keepalive_idle: idle, ..Limits::default() });
    let id = t.accept(30_000, "mss 1000", "");
    let probe = ". 0:0(0) ack 1 win 65535";
    t.after(idle, &[probe]);
    let limits = t.host.stack.connection_limits(id).unwrap();
    t.pass(Duration::from_secs(70));
    let tos = Limits { traffic_class: 16, ..limits };
    t.host.stack.set_connection_limits(t.now, id, tos, &mut t.pool).unwrap();
    t.after(Duration::from_secs(5), &[probe]);
    t.peer(". 1:1(0) ack 1 win 30000");
    // A shorter wait counts from when something came.
    t.pass(Duration::from_secs(20));
    let shorter = Limits { keepalive_idle: Duration::from_secs(30), ..tos };
    t.host.stack.set_connection_limits(t.now, id, shorter, &mut t.pool).unwrap();
    t.after(Duration::from_secs(10), &[probe]);
}

#[test]
fn only_an_acceptable_segment_answers_a_probe_of_a_silent_peer() {
    let (idle, interval) = (Duration::from_secs(100), Duration::from_secs(10));
    // Outside of the window; of what was never sent.
    for stranger in [". 900000:900000(0) ack 1 win 100", ". 1:1(0) ack 5000 win 100"] {
        let mut t = Trace::new();
        t.host.stack.set_limits(Limits {
            keepalive: true,
            keepalive_idle: idle,
            keepalive_interval: interval,
            keepalive_count: 3,
            ..Limits::default()
        });
        let id = t.accept(30_000, "mss 1000", "");
        let probe = ". 0:0(0) ack 1 win 65535";
        t.after(idle, &[probe]);
        t.after(interval, &[probe]);
        // The peer's answer begins it anew.
        t.peer(". 1:1(0) ack 1 win 30000");
        t.after(idle, &[probe]);
        t.after(interval, &[probe]);
        t.peer(stranger);
        t.sends(&[". 1:1(0) ack 1 win 65535"]);
        t.after(interval, &[probe]);
        t.after(interval, &["R. 1:1(0) ack 1"]);
        assert_eq!(t.events(), [Event::Closed(id, CloseReason::TimedOut)]);
    }
}

#[test]
fn a_gap_that_a_copy_fills_measures_the_copy_if_clocks_do() {
    for (options, clock, rtt) in [("mss 1000", "", 20.0), ("mss 1012,TS 100", " <TS 101>", 30.0)] {
        let (mut t, id) = accepted(options, clock.trim_start());
        t.send(id, 5000);
        let sent = t.output();
        assert_eq!(sent.len(), 5);
        // The first gets lost; what came behind it waits for the copy.
        let rto = t.host.stack.tcp_info(t.now, id).unwrap().rto;
        let copy = sent[0].clone();
        t.after(rto, &[&copy]);
        t.pass(Duration::from_millis(100));
        t.peer(&format!(". 1:1(0) ack 5001 win 30000{clock}"));
        let info = t.host.stack.tcp_info(t.now, id).unwrap();
        // An eighth of the 100 ms that the copy took, and not of the others' 320.
        assert!((info.rtt.as_secs_f64() * 1000.0 - rtt).abs() < 1.0, "{options}: {:?}", info.rtt);
    }
}
