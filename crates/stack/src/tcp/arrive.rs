//! A segment arrives: the steps of RFC 9293, 3.10.7.3 and 3.10.7.4, one function each.

use std::time::Duration;

use bywash_frame::{BATCH, FRAME_DATA, FRAME_SIZE, Packet};
use bywash_wire::TcpFlags;

use super::CloseReason;
use super::busy::HeldBy;
use super::challenge::may_challenge;
use super::connection::{Connection, NEVER, clock};
use super::emit::Bare;
use super::facts::{
    ACK_NOW, ANSWERS, AWAITS_MORE, ECHOES_MARK, ECN, ECT, ECT_SEEN, FIN_SENT, FIN_WANTED, RELEASED, REPAIRS,
    SACK, SQUEEZED, SYN_OUT, TIMESTAMPS,
};
use super::listen::{default_mss, offered_segment};
use super::receive_buffer::{Held, length};
use super::segment::Segment;
use super::seq::Seq;
use super::state::{Cause, State};
use crate::Timestamp;
use crate::ip::MARKED;
use crate::packet::slices;
use crate::stack::{Context, Event};
use crate::time::Span;

/// What a step decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// The next step follows.
    On,
    /// The segment is done with.
    Done,
}
use Step::{Done, On};

/// RFC 9293, SHLD-18 and MUST-40: less than half a second.
pub(super) const DELAYED_ACK: Span = Span::of(Duration::from_millis(40));
/// After that long without a segment, the peer's clock may have wrapped (RFC 7323, 5.5).
const CLOCK_OLD: Duration = Duration::from_secs(24 * 24 * 3600);
/// Segments that are acknowledged at once at the beginning, after a pause and after a loss, so that the peer's window
/// opens soon, as Linux has it (RFC 5681, 4.2 recommends to wait, and allows an acknowledgment of each).
pub(super) const QUICK: u8 = 16;

/// What a peer's full segments have at least, until it is seen: every path takes them (RFC 9293, MUST-15).
pub(super) const SEGMENT: u16 = 536;
/// The shortest full segments there are.
const SMALLEST_SEGMENT: u16 = 88;

/// The part of all frames that may hold what came out of order.
const EARLY_SHARE: usize = 4;

impl Connection {
    /// Takes a segment for this connection.
    pub(super) fn arrive(&mut self, segment: &Segment, packet: Packet, cx: &mut Context<'_>) {
        self.tally.segments_in += 1;
        if self.is_predicted(segment) {
            return self.arrive_predicted(segment, packet, cx);
        }
        self.arrive_by_steps(segment, packet, cx);
    }

    /// The peer is there: an acceptable segment has come. Others anybody can send who knows the ports, also when the peer is gone.
    #[inline]
    pub(super) fn note_peer(&mut self, now: Timestamp) {
        self.keepalive_sent = 0;
        self.facts.remove(AWAITS_MORE);
        self.last_acknowledged = now;
    }

    pub(super) fn arrive_by_steps(&mut self, segment: &Segment, packet: Packet, cx: &mut Context<'_>) {
        // A peer that asks may try again: what it sends then shows how it is.
        if segment.payload == 0 {
            self.facts.remove(SQUEEZED);
        }
        let go_on = match self.state {
            State::SynSent => self.syn_sent(segment, cx),
            _ => self.check_headers(segment, cx),
        };
        if go_on == On {
            if segment.has(TcpFlags::URG) {
                self.check_urgent(segment, cx);
            }
            self.take_text(segment, packet, cx);
            self.check_fin(segment.has(TcpFlags::FIN), segment.end(), cx);
        } else {
            cx.pool.give_packet(packet);
        }
    }

