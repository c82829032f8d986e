//! Which packets are for us, and which queue gets them, in the words of all families: addresses, multicast groups, RSS, rules.

use std::fmt;

use bywash_hw::reg::{Field, Register};
use bywash_port::{Certain, RssSpread, SteerRule};
use bywash_sys::function::Registers;

use super::{Bar, NicError};

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

    /// The key as registers hold it.
    pub(crate) fn key_words(&self) -> [u32; 10] {
        let (words, _) = self.key.as_chunks::<4>();
        std::array::from_fn(|i| u32::from_le_bytes(words[i]))
    }

    /// The table for `queues` queues.
    fn table_for(&self, queues: u16) -> [u8; 128] {
        let in_turn = || std::array::from_fn(|i| u8::try_from(i % usize::from(queues)).unwrap_or(0));
        self.table.unwrap_or_else(in_turn)
    }

    /// In the words of all ports, for `queues` queues.
    pub(crate) fn spread(&self, queues: u16, certain: Certain) -> Option<RssSpread> {
        RssSpread::new(self.key, self.table_for(queues).map(u16::from), certain)
    }

    /// The table as registers hold it, for `queues` queues.
    pub(crate) fn table_words(&self, queues: u16) -> [u32; 32] {
        let table = self.table_for(queues);
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

/// Where in a NIC a steering rule is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Place {
    /// This EtherType filter.
    EtherType(u32),
    /// This five-tuple filter.
    FiveTuple(u32),
    /// This filter of the flow director.
    FlowDirector(u32),
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::EtherType(number) => write!(f, "EtherType filter {number}"),
            Self::FiveTuple(number) => write!(f, "five-tuple filter {number}"),
            Self::FlowDirector(number) => write!(f, "flow director filter {number}"),
        }
    }
}

/// The filters of a NIC that name a queue, and the rules that are in them.
pub(crate) trait Steer<R>: fmt::Debug + Send {
    /// Finds a place for a rule that makes sense and whose queue is there.
    fn add(&mut self, bar: &Bar<R>, rule: &SteerRule) -> Result<Place, NicError>;

    /// Removes what is in a place, if there is something.
    fn remove(&mut self, bar: &Bar<R>, place: Place) -> Result<Option<SteerRule>, NicError>;

    /// Whether the NIC itself says that something is in a place.
    fn holds(&self, bar: &Bar<R>, place: Place) -> Result<bool, NicError>;

    /// All of them.
    fn rules(&self) -> Vec<(Place, SteerRule)>;
}

/// Refuses what is no address of one NIC.
pub(crate) fn check_unicast(mac: [u8; 6]) -> Result<(), NicError> {
    if mac == [0; 6] || mac[0] & 1 != 0 { Err(NicError::Mac(mac)) } else { Ok(()) }
}

/// Where a NIC keeps the addresses that it takes packets to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Addresses {
    pub(crate) low: &'static Register,
    pub(crate) high: &'static Register,
    /// The bit of `high` that says that the address is one.
    pub(crate) valid: Field,
    /// Bits of `high` that give its packets to pool 0, which is all without virtualisation.
    pub(crate) pool: u32,
    /// Registers that do so by bit 0, where there are two for each address.
    pub(crate) pools: Option<&'static Register>,
}

impl Addresses {
    /// Sets the NIC's own address, or reads what the EEPROM has given it.
    pub(crate) fn own<R: Registers>(
        &self,
        bar: &Bar<R>,
        wanted: Option<[u8; 6]>,
    ) -> Result<[u8; 6], NicError> {
        let mac = wanted.unwrap_or_else(|| {
            let ([a, b, c, d], [e, f, ..]) =
                (bar.get_at(self.low, 0).to_le_bytes(), bar.get_at(self.high, 0).to_le_bytes());
            [a, b, c, d, e, f]
        });
        check_unicast(mac)?;
        self.write(bar, 0, mac);
        Ok(mac)
    }

    /// Takes packets to one more address.
    pub(crate) fn add<R: Registers>(&self, bar: &Bar<R>, mac: [u8; 6]) -> Result<(), NicError> {
        check_unicast(mac)?;
        let all = self.high.count();
        let free = (1..all).find(|index| !self.valid.is_set(bar.get_at(self.high, *index)));
        let full = || NicError::Setting(format!("all {all} addresses of the NIC are taken"));
        self.write(bar, free.ok_or_else(full)?, mac);
        Ok(())
    }

    fn write<R: Registers>(&self, bar: &Bar<R>, index: u32, [a, b, c, d, e, f]: [u8; 6]) {
        bar.put_at(self.low, index, u32::from_le_bytes([a, b, c, d]));
        bar.put_at(self.high, index, u32::from_le_bytes([e, f, 0, 0]) | self.pool | self.valid.mask);
        if let Some(pools) = self.pools {
            bar.put_at(pools, 2 * index, 1);
        }
    }
}

/// Where a NIC is told how to spread packets.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RssRegisters {
    pub(crate) key: &'static Register,
    pub(crate) table: &'static Register,
    pub(crate) control: &'static Register,
    /// The bits of `control` that switch RSS on, and those of each kind of packet.
    pub(crate) on: u32,
    pub(crate) fields: [Field; 6],
}

impl RssRegisters {
    /// Spreads packets over queues: IPv4 and IPv6, with the ports of TCP and UDP. With one queue there is still a hash.
    pub(crate) fn spread<R: Registers>(&self, bar: &Bar<R>, rss: &Rss, queues: u16) {
        for (index, word) in (0..).zip(rss.key_words()) {
            bar.put_at(self.key, index, word);
        }
        for (index, word) in (0..).zip(rss.table_words(queues)) {
            bar.put_at(self.table, index, word);
        }
        bar.put(self.control, self.fields.iter().fold(self.on, |all, field| all | field.mask));
    }
}
