//! Which value a field has in the packet of a number: the same in every run, however many queues send.

use super::values::{Order, Set, Values};

/// The values of a field, by position, and the way from a packet's number to a position.
///
/// All values are numbers of a field of up to 64 bits; longer fields have a series for each part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Series {
    pub(super) values: Sequence,
    /// Positions there are; 0 means 2⁶⁴.
    pub(super) count: u64,
    /// So many packets have the same position.
    pub(super) every: u64,
    /// Mixes the positions.
    pub(super) shuffle: Option<Shuffle>,
}

/// Values by position.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Sequence {
    /// `first + position * step`, in the field's bits.
    Steps { first: u64, step: u64 },
    /// These.
    List(Box<[u64]>),
}

impl Series {
    /// These values in turn.
    pub(super) fn list(values: Vec<u64>) -> Self {
        Self { count: values.len() as u64, values: Sequence::List(values.into()), every: 1, shuffle: None }
    }

    /// What `values` says of bits `shift..shift + bits` of the whole value. `seed` is for those who name none.
    ///
    /// # Errors
    /// When a range leads through other bits too.
    pub(super) fn part(values: &Values, (shift, bits): (u32, u32), seed: u64) -> Result<Self, String> {
        let mask = u64::MAX >> (64 - bits);
        #[expect(clippy::cast_possible_truncation, reason = "masked")]
        let cut = |value: u128| (value >> shift) as u64 & mask;
        let step_of =
            |step: u128| u64::try_from(step).map_err(|_| "that step is larger than any range".to_owned());
        let is_random = matches!(values.order, Order::Random { .. });
        let mut series = match &values.set {
            Set::List(list) => Self::list(list.iter().copied().map(cut).collect()),
            Set::From { first, .. } if shift > 0 => Self::list(vec![cut(*first)]),
            Set::From { first, step, least: 0 } => {
                Self::steps(cut(*first), step_of(*step)?, mask.wrapping_add(1))
            }
            // Only ports have a least value: these are not many.
            Set::From { first, step, least } => {
                let count = u128::from(mask) - least + 1;
                let value = |n| least + (first - least + n * (step % count)) % count;
                Self::list((0..count).map(value).map(cut).collect())
            }
            Set::Range { first, last, .. } if first >> shift == last >> shift => {
                Self::list(vec![cut(*first)])
            }
            // The upper part of values in turn stays as it is: the lower part goes round first.
            Set::Range { first, .. } if shift > 0 && !is_random => Self::list(vec![cut(*first)]),
            Set::Range { first, last, step: 1 } if shift > 0 => {
                Self::steps(cut(*first), 1, (cut(*last) - cut(*first)).wrapping_add(1))
            }
            Set::Range { first, last, step: 1 } if cut(*first) == 0 && cut(*last) == mask => {
                Self::steps(0, 1, mask.wrapping_add(1))
            }
            Set::Range { first, last, step } => {
                let above = |value: u128| value.checked_shr(bits).unwrap_or(0);
                if shift > 0 || above(*first) != above(*last) {
                    return Err(format!(
                        "a range may differ in the lower {bits} bits only, unless it is a prefix"
                    ));
                }
                let step = step_of(*step)?;
                Self::steps(cut(*first), step, ((cut(*last) - cut(*first)) / step).wrapping_add(1))
            }
        };
        series.every = values.every;
        match values.order {
            Order::Up => {}
            Order::Down => series.reverse(matches!(values.set, Set::From { .. })),
            Order::Random { seed: own } => {
                series.shuffle = Some(Shuffle::new(series.count, own.unwrap_or(seed)));
            }
        }
        Ok(series)
    }

    fn steps(first: u64, step: u64, count: u64) -> Self {
        Self { values: Sequence::Steps { first, step }, count, every: 1, shuffle: None }
    }

    /// Turns the order round; one without an end begins where it began.
    fn reverse(&mut self, is_endless: bool) {
        match &mut self.values {
            Sequence::List(list) => {
                list.reverse();
                if is_endless {
                    list.rotate_right(1);
                }
            }
            Sequence::Steps { first, step } => {
                if !is_endless {
                    *first = first.wrapping_add(self.count.wrapping_sub(1).wrapping_mul(*step));
                }
                *step = step.wrapping_neg();
            }
        }
    }

