//! Benchmark `stack-veth`: what a server on Bywash gets out of a CPU-second, beside the same server on the kernel's
//! sockets, with a client of Linux's at the other end of a veth.
//!
//! On a veth either end's packets are worked on by whoever sends them, so no program's own time says what a server costs.
//! It is the whole machine's busy time that counts. Where others use the machine, that is their time, too: therefore what
//! the server, the client and the kernel's own threads took stands beside it.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use super::pairs::Spread;
use super::record::Record;
use super::{Options, ours};
use crate::project::{Problem, about};
use crate::tools;

/// What is run in a namespace of its own.
const SCENE: &str = include_str!("stack_veth/scene.sh");

/// The servers as the scene knows them. Ratios are to the second one.
const SERVERS: [&str; 3] = ["bywash", "kernel", "nginx"];

/// Below this part of what the kernel's server does a profile is taken.
const LOSS: f64 = 0.8;

/// How often a run is begun. On a busy machine a client may not have connected when its time is over.
const TRIES: u32 = 3;

/// What a client does.
struct Case {
    /// As the scene knows it.
    name: &'static str,
    title: &'static str,
    /// What is counted, and how many of it make one of the unit.
    unit: (&'static str, f64),
    done: fn(&str) -> Option<f64>,
}

const CASES: [Case; 4] = [
    Case {
        name: "requests",
        title: "Requests over 16 connections that stay open (wrk), 64 bytes each",
        unit: ("requests", 1.0),
        done: |output| before(output, " requests in "),
    },
    Case {
        name: "connections",
        title: "Connections, 16 at once, each for one request of 64 bytes (ab)",
        unit: ("connections", 1.0),
        done: |output| behind(output, "Complete requests:"),
    },
    Case {
        name: "receive",
        title: "Bulk to the server, one connection (dd)",
        unit: ("Gbit", 1.25e8),
        done: |output| before(output, " bytes ("),
    },
    Case {
        name: "send",
        title: "Bulk from the server, one connection (dd)",
        unit: ("Gbit", 1.25e8),
        done: |output| before(output, " bytes ("),
    },
];

/// What one run has shown.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Shown {
    /// What the client got done, in the case's unit.
    done: f64,
    /// Seconds in which a core of the machine was busy.
    machine: f64,
    /// Of them those of the server, the client and the kernel's threads for what is left over.
    own: f64,
}

pub(super) fn run(record: &mut Record, options: &Options) -> Result<String, Problem> {
    let binary = ours::build(record)?;
    let mut text = format!(
        "An MTU of 1500, no offloads at either end, CUBIC; clients on core 0, servers on core 1. {} runs of {} s each, the servers in \
         turn. The machine's CPU-seconds are those in which a core was busy with anything; \"programs\" are those of the server, the \
         client and ksoftirqd alone. nginx sends a file that is one hole, by sendfile, and reads a body that it has no use \
         for. Ratios are to the kernel's server, round by round: median, lowest and highest.\n",
        options.pairs, options.seconds
    );
    for case in &CASES {
        let mut shown = [const { Vec::new() }; SERVERS.len()];
        for round in 0..options.pairs as usize {
            for i in 0..SERVERS.len() {
                let at = (i + round) % SERVERS.len();
                shown[at].push(measure(record, options, &binary, (case, SERVERS[at]), None)?.0);
            }
        }
        text += &table(case, &shown);
        if ratio(&shown[0], &shown[1], |shown| shown.machine).median < LOSS {
            text += &profiles(record, options, &binary, case)?;
        }
    }
    Ok(text)
}

/// One run, and all it printed.
fn measure(
    record: &mut Record,
    options: &Options,
    binary: &Path,
    (case, server): (&Case, &str),
    profile: Option<&Path>,
) -> Result<(Shown, String), Problem> {
    let mut command = Command::new("unshare");
    command.args(["--net", "--mount", "--pid", "--fork", "--kill-child", "sh", "-c", SCENE, "sh"]);
    command.args([server, case.name]).arg(options.seconds.to_string()).arg(binary);
    command.args(profile).envs(tools::environment());
    let mut output = String::new();
    for _ in 0..TRIES {
        output = record.run(&mut command, Duration::from_secs(u64::from(options.seconds) + 60))?;
        if let Some(shown) = read(&output, case) {
            return Ok((shown, output));
        }
        record.note("again: the client got nothing done, or wrong answers")?;
    }
    Err(Problem(format!("{}, {server}: it has shown nothing:\n{output}", case.name)))
}

/// The largest costs with each of the two servers.
fn profiles(record: &mut Record, options: &Options, binary: &Path, case: &Case) -> Result<String, Problem> {
    let file = std::env::temp_dir().join(format!("bywash-bench-{}.perf", std::process::id()));
    let mut text =
        String::from("\nThe three largest costs, of the time of the server, the client and ksoftirqd:\n\n");
    for server in &SERVERS[..2] {
        let measured = measure(record, options, binary, (case, server), Some(&file));
        // Left behind by perf for each time it writes the file anew.
        for file in [file.clone(), file.with_extension("perf.old")] {
            if file.exists() {
                fs::remove_file(&file).map_err(about(file.display()))?;
            }
        }
        let costs = costs(&measured?.1).join("; ");
        text += &format!("- {server}: {costs}\n");
    }
    Ok(text)
}

/// The three largest lines of perf's report.
fn costs(output: &str) -> Vec<String> {
    let lines = output.lines().filter_map(|line| {
        let (share, rest) = line.trim().split_once("%  ")?;
        share.parse::<f64>().ok()?;
        Some(format!("{share} % {}", rest.split_whitespace().collect::<Vec<_>>().join(" ")))
    });
    lines.take(3).collect()
}

