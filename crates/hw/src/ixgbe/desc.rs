//! Descriptors of the 82599: sixteen bytes, little endian. The 82576's advanced ones are the same, but for
//! [some bits](crate::igb::rx).
//!
//! Layouts as in Intel's shared code (`ixgbe_type.h` of ixy, commit 0e00605). A descriptor is four 32-bit words, `[u32; 4]`
//! in host byte order; a [`Field`] belongs to the word its module names. `tests/registers.rs` compares them with other sources;
//! where the two halves of a flow director match lie is from DPDK's `ixgbe_rxtx.c`.

use crate::reg::{Field, constants};

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

constants! { DESCTYPES: u32;
    /// Value of SRRCTL.DESCTYPE: legacy descriptors.
    DESCTYPE_LEGACY = 0;
    /// Value of SRRCTL.DESCTYPE: advanced descriptors, one buffer.
    DESCTYPE_ADVANCED = 1;
}

/// Receive descriptor as written back, advanced format.
///
/// As the driver gives it to the NIC, words 0 and 1 are the packet buffer's address, words 2 and 3 the header buffer's; bit 0
/// of word 2 must be zero then, because it becomes [`rx::DD`].
pub mod rx {
    use super::Field;
    use crate::reg::constants;

    constants! { TABLE: Field;
        /// Word 0: which hash it is; values in [`super::rss_type`].
        RSS_TYPE = Field::new(&[3, 0]);
        /// Word 0: packet type; bits in [`super::packet_type`].
        PACKET_TYPE = Field::new(&[16, 4]);
        /// Word 0: descriptors coalesced.
        RSC_COUNT = Field::new(&[20, 17]);
        /// Word 0: bytes of headers.
        HEADER_LENGTH = Field::new(&[30, 21]);
        /// Word 0: the header was split off.
        SPH = Field::new(&[31]);
        /// Word 1, with a flow director match instead of an RSS hash: the filter's soft index.
        FILTER_INDEX = Field::new(&[15, 0]);
        /// Word 1, with a flow director match: the filter's hash.
        FILTER_HASH = Field::new(&[31, 16]);
        /// Word 2: the NIC is done with it.
        DD = Field::new(&[0]);
        /// Word 2: last descriptor of the packet.
        EOP = Field::new(&[1]);
        /// Word 2: a flow director filter matched.
        FLM = Field::new(&[2]);
        /// Word 2: it had a VLAN tag.
        VP = Field::new(&[3]);
        /// Word 2: the UDP checksum was looked at.
        UDPCS = Field::new(&[4]);
        /// Word 2: the TCP or UDP checksum was looked at.
        L4CS = Field::new(&[5]);
        /// Word 2: the IPv4 header checksum was looked at.
        IPCS = Field::new(&[6]);
        /// Word 2: it passed only an inexact filter.
        PIF = Field::new(&[7]);
        /// Word 2: it has an outer VLAN tag.
        VEXT = Field::new(&[9]);
        /// Word 2: it has a UDP checksum.
        UDPV = Field::new(&[10]);
        /// Word 2: loopback from another pool.
        LB = Field::new(&[18]);
        /// Word 2: flow director, list too long.
        FDIR_LENGTH = Field::new(&[20]);
        /// Word 2: flow director, filter says drop.
        FDIR_DROP = Field::new(&[21]);
        /// Word 2: flow director, hash collision.
        FDIR_COLLISION = Field::new(&[22]);
        /// Word 2: header buffer overflow.
        HBO = Field::new(&[23]);
        /// Word 2: link error: check sequence, length, symbol.
        RXE = Field::new(&[29]);
        /// Word 2: the TCP or UDP checksum is wrong.
        L4E = Field::new(&[30]);
        /// Word 2: the IPv4 header checksum is wrong.
        IPE = Field::new(&[31]);
        /// Word 3: bytes in this descriptor's buffer.
        LENGTH = Field::new(&[15, 0]);
        /// Word 3: the tag that was taken off, as on the wire (priority, DEI, id).
        VLAN = Field::new(&[31, 16]);
    }
}

/// Receive descriptor as written back, legacy format: words 0 and 1 stay the buffer's address.
pub mod rx_legacy {
    use super::Field;
    use crate::reg::constants;

    constants! { TABLE: Field;
        /// Word 2: bytes in the buffer.
        LENGTH = Field::new(&[15, 0]);
        /// Word 2: checksum of the packet.
        CHECKSUM = Field::new(&[31, 16]);
        /// Word 3: the NIC is done with it.
        DD = Field::new(&[0]);
        /// Word 3: last descriptor of the packet.
        EOP = Field::new(&[1]);
        /// Word 3: it had a VLAN tag.
        VP = Field::new(&[3]);
        /// Word 3: the TCP or UDP checksum was looked at.
        L4CS = Field::new(&[5]);
        /// Word 3: the IPv4 header checksum was looked at.
        IPCS = Field::new(&[6]);
        /// Word 3: link error.
        RXE = Field::new(&[8]);
        /// Word 3: the TCP or UDP checksum is wrong.
        L4E = Field::new(&[14]);
        /// Word 3: the IPv4 header checksum is wrong.
        IPE = Field::new(&[15]);
        /// Word 3: the tag that was taken off.
        VLAN = Field::new(&[31, 16]);
    }
}

