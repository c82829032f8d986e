//! Making packets by a plan: what one worker does between the clock and its TX queue.
//!
//! A batch is made column by column: first the heads of all packets, then each varying field in all of them, then the
//! checksums. So what a field is, and where it lies, is asked once per batch, and a field costs a packet a few
//! instructions. A checksum is the sum over what never changes, worked out before, and what was patched in (RFC 1071,
//! RFC 1624).
//!
//! All that varies lies in a packet's first frame. What follows in others is copied there for each packet, as nobody knows
//! which frame will be whose; so packets of one frame, which find it prepared, are not slowed down by longer ones.

use bywash_port::frame::{BATCH, Batch, FRAME_DATA, Frame, HEADROOM, Packet, Pool, Segment};

use super::plan::{HEADS, Patch, Plan, Variant};
use super::series::{self, Sequence, Series};
use super::share::{Cursor, Share};
use crate::probe::{CHECKED, PROBE, Probe};

/// Makes one worker's packets.
pub(super) struct Maker {
    plan: Plan,
    stream: u16,
    flows: u16,
    sequence: u32,
    /// Where each patch is, and where it began.
    cursors: Box<[Cursor]>,
    starts: Box<[Cursor]>,
    /// Packets until all cursors begin anew, and how many that are each time.
    left: u64,
    circle: u64,
    /// Which size is next.
    size: usize,
    /// The first ones of a batch's packets, while it is made.
    frames: Vec<Frame>,
    /// Those that follow, of packets that are longer than one.
    others: Vec<Frame>,
    /// Frames of the longest packet.
    most_frames: usize,
    columns: Box<Columns>,
}

/// What is known of each packet of a batch.
struct Columns {
    /// What was just patched in adds so much to a sum.
    added: [u32; BATCH],
    ip_sums: [u32; BATCH],
    sums: [u32; BATCH],
    variants: [Variant; BATCH],
}

impl Maker {
    /// Makes the packets of worker `worker` of `workers`, who take turns; its probes are of this stream.
    pub(super) fn new(plan: Plan, worker: (u64, u64), stream: u16) -> Self {
        let Share { plan, cursors, circle, size, flows } = Share::new(plan, worker);
        Self {
            stream,
            flows,
            sequence: 0,
            starts: cursors.clone(),
            cursors,
            left: circle,
            circle,
            size,
            frames: Vec::with_capacity(BATCH),
            others: Vec::with_capacity((plan.most_frames() - 1) * BATCH),
            most_frames: plan.most_frames(),
            columns: Box::new(Columns {
                added: [0; BATCH],
                ip_sums: [0; BATCH],
                sums: [0; BATCH],
                variants: [plan.variants.first().copied().unwrap_or_default(); BATCH],
            }),
            plan,
        }
    }

    /// Makes the next probe have this number, for those who test what reads it.
    #[cfg(test)]
    pub(super) fn set_sequence(&mut self, sequence: u32) {
        self.sequence = sequence;
    }

    /// Bytes of each of the next packets, without FCS; these over and over.
    pub(super) fn lengths(&self) -> Vec<u32> {
        self.plan.lengths_from(self.size)
    }

    /// Frames that have to be there for each packet, so that all find theirs.
    #[inline]
    pub(super) fn most_frames(&self) -> usize {
        self.most_frames
    }

    /// Writes what does not vary into every frame of a pool, and says whether frames that come back will still hold it.
    pub(super) fn prepare(&self, pool: &mut Pool) -> bool {
        if self.most_frames > 1 {
            return false;
        }
        if !self.has_rest() {
            return true;
        }
        let n = pool.free();
        let mut frames: Vec<_> = pool.take_many(n).collect();
        for frame in &mut frames {
            self.write_all(frame);
        }
        pool.give_many(frames.into_iter());
        true
    }

