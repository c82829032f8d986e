//! What goes out: copies of what is lost, new data, a FIN, an acknowledgment (RFC 9293, 3.7.4, 3.8.6; RFC 6633).

use bywash_wire::TcpFlags;

use super::busy::HeldBy;
use super::connection::{Connection, NEVER};
use super::facts::{
    ACK_NOW, AWAITS_MORE, CORK, FIN_SENT, FIN_WANTED, HELD_BY_MARK, LIMITED, MORE_FOLLOWS, NODELAY,
    NOT_A_MESSAGE, RECOVERY, RELEASED, SACK, SQUEEZED, SYN_OUT, TELLS_SLOWED, URGES, WANTS_ROOM,
};
use super::receive_buffer::length;
use super::seq::Seq;
use super::state::State;
use crate::stack::Context;
use crate::time::Span;
use crate::{PortId, Timestamp};

/// Packets a connection may send before others have their turn: a batch.
const TURN: u32 = 64;

/// Duplicate acknowledgments by which a peer that counts them sees a loss (RFC 5681, 3.2).
const COUNTED: u8 = 3;

impl Connection {
    /// Sends what may be sent now; `true` when there is more for another turn.
    pub(super) fn output(&mut self, cx: &mut Context<'_>) -> bool {
        if self.state == State::Closed {
            return false;
        }
        let (mut turn, before) = (TURN, self.nxt);
        if self.facts.any(ACK_NOW) && self.state.is_synchronized() && (self.early > 0 || self.has_blocks()) {
            self.answer_early(cx);
        }
        let mut more = !self.send_copies(&mut turn, cx) || !self.send_new(&mut turn, cx);
        if self.facts.any(ACK_NOW) && self.state.is_synchronized() {
            more |= !self.emit(self.bare_seq(), 0, TcpFlags::ACK, cx);
        }
        // Not without progress: a program would be told again and again while frames are wanting.
        if self.nxt != before {
            self.tell_writable(cx);
        }
        // There was no frame for the program's first byte: no acknowledgment will come that makes it try again.
        if self.facts.any(WANTS_ROOM)
            && self.send.len() == 0
            && self.send_room() > 0
            && !self.facts.any(RELEASED)
        {
            if cx.pool.at_hand(1) > 0 {
                self.tell_writable(cx);
            } else {
                more = true;
            }
        }
        self.note_busy(cx.now);
        if self.facts.any(SQUEEZED) && self.ack_at == NEVER {
            self.ack_at = cx.now + super::timers::LOOK_AGAIN;
        }
        self.arm(cx.now);
        more
    }

    /// Sends what is to be sent if that is a message; `false` when it is not, or could not go.
    // A function of its own, as `arrive_by_way` is.
    #[inline(never)]
    pub(super) fn send_message(&mut self, cx: &mut Context<'_>) -> bool {
        self.sends_one(cx) && self.send_one(cx)
    }

    /// Acknowledges what has come out of order at once (RFC 5681, 4.2), also when it came together: each segment, for a peer may
    /// count them to see a loss (3.2), or the first three of a gap, as Linux does it, if blocks tell of the others.
    fn answer_early(&mut self, cx: &mut Context<'_>) {
        let early = std::mem::take(&mut self.early);
        let mut due = if self.early_at == self.rcv_nxt { early } else { 0 };
        if self.facts.any(SACK) {
            due = due.min(COUNTED.saturating_sub(self.early_acks));
        }
        self.early_acks = self.early_acks.saturating_add(due);
        for _ in 0..due.max(1) {
            if !self.emit(self.bare_seq(), 0, TcpFlags::ACK, cx) {
                break;
            }
        }
    }

