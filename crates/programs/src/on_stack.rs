//! Services on an engine of Bywash.

use std::collections::HashSet;
use std::net::SocketAddr;
use std::time::Duration;

use bywash_engine::stack::{CloseReason, ConnectionId, Event, Listen, Timestamp};
use bywash_engine::{Io, Program};

use crate::sockets::{Ended, Happened, Service, Sockets};

/// Handshakes that may be under way at a port.
const BACKLOG: usize = 4096;

/// How often connections that are being opened are looked at: whether the host is said to be unreachable.
const LOOK: Duration = Duration::from_millis(100);

/// A service as a program of an engine.
#[derive(Debug)]
pub struct OnStack<T> {
    service: T,
    happened: Vec<Happened<ConnectionId>>,
    /// Connections that are being opened, and when they are looked at.
    opening: HashSet<ConnectionId>,
    look_at: Timestamp,
}

impl<T> OnStack<T> {
    /// The service, to be started.
    pub fn new(service: T) -> Self {
        Self { service, happened: Vec::new(), opening: HashSet::new(), look_at: Timestamp::ZERO }
    }

    /// What is no more than trouble on the way to a connection that is open, which may pass (RFC 9293, MUST-56), ends an attempt
    /// to open one, as in Linux: who waits for it wants to know (RFC 5461, 4).
    fn look(&mut self, io: &mut Io<'_>) {
        let now = io.now();
        if self.opening.is_empty() || now < self.look_at {
            return;
        }
        self.look_at = now + LOOK;
        let Self { opening, happened, .. } = self;
        opening.retain(|id| {
            let trouble = io.stack().tcp_info(now, *id).ok().and_then(|info| info.soft_error);
            if trouble.is_some() {
                let _ = io.abort(*id);
                happened.push(Happened::Closed(*id, Ended::Unreachable));
            }
            trouble.is_none()
        });
    }
}

/// What the stack says of a connection's end.
fn ended(why: CloseReason) -> Ended {
    match why {
        CloseReason::Done => Ended::InOrder,
        CloseReason::Refused => Ended::Refused,
        CloseReason::Reset => Ended::Reset,
        CloseReason::TimedOut => Ended::TimedOut,
    }
}

impl<T: Service<ConnectionId>> Program for OnStack<T> {
    fn listens(&self) -> Vec<Listen> {
        let port = self.service.listens();
        port.into_iter().map(|port| Listen { local: None, port, backlog: BACKLOG }).collect()
    }

    fn start(&mut self, io: &mut Io<'_>) -> Result<(), String> {
        self.service.start(&mut StackSockets { io, opening: &mut self.opening })
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
                    self.opening.remove(&id);
                    let _ = io.set_nodelay(id, true);
                    self.happened.push(Happened::Connected(id));
                }
                Event::Readable(id) => self.happened.push(Happened::Readable(id)),
                Event::Writable(id) => self.happened.push(Happened::Writable(id)),
                Event::PeerClosed(id) => self.happened.push(Happened::PeerClosed(id)),
                Event::Closed(id, why) => {
                    self.opening.remove(&id);
                    self.happened.push(Happened::Closed(id, ended(why)));
                }
                _ => {}
            }
        }
        self.look(io);
        self.service.turn(&self.happened, &mut StackSockets { io, opening: &mut self.opening });
    }

    fn end(&mut self, now: Timestamp) {
        self.service.end(now);
    }

    fn next_deadline(&self) -> Option<Timestamp> {
        let look = (!self.opening.is_empty()).then_some(self.look_at);
        self.service.next_deadline().into_iter().chain(look).min()
    }

    fn is_done(&self) -> bool {
        self.service.is_done()
    }
}

/// An engine's connections, for the time of one call.
struct StackSockets<'a, 'b> {
    io: &'a mut Io<'b>,
    opening: &'a mut HashSet<ConnectionId>,
}

impl Sockets for StackSockets<'_, '_> {
    type Id = ConnectionId;

    fn now(&self) -> Timestamp {
        self.io.now()
    }

    fn connect(&mut self, to: SocketAddr) -> Result<ConnectionId, String> {
        let remote = (to.into(), to.port());
        let id = self.io.connect((None, 0), remote, None).map_err(|error| format!("{to}: {error}"))?;
        self.opening.insert(id);
        Ok(id)
    }

    fn send(&mut self, id: ConnectionId, bytes: &[u8]) -> usize {
        self.io.send(id, bytes).unwrap_or(0)
    }

    fn read(&mut self, id: ConnectionId, take: &mut dyn FnMut(&[u8]) -> usize) -> usize {
        self.io.read(id, take).unwrap_or(0)
    }

    fn acknowledged(&self, id: ConnectionId) -> Option<u64> {
        self.io.stack().tcp_info(self.io.now(), id).ok().map(|info| info.bytes_acked)
    }

    fn shutdown(&mut self, id: ConnectionId) {
        let _ = self.io.shutdown(id);
    }

    fn close(&mut self, id: ConnectionId) {
        self.opening.remove(&id);
        let _ = self.io.close(id);
    }

    fn abort(&mut self, id: ConnectionId) {
        self.opening.remove(&id);
        let _ = self.io.abort(id);
    }

    fn waker(&self) -> Box<dyn Fn() + Send> {
        let waker = self.io.waker();
        Box::new(move || waker.wake())
    }
}
