//! What the plug-in is told: packetdrill's `--so_flags`, and the sysctls that scripts set.

use std::fs;
use std::net::IpAddr;
use std::path::Path;
use std::time::Duration;

use bywash_stack::{CongestionControl, FastOpenKeys, Limits};

use crate::fast_open;

/// Where Linux keeps the sysctls of this network namespace.
const SYSCTLS: &str = "/proc/sys/net/ipv4";

/// And those that all protocols share.
const CORE: &str = "/proc/sys/net/core";

/// `--so_flags`.
#[derive(Clone, Debug)]
pub(crate) struct Flags {
    pub(crate) mtu: u16,
    /// Our address, until packets say another one.
    pub(crate) local: IpAddr,
    /// Whether sockets begin with what the sysctls say.
    pub(crate) sysctls: bool,
}

impl Flags {
    /// Reads `name=value` words with commas between them.
    ///
    /// # Errors
    /// A sentence: a word that means nothing.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        Self::parse_with(text, &std::env::args().collect::<Vec<_>>())
    }

    /// The same, with packetdrill's own command line: it does not hand on what it says of the link.
    fn parse_with(text: &str, command: &[String]) -> Result<Self, String> {
        // As `getopt_long` takes it: `--mtu=1500` or `--mtu 1500`; of several the last one counts.
        let said = |name: &str| {
            let next = |i: usize| command.get(i + 1).map(String::as_str);
            let words = command.iter().enumerate().rev();
            words.into_iter().find_map(|(i, word)| match word.strip_prefix(name)? {
                "" => next(i),
                value => value.strip_prefix('='),
            })
        };
        let mtu = said("--mtu").and_then(|mtu| mtu.parse().ok()).unwrap_or(1500);
        let v6 = said("--ip_version") == Some("ipv6");
        // What packetdrill takes where it is not told.
        let usual = if v6 {
            IpAddr::from([0xfd3d, 0xfa7b, 0xd17d, 0, 0, 0, 0, 0])
        } else {
            IpAddr::from([192, 168, 0, 2])
        };
        let local = said("--local_ip").and_then(|local| local.parse().ok()).unwrap_or(usual);
        let mut flags = Self { mtu, local, sysctls: true };
        for word in text.split(',').map(str::trim).filter(|word| !word.is_empty()) {
            let bad = || format!("--so_flags: {word}: write mtu=N, local=ADDRESS or sysctls=fixed");
            match word.split_once('=').ok_or_else(bad)? {
                ("mtu", value) => flags.mtu = value.parse().map_err(|_| bad())?,
                ("local", value) => flags.local = value.parse().map_err(|_| bad())?,
                ("sysctls", "fixed") => flags.sysctls = false,
                ("sysctls", "follow") => flags.sysctls = true,
                _ => return Err(bad()),
            }
        }
        Ok(flags)
    }

    /// How long data of an open connection may stay without an answer, where its program has not said (`tcp_retries2`).
    pub(crate) fn patience(&self) -> Duration {
        let usual = Limits::default().user_timeout;
        if self.sysctls { patience(Path::new(SYSCTLS)).unwrap_or(usual) } else { usual }
    }

    /// What of Fast Open is allowed, in the bits of `tcp_fastopen`; without sysctls, both sides of it, where programs ask.
    pub(crate) fn fast_open(&self) -> u32 {
        let bits = || words(Path::new(SYSCTLS), "tcp_fastopen").first()?.parse().ok();
        let asked = fast_open::CLIENT | fast_open::SERVER;
        if self.sysctls { bits().unwrap_or(asked) } else { asked }
    }

    /// The keys that `tcp_fastopen_key` says, where it says any.
    pub(crate) fn fast_open_keys(&self) -> Option<FastOpenKeys> {
        let text = words(Path::new(SYSCTLS), "tcp_fastopen_key");
        let mut keys = text.first().filter(|_| self.sysctls)?.split(',').map(key);
        Some(FastOpenKeys { primary: keys.next()??, backup: keys.next().flatten() })
    }

    /// The largest buffer that a program may ask for: `rmem_max` or `wmem_max`; without sysctls, what reads back doubled.
    pub(crate) fn most_memory(&self, name: &str) -> i32 {
        let most = || words(Path::new(CORE), name).first()?.parse::<i32>().ok();
        let any = i32::MAX / 2;
        if self.sysctls { most().unwrap_or(any).min(any) } else { any }
    }

    /// What a new socket may use.
    pub(crate) fn limits(&self) -> Limits {
        if self.sysctls { limits(Path::new(SYSCTLS)) } else { Limits::default() }
    }
}

