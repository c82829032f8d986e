//! A segment: one frame, and which of its bytes are a packet's.
//!
//! That they lie in the frame is seen to here, where they are set, so that it need not be looked at where they are read: every
//! header that anybody looks at is reached through a segment.
#![expect(
    unsafe_code,
    reason = "a segment's bytes are cut out of its frame without a check: 5 instructions less for a forwarded packet; and of a kept \
              frame it is not the owner"
)]

use std::mem::ManuallyDrop;

use crate::{Arena, FRAME_DATA, FRAME_SIZE, Frame, HEADROOM, copy};

/// The packet would not fit: its frame, its headroom, or its [`MAX_FRAMES`](crate::MAX_FRAMES) are full. Nothing was changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no room in the packet")]
pub struct NoRoom;

/// One frame of a packet and which of its bytes are the packet's.
///
/// Inside of this crate it may also be a part of a frame that somebody else keeps, who counts how many of them have ended. Then only
/// the bytes in front of what was kept are the packet's own.
#[derive(Debug)]
pub struct Segment {
    frame: ManuallyDrop<Frame>,
    /// Where the bytes begin. Of a part, above the lower [`PLACE`] bits, one more than where those begin that are not its own.
    start: u32,
    // `start + len` is at most FRAME_SIZE. Values of 16 bits, in 32 for the sake of a packet without gaps.
    len: u32,
}

/// Bits of a place in a frame.
const PLACE: u32 = 16;

impl Segment {
    /// Bytes `start..start + len` of the frame; `None`, with the frame in `Err`, when they are not in it.
    ///
    /// # Errors
    /// The frame itself, so that nothing is lost.
    #[inline]
    pub fn new(frame: Frame, start: usize, len: usize) -> Result<Self, Frame> {
        match (u32::try_from(start), u32::try_from(len)) {
            (Ok(s), Ok(l)) if start <= FRAME_SIZE && len <= FRAME_SIZE - start => {
                Ok(Self { frame: ManuallyDrop::new(frame), start: s, len: l })
            }
            _ => Err(frame),
        }
    }

    /// `len` bytes behind the headroom, where a NIC puts them; at most [`FRAME_DATA`], and no more when `len` is.
    #[inline]
    #[expect(clippy::cast_possible_truncation, reason = "both are at most 2048")]
    pub fn received(frame: Frame, len: usize) -> Self {
        let frame = ManuallyDrop::new(frame);
        Self { frame, start: HEADROOM as u32, len: len.min(FRAME_DATA) as u32 }
    }

    /// It as a part of a frame that somebody else keeps, whose bytes from `kept` on nobody writes.
    #[inline]
    #[expect(clippy::cast_possible_truncation, reason = "a place in a frame")]
    pub(crate) fn into_part(mut self, kept: usize) -> Self {
        self.start = self.start() as u32 | (kept.min(FRAME_SIZE) as u32 + 1) << PLACE;
        self
    }

    /// Whether somebody else keeps its frame.
    #[inline]
    pub(crate) fn is_part(&self) -> bool {
        self.start >> PLACE != 0
    }

