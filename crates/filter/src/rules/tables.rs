//! Lists of prefixes and ports as tables: one search for each kind of list, however many rules have one.
//!
//! Each address and each port belongs to a class: the lists that it is in. The tables say which class; a class says which
//! rule comes first of those that are met by this list alone, and has a bit for every other list. So all that is asked of
//! one source address is answered by one search.
//!
//! What the kernel gets is one array, which holds everything but IPv6, and a hash for that: a key for each prefix, and a
//! search for each length in use, the longest first.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::ops::RangeInclusive;

use super::classes::{Classes, Fate, Member};
use super::coded::NONE;
use super::crossed::{self, Cell, Crossed};
use super::headers::{Headers, lower_bits};
use super::keys::SetKey6;
use super::prefix::mask128;
use super::trie::{BLOCK, INNER, ROOT, Trie};
use super::{Condition, Prefix};
use crate::walk::Family;
use crate::xdp::RULES_AT;

/// A kind of list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub(crate) enum Kind {
    From,
    To,
    FromPorts,
    ToPorts,
}

impl Kind {
    pub(crate) const ALL: [Self; 4] = [Self::From, Self::To, Self::FromPorts, Self::ToPorts];

    /// 0 where it is about the source, 1 for the destination.
    pub(crate) fn side(self) -> usize {
        match self {
            Self::From | Self::FromPorts => 0,
            Self::To | Self::ToPorts => 1,
        }
    }

    /// The list of this kind, of prefixes, that a condition has.
    pub(super) fn prefixes(self, condition: &Condition) -> &[Prefix] {
        match self {
            Self::From => &condition.from,
            Self::To => &condition.to,
            Self::FromPorts | Self::ToPorts => &[],
        }
    }

    /// The same, of ports.
    pub(super) fn ports(self, condition: &Condition) -> &[RangeInclusive<u16>] {
        match self {
            Self::FromPorts => &condition.from_ports,
            Self::ToPorts => condition.wanted_ports(),
            Self::From | Self::To => &[],
        }
    }
}

/// The lists of a set of rules.
#[derive(Debug)]
pub struct Tables {
    /// What being in a class means, as in the array that the kernel gets: the first rule that is met by one of the lists alone
    /// as a number, so that of two the lower one comes first (its index, room for its counter, its fate; or [`NO_RULE`]),
    /// then a bit for each list that is joined, then where rules begin that are crossed and only count, if there are any.
    classes: Vec<u64>,
    /// Words of a class's bits.
    words: usize,
    /// What the classes mean, of each the same length, so that it need not be asked for each packet.
    means: Vec<Means>,
    /// By the side.
    tries: [Option<Trie>; 2],
    ports: [Option<Box<[u32; ROOT]>>; 2],
    /// Prefixes of IPv6, and their classes.
    six: [HashMap<(u8, u128), u32>; 2],
    /// Their lengths, the longest first.
    lengths: [Vec<u8>; 2],
    /// What classes mean beside that.
    crossed: Crossed,
}

/// What classes mean: the first rule by its index, and the bits of as many lists as most sets of rules join.
#[derive(Clone, Copy, Debug)]
struct Means {
    first: u32,
    bits: [u64; 2],
}

/// What the class of what is in no list means.
const NOTHING: Means = Means { first: NONE, bits: [0; 2] };

/// What was found for a packet.
#[derive(Clone, Copy, Debug)]
pub(super) struct Found {
    /// The classes of its addresses and ports. 0 is the class of what is in no list.
    classes: Cell,
    /// What they mean together, as of [`Means`].
    bits: [u64; 2],
    first: u32,
    /// The only one of them that is in any list, 0 when none is, or [`SEVERAL`].
    alone: u32,
}

/// No class is it: more than one is in lists.
const SEVERAL: u32 = u32::MAX;

impl Default for Found {
    fn default() -> Self {
        Self { classes: [0; Kind::ALL.len()], bits: NOTHING.bits, first: NOTHING.first, alone: 0 }
    }
}

