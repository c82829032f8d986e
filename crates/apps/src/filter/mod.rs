//! Dropping a flood and nothing else: what the port's rules decide is decided there; what needs memory comes to a worker,
//! and what is not dropped goes back into the kernel where it came in.
//!
//! The workers judge packets. A thread of its own watches the rule file, puts new rules in the place of the old ones in one
//! step, ends rules that expire, and has the port drop what sources send that a limit has found to flood.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use bywash_port::frame::{Arena, BATCH};
use bywash_port::{Port, PortName, Rules};
use bywash_sys::interface::{index_of, worker_cores};
use bywash_sys::spool::Rotation;
use bywash_sys::worker::Stop;

use crate::crew::{Crew, WorkerOptions};
use crate::live::Live;
use crate::queues::{Halves, close_unused, pools};
use crate::report::Snapshot;
use crate::session::{App, StartError, close_port, launch, reasons};

mod audit;
mod blocks;
mod control;
mod events;
mod file;
mod heavy;
mod judge;
mod limit;
mod news;
mod places;
mod sample_file;
mod samples;
mod shared;
mod shared_port;
mod top;
mod trial;
mod trouble;
mod watched;
mod worker;

pub use audit::Audit;
pub use events::{Start, Summary};
pub use file::{Refused, RuleFile, RuleFileError};
pub use places::Placed;
pub use trial::{Trial, TrialError, TrialRule, try_rules};
pub use watched::Watched;

use control::{AT_WORK, Control, Ended};
use events::Moment;
use sample_file::SampleFile;
use shared::{Held, Shared};
use shared_port::SharedPort;
use worker::{Figures, Filterer};

/// How to filter.
#[derive(Debug)]
pub struct Options {
    /// The file of the rules that the port was opened with; watched for changes. None when everything is given back.
    pub file: Option<RuleFile>,
    /// The rules that the port was opened with.
    pub rules: Rules,
    /// Set to read the rule file again.
    pub reload: Arc<AtomicBool>,
    /// Where samples go.
    pub samples: Option<(PathBuf, Rotation)>,
    /// Where changes are noted, a JSON object on a line; opened anew when the rule file is asked to be read again.
    pub audit: Option<Audit>,
    /// So many of those that send most above limits, and of the blocked sources that send most, are told of.
    pub top: u8,
    /// Packets received at once, at most; 1 to [`BATCH`].
    pub batch: usize,
    /// How the workers run. Where packets come to them each stays on a core, also when none is named: one of its own, as
    /// [`worker_cores`] says.
    pub workers: WorkerOptions,
}

impl Options {
    /// By these rules, and no more.
    #[must_use]
    pub fn new(file: Option<RuleFile>, rules: Rules) -> Self {
        Self {
            file,
            rules,
            reload: Arc::default(),
            samples: None,
            audit: None,
            top: TOP,
            batch: BATCH,
            workers: WorkerOptions::default(),
        }
    }
}

/// [`Options::top`] when nothing is said.
pub const TOP: u8 = 10;

/// How long the workers may take to call their queues at the start.
const BEGIN: Duration = Duration::from_secs(1);

/// [`Options::top`] at most: limits know no more.
pub const MOST_TOP: u8 = 64;

/// A running filter.
pub struct Filter {
    crew: Crew<Filterer>,
    live: Vec<Live<Figures>>,
    control: Control,
    port: SharedPort,
    samples: Option<SampleFile>,
    options: Options,
    start: Start,
    started: Instant,
}

