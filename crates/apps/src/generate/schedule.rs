//! When each packet is due.
//!
//! Due times are exact: they are counted up in 2⁻⁶⁴ ns, so that no rate drifts. Nor do they move when a packet is late:
//! whoever was kept from sending, by the scheduler or a full ring, catches up as fast as the port goes. So a pause costs no
//! packet, and near what the port can do there is no slower way that would still keep the rate. (Linux's pktgen does the
//! same: what it adds its delay to is when a packet was due, not when it left.)
//!
//! Time bounds what a pause can pile up for the receiver's rings: what is later than [`MAX_LAG_NS`] is given up and counted
//! as missed. A port that cannot keep up so stays that far behind, and what it is short of is known.

use bywash_sys::clock::SECOND;
use bywash_wire::line::{l1_bits, l2_bits};

use crate::rate::MAX_LAG_NS;

/// Nanoseconds are counted in units of 2⁻⁶⁴.
const FRACTION: u32 = 64;

/// A thousand seconds: by a rate in thousandths of a packet per second, the time from one packet to the next.
const THOUSAND_SECONDS: u128 = (SECOND as u128 * 1000) << FRACTION;

/// When packets are due: so many together, and so on. Times are in 2⁻⁶⁴ ns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Pace {
    /// Packets in a burst; 1 when there are none.
    burst: u64,
    /// From one packet of a burst to the next.
    inner: u128,
    /// From one burst's first packet to the next one's.
    period: u128,
    /// Where bits were asked for: then packets of many sizes are so far apart only on the average.
    bits: Option<BitRate>,
}

/// Bits that leave in a second.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BitRate {
    pub(super) layer: Layer,
    /// Thousandths of a bit per second, at least 1.
    pub(super) millibits: u64,
}

/// Which bits of a packet count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Layer {
    /// Those of its frame, with FCS.
    L2,
    /// Those of the link: with preamble and gap, too.
    L1,
}

impl BitRate {
    /// How long a packet of `len` bytes takes, in 2⁻⁶⁴ ns, rounded up.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "whole bits, less than a million"
    )]
    fn time_of(self, len: u32) -> u128 {
        let bits = match self.layer {
            Layer::L2 => l2_bits(len),
            Layer::L1 => l1_bits(len),
        };
        (THOUSAND_SECONDS * bits as u128).div_ceil(u128::from(self.millibits))
    }
}

impl Pace {
    /// Packets one by one, so many thousandths per second, at least 1.
    pub(super) fn steady(millipackets: u64) -> Self {
        Self { burst: 1, inner: 0, period: period(millipackets), bits: None }
    }

    /// `burst` packets at once (at least 1), so that it makes so many thousandths per second.
    pub(super) fn bursts(burst: u64, millipackets: u64) -> Self {
        Self { burst, inner: 0, period: period(millipackets) * u128::from(burst), bits: None }
    }

    /// `burst` packets each `every` nanoseconds, at once or, within the burst, so many thousandths per second; `None` when
    /// that takes longer.
    pub(super) fn bursts_each(burst: u64, every: u64, millipackets: Option<u64>) -> Option<Self> {
        let inner = millipackets.map_or(0, |millipackets| THOUSAND_SECONDS / u128::from(millipackets));
        let period = u128::from(every) << FRACTION;
        (u128::from(burst) * inner <= period).then_some(Self { burst, inner, period, bits: None })
    }

    /// The same on the average, and each packet takes as long as its own bits.
    pub(super) fn by_bits(self, rate: BitRate) -> Self {
        Self { bits: Some(rate), ..self }
    }

    /// Thousandths of a packet per second, over all, rounded.
    pub(super) fn millipackets(self) -> u64 {
        // In two steps, so that a long burst does not overflow.
        let milli = THOUSAND_SECONDS / self.period * u128::from(self.burst)
            + (THOUSAND_SECONDS % self.period * u128::from(self.burst) + self.period / 2) / self.period;
        u64::try_from(milli).unwrap_or(u64::MAX)
    }
}

/// Rounded up: in so many whole seconds no packet more is due than the rate says.
fn period(millipackets: u64) -> u128 {
    THOUSAND_SECONDS.div_ceil(u128::from(millipackets))
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
    /// From each packet to the next, where they differ: then these are what `burst` and `period` are of.
    steps: Box<[u128]>,
    period: u128,
    /// The longest time from one packet, or burst, to the next.
    longest: u128,
    /// Packets given up.
    missed: u64,
    /// Packets taken when the end had come.
    overtime: u64,
}

