//! An instance: engines on their cores, one control thread, and the ports they work on.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender as Channel, channel};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use bywash_port::{Counter, Port};
use bywash_stack::frame::{Arena, ArenaError, BATCH};
use bywash_stack::{Control, ControlError, InterfaceId, Limits, Stack, TcpError, Timestamp};
use bywash_sys::netlink::NetlinkError;
use bywash_sys::worker::{Idle, Placement, Stop, Worker, WorkerError};

use crate::control::{Change, Command, ControlTask};
use crate::engine::{Engine, Work};
use crate::figures::{Figures, Shared};
use crate::handoff::Bell;
use crate::plan::{self, Plan};
use crate::ports::Ports;
use crate::program::Program;

/// How long an instance waits for an answer of its own threads, which they give between two batches.
const ANSWER: Duration = Duration::from_secs(5);
/// How often there is looked whether the ports are still there: it costs some system calls for each.
const PORTS: Duration = Duration::from_millis(500);

/// How an instance is to run.
#[derive(Clone, Debug)]
pub struct Options {
    /// The core of each engine. Empty: as many engines as a port has queues at most, free to move.
    pub cores: Vec<usize>,
    /// What an engine without work does.
    pub idle: Idle,
    /// Packets received at once, at most; 1 to [`BATCH`].
    pub batch: usize,
    /// Packets for others are passed on.
    pub forward: bool,
    /// Redirects of routers are taken, where packets are not passed on.
    pub redirects: bool,
    /// What new connections may use.
    pub limits: Limits,
    /// The interfaces: a port's number, and the VLAN whose tagged packets it has. Empty: one of each port's untagged packets.
    pub interfaces: Vec<(usize, Option<u16>)>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            cores: Vec::new(),
            idle: Idle::default(),
            batch: BATCH,
            forward: false,
            redirects: true,
            limits: Limits::default(),
            interfaces: Vec::new(),
        }
    }
}

