//! Recoveries and timeouts that are taken back, since all that was sent again had only been overtaken, or had taken its time.

use std::time::Duration;

use bywash_stack::{CongestionControl, ConnectionId, Limits, TcpInfo};

use crate::wire::trace::Trace;

const SECOND: &str = ". 1001:2001(1000) ack 1 win 65535";

/// Ten segments are out for 20 ms, the second is overtaken by three and goes out again.
fn recovering(options: &str, clock: &str) -> (Trace, ConnectionId) {
    let mut t = Trace::new();
    let id = t.accept(30_000, options, clock);
    t.send(id, 10_000);
    assert_eq!(t.output().len(), 10);
    t.pass(Duration::from_millis(20));
    (t, id)
}

fn info(t: &Trace, id: ConnectionId) -> TcpInfo {
    t.host.stack.tcp_info(t.now, id).unwrap()
}

/// As [`recovering`], without timestamps.
fn by_blocks() -> (Trace, ConnectionId) {
    let (mut t, id) = recovering("mss 1000,sackOK", "");
    t.peer(". 1:1(0) ack 1001 win 30000");
    t.peer(". 1:1(0) ack 1001 win 30000 <sack 2001:5001>");
    t.sends(&[SECOND]);
    assert_eq!(info(&t, id).snd_ssthresh, 6300);
    (t, id)
}

#[test]
fn a_copy_that_came_twice_is_no_loss() {
    let (mut t, id) = by_blocks();
    t.peer(". 1:1(0) ack 10001 win 30000");
    assert_eq!((info(&t, id).snd_ssthresh, info(&t, id).snd_cwnd), (6300, 6300));
    t.peer(". 1:1(0) ack 10001 win 30000 <sack 1001:2001>");
    let after = info(&t, id);
    // It was in slow start, which goes on.
    assert_eq!((after.snd_ssthresh, after.snd_cwnd), (u32::MAX, 6300));
    let counters = t.host.stack.counters();
    assert_eq!((counters.tcp_recoveries, counters.tcp_recoveries_undone), (1, 1));
}

#[test]
fn while_one_copy_is_not_told_to_have_come_twice_something_was_lost() {
    let (mut t, id) = by_blocks();
    t.pass(Duration::from_millis(1));
    t.peer(". 1:1(0) ack 1001 win 30000 <sack 7001:10001,sack 2001:5001>");
    t.pass(Duration::from_millis(20));
    t.output();
    assert!(info(&t, id).total_retrans > 1);
    t.peer(". 1:1(0) ack 10001 win 30000 <sack 1001:2001>");
    assert_eq!(info(&t, id).snd_ssthresh, 6300);
}

#[test]
fn what_the_network_doubles_says_nothing() {
    let (mut t, id) = by_blocks();
    t.peer(". 1:1(0) ack 10001 win 30000");
    // It was sent once.
    t.peer(". 1:1(0) ack 10001 win 30000 <sack 3001:4001>");
    t.peer(". 1:1(0) ack 10001 win 30000 <sack 1001:2001>");
    assert_eq!(info(&t, id).snd_ssthresh, 6300);
}

#[test]
fn an_acknowledgment_that_was_overtaken_tells_of_no_duplicates() {
    let (mut t, id) = by_blocks();
    t.peer(". 1:1(0) ack 10001 win 30000");
    // Its block is above its own number: when it left, that was news.
    t.peer(". 1:1(0) ack 1 win 30000 <sack 1001:2001>");
    assert_eq!((info(&t, id).snd_ssthresh, info(&t, id).dsack_dups), (6300, 0));
}

#[test]
fn a_timeout_stays() {
    let (mut t, id) = by_blocks();
    let rto = info(&t, id).rto;
    t.pass(rto);
    t.output();
    assert_eq!(info(&t, id).total_retrans, 2);
    t.peer(". 1:1(0) ack 10001 win 30000 <sack 1001:2001>");
    assert!(info(&t, id).snd_ssthresh <= 6300);
}

