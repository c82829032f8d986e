//! Sending: packets become descriptors, and their frames come back when the NIC says so.
//!
//! The NIC is asked to say so (RS) for every [`BLOCK`] descriptors and for the last one before the tail is written, which
//! happens in `flush` alone. Of each block only the descriptor that was asked for is looked at: when it is done, so are
//! all before it.

use bywash_frame::{Batch, Packet, Piece, Pool, RingLedger};
use bywash_hw::ixgbe::MAX_TX_DESCRIPTORS;
use bywash_hw::ixgbe::desc::tx;
use bywash_port::{QueueCounters, TxQueue};
use bywash_sys::dma::{Descriptor, Descriptors};
use bywash_sys::function::{DeviceAddresses, Registers};

use super::offload::{self, Context, Work};
use super::rx::close_ring;
use super::{Bar, RingParts, Switch};

/// Descriptors for which the NIC is asked once whether they are done.
const BLOCK: u32 = 32;

/// Fewest bytes of a packet: the Ethernet header.
const SHORTEST: usize = 14;

/// Fewest bytes that the NIC takes (PAYLEN), as Linux's drivers have it: zeros make up for what lacks. It pads the rest, up to what the
/// wire wants, by itself.
const LEAST: usize = 17;

/// What every data descriptor says.
const DATA: u32 = tx::DTYP.with(tx::TYPE_DATA) | tx::DEXT.mask | tx::IFCS.mask;

/// The second word of a packet's only descriptor, without its lengths.
const WHOLE: u64 = (DATA | tx::EOP.mask) as u64;

/// A packet's length, in LENGTH and in PAYLEN: one multiplication puts it into both.
const LENGTHS: u64 = 1 << (32 + tx::PAYLEN.shift()) | 1 << tx::LENGTH.shift();

/// What a transmitting ring is made of.
#[derive(Debug)]
pub(crate) struct TxParts<R> {
    pub(crate) ring: RingParts<R>,
    /// Most bytes of a packet, without FCS.
    pub(crate) max_len: usize,
    /// Each packet names a context (CC), also when it asks for nothing: a virtual function's must, because the switch in the
    /// NIC looks at its headers.
    pub(crate) names_context: bool,
}

/// A transmitting ring.
#[derive(Debug)]
pub(crate) struct TxRing<R> {
    bar: Bar<R>,
    ring: Descriptors,
    frames: RingLedger,
    /// The device's addresses of the arena.
    addresses: DeviceAddresses,
    tail: u32,
    switch: Switch,
    max_len: usize,
    /// The fourth word's bits that every packet has.
    olinfo: u32,
    /// The descriptor that is filled next, the oldest that is not done, and what the tail register says; free-running.
    next: u32,
    oldest: u32,
    told: u32,
    /// Descriptors, packets and bytes since RS was last set.
    open: Block,
    blocks: Blocks,
    /// The context that the NIC has.
    context: Option<Context>,
    queued: usize,
    counters: QueueCounters,
}

/// Descriptors whose last has RS.
#[derive(Clone, Copy, Debug, Default)]
struct Block {
    /// Number of the last one.
    end: u32,
    /// A context has no frame.
    descriptors: u32,
    frames: u32,
    packets: u32,
    bytes: u64,
}

/// Blocks that are not done, the oldest first: a ring of as many as there are descriptors.
#[derive(Debug)]
struct Blocks {
    slots: Box<[Block]>,
    head: u32,
    tail: u32,
}

impl Blocks {
    #[inline]
    fn push(&mut self, block: Block) {
        let mask = self.slots.len() - 1;
        self.slots[self.tail as usize & mask] = block;
        self.tail = self.tail.wrapping_add(1);
    }

    #[inline]
    fn first(&self) -> Option<Block> {
        let mask = self.slots.len() - 1;
        (self.head != self.tail).then(|| self.slots[self.head as usize & mask])
    }
}

impl<R: Registers> TxRing<R> {
    pub(crate) fn new(parts: TxParts<R>) -> Self {
        let TxParts { ring, max_len, names_context } = parts;
        let RingParts { bar, descriptors, tail, switch, arena, addresses } = ring;
        let size = descriptors.count();
        let mut ring = Self {
            bar,
            frames: RingLedger::new(arena, size as usize),
            ring: descriptors,
            addresses,
            tail,
            switch,
            max_len,
            olinfo: if names_context { tx::CC.mask } else { 0 },
            next: 0,
            oldest: 0,
            told: 0,
            open: Block::default(),
            blocks: Blocks { slots: vec![Block::default(); size as usize].into(), head: 0, tail: 0 },
            context: None,
            queued: 0,
            counters: QueueCounters::default(),
        };
        if names_context {
            ring.put_context(offload::plain());
            // There is nothing to send yet: the NIC reads it together with the first packet.
            ring.told = ring.next;
        }
        ring
    }

