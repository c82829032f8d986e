//! What bytes on the wire mean.

mod arp;
pub mod checksum;
pub mod cut;
pub mod dns;
mod ethernet;
mod icmp;
mod ipv4;
mod ipv6;
mod ipv6_extension;
pub mod line;
mod mac;
pub mod mld;
pub mod ndp;
mod number;
mod summed;
mod tcp;
mod tcp_options;
mod udp;

pub use arp::{ArpOperation, ArpPacket};
pub use ethernet::{ETHERNET_HEADER, EthernetHeader, VlanTag};
pub use icmp::{ICMP_CHECKSUM_OFFSET, ICMP_HEADER, IcmpHeader, icmpv4, icmpv6};
pub use ipv4::{DONT_FRAGMENT, IPV4_HEADER, IPV4_MTU, Ipv4Error, Ipv4Header, MORE_FRAGMENTS, TIME_TO_LIVE};
pub use ipv6::{FRAGMENT_HEADER, FragmentHeader, IPV6_HEADER, IPV6_MTU, Ipv6Header};
pub use ipv6_extension::{ExtensionError, Next, Place, has_router_alert};
pub use mac::{Mac, MacError};
pub use number::{EtherType, Protocol};
pub use summed::{PseudoHeader, Summed};
pub use tcp::{TCP_CHECKSUM_OFFSET, TCP_HEADER, TCP_OPTIONS, TCP_URGENT_OFFSET, TcpFlags, TcpHeader};
pub use tcp_options::{FastOpen, FastOpenCookie, SACK_BLOCKS, STAMPS, TcpOptions, put_stamps};
pub use udp::{UDP_HEADER, UdpHeader};
pub use zerocopy;
