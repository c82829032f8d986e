//! Which packets are for us, and which queue gets them: addresses, multicast, RSS.

use bywash_hw::igb::regs::{MRQC, MTA, RAH, RAL, RCTL, RETA, RSSRK};
use bywash_sys::function::Registers;

use super::{Multicast, Rss, Settings};
use crate::intel::{Bar, NicError};
use crate::ixgbe::check_unicast;

/// MRQC.MRQE: RSS over all queues, without virtualisation.
const RSS: u32 = 2;

/// Sets the NIC's own address, or reads what the EEPROM has given it.
pub(super) fn own_address<R: Registers>(bar: &Bar<R>, wanted: Option<[u8; 6]>) -> Result<[u8; 6], NicError> {
    let mac = wanted.unwrap_or_else(|| {
        let ([a, b, c, d], [e, f, ..]) =
            (bar.get_at(&RAL, 0).to_le_bytes(), bar.get_at(&RAH, 0).to_le_bytes());
        [a, b, c, d, e, f]
    });
    check_unicast(mac)?;
    write_address(bar, 0, mac);
    Ok(mac)
}

/// Takes packets to one more address.
pub(super) fn add_address<R: Registers>(bar: &Bar<R>, mac: [u8; 6]) -> Result<(), NicError> {
    check_unicast(mac)?;
    let free = (1..RAH.count()).find(|index| !RAH::AV.is_set(bar.get_at(&RAH, *index)));
    let full = || NicError::Setting(format!("all {} addresses of the NIC are taken", RAH.count()));
    write_address(bar, free.ok_or_else(full)?, mac);
    Ok(())
}

fn write_address<R: Registers>(bar: &Bar<R>, index: u32, [a, b, c, d, e, f]: [u8; 6]) {
    bar.put_at(&RAL, index, u32::from_le_bytes([a, b, c, d]));
    // Without virtualisation all is pool 0's.
    let high = RAH::RAH.with(u32::from_le_bytes([e, f, 0, 0])) | RAH::POOLSEL.with(1) | RAH::AV.mask;
    bar.put_at(&RAH, index, high);
}

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

/// Spreads packets over queues: IPv4 and IPv6, with the ports of TCP and UDP. With one queue there is still a hash.
pub(super) fn rss<R: Registers>(bar: &Bar<R>, rss: &Rss, queues: u16) {
    for (index, word) in (0..).zip(rss.key_words()) {
        bar.put_at(&RSSRK, index, word);
    }
    for (index, word) in (0..).zip(rss.table_words(queues)) {
        bar.put_at(&RETA, index, word);
    }
    let fields = [
        MRQC::RSS_IPV4,
        MRQC::RSS_IPV4_TCP,
        MRQC::RSS_IPV4_UDP,
        MRQC::RSS_IPV6,
        MRQC::RSS_IPV6_TCP,
        MRQC::RSS_IPV6_UDP,
    ];
    let fields = fields.iter().fold(0, |all, field| all | field.mask);
    bar.put(&MRQC, MRQC::MRQE.with(RSS) | fields);
}
