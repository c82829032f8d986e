//! Receiving: descriptors that are done become packets, free frames take their place.
//!
//! The NIC owns the descriptors from its head up to the tail that we write, never all of them: head and tail alike mean
//! that it has none. A descriptor is done when DD is set in its second word, which the NIC writes last.
//!
//! Every slot has a frame, but for the start and for when the pool has none: a packet's frame is exchanged for a fresh one
//! as it is taken out, all at once where packets are simply whole.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use bywash_frame::{
    Batch, Checksum, FRAME_DATA, Frame, HEADROOM, Offload, Packet, Pool, RingLedger, Segment,
};
use bywash_hw::igb::rx as igb;
use bywash_hw::ixgbe::desc::{packet_type, rx};
use bywash_port::{QueueCounters, RxQueue};
use bywash_sys::dma::{Descriptor, Descriptors};
use bywash_sys::function::{DeviceAddresses, Registers};

use super::{Bar, RingParts, SHORT, Switch, Vlans, Wait};

/// Frames that wait for the tail to be written, at most: it is written once for so many.
const BLOCK: u32 = 32;

/// How a queue is woken.
#[derive(Debug)]
pub(crate) struct Wake {
    /// The vector's eventfd.
    pub(crate) bell: OwnedFd,
    /// Offset of the register that unmasks the vector, and its bit. The NIC masks it again when it fires.
    pub(crate) unmask: (u32, u32),
}

/// Bits of a descriptor's second word that don't mean the same on all NICs: what is wrong with a packet, in one order or another,
/// and what is not to be taken from the words.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RxBits {
    /// It is damaged.
    pub(crate) damaged: u32,
    /// TCP's or UDP's checksum is wrong.
    pub(crate) transport: u32,
    /// The IPv4 header's checksum is wrong.
    pub(crate) ip: u32,
    /// There is no hash: where it would be, a flow director filter has put its name.
    pub(crate) no_hash: u32,
    /// What is said of checksums is to be ignored.
    pub(crate) no_checksum: u32,
}

impl RxBits {
    /// Those of the 82599 and its virtual functions.
    pub(crate) const IXGBE: Self = Self {
        damaged: rx::RXE.mask,
        transport: rx::L4E.mask,
        ip: rx::IPE.mask,
        no_hash: rx::FLM.mask,
        no_checksum: 0,
    };
    /// Those of the 82576 and its virtual functions.
    pub(crate) const IGB: Self = Self {
        damaged: igb::RXE.mask,
        transport: igb::L4E.mask,
        ip: igb::IPE.mask,
        no_hash: 0,
        no_checksum: igb::IXSM.mask,
    };

    const fn all(self) -> u32 {
        self.damaged | self.transport | self.ip | self.no_hash | self.no_checksum
    }
}

// So the hot path asks for any of them alike.
const _: () = assert!(RxBits::IXGBE.all() == RxBits::IGB.all());

/// What a receiving ring is made of.
#[derive(Debug)]
pub(crate) struct RxParts<R> {
    pub(crate) ring: RingParts<R>,
    pub(crate) wake: Option<Wake>,
    pub(crate) bits: RxBits,
    /// VLANs whose tags are packets' own, of a virtual function; all when `None`.
    pub(crate) vlans: Option<Arc<Vlans>>,
}

/// A receiving ring.
#[derive(Debug)]
pub(crate) struct RxRing<R> {
    bar: Bar<R>,
    ring: Descriptors,
    frames: RingLedger,
    /// The device's addresses of the arena, behind the headroom.
    addresses: DeviceAddresses,
    tail: u32,
    switch: Switch,
    wake: Option<Wake>,
    bits: RxBits,
    vlans: Option<Arc<Vlans>>,
    armed: bool,
    /// The descriptor that is done next, and the one that gets a frame next; free-running.
    next: u32,
    given: u32,
    /// The tail as it was last written; free-running, too.
    told: u32,
    /// A packet whose last descriptor has not come yet.
    partial: Partial,
    counters: QueueCounters,
    dry: bool,
}

/// What has come of a packet of several descriptors.
#[derive(Debug, Default)]
enum Partial {
    #[default]
    None,
    Packet(Packet),
    /// It is damaged: what comes up to its end is dropped.
    Bad,
}

