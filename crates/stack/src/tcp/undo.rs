//! Taking back what a recovery or a timeout has changed when all that was sent again had arrived (RFC 3522, RFC 3708, RFC 4015):
//! packets had only been overtaken, or had taken their time.

use super::congestion::{Congestion, Window};
use super::connection::Connection;
use super::facts::{LOSS, RECOVERY, SACK};
use super::segment::Segment;
use super::seq::Seq;
use crate::Timestamp;
use crate::stack::Context;

/// Copies that are remembered of one recovery or timeout. Of more nobody asks whether all of them came twice.
const COPIES: usize = 64;

/// How it was before a recovery or a timeout, and what would show that it was in vain.
#[derive(Debug)]
pub(super) struct Undo {
    congestion: Congestion,
    threshold: u32,
    /// The copies that are not known to have come twice.
    copies: Vec<(Seq, Seq)>,
    /// The end of the first copy and the millisecond in which it was sent, if it was of the oldest segment that was out. Until
    /// the first acknowledgment of it.
    first: Option<(Seq, u64)>,
    copied: bool,
    /// Blocks can't show any more that nothing was lost.
    spoiled: bool,
    /// It was a timeout.
    timeout: bool,
}

impl Undo {
    /// A copy of `range` goes out; `again`: not the first one.
    fn copied(&mut self, (start, end): (Seq, Seq), again: bool, una: Seq, now: Timestamp) {
        if !self.copied && start == una {
            self.first = Some((end, now.as_millis()));
        }
        self.copied = true;
        // RFC 3708, 3 (A.3): which of several copies came twice nobody knows.
        self.spoiled |= again || self.copies.len() == COPIES;
        if !self.spoiled {
            self.copies.push((start, end));
        }
    }

    /// The peer says that it has got `range` twice.
    fn reported(&mut self, (start, end): (Seq, Seq)) {
        let before = self.copies.len();
        self.copies.retain(|(s, e)| s.before(start) || e.after(end));
        // RFC 3708, 3 (A.4): what was sent once has been doubled by the network; so may have been a copy.
        self.spoiled |= self.copies.len() == before;
    }
}

impl Connection {
    /// Remembers how it is before a recovery. Nobody can tell whether a probe's copy or one of the recovery's came twice.
    pub(super) fn remember(&self) -> Option<Box<Undo>> {
        self.undo_of(self.is_probed())
    }

    /// Remembers how it is before a timeout. When a probe has sent the last segment again, clocks can still tell whether the copy of
    /// the first one was needed, unless that is the same.
    pub(super) fn remember_timeout(&self) -> Option<Box<Undo>> {
        let probed = self.is_probed();
        let mut undo = self.undo_of(probed && self.is_one(self.nxt - self.una))?;
        (undo.spoiled, undo.timeout) = (probed, true);
        Some(undo)
    }

    fn is_probed(&self) -> bool {
        self.probe().is_some_and(|probe| probe.copy)
    }

    fn undo_of(&self, hopeless: bool) -> Option<Box<Undo>> {
        (self.facts.any(SACK) && !hopeless).then(|| {
            Box::new(Undo {
                congestion: self.congestion.clone(),
                // RFC 4015, 3.1 (0): pipe_prev
                threshold: self.window.threshold.max(self.nxt - self.una),
                copies: Vec::new(),
                first: None,
                copied: false,
                spoiled: false,
                timeout: false,
            })
        })
    }

    /// Notes that a part of what is lost is sent again.
    pub(super) fn note_copy(&mut self, range: (Seq, Seq), again: bool, now: Timestamp) {
        let una = self.una;
        if let Some(undo) = &mut self.undo {
            undo.copied(range, again, una, now);
        }
    }

    /// Takes a recovery or a timeout back if an acknowledgment shows that it was in vain. `bytes` have arrived with it, `echoed` is the
    /// millisecond in which that was sent whose clock it echoes, `reported` what it says to have come twice.
    pub(super) fn take_back(
        &mut self,
        segment: &Segment,
        reported: Option<(Seq, Seq)>,
        (bytes, echoed): (u32, Option<u64>),
        cx: &mut Context<'_>,
    ) {
        let Some(undo) = &mut self.undo else { return };
        // RFC 3522, 3.2 (5): an acknowledgment of everything without a word of what came twice may be of the copy, whose own
        // acknowledgment was lost, unless the peer is known to say such a thing.
        let told = self.mishaps.duplicates > 0 || !self.board.is_empty();
        let original = |(end, at): (Seq, u64)| {
            !segment.ack.before(end) && told && reported.is_none() && echoed.is_some_and(|echoed| echoed < at)
        };
        let mut in_vain = undo.first.is_some_and(original);
        if undo.first.is_some_and(|(end, _)| !segment.ack.before(end)) {
            undo.first = None;
        }
        if let Some(range) = reported {
            undo.reported(range);
            in_vain |= undo.copied && undo.copies.is_empty() && !undo.spoiled;
        }
        if in_vain && let Some(undo) = self.undo.take() {
            let counter = if undo.timeout {
                &mut cx.counters.tcp_timeouts_undone
            } else {
                &mut cx.counters.tcp_recoveries_undone
            };
            *counter += 1;
            self.congestion = undo.congestion;
            self.window.threshold = undo.threshold;
            // What a recovery has taken for lost makes the window no larger by being on its way: acknowledgments of it do.
            let mut out = self.pipe();
            if self.facts.take(RECOVERY) {
                self.board.recovered();
                // What was taken for lost had been overtaken (RFC 8985, 6.2, step 3).
                self.board.overtaken_since(self.una);
                self.board.expect_lost(false);
            } else if self.facts.take(LOSS) {
                self.timeouts.over(cx.now);
                // A probe's copy was late, too.
                self.board.expect_lost(true);
                out = self.pipe();
            }
            // RFC 4015, 3.1 (9): no burst; slow start leads back to where it was.
            let initial = Window::initial(self.window.mss()).congestion;
            let window = out.saturating_add(bytes.min(initial));
            self.window.congestion = self.window.congestion.max(window);
        }
    }
}
