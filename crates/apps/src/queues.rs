//! The queues of a port before they have workers, and the memory that the workers get.

use std::time::Duration;

use bywash_port::frame::{Arena, FRAME_DATA, MAX_FRAMES, Pool};
use bywash_port::{Capabilities, Port, QueuePair, RxQueue, TxQueue};
use bywash_sys::clock;

use crate::crew::WorkerOptions;

/// The queues of one port that are not dealt out yet, by halves; each with its number on the port.
#[derive(Default)]
pub(crate) struct Halves {
    pub(crate) rx: Vec<(usize, Box<dyn RxQueue>)>,
    pub(crate) tx: Vec<(usize, Box<dyn TxQueue>)>,
}

impl Halves {
    /// All queues of `port`.
    pub(crate) fn of(port: &mut dyn Port) -> Self {
        let mut halves = Self::default();
        for (number, QueuePair { rx, tx }) in port.queues().into_iter().enumerate() {
            halves.rx.extend(rx.map(|rx| (number, rx)));
            halves.tx.extend(tx.map(|tx| (number, tx)));
        }
        halves
    }

    /// Those that are left, to be closed.
    pub(crate) fn into_pairs(self) -> impl Iterator<Item = QueuePair> {
        let rx = self.rx.into_iter().map(|(_, rx)| QueuePair { rx: Some(rx), tx: None });
        rx.chain(self.tx.into_iter().map(|(_, tx)| QueuePair { rx: None, tx: Some(tx) }))
    }
}

/// Closes queues; their frames go to `pool`.
pub(crate) fn close_queues(queues: impl IntoIterator<Item = QueuePair>, pool: &mut Pool) {
    for QueuePair { rx, tx } in queues {
        if let Some(tx) = tx {
            tx.close(pool);
        }
        if let Some(rx) = rx {
            rx.close(pool);
        }
    }
}

/// How long the last packets may take to leave at the end: a link that went down never completes them.
const DRAIN_NS: u64 = 500_000_000;

/// How long nothing has come when the ring of a port that need not know of the end is dry. A block of a `packet:` that is not
/// full is handed over when a timer of the kernel has run out, which may take two of its ticks, of 10 ms at most.
pub(crate) const DRY_NS: u64 = 25_000_000;

/// How long a wait for the last packets is no rest: links complete them soon.
const RESTLESS_NS: u64 = 10_000_000;

/// Waits until all that was handed to `tx` has left: for a bounded time, but where it goes to a file, which is not closed before.
pub(crate) fn drain(tx: &mut dyn TxQueue, pool: &mut Pool, is_file: bool) {
    let begun = clock::monotonic();
    let mut now = begun;
    while tx.in_flight() > 0 && (is_file || now - begun < DRAIN_NS) {
        tx.flush(pool);
        rest(now - begun);
        now = clock::monotonic();
    }
}

/// Leaves the core to others between two looks at the last packets, which have been waited for so long.
pub(crate) fn rest(waited: u64) {
    if waited < RESTLESS_NS {
        std::thread::yield_now();
    } else {
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Closes queues that have no worker yet, and so no pool either.
///
/// # Errors
/// When `arena` has no pool left to put their frames in.
pub(crate) fn close_unused(
    queues: impl IntoIterator<Item = QueuePair>,
    arena: &'static Arena,
) -> Result<(), String> {
    close_queues(queues, &mut arena.pool(0).map_err(|error| error.to_string())?);
    Ok(())
}

/// A pool for each of `workers`.
///
/// # Errors
/// When the arena has not so many frames.
pub(crate) fn pools(
    arena: &'static Arena,
    workers: usize,
    options: &WorkerOptions,
) -> Result<Vec<Pool>, String> {
    let share = options.frames.unwrap_or(arena.unused() / workers);
    (0..workers).map(|_| arena.pool(share)).collect::<Result<_, _>>().map_err(|error| error.to_string())
}

/// Bytes of the longest packet that can be sent on a port of those that begin like this one, without FCS.
pub(crate) fn longest_packet(capabilities: &Capabilities, packet: &[u8]) -> usize {
    let frames = if capabilities.chains { MAX_FRAMES } else { 1 };
    capabilities.longest_sent(packet).min(frames * FRAME_DATA)
}
