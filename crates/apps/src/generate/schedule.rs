//! When each packet is due.
//!
//! Due times are exact: they are counted up in 2⁻⁶⁴ ns, so that no rate drifts. Whoever was kept from sending catches
//! up, but by a tenth faster than the rate, not all at once: a stall must not become a burst that the receiver's rings
//! cannot hold. What lies further back than [`LAG_NS`] is given up and counted as missed.

use bywash_sys::clock::SECOND;

/// How far behind it may be before packets are given up; or one packet, at rates where that is more.
const LAG_NS: u64 = SECOND;

/// Packets that may leave together: a batch.
const BURST: u128 = 64;

/// Or as many as are due in this time: so much later than asked a sleeper can wake up.
const BURST_NS: u128 = 100_000;

/// How long after the end packets that were due before it are still made.
pub(super) const OVERTIME_NS: u64 = 100_000_000;

/// Nanoseconds are counted in units of 2⁻⁶⁴.
const FRACTION: u32 = 64;

/// When packets are due: so many together, and so on. Times are in 2⁻⁶⁴ ns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Pace {
    /// Packets in a burst; 1 when there are none.
    burst: u64,
    /// From one packet of a burst to the next.
    inner: u128,
    /// From one burst's first packet to the next one's.
    period: u128,
}

impl Pace {
    /// Packets one by one, so many thousandths per second, at least 1.
    pub(super) fn steady(millipackets: u64) -> Self {
        Self { burst: 1, inner: 0, period: interval(millipackets) }
    }

    /// `burst` packets at once (at least 1), so that it makes so many thousandths per second.
    pub(super) fn bursts(burst: u64, millipackets: u64) -> Self {
        Self { burst, inner: 0, period: interval(millipackets) * u128::from(burst) }
    }

    /// `burst` packets each `every` nanoseconds, at once or, within the burst, so many thousandths per second; `None` when
    /// that takes longer.
    pub(super) fn bursts_each(burst: u64, every: u64, millipackets: Option<u64>) -> Option<Self> {
        let (inner, period) = (millipackets.map_or(0, interval), u128::from(every) << FRACTION);
        (u128::from(burst) * inner <= period).then_some(Self { burst, inner, period })
    }

    /// Thousandths of a packet per second, over all.
    pub(super) fn millipackets(self) -> u64 {
        let per_burst = (u128::from(SECOND) * 1000) << FRACTION;
        // In two steps, so that a long burst does not overflow.
        let milli = per_burst / self.period * u128::from(self.burst)
            + per_burst % self.period * u128::from(self.burst) / self.period;
        u64::try_from(milli).unwrap_or(u64::MAX)
    }
}

fn interval(millipackets: u64) -> u128 {
    ((u128::from(SECOND) * 1000) << FRACTION) / u128::from(millipackets)
}

/// The due times of one queue's packets.
#[derive(Clone, Debug)]
pub(super) struct Schedule {
    /// When the next packet is due.
    next: u128,
    /// Packets of its burst that have been due before it.
    position: u64,
    burst: u64,
    inner: u128,
    /// From a burst's last packet to the next burst.
    outer: u128,
    period: u128,
    /// When the next packet may leave, were packets a tenth closer together: a token bucket as one number.
    earliest: u128,
    spacing: u128,
    allowance: u128,
    missed: u64,
}