impl Found {
    /// The first rule that is met by one of the lists alone; where there is none, one that no set has.
    #[inline]
    pub(super) fn first(&self) -> u32 {
        self.first
    }

    /// The only class that is in any list; when there are several, one that there is not.
    #[inline(always)]
    pub(super) fn alone(&self) -> u32 {
        self.alone
    }

    /// The same, as if several classes were in lists.
    #[cfg(test)]
    pub(super) fn not_alone(self) -> Self {
        Self { alone: SEVERAL, ..self }
    }
}

/// Where things lie in the array that the kernel gets, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    /// From one class to the next. A class: the first rule as a number, then its bits.
    pub(crate) stride: usize,
    /// Where the last class begins.
    pub(crate) last_class: usize,
    /// The tables of ports, by side.
    pub(crate) ports: [Option<usize>; 2],
    /// The first tables of the tries, by side.
    pub(crate) roots: [Option<usize>; 2],
    /// All blocks of both tries.
    pub(crate) blocks: usize,
    /// How many they are, by side; the first side's come first.
    pub(crate) block_counts: [usize; 2],
    /// The rules that are crossed and only count.
    pub(crate) counting: usize,
    pub(crate) len: usize,
}

/// No rule is met by a list alone.
pub(crate) const NO_RULE: u64 = u64::MAX;

/// The index in the number of a first rule.
#[inline]
fn index_of(first: u64) -> u32 {
    u32::try_from(first >> 32).unwrap_or(u32::MAX)
}

impl Tables {
    /// Whether there is any list.
    pub(super) fn is_used(&self) -> bool {
        self.classes.len() > self.stride()
    }

    /// Words of a class.
    fn stride(&self) -> usize {
        1 + self.words + usize::from(self.most_counting() > 0)
    }

    /// Where a class says which rules are crossed and only count, in bytes.
    pub(crate) fn counting_at(&self) -> usize {
        8 + 8 * self.words
    }

    /// How many of these a class has, at most.
    pub(crate) fn most_counting(&self) -> usize {
        self.crossed.most_counting()
    }

    /// The kinds of lists of which combinations are looked up, a bit for each [`Kind`].
    pub(crate) fn shapes(&self) -> &[u8] {
        self.crossed.shapes()
    }

    /// Whether rules that are crossed ask user space.
    pub(crate) fn takes(&self) -> bool {
        self.crossed.takes()
    }

    /// The first rule from an index on that is crossed and met.
    #[inline]
    pub(super) fn next_crossed(&self, found: &Found, from: u32) -> Option<u32> {
        if self.crossed.is_used() { self.crossed.next(&found.classes, from) } else { None }
    }

    /// Words of bits in a class.
    pub(crate) fn words(&self) -> usize {
        self.words
    }

    pub(crate) fn uses(&self, kind: Kind) -> bool {
        let side = kind.side();
        match kind {
            Kind::From | Kind::To => self.tries[side].is_some() || !self.six[side].is_empty(),
            Kind::FromPorts | Kind::ToPorts => self.ports[side].is_some(),
        }
    }

    /// Lengths of IPv6 prefixes, the longest first.
    pub(crate) fn lengths(&self, kind: Kind) -> &[u8] {
        &self.lengths[kind.side()]
    }

    /// Searches for all that lists ask about.
    #[inline(always)]
    pub(super) fn find(&self, headers: &Headers, found: &mut Found) {
        let [[_, source], [_, destination]] = headers.halves();
        let [from, to] = match headers.family() {
            Some(Family::V4) => [self.class4(0, source), self.class4(1, destination)],
            Some(Family::V6) => self.classes6(headers),
            None => [0; 2],
        };
        let [from_port, to_port] = match headers.ports() {
            Some([from, to]) => [self.port_class(0, from), self.port_class(1, to)],
            None => [0; 2],
        };
        found.classes = [from, to, from_port, to_port];
        let means = match [from, to, from_port, to_port] {
            [0, 0, 0, class] | [0, 0, class, 0] | [0, class, 0, 0] | [class, 0, 0, 0] => {
                found.alone = class;
                self.join(NOTHING, class)
            }
            _ => {
                found.alone = SEVERAL;
                // One by one: a list of them would go through memory, and in pieces.
                let means = self.join(self.join(NOTHING, from), to);
                self.join(self.join(means, from_port), to_port)
            }
        };
        (found.bits, found.first) = (means.bits, means.first);
    }

