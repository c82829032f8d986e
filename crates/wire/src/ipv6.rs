//! The IPv6 header and its extension headers (RFC 8200).

use std::net::Ipv6Addr;

use zerocopy::byteorder::network_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::ipv4::TIME_TO_LIVE;

/// The forty bytes that every IPv6 packet begins with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Ipv6Header {
    version_class_label: U32,
    /// Bytes after this header, extension headers included.
    pub payload_length: U16,
    /// What follows; see [`crate::Protocol`].
    pub next_header: u8,
    /// How many more routers may pass it on.
    pub hop_limit: u8,
    source: [u8; 16],
    destination: [u8; 16],
}

/// Bytes of an IPv6 header.
pub const IPV6_HEADER: usize = size_of::<Ipv6Header>();

/// Bytes that every link takes whole (RFC 8200, 5).
pub const IPV6_MTU: u16 = 1280;

/// The fragment extension header (RFC 8200, 4.5).
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct FragmentHeader {
    /// What follows in the whole packet.
    pub next_header: u8,
    reserved: u8,
    /// Offset in bytes (a multiple of eight), and the more-fragments bit as the lowest one.
    pub offset_more: U16,
    /// Which packet it belongs to.
    pub identification: U32,
}

/// Bytes of a fragment header.
pub const FRAGMENT_HEADER: usize = size_of::<FragmentHeader>();

impl FragmentHeader {
    /// A header for the piece at `offset` bytes.
    pub fn new(next_header: u8, offset: u16, more: bool, identification: u32) -> Self {
        let offset_more = (offset & !7) | u16::from(more);
        Self {
            next_header,
            reserved: 0,
            offset_more: offset_more.into(),
            identification: identification.into(),
        }
    }

    /// Where in the packet this piece lies, in bytes.
    pub fn offset(&self) -> usize {
        usize::from(self.offset_more.get() & !7)
    }

    /// Whether more pieces follow.
    pub fn more(&self) -> bool {
        self.offset_more.get() & 1 != 0
    }
}

impl Ipv6Header {
    /// The header at the front of `bytes`, of a packet that has `len` bytes in all; `None` when it is cut short, is
    /// another version, or says it is longer than it is.
    #[inline]
    pub fn parse(bytes: &[u8], len: usize) -> Option<&Self> {
        let (header, _) = Self::ref_from_prefix(bytes).ok()?;
        let whole = IPV6_HEADER + usize::from(header.payload_length.get());
        (header.version_class_label.get() >> 28 == 6 && whole <= len).then_some(header)
    }

    /// A header for `payload` bytes.
    #[inline]
    pub fn new(source: Ipv6Addr, destination: Ipv6Addr, next_header: u8, payload: u16) -> Self {
        Self {
            version_class_label: (6 << 28).into(),
            payload_length: payload.into(),
            next_header,
            hop_limit: TIME_TO_LIVE,
            source: source.octets(),
            destination: destination.octets(),
        }
    }

    /// Differentiated services (6 bits) and explicit congestion notification (2).
    #[inline]
    pub fn traffic_class(&self) -> u8 {
        (self.version_class_label.get() >> 20 & 0xff) as u8
    }

    /// Puts in the traffic class.
    #[inline]
    pub fn set_traffic_class(&mut self, class: u8) {
        let rest = self.version_class_label.get() & !(0xff << 20);
        self.version_class_label = (rest | u32::from(class) << 20).into();
    }

    /// Who sent it.
    #[inline]
    pub fn source(&self) -> Ipv6Addr {
        self.source.into()
    }

    /// Whom it is for.
    #[inline]
    pub fn destination(&self) -> Ipv6Addr {
        self.destination.into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_reads_back() {
        let (a, b) = ("fe80::1".parse().unwrap(), "fe80::2".parse().unwrap());
        let mut header = Ipv6Header::new(a, b, 58, 3);
        header.set_traffic_class(0xb9);
        let bytes = [header.as_bytes(), b"abc", b"pad"].concat();
        let read = Ipv6Header::parse(&bytes, bytes.len()).unwrap();
        assert_eq!((read.source(), read.destination(), read.traffic_class()), (a, b, 0xb9));
        assert_eq!(Ipv6Header::parse(&bytes, 42), None);
        assert_eq!(Ipv6Header::parse(&bytes[..39], 46), None);
        let mut four = bytes;
        four[0] = 0x45;
        assert_eq!(Ipv6Header::parse(&four, 46), None);
    }

    #[test]
    fn a_piece_says_where_it_lies() {
        let piece = FragmentHeader::new(17, 1448, true, 7);
        assert_eq!((piece.offset(), piece.more(), piece.as_bytes().len()), (1448, true, 8));
    }
}
