//! Interfaces: what a port is to the stack.

use bywash_wire::{Mac, TIME_TO_LIVE};

/// Number of an interface, given by [`crate::Control::add_interface`]: from 1 on, one after the other. It is the scope id of
/// link-local addresses on its link ([`std::net::SocketAddrV6::scope_id`]).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct InterfaceId(pub(crate) u16);

impl InterfaceId {
    /// The stack's own way back to itself.
    pub const LOOPBACK: Self = Self(0);
}

/// Number of a port: of a pair of queues that whoever drives the stack has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PortId(pub u16);

impl PortId {
    /// No port at all: where packets to ourselves go.
    pub(crate) const NONE: Self = Self(u16::MAX);
}

/// What a packet on a port begins with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Medium {
    /// An Ethernet header; neighbours are found by ARP and neighbour discovery.
    Ethernet {
        /// Our address.
        mac: Mac,
        /// The VLAN whose tagged packets this interface has; without, it has the untagged ones.
        vlan: Option<u16>,
    },
    /// The IP header: a tunnel, a tun device, a test.
    Ip,
}

/// What a port does for us when it sends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Offloads {
    /// It finishes TCP and UDP checksums (`Checksum::Partial`).
    pub checksum: bool,
    /// It cuts super-segments (TSO), and finishes the checksums of what it cuts.
    pub segmentation: bool,
}

/// An interface: a port, or one VLAN of a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interface {
    /// For people.
    pub name: String,
    /// Where its packets come from and go.
    pub port: PortId,
    /// What its packets begin with.
    pub medium: Medium,
    /// Bytes of the largest IP packet: 68 or more. IPv6 goes on with 1280 where it is less.
    pub mtu: u16,
    /// What the port does for us.
    pub offloads: Offloads,
}

impl Interface {
    /// The loopback interface. Its super-segments are never cut and never summed.
    pub(crate) fn loopback() -> Self {
        Self {
            name: "lo".into(),
            port: PortId::NONE,
            medium: Medium::Ip,
            mtu: 16_384,
            offloads: Offloads { checksum: true, segmentation: true },
        }
    }
}

/// What routers have said of a link for IPv6 (RFC 4861, 6.3.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LinkValues {
    /// Where it is less than the interface's own.
    pub(crate) mtu: u16,
    pub(crate) hop_limit: u8,
}

impl LinkValues {
    /// What counts before they have said anything.
    pub(crate) fn unsaid() -> Self {
        Self { mtu: u16::MAX, hop_limit: TIME_TO_LIVE }
    }
}
