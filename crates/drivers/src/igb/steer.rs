//! Which packets are for us, and which queue gets them: addresses, multicast, RSS.

use bywash_hw::igb::regs::{MRQC, MTA, RAH, RAL, RCTL, RETA, RSSRK};
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
