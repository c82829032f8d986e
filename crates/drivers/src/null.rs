//! `null:`, the port that costs nothing: packets come without end and go nowhere. What the work between two ports
//! costs is measured here.
//!
//! It moves frames as a NIC does, so that the measure is honest: each queue keeps a ring of them, and a frame that was
//! sent returns to the pool a whole ring later. A packet's frame is therefore not the one that was just in the cache.
//! On receive it writes what a NIC's DMA would: a packet of 64 bytes.

use std::os::fd::BorrowedFd;

use bywash_frame::{Arena, Batch, FRAME_DATA, Frame, HEADROOM, MAX_FRAMES, Packet, Piece, Pool, Stride};
use bywash_port::{Capabilities, Counter, Port, PortName, QueueCounters, QueuePair, RxQueue, TxQueue};

use crate::OpenOptions;

/// Frames in each ring, as a NIC's default.
const RING: usize = 512;

/// Frames that are handled together, while the first lines of the next ones come into the cache.
const GROUP: usize = 16;

/// The packet that arrives: UDP to the discard port in 64 bytes, without FCS.
#[rustfmt::skip]
const PACKET: [u8; 64] = [
    // Ethernet: to 02:00:00:00:00:02, from 02:00:00:00:00:01, IPv4
    2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 0x08, 0x00,
    // IPv4: 50 bytes, TTL 64, UDP, from 192.168.0.1 to 192.168.0.2
    0x45, 0, 0, 50, 0, 0, 0x40, 0, 64, 17, 0xb9, 0x67, 192, 168, 0, 1, 192, 168, 0, 2,
    // UDP: port 9 to port 9, 30 bytes, no checksum
    0, 9, 0, 9, 0, 30, 0, 0,
    0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
];

/// Opens `null:`.
///
/// # Errors
/// The reason, when the arena cannot fill the rings.
pub fn open(options: &OpenOptions, arena: &'static Arena) -> Result<NullPort, String> {
    let (queues, ring) = size(options);
    let need = frames(options);
    if need > arena.frames() {
        return Err(format!("{need} frames for its rings, the arena has {} (--memory)", arena.frames()));
    }
    let capabilities = Capabilities {
        max_len: MAX_FRAMES * FRAME_DATA,
        tx_checksum: true,
        segmentation: true,
        chains: true,
        zero_copy: true,
        mode: vec!["in memory"],
        link_mbps: None,
        sent: None,
    };
    Ok(NullPort { capabilities, queues, ring })
}

/// Queues, and frames in each of their rings.
fn size(options: &OpenOptions) -> (u16, usize) {
    (options.queues.unwrap_or(1), options.ring.map_or(RING, |ring| ring as usize))
}

/// Frames in the rings of all queues.
fn frames(options: &OpenOptions) -> usize {
    let (queues, ring) = size(options);
    usize::from(queues) * ring * 2
}

/// Bytes of packet memory for its rings, and as much again for what is on its way.
pub(crate) fn memory_for(options: &OpenOptions, stride: Stride) -> usize {
    frames(options).saturating_mul(2 * stride.bytes())
}

/// An opened `null:`.
#[derive(Debug)]
pub struct NullPort {
    capabilities: Capabilities,
    /// Still to be given out.
    queues: u16,
    ring: usize,
}

impl Port for NullPort {
    fn name(&self) -> &PortName {
        &PortName::Null
    }

    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn queues(&mut self) -> Vec<QueuePair> {
        (0..std::mem::take(&mut self.queues))
            .map(|_| QueuePair {
                rx: Some(Box::new(NullRx { ring: Ring::new(self.ring), counters: QueueCounters::default() })),
                tx: Some(Box::new(NullTx { ring: Ring::new(self.ring), counters: QueueCounters::default() })),
            })
            .collect()
    }

    fn counters(&self) -> Vec<Counter> {
        Vec::new()
    }

    fn close(self: Box<Self>) -> Result<(), Vec<String>> {
        Ok(())
    }
}

/// The frames that the NIC would hold, oldest at `next`.
struct Ring {
    frames: Vec<Frame>,
    next: usize,
    size: usize,
}

