//! A connection as numbers, for who asks over the control socket: what `ss -i` shows of one.

use std::fmt::Write;
use std::time::Duration;

use bywash_stack::{CongestionControl, TcpInfo};
use serde::{Deserialize, Serialize};

/// [`TcpInfo`] under the names of Linux's `struct tcp_info`. Times are microseconds; windows and buffers bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "each is the field of that name in TcpInfo")]
pub struct SocketInfo {
    /// `cubic`, `newreno`.
    pub congestion: String,
    pub timestamps: bool,
    pub sack: bool,
    pub ecn: bool,
    pub ecn_seen: bool,
    /// The peer's and ours, when both ends scale.
    pub wscale: Option<(u8, u8)>,
    pub ca_state: u8,
    pub backoff: u8,
    pub rto_us: u64,
    pub ato_us: u64,
    pub rtt_us: u64,
    pub rttvar_us: u64,
    pub min_rtt_us: u64,
    pub rcv_rtt_us: u64,
    pub last_data_sent_us: u64,
    pub last_data_recv_us: u64,
    pub last_ack_recv_us: u64,
    pub snd_mss: u32,
    pub rcv_mss: u32,
    pub advmss: u32,
    pub pmtu: u32,
    pub snd_cwnd: u32,
    /// None before the first loss.
    pub snd_ssthresh: Option<u32>,
    pub rcv_space: u32,
    pub rcv_ssthresh: u32,
    pub snd_wnd: u32,
    pub rcv_wnd: u32,
    pub notsent_bytes: u32,
    /// Segments.
    pub unacked: u32,
    pub sacked: u32,
    pub lost: u32,
    pub retrans: u32,
    pub total_retrans: u32,
    pub bytes_sent: u64,
    pub bytes_retrans: u64,
    pub bytes_acked: u64,
    pub bytes_received: u64,
    pub segs_out: u32,
    pub segs_in: u32,
    pub data_segs_out: u32,
    pub data_segs_in: u32,
    pub delivered: u32,
    pub delivered_ce: u32,
    /// Bytes per second.
    pub delivery_rate: u64,
    /// The program had no more to send while that was measured.
    pub app_limited: bool,
    pub busy_us: u64,
    pub rwnd_limited_us: u64,
    pub sndbuf_limited_us: u64,
    pub dsack_dups: u32,
    /// Segments.
    pub reordering: u32,
    pub reord_seen: u32,
    pub rcv_ooopack: u32,
    pub total_rto: u16,
    pub total_rto_recoveries: u16,
    pub total_rto_time_us: u64,
}

impl SocketInfo {
    pub(crate) fn of(info: &TcpInfo, congestion: CongestionControl) -> Self {
        let micros = |time: Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        Self {
            congestion: match congestion {
                CongestionControl::Cubic => "cubic",
                CongestionControl::NewReno => "newreno",
            }
            .into(),
            timestamps: info.timestamps,
            sack: info.sack,
            ecn: info.ecn,
            ecn_seen: info.ecn_seen,
            wscale: info.wscale,
            ca_state: info.ca_state,
            backoff: info.backoff,
            rto_us: micros(info.rto),
            ato_us: micros(info.ato),
            rtt_us: micros(info.rtt),
            rttvar_us: micros(info.rttvar),
            min_rtt_us: micros(info.min_rtt),
            rcv_rtt_us: micros(info.rcv_rtt),
            last_data_sent_us: micros(info.last_data_sent),
            last_data_recv_us: micros(info.last_data_recv),
            last_ack_recv_us: micros(info.last_ack_recv),
            snd_mss: info.snd_mss,
            rcv_mss: info.rcv_mss,
            advmss: info.advmss,
            pmtu: info.pmtu,
            snd_cwnd: info.snd_cwnd,
            snd_ssthresh: (info.snd_ssthresh != u32::MAX).then_some(info.snd_ssthresh),
            rcv_space: info.rcv_space,
            rcv_ssthresh: info.rcv_ssthresh,
            snd_wnd: info.snd_wnd,
            rcv_wnd: info.rcv_wnd,
            notsent_bytes: info.notsent_bytes,
            unacked: info.unacked,
            sacked: info.sacked,
            lost: info.lost,
            retrans: info.retrans,
            total_retrans: info.total_retrans,
            bytes_sent: info.bytes_sent,
            bytes_retrans: info.bytes_retrans,
            bytes_acked: info.bytes_acked,
            bytes_received: info.bytes_received,
            segs_out: info.segs_out,
            segs_in: info.segs_in,
            data_segs_out: info.data_segs_out,
            data_segs_in: info.data_segs_in,
            delivered: info.delivered,
            delivered_ce: info.delivered_ce,
            delivery_rate: info.delivery_rate,
            app_limited: info.app_limited,
            busy_us: micros(info.busy_time),
            rwnd_limited_us: micros(info.rwnd_limited),
            sndbuf_limited_us: micros(info.sndbuf_limited),
            dsack_dups: info.dsack_dups,
            reordering: info.reordering,
            reord_seen: info.reord_seen,
            rcv_ooopack: info.rcv_ooopack,
            total_rto: info.total_rto,
            total_rto_recoveries: info.total_rto_recoveries,
            total_rto_time_us: micros(info.total_rto_time),
        }
    }

