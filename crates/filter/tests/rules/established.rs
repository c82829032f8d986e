//! Established flows in the kernel: what the program on the way out notes, the XDP program finds, for so long and no longer.

use std::collections::HashSet;
use std::os::fd::AsRawFd;
use std::time::Duration;

use bywash_filter::ebpf::{Assembler, Helper, Register};
use bywash_filter::rules::{
    Action, Condition, Established, Findings, Flow, FlowCount, FlowLayout, FlowMap, FlowOptions, FlowTable,
    RuleSet, SentFlows, Way, note_program,
};
use bywash_filter::xdp::{Count, RULES_AT};
use bywash_filter::{Expression, Hook, TCX_NEXT};
use bywash_sys::bpf::{LoadError, Map, MapKind, Program, ProgramKind, ProgramSpec, TestInput};
use bywash_sys::clock;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use super::random::expression::Used;
use super::random::{self, Random};

use super::loaded::{HOOKS, Loaded, expression, load, map, rights, rule};

const IDLE: Duration = Duration::from_secs(60);

/// Both programs around one table.
struct Bed {
    set: RuleSet,
    rules: Loaded,
    note: Program,
    table: Map,
    layout: FlowLayout,
}

impl Bed {
    /// Rule 1 drops what is of an established flow, so that it can be seen; rules 0 and 2 make the program longer.
    fn new(hook: Hook, flows: usize, except: &[&str]) -> Self {
        let layout = FlowLayout::new(flows, [0x1234_5678_9abc_def1, 0x9e37_79b9_7f4a_7c15]);
        let table = map(MapKind::Array, 4, layout.bytes(), 1);
        let joined = Condition {
            from: vec!["10.0.0.0/8".parse().unwrap(), "2000::/12".parse().unwrap()],
            to_ports: vec![1..=1],
            ..Condition::default()
        };
        let answers = Condition { established: Some(IDLE), ..Condition::default() };
        let shorter =
            Condition { established: Some(IDLE / 2), expression: expression("udp"), ..joined.clone() };
        let set = RuleSet::new(vec![
            rule("joined", Action::Count, joined),
            rule("answers", Action::Drop, answers),
            rule("behind", Action::Count, shorter),
        ]);
        let set = set.unwrap();
        let flows = FlowMap { table: table.as_raw_fd(), layout };
        let rules = Loaded::with_flows(hook, &set, &[], Some(flows));
        let except = except.iter().map(|text| expression(text).unwrap()).collect();
        let options = FlowOptions { except, ..FlowOptions::default() };
        let note = note_program(flows, &options, rules.counters().as_raw_fd(), IDLE).unwrap();
        let note = load(ProgramKind::SchedCls, &note);
        Self { set, rules, note, table, layout }
    }

    /// Has a packet leave, which must be as it was.
    fn send(&self, packet: &[u8]) {
        let output = self.note.test_run(&TestInput { packet, ..TestInput::default() }).unwrap();
        assert_eq!((output.verdict.cast_signed(), &output.packet[..]), (TCX_NEXT, packet));
    }

    /// Whether a packet that comes in is of an established flow, as the kernel says, and this process.
    fn is_established(&self, packet: &[u8]) -> bool {
        let is_dropped = self.rules.drops(packet);
        let seen = Established { flows: Some(self), now: clock::monotonic() };
        let lookup = self.set.look_up(packet);
        let mut findings = Findings::default();
        let mut course = self.set.course(&lookup, (packet, packet.len()), &seen, &mut findings);
        let met = std::iter::from_fn(|| self.set.rules().get(course.next_index()));
        let drops = met.map(|rule| rule.action).any(|action| action == Action::Drop);
        assert_eq!(drops, is_dropped, "{packet:x?}");
        is_dropped
    }

