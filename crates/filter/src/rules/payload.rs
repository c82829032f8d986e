//! Bytes that rules look for in what packets carry.

use aho_corasick::packed::Searcher;
use aho_corasick::{AhoCorasick, BuildError, Input};

use super::names::FACTOR;

/// Bytes, and where they must be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PayloadPattern {
    /// The bytes; at least one.
    pub bytes: Vec<u8>,
    /// Where.
    pub place: PayloadPlace,
}

/// Where bytes must be, counted from the first byte behind the transport header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PayloadPlace {
    /// They begin at this offset.
    At(usize),
    /// They lie anywhere among so many first bytes.
    Within(usize),
}

/// The patterns of all rules, ready to be looked for.
#[derive(Debug)]
pub(super) struct PayloadSearches {
    rules: Vec<PayloadSearch>,
    /// What tells of most payloads that they have none of all patterns.
    all: Sieve,
}

/// All patterns at once, roughly.
#[derive(Debug, Default)]
struct Sieve {
    /// By offset.
    fixed: Vec<Fixed>,
    /// What may be anywhere.
    anywhere: Anywhere,
    /// The most bytes that are searched for that.
    depth: usize,
}

/// Patterns that must begin at an offset, by their first eight bytes.
#[derive(Debug)]
struct Fixed {
    at: usize,
    /// The bits and the values of what must be there.
    values: Vec<[u64; 2]>,
    /// The bits that all of them have.
    common: u64,
    /// A bit by the hash of each value's common bits: a power of two of words, of which few bits are set.
    bits: Box<[u64]>,
}

/// Patterns that may be anywhere.
#[derive(Debug, Default)]
enum Anywhere {
    /// There are none.
    #[default]
    None,
    /// Few: by the CPU's vectors. They take as long whatever the payload is.
    Few(Box<Searcher>),
    Many(Box<AhoCorasick>),
    /// Too many for one search.
    TooMany,
}

impl PayloadSearches {
    /// Of rules that have some, in order.
    pub(super) fn new(rules: Vec<PayloadSearch>, patterns: &[&PayloadPattern]) -> Self {
        Self { rules, all: Sieve::new(patterns) }
    }

    /// Whether a payload may have a pattern of any rule.
    // Apart: names need registers, too.
    #[inline(never)]
    pub(super) fn may_find(&self, payload: &[u8]) -> bool {
        self.all.passes(payload)
    }

    /// Whether one of a rule's patterns is where it must be.
    pub(super) fn finds(&self, rule: u32, payload: &[u8]) -> bool {
        self.rules.get(rule as usize).is_some_and(|search| search.finds(payload))
    }
}

impl Sieve {
    fn new(patterns: &[&PayloadPattern]) -> Self {
        let (mut sieve, mut anywhere) = (Self::default(), Vec::new());
        let mut fixed = Vec::<(usize, Vec<[u64; 2]>)>::new();
        for PayloadPattern { bytes, place } in patterns {
            match place {
                PayloadPlace::Within(depth) => {
                    sieve.depth = sieve.depth.max(*depth);
                    anywhere.push(&bytes[..]);
                }
                PayloadPlace::At(at) => {
                    let mask = first_eight(&vec![0xff; bytes.len()]);
                    let value = [mask, first_eight(bytes)];
                    match fixed.iter_mut().find(|(known, _)| known == at) {
                        Some((_, values)) => values.push(value),
                        None => fixed.push((*at, vec![value])),
                    }
                }
            }
        }
        sieve.fixed = fixed.into_iter().map(|(at, values)| Fixed::new(at, values)).collect();
        if !anywhere.is_empty() {
            let few = Searcher::new(&anywhere).map(|search| Anywhere::Few(Box::new(search)));
            let many = || AhoCorasick::new(&anywhere).ok().map(|search| Anywhere::Many(Box::new(search)));
            sieve.anywhere = few.or_else(many).unwrap_or(Anywhere::TooMany);
        }
        sieve
    }

    #[inline]
    fn passes(&self, payload: &[u8]) -> bool {
        let searched = &payload[..payload.len().min(self.depth)];
        self.fixed.iter().any(|fixed| fixed.passes(payload))
            || match &self.anywhere {
                Anywhere::None => false,
                Anywhere::Few(search) => search.find(searched).is_some(),
                Anywhere::Many(search) => search.is_match(Input::new(searched)),
                Anywhere::TooMany => true,
            }
    }
}

