//! Who floods, as it is told: those that send most above limits, and those that the port drops everything of.
//!
//! Prometheus is told of neither: whoever sends packets makes up these names, and each would be a series for ever.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::net::IpAddr;
use std::time::Duration;

use bywash_port::{Port, RuleId};

use super::heavy::Sender;
use super::worker::Figures;
use crate::report::{Column, Metric, Row, Table};

/// A source that the port drops everything of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Blocked {
    /// The limit's rule.
    pub(super) rule: String,
    pub(super) source: IpAddr,
    /// So many bits of it count.
    pub(super) bits: u8,
    /// How long it has been blocked, and will be.
    pub(super) been: Duration,
    pub(super) left: Duration,
}

/// What one sender has sent to the workers.
#[derive(Default)]
struct Hit {
    within: u64,
    above: u64,
    recent: u64,
}

const HIT: &[Column<Hit>] = &[
    Column {
        metric: Metric::packets("packets", "packets", "Packets that came to user space and to the limit"),
        of: |hit| hit.within + hit.above,
    },
    Column {
        metric: Metric::count(
            "dropped_packets",
            "dropped",
            "Packets above the limit: dropped, or would have been in a dry run",
        ),
        of: |hit| hit.above,
    },
];

const BLOCKED: &[Column<(u64, [u64; 2])>] = &[
    Column {
        metric: Metric::packets("packets", "packets", "Packets dropped before they came to user space"),
        of: |(packets, _)| *packets,
    },
    Column {
        metric: Metric::gauge("blocked_s", "s so far", "Seconds for which it is blocked"),
        of: |(_, [been, _])| *been,
    },
    Column {
        metric: Metric::gauge("left_s", "s left", "Seconds for which it will be blocked"),
        of: |(_, [_, left])| *left,
    },
];

/// The `most` that have sent most above a limit in the last second, or, where it is quiet, in all, as of `now` in nanoseconds of
/// `CLOCK_MONOTONIC`.
pub(super) fn heavy_hitters(figures: &[Figures], most: usize, now: u64) -> Table {
    let mut hits = HashMap::<(&RuleId, Sender), Hit>::new();
    for worker in figures {
        for (rule, hitter) in &worker.hitters {
            let Some((rule, _)) = worker.rules.get(*rule) else { continue };
            let hit = hits.entry((rule, hitter.who)).or_default();
            hit.within += hitter.within;
            hit.above += hitter.above.all();
            hit.recent += hitter.above.recent(now);
        }
    }
    let mut hits: Vec<_> = hits.into_iter().collect();
    // The name as well, so that equals do not change places.
    hits.sort_by_cached_key(|((rule, who), hit)| {
        (Reverse((hit.recent, hit.above)), rule.name.clone(), who.to_string(), rule.dry_run)
    });
    let row = |((rule, who), hit): &((&RuleId, Sender), Hit)| {
        let kind = match who {
            Sender::Source { .. } => "source",
            Sender::Flow { .. } => "flow",
        };
        let labels = vec![
            ("rule", rule.name.as_str().into()),
            (kind, who.to_string().as_str().into()),
            ("dry_run", rule.dry_run.into()),
        ];
        Row::new(labels, HIT, hit)
    };
    table("heavy_hitters", "heavy_hitter", hits.iter().take(most).map(row).collect())
}

/// The `most` blocked sources that send most.
pub(super) fn blocks(port: &dyn Port, blocked: &[Blocked], most: usize) -> Table {
    let packets = |blocked: &Blocked| port.blocked_packets(&blocked.rule, blocked.source);
    let mut all: Vec<(u64, &Blocked)> = blocked.iter().map(|blocked| (packets(blocked), blocked)).collect();
    all.sort_by(|(a, one), (b, other)| {
        b.cmp(a).then_with(|| (&one.rule, one.source).cmp(&(&other.rule, other.source)))
    });
    let row = |(packets, blocked): &(u64, &Blocked)| {
        let who = Sender::Source { first: blocked.source, bits: blocked.bits }.to_string();
        let times = [blocked.been, blocked.left].map(|time| time.as_secs());
        let labels = vec![("rule", blocked.rule.as_str().into()), ("source", who.as_str().into())];
        Row::new(labels, BLOCKED, &(*packets, times))
    };
    table("blocks", "block", all.iter().take(most).map(row).collect())
}

fn table(name: &'static str, row: &'static str, rows: Vec<Row>) -> Table {
    Table { in_metrics: false, partial: true, ..Table::new(name, row, 0, rows) }
}