    /// For each class: what is found for packets of which it is the only one in lists. None where combinations are looked up.
    pub(super) fn alone(&self) -> impl Iterator<Item = Found> {
        let classes = if self.crossed.is_used() { 0 } else { self.means.len() };
        (0..).zip(&self.means).take(classes).map(|(class, means)| Found {
            classes: [class, 0, 0, 0],
            bits: means.bits,
            first: means.first,
            alone: class,
        })
    }

    #[inline(always)]
    fn class4(&self, side: usize, half: u64) -> u32 {
        match &self.tries[side] {
            Some(trie) => trie.find(lower_bits(half)),
            None => 0,
        }
    }

    #[inline(always)]
    fn port_class(&self, side: usize, port: u16) -> u32 {
        match &self.ports[side] {
            Some(table) => table[usize::from(port)],
            None => 0,
        }
    }

    /// What being in a class means as well.
    #[inline(always)]
    fn join(&self, before: Means, class: u32) -> Means {
        if class == 0 {
            return before;
        }
        let Some(Means { first, bits: [bits, more] }) = self.means.get(class as usize) else { return before };
        Means { first: before.first.min(*first), bits: [before.bits[0] | bits, before.bits[1] | more] }
    }

    #[inline(never)]
    fn classes6(&self, headers: &Headers) -> [u32; 2] {
        let [from, to] = headers.halves().map(|[high, low]| u128::from(high) << 64 | u128::from(low));
        [self.find6(0, from), self.find6(1, to)].map(Option::unwrap_or_default)
    }

    fn find6(&self, side: usize, address: u128) -> Option<u32> {
        let of = |bits: &u8| self.six[side].get(&(*bits, address & mask128(*bits))).copied();
        self.lengths[side].iter().find_map(of)
    }

    /// The bits of the first lists that are joined.
    #[inline]
    pub(super) fn first_words(found: &Found) -> [u64; 2] {
        found.bits
    }

    /// A word of the bits of the lists that are joined.
    #[inline]
    pub(super) fn word(&self, found: &Found, number: usize) -> u64 {
        found.bits.get(number).copied().unwrap_or_else(|| self.later_word(found, number))
    }

    #[inline(never)]
    fn later_word(&self, found: &Found, number: usize) -> u64 {
        let stride = self.stride();
        let of = |class: u32| self.classes.get(class as usize * stride + 1 + number).copied().unwrap_or(0);
        found.classes.iter().fold(0, |bits, class| bits | of(*class))
    }

    /// Whether a list that is joined was found.
    #[inline]
    pub(super) fn has(&self, found: &Found, bit: u32) -> bool {
        self.word(found, bit as usize / 64) & 1 << (bit % 64) != 0
    }

    pub(crate) fn layout(&self) -> Layout {
        let stride = 8 * self.stride();
        let mut len = 8 * self.classes.len();
        let mut place = |wanted: bool, bytes: usize| {
            let at = len;
            len += if wanted { bytes } else { 0 };
            wanted.then_some(at)
        };
        let ports = [0, 1].map(|side| place(self.ports[side].is_some(), 4 * ROOT));
        let roots = [0, 1].map(|side| place(self.tries[side].is_some(), 4 * ROOT));
        let block_counts = [0, 1].map(|side| self.tries[side].as_ref().map_or(0, |trie| trie.blocks.len()));
        let blocks = len;
        len += 4 * BLOCK * block_counts.iter().sum::<usize>();
        let counting = len;
        len += 8 * self.crossed.counting().len();
        let last_class = 8 * self.classes.len() - stride;
        Layout { stride, last_class, ports, roots, blocks, block_counts, counting, len }
    }

    /// How long the array is that the kernel gets, in bytes.
    pub fn array_len(&self) -> usize {
        self.layout().len
    }

