//! What is told of receiving, to people and to programs.

use std::collections::BTreeMap;
use std::fmt::{self, Display};
use std::time::Duration;

use serde::Serialize;

use super::share::{Lost, lost_by_queue};
use super::streams::MOST_STREAMS;
use super::worker::{Delays, Figures, Kinds, QueueFigures, StreamFigures};
use super::{Options, Received, worst};
use crate::rate::Traffic;
use crate::report::{Column, Distribution, Metric, Row, Snapshot, Table, Times};
use crate::session::{self, PortSummary, QUEUE};

/// What is about to be received.
#[derive(Debug, Serialize)]
pub struct Start {
    pub(super) command: &'static str,
    pub(super) port: String,
    pub(super) mode: Vec<&'static str>,
    pub(super) workers: usize,
    pub(super) count_packets: Option<u64>,
    pub(super) drop: bool,
}

impl Display for Start {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = if self.drop { "dropping what comes" } else { "receiving" };
        write!(f, "{what} on {} ({}), {} worker(s)", self.port, self.mode.join(", "), self.workers)?;
        self.count_packets
            .map_or(Ok(()), |count| write!(f, ", until {count} {} have come", wanted(self.drop)))
    }
}

/// What is counted towards the number that was asked for.
fn wanted(drop: bool) -> &'static str {
    if drop { "packets" } else { "packets of a generator" }
}

/// The distribution of how long packets took.
pub const LATENCY: &str = "latency";

const RECEIVED: &[Column<Received>] = &[
    Column {
        metric: Metric::packets("rx_packets", "received", "Packets received"),
        of: |received| received.rx_packets,
    },
    Column {
        metric: Metric::bytes("rx_bytes", "bytes", "Their bytes, without FCS"),
        of: |received| received.rx_bytes,
    },
    Column { metric: RIGHT, of: |received| received.right_packets },
    Column { metric: LOST, of: |received| received.lost_packets },
    Column { metric: REORDERED, of: |received| received.reordered_packets },
    Column { metric: DUPLICATE, of: |received| received.duplicate_packets },
    Column { metric: DAMAGED, of: |received| received.damaged_packets },
    Column {
        metric: Metric::fault(
            "unnumbered_packets",
            "of those, as good as lost",
            "Packets of generators so damaged that their number can't be read: they count as lost, too",
        ),
        of: |received| received.unnumbered_packets,
    },
    Column { metric: FOREIGN, of: |received| received.foreign_packets },
    Column {
        metric: Metric::fault(
            "untracked_packets",
            "of too many streams",
            "Packets of more streams than could be told apart: no loss is known of those",
        ),
        of: |received| received.untracked_packets,
    },
    Column {
        metric: Metric::fault(
            "clock_error_packets",
            "before they were sent",
            "Packets that came before they were sent, by the clocks of the two machines",
        ),
        of: |received| received.clock_error_packets,
    },
];

const KINDS: &[Column<Kinds>] = &[Column { metric: RIGHT, of: |kinds| kinds.right }];

const JUDGED: &[Column<Kinds>] = &[
    Column { metric: REORDERED, of: |kinds| kinds.reordered },
    Column { metric: DUPLICATE, of: |kinds| kinds.duplicates },
    Column { metric: DAMAGED, of: |kinds| kinds.damaged },
    Column { metric: FOREIGN, of: |kinds| kinds.foreign },
];

const STREAM: &[Column<StreamFigures>] = &[Column {
    metric: Metric::packets("packets", "packets", "Different packets of the stream that came"),
    of: |stream| stream.counts.received,
}];

const STREAM_JUDGED: &[Column<StreamFigures>] = &[
    Column { metric: REORDERED, of: |stream| stream.counts.reordered },
    Column { metric: DUPLICATE, of: |stream| stream.counts.duplicates },
    Column { metric: DAMAGED, of: |stream| stream.damaged },
];

const RIGHT: Metric =
    Metric::count("right_packets", "of a generator", "Packets of generators that came as they were sent");
pub(super) const LOST: Metric = Metric::missing(
    "lost_packets",
    "lost",
    "Packets of generators that have not come, between the first and the last one that have",
);
pub(super) const REORDERED: Metric =
    Metric::fault("reordered_packets", "reordered", "Packets of generators that came after a later one");
pub(super) const DUPLICATE: Metric =
    Metric::fault("duplicate_packets", "duplicated", "Packets of generators that came again");
pub(super) const DAMAGED: Metric =
    Metric::fault("damaged_packets", "damaged", "Packets of generators that were damaged");
const FOREIGN: Metric = Metric::count("foreign_packets", "foreign", "Packets of nobody's generator");

impl Received {
    pub(super) fn new(figures: &[Figures], lost: &Lost) -> Self {
        let queues = || figures.iter().flat_map(|worker| &worker.queues);
        let traffic = queues().fold(Traffic::default(), |sum, queue| sum + queue.counters.into());
        let mut received = Self { rx_packets: traffic.packets, rx_bytes: traffic.bytes, ..Self::default() };
        for QueueFigures { kinds, .. } in queues() {
            received.right_packets += kinds.right;
            received.reordered_packets += kinds.reordered;
            received.duplicate_packets += kinds.duplicates;
            received.damaged_packets += kinds.damaged;
            received.unnumbered_packets += kinds.unnumbered;
            received.foreign_packets += kinds.foreign;
            received.untracked_packets += kinds.untracked;
            received.clock_error_packets += kinds.clock_errors;
        }
        received.lost_packets = lost.of_all();
        received
    }
}

