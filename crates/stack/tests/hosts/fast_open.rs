//! TCP Fast Open (RFC 7413) on the wire: data that comes with a SYN.

use std::time::Duration;

use bywash_stack::{
    CloseReason, ConnectionId, Event, FastOpenClient, FastOpenFailure, FastOpenKeys, FastOpenServer, Limits,
    ListenerId, State,
};

use crate::wire::trace::Trace;
use crate::wire::{Pair, address};

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

    let (mut t, _) = listening(server(4));
    let id = opened(&mut t);
    read(&mut t, id);
    t.host.stack.shutdown(t.now, id, &mut t.pool).unwrap();
    t.sends(&["F. 1:1(0) ack 11 win 65535"]);
    assert_eq!(state(&t, id), State::FinWait1);
    t.after(Duration::from_secs(1), &["S. 0:0(0) ack 11 win 65535 <mss 1460>"]);
    t.peer("F. 11:11(0) ack 1 win 30000");
    t.sends(&["F. 1:1(0) ack 12 win 65535"]);
    assert_eq!(state(&t, id), State::Closing);
    t.peer(". 12:12(0) ack 2 win 30000");
    assert_eq!(t.host.stack.connections(), (1, 0, 1));

    // Before our answer is out; of the tail, which is the FIN, no probe goes before (RFC 8985, 7.2).
    let (mut t, _) = listening(server(4));
    t.peer(&format!("S 0:10(10) win 30000 <mss 1000,sackOK,FO {COOKIE}>"));
    let id = taken(&mut t, true);
    read(&mut t, id);
    t.host.stack.shutdown(t.now, id, &mut t.pool).unwrap();
    let answer = "S. 0:0(0) ack 11 win 65535 <mss 1460,sackOK>";
    t.sends(&[answer, "F. 1:1(0) ack 11 win 65535"]);
    t.after(ms(1000), &[answer]);
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
    for closes in [false, true] {
        let (mut t, _) = listening(server(1));
        let id = opened(&mut t);
        if closes {
            t.host.stack.shutdown(t.now, id, &mut t.pool).unwrap();
            t.sends(&["F. 1:1(0) ack 11 win 65535"]);
        }
        for seconds in [1, 2, 4, 8, 16] {
            t.after(ms(seconds * 1000), &["S. 0:0(0) ack 11 win 65535 <mss 1460>"]);
        }
        t.pass(ms(33_000));
        t.sends(&[]);
        assert_eq!(t.events(), [Event::Closed(id, CloseReason::TimedOut)]);
        // Its place among those that are pending is free again.
        t.ports.1 = 5001;
        opened(&mut t);
    }
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

/// Limits with which SYNs have few options.
fn plain() -> Limits {
    Limits { timestamps: false, sack: false, window_scaling: false, ..Limits::default() }
}

/// A connection to the peer with so many bytes to send, and how many its SYN took.
fn connect(t: &mut Trace, n: usize, cookieless: bool) -> (ConnectionId, usize) {
    t.ports.1 = 80;
    let data = vec![7; n];
    let (to, first) = ((address("10.0.0.2"), 80), FastOpenClient { data: &data, cookieless });
    t.host.stack.connect_fast(t.now, (None, 0), to, (plain(), first), |_| true, &mut t.pool).unwrap()
}

/// A client that has been told a cookie, by a peer that takes segments of 1000 bytes.
fn told() -> Trace {
    let mut t = Trace::new();
    let (id, taken) = connect(&mut t, 100, false);
    assert_eq!(taken, 0);
    t.sends(&["S 0:0(0) win 65535 <mss 1460,FO>"]);
    t.peer("S. 0:0(0) ack 1 win 30000 <mss 1000,FO 0011223344556677>");
    t.sends(&[". 1:1(0) ack 1 win 65535"]);
    let info = t.host.stack.tcp_info(t.now, id).unwrap();
    assert_eq!((info.syn_data, info.fast_open_failed), (false, Some(FastOpenFailure::NoCookie)));
    t.host.stack.abort(t.now, id, &mut t.pool).unwrap();
    t.output();
    t.events();
    t
}

const SYN: &str = "S 0:100(100) win 65535 <mss 1460,FO 0011223344556677>";

fn syn_data(t: &Trace, id: ConnectionId) -> (bool, Option<FastOpenFailure>) {
    let info = t.host.stack.tcp_info(t.now, id).unwrap();
    (info.syn_data, info.fast_open_failed)
}

