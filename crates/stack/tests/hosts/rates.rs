//! How fast what is sent arrives, how long timeouts take, and what is wrong with the path: what TCP_INFO tells of them, and of a few things more.

use std::time::Duration;

use bywash_stack::{ConnectionId, Event, Limits, TcpInfo, Unreachable};

use crate::wire::trace::Trace;

const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

fn info(t: &Trace, id: ConnectionId) -> TcpInfo {
    t.host.stack.tcp_info(t.now, id).unwrap()
}

/// Bytes per second, and whether the program had no more to send.
fn rate(t: &Trace, id: ConnectionId) -> (u64, bool) {
    let info = info(t, id);
    (info.delivery_rate, info.app_limited)
}

/// The peer has everything up to `ack`, so much later.
fn acknowledged(t: &mut Trace, later: Duration, ack: u32) {
    t.output();
    t.pass(later);
    t.peer(&format!(". 1:1(0) ack {ack} win 60000"));
    t.output();
}

#[test]
fn the_rate_is_that_of_the_last_round_trip() {
    let mut t = Trace::new();
    let id = t.accept(60_000, "mss 1000", "");
    t.send(id, 60_000);
    acknowledged(&mut t, ms(50), 4001);
    assert_eq!(rate(&t, id), (0, false), "nothing is measured before a round trip is over");
    acknowledged(&mut t, ms(4), 8001);
    assert_eq!(rate(&t, id), (0, false), "nor in the middle of one");
    // Ten segments in all, from when they went out.
    acknowledged(&mut t, ms(2), 10_001);
    assert_eq!(rate(&t, id), (10_000_000 / 56, false));
    // What went out at 50 ms and later.
    let out = info(&t, id).unacked_bytes;
    acknowledged(&mut t, ms(100), 10_001 + out);
    assert_eq!(rate(&t, id), (u64::from(out) * 10, false));
    let linux = info(&t, id).to_linux();
    assert_eq!((linux[160..168].to_vec(), linux[7]), ((u64::from(out) * 10).to_ne_bytes().to_vec(), 0));
}

#[test]
fn acknowledgments_that_come_at_once_are_no_faster_way() {
    let mut t = Trace::new();
    let id = t.accept(60_000, "mss 1000", "");
    t.send(id, 10_000);
    t.output();
    t.pass(ms(50));
    for ack in [2001, 4001, 6001, 8001, 10_001] {
        t.peer(&format!(". 1:1(0) ack {ack} win 60000"));
    }
    assert_eq!(rate(&t, id), (200_000, true));
    // In the middle of a stream: the round trip ends as soon as it has begun.
    t.send(id, 60_000);
    acknowledged(&mut t, ms(50), 14_001);
    t.output();
    let before = rate(&t, id);
    let nxt = 10_001 + 4000 + info(&t, id).unacked_bytes;
    t.peer(&format!(". 1:1(0) ack {} win 60000", nxt - 1000));
    t.peer(&format!(". 1:1(0) ack {nxt} win 60000"));
    assert!(rate(&t, id).0 <= 2 * 60_000 * 20, "{before:?} {:?}", rate(&t, id));
}

#[test]
fn who_has_no_more_to_send_makes_the_way_no_slower() {
    let mut t = Trace::new();
    let id = t.accept(60_000, "mss 1000", "");
    // In turn 1000 bytes that leave something out behind them.
    let mut sent = 1;
    let mut turn = |t: &mut Trace, later: Duration| {
        t.send(id, 2000);
        acknowledged(t, later, sent + 1000);
        t.send(id, 1000);
        acknowledged(t, later, sent + 2000);
        sent += 2000;
        let measured = rate(t, id);
        acknowledged(t, later, sent + 1000);
        sent += 1000;
        measured
    };
    assert_eq!(turn(&mut t, ms(10)), (100_000, true));
    t.pass(Duration::from_secs(60));
    assert_eq!(turn(&mut t, ms(20)), (100_000, true), "slower, and after a pause");
    assert_eq!(turn(&mut t, ms(5)), (200_000, true), "faster");
    assert_eq!(info(&t, id).to_linux()[7], 1);
    // Messages alone are no measure.
    for _ in 0..3 {
        t.send(id, 1000);
        sent += 1000;
        acknowledged(&mut t, ms(1), sent);
    }
    assert_eq!(rate(&t, id), (200_000, true));
}

/// So many milliseconds pass, and timers go off.
fn wait(t: &mut Trace, milliseconds: u32) {
    for _ in 0..milliseconds {
        t.pass(ms(1));
        t.output();
    }
}

