//! Three judges of the same expressions and packets: the matcher, eBPF in the kernel, and libpcap.
//!
//! `BYWASH_PAIRS=N` sets how many pairs are compared (40 000 when unset), `BYWASH_SEED=N` which ones. What libpcap's
//! compiler makes without its optimizer is what counts. Its optimizer drops loads whose result it does not need, and so
//! lets packets match that are cut short there; and it adds up offsets such as `tcp[-4]` where they do not wrap, and so
//! refuses them. Where the two differ, the difference is counted and not judged.
#![expect(clippy::unwrap_used, reason = "a test stops at what it did not expect")]

mod captures;
mod oracle;
#[expect(dead_code, reason = "not all of it is used by this test")]
mod random;

use std::net::Ipv4Addr;

use bywash_filter::xdp::verdict_program;
use bywash_filter::{Expression, NoNames, Options};
use bywash_lab::skip;
use bywash_sys::bpf::{Program, ProgramKind, ProgramSpec, TestInput};
use oracle::{Code, Oracle};
use random::expression::{PRIMITIVES, Used};
use random::{Random, packet::packet};

const NETMASK: Ipv4Addr = Ipv4Addr::new(255, 255, 255, 0);
/// What the program returns for packets that match: `XDP_DROP`; the others pass.
const DROP: u32 = 1;
/// `BPF_PROG_TEST_RUN` takes no shorter packets, and none longer than these.
const RUN: std::ops::RangeInclusive<usize> = 14..=3000;

fn read(text: &str) -> Result<Expression, String> {
    Expression::new(text, &Options { names: &NoNames, netmask: Some(NETMASK) })
        .map_err(|error| error.to_string())
}

fn number(variable: &str, otherwise: u64) -> u64 {
    std::env::var(variable).map_or(otherwise, |text| text.parse().unwrap())
}

/// One expression for all three.
struct Judges<'a> {
    text: String,
    oracle: &'a Oracle,
    plain: Code,
    optimized: Option<Code>,
    ours: Expression,
    kernel: Option<Program>,
    /// Where this does not match, libpcap reads memory that it has not written.
    defined: Option<Code>,
}

#[derive(Default, Debug)]
struct Tally {
    pairs: usize,
    matched: usize,
    in_kernel: usize,
    optimizer_differs: usize,
    refused: usize,
    expressions: usize,
}

impl<'a> Judges<'a> {
    /// `None` when libpcap has no such expression; then ours is not asked.
    fn new(oracle: &'a Oracle, text: &str, kernel: bool) -> Option<Self> {
        let plain = oracle.compile(text, false, Some(NETMASK.to_bits())).ok()?;
        let optimized = oracle.compile(text, true, Some(NETMASK.to_bits())).ok();
        let ours = read(text).unwrap_or_else(|error| panic!("libpcap reads this:\n{error}"));
        let kernel = kernel.then(|| {
            let program = verdict_program(&ours, DROP.cast_signed(), 2).unwrap();
            let spec = ProgramSpec {
                kind: ProgramKind::XdpFrags,
                name: "agreement",
                instructions: &program.to_words(),
            };
            Program::load(&spec).unwrap_or_else(|error| panic!("{text}\n{error}"))
        });
        let geneve = text.starts_with("geneve").then(|| text.split(" and ").next().unwrap());
        let defined = geneve.map(|geneve| oracle.compile(geneve, false, None).unwrap());
        Some(Self { text: text.into(), oracle, plain, optimized, ours, kernel, defined })
    }

    /// Whether libpcap's code has one result for this packet.
    fn is_defined(&self, packet: &[u8]) -> bool {
        // It reads the length of AH in the wrong place, and may never come back.
        let follows_ah = self.text.contains("protochain") && packet.contains(&51);
        !follows_ah
            && self.defined.as_ref().is_none_or(|code| self.oracle.matches(code, packet, packet.len()))
    }

