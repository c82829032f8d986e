//! CUBIC (RFC 9438): the window as a cubic function of the time since the last loss.

use super::hystart::HyStart;
use super::{Algorithm, Arrival, Window};
use crate::Timestamp;

/// RFC 9438, 5.1: segments per second cubed.
const C: f64 = 0.4;
/// RFC 9438, 4.6: what is left of the window after a loss.
const BETA: f64 = 0.7;
/// RFC 9438, 4.3: how fast a Reno with this BETA has to grow to be as fair: 3 (1 - BETA) / (1 + BETA).
const ALPHA: f64 = 3.0 * (1.0 - BETA) / (1.0 + BETA);

/// State between two losses. Windows are counted in segments, as in the RFC.
#[derive(Clone, Debug, Default)]
pub(crate) struct Cubic {
    /// W_max: the window at the last loss, or less (4.7).
    max: f64,
    /// cwnd_prior: the window at the last loss.
    prior: f64,
    /// When growing began.
    epoch: Timestamp,
    /// When it grew last.
    grown: Timestamp,
    /// Seconds until the window is `max` again.
    k: f64,
    /// W_est: what Reno would have. Zero until growing has begun: after a loss or an idle time.
    estimate: f64,
    /// The part of a byte that growth is still due.
    due: f64,
    /// The first slow start (4.10).
    start: HyStart,
}

