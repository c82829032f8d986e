//! Listeners that the control has for all stacks.

use std::time::Duration;

use bywash_stack::{Event, Limits, Listen, SocketState, Stack, TcpError};

use crate::wire::address;
use crate::wire::trace::Trace;

const WEB: Listen = Listen { local: None, port: 80, backlog: 5 };

/// The peer asks for a connection from a port, and this comes back.
#[track_caller]
fn knock(t: &mut Trace, port: u16) -> String {
    t.ports.1 = port;
    t.peer("S 0:0(0) win 30000 <mss 1460>");
    let mut output = t.output();
    assert_eq!(output.len(), 1, "{output:?}");
    output.remove(0)
}

#[test]
fn a_stack_listens_from_the_snapshot_on_that_says_so() {
    let mut t = Trace::new();
    let id = t.host.control.listen(WEB).unwrap();
    assert_eq!(t.host.control.listeners(), [(id, WEB)]);
    // This one comes before the stack has heard of it.
    assert!(knock(&mut t, 5000).starts_with("R."));
    assert!(knock(&mut t, 5001).starts_with("S."));
    t.pass(Duration::from_millis(20));
    t.peer(". 1:1(0) ack 1 win 30000");
    t.sends(&[]);
    let events = t.events();
    let [Event::Accepted { listener, connection }] = events[..] else { panic!("{events:?}") };
    assert_eq!(listener, id);
    assert_eq!(t.host.stack.snapshot().listeners(), [(id, WEB)]);
    assert!(t.host.control.unlisten(id) && !t.host.control.unlisten(id));
    t.sends(&[]);
    assert!(knock(&mut t, 5002).starts_with("R."));
    // What was open before stays.
    t.ports.1 = 5001;
    t.send(connection, 10);
    assert_eq!(t.output().len(), 1);
    assert_ne!(t.host.control.listen(WEB), Ok(id), "another one has another number");
}

#[test]
fn who_comes_second_to_an_address_and_port_is_refused() {
    let mut t = Trace::new();
    let ours = Listen { local: Some(address("10.0.0.1")), ..WEB };
    let everywhere = Listen { local: Some(address("0.0.0.0")), ..WEB };
    let control = &mut t.host.control;
    let all = control.listen(WEB).unwrap();
    let one = control.listen(ours).unwrap();
    control.listen(everywhere).unwrap();
    for listen in [WEB, ours, everywhere] {
        assert_eq!(control.listen(listen), Err(TcpError::Taken), "{listen:?}");
    }
    assert!(control.unlisten(all));
    assert_eq!(control.listen(ours), Err(TcpError::Taken));
    assert!(control.listen(WEB).is_ok());
    assert!(control.unlisten(one));
    assert!(control.listen(ours).is_ok());
}

/// As with sockets of which those of IPv6 are for that alone.
#[test]
fn a_listener_may_be_for_all_addresses_of_one_family() {
    let mut t = Trace::new();
    let at = |local: Option<&str>| Listen { local: local.map(address), ..WEB };
    let opens = |t: &mut Trace, port| {
        t.host.control.snapshot(&mut t.pool);
        // This one is answered before the stack has heard of the change.
        knock(t, 4000);
        knock(t, port).starts_with("S.")
    };
    let v6 = t.host.control.listen(at(Some("::"))).unwrap();
    assert!(!opens(&mut t, 5000), "IPv4 is another family");
    let v4 = t.host.control.listen(at(Some("0.0.0.0"))).unwrap();
    assert_eq!(t.host.control.listen(at(Some("::"))), Err(TcpError::Taken));
    assert!(opens(&mut t, 5001));
    assert!(t.host.control.unlisten(v4) && t.host.control.unlisten(v6));
    t.host.control.listen(at(None)).unwrap();
    assert!(opens(&mut t, 5002), "both");
}

#[test]
fn stacks_share_a_backlog_and_give_connections_their_own_limits() {
    let mut t = Trace::new();
    t.host.control.listen(WEB).unwrap();
    let snapshot = t.host.control.snapshot(&mut t.pool).clone();
    let mut stack = Stack::new(snapshot, [6; 16]);
    let backlog = |stack: &Stack| {
        let sockets: Vec<_> = stack.sockets().collect();
        let [listener] = sockets[..] else { panic!("{sockets:?}") };
        assert_eq!((listener.state, listener.local), (SocketState::Listening, (None, 80)));
        listener.send_queue
    };
    assert_eq!(backlog(&stack), 5);
    stack.set_stacks(1, 2);
    assert_eq!(backlog(&stack), 3);
    // A listener that was there before the limits has them, too.
    t.sends(&[]);
    t.host.stack.set_limits(Limits { mss: Some(700), ..Limits::default() });
    assert!(knock(&mut t, 5000).contains("mss 700"));
}

/// RFC 9293, 3.10.7.2: it resets who acknowledges what it has never sent, and nobody else. Where nobody listens all are (3.10.7.1).
#[test]
fn a_listener_drops_what_neither_asks_nor_acknowledges() {
    let mut t = Trace::new();
    let listener = t.host.stack.listen(None, 80, 4).unwrap();
    let neither = ["F 0:0(0)", "P 0:5(5)", "U 0:5(5) urg 5", " 0:0(0)"];
    for segment in neither {
        t.peer(segment);
        t.sends(&[]);
    }
    assert_eq!(t.host.stack.counters().refused, 0);
    for segment in [". 0:0(0) ack 9", "F. 0:0(0) ack 9", "S. 0:0(0) ack 9"] {
        t.peer(segment);
        t.sends(&["R 9:9(0)"]);
    }
    t.host.stack.unlisten(listener);
    for (segment, end) in neither.into_iter().zip([1, 5, 5, 0]) {
        t.peer(segment);
        t.sends(&[&format!("R. 0:0(0) ack {end}")]);
    }
    assert_eq!(t.host.stack.counters().refused, 7);
}

#[test]
fn handshakes_under_way_end_with_their_listener() {
    let mut t = Trace::new();
    let listener = t.host.stack.listen(None, 80, 4).unwrap();
    assert!(knock(&mut t, 5000).starts_with("S."));
    t.host.stack.unlisten(listener);
    // Who has got the answer is told,
    t.peer(". 1:1(0) ack 1 win 30000");
    t.sends(&["R 1:1(0)"]);
    assert_eq!((t.events(), t.host.stack.connections()), (vec![], (0, 0, 0)));
    // and to who has not it is not repeated.
    let listener = t.host.stack.listen(None, 80, 4).unwrap();
    assert!(knock(&mut t, 5001).starts_with("S."));
    t.host.stack.unlisten(listener);
    t.pass(Duration::from_millis(1100));
    t.sends(&[]);
    assert_eq!(t.host.stack.connections(), (0, 0, 0));
    // Who asks again is the next listener's.
    let listener = t.host.stack.listen(None, 80, 4).unwrap();
    assert!(knock(&mut t, 5002).starts_with("S."));
    t.host.stack.unlisten(listener);
    t.host.stack.listen(None, 80, 4).unwrap();
    assert!(knock(&mut t, 5002).starts_with("S."));
    t.peer(". 1:1(0) ack 1 win 30000");
    assert!(matches!(t.events()[..], [Event::Accepted { listener: of, .. }] if of != listener));
}
