//! What may change while the workers judge: the rules, what the port drops for a while, and the default gateways.
//!
//! A thread does it, and shows the workers that it does. When it hangs, what rules that have expired and blocks that are over still
//! drop would be dropped for ever: the workers leave all packets to the kernel until it is back.

use std::collections::{HashMap, HashSet};
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime};

use bywash_port::filter::rules::Per;
use bywash_port::{
    Action, Counter, Limit, LoadedRules, Moved, Port, QueuePair, Rule, RuleLoad, RulePlace, Rules,
};
use bywash_sys::clock;
use bywash_sys::worker::Stop;
use rtrb::Consumer;
use serde_json::{Value, json};

use super::audit::Audit;
use super::blocks::{Blocks, Key};
use super::events::unjudged;
use super::heavy::Sender;
use super::news::News;
use super::shared::{Held, Shared};
use super::shared_port::SharedPort;
use super::top::Blocked;
use super::trouble::Trouble;
use super::watched::Watched;
use super::worker::Queue;
use super::{Options, RuleFile, places};
use crate::session;

/// How soon a change is seen.
const INTERVAL: Duration = Duration::from_millis(50);

/// How soon it is seen that rules are loaded.
const LOADING: Duration = Duration::from_millis(2);

/// How often files are looked at.
const WATCH: Duration = Duration::from_millis(250);

/// How often the default gateways are looked at.
const GATEWAYS: Duration = Duration::from_secs(1);

/// When it is tried again to take out a rule that has expired, to spare other gateways, or to unblock a source.
const RETRY: Duration = Duration::from_secs(1);

/// Of its time, looking at the gateways takes one part in so many at most, since a router has a million routes to look through; and so
/// does what is tried again, since the kernel's verifier may have much to do.
const SHARE: u32 = 20;

/// How long it may be silent before it counts as hung.
const SILENCE: Duration = Duration::from_secs(1);

/// The same while it reads rules, gives them to the NIC or looks at routes: with hundreds of thousands that takes seconds; and while it
/// asks for what the kernel tells under its lock of interfaces (RTNL), which anybody's work on interfaces may hold for as long.
pub(super) const AT_WORK: Duration = Duration::from_secs(10);

/// How long it may take to have its turn, in nanoseconds.
const TURN: u64 = clock::SECOND / 2;

/// How long it may take to end.
const END: Duration = Duration::from_secs(5);

/// Sources that one worker may have told of at once.
pub(super) const MOST_WAITING: usize = 1024;

/// A source that a worker wants to be blocked, by the rule with this number in the rules of this generation.
#[derive(Clone, Copy, Debug)]
pub(super) struct Block {
    pub(super) generation: u64,
    pub(super) rule: usize,
    pub(super) source: IpAddr,
}

/// What has been done so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Done {
    /// Times other rules took the place of the old ones.
    pub(super) reloads: u64,
    /// Times a rule file was refused.
    pub(super) refused: u64,
    /// Sources that were blocked.
    pub(super) blocked: u64,
    /// Sources that are blocked now.
    pub(super) blocks: u64,
}

/// The thread that does it.
pub(super) struct Control {
    thread: JoinHandle<()>,
    stop: Arc<AtomicBool>,
    shared: Arc<Shared>,
    state: Arc<Mutex<State>>,
    blocks: Blocks,
    /// Since when it is known that the thread has not been seen for too long; 0 when it has been.
    alone_since: AtomicU64,
}

const THREAD: &str = "filter control";

/// The thread that loads rules.
const LOADER: &str = "filter load";

/// How it all stood at the end.
pub(super) struct Ended {
    /// The rules that held.
    pub(super) rules: Rules,
    pub(super) done: Done,
    pub(super) blocked: Vec<Blocked>,
    /// What went wrong.
    pub(super) warnings: Vec<String>,
    /// When whoever still holds the port has had its time.
    pub(super) until: Instant,
}

