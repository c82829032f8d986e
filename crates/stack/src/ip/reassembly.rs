//! Putting datagrams together again from fragments, within limits that a stranger cannot stretch.

use std::collections::BTreeMap;
use std::time::Duration;

use bywash_frame::{FRAME_SIZE, Offload, Packet, Pool};
use bywash_wire::zerocopy::{FromBytes, IntoBytes};
use bywash_wire::{IPV4_HEADER, IPV6_HEADER, Ipv4Header, Ipv6Header};

use super::{Inbound, MARKED};
use crate::counters::Counters;
use crate::packet::append_range;
use crate::{Address, InterfaceId, Timestamp};

/// How long the first fragment waits for the last. IPv4: RFC 1122, 3.3.2 says 60 to 120 s, Linux 30: a short time is
/// the better defence, for identifications of 16 bits come round again. IPv6: RFC 8200, 4.5.
const TIMEOUT_V4: Duration = Duration::from_secs(30);
const TIMEOUT_V6: Duration = Duration::from_secs(60);
/// Datagrams in the making, of all stacks together and from one source.
const DATAGRAMS: usize = 256;
const DATAGRAMS_EACH: usize = 16;
/// Frames that wait on all stacks together, as Linux's 4 MiB of `ipfrag_high_thresh`, and never more than a quarter of what there
/// is.
const FRAMES: usize = (4 << 20) / FRAME_SIZE;
/// The part of a stack's share that one source may hold; or one datagram, where that is more.
const FRAMES_EACH: usize = 4;
/// Fragments of one datagram: 64 KiB at an MTU of 576 are 119.
const FRAGMENTS: usize = 128;

/// What the fragments of one datagram have in common (RFC 791, 3.2; RFC 8200, 4.5).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Key {
    source: Address,
    destination: Address,
    /// None for IPv6.
    protocol: Option<u8>,
    identification: u32,
}

impl Key {
    fn timeout(&self) -> Duration {
        if self.source.is_v4() { TIMEOUT_V4 } else { TIMEOUT_V6 }
    }
}

/// What a fragment says of itself. Its payload lies from the inbound packet's start to its end.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fragment {
    pub(super) identification: u32,
    pub(super) offset: usize,
    pub(super) more: bool,
    pub(super) whole: Whole,
}

/// How the first fragment's header becomes that of the whole datagram.
#[derive(Clone, Copy, Debug)]
pub(super) enum Whole {
    /// The options go: they are nobody's business any more.
    V4,
    /// All that stands in front of the fragment header stays.
    V6 {
        /// Bytes in front of the fragment header.
        header: usize,
        /// Which byte of them says that it follows.
        named_at: usize,
        /// What follows it.
        next: u8,
    },
}

#[derive(Debug)]
struct Datagram {
    since: Timestamp,
    /// Where the first that came came in.
    interface: InterfaceId,
    /// Sorted by where they lie; they do not overlap.
    pieces: Vec<Piece>,
    /// Where the last one ends, when it has come.
    length: Option<usize>,
    bytes: usize,
    /// What the pieces hold.
    frames: usize,
    /// Congestion was marked on one of them (RFC 3168, 5.3).
    ecn: u8,
    /// One of them was sent to more than one host: then no error may be about it (RFC 1122, 3.2.2; RFC 4443, 2.4 (e)).
    group: bool,
    /// Its fragments overlapped: whatever of it comes still is dropped, too (RFC 5722, 4).
    poisoned: bool,
}

#[derive(Debug)]
struct Piece {
    packet: Packet,
    whole: Whole,
    /// Where in the packet the payload lies.
    start: usize,
    /// Where in the datagram it lies.
    offset: usize,
    length: usize,
}

/// Why a fragment is not kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Refusal {
    /// It is there already.
    Duplicate,
    /// It contradicts what is there: nothing good comes of the datagram any more.
    Spoils,
}

