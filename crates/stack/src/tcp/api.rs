//! What programs do with connections.

use bywash_frame::Pool;

use super::congestion::Congestion;
use super::connection::{Connection, NEVER};
use super::facts::{
    ACK_NOW, ANSWERS, AWAITS_MORE, CORK, DIRTY, FIN_WANTED, MORE_FOLLOWS, NODELAY, RELEASED, SQUEEZED,
    TOLD_READABLE, WANTS_ROOM,
};
use super::seq::Seq;
use super::state::{Cause, State};
use super::{CloseReason, ConnectionId, Limits, ListenerId, Tcp};
use crate::stack::{Context, Share};
use crate::{Address, Flow, Stack, Timestamp};

/// Why TCP refuses. No more than a number: it is in the result of every call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TcpError {
    /// Something listens there already.
    #[error("the port is taken")]
    Taken,
    /// The connection exists already.
    #[error("there is such a connection already")]
    Exists,
    /// A connection between the same ends was closed here within the last minute, and late segments of it could be taken for
    /// the new one's (RFC 9293, MUST-13): no clock tells them apart, or it was less than a second ago.
    #[error("the last such connection is in TIME-WAIT")]
    Waits,
    /// All ports to that destination are taken.
    #[error("no port is free")]
    NoPort,
    /// No route leads there, or no address of ours fits it.
    #[error("no route leads there")]
    NoRoute,
    /// The destination cannot be one host's (RFC 9293, MUST-46).
    #[error("that is not one host's address")]
    NoHost,
    /// There are as many connections as there may be.
    #[error("too many connections")]
    TooMany,
    /// There is no such connection, or it has ended.
    #[error("no such connection")]
    Closed,
    /// The program has said that it will send no more.
    #[error("the sending side is closed")]
    Shutdown,
}

impl Tcp {
    pub(super) fn index(&self, id: ConnectionId) -> Result<u32, TcpError> {
        let known = self.connections.peek(id.index).is_some_and(|c| c.id == id && !c.facts.any(RELEASED));
        if known { Ok(id.index) } else { Err(TcpError::Closed) }
    }

    /// A connection that the program has, to be worked on.
    #[inline]
    fn connection(&mut self, id: ConnectionId) -> Result<&mut Connection, TcpError> {
        let known = self.connections.get_mut(id.index).filter(|c| c.id == id && !c.facts.any(RELEASED));
        known.ok_or(TcpError::Closed)
    }

    #[inline]
    pub(super) fn send(
        &mut self,
        id: ConnectionId,
        bytes: &[u8],
        cx: &mut Context<'_>,
    ) -> Result<usize, TcpError> {
        let connection = self.sender(id)?;
        let (room, shape) = (connection.send_room().min(bytes.len()), connection.shape(cx.out));
        let written = connection.send.write(&bytes[..room], shape, cx.share, cx.pool);
        connection.facts.remove(MORE_FOLLOWS.with(AWAITS_MORE));
        self.queued(id, written < bytes.len());
        Ok(written)
    }

    fn send_part(&mut self, id: ConnectionId, bytes: &[u8], cx: &mut Context<'_>) -> Result<usize, TcpError> {
        let written = self.send(id, bytes, cx)?;
        let connection = &mut self.connections[id.index];
        connection.facts.add(MORE_FOLLOWS.with(AWAITS_MORE));
        Ok(written)
    }

    #[inline]
    fn send_in_place(
        &mut self,
        id: ConnectionId,
        mut write: impl FnMut(&mut [u8]) -> usize,
        cx: &mut Context<'_>,
    ) -> Result<usize, TcpError> {
        let connection = self.sender(id)?;
        let (mut ended, room, shape) = (false, connection.send_room(), connection.shape(cx.out));
        let written = connection.send.fill(room, shape, cx.share, cx.pool, |place| {
            let n = write(place).min(place.len());
            ended = n < place.len();
            n
        });
        connection.facts.remove(MORE_FOLLOWS.with(AWAITS_MORE));
        self.queued(id, !ended);
        Ok(written)
    }

