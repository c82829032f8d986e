//! Classes of addresses and ports: the lists that they are in, each combination once.

use std::collections::HashMap;

use super::tables::NO_RULE;
use super::{Action, Rule};

/// What being in a list means.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Member {
    /// This rule is met, and does that.
    Rule(u32, Fate),
    /// This list is met.
    Bit(u32),
    /// This list of rules that are [crossed](super::crossed) is met.
    List(u32),
}

/// What a rule that decides by lists does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u32)]
pub(crate) enum Fate {
    Drop = 0,
    Pass = 1,
    /// It asks user space.
    Take = 1 << 31,
}

impl Fate {
    /// What a rule does that its lists alone decide about; `None` when it only counts.
    pub(super) fn of(rule: &Rule) -> Option<Self> {
        match rule.action {
            _ if rule.asks_user_space() => Some(Self::Take),
            _ if !rule.decides() => None,
            Action::Drop => Some(Self::Drop),
            _ => Some(Self::Pass),
        }
    }

    /// This of a rule as a number, so that of two the lower one comes first; there is room for the rule's counter.
    pub(super) fn number(self, index: u32) -> u64 {
        u64::from(index) << 32 | u64::from(self as u32)
    }
}

/// Most members of all classes together that lists of crossed rules make. Where each list overlaps with all others, their number
/// grows with the square of the lists'.
const MOST_MEMBERS: usize = 1 << 23;

/// All classes.
pub(super) struct Classes {
    members: Vec<Vec<Member>>,
    numbers: HashMap<Vec<Member>, u32>,
    steps: HashMap<(u32, Member), u32>,
    /// Members that lists of crossed rules have made.
    made: usize,
}

impl Classes {
    pub(super) fn new() -> Self {
        let none = Vec::new();
        let numbers = HashMap::from([(none.clone(), 0)]);
        Self { numbers, members: vec![none], steps: HashMap::new(), made: 0 }
    }

    /// Whether there are more than can be kept: then what has become of the last ones means nothing.
    pub(super) fn are_too_many(&self) -> bool {
        self.made > MOST_MEMBERS
    }

    /// By their numbers: what each is made of.
    pub(super) fn members(&self) -> &[Vec<Member>] {
        &self.members
    }

    /// The class of what is in all lists of `class` and in another one.
    pub(super) fn with(&mut self, class: u32, member: Member) -> u32 {
        if let Some(known) = self.steps.get(&(class, member)) {
            return *known;
        }
        if self.are_too_many() {
            return class;
        }
        let mut members = self.members[class as usize].clone();
        let decider = members.iter().position(|known| matches!(known, Member::Rule(..)));
        match (member, decider) {
            // Of the rules that decide alone, only the first matters.
            (Member::Rule(..), Some(at)) => members[at] = member.min(members[at]),
            _ if members.contains(&member) => {}
            _ => members.push(member),
        }
        members.sort_unstable();
        if matches!(member, Member::List(_)) {
            self.made += members.len();
        }
        let next = u32::try_from(self.members.len()).unwrap_or(u32::MAX);
        let number = *self.numbers.entry(members.clone()).or_insert(next);
        if number == next {
            self.members.push(members);
        }
        self.steps.insert((class, member), number);
        number
    }

    /// One after the other: the number of the first rule, and so many words of bits each.
    pub(super) fn finish(self, words: usize) -> Vec<Vec<u64>> {
        let class = |members: Vec<Member>| {
            let mut class = vec![0; 1 + words];
            class[0] = NO_RULE;
            for member in members {
                match member {
                    Member::Rule(index, fate) => class[0] = fate.number(index),
                    Member::Bit(bit) => class[1 + bit as usize / 64] |= 1 << (bit % 64),
                    Member::List(_) => {}
                }
            }
            class
        };
        self.members.into_iter().map(class).collect()
    }
}
