//! What all servers have in common: a port, the connections to it, and what is counted.

use std::collections::HashMap;
use std::fmt::Debug;
use std::hash::Hash;

use crate::counters::{Counted, Counters};
use crate::sockets::{Ended, Happened, Service, Sockets};

/// What a server does on each of its connections.
pub trait Serve: Debug + Send + 'static {
    /// What it knows of one connection.
    type Connection: Debug + Default + Send;

    /// Reads and sends as far as it goes. `peer_closed`: once all is read, nothing more will come.
    fn work<S: Sockets>(
        &mut self,
        id: S::Id,
        connection: &mut Self::Connection,
        peer_closed: bool,
        sockets: &mut S,
    ) -> Worked;
}

/// What came of work on a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Worked {
    /// What was done.
    pub counted: Counted,
    /// All is said: the connection is to be closed.
    pub over: bool,
}

/// A server on a port.
#[derive(Debug)]
pub struct Server<Id, T: Serve> {
    port: u16,
    serve: T,
    connections: HashMap<Id, Open<T::Connection>>,
    counters: Counters,
}

#[derive(Debug, Default)]
struct Open<C> {
    connection: C,
    peer_closed: bool,
}

impl<Id: Copy + Eq + Hash, T: Serve> Server<Id, T> {
    /// One for this port.
    pub fn new(serve: T, port: u16, counters: Counters) -> Self {
        Self { port, serve, connections: HashMap::new(), counters }
    }

    fn work<S: Sockets<Id = Id>>(&mut self, id: Id, sockets: &mut S) -> Counted {
        let Some(open) = self.connections.get_mut(&id) else { return Counted::default() };
        let Worked { counted, over } = self.serve.work(id, &mut open.connection, open.peer_closed, sockets);
        if over {
            self.connections.remove(&id);
            sockets.close(id);
        }
        counted
    }
}

impl<Id: Copy + Debug + Eq + Hash + Send + 'static, T: Serve> Service<Id> for Server<Id, T> {
    fn listens(&self) -> Option<u16> {
        Some(self.port)
    }

    fn start<S: Sockets<Id = Id>>(&mut self, _: &mut S) -> Result<(), String> {
        Ok(())
    }

    fn turn<S: Sockets<Id = Id>>(&mut self, happened: &[Happened<Id>], sockets: &mut S) {
        for what in happened {
            let counted = match *what {
                Happened::Accepted(id) => {
                    self.connections.insert(id, Open::default());
                    Counted { connections: 1, ..self.work(id, sockets) }
                }
                Happened::Connected(id) | Happened::Readable(id) | Happened::Writable(id) => {
                    self.work(id, sockets)
                }
                Happened::PeerClosed(id) => {
                    if let Some(open) = self.connections.get_mut(&id) {
                        open.peer_closed = true;
                    }
                    self.work(id, sockets)
                }
                Happened::Closed(id, ended) => {
                    self.connections.remove(&id);
                    sockets.close(id);
                    Counted::lost(ended, u64::from(ended != Ended::InOrder))
                }
            };
            self.counters.add(counted);
        }
    }
}
