//! Between a packet's [`Offload`] and the virtio-net header that `tap:` and `packet:` have in front of packets.
//!
//! What comes from the kernel is checked before anybody trusts it; what goes to it is built from the packet alone.

use std::num::NonZeroU16;

use bywash_frame::{Checksum, Offload, Packet, Segmentation, SegmentationKind};
use bywash_port::Capabilities;
use bywash_sys::interface::HEADERS;
use bywash_sys::virtio_header::{
    DATA_VALID, GSO_ECN, GSO_NONE, GSO_TCPV4, GSO_TCPV6, GSO_UDP_L4, NEEDS_CSUM, VirtioHeader,
};

/// Bytes of an Ethernet header.
pub(crate) const ETHERNET: usize = 14;

/// Bytes of a VLAN tag.
pub(crate) const VLAN_TAG: u16 = 4;

/// Bytes of the two addresses, which a VLAN tag follows.
pub(crate) const ADDRESSES: usize = 12;

/// IEEE 802.1Q's protocol number: what [`Offload::vlan`] is put in as.
pub(crate) const ETH_P_8021Q: [u8; 2] = [0x81, 0x00];

/// What a port with this header can do, on an interface with an MTU of `mtu` bytes.
pub(crate) fn capabilities(mtu: u32, mode: Vec<&'static str>, link_mbps: Option<u32>) -> Capabilities {
    Capabilities {
        max_len: mtu as usize + HEADERS as usize,
        sent: None,
        tx_checksum: true,
        segmentation: true,
        chains: true,
        zero_copy: false,
        mode,
        link_mbps,
    }
}

/// What the header of a received packet of `len` bytes says. `shift` bytes have been put in behind the addresses that the
/// header does not know of. `None` when it contradicts the packet or itself.
#[inline]
pub(crate) fn received(header: &VirtioHeader, len: usize, shift: u16) -> Option<Offload> {
    let mut offload = Offload::default();
    if header.flags & NEEDS_CSUM != 0 {
        let start = header.csum_start.checked_add(shift)?;
        let end = usize::from(start) + usize::from(header.csum_offset) + 2;
        if usize::from(header.csum_start) < ETHERNET || end > len {
            return None;
        }
        offload.set_checksum(Checksum::Partial { start, offset: header.csum_offset });
    } else if header.flags & DATA_VALID != 0 {
        offload.set_checksum(Checksum::Valid);
    }
    let kind = match header.gso_type & !GSO_ECN {
        GSO_NONE => return Some(offload),
        GSO_TCPV4 => SegmentationKind::Tcp4,
        GSO_TCPV6 => SegmentationKind::Tcp6,
        GSO_UDP_L4 => SegmentationKind::Udp,
        _ => return None,
    };
    offload.set_segmentation(Some(Segmentation { kind, size: NonZeroU16::new(header.gso_size)? }));
    // The kernel says where CWR is the first piece's alone. What has it all the same is AccECN's, for which the header has no word.
    offload.set_cwr_on_each(kind != SegmentationKind::Udp && header.gso_type & GSO_ECN == 0);
    Some(offload)
}

/// A packet as it goes to the kernel: the header, and what stands between it and the packet's bytes as they are.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Outgoing {
    pub(crate) header: VirtioHeader,
    /// A VLAN tag to be put in, protocol first.
    tag: Option<[u8; 4]>,
}

impl Outgoing {
    /// `None` when the packet's [`Offload`] names bytes it does not have, or it is no Ethernet frame.
    #[inline]
    pub(crate) fn new(packet: &Packet) -> Option<Self> {
        if packet.head().len() < ETHERNET {
            return None;
        }
        let mut outgoing = Self { header: VirtioHeader::default(), tag: None };
        let header = &mut outgoing.header;
        if let Checksum::Partial { start, offset } = packet.offload.checksum() {
            if usize::from(start) + usize::from(offset) + 2 > packet.len() {
                return None;
            }
            header.flags = NEEDS_CSUM;
            (header.csum_start, header.csum_offset) = (start, offset);
        }
        if let Some(Segmentation { kind, size }) = packet.offload.segmentation() {
            header.gso_size = size.get();
            (header.gso_type, header.hdr_len) = segmentation(kind, packet);
        }
        if let Some(control) = packet.offload.vlan() {
            let ([a, b], [c, d]) = (ETH_P_8021Q, control.to_be_bytes());
            outgoing.tag = Some([a, b, c, d]);
            if header.flags & NEEDS_CSUM != 0 {
                header.csum_start = header.csum_start.checked_add(VLAN_TAG)?;
            }
            if header.hdr_len != 0 {
                header.hdr_len = header.hdr_len.checked_add(VLAN_TAG)?;
            }
        }
        Some(outgoing)
    }

