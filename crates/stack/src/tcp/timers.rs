//! Timers: what is set after each change, and what happens when one goes off.

use std::time::Duration;

use bywash_frame::FRAME_SIZE;
use bywash_wire::TcpFlags;

use super::CloseReason;
use super::connection::{Connection, NEVER, Probe, SendTimer};
use super::facts::{ACK_NOW, HELD_BY_MARK, LOSS, PROBE, RECOVERY, REPAIRS, SACK, SQUEEZED, SYN_OUT};
use super::state::State;
use crate::Timestamp;
use crate::stack::Context;
use crate::time::Span;
use crate::wheel::Wheel;

/// RFC 8985, 7.2: how long a peer may hold back an acknowledgment of a single segment.
const WORST_DELAYED_ACK: Span = Span::of(Duration::from_millis(200));
/// RFC 8985, 7.2: how long a probe waits before anything was measured.
const UNMEASURED: Span = Span::of(Duration::from_secs(1));
/// RFC 9293, 3.8.6.2.1: what SWS avoidance holds back waits no longer, whatever the retransmission timeout has become.
const OVERRIDE: Span = Span::of(Duration::from_secs(1));
/// How soon it is looked again whether there is memory for what comes: a peer asks less and less often.
pub(super) const LOOK_AGAIN: Span = Span::of(Duration::from_millis(100));
/// RFC 9293, MUST-23: a SYN is repeated for three minutes.
const SYN_TIMEOUT: Duration = Duration::from_secs(180);

impl Connection {
    /// Something has arrived, or a window has opened: the timer begins anew (RFC 6298, 5.3), once what may be sent now has
    /// been: [`Connection::output`] follows every arrival, and sets it.
    #[inline]
    pub(super) fn restart_timer(&mut self) {
        self.send_at = NEVER;
    }

    /// Sets the timer of the sending half, if it is not set.
    pub(super) fn arm(&mut self, now: Timestamp) {
        if self.state == State::Closed {
            return;
        }
        if self.board.is_empty() {
            let blocked = self.unsent() > 0 || self.owes_fin() || self.facts.any(HELD_BY_MARK);
            if !blocked {
                self.send_at = NEVER;
            } else if self.send_timer != SendTimer::Persist || self.send_at == NEVER {
                let mut wait = self.rtt.timeout();
                if self.usable() > 0 {
                    wait = wait.min(OVERRIDE);
                }
                let at = (now + wait).min(self.gives_up_at());
                (self.send_timer, self.send_at) = (SendTimer::Persist, at);
            }
            return;
        }
        if self.send_at == NEVER || self.send_timer == SendTimer::Persist {
            self.set_timer(now);
        }
        let wait = std::mem::take(&mut self.reorder_wait);
        if wait != Span::ZERO {
            let at = now + wait;
            if at < self.send_at {
                (self.send_timer, self.send_at) = (SendTimer::Reordering, at);
            }
        }
    }

    /// Sets the connection's timer in the wheel.
    #[inline]
    pub(super) fn set_in(&mut self, wheel: &mut Wheel) {
        // A deadline that has moved back is left in the wheel: it is looked at when it comes.
        let deadline = self.deadline();
        if deadline < self.wheel_at {
            self.wheel_at = deadline;
            wheel.set(self.id.index, deadline);
        }
    }

    /// Sets the timer of what was just sent: a probe if there may be one, and the timeout after it.
    #[inline]
    pub(super) fn set_timer(&mut self, now: Timestamp) {
        let rto = now + self.rtt.timeout();
        (self.send_timer, self.send_at, self.timeout_at) = (SendTimer::Retransmission, rto, rto);
        if self.rtt.backoff() > 0 {
            self.send_at = rto.min(self.gives_up_at());
        }
        if let Some(wait) = self.probe_wait() {
            (self.send_timer, self.send_at) = (SendTimer::Probe, (now + wait).min(rto));
        }
    }

    /// RFC 8985, 7.2: new data puts a probe off, but not beyond the timeout.
    #[inline]
    pub(super) fn put_off_probe(&mut self, now: Timestamp) {
        if self.send_timer == SendTimer::Probe
            && self.send_at != NEVER
            && let Some(wait) = self.probe_wait()
        {
            self.send_at = (now + wait).min(self.timeout_at);
        }
    }

