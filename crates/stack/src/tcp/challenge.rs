//! Segments that do not fit are answered by an acknowledgment, which makes an honest peer show itself (RFC 5961, 7: not too many).

use std::time::Duration;

use super::connection::Connection;
use super::facts::ACK_NOW;
use super::segment::Segment;
use crate::Timestamp;
use crate::stack::Context;

/// At most one challenge in this time, each connection for itself: a limit that all share would tell a stranger
/// whether he has guessed right (CVE-2016-5696).
const CHALLENGE: Duration = Duration::from_millis(500);

/// Whether there may be another challenge, and notes it; `last` is when there was one, zero before any.
pub(super) fn may_challenge(last: &mut Timestamp, cx: &mut Context<'_>) -> bool {
    let may = *last == Timestamp::ZERO || cx.now.since(*last) >= CHALLENGE;
    if may {
        *last = cx.now;
    }
    cx.counters.tcp_challenge_acks += u64::from(may);
    cx.counters.tcp_challenge_acks_limited += u64::from(!may);
    may
}

impl Connection {
    /// Sends a challenge, unless there has just been one.
    pub(super) fn challenge(&mut self, cx: &mut Context<'_>) {
        let may = may_challenge(&mut self.challenged, cx);
        self.facts.add_if(ACK_NOW, may);
    }

    /// Answers a segment that is not acceptable. Two ends that disagree must not answer each other's bare acknowledgments for
    /// ever; what comes again is answered, for our acknowledgment was lost.
    pub(super) fn answer(&mut self, segment: &Segment, cx: &mut Context<'_>) {
        if segment.is_again() {
            self.facts.add(ACK_NOW);
        } else {
            self.challenge(cx);
        }
    }
}
