//! Packets whose checksum nobody has filled in: what a kernel sends to a virtual interface of its own, or to a virtual machine's NIC.
//!
//! The kernel leaves a TCP or UDP checksum to whoever takes a packet off the machine, and notes so beside the packet. An
//! XDP program sees the bytes and not the note: the field holds the sum of the pseudo-header alone. A packet that is
//! forwarded like that is dropped where it arrives. So the note is written again, by that sum. Where a right checksum
//! looks the same by chance, to complete it gives the same one; of packets that were damaged on their way, one in 65 536 passes for
//! one to be completed.
//!
//! Of a packet in a tunnel it is the inner checksum that waits where there is one, so tunnels are followed that the kernel itself makes,
//! and the innermost that looks so is taken. When the kernel has none inside it is the tunnel's own that waits; it is missed, and the
//! packet lost, where a right one inside looks the same by chance: one in 65 536 of these.

use bywash_frame::{Checksum, Packet};

use crate::virtio::{ADDRESSES, VLAN_TAG};

/// Most VLAN tags that are passed over.
const TAGS: usize = 2;

/// Most extension headers of IPv6 that are passed over.
const EXTENSIONS: usize = 8;

/// Most tunnels in each other.
const TUNNELS: usize = 2;

const IPV4: u16 = 0x0800;
const IPV6: u16 = 0x86dd;
/// What GRE and Geneve call Ethernet.
const ETHERNET: u16 = 0x6558;

const TCP: u8 = 6;
const UDP: u8 = 17;
const IPV4_IN_IP: u8 = 4;
const IPV6_IN_IP: u8 = 41;
const GRE: u8 = 47;

const VXLAN: u16 = 4789;
const GENEVE: u16 = 6081;

/// Notes beside a packet that its checksum is still to be filled in, where that is so.
#[inline]
pub(super) fn note(packet: &mut Packet) {
    if let Some((start, offset)) = find(packet.head(), packet.len()) {
        packet.offload.set_checksum(Checksum::Partial { start, offset });
    }
}

/// Where the transport header of a packet of `len` bytes starts and, from there, where its checksum stands that holds the
/// pseudo-header's sum. `head` are its first bytes.
#[inline]
fn find(head: &[u8], len: usize) -> Option<(u16, u16)> {
    let mut next = ethernet(head, 0);
    let mut found = None;
    for _ in 0..=TUNNELS {
        let Some(upper) = next.and_then(|next| upper(head, next, len)) else { break };
        let offset = match upper.protocol {
            TCP => Some(16_u16),
            UDP => Some(6),
            _ => None,
        };
        let waits = |offset: &u16| number(head, upper.at + usize::from(*offset)) == Some(upper.sum);
        found =
            offset.filter(waits).and_then(|offset| Some((u16::try_from(upper.at).ok()?, offset))).or(found);
        next = inside(head, &upper);
    }
    found
}

/// A header of a packet's: its EtherType, and where it begins.
#[derive(Clone, Copy)]
struct Named(u16, usize);

/// What an IP header carries.
struct Upper {
    protocol: u8,
    at: usize,
    /// The pseudo-header's sum.
    sum: u16,
}

/// What stands behind an Ethernet header and its tags.
#[inline]
fn ethernet(head: &[u8], at: usize) -> Option<Named> {
    let mut at = at + ADDRESSES;
    for _ in 0..TAGS {
        match number(head, at)? {
            0x8100 | 0x88a8 => at += usize::from(VLAN_TAG),
            _ => break,
        }
    }
    Some(Named(number(head, at)?, at + 2))
}

/// What an IP packet carries that ends where the whole packet does, since the sum goes to its end.
#[inline]
fn upper(head: &[u8], Named(kind, at): Named, len: usize) -> Option<Upper> {
    let ip = head.get(at..)?;
    let (addresses, protocol, header, total) = match (kind, ip) {
        // RFC 791: not a fragment, whose checksum is its first one's.
        (IPV4, [first, _, t0, t1, _, _, f0, f1, _, protocol, ..])
            if first >> 4 == 4 && (f0 & 0x3f, *f1) == (0, 0) =>
        {
            let total = usize::from(u16::from_be_bytes([*t0, *t1]));
            (ip.get(12..20)?, *protocol, usize::from(first & 15) * 4, total)
        }
        (IPV6, [first, _, _, _, l0, l1, next, ..]) if first >> 4 == 6 => {
            let (protocol, header) = extensions(ip, *next)?;
            (ip.get(8..40)?, protocol, header, 40 + usize::from(u16::from_be_bytes([*l0, *l1])))
        }
        _ => return None,
    };
    let length = total.checked_sub(header)?;
    if at + total != len {
        return None;
    }
    let words = addresses.as_chunks().0.iter().map(|word| u32::from(u16::from_be_bytes(*word)));
    let sum = words.sum::<u32>() + u32::from(protocol) + u32::try_from(length).ok()?;
    Some(Upper { protocol, at: at + header, sum: u16::try_from(fold(sum)).ok()? })
}

