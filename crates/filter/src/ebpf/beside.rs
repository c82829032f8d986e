//! Packets whose outer VLAN tag stands beside them, in an skb: read as if it stood where it will on the wire.
//!
//! All from the tag on lies four bytes further to the front. What of a load lies in the tag is on the stack, with what is next to it.

use super::code::{Coder, VALUE};
use super::{Assembler, Condition, Operation, Register, Width};
use crate::formula::{Load, Size, Value};
use crate::plain::NAMED_AT;
use crate::walk::Walk;

/// Bytes of a tag.
pub(super) const TAG: u32 = 4;
const TAG_END: u32 = NAMED_AT + TAG;

/// What is on the stack: from here on, so many bytes. They are all that a load may have which takes a byte from the tag.
const FROM: u32 = NAMED_AT - 4;
pub(crate) const AROUND_TAG: i16 = 12;

/// Offsets in `struct __sk_buff` of `linux/bpf.h`.
const SKB_VLAN_TCI: i16 = 24;
const SKB_VLAN_PROTOCOL: i16 = 28;

/// Where bytes that are loaded stand in a packet.
pub(super) enum Place {
    /// So many bytes before where the load says.
    Packet(u32),
    /// In the tag, or partly.
    Tag(i16),
    /// That depends on the index.
    Unknown(i16),
}

/// Puts the tag, with what is next to it in the packet, to `to` on the stack. The packet has 16 bytes. Uses r1.
pub(crate) fn copy_tag(assembler: &mut Assembler, context: Register, data: Register, to: i16) {
    assembler.load(Width::Word, Register::R1, data, 8);
    assembler.store(Width::Word, Register::R10, to, Register::R1);
    assembler.load(Width::Word, Register::R1, context, SKB_VLAN_PROTOCOL);
    assembler.store(Width::Half, Register::R10, to + 4, Register::R1);
    assembler.load(Width::Word, Register::R1, context, SKB_VLAN_TCI);
    assembler.from_network_order(Register::R1, Width::Half);
    assembler.store(Width::Half, Register::R10, to + 6, Register::R1);
    assembler.load(Width::Word, Register::R1, data, 12);
    assembler.store(Width::Word, Register::R10, to + 8, Register::R1);
}

impl Coder<'_> {
    pub(super) fn place(&self, load: &Load) -> Place {
        let Some(tag) = self.bases.tag else { return Place::Packet(0) };
        let behind_tags = matches!(load.index, Some(Value::Walk(Walk::Tags { named_at: NAMED_AT })));
        match &load.index {
            _ if load.offset >= TAG_END => Place::Packet(TAG),
            // That walk has passed this tag.
            Some(_) if behind_tags && load.offset >= NAMED_AT => Place::Packet(TAG),
            Some(_) => Place::Unknown(tag),
            None if load.offset + load.size.bytes() <= NAMED_AT => Place::Packet(0),
            None => Place::Tag(tag),
        }
    }

    /// How many bytes the packet has without the tag when it has so many with it.
    pub(super) fn in_packet(&self, bytes: u32) -> u32 {
        match self.bases.tag {
            Some(_) if bytes > NAMED_AT => NAMED_AT.max(bytes - TAG),
            _ => bytes,
        }
    }

    /// Loads bytes at a place that the tag has a part in.
    pub(super) fn load_around_tag(&mut self, load: &Load, tag: i16) {
        let from = tag + short(load.offset - FROM);
        self.gather(load.size, Register::R10, from, Register::R1);
    }

    /// Loads bytes at the value and so many more, which is below 2^16.
    pub(super) fn load_anywhere(&mut self, load: &Load, width: Width, tag: i16) {
        const AT: Register = Register::R3;
        let size = load.size.bytes();
        let [behind, around, in_packet, loaded] = [(); 4].map(|()| self.assembler.label());
        self.assembler.mov(AT, VALUE);
        self.assembler.operate(Operation::Add, AT, load.offset.cast_signed());
        self.assembler.jump_if(AT, Condition::GreaterOrEqual, TAG_END.cast_signed(), behind);
        self.assembler.jump_if(AT, Condition::Greater, (NAMED_AT - size).cast_signed(), around);
        self.assembler.jump(in_packet);
        self.assembler.place(around);
        self.assembler.mov(Register::R1, Register::R10);
        self.assembler.operate(Operation::Add, Register::R1, AT);
        self.gather(load.size, Register::R1, tag - short(FROM), AT);
        self.assembler.jump(loaded);
        self.assembler.place(behind);
        self.assembler.operate(Operation::Subtract, AT, TAG.cast_signed());
        self.assembler.place(in_packet);
        self.assembler.operate(Operation::Add, AT, self.bases.data);
        self.assembler.mov(Register::R1, AT);
        self.assembler.operate(Operation::Add, Register::R1, size.cast_signed());
        self.assembler.jump_if(Register::R1, Condition::Greater, self.bases.data_end, self.no);
        self.assembler.load(width, VALUE, AT, 0);
        self.assembler.place(loaded);
    }

    /// Loads bytes from the stack one by one, as the verifier takes no others there that stand where they like.
    fn gather(&mut self, size: Size, base: Register, from: i16, with: Register) {
        let mut bytes: Vec<i16> = (0..short(size.bytes())).collect();
        if cfg!(target_endian = "little") {
            bytes.reverse();
        }
        self.assembler.mov(VALUE, 0);
        for byte in bytes {
            self.assembler.operate(Operation::ShiftLeft, VALUE, 8);
            self.assembler.load(Width::Byte, with, base, from + byte);
            self.assembler.operate(Operation::Or, VALUE, with);
        }
    }
}

fn short(number: u32) -> i16 {
    i16::try_from(number).unwrap_or(i16::MAX)
}
