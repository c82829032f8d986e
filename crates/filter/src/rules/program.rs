//! The XDP program of a set of rules.
//!
//! ```text
//!     is the worker alive?             ── no ───► XDP_PASS, counted as hung (or no_socket)
//!     on a list of what stays?         ── yes ──► XDP_PASS, counted as never_take
//!     matched by what rules are about? ── no ───► XDP_PASS, counted as left
//!     lists: one search for each kind
//!     rules in order, until one decides ────────► XDP_DROP or XDP_PASS, counted by the rule;
//!                                                 or to the queue, counted as taken
//!     no rule decides ──────────────────────────► XDP_PASS, counted as left
//! ```
//!
//! Rules that are one list cost nothing here: the search has found the first of them that is met, and before each other rule
//! its number is asked whether it comes earlier. The heartbeat comes first: a filter that hangs drops nothing.

use std::num::NonZeroU32;
use std::os::fd::RawFd;

use super::headers::{MOST_TAGS, TAGS, WITH_PORTS};
use super::keys::SetKey6;
use super::prefix::{mask32, mask128};
use super::tables::{Kind, Layout, NO_RULE};
use super::trie::INNER;
use super::{Action, Limit, Per, Plan, Rule, RuleSet};
use crate::Expression;
use crate::ebpf::{
    AssembleError, Assembler, Condition, Helper, Label, Operation, Program, Register, Width, filter,
};
use crate::xdp::{
    self, BASES, CONTEXT, DATA, DATA_END, Exits, KEY, LENGTH, MD_DATA, MD_DATA_END, RESULT, RULES_AT,
    Verdict, XDP_DROP, XDP_PASS,
};

/// What an interface's XDP program shall do by rules.
#[derive(Clone, Copy, Debug)]
pub struct RuleProgram<'a> {
    /// The rules.
    pub rules: &'a RuleSet,
    /// The counter of each, from 0 on; as many as there are rules.
    pub slots: &'a [u32],
    /// What rules are about; everything when `None`.
    pub only: Option<&'a Expression>,
    /// What stays with the kernel whatever the rules say.
    pub never: &'a [Expression],
    /// The maps of the port. The counters of rules come behind those of verdicts, from [`RULES_AT`] on.
    pub maps: xdp::Maps,
    /// The maps of these rules.
    pub sets: MapSet,
    /// How many jiffies a worker may be silent before all packets go to the kernel.
    pub hung_after_jiffies: u64,
}

/// File descriptors of the maps that hold the lists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MapSet {
    /// `BPF_MAP_TYPE_ARRAY` with one entry: [`Tables::array`](super::Tables::array). Not used where there is no list.
    pub array: RawFd,
    /// `BPF_MAP_TYPE_HASH`: [`Tables::entries6`](super::Tables::entries6). Not used where there is no IPv6.
    pub hash6: RawFd,
    /// `BPF_MAP_TYPE_HASH`: a [`BlockKey`](super::BlockKey) for each source that a limit has blocked; the values mean nothing. Not used
    /// where no limit blocks.
    pub blocks: RawFd,
}

/// Where the packet's network header begins, less 14.
const NETWORK: Register = Register::R4;

/// The stack, from the bottom up: the first rule that a list alone has met, the bits of the other lists, and whether the
/// packet was drawn as a sample by a rule that only counts. What expressions put on the stack comes from the top down.
const FIRST: i16 = -512;

fn bits_at(word: usize) -> i16 {
    FIRST + 8 + 8 * i16::try_from(word).unwrap_or(0)
}

/// What the search for IPv6 keeps meanwhile.
const SAVED: i16 = -40;
const KEY6: i16 = -32;

