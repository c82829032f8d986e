//! The header that TAP interfaces and packet sockets put in front of a packet: `struct virtio_net_hdr`.
//!
//! It says which checksum is missing and whether the packet is a super-segment. Both interfaces use the "legacy" byte
//! order, which is the host's own. Layout: `linux/virtio_net.h`, whose names these are.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// `struct virtio_net_hdr`, 10 bytes: what packet sockets use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct VirtioHeader {
    /// [`NEEDS_CSUM`] and [`DATA_VALID`].
    pub flags: u8,
    /// One of `GSO_…`, with or without [`GSO_ECN`].
    pub gso_type: u8,
    /// Bytes of headers up to and with the transport's; 0 when not known.
    pub hdr_len: u16,
    /// Bytes of payload in each piece of a super-segment.
    pub gso_size: u16,
    /// First byte to be summed, from the packet's first.
    pub csum_start: u16,
    /// Where the sum goes, from `csum_start`.
    pub csum_offset: u16,
}

/// `struct virtio_net_hdr_mrg_rxbuf`, 12 bytes: what a TAP interface is told to use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct VirtioHeaderMergeable {
    /// All but the last field.
    pub header: VirtioHeader,
    /// Buffers of the packet, for devices that split it; the kernel writes 1 or nothing, and reads nothing.
    pub num_buffers: u16,
}

/// `flags`: the checksum at `csum_start + csum_offset` is to be completed.
pub const NEEDS_CSUM: u8 = 1;
/// `flags`: the checksum has been verified.
pub const DATA_VALID: u8 = 2;

/// `gso_type`: no super-segment.
pub const GSO_NONE: u8 = 0;
/// `gso_type`: TCP over IPv4.
pub const GSO_TCPV4: u8 = 1;
/// `gso_type`: TCP over IPv6.
pub const GSO_TCPV6: u8 = 4;
/// `gso_type`: UDP datagrams of equal length.
pub const GSO_UDP_L4: u8 = 5;
/// `gso_type`, beside another: TCP's CWR flag is for the first piece only.
pub const GSO_ECN: u8 = 0x80;
