//! What listeners and connections there are.

use super::{Entry, State, Tcp};
use crate::{Flow, Socket, SocketState};

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
                ..socket(&c.flow, c.state, queues)
            })
        });
        let half_open = self.half_open.numbers().filter_map(move |i| {
            let half = &self.half_open[i];
            is(Entry::HalfOpen(i), half.hash, &half.flow)
                .then(|| socket(&half.flow, State::SynReceived, (0, 0)))
        });
        let waiting = self.time_wait.numbers().filter_map(move |i| {
            let wait = &self.time_wait[i];
            is(Entry::TimeWait(i), wait.hash, &wait.flow).then(|| socket(&wait.flow, State::TimeWait, (0, 0)))
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
    }
}
