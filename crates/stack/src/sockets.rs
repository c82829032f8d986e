//! What sockets there are, for those who look at a stack from outside.

use crate::tcp::State;
use crate::{Address, CongestionControl, ConnectionId, Stack, Timestamp};

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
    /// A connection that no program has any more.
    pub orphaned: bool,
    /// Packet memory; none of listeners, handshakes and TIME-WAIT.
    pub memory: Option<SocketMemory>,
    /// What TCP does next if nothing comes.
    pub timer: Option<SocketTimer>,
}

/// Packet memory of a socket, in bytes of frames, and how much of it there may be.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SocketMemory {
    /// For what has come.
    pub receive: usize,
    /// For that at most; of a connection, the window at most.
    pub receive_max: usize,
    /// For what is to be sent, or not acknowledged.
    pub send: usize,
    /// For that at most.
    pub send_max: usize,
}

/// A timer that is set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SocketTimer {
    /// What it is for.
    pub kind: TimerKind,
    /// When it goes off.
    pub at: Timestamp,
    /// How often it has gone off without an answer.
    pub repeats: u8,
}

/// What a timer is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TimerKind {
    /// Something that was sent is missing: a timeout, a probe of the tail, a segment that may have been overtaken.
    Retransmission,
    /// The peer's window is shut.
    Persist,
    /// The peer is silent.
    KeepAlive,
    /// The connection is over, or as good as that.
    TimeWait,
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
    /// Its sockets: listeners, UDP, connections, in this order.
    pub fn sockets(&self) -> impl Iterator<Item = Socket> {
        self.tcp.listeners().chain(self.udp.list()).chain(self.tcp.list())
    }
}
