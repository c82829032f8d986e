//! Which counter is which rule's, also of rules that hold no longer.
//!
//! Whatever a counter has counted is somebody's: a rule that goes keeps its counter, with what packets add that the old program
//! still has, until a new rule finds no other one. What it had by then is counted together with others of its kind.

use std::collections::{HashMap, VecDeque};

use bywash_filter::rules::{MOST_RULES, RuleSet};
use bywash_port::{RuleCount, RuleId};

/// The counters of rules.
#[derive(Clone, Debug, Default)]
pub(super) struct Slots {
    /// Of rules that hold, by name.
    now: HashMap<String, Slot>,
    /// Of rules that hold no longer, those that went first in front.
    past: VecDeque<Slot>,
    /// What those had counted whose counter another rule has needed.
    nameless: HashMap<RuleId, RuleCount>,
    /// Rules that have such a counter and whose it was before, as one of its kind: the old program may count for that one still.
    given: Vec<(String, RuleId)>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Slot {
    rule: RuleId,
    number: u32,
    /// What rules before this one have counted there.
    before: [u64; 2],
}

impl Slot {
    /// What the rule has counted, when the counter is at `now`.
    fn count(&self, now: [u64; 2]) -> RuleCount {
        let [packets, bytes] = [0, 1].map(|word| now[word].saturating_sub(self.before[word]));
        RuleCount { packets, bytes }
    }
}

impl Slots {
    /// Counters for the rules of `set`: those that had one have it still, or again. `counted` says where a counter is.
    pub(super) fn with(&self, set: &RuleSet, counted: impl Fn(u32) -> [u64; 2]) -> Self {
        let mut last: Vec<&Slot> = self.now.values().collect();
        last.sort_unstable_by_key(|slot| slot.number);
        let known: Vec<&Slot> = self.past.iter().chain(last).collect();
        let mut by_rule: HashMap<&RuleId, &Slot> = known.iter().map(|slot| (&slot.rule, *slot)).collect();
        let (mut now, mut new) = (HashMap::new(), Vec::new());
        for rule in set.rules().iter().map(RuleId::from) {
            match by_rule.remove(&rule) {
                Some(slot) => drop(now.insert(rule.name, slot.clone())),
                None => new.push(rule),
            }
        }
        let gone = known.into_iter().filter(|slot| by_rule.contains_key(&slot.rule));
        let (mut past, mut nameless): (VecDeque<Slot>, _) = (gone.cloned().collect(), self.nameless.clone());
        let mut is_free = vec![true; MOST_RULES];
        for slot in now.values().chain(&past) {
            is_free[slot.number as usize] = false;
        }
        let mut given = Vec::new();
        let mut free = (0..).zip(is_free).filter_map(|(number, is_free)| is_free.then_some(number));
        for rule in new {
            // A set has no more rules than there are counters: where none is free, another one has been given up.
            let slot = match free.next() {
                Some(number) => Slot { rule, number, before: counted(number) },
                None => {
                    let Some(oldest) = past.pop_front() else { break };
                    // Read once: what is counted next is one rule's or the other's.
                    let before = counted(oldest.number);
                    let kind = oldest.rule.clone().without_name();
                    *nameless.entry(kind.clone()).or_default() += oldest.count(before);
                    given.push((rule.name.clone(), kind));
                    Slot { rule, number: oldest.number, before }
                }
            };
            now.insert(slot.rule.name.clone(), slot);
        }
        Self { now, past, nameless, given }
    }

    /// The old program counts no more: what it has counted since the rules had their counters was for the rules before.
    pub(super) fn settle(&mut self, counted: impl Fn(u32) -> [u64; 2]) {
        for (name, kind) in self.given.drain(..) {
            let Some(slot) = self.now.get_mut(&name) else { continue };
            let now = counted(slot.number);
            *self.nameless.entry(kind).or_default() += slot.count(now);
            slot.before = now;
        }
    }

    /// The number of a rule's counter.
    pub(super) fn number(&self, name: &str) -> u32 {
        self.now.get(name).map_or(0, |slot| slot.number)
    }

    /// The same of all rules of `set`, in order.
    pub(super) fn numbers(&self, set: &RuleSet) -> Vec<u32> {
        set.rules().iter().map(|rule| self.number(&rule.name)).collect()
    }

    /// What the rules of `set` have counted, in order.
    pub(super) fn counts(&self, set: &RuleSet, counted: impl Fn(u32) -> [u64; 2]) -> Vec<RuleCount> {
        let count = |name: &str| self.now.get(name).map(|slot| slot.count(counted(slot.number)));
        set.rules().iter().map(|rule| count(&rule.name).unwrap_or_default()).collect()
    }

