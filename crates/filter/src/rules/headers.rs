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
        let mut headers = Self::default();
        headers.read(packet);
        headers
    }

    /// Fills them in, when they are new, where they lie: what was just written in pieces is slow to be moved. What is not there
    /// stays empty.
    #[inline]
    pub(super) fn read(&mut self, packet: &[u8]) {
        let _ = match network(packet) {
            Some((Family::V4, at)) => self.v4(packet.get(at..).unwrap_or_default()),
            Some((Family::V6, at)) => self.v6(packet.get(at..).unwrap_or_default()),
            None => None,
        };
    }

    #[inline]
    fn v4(&mut self, network: &[u8]) -> Option<()> {
        let header: &[u8; 20] = network.first_chunk()?;
        let [.., a, b, c, d, e, f, g, h] = *header;
        self.addresses = Some([IpAddr::from([a, b, c, d]), IpAddr::from([e, f, g, h])]);
        let is_later = u16::from_be_bytes([header[6], header[7]]) & 0x1fff != 0;
        if WITH_PORTS.contains(&header[9]) && !is_later {
            self.ports = ports(network, usize::from(header[0] & 0xf) * 4);
        }
        Some(())
    }

    fn v6(&mut self, network: &[u8]) -> Option<()> {
        let header: &[u8; 40] = network.first_chunk()?;
        let (source, destination) = (header[8..24].first_chunk::<16>()?, header[24..].first_chunk::<16>()?);
        self.addresses = Some([IpAddr::from(*source), IpAddr::from(*destination)]);
        if WITH_PORTS.contains(&header[6]) {
            self.ports = ports(network, 40);
        }
        Some(())
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
    let &[a, b, c, d] = network.get(at..)?.first_chunk()?;
    Some([[a, b], [c, d]].map(u16::from_be_bytes))
}

fn half(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..)?.first_chunk().map(|raw| u16::from_be_bytes(*raw))
}
