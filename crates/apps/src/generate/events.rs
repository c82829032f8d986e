//! What is told of generating, to people and to programs.

use std::fmt::{self, Display};

use bywash_sys::worker::WorkerError;
use serde::Serialize;

use super::Options;
use super::worker::Figures;
use crate::rate::{Bps, Pps, Traffic, packets_per_second};
use crate::session::{self, PortSummary};

/// Missed packets in a thousand at which a rate counts as not reached.
const TOLERANCE: u64 = 1;

/// What is about to be generated.
#[derive(Debug, Serialize)]
pub struct Start {
    pub(super) command: &'static str,
    pub(super) port: String,
    pub(super) mode: Vec<&'static str>,
    pub(super) workers: usize,
    /// With FCS.
    pub(super) size_bytes: usize,
    pub(super) sources: u32,
    pub(super) asked_pps: Option<f64>,
    pub(super) line_rate_pps: Option<u64>,
    pub(super) link_mbps: Option<u32>,
}

impl Display for Start {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "generating {} bytes (with FCS) on {} ({})",
            self.size_bytes,
            self.port,
            self.mode.join(", ")
        )?;
        write!(f, ", {} worker(s), {} source(s), ", self.workers, self.sources)?;
        match self.asked_pps {
            Some(rate) => write!(f, "{rate} packets/s")?,
            None => f.write_str("as fast as it goes")?,
        }
        if let (Some(pps), Some(mbps)) = (self.line_rate_pps, self.link_mbps) {
            write!(f, "\n  line rate for this size: {pps} packets/s ({mbps} Mbit/s)")?;
        }
        Ok(())
    }
}

/// What was sent since the last interval.
#[derive(Debug, Serialize)]
pub struct Interval {
    pub(super) elapsed_s: f64,
    pub(super) interval_s: f64,
    /// Since the start.
    pub(super) tx_packets: u64,
    pub(super) rate_pps: u64,
    pub(super) rate_l2_bps: u64,
    pub(super) rate_l1_bps: u64,
    /// Since the start.
    pub(super) missed_packets: u64,
}

impl Display for Interval {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.0} s   {} sent   {}", self.elapsed_s, self.tx_packets, Pps(self.rate_pps))?;
        write!(f, "   {} L2   {} L1", Bps(self.rate_l2_bps), Bps(self.rate_l1_bps))?;
        if self.missed_packets > 0 {
            write!(f, "   missed {}", self.missed_packets)?;
        }
        Ok(())
    }
}

/// What came of generating.
#[derive(Debug, Serialize)]
pub struct Summary {
    /// All that was asked for was sent, as fast as was asked.
    pub met: bool,
    /// Why not.
    pub unmet: Vec<String>,
    /// How long it ran.
    pub duration_s: f64,
    /// Frames' size, with FCS.
    pub size_bytes: usize,
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
        (figures, failures): (Vec<Figures>, &[WorkerError]),
        options: &Options,
        asked: Option<u64>,
        seconds: f64,
        port: PortSummary,
        (warnings, link_mbps): (Vec<String>, Option<u32>),
    ) -> Self {
        let sent = figures.iter().fold(Traffic::default(), |sum, queue| sum + queue.counters.into());
        let total = |part: fn(&Figures) -> u64| figures.iter().map(part).sum::<u64>();
        let rate_l1_bps = sent.l1_rate(seconds);
        let mut summary = Self {
            met: true,
            unmet: failures.iter().map(ToString::to_string).collect(),
            duration_s: seconds,
            size_bytes: options.frame.size,
            tx_packets: sent.packets,
            tx_bytes: sent.bytes,
            rate_pps: packets_per_second(sent.packets, seconds),
            rate_l2_bps: sent.l2_rate(seconds),
            rate_l1_bps,
            asked_pps: asked.map(thousandths),
            line_rate_percent: link_mbps.map(|mbps| percent(rate_l1_bps, u64::from(mbps) * 1_000_000)),
            missed_packets: total(|queue| queue.missed),
            errors: total(|queue| queue.counters.errors),
            in_flight_packets: total(|queue| queue.in_flight),
            queues: figures.iter().map(QueueSummary::from).collect(),
            port,
            warnings,
        };
        summary.judge(options);
        summary.met = summary.unmet.is_empty();
        summary
    }

    fn judge(&mut self, options: &Options) {
        let port = &self.port.name;
        if self.errors > 0 {
            self.unmet.push(format!("{} packets were refused by {port}", self.errors));
        }
        if let Some(count) = options.count.filter(|count| self.tx_packets + self.errors < *count) {
            self.unmet.push(format!("{} of {count} packets were sent", self.tx_packets));
        }
        if self.tx_packets == 0 && options.count != Some(0) {
            self.unmet.push(format!(
                "nothing was sent: {port} took no packet; is its link up and its other end open?"
            ));
        }
        if self.in_flight_packets > 0 {
            self.unmet
                .push(format!("{} packets were handed to {port} and never left", self.in_flight_packets));
        }
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
        write!(f, "sent {} packets of {} bytes (with FCS)", self.tx_packets, self.size_bytes)?;
        write!(f, " in {:.3} s: {}, ", self.duration_s, Pps(self.rate_pps))?;
        write!(f, "{} (L2), {} (L1)", Bps(self.rate_l2_bps), Bps(self.rate_l1_bps))?;
        if let Some(percent) = self.line_rate_percent {
            write!(f, ", {percent:.1} % of line rate")?;
        }
        for (count, what) in [
            (self.missed_packets, "were due and given up"),
            (self.errors, "were refused"),
            (self.in_flight_packets, "were handed over and never left"),
        ] {
            if count > 0 {
                write!(f, "\n  {count} {what}")?;
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

#[expect(clippy::cast_precision_loss, reason = "a rate for people and programs to read")]
pub(super) fn thousandths(number: u64) -> f64 {
    number as f64 / 1000.0
}

#[expect(clippy::cast_precision_loss, reason = "a share for people and programs to read")]
fn percent(part: u64, whole: u64) -> f64 {
    part as f64 * 100.0 / whole as f64
}
