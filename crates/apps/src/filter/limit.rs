//! Rates per source or flow, in memory of a fixed size.
//!
//! A key's state is the time at which its next packet would be on schedule (the generic cell rate algorithm: a token bucket
//! without a timer). A packet is let through while that time is not too far ahead. Keys lie in sets of four by their hash;
//! when all four are taken, the one furthest behind goes: who sends much uses its burst up, which puts it ahead, and is not pushed out by
//! many who send little. With `burst = 1` nobody can be ahead of who has just come.
//!
//! What is within the limit is counted in the word of its key, and what is above it beside that, so that who sends most above it
//! can be named.

use std::hash::{BuildHasher, RandomState};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use bywash_port::Limit;
use bywash_port::filter::rules::{Family, Headers, Per, network};
use bywash_port::frame::prefetch;
use bywash_sys::clock::SECOND;

use super::heavy::{Above, Heaviest, Hitter, MOST, Place, Sender};

/// Keys of one limit, at most.
const KEYS: usize = 1 << 16;

const WAYS: usize = 4;

/// So many times the rate in a second, and a source is blocked.
const FLOODS: u32 = 2;

/// What became of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Measured {
    /// It is within the limit.
    Within,
    /// It is too much.
    Above,
    /// It is too much by far: its source is to be blocked.
    Flood,
}

/// One limit at work.
pub(super) struct Limiter {
    limit: Limit,
    /// Nanoseconds from one packet to the next.
    interval: u64,
    /// How far ahead the schedule may be.
    ahead: u64,
    /// The bits of a source that count, of IPv4 and of the halves of an address of IPv6.
    masks: (u64, [u64; 2]),
    /// Nobody outside knows them, so nobody can aim at a set. The second is odd.
    secret: [u64; 2],
    counts: Counts,
    heaviest: Heaviest,
}

/// What is known of each key.
struct Counts {
    /// All that a packet within the limit needs, in one line of the cache: of each key the upper half of its hash and in the lower
    /// half packets within the limit; then when the next packet of each would be on schedule, in nanoseconds. (Whoever sends
    /// more than the lower half holds has a new bucket then: a burst more for four milliards.)
    sets: Sets<{ 2 * WAYS }>,
    /// An [`Above`] for each key. Not looked at for what is within the limit.
    above: Sets<{ Above::WORDS * WAYS }>,
}

impl Counts {
    /// What is counted for whom this place was given to; `None` when it is another one's by now.
    fn known(&self, place: Place) -> Option<Above> {
        let is_there = tag(self.sets.look_at(place.set)[place.way]) == place.tag;
        is_there.then(|| self.above(place.set, place.way))
    }

    fn above(&self, set: usize, way: usize) -> Above {
        let words = &self.above.look_at(set)[way * Above::WORDS..];
        Above(*words.first_chunk().unwrap_or(&[0; Above::WORDS]))
    }

    fn set_above(&mut self, set: usize, way: usize, above: Above) {
        self.above.at(set)[way * Above::WORDS..][..Above::WORDS].copy_from_slice(&above.0);
    }
}

/// Sets of so many words, in memory that is zero because nobody has touched it: it is neither written nor taken from the machine
/// before it is used. There may be many limits, and new ones while packets come.
struct Sets<const WORDS: usize> {
    words: Vec<u64>,
    /// Words in front of the first line of the cache.
    begin: usize,
    /// A power of two.
    count: usize,
}

/// Words in a line of the cache.
const LINE: usize = 8;

impl<const WORDS: usize> Sets<WORDS> {
    fn new(count: usize) -> Self {
        let words = vec![0_u64; count * WORDS + LINE];
        let begin = words.as_ptr().align_offset(LINE * size_of::<u64>()).min(LINE);
        Self { words, begin, count }
    }

    /// Where a key's set is.
    fn number(&self, key: u64) -> usize {
        usize::try_from(key).unwrap_or(0) & (self.count - 1)
    }

    #[inline]
    fn prefetch(&self, number: usize) {
        if let Some(first) = self.words.get(self.begin + number * WORDS) {
            prefetch(first, 0..1);
        }
    }

    #[inline]
    fn at(&mut self, number: usize) -> &mut [u64; WORDS] {
        let from = self.words[self.begin + number * WORDS..].first_chunk_mut();
        from.expect("there are more words than the sets need")
    }

    fn look_at(&self, number: usize) -> &[u64; WORDS] {
        let from = self.words[self.begin + number * WORDS..].first_chunk();
        from.expect("there are more words than the sets need")
    }
}

