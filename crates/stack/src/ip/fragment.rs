//! Cutting IPv4 packets that are too big for a link (RFC 791, 3.2).

use bywash_frame::{Checksum, Packet, Pool};
use bywash_wire::checksum::Sum;
use bywash_wire::zerocopy::{FromBytes, IntoBytes};
use bywash_wire::{IPV4_HEADER, Ipv4Header, MORE_FRAGMENTS};

use crate::packet::{append, append_range, sum};

/// Hands a packet to `send`, in pieces if it is larger than `mtu`. The caller has looked at the don't-fragment bit.
///
/// Pieces have no options: the first would need all of them, the others those with the copied bit, and no option that
/// is forwarded today has a meaning. When frames run out, the rest is not sent.
pub(crate) fn fragment(
    mut packet: Packet,
    mtu: usize,
    pool: &mut Pool,
    mut send: impl FnMut(Packet, &mut Pool),
) {
    if packet.len() <= mtu || packet.offload.segmentation.is_some() {
        return send(packet, pool);
    }
    let Ok((ip, _)) = Ipv4Header::read_from_prefix(packet.head()) else { return pool.give_packet(packet) };
    finish_checksum(&mut packet, ip.header_length());
    let (start, end) = (ip.header_length(), usize::from(ip.total_length.get()));
    let each = (mtu.saturating_sub(IPV4_HEADER) & !7).max(8);
    let (base, more_after) = (ip.fragment_offset(), ip.fragment.get() & MORE_FRAGMENTS);
    let mut at = start;
    while at < end {
        let until = (at + each).min(end);
        let more = if until < end { MORE_FRAGMENTS } else { more_after };
        match piece(&packet, &ip, at..until, base + at - start, more, pool) {
            Some(piece) => send(piece, pool),
            None => break,
        }
        at = until;
    }
    pool.give_packet(packet);
}

fn piece(
    packet: &Packet,
    ip: &Ipv4Header,
    range: std::ops::Range<usize>,
    offset: usize,
    more: u16,
    pool: &mut Pool,
) -> Option<Packet> {
    let mut header = *ip;
    header.set_header_length(20);
    header.total_length = u16::try_from(IPV4_HEADER + range.len()).ok()?.into();
    header.fragment = (u16::try_from(offset / 8).ok()? | more).into();
    header.seal();
    let mut piece = Packet::new(pool.take()?);
    let built = append(&mut piece, header.as_bytes(), pool)
        .and_then(|()| append_range(&mut piece, packet, range, pool));
    if built.is_err() {
        pool.give_packet(piece);
        return None;
    }
    Some(piece)
}

/// Puts in a transport checksum that was left to the port: no port can finish it over pieces.
pub(crate) fn finish_checksum(packet: &mut Packet, transport: usize) {
    let Checksum::Partial { offset, .. } = packet.offload.checksum else { return };
    let checksum = sum(Sum::new(), packet, transport..packet.len()).checksum();
    // Zero would mean "none" to UDP, and both mean the same to TCP.
    let checksum = if checksum == 0 { 0xffff } else { checksum };
    let at = transport + usize::from(offset);
    if let Some(place) = packet.head_mut().get_mut(at..at + 2) {
        place.copy_from_slice(&checksum.to_be_bytes());
    }
    packet.offload.checksum = Checksum::Unknown;
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use bywash_frame::Arena;

    use super::*;

    #[test]
    fn pieces_hold_all_bytes_in_units_of_eight() {
        let mut pool = Arena::new(vec![0; 1 << 20]).unwrap().pool(100).unwrap();
        let data: Vec<u8> = (0..4000u16).map(|i| i.to_le_bytes()[0]).collect();
        let mut ip = Ipv4Header::new(Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(10, 0, 0, 2), 17, 4000);
        (ip.fragment, ip.identification) = (0.into(), 77.into());
        ip.seal();
        let mut packet = Packet::new(pool.take().unwrap());
        append(&mut packet, ip.as_bytes(), &mut pool).unwrap();
        append(&mut packet, &data, &mut pool).unwrap();
        let mut pieces = Vec::new();
        fragment(packet, 1500, &mut pool, |piece, _| pieces.push(piece));
        let mut all = Vec::new();
        for (i, piece) in pieces.iter().enumerate() {
            let ip = Ipv4Header::parse(piece.head(), piece.len()).unwrap();
            assert_eq!((ip.fragment_offset(), ip.identification.get()), (all.len(), 77));
            assert_eq!(ip.fragment.get() & MORE_FRAGMENTS != 0, i < 2);
            assert!(piece.len() <= 1500);
            all.extend(piece.segments().flat_map(|s| s.bytes().to_vec()).skip(20));
        }
        assert_eq!((pieces.len(), all), (3, data));
        pieces.into_iter().for_each(|piece| pool.give_packet(piece));
        assert_eq!(pool.free(), 100);
    }
}
