//! When each packet is due.
//!
//! Due times are exact: they are counted up in 2⁻⁶⁴ ns, so that no rate drifts. Whoever was kept from sending catches
//! up, but by a tenth faster than the rate, not all at once: a stall must not become a burst that the receiver's rings
//! cannot hold. What lies further back than [`LAG_NS`] is given up and counted as missed.

use bywash_sys::clock::SECOND;

/// How far behind it may be before packets are given up; or one packet, at rates where that is more.
const LAG_NS: u64 = 100_000_000;

/// Packets that may leave together: a batch.
const BURST: u128 = 64;

/// Or as many as are due in this time: so much later than asked a sleeper can wake up.
const BURST_NS: u128 = 100_000;

/// Nanoseconds are counted in units of 2⁻⁶⁴.
const FRACTION: u32 = 64;

/// The due times of one queue's packets.
#[derive(Clone, Debug)]
pub(super) struct Schedule {
    /// When the next packet is due.
    next: u128,
    interval: u128,
    /// When the next packet may leave, were packets a tenth closer together: a token bucket as one number.
    earliest: u128,
    spacing: u128,
    burst: u128,
    missed: u64,
}

impl Schedule {
    /// `millipackets` thousandths of a packet per second in all, shared by `queues`; queue number `queue` begins a part of the interval after
    /// the one before. `start` is in nanoseconds. The rate must not be 0.
    pub(super) fn new(millipackets: u64, (queue, queues): (usize, usize), start: u64) -> Self {
        let whole = ((u128::from(SECOND) * 1000) << FRACTION) / u128::from(millipackets);
        let interval = whole * queues as u128;
        let spacing = interval / 11 * 10;
        let start = u128::from(start) << FRACTION;
        Self {
            next: start + whole * queue as u128,
            interval,
            earliest: start,
            spacing,
            burst: (spacing * BURST).max(BURST_NS << FRACTION),
            missed: 0,
        }
    }

    /// How many packets were to leave before `end` and are due `now`, at most `most`. They count as sent.
    #[inline]
    pub(super) fn take_due(&mut self, now: u64, end: u64, most: usize) -> usize {
        let (now, end) = (u128::from(now) << FRACTION, u128::from(end) << FRACTION);
        self.give_up(now);
        self.earliest = self.earliest.max(now);
        let mut due = 0;
        while due < most && self.next <= now && self.next < end && self.earliest <= now + self.burst {
            self.next += self.interval;
            self.earliest += self.spacing;
            due += 1;
        }
        due
    }

    /// Makes the last `n` packets due again: they could not be made.
    #[inline]
    pub(super) fn put_back(&mut self, n: u64) {
        self.next -= u128::from(n) * self.interval;
        self.earliest -= u128::from(n) * self.spacing;
    }

    fn give_up(&mut self, now: u128) {
        let limit = now.saturating_sub(self.interval.max(u128::from(LAG_NS) << FRACTION));
        if self.next < limit {
            let lost = (limit - self.next).div_ceil(self.interval);
            self.missed += u64::try_from(lost).unwrap_or(u64::MAX);
            self.next += lost * self.interval;
        }
    }

    /// When to ask again, in nanoseconds.
    pub(super) fn next_due(&self) -> u64 {
        let at = self.next.max(self.earliest.saturating_sub(self.burst));
        u64::try_from((at >> FRACTION) + 1).unwrap_or(u64::MAX)
    }

    /// Counts what was due before `end` and not taken as missed.
    pub(super) fn close(&mut self, end: u64) {
        let end = u128::from(end) << FRACTION;
        if self.next < end {
            let lost = (end - self.next).div_ceil(self.interval);
            self.missed += u64::try_from(lost).unwrap_or(u64::MAX);
            self.next += lost * self.interval;
        }
    }

    /// Whether a packet is still due before `end`.
    pub(super) fn has_due_before(&self, end: u64) -> bool {
        self.next < u128::from(end) << FRACTION
    }

    /// Packets given up so far.
    pub(super) fn missed(&self) -> u64 {
        self.missed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Packets taken when asked every `step` nanoseconds until `end`.
    fn taken(schedule: &mut Schedule, (from, end): (u64, u64), step: u64) -> u64 {
        (from..end)
            .step_by(usize::try_from(step).unwrap())
            .map(|now| schedule.take_due(now, u64::MAX, 64) as u64)
            .sum()
    }

    #[test]
    fn a_rate_that_does_not_divide_a_second_does_not_drift() {
        // 3 packets per second for an hour, then 14 880 952.381 per second for 0.1 s.
        let mut slow = Schedule::new(3_000, (0, 1), 0);
        assert_eq!(taken(&mut slow, (0, 3600 * SECOND), SECOND / 7), 3 * 3600);
        let mut fast = Schedule::new(14_880_952_381, (0, 1), 0);
        assert_eq!(taken(&mut fast, (0, SECOND / 10), 1000), 1_488_081);
        assert_eq!(fast.missed(), 0);
    }

    #[test]
    fn queues_share_the_rate_and_take_turns() {
        let mut queues = [0, 1, 2, 3].map(|queue| Schedule::new(1_000_000, (queue, 4), 0));
        let mut order = Vec::new();
        for now in (0..SECOND / 100).step_by(100_000) {
            for (queue, schedule) in queues.iter_mut().enumerate() {
                order.extend(std::iter::repeat_n(queue, schedule.take_due(now, u64::MAX, 64)));
            }
        }
        assert_eq!(order, [0, 1, 2, 3, 0, 1, 2, 3, 0, 1]);
    }

    #[test]
    fn after_a_stall_it_catches_up_without_a_burst() {
        // 1 Mpps, stalled for 20 ms: 20 000 packets behind.
        let mut schedule = Schedule::new(1_000_000_000, (0, 1), 0);
        let stalled = 20_000_000;
        let first = taken(&mut schedule, (stalled, stalled + 1_000_000), 1000);
        assert!((1_100..=1_300).contains(&first), "{first} in the first millisecond");
        let rest = taken(&mut schedule, (stalled + 1_000_000, SECOND), 1000);
        assert_eq!((first + rest, schedule.missed()), (1_000_000, 0));
    }

    #[test]
    fn what_is_too_far_behind_is_given_up_and_counted() {
        let mut schedule = Schedule::new(1_000_000, (0, 1), 0);
        let sent = schedule.take_due(SECOND, u64::MAX, 64) as u64;
        assert_eq!(schedule.missed(), 900);
        schedule.close(SECOND);
        assert_eq!(sent + schedule.missed(), 1000);
        assert!(!schedule.has_due_before(SECOND) && schedule.has_due_before(SECOND + 1));
    }

    #[test]
    fn what_was_due_before_the_end_is_still_sent_after_it_and_nothing_else() {
        let (mut schedule, end) = (Schedule::new(1_000_000_000, (0, 1), 0), 10_000_000);
        let late: usize = (end..2 * end).step_by(1000).map(|now| schedule.take_due(now, end, 64)).sum();
        assert_eq!((late, schedule.has_due_before(end), schedule.missed()), (10_000, false, 0));
    }

    #[test]
    fn the_next_time_is_when_a_packet_is_due() {
        let mut schedule = Schedule::new(1_000_000, (0, 1), 500);
        assert_eq!(schedule.take_due(499, u64::MAX, 64), 0);
        assert_eq!(schedule.take_due(500, u64::MAX, 64), 1);
        let next = schedule.next_due();
        assert_eq!(
            (schedule.take_due(next - 2, u64::MAX, 64), schedule.take_due(next, u64::MAX, 64)),
            (0, 1)
        );
    }
}
