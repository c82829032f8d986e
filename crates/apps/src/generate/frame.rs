//! What the packets look like: as the user asks for it, and the headers that come of it.

use std::net::{IpAddr, Ipv4Addr};

use bywash_wire::zerocopy::IntoBytes;
use bywash_wire::zerocopy::byteorder::network_endian::U32;
use bywash_wire::{
    EtherType, EthernetHeader, IcmpHeader, Ipv4Header, Ipv6Header, Mac, Protocol, TcpFlags, TcpHeader,
    UdpHeader, VlanTag, icmpv4, icmpv6,
};

use super::field::Field;
use super::payload::Payload;
use super::plan::Plan;
use super::size::Sizes;

/// Most sources: as many as the last two bytes of an address tell apart.
pub const MOST_SOURCES: u32 = 1 << 16;

/// What the packets look like.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// Bytes of the frame with its FCS, as RFC 2544 counts: 64 is the shortest.
    pub size: Sizes,
    /// What they begin as: a whole packet without FCS, from a capture, say. Then the headers below do not count, but
    /// for what `fields` says of them.
    pub template: Option<Vec<u8>>,
    /// Ethernet destination.
    pub dst_mac: Mac,
    /// Ethernet source; the port's own when `None`.
    pub src_mac: Option<Mac>,
    /// VLAN numbers, the outer tag's first. The last tag is of 802.1Q, those around it of 802.1ad.
    pub vlans: Vec<u16>,
    /// MPLS labels, the outer one first.
    pub mpls: Vec<u32>,
    /// What Ethernet carries.
    pub network: Network,
    /// Source address; of many sources the first one's.
    pub src_ip: IpAddr,
    /// Destination address.
    pub dst_ip: IpAddr,
    /// IPv4's time to live, IPv6's hop limit.
    pub ttl: u8,
    /// IPv4's type of service, IPv6's traffic class.
    pub tos: u8,
    /// Source port; of many sources the first one's. ICMP's identifier.
    pub src_port: u16,
    /// Destination port.
    pub dst_port: u16,
    /// Flags of TCP.
    pub tcp_flags: TcpFlags,
    /// What follows the headers; the probe, or the template's own, when `None`.
    pub payload: Option<Payload>,
    /// How many sources there are: each packet is the next one's. Addresses and ports count up, the last two bytes of
    /// the address and the port each in its circle.
    pub sources: u32,
    /// Fields that have other values than the above, or several.
    pub fields: Vec<Field>,
    /// After so many packets, and their flows, all fields begin anew; when `None`, each goes its own way.
    pub flows: Option<u64>,
    /// Decides the order of random values.
    pub seed: u64,
}

/// What Ethernet carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Network {
    /// IPv4 or IPv6, by the addresses.
    Ip(Upper),
    /// The payload itself, under this type.
    Ethernet(u16),
}

/// What IP carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Upper {
    /// UDP.
    Udp,
    /// TCP.
    Tcp,
    /// Echo requests of ICMP or ICMPv6.
    Icmp,
    /// The payload itself, under this protocol number.
    Other(u8),
}

impl Default for Frame {
    fn default() -> Self {
        Self {
            size: Sizes::Natural,
            template: None,
            dst_mac: Mac([2, 0, 0, 0, 0, 2]),
            src_mac: None,
            vlans: Vec::new(),
            mpls: Vec::new(),
            network: Network::Ip(Upper::Udp),
            src_ip: Ipv4Addr::new(192, 168, 0, 1).into(),
            // The network that RFC 2544 set aside for measurements.
            dst_ip: Ipv4Addr::new(198, 18, 0, 1).into(),
            ttl: 64,
            tos: 0,
            src_port: 10_000,
            // Discard (RFC 863).
            dst_port: 9,
            tcp_flags: TcpFlags::ACK,
            payload: None,
            sources: 1,
            fields: Vec::new(),
            flows: None,
            seed: 1,
        }
    }
}

impl Frame {
    /// Checks what can be checked before a port is opened.
    ///
    /// # Errors
    /// What is wrong and what would be right.
    pub fn check(&self) -> Result<(), String> {
        Plan::new(self, None).map(drop)
    }

