//! Distributions of times: counted by one worker while others read, and what is told of them.
//!
//! The buckets are those of an HDR histogram with three digits: 1 ns wide up to 2048 ns, and 1024 to each doubling from
//! there. A worker counts a time by adding one to an atomic number that nobody else writes, which costs no more than
//! adding to an ordinary one; so the times can be looked at while it works, and its turn has nothing to publish.

use std::fmt::{self, Display};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use hdrhistogram::Histogram;
use serde::Serialize;

/// Longest time that is told from longer ones: 100 s.
const LONGEST_NS: u64 = 100_000_000_000;

/// Digits that a time's figure keeps.
const DIGITS: u8 = 3;

/// Buckets in each doubling: as many as keep [`DIGITS`].
const HALF: usize = 1024;

/// All buckets, up to that of [`LONGEST_NS`].
const BUCKETS: usize = bucket(LONGEST_NS) + 1;

/// The bucket of a time.
#[inline]
#[expect(clippy::cast_possible_truncation, reason = "after the shift there are eleven binary digits")]
const fn bucket(ns: u64) -> usize {
    // How many digits, in binary, are cut off.
    let shift = 53 - (ns | (2 * HALF as u64 - 1)).leading_zeros() as usize;
    shift * HALF + (ns >> shift) as usize
}

/// The shortest time of a bucket.
const fn shortest(bucket: usize) -> u64 {
    let shift = (bucket / HALF).saturating_sub(1);
    ((bucket - shift * HALF) as u64) << shift
}

/// Times as one worker counts them.
#[derive(Debug)]
pub struct Stopwatch(Arc<[AtomicU64]>);

impl Stopwatch {
    /// None so far. All memory is there from the start.
    pub fn new() -> Self {
        Self((0..BUCKETS).map(|_| AtomicU64::new(0)).collect())
    }

    /// Counts a time, in nanoseconds.
    #[inline]
    pub fn record(&mut self, ns: u64) {
        self.record_many(ns, 1);
    }

    /// Counts `n` equal times, in nanoseconds.
    #[inline]
    pub fn record_many(&mut self, ns: u64, n: u64) {
        if let Some(count) = self.0.get(bucket(ns.min(LONGEST_NS))) {
            // Nobody else writes it: `&mut self`, and a `Dial` only reads.
            count.store(count.load(Ordering::Relaxed) + n, Ordering::Relaxed);
        }
    }

    /// Something to read it by.
    pub fn dial(&self) -> Dial {
        Dial(Arc::clone(&self.0))
    }
}

impl Default for Stopwatch {
    fn default() -> Self {
        Self::new()
    }
}

/// Reads what a [`Stopwatch`] has counted so far.
#[derive(Clone, Debug)]
pub struct Dial(Arc<[AtomicU64]>);

/// Times, and how often each was seen.
#[derive(Clone, Debug, PartialEq)]
pub struct Times {
    all: Histogram<u64>,
    /// Of them those of what has ended; all where there is nothing else. The others are of what takes no less.
    ended: Option<Histogram<u64>>,
}

impl Default for Times {
    fn default() -> Self {
        #[expect(clippy::expect_used, reason = "the bounds are constants that a test tries")]
        let all =
            Histogram::new_with_bounds(1, LONGEST_NS, DIGITS).expect("1 <= LONGEST_NS / 2 and DIGITS <= 5");
        Self { all, ended: None }
    }
}

impl Times {
    /// What all of `dials` show, together.
    pub fn read<'a>(dials: impl IntoIterator<Item = &'a Dial>) -> Self {
        let mut times = Self::default();
        for dial in dials {
            for (bucket, count) in dial.0.iter().enumerate() {
                let count = count.load(Ordering::Relaxed);
                if count > 0 {
                    times.all.saturating_record_n(shortest(bucket), count);
                }
            }
        }
        times
    }

    /// These, of what has ended, and those of what has not yet, which are among all figures but the shortest.
    #[must_use]
    pub fn and_unfinished(self, unfinished: &Self) -> Self {
        let mut all = self.all.clone();
        // The bounds are the same: it can't fail.
        let _ = all.add(&unfinished.all);
        Self { all, ended: Some(self.all) }
    }

    /// Those that were not there yet in `before`, an earlier reading of the same.
    pub fn since(&self, before: &Self) -> Self {
        let mut times = self.clone();
        // Counters only grow and the bounds are the same: it can't fail.
        let _ = times.all.subtract(&before.all);
        if let Some((ended, before)) = times.ended.as_mut().zip(before.ended.as_ref()) {
            let _ = ended.subtract(before);
        }
        times
    }

    /// How many.
    pub fn count(&self) -> u64 {
        self.all.len()
    }

    /// How many are no longer than `ns`, as exactly as the buckets are.
    pub fn count_up_to(&self, ns: u64) -> u64 {
        self.all.count_between(0, ns)
    }

    /// All of them together, as exactly as the buckets are.
    #[expect(clippy::cast_precision_loss, reason = "three digits were kept")]
    pub fn total_seconds(&self) -> f64 {
        self.all
            .iter_recorded()
            .map(|step| {
                self.all.median_equivalent(step.value_iterated_to()) as f64 * step.count_at_value() as f64
            })
            .sum::<f64>()
            / 1e9
    }

    /// The whole distribution.
    pub fn histogram(&self) -> &Histogram<u64> {
        &self.all
    }

    /// The figures that are told; `None` where there are no times.
    pub fn percentiles(&self) -> Option<Percentiles> {
        let at = |percent| self.all.value_at_percentile(percent);
        let ended = self.ended.as_ref().unwrap_or(&self.all);
        (!self.all.is_empty()).then(|| Percentiles {
            count: self.all.len(),
            unfinished: self.all.len() - ended.len(),
            min_ns: if ended.is_empty() { self.all.min() } else { ended.min() },
            p50_ns: at(50.0),
            p90_ns: at(90.0),
            p99_ns: at(99.0),
            p99_9_ns: at(99.9),
            p99_99_ns: at(99.99),
            max_ns: self.all.max(),
        })
    }
}

