//! How long a connection is busy, and what holds it back.

use std::time::Duration;

use bywash_stack::{ConnectionId, Limits};

use crate::wire::trace::Trace;

const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// Busy at all, by the peer's window, by the send buffer; in milliseconds.
fn times(t: &Trace, id: ConnectionId) -> [u128; 3] {
    let info = t.host.stack.tcp_info(t.now, id).unwrap();
    [info.busy_time, info.rwnd_limited, info.sndbuf_limited].map(|time| time.as_millis())
}

/// Bytes that were taken of `n` that a program has to send.
fn send(t: &mut Trace, id: ConnectionId, n: usize) -> usize {
    t.host.stack.send(t.now, id, &vec![7; n], &mut t.pool).unwrap()
}

#[test]
fn a_message_is_busy_until_it_is_acknowledged_and_a_handshake_is_not() {
    let mut t = Trace::new();
    let id = t.accept(30_000, "mss 1000", "");
    assert_eq!(times(&t, id), [0, 0, 0]);
    for n in 0..3u32 {
        t.send(id, 100);
        t.output();
        t.pass(ms(20));
        assert_eq!(times(&t, id), [u128::from(n) * 30 + 20, 0, 0], "on its way");
        t.pass(ms(10));
        t.peer(&format!(". 1:1(0) ack {} win 30000", 1 + 100 * (n + 1)));
        t.output();
        t.pass(ms(1000));
        assert_eq!(times(&t, id), [u128::from(n + 1) * 30, 0, 0], "nothing to send");
    }
}

#[test]
fn more_while_a_message_is_out_counts_from_the_first() {
    let mut t = Trace::new();
    let id = t.accept(30_000, "mss 1000", "");
    t.send(id, 100);
    t.output();
    t.pass(ms(10));
    t.send(id, 3000);
    t.output();
    t.pass(ms(20));
    t.peer(". 1:1(0) ack 101 win 30000");
    t.output();
    t.pass(ms(30));
    assert_eq!(times(&t, id), [60, 0, 0]);
    t.peer(". 1:1(0) ack 3101 win 30000");
    t.output();
    t.pass(ms(500));
    assert_eq!(times(&t, id), [60, 0, 0]);
}

#[test]
fn a_message_that_is_acknowledged_in_pieces_is_busy_until_the_last() {
    let mut t = Trace::new();
    let id = t.accept(30_000, "mss 1000", "");
    t.send(id, 3000);
    t.output();
    t.pass(ms(20));
    assert_eq!(times(&t, id), [20, 0, 0]);
    for (later, ack) in [(10, 1001), (5, 2001), (5, 3001)] {
        t.pass(ms(later));
        t.peer(&format!(". 1:1(0) ack {ack} win 30000"));
        t.output();
    }
    t.pass(ms(500));
    assert_eq!(times(&t, id), [40, 0, 0]);
}

#[test]
fn a_message_that_is_lost_is_busy_from_its_first_copy() {
    let mut t = Trace::new();
    let id = t.accept(30_000, "mss 1000", "");
    t.send(id, 100);
    t.output();
    t.pass(ms(2000));
    assert!(!t.output().is_empty(), "it is sent again");
    t.pass(ms(50));
    assert_eq!(times(&t, id), [2050, 0, 0]);
    t.peer(". 1:1(0) ack 101 win 30000");
    t.output();
    t.pass(ms(500));
    assert_eq!(times(&t, id), [2050, 0, 0]);
}

#[test]
fn a_small_window_holds_back_what_is_beyond_it() {
    let mut t = Trace::new();
    let id = t.accept(2000, "mss 1000", "");
    t.send(id, 5000);
    t.sends(&[". 1:1001(1000) ack 1 win 65535", "P. 1001:2001(1000) ack 1 win 65535"]);
    t.pass(ms(40));
    assert_eq!(times(&t, id), [40, 40, 0]);
    t.peer(". 1:1(0) ack 2001 win 2000");
    t.sends(&[". 2001:3001(1000) ack 1 win 65535", "P. 3001:4001(1000) ack 1 win 65535"]);
    t.pass(ms(40));
    t.peer(". 1:1(0) ack 4001 win 30000");
    t.sends(&["P. 4001:5001(1000) ack 1 win 65535"]);
    t.pass(ms(20));
    assert_eq!(times(&t, id), [100, 80, 0], "the last one waits for the network alone");
    t.peer(". 1:1(0) ack 5001 win 30000");
    t.output();
    t.pass(ms(500));
    assert_eq!(times(&t, id), [100, 80, 0]);
}

#[test]
fn a_small_buffer_holds_back_a_program_that_has_more() {
    let mut t = Trace::new();
    let limits = Limits { send_initial: 4000, send_max: 4000, ..Limits::default() };
    t.host.stack.set_limits(limits);
    let id = t.accept(30_000, "mss 1000", "");
    assert_eq!(send(&mut t, id, 4000), 4000);
    t.output();
    t.pass(ms(10));
    assert_eq!(times(&t, id), [10, 0, 0], "all that there was");
    assert_eq!(send(&mut t, id, 4000), 0);
    t.output();
    t.pass(ms(30));
    assert_eq!(times(&t, id), [40, 0, 30]);
    t.peer(". 1:1(0) ack 4001 win 30000");
    t.output();
    t.pass(ms(100));
    assert_eq!(times(&t, id), [40, 0, 30]);
    assert_eq!(send(&mut t, id, 5000), 4000);
    t.output();
    t.pass(ms(20));
    assert_eq!(times(&t, id), [60, 0, 50], "from the beginning");
}