    /// RFC 8985, 7.2: two round trips, and more when a single segment may wait for its acknowledgment.
    fn probe_wait(&self) -> Option<Span> {
        let probes = self.facts.any(SACK)
            && !self.facts.any(REPAIRS.with(PROBE))
            && !self.rtt.is_probed()
            && !self.is_half_open();
        if !probes || self.board.sacked() > 0 || self.board.has_lost() {
            return None;
        }
        if self.rtt.smoothed() == Span::ZERO {
            return Some(UNMEASURED);
        }
        let wait = self.rtt.smoothed() + self.rtt.smoothed();
        Some(if self.is_one(self.board.in_flight()) { wait + WORST_DELAYED_ACK } else { wait })
    }

    /// Whether there is memory again for what comes: its window is not shut any more then.
    #[cold]
    fn has_memory(&mut self, cx: &mut Context<'_>) -> bool {
        cx.share.look(cx.pool);
        let has = cx.share.takes(FRAME_SIZE);
        self.facts.set(SQUEEZED, !has);
        has
    }

    /// Does what is due.
    pub(super) fn expire(&mut self, cx: &mut Context<'_>) {
        if self.ack_at <= cx.now {
            self.ack_at = NEVER;
            let takes = !self.facts.any(SQUEEZED) || self.has_memory(cx);
            self.facts.add_if(ACK_NOW, takes);
        }
        if self.linger_at <= cx.now {
            return self.terminate(CloseReason::Done, cx);
        }
        if self.send_at <= cx.now {
            self.send_at = NEVER;
            match self.send_timer {
                SendTimer::Retransmission => self.retransmission_timeout(cx),
                SendTimer::Probe => self.probe_tail(cx),
                SendTimer::Reordering => self.reordering_timeout(cx),
                SendTimer::Persist if self.facts.any(HELD_BY_MARK) => self.facts.remove(HELD_BY_MARK),
                SendTimer::Persist => self.probe_window(cx),
            }
        }
        if self.keepalive_at <= cx.now && self.state != State::Closed {
            self.keep_alive(cx);
        }
    }

    /// RFC 6298, 5.4 to 5.6, and RFC 8985, 6.3.
    fn retransmission_timeout(&mut self, cx: &mut Context<'_>) {
        if self.gives_up(cx) {
            return;
        }
        if self.timeout_at > cx.now {
            // An answer has come since this was the time to give up.
            self.send_at = self.timeout_at.min(self.gives_up_at());
            return;
        }
        self.stalled = self.stalled.min(cx.now);
        cx.counters.tcp_timeouts += 1;
        self.facts.remove(HELD_BY_MARK);
        self.timeouts.another(cx.now);
        self.count_in_row();
        let rtt = (self.rtt.shortest(), self.rtt.smoothed());
        self.board.timed_out(cx.now, self.window.mss(), self.facts.any(SACK), rtt);
        self.rtt.back_off();
        if self.facts.any(SYN_OUT) {
            // A SYN says nothing of how much the path takes: what its loss means is decided when data begins.
            return;
        }
        // RFC 5681, equation 4, but once only for the same data.
        if !self.facts.any(LOSS) {
            let undo = if !self.facts.any(REPAIRS) { self.remember_timeout() } else { None };
            self.reduce();
            self.undo = undo;
        }
        // RFC 6582, 3.2 (4): each time, for what went out since the last one is lost, too.
        self.recover = self.nxt;
        self.facts.remove(RECOVERY);
        self.facts.add(LOSS);
        self.congestion.algorithm().timed_out();
        // A window that has shut behind what is out is probed by it.
        self.window_probes = self.window_probes.saturating_add(u8::from(self.wnd == 0));
        self.set_duplicates(0);
        // RFC 6298, 5.4: one segment goes out again, whatever is too young to be lost.
        self.window.congestion = self.pipe() + self.window.mss();
        self.set_probe(None);
    }

    /// Counts a timeout among those in a row, as Linux does it: what a shut window has not taken is no loss.
    fn count_in_row(&mut self) {
        if self.timeouts.una != self.una {
            (self.timed_out, self.timeouts.una) = (0, self.una);
        }
        let shut = self.wnd == 0 && !self.facts.any(SYN_OUT);
        self.timed_out = self.timed_out.saturating_add(u8::from(!shut));
    }

