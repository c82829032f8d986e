//! Bytes that wait to be sent or acknowledged, in frames: what is sent once more is found by division. Packets carry copies of
//! them, or parts of the frames themselves, or are these frames with headers in front.

use bywash_frame::{FRAME_SIZE, HEADROOM, Kept, MAX_FRAMES, NoRoom, Packet, Pool, copy};
use bywash_wire::checksum::Sum;

use super::receive_buffer::length;
use crate::queue::Queue;
use crate::stack::Share;

/// How bytes are to lie in the frames of a buffer, from the first byte that comes to an empty one on. If that is more than a
/// message, and frames are scarce, they are filled.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape {
    /// Bytes of each frame.
    room: u16,
    /// Whether their checksum is made while they are copied.
    sums: bool,
}

/// Bytes in front of those of a frame that has room for headers: a packet begins there that begins where others do, and they begin
/// with a line of the cache.
pub(super) const FRONT: usize = HEADROOM + 64;

/// Fewest bytes of a frame with room for headers: frames are short when half of each is wasted. And most.
#[expect(clippy::cast_possible_truncation, reason = "places in a frame")]
const FEWEST: u32 = FRAME_SIZE as u32 / 2;
#[expect(clippy::cast_possible_truncation, reason = "places in a frame")]
const MOST: u32 = (FRAME_SIZE - FRONT) as u32;

impl Shape {
    /// Frames are filled.
    #[expect(clippy::cast_possible_truncation, reason = "2304")]
    pub(super) const FULL: Self = Self { room: FRAME_SIZE as u16, sums: false };

    /// Each frame has a segment of so many bytes, and room for headers in front: it can go out as it is. A port may make checksums
    /// of packets.
    #[inline]
    pub(super) fn of_segments(size: u32, summed_by_port: bool) -> Self {
        if size.wrapping_sub(FEWEST) > MOST - FEWEST {
            return Self::FULL;
        }
        #[expect(clippy::cast_possible_truncation, reason = "no more than a frame has")]
        let room = size as u16;
        Self { room, sums: !summed_by_port }
    }
}

/// Bytes that are put aside in front of each frame's `room`.
#[inline]
fn front_of(room: usize) -> usize {
    if room == FRAME_SIZE { 0 } else { FRONT }
}

/// A queue of bytes. All frames but the last are full, so byte `n` lies in frame `(front + n) / room`.
#[derive(Debug)]
pub(super) struct SendBuffer {
    frames: Queue<Kept>,
    /// Bytes of the first frame that are gone.
    front: u16,
    /// Bytes of each frame.
    room: u16,
    len: u32,
}

impl Default for SendBuffer {
    fn default() -> Self {
        Self { frames: Queue::default(), front: 0, room: Shape::FULL.room, len: 0 }
    }
}

impl SendBuffer {
    pub(super) fn len(&self) -> usize {
        self.len as usize
    }

    #[inline]
    fn room(&self) -> usize {
        self.room.into()
    }

    /// The number of the frame in which byte `n` lies, and where in it.
    #[inline]
    fn place(&self, n: usize) -> (usize, usize) {
        let (n, room) = (u32::from(self.front) + length(n), u32::from(self.room));
        ((n / room) as usize, (n % room) as usize)
    }

    /// How many of `len` bytes from `from` on there are.
    #[inline]
    fn within(&self, from: usize, len: usize) -> usize {
        len.min(self.len().saturating_sub(from))
    }

    /// Bytes of frames in use.
    pub(super) fn cost(&self) -> usize {
        self.frames.len() * FRAME_SIZE
    }

    /// Most bytes that a packet can carry in parts of the frames.
    pub(super) fn most_in_parts(&self) -> u32 {
        // Behind the headers; and the first part may be the end of a frame.
        length(MAX_FRAMES - 2) * u32::from(self.room)
    }

    /// Appends bytes and says how many: fewer when frames run out, or those of all send buffers. The shape is for a buffer that has
    /// none yet.
    #[inline]
    pub(super) fn write(
        &mut self,
        mut bytes: &[u8],
        shape: Shape,
        share: &mut Share,
        pool: &mut Pool,
    ) -> usize {
        if self.len == 0 && (1..usize::from(shape.room)).contains(&bytes.len()) {
            return self.write_first(bytes, shape, pool);
        }
        self.begin(shape, share, pool);
        // Of what fills no frame by itself the sum is of no use.
        let whole = if shape.sums && self.room < Shape::FULL.room { self.room() } else { usize::MAX };
        self.append(bytes.len(), share, pool, |place| {
            let (now, later) = bytes.split_at(place.len().min(bytes.len()));
            bytes = later;
            if now.len() == whole {
                return (now.len(), Some(Sum::new().copied(now, &mut place[..now.len()])));
            }
            copy(now, place);
            (now.len(), None)
        })
    }

