//! What came of forwarding, for people and for programs.

use std::fmt::{self, Display};

use serde::Serialize;

use super::worker::QueueFigures;
use super::{Direction, DirectionTraffic};
use crate::rate::{Bps, Pps, packets_per_second};
use crate::session::{self, PortSummary};

/// What came of forwarding.
#[derive(Debug, Serialize)]
pub struct Summary {
    /// Nothing failed.
    pub met: bool,
    /// Why not.
    pub unmet: Vec<String>,
    /// How long it ran.
    pub duration_s: f64,
    /// What each direction carried.
    pub directions: Vec<DirectionSummary>,
    /// What the ports counted.
    pub ports: Vec<PortSummary>,
    /// What could not be undone.
    #[serde(skip)]
    pub warnings: Vec<String>,
}

/// What one direction carried.
#[derive(Debug, Serialize)]
pub struct DirectionSummary {
    /// From where to where.
    #[serde(flatten)]
    pub direction: Direction,
    /// Packets received.
    pub rx_packets: u64,
    /// Their bytes, without FCS.
    pub rx_bytes: u64,
    /// Packets the other side has sent.
    pub tx_packets: u64,
    /// Their bytes, without FCS.
    pub tx_bytes: u64,
    /// Packets received and then dropped because the other side took none.
    pub dropped_packets: u64,
    /// Packets handed to the other side of which it never said that they were sent.
    pub in_flight_packets: u64,
    /// Packets sent per second.
    pub rate_pps: u64,
    /// Bits sent per second: with FCS.
    pub rate_l2_bps: u64,
    /// Bits sent per second: with FCS, preamble and gap.
    pub rate_l1_bps: u64,
    /// The receiving queues.
    pub rx_queues: Vec<QueueSummary>,
    /// The sending queues.
    pub tx_queues: Vec<QueueSummary>,
}

/// What one queue counted.
#[derive(Debug, Serialize)]
pub struct QueueSummary {
    /// Its number on its port.
    pub queue: usize,
    /// Packets received or sent.
    pub packets: u64,
    /// Their bytes, without FCS.
    pub bytes: u64,
    /// Packets damaged or refused.
    pub errors: u64,
    /// Times no frame was free.
    pub no_frame: u64,
    /// Packets dropped because it took none.
    pub dropped_packets: u64,
}

impl From<&QueueFigures> for QueueSummary {
    fn from(figures: &QueueFigures) -> Self {
        let counters = figures.counters;
        Self {
            queue: figures.number,
            packets: counters.packets,
            bytes: counters.bytes,
            errors: counters.errors,
            no_frame: counters.no_frame,
            dropped_packets: figures.dropped,
        }
    }
}

impl DirectionSummary {
    pub(super) fn new(
        direction: Direction,
        traffic: DirectionTraffic,
        seconds: f64,
        (rx, tx): (Vec<QueueFigures>, Vec<QueueFigures>),
    ) -> Self {
        let DirectionTraffic { received, sent, dropped } = traffic;
        let summaries = |mut queues: Vec<QueueFigures>| {
            queues.sort_by_key(|queue| queue.number);
            queues.iter().map(QueueSummary::from).collect()
        };
        Self {
            direction,
            rx_packets: received.packets,
            rx_bytes: received.bytes,
            tx_packets: sent.packets,
            tx_bytes: sent.bytes,
            dropped_packets: dropped,
            in_flight_packets: tx.iter().map(|queue| queue.in_flight).sum(),
            rate_pps: packets_per_second(sent.packets, seconds),
            rate_l2_bps: sent.l2_rate(seconds),
            rate_l1_bps: sent.l1_rate(seconds),
            rx_queues: summaries(rx),
            tx_queues: summaries(tx),
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
        write!(f, "forwarded for {:.3} s", self.duration_s)?;
        for d in &self.directions {
            let (from, to) = (&d.direction.from, &d.direction.to);
            write!(f, "\n  {from} -> {to}  {} received, {} sent", d.rx_packets, d.tx_packets)?;
            write!(f, ", {}, {} (L2), {} (L1)", Pps(d.rate_pps), Bps(d.rate_l2_bps), Bps(d.rate_l1_bps))?;
            if d.dropped_packets > 0 {
                write!(f, "\n    {} dropped: {to} took no more", d.dropped_packets)?;
            }
            if d.in_flight_packets > 0 {
                write!(f, "\n    {} handed to {to} and not confirmed", d.in_flight_packets)?;
            }
            let queues = d.rx_queues.iter().chain(&d.tx_queues);
            let errors: u64 = queues.clone().map(|queue| queue.errors).sum();
            if errors > 0 {
                write!(f, "\n    {errors} damaged or refused")?;
            }
            if queues.map(|queue| queue.no_frame).sum::<u64>() > 0 {
                f.write_str("\n    frames ran out at times: give more memory (--memory)")?;
            }
        }
        session::write_counters(f, &self.ports)
    }
}
