//! The loop that filters: what one worker does with the packets that the port has left to it.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use bywash_port::filter::rules::{Established, Lookup, SentFlows};
use bywash_port::frame::{BATCH, Batch, Packet, Pool};
use bywash_port::{QueueCounters, QueuePair, RuleId, RuleSet, Rules, RxQueue, TxQueue};
use bywash_sys::clock;
use bywash_sys::spool::Producer;
use bywash_sys::worker::{self, Task, Turn};
use rtrb::Producer as Teller;

use super::Served;
use super::control::Block;
use super::heavy::Hitter;
use super::judge::{Before, Counted, Judge};
use super::samples::Samples;
use super::shared::{Held, Shared};
use crate::live::{Live, Publication};
use crate::queues::{close_queues, drain};

/// How soon to look again while packets wait for the way back.
const RETRY_NS: u64 = 100_000;

/// How soon to look again whether the disk takes samples.
const FLUSH_NS: u64 = 50_000_000;

/// How long packets wait for the way back before they are lost. A queue that is not looked at for half a second counts as
/// hung.
const PATIENCE_NS: u64 = 100_000_000;

/// After so long what was on its way to a queue that takes no more has come.
const UNDER_WAY: Duration = Duration::from_millis(1);

/// How long what has come before the end may take on its way back.
const LAST_NS: u64 = clock::SECOND;

/// For so long samples are looked after at the end: a core whose worker has died may go on drawing.
const AT_THE_END_NS: u64 = 100_000_000;

/// How often it is told who sends most above limits, which takes a while.
const HITTERS_NS: u64 = 200_000_000;

/// What one queue has done.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct LaneFigures {
    /// Its number on its port.
    pub(super) number: usize,
    pub(super) received: QueueCounters,
    /// What went back to the kernel.
    pub(super) given_back: QueueCounters,
    pub(super) dropped: u64,
    /// Packets that found no room on the way back.
    pub(super) lost: u64,
}

/// What one worker has done.
#[derive(Clone, Debug, Default)]
pub(super) struct Figures {
    pub(super) lanes: Vec<LaneFigures>,
    /// What each rule has counted here.
    pub(super) rules: Vec<(RuleId, Counted)>,
    /// The same of rules that hold no longer.
    pub(super) past: Vec<(RuleId, Counted)>,
    /// Who sends most above limits, with the number of the rule in these.
    pub(super) hitters: Vec<(usize, Hitter)>,
    /// Samples in the file, or on their way.
    pub(super) samples: u64,
    /// Samples for which there was no room on their way to the disk, or no file any more.
    pub(super) lost_samples: u64,
}

/// A queue's number on its port, the queue, and the way back for what comes by it.
pub(super) type Queue = (usize, Box<dyn RxQueue>, Box<dyn TxQueue>);

/// The same at work.
struct Lane {
    number: usize,
    rx: Box<dyn RxQueue>,
    tx: Box<dyn TxQueue>,
    /// On the way back.
    batch: Batch,
    waiting_since: Option<u64>,
    dropped: u64,
    lost: u64,
}

impl Lane {
    fn new((number, rx, tx): Queue, batch: usize) -> Self {
        Self { number, rx, tx, batch: Batch::with_limit(batch), waiting_since: None, dropped: 0, lost: 0 }
    }

    fn into_pair(self) -> QueuePair {
        QueuePair { rx: Some(self.rx), tx: Some(self.tx) }
    }
}

/// One worker's share of the work.
pub(super) struct Filterer {
    lanes: Vec<Lane>,
    /// Those before them, which nobody looks at any more.
    former: Vec<Lane>,
    pool: Pool,
    batch: Batch,
    /// Packets in it at most.
    most: usize,
    /// Where the worker is free to move until it has queues by which packets come: what it serves then.
    stays_for: Option<Served>,
    /// Others wake it than when that was asked last.
    wakes_anew: bool,
    /// What the rules' lists say of the packets in it.
    lookups: Vec<Lookup>,
    shared: Arc<Shared>,
    generation: u64,
    /// Nobody looks after the rules: all packets are left to the kernel.
    left_alone: bool,
    set: Arc<RuleSet>,
    flows: Option<Arc<dyn SentFlows>>,
    judge: Judge,
    tell: Teller<Block>,
    samples: Samples,
    /// What the port draws by itself; one worker has it.
    drawn: Option<Box<dyn bywash_port::Samples>>,
    live: Live<Figures>,
    publication: Publication,
    /// When it is told again who sends most; `None` when there was no packet after that was told.
    hitters_due: Option<u64>,
    /// It has called its queues.
    has_begun: bool,
    /// It has come to its end: else it may be torn, and only its queues are to be closed.
    has_finished: bool,
}

