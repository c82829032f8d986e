//! One packet on its way along the rules.
//!
//! What most packets need is short, and a part of the loop that asks for it; what few need is not, so that it does not take the
//! loop's registers: a packet meets few rules.

use super::coded::{Candidate, Candidates};
use super::look::Look;
use super::{Established, Lookup, Plan, RuleSet, Steps};

/// Where a packet is on its way along the rules.
// What moves with each rule is one number, and nobody has a reference to it but the loop that it is a part of: it stays in a register.
// What moves seldom is among the findings.
pub struct Course<'a> {
    set: &'a RuleSet,
    lookup: &'a Lookup,
    packet: &'a [u8],
    wire_len: usize,
    established: &'a Established<'a>,
    findings: &'a mut Findings<'a>,
    /// Where the rules go on that it may meet, if they were put down.
    at: usize,
}

/// What was found out about one packet on its way, beside its lookup. Most packets need little of it.
#[derive(Default)]
pub struct Findings<'a> {
    has_asked: bool,
    candidates: Candidates,
    /// Of its flow, once a rule asked for that.
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
        findings: &'a mut Findings<'a>,
    ) -> Self {
        let at = set.coded.begin(&lookup.found);
        Self { set, lookup, packet, wire_len, established, findings, at }
    }

    /// Whether one of the rules so far has asked user space: the kernel's program knows nothing of those from there on.
    #[inline(always)]
    pub fn has_asked(&self) -> bool {
        self.findings.has_asked
    }

    /// The index of the next rule that the packet meets; when there is none, one that no rule has.
    #[inline(always)]
    pub fn next_index(&mut self) -> usize {
        loop {
            let Candidate { index, is_sure, asks_user_space, .. } = self.next_candidate();
            let index = index as usize;
            if is_sure {
                self.findings.has_asked |= asks_user_space;
                return index;
            }
            if self.holds(index) {
                return index;
            }
        }
    }

    /// The same of rules that the kernel's program finds met, and whether all of the rule is: what stands inside the packet is asked of
    /// user space.
    // Apart: most packets have been seen by that program.
    pub fn next_asked(&mut self) -> (usize, bool) {
        loop {
            let Candidate { index, is_sure, asks_user_space, .. } = self.next_candidate();
            let index = index as usize;
            if is_sure {
                self.findings.has_asked |= asks_user_space;
                return (index, true);
            }
            let Self { set, lookup, packet, wire_len, established, .. } = *self;
            let Some(Plan::Coded(steps) | Plan::Crossed(steps)) = set.plans.get(index) else { continue };
            if steps.has_more
                && !self.findings.passes(set, (index, steps), lookup, (packet, wire_len), established)
            {
                continue;
            }
            return (index, self.holds(index));
        }
    }

    #[inline(always)]
    fn next_candidate(&mut self) -> Candidate {
        let Self { set, lookup, .. } = *self;
        self.findings.candidates.next(&mut self.at, &set.coded, &set.tables, &lookup.found)
    }

    #[inline(always)]
    fn holds(&mut self, index: usize) -> bool {
        let Self { set, lookup, packet, wire_len, established, .. } = *self;
        self.findings.holds(set, index, lookup, packet, wire_len, established)
    }
}

impl<'a> Findings<'a> {
    /// Whether all of a rule holds; its first list does.
    // The arguments are one by one, for a register each.
    #[inline(never)]
    fn holds(
        &mut self,
        set: &RuleSet,
        index: usize,
        lookup: &Lookup,
        packet: &'a [u8],
        wire_len: usize,
        established: &Established<'_>,
    ) -> bool {
        let Some(Plan::Coded(steps) | Plan::Crossed(steps)) = set.plans.get(index) else { return false };
        if steps.has_more && !self.passes(set, (index, steps), lookup, (packet, wire_len), established) {
            return false;
        }
        // It asks before it looks.
        self.has_asked |= steps.asks_user_space;
        let Some(wanted) = &steps.wanted else { return true };
        let look = self.look.get_or_insert_default();
        let finds = look.finds(&set.looks, packet, wanted);
        if !finds {
            self.candidates.left_out |= look.found_none_of(wanted);
        }
        finds
    }

    /// Whether a packet is in all lists but the first, and passes the test.
    #[inline(never)]
    fn passes(
        &mut self,
        set: &RuleSet,
        (index, steps): (usize, &Steps),
        lookup: &Lookup,
        (packet, wire_len): (&[u8], usize),
        established: &Established<'_>,
    ) -> bool {
        steps.bits.iter().skip(1).all(|bit| set.tables.has(&lookup.found, *bit))
            && (!steps.has_test
                || set.rules[index].condition.holds((packet, wire_len), *established, &mut self.age))
    }
}
