//! What packetdrill's `--ip_version` decides: the addresses, the family of sockets, and the headers of packets.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use bywash_wire::checksum::Sum;
use bywash_wire::zerocopy::IntoBytes;
use bywash_wire::{IPV6_HEADER, Ipv4Header, Ipv6Header};

/// The port of both ends that packetdrill takes where it is not told.
pub(crate) const SERVER: u16 = 8080;
const LOCAL: Ipv4Addr = Ipv4Addr::new(192, 168, 17, 4);
const REMOTE: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
const LOCAL_V6: Ipv6Addr = Ipv6Addr::new(0xfd3d, 0x0a0b, 0x17d6, 0, 0, 0, 0, 1);
const REMOTE_V6: Ipv6Addr = Ipv6Addr::new(0xfd3d, 0xfa7b, 0xd17d, 0, 0, 0, 0, 1);

/// `--ip_version`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Network {
    V4,
    /// Packets of IPv4, and sockets of IPv6 to which its addresses are given within IPv6's.
    Mapped,
    V6,
}

/// What the header of IP says of a packet, and what is behind it.
pub(crate) struct Ip<'a> {
    pub(crate) class: u8,
    pub(crate) limit: u8,
    pub(crate) rest: &'a [u8],
}

impl Network {
    pub(crate) const ALL: [Self; 3] = [Self::V4, Self::Mapped, Self::V6];

    /// As `--ip_version` has it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::V4 => "ipv4",
            Self::Mapped => "ipv4-mapped-ipv6",
            Self::V6 => "ipv6",
        }
    }

    /// Whether a script is for it: packetdrill's `run_all.py` takes `...v4.pkt` and `...v6.pkt` for scripts of one protocol.
    pub(crate) fn plays(self, script: &str) -> bool {
        !script.ends_with(if self == Self::V6 { "v4.pkt" } else { "v6.pkt" })
    }

    /// The link: so much larger for IPv6 that segments are as long in both, and the same scripts hold.
    pub(crate) fn mtu(self) -> u16 {
        if self == Self::V6 { 1520 } else { 1500 }
    }

    pub(crate) fn domain(self) -> i32 {
        if self == Self::V4 { libc::AF_INET } else { libc::AF_INET6 }
    }

    /// What `-D` defines in `run_all.py`.
    pub(crate) fn definition(self, word: &str) -> Option<i32> {
        match word {
            "CMSG_LEVEL_IP" if self == Self::V4 => Some(libc::IPPROTO_IP),
            "CMSG_LEVEL_IP" => Some(libc::IPPROTO_IPV6),
            "CMSG_TYPE_RECVERR" if self == Self::V4 => Some(libc::IP_RECVERR),
            "CMSG_TYPE_RECVERR" => Some(libc::IPV6_RECVERR),
            _ => None,
        }
    }

    pub(crate) fn local(self) -> IpAddr {
        if self == Self::V6 { LOCAL_V6.into() } else { LOCAL.into() }
    }

    pub(crate) fn remote(self) -> IpAddr {
        if self == Self::V6 { REMOTE_V6.into() } else { REMOTE.into() }
    }

    /// An address as the program gives it and gets it: a `struct sockaddr_in` or `sockaddr_in6`.
    pub(crate) fn socket_address(self, address: IpAddr, port: u16) -> Vec<u8> {
        let family = u16::try_from(self.domain()).unwrap().to_ne_bytes();
        let address = match address {
            IpAddr::V4(v4) if self == Self::Mapped => v4.to_ipv6_mapped().into(),
            address => address,
        };
        match address {
            IpAddr::V4(v4) => [&family[..], &port.to_be_bytes(), &v4.octets(), &[0; 8]].concat(),
            IpAddr::V6(v6) => [&family[..], &port.to_be_bytes(), &[0; 4], &v6.octets(), &[0; 4]].concat(),
        }
    }

    /// A packet of ours, behind its header.
    pub(crate) fn parse(self, bytes: &[u8]) -> Result<Ip<'_>, String> {
        if self == Self::V6 {
            let ip = Ipv6Header::parse(bytes, bytes.len()).ok_or("no IPv6")?;
            if (ip.source(), ip.destination()) != (LOCAL_V6, REMOTE_V6) {
                return Err(format!("sent by {} to {}", ip.source(), ip.destination()));
            }
            return Ok(Ip { class: ip.traffic_class(), limit: ip.hop_limit, rest: &bytes[IPV6_HEADER..] });
        }
        let ip = Ipv4Header::parse(bytes, bytes.len()).map_err(|error| format!("{error:?}"))?;
        if (ip.source(), ip.destination()) != (LOCAL, REMOTE) {
            return Err(format!("sent by {} to {}", ip.source(), ip.destination()));
        }
        Ok(Ip { class: ip.traffic_class, limit: ip.time_to_live, rest: &bytes[ip.header_length()..] })
    }

    /// The header of a packet from one to the other.
    fn header(self, from: IpAddr, to: IpAddr, protocol: u8, length: usize) -> Vec<u8> {
        let length = u16::try_from(length).unwrap();
        match (from, to) {
            (IpAddr::V4(from), IpAddr::V4(to)) => {
                Ipv4Header::new(from, to, protocol, length).as_bytes().to_vec()
            }
            (IpAddr::V6(from), IpAddr::V6(to)) => {
                Ipv6Header::new(from, to, protocol, length).as_bytes().to_vec()
            }
            _ => unreachable!("both are of one protocol"),
        }
    }

    /// What we sent, as an ICMP error quotes it: of a segment of so many bytes, its header.
    pub(crate) fn quoted(self, tcp: &[u8], length: usize) -> Vec<u8> {
        [self.header(self.local(), self.remote(), 6, length), tcp.to_vec()].concat()
    }

    /// A packet to us, of a protocol whose checksum, of zeros still, is at `sum`.
    pub(crate) fn packet(self, protocol: u8, mut rest: Vec<u8>, sum: usize) -> Vec<u8> {
        let length = u32::try_from(rest.len()).unwrap();
        let pseudo = match (self.remote(), self.local()) {
            // ICMP of IPv4 has no pseudo-header.
            (IpAddr::V4(_), IpAddr::V4(_)) if protocol == 1 => Sum::new(),
            (IpAddr::V4(from), IpAddr::V4(to)) => Sum::pseudo(&from.octets(), &to.octets(), protocol, length),
            (IpAddr::V6(from), IpAddr::V6(to)) => Sum::pseudo(&from.octets(), &to.octets(), protocol, length),
            _ => unreachable!("both are of one protocol"),
        };
        let checksum = pseudo.bytes(&rest).checksum();
        rest[sum..sum + 2].copy_from_slice(&checksum.to_be_bytes());
        [self.header(self.remote(), self.local(), protocol, rest.len()), rest].concat()
    }
}
