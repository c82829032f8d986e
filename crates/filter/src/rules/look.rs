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
    pub(super) kinds: Kinds,
    /// A query for a name in the list of this number, when it wants a name.
    names: u32,
    /// Bytes that the search of this number finds, when it wants payload.
    payload: u32,
}

/// Kinds of what is looked for, a bit for each.
pub(super) type Kinds = u8;

const NAMES: Kinds = 1;
const PAYLOAD: Kinds = 2;

/// How many such numbers there are.
pub(super) const KINDS: usize = 4;

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
        let [with_names, with_payload] = [!condition.names.is_empty(), !condition.payload.is_empty()];
        let kinds = (NAMES * Kinds::from(with_names)) | (PAYLOAD * Kinds::from(with_payload));
        let wanted = Wanted { kinds, names: self.name_lists, payload: self.payloads };
        self.name_lists += u32::from(with_names);
        self.payloads += u32::from(with_payload);
        (kinds != 0).then_some(wanted)
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

/// What has been found in one packet.
#[derive(Default)]
pub(super) struct Look<'a> {
    /// Of what it was looked for.
    looked: Kinds,
    /// Of what there is something that a rule may want.
    found: Kinds,
    /// Once it was looked at: what it carries, of UDP or of something else.
    payload: &'a [u8],
    is_udp: bool,
    /// When it was looked for a name, and found.
    name: Followed,
}

impl<'a> Look<'a> {
    /// Whether all is there that a rule wants. It is always the same packet.
    #[inline]
    pub(super) fn finds(&mut self, looks: &Looks, packet: &'a [u8], wanted: &Wanted) -> bool {
        if wanted.kinds & !self.looked != 0 {
            self.look(looks, packet, wanted.kinds & !self.looked);
        }
        self.found_none_of(wanted) == 0 && self.is_it(looks, wanted)
    }

    /// The kinds of what a rule wants and is not there: of which no other rule finds anything either.
    #[inline]
    pub(super) fn found_none_of(&self, wanted: &Wanted) -> Kinds {
        wanted.kinds & self.looked & !self.found
    }

    #[inline(always)]
    fn look(&mut self, looks: &Looks, packet: &'a [u8], kinds: Kinds) {
        if self.looked == 0 {
            let Some(Carried { protocol, payload }) = carried(packet) else {
                // Then there is nothing of any kind.
                self.looked = NAMES | PAYLOAD;
                return;
            };
            (self.payload, self.is_udp) = (payload, protocol == Protocol::UDP);
        }
        self.looked |= kinds;
        // What is no query, or a broken one, asks for no name.
        if kinds & NAMES != 0
            && self.is_udp
            && let Ok(asked) = Labels::asked(self.payload)
            && let Some(name) = looks.names.follow(asked)
        {
            self.found |= NAMES;
            self.name = name;
        }
        if kinds & PAYLOAD != 0 && looks.payloads.may_find(self.payload) {
            self.found |= PAYLOAD;
        }
    }

    /// Whether what was found is what a rule wants.
    #[inline(never)]
    fn is_it(&self, looks: &Looks, Wanted { kinds, names, payload }: &Wanted) -> bool {
        (kinds & NAMES == 0 || looks.names.has(*names, self.name))
            && (kinds & PAYLOAD == 0 || looks.payloads.finds(*payload, self.payload))
    }
}
