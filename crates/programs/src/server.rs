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
/// How often it is looked which connections are idle, in parts of the time that they may be, and how seldom at most. Each look goes
/// through all of them.
const LOOKS: u32 = 20;
const LOOK: Duration = Duration::from_secs(3);

/// What a server does on each of its connections.
pub trait Serve: Debug + Send + 'static {
    /// What it knows of one connection.
    type Connection: Debug + Default + Send;

    /// Whether something is to be sent that its peer has not taken yet.
    fn owes(&self, connection: &Self::Connection) -> bool {
        let _ = connection;
        false
    }

    /// Whether it sends without end, so that a peer that has said all and breaks off has only had enough.
    fn is_endless(&self) -> bool {
        false
    }

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
    /// For how long nothing may come of a connection; and when those are looked for of which that is so.
    idle: Option<Duration>,
    look_at: Timestamp,
    counters: Counters,
}

#[derive(Debug)]
struct Open<C> {
    connection: C,
    /// When it was taken, or something has come of it last.
    moved: Timestamp,
    /// Bytes that its peer had acknowledged when it was last asked: room for more may come long after a slow one has taken some.
    acknowledged: Option<u64>,
    peer_closed: bool,
    lingers: bool,
}

impl<C: Default> Open<C> {
    /// One that was taken just now.
    fn new(now: Timestamp) -> Self {
        let connection = C::default();
        Self { connection, moved: now, acknowledged: None, peer_closed: false, lingers: false }
    }
}

impl<Id: Copy + Eq + Hash, T: Serve> Server<Id, T> {
    /// One for this port.
    pub fn new(serve: T, port: u16, counters: Counters) -> Self {
        let connections = HashMap::new();
        let (lingering, look_at) = (VecDeque::new(), Timestamp::ZERO);
        Self { port, serve, connections, lingering, idle: None, look_at, counters }
    }

    /// One that ends connections of which nothing has come for so long: no request was answered, and nothing of an answer was taken. A
    /// request that comes byte by byte is none until it is whole.
    #[must_use]
    pub fn with_idle_timeout(self, idle: Duration) -> Self {
        Self { idle: Some(idle), ..self }
    }

    /// Ends those that have been idle for too long.
    fn look<S: Sockets<Id = Id>>(&mut self, now: Timestamp, sockets: &mut S) {
        let Some(idle) = self.idle.filter(|_| now >= self.look_at) else { return };
        self.look_at = now + (idle / LOOKS).min(LOOK);
        let Self { connections, serve, .. } = self;
        connections.retain(|id, open| {
            if open.lingers {
                return true;
            }
            let owes = serve.owes(&open.connection);
            if owes {
                let acknowledged = sockets.acknowledged(*id);
                if std::mem::replace(&mut open.acknowledged, acknowledged) < acknowledged {
                    open.moved = now;
                }
            }
            if now.since(open.moved) < idle {
                return true;
            }
            // What nobody takes would keep a connection that is closed for as long as TCP has patience.
            if owes {
                sockets.abort(*id)
            } else {
                sockets.close(*id)
            }
            false
        });
    }

