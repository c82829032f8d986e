//! One engine: a worker's turn with its queues, its stack and its program.
//!
//! Packets that another engine's stack has the flow of, and packets for a port that another engine sends for, go over
//! by hand-off rings, as they are. A ring of the ones that is full loses packets and counts it, like a NIC's. The others have a ring of
//! their own, which is emptied only as fast as the wire takes them: behind a full one they wait in their stack.

use std::cell::Cell;
use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bywash_port::{RxQueue, TxQueue};
use bywash_stack::frame::{BATCH, Batch, Frame, Packet, Pool};
use bywash_stack::{
    Event, InterfaceId, Listen, ListenerId, Notice, PortId, Reassembled, Request, Snapshot, Stack, TcpError,
    Timestamp,
};
use bywash_sys::clock::monotonic;
use bywash_sys::worker::{Task, Turn};

use crate::clock::Clock;
use crate::figures::{Figures, Shared};
use crate::handoff::{Bell, Newest, Receiver, Sender};
use crate::pending::Pending;
use crate::program::{Io, Program};
use crate::steer::Steering;

/// Packets in a hand-off ring between two engines.
pub(crate) const HANDOFF: usize = 1024;
/// What the control may have said to an engine that it has not heard yet, and the other way round.
pub(crate) const MESSAGES: usize = 1024;
/// Requests that wait for room in the ring to the control. Beyond, those are dropped first that strangers can make any number of at
/// will, see [`Pending`].
const PENDING: usize = 4096;
/// Frames of the control that an engine may keep: the next packet for the control brings them back, and wakes it for more.
const KEPT: usize = 8;
/// Batches that one port is handed in a turn.
const TX_BATCHES: usize = 16;
/// Rounds in which the program and packets to ourselves cause each other in one turn.
const ROUNDS: usize = 16;
/// Turns between two publications of an engine that is never idle: every few hundred microseconds.
const PUBLISH_TURNS: u32 = 256;
/// How soon to look again while a NIC has packets to send: it wakes nobody when it has sent them.
const TX_POLL_NS: u64 = 1_000_000;
/// Connections that are reset at once at the end: their resets fit every queue on the way.
const RESETS: usize = 1024;
/// How long the end may take while nothing leaves, and in all.
const STILL_NS: u64 = 200_000_000;
const END_NS: u64 = 2_000_000_000;

/// What one engine hands to another.
#[derive(Debug)]
pub(crate) enum Handed {
    /// A packet came in on a port: the other's stack has its flow.
    Received(PortId, Packet),
    /// What came in in pieces is whole, and shows its ports: the other's stack has its flow.
    Reassembled(Reassembled),
}

impl Handed {
    fn into_packet(self) -> Packet {
        match self {
            Self::Received(_, packet) => packet,
            Self::Reassembled(whole) => whole.into_packet(),
        }
    }
}

/// What is done on an engine between two batches.
pub(crate) type Work = Box<dyn FnOnce(&mut Stack, Timestamp) + Send>;

/// What an engine asks of the control.
#[derive(Debug)]
pub(crate) enum Asked {
    /// For its stack.
    Request(Request),
    /// For its program, which hears what came of it.
    Listen(Listen),
    /// For its program.
    Unlisten(ListenerId),
    /// In place of one in a packet of the control's.
    Frame(Frame),
}

/// What the control says to an engine.
pub(crate) enum Message {
    /// Send a packet by a port.
    Send(PortId, Packet),
    /// Take a packet of the control's own; see [`Stack::deliver`].
    Deliver(InterfaceId, Packet),
    /// ICMP told something.
    Notice(Notice),
    /// Addresses, routes or neighbours have changed: there is a new snapshot to be taken.
    Update,
    /// All addresses are in use: the program can begin.
    Begin,
    /// What came of a listener that the program has asked for: an update with it was said before.
    Listening(Listen, Result<ListenerId, TcpError>),
    /// Somebody wants to know something.
    Run(Work),
}

