//! What a dropped packet costs by rules: 1 rule, 100 mixed ones, 10000 prefixes, beside an empty program and xdp-filter;
//! one rule behind another one that lets established flows in; and one that draws samples, which are read in between.
//!
//! The heartbeat, the list of what is never dropped, with two gateways and an ssh connection, and the counter are part of it.
//! Each figure is the mean over sixteen packets that are all dropped, spread over the rules; the median of runs in which all
//! programs take turns.
#![expect(clippy::print_stdout, reason = "its output is the result")]
#![expect(clippy::unwrap_used, reason = "a benchmark that can't run should stop")]

mod kernel;

use std::io::{BufRead, BufReader};
use std::num::NonZeroU32;
use std::os::fd::AsRawFd;
use std::process::{Child, Stdio};

use bywash_filter::rules::{
    Action, Condition, FlowLayout, FlowMap, FlowOptions, MapSet, Rest, Rule, RuleProgram, RuleSet, SynCookies,
};
use bywash_filter::xdp::{Count, Heartbeat, Maps, NeverTake, RULES_AT, XdpBuff, pass_program};
use bywash_filter::{Expression, Hook, NoNames, Options};
use bywash_lab::{Lab, PairOptions};
use bywash_sys::bpf::{Map, MapKind, MapSpec, Program, RingReader, TestInput, kernel_types, program_ids};
use kernel::{load, run};

/// How often each program is run on all packets, in turn.
const TURNS: usize = 21;
const PACKETS: usize = 16;

/// What a machine with one router and an operator who has come by ssh has to spare.
fn never_take() -> NeverTake {
    let operator = Some(("203.0.113.77:50000".parse().unwrap(), "198.51.100.2:22".parse().unwrap()));
    NeverTake {
        gateways: vec!["198.51.100.1".parse().unwrap(), "fe80::1".parse().unwrap()],
        operator,
        ..NeverTake::default()
    }
}

/// A program under test.
struct Case {
    name: &'static str,
    program: Program,
    /// Its length, where it is known.
    instructions: String,
    packets: Vec<Vec<u8>>,
    /// What it draws.
    ring: Option<RingReader>,
}

fn main() {
    let one = || packets(|n| ([10, 9, 0, n], 9));
    let hundred = || packets(|n| ([172, 16, 6 * n, 1], 100 * u16::from(n)));
    let many = packets(|n| ([20 + n, 8 * n, 3 * n, 77], 80));
    let (_ours, mut cases): (Vec<_>, Vec<_>) = [
        ours("1 rule", vec![rule(0, expression("udp dst port 9"))], one()),
        ours("100 rules", mixed(), hundred()),
        ours("10000 prefixes", prefixes(), many),
        ours("1 rule, established", behind_established(), one()),
        ours("1 rule, 1 in 1000 sampled", drawing(1000), one()),
        ours("1 rule, all sampled, no room", drawing(1), one()),
    ]
    .into_iter()
    .unzip();
    let theirs =
        [("xdp-filter, 1 port", one_port(), one()), ("xdp-filter, 100 rules", hundred_rules(), hundred())]
            .map(|(name, rules, packets)| {
                XdpFilter::start(&rules).map(|(filter, program)| {
                    (filter, Case { name, program, instructions: String::new(), packets, ring: None })
                })
            });
    let mut running = Vec::new();
    // Each behind ours.
    for (index, (filter, case)) in theirs.into_iter().flatten().enumerate() {
        cases.insert(2 * index + 1, case);
        running.push(filter);
    }
    measure(&mut cases);
}

fn measure(cases: &mut [Case]) {
    let empty = load(&pass_program());
    for Case { name, program, packets, .. } in &*cases {
        for packet in packets {
            let dropped = program.test_run(&TestInput { packet, ..TestInput::default() }).unwrap();
            assert_eq!(dropped.verdict, 1, "{name}");
        }
    }
    let mut more = vec![Vec::new(); cases.len()];
    for _ in 0..TURNS {
        for (case, more) in cases.iter_mut().zip(&mut more) {
            more.push(run(&case.program, &case.packets) - run(&empty, &case.packets));
            // What is read is not part of it.
            if let Some(ring) = &mut case.ring {
                ring.read(usize::MAX, &mut [], |_| ());
            }
        }
    }
    for (Case { name, instructions, .. }, mut more) in cases.iter().zip(more) {
        more.sort_by(f64::total_cmp);
        let [low, median, high] = [TURNS / 4, TURNS / 2, TURNS - 1 - TURNS / 4].map(|index| more[index]);
        println!("{name}\t{median:.1}\t{low:.1}\t{high:.1}\t{instructions}");
    }
}

