//! Where what lies in a region: indices, descriptors and the bytes of packets, for each queue.
//!
//! Each side has a region that it alone writes. It holds what this side sends (the filled slots and how many they are)
//! and how far it has read what the other one sends. A slot is a descriptor and [`SLOT`] bytes; a longer packet takes
//! several in a row, and its first descriptor tells its length. No offset is ever read from a region.
//!
//! Both ends of a wire are the same machine's, so all numbers are in its own byte order.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering, fence};

use bywash_frame::{FRAME_DATA, MAX_FRAMES};
use bywash_sys::shared::{Mapping, Slots, Watched, Word};
use bywash_sys::virtio_header::VirtioHeader;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::ring::{Cell, Memory, OwnCell, Receiver, Sender};

/// Bytes of a packet in a slot: as many as go into a frame.
pub(super) const SLOT: usize = FRAME_DATA;

/// Bytes of the longest packet: more than a frame's worth fits no packet of ours.
pub(super) const MAX_PACKET: usize = MAX_FRAMES * SLOT;

/// Queues of one wire.
pub(super) const MAX_QUEUES: u16 = 64;

/// From one slot's bytes to the next one's: an odd number of cache lines, or all packets' first bytes would fall into the
/// same few sets of the cache.
const STRIDE: usize = SLOT + 64;

/// Words that different cores write lie so far apart: a cache line, and the one that is fetched with it.
const APART: usize = 128;

// From the start of a queue's part.
const HEAD: usize = 0;
const TAIL: usize = APART;
const ASLEEP: usize = 2 * APART;
const DESCRIPTORS: usize = 3 * APART;

/// What is said of a packet in its first slot.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(super) struct Descriptor {
    /// Bytes of the packet.
    pub(super) len: u32,
    /// What is left to do with it.
    pub(super) header: VirtioHeader,
    pub(super) reserved: u16,
}

/// Slots that a packet of `len` bytes takes.
#[inline]
#[expect(clippy::cast_possible_truncation, reason = "a length of 32 bits has fewer slots than that")]
pub(super) fn slots_for(len: u32) -> u32 {
    (len as usize).div_ceil(SLOT) as u32
}

/// How a region is divided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Layout {
    /// Queues of the wire.
    pub(super) queues: u16,
    /// Slots of each, a power of two.
    pub(super) ring: u32,
}

impl Layout {
    /// Bytes of the region.
    pub(super) fn bytes(self) -> usize {
        self.queue(usize::from(self.queues))
    }

    /// Where queue `number`'s part starts.
    fn queue(self, number: usize) -> usize {
        let ring = self.ring as usize;
        let part = DESCRIPTORS + ring * (size_of::<Descriptor>() + STRIDE);
        number * part.next_multiple_of(4096)
    }

    fn data(self, number: usize) -> usize {
        self.queue(number) + DESCRIPTORS + self.ring as usize * size_of::<Descriptor>()
    }
}

/// The fences of the machine.
#[derive(Debug)]
pub(super) struct Machine;

impl Memory for Machine {
    #[inline]
    fn fence(order: Ordering) {
        fence(order);
    }
}

type Own = Word<AtomicU32>;
pub(super) type Theirs = Watched<Own>;

impl Cell for Own {
    #[inline]
    fn load(&self) -> u32 {
        AtomicU32::load(self, Ordering::Relaxed)
    }
}

impl OwnCell for Own {
    #[inline]
    fn store(&self, value: u32) {
        AtomicU32::store(self, value, Ordering::Relaxed);
    }
}

impl Cell for Theirs {
    #[inline]
    fn load(&self) -> u32 {
        Watched::load(self)
    }
}

/// The slots that one queue of ours fills.
#[derive(Debug)]
pub(super) struct Filling {
    pub(super) sender: Sender<Own, Machine>,
    pub(super) descriptors: Slots<Descriptor>,
    region: Arc<Mapping>,
    data: usize,
    mask: u32,
}

impl Filling {
    /// Of queue `number` in our region, which is fresh.
    pub(super) fn new(region: &Arc<Mapping>, layout: Layout, number: usize) -> io::Result<Self> {
        let base = layout.queue(number);
        Ok(Self {
            sender: Sender::new(Word::u32_at(region, base + HEAD)?, layout.ring),
            descriptors: Slots::new(region, base + DESCRIPTORS, layout.ring)?,
            region: Arc::clone(region),
            data: layout.data(number),
            mask: layout.ring - 1,
        })
    }

    /// Writes bytes into slot `index`, which wraps, from byte `at` of the slot on.
    #[inline]
    pub(super) fn write(&self, index: u32, at: usize, bytes: &[u8]) {
        self.region.copy_in(self.data + (index & self.mask) as usize * STRIDE + at, bytes);
    }

