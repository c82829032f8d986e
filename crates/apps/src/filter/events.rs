//! What is told of filtering, to people and to programs.

use std::collections::HashMap;
use std::fmt::{self, Display};
use std::ops::AddAssign;
use std::time::Duration;

use bywash_port::{Counter, Port, RuleCount, RuleId, Rules};
use bywash_sys::clock;
use bywash_sys::spool::Written;
use serde::Serialize;

use super::control::Done;
use super::judge::Counted;
use super::places::Placed;
use super::top::{self, Blocked};
use super::worker::{Figures, LaneFigures};
use crate::report::{Column, Metric, Row, Snapshot, Table};
use crate::session::{self, PortSummary, RULE_BYTES, RULE_PACKETS, port_table};

/// What it is called on the command line.
pub(super) const COMMAND: &str = "filter";

/// What is about to be filtered.
#[derive(Clone, Debug, Serialize)]
pub struct Start {
    pub(super) command: &'static str,
    pub(super) port: String,
    pub(super) mode: Vec<&'static str>,
    /// The kernel decides all.
    #[serde(skip)]
    pub(super) in_kernel: bool,
    pub(super) workers: usize,
    /// The rule file; none when everything is given back.
    pub(super) rules: Option<String>,
    /// Rules that the kernel's program decides.
    pub(super) kernel: usize,
    /// Rules that user space has the last word on.
    pub(super) user_space: usize,
    /// Where each rule is.
    pub(super) places: Vec<Placed>,
    /// The same, for people.
    #[serde(skip)]
    pub(super) told: Vec<String>,
}

impl Display for Start {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "filtering {} ({}), {} worker(s)", self.port, self.mode.join(", "), self.workers)?;
        match &self.rules {
            Some(file) if self.in_kernel => write!(f, "\n  {file}: {} rules in the kernel", self.kernel)?,
            Some(file) => {
                write!(f, "\n  {file}: {} rules in XDP, {} in user space", self.kernel, self.user_space)?;
            }
            None => f.write_str("\n  no rules: everything is counted and given back to the kernel")?,
        }
        for line in &self.told {
            write!(f, "\n  {line}")?;
        }
        f.write_str("\nCtrl-C ends it")
    }
}

/// All that a rule has counted.
#[derive(Clone, Copy)]
struct RuleFigures {
    about: RuleCount,
    dropped: u64,
}

impl RuleFigures {
    fn new(rule: &RuleId, kernel: RuleCount, here: Counted) -> Self {
        // What the kernel counts for a limit are sources that are blocked; for cookies, mostly answers.
        let drops = matches!(rule.action, "drop" | "limit");
        let mut about = kernel;
        about += here.about;
        Self { about, dropped: here.dropped + if drops { kernel.packets } else { 0 } }
    }
}

impl AddAssign for RuleFigures {
    fn add_assign(&mut self, more: Self) {
        self.about += more.about;
        self.dropped += more.dropped;
    }
}

const RULE: &[Column<RuleFigures>] = &[
    Column { metric: RULE_PACKETS, of: |rule| rule.about.packets },
    Column { metric: RULE_BYTES, of: |rule| rule.about.bytes },
    Column {
        metric: Metric::packets(
            "dropped_packets",
            "dropped",
            "Packets that the rule dropped, or would have in a dry run",
        ),
        of: |rule| rule.dropped,
    },
];

const LANE: &[Column<LaneFigures>] = &[
    Column {
        metric: Metric::packets("packets", "packets", "Packets that came to user space by the queue"),
        of: |lane| lane.received.packets,
    },
    Column {
        metric: Metric::bytes("bytes", "bytes", "Their bytes, without FCS"),
        of: |lane| lane.received.bytes,
    },
    Column {
        metric: Metric::count("given_back_packets", "given back", "Packets given back to the kernel"),
        of: |lane| lane.given_back.packets,
    },
    Column {
        metric: Metric::count("dropped_packets", "dropped", "Packets dropped in user space"),
        of: |lane| lane.dropped,
    },
    Column { metric: LOST, of: |lane| lane.lost + lane.given_back.errors },
    Column {
        metric: Metric::fault(
            "no_frame",
            "times without a free frame (give more: --memory)",
            "Times no frame was free",
        ),
        of: |lane| lane.received.no_frame,
    },
];

const LOST: Metric = Metric::fault(
    "lost_packets",
    "lost on the way back",
    "Packets that the kernel had no room for on their way back",
);

