//! What an acknowledgment means for sending: the window, what is lost, how much may go out (RFC 5681, 6582, 6937, 8985).

use bywash_wire::TcpFlags;

use super::congestion::{Arrival, Window};
use super::connection::{Connection, NEVER, Probe};
use super::facts::{
    DUPLICATE_ACKS, ECN, FIN_SENT, HELD_BY_MARK, LIMITED, LOSS, PROBE, RECOVERY, RELEASED, REPAIRS, SACK,
    SYN_OUT, TELLS_SLOWED, TIMESTAMPS,
};
use super::listen::{largest_segment, mss_of};
use super::scoreboard::{Cut, DUPLICATES, Delivered};
use super::segment::Segment;
use super::seq::Seq;
use crate::Timestamp;
use crate::outbox::CONFIRM;
use crate::stack::Context;
use crate::time::Span;

impl Connection {
    /// Takes the acknowledgment number, the window and the blocks of an acceptable segment.
    pub(super) fn acknowledge(&mut self, segment: &Segment, cx: &mut Context<'_>) {
        self.note_peer(cx.now);
        let nothing_out = self.board.is_empty() && !self.facts.any(REPAIRS.with(PROBE));
        let no_blocks = segment.options.sack.is_empty();
        if nothing_out
            && no_blocks
            && segment.ack == self.una
            && self.slowed_at().is_none()
            && !segment.has(TcpFlags::ECE)
        {
            // A stream to us: the acknowledgment repeats what was known, in every segment.
            self.update_window(segment);
            self.note_patience();
            return;
        }
        if self.acknowledges_next(segment) {
            return self.acknowledge_next(segment, cx);
        }
        let before = self.pipe();
        let (una, ack) = (self.una, segment.ack.max(self.una));
        let window_changed = self.update_window(segment);
        let mut delivered = Delivered { echoed: self.echoed(segment, cx.now), ..Delivered::default() };
        let shortest = self.rtt.shortest();
        self.board.acknowledge(ack, cx.now, shortest, &mut delivered);
        let reported = self.take_blocks(segment, ack, cx, &mut delivered);
        self.board.note_reordering(delivered.overtaken);
        let advanced = ack.after(una);
        let delivered_before = self.tally.delivered;
        self.count_delivered(delivered.bytes);
        let counted = if advanced { self.advance_una(ack, cx) } else { 0 };
        self.measure(segment, advanced, &delivered, cx);
        let duplicate = !advanced
            && segment.ack == una
            && segment.payload == 0
            && !window_changed
            && !segment.has(TcpFlags::FIN)
            && !self.board.is_empty();
        let third = duplicate && !self.facts.any(SACK) && self.count_duplicate();
        if self.board.is_empty() || self.wnd == 0 {
            self.note_patience();
        }
        let bare = segment.ack == una && !window_changed && segment.length() == 0;
        self.end_probe(ack, reported.map(|(_, end)| end), bare && segment.options.sack.is_empty(), cx);
        self.take_echo(segment, una, cx);
        self.take_back(segment, reported, (delivered.bytes, delivered.echoed), cx);
        // RFC 9937, 6.2: DeliveredData, without SACK as far as duplicates tell.
        let due = !self.facts.any(RECOVERY) || self.prr_delivered < self.prr_flight;
        let arrived = if duplicate && !self.facts.any(SACK) && due {
            self.window.mss()
        } else {
            delivered.bytes.saturating_sub(counted.saturating_mul(self.window.mss()))
        };
        if third && !self.facts.any(REPAIRS) {
            // RFC 6582, 3.2: the first one is missing.
            self.board.lose_first(self.window.mss());
        }
        self.find_losses(advanced, delivered.bytes, arrived, cx);
        // RFC 3168, 6.1.2
        let marked = self.facts.any(ECN) && segment.has(TcpFlags::ECE) && !segment.has(TcpFlags::SYN);
        if marked {
            self.delivered_marked += self.tally.delivered - delivered_before;
        } else if advanced {
            // What duplicates had told of is no news either. RFC 5681, 3.1 lets the window grow by no more than a segment here.
            self.grow(before, &Delivered { bytes: arrived, ..delivered }, cx.now);
        }
        if advanced && self.board.is_empty() {
            self.note_last_rate(una, cx.now);
        } else if advanced {
            self.note_rate(una, delivered.rtt, cx.now);
        }
        if advanced || delivered.bytes > 0 {
            self.restart_timer();
        }
    }

