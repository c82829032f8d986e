//! The rules that are not just a list, and which of them a packet may meet by the lists that it is in.
//!
//! Most rules join a list, and most packets are in few lists: the others need not be looked at. Nor those that want a name or
//! a payload once it is known that nothing of the kind is in the packet that any rule wants.
//!
//! The addresses and ports of nearly all packets are of one class alone that is in any list: which rules those may meet is put down
//! when there is no packet yet, and so short that to follow it costs a load for each rule.

use super::look::{KINDS, Kinds};
use super::tables::{Found, Tables};
use super::{Action, MOST_JOINED, Plan, Rule, Steps};

/// A bit for each list that is joined.
type Bits = [u64; MOST_JOINED / 64];

/// Rules by their indices.
#[derive(Debug)]
pub(crate) struct Coded {
    /// Those that join no list, in order.
    free: Vec<Candidate>,
    /// By the bit of a list: the rule that joins it. Of two rules the first one has the lower bits.
    owners: Vec<Candidate>,
    /// Words of these bits.
    words: usize,
    /// The lists that come first in the rules that join them.
    firsts: Bits,
    /// Of these, those that are left without the rules that look for something of some [`Kinds`].
    without: [Bits; KINDS],
    /// Of these, those of limits that lists alone tell; as many words as there is one in.
    limits: Vec<u64>,
    /// Limits of whatever comes.
    free_limits: Vec<usize>,
    /// Those that are crossed, in order.
    crossed: Vec<Candidate>,
    /// The rules that packets of one class alone may meet, those of each class in order and up to one that is [`NONE`].
    courses: Vec<Candidate>,
    /// By the class: where its own begin in these, or [`UNKNOWN`].
    begins: Vec<usize>,
}

/// Most rules of a class that are put down, and of all classes together: 8 bytes for each.
const MOST_KNOWN: [usize; 2] = [64, 1 << 16];

/// Behind all courses that are put down.
const UNKNOWN: usize = usize::MAX;

/// A rule that a packet may meet, and all that most packets need of it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Candidate {
    pub(super) index: u32,
    /// The packet meets it: that it is in its first list, if it joins one, is all that it asks for.
    pub(super) is_sure: bool,
    /// User space has the last word.
    pub(super) asks_user_space: bool,
    /// What it looks for.
    kinds: Kinds,
    /// How far it is to the next one that may be met when there is nothing of that.
    skip: u8,
}

impl Candidate {
    /// Behind the last rule of any set.
    const NONE: Self = Self::listed(NONE);

    /// One that is met by a list alone.
    const fn listed(index: u32) -> Self {
        Self { index, is_sure: true, asks_user_space: false, kinds: 0, skip: 1 }
    }
}

/// The rules that a packet may meet, in order.
#[derive(Default)]
pub(super) struct Candidates {
    /// Those that look for something of these are left out.
    pub(super) left_out: Kinds,
    /// How far they are, where they were not put down.
    joined: Option<Joined>,
}

/// How far the rules are that a packet may meet by what its classes mean together, in order.
struct Joined {
    /// What is left of a word of the lists that come first, and the number of the word behind it.
    bits: u64,
    next: usize,
    /// How many of those that join no list have been.
    free: usize,
    /// The next one that is crossed.
    crossed: u32,
    /// The first rule that is met by a list alone: no other one comes behind it.
    first: u32,
}

/// Behind the last rule of any set, and where [`Found::first`] is when there is none.
pub(super) const NONE: u32 = u32::MAX;

impl Coded {
    pub(super) fn of(plans: &[Plan], rules: &[Rule], tables: &Tables) -> Self {
        let none = [0; MOST_JOINED / 64];
        let (free, free_limits, owners) = (Vec::new(), Vec::new(), Vec::new());
        let (limits, crossed) = (Vec::new(), Vec::new());
        let without = [none; KINDS];
        let (courses, begins) = (Vec::new(), Vec::new());
        let mut coded = Self {
            free,
            owners,
            words: 0,
            firsts: none,
            without,
            limits,
            free_limits,
            crossed,
            courses,
            begins,
        };
        for (index, (plan, rule)) in plans.iter().zip(rules).enumerate() {
            let (Plan::Coded(steps) | Plan::Crossed(steps)) = plan else { continue };
            let Steps { bits, has_test, wanted, asks_user_space, .. } = steps;
            let candidate = Candidate {
                index: u32::try_from(index).unwrap_or(NONE),
                is_sure: bits.len() <= 1 && !has_test && wanted.is_none(),
                asks_user_space: *asks_user_space,
                kinds: wanted.as_ref().map_or(0, |wanted| wanted.kinds),
                skip: 1,
            };
            if matches!(plan, Plan::Crossed(_)) {
                coded.crossed.push(candidate);
                continue;
            }
            let is_limit = matches!(rule.action, Action::Limit(_)) && !has_test && wanted.is_none();
            let Some(&first) = bits.first() else {
                coded.free.push(candidate);
                coded.free_limits.extend(is_limit.then_some(index));
                continue;
            };
            let first = first as usize;
            let (word, bit) = (first / 64, 1 << (first % 64));
            coded.firsts[word] |= bit;
            if is_limit {
                coded.limits.resize(word + 1, 0);
                coded.limits[word] |= bit;
            }
            for (kinds, without) in coded.without.iter_mut().enumerate() {
                if wanted.as_ref().is_none_or(|wanted| usize::from(wanted.kinds) & kinds == 0) {
                    without[word] |= bit;
                }
            }
            coded.owners.extend(bits.iter().map(|_| candidate));
        }
        coded.words = coded.owners.len().div_ceil(64);
        coded.begins = tables.alone().map(|found| coded.put_down(tables, &found)).collect();
        coded
    }

