//! Packets whose checksum nobody has filled in: what a kernel sends to a virtual interface of its own.
//!
//! The kernel leaves a TCP or UDP checksum to whoever takes a packet off the machine, and notes so beside the packet. An
//! XDP program sees the bytes and not the note: the field holds the sum of the pseudo-header alone. A packet that is
//! forwarded like that is dropped where it arrives. So the note is written again, by that sum. Where a right checksum
//! looks the same by chance, nothing is lost: to complete it gives the same one.

use bywash_frame::{Checksum, Packet};

use crate::virtio::{ADDRESSES, VLAN_TAG};

/// Most VLAN tags that are passed over.
const TAGS: usize = 2;

const TCP: u8 = 6;
const UDP: u8 = 17;

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
    let mut at = ADDRESSES;
    for _ in 0..TAGS {
        match head.get(at..at + 2)? {
            [0x81, 0x00] | [0x88, 0xa8] => at += usize::from(VLAN_TAG),
            _ => break,
        }
    }
    let (kind, ip) = head.get(at..)?.split_first_chunk()?;
    at += kind.len();
    let (addresses, protocol, header, total) = match (*kind, ip) {
        // RFC 791: not a fragment, whose checksum is its first one's.
        ([0x08, 0x00], [first, _, t0, t1, _, _, f0, f1, _, protocol, ..])
            if first >> 4 == 4 && (f0 & 0x3f, *f1) == (0, 0) =>
        {
            let total = usize::from(u16::from_be_bytes([*t0, *t1]));
            (ip.get(12..20)?, *protocol, usize::from(first & 15) * 4, total)
        }
        // RFC 8200, without extension headers.
        ([0x86, 0xdd], [first, _, _, _, l0, l1, protocol, ..]) if first >> 4 == 6 => {
            (ip.get(8..40)?, *protocol, 40, 40 + usize::from(u16::from_be_bytes([*l0, *l1])))
        }
        _ => return None,
    };
    let offset: u16 = match protocol {
        TCP => 16,
        UDP => 6,
        _ => return None,
    };
    // The sum goes to the packet's end, so nothing may follow.
    let length = total.checked_sub(header)?;
    if at + total != len {
        return None;
    }
    let field = ip.get(header + usize::from(offset)..)?.first_chunk()?;
    let words = addresses.as_chunks().0.iter().map(|word| u32::from(u16::from_be_bytes(*word)));
    let sum = words.sum::<u32>() + u32::from(protocol) + u32::try_from(length).ok()?;
    (u32::from(u16::from_be_bytes(*field)) == fold(sum)).then_some((u16::try_from(at + header).ok()?, offset))
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
