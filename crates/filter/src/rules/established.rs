//! Established flows in the kernel: the program on the way out that notes them, and the look-up of the one that decides.
//!
//! Both find out which flow a packet is of, in the order in which [`Flow`](super::flow::Flow) says it, and search its set.
//! The table is reached as memory, so the only call is for the time: the coarse clock, which costs a few nanoseconds and
//! which this process can read as well.

use std::os::fd::RawFd;

use super::cookie::{LISTEN, SOCKET_STATE};
use super::flow::{
    ACK, FLAGS, FlowOptions, IDENTIFIER, SYN, SYN_RST_ACK, TCP, UDP, WORDS, WORDS_V4, Way, echo, kind,
};
use super::flow_table::{FLOW, FLOWS_AT, FlowLayout, SET, TIME_SHIFT, WAYS, most_age};
use super::search::{pass_tags, reaches};
use crate::Expression;
use crate::ebpf::{
    AROUND_TAG, AssembleError, Assembler, Bases, Condition, Helper, Label, Operation, Program, Register,
    Width, copy_tag, filter,
};
use crate::hook::{Hook, SKB_LEN, SKB_VLAN_PRESENT, TCX_NEXT, bring_to_front, unless_in_front};
use crate::plain::{NETWORK, Plain};
use crate::walk::Family;
use crate::xdp::{self, BASES, CONTEXT, DATA, KEY, LENGTH, LOST_SAMPLES, Verdict};

/// The table of established flows, as programs reach it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowMap {
    /// `BPF_MAP_TYPE_ARRAY` with one entry, of [`FlowLayout::bytes`].
    pub table: RawFd,
    /// Where what lies in it.
    pub layout: FlowLayout,
}

/// What the program on the way out counts, as an index into the map of counters, behind the verdicts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum FlowCount {
    /// Flows that were noted anew.
    Noted = Verdict::LAST as u32 + 1,
    /// Flows that were forgotten to make room, though a rule would still have found them.
    Forgotten,
}

const _: () = assert!(Verdict::ALL.len() + FlowCount::ALL.len() <= LOST_SAMPLES as usize);

impl FlowCount {
    /// All of them.
    pub const ALL: [Self; 2] = [Self::Noted, Self::Forgotten];

    /// Its name, as counters are called.
    pub fn name(self) -> &'static str {
        match self {
            Self::Noted => "flows_noted",
            Self::Forgotten => "flows_forgotten",
        }
    }
}

/// On the stack: a flow's words, its tag, and the time.
const WORDS_AT: i16 = -48;
const TAG_AT: i16 = -56;
const TIME_AT: i16 = -64;
/// The VLAN tag beside a packet with what is next to it; what expressions put on the stack comes from the top down.
const VLAN_TAG_AT: i16 = -512;

/// Halves of a head, as they lie in memory.
const TIME_HALF: i16 = if cfg!(target_endian = "little") { 0 } else { 4 };
const TAG_HALF: i16 = 4 - TIME_HALF;

/// What the search for a set leaves behind: r4 is the head that was found.
const HEAD: Register = Register::R4;

/// The age of a flow that nobody knows.
pub(super) const NEVER: i32 = -1;

/// Where the network header of packets that are not plain begins, less 14.
const HEADER: Register = Register::R4;

/// Looks the flow of a packet that has come in up, and stores at `to` on the stack how long ago it was used, and one more.
pub(super) fn look_up(
    assembler: &mut Assembler,
    flows: FlowMap,
    plain: Option<Plain>,
    header: Register,
    to: i16,
) {
    let [found, none, done] = [(); 3].map(|()| assembler.label());
    let mut coder = FlowCoder { assembler, flows, plain, header, way: Way::In };
    coder.find(found, none);
    let assembler = coder.assembler;
    assembler.jump(none);
    assembler.place(found);
    assembler.load(Width::Word, Register::R1, HEAD, TIME_HALF);
    assembler.store(Width::Double, Register::R10, TIME_AT, Register::R1);
    now(assembler);
    assembler.load(Width::Double, Register::R1, Register::R10, TIME_AT);
    age(assembler, Register::R0, Register::R1);
    assembler.store(Width::Double, Register::R10, to, Register::R0);
    assembler.jump(done);
    assembler.place(none);
    assembler.store(Width::Double, Register::R10, to, NEVER);
    assembler.place(done);
}

