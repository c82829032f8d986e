//! The loop that forwards: what one worker does with its queues.
//!
//! When a TX ring is full the packets wait where they are and nothing more is received for it: the NIC's own RX ring
//! is the buffer, and what overflows there is dropped before it has cost anything. (Receiving on and dropping, as
//! `l2fwd` does, spends on lost packets the time that would have sent them.) A ring that does not move for
//! [`PATIENCE_NS`] belongs to a dead link: its packets are dropped and counted then, and dropping goes on until it
//! takes one again, so that the queues stay alive. Where packets come out of a file and go to one there is no such limit: nothing is lost
//! while a file waits.

use std::os::fd::BorrowedFd;

use bywash_port::frame::{Batch, Pool};
use bywash_port::{QueueCounters, QueuePair, RxQueue, TxQueue};
use bywash_sys::clock;
use bywash_sys::worker::{Task, Turn};

use super::MacEdit;
use crate::live::{Live, Publication};
use crate::queues::{close_queues, rest};

/// How long packets wait for room in a TX ring that takes none. Whoever is to empty it may be kept from that by the
/// scheduler for a tenth of a second on a busy machine; and a queue that is not looked at for half a second counts as
/// hung.
const PATIENCE_NS: u64 = 200_000_000;

/// How long they wait in all where the ring takes some now and then. Nothing is received for it meanwhile, so this too
/// must end well before the half second.
const LONGEST_WAIT_NS: u64 = 350_000_000;

/// How soon to look again while a NIC has packets to send: it wakes nobody when it has sent them.
const TX_POLL_NS: u64 = 1_000_000;

/// How long packets are still taken out of the ports' rings at the end: those that keep coming must not keep us.
const RECEIVE_NS: u64 = 50_000_000;

/// How long nothing has come when the rings are dry: what is on its way when a queue is told to stop comes within that.
const DRY_NS: u64 = 1_000_000;

/// How long the last packets may take to leave at the end, but for those to a file: closing it waits for them all.
const DRAIN_NS: u64 = 200_000_000;

/// A receiving queue and where its packets go.
pub(super) struct Entrance {
    pub(super) rx: Box<dyn RxQueue>,
    /// Index of the exit in the same worker.
    pub(super) exit: usize,
    /// The queue's number on its port.
    pub(super) number: usize,
    /// Index of the direction in the plan.
    pub(super) direction: usize,
}

/// A sending queue and the packets on their way to it.
pub(super) struct Exit {
    tx: Box<dyn TxQueue>,
    batch: Batch,
    number: usize,
    direction: usize,
    files: Files,
    waiting: Option<Waiting>,
    is_dead: bool,
    dropped: u64,
}

/// Which ends of a way are files: those wait.
#[derive(Clone, Copy, Debug)]
pub(super) struct Files {
    pub(super) from: bool,
    pub(super) to: bool,
}

/// Since when the packets of a batch have waited.
struct Waiting {
    /// When the first of them began to.
    begun: u64,
    /// When the ring last took one.
    moved: u64,
}

impl Exit {
    pub(super) fn new(
        tx: Box<dyn TxQueue>,
        batch: usize,
        number: usize,
        direction: usize,
        files: Files,
    ) -> Self {
        let batch = Batch::with_limit(batch);
        Self { tx, batch, number, direction, files, waiting: None, is_dead: false, dropped: 0 }
    }

    fn is_waiting(&self) -> bool {
        !self.batch.is_empty()
    }

    fn is_sending(&self) -> bool {
        self.is_waiting() || self.tx.in_flight() > 0
    }

    /// Hands the batch to the NIC and returns how many packets it took. What does not fit waits, for
    /// [`PATIENCE_NS`] after the last that did and for [`LONGEST_WAIT_NS`] at most; from a file to a file as long as it takes.
    #[inline]
    fn send(&mut self, pool: &mut Pool) -> usize {
        let sent = self.tx.tx(pool, &mut self.batch);
        if self.batch.is_empty() {
            self.waiting = None;
            self.is_dead = false;
        } else if !(self.files.from && self.files.to) {
            self.wait_or_drop(sent, pool);
        }
        sent
    }

    #[cold]
    fn wait_or_drop(&mut self, sent: usize, pool: &mut Pool) {
        let now = clock::monotonic();
        let waiting = self.waiting.get_or_insert(Waiting { begun: now, moved: now });
        if sent > 0 {
            waiting.moved = now;
            self.is_dead = false;
        }
        if self.is_dead || now - waiting.moved > PATIENCE_NS || now - waiting.begun > LONGEST_WAIT_NS {
            self.is_dead = true;
            self.waiting = None;
            self.dropped += self.batch.len() as u64;
            pool.give_batch(&mut self.batch);
        }
    }
}

/// What one queue has done.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct QueueFigures {
    pub(super) direction: usize,
    pub(super) number: usize,
    pub(super) counters: QueueCounters,
    /// Packets that found no room; of exits.
    pub(super) dropped: u64,
    /// Packets whose fate is not known; of exits, at the end.
    pub(super) in_flight: u64,
}

/// What one worker has done.
#[derive(Clone, Debug, Default)]
pub(super) struct Figures {
    pub(super) entrances: Vec<QueueFigures>,
    pub(super) exits: Vec<QueueFigures>,
}

