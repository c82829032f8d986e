//! Where in a packet a generator's probe lies, and whether it came as it was sent.
//!
//! It is the front of what UDP, TCP or an ICMP echo carries, behind up to two VLAN tags and IPv4 or IPv6.

use bywash_port::frame::Packet;
use bywash_wire::checksum::Sum;
use bywash_wire::zerocopy::{FromBytes, IntoBytes};
use bywash_wire::{
    ETHERNET_HEADER, EtherType, EthernetHeader, ICMP_HEADER, IPV4_HEADER, IPV6_HEADER, IcmpHeader, Ipv4Error,
    Ipv4Header, Ipv6Header, Protocol, TcpHeader, UDP_HEADER, UdpHeader, VlanTag, icmpv4, icmpv6,
};

use crate::probe::{self, PROBE, Probe, ProbeError};

/// What a damaged packet still says of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Damage {
    /// All: the damage lies in the filler, or in IP's header.
    Beside(Probe),
    /// The stream it is of, unless just that is damaged.
    Of(u16),
}

/// Looks at a packet: its probe, when it is a generator's and as it was sent.
#[inline(always)]
pub(super) fn read(packet: &Packet) -> Result<Probe, ProbeError> {
    let (head, len) = (packet.head(), packet.len());
    if let Some((payload, bytes)) = plain(head, len) {
        return judge(packet, &payload, bytes);
    }
    read_any(packet, head, len)
}

/// The same for packets that are out of the ordinary.
#[inline(never)]
fn read_any(packet: &Packet, head: &[u8], len: usize) -> Result<Probe, ProbeError> {
    let (payload, is_whole) = match payload(head, len) {
        Ok(payload) => (payload, true),
        Err(NoPayload::Damaged(payload)) => (payload, false),
        Err(NoPayload::Foreign) => return Err(ProbeError::Foreign),
    };
    let probe = judge(packet, &payload, first_bytes(head, &payload).ok_or(ProbeError::Foreign)?)?;
    if is_whole { Ok(probe) } else { Err(ProbeError::Damaged) }
}

/// Judges a payload that begins with these bytes.
#[inline(always)]
fn judge(packet: &Packet, payload: &Payload, bytes: &[u8; PROBE]) -> Result<Probe, ProbeError> {
    Probe::read(bytes, || filler_crc(packet, payload.from + PROBE, payload.len - PROBE))
}

fn first_bytes<'a>(head: &'a [u8], payload: &Payload) -> Option<&'a [u8; PROBE]> {
    head.get(payload.from..)?.first_chunk()
}

/// What is left of a packet that was found damaged. The check goes over the probe and its filler, and what that was is
/// known: when the check is right with that, the damage is in the filler alone.
#[cold]
#[inline(never)]
pub(super) fn damage(packet: &Packet) -> Option<Damage> {
    let head = packet.head();
    let (Ok(payload) | Err(NoPayload::Damaged(payload))) = payload(head, packet.len()) else { return None };
    let bytes = first_bytes(head, &payload)?;
    let probe = judge(packet, &payload, bytes)
        .or_else(|_| Probe::read(bytes, || probe::filler_crc(payload.len - PROBE)));
    Some(probe.map_or_else(|_| Damage::Of(Probe::stream_of(bytes)), Damage::Beside))
}

/// Where a payload lies in its packet. There is room for a probe.
struct Payload {
    from: usize,
    len: usize,
}

/// Why a packet has no payload to be judged.
enum NoPayload {
    Foreign,
    /// Its IPv4 header is damaged; a probe seems to lie here.
    Damaged(Payload),
}

/// Headers of a packet in the shape that nearly all have: Ethernet, IPv4 without options, UDP.
const PLAIN: usize = ETHERNET_HEADER + IPV4_HEADER + UDP_HEADER;

/// The payload of a packet in that shape, with its first bytes; `None` when it has another, or anything is wrong with
/// it. Every header is at a place that is known beforehand, which makes it a third of the work.
#[inline(always)]
fn plain(head: &[u8], len: usize) -> Option<(Payload, &[u8; PROBE])> {
    let bytes = head.first_chunk::<{ PLAIN + PROBE }>()?;
    let (ethernet, rest) = EthernetHeader::ref_from_prefix(bytes).ok()?;
    let (ip, rest) = Ipv4Header::ref_from_prefix(rest).ok()?;
    let (udp, _) = UdpHeader::ref_from_prefix(rest).ok()?;
    let (inside, length) = (usize::from(ip.total_length.get()), usize::from(udp.length.get()));
    let is_plain = ethernet.kind.get() == EtherType::IPV4.0
        && bytes[ETHERNET_HEADER] == VERSION_AND_LENGTH
        && ip.protocol == Protocol::UDP.0
        && !ip.is_fragment()
        && ETHERNET_HEADER + inside <= len
        && IPV4_HEADER + length <= inside
        && length >= UDP_HEADER + PROBE
        && Sum::new().bytes(ip.as_bytes()).checksum() == 0;
    let payload = Payload { from: PLAIN, len: length.wrapping_sub(UDP_HEADER) };
    is_plain.then_some((payload, bytes.last_chunk()?))
}

