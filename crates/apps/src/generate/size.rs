//! How long the packets are: one size, several in turn, a range, or a mix with weights.

use std::str::FromStr;

use bywash_wire::line::{FCS, l1_bits, l2_bits};

use super::series::Shuffle;

/// Longest cycle of sizes: each is precomputed.
const MOST: usize = 10_000;

/// The Simple IMIX: of twelve frames, seven are the shortest, four of 594 and one of 1518 bytes (with FCS), for IP
/// packets of 40, 576 and 1500.
const SIMPLE_IMIX: [(usize, usize); 3] = [(64, 7), (594, 4), (1518, 1)];

/// The sizes of frames, with FCS, as RFC 2544 counts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Sizes {
    /// The template's own; or the shortest, when there is none.
    #[default]
    Natural,
    /// These, over and over.
    Cycle(Vec<usize>),
}

impl From<usize> for Sizes {
    fn from(size: usize) -> Self {
        Self::Cycle(vec![size])
    }
}

/// The text is no list of sizes.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct SizeError(String);

impl FromStr for Sizes {
    type Err = SizeError;

    /// `64`, `64,128`, `64-1518`, `64-1518 step 16`, `64-1518 random`, `imix` or weights: `64:7,594:4,1518:1`.
    fn from_str(text: &str) -> Result<Self, SizeError> {
        let wrong = || {
            SizeError(format!(
                "'{text}' is no size: write 64, 64,128,256, 64-1518, 64-1518 step 16, 64-1518 random, imix, or \
                 weights as in 64:7,594:4,1518:1"
            ))
        };
        let mut words = text.split_whitespace();
        let first = words.next().ok_or_else(wrong)?;
        let number = |text: &str| text.parse::<usize>().ok().filter(|size| *size <= 1 << 20);
        let mut sizes = if first == "imix" {
            spread(&SIMPLE_IMIX)
        } else if first.contains(':') {
            let weight = |part: &str| {
                let (size, weight) = part.split_once(':')?;
                Some((number(size)?, number(weight).filter(|weight| (1..=MOST).contains(weight))?))
            };
            let weights: Vec<_> = first.split(',').map(weight).collect::<Option<_>>().ok_or_else(wrong)?;
            if weights.iter().map(|(_, weight)| weight).sum::<usize>() > MOST {
                return Err(SizeError(format!(
                    "the weights of the sizes make more than {MOST}: write smaller ones"
                )));
            }
            spread(&weights)
        } else if let Some((from, to)) = first.split_once('-') {
            let (from, to) = (number(from).ok_or_else(wrong)?, number(to).ok_or_else(wrong)?);
            if from > to {
                return Err(SizeError(format!(
                    "'{text}' is no size: a range begins with the smaller one: {to}-{from}"
                )));
            }
            let step = match words.clone().next() {
                Some("step") => {
                    words.next();
                    words.next().and_then(number).filter(|step| *step > 0).ok_or_else(wrong)?
                }
                _ => 1,
            };
            (from..=to).step_by(step).take(MOST + 1).collect()
        } else {
            first.split(',').map(number).collect::<Option<_>>().ok_or_else(wrong)?
        };
        match (words.next(), words.next()) {
            (None, None) => {}
            (Some("random"), None) => sizes = shuffled(&sizes),
            _ => return Err(wrong()),
        }
        match sizes.len() {
            0 => Err(wrong()),
            1..=MOST => Ok(Self::Cycle(sizes)),
            _ => Err(SizeError(format!("'{text}' has more than {MOST} sizes: give a range a larger step"))),
        }
    }
}

/// Each size as often as its weight says, and as evenly as can be: always the one that is most behind.
fn spread(weights: &[(usize, usize)]) -> Vec<usize> {
    let total: usize = weights.iter().map(|(_, weight)| weight).sum();
    let mut sent = vec![0_usize; weights.len()];
    let next = |n: usize| {
        let behind = |i: usize| (weights[i].1 * (n + 1)).cast_signed() - (sent[i] * total).cast_signed();
        let most = (0..weights.len()).rev().max_by_key(|i| behind(*i)).unwrap_or_default();
        sent[most] += 1;
        weights[most].0
    };
    (0..total).map(next).collect()
}