    /// The packet's bytes in order, with the tag where it belongs. The first two are never empty.
    #[inline]
    pub(crate) fn pieces<'a>(&'a self, packet: &'a Packet) -> impl Iterator<Item = &'a [u8]> {
        let head = packet.head();
        // Without a tag the packet is not cut.
        let cut = if self.tag.is_some() { ADDRESSES.min(head.len()) } else { 0 };
        let (addresses, rest) = head.split_at(cut);
        let tag = self.tag.iter().flat_map(move |tag| [addresses, tag.as_slice()]);
        tag.chain([rest]).chain(packet.slices().skip(1))
    }

    /// Bytes that go beside the packet's own.
    #[inline]
    pub(crate) fn added(&self) -> usize {
        self.tag.map_or(0, |tag| tag.len())
    }
}

/// The header's type, and the length of all protocol headers where the first frame shows it, else 0: "not known".
fn segmentation(kind: SegmentationKind, packet: &Packet) -> (u8, u16) {
    let (mut gso, mut len) = match kind {
        SegmentationKind::Tcp4 => (GSO_TCPV4, 0),
        SegmentationKind::Tcp6 => (GSO_TCPV6, 0),
        SegmentationKind::Udp => (GSO_UDP_L4, 0),
    };
    if let Checksum::Partial { start, .. } = packet.offload.checksum() {
        let transport = packet.head().get(usize::from(start)..).unwrap_or_default();
        let transport_len = match (kind, transport) {
            (SegmentationKind::Udp, _) => UDP_HEADER,
            (_, [_, _, _, _, _, _, _, _, _, _, _, _, data_offset, flags, ..]) => {
                if flags & TCP_CWR != 0 && !packet.offload.cwr_on_each() {
                    gso |= GSO_ECN;
                }
                u16::from(data_offset >> 4) * 4
            }
            _ => return (gso, 0),
        };
        len = start.checked_add(transport_len).filter(|&l| usize::from(l) <= packet.len()).unwrap_or(0);
    }
    (gso, len)
}

const UDP_HEADER: u16 = 8;

/// RFC 3168's flag, in byte 13 of the TCP header.
const TCP_CWR: u8 = 0x80;

#[cfg(test)]
mod tests {
    use bywash_frame::{Arena, FRAME_SIZE, Pool};

    use super::*;

    fn pool() -> Pool {
        Arena::new(vec![0; 8 * FRAME_SIZE]).unwrap().pool(4).unwrap()
    }

    fn tcp(pool: &mut Pool) -> Packet {
        let mut packet = Packet::new(pool.take().unwrap());
        let mut bytes = [0; 14 + 20 + 32 + 100];
        (bytes[12], bytes[14], bytes[34 + 12], bytes[34 + 13]) = (8, 0x45, 8 << 4, TCP_CWR | 0x10);
        packet.extend_from_slice(&bytes).unwrap();
        packet.offload.set_checksum(Checksum::Partial { start: 34, offset: 16 });
        packet.offload.set_segmentation(Some(Segmentation {
            kind: SegmentationKind::Tcp4,
            size: NonZeroU16::new(50).unwrap(),
        }));
        packet
    }

    #[test]
    fn what_goes_out_comes_back_as_it_was() {
        let mut pool = pool();
        let packet = tcp(&mut pool);
        let outgoing = Outgoing::new(&packet).unwrap();
        assert_eq!(
            outgoing.header,
            VirtioHeader {
                flags: NEEDS_CSUM,
                gso_type: GSO_TCPV4 | GSO_ECN,
                hdr_len: 66,
                gso_size: 50,
                csum_start: 34,
                csum_offset: 16
            }
        );
        assert_eq!(received(&outgoing.header, packet.len(), 0), Some(packet.offload));
        pool.give_packet(packet);
    }

