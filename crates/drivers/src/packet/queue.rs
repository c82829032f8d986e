//! A packet socket's queue: copies out of the ring, and rows of messages into the kernel.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bywash_frame::{BATCH, Batch, FRAME_DATA, MAX_FRAMES, Packet, Pool, Segment};
use bywash_port::{QueueCounters, RxQueue, TxQueue};
use bywash_sys::packet_socket::{Captured, Messages, PacketSocket, RxRing};
use rustix::io::Errno;
use zerocopy::IntoBytes;

use super::Shared;
use crate::virtio::{ADDRESSES, ETHERNET, Outgoing, VLAN_TAG, received};

/// The receiving half.
#[derive(Debug)]
pub(super) struct PacketRx {
    socket: Arc<PacketSocket>,
    ring: RxRing,
    shared: Arc<Shared>,
    counters: QueueCounters,
}

impl PacketRx {
    pub(super) fn new(socket: Arc<PacketSocket>, ring: RxRing, shared: Arc<Shared>) -> Self {
        Self { socket, ring, shared, counters: QueueCounters::default() }
    }
}

impl RxQueue for PacketRx {
    fn rx(&mut self, pool: &mut Pool, batch: &mut Batch) -> usize {
        let before = batch.len();
        // Bad packets count too: the ring does not keep us here.
        for _ in 0..batch.room() {
            let captured = match self.ring.peek() {
                Ok(Some(captured)) => captured,
                Ok(None) => break,
                Err(_) => {
                    self.counters.errors += 1;
                    continue;
                }
            };
            match copied(&captured, pool) {
                Ok(packet) => {
                    self.counters.bytes += packet.len() as u64;
                    batch.push(packet);
                }
                Err(Refused::NoFrame) => {
                    self.counters.no_frame += 1;
                    break;
                }
                Err(Refused::TooLong) => {
                    self.counters.errors += 1;
                    self.shared.too_long.fetch_add(1, Ordering::Relaxed);
                }
                Err(Refused::Bad) => self.counters.errors += 1,
            }
            self.ring.advance();
        }
        let n = batch.len() - before;
        self.counters.packets += n as u64;
        n
    }

    fn arm(&mut self) -> bool {
        if self.ring.is_ready() {
            return false;
        }
        // An interface that is set down or deleted leaves an error, and the socket readable until it is taken.
        if self.socket.take_error().is_some() && self.socket.is_orphan() {
            self.counters.errors += 1;
        }
        true
    }

    fn wake_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.socket.as_fd())
    }

    fn counters(&self) -> QueueCounters {
        self.counters
    }

    fn close(self: Box<Self>, _: &mut Pool) {}
}

/// Why a packet in the ring does not become one of ours.
enum Refused {
    NoFrame,
    TooLong,
    Bad,
}

/// The longest packet that fits.
const MAX_LEN: usize = MAX_FRAMES * FRAME_DATA;

/// Copies a packet into frames, with the VLAN tag where it was on the wire.
#[inline]
fn copied(captured: &Captured<'_>, pool: &mut Pool) -> Result<Packet, Refused> {
    let vlan = captured.vlan();
    let shift = if vlan.is_some() { VLAN_TAG } else { 0 };
    let len = captured.len() + usize::from(shift);
    if captured.is_cut() || len > MAX_LEN {
        return Err(Refused::TooLong);
    }
    if captured.len() < ETHERNET {
        return Err(Refused::Bad);
    }
    let mut offload = received(&captured.virtio_header(), len, shift).ok_or(Refused::Bad)?;
    offload.set_timestamp(Some(captured.timestamp()).filter(|time| *time > 0));
    let mut packet = Packet::new(pool.take().ok_or(Refused::NoFrame)?);
    packet.offload = offload;
    // Cannot fail: a new packet has room for FRAME_DATA.
    packet.set_len(len.min(FRAME_DATA)).map_err(|_| Refused::Bad)?;
    let head = packet.head_mut();
    if let Some((protocol, control)) = vlan {
        captured.copy_to(0, &mut head[..ADDRESSES]);
        head[ADDRESSES..][..2].copy_from_slice(&protocol.to_be_bytes());
        head[ADDRESSES + 2..][..2].copy_from_slice(&control.to_be_bytes());
        captured.copy_to(ADDRESSES, &mut head[ADDRESSES + usize::from(VLAN_TAG)..]);
    } else {
        captured.copy_to(0, head);
    }
    if len > FRAME_DATA {
        packet = chained(captured, packet, len, usize::from(shift), pool)?;
    }
    // No virtio-net header of ours can ask for SCTP's checksum again: it is filled in here, whatever becomes of the packet.
    if packet.asks_for_crc() && packet.complete_checksum().is_err() {
        pool.give_packet(packet);
        return Err(Refused::Bad);
    }
    Ok(packet)
}

