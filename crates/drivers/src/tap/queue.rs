//! A TAP's queue: read(2) and write(2), a packet each, over the frames of a chain.

use std::io::{IoSlice, IoSliceMut};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use arrayvec::ArrayVec;
use bywash_frame::{Batch, FRAME_DATA, Frame, HEADROOM, MAX_FRAMES, Packet, Pool, Segment};
use bywash_port::{QueueCounters, RxQueue, TxQueue};
use bywash_sys::tun::Tap;
use bywash_sys::virtio_header::VirtioHeaderMergeable;
use rustix::io::Errno;
use zerocopy::IntoBytes;

use super::Wake;
use crate::virtio::{ETHERNET, Outgoing, received};

/// Bytes of the header in front of each packet.
const HEADER: usize = size_of::<VirtioHeaderMergeable>();

/// Pieces of a packet on its way out: the header, the addresses and the VLAN tag before the rest of the frames.
const PIECES: usize = MAX_FRAMES + 3;

/// The receiving half.
#[derive(Debug)]
pub(super) struct TapRx {
    tap: Arc<Tap>,
    wake: Wake,
    gone: Arc<AtomicBool>,
    /// The frames that the next packet is read into, the last one first: the longest packet needs all but one.
    frames: ArrayVec<Frame, MAX_FRAMES>,
    counters: QueueCounters,
}

impl TapRx {
    pub(super) fn new(tap: Arc<Tap>, wake: Wake, gone: Arc<AtomicBool>) -> Self {
        Self { tap, wake, gone, frames: ArrayVec::new(), counters: QueueCounters::default() }
    }

    /// Has all frames ready, since nobody knows how long the next packet is.
    #[inline]
    fn refill(&mut self, pool: &mut Pool) -> bool {
        while !self.frames.is_full() {
            let Some(frame) = pool.take() else {
                self.counters.no_frame += 1;
                return false;
            };
            self.frames.push(frame);
        }
        true
    }

    /// Reads a packet into `frames`; the header and the bytes behind it.
    #[inline]
    fn read(&mut self) -> Result<(VirtioHeaderMergeable, usize), Errno> {
        let mut header = VirtioHeaderMergeable::default();
        let mut parts = ArrayVec::<IoSliceMut<'_>, { MAX_FRAMES + 1 }>::new();
        parts.push(IoSliceMut::new(header.as_mut_bytes()));
        parts.extend(
            self.frames.iter_mut().rev().map(|frame| IoSliceMut::new(&mut frame.bytes_mut()[HEADROOM..])),
        );
        let read = self.tap.read(&mut parts)?;
        drop(parts);
        Ok((header, read.saturating_sub(HEADER)))
    }

    /// Makes the packet that was read; `None` when it is not whole or its header is not to be trusted.
    #[inline]
    fn packet(&mut self, header: &VirtioHeaderMergeable, len: usize, pool: &mut Pool) -> Option<Packet> {
        // A packet that fills all frames may have been longer.
        if !(ETHERNET..MAX_FRAMES * FRAME_DATA).contains(&len) {
            return None;
        }
        let offload = received(&header.header, len, 0)?;
        let mut packet = Packet::new(self.frames.pop()?);
        packet.set_len(len.min(FRAME_DATA)).ok()?;
        packet.offload = offload;
        let mut left = len.saturating_sub(FRAME_DATA);
        while left > 0 {
            let n = left.min(FRAME_DATA);
            // Neither can fail: n bytes are in a frame, and a packet has room for all of `frames`.
            let segment = Segment::new(self.frames.pop()?, HEADROOM, n).ok()?;
            packet.push_segment(segment, pool).ok()?;
            left -= n;
        }
        Some(packet)
    }

    #[cold]
    fn failed(&mut self, errno: Errno) {
        if matches!(errno, Errno::AGAIN | Errno::INTR) {
            return;
        }
        self.counters.errors += 1;
        if errno == Errno::BADFD {
            self.gone.store(true, Ordering::Relaxed);
        }
    }
}

impl RxQueue for TapRx {
    fn rx(&mut self, pool: &mut Pool, batch: &mut Batch) -> usize {
        let before = batch.len();
        // Bad packets count too: the kernel does not keep us here.
        for _ in 0..batch.room() {
            if self.gone.load(Ordering::Relaxed) {
                self.wake.silence(&self.tap);
                break;
            }
            if !self.refill(pool) {
                break;
            }
            match self.read() {
                Ok((header, len)) => match self.packet(&header, len, pool) {
                    Some(packet) => {
                        self.counters.bytes += len as u64;
                        batch.push(packet);
                    }
                    None => self.counters.errors += 1,
                },
                Err(errno) => {
                    self.failed(errno);
                    if errno != Errno::BADFD {
                        break;
                    }
                }
            }
        }
        let n = batch.len() - before;
        self.counters.packets += n as u64;
        n
    }

    fn arm(&mut self) -> bool {
        self.gone.load(Ordering::Relaxed) || !self.tap.readable()
    }

    fn wake_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.wake.epoll.as_fd())
    }

    fn counters(&self) -> QueueCounters {
        self.counters
    }

    fn close(mut self: Box<Self>, pool: &mut Pool) {
        self.wake.silence(&self.tap);
        pool.give_many(self.frames.drain(..));
    }
}

/// The sending half: a packet is with the kernel, and counted, as soon as it is queued.
#[derive(Debug)]
pub(super) struct TapTx {
    tap: Arc<Tap>,
    gone: Arc<AtomicBool>,
    counters: QueueCounters,
}

impl TapTx {
    pub(super) fn new(tap: Arc<Tap>, gone: Arc<AtomicBool>) -> Self {
        Self { tap, gone, counters: QueueCounters::default() }
    }

    /// Writes a packet and returns the bytes that the interface got.
    #[inline]
    fn write(&self, packet: &Packet) -> Result<usize, Errno> {
        let outgoing = Outgoing::new(packet).ok_or(Errno::INVAL)?;
        let header = VirtioHeaderMergeable { header: outgoing.header, num_buffers: 0 };
        let mut parts = ArrayVec::<IoSlice<'_>, PIECES>::new();
        parts.push(IoSlice::new(header.as_bytes()));
        parts.extend(outgoing.pieces(packet).map(IoSlice::new));
        self.tap.write(&parts)?;
        Ok(packet.len() + outgoing.added())
    }
}

impl TxQueue for TapTx {
    fn tx(&mut self, pool: &mut Pool, batch: &mut Batch) -> usize {
        let mut done = 0;
        for packet in batch.iter() {
            match self.write(packet) {
                Ok(bytes) => {
                    self.counters.packets += 1;
                    self.counters.bytes += bytes as u64;
                }
                Err(Errno::AGAIN | Errno::INTR) => break,
                Err(errno) => {
                    self.counters.errors += 1;
                    if errno == Errno::BADFD {
                        self.gone.store(true, Ordering::Relaxed);
                    }
                }
            }
            done += 1;
        }
        for packet in batch.drain_front(done) {
            pool.give_packet(packet);
        }
        done
    }

    fn flush(&mut self, _: &mut Pool) {}

    fn in_flight(&self) -> usize {
        0
    }

    fn counters(&self) -> QueueCounters {
        self.counters
    }

    fn close(self: Box<Self>, _: &mut Pool) {}
}
