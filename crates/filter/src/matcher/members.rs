//! Is a number one of many? Whichever form answers fastest: a bitmap, a hash table or a search.

use crate::sets::{Range, Ranges};

/// Numbers that can be asked for.
#[derive(Clone, Debug)]
pub(super) enum Members {
    /// A bit for each number from `least` on.
    Bits {
        least: u32,
        bits: Box<[u64]>,
    },
    /// Single numbers, each at the first free place from its hash on. `free` is no member.
    Hashed {
        free: u32,
        shift: u32,
        table: Box<[u32]>,
    },
    Sorted(Ranges),
}

/// From one end of the numbers to the other, for a bitmap: at most 8 KiB of bits, all ports.
const WIDEST: u32 = 1 << 16;

/// Sets of an expression that may become bitmaps: an expression with thousands of them shall not fill the memory.
const MOST_BITMAPS: usize = 64;

/// With fewer ranges looking at each is as fast.
const FEW: usize = 4;

impl Members {
    /// `before` is how many sets the expression has already.
    pub(super) fn new(ranges: &Ranges, before: usize) -> Self {
        let ends = ranges.first().zip(ranges.last()).filter(|_| ranges.len() >= FEW);
        let Some((Range { least, .. }, Range { greatest, .. })) = ends else {
            return Self::Sorted(ranges.clone());
        };
        if greatest - least < WIDEST && before < MOST_BITMAPS {
            Self::bits(*least, greatest - least, ranges)
        } else if ranges.iter().all(|range| range.is_one()) {
            Self::hashed(ranges)
        } else {
            Self::Sorted(ranges.clone())
        }
    }

    fn bits(least: u32, span: u32, ranges: &[Range]) -> Self {
        let mut bits = vec![0; span as usize / 64 + 1];
        for number in ranges.iter().flat_map(|range| range.least - least..=range.greatest - least) {
            bits[number as usize / 64] |= 1 << (number % 64);
        }
        Self::Bits { least, bits: bits.into() }
    }

    fn hashed(ranges: &[Range]) -> Self {
        // Ranges have gaps between them, so that the first free number stands before or right behind the first.
        let free = ranges.first().map_or(0, |range| range.least.wrapping_add(1));
        let size = (2 * ranges.len()).next_power_of_two();
        let shift = u32::BITS - size.trailing_zeros();
        let mut table = vec![free; size];
        for range in ranges {
            let mut place = hash(range.least, shift);
            while table[place % size] != free {
                place += 1;
            }
            table[place % size] = range.least;
        }
        Self::Hashed { free, shift, table: table.into() }
    }

    #[inline]
    pub(super) fn contain(&self, number: u32) -> bool {
        match self {
            Self::Bits { least, bits } => {
                let place = number.wrapping_sub(*least);
                bits.get(place as usize / 64).is_some_and(|word| word >> (place % 64) & 1 != 0)
            }
            Self::Hashed { free, shift, table } => {
                let mut place = hash(number, *shift);
                loop {
                    match table.get(place & (table.len() - 1)) {
                        Some(found) if found == free => return false,
                        Some(found) if *found == number => return true,
                        Some(_) => place += 1,
                        None => return false,
                    }
                }
            }
            Self::Sorted(ranges) => {
                let at = ranges.partition_point(|range| range.greatest < number);
                ranges.get(at).is_some_and(|range| range.least <= number)
            }
        }
    }
}

/// The upper bits of a product: they depend on all bits of the number.
fn hash(number: u32, shift: u32) -> usize {
    (number.wrapping_mul(0x9e37_79b9) >> shift) as usize
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn ranges(starts: &[u32], length: u32) -> Ranges {
        let mut starts = starts.to_vec();
        starts.sort_unstable();
        let mut ranges: Vec<Range> = Vec::new();
        for least in starts {
            if ranges.last().is_none_or(|last| least > last.greatest.saturating_add(1)) {
                ranges.push(Range { least, greatest: least.saturating_add(length) });
            }
        }
        ranges.into()
    }

    proptest! {
        #[test]
        fn every_form_says_the_same(
            starts in prop_oneof![
                prop::collection::vec(any::<u32>(), 1..80),
                prop::collection::vec(0..70_000_u32, 1..80),
                prop::collection::vec(u32::MAX - 500..=u32::MAX, 1..80),
            ],
            length in prop_oneof![Just(0_u32), 0..9_u32],
            asked in any::<u32>(),
        ) {
            let ranges = ranges(&starts, length);
            let forms = [0, MOST_BITMAPS].map(|before| Members::new(&ranges, before));
            let near = starts.iter().flat_map(|start| [start.wrapping_sub(1), *start, start.wrapping_add(length), start.wrapping_add(length + 1)]);
            for number in near.chain([asked, 0, u32::MAX]) {
                let expected = ranges.iter().any(|range| (range.least..=range.greatest).contains(&number));
                for form in &forms {
                    prop_assert_eq!(form.contain(number), expected, "{} in {:?}", number, form);
                }
            }
        }
    }
}
