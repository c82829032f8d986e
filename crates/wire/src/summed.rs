//! Where the Internet checksum of what IP carries lies, and what it covers: for whoever changes a packet.

use crate::{ICMP_CHECKSUM_OFFSET, Protocol, TCP_CHECKSUM_OFFSET};

/// Whether a checksum covers a pseudo-header, and with it the addresses of IP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PseudoHeader {
    /// It does not.
    Never,
    /// It does.
    Always,
    /// Some do and some don't: VRRP over IPv4, whose RFCs were read in two ways.
    Either,
}

/// A protocol's checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Summed {
    /// Bytes in front of it, from the protocol's header on.
    pub offset: usize,
    /// Whether it covers the addresses.
    pub pseudo: PseudoHeader,
    /// It covers all that IP carries. Else the header says how much.
    pub whole: bool,
}

impl Summed {
    /// The checksum of what IPv4 carries, or IPv6. `None` for a protocol that has none, that must not have one always (GRE), or that
    /// has another than the Internet's (SCTP). UDP over IPv4 may be without: then it is 0.
    pub const fn of(protocol: Protocol, is_v6: bool) -> Option<Self> {
        use PseudoHeader::{Always, Either, Never};
        let (offset, pseudo, whole) = match (protocol, is_v6) {
            (Protocol::TCP, _) => (TCP_CHECKSUM_OFFSET as usize, Always, true),
            (Protocol::UDP, _) => (6, Always, true),
            (Protocol::ICMP, false) => (ICMP_CHECKSUM_OFFSET, Never, true),
            (Protocol::ICMPV6, true) => (ICMP_CHECKSUM_OFFSET, Always, true),
            (Protocol::IGMP, false) => (2, Never, true),
            (Protocol::DCCP | Protocol::UDP_LITE, _) => (6, Always, false),
            // Version 2 leaves out what authenticates.
            (Protocol::OSPF, false) => (12, Never, false),
            (Protocol::OSPF, true) => (12, Always, true),
            // A register message is covered without the packet in it.
            (Protocol::PIM, false) => (2, Never, false),
            (Protocol::PIM, true) => (2, Always, false),
            (Protocol::VRRP, false) => (6, Either, true),
            (Protocol::VRRP, true) => (6, Always, true),
            (Protocol::MOBILITY, true) | (Protocol::HIP, _) => (4, Always, true),
            _ => return None,
        };
        Some(Self { offset, pseudo, whole })
    }
}
