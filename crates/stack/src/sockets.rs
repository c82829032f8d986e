//! What sockets there are, for those who look at a stack from outside.

use crate::tcp::State;
use crate::{Address, CongestionControl, ConnectionId, Stack};

/// One socket, as `ss` shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Socket {
    /// What it speaks and how far it is.
    pub state: SocketState,
    /// Our end; an address only where it is tied to one.
    pub local: (Option<Address>, u16),
    /// The other end, if it has one.
    pub remote: Option<(Address, u16)>,
    /// Bytes that the program has not read; of a listener, handshakes under way.
    pub receive_queue: usize,
    /// Bytes that the peer has not acknowledged; of a listener, handshakes that there may be.
    pub send_queue: usize,
    /// What [`Stack::tcp_info`] tells of it by, and how its congestion window is made: of a connection that is or was open.
    pub connection: Option<(ConnectionId, CongestionControl)>,
}

/// What a socket speaks and how far it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SocketState {
    /// TCP: peers may connect.
    Listening,
    /// TCP: a connection.
    Connection(State),
    /// UDP.
    Udp,
}

impl Stack {
    /// Its sockets, `limit` at most: listeners, UDP, connections, in this order.
    pub fn sockets(&self, limit: usize) -> Vec<Socket> {
        self.tcp.listeners().chain(self.udp.list()).chain(self.tcp.list()).take(limit).collect()
    }
}
