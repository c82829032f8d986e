//! The rules that are not just a list, and which of them a packet may meet by the lists that it is in.
//!
//! Most rules join a list, and most packets are in few lists: the others need not be looked at. Nor those that want a name or
//! a payload once it is known that nothing of the kind is in the packet that any rule wants.

use super::look::{KINDS, Kinds};
use super::tables::{Found, Tables};
use super::{Action, MOST_JOINED, Plan, Rule, Steps};

/// A bit for each list that is joined.
type Bits = [u64; MOST_JOINED / 64];

/// Rules by their indices.
#[derive(Debug)]
pub(crate) struct Coded {
    /// Those that join no list, in order.
    free: Vec<Candidate>,
    /// By the bit of a list: the rule that joins it. Of two rules the first one has the lower bits.
    owners: Vec<Candidate>,
    /// Words of these bits.
    words: usize,
    /// The lists that come first in the rules that join them.
    firsts: Bits,
    /// Of these, those that are left without the rules that look for something of some [`Kinds`].
    without: [Bits; KINDS],
    /// Of these, those of limits that lists alone tell; as many words as there is one in.
    limits: Vec<u64>,
    /// Limits of whatever comes.
    free_limits: Vec<usize>,
    /// Those that are crossed, in order.
    crossed: Vec<Candidate>,
}

/// A rule that a packet may meet, and all that most packets need of it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Candidate {
    pub(super) index: u32,
    /// The packet meets it: that it is in its first list, if it joins one, is all that it asks for.
    pub(super) is_sure: bool,
    /// User space has the last word.
    pub(super) asks_user_space: bool,
}

impl Candidate {
    /// Behind the last rule of any set, and where [`Found::first`] is when there is none.
    const NONE: Self = Self { index: NONE, is_sure: false, asks_user_space: false };
}

/// How far the rules are that a packet may meet, in order.
pub(super) struct Candidates {
    /// What is left of a word of the lists that come first, and the number of the word behind it.
    bits: u64,
    next: usize,
    /// How many of those that join no list have been.
    free: usize,
    left_out: Kinds,
    /// The next one that is crossed.
    crossed: u32,
}

/// Behind the last rule of any set, and where [`Found::first`] is when there is none.
pub(super) const NONE: u32 = u32::MAX;

impl Coded {
    pub(super) fn of(plans: &[Plan], rules: &[Rule]) -> Self {
        let none = [0; MOST_JOINED / 64];
        let (free, free_limits, owners) = (Vec::new(), Vec::new(), Vec::new());
        let (limits, crossed) = (Vec::new(), Vec::new());
        let without = [none; KINDS];
        let mut coded = Self { free, owners, words: 0, firsts: none, without, limits, free_limits, crossed };
        for (index, (plan, rule)) in plans.iter().zip(rules).enumerate() {
            let (Plan::Coded(steps) | Plan::Crossed(steps)) = plan else { continue };
            let Steps { bits, has_test, wanted, asks_user_space, .. } = steps;
            let candidate = Candidate {
                index: u32::try_from(index).unwrap_or(NONE),
                is_sure: bits.len() <= 1 && !has_test && wanted.is_none(),
                asks_user_space: *asks_user_space,
            };
            if matches!(plan, Plan::Crossed(_)) {
                coded.crossed.push(candidate);
                continue;
            }
            let is_limit = matches!(rule.action, Action::Limit(_)) && !has_test && wanted.is_none();
            let Some(&first) = bits.first() else {
                coded.free.push(candidate);
                coded.free_limits.extend(is_limit.then_some(index));
                continue;
            };
            let first = first as usize;
            let (word, bit) = (first / 64, 1 << (first % 64));
            coded.firsts[word] |= bit;
            if is_limit {
                coded.limits.resize(word + 1, 0);
                coded.limits[word] |= bit;
            }
            for (kinds, without) in coded.without.iter_mut().enumerate() {
                if wanted.as_ref().is_none_or(|wanted| usize::from(wanted.kinds) & kinds == 0) {
                    without[word] |= bit;
                }
            }
            coded.owners.extend(bits.iter().map(|_| candidate));
        }
        coded.words = coded.owners.len().div_ceil(64);
        coded
    }

