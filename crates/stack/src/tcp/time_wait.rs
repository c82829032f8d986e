//! TIME-WAIT: what is left of a connection whose end both know of, so that its late segments harm no other
//! (RFC 9293, 3.6.1).

use std::collections::VecDeque;
use std::time::Duration;

use bywash_wire::{TcpFlags, TcpOptions};

use super::arrive::CHALLENGE;
use super::connection::Connection;
use super::emit::Bare;
use super::segment::Segment;
use super::seq::Seq;
use crate::stack::Context;
use crate::{Flow, Timestamp};

/// Twice the longest life of a segment, which is taken for 30 s as others do (RFC 9293 says two minutes).
pub(super) const TIME_WAIT: Duration = Duration::from_secs(60);

/// All that late segments can ask for.
#[derive(Clone, Debug, Default)]
pub(super) struct TimeWait {
    pub(super) flow: Flow,
    pub(super) hash: u64,
    pub(super) nxt: Seq,
    rcv_nxt: Seq,
    window: u16,
    stamp: Option<u32>,
    ts_offset: u32,
    pub(super) until: Timestamp,
    /// When a segment that does not belong was last answered; zero before any was.
    challenged: Timestamp,
}

/// What a segment does to an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// It stays.
    Keep,
    /// It stays, and for the whole time again.
    Restart,
    /// A new connection takes its place.
    Reuse,
}

impl TimeWait {
    pub(super) fn of(connection: &Connection, now: Timestamp) -> Self {
        let window = connection.edge - connection.rcv_nxt;
        Self {
            flow: connection.flow,
            hash: connection.hash,
            nxt: connection.nxt,
            rcv_nxt: connection.rcv_nxt,
            window: u16::try_from(window >> connection.rcv_scale).unwrap_or(u16::MAX),
            stamp: connection.timestamps.then_some(connection.ts_recent),
            ts_offset: connection.ts_offset,
            until: now + TIME_WAIT,
            challenged: Timestamp::ZERO,
        }
    }

    /// Takes a segment. A reset is ignored (RFC 1337: else an old duplicate could end the wait); a SYN that is newer
    /// by its clock, or by its number, opens a new connection (RFC 6191, 2; MAY-2) where somebody listens: `listening` says
    /// whether with timestamps.
    pub(super) fn arrive(
        &mut self,
        segment: &Segment,
        listening: Option<bool>,
        cx: &mut Context<'_>,
    ) -> Verdict {
        if segment.has(TcpFlags::RST) {
            return Verdict::Keep;
        }
        if let Some(stamps) = listening.filter(|_| segment.opens()) {
            let stamp = segment.options.timestamps.filter(|_| stamps).map(|(value, _)| value);
            let newer = match (self.stamp, stamp) {
                (Some(old), Some(new)) if old != new => Seq(new).after(Seq(old)),
                (None, Some(_)) => true,
                _ => segment.seq.after(self.rcv_nxt),
            };
            if newer {
                return Verdict::Reuse;
            }
        }
        let bare = segment.length() == 0 && segment.seq == self.rcv_nxt;
        if !bare && (segment.is_again() || self.may_challenge(cx.now)) {
            self.acknowledge(cx);
        }
        if segment.has(TcpFlags::FIN) && segment.end() == self.rcv_nxt {
            Verdict::Restart
        } else {
            Verdict::Keep
        }
    }

    /// Whether a connection of our own may take its place: the peer, if it still waits as well, sees that our clock is newer
    /// (RFC 6191, 2). Linux does the same after a second (`tcp_tw_reuse`).
    pub(super) fn may_be_reused(&self, now: Timestamp) -> bool {
        self.stamp.is_some() && now + (TIME_WAIT - Duration::from_secs(1)) >= self.until
    }

    /// As of a connection: see [`CHALLENGE`].
    fn may_challenge(&mut self, now: Timestamp) -> bool {
        let may = self.challenged == Timestamp::ZERO || now.since(self.challenged) >= CHALLENGE;
        if may {
            self.challenged = now;
        }
        may
    }

    fn acknowledge(&self, cx: &mut Context<'_>) {
        #[expect(clippy::cast_possible_truncation, reason = "the clock wraps")]
        let clock = (cx.now.as_millis() as u32).wrapping_add(self.ts_offset);
        let options =
            TcpOptions { timestamps: self.stamp.map(|stamp| (clock, stamp)), ..TcpOptions::default() };
        let (flow, window) = (self.flow, self.window);
        Bare { flow, seq: self.nxt, ack: self.rcv_nxt, flags: TcpFlags::ACK, window, options }.send(cx);
    }
}

/// When entries end, the first first: all wait equally long, so a queue is enough.
#[derive(Debug, Default)]
pub(super) struct Queue(VecDeque<(u32, Timestamp)>);

impl Queue {
    pub(super) fn push(&mut self, number: u32, until: Timestamp) {
        self.0.push_back((number, until));
    }

    /// The next that is due. An entry that was used again or began anew has another end by now: the caller compares.
    pub(super) fn pop(&mut self, now: Timestamp) -> Option<(u32, Timestamp)> {
        self.0.pop_front_if(|(_, until)| *until <= now)
    }

    pub(super) fn next_deadline(&self) -> Option<Timestamp> {
        self.0.front().map(|(_, until)| *until)
    }
}
