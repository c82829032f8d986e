//! A kept frame: its owner has it as long as its bytes may be wanted again, while packets carry parts of it.
//!
//! What is sent and may have to be sent once more lies in such frames: it can go out as often as need be without a copy.
#![expect(
    unsafe_code,
    reason = "one frame has several holders here: that none of them reads what another one writes is seen to by this file"
)]

use std::mem::ManuallyDrop;

use crate::{Arena, FRAME_SIZE, Frame, Packet, Segment};

/// A frame of which packets carry parts while its owner keeps it.
///
/// Bytes that a part has shown, and those before them, are written no more. The frame is free when its owner has let go of it and the
/// last part has ended, in either order: give both to a [`Pool`](crate::Pool), this one with
/// [`Pool::give_kept`](crate::Pool::give_kept).
///
/// Some of its bytes may be put aside in front of those that are kept: for the headers of a packet that is the frame itself.
#[derive(Debug)]
pub struct Kept {
    frame: ManuallyDrop<Frame>,
    /// Bytes that are not kept, in front.
    front: u16,
    /// Bytes from here on, of the frame, are in no part.
    shown: u16,
    /// Parts that were made.
    parts: u32,
}

impl Kept {
    /// A frame of which there are no parts yet.
    #[inline]
    pub fn new(frame: Frame) -> Self {
        Self::behind(frame, 0)
    }

    /// The same with so many bytes put aside in front; all of them, when a frame has fewer.
    #[inline]
    #[expect(clippy::cast_possible_truncation, reason = "no more than a frame has")]
    pub fn behind(frame: Frame, front: usize) -> Self {
        let front = front.min(FRAME_SIZE) as u16;
        Self { frame: ManuallyDrop::new(frame), front, shown: front, parts: 0 }
    }

    /// All bytes that are kept.
    #[inline]
    pub fn bytes(&self) -> &[u8] {
        let front = usize::from(self.front);
        // SAFETY: the frame's bytes behind those in front. Who has a part of them only reads, and the owner writes through `&mut self`.
        unsafe { std::slice::from_raw_parts(self.frame.first().add(front), FRAME_SIZE - front) }
    }

    /// Those from `from` on, to be written; none when they begin before the end of what parts have shown, or outside of the frame.
    #[inline]
    pub fn bytes_mut(&mut self, from: usize) -> &mut [u8] {
        let from = from.saturating_add(self.front.into());
        if from < self.shown.into() || from > FRAME_SIZE {
            return &mut [];
        }
        // SAFETY: these bytes are the frame's, none of them is in a part, and there is no other way to them than through `self`.
        unsafe { std::slice::from_raw_parts_mut(self.frame.first().add(from), FRAME_SIZE - from) }
    }

    /// The bytes in front of those that are kept; none when a part was made, to which they may belong.
    #[inline]
    pub fn front_mut(&mut self) -> &mut [u8] {
        let len = if self.parts == 0 { self.front.into() } else { 0 };
        // SAFETY: the frame has at least `front` bytes. Only a packet that `Kept::packet` has made, which counts as a part, could have
        // them as well, and `bytes` and `bytes_mut` begin behind them.
        unsafe { std::slice::from_raw_parts_mut(self.frame.first(), len) }
    }

    /// Bytes `start..start + len` of those that are kept for a packet; `None` when they are not in the frame, or when it has had more
    /// parts than can be counted.
    #[inline]
    pub fn part(&mut self, start: usize, len: usize) -> Option<Part> {
        let start = start.saturating_add(self.front.into());
        let end = start.saturating_add(len);
        let segment = self.shown_by(start, len, end)?;
        Some(Part(segment.into_part(start)))
    }

    /// The frame as a packet: the last `headers` bytes of those in front, which are the packet's own from now on, and the first `len`
    /// of those that are kept. `None` when they are not in the frame, or a part was made before.
    ///
    /// Nothing more can be written to the frame.
    #[inline]
    pub fn packet(&mut self, headers: usize, len: usize) -> Option<Packet> {
        let front = usize::from(self.front);
        let start = front.checked_sub(headers).filter(|_| self.parts == 0)?;
        let segment = self.shown_by(start, headers.saturating_add(len), FRAME_SIZE)?;
        Some(Packet::from_segment(segment.into_part(front)))
    }

