//! The memory for established flows: a table of fixed size that a program on the way out writes, and that the program of rules
//! and this process read.
//!
//! The table is memory and not one of the kernel's hashes, so that user space can look a flow up without a system call. A
//! flow lies in a set of eight, by a hash whose secret nobody outside knows; when all eight are taken, the one used least
//! recently goes. A set:
//!
//! ```text
//!     8 heads: tag (upper half, a part of the hash; 0 is nobody) and time of last use (lower half)     64 bytes
//!     8 flows, 5 words each                                                                            320 bytes
//!     nothing, up to 512 bytes
//! ```
//!
//! A flow that is not there costs one line of the cache. Several cores may write at once without a lock: who writes a flow
//! takes its head away before and puts it there after, and a flow that is a mixture of two has the tag of neither.

use super::flow::{Flow, WORDS, Way};

/// Flows of a set.
pub(super) const WAYS: usize = 8;
/// Bytes of a set.
pub const SET: usize = 512;
/// Where a set's flows begin, and bytes of one.
pub(super) const FLOWS_AT: usize = 8 * WAYS;
pub(super) const FLOW: usize = 8 * WORDS;

/// How far nanoseconds are shifted to become a time in the table: its unit is 67 ms, and it begins anew after nine years.
pub(super) const TIME_SHIFT: u32 = 26;

/// Where a table's flows lie. Copies of it stand in programs and in this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowLayout {
    /// A power of two.
    sets: usize,
    secret: [u64; 2],
}

/// Who knows when this machine last sent something of a flow.
pub trait SentFlows: Send + Sync {
    /// The time, as [`time`] has it; `None` when it has sent nothing, or that is forgotten.
    fn last_sent(&self, flow: &Flow) -> Option<u32>;
}

/// Which flows are established, as seen at a moment; none by default.
#[derive(Clone, Copy, Default)]
pub struct Established<'a> {
    /// Who knows.
    pub flows: Option<&'a dyn SentFlows>,
    /// The moment, in nanoseconds of the clock that times are noted by (`CLOCK_MONOTONIC`, for the kernel's).
    pub now: u64,
}

impl Established<'_> {
    /// How long ago the flow of a packet that has come in was used, and one more.
    pub(super) fn age(&self, packet: &[u8]) -> Option<u32> {
        let flow = Flow::of(packet, Way::In)?;
        self.flows?.last_sent(&flow).map(|then| age(time(self.now), then))
    }
}

/// A time of a clock in nanoseconds, as it is kept of flows.
#[inline]
pub fn time(nanoseconds: u64) -> u32 {
    u32::try_from(nanoseconds >> TIME_SHIFT & u64::from(u32::MAX)).unwrap_or(0)
}

/// Most of what [`age`] gives for a flow that was used within so long.
pub(super) fn most_age(idle: std::time::Duration) -> u32 {
    let units = idle.as_nanos().div_ceil(1 << TIME_SHIFT) + 1;
    u32::try_from(units).unwrap_or(u32::MAX)
}

/// How long ago, and one more: two cores need not agree about `now`, and what was a moment ahead is not ages old.
#[inline]
pub(super) fn age(now: u32, then: u32) -> u32 {
    now.wrapping_add(1).wrapping_sub(then)
}

impl FlowLayout {
    /// Of a table for so many flows; `secret` is random.
    pub fn new(flows: usize, secret: [u64; 2]) -> Self {
        let sets = flows.clamp(1, super::MOST_FLOWS).div_ceil(WAYS).next_power_of_two();
        Self { sets, secret }
    }

    /// Bytes of the table: zeros when it is empty.
    pub fn bytes(&self) -> usize {
        self.sets * SET
    }

    pub(super) fn sets(&self) -> usize {
        self.sets
    }

    /// What the hash begins with, and what it multiplies by.
    pub(super) fn secret(&self) -> [u64; 2] {
        [self.secret[0], self.secret[1] | 1]
    }

    /// When a flow was used last. `read` copies the bytes of the table from an offset on, a multiple of the length.
    #[inline]
    pub fn find(&self, flow: &Flow, read: impl FnOnce(usize, &mut [u8; SET])) -> Option<u32> {
        let (set, tag) = self.place(flow);
        let mut bytes = [0; SET];
        read(set * SET, &mut bytes);
        let word = |at: usize| bytes.get(at..)?.first_chunk().map(|word| u64::from_ne_bytes(*word));
        (0..WAYS).find_map(|way| {
            let (there, then) = halves(word(8 * way)?);
            let mut words = (0..WORDS).map(|index| word(FLOWS_AT + FLOW * way + 8 * index));
            (there == tag && flow.words.iter().all(|ours| words.next().flatten() == Some(*ours)))
                .then_some(then)
        })
    }

