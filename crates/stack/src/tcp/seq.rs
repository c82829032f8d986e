//! Sequence numbers: 32 bits that wrap (RFC 9293, 3.4).

use std::ops::{Add, Sub};

/// A sequence number. `a.before(b)` means that it comes less than half the number space earlier.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Seq(pub(crate) u32);

impl Seq {
    #[inline]
    pub(crate) fn before(self, other: Self) -> bool {
        other.0.wrapping_sub(self.0).cast_signed() > 0
    }

    #[inline]
    pub(crate) fn after(self, other: Self) -> bool {
        other.before(self)
    }

    #[inline]
    pub(crate) fn max(self, other: Self) -> Self {
        if self.before(other) { other } else { self }
    }

    #[inline]
    pub(crate) fn min(self, other: Self) -> Self {
        if self.before(other) { self } else { other }
    }
}

impl Add<u32> for Seq {
    type Output = Self;

    #[inline]
    fn add(self, n: u32) -> Self {
        Self(self.0.wrapping_add(n))
    }
}

impl Sub<u32> for Seq {
    type Output = Self;

    #[inline]
    fn sub(self, n: u32) -> Self {
        Self(self.0.wrapping_sub(n))
    }
}

impl Sub for Seq {
    type Output = u32;

    /// How far `self` is beyond `earlier`.
    #[inline]
    fn sub(self, earlier: Self) -> u32 {
        self.0.wrapping_sub(earlier.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn order_survives_the_wrap() {
        let (a, b) = (Seq(u32::MAX - 1), Seq(3));
        assert!(a.before(b) && b.after(a) && !a.before(a) && !b.before(a));
        assert_eq!((b - a, a + 5, b - 5, a.max(b), a.min(b)), (5, b, a, b, a));
    }
}
