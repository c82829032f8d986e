//! Recoveries as they show on the wire: when one begins, how much goes out in it, and what a probe or a mark may do.

use std::time::Duration;

use bywash_stack::{ConnectionId, Limits, State, TcpInfo};

use crate::wire::address;
use crate::wire::trace::Trace;

const RTT: Duration = Duration::from_millis(20);

/// A connection the peer has opened.
fn accepted(options: &str) -> (Trace, ConnectionId) {
    let mut t = Trace::new();
    let id = t.accept(60_000, options, "");
    (t, id)
}

fn info(t: &Trace, id: ConnectionId) -> TcpInfo {
    t.host.stack.tcp_info(t.now, id).unwrap()
}

#[test]
fn duplicates_right_after_a_recovery_begin_no_other() {
    let (mut t, id) = accepted("mss 1000");
    t.send(id, 10_000);
    assert_eq!(t.output().len(), 10);
    t.pass(RTT);
    (0..3).for_each(|_| t.peer(". 1:1(0) ack 1 win 60000"));
    t.sends(&[". 1:1001(1000) ack 1 win 65535"]);
    t.pass(RTT);
    t.peer(". 1:1(0) ack 10001 win 60000");
    t.send(id, 6000);
    let sent = t.output().len();
    // Answers to copies that were needless, as far as anyone can know.
    (0..6).for_each(|_| t.peer(". 1:1(0) ack 10001 win 60000"));
    let copies = |lines: &[String]| lines.iter().filter(|line| line.contains(" 10001:")).count();
    let lines = t.output();
    assert_eq!((copies(&lines), info(&t, id).total_retrans), (0, 1), "{lines:?}");
    assert!(lines.len() <= 2, "limited transmit (RFC 3042) beyond {sent}: {lines:?}");
    // The first acknowledgment of something newer ends that.
    t.peer(". 1:1(0) ack 11001 win 60000");
    t.output();
    (0..3).for_each(|_| t.peer(". 1:1(0) ack 11001 win 60000"));
    assert!(t.output().contains(&". 11001:12001(1000) ack 1 win 65535".to_owned()));
}

#[test]
fn without_sack_what_duplicates_have_told_is_not_counted_again() {
    let (mut t, id) = accepted("mss 1000");
    t.send(id, 60_000);
    assert_eq!(t.output().len(), 10);
    t.pass(RTT);
    t.peer(". 1:1(0) ack 10001 win 60000");
    assert_eq!(t.output().len(), 20);
    t.pass(RTT);
    let mut sent = Vec::new();
    for _ in 0..4 {
        t.peer(". 1:1(0) ack 10001 win 60000");
        sent.push(t.output().len());
    }
    // Limited transmit, the copy, then 14 for 22.
    assert_eq!(sent, [1, 1, 1, 0]);
    // The copy has filled the first gap: of four that arrived three were told of.
    t.peer(". 1:1(0) ack 14001 win 60000");
    t.sends(&[". 14001:15001(1000) ack 1 win 65535"]);
}

/// The next segment, from `start` on, goes out and is acknowledged in time.
fn answered(t: &mut Trace, id: ConnectionId, start: u32) {
    t.send(id, 1000);
    t.output();
    t.pass(RTT);
    t.peer(&format!(". 1:1(0) ack {} win 60000", start + 1000));
}

/// The next segment, from `start` on, has no answer and goes out again. The window after that.
fn sent_again(t: &mut Trace, id: ConnectionId, start: u32) -> u32 {
    t.send(id, 1000);
    t.output();
    // A probe of a single segment, which may wait for its acknowledgment, goes out when the timer would go off.
    let rto = info(t, id).rto;
    t.after(rto, &[&format!("P. {start}:{}(1000) ack 1 win 65535", start + 1000)]);
    info(t, id).snd_cwnd
}

#[test]
fn a_tail_is_probed_once_until_a_round_trip_was_measured() {
    let (mut t, id) = accepted("mss 1000,sackOK");
    answered(&mut t, id, 1);
    assert!(sent_again(&mut t, id, 1001) > 1000, "a probe");
    // Both have come, and nobody knows which of them is acknowledged.
    t.pass(RTT);
    (0..2).for_each(|_| t.peer(". 1:1(0) ack 2001 win 60000"));
    assert_eq!(sent_again(&mut t, id, 2001), 1000, "the timer");
    t.pass(RTT);
    t.peer(". 1:1(0) ack 3001 win 60000");
    answered(&mut t, id, 3001);
    assert!(sent_again(&mut t, id, 4001) > 1000, "a probe");
}

