//! What a program is that lives on the workers, and what it can do there.
//!
//! A program runs to completion: it is called with all that has happened on its engine since the last time, does its
//! part, and returns; what it sends leaves afterwards, together. It never waits. Bytes that came in are read where the
//! NIC has put them. Each engine has a program of its own, so that a program needs no locks, and a connection stays on the
//! engine that has accepted or opened it.
//!
//! Listeners are no engine's: the control thread has them, once for the instance, and all engines take connections by the
//! snapshot that it publishes. What a program wants to listen on it says before anything runs ([`Program::listens`]): so a port
//! that is taken is known at the start, and a program that begins is reached on all engines. What connects before it has begun
//! waits for it. A listener that is wanted later, or no longer, is asked of the control: by a program, which does not wait, with
//! [`Io::listen`], and from outside with [`Handle::control`](crate::Handle::control) and
//! [`Control::listen`](bywash_stack::Control::listen). Engines hear of it one after the other, within a turn of each; until
//! then they answer a SYN as before.

use std::collections::VecDeque;

use bywash_stack::frame::Pool;
use bywash_stack::{
    Address, ConnectionId, Datagram, Event, Flow, Limits, Listen, ListenerId, Stack, TcpError, Timestamp,
    UdpError, UdpId, UdpOptions, Unreachable,
};

use crate::engine::Asked;
use crate::handoff::Bell;
use crate::steer::Steering;

/// A program on one engine.
pub trait Program: Send + 'static {
    /// What peers may connect to. One program is asked, the first engine's, for all: connections come to any engine, as
    /// [`Event::Accepted`].
    fn listens(&self) -> Vec<Listen> {
        Vec::new()
    }

    /// Opens what there is to open. The addresses are in use by now.
    ///
    /// # Errors
    /// Why it cannot do its work; [`Program::turn`] is not called then.
    fn start(&mut self, io: &mut Io<'_>) -> Result<(), String> {
        let _ = io;
        Ok(())
    }

    /// Does what follows from the events, in their order, and what is due by now. Called when there are events, and
    /// without any when [`Program::next_deadline`] has passed.
    fn turn(&mut self, events: &[Event], io: &mut Io<'_>);

    /// What has come of [`Io::listen`]: peers can connect to this engine by now, to others as soon as they have heard of it; or
    /// why they can't.
    fn listening(&mut self, listen: Listen, result: Result<ListenerId, TcpError>, io: &mut Io<'_>) {
        let _ = (listen, result, io);
    }

    /// The instance ends, whether the program has done all or not. Nothing else is called after this; connections that are still
    /// open are reset.
    fn end(&mut self, now: Timestamp) {
        let _ = now;
    }

    /// When it is to be called next if nothing happens before.
    fn next_deadline(&self) -> Option<Timestamp> {
        None
    }

    /// Whether it has done all it was to do. An instance ends when all its programs have.
    fn is_done(&self) -> bool {
        false
    }
}

/// No program: an instance that answers pings, or passes packets on.
impl Program for () {
    fn turn(&mut self, _: &[Event], _: &mut Io<'_>) {}
}

/// Wakes an engine that sleeps, from any thread: its program is asked anew for [`Program::next_deadline`]. Whoever brings something
/// that is neither packets nor time lays it down first.
#[derive(Clone, Debug)]
pub struct Waker(Bell);

impl Waker {
    /// Does it. It costs a system call, also where the engine is awake.
    pub fn wake(&self) {
        self.0.ring_anyway();
    }
}

/// What a program does things with: its engine's sockets, for the time of one call.
#[derive(Debug)]
pub struct Io<'a> {
    pub(crate) now: Timestamp,
    pub(crate) stack: &'a mut Stack,
    pub(crate) pool: &'a mut Pool,
    pub(crate) steering: &'a Steering,
    pub(crate) engine: usize,
    pub(crate) asked: &'a mut VecDeque<Asked>,
    pub(crate) bell: &'a Bell,
}

impl<'a> Io<'a> {
    /// The time of this call.
    pub fn now(&self) -> Timestamp {
        self.now
    }

    /// The engine's number, from 0.
    pub fn engine(&self) -> usize {
        self.engine
    }

    /// How many engines the instance has.
    pub fn engines(&self) -> usize {
        self.steering.engines()
    }

    /// What wakes this engine.
    pub fn waker(&self) -> Waker {
        Waker(self.bell.clone())
    }

    /// The sockets, to look at.
    pub fn stack(&self) -> &Stack {
        self.stack
    }

    /// Asks for one more listener, for all engines; [`Program::listening`] follows, on this one.
    pub fn listen(&mut self, listen: Listen) {
        self.asked.push_back(Asked::Listen(listen));
    }

    /// Asks that a listener be no more, on any engine. Connections stay.
    pub fn unlisten(&mut self, id: ListenerId) {
        self.asked.push_back(Asked::Unlisten(id));
    }

