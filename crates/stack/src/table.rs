//! A hash table of small numbers: from a hash to an entry in a slab, in one cache line for nearly every look-up.

use bywash_frame::prefetch;

/// Open addressing with linear probing. It keeps 32 bits of each hash, so that a wrong entry is nearly never looked
/// at, and so that growing and removing need no second look at the keys.
#[derive(Debug)]
pub(crate) struct Table {
    /// Zero is empty; otherwise the hash's 32 bits and the value plus one.
    buckets: Vec<u64>,
    len: usize,
}

impl Table {
    /// A table that holds `entries` before it grows.
    pub(crate) fn with_capacity(entries: usize) -> Self {
        Self { buckets: vec![0; (entries * 4 / 3).next_power_of_two().max(16)], len: 0 }
    }

    /// Asks for the memory in which a hash is looked for.
    #[inline]
    pub(crate) fn prefetch(&self, hash: u64) {
        prefetch(&self.buckets[self.home(tag(hash))], 0..size_of::<u64>());
    }

    /// The value stored under `hash` for which `same` holds.
    #[inline]
    pub(crate) fn find(&self, hash: u64, mut same: impl FnMut(u32) -> bool) -> Option<u32> {
        let mut at = self.home(tag(hash));
        loop {
            let bucket = self.buckets[at];
            if bucket == 0 {
                return None;
            }
            if bucket >> 32 == u64::from(tag(hash)) && same(value(bucket)) {
                return Some(value(bucket));
            }
            at = self.next(at);
        }
    }

    /// Stores a value, which must not be there yet and must be below `u32::MAX`.
    pub(crate) fn insert(&mut self, hash: u64, value: u32) {
        if (self.len + 1) * 4 > self.buckets.len() * 3 {
            self.grow();
        }
        self.len += 1;
        self.place(stored(hash, value));
    }

    /// Takes a value out; `false` when it was not there.
    pub(crate) fn remove(&mut self, hash: u64, value: u32) -> bool {
        let Some(at) = self.position(hash, value) else { return false };
        self.len -= 1;
        self.close_gap(at);
        true
    }

    /// Puts another value, which must not be there yet, where one stored under the same hash was; `false` when that was not
    /// there. Nothing else is moved, and no other bucket is looked at than to find it.
    pub(crate) fn replace(&mut self, hash: u64, old: u32, new: u32) -> bool {
        let Some(at) = self.position(hash, old) else { return false };
        self.buckets[at] = stored(hash, new);
        true
    }

    /// The bucket of a value stored under `hash`.
    #[inline]
    fn position(&self, hash: u64, value: u32) -> Option<usize> {
        let sought = stored(hash, value);
        let mut at = self.home(tag(hash));
        loop {
            match self.buckets[at] {
                bucket if bucket == sought => return Some(at),
                0 => return None,
                _ => at = self.next(at),
            }
        }
    }

    /// Values stored.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Moves later entries of the same run forward, so that no look-up ends too early.
    fn close_gap(&mut self, mut gap: usize) {
        let mask = self.buckets.len() - 1;
        let mut at = gap;
        loop {
            at = self.next(at);
            let bucket = self.buckets[at];
            if bucket == 0 {
                self.buckets[gap] = 0;
                return;
            }
            let home = self.home(stored_tag(bucket));
            if at.wrapping_sub(home) & mask >= at.wrapping_sub(gap) & mask {
                self.buckets[gap] = bucket;
                gap = at;
            }
        }
    }

    #[cold]
    fn grow(&mut self) {
        let twice = self.buckets.len() * 2;
        let old = std::mem::replace(&mut self.buckets, vec![0; twice]);
        for bucket in old.into_iter().filter(|bucket| *bucket != 0) {
            self.place(bucket);
        }
    }

    fn place(&mut self, bucket: u64) {
        let mut at = self.home(stored_tag(bucket));
        while self.buckets[at] != 0 {
            at = self.next(at);
        }
        self.buckets[at] = bucket;
    }

    #[inline]
    fn home(&self, tag: u32) -> usize {
        tag as usize & (self.buckets.len() - 1)
    }

    #[inline]
    fn next(&self, at: usize) -> usize {
        (at + 1) & (self.buckets.len() - 1)
    }
}

#[inline]
#[expect(clippy::cast_possible_truncation, reason = "32 of 64 well-mixed bits")]
fn tag(hash: u64) -> u32 {
    hash as u32
}

/// What a bucket holds for a value.
#[inline]
fn stored(hash: u64, value: u32) -> u64 {
    u64::from(tag(hash)) << 32 | u64::from(value + 1)
}

#[inline]
fn stored_tag(bucket: u64) -> u32 {
    (bucket >> 32) as u32
}

#[inline]
#[expect(clippy::cast_possible_truncation, reason = "the lower half")]
fn value(bucket: u64) -> u32 {
    (bucket as u32) - 1
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Few distinct hashes, so that runs are long and wrap around the end.
        #[test]
        fn it_is_a_map(steps in proptest::collection::vec((0u64..24, 0u8..4), 0..400)) {
            let mut table = Table::with_capacity(4);
            let mut model: HashMap<u32, u64> = HashMap::new();
            for (i, (hash, action)) in steps.into_iter().enumerate() {
                let number = u32::try_from(i).unwrap();
                let hash = hash.wrapping_mul(0x9e37_79b9);
                if action < 2 {
                    table.insert(hash, number);
                    model.insert(number, hash);
                } else if let Some((value, hash)) = model.iter().next().map(|(v, h)| (*v, *h)) {
                    model.remove(&value);
                    if action == 2 {
                        prop_assert!(table.remove(hash, value));
                    } else {
                        prop_assert!(table.replace(hash, value, number));
                        model.insert(number, hash);
                    }
                    prop_assert!(!table.remove(hash, value));
                    prop_assert!(!table.replace(hash, value, number));
                }
                prop_assert_eq!(table.len(), model.len());
                for (value, hash) in &model {
                    prop_assert_eq!(table.find(*hash, |v| v == *value), Some(*value));
                }
            }
        }
    }
}