/// The streams, put together from all queues.
pub(super) fn streams(figures: &[Figures]) -> BTreeMap<u16, StreamFigures> {
    let mut streams = BTreeMap::<u16, StreamFigures>::new();
    for (id, part) in figures.iter().flat_map(|worker| &worker.streams) {
        streams.entry(*id).or_default().merge(part);
    }
    streams
}

/// What the workers have done so far; with so many flows.
pub(super) fn snapshot(
    figures: &[Figures],
    delays: &[Delays],
    elapsed: Duration,
    lost: &Lost,
    most_flows: usize,
) -> Snapshot {
    let mut queues: Vec<&QueueFigures> = figures.iter().flat_map(|worker| &worker.queues).collect();
    queues.sort_by_key(|queue| queue.number);
    let received = Received::new(figures, lost);
    let lost_by = match queues.as_slice() {
        [only] if !lost.is_shared() => BTreeMap::from([(only.number, received.lost_packets)]),
        _ => lost_by_queue(figures),
    };
    let queue_rows = queues.iter().map(|queue| {
        let labels = vec![("queue", queue.number.into())];
        let mut row = Row::new(labels, QUEUE, &queue.counters).and(KINDS, &queue.kinds);
        row.values.extend(lost_by.get(&queue.number).map(|lost| (LOST, *lost)));
        row.and(JUDGED, &queue.kinds)
    });
    let stream_rows = streams(figures).into_iter().map(|(stream, counts)| {
        let mut row = Row::new(vec![("stream", usize::from(stream).into())], STREAM, &counts);
        row.values.extend(lost.of(stream).map(|lost| (LOST, lost)));
        row.and(STREAM_JUDGED, &counts)
    });
    let mut snapshot = Snapshot {
        command: "receive",
        elapsed,
        total: Row::new(Vec::new(), RECEIVED, &received),
        tables: vec![
            Table::new("queues", "queue", 1, queue_rows.collect()),
            Table::new("streams", "stream", 1, stream_rows.collect()),
        ],
        distributions: vec![
            Distribution {
                name: LATENCY,
                help: "From when packets were made until they were received, by the clocks of both machines",
                times: Times::read(delays.iter().map(|delays| &delays.latency)),
            },
            Distribution {
                name: "jitter",
                help: "How much the latencies of a packet and of the one before it in its stream and queue differ",
                times: Times::read(delays.iter().map(|delays| &delays.jitter)),
            },
        ],
    };
    if most_flows > 0 {
        snapshot.tables.push(worst::flows(figures, most_flows));
    }
    snapshot
}

/// What came of receiving.
#[derive(Debug, Serialize)]
pub struct Summary {
    /// What was to come has come, and everything a generator sent came once and whole.
    pub met: bool,
    /// Why not.
    pub unmet: Vec<String>,
    /// What came.
    #[serde(skip)]
    pub received: Received,
    /// The same with all queues and streams, and the delays.
    #[serde(flatten)]
    pub snapshot: Snapshot,
    /// What the port counted.
    pub port: PortSummary,
    /// What could not be undone, and the like.
    #[serde(skip)]
    pub warnings: Vec<String>,
    /// Nobody looked at the packets.
    #[serde(skip)]
    drop: bool,
}

impl Summary {
    pub(super) fn new(
        received: Received,
        snapshot: Snapshot,
        unmet: Vec<String>,
        options: &Options,
        (port, mut warnings): (PortSummary, Vec<String>),
    ) -> Self {
        if received.untracked_packets > 0 {
            warnings.push(format!(
                "{} packets were of more than {MOST_STREAMS} streams: loss is not known of those; start anew",
                received.untracked_packets
            ));
        }
        if received.clock_error_packets > 0 {
            let count = received.clock_error_packets;
            warnings
                .push(format!("{count} packets came before they were sent: synchronise the clocks (PTP)"));
        }
        let mut summary = Self { met: true, unmet, received, snapshot, port, warnings, drop: options.drop };
        summary.judge(options);
        summary.met = summary.unmet.is_empty();
        summary
    }

    fn judge(&mut self, options: &Options) {
        let Received { rx_packets, right_packets, .. } = self.received;
        let Received { lost_packets, duplicate_packets, damaged_packets, unnumbered_packets, .. } =
            self.received;
        let came = if options.drop { rx_packets } else { right_packets };
        if let Some(count) = options.count.filter(|count| came < *count) {
            self.unmet.push(format!("{came} of {count} packets came"));
        }
        let unnumbered = match unnumbered_packets {
            0 => String::new(),
            some => format!(", {some} of them so that their number can't be read: they count as lost, too"),
        };
        let damaged = format!("damaged{unnumbered}");
        for (packets, what) in
            [(lost_packets, "lost"), (duplicate_packets, "duplicated"), (damaged_packets, &damaged)]
        {
            if packets > 0 {
                self.unmet.push(format!("{packets} packets {what}"));
            }
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

    fn snapshot(&self) -> Option<&Snapshot> {
        Some(&self.snapshot)
    }
}

impl Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (received, seconds) = (&self.received, self.snapshot.elapsed.as_secs_f64());
        write!(f, "received {} packets in {seconds:.3} s", received.rx_packets)?;
        if let Some(rates) = self.snapshot.since(None).total() {
            write!(f, ": {rates}")?;
        }
        if !self.drop {
            write!(f, "\n  {} of a generator: {} lost", received.right_packets, received.lost_packets)?;
            write!(
                f,
                ", {} reordered, {} duplicated",
                received.reordered_packets, received.duplicate_packets
            )?;
            write!(f, ", {} damaged; {} foreign", received.damaged_packets, received.foreign_packets)?;
        }
        self.snapshot.write_distributions(f)?;
        self.snapshot.write_rows(f)?;
        session::write_counters(f, std::slice::from_ref(&self.port))
    }
}
