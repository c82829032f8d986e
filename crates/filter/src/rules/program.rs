//! The program of a set of rules, for XDP or for TCX.
//!
//! ```text
//!     is the worker alive?             ── no ───► passed, counted as hung (or no_socket)
//!     on a list of what stays?         ── yes ──► passed, counted as never_take
//!     matched by what rules are about? ── no ───► passed, counted as left
//!     lists: one search for each kind
//!     rules in order, until one decides ────────► dropped or passed, counted by the rule;
//!                                                 or to the queue, counted as taken (XDP alone): what is longer
//!                                                 than its socket takes is passed, counted as too_long
//!     no rule decides ──────────────────────────► passed, counted as left; or what [`Rest`] says
//! ```
//!
//! Rules that are one list cost nothing here: the search has found the first of them that is met, and before each other rule
//! its number is asked whether it comes earlier. Rules that join lists are left out at once when the packet is in
//! none of these lists. The heartbeat comes first: a filter that hangs drops nothing.
//!
//! All this stands there several times: for each kind of plain packets ([`Plain`]), of which headers are read once and much
//! is known, and for all others. What is to be done at TCX beside that stands in `front.rs`.

use std::borrow::Cow;
use std::num::NonZeroU32;
use std::os::fd::RawFd;

use super::classes::Fate;
use super::cookie::{self, SynCookies};
use super::counting::{self, Kept};
use super::drawn::Drawing;
use super::established::{FlowMap, NEVER, look_up};
use super::flow_table::most_age;
use super::program_error::ProgramError;
use super::tables::Layout;
use super::{Action, Limit, Per, Plan, Rule, RuleSet, Steps};
use crate::ebpf::{AssembleError, Assembler, Condition, Label, Operation, Program, Register, Width, filter};
use crate::hook::{put_tag_back, take_tag_off};
use crate::plain::Plain;
use crate::xdp::{self, BASES, CONTEXT, Exits, KEY, RESULT, RULES_AT, Take, Verdict, XdpBuff};
use crate::{Expression, Hook};

/// What an interface's program shall do by rules.
#[derive(Clone, Copy, Debug)]
pub struct RuleProgram<'a> {
    /// Where it runs.
    pub hook: Hook,
    /// The rules. At TCX none may need XDP ([`Rule::needs_xdp`]).
    pub rules: &'a RuleSet,
    /// The counter of each, from 0 on; as many as there are rules.
    pub slots: &'a [u32],
    /// What rules are about; everything when `None`.
    pub only: Option<&'a Expression>,
    /// What rules do not decide about, whatever they say; it stays with the kernel, but for [`Rest::Everything`].
    pub never: &'a [Expression],
    /// What becomes of packets that no rule decides, and of those that a rule gives to a queue of the NIC's.
    pub rest: Rest<'a>,
    /// The maps of the port. The counters of rules come behind all others, from [`RULES_AT`] on.
    pub maps: xdp::Maps,
    /// The maps of these rules.
    pub sets: MapSet,
    /// `BPF_MAP_TYPE_RINGBUF`: for each sample a [`Drawn`](super::Drawn). Without it none are drawn.
    pub samples: Option<RawFd>,
    /// How many jiffies a worker may be silent before all packets go to the kernel.
    pub hung_after_jiffies: u64,
    /// At XDP, where it is known: how a packet's length is found without a call.
    pub buff: Option<XdpBuff>,
    /// What answers to SYNs say, where a rule gives them.
    pub cookies: SynCookies,
    /// The table of established flows. Not used where no rule asks for them.
    pub flows: Option<FlowMap>,
}

/// What becomes of packets that no rule decides.
#[derive(Clone, Copy, Debug)]
pub enum Rest<'a> {
    /// They are the kernel's.
    Kernel,
    /// They go to the queue, those that match. At XDP alone.
    Ours(Take<'a>),
    /// They go to the queue, and so does what rules do not decide about. At XDP alone.
    Everything,
}

