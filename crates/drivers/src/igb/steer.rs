//! Which packets are for us, and which queue gets them: addresses, multicast, RSS, EtherType and five-tuple filters as registers
//! have them.
//!
//! Filters are written as DPDK's igb does it (`igb_add_del_ethertype_filter`, `igb_inject_5tuple_filter_82576`), but the register
//! that switches one on comes last, as in Linux's (`igb_ptp_set_timestamp_mode`, which has one for its time stamps).

use std::net::Ipv4Addr;

use bywash_hw::igb::regs::{
    DAQF, ETQF, FTQF, IMIR, IMIREXT, MRQC, MTA, RAH, RAL, RCTL, RETA, RSSRK, SAQF, SPQF,
};
use bywash_hw::reg::{Field, Register};
use bywash_port::{Ipv4Flow, TransportProtocol};
use bywash_sys::function::Registers;

use crate::intel::{Addresses, Bar, Multicast, NicError, RssRegisters, Settings};

/// Where addresses are.
pub(super) const ADDRESSES: Addresses =
    Addresses { low: &RAL, high: &RAH, valid: RAH::AV, pool: RAH::POOLSEL.with(1), pools: None };

/// How packets are spread: MRQE 2 is RSS over all queues, without virtualisation.
pub(super) const RSS: RssRegisters = RssRegisters {
    key: &RSSRK,
    table: &RETA,
    control: &MRQC,
    on: MRQC::MRQE.with(2),
    fields: [
        MRQC::RSS_IPV4,
        MRQC::RSS_IPV4_TCP,
        MRQC::RSS_IPV4_UDP,
        MRQC::RSS_IPV6,
        MRQC::RSS_IPV6_TCP,
        MRQC::RSS_IPV6_UDP,
    ],
};

/// Says which packets pass the address filters.
pub(super) fn filter<R: Registers>(bar: &Bar<R>, settings: &Settings) -> Result<(), NicError> {
    for (index, word) in (0..).zip(settings.multicast.table()?) {
        bar.put_at(&MTA, index, word);
    }
    let any = if settings.promiscuous { RCTL::UPE.mask | RCTL::MPE.mask } else { 0 };
    let multicast = if settings.multicast == Multicast::All { RCTL::MPE.mask } else { 0 };
    // MO 0: the hash that the table has.
    let clear = RCTL::UPE.mask | RCTL::MPE.mask | RCTL::MO.mask | RCTL::VFE.mask;
    bar.change(&RCTL, clear, RCTL::BAM.mask | any | multicast);
    Ok(())
}

/// EtherType filter `number`: packets of a type go to a queue.
pub(super) fn ether_type<R: Registers>(
    bar: &Bar<R>,
    number: u32,
    ether_type: u16,
    queue: u16,
) -> Result<(), NicError> {
    let etqf = ETQF::ETYPE.with(ether_type.into())
        | ETQF::RX_QUEUE.with(queue.into())
        | ETQF::FILTER_EN.mask
        | ETQF::QUEUE_EN.mask;
    no_ether_type(bar, number);
    switch_on(bar, &ETQF, number, etqf).inspect_err(|_| no_ether_type(bar, number))
}

/// EtherType filter `number` is off.
pub(super) fn no_ether_type<R: Registers>(bar: &Bar<R>, number: u32) {
    bar.put_at(&ETQF, number, 0);
}

/// FTQF of a filter that is off: it compares nothing, and names no queue.
pub(super) const NO_FIVE_TUPLE: u32 = FTQF::POOL_MASK.mask
    | FTQF::MASK_PROTOCOL.mask
    | FTQF::MASK_SOURCE.mask
    | FTQF::MASK_DESTINATION.mask
    | FTQF::MASK_SOURCE_PORT.mask;

/// Five-tuple filter `number`: IPv4 packets of a flow go to a queue. Of its prefixes each is one address or all.
pub(super) fn five_tuple<R: Registers>(
    bar: &Bar<R>,
    number: u32,
    flow: &Ipv4Flow,
    priority: u8,
    queue: u16,
) -> Result<(), NicError> {
    let (from, to) = (flow.source.single(), flow.destination.single());
    let ports = flow.transport.map(|transport| (transport.source_port, transport.destination_port));
    let (from_port, to_port) = ports.unwrap_or_default();
    // Addresses and ports lie in the registers as in the packet: the first byte lowest.
    let address =
        |address: Option<Ipv4Addr>| address.map_or(0, |address| u32::from_le_bytes(address.octets()));
    let port = |port: Option<u16>| u32::from(port.unwrap_or(0).swap_bytes());
    // By IP's own numbers.
    let protocol = flow.transport.map_or(0, |transport| match transport.protocol {
        TransportProtocol::Tcp => 6,
        TransportProtocol::Udp => 17,
        TransportProtocol::Sctp => 132,
    });
    let any = |field: Field, any: bool| if any { field.mask } else { 0 };
    let ftqf = FTQF::PROTOCOL.with(protocol)
        | FTQF::RX_QUEUE.with(queue.into())
        | FTQF::QUEUE_ENABLE.mask
        | FTQF::POOL_MASK.mask
        | any(FTQF::MASK_PROTOCOL, flow.transport.is_none())
        | any(FTQF::MASK_SOURCE, from.is_none())
        | any(FTQF::MASK_DESTINATION, to.is_none())
        | any(FTQF::MASK_SOURCE_PORT, from_port.is_none());
    let imir = IMIR::PORT.with(port(to_port))
        | any(IMIR::PORT_BP, to_port.is_none())
        | IMIR::PRIORITY.with(priority.into());
    no_five_tuple(bar, number);
    bar.put_at(&SAQF, number, address(from));
    bar.put_at(&DAQF, number, address(to));
    bar.put_at(&SPQF, number, SPQF::PORT.with(port(from_port)));
    bar.put_at(&IMIR, number, imir);
    // Packets of any size, with any flags of TCP.
    bar.put_at(&IMIREXT, number, IMIREXT::SIZE_BP.mask | IMIREXT::FLAGS_BP.mask);
    switch_on(bar, &FTQF, number, ftqf).inspect_err(|_| no_five_tuple(bar, number))
}

/// Five-tuple filter `number` is off.
pub(super) fn no_five_tuple<R: Registers>(bar: &Bar<R>, number: u32) {
    bar.put_at(&FTQF, number, NO_FIVE_TUPLE);
    for register in [&SAQF, &DAQF, &SPQF, &IMIR, &IMIREXT] {
        bar.put_at(register, number, 0);
    }
}

/// Writes the register that switches a filter on, and looks whether the NIC has it: QEMU's has no five-tuple filters, and says
/// nothing.
fn switch_on<R: Registers>(
    bar: &Bar<R>,
    register: &Register,
    index: u32,
    written: u32,
) -> Result<(), NicError> {
    bar.put_at(register, index, written);
    let value = bar.get_at(register, index);
    if value == u32::MAX && bar.is_gone() {
        return Err(NicError::Gone);
    }
    let known = register.fields.iter().fold(0, |known, (_, field)| known | field.mask);
    if value & known == written {
        return Ok(());
    }
    Err(NicError::FilterNotKept { register: register.name, index, value, written })
}