/// The TCX program on the way out: notes the flows of what leaves, and lets all pass to the next program.
///
/// `counters` is the map of counters of [`Maps`](crate::xdp::Maps). A flow that was used within `idle` is missed when it
/// must be forgotten.
///
/// # Errors
/// When the expressions are too long for one program.
pub fn note_program(
    flows: FlowMap,
    options: &FlowOptions,
    counters: RawFd,
    idle: std::time::Duration,
) -> Result<Program, AssembleError> {
    let mut assembler = Assembler::new();
    let [found, end] = [(); 2].map(|()| assembler.label());
    read_headers(&mut assembler, end);
    if !options.except.is_empty() {
        leave_excepted(&mut assembler, &options.except, end)?;
    }
    now(&mut assembler);
    assembler.store(Width::Double, Register::R10, TIME_AT, Register::R0);
    let mut coder =
        FlowCoder { assembler: &mut assembler, flows, plain: None, header: HEADER, way: Way::Out };
    coder.find(found, end);
    choose_oldest(&mut assembler);
    write_flow(&mut assembler);
    count(&mut assembler, counters, idle);
    assembler.jump(end);
    assembler.place(found);
    assembler.load(Width::Double, Register::R1, Register::R10, TIME_AT);
    assembler.load(Width::Word, Register::R2, HEAD, TIME_HALF);
    // Not to be written when nothing changes: other cores read it.
    assembler.jump_if(Register::R1, Condition::Equal, Register::R2, end);
    assembler.store(Width::Word, HEAD, TIME_HALF, Register::R1);
    assembler.place(end);
    assembler.mov(Register::R0, TCX_NEXT);
    assembler.exit();
    assembler.finish()
}

/// Goes to `end` when an expression matches. Where a tag stands beside the packet, expressions see it where it is on the wire; the
/// packet is not changed for that, as what leaves may have tags that do not survive it.
fn leave_excepted(assembler: &mut Assembler, except: &[Expression], end: Label) -> Result<(), AssembleError> {
    let [untagged, done] = [(); 2].map(|()| assembler.label());
    let mut deepest = 0;
    let mut any = |assembler: &mut Assembler, bases: Bases| {
        for except in except {
            let next = assembler.label();
            deepest = deepest.max(filter(assembler, except.graph(), bases, end, next));
            assembler.place(next);
        }
    };
    assembler.load(Width::Word, Register::R1, CONTEXT, SKB_VLAN_PRESENT);
    assembler.jump_if(Register::R1, Condition::Equal, 0, untagged);
    // What is shorter has no flow.
    reaches(assembler, DATA, 16, end);
    copy_tag(assembler, CONTEXT, DATA, VLAN_TAG_AT);
    assembler.operate(Operation::Add, LENGTH, 4);
    any(assembler, Bases { tag: Some(VLAN_TAG_AT), ..BASES });
    // Bytes are counted without it, as they are without expressions.
    assembler.operate(Operation::Subtract, LENGTH, 4);
    assembler.jump(done);
    assembler.place(untagged);
    any(assembler, BASES);
    assembler.place(done);
    let most = usize::from((VLAN_TAG_AT + AROUND_TAG).unsigned_abs());
    if deepest > most { Err(AssembleError::TooDeep { bytes: deepest, most }) } else { Ok(()) }
}

/// Offset in `struct __sk_buff` of `linux/bpf.h`: the socket that it is from.
const SKB_SOCKET: i16 = 168;

/// Bytes that are always asked for at the front of a packet, so that TCP's headers over IPv4 lie there; and as many as are
/// brought there where these are missing.
const SHORT: u32 = NETWORK + 20 + 14;
const WHOLE: u32 = 128;

/// Sets the registers that say where a packet lies. One whose headers are elsewhere has them brought to the front.
fn read_headers(assembler: &mut Assembler, end: Label) {
    let [bring, ready] = [(); 2].map(|()| assembler.label());
    assembler.mov(CONTEXT, Register::R1);
    assembler.load(Width::Word, LENGTH, CONTEXT, SKB_LEN);
    Hook::Tcx.find_packet(assembler);
    unless_in_front(assembler, SHORT, bring);
    assembler.jump(ready);
    assembler.place(bring);
    bring_to_front(assembler, WHOLE);
    assembler.jump_if(Register::R0, Condition::NotEqual, 0, end);
    assembler.place(ready);
}

/// r0 = the time. Uses r1 to r5 as every call.
fn now(assembler: &mut Assembler) {
    assembler.call(Helper::MonotonicCoarse);
    assembler.operate(Operation::ShiftRight, Register::R0, TIME_SHIFT);
    assembler.operate32(Operation::Move, Register::R0, Register::R0);
}

