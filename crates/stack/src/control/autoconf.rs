//! What a host makes of router advertisements (RFC 4861, 6.3; RFC 4862, 5.5): default routers, prefixes, addresses.

use std::cmp::Reverse;
use std::time::Duration;

use bywash_frame::Pool;
use bywash_wire::ndp::{self, PrefixInformation, RouterAdvertisement, RouterPreference};
use bywash_wire::zerocopy::{FromBytes, IntoBytes};
use bywash_wire::{IPV6_MTU, IcmpHeader, icmpv6};

use super::address::{OurAddress, interface_identifier};
use super::icmp::Limit;
use super::icmp6::{Message, Received};
use super::{AddressState, BURST_INTERVAL, Control, ControlError, NeighbourState};
use crate::interface::LinkValues;
use crate::{Address, InterfaceId, Prefix, Route, Timestamp};

/// RFC 4861, 10: MAX_RTR_SOLICITATIONS and RTR_SOLICITATION_INTERVAL.
const SOLICITATIONS: u8 = 3;
const INTERVAL: Duration = Duration::from_secs(4);
/// RFC 4862, 5.5.3 (e): a stranger cannot shorten an address's life below this.
const TWO_HOURS: Duration = Duration::from_secs(7200);
const FOR_EVER: Timestamp = Timestamp::from_nanos(u64::MAX);
/// How long it may take to find out what addresses and routers there are: two seconds until routers can be asked, the time for all
/// questions, and two for an address that the last brings.
const SETTLING: Duration = Duration::from_secs(16);
/// Routers, prefixes and addresses that are taken from advertisements, of each link (RFC 4861, 6.3.4 asks for two routers
/// at least; who makes up thousands must not fill memory).
const LIMIT: usize = 16;
/// Advertisements of a link that are taken at once, more than there are routers on one, and how long until one more is: each may be
/// a new snapshot for every stack.
const BURST: u32 = 32;
const REFILL: Duration = Duration::from_millis(100);
/// The metrics of routes that were advertised: routes of the control's user come first.
const ON_LINK_METRIC: u32 = 256;
const DEFAULT_METRIC: u32 = 1024;

/// Where a route is from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// It goes to the prefix of an address of ours.
    Address,
    /// The control's user has given it.
    User,
    /// A router has advertised it, for so long; for ever when `None`.
    Router(Option<Duration>),
    /// A router has redirected a host's packets, for so long.
    Redirect(Duration),
}

/// What routers have told, and what we still ask them.
#[derive(Debug, Default)]
pub(super) struct Autoconf {
    /// Links whose routers are heard.
    links: Vec<Link>,
    /// The one that is used comes first, the others in the order of their turns.
    routers: Vec<Router>,
    prefixes: Vec<OnLink>,
    /// The routes that were entered because of these. One that the user had given before is none of them.
    routes: Vec<Route>,
    /// When nothing is waited for any more.
    settles_by: Option<Timestamp>,
}

#[derive(Debug)]
struct Link {
    interface: InterfaceId,
    /// Solicitations left, and when the next goes out.
    left: u8,
    at: Timestamp,
    /// Of its own: who makes up advertisements on one link keeps nobody from another's.
    news: Limit,
}

#[derive(Clone, Copy, Debug)]
struct Router {
    interface: InterfaceId,
    address: Address,
    until: Timestamp,
    preference: RouterPreference,
    /// The default route goes through it.
    chosen: bool,
}

#[derive(Clone, Copy, Debug)]
struct OnLink {
    interface: InterfaceId,
    prefix: Prefix,
    until: Timestamp,
}

impl Router {
    fn route(&self) -> Option<Route> {
        let prefix = Prefix::new(std::net::Ipv6Addr::UNSPECIFIED, 0)?;
        let (gateway, interface) = (Some(self.address), self.interface);
        Some(Route { prefix, gateway, interface, metric: DEFAULT_METRIC, source: None })
    }
}

impl OnLink {
    fn route(&self) -> Route {
        let (prefix, interface) = (self.prefix, self.interface);
        Route { prefix, gateway: None, interface, metric: ON_LINK_METRIC, source: None }
    }
}