impl<R: Registers> RxRing<R> {
    /// A ring without frames: the first call to `rx` fills it.
    pub(crate) fn new(parts: RxParts<R>) -> Self {
        let RxParts { ring, wake, bits, vlans } = parts;
        let RingParts { bar, descriptors, tail, switch, arena, addresses } = ring;
        let size = descriptors.count();
        Self {
            bar,
            frames: RingLedger::new(arena, size as usize),
            ring: descriptors,
            addresses: addresses.ahead(HEADROOM),
            tail,
            switch,
            wake,
            bits,
            vlans,
            armed: false,
            next: 0,
            given: 0,
            told: 0,
            partial: Partial::None,
            counters: QueueCounters::default(),
            dry: false,
        }
    }

    /// Whether every slot has a frame.
    #[inline]
    fn is_full(&self) -> bool {
        self.given.wrapping_sub(self.next) == self.ring.count()
    }

    /// Fills slots that have no frame, as far as `pool` has some: at the start, and after it had none.
    #[cold]
    fn fill(&mut self, pool: &mut Pool) {
        let missing = self.ring.count() - self.given.wrapping_sub(self.next);
        for frame in pool.take_many(missing as usize) {
            let offset = self.frames.lend(frame);
            self.ring.at(self.given).put(self.addresses.of(offset), 0);
            self.given = self.given.wrapping_add(1);
        }
        // Counted by the spell: how many packets each has cost, only the NIC knows.
        let was_dry = std::mem::replace(&mut self.dry, self.given == self.next);
        self.counters.no_frame += u64::from(self.dry && !was_dry);
        self.tell();
    }

    /// Where the tail may be: the NIC has all slots with a frame then, but not the last of a full ring.
    #[inline]
    fn end(&self) -> u32 {
        self.given.wrapping_sub(u32::from(self.is_full()))
    }

    /// Writes the tail, if it is another one: with an empty pool there is nothing to say.
    #[inline]
    fn tell(&mut self) {
        let end = self.end();
        if end != self.told {
            self.told = end;
            self.bar.put_offset(self.tail, end & (self.ring.count() - 1));
        }
    }

    /// Appends packets that are whole, good and in one buffer, up to the first that is not and to the ring's end, with
    /// fresh frames in the places of theirs. True when there may be more of these.
    #[inline]
    fn whole(&mut self, pool: &mut Pool, batch: &mut Batch) -> bool {
        let run = self.ring.run(self.next, batch.room());
        let (frames, mut bytes) = (&mut self.frames, 0);
        // A loop for each kind of addresses, so that none asks for each packet.
        let count = match &self.addresses {
            DeviceAddresses::Linear(first) => {
                let first = *first;
                let make = refill(|offset| first + offset as u64, &mut bytes);
                frames.exchange(run, pool, batch, simple, make)
            }
            DeviceAddresses::Paged(table) => {
                frames.exchange(run, pool, batch, simple, refill(|offset| table.of(offset), &mut bytes))
            }
        };
        let more = count > 0 && count == run.len();
        self.next = self.next.wrapping_add(number(count));
        self.given = self.given.wrapping_add(number(count));
        self.counters.packets += count as u64;
        self.counters.bytes += (bytes + count) as u64;
        more
    }

    /// Takes the next descriptor, if it is done, and appends the packet that it completes, if it does. False when it is
    /// not done.
    fn one(&mut self, pool: &mut Pool, batch: &mut Batch) -> bool {
        let descriptor = self.ring.at(self.next);
        let second = descriptor.second();
        if second & u64::from(rx::DD.mask) == 0 {
            return false;
        }
        let first = descriptor.first();
        let Some(frame) = self.frames.reclaim() else { return false };
        if let Some(fresh) = if self.is_full() { pool.take() } else { None } {
            let offset = self.frames.lend(fresh);
            self.ring.at(self.next).put(self.addresses.of(offset), 0);
            self.given = self.given.wrapping_add(1);
        }
        self.next = self.next.wrapping_add(1);
        if let Some(packet) = self.piece(frame, first, second, pool) {
            self.counters.packets += 1;
            self.counters.bytes += packet.len() as u64;
            batch.push(packet);
        }
        true
    }

