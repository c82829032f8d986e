//! Routes and neighbours that are entered by hand, in the manner of iproute2.

use std::cmp::Reverse;

use bywash_wire::Mac;

use super::address::OurAddress;
use super::{AddressState, Control, ControlError};
use crate::routes::Route;
use crate::{Address, InterfaceId, Prefix};

/// How something is entered, as iproute2 has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Entry {
    /// It must not be there yet.
    Add,
    /// In place of what is there, if there is something.
    Replace,
    /// In place of what must be there.
    Change,
}

impl Control {
    /// Adds a route.
    ///
    /// # Errors
    /// As [`Control::enter_route`].
    pub fn add_route(&mut self, route: Route) -> Result<(), ControlError> {
        self.enter_route(Entry::Add, route)
    }

    /// Enters a route. As with Linux, one of the same prefix and metric is the same route, whichever way it leads. What
    /// redirects have told is in nobody's way.
    ///
    /// Its source must be an address of ours, by whichever interface, unless it is another link's. Unlike with Linux it may still
    /// be looked for, and is used once it is free. When the address is taken away, routes of IPv4 with that source go with it, and
    /// those of IPv6 stay without a source, as with Linux.
    ///
    /// # Errors
    /// [`ControlError::NoInterface`], [`ControlError::Loopback`], [`ControlError::NoHost`], [`ControlError::OurGateway`],
    /// [`ControlError::Gateway`], [`ControlError::Source`], [`ControlError::RouteExists`], [`ControlError::NoRoute`].
    pub fn enter_route(&mut self, how: Entry, route: Route) -> Result<(), ControlError> {
        self.check(route.interface)?;
        let gateway = route.gateway.map(|gateway| gateway.with_zone(route.interface));
        // The zone counts only as far as the prefix goes: it stands behind the first 16 bits.
        let prefix = route.prefix.with_zone(route.interface).network();
        let source = route.source.map(|source| source.with_zone(route.interface));
        let route = Route { prefix, gateway, source, ..route };
        if prefix.address().is_loopback() {
            return Err(ControlError::Loopback(prefix));
        }
        if let Some(gateway) = gateway {
            self.check_neighbour(gateway).map_err(|error| match error {
                ControlError::Ours(_) => ControlError::OurGateway(gateway),
                error => error,
            })?;
            if gateway.is_v4() != prefix.address().is_v4() {
                return Err(ControlError::Gateway(gateway));
            }
            // Routers of IPv6 are best named by their link-local addresses (RFC 4861, 8).
            if self.link_of(gateway, Some(route.interface)).is_none() && !gateway.is_link_local() {
                return Err(ControlError::Gateway(gateway));
            }
        }
        if let Some(source) = source.filter(|source| !self.may_be_source(prefix, *source)) {
            return Err(ControlError::Source(source));
        }
        let same = |old: &&Route| old.metric == route.metric && self.redirects.until(old).is_none();
        let old = self.routes.of(prefix).iter().find(same).copied();
        match (how, old) {
            (Entry::Add, Some(_)) => return Err(ControlError::RouteExists(prefix, route.metric)),
            (Entry::Change, None) => return Err(ControlError::NoRoute(prefix, route.metric)),
            _ => {}
        }
        // Before: one of them may be the same route, and would take the new one with it.
        self.forget_redirects(|_| true);
        match old {
            Some(old) => {
                self.routes.replace(&old, route);
                self.disown(&old);
            }
            None => self.routes.add(route),
        }
        self.changed = true;
        Ok(())
    }

    /// Takes out the first route that `wanted` holds for: of one prefix, the one of the lowest metric.
    pub fn remove_route(&mut self, wanted: impl Fn(&Route) -> bool) -> Option<Route> {
        let fits = self.routes.iter().filter(|route| wanted(route));
        let route = *fits.min_by_key(|route| (route.metric, route.prefix))?;
        self.routes.remove(&route);
        self.disown(&route);
        self.forget_redirects(|_| true);
        self.changed = true;
        Some(route)
    }

    /// Whether packets to a prefix can come from an address: one of ours and of their family.
    fn may_be_source(&self, prefix: Prefix, source: Address) -> bool {
        // A duplicate is another station's.
        let ours = |our: &OurAddress| our.prefix.address() == source && our.state != AddressState::Duplicate;
        source.is_v4() == prefix.address().is_v4() && self.addresses.iter().any(ours)
    }

