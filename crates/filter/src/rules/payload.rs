//! Bytes that rules look for in what packets carry.

use aho_corasick::{AhoCorasick, BuildError, Input};

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

/// The patterns of one rule, ready to be looked for.
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
    pub(super) fn finds(&self, payload: &[u8]) -> bool {
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
            patterns in prop::collection::vec((prop::collection::vec(0_u8..3, 1..5), any::<bool>(), 0_usize..12), 1..5),
            payload in prop::collection::vec(0_u8..3, 0..20),
        ) {
            let patterns: Vec<PayloadPattern> = patterns.into_iter().map(|(bytes, fixed, n)| {
                let place = if fixed { PayloadPlace::At(n) } else { PayloadPlace::Within(n) };
                PayloadPattern { bytes, place }
            }).collect();
            let search = PayloadSearch::new(&patterns).unwrap();
            let right = patterns.iter().any(|pattern| is_there(pattern, &payload));
            prop_assert_eq!(search.finds(&payload), right);
        }
    }
}
