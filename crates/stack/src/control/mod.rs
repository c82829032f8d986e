//! What all stacks share and one thread owns: interfaces, addresses, routes, neighbours, listeners; ARP, neighbour discovery, ICMP.

mod address;
mod arp;
mod autoconf;
mod entries;
mod icmp;
mod icmp6;
mod listeners;
mod mld;
mod ndp;
mod neighbour;
mod redirects;

use std::sync::Arc;
use std::time::Duration;

use bywash_frame::{Batch, Packet, Pool};
use bywash_wire::Mac;

pub use address::{AddressState, Claims, Lifetimes};
pub use autoconf::Origin;
pub use entries::Entry;
pub use listeners::Listen;
pub use neighbour::NeighbourState;

use crate::counters::ControlCounters;
use crate::interface::LinkValues;
use crate::ip::Identifications;
use crate::outbox::Outbox;
use crate::passing::{Kept, Passing};
use crate::path_mtu::Large;
use crate::routes::{Fib, Hop, Route, Routes};
use crate::snapshot::Local;
use crate::{
    Address, Interface, InterfaceId, ListenerId, Medium, Notice, PortId, Prefix, Request, Secret, Snapshot,
    Timestamp,
};
use address::{FOR_EVER, OurAddress};
use autoconf::Autoconf;
use icmp::Limit;
use mld::Listening;
use neighbour::Neighbours;
use redirects::Redirects;

/// How often, and how far apart, a new address is announced (RFC 5227, 1.1: ANNOUNCE_NUM, ANNOUNCE_INTERVAL).
const ANNOUNCEMENTS: u8 = 2;
const ANNOUNCE_INTERVAL: Duration = Duration::from_secs(2);
/// How often neighbours are told of another Ethernet address in IPv6 (RFC 4861, 10: MAX_NEIGHBOR_ADVERTISEMENT).
const ADVERTISEMENTS: u8 = 3;
/// Probes and announcements that go out at once, and how far apart such bursts are: of thousands of addresses they would fill
/// the queues on the way, and use up the frames.
const BURST: usize = 64;
const BURST_INTERVAL: Duration = Duration::from_millis(1);

/// Why the control refuses.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ControlError {
    /// There is no such interface.
    #[error("there is no interface {0}")]
    NoInterface(u16),
    /// The port has an interface for this VLAN already.
    #[error("interface {0} has these packets already: one interface for each port and VLAN")]
    Taken(String),
    /// The MTU is too small.
    #[error("an MTU of {0} is too small: IPv4 wants 68 bytes")]
    Mtu(u16),
    /// The address cannot be a host's.
    #[error("{0} cannot be a host's address: it is unspecified, reserved, a group's or everybody's")]
    NoHost(Address),
    /// The address is one of a host's own, inside of it.
    #[error("{0} is this host itself, and never on a wire: a port takes no address of 127.0.0.0/8, nor ::1")]
    Inside(Address),
    /// The address is there already.
    #[error("{0} is an address of ours already")]
    Ours(Address),
    /// The gateway is one of our own addresses.
    #[error("the gateway {0} is an address of ours: name that of another host")]
    OurGateway(Address),
    /// The MTU is too small for IPv6.
    #[error("an MTU of {0} is too small for IPv6, which wants 1280 bytes: raise the interface's")]
    Mtu6(u16),
    /// Only Ethernet has what routers' advertisements are for.
    #[error("interface {0} is no Ethernet: give it its addresses and routes by hand")]
    NoEthernet(String),
    /// What leads to ourselves needs no route.
    #[error("{0} is this host itself: no route leads there")]
    Loopback(Prefix),
    /// There is such a route already.
    #[error("there is a route to {0} with metric {1} already: replace it, or add one with another metric")]
    RouteExists(Prefix, u32),
    /// There is no such route to be changed.
    #[error("there is no route to {0} with metric {1} to be changed: add or replace it")]
    NoRoute(Prefix, u32),
    /// The neighbour is known already.
    #[error("{0} is a neighbour that is known already: replace it")]
    NeighbourExists(Address),
    /// There is no such neighbour to be changed.
    #[error("{0} is no neighbour that is known: add or replace it")]
    NoNeighbour(Address),
    /// The Ethernet address is a group's, or nobody's.
    #[error("{0} is not the Ethernet address of one station")]
    NoStation(Mac),
    /// The gateway is not on a link of ours, or not of the family of the route's prefix.
    #[error(
        "the gateway {0} is on no link of that interface, or of the other family: add an address whose prefix holds it, or a route to it"
    )]
    Gateway(Address),
    /// A route's packets cannot come from that address.
    #[error(
        "packets by that route cannot come from {0}: it is no address of ours, or one of another link or family"
    )]
    Source(Address),
}

