//! Descriptors of the 82599: sixteen bytes, little endian. The 82576's advanced ones are the same.
//!
//! Layouts as in Intel's shared code (`ixgbe_type.h` of ixy, commit 0e00605). A descriptor is four 32-bit words, `[u32; 4]`
//! in host byte order; a [`Field`] belongs to the word its module names.

use crate::reg::Field;

/// Bytes in a descriptor.
pub const SIZE: usize = 16;

/// From bytes in memory to words.
pub fn words(bytes: [u8; SIZE]) -> [u32; 4] {
    let (words, _) = bytes.as_chunks::<4>();
    std::array::from_fn(|i| u32::from_le_bytes(words[i]))
}

/// From words to bytes in memory.
pub fn bytes(words: [u32; 4]) -> [u8; SIZE] {
    let mut bytes = [0; SIZE];
    for (to, word) in bytes.as_chunks_mut::<4>().0.iter_mut().zip(words) {
        *to = word.to_le_bytes();
    }
    bytes
}

/// Value of SRRCTL.DESCTYPE: legacy descriptors.
pub const DESCTYPE_LEGACY: u32 = 0;
/// Value of SRRCTL.DESCTYPE: advanced descriptors, one buffer.
pub const DESCTYPE_ADVANCED: u32 = 1;

/// Receive descriptor as written back, advanced format.
///
/// As the driver gives it to the NIC, words 0 and 1 are the packet buffer's address, words 2 and 3 the header buffer's; bit 0
/// of word 2 must be zero then, because it becomes [`rx::DD`].
pub mod rx {
    use super::Field;

    /// Word 0: which hash it is; values in [`super::rss_type`].
    pub const RSS_TYPE: Field = Field::new(&[3, 0]);
    /// Word 0: packet type; bits in [`super::packet_type`].
    pub const PACKET_TYPE: Field = Field::new(&[16, 4]);
    /// Word 0: descriptors coalesced.
    pub const RSC_COUNT: Field = Field::new(&[20, 17]);
    /// Word 0: bytes of headers.
    pub const HEADER_LENGTH: Field = Field::new(&[30, 21]);
    /// Word 0: the header was split off.
    pub const SPH: Field = Field::new(&[31]);
    /// Word 1, with a flow director match instead of an RSS hash: the filter's hash.
    pub const FILTER_HASH: Field = Field::new(&[15, 0]);
    /// Word 1, with a flow director match: the filter's soft index.
    pub const FILTER_INDEX: Field = Field::new(&[31, 16]);
    /// Word 2: the NIC is done with it.
    pub const DD: Field = Field::new(&[0]);
    /// Word 2: last descriptor of the packet.
    pub const EOP: Field = Field::new(&[1]);
    /// Word 2: a flow director filter matched.
    pub const FLM: Field = Field::new(&[2]);
    /// Word 2: it had a VLAN tag.
    pub const VP: Field = Field::new(&[3]);
    /// Word 2: the UDP checksum was looked at.
    pub const UDPCS: Field = Field::new(&[4]);
    /// Word 2: the TCP or UDP checksum was looked at.
    pub const L4CS: Field = Field::new(&[5]);
    /// Word 2: the IPv4 header checksum was looked at.
    pub const IPCS: Field = Field::new(&[6]);
    /// Word 2: it passed only an inexact filter.
    pub const PIF: Field = Field::new(&[7]);
    /// Word 2: it has an outer VLAN tag.
    pub const VEXT: Field = Field::new(&[9]);
    /// Word 2: it has a UDP checksum.
    pub const UDPV: Field = Field::new(&[10]);
    /// Word 2: loopback from another pool.
    pub const LB: Field = Field::new(&[18]);
    /// Word 2: flow director, list too long.
    pub const FDIR_LENGTH: Field = Field::new(&[20]);
    /// Word 2: flow director, filter says drop.
    pub const FDIR_DROP: Field = Field::new(&[21]);
    /// Word 2: flow director, hash collision.
    pub const FDIR_COLLISION: Field = Field::new(&[22]);
    /// Word 2: header buffer overflow.
    pub const HBO: Field = Field::new(&[23]);
    /// Word 2: link error: check sequence, length, symbol.
    pub const RXE: Field = Field::new(&[29]);
    /// Word 2: the TCP or UDP checksum is wrong.
    pub const L4E: Field = Field::new(&[30]);
    /// Word 2: the IPv4 header checksum is wrong.
    pub const IPE: Field = Field::new(&[31]);
    /// Word 3: bytes in this descriptor's buffer.
    pub const LENGTH: Field = Field::new(&[15, 0]);
    /// Word 3: the tag that was taken off, as on the wire (priority, DEI, id).
    pub const VLAN: Field = Field::new(&[31, 16]);
}

