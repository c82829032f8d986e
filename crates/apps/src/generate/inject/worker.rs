//! The loop that injects: what one worker has the kernel do with its program.
//!
//! Each call of the kernel runs the program on as many packets as are due, or, flat out, as many as take [`CALL_NS`]: it
//! is not left before, so this is how long a stop may have to wait.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use bywash_port::QueueCounters;
use bywash_sys::bpf::{
    BpfError, InTrampoline, LoadError, Map, MapKind, MapSpec, Program, ProgramKind, ProgramSpec, TestInput,
};
use bywash_sys::clock;
use bywash_sys::shared::{Mapping, Word};
use bywash_sys::worker::{Task, Turn};

use super::program::{self, Image, KERNEL_BATCH, Maps, Place};
use crate::generate::schedule::{self, Schedule};
use crate::generate::share::Share;
use crate::generate::worker::{Figures, Timing};
use crate::live::Live;
use crate::report::Dial;

/// How long a call may take: a setup of some microseconds is nothing beside it, and Ctrl-C is answered at once.
const CALL_NS: u64 = 10_000_000;

/// Packets of the first call, whose time says how many the next ones may have.
const FIRST: u64 = 1024;

/// Most packets of a call.
const MOST: u64 = 1 << 20;

/// The name of what is loaded.
const NAME: &str = "bywash_inject";

/// What one worker has in the kernel. It is gone with this.
pub(super) struct Loaded {
    /// `None` when we may not make namespaces: then each run costs what this spares.
    _place: Option<InTrampoline>,
    program: Program,
    /// Kept for as long as the program may look into it.
    _interface: Map,
    memory: Arc<Mapping>,
    packet: Vec<u8>,
}

impl Loaded {
    /// Loads what makes one worker's packets for the interface with this number.
    ///
    /// # Errors
    /// When the kernel refuses, or the program would be too long.
    pub(super) fn new(share: &Share, stream: u16, interface: u32) -> Result<Self, String> {
        let about = |error: BpfError| error.to_string();
        let image = Image::new(share);
        let value_size = u32::try_from(image.bytes.len()).unwrap_or(u32::MAX);
        let spec = MapSpec {
            kind: MapKind::Array,
            name: "bywash_packets",
            key_size: 4,
            value_size,
            entries: 1,
            mappable: true,
        };
        let state = Map::create(&spec).map_err(about)?;
        state.update(&0_u32.to_ne_bytes(), &image.bytes).map_err(about)?;
        let spec =
            MapSpec { kind: MapKind::DevMap, name: "bywash_to", value_size: 4, mappable: false, ..spec };
        let to = Map::create(&spec).map_err(about)?;
        to.update(&0_u32.to_ne_bytes(), &interface.to_ne_bytes()).map_err(about)?;
        let maps = Maps { state: state.as_raw_fd(), interface: to.as_raw_fd() };
        let program =
            program::program(share, &image, stream, maps).map_err(|_| TOO_MANY.to_owned())?.to_words();
        let spec = ProgramSpec { kind: ProgramKind::XdpFrags, name: NAME, instructions: &program };
        let program = Program::load(&spec).map_err(|error: LoadError| error.to_string())?;
        Ok(Self {
            _place: InTrampoline::put(&program).ok(),
            program,
            _interface: to,
            memory: state.map_memory().map_err(about)?,
            packet: share.plan.body[..share.plan.longest()].to_vec(),
        })
    }

    fn word(&self, place: Place) -> io::Result<Word<AtomicU64>> {
        Word::u64_at(&self.memory, place as usize)
    }
}

const TOO_MANY: &str =
    "so many fields make a program too long for the kernel: let fewer vary, or send by a PORT";

/// One worker's share of the work.
pub(super) struct Injector {
    loaded: Loaded,
    sent: Word<AtomicU64>,
    refused: Word<AtomicU64>,
    bytes: Word<AtomicU64>,
    stamped: Word<AtomicU64>,
    clock: Word<AtomicU64>,
    number: usize,
    batch: u32,
    /// Packets to send; `None` for no end.
    count: Option<u64>,
    /// As fast as it goes when `None`.
    schedule: Option<Schedule>,
    end: Option<u64>,
    timing: Timing,
    /// Packets that a call may have.
    most: u64,
    /// Why it ended before its time.
    failure: Option<String>,
    live: Live<Figures>,
}

impl Injector {
    /// # Errors
    /// When the map has not the size it was made with.
    pub(super) fn new(loaded: Loaded, number: usize, batch: usize, count: Option<u64>) -> io::Result<Self> {
        Ok(Self {
            sent: loaded.word(Place::Sent)?,
            refused: loaded.word(Place::Refused)?,
            bytes: loaded.word(Place::Bytes)?,
            stamped: loaded.word(Place::Stamped)?,
            clock: loaded.word(Place::Clock)?,
            loaded,
            number,
            batch: u32::try_from(batch).unwrap_or(KERNEL_BATCH).min(KERNEL_BATCH),
            count,
            schedule: None,
            end: None,
            timing: Timing::default(),
            most: FIRST,
            failure: None,
            live: Live::new(Figures { number, ..Figures::default() }),
        })
    }

