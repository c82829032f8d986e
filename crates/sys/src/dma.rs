//! Memory for a device's rings, and the descriptors in it: the device writes there while we look, so each word is read and
//! written by itself, as a whole.
#![expect(
    unsafe_code,
    reason = "a ring is a raw pointer into mapped memory: this file turns it into descriptors"
)]

use std::cell::UnsafeCell;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::Ordering::Acquire;
use std::sync::atomic::fence;

use crate::function::DmaMemory;
use crate::memory::{HugePages, MemoryError, allocate};
use crate::shared::Mapping;

/// Zeroed memory for rings: a huge page where one is free. It has a file, so that a device in another process can map it.
#[derive(Debug)]
pub struct DmaBuffer {
    mapping: Arc<Mapping>,
    file: OwnedFd,
}

impl DmaBuffer {
    /// At least `bytes` of it.
    ///
    /// # Errors
    /// [`MemoryError`].
    pub fn new(bytes: usize) -> Result<Self, MemoryError> {
        let allocation = allocate(bytes, HugePages::Auto, None)?;
        let len = allocation.memory.bytes();
        let failed = |source| MemoryError::Map { bytes: len, what: "mapping it for rings", source };
        let mapping = Mapping::of_file(allocation.file.as_fd(), 0, len).map_err(failed)?;
        Ok(Self { mapping, file: allocation.file })
    }

    /// As a device is told of it.
    pub fn memory(&self) -> DmaMemory<'_> {
        DmaMemory {
            address: self.mapping.address(),
            bytes: self.mapping.bytes(),
            file: self.file.as_fd(),
            offset: 0,
        }
    }

    /// `count` descriptors from byte `offset` on.
    ///
    /// # Errors
    /// When they do not lie in it, aligned to their size, or `count` is no power of two.
    pub fn descriptors(&self, offset: usize, count: u32) -> io::Result<Descriptors> {
        Descriptors::new(&self.mapping, offset, count)
    }
}

/// A descriptor that a device reads and writes: 16 bytes, two little-endian words.
///
/// Its words are read and written by volatile accesses, one at a time and only when asked to. Atomic ones would be the same
/// instructions, but the compiler keeps everything else in memory around them: six instructions more for a packet.
#[derive(Debug)]
#[repr(transparent)]
pub struct Descriptor(UnsafeCell<[u64; 2]>);

// SAFETY: its words are only reached by volatile accesses of one aligned word, which no other access can tear.
unsafe impl Sync for Descriptor {}

impl Descriptor {
    /// The first word. Only after [`Descriptor::second`] has said that the device has written it.
    #[inline]
    pub fn first(&self) -> u64 {
        // SAFETY: `self` is a descriptor of a mapping that lives; any bits are a `u64`.
        u64::from_le(unsafe { self.0.get().cast::<u64>().read_volatile() })
    }

    /// The second word: the one that says whether the device is done. All that it wrote before is seen after this.
    #[inline]
    pub fn second(&self) -> u64 {
        // SAFETY: as in `first`; the second word is part of the same descriptor.
        let word = unsafe { self.0.get().cast::<u64>().add(1).read_volatile() };
        fence(Acquire);
        u64::from_le(word)
    }

    /// Writes both words, the second after the first. The device sees them at the latest with the next register write.
    #[inline]
    pub fn put(&self, first: u64, second: u64) {
        // SAFETY: as in `first`; nobody holds a reference to the words themselves.
        unsafe { self.0.get().cast::<u64>().write_volatile(first.to_le()) };
        self.put_second(second);
    }

    /// Writes the second word alone.
    #[inline]
    pub fn put_second(&self, second: u64) {
        // SAFETY: as in `put`.
        unsafe { self.0.get().cast::<u64>().add(1).write_volatile(second.to_le()) };
    }
}

/// A power-of-two number of descriptors, reached by free-running index.
#[derive(Debug)]
pub struct Descriptors {
    base: NonNull<Descriptor>,
    mask: u32,
    _mapping: Arc<Mapping>,
}

// SAFETY: `base` points into the mapping that `_mapping` keeps, and its descriptors may be reached from any thread.
unsafe impl Send for Descriptors {}

impl Descriptors {
    /// `count` descriptors of a mapping, from byte `offset` on.
    ///
    /// # Errors
    /// When they do not lie in it, aligned to their size, or `count` is no power of two.
    pub fn new(mapping: &Arc<Mapping>, offset: usize, count: u32) -> io::Result<Self> {
        if !count.is_power_of_two() || !offset.is_multiple_of(16) {
            let why = "a ring begins at a multiple of 16 and its size is a power of two";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
        }
        let base = mapping.locate(offset, count as usize)?;
        Ok(Self { base, mask: count - 1, _mapping: mapping.clone() })
    }

    /// How many there are.
    #[inline]
    pub fn count(&self) -> u32 {
        self.mask + 1
    }

    /// The descriptor at `index`, which wraps.
    #[inline]
    pub fn at(&self, index: u32) -> &Descriptor {
        // SAFETY: the masked index is below the count that `locate` checked, with their alignment, in `new`; `_mapping`
        // keeps the memory mapped; any bits are a descriptor, which is only looked at by volatile accesses.
        unsafe { self.base.add((index & self.mask) as usize).as_ref() }
    }

    /// Those from `index`, which wraps, to the ring's end, and `most` of them at most.
    #[inline]
    pub fn run(&self, index: u32, most: usize) -> &[Descriptor] {
        let from = index & self.mask;
        let count = most.min((self.count() - from) as usize);
        // SAFETY: `from + count` is at most the count that `locate` checked in `new`; the rest as in `at`.
        unsafe { NonNull::slice_from_raw_parts(self.base.add(from as usize), count).as_ref() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptors_wrap_and_lie_in_the_file() {
        let buffer = DmaBuffer::new(4096).unwrap();
        let ring = buffer.descriptors(128, 8).unwrap();
        ring.at(9).put(0x0102, 0x0304);
        ring.at(1).put_second(0x0506);
        assert_eq!((ring.count(), ring.at(1).first(), ring.at(9).second()), (8, 0x0102, 0x0506));
        assert_eq!((ring.run(14, 5).len(), ring.run(9, 5).len(), ring.run(8, 9).len()), (2, 5, 8));
        assert_eq!(ring.run(9, 1)[0].first(), 0x0102);
        let memory = buffer.memory();
        let other = Mapping::of_file(memory.file, memory.offset, memory.bytes).unwrap();
        assert_eq!(other.read::<u64>(128 + 16), Some(0x0102_u64.to_le()));
    }

    #[test]
    fn what_is_no_ring_is_refused() {
        let buffer = DmaBuffer::new(1).unwrap();
        let bytes = buffer.memory().bytes;
        assert!(buffer.descriptors(0, 7).is_err());
        assert!(buffer.descriptors(8, 8).is_err());
        assert!(buffer.descriptors(bytes - 112, 8).is_err());
        assert!(buffer.descriptors(bytes - 128, 8).is_ok());
    }
}
