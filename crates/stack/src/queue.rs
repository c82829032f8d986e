//! Queues that are mostly short.

use std::collections::VecDeque;
use std::mem::offset_of;
use std::ops::{Index, IndexMut};

/// Takes the first entry out. A queue that is empty then begins anew at the front of its memory: what comes next lies where the
/// last one lay, in lines that are in the cache, instead of going around.
#[inline]
pub(crate) fn pop<T>(queue: &mut VecDeque<T>) -> Option<T> {
    let first = queue.pop_front()?;
    if queue.is_empty() {
        queue.clear();
    }
    Some(first)
}

/// A queue whose only entry lies in itself.
///
/// A connection that asks and is answered has one segment on its way, one packet to be read, one frame of bytes to be sent. Were
/// each of them somewhere else, each would cost a cache line, and a page's translation, that are found only after the
/// connection's own.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Queue<T> {
    /// Those behind the first one.
    rest: VecDeque<T>,
    /// One that came while there was no other.
    first: Option<T>,
}

impl<T> Default for Queue<T> {
    fn default() -> Self {
        Self { first: None, rest: VecDeque::new() }
    }
}

impl<T> Queue<T> {
    /// Where that begins which is looked at in each queue: how long the rest is, which the standard library has last, and the first
    /// entry.
    pub(crate) const HOT: usize = offset_of!(Self, first) - size_of::<usize>();

    #[inline]
    pub(crate) fn len(&self) -> usize {
        usize::from(self.first.is_some()) + self.rest.len()
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.first.is_none() && self.rest.is_empty()
    }

    #[inline]
    pub(crate) fn push_back(&mut self, entry: T) {
        self.push_made(|| entry);
    }

    /// Appends an entry that is made only when its place is certain, and so is made there: what was just written in pieces is slow
    /// to be moved.
    #[inline(always)]
    pub(crate) fn push_made(&mut self, entry: impl FnOnce() -> T) {
        if self.is_empty() {
            self.first = Some(entry());
            return;
        }
        if self.rest.len() == self.rest.capacity() {
            self.rest.reserve(1);
        }
        assert!(self.rest.len() < self.rest.capacity(), "room was made");
        self.rest.push_back(entry());
    }

    #[inline]
    pub(crate) fn pop_front(&mut self) -> Option<T> {
        if self.first.is_some() { self.first.take() } else { pop(&mut self.rest) }
    }

    /// The entry of a queue that lies in it and is alone.
    #[inline]
    pub(crate) fn only(&self) -> Option<&T> {
        if self.rest.is_empty() { self.first.as_ref() } else { None }
    }

    /// Takes out the entry that [`Queue::only`] has shown.
    #[inline]
    pub(crate) fn take_only(&mut self) -> Option<T> {
        debug_assert!(self.rest.is_empty(), "it is alone");
        self.first.take()
    }

    #[inline]
    pub(crate) fn front(&self) -> Option<&T> {
        if self.first.is_some() { self.first.as_ref() } else { self.rest.front() }
    }

    #[inline]
    pub(crate) fn front_mut(&mut self) -> Option<&mut T> {
        if self.first.is_some() { self.first.as_mut() } else { self.rest.front_mut() }
    }

    #[inline]
    pub(crate) fn back_mut(&mut self) -> Option<&mut T> {
        if self.rest.is_empty() { self.first.as_mut() } else { self.rest.back_mut() }
    }

    /// Where `n` is, counted in those behind the first one; `None` when it is that one.
    #[inline]
    fn behind(&self, n: usize) -> Option<usize> {
        n.checked_sub(usize::from(self.first.is_some()))
    }

    #[inline]
    pub(crate) fn get(&self, n: usize) -> Option<&T> {
        self.behind(n).map_or(self.first.as_ref(), |n| self.rest.get(n))
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, n: usize) -> Option<&mut T> {
        match self.behind(n) {
            Some(n) => self.rest.get_mut(n),
            None => self.first.as_mut(),
        }
    }

