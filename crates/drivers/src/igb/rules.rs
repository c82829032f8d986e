//! Which of the NIC's filters a rule lands in: EtherType (eight) or five-tuple (eight, of seven priorities). It has nothing else
//! that names a queue by addresses and ports, and nothing that drops.
//!
//! The NIC asks EtherType filters first. They take no type of IP, so no rule of one kind can come before one of the other.

use bywash_hw::igb::regs::{ETQF, FTQF};
use bywash_port::{Flow, Ipv4Flow, Ipv4Prefix, SteerRule};
use bywash_sys::function::Registers;

use super::steer;
use crate::intel::{Bar, FilterCounts, Filters, NicError, Place, Steer, check_new, five_tuple_queue};

/// DPDK has priorities from 1 on for this NIC.
const COUNTS: FilterCounts =
    FilterCounts { nic: "82576", ether_types: ETQF.count(), five_tuples: FTQF.count(), lowest: 1 };

/// All rules, by place.
#[derive(Debug)]
pub(super) struct Rules {
    filters: Filters,
}

impl Rules {
    /// None yet.
    pub(super) fn new() -> Self {
        Self { filters: Filters::new(COUNTS) }
    }

    /// Number, queue and priority of the five-tuple filter that the rule can be, or why it can be none.
    fn five_tuple(&self, rule: &SteerRule, flow: &Ipv4Flow) -> Result<(u32, u16, u8), String> {
        let queue = five_tuple_queue(rule, flow)
            .map_err(|why| format!("{why}, and the 82576 has no others for addresses and ports"))?;
        // Its registers do not say "IPv4", and no source says what a filter takes that compares nothing.
        if flow.transport.is_none() && flow.source == Ipv4Prefix::ANY && flow.destination == Ipv4Prefix::ANY {
            return Err(
                "a five-tuple filter of the 82576 that compares nothing might take more than IPv4: name a protocol or an address"
                    .into(),
            );
        }
        let (number, priority) = self.filters.five_tuple(flow)?;
        Ok((number, queue, priority))
    }
}

impl<R: Registers> Steer<R> for Rules {
    fn add(&mut self, bar: &Bar<R>, rule: &SteerRule) -> Result<Place, NicError> {
        check_new(&rule.flow, self.filters.rules())?;
        match &rule.flow {
            Flow::EtherType(kind) => {
                let (number, queue) = self.filters.ether_type(rule).map_err(NicError::Setting)?;
                steer::ether_type(bar, number, *kind, queue)?;
                Ok(self.filters.keep_ether_type(number, rule))
            }
            Flow::Ipv4(flow) => {
                let (number, queue, priority) = self.five_tuple(rule, flow).map_err(NicError::Setting)?;
                steer::five_tuple(bar, number, flow, priority, queue)?;
                Ok(self.filters.keep_five_tuple(number, rule, flow, priority))
            }
        }
    }

    fn remove(&mut self, bar: &Bar<R>, place: Place) -> Result<Option<SteerRule>, NicError> {
        Ok(match place {
            Place::EtherType(number) => {
                self.filters.take_ether_type(number).inspect(|_| steer::no_ether_type(bar, number))
            }
            Place::FiveTuple(number) => {
                self.filters.take_five_tuple(number).inspect(|_| steer::no_five_tuple(bar, number))
            }
            Place::FlowDirector(_) => None,
        })
    }

    fn holds(&self, bar: &Bar<R>, place: Place) -> Result<bool, NicError> {
        Ok(match place {
            Place::EtherType(number) => {
                number < ETQF.count() && ETQF::FILTER_EN.is_set(bar.get_at(&ETQF, number))
            }
            Place::FiveTuple(number) => {
                number < FTQF.count() && FTQF::QUEUE_ENABLE.is_set(bar.get_at(&FTQF, number))
            }
            Place::FlowDirector(_) => false,
        })
    }

    fn rules(&self) -> Vec<(Place, SteerRule)> {
        self.filters.rules().collect()
    }
}

#[cfg(test)]
mod tests;
