//! Two processes at the ends of a link, of which one is stopped, killed, started again.

use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use bywash_drivers::OpenOptions;
use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process};

use super::{End, LIMIT, Place, until};

/// What tells a process that it is to be the far end, and of which wire.
const FAR_END: &str = "BYWASH_TEST_LINK";

/// Packets that a far end can have in its hands: a batch it has received and not sent on.
const IN_HAND: u64 = 64;

/// A process that sends back all it receives.
struct Echo(Child);

impl Echo {
    fn start(place: &Place) -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "processes::the_far_end", "--ignored", "--nocapture"]);
        Self(command.env(FAR_END, place.name()).stdout(Stdio::null()).spawn().unwrap())
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.0), signal).unwrap();
    }

    fn kill(mut self) {
        self.signal(Signal::KILL);
        self.0.wait().unwrap();
    }
}

impl Drop for Echo {
    fn drop(&mut self) {
        // It is dead already in most tests.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
#[ignore = "the other tests run it, in a process of its own"]
fn the_far_end() {
    let Ok(name) = std::env::var(FAR_END) else { return };
    let mut end = End::open(&name, &OpenOptions::default());
    let started = Instant::now();
    while started.elapsed() < 3 * LIMIT {
        end.rx.rx(&mut end.pool, &mut end.batch);
        while !end.batch.is_empty() && started.elapsed() < 3 * LIMIT {
            end.tx.tx(&mut end.pool, &mut end.batch);
        }
        end.tx.flush(&mut end.pool);
        std::thread::yield_now();
    }
}

/// Sends numbers and takes them back.
struct Traffic {
    end: End,
    next: u64,
    /// The number that is to come back next, when none is lost.
    expected: u64,
    returned: u64,
    lost: u64,
}

impl Traffic {
    fn new(place: &Place) -> Self {
        Self::resume(place, 0, 0)
    }

    /// Goes on where another one stopped, of whose packets some may still come back.
    fn resume(place: &Place, next: u64, expected: u64) -> Self {
        let end = End::open(&place.name(), &OpenOptions::default());
        Self { end, next, expected, returned: 0, lost: 0 }
    }

    fn turn(&mut self) {
        // No more than fits the wires both ways: the far end must not be stuck with its hands full.
        for _ in 0..32 {
            if self.next - self.expected < 1000 && self.end.send(self.next) {
                self.next += 1;
            }
        }
        self.end.tx.flush(&mut self.end.pool);
        for number in self.end.receive() {
            assert!(number >= self.expected, "{number} came twice or late");
            self.lost += number - self.expected;
            self.expected = number + 1;
            self.returned += 1;
        }
    }

    /// Until so many more have come back.
    fn turn_for(&mut self, packets: u64) {
        let (goal, until) = (self.returned + packets, Instant::now() + LIMIT);
        while self.returned < goal {
            assert!(Instant::now() < until, "{} of {goal}: {:?}", self.returned, self.end.port.counters());
            self.turn();
        }
    }

    fn turn_until(&mut self, what: &str, mut done: impl FnMut(&End) -> bool) {
        until(what, || {
            self.turn();
            done(&self.end)
        });
    }
}

#[test]
fn whoever_is_killed_the_other_goes_on_and_they_find_each_other_again() {
    let place = Place::new();
    let mut echo = Echo::start(&place);
    until("a far end that listens", || place.path().exists());
    // First we are the second to come; once the first is dead we listen, and it comes back as the second.
    let mut traffic = Traffic::new(&place);
    for deaths in 1..=4 {
        traffic.turn_for(20_000);
        echo.kill();
        traffic.turn_until("its death", |end| end.counter("connected") == 0);
        // What is sent meanwhile waits.
        (0..20).for_each(|_| traffic.turn());
        echo = Echo::start(&place);
        traffic.turn_for(1000);
        assert_eq!(traffic.end.counter("connections"), deaths + 1);
        assert!(traffic.lost <= deaths * IN_HAND, "{} lost by {deaths} deaths", traffic.lost);
    }
    assert!(traffic.end.counter("kept_packets") > 0);
    assert_eq!(traffic.end.counter("peer_faults"), 0);
    echo.kill();
    // If it was the one that listened at last, its file is there until we listen: for streams of another kind than this one.
    let other_kind = Some(Errno::PROTOTYPE.raw_os_error());
    until("we listen", || {
        UnixStream::connect(place.path()).is_err_and(|error| error.raw_os_error() == other_kind)
    });
    traffic.end.close();
    assert!(!place.path().exists());
}

#[test]
fn we_restart_and_find_the_survivor() {
    let place = Place::new();
    let mut traffic = Traffic::new(&place);
    let echo = Echo::start(&place);
    for _ in 0..3 {
        traffic.turn_for(5000);
        let (next, expected) = (traffic.next, traffic.expected);
        traffic.end.close();
        traffic = Traffic::resume(&place, next, expected);
    }
    traffic.turn_for(5000);
    traffic.end.close();
    echo.kill();
    // It listened in its turn, and was killed: what it left is no obstacle.
    End::open(&place.name(), &OpenOptions::default()).close();
}

#[test]
fn a_stopped_end_loses_nothing() {
    let place = Place::new();
    let mut traffic = Traffic::new(&place);
    let echo = Echo::start(&place);
    traffic.turn_for(10_000);
    for _ in 0..3 {
        echo.signal(Signal::STOP);
        let full = Instant::now() + Duration::from_millis(100);
        while Instant::now() < full {
            traffic.turn();
        }
        assert_eq!(traffic.end.counter("connected"), 1);
        echo.signal(Signal::CONT);
        traffic.turn_for(10_000);
    }
    assert_eq!((traffic.lost, traffic.end.counter("connections")), (0, 1));
    echo.kill();
    traffic.end.close();
}