/// Owner of everything that stacks only read. It does no I/O: packets, requests and time are handed to it.
#[derive(Debug)]
pub struct Control {
    interfaces: Vec<Interface>,
    /// For each interface.
    links: Vec<LinkValues>,
    addresses: Vec<OurAddress>,
    autoconf: Autoconf,
    listening: Listening,
    /// With it, a stranger cannot foresee the numbers of what may be cut and of probes, nor how many errors are sent.
    secret: Secret,
    identifications: Identifications,
    /// Where echo replies of IPv6 went.
    large: Large,
    routes: Routes,
    redirects: Redirects,
    neighbours: Neighbours,
    forwarding: bool,
    listeners: Arc<Vec<(ListenerId, Listen)>>,
    /// Counts them.
    last_listener: u32,
    changed: bool,
    /// Announcements still to be sent: when, for which interface, for which address, how many.
    announcements: Vec<(Timestamp, InterfaceId, Address, u8)>,
    /// Nothing is due before, as long as nothing is asked of it.
    rests_until: Timestamp,
    outbox: Outbox,
    notices: Vec<Notice>,
    /// Of echo replies, of errors, and of those about the size of packets: who asks for many of the ones must not keep others
    /// from the others.
    replies: Limit,
    errors: Limit,
    too_big: Limit,
    /// Times one of the two was asked.
    asked_for_errors: u64,
    counters: ControlCounters,
}

impl Control {
    /// A control with the loopback interface, and nothing else. `random`: see [`crate::Stack::new`].
    pub fn new(random: [u8; 16]) -> Self {
        let interfaces = vec![Interface::loopback()];
        let links = vec![LinkValues::unsaid()];
        let snapshot = Snapshot {
            generation: 0,
            interfaces: Arc::new(interfaces.clone()),
            links: Arc::new(links.clone()),
            addresses: Arc::default(),
            ours: Arc::default(),
            groups: Arc::default(),
            ours_v4: Arc::default(),
            broadcasts: Arc::default(),
            fib: Fib::default(),
            adjacent: Arc::default(),
            passing_v4: Arc::default(),
            passing_v6: Arc::default(),
            neighbours: Arc::default(),
            forwarding: false,
            listeners: Arc::default(),
        };
        Self {
            interfaces,
            links,
            addresses: Vec::new(),
            autoconf: Autoconf::default(),
            listening: Listening::default(),
            secret: Secret::new(random),
            identifications: Identifications::default(),
            large: Large::default(),
            routes: Routes::default(),
            redirects: Redirects::default(),
            neighbours: Neighbours::default(),
            forwarding: false,
            listeners: Arc::default(),
            last_listener: 0,
            changed: false,
            announcements: Vec::new(),
            rests_until: Timestamp::ZERO,
            outbox: Outbox::new(Arc::new(snapshot)),
            notices: Vec::new(),
            replies: Limit::default(),
            errors: Limit::default(),
            too_big: Limit::default(),
            asked_for_errors: 0,
            counters: ControlCounters::default(),
        }
    }

