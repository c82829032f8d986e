//! What lists ask of a packet: its addresses and ports, behind up to two VLAN tags.
//!
//! Ports are those of TCP, UDP and SCTP in a first fragment, and over IPv6 directly behind its header: what `port` means in
//! an expression.

use std::net::IpAddr;

use crate::walk::Family;

/// Tags that are passed.
pub(super) const TAGS: [u16; 2] = [0x8100, 0x88a8];
/// How many of them.
pub(super) const MOST_TAGS: usize = 2;
/// Protocols that begin with two ports.
pub(super) const WITH_PORTS: [u8; 3] = [6, 17, 132];

/// A packet's addresses and ports, where it has them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Headers {
    /// Source and destination.
    pub addresses: Option<[IpAddr; 2]>,
    /// Source and destination.
    pub ports: Option<[u16; 2]>,
}

impl Headers {
    /// What a packet that begins with its Ethernet header has.
    #[inline]
    pub fn of(packet: &[u8]) -> Self {
        Self::read(packet).unwrap_or_default()
    }

    #[inline]
    fn read(packet: &[u8]) -> Option<Self> {
        let (family, at) = network(packet)?;
        let network = packet.get(at..)?;
        match family {
            Family::V4 => Self::v4(network),
            Family::V6 => Self::v6(network),
        }
    }

    fn v4(network: &[u8]) -> Option<Self> {
        let header: &[u8; 20] = network.first_chunk()?;
        let [.., a, b, c, d, e, f, g, h] = *header;
        let addresses = Some([IpAddr::from([a, b, c, d]), IpAddr::from([e, f, g, h])]);
        let is_later = u16::from_be_bytes([header[6], header[7]]) & 0x1fff != 0;
        let has_ports = WITH_PORTS.contains(&header[9]) && !is_later;
        let ports = has_ports.then(|| ports(network, usize::from(header[0] & 0xf) * 4)).flatten();
        Some(Self { addresses, ports })
    }

    fn v6(network: &[u8]) -> Option<Self> {
        let header: &[u8; 40] = network.first_chunk()?;
        let (source, destination) = (header[8..24].first_chunk::<16>()?, header[24..].first_chunk::<16>()?);
        let addresses = Some([IpAddr::from(*source), IpAddr::from(*destination)]);
        let ports = WITH_PORTS.contains(&header[6]).then(|| ports(network, 40)).flatten();
        Some(Self { addresses, ports })
    }
}

/// Which IP header the packet has, and where it begins.
#[inline]
pub(super) fn network(packet: &[u8]) -> Option<(Family, usize)> {
    let mut at = 12;
    let mut kind = half(packet, at)?;
    for _ in 0..MOST_TAGS {
        if !TAGS.contains(&kind) {
            break;
        }
        at += 4;
        kind = half(packet, at)?;
    }
    match kind {
        0x0800 => Some((Family::V4, at + 2)),
        0x86dd => Some((Family::V6, at + 2)),
        _ => None,
    }
}

fn ports(network: &[u8], at: usize) -> Option<[u16; 2]> {
    Some([half(network, at)?, half(network, at + 2)?])
}

fn half(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..)?.first_chunk().map(|raw| u16::from_be_bytes(*raw))
}
