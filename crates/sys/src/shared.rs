//! Memory that another party writes while we look at it: a ring shared with the kernel, a map a BPF program fills.
//!
//! Such memory is never seen as `&T`: the compiler may read a `&T` twice and believe both reads agree. Indices and
//! flags are atomics; entries are copied in or out as a whole, by volatile accesses, and checked after the copy.
//!
//! What another process writes and we only read is [`Watched`]: mapped read-only, in a type that cannot write.
#![expect(
    unsafe_code,
    reason = "mapped memory is a raw pointer: this file turns it into atomics and checked copies"
)]

use std::io;
use std::marker::PhantomData;
use std::ops::Deref;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use zerocopy::{FromBytes, IntoBytes};

/// A range of memory mapped `MAP_SHARED`, unmapped when the last [`Word`] or [`Slots`] in it is dropped.
#[derive(Debug)]
pub struct Mapping {
    base: NonNull<u8>,
    len: usize,
    writable: bool,
}

// SAFETY: the mapping belongs to the process, not to a thread; it is only reached by atomics and volatile copies.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps `len` bytes of `file` from `offset` on, readable and writable, with its pages present.
    ///
    /// # Errors
    /// What mmap(2) says.
    pub fn of_file(file: BorrowedFd<'_>, offset: u64, len: usize) -> io::Result<Arc<Self>> {
        let offset = libc::off_t::try_from(offset).map_err(|_| io::ErrorKind::InvalidInput)?;
        Self::map(len, true, libc::MAP_SHARED | libc::MAP_POPULATE, file.as_raw_fd(), offset)
    }

    /// Maps `len` bytes of `file` from `offset` on, read-only. Whoever else has the file must not be able to shorten it: reading
    /// what was cut off would end the process.
    ///
    /// # Errors
    /// What mmap(2) says.
    pub(crate) fn read_only(file: BorrowedFd<'_>, offset: u64, len: usize) -> io::Result<Arc<Self>> {
        let offset = libc::off_t::try_from(offset).map_err(|_| io::ErrorKind::InvalidInput)?;
        // Its pages are not made present: that would be memory of ours for what the other side never wrote.
        Self::map(len, false, libc::MAP_SHARED, file.as_raw_fd(), offset)
    }

    /// Maps `len` zeroed bytes of no file: what a test uses in place of the kernel's ring.
    ///
    /// # Errors
    /// What mmap(2) says.
    pub fn anonymous(len: usize) -> io::Result<Arc<Self>> {
        Self::map(len, true, libc::MAP_SHARED | libc::MAP_ANONYMOUS, -1, 0)
    }

    fn map(
        len: usize,
        writable: bool,
        flags: libc::c_int,
        fd: libc::c_int,
        offset: libc::off_t,
    ) -> io::Result<Arc<Self>> {
        let access = if writable { libc::PROT_READ | libc::PROT_WRITE } else { libc::PROT_READ };
        // SAFETY: without MAP_FIXED the kernel chooses a free range, so no memory in use is replaced.
        let base = unsafe { libc::mmap(std::ptr::null_mut(), len, access, flags, fd, offset) };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let base = NonNull::new(base.cast::<u8>()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Arc::new(Self { base, len, writable }))
    }

    /// Bytes in it.
    pub fn bytes(&self) -> usize {
        self.len
    }

    /// Its first byte's address: for telling the kernel, not for reading.
    pub fn address(&self) -> usize {
        self.base.as_ptr().addr()
    }

    /// A copy of the `T` at `offset`, aligned or not; `None` when it does not lie in the mapping. Only for a range that the
    /// other side has handed over.
    #[inline]
    pub fn read<T: FromBytes + Copy>(&self, offset: usize) -> Option<T> {
        if offset.checked_add(size_of::<T>()).is_none_or(|end| end > self.len) {
            return None;
        }
        // SAFETY: the range was just found to lie within the mapping, and any bytes are a `T: FromBytes`. It is a copy, not
        // a reference: the other side will write there again.
        Some(unsafe { self.base.add(offset).cast::<T>().read_unaligned() })
    }

    /// Copies bytes out, as many as `to` has. Only for a range that the other side has handed over: while it still
    /// writes there, what is copied is a mixture.
    ///
    /// # Panics
    /// When they do not lie in the mapping.
    #[inline]
    pub fn copy_out(&self, offset: usize, to: &mut [u8]) {
        assert!(offset.checked_add(to.len()).is_some_and(|end| end <= self.len), "bytes outside the mapping");
        // SAFETY: the range was just found to lie within the mapping; `to` is exclusively borrowed memory of the
        // process's own, so the two do not overlap.
        unsafe { self.base.as_ptr().add(offset).copy_to_nonoverlapping(to.as_mut_ptr(), to.len()) };
    }

    /// Copies bytes out of memory whose writer need not keep to any agreement: by volatile reads, so that what is copied may
    /// be a mixture, but is read once. `offset` is a multiple of 16.
    ///
    /// # Panics
    /// When they do not lie in the mapping, or `offset` is no multiple of 16.
    #[inline]
    pub fn copy_out_hostile(&self, offset: usize, to: &mut [u8]) {
        let whole = to.len().next_multiple_of(size_of::<Piece>());
        assert!(
            offset.is_multiple_of(align_of::<Piece>())
                && offset.checked_add(whole).is_some_and(|end| end <= self.len),
            "bytes outside the mapping"
        );
        // SAFETY: `offset` was just found to lie within the mapping.
        let from = unsafe { self.base.add(offset) }.cast::<Piece>();
        let mut pieces = to.chunks_exact_mut(size_of::<Piece>());
        let mut at = 0;
        for to in &mut pieces {
            // SAFETY: `whole` bytes from `offset` on were found to lie within the mapping, this piece is one of them, and
            // `base` is a page's start, so that it is aligned.
            let piece = unsafe { from.add(at).read_volatile() };
            // SAFETY: `to` is as long as a piece, exclusively borrowed memory of the process's own.
            unsafe { to.as_mut_ptr().cast::<Piece>().write_unaligned(piece) };
            at += 1;
        }
        let rest = pieces.into_remainder();
        if !rest.is_empty() {
            // SAFETY: as above: `whole` counts this piece too.
            let piece = unsafe { from.add(at).read_volatile() };
            // SAFETY: `rest` is shorter than a piece, and the process's own.
            unsafe { (&raw const piece).cast::<u8>().copy_to_nonoverlapping(rest.as_mut_ptr(), rest.len()) };
        }
    }

    /// Asks for the cache line at `offset`, which is needed soon; outside the mapping it does nothing.
    #[inline]
    pub fn prefetch(&self, offset: usize) {
        #[cfg(target_arch = "x86_64")]
        if offset < self.len {
            use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
            // SAFETY: a hint: it reads and writes nothing, and the address lies within the mapping.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(self.base.as_ptr().add(offset).cast::<i8>()) }
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = offset;
    }

    /// Copies bytes in. Only for a range that the other side has handed over: while it reads there, what it sees is a
    /// mixture.
    ///
    /// # Panics
    /// When they do not lie in the mapping, or it is read-only.
    #[inline]
    pub fn copy_in(&self, offset: usize, from: &[u8]) {
        assert!(
            self.writable && offset.checked_add(from.len()).is_some_and(|end| end <= self.len),
            "bytes outside the mapping"
        );
        // SAFETY: the range was just found to lie within the mapping, which is mapped writable and of which no reference is
        // ever made; `from` is borrowed memory of the process's own, so the two do not overlap.
        unsafe { self.base.as_ptr().add(offset).copy_from_nonoverlapping(from.as_ptr(), from.len()) };
    }

    /// Copies bytes in at `offset`, and stores an integer behind them: whoever acquires it sees them, and all that was written
    /// before.
    ///
    /// # Errors
    /// When the integer does not lie in the mapping, aligned, or the mapping is read-only. Nothing was written then.
    pub fn publish(&self, offset: usize, bytes: &[u8], last: u64) -> io::Result<()> {
        let word = self.locate_own::<AtomicU64>(offset.saturating_add(bytes.len()), 1)?;
        self.copy_in(offset, bytes);
        // SAFETY: `locate_own` checked range and alignment; the memory stays mapped as long as `self`; any bits are an atomic
        // integer, of which writes by the other side are defined.
        unsafe { word.as_ref() }.store(last, Ordering::Release);
        Ok(())
    }

    /// As [`Mapping::locate`], for writing.
    fn locate_own<T>(&self, offset: usize, count: usize) -> io::Result<NonNull<T>> {
        if !self.writable {
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, "the mapping is read-only"));
        }
        self.locate(offset, count)
    }

    /// Pointer to a `T` at `offset`, when `count` of them lie within the mapping and are aligned.
    pub(crate) fn locate<T>(&self, offset: usize, count: usize) -> io::Result<NonNull<T>> {
        let end = size_of::<T>().checked_mul(count).and_then(|len| len.checked_add(offset));
        if end.is_none_or(|end| end > self.len) || !offset.is_multiple_of(align_of::<T>()) {
            let range = format!("bytes from {offset} on lie outside a mapping of {}, or unaligned", self.len);
            return Err(io::Error::new(io::ErrorKind::InvalidInput, range));
        }
        // SAFETY: `offset` was just found to lie within the mapping of `len` bytes that `base` begins.
        Ok(unsafe { self.base.add(offset) }.cast())
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: `map` mapped exactly this range; every `Word` and `Slots` in it holds an `Arc` of `self`, so none is
        // left that could reach it.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.len) };
    }
}

