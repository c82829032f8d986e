//! What came of forwarding, for people and for programs.

use std::fmt::{self, Display};
use std::time::Duration;

use serde::Serialize;

use super::Direction;
use super::worker::{Figures, QueueFigures};
use crate::rate::Traffic;
use crate::report::{Column, Label, Metric, Row, Snapshot, Table};
use crate::session::{self, PortSummary, QUEUE};

/// What came of forwarding.
#[derive(Debug, Serialize)]
pub struct Summary {
    /// Nothing failed, all that came was sent, and files were read and written to their end.
    pub met: bool,
    /// Why not.
    pub unmet: Vec<String>,
    /// What each direction and each queue did.
    #[serde(flatten)]
    pub snapshot: Snapshot,
    /// What the ports counted.
    pub ports: Vec<PortSummary>,
    /// What could not be undone.
    #[serde(skip)]
    pub warnings: Vec<String>,
}

/// What was carried, in one direction or in all.
#[derive(Clone, Copy, Debug, Default)]
struct Carried {
    received: Traffic,
    sent: Traffic,
    dropped: u64,
    in_flight: u64,
}

const CARRIED: &[Column<Carried>] = &[
    Column {
        metric: Metric::packets("tx_packets", "sent", "Packets that the other side has sent"),
        of: |carried| carried.sent.packets,
    },
    Column {
        metric: Metric::bytes("tx_bytes", "bytes", "Their bytes, without FCS"),
        of: |carried| carried.sent.bytes,
    },
    Column {
        metric: Metric::count("rx_packets", "received", "Packets received"),
        of: |carried| carried.received.packets,
    },
    Column {
        metric: Metric::count("rx_bytes", "bytes", "Bytes of received packets, without FCS"),
        of: |carried| carried.received.bytes,
    },
    Column { metric: DROPPED, of: |carried| carried.dropped },
    Column {
        metric: Metric::gauge(
            "in_flight_packets",
            "handed over and not confirmed",
            "Packets handed to the other side and not yet sent",
        ),
        of: |carried| carried.in_flight,
    },
];

const DROPPED: Metric = Metric::fault(
    "dropped_packets",
    "dropped: the other side took no more",
    "Packets received and then dropped",
);

const DROPPED_HERE: &[Column<QueueFigures>] = &[Column { metric: DROPPED, of: |queue| queue.dropped }];

/// What the workers have done so far.
pub(super) fn snapshot(directions: &[Direction], figures: &[Figures], elapsed: Duration) -> Snapshot {
    let mut all = vec![Carried::default(); directions.len()];
    let mut queues = Vec::new();
    for worker in figures {
        for queue in &worker.entrances {
            all[queue.direction].received += queue.counters.into();
            queues.push((queue.direction, "rx", queue));
        }
        for queue in &worker.exits {
            let carried = &mut all[queue.direction];
            carried.sent += queue.counters.into();
            carried.dropped += queue.dropped;
            carried.in_flight += queue.in_flight;
            queues.push((queue.direction, "tx", queue));
        }
    }
    queues.sort_by_key(|(direction, way, queue)| (*direction, *way, queue.number));
    let total = all.iter().fold(Carried::default(), |sum, carried| Carried {
        received: sum.received + carried.received,
        sent: sum.sent + carried.sent,
        dropped: sum.dropped + carried.dropped,
        in_flight: sum.in_flight + carried.in_flight,
    });
    let rows = directions.iter().zip(&all).map(|(Direction { from, to }, carried)| {
        Row::new(vec![("from", from.as_str().into()), ("to", to.as_str().into())], CARRIED, carried)
    });
    let queue_row = |(direction, way, queue): &(usize, &str, &QueueFigures)| {
        let Direction { from, to } = &directions[*direction];
        let port = if *way == "rx" { from } else { to };
        let labels: Vec<(&'static str, Label)> =
            vec![("port", port.as_str().into()), ("way", (*way).into()), ("queue", queue.number.into())];
        Row::new(labels, QUEUE, &queue.counters).and(DROPPED_HERE, queue)
    };
    Snapshot {
        command: "forward",
        elapsed,
        total: Row::new(Vec::new(), CARRIED, &total),
        tables: vec![
            Table {
                in_line: directions.len() > 1,
                ..Table::new("directions", "direction", 0, rows.collect())
            },
            Table::new("queues", "queue", 2 * directions.len(), queues.iter().map(queue_row).collect()),
        ],
        distributions: Vec::new(),
    }
}

/// Sentences on the packets that came and were not sent on.
pub(super) fn not_sent(directions: &[Direction], figures: &[Figures]) -> Vec<String> {
    let mut sentences = Vec::new();
    for (number, Direction { from, to }) in directions.iter().enumerate() {
        let exits =
            || figures.iter().flat_map(|worker| &worker.exits).filter(|exit| exit.direction == number);
        let refused: u64 = exits().map(|exit| exit.counters.errors).sum();
        let dropped: u64 = exits().map(|exit| exit.dropped).sum();
        let in_flight = exits().map(|exit| exit.in_flight).sum();
        if refused > 0 {
            sentences.push(format!("{refused} packets of {from} were refused by {to}"));
        }
        if dropped > 0 {
            sentences.push(format!("{dropped} packets of {from} were dropped: {to} took no more"));
        }
        sentences.extend(session::never_left(in_flight, to));
    }
    sentences
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
        write!(f, "forwarded for {:.3} s", self.snapshot.elapsed.as_secs_f64())?;
        self.snapshot.write_rows(f)?;
        session::write_counters(f, &self.ports)
    }
}
