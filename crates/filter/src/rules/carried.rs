//! What a packet carries: the bytes behind its transport header.

use bywash_wire::Protocol;

use super::headers::{network, starts_plainly};
use crate::plain::{FRAGMENT, NETWORK};
use crate::walk::{Family, Pushed, Start, Transport, Walk};

/// What stands behind a transport header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Carried<'a> {
    /// Its protocol.
    pub(super) protocol: Protocol,
    /// As much of it as IP says and the packet has.
    pub(super) payload: &'a [u8],
}

/// Finds it behind up to two VLAN tags, and behind AH and the extension headers of IPv6. There is none in later fragments,
/// and none where a length contradicts the header that it stands in.
#[inline]
pub(super) fn carried(packet: &[u8]) -> Option<Carried<'_>> {
    plain(packet).or_else(|| behind_others(packet))
}

/// Behind UDP or TCP right behind an IPv4 header without options, and that right behind Ethernet's, as in nearly all packets.
#[inline(always)]
fn plain(packet: &[u8]) -> Option<Carried<'_>> {
    const AT: usize = NETWORK as usize + 20;
    const UDP: usize = 8;
    // No header of TCP is as short.
    let head: &[u8; AT + UDP] = packet.first_chunk()?;
    if !starts_plainly(head) || u16::from_be_bytes([head[20], head[21]]) & FRAGMENT != 0 {
        return None;
    }
    let protocol = Protocol(head[23]);
    let end = (NETWORK as usize + usize::from(u16::from_be_bytes([head[16], head[17]]))).min(packet.len());
    let (header, end) = match protocol {
        Protocol::UDP => {
            let length = usize::from(u16::from_be_bytes([head[AT + 4], head[AT + 5]]));
            (UDP, end.min(AT + Some(length).filter(|length| *length >= UDP)?))
        }
        Protocol::TCP => (header_and_length(protocol, packet.get(AT..)?)?.0, end),
        _ => return None,
    };
    Some(Carried { protocol, payload: packet.get(AT + header..end)? })
}

/// Behind whatever headers there are.
#[inline(never)]
fn behind_others(packet: &[u8]) -> Option<Carried<'_>> {
    let Upper { protocol, at: upper, end } = found(packet)?;
    let (header, length) = header_and_length(protocol, packet.get(upper..)?)?;
    let end = upper.saturating_add(length).min(end).min(packet.len());
    Some(Carried { protocol, payload: packet.get(upper + header..end)? })
}

/// What an IP header carries.
struct Upper {
    protocol: Protocol,
    /// Where it begins, and where IP says that it ends.
    at: usize,
    end: usize,
}

/// Finds that in any packet that is no later fragment.
fn found(packet: &[u8]) -> Option<Upper> {
    let (family, at) = network(packet)?;
    let length = |offset: usize| packet.get(at + offset..)?.first_chunk().map(|raw| u16::from_be_bytes(*raw));
    let end = match family {
        Family::V4 => at + usize::from(length(2)?),
        Family::V6 => at + 40 + usize::from(length(4)?),
    };
    let (protocol, at) = transport(packet, family, at)?;
    Some(Upper { protocol, at, end })
}

/// The protocol of a packet that is no later fragment, and where its header begins.
fn transport(packet: &[u8], family: Family, at: usize) -> Option<(Protocol, usize)> {
    let start = Start { family, network: u32::try_from(at).ok()?, pushed: Pushed::Nothing };
    let found = Walk::Transport { start }.find(packet)?;
    if found & Transport::LATER != 0 {
        return None;
    }
    let protocol = (found & Transport::PROTOCOL) >> Transport::PROTOCOL_SHIFT;
    Some((Protocol(u8::try_from(protocol).ok()?), (found & Transport::OFFSET) as usize))
}

