//! The EtherType and five-tuple filters of a NIC: what they can say, which are free, and the rules that are in them. How
//! registers hold them is in each family's `steer`.
//!
//! Of the five-tuple filters that match a packet the NIC takes one with the highest priority. Rules count in the order in which
//! they were given: so a later one has a lower priority than those that it overlaps.

use bywash_port::{Flow, Ipv4Flow, Ipv4Prefix, SteerRule, SteerTo};

use super::{NicError, Place};

/// The highest priority of a five-tuple filter.
const PRIORITY: u8 = 7;

/// How many filters of each kind a NIC has.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FilterCounts {
    /// Which NIC, for errors.
    pub(crate) nic: &'static str,
    pub(crate) ether_types: u32,
    pub(crate) five_tuples: u32,
    /// The lowest priority that a five-tuple filter may have.
    pub(crate) lowest: u8,
}

/// All filters, by number.
#[derive(Debug)]
pub(crate) struct Filters {
    counts: FilterCounts,
    ether_types: Vec<Option<SteerRule>>,
    five_tuples: Vec<Option<FiveTuple>>,
}

/// A rule that is a five-tuple filter.
#[derive(Clone, Copy, Debug)]
struct FiveTuple {
    rule: SteerRule,
    flow: Ipv4Flow,
    priority: u8,
}

impl Filters {
    /// All free.
    pub(crate) fn new(counts: FilterCounts) -> Self {
        let ether_types = vec![None; counts.ether_types as usize];
        let five_tuples = vec![None; counts.five_tuples as usize];
        Self { counts, ether_types, five_tuples }
    }

    /// Number and queue of the EtherType filter that a rule can be, or why it can be none.
    pub(crate) fn ether_type(&self, rule: &SteerRule) -> Result<(u32, u16), String> {
        let FilterCounts { nic, ether_types, .. } = self.counts;
        let SteerTo::Queue(queue) = rule.to else {
            return Err(format!("the {nic} drops no packets by EtherType: give them to a queue"));
        };
        let number = free(&self.ether_types);
        let number = number.ok_or_else(|| format!("all {ether_types} EtherType filters (ETQF) are taken"))?;
        Ok((number, queue))
    }

    /// Number and priority of a five-tuple filter for the packets, or why there is none.
    pub(crate) fn five_tuple(&self, flow: &Ipv4Flow) -> Result<(u32, u8), String> {
        let FilterCounts { five_tuples, lowest, .. } = self.counts;
        let number = free(&self.five_tuples);
        let number =
            number.ok_or_else(|| format!("all {five_tuples} five-tuple filters (FTQF) are taken"))?;
        let overlapping = self.five_tuples.iter().flatten().filter(|known| known.flow.overlaps(flow));
        match overlapping.map(|known| known.priority).min() {
            None => Ok((number, PRIORITY)),
            Some(least) if least > lowest => Ok((number, least - 1)),
            Some(_) => Err("five-tuple filters (FTQF) have no lower priority left for it".into()),
        }
    }

    /// The NIC has the rule in this EtherType filter from now on.
    pub(crate) fn keep_ether_type(&mut self, number: u32, rule: &SteerRule) -> Place {
        self.ether_types[number as usize] = Some(*rule);
        Place::EtherType(number)
    }

    /// The NIC has the rule in this five-tuple filter from now on.
    pub(crate) fn keep_five_tuple(
        &mut self,
        number: u32,
        rule: &SteerRule,
        flow: &Ipv4Flow,
        priority: u8,
    ) -> Place {
        self.five_tuples[number as usize] = Some(FiveTuple { rule: *rule, flow: *flow, priority });
        Place::FiveTuple(number)
    }

    /// What was in an EtherType filter, which is free from now on.
    pub(crate) fn take_ether_type(&mut self, number: u32) -> Option<SteerRule> {
        self.ether_types.get_mut(number as usize)?.take()
    }

    /// What was in a five-tuple filter, which is free from now on.
    pub(crate) fn take_five_tuple(&mut self, number: u32) -> Option<SteerRule> {
        Some(self.five_tuples.get_mut(number as usize)?.take()?.rule)
    }

    /// All rules.
    pub(crate) fn rules(&self) -> impl Iterator<Item = (Place, SteerRule)> {
        let ether_types = (0..).zip(&self.ether_types);
        let ether_types = ether_types.filter_map(|(number, rule)| Some((Place::EtherType(number), (*rule)?)));
        let five_tuples = (0..).zip(&self.five_tuples);
        let five_tuples =
            five_tuples.filter_map(|(number, filter)| Some((Place::FiveTuple(number), (*filter)?.rule)));
        ether_types.chain(five_tuples)
    }
}

/// The queue of a rule that a five-tuple filter can say, or why none can.
pub(crate) fn five_tuple_queue(rule: &SteerRule, flow: &Ipv4Flow) -> Result<u16, String> {
    let SteerTo::Queue(queue) = rule.to else { return Err("five-tuple filters drop nothing".into()) };
    if flow.vlan.is_some() {
        return Err("five-tuple filters do not look at VLANs".into());
    }
    let is_whole = |prefix: Ipv4Prefix| prefix == Ipv4Prefix::ANY || prefix.single().is_some();
    if !is_whole(flow.source) || !is_whole(flow.destination) {
        return Err("five-tuple filters compare whole addresses".into());
    }
    Ok(queue)
}

/// Refuses packets that a rule is about already.
pub(crate) fn check_new(
    flow: &Flow,
    mut rules: impl Iterator<Item = (Place, SteerRule)>,
) -> Result<(), NicError> {
    let known = rules.find(|(_, known)| known.flow == *flow);
    known.map_or(Ok(()), |(place, known)| {
        Err(NicError::Setting(format!("the packets of '{known}' ({place}): remove that rule first")))
    })
}

/// The first place that is free.
fn free<T>(places: &[Option<T>]) -> Option<u32> {
    places.iter().position(Option::is_none).and_then(|at| u32::try_from(at).ok())
}
