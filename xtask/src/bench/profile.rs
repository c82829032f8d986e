//! Benchmark `profile`: what the stack does in a second when the compiler has seen, by a profile, what it does most, beside the usual
//! build, in turn. So a user knows what a build by a profile of his own load may bring.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use super::Options;
use super::builds::{Programs, compare};
use super::record::Record;
use crate::project::{self, Problem, about};

/// A table for each case.
pub(super) fn run(record: &mut Record, options: &Options) -> Result<String, Problem> {
    let tool = tool(record)?;
    let folder = project::target().join("profile");
    let (raw, profile) = (folder.join("raw"), folder.join("stack.profdata"));
    let flags =
        [format!("-Cprofile-generate={}", raw.display()), format!("-Cprofile-use={}", profile.display())];
    for flag in &flags {
        record.note(&format!("One build has {flag}.\n"))?;
    }
    let seen = Programs::build(record, || cargo(Some(folder.join("seen")), &flags[0]))?;
    // Programs that cargo has run to build them have written profiles, too.
    if raw.exists() {
        fs::remove_dir_all(&raw).map_err(about(raw.display()))?;
    }
    seen.be_seen(record)?;
    let mut merge = Command::new(tool);
    record.run(merge.arg("merge").arg("--output").arg(&profile).arg(&raw), Duration::from_secs(120))?;
    let guided = Programs::build(record, || cargo(Some(folder.join("guided")), &flags[1]))?;
    let usual = Programs::build(record, || cargo(None, ""))?;
    Ok(format!(
        "Built by a profile of the cases themselves, \"guided\", beside the usual build. A ratio above 1: the guided one is faster. \
         Each figure has a program's start in it, and is only worth comparing with the one beside it.\n{}",
        compare(record, options.pairs, ["guided", "usual"], [&guided, &usual])?
    ))
}

/// A cargo that builds with a flag, or with none, and with no other that the user's settings have, perhaps in a folder of its own.
fn cargo(folder: Option<PathBuf>, flag: &str) -> Command {
    let mut command = project::cargo();
    command.envs(folder.map(|folder| ("CARGO_TARGET_DIR", folder)));
    // RUSTFLAGS would end at a space.
    command.env("CARGO_ENCODED_RUSTFLAGS", flag);
    command
}

/// The toolchain's own `llvm-profdata`: another LLVM's may not read what rustc's writes.
fn tool(record: &mut Record) -> Result<PathBuf, Problem> {
    let libraries =
        record.run(Command::new("rustc").args(["--print", "target-libdir"]), Duration::from_secs(60))?;
    let tool = Path::new(libraries.trim()).with_file_name("bin/llvm-profdata");
    let missing = "llvm-profdata is missing, which puts profiles together: `rustup component add llvm-tools`";
    tool.is_file().then_some(tool).ok_or_else(|| Problem(missing.into()))
}
