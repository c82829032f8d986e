//! `cargo xtask fuzz`: input by chance, guided by what it reaches, for everything that reads what others wrote.
//!
//! The targets are programs of the crate in `fuzz/`, with LLVM's libFuzzer linked in. What that needs of the compiler is
//! part of the stable one, under a switch, so there is nothing to install but a C++ compiler for libFuzzer itself. A
//! target that falls leaves its input below `target/fuzz/`; the figures of a run are kept like a benchmark's.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use clap::Args;

use crate::bench::Record;
use crate::project::{self, Problem, about};
use crate::{process, tools};

/// What `cargo xtask fuzz` is told.
#[derive(Args)]
pub(crate) struct Options {
    /// Which targets; all of them when left out
    #[arg(value_name = "TARGET", value_parser = TARGETS.map(|target| target.name))]
    targets: Vec<String>,
    /// How long each target runs
    #[arg(long, default_value_t = 600, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    seconds: u32,
    /// How many targets run at a time
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=64))]
    jobs: u8,
    /// First fetch the crates it needs
    #[arg(long)]
    install: bool,
    /// Name of the machine in the results' folder, instead of the host's
    #[arg(long, value_name = "NAME")]
    label: Option<String>,
}

/// What a target eats.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Food {
    /// A line of text.
    Expressions,
    /// Packets as they are.
    Packets,
    /// Capture files.
    Captures,
    /// What nothing else makes.
    Own,
}

struct Target {
    name: &'static str,
    /// What must stand.
    reads: &'static str,
    food: Food,
    /// Longest input, in bytes.
    longest: u32,
}

/// To add a target is to add a row, and a program to fuzz/Cargo.toml.
const TARGETS: [Target; 6] = [
    Target { name: "wire", reads: "packet headers", food: Food::Packets, longest: 2048 },
    Target { name: "expression", reads: "filter expressions", food: Food::Expressions, longest: 512 },
    Target { name: "matcher", reads: "packets, by filter expressions", food: Food::Packets, longest: 2048 },
    Target { name: "pcap", reads: "capture files", food: Food::Captures, longest: 65_536 },
    Target { name: "rewrite", reads: "packets, to be changed by replay", food: Food::Packets, longest: 2048 },
    Target { name: "stack", reads: "packets, as a TCP/IP host", food: Food::Own, longest: 16_384 },
];

/// As cargo-fuzz does it: counters at each edge, a table of places, comparisons with their operands, and the address
/// sanitizer.
const FLAGS: &str = "--cfg fuzzing -Zsanitizer=address -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
                     -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
                     -Cllvm-args=-sanitizer-coverage-trace-compares";

/// The environment variable that names a folder of capture files to begin with.
const CAPTURES: &str = "BYWASH_CAPTURES";

/// How one target did.
struct Outcome {
    /// How long it ran: less than it was to, where it fell.
    took: Duration,
    executions: u64,
    edges: u64,
    features: u64,
    inputs: u64,
    /// Whether an input made it fall.
    crash: bool,
    /// Its command line and what it said.
    said: String,
}

/// Runs the targets; the code is 1 when one of them fell.
///
/// # Errors
/// When they cannot be built or started.
pub(crate) fn run(options: &Options) -> Result<ExitCode, Problem> {
    if tools::on_path("c++").is_none() {
        return Err(Problem(
            "libFuzzer is built by a C++ compiler and there is no `c++`: install g++ or clang".into(),
        ));
    }
    if options.install {
        finish(cargo(&["fetch", "--locked"]), Duration::from_secs(600))?;
    }
    let triple = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
    let mut build = cargo(&["build", "--release", "--locked", "--bins", "--target", &triple]);
    build.arg("--target-dir").arg(folder()).envs([("RUSTC_BOOTSTRAP", "1"), ("RUSTFLAGS", FLAGS)]);
    println!("building the targets");
    finish(build, Duration::from_secs(1800))?;
    let programs = folder().join(&triple).join("release");
    let mut record = Record::new("fuzz", options.label.as_deref())?;
    let mut table =
        String::from("| target | reads | s | executions | per s | edges | features | inputs | crashes |\n");
    table.push_str("|---|---|---|---|---|---|---|---|---|\n");
    let mut crashed = false;
    for (target, outcome) in run_targets(options, &programs)? {
        let Outcome { took, executions, edges, features, inputs, crash, said } = &outcome;
        record.note(said)?;
        let crashes = if *crash { "1" } else { "none" };
        let (seconds, per_second) = rate(*took, options.seconds, *executions);
        table.push_str(&format!(
            "| {} | {} | {} | {executions} | {per_second} | {edges} | {features} | {inputs} | {crashes} |\n",
            target.name, target.reads, seconds
        ));
        if *crash {
            println!("{said}");
            crashed = true;
        }
    }
    record.finish(
        "Input by chance for everything that reads what others wrote (`cargo xtask fuzz`).",
        &table,
    )?;
    Ok(ExitCode::from(u8::from(crashed)))
}

