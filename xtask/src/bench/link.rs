//! Benchmark `link`: packets a second from one process to another, beside a wire within one process. The measuring itself is
//! a bench target of the drivers crate.
//!
//! Between processes each packet is copied twice, and crosses from one core's cache to the other's; within one a packet's
//! address is all that crosses, a batch at a time.

use std::cell::RefCell;
use std::time::Duration;

use super::Options;
use super::pairs::pairs;
use super::record::Record;
use crate::project::{self, Problem};

pub(super) fn run(record: &mut Record, options: &Options) -> Result<String, Problem> {
    let bench = ["bench", "--package", "bywash-drivers", "--bench", "link", "--locked", "--quiet"];
    record.run(project::cargo().args(bench).arg("--no-run"), Duration::from_secs(20 * 60))?;
    let record = RefCell::new(record);
    let measure = |wire: &str| {
        let mut command = project::cargo();
        let output =
            record.borrow_mut().run(command.args(bench).args(["--", wire]), Duration::from_secs(60))?;
        let rate =
            output.split_once(" Mpps").and_then(|(front, _)| front.rsplit(['\n', ' ']).next()?.parse().ok());
        rate.ok_or_else(|| Problem(format!("the benchmark printed no rate:\n{output}")))
    };
    let pairs = pairs(options.pairs, || measure("link"), || measure("loop"))?;
    Ok(pairs.tables(["link:", "loop:"], "Mpps"))
}
