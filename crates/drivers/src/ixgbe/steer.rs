//! Which packets are for us, and which queue gets them: addresses, multicast, RSS, EtherType and five-tuple filters.

use std::net::Ipv4Addr;

use bywash_hw::ixgbe::regs::{
    DAQF, ETQF, ETQS, FCTRL, FTQF, L34TIMIR, MCSTCTRL, MPSAR, MRQC, MTA, RAH, RAL, RETA, RSSRK, SAQF, SDPQF,
};
use bywash_sys::function::Registers;

use super::{RSS_QUEUES, Settings};
use crate::intel::{Bar, NicError};

/// Multicast packets to take. Broadcasts are always taken.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Multicast {
    /// None.
    None,
    /// All.
    #[default]
    All,
    /// To these groups, and to others with the same hash of 12 bits.
    Groups(Vec<[u8; 6]>),
}

/// How packets are spread over queues by the hash of their addresses and ports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rss {
    /// The Toeplitz hash's key.
    pub key: [u8; 40],
    /// Queue for each value of the hash's low seven bits; all queues in turn when `None`.
    pub table: Option<[u8; 128]>,
}

impl Default for Rss {
    /// The key that Microsoft publishes for verifying an implementation.
    fn default() -> Self {
        Self {
            key: [
                0x6d, 0x5a, 0x56, 0xda, 0x25, 0x5b, 0x0e, 0xc2, 0x41, 0x67, 0x25, 0x3d, 0x43, 0xa3, 0x8f,
                0xb0, 0xd0, 0xca, 0x2b, 0xcb, 0xae, 0x7b, 0x30, 0xb4, 0x77, 0xcb, 0x2d, 0xa3, 0x80, 0x30,
                0xf2, 0x0c, 0x6a, 0x42, 0xb7, 0x3b, 0xbe, 0xac, 0x01, 0xfa,
            ],
            table: None,
        }
    }
}

impl Rss {
    /// With a key of equal 16-bit words: both directions of a flow have the same hash, so the same queue gets them.
    pub fn symmetric() -> Self {
        Self { key: std::array::from_fn(|i| [0x6d, 0x5a][i % 2]), table: None }
    }

    /// Whether its table names none but the first `most` of so many queues.
    pub(crate) fn check(&self, most: u16, queues: u16) -> Result<(), NicError> {
        match self.table.iter().flatten().find(|queue| u16::from(**queue) >= most) {
            None => Ok(()),
            Some(queue) => Err(NicError::Setting(format!(
                "queue {queue} in the RSS table: it may name the first {most} of {queues}"
            ))),
        }
    }
}

impl Rss {
    /// The key as registers hold it.
    pub(crate) fn key_words(&self) -> [u32; 10] {
        let (words, _) = self.key.as_chunks::<4>();
        std::array::from_fn(|i| u32::from_le_bytes(words[i]))
    }

    /// The table as registers hold it, for `queues` queues.
    pub(crate) fn table_words(&self, queues: u16) -> [u32; 32] {
        let in_turn = || std::array::from_fn(|i| u8::try_from(i % usize::from(queues)).unwrap_or(0));
        let table = self.table.unwrap_or_else(in_turn);
        let (words, _) = table.as_chunks::<4>();
        std::array::from_fn(|i| u32::from_le_bytes(words[i]))
    }
}

impl Multicast {
    /// The table of hashes (MTA), with 12 bits of the address from bit 36 on as hash; empty unless groups are named.
    pub(crate) fn table(&self) -> Result<[u32; 128], NicError> {
        let mut table = [0; 128];
        let Self::Groups(groups) = self else { return Ok(table) };
        for group in groups {
            if group[0] & 1 == 0 {
                return Err(NicError::Setting(format!("{group:02x?} is no multicast address")));
            }
            // Bits 47:36 of the address, its first byte lowest.
            let hash = u16::from_le_bytes([group[4], group[5]]) >> 4;
            table[usize::from(hash >> 5)] |= 1 << (hash & 31);
        }
        Ok(table)
    }

    /// Whether groups are told by their hashes.
    pub(crate) fn is_by_group(&self) -> bool {
        matches!(self, Self::Groups(groups) if !groups.is_empty())
    }
}

/// A transport protocol that five-tuple filters know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
    /// SCTP.
    Sctp,
}

/// What an IPv4 packet must have; `None` is anything.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FiveTuple {
    /// Source address.
    pub source: Option<Ipv4Addr>,
    /// Destination address.
    pub destination: Option<Ipv4Addr>,
    /// Source port.
    pub source_port: Option<u16>,
    /// Destination port.
    pub destination_port: Option<u16>,
    /// Protocol.
    pub protocol: Option<Protocol>,
    /// Of several filters that match, the one with the highest counts: 0 to 7.
    pub priority: u8,
}

/// Sets the NIC's own address, or reads what the EEPROM has given it.
pub(super) fn own_address<R: Registers>(bar: &Bar<R>, wanted: Option<[u8; 6]>) -> Result<[u8; 6], NicError> {
    if let Some(mac) = wanted {
        check_unicast(mac)?;
        write_address(bar, 0, mac);
        return Ok(mac);
    }
    let ([a, b, c, d], [e, f, ..]) = (bar.get_at(&RAL, 0).to_le_bytes(), bar.get_at(&RAH, 0).to_le_bytes());
    let mac = [a, b, c, d, e, f];
    check_unicast(mac)?;
    write_address(bar, 0, mac);
    Ok(mac)
}

/// Takes packets to one more address.
pub(super) fn add_address<R: Registers>(bar: &Bar<R>, mac: [u8; 6]) -> Result<(), NicError> {
    check_unicast(mac)?;
    let free = (1..RAH.count()).find(|index| !RAH::AV.is_set(bar.get_at(&RAH, *index)));
    let index = free.ok_or_else(|| NicError::Setting("all 128 addresses of the NIC are taken".into()))?;
    write_address(bar, index, mac);
    Ok(())
}

/// Refuses what is no address of one NIC.
pub(crate) fn check_unicast(mac: [u8; 6]) -> Result<(), NicError> {
    if mac == [0; 6] || mac[0] & 1 != 0 { Err(NicError::Mac(mac)) } else { Ok(()) }
}

fn write_address<R: Registers>(bar: &Bar<R>, index: u32, [a, b, c, d, e, f]: [u8; 6]) {
    bar.put_at(&RAL, index, u32::from_le_bytes([a, b, c, d]));
    bar.put_at(&RAH, index, u32::from_le_bytes([e, f, 0, 0]) | RAH::AV.mask);
    // Two registers of pools for each address; without virtualisation all is pool 0's.
    bar.put_at(&MPSAR, 2 * index, 1);
}

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

/// Spreads packets over queues: IPv4 and IPv6, with the ports of TCP and UDP. With one queue there is still a hash.
pub(super) fn rss<R: Registers>(bar: &Bar<R>, rss: &Rss, queues: u16) {
    for (index, word) in (0..).zip(rss.key_words()) {
        bar.put_at(&RSSRK, index, word);
    }
    for (index, word) in (0..).zip(rss.table_words(queues.min(RSS_QUEUES))) {
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
    bar.put(&MRQC, MRQC::MRQE.with(1) | fields);
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