    /// Whether all there is to do is to send what the program has written since all before it was acknowledged, in one segment, and
    /// perhaps that it was the last: a message or its answer. The steps of [`Connection::output`] come to the same, by more questions.
    #[inline]
    fn sends_one(&self, cx: &Context<'_>) -> bool {
        #[cfg(test)]
        if super::by_steps() {
            return false;
        }
        let len = self.send.len();
        self.state.has_opened()
            && self.board.is_empty()
            && (len > 0 || self.facts.any(FIN_WANTED))
            && len <= self.window.mss() as usize
            // A FIN takes a place in the peer's window, too.
            && length(len) + u32::from(self.facts.any(FIN_WANTED)) <= self.usable().min(self.window.congestion)
            && !self.facts.any(NOT_A_MESSAGE)
            && !(self.facts.any(ACK_NOW) && (self.early > 0 || self.has_blocks()))
            && self.held_by == HeldBy::Nothing
            && self.send_at == NEVER
            && self.reorder_wait == Span::ZERO
            && cx.now.span(self.last_data_sent) <= self.rtt.timeout()
            && !self.port_is_full(cx)
    }

    /// Sends that; `false` when it could not go.
    #[inline]
    fn send_one(&mut self, cx: &mut Context<'_>) -> bool {
        const MESSAGE: TcpFlags = TcpFlags::ACK.with(TcpFlags::PSH);
        let (len, fin) = (length(self.send.len()), self.facts.any(FIN_WANTED));
        let sent = if fin {
            let flags = if len > 0 { MESSAGE } else { TcpFlags::ACK };
            self.emit(self.nxt, len, flags.with(TcpFlags::FIN), cx)
        } else {
            self.emit_message(len, MESSAGE, cx)
        };
        if !sent {
            return false;
        }
        let end = self.nxt + len + u32::from(fin);
        self.board.push_first(self.nxt, end, cx.now);
        if len < self.window.mss() {
            self.small_end = end;
        }
        self.nxt = end;
        self.facts.set(FIN_SENT, fin);
        self.facts.remove(LIMITED);
        self.stalled = self.stalled.min(cx.now);
        self.set_timer(cx.now);
        true
    }

    /// Counts a range that was sent again. A SYN and a FIN are no bytes.
    pub(super) fn count_copy(&mut self, (start, end): (Seq, Seq), cx: &mut Context<'_>) {
        cx.counters.tcp_retransmitted += 1;
        self.mishaps.resent += 1;
        let end = end.min(self.data_end());
        if !self.is_syn(start) && end.after(start) {
            self.mishaps.bytes_resent += u64::from(end - start);
        }
    }

    /// Whether there can be more than a SYN: during a handshake only a FIN that has nothing to wait for, or what the program sends that
    /// has its connection before.
    #[inline]
    fn speaks(&self) -> bool {
        !matches!(self.state, State::SynSent | State::SynReceived) || self.is_early()
    }

    fn has_blocks(&self) -> bool {
        self.facts.any(SACK) && !self.is_half_open() && (self.receive.has_gap() || self.duplicate().is_some())
    }

    fn may_send(&self, turn: &mut u32, cx: &Context<'_>) -> bool {
        *turn = turn.saturating_sub(1);
        *turn > 0 && !self.port_is_full(cx)
    }

    /// Whether so many packets wait for the port that more would only wait, too.
    pub(super) fn port_is_full(&self, cx: &Context<'_>) -> bool {
        cx.out.is_full(self.port())
    }

    /// The port that its way leads to: none as long as that is not known.
    fn port(&self) -> PortId {
        self.way.as_ref().map_or(PortId::NONE, |way| way.port)
    }

