//! A packet: a chain of frames, with a length and what the NIC knows or is to do.

use arrayvec::ArrayVec;

use crate::{FRAME_SIZE, Frame, HEADROOM, Offload, Pool};

/// Frames a packet can have: enough for 64 KiB in frames of 2 KiB, and headers of its own in front.
pub const MAX_FRAMES: usize = 34;

/// The packet would not fit: its frame, its headroom, or its [`MAX_FRAMES`] are full. Nothing was changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no room in the packet")]
pub struct NoRoom;

/// One frame of a packet and which of its bytes are the packet's.
#[derive(Debug)]
pub struct Segment {
    pub(crate) frame: Frame,
    start: u16,
    len: u16,
}

/// The frames of a packet after the first.
pub(crate) type Chain = ArrayVec<Segment, { MAX_FRAMES - 1 }>;

impl Segment {
    /// Bytes `start..start + len` of the frame; `None`, with the frame in `Err`, when they are not in it.
    ///
    /// # Errors
    /// The frame itself, so that nothing is lost.
    #[inline]
    pub fn new(frame: Frame, start: usize, len: usize) -> Result<Self, Frame> {
        match (u16::try_from(start), u16::try_from(len)) {
            (Ok(s), Ok(l)) if start + len <= FRAME_SIZE => Ok(Self { frame, start: s, len: l }),
            _ => Err(frame),
        }
    }

    /// The packet's bytes in this frame.
    #[inline]
    pub fn bytes(&self) -> &[u8] {
        &self.frame.bytes()[self.range()]
    }

