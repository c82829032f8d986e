//! A load generator: requests at a rate, or as fast as answers come, and how long each answer took.
//!
//! At a rate (open loop) a request has a time at which it is due, whatever became of those before it, and the answer's
//! delay is counted from there: a server that stands still for a while is charged for all requests that it kept waiting,
//! not for one ("coordinated omission" leaves the others out). Without a rate (closed loop) each connection keeps as many
//! requests under way as its depth, and delays are counted from when each was sent.
//!
//! What has no answer when the run ends has waited, too: each such request is recorded with its age, for its delay is at
//! least that. Else a server that answers nothing would be charged for nothing. So is one that has waited for as long as a plan
//! allows: it has failed, and its connection with it, for what comes there later would be the answer to another one.

use std::collections::{HashMap, HashSet, VecDeque};
use std::hash::Hash;
use std::net::SocketAddr;
use std::time::Duration;

use bywash_engine::stack::Timestamp;

use crate::counters::{Counted, Counters};
use crate::dialect::{Dialect, Reader};
use crate::sockets::{Ended, Happened, Service, Sockets};

/// What is wrong with an answer that may be right.
const UNASKED: &str = "an answer that nobody has asked for";
/// Requests that were never sent are recorded in so many groups at most, however many they are.
const GROUPS: u64 = 1 << 20;
/// How soon a connection that could not be opened is tried again.
const AGAIN: Duration = Duration::from_millis(100);
/// How often it is looked whether a request has waited for too long, in parts of that time, and how seldom at most.
const LOOKS: u32 = 30;
const LOOK: Duration = Duration::from_secs(1);

/// What is to be generated, by one service.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The server.
    pub to: SocketAddr,
    /// What is spoken.
    pub dialect: Dialect,
    /// Connections.
    pub connections: usize,
    /// Requests under way on each connection at most.
    pub depth: usize,
    /// When requests are due; none is a closed loop.
    pub pace: Option<Pace>,
    /// Requests in all; until it is stopped when `None`. Where failures have followed each other for `timeout` without an answer
    /// between them, the rest is given up.
    pub requests: Option<u64>,
    /// How long the server may take to answer a request, or to let a connection in.
    pub timeout: Duration,
}

/// So many requests in so long, evenly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pace {
    /// Requests, not 0.
    pub requests: u64,
    /// The time for all of them.
    pub time: Duration,
    /// When the first one is due.
    pub first: Duration,
}

impl Pace {
    /// What is due, of so many requests a second, to the one with this number of `count` who take turns.
    pub fn share(rate: u64, number: usize, count: usize) -> Self {
        let time = |turns: usize| Duration::from_secs(turns as u64);
        let all = Self { requests: rate, time: time(1), first: Duration::ZERO };
        Self { time: time(count), first: all.due(number as u64), ..all }
    }

    /// When the request of this number is due, from 0: without an error that adds up.
    fn due(self, number: u64) -> Duration {
        let nanos = u128::from(number) * self.time.as_nanos() / u128::from(self.requests.max(1));
        self.first + Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }

    /// How many are due within this time: the number of the first for which [`Pace::due`] is later.
    fn due_within(self, time: Duration) -> u64 {
        let Some(time) = time.checked_sub(self.first) else { return 0 };
        let all = (time.as_nanos() + 1) * u128::from(self.requests.max(1));
        u64::try_from(all.div_ceil(self.time.as_nanos().max(1))).unwrap_or(u64::MAX)
    }
}

/// Takes the time of each answer, in nanoseconds.
pub trait Clockwork: Send + 'static {
    /// So many more, equally long.
    fn record(&mut self, ns: u64, requests: u64);

    /// So many that have no answer at the end, and how long they have waited for it.
    fn record_unanswered(&mut self, ns: u64, requests: u64);
}

