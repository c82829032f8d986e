//! The load generator against a server in virtual time.

use std::sync::{Arc, Mutex};

use super::*;

const MS: u64 = 1_000_000;

#[test]
fn a_pace_is_kept_exactly_however_odd_it_is() {
    let pace = Pace { requests: 3_000_000, time: Duration::from_secs(2), first: Duration::ZERO };
    for (number, nanos) in [(0, 0), (1, 666), (3, 2000), (3_000_000, 2_000_000_000), (u64::MAX, u64::MAX)] {
        assert_eq!(pace.due(number), Duration::from_nanos(nanos), "{number}");
        if number < u64::MAX {
            assert_eq!(pace.due_within(Duration::from_nanos(nanos)), number + 1);
        }
    }
}

#[test]
fn those_who_share_a_pace_take_turns() {
    let shares = [0, 1, 2].map(|number| Pace::share(1000, number, 3));
    for number in 0..9 {
        let due = Duration::from_millis(number);
        assert_eq!(shares[usize::try_from(number % 3).unwrap()].due(number / 3), due);
        let within = |time| shares.map(|pace| pace.due_within(time)).iter().sum::<u64>();
        assert_eq!((within(due), within(due + Duration::from_micros(999))), (number + 1, number + 1));
    }
}

/// All delays that were recorded, in nanoseconds.
#[derive(Clone, Default)]
struct Watch(Arc<Mutex<Vec<u64>>>);

impl Clockwork for Watch {
    fn record(&mut self, ns: u64, requests: u64) {
        self.0.lock().unwrap().extend((0..requests).map(|_| ns));
    }

    fn record_unanswered(&mut self, ns: u64, requests: u64) {
        self.record(ns, requests);
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
    /// How often something was sent.
    sends: usize,
    /// No connection can be opened any more.
    is_out: bool,
}

impl Sockets for Server {
    type Id = usize;

    fn now(&self) -> Timestamp {
        Timestamp::from_nanos(self.now)
    }

    fn connect(&mut self, _to: SocketAddr) -> Result<usize, String> {
        if self.is_out {
            return Err("no more".into());
        }
        self.connections += 1;
        Ok(self.connections - 1)
    }