    /// Fills the next descriptor with a context.
    fn put_context(&mut self, context: Context) {
        let [first, second] = context.words();
        self.ring.at(self.next).put(first, second);
        self.next = self.next.wrapping_add(1);
        self.open.descriptors += 1;
        self.context = Some(context);
    }

    /// Descriptors that may be filled: one stays empty, because a tail that has caught up with the head means none.
    #[inline]
    fn room(&self) -> u32 {
        self.ring.count() - 1 - self.next.wrapping_sub(self.oldest)
    }

    /// Fills the next descriptor with a frame's bytes.
    #[inline]
    fn put(&mut self, piece: Piece, command: u32, olinfo: u32) {
        let length = piece.bytes().len() as u64;
        let offset = self.frames.lend_piece(piece);
        let second = u64::from(olinfo) << 32 | u64::from(command) | length;
        self.ring.at(self.next).put(self.addresses.of(offset), second);
        self.next = self.next.wrapping_add(1);
        self.open.descriptors += 1;
        self.open.frames += 1;
    }

    /// A packet's last descriptor has been filled.
    #[inline]
    fn packet_ends(&mut self, bytes: usize) {
        self.open.packets += 1;
        self.open.bytes += bytes as u64;
        self.end_full_block();
    }

    #[inline]
    fn end_full_block(&mut self) {
        if self.open.descriptors >= BLOCK {
            self.end_block();
        }
    }

    /// Asks the NIC to say when it is done with all so far.
    fn end_block(&mut self) {
        let end = self.next.wrapping_sub(1);
        // The NIC has not been told of it yet, so it says what we wrote.
        let last = self.ring.at(end);
        last.put_second(last.second() | u64::from(tx::RS.mask));
        let block = std::mem::take(&mut self.open);
        self.blocks.push(Block { end, ..block });
    }

    /// Takes back what the NIC is done with.
    #[inline]
    fn reclaim(&mut self, pool: &mut Pool) {
        while let Some(block) = self.blocks.first() {
            if self.ring.at(block.end).second() >> 32 & u64::from(tx::DD.mask) == 0 {
                return;
            }
            self.frames.reclaim_many(block.frames as usize, pool);
            self.oldest = block.end.wrapping_add(1);
            self.blocks.head = self.blocks.head.wrapping_add(1);
            self.queued -= block.packets as usize;
            self.counters.packets += u64::from(block.packets);
            self.counters.bytes += block.bytes;
        }
    }

    /// Queues packets from the front that are one descriptor each and need nothing done, as far as there is room.
    #[inline]
    fn simple(&mut self, batch: &mut Batch) {
        let longest = self.max_len - LEAST;
        let whole = WHOLE | u64::from(self.olinfo) << 32;
        loop {
            // To the end of the block, or of the ring.
            let most = self.room().min(BLOCK - self.open.descriptors);
            let run = self.ring.run(self.next, most as usize);
            let (frames, mut bytes) = (&mut self.frames, 0);
            // A loop for each kind of addresses, so that none asks for each packet.
            let lent = match &self.addresses {
                DeviceAddresses::Linear(first) => {
                    let first = *first;
                    let fill = fill(whole, longest, |offset| first + offset as u64, &mut bytes);
                    frames.lend_packets(run, batch, fill)
                }
                DeviceAddresses::Paged(table) => {
                    let fill = fill(whole, longest, |offset| table.of(offset), &mut bytes);
                    frames.lend_packets(run, batch, fill)
                }
            };
            let filled = number(lent);
            self.next = self.next.wrapping_add(filled);
            self.open.descriptors += filled;
            self.open.frames += filled;
            self.open.packets += filled;
            self.open.bytes += bytes;
            self.queued += lent;
            self.end_full_block();
            if lent == 0 || batch.is_empty() {
                return;
            }
        }
    }

    /// Queues the first packet, whatever it is. False when there is no room for it.
    #[cold]
    fn any(&mut self, pool: &mut Pool, batch: &mut Batch) -> bool {
        let Some(packet) = batch.iter().next() else { return false };
        let length = packet.len();
        let lacks = if length < SHORTEST { 0 } else { LEAST.saturating_sub(length) };
        // A context, and a descriptor for each frame; zeros may need one more.
        if self.room() as usize <= packet.frames() + usize::from(lacks > 0) {
            return false;
        }
        let Some(mut packet) = batch.drain_front(1).next() else { return false };
        let padded = packet.append(&[0; LEAST][..lacks], pool).is_ok();
        let work = match self.work(&mut packet).filter(|_| padded) {
            Some(work) if packet.frames() < MAX_TX_DESCRIPTORS => work,
            _ => {
                self.counters.errors += 1;
                pool.give_packet(packet);
                return true;
            }
        };
        if let Some(context) = work.context.filter(|context| self.context != Some(*context)) {
            self.put_context(context);
        }
        let olinfo = work.olinfo | self.olinfo;
        let mut left = packet.len();
        let mut command = DATA | work.command;
        packet.into_pieces(pool, |piece, pool| {
            let bytes = piece.bytes().len();
            if bytes == 0 {
                // The NIC takes no descriptor without bytes.
                pool.give_piece(piece);
                return;
            }
            left -= bytes;
            if left == 0 {
                command |= tx::EOP.mask;
            }
            self.put(piece, command, olinfo);
        });
        self.queued += 1;
        self.packet_ends(length);
        true
    }

