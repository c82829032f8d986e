//! The IPv4 header (RFC 791).

use std::net::Ipv4Addr;

use zerocopy::byteorder::network_endian::U16;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::checksum::Sum;

/// The twenty bytes that every IPv4 packet begins with; options may follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Ipv4Header {
    version_length: u8,
    /// Differentiated services (6 bits) and explicit congestion notification (2).
    pub traffic_class: u8,
    /// Bytes of header, options and payload.
    pub total_length: U16,
    /// Which datagram a fragment belongs to.
    pub identification: U16,
    /// Don't-fragment and more-fragments bits, and the offset in units of eight bytes.
    pub fragment: U16,
    /// How many more routers may pass it on.
    pub time_to_live: u8,
    /// What follows; see [`crate::Protocol`].
    pub protocol: u8,
    /// The Internet checksum of header and options.
    pub checksum: U16,
    source: [u8; 4],
    destination: [u8; 4],
}

/// Bytes of an IPv4 header without options.
pub const IPV4_HEADER: usize = size_of::<Ipv4Header>();

/// Bytes that every link takes whole (RFC 791, 3.2).
pub const IPV4_MTU: u16 = 68;

/// How many hops a packet may make where nothing else is said, of IPv6, too.
pub const TIME_TO_LIVE: u8 = 64;

/// Don't fragment, in [`Ipv4Header::fragment`].
pub const DONT_FRAGMENT: u16 = 0x4000;

/// More fragments follow, in [`Ipv4Header::fragment`].
pub const MORE_FRAGMENTS: u16 = 0x2000;

/// Why bytes are no IPv4 packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ipv4Error {
    /// Cut short, another version, or lengths that contradict each other.
    Malformed,
    /// The header's checksum is wrong.
    Checksum,
}

impl Ipv4Header {
    /// The header at the front of `bytes`, of a packet that has `len` bytes in all.
    ///
    /// # Errors
    /// [`Ipv4Error`] when the header does not lie in `bytes`, or is not right.
    #[inline]
    pub fn parse(bytes: &[u8], len: usize) -> Result<&Self, Ipv4Error> {
        let (header, _) = Self::ref_from_prefix(bytes).map_err(|_| Ipv4Error::Malformed)?;
        let header_length = header.header_length();
        let total = usize::from(header.total_length.get());
        let right = header.version_length >> 4 == 4 && header_length >= IPV4_HEADER && header_length <= total;
        if !right || total > len || header_length > bytes.len() {
            return Err(Ipv4Error::Malformed);
        }
        let sealed = match header.has_no_options() {
            true => header.is_sealed(),
            false => Sum::new().bytes(&bytes[..header_length]).checksum() == 0,
        };
        if sealed { Ok(header) } else { Err(Ipv4Error::Checksum) }
    }

    /// A header without options, checksum included, for `payload` bytes.
    #[inline]
    pub fn new(source: Ipv4Addr, destination: Ipv4Addr, protocol: u8, payload: u16) -> Self {
        let mut header = Self {
            version_length: 0x45,
            traffic_class: 0,
            total_length: (payload + 20).into(),
            identification: 0.into(),
            fragment: DONT_FRAGMENT.into(),
            time_to_live: TIME_TO_LIVE,
            protocol,
            checksum: 0.into(),
            source: source.octets(),
            destination: destination.octets(),
        };
        header.seal();
        header
    }

    /// Puts in the checksum of a header without options.
    #[inline]
    pub fn seal(&mut self) {
        self.checksum = 0.into();
        let [front, back, destination] = self.words();
        self.checksum = Sum::new().quad(front).quad(back).quad(destination).checksum().into();
    }

    /// Its words: two of 64 bits and one of 32. They are made of the fields, for what was just written in pieces would be slow to be
    /// read.
    #[inline(always)]
    fn words(&self) -> [u64; 3] {
        let what = u16::from_be_bytes([self.version_length, self.traffic_class]);
        let how = u16::from_be_bytes([self.time_to_live, self.protocol]);
        let four = |a: u16, b: u16, c: u32| u64::from(a) << 48 | u64::from(b) << 32 | u64::from(c);
        let datagram = u32::from(self.identification.get()) << 16 | u32::from(self.fragment.get());
        [
            four(what, self.total_length.get(), datagram),
            four(how, self.checksum.get(), u32::from_be_bytes(self.source)),
            u32::from_be_bytes(self.destination).into(),
        ]
    }

    /// Writes it in whole words.
    #[inline]
    pub fn put(&self, to: &mut [u8; IPV4_HEADER]) {
        let [front, back, destination] = self.words();
        to[..8].copy_from_slice(&front.to_be_bytes());
        to[8..16].copy_from_slice(&back.to_be_bytes());
        #[expect(clippy::cast_possible_truncation, reason = "a word of 32 bits")]
        to[16..].copy_from_slice(&(destination as u32).to_be_bytes());
    }

