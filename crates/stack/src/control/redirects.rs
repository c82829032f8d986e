//! Redirects (RFC 1122, 3.2.2.2; RFC 4861, 8): a router says that another next hop is better for one destination. What is
//! believed is a route to that host, for some time.

use std::collections::VecDeque;
use std::time::Duration;

use bywash_wire::ndp::{self, NeighbourMessage};
use bywash_wire::zerocopy::FromBytes;
use bywash_wire::{Ipv4Header, Ipv6Header};

use super::icmp::Limit;
use super::icmp6::Received;
use super::{Control, NeighbourState};
use crate::{Address, InterfaceId, Prefix, Route, Timestamp};

/// How long one counts: as long as what routers say of a path's MTU.
const LIFE: Duration = Duration::from_secs(600);
/// Destinations at most.
const LIMIT: usize = 256;
/// How many are taken at once, and how long until one more is: each is a new snapshot for every stack.
const BURST: u32 = 10;
const REFILL: Duration = Duration::from_millis(100);
/// The metric of their routes, by which they are known from those of the control's user.
const METRIC: u32 = 512;

/// What redirects have told.
#[derive(Debug)]
pub(super) struct Redirects {
    /// They are believed.
    taken: bool,
    /// The oldest first, with the time when each ends.
    routes: VecDeque<(Timestamp, Route)>,
    news: Limit,
}

impl Default for Redirects {
    fn default() -> Self {
        Self { taken: true, routes: VecDeque::new(), news: Limit::new(BURST, REFILL) }
    }
}

impl Redirects {
    pub(super) fn next_deadline(&self) -> Option<Timestamp> {
        self.routes.front().map(|(until, _)| *until)
    }

    /// When a route ends, if it is one of these.
    pub(super) fn until(&self, route: &Route) -> Option<Timestamp> {
        self.routes.iter().find(|(_, ours)| ours == route).map(|(until, _)| *until)
    }
}

impl Control {
    /// Whether redirects of routers are taken, as they are at first. While packets are passed on none is, whatever is said
    /// here. Their routes, to one host each and with metric 512, last for ten minutes, or until a route or address is changed
    /// by hand or the next hop does not answer. A host's route that was given by hand is never redirected.
    pub fn set_redirects(&mut self, taken: bool) {
        self.redirects.taken = taken;
        if !taken {
            self.forget_redirects(|_| true);
        }
    }

    /// Takes a redirect for IPv4: from `source` to `us`, that `hop` is better for the packet whose beginning is `quoted`.
    /// Redirects for networks are for one host as well (RFC 1122, 3.2.2.2).
    pub(super) fn redirected4(
        &mut self,
        now: Timestamp,
        id: InterfaceId,
        (source, us, hop): (Address, Address, Address),
        quoted: &[u8],
    ) {
        let Ok((ip, _)) = Ipv4Header::ref_from_prefix(quoted) else { return };
        let destination = Address::from(ip.destination());
        let on_link = self.link_of(hop, Some(id)).is_some();
        if on_link && !self.outbox.snapshot.is_broadcast(hop) && Address::from(ip.source()) == us {
            self.redirect(now, id, (source, us), destination, hop);
        }
    }

    /// Takes a redirect for IPv6 that passes the checks of RFC 4861, 8.1.
    pub(super) fn redirected6(&mut self, now: Timestamp, received: &Received<'_>) {
        let id = received.interface;
        let Some((hop, destination, options)) = read(received) else { return };
        // 8.2 has the packet quoted: who made up the redirect does not know it.
        let quoted = ndp::options(options).and_then(|mut all| all.find(|(kind, _)| *kind == ndp::REDIRECTED));
        let Some((ip, _)) = quoted.and_then(|(_, option)| Ipv6Header::ref_from_prefix(&option[8..]).ok())
        else {
            return;
        };
        let ends = (Address::from_wire(ip.source(), id), Address::from_wire(ip.destination(), id));
        if ends != (Some(received.destination), Some(destination)) {
            return;
        }
        let taken = self.redirect(now, id, (received.source, received.destination), destination, hop);
        if let Some(mac) = ndp::link_address(options, ndp::TARGET_LINK).filter(|_| taken) {
            self.neighbours.heard(now, (id, hop), mac, true);
        }
    }