    /// Puts an entry in as number `n`.
    ///
    /// # Panics
    /// When there are fewer before it.
    pub(crate) fn insert(&mut self, n: usize, entry: T) {
        match self.behind(n) {
            Some(n) => self.rest.insert(n, entry),
            // What was the first stays before the rest.
            None => {
                if let Some(first) = self.first.replace(entry) {
                    self.rest.push_front(first);
                }
            }
        }
    }

    pub(crate) fn iter(&self) -> impl DoubleEndedIterator<Item = &T> {
        self.first.iter().chain(&self.rest)
    }

    pub(crate) fn iter_mut(&mut self) -> impl DoubleEndedIterator<Item = &mut T> {
        self.first.iter_mut().chain(&mut self.rest)
    }

    /// The number of the first entry that is not `before`, in a queue where all that are stand before all that are not.
    pub(crate) fn partition_point(&self, before: impl Fn(&T) -> bool) -> usize {
        match &self.first {
            Some(first) if !before(first) => 0,
            first => usize::from(first.is_some()) + self.rest.partition_point(before),
        }
    }

    pub(crate) fn clear(&mut self) {
        self.first = None;
        self.rest.clear();
    }
}

impl<T> Index<usize> for Queue<T> {
    type Output = T;

    #[inline]
    fn index(&self, n: usize) -> &T {
        self.get(n).unwrap_or_else(|| panic!("there is no entry {n}"))
    }
}

impl<T> IndexMut<usize> for Queue<T> {
    #[inline]
    fn index_mut(&mut self, n: usize) -> &mut T {
        self.get_mut(n).unwrap_or_else(|| panic!("there is no entry {n}"))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn it_is_a_queue_like_any_other(steps in prop::collection::vec((0u8..6, 0usize..5), 1..60)) {
            let (mut queue, mut model) = (Queue::default(), VecDeque::new());
            for (next, (action, n)) in steps.into_iter().enumerate() {
                match action {
                    0 | 1 => {
                        queue.push_back(next);
                        model.push_back(next);
                    }
                    2 if queue.only().is_some() => prop_assert_eq!(queue.take_only(), model.pop_front()),
                    2 => prop_assert_eq!(queue.pop_front(), model.pop_front()),
                    3 if n <= model.len() => {
                        queue.insert(n, next);
                        model.insert(n, next);
                    }
                    4 if n == 0 => {
                        queue.clear();
                        model.clear();
                    }
                    _ => {
                        for (entry, of) in queue.back_mut().into_iter().zip(model.back_mut()) {
                            (*entry, *of) = (*entry + 100, *of + 100);
                        }
                        for (entry, of) in queue.get_mut(n).into_iter().zip(model.get_mut(n)) {
                            (*entry, *of) = (*entry + 100, *of + 100);
                        }
                    }
                }
                prop_assert_eq!((queue.len(), queue.is_empty()), (model.len(), model.is_empty()));
                if let Some(only) = queue.only() {
                    prop_assert_eq!((queue.len(), queue.front()), (1, Some(only)));
                }
                prop_assert_eq!((queue.front(), queue.get(n)), (model.front(), model.get(n)));
                prop_assert!(queue.iter().eq(&model) && queue.iter().rev().eq(model.iter().rev()));
                prop_assert!(queue.iter_mut().eq(&mut model));
            }
        }

        #[test]
        fn a_point_is_found_wherever_it_is(sizes in (0usize..4, 0usize..4), popped in 0usize..3) {
            let mut queue: Queue<usize> = Queue::default();
            (0..sizes.0 + sizes.1).for_each(|n| queue.push_back(n));
            for _ in 0..popped {
                queue.pop_front();
            }
            let wanted = queue.iter().filter(|n| **n < sizes.0).count();
            prop_assert_eq!(queue.partition_point(|n| *n < sizes.0), wanted);
        }
    }
}