/// Appends what did not fit into the first frame.
#[cold]
fn chained(
    captured: &Captured<'_>,
    mut packet: Packet,
    len: usize,
    shift: usize,
    pool: &mut Pool,
) -> Result<Packet, Refused> {
    while packet.len() < len {
        let n = (len - packet.len()).min(FRAME_DATA);
        let Some(frame) = pool.take() else {
            pool.give_packet(packet);
            return Err(Refused::NoFrame);
        };
        let mut segment = Segment::received(frame, n);
        captured.copy_to(packet.len() - shift, segment.bytes_mut());
        // Can't fail: MAX_LEN bytes are in a packet.
        packet.push_segment(segment, pool).map_err(|_| Refused::Bad)?;
    }
    Ok(packet)
}

/// The sending half: a packet is with the kernel, and counted, as soon as it is queued.
#[derive(Debug)]
pub(crate) struct PacketTx {
    socket: Arc<PacketSocket>,
    messages: Messages,
    counters: QueueCounters,
}

/// Pieces of the messages of a batch at most: of each packet the header, the addresses, the VLAN tag, and all its frames.
const PIECES: usize = BATCH * (MAX_FRAMES + 3);

impl PacketTx {
    pub(crate) fn new(socket: Arc<PacketSocket>) -> Self {
        Self { socket, messages: Messages::with_capacity(BATCH, PIECES), counters: QueueCounters::default() }
    }

    /// Sends up to `count` packets from the batch's front. Returns how many have left it, and how many of them were sent: the
    /// others were refused.
    pub(crate) fn send(&mut self, pool: &mut Pool, batch: &mut Batch, count: usize) -> (usize, usize) {
        let count = count.min(batch.len());
        let mut outgoing = [const { None::<Outgoing> }; BATCH];
        for (outgoing, packet) in outgoing.iter_mut().zip(batch.iter().take(count)) {
            *outgoing = Outgoing::new(packet);
        }
        let mut messages = self.messages.fill();
        for (packet, outgoing) in batch.iter().zip(&outgoing).take(count) {
            // What cannot be sent is an empty message, which the kernel refuses in its turn.
            let parts = outgoing.iter().flat_map(|outgoing| {
                std::iter::once(outgoing.header.as_bytes()).chain(outgoing.pieces(packet))
            });
            messages.add(parts);
        }
        let (mut done, mut sent, mut was_down) = (0, 0, false);
        while done < count {
            match messages.send(&self.socket, done) {
                Ok(0) | Err(Errno::AGAIN | Errno::INTR) => break,
                Ok(n) => {
                    for (packet, outgoing) in batch.iter().zip(&outgoing).skip(done).take(n) {
                        let added = outgoing.map_or(0, |outgoing| outgoing.added());
                        self.counters.bytes += (packet.len() + added) as u64;
                    }
                    (done, sent) = (done + n, sent + n);
                }
                // The socket keeps it since the interface was down, also when it is up again, and says it once (sock_error).
                Err(Errno::NETDOWN) if !was_down => was_down = true,
                Err(_) => done += 1,
            }
        }
        self.counters.packets += sent as u64;
        self.counters.errors += (done - sent) as u64;
        for packet in batch.drain_front(done) {
            pool.give_packet(packet);
        }
        (done, sent)
    }
}

impl TxQueue for PacketTx {
    fn tx(&mut self, pool: &mut Pool, batch: &mut Batch) -> usize {
        self.send(pool, batch, batch.len()).0
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
