//! The load generator against a server in virtual time.

use std::sync::{Arc, Mutex};

use super::*;

const MS: u64 = 1_000_000;

#[test]
fn a_pace_is_kept_exactly_however_odd_it_is() {
    let pace = Pace { requests: 3_000_000, time: Duration::from_secs(2) };
    for (number, nanos) in [(0, 0), (1, 666), (3, 2000), (3_000_000, 2_000_000_000), (u64::MAX, u64::MAX)] {
        assert_eq!(pace.due(number), Duration::from_nanos(nanos), "{number}");
    }
}

/// All delays that were recorded, in nanoseconds.
#[derive(Clone, Default)]
struct Watch(Arc<Mutex<Vec<u64>>>);

impl Clockwork for Watch {
    fn record(&mut self, ns: u64) {
        self.0.lock().unwrap().push(ns);
    }
}

/// A server of memcached's text protocol in virtual time: it answers within 0.1 ms, but for once, when it stands still.
#[derive(Default)]
struct Server {
    now: u64,
    connections: usize,
    /// When each answer is there, and on which connection; in this order.
    answers: VecDeque<(u64, usize)>,
    ready: Vec<usize>,
    /// From when on it stands still, and until when.
    stall: (u64, u64),
}

impl Sockets for Server {
    type Id = usize;

    fn now(&self) -> Timestamp {
        Timestamp::from_nanos(self.now)
    }

    fn connect(&mut self, _to: SocketAddr) -> Result<usize, String> {
        self.connections += 1;
        Ok(self.connections - 1)
    }

    fn send(&mut self, id: usize, bytes: &[u8]) -> usize {
        let stalled = (self.stall.0..self.stall.1).contains(&self.now);
        let at = if stalled { self.stall.1 } else { self.now } + MS / 10;
        let requests = bytes.iter().filter(|byte| **byte == b'\n').count();
        self.answers.extend(std::iter::repeat_n((at, id), requests));
        bytes.len()
    }

    fn read(&mut self, id: usize, take: &mut dyn FnMut(&[u8]) -> usize) -> usize {
        let answers = self.ready.extract_if(.., |ready| *ready == id).count();
        if answers == 0 { 0 } else { take(&b"END\r\n".repeat(answers)) }
    }

    fn shutdown(&mut self, _id: usize) {}

    fn close(&mut self, _id: usize) {}

    fn abort(&mut self, id: usize) {
        panic!("{id} went wrong")
    }
}

/// Plays until all is answered, and gives the delays, shortest first.
fn delays(plan: Plan, mut server: Server) -> Vec<u64> {
    let watch = Watch::default();
    let connections = plan.connections;
    let mut load = Load::new(plan, Counters::default(), watch.clone());
    load.start(&mut server).unwrap();
    let mut happened: Vec<Happened<usize>> = (0..connections).map(Happened::Connected).collect();
    for _ in 0..100_000 {
        load.turn(&happened, &mut server);
        happened.clear();
        if load.is_done() {
            break;
        }
        let due = load.next_deadline().map(Timestamp::as_nanos);
        let answer = server.answers.front().map(|(at, _)| *at);
        server.now = due.into_iter().chain(answer).min().expect("something is to come").max(server.now);
        while let Some((_, id)) = server.answers.pop_front_if(|(at, _)| *at <= server.now) {
            server.ready.push(id);
            happened.push(Happened::Readable(id));
        }
    }
    assert!(load.is_done(), "it never ends");
    let mut delays = watch.0.lock().unwrap().clone();
    delays.sort_unstable();
    delays
}

fn plan(pace: Option<Pace>) -> Plan {
    Plan {
        to: "10.0.0.2:11211".parse().unwrap(),
        dialect: Dialect::Memcached { set: None },
        connections: 4,
        depth: 1,
        pace,
        requests: Some(1000),
    }
}

/// A request each millisecond for a second, and a server that stands still for 200 of them: each request that was due
/// meanwhile has waited from when it was due, though only four could be sent.
#[test]
fn who_stands_still_is_charged_for_all_that_was_due_meanwhile() {
    let pace = Some(Pace { requests: 1000, time: Duration::from_secs(1) });
    let stall = (500 * MS, 700 * MS);
    let delays = delays(plan(pace), Server { stall, ..Server::default() });
    assert_eq!(delays.len(), 1000);
    let percentile = |percent: usize| delays[delays.len() * percent / 100] / MS;
    assert_eq!([50, 79].map(percentile), [0, 0], "before and after it answers at once");
    // Of a thousand, those due in the first 150 ms of the stall have waited for 50 ms or more, and so on.
    for (percent, least) in [(85, 48), (90, 98), (95, 148), (99, 188)] {
        let found = percentile(percent);
        assert!((least..least + 8).contains(&found), "p{percent} is {found} ms");
    }
    assert_eq!(delays[999] / MS, 200);
}

/// In a closed loop nobody asks while the server stands still, and what was sent is all that waited.
#[test]
fn a_closed_loop_counts_from_when_it_was_sent() {
    let stall = (5 * MS, 205 * MS);
    let delays = delays(plan(None), Server { stall, ..Server::default() });
    assert_eq!(delays.len(), 1000);
    assert_eq!(delays.iter().filter(|delay| **delay >= MS).count(), 4, "one of each connection");
}
