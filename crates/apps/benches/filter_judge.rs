//! What the flood filter's user space costs for a packet that nothing drops, with many rules of all kinds, beside one rule
//! that gives everything back.
//!
//! The packets are made in memory: a port writes them into frames, as a NIC would, and takes them back. What it reads for that is
//! little, so that the caches are the filter's. Without arguments it prints nanoseconds
//! of runs with the many rules and with the one in turn, and what the many take more: median and quartiles of each;
//! `filter_judge many 1000000` runs once, with the packets of the last row or of another one (`... 0`), to be counted by
//! callgrind.
#![expect(clippy::print_stdout, reason = "its output is the result")]
#![expect(clippy::unwrap_used, reason = "a benchmark that can't run should stop")]

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bywash_apps::filter::{Filter, Options};
use bywash_apps::wire::zerocopy::IntoBytes;
use bywash_apps::wire::{Ipv4Header, Protocol};
use bywash_apps::{App, WorkerOptions};
use bywash_port::filter::rules::{FlowOptions, PayloadPattern, PayloadPlace, Per};
use bywash_port::frame::{Arena, Batch, FRAME_SIZE, HEADROOM, Packet, Pool, Segment};
use bywash_port::{
    Action, Capabilities, Condition, Counter, Limit, Port, PortName, QueueCounters, QueuePair, Rule, RuleSet,
    Rules, RxQueue, TxQueue,
};
use bywash_sys::worker::Stop;

/// Each packet of a round has a source of its own.
const SOURCES: u32 = 10_000;

const TURNS: usize = 21;
/// In each run: so many that the filter's start, which has limits to make and patterns to compile, has a small share of each.
const PACKETS: u64 = 5_000_000;

/// Ports that limits are about; packets go to the first three.
const LIMITED: std::ops::Range<u16> = 5000..5020;
const DNS: u16 = 53;
const GAME: u16 = 5001;
const WEB: u16 = 5002;

/// Makes a packet from a source.
type Make = fn(u32) -> Vec<u8>;

/// What comes, by the name of its row.
const KINDS: [(&str, &[Make]); 4] = [
    ("a DNS query: 10 rules with names", &[query]),
    ("UDP with 64 bytes: 10 rules with payload", &[game]),
    ("TCP: neither", &[web]),
    ("these three in turn", &[query, game, web]),
];

struct Source {
    name: PortName,
    capabilities: Capabilities,
    queue: Option<QueuePair>,
}

/// Bytes of the largest packet and more.
const MOST: usize = 128;

/// The packets of a round.
struct Round {
    /// One of each kind: its bytes, and how many they are.
    kinds: Vec<([u8; MOST], usize)>,
    /// What is different in each packet: checksum and source, as they lie in the header.
    differ: Vec<[u8; 6]>,
}

impl Round {
    fn new(kinds: &[Make]) -> Self {
        let made = |kind: &Make| {
            let packet = kind(0);
            let mut bytes = [0; MOST];
            bytes[..packet.len()].copy_from_slice(&packet);
            (bytes, packet.len())
        };
        let differ = |n: u32| kinds[n as usize % kinds.len()](n)[DIFFERENT].try_into().unwrap();
        Self { kinds: kinds.iter().map(made).collect(), differ: (0..SOURCES).map(differ).collect() }
    }
}

/// Where in a packet the header's checksum and the source are.
const DIFFERENT: std::ops::Range<usize> = 24..30;

struct Rx {
    round: Arc<Round>,
    at: usize,
    kind: usize,
    counters: QueueCounters,
    left: u64,
    stop: Stop,
}

#[derive(Default)]
struct Tx(QueueCounters);

impl Port for Source {
    fn name(&self) -> &PortName {
        &self.name
    }
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }
    fn queues(&mut self) -> Vec<QueuePair> {
        self.queue.take().into_iter().collect()
    }
    fn counters(&self) -> Vec<Counter> {
        Vec::new()
    }
    fn close(self: Box<Self>) -> Result<(), Vec<String>> {
        Ok(())
    }
}

