//! How much leaves together, as one super-segment or as segments in a row.
//!
//! As in Linux (`tcp_tso_autosize`) it is about what the path takes in a millisecond: on a slow one others get between, and
//! acknowledgments keep coming.

use super::connection::Connection;

/// Bytes of a super-segment at most: with its headers it must fit IP's length, and with its frames a packet.
const MOST: u32 = 60_000;
/// A little less than a millisecond, in nanoseconds.
const TURN: u64 = 1_000_000_000 / 1024;
/// The bits of nanoseconds of a round trip that is a near one, and which one that is half as near has more: 0.5 ms.
const NEAR: u32 = 19;

impl Connection {
    /// Full segments that leave together at most. Of what does, the last is marked with PSH: the peer's program may as well have it.
    pub(super) fn together(&self) -> u32 {
        let mss = self.window.mss();
        // Two of them are in flight before the first is acknowledged.
        let half = self.window.congestion / (2 * mss);
        (self.worth() / mss)
            .max(self.limits.super_segment_min.into())
            .min(half)
            .min(MOST.min(self.send.most_in_parts()) / mss)
            .max(1)
    }

    /// Bytes that are worth leaving together.
    fn worth(&self) -> u32 {
        let far = u32::try_from(self.rtt.shortest().0 >> NEAR).unwrap_or(u32::MAX);
        let near = MOST.checked_shr(far).unwrap_or(0);
        if near == MOST {
            return MOST;
        }
        // What the path takes in a round trip is a window, or in slow start not known yet.
        let window = u64::from(self.window.congestion);
        let slow_start = self.window.congestion < self.window.threshold / 2;
        let expected = if slow_start { 2 * window } else { window + window / 5 };
        let paced = expected * TURN / self.rtt.smoothed().0.max(1);
        u32::try_from(paced).unwrap_or(MOST).saturating_add(near).min(MOST)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::Timestamp;
    use crate::time::Span;

    #[test]
    fn what_leaves_together_fits_ip_s_length_and_is_a_segment_at_least() {
        for (mss, least, expected) in
            [(1460, 90, 41), (1460, 0, 1), (1460, 2, 2), (40_000, 2, 1), (65_495, 2, 1)]
        {
            let mut connection = Connection::default();
            connection.window.set_mss(mss);
            connection.window.congestion = 200 * mss;
            connection.limits.super_segment_min = least;
            // So far away that a millisecond is worth nothing.
            let (rtt, round) = (&mut connection.rtt, &mut connection.rtt_round);
            rtt.sample(Span::of(Duration::from_secs(100)), Timestamp::ZERO, Default::default(), round);
            assert_eq!(connection.together(), expected, "{mss}, {least} at least");
        }
    }
}
