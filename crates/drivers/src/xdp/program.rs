//! The program of a port: made by `filter` for what this port is to take, and what it counts.

use std::mem::offset_of;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::atomic::{
    AtomicU64,
    Ordering::{Relaxed, Release},
};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use bywash_filter::rules::MOST_RULES;
use bywash_filter::xdp::{
    Count, Heartbeat, NeverTake, RULES_AT, Steering, Take, Verdict, XdpBuff, pass_program,
};
use bywash_filter::{Expression, Hook, xdp};
use bywash_frame::FRAME_DATA;
use bywash_port::Counter;
use bywash_sys::bpf::{
    BpfError, LoadError, Map, MapKind, MapSpec, OUR_PROGRAM, Program, ProgramKind, ProgramSpec, jiffies,
    kernel_types,
};
use bywash_sys::shared::{Mapping, Word};
use bywash_sys::xsk::Socket;

/// After so long without a call of `rx` a process counts as hung, and its packets stay with the kernel.
const HUNG: Duration = Duration::from_millis(500);

/// Bytes of samples that wait for whoever keeps them: some thousand.
const SAMPLE_BYTES: u32 = 4 << 20;

/// What the program and we share.
pub(super) struct Maps {
    /// At XDP.
    sockets: Option<Map>,
    /// Bytes of the longest packet that they take.
    longest: u32,
    heartbeat: Map,
    queues: u32,
    /// The program decides about packets of other queues, too.
    decides_others: bool,
    counters: Arc<Map>,
    /// Where samples are kept.
    samples: Option<Arc<Map>>,
    beats: Arc<Mapping>,
}

/// A queue's heartbeat: shows the program that somebody takes its packets.
pub(super) struct Beat {
    word: Word<AtomicU64>,
    /// Until when the program does not look at that again.
    until: Word<AtomicU64>,
    count: u64,
    /// 0 while it stands still.
    step: u64,
}

impl Beat {
    /// Once more.
    #[inline]
    pub(super) fn beat(&mut self) {
        self.count = self.count.wrapping_add(self.step);
        self.word.store(self.count, Relaxed);
    }

    /// Goes on, or stands still whoever calls, as when somebody hangs.
    pub(super) fn go_on(&mut self, goes_on: bool) {
        self.step = u64::from(goes_on);
    }

    /// Nobody is there any more, from the next packet on.
    pub(super) fn stop(&self) {
        self.word.store(0, Relaxed);
        // Who sees that sees the beat, too.
        self.until.store(0, Release);
    }
}

impl Maps {
    /// Maps for a program there, with so many heartbeats, and with counters for rules if there are any.
    pub(super) fn create(hook: Hook, queues: u32, has_rules: bool) -> Result<Self, BpfError> {
        let counters = RULES_AT + if has_rules { u32::try_from(MOST_RULES).unwrap_or(u32::MAX) } else { 0 };
        let counters = map(MapKind::PerCpuArray, "bywash_counters", size_of::<Count>(), counters)?;
        Self::with_counters(hook, queues, Arc::new(counters))
    }

    /// For a program at XDP that counts and draws where the one of these maps does.
    pub(super) fn at_xdp(&self, queues: u32) -> Result<Self, BpfError> {
        let maps = Self::with_counters(Hook::Xdp, queues, Arc::clone(&self.counters))?;
        Ok(Self { samples: self.samples.clone(), ..maps })
    }

    fn with_counters(hook: Hook, queues: u32, counters: Arc<Map>) -> Result<Self, BpfError> {
        // One entry, which the program finds without a call.
        let beats = size_of::<Heartbeat>() * queues as usize;
        let heartbeat = map(MapKind::Array, "bywash_beat", beats, 1)?;
        let sockets = match hook {
            Hook::Xdp => Some(map(MapKind::XskMap, "bywash_sockets", 4, queues)?),
            Hook::Tcx => None,
        };
        Ok(Self {
            sockets,
            longest: u32::try_from(FRAME_DATA).unwrap_or(u32::MAX),
            counters,
            samples: None,
            beats: heartbeat.map_memory()?,
            heartbeat,
            queues,
            decides_others: false,
        })
    }

    /// The same with a ring for what rules draw, if that is wanted.
    pub(super) fn with_samples(self, wanted: bool) -> Result<Self, BpfError> {
        if !wanted {
            return Ok(self);
        }
        let (kind, name) = (MapKind::RingBuf, "bywash_samples");
        let entries = SAMPLE_BYTES;
        let ring =
            Map::create(&MapSpec { kind, name, key_size: 0, value_size: 0, entries, mappable: false })?;
        Ok(Self { samples: Some(Arc::new(ring)), ..self })
    }

    /// The ring for what rules draw.
    pub(super) fn ring(&self) -> Option<&Map> {
        self.samples.as_deref()
    }

    /// The same for sockets that take packets of several frames: of as many as there are.
    pub(super) fn with_chains(self) -> Self {
        Self { longest: u32::MAX, ..self }
    }

    /// The same for a port that has all queues: what the program alone decides it decides of those that come later, too.
    pub(super) fn deciding_others(self) -> Self {
        Self { decides_others: true, ..self }
    }

