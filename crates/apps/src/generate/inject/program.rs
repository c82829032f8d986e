//! From one worker's share of a plan to the XDP program that makes its packets.
//!
//! The kernel hands the program the same few pages over and over, and a page holds what was made in it before, or what
//! its last receiver has made of it. So nothing is ever counted up in a packet: everything that this file's program
//! writes is written anew, from what it keeps in a map, and each checksum starts from the sum over what does not vary.
//!
//! The map is an array with one value: first what changes ([`Place`]), then tables, which do not.

use std::ops::Range;
use std::os::fd::RawFd;

use bywash_port::filter::ebpf::{
    AssembleError, Assembler, Condition, Helper, Label, Operation, Program, Register, Width,
};
use bywash_port::filter::xdp::{MD_DATA, MD_DATA_END, XDP_DROP, XDP_REDIRECT};

use crate::generate::plan::{Patch, Plan, Variant};
use crate::generate::series::{Sequence, Shuffle};
use crate::generate::share::{Cursor, Share, TABLE};
use crate::probe::{CHECK_HERE, DROPPED, FACTORS, MAGIC, PROBE, TIME_BITS, TURN};

/// So many packets carry the same time. A run of the kernel's begins with a new one, and its batches of 64 are whole
/// multiples of this: so no packet is more than a few microseconds younger than it says.
const STAMPED: i32 = 16;

/// Packets of one batch, at most, between two clock readings.
pub(super) const KERNEL_BATCH: u32 = 64;

/// Bytes in front of the packet that are written anew each time, with all that does not vary in them. What lies behind
/// is the sender's as long as no receiver writes to it.
const REWRITTEN: usize = 128;

/// Words of eight bytes at the front of the map's value: where each lies.
#[derive(Clone, Copy)]
#[repr(i16)]
pub(super) enum Place {
    /// Packets handed to the interface.
    Sent = 0,
    /// Packets that it did not take, or that could not be made.
    Refused = 8,
    /// Their bytes: of those handed to the interface and of those not taken.
    Bytes = 16,
    /// Packets for which the time holds; 0 makes the program read the clock.
    Stamped = 24,
    /// What is to be added to `CLOCK_MONOTONIC` to make it `CLOCK_REALTIME`.
    Clock = 32,
    /// The probes' time, shifted to the upper bits.
    Time = 40,
    /// The next probe's number.
    Sequence = 48,
    /// Which size is next.
    Size = 56,
    /// Packets until all fields begin anew.
    Left = 64,
}

/// Where the fields' cursors lie: of each its position, and how many packets have had that.
const CURSORS: usize = 72;

/// Bytes of a size in its table: the difference to the longest packet, the lengths, the filler's CRC, the sums, the length.
const SIZE: usize = 32;
const SIZE_SHIFT: i32 = 5;

/// The packet, the map's value, and the sums over IPv4's header and over the payload. All survive calls. The context is
/// not needed any more when the first sum begins, and a size's table entry lies where the other sum will be.
const DATA: Register = Register::R6;
const CONTEXT: Register = Register::R7;
const IP_SUM: Register = Register::R7;
const STATE: Register = Register::R8;
const ENTRY: Register = Register::R9;
const SUM: Register = Register::R9;

/// Where on the stack the filler's CRC waits.
const FILLER: i16 = -8;

/// The maps, by their descriptors.
#[derive(Clone, Copy)]
pub(super) struct Maps {
    /// An array with one value, which begins as [`Image`].
    pub(super) state: RawFd,
    /// A device map, with the interface at 0.
    pub(super) interface: RawFd,
}

/// What the map's value begins as.
pub(super) struct Image {
    pub(super) bytes: Vec<u8>,
    /// Where each field's list lies.
    lists: Vec<Option<u32>>,
    sizes: u32,
}

