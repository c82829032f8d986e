//! What is told of replaying, to people and to programs.

use std::fmt::{self, Display};
use std::time::Duration;

use serde::Serialize;

use super::worker::Figures;
use super::{Options, Source, Speed};
use crate::report::{Column, Dial, Distribution, Metric, Row, Snapshot, Table, Times};
use crate::session::{self, PortSummary};

/// Put-off time in a thousand of the whole at which a timing counts as not kept.
const TOLERANCE: u64 = 1;

/// How fast, for programs: what was asked for, and its number.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(super) enum Timing {
    /// As the file's times say, so many times as fast.
    #[serde(rename = "original")]
    Original(f64),
    /// Packets per second.
    #[serde(rename = "pps")]
    Packets(f64),
    /// Bits of frames per second.
    #[serde(rename = "l2_bps")]
    L2(f64),
    /// Bits of the link per second.
    #[serde(rename = "l1_bps")]
    L1(f64),
    /// As fast as it goes.
    #[serde(rename = "flat")]
    Flat,
}

impl From<Speed> for Timing {
    fn from(speed: Speed) -> Self {
        match speed {
            Speed::Original(factor) => Self::Original(factor),
            Speed::Packets(rate) => Self::Packets(rate),
            Speed::L2(rate) => Self::L2(rate),
            Speed::L1(rate) => Self::L1(rate),
            Speed::Flat => Self::Flat,
        }
    }
}

impl Display for Timing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            #[expect(clippy::float_cmp, reason = "as it was typed, or left out")]
            Self::Original(factor) if *factor == 1.0 => f.write_str("with its own timing"),
            Self::Original(factor) => write!(f, "{factor} times as fast as its own timing"),
            Self::Packets(rate) => write!(f, "at {rate} packets/s"),
            Self::L2(rate) => write!(f, "at {rate} bit/s (L2)"),
            Self::L1(rate) => write!(f, "at {rate} bit/s (L1)"),
            Self::Flat => f.write_str("as fast as it goes"),
        }
    }
}

/// What it is called on the command line.
pub(super) const COMMAND: &str = "replay";

/// What is about to be replayed.
#[derive(Debug, Serialize)]
pub struct Start {
    pub(super) command: &'static str,
    pub(super) file: String,
    pub(super) port: String,
    pub(super) mode: Vec<&'static str>,
    pub(super) timing: Timing,
    /// In memory; else it is read while it is sent.
    pub(super) preloaded: bool,
    pub(super) file_packets: Option<u64>,
    pub(super) file_duration_s: Option<f64>,
    pub(super) loops: Option<u64>,
}

impl Display for Start {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "replaying {} on {} ({}) {}", self.file, self.port, self.mode.join(", "), self.timing)?;
        match self.loops {
            Some(1) => {}
            Some(loops) => write!(f, ", {loops} times")?,
            None => f.write_str(", until Ctrl-C")?,
        }
        match (self.file_packets, self.file_duration_s) {
            (Some(packets), Some(seconds)) => {
                write!(f, "\n  {packets} packets over {seconds:.3} s, in memory")
            }
            _ => f.write_str("\n  read while it is sent"),
        }
    }
}

pub(super) fn seconds(ns: u64) -> f64 {
    Duration::from_nanos(ns).as_secs_f64()
}

const TOTAL: &[Column<Figures>] = &[
    Column {
        metric: Metric::packets("tx_packets", "sent", "Packets sent: the port has said so"),
        of: |figures| figures.counters.packets,
    },
    Column {
        metric: Metric::bytes("tx_bytes", "bytes", "Their bytes, without FCS"),
        of: |figures| figures.counters.bytes,
    },
    Column {
        metric: Metric::fault("errors", "refused", "Packets the port refused"),
        of: |figures| figures.counters.errors,
    },
    Column {
        metric: Metric::gauge(
            "in_flight_packets",
            "in flight",
            "Packets handed to the port and not yet sent",
        ),
        of: |figures| figures.in_flight,
    },
    Column {
        metric: Metric::count("loops", "loops", "Times that the whole file was sent"),
        of: |figures| figures.loops,
    },
    Column {
        metric: Metric::fault(
            "put_off_ns",
            "ns put off",
            "Nanoseconds by which the replay is later than it should be, because the port took no more",
        ),
        of: |figures| figures.put_off,
    },
    Column {
        metric: Metric::fault(
            "starved_turns",
            "times not read yet",
            "Times packets were due, as far as is known, and not read yet: the disk, or who writes a pipe, is too slow",
        ),
        of: |figures| figures.starved,
    },
];

/// What the file came to.
const FILE: &[Column<Figures>] = &[
    Column {
        metric: Metric::count("packets", "packets", "Packets of the file that are sent"),
        of: |figures| figures.notes.packets,
    },
    Column {
        metric: Metric::count("duration_ns", "ns", "Nanoseconds from its first to its last packet"),
        of: |figures| figures.notes.span,
    },
    Column {
        metric: Metric::fault(
            "cut_packets",
            "without their end (captured with a snap length)",
            "Packets of which the file does not have the end; sent as they are",
        ),
        of: |figures| figures.notes.cut,
    },
    Column {
        metric: Metric::fault("short_packets", "too short, left out", "Packets without an Ethernet header"),
        of: |figures| figures.notes.short,
    },
    Column {
        metric: Metric::fault(
            "too_long_packets",
            "longer than the port takes",
            "Packets longer than the port takes, left out or cut",
        ),
        of: |figures| figures.notes.too_long,
    },
    Column {
        metric: Metric::fault(
            "backwards_packets",
            "with a time before the packet in front",
            "Packets with a time before that of the packet in front: sent at once",
        ),
        of: |figures| figures.notes.backwards,
    },
];

