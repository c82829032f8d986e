//! Benchmark `vfio-user`: what our 82599 driver forwards on a modelled NIC in a process of its own, which it tells of packets by
//! mapped tails, beside one in its own process. The measuring itself is a bench target of the apps crate.
//!
//! In one process driver and model take turns on one core; in two each has a core of its own. The model costs much more than
//! the driver, so its instructions are counted, too.

use std::cell::RefCell;
use std::process::Command;
use std::time::Duration;

use super::pairs::pairs;
use super::record::Record;
use super::{Options, callgrind, ours};
use crate::project::Problem;

/// Seconds under callgrind, which is some fifty times as slow.
const COUNTED: u32 = 5;

/// The function that is the forwarder's loop.
const FUNCTION: &str = "*circulate*";

pub(super) fn run(record: &mut Record, options: &Options) -> Result<String, Problem> {
    let program = ours::build_bench(record, "bywash-apps", "vfio_user")?;
    let server = ours::build_program(record, "bywash-models")?;
    let limit = Duration::from_secs(u64::from(options.seconds) + 60);
    let command = |seconds: u32| {
        let mut command = Command::new(&program);
        command.arg(seconds.to_string());
        command
    };
    let (instructions, output) =
        callgrind::instructions(record, &command(COUNTED), Some(FUNCTION), 4 * limit)?;
    let each = instructions as f64 / figure(&output, " packets forwarded")?;
    let record = RefCell::new(record);
    let apart = || {
        let output = record.borrow_mut().run(command(options.seconds).arg(&server), limit)?;
        figure(&output, " Mpps")
    };
    let together = || figure(&record.borrow_mut().run(&mut command(options.seconds), limit)?, " Mpps");
    let pairs = pairs(options.pairs, apart, together)?;
    let tables = pairs.tables(["vfio-user:, mapped", "in process"], "Mpps forwarded");
    Ok(format!("{tables}\nDriver and model together: {each:.0} instructions per packet.\n"))
}

/// The number in front of its unit.
fn figure(output: &str, unit: &str) -> Result<f64, Problem> {
    let number =
        output.split_once(unit).and_then(|(front, _)| front.rsplit(['\n', ' ']).next()?.parse().ok());
    number.ok_or_else(|| Problem(format!("the benchmark printed no{unit}:\n{output}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_figures_are_found() {
        let output = "==1== callgrind\n1200 packets forwarded, 0.970 Mpps\n";
        assert_eq!(figure(output, " packets forwarded").ok(), Some(1200.0));
        assert_eq!(figure(output, " Mpps").ok(), Some(0.97));
        assert!(figure("panicked", " Mpps").is_err());
    }
}