#[derive(Default)]
struct State {
    done: Done,
    /// Why the last rule file was refused.
    reload_trouble: Trouble,
    /// Why a source could not be blocked.
    block_trouble: Trouble,
    /// Why a rule that has expired still holds.
    expiry_trouble: Trouble,
    /// Why a source is blocked for longer than it should be.
    unblock_trouble: Trouble,
    /// Why packets are not judged by user space.
    length_trouble: Trouble,
    /// Why packets are lost on their way to user space.
    room_trouble: Trouble,
    /// Why rules do not decide about all that comes, or not as they should.
    growth_trouble: Trouble,
    /// Why the default gateways are not known.
    gateways_trouble: Trouble,
    /// Why rules are not in the NIC that should be.
    nic_trouble: Trouble,
    /// Why nothing is noted any more, or in the old file.
    audit_trouble: Trouble,
    news: News,
}

impl State {
    /// All that may be wrong, in the order in which it is told.
    fn troubles(&mut self) -> [&mut Trouble; 10] {
        [
            &mut self.reload_trouble,
            &mut self.block_trouble,
            &mut self.expiry_trouble,
            &mut self.unblock_trouble,
            &mut self.length_trouble,
            &mut self.room_trouble,
            &mut self.growth_trouble,
            &mut self.gateways_trouble,
            &mut self.nic_trouble,
            &mut self.audit_trouble,
        ]
    }
}

impl Control {
    pub(super) fn start(
        port: SharedPort,
        shared: Arc<Shared>,
        options: &Options,
        audit: Option<Audit>,
        blocks: Vec<Consumer<Block>>,
        stop_all: &Stop,
    ) -> Result<Self, String> {
        let known = Blocks::default();
        let (stop, state) = (Arc::new(AtomicBool::new(false)), Arc::new(Mutex::new(State::default())));
        let file = options.file.clone();
        let seen = file.as_ref().map(|file| file.files.clone()).unwrap_or_default();
        // Also one that has passed: the port was opened with a rule that may have expired since.
        let expiry = options.rules.set.rules().iter().filter_map(|rule| rule.expires).min();
        let mut work = Work {
            port,
            shared: Arc::clone(&shared),
            stop: Arc::clone(&stop),
            stop_all: stop_all.clone(),
            state: Arc::clone(&state),
            reload: Arc::clone(&options.reload),
            expiry,
            applied: SystemTime::now(),
            expiry_due: Instant::now(),
            unblocking_due: Instant::now(),
            file,
            seen,
            changing: Vec::new(),
            told: blocks,
            blocks: known.clone(),
            gateways_due: Instant::now() + GATEWAYS,
            audit,
        };
        let start = work.port.with(|port| start_line(port, options))?;
        work.note(&start);
        let thread = std::thread::Builder::new().name(THREAD.into()).spawn(move || work.run());
        let thread = thread.map_err(|error| format!("no thread for its control: {error}"))?;
        Ok(Self { thread, stop, shared, state, blocks: known, alone_since: AtomicU64::new(0) })
    }

    /// The rules that hold now.
    pub(super) fn rules(&self) -> Rules {
        self.shared.rules()
    }

    pub(super) fn done(&self) -> Done {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).done
    }

    /// Who is blocked.
    pub(super) fn blocked(&self) -> Vec<Blocked> {
        self.blocks.now()
    }

    /// Why nothing is filtered, or the last change did not come about.
    pub(super) fn trouble(&self) -> Option<String> {
        if self.seems_to_hang(clock::monotonic()) {
            return Some(format!(
                "the thread that watches rules, blocks and gateways hangs ({}): packets are left to the kernel until it goes on",
                self.shared.may_wait_for()
            ));
        }
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let troubles: Vec<String> = state.troubles().into_iter().filter_map(Trouble::tell).collect();
        (!troubles.is_empty()).then(|| troubles.join("; "))
    }

    /// Whether the thread has not been seen for too long and has had time since: when the whole process was stopped and goes on, it may not
    /// have had its turn yet.
    fn seems_to_hang(&self, now: u64) -> bool {
        if !self.shared.is_left_alone(now) {
            self.alone_since.store(0, Ordering::Relaxed);
            return false;
        }
        let since = self.alone_since.load(Ordering::Relaxed);
        if since == 0 {
            self.alone_since.store(now, Ordering::Relaxed);
        }
        since != 0 && now - since >= TURN
    }

    /// Where rules are by now, since this was last asked.
    pub(super) fn news(&self) -> Vec<String> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).news.take()
    }

    /// Ends it, or goes without it when it hangs.
    pub(super) fn finish(self) -> Ended {
        let until = Instant::now() + END;
        self.stop.store(true, Ordering::Relaxed);
        while !self.thread.is_finished() && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(1));
        }
        let (rules, done, blocked) = (self.shared.rules(), self.done(), self.blocks.now());
        let mut warnings = if self.thread.is_finished() {
            self.thread.join().err().map(|_| "the control thread has died".into()).into_iter().collect()
        } else {
            vec![format!(
                "the thread '{THREAD}' (rules, blocks, gateways, audit log) has not ended within {} s, and is left behind: {}",
                END.as_secs(),
                self.shared.may_wait_for()
            )]
        };
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        warnings.extend(state.troubles().into_iter().filter_map(Trouble::untold));
        drop(state);
        Ended { rules, done, blocked, warnings, until }
    }
}

