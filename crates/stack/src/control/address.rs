//! Our addresses: given by hand or made of what routers say, and first looked for on the link: those of IPv6 always (RFC 4862,
//! 5.4), those of IPv4 where that is wanted (RFC 5227, 2.1).

use std::hash::Hasher;
use std::time::Duration;

use bywash_frame::Pool;
use bywash_wire::{IPV6_MTU, Mac};
use siphasher::sip::SipHasher13;

use super::{ADVERTISEMENTS, ANNOUNCEMENTS, BURST_INTERVAL, Control, ControlError, mac_of};
use crate::snapshot::Local;
use crate::{Address, InterfaceId, Prefix, Route, Timestamp};

/// How long at least nobody must have claimed a new address (RFC 4862, 5.1: one solicitation; RFC 4861, 10: RETRANS_TIMER).
const PROBE: Duration = Duration::from_secs(1);
/// How long at most before its group is joined and it is asked for (RFC 4862, 5.4.2; RFC 4861, 10: MAX_RTR_SOLICITATION_DELAY).
const DELAY: Duration = Duration::from_secs(1);
/// How often an IPv4 address is asked for before it is used, how long at most before the first time, how far apart, and how long
/// after the last nobody must have claimed it (RFC 5227, 1.1: PROBE_NUM, PROBE_WAIT, PROBE_MIN, PROBE_MAX, ANNOUNCE_WAIT).
const PROBES: u8 = 3;
const PROBE_WAIT: Duration = Duration::from_secs(1);
const PROBE_MIN: Duration = Duration::from_secs(1);
const PROBE_MAX: Duration = Duration::from_secs(2);
const ANNOUNCE_WAIT: Duration = Duration::from_secs(2);
/// How far apart an address is defended (RFC 5227, 1.1: DEFEND_INTERVAL).
const DEFEND_INTERVAL: Duration = Duration::from_secs(10);
pub(super) const FOR_EVER: Timestamp = Timestamp::from_nanos(u64::MAX);

/// How far an address is ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AddressState {
    /// Nobody else may have it: that is being found out, and until then it is not used.
    Tentative,
    /// It is used.
    Preferred,
    /// It is used by conversations that have it; new ones should take another.
    Deprecated,
    /// Another station has it: it is not used. Take it away and give another.
    Duplicate,
}

/// How often other stations have claimed an address of ours.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Claims {
    /// Packets that did.
    pub count: u64,
    /// The Ethernet address in the last of them that had one.
    pub by: Option<Mac>,
}

/// How long an address stays ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lifetimes {
    /// It was made of what a router has said.
    pub dynamic: bool,
    /// How long new conversations may use it (RFC 4862, 5.5.4); for ever when `None`.
    pub preferred: Option<Duration>,
    /// How long it is ours; for ever when `None`.
    pub valid: Option<Duration>,
}

/// One of our addresses.
#[derive(Clone, Debug)]
pub(super) struct OurAddress {
    pub(super) prefix: Prefix,
    pub(super) interface: InterfaceId,
    pub(super) state: AddressState,
    /// While it is tentative: when the next question is to go out, or the last has been out for long enough.
    next_step: Timestamp,
    /// Questions still to be sent.
    probes: u8,
    claims: Claims,
    /// When it was last defended.
    defended: Option<Timestamp>,
    pub(super) preferred_until: Timestamp,
    pub(super) valid_until: Timestamp,
    /// Made of a router's prefix.
    pub(super) automatic: bool,
    /// The route to its prefix was entered for it, or for another one of that prefix. One given by hand is none of them.
    pub(super) routed: bool,
}

impl OurAddress {
    /// The route to its prefix, if it has brought one.
    pub(super) fn route(&self) -> Route {
        Route {
            prefix: self.prefix.network(),
            gateway: None,
            interface: self.interface,
            metric: 0,
            source: None,
        }
    }

    /// What stacks are told of it.
    pub(super) fn usable(&self) -> Option<Local> {
        use AddressState::{Deprecated, Preferred};
        matches!(self.state, Preferred | Deprecated).then_some(Local {
            prefix: self.prefix,
            interface: self.interface,
            deprecated: self.state == Deprecated,
        })
    }

