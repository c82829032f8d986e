//! What stacks read and the control thread writes: one immutable picture at a time.

use std::net::Ipv6Addr;
use std::sync::Arc;

use bywash_wire::{ETHERNET_HEADER, EtherType, IPV6_MTU, Mac, TIME_TO_LIVE};

use crate::interface::{LinkValues, Medium};
use crate::passing::{Kept, Passing};
use crate::routes::{Fib, Hop};
use crate::{Address, Interface, InterfaceId, Listen, ListenerId, PortId, Prefix, source};

/// Addresses, routes, neighbours, listeners and interfaces as they were at one moment. [`crate::Control`] makes a new one when
/// something has changed; a [`crate::Stack`] is handed it between batches.
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// Differs between any two snapshots of one control.
    pub(crate) generation: u32,
    pub(crate) interfaces: Arc<Vec<Interface>>,
    /// For each interface.
    pub(crate) links: Arc<Vec<LinkValues>>,
    pub(crate) addresses: Arc<Vec<Local>>,
    /// Our addresses, sorted: they are looked for in every packet.
    pub(crate) ours: Arc<Vec<Address>>,
    /// IPv6 groups that we hear, with their links, sorted.
    pub(crate) groups: Arc<Vec<Address>>,
    /// Our IPv4 addresses.
    pub(crate) ours_v4: Arc<Kept<u32>>,
    /// IPv4 addresses of everyone on our links.
    pub(crate) broadcasts: Arc<Kept<u32>>,
    pub(crate) fib: Fib,
    /// For each hop of `fib`, how packets get to its router.
    pub(crate) adjacent: Arc<Vec<Adjacent>>,
    pub(crate) passing_v4: Arc<Passing<u32>>,
    pub(crate) passing_v6: Arc<Passing<u128>>,
    /// Sorted: found faster than by a hash that nobody can steer.
    pub(crate) neighbours: Arc<Vec<((InterfaceId, Address), Known)>>,
    pub(crate) forwarding: bool,
    /// The same `Arc` while they do not change.
    pub(crate) listeners: Arc<Vec<(ListenerId, Listen)>>,
}