    #[test]
    fn cwr_is_on_each_piece_unless_the_header_says_that_it_is_the_first_ones() {
        let mut pool = pool();
        let mut packet = tcp(&mut pool);
        packet.offload.set_cwr_on_each(true);
        let header = Outgoing::new(&packet).unwrap().header;
        assert_eq!(header.gso_type, GSO_TCPV4);
        assert_eq!(received(&header, packet.len(), 0), Some(packet.offload));
        for (gso_type, expected) in [
            (GSO_TCPV4 | GSO_ECN, false),
            (GSO_TCPV6, true),
            (GSO_TCPV6 | GSO_ECN, false),
            (GSO_UDP_L4, false),
            (GSO_NONE, false),
        ] {
            let offload = received(&VirtioHeader { gso_type, ..header }, packet.len(), 0).unwrap();
            assert_eq!(offload.cwr_on_each(), expected, "{gso_type:#x}");
        }
        pool.give_packet(packet);
    }

    #[test]
    fn a_tag_is_put_in_behind_the_addresses_and_all_offsets_follow() {
        let mut pool = pool();
        let mut packet = tcp(&mut pool);
        packet.offload.set_vlan(Some(0x6007));
        let outgoing = Outgoing::new(&packet).unwrap();
        assert_eq!((outgoing.header.csum_start, outgoing.header.hdr_len), (38, 70));
        let sent: Vec<u8> = outgoing.pieces(&packet).flatten().copied().collect();
        assert_eq!(sent.len(), packet.len() + outgoing.added());
        assert_eq!(sent[..18], [&packet.head()[..12], &[0x81, 0, 0x60, 7], &[8, 0]].concat());
        assert_eq!(sent[18..], packet.head()[14..]);
        // Without the tag again, as a receiver that reports it does.
        packet.offload.set_vlan(None);
        let whole: Vec<u8> = Outgoing::new(&packet).unwrap().pieces(&packet).flatten().copied().collect();
        assert_eq!(whole, packet.head());
        pool.give_packet(packet);
    }

    #[test]
    fn headers_that_contradict_themselves_or_the_packet_are_refused() {
        let good =
            VirtioHeader { flags: NEEDS_CSUM, csum_start: 34, csum_offset: 16, ..VirtioHeader::default() };
        assert!(received(&good, 52, 0).is_some());
        assert!(received(&good, 51, 0).is_none(), "the sum lies behind the packet");
        assert!(received(&good, 52, 4).is_none(), "as above, with a tag that was put in");
        for bad in [
            VirtioHeader { csum_start: 13, ..good },
            VirtioHeader { csum_start: u16::MAX, ..good },
            VirtioHeader { csum_offset: u16::MAX, ..good },
            VirtioHeader { gso_type: GSO_TCPV4, ..good },
            VirtioHeader { gso_type: 2, gso_size: 1, ..good },
            VirtioHeader { gso_type: 3, gso_size: 1, ..good },
            VirtioHeader { gso_type: 0x41, gso_size: 1, ..good },
        ] {
            assert_eq!(received(&bad, 1500, 4), None, "{bad:?}");
        }
        assert!(received(&VirtioHeader { csum_start: u16::MAX, ..good }, 70_000, 4).is_none());
        let valid = VirtioHeader { flags: DATA_VALID, ..VirtioHeader::default() };
        assert_eq!(received(&valid, 60, 0).unwrap().checksum(), Checksum::Valid);
    }

    #[test]
    fn packets_that_ask_for_what_they_have_not_are_refused() {
        let mut pool = pool();
        let mut packet = tcp(&mut pool);
        packet.offload.set_checksum(Checksum::Partial { start: 160, offset: 16 });
        assert!(Outgoing::new(&packet).is_none());
        // The header cannot be seen: its length is "not known".
        packet.offload.set_checksum(Checksum::Partial { start: 154, offset: 8 });
        assert_eq!(Outgoing::new(&packet).unwrap().header.hdr_len, 0);
        packet.set_len(13).unwrap();
        packet.offload = Offload::default();
        assert!(Outgoing::new(&packet).is_none());
        pool.give_packet(packet);
    }
}
