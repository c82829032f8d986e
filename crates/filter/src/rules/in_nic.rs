//! Which rules a NIC can decide before the kernel's program sees the packets: rules that drop, as flows whose packets the NIC drops;
//! and rules that give packets to a queue, which only a NIC can.
//!
//! A NIC comes first and knows one thing of a rule, its flow. So a flow is given to it only when all that it may take for this
//! flow is dropped by the program as well: by this rule or by one before it. It must be nothing that an earlier rule
//! passes, counts or samples, nothing that is never dropped, and nothing that the port leaves to the kernel. Where that can't be
//! shown the flow stays in the program alone, which has all rules anyhow.
//!
//! IPv6 stays there always. NICs may look behind extension headers, where rules do not; and neighbour discovery comes from
//! everywhere.

use std::net::IpAddr;
use std::ops::RangeInclusive;

use crate::Expression;
use crate::flows::{Beside, Flow, Flows, MOST_FLOWS, SCTP, WITH_PORTS, blocks};
use crate::sets::Range;
use crate::settled::MOST_TAGS;

use super::{Action, Condition, Known, Prefix, Rule, RuleSet, exact, prefix};

/// What a NIC can do of a rule.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InNic {
    /// Flows of IPv4 whose packets it can drop, or give to the rule's queue.
    pub flows: Vec<Flow>,
    /// What else the rule is about by headers of IPv4 alone, and why that is in none of these: a phrase for each reason.
    pub left: Vec<String>,
    /// What of a rule that drops is nothing for NICs, and why: a phrase for each reason.
    pub beside: Vec<&'static str>,
}

/// What a NIC can do of each rule, in order.
///
/// `only` is what the rules are about, all when it is `None`. What matches one of `never` is dropped by none; the first of these is what
/// no machine can do without ([`NeverTake::sent`](crate::xdp::NeverTake::sent)).
pub fn in_nic(set: &RuleSet, only: Option<&Expression>, never: &[Expression]) -> Vec<InNic> {
    let mut before: Vec<&Rule> = Vec::new();
    let mut all = Vec::with_capacity(set.rules().len());
    for rule in set.rules() {
        all.push(of_rule(rule, &Bounds { before: &before, only, never }));
        // What an earlier rule drops as well is no loss.
        let only_drops = rule.action == Action::Drop && rule.sample.is_none() && !rule.dry_run;
        if !only_drops {
            before.push(rule);
        }
    }
    all
}

/// Where a rule's flows must end.
struct Bounds<'a> {
    before: &'a [&'a Rule],
    only: Option<&'a Expression>,
    never: &'a [Expression],
}

fn of_rule(rule: &Rule, bounds: &Bounds<'_>) -> InNic {
    match rule.action {
        Action::Drop => {}
        Action::Steer(_) => return steered(rule),
        _ => return InNic::default(),
    }
    if let Some(why) = not_by_headers_alone(rule) {
        return InNic { beside: vec![why], ..InNic::default() };
    }
    let mut left = Left::default();
    let mut flows = Vec::new();
    let candidates = Candidates::of(&rule.condition, rule.condition.expression.as_ref());
    if candidates.flows.is_none() {
        left.reasons.push((MANY.into(), None, 0));
    } else if candidates.other_types {
        left.beside.push("packets that are neither IPv4 nor IPv6: n-tuple rules do not say them");
    }
    if candidates.ipv6 {
        left.beside.push("IPv6: NICs may look behind extension headers, where rules do not");
    }
    for flow in candidates.flows.into_iter().flatten() {
        match bounds.refuse(&flow, &rule.condition) {
            Some(why) => left.add(why, &flow),
            None => flows.push(flow),
        }
    }
    if flows.is_empty() && left.reasons.is_empty() && left.beside.is_empty() {
        left.reasons.push(("n-tuple rules do not say what it is about".into(), None, 0));
    }
    InNic { flows, left: left.told(), beside: left.beside }
}

/// What a NIC can do of a rule that gives packets to a queue. It takes these away from nobody, so other rules do not matter.
fn steered(rule: &Rule) -> InNic {
    if rule.dry_run {
        return InNic { beside: vec!["dry_run gives nothing to a queue"], ..InNic::default() };
    }
    let flow = |known: &Known| match known {
        Known::Ipv4(flow, None) => Ok(flow.clone()),
        Known::Ipv4(_, Some(_)) | Known::EtherType(_) => {
            Err("n-tuple rules are made for addresses, protocols and ports of IPv4 alone")
        }
    };
    let flows = match exact(rule) {
        Ok(known) => known.iter().map(flow).collect::<Result<_, _>>().map_err(str::to_owned),
        Err(error) => Err(error.to_string()),
    };
    match flows {
        Ok(flows) => InNic { flows, ..InNic::default() },
        Err(why) => InNic { left: vec![why], ..InNic::default() },
    }
}