#[test]
fn with_a_cookie_the_syn_has_data_and_what_the_answer_brings_is_read() {
    let mut t = told();
    let remote = address("10.0.0.2");
    assert!(t.host.stack.has_fast_open_cookie(t.now, None, remote));
    assert!(!t.host.stack.has_fast_open_cookie(t.now, None, address("10.0.0.3")));
    let (id, taken) = connect(&mut t, 100, false);
    assert_eq!(taken, 100);
    t.sends(&[SYN]);
    t.pass(ms(20));
    t.peer("S. 0:50(50) ack 101 win 30000 <mss 1000>");
    t.sends(&[". 101:101(0) ack 51 win 65535"]);
    assert_eq!(t.events(), [Event::Connected(id), Event::Readable(id)]);
    assert_eq!((syn_data(&t, id), read(&mut t, id)), ((true, None), 50));
    let info = t.host.stack.tcp_info(t.now, id).unwrap();
    assert_eq!((info.rtt, info.delivered, info.snd_cwnd, info.bytes_acked), (ms(20), 1, 10_000, 100));
    assert_eq!(t.host.stack.counters().tcp_fast_open_active, 1);
}

#[test]
fn the_syn_has_as_much_as_the_server_took_last_less_what_options_may_take() {
    let mut t = told();
    let (id, taken) = connect(&mut t, 5000, false);
    assert_eq!(taken, 960);
    t.sends(&["S 0:960(960) win 65535 <mss 1460,FO 0011223344556677>"]);
    // The rest may follow at once, and goes out after the handshake.
    assert_eq!(t.host.stack.send(t.now, id, &[7; 1500], &mut t.pool), Ok(1500));
    t.sends(&[]);
    t.peer("S. 0:0(0) ack 961 win 30000 <mss 1000>");
    t.sends(&[". 961:1961(1000) ack 1 win 65535", "P. 1961:2461(500) ack 1 win 65535"]);
}

#[test]
fn what_the_answer_does_not_acknowledge_goes_out_again_at_once() {
    for (ack, copy) in [(1, "P. 1:101(100) ack 1 win 65535"), (41, "P. 41:101(60) ack 1 win 65535")] {
        let mut t = told();
        let (id, _) = connect(&mut t, 100, false);
        t.sends(&[SYN]);
        t.pass(ms(20));
        t.peer(&format!("S. 0:0(0) ack {ack} win 30000 <mss 1000,FO aabbccdd>"));
        t.sends(&[copy]);
        assert_eq!(syn_data(&t, id), (false, Some(FastOpenFailure::NotAcknowledged)));
        t.peer(". 1:1(0) ack 101 win 30000");
        let info = t.host.stack.tcp_info(t.now, id).unwrap();
        assert_eq!((info.unacked, info.snd_cwnd, info.ca_state), (0, 10_000, 0), "no congestion");
        assert_eq!(t.host.stack.counters().tcp_fast_open_active_failed, 1);
        connect(&mut t, 100, false);
        t.sends(&["S 0:100(100) win 65535 <mss 1460,FO aabbccdd>"]);
    }
}

#[test]
fn an_answer_to_more_than_was_sent_is_reset_and_teaches_nothing() {
    let mut t = told();
    connect(&mut t, 100, false);
    t.sends(&[SYN]);
    t.peer("S. 0:0(0) ack 102 win 30000 <mss 500,FO aabbccdd>");
    t.sends(&["R 102:102(0)"]);
    connect(&mut t, 5000, false);
    t.sends(&["S 0:960(960) win 65535 <mss 1460,FO 0011223344556677>"]);
}

/// RFC 7413, 4.1.3.1 and 4.2.2: perhaps it was dropped for its data, or for its option.
#[test]
fn a_syn_that_got_lost_is_repeated_alone_and_after_the_second_there_is_none_with_data_for_a_while() {
    let mut t = told();
    for _ in 0..2 {
        let (id, _) = connect(&mut t, 100, false);
        t.sends(&[SYN]);
        t.after(ms(1000), &["S 0:0(0) win 65535 <mss 1460>"]);
        t.peer("S. 0:0(0) ack 1 win 30000 <mss 1000>");
        t.sends(&["P. 1:101(100) ack 1 win 65535"]);
        assert_eq!(syn_data(&t, id), (false, Some(FastOpenFailure::Repeated)));
    }
    assert_eq!(connect(&mut t, 100, false).1, 0);
    t.sends(&["S 0:0(0) win 65535 <mss 1460>"]);
    t.pass(Duration::from_secs(240));
    t.output();
    assert_eq!(connect(&mut t, 100, false).1, 100);
    assert!(t.output().contains(&SYN.to_owned()));
}

