//! Routes: where the longest prefix says that packets go.

use std::collections::HashMap;

use crate::address::mask;
use crate::{Address, InterfaceId, Prefix};

/// One route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route {
    /// Which destinations it is for.
    pub prefix: Prefix,
    /// The router to send to; none when the destinations are on the link.
    pub gateway: Option<Address>,
    /// The interface to send on.
    pub interface: InterfaceId,
    /// Among routes of the same prefix, the lowest is used.
    pub metric: u32,
}

/// All routes, by prefix length: one hash look-up for each length in use, the longest first.
#[derive(Clone, Debug, Default)]
pub(crate) struct Routes {
    /// Lengths in the 128 bits of an address, longest first. The routes of one prefix are sorted by metric.
    lengths: Vec<(u8, HashMap<u128, Vec<Route>>)>,
}

impl Routes {
    /// Puts a route in; one of the same prefix, metric and interface is replaced.
    pub(crate) fn add(&mut self, route: Route) {
        let route = Route { prefix: route.prefix.network(), ..route };
        let length = route.prefix.bits();
        let at = self.lengths.partition_point(|(l, _)| *l > length);
        if self.lengths.get(at).is_none_or(|(l, _)| *l != length) {
            self.lengths.insert(at, (length, HashMap::new()));
        }
        let same = self.lengths[at].1.entry(route.prefix.address().bits()).or_default();
        same.retain(|old| (old.metric, old.interface) != (route.metric, route.interface));
        let place = same.partition_point(|old| old.metric <= route.metric);
        same.insert(place, route);
    }

    /// Takes out what `wanted` holds for, and says how many that were.
    pub(crate) fn remove(&mut self, wanted: impl Fn(&Route) -> bool) -> usize {
        let before = self.iter().count();
        for (_, routes) in &mut self.lengths {
            for same in routes.values_mut() {
                same.retain(|route| !wanted(route));
            }
            routes.retain(|_, same| !same.is_empty());
        }
        self.lengths.retain(|(_, routes)| !routes.is_empty());
        before - self.iter().count()
    }

    /// The best route for a destination.
    #[inline]
    pub(crate) fn find(&self, destination: Address) -> Option<&Route> {
        self.lengths
            .iter()
            .find_map(|(length, routes)| routes.get(&(destination.bits() & mask(*length)))?.first())
    }

    /// All routes, the longest prefixes first.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Route> {
        self.lengths.iter().flat_map(|(_, routes)| routes.values().flatten())
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::*;

    fn route(prefix: &str, metric: u32, interface: u16) -> Route {
        Route { prefix: prefix.parse().unwrap(), gateway: None, interface: InterfaceId(interface), metric }
    }

    fn find(routes: &Routes, address: &str) -> Option<u16> {
        routes.find(address.parse::<IpAddr>().unwrap().into()).map(|route| route.interface.0)
    }

    #[test]
    fn the_longest_prefix_wins_then_the_lowest_metric() {
        let mut routes = Routes::default();
        for (prefix, metric, interface) in [
            ("0.0.0.0/0", 5, 1),
            ("10.0.0.0/8", 9, 2),
            ("10.1.0.0/16", 9, 3),
            ("10.0.0.0/8", 4, 4),
            ("::/0", 1, 5),
        ] {
            routes.add(route(prefix, metric, interface));
        }
        assert_eq!(find(&routes, "10.1.2.3"), Some(3));
        assert_eq!(find(&routes, "10.2.2.3"), Some(4));
        assert_eq!(find(&routes, "11.0.0.1"), Some(1));
        assert_eq!(find(&routes, "fd00::1"), Some(5), "an IPv4 default route is not for IPv6");
        assert_eq!(routes.remove(|route| route.metric == 4), 1);
        assert_eq!(find(&routes, "10.2.2.3"), Some(2));
        assert_eq!(routes.remove(|route| route.prefix.length() == 0), 2);
        assert_eq!(find(&routes, "11.0.0.1"), None);
    }
}
