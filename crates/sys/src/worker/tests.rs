//! What a worker owes its task: turns, rest, waking, and its own end.

use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

use super::*;

/// A task made of closures.
struct Probe<F> {
    turn: F,
    deadline: Option<u64>,
    bell: OwnedFd,
    /// By which it is woken from its first sleep on, in the place of the other one.
    next_bell: Option<OwnedFd>,
    finished: bool,
    cpu: Duration,
}

impl<F: FnMut() -> Turn + Send + 'static> Probe<F> {
    fn new(turn: F) -> Self {
        let bell = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
        Self { turn, deadline: None, bell, next_bell: None, finished: false, cpu: Duration::ZERO }
    }
}

impl<F: FnMut() -> Turn + Send + 'static> Task for Probe<F> {
    fn turn(&mut self) -> Turn {
        (self.turn)()
    }

    fn arm(&mut self) -> bool {
        true
    }

    fn wake_fds<'a>(&'a self, fds: &mut Vec<BorrowedFd<'a>>) {
        // Twice, as two queues on one socket would.
        fds.extend([self.bell.as_fd(), self.bell.as_fd()]);
    }

    fn wakes_anew(&mut self) -> bool {
        let Some(next) = self.next_bell.take() else { return false };
        self.bell = next;
        true
    }

    fn next_deadline(&self, _: u64) -> Option<u64> {
        self.deadline
    }

    fn finish(&mut self) {
        self.finished = true;
        let used = clock_gettime(ClockId::ThreadCPUTime);
        self.cpu = Duration::new(used.tv_sec.cast_unsigned(), u32::try_from(used.tv_nsec).unwrap());
    }
}

fn run<F: FnMut() -> Turn + Send + 'static>(
    task: Probe<F>,
    placement: Placement,
    stop_after: Duration,
) -> (Probe<F>, Result<(), WorkerError>) {
    let stop = Stop::new().unwrap();
    let (tell, ended) = channel();
    let worker = spawn(placement, stop.clone(), task, move |_| tell.send(()).unwrap());
    if ended.recv_timeout(stop_after).is_err() {
        let asked = Instant::now();
        stop.set();
        ended.recv_timeout(Duration::from_secs(10)).unwrap();
        assert!(asked.elapsed() < Duration::from_secs(5), "a sleeping worker hears the stop");
    }
    worker.join().unwrap()
}

fn spawn<T: Task>(
    placement: Placement,
    stop: Stop,
    task: T,
    ended: impl FnOnce(&Result<(), WorkerError>) + Send + 'static,
) -> Worker<T> {
    Worker::spawn(placement, stop, task, ended).map_err(|(_, error)| error).unwrap()
}

fn placement(idle: Idle) -> Placement {
    Placement { name: "test".into(), core: None, idle }
}

#[test]
fn a_task_that_is_done_gets_no_more_turns_and_is_finished() {
    let mut left = 3;
    let task = Probe::new(move || {
        assert!(left > 0, "a turn too many");
        left -= 1;
        if left == 0 { Turn::Done } else { Turn::Busy }
    });
    let (task, result) = run(task, placement(Idle::Adaptive), Duration::from_secs(10));
    result.unwrap();
    assert!(task.finished);
}

#[test]
fn a_panic_is_an_error_that_names_the_worker_and_gives_the_task_back() {
    let (task, result) =
        run(Probe::new(|| panic!("odd {}", 7)), placement(Idle::Spin), Duration::from_secs(10));
    assert_eq!(result.unwrap_err().to_string(), "worker test panicked: odd 7");
    assert!(!task.finished);
}

#[test]
fn an_idle_worker_uses_less_than_a_hundredth_of_a_core_and_still_beats() {
    for idle in [Idle::Adaptive, Idle::Sleep] {
        let turns = Arc::new(std::sync::atomic::AtomicU64::new(0));
        let counted = Arc::clone(&turns);
        let task = Probe::new(move || {
            counted.fetch_add(1, Ordering::Relaxed);
            Turn::Idle
        });
        let (task, result) = run(task, placement(idle), Duration::from_secs(1));
        result.unwrap();
        assert!(task.cpu < Duration::from_millis(10), "{idle:?} used {:?} of a second", task.cpu);
        assert!(turns.load(Ordering::Relaxed) >= 5, "it looks at its queues every 100 ms");
    }
}

