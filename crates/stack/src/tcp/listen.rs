//! Connections that peers open: small entries until the handshake is done, and none at all when there are too many
//! (RFC 9293, 3.10.7.2; RFC 4987).

use std::time::Duration;

use bywash_wire::{FastOpen, TCP_HEADER, TcpFlags, TcpOptions};

use super::connection::Connection;
use super::emit::Bare;
use super::facts::{ECN, ECT, SACK, TIMESTAMPS};
use super::receive_buffer::length;
use super::segment::Segment;
use super::seq::Seq;
use super::state::Cause;
use super::{Limits, ListenerId};
use crate::counters::Counters;
use crate::flow::Purpose;
use crate::outbox::Outbox;
use crate::pairs::Pairs;
use crate::stack::Context;
use crate::{Address, Flow, Timestamp, ip};

/// Segment sizes a cookie can remember: three bits.
const SIZES: [u16; 8] = [88, 536, 1024, 1220, 1380, 1440, 1460, 8960];
/// How long a cookie holds is one to two of these.
pub(super) const COOKIE_AGE: Duration = Duration::from_secs(64);
/// Bits of our clock that a cookie's timestamp gives up for the options: scale (4), SACK (1), ECN (1).
const OPTION_BITS: u32 = 6;
const NO_SCALE: u8 = 15;
/// The bits of a SYN that asks for congestion marks.
const MARKED: TcpFlags = TcpFlags::ECE.with(TcpFlags::CWR);

/// What the peer has said of congestion marks (RFC 3168, 6.1.1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Marks {
    #[default]
    Unknown,
    /// It asked for them, but another SYN of its did not: what we send has none, and it is told of those that its segments have.
    Told,
    Asked,
}

/// How a segment that does not complete a handshake was answered: not more than one is between two of our answers by the timer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Answered {
    #[default]
    Not,
    Acknowledged,
    /// The SYN came again, and so did our answer.
    Repeated,
}

/// A handshake that waits for its last segment.
#[derive(Clone, Debug, Default)]
pub(super) struct HalfOpen {
    pub(super) flow: Flow,
    pub(super) hash: u64,
    pub(super) listener: ListenerId,
    pub(super) irs: Seq,
    pub(super) iss: Seq,
    /// When our answer went out last; never, in an entry that is not in use.
    pub(super) sent: Timestamp,
    pub(super) tries: u8,
    /// The peer's SYN: what it offered.
    mss: u16,
    /// At most 14, or [`NO_SCALE`]; what we offer for it.
    scale: u8,
    own_scale: u8,
    sack: bool,
    stamp: Option<u32>,
    ecn: Marks,
    pub(super) ts_offset: u32,
    pub(super) answered: Answered,
}

impl HalfOpen {
    /// What is remembered of a SYN; the start of our clock is to be filled in. `last`: our last number on its flow, if TIME-WAIT
    /// remembers one.
    pub(super) fn new(
        flow: Flow,
        segment: &Segment,
        hash: u64,
        listener: ListenerId,
        limits: &Limits,
        last: Option<Seq>,
        cx: &Context<'_>,
    ) -> Self {
        let options = &segment.options;
        Self {
            flow,
            hash,
            listener,
            irs: segment.seq,
            iss: initial_sequence(&flow, last, cx),
            sent: cx.now,
            tries: 0,
            mss: options.mss.unwrap_or(default_mss(&flow)),
            scale: options
                .window_scale
                .filter(|_| limits.window_scaling)
                .map_or(NO_SCALE, |scale| scale.min(14)),
            own_scale: limits.scale(),
            sack: options.sack_permitted && limits.sack,
            stamp: options.timestamps.filter(|_| limits.timestamps).map(|(value, _)| value),
            ecn: match limits.answers_ecn && segment.has(MARKED) {
                true => Marks::Asked,
                false => Marks::Unknown,
            },
            ts_offset: 0,
            answered: Answered::Not,
        }
    }

