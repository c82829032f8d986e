//! When each packet of a file is due.
//!
//! Due times are exact and do not drift. A sender that was kept from sending catches up at once, but for [`MAX_LAG_NS`]
//! at most: what lies further back is not given up, as all of the file is to be sent. The rest of the replay is put off
//! instead, and by how much is counted.

use bywash_sys::clock::SECOND;
use bywash_wire::line::{l1_bits, l2_bits};

use super::trace::Entry;
use crate::rate::MAX_LAG_NS;

/// Nanoseconds are counted in units of 2⁻³².
const FRACTION: u32 = 32;

/// How fast a file is replayed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Speed {
    /// As its times say, so many times as fast.
    Original(f64),
    /// So many packets per second.
    Packets(f64),
    /// So many bits of frames per second, with FCS.
    L2(f64),
    /// So many bits of the link per second: with FCS, preamble and gap.
    L1(f64),
    /// As fast as it goes.
    Flat,
}

/// The due times of a replay.
#[derive(Clone, Debug)]
pub(super) struct Pace {
    speed: Speed,
    /// What is added to all due times, in nanoseconds and fractions: the start, and what was put off.
    base: u128,
    /// By which times in the file are multiplied, or nanoseconds for a packet or a bit, in fractions.
    factor: u128,
    /// Since the start, in fractions of a nanosecond, at a constant rate: when the next packet is due.
    next: u128,
    put_off: u64,
}

/// 2⁻³² of a nanosecond.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "not below 0, and a float beyond the largest number becomes that"
)]
fn fractions(nanoseconds: f64) -> u128 {
    (nanoseconds * 2_f64.powi(FRACTION.cast_signed())) as u128
}

impl Pace {
    /// From `start` on, in nanoseconds of `CLOCK_MONOTONIC`.
    pub(super) fn new(speed: Speed, start: u64) -> Self {
        #[expect(clippy::cast_precision_loss, reason = "exact: 10^9")]
        let second = SECOND as f64;
        let factor = match speed {
            // Whatever was asked for, a time of 64 bits times this has 128.
            Speed::Original(factor) => fractions(1.0 / factor).min(1 << 62),
            Speed::Packets(rate) | Speed::L2(rate) | Speed::L1(rate) => fractions(second / rate),
            Speed::Flat => 0,
        };
        let base = u128::from(start) << FRACTION;
        Self { speed, base, factor, next: 0, put_off: 0 }
    }

    /// When the next packet is due, which came `time` nanoseconds after the first one of the file.
    #[inline]
    pub(super) fn due(&self, time: u64) -> u64 {
        let since = match self.speed {
            Speed::Original(_) => u128::from(time) * self.factor,
            _ => self.next,
        };
        u64::try_from((self.base + since) >> FRACTION).unwrap_or(u64::MAX)
    }

    /// Goes on to the packet after one of `len` bytes.
    #[inline]
    pub(super) fn advance(&mut self, len: u32) {
        match self.speed {
            Speed::Original(_) | Speed::Flat => {}
            Speed::Packets(_) => self.next += self.factor,
            #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "some thousand bits")]
            Speed::L2(_) => self.next += self.factor * l2_bits(len) as u128,
            #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "some thousand bits")]
            Speed::L1(_) => self.next += self.factor * l1_bits(len) as u128,
        }
    }

    /// How many of the next packets are due now.
    #[inline]
    pub(super) fn due_by(&self, now: u64, entries: &[Entry]) -> usize {
        let mut ahead = self.clone();
        let is_due = |entry: &&Entry| {
            let due = ahead.due(entry.time);
            ahead.advance(entry.len);
            due <= now
        };
        entries.iter().take_while(is_due).count()
    }

    /// Puts off what is due from `due` on when that is too long before `now`.
    #[inline]
    pub(super) fn catch_up(&mut self, due: u64, now: u64) {
        let by = now.saturating_sub(due).saturating_sub(MAX_LAG_NS);
        self.put_off = self.put_off.saturating_add(by);
        self.base += u128::from(by) << FRACTION;
    }

    /// Begins the file again, whose last packet came `time` nanoseconds after its first: as long after it as packets are
    /// apart on average.
    pub(super) fn begin_again(&mut self, time: u64, packets: u64) {
        if let Speed::Original(_) = self.speed {
            let gap = time.checked_div(packets.saturating_sub(1)).unwrap_or(0);
            self.base += u128::from(time.saturating_add(gap)) * self.factor;
        }
    }

