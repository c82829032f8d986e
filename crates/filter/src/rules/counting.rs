//! What the program does for rules that are crossed beside its one search more: it looks up combinations of classes, and
//! counts for those that only count when a packet's fate is known. Before that nobody knows which of them it has come by.

use super::keys::SetKey6;
use super::program::{Coder, FIRST, KEY6, RuleProgram, bits_at};
use super::search::words;
use super::tables::{Kind, Tables};
use crate::ebpf::{Assembler, Condition, Operand, Operation, Register, Width};
use crate::xdp::{self, DATA, Exits, Verdict};

/// Where on the stack it is kept what rules that are crossed need, behind the words of joined lists' bits.
#[derive(Clone, Copy)]
pub(super) struct Kept {
    /// Words before it.
    words: usize,
}

/// Words of it where combinations are looked up, and so many more, with one for each class that may be found, where rules only count.
const CLASSES: usize = 2;
const COUNTING: usize = 3;

impl Kept {
    /// Behind the two that come behind the words of bits.
    pub(super) fn of(tables: &Tables) -> Self {
        Self { words: tables.words() + 2 }
    }

    /// How many words it has.
    pub(super) fn len(tables: &Tables) -> usize {
        let counting = if tables.most_counting() > 0 { COUNTING + found(tables) } else { 0 };
        if tables.shapes().is_empty() && counting == 0 { 0 } else { CLASSES + counting }
    }

    /// The class of a kind.
    fn class(self, kind: usize) -> i16 {
        bits_at(self.words) + 4 * i16::try_from(kind).unwrap_or(0)
    }

    /// The index of the rule before which rules count.
    fn limit(self) -> i16 {
        bits_at(self.words + CLASSES)
    }

    /// Which way out the packet takes.
    fn way(self) -> i16 {
        bits_at(self.words + CLASSES + 1)
    }

    /// The key of a counter.
    fn key(self) -> i16 {
        bits_at(self.words + CLASSES + 2)
    }

    /// Where those begin that only count and are met by a class that was found: of each kind, then of each combination.
    fn counting(self, number: usize) -> i16 {
        bits_at(self.words + CLASSES + COUNTING + number)
    }
}

/// How many classes may be found for a packet.
fn found(tables: &Tables) -> usize {
    Kind::ALL.len() + tables.shapes().len()
}

impl Coder<'_> {
    fn tables(&self) -> &Tables {
        self.rules.rules.tables()
    }

    /// Before any class was found.
    pub(super) fn keep_nothing(&mut self) {
        let kept = Kept::of(self.tables());
        let counting = if self.tables().most_counting() > 0 { found(self.tables()) } else { 0 };
        if !self.tables().shapes().is_empty() {
            for kind in [0, 2] {
                self.assembler.store(Width::Double, Register::R10, kept.class(kind), 0);
            }
        }
        for number in 0..counting {
            self.assembler.store(Width::Double, Register::R10, kept.counting(number), 0);
        }
    }

    /// Keeps what is asked for later of the class that begins at offset r0, which is where r1 points. It is of the kind of this number,
    /// or of a combination. Uses r2.
    pub(super) fn keep_class(&mut self, number: usize) {
        let kept = Kept::of(self.tables());
        if !self.tables().shapes().is_empty() && number < Kind::ALL.len() {
            self.assembler.store(Width::Word, Register::R10, kept.class(number), Register::R0);
        }
        if self.tables().most_counting() > 0 {
            let at = i16::try_from(self.tables().counting_at()).unwrap_or(0);
            self.assembler.load(Width::Double, Register::R2, Register::R1, at);
            self.assembler.store(Width::Double, Register::R10, kept.counting(number), Register::R2);
        }
    }

    /// Looks up the combinations of classes that have been found.
    pub(super) fn combinations(&mut self) {
        let kept = Kept::of(self.tables());
        let shapes = self.tables().shapes().to_vec();
        let [head, ..]: [u64; 3] = words(&SetKey6::of_classes([0; 4]).to_bytes());
        for (number, shape) in shapes.into_iter().enumerate() {
            let next = self.assembler.label();
            for kind in 0..Kind::ALL.len() {
                let at = KEY6 + 8 + 4 * i16::try_from(kind).unwrap_or(0);
                if shape >> kind & 1 == 0 {
                    self.assembler.store(Width::Word, Register::R10, at, 0);
                    continue;
                }
                self.assembler.load(Width::Word, Register::R1, Register::R10, kept.class(kind));
                self.assembler.jump_if(Register::R1, Condition::Equal, 0, next);
                self.assembler.store(Width::Word, Register::R10, at, Register::R1);
            }
            self.assembler.number(Register::R1, head);
            self.assembler.store(Width::Double, Register::R10, KEY6, Register::R1);
            self.lookup(KEY6, self.rules.sets.hash6);
            self.assembler.jump_if(Register::R0, Condition::Equal, 0, next);
            self.assembler.load(Width::Word, Register::R0, Register::R0, 0);
            self.add_class(Kind::ALL.len() + number);
            self.assembler.place(next);
        }
    }

    /// What comes now may be the packet's end: rules before this one that are crossed count it then.
    pub(super) fn count_before(&mut self, index: impl Into<Operand>) {
        if self.tables().most_counting() > 0 {
            let limit = Kept::of(self.tables()).limit();
            self.assembler.store(Width::Double, Register::R10, limit, index);
        }
    }

    /// From now on packets leave by the ways that count first, or by the others again.
    pub(super) fn change_exits(&mut self) {
        if let Some(counting) = &mut self.counting {
            std::mem::swap(&mut self.exits, counting);
        }
    }
}