impl Image {
    pub(super) fn new(share: &Share) -> Self {
        let plan = &share.plan;
        let mut bytes = vec![0; CURSORS + 16 * share.cursors.len()];
        let mut set = |at: usize, word: u64| bytes[at..at + 8].copy_from_slice(&word.to_ne_bytes());
        set(Place::Size as usize, share.size as u64);
        set(Place::Left as usize, share.circle);
        for (n, cursor) in share.cursors.iter().enumerate() {
            set(CURSORS + 16 * n, cursor.position);
            set(CURSORS + 16 * n + 8, cursor.held);
        }
        let mut lists = Vec::new();
        for patch in &plan.patches {
            let Sequence::List(list) = &patch.series.values else {
                lists.push(None);
                continue;
            };
            lists.push(Some(end(&bytes)));
            bytes.extend(list.iter().flat_map(|value| ((value & patch.mask) << patch.shift).to_ne_bytes()));
        }
        let sizes = end(&bytes);
        if plan.variants.len() > 1 {
            let longest = plan.longest();
            for variant in plan.cycle.iter().filter_map(|variant| plan.variants.get(usize::from(*variant))) {
                bytes.extend(size_entry(variant, longest));
            }
        }
        Self { bytes, lists, sizes }
    }
}

fn end(bytes: &[u8]) -> u32 {
    u32::try_from(bytes.len()).unwrap_or(u32::MAX)
}

fn size_entry(variant: &Variant, longest: usize) -> [u8; SIZE] {
    let Variant { len, ip_length, udp_length, ip_sum, sum, filler_crc } = *variant;
    let mut entry = [0; SIZE];
    let shorter = u64::from(len).wrapping_sub(longest as u64);
    entry[0..8].copy_from_slice(&shorter.to_ne_bytes());
    entry[8..10].copy_from_slice(&ip_length.to_be_bytes());
    entry[10..12].copy_from_slice(&udp_length.to_be_bytes());
    entry[12..16].copy_from_slice(&filler_crc.to_ne_bytes());
    entry[16..20].copy_from_slice(&u32::from(ip_sum).to_ne_bytes());
    entry[20..24].copy_from_slice(&u32::from(sum).to_ne_bytes());
    entry[24..32].copy_from_slice(&u64::from(len).to_ne_bytes());
    entry
}

/// The program that makes these packets and hands them to the interface. Its probes are of this stream.
///
/// # Errors
/// When it would be too long.
pub(super) fn program(
    share: &Share,
    image: &Image,
    stream: u16,
    maps: Maps,
) -> Result<Program, AssembleError> {
    let mut assembler = Assembler::new();
    let refused = assembler.label();
    let mut coder = Coder { a: assembler, share, plan: &share.plan, maps, refused };
    coder.begin(image);
    coder.constants();
    coder.lengths_and_sums();
    for (n, (patch, cursor)) in share.plan.patches.iter().zip(&share.cursors).enumerate() {
        let list = image.lists.get(n).copied().flatten();
        coder.field(patch, *cursor, Slot::of(n), list);
    }
    coder.begin_anew();
    if let Some(at) = share.plan.probe {
        coder.probe(at, stream);
    }
    coder.checksums();
    coder.redirect();
    coder.a.finish()
}

/// Where a field's cursor lies in the map's value.
#[derive(Clone, Copy)]
struct Slot {
    position: i16,
    held: i16,
}

impl Slot {
    fn of(n: usize) -> Self {
        let position = i16::try_from(CURSORS + 16 * n).unwrap_or(i16::MAX - 8);
        Self { position, held: position + 8 }
    }
}

struct Coder<'a> {
    a: Assembler,
    share: &'a Share,
    plan: &'a Plan,
    maps: Maps,
    refused: Label,
}

