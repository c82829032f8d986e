//! The rules that are not just a list, and which of them a packet may meet by the lists that it is in.
//!
//! Most rules join a list, and most packets are in few lists: the others need not be looked at. Nor those that want a name or
//! a payload once it is known that nothing of the kind is in the packet that any rule wants.

use super::look::Sought;
use super::tables::Found;
use super::{MOST_JOINED, Plan};

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
    /// Of these, those of rules that look for something, by what that is.
    looks: [Bits; 2],
}

/// The rules that a packet may meet, in order.
pub(super) struct Candidates<'a> {
    coded: &'a Coded,
    found: &'a Found,
    free: &'a [usize],
    words: usize,
    /// The word that comes next, and what is left of the one before.
    next: usize,
    bits: u64,
    /// A bit for each of [`Sought`].
    left_out: u32,
}

impl Coded {
    pub(super) fn of(plans: &[Plan]) -> Self {
        let none = [0; MOST_JOINED / 64];
        let mut coded = Self { free: Vec::new(), owners: Vec::new(), firsts: none, looks: [none; 2] };
        for (index, plan) in plans.iter().enumerate() {
            let Plan::Coded(bits, wanted) = plan else { continue };
            let Some(&first) = bits.first() else {
                coded.free.push(index);
                continue;
            };
            let (word, bit) = (first as usize / 64, 1 << (first % 64));
            coded.firsts[word] |= bit;
            for sought in Sought::ALL {
                if wanted.as_ref().is_some_and(|wanted| wanted.has(sought)) {
                    coded.looks[sought as usize][word] |= bit;
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

    /// Those that a packet may meet which is in the lists that were `found`: bits have so many words.
    #[inline]
    pub(super) fn candidates<'a>(&'a self, found: &'a Found, words: usize) -> Candidates<'a> {
        Candidates { coded: self, found, free: &self.free, words, next: 0, bits: 0, left_out: 0 }
    }
}

impl Candidates<'_> {
    /// From now on without those that look for something, where they join a list.
    pub(super) fn leave_out(&mut self, sought: Sought) {
        self.left_out |= 1 << sought as u32;
        self.bits &= !self.coded.looks[sought as usize][self.next.saturating_sub(1)];
    }
}

impl Iterator for Candidates<'_> {
    type Item = usize;

    #[inline]
    fn next(&mut self) -> Option<usize> {
        while self.bits == 0 && self.next < self.words {
            self.bits = self.found.word(self.next) & self.coded.firsts[self.next];
            for sought in Sought::ALL {
                if self.left_out & 1 << sought as u32 != 0 {
                    self.bits &= !self.coded.looks[sought as usize][self.next];
                }
            }
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