impl Algorithm for Cubic {
    fn acknowledged(&mut self, window: &mut Window, arrival: &Arrival) {
        if window.threshold == u32::MAX {
            return self.start.acknowledged(window, arrival);
        }
        let (now, rtt) = (arrival.now, arrival.smoothed);
        let acked = window.slow_start(arrival.bytes);
        if acked == 0 {
            return;
        }
        let mss = f64::from(window.mss());
        let current = f64::from(window.congestion) / mss;
        // 4.2 and 5.8: the time that the window was not needed does not count.
        if std::mem::take(&mut window.unneeded) {
            self.epoch = self.epoch + now.since(self.grown);
        }
        self.grown = now;
        if self.estimate == 0.0 {
            // Figure 1 and 2: K = cubic root of (W_max - cwnd) / C.
            self.max = self.max.max(current);
            self.k = ((self.max - current) / C).cbrt();
            (self.epoch, self.estimate) = (now, current);
        }
        let t = (now.since(self.epoch) + rtt).as_secs_f64();
        let cubic = C * (t - self.k).powi(3) + self.max;
        // 4.4 and 4.5: at most half as much again in a round trip, and never less.
        let target = cubic.clamp(current, 1.5 * current);
        let segments = f64::from(acked) / mss;
        // 4.3: W_est; once it has passed the window before the loss it grows as fast as Reno's.
        let alpha = if self.estimate >= self.prior { 1.0 } else { ALPHA };
        self.estimate += alpha * segments / current;
        let more = (target - current) * segments / current;
        let grown = (current + more).max(self.estimate.min(1.5 * current));
        self.due += (grown - current) * mss;
        let whole = self.due.floor();
        self.due -= whole;
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "not negative, and at most half a window"
        )]
        let whole = whole.max(0.0) as u32;
        window.congestion = window.congestion.saturating_add(whole);
    }

    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a part of a u32")]
    fn reduced(&mut self, window: &Window, flight: u32) -> u32 {
        let mss = f64::from(window.mss());
        let current = f64::from(window.congestion) / mss;
        self.prior = current;
        // 4.7, fast convergence: who loses earlier than last time gives way to others.
        self.max = if current < self.max { current * (1.0 + BETA) / 2.0 } else { current };
        self.estimate = 0.0;
        (f64::from(flight) * BETA) as u32
    }

    fn restarted(&mut self) {
        self.estimate = 0.0;
        // Round trips of before say nothing of a queue now.
        self.start = HyStart::default();
    }

    fn timed_out(&mut self) {
        // 4.8: after slow start W_max is the window there, and so K is zero.
        (self.estimate, self.max) = (0.0, 0.0);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::tcp::seq::Seq;

    /// A whole window has arrived.
    fn full(window: &Window, smoothed: Duration, now: Timestamp) -> Arrival {
        let (una, nxt) = (Seq::default(), Seq::default());
        Arrival { bytes: window.congestion, sample: None, una, nxt, smoothed, now }
    }

    /// Grows for `seconds` with a full window each 100 ms.
    fn grow(cubic: &mut Cubic, window: &mut Window, from: f64, seconds: f64) -> f64 {
        let rtt = Duration::from_millis(100);
        let mut at = from;
        while at < from + seconds {
            #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a test's clock")]
            let now = Timestamp::from_nanos((at * 1e9) as u64);
            cubic.acknowledged(window, &full(window, rtt, now));
            at += 0.1;
        }
        f64::from(window.congestion) / 1000.0
    }

    #[test]
    fn it_comes_back_to_the_old_window_after_k_and_then_goes_beyond() {
        let mut cubic = Cubic::default();
        let mut window = Window { congestion: 100_000, threshold: 0, mss: 1000, unneeded: false };
        window.congestion = cubic.reduced(&window, 100_000);
        assert_eq!(window.congestion, 70_000);
        // K = cbrt(30 / 0.4) = 4.2 s
        let near = grow(&mut cubic, &mut window, 0.0, 4.2);
        assert!((95.0..106.0).contains(&near), "{near} segments after K");
        let flat = grow(&mut cubic, &mut window, 4.2, 1.0) - near;
        let steep = grow(&mut cubic, &mut window, 5.2, 3.0) - near;
        assert!(flat < 6.0 && steep > 15.0, "first {flat}, then {steep}");
    }

    #[test]
    fn after_a_timeout_it_grows_from_where_slow_start_ended() {
        let mut cubic = Cubic::default();
        let mut window = Window { congestion: 100_000, threshold: 0, mss: 1000, unneeded: false };
        window.threshold = cubic.reduced(&window, 100_000);
        cubic.timed_out();
        window.congestion = window.threshold;
        grow(&mut cubic, &mut window, 0.0, 0.1);
        assert!(cubic.k == 0.0 && (cubic.max - 70.0).abs() < 1e-9, "K {}, W_max {}", cubic.k, cubic.max);
        // W_cubic(2.1 s) = 70 + 0.4 * 2.1^3 = 73.7, below what Reno has: 70 + 20 * 9/17 = 80.6, less as it grows.
        let grown = grow(&mut cubic, &mut window, 0.1, 1.9);
        assert!((78.0..81.0).contains(&grown), "{grown}");
    }

    #[test]
    fn time_in_which_the_window_was_not_needed_does_not_count() {
        let after = |pause: f64| {
            let mut cubic = Cubic::default();
            let mut window = Window { congestion: 1_000_000, threshold: 0, mss: 1000, unneeded: false };
            window.congestion = cubic.reduced(&window, 1_000_000);
            grow(&mut cubic, &mut window, 0.0, 2.0);
            if pause > 0.0 {
                window.unneeded = true;
            }
            grow(&mut cubic, &mut window, 2.0 + pause, 2.0)
        };
        assert!((after(60.0) - after(0.0)).abs() < 10.0, "{} and {}", after(60.0), after(0.0));
    }

    #[test]
    fn it_is_never_slower_than_reno_and_as_fast_beyond_the_window_before_the_loss() {
        // So short a way that the cubic function is far below Reno for long.
        let mut cubic = Cubic { max: 100.0, ..Cubic::default() };
        let mut window = Window { congestion: 20_000, threshold: 0, mss: 1000, unneeded: false };
        window.congestion = cubic.reduced(&window, 20_000);
        let round = |cubic: &mut Cubic, window: &mut Window, n: u64| {
            let (rtt, now) = (Duration::from_millis(2), Timestamp::from_nanos(n * 2_000_000));
            let before = cubic.estimate;
            cubic.acknowledged(window, &full(window, rtt, now));
            (before, cubic.estimate - before)
        };
        round(&mut cubic, &mut window, 0);
        // 17 segments are W_max after fast convergence: Reno's pace comes only at 20.
        for n in 1..40 {
            let (before, more) = round(&mut cubic, &mut window, n);
            let alpha = if before >= 20.0 { 1.0 } else { ALPHA };
            assert!((more - alpha).abs() < 0.1, "W_est {before} grew by {more}");
        }
        assert!(window.congestion >= 35_000, "{}", window.congestion);
    }

    #[test]
    fn who_loses_early_gives_way() {
        let mut cubic = Cubic::default();
        let window = Window { congestion: 100_000, threshold: 0, mss: 1000, unneeded: false };
        cubic.reduced(&window, 100_000);
        let second = Window { congestion: 80_000, ..window };
        cubic.reduced(&second, 80_000);
        assert!((cubic.max - 68.0).abs() < 1e-9);
    }
}