impl RuleProgram<'_> {
    /// The program.
    ///
    /// # Errors
    /// When the rules are too long for one program.
    pub fn program(&self) -> Result<Program, AssembleError> {
        let mut assembler = Assembler::new();
        let exits = Exits::new(&mut assembler);
        assembler.mov(CONTEXT, Register::R1);
        assembler.call(Helper::XdpLength);
        assembler.mov(LENGTH, Register::R0);
        xdp::check_heartbeat(&mut assembler, &self.maps, self.hung_after_jiffies, &exits);
        assembler.load(Width::Word, DATA, CONTEXT, MD_DATA);
        assembler.load(Width::Word, DATA_END, CONTEXT, MD_DATA_END);
        let mut coder =
            Coder { rules: self, layout: self.rules.tables().layout(), assembler, exits, stack: 0 };
        for never in self.never {
            let next = coder.assembler.label();
            coder.expression(never, coder.exits.of(Verdict::NeverTake), next);
            coder.assembler.place(next);
        }
        if let Some(only) = self.only {
            let ours = coder.assembler.label();
            coder.expression(only, ours, coder.exits.of(Verdict::Left));
            coder.assembler.place(ours);
        }
        if self.rules.tables().is_used() {
            coder.search();
        }
        coder.rules();
        let Coder { mut assembler, exits, stack, .. } = coder;
        let most = usize::from(FIRST.unsigned_abs()) - 8 * (2 + self.rules.tables().words());
        if stack > most {
            return Err(AssembleError::TooDeep { bytes: stack, most });
        }
        xdp::redirect(&mut assembler, &self.maps, &exits);
        xdp::leave(&mut assembler, &exits);
        xdp::count(&mut assembler, &self.maps, &exits);
        assembler.finish()
    }
}

struct Coder<'a> {
    rules: &'a RuleProgram<'a>,
    layout: Layout,
    assembler: Assembler,
    exits: Exits,
    /// Bytes of the stack that expressions use.
    stack: usize,
}