    /// Opens a connection, see [`Stack::connect`]. With several engines, and without a port of its own, it gets one by
    /// which the answers come back to this engine.
    ///
    /// # Errors
    /// [`TcpError`]: nothing was sent.
    pub fn connect(
        &mut self,
        local: (Option<Address>, u16),
        remote: (Address, u16),
        limits: Option<Limits>,
    ) -> Result<ConnectionId, TcpError> {
        let limits = limits.unwrap_or_else(|| self.stack.limits());
        let wanted = self.comes_back(remote.0);
        self.stack.connect_where(self.now, local, remote, limits, wanted, self.pool)
    }

    /// Whether what a peer says in a flow comes to this engine.
    fn comes_back(&self, peer: Address) -> impl Fn(&Flow) -> bool + use<'a> {
        // What goes to ourselves stays on this engine.
        let anywhere = self.engines() == 1 || self.stack.snapshot().has_address(peer);
        let (steering, engine) = (self.steering, self.engine);
        move |flow| anywhere || steering.engine(flow) == engine
    }

    /// Queues bytes to be sent and says how many, see [`Stack::send`].
    ///
    /// # Errors
    /// [`TcpError::Closed`], [`TcpError::Shutdown`].
    pub fn send(&mut self, id: ConnectionId, bytes: &[u8]) -> Result<usize, TcpError> {
        self.stack.send(self.now, id, bytes, self.pool)
    }

    /// [`Io::send`] of bytes that do not end there, see [`Stack::send_part`]: a header, while what follows is not ready yet.
    ///
    /// # Errors
    /// [`TcpError::Closed`], [`TcpError::Shutdown`].
    pub fn send_part(&mut self, id: ConnectionId, bytes: &[u8]) -> Result<usize, TcpError> {
        self.stack.send_part(self.now, id, bytes, self.pool)
    }

    /// Queues bytes that are written where they wait to be sent, see [`Stack::send_in_place`].
    ///
    /// # Errors
    /// [`TcpError::Closed`], [`TcpError::Shutdown`].
    pub fn send_in_place(
        &mut self,
        id: ConnectionId,
        write: impl FnMut(&mut [u8]) -> usize,
    ) -> Result<usize, TcpError> {
        self.stack.send_in_place(self.now, id, write, self.pool)
    }

    /// What can be read, in place, packet by packet, see [`Stack::readable`].
    ///
    /// # Errors
    /// [`TcpError::Closed`].
    pub fn readable(&self, id: ConnectionId) -> Result<impl Iterator<Item = &[u8]>, TcpError> {
        self.stack.readable(id)
    }

    /// Takes bytes away that have been read, see [`Stack::consume`].
    ///
    /// # Errors
    /// [`TcpError::Closed`].
    pub fn consume(&mut self, id: ConnectionId, n: usize) -> Result<(), TcpError> {
        self.stack.consume(self.now, id, n, self.pool)
    }

    /// Reads what is there, in place: `take` is handed it piece by piece and says how much of each it has read. With
    /// less than all of one it ends; the rest stays. Returns how much was read.
    ///
    /// # Errors
    /// [`TcpError::Closed`].
    pub fn read(
        &mut self,
        id: ConnectionId,
        mut take: impl FnMut(&[u8]) -> usize,
    ) -> Result<usize, TcpError> {
        let mut read = 0;
        for piece in self.stack.readable(id)? {
            let taken = take(piece).min(piece.len());
            read += taken;
            if taken < piece.len() {
                break;
            }
        }
        self.consume(id, read)?;
        Ok(read)
    }

    /// Sends on one connection what another one has received, or the same one, see [`Stack::pass`].
    ///
    /// # Errors
    /// [`TcpError`], of either connection: what can't be sent stays to be read.
    pub fn pass(&mut self, from: ConnectionId, to: ConnectionId) -> Result<usize, TcpError> {
        self.stack.pass(self.now, from, to, self.pool)
    }

    /// Whether all that a peer will ever have said has been read, see [`Stack::is_at_end`].
    pub fn is_at_end(&self, id: ConnectionId) -> bool {
        self.stack.is_at_end(id)
    }

    /// Bytes that [`Io::send`] would take now, see [`Stack::send_room`].
    ///
    /// # Errors
    /// [`TcpError::Closed`].
    pub fn send_room(&self, id: ConnectionId) -> Result<usize, TcpError> {
        self.stack.send_room(id)
    }

    /// Sends no more, see [`Stack::shutdown`].
    ///
    /// # Errors
    /// [`TcpError::Closed`].
    pub fn shutdown(&mut self, id: ConnectionId) -> Result<(), TcpError> {
        self.stack.shutdown(self.now, id, self.pool)
    }

    /// Lets go of a connection, see [`Stack::close`].
    ///
    /// # Errors
    /// [`TcpError::Closed`].
    pub fn close(&mut self, id: ConnectionId) -> Result<(), TcpError> {
        self.stack.close(self.now, id, self.pool)
    }

    /// Breaks a connection off, see [`Stack::abort`].
    ///
    /// # Errors
    /// [`TcpError::Closed`].
    pub fn abort(&mut self, id: ConnectionId) -> Result<(), TcpError> {
        self.stack.abort(self.now, id, self.pool)
    }

    /// Whether small segments go out at once, see [`Stack::set_nodelay`].
    ///
    /// # Errors
    /// [`TcpError::Closed`].
    pub fn set_nodelay(&mut self, id: ConnectionId, nodelay: bool) -> Result<(), TcpError> {
        self.stack.set_nodelay(self.now, id, nodelay, self.pool)
    }

    /// Whether only full segments go out, see [`Stack::set_cork`]: for an answer that is written over several calls.
    ///
    /// # Errors
    /// [`TcpError::Closed`].
    pub fn set_cork(&mut self, id: ConnectionId, cork: bool) -> Result<(), TcpError> {
        self.stack.set_cork(self.now, id, cork, self.pool)
    }

    /// Whether the next segments are acknowledged at once, see [`Stack::set_quick_ack`].
    ///
    /// # Errors
    /// [`TcpError::Closed`].
    pub fn set_quick_ack(&mut self, id: ConnectionId, quick: bool) -> Result<(), TcpError> {
        self.stack.set_quick_ack(self.now, id, quick, self.pool)
    }

    /// Gives one connection limits of its own, also one that was accepted, see [`Stack::set_connection_limits`]. What it has is
    /// [`Stack::connection_limits`].
    ///
    /// # Errors
    /// [`TcpError::Closed`].
    pub fn set_connection_limits(&mut self, id: ConnectionId, limits: Limits) -> Result<(), TcpError> {
        self.stack.set_connection_limits(self.now, id, limits, self.pool)
    }

    /// Opens a UDP socket, see [`Stack::udp_bind`]. It hears the datagrams that come to this engine: with several engines, open
    /// it on all of them, on one port. What asks others something is better opened by [`Io::udp_connect`].
    ///
    /// # Errors
    /// [`UdpError::Taken`], [`UdpError::NoPort`].
    pub fn udp_bind(&mut self, local: Option<Address>, port: u16) -> Result<UdpId, UdpError> {
        self.stack.udp_bind(local, port)
    }

    /// Opens a UDP socket that is tied to a peer, see [`Stack::udp_connect_where`]. With several engines, and without a port of its
    /// own, it gets one by which the answers come back to this engine.
    ///
    /// # Errors
    /// [`UdpError::NoRoute`], [`UdpError::Taken`], [`UdpError::NoPort`].
    pub fn udp_connect(
        &mut self,
        local: (Option<Address>, u16),
        remote: (Address, u16),
    ) -> Result<UdpId, UdpError> {
        let wanted = self.comes_back(remote.0);
        self.stack.udp_connect_where(local, remote, wanted)
    }

    /// Closes a UDP socket: its port is free again, and what nobody has read goes.
    pub fn udp_close(&mut self, id: UdpId) {
        self.stack.udp_close(id, self.pool);
    }

    /// The next datagram, see [`Stack::udp_receive`]. Give it back by [`Io::udp_release`] when it is read.
    ///
    /// # Errors
    /// [`UdpError`].
    pub fn udp_receive(&mut self, id: UdpId) -> Result<Option<Datagram>, UdpError> {
        self.stack.udp_receive(id)
    }

    /// The next error of a socket without a peer, see [`Stack::udp_error`].
    pub fn udp_error(&mut self, id: UdpId) -> Option<((Address, u16), Unreachable)> {
        self.stack.udp_error(id)
    }

    /// Says how a socket's datagrams are sent from now on, see [`Stack::set_udp_options`].
    ///
    /// # Errors
    /// [`UdpError::Closed`].
    pub fn set_udp_options(&mut self, id: UdpId, options: UdpOptions) -> Result<(), UdpError> {
        self.stack.set_udp_options(id, options)
    }

    /// Takes a datagram back that has been read.
    pub fn udp_release(&mut self, datagram: Datagram) {
        datagram.release(self.pool);
    }

    /// Sends a datagram, see [`Stack::udp_send`].
    ///
    /// # Errors
    /// [`UdpError`]: the datagram was not sent.
    pub fn udp_send(
        &mut self,
        id: UdpId,
        to: Option<(Address, u16)>,
        payload: &[u8],
    ) -> Result<(), UdpError> {
        self.stack.udp_send(self.now, id, to, payload, self.pool)
    }

    /// Sends a datagram from the address at which its peer asked, see [`Stack::udp_send_from`].
    ///
    /// # Errors
    /// [`UdpError`]: the datagram was not sent.
    pub fn udp_send_from(
        &mut self,
        id: UdpId,
        ends: (Address, (Address, u16)),
        payload: &[u8],
    ) -> Result<(), UdpError> {
        self.stack.udp_send_from(self.now, id, ends, payload, self.pool)
    }
}
