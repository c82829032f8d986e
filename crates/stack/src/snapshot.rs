//! What stacks read and the control thread writes: one immutable picture at a time.

use std::collections::HashMap;
use std::sync::Arc;

use bywash_wire::{EtherType, Mac};

use crate::interface::Medium;
use crate::routes::Routes;
use crate::{Address, Interface, InterfaceId, PortId, Prefix};

/// Addresses, routes, neighbours and interfaces as they were at one moment. [`crate::Control`] makes a new one when
/// something has changed; a [`crate::Stack`] is handed it between batches.
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// Differs between any two snapshots of one control.
    pub(crate) generation: u32,
    pub(crate) interfaces: Arc<Vec<Interface>>,
    pub(crate) addresses: Arc<Vec<(Prefix, InterfaceId)>>,
    /// Our addresses, and those of everyone on our links, sorted: they are looked for in every packet.
    pub(crate) ours: Arc<Vec<Address>>,
    pub(crate) broadcasts: Arc<Vec<Address>>,
    pub(crate) routes: Arc<Routes>,
    pub(crate) neighbours: Arc<HashMap<(InterfaceId, Address), Known>>,
    pub(crate) forwarding: bool,
}

/// What is known of a neighbour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Known {
    /// Packets can be sent to it.
    At {
        mac: Mac,
        /// Nobody knows whether it still is there: say so when it is used.
        stale: bool,
    },
    /// It did not answer.
    Absent,
}

/// Where a packet is to go.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Path {
    pub(crate) interface: InterfaceId,
    pub(crate) next_hop: Address,
}

/// The bytes in front of the IP header, ready to be copied.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Link {
    pub(crate) port: PortId,
    pub(crate) interface: InterfaceId,
    header: [u8; 18],
    length: u8,
}

impl Default for Link {
    fn default() -> Self {
        Self { port: PortId::NONE, interface: InterfaceId::LOOPBACK, header: [0; 18], length: 0 }
    }
}

impl Link {
    #[inline]
    pub(crate) fn header(&self) -> &[u8] {
        &self.header[..usize::from(self.length)]
    }

    fn ethernet(interface: &Interface, id: InterfaceId, to: Mac, kind: EtherType) -> Self {
        let mut link = Self { port: interface.port, interface: id, ..Self::default() };
        if let Medium::Ethernet { mac, vlan } = interface.medium {
            link.header[..6].copy_from_slice(&to.0);
            link.header[6..12].copy_from_slice(&mac.0);
            link.length = 14;
            if let Some(vlan) = vlan {
                link.header[12..14].copy_from_slice(&EtherType::VLAN.0.to_be_bytes());
                link.header[14..16].copy_from_slice(&vlan.to_be_bytes());
                link.length = 18;
            }
            let end = usize::from(link.length);
            link.header[end - 2..end].copy_from_slice(&kind.0.to_be_bytes());
        }
        link
    }
}

/// What stands between a path and its packets.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Reach {
    /// Nothing. `stale`: say that the neighbour is used.
    Ready { link: Link, stale: bool },
    /// The neighbour is to be asked for first.
    Unresolved,
    /// The neighbour does not answer.
    Absent,
}

impl Snapshot {
    pub(crate) fn interface(&self, id: InterfaceId) -> &Interface {
        &self.interfaces[usize::from(id.0)]
    }

    /// The interface that packets of a port with or without a VLAN tag belong to.
    #[inline]
    pub(crate) fn interface_of(&self, port: PortId, tag: Option<u16>) -> Option<InterfaceId> {
        let found = self.interfaces.iter().position(|interface| {
            let vlan = match interface.medium {
                Medium::Ethernet { vlan, .. } => vlan,
                Medium::Ip => None,
            };
            interface.port == port && vlan == tag
        })?;
        u16::try_from(found).ok().map(InterfaceId)
    }

    /// Whether an address is one of ours.
    #[inline]
    pub(crate) fn is_ours(&self, address: Address) -> bool {
        address.is_loopback() || self.ours.binary_search(&address).is_ok()
    }

    /// Whether an address means everyone on an interface's link.
    #[inline]
    pub(crate) fn is_broadcast(&self, address: Address) -> bool {
        address.is_broadcast() || self.broadcasts.binary_search(&address).is_ok()
    }

    /// Where packets to a destination go.
    #[inline]
    pub(crate) fn path(&self, destination: Address) -> Option<Path> {
        if self.is_ours(destination) {
            return Some(Path { interface: InterfaceId::LOOPBACK, next_hop: destination });
        }
        let route = self.routes.find(destination)?;
        Some(Path { interface: route.interface, next_hop: route.gateway.unwrap_or(destination) })
    }

    /// Our address for packets along a path: one whose prefix holds the next hop, else the interface's first of the
    /// family.
    pub(crate) fn source(&self, path: Path) -> Option<Address> {
        if path.interface == InterfaceId::LOOPBACK {
            return Some(path.next_hop);
        }
        let mut ours = self.addresses.iter().filter(|(prefix, interface)| {
            *interface == path.interface && prefix.address().is_v4() == path.next_hop.is_v4()
        });
        let first = ours.clone().next()?;
        Some(ours.find(|(prefix, _)| prefix.contains(path.next_hop)).unwrap_or(first).0.address())
    }

    /// How a packet gets to the next hop of a path.
    #[inline]
    pub(crate) fn reach(&self, path: Path) -> Reach {
        let interface = self.interface(path.interface);
        let kind = if path.next_hop.is_v4() { EtherType::IPV4 } else { EtherType::IPV6 };
        let ready =
            |to, stale| Reach::Ready { link: Link::ethernet(interface, path.interface, to, kind), stale };
        if interface.medium == Medium::Ip {
            return ready(Mac::default(), false);
        }
        if let Some(group) = self.group(path.next_hop) {
            return ready(group, false);
        }
        match self.neighbours.get(&(path.interface, path.next_hop)) {
            Some(Known::At { mac, stale }) => ready(*mac, *stale),
            Some(Known::Absent) => Reach::Absent,
            None => Reach::Unresolved,
        }
    }

    /// A link to a given Ethernet address.
    pub(crate) fn link_to(&self, id: InterfaceId, mac: Mac, kind: EtherType) -> Link {
        Link::ethernet(self.interface(id), id, mac, kind)
    }

    /// The Ethernet address of a group (RFC 1112, 6.4; RFC 2464, 7).
    fn group(&self, address: Address) -> Option<Mac> {
        if self.is_broadcast(address) {
            return Some(Mac::BROADCAST);
        }
        let [.., a, b, c, d] = address.bits().to_be_bytes();
        match address.is_multicast() {
            true if address.is_v4() => Some(Mac([0x01, 0x00, 0x5e, b & 0x7f, c, d])),
            true => Some(Mac([0x33, 0x33, a, b, c, d])),
            false => None,
        }
    }
}