    /// Writes to a buffer that has no frame yet less than a frame of bytes: a message, nearly always.
    #[inline]
    fn write_first(&mut self, bytes: &[u8], shape: Shape, pool: &mut Pool) -> usize {
        let Some(mut frame) = pool.take() else { return 0 };
        self.room = shape.room;
        let front = front_of(self.room());
        copy(bytes, &mut frame.bytes_mut()[front..]);
        self.frames.push_made(|| Kept::behind(frame, front));
        self.len = length(bytes.len());
        bytes.len()
    }

    /// Appends what `write` writes, up to `most` bytes, and says how many. It is handed one piece of memory after the other and
    /// says how many bytes it has written to each: fewer than there are end it, and so does the last frame that there is for it.
    #[inline]
    pub(super) fn fill(
        &mut self,
        most: usize,
        shape: Shape,
        share: &mut Share,
        pool: &mut Pool,
        mut write: impl FnMut(&mut [u8]) -> usize,
    ) -> usize {
        self.begin(shape, share, pool);
        self.append(most, share, pool, |place| (write(place), None))
    }

    /// Gives an empty buffer its shape.
    #[inline]
    fn begin(&mut self, shape: Shape, share: &Share, pool: &Pool) {
        if self.len == 0 {
            self.room = if share.is_scarce(pool) { Shape::FULL.room } else { shape.room };
        }
    }

    /// As [`SendBuffer::fill`]; `write` may say what the bytes sum to as well, if they fill a frame.
    #[inline]
    fn append(
        &mut self,
        most: usize,
        share: &mut Share,
        pool: &mut Pool,
        mut write: impl FnMut(&mut [u8]) -> (usize, Option<Sum>),
    ) -> usize {
        let (mut done, size) = (0, self.room());
        let mut free = self.frames.len() * size - usize::from(self.front) - self.len();
        while done < most {
            if free == 0 {
                let held = self.frames.len();
                let granted = share.grants(held, pool);
                let Some(frame) = granted.then(|| pool.take()).flatten() else { break };
                self.frames.push_back(Kept::behind(frame, front_of(size)));
                share.queued += usize::from(held > 0);
                free = size;
            }
            let Some(frame) = self.frames.back_mut() else { break };
            let room = (most - done).min(free);
            let (n, sum) = write(&mut frame.bytes_mut(size - free)[..room]);
            let n = n.min(room);
            if n == free {
                note_sum(frame, sum);
            }
            (done, free) = (done + n, free - n);
            if n < room {
                break;
            }
        }
        self.len += length(done);
        if self.len == 0 {
            self.clear(share, pool);
        }
        done
    }

    /// The number of the frame that `len` bytes from `from` on fill, if that could be a packet.
    pub(super) fn first_whole(&self, from: usize, len: usize) -> Option<usize> {
        match self.place(from) {
            (frame, 0) if len == self.room() && len < FRAME_SIZE => Some(frame),
            _ => None,
        }
    }

    /// The frame with a number, if it can be a packet: it is full, has [`FRONT`] bytes in front, and has not been one. With it goes what
    /// its bytes sum to, if that is known.
    #[inline]
    pub(super) fn whole_frame(&mut self, frame: usize) -> Option<(&mut Kept, Option<Sum>)> {
        if (frame + 1) * self.room() > usize::from(self.front) + self.len() {
            return None;
        }
        let frame = self.frames.get_mut(frame)?;
        let front = frame.front_mut().first_chunk::<FRONT>()?;
        let noted = u32::from_ne_bytes(*front.last_chunk()?);
        Some((frame, u16::try_from(noted).ok().map(|sum| Sum::new().word(sum))))
    }

    /// Bytes `from..from + len`, if the buffer's only frame holds them: nearly every message.
    #[inline]
    pub(super) fn in_one_frame(&self, from: usize, len: usize) -> Option<&[u8]> {
        self.frames.only()?.bytes().get(usize::from(self.front) + from..)?.get(..len)
    }

