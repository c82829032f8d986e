//! The stack's bench targets as two builds of them, in turn: what one does in a second beside the other.

use std::cell::RefCell;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use super::pairs::pairs;
use super::record::Record;
use super::{ours, tcp_core};
use crate::process;
use crate::project::Problem;

/// A case of the bench target `core`.
struct Case {
    name: &'static str,
    /// Rounds for a quarter of a second or a little more: the start is to count for little, and the machine to be as fast for both
    /// of a pair.
    rounds: u32,
    /// Rounds for a profile. Bulk's are few: its bytes are summed in loops, which would be all that the compiler sees.
    seen: u32,
}

const CASES: [Case; 4] = [
    Case { name: "bulk, copied", rounds: 20_000, seen: 300 },
    Case { name: "bulk, in place", rounds: 30_000, seen: 300 },
    Case { name: "64-byte exchanges over 1000 connections", rounds: 10_000, seen: 5000 },
    Case { name: "connections opened, used, closed", rounds: 8_000, seen: 5000 },
];
/// Its cases are numbered, otherwise at each revision, and no more than these.
const NUMBERS: u32 = 16;

/// Packets of 64 bytes that the bench target `forward` passes on, and routes: so many of them take no time to be entered.
const PACKETS: u32 = 10_000_000;
const ROUTES: &str = "10000";

/// How long one run may take.
const LIMIT: Duration = Duration::from_secs(120);

/// The bench targets of one build.
pub(super) struct Programs {
    core: PathBuf,
    forward: PathBuf,
}

/// A program that does something so often.
struct Run {
    command: Command,
    /// How much, by what it printed: bytes, exchanges, connections, packets.
    amount: fn(&str) -> Option<f64>,
}

/// A table for each case, of `count` pairs: what the builds do in a second.
///
/// # Errors
/// When one of them lacks a case, or fails.
pub(super) fn compare(
    record: &mut Record,
    count: u32,
    names: [&str; 2],
    builds: [&Programs; 2],
) -> Result<String, Problem> {
    let mut text = String::new();
    let mut table = |name: &str, [mut first, mut second]: [Run; 2]| {
        let record = RefCell::new(&mut *record);
        let rate = |run: &mut Run| {
            let start = Instant::now();
            let amount = run.run(&mut record.borrow_mut())?;
            Ok(amount * 1e-6 / start.elapsed().as_secs_f64())
        };
        let measured = pairs(count, || rate(&mut first), || rate(&mut second))?;
        text += &format!("\n## {name}\n\n{}", measured.tables(names, "M/s"));
        Ok::<_, Problem>(())
    };
    let [first, second] = builds;
    for Case { name, rounds, .. } in CASES {
        table(name, [first.case(name, rounds)?, second.case(name, rounds)?])?;
    }
    table("IPv4 forwarded, 10 000 routes, 64 bytes", [first.forwarding(), second.forwarding()])?;
    Ok(text)
}

impl Programs {
    /// Builds them, by a cargo that is perhaps in another folder, or has flags of its own.
    ///
    /// # Errors
    /// When they do not build.
    pub(super) fn build(record: &mut Record, cargo: impl Fn() -> Command) -> Result<Self, Problem> {
        let mut build = |target| ours::build_bench_by(cargo(), record, "bywash-stack", target);
        Ok(Self { core: build("core")?, forward: build("forward")? })
    }

    /// Runs every case once, for a profile.
    ///
    /// # Errors
    /// When one is missing, or fails.
    pub(super) fn be_seen(&self, record: &mut Record) -> Result<(), Problem> {
        for Case { name, seen, .. } in CASES {
            self.case(name, seen)?.run(record)?;
        }
        self.forwarding().run(record)?;
        Ok(())
    }

    /// So many rounds of a case.
    fn case(&self, name: &str, rounds: u32) -> Result<Run, Problem> {
        let command = |number: u32, rounds: u32| {
            let mut command = Command::new(&self.core);
            command.args(["--rounds", &number.to_string(), &rounds.to_string()]);
            command
        };
        for number in 0..NUMBERS {
            let one = process::run(&mut command(number, 1), LIMIT, |_| {})?;
            if tcp_core::done(&one.output).is_some_and(|(found, ..)| found == name) {
                let amount = |output: &str| tcp_core::done(output).map(|(_, amount, _)| amount);
                return Ok(Run { command: command(number, rounds), amount });
            }
        }
        Err(Problem(format!("{} has no case `{name}`", self.core.display())))
    }

    /// Packets passed on.
    fn forwarding(&self) -> Run {
        let mut command = Command::new(&self.forward);
        command.args(["forward", "4", &PACKETS.to_string(), ROUTES, "64"]);
        Run { command, amount: |_| Some(f64::from(PACKETS)) }
    }
}

impl Run {
    /// Does it once; how much that was.
    fn run(&mut self, record: &mut Record) -> Result<f64, Problem> {
        // Where a profile goes was said when the program was built.
        let output = record.run(self.command.env_remove("LLVM_PROFILE_FILE"), LIMIT)?;
        (self.amount)(&output).ok_or_else(|| Problem(format!("how much was done? {output}")))
    }
}
