//! Where the project is, what cargo says of it, and the one error type of this program.

use std::fmt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use serde_json::Value;

use crate::process;

/// One line for the user: what, why, and what to do.
#[derive(Debug)]
pub(crate) struct Problem(pub(crate) String);

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl From<String> for Problem {
    fn from(text: String) -> Self {
        Self(text)
    }
}

/// Turns an I/O error into a line that names the file or program it was about.
pub(crate) fn about(what: impl fmt::Display) -> impl FnOnce(std::io::Error) -> Problem {
    move |error| Problem(format!("{what}: {error}"))
}

/// The folder of the workspace.
pub(crate) fn root() -> &'static Path {
    // The manifest of this crate lies one folder below.
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap_or_else(|| Path::new("."))
}

/// Cargo's target folder of the workspace.
pub(crate) fn target() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), |dir| root().join(dir))
}

/// Our folder in the user's cache directory.
///
/// # Errors
/// When the environment names neither `XDG_CACHE_HOME` nor `HOME`.
pub(crate) fn cache() -> Result<PathBuf, Problem> {
    let absolute = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let base = absolute("XDG_CACHE_HOME").or_else(|| absolute("HOME").map(|home| home.join(".cache")));
    base.map(|path| path.join("bywash"))
        .ok_or_else(|| Problem("no cache directory: set HOME or XDG_CACHE_HOME to an absolute path".into()))
}

/// The cargo that runs us, to be run in the workspace's folder.
pub(crate) fn cargo() -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(root()).env("CARGO_TERM_COLOR", "never");
    command
}

/// What `cargo metadata` says of the workspace's own packages.
///
/// # Errors
/// When cargo cannot read the manifests.
pub(crate) fn metadata() -> Result<Value, Problem> {
    let mut command = cargo();
    command.args(["metadata", "--format-version=1", "--no-deps", "--quiet"]);
    let done = process::run(&mut command, Duration::from_secs(120), |_| {})?;
    if !done.success() {
        return Err(Problem(format!("cargo metadata failed:\n{}", done.output)));
    }
    serde_json::from_str(&done.output).map_err(|e| Problem(format!("cargo metadata: {e}")))
}

/// Whether we are root.
pub(crate) fn is_root() -> bool {
    // The owner of our own entry in /proc is the effective user.
    use std::os::unix::fs::MetadataExt;
    std::fs::metadata("/proc/self").is_ok_and(|entry| entry.uid() == 0)
}
