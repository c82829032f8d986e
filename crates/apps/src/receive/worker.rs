//! The loop that receives: what one worker does with its RX queues.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bywash_port::frame::{Batch, Packet, Pool};
use bywash_port::{QueueCounters, QueuePair, RxQueue};
use bywash_sys::clock;
use bywash_sys::worker::{Task, Turn};
use bywash_wire::zerocopy::FromBytes;
use bywash_wire::{
    ETHERNET_HEADER, EtherType, IPV6_HEADER, Ipv4Error, Ipv4Header, Ipv6Header, Protocol, UDP_HEADER,
    UdpHeader, VlanTag,
};
use hdrhistogram::Histogram;

use super::sequence::{Counts, Sequence};
use crate::live::{Live, Publication};
use crate::probe::{PROBE, Probe, ProbeError};
use crate::session::close_queues;

/// Streams that one worker can tell apart: more than any generator has queues, over many runs.
pub(super) const MOST_STREAMS: usize = 256;

/// Longest delay that is told from longer ones: 100 s.
const LONGEST_NS: u64 = 100_000_000_000;

/// Digits that a delay's figure keeps.
const DIGITS: u8 = 3;

/// Packets and what they were.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Kinds {
    /// A generator's, as they were sent.
    pub(super) right: u64,
    /// A generator's, damaged.
    pub(super) damaged: u64,
    /// Somebody else's.
    pub(super) foreign: u64,
    /// A generator's, of more streams than can be told apart.
    pub(super) untracked: u64,
    /// Packets that seem to have come before they were sent.
    pub(super) clock_errors: u64,
}

/// What one worker has done.
#[derive(Clone, Debug, Default)]
pub(super) struct Figures {
    /// By queue: its number on its port and what it counted.
    pub(super) queues: Vec<(usize, QueueCounters)>,
    pub(super) kinds: Kinds,
    pub(super) streams: Vec<(u16, Counts)>,
}

/// How many packets are wanted, counted by all workers together.
#[derive(Clone, Debug)]
pub(super) struct Goal {
    pub(super) count: u64,
    pub(super) reached: Arc<AtomicU64>,
}

/// One stream as this worker sees it.
struct Stream {
    id: u16,
    sequence: Sequence,
    last_age: Option<i64>,
}

/// The streams met so far. All memory is there from the start.
struct Streams {
    /// By id: one more than the index in `streams`, or 0.
    index: Box<[u16]>,
    streams: Vec<Stream>,
    used: usize,
}

impl Streams {
    fn new() -> Self {
        let empty = || Stream { id: 0, sequence: Sequence::new(), last_age: None };
        Self {
            index: vec![0; 1 << 16].into(),
            streams: std::iter::repeat_with(empty).take(MOST_STREAMS).collect(),
            used: 0,
        }
    }

    #[inline]
    fn of(&mut self, id: u16) -> Option<&mut Stream> {
        let index = &mut self.index[usize::from(id)];
        if *index == 0 {
            let stream = self.streams.get_mut(self.used)?;
            stream.id = id;
            self.used += 1;
            *index = u16::try_from(self.used).unwrap_or_default();
        }
        self.streams.get_mut(usize::from(*index) - 1)
    }
}

/// Delays and how much they differ from one packet of a stream to the next.
#[derive(Clone, Debug)]
pub(super) struct Delays {
    pub(super) latency: Histogram<u64>,
    pub(super) jitter: Histogram<u64>,
}

impl Delays {
    pub(super) fn new() -> Result<Self, String> {
        let new = || Histogram::new_with_bounds(1, LONGEST_NS, DIGITS).map_err(|e| e.to_string());
        Ok(Self { latency: new()?, jitter: new()? })
    }
}

/// One worker's share of the work.
pub(super) struct Receiver {
    queues: Vec<(usize, Box<dyn RxQueue>)>,
    /// Queues that nobody serves, to be closed with ours.
    unused: Vec<QueuePair>,
    pool: Pool,
    batch: Batch,
    kinds: Kinds,
    streams: Streams,
    delays: Delays,
    goal: Option<Goal>,
    live: Live<Figures>,
    publication: Publication,
}

