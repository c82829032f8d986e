//! The rules of a port: their program and its maps, their counters, and how one set takes the place of another.
//!
//! Each set has maps of its own for its lists, filled before its program is attached; the program is then changed in one
//! step, so that no packet is decided by half a set. Counters lie in one map for as long as the port is open.

use std::fmt::Display;
use std::net::IpAddr;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;

use bywash_filter::rules::{
    Action, BlockKey, InNic, Limit, MapSet, Rest, Rule, RuleProgram, RuleSet, SentFlows, SetKey6, SynCookies,
    in_nic,
};
use bywash_filter::xdp::{NeverTake, RULES_AT, Take};
use bywash_filter::{Expression, Hook, ebpf};
use bywash_port::{Counter, RuleCount, RuleId, Rules};
use bywash_sys::bpf::{BpfError, Link, LoadError, Map, MapKind, MapSpec, OUR_PROGRAM, Program};
use bywash_sys::sysctl;
use rustix::io::Errno;

use super::flows::Flows;
use super::guard::Guard;
use super::own::Own;
use super::program::{self, Maps};
use super::slots::Slots;
use super::verify::NotVerified;

/// The rules that a port runs.
pub(super) struct Ruled {
    never_take: NeverTake,
    /// What the rules themselves leave to the kernel.
    never: Vec<Expression>,
    scope: Scope,
    set: Arc<RuleSet>,
    slots: Slots,
    /// What limits have blocked, where there is one that does.
    blocks: Option<Map>,
    /// For what SYNs are answered, where a rule does that.
    own: Option<Own>,
    /// Established flows, where a rule asks for them.
    flows: Option<Flows>,
    place: Place,
}

/// What rules must know of the interface, and where their program runs.
#[derive(Clone)]
pub(super) struct Place {
    pub(super) hook: Hook,
    /// The interface's number.
    pub(super) interface: u32,
    pub(super) mtu: u32,
    /// At TCX, too, `len` must be what it is on the wire.
    pub(super) as_on_the_wire: bool,
    /// Why XDP can't give packets to user space, and what to do, where that is so.
    pub(super) no_sockets: Option<String>,
}

/// Which packets rules are about, and what becomes of those that they do not decide.
#[derive(Clone, Debug)]
pub(super) enum Scope {
    /// About those that match, all when absent; the rest is the kernel's.
    Filter(Option<Expression>),
    /// About all; what they do not decide goes to our queue, if it matches.
    Steer(Option<Expression>),
    /// About all; what they do not decide goes to our queue, and what they may not decide about, too.
    SteerEverything,
}

impl Scope {
    /// What rules are about; everything when absent.
    fn only(&self) -> Option<&Expression> {
        match self {
            Self::Filter(only) => only.as_ref(),
            Self::Steer(_) | Self::SteerEverything => None,
        }
    }

    fn rest(&self) -> Rest<'_> {
        match self {
            Self::Filter(_) => Rest::Kernel,
            Self::Steer(only) => Rest::Ours(only.as_ref().map_or(Take::All, Take::Matching)),
            Self::SteerEverything => Rest::Everything,
        }
    }
}

/// Most sources that are blocked at once.
const MOST_BLOCKS: usize = 1 << 16;

impl Ruled {
    /// Loads the program of the first rules.
    pub(super) fn load(
        maps: &Maps,
        rules: &Rules,
        scope: Scope,
        never_take: &NeverTake,
        place: Place,
    ) -> Result<(Self, Program), String> {
        let ruled = Self {
            never_take: NeverTake::default(),
            never: Vec::new(),
            scope,
            set: Arc::clone(&rules.set),
            slots: Slots::default(),
            blocks: None,
            own: None,
            flows: None,
            place,
        };
        ruled.next(maps, rules, never_take.clone(), None)
    }

    /// Loads the program of other rules, for another list of what stays, or for the MTU that the interface has now, where it is known;
    /// the counters of rules that stay go on.
    pub(super) fn next(
        &self,
        maps: &Maps,
        rules: &Rules,
        never_take: NeverTake,
        mtu: Option<u32>,
    ) -> Result<(Self, Program), String> {
        let place = Place { mtu: mtu.unwrap_or(self.place.mtu), ..self.place.clone() };
        self.next_at(place, maps, rules, never_take)
    }