/// The generator.
#[derive(Debug)]
pub struct Load<Id, W> {
    plan: Plan,
    counters: Counters,
    watch: W,
    connections: HashMap<Id, Connection>,
    /// Those that may take a request, in turns, and some that have gone since.
    free: VecDeque<Id>,
    /// Those that were given requests, of which nothing is sent yet.
    touched: Vec<Id>,
    /// Those that have answered for the last time, until the server closes them: who closes first has to wait with the port, and
    /// that had better be the server's.
    parting: HashSet<Id>,
    /// Requests whose connection has ended in order before their turn came, by when they were due or sent.
    again: VecDeque<Timestamp>,
    started: Timestamp,
    /// When the first request was due, and how many have been by now. When each was due follows from its number.
    begun: Option<Timestamp>,
    due: u64,
    /// Requests handed to connections, and answered or lost.
    asked: u64,
    answered: u64,
    slowest: Duration,
    /// When the last request was due and sent, if requests have times of their own.
    last: Option<(Timestamp, Timestamp)>,
    /// Of those connections that are missing, the ones that have been open.
    lost: usize,
    /// When to open those connections that are missing.
    open_at: Option<Timestamp>,
    /// Connections that ended before any was open; `None` as soon as one is.
    in_vain: Option<usize>,
    /// When it is looked next whether something has waited for too long.
    look_at: Timestamp,
    /// The first failure since the last answer, and whether the server was given up.
    failing_since: Option<Timestamp>,
    given_up: bool,
}

/// A request under way.
#[derive(Clone, Copy, Debug)]
struct UnderWay {
    /// When it was due, or sent.
    at: Timestamp,
    /// When it was handed to its connection: the server is not to blame for what was before.
    handed: Timestamp,
}

#[derive(Debug)]
struct Connection {
    open: bool,
    /// When it was begun.
    begun: Timestamp,
    /// It takes the place of one that was open.
    replaces: bool,
    /// It is in `free`, once for all.
    listed: bool,
    /// Requests that are not sent whole, and how much of them is.
    out: Vec<u8>,
    sent: usize,
    /// Requests under way.
    waiting: VecDeque<UnderWay>,
    reader: Reader,
}

impl<Id: Copy + Eq + Hash, W: Clockwork> Load<Id, W> {
    /// One that has not begun.
    pub fn new(plan: Plan, counters: Counters, watch: W) -> Self {
        Self {
            plan,
            counters,
            watch,
            connections: HashMap::new(),
            free: VecDeque::new(),
            touched: Vec::new(),
            parting: HashSet::new(),
            again: VecDeque::new(),
            started: Timestamp::ZERO,
            begun: None,
            due: 0,
            asked: 0,
            answered: 0,
            slowest: Duration::ZERO,
            last: None,
            lost: 0,
            open_at: Some(Timestamp::ZERO),
            in_vain: Some(0),
            look_at: Timestamp::ZERO,
            failing_since: None,
            given_up: false,
        }
    }

    fn open<S: Sockets<Id = Id>>(&mut self, sockets: &mut S) -> Result<(), String> {
        self.open_at = None;
        while self.connections.len() < self.plan.connections {
            let id = sockets.connect(self.plan.to)?;
            self.connections.insert(id, Connection::new(sockets.now(), self.lost > 0));
            self.lost = self.lost.saturating_sub(1);
        }
        Ok(())
    }

    /// Notes what is due by now.
    fn tick(&mut self, now: Timestamp) {
        if self.begun.is_none() && self.connections.values().any(|connection| connection.open) {
            self.begun = Some(now);
        }
        if let Some((begun, pace)) = self.begun.zip(self.plan.pace) {
            let due = pace.due_within(now.since(begun)).min(self.plan.requests.unwrap_or(u64::MAX));
            self.counters.add(Counted { due: due - self.due, ..Counted::default() });
            self.due = due;
        }
    }

    /// When the request of this number is due, if requests have times of their own.
    fn due_at(&self, number: u64) -> Option<Timestamp> {
        self.begun.zip(self.plan.pace).map(|(begun, pace)| begun + pace.due(number))
    }

    /// When the next request is due, if there is one at a time of its own.
    fn next(&self) -> Option<Timestamp> {
        self.due_at(self.due).filter(|_| self.plan.requests.is_none_or(|all| self.due < all))
    }

    /// Hands requests to connections that may take one.
    fn ask<S: Sockets<Id = Id>>(&mut self, now: Timestamp, sockets: &mut S) {
        self.hand_out(now, sockets);
        let mut asked = std::mem::take(&mut self.touched);
        for id in asked.drain(..) {
            self.send(id, sockets);
        }
        self.touched = asked;
    }

