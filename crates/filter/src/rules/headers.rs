//! What lists and limits ask of a packet: its addresses, protocol and ports, behind up to two VLAN tags.
//!
//! Ports are those of TCP, UDP and SCTP in a first fragment, and over IPv6 directly behind its header: what `port` means in
//! an expression.

use std::net::IpAddr;

use crate::plain::{FIRST_V4, NETWORK};
use crate::walk::Family;

/// Tags that are passed.
pub(super) const TAGS: [u16; 2] = [0x8100, 0x88a8];
/// How many of them.
pub(super) const MOST_TAGS: usize = 2;
/// Protocols that begin with two ports.
pub(super) const WITH_PORTS: [u8; 3] = [6, 17, 132];

/// In IPv4's fragment field: the offset, which later fragments have.
const LATER: u16 = 0x1fff;

/// A packet's addresses, protocol and ports, where it has them: in whole words, so that what was just written is quickly read again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Headers {
    /// Source and destination, each as its upper and lower half; an address of IPv4 in the lower one.
    addresses: [[u64; 2]; 2],
    /// Source and destination.
    ports: [u16; 2],
    has_ports: bool,
    /// The protocol, over IPv6 that of the first header behind it.
    protocol: u8,
    family: Option<Family>,
}

/// Bytes of an Ethernet header, an IPv4 header without options, and two ports.
const PLAIN: usize = NETWORK as usize + 24;

impl Headers {
    /// What a packet that begins with its Ethernet header has.
    #[inline]
    pub fn of(packet: &[u8]) -> Self {
        let mut headers = Self::default();
        headers.read(packet);
        headers
    }

    /// Which addresses they are; `None` where there are none.
    #[inline]
    pub fn family(&self) -> Option<Family> {
        self.family
    }

    /// Source and destination, each as its upper and lower half; an address of IPv4 in the lower one. All zero where there is
    /// none.
    #[inline]
    pub fn halves(&self) -> [[u64; 2]; 2] {
        self.addresses
    }

    /// The source.
    pub fn source(&self) -> Option<IpAddr> {
        self.addresses().map(|[source, _]| source)
    }

    /// Source and destination.
    pub fn addresses(&self) -> Option<[IpAddr; 2]> {
        let family = self.family?;
        Some(self.addresses.map(|[high, low]| match family {
            Family::V4 => IpAddr::V4(lower_bits(low).into()),
            Family::V6 => IpAddr::V6((u128::from(high) << 64 | u128::from(low)).into()),
        }))
    }

    /// Source and destination.
    #[inline]
    pub fn ports(&self) -> Option<[u16; 2]> {
        self.has_ports.then_some(self.ports)
    }

    /// The number of the protocol that IP names; over IPv6 that of an extension header, where there is one. 0 where there is no IP.
    #[inline]
    pub fn protocol(&self) -> u8 {
        self.protocol
    }

    /// Puts those of a packet in the place of what was there.
    #[inline(always)]
    pub(super) fn read(&mut self, packet: &[u8]) {
        match packet.first_chunk() {
            Some(head) if is_plain(head) => self.plain(head),
            _ => self.any(packet),
        }
    }

    #[inline(always)]
    fn plain(&mut self, head: &[u8; PLAIN]) {
        let [.., protocol, _, _, a, b, c, d, e, f, g, h, i, j, k, l] = *head;
        let [from, to] = [[a, b, c, d], [e, f, g, h]].map(|address| u64::from(u32::from_be_bytes(address)));
        self.addresses = [[0, from], [0, to]];
        self.ports = [[i, j], [k, l]].map(u16::from_be_bytes);
        self.has_ports = true;
        self.protocol = protocol;
        self.family = Some(Family::V4);
    }

    #[inline(never)]
    fn any(&mut self, packet: &[u8]) {
        *self = match network(packet) {
            Some((Family::V4, at)) => Self::v4(packet.get(at..).unwrap_or_default()),
            Some((Family::V6, at)) => Self::v6(packet.get(at..).unwrap_or_default()),
            None => None,
        }
        .unwrap_or_default();
    }

    fn v4(network: &[u8]) -> Option<Self> {
        let header: &[u8; 20] = network.first_chunk()?;
        let [.., a, b, c, d, e, f, g, h] = *header;
        let [from, to] = [[a, b, c, d], [e, f, g, h]].map(|address| u64::from(u32::from_be_bytes(address)));
        let is_later = u16::from_be_bytes([header[6], header[7]]) & LATER != 0;
        let has_some = WITH_PORTS.contains(&header[9]) && !is_later;
        let ports = has_some.then(|| ports(network, usize::from(header[0] & 0xf) * 4)).flatten();
        Some(Self::new(Family::V4, header[9], [[0, from], [0, to]], ports))
    }