impl Fixed {
    fn new(at: usize, values: Vec<[u64; 2]>) -> Self {
        let common = values.iter().fold(u64::MAX, |common, [mask, _]| common & mask);
        let words = values.len().div_ceil(4).next_power_of_two();
        let mut fixed = Self { at, values, common, bits: vec![0; words].into() };
        for number in 0..fixed.values.len() {
            let (word, bit) = fixed.place(fixed.values[number][1]);
            fixed.bits[word] |= bit;
        }
        fixed
    }

    #[inline]
    fn passes(&self, payload: &[u8]) -> bool {
        let there = payload.get(self.at..).map_or(0, first_eight);
        let (word, bit) = self.place(there);
        self.bits[word] & bit != 0 && self.values.iter().any(|[mask, value]| there & mask == *value)
    }

    /// The word and the bit of what is there.
    #[inline]
    fn place(&self, there: u64) -> (usize, u64) {
        let hash = (there & self.common).wrapping_mul(FACTOR);
        let word = usize::try_from(hash >> 32).unwrap_or(0) & (self.bits.len() - 1);
        // The uppermost bits, which depend on all others.
        (word, 1 << (hash >> 58))
    }
}

/// The first eight bytes as a number; those that are not there are zero.
#[inline]
fn first_eight(bytes: &[u8]) -> u64 {
    if let Some(whole) = bytes.first_chunk() {
        return u64::from_le_bytes(*whole);
    }
    bytes.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte))
}

/// The patterns of one rule.
#[derive(Debug)]
pub(super) struct PayloadSearch {
    fixed: Box<[(usize, Box<[u8]>)]>,
    /// By the number of bytes that are searched: one pass for all patterns of a number.
    anywhere: Box<[(usize, AhoCorasick)]>,
}

impl PayloadSearch {
    pub(super) fn new(patterns: &[PayloadPattern]) -> Result<Self, BuildError> {
        let (mut fixed, mut depths) = (Vec::new(), Vec::<(usize, Vec<&[u8]>)>::new());
        for PayloadPattern { bytes, place } in patterns {
            match place {
                PayloadPlace::At(at) => fixed.push((*at, bytes[..].into())),
                PayloadPlace::Within(depth) => match depths.iter_mut().find(|(known, _)| known == depth) {
                    Some((_, together)) => together.push(bytes),
                    None => depths.push((*depth, vec![bytes])),
                },
            }
        }
        let search = |(depth, together): (usize, Vec<&[u8]>)| Ok((depth, AhoCorasick::new(together)?));
        let anywhere = depths.into_iter().map(search).collect::<Result<_, _>>()?;
        Ok(Self { fixed: fixed.into(), anywhere })
    }

    /// Whether one of the patterns is where it must be.
    fn finds(&self, payload: &[u8]) -> bool {
        let is_at =
            |(at, bytes): &(usize, Box<[u8]>)| payload.get(*at..).is_some_and(|rest| rest.starts_with(bytes));
        let is_within = |(depth, search): &(usize, AhoCorasick)| {
            search.is_match(Input::new(&payload[..payload.len().min(*depth)]))
        };
        self.fixed.iter().any(is_at) || self.anywhere.iter().any(is_within)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// By the definition.
    fn is_there(pattern: &PayloadPattern, payload: &[u8]) -> bool {
        let PayloadPattern { bytes, place } = pattern;
        let places = payload.windows(bytes.len()).enumerate();
        let mut places = places.filter(|(_, window)| window == bytes).map(|(at, _)| at);
        places.any(|at| match place {
            PayloadPlace::At(wanted) => at == *wanted,
            PayloadPlace::Within(depth) => at + bytes.len() <= *depth,
        })
    }

    proptest! {
        #[test]
        fn patterns_are_found_where_they_must_be(
            patterns in prop::collection::vec((prop::collection::vec(0_u8..3, 1..5), any::<bool>(), 0_usize..12), 2..8),
            payload in prop::collection::vec(0_u8..3, 0..20),
        ) {
            let patterns: Vec<PayloadPattern> = patterns.into_iter().map(|(bytes, fixed, n)| {
                let place = if fixed { PayloadPlace::At(n) } else { PayloadPlace::Within(n) };
                PayloadPattern { bytes, place }
            }).collect();
            let rules: Vec<&[PayloadPattern]> = patterns.chunks(patterns.len().div_ceil(2)).collect();
            let searches = rules.iter().map(|patterns| PayloadSearch::new(patterns).unwrap()).collect();
            let all: Vec<&PayloadPattern> = patterns.iter().collect();
            let searches = PayloadSearches::new(searches, &all);
            for (number, patterns) in (0..).zip(rules) {
                let right = patterns.iter().any(|pattern| is_there(pattern, &payload));
                prop_assert_eq!(searches.finds(number, &payload), right);
                prop_assert!(searches.may_find(&payload) || !right);
            }
        }
    }
}
