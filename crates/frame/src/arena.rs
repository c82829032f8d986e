//! The arena: one range of memory, cut into frames that are owned one by one.
#![expect(
    unsafe_code,
    reason = "a frame is a raw pointer into the arena: this file turns owning it into `&[u8]`"
)]

use std::ptr::NonNull;
use std::sync::atomic::{
    AtomicU32, AtomicU64,
    Ordering::{AcqRel, Acquire, Relaxed},
};
use std::sync::{Mutex, MutexGuard, PoisonError, RwLock};

use crate::Pool;

/// Bytes in a frame: [`HEADROOM`] and [`FRAME_DATA`].
///
/// AF_XDP keeps 256 bytes in front of the data for itself and NICs count their receive buffers in KiB, so a frame
/// for a 2 KiB buffer is 2304 bytes. It is no power of two, and that matters more: with one, the headers of all
/// frames fall into the same few sets of the first-level cache (`cargo xtask bench geometry`).
pub const FRAME_SIZE: usize = HEADROOM + FRAME_DATA;

/// Bytes in front of a received packet's first byte, free for headers to be put in front (AF_XDP's
/// `XDP_PACKET_HEADROOM`).
pub const HEADROOM: usize = 256;

/// Bytes of a frame from [`HEADROOM`] on: what a NIC's receive buffer is told.
pub const FRAME_DATA: usize = 2048;

/// The unit in which memory is mapped for a device: no frame lies across a multiple of it.
pub const PAGE: usize = 2 << 20;

/// How far apart frames lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Stride {
    /// 2304 bytes, frame beside frame: 910 in each [`PAGE`]. What is fastest, and the default.
    #[default]
    Packed,
    /// 4096 bytes, for zero-copy drivers that refuse AF_XDP's unaligned chunks.
    Aligned,
}

impl Stride {
    /// Bytes from one frame to the next within a page.
    pub const fn bytes(self) -> usize {
        match self {
            Self::Packed => FRAME_SIZE,
            Self::Aligned => 4096,
        }
    }

    /// Those bytes in digits, as a user types them (`--frame-stride`).
    pub const fn name(self) -> &'static str {
        match self {
            Self::Packed => "2304",
            Self::Aligned => "4096",
        }
    }

    /// Frames in each whole [`PAGE`].
    pub const fn frames_per_page(self) -> usize {
        PAGE / self.bytes()
    }

    /// Bytes of memory to give [`Arena::new`] for `frames` frames: whole pages.
    pub const fn memory_for(self, frames: usize) -> usize {
        frames.div_ceil(self.frames_per_page()) * PAGE
    }

    /// Number of the frame in which the byte at `offset` lies, however many there are; `None` between frames.
    // The divisors are constants in each arm, so that these are multiplications: they run for every packet on AF_XDP.
    #[inline]
    fn index(self, offset: usize) -> Option<usize> {
        match self {
            Self::Packed => index::<{ Self::Packed.bytes() }>(offset),
            Self::Aligned => index::<{ Self::Aligned.bytes() }>(offset),
        }
    }

    #[inline]
    fn offset(self, index: usize) -> usize {
        index / self.frames_per_page() * PAGE + index % self.frames_per_page() * self.bytes()
    }
}

/// The same for frames so many bytes apart.
#[inline]
fn index<const BYTES: usize>(offset: usize) -> Option<usize> {
    let (page, within) = (offset / PAGE, offset % PAGE);
    let (frame, at) = (within / BYTES, within % BYTES);
    // The end of a page, and of a longer stride, belongs to no frame.
    (frame < PAGE / BYTES && at < FRAME_SIZE).then_some(page * (PAGE / BYTES) + frame)
}

/// Why an arena or a pool could not be made.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum ArenaError {
    /// The memory holds no frame.
    #[error("{bytes} bytes hold no frame: a frame has {FRAME_SIZE}")]
    TooSmall {
        /// Bytes that were given.
        bytes: usize,
    },
    /// A pool asked for more frames than nobody has yet.
    #[error("{wanted} frames wanted, {left} left in the arena: give it more memory (--memory)")]
    Exhausted {
        /// Frames the pool asked for.
        wanted: usize,
        /// Frames nobody has.
        left: usize,
    },
}

/// Every arena of the process, so that a frame dropped by accident finds its way home by its address.
static ARENAS: RwLock<Vec<&'static Arena>> = RwLock::new(Vec::new());

/// The process's packet memory. It lives as long as the process: devices may still write to it.
#[derive(Debug)]
pub struct Arena {
    base: NonNull<u8>,
    len: usize,
    /// What `new` was given and never gives back: a leak checker should find it.
    _memory: NonNull<()>,
    stride: Stride,
    frames: usize,
    /// Frames that no pool has: never issued, handed back by a pool that had too many, or dropped.
    spare: Mutex<Vec<Frame>>,
    orphaned: AtomicU64,
    /// Of each frame, how many of its parts have ended since somebody keeps it; less those that were made, once its owner has let go.
    ended: Box<[AtomicU32]>,
}

