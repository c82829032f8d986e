//! `xdp:` ports: AF_XDP on a kernel interface, all its queues or one.
//!
//! An XDP program made for the port decides by packet: ours, to the socket of the queue it came in on, or the kernel's,
//! as if we were not there. The frames of the arena are what the kernel receives into and sends from, in the same
//! memory for every netdev, so a packet goes from one `xdp:` port to another without a copy of ours. What can go
//! wrong with AF_XDP, and what is done about it, is listed in `docs/af-xdp-traps.md`.
//!
//! Rules that the program can decide alone may be at TCX ingress instead: then there is the program, its maps and a queue that
//! no packet comes by. From there they can move to XDP.
//!
//! Each call of `rx` is a heartbeat. While packets come in and a queue is not called for half a second, its worker counts
//! as hung and the kernel gets the packets. A worker that sleeps because nothing comes loses none: the first packet after
//! that is still its own, and wakes it.

mod back;
mod bind;
mod busy;
mod chain;
mod flows;
mod guard;
mod in_nic;
mod ingress;
mod life;
mod live;
mod load;
mod look;
mod moving;
mod ntuple;
mod open;
mod others;
mod own;
mod program;
mod rules;
mod rx;
mod samples;
mod slots;
mod spread;
mod steered;
mod tags;
mod tx;
mod unsummed;
mod verify;
mod watch;
mod whole;

use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bywash_frame::Arena;
use bywash_port::filter::rules::SentFlows;
use bywash_port::filter::xdp::LOST_SAMPLES;
use bywash_port::filter::{Expression, Hook};
use bywash_port::{
    Capabilities, Counter, LoadedRules, Moved, Port, PortName, QueuePair, RssSpread, Rule, RuleCount, RuleId,
    RuleLoad, RulePlace, Rules, Samples, SteerCount,
};
use bywash_sys::bpf::{Link, Program};
use bywash_sys::packet_socket::PacketSocket;
use bywash_sys::xsk::Statistics;

pub use bywash_sys::xsk::CopyMode;
pub use look::{memory_for, stride_for};
pub use open::open;
pub use verify::{NotVerified, verify};

use crate::{Ntuple, OpenOptions, RulesInNic, XdpMode, ZeroCopy};

use back::Back;
use busy::Deferral;
use guard::Guard;
use in_nic::Demand;
use life::Life;
use moving::{Former, Leaving, Way};
use program::Maps;
use rules::Ruled;
use samples::{Names, Ring};
use steered::Steered;
use watch::Watch;

/// Where the XDP program is attached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Attach {
    /// In the driver where it has XDP, else in the kernel's stack, with a warning.
    #[default]
    Auto,
    /// In the driver, or not at all.
    Native,
    /// In the kernel's stack, whatever the driver can.
    Generic,
}

/// Has the driver run in the worker's own calls instead of by interrupts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BusyPoll {
    /// How long a call may wait for packets, microseconds.
    pub micros: u32,
    /// Packets in one call at most.
    pub budget: u32,
}

impl Default for BusyPoll {
    /// 20 µs, and 64 packets: as many as the kernel by itself has a driver handle at once (`NAPI_POLL_WEIGHT`).
    fn default() -> Self {
        Self { micros: 20, budget: 64 }
    }
}

/// How a port is to be opened.
#[derive(Clone, Debug)]
pub struct Options {
    /// Open so many queues, from 0 on; all of them when absent.
    pub max_queues: Option<u16>,
    /// Entries in each ring, a power of two: packets that wait for us, and packets in flight. Half as many wait where nothing is copied
    /// and other packets of the queue are the kernel's.
    pub ring_size: u32,
    /// Take only the packets this matches; all of them when absent.
    pub only: Option<Expression>,
    /// Whether the NIC does its part of that, where the port has not all queues; where its driver can when absent.
    pub ntuple: Option<Ntuple>,
    /// What becomes of them. The sending halves then lead back into the kernel, to where the packets came in.
    pub rules: Option<Rules>,
    /// Where their program runs. When absent: at TCX where XDP would have packets that pass copied, as long as the rules allow it,
    /// else at XDP.
    pub hook: Option<Hook>,
    /// Somebody keeps what these draw as samples; else they draw none.
    pub samples: bool,
    /// Whether the NIC drops what these drop, where it can; it does not when absent.
    pub rules_in_nic: Option<RulesInNic>,
    /// What becomes of packets before anything else is asked of them, in the NIC where it can, else in the program; for a port
    /// without rules. What the program drops wakes nobody: while a queue is not called for half a second, it drops nothing.
    pub steer: Vec<Rule>,
    /// Copy or not.
    pub copy: CopyMode,
    /// Where the program is attached.
    pub attach: Attach,
    /// Poll the driver from the worker's own calls.
    pub busy_poll: Option<BusyPoll>,
    /// Packets may have several frames; when absent, if the MTU wants it.
    pub multi_buffer: Option<bool>,
    /// Receiving halves are wanted.
    pub rx: bool,
    /// Sending halves are wanted.
    pub tx: bool,
    /// Take all packets also of an interface that the machine itself is reached by.
    pub force: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            max_queues: None,
            ring_size: 2048,
            only: None,
            ntuple: None,
            rules: None,
            hook: None,
            samples: false,
            rules_in_nic: None,
            steer: Vec::new(),
            copy: CopyMode::default(),
            attach: Attach::default(),
            busy_poll: None,
            multi_buffer: None,
            rx: true,
            tx: true,
            force: false,
        }
    }
}

