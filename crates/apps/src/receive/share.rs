//! What of a stream each queue should have got, where several share it: so that loss is known by queue.
//!
//! The NIC decides by its flow which queue a packet comes by, so of a number that is missing alone nobody can say where it
//! should have come. But where a stream's flows take turns, as its probes say, number and flow go together: a queue notes
//! whose turns have come by it, a bit for each, and what else of these turns did not come was lost there. A flow of which
//! nothing came at all is no queue's, and one that came by two of them says nothing of either.
//!
//! All memory is there from the start, for [`MOST_TURNS`] turns of all streams together; streams beyond that have no shares.

use std::collections::BTreeMap;

use super::events::streams;
use super::sequence::{Counts, Order};
use super::worker::Figures;

/// Turns of all streams together that one queue can tell apart: those of four streams with as many as a probe can say, or of
/// many with fewer.
const MOST_TURNS: usize = 4 << 16;

/// Words with a bit for each.
pub(super) const WORDS: usize = MOST_TURNS / 64;

/// The turns that have come by a queue, of each of its streams.
pub(super) struct Shares {
    streams: Box<[Turns]>,
    /// The bits of all streams, and how many words have a stream.
    came: Box<[u64; WORDS]>,
    used: usize,
}

/// Whose turns of one stream have come.
#[derive(Clone, Copy, Debug, Default)]
struct Turns {
    /// How many there are; 0 when flows do not take turns, `None` before the first packet.
    of: Option<u16>,
    /// How many of them have not come yet.
    missing: u16,
    /// Its first word.
    first: usize,
    /// Where the last packet stood on the stream's count in this queue, and whose turn that was.
    place: u64,
    turn: u64,
    /// Damaged packets with numbers whose turns had not come by this queue: what is damaged may have led them here.
    strays: u64,
}

impl Turns {
    /// Whose turn it is at a place. A division is for places that are not just ahead.
    #[inline]
    fn turn_at(&self, place: u64, of: u64) -> u64 {
        let ahead = place.wrapping_sub(self.place);
        if ahead >= of || self.turn >= of {
            return place % of;
        }
        let next = self.turn + ahead;
        if next < of { next } else { next - of }
    }

    /// The word and the bit of a turn.
    #[inline]
    fn bit_of(&self, turn: u64) -> (usize, u64) {
        (self.first + (turn / 64) as usize, 1 << (turn % 64))
    }
}

impl Shares {
    /// Of so many streams.
    pub(super) fn new(streams: usize) -> Self {
        Self { streams: vec![Turns::default(); streams].into(), came: Box::new([0; WORDS]), used: 0 }
    }

    /// A packet of a stream, where so many flows take turns, came at this place of its count.
    #[inline]
    pub(super) fn note(&mut self, stream: usize, of: u16, place: u64) {
        let Some(turns) = self.streams.get_mut(stream) else { return };
        if turns.of != Some(of) {
            change(turns, of, &mut self.used);
        }
        // Nothing can change any more where all have come, as they do where a sender's queues are ours.
        if turns.missing == 0 {
            return;
        }
        let turn = turns.turn_at(place, of.into());
        (turns.place, turns.turn) = (place, turn);
        let (word, bit) = turns.bit_of(turn);
        if let Some(word) = self.came.get_mut(word) {
            turns.missing -= u16::from(*word & bit == 0);
            *word |= bit;
        }
    }

    /// So many packets of a stream came in order, the last one at this place.
    #[inline]
    pub(super) fn note_next(&mut self, stream: usize, packets: u64, place: u64) {
        let Some(turns) = self.streams.get(stream) else { return };
        let Some(of) = turns.of.filter(|_| turns.missing > 0) else { return };
        for back in (0..packets.min(of.into())).rev() {
            self.note(stream, of, place.saturating_sub(back));
        }
    }