    /// MUST-37: a peer that answers may keep its window shut for as long as a program likes, also one that has shut it before what is
    /// in flight. A program that has closed waits for nobody: then it is given up when the user timeout is over (RFC 6429).
    #[inline]
    fn note_patience(&mut self) {
        let waits = self.send.len() > 0 || self.owes_fin() || !self.board.is_empty();
        if !(self.facts.any(RELEASED) && self.wnd == 0 && waits) {
            self.stalled = NEVER;
        }
    }

    /// Notes that a peer without SACK has had another segment after one that is missing; `true` if that was the third.
    fn count_duplicate(&mut self) -> bool {
        // RFC 5681, 3.1: after a timeout there is one segment out. What was, is taken for lost: duplicates tell of it.
        if self.facts.any(LOSS) && !self.nxt.after(self.recover) {
            return false;
        }
        // No more have arrived than are out but for the one that is missing (3.2: a network, or a peer, may make more of them).
        let out = self.board.segments_at_most(self.nxt - self.una, self.window.mss()).saturating_sub(1);
        // RFC 6582, 3.2 (2): right after a recovery they may be answers to what it has sent in vain.
        let most = if self.una == self.recover { out.min(DUPLICATES - 1) } else { out };
        let before = self.duplicates;
        self.set_duplicates(before.saturating_add(1).min(most));
        before < DUPLICATES && self.duplicates == DUPLICATES
    }

    /// Counts what has arrived, in segments: a message is one, and needs no division.
    #[inline]
    pub(super) fn count_delivered(&mut self, bytes: u32) {
        let mss = self.window.mss().max(1);
        self.tally.delivered += if bytes <= mss { u32::from(bytes > 0) } else { bytes.div_ceil(mss) };
    }

    /// Lets the congestion window grow by what has arrived; `before` bytes were in flight.
    #[inline]
    pub(super) fn grow(&mut self, before: u32, delivered: &Delivered, now: Timestamp) {
        if self.facts.any(RECOVERY) || delivered.bytes == 0 {
            return;
        }
        // RFC 9438, 5.8 and RFC 7661, 4.3: a window that was not needed says nothing about the path.
        let starts = self.window.congestion < self.window.threshold && self.uses_most(before);
        let full = self.facts.any(LIMITED) || starts;
        if full {
            let arrival = Arrival {
                bytes: delivered.bytes,
                sample: delivered.rtt,
                una: self.una,
                nxt: self.nxt,
                smoothed: self.round_trip().duration(),
                now,
            };
            self.congestion.algorithm().acknowledged(&mut self.window, &arrival);
        } else {
            self.window.unneeded = true;
        }
    }

    /// Whether more than half of the window was in flight at once in this round trip, as it was `before` now. Its last
    /// acknowledgment is of it, too: what it acknowledges was out when most was.
    fn uses_most(&mut self, before: u32) -> bool {
        // An end that is not of what is out is of long ago.
        if before >= self.used || self.round_end.after(self.nxt) {
            (self.round_end, self.used) = (self.nxt, before);
        }
        let most = self.used > self.window.congestion / 2;
        if !self.una.before(self.round_end) {
            self.used = 0;
        }
        most
    }

