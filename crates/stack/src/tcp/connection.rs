//! One connection: the variables of RFC 9293, 3.3.1, and what loss recovery, timers and options add to them.

use std::mem::offset_of;
use std::ops::Range;
use std::time::Duration;

use bywash_frame::prefetch;

use super::busy::{HeldBy, HeldTimes};
use super::congestion::{Congestion, Window};
use super::facts::{ACK_NOW, DUPLICATE_ACKS, FIN_SENT, Facts, RELEASED, SYN_OUT, TOLD_READABLE, WANTS_ROOM};
use super::fast_open::Opening;
use super::rate::DeliveryRate;
use super::receive_buffer::{ReceiveBuffer, length};
use super::records::Records;
use super::rtt::{HeardRtt, Rtt, RttRound};
use super::scoreboard::Scoreboard;
use super::seldom::Seldom;
use super::send_buffer::{SendBuffer, Shape};
use super::seq::Seq;
use super::state::{Cause, State};
use super::undo::Undo;
use super::way::Way;
use super::{CloseReason, ConnectionId, Limits, ListenerId};
use crate::outbox::Outbox;
use crate::stack::{Context, Event};
use crate::time::Span;
use crate::{FastOpenFailure, Flow, Timestamp, Unreachable};

/// No deadline.
pub(super) const NEVER: Timestamp = Timestamp::from_nanos(u64::MAX);

/// The millisecond that it is, for a peer whose clock of ours begins at `offset`.
#[inline]
#[expect(clippy::cast_possible_truncation, reason = "the clock wraps")]
pub(super) fn clock(now: Timestamp, offset: u32) -> u32 {
    (now.as_millis() as u32).wrapping_add(offset)
}

/// Which deadline of the sending half comes next: only one of them can be pending.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum SendTimer {
    /// RFC 6298.
    #[default]
    Retransmission,
    /// The tail loss probe of RFC 8985, 7.
    Probe,
    /// The reordering timer of RFC 8985, 6.2.
    Reordering,
    /// Zero-window probes (RFC 9293, 3.8.6.1).
    Persist,
}

/// A tail loss probe of which it is not known yet what it has done (RFC 8985, 7.1).
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Probe {
    /// TLP.end_seq: SND.NXT after it.
    pub(super) end: Seq,
    /// TLP.is_retrans
    pub(super) copy: bool,
    /// Bytes that were out when it was sent.
    pub(super) flight: u32,
}

/// What happened since the connection began, for [`super::TcpInfo`].
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Tally {
    pub(super) segments_in: u32,
    pub(super) segments_out: u32,
    pub(super) data_segments_in: u32,
    pub(super) data_segments_out: u32,
    pub(super) bytes_received: u64,
    pub(super) bytes_sent: u64,
    pub(super) bytes_acked: u64,
    pub(super) delivered: u32,
}

/// What of that is not as it should be.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Mishaps {
    pub(super) bytes_resent: u64,
    pub(super) resent: u32,
    pub(super) out_of_order: u32,
    pub(super) duplicates: u32,
}

/// Timeouts of the retransmission timer, for [`super::TcpInfo`].
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Timeouts {
    pub(super) count: u16,
    /// How often one came that did not follow from another.
    pub(super) recoveries: u16,
    /// Since when it has not been made up for; zero when there is nothing to make up for.
    since: Timestamp,
    /// How long that took, of those that are over.
    time: Span,
    /// What was the oldest that was out at the last one.
    pub(super) una: Seq,
}

impl Timeouts {
    pub(super) fn another(&mut self, now: Timestamp) {
        self.count = self.count.saturating_add(1);
        if self.since == Timestamp::ZERO {
            self.since = now;
            self.recoveries = self.recoveries.saturating_add(1);
        }
    }

    /// What was out has arrived.
    pub(super) fn over(&mut self, now: Timestamp) {
        self.time = self.time(now);
        self.since = Timestamp::ZERO;
    }

    /// How long it took to make up for them, up to now.
    pub(super) fn time(&self, now: Timestamp) -> Span {
        if self.since == Timestamp::ZERO { self.time } else { self.time + now.span(self.since) }
    }
}

