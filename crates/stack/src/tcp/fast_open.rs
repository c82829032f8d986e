//! TCP Fast Open (RFC 7413): connections that are there before their handshake is over.
//!
//! A peer's connection is made of its SYN when that has a cookie which only who is at the peer's address can know. It is in
//! SYN-RECEIVED then, or in FIN-WAIT-1 once its program has closed it, and all that is different from an ordinary one is that the
//! program has it, reads what came with the SYN, and may send. Its SYN,ACK is in the scoreboard like everything else, and is repeated
//! by the connection's own timer.
//!
//! A connection of ours has the first bytes of its send buffer in its SYN, and in the scoreboard behind it. What the answer does not
//! acknowledge is lost; only the SYN goes out before.

use std::collections::VecDeque;
use std::time::Duration;

use bywash_frame::{Packet, Pool};
use bywash_wire::{FastOpen, TCP_OPTIONS, TcpFlags, TcpOptions};

use super::connection::Connection;
use super::emit::Bare;
use super::listen::{HalfOpen, default_mss};
use super::open::source;
use super::receive_buffer::length;
use super::segment::Segment;
use super::send_buffer::Shape;
use super::seq::Seq;
use super::{CloseReason, ConnectionId, Entry, Limits, ListenerId, Tcp, TcpError};
use crate::fast_open::{FastOpenClient, FastOpenFailure, FastOpenKeys, FastOpenServer, Known};
use crate::stack::{Context, Event};
use crate::time::Span;
use crate::{Address, Flow, Stack, Timestamp};

/// How long a handshake that the peer has reset counts among those that are pending (RFC 7413, 5.1: as long as a SYN,ACK would be
/// repeated; Linux has a minute).
const RESET_COUNTS: Duration = Duration::from_secs(60);

/// What a listener knows of Fast Open.
#[derive(Debug, Default)]
pub(super) struct Taking {
    how: FastOpenServer,
    /// Connections whose handshake is under way.
    pub(super) pending: usize,
    /// Until when those count that the peer has reset.
    resets: VecDeque<Timestamp>,
}

impl Taking {
    /// RFC 7413, 4.1.2 and 4.2.2, "Server: On receiving the SYN": whether it is to become a connection at once, and what its answer
    /// tells.
    pub(super) fn judge(
        &mut self,
        flow: &Flow,
        segment: &Segment,
        cx: &mut Context<'_>,
    ) -> (bool, Option<FastOpen>) {
        let option = segment.options.fast_open;
        let asks = option.is_some_and(|option| option.cookie.is_none());
        cx.counters.tcp_fast_open_cookies_asked += u64::from(asks);
        if (option.is_none() && segment.payload == 0) || self.how.pending == 0 {
            return (false, None);
        }
        while self.resets.pop_front_if(|until| *until <= cx.now).is_some() {}
        if self.pending + self.resets.len() >= self.how.pending {
            cx.counters.tcp_fast_open_overflows += 1;
            return (false, None);
        }
        if self.how.cookieless {
            return (true, None);
        }
        let Some(FastOpen { cookie, experimental }) = option else { return (false, None) };
        let keys = self.how.keys.unwrap_or_else(|| FastOpenKeys::own(cx.secret));
        let new = FastOpen { cookie: keys.cookie(flow.remote, flow.local), experimental };
        match cookie.map(|cookie| keys.knows(cookie, flow.remote, flow.local)) {
            None => (false, Some(new)),
            Some(Known::Current) => (true, None),
            Some(Known::Former) => (true, Some(new)),
            Some(Known::Not) => {
                cx.counters.tcp_fast_open_passive_failed += 1;
                (false, Some(new))
            }
        }
    }
}

/// What a handshake has of Fast Open.
#[derive(Debug, Default)]
pub(super) struct Opening {
    /// The option of the next SYN or SYN,ACK; later ones have none.
    pub(super) option: Option<FastOpen>,
    /// Our SYN had the option; its form, the experimental one if `true`.
    asked: Option<bool>,
    /// Bytes of data that our SYN had.
    data: u32,
    /// The path has shown to be narrower than its first link: what we take is to fit it, too.
    narrowed: bool,
}

impl Tcp {
    /// Listeners hear of the handshakes that are over.
    #[cold]
    pub(super) fn settle_openings(&mut self, cx: &mut Context<'_>) {
        for (id, until) in cx.share.opened.drain(..) {
            let listener = self.listeners.get_mut(&id.0);
            if let Some(taking) = listener.and_then(|listener| listener.fast_open.as_deref_mut()) {
                taking.pending -= 1;
                taking.resets.extend(until);
            }
        }
    }

    /// Makes a connection of a SYN.
    pub(super) fn open_fast(
        &mut self,
        i: u32,
        (half, limits): (HalfOpen, &Limits),
        told: Option<FastOpen>,
        segment: &Segment,
        (waits, packet): (Option<u32>, Packet),
        cx: &mut Context<'_>,
    ) {
        let (hash, listener) = (half.hash, half.listener);
        let connection = &mut self.connections[i];
        connection.id.index = i;
        half.into_connection(connection, limits, cx);
        connection.begin_early(listener, told, segment, packet, cx);
        self.enter(hash, Entry::Connection(i), waits);
        self.settle(i, cx);
    }
}