    /// The set of a flow and its tag.
    fn place(&self, flow: &Flow) -> (usize, u32) {
        let [begin, factor] = self.secret();
        let hash = flow.used_words().iter().fold(begin, |hash, word| {
            let product = (hash ^ word).wrapping_mul(factor);
            product ^ product >> 32
        });
        let (high, low) = halves(hash);
        (low as usize & (self.sets - 1), high | 1)
    }
}

/// The upper and the lower half of a word.
fn halves(word: u64) -> (u32, u32) {
    let half = |word: u64| u32::try_from(word & u64::from(u32::MAX)).unwrap_or(0);
    (half(word >> 32), half(word))
}

/// A flow's place among the words of a table.
struct Place {
    /// Its head.
    head: usize,
    /// The first of its own words.
    flow: usize,
    tag: u32,
    /// It is there.
    known: bool,
}

/// The words of a table.
fn words(bytes: &[u8]) -> impl Iterator<Item = u64> {
    bytes.as_chunks().0.iter().map(|word| u64::from_ne_bytes(*word))
}

/// A flow that came into a table, and where in its bytes. Who puts it into memory that others write, too, makes its head 0
/// before the flow changes, and says whose it is after.
pub struct Noted {
    /// Where its head is.
    pub head_at: usize,
    /// Tag and time.
    pub head: u64,
    /// Where the flow is.
    pub flow_at: usize,
    /// Its words.
    pub flow: Vec<u8>,
}

/// A table of this process's own: for packets out of a file, and for what one of another size knew.
pub struct FlowTable {
    layout: FlowLayout,
    words: Vec<u64>,
}

impl FlowTable {
    /// An empty table.
    pub fn new(layout: FlowLayout) -> Self {
        Self { layout, words: vec![0; layout.bytes() / 8] }
    }

    /// A table with these bytes, as [`FlowTable::to_bytes`] gives them.
    pub fn from_bytes(layout: FlowLayout, bytes: &[u8]) -> Self {
        let mut table = Self::new(layout);
        table.words.iter_mut().zip(words(bytes)).for_each(|(to, word)| *to = word);
        table
    }

    /// Takes over what is in another table, whose bytes these are, and not in this one. Where there is less room, what was used
    /// last stays. Gives what has changed.
    pub fn take_over(&mut self, other: &[u8]) -> Vec<Noted> {
        let mut flows = Vec::new();
        for set in other.as_chunks::<SET>().0 {
            let words: Vec<u64> = words(set).collect();
            let ways = words[FLOWS_AT / 8..].as_chunks().0;
            let used = words[..WAYS].iter().zip(ways).filter(|(head, _)| **head != 0);
            flows.extend(used.map(|(head, words)| (halves(*head).1, Flow { words: *words })));
        }
        flows.sort_by_key(|(then, _)| std::cmp::Reverse(*then));
        let sets = self.words.chunks(SET / 8);
        let ours = sets.flat_map(|set| &set[..WAYS]).map(|head| halves(*head).1);
        let now = ours.chain(flows.iter().map(|(then, _)| *then)).max().unwrap_or(0);
        let mut taken = Vec::new();
        for (then, flow) in &flows {
            let place = self.place(flow, now);
            let there = self.words[place.head];
            if place.known || (there != 0 && age(now, halves(there).1) <= age(now, *then)) {
                continue;
            }
            self.put(&place, flow, *then);
            taken.push(Noted {
                head_at: 8 * place.head,
                head: self.words[place.head],
                flow_at: 8 * place.flow,
                flow: flow.words.iter().flat_map(|word| word.to_ne_bytes()).collect(),
            });
        }
        taken
    }

    /// Notes that a flow was used.
    pub fn note(&mut self, flow: &Flow, now: u32) {
        let place = self.place(flow, now);
        self.put(&place, flow, now);
    }

    /// Where a flow is or, if it is not there, would be.
    fn place(&self, flow: &Flow, now: u32) -> Place {
        let (set, tag) = self.layout.place(flow);
        let start = set * SET / 8;
        let heads = &self.words[start..][..WAYS];
        let flow_of = |way: usize| start + FLOWS_AT / 8 + WORDS * way;
        let is_it =
            |way: &usize| halves(heads[*way]).0 == tag && self.words[flow_of(*way)..][..WORDS] == flow.words;
        let oldest = || {
            let how_old = |way: &usize| match heads[*way] {
                0 => u64::MAX,
                head => age(now, halves(head).1).into(),
            };
            // Of those that are alike, the first.
            (0..WAYS).rev().max_by_key(how_old).unwrap_or(0)
        };
        let found = (0..WAYS).find(is_it);
        let way = found.unwrap_or_else(oldest);
        Place { head: start + way, flow: flow_of(way), tag, known: found.is_some() }
    }

