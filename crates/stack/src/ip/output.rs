//! IP headers in front of what goes out.

use bywash_frame::{Checksum, Packet};
use bywash_wire::zerocopy::{FromBytes, IntoBytes};
use bywash_wire::{IPV4_HEADER, IPV6_HEADER, Ipv4Header, Ipv6Header, TCP_HEADER, TcpHeader, UDP_HEADER};

use crate::Address;

/// What an IP header says.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fields {
    pub(crate) source: Address,
    pub(crate) destination: Address,
    pub(crate) protocol: u8,
    /// Differentiated services and congestion marks.
    pub(crate) class: u8,
    /// IPv4's time to live, or IPv6's hop limit.
    pub(crate) hop_limit: u8,
    /// Set on an IPv4 datagram that may be cut.
    pub(crate) identification: Option<u16>,
}

/// Bytes of the header in front of packets to an address.
#[inline]
pub(crate) const fn header_length(destination: Address) -> usize {
    if destination.is_v4() { IPV4_HEADER } else { IPV6_HEADER }
}

/// Bytes of the IP header that stands at the front of `bytes`, without extension headers.
pub(crate) fn network_length(bytes: &[u8]) -> Option<usize> {
    match bytes.first()? >> 4 {
        4 => Ipv4Header::ref_from_prefix(bytes).ok().map(|(ip, _)| ip.header_length()),
        6 => Some(IPV6_HEADER),
        _ => None,
    }
}

/// Puts an IP header in front of a transport segment that lies whole in a packet; `false` when it is too long, or the
/// addresses are of two families.
#[inline]
pub(crate) fn put_header(packet: &mut Packet, fields: &Fields) -> bool {
    let Ok(length) = u16::try_from(packet.len()) else { return false };
    let mut header = [0; IPV6_HEADER];
    let Some(bytes) = write_header(fields, length, &mut header) else { return false };
    #[expect(clippy::cast_possible_truncation, reason = "20 or 40 bytes")]
    packet.offload.shift_checksum(bytes as u16);
    packet.push_front(bytes).map(|front| front[..bytes].copy_from_slice(&header[..bytes])).is_ok()
}

/// Writes an IP header to the front of `to` for `length` bytes of payload, and says how long it is; `None` when the
/// payload is too long, or the addresses are of two families.
#[inline]
pub(crate) fn write_header(fields: &Fields, length: u16, to: &mut [u8]) -> Option<usize> {
    match (fields.source.v4(), fields.destination.v4()) {
        (Some(source), Some(destination)) => {
            if length > u16::MAX - 20 {
                return None;
            }
            let mut ip = Ipv4Header::new(source, destination, fields.protocol, length);
            if let Some(identification) = fields.identification {
                (ip.fragment, ip.identification) = (0.into(), identification.into());
            }
            let usual = fields.class == 0 && fields.hop_limit == ip.time_to_live;
            if fields.identification.is_some() || !usual {
                (ip.traffic_class, ip.time_to_live) = (fields.class, fields.hop_limit);
                ip.seal();
            }
            ip.put(to.first_chunk_mut()?);
            Some(IPV4_HEADER)
        }
        (None, None) => {
            let (source, destination) = (fields.source.wire().into(), fields.destination.wire().into());
            let mut ip = Ipv6Header::new(source, destination, fields.protocol, length);
            ip.hop_limit = fields.hop_limit;
            if fields.class != 0 {
                ip.set_traffic_class(fields.class);
            }
            ip.write_to_prefix(to).ok().map(|()| IPV6_HEADER)
        }
        _ => None,
    }
}

/// Bytes of the largest packet that a packet becomes when it is cut; its own length unless it is a super-segment.
#[inline]
pub(crate) fn largest_piece(packet: &Packet) -> usize {
    let Some(segmentation) = packet.offload.segmentation() else { return packet.len() };
    let Checksum::Partial { start, offset } = packet.offload.checksum() else { return packet.len() };
    let start = usize::from(start);
    let tcp = usize::from(offset) == usize::from(bywash_wire::TCP_CHECKSUM_OFFSET);
    let header = match packet.head().get(start..).and_then(|bytes| TcpHeader::ref_from_prefix(bytes).ok()) {
        Some((header, _)) if tcp => header.header_length().max(TCP_HEADER),
        _ => UDP_HEADER,
    };
    packet.len().min(start + header + usize::from(segmentation.size.get()))
}
