//! Reception: a frame from the wire is checked, filtered, given a queue, held in packet memory until there are descriptors,
//! and written to memory.

use std::borrow::Cow;
use std::collections::VecDeque;

use bywash_hw::ixgbe::desc::{self, DESCTYPE_ADVANCED, DESCTYPE_LEGACY, packet_type, rx, rx_legacy};
use bywash_hw::ixgbe::regs::{
    self, EICR, FCTRL, HLREG0, MAXFRS, RXCSUM, RXCTRL, RXDCTL, RXPBSIZE, SECRXCTRL, SRRCTL, VLNCTRL,
};

use super::filters::{Passed, layer_2, steer};
use super::parse::{Parsed, check_sequence, parse};
use super::strict::Rule;
use super::{Nic, following, rss, stats};
use crate::host::{Host, NotMapped};

/// Empty frames that are kept, and how many bytes each may have.
const SPARE: usize = 512;
const SPARE_BYTES: usize = 2048;

/// Descriptors that are written back together at most. Not one by one: a driver on another processor that looks at the next one
/// and the NIC that writes the one behind it would take their cache line from each other each time.
const WRITE_BACK: usize = 32;

/// A descriptor that is done.
#[derive(Clone, Copy, Debug)]
struct Done {
    queue: u32,
    address: u64,
    descriptor: [u8; desc::SIZE],
}

/// A frame in packet memory, with all that its descriptor will say.
#[derive(Clone, Debug)]
struct Held {
    frame: Vec<u8>,
    queue: u32,
    hash: Option<(u32, u32)>,
    filter: Option<u32>,
    ether_type: Option<u32>,
    inexact: bool,
    parsed: Parsed,
}

/// Packet memory.
#[derive(Clone, Debug, Default)]
pub(super) struct Receiver {
    held: VecDeque<Held>,
    bytes: usize,
    /// Descriptors to be written back.
    done: Vec<Done>,
    /// Packets written to memory since the start: which are faulty goes by it.
    written: u32,
    stopped: u128,
    /// Five-tuple filters that are on.
    five_tuples: u128,
}

impl Receiver {
    /// A queue was enabled.
    pub(super) fn start(&mut self, queue: u32) {
        self.stopped &= !(1 << queue);
    }

    /// A five-tuple filter is on or off.
    pub(super) fn set_five_tuple(&mut self, filter: u32, on: bool) {
        self.five_tuples = self.five_tuples & !(1 << filter) | u128::from(on) << filter;
    }
}

impl Nic {
    /// Most bytes of a frame, check sequence included; a VLAN tag may come on top.
    pub(super) fn longest_frame(&self, frame: &[u8]) -> usize {
        let jumbo = HLREG0::JUMBOEN.is_set(self.file.one(&HLREG0));
        let most = if jumbo { MAXFRS::MFS.of(self.file.one(&MAXFRS)) } else { 1518 };
        most as usize + if frame.get(12..14) == Some(&[0x81, 0]) { 4 } else { 0 }
    }

    /// A frame arrives, without its check sequence, of which `check_good` says whether it was right.
    pub(super) fn arrive(&mut self, frame: Vec<u8>, check_good: bool, looped: bool) {
        let on = RXCTRL::RXEN.is_set(self.file.one(&RXCTRL));
        let dark = !looped && !self.link.up;
        if !on || dark || !self.may_receive() || SECRXCTRL::RX_DIS.is_set(self.file.one(&SECRXCTRL)) {
            return;
        }
        stats::arrived(&mut self.file, &frame);
        let keep_bad = FCTRL::SBP.is_set(self.file.one(&FCTRL));
        let length = frame.len() + stats::FCS;
        let bad = stats::bad(length, self.longest_frame(&frame), check_good);
        if let Some(counter) = bad {
            self.file.count(counter, 0, 1);
            if !(keep_bad && check_good) {
                return;
            }
        }
        stats::good(&mut self.file, &frame);
        let parsed = parse(&frame, u16::try_from(VLNCTRL::VET.of(self.file.one(&VLNCTRL))).unwrap_or(0));
        let Some(passed) = layer_2(&self.file, self.port_vlan(), &frame, &parsed) else { return };
        stats::received(&mut self.file, &frame);
        stats::checked(&mut self.file, &parsed);
        self.hold(frame, parsed, passed);
    }

