//! What the flood filter leaves of batches of any size, in which order it gives that back, and what becomes of its port when one of its
//! workers dies.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod fake;

use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bywash_apps::App;
use bywash_apps::filter::{Filter, Options};
use bywash_apps::port::filter::rules::{FlowOptions, Limit, Per};
use bywash_apps::port::frame::{Arena, Batch, FRAME_SIZE, Packet, Pool};
use bywash_apps::port::{
    Action, Condition, QueueCounters, QueuePair, Rule, RuleSet, Rules, RxQueue, TxQueue,
};
use bywash_apps::sys::worker::Stop;
use fake::Fake;

const PACKETS: u16 = 2000;
const SOURCES: u16 = 41;
/// Packets of a source that its limit lets through at once.
const BURST: u16 = 3;

/// Hands out packets in batches of one size after the other.
struct Rx {
    next: u16,
    batches: usize,
    stop: Stop,
}

/// Notes the numbers of the packets that are given back.
struct Tx(Arc<Mutex<Vec<u16>>>);

/// The packet of a number: UDP over IPv4 that says it. Every fifth one is for the port that is closed.
fn packet(number: u16) -> Vec<u8> {
    let [_, source] = (number % SOURCES).to_be_bytes();
    let mut packet = vec![0; 12];
    packet.extend([8, 0, 0x45, 0, 0, 30, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, source, 192, 0, 2, 1]);
    packet.extend([0, 7, 0, if number.is_multiple_of(5) { 9 } else { 8 }, 0, 10, 0, 0]);
    packet.extend(number.to_be_bytes());
    packet
}

impl RxQueue for Rx {
    fn rx(&mut self, pool: &mut Pool, batch: &mut Batch) -> usize {
        self.batches += 1;
        let n = batch.room().min(self.batches % 70).min((PACKETS - self.next).into());
        batch.extend(pool.take_many(n).map(|frame| {
            let mut made = Packet::new(frame);
            made.extend_from_slice(&packet(self.next)).unwrap();
            self.next += 1;
            made
        }));
        if self.next == PACKETS {
            self.stop.set();
        }
        n
    }
    fn arm(&mut self) -> bool {
        false
    }
    fn wake_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }
    fn counters(&self) -> QueueCounters {
        QueueCounters::default()
    }
    fn close(self: Box<Self>, _: &mut Pool) {}
}

impl TxQueue for Tx {
    fn tx(&mut self, pool: &mut Pool, batch: &mut Batch) -> usize {
        let number = |packet: &Packet| u16::from_be_bytes(*packet.head().last_chunk().unwrap());
        self.0.lock().unwrap().extend(batch.iter().map(number));
        let n = batch.len();
        pool.give_batch(batch);
        n
    }
    fn flush(&mut self, _: &mut Pool) {}
    fn in_flight(&self) -> usize {
        0
    }
    fn counters(&self) -> QueueCounters {
        QueueCounters::default()
    }
    fn close(self: Box<Self>, _: &mut Pool) {}
}

#[test]
fn what_is_left_of_batches_is_given_back_in_its_order() {
    let rule = |name: &str, action, to_ports| {
        let condition = Condition { to_ports, ..Condition::default() };
        Rule { name: name.into(), condition, action, sample: None, expires: None, dry_run: false }
    };
    let limit = Limit { rate: 1, burst: BURST.into(), per: Per::Source { v4: 32, v6: 64 }, block: None };
    let set = RuleSet::new(vec![
        rule("limited", Action::Limit(limit), vec![8..=9]),
        rule("closed", Action::Drop, vec![9..=9]),
    ]);
    let rules = Rules { set: Arc::new(set.unwrap()), never: Vec::new(), flows: FlowOptions::default() };
    let (stop, given) = (Stop::new().unwrap(), Arc::new(Mutex::new(Vec::new())));
    let rx = Rx { next: 0, batches: 0, stop: stop.clone() };
    let queue = QueuePair { rx: Some(Box::new(rx)), tx: Some(Box::new(Tx(Arc::clone(&given)))) };
    let port = Fake::new("loop:source", vec![queue], Box::new(|| Ok(())));
    let arena = Arena::new(vec![0; 512 * FRAME_SIZE]).unwrap();
    let mut options = Options::new(None, rules);
    options.workers.frames = Some(256);
    let mut filter = Filter::start(port, options, arena, &stop).unwrap();
    filter.wait(Duration::from_secs(60));
    filter.finish();
    let given = given.lock().unwrap();
    assert!(given.is_sorted(), "{given:?}");
    // What is closed was charged to the limit as well. A source gets one more each second, if that takes so long.
    let right: Vec<u16> = (0..BURST * SOURCES).filter(|number| !number.is_multiple_of(5)).collect();
    assert_eq!(given[..right.len()], right);
    assert!(given.len() < right.len() + usize::from(SOURCES), "{} are left", given.len());
}

/// A queue that nothing comes by, and how often it is looked at before that is one time too many. It notes what is done with it.
struct Broken {
    number: usize,
    looks: Option<u32>,
    done: Arc<Mutex<Vec<(usize, &'static str)>>>,
}

impl RxQueue for Broken {
    fn rx(&mut self, _: &mut Pool, _: &mut Batch) -> usize {
        if let Some(looks) = &mut self.looks {
            *looks = looks.checked_sub(1).expect("the queue is broken");
        }
        0
    }
    fn arm(&mut self) -> bool {
        false
    }
    fn wake_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }
    fn stop(&mut self) {
        self.done.lock().unwrap().push((self.number, "stopped"));
    }
    fn counters(&self) -> QueueCounters {
        QueueCounters::default()
    }
    fn close(self: Box<Self>, _: &mut Pool) {
        self.done.lock().unwrap().push((self.number, "closed"));
    }
}

#[test]
fn a_worker_that_dies_ends_the_filter_which_leaves_its_packets_to_the_kernel_and_says_why() {
    let done = Arc::new(Mutex::new(Vec::new()));
    let queue = |number, looks| QueuePair {
        rx: Some(Box::new(Broken { number, looks, done: Arc::clone(&done) })),
        tx: Some(Box::new(Tx(Arc::default()))),
    };
    let of_port = Arc::clone(&done);
    let closing = move || {
        of_port.lock().unwrap().push((2, "the port"));
        Ok(())
    };
    let port = Fake::new("loop:source", vec![queue(0, Some(9)), queue(1, None)], Box::new(closing));
    let rules = Rules {
        set: Arc::new(RuleSet::new(Vec::new()).unwrap()),
        never: Vec::new(),
        flows: FlowOptions::default(),
    };
    let arena = Arena::new(vec![0; 512 * FRAME_SIZE]).unwrap();
    let mut options = Options::new(None, rules);
    options.workers.frames = Some(128);
    let stop = Stop::new().unwrap();
    let mut filter = Filter::start(port, options, arena, &stop).unwrap();
    assert!(filter.wait(Duration::from_secs(60)) && stop.is_set(), "the other worker ends, too");
    let summary = filter.finish();
    assert_eq!(
        (summary.met, &summary.unmet[..]),
        (false, &["worker filter 0 panicked: the queue is broken".to_owned()][..])
    );
    let done = done.lock().unwrap();
    let first =
        |what| done.iter().position(|step| *step == what).unwrap_or_else(|| panic!("{what:?}: {done:?}"));
    for number in [0, 1] {
        assert!(first((number, "stopped")) < first((number, "closed")), "{done:?}");
        assert!(first((number, "closed")) < first((2, "the port")), "{done:?}");
    }
    assert_eq!((arena.unused(), arena.orphaned()), (arena.frames(), 0));
}
