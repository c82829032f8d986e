//! A packet: a chain of frames, with a length and what the NIC knows or is to do.

use arrayvec::ArrayVec;

use crate::{FRAME_DATA, Frame, HEADROOM, NoRoom, Offload, Part, Piece, Pool, Segment, copy};

/// Frames a packet can have: enough for 64 KiB in frames of 2 KiB, and headers of its own in front.
pub const MAX_FRAMES: usize = 34;

/// The frames of a packet after the first.
#[derive(Debug, Default)]
pub(crate) struct Chain {
    segments: ArrayVec<Segment, { MAX_FRAMES - 1 }>,
    /// Bytes in all of them.
    len: usize,
}

impl Chain {
    /// Appends a segment, for which there is room.
    #[inline]
    fn push(&mut self, segment: Segment) {
        self.len += segment.len();
        self.segments.push(segment);
    }

    /// Takes the last one out.
    fn pop(&mut self) -> Option<Piece> {
        let segment = self.segments.pop()?;
        self.len -= segment.len();
        Some(segment.into())
    }

    /// Takes all out.
    #[inline]
    pub(crate) fn drain(&mut self) -> impl Iterator<Item = Piece> + '_ {
        self.len = 0;
        self.segments.drain(..).map(Piece::from)
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
    /// What the NIC knows of the packet, or is to do with it.
    pub offload: Offload,
}

// Packets are made and moved millions of times a second, often as `Option<Packet>`. Without gaps between the fields, and
// with "none" in the frame's pointer, the only place for it, that is done in whole words. Else it is done in odd pieces,
// and reading back as a word what was just written in pieces stalls the processor.
const _: () = assert!(
    size_of::<Packet>() == size_of::<Frame>() + 8 + size_of::<Option<Box<Chain>>>() + size_of::<Offload>()
        && size_of::<Packet>() <= 48
        && size_of::<Option<Packet>>() == size_of::<Packet>()
        && size_of::<Option<Frame>>() == size_of::<Frame>()
        && size_of::<Option<Offload>>() > size_of::<Offload>()
);

impl Packet {
    /// An empty packet in `frame`, with [`HEADROOM`](crate::HEADROOM) bytes in front.
    #[inline]
    pub fn new(frame: Frame) -> Self {
        Self::from_segment(Segment::received(frame, 0))
    }

    /// A packet of one segment.
    #[inline]
    pub fn from_segment(head: Segment) -> Self {
        Self { head, rest: None, offload: Offload::default() }
    }

    /// Bytes in all frames.
    #[inline]
    #[expect(clippy::len_without_is_empty, reason = "no port gives or takes an empty packet")]
    pub fn len(&self) -> usize {
        self.head.len() + self.rest.as_ref().map_or(0, |chain| chain.len)
    }

    /// Number of frames.
    #[inline]
    pub fn frames(&self) -> usize {
        1 + self.rest.as_ref().map_or(0, |chain| chain.segments.len())
    }

    /// The bytes in the first frame: every header we read is there.
    #[inline]
    pub fn head(&self) -> &[u8] {
        self.head.bytes()
    }

    /// Those of the bytes in the first frame that are the packet's own: all, but of a frame that somebody keeps to send it once more
    /// ([`Kept::packet`](crate::Kept::packet)) the headers alone.
    #[inline]
    pub fn head_mut(&mut self) -> &mut [u8] {
        self.head.bytes_mut()
    }

    /// The first segment.
    #[inline]
    pub fn head_segment(&self) -> &Segment {
        &self.head
    }

    /// The bytes of all frames in order.
    #[inline]
    pub fn slices(&self) -> impl Iterator<Item = &[u8]> {
        let rest = self.rest.iter().flat_map(|chain| &chain.segments);
        std::iter::once(&self.head).chain(rest).map(Segment::bytes)
    }