/// Why headers are not all that a rule is about.
pub(super) fn not_by_headers_alone(rule: &Rule) -> Option<&'static str> {
    let Condition { names, payload, established, .. } = &rule.condition;
    [
        (rule.dry_run, "dry_run drops nothing"),
        (!names.is_empty() || !payload.is_empty(), "names and payload are for user space"),
        (established.is_some(), "a NIC does not know which flows are established"),
        (rule.sample.is_some(), "a NIC keeps no samples"),
    ]
    .into_iter()
    .find_map(|(is_so, why)| is_so.then_some(why))
}

/// Reasons, each with the flows that it is true of.
#[derive(Default)]
struct Left {
    reasons: Vec<(String, Option<Flow>, usize)>,
    beside: Vec<&'static str>,
}

impl Left {
    fn add(&mut self, why: String, flow: &Flow) {
        match self.reasons.iter_mut().find(|(known, ..)| *known == why) {
            Some((.., count)) => *count += 1,
            None => self.reasons.push((why, Some(flow.clone()), 1)),
        }
    }

    fn told(&self) -> Vec<String> {
        let line = |(why, flow, count): &(String, Option<Flow>, usize)| match (flow, count) {
            (None, _) => why.clone(),
            (Some(flow), 1) => format!("'{flow}': {why}"),
            (Some(flow), count) => format!("'{flow}' and {} more: {why}", count - 1),
        };
        self.reasons.iter().map(line).collect()
    }
}

/// What a condition may be about.
pub(super) struct Candidates {
    /// Flows of IPv4; `None` when they are too many.
    pub(super) flows: Option<Vec<Flow>>,
    /// IPv6.
    pub(super) ipv6: bool,
    /// What is neither.
    pub(super) other_types: bool,
}

impl Candidates {
    /// Of a condition's lists, with another expression than its own, perhaps.
    pub(super) fn of(condition: &Condition, expression: Option<&Expression>) -> Self {
        let any = |ipv6, bytes| Flow { ipv6, protocol: None, value: vec![0; bytes], mask: vec![0; bytes] };
        let no_lists = [&condition.from, &condition.to].iter().all(|list| list.is_empty())
            && [&condition.from_ports, &condition.to_ports].iter().all(|list| list.is_empty());
        let (flows, has_v6, other_types) = match expression {
            None => (vec![any(false, 12)], true, no_lists),
            Some(expression) => {
                let Flows { flows, beside } = expression.flows();
                if beside.contains(&Beside::Many) {
                    return Self { flows: None, ipv6: false, other_types: false };
                }
                let has_v6 = flows.iter().any(|flow| flow.ipv6);
                let other_types = no_lists && beside.contains(&Beside::OtherTypes);
                (flows.into_iter().filter(|flow| !flow.ipv6).collect(), has_v6, other_types)
            }
        };
        let is_v4 = |list: &[Prefix]| list.is_empty() || list.iter().any(|it| it.address().is_ipv4());
        let is_v6 = |list: &[Prefix]| list.is_empty() || list.iter().any(|it| it.address().is_ipv6());
        let ipv6 = has_v6 && is_v6(&condition.from) && is_v6(&condition.to);
        let has_v4 = is_v4(&condition.from) && is_v4(&condition.to);
        let flows = if has_v4 { narrow(flows, condition) } else { Vec::new() };
        let flows = (flows.len() <= MOST_FLOWS).then_some(flows);
        Self { flows, ipv6, other_types }
    }
}

/// Flows narrowed down by lists.
fn narrow(mut flows: Vec<Flow>, condition: &Condition) -> Vec<Flow> {
    for (at, list) in [(0, &condition.from), (4, &condition.to)] {
        if !list.is_empty() {
            let fields: Vec<_> = list.iter().filter_map(|prefix| address(*prefix, at)).collect();
            flows = joined(&flows, &fields);
        }
    }
    if !condition.from_ports.is_empty() || !condition.to_ports.is_empty() {
        flows = flows.iter().flat_map(with_protocols).collect();
    }
    for (at, list) in [(8, &condition.from_ports), (10, &condition.to_ports)] {
        if !list.is_empty() {
            let fields: Vec<_> = list.iter().flat_map(|range| ports(range, at)).collect();
            flows = joined(&flows, &fields);
        }
    }
    flows
}

const MANY: &str = "it is more flows than n-tuple rules can say";

