//! Benchmark `forward-loop`: what moving a packet from one wire in memory to another costs, beside DPDK's forwarding
//! between ports that cost nothing. The measuring itself is a bench target of the apps crate.

use std::cell::RefCell;
use std::time::Duration;

use super::huge_pages::HugePages;
use super::pairs::pairs;
use super::record::Record;
use super::{Options, testpmd};
use crate::project::{self, Problem};

/// Huge pages for our own side.
const OUR_PAGES: u64 = 16;

/// Both figures are of one core that forwards both ways.
pub(super) fn run(record: &mut Record, options: &Options) -> Result<String, Problem> {
    let bench = ["bench", "--package", "bywash-apps", "--bench", "forward_loop", "--locked", "--quiet"];
    record.run(project::cargo().args(bench).arg("--no-run"), Duration::from_secs(20 * 60))?;
    let _pages = HugePages::with_free(testpmd::HUGE_PAGES + OUR_PAGES)?;
    let record = RefCell::new(record);
    let ours = || {
        let output = record.borrow_mut().run(project::cargo().args(bench), Duration::from_secs(60))?;
        rate(&output).ok_or_else(|| Problem(format!("the benchmark printed no rate:\n{output}")))
    };
    let theirs = || {
        let eal = ["--vdev=net_null0,size=64", "--vdev=net_null1,size=64"];
        let mut record = record.borrow_mut();
        let rates = testpmd::run(&mut record, &[], &eal, &["--forward-mode=macswap"], options.seconds)?;
        Ok(rates.iter().map(|rate| rate.tx).sum::<f64>() / 2.0 / 1e6)
    };
    Ok(pairs(options.pairs, ours, theirs)?.tables(["bywash", "testpmd"], "Mpps per direction"))
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