/// What one of the files in a folder says.
fn words(folder: &Path, name: &str) -> Vec<String> {
    let text = fs::read_to_string(folder.join(name)).unwrap_or_default();
    text.split_whitespace().map(str::to_owned).collect()
}

/// A key as Linux writes it: four numbers, each in little-endian order.
fn key(text: &str) -> Option<[u8; 16]> {
    let words = text.split('-').map(|word| u32::from_str_radix(word, 16).ok().map(u32::to_le_bytes));
    words.collect::<Option<Vec<_>>>()?.concat().try_into().ok()
}

fn patience(folder: &Path) -> Option<Duration> {
    words(folder, "tcp_retries2").first()?.parse().ok().map(retransmissions)
}

/// Limits as the files in a folder say; where one is missing or strange, as the stack has it.
fn limits(folder: &Path) -> Limits {
    let words = |name: &str| words(folder, name);
    let number = |name: &str, place: usize| words(name).get(place).and_then(|word| word.parse::<u32>().ok());
    let seconds = |name: &str, old: Duration| number(name, 0).map_or(old, |n| Duration::from_secs(n.into()));
    let flag = |name: &str, old: bool| number(name, 0).map_or(old, |n| n != 0);
    let count = |name: &str, old: u8| number(name, 0).map_or(old, |n| u8::try_from(n).unwrap_or(u8::MAX));
    let old = Limits::default();
    let congestion = match words("tcp_congestion_control").first().map(String::as_str) {
        Some("reno") => CongestionControl::NewReno,
        _ => old.congestion,
    };
    Limits {
        receive_initial: number("tcp_rmem", 1).unwrap_or(old.receive_initial),
        receive_max: number("tcp_rmem", 2).unwrap_or(old.receive_max),
        // Linux makes it larger as soon as there is a connection, to about what the stack begins with.
        send_initial: number("tcp_wmem", 1).map_or(old.send_initial, |bytes| bytes.max(old.send_initial)),
        send_max: number("tcp_wmem", 2).unwrap_or(old.send_max),
        // As Linux has it where nobody has said anything.
        unsent: number("tcp_notsent_lowat", 0).unwrap_or(u32::MAX),
        congestion,
        // 2 is: only when the peer asks; 0: not even then.
        ecn: number("tcp_ecn", 0) == Some(1),
        answers_ecn: flag("tcp_ecn", old.answers_ecn),
        restart_after_idle: flag("tcp_slow_start_after_idle", old.restart_after_idle),
        super_segment_min: count("tcp_min_tso_segs", old.super_segment_min),
        keepalive_idle: seconds("tcp_keepalive_time", old.keepalive_idle),
        keepalive_interval: seconds("tcp_keepalive_intvl", old.keepalive_interval),
        keepalive_count: count("tcp_keepalive_probes", old.keepalive_count),
        window_scaling: flag("tcp_window_scaling", old.window_scaling),
        timestamps: flag("tcp_timestamps", old.timestamps),
        sack: flag("tcp_sack", old.sack),
        syn_retries: count("tcp_syn_retries", old.syn_retries),
        syn_ack_retries: count("tcp_synack_retries", old.syn_ack_retries),
        fin_timeout: seconds("tcp_fin_timeout", old.fin_timeout),
        ..old
    }
}