    /// A damaged packet of a stream, with a number that stands at this place, came like this.
    #[cold]
    pub(super) fn note_damaged(&mut self, stream: usize, place: u64, order: Order) {
        let Some(turns) = self.streams.get_mut(stream) else { return };
        let Some(of @ 1..) = turns.of.map(u64::from) else { return };
        let (word, bit) = turns.bit_of(place % of);
        let is_known = self.came.get(word).is_some_and(|word| word & bit != 0);
        turns.strays += u64::from(!is_known && order != Order::Duplicate);
    }

    /// What of a stream came by this queue, for those who put the queues together; its bits go behind `came`.
    pub(super) fn publish(&self, stream: usize, part: &mut Part, came: &mut Vec<u64>) {
        let Some(turns) = self.streams.get(stream) else { return };
        let of = turns.of.unwrap_or(0);
        (part.turns, part.strays, part.came) = (of, turns.strays, came.len());
        came.extend_from_slice(self.came.get(turns.first..turns.first + words(of)).unwrap_or_default());
    }
}

/// Words that have bits of so many turns.
fn words(of: u16) -> usize {
    usize::from(of).div_ceil(64)
}

/// What packets say of the turns is new, or has changed: two generators with one stream, or somebody who makes it up. Then
/// nothing is known.
#[cold]
fn change(turns: &mut Turns, of: u16, used: &mut usize) {
    let has_room = *used + words(of) <= WORDS;
    *turns = match turns.of {
        None if has_room => {
            let first = std::mem::replace(used, *used + words(of));
            Turns { of: Some(of), missing: of, first, ..*turns }
        }
        _ => Turns { of: Some(0), missing: 0, ..*turns },
    };
}

/// What came of one stream by one queue.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Part {
    /// The queue's number on its port.
    pub(super) queue: usize,
    pub(super) stream: u16,
    pub(super) counts: Counts,
    /// Flows that take turns in it; 0 when they do not, or nobody noted it.
    turns: u16,
    strays: u64,
    /// Where the bits of the turns that came begin, among all of its worker's.
    came: usize,
}

/// A queue's part of a stream, and whose turns came.
type Share<'a> = (&'a Part, &'a [u64]);

impl Part {
    /// What came of a stream by a queue, without its turns.
    pub(super) fn new(queue: usize, stream: u16, counts: Counts) -> Self {
        Self { queue, stream, counts, ..Self::default() }
    }

    fn share<'a>(&'a self, came: &'a [u64]) -> Share<'a> {
        (self, came.get(self.came..self.came + words(self.turns)).unwrap_or_default())
    }
}

/// What was lost of a queue's turns, when this came of the stream by all queues.
fn lost((part, came): Share<'_>, stream: &Counts) -> u64 {
    let of = u64::from(part.turns).max(1);
    let (first, last) = stream.span_for(part.counts.base());
    let (begin, places) = (first % of, (last - first).saturating_add(1));
    // The places behind the last whole round, which may go beyond the last turn.
    let end = begin + places % of;
    let rest =
        ones_below(came, end.min(of)) - ones_below(came, begin) + ones_below(came, end.saturating_sub(of));
    let expected = (places / of).saturating_mul(ones_below(came, of)).saturating_add(rest);
    expected.saturating_sub(part.counts.received.saturating_sub(part.strays))
}

/// Bits that are set among the first so many.
fn ones_below(came: &[u64], bits: u64) -> u64 {
    let whole = (bits / 64) as usize;
    let rest = came.get(whole).map_or(0, |word| word & ((1 << (bits % 64)) - 1));
    let whole = came.iter().take(whole).map(|word| u64::from(word.count_ones())).sum::<u64>();
    whole + u64::from(rest.count_ones())
}

