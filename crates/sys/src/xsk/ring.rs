//! The four rings of an AF_XDP socket: one producer, one consumer, free-running indices in memory shared with the kernel.
//!
//! Filling and sending are [`Producer`]s, receiving and completing are [`Consumer`]s; what travels is an address
//! (`u64`) or a [`Descriptor`], always by value. Each side keeps a copy of the other's index and looks again only
//! when the copy says there is too little: the cache line with the index is what the two sides fight for.

use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use zerocopy::{FromBytes, Immutable, IntoBytes};

use crate::shared::{Mapping, Slots, Word};

/// A packet, or a part of one, in a receive or transmit ring (`struct xdp_desc`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
pub struct Descriptor {
    /// Where its bytes begin, as the kernel writes it: [`Descriptor::offset`] says what it means.
    pub address: u64,
    /// How many there are.
    pub len: u32,
    /// [`Descriptor::CONTINUES`] or nothing.
    pub options: u32,
}

impl Descriptor {
    /// The packet goes on in the next descriptor (`XDP_PKT_CONTD`).
    pub const CONTINUES: u32 = 1 << 0;

    /// Bytes from the registered memory's first byte to the first of these.
    #[inline]
    pub fn offset(&self) -> u64 {
        offset(self.address)
    }

    /// Whether the packet goes on in the next descriptor.
    #[inline]
    pub fn continues(&self) -> bool {
        self.options & Self::CONTINUES != 0
    }
}

/// The offset that an address from the kernel means. With unaligned chunks it comes in two parts: the chunk's address
/// below bit 48, what to add to it above.
#[inline]
pub fn offset(address: u64) -> u64 {
    (address & ((1 << 48) - 1)) + (address >> 48)
}

/// Where in its mapping a ring's parts lie (`struct xdp_ring_offset`): the kernel says, it differs by version.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
pub struct RingOffsets {
    /// The producer's index.
    pub producer: u64,
    /// The consumer's index.
    pub consumer: u64,
    /// The first entry.
    pub entries: u64,
    /// The flags.
    pub flags: u64,
}

impl RingOffsets {
    /// Bytes to map for `count` entries of type `T`; `None` when the offsets make no sense.
    pub fn mapping_len<T>(&self, count: u32) -> Option<usize> {
        usize::try_from(self.entries).ok()?.checked_add(size_of::<T>().checked_mul(count as usize)?)
    }
}

/// What both ends of a ring have.
#[derive(Debug)]
struct Ring<T> {
    producer: Word<AtomicU32>,
    consumer: Word<AtomicU32>,
    flags: Word<AtomicU32>,
    slots: Slots<T>,
}

/// `XDP_RING_NEED_WAKEUP`.
const NEED_WAKEUP: u32 = 1 << 0;

impl<T: FromBytes + IntoBytes + Copy> Ring<T> {
    fn new(mapping: &Arc<Mapping>, offsets: &RingOffsets, count: u32) -> io::Result<Self> {
        let place = |offset: u64| usize::try_from(offset).map_err(|_| io::ErrorKind::InvalidInput);
        Ok(Self {
            producer: Word::u32_at(mapping, place(offsets.producer)?)?,
            consumer: Word::u32_at(mapping, place(offsets.consumer)?)?,
            flags: Word::u32_at(mapping, place(offsets.flags)?)?,
            slots: Slots::new(mapping, place(offsets.entries)?, count)?,
        })
    }

    fn needs_wakeup(&self) -> bool {
        self.flags.load(Relaxed) & NEED_WAKEUP != 0
    }
}

/// Our end of a ring that the kernel empties: FILL (`u64`) or TX ([`Descriptor`]).
#[derive(Debug)]
pub struct Producer<T> {
    ring: Ring<T>,
    /// Where the next entry goes; ahead of the shared index until [`Producer::submit`].
    next: u32,
    /// The kernel's index as last seen.
    consumed: u32,
}