/// One of our addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Local {
    pub(crate) prefix: Prefix,
    pub(crate) interface: InterfaceId,
    /// New conversations should use another (RFC 4862, 5.5.4).
    pub(crate) deprecated: bool,
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
    /// No bytes in front of the IP header: of packets that wait for a neighbour on an interface.
    pub(crate) fn none(interface: InterfaceId) -> Self {
        Self { interface, ..Self::default() }
    }

    #[inline]
    pub(crate) fn header(&self) -> &[u8] {
        &self.header[..usize::from(self.length)]
    }

    /// The header without a VLAN tag, of a link that needs no other.
    #[inline]
    pub(crate) fn plain(&self) -> &[u8; ETHERNET_HEADER] {
        let [plain @ .., _, _, _, _] = &self.header;
        plain
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

/// A router on a link of ours, if it is known to be there. The one of a hop is looked at for every packet that is passed on:
/// what speaks against that is all in one number.
#[derive(Clone, Copy, Debug, Default)]
#[repr(align(32))]
pub(crate) struct Adjacent {
    /// Without a port when it is not known to be there.
    pub(crate) link: Link,
    /// The longest packet with an Ethernet header that it takes; 0 when it takes none, or when there is a VLAN tag to be put in.
    pub(crate) longest: usize,
}

impl Adjacent {
    fn new(link: Link, mtu: u16) -> Self {
        let plain = link.header().len() == ETHERNET_HEADER;
        Self { link, longest: if plain { ETHERNET_HEADER + usize::from(mtu) } else { 0 } }
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
        address.is_loopback()
            || match address.v4() {
                Some(v4) => self.ours_v4.holds(v4.to_bits()),
                None => self.ours.binary_search(&address).is_ok(),
            }
    }

    /// Whether an address means everyone on an interface's link.
    #[inline]
    pub fn is_broadcast(&self, address: Address) -> bool {
        address.v4().is_some_and(|v4| v4.is_broadcast() || self.broadcasts.holds(v4.to_bits()))
    }

    /// Whether packets to an IPv6 group are for us.
    pub(crate) fn is_our_group(&self, group: Address) -> bool {
        self.groups.binary_search(&group).is_ok()
    }

    /// Bytes that the link of a path takes in one packet.
    #[inline]
    pub(crate) fn mtu(&self, path: Path) -> u16 {
        let own = self.interface(path.interface).mtu;
        if path.next_hop.is_v4() {
            return own;
        }
        self.links[usize::from(path.interface.0)].mtu.min(own).max(IPV6_MTU)
    }

    /// Whether the first link of some destination takes, perhaps, only shorter packets than it did in an older picture.
    pub(crate) fn is_narrower_than(&self, old: &Self) -> bool {
        let narrower = |(new, old): (&Interface, &Interface)| new.mtu < old.mtu;
        let told = |(new, old): (&LinkValues, &LinkValues)| new.mtu < old.mtu;
        self.interfaces.iter().zip(&*old.interfaces).any(narrower)
            || self.links.iter().zip(&*old.links).any(told)
            || !self.fib.leads_as(&old.fib) && self.has_links_that_differ()
    }

    /// Whether one link, but for the loopback, takes longer packets than another.
    fn has_links_that_differ(&self) -> bool {
        let mut widths =
            self.interfaces.iter().zip(&*self.links).skip(1).map(|(own, said)| (own.mtu, said.mtu));
        widths.next().is_some_and(|first| widths.any(|other| other != first))
    }

    /// How many hops packets along a path may make: of IPv6 what routers say, of IPv4 always as many.
    #[inline]
    pub(crate) fn hop_limit(&self, path: Path, to: Address) -> u8 {
        if to.is_v4() { TIME_TO_LIVE } else { self.links[usize::from(path.interface.0)].hop_limit }
    }

    /// Where packets to a destination go.
    #[inline]
    pub(crate) fn path(&self, destination: Address) -> Option<Path> {
        if self.is_ours(destination) {
            return Some(Path { interface: InterfaceId::LOOPBACK, next_hop: destination });
        }
        if destination.has_zone() {
            // Its zone is its interface (RFC 4007, 7); a group needs no route, nor does a neighbour.
            let interface = destination.zone().filter(|zone| usize::from(zone.0) < self.interfaces.len())?;
            return Some(Path { interface, next_hop: destination });
        }
        let hop = self.fib.hop(self.fib.find(destination))?;
        // What is for a group, or for everyone, goes to all on the link and to no router (RFC 1112, 6.2).
        let to_router = hop.gateway.filter(|_| !destination.is_multicast() && !destination.is_broadcast());
        Some(Path { interface: hop.interface, next_hop: to_router.unwrap_or(destination) })
    }

    /// The next hop for packets to a destination, and the interface to it; `None` without a route.
    pub fn next_hop(&self, destination: Address) -> Option<(InterfaceId, Address)> {
        self.path(destination).map(|path| (path.interface, path.next_hop))
    }

    /// The address that packets of ours to a destination come from; `None` without a route.
    pub fn source_for(&self, destination: Address) -> Option<Address> {
        self.path(destination).and_then(|path| self.source(path, destination))
    }

    /// The same where the packets go by an interface to a next hop, also where the route to the destination leads elsewhere.
    pub fn source_by(
        &self,
        interface: InterfaceId,
        next_hop: Address,
        destination: Address,
    ) -> Option<Address> {
        self.source(Path { interface, next_hop }, destination)
    }

    /// What peers may connect to, on all stacks, in the order in which it was asked for.
    pub fn listeners(&self) -> &[(ListenerId, Listen)] {
        &self.listeners
    }

    /// Whether an address is one of ours.
    pub fn has_address(&self, address: Address) -> bool {
        self.is_ours(address)
    }

    /// Where a packet of others goes, which is for none of our addresses: its path and, if nothing is to be asked or
    /// told, its link.
    #[inline]
    pub(crate) fn onward(&self, destination: Address) -> Option<(Path, Option<&Link>)> {
        let number = self.fib.find(destination);
        let hop = self.fib.hop(number)?;
        let path = Path { interface: hop.interface, next_hop: hop.gateway.unwrap_or(destination) };
        let link = self.adjacent(number).map(|adjacent| &adjacent.link);
        Some((path, link.filter(|link| link.port != PortId::NONE)))
    }

    /// The router of a hop: one of a port if nothing is to be asked or told before packets go there.
    #[inline]
    pub(crate) fn adjacent(&self, hop: u32) -> Option<&Adjacent> {
        self.adjacent.get(hop as usize)
    }

    /// Finds the routes of IPv4 addresses, in host byte order: for each the number of a hop, or 0. Many at once, because
    /// their memory accesses overlap.
    #[inline]
    pub fn hops_v4(&self, addresses: &[u32], hops: &mut [u32]) {
        self.fib.find_many_v4(addresses, hops);
    }

    /// The same for IPv6 addresses.
    #[inline]
    pub fn hops_v6(&self, addresses: &[u128], hops: &mut [u32]) {
        self.fib.find_many_v6(addresses, hops);
    }

    /// Whether an IPv4 address can be an end of a packet that is passed on: one host's, and not ours.
    #[inline]
    pub(crate) fn is_passed_on(&self, address: u32) -> bool {
        self.passing_v4.holds(address)
    }

    /// The same for both ends of a packet.
    #[inline]
    pub(crate) fn are_passed_on(&self, source: [u8; 4], destination: [u8; 4]) -> bool {
        self.passing_v4.holds_both(source, destination)
    }

    /// Whether both ends of an IPv6 packet can be ends of one that is passed on, as nearly all are; others go the long way, which
    /// has all the rules.
    #[inline]
    pub(crate) fn are_passed_on_v6(&self, source: Ipv6Addr, destination: Ipv6Addr) -> bool {
        self.passing_v6.holds_both(source.octets(), destination.octets())
    }

    /// Finds anew how packets get to the routers of all routes.
    pub(crate) fn find_adjacent(&mut self) {
        let router = |hop: &Hop| {
            let path = Path { interface: hop.interface, next_hop: hop.gateway? };
            match self.reach(path) {
                Reach::Ready { link, stale: false } => Some(Adjacent::new(link, self.mtu(path))),
                Reach::Ready { .. } | Reach::Unresolved | Reach::Absent => None,
            }
        };
        self.adjacent = Arc::new(self.fib.hops().iter().map(|hop| router(hop).unwrap_or_default()).collect());
    }

    /// The source that the route to a destination names, if packets along a path take that route, and while it is in use.
    fn preferred(&self, path: Path, destination: Address) -> Option<Address> {
        let (interface, source) = self.fib.source(destination)?;
        // What has a zone goes by that, and takes no route.
        let takes_it = interface == path.interface && !destination.has_zone();
        (takes_it && self.is_ours(source)).then_some(source)
    }

    /// Our address for packets to a destination along a path: the one that the route names, which comes before all rules
    /// (RFC 6724, 5 lets a configuration override them), else the one that fits best.
    pub(crate) fn source(&self, path: Path, destination: Address) -> Option<Address> {
        if path.interface == InterfaceId::LOOPBACK {
            return Some(destination);
        }
        if let Some(preferred) = self.preferred(path, destination) {
            return Some(preferred);
        }
        let ours = self.addresses.iter().filter(|local| local.interface == path.interface);
        let own = source::choose(ours, path.next_hop, destination);
        if own.is_some_and(|own| source::reaches(own, destination)) {
            return own;
        }
        // RFC 6724, 4: what does not leave a link comes from an address of it.
        if !destination.is_v4() && (destination.is_multicast() || destination.has_zone()) {
            return own;
        }
        // An interface without an address of its own, or with none that means anything where the packet goes (RFC 6724, 5, rule 2),
        // speaks with one of another, if that means the same there.
        let others = self.addresses.iter().filter(|local| !local.prefix.address().has_zone());
        let other = source::choose(others, path.next_hop, destination);
        own.filter(|_| !other.is_some_and(|other| source::reaches(other, destination))).or(other)
    }

    /// The same, or the given one if packets along the path may have it: none that is not ours, and none on a wire that means
    /// nothing there (RFC 1122, 3.2.1.3 (g); RFC 4291, 2.5.3 and 2.5.6).
    pub(crate) fn source_or(
        &self,
        given: Option<Address>,
        path: Path,
        destination: Address,
    ) -> Option<Address> {
        let Some(given) = given else { return self.source(path, destination) };
        let inside = path.interface == InterfaceId::LOOPBACK;
        let there = !given.is_loopback() && given.zone().is_none_or(|zone| zone == path.interface);
        Some(given).filter(|given| self.is_ours(*given) && (inside || there))
    }

    /// How a packet gets to the next hop of a path.
    #[inline]
    pub(crate) fn reach(&self, path: Path) -> Reach {
        if path.interface == InterfaceId::LOOPBACK {
            // Its addresses may belong to a link: without it they could not be found again.
            let interface = path.next_hop.zone().unwrap_or(InterfaceId::LOOPBACK);
            return Reach::Ready { link: Link::none(interface), stale: false };
        }
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
        let key = (path.interface, path.next_hop);
        let Ok(place) = self.neighbours.binary_search_by_key(&key, |(key, _)| *key) else {
            return Reach::Unresolved;
        };
        match self.neighbours[place].1 {
            Known::At { mac, stale } => ready(mac, stale),
            Known::Absent => Reach::Absent,
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