impl RxQueue for Rx {
    fn rx(&mut self, pool: &mut Pool, batch: &mut Batch) -> usize {
        let n = batch.room().min(usize::try_from(self.left).unwrap());
        for mut frame in pool.take_many(n) {
            let (bytes, len) = &self.round.kinds[self.kind];
            let place = &mut frame.bytes_mut()[HEADROOM..][..MOST];
            place.copy_from_slice(bytes);
            place[DIFFERENT].copy_from_slice(&self.round.differ[self.at]);
            // Before there is a packet, so that it is written once, where it stays.
            let place = batch.place().unwrap();
            place.put(Packet::from_segment(Segment::received(frame, *len)));
            self.at += 1;
            self.kind = if self.kind + 1 == self.round.kinds.len() { 0 } else { self.kind + 1 };
            if self.at == self.round.differ.len() {
                (self.at, self.kind) = (0, 0);
            }
        }
        self.counters.packets += n as u64;
        self.left -= n as u64;
        if self.left == 0 {
            self.stop.set();
        }
        n
    }
    fn arm(&mut self) -> bool {
        false
    }
    fn wake_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }
    fn counters(&self) -> QueueCounters {
        self.counters
    }
    fn close(self: Box<Self>, _: &mut Pool) {}
}

impl TxQueue for Tx {
    fn tx(&mut self, pool: &mut Pool, batch: &mut Batch) -> usize {
        let n = batch.len();
        self.0.packets += n as u64;
        pool.give_batch(batch);
        n
    }
    fn flush(&mut self, _: &mut Pool) {}
    fn in_flight(&self) -> usize {
        0
    }
    fn counters(&self) -> QueueCounters {
        self.0
    }
    fn close(self: Box<Self>, _: &mut Pool) {}
}

/// A packet from one of the sources.
fn packet(source: u32, protocol: Protocol, transport: &[u8]) -> Vec<u8> {
    let from = (0x0a00_0000 + source).into();
    let ip = Ipv4Header::new(from, [192, 0, 2, 1].into(), protocol.0, transport.len().try_into().unwrap());
    [&[2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0][..], ip.as_bytes(), transport].concat()
}

fn udp(source: u32, port: u16, payload: &[u8]) -> Vec<u8> {
    let length = u16::try_from(8 + payload.len()).unwrap();
    let header: Vec<u8> = [40_000, port, length, 0].iter().flat_map(|word| word.to_be_bytes()).collect();
    packet(source, Protocol::UDP, &[&header[..], payload].concat())
}

fn query(source: u32) -> Vec<u8> {
    let name = b"\x03www\x07example\x03org\0";
    let message = [&[0x12, 0x34, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0][..], name, &[0, 1, 0, 1]].concat();
    udp(source, DNS, &message)
}

fn game(source: u32) -> Vec<u8> {
    let text = b"\xff\xff\xff\xffstatus of what is played here by those who ask for it, 64 by now";
    udp(source, GAME, &text[..64])
}

fn web(source: u32) -> Vec<u8> {
    let ports: Vec<u8> = [40_000, WEB].iter().flat_map(|port: &u16| port.to_be_bytes()).collect();
    let rest = [0, 0, 0, 1, 0, 0, 0, 2, 5 << 4, 0x10, 1, 0, 0, 0, 0, 0];
    packet(source, Protocol::TCP, &[&ports[..], &rest].concat())
}

fn rule(name: String, action: Action, condition: Condition) -> Rule {
    Rule { name, condition, action, sample: None, expires: None, dry_run: false }
}

