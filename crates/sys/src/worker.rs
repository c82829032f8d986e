//! A worker: one thread, on one core if wanted, that turns a task over and over and sleeps when there is no work.
//!
//! What a task does is its own affair; the worker decides when the next turn is. It spins while there is work and for
//! [`SPIN_NS`] after, then sleeps in one `epoll_wait` on everything that can bring work: the queues' descriptors, the
//! task's deadline, and [`Stop`]. It never sleeps longer than [`HEARTBEAT_NS`], because a queue that is not looked at
//! for half a second counts as hung.

use std::any::Any;
use std::io;
use std::num::NonZeroU64;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvError, channel};
use std::thread::JoinHandle;

use rustix::event::{EventfdFlags, Timespec, epoll, eventfd};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity, set_current_timer_slack};

use crate::clock;

/// How long an adaptive worker spins after its last work. Going to sleep and being woken costs 5 to 50 µs on the
/// machines we know, more in a virtual machine: whoever sleeps in shorter gaps than that loses more than it saves, and
/// whoever spins at most that long never does worse than twice the best choice.
pub const SPIN_NS: u64 = 50_000;

/// How long a worker sleeps at most.
pub const HEARTBEAT_NS: u64 = 100_000_000;

/// How long before a deadline a worker that may spin stops sleeping: timers fire late by about this much.
const WAKE_NS: u64 = 60_000;

/// What a turn found to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// There was work; there may be more.
    Busy,
    /// There was none.
    Idle,
    /// The task is finished: no more turns.
    Done,
}

/// What a worker does over and over.
pub trait Task: Send + 'static {
    /// Does what there is to do now, a batch at most, without waiting.
    fn turn(&mut self) -> Turn;

    /// Asks whatever may bring work to wake the worker, before it sleeps. False when there is work already, or it
    /// would come unnoticed: the worker turns again instead.
    fn arm(&mut self) -> bool;

    /// Appends what becomes readable when there is work. Asked before the first turn, and when [`Task::wakes_anew`] says so.
    fn wake_fds<'a>(&'a self, fds: &mut Vec<BorrowedFd<'a>>);

    /// Whether [`Task::wake_fds`] has others than when this was asked last. Asked before the worker sleeps.
    fn wakes_anew(&mut self) -> bool {
        false
    }

    /// When there will be work without anyone waking us, in nanoseconds of [`clock::monotonic`], which is `now`. Asked
    /// after idle turns.
    fn next_deadline(&self, now: u64) -> Option<u64>;

    /// Brings what is under way to an end, in bounded time, after the last turn.
    fn finish(&mut self) {}
}

/// What a worker without work does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Idle {
    /// Looks again at once: the shortest delay, a whole core.
    Spin,
    /// Spins for [`SPIN_NS`], then sleeps.
    #[default]
    Adaptive,
    /// Sleeps at once, also before deadlines: the least load.
    Sleep,
    /// Looks again when others have had the core: for workers that share one and work for each other, so that there is always
    /// one with work.
    Yield,
}

/// How a worker is to run.
#[derive(Clone, Debug, Default)]
pub struct Placement {
    /// The thread's name; the kernel shows the first 15 bytes.
    pub name: String,
    /// The core it stays on; where the scheduler puts it when `None`.
    pub core: Option<usize>,
    /// What it does without work.
    pub idle: Idle,
}

/// Why a worker ended before its task did.
#[derive(Debug, thiserror::Error)]
pub enum WorkerError {
    /// It could not be put on its core.
    #[error("worker {name} can't run on core {core}: {source}; this process may use cores {allowed}")]
    Pin {
        /// The worker.
        name: String,
        /// The core.
        core: usize,
        /// The cores it could have had.
        allowed: String,
        /// The kernel's reason.
        source: io::Error,
    },
    /// The kernel refused what sleeping needs.
    #[error("worker {name} can't wait for its queues: {source}")]
    Epoll {
        /// The worker.
        name: String,
        /// The kernel's reason.
        source: io::Error,
    },
    /// The task has a bug.
    #[error("worker {name} panicked: {message}")]
    Panic {
        /// The worker.
        name: String,
        /// What the panic said.
        message: String,
    },
    /// The kernel gave no thread.
    #[error(
        "no thread for worker {name}: {source}; name fewer queues or cores, or raise the limits on threads (ulimit -u) \
         and memory (ulimit -v)"
    )]
    Thread {
        /// The worker.
        name: String,
        /// The kernel's reason.
        source: io::Error,
    },
}

