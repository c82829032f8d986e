//! What is told of generating, to people and to programs.

use std::fmt::{self, Display};
use std::time::Duration;

use serde::Serialize;

use super::worker::Figures;
use super::{Options, Outline};
use crate::rate::{Bps, Pps, Traffic, per_second};
use crate::report::{Column, Distribution, Metric, Percentiles, Row, Snapshot, Table, Times};
use crate::session::{self, PortSummary};

/// Missed packets in a thousand at which a rate counts as not reached.
const TOLERANCE: u64 = 1;

/// What is about to be generated.
#[derive(Debug, Serialize)]
pub struct Start {
    command: &'static str,
    port: String,
    mode: Vec<&'static str>,
    workers: usize,
    /// With FCS; the mean where there are several.
    size_bytes: u64,
    /// How many different sizes there are.
    sizes: usize,
    /// How many fields vary, beside the probe's.
    varied_fields: usize,
    /// Flows that take turns, by which a receiver knows the loss of each; `None` when it cannot.
    flows_in_turn: Option<u16>,
    asked_pps: Option<f64>,
    line_rate_pps: Option<u64>,
    link_bps: Option<u64>,
}

impl Start {
    pub(super) fn new(port: &PortSummary, workers: usize, outline: &Outline) -> Self {
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a rounded rate, not below 0"
        )]
        let line_rate = |bits| outline.mean.line_rate(bits) as u64;
        Self {
            command: "generate",
            port: port.name.clone(),
            mode: port.mode.clone(),
            workers,
            size_bytes: outline.mean.rounded_size(),
            sizes: outline.sizes,
            varied_fields: outline.varied,
            flows_in_turn: outline.turns.map(|turns| turns.flows),
            asked_pps: outline.asked_pps(),
            line_rate_pps: outline.link_bits.map(line_rate),
            link_bps: outline.link_bits,
        }
    }
}

impl Display for Start {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let size = Size { mean: self.size_bytes, count: self.sizes };
        write!(f, "generating {size} on {} ({})", self.port, self.mode.join(", "))?;
        write!(f, ", {} worker(s), {} varying field(s), ", self.workers, self.varied_fields)?;
        if let Some(flows @ 2..) = self.flows_in_turn {
            write!(f, "{flows} flows in turn, ")?;
        }
        match self.asked_pps {
            Some(rate) => write!(f, "{rate} packets/s")?,
            None => f.write_str("as fast as it goes")?,
        }
        if let (Some(pps), Some(bits)) = (self.line_rate_pps, self.link_bps) {
            write!(f, "\n  line rate for this size: {pps} packets/s ({})", Bps(bits))?;
        }
        Ok(())
    }
}

/// `128 bytes (with FCS)`, or the mean of several sizes.
struct Size {
    mean: u64,
    count: usize,
}

impl Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes (with FCS)", self.mean)?;
        if self.count > 1 { write!(f, " on the average of {} sizes", self.count) } else { Ok(()) }
    }
}

/// What is told of everything sent so far.
const TOTAL: &[Column<Figures>] = &[
    Column {
        metric: Metric::packets("tx_packets", "sent", "Packets sent: the port has said so"),
        of: |figures| figures.counters.packets,
    },
    Column {
        metric: Metric::bytes("tx_bytes", "bytes", "Their bytes, without FCS"),
        of: |figures| figures.counters.bytes,
    },
    Column { metric: MISSED, of: |figures| figures.missed },
    Column { metric: IN_FLIGHT, of: |figures| figures.in_flight },
];

/// What is told of a queue beside its counters.
const QUEUE: &[Column<Figures>] = &[
    Column { metric: MISSED, of: |figures| figures.missed },
    Column { metric: IN_FLIGHT, of: |figures| figures.in_flight },
];

/// How well the schedule was kept.
const GAP: &str = "gap";
const LATE: &str = "late";