impl Options {
    /// Whether packets of a queue that the port takes from may be the kernel's, also while somebody takes them.
    fn shares(&self) -> bool {
        self.rules.is_some() || self.only.as_ref().is_some_and(|only| !only.takes_all_kinds())
    }
}

impl From<&OpenOptions> for Options {
    fn from(options: &OpenOptions) -> Self {
        let own = Self::default();
        Self {
            max_queues: options.queues,
            ring_size: options.ring.unwrap_or(own.ring_size),
            only: options.only.clone(),
            ntuple: options.ntuple,
            rules: options.rules.clone(),
            hook: options.hook,
            samples: options.samples,
            rules_in_nic: options.rules_in_nic,
            steer: options.steer.clone(),
            copy: match options.zero_copy {
                None => CopyMode::Auto,
                Some(ZeroCopy::Off) => CopyMode::Copy,
                Some(ZeroCopy::Require) => CopyMode::ZeroCopy,
            },
            attach: match options.xdp_mode {
                None => Attach::Auto,
                Some(XdpMode::Native) => Attach::Native,
                Some(XdpMode::Generic) => Attach::Generic,
            },
            busy_poll: options.busy_poll.map(|micros| BusyPoll { micros, ..BusyPoll::default() }),
            rx: !options.tx_only,
            tx: !options.rx_only,
            force: options.force,
            ..own
        }
    }
}

/// An opened `xdp:` port.
pub struct XdpPort {
    name: PortName,
    /// Where its program runs.
    hook: Hook,
    mac: Option<[u8; 6]>,
    capabilities: Capabilities,
    warnings: Vec<String>,
    queues: Vec<QueuePair>,
    lives: Vec<Arc<Life>>,
    maps: Option<Arc<Maps>>,
    /// Until somebody has it.
    samples: Option<Ring>,
    /// Whom samples are drawn for.
    names: Names,
    ruled: Option<Arc<Ruled>>,
    /// The rules by which it steers; there are no others then.
    steering: Option<Ruled>,
    /// Where there are rules that may change.
    guard: Option<Guard>,
    link: Option<Arc<Link>>,
    /// To where the rules move when others come that can't be here.
    way: Option<Way>,
    /// From where they have moved.
    leaving: Option<Leaving>,
    /// Goes when the port goes.
    back: Option<Back>,
    watch: Arc<Watch>,
    /// How flows come by its queues, where its driver tells and the port has them all.
    spread: Option<RssSpread>,
    deferral: Option<Deferral>,
    /// Goes after the program: drivers restart when it is detached.
    steered: Arc<Mutex<Steered>>,
    /// As long as it is there, packets to other stations are received.
    _others: Option<PacketSocket>,
    arena: &'static Arena,
}

/// Rules that wait for their port, with their program.
struct Loaded {
    ruled: Ruled,
    program: Program,
    rules: Rules,
}

impl XdpPort {
    /// What the user should be told once: where it is not as fast as it could be, with the cure.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// Where each part of the expression is, on a port that has not all queues, and each rule by which it steers: a line for each.
    pub fn steered(&self) -> Vec<String> {
        self.nic().told().to_vec()
    }

    /// What the NIC does for it.
    fn nic(&self) -> MutexGuard<'_, Steered> {
        self.steered.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The places of its programs.
    fn programs(&self) -> Vec<Arc<Link>> {
        let notes = self.ruled.as_deref().and_then(Ruled::notes);
        self.link.iter().chain(notes).chain(self.back.as_ref().map(Back::link)).cloned().collect()
    }

