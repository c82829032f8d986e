//! Where the headers of a packet lie: of one that was built as well as of one from a capture.

use bywash_wire::zerocopy::FromBytes;
use bywash_wire::{
    ETHERNET_HEADER, EtherType, ICMP_HEADER, IPV6_HEADER, Ipv4Header, Ipv6Header, Protocol, PseudoHeader,
    Summed, TCP_HEADER, TcpHeader, UDP_HEADER, VlanTag,
};

/// Bytes of an MPLS label stack entry (RFC 3032).
pub(super) const MPLS: usize = 4;

/// Which IP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Version {
    V4,
    V6,
}

/// The headers whose fields have names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Transport {
    Udp,
    Tcp,
    Icmp,
    Icmpv6,
}

/// Offsets from the packet's first byte.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Layers {
    /// The tags' control words, the outer one first.
    pub(super) vlans: Vec<usize>,
    /// Label stack entries, the outer one first.
    pub(super) mpls: Vec<usize>,
    pub(super) ip: Option<(Version, usize)>,
    /// A header that the one before it names, and that is not there whole.
    pub(super) cut: Option<&'static str>,
    /// What IP carries: where that begins.
    pub(super) inside: usize,
    pub(super) transport: Option<Transport>,
    /// What IP carries, and its checksum, which covers all of that.
    pub(super) summed: Option<(Protocol, Summed)>,
    /// What IP carries has a checksum that is not worked out here: its header says how much is covered, or nobody does, or it stands
    /// behind another header.
    pub(super) unsummed: Option<(Protocol, PseudoHeader)>,
    /// It is a piece of a datagram: no checksum but IPv4's own can be right or wrong.
    pub(super) is_fragment: bool,
    pub(super) payload: usize,
    /// Behind the payload: what follows is padding.
    pub(super) end: usize,
}

impl Layers {
    /// Finds the headers in a packet. What is not understood is payload.
    pub(super) fn of(packet: &[u8]) -> Self {
        let mut layers = Self {
            vlans: Vec::new(),
            mpls: Vec::new(),
            ip: None,
            cut: None,
            inside: packet.len().min(ETHERNET_HEADER),
            transport: None,
            summed: None,
            unsummed: None,
            is_fragment: false,
            payload: packet.len().min(ETHERNET_HEADER),
            end: packet.len(),
        };
        let mut at = layers.payload;
        let Some(&[a, b]) = packet.get(ETHERNET_HEADER - 2..at) else { return layers };
        let mut kind = EtherType(u16::from_be_bytes([a, b]));
        while let (true, Some(tag)) = (kind.is_vlan(), read::<VlanTag>(packet, at)) {
            layers.vlans.push(at);
            at += size_of::<VlanTag>();
            kind = EtherType(tag.kind.get());
        }
        layers.cut = kind.is_vlan().then_some("VLAN tag");
        if matches!(kind, EtherType::MPLS | EtherType::MPLS_MULTICAST) {
            layers.cut = Some("stack of MPLS labels");
            while let Some(entry) = read::<[u8; MPLS]>(packet, at) {
                layers.mpls.push(at);
                at += MPLS;
                // The bottom of the stack: what follows tells what it is by its first four bits (as routers see it).
                if entry[2] & 1 != 0 {
                    layers.cut = None;
                    kind = match packet.get(at).map(|byte| byte >> 4) {
                        Some(4) => EtherType::IPV4,
                        Some(6) => EtherType::IPV6,
                        _ => EtherType(0),
                    };
                    break;
                }
            }
        }
        layers.inside = at;
        layers.payload = at;
        match kind {
            EtherType::IPV4 => layers.read_ipv4(packet, at),
            EtherType::IPV6 => layers.read_ipv6(packet, at),
            _ => {}
        }
        layers
    }

    fn read_ipv4(&mut self, packet: &[u8], at: usize) {
        self.cut = Some("IPv4 header");
        let Some(header) = read::<Ipv4Header>(packet, at) else { return };
        let (length, total) = (header.header_length(), usize::from(header.total_length.get()));
        if packet[at] >> 4 != 4 || length < size_of::<Ipv4Header>() || at + length > packet.len() {
            return;
        }
        self.ip = Some((Version::V4, at));
        self.cut = None;
        self.is_fragment = header.is_fragment();
        // A length of 0, of a super-segment that was captured before it was cut, is none.
        self.end = if total < length { packet.len() } else { packet.len().min(at + total) };
        self.read_transport(packet, at + length, Protocol(header.protocol));
    }