    fn check_headers(&mut self, segment: &Segment, cx: &mut Context<'_>) -> Step {
        if self.is_half_open() {
            // The other's answer to a simultaneous open is its SYN once more; what is new is that it acknowledges ours.
            let answer = segment.has(TcpFlags::SYN.with(TcpFlags::ACK))
                && !segment.has(TcpFlags::RST)
                && segment.seq == self.irs
                && segment.ack.after(self.una)
                && !segment.ack.after(self.nxt);
            if answer {
                return self.check_ack(segment, cx);
            }
            // It has not got ours.
            if segment.opens() && segment.seq == self.irs {
                if may_challenge(&mut self.challenged, cx) {
                    self.send_range(self.una, 1, cx);
                    self.board.resent(self.una, self.una + 1, cx.now);
                    self.count_copy((self.una, self.una + 1), cx);
                }
                return Done;
            }
        }
        if self.check_sequence(segment, cx) == Done
            || self.check_reset(segment, cx) == Done
            || self.check_syn(segment, cx) == Done
        {
            return Done;
        }
        let step = self.check_ack(segment, cx);
        if step == On {
            self.note_clock(segment, cx.now);
        }
        step
    }

    /// RFC 7323, 4.3: the peer's clock, of what fills the left edge of the window. Not before the acknowledgment was
    /// seen to be one: who makes up a clock far ahead would shut out the peer.
    fn note_clock(&mut self, segment: &Segment, now: Timestamp) {
        if let Some((value, _)) = segment.options.timestamps
            && self.facts.any(TIMESTAMPS)
            && (!Seq(value).before(Seq(self.ts_recent)) || self.is_clock_old(now))
            && !segment.seq.after(self.last_ack_sent)
        {
            (self.ts_recent, self.ts_recent_at) = (value, now);
        }
    }

    /// 3.10.7.3, SYN-SENT.
    fn syn_sent(&mut self, segment: &Segment, cx: &mut Context<'_>) -> Step {
        let acks = segment.has(TcpFlags::ACK);
        if acks && (!segment.ack.after(self.una) || segment.ack.after(self.nxt)) {
            self.reset_sender(segment, cx);
            return Done;
        }
        if self.opening.is_some() && acks && self.is_of_another_time(segment, cx) {
            return Done;
        }
        if segment.has(TcpFlags::RST) {
            if acks {
                cx.counters.tcp_resets_received += 1;
                self.terminate(CloseReason::Refused, cx);
            }
            return Done;
        }
        if !segment.has(TcpFlags::SYN) {
            return Done;
        }
        self.irs = segment.seq;
        self.rcv_nxt = segment.seq + 1;
        self.last_ack_sent = self.rcv_nxt;
        // What our SYN has said that we take.
        self.edge = self.rcv_nxt + self.rcv_limit.min(u16::MAX.into());
        self.take_options(segment, cx.now);
        (self.wnd, self.wl1, self.wl2) = (u32::from(segment.window), segment.seq, segment.ack);
        self.max_wnd = self.wnd;
        self.facts.add(ACK_NOW);
        if acks {
            self.acknowledge(segment, cx);
            self.begin(cx.now);
            if self.opening.is_some() {
                self.answered(segment, cx);
            }
            self.step(Cause::Connected, cx);
            self.connected(cx);
            // What has waited for it goes out at once and acknowledges it: an answer, as in Linux (`sk_write_pending`).
            if self.unsent() > 0 {
                self.last_received = cx.now;
            }
            return On;
        }
        // Both have opened at once: our SYN goes out again, and acknowledges.
        self.step(Cause::Crossed, cx);
        self.lose_all(cx.now);
        Done
    }

