//! A connection as numbers: Linux's `TCP_INFO`, field by field, so that what reads it there reads it here.

use std::time::Duration;

use bywash_wire::{STAMPS, TCP_HEADER};

use super::State;
use super::connection::Connection;
use super::facts::{ECN, ECT_SEEN, LOSS, RECOVERY, SACK, SLOWED_AT, SQUEEZED, TIMESTAMPS};
use super::listen::offered_segment;
use super::receive_buffer::length;
use super::scoreboard::DUPLICATES;
use crate::outbox::Outbox;
use crate::time::Span;
use crate::{ConnectionId, FastOpenFailure, Stack, TcpError, Timestamp, Unreachable};

/// Bytes of Linux's `struct tcp_info` up to `tcpi_total_rto_time` (Linux 6.7).
pub const LINUX_TCP_INFO: usize = 248;

/// A connection as numbers, named as in Linux's `struct tcp_info` (`include/uapi/linux/tcp.h`).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TcpInfo {
    /// `tcpi_state`
    pub state: State,
    /// `tcpi_ca_state`: 0 open, 1 disorder, 2 slowed down by marks, 3 recovery, 4 loss
    pub ca_state: u8,
    /// `tcpi_probes`: keep-alives without an answer, and probes of a shut window, which what was out before it shut are, too
    pub probes: u8,
    /// `tcpi_retransmits`: timeouts in a row, since something was last acknowledged
    pub retransmits: u8,
    /// `tcpi_backoff`: timeouts since the round trip was last measured, and probes of a shut window
    pub backoff: u8,
    /// `tcpi_rto`
    pub rto: Duration,
    /// `tcpi_ato`: always 40 milliseconds, which is how long an acknowledgment waits at most; Linux's adapts to how often data comes
    pub ato: Duration,
    /// `tcpi_snd_mss`, in bytes of payload
    pub snd_mss: u32,
    /// `tcpi_rcv_mss`: the payload of the peer's full segments, as it seems, but no more than we have offered to take
    pub rcv_mss: u32,
    /// `tcpi_advmss`: the payload of the peer's segments at most: what we offer to take, less timestamps where they were agreed on
    pub advmss: u32,
    /// `tcpi_pmtu`: the path's, whatever the two ends take
    pub pmtu: u32,
    /// `tcpi_unacked`, in segments
    pub unacked: u32,
    /// `tcpi_sacked`, in segments
    pub sacked: u32,
    /// `tcpi_lost`, in segments
    pub lost: u32,
    /// `tcpi_retrans`, in segments
    pub retrans: u32,
    /// `tcpi_last_data_sent`: how long ago
    pub last_data_sent: Duration,
    /// `tcpi_last_data_recv`: how long ago, or before any came, since the connection was established or, until then, begun
    pub last_data_recv: Duration,
    /// `tcpi_last_ack_recv`: how long ago; the same before any came
    pub last_ack_recv: Duration,
    /// `tcpi_rtt`
    pub rtt: Duration,
    /// `tcpi_rttvar`
    pub rttvar: Duration,
    /// `tcpi_min_rtt`, at least a microsecond; zero before it was measured, where Linux has the largest number there is
    pub min_rtt: Duration,
    /// `tcpi_snd_ssthresh`, but in bytes; `u32::MAX` before the first loss
    pub snd_ssthresh: u32,
    /// `tcpi_snd_cwnd`, but in bytes
    pub snd_cwnd: u32,
    /// `tcpi_rcv_rtt`: the round trip of what the peer sends; zero before it was measured
    pub rcv_rtt: Duration,
    /// `tcpi_rcv_ssthresh`: the window at most, which is `rcv_space`
    pub rcv_ssthresh: u32,
    /// `tcpi_rcv_space`: the receive buffer's size now
    pub rcv_space: u32,
    /// `tcpi_snd_wnd`: the window the peer offers, in bytes
    pub snd_wnd: u32,
    /// `tcpi_rcv_wnd`: the window the peer was offered last, in bytes; what has come since is part of it
    pub rcv_wnd: u32,
    /// `tcpi_notsent_bytes`
    pub notsent_bytes: u32,
    /// Bytes sent that are not acknowledged (`SIOCOUTQ` less `tcpi_notsent_bytes`).
    pub unacked_bytes: u32,
    /// `tcpi_total_retrans`, in segments
    pub total_retrans: u32,
    /// `tcpi_bytes_acked`, but of data alone: Linux counts the SYN of a connection of our own and a FIN, too
    pub bytes_acked: u64,
    /// `tcpi_bytes_received`
    pub bytes_received: u64,
    /// `tcpi_bytes_sent`
    pub bytes_sent: u64,
    /// `tcpi_bytes_retrans`
    pub bytes_retrans: u64,
    /// `tcpi_segs_out`
    pub segs_out: u32,
    /// `tcpi_segs_in`
    pub segs_in: u32,
    /// `tcpi_data_segs_out`
    pub data_segs_out: u32,
    /// `tcpi_data_segs_in`
    pub data_segs_in: u32,
    /// `tcpi_busy_time`: how long there was something to send, or to be acknowledged
    pub busy_time: Duration,
    /// `tcpi_rwnd_limited`: how much of that the peer's window did not let it out
    pub rwnd_limited: Duration,
    /// `tcpi_sndbuf_limited`: how much of that the send buffer was too small for what the network would have taken
    pub sndbuf_limited: Duration,
    /// `tcpi_delivered`, in segments
    pub delivered: u32,
    /// `tcpi_delivered_ce`, in segments: those that acknowledgments told of that told of congestion marks, too
    pub delivered_ce: u32,
    /// `tcpi_delivery_rate`, in bytes per second, of the last round trip with something out all the time; zero before the first
    pub delivery_rate: u64,
    /// `tcpi_delivery_rate_app_limited`: the program had no more to send meanwhile, so the way may take more
    pub app_limited: bool,
    /// `tcpi_dsack_dups`
    pub dsack_dups: u32,
    /// `tcpi_reordering`: the farthest that a segment was behind those that had overtaken it, in segments; three at least, and 300 at
    /// most
    pub reordering: u32,
    /// `tcpi_reord_seen`: acknowledgments that showed that segments had overtaken each other
    pub reord_seen: u32,
    /// `tcpi_rcv_ooopack`
    pub rcv_ooopack: u32,
    /// `tcpi_total_rto`
    pub total_rto: u16,
    /// `tcpi_total_rto_recoveries`: timeouts that did not follow from others
    pub total_rto_recoveries: u16,
    /// `tcpi_total_rto_time`: how long it took until what was out then had arrived
    pub total_rto_time: Duration,
    /// `TCPI_OPT_TIMESTAMPS`
    pub timestamps: bool,
    /// `TCPI_OPT_SACK`
    pub sack: bool,
    /// `TCPI_OPT_ECN`
    pub ecn: bool,
    /// `TCPI_OPT_ECN_SEEN`: data has come that could be marked on its way, or was
    pub ecn_seen: bool,
    /// `TCPI_OPT_SYN_DATA`: data that came or went with the SYN was taken (Fast Open, RFC 7413)
    pub syn_data: bool,
    /// `tcpi_fastopen_client_fail`
    pub fast_open_failed: Option<FastOpenFailure>,
    /// `tcpi_snd_wscale` and `tcpi_rcv_wscale`, when both ends scale
    pub wscale: Option<(u8, u8)>,
    /// What ICMP said of the path last, if it has not been better since.
    pub soft_error: Option<Unreachable>,
}

