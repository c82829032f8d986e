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

    fn is_endless(&self) -> bool {
        self.manner == Manner::Upload
    }

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
        if self.manner == Manner::Upload {
            loop {
                let n = sockets.send(id, &self.piece);
                counted.sent += n as u64;
                if n < self.piece.len() {
                    break;
                }
            }
        }
        // Who has said all may still listen (`nc -N`): an upload ends when nobody takes it any more.
        let is_over = peer_closed && pending.is_empty() && self.manner != Manner::Upload;
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

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use bywash_engine::stack::Timestamp;

    use super::*;
    use crate::counters::Counters;
    use crate::server::Server;
    use crate::sockets::{Ended, Happened, Service};

    /// A peer that says nothing, takes so much, and is let go of or not.
    struct Peer(usize, bool);

    impl Sockets for Peer {
        type Id = ();

        fn now(&self) -> Timestamp {
            Timestamp::ZERO
        }

        fn connect(&mut self, _: SocketAddr) -> Result<(), String> {
            Err("nobody connects".into())
        }

        fn send(&mut self, (): (), bytes: &[u8]) -> usize {
            let sent = bytes.len().min(self.0);
            self.0 -= sent;
            sent
        }

        fn read(&mut self, (): (), _: &mut dyn FnMut(&[u8]) -> usize) -> usize {
            0
        }

        fn shutdown(&mut self, (): ()) {}

        fn close(&mut self, (): ()) {
            self.1 = true;
        }

        fn abort(&mut self, (): ()) {}
    }

    #[test]
    fn an_upload_goes_on_until_nobody_takes_it() {
        for (manner, sent, is_over) in
            [(Manner::Upload, 200_000, false), (Manner::Sink, 0, true), (Manner::Echo, 0, true)]
        {
            let (counters, mut peer) = (Counters::default(), Peer(100_000, false));
            let mut server = Server::new(Stream::new(manner), 19, counters.clone());
            server.turn(&[Happened::Accepted(()), Happened::PeerClosed(())], &mut peer);
            peer.0 += 100_000;
            server.turn(&[Happened::Writable(())], &mut peer);
            assert_eq!((counters.read().sent, peer.1), (sent, is_over), "{manner:?}");
            // A socket that is closed answers what comes by a reset.
            server.turn(&[Happened::Closed((), Ended::Reset)], &mut peer);
            assert!(peer.1 && (is_over || counters.read().errors() == 0), "{manner:?}");
        }
    }
}