    /// What the peer's SYN says of options: only what both have said counts (RFC 7323, 1.3 and 2.2; RFC 2018, 2).
    pub(super) fn take_options(&mut self, segment: &Segment, now: Timestamp) {
        let options = &segment.options;
        match options.window_scale {
            // RFC 7323, 2.3: more than 14 is 14.
            Some(scale) if self.limits.window_scaling => {
                // Ours is the one that our SYN offers.
                (self.wnd_scale, self.scaled) = (scale.min(14), true);
            }
            _ => (self.wnd_scale, self.rcv_scale) = (0, 0),
        }
        self.facts.set(SACK, options.sack_permitted && self.limits.sack);
        if let Some((value, _)) = options.timestamps.filter(|_| self.limits.timestamps) {
            self.facts.add(TIMESTAMPS);
            (self.ts_recent, self.ts_recent_at) = (value, now);
        }
        self.peer_mss = options.mss.unwrap_or(default_mss(&self.flow));
        self.set_mss(self.peer_mss);
        // RFC 3168, 6.1.1: the answer has ECE alone; a SYN,ACK with both bits is a reflection.
        let answer = segment.has(TcpFlags::ECE) && !segment.has(TcpFlags::CWR);
        let ecn = self.limits.ecn && segment.has(TcpFlags::ACK) && answer;
        self.facts.set(ECN, ecn);
        // The answer may be to the first SYN, and the later ones had not asked.
        self.facts.set(ECT, ecn && self.rtt.backoff() == 0);
    }

    /// The payload of a segment, if the path takes it: options come off it (RFC 6691).
    pub(super) fn set_mss(&mut self, mss: u16) {
        // What a peer asks for has a floor, or it would make us work for every byte; IPv4 itself has a lower one.
        let mss = mss.max(88).min(self.path_mss).max(28);
        let options = if self.facts.any(TIMESTAMPS) { 12 } else { 0 };
        let mss = u32::from(mss) - options;
        if self.window.congestion == 0 || !self.facts.any(REPAIRS) && self.facts.any(SYN_OUT) {
            self.window = super::congestion::Window::initial(mss);
        }
        self.window.set_mss(mss);
    }

    /// The segment size of now, options included, as [`Connection::set_mss`] takes it.
    pub(super) fn full_mss(&self) -> u16 {
        let options = if self.facts.any(TIMESTAMPS) { 12 } else { 0 };
        u16::try_from(self.window.mss() + options).unwrap_or(u16::MAX)
    }

    /// The handshake is over: what its losses mean for data (RFC 5681, 3.1; one repeated SYN is as often a hasty timer's).
    fn begin(&mut self, now: Timestamp) {
        if self.timeouts.count > 1 {
            self.window.congestion = self.window.mss();
        }
        self.timeouts.over(now);
        self.rtt.begin();
        // A handshake is no data.
        (self.busy, self.held_by) = (Span::ZERO, HeldBy::Nothing);
    }

    #[inline]
    fn connected(&mut self, cx: &mut Context<'_>) {
        let early = self.opening.is_some() && self.end_opening(cx);
        // Nothing was read before: so it says since when data is missed (see `TcpInfo`).
        self.read_since = cx.now;
        if self.limits.keepalive {
            self.keepalive_at = cx.now + self.limits.keepalive_idle;
        }
        // The program has an early one.
        if self.facts.any(RELEASED) || early {
            return;
        }
        cx.events.push(if self.is_accepted() {
            Event::Accepted { listener: self.listener, connection: self.id }
        } else {
            Event::Connected(self.id)
        });
    }