impl Ring {
    fn new(size: usize) -> Self {
        Self { frames: Vec::with_capacity(size), next: 0, size }
    }

    fn is_full(&self) -> bool {
        self.frames.len() == self.size
    }

    /// The oldest frames, at most `n` and at most [`GROUP`] of them, to be exchanged for others. Only for a full ring.
    #[inline]
    fn oldest(&mut self, n: usize) -> &mut [Frame] {
        let from = self.next;
        let to = (from + n.min(GROUP)).min(self.size);
        self.next = if to == self.size { 0 } else { to };
        &mut self.frames[from..to]
    }

    /// Asks for the first lines of the group after the one that [`Ring::oldest`] gives next.
    #[inline]
    fn prefetch(&self) {
        let from = (self.next + GROUP) & (self.size - 1);
        let to = (from + GROUP).min(self.size);
        for frame in &self.frames[from..to] {
            frame.prefetch();
        }
    }

    fn push(&mut self, frame: Frame, pool: &mut Pool) {
        if !self.is_full() {
            self.frames.push(frame);
        } else if let [place] = self.oldest(1) {
            pool.give(std::mem::replace(place, frame));
        }
    }

    fn empty(&mut self, pool: &mut Pool) {
        for frame in self.frames.drain(..) {
            pool.give(frame);
        }
    }
}

struct NullRx {
    ring: Ring,
    counters: QueueCounters,
}

impl RxQueue for NullRx {
    fn rx(&mut self, pool: &mut Pool, batch: &mut Batch) -> usize {
        while !self.ring.is_full() {
            let Some(frame) = pool.take() else {
                self.counters.no_frame += 1;
                return 0;
            };
            self.ring.frames.push(frame);
        }
        let wanted = batch.room();
        let mut frames = pool.take_many(wanted);
        let received = frames.len();
        self.counters.no_frame += u64::from(received < wanted);
        while frames.len() > 0 {
            self.ring.prefetch();
            let oldest = self.ring.oldest(frames.len());
            batch.extend(oldest.iter_mut().zip(frames.by_ref()).map(|(place, fresh)| {
                let mut frame = std::mem::replace(place, fresh);
                frame.bytes_mut()[HEADROOM..][..PACKET.len()].copy_from_slice(&PACKET);
                let mut packet = Packet::new(frame);
                let fits = packet.set_len(PACKET.len());
                debug_assert!(fits.is_ok());
                packet
            }));
        }
        self.counters.packets += received as u64;
        self.counters.bytes += (received * PACKET.len()) as u64;
        received
    }

    fn arm(&mut self) -> bool {
        false
    }

    fn wake_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn counters(&self) -> QueueCounters {
        self.counters
    }

    fn close(mut self: Box<Self>, pool: &mut Pool) {
        self.ring.empty(pool);
    }
}

struct NullTx {
    ring: Ring,
    counters: QueueCounters,
}

impl TxQueue for NullTx {
    fn tx(&mut self, pool: &mut Pool, batch: &mut Batch) -> usize {
        let sent = batch.len();
        let mut bytes = 0;
        let ring = &mut self.ring;
        if ring.is_full()
            && let Some(segments) = batch.drain_single()
        {
            let mut frames = segments.map(|segment| {
                bytes += segment.len();
                segment.into_frame()
            });
            while frames.len() > 0 {
                let oldest = ring.oldest(frames.len());
                pool.give_many(
                    oldest.iter_mut().zip(frames.by_ref()).map(|(place, f)| std::mem::replace(place, f)),
                );
            }
        } else {
            for packet in batch.drain() {
                bytes += packet.len();
                packet.into_pieces(pool, |piece, pool| match piece {
                    Piece::Whole(segment) => ring.push(segment.into_frame(), pool),
                    Piece::Part(part) => pool.give_part(part),
                });
            }
        }
        self.counters.packets += sent as u64;
        self.counters.bytes += bytes as u64;
        sent
    }

    fn flush(&mut self, _: &mut Pool) {}

    fn in_flight(&self) -> usize {
        0
    }

    fn counters(&self) -> QueueCounters {
        self.counters
    }

    fn close(mut self: Box<Self>, pool: &mut Pool) {
        self.ring.empty(pool);
    }
}
