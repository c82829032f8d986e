//! Where bytes come from: what a service needs of connections, whoever makes them.

use std::fmt::Debug;
use std::hash::Hash;
use std::net::SocketAddr;

use bywash_engine::stack::Timestamp;

/// Connections of TCP, as a service sees them. What is done with one that has ended does nothing.
pub trait Sockets {
    /// A connection.
    type Id: Copy + Debug + Eq + Hash + Send + 'static;

    /// The time of this call.
    fn now(&self) -> Timestamp;

    /// Opens a connection; [`Happened::Connected`] or [`Happened::Closed`] follows. The scope id of a link-local address is the number
    /// of its interface.
    ///
    /// # Errors
    /// Why not, in a sentence.
    fn connect(&mut self, to: SocketAddr) -> Result<Self::Id, String>;

    /// Sends as many of the bytes as there is room for, and says how many. With fewer, [`Happened::Writable`] follows.
    fn send(&mut self, id: Self::Id, bytes: &[u8]) -> usize;

    /// Reads what is there, in place: `take` is handed it piece by piece and says how much of each it has read. With
    /// less than all of one it ends, and the rest stays. [`Happened::Readable`] is said again when all was read. Returns
    /// how much was read.
    fn read(&mut self, id: Self::Id, take: &mut dyn FnMut(&[u8]) -> usize) -> usize;

    /// Whether a read has found the end of what the peer sends before the service is told of that: [`Happened::PeerClosed`] or
    /// [`Happened::Closed`] follows.
    fn is_at_end(&self, id: Self::Id) -> bool {
        let _ = id;
        false
    }

    /// Bytes sent that the peer has acknowledged, where that is known. Also when it has ended and is not closed yet.
    fn acknowledged(&self, id: Self::Id) -> Option<u64> {
        let _ = id;
        None
    }

    /// Sends no more; what the peer says is still heard.
    fn shutdown(&mut self, id: Self::Id);

    /// Lets go of a connection. What was sent still arrives. Nothing more is heard of it.
    fn close(&mut self, id: Self::Id);

    /// Breaks a connection off.
    fn abort(&mut self, id: Self::Id);

    /// Has the service asked anew for [`Service::next_deadline`], from any thread. What it is to find is laid down first.
    fn waker(&self) -> Box<dyn Fn() + Send> {
        Box::new(|| ())
    }
}

/// What happened to a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Happened<Id> {
    /// A peer has connected.
    Accepted(Id),
    /// A connection of ours is open.
    Connected(Id),
    /// One that had nothing to read has something.
    Readable(Id),
    /// One whose buffer was full takes bytes again.
    Writable(Id),
    /// The peer sends no more; what came before can still be read.
    PeerClosed(Id),
    /// It has ended; it is to be closed.
    Closed(Id, Ended),
}

/// How a connection has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// Both ends have said all.
    InOrder,
    /// Nobody listens there.
    Refused,
    /// The peer broke it off.
    Reset,
    /// No answer for too long.
    TimedOut,
    /// The host, or the router before it, does not answer, or no route leads there.
    Unreachable,
}

/// What is done with connections. There is one for each engine, and one for the kernel.
pub trait Service<Id>: Send + 'static {
    /// The port that peers may connect to, if it is a server. Each comes as [`Happened::Accepted`].
    fn listens(&self) -> Option<u16> {
        None
    }

    /// Opens what there is to open.
    ///
    /// # Errors
    /// Why it cannot do its work, in a sentence.
    fn start<S: Sockets<Id = Id>>(&mut self, sockets: &mut S) -> Result<(), String>;

    /// Does what follows from what happened.
    fn turn<S: Sockets<Id = Id>>(&mut self, happened: &[Happened<Id>], sockets: &mut S);

    /// The run ends, whether it has done all or not: what it still has to count it counts now. Nothing else is called after this.
    fn end(&mut self, now: Timestamp) {
        let _ = now;
    }

    /// When it is to be called next if nothing happens before.
    fn next_deadline(&self) -> Option<Timestamp> {
        None
    }

    /// Whether it has done all it was to do.
    fn is_done(&self) -> bool {
        false
    }
}
