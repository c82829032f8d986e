//! Which of the NIC's filters a rule lands in: EtherType (eight), five-tuple (128), or the flow director, if the port was opened
//! with it.
//!
//! The NIC asks them in that order. Rules count in the order in which they were given: so a later one does not land before those
//! that it overlaps.

use bywash_hw::ixgbe::regs::{ETQF, FTQF};
use bywash_port::{Flow, Ipv4Flow, SteerRule};
use bywash_sys::function::Registers;

use super::flow_director::FlowDirector;
use super::steer;
use crate::intel::{Bar, FilterCounts, Filters, NicError, Place, Steer, check_new, five_tuple_queue};

const COUNTS: FilterCounts =
    FilterCounts { nic: "82599", ether_types: ETQF.count(), five_tuples: FTQF.count(), lowest: 1 };

/// All rules, by place.
#[derive(Debug)]
pub(super) struct Rules {
    filters: Filters,
    director: Option<FlowDirector>,
}

impl Rules {
    /// None yet.
    pub(super) fn new(director: Option<FlowDirector>) -> Self {
        Self { filters: Filters::new(COUNTS), director }
    }

    fn add_ether_type<R: Registers>(
        &mut self,
        bar: &Bar<R>,
        rule: &SteerRule,
        ether_type: u16,
    ) -> Result<Place, String> {
        let (number, queue) = self.filters.ether_type(rule)?;
        steer::ether_type(bar, number, Some((ether_type, queue)));
        Ok(self.filters.keep_ether_type(number, rule))
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
                return Ok(self.filters.keep_five_tuple(number, rule, flow, priority));
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
        let queue = five_tuple_queue(rule, flow)?;
        let directed = self.director.iter().flat_map(FlowDirector::rules);
        let mut later =
            directed.filter(|(_, known)| matches!(&known.flow, Flow::Ipv4(known) if known.overlaps(flow)));
        if let Some((_, known)) = later.next() {
            return Err(format!("a five-tuple filter would come before '{known}', which was given earlier"));
        }
        let (number, priority) = self.filters.five_tuple(flow)?;
        Ok((number, queue, priority))
    }

    fn all(&self) -> impl Iterator<Item = (Place, SteerRule)> {
        let directed = self.director.iter().flat_map(FlowDirector::rules);
        let directed = directed.map(|(number, rule)| (Place::FlowDirector(number), rule));
        self.filters.rules().chain(directed)
    }
}

impl<R: Registers> Steer<R> for Rules {
    fn add(&mut self, bar: &Bar<R>, rule: &SteerRule) -> Result<Place, NicError> {
        check_new(&rule.flow, self.all())?;
        match &rule.flow {
            Flow::EtherType(kind) => self.add_ether_type(bar, rule, *kind).map_err(NicError::Setting),
            Flow::Ipv4(flow) => self.add_ipv4(bar, rule, flow),
        }
    }

    fn remove(&mut self, bar: &Bar<R>, place: Place) -> Result<Option<SteerRule>, NicError> {
        match (place, &mut self.director) {
            (Place::EtherType(number), _) => {
                let rule = self.filters.take_ether_type(number);
                rule.iter().for_each(|_| steer::ether_type(bar, number, None));
                Ok(rule)
            }
            (Place::FiveTuple(number), _) => {
                let rule = self.filters.take_five_tuple(number);
                rule.iter().for_each(|_| bar.put_at(&FTQF, number, 0));
                Ok(rule)
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
        self.all().collect()
    }
}