/// Runs the targets that are asked for, so many at a time, and returns how they did, in the table's order.
fn run_targets(options: &Options, programs: &Path) -> Result<Vec<(&'static Target, Outcome)>, Problem> {
    let is_asked_for = |target: &&Target| {
        options.targets.is_empty() || options.targets.iter().any(|name| name == target.name)
    };
    let asked: Vec<&'static Target> = TARGETS.iter().filter(is_asked_for).collect();
    let waiting = Mutex::new(asked.iter());
    let next = || waiting.lock().unwrap_or_else(PoisonError::into_inner).next().copied();
    let work = || {
        let mut done = Vec::new();
        while let Some(target) = next() {
            println!("{}: {} s", target.name, options.seconds);
            let outcome =
                seeds(target, programs).and_then(|seeds| fuzz(target, programs, &seeds, options.seconds))?;
            done.push((target, outcome));
        }
        Ok(done)
    };
    let done: Vec<Result<Vec<_>, Problem>> = thread::scope(|scope| {
        let workers: Vec<_> = (0..options.jobs).map(|_| scope.spawn(work)).collect();
        let lost = |_| Err(Problem("a thread that runs targets has panicked".into()));
        workers.into_iter().map(|worker| worker.join().unwrap_or_else(lost)).collect()
    });
    let mut outcomes = Vec::new();
    for done in done {
        outcomes.extend(done?);
    }
    outcomes.sort_by_key(|(target, _)| TARGETS.iter().position(|other| other.name == target.name));
    Ok(outcomes)
}

/// Where everything is that this makes.
fn folder() -> PathBuf {
    project::target().join("fuzz")
}

fn cargo(arguments: &[&str]) -> Command {
    let mut command = project::cargo();
    command.args(arguments).arg("--manifest-path").arg(project::root().join("fuzz/Cargo.toml"));
    command
}

fn finish(mut command: Command, limit: Duration) -> Result<(), Problem> {
    let done = process::run(&mut command, limit, |_| {})?;
    if done.success() { Ok(()) } else { Err(Problem(format!("{}{}", done.output, done.ending()))) }
}

/// The folders that a target begins with, the first one its own, which it fills.
fn seeds(target: &Target, programs: &Path) -> Result<Vec<PathBuf>, Problem> {
    let make = |path: PathBuf| fs::create_dir_all(&path).map_err(about(path.display())).map(|()| path);
    let ours = project::root().join("fuzz/seeds");
    let captures = std::env::var_os(CAPTURES).map(PathBuf::from);
    let mut folders = vec![make(folder().join("corpus").join(target.name))?];
    match target.food {
        Food::Expressions => {
            let lines = make(folder().join("expressions"))?;
            let file = ours.join("expressions.txt");
            let text = fs::read_to_string(&file).map_err(about(file.display()))?;
            for (number, line) in text.lines().enumerate() {
                let path = lines.join(number.to_string());
                fs::write(&path, line).map_err(about(path.display()))?;
            }
            folders.push(lines);
        }
        Food::Packets => {
            folders.push(ours.join("packets"));
            if let Some(captures) = captures {
                let packets = make(folder().join("packets"))?;
                let mut extract = Command::new(programs.join("packets"));
                extract.arg(captures).arg(&packets);
                finish(extract, Duration::from_secs(120))?;
                folders.push(packets);
            }
        }
        Food::Captures => {
            folders.push(ours.join("pcap"));
            folders.extend(captures);
        }
        Food::Own => folders.push(ours.join(target.name)),
    }
    Ok(folders)
}