/// An engine's part of a port.
pub(crate) struct Queues {
    /// The port's interface in the stack has this number.
    pub(crate) port: PortId,
    pub(crate) rx: Vec<Box<dyn RxQueue>>,
    /// Only the first sends.
    pub(crate) tx: Vec<Box<dyn TxQueue>>,
    /// To the engine that sends for us, where we have no queue to send by.
    pub(crate) sender: Option<Sender<Packet>>,
    /// From the engines that we send for.
    pub(crate) others: Vec<Receiver<Packet>>,
    /// Who is asked first for what is to be sent next: our own stack at 0, then the others.
    pub(crate) first: usize,
    /// The control's, which are few, and go before all others.
    pub(crate) urgent: Batch,
    /// On their way out.
    pub(crate) waiting: Batch,
}

impl Queues {
    pub(crate) fn new(port: PortId) -> Self {
        let (rx, tx, others) = (Vec::new(), Vec::new(), Vec::new());
        let (urgent, waiting) = (Batch::new(), Batch::new());
        Self { port, rx, tx, sender: None, others, first: 0, urgent, waiting }
    }

    /// Brings what is to be sent, as much as there is room for. Where that is little, the stack and the others take turns: who comes
    /// after the last that had something begins the next time.
    #[inline]
    fn fill(&mut self, stack: &mut Stack) {
        let Self { port, others, first, urgent, waiting, .. } = self;
        if !urgent.is_empty() {
            waiting.extend(urgent.drain_front(waiting.room()));
        }
        if others.is_empty() {
            return stack.transmit(*port, waiting);
        }
        let begin = *first;
        for i in 0..=others.len() {
            let (room, who) = (waiting.room(), (begin + i) % (others.len() + 1));
            if room == 0 {
                break;
            }
            match who.checked_sub(1) {
                None => stack.transmit(*port, waiting),
                Some(other) => waiting.extend(others[other].take_some(room)),
            }
            if waiting.room() < room {
                *first = (who + 1) % (others.len() + 1);
            }
        }
    }

    /// Whether others have handed over what could be sent now. What waits for room is looked at again without a bell.
    fn has_news(&self) -> bool {
        self.waiting.is_empty() && self.others.iter().any(|ring| !ring.is_empty())
    }
}

/// What an engine counts beside its stack.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
#[non_exhaustive]
pub struct EngineCounters {
    /// Packets that were another engine's and went there.
    pub handed_over: u64,
    /// Packets lost because the ring to another engine, or to the control, was full.
    pub ring_full: u64,
}

/// Everything an engine begins with.
pub(crate) struct Parts {
    pub(crate) number: usize,
    /// Packets received at once.
    pub(crate) batch: usize,
    pub(crate) clock: Clock,
    pub(crate) stack: Stack,
    pub(crate) pool: Pool,
    pub(crate) ports: Vec<Queues>,
    pub(crate) steering: Arc<Steering>,
    pub(crate) bell: Bell,
    pub(crate) from_control: Receiver<Message>,
    pub(crate) picture: Newest<Arc<Snapshot>>,
    pub(crate) to_control: Sender<Asked>,
    pub(crate) to_engines: Vec<Option<Sender<Handed>>>,
    pub(crate) from_engines: Vec<Receiver<Handed>>,
    pub(crate) program: Box<dyn Program>,
    /// Programs that have not done all yet.
    pub(crate) unfinished: Arc<AtomicUsize>,
    /// Engines that have begun to end.
    pub(crate) ending: Arc<AtomicUsize>,
    /// Engines that another one sends for, and that may still hand something over to it.
    pub(crate) leaving: Arc<AtomicUsize>,
    pub(crate) figures: Arc<Shared>,
}

/// How far a program is.
#[derive(Debug, PartialEq, Eq)]
enum Course {
    /// Its addresses are not in use yet.
    Waiting,
    Running,
    Done,
    /// It could not begin.
    Failed(String),
}

/// How long an engine may go on to end: a time for all that it does then.
struct End {
    until: u64,
    /// The same if nothing leaves until then.
    still_until: u64,
}

impl End {
    fn begin() -> Self {
        let now = monotonic();
        Self { until: now + END_NS, still_until: now + STILL_NS }
    }

    /// Something has happened.
    fn moves_on(&mut self) {
        self.still_until = monotonic() + STILL_NS;
    }