impl Schedule {
    /// A pace that is shared by `queues`; their bursts take turns. `start` is in nanoseconds.
    pub(super) fn new(pace: Pace, (queue, queues): (usize, usize), start: u64) -> Self {
        let period = pace.period * queues as u128;
        Self {
            next: (u128::from(start) << FRACTION) + pace.period * queue as u128,
            position: 0,
            burst: pace.burst,
            inner: pace.inner,
            outer: period - pace.inner * u128::from(pace.burst - 1),
            steps: Box::default(),
            period,
            longest: period,
            missed: 0,
            overtime: 0,
        }
    }

    /// The same for packets of these lengths, without FCS, over and over.
    pub(super) fn of_packets(
        pace: Pace,
        (queue, queues): (usize, usize),
        start: u64,
        lengths: &[u32],
    ) -> Self {
        let mut schedule = Self::new(pace, (queue, queues), start);
        let Some(rate) = pace.bits else { return schedule };
        if let [len] = lengths {
            // A pace is in thousandths of a packet per second: of few large packets, bits are a finer measure.
            schedule.outer = rate.time_of(*len) * queues as u128;
            (schedule.period, schedule.longest) = (schedule.outer, schedule.outer);
        } else if !lengths.is_empty() {
            schedule.steps = lengths.iter().map(|len| rate.time_of(*len) * queues as u128).collect();
            schedule.burst = schedule.steps.len() as u64;
            schedule.period = schedule.steps.iter().sum();
            schedule.longest = schedule.steps.iter().copied().max().unwrap_or_default();
        }
        schedule
    }

    /// From the packet at this position to the one after it.
    #[inline]
    fn step(&self, position: u64) -> u128 {
        let own = usize::try_from(position).ok().and_then(|position| self.steps.get(position));
        own.copied().unwrap_or(if position + 1 == self.burst { self.outer } else { self.inner })
    }

    /// How many packets were to leave before `end` and are due `now`, at most `most`. They count as sent.
    #[inline]
    pub(super) fn take_due(&mut self, now: u64, end: u64, most: usize) -> usize {
        let is_overtime = now >= end;
        let (now, end) = (u128::from(now) << FRACTION, u128::from(end) << FRACTION);
        self.give_up(now);
        let mut due = 0;
        while due < most && self.next <= now && self.next < end {
            self.advance();
            due += 1;
        }
        if is_overtime {
            self.overtime += due as u64;
        }
        due
    }

    /// Makes the last `n` packets due again: they could not be made.
    #[inline]
    pub(super) fn put_back(&mut self, n: u64) {
        for _ in 0..n {
            self.position = if self.position == 0 { self.burst } else { self.position } - 1;
            self.next -= self.step(self.position);
        }
        self.overtime = self.overtime.saturating_sub(n);
    }

    #[inline]
    fn advance(&mut self) {
        self.next += self.step(self.position);
        self.position = if self.position + 1 == self.burst { 0 } else { self.position + 1 };
    }

    /// Gives up what is too late; never the last packet that was due, at rates of few packets.
    fn give_up(&mut self, now: u128) {
        let limit = now.saturating_sub(self.longest.max(u128::from(MAX_LAG_NS) << FRACTION));
        if self.next < limit {
            self.skip_until(limit);
        }
    }

    /// Counts what is due before `limit` as missed.
    #[cold]
    fn skip_until(&mut self, limit: u128) {
        let position = self.position;
        let periods = limit.saturating_sub(self.next) / self.period;
        self.next += periods * self.period;
        self.missed += u64::try_from(periods).unwrap_or(u64::MAX).saturating_mul(self.burst);
        while self.next < limit {
            self.advance();
            self.missed += 1;
        }
        if !self.steps.is_empty() {
            // It is time that is given up: the packet that was next still is, and so has its own size's place.
            self.position = position;
        }
    }

    /// When the next packet is due that is not too late `now`, in nanoseconds, rounded down.
    #[inline]
    pub(super) fn first_due(&mut self, now: u64) -> u64 {
        self.give_up(u128::from(now) << FRACTION);
        u64::try_from(self.next >> FRACTION).unwrap_or(u64::MAX)
    }