    /// A descriptor that is not simply a whole good packet: one of several, or damaged. Returns the packet that it
    /// completes.
    #[cold]
    fn piece(&mut self, frame: Frame, first: u64, second: u64, pool: &mut Pool) -> Option<Packet> {
        let last = second & u64::from(rx::EOP.mask) != 0;
        let length = length(second);
        // Of a descriptor that is not the last nothing but DD and the length counts (82575EB manual, 5.3.4; 82598's, 3.5.2).
        let damaged =
            last && second & u64::from(self.bits.damaged) != 0 || !(1..=FRAME_DATA).contains(&length);
        let partial = std::mem::take(&mut self.partial);
        let grown = match (partial, Segment::new(frame, HEADROOM, length)) {
            (Partial::None, Ok(segment)) if !damaged => Ok(Packet::from_segment(segment)),
            (Partial::Packet(mut packet), Ok(segment)) if !damaged => {
                match packet.push_segment(segment, pool) {
                    Ok(()) => Ok(packet),
                    Err(segment) => {
                        pool.give(segment.into_frame());
                        Err(Some(packet))
                    }
                }
            }
            (partial, segment) => {
                pool.give(segment.map_or_else(|frame| frame, Segment::into_frame));
                Err(if let Partial::Packet(packet) = partial { Some(packet) } else { None })
            }
        };
        match grown {
            Ok(mut packet) if last => {
                describe(&mut packet, first, second, self.bits, self.vlans.as_deref());
                return Some(packet);
            }
            Ok(packet) => self.partial = Partial::Packet(packet),
            Err(packet) => {
                packet.into_iter().for_each(|packet| pool.give_packet(packet));
                if last {
                    self.counters.errors += 1;
                } else {
                    self.partial = Partial::Bad;
                }
            }
        }
        None
    }

    fn hush(&mut self) {
        self.armed = false;
        if let Some(wake) = &self.wake {
            // It only fails when nothing has rung.
            let _ = rustix::io::read(&wake.bell, &mut [0; 8]);
        }
    }

    fn is_empty(&self) -> bool {
        self.given == self.next || self.ring.at(self.next).second() & u64::from(rx::DD.mask) == 0
    }
}

const _: () = assert!(FRAME_DATA.is_power_of_two());

/// A descriptor's second word when it has the simplest packet: it is done and ends here, and has one byte.
const SIMPLEST: u64 = (rx::DD.mask | rx::EOP.mask) as u64 | 1 << 32;

/// What another simple packet's word does not have more: status bits that say something else of it, and the upper bits of a
/// length beyond a whole buffer. Those of 0 bytes come up as well, because they are one less, and those of what is not done.
const NOT_SIMPLE: u64 = (rx::DD.mask | rx::EOP.mask | rx::VP.mask | RxBits::IXGBE.all()) as u64
    | (0xffff & !(FRAME_DATA as u64 - 1)) << 32;

/// What a descriptor's second word has more than that of the simplest packet; `None` when its packet is not simple, or not
/// there yet. It is read once: the NIC is not believed to leave it as it was.
#[inline]
fn simple(descriptor: &Descriptor) -> Option<u64> {
    let more = descriptor.second().wrapping_sub(SIMPLEST);
    (more & NOT_SIMPLE == 0).then_some(more)
}

/// Bytes of a simple packet, less one: what its word has more of them than that of the simplest.
#[inline]
fn whole_less_one(more: u64) -> usize {
    (more >> 32) as usize % FRAME_DATA
}

// The kind of hash lies where [`Offload::received`] wants it.
const _: () = assert!(rx::RSS_TYPE.mask == 0xf);

/// Bytes in a descriptor's buffer, as its second word says.
#[inline]
fn length(second: u64) -> usize {
    (second >> 32) as usize & 0xffff
}

/// The hash, when there is one: its type is not 0.
#[inline]
fn hash(first: u64) -> Option<u32> {
    (first & u64::from(rx::RSS_TYPE.mask) != 0).then_some((first >> 32) as u32)
}