    /// Whether a segment is of this connection: by its clock (RFC 7323, 5.3, R1; 3.2: without one, it is dropped), and by its
    /// number (RFC 9293, 3.10.7.4, first). `Err`: it is not, and whether that is to be answered.
    pub(super) fn check(
        &self,
        segment: &Segment,
        limits: &Limits,
        counters: &mut Counters,
    ) -> Result<(), bool> {
        let reset = segment.has(TcpFlags::RST);
        if let Some(stamp) = self.stamp.filter(|_| !reset) {
            let clock = segment.options.timestamps.map(|(value, _)| Seq(value));
            if clock.is_none_or(|clock| clock.before(Seq(stamp))) {
                counters.tcp_paws += 1;
                return Err(clock.is_some());
            }
        }
        let next = self.irs + 1;
        let inside = !segment.seq.before(next) && segment.seq.before(next + first_window(limits));
        if inside || segment.seq == next {
            return Ok(());
        }
        counters.tcp_out_of_window += 1;
        Err(!reset)
    }

    /// The scales of both windows, the peer's first, if it offered one.
    fn scales(&self) -> Option<(u8, u8)> {
        (self.scale != NO_SCALE).then_some((self.scale, self.own_scale))
    }

    /// When our answer is to be repeated.
    pub(super) fn again(&self) -> Timestamp {
        self.sent + Duration::from_secs(1 << self.tries.min(7))
    }

    /// Acknowledges the SYN by itself, which makes an honest peer show itself.
    pub(super) fn acknowledge(&mut self, limits: &Limits, cx: &mut Context<'_>) {
        if self.answered != Answered::Not {
            cx.counters.tcp_challenge_acks_limited += 1;
            return;
        }
        self.answered = Answered::Acknowledged;
        cx.counters.tcp_challenge_acks += 1;
        let timestamps = self.stamp.map(|stamp| (self.clock(cx.now), stamp));
        let options = TcpOptions { timestamps, ..TcpOptions::default() };
        let window = first_window(limits) >> self.scales().map_or(0, |(_, own)| own);
        let window = u16::try_from(window).unwrap_or(u16::MAX);
        let (flow, seq, ack, flags) = (self.flow, self.iss + 1, self.irs + 1, TcpFlags::ACK);
        Bare { flow, seq, ack, flags, window, options }.send_as(limits, cx);
    }

    /// The peer's SYN has come again: it may have given up on congestion marks (RFC 3168, 6.1.1.1).
    pub(super) fn asked_again(&mut self, segment: &Segment) {
        if self.ecn == Marks::Asked && !segment.has(MARKED) {
            self.ecn = Marks::Told;
        }
    }

    /// Sends the SYN,ACK once more.
    pub(super) fn answer_again(&self, limits: &Limits, cx: &mut Context<'_>) {
        cx.counters.tcp_retransmitted += 1;
        self.answer(limits, None, cx);
    }

    /// Sends the SYN,ACK, and tells a Fast Open cookie with it.
    pub(super) fn answer(&self, limits: &Limits, told: Option<FastOpen>, cx: &mut Context<'_>) {
        self.answer_with((self.iss, self.clock(cx.now)), told, limits, cx);
    }

    fn clock(&self, now: Timestamp) -> u32 {
        #[expect(clippy::cast_possible_truncation, reason = "the clock wraps")]
        let millis = now.as_millis() as u32;
        millis.wrapping_add(self.ts_offset)
    }

    fn answer_with(
        &self,
        (iss, clock): (Seq, u32),
        fast_open: Option<FastOpen>,
        limits: &Limits,
        cx: &mut Context<'_>,
    ) {
        let options = TcpOptions {
            mss: Some(offered_segment(&self.flow, limits, cx.out)),
            window_scale: self.scales().map(|(_, own)| own),
            sack_permitted: self.sack,
            timestamps: self.stamp.map(|stamp| (clock, stamp)),
            fast_open,
            ..TcpOptions::default()
        };
        let mut flags = TcpFlags::SYN.with(TcpFlags::ACK);
        if self.ecn != Marks::Unknown {
            flags = flags.with(TcpFlags::ECE);
        }
        let window = u16::try_from(first_window(limits)).unwrap_or(u16::MAX);
        let bare = Bare { flow: self.flow, seq: iss, ack: self.irs + 1, flags, window, options };
        bare.send_as(limits, cx);
    }

