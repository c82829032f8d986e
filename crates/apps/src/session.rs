//! The course of a run: start, a look each second, the end by itself, by time or by the user, the summary.

use std::fmt::{self, Display};
use std::time::{Duration, Instant};

use bywash_port::frame::Pool;
use bywash_port::{Counter, OpenError, Port, QueuePair};
use bywash_sys::worker::{Stop, WorkerError};
use serde::Serialize;
use serde::ser::SerializeMap;

use crate::report::Reporter;

/// An app that has been started on its ports.
pub trait App {
    /// What is told at the start.
    type Start: Serialize + Display;
    /// What is told each second.
    type Interval: Serialize + Display;
    /// What is told at the end.
    type Summary: Summary;

    /// What it is about to do.
    fn start(&self) -> Self::Start;

    /// What was done since the last call, or since the start.
    fn interval(&mut self) -> Self::Interval;

    /// Waits until all workers have ended, at most so long, and says whether they have.
    fn wait(&mut self, timeout: Duration) -> bool;

    /// Waits for the workers (set the stop first, unless the work has an end), closes queues and ports, and sums up.
    fn finish(self) -> Self::Summary;
}

/// What came of a run.
pub trait Summary: Serialize + Display {
    /// Why the aim was not met; empty when it was.
    fn unmet(&self) -> &[String];

    /// What could not be undone when the ports were closed, and the like.
    fn warnings(&self) -> &[String];
}

/// Why an app did not start. Its ports are closed again.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// What was asked does not go with the port.
    #[error("{0}")]
    Refused(String),
    /// A port would not open.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// No worker.
    #[error(transparent)]
    Worker(#[from] WorkerError),
}

/// Reports on `app` each second until its workers end, `duration` is over, `stop` is set or nobody reads the reports;
/// then finishes it. True when the aim was met.
pub fn run<A: App>(mut app: A, duration: Option<Duration>, stop: &Stop, reporter: &mut Reporter) -> bool {
    let started = Instant::now();
    reporter.start(&app.start());
    // A time that no clock reaches is no end.
    let end = duration.and_then(|d| started.checked_add(d));
    for tick in 1.. {
        let next = started + Duration::from_secs(tick);
        let until = end.map_or(next, |end| end.min(next));
        let over = app.wait(until.saturating_duration_since(Instant::now()));
        if over || stop.is_set() || reporter.is_gone() || end.is_some_and(|end| end <= Instant::now()) {
            break;
        }
        if reporter.shows_intervals() {
            reporter.interval(&app.interval());
        }
    }
    stop.set();
    let summary = app.finish();
    for warning in summary.warnings() {
        reporter.warning(warning);
    }
    reporter.summary(&summary);
    for reason in summary.unmet() {
        reporter.unmet(reason);
    }
    summary.unmet().is_empty()
}

/// A port at the end of a run.
#[derive(Debug, Serialize)]
pub struct PortSummary {
    /// Its name.
    pub name: String,
    /// How it was opened.
    pub mode: Vec<&'static str>,
    /// What it counted beside its queues.
    #[serde(serialize_with = "as_map")]
    pub counters: Vec<Counter>,
}

fn as_map<S: serde::Serializer>(counters: &[Counter], to: S) -> Result<S::Ok, S::Error> {
    let mut map = to.serialize_map(Some(counters.len()))?;
    for counter in counters {
        map.serialize_entry(counter.name, &counter.value)?;
    }
    map.end()
}

/// Closes queues; their frames go to `pool`.
pub(crate) fn close_queues(queues: impl IntoIterator<Item = QueuePair>, pool: &mut Pool) {
    for QueuePair { rx, tx } in queues {
        if let Some(tx) = tx {
            tx.close(pool);
        }
        if let Some(rx) = rx {
            rx.close(pool);
        }
    }
}

/// Reads a port's counters and closes it. What could not be undone goes to `warnings`.
pub(crate) fn close_port(port: Box<dyn Port>, warnings: &mut Vec<String>) -> PortSummary {
    let summary = PortSummary {
        name: port.name().to_string(),
        mode: port.capabilities().mode.clone(),
        counters: port.counters(),
    };
    if let Err(sentences) = port.close() {
        warnings.extend(sentences.into_iter().map(|sentence| format!("{}: {sentence}", summary.name)));
    }
    summary
}

/// The ports' own counters that are not 0, a line each.
pub(crate) fn write_counters(f: &mut fmt::Formatter<'_>, ports: &[PortSummary]) -> fmt::Result {
    for port in ports {
        for counter in port.counters.iter().filter(|counter| counter.value > 0) {
            write!(f, "\n  {}: {} {}", port.name, counter.name, counter.value)?;
        }
    }
    Ok(())
}
