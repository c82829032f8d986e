//! Walks over chains of headers in eBPF: bounded loops, each at most once on any way through a program.

use super::beside::TAG;
use super::code::{Coder, VALUE, slot};
use super::{Condition, Label, Operation, Register, Width};
use crate::formula::{Load, Size, Value};
use crate::plain::NAMED_AT;
use crate::walk::{
    Family, GENEVE_ETHERNET, Link, MOST_HEADERS, MOST_TAGS, Outer, Part, Pushed, Start, TAGS, Transport,
    UDP_HEADER, Walk, links, sum,
};

/// Where the walk is in the packet.
const AT: Register = Register::R5;
/// How many headers were passed.
const PASSED: Register = Register::R0;

/// The verifier's limit for offsets into a packet.
const FARTHEST: u32 = 0xffff;
/// No header that begins there ends beyond.
const BEYOND: i32 = 0x1_ffff;

impl Coder<'_> {
    /// What a walk finds, computed or looked up. Uses r0 to r5.
    pub(super) fn walk(&mut self, walk: Walk) {
        let kept = self.walks.iter().position(|known| *known == walk);
        if let Some(index) = kept
            && self.walked & 1 << index != 0
        {
            self.assembler.load(Width::Double, VALUE, Register::R10, slot(index));
            return;
        }
        match walk {
            Walk::Tags { named_at } => self.tags(named_at),
            Walk::Chain { start, protocol } => self.chain(walk, start, protocol),
            Walk::Transport { start } => self.transport(walk, start, slot(kept.unwrap_or(0))),
            Walk::Geneve { outer, part } => self.geneve(outer, part),
        }
        if let Some(index) = kept {
            self.assembler.store(Width::Double, Register::R10, slot(index), VALUE);
            self.walked |= 1 << index;
        }
    }

    fn tags(&mut self, named_at: u32) {
        let [again, tag, done] = [(); 3].map(|()| self.assembler.label());
        let before = if self.bases.tag.is_some() { TAG } else { 0 };
        // One that stands beside the packet is the first.
        let is_passed = named_at == NAMED_AT && before > 0;
        self.assembler.mov(AT, if is_passed { TAG.cast_signed() } else { 0 });
        self.assembler.mov(PASSED, i32::from(is_passed));
        self.assembler.place(again);
        self.reach(0, named_at - before + 2);
        self.assembler.operate(Operation::Add, Register::R3, named_at - before);
        self.assembler.load(Width::Half, VALUE, Register::R3, 0);
        self.assembler.from_network_order(VALUE, Width::Half);
        for kind in TAGS {
            self.assembler.jump_if(VALUE, Condition::Equal, i32::from(kind), tag);
        }
        self.assembler.jump(done);
        self.assembler.place(tag);
        self.assembler.operate(Operation::Add, AT, 4);
        self.next_header(MOST_TAGS + 1, again);
        self.assembler.place(done);
        self.assembler.mov(VALUE, AT);
    }

    fn chain(&mut self, walk: Walk, start: Start, protocol: u8) {
        let [again, found, done] = [(); 3].map(|()| self.assembler.label());
        self.begin(start);
        self.assembler.place(again);
        self.assembler.jump_if(VALUE, Condition::Equal, i32::from(protocol), found);
        let links = self.choose(walk);
        self.assembler.mov(VALUE, 0);
        self.assembler.jump(done);
        for (link, label) in links {
            self.assembler.place(label);
            self.pass(link);
            self.next_header(MOST_HEADERS, again);
        }
        self.assembler.place(found);
        self.assembler.mov(VALUE, 1);
        self.assembler.place(done);
    }

    /// `flags` is a place on the stack.
    fn transport(&mut self, walk: Walk, start: Start, flags: i16) {
        let [again, done] = [(); 2].map(|()| self.assembler.label());
        if start.family == Family::V4 {
            self.value(&start.load(6, Size::Half));
            self.note_fragment(VALUE, 0x1fff, 0x2000, flags, None);
        } else {
            self.assembler.store(Width::Double, Register::R10, flags, 0);
        }
        self.begin(start);
        if start.family == Family::V4 {
            self.assembler.load(Width::Double, Register::R4, Register::R10, flags);
            self.assembler.jump_if32(Register::R4, Condition::Equal, Transport::LATER, done);
        }
        self.assembler.place(again);
        let links = self.choose(walk);
        self.assembler.jump(done);
        for (link, label) in links {
            self.assembler.place(label);
            if link == Link::Fragment {
                self.check(4);
                self.assembler.load(Width::Half, Register::R4, Register::R3, 2);
                self.assembler.from_network_order(Register::R4, Width::Half);
                self.assembler.load(Width::Byte, VALUE, Register::R3, 0);
                self.assembler.operate(Operation::Add, AT, 8);
                self.note_fragment(Register::R4, 0xfff8, 1, flags, Some(done));
            } else {
                self.pass(link);
            }
            self.next_header(MOST_HEADERS, again);
        }
        self.assembler.place(done);
        self.assembler.jump_if(AT, Condition::Greater, Transport::OFFSET, self.no);
        self.assembler.operate(Operation::And, AT, Transport::OFFSET);
        self.assembler.operate32(Operation::ShiftLeft, VALUE, Transport::PROTOCOL_SHIFT);
        self.assembler.operate32(Operation::Or, VALUE, AT);
        self.assembler.load(Width::Double, Register::R4, Register::R10, flags);
        self.assembler.operate32(Operation::Or, VALUE, Register::R4);
    }

    fn geneve(&mut self, outer: Outer, part: Part) {
        let [v6, have, done] = [(); 3].map(|()| self.assembler.label());
        let pushed = Pushed::of_tags(outer.tags_at).walk().map(Value::Walk);
        let load = |offset, size| Load { index: pushed.clone(), offset, size };
        // This does the walk over tags, on the way to both that follow.
        self.value(&Value::Load(Box::new(load(outer.named_at, outer.named_size))));
        self.assembler.operate32(Operation::And, VALUE, outer.named_mask);
        self.assembler.jump_if32(VALUE, Condition::NotEqual, outer.named_v4, v6);
        let header = Value::HeaderLength(Box::new(load(outer.network, Size::Byte)));
        self.value(&sum(pushed.clone(), header));
        self.assembler.jump(have);
        self.assembler.place(v6);
        self.value(&sum(pushed, Value::Number(40)));
        self.assembler.place(have);
        self.assembler.mov(AT, VALUE);
        self.assembler.operate(Operation::Add, AT, outer.network + UDP_HEADER);
        self.check(4);
        self.assembler.load(Width::Byte, VALUE, Register::R3, 0);
        self.assembler.load(Width::Half, Register::R4, Register::R3, 2);
        self.assembler.from_network_order(Register::R4, Width::Half);
        self.assembler.operate(Operation::And, VALUE, 0x3f);
        self.assembler.operate(Operation::ShiftLeft, VALUE, 2);
        self.assembler.operate(Operation::Add, VALUE, AT);
        self.assembler.operate(Operation::Add, VALUE, 8);
        let ethernet = self.assembler.label();
        self.assembler.jump_if(Register::R4, Condition::Equal, i32::from(GENEVE_ETHERNET), ethernet);
        if part == Part::Named {
            self.assembler.mov(VALUE, AT);
            self.assembler.operate(Operation::Add, VALUE, 2);
        }
        self.assembler.jump(done);
        self.assembler.place(ethernet);
        match part {
            Part::Named => self.assembler.operate(Operation::Add, VALUE, 12),
            Part::Payload => self.assembler.operate(Operation::Add, VALUE, 14),
            Part::Header => {}
        }
        self.assembler.place(done);
    }

    /// Notes in `flags` what a fragment field says; a later fragment goes on at `later`, if that is given.
    fn note_fragment(&mut self, field: Register, offset: u32, more: u32, flags: i16, later: Option<Label>) {
        let [is_later, is_first, noted] = [(); 3].map(|()| self.assembler.label());
        self.assembler.jump_if32(field, Condition::CommonBit, offset, is_later);
        self.assembler.jump_if32(field, Condition::CommonBit, more, is_first);
        self.assembler.store(Width::Double, Register::R10, flags, 0);
        self.assembler.jump(noted);
        self.assembler.place(is_first);
        self.assembler.store(Width::Double, Register::R10, flags, Transport::FIRST);
        self.assembler.jump(noted);
        self.assembler.place(is_later);
        self.assembler.store(Width::Double, Register::R10, flags, Transport::LATER);
        if let Some(later) = later {
            self.assembler.jump(later);
        }
        self.assembler.place(noted);
    }

    /// The value becomes the first protocol, and the walk stands behind the IP header.
    fn begin(&mut self, start: Start) {
        match start.family {
            Family::V4 => {
                self.value(&start.load(9, Size::Byte));
                let protocol = self.save();
                self.value(&sum(start.pushed_by(), start.header_length()));
                self.assembler.mov(AT, VALUE);
                self.assembler.operate(Operation::Add, AT, start.network);
                self.restore(protocol);
            }
            Family::V6 => {
                self.value(&start.load(6, Size::Byte));
                let protocol = self.save();
                match start.pushed_by() {
                    Some(pushed) => self.value(&pushed),
                    None => self.assembler.mov(VALUE, 0),
                }
                self.assembler.mov(AT, VALUE);
                self.assembler.operate(Operation::Add, AT, start.network + 40);
                self.restore(protocol);
            }
        }
        self.assembler.mov(PASSED, 0);
    }

    /// Jumps to the label of the link that the value names.
    fn choose(&mut self, walk: Walk) -> Vec<(Link, Label)> {
        let mut labels: Vec<(Link, Label)> = Vec::new();
        for (protocol, link) in links(&walk) {
            let known = labels.iter().find(|(known, _)| known == link).map(|(_, label)| *label);
            let label = known.unwrap_or_else(|| {
                let label = self.assembler.label();
                labels.push((*link, label));
                label
            });
            self.assembler.jump_if(VALUE, Condition::Equal, i32::from(*protocol), label);
        }
        labels
    }

    /// Passes a header whose length stands in it: the value becomes the next protocol.
    fn pass(&mut self, link: Link) {
        let (add, shift) = if link == Link::Fours { (2, 2) } else { (1, 3) };
        self.check(2);
        self.assembler.load(Width::Byte, VALUE, Register::R3, 0);
        self.assembler.load(Width::Byte, Register::R4, Register::R3, 1);
        self.assembler.operate(Operation::Add, Register::R4, add);
        self.assembler.operate(Operation::ShiftLeft, Register::R4, shift);
        self.assembler.operate(Operation::Add, AT, Register::R4);
    }

    /// r3 points to where the walk is; the packet has so many bytes there.
    fn check(&mut self, bytes: u32) {
        self.reach(if self.bases.tag.is_some() { TAG } else { 0 }, bytes);
    }

    /// r3 points so many bytes before where the walk is; the packet has so many bytes there.
    fn reach(&mut self, before: u32, bytes: u32) {
        self.assembler.jump_if(AT, Condition::Greater, FARTHEST - bytes, self.no);
        if before == 0 {
            self.assembler.mov(Register::R3, self.bases.data);
            self.assembler.operate(Operation::Add, Register::R3, AT);
        } else {
            // The verifier does not know that the walk is so far.
            self.assembler.jump_if(AT, Condition::Less, before, self.no);
            self.assembler.mov(Register::R3, AT);
            self.assembler.operate(Operation::Subtract, Register::R3, before);
            self.assembler.operate(Operation::Add, Register::R3, self.bases.data);
        }
        self.assembler.mov(Register::R1, Register::R3);
        self.assembler.operate(Operation::Add, Register::R1, bytes);
        self.assembler.jump_if(Register::R1, Condition::Greater, self.bases.data_end, self.no);
    }

    /// Goes on with the next header, or gives up.
    fn next_header(&mut self, most: usize, again: Label) {
        self.forget_bounds();
        self.assembler.operate(Operation::And, AT, BEYOND);
        self.assembler.operate(Operation::Add, PASSED, 1);
        self.assembler.jump_if(PASSED, Condition::Less, i32::try_from(most).unwrap_or(i32::MAX), again);
        self.assembler.jump(self.no);
    }

    /// Makes the verifier forget what it knows of the place, which stays the same. It would know another thing after each
    /// turn of the loop and each way through it, and follow the whole rest of the program for each.
    fn forget_bounds(&mut self) {
        self.assembler.operate(Operation::Xor, AT, self.bases.length);
        self.assembler.operate(Operation::Xor, AT, self.bases.length);
    }
}

impl Start {
    fn pushed_by(self) -> Option<Value> {
        self.pushed.walk().map(Value::Walk)
    }

    fn at(self, offset: u32, size: Size) -> Load {
        Load { index: self.pushed_by(), offset: self.network + offset, size }
    }

    fn load(self, offset: u32, size: Size) -> Value {
        Value::Load(Box::new(self.at(offset, size)))
    }

    fn header_length(self) -> Value {
        Value::HeaderLength(Box::new(self.at(0, Size::Byte)))
    }
}