/// The distribution of how far gaps were from what they should be.
pub(super) const GAP_ERROR: &str = "gap_error";

/// What has been done so far.
pub(super) fn snapshot(
    figures: &Figures,
    gaps: &Dial,
    (source, speed): (&Source, Speed),
    elapsed: Duration,
) -> Snapshot {
    let file = Row::new(vec![("file", source.to_string().as_str().into())], FILE, figures);
    let gap_error = Distribution {
        name: GAP_ERROR,
        help: "How far the gaps between packets, as they were handed to the port, are from what they should be",
        times: Times::read([gaps]),
    };
    Snapshot {
        command: COMMAND,
        elapsed,
        total: Row::new(Vec::new(), TOTAL, figures),
        tables: vec![Table::new("files", "file", 1, vec![file])],
        // Flat out there is nothing that a gap should be.
        distributions: if speed == Speed::Flat { Vec::new() } else { vec![gap_error] },
    }
}

/// What came of replaying.
#[derive(Debug, Serialize)]
pub struct Summary {
    /// All was sent, when it was due.
    pub met: bool,
    /// Why not.
    pub unmet: Vec<String>,
    /// The file.
    pub file: String,
    /// What was sent.
    #[serde(flatten)]
    pub snapshot: Snapshot,
    /// What the port counted.
    pub port: PortSummary,
    /// What could not be undone, and the like.
    #[serde(skip)]
    pub warnings: Vec<String>,
}

impl Summary {
    pub(super) fn new(
        (figures, snapshot): (&Figures, Snapshot),
        mut unmet: Vec<String>,
        (options, speed): (&Options, Speed),
        (port, warnings): (PortSummary, Vec<String>),
    ) -> Self {
        unmet.extend(figures.failure.clone());
        let file = options.source.to_string();
        let mut summary = Self { met: true, unmet, file, snapshot, port, warnings };
        summary.judge(figures, options, speed);
        summary.met = summary.unmet.is_empty();
        summary
    }

    fn judge(&mut self, figures: &Figures, options: &Options, speed: Speed) {
        let (port, sent) = (&self.port.name, figures.counters.packets);
        let is_empty = sent == 0 && figures.notes.packets == 0;
        if let Some(broken) = &figures.notes.broken {
            let rest = if is_empty { "" } else { "; what stands before was sent" };
            self.unmet.push(format!("{}: {broken}{rest}", self.file));
        }
        if figures.notes.short > 0 {
            let short = figures.notes.short;
            self.unmet.push(format!("{short} packets of {} are too short for Ethernet: left out", self.file));
        }
        if figures.counters.errors > 0 {
            self.unmet.push(format!("{} packets were refused by {port}", figures.counters.errors));
        }
        self.unmet.extend(session::never_left(figures.in_flight, port));
        if self.port.is_unread() {
            return;
        }
        let has_end = options.duration.is_none() && (options.loops.is_some() || options.count.is_some());
        if figures.failure.is_some() {
            // That is why no more was sent.
        } else if is_empty {
            self.unmet.push(format!("nothing was sent: no packet of {} came", self.file));
        } else if sent == 0 {
            self.unmet.push(format!(
                "nothing was sent: {port} took no packet; is its link up and its other end open?"
            ));
        } else if has_end && !figures.is_complete {
            self.unmet.push(format!("it was stopped after {sent} packets"));
        } else if let Some(count) = options.count.filter(|count| sent + figures.counters.errors < *count) {
            let why = if figures.is_complete { ": the file has no more (--loops)" } else { "" };
            self.unmet.push(format!("{sent} of {count} packets were sent{why}"));
        }
        let ran = u64::try_from(self.snapshot.elapsed.as_nanos()).unwrap_or(u64::MAX);
        if speed != Speed::Flat && figures.put_off > ran / 1000 * TOLERANCE {
            self.unmet.push(format!(
                "the timing was not kept: {:.3} s of delay, because {port} took no more or the file was not read in \
                 time",
                seconds(figures.put_off)
            ));
        }
    }
}

impl session::Summary for Summary {
    fn unmet(&self) -> &[String] {
        &self.unmet
    }

    fn warnings(&self) -> &[String] {
        &self.warnings
    }
}

impl Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (count, elapsed) =
            (|name| self.snapshot.value(name).unwrap_or(0), self.snapshot.elapsed.as_secs_f64());
        write!(f, "sent {} packets of {} in {elapsed:.3} s", count("tx_packets"), self.file)?;
        if let Some(rates) = self.snapshot.since(None).total() {
            write!(f, ": {rates}")?;
        }
        if count("loops") > 1 {
            write!(f, "\n  {} times the whole file", count("loops"))?;
        }
        self.snapshot.write_distributions(f)?;
        self.snapshot.write_rows(f)?;
        session::write_counters(f, std::slice::from_ref(&self.port))
    }
}