    /// Gives requests to connections that may take one. What one gets now leaves in one call: the kernel would make a segment of each.
    fn hand_out<S: Sockets<Id = Id>>(&mut self, now: Timestamp, sockets: &S) {
        let closed_loop = self.plan.pace.is_none();
        while !self.free.is_empty() {
            let due_at = self.due_at(self.asked);
            let at = match (self.again.front(), due_at) {
                (Some(at), _) => *at,
                (None, Some(at)) if self.asked < self.due => at,
                (None, None) if closed_loop && self.plan.requests.is_none_or(|all| self.asked < all) => now,
                _ => return,
            };
            let Some(id) = self.free.pop_front() else { return };
            let Some(connection) = self.connections.get_mut(&id) else { continue };
            connection.listed = false;
            // A server may close without a word after any answer (RFC 9112, 9.5): what it is asked then it never sees.
            if connection.reader.closes() || sockets.is_at_end(id) {
                continue;
            }
            // Where some is left from before there is no room yet.
            if connection.out.is_empty() {
                self.touched.push(id);
            }
            connection.waiting.push_back(UnderWay { at, handed: now });
            self.plan.dialect.request(&mut connection.out);
            // Asked once more it is still the same request.
            if self.again.pop_front().is_none() {
                self.asked += 1;
                self.last = due_at.map(|at| (at, now));
                self.counters.add(Counted { due: u64::from(closed_loop), asked: 1, ..Counted::default() });
            }
            self.list(id);
        }
    }

    /// Puts a connection among the free ones if it is.
    fn list(&mut self, id: Id) {
        let depth = self.plan.depth;
        if let Some(connection) = self.connections.get_mut(&id)
            && connection.open
            && !connection.listed
            && !connection.reader.closes()
            && connection.waiting.len() < depth
        {
            connection.listed = true;
            self.free.push_back(id);
        }
    }