/// What the port counts of packets for which sockets had no room. A fill ring that was empty is in the first of them, where it has
/// cost a packet.
const NO_ROOM: [&str; 2] = ["rx_dropped", "rx_ring_full"];

/// Packets for user space that were lost before it had them.
pub(super) fn unjudged(counters: &[Counter]) -> u64 {
    counters.iter().filter(|counter| NO_ROOM.contains(&counter.name)).map(|counter| counter.value).sum()
}

/// Everything together.
struct Total {
    dropped: RuleCount,
    taken: u64,
    unjudged: u64,
    given_back: u64,
    lost: u64,
    /// Samples in the file, or on their way.
    samples: u64,
    /// What has become of those.
    written: Written,
    /// Samples that never were on their way.
    lost_samples: u64,
    done: Done,
}

const TOTAL: &[Column<Total>] = &[
    Column {
        metric: Metric::packets("dropped_packets", "dropped", "Packets that rules dropped"),
        of: |total| total.dropped.packets,
    },
    Column {
        metric: Metric::count("taken_packets", "to user space", "Packets that came to user space"),
        of: |total| total.taken,
    },
    Column {
        metric: Metric::fault(
            "unjudged_packets",
            "lost on the way to user space",
            "Packets that user space should have judged and had no room for: it can't keep up",
        ),
        of: |total| total.unjudged,
    },
    Column {
        metric: Metric::count("given_back_packets", "given back", "Packets given back to the kernel"),
        of: |total| total.given_back,
    },
    Column { metric: LOST, of: |total| total.lost },
    Column {
        metric: Metric::count("sampled_packets", "sampled", "Packets in the file of samples"),
        of: |total| total.written.records,
    },
    Column {
        metric: Metric::fault(
            "lost_samples",
            "samples lost: too many for the disk or the worker, or the file takes no more",
            "Samples there was no room for, or no file any more",
        ),
        of: |total| {
            let is_over = total.written.has_ended();
            let unwritten = if is_over { total.samples.saturating_sub(total.written.records) } else { 0 };
            total.lost_samples + unwritten
        },
    },
    Column {
        metric: Metric::count("reloads", "reloads", "Times other rules took the place of the old ones"),
        of: |total| total.done.reloads,
    },
    Column {
        metric: Metric::fault("refused_reloads", "rule files refused", "Times a rule file was refused"),
        of: |total| total.done.refused,
    },
    Column {
        metric: Metric::count("blocked_sources", "sources blocked", "Sources that limits have blocked"),
        of: |total| total.done.blocked,
    },
    Column {
        metric: Metric::gauge("blocked_now", "blocked now", "Sources that are blocked now"),
        of: |total| total.done.blocks,
    },
];

/// What there is to be told of, beside what the port counts.
pub(super) struct Moment<'a> {
    pub(super) rules: &'a Rules,
    pub(super) figures: &'a [Figures],
    pub(super) done: &'a Done,
    pub(super) blocked: &'a [Blocked],
    /// So many senders at most.
    pub(super) top: usize,
    pub(super) elapsed: Duration,
}

/// What has been done so far, but for what has become of samples: that is known last.
pub(super) struct Seen {
    total: Total,
    tables: Vec<Table>,
    elapsed: Duration,
}

impl Seen {
    pub(super) fn snapshot(self, written: Written) -> Snapshot {
        let total = Total { written, ..self.total };
        Snapshot {
            command: COMMAND,
            elapsed: self.elapsed,
            total: Row::new(Vec::new(), TOTAL, &total),
            tables: self.tables,
            distributions: Vec::new(),
        }
    }
}