// SAFETY: `base` is only turned into frames by `new`, once; after that each frame's bytes belong to its `Frame`. `alias` makes those
// of a kept frame's parts once more, of which none is taken for the owner.
unsafe impl Send for Arena {}
// SAFETY: as above: through `&Arena` only addresses are computed, bytes are reached through a `Frame`.
unsafe impl Sync for Arena {}

impl Arena {
    /// Cuts `memory` into frames, packed. The memory is never given back.
    ///
    /// # Errors
    /// [`ArenaError::TooSmall`] when not one frame fits.
    pub fn new<M: AsMut<[u8]> + Send + 'static>(memory: M) -> Result<&'static Self, ArenaError> {
        Self::with_stride(memory, Stride::default())
    }

    /// Cuts `memory` into frames that lie `stride` apart.
    ///
    /// # Errors
    /// [`ArenaError::TooSmall`] when not one frame fits.
    pub fn with_stride<M: AsMut<[u8]> + Send + 'static>(
        mut memory: M,
        stride: Stride,
    ) -> Result<&'static Self, ArenaError> {
        let len = memory.as_mut().len();
        let in_last_page = ((len % PAGE) + stride.bytes() - FRAME_SIZE) / stride.bytes();
        let frames = len / PAGE * stride.frames_per_page() + in_last_page;
        if frames == 0 {
            return Err(ArenaError::TooSmall { bytes: len });
        }
        let mut memory = NonNull::from(Box::leak(Box::new(memory)));
        let owner = memory.cast::<()>();
        // SAFETY: the box was just leaked and this is the only reference ever made to it.
        let memory: &'static mut [u8] = unsafe { memory.as_mut() }.as_mut();
        assert_eq!(memory.len(), len, "memory that changes its size");
        let base = NonNull::from(memory).cast::<u8>();
        let arena: &'static Self = Box::leak(Box::new(Self {
            base,
            len,
            _memory: owner,
            stride,
            frames,
            spare: Mutex::new(Vec::with_capacity(frames)),
            orphaned: AtomicU64::new(0),
            ended: (0..frames).map(|_| AtomicU32::new(0)).collect(),
        }));
        ARENAS.write().unwrap_or_else(PoisonError::into_inner).push(arena);
        arena.spare().extend((0..frames).rev().map(|index| {
            // SAFETY: the offset of a frame below `frames` lies within `memory` (see `frames`), whose exclusive
            // borrow for 'static has become `base`; each index is visited once, so no byte has two owners.
            Frame(unsafe { base.add(stride.offset(index)) })
        }));
        Ok(arena)
    }

    /// A pool with `frames` free frames, taken from those nobody has.
    ///
    /// # Errors
    /// [`ArenaError::Exhausted`] when fewer are left; none is taken then.
    pub fn pool(&'static self, frames: usize) -> Result<Pool, ArenaError> {
        let mut spare = self.spare();
        let left = spare.len();
        let from = left.checked_sub(frames).ok_or(ArenaError::Exhausted { wanted: frames, left })?;
        // Room for every frame there is: giving one back never allocates.
        let mut free = Vec::with_capacity(self.frames);
        free.extend(spare.drain(from..).rev());
        drop(spare);
        Ok(Pool::with_frames(self, free))
    }

    /// Frames in the whole arena.
    pub fn frames(&self) -> usize {
        self.frames
    }

    /// Bytes of memory, from the first frame's first byte.
    pub fn bytes(&self) -> usize {
        self.len
    }

    /// How far apart the frames lie.
    pub fn stride(&self) -> Stride {
        self.stride
    }

    /// Address of the first byte: what registering the memory with the kernel or a device needs.
    pub fn base(&self) -> usize {
        self.base.as_ptr().addr()
    }

    /// Frames that were dropped instead of given to a pool, since the start.
    pub fn orphaned(&self) -> u64 {
        self.orphaned.load(Relaxed)
    }

    /// Frames that no pool and no packet has.
    pub fn unused(&self) -> usize {
        self.spare().len()
    }

    /// Bytes from the arena's first byte to the frame's: its address for the kernel (UMEM) or for a device.
    ///
    /// # Panics
    /// When the frame is another arena's: such an offset would make the kernel write to a frame that has an owner.
    #[inline]
    pub fn offset(&self, frame: &Frame) -> usize {
        let offset = frame.0.as_ptr().addr().wrapping_sub(self.base());
        assert!(offset < self.len, "a frame of another arena");
        offset
    }

    /// Number of the frame that the byte at `offset` lies in; `None` outside the arena or between frames.
    #[inline]
    pub(crate) fn index(&self, offset: usize) -> Option<usize> {
        self.stride.index(offset).filter(|index| *index < self.frames)
    }

    /// Whether the frame is of this arena.
    #[inline]
    fn has(&self, frame: &Frame) -> bool {
        frame.address().wrapping_sub(self.base()) < self.len
    }

    /// The arena that a frame is of.
    pub(crate) fn of(frame: &Frame) -> &'static Self {
        let arenas = ARENAS.read().unwrap_or_else(PoisonError::into_inner);
        let home = arenas.iter().find(|arena| arena.has(frame));
        home.unwrap_or_else(|| unreachable!("every frame is cut out of an arena, which stays"))
    }

    /// How many parts of a kept frame have ended.
    #[inline]
    fn ended(&self, frame: &Frame) -> Option<&AtomicU32> {
        let arena = if self.has(frame) { self } else { Self::of(frame) };
        arena.index(arena.offset(frame)).and_then(|index| arena.ended.get(index))
    }

    /// The owner of a kept frame lets go of it, of which there have been so many parts. It is returned when all have ended; else
    /// somebody else has it still, and it must not be used.
    #[inline]
    pub(crate) fn let_go(&self, frame: Frame, parts: u32) -> Option<Frame> {
        // When all have ended nobody else counts, and nothing has to be done at once with looking.
        if let Some(ended) = self.ended(&frame).filter(|ended| ended.load(Acquire) == parts) {
            ended.store(0, Relaxed);
            return Some(frame);
        }
        self.count_parts(frame, parts.wrapping_neg())
    }

    /// Counts the end of a part of a kept frame, by 1, or that its owner has let go of it, by less than nothing: by so many parts as
    /// there have been. The frame is returned when that was all; else somebody else has it still, and it must not be used.
    #[inline]
    pub(crate) fn count_parts(&self, frame: Frame, change: u32) -> Option<Frame> {
        let count = self.ended(&frame);
        // What the others have read is behind them when the frame is written again.
        if count.is_some_and(|count| count.fetch_add(change, AcqRel).wrapping_add(change) == 0) {
            return Some(frame);
        }
        std::mem::forget(frame);
        None
    }

    /// Frame number `index`, of which there are so many, once more: as [`Frame::alias`].
    pub(crate) fn alias(&self, index: usize) -> Frame {
        assert!(index < self.frames, "there is no such frame");
        // SAFETY: as in `with_stride`, the offset of a frame lies within the memory.
        Frame(unsafe { self.base.add(self.stride.offset(index)) })
    }

    pub(crate) fn spare(&self) -> MutexGuard<'_, Vec<Frame>> {
        self.spare.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One buffer of packet memory, owned by whoever holds it.