    /// The array that the kernel gets, 8 bytes at a time; `slots` are the counters of the rules.
    pub fn array(&self, slots: &[u32]) -> Vec<u64> {
        let layout = self.layout();
        let mut words = Vec::with_capacity(layout.len / 8);
        let slot = |index: u32| u64::from(slots.get(index as usize).copied().unwrap_or(0));
        for class in self.classes.chunks(self.stride()) {
            words.push(class[0] | slot(index_of(class[0])) << 1);
            let (bits, counting) = class[1..].split_at(self.words);
            words.extend_from_slice(bits);
            let counting = counting.iter().map(|behind| match behind {
                0 => 0,
                behind => layout.counting as u64 + 8 * (behind - 1),
            });
            words.extend(counting);
        }
        // The kernel's program is spared a multiplication: its entries say where a class begins.
        let leaf = |class: u32| class * u32::try_from(layout.stride).unwrap_or(0);
        for table in self.ports.iter().flatten() {
            push_halves(&mut words, table.iter().map(|class| leaf(*class)));
        }
        let before = [0, u32::try_from(layout.block_counts[0]).unwrap_or(0)];
        let sides: Vec<_> = self.tries.iter().zip(before).collect();
        let entry = |entry: u32, before: u32| {
            if entry & INNER != 0 { entry + before } else { leaf(entry) }
        };
        for (trie, before) in &sides {
            let root = trie.iter().flat_map(|trie| trie.root.iter());
            push_halves(&mut words, root.map(|cell| entry(*cell, *before)));
        }
        for (trie, before) in &sides {
            let blocks = trie.iter().flat_map(|trie| trie.blocks.iter().flatten());
            push_halves(&mut words, blocks.map(|cell| entry(*cell, *before)));
        }
        let counting = self.crossed.counting().iter();
        // Its index, and the key of its counter.
        words.extend(counting.map(|index| u64::from(*index) << 32 | (u64::from(RULES_AT) + slot(*index))));
        words
    }

    /// The entries of the hash for IPv6 and combinations of classes: the values are 4 bytes.
    pub fn entries6(&self) -> impl Iterator<Item = (SetKey6, u32)> {
        let stride = u32::try_from(self.layout().stride).unwrap_or(0);
        let prefixes = (0..).zip(&self.six).flat_map(move |(side, prefixes)| {
            prefixes.iter().map(move |(&(bits, address), class)| {
                (SetKey6 { side, bits, address: address.to_be_bytes() }, class * stride)
            })
        });
        let combined = self.crossed.cells().iter().map(move |(cell, class)| {
            (SetKey6::of_classes(cell.map(|class| class * stride)), class * stride)
        });
        prefixes.chain(combined)
    }

    /// How many entries that hash has.
    pub fn count6(&self) -> usize {
        self.six.iter().map(HashMap::len).sum::<usize>() + self.crossed.cells().len()
    }
}

/// Four bytes at a time, as they lie in memory; there is an even number of them.
fn push_halves(words: &mut Vec<u64>, halves: impl Iterator<Item = u32>) {
    let mut halves = halves;
    while let Some(first) = halves.next() {
        let [a, b, c, d] = first.to_ne_bytes();
        let [e, f, g, h] = halves.next().unwrap_or(0).to_ne_bytes();
        words.push(u64::from_ne_bytes([a, b, c, d, e, f, g, h]));
    }
}

/// Lists on their way into tables.
#[derive(Default)]
pub(super) struct Builder {
    prefixes: [Vec<(Prefix, Member)>; 2],
    ports: [Vec<(RangeInclusive<u16>, Member)>; 2],
    crossed: Option<crossed::Builder>,
}

/// Why lists can't be tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TooMany {
    Prefixes,
    /// What overlaps of the lists of rules that are crossed.
    Crossed,
}

impl Builder {
    /// Adds the lists of a condition; `member` is asked once for each that is there.
    pub(super) fn add(&mut self, condition: &Condition, mut member: impl FnMut(Kind) -> Member) {
        for kind in Kind::ALL {
            if !kind.prefixes(condition).is_empty() || !kind.ports(condition).is_empty() {
                let member = member(kind);
                self.add_list(condition, kind, member);
            }
        }
    }