    /// Makes a route of what the present next hop, `source`, has told us of a destination; `false` if that is not so.
    fn redirect(
        &mut self,
        now: Timestamp,
        id: InterfaceId,
        (source, us): (Address, Address),
        destination: Address,
        hop: Address,
    ) -> bool {
        let snapshot = &self.outbox.snapshot;
        let first_hop = source != destination && snapshot.next_hop(destination) == Some((id, source));
        let new = hop != source && hop.is_unicast() && !snapshot.is_ours(hop);
        let wanted = !self.forwarding && self.redirects.taken;
        if !(wanted && first_hop && new && destination.is_unicast() && snapshot.is_ours(us)) {
            return false;
        }
        let Some(prefix) = Prefix::new(destination.ip(), if destination.is_v4() { 32 } else { 128 }) else {
            return false;
        };
        // Linux has a redirect change the next hop alone, too.
        let from = snapshot.fib.source(destination).map(|(_, from)| from);
        let known = self.redirects.routes.iter().any(|(_, route)| route.prefix == prefix);
        let by_hand = !known && !self.routes.of(prefix).is_empty();
        let failed = self.neighbours.state((id, hop)) == Some(NeighbourState::Failed);
        if by_hand || failed || !self.redirects.news.allow(now) {
            return false;
        }
        self.forget_redirects(|route| route.prefix == prefix);
        if self.redirects.routes.len() == LIMIT
            && let Some((_, oldest)) = self.redirects.routes.pop_front()
        {
            self.routes.remove(&oldest);
        }
        let gateway = Some(hop).filter(|hop| *hop != destination);
        let route = Route { prefix, gateway, interface: id, metric: METRIC, source: from };
        self.routes.add(route);
        self.redirects.routes.push_back((now + LIFE, route));
        self.changed = true;
        true
    }

    /// Lets redirects end.
    pub(super) fn advance_redirects(&mut self, now: Timestamp) {
        while let Some((_, route)) = self.redirects.routes.pop_front_if(|(until, _)| *until <= now) {
            self.routes.remove(&route);
            self.changed = true;
        }
    }

    /// Forgets those whose next hop does not answer: the router that sent them there is asked again.
    pub(super) fn forget_unreachable(&mut self) {
        let unreachable = |(_, route): &&(Timestamp, Route)| {
            let hop = route.gateway.unwrap_or(route.prefix.address());
            self.neighbours.state((route.interface, hop)) == Some(NeighbourState::Failed)
        };
        let gone: Vec<Route> =
            self.redirects.routes.iter().filter(unreachable).map(|(_, route)| *route).collect();
        if !gone.is_empty() {
            self.forget_redirects(|route| gone.contains(route));
        }
    }

    /// Forgets redirects: what they were about has changed.
    pub(super) fn forget_redirects(&mut self, wanted: impl Fn(&Route) -> bool) {
        let routes = &mut self.routes;
        let before = self.redirects.routes.len();
        self.redirects.routes.retain(|(_, route)| {
            let gone = wanted(route);
            if gone {
                routes.remove(route);
            }
            !gone
        });
        self.changed |= self.redirects.routes.len() < before;
    }
}

/// Next hop, destination and options of a redirect whose form is right.
fn read<'a>(received: &Received<'a>) -> Option<(Address, Address, &'a [u8])> {
    let (message, rest) = NeighbourMessage::read_from_prefix(received.bytes).ok()?;
    let (destination, options) = rest.split_first_chunk::<16>()?;
    let hop = Address::from_wire(message.target(), received.interface)?;
    let destination = Address::from_wire((*destination).into(), received.interface)?;
    let right = received.is_from_the_link() && received.source.is_link_local();
    (right && (hop.is_link_local() || hop == destination)).then_some((hop, destination, options))
}