/// What makes a packet of a frame whose descriptor is done, and gives the descriptor another frame, the one at an offset; it
/// counts the packets' bytes, each less by one.
#[inline]
#[expect(
    clippy::cast_possible_truncation,
    reason = "the hash is the upper half of the word, and its kind in the lower"
)]
fn refill(
    address: impl Fn(usize) -> u64,
    bytes: &mut usize,
) -> impl FnMut(&Descriptor, u64, Frame, usize) -> Packet {
    move |descriptor, more, frame, offset| {
        frame.prefetch();
        let first = descriptor.first();
        descriptor.put(address(offset), 0);
        let less_one = whole_less_one(more);
        *bytes += less_one;
        let mut packet = Packet::from_segment(Segment::received(frame, less_one + 1));
        let is_valid = more & u64::from(rx::L4CS.mask) != 0;
        packet.offload = Offload::received((first >> 32) as u32, first as u32, is_valid);
        packet
    }
}

/// A count of descriptors, of which a ring has at most 8192.
#[inline]
#[expect(clippy::cast_possible_truncation, reason = "no ring has so many")]
fn number(count: usize) -> u32 {
    count as u32
}

/// What the NIC says of a packet, in the words of its last descriptor.
#[expect(clippy::cast_possible_truncation, reason = "fields of 32 and 16 bits are cut out of the words")]
fn describe(packet: &mut Packet, first: u64, second: u64, bits: RxBits, vlans: Option<&Vlans>) {
    let (kind, status) = (first as u32, second as u32);
    packet.offload.set_hash(hash(first).filter(|_| status & bits.no_hash == 0));
    if status & rx::L4CS.mask != 0 && status & (bits.ip | bits.no_checksum) == 0 {
        // The 82599 calls UDP packets without a checksum wrong (erratum 44): of UDP it is not believed.
        let udp = rx::PACKET_TYPE.of(kind) & packet_type::UDP != 0;
        packet.offload.set_checksum(match (status & bits.transport != 0, udp) {
            (false, _) => Checksum::Valid,
            (true, false) => Checksum::Bad,
            (true, true) => Checksum::Unknown,
        });
    }
    let tag = (status & rx::VP.mask != 0).then_some((second >> 48) as u16);
    packet.offload.set_vlan(tag.filter(|tag| vlans.is_none_or(|own| own.has(*tag))));
}

impl<R: Registers> RxQueue for RxRing<R> {
    fn rx(&mut self, pool: &mut Pool, batch: &mut Batch) -> usize {
        if self.armed {
            self.hush();
        }
        let before = batch.len();
        if self.is_full() {
            // A packet of several descriptors is put together one by one, and so is all when `pool` has no frame.
            while batch.room() > 0 && self.is_full() {
                let more = matches!(self.partial, Partial::None) && self.whole(pool, batch);
                if !more && (batch.room() == 0 || !self.one(pool, batch)) {
                    break;
                }
            }
        }
        if !self.is_full() {
            while batch.room() > 0 && self.given != self.next && self.one(pool, batch) {}
            self.fill(pool);
        } else if self.end().wrapping_sub(self.told) >= BLOCK {
            self.tell();
        }
        batch.len() - before
    }

    fn arm(&mut self) -> bool {
        let Some(wake) = &self.wake else { return false };
        self.armed = true;
        self.bar.put_offset(wake.unmask.0, wake.unmask.1);
        // A packet that came before the vector was unmasked may have rung no bell. Without a frame none can come.
        self.is_empty() && self.given != self.next
    }

    fn wake_fd(&self) -> Option<BorrowedFd<'_>> {
        self.wake.as_ref().map(|wake| wake.bell.as_fd())
    }

    fn counters(&self) -> QueueCounters {
        self.counters
    }

    fn close(self: Box<Self>, pool: &mut Pool) {
        let Self { bar, frames, switch, partial, .. } = *self;
        if let Partial::Packet(packet) = partial {
            pool.give_packet(packet);
        }
        close_ring(&bar, switch, frames, pool);
    }
}

/// Switches a queue off, and takes its frames back when the NIC has let go of them.
pub(super) fn close_ring<R: Registers>(bar: &Bar<R>, switch: Switch, frames: RingLedger, pool: &mut Pool) {
    bar.put_offset(switch.offset, 0);
    let off = Wait::clear(switch.enable, SHORT, "the queue does not stop");
    match bar.wait_offset(switch.offset, switch.name, off) {
        Ok(_) => {
            std::thread::sleep(switch.rest);
            frames.recover(pool);
        }
        // Whether it still writes can't be known.
        Err(_) => {
            frames.abandon();
        }
    }
}

#[cfg(test)]
mod tests;
