//! Benchmark `forward-ixgbe`: what forwarding a packet costs our 82599 driver, by size of batch, the NIC's own work left out.
//! The measuring itself is a bench target of the apps crate.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use serde_json::Value;

use super::plot::Plot;
use super::record::Record;
use super::{Options, callgrind};
use crate::project::{self, Problem};

/// Sizes of batches.
const SIZES: [u32; 7] = [1, 2, 4, 8, 16, 32, 64];

/// The size of batch in which it is measured what addresses without an IOMMU cost.
const USUAL: u32 = 32;

/// Batches whose instructions are counted, and whose times are measured.
const COUNTED: u32 = 500;
const TIMED: u32 = 20_000;

/// The function that is a turn of the forwarder's loop.
const FUNCTION: &str = "*forward_batch*";

/// Instructions and the median time of a packet, by size of batch, as a table and a plot.
pub(super) fn run(record: &mut Record, _: &Options) -> Result<String, Problem> {
    let program = program(record)?;
    let limit = Duration::from_secs(300);
    let count = |record: &mut Record, size: u32, more: &[&str]| {
        let mut command = Command::new(&program);
        command.args([size.to_string(), COUNTED.to_string()]).args(more);
        let (instructions, _) = callgrind::instructions(record, &command, Some(FUNCTION), limit)?;
        Ok::<_, Problem>(instructions as f64 / f64::from(size * COUNTED))
    };
    let mut table = String::from("| batch | instructions per packet | ns per packet |\n|---|---|---|\n");
    let mut points = Vec::new();
    for size in SIZES {
        let each = count(record, size, &[])?;
        let mut timed = Command::new(&program);
        let output = record.run(timed.args([size.to_string(), TIMED.to_string()]), limit)?;
        let time =
            time(&output).ok_or_else(|| Problem(format!("the benchmark printed no time:\n{output}")))?;
        table += &format!("| {size} | {each:.1} | {time:.2} |\n");
        points.push((size.to_string(), each));
    }
    let paged = count(record, USUAL, &["paged"])?;
    table +=
        &format!("\nWithout an IOMMU, by the address of each huge page: {paged:.1} in batches of {USUAL}.\n");
    let title = "82599: instructions per forwarded packet";
    let plot = Plot { title, x: "packets in a batch", y: "instructions per packet", points: &points };
    Ok(format!("{table}\n{}", record.picture(title, &plot.svg())?))
}

/// Builds the bench target, and returns where cargo has put it.
fn program(record: &mut Record) -> Result<PathBuf, Problem> {
    let mut command = project::cargo();
    command.args(["bench", "--package", "bywash-apps", "--bench", "forward_ixgbe", "--locked", "--no-run"]);
    command.arg("--message-format=json-render-diagnostics");
    let output = record.run(&mut command, Duration::from_secs(20 * 60))?;
    executable(&output).ok_or_else(|| Problem("cargo names no program for the bench target".into()))
}

/// The program that cargo's messages name.
fn executable(messages: &str) -> Option<PathBuf> {
    let all = messages.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    all.filter_map(|message| Some(Path::new(message["executable"].as_str()?).to_owned())).next_back()
}

/// The number in front of `ns each`.
fn time(output: &str) -> Option<f64> {
    output.split_once(" ns each")?.0.rsplit(' ').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_program_and_its_time_are_found() {
        let messages = "{\"reason\":\"compiler-artifact\",\"executable\":null}\n\
                        {\"reason\":\"compiler-artifact\",\"executable\":\"/t/forward_ixgbe-1\"}\n{\"reason\":\"build-finished\"}\n";
        assert_eq!(executable(messages), Some("/t/forward_ixgbe-1".into()));
        assert_eq!(executable("Finished\n"), None);
        assert_eq!(time("640000 packets, 12.25 ns each, batches of 32\n"), Some(12.25));
    }
}