/// Datagrams that are not whole yet.
#[derive(Debug)]
pub(crate) struct Reassembly {
    /// Sorted, so that the order in which they are given up depends on nothing else.
    datagrams: BTreeMap<Key, Datagram>,
    /// Frames that their pieces hold.
    frames: usize,
    /// How many stacks the limits are for.
    pub(crate) stacks: usize,
}

impl Default for Reassembly {
    fn default() -> Self {
        Self { datagrams: BTreeMap::new(), frames: 0, stacks: 1 }
    }
}

impl Reassembly {
    /// Takes a fragment; returns the datagram if that makes it whole.
    pub(super) fn take(
        &mut self,
        now: Timestamp,
        inbound: Inbound,
        fragment: Fragment,
        counters: &mut Counters,
        pool: &mut Pool,
    ) -> Option<Inbound> {
        let v4 = matches!(fragment.whole, Whole::V4);
        let key = Key {
            source: inbound.source,
            destination: inbound.destination,
            protocol: v4.then_some(inbound.protocol),
            identification: fragment.identification,
        };
        let Fragment { offset, more, whole, .. } = fragment;
        let length = inbound.end - inbound.start;
        // Longer than a datagram can be, or not cut at eight bytes: the "ping of death" and its kin. What of IPv6 is
        // so was answered before.
        let longest = usize::from(u16::MAX) - if v4 { IPV4_HEADER } else { 0 };
        let wrong = offset + length > longest || length == 0 || (more && !length.is_multiple_of(8));
        let frames = inbound.packet.frames();
        if wrong || !self.make_room(&key, frames, counters, pool) {
            counters.fragments_dropped += 1;
            pool.give_packet(inbound.packet);
            return None;
        }
        let Inbound { interface, start, ecn, group, packet, .. } = inbound;
        let datagram = self.datagrams.entry(key).or_insert_with(|| Datagram {
            since: now,
            interface,
            pieces: Vec::new(),
            length: None,
            bytes: 0,
            frames: 0,
            ecn,
            group,
            poisoned: false,
        });
        datagram.group |= group;
        let piece = Piece { packet, whole, start, offset, length };
        if let Err((packet, why)) = datagram.insert(piece, more, ecn) {
            pool.give_packet(packet);
            if why == Refusal::Spoils && !datagram.poisoned {
                counters.fragments_dropped += 1;
                self.frames -= datagram.poison(pool);
            }
            return None;
        }
        self.frames += frames;
        if datagram.length != Some(datagram.bytes) {
            return None;
        }
        let datagram = self.datagrams.remove(&key)?;
        self.frames -= datagram.frames;
        let Datagram { ecn, group, .. } = datagram;
        let Some((packet, start)) = datagram.join(pool) else {
            counters.no_memory += 1;
            return None;
        };
        counters.reassembled += 1;
        let end = packet.len();
        // What is gone of the inbound packet is replaced; the rest is the same for all pieces.
        Some(Inbound {
            packet,
            interface,
            source: key.source,
            destination: key.destination,
            protocol: inbound.protocol,
            start,
            end,
            ecn,
            group,
            reassembled: true,
            inside: inbound.inside,
        })
    }

    /// A fragment that is all of its datagram (RFC 6946, 4): its header goes, and no other has to do with it.
    pub(super) fn unwrap_atomic(
        &mut self,
        inbound: Inbound,
        fragment: Fragment,
        counters: &mut Counters,
        pool: &mut Pool,
    ) -> Option<Inbound> {
        let Inbound { interface, start, ecn, group, packet, end, .. } = inbound;
        let (offset, length) = (fragment.offset, end.saturating_sub(start));
        let mut alone = Datagram {
            since: Timestamp::ZERO,
            interface,
            pieces: Vec::new(),
            length: Some(length),
            bytes: length,
            frames: packet.frames(),
            ecn,
            group,
            poisoned: false,
        };
        alone.pieces.push(Piece { packet, whole: fragment.whole, start, offset, length });
        let Some((packet, start)) = alone.join(pool) else {
            counters.no_memory += 1;
            return None;
        };
        let end = packet.len();
        Some(Inbound { packet, start, end, reassembled: true, ..inbound })
    }