/// Receive descriptor as written back, legacy format: words 0 and 1 stay the buffer's address.
pub mod rx_legacy {
    use super::Field;

    /// Word 2: bytes in the buffer.
    pub const LENGTH: Field = Field::new(&[15, 0]);
    /// Word 2: checksum of the packet.
    pub const CHECKSUM: Field = Field::new(&[31, 16]);
    /// Word 3: the NIC is done with it.
    pub const DD: Field = Field::new(&[0]);
    /// Word 3: last descriptor of the packet.
    pub const EOP: Field = Field::new(&[1]);
    /// Word 3: it had a VLAN tag.
    pub const VP: Field = Field::new(&[3]);
    /// Word 3: the TCP or UDP checksum was looked at.
    pub const L4CS: Field = Field::new(&[5]);
    /// Word 3: the IPv4 header checksum was looked at.
    pub const IPCS: Field = Field::new(&[6]);
    /// Word 3: link error.
    pub const RXE: Field = Field::new(&[8]);
    /// Word 3: the TCP or UDP checksum is wrong.
    pub const L4E: Field = Field::new(&[14]);
    /// Word 3: the IPv4 header checksum is wrong.
    pub const IPE: Field = Field::new(&[15]);
    /// Word 3: the tag that was taken off.
    pub const VLAN: Field = Field::new(&[31, 16]);
}

/// Values of [`rx::RSS_TYPE`].
pub mod rss_type {
    /// No hash.
    pub const NONE: u32 = 0;
    /// IPv4 addresses and TCP ports.
    pub const IPV4_TCP: u32 = 1;
    /// IPv4 addresses.
    pub const IPV4: u32 = 2;
    /// IPv6 addresses and TCP ports.
    pub const IPV6_TCP: u32 = 3;
    /// IPv6 addresses.
    pub const IPV6: u32 = 5;
    /// IPv4 addresses and UDP ports.
    pub const IPV4_UDP: u32 = 7;
    /// IPv6 addresses and UDP ports.
    pub const IPV6_UDP: u32 = 8;
}

/// Bits of [`rx::PACKET_TYPE`], counted from the field's lowest.
pub mod packet_type {
    /// IPv4.
    pub const IPV4: u32 = 1 << 0;
    /// IPv4 with options.
    pub const IPV4_OPTIONS: u32 = 1 << 1;
    /// IPv6.
    pub const IPV6: u32 = 1 << 2;
    /// IPv6 with extension headers.
    pub const IPV6_EXTENSIONS: u32 = 1 << 3;
    /// TCP.
    pub const TCP: u32 = 1 << 4;
    /// UDP.
    pub const UDP: u32 = 1 << 5;
    /// SCTP.
    pub const SCTP: u32 = 1 << 6;
    /// An EtherType filter matched; bits 2:0 then are its number, and the bits above are zero.
    pub const ETQF: u32 = 1 << 11;
}

/// Transmit descriptor. Words 0 and 1 are the buffer's address.
pub mod tx {
    use super::Field;

    /// Word 2: bytes in the buffer.
    pub const LENGTH: Field = Field::new(&[15, 0]);
    /// Word 2: time stamp.
    pub const TSTAMP: Field = Field::new(&[19]);
    /// Word 2: type of an advanced descriptor: [`TYPE_CONTEXT`] or [`TYPE_DATA`].
    pub const DTYP: Field = Field::new(&[23, 20]);
    /// Word 2: last descriptor of the packet.
    pub const EOP: Field = Field::new(&[24]);
    /// Word 2: put the check sequence behind the frame.
    pub const IFCS: Field = Field::new(&[25]);
    /// Word 2: say when it is done.
    pub const RS: Field = Field::new(&[27]);
    /// Word 2: an advanced descriptor.
    pub const DEXT: Field = Field::new(&[29]);
    /// Word 2: insert a VLAN tag.
    pub const VLE: Field = Field::new(&[30]);
    /// Word 2: cut into segments.
    pub const TSE: Field = Field::new(&[31]);
    /// Word 3: the NIC is done with it.
    pub const DD: Field = Field::new(&[0]);
    /// Word 3: which context it uses.
    pub const IDX: Field = Field::new(&[6, 4]);
    /// Word 3: check the context's lengths.
    pub const CC: Field = Field::new(&[7]);
    /// Word 3: insert the IPv4 header checksum.
    pub const IXSM: Field = Field::new(&[8]);
    /// Word 3: insert the TCP, UDP or SCTP checksum.
    pub const TXSM: Field = Field::new(&[9]);
    /// Word 3: bytes of the packet; with [`TSE`] only what follows the TCP header.
    pub const PAYLEN: Field = Field::new(&[31, 14]);
    /// Value of [`DTYP`]: a context.
    pub const TYPE_CONTEXT: u32 = 2;
    /// Value of [`DTYP`]: data.
    pub const TYPE_DATA: u32 = 3;
    /// Legacy descriptors, word 3: the tag to insert.
    pub const LEGACY_VLAN: Field = Field::new(&[31, 16]);
    /// Legacy descriptors, word 2: offset to insert a checksum at.
    pub const LEGACY_CSO: Field = Field::new(&[23, 16]);
    /// Legacy descriptors, word 2: insert a checksum.
    pub const LEGACY_IC: Field = Field::new(&[26]);
    /// Legacy descriptors, word 3: offset to start the checksum from.
    pub const LEGACY_CSS: Field = Field::new(&[15, 8]);
}

