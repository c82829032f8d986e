//! What became of a stream's packets: lost, out of order, twice.
//!
//! - Reordered (RFC 4737): a packet whose number is below the next one that was expected. Copies are left out.
//! - Duplicate (RFC 5560): each copy that comes after the first.
//! - Lost: a number between the lowest and the highest that came, of which nothing came. There is no time after which a
//!   packet counts as lost; one that comes late is not lost any more. One that comes damaged is not lost either, as long as
//!   its number can be read.
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

/// How a packet came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Order {
    /// With a higher number than all before.
    Highest,
    /// After one with a higher number.
    Late,
    /// Again.
    Duplicate,
}

/// Which of a stream's last numbers came.
#[derive(Clone, Debug)]
pub(super) struct Window(
    /// A bit for each of the last [`WINDOW`] numbers, at its remainder.
    Box<[u64; (WINDOW / 64) as usize]>,
);

impl Default for Window {
    fn default() -> Self {
        Self(Box::new([0; (WINDOW / 64) as usize]))
    }
}

impl Window {
    #[inline]
    fn set(&mut self, number: u64) {
        let (word, bit) = place(number);
        self.0[word] |= 1 << bit;
    }

    #[inline]
    fn is_set(&self, number: u64) -> bool {
        let (word, bit) = place(number);
        self.0[word] & 1 << bit != 0
    }

    /// Clears the places of numbers `from..to`, which were skipped: word by word, since a sender may skip as many as
    /// it likes in each packet.
    #[cold]
    fn forget(&mut self, from: u64, to: u64) {
        for (word, bits) in words(from.max(to.saturating_sub(WINDOW)), to) {
            self.0[word] &= !bits;
        }
    }

    /// Sets numbers `from..to`.
    #[inline]
    fn set_all(&mut self, from: u64, to: u64) {
        for (word, bits) in words(from, to) {
            self.0[word] |= bits;
        }
    }
}

/// What is known of one stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Counts {
    /// Lowest number that came, on the long count.
    lowest: u64,
    /// Highest number that came.
    highest: u64,
    /// Different packets that came, damaged or not.
    pub(super) received: u64,
    /// Packets that came again.
    pub(super) duplicates: u64,
    /// Packets that came after one with a higher number.
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
        let ours = wraps(other.lowest.saturating_sub(self.lowest));
        let theirs = wraps(self.lowest.saturating_sub(other.lowest));
        let add = u64::saturating_add;
        self.lowest = add(self.lowest, ours).min(add(other.lowest, theirs));
        self.highest = add(self.highest, ours).max(add(other.highest, theirs));
        self.received += other.received;
        self.duplicates += other.duplicates;
        self.reordered += other.reordered;
    }

    /// Where the highest number that came stands on the long count.
    pub(super) fn highest(&self) -> u64 {
        self.highest
    }

    /// How far behind the highest number that came another one stands: the number that is nearest to it and has these lower
    /// bits (RFC 1982). Negative for one before it.
    #[inline(always)]
    pub(super) fn ahead(&self, number: u32) -> i64 {
        #[expect(clippy::cast_possible_truncation, reason = "the lower bits are what is compared")]
        let highest = self.highest as u32;
        number.wrapping_sub(highest).cast_signed().into()
    }

    /// Numbers between the lowest and the highest that did not come.
    pub(super) fn lost(&self) -> u64 {
        self.lost_of_each(1, self.highest)
    }

    /// Of each `every`th number from the lowest to `end`, those that did not come.
    pub(super) fn lost_of_each(&self, every: u64, end: u64) -> u64 {
        if self.received == 0 {
            return 0;
        }
        let steps = (self.highest.max(end) - self.lowest) / every.max(1);
        steps.saturating_add(1).saturating_sub(self.received)
    }

    /// Whether a place is one of each `every`th number that came.
    pub(super) fn lies_on(&self, every: u64, place: u64) -> bool {
        self.lowest.abs_diff(place).is_multiple_of(every)
    }

    /// Where the count of a queue begins, and where a number that came there stands on it.
    pub(super) fn place_of(&self, number: u32) -> (u64, u64) {
        #[expect(clippy::cast_possible_truncation, reason = "the lower bits are what is compared")]
        let behind = (self.highest as u32).wrapping_sub(number);
        (self.lowest, self.highest.saturating_sub(behind.into()))
    }

    /// Where the count begins.
    pub(super) fn base(&self) -> u64 {
        self.lowest
    }

    /// Where the lowest and the highest number of this stream, put together from all queues, stand on the count of a queue
    /// that began at `base`.
    pub(super) fn span_for(&self, base: u64) -> (u64, u64) {
        let wraps = wraps(self.lowest.saturating_sub(base));
        (self.lowest.saturating_sub(wraps), self.highest.saturating_sub(wraps))
    }

    /// A packet that is counted elsewhere, too, came: in this order, with a number at this place.
    pub(super) fn note_part(&mut self, place: u64, order: Order) {
        if order == Order::Duplicate {
            self.duplicates += 1;
        } else if self.received == 0 {
            *self = Self { lowest: place, highest: place, received: 1, ..*self };
        } else {
            self.received += 1;
            if place > self.highest {
                self.highest = place;
            } else {
                self.reordered += 1;
                self.lowest = self.lowest.min(place);
            }
        }
    }

    /// A damaged packet came, which `note` notes: its number has come, and it is neither late nor a copy.
    pub(super) fn damaged<T>(&mut self, note: impl FnOnce(&mut Self) -> T) -> T {
        let Self { duplicates, reordered, .. } = *self;
        let noted = note(self);
        (self.duplicates, self.reordered) = (duplicates, reordered);
        noted
    }

    /// A packet with this number came.
    #[inline(always)]
    pub(super) fn note(&mut self, window: &mut Window, number: u32) -> Order {
        if self.received == 0 {
            let first = ORIGIN + u64::from(number);
            *self = Self { lowest: first, highest: first, received: 1, ..Self::default() };
            window.set(first);
            return Order::Highest;
        }
        let ahead = self.ahead(number);
        if ahead > 0 {
            let highest = self.highest;
            // Whoever makes up 2^32 numbers that skip half of the count each gets wrong losses, and nothing worse.
            self.highest = highest.saturating_add(ahead.unsigned_abs());
            self.received += 1;
            if ahead > 1 {
                window.forget(highest.saturating_add(1), self.highest);
            }
            window.set(self.highest);
            return Order::Highest;
        }
        self.note_late(window, ahead.unsigned_abs())
    }

    /// The `n` packets after the highest one came, in order.
    #[inline]
    pub(super) fn note_next(&mut self, window: &mut Window, n: u64) {
        let highest = self.highest;
        self.highest = highest.saturating_add(n);
        self.received += n;
        window.set_all(highest.saturating_add(1), self.highest.saturating_add(1));
    }

    /// A packet came whose number is so far behind the highest one.
    #[cold]
    fn note_late(&mut self, window: &mut Window, behind: u64) -> Order {
        let number = self.highest.saturating_sub(behind);
        if behind < WINDOW {
            if window.is_set(number) {
                self.duplicates += 1;
                return Order::Duplicate;
            }
            window.set(number);
        }
        self.reordered += 1;
        self.received += 1;
        self.lowest = self.lowest.min(number);
        Order::Late
    }
}