/// Why an instance did not start. Its ports are closed again.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// There is too little packet memory.
    #[error(transparent)]
    Arena(#[from] ArenaError),
    /// An interface, address or route does not go with the others.
    #[error(transparent)]
    Control(#[from] ControlError),
    /// The kernel gave no eventfd, or no random numbers.
    #[error("the kernel refuses what an engine needs: {0}")]
    Kernel(#[from] std::io::Error),
    /// The kernel does not tell of its interfaces.
    #[error(transparent)]
    Links(#[from] NetlinkError),
    /// No thread.
    #[error(transparent)]
    Worker(#[from] WorkerError),
    /// Something listens there already.
    #[error("{0} can't be listened on: {1}")]
    Listen(String, TcpError),
    /// A port has nothing to send by.
    #[error("{0} can't both send and receive: a stack needs both")]
    OneWay(String),
}

/// What went wrong while an instance ran: a program that could not begin, a worker that failed, a port whose interface is gone.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", .0.join("; "))]
pub struct Failed(pub Vec<String>);

/// The instance has ended, or a thread of it does not answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the instance has ended, or is too busy to answer")]
pub struct NoAnswer;

/// What addresses and routes an instance begins with: called once, before its threads start, with the interface of each
/// port, or those of [`Options::interfaces`].
pub type Configure<'a> = dyn FnOnce(&mut Control, Timestamp, &[InterfaceId]) -> Result<(), ControlError> + 'a;

/// A running instance.
pub struct Instance {
    engines: Vec<Worker<Engine>>,
    control: Worker<ControlTask>,
    ports: Arc<Ports>,
    stop: Stop,
    handle: Handle,
}

/// A way to ask a running instance, from any thread. Clones reach the same instance.
#[derive(Clone)]
pub struct Handle {
    pub(crate) commands: Channel<Command>,
    pub(crate) bell: Bell,
    pub(crate) unfinished: Arc<AtomicUsize>,
    pub(crate) figures: Vec<Arc<Shared>>,
    pub(crate) names: Arc<Vec<String>>,
    /// A handle that is left does not keep the ports of its instance open.
    pub(crate) ports: Weak<Ports>,
    pub(crate) spread_by_nic: bool,
}

/// What came of an instance.
#[derive(Debug, Default)]
pub struct Summary {
    /// What went wrong: a program that could not begin, a worker that failed, a port whose interface is gone.
    pub errors: Vec<String>,
    /// What could not be undone.
    pub warnings: Vec<String>,
    /// Each engine's last figures.
    pub figures: Vec<Figures>,
}

impl Instance {
    /// Starts an instance on ports, with packets in `arena`, until `stop` is set. `configure` gives it its addresses and
    /// routes. `program` makes each engine's program, of its number and how many engines there are. Ports of the kernel's interfaces
    /// are of the calling thread's network namespace: a change of their MTU is heard of there.
    ///
    /// # Errors
    /// [`StartError`], with the ports closed again.
    pub fn start(
        ports: Vec<Box<dyn Port>>,
        arena: &'static Arena,
        options: &Options,
        stop: &Stop,
        configure: Box<Configure<'_>>,
        program: &mut dyn FnMut(usize, usize) -> Box<dyn Program>,
    ) -> Result<Self, StartError> {
        let ports = Arc::new(Ports::new(ports));
        let plan = plan::make(&ports, arena, options, configure, program);
        match plan.and_then(|plan| launch(plan, options, stop)) {
            Ok((engines, control, handle)) => {
                Ok(Self { engines, control, ports, stop: stop.clone(), handle })
            }
            Err(error) => {
                // Why it did not start matters more than what could not be undone.
                ports.close(&mut Summary::default());
                Err(error)
            }
        }
    }

    /// A way to ask it.
    pub fn handle(&self) -> Handle {
        self.handle.clone()
    }

    /// Waits until all programs have done all, one could not begin, `stop` is set, or all ports have gone, for so long at most; says
    /// whether that is so. An instance that has nothing but its loopback interface left is of no use to anybody.
    pub fn wait(&self, patience: Duration) -> bool {
        /// Between two looks: nobody waits for the end of an instance in earnest.
        const LOOK: Duration = Duration::from_millis(10);
        let start = Instant::now();
        let mut ports_at = start + PORTS;
        loop {
            if self.handle.is_done() || self.stop.is_set() {
                return true;
            }
            let left = patience.saturating_sub(start.elapsed());
            if left.is_zero() || ports_at <= Instant::now() {
                if self.has_lost_all_ports() {
                    return true;
                }
                ports_at = Instant::now() + PORTS;
            }
            if left.is_zero() {
                return false;
            }
            std::thread::sleep(left.min(LOOK));
        }
    }

    fn has_lost_all_ports(&self) -> bool {
        let gone = self.ports.gone();
        !gone.is_empty() && gone.iter().all(Option::is_some)
    }

    /// Lets it run until all programs have done all, `stop` is set, or all ports have gone, and ends it.
    ///
    /// # Errors
    /// [`Failed`]: something went wrong meanwhile.
    pub fn run(self) -> Result<Summary, Failed> {
        while !self.wait(Duration::from_secs(1)) {}
        let summary = self.close();
        if summary.errors.is_empty() { Ok(summary) } else { Err(Failed(summary.errors)) }
    }

    /// Ends it: what is under way is sent, connections that are still open are reset, and the ports are closed.
    pub fn close(self) -> Summary {
        self.stop.set();
        let mut summary = Summary::default();
        // The control first: its packets are on their way by the engines.
        if let Err(error) = self.control.join().and_then(|(_, result)| result) {
            summary.errors.push(error.to_string());
        }
        for engine in self.engines {
            match engine.join() {
                Ok((engine, result)) => {
                    summary.errors.extend(result.err().map(|error| error.to_string()));
                    summary.errors.extend(engine.failure().map(str::to_owned));
                    engine.close();
                }
                Err(error) => summary.errors.push(error.to_string()),
            }
        }
        summary.figures = self.handle.figures();
        self.ports.close(&mut summary);
        summary
    }
}

impl Handle {
    /// Does something on the control thread and returns what came of it.
    ///
    /// # Errors
    /// [`NoAnswer`]: it was not begun in time, and will not be, or a thread of the instance failed at it.
    pub fn control<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Control, Timestamp) -> T + Send + 'static,
    ) -> Result<T, NoAnswer> {
        let (change, awaited) = awaited(work);
        self.send(Command::Control(change))?;
        awaited.wait(ANSWER)
    }

    /// Does something with the stack of each engine, and returns what came of it in their order.
    ///
    /// # Errors
    /// [`NoAnswer`].
    pub fn stacks<T: Send + 'static>(
        &self,
        work: impl Fn(&mut Stack, Timestamp) -> T + Clone + Send + 'static,
    ) -> Result<Vec<T>, NoAnswer> {
        let mut answers = Vec::with_capacity(self.figures.len());
        let works = self.figures.iter().map(|_| {
            let (tell, answer) = channel();
            answers.push(answer);
            let work = work.clone();
            let work = move |stack: &mut Stack, now: Timestamp| drop(tell.send(work(stack, now)));
            Box::new(work) as Work
        });
        self.send(Command::Stacks(works.collect()))?;
        answers.iter().map(|answer| answer.recv_timeout(ANSWER).map_err(|_| NoAnswer)).collect()
    }

    /// What each engine has counted.
    pub fn figures(&self) -> Vec<Figures> {
        self.figures.iter().map(|shared| shared.read()).collect()
    }

    /// The ports' names, in the order of the interfaces, of which the first is the loopback.
    pub fn ports(&self) -> &[String] {
        &self.names
    }

    /// What each port counts beside its queues, in the same order. Of an instance that has ended there is nothing.
    pub fn port_counters(&self) -> Vec<Vec<Counter>> {
        self.ports.upgrade().map_or_else(Vec::new, |ports| ports.counters())
    }

    /// What of each port has gone for good, in a sentence and in the same order: its interface was deleted, say. Of an instance that has
    /// ended there is nothing.
    pub fn gone(&self) -> Vec<Option<String>> {
        self.ports.upgrade().map_or_else(Vec::new, |ports| ports.gone())
    }

    /// Whether the ports' NICs spread flows over the engines, by RSS; else engines do, by a hash in software. It is decided at
    /// the start.
    pub fn is_spread_by_nic(&self) -> bool {
        self.spread_by_nic
    }

    /// Whether all programs have done all they were to do, or one could not begin.
    pub fn is_done(&self) -> bool {
        self.unfinished.load(Ordering::Acquire) == 0
    }

    fn send(&self, command: Command) -> Result<(), NoAnswer> {
        self.commands.send(command).map_err(|_| NoAnswer)?;
        self.bell.ring_anyway();
        Ok(())
    }
}

/// What the control thread was asked to do.
struct Awaited<T> {
    answer: Receiver<T>,
    /// Set by the first of the two: the thread that begins it, or the one who waits no longer for that.
    is_decided: Arc<AtomicBool>,
}

impl<T> Awaited<T> {
    /// Waits until it is begun, for so long at most, and then until it is done.
    fn wait(self, patience: Duration) -> Result<T, NoAnswer> {
        let answer = match self.answer.recv_timeout(patience) {
            // It was begun meanwhile, and will be done.
            Err(RecvTimeoutError::Timeout) if self.is_decided.swap(true, Ordering::Relaxed) => {
                self.answer.recv().ok()
            }
            answer => answer.ok(),
        };
        answer.ok_or(NoAnswer)
    }
}

/// Work as the control thread does it, and what whoever asks for it waits for. It is not done later by a thread that comes to it
/// when nobody waits any more: by then it has been told that it failed.
fn awaited<T: Send + 'static>(
    work: impl FnOnce(&mut Control, Timestamp) -> T + Send + 'static,
) -> (Change, Awaited<T>) {
    let (tell, answer) = channel();
    let is_decided = Arc::new(AtomicBool::new(false));
    let decided = is_decided.clone();
    let change = move |control: &mut Control, now: Timestamp| {
        if !decided.swap(true, Ordering::Relaxed) {
            // Nobody hears it where the asking thread has ended.
            drop(tell.send(work(control, now)));
        }
    };
    (Box::new(change), Awaited { answer, is_decided })
}

