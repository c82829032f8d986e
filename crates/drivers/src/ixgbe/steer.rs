//! Which packets are for us, and which queue gets them: addresses, multicast, RSS, EtherType and five-tuple filters.

use std::net::Ipv4Addr;

use bywash_hw::ixgbe::regs::{
    DAQF, ETQF, ETQS, FCTRL, FTQF, L34TIMIR, MCSTCTRL, MPSAR, MRQC, MTA, RAH, RAL, RETA, RSSRK, SAQF, SDPQF,
};
use bywash_sys::function::Registers;

use crate::intel::{Addresses, Bar, FiveTuple, Multicast, NicError, Protocol, RssRegisters, Settings};

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

/// Sends packets of an EtherType to a queue.
pub(super) fn ether_type<R: Registers>(
    bar: &Bar<R>,
    number: u32,
    ether_type: u16,
    queue: u32,
) -> Result<(), NicError> {
    if number >= ETQF.count() {
        return Err(NicError::Setting(format!("EtherType filter {number}: the NIC has {}", ETQF.count())));
    }
    bar.put_at(&ETQS, number, ETQS::RX_QUEUE.with(queue) | ETQS::QUEUE_EN.mask);
    bar.put_at(&ETQF, number, ETQF::ETYPE.with(u32::from(ether_type)) | ETQF::FILTER_EN.mask);
    Ok(())
}

/// Sends IPv4 packets that a filter matches to a queue.
pub(super) fn five_tuple<R: Registers>(
    bar: &Bar<R>,
    number: u32,
    tuple: &FiveTuple,
    queue: u32,
) -> Result<(), NicError> {
    if number >= FTQF.count() || tuple.priority > 7 {
        let reason =
            format!("five-tuple filter {number}: the NIC has {}, of priorities 0 to 7", FTQF.count());
        return Err(NicError::Setting(reason));
    }
    // Addresses and ports lie in the registers as in the packet.
    let address =
        |address: Option<Ipv4Addr>| address.map_or(0, |address| u32::from_le_bytes(address.octets()));
    let port = |port: Option<u16>| u32::from(port.unwrap_or(0).swap_bytes());
    let protocol = match tuple.protocol {
        None | Some(Protocol::Tcp) => 0,
        Some(Protocol::Udp) => 1,
        Some(Protocol::Sctp) => 2,
    };
    let any = |field: bywash_hw::reg::Field, any: bool| if any { field.mask } else { 0 };
    let ftqf = FTQF::PROTOCOL.with(protocol)
        | FTQF::PRIORITY.with(u32::from(tuple.priority))
        | any(FTQF::MASK_SOURCE, tuple.source.is_none())
        | any(FTQF::MASK_DESTINATION, tuple.destination.is_none())
        | any(FTQF::MASK_SOURCE_PORT, tuple.source_port.is_none())
        | any(FTQF::MASK_DESTINATION_PORT, tuple.destination_port.is_none())
        | any(FTQF::MASK_PROTOCOL, tuple.protocol.is_none())
        | FTQF::POOL_MASK.mask
        | FTQF::QUEUE_ENABLE.mask;
    bar.put_at(&FTQF, number, 0);
    bar.put_at(&SAQF, number, address(tuple.source));
    bar.put_at(&DAQF, number, address(tuple.destination));
    let ports =
        SDPQF::SOURCE.with(port(tuple.source_port)) | SDPQF::DESTINATION.with(port(tuple.destination_port));
    bar.put_at(&SDPQF, number, ports);
    bar.put_at(&L34TIMIR, number, L34TIMIR::SIZE_BP.mask | L34TIMIR::RX_QUEUE.with(queue));
    bar.put_at(&FTQF, number, ftqf);
    Ok(())
}
