//! The binary as a user runs it: a table of commands and how they must end.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use super::{Context, Outcome};
use crate::project::{self, Problem};
use crate::{process, tools};

/// One command.
struct Row {
    name: &'static str,
    /// What follows `bywash`.
    arguments: &'static [&'static str],
    root: bool,
    /// The exit code it must end with.
    code: i32,
    /// Words that its output must contain.
    says: &'static str,
}

/// To add a command is to add a row.
const ROWS: &[Row] = &[
    Row { name: "demo", arguments: &["demo"], root: false, code: 0, says: "" },
    Row { name: "help", arguments: &["--help"], root: false, code: 0, says: "" },
];

/// The slowest command, the demo, promises to be done within 20 s; a busy machine gets three times that.
const LIMIT: Duration = Duration::from_secs(60);

/// Runs every row with the release-built binary.
pub(super) fn run(context: &mut Context) -> Result<Outcome, Problem> {
    let binary = project::target().join("release/bywash");
    if !binary.is_file() {
        return Ok(Outcome::Failed(format!("{} is missing: the release build failed", binary.display())));
    }
    let mut failed = 0;
    for row in ROWS {
        let start = Instant::now();
        let outcome = command(&binary, row)?;
        failed += u32::from(matches!(outcome, Outcome::Failed(_)));
        context.tally.close(row.name, outcome, start);
    }
    Ok(if failed == 0 {
        Outcome::Passed
    } else {
        Outcome::Failed(format!("{failed} of {} failed", ROWS.len()))
    })
}

fn command(binary: &Path, row: &Row) -> Result<Outcome, Problem> {
    if row.root && !project::is_root() {
        return Ok(Outcome::Skipped("needs root".into()));
    }
    let mut command = Command::new(binary);
    command.args(row.arguments).envs(tools::environment()).current_dir(project::root());
    let done = process::run(&mut command, LIMIT, |_| {})?;
    let code = done.status.and_then(|status| status.code());
    if code == Some(row.code) && done.output.contains(row.says) {
        return Ok(Outcome::Passed);
    }
    let wanted = if row.says.is_empty() { String::new() } else { format!(" and to say `{}`", row.says) };
    let line = format!(
        "{}: {}; expected to exit with {}{wanted}",
        process::typed(&command),
        done.ending(),
        row.code
    );
    Ok(Outcome::Failed(format!("{}{line}", done.output)))
}