impl Filterer {
    pub(super) fn new(
        queues: Vec<Queue>,
        (pool, batch): (Pool, usize),
        shared: Arc<Shared>,
        tell: Teller<Block>,
        (samples, drawn): (Option<Producer>, Option<Box<dyn bywash_port::Samples>>),
    ) -> Self {
        let generation = shared.generation();
        let Held { rules: Rules { set, never, .. }, flows } = shared.held();
        let judge = Judge::new(&set, None).sparing(never);
        let mut filterer = Self {
            lanes: queues.into_iter().map(|queue| Lane::new(queue, batch)).collect(),
            former: Vec::new(),
            pool,
            batch: Batch::with_limit(batch),
            most: batch,
            stays_for: None,
            wakes_anew: false,
            lookups: Vec::with_capacity(BATCH),
            shared,
            generation,
            left_alone: false,
            set,
            flows,
            judge,
            tell,
            samples: Samples::new(samples),
            drawn,
            live: Live::new(Figures::default()),
            publication: Publication::default(),
            hitters_due: None,
            has_begun: false,
            has_finished: false,
        };
        filterer.name_rules();
        filterer
    }

    /// Has the worker stay on a core from when it takes the queues that its port has at XDP.
    pub(super) fn stay_once_moved(&mut self, served: Option<Served>) {
        self.stays_for = served;
    }

    pub(super) fn live(&self) -> Live<Figures> {
        self.live.clone()
    }

    /// Leaves to the kernel what comes from now on. The port's program decides nothing more, and draws nothing.
    pub(super) fn stop(&mut self) {
        self.lanes.iter_mut().chain(&mut self.former).for_each(|lane| lane.rx.stop());
    }

    /// Closes the queues.
    pub(super) fn close(&mut self) {
        if self.has_finished {
            // What a CPU that had no time was still about to give them.
            self.bring_back();
        }
        self.publish();
        self.live.replace(|figures| self.fill_hitters(figures));
        let brought = self.shared.take_brought().into_iter().map(|queue| Lane::new(queue, self.most));
        let lanes = self.lanes.drain(..).chain(self.former.drain(..)).chain(brought);
        close_queues(lanes.map(Lane::into_pair), &mut self.pool);
    }

    /// The last figures, when all queues are closed: what was drawn until then is kept.
    pub(super) fn end(mut self) -> Figures {
        if self.has_finished && self.drawn.is_some() {
            self.keep_all_drawn();
        }
        let mut figures = self.live.read();
        self.fill_samples(&mut figures);
        figures
    }

    /// Judges what has come to queues that take no more, and gives back what stays. What is not done in time is lost.
    fn bring_back(&mut self) {
        let until = clock::monotonic() + LAST_NS;
        while clock::monotonic() < until {
            if self.work() == Turn::Busy {
                continue;
            }
            if self.lanes.iter().all(|lane| lane.batch.is_empty()) {
                break;
            }
            std::thread::yield_now();
        }
        for lane in &mut self.lanes {
            lane.give_back(&mut self.pool, LAST_NS);
            drain(&mut *lane.tx, &mut self.pool, false);
            lane.lose(&mut self.pool, until + LAST_NS);
        }
    }

    /// Keeps all that the port has drawn, when nobody draws any more.
    fn keep_all_drawn(&mut self) {
        let until = clock::monotonic() + AT_THE_END_NS;
        // What a core has begun before is over within this time.
        std::thread::sleep(Duration::from_millis(1));
        while self.drawn.as_ref().is_some_and(|drawn| !drawn.is_empty()) && clock::monotonic() < until {
            if self.keep_drawn() == 0 {
                std::thread::yield_now();
            }
        }
    }

    /// Takes over other rules. Not in the path of a packet: once for each change.
    #[cold]
    fn change_rules(&mut self) {
        self.generation = self.shared.generation();
        let Held { rules: Rules { set, never, .. }, flows } = self.shared.held();
        let judge = Judge::new(&set, Some((&self.set, std::mem::take(&mut self.judge)))).sparing(never);
        (self.set, self.flows, self.judge) = (set, flows, judge);
        let brought = self.shared.take_brought();
        if !brought.is_empty() {
            self.move_to(brought);
        }
        self.name_rules();
    }