    /// Whether nothing waits for its other pieces.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.datagrams.is_empty()
    }

    /// Gives up what has waited too long, and returns the first fragments and where they came in: their senders may
    /// be told.
    pub(crate) fn expire(
        &mut self,
        now: Timestamp,
        counters: &mut Counters,
        pool: &mut Pool,
    ) -> Vec<(InterfaceId, Packet)> {
        let mut first = Vec::new();
        let late = |key: &Key, datagram: &mut Datagram| now.since(datagram.since) >= key.timeout();
        for (_, datagram) in self.datagrams.extract_if(.., late) {
            self.frames -= datagram.frames;
            counters.fragments_dropped += u64::from(!datagram.poisoned);
            for piece in datagram.pieces {
                if piece.offset == 0 && !datagram.group {
                    first.push((datagram.interface, piece.packet));
                } else {
                    pool.give_packet(piece.packet);
                }
            }
        }
        first
    }

    pub(crate) fn next_deadline(&self) -> Option<Timestamp> {
        self.datagrams.iter().map(|(key, datagram)| datagram.since + key.timeout()).min()
    }

    /// Whether a fragment of `frames` frames may be kept. What is new pushes out the oldest: of its own source if that has
    /// many, else of all. Strangers who begin datagrams and never end them cannot keep others from theirs.
    fn make_room(&mut self, key: &Key, frames: usize, counters: &mut Counters, pool: &mut Pool) -> bool {
        let budget = FRAMES.min(pool.arena().frames() / 4) / self.stacks;
        let datagrams = (DATAGRAMS / self.stacks).max(DATAGRAMS_EACH);
        let same = |k: &Key| k.source == key.source;
        if !self.datagrams.contains_key(key) {
            if self.datagrams.keys().filter(|k| same(k)).count() >= DATAGRAMS_EACH {
                self.push_out(same, counters, pool);
            } else if self.datagrams.len() >= datagrams {
                self.push_out(|_| true, counters, pool);
            }
        }
        while self.frames_of(key.source) + frames > (budget / FRAMES_EACH).max(FRAGMENTS) {
            if !self.push_out(|k| same(k) && k != key, counters, pool) {
                return false;
            }
        }
        while self.frames + frames > budget {
            if !self.push_out(|k| k != key, counters, pool) {
                return false;
            }
        }
        true
    }

    /// Frames that the pieces of one source hold.
    fn frames_of(&self, source: Address) -> usize {
        let first = Key { source, destination: Address::default(), protocol: None, identification: 0 };
        let theirs = self.datagrams.range(first..).take_while(|(key, _)| key.source == source);
        theirs.map(|(_, datagram)| datagram.frames).sum()
    }

    /// Gives up the oldest of the datagrams that `which` holds for.
    fn push_out(&mut self, which: impl Fn(&Key) -> bool, counters: &mut Counters, pool: &mut Pool) -> bool {
        let candidates = self.datagrams.iter().filter(|(key, _)| which(key));
        let Some(key) = candidates.min_by_key(|(_, datagram)| datagram.since).map(|(key, _)| *key) else {
            return false;
        };
        if let Some(mut datagram) = self.datagrams.remove(&key) {
            counters.fragments_dropped += u64::from(!datagram.poisoned);
            self.frames -= datagram.poison(pool);
        }
        true
    }
}

/// RFC 3168, 5.3: congestion on one piece is congestion, but where another is not-ECT the datagram is dropped (`None`): its
/// sender would not slow down. A mix of ECT and not-ECT counts as not-ECT.
fn combine(one: u8, other: u8) -> Option<u8> {
    match (one, other) {
        (MARKED, 0) | (0, MARKED) => None,
        (MARKED, _) | (_, MARKED) => Some(MARKED),
        (0, _) | (_, 0) => Some(0),
        _ => Some(one),
    }
}