    fn pass(
        &mut self,
        from: ConnectionId,
        to: ConnectionId,
        cx: &mut Context<'_>,
    ) -> Result<usize, TcpError> {
        let giver = self.connection(from)?;
        let readable = giver.receive.readable();
        if readable == 0 {
            return Ok(0);
        }
        // Taken out, for it may be the same connection's that sends.
        let received = std::mem::take(&mut giver.receive);
        let sent = self.send_all(to, received.slices(), readable, cx);
        self.connections[from.index].receive = received;
        self.consume(cx.now, from, sent?, (cx.share, cx.pool))?;
        sent
    }

    /// Queues pieces that have so many bytes together, as far as there is room.
    fn send_all<'a>(
        &mut self,
        id: ConnectionId,
        pieces: impl Iterator<Item = &'a [u8]>,
        all: usize,
        cx: &mut Context<'_>,
    ) -> Result<usize, TcpError> {
        let connection = self.sender(id)?;
        let (room, shape, mut written) = (connection.send_room(), connection.shape(cx.out), 0);
        for piece in pieces {
            let wanted = piece.len().min(room - written);
            let taken = connection.send.write(&piece[..wanted], shape, cx.share, cx.pool);
            written += taken;
            if taken < piece.len() {
                break;
            }
        }
        connection.facts.remove(MORE_FOLLOWS.with(AWAITS_MORE));
        self.queued(id, written < all);
        Ok(written)
    }

    /// A connection that the program has, and may send on.
    #[inline]
    fn sender(&mut self, id: ConnectionId) -> Result<&mut Connection, TcpError> {
        let connection = self.connection(id)?;
        if connection.state.gives_data() && !connection.facts.any(FIN_WANTED) {
            return Ok(connection);
        }
        Err(if connection.state == State::Closed { TcpError::Closed } else { TcpError::Shutdown })
    }

    /// Bytes were queued, and the program would have more.
    #[inline]
    fn queued(&mut self, id: ConnectionId, more: bool) {
        self.connections[id.index].facts.add_if(WANTS_ROOM, more);
        self.line_up(id.index);
    }

    /// One that gives or takes data has not ended: there is nothing else to be settled than its place in line.
    #[inline]
    fn line_up(&mut self, i: u32) {
        let connection = &mut self.connections[i];
        if !connection.facts.any(DIRTY) {
            connection.facts.add(DIRTY);
            self.dirty.push_back(i);
        }
    }

    fn consume(
        &mut self,
        now: Timestamp,
        id: ConnectionId,
        n: usize,
        (share, pool): (&mut Share, &mut Pool),
    ) -> Result<(), TcpError> {
        let connection = self.connection(id)?;
        let n = connection.receive.consume(n, share, pool);
        if connection.has_read(n, now) {
            self.line_up(id.index);
        }
        Ok(())
    }

    #[inline]
    fn read(
        &mut self,
        now: Timestamp,
        id: ConnectionId,
        to: &mut [u8],
        (share, pool): (&mut Share, &mut Pool),
    ) -> Result<usize, TcpError> {
        let connection = self.connection(id)?;
        let n = connection.receive.read(to, share, pool);
        if connection.has_read(n, now) {
            self.line_up(id.index);
        }
        Ok(n)
    }

    fn shutdown(&mut self, id: ConnectionId, cx: &mut Context<'_>) -> Result<(), TcpError> {
        let i = self.index(id)?;
        let connection = &mut self.connections[i];
        if connection.state == State::SynSent {
            connection.terminate(CloseReason::Done, cx);
        } else if !connection.facts.any(FIN_WANTED) {
            connection.finish(cx);
        }
        self.settle(i, cx);
        Ok(())
    }

    fn close(&mut self, id: ConnectionId, cx: &mut Context<'_>) -> Result<(), TcpError> {
        let i = self.index(id)?;
        let connection = &mut self.connections[i];
        connection.facts.add(RELEASED);
        // RFC 2525, 2.17 and RFC 9293, 3.6.1: what was not read is told to the peer by a reset, also after both FINs.
        if connection.receive.readable() > 0 && connection.state != State::Closed {
            connection.break_off(cx);
        } else if connection.state == State::SynSent {
            connection.terminate(CloseReason::Done, cx);
        } else if !connection.facts.any(FIN_WANTED) {
            connection.finish(cx);
        } else if connection.state == State::FinWait2 {
            connection.linger_at = cx.now + connection.limits.fin_timeout;
        }
        connection.forget_received(cx);
        self.settle(i, cx);
        Ok(())
    }

    fn abort(&mut self, id: ConnectionId, cx: &mut Context<'_>) -> Result<(), TcpError> {
        let i = self.index(id)?;
        self.abort_one(i, cx);
        Ok(())
    }

    fn abort_one(&mut self, i: u32, cx: &mut Context<'_>) {
        let connection = &mut self.connections[i];
        connection.facts.add(RELEASED);
        connection.abort(cx);
        // Its entry may have to wait for its turn, which is far where its port takes nothing.
        connection.forget_received(cx);
        self.settle(i, cx);
    }

    fn abort_some(&mut self, from: u32, most: usize, cx: &mut Context<'_>) -> Option<u32> {
        let mut left = most;
        for i in from..self.connections.numbers().end {
            if self.connections[i].state == State::Closed {
                continue;
            }
            left = match left.checked_sub(1) {
                Some(left) => left,
                None => return Some(i),
            };
            self.abort_one(i, cx);
        }
        None
    }
}

