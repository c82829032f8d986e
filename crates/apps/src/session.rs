//! The course of a run: start, a look each second, the end by itself, by time or by the user, the summary.

use std::fmt::{self, Display};
use std::time::{Duration, Instant};

pub(crate) use bywash_port::has_gone;
use bywash_port::{Counter, Gone, OpenError, Port, PortName, QueueCounters, RuleCount, SteerCount};
use bywash_sys::worker::{Stop, Task, WorkerError};
use serde::Serialize;
use serde::ser::SerializeMap;

use crate::crew::{Crew, WorkerOptions};
use crate::report::{Column, Metric, Reporter, Row, Snapshot, Table};

/// An app that has been started on its ports.
pub trait App {
    /// What is told at the start.
    type Start: Serialize + Display;
    /// What is told at the end.
    type Summary: Summary;

    /// What it is about to do; asked again when there are news, for those to whom it is still shown.
    fn start(&self) -> Self::Start;

    /// What was done since the start.
    fn snapshot(&self) -> Snapshot;

    /// What keeps it from doing anything, asked for each second.
    fn trouble(&self) -> Option<String> {
        None
    }

    /// The same where there may be several, which come and go by themselves: each is told.
    fn troubles(&self) -> Vec<String> {
        self.trouble().into_iter().collect()
    }

    /// How often what somebody has asked for was refused: each time the trouble is told, also when it is the same.
    fn refusals(&self) -> u64 {
        0
    }

    /// What people should know and what is no trouble, each a line, since this was last asked: each second.
    fn news(&self) -> Vec<String> {
        Vec::new()
    }

    /// What has gone, as the interface of a port, for good or for now, each in a sentence, and whether nothing is left to do then: that ends
    /// the run. Asked for each second.
    fn gone(&self) -> (Vec<String>, bool) {
        (Vec::new(), false)
    }

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

    /// The last snapshot, where it holds more than those taken on the way.
    fn snapshot(&self) -> Option<&Snapshot> {
        None
    }
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

/// Reports on `app` each second until its workers end, `duration` is over, `stop` is set, nobody reads the reports or its ports have
/// gone; then finishes it. True when the aim was met.
pub fn run<A: App>(mut app: A, duration: Option<Duration>, stop: &Stop, reporter: &mut Reporter) -> bool {
    let started = Instant::now();
    reporter.start(&app.start(), stop);
    reporter.begin(|| app.snapshot());
    // A time that no clock reaches is no end.
    let end = duration.and_then(|d| started.checked_add(d));
    let mut told: (Vec<String>, u64) = (Vec::new(), 0);
    loop {
        // Seconds that the process stood still, as after SIGSTOP, are over: none is made up for.
        let next = started + Duration::from_secs(started.elapsed().as_secs() + 1);
        let until = end.map_or(next, |end| end.min(next));
        let over = wait(&mut app, until, stop, reporter);
        // What has changed in the last second of a run is told, too.
        let news = app.news();
        news.iter().for_each(|line| reporter.news(line));
        if !news.is_empty() {
            reporter.title(&app.start());
        }
        if over || stop.is_set() || reporter.is_gone() || end.is_some_and(|end| end <= Instant::now()) {
            break;
        }
        let refusals = app.refusals();
        let (mut sentences, nothing_is_left) = app.gone();
        sentences.extend(app.troubles());
        let now = (sentences, refusals);
        // Each once, until it is another one, or somebody has asked again.
        for sentence in now.0.iter().filter(|sentence| now.1 != told.1 || !told.0.contains(sentence)) {
            reporter.warning(sentence);
        }
        told = now;
        if nothing_is_left {
            break;
        }
        if reporter.shows_intervals() {
            reporter.interval(app.snapshot());
        }
    }
    stop.set();
    let summary = app.finish();
    if let Some(snapshot) = summary.snapshot() {
        reporter.end(snapshot);
    }
    for warning in summary.warnings() {
        reporter.warning(warning);
    }
    reporter.summary(&summary);
    let failures = reporter.failures().to_vec();
    for reason in summary.unmet().iter().chain(&failures) {
        reporter.unmet(reason);
    }
    summary.unmet().is_empty() && failures.is_empty()
}

/// Waits until `until` or the end of all workers, and says whether it was that. Keys and signals are answered meanwhile.
fn wait<A: App>(app: &mut A, until: Instant, stop: &Stop, reporter: &mut Reporter) -> bool {
    loop {
        let left = until.saturating_duration_since(Instant::now());
        let over = app.wait(reporter.patience().map_or(left, |most| most.min(left)));
        reporter.attend(stop);
        reporter.catch_up();
        reporter.answer_if_asked(|| app.snapshot());
        if over || stop.is_set() || reporter.is_gone() || Instant::now() >= until {
            return over;
        }
    }
}

/// A port, or what packets are handed to in its place, at the end of a run.
#[derive(Clone, Debug, Serialize)]
pub struct PortSummary {
    /// Its name.
    pub name: String,
    /// How it was opened.
    pub mode: Vec<&'static str>,
    /// What it counted beside its queues.
    #[serde(serialize_with = "as_map")]
    pub counters: Vec<Counter>,
    /// What the rules counted by which its program steered packets.
    #[serde(serialize_with = "as_rules", skip_serializing_if = "Vec::is_empty")]
    pub rules: Vec<SteerCount>,
}

/// What a queue counts, for the rows of [`Snapshot`]s. Rows whose record holds more chain theirs to these.
pub(crate) const QUEUE: &[Column<QueueCounters>] = &[
    Column {
        metric: Metric::packets("packets", "packets", "Packets received or sent by the queue"),
        of: |queue| queue.packets,
    },
    Column { metric: Metric::bytes("bytes", "bytes", "Their bytes, without FCS"), of: |queue| queue.bytes },
    Column {
        metric: Metric::fault("errors", "damaged or refused", "Packets damaged or refused"),
        of: |queue| queue.errors,
    },
    Column {
        metric: Metric::fault(
            "no_frame",
            "times without a free frame (give more: --memory)",
            "Times no frame was free",
        ),
        of: |queue| queue.no_frame,
    },
];

/// What ports count beside their queues.
pub(crate) fn port_table<'a>(ports: impl IntoIterator<Item = &'a dyn Port>) -> Table {
    table_of(ports.into_iter().map(|port| PortSummary::of(port).row()))
}

