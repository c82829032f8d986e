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
/// Bits of what is left away of nanoseconds where four bytes are to do, see [`units`].
const UNIT: u32 = 6;
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

/// A time in units of 2^6 ns, rounded down, of which a millisecond has a whole number: it takes four bytes. Longer ones than these say,
/// 274 s, are as long.
#[inline]
#[expect(clippy::cast_possible_truncation, reason = "it is at most what fits")]
const fn units(time: Span) -> u32 {
    let units = time.0 >> UNIT;
    if units < u32::MAX as u64 { units as u32 } else { u32::MAX }
}

/// So many units.
#[inline]
const fn span(units: u32) -> Span {
    Span((units as u64) << UNIT)
}

/// An eighth of the way from one to another, to the nearest unit.
#[inline]
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "it lies between them")]
fn towards(from: u32, to: u32) -> u32 {
    let (from, to) = (i64::from(from), i64::from(to));
    (from + ((to - from + 4) >> 3)) as u32
}

/// Smoothed round-trip time and what follows from it: what each segment needs. Numbers are [`units`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rtt {
    /// Zero before anything was measured.
    smoothed: u32,
    /// Before anything was measured, the whole timeout, if it is not the initial one.
    variation: u32,
    /// The shortest one since it was last set, which is not long ago; zero, too, before anything was measured.
    shortest: u32,
    /// The timeout, kept because it is asked for with every segment.
    timeout: u32,
    /// How often the timeout has been doubled since the last measurement (5.5).
    backoff: u8,
    /// A tail was probed since the last measurement.
    probed: bool,
}

/// What measurements of round trips are compared with. Only a measurement needs it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RttRound {
    /// What ends this round trip when it is acknowledged.
    end: Seq,
    /// How far measurements were from the smoothed one at most in it, in [`units`].
    farthest: u32,
    /// When the shortest one was, see [`coarse`].
    shortest_at: u32,
}

impl Default for Rtt {
    fn default() -> Self {
        let mut new = Self { smoothed: 0, variation: 0, shortest: 0, timeout: 0, backoff: 0, probed: false };
        new.update();
        new
    }
}

impl Rtt {
    /// Takes a measurement of a segment that was sent once (Karn, section 3), when all before `una` was acknowledged and `nxt` was
    /// next.
    ///
    /// RFC 6298's weights are for one measurement each round trip; with many the variation would be forgotten within a part of one
    /// (RFC 7323, 4.2). So, as with Linux, it grows at once, and shrinks once each `round` trip, towards what that had at most.
    #[inline]
    pub(crate) fn sample(&mut self, rtt: Span, now: Timestamp, (una, nxt): (Seq, Seq), round: &mut RttRound) {
        let rtt = units(rtt);
        if rtt <= self.shortest || self.smoothed == 0 || round.is_shortest_old(now) {
            (self.shortest, round.shortest_at) = (rtt, coarse(now));
        }
        // Where the clock stands still, packets take no time at all.
        let lasting = rtt.max(1);
        if self.smoothed == 0 {
            // (2.2)
            (self.smoothed, self.variation) = (lasting, lasting / 2);
            (round.farthest, round.end) = (0, nxt);
        } else {
            // (2.3): RTTVAR = 3/4 RTTVAR + 1/4 |SRTT - R'|, then SRTT = 7/8 SRTT + 1/8 R', rounded to the nearest unit
            let far = self.smoothed.abs_diff(lasting);
            if far > self.variation {
                self.variation += (far - self.variation) / 4;
            }
            round.farthest = round.farthest.max(far);
            if !una.before(round.end) {
                self.variation -= self.variation.saturating_sub(round.farthest) / 4;
                (round.farthest, round.end) = (0, nxt);
            }
            self.smoothed = towards(self.smoothed, lasting);
        }
        (self.backoff, self.probed) = (0, false);
        self.update();
    }

    /// Data begins: if nothing was measured yet, a SYN went out more than once, and the path may be a slow one (5.7).
    pub(crate) fn begin(&mut self) {
        if self.smoothed == 0 {
            (self.variation, self.backoff) = (units(LATER_RTO), 0);
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

    pub(crate) fn is_measured(&self) -> bool {
        self.smoothed > 0
    }

    /// The smoothed time; zero before anything was measured.
    #[inline]
    pub(crate) fn smoothed(&self) -> Span {
        span(self.smoothed)
    }

    pub(crate) fn variation(&self) -> Span {
        span(self.variation)
    }

    /// The shortest one of late; zero before anything was measured.
    #[inline]
    pub(crate) fn shortest(&self) -> Span {
        span(self.shortest)
    }

    /// The timeout, doubled as often as it has run out.
    #[inline]
    pub(crate) fn timeout(&self) -> Span {
        span(self.timeout)
    }

    #[inline]
    #[expect(clippy::cast_possible_truncation, reason = "it is at most what fits")]
    fn update(&mut self) {
        let base = if self.smoothed == 0 {
            u64::from(if self.variation == 0 { units(INITIAL_RTO) } else { self.variation })
        } else {
            u64::from(self.smoothed) + (4 * u64::from(self.variation)).max(units(MIN_RTO).into())
        };
        let (doubled, most) = (base << self.backoff.min(10), units(MAX_RTO));
        self.timeout = if doubled < most.into() { doubled as u32 } else { most };
    }
}

impl RttRound {
    /// Whether the shortest one was too long ago to say something of the path: that may have become another.
    #[inline]
    fn is_shortest_old(&self, now: Timestamp) -> bool {
        coarse(now).wrapping_sub(self.shortest_at) >= SHORTEST_AGE
    }
}

/// The round trip of what a peer sends, by which its window grows: what it is sent may be acknowledgments alone, and measures
/// nothing.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct HeardRtt {
    /// In [`units`]; zero before anything was measured.
    smoothed: u32,
    /// When the measurement under way began, where clocks are not echoed.
    since: Timestamp,
    /// The echo that was measured last, or the number that ends the measurement.
    mark: Seq,
}

impl HeardRtt {
    pub(crate) fn rtt(&self) -> Span {
        span(self.smoothed)
    }