    fn bytes(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.layout.bytes()];
        assert!(self.table.lookup(&[0; 4], &mut bytes).unwrap());
        bytes
    }

    /// Makes all that is in the table older.
    fn pass_time(&self, time: Duration) {
        let units = u32::try_from(time.as_nanos() >> 26).unwrap();
        let mut bytes = self.bytes();
        for set in bytes.chunks_exact_mut(512) {
            for head in set[..64].as_chunks_mut::<8>().0 {
                let word = u64::from_ne_bytes(*head);
                let then = u32::try_from(word & u64::from(u32::MAX)).unwrap().wrapping_sub(units);
                if word != 0 {
                    *head = (word >> 32 << 32 | u64::from(then)).to_ne_bytes();
                }
            }
        }
        self.table.update(&[0; 4], &bytes).unwrap();
    }

    fn counted(&self, count: FlowCount) -> u64 {
        self.rules.counters().sum::<2>(count as u32).unwrap()[0]
    }
}

impl SentFlows for Bed {
    fn last_sent(&self, flow: &Flow) -> Option<u32> {
        let bytes = self.bytes();
        self.layout.find(flow, |at, set| {
            let len = set.len();
            set.copy_from_slice(&bytes[at..at + len]);
        })
    }
}

/// A packet by what it says; few addresses and ports, so that flows meet.
#[derive(Clone, Debug)]
struct Shape {
    tags: usize,
    six: bool,
    protocol: u8,
    /// Last bytes of the addresses, and ports.
    ours: (u8, u16),
    theirs: (u8, u16),
    flags: u8,
    /// ICMP: an echo request, an echo reply, or something else.
    kind: u8,
    fragment: u16,
    /// Words of an IPv4 header.
    words: u8,
    is_cut: bool,
}

/// Which flow a packet is of, by its shape.
type Model = (bool, u8, (u8, u16), (u8, u16));

const ECHO: u8 = 0;
const REPLY: u8 = 1;

impl Shape {
    fn flow(&self, way: Way) -> Option<Model> {
        let icmp = if self.six { 58 } else { 1 };
        let is_whole = !self.is_cut && self.tags <= 2 && (self.six || self.fragment & 0x1fff == 0);
        let (ours, theirs) = match self.protocol {
            6 | 17 => (self.ours, self.theirs),
            // The identifier is what stands for our port.
            _ => ((self.ours.0, self.ours.1), (self.theirs.0, 0)),
        };
        let counts = match (self.protocol, way) {
            (17, _) | (6, Way::In) => true,
            (6, Way::Out) => {
                let [syn, ack, rst] = [2, 16, 4].map(|flag| self.flags & flag != 0);
                !rst && syn != ack
            }
            (protocol, Way::Out) => protocol == icmp && self.kind == ECHO,
            (protocol, Way::In) => protocol == icmp && self.kind == REPLY,
        };
        (is_whole && counts).then_some((self.six, self.protocol, ours, theirs))
    }

    fn packet(&self, way: Way) -> Vec<u8> {
        let mut packet = vec![2; 12];
        for tag in 0..self.tags {
            packet.extend(if tag == 0 { [0x88, 0xa8, 0, 7] } else { [0x81, 0, 0, 1] });
        }
        let (from, to) = if way == Way::Out { (self.ours, self.theirs) } else { (self.theirs, self.ours) };
        let words = if self.six { 5 } else { self.words };
        if self.six {
            packet.extend([0x86, 0xdd, 0x60, 0, 0, 0, 0, 20, self.protocol, 64]);
            for end in [from.0, to.0] {
                packet.extend([0x20, 1, 0, end, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, end]);
            }
        } else {
            let [high, low] = self.fragment.to_be_bytes();
            packet.extend([8, 0, 0x40 | words, 0, 0, 60, 0, 0, high, low, 64, self.protocol, 0, 0]);
            packet.extend([10, 0, 0, from.0, 10, 0, 0, to.0]);
            packet.extend(vec![0; usize::from(words - 5) * 4]);
        }
        let whole = packet.len();
        match self.protocol {
            6 => {
                packet.extend([from.1, to.1].into_iter().flat_map(u16::to_be_bytes));
                packet.extend([0, 0, 0, 1, 0, 0, 0, 1, 0x50, self.flags, 0, 0, 0, 0, 0, 0]);
            }
            17 => {
                packet.extend([from.1, to.1].into_iter().flat_map(u16::to_be_bytes));
                packet.extend([0, 8, 0, 0]);
            }
            _ => {
                let kinds: [u8; 3] = if self.six { [128, 129, 135] } else { [8, 0, 3] };
                packet.extend([kinds[usize::from(self.kind)], 0, 0, 0]);
                packet.extend(self.ours.1.to_be_bytes());
                packet.extend([0, 1]);
            }
        }
        if self.is_cut {
            // In the middle of the ports.
            packet.truncate(whole + 3);
        }
        packet
    }
}

