//! Round-trip times and the retransmission timeout made of them (RFC 6298).

use std::time::Duration;

use crate::time::nanos;

/// What is added to the round trip at least, G of RFC 6298 (2.3): 200 ms, as Linux has it, are what a delayed
/// acknowledgment may take. (2.4) would have the whole timeout be one second at least.
const MIN_RTO: Duration = Duration::from_millis(200);
/// RFC 6298 (2.5): at least 60 s.
const MAX_RTO: Duration = Duration::from_secs(120);
/// RFC 6298 (2.1): before anything was measured.
const INITIAL_RTO: Duration = Duration::from_secs(1);

/// Smoothed round-trip time and what follows from it. Nanoseconds: each acknowledgment measures.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Rtt {
    /// Zero before anything was measured.
    smoothed: u64,
    variation: u64,
    /// The shortest one seen.
    pub(crate) shortest: Option<Duration>,
    /// How often the timeout has been doubled since the last measurement (5.5).
    backoff: u8,
    /// The timeout, kept because it is asked for with every segment; zero before anything was measured.
    timeout: Duration,
}

impl Rtt {
    /// Takes a measurement of a segment that was sent once (Karn, section 3).
    pub(crate) fn sample(&mut self, rtt: Duration) {
        self.shortest = Some(self.shortest.map_or(rtt, |shortest| shortest.min(rtt)));
        let rtt = nanos(rtt).max(1);
        if self.smoothed == 0 {
            // (2.2)
            (self.smoothed, self.variation) = (rtt, rtt / 2);
        } else {
            // (2.3): RTTVAR = 3/4 RTTVAR + 1/4 |SRTT - R'|, then SRTT = 7/8 SRTT + 1/8 R'
            self.variation = self.variation - self.variation / 4 + self.smoothed.abs_diff(rtt) / 4;
            self.smoothed = (self.smoothed - self.smoothed / 8 + rtt / 8).max(1);
        }
        self.backoff = 0;
        self.update();
    }

    /// The timeout has run out: the next is twice as long (5.5).
    pub(crate) fn back_off(&mut self) {
        self.backoff = self.backoff.saturating_add(1);
        self.update();
    }

    pub(crate) fn backoff(&self) -> u8 {
        self.backoff
    }

    #[inline]
    pub(crate) fn smoothed(&self) -> Option<Duration> {
        (self.smoothed > 0).then(|| Duration::from_nanos(self.smoothed))
    }

    /// The smoothed time in nanoseconds; zero before anything was measured.
    #[inline]
    pub(crate) fn smoothed_nanos(&self) -> u64 {
        self.smoothed
    }

    pub(crate) fn variation(&self) -> Duration {
        Duration::from_nanos(self.variation)
    }

    /// The timeout, doubled as often as it has run out.
    #[inline]
    pub(crate) fn timeout(&self) -> Duration {
        if self.timeout.is_zero() { INITIAL_RTO } else { self.timeout }
    }

    #[inline]
    fn update(&mut self) {
        let base = if self.smoothed == 0 {
            nanos(INITIAL_RTO)
        } else {
            self.smoothed.saturating_add(self.variation.saturating_mul(4).max(nanos(MIN_RTO)))
        };
        let doubled = base.saturating_mul(1 << self.backoff.min(10));
        self.timeout = Duration::from_nanos(doubled.min(nanos(MAX_RTO)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn the_timeout_follows_the_formulae() {
        let mut rtt = Rtt::default();
        assert_eq!(rtt.timeout(), ms(1000));
        rtt.sample(ms(100));
        assert_eq!(rtt.timeout(), ms(300), "R + 4 R/2");
        rtt.sample(ms(100));
        assert_eq!(rtt.timeout(), ms(300), "the variation shrinks by a quarter, but G stays");
        rtt.back_off();
        rtt.back_off();
        assert_eq!(rtt.timeout(), ms(1200));
        (0..60).for_each(|_| rtt.back_off());
        assert_eq!(rtt.timeout(), ms(120_000));
        rtt.sample(ms(1));
        assert_eq!(rtt.backoff, 0, "a measurement ends the doubling");
        let mut fast = Rtt::default();
        fast.sample(Duration::from_micros(20));
        assert_eq!(fast.timeout(), MIN_RTO + Duration::from_micros(20));
        assert_eq!(fast.shortest, Some(Duration::from_micros(20)));
    }
}
