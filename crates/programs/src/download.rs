//! A client that downloads by parallel streams: whatever a server sends, or one path of an HTTP server.

use std::collections::HashSet;
use std::hash::Hash;
use std::net::SocketAddr;

use crate::counters::{Counted, Counters};
use crate::sockets::{Happened, Service, Sockets};

/// What is to be downloaded, by one service.
#[derive(Clone, Debug)]
pub struct Wanted {
    /// The server.
    pub from: SocketAddr,
    /// What to say first; nothing to a server that sends unasked.
    pub request: Vec<u8>,
    /// Streams.
    pub streams: usize,
}

/// The client. It is done when all servers have said all.
#[derive(Debug)]
pub struct Download<Id> {
    wanted: Wanted,
    counters: Counters,
    streams: HashSet<Id>,
}

impl<Id: Copy + Eq + Hash> Download<Id> {
    /// One that has not begun.
    pub fn new(wanted: Wanted, counters: Counters) -> Self {
        Self { wanted, counters, streams: HashSet::new() }
    }

    fn end<S: Sockets<Id = Id>>(&mut self, id: Id, in_order: bool, sockets: &mut S) {
        if self.streams.remove(&id) {
            sockets.close(id);
            self.counters.add(Counted { errors: u64::from(!in_order), ..Counted::default() });
        }
    }
}

impl<Id: Copy + Eq + Hash + Send + 'static> Service<Id> for Download<Id> {
    fn start<S: Sockets<Id = Id>>(&mut self, sockets: &mut S) -> Result<(), String> {
        for _ in 0..self.wanted.streams {
            self.streams.insert(sockets.connect(self.wanted.from)?);
        }
        Ok(())
    }

    fn turn<S: Sockets<Id = Id>>(&mut self, happened: &[Happened<Id>], sockets: &mut S) {
        for what in happened {
            let id = match *what {
                Happened::Connected(id) => {
                    // A new connection's buffer holds a request.
                    let sent = sockets.send(id, &self.wanted.request) as u64;
                    self.counters.add(Counted { connections: 1, sent, ..Counted::default() });
                    id
                }
                Happened::Accepted(id)
                | Happened::Readable(id)
                | Happened::Writable(id)
                | Happened::PeerClosed(id)
                | Happened::Closed(id, _) => id,
            };
            let received = sockets.read(id, &mut |bytes| bytes.len()) as u64;
            self.counters.add(Counted { received, ..Counted::default() });
            match *what {
                Happened::PeerClosed(id) => self.end(id, true, sockets),
                Happened::Closed(id, in_order) => self.end(id, in_order, sockets),
                _ => {}
            }
        }
    }

    fn is_done(&self) -> bool {
        self.streams.is_empty()
    }
}