    fn put(&mut self, place: &Place, flow: &Flow, now: u32) {
        self.words[place.flow..][..WORDS].copy_from_slice(&flow.words);
        self.words[place.head] = u64::from(place.tag) << 32 | u64::from(now);
    }

    /// Its bytes, as the kernel's programs have them.
    pub fn to_bytes(&self) -> Vec<u8> {
        self.words.iter().flat_map(|word| word.to_ne_bytes()).collect()
    }
}

impl SentFlows for FlowTable {
    fn last_sent(&self, flow: &Flow) -> Option<u32> {
        self.layout.find(flow, |at, bytes| {
            for (to, word) in bytes.as_chunks_mut().0.iter_mut().zip(&self.words[at / 8..]) {
                *to = word.to_ne_bytes();
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flow(number: u64) -> Flow {
        let used = if number.is_multiple_of(2) { super::super::flow::WORDS_V4 } else { WORDS };
        let version = if used == WORDS { 6 } else { 4 };
        let word = |index: usize| match index {
            0 => version << 40 | number,
            _ if index < used => number,
            _ => 0,
        };
        Flow { words: std::array::from_fn(word) }
    }

    fn layout(flows: usize) -> FlowLayout {
        FlowLayout::new(flows, [7, 0x9e37_79b9_7f4a_7c15])
    }

    #[test]
    fn a_table_has_room_for_what_was_asked_and_no_more() {
        for (flows, sets) in [(0, 1), (1, 1), (8, 1), (9, 2), (65_536, 8192), (65_537, 16_384)] {
            assert_eq!(layout(flows).bytes(), sets * SET, "{flows}");
        }
        assert_eq!(layout(usize::MAX).bytes(), super::super::MOST_FLOWS / WAYS * SET);
        let mut table = FlowTable::new(layout(64));
        (0..1000).for_each(|number| table.note(&flow(number), 5));
        assert_eq!((0..1000).filter(|number| table.last_sent(&flow(*number)).is_some()).count(), 64);
    }

    #[test]
    fn a_table_of_another_size_takes_over_what_was_used_last() {
        let mut small = FlowTable::new(layout(64));
        (0..30).for_each(|number| small.note(&flow(number), 100 + u32::try_from(number).unwrap()));
        let times =
            |table: &FlowTable| (0..30).map(|number| table.last_sent(&flow(number))).collect::<Vec<_>>();
        let before = times(&small);
        assert!(before.iter().flatten().count() > 20, "some sets may have been too small");
        let mut large = FlowTable::new(FlowLayout::new(512, [3, 5]));
        assert_eq!(large.take_over(&small.to_bytes()).len(), before.iter().flatten().count());
        assert_eq!(times(&large), before);
        let mut smallest = FlowTable::new(layout(8));
        smallest.take_over(&large.to_bytes());
        let before: Vec<_> = before.into_iter().flatten().collect();
        assert_eq!(times(&smallest).into_iter().flatten().collect::<Vec<_>>(), before[before.len() - 8..]);
    }

    #[test]
    fn what_a_table_knows_already_stays_where_it_is_and_newer_than_it_was_elsewhere() {
        let (mut old, mut new) = (FlowTable::new(layout(8)), FlowTable::new(layout(8)));
        (0..8).for_each(|number| old.note(&flow(number), 100 + u32::try_from(number).unwrap()));
        // One is known to both, and six have been noted since; one place is free, and one has what is older than all there.
        new.note(&flow(3), 200);
        (10..15).for_each(|number| new.note(&flow(number), 190));
        new.note(&flow(20), 50);
        let before = new.to_bytes();
        let taken = new.take_over(&old.to_bytes());
        let time = |number: u64| new.last_sent(&flow(number));
        let (there, gone) = ([3, 7, 6, 10, 14].map(time), [5, 0, 20].map(time));
        assert_eq!((there, gone), ([200, 107, 106, 190, 190].map(Some), [None; 3]));
        // What is told of has changed, and nothing else.
        let mut bytes = before;
        for noted in &taken {
            bytes[noted.head_at..][..8].copy_from_slice(&noted.head.to_ne_bytes());
            bytes[noted.flow_at..][..FLOW].copy_from_slice(&noted.flow);
        }
        assert_eq!((taken.len(), bytes), (2, new.to_bytes()));
        assert!(FlowTable::from_bytes(layout(8), &new.to_bytes()).to_bytes() == new.to_bytes());
    }

    #[test]
    fn time_begins_anew_after_years_and_a_moment_ahead_is_not_old() {
        assert_eq!(time(u64::MAX), u32::MAX);
        let second = most_age(std::time::Duration::from_secs(1));
        assert_eq!((age(5, u32::MAX - 3), age(100, 100), age(100, 101)), (10, 1, 0));
        assert!(age(time(3_000_000_000), time(2_000_000_000)) <= second);
        assert!(age(time(3_200_000_000), time(2_000_000_000)) > second);
    }
}