    /// Puts down which rules packets may meet of which that was `found`; returns where they begin.
    fn put_down(&mut self, tables: &Tables, found: &Found) -> usize {
        let [most, all] = MOST_KNOWN;
        let begin = self.courses.len();
        let mut joined = Joined::new(tables, found);
        let candidates = std::iter::from_fn(|| Some(joined.next(self, tables, found, 0)));
        let mut course: Vec<_> =
            candidates.take_while(|candidate| candidate.index != NONE).take(most + 1).collect();
        if course.len() > most || begin + course.len() >= all {
            return UNKNOWN;
        }
        for at in 0..course.len() {
            let kinds = course[at].kinds;
            if kinds.is_power_of_two() {
                let others = course[at..].iter().take_while(|other| other.kinds & kinds != 0);
                course[at].skip = u8::try_from(others.count()).unwrap_or(1);
            }
        }
        self.courses.extend(course.into_iter().chain([Candidate::NONE]));
        begin
    }

    /// Where the rules begin that a packet may meet of which that was `found`.
    #[inline(always)]
    pub(super) fn begin(&self, found: &Found) -> usize {
        self.begins.get(found.alone() as usize).copied().unwrap_or(UNKNOWN)
    }

    /// The lists that come first in the rules that join them.
    pub(crate) fn firsts(&self) -> &[u64] {
        &self.firsts
    }

    /// Whether there are limits that lists alone tell, or that are about whatever comes.
    #[inline]
    pub(super) fn knows_limits(&self) -> bool {
        !(self.limits.is_empty() && self.free_limits.is_empty())
    }

    /// Calls `each` with limits that such a packet may meet: where lists alone tell, by the first of them.
    #[inline]
    pub(super) fn each_limit(&self, tables: &Tables, found: &Found, mut each: impl FnMut(usize)) {
        self.free_limits.iter().for_each(|index| each(*index));
        let [first, second] = Tables::first_words(found);
        self.each_of(0, first, &mut each);
        self.each_of(1, second, &mut each);
        for number in 2..self.limits.len() {
            self.each_of(number, tables.word(found, number), &mut each);
        }
    }

    /// Calls `each` with the limits that a word of bits tells of.
    #[inline(always)]
    fn each_of(&self, number: usize, bits: u64, each: &mut impl FnMut(usize)) {
        let mut bits = bits & self.limits.get(number).copied().unwrap_or(0);
        while bits != 0 {
            each(self.owners[64 * number + bits.trailing_zeros() as usize].index as usize);
            bits &= bits - 1;
        }
    }
}

impl Candidates {
    /// The next one, or one that is [`NONE`]. Where they were put down they go on `at` a place. Always for the same packet.
    #[inline(always)]
    pub(super) fn next(
        &mut self,
        at: &mut usize,
        coded: &Coded,
        tables: &Tables,
        found: &Found,
    ) -> Candidate {
        loop {
            let Some(candidate) = coded.courses.get(*at) else {
                return self.next_joined(coded, tables, found);
            };
            if candidate.kinds & self.left_out == 0 {
                *at += usize::from(candidate.index != NONE);
                return *candidate;
            }
            *at += usize::from(candidate.skip);
        }
    }

    // Apart: it has a state of its own, for which the loop over a batch has no registers.
    #[inline(never)]
    fn next_joined(&mut self, coded: &Coded, tables: &Tables, found: &Found) -> Candidate {
        let joined = self.joined.get_or_insert_with(|| Joined::new(tables, found));
        joined.next(coded, tables, found, self.left_out)
    }
}

impl Joined {
    /// At the beginning.
    fn new(tables: &Tables, found: &Found) -> Self {
        let crossed = tables.next_crossed(found, 0).unwrap_or(NONE);
        Self { bits: 0, next: 0, free: 0, crossed, first: found.first() }
    }

    /// The next one, or one that is [`NONE`]; without those that look for something of these kinds, where they join a list.
    fn next(&mut self, coded: &Coded, tables: &Tables, found: &Found, left_out: Kinds) -> Candidate {
        let without = &coded.without[usize::from(left_out) % KINDS];
        // What is left out may have become more since this word was read.
        self.bits &= without.get(self.next.wrapping_sub(1)).unwrap_or(&0);
        while self.bits == 0 && self.next < coded.words {
            self.bits = tables.word(found, self.next) & without[self.next];
            self.next += 1;
        }
        let joined = if self.bits == 0 {
            Candidate::NONE
        } else {
            coded.owners[64 * (self.next - 1) + self.bits.trailing_zeros() as usize]
        };
        let free = coded.free.get(self.free).filter(|free| free.index < joined.index);
        let next = free.map_or(joined.index, |free| free.index).min(self.crossed);
        if next >= self.first {
            let last = Candidate::listed(self.first);
            *self = Self { bits: 0, next: usize::MAX, free: usize::MAX, crossed: NONE, first: NONE };
            return last;
        }
        if self.crossed == next {
            self.crossed = tables.next_crossed(found, next + 1).unwrap_or(NONE);
            let at = coded.crossed.partition_point(|candidate| candidate.index < next);
            return coded.crossed.get(at).copied().unwrap_or(Candidate::NONE);
        }
        match free {
            Some(free) => {
                self.free += 1;
                *free
            }
            None => {
                self.bits &= self.bits.wrapping_sub(1);
                joined
            }
        }
    }
}