    /// SND.WND, unless the segment is older than the one that set it last.
    #[inline]
    pub(super) fn update_window(&mut self, segment: &Segment) -> bool {
        let newer =
            self.wl1.before(segment.seq) || (self.wl1 == segment.seq && !segment.ack.before(self.wl2));
        if !newer || segment.ack.before(self.una) {
            return false;
        }
        let scale = if segment.has(TcpFlags::SYN) { 0 } else { self.wnd_scale };
        let window = u32::from(segment.window) << scale;
        let changed = window != self.wnd;
        (self.wnd, self.wl1, self.wl2) = (window, segment.seq, segment.ack);
        self.max_wnd = self.max_wnd.max(window);
        if self.window_probes > 0 && window > 0 {
            // What waits, and what a shut window has not taken, waits no longer for it than it would have: the timer is set anew.
            self.rtt.forgive(std::mem::take(&mut self.window_probes));
            self.restart_timer();
        }
        changed
    }

    /// How what is out was cut.
    pub(super) fn cut(&self) -> Cut {
        Cut { mss: self.window.mss(), fin: self.facts.any(FIN_SENT).then_some(self.nxt) }
    }

    /// Whether all that is out, so many bytes, is one segment: a full one may have our FIN, too.
    #[inline]
    pub(super) fn is_one(&self, out: u32) -> bool {
        out <= self.window.mss() || (self.facts.any(FIN_SENT) && out == self.window.mss() + 1)
    }

    /// What the peer has out of order (RFC 2018), and what it reports to have come twice (RFC 2883, 4).
    fn take_blocks(
        &mut self,
        segment: &Segment,
        ack: Seq,
        cx: &mut Context<'_>,
        delivered: &mut Delivered,
    ) -> Option<(Seq, Seq)> {
        if !self.facts.any(SACK) || segment.options.sack.is_empty() {
            return None;
        }
        let mut blocks = segment.options.sack.iter().map(|(start, end)| (Seq(*start), Seq(*end)));
        let mut reported = None;
        let (first, second) = (blocks.clone().next(), blocks.clone().nth(1));
        if let Some((start, end)) = first {
            let inside = second.is_some_and(|(s, e)| !start.before(s) && !end.after(e));
            // RFC 2883, 4: below the number beside it. An acknowledgment that was overtaken tells what was news when it left.
            reported = (start.before(end) && (!end.after(segment.ack) || inside)).then_some((start, end));
        }
        if reported.is_some() {
            blocks.next();
            self.board.duplicate_reported(ack, self.nxt);
            self.mishaps.duplicates += 1;
            cx.counters.tcp_dsacks_received += 1;
        }
        for (start, end) in blocks {
            if start.before(end) && start.after(ack) && !end.after(self.nxt) {
                self.board.sack((start, end), self.cut(), cx.now, self.rtt.shortest(), delivered);
            }
        }
        reported
    }

    /// Returns how many of the segments acknowledged duplicates had told of before.
    #[inline(always)]
    pub(super) fn advance_una(&mut self, ack: Seq, cx: &mut Context<'_>) -> u32 {
        let base = self.una + u32::from(self.facts.take(SYN_OUT));
        let bytes = if ack.after(base) { ack - base } else { 0 };
        self.tally.bytes_acked += (bytes as usize).min(self.send.len()) as u64;
        self.una = ack;
        // A FIN counts one more than there are bytes.
        self.send.consume(bytes as usize, cx.share, cx.pool);
        if self.stalled != NEVER {
            self.note_answer(cx.now.span(self.stalled));
        }
        self.stalled = if self.board.is_empty() { NEVER } else { cx.now };
        let mut counted = 0;
        if self.facts.any(DUPLICATE_ACKS) {
            // Each duplicate stood for a segment that this acknowledgment now counts, but for the one that was missing.
            counted = self.duplicates.min((bytes / self.window.mss().max(1)).saturating_sub(1));
            self.set_duplicates(if self.facts.any(RECOVERY) { self.duplicates - counted } else { 0 });
        }
        self.tell_writable(cx);
        // RFC 4861, 7.3.1: the peer, and so the neighbour, has our packets.
        if cx.now.span(self.confirmed) >= CONFIRM
            && let Some(path) = cx.out.snapshot.path(self.flow.remote)
        {
            self.confirmed = cx.now;
            cx.out.confirm(path, cx.now);
            self.widen(cx);
        }
        counted
    }