/// What [`Mapping::copy_out_hostile`] reads at a time: the widest that every processor of the architecture has.
#[cfg(target_arch = "x86_64")]
type Piece = std::arch::x86_64::__m128i;
/// What [`Mapping::copy_out_hostile`] reads at a time.
#[cfg(not(target_arch = "x86_64"))]
type Piece = u64;

/// An atomic integer in a [`Mapping`]; use it through `Deref`.
#[derive(Debug)]
pub struct Word<A> {
    at: NonNull<A>,
    _mapping: Arc<Mapping>,
}

// SAFETY: `at` points into the mapping that `_mapping` keeps, and an atomic may be reached from any thread.
unsafe impl<A: Sync> Send for Word<A> {}
// SAFETY: as above.
unsafe impl<A: Sync> Sync for Word<A> {}

impl Word<AtomicU32> {
    /// The 32-bit integer at `offset`.
    ///
    /// # Errors
    /// When it does not lie in the mapping, aligned, or the mapping is read-only.
    pub fn u32_at(mapping: &Arc<Mapping>, offset: usize) -> io::Result<Self> {
        Ok(Self { at: mapping.locate_own(offset, 1)?, _mapping: mapping.clone() })
    }

    /// The 32-bit integer at `offset`, which only the other side writes.
    ///
    /// # Errors
    /// When it does not lie in the mapping, aligned.
    pub fn watch(mapping: &Arc<Mapping>, offset: usize) -> io::Result<Watched<Self>> {
        Ok(Watched(Self { at: mapping.locate(offset, 1)?, _mapping: mapping.clone() }))
    }
}