    /// Sends again what is lost, as far as the window goes; `false` when its turn is over before.
    fn send_copies(&mut self, turn: &mut u32, cx: &mut Context<'_>) -> bool {
        while self.board.has_lost() {
            let mss = self.window.mss();
            let Some((start, mut end)) = self.board.first_lost(mss) else { break };
            // What was sent in segments of another size may have been one record and the next.
            if let Some(left) = self.record_left(start) {
                end = end.min(start + left);
            }
            // A peer without our SYN takes nothing else.
            if self.facts.any(SYN_OUT) && !self.is_syn(start) {
                break;
            }
            let pipe = self.pipe();
            if pipe > 0 && pipe + (end - start) > self.window.congestion {
                break;
            }
            if !self.may_send(turn, cx) || !self.send_range(start, end - start, cx) {
                return false;
            }
            let again = self.board.resent(start, end, cx.now);
            self.note_copy((start, end), again, cx.now);
            self.prr_out += end - start;
            self.count_copy((start, end), cx);
        }
        true
    }

    /// Sends a range of sequence numbers again, whatever is in it: a SYN, bytes, a FIN.
    pub(super) fn send_range(&mut self, start: Seq, len: u32, cx: &mut Context<'_>) -> bool {
        if self.is_syn(start) {
            let flags =
                if self.state == State::SynSent { TcpFlags::SYN } else { TcpFlags::SYN.with(TcpFlags::ACK) };
            return self.emit(start, 0, flags, cx);
        }
        let end = start + len;
        let fin = self.facts.any(FIN_SENT) && end.after(self.data_end());
        let bytes = len - u32::from(fin);
        let mut flags = TcpFlags::ACK;
        if fin {
            flags = flags.with(TcpFlags::FIN);
        }
        let last = !(start + bytes).before(self.data_end()) && !self.facts.any(MORE_FOLLOWS);
        if bytes > 0 && (last || self.ends_record(start + bytes)) {
            flags = flags.with(TcpFlags::PSH);
        }
        self.emit(start, bytes, flags, cx)
    }

    /// Sends new data, as far as both windows and the rules against small segments go; `false` when its turn is over
    /// before.
    fn send_new(&mut self, turn: &mut u32, cx: &mut Context<'_>) -> bool {
        self.facts.remove(LIMITED);
        if self.facts.any(FIN_SENT) || !self.speaks() {
            return true;
        }
        // RFC 5681, 4.1: after a pause nobody knows what the path takes. Acknowledgments say nothing of it.
        if self.board.is_empty()
            && self.send.len() > 0
            && cx.now.span(self.last_data_sent) > self.rtt.timeout()
            && self.limits.restart_after_idle
        {
            let initial = super::congestion::Window::initial(self.window.mss()).congestion;
            self.window.congestion = self.window.congestion.min(initial);
            self.congestion.algorithm().restarted();
        }
        while let Some(len) = self.next_length() {
            let run = match self.run_of(len) {
                0 | 1 => 0,
                run => run.min(turn.saturating_sub(1)).min(length(cx.out.room(self.port()))),
            };
            let sent = if run > 1 { self.emit_run(run, cx) } else { 0 };
            if sent > 0 {
                *turn -= sent;
                self.note_new(self.nxt + sent * len, cx.now);
                continue;
            }
            let fin = self.facts.any(FIN_WANTED) && self.nxt + len == self.data_end() && len < self.usable();
            let last = self.nxt + len == self.data_end();
            let mut flags = TcpFlags::ACK;
            let pushed = (last && !self.facts.any(MORE_FOLLOWS)) || self.ends_record(self.nxt + len);
            if (pushed && len > 0) || len > self.window.mss() {
                flags = flags.with(TcpFlags::PSH);
            }
            if fin {
                flags = flags.with(TcpFlags::FIN);
            }
            if !self.may_send(turn, cx) || !self.emit(self.nxt, len, flags, cx) {
                return false;
            }
            self.facts.add_if(FIN_SENT, fin);
            self.note_new(self.nxt + len + u32::from(fin), cx.now);
            if last {
                break;
            }
        }
        true
    }

