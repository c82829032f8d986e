//! What the thread that looks after the rules and the workers show each other.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bywash_port::Rules;
use bywash_port::filter::rules::SentFlows;
use bywash_sys::clock;

use super::worker::Queue;

/// The rules that hold now, for the workers, and whether somebody looks after them.
pub(super) struct Shared {
    generation: AtomicU64,
    /// From when on the control thread hangs if it is not seen before, in nanoseconds of `CLOCK_MONOTONIC`.
    seen_until: AtomicU64,
    /// What it is at is to write to the audit log.
    notes: AtomicBool,
    held: Mutex<Held>,
    /// Workers that have called their queues.
    begun: AtomicUsize,
    /// In the place of those that a worker has, until it takes them.
    brought: Mutex<Vec<Queue>>,
}

/// The rules, and what the port knows for them.
#[derive(Clone)]
pub(super) struct Held {
    pub(super) rules: Rules,
    /// Who knows which flows are established.
    pub(super) flows: Option<Arc<dyn SentFlows>>,
}

impl Shared {
    /// With the rules that the port was opened with. The thread is seen within this time.
    pub(super) fn new(held: Held, at_work: Duration) -> Arc<Self> {
        let shared = Self {
            generation: AtomicU64::new(1),
            seen_until: AtomicU64::new(0),
            notes: AtomicBool::new(false),
            held: Mutex::new(held),
            begun: AtomicUsize::new(0),
            brought: Mutex::default(),
        };
        shared.is_seen(at_work);
        Arc::new(shared)
    }

    /// A worker has called its queues.
    pub(super) fn begin(&self) {
        self.begun.fetch_add(1, Ordering::Relaxed);
    }

    /// How many workers have.
    pub(super) fn begun(&self) -> usize {
        self.begun.load(Ordering::Relaxed)
    }

    /// Whether the control thread has not been seen for so long at `now` that it hangs, or has died.
    #[inline]
    pub(super) fn is_left_alone(&self, now: u64) -> bool {
        now > self.seen_until.load(Ordering::Relaxed)
    }

    /// The control thread is there, and will be seen again within this time.
    pub(super) fn is_seen(&self, again: Duration) {
        let again = u64::try_from(again.as_nanos()).unwrap_or(u64::MAX);
        self.seen_until.store(clock::monotonic().saturating_add(again), Ordering::Relaxed);
    }

    /// Says that the control thread writes to the audit log from now on, or no longer.
    pub(super) fn notes(&self, notes: bool) {
        self.notes.store(notes, Ordering::Relaxed);
    }

    /// What the control thread may hang at, as a question to who looks for it.
    pub(super) fn may_wait_for(&self) -> &'static str {
        match self.notes.load(Ordering::Relaxed) {
            true => "does the audit log take what is written?",
            false => "does somebody hold the kernel's lock of network interfaces, RTNL?",
        }
    }

    /// Changes with the rules.
    #[inline]
    pub(super) fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// The rules that hold now, with all that belongs to them.
    pub(super) fn held(&self) -> Held {
        self.held.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(super) fn rules(&self) -> Rules {
        self.held().rules
    }

    /// Queues that rules have brought along, which are set next. There is one worker then.
    pub(super) fn bring(&self, queues: Vec<Queue>) {
        *self.brought.lock().unwrap_or_else(PoisonError::into_inner) = queues;
    }

    /// Those that no worker has yet.
    pub(super) fn take_brought(&self) -> Vec<Queue> {
        std::mem::take(&mut *self.brought.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub(super) fn set(&self, held: Held) {
        *self.held.lock().unwrap_or_else(PoisonError::into_inner) = held;
        self.generation.fetch_add(1, Ordering::Release);
    }
}