    fn send<S: Sockets<Id = Id>>(&mut self, id: Id, sockets: &mut S) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        let sent = sockets.send(id, &connection.out[connection.sent..]);
        connection.sent += sent;
        // What is left moves to the front when it is the smaller part: a long value would be moved for each piece of it.
        if connection.sent > connection.out.len() / 2 {
            connection.out.drain(..connection.sent);
            connection.sent = 0;
        }
        self.counters.add(Counted { sent: sent as u64, ..Counted::default() });
    }

    fn receive<S: Sockets<Id = Id>>(&mut self, id: Id, now: Timestamp, sockets: &mut S) {
        let Some(connection) = self.connections.get_mut(&id) else {
            if self.parting.contains(&id) {
                sockets.read(id, &mut |bytes| bytes.len());
            }
            return;
        };
        let (mut answers, mut missed, mut wrong, mut last) = (0, 0, None, false);
        let Connection { reader, waiting, .. } = connection;
        let dialect = &self.plan.dialect;
        let received = sockets.read(id, &mut |bytes| {
            let mut rest = bytes;
            while !rest.is_empty() && wrong.is_none() && !last {
                match dialect.read(reader, rest) {
                    Ok((_, true)) if answers == waiting.len() => wrong = Some(UNASKED.into()),
                    Ok((taken, whole)) => {
                        answers += usize::from(whole);
                        missed += u64::from(whole && reader.missed());
                        last = whole && reader.closes();
                        rest = &rest[taken..];
                    }
                    Err(line) => wrong = Some(line),
                }
            }
            bytes.len()
        });
        self.counters.add(Counted { received: received as u64, missed, ..Counted::default() });
        self.count_answers(id, answers, now);
        if let Some(answer) = wrong {
            sockets.abort(id);
            self.fails(now);
            let lost = self.take(id, now).map_or(0, |connection| connection.waiting.len() as u64);
            self.counters.wrong(answer, lost.max(1));
        } else if last {
            self.part(id, now, sockets);
        } else {
            self.list(id);
        }
    }

    /// The server has said that an answer is its last on this connection: the next goes by another one, and what it was asked
    /// beside that is asked again there (RFC 9112, 9.3.2 and 9.6).
    fn part<S: Sockets<Id = Id>>(&mut self, id: Id, now: Timestamp, sockets: &mut S) {
        self.ask_again(id);
        self.take(id, now);
        if self.parting.len() < self.plan.connections {
            self.parting.insert(id);
        } else {
            sockets.close(id);
        }
    }

    fn ask_again(&mut self, id: Id) {
        if let Some(connection) = self.connections.get_mut(&id) {
            self.again.extend(connection.waiting.drain(..).map(|request| request.at));
        }
    }

    /// So many answers are whole, of which each was asked for.
    fn count_answers(&mut self, id: Id, answers: usize, now: Timestamp) {
        let Some(connection) = self.connections.get_mut(&id).filter(|_| answers > 0) else { return };
        for request in connection.waiting.drain(..answers) {
            let took = now.since(request.at);
            self.slowest = took.max(self.slowest);
            self.watch.record(nanos(took), 1);
        }
        self.counters.add(Counted { requests: answers as u64, ..Counted::default() });
        self.answered += answers as u64;
        self.failing_since = None;
    }

    /// The server says no more: that may end an answer, too.
    fn end_of<S: Sockets<Id = Id>>(&mut self, id: Id, now: Timestamp, sockets: &mut S) {
        self.receive(id, now, sockets);
        if let Some(connection) = self.connections.get_mut(&id)
            && connection.reader.ended()
        {
            if connection.waiting.is_empty() {
                self.counters.wrong(UNASKED.into(), 1);
            } else {
                self.count_answers(id, 1, now);
            }
            self.ask_again(id);
        }
        sockets.close(id);
        self.parting.remove(&id);
        self.lose(id, Ended::InOrder, now);
    }

    /// A connection has ended before its time.
    fn lose(&mut self, id: Id, ended: Ended, now: Timestamp) {
        let Some(connection) = self.take(id, now) else { return };
        // A server may end a connection that owes nothing; that is no error.
        let lost = if connection.open { connection.waiting.len() as u64 } else { 1 };
        self.counters.add(Counted::lost(ended, lost));
        self.in_vain = self.in_vain.map(|ended| ended + 1);
        if lost > 0 {
            self.fails(now);
        }
    }

    /// Something has failed. A server that only fails for so long is not there any more, and requests in all would have no end.
    fn fails(&mut self, now: Timestamp) {
        let since = *self.failing_since.get_or_insert(now);
        if self.plan.requests.is_some() && now.since(since) >= self.plan.timeout && !self.given_up {
            self.given_up = true;
            self.counters.add(Counted { given_up: 1, ..Counted::default() });
        }
    }

    /// Ends connections by which something has waited for too long.
    fn look<S: Sockets<Id = Id>>(&mut self, now: Timestamp, sockets: &mut S) {
        if now < self.look_at {
            return;
        }
        let timeout = self.plan.timeout;
        self.look_at = now + (timeout / LOOKS).min(LOOK);
        let since = |connection: &Connection| {
            let first = connection.waiting.front().map(|request| request.handed);
            if connection.open { first } else { Some(connection.begun) }
        };
        let over = |(id, connection): (&Id, &Connection)| {
            since(connection).is_some_and(|since| now.since(since) >= timeout).then_some(*id)
        };
        let over: Vec<Id> = self.connections.iter().filter_map(over).collect();
        for id in over {
            sockets.abort(id);
            for request in self.connections.get(&id).into_iter().flat_map(|connection| &connection.waiting) {
                self.watch.record_unanswered(nanos(now.since(request.at)), 1);
            }
            self.lose(id, Ended::TimedOut, now);
        }
    }

    /// Forgets a connection: what it owed is lost, and another will be opened in its place.
    fn take(&mut self, id: Id, now: Timestamp) -> Option<Connection> {
        let connection = self.connections.remove(&id)?;
        let failed = connection.waiting.len() as u64;
        self.counters.add(Counted { failed, ..Counted::default() });
        self.answered += failed;
        self.lost += usize::from(connection.open || connection.replaces);
        let soon = if connection.open { now } else { now + AGAIN };
        self.open_at = Some(self.open_at.map_or(soon, |at| at.min(soon)));
        Some(connection)
    }
}

