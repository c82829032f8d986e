//! HyStart++ (RFC 9406): slow start that slows down when round trips become longer, before a queue is full.
//!
//! It is for the first slow start of a connection alone: later ones know from a loss where to end (RFC 9406, 4.3).

use super::{Arrival, Window};
use crate::tcp::seq::Seq;
use crate::time::Span;

// RFC 9406, 4.3: what it recommends. Times are microseconds.
const MIN_RTT_THRESH: u32 = 4_000;
const MAX_RTT_THRESH: u32 = 16_000;
const MIN_RTT_DIVISOR: u32 = 8;
const N_RTT_SAMPLE: u8 = 8;
const CSS_GROWTH_DIVISOR: u32 = 4;
const CSS_ROUNDS: u8 = 5;

/// No round trip was measured.
const INFINITE: u32 = u32::MAX;

/// Where the first slow start is. A round lasts until what was out at its beginning is acknowledged.
#[derive(Clone, Debug)]
pub(crate) struct HyStart {
    /// windowEnd, once there was an acknowledgment.
    end: Option<Seq>,
    /// lastRoundMinRTT
    last: u32,
    /// currentRoundMinRTT
    current: u32,
    /// cssBaselineMinRtt: the shortest round trip of the round that was too slow. Infinite as long as none was.
    baseline: u32,
    /// rttSampleCount
    samples: u8,
    /// Rounds since then, with that one.
    rounds: u8,
}

impl Default for HyStart {
    fn default() -> Self {
        Self { end: None, last: INFINITE, current: INFINITE, baseline: INFINITE, samples: 0, rounds: 0 }
    }
}

impl HyStart {
    /// Lets the window grow by what has arrived: by a fourth of it once round trips are longer than in the round before. Five
    /// such rounds later slow start is over.
    pub(crate) fn acknowledged(&mut self, window: &mut Window, arrival: &Arrival) {
        let divisor = if self.is_conservative() { CSS_GROWTH_DIVISOR } else { 1 };
        window.congestion = window.congestion.saturating_add(arrival.bytes / divisor);
        if let Some(rtt) = arrival.sample {
            self.measure(rtt);
        }
        // An end that is not of what is out is of long ago: the window was not used meanwhile.
        if self.end.is_some_and(|end| end.after(arrival.nxt)) {
            *self = Self::default();
        }
        if arrival.una.before(*self.end.get_or_insert(arrival.nxt)) {
            return;
        }
        if self.is_conservative() {
            self.rounds += 1;
            if self.rounds == CSS_ROUNDS {
                window.threshold = window.congestion;
            }
        }
        self.end = Some(arrival.nxt);
        (self.last, self.current, self.samples) = (self.current, INFINITE, 0);
    }

    /// In conservative slow start.
    fn is_conservative(&self) -> bool {
        self.baseline != INFINITE
    }

    fn measure(&mut self, rtt: Span) {
        let micros = u32::try_from(rtt.0 / 1000).unwrap_or(INFINITE);
        self.current = self.current.min(micros);
        self.samples = self.samples.saturating_add(1);
        if self.samples < N_RTT_SAMPLE {
            return;
        }
        if self.is_conservative() {
            // It was no queue.
            if self.current < self.baseline {
                (self.baseline, self.rounds) = (INFINITE, 0);
            }
        } else if self.last != INFINITE {
            let threshold = (self.last / MIN_RTT_DIVISOR).clamp(MIN_RTT_THRESH, MAX_RTT_THRESH);
            if self.current >= self.last.saturating_add(threshold) {
                (self.baseline, self.rounds) = (self.current, 0);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::Timestamp;

    const MSS: u32 = 1000;

    /// A connection in its first slow start, with ten segments out.
    struct Start {
        hystart: HyStart,
        window: Window,
        una: Seq,
    }

    impl Start {
        fn new() -> Self {
            Self { hystart: HyStart::default(), window: Window::initial(MSS), una: Seq(u32::MAX - 20_000) }
        }

        /// All that is out is acknowledged, segment by segment, each after its round trip in milliseconds; as much as the window
        /// allows has gone out before each. Returns how many bytes that were, and the window after it.
        fn round(&mut self, rtt: impl Fn(u32) -> u64) -> (u32, u32) {
            let end = self.hystart.end.unwrap_or(self.una + self.window.congestion);
            let whole = end - self.una;
            for n in 0..whole.div_ceil(MSS) {
                let (nxt, bytes) = (self.una + self.window.congestion, MSS.min(end - self.una));
                self.una = self.una + bytes;
                let sample = Some(Span::of(Duration::from_millis(rtt(n))));
                let (smoothed, now) = (Duration::ZERO, Timestamp::ZERO);
                let arrival = Arrival { bytes, sample, una: self.una, nxt, smoothed, now };
                self.hystart.acknowledged(&mut self.window, &arrival);
            }
            (whole, self.window.congestion)
        }
    }

    #[test]
    fn a_queue_that_grows_ends_it_five_rounds_later() {
        let mut start = Start::new();
        assert_eq!(start.round(|_| 40), (10 * MSS, 20 * MSS));
        let (_, before) = start.round(|_| 43);
        assert!(!start.hystart.is_conservative(), "less than four milliseconds more");
        // The eighth says that it is slower: from the next one on a fourth, in this round and four more.
        let (bytes, after) = start.round(|_| 60);
        assert_eq!(after, before + 8 * MSS + (bytes - 8 * MSS) / 4);
        for round in 2..=5 {
            assert_eq!(start.window.threshold, u32::MAX, "round {round}");
            let before = start.window.congestion;
            let (bytes, after) = start.round(|_| 60);
            assert_eq!(after, before + bytes / 4);
        }
        assert_eq!(start.window.threshold, start.window.congestion);
    }

    #[test]
    fn what_was_no_queue_lets_it_go_on() {
        let mut start = Start::new();
        start.round(|_| 40);
        start.round(|_| 60);
        assert!(start.hystart.is_conservative());
        start.round(|_| 45);
        assert!(!start.hystart.is_conservative());
        let before = start.window.congestion;
        let (bytes, after) = start.round(|_| 45);
        assert_eq!(after, before + bytes);
    }

    #[test]
    fn a_few_slow_ones_do_not_count() {
        let mut start = Start::new();
        start.round(|_| 40);
        start.round(|n| if n == 3 { 40 } else { 90 });
        assert!(!start.hystart.is_conservative(), "one was as fast as ever");
    }

    #[test]
    fn the_threshold_is_an_eighth_of_the_round_trip_between_4_and_16_ms() {
        for (last, more) in [(8, 4), (80, 10), (800, 16)] {
            for (rtt, expected) in [(last + more - 1, false), (last + more, true)] {
                let mut start = Start::new();
                start.round(|_| last);
                start.round(|_| rtt);
                assert_eq!(start.hystart.is_conservative(), expected, "{last} and {rtt} ms");
            }
        }
    }

    #[test]
    fn a_round_of_long_ago_does_not_last_until_its_numbers_come_round() {
        let mut start = Start::new();
        start.round(|_| 20);
        start.round(|_| 20);
        // Two thousand million bytes, of which none filled the window, are on the other side of the circle.
        start.una = start.una + (1 << 31);
        let (una, nxt) = (start.una, start.una + start.window.congestion);
        let (smoothed, now) = (Duration::ZERO, Timestamp::ZERO);
        let arrival = Arrival { bytes: MSS, sample: None, una, nxt, smoothed, now };
        start.hystart.acknowledged(&mut start.window, &arrival);
        assert_eq!(start.hystart.end, Some(nxt), "a round begins now");
    }
}
