//! Rules: which packets, and what becomes of them; the same for every kind of port.
//!
//! A packet is held against the rules from the first to the last. The first one that decides ends it; one that only counts
//! does not decide. What no rule decides is passed to the kernel.
//!
//! A rule's condition has an expression, lists of prefixes and ports, or several of these, which must all hold. Lists are
//! for what is long: they lie in [`Tables`], where ten thousand prefixes cost hardly more than ten, and the program that is
//! made of the rules knows only their shape. What needs a look into the payload is for user space: the program gives it what
//! meets the rest of such a rule's condition, and all rules from there on are judged here. Whether a packet is of an established
//! flow is asked of a table ([`FlowLayout`]) that a program fills by what leaves the machine ([`note_program`]). The same tables are searched by the kernel's program ([`RuleProgram`]) and by this
//! process ([`RuleSet::course`]).

mod blocked;
mod carried;
mod classes;
mod coded;
mod cookie;
mod counting;
mod course;
mod crossed;
mod drawn;
mod established;
mod exact;
mod flow;
mod flow_table;
mod forwarded;
mod front;
mod headers;
mod idle;
mod in_nic;
mod keys;
mod kinds;
mod look;
mod names;
mod payload;
mod prefix;
mod program;
mod program_error;
mod rule_error;
mod search;
mod tables;
mod trie;

use std::num::NonZeroU32;
use std::ops::RangeInclusive;
use std::time::{Duration, SystemTime};

use crate::Expression;
pub use crate::walk::Family;
pub use cookie::{SynCookies, SynProxy};
pub use course::{Course, Findings};
pub use drawn::Drawn;
pub use established::{FlowCount, FlowMap, note_program};
pub use exact::{Inexact, Known, exact};
pub use flow::{Flow, FlowOptions, MOST_FLOWS, Way};
pub use flow_table::{Established, FlowLayout, FlowTable, Noted, SET, SentFlows, time};
pub use headers::Headers;
pub use in_nic::{InNic, in_nic};
pub use keys::{BlockKey, OwnKey, SetKey6};
pub use names::{NamePattern, NamePatternError};
pub use payload::{PayloadPattern, PayloadPlace};
pub use prefix::{Prefix, PrefixError, network};
pub use program::{MapSet, Rest, RuleProgram};
pub use program_error::ProgramError;
pub use rule_error::RuleError;
pub use tables::Tables;

use classes::{Fate, Member};
use coded::Coded;
use flow_table::most_age;
use look::{Looks, Wanted};
use tables::{Found, TooMany};

/// A rule.
#[derive(Clone, Debug, PartialEq)]
pub struct Rule {
    /// What it is called: unique in its set, and what its counters are known by.
    pub name: String,
    /// Which packets it is about.
    pub condition: Condition,
    /// What becomes of them.
    pub action: Action,
    /// One in so many of these packets is shown to user space as well.
    pub sample: Option<NonZeroU32>,
    /// From then on it does nothing any more.
    pub expires: Option<SystemTime>,
    /// It only counts what it would have decided.
    pub dry_run: bool,
}

/// Which packets a rule is about: those for which all of this holds. What is empty holds always.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Condition {
    /// They match.
    pub expression: Option<Expression>,
    /// They come from one of these.
    pub from: Vec<Prefix>,
    /// They go to one of these.
    pub to: Vec<Prefix>,
    /// Their source port, of TCP, UDP or SCTP, is one of these.
    pub from_ports: Vec<RangeInclusive<u16>>,
    /// Their destination port is one of these.
    pub to_ports: Vec<RangeInclusive<u16>>,
    /// They are DNS queries over UDP, to port 53 where `to_ports` says no other, that ask for one of these names. User space
    /// looks for them.
    pub names: Vec<NamePattern>,
    /// What they carry has one of these in it. User space looks for them.
    pub payload: Vec<PayloadPattern>,
    /// They are of a flow that this machine has sent something of, within so long.
    pub established: Option<Duration>,
}

/// Where DNS servers listen.
const DNS: &[RangeInclusive<u16>] = &[53..=53];

/// What becomes of packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// They are gone.
    Drop,
    /// They go on to the kernel, whatever later rules say.
    Pass,
    /// They go to our queue: user space decides.
    Queue,
    /// They come by this queue of the NIC's, which gives them to it, and no later rule has a say; then they go where packets go
    /// that no rule decides ([`Rest`]).
    Steer(u16),
    /// They are counted, and the next rule has its say.
    Count,
    /// They go on as long as they are not too many; user space counts them.
    Limit(Limit),
    /// SYNs are answered for the kernel, and ACKs that are for no connection and have no cookie are gone.
    SynCookie,
    /// SYNs to other machines, to which this one passes packets on, are answered for netfilter's SYNPROXY.
    SynProxy(SynProxy),
}

