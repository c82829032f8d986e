//! Entries by number, in pages that never move: a million connections without one large copy.

use std::ops::{Index, IndexMut};

const PAGE: usize = 256;
const PAGE_NUMBERS: std::ops::Range<u32> = 0..256;

/// Entries are made a page at a time, lent out, and taken back with what they have allocated: in a steady state
/// nothing is allocated.
#[derive(Debug)]
pub(crate) struct Slab<T> {
    pages: Vec<Box<[T; PAGE]>>,
    free: Vec<u32>,
    limit: usize,
}

impl<T: Default> Slab<T> {
    /// A slab that lends out at most `limit` entries.
    pub(crate) fn new(limit: usize) -> Self {
        Self { pages: Vec::new(), free: Vec::new(), limit: limit.min(1 << 30) }
    }

    /// The number of a free entry, which holds what its last user left there; `None` when the limit is reached.
    #[inline]
    pub(crate) fn take(&mut self) -> Option<u32> {
        if self.free.is_empty() {
            self.grow();
        }
        self.free.pop()
    }

    /// Takes an entry back.
    #[inline]
    pub(crate) fn give(&mut self, number: u32) {
        self.free.push(number);
    }

    /// Entries that are lent out.
    pub(crate) fn used(&self) -> usize {
        self.pages.len() * PAGE - self.free.len()
    }

    /// The numbers of all entries, in use or not.
    pub(crate) fn numbers(&self) -> std::ops::Range<u32> {
        0..u32::try_from(self.pages.len() * PAGE).unwrap_or(u32::MAX)
    }

    /// The entry, if there is one of that number, in use or not.
    pub(crate) fn peek(&self, number: u32) -> Option<&T> {
        self.pages.get(number as usize / PAGE).map(|page| &page[number as usize % PAGE])
    }

    /// The same, to be changed.
    #[inline]
    pub(crate) fn get_mut(&mut self, number: u32) -> Option<&mut T> {
        self.pages.get_mut(number as usize / PAGE).map(|page| &mut page[number as usize % PAGE])
    }

    #[cold]
    fn grow(&mut self) {
        let start = self.pages.len() * PAGE;
        let Ok(first) = u32::try_from(start) else { return };
        if start + PAGE > self.limit.next_multiple_of(PAGE) {
            return;
        }
        // A list first: an array would be made on the stack, and it is large.
        let page: Box<[T]> = (0..PAGE).map(|_| T::default()).collect();
        let Ok(page) = page.try_into() else { return };
        self.pages.push(page);
        self.free.extend(PAGE_NUMBERS.rev().map(|i| first + i));
    }
}

impl<T> Index<u32> for Slab<T> {
    type Output = T;

    #[inline]
    fn index(&self, number: u32) -> &T {
        &self.pages[number as usize / PAGE][number as usize % PAGE]
    }
}

impl<T> IndexMut<u32> for Slab<T> {
    #[inline]
    fn index_mut(&mut self, number: u32) -> &mut T {
        &mut self.pages[number as usize / PAGE][number as usize % PAGE]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_lent_up_to_the_limit_and_come_back() {
        let mut slab: Slab<u64> = Slab::new(300);
        let taken: Vec<u32> = std::iter::from_fn(|| slab.take()).collect();
        assert_eq!((taken.len(), slab.used()), (512, 512), "a limit counts in whole pages");
        slab[511] = 9;
        slab.give(511);
        assert_eq!(slab.take().map(|n| slab[n]), Some(9), "with what the last user left there");
        assert!(slab.peek(512).is_none());
    }
}