impl Connection {
    /// RFC 7413, 4.2.2: the program has the connection and what came with the SYN, which the SYN,ACK acknowledges. A FIN beside it
    /// is not taken: it comes again.
    fn begin_early(
        &mut self,
        listener: ListenerId,
        told: Option<FastOpen>,
        segment: &Segment,
        packet: Packet,
        cx: &mut Context<'_>,
    ) {
        cx.counters.tcp_fast_open_passive += 1;
        self.opening = Some(Box::new(Opening { option: told, ..Opening::default() }));
        // Our SYN is out, too, and counts in neither window.
        self.window.congestion += 1;
        self.wnd = u32::from(segment.window) + 1;
        (self.wl1, self.wl2, self.max_wnd) = (segment.seq, self.una, self.wnd);
        cx.events.push(Event::Accepted { listener, connection: self.id });
        let first = self.rcv_nxt;
        if segment.payload == 0 {
            cx.pool.give_packet(packet);
        } else {
            self.take_payload(segment, packet, cx);
        }
        self.syn_data = self.rcv_nxt != first;
        self.send_range(self.una, 1, cx);
    }

    /// RFC 7413, 4.2.2, "Client: Sending a SYN": with a cookie it has data, of at most the size that the server asked for last and the
    /// path takes, less what options may take; without, it asks for one. Returns how many bytes it has.
    pub(super) fn begin_fast(&mut self, first: FastOpenClient<'_>, cx: &mut Context<'_>) -> usize {
        let server = cx.out.servers.find(&self.flow);
        let shunned = server.is_shunned(cx.now);
        let plain = shunned || first.cookieless;
        let option = FastOpen { cookie: server.cookie, experimental: server.experimental };
        let mut opening = Opening { option: Some(option).filter(|_| !plain), ..Opening::default() };
        opening.asked = opening.option.map(|option| option.experimental);
        if !shunned && (first.cookieless || server.cookie.is_some()) {
            self.set_mss(server.mss.unwrap_or(self.path_mss));
            let room = (self.window.mss() as usize).saturating_sub(TCP_OPTIONS).min(self.send_room());
            let data = &first.data[..room.min(first.data.len())];
            opening.data = length(self.send.write(data, Shape::FULL, cx.share, cx.pool));
        } else {
            self.fast_open_failed = Some(FastOpenFailure::NoCookie);
        }
        let data = opening.data;
        self.opening = Some(Box::new(opening));
        if data > 0 {
            let end = self.nxt + data;
            self.board.push(self.nxt, end, cx.now, self.window.mss());
            self.nxt = end;
        }
        self.emit(self.una, data, TcpFlags::SYN, cx);
        data as usize
    }

    /// Whether an answer echoes a clock that our SYNs did not have, and is one to others: it is reset, as Linux has it.
    #[cold]
    pub(super) fn is_of_another_time(&self, segment: &Segment, cx: &mut Context<'_>) -> bool {
        let Some((_, echo)) = segment.options.timestamps else { return false };
        let known =
            |echo: Seq| !echo.before(Seq(self.clock(self.stalled))) && !echo.after(Seq(self.clock(cx.now)));
        if echo == 0 || !self.limits.timestamps || known(Seq(echo)) {
            return false;
        }
        if let Some(reset) = Bare::reset(self.flow, segment) {
            // No clock was agreed on.
            Bare { options: TcpOptions::default(), ..reset }.send(cx);
        }
        true
    }

    /// What a SYN of ours, or an answer to one, has of it.
    #[cold]
    pub(super) fn add_opening(&mut self, options: &mut TcpOptions) {
        let Some(opening) = &mut self.opening else { return };
        if opening.narrowed {
            options.mss = options.mss.map(|mss| mss.min(self.path_mss));
        }
        options.fast_open = opening.option.take();
    }

    /// RFC 7413, 4.2.2, "Client: Receiving SYN-ACK": what it says of the server is remembered, and what of the data it does not
    /// acknowledge goes out again at once.
    #[cold]
    pub(super) fn answered(&mut self, segment: &Segment, cx: &mut Context<'_>) {
        let Some(opening) = self.opening.take() else { return };
        let (left, repeated) = (self.una != self.nxt, self.timeouts.count > 0 || opening.narrowed);
        let told = segment.options.fast_open.filter(|option| option.cookie.is_some());
        // A cookie that nobody has asked for is none.
        let told = told.filter(|_| opening.asked.is_some());
        if opening.asked.is_some() || opening.data > 0 {
            let server = cx.out.servers.entry(&self.flow, cx.now);
            server.mss = Some(segment.options.mss.unwrap_or(default_mss(&self.flow)));
            match told {
                Some(told) => server.told(told),
                None if opening.data == 0 && !repeated => server.told_nothing(),
                None => {}
            }
            // Only SYNs without data have arrived, it seems.
            if repeated && told.is_none() && left {
                server.lost(cx.now);
            } else {
                server.found();
            }
        }
        if opening.data == 0 {
            return;
        }
        // SYN and data are one segment.
        self.tally.delivered = 1;
        self.syn_data = !left;
        cx.counters.tcp_fast_open_active += u64::from(!left);
        cx.counters.tcp_fast_open_active_failed += u64::from(left);
        if left {
            let why = if repeated { FastOpenFailure::Repeated } else { FastOpenFailure::NotAcknowledged };
            self.fast_open_failed = Some(why);
            self.lose_all(cx.now);
        }
    }

