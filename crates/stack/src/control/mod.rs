//! What all stacks share and one thread owns: interfaces, addresses, routes, neighbours; ARP and ICMP.

mod arp;
mod icmp;
mod neighbour;

use std::sync::Arc;
use std::time::Duration;

use bywash_frame::{Batch, Packet, Pool};

pub use neighbour::NeighbourState;

use crate::outbox::Outbox;
use crate::routes::{Route, Routes};
use crate::{Address, Interface, InterfaceId, Medium, Notice, PortId, Prefix, Request, Snapshot, Timestamp};
use icmp::Limit;
use neighbour::Neighbours;

/// How often, and how far apart, a new address is announced (RFC 5227, 1.1: ANNOUNCE_NUM, ANNOUNCE_INTERVAL).
const ANNOUNCEMENTS: u8 = 2;
const ANNOUNCE_INTERVAL: Duration = Duration::from_secs(2);

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
    #[error("{0} cannot be a host's address: it is unspecified, a group's or everybody's")]
    NoHost(Address),
    /// The address is there already.
    #[error("{0} is an address of ours already")]
    Ours(Address),
    /// The address is IPv6, which the stack does not speak yet.
    #[error("{0} is IPv6, which this stack does not speak yet: give it an IPv4 address")]
    Ipv6(Address),
    /// The gateway is not on a link of ours.
    #[error("the gateway {0} is on no link of that interface: add an address whose prefix holds it")]
    Gateway(Address),
}

/// Owner of everything that stacks only read. It does no I/O: packets, requests and time are handed to it.
#[derive(Debug)]
pub struct Control {
    interfaces: Vec<Interface>,
    addresses: Vec<(Prefix, InterfaceId)>,
    routes: Routes,
    neighbours: Neighbours,
    forwarding: bool,
    changed: bool,
    /// Announcements still to be sent: when, for which interface, for which address, how many.
    announcements: Vec<(Timestamp, InterfaceId, Address, u8)>,
    outbox: Outbox,
    notices: Vec<Notice>,
    limit: Limit,
    /// Times another station claimed an address of ours.
    conflicts: u64,
}

impl Default for Control {
    fn default() -> Self {
        Self::new()
    }
}