    fn judge(&self, packet: &[u8], wire_length: usize, tally: &mut Tally) {
        let expected = self.oracle.matches(&self.plain, packet, wire_length);
        let ours = self.ours.matches_len(packet, wire_length);
        assert_eq!(ours, expected, "the matcher: {}\n{packet:02x?} of {wire_length}", self.text);
        tally.pairs += 1;
        tally.matched += usize::from(expected);
        if let Some(optimized) = &self.optimized {
            let differs = self.oracle.matches(optimized, packet, wire_length) != expected;
            tally.optimizer_differs += usize::from(differs);
        }
        if let Some(kernel) = &self.kernel
            && RUN.contains(&packet.len())
        {
            let expected = self.ours.matches(packet);
            let output = kernel.test_run(&TestInput { packet, ..TestInput::default() }).unwrap();
            assert_eq!(output.verdict == DROP, expected, "eBPF: {}\n{packet:02x?}", self.text);
            tally.in_kernel += 1;
        }
    }
}

/// Up to sixty-four packets, half of which match where that can be had.
fn packets_for(judges: &Judges<'_>, random: &mut Random) -> Vec<Vec<u8>> {
    let mut chosen = Vec::new();
    let mut others = Vec::new();
    for _ in 0..256 {
        let packet = packet(random);
        if !judges.is_defined(&packet) {
            continue;
        }
        if judges.ours.matches(&packet) {
            chosen.push(packet)
        } else {
            others.push(packet)
        }
        if chosen.len() >= 32 && others.len() >= 32 {
            break;
        }
    }
    chosen.truncate(64 - others.len().min(32));
    // What hardly ever matches says little.
    others.truncate(if chosen.len() < 8 { 16 } else { 64 - chosen.len() });
    chosen.extend(others);
    chosen
}

fn open() -> Option<(Oracle, bool)> {
    match Oracle::open() {
        Ok(oracle) => Some((oracle, rustix::process::geteuid().is_root())),
        Err(reason) => {
            skip(&reason);
            None
        }
    }
}

#[test]
fn random_expressions_mean_the_same_to_all_three() {
    let Some((oracle, root)) = open() else { return };
    if !root {
        skip("bpf(2) needs root: only the matcher is compared with libpcap");
    }
    let wanted = usize::try_from(number("BYWASH_PAIRS", 40_000)).unwrap();
    let mut random = Random::new(number("BYWASH_SEED", 1));
    let mut used = Used::new();
    let mut tally = Tally::default();
    while tally.pairs < wanted {
        let text = random::expression::expression(&mut random, &mut used);
        let Some(judges) = Judges::new(&oracle, &text, root) else {
            tally.refused += 1;
            continue;
        };
        tally.expressions += 1;
        for packet in packets_for(&judges, &mut random) {
            let more_on_the_wire = random.pick(&[0, 0, 0, 40, 1400]);
            judges.judge(&packet, packet.len() + more_on_the_wire, &mut tally);
        }
    }
    eprintln!("{tally:?}\n{used:?}");
    assert!(tally.matched * 10 >= tally.pairs * 3, "too few match: {tally:?}");
    assert!(tally.optimizer_differs * 100 < tally.pairs, "libpcap is of two minds too often: {tally:?}");
    assert!(tally.refused * 2 < tally.expressions, "libpcap refuses too many: {tally:?}");
    if wanted >= 40_000 {
        for (name, _) in PRIMITIVES {
            assert!(used.get(name).is_some_and(|count| *count > 1), "'{name}' is hardly used: {used:?}");
        }
    }
}

#[test]
fn captured_packets_mean_the_same_to_all_three() {
    let Some((oracle, root)) = open() else { return };
    let packets = match captures::packets() {
        Ok(packets) => packets,
        Err(reason) => return skip(&reason),
    };
    assert!(packets.len() > 1000, "only {} packets in BYWASH_CAPTURES", packets.len());
    let mut random = Random::new(number("BYWASH_SEED", 2));
    let mut tally = Tally::default();
    for _ in 0..400 {
        let text = random::expression::expression(&mut random, &mut Used::new());
        let Some(judges) = Judges::new(&oracle, &text, root) else { continue };
        tally.expressions += 1;
        for _ in 0..100 {
            let (packet, wire_length) = random.pick(&packets);
            if judges.is_defined(&packet) {
                judges.judge(&packet, wire_length, &mut tally);
            }
        }
    }
    eprintln!("{} packets captured, {tally:?}", packets.len());
}
