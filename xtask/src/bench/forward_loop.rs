//! Benchmark `forward-loop`: what moving a packet from one wire in memory to another costs, beside DPDK's forwarding
//! between two rings in memory. The measuring itself is a bench target of the apps crate.
//!
//! Both have about 1000 packets in each wire, all taken from one ring and put into the other by one core, which writes to
//! each one's first bytes on the way. testpmd's `net_ring` gives back what was put in: the packets go to and fro between two
//! of them.

use std::cell::RefCell;
use std::path::PathBuf;
use std::time::Duration;
use std::{fmt, fs};

use super::huge_pages::HugePages;
use super::pairs::pairs;
use super::record::Record;
use super::{Options, testpmd};
use crate::project::{self, Problem, about};

/// Huge pages for our own side.
const OUR_PAGES: u64 = 16;

/// Both figures are of one core that forwards both ways.
pub(super) fn run(record: &mut Record, options: &Options) -> Result<String, Problem> {
    let bench = ["bench", "--package", "bywash-apps", "--bench", "forward_loop", "--locked", "--quiet"];
    record.run(project::cargo().args(bench).arg("--no-run"), Duration::from_secs(20 * 60))?;
    let _pages = HugePages::with_free(testpmd::HUGE_PAGES + OUR_PAGES)?;
    let record = RefCell::new(record);
    let start = Start::new()?;
    let ours = || {
        let output = record.borrow_mut().run(project::cargo().args(bench), Duration::from_secs(60))?;
        rate(&output).ok_or_else(|| Problem(format!("the benchmark printed no rate:\n{output}")))
    };
    let theirs = || {
        let eal = ["--vdev=net_ring0", "--vdev=net_ring1"];
        let mut record = record.borrow_mut();
        let start = start.to_string();
        let application = ["--forward-mode=macswap", &start];
        let rates = testpmd::run(&mut record, &[], &eal, &application, options.seconds)?;
        Ok(rates.iter().map(|rate| rate.tx).sum::<f64>() / 2.0 / 1e6)
    };
    Ok(pairs(options.pairs, ours, theirs)?.tables(["bywash", "testpmd"], "Mpps per direction"))
}

/// A file that has testpmd fill its rings when it starts forwarding, removed when dropped.
struct Start(PathBuf);

impl Start {
    /// In each ring 31 bursts of 32 packets: testpmd's have room for 1023.
    fn new() -> Result<Self, Problem> {
        let path = std::env::temp_dir().join(format!("bywash-testpmd-{}", std::process::id()));
        fs::write(&path, "start tx_first 31\n").map_err(about(path.display()))?;
        Ok(Self(path))
    }
}

impl fmt::Display for Start {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "--cmdline-file={}", self.0.display())
    }
}

impl Drop for Start {
    fn drop(&mut self) {
        // What is left in the temporary directory does no harm.
        let _ = fs::remove_file(&self.0);
    }
}

/// The number in front of `Mpps`.
fn rate(output: &str) -> Option<f64> {
    output.split_once(" Mpps")?.0.rsplit(' ').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_stands_before_its_unit() {
        assert_eq!(rate("5.01 ns per packet, 99.80 Mpps per direction\n"), Some(99.8));
        assert_eq!(rate("error"), None);
    }
}