impl Autoconf {
    pub(super) fn next_deadline(&self) -> Option<Timestamp> {
        let asking = self.links.iter().filter(|link| link.left > 0).map(|link| link.at);
        let routers = self.routers.iter().map(|router| router.until);
        let prefixes = self.prefixes.iter().map(|prefix| prefix.until);
        asking.chain(routers).chain(prefixes).filter(|at| *at != FOR_EVER).min()
    }

    fn hears(&self, id: InterfaceId) -> bool {
        self.links.iter().any(|link| link.interface == id)
    }

    fn link_mut(&mut self, id: InterfaceId) -> Option<&mut Link> {
        self.links.iter_mut().find(|link| link.interface == id)
    }

    /// Addresses or routers have begun to be looked for.
    pub(super) fn settle(&mut self, now: Timestamp) {
        self.settles_by = Some(now + SETTLING);
    }

    /// A route has been taken out.
    pub(super) fn disown(&mut self, route: &Route) {
        self.routes.retain(|ours| ours != route);
    }
}

impl Control {
    /// Lets the routers of a link say what its addresses and routes are. It asks for them.
    ///
    /// # Errors
    /// [`ControlError::NoInterface`], [`ControlError::NoEthernet`], [`ControlError::Mtu6`].
    pub fn autoconfigure(&mut self, now: Timestamp, id: InterfaceId) -> Result<(), ControlError> {
        self.stir();
        self.check(id)?;
        if self.mac(id).is_none() {
            return Err(ControlError::NoEthernet(self.interface(id).name.clone()));
        }
        self.enable_ipv6(now, id)?;
        if !self.autoconf.hears(id) {
            let news = Limit::new(BURST, REFILL);
            self.autoconf.links.push(Link { interface: id, left: SOLICITATIONS, at: now, news });
            self.autoconf.settle(now);
        }
        Ok(())
    }

    /// Hears the routers of a link no more: what they have said goes, addresses and routes among it. The link-local address stays.
    /// `false`: they were not heard.
    pub fn stop_autoconfiguration(&mut self, id: InterfaceId) -> bool {
        if !self.autoconf.hears(id) {
            return false;
        }
        self.stir();
        self.autoconf.links.retain(|link| link.interface != id);
        self.forget_routers(|(link, _)| *link == id);
        let prefixes: Vec<OnLink> = self.autoconf.prefixes.extract_if(.., |on| on.interface == id).collect();
        for prefix in prefixes {
            self.remove_advertised(prefix.route());
        }
        let made = self.addresses.iter().filter(|our| our.automatic && our.interface == id);
        let made: Vec<Address> = made.map(|our| our.prefix.address()).collect();
        for address in made {
            self.remove_address(address);
        }
        self.links[usize::from(id.0)] = LinkValues::unsaid();
        self.neighbours.forget_times(id);
        self.changed = true;
        true
    }

    /// Whether it is still being found out what addresses and routers there are: for 16 seconds at most since an interface was last
    /// given an address or told to hear routers, whatever these say.
    pub fn is_settling(&self) -> bool {
        self.settles_by().is_some()
    }

    /// When that ends in any case; `None`: it has ended.
    pub(super) fn settles_by(&self) -> Option<Timestamp> {
        let tentative = |our: &OurAddress| our.state == AddressState::Tentative;
        // Where the link-local address is another station's, nobody is asked.
        let can_ask = |id: InterfaceId| {
            let usable = |our: &OurAddress| our.interface == id && our.state != AddressState::Duplicate;
            self.addresses.iter().any(|our| usable(our) && our.prefix.address().is_link_local())
        };
        let asking = self.autoconf.links.iter().any(|link| link.left > 0 && can_ask(link.interface));
        self.autoconf.settles_by.filter(|_| self.addresses.iter().any(tentative) || asking)
    }