fn table(case: &Case, shown: &[Vec<Shown>; SERVERS.len()]) -> String {
    let (unit, _) = case.unit;
    let mut text = format!(
        "\n## {}\n\n| server | {unit} per CPU-second | ratio | {unit} per CPU-second, programs | ratio | programs' part of the time |\n\
         |---|---:|---:|---:|---:|---:|\n",
        case.title
    );
    for (server, all) in SERVERS.iter().zip(shown) {
        let rate = |time: fn(&Shown) -> f64| {
            Spread::of(&all.iter().map(|one| one.done / time(one)).collect::<Vec<_>>()).median
        };
        let part = Spread::of(&all.iter().map(|one| one.own / one.machine).collect::<Vec<_>>()).median;
        let (machine, own) = (rate(|one| one.machine), rate(|one| one.own));
        let [of_machine, of_own] = [|one: &Shown| one.machine, |one: &Shown| one.own].map(|time| {
            let Spread { median, min, max } = ratio(all, &shown[1], time);
            format!("{median:.2} ({min:.2} to {max:.2})")
        });
        text += &format!(
            "| {server} | {} | {of_machine} | {} | {of_own} | {part:.2} |\n",
            figure(machine),
            figure(own)
        );
    }
    text
}

/// With three digits at least.
fn figure(value: f64) -> String {
    if value < 100.0 { format!("{value:.2}") } else { format!("{value:.0}") }
}

/// What is done in a second of some time, over what another server does, round by round.
fn ratio(ours: &[Shown], theirs: &[Shown], time: fn(&Shown) -> f64) -> Spread {
    let rate = |shown: &Shown| shown.done / time(shown);
    Spread::of(&ours.iter().zip(theirs).map(|(a, b)| rate(a) / rate(b)).collect::<Vec<_>>())
}

/// What the scene has printed. An answer that was wrong makes it nothing.
fn read(output: &str, case: &Case) -> Option<Shown> {
    let wrong = ["Socket errors", "Non-2xx"].iter().any(|word| output.contains(word));
    if wrong || behind(output, "Failed requests:").is_some_and(|failed| failed > 0.0) {
        return None;
    }
    let mut spent = output.lines().filter_map(|line| {
        let numbers: Vec<f64> =
            line.strip_prefix("spent ")?.split(' ').map_while(|word| word.parse().ok()).collect();
        <[f64; 3]>::try_from(numbers).ok()
    });
    let (start, end) = (spent.next()?, spent.next()?);
    let [machine, server, threads] = [0, 1, 2].map(|i| (end[i] - start[i]) / 100.0);
    let times = output.split_once("the client's:\n")?.1.lines().nth(1)?;
    let client: f64 = times.split_whitespace().filter_map(seconds).sum();
    let done = (case.done)(output)? / case.unit.1;
    Some(Shown { done, machine, own: server + threads + client })
}

/// `0m1.5s`, as the shell's `times` prints it.
fn seconds(text: &str) -> Option<f64> {
    let (minutes, seconds) = text.strip_suffix('s')?.split_once('m')?;
    Some(minutes.parse::<f64>().ok()? * 60.0 + seconds.parse::<f64>().ok()?)
}

/// The number at the beginning of the line with these words.
fn before(output: &str, words: &str) -> Option<f64> {
    let line = output.lines().find(|line| line.contains(words))?;
    line.split_whitespace().next()?.parse().ok()
}

/// The number behind these words at the beginning of a line.
fn behind(output: &str, words: &str) -> Option<f64> {
    let rest = output.lines().find_map(|line| line.trim_start().strip_prefix(words))?;
    rest.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOLD: &str = "spent 1000 20 5\n  123456 requests in 3.00s, 25.43MB read\nthe client's:\n0m0.01s 0m0.00s\n\
                        0m1.50s 1m0.25s\nspent 1600 270 5\n";

    #[test]
    fn what_a_run_prints_is_read() {
        let shown = read(TOLD, &CASES[0]).unwrap();
        assert_eq!(shown, Shown { done: 123_456.0, machine: 6.0, own: 2.5 + 61.75 });
        assert_eq!(read(&TOLD.replace("requests in", "requests"), &CASES[0]), None);
        let wrong = format!("{TOLD}  Non-2xx or 3xx responses: 7\n");
        assert_eq!(read(&wrong, &CASES[0]), None);
        let ab = "Complete requests:      5000\nFailed requests:        0\n";
        assert_eq!(read(&(ab.to_owned() + TOLD), &CASES[1]).map(|shown| shown.done), Some(5000.0));
        assert_eq!(read(&(ab.replace(" 0\n", " 1\n") + TOLD), &CASES[1]), None);
        let dd = "2500000000 bytes (2.5 GB, 2.3 GiB) copied, 2.9 s, 862 MB/s\n";
        assert_eq!(read(&(dd.to_owned() + TOLD), &CASES[2]).map(|shown| shown.done), Some(20.0));
    }

    #[test]
    fn a_loss_is_told_by_its_largest_costs() {
        let output = "spent 1 2 3\n     9.10%  engine 0   [.] copy   \n     7.00%  dd  [k] a\n     6.00%  dd  [k] b\n\
                      \u{20}    5.00%  dd  [k] c\n";
        assert_eq!(costs(output), ["9.10 % engine 0 [.] copy", "7.00 % dd [k] a", "6.00 % dd [k] b"]);
    }

    #[test]
    fn ratios_are_of_rounds() {
        let shown = |done| Shown { done, machine: 2.0, own: 1.0 };
        let spread = ratio(&[shown(4.0), shown(9.0)], &[shown(2.0), shown(3.0)], |shown| shown.machine);
        assert_eq!((spread.min, spread.max), (2.0, 3.0));
    }
}