impl Receiver {
    pub(super) fn new(
        queues: Vec<(usize, Box<dyn RxQueue>)>,
        pool: Pool,
        batch: usize,
        goal: Option<Goal>,
        delays: Delays,
    ) -> Self {
        let figures = Figures {
            queues: Vec::with_capacity(queues.len()),
            kinds: Kinds::default(),
            streams: Vec::with_capacity(MOST_STREAMS),
        };
        Self {
            queues,
            unused: Vec::new(),
            pool,
            batch: Batch::with_limit(batch),
            kinds: Kinds::default(),
            streams: Streams::new(),
            delays,
            goal,
            live: Live::new(figures),
            publication: Publication::default(),
        }
    }

    /// Keeps a queue that nobody serves until the end.
    pub(super) fn keep(&mut self, unused: QueuePair) {
        self.unused.push(unused);
    }

    pub(super) fn live(&self) -> Live<Figures> {
        self.live.clone()
    }

    /// The last figures; closes the queues.
    pub(super) fn close(mut self) -> (Figures, Delays) {
        self.publish();
        let ours = self.queues.into_iter().map(|(_, rx)| QueuePair { rx: Some(rx), tx: None });
        close_queues(ours.chain(self.unused), &mut self.pool);
        (self.live.read(), self.delays)
    }

    fn publish(&mut self) {
        let (queues, kinds, streams) = (&self.queues, self.kinds, &self.streams);
        self.live.publish(|figures| {
            figures.kinds = kinds;
            // Both have room for all: nothing is allocated.
            figures.queues.clear();
            figures.queues.extend(queues.iter().map(|(number, rx)| (*number, rx.counters())));
            figures.streams.clear();
            figures.streams.extend(streams.streams[..streams.used].iter().map(|s| (s.id, s.sequence.counts)));
        });
    }

    /// Looks at the packets of a batch.
    #[inline]
    fn look(&mut self) {
        let now = clock::realtime();
        for packet in &self.batch {
            match read(packet) {
                Ok(probe) => {
                    self.kinds.right += 1;
                    let Some(stream) = self.streams.of(probe.stream) else {
                        self.kinds.untracked += 1;
                        continue;
                    };
                    stream.sequence.note(probe.sequence);
                    let age = probe.age(packet.offload.timestamp.map_or(now, u64::from));
                    match u64::try_from(age) {
                        Ok(age) => self.delays.latency.saturating_record(age),
                        Err(_) => self.kinds.clock_errors += 1,
                    }
                    if let Some(last) = stream.last_age.replace(age) {
                        self.delays.jitter.saturating_record(age.abs_diff(last));
                    }
                }
                Err(ProbeError::Damaged) => self.kinds.damaged += 1,
                Err(ProbeError::Foreign) => self.kinds.foreign += 1,
            }
        }
    }

    fn has_reached_goal(&self, right: u64) -> bool {
        self.goal.as_ref().is_some_and(|goal| {
            let reached = goal.reached.fetch_add(right, Ordering::Relaxed) + right;
            reached >= goal.count
        })
    }
}

impl Task for Receiver {
    #[inline]
    fn turn(&mut self) -> Turn {
        let before = self.kinds.right;
        let mut received = 0;
        for index in 0..self.queues.len() {
            let n = self.queues[index].1.rx(&mut self.pool, &mut self.batch);
            if n > 0 {
                received += n;
                self.look();
                self.pool.give_batch(&mut self.batch);
            }
        }
        let busy = received > 0;
        if self.publication.is_due(busy) {
            self.publish();
        }
        if self.has_reached_goal(self.kinds.right - before) {
            Turn::Done
        } else if busy {
            Turn::Busy
        } else {
            Turn::Idle
        }
    }

    fn arm(&mut self) -> bool {
        // All of them, also after one that says no: they are asked again before the next sleep.
        self.queues.iter_mut().fold(true, |may_sleep, (_, rx)| rx.arm() & may_sleep)
    }

