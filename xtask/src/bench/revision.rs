//! Benchmark `revision`: what the stack does in a second beside what it did at another revision of the project, in turn. So it is seen,
//! on a machine whose speed changes by itself, whether a change has made it slower, and whether what another machine measured still
//! holds.

use std::cell::RefCell;
use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use super::pairs::pairs;
use super::record::Record;
use super::{Options, ours, tcp_core};
use crate::process;
use crate::project::{self, Problem, about};

/// Cases of the bench target `core` by name, with rounds for a quarter of a second or a little more: the start is to count for
/// little, and the machine to be as fast for both of a pair.
const CASES: [(&str, u32); 4] = [
    ("bulk, copied", 20_000),
    ("bulk, in place", 30_000),
    ("64-byte exchanges over 1000 connections", 10_000),
    ("connections opened, used, closed", 8_000),
];
/// Its cases are numbered, otherwise at each revision, and no more than these.
const NUMBERS: u32 = 16;

/// Packets of 64 bytes that the bench target `forward` passes on, and routes: so many of them take no time to be entered.
const PACKETS: u32 = 10_000_000;
const ROUTES: &str = "10000";

/// How long one run may take.
const LIMIT: Duration = Duration::from_secs(120);

/// The bench targets of one revision.
struct Programs {
    core: PathBuf,
    forward: PathBuf,
}

/// A program that does something so often.
struct Run {
    command: Command,
    /// How much, by what it printed: bytes, exchanges, connections, packets.
    amount: fn(&str) -> Option<f64>,
}

/// A table for each case.
pub(super) fn run(record: &mut Record, options: &Options) -> Result<String, Problem> {
    let revision = options.against.as_deref();
    let revision =
        revision.ok_or_else(|| Problem("with which revision to compare is missing: --against REV".into()))?;
    let (commit, folder) = check_out(record, revision)?;
    let cargo = || {
        let mut command = project::cargo();
        // Of its own: cargo takes packages of one name below two folders for the same, and what was built of one for the other's.
        command.current_dir(&folder).env("CARGO_TARGET_DIR", folder.join("target"));
        command
    };
    let before = Programs::build(record, cargo)?;
    let now = Programs::build(record, project::cargo)?;
    let mut text = format!(
        "The working tree, \"now\", beside {commit}, \"before\". A ratio above 1: it is faster now. Each figure has a program's start in \
         it, and is only worth comparing with the one beside it.\n"
    );
    let mut table = |name: &str, [mut now, mut before]: [Run; 2]| {
        let record = RefCell::new(&mut *record);
        let rate = |run: &mut Run| {
            let start = Instant::now();
            let output = record.borrow_mut().run(&mut run.command, LIMIT)?;
            let seconds = start.elapsed().as_secs_f64();
            let amount =
                (run.amount)(&output).ok_or_else(|| Problem(format!("how much was done? {output}")))?;
            Ok(amount * 1e-6 / seconds)
        };
        let measured = pairs(options.pairs, || rate(&mut now), || rate(&mut before))?;
        text += &format!("\n## {name}\n\n{}", measured.tables(["now", "before"], "M/s"));
        Ok::<_, Problem>(())
    };
    for (name, rounds) in CASES {
        table(name, [now.case(name, rounds)?, before.case(name, rounds)?])?;
    }
    table("IPv4 forwarded, 10 000 routes, 64 bytes", [now.forwarding(), before.forwarding()])?;
    Ok(text)
}

/// Its commit, and the folder below the target folder in which its files are now.
fn check_out(record: &mut Record, revision: &str) -> Result<(String, PathBuf), Problem> {
    let limit = Duration::from_secs(60);
    let git = |arguments: &[&str]| {
        let mut command = Command::new("git");
        command.current_dir(project::root()).args(arguments);
        command
    };
    let name = format!("{revision}^{{commit}}");
    let commit = record.run(&mut git(&["rev-parse", "--verify", "--end-of-options", &name]), limit)?;
    let commit = commit.trim().to_owned();
    let all = project::target().join("revisions");
    let (folder, archive) = (all.join(&commit), all.join(format!("{commit}.tar")));
    fs::create_dir_all(&folder).map_err(about(folder.display()))?;
    record.run(git(&["archive", "--output"]).arg(&archive).arg(&commit), limit)?;
    record.run(Command::new("tar").arg("-xf").arg(&archive).arg("-C").arg(&folder), limit)?;
    fs::remove_file(&archive).map_err(about(archive.display()))?;
    Ok((commit, folder))
}

impl Programs {
    fn build(record: &mut Record, cargo: impl Fn() -> Command) -> Result<Self, Problem> {
        let mut build = |target| ours::build_bench_by(cargo(), record, "bywash-stack", target);
        Ok(Self { core: build("core")?, forward: build("forward")? })
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

    fn forwarding(&self) -> Run {
        let mut command = Command::new(&self.forward);
        command.args(["forward", "4", &PACKETS.to_string(), ROUTES, "64"]);
        Run { command, amount: |_| Some(f64::from(PACKETS)) }
    }
}