/// Cores this process may run on.
pub fn allowed_cores() -> Vec<usize> {
    let set = sched_getaffinity(None).unwrap_or_else(|_| CpuSet::new());
    (0..CpuSet::MAX_CPU).filter(|&core| set.is_set(core)).collect()
}

/// A flag that ends workers, asleep or not. Clones are the same flag.
#[derive(Clone, Debug)]
pub struct Stop(Arc<StopInner>);

#[derive(Debug)]
struct StopInner {
    flag: AtomicBool,
    /// Readable from when the flag is set; never read.
    bell: OwnedFd,
}

impl Stop {
    /// A flag that is not set.
    ///
    /// # Errors
    /// The process is out of file descriptors.
    pub fn new() -> io::Result<Self> {
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self(Arc::new(StopInner { flag: AtomicBool::new(false), bell })))
    }

    /// Sets it, for good.
    pub fn set(&self) {
        if !self.0.flag.swap(true, Ordering::Relaxed) {
            // A fresh eventfd takes a first 1.
            let _ = rustix::io::write(&self.0.bell, &1u64.to_ne_bytes());
        }
    }

    /// Whether it is set.
    #[inline]
    pub fn is_set(&self) -> bool {
        self.0.flag.load(Ordering::Relaxed)
    }
}

impl AsFd for Stop {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.bell.as_fd()
    }
}

/// A task at its end, and how that came.
type Ended<T> = (T, Result<(), WorkerError>);

/// A running worker.
#[derive(Debug)]
pub struct Worker<T> {
    name: String,
    /// [`RecvError`] when it was never given its task.
    thread: JoinHandle<Result<Ended<T>, RecvError>>,
}

impl<T: Task> Worker<T> {
    /// Starts turning `task` until it is done or `stop` is set, and tells `ended` how it went after that.
    ///
    /// # Errors
    /// [`WorkerError::Thread`], with the task: its queues want closing.
    pub fn spawn(
        placement: Placement,
        stop: Stop,
        task: T,
        ended: impl FnOnce(&Result<(), WorkerError>) + Send + 'static,
    ) -> Result<Self, (T, WorkerError)> {
        let name = placement.name.clone();
        // What a thread that can't be made was to do is dropped with it, so the task is handed over afterwards.
        let (hand_over, take_over) = channel();
        let body = move || {
            let mut task = take_over.recv()?;
            let result = work(&mut task, &placement, &stop);
            ended(&result);
            Ok((task, result))
        };
        let failed = |name, source| WorkerError::Thread { name, source };
        let thread = match std::thread::Builder::new().name(name.clone()).spawn(body) {
            Ok(thread) => thread,
            Err(source) => return Err((task, failed(name, source))),
        };
        match hand_over.send(task) {
            Ok(()) => Ok(Self { name, thread }),
            Err(unsent) => Err((unsent.0, failed(name, io::ErrorKind::BrokenPipe.into()))),
        }
    }

    /// Waits for its end and gives the task back, also after a failure: its queues want closing.
    ///
    /// # Errors
    /// Only the error, without a task, when the thread died outside the task.
    pub fn join(self) -> Result<(T, Result<(), WorkerError>), WorkerError> {
        let name = self.name;
        match self.thread.join() {
            Ok(Ok(ended)) => Ok(ended),
            Ok(Err(unheard)) => Err(WorkerError::Panic { name, message: unheard.to_string() }),
            Err(panic) => Err(WorkerError::Panic { name, message: message(&*panic) }),
        }
    }
}

