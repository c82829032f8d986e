//! What is looked for inside a packet once all cheaper conditions of a rule hold; nothing is looked at twice for a packet.

use bywash_wire::Protocol;
use bywash_wire::dns::Name;

use super::carried::{Carried, carried};
use super::names::NameTree;
use super::payload::{PayloadSearch, PayloadSearches};
use super::{Condition, MOST_LOOKS, Rule, RuleError};

/// What one rule wants to be found.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Wanted {
    /// A query for a name in the list of this number.
    names: Option<u32>,
    /// Bytes that the search of this number finds.
    payload: Option<u32>,
}

/// What is looked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sought {
    Names,
    Payload,
}

impl Sought {
    pub(super) const ALL: [Self; 2] = [Self::Names, Self::Payload];
}

impl Wanted {
    pub(super) fn has(&self, sought: Sought) -> bool {
        match sought {
            Sought::Names => self.names.is_some(),
            Sought::Payload => self.payload.is_some(),
        }
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
        if self.name_lists as usize > MOST_LOOKS {
            return Err(RuleError::Looks(self.name_lists as usize));
        }
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

/// The lists of names that a query's name is in: a bit for each.
type NameBits = [u64; MOST_LOOKS / 64];

/// One packet, and what has been found in it.
pub(super) struct Look<'a> {
    looks: &'a Looks,
    packet: &'a [u8],
    carried: Option<Option<Carried<'a>>>,
    /// None where no list has the name.
    names: Option<Option<NameBits>>,
    may_have_payload: Option<bool>,
}

impl<'a> Look<'a> {
    #[inline]
    pub(super) fn new(looks: &'a Looks, packet: &'a [u8]) -> Self {
        Self { looks, packet, carried: None, names: None, may_have_payload: None }
    }

    /// Whether all is there that a rule wants.
    pub(super) fn finds(&mut self, wanted: &Wanted) -> bool {
        let has_name = |names: &NameBits, list: u32| names[list as usize / 64] & 1 << (list % 64) != 0;
        wanted.names.is_none_or(|list| self.names().is_some_and(|names| has_name(names, list)))
            && wanted.payload.is_none_or(|number| {
                let payload = self.may_have_payload().then(|| self.carried()).flatten();
                payload.is_some_and(|carried| self.looks.payloads.finds(number, carried.payload))
            })
    }

    /// Of what a rule wants and is not there: of what no other rule finds anything either.
    pub(super) fn found_none_of(&self, wanted: &Wanted) -> impl Iterator<Item = Sought> {
        let has_none =
            [self.names.is_some_and(|names| names.is_none()), self.may_have_payload == Some(false)];
        let wanted = Sought::ALL.map(|sought| wanted.has(sought) && has_none[sought as usize]);
        Sought::ALL.into_iter().zip(wanted).filter(|(_, none)| *none).map(|(sought, _)| sought)
    }

    fn carried(&mut self) -> Option<Carried<'a>> {
        *self.carried.get_or_insert_with(|| carried(self.packet))
    }

    fn may_have_payload(&mut self) -> bool {
        if let Some(known) = self.may_have_payload {
            return known;
        }
        let may = self.carried().is_some_and(|carried| self.looks.payloads.may_find(carried.payload));
        *self.may_have_payload.insert(may)
    }

    fn names(&mut self) -> Option<&NameBits> {
        if self.names.is_none() {
            let mut bits = None;
            let query = self.carried().filter(|carried| carried.protocol == Protocol::UDP);
            // What is no query, or a broken one, asks for no name.
            let mut name = Name::ROOT;
            if query.is_some_and(|query| name.read(query.payload).is_ok()) {
                self.looks.names.find(&name, |list| {
                    bits.get_or_insert(NameBits::default())[list as usize / 64] |= 1 << (list % 64);
                });
            }
            self.names = Some(bits);
        }
        self.names.as_ref()?.as_ref()
    }
}