    /// Adds an interface.
    ///
    /// # Errors
    /// [`ControlError::Taken`], [`ControlError::Mtu`].
    pub fn add_interface(&mut self, interface: Interface) -> Result<InterfaceId, ControlError> {
        let same = |old: &&Interface| old.port == interface.port && vlan(old) == vlan(&interface);
        if let Some(old) = self.interfaces.iter().find(same) {
            return Err(ControlError::Taken(old.name.clone()));
        }
        if interface.mtu < bywash_wire::IPV4_MTU {
            return Err(ControlError::Mtu(interface.mtu));
        }
        let id = u16::try_from(self.interfaces.len()).map_err(|_| ControlError::NoInterface(u16::MAX))?;
        self.links.push(LinkValues::unsaid());
        if let Some(mac) = mac_of(&interface) {
            self.neighbours.add_ours(mac);
        }
        self.interfaces.push(interface);
        self.changed = true;
        Ok(InterfaceId(id))
    }

    /// Tells how long IP packets on an interface may be by now. IPv6 goes on with packets of 1280 bytes where that is less: no link
    /// may carry less (RFC 8200, 5). Connections whose segments have become too long send them again, shorter.
    ///
    /// # Errors
    /// [`ControlError::NoInterface`], [`ControlError::Mtu`].
    pub fn set_mtu(&mut self, id: InterfaceId, mtu: u16) -> Result<(), ControlError> {
        self.check(id)?;
        if mtu < bywash_wire::IPV4_MTU {
            return Err(ControlError::Mtu(mtu));
        }
        let interface = &mut self.interfaces[usize::from(id.0)];
        self.changed |= interface.mtu != mtu;
        interface.mtu = mtu;
        Ok(())
    }

    /// Tells which Ethernet address an interface has by now. Its addresses stay, also those that were made of the old one, unless
    /// another station has them; and everyone on the link is told where they are (RFC 5227, 2.3; RFC 4861, 7.2.6).
    ///
    /// # Errors
    /// [`ControlError::NoInterface`], [`ControlError::NoEthernet`], [`ControlError::NoStation`].
    pub fn set_mac(&mut self, now: Timestamp, id: InterfaceId, mac: Mac) -> Result<(), ControlError> {
        self.check(id)?;
        let interface = &mut self.interfaces[usize::from(id.0)];
        let Medium::Ethernet { mac: ours, .. } = &mut interface.medium else {
            return Err(ControlError::NoEthernet(interface.name.clone()));
        };
        if mac.is_multicast() || mac == Mac::default() {
            return Err(ControlError::NoStation(mac));
        }
        let old = std::mem::replace(ours, mac);
        if old != mac {
            self.stir();
            self.neighbours.change_ours(old, mac);
            self.replace_duplicate(now, id, old);
            self.announce_all(now, id);
            self.changed = true;
        }
        Ok(())
    }

    /// Whether packets for others are passed on. Off at first (RFC 1122, 3.1). A router takes no advice from other
    /// routers (RFC 4861, 6.3.4 and 8.3 are for hosts).
    pub fn set_forwarding(&mut self, on: bool) {
        self.forwarding = on;
        self.changed = true;
        if on {
            self.forget_routers(|_| true);
            self.forget_redirects(|_| true);
        }
    }

    /// All interfaces; the first is the loopback.
    pub fn interfaces(&self) -> impl Iterator<Item = (InterfaceId, &Interface)> {
        (0..).map(InterfaceId).zip(&self.interfaces)
    }

    /// All addresses, and whether they are in use.
    pub fn addresses(&self) -> impl Iterator<Item = (Prefix, InterfaceId, AddressState)> {
        self.addresses.iter().map(|our| (our.prefix, our.interface, our.state))
    }

    /// All routes, the longest prefixes first.
    pub fn routes(&self) -> impl Iterator<Item = &Route> {
        self.routes.iter()
    }

    /// All neighbours: link, address, Ethernet address, state.
    pub fn neighbours(&self) -> impl Iterator<Item = (InterfaceId, Address, Mac, NeighbourState)> {
        self.neighbours.iter().map(|(key, neighbour)| (key.0, key.1, neighbour.mac, neighbour.state))
    }

    /// Times another station was heard to claim an address of ours: [`Control::claims`] of all addresses there were.
    pub fn conflicts(&self) -> u64 {
        self.counters.address_conflicts
    }

    /// What it has heard and said.
    pub fn counters(&self) -> ControlCounters {
        ControlCounters {
            neighbours_failed: self.neighbours.failed,
            no_memory: self.counters.no_memory + self.outbox.dropped,
            ..self.counters.clone()
        }
    }

