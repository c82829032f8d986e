//! Transmission: descriptors are fetched, packets gathered, changed and sent, and descriptors written back.

use bywash_hw::ixgbe::desc::{self, context, tx};
use bywash_hw::ixgbe::regs::{self, DMATXCTL, HLREG0, SECTXCTRL, TDWBAL, TXDCTL};
use bywash_hw::ixgbe::{MAX_TX_DESCRIPTORS, QUEUES};

use super::offload::{Order, insert_legacy, insert_tag};
use super::strict::Rule;
use super::{Nic, following, stats};
use crate::host::Host;

/// Descriptors that are fetched together, if they are there: so that the packets of all are on their way when the first is sent.
const FETCH: u32 = 8;

/// Fewest bytes of a packet in advanced descriptors.
const LEAST: usize = 17;

/// What a transmit queue remembers between descriptors.
#[derive(Clone, Debug, Default)]
pub(super) struct Queue {
    contexts: [[u32; 4]; 2],
    /// The first data descriptor of the packet that is being gathered.
    first: Option<[u32; 4]>,
    packet: Vec<u8>,
    descriptors: usize,
    /// A DMA failed: nothing more until the queue is enabled anew.
    stopped: bool,
}

/// All transmit queues.
#[derive(Clone, Debug)]
pub(super) struct Transmitter {
    queues: Vec<Queue>,
    /// Queues whose tail was written.
    active: u128,
    /// Room for the frames that a packet becomes.
    frames: Vec<Vec<u8>>,
}

impl Transmitter {
    pub(super) fn new() -> Self {
        Self { queues: vec![Queue::default(); QUEUES as usize], active: 0, frames: Vec::new() }
    }

    /// The tail of a queue was written, or may have been.
    pub(super) fn kick(&mut self, queue: u32) {
        self.active |= 1 << queue;
    }

    /// A queue was enabled.
    pub(super) fn start(&mut self, queue: u32) {
        self.queues[queue as usize] = Queue::default();
        self.kick(queue);
    }
}

impl Nic {
    /// Sends what queues have, a ring's length of descriptors from each at most.
    pub(super) fn transmit(&mut self, host: &mut Host<'_>) {
        if self.faults.transmitter_hangs || !DMATXCTL::TE.is_set(self.file.one(&DMATXCTL)) {
            return;
        }
        let mut active = self.tx.active;
        while active != 0 {
            let queue = active.trailing_zeros();
            active &= active - 1;
            self.transmit_from(queue, host);
        }
    }