impl Coder<'_> {
    fn has_sizes(&self) -> bool {
        self.plan.variants.len() > 1
    }

    /// Bytes from the front that are written.
    fn span(&self) -> usize {
        let lengths = [self.plan.ip_length, self.plan.udp_length, self.plan.ip_checksum, self.plan.checksum];
        let words = lengths.into_iter().flatten().map(|at| at + 2);
        let patches = self.plan.patches.iter().map(|patch| self.end(patch));
        let probe = self.plan.probe.map(|at| at + PROBE);
        words.chain(patches).chain(probe).max().unwrap_or_default().max(self.rewritten())
    }

    fn rewritten(&self) -> usize {
        self.shortest().min(self.plan.head).min(REWRITTEN)
    }

    fn shortest(&self) -> usize {
        self.plan.variants.iter().map(|variant| usize::from(variant.len)).min().unwrap_or_default()
    }

    /// Where what is written of a field's word ends: a page has nothing behind the packet, while the word may end there.
    /// The field itself does not.
    fn end(&self, patch: &Patch) -> usize {
        (patch.at + patch.width).min(self.shortest())
    }

    /// Cuts the packet to its size, and proves to the verifier that all that is written lies in it.
    fn begin(&mut self, image: &Image) {
        let span = number(self.span());
        let a = &mut self.a;
        a.mov(CONTEXT, Register::R1);
        a.map_value(STATE, self.maps.state, 0);
        if self.plan.variants.len() > 1 {
            let sizes = number(self.plan.cycle.len());
            let within = a.label();
            a.load(Width::Double, Register::R1, STATE, Place::Size as i16);
            a.jump_if(Register::R1, Condition::GreaterOrEqual, sizes, self.refused);
            a.mov(Register::R2, Register::R1);
            a.operate(Operation::Add, Register::R2, 1);
            a.jump_if(Register::R2, Condition::Less, sizes, within);
            a.operate(Operation::Subtract, Register::R2, sizes);
            a.place(within);
            a.store(Width::Double, STATE, Place::Size as i16, Register::R2);
            a.operate(Operation::ShiftLeft, Register::R1, SIZE_SHIFT);
            a.map_value(ENTRY, self.maps.state, image.sizes);
            a.operate(Operation::Add, ENTRY, Register::R1);
            a.mov(Register::R1, CONTEXT);
            a.load(Width::Double, Register::R2, ENTRY, 0);
            a.call(Helper::AdjustTail);
            a.jump_if(Register::R0, Condition::NotEqual, 0, self.refused);
            a.load(Width::Double, Register::R1, ENTRY, 24);
        } else {
            a.mov(Register::R1, number(self.plan.longest()));
        }
        a.load(Width::Double, Register::R2, STATE, Place::Bytes as i16);
        a.operate(Operation::Add, Register::R2, Register::R1);
        a.store(Width::Double, STATE, Place::Bytes as i16, Register::R2);
        a.load(Width::Word, DATA, CONTEXT, MD_DATA);
        a.load(Width::Word, Register::R2, CONTEXT, MD_DATA_END);
        a.mov(Register::R1, DATA);
        a.operate(Operation::Add, Register::R1, span);
        a.jump_if(Register::R1, Condition::Greater, Register::R2, self.refused);
    }

    /// Writes what does not vary: in front, and in words that several fields have parts of, as all but the first are put
    /// into what is there.
    fn constants(&mut self) {
        let front = self.rewritten();
        self.write(0..front);
        for patch in self.plan.patches.iter().filter(|patch| patch.base.is_none()) {
            self.write(patch.at.max(front)..self.end(patch));
        }
    }

    /// Writes what does not vary of these bytes.
    fn write(&mut self, bytes: Range<usize>) {
        let Range { start: mut at, end } = bytes;
        while at < end {
            let (width, bytes) = [(Width::Double, 8), (Width::Word, 4), (Width::Half, 2), (Width::Byte, 1)]
                .into_iter()
                .find(|(_, bytes)| at + bytes <= end)
                .unwrap_or((Width::Byte, 1));
            if !self.is_overwritten(at, bytes) {
                let mut word = [0; 8];
                word[..bytes].copy_from_slice(&self.plan.body[at..at + bytes]);
                self.a.number(Register::R1, u64::from_ne_bytes(word));
                self.a.store(width, DATA, offset(at), Register::R1);
            }
            at += bytes;
        }
    }

    /// Whether all of these bytes will be written by the probe, or by one field.
    fn is_overwritten(&self, at: usize, bytes: usize) -> bool {
        let probe = self.plan.probe.is_some_and(|probe| probe <= at && at + bytes <= probe + PROBE);
        let covers =
            |patch: &Patch| patch.base.is_some() && patch.at <= at && at + bytes <= patch.at + patch.width;
        probe || self.plan.patches.iter().any(covers)
    }

    fn lengths_and_sums(&mut self) {
        if !self.has_sizes() {
            let variant = self.plan.variants.first().copied().unwrap_or_default();
            self.a.mov(IP_SUM, i32::from(variant.ip_sum));
            self.a.mov(SUM, i32::from(variant.sum));
            if self.plan.probe.is_some() {
                self.a.operate32(Operation::Move, Register::R1, variant.filler_crc);
                self.a.store(Width::Double, Register::R10, FILLER, Register::R1);
            }
            return;
        }
        for (at, from) in [(self.plan.ip_length, 8), (self.plan.udp_length, 10)] {
            if let Some(at) = at {
                self.a.load(Width::Half, Register::R1, ENTRY, from);
                self.a.store(Width::Half, DATA, offset(at), Register::R1);
            }
        }
        if self.plan.probe.is_some() {
            self.a.load(Width::Word, Register::R1, ENTRY, 12);
            self.a.store(Width::Double, Register::R10, FILLER, Register::R1);
        }
        self.a.load(Width::Word, IP_SUM, ENTRY, 16);
        // The last that is wanted of the entry: it lies in the same register.
        self.a.load(Width::Word, SUM, ENTRY, 20);
    }

    /// Writes a field's next value, and adds it to the sums.
    fn field(&mut self, patch: &Patch, cursor: Cursor, slot: Slot, list: Option<u32>) {
        self.a.load(Width::Double, Register::R1, STATE, slot.position);
        self.advance(patch, cursor, slot);
        if let Some(shuffle) = patch.series.shuffle {
            self.shuffle(shuffle);
        }
        match (&patch.series.values, list) {
            (Sequence::List(values), Some(list)) => {
                let len = number(values.len());
                self.a.jump_if(Register::R1, Condition::GreaterOrEqual, len, self.refused);
                self.a.operate(Operation::ShiftLeft, Register::R1, 3);
                self.a.map_value(Register::R2, self.maps.state, list);
                self.a.operate(Operation::Add, Register::R2, Register::R1);
                self.a.load(Width::Double, Register::R1, Register::R2, 0);
            }
            (Sequence::Steps { first, step }, _) => {
                let (first, step) = (first << patch.shift, step << patch.shift);
                if step != 1 {
                    self.with(Operation::Multiply, step);
                }
                self.with(Operation::Add, first);
                self.with(Operation::And, patch.mask << patch.shift);
            }
            (Sequence::List(_), None) => {}
        }
        self.add_field(patch);
        let width = width(patch.width);
        if let Some(base) = patch.base.filter(|base| *base != 0) {
            self.with(Operation::Or, base);
        }
        if self.end(patch) < patch.at + patch.width {
            return self.store_bytes(patch);
        }
        if patch.base.is_none() {
            self.a.load(width, Register::R2, DATA, offset(patch.at));
            self.a.from_network_order(Register::R2, width);
            self.a.operate(Operation::Or, Register::R1, Register::R2);
        }
        self.a.from_network_order(Register::R1, width);
        self.a.store(width, DATA, offset(patch.at), Register::R1);
    }

    /// Writes the bytes of the word in r1 that lie in the shortest packet; r2 and r3 are lost.
    fn store_bytes(&mut self, patch: &Patch) {
        for at in patch.at..self.end(patch) {
            let behind = patch.at + patch.width - 1 - at;
            self.a.mov(Register::R2, Register::R1);
            self.a.operate(Operation::ShiftRight, Register::R2, number(8 * behind));
            if patch.base.is_none() {
                self.a.load(Width::Byte, Register::R3, DATA, offset(at));
                self.a.operate(Operation::Or, Register::R2, Register::R3);
            }
            self.a.store(Width::Byte, DATA, offset(at), Register::R2);
        }
    }

    /// `r1 = r1 OPERATION number`, with whatever number; r3 is lost.
    fn with(&mut self, operation: Operation, number: u64) {
        match i32::try_from(number) {
            Ok(small) => self.a.operate(operation, Register::R1, small),
            Err(_) => {
                self.a.number(Register::R3, number);
                self.a.operate(operation, Register::R1, Register::R3);
            }
        }
    }

    /// Leaves in the map the position after r1's. Keeps r1.
    fn advance(&mut self, patch: &Patch, cursor: Cursor, slot: Slot) {
        let (count, every) = (patch.series.count, patch.series.every);
        let a = &mut self.a;
        a.mov(Register::R2, Register::R1);
        add_in_circle(a, cursor.step, count);
        if every > 1 {
            let still = a.label();
            a.load(Width::Double, Register::R4, STATE, slot.held);
            a.number(Register::R5, cursor.held_step);
            a.operate(Operation::Add, Register::R4, Register::R5);
            a.number(Register::R5, every);
            a.jump_if(Register::R4, Condition::Less, Register::R5, still);
            a.operate(Operation::Subtract, Register::R4, Register::R5);
            add_in_circle(a, u64::from(count != 1), count);
            a.place(still);
            a.store(Width::Double, STATE, slot.held, Register::R4);
        }
        a.store(Width::Double, STATE, slot.position, Register::R2);
    }

    /// `r1 = shuffle(r1)`; r2 to r5 are lost. What falls above the count goes round again: on the average less than once.
    fn shuffle(&mut self, shuffle: Shuffle) {
        let Shuffle { count, mask, shift, add, factors } = shuffle;
        let a = &mut self.a;
        let (again, done) = (a.label(), a.label());
        let half = i32::try_from(shift).unwrap_or(63);
        a.number(Register::R4, mask);
        a.mov(Register::R5, MOST_ROUNDS);
        a.place(again);
        let keep = |a: &mut Assembler| a.operate(Operation::And, Register::R1, Register::R4);
        let mix = |a: &mut Assembler| {
            a.mov(Register::R2, Register::R1);
            // A shift by all 64 bits or more is none to the processor; it would leave 0.
            if half < 64 {
                a.operate(Operation::ShiftRight, Register::R2, half);
                a.operate(Operation::Xor, Register::R1, Register::R2);
            }
        };
        a.number(Register::R3, add);
        a.operate(Operation::Add, Register::R1, Register::R3);
        keep(a);
        mix(a);
        for factor in factors {
            a.number(Register::R3, factor);
            a.operate(Operation::Multiply, Register::R1, Register::R3);
            keep(a);
            mix(a);
        }
        if mask != count.wrapping_sub(1) {
            a.number(Register::R3, count);
            a.jump_if(Register::R1, Condition::Less, Register::R3, done);
            a.operate(Operation::Subtract, Register::R5, 1);
            a.jump_if(Register::R5, Condition::NotEqual, 0, again);
            a.jump(self.refused);
            a.place(done);
        }
    }

    /// Adds the field's bits in r1 to the sums that cover it; r2 and r3 are lost.
    fn add_field(&mut self, patch: &Patch) {
        let sums = [(patch.in_ip_sum && self.plan.ip_checksum.is_some(), IP_SUM), (self.sums(patch), SUM)];
        for (_, sum) in sums.into_iter().filter(|(covers, _)| *covers) {
            if patch.width == 8 {
                add_word(&mut self.a, sum, Register::R1);
            } else {
                self.a.operate(Operation::Add, sum, Register::R1);
            }
        }
    }

    fn sums(&self, patch: &Patch) -> bool {
        patch.in_sum && self.plan.checksum.is_some()
    }

    /// Lets all fields begin anew when their circle ends. What has a table goes round in it by itself.
    fn begin_anew(&mut self) {
        let circle = self.share.circle;
        if circle <= TABLE || circle == u64::MAX {
            return;
        }
        let a = &mut self.a;
        let within = a.label();
        a.load(Width::Double, Register::R1, STATE, Place::Left as i16);
        a.operate(Operation::Subtract, Register::R1, 1);
        a.jump_if(Register::R1, Condition::NotEqual, 0, within);
        for (n, cursor) in self.share.cursors.iter().enumerate() {
            let slot = Slot::of(n);
            for (at, word) in [(slot.position, cursor.position), (slot.held, cursor.held)] {
                a.number(Register::R1, word);
                a.store(Width::Double, STATE, at, Register::R1);
            }
        }
        a.number(Register::R1, circle);
        a.place(within);
        a.store(Width::Double, STATE, Place::Left as i16, Register::R1);
    }

    /// Writes the probe, as [`Probe::words`](crate::probe::Probe::words) does.
    fn probe(&mut self, at: usize, stream: u16) {
        self.read_clock();
        let sums = self.plan.checksum.is_some();
        let a = &mut self.a;
        let (first, time, check) = (Register::R3, Register::R4, Register::R1);
        a.load(Width::Word, Register::R2, STATE, Place::Sequence as i16);
        a.number(first, u64::from(MAGIC) << 48 | u64::from(stream) << 32);
        a.operate(Operation::Or, first, Register::R2);
        a.load(Width::Double, time, STATE, Place::Time as i16);
        if self.share.flows > 0 {
            a.operate(Operation::Or, time, i32::from(self.share.flows) << CHECK_HERE);
        }
        a.operate32(Operation::Add, Register::R2, 1);
        a.store(Width::Word, STATE, Place::Sequence as i16, Register::R2);
        let turn = TURN.cast_signed();
        a.mov(Register::R0, time);
        a.operate(Operation::ShiftLeft, Register::R0, turn);
        a.mov(Register::R5, time);
        a.operate(Operation::ShiftRight, Register::R5, 64 - turn);
        a.operate(Operation::Or, Register::R5, Register::R0);
        a.mov(check, first);
        a.number(Register::R0, FACTORS[0]);
        a.operate(Operation::Multiply, check, Register::R0);
        a.operate(Operation::Xor, check, Register::R5);
        a.load(Width::Double, Register::R0, Register::R10, FILLER);
        a.operate(Operation::Xor, check, Register::R0);
        a.number(Register::R0, FACTORS[1]);
        a.operate(Operation::Multiply, check, Register::R0);
        a.operate(Operation::ShiftRight, check, DROPPED.cast_signed());
        a.mov(Register::R0, check);
        a.operate(Operation::ShiftRight, Register::R0, 16);
        a.operate(Operation::Or, time, Register::R0);
        a.operate(Operation::And, check, 0xffff);
        if sums {
            for word in [first, time] {
                a.mov(Register::R0, word);
                a.operate(Operation::ShiftRight, Register::R0, 32);
                a.operate(Operation::Add, SUM, Register::R0);
                a.operate32(Operation::Move, Register::R0, word);
                a.operate(Operation::Add, SUM, Register::R0);
            }
            a.operate(Operation::Add, SUM, check);
        }
        for (width, register, at) in
            [(Width::Double, first, at), (Width::Double, time, at + 8), (Width::Half, check, at + PROBE - 2)]
        {
            a.from_network_order(register, width);
            a.store(width, DATA, offset(at), register);
        }
    }

    /// Keeps the probes' time in the map up to date.
    fn read_clock(&mut self) {
        let a = &mut self.a;
        let fresh = a.label();
        a.load(Width::Double, Register::R1, STATE, Place::Stamped as i16);
        a.jump_if(Register::R1, Condition::NotEqual, 0, fresh);
        a.call(Helper::Monotonic);
        a.load(Width::Double, Register::R1, STATE, Place::Clock as i16);
        a.operate(Operation::Add, Register::R0, Register::R1);
        a.operate(Operation::ShiftLeft, Register::R0, SPARE);
        a.store(Width::Double, STATE, Place::Time as i16, Register::R0);
        a.mov(Register::R1, STAMPED);
        a.place(fresh);
        a.operate(Operation::Subtract, Register::R1, 1);
        a.store(Width::Double, STATE, Place::Stamped as i16, Register::R1);
    }

    fn checksums(&mut self) {
        let ip = self.plan.ip_checksum.map(|at| (at, IP_SUM, false));
        let upper = self.plan.checksum.map(|at| (at, SUM, self.plan.is_udp));
        for (at, sum, is_udp) in [ip, upper].into_iter().flatten() {
            let a = &mut self.a;
            fold(a, sum);
            a.operate(Operation::Xor, sum, 0xffff);
            if is_udp {
                // 0 would mean that there is no checksum (RFC 768, RFC 8200 section 8.1).
                let some = a.label();
                a.jump_if(sum, Condition::NotEqual, 0, some);
                a.mov(sum, 0xffff);
                a.place(some);
            }
            a.from_network_order(sum, Width::Half);
            a.store(Width::Half, DATA, offset(at), sum);
        }
    }

    fn redirect(&mut self) {
        let a = &mut self.a;
        a.map(Register::R1, self.maps.interface);
        a.mov(Register::R2, 0);
        // What the call returns when the interface is gone.
        a.mov(Register::R3, XDP_DROP);
        a.call(Helper::RedirectMap);
        a.jump_if(Register::R0, Condition::NotEqual, XDP_REDIRECT, self.refused);
        count(a, Place::Sent);
        a.exit();
        a.place(self.refused);
        count(a, Place::Refused);
        a.mov(Register::R0, XDP_DROP);
        a.exit();
    }
}