    /// The interface's number.
    pub(super) fn interface(&self) -> u32 {
        self.place.interface
    }

    /// The MTU that answers to SYNs are made for, where there are some.
    pub(super) fn answered_mtu(&self) -> Option<u32> {
        let answers = |rule: &Rule| rule.action == Action::SynCookie;
        self.set.rules().iter().any(answers).then_some(self.place.mtu)
    }

    /// The same elsewhere, by maps that have the same counters.
    pub(super) fn next_at(
        &self,
        place: Place,
        maps: &Maps,
        rules: &Rules,
        never_take: NeverTake,
    ) -> Result<(Self, Program), String> {
        if let Some(why) = place.refusal(rules, self.scope.only()) {
            return Err(why);
        }
        let slots = self.slots.with(&rules.set, |slot| maps.counted(RULES_AT + slot));
        let numbers = slots.numbers(&rules.set);
        let lists = Lists::create(&rules.set, &numbers).map_err(|error| error.to_string())?;
        let flows = Flows::open(&rules.set, &rules.flows, place.interface, maps, self.flows.as_ref())?;
        let never = [&[never_take.expression()], &rules.never[..]].concat();
        let program = RuleProgram {
            hook: place.hook,
            rules: &rules.set,
            slots: &numbers,
            only: self.scope.only(),
            never: &never,
            rest: self.scope.rest(),
            maps: maps.descriptors(),
            sets: lists.descriptors(),
            samples: maps.ring().map(AsRawFd::as_raw_fd),
            hung_after_jiffies: program::hung_after(),
            buff: program::buff(),
            cookies: syn_cookies(&rules.set, place.mtu)?.unwrap_or_default(),
            flows: flows.as_ref().map(Flows::map),
        };
        let program = load(&program).map_err(|error| error.to_string())?;
        let (never, scope, set) = (rules.never.clone(), self.scope.clone(), Arc::clone(&rules.set));
        let Lists { blocks, own, .. } = lists;
        Ok((Self { never_take, never, scope, set, slots, blocks, own, flows, place }, program))
    }

    /// Has SYNs answered for what is the machine's now.
    pub(super) fn look_at_own(&self, guard: &mut Guard) {
        if let Some(own) = &self.own
            && let Some(keys) = guard.own(self.place.interface)
        {
            own.set(&keys);
        }
    }

    /// Its program decides in the place of the one before: what was counted until now was for the rules of that.
    pub(super) fn settle(&mut self, maps: &Maps) {
        self.slots.settle(|slot| maps.counted(RULES_AT + slot));
    }

    /// Why the program of these rules can't be where this one is.
    pub(super) fn unfit(&self, rules: &Rules) -> Option<String> {
        self.place.unfit(rules, self.scope.only())
    }

    /// What stays whatever rules say.
    pub(super) fn never_take(&self) -> &NeverTake {
        &self.never_take
    }

    /// The rules, in order.
    pub(super) fn rules(&self) -> &[Rule] {
        self.set.rules()
    }

    /// What a NIC can do of each rule.
    pub(super) fn in_nic(&self) -> Vec<InNic> {
        let never = [&[self.never_take.sent()], &self.never[..]].concat();
        in_nic(&self.set, self.scope.only(), &never)
    }

    /// Has a limit drop what comes from a source, of which it has had so many packets dropped before.
    pub(super) fn block(&self, rule: &str, source: IpAddr, packets: u64) -> Result<(), String> {
        self.change_blocks(rule, source, |blocks, key| blocks.update(key, &packets.to_ne_bytes()))
    }

    /// Ends that.
    pub(super) fn unblock(&self, rule: &str, source: IpAddr) -> Result<(), String> {
        self.change_blocks(rule, source, |blocks, key| blocks.delete(key).map(drop))
    }

