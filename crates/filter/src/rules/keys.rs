//! Keys of the hashes that the kernel gets, as their bytes are.

use std::net::IpAddr;

use crate::walk::Family;

/// A key of the hash for IPv6, as its bytes are: what kind of list, how many bits, and the prefix in network byte order. Combinations of
/// classes are in it, too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct SetKey6 {
    /// 0 for sources, 1 for destinations; 2 for a combination of classes.
    pub side: u8,
    /// Bits of the prefix.
    pub bits: u8,
    /// The prefix, the rest zero.
    pub address: [u8; 16],
}

impl SetKey6 {
    /// Bytes of a key: the fields, and padding before the address.
    pub const SIZE: usize = 24;

    /// Instead of a side: the address is four classes, of four bytes each.
    const CLASSES: u8 = 2;

    /// Of a combination of classes, which are named by where they begin.
    pub(super) fn of_classes(classes: [u32; 4]) -> Self {
        let mut address = [0; 16];
        for (bytes, class) in address.chunks_mut(4).zip(classes) {
            bytes.copy_from_slice(&class.to_ne_bytes());
        }
        Self { side: Self::CLASSES, bits: 0, address }
    }

    /// As the kernel sees it.
    pub fn to_bytes(self) -> [u8; Self::SIZE] {
        let mut bytes = [0; Self::SIZE];
        bytes[0] = self.side;
        bytes[1] = self.bits;
        bytes[8..].copy_from_slice(&self.address);
        bytes
    }
}

/// A source that a limit has blocked: a key of [`MapSet::blocks`](super::MapSet::blocks).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BlockKey {
    /// The counter of the limit's rule.
    pub slot: u32,
    /// The source, cut to the bits that the limit counts by.
    pub source: IpAddr,
}

impl BlockKey {
    /// Bytes of a key.
    pub const SIZE: usize = 24;

    /// As the kernel sees it: the slot, the family's number of bits, the address and zeros.
    pub fn to_bytes(self) -> [u8; Self::SIZE] {
        let mut bytes = [0; Self::SIZE];
        bytes[..4].copy_from_slice(&self.slot.to_ne_bytes());
        match self.source {
            IpAddr::V4(source) => {
                bytes[4..8].copy_from_slice(&32_u32.to_ne_bytes());
                bytes[8..12].copy_from_slice(&source.octets());
            }
            IpAddr::V6(source) => {
                bytes[4..8].copy_from_slice(&128_u32.to_ne_bytes());
                bytes[8..].copy_from_slice(&source.octets());
            }
        }
        bytes
    }
}

/// What the machine takes packets by: a key of [`MapSet::own`](super::MapSet::own).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct OwnKey {
    /// The MAC of the interface, or of the bridge or bond that it is a port of.
    pub mac: [u8; 6],
    /// One of the machine's addresses; none for all that it passes on.
    pub address: Option<IpAddr>,
}

impl OwnKey {
    /// Bytes of a key.
    pub const SIZE: usize = 24;

    /// As the kernel sees it: the MAC, the EtherType in network byte order, the address and zeros; or zeros behind the MAC.
    pub fn to_bytes(self) -> [u8; Self::SIZE] {
        let mut bytes = [0; Self::SIZE];
        bytes[..6].copy_from_slice(&self.mac);
        match self.address {
            None => {}
            Some(IpAddr::V4(address)) => {
                bytes[6..8].copy_from_slice(&Family::V4.ether_type().to_be_bytes());
                bytes[8..12].copy_from_slice(&address.octets());
            }
            Some(IpAddr::V6(address)) => {
                bytes[6..8].copy_from_slice(&Family::V6.ether_type().to_be_bytes());
                bytes[8..].copy_from_slice(&address.octets());
            }
        }
        bytes
    }
}
