//! Benchmark `geometry`: how far apart frames should lie. The measuring itself is a bench target of the frame crate.

use std::time::Duration;

use super::Options;
use super::huge_pages::HugePages;
use super::record::Record;
use crate::project::{self, Problem};

/// For 8192 frames, 4160 bytes apart, and one more.
const PAGES: u64 = 20;

/// The bench target prints a table, which is the summary.
pub(super) fn run(record: &mut Record, options: &Options) -> Result<String, Problem> {
    let mut build = project::cargo();
    build.args([
        "bench",
        "--package",
        "bywash-frame",
        "--bench",
        "geometry",
        "--locked",
        "--quiet",
        "--no-run",
    ]);
    record.run(&mut build, Duration::from_secs(20 * 60))?;
    let _pages = HugePages::with_free(PAGES)?;
    let mut command = project::cargo();
    command.args(["bench", "--package", "bywash-frame", "--bench", "geometry", "--locked", "--quiet", "--"]);
    let output = record.run(command.args(&options.arguments), Duration::from_secs(600))?;
    let table: Vec<_> = output.lines().filter(|line| line.starts_with('|')).collect();
    if table.is_empty() {
        return Err(Problem(format!("the benchmark printed no table:\n{output}")));
    }
    Ok(format!("Nanoseconds per packet; the best of several runs.\n\n{}\n", table.join("\n")))
}
