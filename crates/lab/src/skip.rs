//! Tests that cannot run here say so, so that nobody takes them for passed.

use std::fs::OpenOptions;
use std::io::Write;
use std::sync::OnceLock;
use std::thread;

use bywash_sys::namespace::Namespace;

/// Whether network namespaces can be made, and if not, why.
///
/// # Errors
/// The reason, for [`skip`].
pub fn root() -> Result<(), String> {
    static TRIED: OnceLock<Result<(), String>> = OnceLock::new();
    TRIED.get_or_init(|| Namespace::new().map(drop).map_err(|error| error.to_string())).clone()
}

/// Says that the test of this thread is skipped: `skipped: NAME: REASON` on stderr, and in the file that the
/// environment variable `BYWASH_SKIPS` names. The test then returns.
pub fn skip(reason: &str) {
    let line = format!("skipped: {}: {reason}\n", thread::current().name().unwrap_or("a test"));
    // Straight to the descriptor: the test runner would keep what a passing test prints. Where it can't be written,
    // nobody is there to read it.
    std::io::stderr().write_all(line.as_bytes()).ok();
    if let Some(path) = std::env::var_os("BYWASH_SKIPS") {
        OpenOptions::new()
            .append(true)
            .create(true)
            .open(path)
            .and_then(|mut f| f.write_all(line.as_bytes()))
            .ok();
    }
}