    /// The millisecond in which that was sent whose clock a segment echoes.
    fn echoed(&self, segment: &Segment, now: Timestamp) -> Option<u64> {
        let (_, echo) = segment.options.timestamps.filter(|_| self.facts.any(TIMESTAMPS))?;
        let age = self.clock(now).wrapping_sub(echo);
        (age < 1 << 30).then(|| now.as_millis().saturating_sub(age.into()))
    }

    /// RFC 6298, 3: of a segment that was sent once, else by the echo of our clock, if something is acknowledged (RFC 7323, 4.1).
    #[inline(always)]
    pub(super) fn measure(
        &mut self,
        segment: &Segment,
        advanced: bool,
        delivered: &Delivered,
        cx: &Context<'_>,
    ) {
        if let Some(rtt) = delivered.rtt {
            self.rtt.sample(rtt, cx.now, (self.una, self.nxt), &mut self.rtt_round);
        } else if advanced
            && delivered.bytes > 0
            && self.facts.any(TIMESTAMPS)
            && let Some((_, echo)) = segment.options.timestamps
        {
            let millis = self.clock(cx.now).wrapping_sub(echo);
            if echo != 0 && millis < 1 << 30 {
                let rtt = Span(u64::from(millis.max(1)) * 1_000_000);
                self.rtt.sample(rtt, cx.now, (self.una, self.nxt), &mut self.rtt_round);
            }
        }
    }

    /// RFC 8985, 7.4.2: a probe that was a copy has repaired a loss, which counts, if later data is acknowledged and the peer
    /// has not told that both came: by a block that says so, or by an acknowledgment that says nothing at all (`bare`).
    fn end_probe(&mut self, ack: Seq, reported: Option<Seq>, bare: bool, cx: &mut Context<'_>) {
        let Some(Probe { end, copy, flight }) = self.probe().filter(|probe| !ack.before(probe.end)) else {
            return;
        };
        let twice = reported == Some(end) || bare;
        if copy && !twice && ack == end {
            return;
        }
        self.set_probe(None);
        if copy && !twice {
            cx.counters.tcp_loss_probe_recoveries += 1;
            // RFC 3168, 6.1.2: a mark has reduced the window of that already.
            if self.slowed_at().is_some_and(|at| !end.after(at)) {
                return;
            }
            self.reduce_from(flight);
            self.window.congestion = self.window.threshold;
        }
    }

    /// RFC 3168, 6.1.2: a mark counts as a loss does, once for each window. All from `una` on was out when it was made; if nothing was,
    /// it is one of which we have heard already.
    ///
    /// The peer repeats it until CWR has come, which is on the first new segment: an acknowledgment of all before that one still
    /// tells of the same mark.
    fn take_echo(&mut self, segment: &Segment, una: Seq, cx: &mut Context<'_>) {
        if self.slowed_at().is_some_and(|at| self.una.after(at)) {
            self.set_slowed_at(None);
        }
        let marked = self.facts.any(ECN) && segment.has(TcpFlags::ECE) && !segment.has(TcpFlags::SYN);
        if marked && self.slowed_at().is_none() && una != self.nxt {
            cx.counters.tcp_ecn_slowed += 1;
            // A recovery has reduced what was out when it began.
            self.set_slowed_at(Some(if !self.facts.any(REPAIRS) { self.nxt } else { self.recover }));
            self.facts.add(TELLS_SLOWED);
            // RFC 4015, 3.4: a mark is of congestion, whatever was lost.
            self.undo = None;
            if !self.facts.any(REPAIRS) {
                // A window of one segment can't shrink: the next waits until the timer goes off.
                if self.window.congestion <= self.window.mss() {
                    self.facts.add(HELD_BY_MARK);
                    self.restart_timer();
                }
                // RFC 9438, 4.6: after a mark one segment is left, and after a loss two.
                self.window.congestion = self.reduce_from(self.nxt - una).max(self.window.mss());
            }
        }
    }

