//! `cargo xtask arch`: do the sources keep to ARCHITECTURE.md?
//!
//! A picture of the crates that nobody compares with the code is wrong within a month.

mod manifests;
mod sources;
mod table;

use std::fs;
use std::process::ExitCode;

use crate::project::{self, Problem, about};

/// A table whose last column names tests.
const TRAPS: &str = "docs/af-xdp-traps.md";

/// Prints what is wrong; the code is 1 when something is.
///
/// # Errors
/// When a file cannot be read.
pub(crate) fn run() -> Result<ExitCode, Problem> {
    let findings = check()?;
    findings.iter().for_each(|line| println!("{line}"));
    if findings.is_empty() {
        println!("the sources keep to ARCHITECTURE.md");
    }
    Ok(ExitCode::from(u8::from(!findings.is_empty())))
}

/// One line for each thing that is wrong.
///
/// # Errors
/// When a file cannot be read.
pub(crate) fn check() -> Result<Vec<String>, Problem> {
    let path = project::root().join("ARCHITECTURE.md");
    let text = fs::read_to_string(&path).map_err(about(path.display()))?;
    let (rows, mut findings) = table::parse(&text);
    let metadata = project::metadata()?;
    let members = manifests::members(&metadata)?;
    let files = sources::files()?;
    findings.extend(manifests::arrows(&rows, &members));
    findings.extend(manifests::without_lints(&members)?);
    findings.extend(manifests::unused(&manifests::workspace_dependencies()?, &members, &files));
    findings.extend(sources::check(&rows, &files));
    let traps = fs::read_to_string(project::root().join(TRAPS)).map_err(about(TRAPS))?;
    findings.extend(sources::missing_tests(TRAPS, &traps, &files));
    Ok(findings)
}