/// A connection. An entry of a slab: it is used again, with the memory its buffers have.
///
/// Most of what a segment costs are cache lines that others have pushed out. So what each segment needs lies together, see
/// [`HOT`]: what is decided by in two of them, see [`STATE`], and behind these what goes with that. What only some
/// need lies before, between and behind that.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub(super) struct Connection {
    // Seldom needed, most look-ups included: a packet shows its addresses to the way first.
    pub(super) hash: u64,
    pub(super) challenged: Timestamp,
    /// RCV.UP, as bytes since the connection began: how many there are up to the peer's last urgent one.
    pub(super) rcv_up: u64,
    /// Whose it is, if the peer opened it; else zero, which no listener has.
    pub(super) listener: ListenerId,
    pub(super) irs: Seq,
    pub(super) flow: Flow,

    // With the flow's ports begins the state, and with it what each segment needs.
    pub(super) id: ConnectionId,
    pub(super) send_at: Timestamp,
    pub(super) ack_at: Timestamp,
    pub(super) facts: Facts,

    // Sequence numbers and windows: RFC 9293, 3.3.1.
    pub(super) una: Seq,
    pub(super) nxt: Seq,
    pub(super) wnd: u32,
    pub(super) wl1: Seq,
    pub(super) wl2: Seq,
    pub(super) max_wnd: u32,
    pub(super) rcv_nxt: Seq,
    /// The right edge of the window that the peer was told of.
    pub(super) edge: Seq,
    pub(super) rcv_limit: u32,
    pub(super) ts_recent: u32,
    pub(super) ts_offset: u32,
    pub(super) last_ack_sent: Seq,
    /// The number after the last segment of ours that was not full.
    pub(super) small_end: Seq,
    pub(super) window: Window,
    pub(super) rtt: Rtt,
    /// Payload of the peer's full segments.
    pub(super) largest: u16,
    pub(super) state: State,
    pub(super) send_timer: SendTimer,
    pub(super) held_by: HeldBy,
    pub(super) wnd_scale: u8,
    pub(super) rcv_scale: u8,
    /// How many more acknowledgments go out at once, unless the program answers each message anyway.
    pub(super) quick: u8,

    // The state ends here. Times.
    /// When the retransmission timer goes off, if a probe comes before it.
    pub(super) timeout_at: Timestamp,
    pub(super) keepalive_at: Timestamp,
    pub(super) linger_at: Timestamp,
    /// When the wheel is set to; zero in an entry that was never used.
    pub(super) wheel_at: Timestamp,
    pub(super) ts_recent_at: Timestamp,
    pub(super) last_received: Timestamp,
    pub(super) last_acknowledged: Timestamp,
    pub(super) last_data_sent: Timestamp,
    /// When the neighbour was last vouched for.
    pub(super) confirmed: Timestamp,
    /// How long until the reordering timer says what is lost; zero: there is nothing to wait for.
    pub(super) reorder_wait: Span,
    /// Since when nothing has been acknowledged though something was sent; else [`NEVER`].
    pub(super) stalled: Timestamp,
    /// Since when, and how many bytes, the program has read: for the size of the window.
    pub(super) read_since: Timestamp,
    pub(super) read: u32,
    /// In slow start: the most that was in flight since a round trip began, and where that ends.
    pub(super) used: u32,
    pub(super) round_end: Seq,
    /// Where the round trip ends whose rate is measured.
    pub(super) rate_end: Seq,
    /// How long there was something to send.
    pub(super) busy: Span,
    pub(super) rtt_round: RttRound,
    pub(super) keepalive_sent: u8,
    /// Probes of the peer's window since it shut, and copies of what was out by then.
    pub(super) window_probes: u8,

    /// The round trip of what the peer sends: full segments measure it.
    pub(super) heard: HeardRtt,
    pub(super) tally: Tally,
    // What few need ends the first and begins the last of these, and what is between them is rare, too.
    pub(super) receive: ReceiveBuffer,
    pub(super) timeouts: Timeouts,
    pub(super) board: Scoreboard,
    pub(super) send: SendBuffer,
    /// The way to the peer, once one was found.
    pub(super) way: Option<Way>,
    /// Those in front are needed by each segment, the others hardly ever.
    pub(super) limits: Limits,

    // What is rare, too.
    /// How to take the last recovery back.
    pub(super) undo: Option<Box<Undo>>,
    pub(super) mishaps: Mishaps,
    pub(super) seldom: Seldom,
    pub(super) congestion: Congestion,
    pub(super) held_times: HeldTimes,
    pub(super) delivery: DeliveryRate,
    pub(super) recover: Seq,
    /// Duplicate acknowledgments of a peer without SACK.
    pub(super) duplicates: u32,
    /// SND.UP: the number after our last urgent byte, while [`URGES`](super::facts::URGES).
    pub(super) snd_up: Seq,
    pub(super) prr_delivered: u32,
    pub(super) prr_out: u32,
    pub(super) prr_flight: u32,
    /// Data that came or went with the SYN was taken (RFC 7413).
    pub(super) syn_data: bool,
    /// Why data of ours did not arrive with the SYN.
    pub(super) fast_open_failed: Option<FastOpenFailure>,
    /// Of the peer's segments that were shorter than full ones, the last's payload.
    pub(super) shorter: u16,
    /// What the path takes, and what the peer does.
    pub(super) path_mss: u16,
    pub(super) peer_mss: u16,
    /// Both ends scale their windows (RFC 7323, 2.2).
    pub(super) scaled: bool,
    /// Segments that have come early, while `early_at` was missing, since our last acknowledgment, and how often that was
    /// acknowledged for such.
    pub(super) early: u8,
    pub(super) early_acks: u8,
    /// Timeouts in a row, before which nothing was acknowledged.
    pub(super) timed_out: u8,
    /// The path was found to be too narrow for what was out, which ends at `narrowed_end`.
    pub(super) narrowed: bool,
    pub(super) early_at: Seq,
    /// Segments that have arrived, of which acknowledgments told that told of congestion marks, too.
    pub(super) delivered_marked: u32,
    pub(super) narrowed_end: Seq,
    /// What Fast Open makes of the handshake, until that is over.
    pub(super) opening: Option<Box<Opening>>,
    /// Where records of ours end.
    pub(super) records: Option<Box<Records>>,
    /// What ICMP said of the path last, and when: no reason to give up (RFC 9293, MUST-56), but worth telling.
    pub(super) soft_error: Option<(Unreachable, Timestamp)>,
}