    /// How long to wait after a question for the next, or for its being in use. `mac`: of its interface. `retransmit`: how far
    /// questions are apart on its link.
    fn pause(&self, now: Timestamp, mac: Mac, retransmit: Duration) -> Duration {
        match (self.prefix.address().is_v4(), self.probes) {
            // RFC 4862, 5.4: where answers take long, a router has said so.
            (false, _) => PROBE.max(retransmit),
            (true, 0) => ANNOUNCE_WAIT,
            (true, _) => PROBE_MIN + jitter(now, mac, PROBE_MAX - PROBE_MIN),
        }
    }
}

/// A time from zero to `most` that is another on each host and each time, so that hosts which were switched on together do
/// not ask together (RFC 5227, 2.1.1). Nobody gains by guessing it.
fn jitter(now: Timestamp, mac: Mac, most: Duration) -> Duration {
    let mut hasher = SipHasher13::new();
    hasher.write(&mac.0);
    hasher.write_u64(now.as_nanos());
    let (most, hash) = (most.as_nanos(), u128::from(hasher.finish()));
    Duration::from_nanos(u64::try_from((most * hash) >> 64).unwrap_or(0))
}

impl Control {
    /// Gives an interface an address, with a route to its prefix. An IPv4 address is used at once and announced; an IPv6
    /// one is used after one to two seconds in which nobody else has claimed it, or more where a router has said that answers take
    /// longer, and the first brings the link-local one with it, which every link has (RFC 4291, 2.8).
    ///
    /// # Errors
    /// [`ControlError::NoInterface`], [`ControlError::Mtu6`], [`ControlError::NoHost`], [`ControlError::Inside`],
    /// [`ControlError::Ours`].
    pub fn add_address(
        &mut self,
        now: Timestamp,
        id: InterfaceId,
        prefix: Prefix,
    ) -> Result<(), ControlError> {
        self.give(now, id, prefix, false, false)
    }

    /// As [`Control::add_address`], but on Ethernet an IPv4 address is first looked for, too, as every host should
    /// (RFC 5227, 2.1): it is used after 4 to 7 seconds in which nobody else has claimed it.
    ///
    /// # Errors
    /// As [`Control::add_address`].
    pub fn add_address_if_free(
        &mut self,
        now: Timestamp,
        id: InterfaceId,
        prefix: Prefix,
    ) -> Result<(), ControlError> {
        self.give(now, id, prefix, true, false)
    }

    /// As [`Control::add_address`], or with `if_free` as [`Control::add_address_if_free`]; but if the interface has the address,
    /// it stays in use, with the prefix length that is given now and for ever. One that another station had is tried again.
    ///
    /// # Errors
    /// As [`Control::add_address`]; it may be another interface's.
    pub fn replace_address(
        &mut self,
        now: Timestamp,
        id: InterfaceId,
        prefix: Prefix,
        if_free: bool,
    ) -> Result<(), ControlError> {
        self.give(now, id, prefix, if_free, true)
    }

    fn give(
        &mut self,
        now: Timestamp,
        id: InterfaceId,
        prefix: Prefix,
        probe: bool,
        replace: bool,
    ) -> Result<(), ControlError> {
        self.stir();
        self.check(id)?;
        let prefix = prefix.with_zone(id);
        let address = prefix.address();
        if !address.is_host() || prefix.broadcast() == Some(address) {
            return Err(ControlError::NoHost(address));
        }
        if address.is_loopback() {
            // RFC 1122, 3.2.1.3 (g): on a link nobody could use it.
            return Err(ControlError::Inside(address));
        }
        if let Some(at) = self.addresses.iter().position(|our| our.prefix.address() == address) {
            let our = &self.addresses[at];
            if !replace || our.interface != id {
                return Err(ControlError::Ours(address));
            }
            if our.state != AddressState::Duplicate {
                self.keep(at, prefix);
                return Ok(());
            }
            if !address.is_v4() {
                self.check_mtu6(id)?;
            }
            // Routes from it stay: it is given anew, and nothing can hinder that any more.
            self.take_away(address);
        }
        if address.is_v4() {
            self.assign(now, id, prefix, (FOR_EVER, FOR_EVER), false, if probe { PROBES } else { 0 });
            if !probe && self.mac(id).is_some() {
                self.announcements.push((now, id, address, ANNOUNCEMENTS));
            }
            return Ok(());
        }
        self.enable_ipv6(now, id)?;
        // It may have been the link-local one.
        if !self.is_on(id, address) {
            self.assign(now, id, prefix, (FOR_EVER, FOR_EVER), false, 1);
        }
        Ok(())
    }