pub(super) fn look(port: &dyn Port, moment: &Moment<'_>) -> Seen {
    let Moment { rules, figures, done, top, elapsed, .. } = *moment;
    let accounts = accounts(port, rules, figures);
    let rows = by_rule(&accounts).into_iter().map(|(rule, figures)| {
        let labels = vec![
            ("rule", rule.name.as_str().into()),
            ("action", rule.action.into()),
            ("dry_run", rule.dry_run.into()),
        ];
        Row::new(labels, RULE, &figures)
    });
    let mut lanes: Vec<LaneFigures> =
        figures.iter().flat_map(|worker| worker.lanes.iter().copied()).collect();
    lanes.sort_by_key(|lane| lane.number);
    let queues = lanes.iter().map(|lane| Row::new(vec![("queue", lane.number.into())], LANE, lane));
    let real = accounts.iter().filter(|(rule, _)| !rule.dry_run);
    let total = Total {
        dropped: RuleCount { packets: real.map(|(_, figures)| figures.dropped).sum(), bytes: 0 },
        taken: lanes.iter().map(|lane| lane.received.packets).sum(),
        unjudged: unjudged(&port.counters()),
        given_back: lanes.iter().map(|lane| lane.given_back.packets).sum(),
        lost: lanes.iter().map(|lane| lane.lost + lane.given_back.errors).sum(),
        samples: figures.iter().map(|worker| worker.samples).sum(),
        written: Written::default(),
        lost_samples: figures.iter().map(|worker| worker.lost_samples).sum::<u64>() + port.lost_samples(),
        done: *done,
    };
    let tables = vec![
        Table::new("rules", "rule", 0, rows.collect()),
        top::heavy_hitters(figures, top, clock::monotonic()),
        top::blocks(port, moment.blocked, top),
        Table::new("queues", "queue", 1, queues.collect()),
        port_table([port]),
    ];
    Seen { total, tables, elapsed }
}

/// What each rule has counted, in the kernel and in user space: those that hold, in order, and then all that have held. None may be
/// left out: totals are their sums, and never fall.
fn accounts(port: &dyn Port, rules: &Rules, figures: &[Figures]) -> Vec<(RuleId, RuleFigures)> {
    let mut here: HashMap<&RuleId, Counted> = HashMap::new();
    for (rule, counted) in figures.iter().flat_map(|worker| worker.rules.iter().chain(&worker.past)) {
        *here.entry(rule).or_default() += *counted;
    }
    let now = rules.set.rules().iter().map(RuleId::from).zip(port.rule_counts());
    let mut accounts: Vec<(RuleId, RuleFigures)> = Vec::new();
    for (rule, kernel) in now.chain(port.past_rule_counts()) {
        let here = here.remove(&rule).unwrap_or_default();
        let figures = RuleFigures::new(&rule, kernel, here);
        accounts.push((rule, figures));
    }
    // A worker may know a rule for a moment longer than the port, and sums up at another time.
    let others = here
        .into_iter()
        .map(|(rule, here)| (rule.clone(), RuleFigures::new(rule, RuleCount::default(), here)));
    accounts.extend(others);
    accounts
}

/// A row for each: what a rule would have dropped in a dry run stands apart from what it has dropped, so that the rows which are no
/// dry run make up the total.
fn by_rule(accounts: &[(RuleId, RuleFigures)]) -> Vec<(&RuleId, RuleFigures)> {
    let mut rows: Vec<(&RuleId, RuleFigures)> = Vec::new();
    let mut places = HashMap::new();
    for (rule, figures) in accounts {
        let place = *places.entry(rule).or_insert(rows.len());
        match rows.get_mut(place) {
            Some((_, row)) => *row += *figures,
            None => rows.push((rule, *figures)),
        }
    }
    rows
}

/// What came of filtering.
#[derive(Debug, Serialize)]
pub struct Summary {
    /// It ran until its end.
    pub met: bool,
    /// Why not.
    pub unmet: Vec<String>,
    /// What was done.
    #[serde(flatten)]
    pub snapshot: Snapshot,
    /// What the port counted.
    pub port: Option<PortSummary>,
    /// What could not be undone, and the like.
    #[serde(skip)]
    pub warnings: Vec<String>,
    #[serde(skip)]
    rules: usize,
}

impl Summary {
    pub(super) fn new(
        snapshot: Snapshot,
        unmet: Vec<String>,
        rules: usize,
        port: Option<PortSummary>,
        warnings: Vec<String>,
    ) -> Self {
        Self { met: unmet.is_empty(), unmet, snapshot, port, warnings, rules }
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
        let count = |name| self.snapshot.value(name).unwrap_or(0);
        write!(f, "filtered for {:.3} s by {} rule(s)", self.snapshot.elapsed.as_secs_f64(), self.rules)?;
        write!(f, "\n  {} dropped", count("dropped_packets"))?;
        write!(f, "; {} to user space, {} given back", count("taken_packets"), count("given_back_packets"))?;
        self.snapshot.write_rows(f)?;
        session::write_counters(f, self.port.as_slice())
    }
}
