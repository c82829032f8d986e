//! Putting datagrams together again from fragments, within limits that a stranger cannot stretch.

use std::collections::HashMap;
use std::time::Duration;

use bywash_frame::{Offload, Packet, Pool};
use bywash_wire::zerocopy::IntoBytes;
use bywash_wire::{IPV4_HEADER, Ipv4Header, MORE_FRAGMENTS};

use super::Inbound;
use crate::counters::Counters;
use crate::packet::{append, append_range};
use crate::{Address, Timestamp};

/// How long the first fragment waits for the last (RFC 8200, 4.5 says 60 s; RFC 1122, 3.3.2 60 to 120; Linux 30). A
/// short time is the better defence: identifications come round again.
const TIMEOUT: Duration = Duration::from_secs(30);
/// Datagrams in the making, in all and from one source.
const DATAGRAMS: usize = 256;
const DATAGRAMS_EACH: usize = 16;
/// Fragments of one datagram: 64 KiB at an MTU of 576 are 119.
const FRAGMENTS: usize = 128;

/// What the fragments of one datagram have in common (RFC 791, 3.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Key {
    source: Address,
    destination: Address,
    protocol: u8,
    identification: u32,
}

#[derive(Debug)]
struct Datagram {
    since: Timestamp,
    /// Sorted by where they lie; they do not overlap.
    pieces: Vec<Piece>,
    /// Where the last one ends, when it has come.
    length: Option<usize>,
    bytes: usize,
    /// Congestion was marked on one of them (RFC 3168, 5.3).
    ecn: u8,
    /// Its fragments overlapped: whatever of it comes still is dropped, too (RFC 5722, 4).
    poisoned: bool,
}

#[derive(Debug)]
struct Piece {
    packet: Packet,
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
    /// It contradicts what is there.
    Overlap,
}

/// Datagrams that are not whole yet.
#[derive(Debug, Default)]
pub(crate) struct Reassembly {
    datagrams: HashMap<Key, Datagram>,
}

impl Reassembly {
    /// Takes a fragment; returns the datagram if that makes it whole.
    pub(crate) fn take(
        &mut self,
        now: Timestamp,
        inbound: Inbound,
        ip: &Ipv4Header,
        counters: &mut Counters,
        pool: &mut Pool,
    ) -> Option<Inbound> {
        let key = Key {
            source: inbound.source,
            destination: inbound.destination,
            protocol: inbound.protocol,
            identification: ip.identification.get().into(),
        };
        let more = ip.fragment.get() & MORE_FRAGMENTS != 0;
        let (offset, length) = (ip.fragment_offset(), inbound.end - inbound.start);
        // Longer than a datagram can be, or not cut at eight bytes: the "ping of death" and its kin.
        let wrong =
            offset + length > usize::from(u16::MAX) - IPV4_HEADER || length == 0 || (more && length % 8 != 0);
        if wrong || !self.has_room(now, &key, counters, pool) {
            counters.fragments_dropped += 1;
            pool.give_packet(inbound.packet);
            return None;
        }
        let Inbound { interface, source, destination, protocol, start, ecn, group, packet, .. } = inbound;
        let datagram = self.datagrams.entry(key).or_insert_with(|| Datagram {
            since: now,
            pieces: Vec::new(),
            length: None,
            bytes: 0,
            ecn,
            poisoned: false,
        });
        datagram.ecn = combine(datagram.ecn, ecn);
        if let Err((packet, why)) = datagram.insert(Piece { packet, start, offset, length }, more) {
            pool.give_packet(packet);
            if why == Refusal::Overlap && !datagram.poisoned {
                counters.fragments_dropped += 1;
                datagram.poison(pool);
            }
            return None;
        }
        if datagram.length != Some(datagram.bytes) {
            return None;
        }
        let datagram = self.datagrams.remove(&key)?;
        let ecn = datagram.ecn;
        let Some(packet) = datagram.join(ip, pool) else {
            counters.no_memory += 1;
            return None;
        };
        counters.reassembled += 1;
        let end = packet.len();
        Some(Inbound {
            packet,
            interface,
            source,
            destination,
            protocol,
            start: IPV4_HEADER,
            end,
            ecn,
            group,
        })
    }

