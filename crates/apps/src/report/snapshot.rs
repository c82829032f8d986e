//! A moment of a run, as every report shows it: named counters in rows, and distributions of times.
//!
//! An app says once what it counts, as a table of [`Column`]s. The live line, the page, JSON and Prometheus are all made
//! from the [`Snapshot`] that comes of it, so a counter that is added there is in all of them under the same name.

use std::time::Duration;

use super::times::Times;
use crate::rate::{Traffic, per_second};

/// What one number means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Metric {
    /// Its name in JSON: `lost_packets`. Prometheus writes `bywash_` in front.
    pub name: &'static str,
    /// What stands after the number where people read it: `lost`.
    pub noun: &'static str,
    /// What it is, in a sentence without a full stop.
    pub help: &'static str,
    /// How it behaves.
    pub kind: Kind,
}

/// How a number behaves, and so how it is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Packets that the row's rates are of. A row has one such number at most.
    Packets,
    /// Bytes of these packets, without FCS.
    Bytes,
    /// What happens again and again, such as requests: people see it with how often a second that is.
    Events,
    /// Bytes that programs send or receive: people see them with bits per second.
    Payload,
    /// Anything else that only grows.
    Count,
    /// Something that grows and had better not: people see it where it is not 0.
    Fault,
    /// The same that may be taken back, as what is missing may still come.
    Missing,
    /// Something that grows and falls.
    Gauge,
}

impl Kind {
    /// Whether it had better be 0.
    pub(super) fn is_fault(self) -> bool {
        matches!(self, Self::Fault | Self::Missing)
    }

    /// Whether it may become less.
    pub(super) fn may_fall(self) -> bool {
        matches!(self, Self::Gauge | Self::Missing)
    }
}

impl Metric {
    /// The packets that the row's rates are of.
    pub const fn packets(name: &'static str, noun: &'static str, help: &'static str) -> Self {
        Self { name, noun, help, kind: Kind::Packets }
    }

    /// The bytes of these packets, without FCS.
    pub const fn bytes(name: &'static str, noun: &'static str, help: &'static str) -> Self {
        Self { name, noun, help, kind: Kind::Bytes }
    }

    /// What happens again and again, such as requests.
    pub const fn events(name: &'static str, noun: &'static str, help: &'static str) -> Self {
        Self { name, noun, help, kind: Kind::Events }
    }

    /// Bytes that programs send or receive.
    pub const fn payload(name: &'static str, noun: &'static str, help: &'static str) -> Self {
        Self { name, noun, help, kind: Kind::Payload }
    }

    /// Anything else that only grows.
    pub const fn count(name: &'static str, noun: &'static str, help: &'static str) -> Self {
        Self { name, noun, help, kind: Kind::Count }
    }

    /// What had better be 0.
    pub const fn fault(name: &'static str, noun: &'static str, help: &'static str) -> Self {
        Self { name, noun, help, kind: Kind::Fault }
    }

    /// What had better be 0 and may become so again.
    pub const fn missing(name: &'static str, noun: &'static str, help: &'static str) -> Self {
        Self { name, noun, help, kind: Kind::Missing }
    }

    /// What grows and falls.
    pub const fn gauge(name: &'static str, noun: &'static str, help: &'static str) -> Self {
        Self { name, noun, help, kind: Kind::Gauge }
    }
}

/// A number of an app's own record of what it did, and what it means.
pub struct Column<T> {
    /// What it means.
    pub metric: Metric,
    /// Where it is found.
    pub of: fn(&T) -> u64,
}

/// What tells a row from the others of its table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Label {
    /// A number, as of a queue.
    Number(u64),
    /// A name, as of a port.
    Text(String),
    /// Whether it is what the label is called: people see the name, in words, where it is.
    Flag(bool),
}

impl From<usize> for Label {
    fn from(number: usize) -> Self {
        Self::Number(number as u64)
    }
}

impl From<&str> for Label {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

impl From<bool> for Label {
    fn from(is_so: bool) -> Self {
        Self::Flag(is_so)
    }
}

impl std::fmt::Display for Label {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Number(number) => number.fmt(f),
            Self::Text(text) => f.write_str(text),
            Self::Flag(is_so) => is_so.fmt(f),
        }
    }
}