/// One worker's share of the work.
pub(super) struct Forwarder {
    entrances: Vec<Entrance>,
    exits: Vec<Exit>,
    /// Queues that nobody serves, to be closed with the others.
    unused: Vec<QueuePair>,
    pool: Pool,
    edit: MacEdit,
    live: Live<Figures>,
    publication: Publication,
}

impl Forwarder {
    pub(super) fn new(entrances: Vec<Entrance>, exits: Vec<Exit>, pool: Pool, edit: MacEdit) -> Self {
        let figures = Figures {
            entrances: vec![QueueFigures::default(); entrances.len()],
            exits: vec![QueueFigures::default(); exits.len()],
        };
        let live = Live::new(figures);
        let publication = Publication::default();
        let mut forwarder = Self { entrances, exits, unused: Vec::new(), pool, edit, live, publication };
        forwarder.publish();
        forwarder
    }

    /// Keeps a queue that nobody serves until the end.
    pub(super) fn keep(&mut self, unused: QueuePair) {
        self.unused.push(unused);
    }

    pub(super) fn live(&self) -> Live<Figures> {
        self.live.clone()
    }

    fn publish(&mut self) {
        let (entrances, exits) = (&self.entrances, &self.exits);
        self.live.publish(|figures| {
            for (to, from) in figures.entrances.iter_mut().zip(entrances) {
                let counters = from.rx.counters();
                *to = QueueFigures {
                    direction: from.direction,
                    number: from.number,
                    counters,
                    ..Default::default()
                };
            }
            for (to, from) in figures.exits.iter_mut().zip(exits) {
                *to = QueueFigures {
                    direction: from.direction,
                    number: from.number,
                    counters: from.tx.counters(),
                    dropped: from.dropped,
                    in_flight: from.tx.in_flight() as u64,
                };
            }
        });
    }

    /// Whether nothing will ever come again, as from a file that was read to its end, and all has left.
    fn has_ended(&self) -> bool {
        self.entrances.iter().all(|entrance| entrance.rx.has_ended())
            && !self.exits.iter().any(Exit::is_waiting)
    }

    /// The last figures; closes the queues.
    pub(super) fn close(mut self) -> Figures {
        for exit in &mut self.exits {
            exit.dropped += exit.batch.len() as u64;
            self.pool.give_batch(&mut exit.batch);
        }
        self.publish();
        let served = self.exits.into_iter().map(|exit| QueuePair { rx: None, tx: Some(exit.tx) });
        let entered =
            self.entrances.into_iter().map(|entrance| QueuePair { rx: Some(entrance.rx), tx: None });
        close_queues(served.chain(entered).chain(self.unused), &mut self.pool);
        self.live.read()
    }
}

impl Task for Forwarder {
    #[inline]
    fn turn(&mut self) -> Turn {
        let mut moved = 0;
        for entrance in &mut self.entrances {
            let Some(exit) = self.exits.get_mut(entrance.exit) else { continue };
            if exit.is_waiting() {
                moved += exit.send(&mut self.pool);
                if exit.is_waiting() {
                    continue;
                }
            }
            let received = entrance.rx.rx(&mut self.pool, &mut exit.batch);
            if received > 0 {
                moved += received;
                self.edit.apply(&mut exit.batch);
                exit.send(&mut self.pool);
            }
        }
        let mut is_waiting = false;
        for exit in &mut self.exits {
            exit.tx.flush(&mut self.pool);
            is_waiting |= exit.is_waiting();
        }
        if is_waiting {
            // Where several entrances share an exit that is full, the one that filled it comes last next time.
            self.entrances.rotate_left(1);
        }
        let busy = moved > 0;
        if self.publication.is_due(busy) {
            self.publish();
        }
        if busy {
            Turn::Busy
        } else if self.has_ended() {
            Turn::Done
        } else {
            Turn::Idle
        }
    }

    fn arm(&mut self) -> bool {
        // All of them, also after one that says no: they are asked again before the next sleep.
        self.entrances.iter_mut().fold(true, |may_sleep, entrance| entrance.rx.arm() & may_sleep)
    }

    fn wake_fds<'a>(&'a self, fds: &mut Vec<BorrowedFd<'a>>) {
        fds.extend(self.entrances.iter().filter_map(|entrance| entrance.rx.wake_fd()));
    }

    fn next_deadline(&self, now: u64) -> Option<u64> {
        self.exits.iter().any(Exit::is_sending).then(|| now + TX_POLL_NS)
    }

    /// What came before the end is in the ports' rings, and was taken from whoever else could have had it.
    fn finish(&mut self) {
        self.entrances.iter_mut().for_each(|entrance| entrance.rx.stop());
        let begun = clock::monotonic();
        let (mut now, mut last) = (begun, begun);
        while now - begun < RECEIVE_NS {
            let looked = now;
            // What waits for room keeps others from being received, which is not the same as that none has come.
            let came = self.turn() == Turn::Busy || self.exits.iter().any(Exit::is_waiting);
            now = clock::monotonic();
            if came {
                last = now;
            } else if looked - last >= DRY_NS {
                break;
            }
        }
        while self.exits.iter().any(|exit| exit.is_sending() && (exit.files.to || now - begun < DRAIN_NS)) {
            for exit in &mut self.exits {
                if exit.is_waiting() {
                    exit.send(&mut self.pool);
                }
                exit.tx.flush(&mut self.pool);
            }
            rest(now - begun);
            now = clock::monotonic();
        }
    }
}