    /// The present picture. It is the same `Arc` while nothing changes.
    pub fn snapshot(&mut self, pool: &mut Pool) -> &Arc<Snapshot> {
        self.publish(pool);
        &self.outbox.snapshot
    }

    #[inline]
    fn publish(&mut self, pool: &mut Pool) {
        if self.changed || self.neighbours.changed {
            self.publish_changes(pool);
        }
    }

    #[cold]
    fn publish_changes(&mut self, pool: &mut Pool) {
        self.choose_routers();
        self.forget_unreachable();
        let old = &self.outbox.snapshot;
        let known = self.neighbours.known();
        let mut new = Snapshot { generation: old.generation.wrapping_add(1), ..Snapshot::clone(old) };
        if self.changed {
            new.interfaces = Arc::new(self.interfaces.clone());
            new.links = Arc::new(self.links.clone());
            let usable: Vec<Local> = self.addresses.iter().filter_map(OurAddress::usable).collect();
            new.ours = sorted(usable.iter().map(|local| local.prefix.address()));
            let bits = |address: Address| address.v4().map(std::net::Ipv4Addr::to_bits);
            let ours = usable.iter().filter_map(|local| bits(local.prefix.address()));
            let broadcasts = usable.iter().filter_map(|local| local.prefix.broadcast().and_then(bits));
            new.passing_v4 = Arc::new(Passing::<u32>::but_for(ours.clone().chain(broadcasts.clone())));
            // Those of one link are no packet's that is passed on.
            let ours_v6 = new.ours.iter().filter(|address| !address.is_v4() && !address.has_zone());
            new.passing_v6 = Arc::new(Passing::<u128>::but_for(ours_v6.map(|address| address.bits())));
            (new.ours_v4, new.broadcasts) = (Arc::new(Kept::of(ours)), Arc::new(Kept::of(broadcasts)));
            new.addresses = Arc::new(usable);
            new.groups = sorted(self.groups());
            new.fib = self.routes.fib();
            let gateway = |hop: &Hop| hop.gateway.map(|gateway| (hop.interface, gateway));
            self.neighbours.set_gateways(new.fib.hops().iter().filter_map(gateway).collect());
            new.forwarding = self.forwarding;
            new.listeners = self.listeners.clone();
        }
        new.neighbours = Arc::new(known);
        new.find_adjacent();
        self.changed = false;
        self.neighbours.told();
        self.stir();
        self.outbox.update(&Arc::new(new), pool);
    }

    /// Does what a stack asks for. What that changes of neighbours is in the next snapshot: one for all requests of a turn, for
    /// each is a copy of all neighbours.
    pub fn handle(&mut self, now: Timestamp, request: Request, pool: &mut Pool) {
        self.stir();
        if self.changed {
            self.publish(pool);
        }
        match request {
            Request::Arp { interface, packet } => self.arp(now, interface, packet, pool),
            Request::Icmp { interface, packet, start } => self.icmp(now, interface, packet, start, pool),
            Request::Report { interface, packet, error } => self.report(now, interface, packet, error, pool),
            Request::Resolve { interface, address } => {
                if let Some(question) = self.neighbours.resolve(now, (interface, address)) {
                    self.ask(question, pool);
                }
            }
            Request::Used { interface, address } => self.neighbours.used(now, (interface, address)),
            Request::Confirmed { interface, address } => self.neighbours.confirmed(now, (interface, address)),
        }
        self.own_requests(now, pool);
    }

    /// Lets time pass: questions are asked again, entries age.
    pub fn advance(&mut self, now: Timestamp, pool: &mut Pool) {
        // Once with every turn of a worker, in nearly all of which there is nothing.
        if now < self.rests_until && !self.changed && !self.neighbours.changed {
            return;
        }
        self.outbox.forget_told(now);
        self.outbox.look_at_lines(now, pool);
        self.publish(pool);
        self.use_unclaimed(now);
        // Before questions: a switch that has not heard of a group keeps the answers away (RFC 4862, 5.4.2).
        self.advance_listening(now, pool);
        let left = pool.at_hand(BURST);
        let left = left - self.advance_addresses(now, left, pool);
        self.advance_autoconf(now, pool);
        self.advance_redirects(now);
        self.publish(pool);
        for question in self.neighbours.advance(now) {
            self.ask(question, pool);
        }
        self.announce_due(now, left, pool);
        self.own_requests(now, pool);
        self.rests_until = self.next_deadline().unwrap_or(FOR_EVER);
    }

