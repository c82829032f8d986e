//! A machine that gives no more threads: an app says so and every queue is closed, whether its worker ran or not.
//!
//! The kernel refuses for real: this process is started again with stacks that few of fit into its address space.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod fake;

use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use bywash_apps::forward::{self, Forward, Pair};
use bywash_apps::generate::{self, Generate};
use bywash_apps::port::frame::{Arena, Batch, FRAME_SIZE, Pool};
use bywash_apps::port::{Port, QueueCounters, QueuePair, RxQueue, TxQueue};
use bywash_apps::receive::{self, Receive};
use bywash_apps::sys::worker::Stop;
use bywash_apps::{StartError, WorkerOptions};
use fake::Fake;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// What tells the process that it is the one without threads.
const INNER: &str = "BYWASH_TEST_NO_THREADS";

const QUEUES: usize = 64;

const STACK: u64 = 64 << 20;

/// Room for some stacks, not for [`QUEUES`]. An allocator may reserve whole stacks' worth for a thread, too; what is
/// over a multiple is left for the test.
const ROOM: u64 = 4 * STACK + STACK / 2;

/// Half a queue, which counts that it is closed.
struct Half(Arc<AtomicUsize>);

impl RxQueue for Half {
    fn rx(&mut self, _: &mut Pool, _: &mut Batch) -> usize {
        0
    }
    fn arm(&mut self) -> bool {
        true
    }
    fn wake_fd(&self) -> Option<std::os::fd::BorrowedFd<'_>> {
        None
    }
    fn counters(&self) -> QueueCounters {
        QueueCounters::default()
    }
    fn close(self: Box<Self>, _: &mut Pool) {
        self.0.fetch_add(1, Relaxed);
    }
}

impl TxQueue for Half {
    fn tx(&mut self, _: &mut Pool, _: &mut Batch) -> usize {
        0
    }
    fn flush(&mut self, _: &mut Pool) {}
    fn in_flight(&self) -> usize {
        0
    }
    fn counters(&self) -> QueueCounters {
        QueueCounters::default()
    }
    fn close(self: Box<Self>, _: &mut Pool) {
        self.0.fetch_add(1, Relaxed);
    }
}

#[test]
fn without_threads_every_queue_is_closed() {
    if std::env::var_os(INNER).is_some() {
        return start_all();
    }
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["without_threads_every_queue_is_closed", "--exact", "--nocapture"])
        .envs([(INNER, "1"), ("RUST_MIN_STACK", &STACK.to_string())])
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

fn start_all() {
    let arena = Arena::new(vec![0; 1000 * FRAME_SIZE]).unwrap();
    let workers = WorkerOptions { frames: Some(4), ..WorkerOptions::default() };
    leave_room_for_few_stacks();
    check("forward", arena, |port, stop| {
        let options = forward::Options { workers: workers.clone(), ..Default::default() };
        Forward::start(vec![Pair::Same(port)], &options, arena, stop).err()
    });
    check("generate", arena, |port, stop| {
        let options = generate::Options { workers: workers.clone(), ..Default::default() };
        Generate::start(port, &options, arena, stop).err()
    });
    check("receive", arena, |port, stop| {
        let options = receive::Options { workers: workers.clone(), ..Default::default() };
        Receive::start(port, &options, arena, stop).err()
    });
}

fn leave_room_for_few_stacks() {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: u64 = statm.split(' ').next().unwrap().parse().unwrap();
    let most = pages * rustix::param::page_size() as u64 + ROOM;
    setrlimit(Resource::As, Rlimit { current: Some(most), ..getrlimit(Resource::As) }).unwrap();
}

fn check(app: &str, arena: &'static Arena, start: impl FnOnce(Box<dyn Port>, &Stop) -> Option<StartError>) {
    let closed = Arc::new(AtomicUsize::new(0));
    let half = || Box::new(Half(closed.clone()));
    let queues = (0..QUEUES).map(|_| QueuePair { rx: Some(half()), tx: Some(half()) }).collect();
    let seen = closed.clone();
    let closing = move || {
        // The port comes after all its queues.
        assert_eq!(seen.fetch_add(1, Relaxed), 2 * QUEUES);
        Ok(())
    };
    let stop = Stop::new().unwrap();
    let error = start(Fake::new("xdp:eth1", queues, Box::new(closing)), &stop).unwrap().to_string();
    let rest =
        error.strip_prefix(&format!("no thread for worker {app} ")).unwrap_or_else(|| panic!("{error}"));
    let number: usize = rest.split(':').next().unwrap().parse().unwrap();
    assert!((1..QUEUES).contains(&number), "some had started: {error}");
    assert!(error.contains("ulimit -u") && !error.contains('\n'), "{error}");
    assert!(stop.is_set(), "those that had started were stopped");
    assert_eq!(closed.load(Relaxed), 2 * QUEUES + 1);
    assert_eq!((arena.unused(), arena.orphaned()), (arena.frames(), 0));
}