/// File descriptors of the maps that hold the lists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MapSet {
    /// `BPF_MAP_TYPE_ARRAY` with one entry: [`Tables::array`](super::Tables::array). Not used where there is no list.
    pub array: RawFd,
    /// `BPF_MAP_TYPE_HASH`: [`Tables::entries6`](super::Tables::entries6). Not used where there is no IPv6.
    pub hash6: RawFd,
    /// `BPF_MAP_TYPE_HASH`: for the [`BlockKey`](super::BlockKey) of each source that a limit has blocked, 8 bytes: packets dropped. Not
    /// used where no limit blocks.
    pub blocks: RawFd,
    /// `BPF_MAP_TYPE_HASH`: the [`OwnKey`](super::OwnKey) of each address that SYNs are answered for, 4 bytes that nobody reads. Not used
    /// where no rule answers SYNs.
    pub own: RawFd,
}

/// Where the network header of packets that are not plain begins, less 14.
const NETWORK: Register = Register::R4;

/// The first rule that a list alone has met, and once the search is over, its index alone.
pub(super) const FIRST: Register = Register::R8;

/// The index of no rule.
const NO_INDEX: u32 = u32::MAX;

/// The stack, from the bottom up: the first rule that a list alone has met, the context, the bits of the other lists,
/// what is to be known of a sample, and the age of the packet's flow. What expressions put on the stack comes from the top down.
const FIRST_AT: i16 = -512;

/// While rules are asked its register holds the first rule.
pub(super) const CONTEXT_AT: i16 = FIRST_AT + 8;

pub(super) fn bits_at(word: usize) -> i16 {
    CONTEXT_AT + 8 + 8 * i16::try_from(word).unwrap_or(0)
}

/// The key of a map whose keys are addresses.
pub(super) const KEY6: i16 = -32;

/// What is never dropped is not what is too much for the verifier while it is no larger than this: who may be spared anyway is.
const LEAST_NEVER: usize = 500;

/// Programs that are longer than this stay as they are: each kind of plain packets would add as much, and the verifier's
/// patience is bounded.
pub(super) const MOST_FOR_PLAIN: usize = 4096;

impl<'a> RuleProgram<'a> {
    /// Of rules that are to be tried and are on no interface: it has no maps, and the longest answers to SYNs.
    pub fn on_trial(rules: &'a RuleSet, slots: &'a [u32], never: &'a [Expression]) -> Self {
        Self {
            hook: Hook::Xdp,
            rules,
            slots,
            only: None,
            never,
            rest: Rest::Kernel,
            maps: xdp::Maps {
                sockets: -1,
                longest: 2048,
                heartbeat: -1,
                queues: 1,
                decides_others: false,
                counters: -1,
            },
            sets: MapSet { array: -1, hash6: -1, blocks: -1, own: -1 },
            samples: Some(-1),
            hung_after_jiffies: 1,
            buff: None,
            cookies: SynCookies::LONGEST,
            flows: None,
        }
    }

    /// The program.
    ///
    /// # Errors
    /// When the rules are too long for one program.
    pub fn program(&self) -> Result<Program, ProgramError> {
        let program = self.assemble(&[])?;
        if program.instructions().len() > MOST_FOR_PLAIN && !self.answers_syns() {
            return Ok(program);
        }
        self.assemble(&Plain::ALL).or_else(|_| self.shortest())
    }

    /// The same with fewer kinds of plain packets, for when the kernel's verifier finds that one too large: it takes longer for a
    /// packet. `None` when there is nothing to leave out.
    ///
    /// # Errors
    /// When the rules are too long for one program.
    pub fn shorter_than(&self, program: &Program) -> Result<Option<Program>, ProgramError> {
        let shorter = self.shortest()?;
        Ok((shorter.instructions().len() < program.instructions().len()).then_some(shorter))
    }

    /// With the kinds of plain packets alone that are needed: SYNs are answered on the way of TCP's.
    fn shortest(&self) -> Result<Program, ProgramError> {
        let is_needed = |plain: &Plain| self.answers_syns() && plain.is_tcp();
        self.assemble(&Plain::ALL.into_iter().filter(is_needed).collect::<Vec<_>>())
    }

