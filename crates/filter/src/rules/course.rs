//! One packet on its way along the rules.
//!
//! What most packets need is short, and a part of the loop that asks for it; what few need is not, so that it does not take the
//! loop's registers: a packet meets few rules.

use super::coded::{Candidate, Candidates, NONE};
use super::look::Look;
use super::{Established, Lookup, Plan, RuleSet, Steps};

/// Where a packet is on its way along the rules.
pub struct Course<'a> {
    set: &'a RuleSet,
    lookup: &'a Lookup,
    packet: &'a [u8],
    wire_len: usize,
    established: &'a Established<'a>,
    candidates: Candidates,
    /// The first rule that is met by a list alone: no other one comes behind it.
    first: u32,
    has_asked: bool,
    /// Of the packet's flow, once it was asked for.
    age: Option<Option<u32>>,
    /// Once a rule wanted one.
    look: Option<Look<'a>>,
}

impl<'a> Course<'a> {
    /// At the beginning. The packet was looked up in the set, and had `wire_len` bytes, of which `packet` has the first.
    #[inline(always)]
    pub(super) fn new(
        set: &'a RuleSet,
        lookup: &'a Lookup,
        (packet, wire_len): (&'a [u8], usize),
        established: &'a Established<'a>,
    ) -> Self {
        let first = lookup.found.first();
        let candidates = Candidates::new(&set.coded, &set.tables, &lookup.found);
        Self {
            set,
            lookup,
            packet,
            wire_len,
            established,
            candidates,
            first,
            has_asked: false,
            age: None,
            look: None,
        }
    }

    /// Whether one of the rules so far has asked user space: the kernel's program knows nothing of those from there on.
    #[inline]
    pub fn has_asked(&self) -> bool {
        self.has_asked
    }

    /// The index of the next rule that the packet meets; when there is none, one that no rule has.
    #[inline(always)]
    pub fn next_index(&mut self) -> usize {
        let set = self.set;
        loop {
            let Candidate { index, is_sure, asks_user_space } =
                self.candidates.next(&set.coded, &set.tables, &self.lookup.found);
            if index >= self.first {
                return self.end() as usize;
            }
            if is_sure {
                self.has_asked |= asks_user_space;
                return index as usize;
            }
            if self.holds(index as usize) {
                return index as usize;
            }
        }
    }

    /// The same of rules that the kernel's program finds met, and whether all of the rule is: what stands inside the packet is asked of
    /// user space.
    // Apart: most packets have been seen by that program.
    pub fn next_asked(&mut self) -> (usize, bool) {
        let set = self.set;
        loop {
            let Candidate { index, is_sure, asks_user_space } =
                self.candidates.next(&set.coded, &set.tables, &self.lookup.found);
            if index >= self.first {
                return (self.end() as usize, true);
            }
            let index = index as usize;
            if is_sure {
                self.has_asked |= asks_user_space;
                return (index, true);
            }
            let Some(Plan::Coded(steps) | Plan::Crossed(steps)) = set.plans.get(index) else { continue };
            if steps.has_more && !self.passes(index, steps) {
                continue;
            }
            return (index, self.holds(index));
        }
    }

    /// From now on there is none.
    fn end(&mut self) -> u32 {
        self.candidates.end();
        std::mem::replace(&mut self.first, NONE)
    }

    /// Whether all of a rule holds; its first list does.
    #[inline(never)]
    fn holds(&mut self, index: usize) -> bool {
        let Some(Plan::Coded(steps) | Plan::Crossed(steps)) = self.set.plans.get(index) else { return false };
        if steps.has_more && !self.passes(index, steps) {
            return false;
        }
        // It asks before it looks.
        self.has_asked |= steps.asks_user_space;
        let Some(wanted) = &steps.wanted else { return true };
        let look = self.look.get_or_insert_default();
        let finds = look.finds(&self.set.looks, self.packet, wanted);
        if !finds {
            self.candidates.leave_out(&self.set.coded, look.found_none_of(wanted));
        }
        finds
    }

    /// Whether a packet is in all lists but the first, and passes the test.
    #[inline(never)]
    fn passes(&mut self, index: usize, steps: &Steps) -> bool {
        let Self { set, lookup, packet, wire_len, established, .. } = *self;
        steps.bits.iter().skip(1).all(|bit| set.tables.has(&lookup.found, *bit))
            && (!steps.has_test
                || set.rules[index].condition.holds((packet, wire_len), *established, &mut self.age))
    }
}