struct Work {
    port: SharedPort,
    shared: Arc<Shared>,
    stop: Arc<AtomicBool>,
    /// Ends the whole filter.
    stop_all: Stop,
    state: Arc<Mutex<State>>,
    reload: Arc<AtomicBool>,
    file: Option<RuleFile>,
    /// The files, as they were when they were last read.
    seen: Vec<Watched>,
    /// The same, as the last look has found them, when they were others.
    changing: Vec<Watched>,
    expiry: Option<SystemTime>,
    /// When it was asked last which rules have expired.
    applied: SystemTime,
    /// When what has expired may be taken out, which did not come about before.
    expiry_due: Instant,
    /// When sources may be unblocked, which did not come about before.
    unblocking_due: Instant,
    /// Who is to be blocked, as workers tell.
    told: Vec<Consumer<Block>>,
    blocks: Blocks,
    /// When the default gateways are looked at next.
    gateways_due: Instant,
    audit: Option<Audit>,
}

impl Work {
    fn run(mut self) {
        let mut watched = Instant::now();
        while !self.stop.load(Ordering::Relaxed) {
            self.shared.is_seen(SILENCE);
            std::thread::sleep(INTERVAL);
            self.block();
            self.unblock();
            let asked = self.reload.swap(false, Ordering::Relaxed);
            let looks = watched.elapsed() >= WATCH;
            if looks {
                watched = Instant::now();
                self.look_at_port();
                let counters = self.port.with(|port| port.counters()).unwrap_or_default();
                self.look_for_long_packets(&counters);
                self.look_for_lost_packets(&counters);
                if session::has_gone(&counters).is_some() {
                    // No packet comes by it again, whatever comes in its place: whoever starts the filter must know.
                    self.note(&json!({ "event": "gone" }));
                    self.stop_all.set();
                    break;
                }
            }
            if asked {
                self.open_audit_again();
            }
            if asked || (looks && self.has_settled()) {
                self.read_again(asked);
            }
            if self.are_others_live(SystemTime::now()) && self.expiry_due <= Instant::now() {
                self.expire();
            }
            if self.gateways_due <= Instant::now() {
                self.look_at_gateways();
                self.look_at_growth();
            }
        }
        self.note(&json!({ "event": "stop" }));
    }

    /// Whether all that the port needs is still there. While the kernel has this wait, others may have the port.
    fn look_at_port(&self) {
        let look = self.port.with(|port| port.look_apart()).ok().flatten();
        self.shared.is_seen(AT_WORK);
        if let Some(look) = look {
            look();
        }
        self.shared.is_seen(SILENCE);
    }

    /// What user space should have judged and could not have without losing it.
    fn look_for_long_packets(&self, counters: &[Counter]) {
        if counters.iter().any(|counter| counter.name == "too_long" && counter.value > 0) {
            let why = "packets are longer than 2048 bytes, which the MTU of the start did not ask for: they are left to the \
                       kernel where user space should have judged them (too_long); start the filter again";
            let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
            state.length_trouble.set(Some(why.into()));
        }
    }

    /// What user space should have judged and was lost, since it had no room.
    fn look_for_lost_packets(&self, counters: &[Counter]) {
        if unjudged(counters) > 0 {
            let why = "user space can't keep up: packets for it are lost (unjudged_packets); leave more to the kernel's program (put \
                       rules in front that drop or pass there), or give it more queues or cores";
            let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
            state.room_trouble.set(Some(why.into()));
        }
    }