fn ours(name: &'static str, rules: Vec<Rule>, packets: Vec<Vec<u8>>) -> (Vec<Map>, Case) {
    let Loaded { program, instructions, maps, ring } = Loaded::new(&RuleSet::new(rules).unwrap());
    (maps, Case { name, program, instructions: instructions.to_string(), packets, ring })
}

/// A running xdp-filter, on an interface of its own.
struct XdpFilter {
    shell: Child,
    _lab: Lab,
}

impl XdpFilter {
    /// Has it drop by these rules, each the words of a command; `None` where there is no xdp-filter.
    fn start(rules: &[String]) -> Option<(Self, Program)> {
        let before = program_ids().unwrap();
        let lab = Lab::row(2, &PairOptions::default()).unwrap();
        // What it pins lies in a BPF file system that nobody else sees, and goes with the shell.
        let mut script = "set -e; command -v xdp-filter >/dev/null; mount -t bpf bpf /sys/fs/bpf; \
                          xdp-filter load --mode native left"
            .to_owned();
        rules.iter().for_each(|rule| script.push_str(&format!("; xdp-filter {rule}")));
        script.push_str("; echo ready; read end");
        let mut command = lab.hosts[1].command("unshare").unwrap();
        command.args(["--mount", "sh", "-c", &script]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut started = Self { shell: command.spawn().unwrap(), _lab: lab };
        let mut lines = BufReader::new(started.shell.stdout.take().unwrap());
        let mut said = String::new();
        while !said.ends_with("ready\n") {
            if lines.read_line(&mut said).unwrap() == 0 {
                return None;
            }
        }
        let theirs = program_ids().unwrap().into_iter().filter(|id| !before.contains(id));
        let mut found = theirs.filter_map(|id| Program::by_id(id).ok());
        let program = found.find(|program| program.info().is_ok_and(|info| info.name.starts_with("xdpfilt")));
        program.map(|program| (started, program))
    }
}

impl Drop for XdpFilter {
    fn drop(&mut self) {
        // Its `read` ends.
        drop(self.shell.stdin.take());
        self.shell.wait().ok();
    }
}

fn one_port() -> Vec<String> {
    vec!["port 9 --mode dst --proto udp".into()]
}

/// The sources of the packets, and ports besides.
fn hundred_rules() -> Vec<String> {
    let sources = (0..PACKETS).map(|n| format!("ip 172.16.{}.1 --mode src", 6 * n));
    let ports = (PACKETS..100).map(|n| format!("port {} --mode dst --proto udp", 10_000 + n));
    sources.chain(ports).collect()
}

/// A rule that draws one packet in so many.
fn drawing(sample: u32) -> Vec<Rule> {
    vec![Rule { sample: NonZeroU32::new(sample), ..rule(0, expression("udp dst port 9")) }]
}

fn expression(text: &str) -> Condition {
    let expression = Expression::new(text, &Options { names: &NoNames, netmask: None }).unwrap();
    Condition { expression: Some(expression), ..Condition::default() }
}

fn from(text: &str) -> Condition {
    Condition { from: vec![text.parse().unwrap()], ..Condition::default() }
}

fn rule(number: usize, condition: Condition) -> Rule {
    let name = number.to_string();
    Rule { name, condition, action: Action::Drop, sample: None, expires: None, dry_run: false }
}

/// The packets are of no established flow, so each is looked for in vain.
fn behind_established() -> Vec<Rule> {
    let established = Some(std::time::Duration::from_secs(300));
    let answers = rule(0, Condition { established, ..Condition::default() });
    vec![Rule { action: Action::Pass, ..answers }, rule(1, expression("udp dst port 9"))]
}

/// Four rules in ten are a source prefix, three are ports, two are a prefix and a port, one is an expression.
fn mixed() -> Vec<Rule> {
    let of = |n: usize| match n % 10 {
        0..=3 => from(&format!("172.16.{n}.0/24")),
        4..=6 => {
            let port = u16::try_from(n).unwrap();
            Condition { to_ports: vec![port..=port], ..Condition::default() }
        }
        7 | 8 => Condition { to_ports: vec![53..=53], ..from(&format!("172.17.{n}.0/24")) },
        _ => expression(&format!("udp src port {} and len > 400", 1000 + n)),
    };
    // The last one drops what is left.
    let last = rule(99, from("172.16.0.0/16"));
    (0..99).map(|n| rule(n, of(n))).chain([last]).collect()
}

/// Ten thousand rules of one prefix, /16 to /32.
fn prefixes() -> Vec<Rule> {
    let all = (0..10_000_u32).map(|n| {
        let bits = 16 + n % 17;
        let spread = n.wrapping_mul(0x9e37_79b9) | 0x8000_0000;
        let address = std::net::Ipv4Addr::from(spread & (u32::MAX << (32 - bits)));
        rule(n as usize, from(&format!("{address}/{bits}")))
    });
    // Sources that are dropped for sure, one for each packet.
    let sure =
        (0..16_u32).map(|n| rule(20_000 + n as usize, from(&format!("{}.{}.{}.77", 20 + n, 8 * n, 3 * n))));
    all.skip(16).chain(sure).collect()
}

fn packets(of: impl Fn(u8) -> ([u8; 4], u16)) -> Vec<Vec<u8>> {
    let one = |n: usize| {
        let (source, port) = of(u8::try_from(n).unwrap());
        let mut packet = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0];
        packet.extend([0x45, 0, 0, 46, 0, 1, 0x40, 0, 64, 17, 0, 0]);
        packet.extend(source);
        packet.extend([192, 0, 2, 1, 0x9c, 0x40]);
        packet.extend(port.to_be_bytes());
        packet.extend([0, 26, 0, 0]);
        packet.resize(60, 0);
        packet
    };
    (0..PACKETS).map(one).collect()
}