/// What stands at the ways out that count first: the rules that are crossed count, and then the packet leaves.
pub(super) fn count(assembler: &mut Assembler, program: &RuleProgram<'_>, (from, to): (&Exits, &Exits)) {
    // What is in these registers is not asked for any more.
    const AT: Register = DATA;
    const ROUNDS: Register = FIRST;
    let tables = program.rules.tables();
    let (kept, layout) = (Kept::of(tables), tables.layout());
    let ways = || from.all(program.hook).zip(to.all(program.hook)).zip(0..);
    let count = assembler.label();
    for ((from, _), way) in ways() {
        assembler.place(from);
        assembler.store(Width::Double, Register::R10, kept.way(), way);
        assembler.jump(count);
    }
    assembler.place(count);
    let last = i32::try_from(layout.len - 8).unwrap_or(0);
    let rounds = i32::try_from(tables.most_counting()).unwrap_or(0);
    for number in 0..found(tables) {
        let [again, next] = [(); 2].map(|()| assembler.label());
        assembler.load(Width::Double, AT, Register::R10, kept.counting(number));
        assembler.jump_if(AT, Condition::Equal, 0, next);
        assembler.mov(ROUNDS, 0);
        assembler.place(again);
        assembler.jump_if(AT, Condition::Greater, last, next);
        assembler.map_value(Register::R1, program.sets.array, 0);
        assembler.operate(Operation::Add, Register::R1, AT);
        assembler.load(Width::Double, Register::R1, Register::R1, 0);
        assembler.store(Width::Word, Register::R10, kept.key(), Register::R1);
        assembler.operate(Operation::ShiftRight, Register::R1, 32);
        assembler.load(Width::Double, Register::R2, Register::R10, kept.limit());
        assembler.jump_if(Register::R1, Condition::GreaterOrEqual, Register::R2, next);
        xdp::add_to_counter_of(assembler, program.maps.counters, kept.key());
        assembler.operate(Operation::Add, AT, 8);
        assembler.operate(Operation::Add, ROUNDS, 1);
        assembler.jump_if(ROUNDS, Condition::Less, rounds, again);
        assembler.place(next);
    }
    assembler.load(Width::Double, Register::R1, Register::R10, kept.way());
    for ((_, to), way) in ways() {
        assembler.jump_if(Register::R1, Condition::Equal, way, to);
    }
    assembler.jump(to.of(Verdict::Left));
}
