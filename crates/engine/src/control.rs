//! The control thread: it owns addresses, routes, neighbours and listeners, answers ARP, neighbour discovery and ICMP whichever
//! queue they came in on, and tells all engines of what has changed.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::mpsc::Receiver as Channel;
use std::time::Duration;

use bywash_stack::frame::{BATCH, Batch, Pool};
use bywash_stack::{Control, PortId, Snapshot, Timestamp};
use bywash_sys::worker::{Task, Turn};

use crate::clock::Clock;
use crate::engine::{Asked, Message, Work};
use crate::handoff::{Bell, Newest, Receiver, Sender};
use crate::links::Links;

/// What is done on the control thread.
pub(crate) type Change = Box<dyn FnOnce(&mut Control, Timestamp) + Send>;

/// What others want of the control thread.
pub(crate) enum Command {
    /// Something with addresses, routes, neighbours and listeners.
    Control(Change),
    /// Something with each stack, in the order of the engines.
    Stacks(Vec<Work>),
}

/// The way to one engine.
pub(crate) struct Engine {
    pub(crate) asked: Receiver<Asked>,
    pub(crate) messages: Sender<Message>,
    /// The snapshot that it has not taken yet, of which a message tells it once.
    pub(crate) picture: Newest<Arc<Snapshot>>,
    /// What is to be said when the snapshot has been.
    pub(crate) answers: Vec<Message>,
    /// What must not be lost and found the ring full.
    pub(crate) unsaid: VecDeque<Message>,
}

impl Engine {
    /// Says something, now or when there is room.
    fn say(&mut self, message: Message) {
        self.unsaid.push_back(message);
        self.catch_up();
    }

    /// Lets it have a snapshot, in place of one that it has not taken.
    fn show(&mut self, snapshot: Arc<Snapshot>) {
        if self.picture.put(snapshot).is_none() {
            self.say(Message::Update);
        }
    }

    fn catch_up(&mut self) {
        while let Some(message) = self.unsaid.pop_front() {
            let is_for_packets = matches!(message, Message::Notice(_)) && self.messages.room() <= FOR_PACKETS;
            let left = if is_for_packets { Err(message) } else { self.messages.put(message) };
            if let Err(message) = left {
                self.unsaid.push_front(message);
                return;
            }
        }
    }
}

/// The control as a task of a worker.
pub(crate) struct ControlTask {
    pub(crate) clock: Clock,
    pub(crate) control: Control,
    pub(crate) pool: Pool,
    pub(crate) engines: Vec<Engine>,
    /// Each port's interface number, and the engine that sends for the control there.
    pub(crate) ports: Vec<(PortId, usize)>,
    pub(crate) commands: Channel<Command>,
    /// The kernel's interfaces among the ports', and when there was last looked for news of them.
    pub(crate) links: Option<Links>,
    pub(crate) looked: Timestamp,
    pub(crate) bell: Bell,
    pub(crate) published: Arc<Snapshot>,
    /// Snapshots that an engine may still read: the last one to let go frees them, and that should be us.
    pub(crate) old: Vec<Arc<Snapshot>>,
    pub(crate) begun: bool,
    pub(crate) batch: Batch,
    /// The bell may have rung since it was last hushed.
    pub(crate) armed: bool,
}

/// How often there is looked for news of links where there is never time to sleep: it costs a system call.
const LOOK: Duration = Duration::from_secs(1);

/// Notices that wait for one engine at most; beyond, they are dropped, as ICMP may be.
const NOTICES: usize = 1024;

/// Room in a ring that notices leave to packets, which can't wait: strangers may make any number of notices.
const FOR_PACKETS: usize = 2 * BATCH;

impl ControlTask {
    fn answer(&mut self, now: Timestamp) -> usize {
        let mut answered = 0;
        for engine in &mut self.engines {
            for _ in 0..BATCH {
                let Some(asked) = engine.asked.take() else { break };
                answered += 1;
                match asked {
                    Asked::Request(request) => self.control.handle(now, request, &mut self.pool),
                    Asked::Listen(listen) => {
                        engine.answers.push(Message::Listening(listen, self.control.listen(listen)));
                    }
                    Asked::Unlisten(id) => {
                        self.control.unlisten(id);
                    }
                    Asked::Frame(frame) => self.pool.give(frame),
                }
            }
        }
        answered
    }

    fn obey(&mut self, now: Timestamp) -> usize {
        let mut obeyed = 0;
        while let Ok(command) = self.commands.try_recv() {
            obeyed += 1;
            match command {
                Command::Control(change) => change(&mut self.control, now),
                Command::Stacks(works) => {
                    for (engine, work) in self.engines.iter_mut().zip(works) {
                        engine.say(Message::Run(work));
                    }
                }
            }
        }
        obeyed
    }