    /// Takes other queues in the place of its own. Those are not closed yet, which would end at once what decides as long as they show
    /// life: it goes on for as long as a worker may be silent, and its port ends it when it is time.
    fn move_to(&mut self, queues: Vec<Queue>) {
        if let Some(served) = self.stays_for.take()
            && let Some(&core) = served.cores(1).first()
        {
            // It may use this one, or could a moment ago: else it goes where it is put.
            let _ = worker::pin(core);
        }
        let lanes = queues.into_iter().map(|queue| Lane::new(queue, self.most)).collect();
        self.former.extend(std::mem::replace(&mut self.lanes, lanes));
        for lane in &mut self.lanes {
            lane.rx.show_life(!self.left_alone);
        }
        self.wakes_anew = true;
    }

    /// Has the port leave all packets to the kernel when nobody looks after the rules, and no longer when somebody does.
    fn look_for_control(&mut self, now: u64) {
        let left_alone = self.shared.is_left_alone(now);
        if left_alone != self.left_alone {
            self.left_alone = left_alone;
            self.lanes.iter_mut().for_each(|lane| lane.rx.show_life(!left_alone));
        }
    }

    /// Makes room in the figures for the rules that hold now, and fills it at once: nobody sees a counter go back.
    fn name_rules(&mut self) {
        self.samples.name(&self.set);
        self.live.replace(|figures| {
            let rules = self.set.rules().iter();
            figures.rules = rules.map(|rule| (RuleId::from(rule), Counted::default())).collect();
            figures.past = self.judge.past().iter().map(|(rule, counted)| (rule.clone(), *counted)).collect();
            figures.lanes = vec![LaneFigures::default(); self.lanes.len()];
            self.fill(figures);
            self.fill_hitters(figures);
        });
    }

    fn publish(&self) {
        self.live.publish(|figures| self.fill(figures));
    }

    /// Tells who sends most above limits, when it is time for that.
    fn tell_hitters(&mut self, now: u64) {
        if self.hitters_due.is_some_and(|due| due <= now) {
            let told = self.live.publish(|figures| self.fill_hitters(figures));
            // Who was not heard says it again.
            self.hitters_due = (!told).then_some(now + RETRY_NS);
        }
    }

    fn fill_hitters(&self, figures: &mut Figures) {
        figures.hitters.clear();
        figures.hitters.extend(self.judge.hitters());
    }

    fn fill(&self, figures: &mut Figures) {
        for (to, lane) in figures.lanes.iter_mut().zip(&self.lanes) {
            *to = LaneFigures {
                number: lane.number,
                received: lane.rx.counters(),
                given_back: lane.tx.counters(),
                dropped: lane.dropped,
                lost: lane.lost,
            };
        }
        for ((_, to), counted) in figures.rules.iter_mut().zip(self.judge.counted()) {
            *to = *counted;
        }
        self.fill_samples(figures);
    }

    fn fill_samples(&self, figures: &mut Figures) {
        (figures.samples, figures.lost_samples) = (self.samples.kept, self.samples.lost);
    }

    /// Keeps what the port has drawn, a batch at most.
    fn keep_drawn(&mut self) -> usize {
        let Self { drawn: Some(drawn), samples, .. } = self else { return 0 };
        drawn.each(BATCH, &mut |rule, drawn| samples.keep_drawn(rule, drawn))
    }

    /// Judges what has come by a queue: what stays goes to the batch on its way back.
    fn judge(&mut self, lane: usize) {
        let Self { lanes, pool, batch, lookups, set, judge, .. } = self;
        let Some(lane) = lanes.get_mut(lane) else { return };
        let seen = Established { flows: self.flows.as_deref(), now: clock::monotonic() };
        judge.look_up(set, batch.iter().map(Packet::head), lookups);
        let mut dropped = Dropped::default();
        for ((number, packet), lookup) in batch.iter().enumerate().zip(&*lookups) {
            let judgement = judge.judge_on(set, lookup, packet.head(), packet.len(), &seen, Before::Kernel);
            if judgement.is_nothing() {
                continue;
            }
            if judgement.is_flood
                && let Some((rule, source)) = judge.take_flood()
            {
                // When there is no room it will be told again.
                let _ = self.tell.push(Block { generation: self.generation, rule, source });
            }
            if judgement.is_sample {
                self.samples.keep(judge.sampler(), packet);
            }
            dropped.0 |= u64::from(judgement.is_dropped) << number;
        }
        lane.take_over(batch, dropped, pool);
    }
}

/// Packets of a batch that are gone, a bit for each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Dropped(u64);