    /// When to send, and when to end, in nanoseconds of `CLOCK_MONOTONIC`.
    pub(super) fn set_times(&mut self, schedule: Option<Schedule>, end: Option<u64>) {
        self.schedule = schedule;
        self.end = end;
    }

    /// How long the gaps are, and how late packets leave.
    pub(super) fn dials(&self) -> [Dial; 2] {
        self.timing.dials()
    }

    pub(super) fn live(&self) -> Live<Figures> {
        self.live.clone()
    }

    /// The last figures, and why it ended before its time.
    pub(super) fn close(self) -> (Figures, Option<String>) {
        (self.figures(), self.failure)
    }

    fn figures(&self) -> Figures {
        let counters = QueueCounters {
            packets: self.sent.load(Relaxed),
            bytes: self.bytes.load(Relaxed),
            ..QueueCounters::default()
        };
        let missed = self.schedule.as_ref().map_or(0, Schedule::missed);
        let overtime = self.schedule.as_ref().map_or(0, Schedule::overtime);
        Figures { number: self.number, counters, missed, overtime, in_flight: 0 }
    }

    /// How many packets are due, as many as a call may have at most.
    fn due(&mut self, now: u64) -> u64 {
        let most = self.most.min(self.count.unwrap_or(u64::MAX));
        let Some(schedule) = &mut self.schedule else {
            // Near the end, no more than there is time for.
            let Some(end) = self.end else { return most };
            let share = u128::from(most) * u128::from(end - now) / u128::from(CALL_NS);
            return u64::try_from(share).unwrap_or(most).clamp(1, most);
        };
        let first = schedule.first_due(now);
        let most = usize::try_from(most).unwrap_or(usize::MAX);
        let due = schedule.take_due(now, self.end.unwrap_or(u64::MAX), most);
        if due > 0 {
            self.timing.note(now, first, due);
        }
        due as u64
    }

    /// Has the kernel make so many packets.
    fn inject(&mut self, due: u64) {
        let (sent, refused) = (self.sent.load(Relaxed), self.refused.load(Relaxed));
        self.clock.store(clock_difference(), Relaxed);
        self.stamped.store(0, Relaxed);
        let result = self.loaded.program.test_run(&TestInput {
            packet: &self.loaded.packet,
            repeat: u32::try_from(due).unwrap_or(u32::MAX),
            live: true,
            batch: self.batch,
            ..TestInput::default()
        });
        let done = self.sent.load(Relaxed) - sent;
        if let Some(left) = &mut self.count {
            *left = left.saturating_sub(done);
        }
        if let Some(schedule) = &mut self.schedule {
            schedule.put_back(due.saturating_sub(done));
        }
        if self.refused.load(Relaxed) > refused {
            self.failure = Some("it is gone: it was removed or moved to another namespace".into());
        }
        match result {
            Ok(output) => {
                let each = u64::try_from(output.duration.as_nanos()).unwrap_or(u64::MAX).max(1);
                self.most = (CALL_NS / each).clamp(u64::from(KERNEL_BATCH), MOST);
            }
            // A signal came: what was done is counted.
            Err(error) if error.source.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => self.failure = Some(error.to_string()),
        }
    }
}

/// What makes `CLOCK_REALTIME` of `CLOCK_MONOTONIC`. Both are turned at the same rate, so it holds until somebody sets
/// the clock; it is asked for again with each call.
fn clock_difference() -> u64 {
    let before = clock::monotonic();
    let real = clock::realtime();
    let after = clock::monotonic();
    real.wrapping_sub(before + (after - before) / 2)
}

impl Task for Injector {
    fn turn(&mut self) -> Turn {
        let now = clock::monotonic();
        let is_over = schedule::is_over(self.schedule.as_mut(), self.end, now);
        if is_over || self.count == Some(0) || self.failure.is_some() {
            return Turn::Done;
        }
        let due = self.due(now);
        if due == 0 {
            return Turn::Idle;
        }
        self.inject(due);
        let figures = self.figures();
        self.live.publish(|to| *to = figures);
        Turn::Busy
    }

    fn arm(&mut self) -> bool {
        true
    }

    fn wake_fds<'a>(&'a self, _: &mut Vec<BorrowedFd<'a>>) {}

    fn next_deadline(&self, now: u64) -> Option<u64> {
        let due = self.schedule.as_ref().map_or(now, Schedule::next_due);
        Some(self.end.map_or(due, |end| due.min(end.max(now))))
    }
}
