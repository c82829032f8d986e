//! What all servers have in common: a port, the connections to it, and what is counted.

use std::collections::{HashMap, VecDeque};
use std::fmt::Debug;
use std::hash::Hash;
use std::time::Duration;

use bywash_engine::stack::Timestamp;

use crate::counters::{Counted, Counters};
use crate::sockets::{Ended, Happened, Service, Sockets};

/// How long a peer is heard that goes on sending after the last has been said.
const LINGER: Duration = Duration::from_secs(5);

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
    /// How the connection goes on.
    pub course: Course,
}

/// How a connection goes on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Course {
    /// There may be more to do.
    #[default]
    Open,
    /// All is said, and the peer sends no more: it is to be closed.
    Over,
    /// All is said, but the peer may be sending still. Closed at once, the connection would be reset by what comes, and the peer might
    /// lose what it has not read yet: it is heard until it ends, or for some seconds (RFC 9112, 9.6).
    Lingers,
}

/// A server on a port.
#[derive(Debug)]
pub struct Server<Id, T: Serve> {
    port: u16,
    serve: T,
    connections: HashMap<Id, Open<T::Connection>>,
    /// Those that linger, and until when; in this order. Some may have ended before.
    lingering: VecDeque<(Timestamp, Id)>,
    counters: Counters,
}

#[derive(Debug, Default)]
struct Open<C> {
    connection: C,
    peer_closed: bool,
    lingers: bool,
}

impl<Id: Copy + Eq + Hash, T: Serve> Server<Id, T> {
    /// One for this port.
    pub fn new(serve: T, port: u16, counters: Counters) -> Self {
        Self { port, serve, connections: HashMap::new(), lingering: VecDeque::new(), counters }
    }

    fn work<S: Sockets<Id = Id>>(&mut self, id: Id, sockets: &mut S) -> Counted {
        let Some(open) = self.connections.get_mut(&id) else { return Counted::default() };
        let mut counted = Counted::default();
        if !open.lingers {
            let worked = self.serve.work(id, &mut open.connection, open.peer_closed, sockets);
            counted = worked.counted;
            match worked.course {
                Course::Open => return counted,
                Course::Over => {
                    self.close(id, sockets);
                    return counted;
                }
                Course::Lingers => {
                    open.lingers = true;
                    sockets.shutdown(id);
                    self.lingering.push_back((sockets.now() + LINGER, id));
                }
            }
        }
        counted.received += sockets.read(id, &mut |bytes| bytes.len()) as u64;
        if open.peer_closed {
            self.close(id, sockets);
        }
        counted
    }

    fn close<S: Sockets<Id = Id>>(&mut self, id: Id, sockets: &mut S) {
        self.connections.remove(&id);
        sockets.close(id);
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
                    let lingers = self.connections.get(&id).is_some_and(|open| open.lingers);
                    self.close(id, sockets);
                    Counted::lost(ended, u64::from(ended != Ended::InOrder && !lingers))
                }
            };
            self.counters.add(counted);
        }
        let now = sockets.now();
        while let Some((_, id)) = self.lingering.pop_front_if(|(until, _)| *until <= now) {
            if self.connections.contains_key(&id) {
                self.close(id, sockets);
            }
        }
    }

    fn next_deadline(&self) -> Option<Timestamp> {
        self.lingering.front().map(|(until, _)| *until)
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use super::*;

    /// Has said all at once, while its peer is sending.
    #[derive(Debug)]
    struct Curt;

    impl Serve for Curt {
        type Connection = ();

        fn work<S: Sockets>(&mut self, _: S::Id, (): &mut (), _: bool, _: &mut S) -> Worked {
            Worked { course: Course::Lingers, ..Worked::default() }
        }
    }

    /// Peers by number, each with so many bytes to say, and what was done to them.
    #[derive(Default)]
    struct Peers {
        now: Timestamp,
        says: [usize; 3],
        done: Vec<(&'static str, usize)>,
    }

    impl Sockets for Peers {
        type Id = usize;

        fn now(&self) -> Timestamp {
            self.now
        }

        fn connect(&mut self, _: SocketAddr) -> Result<usize, String> {
            Err("nobody connects".into())
        }

        fn send(&mut self, _: usize, _: &[u8]) -> usize {
            0
        }

        fn read(&mut self, id: usize, take: &mut dyn FnMut(&[u8]) -> usize) -> usize {
            take(&vec![0; std::mem::take(&mut self.says[id])])
        }

        fn shutdown(&mut self, id: usize) {
            self.done.push(("shut", id));
        }

        fn close(&mut self, id: usize) {
            self.done.push(("closed", id));
        }

        fn abort(&mut self, id: usize) {
            self.done.push(("aborted", id));
        }
    }

    #[test]
    fn who_is_sending_still_is_heard_until_its_end_or_for_some_seconds() {
        let (counters, mut peers) = (Counters::default(), Peers { says: [7, 0, 0], ..Peers::default() });
        let mut server = Server::new(Curt, 80, counters.clone());
        assert_eq!(Service::<usize>::next_deadline(&server), None);
        server.turn(&[0, 1, 2].map(Happened::Accepted), &mut peers);
        assert_eq!(peers.done, [("shut", 0), ("shut", 1), ("shut", 2)]);
        peers.done.clear();
        peers.says = [0, 5, 0];
        let happened = [Happened::Readable(1), Happened::PeerClosed(1), Happened::Closed(2, Ended::Reset)];
        server.turn(&happened, &mut peers);
        assert_eq!(peers.done, [("closed", 1), ("closed", 2)]);
        let counted = counters.read();
        assert_eq!((counted.received, counted.errors()), (12, 0), "it had its answer");
        peers.done.clear();
        assert_eq!(server.next_deadline(), Some(Timestamp::ZERO + LINGER));
        peers.now = Timestamp::ZERO + LINGER;
        server.turn(&[], &mut peers);
        assert_eq!((peers.done, server.next_deadline()), (vec![("closed", 0)], None));
    }
}
