//! A client that downloads by parallel streams: whatever a server sends, or one path of an HTTP server.

use std::collections::HashMap;
use std::hash::Hash;
use std::net::SocketAddr;

use crate::counters::{Counted, Counters};
use crate::dialect::shown;
use crate::sockets::{Ended, Happened, Service, Sockets};

/// What is to be downloaded, by one service.
#[derive(Clone, Debug)]
pub struct Wanted {
    /// The server.
    pub from: SocketAddr,
    /// What to ask first, of an HTTP server; nothing of a server that sends unasked.
    pub request: Vec<u8>,
    /// Streams.
    pub streams: usize,
}

/// Bytes of an answer's status line that are kept, to be shown if it is wrong.
const STATUS: usize = 80;

/// The client. It is done when all servers have said all.
#[derive(Debug)]
pub struct Download<Id> {
    wanted: Wanted,
    counters: Counters,
    /// How the answer of each began, as far as it says whether it is one: its status line, or the beginning of it.
    streams: HashMap<Id, Vec<u8>>,
}

impl<Id: Copy + Eq + Hash> Download<Id> {
    /// One that has not begun.
    pub fn new(wanted: Wanted, counters: Counters) -> Self {
        Self { wanted, counters, streams: HashMap::new() }
    }

    fn end<S: Sockets<Id = Id>>(&mut self, id: Id, ended: Ended, sockets: &mut S) {
        let Some(began) = self.streams.remove(&id) else { return };
        sockets.close(id);
        if ended != Ended::InOrder {
            self.counters.add(Counted::lost(ended, 1));
        } else if !self.wanted.request.is_empty() && !is_success(&began) {
            self.counters.wrong(shown(&began), 1);
        }
    }
}

/// Whether HTTP calls it successful (RFC 9110, 15.3), whatever its version's digit.
fn is_success(began: &[u8]) -> bool {
    matches!(began, [b'H', b'T', b'T', b'P', b'/', b'1', b'.', _, b' ', b'2', ..])
}

impl<Id: Copy + Eq + Hash + Send + 'static> Service<Id> for Download<Id> {
    fn start<S: Sockets<Id = Id>>(&mut self, sockets: &mut S) -> Result<(), String> {
        for _ in 0..self.wanted.streams {
            self.streams.insert(sockets.connect(self.wanted.from)?, Vec::new());
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
            let mut began = self.streams.get_mut(&id);
            let received = sockets.read(id, &mut |bytes| {
                if let Some(began) = &mut began {
                    let missing = if began.contains(&b'\n') { 0 } else { STATUS - began.len() };
                    began.extend(bytes.iter().take(missing));
                }
                bytes.len()
            }) as u64;
            self.counters.add(Counted { received, ..Counted::default() });
            match *what {
                Happened::PeerClosed(id) => self.end(id, Ended::InOrder, sockets),
                Happened::Closed(id, ended) => self.end(id, ended, sockets),
                _ => {}
            }
        }
    }

    fn is_done(&self) -> bool {
        self.streams.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_succeeds_is_a_success() {
        for (began, expected) in [
            ("HTTP/1.1 2", true),
            ("HTTP/1.0 2", true),
            ("HTTP/1.1 4", false),
            ("HTTP/2.0 2", false),
            ("HTTP/1.1 ", false),
            ("", false),
        ] {
            assert_eq!(is_success(began.as_bytes()), expected, "{began}");
        }
    }
}