impl<T: FromBytes + IntoBytes + Copy> Producer<T> {
    /// A ring of `count` entries at `offsets` in `mapping`.
    ///
    /// # Errors
    /// When it does not lie there, or `count` is no power of two.
    pub fn new(mapping: &Arc<Mapping>, offsets: &RingOffsets, count: u32) -> io::Result<Self> {
        let ring = Ring::new(mapping, offsets, count)?;
        let (next, consumed) = (ring.producer.load(Relaxed), ring.consumer.load(Acquire));
        Ok(Self { ring, next, consumed })
    }

    /// Entries it holds.
    pub fn size(&self) -> u32 {
        self.ring.slots.count()
    }

    /// Entries that can be pushed now. Looks at the kernel's index only when fewer than `wanted` are known to be free:
    /// the kernel frees them in blocks, so never wait for an exact number.
    #[inline]
    pub fn room(&mut self, wanted: u32) -> u32 {
        let free = self.known_room();
        if free >= wanted {
            return free;
        }
        self.consumed = self.ring.consumer.load(Acquire);
        self.known_room()
    }

    /// The kernel's index is not ours to trust: one that is ahead of ours leaves no room.
    #[inline]
    fn known_room(&self) -> u32 {
        self.size().saturating_sub(self.next.wrapping_sub(self.consumed))
    }

    /// Puts in an entry, not yet visible to the kernel; false when there is no [`Producer::room`].
    #[inline]
    pub fn push(&mut self, entry: T) -> bool {
        if self.room(1) == 0 {
            return false;
        }
        self.ring.slots.write(self.next, entry);
        self.next = self.next.wrapping_add(1);
        true
    }

    /// Makes everything pushed visible to the kernel.
    #[inline]
    pub fn submit(&mut self) {
        self.ring.producer.store(self.next, Release);
    }

    /// Submitted entries that the kernel has not taken yet, looked up now.
    #[inline]
    pub fn pending(&mut self) -> u32 {
        self.consumed = self.ring.consumer.load(Acquire);
        self.ring.producer.load(Relaxed).wrapping_sub(self.consumed).min(self.size())
    }

    /// Whether the kernel looks at this ring only after a system call.
    #[inline]
    pub fn needs_wakeup(&self) -> bool {
        self.ring.needs_wakeup()
    }
}

/// Our end of a ring that the kernel fills: RX ([`Descriptor`]) or COMPLETION (`u64`).
#[derive(Debug)]
pub struct Consumer<T> {
    ring: Ring<T>,
    /// The next entry to take; ahead of the shared index until [`Consumer::release`].
    next: u32,
    /// The kernel's index as last seen.
    produced: u32,
}

impl<T: FromBytes + IntoBytes + Copy> Consumer<T> {
    /// A ring of `count` entries at `offsets` in `mapping`.
    ///
    /// # Errors
    /// When it does not lie there, or `count` is no power of two.
    pub fn new(mapping: &Arc<Mapping>, offsets: &RingOffsets, count: u32) -> io::Result<Self> {
        let ring = Ring::new(mapping, offsets, count)?;
        let (next, produced) = (ring.consumer.load(Relaxed), ring.producer.load(Acquire));
        Ok(Self { ring, next, produced })
    }

    /// Entries it holds.
    pub fn size(&self) -> u32 {
        self.ring.slots.count()
    }

    /// Whether nothing is there, looked up now.
    #[inline]
    pub fn is_empty(&mut self) -> bool {
        self.produced = self.ring.producer.load(Acquire);
        self.produced == self.next
    }

    /// Takes the next entry; the kernel may use its place after [`Consumer::release`].
    #[inline]
    pub fn pop(&mut self) -> Option<T> {
        if self.produced == self.next && self.is_empty() {
            return None;
        }
        let entry = self.ring.slots.read(self.next);
        self.next = self.next.wrapping_add(1);
        Some(entry)
    }

