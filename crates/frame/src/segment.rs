//! A segment: one frame, and which of its bytes are a packet's.
//!
//! That they lie in the frame is seen to here, where they are set, so that it need not be looked at where they are read: every
//! header that anybody looks at is reached through a segment.
#![expect(
    unsafe_code,
    reason = "a segment's bytes are cut out of its frame without a check: 5 instructions less for a forwarded packet"
)]

use crate::{FRAME_DATA, FRAME_SIZE, Frame, HEADROOM, copy};

/// The packet would not fit: its frame, its headroom, or its [`MAX_FRAMES`](crate::MAX_FRAMES) are full. Nothing was changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no room in the packet")]
pub struct NoRoom;

/// One frame of a packet and which of its bytes are the packet's.
#[derive(Debug)]
pub struct Segment {
    frame: Frame,
    // `start + len` is at most FRAME_SIZE. Values of 16 bits, in 32 for the sake of a packet without gaps.
    start: u32,
    len: u32,
}

impl Segment {
    /// Bytes `start..start + len` of the frame; `None`, with the frame in `Err`, when they are not in it.
    ///
    /// # Errors
    /// The frame itself, so that nothing is lost.
    #[inline]
    pub fn new(frame: Frame, start: usize, len: usize) -> Result<Self, Frame> {
        match (u32::try_from(start), u32::try_from(len)) {
            (Ok(s), Ok(l)) if start <= FRAME_SIZE && len <= FRAME_SIZE - start => {
                Ok(Self { frame, start: s, len: l })
            }
            _ => Err(frame),
        }
    }

    /// `len` bytes behind the headroom, where a NIC puts them; at most [`FRAME_DATA`], and no more when `len` is.
    #[inline]
    #[expect(clippy::cast_possible_truncation, reason = "both are at most 2048")]
    pub fn received(frame: Frame, len: usize) -> Self {
        Self { frame, start: HEADROOM as u32, len: len.min(FRAME_DATA) as u32 }
    }

    /// The packet's bytes in this frame.
    #[inline]
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: `start + len` is at most FRAME_SIZE: whatever sets one of them sees to it. Of a kept frame others may be written.
        unsafe { std::slice::from_raw_parts(self.frame.first().add(self.start()), self.len()) }
    }

    /// The packet's bytes in this frame.
    #[inline]
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `bytes`, and `&mut self` makes this the only reference.
        unsafe { std::slice::from_raw_parts_mut(self.frame.first().add(self.start()), self.len()) }
    }

    /// Where in the frame the bytes begin.
    #[inline]
    pub fn start(&self) -> usize {
        self.start as usize
    }

    /// How many bytes.
    #[inline]
    #[expect(clippy::len_without_is_empty, reason = "few segments are empty, and nobody asks")]
    pub fn len(&self) -> usize {
        self.len as usize
    }

    /// Makes it `len` bytes long, showing what lies there; [`NoRoom`] when the frame ends before.
    #[inline]
    pub(crate) fn set_len(&mut self, len: usize) -> Result<(), NoRoom> {
        if len > FRAME_SIZE - self.start() {
            return Err(NoRoom);
        }
        self.len = u32::try_from(len).map_err(|_| NoRoom)?;
        Ok(())
    }

    /// Appends bytes; [`NoRoom`] when the frame ends before.
    pub(crate) fn extend_from_slice(&mut self, bytes: &[u8]) -> Result<(), NoRoom> {
        let end = self.start() + self.len();
        let added = u32::try_from(bytes.len()).map_err(|_| NoRoom)?;
        let room = self.frame.bytes_mut()[end..].get_mut(..bytes.len());
        copy(bytes, room.ok_or(NoRoom)?);
        self.len += added;
        Ok(())
    }

    /// Takes `n` bytes in front of it; [`NoRoom`] when the frame has not so many.
    #[inline]
    pub(crate) fn push_front(&mut self, n: usize) -> Result<(), NoRoom> {
        let n = u32::try_from(n).map_err(|_| NoRoom)?;
        self.start = self.start.checked_sub(n).ok_or(NoRoom)?;
        self.len += n;
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
    pub(crate) fn without_front(self, n: usize) -> Self {
        let n = n.min(self.len()) as u32;
        Self { start: self.start + n, len: self.len - n, frame: self.frame }
    }

    /// Gives the frame out, for lending it.
    #[inline]
    pub fn into_frame(self) -> Frame {
        self.frame
    }

    /// The frame the bytes are in.
    #[inline]
    pub fn frame(&self) -> &Frame {
        &self.frame
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