/// A connection of ours on which marks are heard of, with so many bytes out for a round trip.
fn marked(options: &str, bytes: usize) -> (Trace, ConnectionId) {
    let mut t = Trace::new();
    t.host.stack.set_limits(Limits { ecn: true, ..Limits::default() });
    t.ports.1 = 80;
    let id = t.host.stack.connect(t.now, (None, 0), (address("10.0.0.2"), 80), &mut t.pool).unwrap();
    t.output();
    t.pass(RTT);
    t.peer(&format!("S.E 0:0(0) ack 1 win 30000 <{options}>"));
    t.output();
    t.send(id, bytes);
    assert_eq!(t.output().len(), bytes / 1000);
    t.pass(RTT);
    (t, id)
}

/// CWR is on the first new segment: until that is acknowledged the peer tells of the same mark (RFC 3168, 6.1.2 and 6.1.3).
#[test]
fn a_mark_that_is_told_of_until_its_answer_has_come_is_one() {
    let (mut t, id) = marked("mss 1000", 10_000);
    t.peer(".E 1:1(0) ack 2001 win 30000");
    let after = info(&t, id);
    assert_eq!((after.snd_cwnd, after.snd_ssthresh), (7000, 7000));
    t.peer(".E 1:1(0) ack 10001 win 30000");
    assert_eq!(
        (info(&t, id).snd_cwnd, info(&t, id).snd_ssthresh),
        (7000, 7000),
        "no new segment has gone out"
    );
    // What the peer says meanwhile tells of it again, with nothing out.
    t.peer("P.E 1:101(100) ack 10001 win 30000");
    t.peer("P.E 101:201(100) ack 10001 win 30000");
    assert_eq!((info(&t, id).snd_cwnd, info(&t, id).snd_ssthresh), (7000, 7000));
    t.output();
    t.send(id, 2000);
    t.sends(&[
        ".W [ect0] 10001:11001(1000) ack 201 win 65535",
        "P. [ect0] 11001:12001(1000) ack 201 win 65535",
    ]);
    // Both were marked, and the first one had CWR: this is another window's.
    t.pass(RTT);
    t.peer(".E 201:201(0) ack 11001 win 30000");
    assert!(info(&t, id).snd_ssthresh < 7000);
    assert_eq!(t.host.stack.counters().tcp_ecn_slowed, 2);
}

/// RFC 3168, 6.1.2: once for all that befell one window.
#[test]
fn a_loss_in_a_window_that_a_mark_has_reduced_reduces_it_no_further() {
    let (mut t, id) = marked("mss 1000,sackOK", 10_000);
    t.peer(".E 1:1(0) ack 1001 win 30000");
    assert_eq!(info(&t, id).snd_ssthresh, 7000);
    t.peer(".E 1:1(0) ack 1001 win 30000 <sack 2001:5001>");
    let after = info(&t, id);
    assert_eq!((after.snd_ssthresh, after.ca_state), (7000, 3), "a recovery all the same");
    assert_eq!(t.output()[0], ". 1001:2001(1000) ack 1 win 65535");
    t.pass(RTT);
    t.peer(". 1:1(0) ack 10001 win 30000");
    assert_eq!((info(&t, id).snd_cwnd, info(&t, id).snd_ssthresh), (7000, 7000));
}

