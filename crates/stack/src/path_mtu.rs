//! What paths take, as far as routers have told (RFC 1191, RFC 8201).

use std::collections::HashMap;
use std::time::Duration;

use bywash_wire::{IPV4_MTU, IPV6_MTU};

use crate::ends::Ends;
use crate::{Address, Timestamp};

/// How long it counts: then a larger packet is tried again (RFC 8201, 5.3 and RFC 1191, 6.3: ten minutes).
const LIFE: Duration = Duration::from_secs(600);
/// Destinations at most: who makes up errors must not fill memory.
const LIMIT: usize = 4096;

/// What is believed of a path to a destination by an error that anyone may have made up. IPv4: the least that links have (RFC
/// 1191, 7.1). IPv6: RFC 8200, 5.
pub(crate) fn smallest(destination: Address) -> u16 {
    if destination.is_v4() { 296 } else { IPV6_MTU }
}

/// What no path is narrower than: what a connection believes, for an error must name a number of it that is in flight.
/// IPv4: RFC 791, 3.2.
pub(crate) fn least(destination: Address) -> u16 {
    if destination.is_v4() { IPV4_MTU } else { IPV6_MTU }
}

/// Path MTUs by destination. Who asks has found the error to be about a packet of ours.
#[derive(Debug, Default)]
pub(crate) struct PathMtus {
    known: HashMap<Address, (u16, Timestamp)>,
    /// The same in the order in which they end: whoever makes up errors must not have the table searched for each.
    ends: Ends<Address>,
}

impl PathMtus {
    /// Takes what a router has told. A path gets wider only by time, never by a message.
    pub(crate) fn learn(&mut self, now: Timestamp, destination: Address, mtu: u16) {
        while let Some((_, over)) = self.ends.first().filter(|(until, _)| *until <= now) {
            self.forget(over);
        }
        let known = self.forget(destination);
        if self.known.len() >= LIMIT
            && let Some((_, oldest)) = self.ends.first()
        {
            // The longest known makes room: all of them are about packets of ours, and none is worth more.
            self.forget(oldest);
        }
        let mtu = mtu.max(smallest(destination));
        let (mtu, until) = (known.map_or(mtu, |known| mtu.min(known)), now + LIFE);
        self.known.insert(destination, (mtu, until));
        self.ends.insert(until, destination);
    }

    fn forget(&mut self, destination: Address) -> Option<u16> {
        let (mtu, until) = self.known.remove(&destination)?;
        self.ends.remove(until, destination);
        Some(mtu)
    }

    /// What the path takes, if that is less than its first link does.
    #[inline]
    pub(crate) fn find(&self, now: Timestamp, destination: Address) -> Option<u16> {
        if self.known.is_empty() {
            return None;
        }
        self.known.get(&destination).filter(|(_, until)| *until > now).map(|(mtu, _)| *mtu)
    }
}

/// Where packets went that could be too big for a path: hashes of flows, each in the one place it can have, which it loses to a
/// newer one.
#[derive(Debug, Default)]
pub(crate) struct Large(Vec<u64>);

impl Large {
    const PLACES: usize = 4096;

    #[expect(clippy::cast_possible_truncation, reason = "the lower bits")]
    fn place(hash: u64) -> usize {
        hash as usize % Self::PLACES
    }

    pub(crate) fn note(&mut self, hash: u64) {
        if self.0.is_empty() {
            self.0.resize(Self::PLACES, 0);
        }
        self.0[Self::place(hash)] = hash;
    }

    pub(crate) fn holds(&self, hash: u64) -> bool {
        self.0.get(Self::place(hash)) == Some(&hash)
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    #[test]
    fn the_narrowest_counts_for_ten_minutes() {
        let at = |seconds: u64| Timestamp::from_nanos(seconds * 1_000_000_000);
        let to = |i: u32| Address::from(Ipv4Addr::from_bits(i));
        let mut all = PathMtus::default();
        all.learn(at(1), to(1), 1400);
        all.learn(at(2), to(1), 1300);
        all.learn(at(3), to(1), 1350);
        assert_eq!((all.find(at(602), to(1)), all.find(at(604), to(1))), (Some(1300), None));
        all.learn(at(604), to(1), 1350);
        assert_eq!(all.find(at(605), to(1)), Some(1350));
        (2..9000).for_each(|i| all.learn(at(605), to(i), 1300));
        assert_eq!(all.known.len(), LIMIT);
        assert_eq!(all.find(at(606), to(8999)), Some(1300), "the newest has a place");
        all.learn(at(606), to(1), 60);
        assert_eq!(all.find(at(607), to(1)), Some(296), "and no path is so narrow");
        all.learn(at(5000), to(9999), 1300);
        assert_eq!(all.known.len(), 1, "old ones make room");
    }

    #[test]
    fn the_longest_known_makes_room() {
        let now = Timestamp::from_nanos(1);
        let to = |i: usize| Address::from(Ipv4Addr::from_bits(u32::try_from(i).unwrap()));
        let mut all = PathMtus::default();
        for i in 0..6 * LIMIT {
            all.learn(now + Duration::from_nanos(i as u64), to(i), 1300);
        }
        all.learn(now + LIFE / 2, to(5 * LIMIT), 1300);
        all.learn(now + LIFE / 2, to(0), 1300);
        let found = |i: usize| all.find(now + LIFE / 2, to(i)).is_some();
        assert!(found(5 * LIMIT) && found(0) && found(5 * LIMIT + 2) && !found(5 * LIMIT + 1));
        assert_eq!((all.known.len(), all.ends.len()), (LIMIT, LIMIT));
    }
}
