//! Rates per source or flow, in memory of a fixed size.
//!
//! A key's state is the time at which its next packet would be on schedule (the generic cell rate algorithm: a token bucket
//! without a timer). A packet is let through while that time is not too far ahead. Keys lie in sets of four by their hash;
//! when all four are taken, the one furthest behind goes: who sends much is never pushed out by many who send little.

use std::hash::{BuildHasher, RandomState};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use bywash_port::Limit;
use bywash_port::filter::rules::{Headers, Per, network};
use bywash_port::frame::prefetch;
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
    /// The bits of a source that count.
    masks: (u32, [u64; 2]),
    /// Nobody outside knows them, so nobody can aim at a set. The second is odd.
    secret: [u64; 2],
    sets: Sets,
    /// Of each key, since when packets above the limit are counted, in nanoseconds, and how many there were. Not looked at
    /// for what is within the limit.
    above: Vec<[[u64; 2]; WAYS]>,
}

/// All that a packet within the limit needs, in one line of the cache: the keys, then when the next packet of each would be
/// on schedule, in nanoseconds.
type Set = [u64; 2 * WAYS];

/// Sets, in memory that is zero because nobody has touched it: it is neither written nor taken from the machine before it
/// is used. There may be many limits, and new ones while packets come.
struct Sets {
    words: Vec<u64>,
    /// Words in front of the first line of the cache.
    begin: usize,
    /// A power of two.
    count: usize,
}

impl Sets {
    fn new(count: usize) -> Self {
        let line = size_of::<Set>() / size_of::<u64>();
        let words = vec![0_u64; (count + 1) * line];
        let begin = words.as_ptr().align_offset(size_of::<Set>()).min(line);
        Self { words, begin, count }
    }

    /// Where a key's set is.
    fn number(&self, key: u64) -> usize {
        usize::try_from(key).unwrap_or(0) & (self.count - 1)
    }

    fn prefetch(&self, number: usize) {
        let (sets, _) = self.words[self.begin..].as_chunks::<{ 2 * WAYS }>();
        prefetch(&sets[number], size_of::<Set>());
    }

    fn at(&mut self, number: usize) -> &mut Set {
        let (sets, _) = self.words[self.begin..].as_chunks_mut();
        &mut sets[number]
    }
}

impl Limiter {
    pub(super) fn new(limit: Limit) -> Self {
        let random = RandomState::new();
        let sets = if limit.per == Per::Rule { 1 } else { KEYS / WAYS };
        let masks = match limit.per {
            Per::Source { v4, v6 } => masks(v4, v6),
            _ => (u32::MAX, [u64::MAX; 2]),
        };
        let interval = SECOND / u64::from(limit.rate.max(1));
        Self {
            limit,
            interval,
            ahead: interval * u64::from(limit.burst.max(1) - 1),
            masks,
            secret: [random.hash_one(1), random.hash_one(2) | 1],
            sets: Sets::new(sets),
            above: vec![[[0; 2]; WAYS]; sets],
        }
    }

    pub(super) fn limit(&self) -> Limit {
        self.limit
    }

    /// Asks for the memory that such a packet will need.
    #[inline(never)]
    pub(super) fn prefetch(&self, headers: &Headers) {
        // One set alone is there anyway.
        if self.limit.per != Per::Rule {
            self.sets.prefetch(self.sets.number(self.key(headers)));
        }
    }

    /// Counts a packet at `now`, nanoseconds of any clock that does not run backwards.
    #[inline(never)]
    pub(super) fn measure(&mut self, headers: &Headers, now: u64) -> Measured {
        let key = self.key(headers);
        let number = self.sets.number(key);
        let (keys, times) = self.sets.at(number).split_at_mut(WAYS);
        let way = keys.iter().position(|known| *known == key).unwrap_or_else(|| {
            let oldest = (0..WAYS).min_by_key(|way| times[*way]).unwrap_or(0);
            (keys[oldest], times[oldest]) = (key, 0);
            self.above[number][oldest] = [0; 2];
            oldest
        });
        let next = times[way].max(now);
        if next - now <= self.ahead {
            times[way] = next + self.interval;
            return Measured::Within;
        }
        self.count_above(headers, now, (number, way))
    }

    /// Counts a packet that is too much; not for those within the limit, so apart.
    #[cold]
    fn count_above(&mut self, headers: &Headers, now: u64, (number, way): (usize, usize)) -> Measured {
        let [since, packets] = &mut self.above[number][way];
        if now.saturating_sub(*since) > SECOND {
            (*since, *packets) = (now, 0);
        }
        *packets += 1;
        // What is above the rate is counted, so this is one less than so many times the rate.
        let is_flood = *packets >= u64::from(self.limit.rate.saturating_mul(FLOODS - 1).max(1));
        match (headers.addresses, self.limit.per) {
            (Some([from, _]), Per::Source { v4, v6 }) if is_flood && self.limit.block.is_some() => {
                *packets = 0;
                Measured::Flood(network(from, v4, v6))
            }
            _ => Measured::Above,
        }
    }

    /// What the packet counts for.
    #[inline]
    fn key(&self, headers: &Headers) -> u64 {
        let Some([from, to]) = headers.addresses else { return NO_ADDRESS };
        match self.limit.per {
            Per::Rule => NO_ADDRESS,
            Per::Source { .. } => match (from, self.masks) {
                (IpAddr::V4(from), (mask, _)) => self.hash([(from.to_bits() & mask).into()]),
                (IpAddr::V6(from), (_, [high, low])) => {
                    let from = halves(from.to_bits());
                    self.hash([from[0] & high, from[1] & low])
                }
            },
            Per::Flow => {
                let [source, destination] = headers.ports.unwrap_or_default().map(u64::from);
                let ports = source << 16 | destination;
                let [from, to] = [from, to].map(|address| match address {
                    IpAddr::V4(address) => [address.to_bits().into(), 1],
                    IpAddr::V6(address) => halves(address.to_bits()),
                });
                self.hash([from[0], from[1], to[0], to[1], ports])
            }
        }
    }

    /// Never 0, which is nobody.
    #[inline]
    fn hash<const N: usize>(&self, of: [u64; N]) -> u64 {
        let [begin, factor] = self.secret;
        let hash = of.into_iter().fold(begin, |hash, word| {
            let [high, low] = halves(u128::from(word ^ hash) * u128::from(factor));
            high ^ low ^ begin
        });
        hash.max(1)
    }
}

/// The first bits of an address of IPv4, and of the halves of one of IPv6.
fn masks(v4: u8, v6: u8) -> (u32, [u64; 2]) {
    let of = |all: IpAddr| network(all, v4, v6);
    match (of(Ipv4Addr::BROADCAST.into()), of(Ipv6Addr::from_bits(u128::MAX).into())) {
        (IpAddr::V4(mask), IpAddr::V6(six)) => (mask.to_bits(), halves(six.to_bits())),
        _ => (u32::MAX, [u64::MAX; 2]),
    }
}

/// What packets without addresses count for, and all where they are not told apart.
const NO_ADDRESS: u64 = 1;

/// The upper and the lower half.
#[inline]
fn halves(number: u128) -> [u64; 2] {
    [number >> 64, number & u128::from(u64::MAX)].map(|half| u64::try_from(half).unwrap_or(0))
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