/// Values of [`rx::RSS_TYPE`].
pub mod rss_type {
    use crate::reg::constants;

    constants! { TABLE: u32;
        /// No hash.
        NONE = 0;
        /// IPv4 addresses and TCP ports.
        IPV4_TCP = 1;
        /// IPv4 addresses.
        IPV4 = 2;
        /// IPv6 addresses and TCP ports.
        IPV6_TCP = 3;
        /// IPv6 addresses.
        IPV6 = 5;
        /// IPv4 addresses and UDP ports.
        IPV4_UDP = 7;
        /// IPv6 addresses and UDP ports.
        IPV6_UDP = 8;
    }
}

/// Bits of [`rx::PACKET_TYPE`], counted from the field's lowest.
pub mod packet_type {
    use crate::reg::constants;

    constants! { TABLE: u32;
        /// IPv4.
        IPV4 = 1 << 0;
        /// IPv4 with options.
        IPV4_OPTIONS = 1 << 1;
        /// IPv6.
        IPV6 = 1 << 2;
        /// IPv6 with extension headers.
        IPV6_EXTENSIONS = 1 << 3;
        /// TCP.
        TCP = 1 << 4;
        /// UDP.
        UDP = 1 << 5;
        /// SCTP.
        SCTP = 1 << 6;
        /// An EtherType filter matched; bits 2:0 then are its number, and the bits above are zero.
        ETQF = 1 << 11;
    }
}

/// Transmit descriptor. Words 0 and 1 are the buffer's address.
pub mod tx {
    use super::Field;
    use crate::reg::constants;

    constants! { TABLE: Field;
        /// Word 2: bytes in the buffer.
        LENGTH = Field::new(&[15, 0]);
        /// Word 2: time stamp.
        TSTAMP = Field::new(&[19]);
        /// Word 2: type of an advanced descriptor: [`TYPE_CONTEXT`] or [`TYPE_DATA`].
        DTYP = Field::new(&[23, 20]);
        /// Word 2: last descriptor of the packet.
        EOP = Field::new(&[24]);
        /// Word 2: put the check sequence behind the frame.
        IFCS = Field::new(&[25]);
        /// Word 2: say when it is done.
        RS = Field::new(&[27]);
        /// Word 2: an advanced descriptor.
        DEXT = Field::new(&[29]);
        /// Word 2: insert a VLAN tag.
        VLE = Field::new(&[30]);
        /// Word 2: cut into segments.
        TSE = Field::new(&[31]);
        /// Word 3: the NIC is done with it.
        DD = Field::new(&[0]);
        /// Word 3: which context it uses.
        IDX = Field::new(&[6, 4]);
        /// Word 3: check the context's lengths.
        CC = Field::new(&[7]);
        /// Word 3: insert the IPv4 header checksum.
        IXSM = Field::new(&[8]);
        /// Word 3: insert the TCP, UDP or SCTP checksum.
        TXSM = Field::new(&[9]);
        /// Word 3: bytes of the packet; with [`TSE`] only what follows the TCP header.
        PAYLEN = Field::new(&[31, 14]);
        /// Legacy descriptors, word 3: the tag to insert.
        LEGACY_VLAN = Field::new(&[31, 16]);
        /// Legacy descriptors, word 2: offset to insert a checksum at.
        LEGACY_CSO = Field::new(&[23, 16]);
        /// Legacy descriptors, word 2: insert a checksum.
        LEGACY_IC = Field::new(&[26]);
        /// Legacy descriptors, word 3: offset to start the checksum from.
        LEGACY_CSS = Field::new(&[15, 8]);
    }

    constants! { VALUES: u32;
        /// Value of [`DTYP`]: a context.
        TYPE_CONTEXT = 2;
        /// Value of [`DTYP`]: data.
        TYPE_DATA = 3;
    }
}

/// Transmit context descriptor: what data descriptors after it need to know of headers.
pub mod context {
    use super::Field;
    use crate::reg::constants;

    constants! { TABLE: Field;
        /// Word 0: bytes of IP headers.
        IPLEN = Field::new(&[8, 0]);
        /// Word 0: bytes of the Ethernet header.
        MACLEN = Field::new(&[15, 9]);
        /// Word 0: the tag to insert.
        VLAN = Field::new(&[31, 16]);
        /// Word 2: IPv4, else IPv6.
        IPV4 = Field::new(&[10]);
        /// Word 2: [`L4T_UDP`], [`L4T_TCP`] or [`L4T_SCTP`].
        L4T = Field::new(&[12, 11]);
        /// Word 3: which of the queue's contexts this becomes.
        IDX = Field::new(&[6, 4]);
        /// Word 3: bytes of the TCP or UDP header.
        L4LEN = Field::new(&[15, 8]);
        /// Word 3: bytes of payload in a segment.
        MSS = Field::new(&[31, 16]);
    }

    constants! { VALUES: u32;
        /// Value of [`L4T`]: UDP.
        L4T_UDP = 0;
        /// Value of [`L4T`]: TCP.
        L4T_TCP = 1;
        /// Value of [`L4T`]: SCTP.
        L4T_SCTP = 2;
    }
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
