//! What is in flight: each segment that was sent, when, and what has become of it.

mod rack;

use std::collections::VecDeque;
use std::mem::offset_of;

use super::receive_buffer::length;
use super::seq::Seq;
use crate::Timestamp;
use crate::queue::{Queue, pop};
use crate::time::Span;

/// Duplicate acknowledgments that mean a loss (RFC 5681, 3.2; RFC 8985, 6.2 step 4).
pub(super) const DUPLICATES: u32 = 3;

/// Bytes of one record at most, but for the last segment in it.
const JOINED: u32 = 64 << 10;

/// Records up to which blocks make new boundaries: each costs a move of those behind it. Beyond, a block counts as far as it
/// holds whole records, so that nobody buys the time of an engine with blocks in the middle of a large window.
const RECORDS: usize = 4096;

/// What is believed of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    InFlight,
    /// It arrived, out of order.
    Sacked,
    /// To be sent again.
    Lost,
}

#[derive(Clone, Copy, Debug)]
struct Sent {
    start: Seq,
    end: Seq,
    /// When it was sent last.
    at: Timestamp,
    /// All from here up to this number has arrived, as far as it was looked at: what was sacked is passed over at once,
    /// however often the peer says so.
    skip: Seq,
    fate: Fate,
    retransmitted: bool,
}

impl Sent {
    #[inline]
    fn new(start: Seq, end: Seq, at: Timestamp) -> Self {
        Self { start, end, at, skip: start, fate: Fate::InFlight, retransmitted: false }
    }

    fn len(&self) -> u32 {
        self.end - self.start
    }
}

/// How what is out was cut when it was sent: into segments of `mss` bytes, the last of which may be shorter, and may have our FIN.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cut {
    pub(super) mss: u32,
    /// The number after our FIN, if that is out.
    pub(super) fin: Option<Seq>,
}

impl Cut {
    /// What of a record is not our FIN.
    fn without_fin(self, sent: &Sent) -> u32 {
        sent.len() - u32::from(self.fin == Some(sent.end))
    }

    /// How many segments a record is: a FIN alone is one, too.
    fn segments(self, sent: &Sent) -> u32 {
        self.without_fin(sent).div_ceil(self.mss.max(1)).max(1)
    }
}

/// One sending of a range, in the order of time.
#[derive(Clone, Copy, Debug)]
struct Sending {
    at: Timestamp,
    start: Seq,
    end: Seq,
}

/// What an acknowledgment has brought.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Delivered {
    /// Bytes that are now known to have arrived and were not before.
    pub(super) bytes: u32,
    /// Since the latest-sent segment that was never sent again; none if what was is acknowledged with it.
    pub(super) rtt: Option<Span>,
    /// Bytes that are acknowledged by blocks alone.
    pub(super) sacked: u32,
    /// How far the first segment that was overtaken and arrived now is behind the highest that had arrived, in bytes.
    pub(super) overtaken: u32,
    /// Said beforehand: the millisecond in which that was sent which the peer's clock echoes.
    pub(super) echoed: Option<u64>,
}

/// What is out, in segments.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Segments {
    /// All of them.
    pub(super) unacked: u32,
    /// Those that arrived out of order.
    pub(super) sacked: u32,
    /// Those that are to be sent again.
    pub(super) lost: u32,
    /// Those that were, and are on their way.
    pub(super) copies: u32,
}