    /// Tells the engines what is new: the snapshot first, which what follows may rely on.
    fn tell(&mut self) {
        let snapshot = self.control.snapshot(&mut self.pool);
        if !Arc::ptr_eq(snapshot, &self.published) {
            let snapshot = snapshot.clone();
            for engine in &mut self.engines {
                engine.show(snapshot.clone());
            }
            self.old.push(std::mem::replace(&mut self.published, snapshot));
        }
        self.old.retain(|old| Arc::strong_count(old) > 1);
        for engine in &mut self.engines {
            for answer in std::mem::take(&mut engine.answers) {
                engine.say(answer);
            }
        }
        if !self.begun && !self.control.is_settling() {
            self.begun = true;
            self.engines.iter_mut().for_each(|engine| engine.say(Message::Begin));
        }
        let (mut packets, mut notices) = (0, 0);
        for notice in self.control.notices() {
            for engine in &mut self.engines {
                if engine.unsaid.len() < NOTICES {
                    engine.say(Message::Notice(notice));
                } else {
                    notices += 1;
                }
            }
        }
        while let Some((zone, packet)) = self.control.to_ourselves() {
            let left =
                self.engines.first_mut().map(|engine| engine.messages.put(Message::Deliver(zone, packet)));
            packets += give_back(left, &mut self.pool);
        }
        for (port, engine) in &self.ports {
            loop {
                self.control.transmit(*port, &mut self.batch);
                if self.batch.is_empty() {
                    break;
                }
                for packet in self.batch.drain() {
                    let engine = self.engines.get_mut(*engine);
                    let left = engine.map(|engine| engine.messages.put(Message::Send(*port, packet)));
                    packets += give_back(left, &mut self.pool);
                }
            }
        }
        self.control.count_lost(packets, notices);
        for engine in &mut self.engines {
            engine.catch_up();
            engine.messages.flush();
        }
    }
}

/// A packet that an engine has no room for is lost, as on a wire; how many that are.
fn give_back(left: Option<Result<(), Message>>, pool: &mut Pool) -> u64 {
    if let Some(Err(Message::Send(_, packet) | Message::Deliver(_, packet))) = left {
        pool.give_packet(packet);
        return 1;
    }
    0
}

impl Task for ControlTask {
    fn turn(&mut self) -> Turn {
        let slept = std::mem::take(&mut self.armed);
        if slept {
            self.bell.hush();
        }
        let now = self.clock.now();
        if let Some(links) = self.links.as_mut().filter(|_| slept || now.since(self.looked) >= LOOK) {
            links.look(now, &mut self.control);
            self.looked = now;
        }
        let done = self.answer(now) + self.obey(now);
        self.control.advance(now, &mut self.pool);
        self.tell();
        if done > 0 { Turn::Busy } else { Turn::Idle }
    }

    fn arm(&mut self) -> bool {
        self.armed = true;
        let engines = &self.engines;
        // Commands always ring: one that has come since it was last looked for ends the sleep at once.
        self.bell.arm(|| engines.iter().all(|engine| engine.asked.is_empty()))
    }

    fn wake_fds<'a>(&'a self, fds: &mut Vec<BorrowedFd<'a>>) {
        fds.push(self.bell.as_fd());
        fds.extend(self.links.as_ref().map(AsFd::as_fd));
    }

    fn next_deadline(&self, now: u64) -> Option<u64> {
        /// How soon to try again to say what found a ring full.
        const AGAIN_NS: u64 = 1_000_000;
        let unsaid = self.engines.iter().any(|engine| !engine.unsaid.is_empty());
        let deadline = self.control.next_deadline().map(|at| self.clock.monotonic(at));
        deadline.into_iter().chain(unsaid.then(|| now + AGAIN_NS)).min()
    }
}

#[cfg(test)]
mod tests {
    use bywash_stack::Listen;
    use bywash_stack::frame::Arena;

    use super::*;
    use crate::handoff::ring;

    #[test]
    fn an_engine_that_falls_behind_finds_the_newest_snapshot_and_no_other() {
        const ROOM: usize = 4;
        let mut pool = Arena::new(vec![0; 64 * 2304]).unwrap().pool(8).unwrap();
        let mut control = Control::new([7; 16]);
        let mut change = |port| {
            control.listen(Listen { local: None, port, backlog: 1 }).unwrap();
            control.snapshot(&mut pool).clone()
        };
        let snapshots: Vec<_> = (1..).take(3 * ROOM).map(&mut change).collect();
        // The flags of bells are loom's here, and its threads have room for little else.
        loom::model(move || {
            let bell = Bell::new().unwrap();
            let ((messages, mut heard), (_asks, asked)) = (ring(ROOM, &bell), ring(1, &bell));
            let picture = Newest::new();
            let theirs = picture.other_end();
            let mut engine =
                Engine { asked, messages, picture, answers: Vec::new(), unsaid: VecDeque::new() };
            // And again, once it has looked.
            for _ in 0..2 {
                snapshots.iter().for_each(|snapshot| engine.show(snapshot.clone()));
                assert!(engine.unsaid.is_empty(), "{} wait", engine.unsaid.len());
                assert!(matches!(heard.take(), Some(Message::Update)));
                assert!(heard.is_empty(), "it is told once");
                let newest = theirs.take().unwrap();
                assert!(snapshots.last().is_some_and(|last| Arc::ptr_eq(last, &newest)));
            }
        });
    }
}