    /// Bytes `from..from + len`, frame by frame.
    #[inline]
    pub(super) fn slices(&self, from: usize, len: usize) -> impl Iterator<Item = &[u8]> {
        let (mut left, (mut frame, mut offset)) = (self.within(from, len), self.place(from));
        std::iter::from_fn(move || {
            if left == 0 {
                return None;
            }
            let bytes = &self.frames[frame].bytes()[offset..self.room()];
            let slice = &bytes[..left.min(bytes.len())];
            (frame, offset, left) = (frame + 1, 0, left - slice.len());
            Some(slice)
        })
    }

    /// Appends bytes `from..from + len` to a packet where they are. The packet may have some of them when it has no room for all.
    pub(super) fn append_to(
        &mut self,
        packet: &mut Packet,
        from: usize,
        len: usize,
        pool: &mut Pool,
    ) -> Result<(), NoRoom> {
        let (mut left, (mut frame, mut start)) = (self.within(from, len), self.place(from));
        let room = self.room();
        while left > 0 {
            let part = self.frames[frame].part(start, left.min(room - start)).ok_or(NoRoom)?;
            left -= part.len();
            if let Err(part) = packet.push_part(part, pool) {
                pool.give_part(part);
                return Err(NoRoom);
            }
            (frame, start) = (frame + 1, 0);
        }
        Ok(())
    }

    /// Takes `n` bytes off the front: they have arrived.
    #[inline(always)]
    pub(super) fn consume(&mut self, n: usize, share: &mut Share, pool: &mut Pool) {
        if n < self.len() {
            return self.consume_part(n, share, pool);
        }
        if self.frames.only().is_none() {
            self.clear(share, pool);
        } else if let Some(frame) = self.frames.take_only() {
            pool.give_kept(frame);
        }
        (self.front, self.len) = (0, 0);
    }

    fn consume_part(&mut self, n: usize, share: &mut Share, pool: &mut Pool) {
        self.len -= length(n);
        let mut front = usize::from(self.front) + n;
        while front >= self.room() {
            front -= self.room();
            // Another one is left, or all would be gone.
            if let Some(frame) = self.frames.pop_front() {
                share.queued -= 1;
                pool.give_kept(frame);
            }
        }
        #[expect(clippy::cast_possible_truncation, reason = "less than a frame has")]
        let front = front as u16;
        self.front = front;
    }

    /// Gives all frames back.
    #[inline]
    pub(super) fn clear(&mut self, share: &mut Share, pool: &mut Pool) {
        share.queued -= self.frames.len().saturating_sub(1);
        while let Some(frame) = self.frames.pop_front() {
            pool.give_kept(frame);
        }
        (self.front, self.len) = (0, 0);
    }
}