/// All segments between the first that is not acknowledged and the last that was sent.
///
/// Nothing here looks through all of them for one acknowledgment, whatever it says: what was lost is found by the time of
/// sending (RFC 8985, 6.2: "RACK_detect_loss"), which only goes forward; the first of what is lost from where the last
/// one was; and blocks that repeat what they said before are passed over.
///
/// Behind is what each segment needs.
#[derive(Debug, Default)]
#[repr(C)]
pub(super) struct Scoreboard {
    /// What may still be found lost, the earliest first. Ranges that have arrived or were sent again stand here until
    /// they come to the front.
    sendings: VecDeque<Sending>,
    /// RACK.segs_sacked: segments that were since nothing was.
    segments_sacked: u32,
    /// Nothing before this number is lost.
    lost_from: Seq,
    /// RACK.reordering_seen: acknowledgments that showed it.
    pub(super) reordering: u32,
    /// The farthest that one was behind the highest that had arrived, in bytes.
    pub(super) overtaken: u32,
    /// RACK.reo_wnd_mult less one, and for how many recoveries more it holds.
    stretch: u32,
    persist: u8,
    /// RACK.dsack_round
    round: Option<Seq>,
    sent: Queue<Sent>,
    /// RACK.xmit_ts and RACK.end_seq: the latest-sent of the segments that have arrived.
    latest: (Timestamp, Seq),
    /// RACK.rtt
    rtt: Span,
    in_flight: u32,
    lost: u32,
    sacked: u32,
    /// RACK.fack: the highest that has arrived.
    highest: Option<Seq>,
    /// Whether `sendings` says what was sent. One record that was sent once, while nothing else was out, says it itself.
    listed: bool,
}

impl Scoreboard {
    /// Where that begins which each segment needs.
    pub(super) const HOT: usize = offset_of!(Self, sent) + Queue::<Sent>::HOT;

    /// Forgets everything, for a new connection.
    pub(super) fn reset(&mut self) {
        // The queues keep their memory; all else is zero, number by number: an entry that is made and put here would be dropped
        // as a whole first.
        let Self {
            sent,
            in_flight,
            lost,
            sacked,
            highest,
            latest,
            rtt,
            listed,
            sendings,
            segments_sacked,
            lost_from,
            reordering,
            overtaken,
            stretch,
            persist,
            round,
        } = self;
        sent.clear();
        sendings.clear();
        *listed = false;
        (*in_flight, *lost, *sacked, *highest) = (0, 0, 0, None);
        (*latest, *rtt) = Default::default();
        (*segments_sacked, *lost_from, *reordering, *overtaken) = Default::default();
        (*stretch, *persist, *round) = (0, 0, None);
    }

    #[inline]
    pub(super) fn in_flight(&self) -> u32 {
        self.in_flight
    }

    pub(super) fn has_lost(&self) -> bool {
        self.lost > 0
    }

    pub(super) fn lost(&self) -> u32 {
        self.lost
    }

    pub(super) fn sacked(&self) -> u32 {
        self.sacked
    }

    /// Something is lost, or has arrived out of order.
    #[inline]
    pub(super) fn is_disturbed(&self) -> bool {
        self.lost > 0 || self.sacked > 0
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.sent.is_empty()
    }

    /// Whether all that is out is one record that was sent now, and never before.
    pub(super) fn is_message_of(&self, now: Timestamp) -> bool {
        self.sent.only().is_some_and(|sent| sent.at == now && !sent.retransmitted)
    }

    /// No more segments are out than so many, if there are `bytes` in all and the full ones have `mss`: what goes out together is in
    /// one record as far as it is full, and nobody has to look at each.
    pub(super) fn segments_at_most(&self, bytes: u32, mss: u32) -> u32 {
        length(self.sent.len()) + bytes / mss.max(1)
    }

    /// What is out, counted in segments.
    pub(super) fn segments(&self, cut: Cut) -> Segments {
        let mut segments = Segments::default();
        for sent in self.sent.iter() {
            let n = cut.segments(sent);
            segments.unacked += n;
            match sent.fate {
                Fate::Sacked => segments.sacked += n,
                Fate::Lost => segments.lost += n,
                // Linux counts what is sent again as lost, too, until it is acknowledged.
                Fate::InFlight if sent.retransmitted => {
                    segments.copies += n;
                    segments.lost += n;
                }
                Fate::InFlight => {}
            }
        }
        segments
    }