/// Started threads, and the way to ask them.
type Launched = (Vec<Worker<Engine>>, Worker<ControlTask>, Handle);

/// Starts a thread for each part of a plan, or closes everything.
fn launch(plan: Plan, options: &Options, stop: &Stop) -> Result<Launched, StartError> {
    let Plan { engines, control, handle } = plan;
    let placement = Placement { name: "control".into(), core: None, idle: Idle::Sleep };
    let ended = |stop: &Stop| {
        let stop = stop.clone();
        // One that fails takes the others with it.
        move |result: &Result<(), WorkerError>| {
            if result.is_err() {
                stop.set();
            }
        }
    };
    let control = match Worker::spawn(placement, stop.clone(), control, ended(stop)) {
        Ok(control) => control,
        Err((_, error)) => {
            engines.into_iter().for_each(Engine::close);
            return Err(error.into());
        }
    };
    let mut workers = Vec::with_capacity(engines.len());
    let mut engines = engines.into_iter().enumerate();
    while let Some((number, engine)) = engines.next() {
        let core = options.cores.get(number).copied();
        let placement = Placement { name: format!("engine {number}"), core, idle: options.idle };
        match Worker::spawn(placement, stop.clone(), engine, ended(stop)) {
            Ok(worker) => workers.push(worker),
            Err((engine, error)) => {
                stop.set();
                let started = workers.into_iter().filter_map(|worker: Worker<Engine>| worker.join().ok());
                let all = started.map(|(engine, _)| engine).chain([engine]);
                all.chain(engines.map(|(_, engine)| engine)).for_each(Engine::close);
                drop(control.join());
                return Err(error.into());
            }
        }
    }
    Ok((workers, control, handle))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_asked_of_the_control_is_done_or_has_failed() {
        let mut control = Control::new([7; 16]);
        let (done, times_done) = channel();
        let work = |takes: Duration| {
            let done = done.clone();
            awaited(move |_, _| {
                done.send(()).unwrap();
                std::thread::sleep(takes);
                "done"
            })
        };
        let (in_time, result) = work(Duration::ZERO);
        in_time(&mut control, Timestamp::ZERO);
        assert_eq!(result.wait(Duration::ZERO), Ok("done"));
        assert_eq!(times_done.try_iter().count(), 1);

        let (too_late, result) = work(Duration::ZERO);
        assert_eq!(result.wait(Duration::ZERO), Err(NoAnswer));
        too_late(&mut control, Timestamp::ZERO);
        assert_eq!(times_done.try_iter().count(), 0);

        let (under_way, result) = work(Duration::from_millis(50));
        let thread = std::thread::spawn(move || under_way(&mut control, Timestamp::ZERO));
        times_done.recv().unwrap();
        assert_eq!(result.wait(Duration::ZERO), Ok("done"));
        thread.join().unwrap();
    }
}