/// How many packets may come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limit {
    /// Packets per second.
    pub rate: u32,
    /// Packets that may come at once.
    pub burst: u32,
    /// What has a rate of its own.
    pub per: Per,
    /// Who sends more than twice the rate is dropped by the kernel for so long.
    pub block: Option<Duration>,
}

/// Whose packets are counted together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Per {
    /// All that the rule is about.
    Rule,
    /// Those from one prefix, of so many bits for IPv4 and for IPv6.
    Source {
        /// Bits of an IPv4 address.
        v4: u8,
        /// Bits of an IPv6 address.
        v6: u8,
    },
    /// Those of one flow: addresses, protocol and ports.
    Flow,
}

/// Most rules of a set.
pub const MOST_RULES: usize = 16_384;

/// Most lists that stand in rules which are looked at one by one.
pub const MOST_JOINED: usize = 1024;

/// From so many lists on, rules that ask for lists alone are crossed. Fewer are cheap to look at one by one.
const CROSSED_ABOVE: usize = 128;

/// Rules in order, ready to be run.
#[derive(Debug)]
pub struct RuleSet {
    rules: Vec<Rule>,
    plans: Vec<Plan>,
    coded: Coded,
    tables: Tables,
    looks: Looks,
    /// A list or a limit asks for what headers say.
    asks_headers: bool,
}

/// How a rule is run.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Plan {
    /// The tables tell: its only condition is one list, and it decides.
    Listed,
    /// The tables tell: its conditions are lists, and what user space looks for.
    Crossed(Steps),
    /// All of this must hold.
    Coded(Steps),
}

/// What a rule asks of a packet, the cheapest first. What can be known of it before there is one is known here: a rule is long,
/// and hardly any of it matters to a packet.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Steps {
    /// The bits of its lists, which must be set.
    bits: Vec<u32>,
    /// It has an expression that not all packets match, or asks for an established flow.
    has_test: bool,
    /// It has that, or more than one list.
    has_more: bool,
    /// User space has the last word.
    asks_user_space: bool,
    /// What a look into the packet must find.
    wanted: Option<Wanted>,
}

/// What a packet's headers say, and which lists it is in by that.
#[derive(Clone, Copy, Debug, Default)]
pub struct Lookup {
    /// What its headers say; nothing where neither a list nor a limit asks for it.
    pub headers: Headers,
    found: Found,
}

impl RuleSet {
    /// Makes a set of rules.
    ///
    /// # Errors
    /// [`RuleError`]
    pub fn new(rules: Vec<Rule>) -> Result<Self, RuleError> {
        if let Some(beyond) = rules.get(MOST_RULES) {
            return Err(RuleError::Rules(rules.len(), beyond.name.clone()));
        }
        let mut names = std::collections::HashSet::new();
        if let Some(twice) = rules.iter().find(|rule| !names.insert(rule.name.as_str())) {
            return Err(RuleError::Name(twice.name.clone()));
        }
        let joined: usize =
            rules.iter().filter(|rule| !rule.is_listed()).map(|rule| rule.condition.lists()).sum();
        match Self::planned(&rules, joined > CROSSED_ABOVE) {
            Err(RuleError::Crossed(..)) if joined <= MOST_JOINED => Self::planned(&rules, false),
            made => made,
        }
        .map(|(plans, tables, looks)| {
            let coded = Coded::of(&plans, &rules, &tables);
            let has_limit = rules.iter().any(|rule| matches!(rule.action, Action::Limit(_)));
            let asks_headers = has_limit || tables.is_used();
            Self { rules, plans, coded, tables, looks, asks_headers }
        })
    }

