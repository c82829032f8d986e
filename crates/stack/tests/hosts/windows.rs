//! Windows that shut: how long one is waited for, and how much comes in by ours.

use std::time::Duration;

use bywash_stack::{CloseReason, ConnectionId, Event, Limits};

use crate::wire::address;
use crate::wire::trace::Trace;

const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// A connection the peer has opened, which is given up after ten seconds without an answer.
fn accepted() -> (Trace, ConnectionId) {
    let mut t = Trace::new();
    t.host.stack.set_limits(Limits { user_timeout: ms(10_000), ..Limits::default() });
    let id = t.accept(30_000, "mss 1000", "");
    (t, id)
}

/// When the connection has ended, since `start`; the peer says `answer` to whatever is sent, for some minutes.
fn ends(t: &mut Trace, answer: Option<&str>) -> Option<Duration> {
    let start = t.now;
    while t.now < start + ms(300_000) {
        t.now = t.host.next_deadline()?.max(t.now + ms(1));
        if !t.output().is_empty() {
            answer.into_iter().for_each(|answer| t.peer(answer));
        }
        if let Some(Event::Closed(_, reason)) = t.events().pop() {
            assert_eq!(reason, CloseReason::TimedOut);
            return Some(t.now.since(start));
        }
    }
    None
}

/// The user timeout, as exactly as the wheel tells time.
fn in_time(end: Option<Duration>) -> bool {
    end.is_some_and(|end| (ms(10_000)..ms(10_050)).contains(&end))
}

#[test]
fn a_silent_peer_is_given_up_when_the_user_timeout_is_over() {
    let (mut t, id) = accepted();
    t.send(id, 100);
    assert!(in_time(ends(&mut t, None)));
}

#[test]
fn what_a_small_window_let_out_late_is_given_up_in_time_as_well() {
    let (mut t, id) = accepted();
    t.peer(". 1:1(0) ack 1 win 500");
    t.send(id, 5000);
    let rto = t.host.stack.tcp_info(t.now, id).unwrap().rto;
    t.after(rto, &["P. 1:501(500) ack 1 win 65535"]);
    let end = ends(&mut t, None);
    assert!(in_time(end), "{end:?}");
}

/// RFC 9293, 3.8.6.2.1: also when losses have made the timeout long, and nothing has been measured since.
#[test]
fn what_a_small_window_holds_back_goes_within_a_second() {
    let (mut t, id) = accepted();
    t.send(id, 1000);
    while t.host.stack.tcp_info(t.now, id).unwrap().rto < ms(3000) {
        t.pass(ms(10));
        t.output();
    }
    t.send(id, 1600);
    t.output();
    t.peer(". 1:1(0) ack 1001 win 400");
    assert!(t.host.stack.tcp_info(t.now, id).unwrap().rto > ms(3000), "of a copy nothing is measured");
    t.after(ms(1000), &["P. 1001:1401(400) ack 1 win 65535"]);
}

#[test]
fn a_peer_that_answers_may_keep_its_window_shut() {
    // Before something is in flight, and after.
    for early in [true, false] {
        let (mut t, id) = accepted();
        if early {
            t.peer(". 1:1(0) ack 1 win 0");
        }
        t.send(id, 500);
        assert_eq!(t.output().is_empty(), early);
        assert_eq!(ends(&mut t, Some(". 1:1(0) ack 1 win 0")), None);
        assert!(ends(&mut t, None).is_some(), "until it does not");
    }
}

#[test]
fn what_a_program_has_closed_waits_for_no_window_that_stays_shut() {
    // Data that does not fit, and a FIN that the peer does not take.
    for answer in [". 1:1(0) ack 1 win 0", ". 1:1(0) ack 501 win 0"] {
        let (mut t, id) = accepted();
        if answer.contains("ack 1 ") {
            t.peer(answer);
        }
        t.send(id, 500);
        t.output();
        t.peer(answer);
        t.host.stack.close(t.now, id, &mut t.pool).unwrap();
        let start = t.now;
        while t.host.stack.connections().0 > 0 && t.now < start + ms(60_000) {
            t.now = t.host.next_deadline().unwrap().max(t.now + ms(1));
            if !t.output().is_empty() {
                t.peer(answer);
            }
        }
        let took = t.now.since(start);
        assert!(
            (ms(10_000)..ms(11_000)).contains(&took),
            "{took:?}: the user timeout, from the first try on"
        );
    }
}

