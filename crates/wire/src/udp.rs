//! The UDP header (RFC 768).

use zerocopy::byteorder::network_endian::U16;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The eight bytes in front of a datagram's payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct UdpHeader {
    /// The sender's port.
    pub source_port: U16,
    /// The receiver's port.
    pub destination_port: U16,
    /// Bytes of header and payload.
    pub length: U16,
    /// Checksum of pseudo-header, header and payload; 0 when there is none (IPv4 only).
    pub checksum: U16,
}

/// Bytes of a UDP header.
pub const UDP_HEADER: usize = size_of::<UdpHeader>();

impl UdpHeader {
    /// The header at the front of `bytes`, of a datagram that has `len` bytes in all; `None` when its length is
    /// less than the header's or more than there is.
    #[inline]
    pub fn parse(bytes: &[u8], len: usize) -> Option<&Self> {
        let (header, _) = Self::ref_from_prefix(bytes).ok()?;
        let length = usize::from(header.length.get());
        (length >= UDP_HEADER && length <= len).then_some(header)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_length_must_lie_between_header_and_packet() {
        let header = |length: u16| UdpHeader {
            source_port: 1.into(),
            destination_port: 2.into(),
            length: length.into(),
            checksum: 0.into(),
        };
        for (length, right) in [(7, false), (8, true), (12, true), (13, false)] {
            let bytes = [header(length).as_bytes(), b"four"].concat();
            assert_eq!(UdpHeader::parse(&bytes, 12).is_some(), right, "{length}");
        }
    }
}
