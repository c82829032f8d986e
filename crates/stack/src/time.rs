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

impl Timestamp {
    /// How much later this is than `earlier`; zero when it is not.
    #[inline]
    pub(crate) const fn span(self, earlier: Self) -> Span {
        Span(self.0.saturating_sub(earlier.0))
    }
}

/// A time in nanoseconds. A [`Duration`] is the same in two parts, and takes a division to make: too dear for what is asked
/// several times with each segment. It was measured, or is one of the rules: no sum of a few comes near 584 years, where it ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Span(pub(crate) u64);

impl Span {
    /// None at all.
    pub(crate) const ZERO: Self = Self(0);

    /// The same time.
    pub(crate) const fn of(duration: Duration) -> Self {
        Self(nanos(duration))
    }

    /// The same time.
    pub(crate) const fn duration(self) -> Duration {
        Duration::from_nanos(self.0)
    }

    /// So many times as long.
    #[inline]
    pub(crate) const fn times(self, factor: u64) -> Self {
        Self(self.0.saturating_mul(factor))
    }
}

impl Add for Span {
    type Output = Self;

    #[inline]
    fn add(self, more: Self) -> Self {
        Self(self.0 + more.0)
    }
}

impl Add<Span> for Timestamp {
    type Output = Self;

    #[inline]
    fn add(self, more: Span) -> Self {
        Self(self.0 + more.0)
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
pub(crate) const fn nanos(duration: Duration) -> u64 {
    duration.as_secs().saturating_mul(1_000_000_000).saturating_add(duration.subsec_nanos() as u64)
}