/// What to call each of several ports, as rows must be told apart: the second `null:` is `null:#2`.
pub(crate) fn names<'a>(ports: impl IntoIterator<Item = &'a dyn Port>) -> Vec<String> {
    let plain: Vec<String> = ports.into_iter().map(|port| port.name().to_string()).collect();
    let name = |(index, name): (usize, &String)| {
        let before = plain[..index].iter().filter(|other| *other == name).count();
        if before == 0 { name.clone() } else { format!("{name}#{}", before + 1) }
    };
    plain.iter().enumerate().map(name).collect()
}

/// What ports count beside their queues, and where a program steers packets, what its rules do.
pub(crate) fn port_tables<'a>(ports: impl IntoIterator<Item = &'a dyn Port, IntoIter: Clone>) -> Vec<Table> {
    let ports = ports.into_iter();
    let ports: Vec<PortSummary> = (ports.clone().zip(names(ports)))
        .map(|(port, name)| PortSummary { name, ..PortSummary::of(port) })
        .collect();
    let rules: Vec<Row> = ports.iter().flat_map(PortSummary::rule_rows).collect();
    let rules = (!rules.is_empty()).then(|| Table::new("rules", "rule", 0, rules));
    [table_of(ports.iter().map(PortSummary::row))].into_iter().chain(rules).collect()
}

/// The same, of rows that are there already.
pub(crate) fn table_of(rows: impl IntoIterator<Item = Row>) -> Table {
    Table::new("ports", "port", usize::MAX, rows.into_iter().collect())
}

impl PortSummary {
    /// As it is now.
    pub(crate) fn of(port: &dyn Port) -> Self {
        Self {
            name: port.name().to_string(),
            mode: port.capabilities().mode.clone(),
            counters: port.counters(),
            rules: port.steer_counts(),
        }
    }

    /// Whether what was not sent has nobody who would have read it.
    pub(crate) fn is_unread(&self) -> bool {
        has_gone(&self.counters) == Some(Gone::Reader)
    }

    /// What it counts, as a row of a snapshot.
    pub(crate) fn row(&self) -> Row {
        let values = self.counters.iter().map(|counter| (port_metric(counter), counter.value));
        Row { labels: vec![("port", self.name.as_str().into())], values: values.collect() }
    }