/// Bytes of the header that `upper` begins with, and most bytes of header and payload.
fn header_and_length(protocol: Protocol, upper: &[u8]) -> Option<(usize, usize)> {
    const ANY: usize = usize::MAX;
    const UDP_LITE: Protocol = Protocol(136);
    Some(match protocol {
        Protocol::TCP => {
            let words = usize::from(*upper.get(12)? >> 4);
            (4 * Some(words).filter(|words| *words >= 5)?, ANY)
        }
        Protocol::UDP => {
            let length = usize::from(u16::from_be_bytes(*upper.get(4..)?.first_chunk()?));
            (8, Some(length).filter(|length| *length >= 8)?)
        }
        Protocol::ICMP | Protocol::ICMPV6 | UDP_LITE => (8, ANY),
        Protocol::SCTP => (12, ANY),
        _ => (0, ANY),
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// An IPv4 packet with padding behind it.
    fn v4(protocol: u8, fragment: u16, upper: &[u8]) -> Vec<u8> {
        let total = u16::try_from(20 + upper.len()).unwrap().to_be_bytes();
        let [high, low] = fragment.to_be_bytes();
        let mut packet = vec![0; 12];
        packet.extend([8, 0, 0x45, 0, total[0], total[1], 0, 0, high, low, 64, protocol, 0, 0]);
        packet.extend([10, 0, 0, 1, 10, 0, 0, 2]);
        packet.extend(upper);
        packet.extend(b"padding");
        packet
    }

    fn payload(packet: &[u8]) -> Option<&[u8]> {
        carried(packet).map(|carried| carried.payload)
    }

    #[test]
    fn it_begins_behind_the_transport_header_and_ends_where_ip_says() {
        let tcp = |words: u8| [&[0; 12][..], &[words << 4], &[0; 11], b"text"].concat();
        assert_eq!(payload(&v4(6, 0, &tcp(5))), Some(&[&[0; 4][..], b"text"].concat()[..]));
        assert_eq!(payload(&v4(6, 0, &tcp(6))), Some(&b"text"[..]));
        assert_eq!(payload(&v4(6, 0, &tcp(4))), None, "no header is so short");
        assert_eq!(payload(&v4(6, 0, &tcp(15))), None, "it would begin behind the end");
        let udp = |length: u8| [&[0, 1, 0, 2, 0, length, 0, 0][..], b"text"].concat();
        assert_eq!(payload(&v4(17, 0, &udp(12))), Some(&b"text"[..]));
        assert_eq!(payload(&v4(17, 0, &udp(10))), Some(&b"te"[..]));
        assert_eq!(payload(&v4(17, 0, &udp(200))), Some(&b"text"[..]));
        assert_eq!(payload(&v4(17, 0, &udp(7))), None);
        assert_eq!(payload(&v4(1, 0, b"\x08\0\0\0\0\0\0\0ping")), Some(&b"ping"[..]));
        assert_eq!(payload(&v4(47, 0, b"all")), Some(&b"all"[..]));
        assert_eq!(payload(&v4(47, 0x2000, b"all")), Some(&b"all"[..]), "a first fragment");
        assert_eq!(payload(&v4(47, 3, b"all")), None, "a later one");
        let mut short = v4(17, 0, &udp(12));
        short.truncate(14 + 20 + 8 + 2);
        assert_eq!(payload(&short), Some(&b"te"[..]), "the rest was not captured");
    }

    #[test]
    fn ipv6_is_followed_through_its_extension_headers_and_tags_are_passed() {
        let mut packet = vec![0; 12];
        packet.extend([0x81, 0, 0, 1, 0x86, 0xdd, 0x60, 0, 0, 0, 0, 8 + 8 + 4, 60, 64]);
        packet.extend([0; 32]);
        packet.extend([17, 0, 1, 4, 0, 0, 0, 0, 0, 1, 0, 2, 0, 12, 0, 0]);
        packet.extend(b"text, padding");
        assert_eq!(carried(&packet), Some(Carried { protocol: Protocol::UDP, payload: b"text" }));
    }

    proptest! {
        #[test]
        fn the_short_way_finds_the_same(
            first in prop::sample::select(vec![0x45, 0x46, 0x65]),
            total in 0_u8..64,
            fragment in prop::sample::select(vec![0, 0x4000, 0x2000, 3]),
            protocol in prop::sample::select(vec![6, 17, 1]),
            mut upper in prop::collection::vec(any::<u8>(), 0..48),
            length in 0_u8..48,
        ) {
            if let Some(place) = upper.get_mut(4..6) {
                place.copy_from_slice(&[0, length]);
            }
            let mut packet = v4(protocol, fragment, &upper);
            (packet[14], packet[17]) = (first, total);
            prop_assert_eq!(carried(&packet), behind_others(&packet));
        }
    }
}