impl Limiter {
    pub(super) fn new(limit: Limit) -> Self {
        let random = RandomState::new();
        let sets = if limit.per == Per::Rule { 1 } else { KEYS / WAYS };
        let masks = match limit.per {
            Per::Source { v4, v6 } => masks(v4, v6),
            _ => (u64::MAX, [u64::MAX; 2]),
        };
        let interval = SECOND / u64::from(limit.rate.max(1));
        Self {
            limit,
            interval,
            ahead: interval * u64::from(limit.burst.max(1) - 1),
            masks,
            secret: [random.hash_one(1), random.hash_one(2) | 1],
            counts: Counts { sets: Sets::new(sets), above: Sets::new(sets) },
            heaviest: Heaviest::of(if limit.per == Per::Rule { 0 } else { MOST }),
        }
    }

    pub(super) fn limit(&self) -> Limit {
        self.limit
    }

    /// Asks for the memory that such a packet will need.
    #[inline]
    pub(super) fn prefetch(&self, headers: &Headers) {
        // One set alone is there anyway.
        if self.limit.per != Per::Rule
            && let Some(key) = self.key(headers)
        {
            self.counts.sets.prefetch(self.counts.sets.number(key));
        }
    }

    /// Counts a packet at `now`, nanoseconds of any clock that does not run backwards.
    #[inline]
    pub(super) fn measure(&mut self, headers: &Headers, now: u64) -> Measured {
        // Of whom it is nobody knows, and one may not use up another's.
        let Some(key) = self.key(headers) else { return Measured::Within };
        let number = self.counts.sets.number(key);
        let set = self.counts.sets.at(number);
        let way = match set.iter().take(WAYS).position(|known| tag(*known) == tag(key)) {
            Some(way) => way,
            None => self.make_room(number, key),
        };
        let set = self.counts.sets.at(number);
        let next = set[WAYS + way].max(now);
        if next - now <= self.ahead {
            set[WAYS + way] = next + self.interval;
            set[way] = set[way].wrapping_add(1);
            return Measured::Within;
        }
        self.count_above(headers, now, Place { set: number, way, tag: tag(key) })
    }

    /// Puts a new key in the place of the one furthest behind.
    #[cold]
    fn make_room(&mut self, number: usize, key: u64) -> usize {
        let (keys, times) = self.counts.sets.at(number).split_at_mut(WAYS);
        let oldest = (0..WAYS).min_by_key(|way| times[*way]).unwrap_or(0);
        (keys[oldest], times[oldest]) = (u64::from(tag(key)) << 32, 0);
        self.counts.set_above(number, oldest, Above::default());
        oldest
    }

    /// Counts a packet that is too much; not for those within the limit, so apart.
    #[cold]
    fn count_above(&mut self, headers: &Headers, now: u64, place: Place) -> Measured {
        let mut above = self.counts.above(place.set, place.way);
        // In the lower half of the key's word.
        let within =
            u32::try_from(self.counts.sets.look_at(place.set)[place.way] & u64::from(u32::MAX)).unwrap_or(0);
        // What is above alone would not do: of who sends in trains the bucket keeps no more than the burst, and the rest is above.
        let is_flood = above.count(now, within) >= u64::from(self.limit.rate.max(1)) * u64::from(FLOODS);
        let measured = if is_flood && self.limit.block.is_some() && self.source(headers).is_some() {
            above.begin_again(within);
            Measured::Flood
        } else {
            Measured::Above
        };
        self.counts.set_above(place.set, place.way, above);
        if self.heaviest.may_be_one(&above, now)
            && let Some(who) = self.sender(headers)
        {
            let Self { heaviest, counts, .. } = self;
            heaviest.offer(who, place, now, |place| counts.known(place));
        }
        measured
    }

    /// Who sends most above the limit, in no order, each once.
    pub(super) fn hitters(&self) -> impl Iterator<Item = Hitter> {
        self.heaviest.all().filter_map(|(who, place)| {
            let above = self.counts.known(place)?;
            let within = self.counts.sets.look_at(place.set)[place.way] & u64::from(u32::MAX);
            Some(Hitter { who, within, above })
        })
    }

    /// Whom such a packet is counted for, where that is not all together.
    fn sender(&self, headers: &Headers) -> Option<Sender> {
        match self.limit.per {
            Per::Source { v4, v6 } => {
                let first = self.source(headers)?;
                Some(Sender::Source { first, bits: if first.is_ipv4() { v4 } else { v6 } })
            }
            Per::Flow => {
                let [from, to] = headers.addresses()?;
                Some(Sender::Flow { protocol: headers.protocol(), from, to, ports: headers.ports() })
            }
            Per::Rule => None,
        }
    }