fn shuffled(sizes: &[usize]) -> Vec<usize> {
    let shuffle = Shuffle::new(sizes.len() as u64, 1);
    let place = |n: usize| usize::try_from(shuffle.of(n as u64)).unwrap_or_default();
    (0..sizes.len()).map(|n| sizes[place(n)]).collect()
}

/// What a packet takes on the average: rates in bits need it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Mean {
    /// Bytes with FCS.
    pub(super) size: f64,
    /// Bits of the frame.
    pub(super) l2_bits: f64,
    /// Bits of the link.
    pub(super) l1_bits: f64,
}

impl Mean {
    /// Of frames of these lengths, without FCS, each as often as it is there.
    pub(super) fn of(lengths: &[u32]) -> Self {
        let n = f64::from(u32::try_from(lengths.len()).unwrap_or(u32::MAX));
        let mean = |of: fn(u32) -> f64| lengths.iter().copied().map(of).sum::<f64>() / n;
        Self { size: mean(|len| f64::from(len + FCS)), l2_bits: mean(l2_bits), l1_bits: mean(l1_bits) }
    }

    /// Whole bytes with FCS.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "rounded, and not below 0")]
    pub(super) fn rounded_size(self) -> u64 {
        self.size.round() as u64
    }

    /// Packets per second that a link of `bits` per second carries.
    pub(super) fn line_rate(self, bits: u64) -> f64 {
        #[expect(clippy::cast_precision_loss, reason = "links have round speeds")]
        let bits = bits as f64;
        bits / self.l1_bits
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cycle(text: &str) -> Vec<usize> {
        match text.parse().unwrap() {
            Sizes::Cycle(sizes) => sizes,
            Sizes::Natural => vec![],
        }
    }

    #[test]
    fn sizes_are_written_in_six_ways() {
        assert_eq!(cycle("64"), [64]);
        assert_eq!(cycle("64,1518,64"), [64, 1518, 64]);
        assert_eq!(cycle("64-67"), [64, 65, 66, 67]);
        assert_eq!(cycle("64-100 step 16"), [64, 80, 96]);
        assert_eq!(cycle("100:1,200:2"), [200, 100, 200]);
        let mut random = cycle("64-1518 random");
        assert_ne!(random[..3], [64, 65, 66]);
        random.sort_unstable();
        assert_eq!(random, (64..=1518).collect::<Vec<_>>());
    }

    #[test]
    fn the_simple_imix_is_seven_to_four_to_one_and_well_mixed() {
        let imix = cycle("imix");
        let count = |size| imix.iter().filter(|one| **one == size).count();
        assert_eq!((imix.len(), count(64), count(594), count(1518)), (12, 7, 4, 1));
        assert!(imix.windows(2).all(|pair| pair != [594, 594]), "{imix:?}");
        assert_eq!(imix, cycle("64:7,594:4,1518:1"));
        let lengths: Vec<u32> = imix.iter().map(|size| u32::try_from(size - 4).unwrap()).collect();
        let mean = Mean::of(&lengths);
        // (7 * 64 + 4 * 594 + 1518) / 12, and 20 bytes of preamble and gap.
        assert!((mean.size - 361.833_333).abs() < 1e-3 && (mean.l1_bits - 381.833_333 * 8.0).abs() < 1e-2);
        assert_eq!(mean.line_rate(10_000_000_000).floor(), 3_273_679.0);
    }

    #[test]
    fn what_is_no_size_is_refused() {
        for text in [
            "",
            "x",
            "64,",
            "64-",
            "1518-64",
            "64-70 step 0",
            "64-70 step",
            "64 twice",
            "64:0",
            "64:",
            "random",
        ] {
            assert!(text.parse::<Sizes>().unwrap_err().to_string().contains("is no size"), "{text}");
        }
        assert!("1518-64".parse::<Sizes>().unwrap_err().to_string().ends_with("smaller one: 64-1518"));
        assert!("1-20000".parse::<Sizes>().unwrap_err().to_string().contains("larger step"));
        assert!("64:9999,65:9999".parse::<Sizes>().unwrap_err().to_string().contains("smaller"));
    }
}