fn fuzz(target: &Target, programs: &Path, seeds: &[PathBuf], seconds: u32) -> Result<Outcome, Problem> {
    let artifacts = folder().join("artifacts").join(target.name);
    fs::create_dir_all(&artifacts).map_err(about(artifacts.display()))?;
    let mut command = Command::new(programs.join(target.name));
    command.args(seeds);
    command.arg(format!("-max_total_time={seconds}")).arg(format!("-max_len={}", target.longest));
    command.arg(format!("-artifact_prefix={}/", artifacts.display()));
    command.args(["-print_final_stats=1", "-timeout=10", "-rss_limit_mb=2048", "-use_value_profile=1"]);
    if target.food == Food::Expressions {
        command.arg(format!("-dict={}", project::root().join("fuzz/expression.dict").display()));
    }
    // The first inputs are not counted in the time.
    let limit = Duration::from_secs(u64::from(seconds) + 300);
    let start = Instant::now();
    let done = process::run(&mut command, limit, |_| {})?;
    let took = start.elapsed();
    // Thousands of lines say that an input was new.
    let kept: String =
        done.output.lines().filter(|line| !is_chatter(line)).map(|line| format!("{line}\n")).collect();
    let said = format!("$ {}\n{kept}[{}]", process::typed(&command), done.ending());
    let [edges, features, inputs] = ["cov: ", "ft: ", "corp: "].map(|name| last(&done.output, name));
    Ok(Outcome {
        took,
        executions: last(&done.output, "stat::number_of_executed_units: "),
        edges,
        features,
        inputs,
        crash: !done.success(),
        said,
    })
}

/// Whole seconds that a target was given inputs, at most those it was to be, and how many each of them had.
fn rate(took: Duration, most: u32, executions: u64) -> (u64, u64) {
    // The first inputs are not counted in the time.
    let seconds = took.as_secs().min(most.into());
    (seconds, executions / seconds.max(1))
}

fn is_chatter(line: &str) -> bool {
    line.starts_with('#') && ["NEW", "REDUCE", "RELOAD", "pulse"].iter().any(|word| line.contains(word))
}

/// The number behind the last `name`.
fn last(output: &str, name: &str) -> u64 {
    let digits = |rest: &str| rest.trim_start().split(|c: char| !c.is_ascii_digit()).next()?.parse().ok();
    output.rsplit_once(name).and_then(|(_, rest)| digits(rest)).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_target_is_a_program_with_something_to_begin_with() {
        let manifest = fs::read_to_string(project::root().join("fuzz/Cargo.toml")).unwrap();
        for target in &TARGETS {
            assert!(manifest.contains(&format!("path = \"targets/{}.rs\"", target.name)), "{}", target.name);
            let seeds = match target.food {
                Food::Expressions => "expressions.txt",
                Food::Packets => "packets",
                Food::Captures => "pcap",
                Food::Own => target.name,
            };
            assert!(project::root().join("fuzz/seeds").join(seeds).exists(), "{seeds}");
        }
        assert_eq!(manifest.matches("path = \"targets/").count(), TARGETS.len());
    }

    #[test]
    fn figures_are_read_from_the_last_line_that_has_them() {
        let output = "#2\tINITED cov: 12 ft: 13 corp: 1/1b exec/s: 0 rss: 40Mb\n\
                      #999\tDONE   cov: 120 ft: 1300 corp: 10/90b lim: 4 exec/s: 0 rss: 41Mb\n\
                      stat::number_of_executed_units: 999\nstat::average_exec_per_sec:     333\n";
        assert_eq!(last(output, "cov: "), 120);
        assert_eq!(last(output, "corp: "), 10);
        assert_eq!(last(output, "stat::number_of_executed_units: "), 999);
        assert_eq!(last(output, "nothing: "), 0);
    }

    #[test]
    fn a_target_that_falls_early_has_run_for_less() {
        assert_eq!(rate(Duration::from_millis(4900), 600, 8000), (4, 2000));
        assert_eq!(rate(Duration::from_millis(20), 600, 8000), (0, 8000));
        assert_eq!(rate(Duration::from_secs(640), 600, 6000), (600, 10));
    }

    #[test]
    fn what_goes_wrong_is_not_chatter() {
        assert!(is_chatter("#2048\tpulse  cov: 1 ft: 1"));
        assert!(!is_chatter("thread '<unnamed>' panicked at crates/x.rs: NEW"));
    }
}