    /// Where a route is from.
    pub fn origin(&self, now: Timestamp, route: &Route) -> Origin {
        let left = |until: Timestamp| (until != FOR_EVER).then(|| until.since(now));
        if self.autoconf.routes.contains(route) {
            let routers = self.autoconf.routers.iter().filter(|router| router.chosen);
            let routers = routers.map(|router| (router.route(), router.until));
            let prefixes = self.autoconf.prefixes.iter().map(|on| (Some(on.route()), on.until));
            let told = routers.chain(prefixes).find(|(theirs, _)| theirs.as_ref() == Some(route));
            return Origin::Router(told.and_then(|(_, until)| left(until)));
        }
        if let Some(until) = self.redirects.until(route) {
            return Origin::Redirect(until.since(now));
        }
        let brought = |our: &OurAddress| our.routed && our.route() == *route;
        if self.addresses.iter().any(brought) { Origin::Address } else { Origin::User }
    }

    /// Takes a router advertisement (RFC 4861, 6.1.2 and 6.3.4).
    pub(super) fn router_advertised(&mut self, now: Timestamp, received: &Received<'_>) {
        let id = received.interface;
        let Ok((router, options)) = RouterAdvertisement::read_from_prefix(received.bytes) else { return };
        let right = received.is_from_the_link() && received.source.is_link_local();
        if !right || self.forwarding || ndp::options(options).is_none() {
            return;
        }
        let Some(link) = self.autoconf.link_mut(id) else { return };
        if !link.news.allow(now) {
            return;
        }
        if router.lifetime() > 0 {
            link.left = 0;
        }
        if let Some(mac) = ndp::link_address(options, ndp::SOURCE_LINK) {
            self.neighbours.heard(now, (id, received.source), mac, true);
        }
        let until = now + Duration::from_secs(router.lifetime().into());
        self.take_router((id, received.source), (until, router.preference()), now);
        let link = &mut self.links[usize::from(id.0)];
        if router.hop_limit() > 0 && link.hop_limit != router.hop_limit() {
            (link.hop_limit, self.changed) = (router.hop_limit(), true);
        }
        let millis = |field: u32| Duration::from_millis(field.into());
        self.neighbours.set_times(
            id,
            millis(router.reachable_time.get()),
            millis(router.retransmit_time.get()),
        );
        for (kind, option) in ndp::options(options).into_iter().flatten() {
            match kind {
                ndp::MTU => self.take_mtu(id, option),
                ndp::PREFIX => {
                    if let Ok(prefix) = PrefixInformation::read_from_bytes(option) {
                        self.take_prefix(now, id, &prefix);
                    }
                }
                _ => {}
            }
        }
    }

    fn take_mtu(&mut self, id: InterfaceId, option: &[u8]) {
        let Some(bytes) = option.get(4..8).and_then(|bytes| bytes.first_chunk::<4>()) else { return };
        let told = u32::from_be_bytes(*bytes);
        let link = &mut self.links[usize::from(id.0)];
        // RFC 4861, 6.3.4: from what every link takes on. Where the interface takes less, that counts, as long as it does.
        if told >= IPV6_MTU.into() {
            let mtu = u16::try_from(told).unwrap_or(u16::MAX);
            self.changed |= link.mtu != mtu;
            link.mtu = mtu;
        }
    }

    fn take_router(
        &mut self,
        key: (InterfaceId, Address),
        (until, preference): (Timestamp, RouterPreference),
        now: Timestamp,
    ) {
        if until <= now {
            return self.forget_routers(|router| *router == key);
        }
        let of_link = self.autoconf.routers.iter().filter(|router| router.interface == key.0).count();
        let mine = |router: &&mut Router| (router.interface, router.address) == key;
        if let Some(router) = self.autoconf.routers.iter_mut().find(mine) {
            self.changed |= router.preference != preference;
            (router.until, router.preference) = (until, preference);
            // It may have been taken out by hand.
            if let Some(route) = router.route().filter(|_| router.chosen) {
                self.enter_advertised(route);
            }
        } else if of_link < LIMIT {
            let (interface, address) = key;
            self.autoconf.routers.push(Router { interface, address, until, preference, chosen: false });
            self.changed = true;
        }
    }