#[test]
fn small_segments_that_nobody_reads_shut_the_window_too() {
    let mut t = Trace::with_frames(3000);
    let id = t.accept(30_000, "mss 1000,wscale 7", "");
    let limit = 128 << 10;
    let (mut next, mut window) = (1, limit);
    for _ in 0..1400 {
        t.peer(&format!("P. {next}:{}(100) ack 1 win 300", next + 100));
        // At once, or late.
        let mut answers = t.output();
        t.pass(ms(50));
        answers.extend(t.output());
        let [answer] = &answers[..] else { panic!("{answers:?}") };
        window = answer.rsplit_once("win ").unwrap().1.parse::<usize>().unwrap() << 7;
        next = answer.split("ack ").nth(1).unwrap().split(' ').next().unwrap().parse().unwrap();
        let held = t.host.stack.readable_bytes(id).unwrap();
        assert!(held + window < limit + 128, "{held} and {window}");
    }
    assert!(window == 0 && next > limit - 200, "{window}, {next}");
}

#[test]
fn a_fin_that_was_none_does_not_hide_the_one_that_is() {
    let (mut t, id) = accepted();
    // Its number is one of the bytes that follow.
    t.peer("F. 101:101(0) ack 1 win 300");
    t.peer("P. 1:501(500) ack 1 win 300");
    t.output();
    t.peer("F. 501:501(0) ack 1 win 300");
    t.sends(&[". 1:1(0) ack 502 win 65535"]);
    assert_eq!(t.events().last(), Some(&Event::PeerClosed(id)));
}

#[test]
fn a_listener_that_changes_keeps_its_word_on_the_scale() {
    let mut t = Trace::new();
    t.host.stack.listen(None, 80, 4).unwrap();
    t.peer("S 0:0(0) win 30000 <mss 1000,wscale 7>");
    t.sends(&["S. 0:0(0) ack 1 win 65535 <mss 1460,wscale 7>"]);
    t.host.stack.set_limits(Limits { receive_max: 1 << 28, ..Limits::default() });
    t.peer("P. 1:101(100) ack 1 win 300");
    t.sends(&[". 1:1(0) ack 101 win 1024"]);
}

#[test]
fn the_window_that_was_told_of_stays_when_the_limit_shrinks() {
    let mut t = Trace::new();
    let id = t.accept(30_000, "mss 1000,wscale 7", "");
    t.peer("P. 1:1001(1000) ack 1 win 300");
    t.sends(&[". 1:1(0) ack 1001 win 1017"]);
    let limits = Limits { receive_max: 10_000, ..Limits::default() };
    t.host.stack.set_connection_limits(t.now, id, limits, &mut t.pool).unwrap();
    for i in 1..5 {
        t.peer(&format!("P. {}:{}(1000) ack 1 win 300", 1 + i * 1000, 1001 + i * 1000));
        // 1000 bytes less each, but for what is cut off.
        let window = (1017 * 128 - i * 1000) / 128;
        t.sends(&[&format!(". 1:1(0) ack {} win {window}", 1001 + i * 1000)]);
    }
}

#[test]
fn a_shorter_user_timeout_holds_for_what_waits_already() {
    let mut t = Trace::new();
    let id = t.accept(30_000, "mss 1000", "");
    t.send(id, 100);
    // Repeats are a minute and more apart by then.
    let start = t.now;
    while t.now < start + ms(200_000) {
        t.now = t.host.next_deadline().unwrap().max(t.now + ms(1));
        t.output();
    }
    let limits = Limits { user_timeout: t.now.since(start) + ms(5000), ..Limits::default() };
    t.host.stack.set_connection_limits(t.now, id, limits, &mut t.pool).unwrap();
    t.output();
    let end = ends(&mut t, None);
    assert!(end.is_some_and(|end| end < ms(5050)), "{end:?}");
}

#[test]
fn the_scale_is_the_one_that_the_syn_offered() {
    let mut t = Trace::new();
    t.ports.1 = 80;
    let id = t.host.stack.connect(t.now, (None, 0), (address("10.0.0.2"), 80), &mut t.pool).unwrap();
    t.sends(&["S 0:0(0) win 65535 <mss 1460,sackOK,TS ecr 0,wscale 7>"]);
    let limits = Limits { receive_max: 60_000, timestamps: false, ..Limits::default() };
    t.host.stack.set_connection_limits(t.now, id, limits, &mut t.pool).unwrap();
    t.peer("S. 0:0(0) ack 1 win 5000 <mss 1000,wscale 0>");
    t.sends(&[". 1:1(0) ack 1 win 469"]);
}