    /// First, check the sequence number; before it, that the segment is not of an older lap (RFC 7323, 5.3).
    fn check_sequence(&mut self, segment: &Segment, cx: &mut Context<'_>) -> Step {
        let reset = segment.has(TcpFlags::RST);
        if self.facts.any(TIMESTAMPS) && !reset {
            // RFC 7323, 3.2: once agreed on, they are in every segment but a reset.
            let Some((value, _)) = segment.options.timestamps else {
                cx.counters.tcp_paws += 1;
                // RFC 5961, 4: a SYN is challenged, whatever it has.
                if segment.has(TcpFlags::SYN) {
                    self.challenge(cx);
                }
                return Done;
            };
            let older = Seq(value).before(Seq(self.ts_recent));
            if older && !self.is_clock_old(cx.now) {
                cx.counters.tcp_paws += 1;
                self.answer(segment, cx);
                return Done;
            }
        }
        let (len, window) = (segment.length(), self.edge - self.rcv_nxt);
        let starts = !segment.seq.before(self.rcv_nxt) && segment.seq.before(self.edge);
        let last = segment.end() - 1;
        let ends = len > 0 && !last.before(self.rcv_nxt) && last.before(self.edge);
        // A full window is acknowledged from its right edge: "special allowance" for what holds nothing new. A reset there is
        // outside (RFC 5961, 3.2).
        let at_edge = segment.seq == self.edge && ((len == 0 && !reset) || window == 0);
        if (window > 0 && (starts || ends)) || at_edge || (window == 0 && segment.seq == self.rcv_nxt) {
            return On;
        }
        let again = segment.payload > 0 && !segment.end().after(self.rcv_nxt);
        cx.counters.tcp_duplicates += u64::from(again);
        cx.counters.tcp_out_of_window += u64::from(!again);
        if reset {
            return Done;
        }
        if again {
            self.report_duplicate(segment.seq, segment.seq + length(segment.payload), cx);
            // Our acknowledgment was lost, or late.
            self.quick = QUICK;
            self.facts.remove(ANSWERS);
        }
        self.answer(segment, cx);
        Done
    }

    /// Whether the peer's clock may have wrapped since it was last noted: then a lower time is taken as it is.
    fn is_clock_old(&self, now: Timestamp) -> bool {
        now.since(self.ts_recent_at) >= CLOCK_OLD
    }

    /// Second, check the RST bit (RFC 5961, 3).
    fn check_reset(&mut self, segment: &Segment, cx: &mut Context<'_>) -> Step {
        if !segment.has(TcpFlags::RST) {
            return On;
        }
        if segment.seq == self.rcv_nxt {
            let reason = match self.state {
                State::SynReceived if !self.is_early() => CloseReason::Refused,
                _ if self.has_said_all() => CloseReason::Done,
                _ => CloseReason::Reset,
            };
            cx.counters.tcp_resets_received += 1;
            if self.is_early() {
                self.reset_opening(cx);
            }
            self.terminate(reason, cx);
        } else {
            self.challenge(cx);
        }
        Done
    }

    /// Fourth, check the SYN bit (RFC 5961, 4). The third, security, is IP options nobody uses.
    fn check_syn(&mut self, segment: &Segment, cx: &mut Context<'_>) -> Step {
        if !segment.has(TcpFlags::SYN) {
            return On;
        }
        self.challenge(cx);
        Done
    }

    /// Fifth, check the ACK field.
    fn check_ack(&mut self, segment: &Segment, cx: &mut Context<'_>) -> Step {
        if !segment.has(TcpFlags::ACK) {
            return Done;
        }
        let opens = self.is_half_open();
        if opens {
            if !segment.ack.after(self.una) || segment.ack.after(self.nxt) {
                self.reset_sender(segment, cx);
                return Done;
            }
            self.step(Cause::Connected, cx);
            // 3.10.4, SYN-RECEIVED: a close that had to wait is done now.
            if self.facts.any(FIN_WANTED) {
                self.step(Cause::Shutdown, cx);
            }
            (self.wl1, self.wl2) = (segment.seq - 1, segment.ack);
            self.connected(cx);
        }
        // RFC 5961, 5: neither older than a window nor newer than what was sent.
        if segment.ack.after(self.nxt) || segment.ack.before(self.una - self.max_wnd) {
            self.challenge(cx);
            return Done;
        }
        self.acknowledge(segment, cx);
        if opens {
            self.begin(cx.now);
        }
        if self.facts.any(FIN_SENT) && self.una == self.nxt {
            self.fin_acknowledged(cx);
        }
        if self.state == State::Closed { Done } else { On }
    }

