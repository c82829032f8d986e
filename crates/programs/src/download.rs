//! A client that downloads by parallel streams: whatever a server sends, or one path of an HTTP server.

use std::collections::HashMap;
use std::hash::Hash;
use std::net::SocketAddr;

use crate::counters::{Counted, Counters};
use crate::sockets::{Happened, Service, Sockets};

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

/// How an answer begins that HTTP calls successful (RFC 9110, 15.3), but for the digit after the first dot.
const SUCCESS: &[u8] = b"HTTP/1.1 2";

/// The client. It is done when all servers have said all.
#[derive(Debug)]
pub struct Download<Id> {
    wanted: Wanted,
    counters: Counters,
    /// How the answer of each began, as far as it says whether it is one.
    streams: HashMap<Id, Vec<u8>>,
}

impl<Id: Copy + Eq + Hash> Download<Id> {
    /// One that has not begun.
    pub fn new(wanted: Wanted, counters: Counters) -> Self {
        Self { wanted, counters, streams: HashMap::new() }
    }

    fn end<S: Sockets<Id = Id>>(&mut self, id: Id, in_order: bool, sockets: &mut S) {
        if let Some(began) = self.streams.remove(&id) {
            sockets.close(id);
            let refused = !self.wanted.request.is_empty() && !is_success(&began);
            self.counters.add(Counted { errors: u64::from(!in_order || refused), ..Counted::default() });
        }
    }
}

fn is_success(began: &[u8]) -> bool {
    let minor = SUCCESS.len() - 3;
    began.len() == SUCCESS.len()
        && began.iter().zip(SUCCESS).enumerate().all(|(at, (got, wanted))| at == minor || got == wanted)
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
                    let missing = SUCCESS.len().saturating_sub(began.len());
                    began.extend(bytes.iter().take(missing));
                }
                bytes.len()
            }) as u64;
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