#[test]
fn who_does_not_scale_offers_no_scale_and_takes_none() {
    let mut t = Trace::new();
    t.host.stack.set_limits(Limits { window_scaling: false, ..Limits::default() });
    t.ports.1 = 80;
    let id = t.host.stack.connect(t.now, (None, 0), (address("10.0.0.2"), 80), &mut t.pool).unwrap();
    t.sends(&["S 0:0(0) win 65535 <mss 1460,sackOK,TS ecr 0>"]);
    t.peer("S. 0:0(0) ack 1 win 5000 <mss 1000>");
    t.sends(&[". 1:1(0) ack 1 win 65535"]);
    t.send(id, 10_000);
    assert_eq!(t.output().len(), 5, "as many bytes as the window says");
}

#[test]
fn a_fin_waits_for_its_place_in_the_window() {
    for bytes in [0, 500, 1000] {
        let (mut t, id) = accepted();
        t.peer(&format!(". 1:1(0) ack 1 win {bytes}"));
        t.send(id, bytes);
        t.host.stack.shutdown(t.now, id, &mut t.pool).unwrap();
        let end = bytes + 1;
        if bytes > 0 {
            t.sends(&[&format!("P. 1:{end}({bytes}) ack 1 win 65535")]);
            t.peer(&format!(". 1:1(0) ack {end} win 0"));
        }
        // The window is asked for.
        let rto = t.host.stack.tcp_info(t.now, id).unwrap().rto;
        t.after(rto, &[&format!(". {bytes}:{bytes}(0) ack 1 win 65535")]);
        let info = t.host.stack.tcp_info(t.now, id).unwrap();
        assert_eq!((info.retransmits, info.probes, info.backoff), (0, 1, 1));
        t.peer(&format!(". 1:1(0) ack {end} win 1"));
        t.sends(&[&format!("F. {end}:{end}(0) ack 1 win 65535")]);
    }
}

#[test]
fn a_window_grows_by_the_round_trip_of_what_the_peer_sends() {
    // The handshake took 20 ms, and what follows 100: with clocks the echo says so, else how long a window takes.
    for stamps in [true, false] {
        let mut t = Trace::new();
        let options = if stamps { "mss 1012,TS 100,wscale 7" } else { "mss 1000,wscale 7" };
        let id = t.accept(30_000, options, if stamps { "<TS 101>" } else { "" });
        let (mut next, mut edge) = (1, 65_536);
        for round in 0..12 {
            let old = t.clock;
            t.pass(ms(100));
            // A window is under way; its acknowledgments leave now, and come back in 100 ms.
            t.clock = old;
            while next + 1000 <= edge {
                let stamp = if stamps { format!(" <TS {}>", 200 + round) } else { String::new() };
                t.peer(&format!(". {next}:{}(1000) ack 1 win 30000{stamp}", next + 1000));
                next += 1000;
                let n = t.host.stack.readable_bytes(id).unwrap();
                t.host.stack.consume(t.now, id, n, &mut t.pool).unwrap();
            }
            t.output();
            let info = t.host.stack.tcp_info(t.now, id).unwrap();
            edge = next + info.rcv_wnd;
        }
        let info = t.host.stack.tcp_info(t.now, id).unwrap();
        assert!((ms(95)..ms(110)).contains(&info.rcv_rtt), "{:?}", info.rcv_rtt);
        assert_eq!(info.rtt, ms(20));
        assert!(info.rcv_space > 1 << 20, "{}", info.rcv_space);
    }
}

/// A peer whose window is shut may try again with its next word: what it sends then shows whether there is memory.
#[test]
fn a_window_that_was_shut_for_want_of_memory_opens_with_an_acknowledgment() {
    let mut t = Trace::with_frames(200);
    let id = t.accept(30_000, "mss 1000", "");
    let (mut kept, mut told) = (1, Vec::new());
    while t.host.stack.counters().tcp_receive_dropped == 0 {
        kept = 1 + t.host.stack.readable_bytes(id).unwrap();
        t.peer(&format!(". {kept}:{}(1000) ack 1 win 30000", kept + 1000));
        told.extend(t.output());
    }
    let open = format!(". 1:1(0) ack {kept} win 55072");
    assert_eq!(told[told.len() - 2..], [open, format!(". 1:1(0) ack {kept} win 0")]);
    assert_eq!(t.host.stack.tcp_info(t.now, id).unwrap().rcv_wnd, 0, "as it was offered");
    t.send(id, 100);
    t.sends(&[&format!("P. 1:101(100) ack {kept} win 0")]);
    // The one that was not kept is no part of what it acknowledges with.
    t.peer(&format!(". {kept}:{kept}(0) ack 101 win 30000"));
    t.sends(&[]);
    t.send(id, 100);
    t.sends(&[&format!("P. 101:201(100) ack {kept} win 55072")]);
}

