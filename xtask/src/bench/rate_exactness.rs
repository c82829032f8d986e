//! Benchmark `rate-exactness`: how exactly a rate is kept, from a thousand packets per second to nine tenths of what the
//! port can do, and how even the gaps are.
//!
//! What the port can do is measured first, flat out. A machine gets slower and faster by itself, so the least of several runs
//! is what it can do at any time, and each rate has several runs, of which the worst counts. A packet that was due in the
//! five seconds and left after them counts as not sent; replaying, which has no end in time, is judged by how long it took,
//! its start and end included.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use serde_json::Value;

use super::huge_pages::HugePages;
use super::inject;
use super::pairs::Spread;
use super::record::Record;
use super::xdp_send::{self, INTERFACE, PEER};
use super::{Options, ours};
use crate::project::Problem;
use crate::tools;

/// Huge pages for our packets.
const PAGES: u64 = 64;

/// How long each rate is kept.
const SECONDS: u32 = 5;

/// How long each flat-out run takes, and how many there are.
const FLAT_OUT: (u32, usize) = (2, 3);

/// Rates in packets per second; shares of what the port can do follow.
const RATES: [f64; 2] = [1e3, 1e5];

const SHARES: [f64; 2] = [0.5, 0.9];

/// Runs with each rate.
const RUNS: usize = 3;

/// What a rate may differ from what was asked, in per cent.
const TOLERANCE: f64 = 0.1;

/// Who keeps a rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sender {
    /// `generate`, over AF_XDP.
    Xdp,
    /// `generate --inject`, into an interface whose other end drops in XDP.
    Inject,
    /// `replay --rate`, over AF_XDP.
    Replay,
}

impl Sender {
    fn name(self) -> &'static str {
        match self {
            Self::Xdp => "generate xdp:",
            Self::Inject => "generate --inject",
            Self::Replay => "replay --rate",
        }
    }

    /// What is run for so many packets per second, or flat out.
    fn words(self, programs: &Programs, rate: Option<f64>, seconds: u32) -> Vec<String> {
        let (port, file) = (format!("xdp:{INTERFACE}"), programs.capture.display().to_string());
        let mut words = match self {
            Self::Xdp | Self::Replay => Vec::new(),
            Self::Inject => vec![programs.drop.display().to_string(), PEER.to_owned()],
        };
        words.push(programs.bywash.display().to_string());
        let (what, rate_word): (&[&str], _) = match self {
            Self::Xdp => (&["generate", &port, "--sources", "256"], None),
            Self::Inject => (&["generate", "--inject", INTERFACE, "--sources", "256"], None),
            Self::Replay => (&["replay", &file, &port, "--loops", "0"], Some("max".to_owned())),
        };
        words.extend(what.iter().chain(&["--idle", "spin", "--json"]).map(|word| (*word).to_owned()));
        if let Some(rate) = rate.map(|rate| rate.to_string()).or(rate_word) {
            words.push(format!("--rate={rate}"));
        }
        match (self, rate) {
            (Self::Replay, Some(rate)) => words.push(format!("--count={}", rate * f64::from(seconds))),
            _ => words.push(format!("--duration={seconds}")),
        }
        words
    }

    /// Packets per second that a summary tells of.
    fn reached(self, summary: &Value, seconds: u32) -> Result<f64, Problem> {
        let sent = ours::number(summary, "/tx_packets")?;
        match self {
            Self::Xdp | Self::Inject => {
                Ok((sent - ours::number(summary, "/overtime_packets")?) / f64::from(seconds))
            }
            Self::Replay => Ok(sent / ours::number(summary, "/duration_s")?),
        }
    }

    /// Where a summary has the times that are shown.
    fn times(self) -> [Option<&'static str>; 4] {
        match self {
            Self::Xdp | Self::Inject => {
                [Some("/gap/p50_ns"), Some("/gap/p99_ns"), Some("/late/p99_ns"), Some("/late/max_ns")]
            }
            Self::Replay => [Some("/gap_error/p50_ns"), Some("/gap_error/p99_ns"), None, None],
        }
    }
}

/// What is run.
struct Programs {
    bywash: PathBuf,
    drop: PathBuf,
    /// A capture for replaying.
    capture: PathBuf,
}

/// A worker that does nothing else.
pub(super) fn run(record: &mut Record, options: &Options) -> Result<String, Problem> {
    let (bywash, drop) = (ours::build(record)?, inject::build_drop(record)?);
    let _pages = HugePages::with_free(PAGES)?;
    let ip = tools::find("ip").ok_or_else(|| Problem("ip is missing: add --install".into()))?;
    let capture = std::env::temp_dir().join(format!("bywash-bench-{}.pcap", std::process::id()));
    let programs = Programs { bywash, drop, capture };
    let made = capture_of(record, &programs);
    let measured = made.and_then(|()| measure(record, options, &programs, &ip));
    // What is left in the temporary directory does no harm.
    let _ = fs::remove_file(&programs.capture);
    measured
}

/// Writes the capture that is replayed.
fn capture_of(record: &mut Record, programs: &Programs) -> Result<(), Problem> {
    let mut command = Command::new(&programs.bywash);
    command.args(["generate", &format!("pcap:{}", programs.capture.display()), "--count", "100k", "--json"]);
    ours::summary(record, &mut command, Duration::from_secs(60)).map(|_| ())
}

