//! The flow director: thousands of filters, in memory that is taken from what holds received packets. A filter compares parts of
//! addresses, ports, protocol and VLAN, but all filters the same parts: the first one says which.
//!
//! These are perfect filters, which compare IPv4 packets field by field. The NIC looks for them in a
//! list, a bucket, that a hash of the fields names; the driver computes it as well and says it with each filter.

use std::fmt;

use bywash_hw::ixgbe::regs::{
    FDIRCMD, FDIRCTRL, FDIRDIP4M, FDIRFREE, FDIRHASH, FDIRHKEY, FDIRIPDA, FDIRIPSA, FDIRM, FDIRPORT,
    FDIRSIP4M, FDIRTCPM, FDIRUDPM, FDIRVLAN,
};
use bywash_hw::reg::Field;
use bywash_port::{FdirFilters, Ipv4Flow, Ipv4Prefix, SteerRule, SteerTo, TransportProtocol};
use bywash_sys::function::Registers;

use crate::intel::{Bar, NicError, SHORT, Wait};

/// The key of the hash that names a bucket: Linux's.
const BUCKET_KEY: u32 = 0x3dad_14e2;
/// Most filters in a bucket: the NIC looks no further, so that one packet does not hold up the others. Linux's, too.
const BUCKET_LENGTH: u32 = 10;
/// The queue of packets that are dropped: none that is ever switched on.
const DROP_QUEUE: u32 = 127;
/// Values of FDIRCMD.CMD.
const ADD: u32 = 1;
const REMOVE: u32 = 2;
const QUERY: u32 = 3;

/// FDIRCTRL.PBALLOC.
fn allocation(filters: Option<FdirFilters>) -> u32 {
    match filters {
        None => 0,
        Some(FdirFilters::K2) => 1,
        Some(FdirFilters::K4) => 2,
        Some(FdirFilters::K8) => 3,
    }
}

/// Bytes of receive memory that filters take.
pub(super) fn memory(filters: Option<FdirFilters>) -> u32 {
    filters.map_or(0, |_| (32 * 1024) << allocation(filters))
}

/// The filters, and what the NIC has been told of them.
#[derive(Debug)]
pub(super) struct FlowDirector {
    size: FdirFilters,
    /// By number, which is what the NIC calls the index.
    filters: Vec<Option<Filter>>,
    /// Which parts are compared, while there are filters.
    masks: Option<Masks>,
}

/// A filter that the NIC has.
#[derive(Clone, Copy, Debug)]
struct Filter {
    rule: SteerRule,
    flow: Ipv4Flow,
    bucket: u32,
}

/// Which parts of packets are compared; a set bit of an address is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Masks {
    source: u32,
    destination: u32,
    transport: bool,
    source_port: bool,
    destination_port: bool,
    vlan: bool,
}

impl FlowDirector {
    /// Makes the table, empty. The packet buffer must have been made smaller before.
    pub(super) fn start<R: Registers>(bar: &Bar<R>, size: FdirFilters) -> Result<Self, NicError> {
        bar.put(&FDIRHKEY, BUCKET_KEY);
        let control = FDIRCTRL::PBALLOC.with(allocation(Some(size)))
            | FDIRCTRL::PERFECT_MATCH.mask
            | FDIRCTRL::DROP_QUEUE.with(DROP_QUEUE)
            | FDIRCTRL::MAX_LENGTH.with(BUCKET_LENGTH);
        bar.put(&FDIRCTRL, control);
        bar.flush();
        let ready = Wait::set(
            FDIRCTRL::INIT_DONE.mask,
            SHORT,
            "the flow director does not make its table; open the port without /fdir=",
        );
        bar.wait(&FDIRCTRL, 0, ready)?;
        Ok(Self { size, filters: Vec::new(), masks: None })
    }