/// Everything that is told while it goes on; of a schedule, its gaps and how late it was.
pub(super) fn snapshot(
    queues: &[Figures],
    times: Option<[Times; 2]>,
    elapsed: Duration,
    port: &PortSummary,
) -> Snapshot {
    let mut total = Figures::default();
    for queue in queues {
        total.counters.packets += queue.counters.packets;
        total.counters.bytes += queue.counters.bytes;
        total.missed += queue.missed;
        total.in_flight += queue.in_flight;
    }
    let row = |queue: &Figures| {
        Row::new(vec![("queue", queue.number.into())], session::QUEUE, &queue.counters).and(QUEUE, queue)
    };
    let rows = queues.iter().map(row).collect();
    let distributions = times.into_iter().flat_map(|[gaps, late]| {
        [
            Distribution {
                name: GAP,
                help: "From one packet of a queue to its next, as they were handed to the port",
                times: gaps,
            },
            Distribution {
                name: LATE,
                help: "How long after its time the first packet of each batch was handed to the port",
                times: late,
            },
        ]
    });
    Snapshot {
        command: "generate",
        elapsed,
        total: Row::new(Vec::new(), TOTAL, &total),
        tables: vec![Table::new("queues", "queue", 1, rows), session::table_of([port.row()])],
        distributions: distributions.collect(),
    }
}

const MISSED: Metric = Metric::fault("missed_packets", "missed", "Packets that were due and given up");
const IN_FLIGHT: Metric =
    Metric::gauge("in_flight_packets", "in flight", "Packets handed to the port and not yet sent");

/// What came of generating.
#[derive(Debug, Serialize)]
pub struct Summary {
    /// All that was asked for was sent, as fast as was asked.
    pub met: bool,
    /// Why not.
    pub unmet: Vec<String>,
    /// How long it ran.
    pub duration_s: f64,
    /// Frames' size, with FCS; the mean of all sizes where there are several.
    pub size_bytes: u64,
    /// How many different sizes there were.
    pub sizes: usize,
    /// Packets sent: the port has said so.
    pub tx_packets: u64,
    /// Their bytes, without FCS.
    pub tx_bytes: u64,
    /// Packets per second.
    pub rate_pps: u64,
    /// Bits of frames per second, with FCS.
    pub rate_l2_bps: u64,
    /// Bits of the link per second.
    pub rate_l1_bps: u64,
    /// What was asked for.
    pub asked_pps: Option<f64>,
    /// Share of what the link can carry.
    pub line_rate_percent: Option<f64>,
    /// Packets that were due and given up.
    pub missed_packets: u64,
    /// Packets that were due before the end and left only after it.
    pub overtime_packets: u64,
    /// From one packet of a queue to its next, as they were handed to the port; with a rate only.
    pub gap: Option<Percentiles>,
    /// How long after its time the first packet of each batch was handed to the port; with a rate only.
    pub late: Option<Percentiles>,
    /// Packets that the port refused.
    pub errors: u64,
    /// Packets handed to the port of which it never said that they were sent.
    pub in_flight_packets: u64,
    /// The sending queues.
    pub queues: Vec<QueueSummary>,
    /// What the port counted.
    pub port: PortSummary,
    /// What could not be undone.
    #[serde(skip)]
    pub warnings: Vec<String>,
}

/// What one queue sent.
#[derive(Debug, Serialize)]
pub struct QueueSummary {
    /// Its number on its port.
    pub queue: usize,
    /// Packets sent.
    pub packets: u64,
    /// Their bytes, without FCS.
    pub bytes: u64,
    /// Packets refused.
    pub errors: u64,
    /// Packets that were due and given up.
    pub missed_packets: u64,
    /// Packets without an answer.
    pub in_flight_packets: u64,
}

impl Summary {
    pub(super) fn new(
        figures: &[Figures],
        snapshot: &Snapshot,
        unmet: Vec<String>,
        (options, outline): (&Options, &Outline),
        (port, stuck): (PortSummary, Option<String>),
        warnings: Vec<String>,
    ) -> Self {
        let sent = figures.iter().fold(Traffic::default(), |sum, queue| sum + queue.counters.into());
        let total = |part: fn(&Figures) -> u64| figures.iter().map(part).sum::<u64>();
        let seconds = snapshot.elapsed.as_secs_f64();
        let rate_l1_bps = sent.l1_rate(seconds);
        let times = |name| {
            let found = snapshot.distributions.iter().find(|distribution| distribution.name == name);
            found.and_then(|distribution| distribution.times.percentiles())
        };
        let mut summary = Self {
            met: true,
            unmet,
            duration_s: seconds,
            size_bytes: outline.mean.rounded_size(),
            sizes: outline.sizes,
            tx_packets: sent.packets,
            tx_bytes: sent.bytes,
            rate_pps: per_second(sent.packets, seconds),
            rate_l2_bps: sent.l2_rate(seconds),
            rate_l1_bps,
            asked_pps: outline.asked_pps(),
            line_rate_percent: outline.link_bits.map(|bits| percent(rate_l1_bps, bits)),
            missed_packets: total(|queue| queue.missed),
            overtime_packets: total(|queue| queue.overtime),
            gap: times(GAP),
            late: times(LATE),
            errors: total(|queue| queue.counters.errors),
            in_flight_packets: total(|queue| queue.in_flight),
            queues: figures.iter().map(QueueSummary::from).collect(),
            port,
            warnings,
        };
        summary.judge(options, stuck);
        summary.met = summary.unmet.is_empty();
        summary
    }