const _: () = assert!(BATCH <= 64, "there is a bit for each packet");

impl Lane {
    /// Takes what is not dropped of a batch, on its way back.
    fn take_over(&mut self, batch: &mut Batch, Dropped(mut dropped): Dropped, pool: &mut Pool) {
        self.dropped += u64::from(dropped.count_ones());
        // Mostly all of it, and then no packet is moved.
        if dropped == 0 && self.batch.is_empty() && self.batch.exchange(batch) {
            return;
        }
        batch.take_each(|packet, _| {
            if dropped & 1 != 0 {
                pool.give_packet(packet);
            } else {
                self.batch.push(packet);
            }
            dropped >>= 1;
        });
    }

    /// Gives back what waits for it. What finds no room for longer than the `patience` is lost.
    fn give_back(&mut self, pool: &mut Pool, patience: u64) -> usize {
        let sent = if self.batch.is_empty() { 0 } else { self.tx.tx(pool, &mut self.batch) };
        self.tx.flush(pool);
        if self.batch.is_empty() {
            self.waiting_since = None;
        } else {
            let now = clock::monotonic();
            if now - *self.waiting_since.get_or_insert(now) > patience {
                self.lost += self.batch.len() as u64;
                pool.give_batch(&mut self.batch);
            }
        }
        sent
    }

    /// Counts as lost what still waits, here or in the queue, which takes no more.
    fn lose(&mut self, pool: &mut Pool, until: u64) {
        while !self.batch.is_empty() || (clock::monotonic() < until && self.rx.rx(pool, &mut self.batch) > 0)
        {
            self.lost += self.batch.len() as u64;
            pool.give_batch(&mut self.batch);
        }
    }
}

impl Filterer {
    /// One round over the queues.
    #[inline]
    fn work(&mut self) -> Turn {
        let mut moved = 0;
        let patience = if self.has_finished { LAST_NS } else { PATIENCE_NS };
        for index in 0..self.lanes.len() {
            let lane = &mut self.lanes[index];
            moved += lane.give_back(&mut self.pool, patience);
            if !lane.batch.is_empty() {
                continue;
            }
            let received = lane.rx.rx(&mut self.pool, &mut self.batch);
            if received > 0 {
                moved += received;
                self.judge(index);
                self.lanes[index].give_back(&mut self.pool, patience);
            }
        }
        moved += self.keep_drawn();
        let busy = moved > 0;
        let is_due = self.publication.is_due(busy);
        if is_due || !busy {
            let now = clock::monotonic();
            self.look_for_control(now);
            self.tell_hitters(now);
            if is_due && self.hitters_due.is_none() {
                self.hitters_due = Some(now + HITTERS_NS);
            }
        }
        if is_due {
            self.publish();
        }
        if !busy {
            self.samples.flush();
        }
        if busy { Turn::Busy } else { Turn::Idle }
    }

    #[cold]
    fn begin(&mut self) {
        self.has_begun = true;
        self.shared.begin();
    }
}

impl Task for Filterer {
    #[inline]
    fn turn(&mut self) -> Turn {
        if self.shared.generation() != self.generation {
            self.change_rules();
        }
        let turn = self.work();
        if !self.has_begun {
            self.begin();
        }
        turn
    }

    fn arm(&mut self) -> bool {
        // All of them, also after one that says no: they are asked again before the next sleep.
        self.lanes.iter_mut().fold(true, |may_sleep, lane| lane.rx.arm() & may_sleep)
    }

    fn wake_fds<'a>(&'a self, fds: &mut Vec<BorrowedFd<'a>>) {
        fds.extend(self.lanes.iter().filter_map(|lane| lane.rx.wake_fd()));
        fds.extend(self.drawn.iter().map(|drawn| drawn.wake_fd()));
    }

    fn wakes_anew(&mut self) -> bool {
        std::mem::take(&mut self.wakes_anew)
    }

    fn next_deadline(&self, now: u64) -> Option<u64> {
        let retry = self.lanes.iter().any(|lane| !lane.batch.is_empty()).then(|| now + RETRY_NS);
        let flush = self.samples.waits.then(|| now + FLUSH_NS);
        retry.into_iter().chain(self.hitters_due).chain(flush).min()
    }

    fn finish(&mut self) {
        self.has_finished = true;
        if self.shared.generation() != self.generation {
            self.change_rules();
        }
        // What comes by then goes back as well, and nothing comes after it that nobody would read.
        self.stop();
        std::thread::sleep(UNDER_WAY);
        self.bring_back();
    }
}
