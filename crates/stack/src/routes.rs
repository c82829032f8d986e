//! Routes: where the longest prefix says that packets go. One set of them is changed, by the control; another, made
//! of it and found in a few memory accesses, is what stacks read.

use std::collections::HashMap;
use std::sync::Arc;

use crate::address::mask;
use crate::trie::{HOPS, Table, Trie};
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
    /// The address of ours that our own packets by this route come from where nobody has chosen another (iproute2's `src`), while
    /// it is in use; none leaves that to the rules of RFC 6724. What is passed on has a source already.
    pub source: Option<Address>,
}

impl Route {
    /// What packets by it need to know, and our own by it.
    fn leads(&self) -> (Hop, Option<Address>) {
        (Hop { interface: self.interface, gateway: self.gateway }, self.source)
    }
}

/// Where routes lead: all that a packet of others needs to know of them. What only our own need stands beside these, so that they
/// stay as small.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Hop {
    pub(crate) interface: InterfaceId,
    pub(crate) gateway: Option<Address>,
}

/// What stacks read. A copy shares everything that has not changed since.
#[derive(Clone, Debug, Default)]
pub(crate) struct Fib {
    v4: Table<false>,
    v6: Table<true>,
    /// The first is none.
    hops: Arc<Vec<Hop>>,
    /// The sources of those hops that have one, by number.
    sources: Arc<Vec<(u32, Address)>>,
    /// How often a prefix has come to lead elsewhere.
    changes: u64,
}

impl Fib {
    /// The number of the hop for a destination; 0 is none.
    #[inline]
    pub(crate) fn find(&self, destination: Address) -> u32 {
        match destination.v4() {
            Some(v4) => self.v4.find_v4(v4.to_bits()),
            None => self.v6.find(destination.bits()),
        }
    }

    /// The same for many IPv4 addresses, in host byte order.
    #[inline]
    pub(crate) fn find_many_v4(&self, addresses: &[u32], hops: &mut [u32]) {
        self.v4.find_many_v4(addresses, hops);
    }

    /// The same for many IPv6 addresses.
    #[inline]
    pub(crate) fn find_many_v6(&self, addresses: &[u128], hops: &mut [u32]) {
        self.v6.find_many(addresses, hops);
    }

    /// A hop by its number.
    #[inline]
    pub(crate) fn hop(&self, number: u32) -> Option<&Hop> {
        self.hops.get(number as usize).filter(|_| number > 0)
    }

    /// The source that the route to a destination names, and the interface that it leads to.
    #[inline]
    pub(crate) fn source(&self, destination: Address) -> Option<(InterfaceId, Address)> {
        if self.sources.is_empty() { None } else { self.source_of(self.find(destination)) }
    }

    fn source_of(&self, number: u32) -> Option<(InterfaceId, Address)> {
        let at = self.sources.binary_search_by_key(&number, |(number, _)| *number).ok()?;
        Some((self.hop(number)?.interface, self.sources[at].1))
    }

    pub(crate) fn hops(&self) -> &[Hop] {
        &self.hops
    }

    /// Whether all destinations have the hops that they had in an older one of the same routes.
    pub(crate) fn leads_as(&self, old: &Self) -> bool {
        self.changes == old.changes
    }
}

/// Numbers for hops with their sources, each as long as a prefix has it.
#[derive(Clone, Debug)]
struct Hops {
    list: Arc<Vec<Hop>>,
    /// Sorted by number.
    sources: Arc<Vec<(u32, Address)>>,
    /// Number, and prefixes that have it.
    numbers: HashMap<(Hop, Option<Address>), (u32, usize)>,
    free: Vec<u32>,
}

impl Default for Hops {
    fn default() -> Self {
        let list = Arc::new(vec![Hop::default()]);
        Self { list, sources: Arc::default(), numbers: HashMap::new(), free: Vec::new() }
    }
}

impl Hops {
    /// The hop's number; 0 when there are too many different ones.
    fn take(&mut self, (hop, source): (Hop, Option<Address>)) -> u32 {
        if let Some((number, users)) = self.numbers.get_mut(&(hop, source)) {
            *users += 1;
            return *number;
        }
        let next = u32::try_from(self.list.len()).ok().filter(|next| *next < HOPS);
        let Some(number) = self.free.pop().or(next) else { return 0 };
        let list = Arc::make_mut(&mut self.list);
        match list.get_mut(number as usize) {
            Some(place) => *place = hop,
            None => list.push(hop),
        }
        if let Some(source) = source {
            let at = self.sources.partition_point(|(before, _)| *before < number);
            Arc::make_mut(&mut self.sources).insert(at, (number, source));
        }
        self.numbers.insert((hop, source), (number, 1));
        number
    }

    fn give(&mut self, led: (Hop, Option<Address>)) {
        let Some((number, users)) = self.numbers.get_mut(&led) else { return };
        *users -= 1;
        if *users == 0 {
            if led.1.is_some() {
                Arc::make_mut(&mut self.sources).retain(|(of, _)| of != number);
            }
            self.free.push(*number);
            self.numbers.remove(&led);
        }
    }