    fn v6(network: &[u8]) -> Option<Self> {
        let header: &[u8; 40] = network.first_chunk()?;
        let (halves, _) = header[8..].as_chunks();
        let [a, b, c, d] = *halves.first_chunk()?;
        let [a, b, c, d] = [a, b, c, d].map(u64::from_be_bytes);
        let ports = WITH_PORTS.contains(&header[6]).then(|| ports(network, 40)).flatten();
        Some(Self::new(Family::V6, header[6], [[a, b], [c, d]], ports))
    }

    fn new(family: Family, protocol: u8, addresses: [[u64; 2]; 2], ports: Option<[u16; 2]>) -> Self {
        let (has_ports, ports) = (ports.is_some(), ports.unwrap_or_default());
        Self { addresses, ports, has_ports, protocol, family: Some(family) }
    }
}

/// Whether ports follow right behind an IPv4 header without options, and that right behind Ethernet's, as in nearly all
/// packets.
#[inline(always)]
fn is_plain(head: &[u8; PLAIN]) -> bool {
    starts_plainly(head)
        && u16::from_be_bytes([head[20], head[21]]) & LATER == 0
        && WITH_PORTS.contains(&head[23])
}

/// Whether IPv4 without options follows right behind Ethernet's header.
#[inline(always)]
pub(super) fn starts_plainly<const N: usize>(head: &[u8; N]) -> bool {
    [head[12], head[13]] == [8, 0] && head[14] == FIRST_V4
}

/// The address of IPv4 in a lower half.
#[inline]
pub(super) fn lower_bits(half: u64) -> u32 {
    u32::try_from(half & u64::from(u32::MAX)).unwrap_or(0)
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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Read without the short way, and not over something else.
    fn slowly(packet: &[u8]) -> Headers {
        let mut headers = Headers::default();
        headers.any(packet);
        headers
    }

    #[test]
    fn addresses_and_ports_are_read_behind_tags_and_options_and_no_ports_of_later_fragments() {
        let packet = |kind: &[u8], first: u8, fragment: [u8; 2], options: usize| {
            let mut packet =
                [&[0; 12][..], kind, &[first, 0, 0, 0, 0, 0], &fragment, &[64, 132, 0, 0]].concat();
            packet.extend([10, 0, 0, 1, 192, 0, 2, 1]);
            packet.extend(vec![0; options]);
            packet.extend([1, 2, 0, 53]);
            packet
        };
        let source = Some(IpAddr::from([10, 0, 0, 1]));
        let tagged: &[u8] = &[0x88, 0xa8, 0, 1, 0x81, 0, 0, 2, 8, 0];
        for (packet, ports) in [
            (packet(&[8, 0], 0x45, [0x40, 0], 0), Some([0x102, 53])),
            (packet(&[8, 0], 0x45, [0x20, 0], 0), Some([0x102, 53])),
            (packet(&[8, 0], 0x45, [0, 1], 0), None),
            (packet(&[8, 0], 0x47, [0, 0], 8), Some([0x102, 53])),
            (packet(tagged, 0x45, [0, 0], 0), Some([0x102, 53])),
        ] {
            let headers = Headers::of(&packet);
            assert_eq!((headers.source(), headers.ports()), (source, ports), "{packet:x?}");
            assert_eq!(headers.halves(), [[0, 0x0a00_0001], [0, 0xc000_0201]]);
        }
        let mut six = [&[0; 12][..], &[0x86, 0xdd, 0x60, 0, 0, 0, 0, 4, 17, 64]].concat();
        six.extend([0x11; 16].into_iter().chain([0x22; 16]).chain([0, 7, 0, 9]));
        let headers = Headers::of(&six);
        assert_eq!(headers.source(), Some(IpAddr::from([0x11; 16])));
        assert_eq!(headers.halves(), [[0x1111_1111_1111_1111; 2], [0x2222_2222_2222_2222; 2]]);
        assert_eq!((headers.family(), headers.ports()), (Some(Family::V6), Some([7, 9])));
        assert_eq!(Headers::of(&six[..50]), Headers::default());
    }

    proptest! {
        #[test]
        fn the_short_way_reads_the_same(
            before in prop::collection::vec(any::<u8>(), 60),
            kind in prop::sample::select(vec![[8, 0], [0x86, 0xdd], [0x81, 0], [8, 6]]),
            first in prop::sample::select(vec![0x45, 0x46, 0x60, 0x4f]),
            fragment in prop::sample::select(vec![[0, 0], [0x40, 0], [0x20, 0], [0, 1], [0x1f, 0xff]]),
            protocol in prop::sample::select(vec![6, 17, 132, 1, 5, 7]),
            len in 0_usize..60,
        ) {
            let mut packet = before.clone();
            packet[12..14].copy_from_slice(&kind);
            packet[14] = first;
            packet[20..22].copy_from_slice(&fragment);
            packet[23] = protocol;
            packet.truncate(len);
            let mut headers = Headers::of(&before);
            headers.read(&packet);
            prop_assert_eq!(headers, slowly(&packet));
        }
    }
}