impl Connection {
    /// The program has no more to say. In SYN-RECEIVED a FIN waits for the end of the handshake behind what was written; otherwise it
    /// goes at once (RFC 9293, 3.10.4), and so it does with Fast Open, where the peer may have data before.
    fn finish(&mut self, cx: &mut Context<'_>) {
        self.facts.add(FIN_WANTED);
        if self.state != State::SynReceived || self.send.len() == 0 || self.is_early() {
            self.step(Cause::Shutdown, cx);
        }
    }

    /// RFC 9293, 3.10.5: a reset, unless the peer knows nothing of us or all is said.
    fn abort(&mut self, cx: &mut Context<'_>) {
        if self.has_said_all() {
            self.terminate(CloseReason::Reset, cx);
        } else {
            self.break_off(cx);
        }
    }

    /// The end, and a reset, unless the peer knows nothing of us.
    fn break_off(&mut self, cx: &mut Context<'_>) {
        if self.state.is_synchronized() {
            self.send_reset(self.bare_seq(), cx);
        }
        self.terminate(CloseReason::Reset, cx);
    }

    /// The program has read so many bytes. Whether the peer is to hear of it now.
    #[inline]
    fn has_read(&mut self, n: usize, now: Timestamp) -> bool {
        self.grow_window(n, now);
        if self.receive.readable() == 0 {
            self.facts.remove(TOLD_READABLE);
        }
        let tell = self.state.takes_data() && (self.facts.take(SQUEEZED) || self.window_opens());
        self.facts.add_if(ACK_NOW, tell);
        tell
    }

    /// Lets the window grow with what the program reads in a round trip: it should hold twice that.
    #[inline]
    fn grow_window(&mut self, n: usize, now: Timestamp) {
        self.read = self.read.saturating_add(u32::try_from(n).unwrap_or(u32::MAX));
        let time = now.span(self.read_since);
        if time >= self.round_trip() && time >= self.heard.beyond(self.rtt.smoothed()) {
            self.rcv_limit = self.rcv_limit.max(self.read.saturating_mul(2).min(self.limits.receive_max));
            (self.read, self.read_since) = (0, now);
        }
    }

