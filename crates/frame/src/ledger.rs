//! Frames that are lent: the kernel or a device holds them and will name them by offset.
#![expect(
    unsafe_code,
    reason = "parts of kept frames are counted while they are lent, and made again of the count"
)]

use crate::{Arena, Frame, Part, Piece, Pool};

/// Why an offset that the other side named is not a lent frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReclaimError {
    /// The offset lies outside the arena, or between two frames.
    #[error("the offset lies in no frame")]
    Outside,
    /// The frame there was not lent, or has come back already.
    #[error("the frame there is not lent")]
    NotLent,
}

/// The frames that one queue has lent to the kernel or to a device.
///
/// The ledger owns them and shows nobody their bytes. They come back one by one when the other side names them, or
/// all at once, by [`Ledger::recover`], when the other side is known to have let go. What the other side names is
/// checked: an offset that was not lent is an error, never a second owner.
#[derive(Debug)]
pub struct Ledger {
    arena: &'static Arena,
    lent: Box<[Option<Frame>]>,
    /// How many parts are lent of each frame that others keep; none are counted before the first.
    parts: Vec<u32>,
    count: usize,
}

impl Ledger {
    /// An empty ledger for frames of `arena`.
    pub fn new(arena: &'static Arena) -> Self {
        Self { arena, lent: (0..arena.frames()).map(|_| None).collect(), parts: Vec::new(), count: 0 }
    }

    /// Takes a frame to be lent and returns its offset in the arena: what to tell the other side.
    ///
    /// # Panics
    /// When the frame is another arena's.
    #[inline]
    pub fn lend(&mut self, frame: Frame) -> usize {
        let offset = self.arena.offset(&frame);
        // A frame that exists has an index, and one that is owned is in no ledger: the place is empty.
        if let Some(place) = self.arena.index(offset).and_then(|i| self.lent.get_mut(i)) {
            *place = Some(frame);
            self.count += 1;
        }
        offset
    }

    /// Takes what a packet is made of to be lent, and returns the offset in the arena where its bytes begin.
    ///
    /// # Panics
    /// When it is another arena's.
    #[inline]
    pub fn lend_piece(&mut self, piece: Piece) -> usize {
        let start = piece.start();
        match piece {
            Piece::Whole(segment) => self.lend(segment.into_frame()) + start,
            Piece::Part(part) => self.lend_part(part),
        }
    }

    fn lend_part(&mut self, part: Part) -> usize {
        let (offset, start) = (self.arena.offset(part.frame()), part.start());
        if self.parts.is_empty() {
            self.parts = vec![0; self.arena.frames()];
        }
        // A frame that exists has an index.
        if let Some(count) = self.arena.index(offset).and_then(|i| self.parts.get_mut(i)) {
            std::mem::forget(part);
            *count += 1;
            self.count += 1;
        }
        offset + start
    }

    /// Takes back the frame, or a part of it, in which the byte at `offset` lies, and gives it to `pool`.
    ///
    /// # Errors
    /// [`ReclaimError`] when the other side named what it was not lent.
    #[inline]
    pub fn give_back(&mut self, offset: usize, pool: &mut Pool) -> Result<(), ReclaimError> {
        match self.reclaim(offset) {
            Ok((frame, _)) => pool.give(frame),
            Err(ReclaimError::NotLent) => pool.give_part(self.reclaim_part(offset)?),
            Err(error) => return Err(error),
        }
        Ok(())
    }

    fn reclaim_part(&mut self, offset: usize) -> Result<Part, ReclaimError> {
        let index = self.arena.index(offset).ok_or(ReclaimError::Outside)?;
        let count = self.parts.get_mut(index).filter(|count| **count > 0).ok_or(ReclaimError::NotLent)?;
        *count -= 1;
        self.count -= 1;
        // SAFETY: `lend_part` has forgotten as many of this frame as it has counted.
        Ok(unsafe { Part::again(self.arena, index) })
    }

    /// The lent frame in which the byte at `offset` lies, and how far into it that byte is.
    ///
    /// # Errors
    /// [`ReclaimError`] when the other side named what it was not lent.
    #[inline]
    pub fn reclaim(&mut self, offset: usize) -> Result<(Frame, usize), ReclaimError> {
        let index = self.arena.index(offset).ok_or(ReclaimError::Outside)?;
        let frame = self.lent.get_mut(index).and_then(Option::take).ok_or(ReclaimError::NotLent)?;
        self.count -= 1;
        let start = offset - self.arena.offset(&frame);
        Ok((frame, start))
    }

    /// Frames that are lent now, and parts of kept ones.
    pub fn lent(&self) -> usize {
        self.count
    }

    /// Takes all lent frames back. Only for when the other side has let go of them: its socket is closed and the
    /// close has finished, its rings are off.
    pub fn recover(mut self, pool: &mut Pool) {
        for frame in self.lent.iter_mut().filter_map(Option::take) {
            pool.give(frame);
        }
        for (index, count) in std::mem::take(&mut self.parts).into_iter().enumerate() {
            for _ in 0..count {
                // SAFETY: as in `reclaim_part`, and they are counted no more.
                pool.give_part(unsafe { Part::again(self.arena, index) });
            }
        }
    }

    /// Leaves all lent frames with the other side for good, when it can't be known whether it has let go. They are
    /// never used again: memory is lost, but nobody writes to a frame that has an owner.
    pub fn abandon(mut self) {
        self.forget_all();
    }

    fn forget_all(&mut self) {
        for frame in self.lent.iter_mut().filter_map(Option::take) {
            std::mem::forget(frame);
        }
    }
}

impl Drop for Ledger {
    /// A ledger that is dropped (a panic, an early return) says nothing about the other side: as [`Ledger::abandon`].
    fn drop(&mut self) {
        self.forget_all();
    }
}