/// A part of a flow: where it stands, its value, and the bits that count.
type Field = (usize, Vec<u8>, Vec<u8>);

fn address(prefix: Prefix, at: usize) -> Option<Field> {
    let IpAddr::V4(address) = prefix.address() else { return None };
    let mask = prefix::mask32(prefix.bits());
    Some((at, address.octets().to_vec(), mask.to_be_bytes().to_vec()))
}

fn ports(range: &RangeInclusive<u16>, at: usize) -> impl Iterator<Item = Field> {
    let range = Range { least: (*range.start()).into(), greatest: (*range.end()).into() };
    let bytes = |number: u32| number.to_be_bytes()[2..].to_vec();
    blocks(range, u16::MAX.into()).map(move |(number, mask)| (at, bytes(number), bytes(mask)))
}

/// A flow once for each protocol that has ports.
fn with_protocols(flow: &Flow) -> Vec<Flow> {
    let fits = |protocol: &u8| flow.protocol.is_none_or(|own| own == *protocol);
    let of = |protocol| Flow { protocol: Some(protocol), ..flow.clone() };
    WITH_PORTS.into_iter().filter(fits).map(of).collect()
}

/// Each flow narrowed down to each of the fields; more than there may be at most when they are too many.
fn joined(flows: &[Flow], fields: &[Field]) -> Vec<Flow> {
    let all = flows.iter().flat_map(|flow| fields.iter().filter_map(move |field| narrowed(flow, field)));
    all.take(MOST_FLOWS + 1).collect()
}

fn narrowed(flow: &Flow, (at, value, mask): &Field) -> Option<Flow> {
    let mut flow = flow.clone();
    for (at, (value, mask)) in (*at..).zip(value.iter().zip(mask)) {
        if (flow.value[at] ^ value) & flow.mask[at] & mask != 0 {
            return None;
        }
        flow.value[at] |= value & mask;
        flow.mask[at] |= mask;
    }
    Some(flow)
}

impl Bounds<'_> {
    /// Why a NIC must not drop a flow of a rule.
    fn refuse(&self, flow: &Flow, condition: &Condition) -> Option<String> {
        if flow.protocol == Some(SCTP) && flow.has_ports() {
            return Some("not all NICs compare SCTP's ports".into());
        }
        if flow.protocol.is_none() && flow.mask.iter().all(|byte| *byte == 0) {
            return Some("an n-tuple rule must name a protocol, an address or a port".into());
        }
        if let Some(why) = condition.expression.as_ref().and_then(|it| inexact(it, flow)) {
            return Some(why.into());
        }
        if self.only.is_some_and(|only| inexact(only, flow).is_some()) {
            return Some("it may reach beyond --only".into());
        }
        if let Some(never) = self.never.iter().position(|never| never.may_match(flow)) {
            return Some(match never {
                0 => "neighbour discovery, a gateway or an ssh session may be among them".into(),
                never => format!("'{}', which is never dropped, may be among them", self.never[never]),
            });
        }
        let earlier = self.before.iter().find(|rule| may_meet(&rule.condition, flow));
        earlier.map(|rule| format!("the rule '{}' before it may be about some of them", rule.name))
    }
}

/// Why an expression does not match all that a NIC may take for a flow.
fn inexact(expression: &Expression, flow: &Flow) -> Option<&'static str> {
    let tags = (0..=MOST_TAGS).find(|tags| expression.settled(flow, *tags).can_fail)?;
    Some(if tags == 0 {
        "the rule asks for more than an n-tuple rule can say"
    } else {
        "NICs look behind VLAN tags, and the rule does not: write 'anyvlan and ...', or lists"
    })
}

/// Whether a condition may hold for packets of a flow.
fn may_meet(condition: &Condition, flow: &Flow) -> bool {
    let meets = |field: &Field| narrowed(flow, field).is_some();
    let any_address = |list: &[Prefix], at| {
        list.is_empty() || list.iter().filter_map(|prefix| address(*prefix, at)).any(|field| meets(&field))
    };
    let may_have_ports = flow.protocol.is_none_or(|protocol| WITH_PORTS.contains(&protocol));
    let any_port = |list: &[RangeInclusive<u16>], at| {
        list.is_empty()
            || may_have_ports && list.iter().flat_map(|range| ports(range, at)).any(|it| meets(&it))
    };
    any_address(&condition.from, 0)
        && any_address(&condition.to, 4)
        && any_port(&condition.from_ports, 8)
        && any_port(&condition.to_ports, 10)
        && condition.expression.as_ref().is_none_or(|expression| expression.may_match(flow))
}

#[cfg(test)]
mod tests;