impl TcpInfo {
    /// Linux's `struct tcp_info`, in this machine's byte order. Zero are `tcpi_last_ack_sent` and `tcpi_fackets`, as in Linux;
    /// `tcpi_pacing_rate`, for nothing is paced; `tcpi_rehash`, for no connection looks for another path by a new hash.
    pub fn to_linux(&self) -> [u8; LINUX_TCP_INFO] {
        let mut bytes = [0; LINUX_TCP_INFO];
        let (snd_scale, rcv_scale) = self.wscale.unwrap_or((0, 0));
        let scales = self.wscale.is_some();
        let flags = [self.timestamps, self.sack, scales, self.ecn, self.ecn_seen, self.syn_data];
        let options = flags.iter().rev().fold(0, |bits, flag| bits << 1 | u8::from(*flag));
        let (state, scales) = (linux_state(self.state), snd_scale | rcv_scale << 4);
        bytes[..8].copy_from_slice(&[
            state,
            self.ca_state,
            self.retransmits,
            self.probes,
            self.backoff,
            options,
            scales,
            u8::from(self.app_limited) | self.fast_open_failed.map_or(0, |why| why as u8) << 1,
        ]);
        let mss = self.snd_mss.max(1);
        // Linux's TCP_INFINITE_SSTHRESH
        let threshold = if self.snd_ssthresh == u32::MAX { 0x7fff_ffff } else { self.snd_ssthresh / mss };
        for (at, value) in [
            (8, micros(self.rto)),
            (12, micros(self.ato)),
            (16, self.snd_mss),
            (20, self.rcv_mss),
            (24, self.unacked),
            (28, self.sacked),
            (32, self.lost),
            (36, self.retrans),
            (44, millis(self.last_data_sent)),
            (52, millis(self.last_data_recv)),
            (56, millis(self.last_ack_recv)),
            (60, self.pmtu),
            (64, self.rcv_ssthresh),
            (68, micros(self.rtt)),
            (72, micros(self.rttvar)),
            (76, threshold),
            (80, self.snd_cwnd / mss),
            (84, self.advmss),
            (88, self.reordering),
            (92, micros(self.rcv_rtt)),
            (96, self.rcv_space),
            (100, self.total_retrans),
            (136, self.segs_out),
            (140, self.segs_in),
            (144, self.notsent_bytes),
            (148, if self.min_rtt.is_zero() { u32::MAX } else { micros(self.min_rtt) }),
            (152, self.data_segs_in),
            (156, self.data_segs_out),
            (192, self.delivered),
            (196, self.delivered_ce),
            (216, self.dsack_dups),
            (220, self.reord_seen),
            (224, self.rcv_ooopack),
            (228, self.snd_wnd),
            (232, self.rcv_wnd),
            (244, millis(self.total_rto_time)),
        ] {
            bytes[at..at + 4].copy_from_slice(&value.to_ne_bytes());
        }
        for (at, value) in [
            (112, u64::MAX), // no limit on the rate
            (120, self.bytes_acked),
            (128, self.bytes_received),
            (160, self.delivery_rate),
            (168, long_micros(self.busy_time)),
            (176, long_micros(self.rwnd_limited)),
            (184, long_micros(self.sndbuf_limited)),
            (200, self.bytes_sent),
            (208, self.bytes_retrans),
        ] {
            bytes[at..at + 8].copy_from_slice(&value.to_ne_bytes());
        }
        for (at, value) in [(240, self.total_rto), (242, self.total_rto_recoveries)] {
            bytes[at..at + 2].copy_from_slice(&value.to_ne_bytes());
        }
        bytes
    }