    /// The position of a packet.
    pub(super) fn position(&self, packet: u64) -> u64 {
        let steps = packet / self.every;
        if self.count == 0 { steps } else { steps % self.count }
    }

    /// The value at a position; more bits than the field has may be set.
    #[inline]
    pub(super) fn at(&self, position: u64) -> u64 {
        let position = self.shuffle.map_or(position, |shuffle| shuffle.of(position));
        match &self.values {
            Sequence::Steps { first, step } => first.wrapping_add(position.wrapping_mul(*step)),
            Sequence::List(list) => {
                list.get(usize::try_from(position).unwrap_or(usize::MAX)).copied().unwrap_or_default()
            }
        }
    }

    /// The value in the packet of this number.
    pub(super) fn value(&self, packet: u64) -> u64 {
        self.at(self.position(packet))
    }
}

/// `a + b` in a circle of `count`; both must be less. 0 means 2⁶⁴.
#[inline]
pub(super) fn add(a: u64, b: u64, count: u64) -> u64 {
    // Without a sum that overflows: whether `a` is at or beyond the point from which `b` leads round.
    let turn = count.wrapping_sub(b);
    if a >= turn { a - turn } else { a.wrapping_add(b) }
}

/// A rearrangement of the numbers below a count: each comes once.
///
/// Odd factors and shifted exclusive ors can be undone, within a power of two; what falls above the count goes round
/// again, until it falls below, which keeps each number's place its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Shuffle {
    pub(super) count: u64,
    pub(super) mask: u64,
    pub(super) shift: u32,
    pub(super) add: u64,
    pub(super) factors: [u64; 2],
}

impl Shuffle {
    /// Of `count` numbers (0 means 2⁶⁴), in an order that `seed` decides.
    pub(super) fn new(count: u64, seed: u64) -> Self {
        let bits = 64 - count.wrapping_sub(1).leading_zeros();
        let mask = u64::MAX.checked_shr(64 - bits).unwrap_or(0);
        let mut state = seed;
        let mut next = || mixed(&mut state);
        Self { count, mask, shift: bits / 2 + 1, add: next(), factors: [next() | 1, next() | 1] }
    }

    #[inline]
    pub(super) fn of(self, number: u64) -> u64 {
        let mut x = number;
        loop {
            x = x.wrapping_add(self.add) & self.mask;
            x ^= x >> self.shift;
            x = x.wrapping_mul(self.factors[0]) & self.mask;
            x ^= x >> self.shift;
            x = x.wrapping_mul(self.factors[1]) & self.mask;
            x ^= x >> self.shift;
            if x < self.count || self.count == 0 {
                return x;
            }
        }
    }
}

