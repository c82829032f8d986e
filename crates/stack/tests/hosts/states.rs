//! The states of RFC 9293, 3.3.2, and the ways from one to the next, as they show from outside: those of the connections' table, and
//! those that are entries of others, LISTEN, a peer's SYN-RECEIVED, and TIME-WAIT.

use std::time::Duration;

use bywash_stack::{ConnectionId, Event, ListenerId, State};

use crate::wire::address;
use crate::wire::trace::Trace;

const SYN: &str = "S 0:0(0) win 30000 <mss 1000>";

/// A host and its peer, and what was seen to lead from one state to another.
struct Walk<'a> {
    t: Trace,
    listener: Option<ListenerId>,
    id: Option<ConnectionId>,
    seen: &'a mut Vec<String>,
}

impl<'a> Walk<'a> {
    fn new(seen: &'a mut Vec<String>) -> Self {
        Self { t: Trace::new(), listener: None, id: None, seen }
    }

    fn state(&self) -> String {
        let info = self.id.and_then(|id| self.t.host.stack.tcp_info(self.t.now, id).ok());
        match (info.map(|info| info.state), self.t.host.stack.connections()) {
            (Some(state), _) if state != State::Closed => format!("{state:?}"),
            (_, (_, 1, _)) => "SynReceived".into(),
            (_, (_, _, 1)) => "TimeWait".into(),
            _ if self.listener.is_some() => "Listen".into(),
            _ => "Closed".into(),
        }
    }

    fn step(mut self, cause: &str, act: impl FnOnce(&mut Self)) -> Self {
        let before = self.state();
        act(&mut self);
        self.t.output();
        for event in self.t.events() {
            if let Event::Accepted { connection, .. } = event {
                // The listener goes on by itself; here it has done what it is for.
                self.id = Some(connection);
                self.t.host.stack.unlisten(self.listener.take().unwrap());
            }
        }
        let line = format!("{before} --{cause}-> {}", self.state());
        if !self.seen.contains(&line) {
            self.seen.push(line);
        }
        self
    }

    fn listens(self) -> Self {
        self.step("passive open", |walk| walk.listener = Some(walk.t.host.stack.listen(None, 80, 4).unwrap()))
    }

    fn connects(self) -> Self {
        self.step("active open", |walk| walk.connect(0))
    }

    fn connect(&mut self, port: u16) {
        self.t.ports.1 = 80;
        let (to, pool) = ((address("10.0.0.2"), 80), &mut self.t.pool);
        self.id = Some(self.t.host.stack.connect(self.t.now, (None, port), to, pool).unwrap());
    }

    /// RFC 9293's CLOSE, which says that nothing more is to be sent (3.9.1.4).
    fn closes(self) -> Self {
        self.step("close", Self::close)
    }

    fn close(&mut self) {
        let (stack, pool) = (&mut self.t.host.stack, &mut self.t.pool);
        match (self.id, self.listener.take()) {
            // Nothing was to be received either.
            (Some(id), _) if stack.tcp_info(self.t.now, id).unwrap().state == State::SynSent => {
                stack.close(self.t.now, id, pool).unwrap();
            }
            (Some(id), _) => stack.shutdown(self.t.now, id, pool).unwrap(),
            (None, Some(listener)) => stack.unlisten(listener),
            (None, None) => panic!("there is nothing to close"),
        }
    }

    fn hears(self, cause: &str, segment: &str) -> Self {
        self.step(cause, |walk| walk.t.peer(segment))
    }
}

/// A connection that the peer has agreed to.
fn opened(seen: &mut Vec<String>) -> Walk<'_> {
    Walk::new(seen).connects().hears("SYN,ACK", "S. 0:0(0) ack 1 win 30000 <mss 1000>")
}

/// One that the peer has asked for at the same time.
fn crossed(seen: &mut Vec<String>) -> Walk<'_> {
    Walk::new(seen).connects().hears("SYN", SYN)
}

#[test]
fn the_states_of_figure_5_and_the_ways_between_them() {
    let mut seen = Vec::new();
    // The peer opens, and closes first.
    let walk = Walk::new(&mut seen).listens().hears("SYN", SYN);
    let walk = walk.hears("ACK of SYN", ". 1:1(0) ack 1 win 30000").hears("FIN", "F. 1:1(0) ack 1 win 30000");
    walk.closes().hears("ACK of FIN", ". 2:2(0) ack 2 win 30000");
    // It resets what it has opened.
    Walk::new(&mut seen).listens().hears("SYN", SYN).hears("RST", "R 1:1(0) win 0").closes();
    // We open, and it does not answer; or it does, and we close first.
    Walk::new(&mut seen).connects().closes();
    let walk = opened(&mut seen).closes().hears("ACK of FIN", ". 1:1(0) ack 2 win 30000");
    walk.hears("FIN", "F. 1:1(0) ack 2 win 30000").step("2 MSL", |walk| walk.t.pass(Duration::from_secs(61)));
    let walk = opened(&mut seen).closes();
    walk.hears("FIN, ACK of FIN", "F. 1:1(0) ack 2 win 30000");
    let walk = opened(&mut seen).closes();
    walk.hears("FIN", "F. 1:1(0) ack 1 win 30000").hears("ACK of FIN", ". 2:2(0) ack 2 win 30000");
    // Both open at once; also when we close before that is over: at once, or behind what is to be sent.
    crossed(&mut seen).hears("ACK of SYN", ". 1:1(0) ack 1 win 30000");
    crossed(&mut seen).closes().hears("ACK of FIN", ". 1:1(0) ack 2 win 30000");
    let walk = crossed(&mut seen).step("send", |walk| walk.t.send(walk.id.unwrap(), 3));
    walk.step("close, after a send", Walk::close).hears("ACK of SYN, after both", ". 1:1(0) ack 1 win 30000");
    // All of the figure; who sends by what listens gives it up, and connects from its port.
    Walk::new(&mut seen).listens().step("send", |walk| {
        walk.t.host.stack.unlisten(walk.listener.take().unwrap());
        walk.connect(80);
    });
    let expected = [
        "Closed --passive open-> Listen",
        "Listen --SYN-> SynReceived",
        "SynReceived --ACK of SYN-> Established",
        "Established --FIN-> CloseWait",
        "CloseWait --close-> LastAck",
        "LastAck --ACK of FIN-> Closed",
        "SynReceived --RST-> Listen",
        "Listen --close-> Closed",
        "Closed --active open-> SynSent",
        "SynSent --close-> Closed",
        "SynSent --SYN,ACK-> Established",
        "Established --close-> FinWait1",
        "FinWait1 --ACK of FIN-> FinWait2",
        "FinWait2 --FIN-> TimeWait",
        "TimeWait --2 MSL-> Closed",
        "FinWait1 --FIN, ACK of FIN-> TimeWait",
        "FinWait1 --FIN-> Closing",
        "Closing --ACK of FIN-> TimeWait",
        "SynSent --SYN-> SynReceived",
        "SynReceived --close-> FinWait1",
        "SynReceived --send-> SynReceived",
        "SynReceived --close, after a send-> SynReceived",
        "SynReceived --ACK of SYN, after both-> FinWait1",
        "Listen --send-> SynSent",
    ];
    assert_eq!(seen, expected);
}