    /// The packet's bytes in this frame.
    #[inline]
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        let range = self.range();
        &mut self.frame.bytes_mut()[range]
    }

    #[inline]
    fn range(&self) -> std::ops::Range<usize> {
        usize::from(self.start)..usize::from(self.start) + usize::from(self.len)
    }

    /// Where in the frame the bytes begin.
    #[inline]
    pub fn start(&self) -> usize {
        usize::from(self.start)
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

/// A packet: one or more frames in order, each with the range of its bytes that counts.
///
/// Most packets have one frame, and pay nothing for the others. Jumbo frames, super-segments (TSO, GRO) and
/// AF_XDP's multi-buffer packets have more.
#[derive(Debug)]
pub struct Packet {
    head: Segment,
    rest: Option<Box<Chain>>,
    /// Bytes in `rest`.
    rest_len: u32,
    /// What the NIC knows of the packet, or is to do with it.
    pub offload: Offload,
}

impl Packet {
    /// An empty packet in `frame`, with [`HEADROOM`] bytes in front.
    #[inline]
    #[expect(clippy::cast_possible_truncation, reason = "HEADROOM is 256")]
    pub fn new(frame: Frame) -> Self {
        Self::from_segment(Segment { frame, start: HEADROOM as u16, len: 0 })
    }

    /// A packet of one segment.
    #[inline]
    pub fn from_segment(head: Segment) -> Self {
        Self { head, rest: None, rest_len: 0, offload: Offload::default() }
    }

    /// Bytes in all frames.
    #[inline]
    #[expect(clippy::len_without_is_empty, reason = "no port gives or takes an empty packet")]
    pub fn len(&self) -> usize {
        usize::from(self.head.len) + self.rest_len as usize
    }

    /// Number of frames.
    #[inline]
    pub fn frames(&self) -> usize {
        1 + self.rest.as_ref().map_or(0, |chain| chain.len())
    }

    /// The bytes in the first frame: every header we read is there.
    #[inline]
    pub fn head(&self) -> &[u8] {
        self.head.bytes()
    }

    /// The bytes in the first frame.
    #[inline]
    pub fn head_mut(&mut self) -> &mut [u8] {
        self.head.bytes_mut()
    }

    /// The first segment.
    #[inline]
    pub fn head_segment(&self) -> &Segment {
        &self.head
    }

    /// All segments in order.
    #[inline]
    pub fn segments(&self) -> impl Iterator<Item = &Segment> {
        std::iter::once(&self.head).chain(self.rest.iter().flat_map(|chain| chain.iter()))
    }

    /// All segments in order.
    #[inline]
    pub fn segments_mut(&mut self) -> impl Iterator<Item = &mut Segment> {
        std::iter::once(&mut self.head).chain(self.rest.iter_mut().flat_map(|chain| chain.iter_mut()))
    }

    /// Copies the whole packet to the front of `to` and returns how many bytes that were: the packet's length, or
    /// `to`'s when that is less.
    pub fn copy_to(&self, to: &mut [u8]) -> usize {
        let mut done = 0;
        for segment in self.segments() {
            let n = segment.bytes().len().min(to.len() - done);
            to[done..done + n].copy_from_slice(&segment.bytes()[..n]);
            done += n;
        }
        done
    }

    /// Makes the packet `len` bytes long within its first frame, showing what lies there. For a packet of one frame.
    ///
    /// # Errors
    /// [`NoRoom`] when the frame ends before, or when there are more frames.
    #[inline]
    pub fn set_len(&mut self, len: usize) -> Result<(), NoRoom> {
        if self.rest.is_some() || self.head.start() + len > FRAME_SIZE {
            return Err(NoRoom);
        }
        self.head.len = u16::try_from(len).map_err(|_| NoRoom)?;
        Ok(())
    }

    /// Appends bytes within the last frame.
    ///
    /// # Errors
    /// [`NoRoom`] when they do not fit there.
    pub fn extend_from_slice(&mut self, bytes: &[u8]) -> Result<(), NoRoom> {
        let last = self.rest.as_mut().and_then(|chain| chain.last_mut());
        let in_rest = last.is_some();
        let last = last.unwrap_or(&mut self.head);
        let (start, old) = (last.start(), usize::from(last.len));
        let added = u16::try_from(bytes.len()).map_err(|_| NoRoom)?;
        let room = last.frame.bytes_mut().get_mut(start + old..).and_then(|r| r.get_mut(..bytes.len()));
        room.ok_or(NoRoom)?.copy_from_slice(bytes);
        last.len += added;
        if in_rest {
            self.rest_len += u32::from(added);
        }
        Ok(())
    }

    /// Puts `n` bytes in front, from the headroom, and returns the new first frame's bytes. What the new bytes hold
    /// is arbitrary.
    ///
    /// # Errors
    /// [`NoRoom`] when the headroom is shorter.
    #[inline]
    pub fn push_front(&mut self, n: usize) -> Result<&mut [u8], NoRoom> {
        let n = u16::try_from(n).map_err(|_| NoRoom)?;
        self.head.start = self.head.start.checked_sub(n).ok_or(NoRoom)?;
        self.head.len += n;
        Ok(self.head.bytes_mut())
    }

    /// Takes `n` bytes off the front of the first frame.
    ///
    /// # Errors
    /// [`NoRoom`] when the first frame has fewer.
    #[inline]
    pub fn pull_front(&mut self, n: usize) -> Result<(), NoRoom> {
        let n = u16::try_from(n).map_err(|_| NoRoom)?;
        self.head.len = self.head.len.checked_sub(n).ok_or(NoRoom)?;
        self.head.start += n;
        Ok(())
    }

    /// Appends a segment.
    ///
    /// # Errors
    /// The segment itself when the packet has [`MAX_FRAMES`] already.
    pub fn push_segment(&mut self, segment: Segment, pool: &mut Pool) -> Result<(), Segment> {
        let chain = self.rest.get_or_insert_with(|| pool.take_chain());
        let len = u32::from(segment.len);
        chain.try_push(segment).map_err(arrayvec::CapacityError::element)?;
        self.rest_len += len;
        Ok(())
    }

    /// Gives out the first segment and the others, for lending their frames one by one.
    pub fn into_segments(self, pool: &mut Pool, mut each: impl FnMut(Segment, &mut Pool)) {
        each(self.head, pool);
        if let Some(mut chain) = self.rest {
            for segment in chain.drain(..) {
                each(segment, pool);
            }
            pool.keep_chain(chain);
        }
    }

    /// Whether all bytes are in the first frame.
    #[inline]
    pub fn is_single(&self) -> bool {
        self.rest.is_none()
    }

    /// The first segment alone.
    #[inline]
    pub(crate) fn into_head(self) -> Segment {
        self.head
    }

    #[inline]
    pub(crate) fn into_frames(self) -> (Frame, Option<Box<Chain>>) {
        (self.head.frame, self.rest)
    }
}