    /// The source that a packet is counted for, as a prefix's first address; `None` where sources are not told apart.
    pub(super) fn source(&self, headers: &Headers) -> Option<IpAddr> {
        match self.limit.per {
            Per::Source { v4, v6 } => headers.source().map(|from| network(from, v4, v6)),
            _ => None,
        }
    }

    /// What the packet counts for; nothing where senders are told apart and it has no header of IP that would name one.
    #[inline]
    fn key(&self, headers: &Headers) -> Option<u64> {
        let [[high, low], _] = headers.halves();
        Some(match (self.limit.per, headers.family()) {
            (Per::Rule, _) => EVERYBODY,
            (_, None) => return None,
            (Per::Source { .. }, Some(Family::V4)) => self.hash([low & self.masks.0]),
            (Per::Source { .. }, Some(Family::V6)) => {
                let (_, [of_high, of_low]) = self.masks;
                self.hash([high & of_high, low & of_low])
            }
            (Per::Flow, Some(family)) => self.flow_key(headers, family),
        })
    }

    #[inline(never)]
    fn flow_key(&self, headers: &Headers, family: Family) -> u64 {
        let [source, destination] = headers.ports().unwrap_or_default().map(u64::from);
        let [from, to] = headers.halves();
        let kind = u64::from(family == Family::V4) << 8 | u64::from(headers.protocol());
        self.hash([from[0], from[1], to[0], to[1], kind << 32 | source << 16 | destination])
    }

    #[inline]
    fn hash<const N: usize>(&self, of: [u64; N]) -> u64 {
        let [begin, factor] = self.secret;
        of.into_iter().fold(begin, |hash, word| {
            let [high, low] = halves(u128::from(word ^ hash) * u128::from(factor));
            high ^ low ^ begin
        })
    }
}

/// The first bits of an address of IPv4, and of the halves of one of IPv6.
fn masks(v4: u8, v6: u8) -> (u64, [u64; 2]) {
    let of = |all: IpAddr| network(all, v4, v6);
    match (of(Ipv4Addr::BROADCAST.into()), of(Ipv6Addr::from_bits(u128::MAX).into())) {
        (IpAddr::V4(mask), IpAddr::V6(six)) => (mask.to_bits().into(), halves(six.to_bits())),
        _ => (u64::MAX, [u64::MAX; 2]),
    }
}

/// What all packets count for where they are not told apart.
const EVERYBODY: u64 = 1 << 32;

/// What a key is known by in its set. Whoever has that of a place that nobody has had yet finds it as new as any.
#[inline]
fn tag(word: u64) -> u32 {
    u32::try_from(word >> 32).unwrap_or(0)
}