fn measure(
    record: &mut Record,
    options: &Options,
    programs: &Programs,
    ip: &Path,
) -> Result<String, Problem> {
    let namespace = xdp_send::namespace(ip);
    let mut send = |sender: Sender, rate, seconds: u32| {
        let mut command = Command::new("unshare");
        command.args(&namespace).args(sender.words(programs, rate, seconds)).args(&options.arguments);
        let limit = Duration::from_secs(u64::from(seconds) + 30);
        // That a rate was not met is a result here.
        ours::summary_of_any(record, &mut command, limit)
    };
    let mut text = String::new();
    let mut table =
        "| sender | asked, packets/s | off by, at worst | gap p50 | gap p99 | late p99 | late max |\n\
                     |---|---:|---:|---:|---:|---:|---:|\n"
            .to_owned();
    let mut verdicts = Vec::new();
    for sender in [Sender::Xdp, Sender::Inject, Sender::Replay] {
        let (seconds, runs) = FLAT_OUT;
        let flat_out: Result<Vec<f64>, Problem> = (0..runs)
            .map(|_| {
                let summary = send(sender, None, seconds)?;
                Ok(ours::number(&summary, "/tx_packets")? / ours::number(&summary, "/duration_s")?)
            })
            .collect();
        let able = Spread::of(&flat_out?);
        text.push_str(&format!(
            "Flat out, `{}` sent {:.3} Mpps ({:.3} to {:.3}).\n",
            sender.name(),
            able.median / 1e6,
            able.min / 1e6,
            able.max / 1e6
        ));
        let mut is_kept = true;
        for rate in RATES.into_iter().chain(SHARES.map(|share| (able.min * share).floor())) {
            let summaries: Result<Vec<Value>, Problem> =
                (0..RUNS).map(|_| send(sender, Some(rate), SECONDS)).collect();
            let row = Row::of(sender, rate, &summaries?)?;
            is_kept &= row.off.abs() <= TOLERANCE;
            table.push_str(&row.text(sender));
        }
        verdicts.push(format!("`{}` {}", sender.name(), if is_kept { "kept" } else { "not kept" }));
    }
    let verdicts = verdicts.join(", ");
    Ok(format!(
        "{text}\nThen {RUNS} runs of {SECONDS} s with each rate, the last two of them {} % and {} % of the least of that. Gaps and \
         delays are in microseconds, as packets were handed to the port, the medians of the runs; of `replay` it is how far gaps are \
         from what they should be.\n\n{table}\nWithin {TOLERANCE} %: {verdicts}.\n",
        SHARES[0] * 100.0,
        SHARES[1] * 100.0
    ))
}

/// All runs with one rate.
struct Row {
    rate: f64,
    /// Per cent, of the run that is furthest off.
    off: f64,
    /// Nanoseconds.
    times: [Option<f64>; 4],
}

impl Row {
    fn of(sender: Sender, rate: f64, summaries: &[Value]) -> Result<Self, Problem> {
        let mut off = 0.0_f64;
        for summary in summaries {
            let this = (sender.reached(summary, SECONDS)? / rate - 1.0) * 100.0;
            off = if this.abs() > off.abs() { this } else { off };
        }
        let mut times = [None; 4];
        for (time, pointer) in times.iter_mut().zip(sender.times()) {
            let Some(pointer) = pointer else { continue };
            let all: Result<Vec<f64>, Problem> =
                summaries.iter().map(|summary| ours::number(summary, pointer)).collect();
            *time = Some(Spread::of(&all?).median);
        }
        Ok(Self { rate, off, times })
    }

    fn text(&self, sender: Sender) -> String {
        let mut text = format!("| {} | {:.0} | {:+.4} % |", sender.name(), self.rate, self.off);
        for time in self.times {
            text.push_str(&time.map_or(" |".into(), |time| format!(" {:.1} |", time / 1000.0)));
        }
        text.push('\n');
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn json(text: &str) -> Value {
        serde_json::from_str(text).unwrap()
    }

    #[test]
    fn a_row_says_how_far_off_the_worst_run_was() {
        let run = |sent: u32, overtime: u32, p99: u32| {
            json(&format!(
                "{{\"tx_packets\":{sent},\"overtime_packets\":{overtime},\"gap\":{{\"p50_ns\":1000000,\"p99_ns\":{p99}}},\
                 \"late\":{{\"p99_ns\":50,\"max_ns\":900}}}}"
            ))
        };
        let runs = [run(5000, 0, 3_000_000), run(5000, 10, 1_100_000), run(5001, 0, 1_000_000)];
        let row = Row::of(Sender::Xdp, 1000.0, &runs).unwrap();
        assert_eq!(
            row.text(Sender::Xdp),
            "| generate xdp: | 1000 | -0.2000 % | 1000.0 | 1100.0 | 0.1 | 0.9 |\n"
        );
        let run = json(r#"{"tx_packets":5000,"duration_s":5.005,"gap_error":{"p50_ns":1000,"p99_ns":2000}}"#);
        let row = Row::of(Sender::Replay, 1000.0, &[run]).unwrap();
        assert_eq!(row.text(Sender::Replay), "| replay --rate | 1000 | -0.0999 % | 1.0 | 2.0 | | |\n");
    }

    #[test]
    fn a_replay_is_told_how_many_packets_make_five_seconds() {
        let programs = Programs { bywash: "bywash".into(), drop: "drop".into(), capture: "c.pcap".into() };
        let words = |sender: Sender, rate| sender.words(&programs, rate, 5).join(" ");
        assert_eq!(
            words(Sender::Replay, Some(1000.0)),
            "bywash replay c.pcap xdp:bywash0 --loops 0 --idle spin --json --rate=1000 --count=5000"
        );
        assert!(words(Sender::Replay, None).ends_with("--rate=max --duration=5"));
        assert!(
            words(Sender::Inject, Some(1e5)).starts_with("drop bywash1 bywash generate --inject bywash0 ")
        );
        assert!(words(Sender::Xdp, None).ends_with("--json --duration=5"));
    }
}
