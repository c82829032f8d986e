//! How fast: as users write it, and as packets per second.

use std::str::FromStr;
use std::time::Duration;

use super::schedule::{BitRate, Layer, Pace};
use super::size::Mean;
use crate::rate::Bps;

/// A rate that was asked for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Rate {
    /// Packets per second.
    Packets(f64),
    /// Bits of frames per second, with FCS.
    L2(f64),
    /// Bits of the link per second: with FCS, preamble and gap.
    L1(f64),
    /// Per cent of what the link can carry.
    Percent(f64),
}

/// How to write a rate.
const EXAMPLES: &str = "write 1.5M (packets per second), 10Gbps (bits of frames), 10GbpsL1 (bits of the link) or 50% (of the link)";

/// The text is no rate.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RateError {
    /// It is none at all.
    #[error("{EXAMPLES}")]
    NoRate,
    /// The number has another unit.
    #[error("'{0}' is no unit of a rate: {EXAMPLES}")]
    Unit(String),
    /// It is below 0.
    #[error("a rate can't be less than 0; leave out the '-'")]
    Negative,
    /// Nothing would be sent.
    #[error("at that rate nothing is ever sent: ask for more than 0")]
    Zero,
}

impl FromStr for Rate {
    type Err = RateError;

    fn from_str(text: &str) -> Result<Self, RateError> {
        if text.starts_with('-') {
            return Err(RateError::Negative);
        }
        let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
        let (number, unit) = text.split_at(end);
        let number: f64 = number.parse().map_err(|_| RateError::NoRate)?;
        let (scale, kind) = match unit.chars().next() {
            Some('k' | 'K') => (1e3, &unit[1..]),
            Some('M' | 'm') => (1e6, &unit[1..]),
            Some('G' | 'g') => (1e9, &unit[1..]),
            _ => (1.0, unit),
        };
        let value = number * scale;
        if !value.is_finite() {
            return Err(RateError::NoRate);
        }
        let rate = match kind.to_ascii_lowercase().as_str() {
            "" | "pps" => Ok(Self::Packets(value)),
            "bps" | "bpsl2" | "bit/s" => Ok(Self::L2(value)),
            "bpsl1" => Ok(Self::L1(value)),
            "%" if unit == "%" => Ok(Self::Percent(number)),
            _ => Err(RateError::Unit(unit.into())),
        };
        if value > 0.0 { rate } else { rate.and(Err(RateError::Zero)) }
    }
}

impl Rate {
    /// Thousandths of a packet per second, for packets of this mean size on a link of so many bits per second.
    ///
    /// # Errors
    /// A share of a link whose speed nobody knows, or more than the link can carry.
    fn millipackets(self, mean: Mean, link_bits: Option<u64>) -> Result<u64, String> {
        let line_rate = link_bits.map(|bits| mean.line_rate(bits));
        let rate = match self {
            Self::Packets(rate) => rate,
            Self::L2(bits) => bits / mean.l2_bits,
            Self::L1(bits) => bits / mean.l1_bits,
            Self::Percent(share) => {
                let line_rate = line_rate.ok_or(
                    "has a link of unknown speed: say how fast it is (--line-rate 10G), or ask for packets or bits per \
                     second (--rate)",
                )?;
                line_rate * share / 100.0
            }
        };
        // Links run up to 100 ppm fast.
        if let (Some(line_rate), Some(bits)) = (line_rate, link_bits)
            && rate > line_rate * 1.0002
        {
            return Err(format!(
                "carries at most {line_rate:.0} packets/s of {:.0} bytes on its {}; {rate:.0} were asked for (--rate)",
                mean.size,
                Bps(bits)
            ));
        }
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "not below 0; a float saturates"
        )]
        let rate = (rate * 1000.0).round() as u64;
        if (1..=10_000_000_000_000).contains(&rate) {
            Ok(rate)
        } else {
            Err("can't be given that --rate: it must lie between 0.001 and 10 G packets/s".into())
        }
    }
}

impl Rate {
    /// The bits per second that were asked for, if it was bits; on a link of so many bits per second.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "not below 0; a float saturates"
    )]
    fn bits(self, link_bits: Option<u64>) -> Option<BitRate> {
        #[expect(clippy::cast_precision_loss, reason = "links have round speeds")]
        let (layer, bits) = match self {
            Self::Packets(_) => return None,
            Self::L2(bits) => (Layer::L2, bits),
            Self::L1(bits) => (Layer::L1, bits),
            Self::Percent(share) => (Layer::L1, link_bits? as f64 * share / 100.0),
        };
        Some(BitRate { layer, millibits: ((bits * 1000.0).round() as u64).max(1) })
    }
}

/// Packets that leave together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Burst {
    /// How many; at least 1.
    pub packets: u64,
    /// From one burst's start to the next one's; when `None`, the rate decides.
    pub every: Option<Duration>,
}

/// Longest burst.
const LONGEST_BURST: u64 = 1_000_000;

