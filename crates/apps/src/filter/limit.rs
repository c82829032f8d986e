//! Rates per source or flow, in memory of a fixed size.
//!
//! A key's state is the time at which its next packet would be on schedule (the generic cell rate algorithm: a token bucket
//! without a timer). A packet is let through while that time is not too far ahead. Keys lie in sets of four by their hash;
//! when all four are taken, the one furthest behind goes: who sends much is never pushed out by many who send little.

use std::hash::{BuildHasher, RandomState};
use std::net::IpAddr;

use bywash_port::Limit;
use bywash_port::filter::rules::{Headers, Per, network};
use bywash_sys::clock::SECOND;

/// Keys of one limit, at most.
const KEYS: usize = 1 << 16;

const WAYS: usize = 4;

/// So many times the rate, and a source is blocked.
const FLOODS: u32 = 2;

/// What became of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Measured {
    /// It is within the limit.
    Within,
    /// It is too much.
    Above,
    /// It is too much by far: block this source.
    Flood(IpAddr),
}

/// One limit at work.
pub(super) struct Limiter {
    limit: Limit,
    /// Nanoseconds from one packet to the next.
    interval: u64,
    /// How far ahead the schedule may be.
    ahead: u64,
    /// Nobody outside knows them, so nobody can aim at a set.
    secret: [u64; 2],
    /// A power of two.
    sets: Vec<Set>,
    /// For each set; not looked at for what is within the limit.
    above: Vec<[Above; WAYS]>,
}

/// All that a packet within the limit needs, in one line of the cache.
#[derive(Clone, Copy, Default)]
#[repr(align(64))]
struct Set {
    keys: [u64; WAYS],
    /// When the next packet would be on schedule, in nanoseconds.
    next: [u64; WAYS],
}

/// Since when packets above the limit are counted, in nanoseconds, and how many there were.
#[derive(Clone, Copy, Default)]
struct Above {
    since: u64,
    packets: u32,
}

impl Limiter {
    pub(super) fn new(limit: Limit) -> Self {
        let random = RandomState::new();
        let sets = if limit.per == Per::Rule { 1 } else { KEYS / WAYS };
        let interval = SECOND / u64::from(limit.rate.max(1));
        Self {
            limit,
            interval,
            ahead: interval * u64::from(limit.burst.max(1) - 1),
            secret: [random.hash_one(1), random.hash_one(2)],
            sets: vec![Set::default(); sets],
            above: vec![[Above::default(); WAYS]; sets],
        }
    }

    pub(super) fn limit(&self) -> Limit {
        self.limit
    }

    /// Counts a packet at `now`, nanoseconds of any clock that does not run backwards.
    #[inline]
    pub(super) fn measure(&mut self, headers: &Headers, now: u64) -> Measured {
        let (source, key) = self.key(headers);
        let number = usize::try_from(key).unwrap_or(0) & (self.sets.len() - 1);
        let set = &mut self.sets[number];
        let way = set.keys.iter().position(|known| *known == key).unwrap_or_else(|| {
            let oldest = (0..WAYS).min_by_key(|way| set.next[*way]).unwrap_or(0);
            (set.keys[oldest], set.next[oldest]) = (key, 0);
            self.above[number][oldest] = Above::default();
            oldest
        });
        let next = set.next[way].max(now);
        if next - now <= self.ahead {
            set.next[way] = next + self.interval;
            return Measured::Within;
        }
        let above = &mut self.above[number][way];
        if now.saturating_sub(above.since) > SECOND {
            *above = Above { since: now, packets: 0 };
        }
        above.packets += 1;
        // What is above the rate is counted, so this is one less than so many times the rate.
        let is_flood = above.packets >= self.limit.rate.saturating_mul(FLOODS - 1).max(1);
        match source {
            Some(source) if is_flood && self.limit.block.is_some() => {
                above.packets = 0;
                Measured::Flood(source)
            }
            _ => Measured::Above,
        }
    }

