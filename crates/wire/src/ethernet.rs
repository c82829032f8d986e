//! The Ethernet header and the VLAN tag (IEEE 802.3, 802.1Q).

use zerocopy::byteorder::network_endian::U16;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::Mac;

/// The fourteen bytes in front of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct EthernetHeader {
    /// Whom it is for.
    pub destination: Mac,
    /// Who sent it.
    pub source: Mac,
    /// What follows; see [`crate::EtherType`].
    pub kind: U16,
}

/// Bytes of an Ethernet header.
pub const ETHERNET_HEADER: usize = size_of::<EthernetHeader>();

/// The four bytes of a VLAN tag, as they stand after the addresses and the tag's own type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct VlanTag {
    /// Priority (3 bits), drop eligible (1), VLAN number (12).
    pub control: U16,
    /// What follows.
    pub kind: U16,
}

impl VlanTag {
    /// The VLAN's number, 0 to 4095.
    pub fn number(&self) -> u16 {
        self.control.get() & 0x0fff
    }
}