    fn change_blocks(
        &self,
        rule: &str,
        source: IpAddr,
        change: impl FnOnce(&Map, &[u8]) -> Result<(), BpfError>,
    ) -> Result<(), String> {
        let Some(blocks) = &self.blocks else { return Err(format!("the rule '{rule}' blocks nobody")) };
        let key = BlockKey { slot: self.slots.number(rule), source }.to_bytes();
        change(blocks, &key).map_err(|error| match error.is(Errno::TOOBIG.raw_os_error()) {
            true => format!("{MOST_BLOCKS} sources are blocked, which is the most: others are limited alone"),
            false => error.to_string(),
        })
    }

    /// Blocks what the rules before these have blocked, and counts on. Before its program decides, so that nothing of it gets through.
    pub(super) fn keep_blocked(&self, before: &Self, blocked: &[(String, IpAddr)]) -> Result<(), String> {
        let keep = |(rule, source): &(String, IpAddr)| {
            self.block(rule, *source, before.blocked_packets(rule, *source))
        };
        blocked.iter().try_for_each(keep)
    }

    /// Packets that have been dropped since a limit has a source dropped.
    pub(super) fn blocked_packets(&self, rule: &str, source: IpAddr) -> u64 {
        let key = BlockKey { slot: self.slots.number(rule), source }.to_bytes();
        let mut packets = [0; 8];
        let found = self.blocks.as_ref().map(|blocks| blocks.lookup(&key, &mut packets));
        if let Some(Ok(true)) = found { u64::from_ne_bytes(packets) } else { 0 }
    }

    /// Who knows which flows are established, where a rule asks for that.
    pub(super) fn sent_flows(&self) -> Option<Arc<dyn SentFlows>> {
        self.flows.as_ref().map(Flows::sent)
    }

    /// The place of what notes established flows, where a rule asks for them.
    pub(super) fn notes(&self) -> Option<&Arc<Link>> {
        self.flows.as_ref().map(Flows::link)
    }

    /// The rules with the numbers of their counters, in order.
    pub(super) fn numbered(&self) -> impl Iterator<Item = (&Rule, u32)> {
        self.set.rules().iter().zip(self.slots.numbers(&self.set))
    }

    /// What the port counts for the rules as a whole.
    pub(super) fn counters(&self, maps: &Maps) -> Vec<Counter> {
        self.flows.iter().flat_map(|_| Flows::counters(maps)).collect()
    }

    /// What each rule has counted, in order.
    pub(super) fn counts(&self, maps: &Maps) -> Vec<RuleCount> {
        self.slots.counts(&self.set, |slot| maps.counted(RULES_AT + slot))
    }

    /// What rules have counted that hold no longer.
    pub(super) fn past_counts(&self, maps: &Maps) -> Vec<(RuleId, RuleCount)> {
        self.slots.past_counts(|slot| maps.counted(RULES_AT + slot))
    }
}

/// Loads the program of rules; one that takes longer for a packet where the verifier finds the usual one too large.
pub(super) fn load(rules: &RuleProgram<'_>) -> Result<Program, NotVerified> {
    let refused = |error: &dyn Display| NotVerified::Refused(error.to_string());
    let name = format!("{OUR_PROGRAM}_rules");
    let load = |program: &ebpf::Program| program::load_words(rules.hook, &name, &program.to_words());
    let usual = rules.program().map_err(|error| refused(&error))?;
    let mut loaded = load(&usual);
    if let Err(LoadError::TooLarge { .. }) = loaded
        && let Some(shorter) = rules.shorter_than(&usual).map_err(|error| refused(&error))?
    {
        loaded = load(&shorter);
    }
    loaded.map_err(|error| match error {
        LoadError::TooLarge { .. } => refused(&rules.too_large()),
        LoadError::Verifier { .. } => refused(&error),
        LoadError::Right { .. } | LoadError::Bpf(_) => NotVerified::NotAsked(error.to_string()),
    })
}

