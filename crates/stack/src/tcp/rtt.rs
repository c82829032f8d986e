//! Round-trip times and the retransmission timeout made of them (RFC 6298).

use std::time::Duration;

use super::seq::Seq;
use crate::Timestamp;
use crate::time::Span;

/// What is added to the round trip at least, G of RFC 6298 (2.3): 200 ms, as Linux has it, are what a delayed
/// acknowledgment may take. (2.4) would have the whole timeout be one second at least.
const MIN_RTO: Span = Span::of(Duration::from_millis(200));
/// RFC 6298 (2.5): at least 60 s.
const MAX_RTO: Span = Span::of(Duration::from_secs(120));
/// RFC 6298 (2.1): before anything was measured.
const INITIAL_RTO: Span = Span::of(Duration::from_secs(1));
/// RFC 6298 (5.7): when the handshake has measured nothing, because a SYN was sent again.
const LATER_RTO: Span = Span::of(Duration::from_secs(3));
/// What our clock, as peers echo it, counts.
const TICK: Span = Span::of(Duration::from_millis(1));
/// How long the shortest one counts, in the units of [`coarse`]: five minutes, as with Linux (RFC 8985, 6.2, step 1, wants some
/// window).
const SHORTEST_AGE: u32 = 280;

/// A time in units of 2^30 ns, little more than a second: it takes four bytes, and costs no division.
#[expect(clippy::cast_possible_truncation, reason = "the clock wraps, after 146 years")]
const fn coarse(now: Timestamp) -> u32 {
    (now.as_nanos() >> 30) as u32
}

/// Smoothed round-trip time and what follows from it. Numbers are nanoseconds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rtt {
    /// Zero before anything was measured.
    smoothed: u64,
    /// Before anything was measured, the whole timeout, if it is not the initial one.
    variation: u64,
    /// The shortest one since it was last set, which is not long ago; zero before anything was measured.
    pub(crate) shortest: Span,
    /// How often the timeout has been doubled since the last measurement (5.5).
    backoff: u8,
    /// A tail was probed since the last measurement.
    probed: bool,
    /// When the shortest one was, see [`coarse`].
    shortest_at: u32,
    /// In this round trip: how far measurements were from the smoothed one at most, in units of 2^10 ns.
    farthest: u32,
    /// What ends this round trip when it is acknowledged.
    round: Seq,
    /// The timeout, kept because it is asked for with every segment.
    timeout: Span,
}

impl Default for Rtt {
    fn default() -> Self {
        Self {
            smoothed: 0,
            variation: 0,
            shortest: Span::ZERO,
            backoff: 0,
            probed: false,
            shortest_at: 0,
            farthest: 0,
            round: Seq::default(),
            timeout: INITIAL_RTO,
        }
    }
}

impl Rtt {
    /// Takes a measurement of a segment that was sent once (Karn, section 3), when all before `una` was acknowledged and `nxt` was
    /// next.
    ///
    /// RFC 6298's weights are for one measurement each round trip; with many the variation would be forgotten within a part of one
    /// (RFC 7323, 4.2). So, as with Linux, it grows at once, and shrinks once each round trip, towards what that had at most.
    #[inline]
    pub(crate) fn sample(&mut self, rtt: Span, now: Timestamp, (una, nxt): (Seq, Seq)) {
        let rtt = rtt.0.max(1);
        if rtt <= self.shortest.0 || self.smoothed == 0 || self.is_shortest_old(now) {
            (self.shortest, self.shortest_at) = (Span(rtt), coarse(now));
        }
        if self.smoothed == 0 {
            // (2.2)
            (self.smoothed, self.variation) = (rtt, rtt / 2);
            (self.farthest, self.round) = (0, nxt);
        } else {
            // (2.3): RTTVAR = 3/4 RTTVAR + 1/4 |SRTT - R'|, then SRTT = 7/8 SRTT + 1/8 R'
            let far = self.smoothed.abs_diff(rtt);
            if far > self.variation {
                self.variation += (far - self.variation) / 4;
            }
            if una.before(self.round) {
                self.farthest = self.farthest.max(u32::try_from(far >> 10).unwrap_or(u32::MAX));
            } else {
                let farthest = far.max(u64::from(self.farthest) << 10);
                self.variation -= self.variation.saturating_sub(farthest) / 4;
                (self.farthest, self.round) = (0, nxt);
            }
            self.smoothed = (self.smoothed - self.smoothed / 8 + rtt / 8).max(1);
        }
        (self.backoff, self.probed) = (0, false);
        self.update();
    }