impl Datagram {
    /// Puts a piece in its place. RFC 5722, 4, which we keep for IPv4 as well: an overlap spoils the datagram. A
    /// piece that repeats another exactly is only a duplicate.
    fn insert(&mut self, piece: Piece, more: bool, ecn: u8) -> Result<(), (Packet, Refusal)> {
        let end = piece.offset + piece.length;
        let at = self.pieces.partition_point(|p| p.offset < piece.offset);
        let duplicate = |p: &Piece| p.offset == piece.offset && p.length == piece.length;
        let last_differs = self.length.is_some_and(|length| if more { end > length } else { end != length });
        let before =
            at.checked_sub(1).is_some_and(|i| self.pieces[i].offset + self.pieces[i].length > piece.offset);
        let after = self.pieces.get(at).is_some_and(|next| end > next.offset && !duplicate(next));
        let beyond = !more && self.pieces.last().is_some_and(|last| last.offset + last.length > end);
        let overlaps = before || after || last_differs || beyond;
        let refused = self.poisoned || overlaps || self.pieces.len() >= FRAGMENTS;
        let Some(ecn) = combine(self.ecn, ecn).filter(|_| !refused) else {
            return Err((piece.packet, Refusal::Spoils));
        };
        self.ecn = ecn;
        if !more {
            self.length = Some(end);
        }
        if self.pieces.get(at).is_some_and(duplicate) {
            return Err((piece.packet, Refusal::Duplicate));
        }
        self.bytes += piece.length;
        self.frames += piece.packet.frames();
        self.pieces.insert(at, piece);
        Ok(())
    }

    /// Gives the pieces back, and says how many frames that were.
    fn poison(&mut self, pool: &mut Pool) -> usize {
        self.poisoned = true;
        self.length = None;
        for piece in self.pieces.drain(..) {
            pool.give_packet(piece.packet);
        }
        std::mem::take(&mut self.frames)
    }

    /// One packet of all pieces, and where its payload begins. They are copied: a packet has room for 34 frames, and
    /// pieces may be more.
    fn join(mut self, pool: &mut Pool) -> Option<(Packet, usize)> {
        let mut packet = pool.take().map(Packet::new);
        let start = packet.as_mut().and_then(|whole| {
            whole.offload = Offload::default();
            let start = self.header(whole, pool)?;
            let mut all = self.pieces.iter();
            all.try_for_each(|p| append_range(whole, &p.packet, p.start..p.start + p.length, pool)).ok()?;
            Some(start)
        });
        self.poison(pool);
        match (packet, start) {
            (Some(packet), Some(start)) => Some((packet, start)),
            (packet, _) => {
                packet.into_iter().for_each(|part| pool.give_packet(part));
                None
            }
        }
    }

    /// Puts the header of the whole datagram into its packet, and says how long it is.
    fn header(&self, whole: &mut Packet, pool: &mut Pool) -> Option<usize> {
        let first = self.pieces.first()?;
        let head = first.packet.head();
        match first.whole {
            Whole::V4 => {
                let (mut header, _) = Ipv4Header::read_from_prefix(head).ok()?;
                header.set_header_length(20);
                header.total_length = u16::try_from(IPV4_HEADER + self.bytes).ok()?.into();
                header.fragment = 0.into();
                header.seal();
                whole.append(header.as_bytes(), pool).ok()?;
                Some(IPV4_HEADER)
            }
            Whole::V6 { header, named_at, next } => {
                whole.append(head.get(..header)?, pool).ok()?;
                let head = whole.head_mut();
                *head.get_mut(named_at)? = next;
                let (ip, _) = Ipv6Header::mut_from_prefix(head).ok()?;
                ip.payload_length = u16::try_from(header - IPV6_HEADER + self.bytes).ok()?.into();
                Some(header)
            }
        }
    }
}