    fn is_over(&self) -> bool {
        monotonic() >= self.until.min(self.still_until)
    }
}

pub(crate) struct Engine {
    parts: Parts,
    batch: Batch,
    events: Vec<Event>,
    requests: Pending,
    /// What the program has asked for, and found the ring full.
    asked: VecDeque<Asked>,
    whole: Vec<Reassembled>,
    /// Frames that the control has sent packets in, without those that went to it since. It has few, and nowhere else to get
    /// them from.
    owed: usize,
    counters: EngineCounters,
    course: Course,
    /// Turns with work since the figures were published. An engine that could not do it tries again in its next turn.
    unpublished: u32,
    /// The bell may have rung since it was last hushed.
    armed: bool,
}

impl Engine {
    pub(crate) fn new(parts: Parts) -> Self {
        let batch = Batch::with_limit(parts.batch);
        Self {
            parts,
            batch,
            events: Vec::new(),
            requests: Pending::default(),
            asked: VecDeque::new(),
            whole: Vec::new(),
            owed: 0,
            counters: EngineCounters::default(),
            course: Course::Waiting,
            unpublished: 0,
            armed: false,
        }
    }

    pub(crate) fn add_port(&mut self, queues: Queues) {
        if queues.sender.is_some() && !self.is_sent_for() {
            self.parts.leaving.fetch_add(1, Ordering::Relaxed);
        }
        self.parts.ports.push(queues);
    }

    /// Whether another engine sends for it on some port.
    fn is_sent_for(&self) -> bool {
        self.parts.ports.iter().any(|port| port.sender.is_some())
    }

    /// What wakes it.
    pub(crate) fn bell(&self) -> &Bell {
        &self.parts.bell
    }

    /// Why its program could not begin.
    pub(crate) fn failure(&self) -> Option<&str> {
        match &self.course {
            Course::Failed(why) => Some(why),
            Course::Waiting | Course::Running | Course::Done => None,
        }
    }

    /// Closes the queues.
    pub(crate) fn close(self) {
        let Parts { ports, mut pool, .. } = self.parts;
        for mut port in ports {
            pool.give_batch(&mut port.urgent);
            pool.give_batch(&mut port.waiting);
            port.tx.into_iter().for_each(|tx| tx.close(&mut pool));
            port.rx.into_iter().for_each(|rx| rx.close(&mut pool));
        }
    }

    /// Takes what its queues have received, and keeps what is its own.
    fn receive(&mut self, now: Timestamp) -> usize {
        let Parts { ports, pool, stack, steering, to_engines, number, .. } = &mut self.parts;
        let mut received = 0;
        for Queues { port, rx, .. } in ports {
            for rx in rx {
                received += rx.rx(pool, &mut self.batch);
                if steering.engines() > 1 {
                    let to = Cell::new(*number);
                    let keep = |packet: &mut Packet| {
                        let vlan = packet.offload.vlan().is_some();
                        to.set(steering.engine_of(packet.head(), vlan, *number));
                        to.get() == *number
                    };
                    let counters = &mut self.counters;
                    let mut others = hand_over(to_engines, counters, pool);
                    self.batch.retain(keep, |packet| others(to.get(), Handed::Received(*port, packet)));
                }
                stack.receive(now, *port, &mut self.batch, pool);
            }
        }
        received
    }

    /// Takes what other engines have handed over for our stack.
    fn take_over(&mut self, now: Timestamp) -> usize {
        let Parts { pool, stack, from_engines, .. } = &mut self.parts;
        let mut taken = 0;
        for ring in from_engines {
            let mut last = None;
            for _ in 0..BATCH {
                let Some(handed) = ring.take() else { break };
                taken += 1;
                match handed {
                    Handed::Received(port, packet) => {
                        if last.is_some_and(|last| last != port) || self.batch.room() == 0 {
                            stack.receive(now, last.unwrap_or(port), &mut self.batch, pool);
                        }
                        self.batch.push(packet);
                        last = Some(port);
                    }
                    Handed::Reassembled(whole) => stack.take_reassembled(now, whole, pool),
                }
            }
            if let Some(port) = last {
                stack.receive(now, port, &mut self.batch, pool);
            }
        }
        taken
    }

