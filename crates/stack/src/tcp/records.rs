//! Records of a program (`MSG_EOR`): what it sends later is never in one segment with the end of one, nor in a copy of one.
//!
//! For the peer there is nothing but a stream; the segments are all that shows where records end. As in Linux (`eor` of its
//! `tcp_skb_cb`) the last segment of a record waits for nothing if others are behind it, and has PSH (RFC 9293, 3.9.1.2).

use std::collections::VecDeque;

use bywash_frame::Pool;

use super::connection::Connection;
use super::facts::HAS_RECORDS;
use super::seq::Seq;
use super::{ConnectionId, Tcp, TcpError};
use crate::stack::Context;
use crate::{Stack, Timestamp};

/// The number after each record's last byte, in order.
#[derive(Debug, Default)]
pub(super) struct Records(VecDeque<Seq>);

impl Connection {
    /// All that is queued ends a record.
    fn end_record(&mut self) {
        let end = self.data_end();
        self.records.get_or_insert_default().0.push_back(end);
        self.facts.add(HAS_RECORDS);
    }

    /// Bytes from `seq` on up to the end of its record, if one ends behind it.
    #[inline]
    pub(super) fn record_left(&mut self, seq: Seq) -> Option<u32> {
        if self.facts.any(HAS_RECORDS) { self.find_record(seq) } else { None }
    }

    #[cold]
    fn find_record(&mut self, seq: Seq) -> Option<u32> {
        let una = self.una;
        let Records(ends) = &mut **self.records.as_mut()?;
        while ends.pop_front_if(|end| !end.after(una)).is_some() {}
        self.facts.set(HAS_RECORDS, !ends.is_empty());
        let next = ends.partition_point(|end| !end.after(seq));
        ends.get(next).map(|end| *end - seq)
    }

    /// Whether a record ends with the byte before `end`.
    #[inline]
    pub(super) fn ends_record(&mut self, end: Seq) -> bool {
        self.record_left(end - 1) == Some(1)
    }
}

impl Tcp {
    fn send_record(
        &mut self,
        id: ConnectionId,
        bytes: &[u8],
        cx: &mut Context<'_>,
    ) -> Result<usize, TcpError> {
        let written = self.send(id, bytes, cx)?;
        if written > 0 && written == bytes.len() {
            self.connections[id.index].end_record();
        }
        Ok(written)
    }
}

impl Stack {
    /// [`Stack::send`] of the last bytes of a record (`MSG_EOR`): what is sent later goes in other segments. A record ends only if all
    /// of them were taken.
    ///
    /// # Errors
    /// [`TcpError::Closed`], [`TcpError::Shutdown`].
    pub fn send_record(
        &mut self,
        now: Timestamp,
        id: ConnectionId,
        bytes: &[u8],
        pool: &mut Pool,
    ) -> Result<usize, TcpError> {
        self.with_tcp(now, pool, |tcp, cx| tcp.send_record(id, bytes, cx))
    }
}
