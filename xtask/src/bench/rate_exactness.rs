//! Benchmark `rate-exactness`: how exactly a rate is kept, from a thousand packets per second to nine tenths of what the
//! port can do, and how even the gaps are.
//!
//! A machine gets slower and faster by itself, by a third from one run to the next. So before and after each run with a share
//! of what the port can do, it is measured flat out: the first says what is asked for, and a run counts when the second did
//! not fall behind. The others are told of. Each rate has several runs: the median is judged, the worst is shown.
//!
//! A packet that was due in the five seconds and left after them counts as not sent; replaying, which has no end in time, is
//! judged by how long it took, its start and end included.

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

/// How long each flat-out run takes.
const FLAT_OUT: u32 = 2;

/// How much slower than the one before the flat-out run after a share may be.
const STEADY: f64 = 0.97;

/// Runs with a share that do not count, at most.
const UNSTEADY: usize = 20;

/// Rates in packets per second; shares of what the port can do follow.
const RATES: [f64; 2] = [1e3, 1e5];

const SHARES: [f64; 2] = [0.5, 0.9];

/// Runs with each rate.
const RUNS: usize = 5;

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
    let mut table =
        "| sender | asked, packets/s | off by | at worst | gap p50 | gap p99 | late p99 | late max | not counted |\n\
                     |---|---:|---:|---:|---:|---:|---:|---:|---:|\n"
            .to_owned();
    let mut verdicts = Vec::new();
    for sender in [Sender::Xdp, Sender::Inject, Sender::Replay] {
        let mut rows = Vec::new();
        for rate in RATES {
            let runs: Result<Vec<Run>, Problem> =
                (0..RUNS).map(|_| Run::of(sender, rate, &send(sender, Some(rate), SECONDS)?)).collect();
            rows.push(Row { asked: format!("{rate:.0}"), runs: runs?, unsteady: 0 });
        }
        for share in SHARES {
            rows.push(share_of(sender, share, |rate, seconds| send(sender, rate, seconds))?);
        }
        let is_kept = rows.iter().all(|row| row.off().median.abs() <= TOLERANCE);
        table.extend(rows.iter().map(|row| row.text(sender)));
        verdicts.push(format!("`{}` {}", sender.name(), if is_kept { "kept" } else { "not kept" }));
    }
    let verdicts = verdicts.join(", ");
    Ok(format!(
        "{RUNS} runs of {SECONDS} s with each rate: how far off by the median of them, and the worst. A share is of what the port did \
         flat out right before; a run is not counted where it did less than {STEADY} of that right after. Gaps and delays are in \
         microseconds, as packets were handed to the port, the medians of the runs; of `replay` it is how far gaps are from \
         what they should be.\n\n{table}\nWithin {TOLERANCE} %: {verdicts}.\n"
    ))
}

/// Runs with a share of what the port can do, which it can do before and after.
fn share_of(
    sender: Sender,
    share: f64,
    mut send: impl FnMut(Option<f64>, u32) -> Result<Value, Problem>,
) -> Result<Row, Problem> {
    let (mut runs, mut rates, mut unsteady) = (Vec::new(), Vec::new(), 0);
    let mut able = flat_out(&mut send)?;
    while runs.len() < RUNS {
        let rate = (able * share).floor();
        let summary = send(Some(rate), SECONDS)?;
        let after = flat_out(&mut send)?;
        if after >= able * STEADY {
            runs.push(Run::of(sender, rate, &summary)?);
            rates.push(rate);
        } else {
            unsteady += 1;
            if unsteady == UNSTEADY {
                return Err(Problem(format!("the machine is not steady: {unsteady} runs do not count")));
            }
        }
        able = after;
    }
    let Spread { min, max, .. } = Spread::of(&rates);
    Ok(Row { asked: format!("{min:.0} to {max:.0} ({:.0} %)", share * 100.0), runs, unsteady })
}

/// Packets per second that it sends flat out.
fn flat_out(send: &mut impl FnMut(Option<f64>, u32) -> Result<Value, Problem>) -> Result<f64, Problem> {
    let summary = send(None, FLAT_OUT)?;
    Ok(ours::number(&summary, "/tx_packets")? / ours::number(&summary, "/duration_s")?)
}

/// A run with one rate.
struct Run {
    /// Per cent.
    off: f64,
    /// Nanoseconds.
    times: [Option<f64>; 4],
}