    /// A new segment is sent. What follows full segments of `mss` bytes of the same moment becomes one record with them,
    /// as if a port had cut it: a window costs a record for each turn, not for each segment.
    #[inline]
    pub(super) fn push(&mut self, start: Seq, end: Seq, at: Timestamp, mss: u32) {
        self.in_flight += end - start;
        let joined = |sent: &Sent| {
            let same =
                sent.end == start && sent.at == at && sent.fate == Fate::InFlight && !sent.retransmitted;
            same && sent.len().is_multiple_of(mss.max(1)) && sent.len() < JOINED
        };
        if let Some(sent) = self.sent.back_mut() {
            if joined(sent) && !self.listed {
                sent.end = end;
                return;
            }
            self.list();
        }
        if let (Some(sent), Some(sending)) = (self.sent.back_mut(), self.sendings.back_mut())
            && joined(sent)
            && sending.end == start
            && sending.at == at
        {
            (sent.end, sending.end) = (end, end);
            return;
        }
        self.sent.push_back(Sent::new(start, end, at));
        if self.listed {
            self.sendings.push_back(Sending { at, start, end });
        }
    }

    /// Lists what is out, before that becomes more than one record sent once.
    #[inline]
    fn list(&mut self) {
        if let Some(&Sent { start, end, at, .. }) = self.sent.only().filter(|_| !self.listed) {
            self.sendings.push_back(Sending { at, start, end });
            self.listed = true;
        }
    }

    /// Nothing is out any more.
    #[inline]
    fn unlist(&mut self) {
        if std::mem::take(&mut self.listed) {
            self.sendings.clear();
        }
    }

    /// [`Scoreboard::push`] while nothing is out.
    #[inline]
    pub(super) fn push_first(&mut self, start: Seq, end: Seq, at: Timestamp) {
        debug_assert!(self.is_empty() && !self.listed, "something is out");
        self.in_flight = end - start;
        self.sent.push_made(|| Sent::new(start, end, at));
    }

    /// The first part of what is lost, of at most `limit` bytes.
    pub(super) fn first_lost(&mut self, limit: u32) -> Option<(Seq, Seq)> {
        if self.lost == 0 {
            return None;
        }
        let from = self.index(self.lost_from);
        let lost = self.sent.iter().skip(from).find(|sent| sent.fate == Fate::Lost)?;
        self.lost_from = lost.start;
        Some((lost.start, lost.start + lost.len().min(limit)))
    }

    /// The last segment that is out, as it was cut when it was sent.
    pub(super) fn last(&self, cut: Cut) -> Option<(Seq, Seq)> {
        let last = self.sent.iter().rev().find(|sent| sent.fate != Fate::Sacked)?;
        let bytes = cut.without_fin(last);
        let len = match bytes % cut.mss.max(1) {
            0 => bytes.min(cut.mss),
            rest => rest,
        };
        Some((last.start + (bytes - len), last.end))
    }

    /// A part of what was sent is sent again; `true` if a part of that was before.
    pub(super) fn resent(&mut self, start: Seq, end: Seq, at: Timestamp) -> bool {
        let mut again = false;
        self.list();
        self.split(start);
        self.split(end);
        let from = self.index(start);
        for sent in self.sent.iter_mut().skip(from).take_while(|sent| !sent.end.after(end)) {
            match sent.fate {
                Fate::Lost => {
                    self.lost -= sent.len();
                    self.in_flight += sent.len();
                    sent.fate = Fate::InFlight;
                }
                Fate::InFlight | Fate::Sacked => {}
            }
            again |= std::mem::replace(&mut sent.retransmitted, true);
            sent.at = at;
        }
        self.sendings.push_back(Sending { at, start, end });
        again
    }

