//! A set of rules in the kernel, with maps of its own.

use std::os::fd::AsRawFd;

use bywash_filter::rules::{
    Action, BlockKey, Condition, FlowMap, MapSet, OwnKey, Rest, Rule, RuleProgram, RuleSet, SetKey6,
    SynCookies,
};
use bywash_filter::xdp::{Count, Heartbeat, Maps, RULES_AT, Verdict, XdpBuff};
use bywash_filter::{Expression, Hook, NoNames, Options};
use bywash_lab::skip;
use bywash_sys::bpf::{
    LoadError, Map, MapKind, MapSpec, Program, ProgramKind, ProgramSpec, TestInput, kernel_types,
};

pub(crate) fn rights() -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        skip("bpf(2) needs root");
    }
    root
}

/// Where the programs of rules run.
pub(crate) const HOOKS: [Hook; 2] = [Hook::Xdp, Hook::Tcx];

/// Which program of a set it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    Usual,
    /// The one for when the kernel finds that one too large.
    Shorter,
}

/// A loaded set of rules, and its maps.
pub(crate) struct Loaded {
    hook: Hook,
    program: Program,
    counters: Map,
    heartbeat: Map,
    pub(crate) blocks: Map,
    /// What rules draw.
    pub(crate) samples: Map,
    _kept: Vec<Map>,
}

pub(crate) fn map(kind: MapKind, key_size: u32, value_size: usize, entries: usize) -> Map {
    let [value_size, entries] = [value_size, entries].map(|number| u32::try_from(number).unwrap());
    let mappable = kind == MapKind::Array;
    Map::create(&MapSpec { kind, name: "test_rules", key_size, value_size, entries, mappable }).unwrap()
}

pub(crate) fn load(kind: ProgramKind, program: &bywash_filter::ebpf::Program) -> Program {
    let spec = ProgramSpec { kind, name: "rules_test", instructions: &program.to_words() };
    Program::load(&spec).unwrap_or_else(|error| panic!("{error}\n{program}"))
}

impl Loaded {
    pub(crate) fn new(hook: Hook, set: &RuleSet, never: &[Expression]) -> Self {
        Self::with_flows(hook, set, never, None)
    }

    /// With a table of established flows.
    pub(crate) fn with_flows(
        hook: Hook,
        set: &RuleSet,
        never: &[Expression],
        flows: Option<FlowMap>,
    ) -> Self {
        Self::try_with(hook, set, never, (flows, Rest::Kernel, Form::Usual))
            .unwrap_or_else(|error| panic!("{error}"))
    }

    /// Where packets that no rule decides may be ours. There is no socket for them.
    pub(crate) fn with_rest(set: &RuleSet, never: &[Expression], rest: Rest<'_>) -> Self {
        Self::try_with(Hook::Xdp, set, never, (None, rest, Form::Usual))
            .unwrap_or_else(|error| panic!("{error}"))
    }

    /// `None` where the program has more paths than the kernel follows, as a few rules by chance may have.
    pub(crate) fn unless_too_large(hook: Hook, set: &RuleSet, form: Form) -> Option<Self> {
        match Self::try_with(hook, set, &[], (None, Rest::Kernel, form)) {
            Err(LoadError::TooLarge { .. }) => None,
            loaded => Some(loaded.unwrap_or_else(|error| panic!("{error}"))),
        }
    }