    /// Whether files are others than those that were read, and have been the same for two looks: else somebody may be writing them.
    fn has_settled(&mut self) -> bool {
        let now: Vec<Watched> = self.seen.iter().map(Watched::again).collect();
        if now == self.seen {
            self.changing.clear();
            return false;
        }
        let has_settled = now == self.changing;
        self.changing = now;
        has_settled
    }

    /// Reads the files again; `asked`: by order.
    fn read_again(&mut self, asked: bool) {
        let Some(file) = self.file.clone() else { return };
        self.shared.is_seen(AT_WORK);
        let (by, before) = (if asked { "signal" } else { "file" }, self.shared.rules());
        let read = file.read_again();
        // Of a file that is refused, too, the next change is seen, and no other: of what it names as well.
        self.seen.clone_from(read.as_ref().map_or_else(|refused| &refused.files, |file| &file.files));
        self.changing.clear();
        let read = read.map_err(|refused| refused.to_string()).and_then(|file| {
            if asked || !file.is_empty() {
                return Ok(file);
            }
            // Nothing would be dropped, which is hardly what was meant: a shell empties a file before it writes it.
            let path = file.files[0].path.display();
            Err(format!("{path} is empty: when that is meant, order it by SIGHUP"))
        });
        match read.and_then(|file| self.apply(&file).map(|places| (file, places))) {
            Ok((_, None)) => {}
            Ok((file, Some(places))) => {
                let idle = file.idle_rules(SystemTime::now());
                self.state.lock().unwrap_or_else(PoisonError::into_inner).news.idle = idle;
                let now = self.shared.rules();
                let mut line = rules_line("reload", &now, &places);
                line["by"] = json!(by);
                line["added"] = json!(names_without(&now, &before));
                line["removed"] = json!(names_without(&before, &now));
                line["changed"] = json!(changed(&before, &now));
                line["besides"] = json!(changed_besides(&before, &now));
                line["mode"] = json!(self.port.with(|port| port.capabilities().mode.clone()).ok());
                self.note(&line);
                self.file = Some(file);
                self.state.lock().unwrap_or_else(PoisonError::into_inner).reload_trouble.set(None);
            }
            Err(why) => {
                self.note(&json!({ "event": "refused", "by": by, "why": why }));
                let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
                state.done.refused += 1;
                state.reload_trouble.set(Some(format!("{why}; the rules stay as they were")));
            }
        }
    }

    /// Whether a rule that holds has expired; or one that had has not any more: the clock was ahead and was set back.
    fn are_others_live(&self, now: SystemTime) -> bool {
        let was_ahead = now < self.applied;
        self.expiry.is_some_and(|end| end <= now)
            || (was_ahead && self.file.as_ref().is_some_and(|file| file.revives(now, self.applied)))
    }

    fn expire(&mut self) {
        let Some(file) = self.file.clone() else { return };
        self.shared.is_seen(AT_WORK);
        let (before, began) = (self.shared.rules(), Instant::now());
        match self.apply(&file) {
            Ok(None) => {}
            Ok(Some(places)) => {
                let now = self.shared.rules();
                let mut line = rules_line("expired", &now, &places);
                line["expired"] = json!(names_without(&before, &now));
                line["revived"] = json!(names_without(&now, &before));
                self.note(&line);
            }
            Err(why) => {
                self.expiry_due = Instant::now() + RETRY.max(began.elapsed() * SHARE);
                let what = match self.expiry.is_some_and(|end| end <= SystemTime::now()) {
                    true => "a rule that has expired still holds",
                    false => "a rule that has not expired, since the clock was set back, does not hold",
                };
                let trouble = Some(format!("{what}: {why}"));
                let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
                let is_new = state.expiry_trouble.set(trouble);
                drop(state);
                if is_new {
                    self.note(&json!({ "event": "overdue", "why": why }));
                }
            }
        }
    }

    /// Puts the rules of a file in the place of those that hold. Returns where they are, and nothing when the filter ends before
    /// that.
    fn apply(&mut self, file: &RuleFile) -> Result<Option<Vec<RulePlace>>, String> {
        let now = SystemTime::now();
        self.shared.is_seen(AT_WORK);
        let Some(places) = self.hold(file.live(now)?).map_err(|why| file.located(&why))? else {
            return Ok(None);
        };
        (self.expiry, self.applied) = (file.next_expiry(now), now);
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.done.reloads += 1;
        state.expiry_trouble.set(None);
        Ok(Some(places))
    }