/// Transmit context descriptor: what data descriptors after it need to know of headers.
pub mod context {
    use super::Field;

    /// Word 0: bytes of IP headers.
    pub const IPLEN: Field = Field::new(&[8, 0]);
    /// Word 0: bytes of the Ethernet header.
    pub const MACLEN: Field = Field::new(&[15, 9]);
    /// Word 0: the tag to insert.
    pub const VLAN: Field = Field::new(&[31, 16]);
    /// Word 2: IPv4, else IPv6.
    pub const IPV4: Field = Field::new(&[10]);
    /// Word 2: [`L4T_UDP`], [`L4T_TCP`] or [`L4T_SCTP`].
    pub const L4T: Field = Field::new(&[12, 11]);
    /// Word 3: which of the queue's contexts this becomes.
    pub const IDX: Field = Field::new(&[6, 4]);
    /// Word 3: bytes of the TCP or UDP header.
    pub const L4LEN: Field = Field::new(&[15, 8]);
    /// Word 3: bytes of payload in a segment.
    pub const MSS: Field = Field::new(&[31, 16]);
    /// Value of [`L4T`]: UDP.
    pub const L4T_UDP: u32 = 0;
    /// Value of [`L4T`]: TCP.
    pub const L4T_TCP: u32 = 1;
    /// Value of [`L4T`]: SCTP.
    pub const L4T_SCTP: u32 = 2;
}

#[cfg(test)]
mod tests {
    use super::*;

    fn disjoint(fields: &[Field]) -> bool {
        fields.iter().map(|field| field.mask.count_ones()).sum::<u32>()
            == fields.iter().fold(0, |all, field| all | field.mask).count_ones()
    }

    #[test]
    fn words_are_little_endian() {
        let memory = [0x78, 0x56, 0x34, 0x12, 0, 0, 0, 0x80, 1, 0, 0, 0, 0xff, 0, 0, 0];
        assert_eq!(words(memory), [0x1234_5678, 0x8000_0000, 1, 0xff]);
        assert_eq!(bytes(words(memory)), memory);
    }

    #[test]
    fn fields_of_a_word_do_not_overlap() {
        assert!(disjoint(&[rx::RSS_TYPE, rx::PACKET_TYPE, rx::RSC_COUNT, rx::HEADER_LENGTH, rx::SPH]));
        let status =
            [rx::DD, rx::EOP, rx::FLM, rx::VP, rx::UDPCS, rx::L4CS, rx::IPCS, rx::PIF, rx::VEXT, rx::UDPV];
        let errors =
            [rx::LB, rx::FDIR_LENGTH, rx::FDIR_DROP, rx::FDIR_COLLISION, rx::HBO, rx::RXE, rx::L4E, rx::IPE];
        assert!(disjoint(&[&status[..], &errors[..]].concat()));
        assert!(disjoint(&[rx::LENGTH, rx::VLAN]));
        assert!(disjoint(&[
            tx::LENGTH,
            tx::TSTAMP,
            tx::DTYP,
            tx::EOP,
            tx::IFCS,
            tx::RS,
            tx::DEXT,
            tx::VLE,
            tx::TSE
        ]));
        assert!(disjoint(&[tx::DD, tx::IDX, tx::CC, tx::IXSM, tx::TXSM, tx::PAYLEN]));
        assert!(disjoint(&[context::IPLEN, context::MACLEN, context::VLAN]));
        assert!(disjoint(&[context::IPV4, context::L4T, tx::DTYP, tx::DEXT]));
        assert!(disjoint(&[context::IDX, context::L4LEN, context::MSS]));
    }
}