    /// Whether the peer should hear of the room that reading has made (RFC 9293, 3.8.6.2.2).
    #[inline]
    fn window_opens(&self) -> bool {
        // There is nothing to tell beyond what the field can say.
        let limit = self.rcv_limit.min(u32::from(u16::MAX) << self.rcv_scale);
        let told = self.edge - self.rcv_nxt;
        // Early when the window was shut; else acknowledgments of data carry it.
        if told >= limit / 2 {
            return false;
        }
        let free = self.rcv_limit.saturating_sub(super::receive_buffer::length(self.receive.readable()));
        let wanted: Seq = self.rcv_nxt + free.min(limit);
        let gained = if wanted.after(self.edge) { wanted - self.edge } else { 0 };
        gained >= (limit / 2).min(2 * self.window.mss())
    }
}

impl Stack {
    /// What new connections may use. Those that exist keep theirs.
    pub fn set_limits(&mut self, limits: Limits) {
        self.tcp.set_limits(limits);
    }

    /// What new connections may use.
    pub fn limits(&self) -> Limits {
        self.tcp.limits
    }

    /// Listens on a port, on one of our addresses, on all of a family (the unspecified one) or on all. Each connection comes as
    /// [`crate::Event::Accepted`]. With `backlog` handshakes under way, further ones are made without memory, by cookies. No other
    /// stack has the listener: [`crate::Control::listen`] makes one for all.
    ///
    /// # Errors
    /// [`TcpError::Taken`].
    pub fn listen(
        &mut self,
        local: Option<Address>,
        port: u16,
        backlog: usize,
    ) -> Result<ListenerId, TcpError> {
        self.tcp.listen(local, port, backlog)
    }

    /// Listens no more. Connections stay, also those that [`crate::Event::Accepted`] has yet to tell of; handshakes under way come to
    /// nothing.
    pub fn unlisten(&mut self, id: ListenerId) {
        self.tcp.unlisten(id);
    }

    /// Whether a listener's program takes no more connections for now, because those that it has not looked at are as many as it
    /// wants (the queue of `accept`). Then SYNs are dropped, and so are the segments that would complete handshakes: both come again.
    pub fn set_listener_full(&mut self, id: ListenerId, full: bool) {
        if let Some(listener) = self.tcp.listeners.get_mut(&id.0) {
            listener.full = full;
        }
    }

    /// Gives the connections of one listener limits of their own.
    pub fn set_listener_limits(&mut self, id: ListenerId, limits: Limits) {
        if let Some(listener) = self.tcp.listeners.get_mut(&id.0) {
            listener.limits = limits;
        }
    }

    /// Opens a connection; [`crate::Event::Connected`] or [`crate::Event::Closed`] follows. `local`: our address, or
    /// the route's; and our port, or 0 for any.
    ///
    /// # Errors
    /// [`TcpError`]: nothing was sent.
    pub fn connect(
        &mut self,
        now: Timestamp,
        local: (Option<Address>, u16),
        remote: (Address, u16),
        pool: &mut Pool,
    ) -> Result<ConnectionId, TcpError> {
        let limits = self.tcp.limits;
        self.connect_with(now, local, remote, limits, pool)
    }

    /// [`Stack::connect`] with limits of its own.
    ///
    /// # Errors
    /// [`TcpError`]: nothing was sent.
    pub fn connect_with(
        &mut self,
        now: Timestamp,
        local: (Option<Address>, u16),
        remote: (Address, u16),
        limits: Limits,
        pool: &mut Pool,
    ) -> Result<ConnectionId, TcpError> {
        self.connect_where(now, local, remote, limits, |_| true, pool)
    }

    /// [`Stack::connect_with`], where our port, if it is 0, becomes one by which the flow is `wanted`: of several stacks with one
    /// address, by which the answers come to this one.
    ///
    /// # Errors
    /// [`TcpError`]: nothing was sent.
    pub fn connect_where(
        &mut self,
        now: Timestamp,
        local: (Option<Address>, u16),
        remote: (Address, u16),
        limits: Limits,
        wanted: impl Fn(&Flow) -> bool,
        pool: &mut Pool,
    ) -> Result<ConnectionId, TcpError> {
        let connected =
            self.with_tcp(now, pool, |tcp, cx| tcp.connect(local, remote, (limits, None), wanted, cx));
        connected.map(|(id, _)| id)
    }