    /// Adds why the aim was not met.
    pub(super) fn fail(&mut self, reason: String) {
        self.unmet.push(reason);
        self.met = false;
    }

    fn judge(&mut self, options: &Options, stuck: Option<String>) {
        let port = &self.port.name;
        if self.errors > 0 {
            self.unmet.push(format!("{} packets were refused by {port}", self.errors));
        }
        let is_unread = self.port.is_unread();
        let is_short = |count: &u64| self.tx_packets + self.errors < *count && !is_unread;
        if let Some(count) = options.count.filter(is_short) {
            self.unmet.push(format!("{} of {count} packets were sent", self.tx_packets));
        }
        let made = self.missed_packets + self.in_flight_packets + self.errors;
        let was_due = made > 0 || self.asked_pps.is_none();
        if let Some(reason) = stuck.filter(|_| options.count != Some(0) && !is_unread) {
            self.unmet.push(if was_due {
                format!("nothing was sent: {reason}")
            } else {
                "nothing was sent: no packet was due before the end".into()
            });
        }
        self.unmet.extend(session::never_left(self.in_flight_packets, port));
        let due = self.tx_packets + self.missed_packets;
        if self.missed_packets * 1000 > due * TOLERANCE {
            let asked = self.asked_pps.unwrap_or_default();
            self.unmet.push(format!("{asked} packets/s were asked for, {} were reached", self.rate_pps));
        }
    }
}

impl From<&Figures> for QueueSummary {
    fn from(figures: &Figures) -> Self {
        Self {
            queue: figures.number,
            packets: figures.counters.packets,
            bytes: figures.counters.bytes,
            errors: figures.counters.errors,
            missed_packets: figures.missed,
            in_flight_packets: figures.in_flight,
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
        let size = Size { mean: self.size_bytes, count: self.sizes };
        write!(f, "sent {} packets of {size}", self.tx_packets)?;
        write!(f, " in {:.3} s: {}, ", self.duration_s, Pps(self.rate_pps))?;
        write!(f, "{} (L2), {} (L1)", Bps(self.rate_l2_bps), Bps(self.rate_l1_bps))?;
        if let Some(percent) = self.line_rate_percent {
            write!(f, ", {percent:.1} % of line rate")?;
        }
        for (count, what) in [
            (self.missed_packets, "were due and given up"),
            (self.overtime_packets, "were due before the end and left after it"),
            (self.errors, "were refused"),
            (self.in_flight_packets, "were handed over and never left"),
        ] {
            if count > 0 {
                write!(f, "\n  {count} {what}")?;
            }
        }
        for (times, what) in [(self.gap, "gaps between packets"), (self.late, "handed over late by")] {
            if let Some(times) = times {
                write!(f, "\n  {what}:{times}")?;
            }
        }
        if self.queues.len() > 1 {
            for queue in &self.queues {
                write!(f, "\n  queue {}: {} packets", queue.queue, queue.packets)?;
            }
        }
        session::write_counters(f, std::slice::from_ref(&self.port))
    }
}

impl Outline {
    #[expect(clippy::cast_precision_loss, reason = "a rate for people and programs to read")]
    fn asked_pps(&self) -> Option<f64> {
        self.pace.map(|pace| pace.millipackets() as f64 / 1000.0)
    }
}

#[expect(clippy::cast_precision_loss, reason = "a share for people and programs to read")]
pub(super) fn percent(part: u64, whole: u64) -> f64 {
    part as f64 * 100.0 / whole as f64
}