impl Connection {
    /// One that is being opened.
    fn new(begun: Timestamp, replaces: bool) -> Self {
        Self {
            open: false,
            begun,
            replaces,
            listed: false,
            out: Vec::new(),
            sent: 0,
            waiting: VecDeque::new(),
            reader: Reader::default(),
        }
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

impl<Id: Copy + Eq + Hash + Send + 'static, W: Clockwork> Service<Id> for Load<Id, W> {
    fn start<S: Sockets<Id = Id>>(&mut self, sockets: &mut S) -> Result<(), String> {
        self.started = sockets.now();
        self.open(sockets)
    }

    fn turn<S: Sockets<Id = Id>>(&mut self, happened: &[Happened<Id>], sockets: &mut S) {
        let now = sockets.now();
        // What is under way is not heard of any more: it is told at the end.
        if self.given_up {
            return;
        }
        for what in happened {
            match *what {
                Happened::Connected(id) => {
                    if let Some(connection) = self.connections.get_mut(&id) {
                        connection.open = true;
                        self.in_vain = None;
                        self.counters.begins();
                        self.counters.add(Counted { connections: 1, ..Counted::default() });
                    }
                    self.list(id);
                }
                Happened::Readable(id) => self.receive(id, now, sockets),
                Happened::Writable(id) => self.send(id, sockets),
                Happened::PeerClosed(id) | Happened::Closed(id, Ended::InOrder) => {
                    self.end_of(id, now, sockets);
                }
                Happened::Closed(id, ended) => {
                    // What was answered before that counts.
                    self.receive(id, now, sockets);
                    sockets.close(id);
                    self.parting.remove(&id);
                    self.lose(id, ended, now);
                }
                // Nobody connects to a client.
                Happened::Accepted(id) => sockets.abort(id),
            }
        }
        self.look(now, sockets);
        if self.open_at.is_some_and(|at| at <= now)
            && !self.is_done()
            && let Err(why) = self.open(sockets)
        {
            self.counters.unopened(why);
            self.fails(now);
            self.open_at = Some(now + AGAIN);
        }
        self.tick(now);
        if !self.given_up {
            self.ask(now, sockets);
        }
        if self.is_done() {
            self.counters.ends();
        }
        if self.is_done() && !self.given_up {
            for id in self.connections.drain().map(|(id, _)| id).chain(self.parting.drain()) {
                sockets.close(id);
            }
        }
    }

    fn end(&mut self, now: Timestamp) {
        self.counters.ends();
        self.tick(now);
        let (mut unanswered, mut oldest) = (0, Duration::ZERO);
        let watch = &mut self.watch;
        let mut leave = |at: Timestamp, requests: u64| {
            let age = now.since(at);
            watch.record_unanswered(nanos(age), requests);
            (unanswered, oldest) = (unanswered + requests, oldest.max(age));
        };
        let under_way = self.connections.values().flat_map(|connection| &connection.waiting);
        for at in under_way.map(|request| request.at).chain(self.again.iter().copied()) {
            leave(at, 1);
        }
        let (mut asking, mut late) = (Duration::ZERO, Duration::ZERO);
        if let Some((begun, pace)) = self.begun.zip(self.plan.pace) {
            let (due, sent) = self.last.unwrap_or((begun, begun));
            let all_sent = self.asked == self.due;
            let (due, until) = if all_sent { (due, sent) } else { (begun + pace.due(self.asked), now) };
            (asking, late) = (until.since(begun), until.since(due));
            let in_group = (self.due - self.asked).div_ceil(GROUPS);
            let mut told = self.asked;
            while told < self.due {
                let requests = in_group.min(self.due - told);
                told += requests;
                // The last of a group has waited shortest, the others no less.
                leave(begun + pace.due(told - 1), requests);
            }
        }
        if self.begun.is_none() && self.plan.pace.is_some() && self.plan.connections > 0 {
            // Nothing was due as no connection was open, and that is as late as it can be.
            asking = now.since(self.started);
            late = asking;
        }
        let never_opened =
            self.connections.values().filter(|connection| !connection.open && !connection.replaces);
        let never_opened = never_opened.count() as u64;
        self.counters.add(Counted {
            unanswered,
            never_opened,
            asking_ns: nanos(asking),
            late_ns: nanos(late),
            slowest_ns: nanos(self.slowest),
            oldest_ns: nanos(oldest),
            ..Counted::default()
        });
    }

    fn next_deadline(&self) -> Option<Timestamp> {
        let others = [self.open_at, Some(self.look_at)].into_iter().flatten().filter(|_| !self.is_done());
        self.next().filter(|_| !self.given_up).into_iter().chain(others).min()
    }

    /// All is answered or lost; or as many connections as there were to be have failed, and none was ever open: nobody is there, or
    /// no more.
    fn is_done(&self) -> bool {
        let in_vain = self.in_vain.is_some_and(|ended| ended > 0 && ended >= self.plan.connections);
        in_vain || self.given_up || self.plan.requests.is_some_and(|all| self.answered >= all)
    }
}

#[cfg(test)]
mod tests;
