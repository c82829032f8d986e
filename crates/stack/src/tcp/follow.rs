//! What the control changes under a stack: listeners that it has for all stacks (see [`crate::Control::listen`]), links.

use super::{Entry, Limits, ListenerId, Tcp};
use crate::Listen;
use crate::stack::Context;

/// Numbers of listeners that all stacks have; a stack's own are below.
const SHARED: u32 = 1 << 31;

impl ListenerId {
    pub(crate) fn shared(number: u32) -> Self {
        Self(SHARED | number)
    }
}

impl Tcp {
    /// What connections may use from now on, those of all stacks' listeners as well.
    pub(crate) fn set_limits(&mut self, limits: Limits) {
        self.limits = limits;
        for (_, listener) in self.listeners.range_mut(SHARED..) {
            listener.limits = limits;
        }
    }

    /// Some links take only shorter packets by now: segments that are too long go out again, as if a router had said so.
    #[cold]
    pub(crate) fn fit_links(&mut self, cx: &mut Context<'_>) {
        for i in self.connections.numbers() {
            let connection = &self.connections[i];
            let (hash, flow) = (connection.hash, connection.flow);
            // An entry that nobody has holds what its last user left there: the table knows it no more.
            if self.find(hash, &flow) == Some(Entry::Connection(i))
                && let Some(path) = cx.out.snapshot.path(flow.remote)
            {
                let mtu = cx.out.snapshot.mtu(path);
                if self.connections[i].path_mtu(mtu, cx.now) {
                    self.settle(i, cx);
                }
            }
        }
    }

    /// Listens on all of these, one of so many stacks, and on none of the control's else.
    pub(crate) fn follow(&mut self, all: &[(ListenerId, Listen)], stacks: usize) {
        let is_gone = |id: &ListenerId| id.0 >= SHARED && all.iter().all(|(other, _)| other != id);
        let gone: Vec<ListenerId> = self.listeners.keys().map(|id| ListenerId(*id)).filter(is_gone).collect();
        gone.into_iter().for_each(|id| self.unlisten(id));
        for (id, listen) in all {
            let share = listen.backlog.div_ceil(stacks);
            match self.listeners.get_mut(&id.0) {
                Some(listener) => listener.backlog = share,
                None => self.add_listener(*id, listen.local, listen.port, share),
            }
        }
    }
}
