//! Which packets are for us, and which queue gets them: addresses, multicast, RSS, EtherType and five-tuple filters as registers
//! have them.

use std::net::Ipv4Addr;

use bywash_hw::ixgbe::regs::{
    DAQF, ETQF, ETQS, FCTRL, FTQF, L34TIMIR, MCSTCTRL, MPSAR, MRQC, MTA, RAH, RAL, RETA, RSSRK, SAQF, SDPQF,
};
use bywash_port::{Ipv4Flow, TransportProtocol};
use bywash_sys::function::Registers;

use crate::intel::{Addresses, Bar, Multicast, NicError, RssRegisters, Settings};

/// Where addresses are; each has two registers of the pools that it belongs to.
pub(super) const ADDRESSES: Addresses =
    Addresses { low: &RAL, high: &RAH, valid: RAH::AV, pool: 0, pools: Some(&MPSAR) };

/// How packets are spread: MRQE 1 is RSS without virtualisation.
pub(super) const RSS: RssRegisters = RssRegisters {
    key: &RSSRK,
    table: &RETA,
    control: &MRQC,
    on: MRQC::MRQE.with(1),
    fields: [
        MRQC::RSS_IPV4,
        MRQC::RSS_IPV4_TCP,
        MRQC::RSS_IPV4_UDP,
        MRQC::RSS_IPV6,
        MRQC::RSS_IPV6_TCP,
        MRQC::RSS_IPV6_UDP,
    ],
};

/// Says which packets pass the address filters. The receiver must be off.
pub(super) fn filter<R: Registers>(bar: &Bar<R>, settings: &Settings) -> Result<(), NicError> {
    let table = settings.multicast.table()?;
    for (index, word) in (0..).zip(table) {
        bar.put_at(&MTA, index, word);
    }
    // MCSTCTRL.MO 0: the hash that the table has.
    let by_group = if settings.multicast.is_by_group() { MCSTCTRL::MFE.mask } else { 0 };
    bar.put(&MCSTCTRL, MCSTCTRL::MO.with(0) | by_group);
    let any = if settings.promiscuous { FCTRL::UPE.mask | FCTRL::MPE.mask } else { 0 };
    let multicast = if settings.multicast == Multicast::All { FCTRL::MPE.mask } else { 0 };
    bar.put(&FCTRL, FCTRL::BAM.mask | any | multicast);
    Ok(())
}

/// EtherType filter `number`: packets of a type go to a queue; or it is off.
pub(super) fn ether_type<R: Registers>(bar: &Bar<R>, number: u32, filter: Option<(u16, u16)>) {
    let (etqs, etqf) = filter.map_or((0, 0), |(ether_type, queue)| {
        (
            ETQS::RX_QUEUE.with(u32::from(queue)) | ETQS::QUEUE_EN.mask,
            ETQF::ETYPE.with(u32::from(ether_type)) | ETQF::FILTER_EN.mask,
        )
    });
    bar.put_at(&ETQF, number, 0);
    bar.put_at(&ETQS, number, etqs);
    bar.put_at(&ETQF, number, etqf);
}

/// Five-tuple filter `number`: IPv4 packets of a flow go to a queue. Of its prefixes each is one address or all.
pub(super) fn five_tuple<R: Registers>(bar: &Bar<R>, number: u32, flow: &Ipv4Flow, priority: u8, queue: u16) {
    let (from, to) = (flow.source.single(), flow.destination.single());
    let ports = flow.transport.map(|transport| (transport.source_port, transport.destination_port));
    let (from_port, to_port) = ports.unwrap_or_default();
    // Addresses and ports lie in the registers as in the packet.
    let address =
        |address: Option<Ipv4Addr>| address.map_or(0, |address| u32::from_le_bytes(address.octets()));
    let port = |port: Option<u16>| u32::from(port.unwrap_or(0).swap_bytes());
    let protocol = flow.transport.map_or(0, |transport| match transport.protocol {
        TransportProtocol::Tcp => 0,
        TransportProtocol::Udp => 1,
        TransportProtocol::Sctp => 2,
    });
    let any = |field: bywash_hw::reg::Field, any: bool| if any { field.mask } else { 0 };
    let ftqf = FTQF::PROTOCOL.with(protocol)
        | FTQF::PRIORITY.with(u32::from(priority))
        | any(FTQF::MASK_SOURCE, from.is_none())
        | any(FTQF::MASK_DESTINATION, to.is_none())
        | any(FTQF::MASK_SOURCE_PORT, from_port.is_none())
        | any(FTQF::MASK_DESTINATION_PORT, to_port.is_none())
        | any(FTQF::MASK_PROTOCOL, flow.transport.is_none())
        | FTQF::POOL_MASK.mask
        | FTQF::QUEUE_ENABLE.mask;
    bar.put_at(&FTQF, number, 0);
    bar.put_at(&SAQF, number, address(from));
    bar.put_at(&DAQF, number, address(to));
    bar.put_at(&SDPQF, number, SDPQF::SOURCE.with(port(from_port)) | SDPQF::DESTINATION.with(port(to_port)));
    // A packet's length and TCP's flags are not compared.
    let bypass = L34TIMIR::SIZE_BP.mask | L34TIMIR::CTRL_BP.mask;
    bar.put_at(&L34TIMIR, number, bypass | L34TIMIR::RX_QUEUE.with(u32::from(queue)));
    bar.put_at(&FTQF, number, ftqf);
}
