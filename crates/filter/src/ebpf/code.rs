//! From an expression's graph to eBPF.
//!
//! The packet can be read only where the verifier has seen a comparison with its end on the way. Such a comparison
//! stands before a load unless every way to it has made one that reaches as far.

use super::beside::Place;
use super::{Assembler, Condition, Label, Operation, Register, Width};
use crate::formula::{Comparison, Load, Operator, Size, Test, Value};
use crate::graph::{Graph, Target};
use crate::sets::{Check, Range};
use crate::walk::Walk;

/// Where a program keeps what an expression is about. All survive calls.
#[derive(Clone, Copy)]
pub(crate) struct Bases {
    /// The first byte of the packet.
    pub(crate) data: Register,
    /// The byte behind its last.
    pub(crate) data_end: Register,
    /// The packet's length.
    pub(crate) length: Register,
    /// Where on the stack its tag is, when one stands beside it: see `beside.rs`.
    pub(crate) tag: Option<i16>,
}

/// The verifier's limit for offsets into a packet.
const FARTHEST: u64 = 0xffff;

/// The value being computed.
pub(super) const VALUE: Register = Register::R2;

/// Appends an expression: it goes on at `yes` or at `no`. Uses r0 to r5 and the stack from the top down, so many bytes of it
/// as are returned.
pub(crate) fn filter(assembler: &mut Assembler, graph: &Graph, bases: Bases, yes: Label, no: Label) -> usize {
    let places: Vec<Label> = graph.nodes.iter().map(|_| assembler.label()).collect();
    let mut coder = Coder {
        assembler,
        bases,
        yes,
        no,
        places,
        walks: &graph.walks,
        proven: 0,
        walked: 0,
        slots: graph.walks.len(),
        deepest: graph.walks.len(),
    };
    if let Some(label) = coder.unless_next(graph.entry, 0) {
        coder.assembler.jump(label);
    }
    for (index, node) in graph.nodes.iter().enumerate() {
        coder.assembler.place(coder.places[index]);
        coder.proven = node.proven;
        coder.walked = node.walked;
        match &node.check {
            Check::Compare(test) => coder.test(test, node.yes, node.no, index + 1),
            Check::Among(left, ranges) => {
                coder.value(left);
                let [yes, no] = [node.yes, node.no].map(|target| coder.label(target));
                coder.search(ranges, yes, no);
            }
        }
    }
    8 * coder.deepest
}

pub(super) struct Coder<'a> {
    pub(super) assembler: &'a mut Assembler,
    pub(super) bases: Bases,
    yes: Label,
    pub(super) no: Label,
    places: Vec<Label>,
    /// The first slots of the stack keep what these found.
    pub(super) walks: &'a [Walk],
    /// Bytes that the packet has for sure by now.
    proven: u64,
    /// Walks that are done by now.
    pub(super) walked: u32,
    /// Slots of the stack in use.
    slots: usize,
    /// Most of them that were in use at once.
    deepest: usize,
}

