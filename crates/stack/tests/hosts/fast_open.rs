//! TCP Fast Open (RFC 7413) on the wire: data that comes with a SYN.

use std::time::Duration;

use bywash_stack::{CloseReason, ConnectionId, Event, FastOpenKeys, FastOpenServer, ListenerId, State};

use crate::wire::trace::Trace;

const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// What Linux makes of this key for the peer of a [`Trace`].
const KEY: [u8; 16] = *b"0123456789abcdef";
const COOKIE: &str = "ba9c4f91cc4e4594";

fn server(pending: usize) -> FastOpenServer {
    let keys = Some(FastOpenKeys { primary: KEY, backup: None });
    FastOpenServer { pending, keys, cookieless: false }
}

fn listening(how: FastOpenServer) -> (Trace, ListenerId) {
    let mut t = Trace::new();
    let listener = t.host.stack.listen(None, 80, 4).unwrap();
    t.host.stack.set_fast_open(listener, how);
    (t, listener)
}

/// The connection that has just been accepted, with something to read or not.
#[track_caller]
fn taken(t: &mut Trace, readable: bool) -> ConnectionId {
    let events = t.events();
    let Some(Event::Accepted { connection, .. }) = events.first().copied() else { panic!("{events:?}") };
    let rest: &[Event] = if readable { &[Event::Readable(connection)] } else { &[] };
    assert_eq!(events[1..], *rest);
    connection
}

fn read(t: &mut Trace, id: ConnectionId) -> usize {
    t.host.stack.receive_copy(t.now, id, &mut [0; 4096], &mut t.pool).unwrap()
}

fn state(t: &Trace, id: ConnectionId) -> State {
    t.host.stack.tcp_info(t.now, id).unwrap().state
}

/// A connection that the peer opens with ten bytes.
fn opened(t: &mut Trace) -> ConnectionId {
    t.peer(&format!("S 0:10(10) win 30000 <mss 1000,FO {COOKIE}>"));
    t.sends(&["S. 0:0(0) ack 11 win 65535 <mss 1460>"]);
    taken(t, true)
}

#[test]
fn who_asks_is_told_a_cookie_and_nothing_else_is_different() {
    let (mut t, _) = listening(server(4));
    t.peer("S 0:10(10) win 30000 <mss 1000,FO>");
    t.sends(&[&format!("S. 0:0(0) ack 1 win 65535 <mss 1460,FO {COOKIE}>")]);
    assert_eq!(t.events(), []);
    t.after(ms(1000), &["S. 0:0(0) ack 1 win 65535 <mss 1460>"]);
    t.peer(". 1:1(0) ack 1 win 30000");
    taken(&mut t, false);
    t.ports.1 = 5001;
    t.peer("S 0:0(0) win 30000 <mss 1000,FOEXP>");
    t.sends(&[&format!("S. 0:0(0) ack 1 win 65535 <mss 1460,FOEXP {COOKIE}>")]);
    assert_eq!(t.host.stack.counters().tcp_fast_open_cookies_asked, 2);
}

#[test]
fn a_cookie_that_is_none_of_ours_takes_no_data_and_is_replaced() {
    let (mut t, _) = listening(server(4));
    t.peer("S 0:10(10) win 30000 <mss 1000,FO 0011223344556677>");
    t.sends(&[&format!("S. 0:0(0) ack 1 win 65535 <mss 1460,FO {COOKIE}>")]);
    assert_eq!((t.events(), t.host.stack.connections()), (Vec::new(), (0, 1, 0)));
    assert_eq!(t.host.stack.counters().tcp_fast_open_passive_failed, 1);
}