/// Where in a connection its state lies, two cache lines: who it is of, RFC 9293's state and variables (3.3.1), the congestion
/// window, the round trip and its timeout, the next deadlines, what was agreed on, and what is to be done. Behind it are times,
/// measurements, buffers, and the way to the peer.
pub(super) const STATE: Range<usize> =
    line_of(offset_of!(Connection, flow) + offset_of!(Flow, local_port))..offset_of!(Connection, timeout_at);

/// Where in a connection that is what each segment needs, from the beginning of a cache line each.
pub(super) const HOT: [Range<usize>; 2] = [
    STATE.start..offset_of!(Connection, receive) + ReceiveBuffer::HOT,
    line_of(offset_of!(Connection, board) + Scoreboard::HOT)
        ..offset_of!(Connection, limits) + offset_of!(Limits, user_timeout),
];

/// Where the cache line begins that has a byte of a connection.
const fn line_of(offset: usize) -> usize {
    offset / 64 * 64
}

impl Connection {
    /// Makes an entry new that was not used or has ended; buffers keep their memory, which is empty since then. So does its timer.
    pub(super) fn reset(&mut self, flow: Flow, hash: u64, limits: &Limits, now: Timestamp) {
        (self.undo, self.opening, self.records) = (None, None, None);
        let ConnectionId { index, generation } = self.id;
        let id = ConnectionId { index, generation: generation.wrapping_add(1) };
        let wheel_at = if self.wheel_at == Timestamp::ZERO { NEVER } else { self.wheel_at };
        let mut new = Self { id, wheel_at, ..Self::default() };
        // Exchanged where they are: taking the whole entry out would move it twice.
        std::mem::swap(&mut new.send, &mut self.send);
        std::mem::swap(&mut new.receive, &mut self.receive);
        std::mem::swap(&mut new.board, &mut self.board);
        // What it was has nothing any more that could be dropped, but that would be found out by looking at each queue.
        std::mem::forget(std::mem::replace(self, new));
        (self.flow, self.hash, self.limits) = (flow, hash, *limits);
        self.rcv_limit = limits.receive_initial;
        self.congestion = Congestion::new(limits.congestion);
        (self.send_at, self.ack_at, self.keepalive_at) = (NEVER, NEVER, NEVER);
        (self.linger_at, self.stalled) = (NEVER, NEVER);
        (self.last_data_sent, self.read_since) = (now, now);
        (self.quick, self.largest) = (super::arrive::QUICK, super::arrive::SEGMENT);
    }