impl Coder<'_> {
    fn label(&self, target: Target) -> Label {
        match target {
            Target::Match => self.yes,
            Target::NoMatch => self.no,
            Target::Node(index) => self.places[index],
        }
    }

    /// The label of a target, unless it is the node that comes next anyway.
    fn unless_next(&self, target: Target, next: usize) -> Option<Label> {
        (target != Target::Node(next)).then(|| self.label(target))
    }

    fn test(&mut self, test: &Test, yes: Target, no: Target, next: usize) {
        let right = match &test.right {
            Value::Number(number) => *number,
            _ => return self.general_test(test, yes, no, next),
        };
        let swapped = |size: Size, number: u32| match size {
            Size::Byte => number,
            Size::Half => u32::from(u16::from_ne_bytes(low_half(number).to_be_bytes())),
            Size::Word => u32::from_ne_bytes(number.to_be_bytes()),
        };
        let (left, mask) = match &test.left {
            Value::Binary(Operator::And, left, mask) => match **mask {
                Value::Number(mask) => (&**left, Some(mask)),
                _ => (&test.left, None),
            },
            left => (left, None),
        };
        // Bytes need not be turned round to see whether they equal a number: the number is.
        if let Value::Load(load) = left
            && test.comparison != Comparison::Greater
            && test.comparison != Comparison::GreaterOrEqual
            && fits(right, load.size)
        {
            self.load(load);
            if let Some(mask) = mask {
                self.assembler.operate32(Operation::And, VALUE, swapped(load.size, mask));
            }
            return self.branch(test.comparison, Operand::Number(swapped(load.size, right)), yes, no, next);
        }
        self.value(&test.left);
        self.branch(test.comparison, Operand::Number(right), yes, no, next);
    }

    fn general_test(&mut self, test: &Test, yes: Target, no: Target, next: usize) {
        self.value(&test.left);
        let slot = self.save();
        self.value(&test.right);
        self.assembler.mov(Register::R3, VALUE);
        self.restore(slot);
        self.branch(test.comparison, Operand::Register(Register::R3), yes, no, next);
    }

    /// Goes on at `yes` when the value is in a range, else at `no`: halves the ranges until few are left.
    fn search(&mut self, ranges: &[Range], yes: Label, no: Label) {
        if let (lower, [first, ..]) = ranges.split_at(ranges.len() / 2)
            && ranges.len() > 3
        {
            let upper = self.assembler.label();
            self.jump_if(Condition::GreaterOrEqual, Operand::Number(first.least), upper);
            self.search(lower, yes, no);
            self.assembler.place(upper);
            return self.search(&ranges[lower.len()..], yes, no);
        }
        for range in ranges {
            if range.is_one() {
                self.jump_if(Condition::Equal, Operand::Number(range.least), yes);
                continue;
            }
            if range.least > 0 {
                // All that is greater follows.
                self.jump_if(Condition::Less, Operand::Number(range.least), no);
            }
            self.jump_if(Condition::LessOrEqual, Operand::Number(range.greatest), yes);
        }
        self.assembler.jump(no);
    }

    fn branch(&mut self, comparison: Comparison, right: Operand, yes: Target, no: Target, next: usize) {
        let (when, unless) = match comparison {
            Comparison::Equal => (Condition::Equal, Some(Condition::NotEqual)),
            Comparison::Greater => (Condition::Greater, Some(Condition::LessOrEqual)),
            Comparison::GreaterOrEqual => (Condition::GreaterOrEqual, Some(Condition::Less)),
            Comparison::CommonBit => (Condition::CommonBit, None),
        };
        match (self.unless_next(yes, next), self.unless_next(no, next), unless) {
            (None, Some(no), Some(unless)) => self.jump_if(unless, right, no),
            (yes, no, _) => {
                let yes = yes.unwrap_or_else(|| self.places[next]);
                self.jump_if(when, right, yes);
                if let Some(no) = no {
                    self.assembler.jump(no);
                }
            }
        }
    }

    fn jump_if(&mut self, condition: Condition, right: Operand, to: Label) {
        match right {
            Operand::Number(number) => self.assembler.jump_if32(VALUE, condition, number, to),
            Operand::Register(register) => self.assembler.jump_if32(VALUE, condition, register, to),
        }
    }

    /// Computes a value; what ends the expression jumps to no match.
    pub(super) fn value(&mut self, value: &Value) {
        match value {
            Value::Number(number) => self.assembler.operate32(Operation::Move, VALUE, *number),
            Value::Length => self.assembler.mov(VALUE, self.bases.length),
            Value::Load(load) => {
                self.load(load);
                self.turn(load.size);
            }
            Value::HeaderLength(load) => {
                self.load(load);
                self.assembler.operate32(Operation::And, VALUE, 0xf_u32);
                self.assembler.operate32(Operation::ShiftLeft, VALUE, 2_u32);
            }
            Value::Negate(inner) => {
                self.value(inner);
                self.assembler.operate32(Operation::Negate, VALUE, 0_u32);
            }
            Value::Binary(operator, left, right) => self.binary(*operator, left, right),
            Value::Walk(walk) => self.walk(*walk),
        }
    }

    fn turn(&mut self, size: Size) {
        match size {
            Size::Byte => {}
            Size::Half => self.assembler.from_network_order(VALUE, Width::Half),
            Size::Word => self.assembler.from_network_order(VALUE, Width::Word),
        }
    }

    /// Loads bytes as they are in the packet.
    pub(super) fn load(&mut self, load: &Load) {
        let Bases { data, data_end, .. } = self.bases;
        let place = self.place(load);
        let before = if let Place::Packet(before) = place { before } else { 0 };
        let end = u64::from(load.offset) + u64::from(load.size.bytes());
        let Some(room) = FARTHEST.checked_sub(end) else {
            // No packet reaches so far.
            return self.never();
        };
        let width = match load.size {
            Size::Byte => Width::Byte,
            Size::Half => Width::Half,
            Size::Word => Width::Word,
        };
        let offset = (load.offset - before).cast_signed();
        let base = match &load.index {
            None => {
                if end > self.proven {
                    let bytes = self.in_packet(load.offset + load.size.bytes());
                    self.assembler.mov(Register::R1, data);
                    self.assembler.operate(Operation::Add, Register::R1, bytes.cast_signed());
                    self.assembler.jump_if(Register::R1, Condition::Greater, data_end, self.no);
                    self.proven = end;
                }
                if let Place::Tag(tag) = place {
                    return self.load_around_tag(load, tag);
                }
                data
            }
            Some(index) => {
                self.value(index);
                if !matches!(index, Value::HeaderLength(_)) {
                    self.assembler.jump_if(
                        VALUE,
                        Condition::Greater,
                        i32::try_from(room).unwrap_or(0),
                        self.no,
                    );
                }
                if let Place::Unknown(tag) = place {
                    return self.load_anywhere(load, width, tag);
                }
                self.assembler.mov(Register::R3, data);
                self.assembler.operate(Operation::Add, Register::R3, VALUE);
                self.assembler.mov(Register::R1, Register::R3);
                let bytes = load.size.bytes().cast_signed();
                self.assembler.operate(Operation::Add, Register::R1, offset + bytes);
                self.assembler.jump_if(Register::R1, Condition::Greater, data_end, self.no);
                Register::R3
            }
        };
        match i16::try_from(offset) {
            Ok(offset) => self.assembler.load(width, VALUE, base, offset),
            Err(_) => {
                self.assembler.mov(Register::R1, base);
                self.assembler.operate(Operation::Add, Register::R1, offset);
                self.assembler.load(width, VALUE, Register::R1, 0);
            }
        }
    }

    /// Ends the expression. The value is set for what follows, though it is never reached.
    fn never(&mut self) {
        self.assembler.operate32(Operation::Move, VALUE, 0_u32);
        self.assembler.jump_if32(VALUE, Condition::Equal, 0_u32, self.no);
    }

    fn binary(&mut self, operator: Operator, left: &Value, right: &Value) {
        self.value(left);
        if let Value::Number(number) = right {
            match operator {
                _ if operator.divides() && *number == 0 => self.never(),
                Operator::ShiftLeft | Operator::ShiftRight if *number > 31 => {
                    self.assembler.operate32(Operation::Move, VALUE, 0_u32);
                }
                _ => self.assembler.operate32(operation(operator), VALUE, *number),
            }
            return;
        }
        let slot = self.save();
        self.value(right);
        self.assembler.mov(Register::R3, VALUE);
        self.restore(slot);
        if operator.divides() {
            self.assembler.jump_if32(Register::R3, Condition::Equal, 0_u32, self.no);
        }
        let shifts = matches!(operator, Operator::ShiftLeft | Operator::ShiftRight);
        let done = self.assembler.label();
        if shifts {
            let small = self.assembler.label();
            self.assembler.jump_if32(Register::R3, Condition::Less, 32_u32, small);
            self.assembler.operate32(Operation::Move, VALUE, 0_u32);
            self.assembler.jump(done);
            self.assembler.place(small);
        }
        self.assembler.operate32(operation(operator), VALUE, Register::R3);
        self.assembler.place(done);
    }

    /// Puts the value on the stack.
    pub(super) fn save(&mut self) -> i16 {
        let slot = slot(self.slots);
        self.slots += 1;
        self.deepest = self.deepest.max(self.slots);
        self.assembler.store(Width::Double, Register::R10, slot, VALUE);
        slot
    }

    pub(super) fn restore(&mut self, slot: i16) {
        self.slots -= 1;
        self.assembler.load(Width::Double, VALUE, Register::R10, slot);
    }
}

/// A place on the stack: eight bytes, the first at the top.
pub(super) fn slot(index: usize) -> i16 {
    i16::try_from(index).map_or(i16::MIN, |index| -8 * (index + 1))
}

enum Operand {
    Number(u32),
    Register(Register),
}

fn low_half(number: u32) -> u16 {
    let [_, _, high, low] = number.to_be_bytes();
    u16::from_be_bytes([high, low])
}

/// Whether a number has no bits beyond a size.
fn fits(number: u32, size: Size) -> bool {
    match size {
        Size::Byte => number <= 0xff,
        Size::Half => number <= 0xffff,
        Size::Word => true,
    }
}

fn operation(operator: Operator) -> Operation {
    match operator {
        Operator::Add => Operation::Add,
        Operator::Subtract => Operation::Subtract,
        Operator::Multiply => Operation::Multiply,
        Operator::Divide => Operation::Divide,
        Operator::Modulo => Operation::Modulo,
        Operator::And => Operation::And,
        Operator::Or => Operation::Or,
        Operator::Xor => Operation::Xor,
        Operator::ShiftLeft => Operation::ShiftLeft,
        Operator::ShiftRight => Operation::ShiftRight,
    }
}
