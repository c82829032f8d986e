//! Samples that rules draw: each is copied to a ring, and the packet goes on as if nothing had happened.
//!
//! Who counts a packet for a rule draws it for that rule: the kernel's program what it decides or only counts, user space what it
//! is asked about.

use std::mem::offset_of;
use std::num::NonZeroU32;
use std::os::fd::RawFd;

use super::program::{CONTEXT_AT, Coder, RuleProgram, bits_at};
use super::tables::Tables;
use crate::Hook;
use crate::ebpf::{Assembler, Condition, Helper, Label, Operation, Register, Width};
use crate::xdp::{Count, KEY, LENGTH, LOST_SAMPLES, RULES_AT, add_to_counter, lookup};

/// Where a record of the ring has what: four bytes, four, eight and eight, and the packet. The bytes of numbers are in the order of the
/// machine.
const SLOT_AT: usize = 0;
const LEN_AT: usize = 4;
const TIME_AT: usize = 8;
const FAILED_AT: usize = 16;
const BYTES_AT: usize = 24;

/// A packet that the kernel's program has drawn for a rule, as it lies in the ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Drawn<'a> {
    /// The rule's counter, from 0 on.
    pub slot: u32,
    /// Bytes on the wire, without FCS.
    pub wire_len: u32,
    /// When it was drawn, nanoseconds of `CLOCK_MONOTONIC`.
    pub time: u64,
    /// Its first bytes, [`Drawn::MOST`] at most.
    pub bytes: &'a [u8],
}

impl<'a> Drawn<'a> {
    /// Bytes of a packet that are kept.
    pub const MOST: usize = 256;

    /// Bytes of a record.
    pub const RECORD: usize = BYTES_AT + Self::MOST;

    /// Reads a record; `None` where there is no packet in it.
    pub fn from_record(record: &'a [u8]) -> Option<Self> {
        let four = |at: usize| record.get(at..)?.first_chunk().map(|bytes| u32::from_ne_bytes(*bytes));
        let eight = |at: usize| record.get(at..)?.first_chunk().map(|bytes| u64::from_ne_bytes(*bytes));
        let wire_len = four(LEN_AT)?;
        let len = usize::try_from(wire_len).unwrap_or(usize::MAX).min(Self::MOST);
        let bytes = record.get(BYTES_AT..BYTES_AT + len)?;
        let drawn = Self { slot: four(SLOT_AT)?, wire_len, time: eight(TIME_AT)?, bytes };
        (eight(FAILED_AT)? == 0).then_some(drawn)
    }
}

fn at(offset: usize) -> i16 {
    i16::try_from(offset).unwrap_or(0)
}

fn number(bytes: usize) -> i32 {
    i32::try_from(bytes).unwrap_or(0)
}

/// Where on the stack it is kept how rare samples are, then how far the next one is, and then where this one is copied to.
fn record_at(tables: &Tables) -> i16 {
    bits_at(tables.words())
}

/// Where a [`Count`] has what.
const PACKETS: i16 = 0;
const BYTES: i16 = 8;
const NEXT_SAMPLE: i16 = 16;
const _: () = assert!(
    offset_of!(Count, packets) == 0 && offset_of!(Count, bytes) == 8 && offset_of!(Count, next_sample) == 16
);

/// Where on the stack it is kept where a packet goes on that is counted and may have been drawn. Expressions use it, too.
const BACK_AT: i16 = -16;

/// The part of a program that counts packets for rules which draw: one for all of them, since there may be many.
pub(super) struct Drawing {
    begin: Label,
    /// Where packets go on, by their numbers from 1 on. 0 is the program's end.
    back: Vec<Label>,
}

