//! What the NIC sees in a frame: where its headers are, and whether their checksums are right.

use bywash_hw::ixgbe::desc::packet_type;
use bywash_wire::checksum::Sum;

/// Protocol numbers the NIC knows.
pub(super) const TCP: u8 = 6;
pub(super) const UDP: u8 = 17;
pub(super) const SCTP: u8 = 132;

/// Addresses of an IP packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Addresses {
    V4 { source: [u8; 4], destination: [u8; 4] },
    V6 { source: [u8; 16], destination: [u8; 16] },
}

/// What was found in a frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Parsed {
    /// EtherType behind the VLAN tag, if there is one.
    pub(super) ether_type: u16,
    /// Tag control information of the VLAN tag.
    pub(super) vlan: Option<u16>,
    pub(super) ip: Option<Addresses>,
    /// Where the transport header begins, with its protocol; none in fragments.
    pub(super) transport: Option<(u8, usize)>,
    pub(super) ports: Option<(u16, u16)>,
    /// TCP with SYN and no ACK.
    pub(super) syn: bool,
    /// Bits of the descriptor's packet type.
    pub(super) packet_type: u32,
    pub(super) ip_checksum_good: Option<bool>,
    pub(super) l4_checksum_good: Option<bool>,
    /// A UDP packet that has a checksum.
    pub(super) udp_checksum_present: bool,
}

fn word(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes([*bytes.get(at)?, *bytes.get(at + 1)?]))
}

/// Looks at a frame without its check sequence. `vlan_type` is the EtherType that tags have (VLNCTRL.VET).
pub(super) fn parse(frame: &[u8], vlan_type: u16) -> Parsed {
    let mut parsed = Parsed { ether_type: word(frame, 12).unwrap_or(0), ..Parsed::default() };
    let mut l3 = 14;
    if parsed.ether_type == vlan_type {
        parsed.vlan = word(frame, 14);
        parsed.ether_type = word(frame, 16).unwrap_or(0);
        l3 = 18;
    }
    let done = match parsed.ether_type {
        0x0800 => ipv4(frame, l3, &mut parsed),
        0x86dd => ipv6(frame, l3, &mut parsed),
        _ => None,
    };
    if let Some(end) = done {
        transport(frame, end, &mut parsed);
    }
    parsed
}

/// Returns where the packet ends, if it has a transport header to look at.
fn ipv4(frame: &[u8], l3: usize, parsed: &mut Parsed) -> Option<usize> {
    let header = frame.get(l3..l3 + 20)?;
    let length = usize::from(header[0] & 0xf) * 4;
    let total = usize::from(word(header, 2)?);
    if header[0] >> 4 != 4 || length < 20 || total < length || frame.len() < l3 + total {
        return None;
    }
    parsed.packet_type |= if length > 20 { packet_type::IPV4_OPTIONS } else { packet_type::IPV4 };
    parsed.ip_checksum_good = Some(Sum::new().bytes(&frame[l3..l3 + length]).checksum() == 0);
    parsed.ip = Some(Addresses::V4 {
        source: header[12..16].try_into().ok()?,
        destination: header[16..20].try_into().ok()?,
    });
    // A fragment, the first included, has no checksum that could be looked at alone.
    if word(header, 6)? & 0x3fff == 0 {
        parsed.transport = Some((header[9], l3 + length));
    }
    Some(l3 + total)
}

fn ipv6(frame: &[u8], l3: usize, parsed: &mut Parsed) -> Option<usize> {
    let header = frame.get(l3..l3 + 40)?;
    let end = l3 + 40 + usize::from(word(header, 4)?);
    if header[0] >> 4 != 6 || frame.len() < end {
        return None;
    }
    parsed.ip = Some(Addresses::V6 {
        source: header[8..24].try_into().ok()?,
        destination: header[24..40].try_into().ok()?,
    });
    let (mut next, mut at) = (header[6], l3 + 40);
    // Hop-by-hop and destination options and routing headers are skipped; a fragment header ends the search.
    while matches!(next, 0 | 43 | 60) {
        let extension = frame.get(at..end)?;
        next = *extension.first()?;
        at += 8 + usize::from(*extension.get(1)?) * 8;
    }
    parsed.packet_type |= if at > l3 + 40 { packet_type::IPV6_EXTENSIONS } else { packet_type::IPV6 };
    if next != 44 {
        parsed.transport = Some((next, at));
    }
    Some(end)
}

fn transport(frame: &[u8], end: usize, parsed: &mut Parsed) {
    let Some((protocol, at)) = parsed.transport else { return };
    let Some(segment) = frame.get(at..end) else { return };
    let needed = match protocol {
        TCP => 20,
        UDP => 8,
        SCTP => 12,
        _ => return,
    };
    if segment.len() < needed {
        return;
    }
    parsed.ports = word(segment, 0).zip(word(segment, 2));
    parsed.packet_type |= match protocol {
        TCP => packet_type::TCP,
        UDP => packet_type::UDP,
        _ => packet_type::SCTP,
    };
    parsed.syn = protocol == TCP && segment[13] & 0x12 == 0x02;
    parsed.udp_checksum_present = protocol == UDP && word(segment, 6) != Some(0);
    // A UDP checksum of zero is none. SCTP's CRC is not looked at by the model.
    if protocol == TCP || parsed.udp_checksum_present {
        parsed.l4_checksum_good =
            parsed.ip.map(|ip| pseudo(&ip, protocol, segment.len()).bytes(segment).checksum() == 0);
    }
}

/// The sum of the pseudo-header.
pub(super) fn pseudo(ip: &Addresses, protocol: u8, length: usize) -> Sum {
    let length = u32::try_from(length).unwrap_or(u32::MAX);
    match ip {
        Addresses::V4 { source, destination } => Sum::pseudo(source, destination, protocol, length),
        Addresses::V6 { source, destination } => Sum::pseudo(source, destination, protocol, length),
    }
}

/// The check sequence of a frame (IEEE 802.3, 3.2.9), as it follows on the wire.
pub(super) fn check_sequence(frame: &[u8]) -> [u8; 4] {
    let crc = frame.iter().fold(u32::MAX, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| crc >> 1 ^ if crc & 1 != 0 { 0xedb8_8320 } else { 0 })
    });
    (!crc).to_le_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_check_sequence_of_nine_digits() {
        assert_eq!(check_sequence(b"123456789"), 0xcbf4_3926_u32.to_le_bytes());
    }

    #[test]
    fn a_short_or_strange_frame_is_only_ethernet() {
        for length in 0..34 {
            let mut frame = vec![0x45; length];
            if length > 13 {
                frame[12..14].copy_from_slice(&[8, 0]);
            }
            assert_eq!(parse(&frame, 0x8100).ip, None, "{length}");
        }
    }
}