    /// Why the kernel's verifier takes neither: the first of the rules whose expressions ask most, where there are some.
    pub fn too_large(&self) -> ProgramError {
        let asks = |rule: &'a Rule| {
            let graph = rule.condition.expression.as_ref()?.graph();
            Some(((graph.walks.len(), graph.nodes.len()), rule))
        };
        let most = self.rules.rules().iter().filter_map(asks).rev().max_by_key(|(asked, _)| *asked);
        let size = |expression: &Expression| expression.graph().size();
        let of_rules = self.rules.rules().iter().filter_map(|rule| rule.condition.expression.as_ref());
        if self.never.iter().map(size).sum::<usize>() > of_rules.map(size).sum::<usize>().max(LEAST_NEVER) {
            return ProgramError::NeverTooLarge;
        }
        ProgramError::TooLarge { rule: most.map(|(_, rule)| rule.name.clone()) }
    }

    fn answers_syns(&self) -> bool {
        self.rules.rules().iter().any(|rule| rule.action.answers_syns())
    }

    /// With a way of their own for these kinds of packets.
    fn assemble(&self, plains: &[Plain]) -> Result<Program, ProgramError> {
        let mut assembler = Assembler::new();
        let exits = Exits::new(&mut assembler);
        // For packets that are as they came.
        let early = Exits::new(&mut assembler);
        self.hook.begin(&mut assembler, self.buff);
        let beat = if self.hook == Hook::Tcx { &early } else { &exits };
        xdp::check_heartbeat(&mut assembler, &self.maps, self.hung_after_jiffies, self.hook, beat);
        if self.hook == Hook::Tcx {
            put_tag_back(&mut assembler, early.of(Verdict::Left));
            self.hook.find_packet(&mut assembler);
        }
        assembler.store(Width::Double, Register::R10, CONTEXT_AT, CONTEXT);
        let mut coder = Coder {
            rules: self,
            layout: self.rules.tables().layout(),
            assembler,
            exits,
            stack: if self.answers_syns() { cookie::STACK } else { 0 },
            splits: !plains.is_empty(),
            plain: None,
            header: NETWORK,
            begun: Vec::new(),
            ended: None,
            counting: None,
            drawing: None,
        };
        let tables = self.rules.tables();
        if tables.most_counting() > 0 {
            coder.counting = Some(Exits::new(&mut coder.assembler));
        }
        coder.decide_by_kind(plains);
        let Coder { mut assembler, exits, stack, begun, ended, counting, drawing, .. } = coder;
        if let Some(drawing) = drawing {
            drawing.place(&mut assembler, self, counting.as_ref().unwrap_or(&exits).end);
        }
        if let Some(counting) = counting {
            counting::count(&mut assembler, self, (&counting, &exits));
        }
        let most = usize::from(FIRST_AT.unsigned_abs()) - 8 * (4 + tables.words() + Kept::len(tables));
        if stack > most {
            return Err(AssembleError::TooDeep { bytes: stack, most }.into());
        }
        let context = |assembler: &mut Assembler| {
            assembler.load(Width::Double, CONTEXT, Register::R10, CONTEXT_AT);
        };
        if self.hook == Hook::Xdp {
            assembler.place(exits.take);
            context(&mut assembler);
            xdp::redirect(&mut assembler, &self.maps, &exits);
        }
        xdp::leave(&mut assembler, self.hook, &exits);
        xdp::count(&mut assembler, &self.maps, &exits);
        if self.hook == Hook::Tcx {
            context(&mut assembler);
            take_tag_off(&mut assembler);
            xdp::end(&mut assembler);
            xdp::leave(&mut assembler, self.hook, &early);
            xdp::count(&mut assembler, &self.maps, &early);
        }
        xdp::end(&mut assembler);
        assembler
            .finish()
            .map_err(|error| ProgramError::new(error, (&begun, ended.unwrap_or(0)), self.rules.rules()))
    }
}

pub(super) struct Coder<'a> {
    pub(super) rules: &'a RuleProgram<'a>,
    pub(super) layout: Layout,
    pub(super) assembler: Assembler,
    pub(super) exits: Exits,
    /// Bytes of the stack that expressions use.
    stack: usize,
    /// Rules stand there a second time without those that join lists.
    splits: bool,
    /// Which packets come this way; the others when `None`.
    pub(super) plain: Option<Plain>,
    /// Points to where the network header of these packets begins, less 14.
    pub(super) header: Register,
    /// How many instructions there were when a rule's began, and the rule's index.
    begun: Vec<(usize, usize)>,
    /// How many there were when what is never dropped ended, the first time.
    ended: Option<usize>,
    /// The ways out where rules that are crossed count first, while they are not `exits`; `None` where none counts.
    pub(super) counting: Option<Exits>,
    /// Where packets are counted for rules that draw; `None` where no rule does.
    pub(super) drawing: Option<Drawing>,
}

