//! Time as the stack sees it: a number that its caller hands in.

use std::ops::{Add, Sub};
use std::time::Duration;

/// Nanoseconds since some moment that never changes while the stack lives. It must not run backwards.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(u64);

impl Timestamp {
    /// The moment from which is counted.
    pub const ZERO: Self = Self(0);

    /// A moment, in nanoseconds.
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// Nanoseconds since [`Timestamp::ZERO`].
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// Milliseconds since [`Timestamp::ZERO`].
    pub const fn as_millis(self) -> u64 {
        self.0 / 1_000_000
    }

    /// How much later this is than `earlier`; zero when it is not.
    #[inline]
    #[must_use]
    pub const fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

impl Add<Duration> for Timestamp {
    type Output = Self;

    #[inline]
    fn add(self, more: Duration) -> Self {
        Self(self.0.saturating_add(nanos(more)))
    }
}

impl Sub<Duration> for Timestamp {
    type Output = Self;

    #[inline]
    fn sub(self, less: Duration) -> Self {
        Self(self.0.saturating_sub(nanos(less)))
    }
}

/// Nanoseconds of a duration; 584 years is as long as it gets.
#[inline]
pub(crate) fn nanos(duration: Duration) -> u64 {
    duration.as_secs().saturating_mul(1_000_000_000).saturating_add(duration.subsec_nanos().into())
}