    /// The payload that is asked for.
    pub(super) fn payload(&self) -> &Payload {
        let usual = if self.template.is_some() { &Payload::Template } else { &Payload::Probe };
        self.payload.as_ref().unwrap_or(usual)
    }

    /// The headers, without lengths and checksums, sent from `src_mac` when the frame names no other.
    pub(super) fn headers(&self, src_mac: Mac) -> Vec<u8> {
        let mut types: Vec<u16> = Vec::new();
        for n in 1..=self.vlans.len() {
            let outer = n < self.vlans.len();
            types.push(if outer { EtherType::VLAN_SERVICE.0 } else { EtherType::VLAN.0 });
        }
        let carried = match self.network {
            Network::Ethernet(kind) => kind,
            Network::Ip(_) if self.src_ip.is_ipv4() => EtherType::IPV4.0,
            Network::Ip(_) => EtherType::IPV6.0,
        };
        types.push(if self.mpls.is_empty() { carried } else { EtherType::MPLS.0 });
        let source = self.src_mac.unwrap_or(src_mac);
        let ethernet = EthernetHeader { destination: self.dst_mac, source, kind: types[0].into() };
        let mut bytes = ethernet.as_bytes().to_vec();
        for (number, kind) in self.vlans.iter().zip(&types[1..]) {
            let tag = VlanTag { control: (number & 0x0fff).into(), kind: (*kind).into() };
            bytes.extend_from_slice(tag.as_bytes());
        }
        for (n, label) in self.mpls.iter().enumerate() {
            let bottom = u32::from(n + 1 == self.mpls.len());
            let entry = U32::new(label << 12 | bottom << 8 | u32::from(self.ttl));
            bytes.extend_from_slice(entry.as_bytes());
        }
        if let Network::Ip(upper) = self.network {
            self.write_ip(upper, &mut bytes);
        }
        bytes
    }

    fn write_ip(&self, upper: Upper, bytes: &mut Vec<u8>) {
        let is_v4 = self.src_ip.is_ipv4();
        let protocol = match upper {
            Upper::Udp => Protocol::UDP.0,
            Upper::Tcp => Protocol::TCP.0,
            Upper::Icmp if is_v4 => Protocol::ICMP.0,
            Upper::Icmp => Protocol::ICMPV6.0,
            Upper::Other(number) => number,
        };
        match (self.src_ip, self.dst_ip) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => {
                let mut header = Ipv4Header::new(src, dst, protocol, 0);
                // No length yet: that of each size is put in later.
                header.total_length = 0.into();
                header.time_to_live = self.ttl;
                header.traffic_class = self.tos;
                bytes.extend_from_slice(header.as_bytes());
            }
            (src, dst) => {
                let v6 = |address| match address {
                    IpAddr::V4(v4) => Ipv4Addr::to_ipv6_mapped(&v4),
                    IpAddr::V6(v6) => v6,
                };
                let mut header = Ipv6Header::new(v6(src), v6(dst), protocol, 0);
                header.hop_limit = self.ttl;
                header.set_traffic_class(self.tos);
                bytes.extend_from_slice(header.as_bytes());
            }
        }
        match upper {
            Upper::Udp => {
                let header = UdpHeader {
                    source_port: self.src_port.into(),
                    destination_port: self.dst_port.into(),
                    length: 0.into(),
                    checksum: 0.into(),
                };
                bytes.extend_from_slice(header.as_bytes());
            }
            Upper::Tcp => {
                let header =
                    TcpHeader::new((self.src_port, self.dst_port), 0, 0, self.tcp_flags, u16::MAX, 0);
                bytes.extend_from_slice(header.as_bytes());
            }
            Upper::Icmp => {
                let kind = if is_v4 { icmpv4::ECHO_REQUEST } else { icmpv6::ECHO_REQUEST };
                let rest = u32::from(self.src_port) << 16;
                let header = IcmpHeader { kind, code: 0, checksum: 0.into(), rest: rest.into() };
                bytes.extend_from_slice(header.as_bytes());
            }
            Upper::Other(_) => {}
        }
    }
}