    /// Nanoseconds by which the replay is later than it should be, because the port took no more.
    pub(super) fn put_off(&self) -> u64 {
        self.put_off
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_in_the_file_are_kept_or_scaled() {
        let pace = Pace::new(Speed::Original(1.0), 1000);
        assert_eq!([0, 1, 86_400 * SECOND].map(|time| pace.due(time)), [1000, 1001, 86_400 * SECOND + 1000]);
        let pace = Pace::new(Speed::Original(4.0), 1000);
        assert_eq!([0, 8, 4 * SECOND].map(|time| pace.due(time)), [1000, 1002, SECOND + 1000]);
        assert_eq!(Pace::new(Speed::Original(1e-9), 0).due(u64::MAX), u64::MAX);
    }

    #[test]
    fn rates_do_not_drift() {
        let mut pace = Pace::new(Speed::Packets(3.0), 0);
        for _ in 0..3000 {
            pace.advance(60);
        }
        assert!(pace.due(0).abs_diff(1000 * SECOND) <= 1);
        // 1000 bits of a link: 60 bytes, FCS, preamble and gap are 84 bytes.
        let mut pace = Pace::new(Speed::L1(84.0 * 8.0 * 1000.0), 0);
        (0..1000).for_each(|_| pace.advance(60));
        assert!(pace.due(0).abs_diff(SECOND) <= 1, "{}", pace.due(0));
        let mut pace = Pace::new(Speed::L2(64.0 * 8.0 * 1000.0), 0);
        (0..1000).for_each(|_| pace.advance(60));
        assert!(pace.due(0).abs_diff(SECOND) <= 1);
    }

    #[test]
    fn slow_rates_are_as_slow_as_asked() {
        let shortest = 64.0 * 8.0;
        for (speed, seconds) in [
            (Speed::Packets(0.5), 2),
            (Speed::Packets(0.001), 1000),
            (Speed::L2(shortest * 0.001), 1000),
            (Speed::L1((shortest + 160.0) * 0.001), 1000),
        ] {
            let mut pace = Pace::new(speed, 7 * SECOND);
            (0..1000).for_each(|_| pace.advance(60));
            let due = pace.due(0).abs_diff((7 + 1000 * seconds) * SECOND);
            assert!(due <= 1, "{speed:?}: {due} ns beside");
        }
    }

    #[test]
    fn after_a_stall_the_rest_is_put_off() {
        let mut pace = Pace::new(Speed::Original(1.0), 0);
        let due = pace.due(SECOND);
        pace.catch_up(due, SECOND + MAX_LAG_NS);
        assert_eq!((pace.put_off(), pace.due(SECOND)), (0, SECOND));
        pace.catch_up(due, SECOND + MAX_LAG_NS + 7);
        assert_eq!((pace.put_off(), pace.due(2 * SECOND)), (7, 2 * SECOND + 7));
    }

    #[test]
    fn as_many_are_due_as_have_come_to_their_time() {
        let entries = [0, 10, 20, 21, 40].map(|time| Entry { time, first: 0, len: 60 });
        let due = |pace: &Pace, now| [pace.due_by(now, &entries), pace.due_by(now, &entries[3..])];
        let original = Pace::new(Speed::Original(1.0), 1000);
        assert_eq!(
            [999, 1000, 1020, 1039, 1040].map(|now| due(&original, now)),
            [[0, 0], [1, 0], [3, 0], [4, 1], [5, 2]]
        );
        let mut rate = Pace::new(Speed::Packets(1e8), 1000);
        assert_eq!([999, 1000, 1019, 2000].map(|now| due(&rate, now)), [[0, 0], [1, 1], [2, 2], [5, 2]]);
        rate.advance(60);
        assert_eq!(due(&rate, 1019), [1, 1]);
    }

    #[test]
    fn the_next_turn_begins_an_average_gap_after_the_last_packet() {
        let mut pace = Pace::new(Speed::Original(2.0), 0);
        pace.begin_again(900, 10);
        assert_eq!((pace.due(0), pace.due(900)), (500, 950));
        pace.begin_again(0, 1);
        assert_eq!(pace.due(0), 500);
    }
}