/// 60 rules of prefixes and ports, 20 limits, 10 names, 10 payloads. None of them drops what comes, which meets one of the
/// limits, and all that names and payload ask for before they look.
fn many() -> Vec<Rule> {
    let from = |n: u16| vec![format!("172.16.{n}.0/24").parse().unwrap()];
    let ports = |port: u16| vec![port..=port];
    let mut rules = Vec::new();
    let mut add = |name: &str, action, condition| {
        rules.push(rule(format!("{name} {}", rules.len()), action, condition));
    };
    for n in 0..20 {
        add("prefix", Action::Drop, Condition { from: from(n), ..Condition::default() });
        add("port", Action::Drop, Condition { to_ports: ports(7000 + n), ..Condition::default() });
        let both = Condition { from: from(n), to_ports: ports(6000 + n), ..Condition::default() };
        add("prefix and port", Action::Drop, both);
    }
    let per = Per::Source { v4: 32, v6: 64 };
    // The packets come faster than any source's would.
    let limit = Action::Limit(Limit { rate: 1 << 20, burst: 1 << 20, per, block: None });
    for port in LIMITED {
        let port = if port == LIMITED.start { DNS } else { port };
        add("limit", limit, Condition { to_ports: ports(port), ..Condition::default() });
    }
    for n in 0..10 {
        let names = vec![format!("*.bad{n}.example.org").parse().unwrap()];
        add("name", Action::Drop, Condition { names, ..Condition::default() });
        let place = if n % 2 == 0 { PayloadPlace::At(4) } else { PayloadPlace::Within(64) };
        let payload = vec![PayloadPattern { bytes: format!("attack {n}").into_bytes(), place }];
        add("payload", Action::Drop, Condition { payload, to_ports: ports(GAME), ..Condition::default() });
    }
    rules
}

fn one() -> Vec<Rule> {
    let expression = Some("".parse().unwrap());
    vec![rule("all".into(), Action::Queue, Condition { expression, ..Condition::default() })]
}

/// Filters so many packets; how long that took.
fn run(rules: Vec<Rule>, round: &Arc<Round>, count: u64, arena: &'static Arena) -> Duration {
    let set = Arc::new(RuleSet::new(rules).unwrap());
    let rules = Rules { set, never: Vec::new(), flows: FlowOptions::default() };
    let stop = Stop::new().unwrap();
    let rx = Rx {
        round: Arc::clone(round),
        at: 0,
        kind: 0,
        counters: QueueCounters::default(),
        left: count,
        stop: stop.clone(),
    };
    let queue = QueuePair { rx: Some(Box::new(rx)), tx: Some(Box::new(Tx::default())) };
    let capabilities = Capabilities::default();
    let port = Source { name: "loop:source".parse().unwrap(), capabilities, queue: Some(queue) };
    let mut options = Options::new(None, rules);
    options.workers = WorkerOptions { frames: Some(256), ..WorkerOptions::default() };
    let started = Instant::now();
    let mut filter = Filter::start(Box::new(port), options, arena, &stop).unwrap();
    filter.wait(Duration::from_secs(600));
    let took = started.elapsed();
    let summary = filter.finish();
    let counted = |name| summary.snapshot.value(name);
    assert_eq!((counted("taken_packets"), counted("given_back_packets")), (Some(count), Some(count)));
    took
}

fn main() {
    let arena = Arena::new(vec![0; 512 * FRAME_SIZE]).unwrap();
    let mut words = std::env::args().skip(1).filter(|word| word != "--bench");
    if let (Some(mode), Some(count)) = (words.next(), words.next()) {
        let rules = if mode == "many" { many() } else { one() };
        let row = words.next().map_or(3, |row| row.parse().unwrap());
        run(rules, &Arc::new(Round::new(KINDS[row].1)), count.parse().unwrap(), arena);
        return;
    }
    for (name, kinds) in KINDS {
        let round = Arc::new(Round::new(kinds));
        let each = |rules| run(rules, &round, PACKETS, arena).as_secs_f64() * 1e9 / PACKETS as f64;
        let pairs: Vec<_> = (0..TURNS).map(|_| [each(many()), each(one())]).collect();
        let columns: [fn(&[f64; 2]) -> f64; 3] =
            [|[many, _]| *many, |[_, one]| *one, |[many, one]| many - one];
        let figures = columns.map(|column| {
            let mut sorted: Vec<f64> = pairs.iter().map(column).collect();
            sorted.sort_by(f64::total_cmp);
            let [low, median, high] = [TURNS / 4, TURNS / 2, TURNS - 1 - TURNS / 4].map(|at| sorted[at]);
            format!("{median:.1}\t{low:.1}\t{high:.1}")
        });
        println!("{name}\t{}", figures.join("\t"));
    }
}