impl Word<AtomicU64> {
    /// The 64-bit integer at `offset`.
    ///
    /// # Errors
    /// When it does not lie in the mapping, aligned, or the mapping is read-only.
    pub fn u64_at(mapping: &Arc<Mapping>, offset: usize) -> io::Result<Self> {
        Ok(Self { at: mapping.locate_own(offset, 1)?, _mapping: mapping.clone() })
    }

    /// The 64-bit integer at `offset`, which only the other side writes.
    ///
    /// # Errors
    /// When it does not lie in the mapping, aligned.
    pub fn watch_u64(mapping: &Arc<Mapping>, offset: usize) -> io::Result<Watched<Self>> {
        Ok(Watched(Self { at: mapping.locate(offset, 1)?, _mapping: mapping.clone() }))
    }
}

impl<A> Deref for Word<A> {
    type Target = A;

    #[inline]
    fn deref(&self) -> &A {
        // SAFETY: `locate` checked range and alignment, `_mapping` keeps the memory mapped, the only constructors make
        // `A` an atomic integer, for which any bits are valid and concurrent writes by the other side are defined.
        unsafe { self.at.as_ref() }
    }
}

/// A power-of-two number of entries in a [`Mapping`], reached by free-running index.
#[derive(Debug)]
pub struct Slots<T> {
    base: NonNull<T>,
    mask: u32,
    _mapping: Arc<Mapping>,
    _entry: PhantomData<T>,
}

