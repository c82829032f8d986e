//! ICMP for IPv4 (RFC 792) and for IPv6 (RFC 4443): the first eight bytes, and what the numbers mean.

use zerocopy::byteorder::network_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The eight bytes that every message begins with, in both families.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct IcmpHeader {
    /// What it is; see [`icmpv4`] and [`icmpv6`].
    pub kind: u8,
    /// More about what it is.
    pub code: u8,
    /// Checksum of the message (with the pseudo-header in IPv6).
    pub checksum: U16,
    /// Depends on the kind: identifier and number of an echo, the MTU, a pointer.
    pub rest: U32,
}

/// Bytes of the part that all messages have.
pub const ICMP_HEADER: usize = size_of::<IcmpHeader>();

/// Where in a message the checksum lies, in bytes.
pub const ICMP_CHECKSUM_OFFSET: usize = 2;

/// Kinds and codes of ICMP for IPv4.
pub mod icmpv4 {
    /// Echo reply.
    pub const ECHO_REPLY: u8 = 0;
    /// Destination unreachable.
    pub const UNREACHABLE: u8 = 3;
    /// Source quench (deprecated by RFC 6633).
    pub const SOURCE_QUENCH: u8 = 4;
    /// Redirect.
    pub const REDIRECT: u8 = 5;
    /// Echo request.
    pub const ECHO_REQUEST: u8 = 8;
    /// Time exceeded.
    pub const TIME_EXCEEDED: u8 = 11;
    /// Parameter problem.
    pub const PARAMETER_PROBLEM: u8 = 12;

    /// Unreachable: the network.
    pub const NETWORK: u8 = 0;
    /// Unreachable: the host.
    pub const HOST: u8 = 1;
    /// Unreachable: the protocol.
    pub const PROTOCOL: u8 = 2;
    /// Unreachable: the port.
    pub const PORT: u8 = 3;
    /// Unreachable: too big and not to be fragmented.
    pub const FRAGMENTATION_NEEDED: u8 = 4;

    /// Time exceeded: on the way.
    pub const IN_TRANSIT: u8 = 0;
    /// Time exceeded: while putting fragments together.
    pub const REASSEMBLY: u8 = 1;
}

/// Kinds and codes of ICMP for IPv6.
pub mod icmpv6 {
    /// Destination unreachable.
    pub const UNREACHABLE: u8 = 1;
    /// Packet too big.
    pub const PACKET_TOO_BIG: u8 = 2;
    /// Time exceeded.
    pub const TIME_EXCEEDED: u8 = 3;
    /// Parameter problem.
    pub const PARAMETER_PROBLEM: u8 = 4;
    /// Echo request; kinds from 128 on are no errors.
    pub const ECHO_REQUEST: u8 = 128;
    /// Echo reply.
    pub const ECHO_REPLY: u8 = 129;
    /// Router solicitation (RFC 4861).
    pub const ROUTER_SOLICITATION: u8 = 133;
    /// Router advertisement.
    pub const ROUTER_ADVERTISEMENT: u8 = 134;
    /// Neighbour solicitation.
    pub const NEIGHBOUR_SOLICITATION: u8 = 135;
    /// Neighbour advertisement.
    pub const NEIGHBOUR_ADVERTISEMENT: u8 = 136;
    /// Redirect.
    pub const REDIRECT: u8 = 137;
    /// A multicast router asks who listens (RFC 3810).
    pub const LISTENER_QUERY: u8 = 130;
    /// Version 2 of the answer to it.
    pub const LISTENER_REPORT: u8 = 143;

    /// Kinds below this are errors.
    pub const FIRST_INFORMATION: u8 = 128;

    /// Unreachable: no route.
    pub const NO_ROUTE: u8 = 0;
    /// Unreachable: the source means nothing beyond its link.
    pub const SCOPE: u8 = 2;
    /// Unreachable: the address.
    pub const ADDRESS: u8 = 3;
    /// Unreachable: the port.
    pub const PORT: u8 = 4;

    /// Parameter problem: a header field.
    pub const FIELD: u8 = 0;
    /// Parameter problem: an unknown next header.
    pub const NEXT_HEADER: u8 = 1;
    /// Parameter problem: an unknown option.
    pub const OPTION: u8 = 2;
    /// Parameter problem: a first fragment without all headers (RFC 7112, 5).
    pub const INCOMPLETE: u8 = 3;
}