    /// What the packet counts for: the source where that can be blocked, and the key.
    fn key(&self, headers: &Headers) -> (Option<IpAddr>, u64) {
        let Some([from, to]) = headers.addresses.filter(|_| self.limit.per != Per::Rule) else {
            return (None, 1);
        };
        match self.limit.per {
            Per::Source { v4, v6 } => {
                let source = network(from, v4, v6);
                (Some(source), self.hash([bits(source), 0]))
            }
            _ => {
                let [source, destination] = headers.ports.unwrap_or_default();
                let ports = u128::from(source) << 16 | u128::from(destination);
                (None, self.hash([bits(from), bits(to).rotate_left(61) ^ ports << 96 ^ ports]))
            }
        }
    }

    /// Never 0, which is nobody.
    fn hash(&self, of: [u128; 2]) -> u64 {
        let mut state = self.secret[0];
        for word in of {
            for half in [word >> 64, word & u128::from(u64::MAX)] {
                let half = u64::try_from(half).unwrap_or(0);
                let product = u128::from(half ^ state) * u128::from(self.secret[1] | 1);
                let [low, high] = [product & u128::from(u64::MAX), product >> 64];
                state = u64::try_from(low ^ high).unwrap_or(0) ^ self.secret[0];
            }
        }
        state.max(1)
    }
}

fn bits(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => u128::from(address.to_bits()) | 1 << 127,
        IpAddr::V6(address) => address.to_bits(),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn from(address: [u8; 4]) -> Headers {
        Headers { addresses: Some([address.into(), [1, 1, 1, 1].into()]), ports: Some([1, 2]) }
    }

    fn limiter(rate: u32, burst: u32, per: Per) -> Limiter {
        Limiter::new(Limit { rate, burst, per, block: Some(Duration::from_secs(1)) })
    }

    const SOURCE: Per = Per::Source { v4: 24, v6: 64 };

    #[test]
    fn a_source_gets_its_burst_and_then_its_rate() {
        let mut limiter = limiter(100, 10, SOURCE);
        let mut within = |address, now| limiter.measure(&from(address), now) == Measured::Within;
        let start = 5 * SECOND;
        assert_eq!((0..50).filter(|_| within([10, 0, 0, 1], start)).count(), 10);
        assert!(within([10, 0, 1, 1], start), "another one");
        assert!(!within([10, 0, 0, 2], start), "the same /24");
        let second = (0..1000).filter(|n| within([10, 0, 0, 1], start + n * SECOND / 1000)).count();
        assert!((99..=101).contains(&second), "{second}");
    }

    #[test]
    fn who_floods_is_named_by_prefix_and_who_is_a_little_above_is_not() {
        let mut limiter = limiter(100, 1, SOURCE);
        let mut named = |per_second: u64| {
            let all = (0..per_second * 2)
                .map(|n| limiter.measure(&from([10, 0, 0, 7]), 9 * SECOND + n * SECOND / per_second));
            all.filter(|measured| *measured == Measured::Flood([10, 0, 0, 0].into())).count()
        };
        assert!(named(1000) > 0);
        let mut calm = self::limiter(100, 1, SOURCE);
        let calm = (0..300).map(|n| calm.measure(&from([10, 0, 0, 7]), 9 * SECOND + n * SECOND / 150));
        assert_eq!(calm.filter(|measured| matches!(measured, Measured::Flood(_))).count(), 0);
    }

    #[test]
    fn a_million_sources_do_not_push_out_the_one_that_sends_much() {
        let mut limiter = limiter(10, 10, Per::Source { v4: 32, v6: 128 });
        let heavy = from([192, 0, 2, 1]);
        let mut within = 0;
        for n in 0_u32..1_000_000 {
            let now = SECOND + u64::from(n) * 1000;
            limiter.measure(&from(n.to_be_bytes()), now);
            within += u32::from(n % 10 == 0 && limiter.measure(&heavy, now) == Measured::Within);
        }
        // One second at ten a second, and the burst.
        assert!(within <= 40, "{within} of 100000");
    }
}