impl Control {
    /// A control with the loopback interface, and nothing else.
    pub fn new() -> Self {
        let interfaces = vec![Interface::loopback()];
        let snapshot = Snapshot {
            generation: 0,
            interfaces: Arc::new(interfaces.clone()),
            addresses: Arc::default(),
            ours: Arc::default(),
            broadcasts: Arc::default(),
            routes: Arc::default(),
            neighbours: Arc::default(),
            forwarding: false,
        };
        Self {
            interfaces,
            addresses: Vec::new(),
            routes: Routes::default(),
            neighbours: Neighbours::default(),
            forwarding: false,
            changed: false,
            announcements: Vec::new(),
            outbox: Outbox::new(Arc::new(snapshot)),
            notices: Vec::new(),
            limit: Limit::default(),
            conflicts: 0,
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
        if interface.mtu < 68 {
            return Err(ControlError::Mtu(interface.mtu));
        }
        let id = u16::try_from(self.interfaces.len()).map_err(|_| ControlError::NoInterface(u16::MAX))?;
        self.interfaces.push(interface);
        self.changed = true;
        Ok(InterfaceId(id))
    }

    /// Gives an interface an address, with a route to its prefix, and announces it.
    ///
    /// # Errors
    /// [`ControlError::NoInterface`], [`ControlError::Ipv6`], [`ControlError::NoHost`], [`ControlError::Ours`].
    pub fn add_address(
        &mut self,
        now: Timestamp,
        id: InterfaceId,
        prefix: Prefix,
    ) -> Result<(), ControlError> {
        let address = prefix.address();
        self.check(id)?;
        only_ipv4(address)?;
        if !address.is_unicast() || prefix.broadcast() == Some(address) {
            return Err(ControlError::NoHost(address));
        }
        if self.addresses.iter().any(|(old, _)| old.address() == address) {
            return Err(ControlError::Ours(address));
        }
        self.addresses.push((prefix, id));
        self.routes.add(Route { prefix, gateway: None, interface: id, metric: 0 });
        self.changed = true;
        if matches!(self.interfaces[usize::from(id.0)].medium, Medium::Ethernet { .. }) {
            self.announcements.push((now, id, address, ANNOUNCEMENTS));
        }
        Ok(())
    }

    /// Takes an address away, with the route to its prefix if no other address needs it; `false` when it was not
    /// there.
    pub fn remove_address(&mut self, address: Address) -> bool {
        let Some(at) = self.addresses.iter().position(|(prefix, _)| prefix.address() == address) else {
            return false;
        };
        let (prefix, id) = self.addresses.remove(at);
        if !self.addresses.iter().any(|(p, i)| p.network() == prefix.network() && *i == id) {
            let ours = |r: &Route| r.prefix == prefix.network() && r.interface == id && r.gateway.is_none();
            self.routes.remove(ours);
        }
        self.announcements.retain(|(_, _, a, _)| *a != address);
        self.changed = true;
        true
    }

    /// Adds a route, or replaces the one of the same prefix, interface and metric.
    ///
    /// # Errors
    /// [`ControlError::NoInterface`], [`ControlError::Ipv6`], [`ControlError::Gateway`].
    pub fn add_route(&mut self, route: Route) -> Result<(), ControlError> {
        self.check(route.interface)?;
        only_ipv4(route.prefix.address())?;
        if let Some(gateway) = route.gateway {
            let on_link = |(p, i): &(Prefix, InterfaceId)| *i == route.interface && p.contains(gateway);
            if !self.addresses.iter().any(on_link) {
                return Err(ControlError::Gateway(gateway));
            }
        }
        self.routes.add(route);
        self.changed = true;
        Ok(())
    }

    /// Takes out the routes that `wanted` holds for, and says how many that were.
    pub fn remove_routes(&mut self, wanted: impl Fn(&Route) -> bool) -> usize {
        self.changed = true;
        self.routes.remove(wanted)
    }

    /// Enters a neighbour by hand. Nothing from the wire changes it.
    ///
    /// # Errors
    /// [`ControlError::NoInterface`], [`ControlError::Ipv6`].
    pub fn add_neighbour(
        &mut self,
        id: InterfaceId,
        address: Address,
        mac: bywash_wire::Mac,
    ) -> Result<(), ControlError> {
        self.check(id)?;
        only_ipv4(address)?;
        self.neighbours.add((id, address), mac);
        Ok(())
    }

    /// Forgets neighbours of an address, and says how many that were.
    pub fn remove_neighbour(&mut self, id: InterfaceId, address: Address) -> usize {
        self.neighbours.remove(|key| *key == (id, address))
    }

    /// Whether packets for others are passed on. Off at first (RFC 1122, 3.1).
    pub fn set_forwarding(&mut self, on: bool) {
        self.forwarding = on;
        self.changed = true;
    }

    /// All interfaces; the first is the loopback.
    pub fn interfaces(&self) -> impl Iterator<Item = (InterfaceId, &Interface)> {
        (0..).map(InterfaceId).zip(&self.interfaces)
    }

    /// All addresses.
    pub fn addresses(&self) -> impl Iterator<Item = (Prefix, InterfaceId)> {
        self.addresses.iter().copied()
    }

    /// All routes, the longest prefixes first.
    pub fn routes(&self) -> impl Iterator<Item = &Route> {
        self.routes.iter()
    }

    /// All neighbours: link, address, Ethernet address, state.
    pub fn neighbours(
        &self,
    ) -> impl Iterator<Item = (InterfaceId, Address, bywash_wire::Mac, NeighbourState)> {
        self.neighbours.iter().map(|(key, neighbour)| (key.0, key.1, neighbour.mac, neighbour.state))
    }

    /// Times another station was heard to claim an address of ours (RFC 5227, 2.4).
    pub fn conflicts(&self) -> u64 {
        self.conflicts
    }

    /// The present picture. It is the same `Arc` while nothing changes.
    pub fn snapshot(&mut self, pool: &mut Pool) -> Arc<Snapshot> {
        self.publish(pool);
        self.outbox.snapshot.clone()
    }

    fn publish(&mut self, pool: &mut Pool) {
        if self.changed || self.neighbours.changed {
            let old = &self.outbox.snapshot;
            let known = self.neighbours.known();
            let mut new = Snapshot { generation: old.generation.wrapping_add(1), ..Snapshot::clone(old) };
            if self.changed {
                new.interfaces = Arc::new(self.interfaces.clone());
                new.addresses = Arc::new(self.addresses.clone());
                new.ours = sorted(self.addresses.iter().map(|(prefix, _)| prefix.address()));
                new.broadcasts = sorted(self.addresses.iter().filter_map(|(prefix, _)| prefix.broadcast()));
                new.routes = Arc::new(self.routes.clone());
                new.forwarding = self.forwarding;
            }
            new.neighbours = Arc::new(known);
            (self.changed, self.neighbours.changed) = (false, false);
            self.outbox.update(Arc::new(new), pool);
        }
    }

    /// Does what a stack asks for.
    pub fn handle(&mut self, now: Timestamp, request: Request, pool: &mut Pool) {
        self.publish(pool);
        match request {
            Request::Arp { interface, packet } => self.arp(now, interface, packet, pool),
            Request::Icmp { packet, .. } => self.icmp(now, packet, pool),
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
        self.publish(pool);
        for question in self.neighbours.advance(now) {
            self.ask(question, pool);
        }
        let mut due = Vec::new();
        self.announcements.retain_mut(|(at, interface, address, left)| {
            if *at <= now {
                due.push((*interface, *address));
                (*at, *left) = (now + ANNOUNCE_INTERVAL, *left - 1);
            }
            *left > 0
        });
        for (interface, address) in due {
            self.announce(interface, address, pool);
        }
        self.own_requests(now, pool);
    }

    /// When [`Control::advance`] is to be called next.
    pub fn next_deadline(&self) -> Option<Timestamp> {
        let announcement = self.announcements.iter().map(|(at, ..)| *at).min();
        self.neighbours.next_deadline().into_iter().chain(announcement).min()
    }

    /// Moves packets for a port into a batch, as many as there is room for.
    pub fn transmit(&mut self, port: PortId, batch: &mut Batch) {
        self.outbox.take(port, batch);
    }

    /// The next packet the control has sent to ourselves: for [`crate::Stack::deliver`].
    pub fn to_ourselves(&mut self) -> Option<Packet> {
        self.outbox.to_ourselves.pop_front()
    }

    /// What ICMP has told since this was last called: for every stack.
    pub fn notices(&mut self) -> impl Iterator<Item = Notice> {
        self.notices.drain(..)
    }

    /// The control's own packets wait for neighbours, too.
    fn own_requests(&mut self, now: Timestamp, pool: &mut Pool) {
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

    /// Our address on a link that fits another address there.
    fn address_on(&self, id: InterfaceId, other: Address) -> Option<Address> {
        let mut ours =
            self.addresses.iter().filter(|(p, i)| *i == id && p.address().is_v4() == other.is_v4());
        let first = ours.clone().next()?;
        Some(ours.find(|(prefix, _)| prefix.contains(other)).unwrap_or(first).0.address())
    }
}

fn only_ipv4(address: Address) -> Result<(), ControlError> {
    if address.is_v4() { Ok(()) } else { Err(ControlError::Ipv6(address)) }
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
