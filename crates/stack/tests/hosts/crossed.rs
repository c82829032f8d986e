//! Both ends open at once (RFC 9293, 3.5, figure 7), and our program may close before that is over (3.10.4).

use std::time::Duration;

use bywash_stack::{CloseReason, ConnectionId, Event, State};

use crate::wire::address;
use crate::wire::trace::Trace;

/// A connection of ours, to which the peer's own SYN has come instead of an answer.
fn crossing(options: &str) -> (Trace, ConnectionId) {
    let mut t = Trace::new();
    t.ports.1 = 80;
    let id = t.host.stack.connect(t.now, (None, 0), (address("10.0.0.2"), 80), &mut t.pool).unwrap();
    t.output();
    t.peer(&format!("S 0:0(0) win 5000 {options}"));
    (t, id)
}

/// The same when our answer has gone out.
fn crossed() -> (Trace, ConnectionId) {
    let (mut t, id) = crossing("<mss 1000>");
    t.sends(&["S. 0:0(0) ack 1 win 65535 <mss 1460>"]);
    (t, id)
}

fn state(t: &Trace, id: ConnectionId) -> State {
    t.host.stack.tcp_info(t.now, id).unwrap().state
}

#[test]
fn both_open_at_once() {
    let (mut t, id) = crossed();
    t.peer("S. 0:0(0) ack 1 win 5000 <mss 1000>");
    assert_eq!(t.events(), [Event::Connected(id)]);
    assert_eq!(state(&t, id), State::Established);
}

/// RFC 9293, 3.10.4.
#[test]
fn a_close_before_a_simultaneous_open_is_over_is_done_at_once() {
    for lets_go in [false, true] {
        let (mut t, id) = crossed();
        if lets_go {
            t.host.stack.close(t.now, id, &mut t.pool).unwrap();
        } else {
            t.host.stack.shutdown(t.now, id, &mut t.pool).unwrap();
            assert_eq!(state(&t, id), State::FinWait1);
        }
        t.sends(&["F. 1:1(0) ack 1 win 65535"]);
        t.peer("S. 0:0(0) ack 1 win 5000 <mss 1000>");
        t.sends(&[]);
        t.peer("F. 1:1(0) ack 2 win 5000");
        t.sends(&[". 2:2(0) ack 2 win 65535"]);
        let events = t.events();
        // Who has let go hears nothing more.
        assert_eq!(events.contains(&Event::Closed(id, CloseReason::Done)), !lets_go, "{events:?}");
        assert_eq!(events.is_empty(), lets_go, "{events:?}");
        assert_eq!(t.host.stack.connections(), (usize::from(!lets_go), 0, 1));
    }
}

/// RFC 9293, 3.10.4: "otherwise, queue for processing after entering ESTABLISHED state".
#[test]
fn a_close_before_a_simultaneous_open_is_over_waits_behind_what_is_to_be_sent() {
    let (mut t, id) = crossed();
    t.send(id, 10);
    t.host.stack.shutdown(t.now, id, &mut t.pool).unwrap();
    assert_eq!(state(&t, id), State::SynReceived);
    t.sends(&[]);
    t.peer("S. 0:0(0) ack 1 win 5000 <mss 1000>");
    t.sends(&["FP. 1:11(10) ack 1 win 65535"]);
    assert_eq!(state(&t, id), State::FinWait1);
}

#[test]
fn a_fin_that_went_before_the_handshake_was_over_comes_again_with_our_syn() {
    let (mut t, id) = crossing("<mss 1000,sackOK>");
    t.host.stack.shutdown(t.now, id, &mut t.pool).unwrap();
    t.sends(&["S. 0:0(0) ack 1 win 65535 <mss 1460,sackOK>", "F. 1:1(0) ack 1 win 65535"]);
    // It has not got ours, and a FIN before it says nothing.
    t.peer("S 0:0(0) win 5000 <mss 1000,sackOK>");
    t.sends(&["S. 0:0(0) ack 1 win 65535 <mss 1460,sackOK>"]);
    t.after(Duration::from_secs(1), &["S. 0:0(0) ack 1 win 65535 <mss 1460,sackOK>"]);
    t.peer(". 1:1(0) ack 7 win 5000");
    t.sends(&["R 7:7(0)"]);
    t.peer(". 1:1(0) ack 1 win 5000");
    t.sends(&["F. 1:1(0) ack 1 win 65535"]);
    assert_eq!((t.events(), state(&t, id)), (vec![Event::Connected(id)], State::FinWait1));
    t.peer(". 1:1(0) ack 2 win 5000");
    assert_eq!(state(&t, id), State::FinWait2);

    // One acknowledgment may be of both; and who never answers is given up as in any handshake.
    let (mut t, id) = crossed();
    t.host.stack.shutdown(t.now, id, &mut t.pool).unwrap();
    t.output();
    t.peer(". 1:1(0) ack 2 win 5000");
    assert_eq!((t.events(), state(&t, id)), (vec![Event::Connected(id)], State::FinWait2));
    let (mut t, id) = crossed();
    t.host.stack.shutdown(t.now, id, &mut t.pool).unwrap();
    t.output();
    t.pass(Duration::from_secs(200));
    t.output();
    assert_eq!(t.events(), [Event::Closed(id, CloseReason::TimedOut)]);
}

#[test]
fn who_has_closed_before_the_handshake_was_over_resets_and_is_reset_as_before_it() {
    let shut = || {
        let (mut t, id) = crossed();
        t.host.stack.shutdown(t.now, id, &mut t.pool).unwrap();
        t.output();
        (t, id)
    };
    let (mut t, id) = shut();
    t.host.stack.abort(t.now, id, &mut t.pool).unwrap();
    t.sends(&["R 2:2(0)"]);
    let (mut t, id) = shut();
    t.peer("R 1:1(0) win 0");
    t.sends(&[]);
    assert_eq!(t.events(), [Event::Closed(id, CloseReason::Reset)]);
    // RFC 4022: neither an attempt that has failed nor one that was established.
    let counters = t.host.stack.counters();
    assert_eq!(
        (counters.tcp_attempts_failed, counters.tcp_established_resets, counters.tcp_established),
        (0, 0, 0)
    );
}
