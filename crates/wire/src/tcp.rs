//! The TCP header (RFC 9293, 3.1).

use crate::checksum::Sum;
use zerocopy::byteorder::network_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The twenty bytes that every segment begins with; options may follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct TcpHeader {
    /// The sender's port.
    pub source_port: U16,
    /// The receiver's port.
    pub destination_port: U16,
    /// Number of the first byte of payload, or of the SYN.
    pub sequence: U32,
    /// Number of the byte that is expected next, if [`TcpFlags::ACK`] is set.
    pub acknowledgment: U32,
    offset: u8,
    /// The control bits.
    pub flags: TcpFlags,
    /// How many bytes the sender takes, not yet scaled.
    pub window: U16,
    /// Checksum of pseudo-header, header and payload.
    pub checksum: U16,
    /// Where urgent data ends, from the sequence number, if [`TcpFlags::URG`] is set.
    pub urgent: U16,
}

/// Bytes of a TCP header without options.
pub const TCP_HEADER: usize = size_of::<TcpHeader>();

/// Bytes of options at most.
pub const TCP_OPTIONS: usize = 40;

/// Where in a TCP header the checksum lies, in bytes.
pub const TCP_CHECKSUM_OFFSET: u16 = 16;
/// Where the urgent pointer is.
pub const TCP_URGENT_OFFSET: u16 = 18;

/// The control bits of a segment.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(transparent)]
pub struct TcpFlags(pub u8);

impl TcpFlags {
    /// No more data from the sender.
    pub const FIN: Self = Self(0x01);
    /// The sequence numbers begin here.
    pub const SYN: Self = Self(0x02);
    /// The connection is reset.
    pub const RST: Self = Self(0x04);
    /// The receiver should be told of the data now.
    pub const PSH: Self = Self(0x08);
    /// The acknowledgment number counts.
    pub const ACK: Self = Self(0x10);
    /// The urgent pointer counts.
    pub const URG: Self = Self(0x20);
    /// Congestion was seen by the receiver (RFC 3168).
    pub const ECE: Self = Self(0x40);
    /// The sender has reduced its congestion window (RFC 3168).
    pub const CWR: Self = Self(0x80);

    /// Whether all bits of `other` are set.
    #[inline]
    pub const fn has(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// The bits of both.
    #[inline]
    #[must_use]
    pub const fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// The bits that are not `other`'s.
    #[inline]
    #[must_use]
    pub const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }
}

impl TcpHeader {
    /// The header at the front of `bytes`; `None` when it or its options are cut short.
    #[inline]
    pub fn parse(bytes: &[u8]) -> Option<&Self> {
        let (header, _) = Self::ref_from_prefix(bytes).ok()?;
        let length = header.header_length();
        (length >= TCP_HEADER && length <= bytes.len()).then_some(header)
    }

    /// A header for `options` bytes of options (a multiple of four, at most [`TCP_OPTIONS`]); the checksum is zero.
    #[inline]
    pub fn new(
        ports: (u16, u16),
        sequence: u32,
        acknowledgment: u32,
        flags: TcpFlags,
        window: u16,
        options: u8,
    ) -> Self {
        Self {
            source_port: ports.0.into(),
            destination_port: ports.1.into(),
            sequence: sequence.into(),
            acknowledgment: acknowledgment.into(),
            offset: ((20 + options) / 4) << 4,
            flags,
            window: window.into(),
            checksum: 0.into(),
            urgent: 0.into(),
        }
    }

    /// Writes it with a checksum and an urgent pointer of zero, in whole words, and adds it to a sum: what was just written in
    /// pieces would be slow to be read again.
    #[inline(always)]
    pub fn put(&self, to: &mut [u8; TCP_HEADER], sum: Sum) -> Sum {
        let ports = u64::from(self.source_port.get()) << 16 | u64::from(self.destination_port.get());
        let front = ports << 32 | u64::from(self.sequence.get());
        let bits = u64::from(self.offset) << 24 | u64::from(self.flags.0) << 16;
        let back = u64::from(self.acknowledgment.get()) << 32 | bits | u64::from(self.window.get());
        to[..8].copy_from_slice(&front.to_be_bytes());
        to[8..16].copy_from_slice(&back.to_be_bytes());
        to[16..].fill(0);
        sum.quad(front).quad(back)
    }

    /// Bytes of header and options.
    #[inline]
    pub fn header_length(&self) -> usize {
        usize::from(self.offset >> 4) * 4
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_options_must_lie_in_the_segment() {
        let header = TcpHeader::new((1, 2), 3, 4, TcpFlags::SYN, 5, 4);
        let bytes = [header.as_bytes(), &[1, 1, 1, 1]].concat();
        assert_eq!(TcpHeader::parse(&bytes).unwrap().header_length(), 24);
        assert!(TcpHeader::parse(&bytes[..23]).is_none());
        let mut short = bytes;
        short[12] = 4 << 4;
        assert!(TcpHeader::parse(&short).is_none());
    }

    #[test]
    fn it_is_written_and_summed_as_it_is() {
        let header = TcpHeader::new((0x1234, 80), 0xfedc_ba98, 0x8000_0001, TcpFlags::SYN, 0xffff, 12);
        let mut bytes = [7; TCP_HEADER];
        let sum = header.put(&mut bytes, Sum::new());
        assert_eq!(bytes, header.as_bytes());
        assert_eq!(sum.checksum(), Sum::new().bytes(&bytes).checksum());
    }

    #[test]
    fn flags_combine() {
        let both = TcpFlags::SYN.with(TcpFlags::ACK);
        assert!(both.has(TcpFlags::SYN) && both.has(TcpFlags::ACK) && !both.has(TcpFlags::FIN));
        assert_eq!(both.without(TcpFlags::SYN), TcpFlags::ACK);
    }
}
