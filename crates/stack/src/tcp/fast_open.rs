//! TCP Fast Open (RFC 7413): connections that are there before their handshake is over.
//!
//! A peer's connection is made of its SYN when that has a cookie which only who is at the peer's address can know. It is in
//! SYN-RECEIVED then, and all that is different from an ordinary one is that the program has it, reads what came with the SYN, and
//! may send. Its SYN,ACK is in the scoreboard like everything else, and is repeated by the connection's own timer.

use std::collections::VecDeque;
use std::time::Duration;

use bywash_frame::Packet;
use bywash_wire::FastOpen;

use super::connection::Connection;
use super::listen::HalfOpen;
use super::segment::Segment;
use super::{Entry, Limits, ListenerId, Tcp};
use crate::fast_open::{FastOpenKeys, FastOpenServer, Known};
use crate::stack::{Context, Event};
use crate::{Flow, Stack, Timestamp};

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
    /// The peer's SYN has come again since the timer went off last, and was answered.
    asked_again: bool,
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
        (self.wl1, self.wl2, self.max_wnd) = (segment.seq, self.iss, self.wnd);
        cx.events.push(Event::Accepted { listener, connection: self.id });
        let first = self.rcv_nxt;
        if segment.payload == 0 {
            cx.pool.give_packet(packet);
        } else {
            self.take_payload(segment, packet, cx);
        }
        self.syn_data = self.rcv_nxt != first;
        self.send_range(self.iss, 1, cx);
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

    /// What comes before the handshake is over and is not a segment like others: the SYN of a peer that has not got our answer,
    /// which is repeated, once between two times that the timer does it.
    pub(super) fn is_asked_again(&mut self, segment: &Segment, cx: &mut Context<'_>) -> bool {
        let again = self.is_early() && segment.opens() && segment.seq == self.irs;
        let Some(opening) = self.opening.as_mut().filter(|_| again) else { return false };
        if !std::mem::replace(&mut opening.asked_again, true) {
            self.send_range(self.iss, 1, cx);
            self.board.resent(self.iss, self.iss + 1, cx.now);
            self.count_copy(0, cx);
        }
        true
    }

    /// The SYN,ACK is repeated by the timer.
    pub(super) fn answers_again(&mut self) {
        if let Some(opening) = &mut self.opening {
            opening.asked_again = false;
        }
    }

    /// The handshake is over, or the connection. `until`: when it counts no more among those that are pending. Returns whether the
    /// program has had it before.
    pub(super) fn end_opening(&mut self, until: Option<Timestamp>, cx: &mut Context<'_>) -> bool {
        let early = self.is_early();
        if early {
            cx.share.opened.push((self.listener, until));
        }
        self.opening = None;
        early
    }

    /// The peer has reset a handshake.
    pub(super) fn reset_opening(&mut self, cx: &mut Context<'_>) {
        self.end_opening(Some(cx.now + RESET_COUNTS), cx);
    }
}

impl Stack {
    /// Lets a listener take Fast Open, or no more. Those of [`crate::Control::listen`] are to be told on each stack.
    pub fn set_fast_open(&mut self, id: ListenerId, how: FastOpenServer) {
        if let Some(listener) = self.tcp.listeners.get_mut(&id.0) {
            listener.fast_open.get_or_insert_default().how = how;
        }
    }
}