    /// Whether the checksum of a header without options is right.
    #[inline]
    pub fn is_sealed(&self) -> bool {
        // Five words of 32 bits: whatever the byte order, the sum of right ones folds to all ones (RFC 1071, 2). Folding keeps
        // the remainder of a division by that, and no sum but nothing folds to nothing.
        let (words, _) = self.as_bytes().as_chunks::<4>();
        let sum: u64 = words.iter().map(|word| u64::from(u32::from_ne_bytes(*word))).sum();
        // Multiplied by the inverse of 0xffff modulo 2^64, its multiples become their quotients, and all else becomes more than
        // any quotient: one comparison, where the compiler divides.
        const MOST: u64 = u64::MAX / 0xffff;
        sum.wrapping_mul(MOST.wrapping_neg()).wrapping_sub(1) < MOST
    }

    /// Takes one off the time to live, of which there must be some, and keeps the checksum right.
    #[inline]
    pub fn take_hop(&mut self) {
        // Time to live, protocol and checksum, read and written in one piece.
        let bytes = &mut self.as_mut_bytes()[8..12];
        let word = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
        // RFC 1624, 3, for a first byte that is one less: the complement of the sum is one more in its first byte, which is the
        // lower one here, where the carry goes on to the next as it should. All ones are zero.
        let carry = u32::from(word >= 0xfffe_0000) << 16;
        let word = word.wrapping_add(0xffff).wrapping_add(carry);
        bytes.copy_from_slice(&word.to_le_bytes());
    }

    /// Whether it is IPv4 with the twenty bytes alone.
    #[inline]
    pub fn has_no_options(&self) -> bool {
        self.version_length == 0x45
    }

    /// Bytes of header and options.
    #[inline]
    pub fn header_length(&self) -> usize {
        usize::from(self.version_length & 0xf) * 4
    }

    /// Whether it is a piece of a datagram, and not all of it.
    #[inline]
    pub fn is_fragment(&self) -> bool {
        self.fragment.get() & (MORE_FRAGMENTS | 0x1fff) != 0
    }

    /// Where in the datagram's payload this piece lies, in bytes.
    #[inline]
    pub fn fragment_offset(&self) -> usize {
        usize::from(self.fragment.get() & 0x1fff) * 8
    }

    /// Who sent it and whom it is for, as they stand in the header.
    #[inline]
    pub fn addresses(&self) -> [u8; 8] {
        let ([a, b, c, d], [e, f, g, h]) = (self.source, self.destination);
        [a, b, c, d, e, f, g, h]
    }

    /// Who sent it.
    #[inline]
    pub fn source(&self) -> Ipv4Addr {
        self.source.into()
    }

    /// Whom it is for.
    #[inline]
    pub fn destination(&self) -> Ipv4Addr {
        self.destination.into()
    }

    /// Changes the length of header and options, for when options are put in or taken out.
    #[inline]
    pub fn set_header_length(&mut self, bytes: u8) {
        self.version_length = 0x40 | (bytes / 4);
    }
}

#[cfg(test)]
mod tests {
    use zerocopy::FromZeros;

    use super::*;

    fn header() -> Ipv4Header {
        Ipv4Header::new(Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(10, 0, 0, 2), 6, 4)
    }

    #[test]
    fn a_sealed_header_is_known_by_its_sum() {
        for number in 0..=u16::MAX {
            let mut header = header();
            header.identification = number.into();
            header.seal();
            assert!(header.is_sealed(), "{number}");
            let mut next = header;
            next.take_hop();
            let taken = next.checksum;
            next.seal();
            assert_eq!((next.time_to_live, taken), (63, next.checksum), "{number}");
            header.time_to_live ^= 1;
            assert!(!header.is_sealed(), "{number}");
        }
        assert!(header().has_no_options());
        assert!(!Ipv4Header::new_zeroed().is_sealed());
    }

    #[test]
    fn a_header_reads_back() {
        let bytes = [header().as_bytes(), b"data", b"padding"].concat();
        let read = Ipv4Header::parse(&bytes, bytes.len()).unwrap();
        assert_eq!((read.header_length(), read.total_length.get(), read.is_fragment()), (20, 24, false));
    }

    #[test]
    fn lengths_that_contradict_each_other_are_refused() {
        let good = [header().as_bytes(), b"data"].concat();
        assert_eq!(Ipv4Header::parse(&good, 23), Err(Ipv4Error::Malformed));
        assert_eq!(Ipv4Header::parse(&good[..19], 24), Err(Ipv4Error::Malformed));
        for (at, value) in [(0, 0x65), (0, 0x44), (0, 0x4f), (3, 19)] {
            let mut bytes = good.clone();
            bytes[at] = value;
            assert_eq!(Ipv4Header::parse(&bytes, 24), Err(Ipv4Error::Malformed), "byte {at}");
        }
        let mut bytes = good;
        bytes[8] ^= 1;
        assert_eq!(Ipv4Header::parse(&bytes, 24), Err(Ipv4Error::Checksum));
    }

    #[test]
    fn a_piece_says_where_it_lies() {
        let mut piece = header();
        piece.fragment = (MORE_FRAGMENTS | 185).into();
        assert!(piece.is_fragment());
        assert_eq!(piece.fragment_offset(), 1480);
    }
}
