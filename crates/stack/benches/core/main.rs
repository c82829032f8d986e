//! Two stacks joined in memory on one core, both ends' cost counted, beside smoltcp on the same kind of wire.
//!
//! `cargo bench -p bywash-stack`: 21 rounds; median and spread. In each, smoltcp runs right before what is compared with it,
//! a quarter of a second each, and pairs are compared: on a machine whose speed changes, two medians say little of each other.
//! Every byte is copied in and copied out in both. Where a line says "in place", they are taken as made where they wait to be
//! sent, and as read where they lie: what a program does to make bytes and to look at them is counted nowhere.
#![forbid(unsafe_code)]
#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a program that measures and prints"
)]

mod ours;
mod smol;

use std::time::Duration;

use ours::{Bulk, Connections, Done, Exchanges, Memory, Until};

/// How long one measurement lasts.
const EACH: Duration = Duration::from_millis(250);
/// Odd, so that the median is one of them.
const ROUNDS: usize = 21;
/// Connections that exchange messages.
const ACTIVE: usize = 1000;
/// What all bulk is compared with.
const PEER: &str = "smoltcp, bulk, copied";

/// Gigabits in a byte.
const BITS: f64 = 8e-9;

/// What is measured of this stack.
const CASES: &[(&str, Case)] = &[
    ("bulk, copied", Case::Bulk(Bulk { streams: 1, in_place: false, offload: false })),
    ("bulk, in place", Case::Bulk(Bulk { streams: 1, in_place: true, offload: false })),
    ("bulk, copied, 64 streams", Case::Bulk(Bulk { streams: 64, in_place: false, offload: false })),
    ("bulk, in place, 64 streams", Case::Bulk(Bulk { streams: 64, in_place: true, offload: false })),
    ("bulk, in place, super-segments", Case::Bulk(Bulk { streams: 1, in_place: true, offload: true })),
    ("64-byte exchanges over 1000 connections", Case::Exchanges(ACTIVE)),
    ("connections opened, used, closed", Case::Connections),
    ("64-byte exchanges over 1000 of a million", Case::Exchanges(1_000_000)),
];

#[derive(Clone, Copy)]
enum Case {
    Bulk(Bulk),
    /// Among so many connections.
    Exchanges(usize),
    Connections,
}

/// A case with what it needs beforehand.
enum Ready {
    Bulk(Memory, Bulk),
    Exchanges(Box<Exchanges>),
    Connections(Box<Connections>),
}

impl Case {
    /// With no more than so many connections.
    fn ready(self, memory: Memory, most: usize) -> Ready {
        match self {
            Self::Bulk(kind) => Ready::Bulk(memory, kind),
            Self::Exchanges(all) => Ready::Exchanges(Box::new(Exchanges::new(memory, ACTIVE, all.min(most)))),
            Self::Connections => Ready::Connections(Box::new(Connections::new(memory))),
        }
    }
}

impl Ready {
    fn run(&mut self, until: Until) -> Done {
        match self {
            Self::Bulk(memory, kind) => ours::bulk(*memory, until, kind),
            Self::Exchanges(world) => world.run(until),
            Self::Connections(world) => world.run(until),
        }
    }
}

fn median(mut values: Vec<f64>) -> (f64, f64, f64) {
    values.sort_by(f64::total_cmp);
    (values[values.len() / 2], values[0], values[values.len() - 1])
}

/// A line, with the unit or what the number is a multiple of.
fn line(name: &str, unit: &str, values: Vec<f64>) {
    let (middle, least, most) = median(values);
    println!("{name:44} {middle:9.3} {unit:17} ({least:.3} to {most:.3})");
}

/// `--rounds CASE N`: so much of one case and no more, with what was done: for who counts instructions.
fn rounds(memory: Memory, arguments: &[String]) {
    let case = arguments.first().and_then(|n| n.parse::<usize>().ok());
    let count = arguments.get(1).and_then(|n| n.parse().ok()).map(Until::Rounds);
    let (case, count) = case.zip(count).expect("--rounds CASE ROUNDS: two numbers");
    // The number after ours is smoltcp.
    let (name, done) = match CASES.get(case) {
        Some((name, case)) => (*name, case.ready(memory, usize::MAX).run(count)),
        None => (PEER, smol::bulk(count)),
    };
    println!("{name}: amount {} packets {}", done.amount, done.packets);
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    // Cargo says which of the two it wants.
    if let Some(first) = arguments.first()
        && !["--bench", "--test", "--rounds"].contains(&first.as_str())
    {
        eprintln!("{first}: --rounds CASE ROUNDS, or nothing");
        std::process::exit(2);
    }
    // Three worlds stay while others come and go.
    let (memory, _reservation) = Memory::new(4);
    // `cargo test --benches` only wants to know that it runs.
    if arguments.iter().any(|argument| argument == "--test") {
        assert!(
            CASES.iter().all(|(_, case)| case.ready(memory, 2 * ACTIVE).run(Until::Rounds(20)).amount > 0)
        );
        assert!(smol::bulk(Until::Rounds(20)).amount > 0);
        return;
    }
    if let Some(at) = arguments.iter().position(|argument| argument == "--rounds") {
        return rounds(memory, &arguments[at + 1..]);
    }
    let mut cases: Vec<Ready> = CASES.iter().map(|(_, case)| case.ready(memory, usize::MAX)).collect();
    let mut own = vec![Vec::new(); CASES.len()];
    // smoltcp's, and ours as a multiple of it, pair by pair.
    let (mut peer, mut times) = (Vec::new(), vec![Vec::new(); CASES.len()]);
    for _ in 0..ROUNDS {
        for (i, case) in cases.iter_mut().enumerate() {
            if !matches!(case, Ready::Bulk(..)) {
                own[i].push(case.run(Until::Time(EACH)).rate() * 1e-6);
                continue;
            }
            let theirs = smol::bulk(Until::Time(EACH)).rate() * BITS;
            let ours = case.run(Until::Time(EACH)).rate() * BITS;
            own[i].push(ours);
            peer.push(theirs);
            times[i].push(ours / theirs);
        }
    }
    line(PEER, "Gbit/s", peer);
    for (((name, case), values), times) in CASES.iter().zip(&own).zip(times) {
        let Case::Bulk(bulk) = case else {
            line(name, "M/s", values.clone());
            continue;
        };
        line(name, "Gbit/s", values.clone());
        line("", "times smoltcp", times);
        let alone = Bulk { streams: 1, ..*bulk };
        let one = CASES.iter().position(|(_, case)| matches!(case, Case::Bulk(other) if *other == alone));
        if let Some(one) = one.filter(|_| bulk.streams > 1) {
            let pairs = values.iter().zip(&own[one]);
            line("", "times one stream", pairs.map(|(many, one)| many / one).collect());
        }
    }
}
