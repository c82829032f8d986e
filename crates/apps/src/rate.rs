//! Packets and bits per second: as counted, and as written for people.

use std::fmt;
use std::ops::{Add, AddAssign, Sub};

use bywash_port::QueueCounters;
use bywash_wire::line::{FCS, MIN_FRAME, PREAMBLE_AND_GAP};

/// How far behind its schedule a sender may be and still catch up. Of pauses up to this nothing is left after some time,
/// and those of a busy or virtual machine take milliseconds, some tens at worst. So long a time's packets may have to find
/// room in the receiver's rings at once.
pub const MAX_LAG_NS: u64 = 100_000_000;

/// So many packets with so many bytes, without FCS.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Packets.
    pub packets: u64,
    /// Their bytes, without FCS.
    pub bytes: u64,
}

impl Traffic {
    /// Bits of frames with padding and FCS per second: what RFC 2544 calls the frame's size.
    pub fn l2_rate(self, seconds: f64) -> u64 {
        self.rate_with(FCS, seconds)
    }

    /// Bits per second that the wire is busy: with preamble and gap, too.
    pub fn l1_rate(self, seconds: f64) -> u64 {
        self.rate_with(FCS + PREAMBLE_AND_GAP, seconds)
    }

    /// Short frames are padded as if all had the same length, since what each had is not known.
    fn rate_with(self, beside: u32, seconds: f64) -> u64 {
        let bytes = self.bytes.max(self.packets * u64::from(MIN_FRAME));
        per_second((bytes + self.packets * u64::from(beside)) * 8, seconds)
    }
}

impl From<QueueCounters> for Traffic {
    fn from(counters: QueueCounters) -> Self {
        Self { packets: counters.packets, bytes: counters.bytes }
    }
}

impl Add for Traffic {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self { packets: self.packets + other.packets, bytes: self.bytes + other.bytes }
    }
}

impl AddAssign for Traffic {
    fn add_assign(&mut self, other: Self) {
        *self = *self + other;
    }
}

impl Sub for Traffic {
    type Output = Self;

    fn sub(self, other: Self) -> Self {
        Self {
            packets: self.packets.saturating_sub(other.packets),
            bytes: self.bytes.saturating_sub(other.bytes),
        }
    }
}

/// So much in so many seconds, per second, rounded; 0 in no time at all.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::cast_precision_loss,
    reason = "a rate is a rounded figure, not below 0, and a float beyond 64 bits becomes the largest number"
)]
pub fn per_second(amount: u64, seconds: f64) -> u64 {
    if seconds > 0.0 { (amount as f64 / seconds).round() as u64 } else { 0 }
}

/// Packets per second, for people: `14.88 Mpps`.
#[derive(Clone, Copy, Debug)]
pub struct Pps(pub u64);

impl fmt::Display for Pps {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        scaled(f, self.0, "pps")
    }
}

/// Bits per second, for people: `9.87 Gbit/s`.
#[derive(Clone, Copy, Debug)]
pub struct Bps(pub u64);

impl fmt::Display for Bps {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        scaled(f, self.0, "bit/s")
    }
}

fn scaled(f: &mut fmt::Formatter<'_>, value: u64, unit: &str) -> fmt::Result {
    let (divisor, prefix) = match value {
        0..1_000 => return write!(f, "{value} {unit}"),
        1_000..1_000_000 => (1e3, "k"),
        1_000_000..1_000_000_000 => (1e6, "M"),
        _ => (1e9, "G"),
    };
    #[expect(clippy::cast_precision_loss, reason = "three digits are shown")]
    let shown = value as f64 / divisor;
    write!(f, "{shown:.*} {prefix}{unit}", if shown < 100.0 { 2 } else { 1 })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn line_rate_of_the_smallest_frames_is_known() {
        // 14 880 952 frames of 60 bytes (64 with FCS) fill 10 Gbit/s; the wire pads what is shorter.
        let full = Traffic { packets: 14_880_952, bytes: 14_880_952 * 60 };
        assert_eq!(full.l1_rate(1.0), 9_999_999_744);
        let short = Traffic { bytes: full.packets * 42, ..full };
        assert_eq!((short.l1_rate(1.0), short.l2_rate(2.0)), (9_999_999_744, 14_880_952 * 64 * 4));
        assert_eq!(full.l2_rate(2.0), 14_880_952 * 64 * 4);
        assert_eq!(full.l2_rate(0.0), 0);
    }

    #[test]
    fn people_get_three_or_four_digits() {
        let pps: Vec<String> =
            [999, 1_500, 150_000, 14_880_952, 2_000_000_000].iter().map(|&n| Pps(n).to_string()).collect();
        assert_eq!(pps, ["999 pps", "1.50 kpps", "150.0 kpps", "14.88 Mpps", "2.00 Gpps"]);
        assert_eq!(Bps(10_000_000_000).to_string(), "10.00 Gbit/s");
    }
}