    /// Queues that were never given out have frames, too.
    fn close_what_nobody_took(&mut self) {
        let Ok(mut pool) = self.arena.pool(0) else { return };
        for QueuePair { rx, tx } in self.queues.drain(..) {
            rx.into_iter().for_each(|rx| rx.close(&mut pool));
            tx.into_iter().for_each(|tx| tx.close(&mut pool));
        }
    }
}

impl Port for XdpPort {
    fn name(&self) -> &PortName {
        &self.name
    }

    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn mac(&self) -> Option<[u8; 6]> {
        self.mac
    }

    fn spread(&self) -> Option<RssSpread> {
        self.spread.clone()
    }

    fn queues(&mut self) -> Vec<QueuePair> {
        std::mem::take(&mut self.queues)
    }

    fn counters(&self) -> Vec<Counter> {
        let mut counters = self.maps.as_ref().map_or_else(Vec::new, |maps| maps.counters());
        if let Some((ruled, maps)) = self.ruled.as_ref().zip(self.maps.as_ref()) {
            counters.extend(ruled.counters(maps));
        }
        let statistics: Vec<_> = self.lives.iter().map(|life| life.statistics()).collect();
        let sum = |field: fn(&Statistics) -> u64| statistics.iter().map(field).sum();
        let abandoned: usize = self.lives.iter().map(|life| life.abandoned()).sum();
        counters.extend([
            Counter::count("rx_dropped", sum(|s| s.rx_dropped)),
            Counter::count("rx_ring_full", sum(|s| s.rx_ring_full)),
            Counter::count("rx_fill_ring_empty", sum(|s| s.rx_fill_ring_empty)),
            Counter::count("rx_invalid_descriptors", sum(|s| s.rx_invalid_descriptors)),
            Counter::count("tx_invalid_descriptors", sum(|s| s.tx_invalid_descriptors)),
            Counter::count("tx_ring_empty", sum(|s| s.tx_ring_empty)),
            Counter::count("failed_calls", self.lives.iter().map(|life| life.failed_calls()).sum()),
            Counter::count("abandoned_frames", abandoned as u64),
        ]);
        counters.extend(self.watch.counters(|| self.programs()));
        counters
    }

    fn look_apart(&self) -> Option<Box<dyn FnOnce() + Send>> {
        let (watch, programs) = (Arc::clone(&self.watch), self.programs());
        watch.is_apart();
        Some(Box::new(move || watch.look(&programs)))
    }

    fn load_rules(&mut self, rules: &Rules) -> Result<RuleLoad, String> {
        let (Some(ruled), Some(guard), Some(maps)) = (&self.ruled, &mut self.guard, &self.maps) else {
            return Err(format!("{} was opened without rules", self.name));
        };
        // The gateways that are known are better than no new rules.
        let never_take = guard.look().unwrap_or_else(|_| ruled.never_take().clone());
        let mtu = guard.mtu(ruled.interface());
        let (ruled, maps, names) = (Arc::clone(ruled), Arc::clone(maps), self.names.clone());
        if let Some((way, why)) = self.way.clone().zip(ruled.unfit(rules)) {
            return Ok(way.load(Former { maps, names, ruled, never_take }, rules, why));
        }
        let rules = rules.clone();
        Ok(RuleLoad::new(move || {
            let (ruled, program) = ruled.next(&maps, &rules, never_take, mtu)?;
            Ok(LoadedRules(Box::new(Loaded { ruled, program, rules })))
        }))
    }

    fn set_rules(
        &mut self,
        rules: LoadedRules,
        blocked: &[(String, IpAddr)],
    ) -> Result<Option<Moved>, String> {
        // From TCX, where no limit is that could have blocked somebody.
        let rules = match self.move_to(rules) {
            Ok(moved) => return Ok(Some(moved)),
            Err(rules) => rules,
        };
        let (Some(link), Ok(loaded)) = (&self.link, rules.0.downcast::<Loaded>()) else {
            return Err(format!("{} has not loaded these rules", self.name));
        };
        let Loaded { mut ruled, program, rules } = *loaded;
        if let Some(before) = &self.ruled {
            ruled.keep_blocked(before, blocked)?;
        }
        // First the NIC: it may drop for a moment what the new rules drop and the old ones do not, but never what the new ones pass.
        let demand = Demand::of(rules.set.rules(), self.ruled.as_deref().map_or(&[], Ruled::rules));
        let before = self.nic().in_nic().change(|| ruled.in_nic(), &rules, demand)?;
        self.names.add(ruled.numbered());
        if let Some(guard) = &mut self.guard {
            ruled.look_at_own(guard);
        }
        if let Err(error) = link.update(&program) {
            self.nic().in_nic().change_back(before);
            return Err(error.to_string());
        }
        if let Some(maps) = &self.maps {
            ruled.settle(maps);
        }
        self.ruled = Some(Arc::new(ruled));
        Ok(None)
    }