    fn fin_acknowledged(&mut self, cx: &mut Context<'_>) {
        let before = self.state;
        self.step(Cause::FinAcknowledged, cx);
        match self.state {
            State::Closed if before == State::LastAck => self.terminate(CloseReason::Done, cx),
            // What else comes there does not make it longer.
            State::FinWait2 if self.facts.any(RELEASED) && before != State::FinWait2 => {
                self.linger_at = cx.now + self.limits.fin_timeout;
            }
            _ => {}
        }
    }

    /// Seventh, process the segment text.
    fn take_text(&mut self, segment: &Segment, packet: Packet, cx: &mut Context<'_>) {
        if segment.payload == 0 || !self.state.takes_data() {
            return cx.pool.give_packet(packet);
        }
        if self.facts.any(RELEASED)
            && (segment.end() - u32::from(segment.has(TcpFlags::FIN))).after(self.rcv_nxt)
        {
            // RFC 9293, 3.6.1 (SHLD-3): data for a program that has gone would never be read: tell the peer. What comes again with
            // a FIN was read.
            cx.pool.give_packet(packet);
            self.reset_sender(segment, cx);
            return self.terminate(CloseReason::Reset, cx);
        }
        self.take_payload(segment, packet, cx);
    }

    /// Takes what of a segment's payload is new, and in the window.
    #[inline(always)]
    pub(super) fn take_payload(&mut self, segment: &Segment, packet: Packet, cx: &mut Context<'_>) {
        self.take_mark(segment, cx);
        self.note_data(segment, &packet, cx);
        // 3.10.7.3: what comes with a SYN begins after its number.
        let first = segment.seq + u32::from(segment.has(TcpFlags::SYN));
        let (mut seq, mut start, mut len) = (first, segment.start, segment.payload);
        if seq.before(self.rcv_nxt) {
            let old = (self.rcv_nxt - seq).min(length(len));
            self.report_duplicate(seq, seq + old, cx);
            self.facts.add(ACK_NOW);
            cx.counters.tcp_duplicates += 1;
            (seq, start, len) = (seq + old, start + old as usize, len - old as usize);
        }
        let room = if self.edge.after(seq) { (self.edge - seq) as usize } else { 0 };
        if len > room {
            self.facts.add(ACK_NOW);
            cx.counters.tcp_out_of_window += 1;
            len = room;
        }
        if len == 0 {
            return cx.pool.give_packet(packet);
        }
        if seq != self.rcv_nxt {
            return self.take_early(seq, Held::new(packet, start, len), cx);
        }
        // Unless there is none for this either.
        self.facts.remove(SQUEEZED);
        self.take_next(start, len, packet, cx);
    }

    /// Has the next acknowledgment report what came twice. Of several that come together each has one (RFC 2883, 4), for a peer
    /// that takes back what it did about a loss waits for the report of each copy.
    #[cold]
    fn report_duplicate(&mut self, from: Seq, to: Seq, cx: &mut Context<'_>) {
        if self.facts.any(SACK) && self.duplicate().is_some() {
            self.emit(self.bare_seq(), 0, TcpFlags::ACK, cx);
            self.facts.add(ACK_NOW);
        }
        self.set_duplicate(Some((from, to)));
    }

