//! What is told of capturing, to people and to programs.

use std::fmt::{self, Display};
use std::time::Duration;

use bywash_sys::spool::Written;
use serde::Serialize;

use super::worker::Figures;
use super::{Options, file};
use crate::report::{Column, Metric, Row, Snapshot, Table};
use crate::session::{self, PortSummary, QUEUE};

/// What it is called on the command line.
pub(super) const COMMAND: &str = "capture";

/// What is about to be captured.
#[derive(Debug, Serialize)]
pub struct Start {
    pub(super) command: &'static str,
    pub(super) port: String,
    /// The kernel does not get the packets.
    pub(super) takes: bool,
    pub(super) mode: Vec<&'static str>,
    pub(super) workers: usize,
    pub(super) file: String,
    pub(super) expression: Option<String>,
    pub(super) snap_bytes: u32,
    pub(super) count_packets: Option<u64>,
}

impl Display for Start {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (port, mode) = (&self.port, self.mode.join(", "));
        write!(f, "capturing on {port} ({mode}) to {}, {} worker(s)", self.file, self.workers)?;
        if let Some(expression) = self.expression.as_deref().filter(|text| !text.is_empty()) {
            write!(f, ", only '{expression}'")?;
        }
        if let Some(count) = self.count_packets {
            write!(f, ", until {count} packets are captured")?;
        }
        if self.takes {
            let interface = port.strip_prefix("xdp:").unwrap_or(port);
            write!(
                f,
                "\n  the kernel does not get what is captured; `bywash capture {}` takes a copy instead",
                interface.split('/').next().unwrap_or(interface)
            )?;
        }
        Ok(())
    }
}

/// What all workers and the file have come to.
struct Total {
    figures: Figures,
    written: Written,
    lost_by_port: u64,
    damaged: u64,
}

const TOTAL: &[Column<Total>] = &[
    Column {
        metric: Metric::packets("rx_packets", "received", "Packets received, matching or not"),
        of: |total| total.figures.received.packets,
    },
    Column {
        metric: Metric::bytes("rx_bytes", "bytes", "Their bytes, without FCS"),
        of: |total| total.figures.received.bytes,
    },
    Column {
        metric: Metric::count("captured_packets", "captured", "Packets in the file or on their way there"),
        of: |total| total.figures.captured - total.figures.unwritten(&total.written),
    },
    Column {
        metric: Metric::count("written_packets", "written", "Packets in the file"),
        of: |total| total.written.records,
    },
    Column {
        metric: Metric::count("file_bytes", "bytes in files", "Bytes of all files"),
        of: |total| total.written.bytes,
    },
    Column {
        metric: Metric::count("files", "files", "Files made, those deleted since included"),
        of: |total| total.written.files,
    },
    Column {
        metric: Metric::count("unmatched_packets", "not matching", "Packets the expression does not match"),
        of: |total| total.figures.unmatched,
    },
    Column {
        metric: Metric::count("cut_packets", "cut", "Packets of which only the beginning was kept"),
        of: |total| total.figures.cut,
    },
    Column {
        metric: Metric::fault(
            "lost_packets",
            "lost: the disk is too slow (or give more --buffer)",
            "Packets lost because all memory for them waited for the disk",
        ),
        of: |total| total.figures.lost,
    },
    Column {
        metric: Metric::fault(
            "unwritten_packets",
            "lost: the file could not be written any more",
            "Packets lost on their way to the file, which could not be written any more",
        ),
        of: |total| total.figures.unwritten(&total.written),
    },
    Column {
        metric: Metric::fault(
            "port_lost_packets",
            "lost by the port",
            "Packets the kernel or the NIC lost before they reached us",
        ),
        of: |total| total.lost_by_port,
    },
    Column {
        metric: Metric::fault(
            "damaged_packets",
            "damaged",
            "Packets that came damaged, or longer than a packet can be here",
        ),
        of: |total| total.damaged,
    },
];