impl Run {
    fn of(sender: Sender, rate: f64, summary: &Value) -> Result<Self, Problem> {
        let off = (sender.reached(summary, SECONDS)? / rate - 1.0) * 100.0;
        let mut times = [None; 4];
        for (time, pointer) in times.iter_mut().zip(sender.times()) {
            *time = pointer.map(|pointer| ours::number(summary, pointer)).transpose()?;
        }
        Ok(Self { off, times })
    }
}

/// All runs with one rate.
struct Row {
    asked: String,
    runs: Vec<Run>,
    /// Runs that do not count.
    unsteady: usize,
}

impl Row {
    fn off(&self) -> Spread {
        Spread::of(&self.runs.iter().map(|run| run.off).collect::<Vec<_>>())
    }

    fn text(&self, sender: Sender) -> String {
        let Spread { median, min, max } = self.off();
        let worst = if max > -min { max } else { min };
        let mut text = format!("| {} | {} | {median:+.4} % | {worst:+.4} % |", sender.name(), self.asked);
        for number in 0..4 {
            let times: Vec<f64> = self.runs.iter().filter_map(|run| run.times[number]).collect();
            if times.is_empty() {
                text.push_str(" |");
            } else {
                text.push_str(&format!(" {:.1} |", Spread::of(&times).median / 1000.0));
            }
        }
        text.push_str(&format!(" {} |\n", self.unsteady));
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
    fn a_row_says_how_far_off_the_median_and_the_worst_run_were() {
        let run = |sent: u32, overtime: u32, p99: u32| {
            let summary = json(&format!(
                "{{\"tx_packets\":{sent},\"overtime_packets\":{overtime},\"gap\":{{\"p50_ns\":1000000,\"p99_ns\":{p99}}},\
                 \"late\":{{\"p99_ns\":50,\"max_ns\":900}}}}"
            ));
            Run::of(Sender::Xdp, 1000.0, &summary).unwrap()
        };
        let runs = vec![run(5000, 0, 3_000_000), run(5000, 10, 1_100_000), run(5001, 0, 1_000_000)];
        let row = Row { asked: "1000".into(), runs, unsteady: 2 };
        assert_eq!(
            row.text(Sender::Xdp),
            "| generate xdp: | 1000 | +0.0000 % | -0.2000 % | 1000.0 | 1100.0 | 0.1 | 0.9 | 2 |\n"
        );
        let run = json(r#"{"tx_packets":5000,"duration_s":5.005,"gap_error":{"p50_ns":1000,"p99_ns":2000}}"#);
        let runs = vec![Run::of(Sender::Replay, 1000.0, &run).unwrap()];
        let row = Row { asked: "1000".into(), runs, unsteady: 0 };
        assert_eq!(
            row.text(Sender::Replay),
            "| replay --rate | 1000 | -0.0999 % | -0.0999 % | 1.0 | 2.0 | | | 0 |\n"
        );
    }

    #[test]
    fn a_share_counts_while_the_port_can_do_it_before_and_after() {
        // What it did flat out, five seconds with a rate, and flat out again; it is slower after the second run.
        let mut able = [2e6, 2e6, 1.5e6, 1.6e6, 1.6e6, 1.56e6, 1.56e6].into_iter();
        let mut asked = Vec::new();
        let row = share_of(Sender::Xdp, 0.5, |rate, seconds| {
            let sent = rate.unwrap_or_else(|| able.next().unwrap()) * f64::from(seconds);
            asked.extend(rate);
            Ok(json(&format!(
                "{{\"tx_packets\":{sent},\"duration_s\":{seconds},\"overtime_packets\":0,\
                 \"gap\":{{\"p50_ns\":1,\"p99_ns\":1}},\"late\":{{\"p99_ns\":1,\"max_ns\":1}}}}"
            )))
        })
        .unwrap();
        assert_eq!(asked, [1e6, 1e6, 7.5e5, 8e5, 8e5, 7.8e5]);
        assert_eq!((row.asked.as_str(), row.runs.len(), row.unsteady), ("750000 to 1000000 (50 %)", 5, 1));
        let mut slower = 1e7;
        let never = share_of(Sender::Xdp, 0.9, |rate, seconds| {
            slower *= 0.9;
            Ok(json(&format!("{{\"tx_packets\":{},\"duration_s\":{seconds}}}", rate.unwrap_or(slower))))
        });
        assert!(never.is_err());
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