    /// What rules have counted that hold no longer.
    pub(super) fn past_counts(&self, counted: impl Fn(u32) -> [u64; 2]) -> Vec<(RuleId, RuleCount)> {
        let past = self.past.iter().map(|slot| (slot.rule.clone(), slot.count(counted(slot.number))));
        past.chain(self.nameless.iter().map(|(rule, count)| (rule.clone(), *count))).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::cell::{Cell, RefCell};

    use bywash_filter::rules::{Action, Condition, Rule};

    use super::*;

    fn rule(name: &str) -> Rule {
        Rule {
            name: name.into(),
            condition: Condition::default(),
            action: Action::Drop,
            sample: None,
            expires: None,
            dry_run: false,
        }
    }

    fn set(names: &[&str]) -> RuleSet {
        RuleSet::new(names.iter().map(|name| rule(name)).collect()).unwrap()
    }

    fn numbers<const N: usize>(slots: &Slots, names: [&str; N]) -> [u32; N] {
        names.map(|name| slots.number(name))
    }

    #[test]
    fn a_rule_keeps_its_counter_and_has_it_again_when_it_comes_back() {
        let counted = |slot: u32| [u64::from(slot) + 10, 100];
        let first = Slots::default().with(&set(&["a", "b", "c"]), |_| [0, 0]);
        assert_eq!(numbers(&first, ["a", "b", "c"]), [0, 1, 2]);
        let second = first.with(&set(&["c", "d", "a"]), counted);
        assert_eq!(numbers(&second, ["a", "d", "c"]), [0, 3, 2]);
        let count = |packets| RuleCount { packets, bytes: 100 };
        assert_eq!(second.counts(&set(&["c", "a"]), counted), [count(12), count(10)]);
        assert_eq!(second.past_counts(counted), [(RuleId::from(&rule("b")), count(11))]);
        let third = second.with(&set(&["b"]), counted);
        assert_eq!((third.number("b"), third.counts(&set(&["b"]), counted)), (1, vec![count(11)]));
    }

    #[test]
    fn a_rule_that_does_something_else_begins_a_counter() {
        let first = Slots::default().with(&set(&["a"]), |_| [0, 0]);
        let dry = Rule { dry_run: true, ..rule("a") };
        let second = first.with(&RuleSet::new(vec![dry]).unwrap(), |_| [7, 7]);
        let count = RuleCount { packets: 7, bytes: 7 };
        assert_eq!(
            (second.number("a"), second.past_counts(|_| [7, 7])),
            (1, vec![(RuleId::from(&rule("a")), count)])
        );
    }

    #[test]
    fn whatever_was_counted_is_still_told_of_when_there_are_no_more_counters() {
        let counters = RefCell::new(vec![0; MOST_RULES]);
        let counted = |slot: u32| [counters.borrow()[slot as usize]; 2];
        let mut slots = Slots::default();
        for turn in 1_u64..=3 {
            let names: Vec<String> = (0..MOST_RULES - 1).map(|number| format!("{turn} {number}")).collect();
            let set = set(&names.iter().map(String::as_str).collect::<Vec<_>>());
            slots = slots.with(&set, counted);
            for name in &names {
                counters.borrow_mut()[slots.number(name) as usize] += 10;
            }
            let now = slots.counts(&set, counted);
            assert!(now.iter().all(|count| count.packets == 10), "no rule has another one's counter");
            let past: u64 = slots.past_counts(counted).iter().map(|(_, count)| count.packets).sum();
            assert_eq!(past, (turn - 1) * (MOST_RULES as u64 - 1) * 10);
        }
        assert_eq!(slots.past_counts(counted).len(), 2, "one that is left, and the others as one");
    }

    #[test]
    fn what_the_old_program_counts_while_the_new_one_is_loaded_is_not_the_new_rules() {
        let all = |turn: u32| {
            let names: Vec<String> = (0..MOST_RULES).map(|number| format!("{turn} {number}")).collect();
            set(&names.iter().map(String::as_str).collect::<Vec<_>>())
        };
        let (old, new) = (all(1), all(2));
        let sum = |counts: Vec<RuleCount>| counts.iter().map(|count| count.packets).sum::<u64>();
        let first = Slots::default().with(&old, |_| [0, 0]);
        // It counts all the time, also between two looks.
        let count = Cell::new(0);
        let counting = |_| {
            count.set(count.get() + 1);
            [count.get(); 2]
        };
        let mut second = first.with(&new, counting);
        let last = 10 * MOST_RULES as u64;
        second.settle(|_| [last; 2]);
        let past = second.past_counts(|_| [last; 2]).into_iter().map(|(_, count)| count).collect();
        assert_eq!((sum(second.counts(&new, |_| [last; 2])), sum(past)), (0, last * MOST_RULES as u64));
        second.settle(|_| [last + 1; 2]);
        let now = sum(second.counts(&new, |_| [last + 1; 2]));
        assert_eq!(now, MOST_RULES as u64, "from then on they are the new rules'");
    }
}
