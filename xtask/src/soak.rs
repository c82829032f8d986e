//! `cargo xtask soak`: the long runs of TCP, thousands of connections by chance, and what they came to.
//!
//! The runs are tests that are ignored otherwise; this builds them for speed, says which seeds, and keeps what they print.

use std::process::ExitCode;
use std::time::Duration;

use clap::Args;

use crate::bench::Record;
use crate::process;
use crate::project::{self, Problem};
use crate::test::{Reader, Skips};

/// What `cargo xtask soak` is told.
#[derive(Args)]
pub(crate) struct Options {
    /// Whom the stack speaks with
    #[arg(value_name = "PEER", value_parser = PEERS.map(|peer| peer.name))]
    peer: String,
    /// How many seeds, or which: FROM..TO
    #[arg(long, default_value = "10000", value_name = "N", value_parser = seeds)]
    seeds: String,
    /// Name of the machine in the results' folder, instead of the host's
    #[arg(long, value_name = "NAME")]
    label: Option<String>,
}

struct Peer {
    name: &'static str,
    /// The figures' name.
    record: &'static str,
    target: &'static str,
    test: &'static str,
    sentence: &'static str,
    root: bool,
}

/// To add a run is to add a row.
const PEERS: [Peer; 4] = [
    Peer {
        name: "kernel",
        record: "soak-kernel",
        target: "differential",
        test: "ten_thousand_seeds_with_the_kernel",
        sentence: "Streams between the stack and Linux's TCP, over xdp:, tap: and packet:, under each fault alone and several together.",
        root: true,
    },
    Peer {
        name: "smoltcp",
        record: "soak-smoltcp",
        target: "hosts",
        test: "smol::ten_thousand_seeds_with_smoltcp",
        sentence: "Streams between the stack and smoltcp, in memory, with faults by chance.",
        root: false,
    },
    Peer {
        name: "itself",
        record: "soak-itself",
        target: "hosts",
        test: "streams::ten_thousand_seeds_of_each_fault",
        sentence: "Streams between two stacks, in memory, with faults by chance.",
        root: false,
    },
    Peer {
        name: "programs",
        record: "soak-programs",
        target: "hosts",
        test: "programs::programs_of_ten_thousand_seeds",
        sentence: "Programs by chance on two stacks, in memory, with faults by chance.",
        root: false,
    },
];

/// Most connections need a tenth of a second.
const LIMIT: Duration = Duration::from_secs(6 * 3600);

/// How many seeds, or which: at least one.
fn seeds(text: &str) -> Result<String, String> {
    let (from, to) = text.split_once("..").unwrap_or(("0", text));
    let number = |text: &str| text.parse::<u64>().map_err(|_| format!("`{text}` is no number"));
    if number(from)? < number(to)? { Ok(text.to_owned()) } else { Err("that is no seed at all".into()) }
}

/// Why a run says nothing about the stack, whatever it ended with.
fn emptiness(output: &str, skips: &[String]) -> Option<String> {
    if let Some(skip) = skips.first() {
        return Some(format!("the test was skipped: {skip}"));
    }
    let mut reader = Reader::default();
    output.lines().for_each(|line| drop(reader.line(line)));
    match reader.counts.passed + reader.counts.failed {
        0 => Some("no test came to its end".into()),
        _ => output
            .lines()
            .any(|line| line.starts_with("0 connections, "))
            .then(|| "no connection was made".into()),
    }
}

/// Runs it; the code is 1 when a seed failed.
///
/// # Errors
/// When it cannot be started, when it has tested nothing, or its figures cannot be written.
pub(crate) fn run(options: &Options) -> Result<ExitCode, Problem> {
    let found = PEERS.iter().find(|peer| peer.name == options.peer);
    let peer = found.ok_or_else(|| Problem(format!("there is no peer `{}`", options.peer)))?;
    if peer.root && !project::is_root() {
        return Err(Problem(format!("`{}` makes network namespaces: run it as root", peer.name)));
    }
    let mut record = Record::new(peer.record, options.label.as_deref())?;
    let mut command = project::cargo();
    command.args(["test", "--release", "--locked", "--package", "bywash-stack", "--test", peer.target]);
    command
        .args(["--", "--ignored", "--exact", "--nocapture", peer.test])
        .env("BYWASH_SEEDS", &options.seeds);
    let skips = Skips::new()?;
    skips.tell(&mut command);
    let done = process::run(&mut command, LIMIT, |line| println!("{line}"))?;
    let typed = process::typed(&command);
    record.note(&format!("$ BYWASH_SEEDS={} {typed}\n{}[{}]", options.seeds, done.output, done.ending()))?;
    if let Some(why) = emptiness(&done.output, &skips.take()) {
        return Err(Problem(format!("nothing was tested: {why}")));
    }
    let told = |line: &&str| line.starts_with("test result:") || line.contains(" connections, ");
    let lines: Vec<&str> = done.output.lines().filter(told).collect();
    record.finish(peer.sentence, &format!("Seeds {}.\n\n    {}\n", options.seeds, lines.join("\n    ")))?;
    Ok(ExitCode::from(u8::from(!done.success())))
}

#[cfg(test)]
mod tests {
    use super::*;

    const END: &str = "; 0 ignored; 0 measured; 314 filtered out; finished in 0.00s\n";

    #[test]
    fn a_run_that_tested_nothing_is_none() {
        let passed = format!("70000 connections, 2 of them\ntest result: ok. 1 passed; 0 failed{END}");
        assert_eq!(emptiness(&passed, &[]), None);
        assert_eq!(emptiness(&format!("test result: FAILED. 0 passed; 1 failed{END}"), &[]), None);
        let skips = ["ten_thousand_seeds: not root".to_owned()];
        assert_eq!(emptiness(&passed, &skips).unwrap(), "the test was skipped: ten_thousand_seeds: not root");
        let none = format!("test result: ok. 0 passed; 0 failed{END}");
        assert_eq!(emptiness(&none, &[]).unwrap(), "no test came to its end");
        let empty = passed.replace("70000", "0");
        assert_eq!(emptiness(&empty, &[]).unwrap(), "no connection was made");
    }

    #[test]
    fn seeds_are_at_least_one() {
        for good in ["1", "10000", "17..18"] {
            assert_eq!(seeds(good).as_deref(), Ok(good));
        }
        for bad in ["0", "50..10", "5..5", "many", "1..", "1..x"] {
            assert!(seeds(bad).is_err(), "{bad}");
        }
    }
}