/// Numbers that belong together: of a queue, a stream, a direction, or of everything.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Row {
    /// What tells it from the other rows: `[("queue", 3)]`.
    pub labels: Vec<(&'static str, Label)>,
    /// The numbers, each since the start.
    pub values: Vec<(Metric, u64)>,
}

impl Row {
    /// The `columns` of `record`.
    pub fn new<T>(labels: Vec<(&'static str, Label)>, columns: &[Column<T>], record: &T) -> Self {
        Self { labels, values: columns.iter().map(|column| (column.metric, (column.of)(record))).collect() }
    }

    /// The same row with more columns, of another record.
    #[must_use]
    pub fn and<T>(mut self, columns: &[Column<T>], record: &T) -> Self {
        self.values.extend(columns.iter().map(|column| (column.metric, (column.of)(record))));
        self
    }

    /// The number with this name.
    pub fn value(&self, name: &str) -> Option<u64> {
        self.values.iter().find(|(metric, _)| metric.name == name).map(|(_, value)| *value)
    }

    /// What the rates are of; `None` where the row counts no packets of its own.
    pub fn traffic(&self) -> Option<Traffic> {
        let of = |kind| self.values.iter().find(|(metric, _)| metric.kind == kind).map(|(_, value)| *value);
        of(Kind::Packets).map(|packets| Traffic { packets, bytes: of(Kind::Bytes).unwrap_or(0) })
    }

    /// What has gone wrong, where something has.
    pub fn faults(&self) -> impl Iterator<Item = &(Metric, u64)> {
        self.values.iter().filter(|(metric, value)| metric.kind.is_fault() && *value > 0)
    }

    /// Rates over `seconds` since `before`, or since the start.
    pub fn rates(&self, before: Option<&Self>, seconds: f64) -> Option<Rates> {
        let before = before.and_then(Self::traffic).unwrap_or_default();
        let change = self.traffic()? - before;
        let has_bytes = self.values.iter().any(|(metric, _)| metric.kind == Kind::Bytes);
        Some(Rates {
            pps: per_second(change.packets, seconds),
            bps: has_bytes.then(|| (change.l2_rate(seconds), change.l1_rate(seconds))),
        })
    }
}

/// How fast packets go.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rates {
    /// Packets per second.
    pub pps: u64,
    /// Bits per second, L2 and L1, where the bytes are counted.
    pub bps: Option<(u64, u64)>,
}

/// Rows of one kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Table {
    /// Its name in JSON: `queues`.
    pub name: &'static str,
    /// What one row is: `queue`.
    pub row: &'static str,
    /// Whether the live line shows the rate of each row, because there are few of them.
    pub in_line: bool,
    /// Whether Prometheus is told of it. Not of rows that whoever sends packets makes up: each would be a series for ever.
    pub in_metrics: bool,
    /// So many rows are no news: a summary for people leaves out those without a fault when there are no more.
    pub usual: usize,
    /// Only some rows are here, not always the same: what one had before it came is not known.
    pub partial: bool,
    /// The last row is what all others have together that are not here.
    pub has_rest: bool,
    /// The rows, always in the same order.
    pub rows: Vec<Row>,
}

impl Table {
    /// All rows there are, told of everywhere but in the live line.
    pub fn new(name: &'static str, row: &'static str, usual: usize, rows: Vec<Row>) -> Self {
        Self { name, row, in_line: false, in_metrics: true, usual, partial: false, has_rest: false, rows }
    }

    fn find(&self, labels: &[(&'static str, Label)]) -> Option<&Row> {
        self.rows.iter().find(|row| row.labels == labels)
    }
}

/// Times of one kind, and how often each was seen.
#[derive(Clone, Debug, PartialEq)]
pub struct Distribution {
    /// Its name in JSON: `latency`.
    pub name: &'static str,
    /// What it is, in a sentence without a full stop.
    pub help: &'static str,
    /// In nanoseconds, since the start.
    pub times: Times,
}

/// A moment of a run.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Snapshot {
    /// What runs: `receive`.
    pub command: &'static str,
    /// How long it has run.
    pub elapsed: Duration,
    /// What all did together.
    pub total: Row,
    /// What each queue, stream or direction did.
    pub tables: Vec<Table>,
    /// Delays and the like.
    pub distributions: Vec<Distribution>,
}

impl Snapshot {
    /// The number with this name of everything together.
    pub fn value(&self, name: &str) -> Option<u64> {
        self.total.value(name)
    }