    /// The packet's bytes in this frame.
    #[inline]
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: `start + len` is at most FRAME_SIZE: whatever sets one of them sees to it. Of a kept frame others may be written.
        unsafe { std::slice::from_raw_parts(self.frame.first().add(self.start()), self.len()) }
    }

    /// Those of the packet's bytes in this frame that may be written: all, or of a part those in front of what is kept.
    #[inline]
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        let len = if self.is_part() { self.own() } else { self.len() };
        // SAFETY: as in `bytes`, and `&mut self` makes this the only reference: bytes of a kept frame that its keeper or other parts
        // may read are left out.
        unsafe { std::slice::from_raw_parts_mut(self.frame.first().add(self.start()), len) }
    }

    /// Where in the frame of a part those bytes begin that are not its own.
    #[inline]
    fn kept_from(&self) -> usize {
        (self.start >> PLACE).saturating_sub(1) as usize
    }

    /// How many bytes of a part are its own.
    // Apart, so that who writes to whole frames does not carry it along.
    #[cold]
    fn own(&self) -> usize {
        self.kept_from().saturating_sub(self.start()).min(self.len())
    }

    /// Where in the frame the bytes begin.
    #[inline]
    pub fn start(&self) -> usize {
        (self.start & ((1 << PLACE) - 1)) as usize
    }

    /// How many bytes.
    #[inline]
    #[expect(clippy::len_without_is_empty, reason = "few segments are empty, and nobody asks")]
    pub fn len(&self) -> usize {
        self.len as usize
    }

    /// Bytes of the frame behind it, to be written.
    #[inline]
    pub(crate) fn room(&self) -> usize {
        if self.is_part() { 0 } else { FRAME_SIZE - self.start() - self.len() }
    }

    /// Makes it `len` bytes long, showing what lies there; [`NoRoom`] when the frame ends before, or what it may show.
    #[inline]
    pub(crate) fn set_len(&mut self, len: usize) -> Result<(), NoRoom> {
        if len > self.len() + self.room() {
            return Err(NoRoom);
        }
        self.len = u32::try_from(len).map_err(|_| NoRoom)?;
        Ok(())
    }

    /// Appends bytes; [`NoRoom`] when the frame ends before, or is not its own.
    pub(crate) fn extend_from_slice(&mut self, bytes: &[u8]) -> Result<(), NoRoom> {
        if self.is_part() || bytes.len() > self.room() {
            return Err(NoRoom);
        }
        let end = self.start() + self.len();
        let added = u32::try_from(bytes.len()).map_err(|_| NoRoom)?;
        copy(bytes, &mut self.frame.bytes_mut()[end..]);
        self.len += added;
        Ok(())
    }

    /// Takes `n` bytes in front of it; [`NoRoom`] when the frame has not so many, or they are not its own.
    #[inline]
    #[expect(clippy::cast_possible_truncation, reason = "no more than where it begins")]
    pub(crate) fn push_front(&mut self, n: usize) -> Result<(), NoRoom> {
        if n > self.start() || self.is_part() && self.start() > self.kept_from() {
            return Err(NoRoom);
        }
        self.start -= n as u32;
        self.len += n as u32;
        Ok(())
    }

    /// Leaves its first `n` bytes out; [`NoRoom`] when it has fewer.
    #[inline]
    pub(crate) fn pull_front(&mut self, n: usize) -> Result<(), NoRoom> {
        let n = u32::try_from(n).map_err(|_| NoRoom)?;
        self.len = self.len.checked_sub(n).ok_or(NoRoom)?;
        self.start += n;
        Ok(())
    }

    /// It without its first `n` bytes; of a shorter one none are left.
    #[inline]
    #[expect(clippy::cast_possible_truncation, reason = "no more than the length, which has 32 bits")]
    pub(crate) fn without_front(mut self, n: usize) -> Self {
        let n = n.min(self.len()) as u32;
        self.start += n;
        self.len -= n;
        self
    }

    /// Gives the frame out, for lending it.
    #[inline]
    pub fn into_frame(self) -> Frame {
        debug_assert!(!self.is_part(), "somebody else keeps the frame");
        self.into_any_frame()
    }

    /// The same of a part, too: it is for who remembers that it was one.
    #[inline]
    pub(crate) fn into_any_frame(self) -> Frame {
        let mut segment = ManuallyDrop::new(self);
        // SAFETY: nobody sees `segment` any more, and it is not dropped.
        unsafe { ManuallyDrop::take(&mut segment.frame) }
    }

    /// The frame the bytes are in.
    #[inline]
    pub fn frame(&self) -> &Frame {
        &self.frame
    }
}

impl Drop for Segment {
    #[cold]
    fn drop(&mut self) {
        // SAFETY: nobody sees `self` any more.
        let frame = unsafe { ManuallyDrop::take(&mut self.frame) };
        // A frame that is free goes to its arena's spare list.
        if self.is_part() { drop(Arena::of(&frame).count_parts(frame, 1)) } else { drop(frame) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Arena;

    #[test]
    fn no_way_leads_out_of_the_frame() {
        let arena = Arena::new(vec![0; FRAME_SIZE]).unwrap();
        let mut pool = arena.pool(1).unwrap();
        let frame = Segment::new(pool.take().unwrap(), FRAME_SIZE, 1).unwrap_err();
        let frame = Segment::new(frame, FRAME_SIZE + 1, 0).unwrap_err();
        let frame = Segment::new(frame, usize::MAX, 2).unwrap_err();
        let mut segment = Segment::new(frame, 5, FRAME_SIZE - 5).unwrap();
        assert_eq!(segment.bytes().len(), FRAME_SIZE - 5);
        assert_eq!(segment.set_len(FRAME_SIZE - 4), Err(NoRoom));
        assert_eq!(segment.extend_from_slice(&[1]), Err(NoRoom));
        assert_eq!(segment.push_front(6), Err(NoRoom));
        assert_eq!(segment.pull_front(FRAME_SIZE - 4), Err(NoRoom));
        assert_eq!((segment.start(), segment.len()), (5, FRAME_SIZE - 5));
        segment.push_front(5).unwrap();
        segment.pull_front(FRAME_SIZE).unwrap();
        assert_eq!((segment.start(), segment.bytes_mut().len()), (FRAME_SIZE, 0));
        assert_eq!((segment.extend_from_slice(&[]), segment.set_len(1)), (Ok(()), Err(NoRoom)));
        pool.give(segment.into_frame());
        let segment = Segment::received(pool.take().unwrap(), usize::MAX);
        assert_eq!((segment.start(), segment.len()), (HEADROOM, FRAME_DATA));
        pool.give(segment.into_frame());
    }
}