impl Coder<'_> {
    /// All that becomes of the packets that come this way.
    pub(super) fn decide_all(&mut self) {
        let spared = match self.rules.rest {
            Rest::Everything => self.exits.take,
            Rest::Kernel | Rest::Ours(_) => self.exits.of(Verdict::NeverTake),
        };
        for never in self.rules.never {
            let next = self.assembler.label();
            self.expression(never, spared, next);
            self.assembler.place(next);
        }
        self.ended.get_or_insert(self.assembler.here());
        if let Some(only) = self.rules.only {
            let ours = self.assembler.label();
            self.expression(only, ours, self.exits.of(Verdict::Left));
            self.assembler.place(ours);
        }
        let tables = self.rules.rules.tables();
        if tables.is_used() {
            self.search();
            self.assembler.store(Width::Double, Register::R10, FIRST_AT, FIRST);
            self.assembler.operate(Operation::ShiftRight, FIRST, 32);
        }
        self.change_exits();
        self.all_rules();
        self.change_exits();
    }

    /// The rules, apart for packets that are in no list of those that join some.
    fn all_rules(&mut self) {
        if self.splits && self.rules.rules.tables().words() > 0 {
            let none = self.assembler.label();
            self.unless_joined(none);
            self.rules(true);
            self.assembler.place(none);
            return self.rules(false);
        }
        self.rules(true);
    }

    fn expression(&mut self, expression: &Expression, yes: Label, no: Label) {
        let whole = expression.graph();
        let graph = self.plain.map_or(Cow::Borrowed(whole), |plain| Cow::Owned(plain.rest(whole)));
        let used = filter(&mut self.assembler, &graph, BASES, yes, no);
        self.stack = self.stack.max(used);
    }

    /// Goes to `none` when the packet is in none of the lists that come first in the rules that join them: then it meets none
    /// of these rules.
    fn unless_joined(&mut self, none: Label) {
        let some = self.assembler.label();
        let set = self.rules.rules;
        for (word, firsts) in set.coded().firsts().iter().enumerate().take(set.tables().words()) {
            self.assembler.load(Width::Double, Register::R1, Register::R10, bits_at(word));
            self.assembler.number(Register::R2, *firsts);
            self.assembler.jump_if(Register::R1, Condition::CommonBit, Register::R2, some);
        }
        self.assembler.jump(none);
        self.assembler.place(some);
    }

    /// The rules in order; with or without those that join lists.
    fn rules(&mut self, joined: bool) {
        let set = self.rules.rules;
        let [listed, left, rest] = [(); 3].map(|()| self.assembler.label());
        // Whether a rule that is one list stands between the last one that is not and here.
        let mut passed = false;
        let mut is_looked_up = false;
        for (index, (rule, plan)) in set.rules().iter().zip(set.plans()).enumerate() {
            let Plan::Coded(Steps { bits, .. }) = plan else {
                passed = true;
                continue;
            };
            if !joined && !bits.is_empty() {
                continue;
            }
            if std::mem::take(&mut passed) {
                let index = u32::try_from(index).unwrap_or(u32::MAX);
                self.assembler.jump_if32(FIRST, Condition::Less, index, listed);
            }
            if rule.condition.established.is_some() && !std::mem::replace(&mut is_looked_up, true) {
                self.look_flow_up();
            }
            self.begun.push((self.assembler.here(), index));
            let next = self.assembler.label();
            self.rule((index, rule), bits, (next, rest));
            self.assembler.place(next);
        }
        if set.plans().iter().any(|plan| !matches!(plan, Plan::Coded(_))) {
            self.assembler.jump_if32(FIRST, Condition::Equal, NO_INDEX, left);
            self.assembler.place(listed);
            self.decide_by_list();
        }
        self.assembler.place(left);
        self.count_before(i32::MAX);
        self.assembler.place(rest);
        self.decide_the_rest();
    }

    /// What becomes of packets that no rule has decided.
    fn decide_the_rest(&mut self) {
        let left = self.exits.of(Verdict::Left);
        match self.rules.rest {
            Rest::Kernel => self.assembler.jump(left),
            Rest::Ours(Take::Matching(expression)) => self.expression(expression, self.exits.take, left),
            Rest::Ours(Take::All) | Rest::Everything => self.assembler.jump(self.exits.take),
        }
    }

    /// Where it stands how long ago the packet's flow was used, once that has been asked.
    fn age_at(&self) -> i16 {
        bits_at(self.rules.rules.tables().words() + 1)
    }

    /// For all rules behind: one search is enough.
    fn look_flow_up(&mut self) {
        let (to, header) = (self.age_at(), self.header);
        match self.rules.flows {
            Some(flows) => look_up(&mut self.assembler, flows, self.plain, header, to),
            None => self.assembler.store(Width::Double, Register::R10, to, NEVER),
        }
    }

    /// One rule that is not just a list. On to the next one, or to where all go that no rule decides.
    fn rule(&mut self, (index, rule): (usize, &Rule), bits: &[u32], (next, rest): (Label, Label)) {
        let slot = self.rules.slots.get(index).copied().unwrap_or(0);
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
        if let Some(idle) = rule.condition.established {
            let age_at = self.age_at();
            self.assembler.load(Width::Double, Register::R1, Register::R10, age_at);
            self.assembler.number(Register::R2, most_age(idle).into());
            self.assembler.jump_if(Register::R1, Condition::Greater, Register::R2, next);
        }
        if rule.decides() || rule.asks_user_space() {
            self.count_before(i32::try_from(index).unwrap_or(i32::MAX));
        }
        match rule.action {
            Action::SynCookie => return self.answer_syn(slot, next),
            Action::SynProxy(proxy) => return self.answer_for_proxy(proxy, slot, next),
            _ => {}
        }
        if rule.asks_user_space() {
            // Whether it is met as a whole is known there; it is counted there.
            if let Action::Limit(Limit { per: Per::Source { v4, v6 }, block: Some(_), .. }) = rule.action
                && rule.decides()
            {
                self.drop_blocked((slot, rule.sample), v4, v6);
            }
            return self.assembler.jump(self.exits.take);
        }
        let hook = self.rules.hook;
        let result = match rule.action {
            _ if !rule.decides() => None,
            Action::Drop => Some(hook.drops()),
            Action::Steer(_) if !matches!(self.rules.rest, Rest::Kernel) => {
                self.count(slot);
                return self.assembler.jump(rest);
            }
            _ => Some(hook.passes()),
        };
        if let Some(result) = result {
            return self.end(slot, result, rule.sample);
        }
        match rule.sample {
            Some(sample) => self.count_and_draw(slot, sample),
            None => self.count(slot),
        }
    }

    /// Has the key of a rule's counter on the stack.
    pub(super) fn keep_key(&mut self, slot: u32) {
        self.assembler.store(Width::Word, Register::R10, KEY, (RULES_AT + slot).cast_signed());
    }

    /// Counts the packet for the rule of this counter, and goes on.
    fn count(&mut self, slot: u32) {
        self.keep_key(slot);
        xdp::add_to_counter(&mut self.assembler, self.rules.maps.counters);
    }

    /// Ends with this result, by the rule of this counter.
    pub(super) fn end(&mut self, slot: u32, result: i32, sample: Option<NonZeroU32>) {
        self.assembler.mov(RESULT, result);
        match sample {
            Some(sample) => self.end_and_draw(slot, sample),
            None => {
                self.keep_key(slot);
                self.assembler.jump(self.exits.count);
            }
        }
    }

    /// What the rule does that a list alone has met.
    fn decide_by_list(&mut self) {
        self.count_before(FIRST);
        self.assembler.load(Width::Double, Register::R1, Register::R10, FIRST_AT);
        if self.rules.rules.tables().takes() {
            let take = self.exits.take;
            self.assembler.jump_if32(Register::R1, Condition::CommonBit, Fate::Take as u32, take);
        }
        self.assembler.mov(RESULT, Register::R1);
        self.assembler.operate(Operation::And, RESULT, 1);
        let (drops, passes) = (self.rules.hook.drops(), self.rules.hook.passes());
        if passes - drops != 1 {
            self.assembler.operate(Operation::Multiply, RESULT, passes - drops);
        }
        self.assembler.operate(Operation::Add, RESULT, drops);
        self.assembler.operate32(Operation::ShiftRight, Register::R1, 1_u32);
        self.assembler.operate(Operation::Add, Register::R1, RULES_AT.cast_signed());
        self.assembler.store(Width::Word, Register::R10, KEY, Register::R1);
        self.assembler.jump(self.exits.count);
    }
}