/// `now` becomes how long ago `then` was, and one more.
fn age(assembler: &mut Assembler, now: Register, then: Register) {
    assembler.operate32(Operation::Add, now, 1_u32);
    assembler.operate32(Operation::Subtract, now, then);
}

/// Behind a search in vain: r2 = the way in the set that is to be written, r6 = its age, which is above 32 bits for one that
/// is free. r4 points behind the heads.
fn choose_oldest(assembler: &mut Assembler) {
    let [free, chosen] = [(); 2].map(|()| assembler.label());
    assembler.load(Width::Double, Register::R5, Register::R10, TIME_AT);
    assembler.mov(Register::R2, 0);
    assembler.mov(DATA, 0);
    for way in ways() {
        let next = assembler.label();
        assembler.load(Width::Double, Register::R0, HEAD, 8 * way - at(FLOWS_AT));
        let occupied = assembler.label();
        assembler.jump_if(Register::R0, Condition::NotEqual, 0, occupied);
        assembler.mov(Register::R2, i32::from(way));
        assembler.jump(free);
        assembler.place(occupied);
        assembler.mov(Register::R3, Register::R5);
        age(assembler, Register::R3, Register::R0);
        assembler.jump_if(Register::R3, Condition::LessOrEqual, DATA, next);
        assembler.mov(DATA, Register::R3);
        assembler.mov(Register::R2, i32::from(way));
        assembler.place(next);
    }
    assembler.jump(chosen);
    assembler.place(free);
    assembler.number(DATA, 1 << 32);
    assembler.place(chosen);
}

/// Writes the flow on the stack to the way r2 of the set. Its head goes first and comes last.
fn write_flow(assembler: &mut Assembler) {
    const FLOW_TO: Register = Register::R3;
    assembler.mov(FLOW_TO, Register::R2);
    assembler.operate(Operation::Multiply, FLOW_TO, i32::from(at(FLOW)));
    assembler.operate(Operation::Add, FLOW_TO, HEAD);
    assembler.operate(Operation::ShiftLeft, Register::R2, 3);
    assembler.operate(Operation::Add, Register::R2, HEAD);
    assembler.store(Width::Double, Register::R2, -at(FLOWS_AT), 0);
    for word in words(WORDS) {
        assembler.load(Width::Double, Register::R1, Register::R10, WORDS_AT + word);
        assembler.store(Width::Double, FLOW_TO, word, Register::R1);
    }
    assembler.load(Width::Double, Register::R1, Register::R10, TAG_AT);
    assembler.operate(Operation::ShiftLeft, Register::R1, 32);
    assembler.operate(Operation::Or, Register::R1, Register::R5);
    assembler.store(Width::Double, Register::R2, -at(FLOWS_AT), Register::R1);
}

/// Counts a flow that was noted; r6 is the age of the one that was there.
fn count(assembler: &mut Assembler, counters: RawFd, idle: std::time::Duration) {
    let nobody_misses_it = assembler.label();
    for count in FlowCount::ALL {
        if count == FlowCount::Forgotten {
            assembler.number(Register::R1, most_age(idle).into());
            assembler.jump_if(DATA, Condition::Greater, Register::R1, nobody_misses_it);
        }
        assembler.store(Width::Word, Register::R10, KEY, (count as u32).cast_signed());
        xdp::add_to_counter(assembler, counters);
    }
    assembler.place(nobody_misses_it);
}

/// Finds out which flow a packet is of, and where that lies.
struct FlowCoder<'a> {
    assembler: &'a mut Assembler,
    flows: FlowMap,
    /// Which packets come this way; others when `None`.
    plain: Option<Plain>,
    /// Points to where the network header begins, less 14, once tags are passed.
    header: Register,
    way: Way,
}