    /// Gives up what has waited too long, and returns the first fragments: their senders may be told.
    pub(crate) fn expire(&mut self, now: Timestamp, counters: &mut Counters, pool: &mut Pool) -> Vec<Packet> {
        let mut first = Vec::new();
        for (_, datagram) in self.datagrams.extract_if(|_, datagram| now.since(datagram.since) >= TIMEOUT) {
            counters.fragments_dropped += u64::from(!datagram.poisoned);
            for piece in datagram.pieces {
                if piece.offset == 0 { first.push(piece.packet) } else { pool.give_packet(piece.packet) }
            }
        }
        first
    }

    pub(crate) fn next_deadline(&self) -> Option<Timestamp> {
        self.datagrams.values().map(|datagram| datagram.since + TIMEOUT).min()
    }

    /// Whether a fragment of this datagram may be kept; a new one from a busy source pushes out that source's oldest.
    fn has_room(&mut self, now: Timestamp, key: &Key, counters: &mut Counters, pool: &mut Pool) -> bool {
        if self.datagrams.contains_key(key) {
            return true;
        }
        for packet in self.expire(now, counters, pool) {
            pool.give_packet(packet);
        }
        let same = self.datagrams.iter().filter(|(k, _)| k.source == key.source);
        let (count, oldest) = (same.clone().count(), same.min_by_key(|(_, d)| d.since).map(|(k, _)| *k));
        if count >= DATAGRAMS_EACH
            && let Some(mut datagram) = oldest.and_then(|key| self.datagrams.remove(&key))
        {
            counters.fragments_dropped += 1;
            datagram.poison(pool);
        }
        self.datagrams.len() < DATAGRAMS
    }
}

/// RFC 3168, 5.3: congestion on one piece is congestion; a mix of ECT and not-ECT counts as what the first said.
fn combine(one: u8, other: u8) -> u8 {
    if one == 3 || other == 3 { 3 } else { one }
}

impl Datagram {
    /// Puts a piece in its place. RFC 5722, 4, which we keep for IPv4 as well: an overlap spoils the datagram. A
    /// piece that repeats another exactly is only a duplicate.
    fn insert(&mut self, piece: Piece, more: bool) -> Result<(), (Packet, Refusal)> {
        let end = piece.offset + piece.length;
        let at = self.pieces.partition_point(|p| p.offset < piece.offset);
        let duplicate = |p: &Piece| p.offset == piece.offset && p.length == piece.length;
        let last_differs = self.length.is_some_and(|length| if more { end > length } else { end != length });
        let before =
            at.checked_sub(1).is_some_and(|i| self.pieces[i].offset + self.pieces[i].length > piece.offset);
        let after = self.pieces.get(at).is_some_and(|next| end > next.offset && !duplicate(next));
        let beyond = !more && self.pieces.last().is_some_and(|last| last.offset + last.length > end);
        if self.poisoned || before || after || last_differs || beyond || self.pieces.len() >= FRAGMENTS {
            return Err((piece.packet, Refusal::Overlap));
        }
        if !more {
            self.length = Some(end);
        }
        if self.pieces.get(at).is_some_and(duplicate) {
            return Err((piece.packet, Refusal::Duplicate));
        }
        self.bytes += piece.length;
        self.pieces.insert(at, piece);
        Ok(())
    }

    fn poison(&mut self, pool: &mut Pool) {
        self.poisoned = true;
        self.length = None;
        for piece in self.pieces.drain(..) {
            pool.give_packet(piece.packet);
        }
    }

    /// One packet of all pieces. They are copied: a packet has room for 34 frames, and pieces may be more.
    fn join(mut self, ip: &Ipv4Header, pool: &mut Pool) -> Option<Packet> {
        let mut header = *ip;
        header.set_header_length(20);
        header.total_length = u16::try_from(IPV4_HEADER + self.bytes).ok()?.into();
        header.fragment = 0.into();
        header.seal();
        let mut packet = pool.take().map(Packet::new);
        if let Some(whole) = &mut packet {
            whole.offload = Offload::default();
            let built = append(whole, header.as_bytes(), pool).and_then(|()| {
                let mut all = self.pieces.iter();
                all.try_for_each(|p| append_range(whole, &p.packet, p.start..p.start + p.length, pool))
            });
            if built.is_err()
                && let Some(part) = packet.take()
            {
                pool.give_packet(part);
            }
        }
        self.poison(pool);
        packet
    }
}
