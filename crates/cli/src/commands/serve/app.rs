//! An instance as an app, so that it is reported on like the others.

use std::fmt::{self, Display};
use std::time::{Duration, Instant};

use bywash_apps::report::{Column, Metric, Row, Snapshot, Table};
use bywash_apps::{App, Summary as AppSummary};
use bywash_engine::stack::{Address, AddressState, Control, InterfaceId, Prefix};
use bywash_engine::{Figures, Handle, Instance};
use bywash_port::QueueCounters;
use serde::Serialize;

/// What a program on the instance has to tell beside what the instance counts.
pub(crate) trait Telling: Send {
    /// The numbers of everything together.
    fn row(&self, elapsed: Duration) -> Row;

    /// Over which time its rates are, when it has run for so long and has ended. That is the duration that a summary tells.
    fn measured(&self, elapsed: Duration) -> Duration {
        elapsed
    }

    /// The numbers of its parts.
    fn tables(&self, elapsed: Duration) -> Vec<Table> {
        let _ = elapsed;
        Vec::new()
    }

    /// Times that were measured.
    fn distributions(&self) -> Vec<bywash_apps::report::Distribution> {
        Vec::new()
    }

    /// What is worth knowing at the end and is no failure.
    fn warnings(&self) -> Vec<String> {
        Vec::new()
    }

    /// Why the aim was not met.
    fn unmet(&self) -> Vec<String> {
        Vec::new()
    }
}

/// No program.
impl Telling for () {
    fn row(&self, _: Duration) -> Row {
        Row::default()
    }
}

/// A running instance.
pub(crate) struct Running<T> {
    pub(crate) start: Start,
    pub(crate) instance: Instance,
    pub(crate) telling: T,
    /// The troubles that have been told before it began.
    pub(crate) told: Vec<String>,
    /// Who has the addresses it was to have, where it has none at all.
    pub(crate) taken: Vec<String>,
    pub(crate) began: Instant,
}

/// What an instance does, for the start of the report.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Start {
    pub(crate) command: &'static str,
    pub(crate) name: String,
    pub(crate) ports: Vec<String>,
    pub(crate) addresses: Vec<String>,
    pub(crate) engines: usize,
    /// What spreads flows over several engines.
    pub(crate) spread_by: Option<SpreadBy>,
    /// Where it can be asked; `None` when it can't.
    pub(crate) socket: Option<String>,
}

/// What decides which engine has a flow.
#[derive(Clone, Copy, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum SpreadBy {
    /// The NICs, by RSS.
    Nic,
    /// Each engine, for all packets that it receives.
    Software,
}

impl SpreadBy {
    /// Of an instance that has several engines.
    pub(crate) fn of(handle: &Handle) -> Option<Self> {
        let by = if handle.is_spread_by_nic() { Self::Nic } else { Self::Software };
        (handle.figures().len() > 1).then_some(by)
    }
}

impl Display for Start {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { command, name, ports, addresses, engines, spread_by, socket } = self;
        let engines = if *engines == 1 { "one engine".into() } else { format!("{engines} engines") };
        write!(f, "{command} {name} on {} with {engines}", ports.join(", "))?;
        match spread_by {
            Some(SpreadBy::Nic) => f.write_str(", flows spread by RSS")?,
            Some(SpreadBy::Software) => f.write_str(", flows spread by software")?,
            None => {}
        }
        if !addresses.is_empty() {
            write!(f, "\n  {}", addresses.join(", "))?;
        }
        if let Some(socket) = socket {
            write!(f, "\n  asked at {socket}")?;
        }
        f.write_str("\nCtrl-C ends it")
    }
}

/// Streams that are told of one by one.
const STREAMS: usize = 16;

/// What came of it.
#[derive(Debug, Serialize)]
pub(crate) struct Summary {
    met: bool,
    unmet: Vec<String>,
    #[serde(flatten)]
    snapshot: Snapshot,
    #[serde(skip)]
    warnings: Vec<String>,
}