impl Filter {
    /// Starts filtering what `port`, opened with the same rules, takes, with frames of `arena`, until `stop` is set.
    ///
    /// # Errors
    /// [`StartError`], with the port closed again.
    pub fn start(
        mut port: Box<dyn Port>,
        mut options: Options,
        arena: &'static Arena,
        stop: &Stop,
    ) -> Result<Self, StartError> {
        let in_kernel = port.is_in_kernel();
        let mut queues = Halves::of(&mut *port);
        let is_free = options.workers.cores.is_empty();
        let served = Served::of(port.name());
        if in_kernel {
            // One worker shows that somebody is there, and more would have nothing to do. Nor would its frames: the rings want them
            // when the rules move to XDP, and a worker takes what it needs from those that are left.
            options.workers.cores.truncate(1);
            options.workers.frames = Some(0);
        } else if is_free {
            options.workers.cores = served.map_or_else(Vec::new, |served| served.cores(queues.rx.len()));
        }
        let audit = options.audit.take();
        let name = port.name().to_string();
        let shared = Shared::new(Held { rules: options.rules.clone(), flows: port.sent_flows() }, AT_WORK);
        let planned = deal(&mut queues, &options, (&shared, port.samples()), &name, arena);
        let unused = close_unused(queues.into_pairs(), arena);
        let (tasks, blocks, samples) = match planned.and_then(|planned| unused.map(|()| planned)) {
            Ok((mut tasks, blocks, samples)) => {
                if in_kernel && is_free {
                    tasks.iter_mut().for_each(|task| task.stay_once_moved(served));
                }
                (Ok(tasks), blocks, samples)
            }
            Err(reason) => (Err(format!("{name} {reason}")), Vec::new(), None),
        };
        let live: Vec<_> = tasks.iter().flatten().map(Filterer::live).collect();
        let start = Start {
            command: events::COMMAND,
            port: name,
            mode: port.capabilities().mode.clone(),
            in_kernel,
            workers: live.len(),
            rules: options.file.as_ref().map(|file| file.files[0].path.display().to_string()),
            kernel: count(&options.rules, false),
            user_space: count(&options.rules, true),
            places: places::placed(&port.rule_places()),
            told: places::lines(&port.rule_places()),
        };
        let started = Instant::now();
        let (crew, [port]) =
            launch("filter", &options.workers, tasks, [port], stop, |mut task: Filterer| task.close())?;
        let port = SharedPort::new(port);
        let control = match Control::start(port.clone(), Arc::clone(&shared), &options, audit, blocks, stop) {
            Ok(control) => control,
            Err(reason) => {
                stop.set();
                crew.join().0.iter_mut().for_each(Filterer::close);
                // Why it did not start matters more than what could not be undone.
                drop(port.take(Instant::now()).map(Port::close));
                return Err(StartError::Refused(reason));
            }
        };
        // The rules hold from then on, and who is told of the start may rely on that.
        while shared.begun() < live.len() && !stop.is_set() && started.elapsed() < BEGIN {
            std::thread::sleep(Duration::from_micros(100));
        }
        Ok(Self { crew, live, control, port, samples, options, start, started })
    }
}

/// Rules that user space has the last word on, or the others.
fn count(rules: &Rules, user_space: bool) -> usize {
    rules.set.rules().iter().filter(|rule| rule.asks_user_space() == user_space).count()
}

/// What workers serve that give packets back: an interface, which may have another name by now than its port, and its first queue.
#[derive(Clone, Copy)]
struct Served {
    interface: u32,
    queue: u16,
}

impl Served {
    fn of(port: &PortName) -> Option<Self> {
        let PortName::Xdp { interface, queues } = port else { return None };
        Some(Self { interface: index_of(interface), queue: queues.queue.unwrap_or_default() })
    }

    /// A core for each of so many workers. They write to a TAP, whose packets lie in a queue of the core that writes until the kernel has
    /// them: what a worker writes on another core could overtake what it has written before.
    fn cores(self, workers: usize) -> Vec<usize> {
        worker_cores(self.interface, self.queue, workers)
    }
}

type Planned = (Vec<Filterer>, Vec<rtrb::Consumer<control::Block>>, Option<SampleFile>);