    /// Copies what was written into slot `index` back out.
    pub(super) fn written(&self, index: u32, to: &mut [u8]) {
        self.region.copy_out(self.data + (index & self.mask) as usize * STRIDE, to);
    }
}

/// How far the other side has read what one queue of ours sends.
#[derive(Debug)]
pub(super) struct Reader {
    pub(super) tail: Theirs,
    pub(super) asleep: Theirs,
}

impl Reader {
    /// Of queue `number` in their region.
    pub(super) fn new(region: &Arc<Mapping>, layout: Layout, number: usize) -> io::Result<Self> {
        let base = layout.queue(number);
        Ok(Self { tail: Word::watch(region, base + TAIL)?, asleep: Word::watch(region, base + ASLEEP)? })
    }
}

/// The slots that one queue of theirs fills and we empty.
#[derive(Debug)]
pub(super) struct Emptying {
    pub(super) receiver: Receiver<Theirs, Own, Machine>,
    descriptors: Watched<Slots<Descriptor>>,
    region: Arc<Mapping>,
    data: usize,
    mask: u32,
}

impl Emptying {
    /// Of queue `number`: what it sends lies in their region, how far we are goes into ours.
    pub(super) fn new(
        ours: (&Arc<Mapping>, Layout),
        theirs: (&Arc<Mapping>, Layout),
        number: usize,
    ) -> io::Result<Self> {
        let ((own, own_layout), (region, layout)) = (ours, theirs);
        let (mine, base) = (own_layout.queue(number), layout.queue(number));
        Ok(Self {
            receiver: Receiver::new(
                Word::watch(region, base + HEAD)?,
                Word::u32_at(own, mine + TAIL)?,
                Word::u32_at(own, mine + ASLEEP)?,
                layout.ring,
            ),
            descriptors: Slots::watch(region, base + DESCRIPTORS, layout.ring)?,
            region: Arc::clone(region),
            data: layout.data(number),
            mask: layout.ring - 1,
        })
    }

    /// A copy of what is said in slot `index`, which wraps. It can be anything.
    #[inline]
    pub(super) fn descriptor(&self, index: u32) -> Descriptor {
        self.descriptors.read(index)
    }

    /// Copies bytes out of slot `index`; no more than [`SLOT`].
    #[inline]
    pub(super) fn read(&self, index: u32, to: &mut [u8]) {
        self.region.copy_out_hostile(self.at(index), to);
    }

    /// Asks for the first bytes of slot `index`.
    #[inline]
    pub(super) fn prefetch(&self, index: u32) {
        self.region.prefetch(self.at(index));
    }

    #[inline]
    fn at(&self, index: u32) -> usize {
        self.data + (index & self.mask) as usize * STRIDE
    }
}

// Copies out of slots are of whole pieces of 16 bytes.
const _: () =
    assert!(STRIDE.is_multiple_of(16) && DESCRIPTORS.is_multiple_of(16) && size_of::<Descriptor>() == 16);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_overlaps_and_everything_lies_within() {
        for layout in [Layout { queues: 1, ring: 64 }, Layout { queues: 3, ring: 1024 }] {
            let mapping = Mapping::anonymous(layout.bytes()).unwrap();
            let mut queues: Vec<Filling> =
                (0..usize::from(layout.queues)).map(|n| Filling::new(&mapping, layout, n).unwrap()).collect();
            let bytes = |queue: usize, slot: u32| {
                [queue.to_le_bytes()[0], slot.to_le_bytes()[0], slot.to_le_bytes()[1]].repeat(SLOT / 3)
            };
            for (number, queue) in queues.iter_mut().enumerate() {
                for slot in 0..layout.ring {
                    let entry = Descriptor { len: slot, ..Descriptor::default() };
                    queue.descriptors.write(slot, entry);
                    queue.write(slot, 0, &bytes(number, slot));
                }
            }
            for (number, queue) in queues.iter().enumerate() {
                for slot in 0..layout.ring {
                    let mut back = vec![0; bytes(number, slot).len()];
                    queue.written(slot, &mut back);
                    assert_eq!(back, bytes(number, slot));
                    assert_eq!(queue.descriptors.read(slot).len, slot);
                }
                assert!(queue.region.bytes() >= layout.data(number) + layout.ring as usize * STRIDE);
            }
            assert!(Filling::new(&mapping, layout, usize::from(layout.queues)).is_err());
        }
    }

    #[test]
    fn long_packets_take_several_slots() {
        assert_eq!([1, 2048, 2049, 65_535].map(slots_for), [1, 1, 2, 32]);
        assert_eq!(slots_for(u32::MAX), 1 << 21);
    }
}
