//! TIME-WAIT: what is left of a connection whose end both know of, so that its late segments harm no other
//! (RFC 9293, 3.6.1).

use std::num::NonZeroU8;
use std::time::Duration;

use bywash_wire::{TcpFlags, TcpOptions};

use super::challenge::may_challenge;
use super::connection::Connection;
use super::emit::Bare;
use super::facts::TIMESTAMPS;
use super::segment::Segment;
use super::seq::Seq;
use crate::slab::Slab;
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
    /// Its neighbours in the [`Queue`].
    before: u32,
    behind: u32,
    pub(super) until: Timestamp,
    /// When a segment that does not belong was last answered; zero before any was.
    challenged: Timestamp,
    /// What the program wanted of segments.
    traffic_class: u8,
    hop_limit: Option<NonZeroU8>,
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
            stamp: connection.facts.any(TIMESTAMPS).then_some(connection.ts_recent),
            ts_offset: connection.ts_offset,
            before: NOBODY,
            behind: NOBODY,
            until: now + TIME_WAIT,
            challenged: Timestamp::ZERO,
            traffic_class: connection.limits.traffic_class,
            hop_limit: connection.limits.hop_limit,
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
        if !bare && (segment.is_again() || may_challenge(&mut self.challenged, cx)) {
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

    fn acknowledge(&self, cx: &mut Context<'_>) {
        #[expect(clippy::cast_possible_truncation, reason = "the clock wraps")]
        let clock = (cx.now.as_millis() as u32).wrapping_add(self.ts_offset);
        let options =
            TcpOptions { timestamps: self.stamp.map(|stamp| (clock, stamp)), ..TcpOptions::default() };
        let (flow, window) = (self.flow, self.window);
        let bare = Bare { flow, seq: self.nxt, ack: self.rcv_nxt, flags: TcpFlags::ACK, window, options };
        bare.send_marked((self.traffic_class, self.hop_limit), cx);
    }
}

/// No entry.
const NOBODY: u32 = u32::MAX;

/// In which order entries end: all wait equally long, so it is that in which they began to. They are linked, for many give way to
/// new connections long before, and are then gone.
#[derive(Debug)]
pub(super) struct Queue {
    first: u32,
    last: u32,
}

impl Queue {
    pub(super) fn new() -> Self {
        Self { first: NOBODY, last: NOBODY }
    }

    /// Puts an entry at the end.
    pub(super) fn push(&mut self, entries: &mut Slab<TimeWait>, number: u32) {
        let entry = &mut entries[number];
        (entry.before, entry.behind) = (self.last, NOBODY);
        match self.last {
            NOBODY => self.first = number,
            last => entries[last].behind = number,
        }
        self.last = number;
    }

    /// Takes an entry out, wherever it stands.
    pub(super) fn remove(&mut self, entries: &mut Slab<TimeWait>, number: u32) {
        let TimeWait { before, behind, .. } = entries[number];
        match before {
            NOBODY => self.first = behind,
            before => entries[before].behind = behind,
        }
        match behind {
            NOBODY => self.last = before,
            behind => entries[behind].before = before,
        }
    }

    /// The first, if its end has come.
    pub(super) fn due(&self, entries: &Slab<TimeWait>, now: Timestamp) -> Option<u32> {
        (self.first != NOBODY && entries[self.first].until <= now).then_some(self.first)
    }

    pub(super) fn next_deadline(&self, entries: &Slab<TimeWait>) -> Option<Timestamp> {
        (self.first != NOBODY).then(|| entries[self.first].until)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn entries_end_in_the_order_in_which_they_began(steps in prop::collection::vec((0u8..4, 0usize..8), 1..80)) {
            let (mut entries, mut queue, mut model) = (Slab::<TimeWait>::new(256), Queue::new(), VecDeque::new());
            for (second, (action, n)) in (1..).zip(steps) {
                let now = Timestamp::from_nanos(second * 1_000_000_000);
                match action {
                    0 | 1 => {
                        let number = entries.take().unwrap();
                        entries[number].until = now;
                        queue.push(&mut entries, number);
                        model.push_back((number, now));
                    }
                    2 => if let Some((number, _)) = model.remove(n) {
                        queue.remove(&mut entries, number);
                        entries.give(number);
                    }
                    _ => if let Some(number) = queue.due(&entries, Timestamp::from_nanos(now.as_nanos() / 2)) {
                        prop_assert!(model.front().unwrap().1.as_nanos() <= now.as_nanos() / 2);
                        queue.remove(&mut entries, number);
                        entries.give(number);
                        prop_assert_eq!(model.pop_front().map(|(number, _)| number), Some(number));
                    }
                }
                prop_assert_eq!(queue.next_deadline(&entries), model.front().map(|(_, at)| *at));
            }
            while let Some(number) = queue.due(&entries, Timestamp::from_nanos(u64::MAX)) {
                queue.remove(&mut entries, number);
                prop_assert_eq!(model.pop_front().map(|(number, _)| number), Some(number));
            }
            prop_assert!(model.is_empty());
        }
    }
}