    /// The rows of the table with this name.
    pub fn rows(&self, table: &str) -> &[Row] {
        self.tables.iter().find(|other| other.name == table).map_or(&[], |table| &table.rows)
    }

    /// The change since `before`, or since the start.
    pub fn since<'a>(&'a self, before: Option<&'a Self>) -> Interval<'a> {
        Interval { now: self, before }
    }
}

/// What happened between two moments of a run.
#[derive(Clone, Copy)]
pub struct Interval<'a> {
    /// The later one.
    pub now: &'a Snapshot,
    /// The earlier one; the start when `None`.
    pub before: Option<&'a Snapshot>,
}

impl<'a> Interval<'a> {
    /// Its length.
    pub fn seconds(&self) -> f64 {
        let before = self.before.map_or(Duration::ZERO, |before| before.elapsed);
        self.now.elapsed.saturating_sub(before).as_secs_f64()
    }

    /// Rates of everything together.
    pub fn total(&self) -> Option<Rates> {
        self.now.total.rates(self.before.map(|before| &before.total), self.seconds())
    }

    /// By how much a number of everything together has grown.
    pub(super) fn growth(&self, metric: &Metric) -> u64 {
        let of = |snapshot: &Snapshot| snapshot.value(metric.name).unwrap_or(0);
        of(self.now).saturating_sub(self.before.map_or(0, of))
    }

    /// Rates of `row` of `table`, which is one of [`Snapshot::tables`].
    pub fn rates(&self, table: &Table, row: &Row) -> Option<Rates> {
        let sooner =
            self.before.and_then(|before| before.tables.iter().find(|other| other.name == table.name));
        let before = sooner.and_then(|sooner| sooner.find(&row.labels));
        if let Some(sooner) = sooner.filter(|sooner| sooner.partial) {
            before?;
            // A row that has come or gone since has taken from the rest, or given to it, what it had before.
            let is_rest = table.has_rest && table.rows.last().is_some_and(|last| last.labels == row.labels);
            let are_same = || {
                sooner.rows.len() == table.rows.len()
                    && sooner.rows.iter().all(|row| table.find(&row.labels).is_some())
            };
            if is_rest && !are_same() {
                return None;
            }
        }
        row.rates(before, self.seconds())
    }

    /// The times of `distribution`, one of [`Snapshot::distributions`], that were seen in the interval.
    pub fn times(&self, distribution: &Distribution) -> Times {
        let same = |other: &&Distribution| other.name == distribution.name;
        match self.before.and_then(|before| before.distributions.iter().find(same)) {
            Some(before) => distribution.times.since(&before.times),
            None => distribution.times.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::samples::sooner;
    use super::*;

    #[test]
    fn the_rest_has_a_rate_while_it_is_of_the_same_rows() {
        const PACKETS: Metric = Metric::packets("packets", "packets", "Packets");
        let moment = |seconds, flows: &[(&str, u64)]| {
            let row = |(name, packets): &(&str, u64)| Row {
                labels: vec![("flow", Label::from(*name))],
                values: vec![(PACKETS, *packets)],
            };
            let rows = flows.iter().map(row).collect();
            let table = Table { partial: true, has_rest: true, ..Table::new("flows", "flow", 0, rows) };
            Snapshot { elapsed: Duration::from_secs(seconds), tables: vec![table], ..sooner() }
        };
        let rates = |before: &[(&str, u64)], now: &[(&str, u64)]| -> Vec<Option<u64>> {
            let (before, now) = (moment(1, before), moment(2, now));
            let (interval, table) = (now.since(Some(&before)), &now.tables[0]);
            table.rows.iter().map(|row| interval.rates(table, row).map(|rates| rates.pps)).collect()
        };
        let before = [("a", 10), ("b", 20), ("others", 100)];
        assert_eq!(rates(&before, &[("b", 25), ("a", 11), ("others", 107)]), [Some(5), Some(1), Some(7)]);
        assert_eq!(rates(&before, &[("b", 25), ("c", 90), ("others", 50)]), [Some(5), None, None]);
        assert_eq!(rates(&before, &[("b", 25), ("others", 120)]), [Some(5), None]);
        assert_eq!(rates(&before[..2], &[("a", 11), ("others", 30)]), [Some(1), None]);
    }
}