impl FlowCoder<'_> {
    /// Goes to `found` with r4 = the head, to `none` when the packet is of no flow, and on when its flow is not there: r4 then
    /// points behind the heads of its set, the words and the tag are on the stack. Uses r0 to r5.
    fn find(&mut self, found: Label, none: Label) {
        let [v4, v6, search] = [(); 3].map(|()| self.assembler.label());
        if self.plain.is_none() {
            pass_tags(self.assembler, self.header, v4, v6, none);
        }
        for (family, label) in [(Family::V4, v4), (Family::V6, v6)] {
            if self.plain.is_some_and(|plain| plain.family != family) {
                continue;
            }
            self.assembler.place(label);
            self.first_word(family, none);
            self.hash(family);
            self.assembler.jump(search);
        }
        self.assembler.place(search);
        self.search(found);
    }

    /// r2 = the flow's first word.
    fn first_word(&mut self, family: Family, none: Label) {
        let ports = self.assembler.label();
        let (transport, upper) = self.transport(family, none);
        let way = self.way;
        if let Some(plain) = self.plain {
            self.protocol_with_ports((transport, upper), family, plain.protocol, none);
        } else {
            let (icmp, echo) = echo(family, way);
            for protocol in [TCP, UDP] {
                let other = self.assembler.label();
                self.assembler.jump_if(Register::R5, Condition::NotEqual, i32::from(protocol), other);
                self.protocol_with_ports((transport, upper), family, protocol, none);
                self.assembler.jump(ports);
                self.assembler.place(other);
            }
            self.assembler.jump_if(Register::R5, Condition::NotEqual, i32::from(icmp), none);
            reaches(self.assembler, transport, upper + IDENTIFIER + 2, none);
            self.assembler.load(Width::Byte, Register::R1, transport, at(upper));
            self.assembler.jump_if(Register::R1, Condition::NotEqual, i32::from(echo), none);
            self.assembler.load(Width::Half, Register::R2, transport, at(upper + IDENTIFIER));
            if cfg!(target_endian = "big") {
                self.assembler.operate(Operation::ShiftLeft, Register::R2, 16);
            }
            self.set_kind(family, icmp);
        }
        self.assembler.place(ports);
    }

    /// A register and an offset that lead to the transport header; r5 = the protocol, for packets that are not plain.
    fn transport(&mut self, family: Family, none: Label) -> (Register, usize) {
        let after_v6 = 54;
        match (self.plain, family) {
            (Some(plain), _) => (self.header, plain.transport() as usize),
            (None, Family::V6) => {
                reaches(self.assembler, self.header, after_v6, none);
                self.assembler.load(Width::Byte, Register::R5, self.header, 20);
                (self.header, after_v6)
            }
            (None, Family::V4) => {
                reaches(self.assembler, self.header, 34, none);
                self.assembler.load(Width::Half, Register::R1, self.header, 20);
                self.assembler.from_network_order(Register::R1, Width::Half);
                self.assembler.jump_if(Register::R1, Condition::CommonBit, 0x1fff, none);
                self.assembler.load(Width::Byte, Register::R5, self.header, 23);
                self.assembler.load(Width::Byte, Register::R1, self.header, 14);
                self.assembler.operate(Operation::And, Register::R1, 0xf);
                self.assembler.operate(Operation::ShiftLeft, Register::R1, 2);
                self.assembler.mov(Register::R3, self.header);
                self.assembler.operate(Operation::Add, Register::R3, Register::R1);
                (Register::R3, NETWORK as usize)
            }
        }
    }

    /// r2 = the first word for TCP or UDP.
    fn protocol_with_ports(
        &mut self,
        (transport, upper): (Register, usize),
        family: Family,
        protocol: u8,
        none: Label,
    ) {
        let is_leaving_tcp = self.way == Way::Out && protocol == TCP;
        if self.plain.is_none() {
            reaches(self.assembler, transport, upper + if is_leaving_tcp { FLAGS + 1 } else { 4 }, none);
        }
        if is_leaving_tcp {
            let establishes = self.assembler.label();
            self.assembler.load(Width::Byte, Register::R1, transport, at(upper + FLAGS));
            self.assembler.operate(Operation::And, Register::R1, i32::from(SYN_RST_ACK));
            self.assembler.jump_if(Register::R1, Condition::Equal, i32::from(SYN), establishes);
            self.assembler.jump_if(Register::R1, Condition::NotEqual, i32::from(ACK), none);
            // A listener that has queued a SYN answers a second one with another number so. Linux 6.18 tells whose it is; a kernel
            // that does not has no socket here.
            self.assembler.load(Width::Double, Register::R1, CONTEXT, SKB_SOCKET);
            self.assembler.jump_if(Register::R1, Condition::Equal, 0, establishes);
            self.assembler.load(Width::Word, Register::R1, Register::R1, SOCKET_STATE);
            self.assembler.jump_if(Register::R1, Condition::Equal, LISTEN, none);
            self.assembler.place(establishes);
        }
        self.assembler.load(Width::Word, Register::R2, transport, at(upper));
        if self.way == Way::In {
            self.exchange_halves(Register::R2, 16);
            self.assembler.operate32(Operation::Move, Register::R2, Register::R2);
        }
        self.set_kind(family, protocol);
    }

    /// Puts what stands above the ports into r2.
    fn set_kind(&mut self, family: Family, protocol: u8) {
        self.assembler.number(Register::R1, u64::from(kind(family, protocol)) << 32);
        self.assembler.operate(Operation::Or, Register::R2, Register::R1);
    }

    /// Exchanges the lowest `bits` with as many above them. Uses r1.
    fn exchange_halves(&mut self, register: Register, bits: i32) {
        self.assembler.mov(Register::R1, register);
        self.assembler.operate(Operation::ShiftRight, Register::R1, bits);
        self.assembler.operate(Operation::ShiftLeft, register, bits);
        self.assembler.operate(Operation::Or, register, Register::R1);
    }

    /// Puts the flow's words on the stack, r2 first; r0 = their hash.
    fn hash(&mut self, family: Family) {
        const FACTOR: Register = Register::R5;
        let [begin, factor] = self.flows.layout.secret();
        self.assembler.number(Register::R0, begin);
        self.assembler.number(FACTOR, factor);
        let header = self.header;
        // Where the addresses' words stand in the packet, the source's first.
        let (used, addresses): (_, &[i16]) = match family {
            Family::V4 => (WORDS_V4, &[26]),
            Family::V6 => (WORDS, &[22, 30, 38, 46]),
        };
        for word in words(WORDS) {
            let index = usize::from(word.unsigned_abs()) / 8;
            if index >= used {
                self.assembler.store(Width::Double, Register::R10, WORDS_AT + word, 0);
                continue;
            }
            if let Some(index) = index.checked_sub(1) {
                let turned = if self.way == Way::In { addresses.len() / 2 } else { 0 };
                let offset = addresses[(index + turned) % addresses.len()];
                self.assembler.load(Width::Double, Register::R2, header, offset);
                if family == Family::V4 && self.way == Way::In {
                    self.exchange_halves(Register::R2, 32);
                }
            }
            self.assembler.store(Width::Double, Register::R10, WORDS_AT + word, Register::R2);
            self.assembler.operate(Operation::Xor, Register::R0, Register::R2);
            self.assembler.operate(Operation::Multiply, Register::R0, FACTOR);
            self.assembler.mov(Register::R1, Register::R0);
            self.assembler.operate(Operation::ShiftRight, Register::R1, 32);
            self.assembler.operate(Operation::Xor, Register::R0, Register::R1);
        }
    }

    /// Searches the set of the hash r0 for the words on the stack.
    fn search(&mut self, found: Label) {
        const TAG: Register = Register::R1;
        const FLOW_THERE: Register = Register::R2;
        const WAY: Register = Register::R5;
        let [again, next] = [(); 2].map(|()| self.assembler.label());
        let assembler = &mut *self.assembler;
        assembler.mov(TAG, Register::R0);
        assembler.operate(Operation::ShiftRight, TAG, 32);
        assembler.operate(Operation::Or, TAG, 1);
        assembler.store(Width::Double, Register::R10, TAG_AT, TAG);
        let last = u32::try_from(self.flows.layout.sets() - 1).unwrap_or(0);
        assembler.operate(Operation::And, Register::R0, last);
        assembler.operate(Operation::ShiftLeft, Register::R0, SET.ilog2());
        assembler.map_value(HEAD, self.flows.table, 0);
        assembler.operate(Operation::Add, HEAD, Register::R0);
        assembler.mov(FLOW_THERE, HEAD);
        assembler.mov(WAY, 0);
        assembler.place(again);
        assembler.load(Width::Word, Register::R0, HEAD, TAG_HALF);
        assembler.jump_if(Register::R0, Condition::NotEqual, TAG, next);
        for word in words(WORDS) {
            assembler.load(Width::Double, Register::R0, FLOW_THERE, at(FLOWS_AT) + word);
            assembler.load(Width::Double, Register::R3, Register::R10, WORDS_AT + word);
            assembler.jump_if(Register::R0, Condition::NotEqual, Register::R3, next);
        }
        assembler.jump(found);
        assembler.place(next);
        assembler.operate(Operation::Add, HEAD, 8);
        assembler.operate(Operation::Add, FLOW_THERE, i32::from(at(FLOW)));
        assembler.operate(Operation::Add, WAY, 1);
        assembler.jump_if(WAY, Condition::Less, i32::from(at(WAYS)), again);
    }
}

/// The ways of a set.
fn ways() -> std::ops::Range<i16> {
    0..at(WAYS)
}

/// Offsets of the first words of a flow.
fn words(count: usize) -> impl Iterator<Item = i16> {
    (0..at(count)).map(|word| 8 * word)
}

/// An offset that an instruction can have.
fn at(offset: usize) -> i16 {
    i16::try_from(offset).unwrap_or(i16::MAX)
}