    /// A row for each rule by which it steers.
    fn rule_rows(&self) -> impl Iterator<Item = Row> {
        let labels = |rule: &SteerCount| {
            vec![("port", self.name.as_str().into()), ("rule", rule.rule.as_str().into())]
        };
        self.rules.iter().map(move |rule| Row::new(labels(rule), RULE, rule))
    }
}

/// What a rule has counted, wherever rules are.
pub(crate) const RULE_PACKETS: Metric =
    Metric::packets("packets", "packets", "Packets that the rule was about");
pub(crate) const RULE_BYTES: Metric = Metric::bytes("bytes", "bytes", "Their bytes, without FCS");

const RULE: &[Column<SteerCount>] = &[
    Column { metric: RULE_PACKETS, of: |rule| rule.count.packets },
    Column { metric: RULE_BYTES, of: |rule| rule.count.bytes },
];

fn port_metric(&Counter { name, is_state, .. }: &Counter) -> Metric {
    if is_state {
        return Metric::gauge(name, name, "Whether it is so now (1), as the port tells");
    }
    Metric::count(name, name, "Counted by the port beside its queues")
}

fn as_map<S: serde::Serializer>(counters: &[Counter], to: S) -> Result<S::Ok, S::Error> {
    let mut map = to.serialize_map(Some(counters.len()))?;
    for counter in counters {
        map.serialize_entry(counter.name, &counter.value)?;
    }
    map.end()
}

fn as_rules<S: serde::Serializer>(rules: &[SteerCount], to: S) -> Result<S::Ok, S::Error> {
    #[derive(Serialize)]
    struct Counted<'a> {
        rule: &'a str,
        place: &'static str,
        packets: u64,
        bytes: u64,
    }
    to.collect_seq(rules.iter().map(|SteerCount { rule, decider, count }| Counted {
        rule,
        place: decider.name(),
        packets: count.packets,
        bytes: count.bytes,
    }))
}

/// Starts a worker for each of `tasks`, or closes everything: the tasks by `close`, then `ports`.
///
/// # Errors
/// The one that `tasks` came with, or why a worker did not start.
pub(crate) fn launch<T: Task, P: IntoIterator<Item = Box<dyn Port>>>(
    app: &str,
    options: &WorkerOptions,
    tasks: Result<Vec<T>, String>,
    ports: P,
    stop: &Stop,
    close: impl Fn(T),
) -> Result<(Crew<T>, P), StartError> {
    let refused = match tasks {
        Ok(tasks) => match Crew::start(app, options, tasks, stop) {
            Ok(crew) => return Ok((crew, ports)),
            Err((tasks, error)) => {
                tasks.into_iter().for_each(close);
                error.into()
            }
        },
        Err(reason) => StartError::Refused(reason),
    };
    // Why it did not start matters more than what could not be undone.
    ports.into_iter().for_each(|port| drop(port.close()));
    Err(refused)
}

/// Why workers failed, as reasons why an aim was not met.
pub(crate) fn reasons(failures: &[WorkerError]) -> Vec<String> {
    failures.iter().map(ToString::to_string).collect()
}

/// What is said of packets that a port has taken and of which nobody says that they were sent.
pub(crate) fn never_left(packets: u64, port: &str) -> Option<String> {
    (packets > 0).then(|| format!("{packets} packets were handed to {port} and never left"))
}

/// Whether a port is a capture file, which waits for whoever reads or writes it.
pub(crate) fn is_file(port: &dyn Port) -> bool {
    matches!(port.name(), PortName::Pcap { .. })
}

/// What [`App::gone`] says of the only port, or why that does not get all that it is for.
pub(crate) fn gone(port: &dyn Port) -> (Vec<String>, bool) {
    match has_gone(&port.counters()) {
        Some(gone) => (vec![gone.of(port.name())], true),
        None => (port.outgrown().into_iter().map(|why| format!("{}: {why}", port.name())).collect(), false),
    }
}