    /// Notes that all up to `end` has been sent.
    pub(super) fn note_new(&mut self, end: Seq, now: Timestamp) {
        self.board.push(self.nxt, end, now, self.window.mss());
        self.stalled = self.stalled.min(now);
        if end - self.nxt < self.window.mss() {
            self.small_end = end;
        }
        if self.facts.any(RECOVERY) {
            self.prr_out += end - self.nxt;
        }
        self.nxt = end;
        self.put_off_probe(now);
    }

    /// How many full segments in a row may go now if the next has `len` bytes.
    fn run_of(&self, len: u32) -> u32 {
        let (mss, available) = (self.window.mss(), self.data_end() - self.nxt);
        if len != mss {
            return 0;
        }
        let room = self.window.congestion.saturating_sub(self.pipe());
        // A FIN goes with the last one, which is not of the run.
        let available = available.saturating_sub(u32::from(self.facts.any(FIN_WANTED)));
        available.min(self.usable()).min(room) / mss
    }

    /// How many bytes the next new segment has; zero for a FIN alone; `None` when nothing may go.
    #[inline]
    fn next_length(&mut self) -> Option<u32> {
        let mss = self.window.mss();
        let queued = self.data_end() - self.nxt;
        let available = self.record_left(self.nxt).unwrap_or(queued);
        if available == 0 {
            return (self.facts.any(FIN_WANTED) && self.usable() > 0).then_some(0);
        }
        if self.facts.any(HELD_BY_MARK) {
            return None;
        }
        let room = self.window.congestion.saturating_sub(self.pipe());
        let usable = self.usable();
        if room < available.min(mss) {
            self.facts.add(LIMITED);
            // Something is in flight, and will open the window; if not, one segment goes.
            if self.pipe() > 0 {
                return None;
            }
        }
        let len = available.min(usable).min(room.max(mss));
        if len >= mss {
            self.facts.add_if(LIMITED, room < available && room < usable);
            // CWR is on one segment (RFC 3168, 6.1.2). Ports that cut are not all known to keep it off the pieces behind the first.
            let alone = self.facts.any(URGES.with(TELLS_SLOWED));
            return Some(if len > mss && self.is_cut_by_port() && !alone {
                (len / mss).min(self.together()) * mss
            } else {
                mss
            });
        }
        // RFC 9293, 3.8.6.2.1 (MUST-38) and 3.7.4 (SHLD-7): everything there is, when the peer has all that went
        // before or Nagle is off; or half of the largest window; else the persist timer will send it. Of what went before only
        // small segments count, as in Linux (Minshall's variant): else the end of each write would wait for an acknowledgment that
        // the peer delays, for it waits for more.
        let urgent = self.facts.any(URGES) && self.nxt.before(self.snd_up);
        // Nothing will ever be added to the last segment of a record that others are behind.
        let at_once = self.facts.any(FIN_WANTED) || urgent || available < queued;
        let all = len == available && (self.facts.any(NODELAY) || at_once || !self.has_small_out());
        let half = len >= self.max_wnd / 2;
        // Corked, only full segments go; the persist timer sees to it that nothing waits for long.
        let held = self.facts.any(CORK.with(AWAITS_MORE)) && !at_once;
        (len > 0 && !held && (all || half)).then_some(len)
    }

    /// Whether a FIN is to go out that has not.
    pub(super) fn owes_fin(&self) -> bool {
        self.facts.any(FIN_WANTED) && !self.facts.any(FIN_SENT)
    }

    /// Whether a segment that was not full is not acknowledged yet.
    fn has_small_out(&self) -> bool {
        self.small_end.after(self.una) && !self.small_end.after(self.nxt)
    }

    fn is_cut_by_port(&self) -> bool {
        self.way.as_ref().is_some_and(|way| way.offloads.segmentation)
    }

    /// Bytes that wait and have not been sent.
    pub(super) fn unsent(&self) -> u32 {
        if self.facts.any(FIN_SENT) || self.state == State::SynSent {
            return 0;
        }
        (self.base() + length(self.send.len())) - self.nxt.max(self.base())
    }
}