    /// Gives an address of ours another prefix length and no end. Nobody else has it: it is not asked for again.
    fn keep(&mut self, at: usize, prefix: Prefix) {
        let our = &self.addresses[at];
        let (old, id) = (our.route(), our.interface);
        if our.prefix == prefix && !our.automatic {
            return;
        }
        let was_routed = std::mem::take(&mut self.addresses[at].routed);
        self.leave_route(old, was_routed);
        let our = &mut self.addresses[at];
        our.prefix = prefix;
        (our.preferred_until, our.valid_until, our.automatic) = (FOR_EVER, FOR_EVER, false);
        if our.state == AddressState::Deprecated {
            our.state = AddressState::Preferred;
        }
        let route = our.route();
        self.addresses[at].routed = self.enter_own(route);
        self.forget_redirects(|route| route.interface == id);
        self.changed = true;
    }

    /// Enters the route to an address's prefix; `false` if it was given by hand.
    fn enter_own(&mut self, route: Route) -> bool {
        if self.routes.of(route.prefix).contains(&route) {
            return self.addresses.iter().any(|our| our.routed && our.route() == route);
        }
        self.routes.add(route);
        true
    }

    /// An address needs the route to its prefix no more, which it or another one has brought if `routed`.
    fn leave_route(&mut self, route: Route, routed: bool) {
        if routed && !self.addresses.iter().any(|our| our.routed && our.route() == route) {
            self.routes.remove(&route);
        }
    }

    /// Gives an Ethernet interface its link-local address (RFC 4862, 5.3), if it has none.
    ///
    /// # Errors
    /// [`ControlError::NoInterface`], [`ControlError::Mtu6`].
    pub fn enable_ipv6(&mut self, now: Timestamp, id: InterfaceId) -> Result<(), ControlError> {
        self.stir();
        self.check(id)?;
        self.check_mtu6(id)?;
        let has_one = |our: &OurAddress| our.interface == id && our.prefix.address().is_link_local();
        if let Some(mac) = self.mac(id)
            && !self.addresses.iter().any(has_one)
            && let Some(prefix) = link_local(mac)
        {
            self.assign(now, id, prefix.with_zone(id), (FOR_EVER, FOR_EVER), false, 1);
        }
        Ok(())
    }

    /// Whether IPv6 can be used on an interface: RFC 8200, 5.
    fn check_mtu6(&self, id: InterfaceId) -> Result<(), ControlError> {
        let mtu = self.interface(id).mtu;
        if mtu < IPV6_MTU { Err(ControlError::Mtu6(mtu)) } else { Ok(()) }
    }

    /// Enters an address, and asks for it so many times if its link is one where others could have it. `until`: preferred
    /// and valid.
    pub(super) fn assign(
        &mut self,
        now: Timestamp,
        id: InterfaceId,
        prefix: Prefix,
        until: (Timestamp, Timestamp),
        automatic: bool,
        probes: u8,
    ) {
        if !automatic {
            self.autoconf.settle(now);
        }
        let mac = self.mac(id).filter(|_| probes > 0);
        let first = |mac| {
            let most = if prefix.address().is_v4() { PROBE_WAIT } else { DELAY };
            now + jitter(now, mac, most)
        };
        let begins = mac.map(first);
        let route = Route { prefix: prefix.network(), gateway: None, interface: id, metric: 0, source: None };
        let routed = !automatic && self.enter_own(route);
        self.addresses.push(OurAddress {
            prefix,
            interface: id,
            state: if mac.is_some() { AddressState::Tentative } else { AddressState::Preferred },
            next_step: begins.unwrap_or(FOR_EVER),
            probes,
            claims: Claims::default(),
            defended: None,
            preferred_until: until.0,
            valid_until: until.1,
            automatic,
            routed,
        });
        self.forget_redirects(|route| route.interface == id);
        self.changed = true;
        self.join(begins.unwrap_or(now), id, prefix.address());
    }