/// Rounds after which a shuffled number must lie below its count. Each leaves less than half of what was above it.
const MOST_ROUNDS: i32 = 64;

/// Bits of the time that are not sent.
const SPARE: i32 = 64 - TIME_BITS.cast_signed();

/// Adds 1 to a word of the map. Keeps r0.
fn count(a: &mut Assembler, place: Place) {
    a.load(Width::Double, Register::R1, STATE, place as i16);
    a.operate(Operation::Add, Register::R1, 1);
    a.store(Width::Double, STATE, place as i16, Register::R1);
}

/// `r2 = r2 + step` in a circle of `count`, as [`series::add`](crate::generate::series::add); r3 is lost.
fn add_in_circle(a: &mut Assembler, step: u64, count: u64) {
    if step == 0 {
        return;
    }
    if count == 0 || count.is_power_of_two() {
        a.number(Register::R3, step);
        a.operate(Operation::Add, Register::R2, Register::R3);
        if count > 0 {
            a.number(Register::R3, count - 1);
            a.operate(Operation::And, Register::R2, Register::R3);
        }
        return;
    }
    let (within, done) = (a.label(), a.label());
    a.number(Register::R3, count - step);
    a.jump_if(Register::R2, Condition::Less, Register::R3, within);
    a.operate(Operation::Subtract, Register::R2, Register::R3);
    a.jump(done);
    a.place(within);
    a.number(Register::R3, step);
    a.operate(Operation::Add, Register::R2, Register::R3);
    a.place(done);
}