    /// Gives the places of everything taken back to the kernel.
    #[inline]
    pub fn release(&mut self) {
        self.ring.consumer.store(self.next, Release);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use proptest::prelude::*;

    use super::*;

    const OFFSETS: RingOffsets = RingOffsets { producer: 0, consumer: 64, entries: 192, flags: 128 };

    /// Both ends of one ring, whose indices start at `start`: the test plays the kernel with our own other end.
    fn ends(count: u32, start: u32) -> (Producer<u64>, Consumer<u64>, Arc<Mapping>) {
        let mapping = Mapping::anonymous(OFFSETS.mapping_len::<u64>(count).unwrap()).unwrap();
        for offset in [0, 64] {
            Word::u32_at(&mapping, offset).unwrap().store(start, Relaxed);
        }
        let producer = Producer::new(&mapping, &OFFSETS, count).unwrap();
        (producer, Consumer::new(&mapping, &OFFSETS, count).unwrap(), mapping)
    }

    #[derive(Clone, Debug)]
    enum Step {
        Push(u8),
        Submit,
        Pop(u8),
        Release,
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let step = prop_oneof![
            (1..12_u8).prop_map(Step::Push),
            Just(Step::Submit),
            (1..12_u8).prop_map(Step::Pop),
            Just(Step::Release)
        ];
        proptest::collection::vec(step, 0..200)
    }

    proptest! {
        /// A ring behaves as two queues, what is pushed and what is submitted, with places freed by release only;
        /// also where the indices wrap.
        #[test]
        fn a_ring_is_a_bounded_queue(steps in steps(), order in 0..5_u32, start in prop_oneof![Just(0), Just(u32::MAX - 5), any::<u32>()]) {
            let count = 1 << order;
            let (mut producer, mut consumer, _mapping) = ends(count, start);
            let (mut pushed, mut visible, mut taken) = (VecDeque::new(), VecDeque::new(), 0);
            let mut number = 0_u64;
            for step in steps {
                let held = pushed.len() + visible.len() + taken;
                match step {
                    Step::Push(times) => for i in 0..usize::from(times) {
                        let fits = held + i < count as usize;
                        prop_assert_eq!(producer.push(number), fits);
                        if fits { pushed.push_back(number); number += 1; }
                    },
                    Step::Submit => { producer.submit(); visible.append(&mut pushed); }
                    Step::Pop(times) => for _ in 0..times {
                        let expected = visible.pop_front();
                        taken += usize::from(expected.is_some());
                        prop_assert_eq!(consumer.pop(), expected);
                    },
                    Step::Release => { consumer.release(); taken = 0; }
                }
                prop_assert_eq!(producer.pending() as usize, visible.len() + taken);
                prop_assert_eq!(consumer.is_empty(), visible.is_empty());
            }
        }
    }

    #[test]
    fn an_index_of_the_kernels_that_makes_no_sense_gives_no_room() {
        let (mut producer, _consumer, mapping) = ends(4, 0);
        Word::u32_at(&mapping, 64).unwrap().store(7, Relaxed);
        assert_eq!(producer.room(5), 0);
        assert!(!producer.push(1));
    }

    #[test]
    fn two_threads_see_every_entry_once_and_in_order() {
        const ENTRIES: u64 = 200_000;
        let (mut producer, mut consumer, _mapping) = ends(64, u32::MAX - 100);
        let sender = std::thread::spawn(move || {
            let mut sent = 0;
            while sent < ENTRIES {
                while sent < ENTRIES && producer.push(sent) {
                    sent += 1;
                }
                producer.submit();
                std::thread::yield_now();
            }
        });
        for expected in 0..ENTRIES {
            let entry = loop {
                match consumer.pop() {
                    Some(entry) => break entry,
                    None => std::thread::yield_now(),
                }
            };
            assert_eq!(entry, expected);
            consumer.release();
        }
        sender.join().unwrap();
    }

    #[test]
    fn an_address_in_two_parts_is_put_together() {
        assert_eq!(offset(4096), 4096);
        assert_eq!(offset(256 << 48 | 2304), 2560);
        let last = Descriptor { address: 1, len: 2, options: 0 };
        assert!(!last.continues());
        assert!(Descriptor { options: Descriptor::CONTINUES, ..last }.continues());
    }

    #[test]
    fn a_wakeup_is_asked_for_by_the_flag() {
        let (producer, _consumer, mapping) = ends(4, 0);
        assert!(!producer.needs_wakeup());
        Word::u32_at(&mapping, 128).unwrap().store(NEED_WAKEUP, Relaxed);
        assert!(producer.needs_wakeup());
    }
}