/// What stands behind the extension headers of IPv6 that change no checksum (RFC 8200), and where; a fragment header is none of these.
#[inline]
fn extensions(ip: &[u8], mut next: u8) -> Option<(u8, usize)> {
    const HOP_BY_HOP: u8 = 0;
    const ROUTING: u8 = 43;
    const DESTINATION: u8 = 60;
    let mut at = 40;
    for _ in 0..EXTENSIONS {
        if !matches!(next, HOP_BY_HOP | ROUTING | DESTINATION) {
            break;
        }
        let [following, words] = *ip.get(at..)?.first_chunk()?;
        (next, at) = (following, at + 8 * (usize::from(words) + 1));
    }
    Some((next, at))
}

/// What a tunnel carries.
#[inline]
fn inside(head: &[u8], upper: &Upper) -> Option<Named> {
    let at = upper.at;
    let named = |kind, at| if kind == ETHERNET { ethernet(head, at) } else { Some(Named(kind, at)) };
    match upper.protocol {
        IPV4_IN_IP => Some(Named(IPV4, at)),
        IPV6_IN_IP => Some(Named(IPV6, at)),
        // RFC 2784 and 2890: a checksum, a key and a number each have four bytes.
        GRE => {
            let flags = number(head, at)?;
            let more = (flags & 0xb000).count_ones() as usize;
            let rest = (flags & !0xb000 == 0).then(|| named(number(head, at + 2)?, at + 4 + 4 * more));
            rest.flatten()
        }
        UDP => match number(head, at + 2)? {
            VXLAN => ethernet(head, at + 16),
            GENEVE => {
                let options = usize::from(head.get(at + 8)? & 0x3f) * 4;
                named(number(head, at + 10)?, at + 16 + options)
            }
            _ => None,
        },
        _ => None,
    }
}

/// The two bytes there, in the order of the network.
#[inline]
fn number(head: &[u8], at: usize) -> Option<u16> {
    head.get(at..)?.first_chunk().map(|bytes| u16::from_be_bytes(*bytes))
}