/// What is told of a distribution of times.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Percentiles {
    /// How many times there are.
    pub count: u64,
    /// How many of them are of what has not ended yet, which takes no less.
    #[serde(skip_serializing_if = "is_none")]
    pub unfinished: u64,
    /// Shortest of what has ended, if anything has.
    pub min_ns: u64,
    /// Half are no longer than this.
    pub p50_ns: u64,
    /// 90 % are no longer.
    pub p90_ns: u64,
    /// 99 % are no longer.
    pub p99_ns: u64,
    /// 99.9 % are no longer.
    pub p99_9_ns: u64,
    /// 99.99 % are no longer.
    pub p99_99_ns: u64,
    /// Longest.
    pub max_ns: u64,
}

impl Percentiles {
    /// The names of the figures, for people.
    pub const NAMES: [&'static str; 7] = ["min", "p50", "p90", "p99", "p99.9", "p99.99", "max"];

    /// The figures, in nanoseconds.
    pub fn values(&self) -> [u64; 7] {
        [self.min_ns, self.p50_ns, self.p90_ns, self.p99_ns, self.p99_9_ns, self.p99_99_ns, self.max_ns]
    }
}

impl Display for Percentiles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, ns) in Self::NAMES.iter().zip(self.values()) {
            write!(f, " {name} {:.1}", microseconds(ns))?;
        }
        f.write_str(" µs")?;
        // All that is told of before it has ended are requests.
        if self.unfinished > 0 {
            write!(f, " ({} of {} without an answer)", self.unfinished, self.count)?;
        }
        Ok(())
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes it so")]
fn is_none(count: &u64) -> bool {
    *count == 0
}

/// Nanoseconds as people read them.
#[expect(clippy::cast_precision_loss, reason = "three digits were kept")]
pub(crate) fn microseconds(ns: u64) -> f64 {
    ns as f64 / 1000.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_buckets_are_those_of_the_histogram() {
        let times = Times::default();
        let mut at = 0;
        for bucket_number in 0..BUCKETS {
            assert_eq!((shortest(bucket_number), bucket(at)), (at, bucket_number));
            let last = times.all.highest_equivalent(at);
            assert_eq!(bucket(last), bucket_number, "{at} to {last}");
            at = last + 1;
        }
        assert!(at > LONGEST_NS);
    }

    #[test]
    fn what_two_workers_counted_is_read_as_one() {
        let (mut one, mut other) = (Stopwatch::new(), Stopwatch::new());
        (0..1000).for_each(|ns| one.record(ns));
        let before = Times::read([&one.dial(), &other.dial()]);
        other.record(5_000_000);
        other.record(u64::MAX);
        let dials = [one.dial(), other.dial()];
        let now = Times::read(&dials);
        assert_eq!((before.count(), now.count(), now.since(&before).count()), (1000, 1002, 2));
        let figures = now.percentiles().unwrap();
        assert_eq!((figures.min_ns, figures.p50_ns, figures.p99_ns), (0, 500, 991));
        assert!(figures.max_ns >= LONGEST_NS && figures.max_ns < LONGEST_NS / 1000 * 1001);
        assert_eq!((now.count_up_to(499), now.count_up_to(6_000_000)), (500, 1001));
        assert_eq!(Times::default().percentiles(), None);
    }

    #[test]
    fn what_has_not_ended_is_never_the_shortest() {
        let (mut ended, mut waiting) = (Stopwatch::new(), Stopwatch::new());
        ended.record_many(1000, 3);
        waiting.record(10);
        waiting.record(2000);
        let read = || Times::read([&ended.dial()]).and_unfinished(&Times::read([&waiting.dial()]));
        let figures = read().percentiles().unwrap();
        assert_eq!((figures.count, figures.unfinished), (5, 2));
        assert_eq!((figures.min_ns, figures.p50_ns, figures.max_ns), (1000, 1000, 2000));
        assert!(figures.to_string().ends_with(" max 2.0 µs (2 of 5 without an answer)"), "{figures}");
        let none = Times::default();
        assert_eq!(
            none.clone().and_unfinished(&read()).percentiles().unwrap().min_ns,
            10,
            "nothing has ended"
        );
        assert_eq!(read().and_unfinished(&none).percentiles().unwrap().unfinished, 0);
    }

    #[test]
    fn what_an_interval_tells_of_the_unfinished_and_the_shortest_is_its_own() {
        let (mut ended, mut waiting) = (Stopwatch::new(), Stopwatch::new());
        let dials = [ended.dial(), waiting.dial()];
        let read = || Times::read([&dials[0]]).and_unfinished(&Times::read([&dials[1]]));
        let told = |times: Times| {
            let figures = times.percentiles().unwrap();
            (figures.count, figures.unfinished, figures.min_ns)
        };
        ended.record(100);
        waiting.record_many(50, 3);
        let first = read();
        ended.record_many(2000, 5);
        let second = read();
        waiting.record(10);
        let third = read();
        assert_eq!(
            [&first, &second, &third].map(|times| told(times.clone())),
            [(4, 3, 100), (9, 3, 100), (10, 4, 100)]
        );
        assert_eq!(told(second.since(&first)), (5, 0, 2000));
        assert_eq!(told(third.since(&second)), (1, 1, 10), "nothing has ended");
        assert_eq!(third.since(&third).percentiles(), None);
    }
}