    /// Gives what came in in pieces, and is whole now, to the stack that has its flow.
    fn give_whole(&mut self, now: Timestamp) {
        let Parts { pool, stack, steering, to_engines, number, .. } = &mut self.parts;
        self.whole.extend(stack.reassembled());
        for whole in self.whole.drain(..) {
            let engine = steering.engine(&whole.flow());
            if engine == *number {
                stack.take_reassembled(now, whole, pool);
            } else {
                hand_over(to_engines, &mut self.counters, pool)(engine, Handed::Reassembled(whole));
            }
        }
    }

    /// Hears what the control says.
    fn listen(&mut self, now: Timestamp) -> usize {
        let mut heard = 0;
        while heard < BATCH
            && let Some(message) = self.parts.from_control.take()
        {
            heard += 1;
            let Parts { ports, pool, stack, picture, .. } = &mut self.parts;
            if let Message::Send(_, packet) | Message::Deliver(_, packet) = &message {
                self.owed += packet.frames();
            }
            match message {
                Message::Send(port, packet) => send(ports, port, packet, &mut self.counters, pool),
                Message::Deliver(zone, packet) => stack.deliver(now, zone, packet, pool),
                Message::Notice(notice) => stack.notice(now, &notice, pool),
                Message::Update => {
                    if let Some(snapshot) = picture.take() {
                        stack.update(&snapshot, pool);
                    }
                }
                Message::Run(work) => work(stack, now),
                Message::Begin => self.begin(now),
                Message::Listening(listen, result) => {
                    if self.course == Course::Running {
                        let (program, mut io) = self.io(now);
                        program.listening(listen, result, &mut io);
                        self.look_whether_done();
                    }
                }
            }
        }
        heard
    }

    fn begin(&mut self, now: Timestamp) {
        if self.course != Course::Waiting {
            return;
        }
        let (program, mut io) = self.io(now);
        self.course = match program.start(&mut io) {
            Ok(()) => Course::Running,
            Err(why) => Course::Failed(why),
        };
        self.look_whether_done();
    }

    fn io(&mut self, now: Timestamp) -> (&mut Box<dyn Program>, Io<'_>) {
        let Parts { stack, pool, steering, number, program, bell, .. } = &mut self.parts;
        let io = Io { now, stack, pool, steering, engine: *number, asked: &mut self.asked, bell };
        (program, io)
    }

    fn look_whether_done(&mut self) {
        let unfinished = &self.parts.unfinished;
        match self.course {
            Course::Running if self.parts.program.is_done() => {
                self.course = Course::Done;
                let less = |count: usize| count.checked_sub(1);
                let _ = unfinished.fetch_update(Ordering::Release, Ordering::Relaxed, less);
            }
            // The others are a part of the same work, and nobody would hear of it as long as they go on.
            Course::Failed(_) => unfinished.store(0, Ordering::Release),
            Course::Running | Course::Waiting | Course::Done => {}
        }
    }

    /// Lets the program do its part, and the stack what follows from it.
    fn work(&mut self, now: Timestamp) -> usize {
        if self.course == Course::Waiting {
            // What has happened waits in the stack for the program.
            self.parts.stack.advance(now, &mut self.parts.pool);
            return 0;
        }
        let mut events = 0;
        for _ in 0..ROUNDS {
            self.parts.stack.advance(now, &mut self.parts.pool);
            let mut happened = std::mem::take(&mut self.events);
            happened.extend(self.parts.stack.events());
            events += happened.len();
            let running = self.course == Course::Running;
            let due = running && self.parts.program.next_deadline().is_some_and(|at| at <= now);
            if due || (running && !happened.is_empty()) {
                let (program, mut io) = self.io(now);
                program.turn(&happened, &mut io);
                self.look_whether_done();
            }
            let settled = happened.is_empty() && !due && !self.parts.stack.has_own_packets();
            happened.clear();
            self.events = happened;
            if settled {
                break;
            }
        }
        events
    }