    /// As `ss -i` writes it: windows of congestion in segments, times in milliseconds.
    pub fn line(&self) -> String {
        let ms = |us: u64| format!("{}.{:03}", us / 1000, us % 1000);
        let mss = self.snd_mss.max(1);
        let agreed =
            [(self.timestamps, "ts"), (self.sack, "sack"), (self.ecn, "ecn"), (self.ecn_seen, "ecnseen")];
        let mut words: Vec<String> =
            agreed.iter().filter(|(is, _)| *is).map(|(_, word)| (*word).to_owned()).collect();
        words.push(self.congestion.clone());
        words.extend(self.wscale.map(|(theirs, ours)| format!("wscale:{theirs},{ours}")));
        words.extend([
            format!("rto:{}", ms(self.rto_us)),
            format!("rtt:{}/{}", ms(self.rtt_us), ms(self.rttvar_us)),
            format!("ato:{}", ms(self.ato_us)),
            format!("mss:{}", self.snd_mss),
            format!("pmtu:{}", self.pmtu),
            format!("rcvmss:{}", self.rcv_mss),
            format!("advmss:{}", self.advmss),
            format!("cwnd:{}", self.snd_cwnd / mss),
        ]);
        words.extend(self.snd_ssthresh.map(|bytes| format!("ssthresh:{}", bytes / mss)));
        words.extend([
            format!("lastsnd:{}", self.last_data_sent_us / 1000),
            format!("lastrcv:{}", self.last_data_recv_us / 1000),
            format!("lastack:{}", self.last_ack_recv_us / 1000),
            format!("rcv_rtt:{}", ms(self.rcv_rtt_us)),
            format!("minrtt:{}", ms(self.min_rtt_us)),
        ]);
        if self.total_retrans > 0 {
            words.push(format!("retrans:{}/{}", self.retrans, self.total_retrans));
        }
        // Numbers that ss leaves out when they are zero, in its order.
        let present = |numbers: &[(&str, u64)]| -> Vec<String> {
            numbers.iter().filter(|(_, n)| *n > 0).map(|(name, n)| format!("{name}:{n}")).collect()
        };
        words.extend(present(&[
            ("backoff", self.backoff.into()),
            ("bytes_sent", self.bytes_sent),
            ("bytes_retrans", self.bytes_retrans),
            ("bytes_acked", self.bytes_acked),
            ("bytes_received", self.bytes_received),
            ("segs_out", self.segs_out.into()),
            ("segs_in", self.segs_in.into()),
            ("data_segs_out", self.data_segs_out.into()),
            ("data_segs_in", self.data_segs_in.into()),
            ("notsent", self.notsent_bytes.into()),
        ]));
        if self.delivery_rate > 0 {
            words.push(format!("delivery_rate {}bps", self.delivery_rate.saturating_mul(8)));
        }
        words.extend(present(&[
            ("delivered", self.delivered.into()),
            ("delivered_ce", self.delivered_ce.into()),
        ]));
        words.extend(self.app_limited.then(|| "app_limited".to_owned()));
        words.extend(self.busy());
        words.extend(present(&[
            ("unacked", self.unacked.into()),
            ("lost", self.lost.into()),
            ("sacked", self.sacked.into()),
            ("dsack_dups", self.dsack_dups.into()),
            // It begins with three.
            ("reordering", if self.reordering == 3 { 0 } else { self.reordering.into() }),
            ("reord_seen", self.reord_seen.into()),
            ("rcv_ooopack", self.rcv_ooopack.into()),
            ("total_rto", self.total_rto.into()),
            ("total_rto_recoveries", self.total_rto_recoveries.into()),
            ("total_rto_time", self.total_rto_time_us / 1000),
            ("rcv_space", self.rcv_space.into()),
            ("rcv_ssthresh", self.rcv_ssthresh.into()),
            ("snd_wnd", self.snd_wnd.into()),
            ("rcv_wnd", self.rcv_wnd.into()),
        ]));
        words.join(" ")
    }

    /// How long there was something to send, and how much of that it was held back at one of the ends.
    fn busy(&self) -> Option<String> {
        let whole = Some(self.busy_us).filter(|us| *us > 0)?;
        let mut words = format!("busy:{}ms", whole / 1000);
        for (name, us) in [("rwnd_limited", self.rwnd_limited_us), ("sndbuf_limited", self.sndbuf_limited_us)]
        {
            if us > 0 {
                let tenths = us.saturating_mul(1000) / whole;
                let _ = write!(words, " {name}:{}ms({}.{}%)", us / 1000, tenths / 10, tenths % 10);
            }
        }
        Some(words)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_agreed_on_and_seen_comes_first() {
        let congestion = "cubic".to_owned();
        let info = SocketInfo { congestion, sack: true, ecn: true, ecn_seen: true, ..SocketInfo::default() };
        assert!(info.line().starts_with("sack ecn ecnseen cubic "), "{}", info.line());
        let line = SocketInfo { ecn_seen: false, ..info }.line();
        assert!(line.starts_with("sack ecn cubic "), "{line}");
    }

    #[test]
    fn what_is_as_it_begins_is_left_out_and_times_are_shares_of_the_whole() {
        let mut info = SocketInfo { reordering: 3, rwnd_limited_us: 700, ..SocketInfo::default() };
        let line = info.line();
        assert!(!["busy", "limited", "reord"].iter().any(|word| line.contains(word)), "{line}");
        info = SocketInfo { busy_us: 8_000_700, reordering: 17, reord_seen: 2, ..info };
        info.sndbuf_limited_us = 2_400_000;
        let line = info.line();
        assert!(line.contains("busy:8000ms rwnd_limited:0ms(0.0%) sndbuf_limited:2400ms(29.9%)"), "{line}");
        assert!(line.contains("reordering:17 reord_seen:2"), "{line}");
    }
}