    /// Adds the lists of a rule that is crossed, and does that.
    pub(super) fn cross(&mut self, index: u32, fate: Option<Fate>, condition: &Condition) {
        let mut crossed = self.crossed.take().unwrap_or_default();
        crossed.add((index, fate), condition, |kind, member| self.add_list(condition, kind, member));
        self.crossed = Some(crossed);
    }

    fn add_list(&mut self, condition: &Condition, kind: Kind, member: Member) {
        let side = kind.side();
        self.prefixes[side].extend(kind.prefixes(condition).iter().map(|prefix| (*prefix, member)));
        self.ports[side].extend(kind.ports(condition).iter().map(|range| (range.clone(), member)));
    }

    /// The tables, with so many lists that are joined.
    pub(super) fn build(self, bits: u32) -> Result<Tables, TooMany> {
        let mut classes = Classes::new();
        let (mut tries, mut six) = ([None, None], [HashMap::new(), HashMap::new()]);
        let mut lengths = [Vec::new(), Vec::new()];
        for (side, mut prefixes) in self.prefixes.into_iter().enumerate() {
            prefixes.sort_by_key(|(prefix, _)| prefix.bits());
            let mut by_prefix: BTreeMap<(u8, u128), Vec<Member>> = BTreeMap::new();
            for (prefix, member) in prefixes {
                match prefix.address() {
                    IpAddr::V4(address) => {
                        let trie = tries[side].get_or_insert_with(Trie::new);
                        let painted =
                            trie.paint(address.to_bits(), prefix.bits(), |class| classes.with(class, member));
                        painted.ok_or(TooMany::Prefixes)?;
                    }
                    IpAddr::V6(address) => {
                        by_prefix.entry((prefix.bits(), address.to_bits())).or_default().push(member);
                    }
                }
            }
            lengths[side] = by_prefix.keys().map(|(bits, _)| *bits).collect::<Vec<_>>();
            lengths[side].dedup();
            lengths[side].reverse();
            for (&(bits, address), members) in &by_prefix {
                // Shorter prefixes are there already, with all that is shorter still.
                let above = lengths[side].iter().filter(|shorter| **shorter < bits);
                let mut above = above.filter_map(|b| six[side].get(&(*b, address & mask128(*b))).copied());
                let class = above.next().unwrap_or(0);
                let class = members.iter().fold(class, |class, member| classes.with(class, *member));
                six[side].insert((bits, address), class);
            }
        }
        let ports = self.ports.map(|ranges| {
            (!ranges.is_empty()).then(|| {
                let mut table = Box::new([0; ROOT]);
                for (range, member) in ranges {
                    for port in range {
                        let cell: &mut u32 = &mut table[usize::from(port)];
                        *cell = classes.with(*cell, member);
                    }
                }
                table
            })
        });
        if classes.are_too_many() {
            return Err(TooMany::Crossed);
        }
        let crossed = match self.crossed {
            None => Crossed::default(),
            Some(crossed) => {
                let used = crossed::used(&tries, &six, &ports);
                crossed.build(classes.members(), &used).ok_or(TooMany::Crossed)?
            }
        };
        let words = (bits as usize).div_ceil(64);
        let mut classes = classes.finish(words);
        let mean = |class: &Vec<u64>| Means {
            first: index_of(class[0]),
            bits: std::array::from_fn(|word| class.get(1 + word).copied().unwrap_or(0)),
        };
        let means = classes.iter().map(mean).collect();
        let none = [&[NO_RULE][..], &vec![0; words]].concat();
        classes.resize(classes.len().max(crossed.decides().len()), none);
        for (class, (first, counting)) in classes.iter_mut().zip(crossed.decides()) {
            class[0] = first.map_or(class[0], |first| first.min(class[0]));
            if crossed.most_counting() > 0 {
                class.push(counting.map_or(0, |counting| counting as u64 + 1));
            }
        }
        let classes = classes.concat();
        Ok(Tables { classes, words, means, tries, ports, six, lengths, crossed })
    }
}