    pub(super) fn of(c: &Connection, out: &Outbox, now: Timestamp) -> Self {
        let segments = c.board.segments(c.cut());
        let ca_state = match () {
            () if c.facts.any(LOSS) => 4,
            () if c.facts.any(RECOVERY) => 3,
            () if c.facts.any(SLOWED_AT) => 2,
            () => u8::from(segments.sacked > 0 || c.duplicates > 0),
        };
        // Before anything has come, nothing was read: this stands where the connection was established.
        let began = if c.tally.data_segments_in == 0 { c.read_since } else { Timestamp::ZERO };
        // What a connection knows of its path may be hidden by a segment size that is fixed.
        let pmtu = match c.limits.mss {
            Some(fixed) if fixed <= c.path_mss => out.mtu_to(c.flow.remote, now),
            _ => usize::from(c.path_mss) + crate::ip::header_length(c.flow.remote) + TCP_HEADER,
        };
        let stamps = if c.facts.any(TIMESTAMPS) { STAMPS } else { 0 };
        let times = c.times(now);
        Self {
            state: c.state,
            ca_state,
            probes: c.keepalive_sent.max(c.window_probes),
            retransmits: if c.timeouts.una == c.una { c.timed_out } else { 0 },
            backoff: c.rtt.backoff(),
            rto: told(c.rtt.timeout()),
            ato: super::arrive::DELAYED_ACK.duration(),
            snd_mss: c.window.mss(),
            rcv_mss: c.largest.into(),
            advmss: u32::from(offered_segment(&c.flow, &c.limits, out)).saturating_sub(length(stamps)),
            pmtu: u32::try_from(pmtu).unwrap_or(u32::MAX),
            unacked: segments.unacked,
            sacked: segments.sacked,
            lost: segments.lost,
            retrans: segments.copies,
            last_data_sent: now.since(c.last_data_sent),
            last_data_recv: now.since(c.last_received.max(began)),
            last_ack_recv: now.since(c.last_acknowledged.max(began)),
            rtt: told(c.rtt.smoothed()),
            rttvar: told(c.rtt.variation()),
            min_rtt: if c.rtt.is_measured() {
                told(c.rtt.shortest()).max(MICROSECOND)
            } else {
                Duration::ZERO
            },
            snd_ssthresh: c.window.threshold,
            snd_cwnd: c.window.congestion,
            rcv_rtt: told(c.heard.rtt()),
            rcv_ssthresh: c.rcv_limit,
            rcv_space: c.rcv_limit,
            snd_wnd: c.wnd,
            rcv_wnd: if c.facts.any(SQUEEZED) { 0 } else { c.edge - c.last_ack_sent },
            notsent_bytes: c.unsent(),
            unacked_bytes: c.nxt - c.base(),
            total_retrans: c.mishaps.resent,
            bytes_acked: c.tally.bytes_acked,
            bytes_received: c.tally.bytes_received,
            bytes_sent: c.tally.bytes_sent,
            bytes_retrans: c.mishaps.bytes_resent,
            segs_out: c.tally.segments_out,
            segs_in: c.tally.segments_in,
            data_segs_out: c.tally.data_segments_out,
            data_segs_in: c.tally.data_segments_in,
            busy_time: times.busy.duration(),
            rwnd_limited: times.by_window.duration(),
            sndbuf_limited: times.by_buffer.duration(),
            delivered: c.tally.delivered,
            delivered_ce: c.delivered_marked,
            delivery_rate: c.delivery.rate,
            app_limited: c.delivery.is_limited,
            dsack_dups: c.mishaps.duplicates,
            // Linux's `net.ipv4.tcp_max_reordering` and, of RACK, too, what it begins with.
            reordering: c.board.overtaken.div_ceil(c.window.mss().max(1)).clamp(DUPLICATES, 300),
            reord_seen: c.board.reordering,
            rcv_ooopack: c.mishaps.out_of_order,
            total_rto: c.timeouts.count,
            total_rto_recoveries: c.timeouts.recoveries,
            total_rto_time: c.timeouts.time(now).duration(),
            timestamps: c.facts.any(TIMESTAMPS),
            sack: c.facts.any(SACK),
            ecn: c.facts.any(ECN),
            ecn_seen: c.facts.any(ECT_SEEN),
            syn_data: c.syn_data,
            fast_open_failed: c.fast_open_failed,
            wscale: c.scaled.then_some((c.wnd_scale, c.rcv_scale)),
            // What was out then has not arrived since.
            soft_error: c.soft_error.filter(|(_, at)| c.stalled <= *at).map(|(error, _)| error),
        }
    }
}

