//! Two moments of a run that never was, for the tests of all reports.

use std::time::Duration;

use super::snapshot::{Distribution, Label, Metric, Row, Snapshot, Table};
use super::times::{Stopwatch, Times};

const TOTAL: [Metric; 4] = [
    Metric::packets("rx_packets", "received", "Packets received"),
    Metric::bytes("rx_bytes", "bytes", "Their bytes, without FCS"),
    Metric::missing("lost_packets", "lost", "Packets that have not come"),
    Metric::gauge("depth", "waiting", "Packets that wait"),
];

const QUEUE: Metric = Metric::packets("packets", "packets", "Packets received");

fn snapshot(seconds: u64, total: [u64; 4], queues: &[u64], latencies: &[u64]) -> Snapshot {
    let row = |(queue, packets): (usize, &u64)| Row {
        labels: vec![("queue", Label::from(queue))],
        values: vec![(QUEUE, *packets)],
    };
    let mut stopwatch = Stopwatch::new();
    latencies.iter().for_each(|ns| stopwatch.record(*ns));
    Snapshot {
        command: "sample",
        elapsed: Duration::from_secs(seconds),
        total: Row { labels: Vec::new(), values: TOTAL.into_iter().zip(total).collect() },
        tables: vec![Table {
            in_line: true,
            ..Table::new("queues", "queue", 1, queues.iter().enumerate().map(row).collect())
        }],
        distributions: vec![Distribution {
            name: "latency",
            help: "From sending to receiving",
            times: Times::read([&stopwatch.dial()]),
        }],
    }
}

/// After two seconds.
pub(super) fn sooner() -> Snapshot {
    snapshot(2, [1000, 60_000, 0, 9], &[1000, 0], &[1000])
}

/// After three seconds.
pub(super) fn later() -> Snapshot {
    snapshot(3, [3000, 180_000, 2, 7], &[2000, 1000], &[1000, 2000])
}