#[test]
fn the_request_comes_with_the_syn_and_the_answer_before_the_handshake_is_over() {
    let (mut t, _) = listening(server(4));
    let id = opened(&mut t);
    assert_eq!((state(&t, id), read(&mut t, id)), (State::SynReceived, 10));
    t.send(id, 1000);
    t.sends(&["P. 1:1001(1000) ack 11 win 65535"]);
    t.pass(ms(20));
    t.peer(". 11:11(0) ack 1001 win 30000");
    t.sends(&[]);
    let info = t.host.stack.tcp_info(t.now, id).unwrap();
    assert_eq!((info.state, info.syn_data, info.rtt), (State::Established, true, ms(20)));
    assert_eq!((t.events(), info.snd_cwnd), (Vec::new(), 10_000));
    let counted = t.host.stack.counters();
    assert_eq!((counted.tcp_fast_open_passive, counted.tcp_passive_opens), (1, 1));
}

#[test]
fn before_the_handshake_is_over_no_more_goes_out_than_the_initial_window_or_the_peer_s() {
    for (window, most) in [(30_000, 10), (3000, 3)] {
        let (mut t, _) = listening(server(4));
        t.peer(&format!("S 0:0(0) win {window} <mss 1000,FO {COOKIE}>"));
        t.sends(&["S. 0:0(0) ack 1 win 65535 <mss 1460>"]);
        let id = taken(&mut t, false);
        t.send(id, 20_000);
        assert_eq!(t.output().len(), most);
        assert!(!t.host.stack.tcp_info(t.now, id).unwrap().syn_data, "there was none");
    }
}

#[test]
fn a_program_may_close_before_the_handshake_is_over() {
    let (mut t, _) = listening(server(4));
    let id = opened(&mut t);
    read(&mut t, id);
    t.send(id, 100);
    t.host.stack.close(t.now, id, &mut t.pool).unwrap();
    t.sends(&["FP. 1:101(100) ack 11 win 65535"]);
    t.peer("F. 11:11(0) ack 102 win 30000");
    t.sends(&[". 102:102(0) ack 12 win 65535"]);
    assert_eq!((t.events(), t.host.stack.connections()), (Vec::new(), (0, 0, 1)));
}

#[test]
fn who_closes_with_something_unread_resets_what_it_has_acknowledged() {
    let (mut t, _) = listening(server(4));
    let id = opened(&mut t);
    t.host.stack.close(t.now, id, &mut t.pool).unwrap();
    t.sends(&["R. 1:1(0) ack 11"]);
    assert_eq!(t.host.stack.connections(), (0, 0, 0));
}

#[test]
fn the_answer_is_repeated_by_the_timer_and_when_the_syn_comes_again_and_data_only_after_it() {
    let (mut t, _) = listening(server(4));
    let id = opened(&mut t);
    t.send(id, 100);
    t.sends(&["P. 1:101(100) ack 11 win 65535"]);
    let answer = "S. 0:0(0) ack 11 win 65535 <mss 1460>";
    t.after(ms(1000), &[answer]);
    for expected in [&[answer][..], &[]] {
        t.peer("S 0:0(0) win 30000 <mss 1000>");
        t.sends(expected);
    }
    t.peer(". 11:11(0) ack 1 win 30000");
    t.sends(&["P. 1:101(100) ack 11 win 65535"]);
    t.peer(". 11:11(0) ack 101 win 30000");
    assert_eq!(state(&t, id), State::Established);
}

#[test]
fn a_handshake_that_is_never_completed_is_given_up() {
    let (mut t, _) = listening(server(4));
    let id = opened(&mut t);
    for seconds in [1, 2, 4, 8, 16] {
        t.after(ms(seconds * 1000), &["S. 0:0(0) ack 11 win 65535 <mss 1460>"]);
    }
    t.pass(ms(33_000));
    t.sends(&[]);
    assert_eq!(t.events(), [Event::Closed(id, CloseReason::TimedOut)]);
}

