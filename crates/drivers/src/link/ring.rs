//! The ring of one direction: who may touch which slots when, and how a sleeping receiver is woken.
//!
//! Each index has one writer: the sender counts the slots it has filled, the receiver those it has emptied, each in
//! memory that the other can only read. An index of the other's is checked against our own when it is read, so that a
//! hostile one is a [`Fault`] and nothing else. It is written over any memory, so that a model checker can try all orders
//! of events on the same code.

use std::sync::atomic::Ordering;

/// A 32-bit word that somebody else may read or write at any time.
pub(super) trait Cell {
    /// Its value, with no ordering.
    fn load(&self) -> u32;
}

/// One that we alone write.
pub(super) trait OwnCell: Cell {
    /// Sets it, with no ordering.
    fn store(&self, value: u32);
}

/// What orders accesses of different words.
pub(super) trait Memory {
    /// As [`std::sync::atomic::fence`].
    fn fence(order: Ordering);
}

/// The other side's index is impossible: it is broken, or hostile. Nothing more can be said about its ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Fault;

/// The sending side's view.
#[derive(Debug)]
pub(super) struct Sender<O, M> {
    /// Slots filled, for the other side.
    head: O,
    size: u32,
    /// Slots filled, published or not.
    filled: u32,
    /// Slots of which we know that they were emptied.
    emptied: u32,
    /// The last sleep we have rung for.
    rung: u32,
    memory: std::marker::PhantomData<fn(M)>,
}

impl<O: OwnCell, M: Memory> Sender<O, M> {
    /// Of a fresh ring of `size` slots, a power of two.
    pub(super) fn new(head: O, size: u32) -> Self {
        Self { head, size, filled: 0, emptied: 0, rung: 0, memory: std::marker::PhantomData }
    }

    /// Slots that are free, as far as we know.
    #[inline]
    pub(super) fn room(&self) -> u32 {
        self.size - self.used()
    }

    /// Slots that are filled, as far as we know.
    #[inline]
    pub(super) fn used(&self) -> u32 {
        self.filled.wrapping_sub(self.emptied)
    }

    /// The next slot to be filled.
    #[inline]
    pub(super) fn next(&self) -> u32 {
        self.filled
    }

    /// The oldest slot that is still in use.
    #[inline]
    pub(super) fn oldest(&self) -> u32 {
        self.emptied
    }

    /// Looks how far the receiver is, `tail` being what it publishes.
    #[inline]
    pub(super) fn look(&mut self, tail: &impl Cell) -> Result<(), Fault> {
        let tail = tail.load();
        // What it has read before it said so may be overwritten.
        M::fence(Ordering::Acquire);
        if tail.wrapping_sub(self.emptied) > self.used() {
            return Err(Fault);
        }
        self.emptied = tail;
        Ok(())
    }

    /// The next `slots` slots, which were free, are filled.
    #[inline]
    pub(super) fn fill(&mut self, slots: u32) {
        debug_assert!(slots <= self.room());
        self.filled = self.filled.wrapping_add(slots);
    }

    /// Shows the receiver all slots that were filled.
    #[inline]
    pub(super) fn publish(&self) {
        M::fence(Ordering::Release);
        self.head.store(self.filled);
    }

    /// Whether the receiver sleeps, or is about to, and nobody has rung for that sleep. To be asked after publishing.
    #[inline]
    pub(super) fn must_ring(&mut self, asleep: &impl Cell) -> bool {
        // Either we see that it sleeps, or it sees our slots: each writes, fences, then reads.
        M::fence(Ordering::SeqCst);
        let sleep = asleep.load();
        let ring = sleep != AWAKE && sleep != self.rung;
        if ring {
            self.rung = sleep;
        }
        ring
    }
}

/// What a receiver that does not sleep publishes; else the number of its sleep.
const AWAKE: u32 = 0;

/// The receiving side's view.
#[derive(Debug)]
pub(super) struct Receiver<T, O, M> {
    /// Slots filled, by the other side.
    head: T,
    /// Slots emptied, for the other side.
    tail: O,
    asleep: O,
    size: u32,
    /// Slots of which we know that they were filled.
    filled: u32,
    /// Slots emptied, published or not.
    emptied: u32,
    sleeps: u32,
    memory: std::marker::PhantomData<fn(M)>,
}

impl<T: Cell, O: OwnCell, M: Memory> Receiver<T, O, M> {
    /// Of a fresh ring of `size` slots, a power of two.
    pub(super) fn new(head: T, tail: O, asleep: O, size: u32) -> Self {
        let memory = std::marker::PhantomData;
        Self { head, tail, asleep, size, filled: 0, emptied: 0, sleeps: 0, memory }
    }

    /// Filled slots that we know of.
    #[inline]
    pub(super) fn available(&self) -> u32 {
        self.filled.wrapping_sub(self.emptied)
    }

    /// The next slot to be emptied.
    #[inline]
    pub(super) fn next(&self) -> u32 {
        self.emptied
    }

    /// Looks how far the sender is.
    #[inline]
    pub(super) fn look(&mut self) -> Result<(), Fault> {
        let head = self.head.load();
        // What it has written before it said so is read after.
        M::fence(Ordering::Acquire);
        let available = head.wrapping_sub(self.emptied);
        // It may not take back what it has shown, nor fill what we have not emptied.
        if available > self.size || available < self.available() {
            return Err(Fault);
        }
        self.filled = head;
        Ok(())
    }

    /// The next `slots` slots were read.
    #[inline]
    pub(super) fn empty(&mut self, slots: u32) {
        debug_assert!(slots <= self.available());
        self.emptied = self.emptied.wrapping_add(slots);
    }

    /// Gives the sender all slots back that were read.
    #[inline]
    pub(super) fn publish(&self) {
        M::fence(Ordering::Release);
        self.tail.store(self.emptied);
    }

    /// Says that we go to sleep. False, and it is taken back, when there are filled slots or the sender is broken: whoever
    /// looks again finds out.
    pub(super) fn sleep(&mut self) -> bool {
        self.sleeps = self.sleeps.checked_add(1).unwrap_or(AWAKE + 1);
        self.asleep.store(self.sleeps);
        M::fence(Ordering::SeqCst);
        let quiet = self.look().is_ok() && self.available() == 0;
        if !quiet {
            self.wake();
        }
        quiet
    }

    /// Says that we are awake.
    pub(super) fn wake(&self) {
        self.asleep.store(AWAKE);
    }
}

#[cfg(test)]
mod tests;