// SAFETY: `base` points into the mapping that `_mapping` keeps; entries are plain data.
unsafe impl<T: Send> Send for Slots<T> {}

impl<T: FromBytes + IntoBytes + Copy> Slots<T> {
    /// `count` entries from `offset` on.
    ///
    /// # Errors
    /// When they do not lie in the mapping, aligned, `count` is no power of two, or the mapping is read-only.
    pub fn new(mapping: &Arc<Mapping>, offset: usize, count: u32) -> io::Result<Self> {
        mapping.locate_own::<T>(offset, 0)?;
        Ok(Self::watch(mapping, offset, count)?.0)
    }

    /// `count` entries from `offset` on, which only the other side writes.
    ///
    /// # Errors
    /// When they do not lie in the mapping, aligned, or `count` is no power of two.
    pub fn watch(mapping: &Arc<Mapping>, offset: usize, count: u32) -> io::Result<Watched<Self>> {
        if !count.is_power_of_two() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "a ring's size must be a power of two"));
        }
        let base = mapping.locate(offset, count as usize)?;
        Ok(Watched(Self { base, mask: count - 1, _mapping: mapping.clone(), _entry: PhantomData }))
    }

    /// Entries there are.
    #[inline]
    pub fn count(&self) -> u32 {
        self.mask + 1
    }

    /// Copies out the entry at `index`, which wraps.
    #[inline]
    pub fn read(&self, index: u32) -> T {
        // SAFETY: the masked index is below the count that `locate` checked; `T: FromBytes` makes any bits a value.
        unsafe { self.base.add((index & self.mask) as usize).read_volatile() }
    }

    /// Copies in the entry at `index`, which wraps. What orders it before the index that publishes it is the
    /// index's own release.
    #[inline]
    pub fn write(&mut self, index: u32, entry: T) {
        // SAFETY: as in `read`; `T: IntoBytes` has no padding that could carry other memory to the other side.
        unsafe { self.base.add((index & self.mask) as usize).write_volatile(entry) }
    }
}

/// A [`Word`] or [`Slots`] that is only read: the other side alone writes it.
#[derive(Debug)]
pub struct Watched<W>(W);

impl Watched<Word<AtomicU32>> {
    /// Its value now. What the other side wrote before it is seen after a fence that acquires: an ordering of the load
    /// itself is not allowed on read-only memory.
    #[inline]
    pub fn load(&self) -> u32 {
        self.0.load(Ordering::Relaxed)
    }
}