    /// The lists that come first in the rules that join them.
    pub(crate) fn firsts(&self) -> &[u64] {
        &self.firsts
    }

    /// Whether there are limits that lists alone tell, or that are about whatever comes.
    #[inline]
    pub(super) fn knows_limits(&self) -> bool {
        !(self.limits.is_empty() && self.free_limits.is_empty())
    }

    /// Calls `each` with limits that such a packet may meet: where lists alone tell, by the first of them.
    #[inline]
    pub(super) fn each_limit(&self, tables: &Tables, found: &Found, mut each: impl FnMut(usize)) {
        self.free_limits.iter().for_each(|index| each(*index));
        let [first, second] = Tables::first_words(found);
        self.each_of(0, first, &mut each);
        self.each_of(1, second, &mut each);
        for number in 2..self.limits.len() {
            self.each_of(number, tables.word(found, number), &mut each);
        }
    }

    /// Calls `each` with the limits that a word of bits tells of.
    #[inline(always)]
    fn each_of(&self, number: usize, bits: u64, each: &mut impl FnMut(usize)) {
        let mut bits = bits & self.limits.get(number).copied().unwrap_or(0);
        while bits != 0 {
            each(self.owners[64 * number + bits.trailing_zeros() as usize].index as usize);
            bits &= bits - 1;
        }
    }
}

impl Candidates {
    /// Those that a packet may meet which is in the lists that were `found`.
    #[inline(always)]
    pub(super) fn new(coded: &Coded, tables: &Tables, found: &Found) -> Self {
        let bits = tables.word(found, 0) & coded.without[0][0];
        let crossed = tables.next_crossed(found, 0).unwrap_or(NONE);
        Self { bits, next: 1, free: 0, left_out: 0, crossed }
    }

    /// The next one; or one that is [`NONE`]. Always for the same packet.
    #[inline(always)]
    pub(super) fn next(&mut self, coded: &Coded, tables: &Tables, found: &Found) -> Candidate {
        while self.bits == 0 && self.next < coded.words {
            self.bits = tables.word(found, self.next) & coded.without[usize::from(self.left_out)][self.next];
            self.next += 1;
        }
        let joined = if self.bits == 0 {
            Candidate::NONE
        } else {
            coded.owners[64 * (self.next - 1) + self.bits.trailing_zeros() as usize]
        };
        let free = coded.free.get(self.free).filter(|free| free.index < joined.index);
        if self.crossed < free.map_or(joined.index, |free| free.index) {
            return self.next_crossed(coded, tables, found);
        }
        match free {
            Some(free) => {
                self.free += 1;
                *free
            }
            None => {
                self.bits &= self.bits.wrapping_sub(1);
                joined
            }
        }
    }

    #[inline(never)]
    fn next_crossed(&mut self, coded: &Coded, tables: &Tables, found: &Found) -> Candidate {
        let index = std::mem::replace(&mut self.crossed, NONE);
        self.crossed = tables.next_crossed(found, index.saturating_add(1)).unwrap_or(NONE);
        let at = coded.crossed.partition_point(|candidate| candidate.index < index);
        coded.crossed.get(at).copied().unwrap_or(Candidate::NONE)
    }

    /// From now on without any.
    pub(super) fn end(&mut self) {
        *self = Self { bits: 0, next: usize::MAX, free: usize::MAX, left_out: 0, crossed: NONE };
    }

    /// From now on without those that look for something of these kinds, where they join a list.
    #[inline]
    pub(super) fn leave_out(&mut self, coded: &Coded, kinds: Kinds) {
        self.left_out |= kinds;
        self.bits &= coded.without[usize::from(self.left_out)][self.next - 1];
    }
}
