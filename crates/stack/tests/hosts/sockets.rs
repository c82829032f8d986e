//! What is told of sockets to who looks at a stack from outside.

use std::time::Duration;

use bywash_stack::frame::FRAME_SIZE;
use bywash_stack::{Limits, Socket, SocketMemory, TimerKind};

use crate::wire::trace::Trace;

fn connection(t: &Trace) -> Socket {
    t.host.stack.sockets().find(|socket| socket.remote.is_some()).unwrap()
}

/// Its next timer, when that goes off, and how often it has.
fn timer(t: &Trace) -> Option<(TimerKind, Duration, u8)> {
    connection(t).timer.map(|timer| (timer.kind, timer.at.since(t.now), timer.repeats))
}

#[test]
fn a_connection_tells_its_memory_its_next_timer_and_whether_a_program_has_it() {
    let mut t = Trace::new();
    let idle = Duration::from_secs(60);
    t.host.stack.set_limits(Limits { keepalive: true, keepalive_idle: idle, ..Limits::default() });
    let id = t.accept(30_000, "mss 1000", "");
    assert_eq!(timer(&t), Some((TimerKind::KeepAlive, idle, 0)));
    t.send(id, 1000);
    t.output();
    let rto = t.host.stack.tcp_info(t.now, id).unwrap().rto;
    assert_eq!(timer(&t), Some((TimerKind::Retransmission, rto, 0)));
    t.pass(rto + Duration::from_millis(10));
    t.output();
    assert_eq!(timer(&t), Some((TimerKind::Retransmission, 2 * rto, 1)));
    t.peer("P. 1:11(10) ack 1 win 30000");
    let Limits { receive_initial, send_initial, .. } = Limits::default();
    let memory = SocketMemory {
        receive: FRAME_SIZE,
        receive_max: receive_initial as usize,
        send: FRAME_SIZE,
        send_max: send_initial as usize,
    };
    assert_eq!(connection(&t).memory, Some(memory));
    t.peer(". 11:11(0) ack 1001 win 0");
    t.send(id, 10);
    t.output();
    assert!(matches!(timer(&t), Some((TimerKind::Persist, _, 0))), "{:?}", timer(&t));
    t.peer(". 11:11(0) ack 1001 win 30000");
    t.output();
    t.peer(". 11:11(0) ack 1011 win 30000");
    // The program goes, the peer says nothing more.
    let mut read = [0; 10];
    assert_eq!(t.host.stack.receive_copy(t.now, id, &mut read, &mut t.pool), Ok(10));
    assert!(!connection(&t).orphaned);
    t.host.stack.close(t.now, id, &mut t.pool).unwrap();
    t.output();
    assert!(connection(&t).orphaned);
    t.peer(". 11:11(0) ack 1012 win 30000");
    assert_eq!(timer(&t), Some((TimerKind::TimeWait, Limits::default().fin_timeout, 0)), "FIN-WAIT-2");
    t.pass(Duration::from_secs(1));
    t.peer("F. 11:11(0) ack 1012 win 30000");
    assert_eq!(timer(&t), Some((TimerKind::TimeWait, Duration::from_secs(60), 0)));
}