    fn take_prefix(&mut self, now: Timestamp, id: InterfaceId, option: &PrefixInformation) {
        let after = |seconds: u32| {
            if seconds == u32::MAX { FOR_EVER } else { now + Duration::from_secs(seconds.into()) }
        };
        let (valid, preferred) = (after(option.valid.get()), after(option.preferred.get()));
        let Some(prefix) = Prefix::new(option.prefix(), option.prefix_length) else { return };
        let prefix = prefix.network();
        let address = prefix.address();
        // RFC 4861, 6.3.4: the link-local prefix is ours anyway. A group's is nobody's.
        if address.has_zone() || address.is_multicast() || address.is_v4() {
            return;
        }
        if option.is_on_link() {
            self.take_on_link(now, OnLink { interface: id, prefix, until: valid });
        }
        // RFC 4862, 5.5.3: 64 bits of prefix and 64 of interface make an address.
        if option.is_autonomous() && preferred <= valid && option.prefix_length == 64 {
            self.take_autonomous(now, id, prefix, (preferred, valid));
        }
    }

    fn take_on_link(&mut self, now: Timestamp, new: OnLink) {
        let same = |old: &OnLink| old.interface == new.interface && old.prefix == new.prefix;
        let known = self.autoconf.prefixes.iter().position(same);
        let of_link = self.autoconf.prefixes.iter().filter(|old| old.interface == new.interface).count();
        match known {
            Some(at) if new.until <= now => {
                self.autoconf.prefixes.remove(at);
                self.remove_advertised(new.route());
            }
            Some(at) => {
                self.autoconf.prefixes[at].until = new.until;
                self.enter_advertised(new.route());
            }
            None if new.until > now && of_link < LIMIT => {
                self.autoconf.prefixes.push(new);
                self.enter_advertised(new.route());
            }
            None => {}
        }
    }

    /// RFC 4862, 5.5.3 (d) and (e).
    fn take_autonomous(
        &mut self,
        now: Timestamp,
        id: InterfaceId,
        prefix: Prefix,
        (preferred, valid): (Timestamp, Timestamp),
    ) {
        let Some(mac) = self.mac(id) else { return };
        let bits = prefix.address().bits() | interface_identifier(mac);
        let Some(ours) = Prefix::new(std::net::Ipv6Addr::from_bits(bits), 64) else { return };
        let mine = self.addresses.iter_mut().find(|our| our.prefix.address() == ours.address());
        if let Some(our) = mine {
            if our.automatic {
                our.preferred_until = preferred;
                let left = our.valid_until.since(now);
                if valid.since(now) > TWO_HOURS || valid > our.valid_until {
                    our.valid_until = valid;
                } else if left > TWO_HOURS {
                    our.valid_until = now + TWO_HOURS;
                }
            }
            return;
        }
        let automatic = self.addresses.iter().filter(|our| our.automatic && our.interface == id).count();
        if valid > now && automatic < LIMIT {
            self.assign(now, id, ours, (preferred, valid), true, 1);
        }
    }

    /// Asks for routers, and forgets those and the prefixes that nobody has spoken of for long.
    pub(super) fn advance_autoconf(&mut self, now: Timestamp, pool: &mut Pool) {
        self.autoconf.settles_by.take_if(|by| *by <= now);
        let due = self.autoconf.links.iter().filter(|link| link.left > 0 && link.at <= now);
        let due: Vec<InterfaceId> = due.map(|link| link.interface).collect();
        for id in due {
            // RFC 4861, 6.3.7: from an address of ours, so after it has been found to be ours alone.
            let group = Address::link_group(2, id);
            let Some(source) = self.address_on(Some(id), group).filter(|ours| ours.is_link_local()) else {
                let pending = self
                    .addresses
                    .iter()
                    .any(|our| our.interface == id && our.state == AddressState::Tentative);
                self.postpone(id, now, if pending { Duration::from_millis(100) } else { INTERVAL }, 0);
                continue;
            };
            let sent = self.solicit_routers(id, source, group, pool);
            let (by, used) = if sent { (INTERVAL, 1) } else { (BURST_INTERVAL, 0) };
            self.postpone(id, now, by, used);
        }
        let gone: Vec<_> = self
            .autoconf
            .routers
            .iter()
            .filter(|router| router.until <= now)
            .map(|router| (router.interface, router.address))
            .collect();
        if !gone.is_empty() {
            self.forget_routers(|router| gone.contains(router));
        }
        let late: Vec<OnLink> = self.autoconf.prefixes.extract_if(.., |p| p.until <= now).collect();
        for prefix in late {
            self.remove_advertised(prefix.route());
        }
    }

