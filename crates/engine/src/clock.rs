//! The instance's time: nanoseconds since it began, for stacks, and of the machine's clock, for workers.

use bywash_stack::Timestamp;
use bywash_sys::clock::monotonic;

/// Where the instance's time begins. Copies are the same clock.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock(u64);

impl Clock {
    pub(crate) fn start() -> Self {
        Self(monotonic())
    }

    #[inline]
    pub(crate) fn now(self) -> Timestamp {
        self.at(monotonic())
    }

    /// The machine's time as a stack has it.
    #[inline]
    pub(crate) fn at(self, monotonic: u64) -> Timestamp {
        Timestamp::from_nanos(monotonic.saturating_sub(self.0))
    }

    /// A stack's time as the machine has it.
    #[inline]
    pub(crate) fn monotonic(self, at: Timestamp) -> u64 {
        self.0.saturating_add(at.as_nanos())
    }
}
