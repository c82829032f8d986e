//! Benchmark `forward-null`: what moving a packet costs when the ports cost nothing, beside DPDK doing the same.

use std::cell::RefCell;
use std::process::Command;
use std::time::Duration;

use serde_json::Value;

use super::huge_pages::HugePages;
use super::pairs::pairs;
use super::record::Record;
use super::{Options, callgrind, ours, testpmd};
use crate::project::Problem;

/// Huge pages for our own side.
const OUR_PAGES: u64 = 64;

/// Seconds of the two runs whose instructions are counted. Their difference leaves out the start and the end, and needs
/// no function's name.
const COUNTED: [u32; 2] = [2, 6];

/// Both programs forward both ways on one core; the figure is one direction's.
pub(super) fn run(record: &mut Record, options: &Options) -> Result<String, Problem> {
    let binary = ours::build(record)?;
    let pages = HugePages::with_free(testpmd::HUGE_PAGES + OUR_PAGES)?;
    let record = RefCell::new(record);
    let forward = |seconds: u32| {
        let mut command = Command::new(&binary);
        command.args([
            "forward",
            "null:",
            "null:",
            "--mac-swap",
            "--json",
            "--duration",
            &seconds.to_string(),
        ]);
        command.args(&options.arguments);
        command
    };
    let ours = || {
        let limit = Duration::from_secs(u64::from(options.seconds) + 20);
        let summary = ours::summary(&mut record.borrow_mut(), &mut forward(options.seconds), limit)?;
        Ok(sent(&summary)? / 2.0 / ours::number(&summary, "/duration_s")? / 1e6)
    };
    let theirs = || {
        let eal = ["--vdev=net_null0,size=64", "--vdev=net_null1,size=64"];
        let mut record = record.borrow_mut();
        let rates = testpmd::run(&mut record, &[], &eal, &["--forward-mode=macswap"], options.seconds)?;
        Ok(rates.iter().map(|rate| rate.tx).sum::<f64>() / 2.0 / 1e6)
    };
    let measured = pairs(options.pairs, ours, theirs)?;
    drop(pages);

    let mut record = record.borrow_mut();
    let mut count = |seconds| {
        let limit = Duration::from_secs(u64::from(seconds) + 120);
        let (instructions, output) = callgrind::instructions(&mut record, &forward(seconds), None, limit)?;
        Ok::<_, Problem>((instructions as f64, sent(&ours::summary_in(&output)?)?))
    };
    let [short, long] = COUNTED;
    let ((few, short), (many, long)) = (count(short)?, count(long)?);
    let each = (many - few) / (long - short);
    if !each.is_finite() {
        return Err(Problem(format!(
            "nothing to count: {short} packets in the short run, {long} in the long one"
        )));
    }
    let tables = measured.tables(["bywash", "testpmd"], "Mpps per direction");
    Ok(format!("{tables}\nInstructions per packet, by callgrind: {each:.1}\n"))
}

/// Packets sent in both directions.
fn sent(summary: &Value) -> Result<f64, Problem> {
    let direction = |i: usize| ours::number(summary, &format!("/directions/{i}/tx_packets"));
    Ok(direction(0)? + direction(1)?)
}