    /// RFC 8985, 7.3: new data if there is any, else the last segment once more; its answer shows what is missing.
    fn probe_tail(&mut self, cx: &mut Context<'_>) {
        let unsent = if self.facts.any(HELD_BY_MARK) { 0 } else { self.sendable() };
        self.rtt.probed();
        if unsent > 0 {
            let end = self.nxt + unsent;
            let pushed = end == self.data_end() || self.ends_record(end);
            let last = if pushed { TcpFlags::PSH } else { TcpFlags::default() };
            if self.emit(self.nxt, unsent, TcpFlags::ACK.with(last), cx) {
                self.note_new(end, cx.now);
                cx.counters.tcp_loss_probes += 1;
                self.set_probe(Some(Probe { end, copy: false, flight: self.nxt - self.una }));
            }
        } else if let Some((start, end)) = self.board.last(self.cut()) {
            self.send_range(start, end - start, cx);
            self.board.resent(start, end, cx.now);
            cx.counters.tcp_loss_probes += 1;
            self.count_copy((start, end), cx);
            self.set_probe(Some(Probe { end: self.nxt, copy: true, flight: self.nxt - self.una }));
        }
    }

    /// How many bytes the next segment would have if it were to go now, whatever there is to hold it back.
    fn sendable(&mut self) -> u32 {
        let available = self.record_left(self.nxt).unwrap_or(u32::MAX).min(self.unsent());
        available.min(self.usable()).min(self.window.mss())
    }

    fn reordering_timeout(&mut self, cx: &mut Context<'_>) {
        self.detect(cx);
        if self.board.has_lost() && !self.facts.any(REPAIRS) && !self.is_narrowed() {
            self.begin_recovery(0, cx);
        }
    }

    /// RFC 9293, 3.8.6.1: an acknowledgment with an old number is not acceptable, so it is answered, and the answer
    /// has the window. What SWS avoidance holds back goes out now (3.8.6.2.1, the override timeout).
    fn probe_window(&mut self, cx: &mut Context<'_>) {
        if self.gives_up(cx) {
            return;
        }
        let len = self.sendable();
        if len > 0 {
            if self.emit(self.nxt, len, TcpFlags::ACK.with(TcpFlags::PSH), cx) {
                self.note_new(self.nxt + len, cx.now);
            }
            return;
        }
        self.stalled = self.stalled.min(cx.now);
        self.window_probes = self.window_probes.saturating_add(1);
        self.rtt.back_off();
        let sent = self.emit(self.una - 1, 0, TcpFlags::ACK, cx);
        cx.counters.tcp_window_probes += u64::from(sent);
    }

    /// RFC 9293, 3.8.4: probes while nothing is heard, then the end.
    fn keep_alive(&mut self, cx: &mut Context<'_>) {
        if !self.board.is_empty() {
            // MUST-26: only when nothing else is out; the retransmission timer watches over that.
            self.keepalive_at = cx.now + self.limits.keepalive_idle;
            return;
        }
        let due = self.keepalive_due();
        if due > cx.now {
            self.keepalive_at = due;
            return;
        }
        if self.keepalive_sent >= self.limits.keepalive_count {
            self.send_reset(self.nxt, cx);
            return self.terminate(CloseReason::TimedOut, cx);
        }
        self.keepalive_sent += 1;
        self.keepalive_at = cx.now + self.limits.keepalive_interval;
        let sent = self.emit(self.una - 1, 0, TcpFlags::ACK, cx);
        cx.counters.tcp_keepalives += u64::from(sent);
    }

    /// When a probe of a silent peer goes out. What has come puts the first one off, which is seen only when it is due: most that
    /// comes would set a timer that more of it sets anew.
    pub(super) fn keepalive_due(&self) -> Timestamp {
        match self.keepalive_sent {
            0 if self.keepalive_at != NEVER => {
                self.keepalive_at.max(self.last_acknowledged + self.limits.keepalive_idle)
            }
            _ => self.keepalive_at,
        }
    }

    /// R2 and the user timeout (RFC 9293, 3.8.3): when it is too long without an answer.
    fn gives_up_at(&self) -> Timestamp {
        let limit = if self.facts.any(SYN_OUT) {
            SYN_TIMEOUT.min(self.limits.user_timeout)
        } else {
            self.limits.user_timeout
        };
        if self.stalled == NEVER { NEVER } else { self.stalled + limit }
    }

    /// A timer that is set goes off by then, too.
    pub(super) fn give_up_in_time(&mut self) {
        if self.send_at != NEVER {
            self.send_at = self.send_at.min(self.gives_up_at());
        }
    }

    fn gives_up(&mut self, cx: &mut Context<'_>) -> bool {
        let tries = self.rtt.backoff() >= self.limits.syn_retries;
        let answers = self.rtt.backoff() >= self.limits.syn_ack_retries;
        let unanswered = if self.state == State::SynSent { tries } else { self.is_early() && answers };
        let over = unanswered || self.gives_up_at() <= cx.now;
        if over {
            self.terminate(CloseReason::TimedOut, cx);
        }
        over
    }
}