/// Whether each turn of a stream came by one queue only, as far as that can be told.
fn are_apart(shares: &[(u64, Share<'_>)], stream: &Counts) -> bool {
    let mut all = vec![0; words(u16::MAX)];
    let mut of = None;
    shares.iter().all(|(_, (part, came))| {
        let is_apart = came.iter().zip(&mut all).all(|(came, all)| {
            let is_apart = *came & *all == 0;
            *all |= came;
            is_apart
        });
        // A queue that began on the other side of the wrap would have other bits for the same turns.
        let is_alike = *of.get_or_insert(part.turns) == part.turns
            && stream.span_for(part.counts.base()) == stream.span_for(stream.base());
        is_apart && is_alike && part.turns > 0
    })
}

/// What came of each stream by all queues, as it was when parts and flows were published: by when that was, with those of
/// the workers who had published theirs by then. What a worker publishes later holds packets that the others' do not.
pub(super) struct Ends(BTreeMap<u64, BTreeMap<u16, Counts>>);

impl Ends {
    pub(super) fn of(figures: &[Figures]) -> Self {
        let mut figures: Vec<&Figures> = figures.iter().collect();
        figures.sort_by_key(|worker| worker.parts_at);
        let mut ends = BTreeMap::new();
        let mut streams = BTreeMap::<u16, Counts>::new();
        for worker in figures {
            for part in &worker.parts {
                streams.entry(part.stream).or_default().merge(&part.counts);
            }
            ends.insert(worker.parts_at, streams.clone());
        }
        Self(ends)
    }

    /// A stream as it was then.
    pub(super) fn of_stream(&self, at: u64, stream: u16) -> Option<&Counts> {
        self.0.range(..=at).next_back()?.1.get(&stream)
    }

    /// The streams; `None` while the workers' figures are not of one moment.
    pub(super) fn of_all(&self) -> Option<&BTreeMap<u16, Counts>> {
        self.0.values().next().filter(|_| self.0.len() == 1)
    }
}

/// What was lost of each stream, as it is known.
#[derive(Debug)]
pub(super) struct Lost {
    streams: BTreeMap<u16, u64>,
    shared: bool,
}

impl Lost {
    /// Nothing is known yet; of streams that may be `shared` by several queues.
    pub(super) fn new(shared: bool) -> Self {
        Self { streams: BTreeMap::new(), shared }
    }

    /// Whether a stream may come by several queues.
    pub(super) fn is_shared(&self) -> bool {
        self.shared
    }

    /// Takes what the workers show. What one has seen later than another would look lost until the other shows more, so of
    /// several queues nothing new is known while their figures are not of one moment.
    pub(super) fn look(&mut self, figures: &[Figures]) {
        let lost = |(id, counts): (&u16, &Counts)| (*id, counts.lost());
        if !self.shared {
            self.streams = streams(figures).iter().map(|(id, stream)| lost((id, &stream.counts))).collect();
        } else if let Some(ends) = Ends::of(figures).of_all() {
            self.streams = ends.iter().map(lost).collect();
        }
    }

    /// Of one stream; `None` where it is not known.
    pub(super) fn of(&self, stream: u16) -> Option<u64> {
        self.streams.get(&stream).copied()
    }

    /// Of all streams together.
    pub(super) fn of_all(&self) -> u64 {
        self.streams.values().fold(0, |sum, lost| sum.saturating_add(*lost))
    }
}

/// What was lost by each queue; a queue is not in it when that is not known.
pub(super) fn lost_by_queue(figures: &[Figures]) -> BTreeMap<usize, u64> {
    let queues = figures.iter().flat_map(|worker| &worker.queues);
    let mut lost_by: BTreeMap<usize, u64> = queues.map(|queue| (queue.number, 0)).collect();
    let mut streams = BTreeMap::<u16, Vec<(u64, Share<'_>)>>::new();
    for worker in figures {
        for part in &worker.parts {
            let share = (worker.parts_at, part.share(&worker.came));
            streams.entry(part.stream).or_default().push(share);
        }
    }
    let ends = Ends::of(figures);
    for (id, parts) in streams {
        let are_apart = ends.of_stream(u64::MAX, id).is_some_and(|stream| are_apart(&parts, stream));
        for (at, share) in parts {
            let queue = share.0.queue;
            let lost = ends.of_stream(at, id).filter(|_| are_apart).map(|stream| lost(share, stream));
            match (lost, lost_by.get_mut(&queue)) {
                (Some(lost), Some(sum)) => *sum = sum.saturating_add(lost),
                _ => drop(lost_by.remove(&queue)),
            }
        }
    }
    lost_by
}

#[cfg(test)]
mod tests;
