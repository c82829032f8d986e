//! The part of the program that finds out which lists a packet is in.
//!
//! Of plain packets it is known where addresses and ports are; of others that is found out here.

use std::os::fd::RawFd;

use super::headers::{MOST_TAGS, TAGS, WITH_PORTS};
use super::keys::SetKey6;
use super::prefix::mask128;
use super::program::{Coder, FIRST, KEY6, bits_at};
use super::tables::{Kind, NO_RULE};
use super::trie::INNER;
use crate::ebpf::{Assembler, Condition, Helper, Label, Operation, Register, Width};
use crate::walk::Family;
use crate::xdp::{DATA, DATA_END};

/// What the search for IPv6 keeps meanwhile.
const SAVED: i16 = -40;

impl Coder<'_> {
    /// Finds out which lists the packet's addresses and ports are in.
    pub(super) fn search(&mut self) {
        let tables = self.rules.rules.tables();
        let [v4, v6, done] = [(); 3].map(|()| self.assembler.label());
        self.assembler.number(FIRST, NO_RULE);
        for word in 0..tables.words() {
            self.assembler.store(Width::Double, Register::R10, bits_at(word), 0);
        }
        self.keep_nothing();
        self.network(v4, v6, done);
        let ports = [Kind::FromPorts, Kind::ToPorts].map(|kind| tables.uses(kind));
        self.assembler.place(v4);
        self.check(34, done);
        for (kind, at) in [(Kind::From, 26), (Kind::To, 30)] {
            if let Some(root) = self.layout.roots[kind.side()] {
                self.address4(kind, root, at);
            }
        }
        if ports != [false; 2] && self.plain.is_some() {
            self.ports(34, done);
        } else if ports != [false; 2] {
            let has_ports = self.assembler.label();
            self.assembler.load(Width::Half, Register::R1, self.header, 20);
            self.assembler.from_network_order(Register::R1, Width::Half);
            self.assembler.jump_if(Register::R1, Condition::CommonBit, 0x1fff, done);
            self.protocol(23, has_ports, done);
            self.assembler.load(Width::Byte, Register::R1, self.header, 14);
            self.assembler.operate(Operation::And, Register::R1, 0xf);
            self.assembler.operate(Operation::ShiftLeft, Register::R1, 2);
            self.assembler.operate(Operation::Add, self.header, Register::R1);
            self.ports(14, done);
        }
        self.assembler.jump(done);
        self.assembler.place(v6);
        self.check(54, done);
        if [Kind::From, Kind::To].iter().any(|kind| !tables.lengths(*kind).is_empty()) {
            self.addresses6();
        }
        if ports != [false; 2] {
            let has_ports = self.assembler.label();
            self.protocol(20, has_ports, done);
            self.ports(54, done);
        }
        self.assembler.place(done);
        self.combinations();
    }

    /// Passes VLAN tags, and goes on by what is behind them.
    pub(super) fn network(&mut self, v4: Label, v6: Label, done: Label) {
        match self.plain.map(|plain| plain.family) {
            Some(Family::V4) => return self.assembler.jump(v4),
            Some(Family::V6) => return self.assembler.jump(v6),
            None => {}
        }
        pass_tags(&mut self.assembler, self.header, v4, v6, done);
    }

    /// Goes on only when the packet has so many bytes from the network header less 14 on.
    pub(super) fn check(&mut self, bytes: u32, otherwise: Label) {
        if self.plain.is_some_and(|plain| bytes <= plain.len()) {
            return;
        }
        reaches(&mut self.assembler, self.header, bytes as usize, otherwise);
    }

    /// Goes on only for a protocol with ports.
    fn protocol(&mut self, at: i16, has_ports: Label, otherwise: Label) {
        if self.plain.is_some() {
            return self.assembler.place(has_ports);
        }
        self.assembler.load(Width::Byte, Register::R1, self.header, at);
        for protocol in WITH_PORTS {
            self.assembler.jump_if(Register::R1, Condition::Equal, i32::from(protocol), has_ports);
        }
        self.assembler.jump(otherwise);
        self.assembler.place(has_ports);
    }

    fn ports(&mut self, at: u8, done: Label) {
        self.check(u32::from(at) + 4, done);
        let at = i16::from(at);
        for kind in [Kind::FromPorts, Kind::ToPorts] {
            let Some(table) = self.layout.ports[kind.side()] else { continue };
            let offset = if kind.side() == 0 { at } else { at + 2 };
            self.assembler.load(Width::Half, Register::R2, self.header, offset);
            self.assembler.from_network_order(Register::R2, Width::Half);
            self.assembler.operate(Operation::ShiftLeft, Register::R2, 2);
            self.value_at(Register::R1, table);
            self.assembler.operate(Operation::Add, Register::R1, Register::R2);
            self.assembler.load(Width::Word, Register::R0, Register::R1, 0);
            self.add_class(kind as usize);
        }
    }

    /// r0 = the class of the IPv4 address at an offset, and what it means.
    fn address4(&mut self, kind: Kind, root: usize, at: i16) {
        let found = self.assembler.label();
        self.assembler.load(Width::Word, Register::R0, self.header, at);
        self.assembler.from_network_order(Register::R0, Width::Word);
        self.assembler.mov(Register::R2, Register::R0);
        self.assembler.operate(Operation::ShiftRight, Register::R2, 16);
        self.assembler.operate(Operation::ShiftLeft, Register::R2, 2);
        self.value_at(Register::R1, root);
        self.assembler.operate(Operation::Add, Register::R1, Register::R2);
        self.assembler.load(Width::Word, Register::R2, Register::R1, 0);
        let blocks = self.layout.block_counts.iter().sum::<usize>();
        let none = self.assembler.label();
        for shift in [8, 0] {
            if blocks == 0 {
                break;
            }
            self.assembler.jump_if32(Register::R2, Condition::Less, INNER, found);
            self.assembler.operate32(Operation::And, Register::R2, INNER - 1);
            let last = i32::try_from(blocks - 1).unwrap_or(0);
            self.assembler.jump_if(Register::R2, Condition::Greater, last, none);
            self.assembler.operate(Operation::ShiftLeft, Register::R2, 10);
            self.value_at(Register::R1, self.layout.blocks);
            self.assembler.operate(Operation::Add, Register::R1, Register::R2);
            self.assembler.mov(Register::R2, Register::R0);
            self.assembler.operate(Operation::ShiftRight, Register::R2, shift);
            self.assembler.operate(Operation::And, Register::R2, 0xff);
            self.assembler.operate(Operation::ShiftLeft, Register::R2, 2);
            self.assembler.operate(Operation::Add, Register::R1, Register::R2);
            self.assembler.load(Width::Word, Register::R2, Register::R1, 0);
        }
        self.assembler.place(found);
        self.assembler.mov(Register::R0, Register::R2);
        self.add_class(kind as usize);
        self.assembler.place(none);
    }

    fn addresses6(&mut self) {
        // Calls leave alone what plain packets have.
        let saved = self.plain.is_none().then_some(SAVED);
        if let Some(saved) = saved {
            self.assembler.store(Width::Double, Register::R10, saved, self.header);
        }
        for (kind, at) in [(Kind::From, 22_i16), (Kind::To, 38)] {
            let found = self.assembler.label();
            let next = self.assembler.label();
            let lengths = self.rules.rules.tables().lengths(kind);
            for &bits in lengths {
                if let Some(saved) = saved {
                    self.assembler.load(Width::Double, self.header, Register::R10, saved);
                }
                let key = SetKey6 { side: u8::try_from(kind.side()).unwrap_or(0), bits, address: [0; 16] };
                let [head, _, _]: [u64; 3] = words(&key.to_bytes());
                self.assembler.number(Register::R1, head);
                self.assembler.store(Width::Double, Register::R10, KEY6, Register::R1);
                self.masked6(at, bits);
                self.lookup(KEY6, self.rules.sets.hash6);
                self.assembler.jump_if(Register::R0, Condition::NotEqual, 0, found);
            }
            self.assembler.jump(next);
            self.assembler.place(found);
            if !lengths.is_empty() {
                self.assembler.load(Width::Word, Register::R0, Register::R0, 0);
                self.add_class(kind as usize);
            }
            self.assembler.place(next);
        }
        if let Some(saved) = saved {
            self.assembler.load(Width::Double, self.header, Register::R10, saved);
        }
    }

    /// Notes what the class that begins at offset r0 means, which is of the kind of this number, or behind all kinds of a combination.
    /// Uses r0 to r3.
    pub(super) fn add_class(&mut self, number: usize) {
        let [later, none] = [(); 2].map(|()| self.assembler.label());
        let last = i32::try_from(self.layout.last_class).unwrap_or(0);
        self.assembler.jump_if(Register::R0, Condition::Equal, 0, none);
        self.assembler.jump_if(Register::R0, Condition::Greater, last, none);
        self.value_at(Register::R1, 0);
        self.assembler.operate(Operation::Add, Register::R1, Register::R0);
        self.keep_class(number);
        self.assembler.load(Width::Double, Register::R2, Register::R1, 0);
        self.assembler.jump_if(Register::R2, Condition::GreaterOrEqual, FIRST, later);
        self.assembler.mov(FIRST, Register::R2);
        self.assembler.place(later);
        for word in 0..self.rules.rules.tables().words() {
            let at = 8 + 8 * i16::try_from(word).unwrap_or(0);
            self.assembler.load(Width::Double, Register::R2, Register::R1, at);
            self.assembler.load(Width::Double, Register::R3, Register::R10, bits_at(word));
            self.assembler.operate(Operation::Or, Register::R3, Register::R2);
            self.assembler.store(Width::Double, Register::R10, bits_at(word), Register::R3);
        }
        self.assembler.place(none);
    }

    /// `to` = the address of a byte of the array.
    fn value_at(&mut self, to: Register, offset: usize) {
        self.assembler.map_value(to, self.rules.sets.array, u32::try_from(offset).unwrap_or(0));
    }

    /// Puts the first bits of the IPv6 address at an offset into the key.
    pub(super) fn masked6(&mut self, at: i16, bits: u8) {
        let mask: [u64; 2] = words(&mask128(bits).to_be_bytes());
        for (half, mask) in [(0, mask[0]), (8, mask[1])] {
            self.assembler.load(Width::Double, Register::R1, self.header, at + half);
            self.assembler.number(Register::R2, mask);
            self.assembler.operate(Operation::And, Register::R1, Register::R2);
            self.assembler.store(Width::Double, Register::R10, KEY6 + 8 + half, Register::R1);
        }
    }

    /// r0 = the entry of a map whose key is on the stack, or 0.
    pub(super) fn lookup(&mut self, key: i16, map: RawFd) {
        self.assembler.mov(Register::R2, Register::R10);
        self.assembler.operate(Operation::Add, Register::R2, i32::from(key));
        self.assembler.map(Register::R1, map);
        self.assembler.call(Helper::MapLookup);
    }
}