    /// Makes `n` packets, or as many as the pool has frames for, and says how many. `time` is the probes'. Unless
    /// `is_prepared`, it is not known what the frames hold.
    #[inline]
    pub(super) fn make(
        &mut self,
        n: usize,
        time: u64,
        is_prepared: bool,
        pool: &mut Pool,
        batch: &mut Batch,
    ) -> usize {
        if self.most_frames > 1 {
            self.take_for_chains(n.min(BATCH), pool);
        } else {
            self.frames.extend(pool.take_many(n.min(BATCH)));
        }
        let made = self.frames.len();
        self.start_sums(made);
        if is_prepared || !self.has_rest() {
            self.copy_heads();
        } else {
            self.copy_all();
        }
        self.patch(made);
        if self.plan.ip_length.is_some() || self.plan.udp_length.is_some() {
            self.write_lengths();
        }
        if let Some(at) = self.plan.probe {
            self.write_probes(at, time);
        }
        self.write_checksums(made);
        if self.most_frames > 1 {
            self.join(pool, batch);
            return made;
        }
        let lens = self.columns.variants[..made].iter().map(|variant| usize::from(variant.len));
        // Where frames come back from a receiver on another core, the lines of the next packets are still there: they are asked
        // for while these packets are put together.
        pool.upcoming(made).iter().for_each(Frame::prefetch_to_write);
        batch.extend(self.frames.drain(..).zip(lens).map(|(frame, len)| {
            let mut packet = Packet::new(frame);
            // No packet of this plan is longer than a frame.
            let fits = packet.set_len(len);
            debug_assert!(fits.is_ok());
            packet
        }));
        made
    }

    /// Takes frames for `n` packets, or for as many as the pool has frames for.
    #[cold]
    fn take_for_chains(&mut self, n: usize, pool: &mut Pool) {
        self.others.extend(pool.take_many(n * self.most_frames));
        let n = n.min(self.others.len() / self.most_frames);
        self.frames.extend(self.others.drain(self.others.len() - n..));
    }

    /// Makes packets of the first frames and, where they are longer, of others.
    #[cold]
    fn join(&mut self, pool: &mut Pool, batch: &mut Batch) {
        for (frame, variant) in self.frames.drain(..).zip(&self.columns.variants) {
            let len = usize::from(variant.len);
            let mut packet = Packet::new(frame);
            let fits = packet.set_len(len.min(FRAME_DATA));
            debug_assert!(fits.is_ok());
            let rest = self.plan.body.get(FRAME_DATA..len).unwrap_or_default();
            for bytes in rest.chunks(FRAME_DATA) {
                // As many were taken as the longest packets need.
                let Some(mut frame) = self.others.pop() else { break };
                frame.bytes_mut()[HEADROOM..HEADROOM + bytes.len()].copy_from_slice(bytes);
                if let Err(segment) = packet.push_segment(Segment::received(frame, bytes.len()), pool) {
                    pool.give(segment.into_frame());
                }
            }
            batch.push(packet);
        }
        pool.give_many(self.others.drain(..));
    }

    /// Whether packets are longer than what is written of each.
    fn has_rest(&self) -> bool {
        self.plan.longest() > self.plan.head
    }

    /// Chooses the sizes, and starts the sums with what does not vary in those.
    #[inline]
    fn start_sums(&mut self, made: usize) {
        let columns = &mut *self.columns;
        if let [only] = *self.plan.variants {
            columns.ip_sums[..made].fill(only.ip_sum.into());
            columns.sums[..made].fill(only.sum.into());
            return;
        }
        let cycle = &self.plan.cycle;
        for i in 0..made {
            let variant = self.plan.variants[usize::from(cycle[self.size])];
            self.size = if self.size + 1 == cycle.len() { 0 } else { self.size + 1 };
            columns.variants[i] = variant;
            columns.ip_sums[i] = variant.ip_sum.into();
            columns.sums[i] = variant.sum.into();
        }
    }

    #[inline]
    fn copy_heads(&mut self) {
        match self.plan.head {
            head if head == HEADS[0] => self.copy::<{ HEADS[0] }>(),
            head if head == HEADS[1] => self.copy::<{ HEADS[1] }>(),
            head if head == HEADS[2] => self.copy::<{ HEADS[2] }>(),
            _ => self.copy_all(),
        }
    }

    #[inline]
    fn copy<const HEAD: usize>(&mut self) {
        let Some(head) = self.plan.body.first_chunk::<HEAD>() else { return };
        for frame in &mut self.frames {
            if let Some(to) = frame.bytes_mut()[HEADROOM..].first_chunk_mut::<HEAD>() {
                *to = *head;
            }
        }
    }

