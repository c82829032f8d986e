//! What paths take, as far as routers have told (RFC 1191, RFC 8201).

use std::collections::HashMap;
use std::time::Duration;

use bywash_wire::{IPV4_MTU, IPV6_MTU};

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
}

impl PathMtus {
    /// Takes what a router has told. A path gets wider only by time, never by a message.
    pub(crate) fn learn(&mut self, now: Timestamp, destination: Address, mtu: u16) {
        let mtu = mtu.max(smallest(destination));
        if self.known.len() >= LIMIT && !self.known.contains_key(&destination) {
            self.known.retain(|_, (_, until)| *until > now);
            if self.known.len() >= LIMIT {
                // The longest known makes room: all of them are about packets of ours, and none is worth more.
                let oldest =
                    self.known.iter().min_by_key(|(of, (_, until))| (*until, **of)).map(|(of, _)| *of);
                oldest.map(|of| self.known.remove(&of));
            }
        }
        let (least, until) = self.known.entry(destination).or_insert((mtu, now));
        *least = if *until > now { mtu.min(*least) } else { mtu };
        *until = now + LIFE;
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
}