/// Passes VLAN tags, and goes on by what is behind them: `header` then points to where that begins, less 14.
pub(super) fn pass_tags(assembler: &mut Assembler, header: Register, v4: Label, v6: Label, done: Label) {
    assembler.mov(header, DATA);
    for tag in 0..=MOST_TAGS {
        let next = assembler.label();
        reaches(assembler, header, 14, done);
        assembler.load(Width::Half, Register::R1, header, 12);
        assembler.from_network_order(Register::R1, Width::Half);
        assembler.jump_if(Register::R1, Condition::Equal, 0x0800, v4);
        assembler.jump_if(Register::R1, Condition::Equal, 0x86dd, v6);
        if tag < MOST_TAGS {
            for kind in TAGS {
                assembler.jump_if(Register::R1, Condition::Equal, i32::from(kind), next);
            }
        }
        assembler.jump(done);
        assembler.place(next);
        if tag < MOST_TAGS {
            assembler.operate(Operation::Add, header, 4);
        }
    }
}

/// Goes on only when the packet has so many bytes from where a register points to on.
pub(super) fn reaches(assembler: &mut Assembler, from: Register, bytes: usize, otherwise: Label) {
    assembler.mov(Register::R1, from);
    assembler.operate(Operation::Add, Register::R1, u32::try_from(bytes).unwrap_or(u32::MAX));
    assembler.jump_if(Register::R1, Condition::Greater, DATA_END, otherwise);
}

/// Bytes as they lie in memory, 8 at a time.
pub(super) fn words<const N: usize>(bytes: &[u8]) -> [u64; N] {
    let mut words = [0; N];
    for (word, bytes) in words.iter_mut().zip(bytes.as_chunks().0) {
        *word = u64::from_ne_bytes(*bytes);
    }
    words
}