    /// Makes the connection; it still has to take the segment that completed the handshake.
    #[inline(always)]
    pub(super) fn into_connection(self, connection: &mut Connection, limits: &Limits, cx: &Context<'_>) {
        connection.reset(self.flow, self.hash, limits, cx.now);
        connection.listener = self.listener;
        connection.state = connection.state.after(Cause::Asked);
        connection.set_iss(self.iss);
        (connection.irs, connection.rcv_nxt) = (self.irs, self.irs + 1);
        connection.edge = connection.rcv_nxt + first_window(limits);
        connection.last_ack_sent = connection.rcv_nxt;
        connection.ts_offset = self.ts_offset;
        connection.path_mss = largest_segment(&self.flow, limits, cx);
        connection.scaled = self.scale != NO_SCALE;
        (connection.wnd_scale, connection.rcv_scale) = self.scales().unwrap_or((0, 0));
        connection.facts.add_if(SACK, self.sack);
        connection.facts.add_if(ECN, self.ecn != Marks::Unknown);
        connection.facts.add_if(ECT, self.ecn == Marks::Asked);
        if let Some(stamp) = self.stamp {
            connection.facts.add(TIMESTAMPS);
            (connection.ts_recent, connection.ts_recent_at) = (stamp, cx.now);
        }
        connection.peer_mss = self.mss;
        connection.set_mss(self.mss);
        connection.board.push(self.iss, self.iss + 1, self.sent, connection.window.mss());
        if self.tries > 0 || self.answered == Answered::Repeated {
            // Karn: which SYN,ACK was answered is not known.
            connection.board.resent(self.iss, self.iss + 1, self.sent);
        }
        if self.tries > 1 {
            // RFC 5681, 3.1; see `Connection::begin`.
            connection.window.congestion = connection.window.mss();
        }
        connection.stalled = cx.now;
    }

    /// Answers without remembering: all there is to know goes into our sequence number and our clock, and comes back
    /// (RFC 4987, 3.6).
    pub(super) fn answer_by_cookie(&self, limits: &Limits, cx: &mut Context<'_>) {
        cx.counters.tcp_cookies_sent += 1;
        let age = cookie_time(cx.now);
        let size = SIZES.iter().rposition(|size| *size <= self.mss).unwrap_or(0);
        let bits =
            (u32::from(self.scale) << 2) | (u32::from(self.sack) << 1) | u32::from(self.ecn == Marks::Asked);
        let mut clock = self.clock(cx.now) & !((1 << OPTION_BITS) - 1) | bits;
        if Seq(clock).after(Seq(self.clock(cx.now))) {
            clock = clock.wrapping_sub(1 << OPTION_BITS);
        }
        let iss = cookie(&self.flow, self.irs, age, length(size), cx);
        // Without timestamps nothing would say later what was agreed on: nothing is.
        let kept = match self.stamp {
            Some(_) => self.clone(),
            None => Self { scale: NO_SCALE, sack: false, ecn: Marks::Unknown, ..self.clone() },
        };
        kept.answer_with((iss, clock), None, limits, cx);
    }

    /// What a cookie that came back says; `None` when it is none of ours, or too old.
    pub(super) fn from_cookie(
        flow: Flow,
        segment: &Segment,
        hash: u64,
        (listener, limits): (ListenerId, &Limits),
        cx: &mut Context<'_>,
    ) -> Option<Self> {
        let (iss, irs) = (segment.ack - 1, segment.seq - 1);
        let size = iss.0 >> 24 & 7;
        let now = cookie_time(cx.now);
        let fits = |age: u64| cookie(&flow, irs, age, size, cx) == iss;
        if !fits(now) && !now.checked_sub(1).is_some_and(fits) {
            cx.counters.tcp_cookies_failed += 1;
            return None;
        }
        let bits = segment.options.timestamps.map(|(_, echo)| echo & ((1 << OPTION_BITS) - 1));
        Some(Self {
            flow,
            hash,
            listener,
            irs,
            iss,
            sent: cx.now,
            // Nothing was measured.
            tries: 1,
            mss: SIZES[size as usize],
            scale: bits.and_then(|bits| u8::try_from(bits >> 2).ok()).unwrap_or(NO_SCALE),
            own_scale: limits.scale(),
            sack: bits.is_some_and(|bits| bits & 2 != 0),
            ecn: if bits.is_some_and(|bits| bits & 1 != 0) { Marks::Asked } else { Marks::Unknown },
            stamp: segment.options.timestamps.map(|(value, _)| value),
            ts_offset: clock_offset(&flow, cx),
            answered: Answered::Not,
        })
    }
}

