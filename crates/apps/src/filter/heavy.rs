//! Who sends most above a limit: a few are known by name, in memory of a fixed size.
//!
//! Limits know hashes alone, and there are too many keys to look through. So whoever is above a limit is held against the
//! lightest of those that are listed now and then, when its packets of the last second have doubled: that is seldom, also under a
//! flood from a million sources. Who stops makes room.

use std::fmt::{self, Display};
use std::net::{IpAddr, SocketAddr};

use bywash_sys::clock::SECOND;
use bywash_wire::Protocol;

/// So many are known of each limit, and of each worker's, at most.
pub(super) const MOST: usize = super::MOST_TOP as usize;

/// Whom a limit counts packets for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Sender {
    /// A prefix, by its first address.
    Source { first: IpAddr, bits: u8 },
    /// All of a protocol with these addresses and, where they have some, ports, from and to.
    Flow { protocol: u8, from: IpAddr, to: IpAddr, ports: Option<[u16; 2]> },
}

impl Display for Sender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Source { first, bits } => write!(f, "{first}/{bits}"),
            Self::Flow { protocol, from, to, ports } => {
                write!(f, "{} ", Protocol(protocol))?;
                match ports {
                    Some([source, destination]) => {
                        write!(f, "{} -> {}", SocketAddr::new(from, source), SocketAddr::new(to, destination))
                    }
                    None => write!(f, "{from} -> {to}"),
                }
            }
        }
    }
}

/// What is above a limit, of one key: since when packets are counted, in nanoseconds, 0 until there is one; those since then, those of
/// the second before that, and all; and how many had been within the limit when the second began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Above(pub(super) [u64; Self::WORDS]);

impl Above {
    pub(super) const WORDS: usize = 5;

    /// Counts a packet; a second is over when there is one after it. So many have been `within` the limit until now. Returns how many
    /// have come in the second, within the limit and above; on average, when it took longer.
    pub(super) fn count(&mut self, now: u64, within: u32) -> u64 {
        let [since, packets, before, all, within_then] = &mut self.0;
        *all += 1;
        if *since == 0 {
            // Its second begins here, also by a clock that has just begun: the burst was allowed.
            (*since, *packets, *within_then) = (now.max(1), 1, within.into());
            return 1;
        }
        let age = now.saturating_sub(*since);
        *packets += 1;
        // Both are as long as the counter of those within.
        let within_then_short = u32::try_from(*within_then).unwrap_or(0);
        let came = *packets + u64::from(within.wrapping_sub(within_then_short));
        if age > SECOND {
            *before = if age > 2 * SECOND { 0 } else { *packets - 1 };
            (*since, *packets, *within_then) = (now, 1, within.into());
        }
        let in_second = u128::from(came) * u128::from(SECOND) / u128::from(age.max(SECOND));
        u64::try_from(in_second).unwrap_or(u64::MAX)
    }

    /// Packets of the second that is not over.
    pub(super) fn packets(&self) -> u64 {
        self.0[1]
    }

    /// All packets.
    pub(super) fn all(&self) -> u64 {
        self.0[3]
    }

    /// Counts the second's packets from 0 on.
    pub(super) fn begin_again(&mut self, within: u32) {
        let [_, packets, before, _, within_then] = &mut self.0;
        (*packets, *before, *within_then) = (0, (*before).max(*packets), within.into());
    }

    /// About how many there were in the last second.
    pub(super) fn recent(&self, now: u64) -> u64 {
        let [since, packets, before, ..] = self.0;
        if now.saturating_sub(since) > 2 * SECOND { 0 } else { packets.max(before) }
    }
}

/// Where a limit counts for a key, and what tells that it is still that key's place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) set: usize,
    pub(super) way: usize,
    pub(super) tag: u32,
}

/// One of those that send most above a limit.
#[derive(Clone, Copy, Debug)]
pub(super) struct Hitter {
    pub(super) who: Sender,
    /// Packets within the limit.
    pub(super) within: u64,
    pub(super) above: Above,
}

/// Those that send most above one limit.
pub(super) struct Heaviest {
    /// As many as there is room for at most: none comes while packets do.
    known: Vec<(Sender, Place)>,
    /// What the lightest of them had in the last second, when somebody looked; 0 while there is room.
    least: u64,
    /// Until when that counts, in nanoseconds: it falls when floods end.
    until: u64,
}

impl Heaviest {
    /// Room for so many.
    pub(super) fn of(most: usize) -> Self {
        Self { known: Vec::with_capacity(most), least: 0, until: 0 }
    }

    pub(super) fn all(&self) -> impl Iterator<Item = (Sender, Place)> {
        self.known.iter().copied()
    }

