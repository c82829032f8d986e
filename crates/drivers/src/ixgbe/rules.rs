//! Which of the NIC's filters a rule lands in: EtherType (eight), five-tuple (128), or the flow director, if the port was opened
//! with it.
//!
//! The NIC asks them in that order, and of the five-tuple filters that match it takes one with the highest priority. Rules count
//! in the order in which they were given: so a later one has a lower priority than those that it overlaps, and does not land
//! before them.

use bywash_hw::ixgbe::regs::{ETQF, FTQF};
use bywash_port::{Flow, Ipv4Flow, Ipv4Prefix, SteerRule, SteerTo};
use bywash_sys::function::Registers;

use super::flow_director::FlowDirector;
use super::steer;
use crate::intel::{Bar, NicError, Place, Steer};

/// The highest priority of a five-tuple filter.
const PRIORITY: u8 = 7;

/// All rules, by place.
#[derive(Debug)]
pub(super) struct Rules {
    ether_types: Vec<Option<SteerRule>>,
    five_tuples: Vec<Option<FiveTuple>>,
    director: Option<FlowDirector>,
}

/// A rule that is a five-tuple filter.
#[derive(Clone, Copy, Debug)]
struct FiveTuple {
    rule: SteerRule,
    flow: Ipv4Flow,
    priority: u8,
}

impl Rules {
    /// None yet.
    pub(super) fn new(director: Option<FlowDirector>) -> Self {
        let ether_types = vec![None; ETQF.count() as usize];
        let five_tuples = vec![None; FTQF.count() as usize];
        Self { ether_types, five_tuples, director }
    }

    fn add_ether_type<R: Registers>(
        &mut self,
        bar: &Bar<R>,
        rule: &SteerRule,
        ether_type: u16,
    ) -> Result<Place, String> {
        let SteerTo::Queue(queue) = rule.to else {
            return Err("the 82599 drops no packets by EtherType: give them to a queue".into());
        };
        let number = free(&self.ether_types).ok_or("all eight EtherType filters (ETQF) are taken")?;
        steer::ether_type(bar, number, Some((ether_type, queue)));
        self.ether_types[number as usize] = Some(*rule);
        Ok(Place::EtherType(number))
    }

    /// A five-tuple filter for the rule, as long as one can say it, and else a filter of the flow director.
    fn add_ipv4<R: Registers>(
        &mut self,
        bar: &Bar<R>,
        rule: &SteerRule,
        flow: &Ipv4Flow,
    ) -> Result<Place, NicError> {
        let why = match self.five_tuple(rule, flow) {
            Ok((number, queue, priority)) => {
                steer::five_tuple(bar, number, flow, priority, queue);
                self.five_tuples[number as usize] = Some(FiveTuple { rule: *rule, flow: *flow, priority });
                return Ok(Place::FiveTuple(number));
            }
            Err(why) => why,
        };
        let Some(director) = &mut self.director else {
            return Err(NicError::Setting(format!(
                "{why}; the flow director might, but the port was opened without it: write /fdir=2k behind its name"
            )));
        };
        match director.add(bar, rule, flow) {
            Ok(number) => Ok(Place::FlowDirector(number)),
            Err(NicError::Setting(reason)) => Err(NicError::Setting(format!("{why}, and {reason}"))),
            Err(error) => Err(error),
        }
    }