    /// All that is out is to be sent again.
    pub(super) fn lose_all(&mut self, now: Timestamp) {
        self.board.timed_out(now, self.window.mss(), false, (Span::ZERO, Span::ZERO));
    }

    /// The connection has ended before its handshake was over.
    #[cold]
    pub(super) fn fail_opening(&mut self, reason: CloseReason, cx: &mut Context<'_>) {
        let data = self.opening.as_ref().map_or(0, |opening| opening.data);
        if data > 0 && reason == CloseReason::TimedOut {
            cx.out.servers.entry(&self.flow, cx.now).lost(cx.now);
        }
        if self.is_early() {
            self.note_opening(None, cx);
        }
        self.opening = None;
    }

    /// The path takes less than our SYN has with its data: the SYN goes out again at once, without.
    pub(super) fn narrow_opening(&mut self, now: Timestamp) {
        if let Some(opening) = self.opening.as_mut().filter(|opening| opening.data > 0) {
            opening.narrowed = true;
            self.lose_all(now);
        }
    }

    /// Whether it is a peer's connection that the program has before its handshake is over.
    #[inline]
    pub(super) fn is_early(&self) -> bool {
        self.opening.is_some() && self.is_accepted()
    }

    /// Whether the peer opened it, to a listener.
    #[inline]
    pub(super) fn is_accepted(&self) -> bool {
        self.listener != ListenerId::default()
    }

    /// The handshake is over. Returns whether the program has had the connection before.
    #[cold]
    pub(super) fn end_opening(&mut self, cx: &mut Context<'_>) -> bool {
        let early = self.is_early();
        if early {
            self.note_opening(None, cx);
            cx.counters.tcp_passive_opens += 1;
            // Our SYN was counted.
            self.window.congestion -= 1;
        }
        self.opening = None;
        early
    }

    /// The peer has reset a handshake.
    #[cold]
    pub(super) fn reset_opening(&mut self, cx: &mut Context<'_>) {
        self.note_opening(Some(cx.now + RESET_COUNTS), cx);
        self.opening = None;
    }

    /// The listener is to hear of it; `until`: when it counts no more among those that are pending.
    fn note_opening(&mut self, until: Option<Timestamp>, cx: &mut Context<'_>) {
        cx.share.opened.push((self.listener, until));
    }
}

impl Stack {
    /// [`Stack::connect_where`], with data in the SYN where a cookie of the server is known (RFC 7413). Returned with the connection is
    /// how many bytes the SYN has: what is left is to be sent by [`Stack::send`], at once if it pleases, and follows the handshake.
    /// Where no cookie is known that is all of it, and the next connection has one, if the server tells one.
    ///
    /// # Errors
    /// [`TcpError`]: nothing was sent.
    pub fn connect_fast(
        &mut self,
        now: Timestamp,
        local: (Option<Address>, u16),
        remote: (Address, u16),
        (limits, first): (Limits, FastOpenClient<'_>),
        wanted: impl Fn(&Flow) -> bool,
        pool: &mut Pool,
    ) -> Result<(ConnectionId, usize), TcpError> {
        self.with_tcp(now, pool, |tcp, cx| tcp.connect(local, remote, (limits, Some(first)), wanted, cx))
    }

    /// Whether a SYN to an address, from one of ours or the route's, would have data: a cookie is known. Then a program may wait with
    /// its connection until it has some.
    pub fn has_fast_open_cookie(&self, now: Timestamp, local: Option<Address>, remote: Address) -> bool {
        let local = source(local, remote, self.snapshot());
        let flow = local.map(|local| Flow { local, remote, ..Flow::default() });
        flow.map(|flow| self.out.servers.find(&flow))
            .is_ok_and(|server| server.cookie.is_some() && !server.is_shunned(now))
    }

    /// Lets a listener take Fast Open, or no more. Those of [`crate::Control::listen`] are to be told on each stack.
    pub fn set_fast_open(&mut self, id: ListenerId, how: FastOpenServer) {
        if let Some(listener) = self.tcp.listeners.get_mut(&id.0) {
            listener.fast_open.get_or_insert_default().how = how;
        }
    }
}