    /// Whether the shortest one was too long ago to say something of the path: that may have become another.
    #[inline]
    fn is_shortest_old(&self, now: Timestamp) -> bool {
        coarse(now).wrapping_sub(self.shortest_at) >= SHORTEST_AGE
    }

    /// Data begins: if nothing was measured yet, a SYN went out more than once, and the path may be a slow one (5.7).
    pub(crate) fn begin(&mut self) {
        if self.smoothed == 0 {
            (self.variation, self.backoff) = (LATER_RTO.0, 0);
            self.update();
        }
    }

    /// The timeout has run out: the next is twice as long (5.5).
    pub(crate) fn back_off(&mut self) {
        self.backoff = self.backoff.saturating_add(1);
        self.update();
    }

    /// So many times it ran out without any loss: the peer's window was shut.
    pub(crate) fn forgive(&mut self, times: u8) {
        self.backoff = self.backoff.saturating_sub(times);
        self.update();
    }

    /// A tail is probed.
    pub(crate) fn probed(&mut self) {
        self.probed = true;
    }

    /// Whether a tail was probed since the last measurement: another probe would keep the timeout from following a path that has
    /// become longer (RFC 8985, 7.3).
    pub(crate) fn is_probed(&self) -> bool {
        self.probed
    }

    pub(crate) fn backoff(&self) -> u8 {
        self.backoff
    }

    /// The smoothed time; zero before anything was measured.
    #[inline]
    pub(crate) fn smoothed(&self) -> Span {
        Span(self.smoothed)
    }

    pub(crate) fn variation(&self) -> Span {
        Span(self.variation)
    }

    /// The timeout, doubled as often as it has run out.
    #[inline]
    pub(crate) fn timeout(&self) -> Span {
        self.timeout
    }

    #[inline]
    fn update(&mut self) {
        let base = if self.smoothed == 0 {
            if self.variation == 0 { INITIAL_RTO.0 } else { self.variation }
        } else {
            self.smoothed + (self.variation * 4).max(MIN_RTO.0)
        };
        let doubled = base.min(MAX_RTO.0) << self.backoff.min(10);
        self.timeout = Span(doubled.min(MAX_RTO.0));
    }
}

/// The round trip of what a peer sends, by which its window grows: what it is sent may be acknowledgments alone, and measures
/// nothing.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct HeardRtt {
    /// Zero before anything was measured.
    smoothed: Span,
    /// When the measurement under way began, where clocks are not echoed.
    since: Timestamp,
    /// The echo that was measured last, or the number that ends the measurement.
    mark: Seq,
}

impl HeardRtt {
    pub(crate) fn rtt(&self) -> Span {
        self.smoothed
    }

    /// The round trip, if it is longer than another measurement, beyond what an echo is rounded by; else zero.
    #[inline]
    pub(crate) fn beyond(&self, measured: Span) -> Span {
        if self.smoothed > measured + TICK { self.smoothed } else { Span::ZERO }
    }

    /// A full segment echoes our clock of so many milliseconds ago: only the first one with each echo is as young as that.
    #[inline]
    pub(crate) fn echoed(&mut self, echo: u32, millis: impl FnOnce() -> u32) {
        if Seq(echo) == self.mark {
            return;
        }
        self.mark = Seq(echo);
        let age = millis();
        if echo != 0 && age < 1 << 30 {
            let sample = u64::from(age.max(1)) * TICK.0;
            let old = self.smoothed.0;
            self.smoothed = Span(if old == 0 { sample } else { old - old / 8 + sample / 8 });
        }
    }

