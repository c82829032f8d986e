//! Cutting packets that are too big for a link: IPv4 anywhere (RFC 791, 3.2), IPv6 only where it begins (RFC 8200, 4.5).

use bywash_frame::{Packet, Pool};
use bywash_wire::checksum::Sum;
use bywash_wire::zerocopy::{FromBytes, IntoBytes};
use bywash_wire::{
    FRAGMENT_HEADER, FragmentHeader, IPV4_HEADER, IPV6_HEADER, Ipv4Header, Ipv6Header, MORE_FRAGMENTS,
    Protocol,
};

use crate::packet::append_range;

/// Hands a packet to `send`, in pieces if it is larger than `mtu`. The caller has looked at the don't-fragment bit.
///
/// The first piece has all options, the others those with the copied bit (RFC 791, 3.1).
///
/// Returns `false` when frames run out: then nothing is sent, for no piece is worth anything without the others. Likewise when it
/// is no packet that can be cut.
#[must_use]
pub(crate) fn fragment(
    mut packet: Packet,
    mtu: usize,
    pool: &mut Pool,
    mut send: impl FnMut(Packet, &mut Pool),
) -> bool {
    if packet.len() <= mtu || packet.offload.segmentation().is_some() {
        send(packet, pool);
        return true;
    }
    // No port can finish over pieces what was left to it.
    let (Ok(()), Ok((ip, _))) = (packet.complete_checksum(), Ipv4Header::read_from_prefix(packet.head()))
    else {
        pool.give_packet(packet);
        return false;
    };
    let (start, end) = (ip.header_length(), usize::from(ip.total_length.get()));
    let options = packet.head().get(IPV4_HEADER..start).unwrap_or_default().to_vec();
    let (copied, mut options) = (copied(&options), &options[..]);
    let (base, more_after) = (ip.fragment_offset(), ip.fragment.get() & MORE_FRAGMENTS);
    let (mut at, mut pieces) = (start, Vec::new());
    while at < end {
        let each = (mtu.saturating_sub(IPV4_HEADER + options.len()) & !7).max(8);
        let until = (at + each).min(end);
        let more = if until < end { MORE_FRAGMENTS } else { more_after };
        match piece(&packet, (&ip, options), at..until, base + at - start, more, pool) {
            Some(piece) => pieces.push(piece),
            None => break,
        }
        (at, options) = (until, &copied);
    }
    pool.give_packet(packet);
    send_all(pieces, at >= end, pool, send)
}

/// Sends what a packet was cut into if that is all of it, and says so.
fn send_all(
    pieces: Vec<Packet>,
    complete: bool,
    pool: &mut Pool,
    mut send: impl FnMut(Packet, &mut Pool),
) -> bool {
    for piece in pieces {
        if complete {
            send(piece, pool);
        } else {
            pool.give_packet(piece);
        }
    }
    complete
}

/// Those of a header's options that every piece has (RFC 791, 3.1: the first bit of their type), filled up to words.
fn copied(mut options: &[u8]) -> Vec<u8> {
    const END: u8 = 0;
    const NOTHING: u8 = 1;
    const COPIED: u8 = 0x80;
    let mut kept = Vec::new();
    while let [kind, rest @ ..] = options {
        let length = match (*kind, rest.first()) {
            (NOTHING, _) => 1,
            (END, _) | (_, None | Some(0 | 1)) => break,
            (_, Some(length)) => usize::from(*length),
        };
        let Some((option, after)) = options.split_at_checked(length) else { break };
        if kind & COPIED != 0 {
            kept.extend_from_slice(option);
        }
        options = after;
    }
    kept.resize(kept.len().next_multiple_of(4), END);
    kept
}