/// What has been done so far.
pub(super) fn snapshot(
    figures: &[Figures],
    written: &Written,
    lost_by_port: u64,
    elapsed: Duration,
) -> Snapshot {
    let mut queues: Vec<_> = figures.iter().flat_map(|worker| &worker.queues).collect();
    queues.sort_by_key(|(number, _)| *number);
    let rows = queues
        .iter()
        .map(|(number, counters)| Row::new(vec![("queue", (*number).into())], QUEUE, counters))
        .collect();
    let total = Total {
        figures: Figures::sum_of(figures.iter().cloned()),
        written: written.clone(),
        lost_by_port,
        damaged: queues.iter().map(|(_, counters)| counters.errors).sum(),
    };
    Snapshot {
        command: COMMAND,
        elapsed,
        total: Row::new(Vec::new(), TOTAL, &total),
        tables: vec![Table::new("queues", "queue", 1, rows)],
        distributions: Vec::new(),
    }
}

/// What came of capturing.
#[derive(Debug, Serialize)]
pub struct Summary {
    /// All that came and matched is in the file.
    pub met: bool,
    /// Why not.
    pub unmet: Vec<String>,
    /// Where to.
    pub file: String,
    /// What came, and what became of it.
    #[serde(flatten)]
    pub snapshot: Snapshot,
    /// What the port counted.
    pub port: PortSummary,
    /// What could not be undone, and the like.
    #[serde(skip)]
    pub warnings: Vec<String>,
}

impl Summary {
    pub(super) fn new(
        (snapshot, written): (Snapshot, &Written),
        mut unmet: Vec<String>,
        (options, is_file): (&Options, bool),
        (port, warnings): (PortSummary, Vec<String>),
    ) -> Self {
        let file = file(&options.target);
        let count = |name| snapshot.value(name).unwrap_or(0);
        let unwritten = count("unwritten_packets");
        unmet.extend(written.failure.as_ref().map(|failure| match unwritten {
            0 => failure.clone(),
            _ => format!("{failure}; {unwritten} packets that came before it was known are lost"),
        }));
        if let Some(wanted) = options.count.filter(|wanted| written.records < *wanted && !written.is_gone) {
            unmet.push(format!("{} of {wanted} packets were captured", written.records));
        }
        let (lost, by_port) = (count("lost_packets"), count("port_lost_packets"));
        if lost > 0 {
            unmet.push(format!("{lost} packets were lost: the disk is too slow (or give more --buffer)"));
        }
        if by_port > 0 {
            unmet.push(format!("{by_port} packets were lost by {} before they reached us", port.name));
        }
        // What was left out of a file, the file tells itself.
        let damaged = if is_file { 0 } else { count("damaged_packets") };
        if damaged > 0 {
            unmet.push(format!("{damaged} packets came damaged by {}, or too long", port.name));
        }
        Self { met: unmet.is_empty(), unmet, file, snapshot, port, warnings }
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
        let (count, seconds) =
            (|name| self.snapshot.value(name).unwrap_or(0), self.snapshot.elapsed.as_secs_f64());
        write!(f, "captured {} packets in {seconds:.3} s to {}", count("written_packets"), self.file)?;
        write!(f, ", {} bytes", count("file_bytes"))?;
        if count("files") > 1 {
            write!(f, " in {} files", count("files"))?;
        }
        write!(f, "\n  {} received", count("rx_packets"))?;
        if let Some(rates) = self.snapshot.since(None).total() {
            write!(f, ": {rates}")?;
        }
        write!(f, "; {} not matching, {} cut", count("unmatched_packets"), count("cut_packets"))?;
        let lost = count("lost_packets") + count("unwritten_packets");
        write!(f, "\n  {lost} lost here, {} by the port", count("port_lost_packets"))?;
        write!(f, ", {} damaged", count("damaged_packets"))?;
        self.snapshot.write_rows(f)?;
        session::write_counters(f, std::slice::from_ref(&self.port))
    }
}