const MICROSECOND: Duration = Duration::from_micros(1);

/// A round trip, which is kept with less than a microsecond's precision, to the nearest microsecond.
fn told(time: Span) -> Duration {
    Span(time.0.saturating_add(500) / 1000 * 1000).duration()
}

fn micros(time: Duration) -> u32 {
    u32::try_from(time.as_micros()).unwrap_or(u32::MAX)
}

fn long_micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

fn millis(time: Duration) -> u32 {
    u32::try_from(time.as_millis()).unwrap_or(u32::MAX)
}

/// Linux's number of a state (`include/net/tcp_states.h`).
fn linux_state(state: State) -> u8 {
    match state {
        State::Established => 1,
        State::SynSent => 2,
        State::SynReceived => 3,
        State::FinWait1 => 4,
        State::FinWait2 => 5,
        State::TimeWait => 6,
        State::Closed => 7,
        State::CloseWait => 8,
        State::LastAck => 9,
        State::Closing => 11,
    }
}

impl Stack {
    /// A connection as numbers.
    ///
    /// # Errors
    /// [`TcpError::Closed`].
    pub fn tcp_info(&self, now: Timestamp, id: ConnectionId) -> Result<TcpInfo, TcpError> {
        Ok(TcpInfo::of(&self.tcp.connections[self.tcp.index(id)?], &self.out, now))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `struct tcp_info` of Linux 6.7: each field from the first to the last, its bytes, and what `sample` has there.
    const FIELDS: [(&str, usize, u64); 59] = [
        ("tcpi_state", 1, 8),
        ("tcpi_ca_state", 1, 3),
        ("tcpi_retransmits", 1, 2),
        ("tcpi_probes", 1, 5),
        ("tcpi_backoff", 1, 4),
        ("tcpi_options", 1, 0b11_1111),
        ("tcpi_snd_wscale, tcpi_rcv_wscale", 1, 7 | 9 << 4),
        ("tcpi_delivery_rate_app_limited, tcpi_fastopen_client_fail", 1, 1 | 3 << 1),
        ("tcpi_rto", 4, 201_000),
        ("tcpi_ato", 4, 40_000),
        ("tcpi_snd_mss", 4, 1000),
        ("tcpi_rcv_mss", 4, 1001),
        ("tcpi_unacked", 4, 11),
        ("tcpi_sacked", 4, 12),
        ("tcpi_lost", 4, 13),
        ("tcpi_retrans", 4, 14),
        ("tcpi_fackets", 4, 0),
        ("tcpi_last_data_sent", 4, 15),
        ("tcpi_last_ack_sent", 4, 0),
        ("tcpi_last_data_recv", 4, 16),
        ("tcpi_last_ack_recv", 4, 17),
        ("tcpi_pmtu", 4, 1500),
        ("tcpi_rcv_ssthresh", 4, 60_001),
        ("tcpi_rtt", 4, 18),
        ("tcpi_rttvar", 4, 19),
        ("tcpi_snd_ssthresh", 4, 20),
        ("tcpi_snd_cwnd", 4, 21),
        ("tcpi_advmss", 4, 1002),
        ("tcpi_reordering", 4, 22),
        ("tcpi_rcv_rtt", 4, 23),
        ("tcpi_rcv_space", 4, 60_002),
        ("tcpi_total_retrans", 4, 24),
        ("tcpi_pacing_rate", 8, 0),
        ("tcpi_max_pacing_rate", 8, u64::MAX),
        ("tcpi_bytes_acked", 8, 1 << 33),
        ("tcpi_bytes_received", 8, 1 << 34),
        ("tcpi_segs_out", 4, 25),
        ("tcpi_segs_in", 4, 26),
        ("tcpi_notsent_bytes", 4, 27),
        ("tcpi_min_rtt", 4, 28),
        ("tcpi_data_segs_in", 4, 29),
        ("tcpi_data_segs_out", 4, 30),
        ("tcpi_delivery_rate", 8, 1 << 35),
        ("tcpi_busy_time", 8, 1 << 36),
        ("tcpi_rwnd_limited", 8, 1 << 37),
        ("tcpi_sndbuf_limited", 8, 1 << 38),
        ("tcpi_delivered", 4, 31),
        ("tcpi_delivered_ce", 4, 32),
        ("tcpi_bytes_sent", 8, 1 << 39),
        ("tcpi_bytes_retrans", 8, 1 << 40),
        ("tcpi_dsack_dups", 4, 33),
        ("tcpi_reord_seen", 4, 34),
        ("tcpi_rcv_ooopack", 4, 35),
        ("tcpi_snd_wnd", 4, 60_003),
        ("tcpi_rcv_wnd", 4, 60_004),
        ("tcpi_rehash", 4, 0),
        ("tcpi_total_rto", 2, 36),
        ("tcpi_total_rto_recoveries", 2, 37),
        ("tcpi_total_rto_time", 4, 38),
    ];

    fn sample() -> TcpInfo {
        let (ms, us) = (Duration::from_millis, Duration::from_micros);
        TcpInfo {
            state: State::CloseWait,
            ca_state: 3,
            probes: 5,
            retransmits: 2,
            backoff: 4,
            rto: ms(201),
            ato: ms(40),
            snd_mss: 1000,
            rcv_mss: 1001,
            advmss: 1002,
            pmtu: 1500,
            unacked: 11,
            sacked: 12,
            lost: 13,
            retrans: 14,
            last_data_sent: ms(15),
            last_data_recv: ms(16),
            last_ack_recv: ms(17),
            rtt: us(18),
            rttvar: us(19),
            min_rtt: us(28),
            snd_ssthresh: 20_000,
            snd_cwnd: 21_999,
            rcv_rtt: us(23),
            rcv_ssthresh: 60_001,
            rcv_space: 60_002,
            snd_wnd: 60_003,
            rcv_wnd: 60_004,
            notsent_bytes: 27,
            unacked_bytes: 11_000,
            total_retrans: 24,
            bytes_acked: 1 << 33,
            bytes_received: 1 << 34,
            bytes_sent: 1 << 39,
            bytes_retrans: 1 << 40,
            segs_out: 25,
            segs_in: 26,
            data_segs_out: 30,
            data_segs_in: 29,
            busy_time: us(1 << 36),
            rwnd_limited: us(1 << 37),
            sndbuf_limited: us(1 << 38),
            delivered: 31,
            delivered_ce: 32,
            delivery_rate: 1 << 35,
            app_limited: true,
            dsack_dups: 33,
            reordering: 22,
            reord_seen: 34,
            rcv_ooopack: 35,
            total_rto: 36,
            total_rto_recoveries: 37,
            total_rto_time: ms(38),
            timestamps: true,
            sack: true,
            ecn: true,
            ecn_seen: true,
            syn_data: true,
            fast_open_failed: Some(FastOpenFailure::Repeated),
            wscale: Some((7, 9)),
            soft_error: None,
        }
    }

    /// What stands in so many bytes.
    fn number(bytes: &[u8]) -> u64 {
        match *bytes {
            [byte] => byte.into(),
            [a, b] => u16::from_ne_bytes([a, b]).into(),
            [a, b, c, d] => u32::from_ne_bytes([a, b, c, d]).into(),
            _ => u64::from_ne_bytes(bytes.try_into().unwrap()),
        }
    }

    #[test]
    fn each_field_is_where_linux_has_it() {
        let bytes = sample().to_linux();
        let mut rest = &bytes[..];
        for (name, size, expected) in FIELDS {
            let at = bytes.len() - rest.len();
            assert_eq!(at % size, 0, "{name} is aligned, so that nothing is between the fields");
            let (field, behind) = rest.split_at(size);
            assert_eq!(number(field), expected, "{name}, at {at}");
            rest = behind;
        }
        assert!(rest.is_empty(), "{}", rest.len());
    }

    #[test]
    fn each_option_has_its_bit() {
        let none = TcpInfo {
            timestamps: false,
            sack: false,
            wscale: None,
            ecn: false,
            ecn_seen: false,
            syn_data: false,
            ..sample()
        };
        assert_eq!(none.to_linux()[5..7], [0, 0]);
        for (info, bit) in [
            (TcpInfo { timestamps: true, ..none.clone() }, 1),
            (TcpInfo { sack: true, ..none.clone() }, 2),
            (TcpInfo { wscale: Some((0, 0)), ..none.clone() }, 4),
            (TcpInfo { ecn: true, ..none.clone() }, 8),
            (TcpInfo { ecn_seen: true, ..none.clone() }, 16),
            (TcpInfo { syn_data: true, ..none.clone() }, 32),
        ] {
            assert_eq!(info.to_linux()[5], bit, "{info:?}");
        }
    }

    #[test]
    fn what_is_not_known_yet_is_linux_s_number_for_that() {
        let info = TcpInfo { min_rtt: Duration::ZERO, snd_ssthresh: u32::MAX, ..sample() };
        let bytes = info.to_linux();
        assert_eq!(number(&bytes[148..152]), u32::MAX.into());
        assert_eq!(number(&bytes[76..80]), 0x7fff_ffff);
    }
}