    /// The first segments in order, up to one of whose bytes not all are the packet's own.
    pub(crate) fn own_segments_mut(&mut self) -> impl Iterator<Item = &mut Segment> {
        let rest = self.rest.iter_mut().flat_map(|chain| &mut chain.segments);
        let mut own = true;
        std::iter::once(&mut self.head)
            .chain(rest)
            .take_while(move |segment| std::mem::replace(&mut own, !segment.is_part()))
    }

    /// Copies the whole packet to the front of `to` and returns how many bytes that were: the packet's length, or
    /// `to`'s when that is less.
    pub fn copy_to(&self, to: &mut [u8]) -> usize {
        let mut done = 0;
        for bytes in self.slices() {
            let n = bytes.len().min(to.len() - done);
            copy(&bytes[..n], &mut to[done..]);
            done += n;
        }
        done
    }

    /// Makes the packet `len` bytes long within its first frame, showing what lies there. For a packet of one frame.
    ///
    /// # Errors
    /// [`NoRoom`] when the frame ends before, when there are more frames, or when somebody else keeps the frame and it would be longer.
    #[inline]
    pub fn set_len(&mut self, len: usize) -> Result<(), NoRoom> {
        if self.rest.is_none() { self.head.set_len(len) } else { Err(NoRoom) }
    }

    /// Takes off what stands behind the first `len` bytes.
    pub fn truncate(&mut self, len: usize, pool: &mut Pool) {
        if let Some(mut chain) = self.rest.take() {
            while self.head.len() + chain.len > len
                && let Some(last) = chain.pop()
            {
                let left = len.saturating_sub(self.head.len() + chain.len).min(last.bytes().len());
                match last {
                    last if left == 0 => pool.give_piece(last),
                    Piece::Whole(mut segment) => {
                        // It has as many.
                        let _shorter = segment.set_len(left);
                        chain.push(segment);
                    }
                    Piece::Part(mut part) => {
                        part.shorten(left);
                        chain.push(part.into_segment());
                    }
                }
            }
            if chain.segments.is_empty() { pool.keep_chain(chain) } else { self.rest = Some(chain) }
        }
        if self.head.len() > len {
            let _shorter = self.head.set_len(len);
        }
    }

    /// Appends bytes within the last frame.
    ///
    /// # Errors
    /// [`NoRoom`] when they do not fit there, or the frame is not the packet's own.
    pub fn extend_from_slice(&mut self, bytes: &[u8]) -> Result<(), NoRoom> {
        let Some(chain) = &mut self.rest else { return self.head.extend_from_slice(bytes) };
        chain.segments.last_mut().ok_or(NoRoom)?.extend_from_slice(bytes)?;
        chain.len += bytes.len();
        Ok(())
    }

    /// Appends bytes, in new frames where the last one is full: behind their headroom, as every packet's bytes.
    ///
    /// # Errors
    /// [`NoRoom`] when the pool has no frame left or the packet [`MAX_FRAMES`]; it then holds a part of the bytes.
    pub fn append(&mut self, bytes: &[u8], pool: &mut Pool) -> Result<(), NoRoom> {
        let last = self.rest.as_ref().map_or(Some(&self.head), |chain| chain.segments.last());
        let room = last.map_or(0, Segment::room);
        let (now, later) = bytes.split_at(room.min(bytes.len()));
        if !now.is_empty() {
            self.extend_from_slice(now)?;
        }
        for bytes in later.chunks(FRAME_DATA) {
            let mut frame = pool.take().ok_or(NoRoom)?;
            copy(bytes, &mut frame.bytes_mut()[HEADROOM..]);
            let chain = self.rest.get_or_insert_with(|| pool.take_chain());
            if chain.segments.is_full() {
                pool.give(frame);
                return Err(NoRoom);
            }
            // A segment is made only where nothing can go wrong any more: one that might come back is laid down in pieces and read
            // as a whole, which waits until all that was just copied has left the processor.
            chain.push(Segment::received(frame, bytes.len()));
        }
        Ok(())
    }

