//! A queue's life beyond its two halves: its socket is closed when the last half is, and only then do frames come back.
//!
//! Closing a half does not take a frame from the kernel. What proves that it has let go is that the queue can be bound
//! again: the kernel keeps it until the memory's last user, a packet in flight for one, is gone. Where that can't be
//! shown in time the frames are abandoned, which costs memory but never two owners of one frame.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bywash_frame::{Ledger, Pool};
use bywash_sys::xsk::{Kick, Probe, Socket, Statistics};

use super::program::Maps;

/// How long the kernel may take to let go of a closed socket.
const RELEASE: Duration = Duration::from_millis(500);

/// What both halves of a queue and its port share.
pub(super) struct Life {
    queue: u32,
    state: Mutex<State>,
    /// Where the queue's socket is found by packets; `None` on a port that only sends.
    maps: Option<Arc<Maps>>,
    failed_calls: AtomicU64,
}

struct State {
    /// Halves that are still open.
    halves: u8,
    /// `None` once it is closed.
    socket: Option<Arc<Socket>>,
    probe: Option<Probe>,
    /// What closed halves have lent.
    ledgers: Vec<Ledger>,
    /// What was counted until the socket was closed.
    last: Statistics,
    abandoned: usize,
}

impl Life {
    pub(super) fn new(
        queue: u32,
        halves: u8,
        socket: Arc<Socket>,
        probe: Probe,
        maps: Option<Arc<Maps>>,
    ) -> Self {
        let state = State {
            halves,
            socket: Some(socket),
            probe: Some(probe),
            ledgers: Vec::new(),
            last: Statistics::default(),
            abandoned: 0,
        };
        Self { queue, state: Mutex::new(state), maps, failed_calls: AtomicU64::new(0) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What the kernel counts of this queue's socket.
    pub(super) fn statistics(&self) -> Statistics {
        let mut state = self.state();
        if let Some(statistics) = state.socket.as_ref().and_then(|socket| socket.statistics().ok()) {
            state.last = statistics;
        }
        state.last
    }

    /// Frames that the kernel was left with.
    pub(super) fn abandoned(&self) -> usize {
        self.state().abandoned
    }

    /// Whether its receiving half, if it has one, has been called, and is not closed.
    pub(super) fn has_worker(&self) -> bool {
        self.maps.as_ref().is_none_or(|maps| maps.has_beaten(self.queue))
    }

    /// Whether a half is still open.
    pub(super) fn is_open(&self) -> bool {
        self.state().socket.is_some()
    }

    /// Keeps frames that are lent until the socket is closed: of a queue without a receiving half.
    pub(super) fn keep(&self, ledger: Ledger) {
        self.state().ledgers.push(ledger);
    }

    /// Calls to the kernel that failed for no reason we know.
    pub(super) fn failed_calls(&self) -> u64 {
        self.failed_calls.load(Relaxed)
    }

    /// Counts a call that failed.
    #[inline]
    pub(super) fn kicked(&self, result: io::Result<Kick>) -> Option<Kick> {
        match result {
            Ok(kick) => Some(kick),
            Err(_) => {
                self.failed_calls.fetch_add(1, Relaxed);
                None
            }
        }
    }

    /// From now on this queue's packets stay with the kernel.
    pub(super) fn stop_receiving(&self) {
        if let Some(maps) = &self.maps {
            maps.remove_socket(self.queue);
        }
    }

    /// One half has dropped its rings and its hold of the socket. The last one to do so closes the socket and takes all
    /// frames back.
    pub(super) fn close_half(&self, ledger: Ledger, pool: &mut Pool) {
        let mut state = self.state();
        state.ledgers.push(ledger);
        state.halves = state.halves.saturating_sub(1);
        if state.halves > 0 {
            return;
        }
        if let Some(statistics) = state.socket.as_ref().and_then(|socket| socket.statistics().ok()) {
            state.last = statistics;
        }
        let closed = state.socket.take().and_then(Arc::into_inner).map(drop).is_some();
        let probe = state.probe.take();
        let is_released = closed && probe.is_some_and(|probe| probe.is_released(RELEASE));
        for ledger in state.ledgers.drain(..).collect::<Vec<_>>() {
            if is_released {
                ledger.recover(pool);
            } else {
                state.abandoned += ledger.lent();
                ledger.abandon();
            }
        }
    }
}