/// When packets are to leave: `None` as fast as it goes. Of this mean size, on a link of so many bits per second.
///
/// # Errors
/// What cannot be, and why.
pub(super) fn pace(
    rate: Option<Rate>,
    burst: Option<Burst>,
    mean: Mean,
    link_bits: Option<u64>,
) -> Result<Option<Pace>, String> {
    let milli = rate.map(|rate| rate.millipackets(mean, link_bits)).transpose()?;
    let Some(Burst { packets, every }) = burst else {
        let bits = rate.and_then(|rate| rate.bits(link_bits));
        let steady = milli.map(Pace::steady);
        return Ok(steady.map(|pace| bits.map_or(pace, |bits| pace.by_bits(bits))));
    };
    if !(1..=LONGEST_BURST).contains(&packets) {
        return Err(format!("can't be given --burst {packets}: it must be 1 to {LONGEST_BURST}"));
    }
    let pace = match (every, milli) {
        (None, Some(milli)) => Pace::bursts(packets, milli),
        (None, None) => return Err("needs to know when bursts come: give --burst-every or --rate".into()),
        (Some(every), milli) => {
            let nanoseconds = u64::try_from(every.as_nanos()).unwrap_or(u64::MAX).max(1);
            let pace = Pace::bursts_each(packets, nanoseconds, milli);
            pace.ok_or_else(|| {
                format!("can't send {packets} packets at that --rate within --burst-every {every:?}: raise one of them")
            })?
        }
    };
    // What a burst makes per second can be more than the link carries, too.
    #[expect(clippy::cast_precision_loss, reason = "compared with a rounded rate")]
    Rate::Packets(pace.millipackets() as f64 / 1000.0).millipackets(mean, link_bits)?;
    Ok(Some(pace))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_written_as_usual() {
        let rate = |text: &str| text.parse::<Rate>().unwrap();
        assert_eq!(rate("1000"), Rate::Packets(1000.0));
        assert_eq!(
            (rate("1.5M"), rate("1.5Mpps"), rate("2k")),
            (Rate::Packets(1.5e6), Rate::Packets(1.5e6), Rate::Packets(2e3))
        );
        assert_eq!(
            (rate("10Gbps"), rate("10GbpsL2"), rate("10gbpsl1")),
            (Rate::L2(1e10), Rate::L2(1e10), Rate::L1(1e10))
        );
        assert_eq!(rate("50%"), Rate::Percent(50.0));
        for text in ["0", "0.0M", "0%", "0GbpsL1"] {
            assert_eq!(text.parse::<Rate>(), Err(RateError::Zero), "{text}");
        }
        assert_eq!("-1".parse::<Rate>(), Err(RateError::Negative));
        for (text, unit) in
            [("0x", "x"), ("5kp", "kp"), ("1Tpps", "Tpps"), ("1k%", "k%"), ("5 kpps", " kpps")]
        {
            assert_eq!(text.parse::<Rate>(), Err(RateError::Unit(unit.into())), "{text}");
        }
        for text in ["", "fast", "%", "1..2", "M"] {
            assert_eq!(text.parse::<Rate>(), Err(RateError::NoRate), "{text}");
        }
    }

    #[test]
    fn every_form_becomes_packets() {
        let of = |rate: Rate| rate.millipackets(Mean::of(&[60]), Some(10_000_000_000));
        assert_eq!(of(Rate::Percent(100.0)), Ok(14_880_952_381));
        assert_eq!(of(Rate::L1(1e10)), Ok(14_880_952_381));
        assert_eq!(of(Rate::L2(5.12e9)), Ok(10_000_000_000));
        assert_eq!(of(Rate::Packets(0.5)), Ok(500));
    }

    #[test]
    fn bits_that_were_asked_for_stay_bits() {
        let link = Some(10_000_000_000);
        let cases = [
            (Rate::Percent(10.0), Some((Layer::L1, 1_000_000_000_000))),
            (Rate::L1(1e7), Some((Layer::L1, 10_000_000_000))),
            (Rate::L2(1e7), Some((Layer::L2, 10_000_000_000))),
            (Rate::Packets(1000.0), None),
        ];
        let mean = Mean::of(&[60, 1514]);
        for (rate, bits) in cases {
            let average = Pace::steady(rate.millipackets(mean, link).unwrap());
            let expected =
                bits.map_or(average, |(layer, millibits)| average.by_bits(BitRate { layer, millibits }));
            assert_eq!(pace(Some(rate), None, mean, link), Ok(Some(expected)), "{rate:?}");
        }
    }

    #[test]
    fn the_impossible_is_refused() {
        let refused = |rate: Rate, link| rate.millipackets(Mean::of(&[60]), link).unwrap_err();
        assert!(refused(Rate::L2(1e10), Some(10_000_000_000)).contains("at most 14880952"));
        assert!(refused(Rate::Percent(50.0), None).contains("unknown"));
        assert!(refused(Rate::Packets(1e-9), None).contains("between"));
        assert!(refused(Rate::Packets(1e300), None).contains("between"));
    }

    #[test]
    fn bursts_need_a_time_and_must_fit_it() {
        let mean = Mean::of(&[60]);
        let of = |rate: Option<f64>, packets, every: Option<u64>| {
            let burst = Burst { packets, every: every.map(Duration::from_millis) };
            pace(rate.map(Rate::Packets), Some(burst), mean, Some(10_000_000_000))
        };
        assert_eq!(of(Some(1000.0), 10, None).unwrap().unwrap().millipackets(), 1_000_000);
        assert_eq!(of(None, 10, Some(100)).unwrap().unwrap().millipackets(), 100_000);
        for (rate, packets, every, says) in [
            (None, 10, None, "--burst-every or --rate"),
            (Some(1000.0), 0, None, "1 to 1000000"),
            (Some(1000.0), 100, Some(10), "raise one of them"),
            (None, 1_000_000, Some(1), "at most 14880952"),
        ] {
            let reason = of(rate, packets, every).unwrap_err();
            assert!(reason.contains(says) && !reason.contains('\n'), "{reason}");
        }
    }
}
