//! Bytes that wait to be sent or acknowledged, in frames: what is sent once more is found by division. Packets carry copies of
//! them, or parts of the frames themselves.

use bywash_frame::{FRAME_SIZE, Kept, NoRoom, Packet, Pool, copy};

use super::receive_buffer::length;
use crate::queue::Queue;
use crate::stack::Share;

/// A queue of bytes. All frames but the last are full, so byte `n` lies in frame `(front + n) / FRAME_SIZE`.
#[derive(Debug, Default)]
pub(super) struct SendBuffer {
    frames: Queue<Kept>,
    /// Bytes of the first frame that are gone.
    front: u32,
    len: u32,
}

impl SendBuffer {
    pub(super) fn len(&self) -> usize {
        self.len as usize
    }

    /// The number of the frame in which byte `n` lies, and where in it.
    #[inline]
    fn place(&self, n: usize) -> (usize, usize) {
        let n = self.front as usize + n;
        (n / FRAME_SIZE, n % FRAME_SIZE)
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

    /// Appends bytes and says how many: fewer when frames run out, or those of all send buffers.
    #[inline]
    pub(super) fn write(&mut self, mut bytes: &[u8], share: &mut Share, pool: &mut Pool) -> usize {
        if self.len == 0 && (1..=FRAME_SIZE).contains(&bytes.len()) {
            return self.write_first(bytes, pool);
        }
        self.fill(bytes.len(), share, pool, |place| {
            let (now, later) = bytes.split_at(place.len().min(bytes.len()));
            copy(now, place);
            bytes = later;
            now.len()
        })
    }

    /// Writes to a buffer that has no frame yet, at most a frame of bytes: a message, nearly always.
    #[inline]
    fn write_first(&mut self, bytes: &[u8], pool: &mut Pool) -> usize {
        let Some(mut frame) = pool.take() else { return 0 };
        copy(bytes, frame.bytes_mut());
        self.frames.push_made(|| Kept::new(frame));
        self.len = length(bytes.len());
        bytes.len()
    }

    /// Appends what `write` writes, up to `most` bytes, and says how many. It is handed one piece of memory after the other and
    /// says how many bytes it has written to each: fewer than there are end it, and so does the last frame that there is for it.
    #[inline]
    pub(super) fn fill(
        &mut self,
        most: usize,
        share: &mut Share,
        pool: &mut Pool,
        mut write: impl FnMut(&mut [u8]) -> usize,
    ) -> usize {
        let mut done = 0;
        let mut free = self.frames.len() * FRAME_SIZE - self.front as usize - self.len();
        while done < most {
            if free == 0 {
                let held = self.frames.len();
                let granted = share.grants(held, pool);
                let Some(frame) = granted.then(|| pool.take()).flatten() else { break };
                self.frames.push_back(Kept::new(frame));
                share.queued += usize::from(held > 0);
                free = FRAME_SIZE;
            }
            let Some(frame) = self.frames.back_mut() else { break };
            let room = (most - done).min(free);
            let n = write(&mut frame.bytes_mut(FRAME_SIZE - free)[..room]).min(room);
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

    /// Bytes `from..from + len`, if the buffer's only frame holds them: nearly every message.
    #[inline]
    pub(super) fn in_one_frame(&self, from: usize, len: usize) -> Option<&[u8]> {
        self.frames.only()?.bytes().get(self.front as usize + from..)?.get(..len)
    }

    /// Bytes `from..from + len`, frame by frame.
    #[inline]
    pub(super) fn slices(&self, from: usize, len: usize) -> impl Iterator<Item = &[u8]> {
        let (mut left, (mut frame, mut offset)) = (self.within(from, len), self.place(from));
        std::iter::from_fn(move || {
            if left == 0 {
                return None;
            }
            let bytes = &self.frames[frame].bytes()[offset..];
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
        while left > 0 {
            let part = self.frames[frame].part(start, left.min(FRAME_SIZE - start)).ok_or(NoRoom)?;
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
        let mut front = self.front as usize + n;
        while front >= FRAME_SIZE {
            front -= FRAME_SIZE;
            // Another one is left, or all would be gone.
            if let Some(frame) = self.frames.pop_front() {
                share.queued -= 1;
                pool.give_kept(frame);
            }
        }
        self.front = length(front);
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
        ) {
            let mut pool = Arena::new(vec![0; 1 << 20]).unwrap().pool(400).unwrap();
            let (mut buffer, mut share, mut model) = (SendBuffer::default(), Share::new(), VecDeque::<u8>::new());
            let mut next = 0u8;
            for (write, consume, in_place) in steps {
                let bytes: Vec<u8> = (0..write).map(|_| { next = next.wrapping_mul(5).wrapping_add(1); next }).collect();
                let written = if in_place {
                    // A thousand bytes at most in each piece: in a longer one they are the last.
                    let mut at = 0;
                    buffer.fill(write, &mut share, &mut pool, |place| {
                        let n = place.len().min(1000).min(bytes.len() - at);
                        place[..n].copy_from_slice(&bytes[at..at + n]);
                        at += n;
                        n
                    })
                } else {
                    buffer.write(&bytes, &mut share, &mut pool)
                };
                model.extend(&bytes[..written]);
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
    fn each_may_hold_as_much_as_is_left_and_its_first_frame_always() {
        let mut pool = Arena::new(vec![0; 400 * FRAME_SIZE]).unwrap().pool(400).unwrap();
        for stacks in [1, 2] {
            let mut share = Share { stacks, ..Share::new() };
            let most = pool.arena().frames() / (2 * stacks);
            let mut buffers: Vec<SendBuffer> = (0..12).map(|_| SendBuffer::default()).collect();
            let mut left = most;
            for buffer in &mut buffers {
                let frames = buffer.write(&[7; 400 * FRAME_SIZE], &mut share, &mut pool) / FRAME_SIZE;
                assert_eq!(frames, 1 + left.div_ceil(2));
                left /= 2;
            }
            assert_eq!((left, share.queued), (0, most));
            // What one gives back another may have.
            buffers[0].clear(&mut share, &mut pool);
            let more = buffers[11].write(&[7; 20 * FRAME_SIZE], &mut share, &mut pool);
            assert_eq!(more, 20 * FRAME_SIZE);
            buffers.iter_mut().for_each(|buffer| buffer.clear(&mut share, &mut pool));
            assert_eq!((pool.free(), share.queued), (400, 0));
        }
    }
}