/// What answers to SYNs say, as the kernel would; `None` when no rule answers them.
///
/// The kernel's settings are read each time: who changes them reads the rules again.
pub(super) fn syn_cookies(set: &RuleSet, mtu: u32) -> Result<Option<SynCookies>, String> {
    let Some(rule) = set.rules().iter().find(|rule| rule.action == Action::SynCookie) else {
        return Ok(None);
    };
    let last = |name: &str| -> Result<u32, String> {
        let text = sysctl::read(name).map_err(|error| format!("the rule '{}': {error}", rule.name))?;
        // Where there are several numbers, the last is the largest.
        Ok(text.split_whitespace().last().and_then(|number| number.parse().ok()).unwrap_or(0))
    };
    if last("net.ipv4.tcp_syncookies")? == 0 {
        return Err(format!(
            "the rule '{}' needs the kernel's own SYN cookies: sysctl net.ipv4.tcp_syncookies=2 (1 gives them only while a \
             listener's queue is full)",
            rule.name
        ));
    }
    let mss = [40, 60].map(|headers| u16::try_from(mtu.saturating_sub(headers)).unwrap_or(u16::MAX));
    // As tcp_select_initial_window of the kernel, for listeners whose buffers nobody has set.
    let space = last("net.ipv4.tcp_rmem")?.max(last("net.core.rmem_max").unwrap_or(0)).max(1);
    let scale = u8::try_from(space.ilog2().saturating_sub(15).min(14)).unwrap_or(0);
    let keeps = last("net.ipv4.tcp_timestamps")? == PLAIN_TIMESTAMPS
        && last("net.ipv4.tcp_sack")? != 0
        && last("net.ipv4.tcp_window_scaling")? != 0;
    Ok(Some(SynCookies { mss, window_scale: keeps.then_some(scale) }))
}

/// `net.ipv4.tcp_timestamps`: without a secret offset, which nobody but the kernel could add.
const PLAIN_TIMESTAMPS: u32 = 2;

/// The maps of a set's lists. The program that uses them keeps them.
pub(super) struct Lists {
    array: Option<Map>,
    hash6: Option<Map>,
    blocks: Option<Map>,
    own: Option<Own>,
}

impl Lists {
    pub(super) fn create(set: &RuleSet, slots: &[u32]) -> Result<Self, BpfError> {
        let tables = set.tables();
        let map = |kind, name, key_size, value_size: usize, entries: usize| {
            let [value_size, entries] = [value_size, entries].map(|n| u32::try_from(n).unwrap_or(u32::MAX));
            let mappable = kind == MapKind::Array;
            Map::create(&MapSpec { kind, name, key_size, value_size, entries, mappable })
        };
        let array = if tables.array_len() > 0 {
            let array = map(MapKind::Array, "bywash_lists", 4, tables.array_len(), 1)?;
            let bytes: Vec<u8> = tables.array(slots).into_iter().flat_map(u64::to_ne_bytes).collect();
            array.map_memory()?.copy_in(0, &bytes);
            Some(array)
        } else {
            None
        };
        let hash6 = if tables.count6() > 0 {
            let key_size = u32::try_from(SetKey6::SIZE).unwrap_or(u32::MAX);
            let hash6 = map(MapKind::Hash, "bywash_lists6", key_size, 4, tables.count6())?;
            for (key, class) in tables.entries6() {
                hash6.update(&key.to_bytes(), &class.to_ne_bytes())?;
            }
            Some(hash6)
        } else {
            None
        };
        let blocks = |rule: &Rule| matches!(rule.action, Action::Limit(Limit { block: Some(_), .. }));
        let blocks = if set.rules().iter().any(blocks) {
            let key_size = u32::try_from(BlockKey::SIZE).unwrap_or(u32::MAX);
            Some(map(MapKind::Hash, "bywash_blocks", key_size, 8, MOST_BLOCKS)?)
        } else {
            None
        };
        Ok(Self { array, hash6, blocks, own: Own::create(set)? })
    }

    pub(super) fn descriptors(&self) -> MapSet {
        let descriptor = |map: &Option<Map>| map.as_ref().map_or(-1, Map::as_raw_fd) as RawFd;
        MapSet {
            array: descriptor(&self.array),
            hash6: descriptor(&self.hash6),
            blocks: descriptor(&self.blocks),
            own: self.own.as_ref().map_or(-1, Own::as_raw_fd),
        }
    }
}