/// Notes in front of a frame's bytes what all of them sum to, where headers will be: nobody else has a place for it.
#[inline]
fn note_sum(frame: &mut Kept, sum: Option<Sum>) {
    if let Some(place) = frame.front_mut().last_chunk_mut() {
        *place = sum.map_or(u32::MAX, |sum| sum.partial().into()).to_ne_bytes();
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use bywash_frame::Arena;
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn it_is_a_queue_of_bytes(
            steps in proptest::collection::vec((0usize..6000, 0usize..6000, any::<bool>()), 1..30),
            size in prop_oneof![Just(1448u32), 1100..2100u32],
            summed: bool,
        ) {
            let mut pool = Arena::new(vec![0; 1 << 20]).unwrap().pool(400).unwrap();
            let (mut buffer, mut share, mut model) = (SendBuffer::default(), Share::new(), VecDeque::<u8>::new());
            let shape = Shape::of_segments(size, summed);
            let mut next = 0u8;
            for (write, consume, in_place) in steps {
                let bytes: Vec<u8> = (0..write).map(|_| { next = next.wrapping_mul(5).wrapping_add(1); next }).collect();
                let written = if in_place {
                    // A thousand bytes at most in each piece: in a longer one they are the last.
                    let mut at = 0;
                    buffer.fill(write, shape, &mut share, &mut pool, |place| {
                        let n = place.len().min(1000).min(bytes.len() - at);
                        place[..n].copy_from_slice(&bytes[at..at + n]);
                        at += n;
                        n
                    })
                } else {
                    buffer.write(&bytes, shape, &mut share, &mut pool)
                };
                model.extend(&bytes[..written]);
                for frame in 0..buffer.frames.len() {
                    let room = buffer.room();
                    let Some((kept, Some(sum))) = buffer.whole_frame(frame) else { continue };
                    prop_assert_eq!(sum.checksum(), Sum::new().bytes(&kept.bytes()[..room]).checksum());
                }
                let from = consume.min(model.len()) / 2;
                let part = buffer.slices(from, 3000).collect::<Vec<_>>().concat();
                prop_assert_eq!(part, model.iter().skip(from).take(3000).copied().collect::<Vec<_>>());
                buffer.consume(consume, &mut share, &mut pool);
                model.drain(..consume.min(model.len()));
                prop_assert_eq!(buffer.len(), model.len());
                prop_assert_eq!(share.queued, (400 - pool.free()).saturating_sub(1));
            }
            buffer.clear(&mut share, &mut pool);
            prop_assert_eq!((pool.free(), share.queued), (400, 0));
        }
    }

    #[test]
    fn a_frame_is_a_packet_once_it_is_full_and_only_once() {
        let mut pool = Arena::new(vec![0; 100 * FRAME_SIZE]).unwrap().pool(100).unwrap();
        let (mut buffer, mut share, bytes) = (SendBuffer::default(), Share::new(), vec![0x12; 5000]);
        let shape = Shape::of_segments(1400, false);
        // The first frame is filled by two pieces, whose sum nobody has.
        for piece in [&bytes[..100], &bytes[100..4199]] {
            assert_eq!(buffer.write(piece, shape, &mut share, &mut pool), piece.len());
        }
        let whole = [1400, 1399].map(|len| buffer.first_whole(1400, len));
        assert_eq!((whole, buffer.first_whole(1401, 1400)), ([Some(1), None], None));
        let known = |buffer: &mut SendBuffer, frame| buffer.whole_frame(frame).map(|(_, sum)| sum.is_some());
        assert_eq!([0, 1, 2, 3].map(|n| known(&mut buffer, n)), [Some(false), Some(true), None, None]);
        buffer.write(&bytes[..1], shape, &mut share, &mut pool);
        assert_eq!(known(&mut buffer, 2), Some(false));
        let packet = buffer.whole_frame(1).and_then(|(frame, _)| frame.packet(54, 1400)).unwrap();
        assert_eq!((&packet.head()[54..], known(&mut buffer, 1)), (&bytes[..1400], None));
        pool.give_packet(packet);
        assert_eq!(known(&mut buffer, 1), None);
        // Segments of another size lie across frames until there are none left.
        buffer.write(&bytes, Shape::of_segments(1300, false), &mut share, &mut pool);
        assert_eq!((buffer.first_whole(2800, 1300), buffer.first_whole(2800, 1400)), (None, Some(2)));
        buffer.consume(9200, &mut share, &mut pool);
        buffer.write(&bytes, Shape::FULL, &mut share, &mut pool);
        assert_eq!((buffer.first_whole(0, FRAME_SIZE), pool.free()), (None, 97));
        buffer.clear(&mut share, &mut pool);
        // Others hold more than half of what there is for all.
        for (others, whole) in [(25, Some(0)), (26, None)] {
            share.queued = others;
            buffer.write(&bytes, shape, &mut share, &mut pool);
            assert_eq!(buffer.first_whole(0, 1400), whole);
            buffer.clear(&mut share, &mut pool);
        }
        assert_eq!(pool.free(), 100);
    }

    #[test]
    fn each_may_hold_as_much_as_is_left_and_its_first_frame_always() {
        let mut pool = Arena::new(vec![0; 400 * FRAME_SIZE]).unwrap().pool(400).unwrap();
        for stacks in [1, 2] {
            let mut share = Share { stacks, ..Share::new() };
            let most = pool.arena().frames() / (2 * stacks);
            let mut buffers: Vec<SendBuffer> = (0..12).map(|_| SendBuffer::default()).collect();
            let mut left = most;
            for buffer in &mut buffers {
                let frames =
                    buffer.write(&[7; 400 * FRAME_SIZE], Shape::FULL, &mut share, &mut pool) / FRAME_SIZE;
                assert_eq!(frames, 1 + left.div_ceil(2));
                left /= 2;
            }
            assert_eq!((left, share.queued), (0, most));
            // What one gives back another may have.
            buffers[0].clear(&mut share, &mut pool);
            let more = buffers[11].write(&[7; 20 * FRAME_SIZE], Shape::FULL, &mut share, &mut pool);
            assert_eq!(more, 20 * FRAME_SIZE);
            buffers.iter_mut().for_each(|buffer| buffer.clear(&mut share, &mut pool));
            assert_eq!((pool.free(), share.queued), (400, 0));
        }
    }
}
