//! How fast what was sent arrives: the rate of the last round trip, as Linux's `tcpi_delivery_rate` tells it.

use super::connection::Connection;
use super::facts::REPAIRS;
use super::seq::Seq;
use crate::Timestamp;
use crate::time::Span;

const NANOS: u128 = 1_000_000_000;

/// The rate of one connection. It is measured over round trips in which something was out all the time: a segment that goes alone
/// says how long the way is, and nothing of how much it takes.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct DeliveryRate {
    /// Bytes per second.
    pub(super) rate: u64,
    /// The program had no more to send for a part of the round trip: the way may take more.
    pub(super) is_limited: bool,
    /// The program had no more when the round trip began that is measured now.
    began_limited: bool,
    /// When that was.
    since: Timestamp,
    /// Bytes that had arrived by then.
    arrived: u64,
}

impl Connection {
    /// After new data was acknowledged, before which `una` was the oldest, and something else is out: the round trip that is measured
    /// may be over, and then another one begins. `sample`: how long ago that was sent which was acknowledged.
    #[inline]
    pub(super) fn note_rate(&mut self, una: Seq, sample: Option<Span>, now: Timestamp) {
        // An end that is not of what is out is of long ago.
        if !self.una.before(self.rate_end) || self.rate_end.after(self.nxt) {
            self.end_rate(una, now);
            self.begin_rate(una, sample, now);
        }
    }

    /// The same, when nothing else is out.
    #[inline]
    pub(super) fn note_last_rate(&mut self, una: Seq, now: Timestamp) {
        if una.before(self.rate_end) {
            self.end_rate(una, now);
        }
        self.rate_end = self.una;
    }

    /// Measures from now on.
    #[inline(never)]
    fn begin_rate(&mut self, una: Seq, sample: Option<Span>, now: Timestamp) {
        let follows = una.before(self.rate_end) && !self.rate_end.after(self.nxt);
        let (mut since, mut arrived) = (now, self.arrived());
        // With nothing out before, it has begun with what went out first.
        if !follows && let Some(sample) = sample {
            (since, arrived) = (now - sample.duration(), arrived.saturating_sub((self.una - una).into()));
        }
        let DeliveryRate { rate, is_limited, .. } = self.delivery;
        let began_limited = self.has_no_more();
        self.rate_end = self.nxt;
        self.delivery = DeliveryRate { rate, is_limited, began_limited, since, arrived };
    }

    /// Measures the rate if what was acknowledged is the end of the round trip. What has ended with nothing out behind it was not
    /// looked at any more: there was a pause.
    // Apart: a message needs the registers.
    #[inline(never)]
    fn end_rate(&mut self, una: Seq, now: Timestamp) {
        let ends = una.before(self.rate_end) && !self.una.before(self.rate_end);
        let DeliveryRate { rate, since, arrived, began_limited, .. } = self.delivery;
        let time = now.span(since);
        // As Linux: acknowledgments that were held up on their way come faster than anything can arrive.
        if !ends || since == Timestamp::ZERO || time == Span::ZERO || time < self.rtt.shortest() {
            return;
        }
        let bytes = u128::from(self.arrived().saturating_sub(arrived));
        let new = u64::try_from(bytes * NANOS / u128::from(time.0)).unwrap_or(u64::MAX);
        let is_limited = began_limited || self.has_no_more();
        // As Linux: a program that sends less than it could makes the way no slower.
        if !is_limited || new >= rate {
            (self.delivery.rate, self.delivery.is_limited) = (new, is_limited);
        }
    }

    /// Bytes that have arrived since the beginning.
    fn arrived(&self) -> u64 {
        self.tally.bytes_acked + u64::from(self.board.sacked())
    }

    /// Whether more could be out than the program has sent.
    fn has_no_more(&self) -> bool {
        self.unsent() == 0 && self.pipe() < self.window.congestion && !self.facts.any(REPAIRS)
    }
}