impl Coder<'_> {
    /// Counts the packet for the rule of this counter, copies one in so many, and ends with the result, which is known.
    pub(super) fn end_and_draw(&mut self, slot: u32, sample: NonZeroU32) {
        self.draw(slot, sample, 0);
    }

    /// Counts the packet for the rule of this counter, copies one in so many, and goes on. Uses r0 to r5.
    pub(super) fn count_and_draw(&mut self, slot: u32, sample: NonZeroU32) {
        let next = self.assembler.label();
        let back = &mut self.drawing().back;
        back.push(next);
        let number = back.len();
        self.draw(slot, sample, number);
        self.assembler.place(next);
    }

    fn drawing(&mut self) -> &mut Drawing {
        self.drawing.get_or_insert_with(|| Drawing { begin: self.assembler.label(), back: Vec::new() })
    }

    fn draw(&mut self, slot: u32, sample: NonZeroU32, back: usize) {
        let (begin, record) = (self.drawing().begin, record_at(self.rules.rules.tables()));
        self.keep_key(slot);
        // As wholes: of these the verifier knows what they are when they are read again.
        for (at, number) in [(record, u64::from(sample.get())), (BACK_AT, back as u64)] {
            self.assembler.number(Register::R1, number);
            self.assembler.store(Width::Double, Register::R10, at, Register::R1);
        }
        self.assembler.jump(begin);
    }
}

impl Drawing {
    /// Is this part. `end` is where the program ends.
    pub(super) fn place(&self, assembler: &mut Assembler, program: &RuleProgram<'_>, end: Label) {
        let done = assembler.label();
        assembler.place(self.begin);
        match program.samples {
            Some(ring) => count_and_copy(assembler, program, ring, done),
            None => add_to_counter(assembler, program.maps.counters),
        }
        assembler.place(done);
        assembler.load(Width::Double, Register::R1, Register::R10, BACK_AT);
        let ways: Vec<Label> = std::iter::once(end).chain(self.back.iter().copied()).collect();
        go_back(assembler, &ways, 0);
    }
}

/// Goes to the one of these ways whose number is in r1; the first of them has the number `first`.
fn go_back(assembler: &mut Assembler, ways: &[Label], first: usize) {
    if let [way] = ways {
        return assembler.jump(*way);
    }
    let (before, behind) = ways.split_at(ways.len() / 2);
    let (other, middle) = (assembler.label(), first + before.len());
    assembler.jump_if(Register::R1, Condition::GreaterOrEqual, number(middle), other);
    go_back(assembler, before, first);
    assembler.place(other);
    go_back(assembler, behind, middle);
}

/// Counts the packet for the rule whose counter's key is on the stack, and copies one in so many: in all ways it goes on here, or to
/// `done`.
///
/// How many packets are between two samples is drawn when there is one: up to twice as many as there are on average. So a packet that
/// is none costs a comparison, and no random number. The first one is drawn.
fn count_and_copy(assembler: &mut Assembler, program: &RuleProgram<'_>, ring: RawFd, done: Label) {
    let counters = program.maps.counters;
    let record = record_at(program.rules.tables());
    // r2 = twice the average, less so many.
    let load_most = |assembler: &mut Assembler, less: i32| {
        assembler.load(Width::Double, Register::R2, Register::R10, record);
        assembler.operate(Operation::ShiftLeft, Register::R2, 1);
        assembler.operate(Operation::Subtract, Register::R2, less);
    };
    lookup(assembler, counters, KEY);
    assembler.jump_if(Register::R0, Condition::Equal, 0, done);
    assembler.load(Width::Double, Register::R1, Register::R0, BYTES);
    assembler.operate(Operation::Add, Register::R1, LENGTH);
    assembler.store(Width::Double, Register::R0, BYTES, Register::R1);
    assembler.load(Width::Double, Register::R1, Register::R0, PACKETS);
    assembler.operate(Operation::Add, Register::R1, 1);
    assembler.store(Width::Double, Register::R0, PACKETS, Register::R1);
    // Packets between this one and the next sample. When they are more than there can be, samples were rarer before, and when the
    // sample is behind, they are below 0, which is more as well: then this is one.
    load_most(assembler, 2);
    assembler.load(Width::Double, Register::R3, Register::R0, NEXT_SAMPLE);
    assembler.operate(Operation::Subtract, Register::R3, Register::R1);
    assembler.operate(Operation::Subtract, Register::R3, 1);
    assembler.jump_if(Register::R3, Condition::Less, Register::R2, done);
    assembler.call(Helper::Random);
    load_most(assembler, 1);
    assembler.operate(Operation::Modulo, Register::R0, Register::R2);
    assembler.operate(Operation::Add, Register::R0, 1);
    assembler.store(Width::Double, Register::R10, record, Register::R0);
    lookup(assembler, counters, KEY);
    assembler.jump_if(Register::R0, Condition::Equal, 0, done);
    assembler.load(Width::Double, Register::R1, Register::R10, record);
    assembler.load(Width::Double, Register::R2, Register::R0, PACKETS);
    assembler.operate(Operation::Add, Register::R1, Register::R2);
    assembler.store(Width::Double, Register::R0, NEXT_SAMPLE, Register::R1);
    copy(assembler, program, ring, done);
}