impl Summary {
    /// The aim was met where nothing is unmet.
    pub(crate) fn new(unmet: Vec<String>, snapshot: Snapshot, warnings: Vec<String>) -> Self {
        Self { met: unmet.is_empty(), unmet, snapshot, warnings }
    }
}

impl Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let numbers = self.snapshot.total.values.iter().filter(|(_, value)| *value > 0);
        let numbers: Vec<String> =
            numbers.map(|(metric, value)| format!("{value} {}", metric.noun)).collect();
        write!(
            f,
            "{}: {}",
            Length(self.snapshot.elapsed),
            if numbers.is_empty() { "nothing".into() } else { numbers.join(", ") }
        )?;
        // Of more of them nobody reads each; programs have them all.
        for row in
            Some(self.snapshot.rows("streams")).filter(|rows| rows.len() <= STREAMS).into_iter().flatten()
        {
            let numbers = row.values.iter().map(|(metric, value)| format!("{value} {}", metric.noun));
            let labels = row.labels.iter().map(|(name, label)| format!("{name} {label}"));
            let (labels, numbers) = (labels.collect::<Vec<_>>(), numbers.collect::<Vec<_>>());
            write!(f, "\n  {}: {}", labels.join(" "), numbers.join(", "))?;
        }
        for distribution in &self.snapshot.distributions {
            if let Some(percentiles) = distribution.times.percentiles() {
                write!(f, "\n  {}: {percentiles}", distribution.name)?;
            }
        }
        Ok(())
    }
}

/// How long something took, for people: of what is short no zero, by which nobody could work out a rate.
struct Length(Duration);

impl Display for Length {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.as_secs_f64() {
            seconds if seconds < 1.0 => write!(f, "{:.2} ms", seconds * 1e3),
            seconds => write!(f, "{seconds:.1} s"),
        }
    }
}