#[test]
fn marks_leave_one_segment_and_then_the_next_waits_for_the_timer() {
    let (mut t, id) = marked("mss 1000,sackOK", 1000);
    t.peer(".E 1:1(0) ack 1001 win 30000");
    assert_eq!((info(&t, id).snd_cwnd, info(&t, id).snd_ssthresh), (1000, 2000));
    t.send(id, 3000);
    t.sends(&[".W [ect0] 1001:2001(1000) ack 1 win 65535"]);
    t.pass(RTT);
    t.peer(".E 1:1(0) ack 2001 win 30000");
    assert_eq!(info(&t, id).snd_cwnd, 1000);
    let rto = info(&t, id).rto;
    t.after(rto, &[".W [ect0] 2001:3001(1000) ack 1 win 65535"]);
    t.pass(RTT);
    t.peer(". 1:1(0) ack 3001 win 30000");
    t.sends(&["P. [ect0] 3001:4001(1000) ack 1 win 65535"]);
    // What is only said later waits no longer than that, and a FIN not at all.
    t.pass(RTT);
    t.peer(". 1:1(0) ack 4001 win 30000");
    t.send(id, 1000);
    t.output();
    t.peer(".E 1:1(0) ack 5001 win 30000");
    t.send(id, 1000);
    t.output();
    t.pass(RTT);
    t.peer(".E 1:1(0) ack 6001 win 30000");
    t.sends(&[]);
    let rto = info(&t, id).rto;
    t.pass(rto / 2);
    t.send(id, 1000);
    t.sends(&[]);
    t.pass(rto / 2);
    assert_eq!(t.output().len(), 1);
    t.peer(".E 1:1(0) ack 7001 win 30000");
    t.host.stack.shutdown(t.now, id, &mut t.pool).unwrap();
    assert!(t.output()[0].starts_with("F."));
}

/// A segment that nobody answers, and then, if told, so long before its timeout five more. When the timeout came, and what it sent.
fn timed_out(before: Option<Duration>) -> (Duration, Vec<String>) {
    let (mut t, id) = accepted("mss 1000,sackOK");
    answered(&mut t, id, 1);
    t.output();
    let start = t.now;
    t.send(id, 1000);
    t.output();
    let mut more = before;
    loop {
        t.pass(Duration::from_millis(1));
        if more.is_some_and(|at| t.now.since(start) >= at) {
            more = None;
            t.send(id, 5000);
            assert_eq!(t.output().len(), 5);
        }
        let sent = t.output();
        if info(&t, id).total_rto > 0 {
            return (t.now.since(start), sent);
        }
    }
}

#[test]
fn a_timeout_repeats_the_oldest_segment_whatever_went_out_right_before() {
    let (at, _) = timed_out(None);
    let (again, sent) = timed_out(Some(at - Duration::from_millis(10)));
    assert_eq!((again, sent), (at, vec![". 1001:2001(1000) ack 1 win 65535".to_owned()]));
}

#[test]
fn what_a_timeout_has_found_lost_is_of_no_other_congestion() {
    let (mut t, id) = accepted("mss 1000");
    let timeout = |t: &mut Trace| {
        let before = info(t, id).total_rto;
        while info(t, id).total_rto == before {
            t.pass(Duration::from_millis(1));
            t.output();
        }
    };
    t.send(id, 12_000);
    assert_eq!(t.output().len(), 10);
    timeout(&mut t);
    let threshold = info(&t, id).snd_ssthresh;
    // Seven had arrived; copies of the others, and the two behind them, get lost.
    t.peer(". 1:1(0) ack 7001 win 60000");
    assert_eq!(t.output().len(), 5);
    timeout(&mut t);
    for ack in [8001, 9001, 10_001, 11_001] {
        t.peer(&format!(". 1:1(0) ack {ack} win 60000"));
        t.output();
        assert_eq!((info(&t, id).ca_state, info(&t, id).snd_ssthresh), (4, threshold), "at {ack}");
    }
    t.peer(". 1:1(0) ack 12001 win 60000");
    assert_eq!((info(&t, id).ca_state, info(&t, id).snd_ssthresh), (0, threshold));
    assert_eq!(t.host.stack.counters().tcp_recoveries, 0);
}

#[test]
fn a_pause_need_not_begin_the_window_anew() {
    for (restart_after_idle, segments) in [(true, 10), (false, 20)] {
        let mut t = Trace::new();
        t.host.stack.set_limits(Limits { restart_after_idle, ..Limits::default() });
        let id = t.accept(60_000, "mss 1000,sackOK", "");
        t.send(id, 10_000);
        t.output();
        t.peer(". 1:1(0) ack 10001 win 60000");
        t.pass(Duration::from_secs(5));
        t.send(id, 20_000);
        assert_eq!(t.output().len(), segments);
    }
}

