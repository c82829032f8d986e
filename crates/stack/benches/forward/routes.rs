//! Routes about as the Internet's tables have them, and addresses that they hold.

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, Ipv6Addr};

use bywash_stack::Prefix;

/// Addresses in a table: more than any cache holds the ways to.
pub(crate) const ADDRESSES: usize = 1 << 20;

/// Numbers as good as random, the same in each run (xorshift64).
pub(crate) struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, end: u64) -> u64 {
        (self.next() >> 16) % end
    }
}

/// Prefixes, with the bits of their addresses, and addresses.
pub(crate) struct Family<T> {
    pub(crate) prefixes: Vec<(T, u8)>,
    pub(crate) addresses: Vec<T>,
}

/// Routes of one family.
pub(crate) enum Table {
    V4(Family<u32>),
    V6(Family<u128>),
}

impl Table {
    pub(crate) fn new(family: &str, routes: usize) -> Self {
        if family == "6" { Self::v6(routes) } else { Self::v4(routes) }
    }

    /// So many different prefixes from /16 to /24, most of them the longest; and addresses all over unicast space, for
    /// which there is a default route.
    pub(crate) fn v4(routes: usize) -> Self {
        let mut random = Random(0x9e37_79b9_7f4a_7c15);
        // Not ours, not loopback, no group.
        let address = |random: &mut Random| (0x0b00_0000 + random.below(0x7300_0000)) as u32;
        let mut prefixes = BTreeSet::from([(0, 0)]);
        while prefixes.len() < routes + 1 {
            let length = match random.below(100) {
                0..60 => 24,
                60..72 => 22,
                72..82 => 23,
                82..87 => 21,
                87..92 => 20,
                92..96 => 19,
                _ => 16 + random.below(3) as u8,
            };
            prefixes.insert((address(&mut random) & u32::MAX << (32 - length), length));
        }
        let addresses = (0..ADDRESSES).map(|_| address(&mut random)).collect();
        Self::V4(Family { prefixes: shuffled(prefixes, &mut random), addresses })
    }

    /// So many different prefixes from /29 to /48 in 2000::/12, nearly half of them the longest; and addresses in them:
    /// elsewhere there is nothing to find.
    pub(crate) fn v6(routes: usize) -> Self {
        let mut random = Random(0x9e37_79b9_7f4a_7c15);
        let mut prefixes = BTreeSet::new();
        while prefixes.len() < routes {
            let length = match random.below(100) {
                0..48 => 48,
                48..62 => 32,
                62..72 => 44,
                72..82 => 40,
                82..90 => 36,
                90..95 => 47,
                _ => 29,
            };
            let high = 0x2000 << 48 | random.next() >> 12;
            prefixes.insert((u128::from(high) << 64 & u128::MAX << (128 - length), length));
        }
        let prefixes = shuffled(prefixes, &mut random);
        let mut address = || {
            let (prefix, length) = prefixes[random.below(prefixes.len() as u64) as usize];
            let any = u128::from(random.next()) << 64 | u128::from(random.next());
            prefix | any >> length
        };
        let addresses = (0..ADDRESSES).map(|_| address()).collect();
        Self::V6(Family { prefixes, addresses })
    }

    pub(crate) fn prefixes(&self) -> Box<dyn Iterator<Item = Prefix> + '_> {
        match self {
            Self::V4(v4) => {
                let ips = v4.prefixes.iter().map(|(bits, length)| (Ipv4Addr::from_bits(*bits), *length));
                Box::new(ips.map(|(ip, length)| Prefix::new(ip, length).unwrap()))
            }
            Self::V6(v6) => {
                let ips = v6.prefixes.iter().map(|(bits, length)| (Ipv6Addr::from_bits(*bits), *length));
                Box::new(ips.map(|(ip, length)| Prefix::new(ip, length).unwrap()))
            }
        }
    }
}

/// In no order: a table does not grow from its beginning to its end.
fn shuffled<T: Copy>(sorted: BTreeSet<T>, random: &mut Random) -> Vec<T> {
    let mut list: Vec<T> = sorted.into_iter().collect();
    for at in (1..list.len()).rev() {
        list.swap(at, random.below(at as u64 + 1) as usize);
    }
    list
}