    /// Takes an address away, with the route to its prefix if that came with it and no other address needs it; `false` when it
    /// was not there. A link-local address is named with its zone. What becomes of routes whose source it is: see
    /// [`Control::enter_route`].
    pub fn remove_address(&mut self, address: Address) -> bool {
        let removed = self.take_away(address);
        if removed {
            self.forget_source(address);
        }
        removed
    }

    /// The same, where routes from it stay.
    fn take_away(&mut self, address: Address) -> bool {
        self.stir();
        let Some(at) = self.addresses.iter().position(|our| our.prefix.address() == address) else {
            return false;
        };
        let gone = self.addresses.remove(at);
        let id = gone.interface;
        self.leave_route(gone.route(), gone.routed);
        self.announcements.retain(|(_, _, a, _)| *a != address);
        self.forget_redirects(|route| route.interface == id);
        self.leave(id, address);
        self.changed = true;
        true
    }

    /// Takes addresses into use that nobody has claimed.
    pub(super) fn use_unclaimed(&mut self, now: Timestamp) {
        for our in &mut self.addresses {
            if our.state == AddressState::Tentative && our.probes == 0 && our.next_step <= now {
                (our.state, our.next_step) = (AddressState::Preferred, FOR_EVER);
                self.changed = true;
                // Neighbour discovery has no announcement that would be needed.
                if our.prefix.address().is_v4() {
                    let (id, address) = (our.interface, our.prefix.address());
                    self.announcements.push((now, id, address, ANNOUNCEMENTS));
                }
            }
        }
    }

    /// Has all addresses in use announced that a link is asked for: its own, and where it has none of IPv4, those of others.
    pub(super) fn announce_all(&mut self, now: Timestamp, id: InterfaceId) {
        self.announcements.retain(|(_, interface, ..)| *interface != id);
        let usable = || self.addresses.iter().filter_map(OurAddress::usable);
        let on_link = |ours: &Local| ours.interface == id;
        let lends = !usable().any(|ours| on_link(&ours) && ours.prefix.address().is_v4());
        for ours in usable() {
            let address = ours.prefix.address();
            if on_link(&ours) || lends && address.is_v4() {
                let times = if address.is_v4() { ANNOUNCEMENTS } else { ADVERTISEMENTS };
                self.announcements.push((now, id, address, times));
            }
        }
    }

    /// The link-local address that was made of an Ethernet address of before is given up for one of the present address if another
    /// station has it: that may be why the Ethernet address was changed.
    pub(super) fn replace_duplicate(&mut self, now: Timestamp, id: InterfaceId, before: Mac) {
        let old = link_local(before).map(|prefix| prefix.with_zone(id).address());
        if let Some(old) = old.filter(|old| self.state_of(id, *old) == Some(AddressState::Duplicate)) {
            self.take_away(old);
            // The MTU may have become too small for it meanwhile.
            let _ = self.enable_ipv6(now, id);
        }
    }

    /// Asks for new addresses, and lets old ones age. Of the questions that are due `most` are sent, for each of which there is a
    /// frame; how many were. The others keep their turns: an address whose question has not gone out has not been asked for (RFC
    /// 4862, 5.4).
    pub(super) fn advance_addresses(&mut self, now: Timestamp, most: usize, pool: &mut Pool) -> usize {
        let mut probes = Vec::new();
        let mut changed = false;
        let (interfaces, neighbours) = (&self.interfaces, &self.neighbours);
        for our in &mut self.addresses {
            let before = our.state;
            let mac = mac_of(&interfaces[usize::from(our.interface.0)]);
            if let Some(mac) = mac.filter(|_| our.next_step <= now) {
                if probes.len() == most {
                    our.next_step = now + BURST_INTERVAL;
                } else {
                    our.probes -= 1;
                    let key = (our.interface, our.prefix.address());
                    our.next_step = now + our.pause(now, mac, neighbours.retransmit(&key));
                    probes.push(key);
                }
            }
            if our.state == AddressState::Preferred && our.preferred_until <= now {
                our.state = AddressState::Deprecated;
            } else if our.state == AddressState::Deprecated && our.preferred_until > now {
                our.state = AddressState::Preferred;
            }
            changed |= our.state != before;
        }
        self.changed |= changed;
        let sent = probes.len();
        for (id, address) in probes {
            match address.v4() {
                Some(v4) => self.probe_v4(id, v4, pool),
                None => self.probe(id, address, pool),
            }
        }
        let gone: Vec<Address> = self
            .addresses
            .iter()
            .filter(|our| our.valid_until <= now)
            .map(|our| our.prefix.address())
            .collect();
        for address in gone {
            self.remove_address(address);
        }
        sent
    }

