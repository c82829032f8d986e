//! What stacks ask of the control, and what the control tells them.

use bywash_frame::Packet;

use crate::{Address, Flow, InterfaceId};

/// Something a stack leaves to the control. Whoever drives both hands it over: [`crate::Stack::requests`],
/// [`crate::Control::handle`].
#[derive(Debug)]
#[non_exhaustive]
pub enum Request {
    /// An ARP packet came in; it begins with the ARP header.
    Arp {
        /// Where it came in.
        interface: InterfaceId,
        /// The packet.
        packet: Packet,
    },
    /// An ICMP message for us came in, of either family; it begins with the IP header.
    Icmp {
        /// Where it came in.
        interface: InterfaceId,
        /// The packet.
        packet: Packet,
        /// Where in it the message begins.
        start: usize,
    },
    /// A packet could not be delivered: its sender is to hear of it by ICMP, if it may.
    Report {
        /// Where it came in, or where it was to go out.
        interface: InterfaceId,
        /// The packet, from its IP header.
        packet: Packet,
        /// What stood in the way.
        error: Unreachable,
    },
    /// Packets wait for a neighbour.
    Resolve {
        /// The link it is on.
        interface: InterfaceId,
        /// Its address.
        address: Address,
    },
    /// Packets are sent to a neighbour that has not been heard of for long.
    Used {
        /// The link it is on.
        interface: InterfaceId,
        /// Its address.
        address: Address,
    },
    /// A neighbour passes our packets on: an answer came back (RFC 4861, 7.3.1).
    Confirmed {
        /// The link it is on.
        interface: InterfaceId,
        /// Its address.
        address: Address,
    },
}

impl Request {
    /// The packet that it is about.
    pub fn packet(&self) -> Option<&Packet> {
        match self {
            Self::Arp { packet, .. } | Self::Icmp { packet, .. } | Self::Report { packet, .. } => {
                Some(packet)
            }
            Self::Resolve { .. } | Self::Used { .. } | Self::Confirmed { .. } => None,
        }
    }

    /// The same, for who does not hand it over after all.
    pub fn into_packet(self) -> Option<Packet> {
        match self {
            Self::Arp { packet, .. } | Self::Icmp { packet, .. } | Self::Report { packet, .. } => {
                Some(packet)
            }
            Self::Resolve { .. } | Self::Used { .. } | Self::Confirmed { .. } => None,
        }
    }
}

/// Why a packet could not be delivered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unreachable {
    /// No route leads there.
    Network,
    /// The host, or the router before it, does not answer.
    Host,
    /// Nobody here speaks the protocol.
    Protocol,
    /// Nobody here has the port.
    Port,
    /// It is too big for the next link, which takes so many bytes, and must not be cut.
    TooBig(u16),
    /// It has passed too many routers.
    TimeExceeded,
    /// Not all its fragments came in time.
    Reassembly,
    /// It comes from an address that means nothing beyond its link, and is for another link.
    Scope,
    /// A field of its headers is wrong or unknown.
    Parameter {
        /// The message's code.
        code: u8,
        /// Which byte, from the IP header on.
        pointer: u16,
        /// Its sender hears of it even if it was sent to many.
        always: bool,
    },
}

impl Unreachable {
    /// Whether it may be a passing trouble, on the way or at the other end. Linux tells of it only a program that asks for all
    /// (`IP_RECVERR`; `fatal` in its `icmp_err_convert`).
    pub fn may_pass(self) -> bool {
        match self {
            Self::Network | Self::Host | Self::TimeExceeded | Self::Reassembly | Self::Scope => true,
            Self::Protocol | Self::Port | Self::TooBig(_) | Self::Parameter { .. } => false,
        }
    }
}

/// What the control has learnt from ICMP about something a stack sent: for [`crate::Stack::notice`] of every stack,
/// for any may have the flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Notice {
    /// Whose packet it was.
    pub flow: Flow,
    /// TCP or UDP: the IP protocol number.
    pub protocol: u8,
    /// The sequence number in the packet, for TCP.
    pub sequence: u32,
    /// What happened to it.
    pub error: Unreachable,
}