    /// Puts `n` bytes in front, from the headroom, and returns what [`Packet::head_mut`] then shows. What the new bytes hold
    /// is arbitrary.
    ///
    /// # Errors
    /// [`NoRoom`] when the headroom is shorter, or when the packet begins behind the bytes that are its own.
    #[inline]
    pub fn push_front(&mut self, n: usize) -> Result<&mut [u8], NoRoom> {
        self.head.push_front(n)?;
        Ok(self.head.bytes_mut())
    }

    /// Takes `n` bytes off the front of the first frame.
    ///
    /// # Errors
    /// [`NoRoom`] when the first frame has fewer.
    #[inline]
    pub fn pull_front(&mut self, n: usize) -> Result<(), NoRoom> {
        self.head.pull_front(n)
    }

    /// Appends a segment.
    ///
    /// # Errors
    /// The segment itself when the packet has [`MAX_FRAMES`] already.
    #[inline]
    pub fn push_segment(&mut self, segment: Segment, pool: &mut Pool) -> Result<(), Segment> {
        let chain = self.rest.get_or_insert_with(|| pool.take_chain());
        let len = segment.len();
        chain.segments.try_push(segment).map_err(arrayvec::CapacityError::element)?;
        chain.len += len;
        Ok(())
    }

    /// Appends a part of a frame that somebody else keeps.
    ///
    /// # Errors
    /// The part itself when the packet has [`MAX_FRAMES`] already.
    #[inline]
    pub fn push_part(&mut self, part: Part, pool: &mut Pool) -> Result<(), Part> {
        let chain = self.rest.get_or_insert_with(|| pool.take_chain());
        if chain.segments.is_full() {
            return Err(part);
        }
        chain.push(part.into_segment());
        Ok(())
    }

    /// Appends the frame of another packet, which has only that one, whoever keeps it, without its first `n` bytes.
    ///
    /// # Errors
    /// The other packet when it has more frames or fewer bytes, or when this one has [`MAX_FRAMES`] already.
    #[inline]
    pub fn append_rest(&mut self, other: Self, n: usize, pool: &mut Pool) -> Result<(), Self> {
        if other.frames() > 1 || other.head.len() < n || self.frames() == MAX_FRAMES {
            return Err(other);
        }
        let chain = self.rest.get_or_insert_with(|| pool.take_chain());
        // There is room: looked at above.
        chain.push(other.into_only_segment().without_front(n));
        Ok(())
    }

    /// Gives out what it is made of in order, for lending it piece by piece.
    pub fn into_pieces(self, pool: &mut Pool, mut each: impl FnMut(Piece, &mut Pool)) {
        each(self.head.into(), pool);
        if let Some(mut chain) = self.rest {
            for piece in chain.drain() {
                each(piece, pool);
            }
            pool.keep_chain(chain);
        }
    }

    /// Whether it is one frame, which nobody else keeps.
    #[inline]
    pub fn is_single(&self) -> bool {
        self.rest.is_none() && !self.head.is_part()
    }

    /// The packet's only segment; the packet itself when it has several, or somebody else keeps the frame.
    ///
    /// # Errors
    /// The packet.
    #[inline]
    pub fn into_single(self) -> Result<Segment, Self> {
        if self.is_single() { Ok(self.head) } else { Err(self) }
    }

    /// The segment of a packet that is known to have one alone: of another one the others would be lost.
    #[inline]
    pub(crate) fn into_only_segment(self) -> Segment {
        debug_assert!(self.rest.is_none(), "frames are lost");
        // There is none, and nothing to look at.
        std::mem::forget(self.rest);
        self.head
    }

    /// The frame of one that is [single](Packet::is_single).
    #[inline]
    pub(crate) fn into_only_frame(self) -> Frame {
        self.into_only_segment().into_frame()
    }
}