    /// An address is ours no more that routes may name as their source: those of IPv4 go with it (Linux: `fib_sync_down_addr`),
    /// those of IPv6 stay without it (`rt6_remove_prefsrc`).
    pub(super) fn forget_source(&mut self, address: Address) {
        // What a redirect has told has it of the route that was redirected.
        self.forget_redirects(|route| route.source == Some(address));
        let from = self.routes.iter().filter(|route| route.source == Some(address));
        for route in from.copied().collect::<Vec<_>>() {
            if address.is_v4() {
                self.routes.remove(&route);
            } else {
                let without = Route { source: None, ..route };
                self.routes.replace(&route, without);
                // An address or a router may have brought the same: it is the user's from now on.
                self.disown(&without);
            }
            self.changed = true;
        }
    }

    /// A route was changed or taken out by hand: it is no address's and no router's any more.
    fn disown(&mut self, route: &Route) {
        self.autoconf.disown(route);
        let its = |our: &&mut OurAddress| our.route() == *route;
        self.addresses.iter_mut().filter(its).for_each(|our| our.routed = false);
    }

    /// Adds a neighbour. Nothing from the wire changes it.
    ///
    /// # Errors
    /// As [`Control::enter_neighbour`].
    pub fn add_neighbour(&mut self, id: InterfaceId, address: Address, mac: Mac) -> Result<(), ControlError> {
        self.enter_neighbour(Entry::Add, id, address, mac)
    }

    /// Enters a neighbour. Nothing from the wire changes it.
    ///
    /// # Errors
    /// [`ControlError::NoInterface`], [`ControlError::NoHost`], [`ControlError::Ours`], [`ControlError::NoStation`],
    /// [`ControlError::NeighbourExists`], [`ControlError::NoNeighbour`].
    pub fn enter_neighbour(
        &mut self,
        how: Entry,
        id: InterfaceId,
        address: Address,
        mac: Mac,
    ) -> Result<(), ControlError> {
        self.check(id)?;
        let address = address.with_zone(id);
        self.check_neighbour(address)?;
        if mac.is_multicast() || mac == Mac::default() {
            return Err(ControlError::NoStation(mac));
        }
        match (how, self.neighbours.state((id, address))) {
            (Entry::Add, Some(_)) => Err(ControlError::NeighbourExists(address)),
            (Entry::Change, None) => Err(ControlError::NoNeighbour(address)),
            _ => {
                self.neighbours.add((id, address), mac);
                Ok(())
            }
        }
    }

    /// Forgets neighbours of an address, and says how many that were.
    pub fn remove_neighbour(&mut self, id: InterfaceId, address: Address) -> usize {
        self.neighbours.remove(|key, _| *key == (id, address.with_zone(id)))
    }

    /// The interface on whose link an address is, of all or of the `only` one: that of the longest prefix which holds it, of an
    /// address or of a route without a gateway. What redirects have told does not count.
    pub fn link_of(&self, address: Address, only: Option<InterfaceId>) -> Option<InterfaceId> {
        let holds = |prefix: Prefix| prefix.contains(address);
        let addresses = self.addresses.iter().filter(|our| holds(our.prefix));
        let addresses = addresses.map(|our| (our.prefix.length(), our.interface));
        let by_hand = |route: &&Route| route.gateway.is_none() && self.redirects.until(route).is_none();
        let routes = self.routes.holding(address).filter(by_hand);
        let routes = routes.map(|route| (route.prefix.length(), route.interface));
        let links = addresses.chain(routes).filter(|(_, id)| only.is_none_or(|only| *id == only));
        // Of equals the first.
        links.min_by_key(|(length, _)| Reverse(*length)).map(|(_, id)| id)
    }

    /// Whether an address can be another host's on a link of ours.
    fn check_neighbour(&self, address: Address) -> Result<(), ControlError> {
        let everyones = self.addresses.iter().any(|our| our.prefix.broadcast() == Some(address));
        if !address.is_host() || address.is_loopback() || everyones {
            return Err(ControlError::NoHost(address));
        }
        // A duplicate is another station's.
        let ours = |our: &OurAddress| our.prefix.address() == address && our.state != AddressState::Duplicate;
        if self.addresses.iter().any(ours) {
            return Err(ControlError::Ours(address));
        }
        Ok(())
    }
}