    #[cold]
    fn copy_all(&mut self) {
        let mut frames = std::mem::take(&mut self.frames);
        frames.iter_mut().for_each(|frame| self.write_all(frame));
        self.frames = frames;
    }

    fn write_all(&self, frame: &mut Frame) {
        frame.bytes_mut()[HEADROOM..HEADROOM + FRAME_DATA].copy_from_slice(&self.plan.body[..FRAME_DATA]);
    }

    /// Patches all fields in all packets, in runs within which no cursor begins anew.
    #[inline]
    fn patch(&mut self, made: usize) {
        let mut from = 0;
        while from < made {
            let run = usize::try_from(self.left).unwrap_or(usize::MAX).min(made - from);
            for (patch, cursor) in self.plan.patches.iter().zip(&mut self.cursors) {
                let added = &mut self.columns.added[from..from + run];
                patch.apply(cursor, &mut self.frames[from..from + run], added);
                if patch.in_sum {
                    add(&mut self.columns.sums[from..from + run], added);
                }
                if patch.in_ip_sum {
                    add(&mut self.columns.ip_sums[from..from + run], added);
                }
            }
            from += run;
            if self.circle != u64::MAX {
                self.left -= run as u64;
                if self.left == 0 {
                    self.left = self.circle;
                    self.cursors.copy_from_slice(&self.starts);
                }
            }
        }
    }

    #[inline]
    fn write_lengths(&mut self) {
        for (frame, variant) in self.frames.iter_mut().zip(&self.columns.variants) {
            if let Some(at) = self.plan.ip_length {
                store(frame, at, variant.ip_length.to_be_bytes());
            }
            if let Some(at) = self.plan.udp_length {
                store(frame, at, variant.udp_length.to_be_bytes());
            }
        }
    }

    #[inline]
    fn write_probes(&mut self, at: usize, time: u64) {
        let mut probe = Probe { stream: self.stream, sequence: self.sequence, time, flows: self.flows };
        let columns = &mut *self.columns;
        // What all probes of a batch have in common.
        let (first, second, _) = Probe { sequence: 0, ..probe }.words(0);
        let common = halves(first) + halves(second & !CHECKED);
        for ((frame, variant), sum) in self.frames.iter_mut().zip(&columns.variants).zip(&mut columns.sums) {
            let (first, second, last) = probe.words(variant.filler_crc);
            store(frame, at, first.to_be_bytes());
            store(frame, at + 8, second.to_be_bytes());
            store(frame, at + PROBE - 2, last.to_be_bytes());
            let check = (second & CHECKED) as u32 + u32::from(last);
            *sum += common + (probe.sequence >> 16) + (probe.sequence & 0xffff) + check;
            probe.sequence = probe.sequence.wrapping_add(1);
        }
        self.sequence = probe.sequence;
    }

    #[inline]
    fn write_checksums(&mut self, made: usize) {
        if let Some(at) = self.plan.ip_checksum {
            let sums = &mut self.columns.ip_sums[..made];
            sums.iter_mut().for_each(|sum| *sum = u32::from(!fold(*sum)));
            write_words(&mut self.frames, at, sums);
        }
        if let Some(at) = self.plan.checksum {
            let sums = &mut self.columns.sums[..made];
            if self.plan.is_udp {
                // 0 would mean that there is no checksum (RFC 768, RFC 8200 section 8.1).
                sums.iter_mut().for_each(|sum| {
                    let checksum = u32::from(!fold(*sum));
                    *sum = if checksum == 0 { 0xffff } else { checksum };
                });
            } else {
                sums.iter_mut().for_each(|sum| *sum = u32::from(!fold(*sum)));
            }
            write_words(&mut self.frames, at, sums);
        }
    }
}

