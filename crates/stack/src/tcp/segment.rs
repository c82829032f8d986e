//! A segment as it came in, its header read once.

use std::ops::Range;

use bywash_wire::{TcpFlags, TcpHeader, TcpOptions};

use super::receive_buffer::length;
use super::seq::Seq;

/// What the steps of segment arrival look at.
#[derive(Clone, Debug)]
pub(super) struct Segment {
    pub(super) seq: Seq,
    pub(super) ack: Seq,
    pub(super) flags: TcpFlags,
    /// As it stands in the header, not scaled.
    pub(super) window: u16,
    /// Where urgent data ends, from `seq`, if the URG bit is set.
    pub(super) urgent: u16,
    pub(super) options: TcpOptions,
    /// Where in the packet the payload begins, and how long it is.
    pub(super) start: usize,
    pub(super) payload: usize,
    /// The two bits of RFC 3168 in its IP header.
    pub(super) ecn: u8,
}

impl Segment {
    /// What a header says that was found whole at the front of `bytes`. `place`: where in the packet the segment is.
    #[inline(always)]
    pub(super) fn of(tcp: &TcpHeader, bytes: &[u8], place: Range<usize>, ecn: u8) -> Self {
        let header = tcp.header_length();
        let mut segment = Self {
            seq: Seq(tcp.sequence.get()),
            ack: Seq(tcp.acknowledgment.get()),
            flags: tcp.flags,
            window: tcp.window.get(),
            urgent: tcp.urgent.get(),
            options: TcpOptions::default(),
            start: place.start + header,
            payload: place.end - place.start - header,
            ecn,
        };
        segment.options.read(&bytes[size_of::<TcpHeader>()..header]);
        segment
    }

    #[inline]
    pub(super) fn has(&self, flag: TcpFlags) -> bool {
        self.flags.has(flag)
    }

    /// SEG.LEN: payload, SYN and FIN.
    #[inline]
    pub(super) fn length(&self) -> u32 {
        length(self.payload) + u32::from(self.has(TcpFlags::SYN)) + u32::from(self.has(TcpFlags::FIN))
    }

    /// The number after the segment's last.
    #[inline]
    pub(super) fn end(&self) -> Seq {
        self.seq + self.length()
    }

    /// The same without an echo of our clock: some bits of what a cookie's was are options, and it measures nothing.
    pub(super) fn without_echo(&self) -> Self {
        let mut segment = self.clone();
        segment.options.timestamps = self.options.timestamps.map(|(value, _)| (value, 0));
        segment
    }

    /// Whether it asks for a new connection.
    pub(super) fn opens(&self) -> bool {
        self.has(TcpFlags::SYN) && !self.has(TcpFlags::ACK) && !self.has(TcpFlags::RST)
    }

    /// Whether a segment that is not acceptable may be one that we had, and whose sender waits for an acknowledgment.
    pub(super) fn is_again(&self) -> bool {
        !self.has(TcpFlags::SYN) && self.length() > 0
    }
}
