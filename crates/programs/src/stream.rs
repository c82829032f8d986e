//! The servers that know no requests: `echo` sends back, `sink` swallows, `upload` sends as fast as TCP allows.

use std::collections::HashMap;
use std::hash::Hash;

use crate::counters::{Counted, Counters};
use crate::sockets::{Happened, Service, Sockets};

/// Bytes that are read before they are sent back, and bytes of an upload that are handed over at once.
const PIECE: usize = 64 << 10;

/// What a server does with its connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Manner {
    /// Sends back what comes.
    Echo,
    /// Swallows what comes.
    Sink,
    /// Sends without end what nobody has asked for.
    Upload,
}

/// A server that knows no requests.
#[derive(Debug)]
pub struct StreamServer<Id> {
    manner: Manner,
    port: u16,
    connections: HashMap<Id, Stream>,
    counters: Counters,
    piece: Vec<u8>,
}

#[derive(Debug, Default)]
struct Stream {
    /// Read and not sent back yet.
    pending: Vec<u8>,
    peer_closed: bool,
}

impl<Id: Copy + Eq + Hash> StreamServer<Id> {
    /// One on a port.
    pub fn new(manner: Manner, port: u16, counters: Counters) -> Self {
        Self { manner, port, connections: HashMap::new(), counters, piece: vec![b'.'; PIECE] }
    }

    fn work<S: Sockets<Id = Id>>(&mut self, id: Id, sockets: &mut S) -> Counted {
        let Some(stream) = self.connections.get_mut(&id) else { return Counted::default() };
        let mut counted = match self.manner {
            Manner::Echo => echo(id, stream, sockets),
            Manner::Sink | Manner::Upload => {
                Counted { received: sockets.read(id, &mut |bytes| bytes.len()) as u64, ..Counted::default() }
            }
        };
        if self.manner == Manner::Upload && !stream.peer_closed {
            loop {
                let n = sockets.send(id, &self.piece);
                counted.sent += n as u64;
                if n < self.piece.len() {
                    break;
                }
            }
        }
        if stream.peer_closed && stream.pending.is_empty() {
            self.connections.remove(&id);
            sockets.close(id);
        }
        counted
    }
}

/// Sends back what is there, as far as there is room; the rest stays where it is.
fn echo<S: Sockets>(id: S::Id, stream: &mut Stream, sockets: &mut S) -> Counted {
    let mut counted = Counted::default();
    loop {
        let sent = sockets.send(id, &stream.pending);
        counted.sent += sent as u64;
        stream.pending.drain(..sent);
        if !stream.pending.is_empty() {
            return counted;
        }
        let pending = &mut stream.pending;
        let read = sockets.read(id, &mut |bytes| {
            let n = bytes.len().min(PIECE.saturating_sub(pending.len()));
            pending.extend_from_slice(&bytes[..n]);
            n
        });
        counted.received += read as u64;
        if read == 0 {
            return counted;
        }
    }
}

impl<Id: Copy + Eq + Hash + Send + 'static> Service<Id> for StreamServer<Id> {
    fn start<S: Sockets<Id = Id>>(&mut self, sockets: &mut S) -> Result<(), String> {
        sockets.listen(self.port)
    }

    fn turn<S: Sockets<Id = Id>>(&mut self, happened: &[Happened<Id>], sockets: &mut S) {
        for what in happened {
            let counted = match *what {
                Happened::Accepted(id) => {
                    self.connections.insert(id, Stream::default());
                    let counted = self.work(id, sockets);
                    Counted { connections: counted.connections + 1, ..counted }
                }
                Happened::Connected(id) | Happened::Readable(id) | Happened::Writable(id) => {
                    self.work(id, sockets)
                }
                Happened::PeerClosed(id) => {
                    if let Some(stream) = self.connections.get_mut(&id) {
                        stream.peer_closed = true;
                    }
                    self.work(id, sockets)
                }
                Happened::Closed(id, in_order) => {
                    self.connections.remove(&id);
                    sockets.close(id);
                    Counted { errors: u64::from(!in_order), ..Counted::default() }
                }
            };
            self.counters.add(counted);
        }
    }
}