    /// Has the rules that hold spare the default gateways that the machine has now.
    fn look_at_gateways(&mut self) {
        self.shared.is_seen(AT_WORK);
        let began = Instant::now();
        let found = self.port.with(|port| port.new_gateways()).flatten();
        self.gateways_due = Instant::now() + GATEWAYS.max(began.elapsed() * SHARE);
        let held = found.and_then(|gateways| {
            let Some(gateways) = gateways else { return Ok(None) };
            self.hold(self.shared.rules()).map(|places| places.map(|_| gateways))
        });
        let why = held.as_ref().err();
        if why.is_some() {
            self.gateways_due = Instant::now() + RETRY.max(began.elapsed() * SHARE);
        }
        let trouble =
            why.map(|why| format!("the default gateways that are never dropped stay as they were: {why}"));
        self.state.lock().unwrap_or_else(PoisonError::into_inner).gateways_trouble.set(trouble);
        if let Ok(Some(gateways)) = held {
            // What the next files' rules can still drop is told by these.
            if let Some(file) = &mut self.file {
                file.spared.gateways.clone_from(&gateways);
            }
            self.note(&json!({ "event": "gateways", "gateways": gateways }));
        }
    }

    /// Whether the interface has grown, queues or its MTU. The rules are set anew then, which the MSS of SYN cookies needs, and a veth: it
    /// runs a program on those queues alone that there were when it was set. What is still so after that is told.
    fn look_at_growth(&mut self) {
        self.shared.is_seen(AT_WORK);
        let Ok(outgrown) = self.port.with(|port| port.outgrown()) else { return };
        let is_known =
            self.state.lock().unwrap_or_else(PoisonError::into_inner).growth_trouble.why == outgrown;
        if is_known {
            return;
        }
        let began = Instant::now();
        let trouble = match outgrown.map(|what| (what, self.hold(self.shared.rules()))) {
            Some((what, Err(why))) => {
                self.gateways_due = Instant::now() + RETRY.max(began.elapsed() * SHARE);
                Some(format!("{what}; the program could not be set anew: {why}"))
            }
            Some((_, Ok(_))) => {
                self.shared.is_seen(AT_WORK);
                self.port.with(|port| port.outgrown()).ok().flatten()
            }
            None => None,
        };
        self.state.lock().unwrap_or_else(PoisonError::into_inner).growth_trouble.set(trouble);
    }

    /// Puts these rules in the place of those that hold. Returns where they are, and nothing when the filter ends before that.
    fn hold(&mut self, rules: Rules) -> Result<Option<Vec<RulePlace>>, String> {
        self.shared.is_seen(AT_WORK);
        let load = self.port.with(|port| port.load_rules(&rules)).flatten()?;
        let Some(loaded) = self.load(load)? else { return Ok(None) };
        let before = self.shared.rules();
        let (shared, blocks) = (&self.shared, &self.blocks);
        let places = self.port.with(|port| {
            // Loading has had its time, and to wait for the port.
            shared.is_seen(AT_WORK);
            // Whoever a rule has blocked that does the same now stays blocked.
            let stay = alike(&before, &rules);
            let stays = |(name, _): &Key| stay.contains(name.as_str());
            let told = port.set_rules(loaded, &blocks.those(stays))?.map(|Moved { queues, told }| {
                shared.bring(paired(queues));
                told
            });
            let ended = blocks.retain(stays);
            // Before anybody else has the port: what it counts it counts for these.
            shared.set(Held { rules, flows: port.sent_flows() });
            Ok::<_, String>((port.rule_places(), port.rules_missing(), ended, told))
        });
        let (places, missing, ended, told) = places.flatten()?;
        for (key, bits) in ended {
            self.note_unblocked(&key, bits);
        }
        if told.is_some() {
            // Until the worker has its queues the old rules decide. When it hangs they decide nothing either.
            let shared = Arc::clone(&self.shared);
            self.wait_until(|port| {
                shared.is_seen(AT_WORK);
                port.with(|port| port.has_moved()).unwrap_or(true)
            });
        }
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.done.blocks = self.blocks.count();
        state.nic_trouble.set(missing.map(|why| format!("{why}; it holds in XDP")));
        state.news.add_of_port(told.unwrap_or_default());
        state.news.places = places::lines(&places);
        Ok(Some(places))
    }

