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
    free: Vec<usize>,
    /// By the bit of a list: the rule that joins it. Of two rules the first one has the lower bits.
    owners: Vec<usize>,
    /// The lists that come first in the rules that join them.
    firsts: Bits,
    /// Of these, those of rules that look for something of some [`Kinds`].
    looks: [Bits; KINDS],
    /// Of these, those of limits that lists alone tell; as many words as there is one in.
    limits: Vec<u64>,
    /// Limits of whatever comes.
    free_limits: Vec<usize>,
}

/// The rules that a packet may meet, in order.
pub(super) struct Candidates<'a> {
    coded: &'a Coded,
    tables: &'a Tables,
    found: &'a Found,
    free: &'a [usize],
    /// The word that comes next, and what is left of the one before.
    next: usize,
    bits: u64,
    left_out: Kinds,
}

impl Coded {
    pub(super) fn of(plans: &[Plan], rules: &[Rule]) -> Self {
        let none = [0; MOST_JOINED / 64];
        let (free, free_limits, owners) = (Vec::new(), Vec::new(), Vec::new());
        let limits = Vec::new();
        let mut coded = Self { free, owners, firsts: none, looks: [none; KINDS], limits, free_limits };
        for (index, (plan, rule)) in plans.iter().zip(rules).enumerate() {
            let Plan::Coded(Steps { bits, has_test, wanted, .. }) = plan else { continue };
            let is_limit = matches!(rule.action, Action::Limit(_)) && !has_test && wanted.is_none();
            let Some(&first) = bits.first() else {
                coded.free.push(index);
                coded.free_limits.extend(is_limit.then_some(index));
                continue;
            };
            let (word, bit) = (first as usize / 64, 1 << (first % 64));
            coded.firsts[word] |= bit;
            if is_limit {
                coded.limits.resize(word + 1, 0);
                coded.limits[word] |= bit;
            }
            for (kinds, looks) in coded.looks.iter_mut().enumerate() {
                if wanted.as_ref().is_some_and(|wanted| wanted.kinds() & kinds != 0) {
                    looks[word] |= bit;
                }
            }
            coded.owners.extend(bits.iter().map(|_| index));
        }
        coded
    }

    /// The lists that come first in the rules that join them.
    pub(crate) fn firsts(&self) -> &[u64] {
        &self.firsts
    }

    /// Those that a packet may meet which is in the lists that were `found`.
    #[inline]
    pub(super) fn candidates<'a>(&'a self, tables: &'a Tables, found: &'a Found) -> Candidates<'a> {
        Candidates { coded: self, tables, found, free: &self.free, next: 0, bits: 0, left_out: 0 }
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
        for (word, limits) in self.limits.iter().enumerate() {
            let mut bits = tables.word(found, word) & limits;
            while bits != 0 {
                each(self.owners[64 * word + bits.trailing_zeros() as usize]);
                bits &= bits - 1;
            }
        }
    }
}

impl Candidates<'_> {
    /// From now on without those that look for something of these kinds, where they join a list.
    #[inline]
    pub(super) fn leave_out(&mut self, kinds: Kinds) {
        self.left_out |= kinds;
        self.bits &= !self.coded.looks[self.left_out][self.next.saturating_sub(1)];
    }
}

impl Iterator for Candidates<'_> {
    type Item = usize;

    #[inline]
    fn next(&mut self) -> Option<usize> {
        while self.bits == 0 && self.next < self.tables.words() {
            let left_out = self.coded.looks[self.left_out][self.next];
            self.bits = self.tables.word(self.found, self.next) & self.coded.firsts[self.next] & !left_out;
            self.next += 1;
        }
        let joined = (self.bits != 0).then(|| 64 * (self.next - 1) + self.bits.trailing_zeros() as usize);
        let joined = joined.and_then(|bit| self.coded.owners.get(bit).copied());
        match self.free.split_first() {
            Some((&free, rest)) if joined.is_none_or(|joined| free < joined) => {
                self.free = rest;
                Some(free)
            }
            _ => {
                self.bits &= self.bits.wrapping_sub(1);
                joined
            }
        }
    }
}