#[test]
fn a_window_grows_by_what_there_was_to_be_read() {
    let (mut t, id) = accepted();
    let space = |t: &Trace| t.host.stack.tcp_info(t.now, id).unwrap().rcv_space;
    let before = space(&t);
    for n in 0..3 {
        t.peer(&format!("P. {}:{}(1000) ack 1 win 30000", 1 + 1000 * n, 1001 + 1000 * n));
        t.host.stack.consume(t.now, id, usize::MAX, &mut t.pool).unwrap();
        assert_eq!(t.host.stack.readable_bytes(id), Ok(0));
        t.output();
        t.pass(ms(200));
    }
    assert_eq!(space(&t), before);
}

/// A connection on which both have closed, and what the program has sent has gone out as far as the window went: `bytes` and a FIN.
/// In LAST-ACK, or where ours came `first`, in CLOSING.
fn both_closed(first: bool, bytes: usize, window: u16) -> (Trace, ConnectionId) {
    let (mut t, id) = accepted();
    let closes = |t: &mut Trace| {
        t.send(id, bytes);
        t.host.stack.shutdown(t.now, id, &mut t.pool).unwrap();
    };
    t.peer(&format!(". 1:1(0) ack 1 win {window}"));
    if first {
        closes(&mut t);
    }
    t.peer(&format!("F. 1:1(0) ack 1 win {window}"));
    if !first {
        closes(&mut t);
    }
    t.output();
    t.events();
    (t, id)
}

#[test]
fn what_has_not_arrived_is_not_done_and_its_end_is_a_reset() {
    for (first, bytes, window, reset) in [
        (false, 500, 0, Some("R. 1:1(0) ack 2")),
        (true, 500, 0, Some("R. 1:1(0) ack 2")),
        (false, 0, 0, Some("R. 1:1(0) ack 2")),
        (true, 0, 0, Some("R. 1:1(0) ack 2")),
        (false, 500, 1000, Some("R. 502:502(0) ack 2")),
        (false, 0, 1000, None),
        (true, 0, 1000, None),
    ] {
        let case = format!("{bytes} bytes, a window of {window}, ours first: {first}");
        let (mut t, id) = both_closed(first, bytes, window);
        t.host.stack.abort(t.now, id, &mut t.pool).unwrap();
        assert_eq!(t.output(), reset.map(str::to_owned).into_iter().collect::<Vec<_>>(), "{case}");
        let (mut t, id) = both_closed(first, bytes, window);
        t.peer("R 2:2(0) win 0");
        let reason = if reset.is_some() { CloseReason::Reset } else { CloseReason::Done };
        assert_eq!(t.events(), [Event::Closed(id, reason)], "{case}");
    }
    // What nobody has read is told as well.
    let (mut t, id) = accepted();
    t.peer("FP. 1:11(10) ack 1 win 0");
    t.send(id, 500);
    t.host.stack.shutdown(t.now, id, &mut t.pool).unwrap();
    t.output();
    t.host.stack.close(t.now, id, &mut t.pool).unwrap();
    t.sends(&["R. 1:1(0) ack 12"]);
}

#[test]
fn what_nobody_has_read_is_told_also_where_only_our_fin_is_out() {
    // In CLOSING, where ours came first, and in LAST-ACK.
    for first in [true, false] {
        let (mut t, id) = accepted();
        if first {
            t.host.stack.shutdown(t.now, id, &mut t.pool).unwrap();
            t.sends(&["F. 1:1(0) ack 1 win 65535"]);
        }
        t.peer("FP. 1:11(10) ack 1 win 30000");
        if !first {
            t.output();
            t.host.stack.shutdown(t.now, id, &mut t.pool).unwrap();
        }
        assert_eq!(t.output().len(), 1);
        t.host.stack.close(t.now, id, &mut t.pool).unwrap();
        t.sends(&["R. 2:2(0) ack 12"]);
        assert_eq!(t.host.stack.connections(), (0, 0, 0));
    }
}