    /// Our numbers begin: the first one is our SYN's, which is about to go out or has.
    #[inline]
    pub(super) fn set_iss(&mut self, iss: Seq) {
        self.facts.add(SYN_OUT);
        (self.una, self.nxt) = (iss, iss + 1);
    }

    /// Whether the peer has asked, too, and has not acknowledged our SYN: SYN-RECEIVED, and FIN-WAIT-1 entered from there.
    #[inline]
    pub(super) fn is_half_open(&self) -> bool {
        self.facts.any(SYN_OUT) && self.state != State::SynSent
    }

    /// Whether a number of what is out is our SYN's.
    #[inline]
    pub(super) fn is_syn(&self, number: Seq) -> bool {
        self.facts.any(SYN_OUT) && number == self.una
    }

    /// Bytes since our last acknowledgment.
    #[inline]
    pub(super) fn unacknowledged(&self) -> u32 {
        self.rcv_nxt - self.last_ack_sent
    }

    /// Asks for what each segment needs: a segment comes soon.
    #[inline]
    pub(super) fn prefetch(&self) {
        prefetch(self, HOT[0].clone());
        prefetch(self, HOT[1].clone());
    }

    /// The number of the first byte in the send buffer.
    #[inline]
    pub(super) fn base(&self) -> Seq {
        self.una + u32::from(self.facts.any(SYN_OUT))
    }

    /// The number after the last byte in the send buffer.
    #[inline]
    pub(super) fn data_end(&self) -> Seq {
        self.base() + length(self.send.len())
    }

    /// So many duplicate acknowledgments have come.
    pub(super) fn set_duplicates(&mut self, count: u32) {
        self.duplicates = count;
        self.facts.set(DUPLICATE_ACKS, count > 0);
    }

    /// Bytes in the network, as far as anyone knows.
    #[inline]
    pub(super) fn pipe(&self) -> u32 {
        let arrived = if self.facts.any(DUPLICATE_ACKS) { self.duplicates } else { 0 };
        self.board.in_flight().saturating_sub(arrived.saturating_mul(self.window.mss()))
    }

    /// Bytes the peer takes beyond what was sent.
    #[inline]
    pub(super) fn usable(&self) -> u32 {
        let edge = self.una + self.wnd;
        if edge.after(self.nxt) { edge - self.nxt } else { 0 }
    }

    /// The number of a segment without payload: SND.NXT, or the end of what the peer takes where it has taken back a window that was
    /// used. Beyond that it would not look at what it is told (RFC 9293, 3.10.7.4). A window is told in units, rounded down, so that
    /// less than one of them is no sign.
    #[inline]
    pub(super) fn bare_seq(&self) -> Seq {
        let end = self.una + self.wnd;
        let beyond = if self.nxt.after(end) { self.nxt - end } else { 0 };
        if beyond >> self.wnd_scale == 0 || self.facts.any(SYN_OUT) { self.nxt } else { end }
    }

    /// Our clock, for the peer to echo: milliseconds, from a point nobody knows (RFC 7323, 5.4 and 7.1).
    #[inline]
    pub(super) fn clock(&self, now: Timestamp) -> u32 {
        clock(now, self.ts_offset)
    }

    #[inline]
    pub(super) fn step(&mut self, cause: Cause, cx: &mut Context<'_>) {
        let before = self.state;
        self.state = before.after(cause);
        // What else there is leads neither to ESTABLISHED nor away from there and CLOSE-WAIT.
        match cause {
            Cause::Connected => cx.counters.tcp_established += u64::from(self.state != before),
            Cause::Shutdown | Cause::Ended => {
                cx.counters.tcp_established -= u64::from(before.is_established())
            }
            _ => {}
        }
    }

    /// Whether both ends have said all, and all but our FIN has arrived. A FIN that waits behind the peer's window, or behind data, is
    /// not said yet, whatever the state is called (RFC 9293, 3.10.4: it is entered when the FIN is sent).
    pub(super) fn has_said_all(&self) -> bool {
        matches!(self.state, State::Closing | State::LastAck)
            && self.facts.any(FIN_SENT)
            && self.send.len() == 0
    }

