//! What is looked for inside a packet once all cheaper conditions of a rule hold; nothing is looked at twice for a packet.

use bywash_wire::Protocol;
use bywash_wire::dns::Labels;

use super::carried::{Carried, carried};
use super::names::{Followed, NameTree};
use super::payload::{PayloadSearch, PayloadSearches};
use super::{Condition, Rule, RuleError};

/// What one rule wants to be found.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Wanted {
    /// A query for a name in the list of this number.
    names: Option<u32>,
    /// Bytes that the search of this number finds.
    payload: Option<u32>,
}

/// Kinds of what is looked for: a bit for names, and one for payload.
pub(super) type Kinds = usize;

/// How many such numbers there are.
pub(super) const KINDS: usize = 4;

impl Wanted {
    pub(super) fn kinds(&self) -> Kinds {
        usize::from(self.names.is_some()) | usize::from(self.payload.is_some()) << 1
    }
}

/// What all rules want.
#[derive(Debug)]
pub(super) struct Looks {
    names: NameTree,
    payloads: PayloadSearches,
}

/// Rules on their way into that.
#[derive(Default)]
pub(super) struct Builder {
    name_lists: u32,
    payloads: u32,
}

impl Builder {
    /// What a condition wants; `None` when no look is needed. All rules, in order.
    pub(super) fn add(&mut self, condition: &Condition) -> Option<Wanted> {
        let next = |is_wanted: bool, count: &mut u32| {
            *count += u32::from(is_wanted);
            is_wanted.then(|| *count - 1)
        };
        condition.needs_look().then(|| Wanted {
            names: next(!condition.names.is_empty(), &mut self.name_lists),
            payload: next(!condition.payload.is_empty(), &mut self.payloads),
        })
    }

    /// Of the rules that were added.
    pub(super) fn build(self, rules: &[Rule]) -> Result<Looks, RuleError> {
        let lists = rules.iter().map(|rule| &rule.condition.names[..]).filter(|names| !names.is_empty());
        let search = |rule: &Rule| {
            let failed = |error| RuleError::Payload(rule.name.clone(), format!("{error}"));
            PayloadSearch::new(&rule.condition.payload).map_err(failed)
        };
        let with_payload = rules.iter().filter(|rule| !rule.condition.payload.is_empty());
        let searches = with_payload.map(search).collect::<Result<_, _>>()?;
        let patterns: Vec<_> = rules.iter().flat_map(|rule| &rule.condition.payload).collect();
        let payloads = PayloadSearches::new(searches, &patterns);
        Ok(Looks { names: NameTree::new((0..).zip(lists)), payloads })
    }
}

/// One packet, and what has been found in it.
pub(super) struct Look<'a> {
    looks: &'a Looks,
    packet: &'a [u8],
    carried: Option<Option<Carried<'a>>>,
    /// None where no list has the name.
    names: Option<Option<Followed>>,
    may_have_payload: Option<bool>,
}

impl<'a> Look<'a> {
    #[inline]
    pub(super) fn new(looks: &'a Looks, packet: &'a [u8]) -> Self {
        Self { looks, packet, carried: None, names: None, may_have_payload: None }
    }

    /// Whether all is there that a rule wants. Apart from the walk, which is for all packets: it has the registers to itself.
    #[inline(never)]
    pub(super) fn finds(&mut self, wanted: &Wanted) -> bool {
        let Some(carried) = *self.carried.get_or_insert_with(|| carried(self.packet)) else { return false };
        let looks = self.looks;
        wanted.names.is_none_or(|list| self.name(&carried).is_some_and(|name| looks.names.has(list, name)))
            && wanted.payload.is_none_or(|number| {
                self.may_have_payload(&carried) && looks.payloads.finds(number, carried.payload)
            })
    }

    /// The kinds of what a rule wants and is not there: of which no other rule finds anything either.
    #[inline]
    pub(super) fn found_none_of(&self, wanted: &Wanted) -> Kinds {
        let nothing = matches!(self.carried, Some(None));
        let no_name = nothing || self.names.is_some_and(|name| name.is_none());
        let no_payload = nothing || self.may_have_payload == Some(false);
        wanted.kinds() & (usize::from(no_name) | usize::from(no_payload) << 1)
    }

    fn may_have_payload(&mut self, carried: &Carried<'_>) -> bool {
        *self.may_have_payload.get_or_insert_with(|| self.looks.payloads.may_find(carried.payload))
    }

    /// The name that is asked for, where some list has it.
    fn name(&mut self, carried: &Carried<'_>) -> Option<Followed> {
        *self.names.get_or_insert_with(|| {
            // What is no query, or a broken one, asks for no name.
            let query = Some(carried.payload).filter(|_| carried.protocol == Protocol::UDP)?;
            self.looks.names.follow(Labels::asked(query).ok()?)
        })
    }
}
