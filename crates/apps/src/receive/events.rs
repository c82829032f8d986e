//! What is told of receiving, to people and to programs.

use std::fmt::{self, Display};

use bywash_sys::worker::WorkerError;
use hdrhistogram::Histogram;
use serde::Serialize;

use super::worker::{Delays, Figures, MOST_STREAMS};
use super::{Options, Received, kinds, streams};
use crate::rate::{Bps, Pps, packets_per_second};
use crate::session::{self, PortSummary};

/// What is about to be received.
#[derive(Debug, Serialize)]
pub struct Start {
    pub(super) command: &'static str,
    pub(super) port: String,
    pub(super) mode: Vec<&'static str>,
    pub(super) workers: usize,
    pub(super) count_packets: Option<u64>,
}

impl Display for Start {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "receiving on {} ({}), {} worker(s)", self.port, self.mode.join(", "), self.workers)?;
        self.count_packets
            .map_or(Ok(()), |count| write!(f, ", until {count} packets of a generator have come"))
    }
}

/// What was received since the last interval, and in all.
#[derive(Debug, Serialize)]
pub struct Interval {
    pub(super) elapsed_s: f64,
    pub(super) interval_s: f64,
    pub(super) rate_pps: u64,
    pub(super) rate_l2_bps: u64,
    pub(super) rate_l1_bps: u64,
    /// Since the start.
    #[serde(flatten)]
    pub(super) total: Received,
}

impl Display for Interval {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.0} s   {} received   {}", self.elapsed_s, self.total.rx_packets, Pps(self.rate_pps))?;
        write!(f, "   {} L2   lost {}", Bps(self.rate_l2_bps), self.total.lost_packets)?;
        if self.total.damaged_packets > 0 {
            write!(f, "   damaged {}", self.total.damaged_packets)?;
        }
        Ok(())
    }
}

/// A distribution of times.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Percentiles {
    /// Shortest.
    pub min_ns: u64,
    /// Half are no longer than this.
    pub p50_ns: u64,
    /// 90 % are no longer.
    pub p90_ns: u64,
    /// 99 % are no longer.
    pub p99_ns: u64,
    /// 99.9 % are no longer.
    pub p99_9_ns: u64,
    /// 99.99 % are no longer.
    pub p99_99_ns: u64,
    /// Longest.
    pub max_ns: u64,
}

impl Percentiles {
    fn of(histogram: &Histogram<u64>) -> Option<Self> {
        let at = |percent| histogram.value_at_percentile(percent);
        (!histogram.is_empty()).then(|| Self {
            min_ns: histogram.min(),
            p50_ns: at(50.0),
            p90_ns: at(90.0),
            p99_ns: at(99.0),
            p99_9_ns: at(99.9),
            p99_99_ns: at(99.99),
            max_ns: histogram.max(),
        })
    }
}

impl Display for Percentiles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = ["min", "p50", "p90", "p99", "p99.9", "p99.99", "max"];
        let values =
            [self.min_ns, self.p50_ns, self.p90_ns, self.p99_ns, self.p99_9_ns, self.p99_99_ns, self.max_ns];
        for (name, value) in names.iter().zip(values) {
            #[expect(clippy::cast_precision_loss, reason = "three digits were kept")]
            let microseconds = value as f64 / 1000.0;
            write!(f, " {name} {microseconds:.1}")?;
        }
        f.write_str(" µs")
    }
}

/// What came of receiving.
#[derive(Debug, Serialize)]
pub struct Summary {
    /// What was to come has come, and everything a generator sent came once and whole.
    pub met: bool,
    /// Why not.
    pub unmet: Vec<String>,
    /// How long it ran.
    pub duration_s: f64,
    /// What came.
    #[serde(flatten)]
    pub received: Received,
    /// Packets per second.
    pub rate_pps: u64,
    /// Bits of frames per second, with FCS.
    pub rate_l2_bps: u64,
    /// Bits of the link per second.
    pub rate_l1_bps: u64,
    /// From when packets were made until they were received; where the clocks disagree, packets are left out.
    pub latency: Option<Percentiles>,
    /// How much the latencies of a stream's successive packets differ (RFC 3393).
    pub jitter: Option<Percentiles>,
    /// Packets that came before they were sent, by the clocks of the two machines.
    pub clock_error_packets: u64,
    /// Packets of more streams than could be told apart: no loss is known of those.
    pub untracked_packets: u64,
    /// The generators' queues.
    pub streams: Vec<StreamSummary>,
    /// The receiving queues.
    pub queues: Vec<QueueSummary>,
    /// What the port counted.
    pub port: PortSummary,
    /// What could not be undone, and the like.
    #[serde(skip)]
    pub warnings: Vec<String>,
}