    fn has_moved(&mut self) -> bool {
        self.leave()
    }

    fn new_gateways(&mut self) -> Result<Option<Vec<IpAddr>>, String> {
        let (Some(ruled), Some(guard)) = (&self.ruled, &mut self.guard) else { return Ok(None) };
        ruled.look_at_own(guard);
        let gateways = guard.look()?.gateways;
        Ok((gateways != ruled.never_take().gateways).then_some(gateways))
    }

    fn outgrown(&self) -> Option<String> {
        let of_rules = self.ruled.as_ref().map(|ruled| {
            let mtu = ruled.answered_mtu().and_then(|mtu| self.watch.other_mtu(mtu));
            self.watch.more_queues().into_iter().chain(mtu)
        });
        let all = of_rules.into_iter().flatten().chain(self.watch.lost_steering());
        all.reduce(|first, second| format!("{first}; {second}"))
    }

    fn block(&mut self, rule: &str, source: IpAddr, on: bool) -> Result<(), String> {
        match &self.ruled {
            Some(ruled) if on => ruled.block(rule, source, 0),
            Some(ruled) => ruled.unblock(rule, source),
            None => Err(format!("{} was opened without rules", self.name)),
        }
    }

    fn blocked_packets(&self, rule: &str, source: IpAddr) -> u64 {
        self.ruled.as_ref().map_or(0, |ruled| ruled.blocked_packets(rule, source))
    }

    fn sent_flows(&self) -> Option<Arc<dyn SentFlows>> {
        self.ruled.as_ref().and_then(|ruled| ruled.sent_flows())
    }

    fn samples(&mut self) -> Option<Box<dyn Samples>> {
        self.samples.take().map(|ring| Box::new(ring) as _)
    }

    fn lost_samples(&self) -> u64 {
        let maps = self.maps.as_ref().filter(|maps| maps.ring().is_some());
        maps.map_or(0, |maps| maps.counted(LOST_SAMPLES)[0])
    }

    fn rule_counts(&self) -> Vec<RuleCount> {
        match (&self.ruled, &self.maps) {
            (Some(ruled), Some(maps)) => ruled.counts(maps),
            _ => Vec::new(),
        }
    }

    fn past_rule_counts(&self) -> Vec<(RuleId, RuleCount)> {
        match (&self.ruled, &self.maps) {
            (Some(ruled), Some(maps)) => ruled.past_counts(maps),
            _ => Vec::new(),
        }
    }

    fn is_in_kernel(&self) -> bool {
        self.hook == Hook::Tcx
    }

    fn steer_counts(&self) -> Vec<SteerCount> {
        let Some((steering, maps)) = self.steering.as_ref().zip(self.maps.as_ref()) else {
            return Vec::new();
        };
        let places = self.nic().rule_places(steering.rules(), self.hook);
        let count = |(place, count): (RulePlace, RuleCount)| {
            let decider = place.decider();
            SteerCount { rule: place.rule, decider, count }
        };
        places.into_iter().zip(steering.counts(maps)).map(count).collect()
    }

    fn rules_missing(&self) -> Option<String> {
        self.nic().missing().map(str::to_owned)
    }

    fn rule_places(&self) -> Vec<RulePlace> {
        let ruled = self.ruled.as_deref().or(self.steering.as_ref());
        let rules = ruled.map(Ruled::rules).unwrap_or_default();
        self.nic().rule_places(rules, self.hook)
    }

    fn close(mut self: Box<Self>) -> Result<(), Vec<String>> {
        let mut left = Vec::new();
        self.close_what_nobody_took();
        let open = self.lives.iter().filter(|life| life.is_open()).count();
        if open > 0 {
            left.push(format!("{}: {open} queues were not closed before their port", self.name));
        }
        if let Err(error) = self.nic().before_detaching() {
            left.push(format!("{}: {error}", self.name));
        }
        let at_tcx = self.leaving.take().map(Leaving::end);
        let here = self.link.take().map(|link| link.detach());
        for error in at_tcx.into_iter().chain(here).filter_map(Result::err) {
            left.push(format!("{}: {error}", self.name));
        }
        if let Some(Err(error)) = self.deferral.take().map(Deferral::restore) {
            left.push(format!("{}: {error}", self.name));
        }
        if let Err(error) = self.nic().put_back() {
            left.push(format!("{}: {error}", self.name));
        }
        if left.is_empty() { Ok(()) } else { Err(left) }
    }
}