fn shapes() -> impl Strategy<Value = Shape> {
    let end = || (0_u8..3, 0_u16..3);
    (
        (prop::sample::select(vec![0_usize, 0, 0, 1, 2, 3]), any::<bool>()),
        prop::sample::select(vec![6_u8, 6, 17, 17, 1, 58, 132]),
        (end(), end()),
        prop::sample::select(vec![0x02_u8, 0x10, 0x18, 0x11, 0x12, 0x04, 0x14, 0]),
        (0_u8..3, prop::sample::select(vec![0_u16, 0, 0, 0x4000, 0x2000, 5])),
        (prop::sample::select(vec![5_u8, 5, 5, 6]), prop::sample::select(vec![false, false, false, true])),
    )
        .prop_map(|((tags, six), protocol, (ours, theirs), flags, (kind, fragment), (words, is_cut))| {
            Shape { tags, six, protocol, ours, theirs, flags, kind, fragment, words, is_cut }
        })
}

#[test]
fn what_comes_in_is_established_when_its_flow_has_left() {
    if !rights() {
        return;
    }
    let mut runner = TestRunner::new(Config { cases: 60, failure_persistence: None, ..Config::default() });
    let all = || prop::collection::vec(shapes(), 40);
    let run = runner.run(&(all(), all(), prop::sample::select(&HOOKS[..])), |(sent, received, hook)| {
        let bed = Bed::new(hook, 4096, &[]);
        let (mut model, mut flows) = (HashSet::new(), HashSet::new());
        for shape in &sent {
            let packet = shape.packet(Way::Out);
            bed.send(&packet);
            model.extend(shape.flow(Way::Out));
            flows.extend(Flow::of(&packet, Way::Out));
        }
        prop_assert_eq!(flows.len(), model.len());
        prop_assert_eq!(bed.counted(FlowCount::Noted), model.len() as u64);
        prop_assert_eq!(bed.counted(FlowCount::Forgotten), 0);
        // What was sent comes back, too, and each packet that came in by itself.
        for shape in sent.iter().chain(&received) {
            let right = shape.flow(Way::In).is_some_and(|flow| model.contains(&flow));
            let packet = shape.packet(Way::In);
            prop_assert_eq!(bed.is_established(&packet), right, "{:?}", shape);
            prop_assert_eq!(Flow::of(&packet, Way::In).is_some_and(|flow| flows.contains(&flow)), right);
        }
        Ok(())
    });
    run.unwrap();
}

/// A packet of the flow with this number.
fn numbered(six: bool, number: u16) -> Shape {
    Shape {
        tags: 0,
        six,
        protocol: 17,
        ours: (1, 1000 + number),
        theirs: (2, 53),
        flags: 0,
        kind: 0,
        fragment: 0,
        words: 5,
        is_cut: false,
    }
}

