//! Services on an engine of Bywash.

use std::net::SocketAddr;

use bywash_engine::stack::{CloseReason, ConnectionId, Event, Listen, Timestamp};
use bywash_engine::{Io, Program};

use crate::sockets::{Happened, Service, Sockets};

/// Handshakes that may be under way at a port.
const BACKLOG: usize = 4096;

/// A service as a program of an engine.
#[derive(Debug)]
pub struct OnStack<T> {
    service: T,
    happened: Vec<Happened<ConnectionId>>,
}

impl<T> OnStack<T> {
    /// The service, to be started.
    pub fn new(service: T) -> Self {
        Self { service, happened: Vec::new() }
    }
}

impl<T: Service<ConnectionId>> Program for OnStack<T> {
    fn listens(&self) -> Vec<Listen> {
        let port = self.service.listens();
        port.into_iter().map(|port| Listen { local: None, port, backlog: BACKLOG }).collect()
    }

    fn start(&mut self, io: &mut Io<'_>) -> Result<(), String> {
        self.service.start(io)
    }

    fn turn(&mut self, events: &[Event], io: &mut Io<'_>) {
        self.happened.clear();
        for event in events {
            match *event {
                Event::Accepted { connection, .. } => {
                    // What answers at once has nothing to gain from waiting for more to send.
                    let _ = io.set_nodelay(connection, true);
                    self.happened.push(Happened::Accepted(connection));
                }
                Event::Connected(id) => {
                    let _ = io.set_nodelay(id, true);
                    self.happened.push(Happened::Connected(id));
                }
                Event::Readable(id) => self.happened.push(Happened::Readable(id)),
                Event::Writable(id) => self.happened.push(Happened::Writable(id)),
                Event::PeerClosed(id) => self.happened.push(Happened::PeerClosed(id)),
                Event::Closed(id, why) => self.happened.push(Happened::Closed(id, why == CloseReason::Done)),
                _ => {}
            }
        }
        self.service.turn(&self.happened, io);
    }

    fn end(&mut self, now: Timestamp) {
        self.service.end(now);
    }

    fn next_deadline(&self) -> Option<Timestamp> {
        self.service.next_deadline()
    }

    fn is_done(&self) -> bool {
        self.service.is_done()
    }
}

impl Sockets for Io<'_> {
    type Id = ConnectionId;

    fn now(&self) -> Timestamp {
        Io::now(self)
    }

    fn connect(&mut self, to: SocketAddr) -> Result<ConnectionId, String> {
        let remote = (to.ip().into(), to.port());
        Io::connect(self, (None, 0), remote, None).map_err(|error| format!("{to}: {error}"))
    }

    fn send(&mut self, id: ConnectionId, bytes: &[u8]) -> usize {
        Io::send(self, id, bytes).unwrap_or(0)
    }

    fn read(&mut self, id: ConnectionId, take: &mut dyn FnMut(&[u8]) -> usize) -> usize {
        Io::read(self, id, take).unwrap_or(0)
    }

    fn shutdown(&mut self, id: ConnectionId) {
        let _ = Io::shutdown(self, id);
    }

    fn close(&mut self, id: ConnectionId) {
        let _ = Io::close(self, id);
    }

    fn abort(&mut self, id: ConnectionId) {
        let _ = Io::abort(self, id);
    }
}
