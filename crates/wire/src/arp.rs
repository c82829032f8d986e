//! Address resolution for IPv4 over Ethernet (RFC 826).

use std::net::Ipv4Addr;

use zerocopy::byteorder::network_endian::U16;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::{EtherType, Mac};

/// An ARP packet for IPv4 over Ethernet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct ArpPacket {
    hardware: U16,
    protocol: U16,
    hardware_length: u8,
    protocol_length: u8,
    operation: U16,
    /// The sender's Ethernet address.
    pub sender_mac: Mac,
    sender: [u8; 4],
    /// The Ethernet address asked for (zero in a request).
    pub target_mac: Mac,
    target: [u8; 4],
}

/// What an ARP packet does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ArpOperation {
    /// Asks who has the target address.
    Request,
    /// Says that the sender has the sender address.
    Reply,
}

impl ArpPacket {
    /// The ARP packet at the front of `bytes`; `None` when it is cut short, or is not IPv4 over Ethernet, or does
    /// something else than ask and reply.
    pub fn parse(bytes: &[u8]) -> Option<(&Self, ArpOperation)> {
        let (packet, _) = Self::ref_from_prefix(bytes).ok()?;
        let ours = packet.hardware == 1
            && packet.protocol == EtherType::IPV4.0
            && packet.hardware_length == 6
            && packet.protocol_length == 4;
        let operation = match packet.operation.get() {
            1 => ArpOperation::Request,
            2 => ArpOperation::Reply,
            _ => return None,
        };
        ours.then_some((packet, operation))
    }

    /// A packet from its parts.
    pub fn new(operation: ArpOperation, sender: (Mac, Ipv4Addr), target: (Mac, Ipv4Addr)) -> Self {
        Self {
            hardware: 1.into(),
            protocol: EtherType::IPV4.0.into(),
            hardware_length: 6,
            protocol_length: 4,
            operation: match operation {
                ArpOperation::Request => 1,
                ArpOperation::Reply => 2,
            }
            .into(),
            sender_mac: sender.0,
            sender: sender.1.octets(),
            target_mac: target.0,
            target: target.1.octets(),
        }
    }

    /// The sender's IPv4 address.
    pub fn sender(&self) -> Ipv4Addr {
        self.sender.into()
    }

    /// The IPv4 address asked for.
    pub fn target(&self) -> Ipv4Addr {
        self.target.into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_packet_is_28_bytes_and_reads_back() {
        let me = (Mac([2, 0, 0, 0, 0, 1]), Ipv4Addr::new(10, 0, 0, 1));
        let packet = ArpPacket::new(ArpOperation::Request, me, (Mac::default(), Ipv4Addr::new(10, 0, 0, 2)));
        let bytes = packet.as_bytes();
        assert_eq!(bytes.len(), 28);
        assert_eq!(&bytes[..8], &[0, 1, 8, 0, 6, 4, 0, 1]);
        let (read, operation) = ArpPacket::parse(bytes).unwrap();
        assert_eq!(
            (read.sender(), read.target(), operation),
            (me.1, Ipv4Addr::new(10, 0, 0, 2), ArpOperation::Request)
        );
    }

    #[test]
    fn what_is_cut_short_or_not_ours_is_refused() {
        let me = (Mac([2, 0, 0, 0, 0, 1]), Ipv4Addr::new(10, 0, 0, 1));
        let packet = ArpPacket::new(ArpOperation::Reply, me, me);
        assert!(ArpPacket::parse(&packet.as_bytes()[..27]).is_none());
        for (at, value) in [(1, 2), (3, 1), (4, 8), (5, 16), (7, 3)] {
            let mut bytes = packet.as_bytes().to_vec();
            bytes[at] = value;
            assert!(ArpPacket::parse(&bytes).is_none(), "byte {at}");
        }
    }
}