    /// Number, queue and priority of the five-tuple filter that the rule can be, or why it can be none.
    fn five_tuple(&self, rule: &SteerRule, flow: &Ipv4Flow) -> Result<(u32, u16, u8), String> {
        let SteerTo::Queue(queue) = rule.to else { return Err("five-tuple filters drop nothing".into()) };
        if flow.vlan.is_some() {
            return Err("five-tuple filters do not look at VLANs".into());
        }
        let is_whole = |prefix: Ipv4Prefix| prefix == Ipv4Prefix::ANY || prefix.single().is_some();
        if !is_whole(flow.source) || !is_whole(flow.destination) {
            return Err("five-tuple filters compare whole addresses".into());
        }
        let directed = self.director.iter().flat_map(FlowDirector::rules);
        let mut later =
            directed.filter(|(_, known)| matches!(&known.flow, Flow::Ipv4(known) if known.overlaps(flow)));
        if let Some((_, known)) = later.next() {
            return Err(format!("a five-tuple filter would come before '{known}', which was given earlier"));
        }
        let number = free(&self.five_tuples).ok_or("all 128 five-tuple filters (FTQF) are taken")?;
        let overlapping = self.five_tuples.iter().flatten().filter(|known| known.flow.overlaps(flow));
        let priority = match overlapping.map(|known| known.priority).min() {
            None => PRIORITY,
            Some(0) => return Err("five-tuple filters (FTQF) have no lower priority left for it".into()),
            Some(lowest) => lowest - 1,
        };
        Ok((number, queue, priority))
    }
}

/// The first place that is free.
fn free<T>(places: &[Option<T>]) -> Option<u32> {
    places.iter().position(Option::is_none).and_then(|at| u32::try_from(at).ok())
}

impl<R: Registers> Steer<R> for Rules {
    fn add(&mut self, bar: &Bar<R>, rule: &SteerRule) -> Result<Place, NicError> {
        let all = Steer::<R>::rules(self);
        if let Some((place, known)) = all.iter().find(|(_, known)| known.flow == rule.flow) {
            return Err(NicError::Setting(format!(
                "the packets of '{known}' ({place}): remove that rule first"
            )));
        }
        match &rule.flow {
            Flow::EtherType(kind) => self.add_ether_type(bar, rule, *kind).map_err(NicError::Setting),
            Flow::Ipv4(flow) => self.add_ipv4(bar, rule, flow),
        }
    }

    fn remove(&mut self, bar: &Bar<R>, place: Place) -> Result<Option<SteerRule>, NicError> {
        match (place, &mut self.director) {
            (Place::EtherType(number), _) => {
                let rule = self.ether_types.get_mut(number as usize).and_then(Option::take);
                rule.iter().for_each(|_| steer::ether_type(bar, number, None));
                Ok(rule)
            }
            (Place::FiveTuple(number), _) => {
                let filter = self.five_tuples.get_mut(number as usize).and_then(Option::take);
                filter.iter().for_each(|_| bar.put_at(&FTQF, number, 0));
                Ok(filter.map(|filter| filter.rule))
            }
            (Place::FlowDirector(number), Some(director)) => director.remove(bar, number),
            (Place::FlowDirector(_), None) => Ok(None),
        }
    }

    fn holds(&self, bar: &Bar<R>, place: Place) -> Result<bool, NicError> {
        match (place, &self.director) {
            (Place::EtherType(number), _) => {
                Ok(number < ETQF.count() && ETQF::FILTER_EN.is_set(bar.get_at(&ETQF, number)))
            }
            (Place::FiveTuple(number), _) => {
                Ok(number < FTQF.count() && FTQF::QUEUE_ENABLE.is_set(bar.get_at(&FTQF, number)))
            }
            (Place::FlowDirector(number), Some(director)) => director.holds(bar, number),
            (Place::FlowDirector(_), None) => Ok(false),
        }
    }

    fn rules(&self) -> Vec<(Place, SteerRule)> {
        let ether_types = (0..).zip(&self.ether_types);
        let ether_types = ether_types.filter_map(|(number, rule)| Some((Place::EtherType(number), (*rule)?)));
        let five_tuples = (0..).zip(&self.five_tuples);
        let five_tuples =
            five_tuples.filter_map(|(number, filter)| Some((Place::FiveTuple(number), (*filter)?.rule)));
        let directed = self.director.iter().flat_map(FlowDirector::rules);
        let directed = directed.map(|(number, rule)| (Place::FlowDirector(number), rule));
        ether_types.chain(five_tuples).chain(directed).collect()
    }
}