/// Sebastiano Vigna's splitmix64.
pub(super) fn mixed(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;
    use crate::generate::values::Kind;

    fn series(text: &str) -> Series {
        let values = Values::parse(text, Kind::Number, (0, 0xffff)).unwrap();
        Series::part(&values, (0, 16), 1).unwrap()
    }

    fn first<const N: usize>(series: &Series) -> [u64; N] {
        std::array::from_fn(|n| series.value(n as u64) & 0xffff)
    }

    #[test]
    fn values_come_in_turn_and_again() {
        assert_eq!(first(&series("7")), [7; 5]);
        assert_eq!(first(&series("5,9,1")), [5, 9, 1, 5, 9]);
        assert_eq!(first(&series("5,9,1 down")), [1, 9, 5, 1, 9]);
        assert_eq!(first(&series("10-20 step 4")), [10, 14, 18, 10, 14]);
        assert_eq!(first(&series("10-20 step 4 down")), [18, 14, 10, 18, 14]);
        assert_eq!(first(&series("10-12 every 2")), [10, 10, 11, 11, 12]);
        assert_eq!(first(&series("65534+")), [65_534, 65_535, 0, 1, 2]);
        assert_eq!(first(&series("65530+ step 4")), [65_530, 65_534, 2, 6, 10]);
        assert_eq!(first(&series("1+ down")), [1, 0, 65_535, 65_534, 65_533]);
    }

    #[test]
    fn values_go_on_from_the_least_there_is() {
        let series = |text: &str| {
            let values = Values::parse(text, Kind::Number, (1, 0xffff)).unwrap();
            Series::part(&values, (0, 16), 1).unwrap()
        };
        assert_eq!(first(&series("65534+")), [65_534, 65_535, 1, 2, 3]);
        assert_eq!(first(&series("65530+ step 4")), [65_530, 65_534, 3, 7, 11]);
        assert_eq!(first(&series("2+ down")), [2, 1, 65_535, 65_534, 65_533]);
        assert_eq!(first(&series("2+ down step 3")), [2, 65_534, 65_531, 65_528, 65_525]);
        assert_eq!(first(&series("65535+ every 2")), [65_535, 65_535, 1, 1, 2]);
        let random = series("1000+ random");
        let different: HashSet<u64> = (0..random.count).map(|n| random.value(n)).collect();
        assert_eq!((different.len(), different.contains(&0)), (65_535, false));
    }

    #[test]
    fn random_values_come_once_each_and_the_same_with_the_same_seed() {
        for count in [1, 2, 3, 7, 8, 100, 1000, 4096, 65_536] {
            let last = count - 1;
            let random = series(&format!("0-{last} random seed 5"));
            let values: Vec<u64> = (0..count).map(|n| random.value(n)).collect();
            let different: HashSet<u64> = values.iter().copied().collect();
            assert_eq!(different.len() as u64, count);
            assert!(values.iter().all(|value| *value < count));
            assert_eq!(random.value(count), values[0]);
            if count >= 100 {
                let in_order = values.windows(2).filter(|pair| pair[0] + 1 == pair[1]).count() as u64;
                assert!(in_order < count / 20, "{in_order} of {count} follow each other");
                assert_ne!(series(&format!("0-{last} random seed 6")).value(0), values[0], "{count}");
            }
        }
    }

    #[test]
    fn a_circle_of_all_64_bits_has_no_end() {
        assert_eq!(add(u64::MAX, 1, 0), 0);
        assert_eq!(add(u64::MAX, 0, 0), u64::MAX);
        assert_eq!(add(u64::MAX - 1, u64::MAX - 1, u64::MAX), u64::MAX - 2);
        assert_eq!((add(3, 4, 8), add(4, 4, 8), add(0, 0, 8), add(7, 7, 8)), (7, 0, 0, 6));
        let whole = Shuffle::new(0, 3);
        let different: HashSet<u64> = (0..10_000).map(|n| whole.of(n)).collect();
        assert_eq!(different.len(), 10_000);
        assert!(different.iter().any(|value| *value > u64::MAX / 2));
    }

    #[test]
    fn long_values_are_made_of_parts() {
        let parts = |text: &str| {
            let values = Values::parse(text, Kind::Ipv6, (0, u128::MAX)).unwrap();
            (Series::part(&values, (64, 64), 1), Series::part(&values, (0, 64), 2))
        };
        let (upper, lower) = parts("fd00::/64");
        assert!(upper.unwrap().count == 1);
        assert_eq!(lower.unwrap().count, 0);
        let (upper, lower) = parts("fd00::/32 random");
        assert_eq!(upper.as_ref().unwrap().count, 1 << 32);
        assert_eq!(upper.unwrap().value(9) >> 32, 0xfd00_0000);
        assert_eq!(lower.unwrap().count, 0);
        let (upper, lower) = parts("fd00::5,fd01::6");
        assert_eq!((upper.unwrap().value(1) >> 48, lower.unwrap().value(1)), (0xfd01, 6));
        let (upper, lower) = parts("fd00::/32");
        assert!(upper.unwrap().count == 1, "in turn, the lower half goes round first");
        assert_eq!(lower.unwrap().value(77), 77);
        let (upper, lower) = parts("fd00::fffe+");
        assert!(upper.unwrap().count == 1);
        assert_eq!(lower.unwrap().value(2), 0x1_0000);
        assert!(parts("fd00::-fd01::7").1.unwrap_err().contains("lower 64 bits"));
        assert!(parts("fd00::5-fd01::7 random").1.unwrap_err().contains("lower 64 bits"));
    }
}
