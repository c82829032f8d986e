//! What a packet carries besides its bytes: the work a NIC has done, or is asked to do.

use std::num::NonZeroU16;

/// What is known, or wanted, of the checksum above the network layer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Checksum {
    /// Nobody has looked. On transmit: the bytes go as they are.
    #[default]
    Unknown,
    /// The receiving side verified it.
    Valid,
    /// The receiving side found it wrong.
    Bad,
    /// Only the pseudo-header's sum is there: the ones' complement sum from `start` to the packet's end goes into
    /// the two bytes at `start + offset` (Linux's `CHECKSUM_PARTIAL`, virtio's `NEEDS_CSUM`).
    Partial {
        /// First byte summed, from the packet's first byte.
        start: u16,
        /// Where the checksum goes, from `start`.
        offset: u16,
    },
}

/// What a super-segment is cut into.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SegmentationKind {
    /// TCP over IPv4.
    Tcp4,
    /// TCP over IPv6.
    Tcp6,
    /// UDP over either: each piece is a datagram of its own.
    Udp,
}

/// A packet that stands for several: transport payload to be cut (TSO, USO), or that was put together (GRO).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segmentation {
    /// What is cut.
    pub kind: SegmentationKind,
    /// Bytes of payload in each piece but the last.
    pub size: NonZeroU16,
}

/// Everything a packet carries besides its bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Offload {
    /// When the packet was received, in nanoseconds of `CLOCK_REALTIME`, if the port knows.
    pub timestamp: Option<std::num::NonZeroU64>,
    /// The receive hash (RSS), if the port has one.
    pub hash: Option<u32>,
    /// The checksum above the network layer.
    pub checksum: Checksum,
    /// Set on a super-segment.
    pub segmentation: Option<Segmentation>,
    /// VLAN tag control information taken out of the packet, or to be put in.
    pub vlan: Option<u16>,
}
