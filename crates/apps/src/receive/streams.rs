//! The generators' streams that one queue receives.
//!
//! Order and copies are judged by queue: packets of one flow always come by the same one, and in which order two queues
//! were filled nobody knows. So are losses, as far as a queue can know; what one queue misses another may have.
//!
//! All memory is there from the start, whatever arrives: [`MOST_STREAMS`] streams are told apart, the first ones that
//! come. Somebody who makes up streams takes places that others could have had, and nothing else; packets without a
//! place are counted.

use super::sequence::{Counts, Order, Window};
use super::share::{Part, Shares};

/// Streams that one queue can tell apart: more than any generator has queues, over many runs.
pub(super) const MOST_STREAMS: usize = 256;

/// One stream as one queue sees it.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Stream {
    /// Its number, chosen by the generator.
    pub(super) id: u16,
    pub(super) counts: Counts,
    /// Packets that say they are of it and are damaged. What was damaged may be just that.
    pub(super) damaged: u64,
    /// How long the last packet in order took, in nanoseconds.
    last_age: Option<i64>,
}

impl Stream {
    /// The change since the last packet that came in order, for one that does too.
    #[inline]
    pub(super) fn jitter(&mut self, age: i64) -> Option<u64> {
        self.last_age.replace(age).map(|last| age.abs_diff(last))
    }
}

/// The streams met so far.
pub(super) struct Streams {
    /// By id: one more than the index in `streams`, or 0.
    index: Box<[u16; 1 << 16]>,
    streams: Box<[(Stream, Window)]>,
    used: usize,
    /// What of them this queue is to get; `None` where it is the only one.
    shares: Option<Shares>,
}

impl Streams {
    /// Of one of several queues, if they are `shared`.
    pub(super) fn new(shared: bool) -> Self {
        Self {
            index: Box::new([0; 1 << 16]),
            streams: vec![Default::default(); MOST_STREAMS].into(),
            used: 0,
            shares: shared.then(|| Shares::new(MOST_STREAMS)),
        }
    }

    /// Those met so far.
    pub(super) fn all(&self) -> impl Iterator<Item = &Stream> {
        self.streams[..self.used].iter().map(|(stream, _)| stream)
    }

    /// A packet with this number came by the stream with this id, in which so many flows take turns. `None` when that has
    /// no place.
    #[inline(always)]
    pub(super) fn note(&mut self, id: u16, turns: u16, number: u32) -> Option<(&mut Stream, Order)> {
        let index = self.place(id)?;
        let (stream, window) = self.streams.get_mut(index)?;
        let order = stream.counts.note(window, number);
        if let Some(shares) = &mut self.shares {
            shares.note(index, turns, stream.counts.place_of(number).1);
        }
        Some((stream, order))
    }

    /// A damaged packet with this number came by the stream with this id. `None` when that has no place.
    #[cold]
    pub(super) fn note_damaged(&mut self, id: u16, number: u32) -> Option<(&mut Stream, Order)> {
        let index = self.place(id)?;
        let (stream, window) = self.streams.get_mut(index)?;
        let order = stream.counts.damaged(|counts| counts.note(window, number));
        if let Some(shares) = &mut self.shares {
            shares.note_damaged(index, stream.counts.place_of(number).1, order);
        }
        Some((stream, order))
    }

    /// Where the stream with this id is, which is met now if it was not before.
    #[inline(always)]
    fn place(&mut self, id: u16) -> Option<usize> {
        match self.index[usize::from(id)] {
            0 => self.add(id),
            index => Some(usize::from(index) - 1),
        }
    }

    /// So many packets came by a stream that has been met, in order after its last one.
    #[inline]
    pub(super) fn note_next(&mut self, id: u16, n: u64) {
        let index = usize::from(self.index[usize::from(id)]).wrapping_sub(1);
        if let Some((stream, window)) = self.streams.get_mut(index) {
            stream.counts.note_next(window, n);
            if let Some(shares) = &mut self.shares {
                shares.note_next(index, n, stream.counts.highest());
            }
        }
    }

    /// What came of each stream by this queue, for those who put the queues together: behind `parts`, and the bits of its
    /// turns behind `came`. Nothing is allocated where there is room.
    pub(super) fn publish(&self, queue: usize, parts: &mut Vec<Part>, came: &mut Vec<u64>) {
        for (index, stream) in self.all().enumerate() {
            let mut part = Part::new(queue, stream.id, stream.counts);
            if let Some(shares) = &self.shares {
                shares.publish(index, &mut part, came);
            }
            parts.push(part);
        }
    }

    /// The stream with this id, if it has been met.
    pub(super) fn get(&self, id: u16) -> Option<&Stream> {
        let index = usize::from(self.index[usize::from(id)]).checked_sub(1)?;
        self.streams.get(index).map(|(stream, _)| stream)
    }

    /// The same, to be changed.
    pub(super) fn known(&mut self, id: u16) -> Option<&mut Stream> {
        let index = usize::from(self.index[usize::from(id)]).checked_sub(1)?;
        self.streams.get_mut(index).map(|(stream, _)| stream)
    }

    #[cold]
    fn add(&mut self, id: u16) -> Option<usize> {
        self.streams.get_mut(self.used)?.0.id = id;
        self.used += 1;
        self.index[usize::from(id)] = u16::try_from(self.used).ok()?;
        Some(self.used - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_beyond_what_can_be_told_apart_are_none() {
        let mut streams = Streams::new(false);
        for id in 0..300_u16 {
            let met = streams.note(id * 200, 0, 7).map(|(stream, _)| stream.id);
            assert_eq!(met, (id < 256).then_some(id * 200));
        }
        assert_eq!(
            streams.note(0, 0, 8).map(|(stream, order)| (stream.id, order)),
            Some((0, Order::Highest))
        );
        assert_eq!(streams.known(200).map(|stream| stream.id), Some(200));
        assert!(streams.known(201).is_none() && streams.known(299 * 200).is_none());
        assert_eq!(streams.all().count(), 256);
    }

    #[test]
    fn jitter_is_the_change_from_one_packet_to_the_next() {
        let mut stream = Stream::default();
        let jitters: Vec<_> = [100, 130, -20].map(|age| stream.jitter(age)).into();
        assert_eq!(jitters, [None, Some(30), Some(150)]);
    }
}