    /// Everything before `ack` has arrived.
    #[inline(always)]
    pub(super) fn acknowledge(&mut self, ack: Seq, now: Timestamp, shortest: Span, out: &mut Delivered) {
        // All that was out, in one record, sent once: a message and its answer.
        if let Some(sent) = self.sent.only()
            && sent.end == ack
            && sent.fate == Fate::InFlight
            && !sent.retransmitted
        {
            let (at, rtt) = (sent.at, now.span(sent.at));
            (out.bytes, out.rtt) = (out.bytes + sent.len(), Some(rtt));
            self.sent.take_only();
            (self.in_flight, self.highest) = (0, Some(ack));
            self.note_latest(at, ack, rtt);
            return self.unlist();
        }
        let mut copied = false;
        while let Some(first) = self.sent.front().copied() {
            if !first.start.before(ack) {
                break;
            }
            if first.end.after(ack) {
                self.split(ack);
                continue;
            }
            self.sent.pop_front();
            copied |= first.retransmitted;
            match first.fate {
                Fate::Sacked => self.sacked -= first.len(),
                Fate::Lost => self.lost -= first.len(),
                Fate::InFlight => self.in_flight -= first.len(),
            }
            if first.fate != Fate::Sacked {
                out.bytes += first.len();
                self.arrived(&first, now, shortest, out.echoed, out);
            }
        }
        if copied {
            // What was sent once may have waited for the copy before it.
            out.rtt = None;
        }
        if self.sent.is_empty() {
            return self.unlist();
        }
        while self.sendings.front().is_some_and(|sending| !sending.end.after(ack)) {
            pop(&mut self.sendings);
        }
    }

    /// Everything between `start` and `end` has arrived. Segments are cut only at multiples of their size from their start: as
    /// the peer got them. A block that ends elsewhere counts as far as it goes, so that nobody can cut what is out into
    /// single bytes. But one may end before our FIN: not every peer counts that among what has arrived.
    pub(super) fn sack(
        &mut self,
        (start, end): (Seq, Seq),
        cut: Cut,
        now: Timestamp,
        shortest: Span,
        out: &mut Delivered,
    ) {
        let start = self.boundary(start, cut, true);
        let end = self.boundary(end, cut, false);
        if !start.before(end) {
            return;
        }
        let mut i = self.index(start);
        while let Some(sent) = self.sent.get_mut(i).filter(|sent| !sent.end.after(end)) {
            let known = std::mem::replace(&mut sent.skip, end);
            let old = std::mem::replace(&mut sent.fate, Fate::Sacked);
            let sent = *sent;
            i += 1;
            match old {
                Fate::Sacked => {
                    if known.after(sent.end) {
                        i = self.index(known.min(end));
                    }
                    continue;
                }
                Fate::Lost => self.lost -= sent.len(),
                Fate::InFlight => self.in_flight -= sent.len(),
            }
            self.segments_sacked = if self.sacked == 0 { 0 } else { self.segments_sacked };
            self.segments_sacked += cut.segments(&sent);
            self.sacked += sent.len();
            out.bytes += sent.len();
            out.sacked += sent.len();
            // What came out of order is not what is echoed (RFC 7323, 4.3).
            self.arrived(&sent, now, shortest, None, out);
        }
    }

    /// The boundary between two records at `at` or, where none can be made, the next one inwards: later for the `start` of
    /// a block, earlier for its end.
    fn boundary(&mut self, at: Seq, cut: Cut, start: bool) -> Seq {
        let i = self.sent.partition_point(|sent| !sent.end.after(at));
        let Some(sent) = self.sent.get(i).filter(|sent| sent.start.before(at)) else { return at };
        if self.sent.len() >= RECORDS {
            return if start { sent.end } else { sent.start };
        }
        let mss = cut.mss.max(1);
        let offset = (at - sent.start) / mss * mss;
        let inward = if start && sent.start + offset != at { offset + mss } else { offset };
        let at = if cut.fin == Some(at + 1) { at } else { (sent.start + inward).min(sent.end) };
        self.split(at);
        at
    }