    /// The round trip, if it is longer than another measurement, beyond what an echo is rounded by; else zero.
    #[inline]
    pub(crate) fn beyond(&self, measured: Span) -> Span {
        if self.rtt() > measured + TICK { self.rtt() } else { Span::ZERO }
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
            let sample = units(TICK.times(age.max(1).into()));
            self.smoothed = if self.smoothed == 0 { sample } else { towards(self.smoothed, sample) };
        }
    }

    /// A full segment comes where `next` was expected, and the peer may send up to `edge`: a window takes a round trip, or longer.
    #[inline]
    pub(crate) fn windowed(&mut self, next: Seq, edge: Seq, now: Timestamp) {
        if next.before(self.mark) && self.since != Timestamp::ZERO {
            return;
        }
        if self.since != Timestamp::ZERO {
            let sample = units(now.span(self.since)).max(1);
            self.smoothed = if self.smoothed == 0 { sample } else { self.smoothed.min(sample) };
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

    /// An estimate, and what it is made with.
    #[derive(Default)]
    struct Both(Rtt, RttRound);

    impl Both {
        fn sample(&mut self, rtt: Span, now: Timestamp, numbers: (Seq, Seq)) {
            self.0.sample(rtt, now, numbers, &mut self.1);
        }
    }

    impl std::ops::Deref for Both {
        type Target = Rtt;

        fn deref(&self) -> &Rtt {
            &self.0
        }
    }

    /// One measurement each round trip.
    const EACH: (Seq, Seq) = (Seq(1), Seq(1));

    #[test]
    fn the_timeout_follows_the_formulae() {
        let mut rtt = Both::default();
        assert_eq!(rtt.timeout(), ms(1000));
        rtt.sample(ms(100), at(0), EACH);
        assert_eq!(rtt.timeout(), ms(300), "R + 4 R/2");
        rtt.sample(ms(100), at(0), EACH);
        assert_eq!(rtt.timeout(), ms(300), "the variation shrinks by a quarter, but G stays");
        rtt.0.back_off();
        rtt.0.back_off();
        assert_eq!(rtt.timeout(), ms(1200));
        (0..60).for_each(|_| rtt.0.back_off());
        assert_eq!(rtt.timeout(), ms(120_000));
        rtt.sample(ms(1), at(0), EACH);
        assert_eq!(rtt.backoff, 0, "a measurement ends the doubling");
        let mut fast = Both::default();
        let short = Span::of(Duration::from_micros(16));
        fast.sample(short, at(0), EACH);
        assert_eq!(fast.timeout(), MIN_RTO + short);
        assert_eq!(fast.shortest(), short);
    }

    #[test]
    fn where_the_clock_stands_still_nothing_is_the_shortest() {
        let mut rtt = Both::default();
        for took in [0, 63, 0] {
            rtt.sample(Span(took), at(0), EACH);
            assert_eq!(rtt.shortest(), Span::ZERO);
            assert_ne!(rtt.smoothed(), Span::ZERO, "something was measured");
        }
    }

    #[test]
    fn many_measurements_of_a_round_trip_do_not_make_its_variation_forgotten() {
        let mut rtt = Both::default();
        rtt.sample(ms(512), at(0), EACH);
        assert_eq!(rtt.variation(), ms(256));
        let sample = |rtt: &mut Both, una, nxt| rtt.sample(ms(512), at(0), (Seq(una), Seq(nxt)));
        // The round trip of the first measurement, and one of a hundred segments.
        sample(&mut rtt, 1, 101);
        assert_eq!(rtt.variation(), ms(192), "(2.3)");
        (2..101).for_each(|una| sample(&mut rtt, una, una + 100));
        assert_eq!(rtt.variation(), ms(192));
        sample(&mut rtt, 101, 201);
        assert_eq!(rtt.variation(), ms(144), "once each");
        // What differs counts at once, and until its round trip is over.
        rtt.sample(ms(1024), at(0), (Seq(102), Seq(202)));
        let grown = rtt.variation();
        assert_eq!(grown, ms(144 + (512 - 144) / 4));
        (103..201).for_each(|una| rtt.sample(rtt.smoothed(), at(0), (Seq(una), Seq(una + 100))));
        assert_eq!(rtt.variation(), grown);
        rtt.sample(rtt.smoothed(), at(0), (Seq(201), Seq(301)));
        assert_eq!(rtt.variation(), grown, "it has seen more");
        rtt.sample(rtt.smoothed(), at(0), (Seq(301), Seq(401)));
        assert_eq!(rtt.variation(), Span(grown.0 / 4 * 3));
    }

    #[test]
    fn a_path_that_has_become_longer_is_noticed_in_five_minutes() {
        let mut rtt = Both::default();
        rtt.sample(ms(10), at(10), EACH);
        rtt.sample(ms(50), at(308), EACH);
        assert_eq!(rtt.shortest(), ms(10));
        rtt.sample(ms(50), at(312), EACH);
        assert_eq!(rtt.shortest(), ms(50));
        rtt.sample(ms(40), at(313), EACH);
        assert_eq!(rtt.shortest(), ms(40));
        rtt.sample(ms(40), at(500), EACH);
        rtt.sample(ms(60), at(798), EACH);
        assert_eq!(rtt.shortest(), ms(40), "it was as short lately");
    }
}