    /// Leaves to the control what is the control's.
    fn ask(&mut self) {
        let Parts { stack, to_control, pool, .. } = &mut self.parts;
        stack.requests().for_each(|request| self.requests.push(request));
        while let Some(asked) = self.asked.pop_front() {
            if let Err(asked) = to_control.put(asked) {
                self.asked.push_front(asked);
                break;
            }
        }
        let owed = &mut self.owed;
        self.requests.hand_over(|request| {
            let brings = request.packet().map_or(0, Packet::frames);
            match to_control.put(Asked::Request(request)) {
                Err(Asked::Request(request)) => return Err(request),
                Ok(()) | Err(_) => *owed = owed.saturating_sub(brings),
            }
            Ok(())
        });
        self.counters.ring_full += self.requests.shed(PENDING, pool);
        self.repay();
        self.parts.to_control.flush();
    }

    /// Gives the control frames for those that its packets have gone in.
    fn repay(&mut self) {
        let Parts { to_control, pool, .. } = &mut self.parts;
        if self.owed <= KEPT {
            return;
        }
        while self.owed > 0
            && let Some(frame) = pool.take()
        {
            match to_control.put(Asked::Frame(frame)) {
                Ok(()) => self.owed -= 1,
                Err(Asked::Frame(frame)) => return pool.give(frame),
                Err(_) => return,
            }
        }
    }

    /// Sends what is to be sent, as far as there is room.
    fn transmit(&mut self) -> usize {
        let Parts { ports, pool, stack, to_engines, .. } = &mut self.parts;
        let mut sent = 0;
        for port in ports {
            for _ in 0..TX_BATCHES {
                port.fill(stack);
                if port.waiting.is_empty() {
                    break;
                }
                if let Some(tx) = port.tx.first_mut() {
                    sent += tx.tx(pool, &mut port.waiting);
                } else if let Some(ring) = &mut port.sender {
                    let ready = port.waiting.len().min(ring.room());
                    let handed = ring.put_some(port.waiting.drain_front(ready));
                    self.counters.handed_over += handed as u64;
                    sent += handed;
                }
                if !port.waiting.is_empty() {
                    break;
                }
            }
            for tx in &mut port.tx {
                tx.flush(pool);
            }
            if let Some(ring) = &mut port.sender {
                ring.flush();
            }
        }
        to_engines.iter_mut().flatten().for_each(Sender::flush);
        sent
    }

    /// Sends all that waits, also what others hand over, while there is time.
    fn drain(&mut self, end: &mut End) {
        loop {
            let now = self.parts.clock.now();
            let before = self.in_flight();
            let moved = self.take_over(now) + self.transmit();
            let waits = moved > 0 || self.is_sending() || self.is_handing_over();
            if moved > 0 || self.in_flight() < before {
                end.moves_on();
            }
            if !waits || end.is_over() {
                return;
            }
            std::thread::yield_now();
        }
    }

    fn in_flight(&self) -> usize {
        self.parts.ports.iter().flat_map(|port| &port.tx).map(|tx| tx.in_flight()).sum()
    }

    fn is_sending(&self) -> bool {
        self.in_flight() > 0 || self.parts.ports.iter().any(|port| !port.waiting.is_empty())
    }

    fn all_are_ending(&self) -> bool {
        self.parts.ending.load(Ordering::Acquire) == self.parts.steering.engines()
    }

    /// Whether an engine that sends for this one has not taken everything yet.
    fn is_handing_over(&self) -> bool {
        let mut rings = self.parts.ports.iter().filter_map(|port| port.sender.as_ref());
        rings.any(|ring| !ring.is_empty())
    }

    fn show(&self, figures: &mut Figures) {
        figures.engine = self.counters;
        figures.stack = self.parts.stack.counters();
        for (to, from) in figures.ports.iter_mut().zip(&self.parts.ports) {
            to.0 = from.rx.iter().map(|rx| rx.counters()).sum();
            to.1 = from.tx.iter().map(|tx| tx.counters()).sum();
        }
    }
}

/// Hands things over to other engines, and counts them.
fn hand_over<'a>(
    to_engines: &'a mut [Option<Sender<Handed>>],
    counters: &'a mut EngineCounters,
    pool: &'a mut Pool,
) -> impl FnMut(usize, Handed) + 'a {
    move |to, handed| {
        let left = match to_engines.get_mut(to) {
            Some(Some(ring)) => ring.put(handed).err(),
            Some(None) | None => Some(handed),
        };
        match left {
            None => counters.handed_over += 1,
            Some(handed) => {
                counters.ring_full += 1;
                pool.give_packet(handed.into_packet());
            }
        }
    }
}