    /// Queues bytes to be sent and says how many: fewer when the buffer is full, or those of all connections together hold as
    /// much as they may, and then [`crate::Event::Writable`] follows. The first frame is always for the connection itself.
    ///
    /// # Errors
    /// [`TcpError::Closed`], [`TcpError::Shutdown`].
    pub fn send(
        &mut self,
        now: Timestamp,
        id: ConnectionId,
        bytes: &[u8],
        pool: &mut Pool,
    ) -> Result<usize, TcpError> {
        self.with_tcp(now, pool, |tcp, cx| tcp.send(id, bytes, cx))
    }

    /// [`Stack::send`] of bytes that do not end there (`MSG_MORE`): of them, less than a full segment waits for what follows, for the
    /// peer's next acceptable segment, or until the retransmission timeout has passed (200 ms at least). Nor does it go with PSH.
    ///
    /// # Errors
    /// [`TcpError::Closed`], [`TcpError::Shutdown`].
    pub fn send_part(
        &mut self,
        now: Timestamp,
        id: ConnectionId,
        bytes: &[u8],
        pool: &mut Pool,
    ) -> Result<usize, TcpError> {
        self.with_tcp(now, pool, |tcp, cx| tcp.send_part(id, bytes, cx))
    }

    /// Queues bytes that are written where they wait to be sent, and says how many. `write` is handed one piece of memory after
    /// the other, which holds what it will, writes to its front and says how many bytes: fewer than all when there are no more.
    /// When it was never fewer, the buffer is full, and [`crate::Event::Writable`] follows.
    ///
    /// Super-segments carry the bytes from there, without a copy. Where no port is to cut, full segments in a row go out in the
    /// memory that was written, if each piece was filled; others are copied, while their checksum is made.
    ///
    /// # Errors
    /// [`TcpError::Closed`], [`TcpError::Shutdown`]: `write` was not called.
    pub fn send_in_place(
        &mut self,
        now: Timestamp,
        id: ConnectionId,
        write: impl FnMut(&mut [u8]) -> usize,
        pool: &mut Pool,
    ) -> Result<usize, TcpError> {
        self.with_tcp(now, pool, |tcp, cx| tcp.send_in_place(id, write, cx))
    }

    /// Sends on one connection what another one has received, or the same one, as far as there is room, takes that away, and says
    /// how much it was. What there is no room for stays, and [`crate::Event::Writable`] follows.
    ///
    /// # Errors
    /// [`TcpError`], of either connection: what can't be sent stays to be read.
    pub fn pass(
        &mut self,
        now: Timestamp,
        from: ConnectionId,
        to: ConnectionId,
        pool: &mut Pool,
    ) -> Result<usize, TcpError> {
        self.with_tcp(now, pool, |tcp, cx| tcp.pass(from, to, cx))
    }

    /// What can be read, in place, packet by packet. [`Stack::consume`] takes it away.
    ///
    /// # Errors
    /// [`TcpError::Closed`].
    pub fn readable(&self, id: ConnectionId) -> Result<impl Iterator<Item = &[u8]>, TcpError> {
        let i = self.tcp.index(id)?;
        Ok(self.tcp.connections[i].receive.slices())
    }

    /// Takes `n` bytes away, or all that there are if those are fewer: they have been read.
    ///
    /// # Errors
    /// [`TcpError::Closed`].
    pub fn consume(
        &mut self,
        now: Timestamp,
        id: ConnectionId,
        n: usize,
        pool: &mut Pool,
    ) -> Result<(), TcpError> {
        self.tcp.consume(now, id, n, (&mut self.share, pool))
    }

    /// Copies what can be read into `to`, takes it away, and says how many bytes that were.
    ///
    /// # Errors
    /// [`TcpError::Closed`].
    pub fn receive_copy(
        &mut self,
        now: Timestamp,
        id: ConnectionId,
        to: &mut [u8],
        pool: &mut Pool,
    ) -> Result<usize, TcpError> {
        self.tcp.read(now, id, to, (&mut self.share, pool))
    }