    fn number(&self, led: (Hop, Option<Address>)) -> u32 {
        self.numbers.get(&led).map_or(0, |(number, _)| *number)
    }
}

/// All routes, by prefix length.
#[derive(Clone, Debug, Default)]
pub(crate) struct Routes {
    /// Lengths in the 128 bits of an address, longest first. The routes of one prefix are sorted by metric.
    lengths: Vec<(u8, HashMap<u128, Vec<Route>>)>,
    hops: Hops,
    v4: Trie<false>,
    v6: Trie<true>,
    changes: u64,
}

impl Routes {
    /// Puts a route in, behind others of its prefix and metric. One that is there is not put in again.
    pub(crate) fn add(&mut self, route: Route) {
        let route = Route { prefix: route.prefix.network(), ..route };
        let length = route.prefix.bits();
        let at = self.lengths.partition_point(|(l, _)| *l > length);
        if self.lengths.get(at).is_none_or(|(l, _)| *l != length) {
            self.lengths.insert(at, (length, HashMap::new()));
        }
        let same = self.lengths[at].1.entry(route.prefix.address().bits()).or_default();
        let before = same.first().copied();
        if !same.contains(&route) {
            let place = same.partition_point(|old| old.metric <= route.metric);
            same.insert(place, route);
        }
        let after = same.first().copied();
        self.publish(route.prefix, before, after);
    }

    /// Puts a route in the place of another of its prefix and metric.
    pub(crate) fn replace(&mut self, old: &Route, new: Route) {
        let Some((_, same)) = self.of_mut(new.prefix) else { return };
        let before = same.first().copied();
        same.retain(|other| other == old || *other != new);
        same.iter_mut().filter(|other| *other == old).for_each(|place| *place = new);
        let after = same.first().copied();
        self.publish(new.prefix, before, after);
    }

    /// Takes out a route, if it is there.
    pub(crate) fn remove(&mut self, route: &Route) {
        let Some((at, same)) = self.of_mut(route.prefix) else { return };
        let before = same.first().copied();
        same.retain(|old| old != route);
        let after = same.first().copied();
        if after.is_none() {
            self.lengths[at].1.remove(&route.prefix.address().bits());
        }
        if self.lengths[at].1.is_empty() {
            self.lengths.remove(at);
        }
        self.publish(route.prefix, before, after);
    }

    /// The routes of just this prefix, in the order in which they are used.
    pub(crate) fn of(&self, prefix: Prefix) -> &[Route] {
        let of_length = self.lengths.iter().find(|(length, _)| *length == prefix.bits());
        let same = of_length.and_then(|(_, routes)| routes.get(&prefix.address().bits()));
        same.map_or(&[], Vec::as_slice)
    }

    /// The routes that hold an address, the longest prefixes first.
    pub(crate) fn holding(&self, address: Address) -> impl Iterator<Item = &Route> {
        let all = self.lengths.iter().flat_map(move |(length, routes)| {
            routes.get(&(address.bits() & mask(*length))).map_or(&[][..], Vec::as_slice)
        });
        all.filter(move |route| route.prefix.address().is_v4() == address.is_v4())
    }

    /// The same, and where their length is.
    fn of_mut(&mut self, prefix: Prefix) -> Option<(usize, &mut Vec<Route>)> {
        let at = self.lengths.iter().position(|(length, _)| *length == prefix.bits())?;
        Some((at, self.lengths[at].1.get_mut(&prefix.address().bits())?))
    }

    /// What stacks are to read from now on.
    pub(crate) fn fib(&self) -> Fib {
        Fib {
            v4: self.v4.table(),
            v6: self.v6.table(),
            hops: self.hops.list.clone(),
            sources: self.hops.sources.clone(),
            changes: self.changes,
        }
    }