    /// Adds a filter for the rule, whose packets `flow` says. Returns its number.
    pub(super) fn add<R: Registers>(
        &mut self,
        bar: &Bar<R>,
        rule: &SteerRule,
        flow: &Ipv4Flow,
    ) -> Result<u32, NicError> {
        let (masks, bucket) = (Masks::of(flow), bucket(flow, self.size));
        self.check(bar, flow, &masks, bucket).map_err(NicError::Setting)?;
        let at = self.filters.iter().position(Option::is_none).unwrap_or(self.filters.len());
        let number = u32::try_from(at).unwrap_or(u32::MAX);
        if self.masks.is_none() {
            masks.write(bar);
        }
        write_fields(bar, flow);
        let filter = Filter { rule: *rule, flow: *flow, bucket };
        command(bar, number, &filter, ADD | filter.to())?;
        let answer = command(bar, number, &filter, QUERY)?;
        if !FDIRCMD::FILTER_VALID.is_set(answer) {
            return Err(NicError::FilterLost { fdircmd: answer, fdirfree: bar.get(&FDIRFREE) });
        }
        if at == self.filters.len() {
            self.filters.push(None);
        }
        self.filters[at] = Some(filter);
        self.masks = Some(masks);
        Ok(number)
    }

    /// In one line why there can be no such filter, if so.
    fn check<R: Registers>(
        &self,
        bar: &Bar<R>,
        flow: &Ipv4Flow,
        masks: &Masks,
        bucket: u32,
    ) -> Result<(), String> {
        // DPDK's driver says that its ports mean nothing to the flow director, and no register has a mask for them.
        if matches!(flow.transport, Some(transport) if transport.protocol == TransportProtocol::Sctp) {
            return Err("the flow director is not asked for SCTP, whose ports it may not compare".into());
        }
        let first = self.filters.iter().flatten().next();
        if let (Some(known), Some(first)) = (self.masks.filter(|known| known != masks), first) {
            return Err(format!(
                "all flow director filters compare the same parts of a packet, now {known} (FDIRM, FDIRSIP4M, FDIRDIP4M, \
                 FDIRTCPM, FDIRUDPM) because of '{}', and this one would need {masks}",
                first.rule
            ));
        }
        if FDIRFREE::FREE.of(bar.get(&FDIRFREE)) == 0 {
            let taken = self.filters.iter().flatten().count();
            let more = if self.size == FdirFilters::K8 { "" } else { ": open the port with a larger /fdir=" };
            return Err(format!("the flow director is full with {taken} filters (FDIRFREE is 0){more}"));
        }
        let beside = self.filters.iter().flatten().filter(|filter| filter.bucket == bucket).count();
        if beside >= BUCKET_LENGTH as usize {
            return Err(format!(
                "{beside} flow director filters have the same hash already (FDIRHASH {bucket:#06x}), \
                 and the NIC looks at no more (FDIRCTRL.MAX_LENGTH)"
            ));
        }
        Ok(())
    }

    /// Removes a filter. Returns its rule, if there was one.
    pub(super) fn remove<R: Registers>(
        &mut self,
        bar: &Bar<R>,
        number: u32,
    ) -> Result<Option<SteerRule>, NicError> {
        let Some(filter) = self.filter(number) else { return Ok(None) };
        if FDIRCMD::FILTER_VALID.is_set(command(bar, number, &filter, QUERY)?) {
            command(bar, number, &filter, REMOVE)?;
        }
        self.filters[number as usize] = None;
        if self.filters.iter().all(Option::is_none) {
            self.masks = None;
        }
        Ok(Some(filter.rule))
    }

    /// Whether the NIC has it.
    pub(super) fn holds<R: Registers>(&self, bar: &Bar<R>, number: u32) -> Result<bool, NicError> {
        let Some(filter) = self.filter(number) else { return Ok(false) };
        command(bar, number, &filter, QUERY).map(|answer| FDIRCMD::FILTER_VALID.is_set(answer))
    }

    /// Numbers and rules.
    pub(super) fn rules(&self) -> impl Iterator<Item = (u32, SteerRule)> {
        (0..).zip(&self.filters).filter_map(|(number, filter)| filter.map(|filter| (number, filter.rule)))
    }