    /// How each rule is run, and what they need for that.
    fn planned(rules: &[Rule], crosses: bool) -> Result<(Vec<Plan>, Tables, Looks), RuleError> {
        let mut builder = tables::Builder::default();
        let mut joined = 0;
        let mut crossed = Vec::new();
        let mut beyond = None;
        let mut looks = look::Builder::default();
        let mut plans = Vec::with_capacity(rules.len());
        for (index, rule) in (0..).zip(rules) {
            if rule.is_listed() {
                builder.add(&rule.condition, |_| Member::Rule(index, Fate::of(rule).unwrap_or(Fate::Pass)));
                plans.push(Plan::Listed);
                continue;
            }
            let mut bits = Vec::new();
            let is_crossed = crosses && rule.can_be_crossed();
            if is_crossed {
                crossed.push(&rule.name);
                builder.cross(index, Fate::of(rule), &rule.condition);
            } else {
                builder.add(&rule.condition, |_| {
                    let bit = joined;
                    joined += 1;
                    bits.push(bit);
                    Member::Bit(bit)
                });
            }
            if joined as usize > MOST_JOINED {
                beyond = beyond.or(Some(&rule.name));
            }
            let (has_test, wanted) = (rule.condition.has_test(), looks.add(&rule.condition));
            let has_more = has_test || bits.len() > 1;
            let asks_user_space = rule.asks_user_space();
            let steps = Steps { bits, has_test, has_more, asks_user_space, wanted };
            plans.push(if is_crossed { Plan::Crossed(steps) } else { Plan::Coded(steps) });
        }
        if let Some(beyond) = beyond {
            return Err(RuleError::Joined(joined as usize, beyond.clone()));
        }
        let tables = builder.build(joined).map_err(|many| match many {
            TooMany::Prefixes => RuleError::Prefixes(trie::beyond_room(rules).unwrap_or_default().into()),
            TooMany::Crossed => RuleError::Crossed(crossed.len(), crossed[0].clone()),
        })?;
        Ok((plans, tables, looks.build(rules)?))
    }

    /// The rules, in order.
    pub fn rules(&self) -> &[Rule] {
        &self.rules
    }

    /// The longest time for which a rule asks whether a flow is established; `None` when none asks.
    pub fn longest_idle(&self) -> Option<Duration> {
        self.rules.iter().filter_map(|rule| rule.condition.established).max()
    }

    /// The lists.
    pub fn tables(&self) -> &Tables {
        &self.tables
    }

    /// Looks up which lists a packet is in: before its course along the rules, for those who know to do something
    /// with it in between.
    #[inline]
    pub fn look_up(&self, packet: &[u8]) -> Lookup {
        let mut lookup = Lookup::default();
        if self.asks_headers {
            self.look_up_to(packet, &mut lookup);
        }
        lookup
    }

    /// The same for many packets: there is a lookup for each, in their order. What is in `lookups` is only memory.
    // Not a part of what calls it: together they have too few registers.
    #[inline(never)]
    pub fn look_up_all<'a>(
        &self,
        packets: impl ExactSizeIterator<Item = &'a [u8]>,
        lookups: &mut Vec<Lookup>,
    ) {
        if !self.asks_headers {
            lookups.clear();
        }
        lookups.resize(packets.len(), Lookup::default());
        if self.asks_headers {
            // Made where they stay: what was just written in pieces is slow to be moved.
            for (lookup, packet) in lookups.iter_mut().zip(packets) {
                self.look_up_to(packet, lookup);
            }
        }
    }

    /// Writes all of a lookup, where headers are asked for.
    #[inline(always)]
    fn look_up_to(&self, packet: &[u8], lookup: &mut Lookup) {
        lookup.headers.read(packet);
        self.tables.find(&lookup.headers, &mut lookup.found);
    }

    /// Whether [`Self::each_limit`] has any to tell of.
    #[inline]
    pub fn knows_limits(&self) -> bool {
        self.coded.knows_limits()
    }

    /// Calls `each` with the indices of limits that a packet may meet: a guess, as good as lists alone tell.
    #[inline]
    pub fn each_limit(&self, lookup: &Lookup, each: impl FnMut(usize)) {
        self.coded.each_limit(&self.tables, &lookup.found, each);
    }

    /// The way of a packet along the rules. It had `wire_len` bytes, of which `packet` has the first, and was looked up in this
    /// set; nothing is found out yet.
    #[inline(always)]
    pub fn course<'a>(
        &'a self,
        lookup: &'a Lookup,
        (packet, wire_len): (&'a [u8], usize),
        established: &'a Established<'a>,
        findings: &'a mut Findings<'a>,
    ) -> Course<'a> {
        Course::new(self, lookup, (packet, wire_len), established, findings)
    }

    pub(crate) fn plans(&self) -> &[Plan] {
        &self.plans
    }

    pub(crate) fn coded(&self) -> &Coded {
        &self.coded
    }
}