    /// Chooses the queue, and keeps the frame if there is room.
    fn hold(&mut self, frame: Vec<u8>, parsed: Parsed, passed: Passed) {
        let steered = steer(&self.file, self.rx.five_tuples, &parsed);
        let matched = match steered.queue {
            Some(_) => None,
            None => self.flow_director.steer(&mut self.file, &frame, &parsed),
        };
        let hash = if steered.ether_type.is_some() { None } else { self.rss.hash(&self.file, &parsed) };
        let queue = match (steered.queue, matched) {
            (Some(queue), _) => queue,
            (None, Some(matched)) => match matched.queue {
                Some(queue) => queue,
                None => return,
            },
            (None, None) => self.queue_of_pool(hash.map_or(0, |(hash, _)| rss::queue(&self.file, hash))),
        };
        let room = RXPBSIZE::SIZE.of(self.file.get(&RXPBSIZE, 0)) as usize * 1024;
        if self.rx.bytes + frame.len() > room {
            self.file.count(&regs::MPC, 0, 1);
            self.interrupts.other(EICR::RX_MISS.mask);
            return;
        }
        self.rx.bytes += frame.len();
        let filter = matched.and_then(|matched| matched.report);
        let inexact = passed == Passed::Inexact;
        self.rx.held.push_back(Held {
            frame,
            queue,
            hash,
            filter,
            ether_type: steered.ether_type,
            inexact,
            parsed,
        });
    }

    /// Writes held frames to memory, in the order they came. A queue without descriptors holds up all others unless it is
    /// told to drop.
    pub(super) fn deliver(&mut self, host: &mut Host<'_>) {
        // Out of the receiver, so that a frame stays where it is while it is written.
        let mut waiting = std::mem::take(&mut self.rx.held);
        while let Some(held) = waiting.front() {
            if !self.deliver_one(held, host) {
                break;
            }
            if let Some(Held { frame, .. }) = waiting.pop_front() {
                self.rx.bytes -= frame.len();
                self.recycle(frame);
            }
        }
        self.rx.held = waiting;
        self.write_back(host);
    }

    /// Writes descriptors back that are done, in their order.
    fn write_back(&mut self, host: &mut Host<'_>) {
        let mut done = std::mem::take(&mut self.rx.done);
        for Done { queue, address, descriptor } in done.drain(..) {
            if let Err(error) = host.memory.publish(address, &descriptor) {
                self.violations.add("RDBAL", queue, Rule::NotMapped(error.address, error.bytes));
                self.rx.stopped |= 1 << queue;
            }
        }
        self.rx.done = done;
    }

    /// Writes a held frame to memory, or drops it. False when it must wait.
    fn deliver_one(&mut self, held: &Held, host: &mut Host<'_>) -> bool {
        let queue = held.queue;
        let enabled = RXDCTL::ENABLE.is_set(self.file.get(&RXDCTL, queue));
        if !enabled || self.rx.stopped >> queue & 1 != 0 {
            stats::dropped(&mut self.file, queue);
            return true;
        }
        let frame = self.trimmed(held);
        if self.descriptors_for(queue, frame.0.len()) > self.descriptors(queue) {
            let drops = SRRCTL::DROP_EN.is_set(self.file.get(&SRRCTL, queue));
            if !drops && self.pfqde >> queue & 1 == 0 {
                return false;
            }
            stats::dropped(&mut self.file, queue);
        } else if !self.may_dma("RDBAL", queue) {
            return false;
        } else if self.write(held, &frame, host) {
            stats::delivered(&mut self.file, queue, frame.0.len());
            self.interrupts.queue(&self.file, queue, true);
        }
        true
    }

    /// Keeps a frame's memory for another one.
    fn recycle(&mut self, mut frame: Vec<u8>) {
        if self.spare.len() < SPARE && frame.capacity() <= SPARE_BYTES {
            frame.clear();
            self.spare.push(frame);
        }
    }

