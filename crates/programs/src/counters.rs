//! What a service has done, for who looks at it from outside.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Numbers, each with how two of them are made one: of two moments, or of two services.
macro_rules! counted {
    ($($(#[$what:meta])* $name:ident: $join:ident,)+) => {
        /// The numbers as they were at one moment, or what was done in a turn.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct Counted {
            $($(#[$what])* pub $name: u64,)+
        }

        impl Counted {
            /// Both together.
            #[must_use]
            pub fn and(self, other: Self) -> Self {
                Self { $($name: self.$name.$join(other.$name),)+ }
            }
        }

        #[derive(Debug, Default)]
        struct Numbers {
            $($name: AtomicU64,)+
        }

        impl Counters {
            /// Adds what was done in a turn. One service writes, so that nothing is lost between reading and writing.
            #[inline]
            pub(crate) fn add(&self, done: Counted) {
                $(if done.$name > 0 {
                    let so_far = self.0.$name.load(Ordering::Relaxed);
                    self.0.$name.store(so_far.$join(done.$name), Ordering::Relaxed);
                })+
            }

            /// What was done so far.
            pub fn read(&self) -> Counted {
                Counted { $($name: self.0.$name.load(Ordering::Relaxed),)+ }
            }
        }
    };
}

/// The numbers of one service. Clones are the same numbers.
#[derive(Clone, Debug, Default)]
pub struct Counters(Arc<Numbers>);

counted! {
    /// Connections that were opened, by either end.
    connections: saturating_add,
    /// Requests that were answered.
    requests: saturating_add,
    /// Bytes of payload received.
    received: saturating_add,
    /// Bytes of payload sent.
    sent: saturating_add,
    /// Connections that failed, and answers that were wrong.
    errors: saturating_add,
    /// Requests that have been due. In a closed loop each is due when it is sent.
    due: saturating_add,
    /// Requests that were handed to a connection.
    asked: saturating_add,
    /// How long it took to send them, in nanoseconds. Known at the end, and only of requests with times of their own.
    asking_ns: max,
    /// How far behind its schedule that was at last, in nanoseconds.
    late_ns: max,
    /// Requests that were due or under way at the end.
    unanswered: saturating_add,
    /// How long the slowest answer took, in nanoseconds. Known at the end.
    slowest_ns: max,
    /// How long the oldest of `unanswered` has waited, in nanoseconds.
    oldest_ns: max,
}