    /// Something was asked of it: what is due must be looked for anew.
    pub(super) fn stir(&mut self) {
        self.rests_until = Timestamp::ZERO;
    }

    /// When [`Control::advance`] is to be called next.
    pub fn next_deadline(&self) -> Option<Timestamp> {
        let announcement = self.announcements.iter().map(|(at, ..)| *at).min();
        let rest = [
            announcement,
            self.next_address_deadline(),
            self.autoconf.next_deadline(),
            self.settles_by(),
            self.listening.next_deadline(),
            self.redirects.next_deadline(),
            self.outbox.next_deadline(),
        ];
        self.neighbours.next_deadline().into_iter().chain(rest.into_iter().flatten()).min()
    }

    /// Moves packets for a port into a batch, as many as there is room for.
    pub fn transmit(&mut self, port: PortId, batch: &mut Batch) {
        self.outbox.take(port, batch);
    }

    /// The next packet the control has sent to ourselves, and its link: for [`crate::Stack::deliver`].
    pub fn to_ourselves(&mut self) -> Option<(InterfaceId, Packet)> {
        self.outbox.to_ourselves.pop_front()
    }

    /// Counts packets of the control's, and what ICMP had told, that did not get to a stack, for it was too far behind.
    pub fn count_lost(&mut self, packets: u64, notices: u64) {
        self.counters.no_memory += packets;
        self.counters.icmp_notices_dropped += notices;
    }

    /// What ICMP has told since this was last called: for every stack.
    pub fn notices(&mut self) -> impl Iterator<Item = Notice> {
        self.notices.drain(..)
    }

    /// The control's own packets wait for neighbours, too.
    fn own_requests(&mut self, now: Timestamp, pool: &mut Pool) {
        if self.outbox.requests.is_empty() {
            return;
        }
        for request in std::mem::take(&mut self.outbox.requests) {
            match request {
                // An ICMP message that cannot be delivered is dropped: no errors about errors.
                Request::Report { packet, .. } => self.outbox.drop(packet, pool),
                request => self.handle(now, request, pool),
            }
        }
    }

    fn check(&self, id: InterfaceId) -> Result<(), ControlError> {
        if usize::from(id.0) < self.interfaces.len() { Ok(()) } else { Err(ControlError::NoInterface(id.0)) }
    }

    /// Our address on a link, or on any, that fits another address there.
    fn address_on(&self, id: Option<InterfaceId>, other: Address) -> Option<Address> {
        let there = self.addresses.iter().filter(|our| id.is_none_or(|id| our.interface == id));
        let ours: Vec<Local> = there.filter_map(OurAddress::usable).collect();
        crate::source::choose(ours.iter(), other, other)
    }

    fn interface(&self, id: InterfaceId) -> &Interface {
        &self.interfaces[usize::from(id.0)]
    }

    /// Our Ethernet address on a link that has one.
    fn mac(&self, id: InterfaceId) -> Option<Mac> {
        mac_of(self.interface(id))
    }
}

fn mac_of(interface: &Interface) -> Option<Mac> {
    match interface.medium {
        Medium::Ethernet { mac, .. } => Some(mac),
        Medium::Ip => None,
    }
}

fn sorted(addresses: impl Iterator<Item = Address>) -> Arc<Vec<Address>> {
    let mut addresses: Vec<Address> = addresses.collect();
    addresses.sort_unstable();
    Arc::new(addresses)
}

fn vlan(interface: &Interface) -> Option<u16> {
    match interface.medium {
        Medium::Ethernet { vlan, .. } => vlan,
        Medium::Ip => None,
    }
}
