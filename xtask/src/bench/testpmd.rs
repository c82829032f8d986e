//! Running DPDK's testpmd for a bounded time, and reading its rates.

use std::ffi::OsString;
use std::process::Command;
use std::time::Duration;

use super::pairs::Spread;
use super::record::Record;
use crate::process::Interrupt;
use crate::project::Problem;
use crate::tools;

/// Huge pages it needs: 1 GiB for DPDK and some that DPDK takes for itself.
pub(super) const HUGE_PAGES: u64 = 544;

/// The rates of one port, as medians over the seconds in packets per second.
#[derive(Debug, PartialEq)]
pub(super) struct Rates {
    pub(super) port: u32,
    pub(super) rx: f64,
    pub(super) tx: f64,
}

/// Runs testpmd with one forwarding core, the second one, for `seconds` after it has started.
///
/// `runner` is a program that runs it, with its options, if it needs one; `eal` are testpmd's options in front of `--`,
/// `application` those behind.
///
/// # Errors
/// When it is missing, fails, or prints no rates.
pub(super) fn run(
    record: &mut Record,
    runner: &[String],
    eal: &[&str],
    application: &[&str],
    seconds: u32,
) -> Result<Vec<Rates>, Problem> {
    let program = tools::find("dpdk-testpmd")
        .ok_or_else(|| Problem("dpdk-testpmd is missing: add --install".into()))?;
    let prefix = format!("--file-prefix=bywash-{}", std::process::id());
    let mut words = runner.iter().map(OsString::from).chain([program.into_os_string()]);
    let mut command = Command::new(words.next().unwrap_or_default());
    command.args(words);
    // --in-memory: no files in hugetlbfs, nothing to remove afterwards.
    command.args(["-l", "0-1", "-m", "1024", "--no-pci", "--no-telemetry", "--in-memory", &prefix]).args(eal);
    command.args(["--", "--nb-cores=1", "--auto-start", "--stats-period=1"]).args(application);
    // The first figures are of no time yet, and the second ones' second is given to it to settle.
    let after = Duration::from_secs(u64::from(seconds) + 2);
    let interrupt = Interrupt { started: "NIC statistics for port", after };
    let output = record.run_until(&mut command, after + Duration::from_secs(60), Some(interrupt))?;
    let rates = rates(&output);
    if rates.is_empty() { Err(Problem(format!("testpmd printed no rates:\n{output}"))) } else { Ok(rates) }
}

/// The median rates of each port. The first sample is left out, it covers the start; and so are seconds in which a port
/// moved nothing at all, before the start and after the stop.
fn rates(output: &str) -> Vec<Rates> {
    let mut samples: Vec<(u32, Vec<(f64, f64)>)> = Vec::new();
    let mut port = None;
    let mut rx = None;
    for line in output.lines() {
        if let Some((_, rest)) = line.split_once("NIC statistics for port ") {
            port = rest.split_whitespace().next().and_then(|word| word.parse::<u32>().ok());
        } else if let Some(rate) = value(line, "Rx-pps:") {
            rx = Some(rate);
        } else if let (Some(tx), Some(port), Some(rx)) = (value(line, "Tx-pps:"), port, rx.take()) {
            if samples.iter().all(|(known, _)| *known != port) {
                samples.push((port, Vec::new()));
            }
            samples.iter_mut().filter(|(known, _)| *known == port).for_each(|(_, list)| list.push((rx, tx)));
        }
    }
    let median = |port: u32, list: &[(f64, f64)]| {
        let moving: Vec<_> = list.iter().filter(|(rx, tx)| rx + tx > 0.0).skip(1).collect();
        let of = |rate: fn(&(f64, f64)) -> f64| {
            Spread::of(&moving.iter().map(|s| rate(s)).collect::<Vec<_>>()).median
        };
        (!moving.is_empty()).then(|| Rates { port, rx: of(|s| s.0), tx: of(|s| s.1) })
    };
    samples.iter().filter_map(|(port, list)| median(*port, list)).collect()
}

/// The number behind `name`.
fn value(line: &str, name: &str) -> Option<f64> {
    line.trim_start().strip_prefix(name)?.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn second(port: u32, rx: u64, tx: u64) -> String {
        format!(
            "\n  ######################## NIC statistics for port {port}  ########################\n  \
             RX-packets: 99         RX-missed: 0          RX-bytes:  1\n  RX-errors: 0\n  RX-nombuf:  0         \n  \
             TX-packets: 88         TX-errors: 0          TX-bytes:  1\n\n  Throughput (since last show)\n  \
             Rx-pps:     {rx:>9}          Rx-bps:  36000000000\n  Tx-pps:     {tx:>9}          Tx-bps:  3600\n  \
             ############################################################################\n"
        )
    }

    #[test]
    fn rates_are_medians_without_the_first_second() {
        let mut output =
            "EAL: Detected CPU lcores: 2\nPort statistics ====================================\n".to_owned();
        for (rx, tx) in [(0, 0), (12, 10), (70, 71), (60, 61), (80, 81), (0, 0)] {
            output.push_str(&second(0, rx * 1_000_000, tx * 1_000_000));
            output.push_str(&second(1, tx * 1_000_000, rx * 1_000_000));
        }
        assert_eq!(
            rates(&output),
            [Rates { port: 0, rx: 70e6, tx: 71e6 }, Rates { port: 1, rx: 71e6, tx: 70e6 }]
        );
    }

    #[test]
    fn without_traffic_there_are_no_rates() {
        assert_eq!(rates("EAL: Error\n"), []);
        assert_eq!(rates(&second(0, 0, 0)), []);
        assert_eq!(rates(&second(0, 5, 5)), [], "one second covers the start");
    }
}