    /// What the NIC is to do with a packet; `None` when it can't be sent.
    fn work(&self, packet: &mut Packet) -> Option<Work> {
        if packet.len() < SHORTEST {
            return None;
        }
        let work = offload::plan(packet, self.max_len)?;
        (work.cuts || packet.len() <= self.max_len).then_some(work)
    }
}

/// What fills a descriptor with a packet whose frame lies at an offset, and counts its bytes; false when something is to be done with
/// the packet, or it has less than [`LEAST`] bytes, or more than `longest` beyond those.
#[inline]
fn fill(
    whole: u64,
    longest: usize,
    address: impl Fn(usize) -> u64,
    bytes: &mut u64,
) -> impl FnMut(&Descriptor, &Packet, usize) -> bool {
    move |descriptor, packet, offset| {
        let segment = packet.head_segment();
        let simple = !packet.offload.asks_for_work() && segment.len().wrapping_sub(LEAST) <= longest;
        if simple {
            let length = segment.len() as u64;
            *bytes += length;
            descriptor.put(address(offset + segment.start()), whole + length * LENGTHS);
        }
        simple
    }
}

/// A count of descriptors, of which a ring has at most 8192.
#[inline]
#[expect(clippy::cast_possible_truncation, reason = "no ring has so many")]
fn number(count: usize) -> u32 {
    count as u32
}

impl<R: Registers> TxQueue for TxRing<R> {
    fn tx(&mut self, pool: &mut Pool, batch: &mut Batch) -> usize {
        if (self.room() as usize) < batch.len() {
            self.reclaim(pool);
        }
        let before = batch.len();
        loop {
            self.simple(batch);
            if batch.is_empty() || !self.any(pool, batch) {
                return before - batch.len();
            }
        }
    }

    fn flush(&mut self, pool: &mut Pool) {
        if self.told != self.next {
            if self.open.descriptors > 0 {
                self.end_block();
            }
            self.told = self.next;
            self.bar.put_offset(self.tail, self.next & (self.ring.count() - 1));
        }
        self.reclaim(pool);
    }

    fn in_flight(&self) -> usize {
        self.queued
    }

    fn counters(&self) -> QueueCounters {
        self.counters
    }

    fn close(self: Box<Self>, pool: &mut Pool) {
        let Self { bar, frames, switch, .. } = *self;
        close_ring(&bar, switch, frames, pool);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

    use bywash_frame::{Arena, Stride};
    use bywash_sys::dma::DmaBuffer;

    use super::*;
    use crate::intel::REST;

    /// Registers that are all 0; it is counted how often one is written.
    #[derive(Clone, Debug, Default)]
    struct Counting(Arc<AtomicU32>);

    impl Registers for Counting {
        fn read32(&self, _: u32) -> u32 {
            0
        }

        fn write32(&self, _: u32, _: u32) {
            self.0.fetch_add(1, Relaxed);
        }
    }

    #[test]
    fn the_nic_is_asked_once_for_each_block_and_told_once_for_each_flush() {
        for (flushes, asked) in [(2, &[31, 39, 71, 79][..]), (1, &[31, 63, 79])] {
            let arena = Arena::new(vec![0; Stride::Packed.memory_for(256)]).unwrap();
            let mut pool = arena.pool(arena.frames()).unwrap();
            let buffer = DmaBuffer::new(128 * 16).unwrap();
            let [descriptors, of_device] = [0, 1].map(|_| buffer.descriptors(0, 128).unwrap());
            let (registers, addresses) = (Counting::default(), DeviceAddresses::Linear(0));
            let switch = Switch { offset: 0, name: ("none", 0), enable: 1, rest: REST };
            let bar = Bar::new(registers.clone());
            let ring = RingParts { bar, descriptors, tail: 0, switch, arena, addresses };
            let mut tx = TxRing::new(TxParts { ring, max_len: 1514, names_context: false });
            let mut batch = Batch::new();
            for number in 1..=2 {
                for frame in pool.take_many(40) {
                    let mut packet = Packet::new(frame);
                    packet.extend_from_slice(&[0xff; 60]).unwrap();
                    batch.push(packet);
                }
                assert_eq!(tx.tx(&mut pool, &mut batch), 40);
                if number > 2 - flushes {
                    tx.flush(&mut pool);
                }
            }
            assert_eq!(registers.0.load(Relaxed), flushes);
            let is_asked = |at: &u32| of_device.at(*at).second() & u64::from(tx::RS.mask) != 0;
            assert_eq!((0..128).filter(is_asked).collect::<Vec<u32>>(), asked);
            Box::new(tx).close(&mut pool);
        }
    }
}
