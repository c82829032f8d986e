//! What a service has done, for who looks at it from outside.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use bywash_sys::clock::monotonic;

use crate::sockets::Ended;

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
            /// Bytes of payload received by each stream, of a service that has streams.
            streams: OnceLock<Vec<AtomicU64>>,
            first_wrong: OnceLock<String>,
            first_unopened: OnceLock<String>,
            unwritten_because: OnceLock<String>,
            unsent_because: OnceLock<String>,
            put_off_because: OnceLock<String>,
            began: OnceLock<u64>,
            ended: OnceLock<u64>,
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

impl Counters {
    /// There are so many streams.
    pub(crate) fn has_streams(&self, count: usize) {
        self.0.streams.get_or_init(|| (0..count).map(|_| AtomicU64::new(0)).collect());
    }

    /// Payload that the stream of this number has received.
    pub(crate) fn add_to_stream(&self, number: usize, received: u64) {
        if let Some(stream) = self.0.streams.get().and_then(|streams| streams.get(number)) {
            stream.fetch_add(received, Ordering::Relaxed);
        }
    }

    /// Bytes of payload that each stream has received.
    pub fn streams(&self) -> Vec<u64> {
        let streams = self.0.streams.get().map_or(&[][..], Vec::as_slice);
        streams.iter().map(|received| received.load(Ordering::Relaxed)).collect()
    }

    /// A connection of a client is open: from the first one on there is something to measure.
    pub(crate) fn begins(&self) {
        self.0.began.get_or_init(monotonic);
    }

    /// All that a client was to do is done, or it is made to end before.
    pub(crate) fn ends(&self) {
        self.0.ended.get_or_init(monotonic);
    }

    /// When a client's first connection was open, and when it had done all or was made to end, if it has. By the machine's monotonic
    /// clock in nanoseconds: whoever looks from outside hears of both later.
    pub fn measured(&self) -> Option<(u64, Option<u64>)> {
        self.0.began.get().map(|began| (*began, self.0.ended.get().copied()))
    }

    /// An answer that was wrong, and how many requests are lost with it.
    pub(crate) fn wrong(&self, answer: String, lost: u64) {
        self.0.first_wrong.get_or_init(|| answer);
        self.add(Counted { wrong: lost, ..Counted::default() });
    }

    /// A connection that could not be opened on our side, and why.
    pub(crate) fn unopened(&self, why: String) {
        self.0.first_unopened.get_or_init(|| why);
        self.add(Counted { unopened: 1, ..Counted::default() });
    }

    /// What came could not be written where it was to go, and why.
    pub(crate) fn unwritten(&self, why: String) {
        self.0.unwritten_because.get_or_init(|| why);
        self.add(Counted { unwritten: 1, ..Counted::default() });
    }

    /// What was to be sent was not, and why.
    pub(crate) fn unsent(&self, why: String) {
        self.0.unsent_because.get_or_init(|| why);
        self.add(Counted { unsent: 1, ..Counted::default() });
    }

    /// Peers have to wait, for the kernel gave nothing for the next connection, and why.
    pub(crate) fn put_off(&self, why: String) {
        self.0.put_off_because.get_or_init(|| why);
        self.add(Counted { put_off: 1, ..Counted::default() });
    }

    /// What was wrong first.
    pub fn first_wrong(&self) -> Option<&str> {
        self.0.first_wrong.get().map(String::as_str)
    }

    /// Why a connection could not be opened on our side, at first.
    pub fn first_unopened(&self) -> Option<&str> {
        self.0.first_unopened.get().map(String::as_str)
    }

    /// Why something could not be written, at first.
    pub fn unwritten_because(&self) -> Option<&str> {
        self.0.unwritten_because.get().map(String::as_str)
    }

    /// Why something could not be sent, at first.
    pub fn unsent_because(&self) -> Option<&str> {
        self.0.unsent_because.get().map(String::as_str)
    }

    /// Why peers had to wait, at first.
    pub fn put_off_because(&self) -> Option<&str> {
        self.0.put_off_because.get().map(String::as_str)
    }
}

impl Counted {
    /// So many connections or requests that were lost because a connection has ended so.
    pub(crate) fn lost(ended: Ended, lost: u64) -> Self {
        let none = Self::default();
        match ended {
            Ended::InOrder => Self { cut_short: lost, ..none },
            Ended::Refused => Self { refused: lost, ..none },
            Ended::Reset => Self { reset: lost, ..none },
            Ended::TimedOut => Self { timed_out: lost, ..none },
            Ended::Unreachable => Self { unreachable: lost, ..none },
        }
    }

    /// Connections that failed, requests lost with them, and answers that were wrong.
    pub fn errors(&self) -> u64 {
        let Self {
            refused,
            reset,
            timed_out,
            unreachable,
            cut_short,
            unopened,
            wrong,
            unwritten,
            unsent,
            ..
        } = self;
        refused + reset + timed_out + unreachable + cut_short + unopened + wrong + unwritten + unsent
    }
}

/// The numbers of one service. Clones are the same numbers.
#[derive(Clone, Debug, Default)]
pub struct Counters(Arc<Numbers>);

counted! {
    /// Connections that were opened, by either end.
    connections: saturating_add,
    /// Requests that were answered.
    requests: saturating_add,
    /// Of those the ones whose answer was that there is no such value.
    missed: saturating_add,
    /// Bytes of payload received.
    received: saturating_add,
    /// Bytes of payload sent.
    sent: saturating_add,
    /// Connections that nobody took, or requests lost with one, as in the next five.
    refused: saturating_add,
    /// The peer broke it off.
    reset: saturating_add,
    /// No answer of TCP for too long, or of the server.
    timed_out: saturating_add,
    /// The host does not answer, or no route leads there.
    unreachable: saturating_add,
    /// The peer ended it in order, though it owed an answer.
    cut_short: saturating_add,
    /// It could not be opened on our side.
    unopened: saturating_add,
    /// Answers that were wrong, and requests lost with their connections.
    wrong: saturating_add,
    /// Connections of which not all that came could be written where it was to go.
    unwritten: saturating_add,
    /// Connections by which not all was sent that was to be: it could not be read, or the run has ended.
    unsent: saturating_add,
    /// Times that peers had to wait, for the kernel had no descriptor or no memory for a connection.
    put_off: saturating_add,
    /// Requests that have been due. In a closed loop each is due when it is sent.
    due: saturating_add,
    /// Requests that were handed to a connection.
    asked: saturating_add,
    /// Streams of a download that nobody had asked for, so that they are no answer, and that their server has ended in order.
    ran_out: saturating_add,
    /// Streams that were left at the end of the run.
    left: saturating_add,
    /// Requests that were handed to a connection and failed with it. With those answered and unanswered they are all that were due.
    failed: saturating_add,
    /// A server that was given up, for nothing but failures came of it any more.
    given_up: saturating_add,
    /// How long it took to send them, in nanoseconds. Known at the end, and only of requests with times of their own.
    asking_ns: max,
    /// How far behind its schedule that was at last, in nanoseconds.
    late_ns: max,
    /// Requests that were due or under way at the end.
    unanswered: saturating_add,
    /// Connections that were still being opened at the end, and none before in their place.
    never_opened: saturating_add,
    /// How long the slowest answer took, in nanoseconds. Known at the end.
    slowest_ns: max,
    /// How long the oldest of `unanswered` has waited, in nanoseconds.
    oldest_ns: max,
}