/// The upper and the lower half.
#[inline]
fn halves(number: u128) -> [u64; 2] {
    [number >> 64, number & u128::from(u64::MAX)].map(|half| u64::try_from(half).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn from([a, b, c, d]: [u8; 4]) -> Headers {
        let mut packet = [0; 42];
        packet[12..34]
            .copy_from_slice(&[8, 0, 0x45, 0, 0, 28, 0, 0, 0, 0, 64, 17, 0, 0, a, b, c, d, 1, 1, 1, 1]);
        Headers::of(&packet)
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
            all.filter(|measured| *measured == Measured::Flood).count()
        };
        assert!(named(1000) > 0);
        assert_eq!(limiter.source(&from([10, 0, 0, 7])), Some([10, 0, 0, 0].into()));
        let mut calm = self::limiter(100, 1, SOURCE);
        let calm = (0..300).map(|n| calm.measure(&from([10, 0, 0, 7]), 9 * SECOND + n * SECOND / 150));
        assert_eq!(calm.filter(|measured| *measured == Measured::Flood).count(), 0);
    }

    #[test]
    fn who_sends_in_trains_is_a_flood_at_twice_the_rate_and_not_before() {
        // At the same rate, once with a small burst and once with one as large as the rate.
        for burst in [10, 1000] {
            let floods = |train: u64| {
                let mut limiter = limiter(1000, burst, SOURCE);
                // Each packet a microsecond behind the one before.
                let times = (0..30)
                    .flat_map(|second| (0..train).map(move |n| 9 * SECOND + second * SECOND + n * 1000));
                let measured = times.map(|now| limiter.measure(&from([10, 0, 0, 7]), now));
                measured.filter(|measured| *measured == Measured::Flood).count()
            };
            for train in [1010, 1500, 1980] {
                assert_eq!(floods(train), 0, "{train} packets a second, burst {burst}");
            }
            for train in [2100, 3000, 100_000] {
                assert!(floods(train) > 0, "{train} packets a second, burst {burst}");
            }
        }
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

    #[test]
    fn who_sends_most_is_known_with_all_its_packets_among_a_million_others() {
        let mut limiter = limiter(10, 10, Per::Source { v4: 32, v6: 128 });
        let heavy = [from([192, 0, 2, 1]), from([192, 0, 2, 2])];
        let mut end = 0;
        for n in 0_u32..1_000_000 {
            end = SECOND + u64::from(n) * 1000;
            limiter.measure(&from(n.to_be_bytes()), end);
            let each = heavy.iter().zip([10, 100]);
            each.filter(|(_, one_in)| n % one_in == 0).for_each(|(from, _)| {
                limiter.measure(from, end);
            });
        }
        let mut hitters: Vec<_> = limiter.hitters().collect();
        hitters.sort_by_key(|hitter| std::cmp::Reverse(hitter.above.recent(end)));
        let told = |hitter: &Hitter| (hitter.who.to_string(), hitter.within + hitter.above.all());
        assert_eq!(told(&hitters[0]), ("192.0.2.1/32".into(), 100_000));
        assert_eq!(told(&hitters[1]), ("192.0.2.2/32".into(), 10_000));
        // One second at ten a second, and the burst.
        assert!((10..=20).contains(&hitters[0].within), "{hitters:?}");
    }

    #[test]
    fn flows_between_the_same_ports_of_another_protocol_are_others() {
        let mut limiter = limiter(1, 1, Per::Flow);
        let of = |protocol| {
            let mut packet = [0; 42];
            packet[12..24].copy_from_slice(&[8, 0, 0x45, 0, 0, 28, 0, 0, 0, 0, 64, protocol]);
            Headers::of(&packet)
        };
        for protocol in [6, 17, 132, 47, 50] {
            assert_eq!(limiter.measure(&of(protocol), SECOND), Measured::Within, "{protocol}");
            assert_eq!(limiter.measure(&of(protocol), SECOND), Measured::Above, "{protocol}");
        }
    }

    #[test]
    fn what_has_no_header_of_ip_is_nobodys_and_counts_where_all_are_one() {
        let tagged = |tags: &[u8], kind: [u8; 2]| {
            let mut packet = [&[0; 12][..], tags, &kind].concat();
            packet.resize(60, 0x45);
            Headers::of(&packet)
        };
        let tags = [0x81, 0, 0, 1].repeat(3);
        let kinds =
            [("MPLS", [0x88, 0x47]), ("PPPoE", [0x88, 0x64]), ("LLDP", [0x88, 0xcc]), ("STP", [0, 38])];
        let all = kinds.map(|(name, kind)| (name, tagged(&[], kind)));
        for (name, headers) in all.into_iter().chain([("three tags", tagged(&tags, [8, 0]))]) {
            for per in [SOURCE, Per::Flow] {
                let mut limiter = limiter(1, 1, per);
                let all_within = (0..100).all(|_| limiter.measure(&headers, SECOND) == Measured::Within);
                assert!(all_within, "{name}, {per:?}");
                assert_eq!(
                    limiter.measure(&from([10, 0, 0, 1]), SECOND),
                    Measured::Within,
                    "{name}, {per:?}"
                );
            }
            let mut all = limiter(1, 1, Per::Rule);
            let measured = [(); 2].map(|()| all.measure(&headers, SECOND));
            assert_eq!(measured, [Measured::Within, Measured::Above], "{name}");
        }
    }

    #[test]
    fn flows_are_named_by_both_ends_and_where_all_are_one_nobody_is() {
        let [mut flows, mut all] = [Per::Flow, Per::Rule].map(|per| limiter(1, 1, per));
        for _ in 0..5 {
            flows.measure(&from([10, 0, 0, 1]), SECOND);
            all.measure(&from([10, 0, 0, 1]), SECOND);
        }
        let told: Vec<_> = flows.hitters().map(|hitter| (hitter.who.to_string(), hitter.within)).collect();
        assert_eq!(told, [("UDP 10.0.0.1:0 -> 1.1.1.1:0".to_owned(), 1)]);
        assert_eq!(all.hitters().count(), 0);
    }
}