    /// All routes, the longest prefixes first.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Route> {
        self.lengths.iter().flat_map(|(_, routes)| routes.values().flatten())
    }

    /// The best route of a prefix has changed.
    fn publish(&mut self, prefix: Prefix, before: Option<Route>, after: Option<Route>) {
        let (before, after) = (before.map(|route| route.leads()), after.map(|route| route.leads()));
        if before == after {
            return;
        }
        self.changes += 1;
        let (length, bits) = (prefix.length(), prefix.address().bits());
        let number = after.map(|after| self.hops.take(after));
        let shorter = if number.is_none() { self.shorter(prefix) } else { (0, 0) };
        if let Some(before) = before {
            self.hops.give(before);
        }
        match (prefix.address().is_v4(), number) {
            (true, Some(number)) => self.v4.insert(bits << 96, length, number),
            (true, None) => self.v4.remove(bits << 96, length, shorter),
            (false, Some(number)) => self.v6.insert(bits, length, number),
            (false, None) => self.v6.remove(bits, length, shorter),
        }
    }

    /// The length and hop of the longest prefix that holds another and is shorter.
    fn shorter(&self, prefix: Prefix) -> (u8, u32) {
        // Prefixes of IPv4 lie in the last 32 bits, behind 96 that are the same.
        let family = if prefix.address().is_v4() { 96 } else { 0 };
        let lengths = self.lengths.iter().filter(|(l, _)| *l < prefix.bits() && *l >= family);
        let mut best = lengths.filter_map(|(length, routes)| {
            let route = routes.get(&(prefix.address().bits() & mask(*length)))?.first()?;
            (route.prefix.address().is_v4() == prefix.address().is_v4())
                .then(|| (length - family, self.hops.number(route.leads())))
        });
        best.next().unwrap_or((0, 0))
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::*;

    fn route(prefix: &str, metric: u32, interface: u16) -> Route {
        let (prefix, interface) = (prefix.parse().unwrap(), InterfaceId(interface));
        Route { prefix, gateway: None, interface, metric, source: None }
    }

    fn find(routes: &Routes, address: &str) -> Option<u16> {
        let fib = routes.fib();
        fib.hop(fib.find(address.parse::<IpAddr>().unwrap().into())).map(|hop| hop.interface.0)
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
        assert_eq!(routes.iter().count(), 5);
        assert_eq!(find(&routes, "10.1.2.3"), Some(3));
        assert_eq!(find(&routes, "10.2.2.3"), Some(4));
        assert_eq!(find(&routes, "11.0.0.1"), Some(1));
        assert_eq!(find(&routes, "fd00::1"), Some(5), "an IPv4 default route is not for IPv6");
        let old = routes.fib();
        routes.remove(&route("10.0.0.0/8", 4, 4));
        assert_eq!(find(&routes, "10.2.2.3"), Some(2));
        routes.remove(&route("10.1.0.0/16", 9, 3));
        assert_eq!(find(&routes, "10.1.2.3"), Some(2), "the next shorter");
        routes.remove(&route("0.0.0.0/0", 5, 1));
        routes.remove(&route("::/0", 1, 5));
        assert_eq!((find(&routes, "11.0.0.1"), find(&routes, "fd00::1")), (None, None));
        let hop = old.hop(old.find("10.2.2.3".parse::<IpAddr>().unwrap().into()));
        assert_eq!(hop.map(|hop| hop.interface.0), Some(4), "who reads the old ones sees no change");
    }

    #[test]
    fn a_source_is_its_routes_alone_and_goes_with_it() {
        let mut routes = Routes::default();
        let address = |text: &str| Address::from(text.parse::<IpAddr>().unwrap());
        let source = |routes: &Routes, to: &str| routes.fib().source(address(to)).map(|(_, source)| source);
        let named = |prefix, from| Route { source: Some(address(from)), ..route(prefix, 0, 1) };
        let [ours, other] = ["192.0.2.1", "192.0.2.2"];
        routes.add(route("10.0.0.0/8", 0, 1));
        routes.add(named("10.1.0.0/16", ours));
        routes.add(named("10.2.0.0/16", ours));
        routes.add(named("10.3.0.0/16", other));
        let found = |routes: &Routes| {
            ["10.0.0.1", "10.1.0.1", "10.2.0.1", "10.3.0.1", "11.0.0.1"].map(|to| source(routes, to))
        };
        let [first, second] = [ours, other].map(address).map(Some);
        assert_eq!(found(&routes), [None, first, first, second, None], "the same hop, from three addresses");
        routes.remove(&named("10.1.0.0/16", ours));
        assert_eq!(found(&routes), [None, None, first, second, None]);
        routes.replace(&named("10.2.0.0/16", ours), named("10.2.0.0/16", other));
        assert_eq!(found(&routes), [None, None, second, second, None]);
        routes.replace(&named("10.3.0.0/16", other), route("10.3.0.0/16", 0, 1));
        routes.remove(&named("10.2.0.0/16", other));
        assert_eq!((found(&routes), routes.fib().sources.len()), ([None; 5], 0));
    }

    #[test]
    fn hops_are_numbered_again_when_nobody_has_them() {
        let mut routes = Routes::default();
        for round in 0..3 {
            for i in 1..100 {
                let prefix = format!("10.{i}.0.0/16");
                let before = routes.of(prefix.parse().unwrap()).first().copied();
                let now = route(&prefix, 0, i + round);
                match before {
                    Some(before) => routes.replace(&before, now),
                    None => routes.add(now),
                }
            }
            assert!(routes.fib().hops().len() <= 102, "{}", routes.fib().hops().len());
        }
        let all: Vec<Route> = routes.iter().copied().collect();
        assert_eq!(all.len(), 99, "each has replaced the one before");
        all.iter().for_each(|route| routes.remove(route));
        assert_eq!((find(&routes, "10.5.0.1"), routes.hops.numbers.len()), (None, 0));
    }
}