    fn postpone(&mut self, id: InterfaceId, now: Timestamp, by: Duration, used: u8) {
        if let Some(link) = self.autoconf.link_mut(id) {
            (link.at, link.left) = (now + by, link.left.saturating_sub(used));
        }
    }

    /// `false`: there is no frame.
    fn solicit_routers(&mut self, id: InterfaceId, source: Address, group: Address, pool: &mut Pool) -> bool {
        let Some(mac) = self.mac(id) else { return true };
        let header =
            IcmpHeader { kind: icmpv6::ROUTER_SOLICITATION, code: 0, checksum: 0.into(), rest: 0.into() };
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(header.as_bytes());
        bytes[8..].copy_from_slice(&ndp::link_option(ndp::SOURCE_LINK, mac));
        let hop_limit = ndp::HOP_LIMIT;
        let message =
            Message { interface: id, source, destination: group, to: None, hop_limit, alert: false };
        self.send_message(&message, &mut bytes, pool)
    }

    /// Forgets default routers.
    pub(super) fn forget_routers(&mut self, wanted: impl Fn(&(InterfaceId, Address)) -> bool) {
        let gone: Vec<Router> =
            self.autoconf.routers.extract_if(.., |r| wanted(&(r.interface, r.address))).collect();
        for route in gone.iter().filter(|router| router.chosen).filter_map(Router::route) {
            self.remove_advertised(route);
        }
        // RFC 4861, 6.3.5 and 7.3.3: what goes by one of them is to find its way again, also by one that was known from a
        // redirect alone.
        self.forget_redirects(|route| route.gateway.is_some_and(|hop| wanted(&(route.interface, hop))));
        self.changed |= !gone.is_empty();
    }

    /// Sends the default route through a router that is probably reachable, if there is one; else through one after the
    /// other, each until it has failed (RFC 4861, 6.3.6). Of several that are, through one that others are not preferred to
    /// (RFC 4191, 3.2), the one that is used or else whose turn comes first.
    pub(super) fn choose_routers(&mut self) {
        use NeighbourState::{Failed, Incomplete};
        let state = |router: &Router| self.neighbours.state((router.interface, router.address));
        let reachable = |router: &Router| !matches!(state(router), None | Some(Incomplete | Failed));
        let routers = &self.autoconf.routers;
        let known = routers.iter().enumerate().filter(|(_, router)| reachable(router));
        let best = known.min_by_key(|(_, router)| Reverse(router.preference)).map(|(at, _)| at);
        let best = best.or_else(|| routers.iter().position(|router| state(router) != Some(Failed)));
        let best = best.unwrap_or(0);
        if routers.get(best).is_none_or(|router| router.chosen) {
            return;
        }
        if let Some(old) = self.autoconf.routers.iter_mut().find(|router| router.chosen) {
            old.chosen = false;
            if let Some(route) = old.route() {
                self.remove_advertised(route);
            }
        }
        // Its next turn comes after all others'.
        self.autoconf.routers.rotate_left(best);
        self.autoconf.routers[0].chosen = true;
        if let Some(route) = self.autoconf.routers[0].route() {
            self.enter_advertised(route);
        }
        self.changed = true;
    }

    /// Enters a route that a router has told of, if it is not there, behind those of the user. One that the user has given stays
    /// the user's.
    fn enter_advertised(&mut self, route: Route) {
        if !self.routes.of(route.prefix).contains(&route) {
            self.routes.add(route);
            self.autoconf.routes.push(route);
            self.changed = true;
        }
    }

    fn remove_advertised(&mut self, route: Route) {
        if self.autoconf.routes.contains(&route) {
            self.autoconf.disown(&route);
            self.routes.remove(&route);
            self.changed = true;
        }
    }
}