#[test]
fn of_too_many_the_next_has_an_ordinary_handshake_until_one_is_over() {
    let (mut t, _) = listening(server(2));
    let ordinary = "S. 0:0(0) ack 1 win 65535 <mss 1460>";
    let [_, second] = [5000, 5001].map(|port| {
        t.ports.1 = port;
        opened(&mut t)
    });
    t.ports.1 = 5002;
    t.peer(&format!("S 0:10(10) win 30000 <mss 1000,FO {COOKIE}>"));
    t.sends(&[ordinary]);
    assert_eq!(t.host.stack.counters().tcp_fast_open_overflows, 1);
    t.host.stack.abort(t.now, second, &mut t.pool).unwrap();
    assert_eq!(t.output().len(), 1, "a reset");
    t.ports.1 = 5003;
    opened(&mut t);
    t.peer(". 11:11(0) ack 1 win 30000");
    t.ports.1 = 5004;
    opened(&mut t);
}

/// RFC 7413, 5.1: or a stranger whose SYNs have another's address had as many as that one's resets allow.
#[test]
fn a_handshake_that_was_reset_counts_for_another_minute() {
    let (mut t, _) = listening(server(1));
    let id = opened(&mut t);
    t.peer("R 11:11(0) win 0");
    assert_eq!(t.events(), [Event::Closed(id, CloseReason::Reset)]);
    assert_eq!(read(&mut t, id), 10, "what came before can still be read");
    t.ports.1 = 5001;
    t.pass(ms(59_000));
    t.peer(&format!("S 0:10(10) win 30000 <mss 1000,FO {COOKIE}>"));
    t.sends(&["S. 0:0(0) ack 1 win 65535 <mss 1460>"]);
    t.peer("R 1:1(0) win 0");
    t.pass(ms(1000));
    t.ports.1 = 5002;
    opened(&mut t);
}

#[test]
fn where_no_cookie_is_asked_for_data_is_enough() {
    let (mut t, _) = listening(FastOpenServer { cookieless: true, ..server(4) });
    t.peer("S 0:10(10) win 30000 <mss 1000,wscale 7>");
    t.sends(&["S. 0:0(0) ack 11 win 65535 <mss 1460,wscale 7>"]);
    taken(&mut t, true);
    t.ports.1 = 5001;
    t.peer("S 0:0(0) win 30000 <mss 1000>");
    t.sends(&["S. 0:0(0) ack 1 win 65535 <mss 1460>"]);
    assert_eq!(t.events(), []);
}

#[test]
fn a_cookie_of_the_key_before_is_good_and_a_new_one_is_told() {
    let keys = Some(FastOpenKeys { primary: [1; 16], backup: Some(KEY) });
    let (mut t, _) = listening(FastOpenServer { keys, ..server(4) });
    t.peer(&format!("S 0:10(10) win 30000 <mss 1000,FO {COOKIE}>"));
    t.sends(&["S. 0:0(0) ack 11 win 65535 <mss 1460,FO dcfa12da5bd712d8>"]);
    taken(&mut t, true);
    t.after(ms(1000), &["S. 0:0(0) ack 11 win 65535 <mss 1460>"]);
}

#[test]
fn a_fin_beside_the_data_comes_again() {
    let (mut t, _) = listening(server(4));
    t.peer(&format!("SF 0:10(10) win 30000 <mss 1000,FO {COOKIE}>"));
    t.sends(&["S. 0:0(0) ack 11 win 65535 <mss 1460>"]);
    let id = taken(&mut t, true);
    t.peer("F. 11:11(0) ack 1 win 30000");
    t.sends(&[". 1:1(0) ack 12 win 65535"]);
    assert_eq!((t.events(), state(&t, id)), (vec![Event::PeerClosed(id)], State::CloseWait));
}

#[test]
fn a_listener_that_was_not_told_takes_none() {
    let mut t = Trace::new();
    t.host.stack.listen(None, 80, 4).unwrap();
    t.peer(&format!("S 0:10(10) win 30000 <mss 1000,FO {COOKIE}>"));
    t.sends(&["S. 0:0(0) ack 1 win 65535 <mss 1460>"]);
    let (mut t, listener) = listening(server(4));
    t.host.stack.set_fast_open(listener, FastOpenServer::default());
    t.peer("S 0:0(0) win 30000 <mss 1000,FO>");
    t.sends(&["S. 0:0(0) ack 1 win 65535 <mss 1460>"]);
}