    /// A segment of the frame that counts as a part of it, and shows the bytes up to `end`.
    #[inline]
    fn shown_by(&mut self, start: usize, len: usize, end: usize) -> Option<Segment> {
        let parts = self.parts.checked_add(1)?;
        match Segment::new(self.frame.alias(), start, len) {
            Ok(segment) => {
                self.parts = parts;
                #[expect(clippy::cast_possible_truncation, reason = "at most a frame's size")]
                let end = end as u16;
                self.shown = self.shown.max(end);
                Some(segment)
            }
            Err(alias) => {
                std::mem::forget(alias);
                None
            }
        }
    }

    /// Lets go of the frame, which is returned when it is free.
    #[inline]
    pub(crate) fn end(self, arena: &Arena) -> Option<Frame> {
        let mut kept = ManuallyDrop::new(self);
        let parts = kept.parts;
        // SAFETY: nobody sees `kept` any more, and it is not dropped.
        let frame = unsafe { ManuallyDrop::take(&mut kept.frame) };
        // Messages are sent by copying them, and nobody else knows of their frames.
        if parts == 0 { Some(frame) } else { arena.let_go(frame, parts) }
    }
}

impl Drop for Kept {
    #[cold]
    fn drop(&mut self) {
        // SAFETY: nobody sees `self` any more.
        let frame = unsafe { ManuallyDrop::take(&mut self.frame) };
        // A frame that is free goes to its arena's spare list.
        drop(Arena::of(&frame).let_go(frame, self.parts));
    }
}

/// Bytes of a frame that somebody else keeps, as they go into a packet: [`Packet::push_part`](crate::Packet::push_part).
///
/// Give it back with [`Pool::give_part`](crate::Pool::give_part).
#[derive(Debug)]
pub struct Part(Segment);

impl Part {
    /// The bytes.
    #[inline]
    pub fn bytes(&self) -> &[u8] {
        self.0.bytes()
    }

    /// Where in the frame they begin.
    #[inline]
    pub fn start(&self) -> usize {
        self.0.start()
    }

    /// How many they are.
    #[inline]
    #[expect(clippy::len_without_is_empty, reason = "as of a segment")]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// The frame they are in, for where that lies.
    #[inline]
    pub(crate) fn frame(&self) -> &Frame {
        self.0.frame()
    }

    /// Makes them fewer: the first `len`.
    pub(crate) fn shorten(&mut self, len: usize) {
        let len = len.min(self.len());
        let shorter = self.0.set_len(len);
        debug_assert!(shorter.is_ok(), "they were more");
    }

    /// The segment that a packet has for it.
    #[inline]
    pub(crate) fn into_segment(self) -> Segment {
        self.0
    }

    /// Its frame, for who remembers that it was a part's.
    #[inline]
    pub(crate) fn into_frame(self) -> Frame {
        self.0.into_any_frame()
    }

    /// The part that such a frame was of, without its bytes: only to be ended.
    ///
    /// # Safety
    /// [`Part::into_frame`] returned the frame, and this is done once for that.
    #[inline]
    pub(crate) unsafe fn of(frame: Frame) -> Self {
        Self(Segment::received(frame, 0).into_part(0))
    }

    /// A part that was forgotten, without its bytes: only to be ended.
    ///
    /// # Safety
    /// One of the arena's frame number `index` was forgotten, and this is done once for it.
    pub(crate) unsafe fn again(arena: &Arena, index: usize) -> Self {
        // SAFETY: the frame of the part that was forgotten, as the caller has it.
        unsafe { Self::of(arena.alias(index)) }
    }

    /// Ends it. The frame is returned when it is free.
    #[inline]
    pub(crate) fn end(self, arena: &Arena) -> Option<Frame> {
        arena.count_parts(self.into_frame(), 1)
    }
}

/// What a packet is made of.
#[derive(Debug)]
pub enum Piece {
    /// A frame of the packet's own.
    Whole(Segment),
    /// A part of a frame that somebody else keeps.
    Part(Part),
}

impl From<Segment> for Piece {
    #[inline]
    fn from(segment: Segment) -> Self {
        if segment.is_part() { Self::Part(Part(segment)) } else { Self::Whole(segment) }
    }
}

impl Piece {
    /// The packet's bytes in it.
    #[inline]
    pub fn bytes(&self) -> &[u8] {
        match self {
            Self::Whole(segment) => segment.bytes(),
            Self::Part(part) => part.bytes(),
        }
    }

    /// Where in the frame they begin.
    #[inline]
    pub fn start(&self) -> usize {
        match self {
            Self::Whole(segment) => segment.start(),
            Self::Part(part) => part.start(),
        }
    }
}