#[test]
fn what_was_read_before_the_program_went_may_come_again_with_a_fin() {
    // Also in part; but not with a byte that nobody will read.
    for (again, taken) in [("1:11(10)", true), ("6:11(5)", true), ("6:12(6)", false)] {
        let (mut t, id) = accepted();
        t.peer("P. 1:11(10) ack 1 win 1000");
        t.output();
        let mut bytes = [0; 20];
        assert_eq!(t.host.stack.receive_copy(t.now, id, &mut bytes, &mut t.pool), Ok(10));
        t.send(id, 1500);
        t.host.stack.close(t.now, id, &mut t.pool).unwrap();
        t.sends(&[". 1:1001(1000) ack 11 win 65535"]);
        t.peer(&format!("FP. {again} ack 1 win 2000"));
        if !taken {
            t.sends(&["R 1:1(0)"]);
            assert_eq!(t.host.stack.connections(), (0, 0, 0));
            continue;
        }
        // What has waited for the window still goes.
        t.sends(&["FP. 1001:1501(500) ack 12 win 65535"]);
        t.peer(". 12:12(0) ack 1502 win 2000");
        t.sends(&[]);
        assert_eq!(t.host.stack.connections().2, 1, "TIME-WAIT");
    }
    // By itself, where our FIN is out.
    let (mut t, id) = accepted();
    t.peer("P. 1:11(10) ack 1 win 30000");
    t.output();
    assert_eq!(t.host.stack.consume(t.now, id, 10, &mut t.pool), Ok(()));
    t.host.stack.close(t.now, id, &mut t.pool).unwrap();
    t.sends(&["F. 1:1(0) ack 11 win 65535"]);
    t.peer("FP. 1:11(10) ack 1 win 30000");
    t.sends(&[". 2:2(0) ack 12 win 65535"]);
    t.peer(". 12:12(0) ack 2 win 30000");
    t.sends(&[]);
    assert_eq!(t.host.stack.connections().2, 1, "TIME-WAIT");
}

#[test]
fn a_window_that_opens_a_little_is_used_as_soon_as_if_it_had_not_been_shut() {
    let (mut t, id) = accepted();
    let rto = t.host.stack.tcp_info(t.now, id).unwrap().rto;
    t.peer(". 1:1(0) ack 1 win 0");
    t.send(id, 5000);
    for probe in 0..5 {
        t.after(rto * (1 << probe), &[". 0:0(0) ack 1 win 65535"]);
        t.peer(". 1:1(0) ack 1 win 0");
    }
    // Too little to go at once.
    t.peer(". 1:1(0) ack 1 win 300");
    t.after(rto, &["P. 1:301(300) ack 1 win 65535"]);
}

#[test]
fn what_a_shut_window_has_not_taken_goes_again_soon_after_it_opens() {
    let (mut t, id) = accepted();
    let rto = t.host.stack.tcp_info(t.now, id).unwrap().rto;
    t.send(id, 500);
    t.sends(&["P. 1:501(500) ack 1 win 65535"]);
    for copy in 0..5 {
        t.peer(". 1:1(0) ack 1 win 0");
        t.after(rto * (1 << copy), &["P. 1:501(500) ack 1 win 65535"]);
    }
    let info = t.host.stack.tcp_info(t.now, id).unwrap();
    assert_eq!((info.retransmits, info.probes, info.backoff), (0, 5, 5));
    t.pass(ms(100));
    t.peer(". 1:1(0) ack 1 win 30000");
    t.after(rto, &["P. 1:501(500) ack 1 win 65535"]);
}

#[test]
fn who_takes_back_a_window_is_told_things_within_what_is_left() {
    for (ack, window, seq) in [(1, 0, 1), (1001, 0, 1001), (1001, 1000, 2001), (1001, 3000, 4001)] {
        let (mut t, id) = accepted();
        t.send(id, 4000);
        assert_eq!(t.output().len(), 4);
        t.peer(&format!("P. 1:101(100) ack {ack} win {window}"));
        t.sends(&[&format!(". {seq}:{seq}(0) ack 101 win 65535")]);
        // Also what came twice, and the end.
        t.peer(&format!("P. 1:101(100) ack {ack} win {window}"));
        t.sends(&[&format!(". {seq}:{seq}(0) ack 101 win 65535")]);
        t.host.stack.abort(t.now, id, &mut t.pool).unwrap();
        t.sends(&[&format!("R. {seq}:{seq}(0) ack 101")]);
    }
    // What is told in units of 128 bytes may be less by a part of one.
    for (window, seq) in [(23, 4001), (22, 3817)] {
        let mut t = Trace::new();
        let id = t.accept(250, "mss 1000,wscale 7", "");
        t.send(id, 4000);
        assert_eq!(t.output().len(), 4);
        t.peer(&format!("P. 1:101(100) ack 1001 win {window}"));
        t.sends(&[&format!(". {seq}:{seq}(0) ack 101 win 1024")]);
    }
}