impl AppSummary for Summary {
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

/// What keeps an instance from doing what it is to do, as far as it is known: a sentence for each.
pub(super) fn troubles(handle: &Handle) -> Vec<String> {
    let claimed = handle.control(|control, _| claimed(control)).unwrap_or_default();
    handle.gone().into_iter().flatten().chain(claimed).collect()
}

/// Whoever else claims addresses of ours, for each in a sentence that stays the same while it is the same station.
fn claimed(control: &Control) -> Vec<String> {
    let told = control.addresses().filter_map(|(prefix, id, state)| {
        let address = prefix.address();
        match state {
            AddressState::Duplicate => Some(taken(control, id, address)),
            _ if control.claims(id, address).count > 0 => {
                let whose = claimant(control, id, address);
                Some(format!("{address} is claimed by {whose}, too: one of the two must give it up"))
            }
            _ => None,
        }
    });
    told.collect()
}

fn taken(control: &Control, id: InterfaceId, address: Address) -> String {
    format!("{address} is not used: {} has it", claimant(control, id, address))
}

fn claimant(control: &Control, id: InterfaceId, address: Address) -> String {
    control.claims(id, address).by.map_or_else(|| "another station".into(), |mac| mac.to_string())
}

/// Who has the addresses that were given, a sentence for each, if other stations have them all.
pub(super) fn all_taken(handle: &Handle, given: &[Prefix]) -> Vec<String> {
    let given = given.to_vec();
    let found = handle.control(move |control, _| {
        let of = |wanted: &Prefix| {
            // A link-local one has its link's number in it by now.
            let ours = |(prefix, ..): &(Prefix, _, _)| prefix.address().ip() == wanted.address().ip();
            let (prefix, id, state) = control.addresses().find(ours)?;
            (state == AddressState::Duplicate).then(|| taken(control, id, prefix.address()))
        };
        given.iter().map(of).collect::<Option<Vec<_>>>()
    });
    found.ok().flatten().unwrap_or_default()
}

/// What all engines have done together.
#[derive(Clone, Copy, Debug, Default)]
struct Total {
    rx: QueueCounters,
    tx: QueueCounters,
    forwarded: u64,
    handed_over: u64,
    lost: u64,
}

const TOTAL: &[Column<Total>] = &[
    Column {
        metric: Metric::packets("rx_packets", "packets received", "Packets received"),
        of: |total| total.rx.packets,
    },
    Column {
        metric: Metric::bytes("rx_bytes", "bytes received", "Bytes of received packets, without FCS"),
        of: |total| total.rx.bytes,
    },
    Column {
        metric: Metric::count("tx_packets", "packets sent", "Packets sent"),
        of: |total| total.tx.packets,
    },
    Column {
        metric: Metric::count("tx_bytes", "bytes sent", "Bytes of sent packets, without FCS"),
        of: |total| total.tx.bytes,
    },
    Column {
        metric: Metric::count("forwarded", "passed on", "Packets of others that were passed on"),
        of: |total| total.forwarded,
    },
    Column {
        metric: Metric::count("handed_over", "handed over", "Packets that one engine handed to another"),
        of: |total| total.handed_over,
    },
    Column {
        metric: Metric::fault("lost", "lost: no memory, or a queue was full", "Packets lost inside"),
        of: |total| total.lost,
    },
];

fn snapshot(
    command: &'static str,
    figures: &[Figures],
    telling: &impl Telling,
    elapsed: Duration,
) -> Snapshot {
    let of = |figures: &[Figures]| Total {
        rx: figures.iter().flat_map(|engine| &engine.ports).map(|(rx, _)| *rx).sum(),
        tx: figures.iter().flat_map(|engine| &engine.ports).map(|(_, tx)| *tx).sum(),
        forwarded: figures.iter().map(|engine| engine.stack.forwarded).sum(),
        handed_over: figures.iter().map(|engine| engine.engine.handed_over).sum(),
        lost: figures.iter().map(|engine| engine.stack.no_memory + engine.engine.ring_full).sum(),
    };
    let engines: Vec<Total> = figures.chunks(1).map(of).collect();
    let all = of(figures);
    let rows = engines.iter().enumerate();
    let rows = rows.map(|(number, engine)| Row::new(vec![("engine", number.into())], TOTAL, engine));
    let total = telling.row(elapsed).and(TOTAL, &all);
    let engines = Table::new("engines", "engine", usize::MAX, rows.collect());
    let tables = std::iter::once(engines).chain(telling.tables(elapsed)).collect();
    Snapshot { command, elapsed, total, tables, distributions: telling.distributions() }
}

impl<T: Telling> App for Running<T> {
    type Start = Start;
    type Summary = Summary;

    fn start(&self) -> Start {
        self.start.clone()
    }

    fn snapshot(&self) -> Snapshot {
        let figures = self.instance.handle().figures();
        snapshot(self.start.command, &figures, &self.telling, self.began.elapsed())
    }

    fn troubles(&self) -> Vec<String> {
        let all = troubles(&self.instance.handle()).into_iter();
        all.filter(|sentence| !self.told.contains(sentence)).collect()
    }

    fn wait(&mut self, timeout: Duration) -> bool {
        self.instance.wait(timeout)
    }

    fn finish(self) -> Summary {
        let elapsed = self.began.elapsed();
        let closed = self.instance.close();
        // What a program could not do without an address says nothing of its own.
        let told = if self.taken.is_empty() { self.telling.unmet() } else { Vec::new() };
        let unmet = self.taken.into_iter().chain(closed.errors).chain(told).collect();
        let elapsed = self.telling.measured(elapsed);
        let snapshot = snapshot(self.start.command, &closed.figures, &self.telling, elapsed);
        let warnings = closed.warnings.into_iter().chain(self.telling.warnings()).collect();
        Summary::new(unmet, snapshot, warnings)
    }
}
