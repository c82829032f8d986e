//! What became of a stream's packets: lost, out of order, twice.
//!
//! A receiving queue sees a part of each stream, since the NIC spreads its flows. So a queue counts what it can know
//! alone (which numbers came, twice or late) and loss is found when the parts are put together: the numbers from the
//! lowest to the highest that any queue saw, less those that came.

/// Numbers back from the highest for which it is known whether they came: packets later than that still count as
/// received, but could be duplicates.
const WINDOW: u64 = 8192;

/// Where the lower 32 bits of a sequence number stand on the long count: there is room below for the packets that
/// overtook the first one.
const ORIGIN: u64 = 1 << 32;

/// One stream as one queue sees it.
#[derive(Clone, Debug)]
pub(super) struct Sequence {
    /// A bit for each of the last [`WINDOW`] numbers, at its remainder.
    seen: Box<[u64; (WINDOW / 64) as usize]>,
    pub(super) counts: Counts,
}

/// What is known of one stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Counts {
    /// Lowest number that came, on the long count.
    lowest: u64,
    /// Highest number that came.
    highest: u64,
    /// Different packets that came.
    pub(super) received: u64,
    /// Packets that came again.
    pub(super) duplicates: u64,
    /// Packets that came after one with a higher number (RFC 4737, type-P-reordered).
    pub(super) reordered: u64,
}

impl Counts {
    /// Puts two queues' parts of a stream together.
    pub(super) fn merge(&mut self, other: &Self) {
        if other.received == 0 {
            return;
        }
        if self.received == 0 {
            *self = *other;
            return;
        }
        // Each queue counts from where its first number stands, and the wrap may lie between those: both began at about
        // the same number, so the one that seems to be a wrap behind is.
        let wraps = |behind: u64| (behind + ORIGIN / 2) / ORIGIN * ORIGIN;
        let ours = wraps(other.lowest.saturating_sub(self.lowest));
        let theirs = wraps(self.lowest.saturating_sub(other.lowest));
        self.lowest = (self.lowest + ours).min(other.lowest + theirs);
        self.highest = (self.highest + ours).max(other.highest + theirs);
        self.received += other.received;
        self.duplicates += other.duplicates;
        self.reordered += other.reordered;
    }

    /// Numbers between the lowest and the highest that did not come.
    pub(super) fn lost(&self) -> u64 {
        if self.received == 0 { 0 } else { (self.highest - self.lowest + 1).saturating_sub(self.received) }
    }
}

impl Sequence {
    pub(super) fn new() -> Self {
        Self { seen: Box::new([0; (WINDOW / 64) as usize]), counts: Counts::default() }
    }

    /// A packet with this number came.
    #[inline]
    pub(super) fn note(&mut self, number: u32) {
        let counts = &mut self.counts;
        if counts.received == 0 {
            let first = ORIGIN + u64::from(number);
            *counts = Counts { lowest: first, highest: first, received: 1, ..Counts::default() };
            self.set(first);
            return;
        }
        // The number that is nearest to the highest one and has these lower bits (RFC 1982).
        #[expect(clippy::cast_possible_truncation, reason = "the lower bits are what is compared")]
        let ahead = i64::from(number.wrapping_sub(counts.highest as u32).cast_signed());
        let number = counts.highest.saturating_add_signed(ahead);
        if number > counts.highest {
            let highest = counts.highest;
            counts.highest = number;
            counts.received += 1;
            if ahead > 1 {
                self.forget(highest + 1, number);
            }
            self.set(number);
            return;
        }
        if counts.highest - number < WINDOW {
            if self.is_set(number) {
                self.counts.duplicates += 1;
                return;
            }
            self.set(number);
        }
        let counts = &mut self.counts;
        counts.reordered += 1;
        counts.received += 1;
        counts.lowest = counts.lowest.min(number);
    }

    #[inline]
    fn set(&mut self, number: u64) {
        let (word, bit) = place(number);
        self.seen[word] |= 1 << bit;
    }

    #[inline]
    fn is_set(&self, number: u64) -> bool {
        let (word, bit) = place(number);
        self.seen[word] & 1 << bit != 0
    }