    /// Whether it is worth a look whether this key is one of the heaviest.
    #[inline]
    pub(super) fn may_be_one(&self, above: &Above, now: u64) -> bool {
        above.packets().is_power_of_two() && (above.packets() > self.least || now > self.until)
    }

    /// Lists a key if it is heavier than the lightest one. `counted` is what is counted at a place, as long as it is the same
    /// key's.
    #[cold]
    pub(super) fn offer(
        &mut self,
        who: Sender,
        place: Place,
        now: u64,
        counted: impl Fn(Place) -> Option<Above>,
    ) {
        if self.known.iter().any(|(_, known)| *known == place) {
            return;
        }
        if self.known.len() < self.known.capacity() {
            return self.known.push((who, place));
        }
        let recent = |place| counted(place).map_or(0, |above| above.recent(now));
        let each = self.known.iter().enumerate().map(|(index, (_, place))| (recent(*place), index));
        let Some((least, index)) = each.min() else { return };
        (self.least, self.until) = (least, now + SECOND);
        if recent(place) > least {
            self.known[index] = (who, place);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn senders_are_told_as_people_write_them() {
        let [from, to] = ["192.0.2.0", "192.0.2.9"].map(|text| text.parse().unwrap());
        let six = "2001:db8::1".parse().unwrap();
        let told = [
            Sender::Source { first: from, bits: 24 },
            Sender::Flow { protocol: 17, from: to, to: from, ports: Some([5000, 53]) },
            Sender::Flow { protocol: 6, from: six, to: six, ports: Some([1, 2]) },
            Sender::Flow { protocol: 47, from: six, to: six, ports: None },
        ];
        let expected = [
            "192.0.2.0/24",
            "UDP 192.0.2.9:5000 -> 192.0.2.0:53",
            "TCP [2001:db8::1]:1 -> [2001:db8::1]:2",
            "GRE 2001:db8::1 -> 2001:db8::1",
        ];
        assert_eq!(told.map(|sender| sender.to_string()), expected);
    }

    #[test]
    fn the_last_second_counts_until_two_have_passed_without_a_packet() {
        let mut above = Above::default();
        let count = |above: &mut Above, now| {
            above.count(now, 0);
        };
        (0..100).for_each(|n| count(&mut above, 9 * SECOND + n));
        count(&mut above, 10 * SECOND + 1);
        assert_eq!((above.packets(), above.recent(10 * SECOND), above.all()), (1, 100, 101));
        above.begin_again(0);
        assert_eq!((above.packets(), above.recent(11 * SECOND)), (0, 100));
        assert_eq!(above.recent(13 * SECOND), 0);
        count(&mut above, 20 * SECOND);
        assert_eq!((above.recent(20 * SECOND), above.all()), (1, 102));
    }

    #[test]
    fn what_comes_in_a_second_is_what_was_within_and_what_was_above() {
        let mut above = Above::default();
        above.count(9 * SECOND, 0);
        // The counter of those within goes round in between.
        above.begin_again(u32::MAX - 1);
        assert_eq!(above.count(9 * SECOND + SECOND / 2, 3), 1 + 5);
        assert_eq!(above.count(10 * SECOND, 4), 2 + 6);
        assert_eq!(above.count(11 * SECOND, 12), (3 + 14) / 2, "in two seconds");
        assert_eq!(above.count(11 * SECOND, 13), 2 + 1);
        above.begin_again(13);
        assert_eq!(above.count(11 * SECOND, 14), 1 + 1);
    }

    #[test]
    fn the_heaviest_of_the_last_second_are_listed_and_who_stops_makes_room() {
        let sender =
            |n: usize| Sender::Source { first: [10, 0, 0, u8::try_from(n).unwrap()].into(), bits: 32 };
        let place = |n: usize| Place { set: n, way: 0, tag: 1 };
        let mut counts = vec![Above::default(); 200];
        let mut heaviest = Heaviest::of(MOST);
        let mut send = |heaviest: &mut Heaviest, n: usize, packets: u64, at: u64| {
            for _ in 0..packets {
                counts[n].count(at, 0);
                if heaviest.may_be_one(&counts[n], at) {
                    heaviest.offer(sender(n), place(n), at, |place| Some(counts[place.set]));
                }
            }
        };
        // The later, the heavier; the last 64 are the heaviest.
        (0..100).for_each(|n| send(&mut heaviest, n, 1 << (n / 10), 5 * SECOND));
        let listed = |heaviest: &Heaviest| heaviest.all().map(|(_, place)| place.set).collect::<Vec<_>>();
        let known = listed(&heaviest);
        assert_eq!(known.len(), MOST);
        assert!((40..100).all(|n| known.contains(&n)), "{known:?}");
        // All of them stop: one packet is enough.
        send(&mut heaviest, 150, 1, 60 * SECOND);
        assert!(listed(&heaviest).contains(&150));
    }
}