impl Patch {
    /// Patches the field in all packets, and leaves in `added` what that adds to sums.
    ///
    /// All that the loops need is in locals: frames could be anywhere, for all the compiler knows, and a store into one
    /// makes it read everything else again. A call of its own, once per batch, leaves the loops all registers.
    #[inline(never)]
    fn apply(&self, cursor: &mut Cursor, frames: &mut [Frame], added: &mut [u32]) {
        let Series { values, count, every, shuffle } = &self.series;
        let (count, every, shift) = (*count, *every, self.shift);
        if every > 1 {
            return self.write(frames, added, || self.series.at(cursor.next_held(count, every)) << shift);
        }
        let (mut position, step) = (cursor.position, cursor.step);
        let mut next = || {
            let this = position;
            position = series::add(position, step, count);
            this
        };
        match (values, *shuffle) {
            (Sequence::Steps { first, step }, None) => {
                let (first, step) = (*first << shift, *step << shift);
                self.write(frames, added, || first.wrapping_add(next().wrapping_mul(step)));
            }
            (Sequence::Steps { first, step }, Some(shuffle)) => {
                let (first, step) = (*first << shift, *step << shift);
                self.write(frames, added, || first.wrapping_add(shuffle.of(next()).wrapping_mul(step)));
            }
            (Sequence::List(list), None) => {
                let at = |position| list.get(usize::try_from(position).unwrap_or_default()).copied();
                self.write(frames, added, || at(next()).unwrap_or_default() << shift);
            }
            (Sequence::List(_), Some(_)) => self.write(frames, added, || self.series.at(next()) << shift),
        }
        cursor.position = position;
    }

    #[inline]
    fn write(&self, frames: &mut [Frame], added: &mut [u32], next: impl FnMut() -> u64) {
        match self.width {
            2 => self.write_as::<2>(frames, added, next),
            4 => self.write_as::<4>(frames, added, next),
            _ => self.write_as::<8>(frames, added, next),
        }
    }

    #[inline]
    fn write_as<const N: usize>(
        &self,
        frames: &mut [Frame],
        added: &mut [u32],
        mut next: impl FnMut() -> u64,
    ) {
        let (at, mask) = (self.at, self.mask << self.shift);
        if let Some(base) = self.base {
            for (frame, added) in frames.iter_mut().zip(added) {
                let bits = next() & mask;
                store(frame, at, low_bytes::<N>(base | bits));
                *added = if N == 8 { halves(bits) } else { (bits & 0xffff_ffff) as u32 };
            }
        } else {
            for (frame, added) in frames.iter_mut().zip(added) {
                let bits = next() & mask;
                let there = super::plan::read(frame.bytes(), HEADROOM + at, N);
                store(frame, at, low_bytes::<N>(there | bits));
                *added = halves(bits);
            }
        }
    }
}

#[inline]
fn add(sums: &mut [u32], added: &[u32]) {
    for (sum, added) in sums.iter_mut().zip(added) {
        *sum += (added >> 16) + (added & 0xffff);
    }
}

/// Writes the lower half of each word into its packet.
#[inline]
fn write_words(frames: &mut [Frame], at: usize, words: &[u32]) {
    for (frame, word) in frames.iter_mut().zip(words) {
        store(frame, at, ((word & 0xffff) as u16).to_be_bytes());
    }
}

/// The last `N` bytes of a number in network byte order.
#[inline]
fn low_bytes<const N: usize>(word: u64) -> [u8; N] {
    (word << (64 - 8 * N)).to_be_bytes().first_chunk().copied().unwrap_or([0; N])
}

/// The sum of a word's 16-bit parts, nearly: the same to a checksum, and less than 2¹⁸.
#[inline]
#[expect(clippy::cast_possible_truncation, reason = "less than 2¹⁸")]
const fn halves(word: u64) -> u32 {
    let word = (word >> 32) + (word & 0xffff_ffff);
    ((word >> 16) + (word & 0xffff)) as u32
}

/// A sum of fewer than 2¹⁴ numbers below 2¹⁸ as one of 16 bits.
#[inline]
#[expect(clippy::cast_possible_truncation, reason = "folded: what is above 16 bits has been added")]
const fn fold(sum: u32) -> u16 {
    let sum = (sum >> 16) + (sum & 0xffff);
    ((sum >> 16) + (sum & 0xffff)) as u16
}

/// Writes bytes at an offset of a packet, or at its frame's end when they would lie behind that: no plan has such an
/// offset, and so nothing need be asked for each packet.
#[inline]
fn store<const N: usize>(frame: &mut Frame, at: usize, bytes: [u8; N]) {
    let at = HEADROOM + at.min(FRAME_DATA - N);
    if let Some(to) = frame.bytes_mut()[at..].first_chunk_mut::<N>() {
        *to = bytes;
    }
}