    fn work<S: Sockets<Id = Id>>(&mut self, id: Id, sockets: &mut S) -> Counted {
        let Some(open) = self.connections.get_mut(&id) else { return Counted::default() };
        let mut counted = Counted::default();
        if !open.lingers {
            let worked = self.serve.work(id, &mut open.connection, open.peer_closed, sockets);
            counted = worked.counted;
            if counted.sent > 0 || counted.requests > 0 {
                open.moved = sockets.now();
            }
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
                    self.connections.insert(id, Open::new(sockets.now()));
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
                    let endless = self.serve.is_endless();
                    let had_all = |open: &Open<_>| {
                        open.lingers || (endless && open.peer_closed && ended == Ended::Reset)
                    };
                    let had_all = self.connections.get(&id).is_some_and(had_all);
                    self.close(id, sockets);
                    Counted::lost(ended, u64::from(ended != Ended::InOrder && !had_all))
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
        self.look(now, sockets);
    }

    fn next_deadline(&self) -> Option<Timestamp> {
        let look = self.idle.filter(|_| !self.connections.is_empty()).map(|_| self.look_at);
        self.lingering.front().map(|(until, _)| *until).into_iter().chain(look).min()
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
        takes: [bool; 3],
        acknowledged: [u64; 3],
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

        fn send(&mut self, id: usize, bytes: &[u8]) -> usize {
            if self.takes[id] { bytes.len() } else { 0 }
        }

        fn read(&mut self, id: usize, take: &mut dyn FnMut(&[u8]) -> usize) -> usize {
            take(&vec![0; std::mem::take(&mut self.says[id])])
        }

        fn acknowledged(&self, id: usize) -> Option<u64> {
            Some(self.acknowledged[id])
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

    /// Answers whoever has said a whole line, which is of 4 bytes, and owes what it could not send.
    #[derive(Debug)]
    struct Lines;

    impl Serve for Lines {
        type Connection = (usize, usize);

        fn owes(&self, connection: &(usize, usize)) -> bool {
            connection.1 > 0
        }

        fn work<S: Sockets>(
            &mut self,
            id: S::Id,
            connection: &mut (usize, usize),
            _: bool,
            sockets: &mut S,
        ) -> Worked {
            let read = sockets.read(id, &mut |bytes| bytes.len());
            *connection = ((connection.0 + read) % 4, connection.1 + (connection.0 + read) / 4);
            let sent = sockets.send(id, &vec![0; connection.1]);
            connection.1 -= sent;
            let counted = Counted { sent: sent as u64, received: read as u64, ..Counted::default() };
            Worked { counted, course: Course::Open }
        }
    }

    /// The first asks again and again, the second drips a request that is never whole, the third takes no answer.
    #[test]
    fn connections_of_which_nothing_comes_for_too_long_are_ended() {
        let idle = Duration::from_secs(60);
        let mut peers = Peers { takes: [true, true, false], ..Peers::default() };
        let mut server = Server::new(Lines, 80, Counters::default()).with_idle_timeout(idle);
        server.turn(&[0, 1, 2].map(Happened::Accepted), &mut peers);
        for seconds in (1..=100).step_by(3) {
            peers.now = Timestamp::ZERO + Duration::from_secs(seconds);
            let drips = (seconds == 1) || (seconds == 31);
            peers.says = [4, usize::from(drips), if seconds == 1 { 4 } else { 0 }];
            server.turn(&[0, 1, 2].map(Happened::Readable), &mut peers);
            let over = seconds >= 60;
            assert!(over || peers.done.is_empty(), "{seconds}: {:?}", peers.done);
        }
        peers.done.sort_unstable();
        assert_eq!(peers.done, [("aborted", 2), ("closed", 1)]);
        assert!(server.next_deadline().is_some());
        // Once there is nobody left, nothing wakes it.
        server.turn(&[Happened::Closed(0, Ended::InOrder)], &mut peers);
        assert_eq!(server.next_deadline(), None);
    }

    /// There is no room to send for either; but one reads what was sent before.
    #[test]
    fn a_connection_whose_peer_takes_an_answer_slowly_is_not_idle() {
        let idle = Duration::from_secs(60);
        let mut peers = Peers { says: [4, 4, 0], ..Peers::default() };
        let mut server = Server::new(Lines, 80, Counters::default()).with_idle_timeout(idle);
        server.turn(&[0, 1].map(Happened::Accepted), &mut peers);
        let turn = |peers: &mut Peers, server: &mut Server<usize, Lines>, seconds| {
            peers.now = Timestamp::ZERO + Duration::from_secs(seconds);
            server.turn(&[], peers);
            std::mem::take(&mut peers.done)
        };
        for seconds in (1..200).step_by(3) {
            peers.acknowledged[0] += 1000;
            let done = turn(&mut peers, &mut server, seconds);
            // What was there at the first look counts once.
            assert_eq!(done.as_slice(), if seconds == 61 { &[("aborted", 1)][..] } else { &[] }, "{seconds}");
        }
        assert_eq!(turn(&mut peers, &mut server, 250), []);
        assert_eq!(turn(&mut peers, &mut server, 262), [("aborted", 0)]);
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