fn deal(
    queues: &mut Halves,
    options: &Options,
    (shared, mut drawn): (&Arc<Shared>, Option<Box<dyn bywash_port::Samples>>),
    port: &str,
    arena: &'static Arena,
) -> Result<Planned, String> {
    if queues.rx.is_empty() || queues.rx.len() != queues.tx.len() {
        return Err("has no way back for what is not dropped: filter needs an xdp: port".into());
    }
    let workers = options.workers.count(queues.rx.len())?;
    let pools = pools(arena, workers, &options.workers)?;
    let (samples, producers) = match &options.samples {
        None => (None, Vec::new()),
        Some((path, rotation)) => {
            let (file, producers) = SampleFile::start(path, rotation, port, workers)?;
            (Some(file), producers)
        }
    };
    let mut hands: Vec<Vec<_>> = pools.iter().map(|_| Vec::new()).collect();
    for (index, (rx, (_, tx))) in queues.rx.drain(..).zip(queues.tx.drain(..)).enumerate() {
        hands[index % workers].push((rx.0, rx.1, tx));
    }
    let mut producers = producers.into_iter();
    let (mut tasks, mut blocks) = (Vec::new(), Vec::new());
    for (lanes, pool) in hands.into_iter().zip(pools) {
        let (tell, told) = rtrb::RingBuffer::new(control::MOST_WAITING);
        // The first one keeps what the port draws.
        let samples = (producers.next(), drawn.take());
        tasks.push(Filterer::new(lanes, (pool, options.batch), Arc::clone(shared), tell, samples));
        blocks.push(told);
    }
    Ok((tasks, blocks, samples))
}

impl App for Filter {
    type Start = Start;
    type Summary = Summary;

    fn start(&self) -> Start {
        // Others may hold, and have moved.
        let now = self.port.with(|port| (port.capabilities().mode.clone(), port.is_in_kernel()));
        let (mode, in_kernel) = now.unwrap_or((self.start.mode.clone(), self.start.in_kernel));
        let rules = self.control.rules();
        let (kernel, user_space) = (count(&rules, false), count(&rules, true));
        Start { mode, in_kernel, kernel, user_space, ..self.start.clone() }
    }

    fn snapshot(&self) -> Snapshot {
        let figures: Vec<Figures> = self.live.iter().map(Live::read).collect();
        let now = self.port.with(|port| {
            // What the port counts is counted for the rules that hold now.
            let moment = Moment {
                rules: &self.control.rules(),
                figures: &figures,
                done: &self.control.done(),
                blocked: &self.control.blocked(),
                top: self.options.top.into(),
                elapsed: self.started.elapsed(),
            };
            events::look(port, &moment)
        });
        let written = self.samples.as_ref().map(SampleFile::written).unwrap_or_default();
        now.map(|seen| seen.snapshot(written)).unwrap_or_default()
    }

    fn trouble(&self) -> Option<String> {
        let troubles = [self.control.trouble(), self.samples.as_ref().and_then(SampleFile::trouble)];
        troubles.into_iter().flatten().reduce(|first, second| format!("{first}; {second}"))
    }

    fn refusals(&self) -> u64 {
        self.control.done().refused
    }

    fn news(&self) -> Vec<String> {
        self.control.news()
    }

    fn wait(&mut self, timeout: Duration) -> bool {
        self.crew.wait(timeout)
    }

    fn finish(self) -> Summary {
        let (mut tasks, failures) = self.crew.join();
        // Those of a worker that has died, too.
        tasks.iter_mut().for_each(Filterer::stop);
        let Ended { rules, done, blocked, mut warnings, until } = self.control.finish();
        let elapsed = self.started.elapsed();
        tasks.iter_mut().for_each(Filterer::close);
        let figures: Vec<Figures> = tasks.into_iter().map(Filterer::end).collect();
        let mut unmet = reasons(&failures);
        let (count, done, top) = (rules.set.rules().len(), &done, self.options.top.into());
        let moment = Moment { rules: &rules, figures: &figures, done, blocked: &blocked, top, elapsed };
        let closed = self.port.take(until).map(|port| {
            // Nobody else does any more.
            if let Some(look) = port.look_apart() {
                look();
            }
            let seen = events::look(&*port, &moment);
            (seen, close_port(port, &mut warnings, &mut unmet))
        });
        // Only now: a file that takes nothing must not keep the machine as it is.
        let samples = self.samples.map(|samples| samples.finish(until, &mut warnings, &mut unmet));
        let Some((seen, port)) = closed else {
            unmet.push(
                "the thread that has not ended has the port: it was not closed, see `bywash cleanup`".into(),
            );
            return Summary::new(Snapshot::default(), unmet, count, None, warnings);
        };
        Summary::new(seen.snapshot(samples.unwrap_or_default()), unmet, count, Some(port), warnings)
    }
}