#[test]
fn what_is_too_long_for_the_path_is_no_congestion_however_much_it_is() {
    let mut t = Trace::with_frames(2000);
    let id = t.accept(60_000, "mss 1000,sackOK,wscale 7", "");
    let mut acked = 1;
    let acknowledge = |t: &mut Trace, to: u32| {
        t.pass(RTT);
        t.peer(&format!(". 1:1(0) ack {to} win 60000"));
    };
    while info(&t, id).snd_cwnd < 150_000 {
        t.send(id, info(&t, id).snd_cwnd as usize);
        while !t.output().is_empty() {}
        acked += info(&t, id).unacked_bytes;
        acknowledge(&mut t, acked);
    }
    t.send(id, 140_000);
    while !t.output().is_empty() {}
    let end = acked + 140_000;
    assert_eq!(info(&t, id).unacked_bytes, 140_000);
    t.unreachable(id, 4, 700, acked);
    while acked < end {
        let copies = t.output();
        assert!((1..=63).contains(&copies.len()), "{} in a turn", copies.len());
        let last = copies.last().unwrap().split(&[':', '('][..]).nth(1).unwrap().parse().unwrap();
        acked = last;
        acknowledge(&mut t, acked);
        let info = info(&t, id);
        assert_eq!((info.ca_state, info.snd_ssthresh), (0, u32::MAX), "{acked} of {end}");
    }
    assert_eq!(t.host.stack.counters().tcp_recoveries, 0);
    // What gets lost later is.
    t.send(id, 6600);
    assert_eq!(t.output().len(), 10);
    t.pass(RTT);
    t.peer(&format!(". 1:1(0) ack {end} win 60000 <sack {}:{}>", end + 660, end + 6600));
    assert!(t.output()[0].contains(&format!(" {end}:{}(660)", end + 660)));
    assert_eq!(info(&t, id).ca_state, 3);
}

#[test]
fn late_duplicates_let_nothing_out_after_a_timeout() {
    let (mut t, id) = accepted("mss 1000");
    t.send(id, 12_000);
    assert_eq!(t.output().len(), 10);
    let rto = info(&t, id).rto;
    t.after(rto, &[". 1:1001(1000) ack 1 win 65535"]);
    (0..9).for_each(|_| t.peer(". 1:1(0) ack 1 win 60000"));
    t.sends(&[]);
    t.peer(". 1:1(0) ack 10001 win 60000");
    t.sends(&[". 10001:11001(1000) ack 1 win 65535", "P. 11001:12001(1000) ack 1 win 65535"]);
}

#[test]
fn more_duplicates_than_segments_that_are_out_tell_no_more() {
    let (mut t, id) = accepted("mss 1000");
    t.send(id, 60_000);
    assert_eq!(t.output().len(), 10);
    t.pass(RTT);
    (0..100).for_each(|_| t.peer(". 1:1(0) ack 1 win 60000"));
    let sent = t.output();
    // Limited transmit (RFC 3042), the copy, and what may follow of a window of 7.
    assert!(sent.len() <= 13, "{sent:?}");
}

/// Linux counts a FIN among what has arrived; not every peer does.
#[test]
fn a_block_that_ends_before_our_fin_counts_as_one_behind_it_does() {
    for end in [2501, 2502] {
        let (mut t, id) = accepted("mss 1000,sackOK");
        t.send(id, 2500);
        t.host.stack.shutdown(t.now, id, &mut t.pool).unwrap();
        assert_eq!(t.output()[2], "FP. 2001:2501(500) ack 1 win 65535");
        t.pass(RTT);
        t.peer(&format!(". 1:1(0) ack 1001 win 60000 <sack 2001:{end}>"));
        // What is only late would come in a quarter of a round trip (RFC 8985, 6.2).
        t.after(RTT / 4, &[". 1001:2001(1000) ack 1 win 65535"]);
        let (told, later) = (info(&t, id), end == 2502);
        assert_eq!((told.sacked, told.lost, told.unacked), (1, 1, if later { 2 } else { 3 }), "{end}");
        t.pass(RTT);
        // The FIN may have got no further, whatever was told: it is not forgotten.
        t.peer(". 1:1(0) ack 2501 win 60000");
        let rto = info(&t, id).rto;
        let mut sent = Vec::new();
        for _ in 0..3 {
            t.pass(rto);
            sent.extend(t.output());
        }
        assert_eq!(sent[0], "F. 2501:2501(0) ack 1 win 65535", "{end}: {sent:?}");
        t.peer(". 1:1(0) ack 2502 win 60000");
        assert_eq!(info(&t, id).state, State::FinWait2);
    }
}