    /// When to ask again, in nanoseconds: when the next packet is due, rounded up.
    pub(super) fn next_due(&self) -> u64 {
        u64::try_from((self.next >> FRACTION) + 1).unwrap_or(u64::MAX)
    }

    /// Counts what was due before `end` and not taken as missed.
    pub(super) fn close(&mut self, end: u64) {
        self.skip_until(u128::from(end) << FRACTION);
    }

    /// Whether a packet is still due before `end`.
    pub(super) fn has_due_before(&self, end: u64) -> bool {
        self.next < u128::from(end) << FRACTION
    }

    /// Packets given up so far.
    pub(super) fn missed(&self) -> u64 {
        self.missed
    }

    /// Packets that were taken only when their end had come.
    pub(super) fn overtime(&self) -> u64 {
        self.overtime
    }
}

/// Whether sending ends `now`. What was due before the end is still sent after it, until it would be given up.
#[inline]
pub(super) fn is_over(schedule: Option<&mut Schedule>, end: Option<u64>, now: u64) -> bool {
    let Some(end) = end.filter(|end| now >= *end) else { return false };
    let Some(schedule) = schedule else { return true };
    let late = now - end > MAX_LAG_NS;
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
        for rate in [1, 3_000, 14_880_952_381, 10_000_000_000_000] {
            assert_eq!(
                (Pace::steady(rate).millipackets(), Pace::bursts(7, rate).millipackets()),
                (rate, rate)
            );
        }
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

    /// What a port does with a schedule for five seconds: sent, missed, sent late, and the longest delay. It takes so many
    /// packets per second, and a call takes a microsecond more; it takes none in the pauses, given as begin and length.
    fn five_seconds(rate: u64, able: u64, pauses: &[(u64, u64)]) -> (u64, u64, u64, u64) {
        let end = 5 * SECOND;
        let mut schedule = Schedule::new(Pace::steady(rate * 1000), (0, 1), 0);
        let (mut now, mut sent, mut latest) = (0, 0, 0);
        while !is_over(Some(&mut schedule), Some(end), now) {
            let due = schedule.first_due(now);
            let taken = schedule.take_due(now, end, 64) as u64;
            if taken > 0 {
                latest = latest.max(now.saturating_sub(due));
            }
            sent += taken;
            let before = now;
            now += 1000 + taken * SECOND / able;
            now +=
                pauses.iter().filter(|(at, _)| (before..now).contains(at)).map(|(_, long)| long).sum::<u64>();
        }
        (sent, schedule.missed(), schedule.overtime(), latest)
    }

    const MS: u64 = 1_000_000;

    #[test]
    fn at_nine_tenths_of_what_the_port_can_do_pauses_cost_nothing() {
        // All in all 0.2 s of 5 s, which is less than the tenth that is left.
        let pauses =
            [(0, 5 * MS), (SECOND, 40 * MS), (2 * SECOND, 99 * MS), (3 * SECOND, 50 * MS), (4 * SECOND, MS)];
        let (sent, missed, overtime, latest) = five_seconds(900_000, 1_000_000, &pauses);
        // The last turn before the end takes as long as ten packets are apart.
        assert!(overtime <= 10, "{overtime}");
        assert_eq!((sent, missed), (4_500_000, 0));
        assert!((99 * MS..100 * MS).contains(&latest), "{latest}");
    }

    #[test]
    fn a_pause_before_the_end_is_made_up_for_after_it() {
        let (sent, missed, overtime, _) = five_seconds(500_000, 1_000_000, &[(4_980 * MS, 60 * MS)]);
        assert_eq!((sent, missed), (2_500_000, 0));
        // What had been due when the pause began is sent; of what came then, nothing before the end.
        assert!((9_900..=10_100).contains(&overtime), "{overtime}");
    }

    #[test]
    fn of_a_long_pause_only_what_lies_too_far_back_is_lost() {
        let (sent, missed, overtime, _) = five_seconds(500_000, 1_000_000, &[(SECOND, 300 * MS)]);
        assert!(overtime <= 10, "{overtime}");
        assert_eq!(sent + missed, 2_500_000);
        assert!((99_900..=100_100).contains(&missed), "{missed}");
    }

    #[test]
    fn a_port_that_is_too_slow_is_never_further_behind() {
        let (sent, missed, _, latest) = five_seconds(1_500_000, 1_000_000, &[]);
        assert_eq!(sent + missed, 7_500_000);
        assert!((4_900_000..5_100_000).contains(&sent), "{sent}");
        assert!((99 * MS..=MAX_LAG_NS).contains(&latest), "{latest}");
    }

    #[test]
    fn what_is_too_far_behind_is_given_up_and_counted() {
        let mut schedule = Schedule::new(Pace::steady(1_000_000), (0, 1), 0);
        let end = 3 * SECOND;
        let sent = schedule.take_due(end, u64::MAX, 64) as u64;
        assert_eq!(schedule.missed(), 2900);
        schedule.close(end);
        assert_eq!(sent + schedule.missed(), 3000);
        assert!(!schedule.has_due_before(end) && schedule.has_due_before(end + 1));
        // Two packets in three seconds: the last one that was due is not too late.
        let mut slow = Schedule::new(Pace::steady(500), (0, 1), 0);
        assert_eq!((slow.take_due(end, u64::MAX, 64), slow.missed()), (1, 1));
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
    fn a_rate_in_bits_of_one_size_is_not_rounded_to_packets() {
        // 1000 bits per second of packets with 1538 bytes on the link: one each 12.304 s.
        let rate = BitRate { layer: Layer::L1, millibits: 1_000_000 };
        let pace = Pace::steady(81).by_bits(rate);
        for (queue, queues) in [(0, 1), (1, 2)] {
            let mut schedule = Schedule::of_packets(pace, (queue, queues), 0, &[1514]);
            let first = schedule.next_due();
            (0..1000).for_each(|_| schedule.advance());
            assert_eq!(schedule.next_due() - first, 12_304_000_000 * 1000 * queues as u64);
        }
    }

    /// Lengths without FCS, so that packets take 84, 1538 and 614 bytes of the link.
    const MIX: [u32; 3] = [60, 1514, 590];

    #[test]
    fn a_rate_in_bits_is_kept_by_each_packet() {
        // A bit of the link in a nanosecond.
        let bits = |layer| BitRate { layer, millibits: 1_000_000_000_000 };
        let times = |layer, queues: usize, queue| {
            let pace = Pace::steady(1_000_000_000).by_bits(bits(layer));
            let mut schedule = Schedule::of_packets(pace, (queue, queues), 0, &MIX);
            let first = schedule.next_due();
            let mut next = || {
                schedule.advance();
                schedule.next_due() - first
            };
            [next(), next(), next(), next()]
        };
        assert_eq!(times(Layer::L1, 1, 0), [84, 1622, 2236, 2320].map(|bytes| bytes * 8));
        assert_eq!(times(Layer::L2, 1, 0), [64, 1582, 2176, 2240].map(|bytes| bytes * 8));
        // Each of four queues sends a quarter of the bits.
        assert_eq!(times(Layer::L1, 4, 3), [84, 1622, 2236, 2320].map(|bytes| bytes * 8 * 4));
        assert_eq!(
            Schedule::of_packets(Pace::steady(1_000_000_000), (0, 1), 0, &MIX).step(0),
            Pace::steady(1_000_000_000).period,
            "a rate in packets has no sizes"
        );
    }

    #[test]
    fn packets_made_due_again_and_time_given_up_leave_each_its_own_bits() {
        let rate = BitRate { layer: Layer::L1, millibits: 1_000_000_000 };
        let pace = Pace::steady(1_000_000).by_bits(rate);
        let mut schedule = Schedule::of_packets(pace, (0, 1), 0, &MIX);
        let before = (schedule.next, schedule.position);
        assert_eq!(schedule.take_due(SECOND / 20, u64::MAX, 5), 5);
        schedule.put_back(5);
        assert_eq!((schedule.next, schedule.position), before);
        schedule.advance();
        // A million bits per second, and 100 s in which nothing is sent.
        let due = schedule.first_due(100 * SECOND);
        assert!((99_900_000_000..100 * SECOND).contains(&due), "{due}");
        assert!((16_000..17_000).contains(&schedule.missed()), "{}", schedule.missed());
        assert_eq!(schedule.step(schedule.position), rate.time_of(MIX[1]));
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