///
/// Give it back with [`Pool::give`]; one that is dropped instead goes to the arena's spare list, which costs a lock.
#[derive(Debug)]
pub struct Frame(NonNull<u8>);

// SAFETY: a frame is the only owner of its bytes, wherever it is; of a kept one others have parts, which they only read, and which its
// owner writes no more, or one of them has the bytes in front of what is kept, which nobody else reads.
unsafe impl Send for Frame {}
// SAFETY: `&Frame` only gives `&[u8]`.
unsafe impl Sync for Frame {}

impl Frame {
    /// All [`FRAME_SIZE`] bytes, headroom first. What they hold after the frame was lent or freed is arbitrary.
    #[inline]
    pub fn bytes(&self) -> &[u8; FRAME_SIZE] {
        // SAFETY: `new` made the pointer from an exclusive 'static borrow of FRAME_SIZE bytes that only this frame
        // covers; the bytes were initialised there and nobody else may write while the frame is owned.
        unsafe { self.0.cast::<[u8; FRAME_SIZE]>().as_ref() }
    }

    /// All [`FRAME_SIZE`] bytes, headroom first.
    #[inline]
    pub fn bytes_mut(&mut self) -> &mut [u8; FRAME_SIZE] {
        // SAFETY: as in `bytes`, and `&mut self` makes this the only reference.
        unsafe { self.0.cast::<[u8; FRAME_SIZE]>().as_mut() }
    }

    /// Its first byte.
    #[inline]
    pub(crate) fn first(&self) -> *mut u8 {
        self.0.as_ptr()
    }

    /// The same frame once more, for who sees to it that only one of the two is ever taken for its owner.
    #[inline]
    pub(crate) fn alias(&self) -> Self {
        Self(self.0)
    }

    /// Asks for the cache line of a packet's first bytes, at [`HEADROOM`], which are needed some packets later.
    #[inline]
    pub fn prefetch(&self) {
        crate::prefetch(&self.bytes()[HEADROOM], 0..1);
    }

    /// The same for a packet that is written before it is read: the line is taken away from the core that has it.
    #[inline]
    pub fn prefetch_to_write(&self) {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: a prefetch reads nothing and changes nothing; this one lies in the frame besides. Every 64-bit processor takes
        // the instruction, which the compiler would only use where it is told of a newer one.
        unsafe {
            let first = self.0.as_ptr().add(HEADROOM);
            std::arch::asm!("prefetchw [{}]", in(reg) first, options(nostack, preserves_flags));
        }
    }

    /// Address of the first byte. Two frames that are alive never have the same.
    #[inline]
    pub fn address(&self) -> usize {
        self.0.as_ptr().addr()
    }
}

impl Drop for Frame {
    #[cold]
    fn drop(&mut self) {
        let home = Arena::of(self);
        home.orphaned.fetch_add(1, Relaxed);
        home.spare().push(self.alias());
    }
}