    /// Finds out what is lost, and begins to repair it or has done so. An acknowledgment has brought `bytes`, of which `arrived` are news.
    pub(super) fn find_losses(&mut self, advanced: bool, bytes: u32, arrived: u32, cx: &mut Context<'_>) {
        if self.facts.any(REPAIRS) && !self.una.before(self.recover) {
            self.recovered(cx.now);
        }
        let lost = self.board.lost();
        if self.facts.any(SACK) {
            self.detect(cx);
        } else if self.facts.any(RECOVERY) && advanced {
            // RFC 6582, 3.2: a partial acknowledgment: what is the first now is missing.
            self.board.lose_first(self.window.mss());
        }
        // What got lost with our SYN, or was not taken with it, says nothing of how much the path takes.
        if self.board.has_lost() && !self.facts.any(REPAIRS) && self.opening.is_none() && !self.is_narrowed()
        {
            self.begin_recovery(bytes, cx);
        }
        if self.facts.any(RECOVERY) && arrived > 0 {
            // What a partial acknowledgment shows to be missing goes out whatever the window (RFC 6582, 3.2).
            self.reduce_in_proportion(
                arrived,
                advanced && !self.facts.any(SACK),
                advanced && self.board.lost() <= lost,
            );
        }
    }

    /// Something is lost; `bytes` have arrived with what shows it.
    pub(super) fn begin_recovery(&mut self, bytes: u32, cx: &mut Context<'_>) {
        cx.counters.tcp_recoveries += 1;
        // RFC 3168, 6.1.2: a mark has reduced this window already. RFC 4015, 3.4: it was of congestion, whatever was lost.
        let reduced = self.slowed_at().is_some_and(|at| self.una.before(at));
        let undo = if reduced { None } else { self.remember() };
        if !reduced {
            self.reduce();
        }
        self.undo = undo;
        // RFC 8985, 7.1: what a probe did is no question any more.
        self.facts.add(RECOVERY);
        self.set_probe(None);
        self.recover = self.nxt;
        // RFC 9937, 6.1: what blocks had told before does not arrive any more.
        let flight = (self.nxt - self.una - self.board.sacked()).saturating_add(bytes);
        self.prr_flight = flight.max(self.window.mss());
        (self.prr_delivered, self.prr_out) = (0, 0);
        // The first copy goes out at once (RFC 6675, 5, step 4.3).
        self.window.congestion = self.pipe() + self.window.mss();
    }

    /// Lets RACK look for losses, and sets its timer when something may only be late.
    pub(super) fn detect(&mut self, cx: &Context<'_>) {
        let recovering = self.facts.any(REPAIRS);
        let (shortest, smoothed) = (self.rtt.shortest(), self.rtt.smoothed());
        self.reorder_wait = self.board.detect(cx.now, shortest, smoothed, recovering).unwrap_or_default();
    }

    /// RFC 9937 (first RFC 6937): as much goes out as arrives, in the proportion of the new window to the old. Below the
    /// new window, an acknowledgment that shows `progress`, no new loss, lets one segment more go out than arrived.
    fn reduce_in_proportion(&mut self, arrived: u32, partial: bool, progress: bool) {
        self.prr_delivered = self.prr_delivered.saturating_add(arrived);
        let (pipe, threshold, mss) = (self.pipe(), self.window.threshold, self.window.mss());
        let send = if pipe > threshold {
            let share = u64::from(self.prr_delivered) * u64::from(threshold);
            let due = share.div_ceil(u64::from(self.prr_flight));
            u32::try_from(due).unwrap_or(u32::MAX).saturating_sub(self.prr_out)
        } else {
            // The slow-start reduction bound, or the conservative one.
            let more = if progress { mss } else { 0 };
            let limit = self.prr_delivered.saturating_sub(self.prr_out).min(self.burst()).max(arrived) + more;
            (threshold - pipe).min(limit)
        };
        let first = if self.prr_out == 0 || partial { mss } else { 0 };
        self.window.congestion = pipe + send.max(first);
    }

