//! Listeners: what peers may connect to, on whichever stack their segments come in.
//!
//! An instance has one set of them, and this is it. Whoever wants one asks here, so that of two who want the same address and
//! port the second is refused, on whichever stack it is; there is no sharing of ports. Stacks follow the snapshot: each listens
//! on all that it names, by the same number, takes its share of the handshakes, and tells its own program of the connections. A
//! SYN is answered by a reset until its stack has heard of the listener, and again once it has heard of its end; connections
//! stay.
//!
//! Who has one stack alone need not come here: [`crate::Stack::listen`] is one call, and that stack's own affair.

use std::sync::Arc;

use super::Control;
use crate::{Address, ListenerId, TcpError};

/// What peers may connect to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Listen {
    /// One of our addresses; all of a family when it is the unspecified one, all of both when `None`.
    pub local: Option<Address>,
    /// The port.
    pub port: u16,
    /// Handshakes that may be under way, of all stacks together; each has an equal share. Further ones are made without
    /// memory, by cookies.
    pub backlog: usize,
}

impl Control {
    /// Lets peers connect, on all stacks, as soon as they have the next snapshot.
    ///
    /// # Errors
    /// [`TcpError::Taken`].
    pub fn listen(&mut self, listen: Listen) -> Result<ListenerId, TcpError> {
        let mut all = self.listeners.iter();
        if all.any(|(_, other)| (other.local, other.port) == (listen.local, listen.port)) {
            return Err(TcpError::Taken);
        }
        self.last_listener += 1;
        let id = ListenerId::shared(self.last_listener);
        Arc::make_mut(&mut self.listeners).push((id, listen));
        self.changed = true;
        Ok(id)
    }

    /// Listens no more, and says whether it did. Connections stay; handshakes under way come to nothing.
    pub fn unlisten(&mut self, id: ListenerId) -> bool {
        let Some(at) = self.listeners.iter().position(|(other, _)| *other == id) else { return false };
        Arc::make_mut(&mut self.listeners).remove(at);
        self.changed = true;
        true
    }

    /// All listeners, in the order in which they were asked for.
    pub fn listeners(&self) -> &[(ListenerId, Listen)] {
        &self.listeners
    }
}