    /// Keeps payload before which something is missing, if there is memory for it: it was not acknowledged, and comes again
    /// (RFC 2018, 8: keeping it is a choice).
    ///
    /// Frames count, not only bytes: tiny segments far apart must not pin memory without end, those of one peer, and those of many
    /// together, who never send what is missing. What comes in order, and what is to be sent, finds frames all the same.
    fn take_early(&mut self, seq: Seq, held: Held, cx: &mut Context<'_>) {
        // RFC 5681, 4.2: at once, for a gap and for what fills one.
        self.facts.add(ACK_NOW);
        self.mishaps.out_of_order += u32::from(held.segments());
        if self.early_at != self.rcv_nxt {
            (self.early_at, self.early, self.early_acks) = (self.rcv_nxt, 0, 0);
        }
        self.early = self.early.saturating_add(held.segments());
        let most = cx.pool.arena().frames() / (EARLY_SHARE * cx.share.stacks) * FRAME_SIZE;
        let room = self.receive.cost() <= 4 * self.rcv_limit as usize
            && cx.share.early + held.cost() <= most
            && cx.share.takes(held.cost())
            && cx.pool.at_hand(BATCH) >= BATCH;
        if !room {
            cx.counters.tcp_out_of_order_dropped += 1;
            return cx.pool.give_packet(held.into_packet());
        }
        let before = self.receive.waiting_cost();
        let twice = self.receive.hold(seq, held, cx.pool);
        let cost = self.receive.waiting_cost() - before;
        cx.share.early += cost;
        cx.counters.tcp_out_of_order += u64::from(cost > 0);
        match twice {
            Some((from, to)) => {
                self.report_duplicate(from, to, cx);
                cx.counters.tcp_duplicates += 1;
            }
            None => cx.counters.tcp_out_of_order_dropped += u64::from(cost == 0),
        }
    }

    /// Moves what waited and now comes next to what is ready.
    fn take_waiting(&mut self, cx: &mut Context<'_>) {
        let (before, ready) = (self.receive.waiting_cost(), self.receive.beyond_first());
        let (next, twice) = self.receive.fill(self.rcv_nxt, cx.pool);
        self.tally.bytes_received += u64::from(next - self.rcv_nxt);
        self.rcv_nxt = next;
        // What lies before it was noted first, and only one part is told of (RFC 2883, 4.2.2).
        if twice.is_some() {
            self.set_duplicate(self.duplicate().or(twice));
            cx.counters.tcp_duplicates += 1;
        }
        cx.share.early = cx.share.early + self.receive.waiting_cost() - before;
        cx.share.unread = cx.share.unread + self.receive.beyond_first() - ready;
    }

    /// Gives back what can't be read any more: something before it is missing for ever.
    pub(super) fn forget_early(&mut self, cx: &mut Context<'_>) {
        let cost = self.receive.waiting_cost();
        if cost > 0 {
            cx.share.early -= cost;
            self.receive.clear_waiting(cx.pool);
        }
    }

    /// Gives back all that has come.
    pub(super) fn forget_received(&mut self, cx: &mut Context<'_>) {
        self.forget_early(cx);
        cx.share.unread -= self.receive.beyond_first();
        self.receive.clear(cx.pool);
    }

    /// Notes when data came, and how large segments are.
    #[inline]
    pub(super) fn note_data(&mut self, segment: &Segment, packet: &Packet, cx: &Context<'_>) {
        self.tally.data_segments_in += 1;
        let pause = cx.now.span(self.last_received);
        self.last_received = cx.now;
        if pause > self.rtt.timeout() && self.tally.data_segments_in > 1 {
            self.quick = QUICK;
            self.facts.remove(ANSWERS);
        }
        // One that was put together of several counts as what they were (SHLD-19).
        let len = segment.payload;
        let mut each = len;
        if let Some(of) = packet.offload.segmentation() {
            each = usize::from(of.size.get()).min(len);
            let more = length(len.div_ceil(each.max(1))).saturating_sub(1);
            self.tally.segments_in += more;
            self.tally.data_segments_in += more;
        }
        let each = u16::try_from(each).unwrap_or(u16::MAX);
        if each >= self.largest {
            self.note_full(segment, each, cx);
        } else {
            self.note_shorter(each, segment.has(TcpFlags::PSH));
        }
    }