    fn send(&mut self, id: usize, bytes: &[u8]) -> usize {
        self.sends += 1;
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

/// A generator that has begun, its connections open if they are to be.
fn begun(plan: Plan, server: &mut Server, is_open: bool) -> (Load<usize, Watch>, Counters) {
    let (counters, connections) = (Counters::default(), plan.connections);
    let mut load = Load::new(plan, counters.clone(), Watch::default());
    load.start(server).unwrap();
    if is_open {
        load.turn(&(0..connections).map(Happened::Connected).collect::<Vec<_>>(), server);
    }
    (load, counters)
}

#[test]
fn what_a_connection_is_asked_at_once_leaves_at_once() {
    let mut server = Server::default();
    let (mut load, counters) = begun(Plan { depth: 16, ..plan(None) }, &mut server, true);
    assert_eq!((server.sends, server.answers.len(), counters.read().asked), (4, 64, 64));
    server.answers.clear();
    (server.now, server.ready) = (MS, vec![1, 1, 2]);
    load.turn(&[1, 2].map(Happened::Readable), &mut server);
    assert_eq!((server.sends, server.answers.len(), counters.read().requests), (6, 3, 3));
    assert_eq!(counters.read().missed, 3, "it has no value");
}

#[test]
fn what_was_answered_before_a_reset_counts() {
    let mut server = Server::default();
    let (mut load, counters) = begun(Plan { depth: 2, ..plan(None) }, &mut server, true);
    server.ready = vec![0];
    load.turn(&[Happened::Closed(0, Ended::Reset)], &mut server);
    // The one that was asked since is lost as well.
    assert_eq!((counters.read().requests, counters.read().reset), (1, 1));
}

#[test]
fn connections_that_can_no_longer_be_opened_end_a_run_of_so_many_requests() {
    let mut server = Server::default();
    let (mut load, counters) =
        begun(Plan { timeout: Duration::from_secs(1), ..plan(None) }, &mut server, true);
    server.is_out = true;
    load.turn(&[0, 1, 2, 3].map(|id| Happened::Closed(id, Ended::InOrder)), &mut server);
    while !load.is_done() && server.now < 10_000 * MS {
        server.now = load.next_deadline().unwrap().as_nanos().max(server.now + 1);
        load.turn(&[], &mut server);
    }
    assert_eq!((server.now / MS, counters.read().given_up), (1000, 1));
    assert_eq!(counters.read().unopened, 11);
}

#[test]
fn a_rate_is_not_reached_where_no_connection_was_ever_open() {
    let mut server = Server::default();
    let (mut load, counters) = begun(
        plan(Some(Pace { requests: 1000, time: Duration::from_secs(1), first: Duration::ZERO })),
        &mut server,
        false,
    );
    load.end(Timestamp::from_nanos(2000 * MS));
    let counted = counters.read();
    assert_eq!((counted.never_opened, counted.late_ns, counted.asking_ns), (4, 2000 * MS, 2000 * MS));
}

/// Plays until all is answered, and gives the delays, shortest first.
fn delays(plan: Plan, server: Server) -> Vec<u64> {
    let all = plan.requests;
    let (delays, counted) = play(plan, server, u64::MAX);
    assert_eq!((Some(counted.requests), counted.unanswered), (all, 0), "all are answered");
    delays
}

/// Plays until all is answered or the time is over, and gives the delays, shortest first, and what was counted.
fn play(plan: Plan, mut server: Server, end: u64) -> (Vec<u64>, Counted) {
    let counters = Counters::default();
    let watch = Watch::default();
    let connections = plan.connections;
    let mut load = Load::new(plan, counters.clone(), watch.clone());
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
        server.now = due.into_iter().chain(answer).min().unwrap_or(end).max(server.now).min(end);
        if server.now == end {
            break;
        }
        while let Some((_, id)) = server.answers.pop_front_if(|(at, _)| *at <= server.now) {
            server.ready.push(id);
            happened.push(Happened::Readable(id));
        }
    }
    load.end(Timestamp::from_nanos(server.now));
    let mut delays = watch.0.lock().unwrap().clone();
    delays.sort_unstable();
    (delays, counters.read())
}

fn plan(pace: Option<Pace>) -> Plan {
    Plan {
        to: "10.0.0.2:11211".parse().unwrap(),
        dialect: Dialect::Memcached { set: None },
        connections: 4,
        depth: 1,
        pace,
        requests: Some(1000),
        timeout: Duration::from_secs(30),
    }
}

/// A request each millisecond for a second, and a server that stands still for 200 of them: each request that was due
/// meanwhile has waited from when it was due, though only four could be sent.
#[test]
fn who_stands_still_is_charged_for_all_that_was_due_meanwhile() {
    let pace = Some(Pace { requests: 1000, time: Duration::from_secs(1), first: Duration::ZERO });
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

/// A server that answers nothing has kept each request waiting since it was due, sent or not.
#[test]
fn what_has_no_answer_at_the_end_counts_with_its_age() {
    let pace = Some(Pace { requests: 1000, time: Duration::from_secs(10), first: Duration::ZERO });
    let never = Server { stall: (0, u64::MAX / 2), ..Server::default() };
    let (delays, counted) = play(plan(pace), never, 2000 * MS);
    assert_eq!((counted.requests, counted.unanswered, delays.len()), (0, 201, 201));
    assert_eq!([0, 100, 200].map(|at| delays[at] / MS), [0, 1000, 2000]);
    assert_eq!((counted.oldest_ns, counted.slowest_ns), (2000 * MS, 0));
    // In a closed loop it is those that were sent.
    let never = Server { stall: (0, u64::MAX / 2), ..Server::default() };
    let (delays, counted) = play(plan(None), never, 2000 * MS);
    assert_eq!((counted.unanswered, delays), (4, vec![2000 * MS; 4]));
}

#[test]
fn a_healthy_server_leaves_what_is_as_old_as_its_answers() {
    let pace = Some(Pace { requests: 10_000, time: Duration::from_secs(1), first: Duration::ZERO });
    let (delays, counted) =
        play(Plan { requests: None, ..plan(pace) }, Server::default(), 500 * MS + MS / 20);
    assert_eq!(counted.requests + counted.unanswered, 5001);
    assert_eq!((delays.len(), counted.unanswered), (5001, 1));
    assert!(counted.oldest_ns <= counted.slowest_ns, "{counted:?}");
}

/// However many were never sent, recording them takes bounded time, and nobody's age is made larger than it is.
#[test]
fn too_many_to_be_recorded_one_by_one_are_recorded_in_groups() {
    #[derive(Clone, Default)]
    struct Groups(Arc<Mutex<(u64, u64, u64)>>);
    impl Clockwork for Groups {
        fn record(&mut self, _: u64, _: u64) {
            panic!("nothing is answered");
        }

        fn record_unanswered(&mut self, ns: u64, requests: u64) {
            let mut all = self.0.lock().unwrap();
            *all = (all.0 + 1, all.1 + requests, all.2.max(ns));
        }
    }
    let groups = Groups::default();
    let pace = Some(Pace { requests: 1_000_000_000, time: Duration::from_secs(1), first: Duration::ZERO });
    let mut server = Server { stall: (0, u64::MAX / 2), ..Server::default() };
    let mut load: Load<usize, _> =
        Load::new(Plan { requests: None, ..plan(pace) }, Counters::default(), groups.clone());
    load.start(&mut server).unwrap();
    load.turn(&[Happened::Connected(0)], &mut server);
    load.end(Timestamp::from_nanos(10_000 * MS));
    let (calls, requests, oldest) = *groups.0.lock().unwrap();
    assert!(calls <= GROUPS + 1, "{calls}");
    assert_eq!((requests, oldest), (10_000_000_001, 10_000 * MS));
}

/// Four connections with answers of 0.1 ms take 40 000 requests a second, whatever is asked for.
#[test]
fn a_rate_that_is_not_reached_is_known_by_how_late_the_last_request_was_sent() {
    let pace = |requests| Some(Pace { requests, time: Duration::from_secs(1), first: Duration::ZERO });
    let fast = Plan { requests: Some(20_000), ..plan(pace(1_000_000)) };
    let (_, counted) = play(fast.clone(), Server::default(), u64::MAX);
    assert_eq!((counted.due, counted.asked, counted.requests), (20_000, 20_000, 20_000));
    assert_eq!((counted.asking_ns / MS, counted.late_ns / MS), (499, 479), "it was to take 20 ms");
    // Ended before it has sent all.
    let (_, counted) = play(Plan { requests: None, ..fast }, Server::default(), 100 * MS);
    assert_eq!((counted.due / 1000, counted.asked / 1000, counted.asking_ns), (100, 4, 100 * MS));
    assert_eq!((counted.late_ns / MS, counted.unanswered), (96, counted.due - counted.requests));
    // One that is reached.
    let (_, counted) = play(plan(pace(1000)), Server::default(), u64::MAX);
    assert_eq!((counted.due, counted.asked, counted.asking_ns, counted.late_ns), (1000, 1000, 999 * MS, 0));
    let (_, counted) = play(plan(None), Server::default(), u64::MAX);
    assert_eq!((counted.due, counted.asked, counted.asking_ns), (1000, 1000, 0), "a closed loop has none");
}

/// A server of HTTP that answers the first request of each connection, and then closes it.
#[derive(Default)]
struct Closing {
    answer: &'static str,
    opened: Vec<usize>,
    /// Requests on each connection.
    asked: Vec<usize>,
    /// Those who were asked and have said nothing yet.
    ready: Vec<usize>,
    closed: Vec<usize>,
}

impl Sockets for Closing {
    type Id = usize;

    fn now(&self) -> Timestamp {
        Timestamp::from_nanos(0)
    }

    fn connect(&mut self, _to: SocketAddr) -> Result<usize, String> {
        self.asked.push(0);
        self.opened.push(self.asked.len() - 1);
        Ok(self.asked.len() - 1)
    }

    fn send(&mut self, id: usize, bytes: &[u8]) -> usize {
        let requests = bytes.windows(4).filter(|four| four == b"\r\n\r\n").count();
        if requests > 0 && self.asked[id] == 0 {
            self.ready.push(id);
        }
        self.asked[id] += requests;
        bytes.len()
    }

    fn read(&mut self, id: usize, take: &mut dyn FnMut(&[u8]) -> usize) -> usize {
        if self.ready.extract_if(.., |ready| *ready == id).count() == 0 {
            return 0;
        }
        self.answer.as_bytes().chunks(20).map(take).sum()
    }

    fn shutdown(&mut self, _id: usize) {}

    fn close(&mut self, id: usize) {
        self.closed.push(id);
    }

    fn abort(&mut self, id: usize) {
        panic!("{id} went wrong")
    }
}

/// Loads a server that says it closes until all is answered; whether it does is `closes`.
fn play_closing(answer: &'static str, depth: usize, closes: bool) -> (Counted, Closing) {
    let dialect = Dialect::Http { path: "/".into(), host: "a".into() };
    let plan = Plan { dialect, connections: 2, depth, requests: Some(50), ..plan(None) };
    let (counters, mut server) = (Counters::default(), Closing { answer, ..Closing::default() });
    let mut load = Load::new(plan, counters.clone(), Watch::default());
    load.start(&mut server).unwrap();
    for _ in 0..1000 {
        let mut happened: Vec<_> = server.opened.drain(..).map(Happened::Connected).collect();
        for id in server.ready.clone() {
            happened.push(Happened::Readable(id));
            happened.extend(closes.then_some(Happened::PeerClosed(id)));
        }
        load.turn(&happened, &mut server);
        if load.is_done() {
            break;
        }
    }
    load.end(Timestamp::ZERO);
    (counters.read(), server)
}

/// Whoever closes after each answer fails nobody: the next request goes by another connection, and so does what was asked beside
/// the one that was answered.
#[test]
fn a_server_that_closes_after_an_answer_is_asked_by_another_connection() {
    const CLOSE: &str = "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok";
    for answer in [
        CLOSE,
        "HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok",
        "HTTP/1.0 200 OK\r\n\r\nto the end",
        "HTTP/1.1 103 Hints\r\n\r\nHTTP/1.1 200 OK\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\n\r\n",
    ] {
        for depth in [1, 4] {
            let (counted, server) = play_closing(answer, depth, true);
            assert_eq!((counted.requests, counted.errors(), counted.unanswered), (50, 0, 0), "{answer}");
            assert_eq!((counted.asked, counted.due), (50, 50), "asked again is no further request");
            assert!(server.asked.iter().all(|asked| *asked <= depth), "{answer}: {:?}", server.asked);
            assert!((50..=52).contains(&counted.connections), "{answer}: {counted:?}");
        }
    }
    // The server is to close first, but not all wait for one that does not.
    let (counted, server) = play_closing(CLOSE, 1, false);
    assert_eq!((counted.requests, counted.errors()), (50, 0));
    assert!(server.closed.len() >= 50, "{}", server.closed.len());
}

#[test]
fn connections_that_never_open_are_told_of() {
    let counters = Counters::default();
    let mut server = Server::default();
    let wanted = Plan { connections: 8, requests: None, ..plan(None) };
    let mut load = Load::new(wanted, counters.clone(), Watch::default());
    load.start(&mut server).unwrap();
    load.turn(&(0..5).map(Happened::Connected).collect::<Vec<_>>(), &mut server);
    // What is opened in place of one that was open is no such one.
    load.turn(&[Happened::PeerClosed(0), Happened::PeerClosed(1)], &mut server);
    load.turn(&[Happened::Connected(8)], &mut server);
    // Nor what takes the place of that.
    load.turn(&[Happened::Closed(9, Ended::Refused)], &mut server);
    server.now = 200 * MS;
    load.turn(&[], &mut server);
    assert_eq!(server.connections, 11);
    load.end(Timestamp::from_nanos(server.now));
    assert_eq!(counters.read().never_opened, 3);
}

/// A server of memcached's text protocol that fails in its own way.
#[derive(Default)]
struct Faulty {
    now: u64,
    /// Answers to each request.
    answers: usize,
    /// Until when connections can be opened and requests are answered.
    until: u64,
    /// Those that are being opened, and those that are refused.
    opened: Vec<usize>,
    refused: Vec<usize>,
    connections: usize,
    ready: Vec<usize>,
    aborted: usize,
}

impl Sockets for Faulty {
    type Id = usize;

    fn now(&self) -> Timestamp {
        Timestamp::from_nanos(self.now)
    }

    fn connect(&mut self, _to: SocketAddr) -> Result<usize, String> {
        let list = if self.now < self.until { &mut self.opened } else { &mut self.refused };
        list.push(self.connections);
        self.connections += 1;
        Ok(self.connections - 1)
    }

    fn send(&mut self, id: usize, bytes: &[u8]) -> usize {
        if self.now < self.until && !bytes.is_empty() {
            self.ready.push(id);
        }
        bytes.len()
    }

    fn read(&mut self, id: usize, take: &mut dyn FnMut(&[u8]) -> usize) -> usize {
        let asked = self.ready.extract_if(.., |ready| *ready == id).count();
        if asked == 0 { 0 } else { take(&b"END\r\n".repeat(asked * self.answers)) }
    }

    fn shutdown(&mut self, _id: usize) {}

    fn close(&mut self, _id: usize) {}

    fn abort(&mut self, _id: usize) {
        self.aborted += 1;
    }
}

/// Plays until it is done or the time is over, a turn each 10 ms.
fn play_faulty(plan: Plan, mut server: Faulty, end: u64) -> (bool, Vec<u64>, Counted, Faulty) {
    let (counters, watch) = (Counters::default(), Watch::default());
    let mut load = Load::new(plan, counters.clone(), watch.clone());
    load.start(&mut server).unwrap();
    while server.now < end && !load.is_done() {
        let mut happened: Vec<_> = server.opened.drain(..).map(Happened::Connected).collect();
        happened.extend(server.refused.drain(..).map(|id| Happened::Closed(id, Ended::Refused)));
        let ready = if server.answers > 0 { server.ready.clone() } else { Vec::new() };
        happened.extend(ready.into_iter().map(Happened::Readable));
        load.turn(&happened, &mut server);
        server.now += 10 * MS;
    }
    load.end(Timestamp::from_nanos(server.now));
    let counted = counters.read();
    let all = counted.requests + counted.failed + counted.unanswered;
    assert_eq!(counted.due, all, "each is answered, failed or unanswered: {counted:?}");
    (load.is_done(), watch.0.lock().unwrap().clone(), counted, server)
}

/// wrk and redis-benchmark would fail, too: nobody knows which answer is whose any more.
#[test]
fn an_answer_that_nobody_has_asked_for_is_no_request_but_an_error_of_its_connection() {
    let wanted = Plan { connections: 2, requests: Some(10), ..plan(None) };
    let server = Faulty { answers: 2, until: u64::MAX, ..Faulty::default() };
    let (done, delays, counted, server) = play_faulty(wanted, server, 10_000 * MS);
    assert!(done);
    assert_eq!((counted.requests, counted.due, delays.len()), (10, 10, 10), "{counted:?}");
    assert_eq!((counted.wrong, server.aborted), (10, 10), "each of them: {counted:?}");
}

#[test]
fn a_request_without_an_answer_in_time_has_failed_and_its_connection_is_opened_anew() {
    let timeout = Duration::from_millis(300);
    let wanted = Plan { connections: 2, depth: 2, requests: None, timeout, ..plan(None) };
    let server = Faulty { answers: 0, until: u64::MAX, ..Faulty::default() };
    let (done, delays, counted, server) = play_faulty(wanted, server, 1000 * MS);
    assert!(!done, "as long as it is wanted");
    assert_eq!((counted.timed_out, counted.failed, counted.unanswered), (12, 12, 4), "{counted:?}");
    assert_eq!((server.aborted, counted.connections), (6, 8), "{counted:?}");
    assert!(delays.len() == 16 && delays[..12].iter().all(|delay| (300..330).contains(&(delay / MS))));
}

/// One that is away for a moment is waited for, one that does not come back is not, or a number of requests would have no end.
#[test]
fn a_server_that_vanishes_is_given_up_where_a_number_of_requests_is_wanted() {
    let timeout = Duration::from_secs(2);
    let wanted = Plan { connections: 2, requests: Some(1_000_000), timeout, ..plan(None) };
    let server = || Faulty { answers: 1, until: 1000 * MS, ..Faulty::default() };
    let (done, _, counted, server_after) = play_faulty(wanted.clone(), server(), 60_000 * MS);
    assert!(done && counted.given_up == 1, "{counted:?}");
    assert!((3..7).contains(&(server_after.now / 1_000_000_000)), "{}", server_after.now);
    assert!(counted.requests > 100 && counted.timed_out == 2 && counted.refused > 2, "{counted:?}");
    let (done, _, counted, _) = play_faulty(Plan { requests: None, ..wanted }, server(), 20_000 * MS);
    assert!(!done && counted.given_up == 0 && counted.refused > 100, "{counted:?}");
}
