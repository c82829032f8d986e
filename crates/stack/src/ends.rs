//! What ends by itself, in the order in which it ends: the next is known without looking at the others.

use std::collections::BTreeSet;

use crate::Timestamp;

/// Names, each with the time of its end.
#[derive(Debug)]
pub(crate) struct Ends<K>(BTreeSet<(Timestamp, K)>);

impl<K> Default for Ends<K> {
    fn default() -> Self {
        Self(BTreeSet::new())
    }
}

impl<K: Ord + Copy> Ends<K> {
    pub(crate) fn first(&self) -> Option<(Timestamp, K)> {
        self.0.first().copied()
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = K> {
        self.0.iter().map(|(_, key)| *key)
    }

    pub(crate) fn insert(&mut self, end: Timestamp, key: K) {
        self.0.insert((end, key));
    }

    pub(crate) fn remove(&mut self, end: Timestamp, key: K) {
        self.0.remove(&(end, key));
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::cmp::Ordering;

    use super::*;

    thread_local! {
        static STEPS: Cell<u64> = const { Cell::new(0) };
    }

    /// A name that counts how often it is compared.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    struct Counted(u64);

    impl Ord for Counted {
        fn cmp(&self, other: &Self) -> Ordering {
            STEPS.set(STEPS.get() + 1);
            self.0.cmp(&other.0)
        }
    }

    impl PartialOrd for Counted {
        fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
            Some(self.cmp(other))
        }
    }

    fn steps(work: impl FnOnce()) -> u64 {
        STEPS.set(0);
        work();
        STEPS.get()
    }

    #[test]
    fn a_thousand_times_as_many_cost_a_few_steps_more_and_the_first_none() {
        let cost = |count: u64| {
            let mut ends = Ends::default();
            // All end at once, so that it is the names that are compared.
            (0..count).for_each(|n| ends.insert(Timestamp::ZERO, Counted(n)));
            let first = steps(|| assert_eq!(ends.first(), Some((Timestamp::ZERO, Counted(0)))));
            let change = steps(|| {
                ends.remove(Timestamp::ZERO, Counted(count / 2));
                ends.insert(Timestamp::ZERO, Counted(count / 2));
            });
            (first, change)
        };
        let (few, many) = (cost(16), cost(16_384));
        assert_eq!((few.0, many.0), (0, 0));
        assert!(many.1 < few.1 + 100 && few.1 > 0, "{few:?} {many:?}");
    }
}