    /// The bytes that go to memory, and the tag that was taken out of them.
    fn trimmed<'a>(&self, held: &'a Held) -> (Cow<'a, [u8]>, Option<u16>) {
        let mut frame = Cow::Borrowed(held.frame.as_slice());
        if !HLREG0::RXCRCSTRP.is_set(self.file.one(&HLREG0)) {
            frame.to_mut().extend(check_sequence(&held.frame));
        }
        let strips = RXDCTL::VME.is_set(self.file.get(&RXDCTL, held.queue));
        let tag = held.parsed.vlan.filter(|_| strips);
        if tag.is_some() {
            frame.to_mut().drain(12..16);
        }
        (frame, tag)
    }

    fn buffer_size(&self, queue: u32) -> usize {
        // A size of zero is a rule broken, and said so; here it must only not divide anything.
        SRRCTL::BSIZEPACKET.of(self.file.get(&SRRCTL, queue)).max(1) as usize * 1024
    }

    fn descriptors_for(&self, queue: u32, length: usize) -> u32 {
        let size = self.buffer_size(queue);
        if length <= size {
            u32::from(length > 0)
        } else {
            u32::try_from(length.div_ceil(size)).unwrap_or(u32::MAX)
        }
    }

    /// Descriptors that the NIC has in a ring.
    fn descriptors(&self, queue: u32) -> u32 {
        let ring = self.file.get(&regs::RDLEN, queue) / 16;
        let (head, tail) = (self.file.get(&regs::RDH, queue), self.file.get(&regs::RDT, queue));
        // Divided only when the driver has written what is no place of the ring.
        let (head, tail) = match ring {
            0 => return 0,
            _ if head < ring && tail < ring => (head, tail),
            _ => (head % ring, tail % ring),
        };
        if tail >= head { tail - head } else { tail + ring - head }
    }

    /// Writes a frame, and says so in its descriptors. False when memory was not there: the queue stops.
    fn write(
        &mut self,
        held: &Held,
        (frame, tag): &(Cow<'_, [u8]>, Option<u16>),
        host: &mut Host<'_>,
    ) -> bool {
        let queue = held.queue;
        let ring = self.file.get(&regs::RDLEN, queue) / 16;
        let base = self.ring_base(&regs::RDBAL, &regs::RDBAH, queue);
        let size = self.buffer_size(queue);
        let legacy = SRRCTL::DESCTYPE.of(self.file.get(&SRRCTL, queue)) == DESCTYPE_LEGACY;
        self.rx.written = self.rx.written.wrapping_add(1);
        let mut chunks = frame.chunks(size).peekable();
        while let Some(chunk) = chunks.next() {
            let head = self.file.get(&regs::RDH, queue);
            let address = base.wrapping_add(u64::from(head) * desc::SIZE as u64);
            let last = chunks.peek().is_none();
            let result = (|| {
                let mut bytes = [0; desc::SIZE];
                host.memory.read(address, &mut bytes)?;
                let words = desc::words(bytes);
                host.memory.write(u64::from(words[0]) | u64::from(words[1]) << 32, chunk)?;
                let done = if legacy {
                    let [length, status] = self.legacy_status(held, *tag, chunk.len(), last);
                    [words[0], words[1], length, status]
                } else {
                    self.advanced_status(held, *tag, chunk.len(), last)
                };
                Ok(desc::bytes(done))
            })();
            match result {
                Ok(descriptor) => self.rx.done.push(Done { queue, address, descriptor }),
                Err(NotMapped { address, bytes }) => {
                    self.violations.add("RDBAL", queue, Rule::NotMapped(address, bytes));
                    self.rx.stopped |= 1 << queue;
                    return false;
                }
            }
            if self.rx.done.len() >= WRITE_BACK {
                self.write_back(host);
            }
            self.file.set(&regs::RDH, queue, following(head, ring));
        }
        true
    }

    /// Whether this packet is one that a fault, one in `every`, befalls.
    fn befallen(&self, every: u32) -> bool {
        every != 0 && self.rx.written.is_multiple_of(every)
    }

    fn length(&self, queue: u32, length: usize) -> u32 {
        let length = match length {
            _ if self.befallen(self.faults.overlong_every) => self.buffer_size(queue) + 1,
            _ if self.befallen(self.faults.empty_every) => 0,
            length => length,
        };
        u32::try_from(length).unwrap_or(u32::MAX)
    }

    /// The words of an advanced write-back. What is said of the packet stands in its last descriptor; in another one the status and
    /// errors of a packet count for nothing, so they are all set, for a driver that believes them to be seen.
    fn advanced_status(&self, held: &Held, tag: Option<u16>, length: usize, last: bool) -> [u32; 4] {
        let mut words = [0; 4];
        words[2] = rx::DD.with(1) | rx::EOP.with(u32::from(last));
        words[3] =
            rx::LENGTH.with(self.length(held.queue, length)) | rx::VLAN.with(u32::from(tag.unwrap_or(0)));
        if !last {
            words[2] |= !rx::EOP.mask;
            return words;
        }
        let parsed = &held.parsed;
        let kind = held.ether_type.map_or(parsed.packet_type, |number| packet_type::ETQF | number);
        words[0] = rx::PACKET_TYPE.with(kind);
        let shows_hash = RXCSUM::PCSD.is_set(self.file.one(&RXCSUM));
        if let Some(name) = held.filter {
            words[1] = name;
            words[2] |= rx::FLM.mask;
        } else if let Some((hash, kind)) = held.hash.filter(|_| shows_hash) {
            words[0] |= rx::RSS_TYPE.with(kind);
            words[1] = hash;
        }
        let mut set = |field: bywash_hw::reg::Field, on: bool| words[2] |= field.with(u32::from(on));
        set(rx::VP, tag.is_some());
        set(rx::PIF, held.inexact);
        if held.ether_type.is_none() {
            set(rx::IPCS, parsed.ip_checksum_good.is_some());
            set(rx::IPE, parsed.ip_checksum_good == Some(false));
            set(rx::L4CS, parsed.l4_checksum_good.is_some());
            set(rx::UDPCS, parsed.l4_checksum_good.is_some() && parsed.udp_checksum_present);
            set(rx::UDPV, parsed.udp_checksum_present);
            set(rx::L4E, parsed.l4_checksum_good == Some(false));
        }
        set(rx::RXE, self.befallen(self.faults.error_every));
        words
    }

    /// The last two words of a legacy write-back.
    fn legacy_status(&self, held: &Held, tag: Option<u16>, length: usize, last: bool) -> [u32; 2] {
        let mut status = rx_legacy::DD.with(1) | rx_legacy::EOP.with(u32::from(last));
        let mut set = |field: bywash_hw::reg::Field, on: bool| status |= field.with(u32::from(on));
        set(rx_legacy::VP, tag.is_some());
        set(rx_legacy::IPCS, held.parsed.ip_checksum_good.is_some());
        set(rx_legacy::IPE, held.parsed.ip_checksum_good == Some(false));
        set(rx_legacy::L4CS, held.parsed.l4_checksum_good.is_some());
        set(rx_legacy::L4E, held.parsed.l4_checksum_good == Some(false));
        set(rx_legacy::RXE, self.befallen(self.faults.error_every));
        let words = rx_legacy::LENGTH.with(self.length(held.queue, length));
        [words, status | rx_legacy::VLAN.with(u32::from(tag.unwrap_or(0)))]
    }

    /// Whether a queue's SRRCTL makes sense for the model.
    pub(super) fn check_srrctl(&mut self, queue: u32) {
        let srrctl = self.file.get(&SRRCTL, queue);
        let known = matches!(SRRCTL::DESCTYPE.of(srrctl), DESCTYPE_LEGACY | DESCTYPE_ADVANCED);
        if !known || !(1..=16).contains(&SRRCTL::BSIZEPACKET.of(srrctl)) {
            self.violations.add("SRRCTL", queue, Rule::BadSrrctl(srrctl));
        }
    }
}
