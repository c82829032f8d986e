//! The servers that know no requests: `echo` sends back, `sink` swallows, `upload` sends as fast as TCP allows.

use crate::counters::Counted;
use crate::server::{Course, Serve, Worked};
use crate::sockets::Sockets;

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

/// Serves connections without requests.
#[derive(Debug)]
pub struct Stream {
    manner: Manner,
    piece: Vec<u8>,
}

impl Stream {
    /// In this manner.
    pub fn new(manner: Manner) -> Self {
        Self { manner, piece: vec![b'.'; PIECE] }
    }
}

impl Serve for Stream {
    /// What was read and not sent back yet.
    type Connection = Vec<u8>;

    fn work<S: Sockets>(
        &mut self,
        id: S::Id,
        pending: &mut Vec<u8>,
        peer_closed: bool,
        sockets: &mut S,
    ) -> Worked {
        let mut counted = match self.manner {
            Manner::Echo => echo(id, pending, sockets),
            Manner::Sink | Manner::Upload => {
                Counted { received: sockets.read(id, &mut |bytes| bytes.len()) as u64, ..Counted::default() }
            }
        };
        if self.manner == Manner::Upload && !peer_closed {
            loop {
                let n = sockets.send(id, &self.piece);
                counted.sent += n as u64;
                if n < self.piece.len() {
                    break;
                }
            }
        }
        let is_over = peer_closed && pending.is_empty();
        Worked { counted, course: if is_over { Course::Over } else { Course::Open } }
    }
}

/// Sends back what is there, as far as there is room; the rest stays where it is.
fn echo<S: Sockets>(id: S::Id, pending: &mut Vec<u8>, sockets: &mut S) -> Counted {
    let mut counted = Counted::default();
    loop {
        let sent = sockets.send(id, pending);
        counted.sent += sent as u64;
        pending.drain(..sent);
        if !pending.is_empty() {
            return counted;
        }
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
