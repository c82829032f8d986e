//! Two stacks joined in memory on one core, both ends' cost counted, beside smoltcp on the same kind of wire.
//!
//! `cargo bench -p bywash-stack`: ten alternating pairs of half a second each; median and spread. Every byte is copied
//! in and copied out in both, unless a line says "in place".
#![forbid(unsafe_code)]
#![expect(
    clippy::print_stdout,
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a program that measures and prints"
)]

mod ours;
mod smol;

use std::time::Duration;

/// How long one measurement lasts.
const EACH: Duration = Duration::from_millis(500);
const PAIRS: usize = 10;

fn median(mut values: Vec<f64>) -> (f64, f64, f64) {
    values.sort_by(f64::total_cmp);
    (values[values.len() / 2], values[0], values[values.len() - 1])
}

fn line(name: &str, unit: &str, values: Vec<f64>) -> f64 {
    let (middle, least, most) = median(values);
    println!("{name:44} {middle:9.3} {unit:8} ({least:.3} to {most:.3})");
    middle
}

fn main() {
    // `cargo test --benches` only wants to know that it runs.
    if std::env::args().any(|argument| argument == "--test") {
        let each = Duration::from_millis(5);
        assert!(ours::bulk(each, &ours::Bulk::default()) > 0.0 && smol::bulk(each) > 0.0);
        return;
    }
    // A word on the command line measures only what has it in its name, once: for a profiler.
    if let Some(word) = std::env::args().skip(1).find(|argument| !argument.starts_with('-')) {
        let value = match word.as_str() {
            "exchanges" => ours::exchanges(EACH),
            "connections" => ours::connections(EACH),
            _ => ours::bulk(EACH, &ours::Bulk::default()),
        };
        return println!("{word} {value:.3}");
    }
    let kinds = [
        ("copied", ours::Bulk::default()),
        ("in place", ours::Bulk { in_place: true, ..ours::Bulk::default() }),
        ("copied, 64 streams", ours::Bulk { streams: 64, ..ours::Bulk::default() }),
        (
            "in place, super-segments, checksums left out",
            ours::Bulk { in_place: true, offload: true, ..ours::Bulk::default() },
        ),
    ];
    let mut peer = Vec::new();
    let mut own = vec![Vec::new(); kinds.len()];
    for _ in 0..PAIRS {
        peer.push(smol::bulk(EACH));
        for ((_, kind), values) in kinds.iter().zip(&mut own) {
            values.push(ours::bulk(EACH, kind));
        }
    }
    let base = line("smoltcp, bulk, copied", "Gbit/s", peer);
    for ((name, _), values) in kinds.iter().zip(own) {
        let middle = line(&format!("bywash, bulk, {name}"), "Gbit/s", values);
        println!("{:44} {:9.2} times smoltcp", "", middle / base);
    }
    line(
        "64-byte exchanges over 1000 connections",
        "M/s",
        (0..PAIRS).map(|_| ours::exchanges(EACH)).collect(),
    );
    line("connections opened, used, closed", "M/s", (0..PAIRS).map(|_| ours::connections(EACH)).collect());
}
