//! Round-trip times and the retransmission timeout made of them (RFC 6298).

use std::time::Duration;

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

/// Smoothed round-trip time and what follows from it. Numbers are nanoseconds.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Rtt {
    /// Zero before anything was measured.
    smoothed: u64,
    /// Before anything was measured, the whole timeout, if it is not the initial one.
    variation: u64,
    /// The shortest one seen; zero before anything was measured.
    pub(crate) shortest: Span,
    /// How often the timeout has been doubled since the last measurement (5.5).
    backoff: u8,
    /// The timeout, kept because it is asked for with every segment; zero before anything was measured.
    timeout: Span,
}

impl Rtt {
    /// Takes a measurement of a segment that was sent once (Karn, section 3).
    #[inline]
    pub(crate) fn sample(&mut self, rtt: Span) {
        let rtt = rtt.0.max(1);
        if self.smoothed == 0 || rtt < self.shortest.0 {
            self.shortest = Span(rtt);
        }
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
        if self.timeout == Span::ZERO { INITIAL_RTO } else { self.timeout }
    }

    #[inline]
    fn update(&mut self) {
        let base = if self.smoothed == 0 {
            if self.variation == 0 { INITIAL_RTO.0 } else { self.variation }
        } else {
            self.smoothed.saturating_add(self.variation.saturating_mul(4).max(MIN_RTO.0))
        };
        let doubled = base.saturating_mul(1 << self.backoff.min(10));
        self.timeout = Span(doubled.min(MAX_RTO.0));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(ms: u64) -> Span {
        Span::of(Duration::from_millis(ms))
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
        let short = Span::of(Duration::from_micros(20));
        fast.sample(short);
        assert_eq!(fast.timeout(), MIN_RTO + short);
        assert_eq!(fast.shortest, short);
    }
}
