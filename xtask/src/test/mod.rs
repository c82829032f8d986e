//! `cargo xtask test`: every check and every test, one after the other, and how many passed.
//!
//! A failing step does not stop the others, so that one run shows everything. Its output is printed when it fails only.

mod end_to_end;
mod libtest;
mod steps;

use std::fs;
use std::path::PathBuf;
use std::process::{Command, ExitCode};
use std::thread::{self, JoinHandle};
use std::time::Instant;

use crate::project::{self, Problem, about};
use crate::tools::{self, PROGRAMS};
use crate::{guest, install};

pub(crate) use libtest::{Counts, Reader};

/// How a step ended.
pub(crate) enum Outcome {
    Passed,
    /// The output that shows why.
    Failed(String),
    /// Why it cannot run here.
    Skipped(String),
}

/// What was counted, over all steps: each step is a test as well.
#[derive(Default)]
pub(crate) struct Tally {
    passed: u64,
    failed: u64,
    skipped: Vec<String>,
}

impl Tally {
    /// Adds what a run of libtest counted. `skips` are the lines of tests that returned early: they count as passed
    /// for libtest, and must not for us.
    pub(crate) fn add(&mut self, counts: &Counts, skips: Vec<String>) {
        self.passed += counts.passed.saturating_sub(skips.len() as u64);
        self.failed += counts.failed;
        self.skipped.extend(skips);
        self.skipped.extend(counts.ignored.iter().cloned());
    }

    /// Prints how a step or an end-to-end command ended, and counts it.
    pub(crate) fn close(&mut self, name: &str, outcome: Outcome, start: Instant) {
        let seconds = start.elapsed().as_secs_f64();
        match outcome {
            Outcome::Passed => {
                self.passed += 1;
                println!("   passed  {name}  {seconds:.1} s");
            }
            Outcome::Failed(output) => {
                self.failed += 1;
                println!("{}\n   FAILED  {name}  {seconds:.1} s", output.trim_end());
            }
            Outcome::Skipped(reason) => {
                println!("   skipped  {name}");
                self.skipped.push(format!("{name}: {reason}"));
            }
        }
    }

    fn summary(&self) -> String {
        format!("{} passed, {} failed, {} skipped", self.passed, self.failed, self.skipped.len())
    }
}

/// The file in which tests note that they were skipped.
pub(crate) struct Skips(PathBuf);

impl Skips {
    /// One of this process's own, in the target folder, which is made.
    ///
    /// # Errors
    /// When the target folder cannot be made.
    pub(crate) fn new() -> Result<Self, Problem> {
        let target = project::target();
        fs::create_dir_all(&target).map_err(about(target.display()))?;
        Ok(Self(target.join(format!("skips-{}", std::process::id()))))
    }

    /// Tells the tests that a command runs.
    pub(crate) fn tell(&self, command: &mut Command) {
        command.env("BYWASH_SKIPS", &self.0);
    }

    /// The lines that tests have noted since the last call.
    pub(crate) fn take(&self) -> Vec<String> {
        let text = fs::read_to_string(&self.0).unwrap_or_default();
        // It is not there when no test was skipped.
        fs::remove_file(&self.0).ok();
        text.lines().map(|line| line.strip_prefix("skipped: ").unwrap_or(line).to_owned()).collect()
    }
}

/// What the steps share.
pub(crate) struct Context {
    pub(crate) tally: Tally,
    skips: Skips,
    /// The release build, beside the first steps.
    release: Option<JoinHandle<Result<Outcome, Problem>>>,
}

impl Context {
    /// Waits for the release build.
    fn release_build(&mut self) -> Result<Outcome, Problem> {
        let ended = self.release.take().and_then(|build| build.join().ok());
        ended.unwrap_or_else(|| Err(Problem("the release build broke off".into())))
    }
}

/// Runs every step; the code is 1 when something failed.
///
/// # Errors
/// When the target folder cannot be written.
pub(crate) fn run(install: bool) -> Result<ExitCode, Problem> {
    let start = Instant::now();
    let mut context = Context { tally: Tally::default(), skips: Skips::new()?, release: None };
    if install {
        println!("== install");
        let mut problems = install::programs(|program| program.by_tests);
        problems.extend(install::build_cargo_deny().err().map(|problem| problem.to_string()));
        problems.extend(guest::prepare().err().map(|problem| format!("guests: {problem}")));
        problems.iter().for_each(|problem| println!("   not installed: {problem}"));
    }
    for program in PROGRAMS.iter().filter(|program| program.by_tests && tools::find(program.name).is_none()) {
        let (name, needed_for) = (program.name, program.needed_for);
        let line = format!("{name} is missing, for {needed_for}: cargo xtask test --install");
        context.tally.skipped.push(line);
    }
    context.release = Some(thread::spawn(steps::release_build));
    for (name, step) in steps::STEPS {
        println!("== {name}");
        let start = Instant::now();
        let outcome = step(&mut context).unwrap_or_else(|problem| Outcome::Failed(problem.to_string()));
        context.tally.close(name, outcome, start);
    }
    println!("== all steps: {:.0} s", start.elapsed().as_secs_f64());
    context.tally.skipped.iter().for_each(|line| println!("skipped: {line}"));
    println!("{}", context.tally.summary());
    Ok(ExitCode::from(u8::from(context.tally.failed > 0)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_skipped_test_is_not_a_passed_one() {
        let mut tally = Tally::default();
        let counts = Counts { passed: 10, failed: 1, ignored: vec!["slow: takes an hour".into()] };
        tally.add(&counts, vec!["veth: not root".into(), "tap: not root".into()]);
        tally.close("a step", Outcome::Passed, Instant::now());
        tally.close("another", Outcome::Skipped("no cargo-deny".into()), Instant::now());
        assert_eq!(tally.summary(), "9 passed, 1 failed, 4 skipped");
    }
}