#[test]
fn a_request_that_is_not_answered_is_made_in_the_older_form_once() {
    let mut t = Trace::new();
    for request in ["FO", "FOEXP", "FO", "FO"] {
        let (id, _) = connect(&mut t, 0, false);
        t.sends(&[&format!("S 0:0(0) win 65535 <mss 1460,{request}>")]);
        t.peer("S. 0:0(0) ack 1 win 30000 <mss 1000>");
        t.output();
        t.host.stack.abort(t.now, id, &mut t.pool).unwrap();
        t.output();
    }
}

#[test]
fn without_a_cookie_only_who_wants_none_sends_data_and_one_that_comes_unasked_is_not_kept() {
    let mut t = Trace::new();
    let (id, taken) = connect(&mut t, 2000, true);
    assert_eq!(taken, 1420);
    t.sends(&["S 0:1420(1420) win 65535 <mss 1460>"]);
    t.peer("S. 0:0(0) ack 1421 win 30000 <mss 1000,FO 0011223344556677>");
    t.sends(&[". 1421:1421(0) ack 1 win 65535"]);
    assert!(syn_data(&t, id).0);
    connect(&mut t, 100, false);
    t.sends(&["S 0:0(0) win 65535 <mss 1460,FO>"]);
}

#[test]
fn a_router_that_takes_less_has_the_syn_sent_again_without_data() {
    let mut t = told();
    let (id, _) = connect(&mut t, 960, false);
    t.sends(&["S 0:960(960) win 65535 <mss 1460,FO 0011223344556677>"]);
    t.unreachable(id, 4, 840, 0);
    t.sends(&["S 0:0(0) win 65535 <mss 800>"]);
    t.peer("S. 0:0(0) ack 1 win 30000 <mss 1000>");
    t.sends(&[". 1:801(800) ack 1 win 65535", "P. 801:961(160) ack 1 win 65535"]);
}

#[test]
fn two_that_open_at_once_with_data_are_connected() {
    let mut t = told();
    let (id, _) = connect(&mut t, 100, false);
    t.sends(&[SYN]);
    t.peer("S 0:50(50) win 30000 <mss 1000,FO aabbccdd>");
    t.sends(&["S. 0:0(0) ack 1 win 65535 <mss 1460>"]);
    t.peer("S. 0:0(0) ack 1 win 30000 <mss 1000>");
    t.sends(&["P. 1:101(100) ack 1 win 65535"]);
    assert_eq!((t.events(), state(&t, id)), (vec![Event::Connected(id)], State::Established));
    t.peer(". 1:51(50) ack 101 win 30000");
    assert_eq!(read(&mut t, id), 50);
}

#[test]
fn two_of_our_own_exchange_a_request_and_its_answer_in_one_round_trip() {
    let mut pair = Pair::new(1500);
    let listener = pair.b.host.stack.listen(None, 80, 16).unwrap();
    pair.b.host.stack.set_fast_open(listener, FastOpenServer { pending: 16, ..FastOpenServer::default() });
    let to = (address("10.0.0.2"), 80);
    for round in 0..3 {
        let first = FastOpenClient { data: b"request", cookieless: false };
        let (stack, pool) = (&mut pair.a.host.stack, &mut pair.a.pool);
        let connected =
            stack.connect_fast(pair.now, (None, 0), to, (Limits::default(), first), |_| true, pool);
        let (client, taken) = connected.unwrap();
        assert_eq!(taken, if round == 0 { 0 } else { 7 });
        stack.send(pair.now, client, &b"request"[taken..], pool).unwrap();
        pair.settle();
        let events: Vec<Event> = pair.b.host.stack.events().collect();
        let Some(Event::Accepted { connection, .. }) = events.first().copied() else { panic!("{events:?}") };
        let mut bytes = [0; 64];
        let (stack, pool) = (&mut pair.b.host.stack, &mut pair.b.pool);
        assert_eq!(stack.receive_copy(pair.now, connection, &mut bytes, pool), Ok(7));
        stack.send(pair.now, connection, b"answer", pool).unwrap();
        stack.close(pair.now, connection, pool).unwrap();
        pair.settle();
        let (stack, pool) = (&mut pair.a.host.stack, &mut pair.a.pool);
        assert_eq!(stack.receive_copy(pair.now, client, &mut bytes, pool), Ok(6));
        stack.close(pair.now, client, pool).unwrap();
        pair.settle();
    }
    assert_eq!(pair.b.host.stack.counters().tcp_fast_open_passive, 2);
    pair.pass(Duration::from_secs(61));
    pair.a.assert_nothing_leaked();
    pair.b.assert_nothing_leaked();
}