    fn try_with(
        hook: Hook,
        set: &RuleSet,
        never: &[Expression],
        (flows, rest, form): (Option<FlowMap>, Rest<'_>, Form),
    ) -> Result<Self, LoadError> {
        let rules = set.rules().len();
        let sockets = map(MapKind::XskMap, 4, 4, 1);
        let heartbeat = map(MapKind::Array, 4, size_of::<Heartbeat>(), 1);
        let counters = map(MapKind::PerCpuArray, 4, size_of::<Count>(), RULES_AT as usize + rules);
        let slots: Vec<u32> = (0..u32::try_from(rules).unwrap()).collect();
        let words = set.tables().array(&slots);
        let array = map(MapKind::Array, 4, 8 * words.len(), 1);
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
        array.update(&[0; 4], &bytes).unwrap();
        let hash6 =
            map(MapKind::Hash, u32::try_from(SetKey6::SIZE).unwrap(), 4, set.tables().count6().max(1));
        for (key, class) in set.tables().entries6() {
            hash6.update(&key.to_bytes(), &class.to_ne_bytes()).unwrap();
        }
        let blocks = map(MapKind::Hash, u32::try_from(BlockKey::SIZE).unwrap(), 8, 4);
        let own = map(MapKind::Hash, u32::try_from(OwnKey::SIZE).unwrap(), 4, 4);
        let samples = map(MapKind::RingBuf, 0, 0, 4096);
        let program = RuleProgram {
            hook,
            rules: set,
            slots: &slots,
            only: None,
            never,
            rest,
            maps: Maps {
                sockets: sockets.as_raw_fd(),
                longest: 2048,
                heartbeat: heartbeat.as_raw_fd(),
                queues: 1,
                decides_others: false,
                counters: counters.as_raw_fd(),
            },
            sets: MapSet {
                array: array.as_raw_fd(),
                hash6: hash6.as_raw_fd(),
                blocks: blocks.as_raw_fd(),
                own: own.as_raw_fd(),
            },
            samples: Some(samples.as_raw_fd()),
            hung_after_jiffies: 1 << 20,
            buff: kernel_types().and_then(|types| XdpBuff::new(&types)),
            cookies: SynCookies::LONGEST,
            flows,
        };
        let usual = program.program().unwrap();
        let chosen = match form {
            Form::Usual => usual,
            Form::Shorter => program.shorter_than(&usual).unwrap().unwrap_or(usual),
        };
        let instructions = chosen.to_words();
        let kind = match hook {
            Hook::Xdp => ProgramKind::XdpFrags,
            Hook::Tcx => ProgramKind::SchedCls,
        };
        let spec = ProgramSpec { kind, name: "rules_test", instructions: &instructions };
        let program = Program::load(&spec)?;
        let kept = vec![sockets, array, hash6, own];
        let loaded = Self { hook, program, counters, heartbeat, blocks, samples, _kept: kept };
        loaded.beat(1);
        Ok(loaded)
    }

    pub(crate) fn beat(&self, beat: u64) {
        let mut entry = [0; size_of::<Heartbeat>()];
        entry[..8].copy_from_slice(&beat.to_ne_bytes());
        self.heartbeat.update(&[0; 4], &entry).unwrap();
    }

    /// Whether a packet, which stays as it is, is dropped; else it is passed.
    pub(crate) fn drops(&self, packet: &[u8]) -> bool {
        let output = self.program.test_run(&TestInput { packet, ..TestInput::default() }).unwrap();
        assert_eq!(output.packet, packet);
        let verdict = output.verdict.cast_signed();
        assert!([self.hook.drops(), self.hook.passes()].contains(&verdict), "{verdict}");
        verdict == self.hook.drops()
    }

    pub(crate) fn counters(&self) -> &Map {
        &self.counters
    }

    /// Packets and bytes.
    pub(crate) fn counted(&self, rule: u32) -> [u64; 2] {
        self.counters.sum::<2>(RULES_AT + rule).unwrap()
    }

    pub(crate) fn verdict(&self, verdict: Verdict) -> u64 {
        self.counters.sum::<2>(verdict as u32).unwrap()[0]
    }
}

pub(crate) fn rule(name: &str, action: Action, condition: Condition) -> Rule {
    Rule { name: name.into(), condition, action, sample: None, expires: None, dry_run: false }
}

pub(crate) fn expression(text: &str) -> Option<Expression> {
    Some(Expression::new(text, &Options { names: &NoNames, netmask: None }).unwrap())
}