    fn filter(&self, number: u32) -> Option<Filter> {
        self.filters.get(number as usize).copied().flatten()
    }
}

impl Filter {
    /// What FDIRCMD says of its packets and where they go.
    fn to(&self) -> u32 {
        let to = match self.rule.to {
            SteerTo::Queue(queue) => FDIRCMD::RX_QUEUE.with(u32::from(queue)),
            SteerTo::Drop => FDIRCMD::RX_QUEUE.with(DROP_QUEUE) | FDIRCMD::DROP.mask,
        };
        to | FDIRCMD::L4TYPE.with(kind(&self.flow)) | FDIRCMD::QUEUE_EN.mask | FDIRCMD::LAST.mask
    }
}

/// FDIRCMD.L4TYPE.
fn kind(flow: &Ipv4Flow) -> u32 {
    flow.transport.map_or(0, |transport| match transport.protocol {
        TransportProtocol::Udp => 1,
        TransportProtocol::Tcp => 2,
        TransportProtocol::Sctp => 3,
    })
}

/// Writes what is compared.
fn write_fields<R: Registers>(bar: &Bar<R>, flow: &Ipv4Flow) {
    // Addresses lie in the registers as in the packet.
    let address = |prefix: Ipv4Prefix| u32::from_le_bytes(prefix.address().octets());
    bar.put(&FDIRIPSA, address(flow.source));
    bar.put(&FDIRIPDA, address(flow.destination));
    let (from, to) = ports(flow);
    bar.put(&FDIRPORT, FDIRPORT::SOURCE.with(from) | FDIRPORT::DESTINATION.with(to));
    bar.put(&FDIRVLAN, FDIRVLAN::VLAN.with(u32::from(flow.vlan.unwrap_or(0))));
}

/// Gives an order about a filter, waits for its end and returns the answer.
fn command<R: Registers>(bar: &Bar<R>, number: u32, filter: &Filter, order: u32) -> Result<u32, NicError> {
    bar.put(&FDIRHASH, FDIRHASH::HASH.with(filter.bucket) | FDIRHASH::INDEX.with(number));
    // All that the order is about must have arrived before it.
    bar.flush();
    bar.put(&FDIRCMD, order);
    let done = Wait::clear(FDIRCMD::CMD.mask, SHORT, "the flow director does not do as it is told");
    bar.wait(&FDIRCMD, 0, done)
}

/// Source and destination port; 0 for any.
fn ports(flow: &Ipv4Flow) -> (u32, u32) {
    let ports = flow.transport.map(|transport| (transport.source_port, transport.destination_port));
    let (from, to) = ports.unwrap_or_default();
    (u32::from(from.unwrap_or(0)), u32::from(to.unwrap_or(0)))
}

/// The bucket of a filter, of so many.
///
/// The hash, as a comment in DPDK's `ixgbe_fdir.c` has it, takes a string of bits (kind of packet and VLAN, then addresses
/// and ports) and a key that is repeated as often as the string needs it: for each bit of the key that is set, the string
/// from there on. Because all words but the first meet the same key, they are added up before, and 48 bits are left.
fn bucket(flow: &Ipv4Flow, size: FdirFilters) -> u32 {
    let first = u64::from(kind(flow) << 16 | u32::from(flow.vlan.unwrap_or(0)));
    let (from, to) = ports(flow);
    let rest = flow.source.address().to_bits() ^ flow.destination.address().to_bits() ^ (from << 16 | to);
    let rest = u64::from(rest);
    let string = rest << 16 ^ rest >> 16 ^ first << 16 ^ first >> 16 << 16 ^ first & 0xffff;
    // At bit 0 the string has nothing of the first word: a case that this key does not have.
    const { assert!(BUCKET_KEY & 1 == 0) };
    let set = (1..32).filter(|bit| BUCKET_KEY >> bit & 1 != 0);
    let hash = set.fold(0, |hash, bit| hash ^ string >> bit);
    let buckets = 1024 << allocation(Some(size));
    u32::try_from(hash % buckets).unwrap_or(0)
}