fn work<T: Task>(task: &mut T, placement: &Placement, stop: &Stop) -> Result<(), WorkerError> {
    let name = || placement.name.clone();
    if let Some(core) = placement.core {
        pin(core).map_err(|source| {
            let allowed = allowed_cores().iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
            WorkerError::Pin { name: name(), core, allowed, source }
        })?;
    }
    // Without it, timers of ordinary threads fire up to 50 µs later than they could. It is only a wish.
    let _ = set_current_timer_slack(NonZeroU64::new(1));
    let mut bell = Bell::new(task, stop).map_err(|source| WorkerError::Epoll { name: name(), source })?;
    // The task may be torn in the middle by a panic. It is only asked to close its queues after that.
    let run = catch_unwind(AssertUnwindSafe(|| {
        turn_until_stopped(task, placement.idle, stop, &mut bell)?;
        task.finish();
        Ok(())
    }));
    match run {
        Ok(result) => result.map_err(|source| WorkerError::Epoll { name: name(), source }),
        Err(panic) => Err(WorkerError::Panic { name: name(), message: message(&*panic) }),
    }
}

fn turn_until_stopped<T: Task>(task: &mut T, idle: Idle, stop: &Stop, bell: &mut Bell) -> io::Result<()> {
    let mut idle_since = None;
    while !stop.is_set() {
        match task.turn() {
            Turn::Busy => idle_since = None,
            Turn::Done => break,
            Turn::Idle if idle == Idle::Spin => std::hint::spin_loop(),
            Turn::Idle if idle == Idle::Yield => std::thread::yield_now(),
            Turn::Idle => {
                let now = clock::monotonic();
                let since = *idle_since.get_or_insert(now);
                let deadline = task.next_deadline(now);
                let spins = idle == Idle::Adaptive;
                let margin = if spins { WAKE_NS } else { 0 };
                let sleep =
                    deadline.map_or(HEARTBEAT_NS, |d| d.saturating_sub(now + margin).min(HEARTBEAT_NS));
                if sleep == 0 || (spins && now - since < SPIN_NS) || !task.arm() {
                    std::hint::spin_loop();
                } else {
                    if task.wakes_anew() {
                        *bell = Bell::new(task, stop)?;
                    }
                    bell.wait(sleep)?;
                }
            }
        }
    }
    Ok(())
}

/// Everything that wakes a sleeping worker.
struct Bell(OwnedFd);

impl Bell {
    fn new<T: Task>(task: &T, stop: &Stop) -> io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let mut fds = vec![stop.as_fd()];
        task.wake_fds(&mut fds);
        for fd in fds {
            match epoll::add(&epoll, fd, epoll::EventData::new_u64(0), epoll::EventFlags::IN) {
                // Two queues may share a descriptor.
                Ok(()) | Err(rustix::io::Errno::EXIST) => {}
                Err(e) => return Err(e.into()),
            }
        }
        Ok(Self(epoll))
    }

    fn wait(&self, nanoseconds: u64) -> io::Result<()> {
        let timeout =
            Timespec { tv_sec: 0, tv_nsec: i64::try_from(nanoseconds.min(HEARTBEAT_NS)).unwrap_or_default() };
        let mut events = [const { std::mem::MaybeUninit::uninit() }; 8];
        match epoll::wait(&self.0, &mut events, Some(&timeout)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(e) => Err(e.into()),
        }
    }
}

/// Has the calling thread stay on this core.
///
/// # Errors
/// When there is no such core, or this process may not use it.
pub fn pin(core: usize) -> io::Result<()> {
    if core >= CpuSet::MAX_CPU {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let mut set = CpuSet::new();
    set.set(core);
    Ok(sched_setaffinity(None, &set)?)
}

fn message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|s| (*s).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "for no stated reason".into())
}

#[cfg(test)]
mod tests;
