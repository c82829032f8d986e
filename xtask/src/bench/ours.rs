//! Building our own programs for a benchmark, running them, and reading their summary.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use serde_json::Value;

use super::record::Record;
use crate::project::{self, Problem};

/// Builds the binary as users get it.
///
/// # Errors
/// When it does not build.
pub(super) fn build(record: &mut Record) -> Result<PathBuf, Problem> {
    build_program(record, "bywash")
}

/// Builds a package's program that has its name; where the program is.
///
/// # Errors
/// When it does not build.
pub(super) fn build_program(record: &mut Record, package: &str) -> Result<PathBuf, Problem> {
    let mut command = project::cargo();
    command.args(["build", "--release", "--locked", "--quiet", "--package", package]);
    record.run(&mut command, Duration::from_secs(20 * 60))?;
    Ok(project::target().join("release").join(package))
}

/// Builds a bench target of a package; where the program is.
///
/// # Errors
/// When it does not build.
pub(super) fn build_bench(record: &mut Record, package: &str, target: &str) -> Result<PathBuf, Problem> {
    build_bench_by(project::cargo(), record, package, target)
}

/// As [`build_bench`], by a cargo that is perhaps in another folder.
///
/// # Errors
/// When it does not build.
pub(super) fn build_bench_by(
    mut command: Command,
    record: &mut Record,
    package: &str,
    target: &str,
) -> Result<PathBuf, Problem> {
    command.args(["bench", "--package", package, "--bench", target, "--locked", "--quiet", "--no-run"]);
    let output = record.run(command.args(["--message-format", "json"]), Duration::from_secs(20 * 60))?;
    let found = executable(&output, target);
    found.ok_or_else(|| Problem(format!("cargo did not say where {target} is:\n{output}")))
}

fn executable(output: &str, target: &str) -> Option<PathBuf> {
    let messages = output.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let mut ours = messages.filter(|message| message["target"]["name"] == target);
    ours.find_map(|message| message["executable"].as_str().map(PathBuf::from))
}

/// Runs a command with `--json` and returns the object of its last line, the summary.
///
/// # Errors
/// When it fails, or prints no summary.
pub(super) fn summary(record: &mut Record, command: &mut Command, limit: Duration) -> Result<Value, Problem> {
    summary_in(&record.run(command, limit)?)
}

/// As [`summary`], also when the program ends with an aim that was not met.
///
/// # Errors
/// When it prints no summary.
pub(super) fn summary_of_any(
    record: &mut Record,
    command: &mut Command,
    limit: Duration,
) -> Result<Value, Problem> {
    summary_in(&record.run_to_the_end(command, limit)?)
}

/// The summary in a program's output.
///
/// # Errors
/// When there is none.
pub(super) fn summary_in(output: &str) -> Result<Value, Problem> {
    read(output).ok_or_else(|| Problem(format!("no summary in the output:\n{output}")))
}

fn read(output: &str) -> Option<Value> {
    let objects = output.lines().rev().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    objects.into_iter().find(|object| object["event"] == "summary")
}

/// A number in a summary.
///
/// # Errors
/// When there is none under that pointer (`/directions/0/tx_packets`).
pub(super) fn number(summary: &Value, pointer: &str) -> Result<f64, Problem> {
    let found = summary.pointer(pointer).and_then(Value::as_f64);
    found.ok_or_else(|| Problem(format!("the summary has no number {pointer}: {summary}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_summary_is_the_last_such_line() {
        let output = "warning: 4 KiB pages\n{\"event\":\"interval\",\"x\":1}\n\
                      {\"event\":\"summary\",\"directions\":[{\"tx_packets\":9}]}\nbye\n";
        let summary = read(output).unwrap();
        assert_eq!(number(&summary, "/directions/0/tx_packets").unwrap(), 9.0);
        assert!(number(&summary, "/directions/1/tx_packets").is_err());
        assert!(read("{\"event\":\"interval\"}\n").is_none());
    }

    #[test]
    fn the_program_is_found_in_cargos_messages() {
        let output = "Compiling x\n{\"reason\":\"compiler-artifact\",\"target\":{\"name\":\"bywash_apps\"},\"executable\":null}\n\
                      {\"reason\":\"compiler-artifact\",\"target\":{\"name\":\"receive_cost\"},\"executable\":\"/t/receive_cost-1\"}\n";
        assert_eq!(executable(output, "receive_cost"), Some(PathBuf::from("/t/receive_cost-1")));
        assert_eq!(executable("{}", "receive_cost"), None);
    }
}
