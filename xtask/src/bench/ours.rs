//! Running our own binary for a benchmark, and reading its summary.

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
    let mut command = project::cargo();
    command.args(["build", "--release", "--locked", "--quiet", "--package", "bywash"]);
    record.run(&mut command, Duration::from_secs(20 * 60))?;
    Ok(project::target().join("release/bywash"))
}

/// Runs a command with `--json` and returns the object of its last line, the summary.
///
/// # Errors
/// When it fails, or prints no summary.
pub(super) fn summary(record: &mut Record, command: &mut Command, limit: Duration) -> Result<Value, Problem> {
    summary_in(&record.run(command, limit)?)
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
}