    fn transmit_from(&mut self, queue: u32, host: &mut Host<'_>) {
        let ring = self.file.get(&regs::TDLEN, queue) / 16;
        let enabled = TXDCTL::ENABLE.is_set(self.file.get(&TXDCTL, queue));
        if !enabled || ring == 0 || self.tx.queues[queue as usize].stopped {
            self.tx.active &= !(1 << queue);
            return;
        }
        let base = self.ring_base(&regs::TDBAL, &regs::TDBAH, queue);
        let mut reported = false;
        let mut taken = 0;
        'ring: while taken < ring {
            let (head, tail) = (self.file.get(&regs::TDH, queue), self.file.get(&regs::TDT, queue));
            if head == tail {
                self.tx.active &= !(1 << queue);
                break;
            }
            if !self.may_dma("TDBAL", queue) {
                break;
            }
            let mut block = [0; FETCH as usize * desc::SIZE];
            let end = if tail > head { tail } else { ring.max(head + 1) };
            let count = (end - head).min(FETCH).min(ring - taken);
            let block = &mut block[..count as usize * desc::SIZE];
            let address = base.wrapping_add(u64::from(head) * desc::SIZE as u64);
            if let Err(error) = host.memory.read(address, block) {
                self.violations.add("TDBAL", queue, Rule::NotMapped(error.address, error.bytes));
                self.tx.queues[queue as usize].stopped = true;
                break;
            }
            let (block, _) = block.as_chunks();
            block.iter().for_each(|bytes| host.memory.prefetch(buffer(desc::words(*bytes))));
            for (bytes, address) in block.iter().zip((address..).step_by(desc::SIZE)) {
                let words = desc::words(*bytes);
                if !self.descriptor(queue, words, host) {
                    break 'ring;
                }
                taken += 1;
                let head = following(self.file.get(&regs::TDH, queue), ring);
                self.file.set(&regs::TDH, queue, head);
                if tx::RS.is_set(words[2]) {
                    reported = true;
                    self.report(queue, words, address, head, host);
                }
            }
        }
        if reported {
            self.interrupts.queue(&self.file, queue, false);
        }
    }

    /// Says that all up to this descriptor is done: in the descriptor, or the head in memory.
    fn report(&mut self, queue: u32, words: [u32; 4], address: u64, head: u32, host: &mut Host<'_>) {
        let low = self.file.get(&TDWBAL, queue);
        let result = if TDWBAL::HEAD_WB_EN.is_set(low) {
            let high = u64::from(self.file.get(&regs::TDWBAH, queue)) << 32;
            host.memory.write(high | u64::from(low & !3), &head.to_le_bytes())
        } else {
            let done = [words[0], words[1], words[2], tx::DD.with(1)];
            host.memory.publish(address, &desc::bytes(done))
        };
        if let Err(error) = result {
            self.violations.add("TDBAL", queue, Rule::NotMapped(error.address, error.bytes));
            self.tx.queues[queue as usize].stopped = true;
        }
    }

    /// Takes one descriptor. False when the queue stops at it.
    fn descriptor(&mut self, queue: u32, words: [u32; 4], host: &mut Host<'_>) -> bool {
        let advanced = tx::DEXT.is_set(words[2]);
        let state = &mut self.tx.queues[queue as usize];
        if advanced && tx::DTYP.of(words[2]) == tx::TYPE_CONTEXT {
            let index = context::IDX.of(words[3]) as usize;
            let rule = match state.contexts.get_mut(index) {
                _ if state.first.is_some() => "a context within a packet",
                Some(place) => {
                    *place = words;
                    return true;
                }
                None => "there are contexts 0 and 1",
            };
            return self.bad(queue, words, rule);
        }
        if advanced && tx::DTYP.of(words[2]) != tx::TYPE_DATA {
            return self.bad(queue, words, "DTYP is neither a context nor data");
        }
        let length = tx::LENGTH.of(words[2]) as usize;
        state.first.get_or_insert(words);
        state.descriptors += 1;
        if length == 0 || state.descriptors > MAX_TX_DESCRIPTORS {
            return self.bad(queue, words, "no bytes, or the packet has more than 40 descriptors");
        }
        let at = state.packet.len();
        state.packet.resize(at + length, 0);
        if let Err(error) = host.memory.read(buffer(words), &mut state.packet[at..]) {
            state.stopped = true;
            self.violations.add("TDBAL", queue, Rule::NotMapped(error.address, error.bytes));
            return false;
        }
        if tx::EOP.is_set(words[2]) { self.packet(queue, words, host) } else { true }
    }

    /// A packet is complete.
    fn packet(&mut self, queue: u32, last: [u32; 4], host: &mut Host<'_>) -> bool {
        let state = &mut self.tx.queues[queue as usize];
        let mut packet = std::mem::replace(&mut state.packet, self.spare.pop().unwrap_or_default());
        let data = state.first.take().unwrap_or(last);
        state.descriptors = 0;
        let length = packet.len();
        let mut frames = std::mem::take(&mut self.tx.frames);
        frames.clear();
        let done = if tx::DEXT.is_set(data[2]) && length < LEAST {
            Err("less than 17 bytes, which PAYLEN cannot say")
        } else if tx::DEXT.is_set(data[2]) {
            let context = state.contexts.get(tx::IDX.of(data[3]) as usize).copied();
            let context = context.ok_or("there are contexts 0 and 1");
            context.and_then(|context| Order { data, context }.carry_out(&self.file, packet, &mut frames))
        } else {
            legacy(data, &mut packet).map(|()| frames.push(packet))
        };
        if let Err(rule) = done {
            return self.bad(queue, data, rule);
        }
        stats::taken(&mut self.file, queue, length);
        let checked = tx::DEXT.is_set(data[2]) && tx::CC.is_set(data[3]);
        self.observed.unchecked_packets += u64::from(self.is_virtual && !checked);
        self.observed.tso_packets += u64::from(tx::DEXT.is_set(data[2]) && tx::TSE.is_set(data[2]));
        for frame in frames.drain(..) {
            self.send(queue, data, frame, host);
        }
        self.tx.frames = frames;
        true
    }

    fn send(&mut self, queue: u32, data: [u32; 4], mut frame: Vec<u8>, host: &mut Host<'_>) {
        if let Some(vlan) = self.port_vlan() {
            insert_tag(&mut frame, vlan.to_be_bytes());
        }
        let hlreg0 = self.file.one(&HLREG0);
        let pads = HLREG0::TXPADEN.is_set(hlreg0);
        if frame.len() < 14 || frame.len() < 60 && !pads {
            self.bad(queue, data, "less than 60 bytes without HLREG0.TXPADEN, or less than 14");
            return;
        }
        if frame.len() + stats::FCS > self.longest_frame(&frame) {
            self.bad(queue, data, "longer than MAXFRS and HLREG0.JUMBOEN allow");
            return;
        }
        if frame.len() < 60 {
            frame.resize(60, 0);
        }
        let disabled = SECTXCTRL::TX_DIS.is_set(self.file.one(&SECTXCTRL));
        if HLREG0::LPBK.is_set(hlreg0) {
            stats::transmitted(&mut self.file, &frame);
            self.arrive(frame, true, true);
        } else if self.link.up && !disabled {
            stats::transmitted(&mut self.file, &frame);
            host.wire.send(frame);
        }
    }

    /// A descriptor that makes no sense: the queue stops, as hardware would until a reset.
    fn bad(&mut self, queue: u32, words: [u32; 4], rule: &'static str) -> bool {
        self.violations.add("TDT", queue, Rule::BadDescriptor(words, rule));
        self.tx.queues[queue as usize].stopped = true;
        false
    }
}

/// Where the bytes of a data descriptor lie.
fn buffer(words: [u32; 4]) -> u64 {
    u64::from(words[0]) | u64::from(words[1]) << 32
}

fn legacy(data: [u32; 4], packet: &mut Vec<u8>) -> Result<(), &'static str> {
    if tx::LEGACY_IC.is_set(data[2]) {
        let (start, offset) = (tx::LEGACY_CSS.of(data[3]), tx::LEGACY_CSO.of(data[2]));
        insert_legacy(packet, start as usize, offset as usize)?;
    }
    if tx::VLE.is_set(data[2]) {
        let tag = tx::LEGACY_VLAN.of(data[3]).to_be_bytes();
        insert_tag(packet, [tag[2], tag[3]]);
    }
    Ok(())
}