#[test]
fn a_readable_descriptor_wakes_a_sleeping_worker_also_one_that_the_task_has_had_since_it_began() {
    for is_new in [false, true] {
        let bell = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
        let in_turn = bell.try_clone().unwrap();
        let mut turn = 0;
        let (turned, turns) = channel();
        let mut task = Probe::new(move || {
            turn += 1;
            turned.send(Instant::now()).unwrap();
            if turn == 1 {
                return Turn::Idle;
            }
            rustix::io::read(&in_turn, &mut [0; 8]).unwrap();
            Turn::Done
        });
        let its = bell.try_clone().unwrap();
        if is_new {
            task.next_bell = Some(its);
        } else {
            task.bell = its;
        }
        let stop = Stop::new().unwrap();
        let worker = spawn(placement(Idle::Sleep), stop, task, |_| ());
        let first = turns.recv_timeout(Duration::from_secs(5)).unwrap();
        std::thread::sleep(Duration::from_millis(20));
        rustix::io::write(&bell, &1u64.to_ne_bytes()).unwrap();
        let second = turns.recv_timeout(Duration::from_secs(5)).unwrap();
        assert!(second - first < Duration::from_millis(90), "woken, not by the 100 ms: {:?}", second - first);
        worker.join().unwrap().1.unwrap();
    }
}

#[test]
fn a_deadline_is_met_neither_early_nor_late() {
    for idle in [Idle::Spin, Idle::Adaptive, Idle::Sleep, Idle::Yield] {
        let due = clock::monotonic() + 3_000_000;
        let late = Arc::new(std::sync::atomic::AtomicU64::new(0));
        let noted = Arc::clone(&late);
        let task = Probe {
            deadline: Some(due),
            ..Probe::new(move || {
                let now = clock::monotonic();
                if now < due {
                    return Turn::Idle;
                }
                noted.store(now - due, Ordering::Relaxed);
                Turn::Done
            })
        };
        run(task, placement(idle), Duration::from_secs(5)).1.unwrap();
        // Without the deadline a sleeper would come 97 ms late; the rest is room for a busy machine.
        assert!(
            late.load(Ordering::Relaxed) < 50_000_000,
            "{idle:?}: {} ns late",
            late.load(Ordering::Relaxed)
        );
    }
}

#[test]
fn a_pinned_worker_stays_on_its_core() {
    let Some(&core) = allowed_cores().last() else { panic!("no core to run on") };
    let pinned = Placement { core: Some(core), ..placement(Idle::Adaptive) };
    let task = Probe::new(move || {
        assert_eq!(rustix::thread::sched_getcpu(), core);
        Turn::Done
    });
    run(task, pinned, Duration::from_secs(5)).1.unwrap();
}

#[test]
fn a_core_that_is_not_there_is_named_with_those_that_are() {
    for core in [900, 100_000] {
        let pinned = Placement { core: Some(core), ..placement(Idle::Adaptive) };
        let error = run(Probe::new(|| Turn::Done), pinned, Duration::from_secs(5)).1.unwrap_err().to_string();
        assert!(error.starts_with(&format!("worker test can't run on core {core}: ")), "{error}");
        let first = allowed_cores()[0];
        assert!(error.contains(&format!("this process may use cores {first}")), "{error}");
    }
}

#[test]
fn a_short_sleep_is_not_rounded_up_to_a_millisecond() {
    let task = Probe::new(|| Turn::Idle);
    let bell = Bell::new(&task, &Stop::new().unwrap()).unwrap();
    // A busy machine wakes it late now and then, but not each time.
    let shortest = (0..50).map(|_| {
        let asked = Instant::now();
        bell.wait(100_000).unwrap();
        asked.elapsed()
    });
    let shortest = shortest.min().unwrap();
    assert!((Duration::from_micros(100)..Duration::from_micros(900)).contains(&shortest), "{shortest:?}");
}