#[test]
fn a_block_is_told_with_the_fin_behind_it_unless_that_was_none() {
    let (mut t, _) = accepted("mss 1000,sackOK");
    t.peer("FP. 1001:1501(500) ack 1 win 60000");
    t.sends(&[". 1:1(0) ack 1 win 65535 <sack 1001:1502>"]);
    t.peer("P. 501:601(100) ack 1 win 60000");
    t.sends(&[". 1:1(0) ack 1 win 65535 <sack 501:601,sack 1001:1502>"]);
    // Twice; and what joins both.
    t.peer("FP. 1001:1501(500) ack 1 win 60000");
    t.sends(&[". 1:1(0) ack 1 win 65535 <sack 1001:1501,sack 1001:1502,sack 501:601>"]);
    t.peer(". 601:1001(400) ack 1 win 60000");
    t.sends(&[". 1:1(0) ack 1 win 65535 <sack 501:1502>"]);
    t.peer(". 1:501(500) ack 1 win 60000");
    t.sends(&[". 1:1(0) ack 1502 win 65535"]);
    // One by itself, of which the data before it comes later; and data where it was.
    let (mut t, id) = accepted("mss 1000,sackOK");
    t.peer("F. 1501:1501(0) ack 1 win 60000");
    t.sends(&[". 1:1(0) ack 1 win 65535"]);
    t.peer("P. 1001:1501(500) ack 1 win 60000");
    t.sends(&[". 1:1(0) ack 1 win 65535 <sack 1001:1502>"]);
    t.peer("P. 1501:1601(100) ack 1 win 60000");
    t.sends(&[". 1:1(0) ack 1 win 65535 <sack 1001:1601>"]);
    t.peer(". 1:1001(1000) ack 1 win 60000");
    t.sends(&[". 1:1(0) ack 1601 win 65535"]);
    assert_eq!(t.host.stack.readable_bytes(id), Ok(1600));
}

#[test]
fn a_full_segment_with_our_fin_is_one_and_is_probed_as_it_went_out() {
    let (mut t, id) = accepted("mss 1000,sackOK");
    t.send(id, 1000);
    t.host.stack.shutdown(t.now, id, &mut t.pool).unwrap();
    let last = "FP. 1:1001(1000) ack 1 win 65535";
    t.sends(&[last]);
    assert_eq!(info(&t, id).unacked, 1);
    // A single one may wait for its acknowledgment (RFC 8985, 7.2): its probe goes out when the timer would go off.
    let rto = info(&t, id).rto;
    t.after(rto, &[last]);
    assert_eq!((info(&t, id).retrans, info(&t, id).total_rto), (1, 0));
    // Behind another one: of more than one no acknowledgment waits.
    let (mut t, id) = accepted("mss 1000,sackOK");
    t.send(id, 2000);
    t.host.stack.shutdown(t.now, id, &mut t.pool).unwrap();
    assert_eq!(t.output().len(), 2);
    let wait = info(&t, id).rtt * 2;
    t.after(wait, &["FP. 1001:2001(1000) ack 1 win 65535"]);
    // Two behind a gap are no three (RFC 8985, 6.2): what is missing may be late.
    let (mut t, id) = accepted("mss 1000,sackOK");
    t.send(id, 3000);
    t.host.stack.shutdown(t.now, id, &mut t.pool).unwrap();
    assert_eq!(t.output().len(), 3);
    t.pass(RTT);
    t.peer(". 1:1(0) ack 1 win 60000 <sack 1001:3002>");
    t.after(RTT / 4, &[". 1:1001(1000) ack 1 win 65535"]);
}

#[test]
fn three_duplicates_bring_one_copy_where_the_path_has_become_narrower_too() {
    let (mut t, id) = accepted("mss 1000");
    t.send(id, 4000);
    assert_eq!(t.output().len(), 4);
    t.unreachable(id, 4, 700, 1);
    assert_eq!(t.output().len(), 7, "660 bytes each");
    t.pass(RTT);
    (0..2).for_each(|_| t.peer(". 1:1(0) ack 1 win 60000"));
    t.sends(&[]);
    t.peer(". 1:1(0) ack 1 win 60000");
    t.sends(&[". 1:661(660) ack 1 win 65535"]);
    // What else the peer says is no duplicate.
    for seq in [1, 101] {
        t.peer(&format!("P. {seq}:{}(100) ack 1 win 60000", seq + 100));
        t.sends(&[&format!(". 4001:4001(0) ack {} win 65535", seq + 100)]);
    }
    assert_eq!(info(&t, id).ca_state, 1, "no congestion");
}