/// Timeouts, those that followed from no other, and how long they took in milliseconds.
fn timeouts(t: &Trace, id: ConnectionId) -> (u16, u16, u128) {
    let info = info(t, id);
    (info.total_rto, info.total_rto_recoveries, info.total_rto_time.as_millis())
}

#[test]
fn timeouts_are_counted_and_timed_until_what_was_out_has_arrived() {
    let mut t = Trace::new();
    let id = t.accept(60_000, "mss 1000", "");
    t.send(id, 3000);
    acknowledged(&mut t, ms(20), 1001);
    wait(&mut t, 199);
    assert_eq!(timeouts(&t, id), (0, 0, 0));
    wait(&mut t, 1000);
    let (count, recoveries, time) = timeouts(&t, id);
    assert!(count >= 2 && recoveries == 1, "{count} {recoveries}");
    assert!((800..1000).contains(&time), "{time}");
    wait(&mut t, 100);
    assert_eq!(timeouts(&t, id).2, time + 100, "it goes on");
    acknowledged(&mut t, ms(0), 2001);
    assert_eq!(timeouts(&t, id), (count, 1, time + 100), "half of it");
    acknowledged(&mut t, ms(10), 3001);
    wait(&mut t, 5000);
    assert_eq!(timeouts(&t, id), (count, 1, time + 110), "all of it");
    t.send(id, 1000);
    wait(&mut t, 5000);
    let (more, recoveries, _) = timeouts(&t, id);
    assert!(more > count && recoveries == 2, "{more} {recoveries}");
    let linux = info(&t, id).to_linux();
    assert_eq!(linux[240..244], [more.to_ne_bytes(), 2_u16.to_ne_bytes()].concat());
}

#[test]
fn what_arrives_with_a_mark_is_counted() {
    let mut t = Trace::new();
    t.host.stack.set_limits(Limits { ecn: true, ..Limits::default() });
    t.host.stack.listen(None, 80, 4).unwrap();
    t.peer("SEW 0:0(0) win 60000 <mss 1000>");
    t.output();
    t.peer(". 1:1(0) ack 1 win 60000");
    let [Event::Accepted { connection: id, .. }] = t.events()[..] else { panic!("no connection") };
    t.send(id, 10_000);
    t.output();
    t.peer(". 1:1(0) ack 1001 win 30000");
    t.peer(".E 1:1(0) ack 3001 win 30000");
    t.peer(".E 1:1(0) ack 6001 win 30000");
    t.output();
    t.peer(". 1:1(0) ack 7001 win 30000");
    let info = info(&t, id);
    assert_eq!((info.delivered, info.delivered_ce), (7 + 1, 5));
    assert_eq!(info.to_linux()[196..200], 5_u32.to_ne_bytes());
}

#[test]
fn what_icmp_says_of_the_path_holds_until_something_arrives() {
    const HOST: u8 = 1;
    let mut t = Trace::new();
    let id = t.accept(30_000, "mss 1000,sackOK", "");
    let trouble = |t: &Trace| info(t, id).soft_error;
    t.send(id, 2000);
    t.output();
    t.unreachable(id, HOST, 0, 1);
    t.output();
    assert_eq!(trouble(&t), Some(Unreachable::Host));
    t.pass(ms(5));
    assert_eq!(trouble(&t), Some(Unreachable::Host));
    t.peer(". 1:1(0) ack 1001 win 30000");
    assert_eq!(trouble(&t), None, "a half is there");
    t.unreachable(id, HOST, 0, 1001);
    t.output();
    assert_eq!(trouble(&t), Some(Unreachable::Host), "of the other half");
    t.peer(". 1:1(0) ack 2001 win 30000");
    t.pass(ms(5));
    t.send(id, 1000);
    t.output();
    assert_eq!(trouble(&t), None);
}

#[test]
fn a_handshake_that_agrees_on_marks_has_none() {
    let mut t = Trace::new();
    t.host.stack.set_limits(Limits { ecn: true, ..Limits::default() });
    t.ports.1 = 80;
    let to = (crate::wire::address("10.0.0.2"), 80);
    let id = t.host.stack.connect(t.now, (None, 0), to, &mut t.pool).unwrap();
    t.output();
    t.peer("S.E 0:0(0) ack 1 win 30000 <mss 1000>");
    t.output();
    let info = info(&t, id);
    assert_eq!((info.ecn, info.delivered, info.delivered_ce), (true, 1, 0));
}

