//! Benchmark `replay`: how well the timing of a capture is kept, and how fast its packets go beside generated ones, on a veth
//! and on a port that costs nothing.
//!
//! Each run has a network namespace of its own, which vanishes with the program. The gap error is what `bywash replay`
//! measures itself, when it hands packets to the port.

use std::cell::RefCell;
use std::fs;
use std::process::Command;
use std::time::Duration;

use super::pairs::{Spread, pairs};
use super::record::Record;
use super::xdp_send::{INTERFACE, namespace};
use super::{Options, ours};
use crate::project::Problem;
use crate::tools;

/// Packets per second of the capture whose timing is to be kept.
const RATE: &str = "10k";

/// The gap error over as many runs as pairs were asked for, then the pairs.
pub(super) fn run(record: &mut Record, options: &Options) -> Result<String, Problem> {
    let binary = ours::build(record)?;
    let ip = tools::find("ip").ok_or_else(|| Problem("ip is missing: add --install".into()))?;
    let folder = std::env::temp_dir().join(format!("bywash-bench-{}", std::process::id()));
    fs::create_dir_all(&folder).map_err(|error| Problem(format!("{}: {error}", folder.display())))?;
    let (timed, short) = (folder.join("timed.pcap"), folder.join("short.pcap"));
    let seconds = format!("{}s", options.seconds);
    let limit = Duration::from_secs(u64::from(options.seconds) + 60);
    let port = format!("xdp:{INTERFACE}");
    for (file, how) in
        [(&timed, ["--rate", RATE, "--duration", &seconds]), (&short, ["--count", "100k", "--size", "64"])]
    {
        let mut command = Command::new(&binary);
        command.args(["generate", &format!("pcap:{}", file.display()), "--json"]).args(how);
        ours::summary(record, &mut command, limit)?;
    }
    let record = RefCell::new(record);
    let summary = |words: &[&str]| {
        let mut command = Command::new("unshare");
        // A timing that a busy machine does not keep is no error here: it is the result.
        command.args(namespace(&ip)).args(["sh", "-c", "\"$0\" \"$@\" || true"]).arg(&binary);
        command.args(words).arg("--json").args(&options.arguments);
        ours::summary(&mut record.borrow_mut(), &mut command, limit)
    };
    let (mut medians, mut p99s) = (Vec::new(), Vec::new());
    for _ in 0..options.pairs {
        let summary = summary(&["replay", &timed.display().to_string(), &port])?;
        medians.push(ours::number(&summary, "/gap_error/p50_ns")? / 1e3);
        p99s.push(ours::number(&summary, "/gap_error/p99_ns")? / 1e3);
    }
    let rate = |words: &[&str]| {
        let summary = summary(&[words, &["--duration", &seconds]].concat())?;
        Ok(ours::number(&summary, "/tx_packets")? / ours::number(&summary, "/duration_s")? / 1e6)
    };
    let file = short.display().to_string();
    // On a veth the kernel takes nearly all of the time; a port that costs nothing shows the tools themselves.
    let measured = [port.as_str(), "null:"].map(|port| {
        let replay = || rate(&["replay", &file, port, "--rate", "max", "--loops", "0"]);
        let generate = || rate(&["generate", port, "--size", "64"]);
        pairs(options.pairs, replay, generate).map(|measured| (port.to_owned(), measured))
    });
    // What is left in the temporary directory does no harm.
    let _ = fs::remove_dir_all(&folder);
    let mut text = String::from("| gap error, µs | median | min | max |\n|---|---:|---:|---:|\n");
    for (name, figures) in [("p50", &medians), ("p99", &p99s)] {
        let Spread { median, min, max } = Spread::of(figures);
        text.push_str(&format!("| {name} | {median:.1} | {min:.1} | {max:.1} |\n"));
    }
    text.push_str(&format!("\nOf a capture of {RATE} packets/s, over {seconds} each.\n"));
    for measured in measured {
        let (port, measured) = measured?;
        let tables = measured.tables(["replay --rate max", "generate"], "Mpps");
        text.push_str(&format!("\nFlat out on `{port}`:\n\n{tables}"));
    }
    Ok(text)
}