    /// Has rules loaded, which may take the kernel's verifier seconds. Nothing when the filter ends first: the kernel gives up with the
    /// process. A port that moves is waited for even so, since what it has opened is to be closed again.
    fn load(&mut self, load: RuleLoad) -> Result<Option<LoadedRules>, String> {
        let moves = load.moves();
        let thread = std::thread::Builder::new().name(LOADER.into()).spawn(move || load.load());
        let thread = thread.map_err(|error| format!("no thread to load rules: {error}"))?;
        let died = |_| Err("the thread that loads rules has died".into());
        if self.wait_until(|_| thread.is_finished()) {
            return thread.join().unwrap_or_else(died).map(Some);
        }
        if moves {
            drop(thread.join());
        }
        Ok(None)
    }

    /// Waits for something that takes a while. Until then the old rules hold, and sources are blocked and unblocked. False when the
    /// filter ends first.
    fn wait_until(&mut self, is_so: impl Fn(&SharedPort) -> bool) -> bool {
        let mut looked = Instant::now();
        while !is_so(&self.port) {
            if self.stop.load(Ordering::Relaxed) {
                return false;
            }
            self.shared.is_seen(SILENCE);
            std::thread::sleep(LOADING);
            if looked.elapsed() >= INTERVAL {
                looked = Instant::now();
                self.block();
                self.unblock();
            }
        }
        true
    }

    /// Has the port drop what workers have told of.
    fn block(&mut self) {
        let mut told = Vec::new();
        for waiting in &mut self.told {
            told.extend(std::iter::from_fn(|| waiting.pop().ok()).take(MOST_WAITING));
        }
        if told.is_empty() {
            return;
        }
        let (generation, rules) = (self.shared.generation(), self.shared.rules());
        for block in told.into_iter().filter(|block| block.generation == generation) {
            let Some(rule) = rules.set.rules().get(block.rule) else { continue };
            let Action::Limit(Limit { per: Per::Source { v4, v6 }, block: Some(time), .. }) = rule.action
            else {
                continue;
            };
            let key = (rule.name.clone(), block.source);
            if self.blocks.has(&key) {
                continue;
            }
            let done = self.port.with(|port| port.block(&key.0, key.1, true)).flatten();
            if let Err(why) = done {
                self.state.lock().unwrap_or_else(PoisonError::into_inner).block_trouble.set(Some(why));
                continue;
            }
            let bits = if block.source.is_ipv4() { v4 } else { v6 };
            let (who, seconds) = (Sender::Source { first: key.1, bits }.to_string(), time.as_secs());
            self.note(&json!({ "event": "block", "rule": key.0, "source": who, "seconds": seconds }));
            self.blocks.add(key, bits, time);
            let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
            state.block_trouble.set(None);
            state.done.blocked += 1;
            state.done.blocks += 1;
        }
    }

    /// Ends what has been blocked for long enough.
    fn unblock(&mut self) {
        if self.unblocking_due > Instant::now() {
            return;
        }
        let mut trouble = None;
        for (key, bits) in self.blocks.over() {
            let done = self.port.with(|port| port.block(&key.0, key.1, false)).flatten();
            if let Err(why) = done {
                let who = Sender::Source { first: key.1, bits }.to_string();
                trouble = Some(format!("{who} is still blocked by '{}': {why}", key.0));
                self.unblocking_due = Instant::now() + RETRY;
                continue;
            }
            self.blocks.remove(&key);
            self.note_unblocked(&key, bits);
            self.state.lock().unwrap_or_else(PoisonError::into_inner).done.blocks -= 1;
        }
        self.state.lock().unwrap_or_else(PoisonError::into_inner).unblock_trouble.set(trouble);
    }

    fn note_unblocked(&mut self, (rule, source): &Key, bits: u8) {
        let who = Sender::Source { first: *source, bits }.to_string();
        self.note(&json!({ "event": "unblock", "rule": rule, "source": who }));
    }