    /// How what the program sends is to lie in a send buffer that is empty. What a port cuts it sums, and takes in long parts.
    #[inline]
    pub(super) fn shape(&mut self, out: &mut Outbox) -> Shape {
        if self.way.is_none() {
            self.current_way(out);
        }
        match self.way.as_ref().map(|way| way.offloads) {
            Some(offloads) if !offloads.segmentation => {
                Shape::of_segments(self.window.mss(), offloads.checksum)
            }
            _ => Shape::FULL,
        }
    }

    /// Bytes of the send buffer that the program may fill.
    pub(super) fn send_room(&self) -> usize {
        let room = self.send_limit().saturating_sub(self.send.len());
        room.min((self.limits.unsent as usize).saturating_sub(self.unsent() as usize))
    }

    /// Whether so much of the send buffer is free that a program that waits for room has a good piece to write.
    pub(super) fn is_writable(&self) -> bool {
        let (queued, limit) = (self.send.len(), self.send_limit());
        let unsent = 2 * u64::from(self.unsent());
        queued < limit && limit - queued >= queued / 2 && unsent < self.limits.unsent.into()
    }

    /// Bytes that the send buffer may hold.
    #[inline]
    pub(super) fn send_limit(&self) -> usize {
        // Twice the window: one in flight, one to go out as acknowledgments come in.
        let wanted = (2 * self.window.congestion as usize).max(self.limits.send_initial as usize);
        wanted.min(self.limits.send_max as usize)
    }

    /// Tells a program that wanted to send more that there is room again, once there is enough to be worth it.
    #[inline]
    pub(super) fn tell_writable(&mut self, cx: &mut Context<'_>) {
        if self.facts.any(WANTS_ROOM) {
            self.tell_room(cx);
        }
    }

    #[inline(never)]
    fn tell_room(&mut self, cx: &mut Context<'_>) {
        let enough = (self.send.len() / 2).min(self.limits.unsent as usize / 2);
        if self.send_room() >= enough.max(1) && !self.facts.any(RELEASED) {
            self.facts.remove(WANTS_ROOM);
            cx.events.push(Event::Writable(self.id));
        }
    }

    /// Nothing is left to be read, and nothing more will come.
    pub(super) fn is_at_end(&self) -> bool {
        let comes = matches!(self.state, State::SynSent | State::SynReceived) || self.state.takes_data();
        !comes && self.receive.readable() == 0
    }

    /// Tells the program that there is something to read, once until it has read everything.
    pub(super) fn tell_readable(&mut self, cx: &mut Context<'_>) {
        if !self.facts.any(TOLD_READABLE.with(RELEASED)) {
            self.facts.add(TOLD_READABLE);
            cx.events.push(Event::Readable(self.id));
        }
    }

    /// The next deadline of all timers.
    pub(super) fn deadline(&self) -> Timestamp {
        self.send_at.min(self.ack_at).min(self.keepalive_at).min(self.linger_at)
    }

    /// Ends the connection here and now.
    pub(super) fn terminate(&mut self, reason: CloseReason, cx: &mut Context<'_>) {
        match self.state {
            State::SynSent | State::SynReceived => cx.counters.tcp_attempts_failed += 1,
            State::Established | State::CloseWait => cx.counters.tcp_established_resets += 1,
            _ => {}
        }
        cx.counters.tcp_timed_out += u64::from(reason == CloseReason::TimedOut);
        self.step(Cause::Ended, cx);
        if self.opening.is_some() {
            self.fail_opening(reason, cx);
        }
        self.timeouts.over(cx.now);
        self.send.clear(cx.share, cx.pool);
        self.forget_early(cx);
        self.board.reset();
        (self.send_at, self.ack_at, self.keepalive_at, self.linger_at) = (NEVER, NEVER, NEVER, NEVER);
        self.facts.remove(ACK_NOW);
        if !self.facts.any(RELEASED) {
            cx.events.push(Event::Closed(self.id, reason));
        }
    }

    /// The round-trip time, or a guess.
    #[inline]
    pub(super) fn round_trip(&self) -> Span {
        const GUESS: Span = Span::of(Duration::from_millis(100));
        if self.rtt.smoothed() == Span::ZERO { GUESS } else { self.rtt.smoothed() }
    }
}
