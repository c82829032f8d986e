//! The window of RFC 5681: one segment more each round trip, half of it after a loss.

use super::{Algorithm, Arrival, Window};

/// Bytes acknowledged since the window last grew.
#[derive(Clone, Debug, Default)]
pub(crate) struct NewReno {
    acked: u32,
}

impl Algorithm for NewReno {
    fn acknowledged(&mut self, window: &mut Window, arrival: &Arrival) {
        self.acked += window.slow_start(arrival.bytes);
        // RFC 5681, 3.1: a segment for each window's worth of bytes (byte counting, RFC 3465).
        while self.acked >= window.congestion {
            self.acked -= window.congestion;
            window.congestion = window.congestion.saturating_add(window.mss());
        }
    }

    fn reduced(&mut self, _window: &Window, flight: u32) -> u32 {
        self.acked = 0;
        flight / 2
    }

    fn restarted(&mut self) {
        self.acked = 0;
    }

    fn timed_out(&mut self) {
        self.acked = 0;
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::Timestamp;
    use crate::tcp::seq::Seq;

    #[test]
    fn a_segment_more_each_round_trip_and_half_after_a_loss() {
        let mut newreno = NewReno::default();
        let mut window = Window { congestion: 10_000, threshold: 10_000, mss: 1000, unneeded: false };
        for round in 1..=5 {
            let mut left = window.congestion;
            while left > 0 {
                let arrival = Arrival {
                    bytes: left.min(2000),
                    sample: None,
                    una: Seq::default(),
                    nxt: Seq::default(),
                    smoothed: Duration::ZERO,
                    now: Timestamp::ZERO,
                };
                newreno.acknowledged(&mut window, &arrival);
                left = left.saturating_sub(2000);
            }
            assert_eq!(window.congestion, 10_000 + 1000 * round);
        }
        assert_eq!(newreno.reduced(&window, 15_000), 7500);
    }
}