    fn wake_fds<'a>(&'a self, fds: &mut Vec<BorrowedFd<'a>>) {
        fds.extend(self.queues.iter().filter_map(|(_, rx)| rx.wake_fd()));
    }

    fn next_deadline(&self, _: u64) -> Option<u64> {
        None
    }
}

/// The probe in a packet.
#[inline]
fn read(packet: &Packet) -> Result<Probe, ProbeError> {
    let head = packet.head();
    let start = payload(head, packet.len())?;
    let probe =
        head.get(start.from..).and_then(|rest| rest.first_chunk::<PROBE>()).ok_or(ProbeError::Foreign)?;
    Probe::read(probe, || filler_crc(packet, start.from + PROBE, start.len - PROBE))
}

/// Where a UDP payload lies in its packet.
struct Payload {
    from: usize,
    len: usize,
}

/// Finds a UDP payload with room for a probe.
#[inline]
fn payload(head: &[u8], len: usize) -> Result<Payload, ProbeError> {
    let mut at = ETHERNET_HEADER;
    let mut kind = head.get(at - 2..at).map_or(0, |kind| u16::from_be_bytes([kind[0], kind[1]]));
    // A tag and one around it (802.1ad).
    for _ in 0..2 {
        if EtherType(kind).is_vlan() {
            let (tag, _) = head
                .get(at..)
                .and_then(|tag| VlanTag::ref_from_prefix(tag).ok())
                .ok_or(ProbeError::Foreign)?;
            kind = tag.kind.get();
            at += size_of::<VlanTag>();
        }
    }
    let ip = head.get(at..).ok_or(ProbeError::Foreign)?;
    let (header, inside) = match EtherType(kind) {
        EtherType::IPV4 => {
            let ip = Ipv4Header::parse(ip, len - at).map_err(|error| match error {
                Ipv4Error::Checksum if has_probe(ip) => ProbeError::Damaged,
                Ipv4Error::Checksum | Ipv4Error::Malformed => ProbeError::Foreign,
            })?;
            if ip.protocol != Protocol::UDP.0 || ip.is_fragment() {
                return Err(ProbeError::Foreign);
            }
            (ip.header_length(), usize::from(ip.total_length.get()) - ip.header_length())
        }
        EtherType::IPV6 => {
            let ip = Ipv6Header::parse(ip, len - at).ok_or(ProbeError::Foreign)?;
            if ip.next_header != Protocol::UDP.0 {
                return Err(ProbeError::Foreign);
            }
            (IPV6_HEADER, usize::from(ip.payload_length.get()))
        }
        _ => return Err(ProbeError::Foreign),
    };
    at += header;
    let udp = head.get(at..).and_then(|udp| UdpHeader::parse(udp, inside)).ok_or(ProbeError::Foreign)?;
    let payload = usize::from(udp.length.get()) - UDP_HEADER;
    if payload < PROBE {
        Err(ProbeError::Foreign)
    } else {
        Ok(Payload { from: at + UDP_HEADER, len: payload })
    }
}

/// Whether a probe seems to lie in an IPv4 packet whose header is damaged.
#[cold]
fn has_probe(ip: &[u8]) -> bool {
    Ipv4Header::ref_from_prefix(ip)
        .is_ok_and(|(header, _)| ip.get(header.header_length() + UDP_HEADER..).is_some_and(Probe::is_at))
}

/// The CRC of `len` bytes from `from` on, over all frames of the packet.
#[inline]
fn filler_crc(packet: &Packet, from: usize, len: usize) -> u32 {
    if len == 0 {
        return 0;
    }
    if let Some(filler) = packet.head().get(from..from + len) {
        return crc32fast::hash(filler);
    }
    let mut hasher = crc32fast::Hasher::new();
    let (mut skip, mut left) = (from, len);
    for segment in packet.segments() {
        let bytes = segment.bytes();
        let part = &bytes[skip.min(bytes.len())..];
        skip -= bytes.len() - part.len();
        let part = &part[..left.min(part.len())];
        left -= part.len();
        hasher.update(part);
    }
    hasher.finalize()
}

#[cfg(test)]
mod tests;