    /// From now on the queue's packets go to this socket.
    pub(super) fn add_socket(&self, queue: u32, socket: &Socket) -> Result<(), BpfError> {
        self.sockets.as_ref().map_or(Ok(()), |sockets| sockets.update_fd(queue, socket.as_fd()))
    }

    /// From now on the queue's packets stay with the kernel. The kernel does the same by itself for a closed socket.
    pub(super) fn remove_socket(&self, queue: u32) {
        // When it is not there any more, nothing is left to be done.
        self.sockets.as_ref().and_then(|sockets| sockets.delete(&queue.to_ne_bytes()).ok());
        if let Ok(beat) = self.silent(queue) {
            beat.stop();
        }
    }

    /// The heartbeat of a queue, which has beaten once: a queue just opened is as good as one just called.
    pub(super) fn beat(&self, queue: u32) -> std::io::Result<Beat> {
        let mut beat = self.silent(queue)?;
        beat.beat();
        Ok(beat)
    }

    /// The same before it has beaten: there is no worker yet.
    pub(super) fn silent(&self, queue: u32) -> std::io::Result<Beat> {
        let begin = queue as usize * size_of::<Heartbeat>();
        let [word, until] = [offset_of!(Heartbeat, beat), offset_of!(Heartbeat, until)]
            .map(|field| Word::u64_at(&self.beats, begin + field));
        Ok(Beat { word: word?, until: until?, count: 0, step: 1 })
    }

    /// Whether a queue's heart has beaten, and was not stopped.
    pub(super) fn has_beaten(&self, queue: u32) -> bool {
        self.silent(queue).is_ok_and(|beat| beat.word.load(Relaxed) != 0)
    }

    /// Packets and bytes of the counter with this number.
    pub(super) fn counted(&self, number: u32) -> [u64; 2] {
        self.counters.sum::<2>(number).unwrap_or_default()
    }

    pub(super) fn descriptors(&self) -> xdp::Maps {
        xdp::Maps {
            sockets: self.sockets.as_ref().map_or(-1, AsRawFd::as_raw_fd),
            longest: self.longest,
            heartbeat: self.heartbeat.as_raw_fd(),
            queues: self.queues,
            decides_others: self.decides_others,
            counters: self.counters.as_raw_fd(),
        }
    }

    /// What became of the packets that the program has seen.
    pub(super) fn counters(&self) -> Vec<Counter> {
        let named = |verdict: Verdict| {
            let [packets, bytes] = self.counted(verdict as u32);
            [Counter::count(verdict.name(), packets), Counter::count(bytes_name(verdict), bytes)]
        };
        Verdict::ALL.into_iter().flat_map(named).collect()
    }
}

fn map(kind: MapKind, name: &str, value_size: usize, entries: u32) -> Result<Map, BpfError> {
    let (value_size, mappable) = (u32::try_from(value_size).unwrap_or(u32::MAX), kind == MapKind::Array);
    Map::create(&MapSpec { kind, name, key_size: 4, value_size, entries, mappable })
}

fn bytes_name(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Taken => "taken_bytes",
        Verdict::Left => "left_bytes",
        Verdict::NeverTake => "never_take_bytes",
        Verdict::Hung => "hung_bytes",
        Verdict::NoSocket => "no_socket_bytes",
        Verdict::TooLong => "too_long_bytes",
    }
}

/// Loads the program that gives packets to the sockets in `maps`: all of them, or those that match.
pub(super) fn load(
    maps: &Maps,
    only: Option<&Expression>,
    never_take: Option<NeverTake>,
) -> Result<Program, String> {
    let steering = Steering {
        take: only.map_or(Take::All, Take::Matching),
        never_take,
        maps: maps.descriptors(),
        hung_after_jiffies: hung_after(),
        buff: buff(),
    };
    let program = steering.program().map_err(|error| error.to_string())?;
    load_words(Hook::Xdp, OUR_PROGRAM, &program.to_words()).map_err(|error| error.to_string())
}

/// How many jiffies a worker may be silent.
pub(super) fn hung_after() -> u64 {
    jiffies(HUNG)
}

/// How programs find a packet's length without a call, where this kernel lets them.
pub(super) fn buff() -> Option<XdpBuff> {
    static FOUND: LazyLock<Option<XdpBuff>> = LazyLock::new(|| {
        let buff = kernel_types().and_then(|types| XdpBuff::new(&types))?;
        load_words(Hook::Xdp, OUR_PROGRAM, &buff.trial_program().to_words()).ok()?;
        Some(buff)
    });
    *FOUND
}

/// Loads the program that leaves everything to the kernel: what some drivers want before they send without copies.
pub(super) fn load_pass() -> Result<Program, String> {
    let loaded = load_words(Hook::Xdp, &format!("{OUR_PROGRAM}_pass"), &pass_program().to_words());
    loaded.map_err(|error| error.to_string())
}

/// Loads a program that runs there.
pub(super) fn load_words(hook: Hook, name: &str, instructions: &[u64]) -> Result<Program, LoadError> {
    let kind = match hook {
        Hook::Xdp => ProgramKind::XdpFrags,
        Hook::Tcx => ProgramKind::SchedCls,
    };
    let spec = ProgramSpec { kind, name, instructions };
    Program::load(&spec)
}