/// How long Linux goes on where so many retransmissions are allowed (its `tcp_model_timeout`): each waits twice as long as the one
/// before, from 200 ms on, and at most 120 s.
fn retransmissions(count: u32) -> Duration {
    const LEAST: Duration = Duration::from_millis(200);
    const MOST: Duration = Duration::from_secs(120);
    const DOUBLED: u32 = 9;
    LEAST * ((2 << count.min(DOUBLED)) - 1) + MOST * count.min(u8::MAX.into()).saturating_sub(DOUBLED)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_are_read_or_refused_with_what_to_write() {
        let flags = Flags::parse("mtu=9000, local=10.0.0.1,sysctls=fixed").unwrap();
        assert_eq!((flags.mtu, flags.local, flags.sysctls), (9000, IpAddr::from([10, 0, 0, 1]), false));
        assert_eq!(flags.limits(), Limits::default());
        let command = ["packetdrill", "--ip_version=ipv6", "--mtu=1520"].map(str::to_owned);
        let flags = Flags::parse_with("", &command).unwrap();
        assert_eq!((flags.mtu, flags.local.is_ipv6()), (1520, true));
        assert_eq!(Flags::parse_with("mtu=1400", &command).unwrap().mtu, 1400);
        let command =
            ["packetdrill", "--mtu=1500", "--ip_version", "ipv6", "--mtu", "1520"].map(str::to_owned);
        let flags = Flags::parse_with("", &command).unwrap();
        assert_eq!((flags.mtu, flags.local.is_ipv6()), (1520, true));
        for bad in ["mtu", "mtu=many", "color=red"] {
            assert!(Flags::parse(bad).unwrap_err().contains("write mtu=N"), "{bad}");
        }
    }

    #[test]
    fn keys_are_numbers_in_little_endian_order() {
        let bytes = *b"\xf7\x63\xbf\xa0\x81\x3d\x80\xed\x30\x1d\x64\xcd\x90\x4a\xbc\xce";
        assert_eq!(key("a0bf63f7-ed803d81-cd641d30-cebc4a90"), Some(bytes));
        assert_eq!((key("a0bf63f7-ed803d81-cd641d30"), key("many")), (None, None));
    }

    #[test]
    fn retransmissions_are_a_time() {
        assert_eq!(retransmissions(0), Duration::from_millis(200));
        // As Linux's documentation has it.
        assert_eq!(retransmissions(15), Duration::from_millis(924_600));
    }

    #[test]
    fn sysctls_are_what_sockets_begin_with() {
        let folder = std::env::temp_dir().join(format!("bywash-sysctls-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        for (name, text) in [
            ("tcp_rmem", "4096\t20000\t15728640\n"),
            ("tcp_wmem", "4096\t300000\t2000000\n"),
            ("tcp_sack", "0\n"),
            ("tcp_ecn", "0\n"),
            ("tcp_slow_start_after_idle", "0\n"),
            ("tcp_retries2", "3\n"),
            ("tcp_congestion_control", "reno\n"),
            ("tcp_fin_timeout", "soon\n"),
        ] {
            fs::write(folder.join(name), text).unwrap();
        }
        let (read, patience) = (limits(&folder), patience(&folder));
        fs::remove_dir_all(&folder).unwrap();
        let expected = Limits {
            receive_initial: 20_000,
            receive_max: 15_728_640,
            send_initial: 300_000,
            send_max: 2_000_000,
            unsent: u32::MAX,
            sack: false,
            answers_ecn: false,
            restart_after_idle: false,
            congestion: CongestionControl::NewReno,
            ..Limits::default()
        };
        assert_eq!(read, expected);
        // 0.2, 0.4, 0.8 and 1.6 seconds.
        assert_eq!(patience, Some(Duration::from_secs(3)));
    }
}