#[test]
fn a_flow_is_established_for_as_long_as_its_rule_says_since_it_was_used() {
    if !rights() {
        return;
    }
    for (six, hook) in [(false, Hook::Xdp), (true, Hook::Tcx)] {
        let bed = Bed::new(hook, 64, &[]);
        let shape = numbered(six, 0);
        let (out, back) = (shape.packet(Way::Out), shape.packet(Way::In));
        bed.send(&out);
        bed.pass_time(IDLE - Duration::from_secs(1));
        assert!(bed.is_established(&back));
        bed.pass_time(Duration::from_secs(2));
        assert!(!bed.is_established(&back), "what comes in keeps nothing alive");
        bed.send(&out);
        assert!(bed.is_established(&back));
        assert_eq!(bed.counted(FlowCount::Noted), 1, "it was still there");
    }
}

#[test]
fn the_flow_used_least_recently_makes_room_in_the_kernel_as_in_this_process() {
    if !rights() {
        return;
    }
    for (six, hook) in [(false, Hook::Tcx), (true, Hook::Xdp)] {
        // One set of eight.
        let bed = Bed::new(hook, 8, &[]);
        let mut same = FlowTable::new(bed.layout);
        let mut now = 1000;
        let mut send = |number: u16| {
            let packet = numbered(six, number).packet(Way::Out);
            bed.pass_time(Duration::from_secs(1));
            bed.send(&packet);
            now += 15;
            same.note(&Flow::of(&packet, Way::Out).unwrap(), now);
            let known = |number: &u16| bed.is_established(&numbered(six, *number).packet(Way::In));
            let known: Vec<u16> = (0..12).filter(known).collect();
            let flow = |number: u16| Flow::of(&numbered(six, number).packet(Way::In), Way::In).unwrap();
            let same: Vec<u16> = (0..12).filter(|number| same.last_sent(&flow(*number)).is_some()).collect();
            assert_eq!(known, same);
            known
        };
        (0..8).for_each(|number| drop(send(number)));
        send(0);
        assert_eq!(send(8), [0, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!(send(9), [0, 3, 4, 5, 6, 7, 8, 9]);
        assert_eq!(bed.counted(FlowCount::Forgotten), 2);
        bed.pass_time(IDLE);
        bed.send(&numbered(six, 10).packet(Way::Out));
        assert_eq!(bed.counted(FlowCount::Forgotten), 2, "nobody misses one that was idle for so long");
        assert_eq!(bed.counted(FlowCount::Noted), 11);
    }
}

#[test]
fn what_is_excepted_and_what_is_no_whole_packet_establishes_nothing() {
    if !rights() {
        return;
    }
    let bed = Bed::new(Hook::Tcx, 64, &["udp src port 1001", "tcp src port 1003"]);
    for number in 0..3 {
        bed.send(&numbered(false, number).packet(Way::Out));
    }
    bed.send(&Shape { protocol: 6, flags: 2, ..numbered(false, 3) }.packet(Way::Out));
    let syn = Shape { protocol: 6, flags: 2, ..numbered(true, 4) };
    // Up to the flags, which stand 13 bytes behind the headers of Ethernet and IPv6.
    for len in 54..68 {
        bed.send(&syn.packet(Way::Out)[..len]);
    }
    let known = |number: &u16| bed.is_established(&numbered(false, *number).packet(Way::In));
    assert_eq!((0..5).filter(known).collect::<Vec<_>>(), [0, 2]);
    assert_eq!(bed.counted(FlowCount::Noted), 2);
    assert!(!bed.is_established(&syn.packet(Way::In)));
    bed.send(&syn.packet(Way::Out)[..68]);
    assert!(bed.is_established(&syn.packet(Way::In)));
}

/// A program as the kernel runs it on packets with a tag beside them.
fn load_behind_push(
    note: &bywash_filter::ebpf::Program,
    protocol: u16,
    tag: u16,
) -> Result<Program, LoadError> {
    let mut push = Assembler::new();
    push.mov(Register::R6, Register::R1);
    push.mov(Register::R2, i32::from(protocol.to_be()));
    push.mov(Register::R3, i32::from(tag));
    push.call(Helper::PushVlan);
    push.mov(Register::R1, Register::R6);
    let instructions = [push.finish().unwrap().to_words(), note.to_words()].concat();
    Program::load(&ProgramSpec {
        kind: ProgramKind::SchedCls,
        name: "rules_test",
        instructions: &instructions,
    })
}

#[test]
fn a_tag_beside_a_packet_that_leaves_is_seen_where_it_is_on_the_wire() {
    if !rights() {
        return;
    }
    let layout = FlowLayout::new(8, [1, 3]);
    let table = map(MapKind::Array, 4, layout.bytes(), 1);
    let counters = map(MapKind::PerCpuArray, 4, size_of::<Count>(), RULES_AT as usize);
    let flows = FlowMap { table: table.as_raw_fd(), layout };
    let noted = || counters.sum::<2>(FlowCount::Noted as u32).unwrap()[0];
    let mut random = Random::new(7);
    let by_hand = [
        "vlan 7",
        "vlan 8",
        "udp or tcp",
        "vlan 7 and (udp or tcp)",
        "vlan and vlan 5",
        "anyvlan and (udp or tcp)",
        "anyvlan and l4 port 80",
        "vlan and ether[18:2] & 0x1fff != 0",
        "ether[12:4] = 0x81000007",
        "ether[11:4] & 0xffffff = 0x810000",
        "ether[14] = 0",
        "ether[15:4] & 0xffff = 0x4500",
        "ether[ether[15]:2] = 0x0202 or ether[ether[15] + 6:2] = 0x8100",
        "ether[ether[15] + 8:4] = 0x00078100 or ether[ether[15] + 8:4] = 0x00070800",
        "len > 70",
        "len & 1 = 1",
    ];
    let texts = (0..150).map(|number: usize| match (by_hand.get(number), number % 2) {
        (Some(text), _) => (*text).to_owned(),
        (None, 0) => random::expression::ours(&mut random),
        (None, _) => random::expression::expression(&mut random, &mut Used::new()),
    });
    let texts: Vec<String> = texts.collect();
    let (mut pairs, mut matched, mut too_large) = (0, 0, 0);
    for text in texts {
        let Ok(except) = text.parse::<Expression>() else { continue };
        let options = FlowOptions { except: vec![except.clone()], ..FlowOptions::default() };
        let note = note_program(flows, &options, counters.as_raw_fd(), IDLE).unwrap();
        let (protocol, tag) = (random.pick(&[0x8100, 0x88a8]), random.pick(&[7, 5, 0xe007]));
        let program = match load_behind_push(&note, protocol, tag) {
            Err(LoadError::TooLarge { .. }) => {
                too_large += 1;
                continue;
            }
            program => program.unwrap_or_else(|error| panic!("{text}\n{error}\n{note}")),
        };
        for _ in 0..60 {
            let packet = random::packet::packet(&mut random);
            if packet.len() < 14 || Flow::of(&packet, Way::Out).is_none() {
                continue;
            }
            table.update(&[0; 4], &vec![0; layout.bytes()]).unwrap();
            let before = noted();
            let output = program.test_run(&TestInput { packet: &packet, ..TestInput::default() }).unwrap();
            assert_eq!((output.verdict.cast_signed(), &output.packet[..]), (TCX_NEXT, &packet[..]));
            let [kind, id] = [protocol, tag].map(u16::to_be_bytes);
            let on_wire = [&packet[..12], &kind, &id, &packet[12..]].concat();
            let matches = except.matches(&on_wire);
            assert_eq!(noted() == before, matches, "{text}\n{on_wire:02x?}");
            pairs += 1;
            matched += usize::from(matches);
        }
    }
    assert!(matched * 6 > pairs && pairs > 1000, "{matched} of {pairs} match");
    assert!(too_large < 15, "{too_large} programs are too much for the verifier");
}