fn piece(
    packet: &Packet,
    (ip, options): (&Ipv4Header, &[u8]),
    range: std::ops::Range<usize>,
    offset: usize,
    more: u16,
    pool: &mut Pool,
) -> Option<Packet> {
    let mut header = *ip;
    header.set_header_length(u8::try_from(IPV4_HEADER + options.len()).ok()?);
    header.total_length = u16::try_from(IPV4_HEADER + options.len() + range.len()).ok()?.into();
    header.fragment = (u16::try_from(offset / 8).ok()? | more).into();
    header.checksum = 0.into();
    header.checksum = Sum::new().bytes(header.as_bytes()).bytes(options).checksum().into();
    let mut piece = Packet::new(pool.take()?);
    let built = piece
        .append(header.as_bytes(), pool)
        .and_then(|()| piece.append(options, pool))
        .and_then(|()| append_range(&mut piece, packet, range, pool));
    if built.is_err() {
        pool.give_packet(piece);
        return None;
    }
    Some(piece)
}

/// Hands an IPv6 packet of our own, without extension headers, to `send`, in pieces if it is larger than `mtu`. Returns `false`
/// as [`fragment`] does.
#[must_use]
pub(crate) fn fragment6(
    mut packet: Packet,
    mtu: usize,
    identification: u32,
    pool: &mut Pool,
    mut send: impl FnMut(Packet, &mut Pool),
) -> bool {
    if packet.len() <= mtu || packet.offload.segmentation().is_some() {
        send(packet, pool);
        return true;
    }
    let (Ok(()), Ok((ip, _))) = (packet.complete_checksum(), Ipv6Header::read_from_prefix(packet.head()))
    else {
        pool.give_packet(packet);
        return false;
    };
    let end = IPV6_HEADER + usize::from(ip.payload_length.get());
    let each = (mtu.saturating_sub(IPV6_HEADER + FRAGMENT_HEADER) & !7).max(8);
    let (mut at, mut pieces) = (IPV6_HEADER, Vec::new());
    while at < end {
        let until = (at + each).min(end);
        // A payload has at most 65535 bytes.
        let offset = u16::try_from(at - IPV6_HEADER).unwrap_or(u16::MAX);
        let header = FragmentHeader::new(ip.next_header, offset, until < end, identification);
        match piece6(&packet, &ip, header, at..until, pool) {
            Some(piece) => pieces.push(piece),
            None => break,
        }
        at = until;
    }
    pool.give_packet(packet);
    send_all(pieces, at >= end, pool, send)
}

fn piece6(
    packet: &Packet,
    ip: &Ipv6Header,
    fragment: FragmentHeader,
    range: std::ops::Range<usize>,
    pool: &mut Pool,
) -> Option<Packet> {
    let mut header = *ip;
    header.next_header = Protocol::FRAGMENT.0;
    header.payload_length = u16::try_from(FRAGMENT_HEADER + range.len()).ok()?.into();
    let mut piece = Packet::new(pool.take()?);
    let built = piece
        .append(header.as_bytes(), pool)
        .and_then(|()| piece.append(fragment.as_bytes(), pool))
        .and_then(|()| append_range(&mut piece, packet, range, pool));
    if built.is_err() {
        pool.give_packet(piece);
        return None;
    }
    Some(piece)
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
        packet.append(ip.as_bytes(), &mut pool).unwrap();
        packet.append(&data, &mut pool).unwrap();
        let mut pieces = Vec::new();
        assert!(fragment(packet, 1500, &mut pool, |piece, _| pieces.push(piece)));
        let mut all = Vec::new();
        for (i, piece) in pieces.iter().enumerate() {
            let ip = Ipv4Header::parse(piece.head(), piece.len()).unwrap();
            assert_eq!((ip.fragment_offset(), ip.identification.get()), (all.len(), 77));
            assert_eq!(ip.fragment.get() & MORE_FRAGMENTS != 0, i < 2);
            assert!(piece.len() <= 1500);
            all.extend(piece.slices().flatten().skip(20));
        }
        assert_eq!((pieces.len(), all), (3, data));
        pieces.into_iter().for_each(|piece| pool.give_packet(piece));
        assert_eq!(pool.free(), 100);
    }
}
