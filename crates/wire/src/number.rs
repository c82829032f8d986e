//! The numbers by which one header names the next, each written once.

use std::fmt;

/// What an Ethernet frame carries: the two bytes after the addresses, in host byte order. Values from 0 to 1500 are a
/// length instead (IEEE 802.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EtherType(pub u16);

/// What an IPv4 or IPv6 packet carries: IANA's protocol numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Protocol(pub u8);

macro_rules! numbers {
    ($type:ident { $( $(#[$doc:meta])* $name:ident = $value:literal, $text:literal; )* }) => {
        impl $type {
            $( $(#[$doc])* pub const $name: Self = Self($value); )*

            /// Every number that has a name here, with that name.
            pub const NAMED: &[(Self, &str)] = &[$( (Self::$name, $text) ),*];

            /// Its name, when it has one here.
            pub fn name(self) -> Option<&'static str> {
                Self::NAMED.iter().find(|(number, _)| *number == self).map(|(_, name)| *name)
            }
        }
    };
}

numbers!(EtherType {
    /// IPv4, RFC 894.
    IPV4 = 0x0800, "IPv4";
    /// ARP, RFC 826.
    ARP = 0x0806, "ARP";
    /// RARP, RFC 903.
    RARP = 0x8035, "RARP";
    /// A customer's VLAN tag, IEEE 802.1Q.
    VLAN = 0x8100, "802.1Q";
    /// IPv6, RFC 2464.
    IPV6 = 0x86dd, "IPv6";
    /// Slow protocols: LACP, marker, OAM.
    SLOW = 0x8809, "slow protocols";
    /// MPLS unicast, RFC 3032.
    MPLS = 0x8847, "MPLS";
    /// MPLS multicast, RFC 3032.
    MPLS_MULTICAST = 0x8848, "MPLS multicast";
    /// PPPoE discovery, RFC 2516.
    PPPOE_DISCOVERY = 0x8863, "PPPoE discovery";
    /// PPPoE session, RFC 2516.
    PPPOE_SESSION = 0x8864, "PPPoE session";
    /// A provider's VLAN tag, IEEE 802.1ad.
    VLAN_SERVICE = 0x88a8, "802.1ad";
    /// LLDP, IEEE 802.1AB.
    LLDP = 0x88cc, "LLDP";
    /// The outer VLAN tag of switches older than IEEE 802.1ad.
    VLAN_OLD_OUTER = 0x9100, "QinQ";
});

impl EtherType {
    /// Whether this is a VLAN tag's: 802.1Q, 802.1ad, or the 0x9100 that came before 802.1ad.
    pub fn is_vlan(self) -> bool {
        matches!(self, Self::VLAN | Self::VLAN_SERVICE | Self::VLAN_OLD_OUTER)
    }
}

numbers!(Protocol {
    /// IPv6 hop-by-hop options, RFC 8200.
    HOP_BY_HOP = 0, "hop-by-hop";
    /// ICMP, RFC 792.
    ICMP = 1, "ICMP";
    /// IGMP, RFC 3376.
    IGMP = 2, "IGMP";
    /// IPv4 inside IP, RFC 2003.
    IPV4 = 4, "IPv4";
    /// TCP, RFC 9293.
    TCP = 6, "TCP";
    /// Cisco's IGRP.
    IGRP = 9, "IGRP";
    /// UDP, RFC 768.
    UDP = 17, "UDP";
    /// DCCP, RFC 4340.
    DCCP = 33, "DCCP";
    /// IPv6 inside IP, RFC 2473.
    IPV6 = 41, "IPv6";
    /// IPv6 routing header, RFC 8200.
    ROUTING = 43, "routing";
    /// IPv6 fragment header, RFC 8200.
    FRAGMENT = 44, "fragment";
    /// GRE, RFC 2784.
    GRE = 47, "GRE";
    /// ESP, RFC 4303.
    ESP = 50, "ESP";
    /// AH, RFC 4302.
    AH = 51, "AH";
    /// ICMPv6, RFC 4443.
    ICMPV6 = 58, "ICMPv6";
    /// Nothing follows, RFC 8200.
    NO_NEXT_HEADER = 59, "no next header";
    /// IPv6 destination options, RFC 8200.
    DESTINATION_OPTIONS = 60, "destination options";
    /// OSPF, RFC 2328.
    OSPF = 89, "OSPF";
    /// PIM, RFC 7761.
    PIM = 103, "PIM";
    /// VRRP, RFC 9568, and CARP.
    VRRP = 112, "VRRP";
    /// SCTP, RFC 9260.
    SCTP = 132, "SCTP";
    /// IPv6 mobility header, RFC 6275.
    MOBILITY = 135, "mobility";
    /// UDP-Lite, RFC 3828.
    UDP_LITE = 136, "UDP-Lite";
    /// Host Identity Protocol, RFC 7401.
    HIP = 139, "HIP";
    /// Shim6, RFC 5533.
    SHIM6 = 140, "Shim6";
});

impl fmt::Display for EtherType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => f.pad(name),
            None => write!(f, "0x{:04x}", self.0),
        }
    }
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => f.pad(name),
            None => write!(f, "protocol {}", self.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_number_and_each_name_stands_once() {
        let mut types: Vec<_> = EtherType::NAMED.iter().map(|(number, _)| number.0).collect();
        types.dedup();
        assert!(types.is_sorted(), "the table is in order of numbers");
        assert_eq!(types.len(), EtherType::NAMED.len());
        let mut protocols: Vec<_> = Protocol::NAMED.iter().map(|(number, _)| number.0).collect();
        protocols.dedup();
        assert!(protocols.is_sorted(), "the table is in order of numbers");
        assert_eq!(protocols.len(), Protocol::NAMED.len());
    }

    #[test]
    fn numbers_print_as_their_names_or_as_numbers() {
        assert_eq!(EtherType::IPV6.to_string(), "IPv6");
        assert_eq!(EtherType(0x1234).to_string(), "0x1234");
        assert_eq!(Protocol::TCP.to_string(), "TCP");
        assert_eq!(Protocol(200).to_string(), "protocol 200");
    }

    #[test]
    fn three_types_are_vlan_tags() {
        let tags: Vec<_> = (0..=u16::MAX).filter(|&number| EtherType(number).is_vlan()).collect();
        assert_eq!(tags, [0x8100, 0x88a8, 0x9100]);
    }
}
