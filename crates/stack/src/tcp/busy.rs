//! How long a connection had something to send, and what held it back meanwhile: the peer's window, or a send buffer that was too
//! small. Linux's chronographs (`tcp_chrono_start` in `net/ipv4/tcp_output.c`).

use super::connection::{Connection, NEVER};
use super::facts::WANTS_ROOM;
use crate::Timestamp;
use crate::time::Span;

/// Why what is to be sent does not go out faster.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum HeldBy {
    /// Nothing is to be sent, or no more is out than a message that went at once.
    #[default]
    Nothing,
    /// The network, or the congestion window.
    Network,
    /// The peer's window.
    Window,
    /// The program has more, and the send buffer no room, though the network would take it.
    Buffer,
}

/// Times of one connection.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct HeldTimes {
    /// When the reason was last another.
    since: Timestamp,
    by_window: Span,
    by_buffer: Span,
}

/// The same, up to now.
pub(super) struct Times {
    /// Whatever the reason was.
    pub(super) busy: Span,
    pub(super) by_window: Span,
    pub(super) by_buffer: Span,
}

impl Connection {
    /// Something is acknowledged. A message and its answer are not held back by anything: it was busy for the `time` since it went
    /// out, or since a part of it was acknowledged.
    #[inline]
    pub(super) fn note_answer(&mut self, time: Span) {
        if self.held_by == HeldBy::Nothing {
            self.busy = self.busy + time;
        }
    }

    /// Finds out what holds it back, after all was sent that could be.
    pub(super) fn note_busy(&mut self, now: Timestamp) {
        let held_by = self.what_holds_back(now);
        if held_by != self.held_by {
            let Times { busy, by_window, by_buffer } = self.times(now);
            self.busy = busy;
            self.held_times = HeldTimes { since: now, by_window, by_buffer };
            self.held_by = held_by;
        }
    }

    fn what_holds_back(&self, now: Timestamp) -> HeldBy {
        let (unsent, room) = (self.unsent(), self.window.congestion.saturating_sub(self.pipe()));
        let next = unsent.min(self.window.mss());
        match () {
            () if self.send.len() == 0 => HeldBy::Nothing,
            () if unsent == 0 && self.facts.any(WANTS_ROOM) && room > 0 => HeldBy::Buffer,
            () if unsent == 0 && self.board.is_message_of(now) => HeldBy::Nothing,
            () if unsent > 0 && room >= next && self.usable() < next => HeldBy::Window,
            () => HeldBy::Network,
        }
    }

    /// The times up to now.
    pub(super) fn times(&self, now: Timestamp) -> Times {
        let HeldTimes { since, mut by_window, mut by_buffer } = self.held_times;
        let mut time = now.span(since);
        match self.held_by {
            // A message is counted when it is acknowledged.
            HeldBy::Nothing => {
                let out = self.stalled != NEVER && self.send.len() > 0;
                time = if out { now.span(self.stalled) } else { Span::ZERO };
            }
            HeldBy::Network => {}
            HeldBy::Window => by_window = by_window + time,
            HeldBy::Buffer => by_buffer = by_buffer + time,
        }
        Times { busy: self.busy + time, by_window, by_buffer }
    }
}
