//! A kept frame: its owner has it as long as its bytes may be wanted again, while packets carry parts of it.
//!
//! What is sent and may have to be sent once more lies in such frames: it can go out as often as need be without a copy.
#![expect(
    unsafe_code,
    reason = "one frame has several holders here: that none of them reads what another one writes is seen to by this file"
)]

use std::mem::ManuallyDrop;

use crate::{Arena, FRAME_SIZE, Frame, Segment};

/// A frame of which packets carry parts while its owner keeps it.
///
/// Bytes that a part has shown, and those before them, are written no more. The frame is free when its owner has let go of it and the
/// last part has ended, in either order: give both to a [`Pool`](crate::Pool), this one with
/// [`Pool::give_kept`](crate::Pool::give_kept).
#[derive(Debug)]
pub struct Kept {
    frame: ManuallyDrop<Frame>,
    /// Bytes from here on are in no part.
    shown: u32,
    /// Parts that were made.
    parts: u32,
}

impl Kept {
    /// A frame of which there are no parts yet.
    #[inline]
    pub fn new(frame: Frame) -> Self {
        Self { frame: ManuallyDrop::new(frame), shown: 0, parts: 0 }
    }

    /// All its bytes.
    #[inline]
    pub fn bytes(&self) -> &[u8; FRAME_SIZE] {
        // Who has a part only reads, and the owner writes through `&mut self`.
        self.frame.bytes()
    }

    /// Its bytes from `from` on, to be written; none when they begin before the end of what parts have shown, or outside of the frame.
    #[inline]
    pub fn bytes_mut(&mut self, from: usize) -> &mut [u8] {
        if from < self.shown as usize || from > FRAME_SIZE {
            return &mut [];
        }
        // SAFETY: these bytes are the frame's, none of them is in a part, and there is no other way to them than through `self`.
        unsafe { std::slice::from_raw_parts_mut(self.frame.first().add(from), FRAME_SIZE - from) }
    }

    /// Its bytes `start..start + len` for a packet; `None` when they are not in the frame, or when it has had more parts than can
    /// be counted.
    #[inline]
    pub fn part(&mut self, start: usize, len: usize) -> Option<Part> {
        let parts = self.parts.checked_add(1)?;
        match Segment::new(self.frame.alias(), start, len) {
            Ok(segment) => {
                self.parts = parts;
                #[expect(clippy::cast_possible_truncation, reason = "at most a frame's size")]
                let end = (start + len) as u32;
                self.shown = self.shown.max(end);
                Some(Part(ManuallyDrop::new(segment)))
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
        // Most frames are sent by copying them, and nobody else knows of them.
        if parts == 0 { Some(frame) } else { arena.count_parts(frame, parts.wrapping_neg()) }
    }
}

impl Drop for Kept {
    #[cold]
    fn drop(&mut self) {
        // SAFETY: nobody sees `self` any more.
        let frame = unsafe { ManuallyDrop::take(&mut self.frame) };
        // A frame that is free goes to its arena's spare list.
        drop(Arena::of(&frame).count_parts(frame, self.parts.wrapping_neg()));
    }
}

/// Bytes of a frame that somebody else keeps, as they go into a packet: [`Packet::push_part`](crate::Packet::push_part).
///
/// Give it back with [`Pool::give_part`](crate::Pool::give_part).
#[derive(Debug)]
pub struct Part(ManuallyDrop<Segment>);

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

    /// The segment that a place has for it which remembers that the frame is not its own.
    #[inline]
    pub(crate) fn into_segment(self) -> Segment {
        let mut part = ManuallyDrop::new(self);
        // SAFETY: nobody sees `part` any more, and it is not dropped.
        unsafe { ManuallyDrop::take(&mut part.0) }
    }

    /// The part of which such a place had the segment.
    ///
    /// # Safety
    /// Its frame is that of a segment that [`Part::into_segment`] made, and this is done once for that. Of the bytes it may show fewer.
    #[inline]
    pub(crate) unsafe fn from_segment(segment: Segment) -> Self {
        Self(ManuallyDrop::new(segment))
    }

    /// A part that was forgotten, without its bytes: only to be ended.
    ///
    /// # Safety
    /// One of the arena's frame number `index` was forgotten, and this is done once for it.
    pub(crate) unsafe fn again(arena: &Arena, index: usize) -> Self {
        Self(ManuallyDrop::new(Segment::received(arena.alias(index), 0)))
    }

    /// Ends it. The frame is returned when it is free.
    #[inline]
    pub(crate) fn end(self, arena: &Arena) -> Option<Frame> {
        arena.count_parts(self.into_segment().into_frame(), 1)
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

impl Drop for Part {
    #[cold]
    fn drop(&mut self) {
        // SAFETY: nobody sees `self` any more.
        let frame = unsafe { ManuallyDrop::take(&mut self.0) }.into_frame();
        drop(Arena::of(&frame).count_parts(frame, 1));
    }
}