impl Schedule {
    /// A pace that is shared by `queues`; their bursts take turns. `start` is in nanoseconds.
    pub(super) fn new(pace: Pace, (queue, queues): (usize, usize), start: u64) -> Self {
        let period = pace.period * queues as u128;
        let spacing = period / u128::from(pace.burst) / 11 * 10;
        let start = u128::from(start) << FRACTION;
        Self {
            next: start + pace.period * queue as u128,
            position: 0,
            burst: pace.burst,
            inner: pace.inner,
            outer: period - pace.inner * u128::from(pace.burst - 1),
            period,
            earliest: start,
            spacing,
            allowance: (spacing * BURST.max(pace.burst.into())).max(BURST_NS << FRACTION),
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
        while due < most && self.next <= now && self.next < end && self.earliest <= now + self.allowance {
            self.advance();
            self.earliest += self.spacing;
            due += 1;
        }
        due
    }

    /// Makes the last `n` packets due again: they could not be made.
    #[inline]
    pub(super) fn put_back(&mut self, n: u64) {
        for _ in 0..n {
            let last = self.position == 0;
            self.next -= if last { self.outer } else { self.inner };
            self.position = if last { self.burst } else { self.position } - 1;
        }
        self.earliest -= u128::from(n) * self.spacing;
    }

    #[inline]
    fn advance(&mut self) {
        let last = self.position + 1 == self.burst;
        self.next += if last { self.outer } else { self.inner };
        self.position = if last { 0 } else { self.position + 1 };
    }

    fn give_up(&mut self, now: u128) {
        let limit = now.saturating_sub(self.period.max(u128::from(LAG_NS) << FRACTION));
        if self.next < limit {
            self.skip_until(limit);
        }
    }

    /// Counts what is due before `limit` as missed.
    #[cold]
    fn skip_until(&mut self, limit: u128) {
        let periods = limit.saturating_sub(self.next) / self.period;
        self.next += periods * self.period;
        self.missed += u64::try_from(periods).unwrap_or(u64::MAX).saturating_mul(self.burst);
        while self.next < limit {
            self.advance();
            self.missed += 1;
        }
    }

    /// When the next packet is due, in nanoseconds, rounded down.
    #[inline]
    pub(super) fn due(&self) -> u64 {
        u64::try_from(self.next >> FRACTION).unwrap_or(u64::MAX)
    }

    /// When to ask again, in nanoseconds.
    pub(super) fn next_due(&self) -> u64 {
        let at = self.next.max(self.earliest.saturating_sub(self.allowance));
        u64::try_from((at >> FRACTION) + 1).unwrap_or(u64::MAX)
    }

    /// Counts what was due before `end` and not taken as missed.
    pub(super) fn close(&mut self, end: u64) {
        self.skip_until(u128::from(end) << FRACTION);
    }

    /// Whether a packet is still due before `end`.
    pub(super) fn has_due_before(&self, end: u64) -> bool {
        self.next < u128::from(end) << FRACTION
    }

    /// Lets so many nanoseconds' packets leave together, where that is more than usual: for whom each call costs much.
    pub(super) fn allow(&mut self, nanoseconds: u64) {
        self.allowance = self.allowance.max(u128::from(nanoseconds) << FRACTION);
    }

    /// Packets given up so far.
    pub(super) fn missed(&self) -> u64 {
        self.missed
    }
}

/// Whether sending ends `now`. What was due before the end is still sent after it, for as long as it takes to see that
/// it is not possible.
#[inline]
pub(super) fn is_over(schedule: Option<&mut Schedule>, end: Option<u64>, now: u64) -> bool {
    let Some(end) = end.filter(|end| now >= *end) else { return false };
    let Some(schedule) = schedule else { return true };
    let late = now - end > OVERTIME_NS;
    if late || !schedule.has_due_before(end) {
        schedule.close(end);
        return true;
    }
    false
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
        let mut slow = Schedule::new(Pace::steady(3_000), (0, 1), 0);
        assert_eq!(taken(&mut slow, (0, 3600 * SECOND), SECOND / 7), 3 * 3600);
        let mut fast = Schedule::new(Pace::steady(14_880_952_381), (0, 1), 0);
        assert_eq!(taken(&mut fast, (0, SECOND / 10), 1000), 1_488_081);
        assert_eq!(fast.missed(), 0);
    }

    #[test]
    fn queues_share_the_rate_and_take_turns() {
        let mut queues = [0, 1, 2, 3].map(|queue| Schedule::new(Pace::steady(1_000_000), (queue, 4), 0));
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
        let mut schedule = Schedule::new(Pace::steady(1_000_000_000), (0, 1), 0);
        let stalled = 20_000_000;
        let first = taken(&mut schedule, (stalled, stalled + 1_000_000), 1000);
        assert!((1_100..=1_300).contains(&first), "{first} in the first millisecond");
        let rest = taken(&mut schedule, (stalled + 1_000_000, SECOND), 1000);
        assert_eq!((first + rest, schedule.missed()), (1_000_000, 0));
    }