/// As [`recovering`], with timestamps; and when the copy went out, by our clock.
fn by_the_clock() -> (Trace, ConnectionId, u32) {
    let (mut t, id) = recovering("mss 1012,sackOK,TS 100", "<TS 101>");
    let first = t.clock;
    t.pass(Duration::from_millis(1));
    t.peer(". 1:1(0) ack 1001 win 30000 <TS 102>");
    t.peer(". 1:1(0) ack 1001 win 30000 <TS 102,sack 2001:5001>");
    assert_eq!(t.output(), [format!("{SECOND} <TS ecr 102>")]);
    let reduced = info(&t, id);
    assert_eq!(reduced.snd_ssthresh, 6300);
    (t, id, first)
}

#[test]
fn an_echo_of_the_original_is_no_loss() {
    let (mut t, id, first) = by_the_clock();
    t.clock = first;
    t.peer(". 1:1(0) ack 5001 win 30000 <TS 103>");
    let after = info(&t, id);
    // Slow start goes on with what has just come.
    assert_eq!((after.snd_ssthresh, after.ca_state, after.snd_cwnd), (u32::MAX, 0, 7300));
}

#[test]
fn what_a_recovery_in_vain_had_not_sent_again_is_on_its_way() {
    let (mut t, id) = recovering("mss 1012,sackOK,TS 100", "<TS 101>");
    let first = t.clock;
    t.pass(Duration::from_millis(1));
    t.peer(". 1:1(0) ack 1 win 30000 <TS 102,sack 5001:8001>");
    let copies = t.output().len();
    assert!(copies > 0 && info(&t, id).lost > 0, "{copies}");
    t.clock = first;
    t.peer(". 1:1(0) ack 1001 win 30000 <TS 103,sack 5001:8001>");
    assert_eq!(t.output(), [""; 0]);
    let after = info(&t, id);
    // Linux's TCP_CA_Disorder: something has arrived out of order. Copies that are on their way count as lost.
    assert_eq!((after.snd_ssthresh, after.ca_state), (u32::MAX, 1));
    assert_eq!(after.lost as usize, copies - 1, "the first one was acknowledged");
    let counters = t.host.stack.counters();
    assert_eq!((counters.tcp_recoveries, counters.tcp_recoveries_undone), (1, 1));
    // It is waited for as long as for what is overtaken, and no longer.
    let since = after.total_retrans;
    t.pass(Duration::from_millis(10));
    t.output();
    assert!(info(&t, id).total_retrans > since);
    t.peer(". 1:1(0) ack 10001 win 30000 <TS 104>");
    assert_eq!(info(&t, id).unacked, 0);
}

#[test]
fn an_echo_of_the_copy_says_nothing() {
    let (mut t, id, _) = by_the_clock();
    t.peer(". 1:1(0) ack 5001 win 30000 <TS 103>");
    assert_eq!(info(&t, id).snd_ssthresh, 6300);
}

/// Nothing comes back until the retransmission timer goes off. What goes out meanwhile.
fn silence(t: &mut Trace, id: ConnectionId) -> Vec<String> {
    let mut sent = Vec::new();
    for _ in 0..100 {
        t.pass(Duration::from_millis(10));
        sent.extend(t.output());
        if info(t, id).ca_state == 4 {
            return sent;
        }
    }
    panic!("no timeout: {sent:?}");
}

/// Ten segments are out, the network keeps them for long, and the first goes out again. With what our clock was when they left.
fn late() -> (Trace, ConnectionId, u32) {
    let mut t = Trace::new();
    let id = t.accept(30_000, "mss 1012,sackOK,TS 100", "<TS 101>");
    t.send(id, 10_000);
    t.output();
    let first = t.clock;
    let copies = silence(&mut t, id);
    assert_eq!(copies.last().unwrap().split(' ').nth(1), Some("1:1001(1000)"), "{copies:?}");
    let after = info(&t, id);
    assert_eq!((after.ca_state, after.snd_ssthresh), (4, 7000), "{copies:?}");
    assert!(after.lost > 1, "{copies:?}");
    (t, id, first)
}