/// The first byte of an IPv4 header without options.
const VERSION_AND_LENGTH: u8 = 0x45;

/// Finds what the transport layer carries.
#[inline]
fn payload(head: &[u8], len: usize) -> Result<Payload, NoPayload> {
    let mut at = ETHERNET_HEADER;
    let mut kind = head.get(at - 2..at).map_or(0, |kind| u16::from_be_bytes([kind[0], kind[1]]));
    // A tag and one around it (802.1ad).
    for _ in 0..2 {
        if EtherType(kind).is_vlan() {
            let (tag, _) = head
                .get(at..)
                .and_then(|tag| VlanTag::ref_from_prefix(tag).ok())
                .ok_or(NoPayload::Foreign)?;
            kind = tag.kind.get();
            at += size_of::<VlanTag>();
        }
    }
    let ip = head.get(at..).ok_or(NoPayload::Foreign)?;
    let (protocol, header, inside) = match EtherType(kind) {
        EtherType::IPV4 => {
            let ip = Ipv4Header::parse(ip, len - at).map_err(|error| match error {
                Ipv4Error::Checksum => {
                    behind_damage(head, at, len).map_or(NoPayload::Foreign, NoPayload::Damaged)
                }
                Ipv4Error::Malformed => NoPayload::Foreign,
            })?;
            if ip.is_fragment() {
                return Err(NoPayload::Foreign);
            }
            let header = ip.header_length();
            (ip.protocol, header, usize::from(ip.total_length.get()) - header)
        }
        EtherType::IPV6 => {
            let ip = Ipv6Header::parse(ip, len - at).ok_or(NoPayload::Foreign)?;
            (ip.next_header, IPV6_HEADER, usize::from(ip.payload_length.get()))
        }
        _ => return Err(NoPayload::Foreign),
    };
    at += header;
    let datagram = head.get(at..).ok_or(NoPayload::Foreign)?;
    let (header, len) = transport(Protocol(protocol), datagram, inside).ok_or(NoPayload::Foreign)?;
    if len < PROBE { Err(NoPayload::Foreign) } else { Ok(Payload { from: at + header, len }) }
}

/// Bytes of the header, and of the payload behind it, where `inside` bytes are IP's payload.
#[inline]
fn transport(protocol: Protocol, datagram: &[u8], inside: usize) -> Option<(usize, usize)> {
    if protocol == Protocol::UDP {
        let length = usize::from(UdpHeader::parse(datagram, inside)?.length.get());
        return Some((UDP_HEADER, length - UDP_HEADER));
    }
    let header = match protocol {
        Protocol::TCP => TcpHeader::parse(datagram)?.header_length(),
        Protocol::ICMP | Protocol::ICMPV6 => {
            let (header, _) = IcmpHeader::ref_from_prefix(datagram).ok()?;
            let echo = if protocol == Protocol::ICMP {
                [icmpv4::ECHO_REQUEST, icmpv4::ECHO_REPLY]
            } else {
                [icmpv6::ECHO_REQUEST, icmpv6::ECHO_REPLY]
            };
            echo.contains(&header.kind).then_some(ICMP_HEADER)?
        }
        _ => return None,
    };
    Some((header, inside.checked_sub(header)?))
}

/// Where a probe seems to lie in an IPv4 packet whose header, at `at`, is damaged: behind one of UDP, as long as that says.
#[cold]
fn behind_damage(head: &[u8], at: usize, len: usize) -> Option<Payload> {
    let (ip, _) = Ipv4Header::ref_from_prefix(head.get(at..)?).ok()?;
    let at = at + ip.header_length();
    let (udp, rest) = UdpHeader::ref_from_prefix(head.get(at..)?).ok()?;
    let from = at + UDP_HEADER;
    let inside = usize::from(udp.length.get()).saturating_sub(UDP_HEADER).min(len - from);
    Probe::is_at(rest).then_some(Payload { from, len: inside.max(PROBE) }).filter(|_| len - from >= PROBE)
}

/// The CRC of `len` bytes from `from` on, over all frames of the packet.
#[inline]
fn filler_crc(packet: &Packet, from: usize, len: usize) -> u32 {
    if len == 0 { 0 } else { crc(packet, from, len) }
}

/// Not inlined: the shortest packets have no filler, and its registers would be saved for them too.
#[inline(never)]
fn crc(packet: &Packet, from: usize, len: usize) -> u32 {
    if let Some(filler) = packet.head().get(from..from + len) {
        return crc32fast::hash(filler);
    }
    crc_of_frames(packet, from, len)
}

#[cold]
fn crc_of_frames(packet: &Packet, from: usize, len: usize) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    let (mut skip, mut left) = (from, len);
    for bytes in packet.slices() {
        let part = &bytes[skip.min(bytes.len())..];
        skip -= bytes.len() - part.len();
        let part = &part[..left.min(part.len())];
        left -= part.len();
        hasher.update(part);
    }
    hasher.finalize()
}

#[cfg(test)]
mod tests;