#[test]
fn what_was_put_together_counts_as_what_it_was() {
    let mut t = Trace::new();
    let id = t.accept(30_000, "mss 1000,sackOK", "");
    let before = info(&t, id).segs_in;
    let data = |i: u32| format!(". {}:{}(1000) ack 1 win 30000", i * 1000 + 1, i * 1000 + 1001);
    t.peer_together(&[data(0), data(1), data(2)]);
    t.output();
    let now = info(&t, id);
    assert_eq!((now.segs_in - before, now.data_segs_in, now.rcv_ooopack), (3, 3, 0));
    // Two behind a gap.
    t.peer_together(&[data(5), data(6)]);
    t.output();
    let now = info(&t, id);
    assert_eq!((now.segs_in - before, now.data_segs_in, now.rcv_ooopack), (5, 5, 2));
}

#[test]
fn timeouts_in_a_row_end_with_what_is_acknowledged() {
    let mut t = Trace::new();
    let id = t.accept(30_000, "mss 1000", "");
    t.send(id, 2000);
    assert_eq!(t.output().len(), 2);
    let rto = info(&t, id).rto;
    t.after(rto, &[". 1:1001(1000) ack 1 win 65535"]);
    t.after(rto * 2, &[". 1:1001(1000) ack 1 win 65535"]);
    let counts = |t: &Trace| (info(t, id).retransmits, info(t, id).backoff);
    assert_eq!(counts(&t), (2, 2));
    // It is not known which of them was answered: nothing was measured, and the timeout stays.
    t.peer(". 1:1(0) ack 1001 win 30000");
    t.output();
    assert_eq!(counts(&t), (0, 2));
}

#[test]
fn that_data_can_be_marked_is_told_once_some_has_come() {
    let open = |syn: &str| {
        let mut t = Trace::new();
        t.host.stack.listen(None, 80, 4).unwrap();
        t.peer(&format!("{syn} 0:0(0) win 60000 <mss 1000,sackOK>"));
        t.output();
        t.peer(". [ect0] 1:1(0) ack 1 win 60000");
        let [Event::Accepted { connection: id, .. }] = t.events()[..] else { panic!("no connection") };
        (t, id)
    };
    let seen = |t: &Trace, id: ConnectionId| (info(t, id).ecn_seen, info(t, id).to_linux()[5] & 16 != 0);
    // In order, which is predicted, with a mark, and behind a gap.
    for data in
        [". [ect0] 101:201(100)", ". [ect1] 101:201(100)", ". [ce] 101:201(100)", ". [ect0] 301:401(100)"]
    {
        let (mut t, id) = open("SEW");
        t.peer(". 1:101(100) ack 1 win 60000");
        assert_eq!(seen(&t, id), (false, false), "neither an acknowledgment nor what cannot be marked tells");
        t.peer(&format!("{data} ack 1 win 60000"));
        assert_eq!(seen(&t, id), (true, true), "{data}");
        t.peer(". 201:301(100) ack 1 win 60000");
        assert_eq!(seen(&t, id), (true, true), "once is enough");
    }
    // Who has not agreed on marks may use the bits for something else.
    let (mut t, id) = open("S");
    t.peer(". [ect0] 1:101(100) ack 1 win 60000");
    t.peer(". [ce] 101:201(100) ack 1 win 60000");
    assert_eq!(seen(&t, id), (false, false));
}

#[test]
fn the_peer_s_segments_are_told_without_their_timestamps_as_linux_does() {
    for (options, clock, size) in [("mss 1000", "", 1460), ("mss 1000,TS 5", "<TS 6>", 1448)] {
        let mut t = Trace::new();
        let id = t.accept(30_000, options, clock);
        assert_eq!(info(&t, id).advmss, size);
    }
}

#[test]
fn the_window_is_told_as_it_was_offered_last() {
    let mut t = Trace::new();
    t.host.stack.set_limits(Limits { receive_initial: 10_000, receive_max: 10_000, ..Limits::default() });
    let id = t.accept(30_000, "mss 1000", "");
    let offered = info(&t, id).rcv_wnd;
    t.peer(". 1:1001(1000) ack 1 win 30000");
    assert_eq!(info(&t, id).rcv_wnd, offered, "until we speak again");
    t.sends(&[&format!(". 1:1(0) ack 1001 win {}", offered - 1000)]);
    assert_eq!(info(&t, id).rcv_wnd, offered - 1000);
}

#[test]
fn a_round_trip_that_took_no_time_was_measured() {
    let mut t = Trace::new();
    t.host.stack.listen(None, 80, 4).unwrap();
    t.peer("S 0:0(0) win 60000 <mss 1000>");
    t.output();
    t.peer(". 1:1(0) ack 1 win 60000");
    let [Event::Accepted { connection: id, .. }] = t.events()[..] else { panic!("no connection") };
    assert_eq!(info(&t, id).min_rtt, Duration::from_micros(1), "none is shorter, in Linux's unit");
}