impl Masks {
    fn of(flow: &Ipv4Flow) -> Self {
        let transport = flow.transport;
        Self {
            source: flow.source.mask(),
            destination: flow.destination.mask(),
            transport: transport.is_some(),
            source_port: transport.is_some_and(|transport| transport.source_port.is_some()),
            destination_port: transport.is_some_and(|transport| transport.destination_port.is_some()),
            vlan: flow.vlan.is_some(),
        }
    }

    /// Tells the NIC. In its registers a set bit is one that is not compared.
    fn write<R: Registers>(self, bar: &Bar<R>) {
        let unless = |field: Field, is_compared: bool| if is_compared { 0 } else { field.mask };
        let others = unless(FDIRM::VLANID, self.vlan)
            | FDIRM::VLANP.mask
            | FDIRM::POOL.mask
            | unless(FDIRM::L4P, self.transport)
            | FDIRM::FLEX.mask
            | FDIRM::DIPV6.mask;
        bar.put(&FDIRM, others);
        // Ports are compared whole or not at all, so that it makes no difference that their bits lie in reverse.
        for register in [&FDIRTCPM, &FDIRUDPM] {
            let ports = unless(FDIRTCPM::SOURCE, self.source_port)
                | unless(FDIRTCPM::DESTINATION, self.destination_port);
            bar.put(register, ports);
        }
        bar.put(&FDIRSIP4M, (!self.source).swap_bytes());
        bar.put(&FDIRDIP4M, (!self.destination).swap_bytes());
    }
}

impl fmt::Display for Masks {
    /// As the fields are called in rules.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let address = |name: &str, mask: u32| match mask.count_ones() {
            0 => None,
            32 => Some(name.to_owned()),
            bits => Some(format!("{bits} bits of {name}")),
        };
        let flag = |name: &str, is_compared: bool| is_compared.then(|| name.to_owned());
        let parts = [
            flag("protocol", self.transport),
            address("src-ip", self.source),
            address("dst-ip", self.destination),
            flag("src-port", self.source_port),
            flag("dst-port", self.destination_port),
            flag("vlan", self.vlan),
        ];
        let parts: Vec<String> = parts.into_iter().flatten().collect();
        f.write_str(if parts.is_empty() { "nothing" } else { "" })?;
        f.write_str(&parts.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use bywash_port::{Flow, SteerRule};

    use super::*;

    fn flow(text: &str) -> Ipv4Flow {
        match format!("{text} drop").parse::<SteerRule>().unwrap().flow {
            Flow::Ipv4(flow) => flow,
            Flow::EtherType(_) => unreachable!("not asked for"),
        }
    }

    #[test]
    fn the_bucket_of_a_rule_is_the_one_that_linux_computes() {
        // Linux 6.12 was seen to write this into FDIRHASH for the same rule.
        let rule =
            "ip and src host 10.9.9.1 and dst host 10.9.9.2 and udp src port 1111 and udp dst port 2222";
        assert_eq!(bucket(&flow(rule), FdirFilters::K8), 0x128c);
        assert_eq!(bucket(&flow(rule), FdirFilters::K2), 0x128c % 2048);
        assert_ne!(bucket(&flow(&rule.replace("udp", "tcp")), FdirFilters::K8), 0x128c);
    }

    #[test]
    fn masks_are_told_in_the_words_of_rules() {
        let told = |text: &str| Masks::of(&flow(text)).to_string();
        assert_eq!(told("ip"), "nothing");
        assert_eq!(told("ip and udp"), "protocol");
        assert_eq!(
            told(
                "vlan 3 and ip and src net 10.0.0.0/8 and dst host 10.0.0.1 and tcp src port 1 and tcp dst port 2"
            ),
            "protocol, 8 bits of src-ip, dst-ip, src-port, dst-port, vlan"
        );
    }
}
