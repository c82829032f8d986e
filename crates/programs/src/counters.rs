//! What a service has done, for who looks at it from outside.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The numbers of one service. Clones are the same numbers.
#[derive(Clone, Debug, Default)]
pub struct Counters(Arc<[AtomicU64; 5]>);

/// The numbers as they were at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counted {
    /// Connections that were opened, by either end.
    pub connections: u64,
    /// Requests that were answered.
    pub requests: u64,
    /// Bytes of payload received.
    pub received: u64,
    /// Bytes of payload sent.
    pub sent: u64,
    /// Connections that failed, and answers that were wrong.
    pub errors: u64,
}

impl Counters {
    /// Adds what was done in a turn. One service writes, so that nothing is lost between reading and writing.
    pub(crate) fn add(&self, done: Counted) {
        let Counted { connections, requests, received, sent, errors } = done;
        for (number, more) in self.0.iter().zip([connections, requests, received, sent, errors]) {
            if more > 0 {
                number.store(number.load(Ordering::Relaxed) + more, Ordering::Relaxed);
            }
        }
    }

    /// What was done so far.
    pub fn read(&self) -> Counted {
        let [connections, requests, received, sent, errors] =
            std::array::from_fn(|i| self.0[i].load(Ordering::Relaxed));
        Counted { connections, requests, received, sent, errors }
    }
}