/// The carries added in again (RFC 1071); of fewer than 2^16 words.
fn fold(sum: u32) -> u32 {
    let once = (sum & 0xffff) + (sum >> 16);
    (once & 0xffff) + (once >> 16)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Ethernet, IPv4 from 10.0.0.1 to 10.0.0.2 and 30 bytes of `protocol`, with `sum` in its checksum.
    fn ipv4(protocol: u8, sum: u16) -> Vec<u8> {
        let mut bytes = vec![2; 12];
        bytes.extend([8, 0, 0x45, 0, 0, 50, 0, 0, 0x40, 0, 64, protocol, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
        bytes.extend([7; 30]);
        let place = 34 + if protocol == TCP { 16 } else { 6 };
        bytes[place..place + 2].copy_from_slice(&sum.to_be_bytes());
        bytes
    }

    fn found(bytes: &[u8]) -> Option<(u16, u16)> {
        find(bytes, bytes.len())
    }

    #[test]
    fn the_pseudo_headers_sum_alone_is_no_checksum() {
        // 0x0a00 + 1 + 0x0a00 + 2 + protocol + 30.
        assert_eq!(found(&ipv4(TCP, 0x1427)), Some((34, 16)));
        assert_eq!(found(&ipv4(UDP, 0x1432)), Some((34, 6)));
        assert_eq!(found(&ipv4(UDP, 0)), None, "a datagram without a checksum");
        assert_eq!(found(&ipv4(TCP, 0x1428)), None);
        assert_eq!(found(&ipv4(1, 0x1422)), None);
        let mut tagged = ipv4(TCP, 0x1427);
        tagged.splice(12..12, [0x88, 0xa8, 0, 1, 0x81, 0, 0, 2]);
        assert_eq!(found(&tagged), Some((42, 16)));
        let mut ipv6 = vec![2; 12];
        ipv6.extend([0x86, 0xdd, 0x60, 0, 0, 0, 0, 8, UDP, 64]);
        ipv6.extend([[0xfe, 0x80], [0, 0], [0, 0], [0, 1]].concat().repeat(4));
        // Four times 0xfe80 and 1, 17 and 8, folded.
        ipv6.extend([0, 1, 0, 2, 0, 8, 0xfa, 0x20]);
        assert_eq!(found(&ipv6), Some((54, 6)));
    }

    /// Ethernet and IPv6 from fe80::1 to itself, with these headers behind it.
    fn ipv6(next: u8, behind: &[u8]) -> Vec<u8> {
        let mut bytes = vec![2; 12];
        bytes.extend([0x86, 0xdd, 0x60, 0, 0, 0, 0, u8::try_from(behind.len()).unwrap(), next, 64]);
        bytes.extend([&[0xfe, 0x80][..], &[0; 13], &[1]].concat().repeat(2));
        bytes.extend(behind);
        bytes
    }

    #[test]
    fn extension_headers_are_passed_over() {
        let options = [[60, 0, 1, 4, 0, 0, 0, 0], [TCP, 1, 1, 4, 0, 0, 0, 0], [0; 8]].concat();
        let mut tcp = [7; 20];
        // Twice 0xfe80 and 1, 6 and 20, folded: without the options.
        tcp[16..18].copy_from_slice(&[0xfd, 0x1d]);
        assert_eq!(found(&ipv6(0, &[&options[..], &tcp].concat())), Some((54 + 24, 16)));
        assert_eq!(found(&ipv6(0, &options[..20])), None, "cut short");
        assert_eq!(found(&ipv6(44, &[&options[..], &tcp].concat())), None, "a fragment");
        let endless = [0, 0, 1, 4, 0, 0, 0, 0].repeat(20);
        assert_eq!(found(&ipv6(0, &[&endless[..], &tcp].concat())), None);
    }

    /// The same tunnelled: an outer IPv4 packet of `protocol` with these headers before `inner`.
    fn tunnel(protocol: u8, headers: &[u8], inner: &[u8]) -> Vec<u8> {
        let mut bytes = vec![2; 12];
        let total = u16::try_from(20 + headers.len() + inner.len()).unwrap().to_be_bytes();
        bytes.extend([8, 0, 0x45, 0, total[0], total[1], 0, 0, 0x40, 0, 64, protocol, 0, 0]);
        bytes.extend([10, 0, 0, 1, 10, 0, 0, 2]);
        bytes.extend(headers);
        bytes.extend(inner);
        bytes
    }

    #[test]
    fn an_inner_checksum_is_found_in_the_tunnels_that_the_kernel_makes() {
        let frame = ipv4(TCP, 0x1427);
        let udp = |port: u16, rest: &[u8]| [&[0, 9][..], &port.to_be_bytes(), &[0; 4], rest].concat();
        let vxlan = udp(VXLAN, &[8, 0, 0, 0, 0, 0, 1, 0]);
        let geneve = udp(GENEVE, &[1, 0, 0x65, 0x58, 0, 0, 1, 0, 0, 0, 0, 0]);
        for (protocol, headers, inner) in [
            (UDP, &vxlan[..], &frame[..]),
            (UDP, &geneve, &frame),
            (UDP, &udp(GENEVE, &[0, 0, 8, 0, 0, 0, 1, 0]), &frame[14..]),
            (IPV4_IN_IP, &[], &frame[14..]),
            (IPV6_IN_IP, &[], &ipv6(UDP, &[0, 1, 0, 2, 0, 8, 0xfd, 0x1c])[14..]),
            (GRE, &[0, 0, 8, 0], &frame[14..]),
            (GRE, &[0x20, 0, 0x65, 0x58, 0, 0, 0, 1], &frame),
            (IPV4_IN_IP, &[], &tunnel(UDP, &vxlan, &frame)[14..]),
        ] {
            let packet = tunnel(protocol, headers, inner);
            let (start, _) = found(&packet).unwrap_or_else(|| panic!("{protocol} {headers:?}"));
            let from_end = if protocol == IPV6_IN_IP { 8 } else { 30 };
            assert_eq!(usize::from(start), packet.len() - from_end);
            for len in 0..packet.len() {
                assert_eq!(found(&packet[..len]), None, "{len}");
            }
        }
        // 0x0a00 + 1 + 0x0a00 + 2 + 17 + 8 + 8 + 64.
        let mut both = vxlan;
        both[6..8].copy_from_slice(&[0x14, 0x64]);
        assert_eq!(found(&tunnel(UDP, &both, &frame)), Some((84, 16)), "the innermost of two");
        assert_eq!(found(&tunnel(UDP, &both, &ipv4(TCP, 0x1428))), Some((34, 6)), "the tunnel's own");
        let deep =
            (0..3).fold(frame[14..].to_vec(), |inner, _| tunnel(IPV4_IN_IP, &[], &inner)[14..].to_vec());
        assert_eq!(found(&[&frame[..14], &deep].concat()), None, "too deep");
        assert_eq!(found(&tunnel(UDP, &udp(4790, &[8, 0, 0, 0, 0, 0, 1, 0]), &frame)), None, "no tunnel");
        assert_eq!(found(&tunnel(GRE, &[0, 1, 8, 0], &frame[14..])), None, "PPTP's");
    }

    #[test]
    fn what_is_cut_short_longer_or_a_fragment_is_left_alone() {
        let whole = ipv4(TCP, 0x1427);
        for len in 0..whole.len() {
            assert_eq!(found(&whole[..len]), None, "{len}");
            // The rest may lie in other frames.
            assert_eq!(find(&whole[..len], whole.len()).is_some(), len >= 52, "{len}");
        }
        assert_eq!(found(&[&whole[..], &[0]].concat()), None, "padding would be summed");
        for (place, value) in [(14, 0x65), (14, 0x4f), (16, 0xff), (17, 19), (20, 0x20), (21, 1)] {
            let mut other = whole.clone();
            other[place] = value;
            assert_eq!(found(&other), None, "byte {place}");
        }
    }
}
