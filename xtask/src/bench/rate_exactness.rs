//! Benchmark `rate-exactness`: how exactly a rate is kept, from a thousand packets per second to nine tenths of what the
//! port can do, and how even the gaps are.

use std::process::Command;
use std::time::Duration;

use serde_json::Value;

use super::huge_pages::HugePages;
use super::record::Record;
use super::{Options, ours, xdp_send};
use crate::project::Problem;
use crate::tools;

/// Huge pages for our packets.
const PAGES: u64 = 64;

/// How long each rate is kept.
const SECONDS: u32 = 5;

/// Rates in packets per second; shares of what the port can do follow.
const RATES: [f64; 4] = [1e3, 1e4, 1e5, 2.5e5];

const SHARES: [f64; 2] = [0.5, 0.9];

/// What a rate may differ from what was asked, in per cent.
const TOLERANCE: f64 = 0.1;

/// A worker of one core that does nothing else, over AF_XDP on a cable whose other end drops.
pub(super) fn run(record: &mut Record, options: &Options) -> Result<String, Problem> {
    let binary = ours::build(record)?;
    let _pages = HugePages::with_free(PAGES)?;
    let ip = tools::find("ip").ok_or_else(|| Problem("ip is missing: add --install".into()))?;
    let namespace = xdp_send::namespace(&ip);
    let mut generate = |rate: Option<f64>, seconds: u32| {
        let mut command = Command::new("unshare");
        command.args(&namespace).arg(&binary).args(["generate", &format!("xdp:{}", xdp_send::INTERFACE)]);
        command.args(["--sources", "256", "--idle", "spin", "--json", "--duration", &seconds.to_string()]);
        command.args(rate.map(|rate| format!("--rate={rate}"))).args(&options.arguments);
        // That a rate was not met is a result here.
        ours::summary_of_any(record, &mut command, Duration::from_secs(u64::from(seconds) + 30))
    };
    let flat_out = generate(None, 3)?;
    let able = ours::number(&flat_out, "/tx_packets")? / ours::number(&flat_out, "/duration_s")?;
    let mut table =
        "| asked, packets/s | sent in 5 s | off by | gap p50 | gap p99 | late p99 | late max |\n".to_owned();
    table.push_str("|---:|---:|---:|---:|---:|---:|---:|\n");
    let mut worst: f64 = 0.0;
    for rate in RATES.into_iter().chain(SHARES.map(|share| (able * share).floor())) {
        let row = Row::of(rate, &generate(Some(rate), SECONDS)?)?;
        worst = worst.max(row.off.abs());
        table.push_str(&row.text());
    }
    let verdict = if worst <= TOLERANCE { "kept" } else { "not kept" };
    Ok(format!(
        "Flat out, the port sent {:.3} Mpps. Gaps and delays are in microseconds, as packets were handed to the port.\n\n\
         {table}\nWithin {TOLERANCE} %: {verdict}.\n",
        able / 1e6
    ))
}

struct Row {
    rate: f64,
    sent: f64,
    /// Per cent.
    off: f64,
    /// Nanoseconds.
    times: [f64; 4],
}

impl Row {
    fn of(rate: f64, summary: &Value) -> Result<Self, Problem> {
        let sent = ours::number(summary, "/tx_packets")?;
        let time = |pointer: &str| ours::number(summary, pointer);
        let times =
            [time("/gap/p50_ns")?, time("/gap/p99_ns")?, time("/late/p99_ns")?, time("/late/max_ns")?];
        let off = (sent / (rate * f64::from(SECONDS)) - 1.0) * 100.0;
        Ok(Self { rate, sent, off, times })
    }

    fn text(&self) -> String {
        let mut text = format!("| {:.0} | {:.0} | {:+.4} % |", self.rate, self.sent, self.off);
        for time in self.times {
            text.push_str(&format!(" {:.1} |", time / 1000.0));
        }
        text.push('\n');
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_says_how_far_off_a_rate_was() {
        let summary = r#"{"tx_packets":4990,"gap":{"p50_ns":1000000,"p99_ns":1100000},"late":{"p99_ns":50,"max_ns":900}}"#;
        let row = Row::of(1000.0, &serde_json::from_str(summary).unwrap()).unwrap();
        assert_eq!(row.text(), "| 1000 | 4990 | -0.2000 % | 1000.0 | 1100.0 | 0.1 | 0.9 |\n");
    }
}