impl Rule {
    /// Whether user space has the last word on what it is about.
    pub fn asks_user_space(&self) -> bool {
        matches!(self.action, Action::Queue | Action::Limit(_)) || self.condition.needs_look()
    }

    /// What its action is called, as rule files have it. One that counts and draws samples is there for these.
    pub fn action_name(&self) -> &'static str {
        match self.action {
            Action::Count if self.sample.is_some() => "sample",
            action => action.name(),
        }
    }

    /// Whether it decides what becomes of a packet, or asks user space for that.
    pub fn decides(&self) -> bool {
        !self.dry_run && self.action != Action::Count
    }

    /// Why a program at TCX can't do what the rule says; `None` where it can.
    pub fn needs_xdp(&self) -> Option<&'static str> {
        match self.action {
            Action::SynCookie | Action::SynProxy(_) => Some("answers SYNs in the driver"),
            Action::Limit(_) => Some("has a limit, which user space keeps"),
            Action::Queue => Some("gives its packets to user space"),
            Action::Steer(_) => Some("gives its packets to a queue of the NIC's"),
            _ if !self.condition.names.is_empty() => Some("asks for names, which user space reads"),
            _ if !self.condition.payload.is_empty() => Some("asks for payload, which user space searches"),
            _ => None,
        }
    }

    fn is_listed(&self) -> bool {
        self.condition.has_only_lists()
            && !self.condition.needs_look()
            && self.condition.lists() == 1
            && matches!(self.action, Action::Drop | Action::Pass)
            && self.sample.is_none()
            && !self.dry_run
    }

    /// Whether lists say all of it that the kernel's program asks, and it does nothing that takes a place of its own there.
    fn can_be_crossed(&self) -> bool {
        let plain = match self.action {
            Action::Drop | Action::Pass | Action::Count | Action::Queue => true,
            Action::Limit(limit) => limit.block.is_none(),
            Action::Steer(_) | Action::SynCookie | Action::SynProxy(_) => false,
        };
        plain && self.condition.has_only_lists() && self.condition.lists() > 0 && self.sample.is_none()
    }
}

impl Condition {
    /// Whether more must be looked at than the kernel's program can.
    pub(crate) fn needs_look(&self) -> bool {
        !self.names.is_empty() || !self.payload.is_empty()
    }

    /// Whether lists are all of it that can be told without a look.
    fn has_only_lists(&self) -> bool {
        self.expression.is_none() && self.established.is_none()
    }

    /// Whether packets may not hold to it that are in its lists, and without a look.
    fn has_test(&self) -> bool {
        let may_fail = |expression: &Expression| !expression.matches_all();
        self.expression.as_ref().is_some_and(may_fail) || self.established.is_some()
    }

    /// Whether that holds which is neither in lists nor needs a look; `age` is of the packet's flow, once it was asked for.
    /// Apart from the walk over all rules, whose variables fill the registers.
    #[inline(never)]
    fn holds(
        &self,
        (packet, wire_len): (&[u8], usize),
        established: Established<'_>,
        age: &mut Option<Option<u32>>,
    ) -> bool {
        self.expression.as_ref().is_none_or(|expression| expression.matches_len(packet, wire_len))
            && self.established.is_none_or(|idle| {
                let age = age.get_or_insert_with(|| established.age(packet));
                age.is_some_and(|age| age <= most_age(idle))
            })
    }

    /// How many lists it has.
    fn lists(&self) -> usize {
        let used = |kind: &tables::Kind| !kind.prefixes(self).is_empty() || !kind.ports(self).is_empty();
        tables::Kind::ALL.iter().filter(|kind| used(kind)).count()
    }

    /// The destination ports that its packets must have; any when empty.
    fn wanted_ports(&self) -> &[RangeInclusive<u16>] {
        if self.to_ports.is_empty() && !self.names.is_empty() { DNS } else { &self.to_ports }
    }
}

impl Action {
    /// Its name, as rule files have it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Drop => "drop",
            Self::Pass => "pass",
            Self::Queue | Self::Steer(_) => "queue",
            Self::Count => "count",
            Self::Limit(_) => "limit",
            Self::SynCookie => "syncookie",
            Self::SynProxy(_) => "synproxy",
        }
    }

    /// Whether it answers SYNs in the driver, and lets all else go on.
    pub fn answers_syns(self) -> bool {
        matches!(self, Self::SynCookie | Self::SynProxy(_))
    }
}

#[cfg(test)]
mod tests;