    /// Sends no more: a FIN follows what is queued. Reading goes on.
    ///
    /// # Errors
    /// [`TcpError::Closed`].
    pub fn shutdown(&mut self, now: Timestamp, id: ConnectionId, pool: &mut Pool) -> Result<(), TcpError> {
        self.with_tcp(now, pool, |tcp, cx| tcp.shutdown(id, cx))
    }

    /// Lets go of a connection: what is queued is still sent, then a FIN. With something unread it is a reset. No
    /// event follows but those that wait in [`Stack::events`] already, and the number means nothing any more.
    ///
    /// # Errors
    /// [`TcpError::Closed`].
    pub fn close(&mut self, now: Timestamp, id: ConnectionId, pool: &mut Pool) -> Result<(), TcpError> {
        self.with_tcp(now, pool, |tcp, cx| tcp.close(id, cx))
    }

    /// Breaks a connection off: a reset, and nothing queued is sent (`SO_LINGER` of zero). Events are as after [`Stack::close`].
    ///
    /// # Errors
    /// [`TcpError::Closed`].
    pub fn abort(&mut self, now: Timestamp, id: ConnectionId, pool: &mut Pool) -> Result<(), TcpError> {
        self.with_tcp(now, pool, |tcp, cx| tcp.abort(id, cx))
    }

    /// Breaks off so many connections, those of `from` first, which is 0 at the beginning. Where to go on, if there are more: at the
    /// end of all peers need not find out by themselves that nobody is there any more, but of thousands the resets are more than the
    /// queues hold.
    pub fn abort_some(&mut self, now: Timestamp, from: u32, most: usize, pool: &mut Pool) -> Option<u32> {
        self.with_tcp(now, pool, |tcp, cx| tcp.abort_some(from, most, cx))
    }

    /// Whether small segments go out at once (`TCP_NODELAY`: MUST-17) or wait for an acknowledgment (Nagle).
    ///
    /// # Errors
    /// [`TcpError::Closed`].
    pub fn set_nodelay(
        &mut self,
        now: Timestamp,
        id: ConnectionId,
        nodelay: bool,
        pool: &mut Pool,
    ) -> Result<(), TcpError> {
        self.change(now, id, pool, |connection, _| {
            connection.facts.set(NODELAY, nodelay);
            if nodelay {
                connection.facts.remove(AWAITS_MORE);
            }
        })
    }

    /// Whether only full segments go out (`TCP_CORK`): what is less waits until the cork is pulled, the sending side
    /// is closed, or the retransmission timeout has passed (200 ms at least).
    ///
    /// # Errors
    /// [`TcpError::Closed`].
    pub fn set_cork(
        &mut self,
        now: Timestamp,
        id: ConnectionId,
        cork: bool,
        pool: &mut Pool,
    ) -> Result<(), TcpError> {
        self.change(now, id, pool, |connection, _| {
            connection.facts.set(CORK, cork);
            if !cork {
                connection.facts.remove(AWAITS_MORE);
            }
        })
    }

    /// Whether the next segments are acknowledged at once, or only with what the program sends or after a while
    /// (`TCP_QUICKACK`). What comes later may change it again.
    ///
    /// # Errors
    /// [`TcpError::Closed`].
    pub fn set_quick_ack(
        &mut self,
        now: Timestamp,
        id: ConnectionId,
        quick: bool,
        pool: &mut Pool,
    ) -> Result<(), TcpError> {
        self.change(now, id, pool, |connection, _| {
            connection.facts.set(ANSWERS, !quick);
            if quick {
                connection.quick = super::arrive::QUICK;
                connection.facts.add_if(ACK_NOW, connection.unacknowledged() > 0);
            }
        })
    }