/// Reads a port's counters and closes it. What could not be undone goes to `warnings`. To `unmet` goes why it did not give
/// or take all that it was to: its interface went away; a file, which leaves nothing to be undone, is broken or full.
pub(crate) fn close_port(
    port: Box<dyn Port>,
    warnings: &mut Vec<String>,
    unmet: &mut Vec<String>,
) -> PortSummary {
    let summary = PortSummary::of(&*port);
    // Why a file has ended is told when it is closed, and that nobody reads it is no fault.
    let gone = has_gone(&summary.counters).filter(|gone| !matches!(gone, Gone::File | Gone::Reader));
    unmet.extend(gone.map(|gone| gone.of(&summary.name)));
    let told = if is_file(&*port) { unmet } else { warnings };
    if let Err(sentences) = port.close() {
        told.extend(sentences.into_iter().map(|sentence| format!("{}: {sentence}", summary.name)));
    }
    summary
}

/// The ports' own counters that are not 0 and their rules, a line each.
pub(crate) fn write_counters(f: &mut fmt::Formatter<'_>, ports: &[PortSummary]) -> fmt::Result {
    for port in ports {
        for counter in port.counters.iter().filter(|counter| counter.value > 0) {
            write!(f, "\n  {}: {} {}", port.name, counter.name, counter.value)?;
        }
        for SteerCount { rule, decider, count } in &port.rules {
            let RuleCount { packets, bytes } = count;
            write!(f, "\n  {}: '{rule}' in {decider}: {packets} packets, {bytes} bytes", port.name)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use bywash_port::{Capabilities, QueuePair};

    use super::*;
    use crate::report::{Kind, Style};

    /// Stands still in its first second, and ends in the wait after it.
    #[derive(Default)]
    struct Stopped(Vec<Duration>);

    #[derive(Serialize)]
    struct Done;

    impl Display for Done {
        fn fmt(&self, _: &mut fmt::Formatter<'_>) -> fmt::Result {
            Ok(())
        }
    }

    impl Summary for Done {
        fn unmet(&self) -> &[String] {
            &[]
        }
        fn warnings(&self) -> &[String] {
            &[]
        }
    }

    impl App for Stopped {
        type Start = &'static str;
        type Summary = Done;

        fn start(&self) -> &'static str {
            ""
        }
        fn snapshot(&self) -> Snapshot {
            Snapshot::default()
        }
        fn wait(&mut self, timeout: Duration) -> bool {
            self.0.push(timeout);
            if self.0.len() == 1 {
                std::thread::sleep(Duration::from_millis(2100));
            }
            self.0.len() > 1
        }
        fn finish(self) -> Done {
            assert!(self.0[1] > Duration::from_millis(200), "{:?}", self.0);
            Done
        }
    }

    /// Its NIC forgets what it did for it, and later its interface goes.
    struct Worn {
        name: PortName,
        capabilities: Capabilities,
        gone: bool,
    }

    impl Port for Worn {
        fn name(&self) -> &PortName {
            &self.name
        }
        fn capabilities(&self) -> &Capabilities {
            &self.capabilities
        }
        fn queues(&mut self) -> Vec<QueuePair> {
            Vec::new()
        }
        fn counters(&self) -> Vec<Counter> {
            vec![Counter::count("taken", 7), Counter::state("interface_gone", self.gone)]
        }
        fn outgrown(&self) -> Option<String> {
            Some("its rules are lost".into())
        }
        fn close(self: Box<Self>) -> Result<(), Vec<String>> {
            Ok(())
        }
    }

    #[test]
    fn a_port_that_does_not_get_all_is_told_of_and_ends_nothing() {
        let name = "null:".parse().unwrap();
        let mut port = Worn { name, capabilities: Capabilities::default(), gone: false };
        assert_eq!(gone(&port), (vec!["null:: its rules are lost".into()], false));
        port.gone = true;
        assert_eq!(gone(&port), (vec!["the interface of null: is gone".into()], true));
    }

    #[test]
    fn of_what_a_port_counts_only_what_is_so_now_may_fall() {
        let counters = vec![Counter::count("taken", 7), Counter::state("interface_gone", true)];
        let (name, mode, rules) = ("null:".into(), Vec::new(), Vec::new());
        let row = PortSummary { name, mode, counters, rules }.row();
        let kinds: Vec<_> = row.values.iter().map(|(metric, value)| (metric.kind, *value)).collect();
        assert_eq!(kinds, [(Kind::Count, 7), (Kind::Gauge, 1)]);
    }

    #[test]
    fn seconds_in_which_the_process_stood_still_are_not_made_up_for() {
        let mut reporter = Reporter::stdio(Style::Quiet).unwrap();
        assert!(run(Stopped::default(), None, &Stop::new().unwrap(), &mut reporter));
    }
}