#[test]
fn after_a_timeout_an_echo_of_the_original_says_that_all_is_on_its_way() {
    let (mut t, id, first) = late();
    let (rto, since) = (info(&t, id).rto, info(&t, id).total_retrans);
    t.clock = first;
    t.peer(". 1:1(0) ack 1001 win 30000 <TS 103>");
    // Nothing goes out again of what the timer had taken for lost.
    assert_eq!(t.output(), [""; 0]);
    let after = info(&t, id);
    assert_eq!((after.ca_state, after.snd_ssthresh, after.total_retrans), (0, u32::MAX, since));
    assert!(after.snd_cwnd >= 10_000 && after.rto > rto / 2, "{after:?}");
    // What comes next goes out at once.
    t.send(id, 1000);
    t.sends(&["P. 10001:11001(1000) ack 1 win 65535 <TS ecr 103>"]);
    t.peer(". 1:1(0) ack 11001 win 30000 <TS 104>");
    assert_eq!((info(&t, id).unacked, info(&t, id).total_retrans), (0, since));
    let counters = t.host.stack.counters();
    assert_eq!(
        (counters.tcp_timeouts, counters.tcp_timeouts_undone, counters.tcp_recoveries_undone),
        (1, 1, 0)
    );
}

#[test]
fn after_a_timeout_an_echo_of_the_copy_says_nothing() {
    let (mut t, id, _) = late();
    t.peer(". 1:1(0) ack 1001 win 30000 <TS 103>");
    assert!(!t.output().is_empty());
    assert_eq!((info(&t, id).ca_state, info(&t, id).snd_ssthresh), (4, 7000));
}

#[test]
fn a_probe_and_a_timeout_of_the_same_segment_cannot_be_told_apart() {
    for fin in [false, true] {
        let mut t = Trace::new();
        let id = t.accept(30_000, "mss 1012,sackOK,TS 100", "<TS 101>");
        t.send(id, 1000);
        if fin {
            t.host.stack.shutdown(t.now, id, &mut t.pool).unwrap();
        }
        t.output();
        let first = t.clock;
        assert_eq!(silence(&mut t, id).len(), 2);
        let reduced = info(&t, id).snd_ssthresh;
        assert_ne!(reduced, u32::MAX);
        // Of the original, or of the probe: either is older than the timeout's copy.
        t.clock = first;
        t.peer(". 1:1(0) ack 1001 win 30000 <TS 103>");
        assert_eq!((info(&t, id).snd_ssthresh, t.host.stack.counters().tcp_timeouts_undone), (reduced, 0));
    }
}

#[test]
fn what_a_timeout_has_sent_again_and_came_twice_was_not_lost() {
    let mut t = Trace::new();
    let id = t.accept(30_000, "mss 1000,sackOK", "");
    // Not all of it at once: the probe is new data, and no copy.
    t.send(id, 12_000);
    assert_eq!(t.output().len(), 10);
    let first = ". 1:1001(1000) ack 1 win 65535";
    assert_eq!(silence(&mut t, id).last().unwrap(), first);
    t.peer(". 1:1(0) ack 11001 win 30000");
    assert_ne!(info(&t, id).snd_ssthresh, u32::MAX);
    t.peer(". 1:1(0) ack 11001 win 30000 <sack 1:1001>");
    assert_eq!((info(&t, id).snd_ssthresh, info(&t, id).ca_state), (u32::MAX, 0));
}

#[test]
fn what_another_algorithm_began_is_not_taken_back() {
    let (mut t, id) = by_blocks();
    let limits = Limits { congestion: CongestionControl::NewReno, ..t.host.stack.limits() };
    t.host.stack.set_connection_limits(t.now, id, limits, &mut t.pool).unwrap();
    t.peer(". 1:1(0) ack 10001 win 30000");
    t.peer(". 1:1(0) ack 10001 win 30000 <sack 1001:2001>");
    assert_eq!((info(&t, id).snd_ssthresh, t.host.stack.counters().tcp_recoveries_undone), (6300, 0));
}