    /// A full segment comes where `next` was expected, and the peer may send up to `edge`: a window takes a round trip, or longer.
    #[inline]
    pub(crate) fn windowed(&mut self, next: Seq, edge: Seq, now: Timestamp) {
        if next.before(self.mark) && self.since != Timestamp::ZERO {
            return;
        }
        if self.since != Timestamp::ZERO {
            let sample = Span(now.span(self.since).0.max(1));
            self.smoothed = if self.smoothed == Span::ZERO { sample } else { self.smoothed.min(sample) };
        }
        (self.mark, self.since) = (edge, now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Timestamp {
        Timestamp::from_nanos(seconds * 1_000_000_000)
    }

    const fn ms(ms: u64) -> Span {
        Span::of(Duration::from_millis(ms))
    }

    /// One measurement each round trip.
    const EACH: (Seq, Seq) = (Seq(1), Seq(1));

    #[test]
    fn the_timeout_follows_the_formulae() {
        let mut rtt = Rtt::default();
        assert_eq!(rtt.timeout(), ms(1000));
        rtt.sample(ms(100), at(0), EACH);
        assert_eq!(rtt.timeout(), ms(300), "R + 4 R/2");
        rtt.sample(ms(100), at(0), EACH);
        assert_eq!(rtt.timeout(), ms(300), "the variation shrinks by a quarter, but G stays");
        rtt.back_off();
        rtt.back_off();
        assert_eq!(rtt.timeout(), ms(1200));
        (0..60).for_each(|_| rtt.back_off());
        assert_eq!(rtt.timeout(), ms(120_000));
        rtt.sample(ms(1), at(0), EACH);
        assert_eq!(rtt.backoff, 0, "a measurement ends the doubling");
        let mut fast = Rtt::default();
        let short = Span::of(Duration::from_micros(20));
        fast.sample(short, at(0), EACH);
        assert_eq!(fast.timeout(), MIN_RTO + short);
        assert_eq!(fast.shortest, short);
    }

    #[test]
    fn many_measurements_of_a_round_trip_do_not_make_its_variation_forgotten() {
        let mut rtt = Rtt::default();
        rtt.sample(ms(400), at(0), EACH);
        assert_eq!(rtt.variation, ms(200).0);
        let sample = |rtt: &mut Rtt, una, nxt| rtt.sample(ms(400), at(0), (Seq(una), Seq(nxt)));
        // The round trip of the first measurement, and one of a hundred segments.
        sample(&mut rtt, 1, 101);
        assert_eq!(rtt.variation, ms(150).0, "(2.3)");
        (2..101).for_each(|una| sample(&mut rtt, una, una + 100));
        assert_eq!(rtt.variation, ms(150).0);
        sample(&mut rtt, 101, 201);
        assert_eq!(rtt.variation, 112_500_000, "once each");
        // What differs counts at once, and until its round trip is over.
        rtt.sample(ms(800), at(0), (Seq(102), Seq(202)));
        let grown = rtt.variation;
        assert_eq!(grown, 112_500_000 + (ms(400).0 - 112_500_000) / 4);
        (103..201).for_each(|una| rtt.sample(rtt.smoothed(), at(0), (Seq(una), Seq(una + 100))));
        assert_eq!(rtt.variation, grown);
        rtt.sample(rtt.smoothed(), at(0), (Seq(201), Seq(301)));
        assert_eq!(rtt.variation, grown, "it has seen more");
        rtt.sample(rtt.smoothed(), at(0), (Seq(301), Seq(401)));
        assert_eq!(rtt.variation, grown - grown / 4);
    }

    #[test]
    fn a_path_that_has_become_longer_is_noticed_in_five_minutes() {
        let mut rtt = Rtt::default();
        rtt.sample(ms(10), at(10), EACH);
        rtt.sample(ms(50), at(308), EACH);
        assert_eq!(rtt.shortest, ms(10));
        rtt.sample(ms(50), at(312), EACH);
        assert_eq!(rtt.shortest, ms(50));
        rtt.sample(ms(40), at(313), EACH);
        assert_eq!(rtt.shortest, ms(40));
        rtt.sample(ms(40), at(500), EACH);
        rtt.sample(ms(60), at(798), EACH);
        assert_eq!(rtt.shortest, ms(40), "it was as short lately");
    }
}