    pub(super) fn next_address_deadline(&self) -> Option<Timestamp> {
        let times = |our: &OurAddress| {
            let preferred = (our.state == AddressState::Preferred).then_some(our.preferred_until);
            [Some(our.next_step), preferred, Some(our.valid_until)]
        };
        self.addresses.iter().flat_map(times).flatten().filter(|at| *at != FOR_EVER).min()
    }

    /// Another station has claimed one of our addresses. While it is tentative that ends it (RFC 4862, 5.4.5; RFC 5227, 2.1.1);
    /// later it is counted, and an IPv4 address defended. Of the ways of RFC 5227, 2.4 this is (c), to keep the address: who
    /// gave it wants a server to have it, and by (a) or (b) two packets of anybody's would take it away.
    pub(super) fn claimed(&mut self, now: Timestamp, id: InterfaceId, address: Address, by: Option<Mac>) {
        self.counters.address_conflicts += 1;
        let ours = |our: &&mut OurAddress| our.interface == id && our.prefix.address() == address;
        let Some(our) = self.addresses.iter_mut().find(ours) else { return };
        our.claims.count += 1;
        our.claims.by = by.or(our.claims.by);
        match our.state {
            AddressState::Tentative => {
                (our.state, our.next_step) = (AddressState::Duplicate, FOR_EVER);
                self.changed = true;
            }
            // Not more often: two that both defend would never end.
            AddressState::Preferred | AddressState::Deprecated
                if address.is_v4() && our.defended.is_none_or(|at| at + DEFEND_INTERVAL <= now) =>
            {
                our.defended = Some(now);
                self.announcements.push((now, id, address, 1));
            }
            _ => {}
        }
    }

    /// How often others have claimed an address of ours since it was given.
    pub fn claims(&self, id: InterfaceId, address: Address) -> Claims {
        let ours = |our: &&OurAddress| our.interface == id && our.prefix.address() == address;
        self.addresses.iter().find(ours).map(|our| our.claims).unwrap_or_default()
    }

    /// How long an address stays ours, if it is.
    pub fn lifetimes(&self, now: Timestamp, id: InterfaceId, address: Address) -> Option<Lifetimes> {
        let ours = |our: &&OurAddress| our.interface == id && our.prefix.address() == address;
        let left = |until: Timestamp| (until != FOR_EVER).then(|| until.since(now));
        self.addresses.iter().find(ours).map(|our| Lifetimes {
            dynamic: our.automatic,
            preferred: left(our.preferred_until),
            valid: left(our.valid_until),
        })
    }

    pub(super) fn state_of(&self, id: InterfaceId, address: Address) -> Option<AddressState> {
        let ours = |our: &&OurAddress| our.interface == id && our.prefix.address() == address;
        self.addresses.iter().find(ours).map(|our| our.state)
    }
}

/// `fe80::/64` and the interface identifier of RFC 2464, 4.
fn link_local(mac: Mac) -> Option<Prefix> {
    Prefix::new(std::net::Ipv6Addr::from_bits(0xfe80 << 112 | interface_identifier(mac)), 64)
}

/// The lower half of an address, made of the Ethernet address (RFC 2464, 4).
pub(super) fn interface_identifier(mac: Mac) -> u128 {
    let [a, b, c, d, e, f] = mac.0;
    u64::from_be_bytes([a ^ 2, b, c, 0xff, 0xfe, d, e, f]).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_example_of_rfc_2464() {
        let prefix = link_local(Mac([0x34, 0x56, 0x78, 0x9a, 0xbc, 0xde])).unwrap();
        assert_eq!(prefix.to_string(), "fe80::3656:78ff:fe9a:bcde/64");
    }
}