    /// A full segment, which was sent as soon as it could be.
    // Others are not made longer by it.
    #[inline(never)]
    fn note_full(&mut self, segment: &Segment, size: u16, cx: &Context<'_>) {
        if size > self.largest {
            // As in Linux, a peer that sends more than we have offered to take waits no longer for that (SHLD-19).
            self.largest = size.min(offered_segment(&self.flow, &self.limits, cx.out));
        }
        let now = cx.now;
        match segment.options.timestamps.filter(|_| self.facts.any(TIMESTAMPS)) {
            Some((_, echo)) => {
                let offset = self.ts_offset;
                self.heard.echoed(echo, || clock(now, offset).wrapping_sub(echo));
            }
            None => self.heard.windowed(self.rcv_nxt, self.edge, now),
        }
    }

    /// A segment shorter than the largest: a message's end, or the path has become narrower. Two of one size that are no
    /// messages by their look are full segments; Linux tells them so, too.
    fn note_shorter(&mut self, size: u16, pushed: bool) {
        if size >= SEGMENT || (size >= SMALLEST_SEGMENT && !pushed) {
            if size == self.shorter {
                self.largest = size;
            }
            self.shorter = size;
        }
    }

    /// Takes `len` bytes of payload that come next, if there is memory for them. Nothing says that there is none.
    #[inline(always)]
    pub(super) fn take_next(&mut self, start: usize, len: usize, packet: Packet, cx: &mut Context<'_>) {
        let (bytes, gap) = (length(len), self.receive.has_gap());
        if self.receive.takes_whole(&packet, start, len) && !cx.share.low {
            self.receive.take_whole(packet, start, len);
        } else if self.takes_more(&packet, cx) {
            self.take_more(start, len, packet, cx);
        } else {
            return self.take_less(start, len, packet, cx);
        }
        self.rcv_nxt = self.rcv_nxt + bytes;
        self.tally.bytes_received += u64::from(bytes);
        if gap {
            self.take_waiting(cx);
            self.facts.add(ACK_NOW);
        }
        self.tell_readable(cx);
        // SHLD-19: one acknowledgment for two full segments at least; as with Linux, for a full one and the end of a message, too.
        let more = self.unacknowledged() > u32::from(self.largest);
        if more || (self.quick > 0 && !self.facts.any(ANSWERS)) {
            self.facts.add(ACK_NOW);
        } else if self.ack_at == NEVER {
            self.ack_at = cx.now + DELAYED_ACK;
        }
    }

    /// Whether there is memory for what comes next. All may hold a share of it that their programs do not read; beyond that, each
    /// may have one frame, so that those who are read go on.
    #[inline]
    fn takes_more(&self, packet: &Packet, cx: &Context<'_>) -> bool {
        (packet.frames() == 1 && self.has_one(cx)) || cx.share.takes(packet.frames() * FRAME_SIZE)
    }

    /// Whether a frame may be kept whatever others hold.
    #[inline]
    fn has_one(&self, cx: &Context<'_>) -> bool {
        self.receive.readable() == 0 && !cx.share.low
    }

    /// Of what there is no memory for in several frames, takes as much as one holds, if that may be kept: segments that were joined
    /// on their way here, or one that is long, get on as those do that come alone. It is copied, for the first frame may have headers
    /// alone.
    #[cold]
    fn take_less(&mut self, start: usize, len: usize, packet: Packet, cx: &mut Context<'_>) {
        let may = packet.frames() > 1 && self.has_one(cx);
        let Some(frame) = may.then(|| cx.pool.take()).flatten() else { return self.refuse(packet, cx) };
        let (mut first, len) = (Packet::new(frame), len.min(FRAME_DATA));
        let copied = slices(&packet, start..start + len).try_for_each(|slice| first.extend_from_slice(slice));
        debug_assert!(copied.is_ok(), "they fit in a frame");
        cx.pool.give_packet(packet);
        // It tells that the rest is to come again.
        self.facts.add(ACK_NOW);
        self.take_next(0, len, first, cx);
    }

