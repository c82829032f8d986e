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

/// Cases of the bench target `core` that the profile is made of, and rounds. Bulk's are few: its bytes are summed in loops, which would
/// be all that the compiler sees.
const SEEN: [(&str, u32); 4] = [
    ("bulk, copied", 300),
    ("bulk, in place", 300),
    ("64-byte exchanges over 1000 connections", 5000),
    ("connections opened, used, closed", 5000),
];

/// A table for each case.
pub(super) fn run(record: &mut Record, options: &Options) -> Result<String, Problem> {
    let tool = tool(record, options.install)?;
    let folder = project::target().join("profile");
    let (raw, profile) = (folder.join("raw"), folder.join("stack.profdata"));
    if raw.exists() {
        fs::remove_dir_all(&raw).map_err(about(raw.display()))?;
    }
    let seen = Programs::build(record, || with_flags(&folder, "seen", "generate", &raw))?;
    for (name, rounds) in SEEN {
        seen.case(name, rounds)?.run(record)?;
    }
    seen.forwarding().run(record)?;
    let mut merge = Command::new(tool);
    record.run(merge.arg("merge").arg("--output").arg(&profile).arg(&raw), Duration::from_secs(120))?;
    let guided = Programs::build(record, || with_flags(&folder, "guided", "use", &profile))?;
    let usual = Programs::build(record, project::cargo)?;
    Ok(format!(
        "Built by a profile of the cases themselves, \"guided\", beside the usual build. A ratio above 1: the guided one is faster. \
         Each figure has a program's start in it, and is only worth comparing with the one beside it.\n{}",
        compare(record, options.pairs, ["guided", "usual"], [&guided, &usual])?
    ))
}

/// A cargo that builds in a folder of its own below `folder`, with rustc's `-Cprofile-generate` or `-Cprofile-use` for a path.
fn with_flags(folder: &Path, name: &str, flag: &str, path: &Path) -> Command {
    let mut command = project::cargo();
    command.env("CARGO_TARGET_DIR", folder.join(name));
    // Not RUSTFLAGS, which ends at a space.
    command.env("CARGO_ENCODED_RUSTFLAGS", format!("-Cprofile-{flag}={}", path.display()));
    command
}

/// The toolchain's own `llvm-profdata`: another LLVM's may not read what rustc's writes.
fn tool(record: &mut Record, install: bool) -> Result<PathBuf, Problem> {
    let limit = Duration::from_secs(600);
    let sysroot = record.run(Command::new("rustc").args(["--print", "target-libdir"]), limit)?;
    let tool = Path::new(sysroot.trim()).with_file_name("bin/llvm-profdata");
    if install && !tool.is_file() {
        record.run(Command::new("rustup").args(["component", "add", "llvm-tools"]), limit)?;
    }
    if tool.is_file() {
        return Ok(tool);
    }
    Err(Problem("llvm-profdata is missing, which puts profiles together: add --install, or `rustup component add llvm-tools`".into()))
}