impl Watched<Word<AtomicU64>> {
    /// As [`Watched::load`] of 32 bits.
    #[inline]
    pub fn load_u64(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

impl<T: FromBytes + IntoBytes + Copy> Watched<Slots<T>> {
    /// Copies out the entry at `index`, which wraps.
    #[inline]
    pub fn read(&self, index: u32) -> T {
        self.0.read(index)
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::sync::atomic::Ordering::Relaxed;

    use super::*;

    #[test]
    fn what_does_not_lie_in_the_mapping_is_refused() {
        let mapping = Mapping::anonymous(4096).unwrap();
        assert!(Word::u32_at(&mapping, 4092).is_ok());
        assert!(Word::u32_at(&mapping, 4093).is_err());
        assert!(Word::u32_at(&mapping, 4096).is_err());
        assert!(Word::u64_at(&mapping, 4092).is_err());
        assert!(Word::u64_at(&mapping, usize::MAX - 7).is_err());
        assert!(Slots::<u64>::new(&mapping, 0, 512).is_ok());
        assert!(Slots::<u64>::new(&mapping, 8, 512).is_err());
        assert!(Slots::<u64>::new(&mapping, 0, 3).is_err());
        assert!(Slots::<u64>::new(&mapping, 0, 0).is_err());
    }

    #[test]
    fn two_views_of_one_mapping_see_each_other() {
        let mapping = Mapping::anonymous(4096).unwrap();
        let mut slots = Slots::<u64>::new(&mapping, 64, 8).unwrap();
        slots.write(9, 0x0102);
        assert_eq!(slots.read(1), 0x0102);
        assert_eq!(slots.count(), 8);
        let word = Word::u64_at(&mapping, 64 + 8).unwrap();
        drop(mapping);
        assert_eq!(word.load(Relaxed), 0x0102);
    }

    #[test]
    fn bytes_copied_in_come_out() {
        let mapping = Mapping::anonymous(4096).unwrap();
        mapping.copy_in(4093, b"abc");
        let mut out = [0; 4];
        mapping.copy_out(4092, &mut out);
        assert_eq!(&out, b"\0abc");
        assert!(std::panic::catch_unwind(|| mapping.copy_in(4094, b"abc")).is_err());
    }

    #[test]
    fn what_is_only_watched_cannot_be_written() {
        let file = rustix::fs::memfd_create(c"watched", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        rustix::fs::ftruncate(&file, 8192).unwrap();
        let ours = Mapping::of_file(file.as_fd(), 0, 8192).unwrap();
        let theirs = Mapping::read_only(file.as_fd(), 0, 8192).unwrap();
        assert!(Word::u32_at(&theirs, 0).is_err() && Word::u64_at(&theirs, 0).is_err());
        assert!(Slots::<u32>::new(&theirs, 0, 1).is_err());
        assert!(std::panic::catch_unwind(|| theirs.copy_in(0, b"x")).is_err());
        Word::u32_at(&ours, 4).unwrap().store(7, Relaxed);
        assert_eq!(Word::<AtomicU32>::watch(&theirs, 4).unwrap().load(), 7);
        assert_eq!(Slots::<u32>::watch(&theirs, 0, 2).unwrap().read(3), 7);
    }

    #[test]
    fn a_hostile_copy_is_the_bytes_whatever_their_number() {
        let mapping = Mapping::anonymous(4096).unwrap();
        let bytes: Vec<u8> = (0..=255).cycle().take(4096).collect();
        mapping.copy_in(0, &bytes);
        for (offset, len) in [(0, 0), (16, 1), (32, 15), (48, 16), (64, 17), (160, 60), (0, 4096), (4080, 16)]
        {
            let mut to = vec![0xaa; len + 1];
            mapping.copy_out_hostile(offset, &mut to[..len]);
            assert_eq!((&to[..len], to[len]), (&bytes[offset..offset + len], 0xaa));
        }
        for (offset, len) in [(4080, 17), (4096, 1), (8, 4), (usize::MAX - 15, 1)] {
            let mut to = vec![0; len];
            let copy = std::panic::AssertUnwindSafe(|| mapping.copy_out_hostile(offset, &mut to));
            assert!(std::panic::catch_unwind(copy).is_err(), "{offset}");
        }
        mapping.prefetch(0);
        mapping.prefetch(usize::MAX);
    }

    #[test]
    fn copies_are_taken_from_within_only() {
        let mapping = Mapping::anonymous(4096).unwrap();
        Slots::<u32>::new(&mapping, 0, 1024).unwrap().write(1023, 0x0102_0304);
        assert_eq!(mapping.read::<[u8; 4]>(4092), Some(0x0102_0304_u32.to_ne_bytes()));
        assert_eq!(mapping.read::<u16>(4095), None);
        assert_eq!(mapping.read::<u8>(usize::MAX), None);
        let mut bytes = [9; 6];
        mapping.copy_out(4090, &mut bytes);
        assert_eq!(bytes[2..], 0x0102_0304_u32.to_ne_bytes());
        assert!(std::panic::catch_unwind(|| mapping.copy_out(4091, &mut [0; 6])).is_err());
    }
}