    #[test]
    fn what_is_too_far_behind_is_given_up_and_counted() {
        let mut schedule = Schedule::new(Pace::steady(1_000_000), (0, 1), 0);
        let end = 3 * SECOND;
        let sent = schedule.take_due(end, u64::MAX, 64) as u64;
        assert_eq!(schedule.missed(), 2000);
        schedule.close(end);
        assert_eq!(sent + schedule.missed(), 3000);
        assert!(!schedule.has_due_before(end) && schedule.has_due_before(end + 1));
    }

    #[test]
    fn what_was_due_before_the_end_is_still_sent_after_it_and_nothing_else() {
        let (mut schedule, end) = (Schedule::new(Pace::steady(1_000_000_000), (0, 1), 0), 10_000_000);
        let late: usize = (end..2 * end).step_by(1000).map(|now| schedule.take_due(now, end, 64)).sum();
        assert_eq!((late, schedule.has_due_before(end), schedule.missed()), (10_000, false, 0));
    }

    #[test]
    fn the_next_time_is_when_a_packet_is_due() {
        let mut schedule = Schedule::new(Pace::steady(1_000_000), (0, 1), 500);
        assert_eq!(schedule.take_due(499, u64::MAX, 64), 0);
        assert_eq!(schedule.take_due(500, u64::MAX, 64), 1);
        let next = schedule.next_due();
        assert_eq!(
            (schedule.take_due(next - 2, u64::MAX, 64), schedule.take_due(next, u64::MAX, 64)),
            (0, 1)
        );
    }

    #[test]
    fn bursts_leave_together_and_keep_the_rate() {
        // 1000 packets per second in bursts of 100: ten bursts a second.
        let mut schedule = Schedule::new(Pace::bursts(100, 1_000_000), (0, 1), 0);
        assert_eq!((schedule.take_due(0, u64::MAX, 64), schedule.take_due(0, u64::MAX, 64)), (64, 36));
        let next = schedule.next_due();
        assert!((100_000_000..=100_000_001).contains(&next), "{next}");
        assert_eq!(taken(&mut schedule, (1, SECOND), 10_000) + 100, 1000);
        assert_eq!(Pace::bursts(100, 1_000_000).millipackets(), 1_000_000);
    }

    #[test]
    fn bursts_begin_at_their_time_and_may_have_a_rate_within() {
        let pace = Pace::bursts_each(3, 1_000_000, Some(10_000_000)).unwrap();
        assert_eq!(pace.millipackets(), 3_000_000);
        let mut schedule = Schedule::new(pace, (0, 1), 0);
        let times: Vec<u64> =
            (0..2_200_000).step_by(50_000).filter(|now| schedule.take_due(*now, u64::MAX, 1) > 0).collect();
        assert_eq!(times, [0, 100_000, 200_000, 1_000_000, 1_100_000, 1_200_000, 2_000_000, 2_100_000]);
        schedule.put_back(3);
        assert_eq!(schedule.next_due(), 1_200_001);
        assert_eq!(Pace::bursts_each(3, 1_000_000, Some(1_000_000)), None, "they would take 3 ms");
        assert_eq!(Pace::bursts_each(1000, 1, None).unwrap().millipackets(), 1_000_000_000_000_000);
    }

    #[test]
    fn bursts_of_several_queues_take_turns() {
        let pace = Pace::bursts_each(2, 1_000_000, None).unwrap();
        let mut queues = [0, 1].map(|queue| Schedule::new(pace, (queue, 2), 0));
        let mut order = Vec::new();
        for now in (0..4_000_000).step_by(500_000) {
            for (queue, schedule) in queues.iter_mut().enumerate() {
                order.extend(std::iter::repeat_n(queue, schedule.take_due(now, u64::MAX, 64)));
            }
        }
        assert_eq!(order, [0, 0, 1, 1, 0, 0, 1, 1]);
    }
}
