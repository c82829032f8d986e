//! What is lost: RACK (RFC 8985) by the time of sending, and what else shows it.

use super::{DUPLICATES, Fate, Scoreboard, Sending, Sent};
use crate::Timestamp;
use crate::queue::pop;
use crate::tcp::seq::Seq;
use crate::time::Span;

impl Scoreboard {
    /// An acknowledgment has brought what had been overtaken by so many bytes.
    pub(in crate::tcp) fn note_reordering(&mut self, overtaken: u32) {
        self.reordering = self.reordering.saturating_add(u32::from(overtaken > 0));
        self.overtaken = self.overtaken.max(overtaken);
    }

    /// A duplicate was reported (RFC 8985, 6.2 step 4): the reordering window was too short.
    pub(in crate::tcp) fn duplicate_reported(&mut self, una: Seq, nxt: Seq) {
        // A number that is not of what is out is of long ago.
        if self.round.is_none_or(|round| !una.before(round) || round.after(nxt)) {
            self.round = Some(nxt);
            self.stretch += 1;
            self.persist = 16;
        }
    }

    /// A recovery is over: after 16 without duplicates the window is short again.
    pub(in crate::tcp) fn recovered(&mut self) {
        self.persist = self.persist.saturating_sub(1);
        if self.persist == 0 {
            self.stretch = 0;
        }
    }

    /// What arrived had overtaken the first that has not.
    pub(in crate::tcp) fn overtaken_since(&mut self, una: Seq) {
        let overtaken = self.highest.filter(|highest| highest.after(una)).map_or(1, |highest| highest - una);
        self.note_reordering(overtaken);
    }

    /// What was taken for lost is on its way, and no later than others are overtaken; `copies`: also what had been sent again.
    pub(in crate::tcp) fn expect_lost(&mut self, copies: bool) {
        let is_late = |sent: &&mut Sent| sent.fate == Fate::Lost && (copies || !sent.retransmitted);
        for sent in self.sent.iter_mut().filter(is_late) {
            sent.fate = Fate::InFlight;
            self.lost -= sent.len();
            self.in_flight += sent.len();
        }
        let expected = self.sent.iter().filter(|sent| sent.fate == Fate::InFlight);
        let mut sendings: Vec<_> =
            expected.map(|&Sent { at, start, end, .. }| Sending { at, start, end }).collect();
        sendings.sort_by_key(|sending| sending.at);
        (self.sendings, self.listed) = (sendings.into(), !self.is_empty());
    }

    /// RFC 8985, 6.2, step 5: marks what is lost. Returns how long until something else would be.
    ///
    /// Sendings are looked at in the order of time, so the first that is not overdue ends it.
    pub(in crate::tcp) fn detect(
        &mut self,
        now: Timestamp,
        shortest: Span,
        smoothed: Span,
        in_recovery: bool,
    ) -> Option<Span> {
        let (at, end) = self.latest;
        if self.highest.is_none() || (!self.listed && self.sent.front().is_none_or(|sent| sent.at > at)) {
            return None;
        }
        self.list();
        let window = self.window(shortest, smoothed, in_recovery);
        while let Some(sending) = self.sendings.front().copied() {
            let same = sending.at == at;
            if sending.at > at || (same && !sending.start.before(end)) {
                return None;
            }
            // Of a super-segment, what comes behind the part that has arrived may be on its way.
            let earlier = Sending { end: if same { sending.end.min(end) } else { sending.end }, ..sending };
            let due = sending.at + self.rtt + window;
            if due > now && self.awaits(earlier) {
                // All that were sent before the latest that has arrived are overdue by then.
                return Some((at + self.rtt + window).span(now).max(due.span(now)));
            }
            self.lose(earlier);
            if sending.end.after(earlier.end) {
                self.sendings[0].start = earlier.end;
                return None;
            }
            pop(&mut self.sendings);
        }
        None
    }

    /// Whether something of a sending is still out, and was not sent again.
    fn awaits(&self, sending: Sending) -> bool {
        let waits = |sent: &Sent| sent.fate == Fate::InFlight && sent.at == sending.at;
        let from = self.index(sending.start);
        self.sent.iter().skip(from).take_while(|sent| sent.start.before(sending.end)).any(waits)
    }

    /// What of a sending is still out, and was not sent again, is lost.
    pub(super) fn lose(&mut self, sending: Sending) {
        let from = self.index(sending.start);
        let range = self.sent.iter_mut().skip(from).take_while(|sent| sent.start.before(sending.end));
        for sent in range.filter(|sent| sent.fate == Fate::InFlight && sent.at == sending.at) {
            sent.fate = Fate::Lost;
            self.in_flight -= sent.len();
            self.lost_from = if self.lost == 0 { sent.start } else { self.lost_from.min(sent.start) };
            self.lost += sent.len();
        }
    }

    /// RACK_update_reo_wnd: how much later than others a segment may arrive.
    pub(super) fn window(&self, shortest: Span, smoothed: Span, in_recovery: bool) -> Span {
        if self.reordering == 0 && (in_recovery || (self.sacked > 0 && self.segments_sacked >= DUPLICATES)) {
            return Span::ZERO;
        }
        let most = if smoothed == Span::ZERO { shortest } else { smoothed };
        Span(shortest.0 / 4).times(u64::from(self.stretch) + 1).min(most)
    }

    /// The first segment is lost: three duplicate acknowledgments, or a partial one, of a peer without SACK say so.
    pub(in crate::tcp) fn lose_first(&mut self, mss: u32) {
        let Some(first) = self.sent.front().copied() else { return };
        self.split(first.start + first.len().min(mss));
        let Some(first) = self.sent.front().copied() else { return };
        self.lose(Sending { at: first.at, start: first.start, end: first.end });
    }

    /// The retransmission timer has run out (RFC 8985, 6.3): the first segment is lost, and all that are older than RACK's
    /// round trip and reordering window; without RACK, all. What was said by blocks and not by numbers may have been taken back (RFC 2018, section 8).
    pub(in crate::tcp) fn timed_out(
        &mut self,
        now: Timestamp,
        mss: u32,
        rack: bool,
        (shortest, smoothed): (Span, Span),
    ) {
        if let Some(first) = self.sent.front().copied() {
            self.split(first.start + first.len().min(mss));
        }
        let reneged = self.sent.front().is_some_and(|first| first.fate == Fate::Sacked);
        let age = if rack { self.rtt + self.window(shortest, smoothed, false) } else { Span::ZERO };
        for i in 0..self.sent.len() {
            let sent = &mut self.sent[i];
            if reneged && sent.fate == Fate::Sacked {
                (sent.fate, sent.skip) = (Fate::InFlight, sent.start);
                self.sacked -= sent.len();
                self.in_flight += sent.len();
            }
            if sent.fate == Fate::InFlight && (i == 0 || now.span(sent.at) >= age) {
                let Sent { at, start, end, .. } = *sent;
                self.lose(Sending { at, start, end });
            }
        }
    }

    /// Segments longer than `limit` will never arrive: the path has become narrower.
    pub(in crate::tcp) fn lose_longer(&mut self, limit: u32) {
        for i in 0..self.sent.len() {
            let Sent { at, start, end, .. } = self.sent[i];
            if end - start > limit {
                self.lose(Sending { at, start, end });
            }
        }
    }
}
