//! Benchmark `inject`: how fast the kernel makes and hands over packets by our program, on a veth whose other end drops
//! them in XDP, from one core. The other end's own count says whether any was lost.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use serde_json::Value;

use super::pairs::Spread;
use super::record::Record;
use super::{Options, ours, xdp_send};
use crate::project::{self, Problem};
use crate::tools;

/// How often each kind of packet is measured.
const RUNS: usize = 5;

/// What must be reached with three varying fields, in millions of packets per second.
const AIM: f64 = 4.5;

/// What varies, by kind.
const KINDS: [(&str, &[&str]); 3] = [
    ("nothing", &["--payload", "zeros"]),
    (
        "three fields: source address, source and destination port",
        &[
            "--payload",
            "zeros",
            "--src",
            "10.0.0.0/8 random",
            "--sport",
            "1024-65535",
            "--dport",
            "80,443,8080",
        ],
    ),
    ("source address and port, and the probe: number, time, check", &["--sources", "256"]),
];

pub(super) fn run(record: &mut Record, options: &Options) -> Result<String, Problem> {
    let binary = ours::build(record)?;
    let drop = build_drop(record)?;
    let ip = tools::find("ip").ok_or_else(|| Problem("ip is missing: add --install".into()))?;
    let namespace = xdp_send::namespace(&ip);
    let mut table = "| what varies | median, Mpps | lowest | highest | sent | lost |\n".to_owned();
    table.push_str("|---|---:|---:|---:|---:|---:|\n");
    let mut reached = true;
    for (what, words) in KINDS {
        let (mut rates, mut all, mut missing) = (Vec::new(), 0.0, 0.0);
        for _ in 0..RUNS {
            let mut command = Command::new("unshare");
            command.args(&namespace).arg(&drop).arg(xdp_send::PEER).arg(&binary);
            command.args(["generate", "--inject", xdp_send::INTERFACE, "--cores", "0", "--json"]);
            command.args(["--duration", &options.seconds.to_string()]).args(words).args(&options.arguments);
            let limit = Duration::from_secs(u64::from(options.seconds) + 30);
            let output = record.run_to_the_end(&mut command, limit)?;
            let summary = ours::summary_in(&output)?;
            let number = |name: &str| ours::number(&summary, name);
            // What was handed over, wherever it went.
            let handed = number("/tx_packets")? + number("/errors")? + number("/in_flight_packets")?;
            rates.push(number("/tx_packets")? / number("/duration_s")? / 1e6);
            all += handed;
            missing += handed - came(&output)?;
        }
        let Spread { median, min, max } = Spread::of(&rates);
        table
            .push_str(&format!("| {what} | {median:.2} | {min:.2} | {max:.2} | {all:.0} | {missing:.0} |\n"));
        reached &= missing == 0.0 && median >= AIM;
    }
    let verdict = if reached { "reached" } else { "not reached" };
    Ok(format!(
        "Frames of 64 bytes, {RUNS} runs of {} s each, one worker on core 0; lost is what was handed over and not counted by the \
         other end.\n\n{table}\nAt least {AIM} Mpps and nothing lost: {verdict}.\n",
        options.seconds
    ))
}

/// Builds the program that drops at the other end and counts; where it is.
///
/// # Errors
/// When it does not build.
pub(super) fn build_drop(record: &mut Record) -> Result<PathBuf, Problem> {
    let mut build = project::cargo();
    build.args([
        "build",
        "--release",
        "--locked",
        "--quiet",
        "--package",
        "bywash-lab",
        "--example",
        "xdp_drop",
    ]);
    record.run(&mut build, Duration::from_secs(20 * 60))?;
    Ok(project::target().join("release/examples/xdp_drop"))
}

/// What the other end has counted.
fn came(output: &str) -> Result<f64, Problem> {
    let objects = output.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let far = objects.into_iter().find(|object| object["event"] == "far");
    ours::number(&far.unwrap_or_default(), "/rx_packets")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_other_ends_count_is_found() {
        let output = "{\"event\":\"summary\",\"tx_packets\":9}\n{\"event\":\"far\",\"rx_packets\":8}\n";
        assert_eq!(came(output).unwrap(), 8.0);
        assert!(came("{\"event\":\"summary\"}\n").is_err());
    }
}