    /// Gives one connection limits of its own: buffers, timeouts, keep-alive, congestion control. What its SYN offers stays, and with
    /// the scale of its window the largest that the peer can be told of.
    ///
    /// # Errors
    /// [`TcpError::Closed`].
    pub fn set_connection_limits(
        &mut self,
        now: Timestamp,
        id: ConnectionId,
        limits: Limits,
        pool: &mut Pool,
    ) -> Result<(), TcpError> {
        self.change(now, id, pool, |connection, cx| {
            if connection.limits.congestion != limits.congestion {
                connection.congestion = Congestion::new(limits.congestion);
                // It has the other one's.
                connection.undo = None;
            }
            let watched = limits.keepalive && connection.state.is_synchronized();
            let old = (connection.limits.keepalive, connection.limits.keepalive_idle);
            if !watched {
                connection.keepalive_at = NEVER;
            } else if !old.0 {
                connection.keepalive_at = now + limits.keepalive_idle;
            } else if old.1 != limits.keepalive_idle {
                connection.keepalive_at = now.max(connection.last_acknowledged + limits.keepalive_idle);
            }
            connection.rcv_limit = connection.rcv_limit.min(limits.receive_max);
            if connection.limits.hop_limit != limits.hop_limit {
                // It has the other one in its headers.
                connection.way = None;
            }
            if let Some(mss) = limits.mss.filter(|_| connection.state.is_synchronized()) {
                connection.set_mss(mss.min(connection.full_mss()));
            }
            let Limits { window_scaling, timestamps, sack, .. } = connection.limits;
            connection.limits = Limits { window_scaling, timestamps, sack, ..limits };
            connection.give_up_in_time();
            connection.tell_writable(cx);
        })
    }

    fn change(
        &mut self,
        now: Timestamp,
        id: ConnectionId,
        pool: &mut Pool,
        change: impl FnOnce(&mut Connection, &mut Context<'_>),
    ) -> Result<(), TcpError> {
        self.with_tcp(now, pool, |tcp, cx| {
            let i = tcp.index(id)?;
            change(&mut tcp.connections[i], cx);
            tcp.settle(i, cx);
            Ok(())
        })
    }

    /// The two ends of a connection.
    ///
    /// # Errors
    /// [`TcpError::Closed`].
    pub fn flow(&self, id: ConnectionId) -> Result<Flow, TcpError> {
        Ok(self.tcp.connections[self.tcp.index(id)?].flow)
    }

    /// Bytes that can be read now.
    ///
    /// # Errors
    /// [`TcpError::Closed`].
    pub fn readable_bytes(&self, id: ConnectionId) -> Result<usize, TcpError> {
        Ok(self.tcp.connections[self.tcp.index(id)?].receive.readable())
    }

    /// Whether all that the peer will ever have said has been read. So it is with a connection that there is not.
    pub fn is_at_end(&self, id: ConnectionId) -> bool {
        self.tcp.index(id).map_or(true, |i| self.tcp.connections[i].is_at_end())
    }

    /// Bytes that [`Stack::send`] would take now, if there are frames for them.
    ///
    /// # Errors
    /// [`TcpError::Closed`].
    pub fn send_room(&self, id: ConnectionId) -> Result<usize, TcpError> {
        Ok(self.tcp.connections[self.tcp.index(id)?].send_room())
    }

    /// Whether a program that waits until it can write should be woken, by the rule of Linux's `poll`: at least half as much of the
    /// send buffer is free as is taken, and of [`Limits::unsent`] less than half waits.
    ///
    /// # Errors
    /// [`TcpError::Closed`].
    pub fn is_writable(&self, id: ConnectionId) -> Result<bool, TcpError> {
        Ok(self.tcp.connections[self.tcp.index(id)?].is_writable())
    }

    /// What a connection may use, as it is now.
    ///
    /// # Errors
    /// [`TcpError::Closed`].
    pub fn connection_limits(&self, id: ConnectionId) -> Result<Limits, TcpError> {
        Ok(self.tcp.connections[self.tcp.index(id)?].limits)
    }

    /// Connections, handshakes under way, and entries in TIME-WAIT.
    pub fn connections(&self) -> (usize, usize, usize) {
        (self.tcp.connections.used(), self.tcp.half_open.used(), self.tcp.time_wait.used())
    }
}