impl Coder<'_> {
    fn expression(&mut self, expression: &Expression, yes: Label, no: Label) {
        let used = filter(&mut self.assembler, expression.graph(), BASES, yes, no);
        self.stack = self.stack.max(used);
    }

    /// Finds out which lists the packet's addresses and ports are in.
    fn search(&mut self) {
        let tables = self.rules.rules.tables();
        let [v4, v6, done] = [(); 3].map(|()| self.assembler.label());
        self.assembler.store(Width::Double, Register::R10, FIRST, -1);
        for word in 0..tables.words() {
            self.assembler.store(Width::Double, Register::R10, bits_at(word), 0);
        }
        self.network(v4, v6, done);
        let ports = [Kind::FromPorts, Kind::ToPorts].map(|kind| tables.uses(kind));
        self.assembler.place(v4);
        self.check(34, done);
        for (kind, at) in [(Kind::From, 26), (Kind::To, 30)] {
            if let Some(root) = self.layout.roots[kind.side()] {
                self.address4(root, at);
            }
        }
        if ports != [false; 2] {
            let has_ports = self.assembler.label();
            self.assembler.load(Width::Half, Register::R1, NETWORK, 20);
            self.assembler.from_network_order(Register::R1, Width::Half);
            self.assembler.jump_if(Register::R1, Condition::CommonBit, 0x1fff, done);
            self.protocol(23, has_ports, done);
            self.assembler.load(Width::Byte, Register::R1, NETWORK, 14);
            self.assembler.operate(Operation::And, Register::R1, 0xf);
            self.assembler.operate(Operation::ShiftLeft, Register::R1, 2);
            self.assembler.operate(Operation::Add, NETWORK, Register::R1);
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
    }

    /// Passes VLAN tags, and goes on by what is behind them.
    fn network(&mut self, v4: Label, v6: Label, done: Label) {
        self.assembler.mov(NETWORK, DATA);
        for tag in 0..=MOST_TAGS {
            let next = self.assembler.label();
            self.check(14, done);
            self.assembler.load(Width::Half, Register::R1, NETWORK, 12);
            self.assembler.from_network_order(Register::R1, Width::Half);
            self.assembler.jump_if(Register::R1, Condition::Equal, 0x0800, v4);
            self.assembler.jump_if(Register::R1, Condition::Equal, 0x86dd, v6);
            if tag < MOST_TAGS {
                for kind in TAGS {
                    self.assembler.jump_if(Register::R1, Condition::Equal, i32::from(kind), next);
                }
            }
            self.assembler.jump(done);
            self.assembler.place(next);
            if tag < MOST_TAGS {
                self.assembler.operate(Operation::Add, NETWORK, 4);
            }
        }
    }

    /// Goes on only when the packet has so many bytes from the network header less 14 on.
    fn check(&mut self, bytes: i32, otherwise: Label) {
        self.assembler.mov(Register::R1, NETWORK);
        self.assembler.operate(Operation::Add, Register::R1, bytes);
        self.assembler.jump_if(Register::R1, Condition::Greater, DATA_END, otherwise);
    }

    /// Goes on only for a protocol with ports.
    fn protocol(&mut self, at: i16, has_ports: Label, otherwise: Label) {
        self.assembler.load(Width::Byte, Register::R1, NETWORK, at);
        for protocol in WITH_PORTS {
            self.assembler.jump_if(Register::R1, Condition::Equal, i32::from(protocol), has_ports);
        }
        self.assembler.jump(otherwise);
        self.assembler.place(has_ports);
    }

    fn ports(&mut self, at: i16, done: Label) {
        self.check(i32::from(at) + 4, done);
        for kind in [Kind::FromPorts, Kind::ToPorts] {
            let Some(table) = self.layout.ports[kind.side()] else { continue };
            let offset = if kind.side() == 0 { at } else { at + 2 };
            self.assembler.load(Width::Half, Register::R2, NETWORK, offset);
            self.assembler.from_network_order(Register::R2, Width::Half);
            self.assembler.operate(Operation::ShiftLeft, Register::R2, 2);
            self.value_at(Register::R1, table);
            self.assembler.operate(Operation::Add, Register::R1, Register::R2);
            self.assembler.load(Width::Word, Register::R0, Register::R1, 0);
            self.add_class();
        }
    }

    /// r0 = the class of the IPv4 address at an offset, and what it means.
    fn address4(&mut self, root: usize, at: i16) {
        let found = self.assembler.label();
        self.assembler.load(Width::Word, Register::R0, NETWORK, at);
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
        self.add_class();
        self.assembler.place(none);
    }

    fn addresses6(&mut self) {
        self.assembler.store(Width::Double, Register::R10, SAVED, NETWORK);
        for (kind, at) in [(Kind::From, 22_i16), (Kind::To, 38)] {
            let found = self.assembler.label();
            let next = self.assembler.label();
            let lengths = self.rules.rules.tables().lengths(kind);
            for &bits in lengths {
                self.assembler.load(Width::Double, NETWORK, Register::R10, SAVED);
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
                self.add_class();
            }
            self.assembler.place(next);
        }
        self.assembler.load(Width::Double, NETWORK, Register::R10, SAVED);
    }

    /// Notes what the class that begins at offset r0 means. Uses r0 to r3.
    fn add_class(&mut self) {
        let [later, none] = [(); 2].map(|()| self.assembler.label());
        let last = i32::try_from(self.layout.last_class).unwrap_or(0);
        self.assembler.jump_if(Register::R0, Condition::Equal, 0, none);
        self.assembler.jump_if(Register::R0, Condition::Greater, last, none);
        self.value_at(Register::R1, 0);
        self.assembler.operate(Operation::Add, Register::R1, Register::R0);
        self.assembler.load(Width::Double, Register::R2, Register::R1, 0);
        self.assembler.load(Width::Double, Register::R3, Register::R10, FIRST);
        self.assembler.jump_if(Register::R2, Condition::GreaterOrEqual, Register::R3, later);
        self.assembler.store(Width::Double, Register::R10, FIRST, Register::R2);
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

    /// Where it stands whether the packet was drawn as a sample by a rule that does not decide; `None` when there is no such
    /// rule. All rules before one that asks user space have counted the packet when it goes there, so that who looks at it
    /// again knows what was counted.
    fn drawn_at(&self) -> Option<i16> {
        let draws = |rule: &Rule| rule.sample.is_some() && !rule.decides();
        let any = self.rules.rules.rules().iter().any(draws);
        any.then(|| bits_at(self.rules.rules.tables().words()))
    }

    /// The rules in order.
    fn rules(&mut self) {
        let set = self.rules.rules;
        let [listed, left] = [(); 2].map(|()| self.assembler.label());
        if let Some(drawn) = self.drawn_at() {
            self.assembler.store(Width::Double, Register::R10, drawn, 0);
        }
        // Whether a rule that is one list stands between the last one that is not and here.
        let mut passed = false;
        for (index, (rule, plan)) in set.rules().iter().zip(set.plans()).enumerate() {
            let Plan::Coded(bits, _) = plan else {
                passed = true;
                continue;
            };
            if std::mem::take(&mut passed) {
                self.assembler.load(Width::Double, Register::R1, Register::R10, FIRST);
                self.assembler.operate(Operation::ShiftRight, Register::R1, 32);
                let index = i32::try_from(index).unwrap_or(i32::MAX);
                self.assembler.jump_if32(Register::R1, Condition::Less, index.cast_unsigned(), listed);
            }
            let next = self.assembler.label();
            self.rule(rule, bits, self.rules.slots.get(index).copied().unwrap_or(0), next);
            self.assembler.place(next);
        }
        if set.plans().contains(&Plan::Listed) {
            self.assembler.load(Width::Double, Register::R1, Register::R10, FIRST);
            self.assembler.number(Register::R2, NO_RULE);
            self.assembler.jump_if(Register::R1, Condition::Equal, Register::R2, left);
            self.assembler.place(listed);
            self.decide_by_list();
        }
        self.assembler.place(left);
        self.take_if_drawn();
        self.assembler.jump(self.exits.of(Verdict::Left));
    }

    fn take_if_drawn(&mut self) {
        if let Some(drawn) = self.drawn_at() {
            self.assembler.load(Width::Double, Register::R1, Register::R10, drawn);
            self.assembler.jump_if(Register::R1, Condition::NotEqual, 0, self.exits.take);
        }
    }

    /// One rule that is not just a list.
    fn rule(&mut self, rule: &Rule, bits: &[u32], slot: u32, next: Label) {
        for word in 0..self.rules.rules.tables().words() {
            let of_word = bits.iter().filter(|bit| **bit as usize / 64 == word);
            let mask = of_word.fold(0_u64, |mask, bit| mask | 1 << (bit % 64));
            if mask != 0 {
                self.assembler.load(Width::Double, Register::R1, Register::R10, bits_at(word));
                self.assembler.number(Register::R2, mask);
                self.assembler.operate(Operation::And, Register::R1, Register::R2);
                self.assembler.jump_if(Register::R1, Condition::NotEqual, Register::R2, next);
            }
        }
        if let Some(expression) = &rule.condition.expression {
            let matched = self.assembler.label();
            self.expression(expression, matched, next);
            self.assembler.place(matched);
        }
        let key = RULES_AT + slot;
        if rule.asks_user_space() {
            // Whether it is met as a whole is known there; it is counted there.
            if let Action::Limit(Limit { per: Per::Source { v4, v6 }, block: Some(_), .. }) = rule.action
                && rule.decides()
            {
                self.drop_blocked(slot, v4, v6);
            }
            return self.assembler.jump(self.exits.take);
        }
        let result = match rule.action {
            _ if !rule.decides() => None,
            Action::Drop => Some(XDP_DROP),
            _ => Some(XDP_PASS),
        };
        self.assembler.store(Width::Word, Register::R10, KEY, key.cast_signed());
        if let Some(result) = result {
            return self.decide(result, rule.sample);
        }
        xdp::add_to_counter(&mut self.assembler, &self.rules.maps);
        if let Some((sample, drawn)) = rule.sample.zip(self.drawn_at()) {
            self.draw(sample);
            self.assembler.jump_if32(Register::R0, Condition::NotEqual, 0_u32, next);
            self.assembler.store(Width::Double, Register::R10, drawn, 1);
        }
    }

    /// Ends with this result; what was drawn as a sample goes to user space, which does the same.
    fn decide(&mut self, result: i32, sample: Option<NonZeroU32>) {
        if sample.is_some() || self.drawn_at().is_some() {
            xdp::add_to_counter(&mut self.assembler, &self.rules.maps);
            if let Some(sample) = sample {
                self.draw(sample);
                self.assembler.jump_if32(Register::R0, Condition::Equal, 0_u32, self.exits.take);
            }
            self.take_if_drawn();
            self.assembler.mov(RESULT, result);
            return self.assembler.jump(self.exits.end);
        }
        self.assembler.mov(RESULT, result);
        self.assembler.jump(self.exits.count);
    }

    /// r0 = 0 for one packet in so many.
    fn draw(&mut self, sample: NonZeroU32) {
        self.assembler.call(Helper::Random);
        self.assembler.operate32(Operation::Modulo, Register::R0, sample.get());
    }

    /// Drops the packet when its source is blocked, which its first `v4` or `v6` bits tell. Else goes on; the packet is not
    /// read after that.
    fn drop_blocked(&mut self, slot: u32, bits4: u8, bits6: u8) {
        let [v4, v6, search, done] = [(); 4].map(|()| self.assembler.label());
        let take = self.exits.take;
        self.network(v4, v6, done);
        self.assembler.place(v4);
        self.check(34, take);
        self.assembler.load(Width::Word, Register::R1, NETWORK, 26);
        self.assembler.operate32(Operation::And, Register::R1, mask32(bits4).to_be());
        self.assembler.store(Width::Double, Register::R10, KEY6 + 8, 0);
        self.assembler.store(Width::Word, Register::R10, KEY6 + 8, Register::R1);
        self.assembler.store(Width::Double, Register::R10, KEY6 + 16, 0);
        self.assembler.store(Width::Word, Register::R10, KEY6 + 4, 32);
        self.assembler.jump(search);
        self.assembler.place(v6);
        self.check(54, take);
        self.masked6(22, bits6);
        self.assembler.store(Width::Word, Register::R10, KEY6 + 4, 128);
        self.assembler.place(search);
        self.assembler.store(Width::Word, Register::R10, KEY6, slot.cast_signed());
        self.lookup(KEY6, self.rules.sets.blocks);
        self.assembler.jump_if(Register::R0, Condition::Equal, 0, done);
        self.assembler.mov(RESULT, XDP_DROP);
        self.assembler.store(Width::Word, Register::R10, KEY, (RULES_AT + slot).cast_signed());
        self.assembler.jump(self.exits.count);
        self.assembler.place(done);
    }

    /// Puts the first bits of the IPv6 address at an offset into the key.
    fn masked6(&mut self, at: i16, bits: u8) {
        let mask: [u64; 2] = words(&mask128(bits).to_be_bytes());
        for (half, mask) in [(0, mask[0]), (8, mask[1])] {
            self.assembler.load(Width::Double, Register::R1, NETWORK, at + half);
            self.assembler.number(Register::R2, mask);
            self.assembler.operate(Operation::And, Register::R1, Register::R2);
            self.assembler.store(Width::Double, Register::R10, KEY6 + 8 + half, Register::R1);
        }
    }

    /// r0 = the entry of a map whose key is on the stack, or 0.
    fn lookup(&mut self, key: i16, map: RawFd) {
        self.assembler.mov(Register::R2, Register::R10);
        self.assembler.operate(Operation::Add, Register::R2, i32::from(key));
        self.assembler.map(Register::R1, map);
        self.assembler.call(Helper::MapLookup);
    }

    /// What the rule does that a list alone has met.
    fn decide_by_list(&mut self) {
        self.assembler.load(Width::Double, Register::R1, Register::R10, FIRST);
        self.assembler.mov(RESULT, Register::R1);
        self.assembler.operate(Operation::And, RESULT, 1);
        self.assembler.operate(Operation::Add, RESULT, XDP_DROP);
        self.assembler.operate32(Operation::ShiftRight, Register::R1, 1_u32);
        self.assembler.operate(Operation::Add, Register::R1, RULES_AT.cast_signed());
        self.assembler.store(Width::Word, Register::R10, KEY, Register::R1);
        if self.drawn_at().is_none() {
            return self.assembler.jump(self.exits.count);
        }
        xdp::add_to_counter(&mut self.assembler, &self.rules.maps);
        self.take_if_drawn();
        self.assembler.jump(self.exits.end);
    }
}

/// Bytes as they lie in memory, 8 at a time.
fn words<const N: usize>(bytes: &[u8]) -> [u64; N] {
    let mut words = [0; N];
    for (word, bytes) in words.iter_mut().zip(bytes.as_chunks().0) {
        *word = u64::from_ne_bytes(*bytes);
    }
    words
}
