//! Benchmark `revision`: what the stack does in a second beside what it did at another revision of the project, in turn. So it is seen,
//! on a machine whose speed changes by itself, whether a change has made it slower, and whether what another machine measured still
//! holds.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use super::Options;
use super::builds::{Programs, compare};
use super::record::Record;
use crate::project::{self, Problem, about};

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
    let tables = compare(record, options.pairs, ["now", "before"], [&now, &before])?;
    Ok(format!(
        "The working tree, \"now\", beside {commit}, \"before\". A ratio above 1: it is faster now. Each figure has a program's start in \
         it, and is only worth comparing with the one beside it.\n{tables}"
    ))
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