struct Loaded {
    program: Program,
    instructions: usize,
    maps: Vec<Map>,
    /// What it draws.
    ring: Option<RingReader>,
}

impl Loaded {
    fn new(set: &RuleSet) -> Self {
        let map = |kind, value_size: usize, entries: usize| {
            let [value_size, entries] = [value_size, entries].map(|n| u32::try_from(n).unwrap());
            let mappable = kind == MapKind::Array;
            let key_size = if kind == MapKind::RingBuf { 0 } else { 4 };
            Map::create(&MapSpec { kind, name: "filter_cost", key_size, value_size, entries, mappable })
                .unwrap()
        };
        let slots: Vec<u32> = (0..u32::try_from(set.rules().len()).unwrap()).collect();
        let words = set.tables().array(&slots);
        let (sockets, heartbeat) =
            (map(MapKind::XskMap, 4, 1), map(MapKind::Array, size_of::<Heartbeat>(), 1));
        let counters = map(MapKind::PerCpuArray, size_of::<Count>(), RULES_AT as usize + slots.len());
        let array = map(MapKind::Array, 8 * words.len(), 1);
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
        array.map_memory().unwrap().copy_in(0, &bytes);
        heartbeat.map_memory().unwrap().copy_in(0, &1_u64.to_ne_bytes());
        let layout = FlowLayout::new(FlowOptions::default().most, [1, 0x9e37_79b9_7f4a_7c15]);
        let flows = set.longest_idle().map(|_| map(MapKind::Array, layout.bytes(), 1));
        let draws = set.rules().iter().any(|rule| rule.sample.is_some());
        let samples = draws.then(|| map(MapKind::RingBuf, 0, 4 << 20));
        let program = RuleProgram {
            hook: Hook::Xdp,
            rules: set,
            slots: &slots,
            only: None,
            never: &[never_take().expression()],
            rest: Rest::Kernel,
            maps: Maps {
                sockets: sockets.as_raw_fd(),
                longest: 2048,
                heartbeat: heartbeat.as_raw_fd(),
                queues: 1,
                decides_others: false,
                counters: counters.as_raw_fd(),
            },
            sets: MapSet { array: array.as_raw_fd(), hash6: -1, blocks: -1, own: -1 },
            samples: samples.as_ref().map(|ring| ring.as_raw_fd()),
            hung_after_jiffies: 1 << 20,
            buff: kernel_types().and_then(|types| XdpBuff::new(&types)),
            cookies: SynCookies::default(),
            flows: flows.as_ref().map(|table| FlowMap { table: table.as_raw_fd(), layout }),
        };
        let program = program.program().unwrap();
        let instructions = program.instructions().len();
        let program = load(&program);
        let ring = samples.as_ref().map(|ring| RingReader::new(ring).unwrap());
        let maps = [sockets, heartbeat, counters, array].into_iter().chain(flows).chain(samples).collect();
        Self { program, instructions, maps, ring }
    }
}