    /// RFC 8985, 6.2, steps 1 to 3, for one segment.
    #[inline]
    fn arrived(
        &mut self,
        sent: &Sent,
        now: Timestamp,
        shortest: Span,
        echoed: Option<u64>,
        out: &mut Delivered,
    ) {
        let rtt = now.span(sent.at);
        if sent.retransmitted {
            // An echo of something older: it is the first copy that has arrived.
            if echoed.is_some_and(|echoed| echoed < sent.at.as_millis()) {
                return;
            }
            // It may be the first copy that has arrived: much sooner than any round trip, it must be. (RFC 8985 has no "much";
            // but a probe is sent when the path is idle, and its round trip may well be the shortest by a little.)
            if rtt.0 < shortest.times(7).0 / 8 {
                return;
            }
        } else {
            out.rtt = Some(rtt);
            if let Some(highest) = self.highest.filter(|highest| sent.end.before(*highest)) {
                out.overtaken = out.overtaken.max(highest - sent.start);
            }
        }
        self.highest = Some(self.highest.map_or(sent.end, |highest| highest.max(sent.end)));
        self.note_latest(sent.at, sent.end, rtt);
    }

    #[inline]
    fn note_latest(&mut self, at: Timestamp, end: Seq, rtt: Span) {
        let newer = at > self.latest.0 || (at == self.latest.0 && end.after(self.latest.1));
        if newer {
            (self.latest, self.rtt) = ((at, end), rtt);
        }
    }

    fn index(&self, start: Seq) -> usize {
        self.sent.partition_point(|sent| sent.start.before(start))
    }