/// Each queue counts from where its first number stands, and the wrap may lie between those: all began at about the same
/// number, so one that seems to be a wrap behind is.
fn wraps(behind: u64) -> u64 {
    behind.saturating_add(ORIGIN / 2) / ORIGIN * ORIGIN
}

/// The places of numbers `from..to`: words, and which bits of each.
#[inline]
fn words(from: u64, to: u64) -> impl Iterator<Item = (usize, u64)> {
    let mut at = from;
    std::iter::from_fn(move || {
        let left = to.checked_sub(at).filter(|&left| left > 0)?;
        let (word, bit) = place(at);
        let bits = (64 - bit).min(left);
        at += bits;
        Some((word, u64::MAX >> (64 - bits) << bit))
    })
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
        let (mut counts, mut window) = (Counts::default(), Window::default());
        for number in numbers {
            counts.note(&mut window, number);
        }
        counts
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
    fn what_came_damaged_is_not_lost_and_has_no_other_fault() {
        let (mut counts, mut window) = (counts([0, 1, 4]), Window::default());
        [0, 1, 4].into_iter().for_each(|number| window.set(ORIGIN + number));
        for number in [2, 4, 6] {
            counts.damaged(|counts| counts.note(&mut window, number));
        }
        assert_eq!(figures(counts), [2, 0, 0, 5], "one late, one again, one ahead");
        counts.note(&mut window, 2);
        assert_eq!(figures(counts), [2, 1, 0, 5], "whole after all: again");
    }

    #[test]
    fn a_gap_wider_than_the_window_leaves_nothing_behind() {
        let numbers = (0..100).chain(100_000..100_100).chain([99_999]);
        assert_eq!(figures(counts(numbers)), [99_899, 0, 1, 201]);
    }

    #[test]
    fn numbers_that_skip_half_of_the_count_for_ever_break_nothing() {
        let (mut counts, mut window) = (Counts::default(), Window::default());
        counts.note(&mut window, 0);
        counts.highest = u64::MAX - 5;
        for step in 0..100_u32 {
            counts.note(&mut window, step.wrapping_mul(0x7fff_ffff).wrapping_sub(6));
        }
        let mut both = counts;
        both.merge(&Counts { lowest: 3, highest: 3, received: 1, ..Counts::default() });
        assert!(counts.lost() > 1 << 60 && both.lost() > 1 << 60);
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

    #[test]
    fn packets_noted_together_count_as_one_by_one() {
        for start in [0, 0xffff_ffe0, 8100] {
            let [mut one_by_one, mut together] = [(); 2].map(|()| (Counts::default(), Window::default()));
            for n in [1, 3, 64, 200, 63, 1] {
                let after = |counts: &Counts| start_of(start, counts);
                one_by_one.0.note(&mut one_by_one.1, after(&one_by_one.0));
                together.0.note(&mut together.1, after(&together.0));
                for _ in 0..n {
                    one_by_one.0.note(&mut one_by_one.1, after(&one_by_one.0));
                }
                together.0.note_next(&mut together.1, n);
                // A gap, so that the window has some of each.
                let skipped = after(&one_by_one.0).wrapping_add(40);
                one_by_one.0.note(&mut one_by_one.1, skipped);
                together.0.note(&mut together.1, skipped);
            }
            assert_eq!(one_by_one.0, together.0);
            assert_eq!(one_by_one.1.0, together.1.0);
        }
    }

    /// The number after the highest one, or the first.
    fn start_of(first: u32, counts: &Counts) -> u32 {
        if counts.received == 0 {
            first
        } else {
            u32::try_from(counts.highest & 0xffff_ffff).unwrap().wrapping_add(1)
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