    /// Clears the places of numbers `from..to`, which were skipped.
    #[cold]
    fn forget(&mut self, from: u64, to: u64) {
        for number in from.max(to.saturating_sub(WINDOW))..to {
            let (word, bit) = place(number);
            self.seen[word] &= !(1 << bit);
        }
    }
}

#[inline]
fn place(number: u64) -> (usize, u64) {
    ((number % WINDOW / 64) as usize, number % 64)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use proptest::prelude::*;

    use super::*;

    fn counts(numbers: impl IntoIterator<Item = u32>) -> Counts {
        let mut sequence = Sequence::new();
        numbers.into_iter().for_each(|number| sequence.note(number));
        sequence.counts
    }

    /// Lost, duplicates, reordered, received.
    fn figures(counts: Counts) -> [u64; 4] {
        [counts.lost(), counts.duplicates, counts.reordered, counts.received]
    }

    #[test]
    fn a_stream_in_order_has_no_faults_also_where_its_numbers_wrap() {
        assert_eq!(figures(counts(0..20_000)), [0, 0, 0, 20_000]);
        assert_eq!(figures(counts((0..20_000).map(|n: u32| n.wrapping_sub(10_000)))), [0, 0, 0, 20_000]);
        assert_eq!(figures(counts([])), [0; 4]);
    }

    #[test]
    fn each_fault_is_counted_as_what_it_is() {
        assert_eq!(figures(counts([0, 1, 4, 5])), [2, 0, 0, 4], "a gap");
        assert_eq!(figures(counts([0, 2, 1, 3])), [0, 0, 1, 4], "an overtaken packet");
        assert_eq!(figures(counts([0, 1, 1, 2, 0])), [0, 2, 0, 3], "duplicates");
        assert_eq!(figures(counts([5, 3, 4, 6])), [0, 0, 2, 4], "the first one had overtaken others");
        assert_eq!(figures(counts([0, 0xffff_ffff, 1])), [0, 0, 1, 3], "also when it was number 0");
    }

    #[test]
    fn a_gap_wider_than_the_window_leaves_nothing_behind() {
        let numbers = (0..100).chain(100_000..100_100).chain([99_999]);
        assert_eq!(figures(counts(numbers)), [99_899, 0, 1, 201]);
    }

    #[test]
    fn queues_that_share_a_stream_lose_nothing_by_it() {
        let mut even = counts((0..1000).step_by(2));
        assert_eq!(even.lost(), 499);
        even.merge(&counts((1..1000).step_by(2)));
        assert_eq!(figures(even), [0, 0, 0, 1000]);
        let mut none = Counts::default();
        none.merge(&even);
        even.merge(&Counts::default());
        assert_eq!(none, even);
    }

    #[test]
    fn queues_that_begin_on_either_side_of_the_wrap_share_one_count() {
        let part = |from: u32| counts((0..1000).step_by(2).map(|n: u32| from.wrapping_add(n)));
        let (before, after) = (part(0xffff_ffff), part(0));
        for (mut one, other) in [(before, after), (after, before)] {
            one.merge(&other);
            assert_eq!(figures(one), [0, 0, 0, 1000]);
            // A third queue, which saw one number twice more.
            one.merge(&counts([0xffff_fffe, 0xffff_fffe]));
            assert_eq!(figures(one), [0, 1, 0, 1001]);
        }
    }

    proptest! {
        /// Against counting in sets, for numbers that stay within the window.
        #[test]
        fn counts_are_those_of_a_set(start: u32, offsets in prop::collection::vec(0_u32..4000, 1..600)) {
            let found = counts(offsets.iter().map(|offset| start.wrapping_add(*offset)));
            let different: HashSet<_> = offsets.iter().collect();
            let span = u64::from(offsets.iter().max().unwrap() - offsets.iter().min().unwrap()) + 1;
            let (mut highest, mut seen, mut reordered) = (offsets[0], HashSet::new(), 0);
            for offset in &offsets {
                reordered += u64::from(seen.insert(*offset) && *offset < highest);
                highest = highest.max(*offset);
            }
            let received = different.len() as u64;
            prop_assert_eq!(figures(found), [span - received, offsets.len() as u64 - received, reordered, received]);
        }
    }
}