/// The window that a SYN,ACK offers, which is not scaled.
fn first_window(limits: &Limits) -> u32 {
    limits.receive_initial.min(65_535)
}

fn cookie_time(now: Timestamp) -> u64 {
    now.as_millis() / 1000 / COOKIE_AGE.as_secs()
}

/// Five bits of time, three of segment size, 24 that only we can make.
fn cookie(flow: &Flow, irs: Seq, age: u64, size: u32, cx: &Context<'_>) -> Seq {
    let mixed = cx.secret.hash(Purpose::Cookie, flow) ^ u64::from(irs.0) << 24 ^ age << 3 ^ u64::from(size);
    let hash = cx.secret.number(Purpose::Cookie, mixed);
    let (time, hash) = ((age & 31) as u32, (hash & 0xff_ffff) as u32);
    Seq(time << 27 | size << 24 | hash)
}

/// RFC 6528: a clock of 4 us and a hash that only we know, so that nobody can guess another's numbers. Where TIME-WAIT remembers
/// our last number on the flow, the next connection begins above it (RFC 9293, MAY-2), as Linux's does: that number is as hard to guess.
pub(super) fn initial_sequence(flow: &Flow, last: Option<Seq>, cx: &Context<'_>) -> Seq {
    const APART: u32 = 1 << 16;
    if let Some(last) = last {
        return last + APART;
    }
    let hash = cx.secret.hash(Purpose::Sequence, flow);
    #[expect(clippy::cast_possible_truncation, reason = "sequence numbers wrap")]
    let clock = (hash as u32).wrapping_add((cx.now.as_nanos() / 4000) as u32);
    Seq(clock)
}

/// The start of our clock for a peer, which is looked for among those of the pairs that spoke lately.
pub(super) fn known_clock_offset(clocks: &mut Pairs<u32>, flow: &Flow, cx: &Context<'_>) -> u32 {
    if let Some(offset) = clocks.get(flow) {
        return *offset;
    }
    let offset = clock_offset(flow, cx);
    clocks.keep(flow, offset);
    offset
}

/// The start of our clock for a peer (RFC 7323, 7.1), the same for both of its addresses so that TIME-WAIT can
/// compare (RFC 6191).
fn clock_offset(flow: &Flow, cx: &Context<'_>) -> u32 {
    let pair = Flow { local_port: 0, remote_port: 0, ..*flow };
    #[expect(clippy::cast_possible_truncation, reason = "half of the hash")]
    let offset = cx.secret.hash(Purpose::Clock, &pair) as u32;
    offset
}

/// The payload of a segment that the path takes.
pub(super) fn largest_segment(flow: &Flow, limits: &Limits, cx: &Context<'_>) -> u16 {
    payload_of(cx.out.mtu_to(flow.remote, cx.now), flow, limits)
}

/// The payload of a segment that we take (RFC 9293, 3.7.1, MUST-67): as the link has it, for the peer's way to us need not be as
/// narrow as ours to it, and the peer finds out by itself (RFC 1191, 3.1).
pub(super) fn offered_segment(flow: &Flow, limits: &Limits, out: &Outbox) -> u16 {
    payload_of(out.link_mtu_to(flow.remote), flow, limits)
}

fn payload_of(mtu: usize, flow: &Flow, limits: &Limits) -> u16 {
    mss_of(mtu, flow.remote).min(limits.mss.unwrap_or(u16::MAX))
}

/// What is left of a packet of `mtu` bytes without the fixed headers.
pub(super) fn mss_of(mtu: usize, remote: Address) -> u16 {
    let most = mtu.saturating_sub(ip::header_length(remote) + TCP_HEADER);
    u16::try_from(most).unwrap_or(u16::MAX)
}

/// The peer's, when its SYN does not say (RFC 9293, 3.7.1, MUST-15).
pub(super) fn default_mss(flow: &Flow) -> u16 {
    if flow.remote.is_v4() { 536 } else { 1220 }
}