    #[inline]
    fn take_more(&mut self, start: usize, len: usize, mut packet: Packet, cx: &mut Context<'_>) {
        let before = self.receive.beyond_first();
        if self.receive.admit(&mut packet, start, len) {
            self.receive.append(|| Held::new(packet, start, len));
        } else {
            cx.pool.give_packet(packet);
        }
        cx.share.unread += self.receive.beyond_first() - before;
    }

    /// Drops what there is no memory for: it was not acknowledged, and comes again. Until there is some, the window is told to be
    /// shut, as Linux does it: a peer whose window is shut asks for as long as it takes, and one that is not answered gives up.
    #[cold]
    fn refuse(&mut self, packet: Packet, cx: &mut Context<'_>) {
        cx.counters.tcp_receive_dropped += 1;
        self.facts.add(SQUEEZED.with(ACK_NOW));
        cx.pool.give_packet(packet);
    }

    /// RFC 3168, 6.1.3: a mark is told in every acknowledgment until the sender has slowed down.
    fn take_mark(&mut self, segment: &Segment, cx: &mut Context<'_>) {
        if segment.has(TcpFlags::CWR) {
            self.facts.remove(ECHOES_MARK);
        }
        if segment.ecn == 0 || !self.facts.any(ECN) {
            return;
        }
        self.facts.add(ECT_SEEN);
        if segment.ecn == MARKED {
            cx.counters.tcp_ecn_marked += 1;
            self.facts.add_if(ACK_NOW, !self.facts.any(ECHOES_MARK));
            self.facts.add(ECHOES_MARK);
        }
    }

    /// Eighth, check the FIN bit, of this segment, which ends at `end`, or of one that came early.
    pub(super) fn check_fin(&mut self, fin: bool, end: Seq, cx: &mut Context<'_>) {
        let at = end - 1;
        if self.fin_at().is_some_and(|before| before.before(self.rcv_nxt)) {
            // It lies before what has come since: it was none, nor is it one when its number comes round again.
            self.set_fin_at(None);
        }
        if fin
            && self.state.takes_data()
            // One beyond the window is not taken, nor is what it follows.
            && self.fin_at().is_none()
            && !at.after(self.edge)
        {
            self.set_fin_at(Some(at));
        }
        if self.fin_at() != Some(self.rcv_nxt) || !self.state.takes_data() {
            if let Some(at) = self.fin_at() {
                self.receive.note_fin(at);
            }
            if fin {
                self.facts.add(ACK_NOW);
            }
            return;
        }
        self.rcv_nxt = self.rcv_nxt + 1;
        self.edge = self.edge.max(self.rcv_nxt);
        self.facts.add(ACK_NOW);
        self.step(Cause::FinReceived, cx);
        if !self.facts.any(RELEASED) {
            cx.events.push(Event::PeerClosed(self.id));
        }
    }

    /// Answers a segment by a reset, unless it is one.
    fn reset_sender(&self, segment: &Segment, cx: &mut Context<'_>) {
        if let Some(reset) = Bare::reset(self.flow, segment) {
            reset.send_as(&self.limits, cx);
        }
    }

    /// Sends a reset with the given sequence number, of our own accord.
    pub(super) fn send_reset(&mut self, seq: Seq, cx: &mut Context<'_>) {
        // 3.10.7.4: while the peer has not got our SYN it acknowledges nothing, unless data was acknowledged already.
        let synchronized = self.state.is_synchronized() && (!self.is_half_open() || self.is_early());
        let (ack, flags) = if synchronized {
            (self.rcv_nxt, TcpFlags::RST.with(TcpFlags::ACK))
        } else {
            (Seq(0), TcpFlags::RST)
        };
        let clock = self.facts.any(TIMESTAMPS) && synchronized;
        let timestamps = clock.then(|| (self.clock(cx.now), self.ts_recent));
        let options = bywash_wire::TcpOptions { timestamps, ..Default::default() };
        Bare { flow: self.flow, seq, ack, flags, window: 0, options }.send_as(&self.limits, cx);
    }
}
