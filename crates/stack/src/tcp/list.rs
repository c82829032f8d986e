//! What listeners and connections there are.

use super::connection::{Connection, NEVER, SendTimer};
use super::facts::{HELD_BY_MARK, RELEASED};
use super::{Entry, State, Tcp};
use crate::{Flow, Socket, SocketMemory, SocketState, SocketTimer, TimerKind};

impl Tcp {
    /// All ports that peers may connect to.
    pub(crate) fn listeners(&self) -> impl Iterator<Item = Socket> {
        self.listeners.values().map(|listener| Socket {
            state: SocketState::Listening,
            local: (listener.local, listener.port),
            remote: None,
            receive_queue: listener.half_open,
            send_queue: listener.backlog,
            connection: None,
            orphaned: false,
            memory: None,
            timer: None,
        })
    }

    /// All connections: open ones, those whose handshake is under way, and what is left in TIME-WAIT.
    pub(crate) fn list(&self) -> impl Iterator<Item = Socket> {
        // An entry that nobody has holds what its last user left there: the table knows it no more.
        let is = |entry, hash, flow: &Flow| self.find(hash, flow) == Some(entry);
        let open = self.connections.numbers().filter_map(move |i| {
            let c = &self.connections[i];
            let queues = (c.receive.readable(), c.send.len());
            is(Entry::Connection(i), c.hash, &c.flow).then(|| Socket {
                connection: Some((c.id, c.limits.congestion)),
                orphaned: c.facts.any(RELEASED),
                memory: Some(memory(c)),
                timer: timer(c),
                ..socket(&c.flow, c.state, queues)
            })
        });
        let half_open = self.half_open.numbers().filter_map(move |i| {
            let half = &self.half_open[i];
            let timer =
                SocketTimer { kind: TimerKind::Retransmission, at: half.again(), repeats: half.tries };
            let socket = || Socket { timer: Some(timer), ..socket(&half.flow, State::SynReceived, (0, 0)) };
            is(Entry::HalfOpen(i), half.hash, &half.flow).then(socket)
        });
        let waiting = self.time_wait.numbers().filter_map(move |i| {
            let wait = &self.time_wait[i];
            let timer = SocketTimer { kind: TimerKind::TimeWait, at: wait.until, repeats: 0 };
            let socket = || Socket { timer: Some(timer), ..socket(&wait.flow, State::TimeWait, (0, 0)) };
            is(Entry::TimeWait(i), wait.hash, &wait.flow).then(socket)
        });
        open.chain(half_open).chain(waiting)
    }
}

fn socket(flow: &Flow, state: State, (receive_queue, send_queue): (usize, usize)) -> Socket {
    Socket {
        state: SocketState::Connection(state),
        local: (Some(flow.local), flow.local_port),
        remote: Some((flow.remote, flow.remote_port)),
        receive_queue,
        send_queue,
        connection: None,
        orphaned: false,
        memory: None,
        timer: None,
    }
}

fn memory(c: &Connection) -> SocketMemory {
    SocketMemory {
        receive: c.receive.cost(),
        receive_max: c.rcv_limit as usize,
        send: c.send.cost(),
        send_max: c.send_limit(),
    }
}

/// Which timer is set, in the order in which Linux tells of them.
fn timer(c: &Connection) -> Option<SocketTimer> {
    let sending = match c.send_timer {
        SendTimer::Persist if !c.facts.any(HELD_BY_MARK) => (TimerKind::Persist, c.window_probes),
        _ => (TimerKind::Retransmission, c.rtt.backoff()),
    };
    let all = [
        (c.send_at, sending),
        (c.linger_at, (TimerKind::TimeWait, 0)),
        (c.keepalive_due(), (TimerKind::KeepAlive, c.keepalive_sent)),
    ];
    let (at, (kind, repeats)) = all.into_iter().find(|(at, _)| *at != NEVER)?;
    Some(SocketTimer { kind, at, repeats })
}
