//! Urgent data: the mark is told and told again, moves on alone, and everything stays in line (RFC 9293, 3.8.5).

use std::time::Duration;

use bywash_stack::{ConnectionId, Event, Limits, Offloads};

use crate::wire::trace::Trace;

fn urge(t: &mut Trace, id: ConnectionId, n: usize) {
    assert_eq!(t.host.stack.send_urgent(t.now, id, &vec![7; n], &mut t.pool).unwrap(), n);
}

#[test]
fn each_segment_before_the_mark_tells_it_and_none_behind() {
    let mut t = Trace::new();
    let id = t.accept(30_000, "mss 1000", "");
    t.send(id, 10);
    t.sends(&["P. 1:11(10) ack 1 win 65535"]);
    // Not held back by Nagle's rule, as the next is.
    urge(&mut t, id, 5);
    t.sends(&["PU. 11:16(5) ack 1 win 65535 urg 5"]);
    t.peer(". 1:1(0) ack 11 win 30000");
    // Lost: the copy tells it as well.
    let copy = (0..100).map(|_| {
        t.pass(Duration::from_millis(10));
        t.output()
    });
    assert_eq!(copy.flatten().next().unwrap(), "PU. 11:16(5) ack 1 win 65535 urg 5");
    // Behind the mark Nagle's rule holds again.
    t.send(id, 3);
    t.sends(&[]);
    t.peer(". 1:1(0) ack 16 win 30000");
    t.sends(&["P. 16:19(3) ack 1 win 65535"]);
}

#[test]
fn a_mark_moves_on_and_may_be_far() {
    let mut t = Trace::new();
    t.host.stack.set_limits(Limits { send_initial: 200_000, ..Limits::default() });
    let id = t.accept(30_000, "mss 1000", "");
    urge(&mut t, id, 70_000);
    let first = t.output();
    assert_eq!(first[0], "U. 1:1001(1000) ack 1 win 65535 urg 65535");
    assert_eq!(first[9], "U. 9001:10001(1000) ack 1 win 65535 urg 61000");
    assert_eq!(first.len(), 10, "the initial window, one by one");
    t.send(id, 1000);
    urge(&mut t, id, 1);
    t.peer(". 1:1(0) ack 10001 win 30000");
    let next = t.output();
    assert_eq!(next[0], "U. 10001:11001(1000) ack 1 win 65535 urg 61001");
}

#[test]
fn a_port_that_cuts_is_given_no_mark_to_cut() {
    let mut t = Trace::over(Offloads { segmentation: true, ..Offloads::default() });
    let id = t.accept(30_000, "mss 1000", "");
    urge(&mut t, id, 3000);
    t.sends(&[
        "U. 1:1001(1000) ack 1 win 65535 urg 3000",
        "U. 1001:2001(1000) ack 1 win 65535 urg 2000",
        "PU. 2001:3001(1000) ack 1 win 65535 urg 1000",
    ]);
}

#[test]
fn a_shut_window_does_not_keep_the_mark_back() {
    let mut t = Trace::new();
    let id = t.accept(30_000, "mss 1000", "");
    t.peer(". 1:1(0) ack 1 win 0");
    urge(&mut t, id, 5);
    t.sends(&["U. 1:1(0) ack 1 win 65535 urg 5"]);
    t.peer(". 1:1(0) ack 1 win 1000");
    t.sends(&["PU. 1:6(5) ack 1 win 65535 urg 5"]);
}

#[test]
fn the_program_is_told_whenever_the_mark_moves_on() {
    let mut t = Trace::new();
    let id = t.accept(30_000, "mss 1000", "");
    let left = |t: &Trace| t.host.stack.urgent_bytes(id).unwrap();
    assert_eq!(left(&t), 0);
    t.peer("PU. 1:11(10) ack 1 win 30000 urg 4");
    assert_eq!(t.events(), [Event::Urgent(id), Event::Readable(id)]);
    assert_eq!(left(&t), 4);
    // Again, and one that is behind: nothing new.
    t.peer("PU. 1:11(10) ack 1 win 30000 urg 4");
    t.peer("PU. 1:11(10) ack 1 win 30000 urg 2");
    assert_eq!((t.events(), left(&t)), (vec![], 4));
    t.host.stack.consume(t.now, id, 3, &mut t.pool).unwrap();
    assert_eq!(left(&t), 1);
    t.host.stack.consume(t.now, id, 7, &mut t.pool).unwrap();
    assert_eq!(left(&t), 0);
    // What has been read is no news.
    t.peer("U. 11:11(0) ack 1 win 30000 urg 0");
    assert_eq!(t.events(), []);
    // Announced before it comes.
    t.peer("U. 11:11(0) ack 1 win 30000 urg 100");
    assert_eq!((t.events(), left(&t)), (vec![Event::Urgent(id)], 100));
    t.peer("U. 11:11(0) ack 1 win 30000 urg 101");
    assert_eq!((t.events(), left(&t)), (vec![Event::Urgent(id)], 101));
    t.peer("P. 11:111(100) ack 1 win 30000");
    assert_eq!(t.events(), [Event::Readable(id)]);
    t.host.stack.consume(t.now, id, 100, &mut t.pool).unwrap();
    assert_eq!(left(&t), 1);
    t.peer("F. 111:111(0) ack 1 win 30000");
    t.peer("U. 112:112(0) ack 1 win 30000 urg 9");
    assert_eq!(t.events(), [Event::PeerClosed(id)], "behind a FIN nothing is urgent");
}
