//! The steps of `cargo xtask test`, in order: first what is quick to fail.

use std::process::Command;
use std::time::Duration;

use super::libtest::Reader;
use super::{Context, Outcome, end_to_end};
use crate::process::Finished;
use crate::project::{self, Problem};
use crate::{arch, install, process, tools};

/// A step's name and what it does.
pub(super) type Step = (&'static str, fn(&mut Context) -> Result<Outcome, Problem>);

pub(super) const STEPS: &[Step] = &[
    ("format", |_| format()),
    ("clippy", |_| clippy()),
    ("documentation", |_| documentation()),
    ("architecture", |_| Ok(architecture())),
    ("dependencies", |_| dependencies()),
    ("build", |_| build()),
    // Also before the tests, whose floods and clocks want the machine for themselves.
    ("release build", Context::release_build),
    ("tests", |context| tests(context, &mut cargo(&["test", "--workspace", "--no-fail-fast", "--locked"]))),
    ("packet memory under the address sanitizer", sanitizer),
    ("end to end", end_to_end::run),
];

/// No step but the tests takes longer; more means that something hangs.
const LIMIT: Duration = Duration::from_secs(30 * 60);

/// The tests take 23 minutes on two cores, most of them one at a time, and those on a busier machine longer. CI ends after 45.
const TESTS_LIMIT: Duration = Duration::from_secs(40 * 60);

/// The workspace of the fuzz targets, from the project's folder, in which cargo is run.
const FUZZ: &str = "fuzz/Cargo.toml";

fn cargo(arguments: &[&str]) -> Command {
    let mut command = project::cargo();
    command.args(arguments);
    command
}

fn finish(command: &mut Command) -> Result<Outcome, Problem> {
    let done = process::run(command, LIMIT, |_| {})?;
    Ok(ended(done, command))
}

fn ended(done: Finished, command: &Command) -> Outcome {
    if done.success() {
        return Outcome::Passed;
    }
    Outcome::Failed(format!("{}$ {}\n{}", done.output, process::typed(command), done.ending()))
}

/// Whether a component of the toolchain is there; a toolchain of the minimal profile has none of them.
fn component(subcommand: &str, component: &str) -> Result<Option<Outcome>, Problem> {
    let done = process::run(&mut cargo(&[subcommand, "--version"]), Duration::from_secs(60), |_| {})?;
    let missing = || Outcome::Skipped(format!("{component} is missing: rustup component add {component}"));
    Ok((!done.success()).then(missing))
}

fn format() -> Result<Outcome, Problem> {
    if let Some(missing) = component("fmt", "rustfmt")? {
        return Ok(missing);
    }
    let ours = finish(&mut cargo(&["fmt", "--all", "--", "--check"]))?;
    if !matches!(ours, Outcome::Passed) {
        return Ok(ours);
    }
    finish(&mut cargo(&["fmt", "--manifest-path", FUZZ, "--", "--check"]))
}

fn clippy() -> Result<Outcome, Problem> {
    if let Some(missing) = component("clippy", "clippy")? {
        return Ok(missing);
    }
    let ours =
        finish(&mut cargo(&["clippy", "--workspace", "--all-targets", "--locked", "--", "-D", "warnings"]))?;
    if !matches!(ours, Outcome::Passed) {
        return Ok(ours);
    }
    // Without libFuzzer: that wants a C++ compiler.
    let mut fuzz =
        cargo(&["clippy", "--manifest-path", FUZZ, "--no-default-features", "--locked", "--target-dir"]);
    finish(fuzz.arg(project::target().join("fuzz")).args(["--", "-D", "warnings"]))
}

fn documentation() -> Result<Outcome, Problem> {
    let mut command = cargo(&["doc", "--workspace", "--no-deps", "--locked"]);
    finish(command.env("RUSTDOCFLAGS", "-D warnings"))
}

fn architecture() -> Outcome {
    match arch::check() {
        Ok(findings) if findings.is_empty() => Outcome::Passed,
        Ok(findings) => Outcome::Failed(findings.join("\n")),
        Err(problem) => Outcome::Failed(problem.to_string()),
    }
}

fn dependencies() -> Result<Outcome, Problem> {
    let Some(program) = install::cargo_deny() else {
        return Ok(Outcome::Skipped("cargo-deny is missing: cargo xtask test --install".into()));
    };
    let mut command = Command::new(program);
    command.current_dir(project::root());
    // As its own program it wants no `deny` in front; cargo's copy of the advisories is not looked at.
    command.args([
        "--locked",
        "--workspace",
        "check",
        "--hide-inclusion-graph",
        "bans",
        "licenses",
        "sources",
    ]);
    finish(&mut command)
}

/// What the tests run. That benchmarks compile, clippy has seen.
fn build() -> Result<Outcome, Problem> {
    finish(&mut cargo(&["test", "--workspace", "--no-run", "--locked"]))
}

/// Its link takes minutes of one core, which the steps before the tests leave idle.
pub(super) fn release_build() -> Result<Outcome, Problem> {
    finish(&mut cargo(&["build", "--release", "--locked", "--package", "bywash"]))
}

fn tests(context: &mut Context, command: &mut Command) -> Result<Outcome, Problem> {
    context.skips.tell(command.envs(tools::environment()));
    let mut reader = Reader::default();
    let done = process::run(command, TESTS_LIMIT, |line| {
        if let Some(suite) = reader.line(line) {
            println!("   {suite}");
        }
    })?;
    context.tally.add(&reader.counts, context.skips.take());
    // Among hundreds of tests that passed, nobody finds the one that did not.
    let passed = |line: &&str| line.starts_with("test ") && line.ends_with(" ... ok");
    let output = done.output.lines().filter(|line| !passed(line)).map(|line| format!("{line}\n")).collect();
    Ok(ended(Finished { output, ..done }, command))
}

/// The frame crate is the one that turns an address into ownership. The sanitizer is part of the stable compiler, under
/// a switch; it has a target folder of its own, since everything is compiled differently.
fn sanitizer(context: &mut Context) -> Result<Outcome, Problem> {
    let target = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
    let mut command =
        cargo(&["test", "--package", "bywash-frame", "--lib", "--tests", "--locked", "--target", &target]);
    command.arg("--target-dir").arg(project::target().join("asan"));
    command.envs([("RUSTC_BOOTSTRAP", "1"), ("RUSTFLAGS", "-Zsanitizer=address")]);
    tests(context, &mut command)
}