    /// Bytes that may follow each other at once after a gap: as at the beginning. A peer's window that was full behind the gap
    /// has let nothing out meanwhile, and all that was saved up would overflow the queue that has just dropped something.
    fn burst(&self) -> u32 {
        Window::initial(self.window.mss()).congestion
    }

    fn recovered(&mut self, now: Timestamp) {
        if self.facts.any(RECOVERY) {
            // RFC 6582, 3.2 asks for something against bursts here.
            self.window.congestion =
                self.window.threshold.min(self.pipe() + self.burst()).max(self.window.mss());
        }
        self.timeouts.over(now);
        self.facts.remove(REPAIRS);
        self.set_duplicates(0);
        self.board.recovered();
    }

    /// Sets the threshold after a loss.
    pub(super) fn reduce(&mut self) {
        self.reduce_from(self.nxt - self.una);
    }

    /// Sets the threshold after congestion that met `flight` bytes, and returns what is left of them. Who marks packets is told of
    /// every reduction (RFC 3168, 6.1.2).
    fn reduce_from(&mut self, flight: u32) -> u32 {
        self.facts.add_if(TELLS_SLOWED, self.facts.any(ECN));
        self.undo = None;
        // RFC 5681, 3.2 (2): what went out beyond the window while the loss was not yet sure (limited transmit) does not count.
        let flight = if !self.facts.any(REPAIRS) { flight.min(self.window.congestion) } else { flight };
        let left = self.congestion.algorithm().reduced(&self.window, flight);
        // RFC 5681, equation 4, and RFC 9438, 4.6: two segments at least.
        self.window.threshold = left.max(2 * self.window.mss());
        left
    }
}

impl Connection {
    /// Segments become longer again when the path takes longer ones: what a router said was long ago (RFC 1191, 6.3), or the link
    /// has changed.
    #[cold]
    fn widen(&mut self, cx: &Context<'_>) {
        // What is narrower than may be believed of paths this connection alone knows, for as long as the path is known for such.
        let narrowest = crate::path_mtu::smallest(self.flow.remote);
        let known = cx.out.path_mtus.find(cx.now, self.flow.remote) == Some(narrowest);
        let mss = largest_segment(&self.flow, &self.limits, cx);
        if mss > self.path_mss && !(known && self.path_mss < mss_of(narrowest.into(), self.flow.remote)) {
            self.path_mss = mss;
            self.set_mss(self.peer_mss);
        }
    }

    /// Whether something is still out of which a part was too long for the path. What is missing of it is no congestion, and is sent
    /// again as the window goes.
    pub(super) fn is_narrowed(&mut self) -> bool {
        // An end that is not of what is out is of long ago.
        self.narrowed &= self.una.before(self.narrowed_end) && !self.narrowed_end.after(self.nxt);
        self.narrowed
    }

    /// The path takes only packets of `mtu` bytes: longer segments go out again, shorter. That is no congestion. Returns whether
    /// segments become shorter.
    pub(super) fn path_mtu(&mut self, mtu: u16, now: Timestamp) -> bool {
        let least = crate::path_mtu::least(self.flow.remote);
        let mss = mss_of(mtu.max(least).into(), self.flow.remote);
        let options = if self.facts.any(TIMESTAMPS) { 12 } else { 0 };
        self.path_mss = self.path_mss.min(mss);
        let shorter = u32::from(mss) - options < self.window.mss();
        if shorter {
            self.set_mss(mss);
            let lost = self.board.lost();
            self.board.lose_longer(self.window.mss());
            if self.board.lost() > lost {
                (self.narrowed, self.narrowed_end) = (true, self.nxt);
            }
            if self.facts.any(SYN_OUT) {
                self.narrow_opening(now);
            }
        }
        shorter
    }
}