    fn read_ipv6(&mut self, packet: &[u8], mut at: usize) {
        self.cut = Some("IPv6 header");
        let Some(header) = read::<Ipv6Header>(packet, at) else { return };
        self.ip = Some((Version::V6, at));
        self.cut = None;
        let length = usize::from(header.payload_length.get());
        at += IPV6_HEADER;
        self.end = if length == 0 { packet.len() } else { packet.len().min(at + length) };
        let mut next = Protocol(header.next_header);
        while matches!(next, Protocol::HOP_BY_HOP | Protocol::DESTINATION_OPTIONS) {
            let Some([following, length]) = read::<[u8; 2]>(packet, at) else {
                self.cut = Some("IPv6 extension header");
                break;
            };
            at += (usize::from(length) + 1) * 8;
            next = Protocol(following);
        }
        self.is_fragment = next == Protocol::FRAGMENT;
        self.read_transport(packet, at.min(self.end), next);
    }

    fn read_transport(&mut self, packet: &[u8], at: usize, protocol: Protocol) {
        self.inside = at;
        self.payload = at;
        if self.is_fragment {
            return;
        }
        let is_v6 = self.ip.is_some_and(|(version, _)| version == Version::V6);
        // A routing header has the address that the checksum behind it covers, and AH covers nearly all of the packet.
        if protocol == Protocol::AH || (is_v6 && protocol == Protocol::ROUTING) {
            self.unsummed = Some((protocol, PseudoHeader::Always));
            return;
        }
        let Some(summed) = Summed::of(protocol, is_v6) else { return };
        if !summed.whole || summed.pseudo == PseudoHeader::Either {
            self.unsummed = Some((protocol, summed.pseudo));
            return;
        }
        let (transport, least, length) = match protocol {
            Protocol::UDP => (Some(Transport::Udp), UDP_HEADER, UDP_HEADER),
            Protocol::TCP => {
                let length =
                    read::<TcpHeader>(packet, at).map_or(usize::MAX, |header| header.header_length());
                (Some(Transport::Tcp), TCP_HEADER, length)
            }
            Protocol::ICMP => (Some(Transport::Icmp), ICMP_HEADER, ICMP_HEADER),
            Protocol::ICMPV6 => (Some(Transport::Icmpv6), ICMP_HEADER, ICMP_HEADER),
            // As much as is needed of it.
            _ => (None, 0, summed.offset + 2),
        };
        if length >= least && at.saturating_add(length) <= self.end {
            self.transport = transport;
            self.summed = Some((protocol, summed));
            self.payload = at + length;
        } else {
            self.cut = Some(match transport {
                Some(Transport::Udp) => "UDP header",
                Some(Transport::Tcp) => "TCP header",
                Some(Transport::Icmp | Transport::Icmpv6) => "ICMP header",
                None => protocol.name().unwrap_or("header behind IP"),
            });
        }
    }

    /// Where IPv4's checksum lies.
    pub(super) fn ip_checksum(&self) -> Option<usize> {
        self.ip.filter(|(version, _)| *version == Version::V4).map(|(_, at)| at + 10)
    }

    /// Where the checksum over the payload lies.
    pub(super) fn checksum(&self) -> Option<usize> {
        self.summed.map(|(_, summed)| self.inside + summed.offset)
    }

    /// Where IP's length lies.
    pub(super) fn ip_length(&self) -> Option<usize> {
        self.ip.map(|(version, at)| at + if version == Version::V4 { 2 } else { 4 })
    }

    /// Where UDP's length lies.
    pub(super) fn udp_length(&self) -> Option<usize> {
        (self.transport == Some(Transport::Udp)).then_some(self.inside + 4)
    }

    /// Where the two addresses lie, and the bytes of one.
    pub(super) fn addresses(&self) -> Option<(usize, usize)> {
        self.ip.map(|(version, at)| if version == Version::V4 { (at + 12, 4) } else { (at + 8, 16) })
    }
}

fn read<T: FromBytes>(packet: &[u8], at: usize) -> Option<T> {
    T::read_from_prefix(packet.get(at..)?).ok().map(|(value, _)| value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whatever_bytes_are_looked_at_the_offsets_lie_within() {
        let mut state = 1;
        for round in 0..20_000_u64 {
            let mut packet: Vec<u8> =
                (0..round % 90).map(|_| super::super::series::mixed(&mut state).to_be_bytes()[0]).collect();
            // Types that lead further.
            let kinds: [[u8; 2]; 6] = [[8, 0], [0x86, 0xdd], [0x81, 0], [0x88, 0x47], [0x88, 0xa8], [8, 6]];
            let pick = usize::try_from(round % 6).unwrap();
            if let Some(kind) = packet.get_mut(12..14) {
                kind.copy_from_slice(&kinds[pick]);
            }
            if let Some(version) = packet.get_mut(14) {
                *version = [0x45, 0x60, 0x46][usize::try_from(round % 3).unwrap()];
            }
            let layers = Layers::of(&packet);
            assert!(layers.inside <= layers.payload && layers.payload <= packet.len(), "{layers:?}");
            assert!(layers.payload <= layers.end && layers.end <= packet.len(), "{layers:?} {packet:02x?}");
        }
    }
}