/// Copies the packet to the ring, for the rule whose counter's key is on the stack, and goes on, or to `lost` when there was no room.
fn copy(assembler: &mut Assembler, program: &RuleProgram<'_>, ring: RawFd, lost: Label) {
    let record = record_at(program.rules.tables());
    let [few, done, there] = [(); 3].map(|()| assembler.label());
    assembler.map(Register::R1, ring);
    assembler.mov(Register::R2, number(Drawn::RECORD));
    assembler.mov(Register::R3, 0);
    assembler.call(Helper::RingReserve);
    assembler.jump_if(Register::R0, Condition::NotEqual, 0, there);
    assembler.store(Width::Word, Register::R10, KEY, LOST_SAMPLES.cast_signed());
    add_to_counter(assembler, program.maps.counters);
    assembler.jump(lost);
    assembler.place(there);
    assembler.store(Width::Double, Register::R10, record, Register::R0);
    assembler.load(Width::Word, Register::R1, Register::R10, KEY);
    assembler.operate(Operation::Subtract, Register::R1, RULES_AT.cast_signed());
    assembler.store(Width::Word, Register::R0, at(SLOT_AT), Register::R1);
    assembler.store(Width::Word, Register::R0, at(LEN_AT), LENGTH);
    assembler.call(Helper::Monotonic);
    assembler.load(Width::Double, Register::R3, Register::R10, record);
    assembler.store(Width::Double, Register::R3, at(TIME_AT), Register::R0);
    assembler.mov(Register::R4, LENGTH);
    assembler.jump_if(Register::R4, Condition::LessOrEqual, number(Drawn::MOST), few);
    assembler.mov(Register::R4, number(Drawn::MOST));
    assembler.place(few);
    // The verifier wants to know that there is something to copy. The time, which is not 0, says then that there is nothing.
    assembler.jump_if(Register::R4, Condition::Less, 1, done);
    assembler.load(Width::Double, Register::R1, Register::R10, CONTEXT_AT);
    assembler.mov(Register::R2, 0);
    assembler.operate(Operation::Add, Register::R3, number(BYTES_AT));
    assembler.call(match program.hook {
        Hook::Xdp => Helper::XdpLoadBytes,
        Hook::Tcx => Helper::LoadBytes,
    });
    assembler.place(done);
    assembler.load(Width::Double, Register::R1, Register::R10, record);
    assembler.store(Width::Double, Register::R1, at(FAILED_AT), Register::R0);
    assembler.mov(Register::R2, 0);
    assembler.call(Helper::RingSubmit);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_read_as_it_was_written_and_one_without_a_packet_is_none() {
        let mut record = vec![0; Drawn::RECORD];
        record[SLOT_AT..LEN_AT].copy_from_slice(&7_u32.to_ne_bytes());
        record[TIME_AT..FAILED_AT].copy_from_slice(&9_u64.to_ne_bytes());
        record[BYTES_AT..].fill(5);
        for (wire_len, len) in [(60, 60), (256, 256), (1514, 256)] {
            record[LEN_AT..TIME_AT].copy_from_slice(&u32::to_ne_bytes(wire_len));
            let drawn = Drawn { slot: 7, wire_len, time: 9, bytes: &vec![5; len] };
            assert_eq!(Drawn::from_record(&record), Some(drawn));
        }
        assert_eq!(Drawn::from_record(&record[..BYTES_AT + 255]), None);
        record[FAILED_AT..BYTES_AT].copy_from_slice(&(-22_i64).to_ne_bytes());
        assert_eq!(Drawn::from_record(&record), None);
        assert_eq!(Drawn::from_record(&[]), None);
    }
}