/// `sum += word`, both halves of it; r2 is lost.
fn add_word(a: &mut Assembler, sum: Register, word: Register) {
    a.mov(Register::R2, word);
    a.operate(Operation::ShiftRight, Register::R2, 32);
    a.operate(Operation::Add, sum, Register::R2);
    a.operate32(Operation::Move, Register::R2, word);
    a.operate(Operation::Add, sum, Register::R2);
}

/// Folds a sum of fewer than 2¹⁶ words of 32 bits to 16 bits; r2 is lost.
fn fold(a: &mut Assembler, sum: Register) {
    a.mov(Register::R2, sum);
    a.operate(Operation::ShiftRight, Register::R2, 32);
    a.operate32(Operation::Move, sum, sum);
    a.operate(Operation::Add, sum, Register::R2);
    for _ in 0..3 {
        a.mov(Register::R2, sum);
        a.operate(Operation::ShiftRight, Register::R2, 16);
        a.operate(Operation::And, sum, 0xffff);
        a.operate(Operation::Add, sum, Register::R2);
    }
}

fn width(bytes: usize) -> Width {
    match bytes {
        2 => Width::Half,
        4 => Width::Word,
        _ => Width::Double,
    }
}

/// An offset in a packet: no packet is longer than 32 KiB.
fn offset(at: usize) -> i16 {
    i16::try_from(at).unwrap_or(i16::MAX)
}

/// A length or a count that a plan limits to far less.
fn number(n: usize) -> i32 {
    i32::try_from(n).unwrap_or(i32::MAX)
}
