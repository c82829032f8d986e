//! Which kind of plain packet the program of rules has before it, told apart once: each kind has a way of its own behind that.

use super::program::Coder;
use crate::Hook;
use crate::ebpf::{Condition, Label, Operation, Register, Width};
use crate::plain::{self, Plain};
use crate::walk::Family;
use crate::xdp::{DATA, DATA_END};

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
            let load = |coder: &mut Self, width, at: u32| {
                coder.assembler.load(width, Register::R1, DATA, i16::try_from(at).unwrap_or(0));
            };
            load(self, Width::Half, plain::NAMED_AT);
            let kind = i32::from(first.kind().to_be());
            self.assembler.jump_if(Register::R1, Condition::NotEqual, kind, next);
            if family == Family::V4 {
                load(self, Width::Byte, plain::NETWORK);
                let first = i32::from(plain::FIRST_V4);
                self.assembler.jump_if(Register::R1, Condition::NotEqual, first, other);
                load(self, Width::Half, plain::FRAGMENT_AT);
                let fragment = i32::from(plain::FRAGMENT.to_be());
                self.assembler.jump_if(Register::R1, Condition::CommonBit, fragment, other);
            }
            load(self, Width::Byte, first.protocol_at());
            for (plain, label) in ours {
                let protocol = i32::from(plain.protocol);
                let not_it = self.assembler.label();
                self.assembler.jump_if(Register::R1, Condition::NotEqual, protocol, not_it);
                if plain.len() > least {
                    self.reaches(plain.len(), other);
                }
                self.assembler.jump(*label);
                self.assembler.place(not_it);
            }
            self.assembler.jump(other);
            self.assembler.place(next);
        }
        self.assembler.place(other);
    }

    /// Goes on only when the packet has so many bytes.
    fn reaches(&mut self, bytes: u32, otherwise: Label) {
        self.assembler.mov(Register::R2, DATA);
        self.assembler.operate(Operation::Add, Register::R2, bytes);
        self.assembler.jump_if(Register::R2, Condition::Greater, DATA_END, otherwise);
    }
}