    /// Makes `at` a boundary between two records.
    fn split(&mut self, at: Seq) {
        let i = self.sent.partition_point(|sent| !sent.end.after(at));
        if let Some(sent) = self.sent.get_mut(i)
            && sent.start.before(at)
        {
            let second = Sent { start: at, skip: sent.skip.max(at), ..*sent };
            self.list();
            self.sent[i].end = at;
            self.sent.insert(i + 1, second);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const MSS: u32 = 1000;
    const RTT: Span = Span::of(Duration::from_millis(100));

    fn at(ms: u64) -> Timestamp {
        Timestamp::from_nanos(ms * 1_000_000)
    }

    fn ten() -> Scoreboard {
        let mut board = Scoreboard::default();
        for i in 0..10 {
            board.push(Seq(i * MSS), Seq((i + 1) * MSS), at(u64::from(i)), MSS);
        }
        board
    }

    fn sack(board: &mut Scoreboard, start: u32, end: u32, now: u64) -> Delivered {
        let mut out = Delivered::default();
        board.sack((Seq(start), Seq(end)), Cut { mss: MSS, fin: None }, at(now), RTT, &mut out);
        out
    }

    fn detect(board: &mut Scoreboard, now: u64) -> Option<Span> {
        board.detect(at(now), RTT, RTT, false)
    }

    #[test]
    fn three_later_ones_mean_that_the_first_is_lost() {
        let mut board = ten();
        assert_eq!(sack(&mut board, 1000, 2000, 101).bytes, 1000);
        assert!(detect(&mut board, 101).is_some() && !board.has_lost(), "it may only be late");
        sack(&mut board, 1000, 4000, 103);
        assert_eq!(detect(&mut board, 103), None);
        assert_eq!(board.first_lost(MSS), Some((Seq(0), Seq(1000))));
        assert_eq!((board.in_flight(), board.sacked(), board.lost()), (6000, 3000, 1000));
        board.resent(Seq(0), Seq(1000), at(104));
        assert_eq!((board.in_flight(), board.lost()), (7000, 0));
        let mut out = Delivered::default();
        board.acknowledge(Seq(4000), at(204), RTT, &mut out);
        assert_eq!((out.bytes, out.rtt), (1000, None), "what was sent twice measures nothing");
        assert_eq!((board.in_flight(), board.sacked()), (6000, 0));
    }

    #[test]
    fn what_waited_for_a_copy_measures_nothing_either() {
        let mut board = ten();
        board.resent(Seq(0), Seq(1000), at(1000));
        let mut out = Delivered::default();
        board.acknowledge(Seq(10_000), at(1100), RTT, &mut out);
        assert_eq!((out.bytes, out.rtt), (10_000, None));
    }

    #[test]
    fn a_late_one_is_waited_for_once_reordering_was_seen() {
        let mut board = ten();
        sack(&mut board, 1000, 2000, 101);
        let mut out = Delivered::default();
        board.acknowledge(Seq(2000), at(102), RTT, &mut out);
        assert_eq!(out.overtaken, 2000, "the first one, by the second");
        board.note_reordering(out.overtaken);
        sack(&mut board, 3000, 9000, 108);
        let wait = detect(&mut board, 108).expect("the timer is needed");
        assert!(!board.has_lost() && wait.0 <= RTT.0 / 4);
        detect(&mut board, 140);
        assert_eq!(board.lost(), 1000);
    }

    #[test]
    fn a_timeout_takes_the_first_and_the_old_and_survives_reneging() {
        let mut board = ten();
        sack(&mut board, 0, 2000, 100);
        board.timed_out(at(128), MSS, true, (RTT, RTT));
        assert_eq!(
            (board.sacked(), board.lost()),
            (0, 5000),
            "those sent before 5 ms, with what was taken back: a round trip of 99 ms, and 25 for reordering"
        );
    }

    #[test]
    fn what_goes_out_first_after_a_loss_that_was_none_can_be_lost() {
        let mut board = ten();
        board.acknowledge(Seq(10 * MSS), at(110), RTT, &mut Delivered::default());
        board.expect_lost(true);
        for i in 10..14 {
            let (start, end, at) = (Seq(i * MSS), Seq((i + 1) * MSS), at(200));
            if i == 10 { board.push_first(start, end, at) } else { board.push(start, end, at, MSS) }
        }
        sack(&mut board, 11_000, 14_000, 300);
        assert_eq!(detect(&mut board, 300), None);
        assert_eq!(board.first_lost(MSS), Some((Seq(10 * MSS), Seq(11 * MSS))));
    }

    #[test]
    fn a_copy_counts_only_if_it_was_not_the_first_that_arrived() {
        for (echoed, counts) in [(None, true), (Some(104), true), (Some(103), false)] {
            let mut board = ten();
            board.resent(Seq(0), Seq(1000), at(104));
            let mut out = Delivered { echoed, ..Delivered::default() };
            board.acknowledge(Seq(1000), at(204), RTT, &mut out);
            assert_eq!(board.latest == (at(104), Seq(1000)), counts, "echo {echoed:?}");
        }
        let mut board = ten();
        board.resent(Seq(0), Seq(1000), at(104));
        board.acknowledge(Seq(1000), at(150), RTT, &mut Delivered::default());
        assert_eq!(board.latest.0, Timestamp::ZERO, "much sooner than a round trip");
    }

    #[test]
    fn three_small_segments_are_as_good_as_three_large_ones() {
        let mut board = Scoreboard::default();
        for i in 0..10 {
            board.push(Seq(i * 100), Seq((i + 1) * 100), at(u64::from(i)), MSS);
        }
        sack(&mut board, 100, 300, 103);
        detect(&mut board, 103);
        assert!(!board.has_lost());
        sack(&mut board, 100, 400, 103);
        detect(&mut board, 103);
        assert_eq!(board.lost(), 100);
    }

    #[test]
    fn reported_duplicates_stretch_the_wait_once_a_round_and_for_sixteen_recoveries() {
        let mut board = ten();
        board.note_reordering(MSS);
        let wait = |board: &Scoreboard| board.window(RTT, RTT.times(4), false).duration().as_millis();
        assert_eq!(wait(&board), 25);
        // The last one's number is so far on that the first ones' seem to come again.
        for (una, nxt, expected) in
            [(1000, 10_000, 50), (5000, 11_000, 50), (10_000, 12_000, 75), (3 << 30, (3 << 30) + 1000, 100)]
        {
            board.duplicate_reported(Seq(una), Seq(nxt));
            assert_eq!(wait(&board), expected);
        }
        assert_eq!(
            board.window(RTT, Span(RTT.0 / 2), false),
            Span(RTT.0 / 2),
            "never more than a round trip"
        );
        for _ in 0..15 {
            board.recovered();
        }
        assert_eq!(wait(&board), 100);
        board.recovered();
        assert_eq!(wait(&board), 25);
    }

    #[test]
    fn blocks_count_as_far_as_they_hold_whole_segments() {
        let mut board = ten();
        assert_eq!(sack(&mut board, 1500, 3200, 110).bytes, 1000, "2000 to 3000");
        assert_eq!(sack(&mut board, 1000, 4000, 111).bytes, 2000);
        assert_eq!((board.in_flight(), board.sacked()), (7000, 3000));
        let mut out = Delivered::default();
        board.acknowledge(Seq(10_000), at(120), Span::ZERO, &mut out);
        assert_eq!((out.bytes, board.in_flight(), board.sacked(), board.is_empty()), (7000, 0, 0, true));
    }

    #[test]
    fn a_super_segment_is_cut_where_the_port_cut_it() {
        let mut board = Scoreboard::default();
        board.push(Seq(0), Seq(10_000), at(0), MSS);
        assert_eq!(sack(&mut board, 2000, 5000, 110).bytes, 3000);
        assert_eq!(sack(&mut board, 9000, 10_000, 111).bytes, 1000);
        assert_eq!(sack(&mut board, 6001, 7999, 111).bytes, 0);
        detect(&mut board, 140);
        assert_eq!(
            (board.in_flight(), board.sacked(), board.lost()),
            (0, 4000, 6000),
            "the rest was sent before"
        );
        assert_eq!(board.first_lost(MSS), Some((Seq(0), Seq(1000))));
    }

    #[test]
    fn blocks_cut_up_no_more_than_a_bound() {
        const N: u32 = 10_000;
        let mut board = Scoreboard::default();
        (0..N).for_each(|i| board.push(Seq(i * MSS), Seq((i + 1) * MSS), at(0), MSS));
        let whole = board.sent.len();
        for i in 0..N / 2 {
            sack(&mut board, 2 * i * MSS, (2 * i + 1) * MSS, 100);
        }
        assert!((RECORDS..RECORDS + 2).contains(&board.sent.len()), "{} of {whole}", board.sent.len());
        let before = board.sacked();
        // A block that holds whole records counts.
        sack(&mut board, N / 2 * MSS, N * MSS, 101);
        assert!(board.sacked() > before + N / 3 * MSS, "{before} {}", board.sacked());
        let mut out = Delivered::default();
        board.acknowledge(Seq(N * MSS), at(102), Span::ZERO, &mut out);
        assert!(board.is_empty() && board.sacked() == 0 && board.in_flight() == 0);
    }

    /// What a peer that acknowledges in the worst way costs: the records looked at do not grow with their square.
    #[test]
    fn repeated_blocks_and_losses_are_not_looked_through_again() {
        const N: u32 = 20_000;
        let mut board = Scoreboard::default();
        for i in 0..N {
            board.push(Seq(i * MSS), Seq((i + 1) * MSS), at(u64::from(i)), MSS);
        }
        let start = std::time::Instant::now();
        for i in 2..N {
            // The same block, one longer each time, and each time from another place.
            sack(&mut board, (1 + i % 7) * MSS, i * MSS, 100_000 + u64::from(i));
            detect(&mut board, 100_000 + u64::from(i));
            if let Some((start, end)) = board.first_lost(MSS) {
                board.resent(start, end, at(100_000 + u64::from(i)));
            }
        }
        // Each time through all of them would be 4 * 10^8 steps: seconds in this profile, even on a fast machine.
        assert!(start.elapsed() < Duration::from_secs(2), "{:?}", start.elapsed());
        assert_eq!(board.sacked(), (N - 2) * MSS);
    }
}