/// What came of one generator's queue.
#[derive(Debug, Serialize)]
pub struct StreamSummary {
    /// Its number, chosen by the generator.
    pub stream: u16,
    /// Different packets that came.
    pub packets: u64,
    /// Packets that have not come.
    pub lost_packets: u64,
    /// Packets that came after a later one.
    pub reordered_packets: u64,
    /// Packets that came again.
    pub duplicate_packets: u64,
}

/// What one queue received.
#[derive(Debug, Serialize)]
pub struct QueueSummary {
    /// Its number on its port.
    pub queue: usize,
    /// Packets received.
    pub packets: u64,
    /// Their bytes, without FCS.
    pub bytes: u64,
    /// Packets the port found damaged.
    pub errors: u64,
    /// Times no frame was free.
    pub no_frame: u64,
}

impl Summary {
    pub(super) fn new(
        (figures, delays): (&[Figures], Vec<Delays>),
        failures: &[WorkerError],
        options: &Options,
        seconds: f64,
        (port, mut warnings): (PortSummary, Vec<String>),
    ) -> Self {
        let (received, kinds) = (Received::new(figures), kinds(figures));
        let traffic = received.traffic();
        let delays = delays.into_iter().reduce(|mut all, more| {
            // They have the same bounds: it can't fail.
            let _ = all.latency.add(more.latency).and_then(|()| all.jitter.add(more.jitter));
            all
        });
        if kinds.untracked > 0 {
            warnings.push(format!(
                "{} packets were of more than {MOST_STREAMS} streams: loss is not known of those; start anew",
                kinds.untracked
            ));
        }
        if kinds.clock_errors > 0 {
            let count = kinds.clock_errors;
            warnings
                .push(format!("{count} packets came before they were sent: synchronise the clocks (PTP)"));
        }
        let streams = streams(figures).into_iter().map(|(stream, counts)| StreamSummary {
            stream,
            packets: counts.received,
            lost_packets: counts.lost(),
            reordered_packets: counts.reordered,
            duplicate_packets: counts.duplicates,
        });
        let queues = figures.iter().flat_map(|worker| &worker.queues).map(|(queue, counters)| QueueSummary {
            queue: *queue,
            packets: counters.packets,
            bytes: counters.bytes,
            errors: counters.errors,
            no_frame: counters.no_frame,
        });
        let mut queues: Vec<_> = queues.collect();
        queues.sort_by_key(|queue| queue.queue);
        let mut summary = Self {
            met: true,
            unmet: failures.iter().map(ToString::to_string).collect(),
            duration_s: seconds,
            received,
            rate_pps: packets_per_second(traffic.packets, seconds),
            rate_l2_bps: traffic.l2_rate(seconds),
            rate_l1_bps: traffic.l1_rate(seconds),
            latency: delays.as_ref().and_then(|delays| Percentiles::of(&delays.latency)),
            jitter: delays.as_ref().and_then(|delays| Percentiles::of(&delays.jitter)),
            clock_error_packets: kinds.clock_errors,
            untracked_packets: kinds.untracked,
            streams: streams.collect(),
            queues,
            port,
            warnings,
        };
        summary.judge(options);
        summary.met = summary.unmet.is_empty();
        summary
    }

    fn judge(&mut self, options: &Options) {
        let Received { right_packets, lost_packets, duplicate_packets, damaged_packets, .. } = self.received;
        if let Some(count) = options.count.filter(|count| right_packets < *count) {
            self.unmet.push(format!("{right_packets} of {count} packets came"));
        }
        for (packets, what) in
            [(lost_packets, "lost"), (duplicate_packets, "duplicated"), (damaged_packets, "damaged")]
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
}

impl Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let received = &self.received;
        write!(f, "received {} packets in {:.3} s: ", received.rx_packets, self.duration_s)?;
        write!(f, "{}, {} (L2), {} (L1)", Pps(self.rate_pps), Bps(self.rate_l2_bps), Bps(self.rate_l1_bps))?;
        write!(f, "\n  {} of a generator: {} lost", received.right_packets, received.lost_packets)?;
        write!(f, ", {} reordered, {} duplicated", received.reordered_packets, received.duplicate_packets)?;
        write!(f, ", {} damaged; {} foreign", received.damaged_packets, received.foreign_packets)?;
        if let Some(latency) = &self.latency {
            write!(f, "\n  latency{latency}")?;
        }
        if let Some(jitter) = &self.jitter {
            write!(f, "\n  jitter {jitter}")?;
        }
        if self.streams.len() > 1 {
            for stream in &self.streams {
                write!(
                    f,
                    "\n  stream {}: {} packets, {} lost",
                    stream.stream, stream.packets, stream.lost_packets
                )?;
            }
        }
        if self.queues.len() > 1 {
            for queue in &self.queues {
                write!(f, "\n  queue {}: {} packets", queue.queue, queue.packets)?;
            }
        }
        if self.queues.iter().any(|queue| queue.no_frame > 0) {
            f.write_str("\n  frames ran out at times: give more memory (--memory)")?;
        }
        session::write_counters(f, std::slice::from_ref(&self.port))
    }
}
