//! Round-trip times and the retransmission timeout made of them (RFC 6298).

use std::time::Duration;

/// RFC 6298 (2.4) says one second; Linux's 200 ms is what peers are used to, and what a delayed ACK needs.
pub(crate) const MIN_RTO: Duration = Duration::from_millis(200);
/// RFC 6298 (2.5): at least 60 s.
const MAX_RTO: Duration = Duration::from_secs(120);
/// RFC 6298 (2.1): before anything was measured.
const INITIAL_RTO: Duration = Duration::from_secs(1);

/// Smoothed round-trip time and what follows from it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Rtt {
    smoothed: Option<Duration>,
    variation: Duration,
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
        match self.smoothed {
            // (2.2)
            None => (self.smoothed, self.variation) = (Some(rtt), rtt / 2),
            // (2.3): RTTVAR = 3/4 RTTVAR + 1/4 |SRTT - R'|, then SRTT = 7/8 SRTT + 1/8 R'
            Some(smoothed) => {
                self.variation = self.variation * 3 / 4 + smoothed.abs_diff(rtt) / 4;
                self.smoothed = Some(smoothed * 7 / 8 + rtt / 8);
            }
        }
        self.shortest = Some(self.shortest.map_or(rtt, |shortest| shortest.min(rtt)));
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

    pub(crate) fn smoothed(&self) -> Option<Duration> {
        self.smoothed
    }

    pub(crate) fn variation(&self) -> Duration {
        self.variation
    }

    /// The timeout, doubled as often as it has run out.
    #[inline]
    pub(crate) fn timeout(&self) -> Duration {
        if self.timeout.is_zero() { INITIAL_RTO } else { self.timeout }
    }

    fn update(&mut self) {
        let base = self.smoothed.map_or(INITIAL_RTO, |smoothed| (smoothed + self.variation * 4).max(MIN_RTO));
        self.timeout = (base * (1 << self.backoff.min(10))).min(MAX_RTO);
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
        assert_eq!(rtt.timeout(), ms(250), "the variation shrinks by a quarter");
        rtt.back_off();
        rtt.back_off();
        assert_eq!(rtt.timeout(), ms(1000));
        (0..60).for_each(|_| rtt.back_off());
        assert_eq!(rtt.timeout(), ms(120_000));
        rtt.sample(ms(1));
        assert_eq!(rtt.backoff, 0, "a measurement ends the doubling");
        let mut fast = Rtt::default();
        fast.sample(Duration::from_micros(20));
        assert_eq!(fast.timeout(), MIN_RTO);
        assert_eq!(fast.shortest, Some(Duration::from_micros(20)));
    }
}
