//! Which kind of plain packet the program of rules has before it, told apart once: each kind has a way of its own behind that.

use super::program::Coder;
use crate::Hook;
use crate::ebpf::{Condition, Label, Operation, Register, Width};
use crate::plain::{self, Plain};
use crate::walk::Family;
use crate::xdp::{DATA, DATA_END};

/// Bytes of a header.
struct Field {
    width: Width,
    at: u32,
    /// What of them counts.
    mask: Option<i32>,
}

impl Field {
    fn masked(at: u32, mask: [u8; 4]) -> Self {
        Self { width: Width::Word, at, mask: Some(i32::from_ne_bytes(mask)) }
    }
}

impl Coder<'_> {
    /// All that becomes of packets, once for each of these kinds and once for all others.
    pub(super) fn decide_by_kind(&mut self, plains: &[Plain]) {
        if self.rules.hook == Hook::Tcx {
            return self.decide_in_front(plains);
        }
        let ways: Vec<_> = plains.iter().map(|plain| (*plain, self.assembler.label())).collect();
        self.tell_apart(&ways);
        self.decide_all();
        for (plain, label) in ways {
            self.decide_plain(plain, label);
        }
    }

    /// All that becomes of plain packets of a kind, which come to this label.
    pub(super) fn decide_plain(&mut self, plain: Plain, label: Label) {
        self.assembler.place(label);
        (self.plain, self.header) = (Some(plain), DATA);
        self.decide_all();
    }

    /// Goes to the label of a plain packet's kind; on for all others.
    pub(super) fn tell_apart(&mut self, ways: &[(Plain, Label)]) {
        let other = self.assembler.label();
        for family in [Family::V4, Family::V6] {
            let next = self.assembler.label();
            let ours: Vec<_> = ways.iter().filter(|(plain, _)| plain.family == family).collect();
            let Some((first, _)) = ours.first() else { continue };
            let least = ours.iter().map(|(plain, _)| plain.len()).min().unwrap_or(0);
            self.reaches(least, other);
            // Of an IPv4 header several bytes are asked for at once.
            let [high, low] = first.kind().to_be_bytes();
            let [more, offset] = plain::FRAGMENT.to_be_bytes();
            let (name, kind, carried, number): (_, _, _, fn(u8) -> i32) = match family {
                Family::V4 => (
                    Field::masked(plain::NAMED_AT, [u8::MAX, u8::MAX, u8::MAX, 0]),
                    i32::from_ne_bytes([high, low, plain::FIRST_V4, 0]),
                    Field::masked(plain::FRAGMENT_AT, [more, offset, 0, u8::MAX]),
                    |protocol| i32::from_ne_bytes([0, 0, 0, protocol]),
                ),
                Family::V6 => (
                    Field { width: Width::Half, at: plain::NAMED_AT, mask: None },
                    i32::from(first.kind().to_be()),
                    Field { width: Width::Byte, at: first.protocol_at(), mask: None },
                    i32::from,
                ),
            };
            self.load_field(&name);
            self.assembler.jump_if(Register::R1, Condition::NotEqual, kind, next);
            self.load_field(&carried);
            for (plain, label) in ours {
                let protocol = number(plain.protocol);
                if plain.len() == least {
                    self.assembler.jump_if(Register::R1, Condition::Equal, protocol, *label);
                    continue;
                }
                let not_it = self.assembler.label();
                self.assembler.jump_if(Register::R1, Condition::NotEqual, protocol, not_it);
                self.reaches(plain.len(), other);
                self.assembler.jump(*label);
                self.assembler.place(not_it);
            }
            self.assembler.jump(other);
            self.assembler.place(next);
        }
        self.assembler.place(other);
    }

    /// Loads a field to r1.
    fn load_field(&mut self, field: &Field) {
        self.assembler.load(field.width, Register::R1, DATA, i16::try_from(field.at).unwrap_or(0));
        if let Some(mask) = field.mask {
            self.assembler.operate(Operation::And, Register::R1, mask);
        }
    }

    /// Goes on only when the packet has so many bytes.
    fn reaches(&mut self, bytes: u32, otherwise: Label) {
        self.assembler.mov(Register::R2, DATA);
        self.assembler.operate(Operation::Add, Register::R2, bytes);
        self.assembler.jump_if(Register::R2, Condition::Greater, DATA_END, otherwise);
    }
}