/// Lays a packet of the control's before our own.
fn send(ports: &mut [Queues], port: PortId, packet: Packet, counters: &mut EngineCounters, pool: &mut Pool) {
    let Some(queues) = ports.iter_mut().find(|queues| queues.port == port) else {
        return pool.give_packet(packet);
    };
    if queues.urgent.room() == 0 || queues.tx.is_empty() {
        counters.ring_full += 1;
        return pool.give_packet(packet);
    }
    queues.urgent.push(packet);
}

impl Task for Engine {
    fn turn(&mut self) -> Turn {
        if std::mem::take(&mut self.armed) {
            self.parts.bell.hush();
        }
        let now = self.parts.clock.now();
        let mut done = self.listen(now);
        done += self.receive(now);
        done += self.take_over(now);
        self.give_whole(now);
        done += self.work(now);
        self.ask();
        done += self.transmit();
        self.unpublished += u32::from(done > 0);
        let due = if done > 0 { PUBLISH_TURNS } else { 1 };
        if self.unpublished >= due && self.parts.figures.publish(|figures| self.show(figures)) {
            self.unpublished = 0;
        }
        if done > 0 { Turn::Busy } else { Turn::Idle }
    }

    fn arm(&mut self) -> bool {
        self.armed = true;
        let Parts { ports, bell, from_control, from_engines, .. } = &mut self.parts;
        // All of them, also after one that says no: they are asked again before the next sleep.
        let queues = ports.iter_mut().flat_map(|port| &mut port.rx);
        let armed = queues.fold(true, |armed, rx| rx.arm() & armed);
        let none_sends = || !ports.iter().any(Queues::has_news);
        bell.arm(|| from_control.is_empty() && from_engines.iter().all(Receiver::is_empty) && none_sends())
            & armed
    }

    fn wake_fds<'a>(&'a self, fds: &mut Vec<BorrowedFd<'a>>) {
        fds.push(self.parts.bell.as_fd());
        let queues = self.parts.ports.iter().flat_map(|port| &port.rx);
        fds.extend(queues.filter_map(|rx| rx.wake_fd()));
    }

    fn next_deadline(&self, now: u64) -> Option<u64> {
        let program = match self.course {
            Course::Running => self.parts.program.next_deadline(),
            Course::Waiting | Course::Done | Course::Failed(_) => None,
        };
        let timers = self.parts.stack.next_deadline().into_iter().chain(program);
        let timers = timers.map(|at| self.parts.clock.monotonic(at));
        let unsaid = !self.requests.is_empty() || !self.asked.is_empty() || self.owed > KEPT;
        let waits = self.is_sending() || unsaid;
        timers.chain(waits.then(|| now + TX_POLL_NS)).min()
    }

    fn finish(&mut self) {
        let Parts { clock, program, .. } = &mut self.parts;
        let now = clock.now();
        if matches!(self.course, Course::Running | Course::Done) {
            program.end(now);
        }
        let mut end = End::begin();
        // Who still goes about its turns may sleep while its queue is full; who ends looks again at once.
        self.parts.ending.fetch_add(1, Ordering::Release);
        while self.is_sent_for() && !self.all_are_ending() && monotonic() < end.until {
            std::thread::yield_now();
        }
        end.moves_on();
        self.drain(&mut end);
        let mut next = Some(0);
        while let Some(from) = next {
            let Parts { stack, pool, .. } = &mut self.parts;
            next = stack.abort_some(now, from, RESETS, pool);
            self.drain(&mut end);
        }
        if self.is_sent_for() {
            self.parts.leaving.fetch_sub(1, Ordering::Release);
        }
        // Resets of others may still come over.
        while self.parts.leaving.load(Ordering::Acquire) > 0 && monotonic() < end.until {
            self.drain(&mut end);
            std::thread::yield_now();
        }
        self.drain(&mut end);
        self.parts.figures.publish_last(|figures| self.show(figures));
    }
}
