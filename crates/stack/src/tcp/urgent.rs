//! Urgent data (RFC 9293, 3.8.5; RFC 6093): a mark in the stream, up to which the receiver shall read soon. What is before it
//! stays in line, among everything else.
//!
//! The mark is the number after the last urgent byte (MUST-62). A header says how far from its own number it is, in 16 bits: what is
//! farther is told as that much, and again by the segments that follow (MUST-31).

use bywash_frame::Pool;
use bywash_wire::checksum::Sum;
use bywash_wire::{TCP_URGENT_OFFSET, TcpFlags};

use super::connection::Connection;
use super::facts::{ACK_NOW, RELEASED, URGES};
use super::segment::Segment;
use super::seq::Seq;
use super::{ConnectionId, Tcp, TcpError};
use crate::stack::{Context, Event};
use crate::{Stack, Timestamp};

impl Connection {
    /// Marks all that is queued as urgent. The peer is told at once, even if its window is shut.
    fn mark_urgent(&mut self) {
        self.snd_up = self.data_end();
        self.facts.add(URGES);
        self.facts.add_if(ACK_NOW, self.state.is_synchronized());
    }

    /// The bit of a segment's header: of each that begins before the mark.
    #[cold]
    pub(super) fn urge(&mut self, seq: Seq, flags: TcpFlags) -> TcpFlags {
        // It is over, and far behind one day.
        self.facts.set(URGES, self.una.before(self.snd_up));
        let tells = self.facts.any(URGES) && seq.before(self.snd_up) && !flags.has(TcpFlags::SYN);
        if tells { flags.with(TcpFlags::URG) } else { flags }
    }

    /// Writes the urgent pointer of a header that has the bit, and adds it to the header's sum.
    #[cold]
    pub(super) fn put_urgent(&self, seq: Seq, header: &mut [u8], sum: Sum) -> Sum {
        let pointer = u16::try_from(self.snd_up - seq).unwrap_or(u16::MAX).to_be_bytes();
        let at = usize::from(TCP_URGENT_OFFSET);
        if let Some(place) = header.get_mut(at..at + 2) {
            place.copy_from_slice(&pointer);
        }
        sum.bytes(&pointer)
    }

    /// Sixth, check the URG bit: the mark moves on alone, and the program is told each time, if it has not read as far yet
    /// (MUST-32).
    #[cold]
    pub(super) fn check_urgent(&mut self, segment: &Segment, cx: &mut Context<'_>) {
        if !self.state.takes_data() || self.facts.any(RELEASED) {
            return;
        }
        let (received, up) = (self.tally.bytes_received, segment.seq + u32::from(segment.urgent));
        let mark = if up.after(self.rcv_nxt) {
            received + u64::from(up - self.rcv_nxt)
        } else {
            received.saturating_sub((self.rcv_nxt - up).into())
        };
        if mark > self.rcv_up.max(received - self.receive.readable() as u64) {
            self.rcv_up = mark;
            cx.events.push(Event::Urgent(self.id));
        }
    }

    fn urgent_bytes(&self) -> u64 {
        self.rcv_up.saturating_sub(self.tally.bytes_received - self.receive.readable() as u64)
    }
}

impl Tcp {
    fn send_urgent(
        &mut self,
        id: ConnectionId,
        bytes: &[u8],
        cx: &mut Context<'_>,
    ) -> Result<usize, TcpError> {
        let written = self.send(id, bytes, cx)?;
        if written > 0 {
            self.connections[id.index].mark_urgent();
        }
        Ok(written)
    }
}

impl Stack {
    /// [`Stack::send`] of urgent bytes (`MSG_OOB`): the peer's program is told to read as far as the last of those that were queued.
    /// RFC 6093 advises new programs against it: what stands between may change or drop the mark.
    ///
    /// # Errors
    /// [`TcpError::Closed`], [`TcpError::Shutdown`].
    pub fn send_urgent(
        &mut self,
        now: Timestamp,
        id: ConnectionId,
        bytes: &[u8],
        pool: &mut Pool,
    ) -> Result<usize, TcpError> {
        self.with_tcp(now, pool, |tcp, cx| tcp.send_urgent(id, bytes, cx))
    }

    /// How many bytes are before the peer's mark that the program has not read yet, those that have not come yet
    /// among them; 0 when nothing is urgent (any more). [`Event::Urgent`] says that there are some.
    ///
    /// # Errors
    /// [`TcpError::Closed`].
    pub fn urgent_bytes(&self, id: ConnectionId) -> Result<u64, TcpError> {
        let i = self.tcp.index(id)?;
        Ok(self.tcp.connections[i].urgent_bytes())
    }
}