    /// Writes to the audit log: the work is done, and a log that takes nothing must not have its time.
    fn note(&mut self, event: &Value) {
        let Some(audit) = &mut self.audit else { return };
        self.shared.is_seen(SILENCE);
        self.shared.notes(true);
        let noted = audit.note(event);
        self.shared.notes(false);
        if let Err(error) = noted {
            self.set_audit_trouble(Some(format!("the audit log ends here: {error}")));
        }
    }

    /// What stands in the log is moved away by whoever asks, or there is room again.
    fn open_audit_again(&mut self) {
        let Some(audit) = &mut self.audit else { return };
        let opened = audit.open_again();
        self.set_audit_trouble(opened.err().map(|error| {
            format!("the audit log can't be opened anew, and goes on in the old file: {error}")
        }));
    }

    fn set_audit_trouble(&self, why: Option<String>) {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).audit_trouble.set(why);
    }
}

/// The names of the first rules that are none of the others', in order.
fn names_without<'a>(rules: &'a Rules, others: &Rules) -> Vec<&'a str> {
    let others = by_name(others);
    names(rules).filter(|name| !others.contains_key(name)).collect()
}

/// The names of rules that are others now in anything, in order.
fn changed<'a>(before: &Rules, now: &'a Rules) -> Vec<&'a str> {
    let old = by_name(before);
    let is_changed = |rule: &&Rule| old.get(rule.name.as_str()).is_some_and(|old| old != rule);
    now.set.rules().iter().filter(is_changed).map(|rule| rule.name.as_str()).collect()
}

/// What else of a rule file decides about packets and is not as it was, by its name there.
fn changed_besides(before: &Rules, now: &Rules) -> Vec<&'static str> {
    let (old, new) = (by_name(before), by_name(now));
    let stayed = names(before).filter(|name| new.contains_key(name));
    let is_reordered = stayed.ne(names(now).filter(|name| old.contains_key(name)));
    let parts = [
        (before.never != now.never, "never_drop"),
        (before.flows != now.flows, "established"),
        (is_reordered, "order"),
    ];
    parts.into_iter().filter_map(|(is_other, name)| is_other.then_some(name)).collect()
}

fn names(rules: &Rules) -> impl Iterator<Item = &str> {
    rules.set.rules().iter().map(|rule| rule.name.as_str())
}

fn by_name(rules: &Rules) -> HashMap<&str, &Rule> {
    rules.set.rules().iter().map(|rule| (rule.name.as_str(), rule)).collect()
}

/// Rules that do the same with the same packets now as before, by name.
fn alike<'a>(before: &Rules, now: &'a Rules) -> HashSet<&'a str> {
    let old = by_name(before);
    let does = |rule: &Rule| (rule.action, rule.dry_run);
    let is_alike = |rule: &&Rule| {
        old.get(rule.name.as_str())
            .is_some_and(|old| old.condition == rule.condition && does(old) == does(rule))
    };
    now.set.rules().iter().filter(is_alike).map(|rule| rule.name.as_str()).collect()
}

/// Queues with their numbers on the port: of each both halves, as a port with rules has them.
fn paired(queues: Vec<QueuePair>) -> Vec<Queue> {
    let numbered = queues.into_iter().enumerate();
    numbered.filter_map(|(number, QueuePair { rx, tx })| Some((number, rx?, tx?))).collect()
}

/// Who filters, and by which rules.
fn start_line(port: &dyn Port, options: &Options) -> Value {
    let mut line = rules_line("start", &options.rules, &port.rule_places());
    line["mode"] = json!(port.capabilities().mode);
    line["file"] = json!(options.file.as_ref().map(|file| &file.files[0].path));
    line["uid"] = json!(rustix::process::getuid().as_raw());
    line["login_uid"] = json!(login_uid());
    line
}

/// Who has logged in, also after `sudo`; nobody where the system has started it.
fn login_uid() -> Option<u32> {
    let text = std::fs::read_to_string("/proc/self/loginuid").ok()?;
    text.trim().parse().ok().filter(|uid| *uid != u32::MAX)
}

/// Which rules hold from now on, and where they are.
fn rules_line(event: &str, rules: &Rules, places: &[RulePlace]) -> Value {
    json!({ "event": event, "rules": rules.set.rules().len(), "places": places::placed(places) })
}

#[cfg(test)]
mod tests;
