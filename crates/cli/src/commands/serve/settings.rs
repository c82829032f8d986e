//! How TCP is to behave, from flags or from the file's table `[tcp]`. The file's names are Linux's: those of its sysctls
//! without `tcp_`, of its socket options where there is no sysctl.

use std::time::Duration;

use bywash_engine::stack::{CongestionControl, Limits};
use bywash_programs::KernelOptions;
use clap::ValueEnum;
use serde::de::{Deserializer, Error};
use serde::{Deserialize, de};

use crate::values;

/// The largest window that its field can tell, scaled by 14 (RFC 7323, 2.3); Linux's largest buffers are of this order, too.
const LARGEST: u32 = 65_535 << 14;
/// Linux' `TCP_FIN_TIMEOUT_MAX`: what is longer it makes that long without a word.
const KERNEL_FIN_TIMEOUT: Duration = Duration::from_secs(120);
/// Below it no segment of 1460 bytes and its successor would fit.
const SMALLEST: u32 = 4096;

/// What is given; the stack's defaults stand for the rest.
#[derive(clap::Args, Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[command(next_help_heading = "TCP")]
#[serde(deny_unknown_fields)]
pub(crate) struct Settings {
    /// How the congestion window is made [default: cubic]
    #[arg(long = "congestion", value_name = "NAME")]
    congestion_control: Option<Congestion>,
    /// Ask for explicit congestion notification (RFC 3168) when connecting
    #[arg(long, value_name = "WHEN", num_args = 0..=1, require_equals = true, default_missing_value = "on", value_parser = on_off)]
    ecn: Option<bool>,
    /// Probe a peer that has been silent for so long [default: never]
    #[arg(long = "keepalive", value_name = "TIME", value_parser = Time::of)]
    keepalive_time: Option<Time>,
    /// Between two such probes [default: 75s]; without --keepalive a peer is silent for two hours before the first
    #[arg(long = "keepalive-interval", value_name = "TIME", value_parser = Time::of)]
    keepalive_intvl: Option<Time>,
    /// So many probes without an answer end the connection [default: 9]
    #[arg(long = "keepalive-count", value_name = "N", value_parser = clap::value_parser!(u8).range(1..=127))]
    #[serde(deserialize_with = "from_1_to_127", default)]
    keepalive_probes: Option<u8>,
    /// End a connection whose data has had no answer for so long (RFC 5482) [default: 924s]
    #[arg(long, value_name = "TIME", value_parser = Time::of)]
    user_timeout: Option<Time>,
    /// The largest segment, both ways, in bytes of payload, where the path would take more
    #[arg(long = "mss", value_name = "BYTES", value_parser = clap::value_parser!(u16).range(88..=32_767))]
    #[serde(deserialize_with = "segment", default)]
    maxseg: Option<u16>,
    /// The receive window of a connection grows up to so many bytes [default: 4M]
    #[arg(long, value_name = "SIZE", value_parser = Size::of)]
    rmem_max: Option<Size>,
    /// The send buffer of a connection grows up to so many bytes [default: 4M]
    #[arg(long, value_name = "SIZE", value_parser = Size::of)]
    wmem_max: Option<Size>,
    /// The receive window at first [default: 128K]
    #[arg(long, value_name = "SIZE", value_parser = Size::of, hide_short_help = true)]
    rmem_default: Option<Size>,
    /// The send buffer at first [default: 64K]
    #[arg(long, value_name = "SIZE", value_parser = Size::of, hide_short_help = true)]
    wmem_default: Option<Size>,
    /// Bytes that a program may write ahead of what is sent [default: 256K]
    #[arg(long, value_name = "SIZE", value_parser = Size::of, hide_short_help = true)]
    notsent_lowat: Option<Size>,
    /// Selective acknowledgments (RFC 2018) [default: on]
    #[arg(long, value_name = "WHEN", value_parser = on_off, hide_short_help = true)]
    sack: Option<bool>,
    /// Timestamps (RFC 7323) [default: on]
    #[arg(long, value_name = "WHEN", value_parser = on_off, hide_short_help = true)]
    timestamps: Option<bool>,
    /// Windows of more than 65535 bytes (RFC 7323) [default: on]
    #[arg(long, value_name = "WHEN", value_parser = on_off, hide_short_help = true)]
    window_scaling: Option<bool>,
    /// Explicit congestion notification for peers that ask for it [default: on]
    #[arg(long, value_name = "WHEN", value_parser = on_off, hide_short_help = true)]
    answer_ecn: Option<bool>,
    /// Find out anew what the path takes after a pause (RFC 5681, 4.1) [default: on]
    #[arg(long, value_name = "WHEN", value_parser = on_off, hide_short_help = true)]
    slow_start_after_idle: Option<bool>,
    /// How often a SYN is sent again [default: 7]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=127), hide_short_help = true)]
    #[serde(deserialize_with = "from_1_to_127", default)]
    syn_retries: Option<u8>,
    /// How often a SYN,ACK is sent again [default: 5]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=127), hide_short_help = true)]
    #[serde(deserialize_with = "from_1_to_127", default)]
    synack_retries: Option<u8>,
    /// How long a connection whose program has gone waits for the peer's end [default: 60s]
    #[arg(long, value_name = "TIME", value_parser = Time::of, hide_short_help = true)]
    fin_timeout: Option<Time>,
}

/// `--congestion`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Congestion {
    Cubic,
    /// Linux calls it reno.
    #[value(alias = "reno")]
    Newreno,
}

/// A length of time: `60s`, or seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Time(Duration);

impl Time {
    /// Above it a sum of several would not fit the stack's clock.
    const LONGEST: Duration = Duration::from_secs(32_767);

    fn of(text: &str) -> Result<Self, String> {
        let time = values::duration(text)?;
        if time < Duration::from_millis(1) || time > Self::LONGEST {
            return Err("it must be from 1ms to 32767s".into());
        }
        Ok(Self(time))
    }
}

/// Bytes: `4M`, or a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Size(u32);

impl Size {
    fn of(text: &str) -> Result<Self, String> {
        let size = u32::try_from(values::bytes(text)?).unwrap_or(u32::MAX);
        if (SMALLEST..=LARGEST).contains(&size) {
            Ok(Self(size))
        } else {
            Err(format!("it must be from {SMALLEST} to {LARGEST} bytes"))
        }
    }
}

fn on_off(text: &str) -> Result<bool, String> {
    match text {
        "on" => Ok(true),
        "off" => Ok(false),
        _ => Err("write on or off".into()),
    }
}

impl Settings {
    /// These, and those of a file for what they leave open.
    pub(crate) fn or(self, file: Self) -> Self {
        Self {
            congestion_control: self.congestion_control.or(file.congestion_control),
            ecn: self.ecn.or(file.ecn),
            keepalive_time: self.keepalive_time.or(file.keepalive_time),
            keepalive_intvl: self.keepalive_intvl.or(file.keepalive_intvl),
            keepalive_probes: self.keepalive_probes.or(file.keepalive_probes),
            user_timeout: self.user_timeout.or(file.user_timeout),
            maxseg: self.maxseg.or(file.maxseg),
            rmem_max: self.rmem_max.or(file.rmem_max),
            wmem_max: self.wmem_max.or(file.wmem_max),
            rmem_default: self.rmem_default.or(file.rmem_default),
            wmem_default: self.wmem_default.or(file.wmem_default),
            notsent_lowat: self.notsent_lowat.or(file.notsent_lowat),
            sack: self.sack.or(file.sack),
            timestamps: self.timestamps.or(file.timestamps),
            window_scaling: self.window_scaling.or(file.window_scaling),
            answer_ecn: self.answer_ecn.or(file.answer_ecn),
            slow_start_after_idle: self.slow_start_after_idle.or(file.slow_start_after_idle),
            syn_retries: self.syn_retries.or(file.syn_retries),
            synack_retries: self.synack_retries.or(file.synack_retries),
            fin_timeout: self.fin_timeout.or(file.fin_timeout),
        }
    }

    /// Whether one of those for keepalive is given, which says that it is wanted.
    fn keepalive(&self) -> bool {
        self.keepalive_time.is_some() || self.keepalive_intvl.is_some() || self.keepalive_probes.is_some()
    }

    /// As the stack wants it.
    ///
    /// # Errors
    /// What contradicts itself, in one line.
    pub(crate) fn limits(&self) -> Result<Limits, String> {
        let usual = Limits::default();
        let time = |given: Option<Time>, usual| given.map_or(usual, |time| time.0);
        // A largest size below what is usual at first is one at first, too.
        let pair = |first: Option<Size>, most: Option<Size>, usual: (u32, u32), names: &str| {
            let most = most.map_or(usual.1, |size| size.0);
            let first = first.map_or(usual.0.min(most), |size| size.0);
            if first > most { Err(format!("{names}: at first more than at most")) } else { Ok((first, most)) }
        };
        let receive = (usual.receive_initial, usual.receive_max);
        let send = (usual.send_initial, usual.send_max);
        let (receive_initial, receive_max) =
            pair(self.rmem_default, self.rmem_max, receive, "rmem_default, rmem_max")?;
        let (send_initial, send_max) =
            pair(self.wmem_default, self.wmem_max, send, "wmem_default, wmem_max")?;
        Ok(Limits {
            receive_initial,
            receive_max,
            send_initial,
            send_max,
            unsent: self.notsent_lowat.map_or(usual.unsent, |size| size.0),
            congestion: match self.congestion_control {
                None => usual.congestion,
                Some(Congestion::Cubic) => CongestionControl::Cubic,
                Some(Congestion::Newreno) => CongestionControl::NewReno,
            },
            ecn: self.ecn.unwrap_or(usual.ecn),
            keepalive: self.keepalive(),
            keepalive_idle: time(self.keepalive_time, usual.keepalive_idle),
            keepalive_interval: time(self.keepalive_intvl, usual.keepalive_interval),
            keepalive_count: self.keepalive_probes.unwrap_or(usual.keepalive_count),
            user_timeout: time(self.user_timeout, usual.user_timeout),
            fin_timeout: time(self.fin_timeout, usual.fin_timeout),
            window_scaling: self.window_scaling.unwrap_or(usual.window_scaling),
            timestamps: self.timestamps.unwrap_or(usual.timestamps),
            sack: self.sack.unwrap_or(usual.sack),
            answers_ecn: self.answer_ecn.unwrap_or(usual.answers_ecn),
            mss: self.maxseg,
            restart_after_idle: self.slow_start_after_idle.unwrap_or(usual.restart_after_idle),
            syn_retries: self.syn_retries.unwrap_or(usual.syn_retries),
            syn_ack_retries: self.synack_retries.unwrap_or(usual.syn_ack_retries),
            super_segment_min: usual.super_segment_min,
            traffic_class: usual.traffic_class,
            hop_limit: usual.hop_limit,
        })
    }

    /// As the kernel's sockets want it.
    ///
    /// # Errors
    /// For what the kernel has no socket option, or what is more than it takes, in one line.
    pub(crate) fn kernel(&self) -> Result<KernelOptions, String> {
        let sysctl = |flag: &str, what: &str| {
            Err(format!(
                "--{flag}: the kernel has no socket option for it, but {what}; leave it out with --kernel"
            ))
        };
        match self {
            Self { ecn: Some(_), .. } => {
                return sysctl("ecn", "sysctl net.ipv4.tcp_ecn, and `features ecn` of ip-route");
            }
            Self { sack: Some(_), .. } => return sysctl("sack", "sysctl net.ipv4.tcp_sack"),
            Self { timestamps: Some(_), .. } => {
                return sysctl("timestamps", "sysctl net.ipv4.tcp_timestamps");
            }
            Self { window_scaling: Some(_), .. } => {
                return sysctl("window-scaling", "sysctl net.ipv4.tcp_window_scaling");
            }
            Self { answer_ecn: Some(_), .. } => return sysctl("answer-ecn", "sysctl net.ipv4.tcp_ecn"),
            Self { slow_start_after_idle: Some(_), .. } => {
                return sysctl("slow-start-after-idle", "sysctl net.ipv4.tcp_slow_start_after_idle");
            }
            Self { synack_retries: Some(_), .. } => {
                return sysctl("synack-retries", "sysctl net.ipv4.tcp_synack_retries");
            }
            Self { rmem_default: Some(_), .. } => return sysctl("rmem-default", "sysctl net.ipv4.tcp_rmem"),
            Self { wmem_default: Some(_), .. } => return sysctl("wmem-default", "sysctl net.ipv4.tcp_wmem"),
            Self { fin_timeout: Some(Time(time)), .. } if *time > KERNEL_FIN_TIMEOUT => {
                return Err(format!(
                    "--fin-timeout: the kernel's TCP_LINGER2 is {} s at most; ask for no more with --kernel",
                    KERNEL_FIN_TIMEOUT.as_secs()
                ));
            }
            _ => {}
        }
        for (flag, time) in [
            ("keepalive", self.keepalive_time),
            ("keepalive-interval", self.keepalive_intvl),
            ("fin-timeout", self.fin_timeout),
        ] {
            if time.is_some_and(|time| time.0.subsec_nanos() > 0) {
                return Err(format!(
                    "--{flag}: the kernel knows whole seconds alone; ask for those with --kernel"
                ));
            }
        }
        Ok(KernelOptions {
            congestion: self.congestion_control.map(|control| match control {
                Congestion::Cubic => "cubic",
                Congestion::Newreno => "reno",
            }),
            keepalive: self.keepalive(),
            keepalive_idle: self.keepalive_time.map(|time| time.0),
            keepalive_interval: self.keepalive_intvl.map(|time| time.0),
            keepalive_count: self.keepalive_probes,
            user_timeout: self.user_timeout.map(|time| time.0),
            fin_timeout: self.fin_timeout.map(|time| time.0),
            max_segment: self.maxseg,
            receive_buffer: self.rmem_max.map(|size| size.0),
            send_buffer: self.wmem_max.map(|size| size.0),
            unsent: self.notsent_lowat.map(|size| size.0),
            syn_retries: self.syn_retries,
        })
    }
}

impl<'de> Deserialize<'de> for Congestion {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let name = String::deserialize(from)?;
        <Self as ValueEnum>::from_str(&name, false)
            .map_err(|_| D::Error::custom(format!("'{name}' is not known: write cubic or newreno")))
    }
}

/// What stands in a file with its unit, or as a plain number.
#[derive(Deserialize)]
#[serde(untagged)]
enum Written {
    Number(i64),
    Text(String),
}

fn written<'de, D: Deserializer<'de>, T>(
    from: D,
    read: impl Fn(&str) -> Result<T, String>,
) -> Result<T, D::Error> {
    let text = match Written::deserialize(from) {
        Ok(Written::Number(number)) => number.to_string(),
        Ok(Written::Text(text)) => text,
        Err(_) => return Err(D::Error::custom("write a number, or a number and its unit in quotes")),
    };
    read(&text).map_err(|why| D::Error::custom(format!("{text}: {why}")))
}

impl<'de> Deserialize<'de> for Time {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        written(from, Self::of)
    }
}

impl<'de> Deserialize<'de> for Size {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        written(from, Self::of)
    }
}

/// A number that must lie between two others.
fn between<'de, D: Deserializer<'de>>(from: D, least: i64, most: i64) -> Result<i64, D::Error> {
    let number = i64::deserialize(from)?;
    if (least..=most).contains(&number) {
        return Ok(number);
    }
    let wanted = format!("a number from {least} to {most}");
    Err(D::Error::invalid_value(de::Unexpected::Signed(number), &wanted.as_str()))
}

fn from_1_to_127<'de, D: Deserializer<'de>>(from: D) -> Result<Option<u8>, D::Error> {
    between(from, 1, 127).map(|number| u8::try_from(number).ok())
}

fn segment<'de, D: Deserializer<'de>>(from: D) -> Result<Option<u16>, D::Error> {
    between(from, 88, 32_767).map(|number| u16::try_from(number).ok())
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Flags {
        #[command(flatten)]
        settings: Settings,
    }

    fn typed(words: &str) -> Settings {
        Flags::try_parse_from(std::iter::once("x").chain(words.split_whitespace())).unwrap().settings
    }

    /// A line of a file, its flag, and what both make of [`Limits`].
    type Row = (&'static str, &'static str, fn(&mut Limits));
    const SETTINGS: [Row; 20] = [
        ("congestion_control = 'newreno'", "--congestion newreno", |l| {
            l.congestion = CongestionControl::NewReno
        }),
        ("ecn = true", "--ecn", |l| l.ecn = true),
        ("keepalive_time = 60", "--keepalive 60s", |l| {
            (l.keepalive, l.keepalive_idle) = (true, Duration::from_secs(60));
        }),
        ("keepalive_intvl = '500ms'", "--keepalive-interval 500ms", |l| {
            (l.keepalive, l.keepalive_interval) = (true, Duration::from_millis(500));
        }),
        ("keepalive_probes = 3", "--keepalive-count 3", |l| (l.keepalive, l.keepalive_count) = (true, 3)),
        ("user_timeout = '30s'", "--user-timeout 30s", |l| l.user_timeout = Duration::from_secs(30)),
        ("maxseg = 1000", "--mss 1000", |l| l.mss = Some(1000)),
        ("rmem_max = '64K'", "--rmem-max 64K", |l| (l.receive_initial, l.receive_max) = (65_536, 65_536)),
        ("wmem_max = 8388608", "--wmem-max 8M", |l| l.send_max = 8 << 20),
        ("rmem_default = '1M'", "--rmem-default 1M", |l| l.receive_initial = 1 << 20),
        ("wmem_default = '1M'", "--wmem-default 1M", |l| l.send_initial = 1 << 20),
        ("notsent_lowat = 16384", "--notsent-lowat 16K", |l| l.unsent = 16_384),
        ("sack = false", "--sack off", |l| l.sack = false),
        ("timestamps = false", "--timestamps off", |l| l.timestamps = false),
        ("answer_ecn = false", "--answer-ecn off", |l| l.answers_ecn = false),
        ("slow_start_after_idle = false", "--slow-start-after-idle off", |l| l.restart_after_idle = false),
        ("window_scaling = false", "--window-scaling off", |l| l.window_scaling = false),
        ("syn_retries = 2", "--syn-retries 2", |l| l.syn_retries = 2),
        ("synack_retries = 3", "--synack-retries 3", |l| l.syn_ack_retries = 3),
        ("fin_timeout = '5s'", "--fin-timeout 5s", |l| l.fin_timeout = Duration::from_secs(5)),
    ];

    #[test]
    fn a_file_and_flags_say_the_same() {
        let (mut file, mut flags, mut all) = (String::new(), String::new(), Limits::default());
        for (line, words, change) in SETTINGS {
            let mut one = Limits::default();
            change(&mut one);
            assert_ne!(one, Limits::default(), "{line}");
            assert_eq!(toml::from_str::<Settings>(line).unwrap().limits(), Ok(one), "{line}");
            assert_eq!(typed(words).limits(), Ok(one), "{words}");
            if !line.starts_with("rmem_default") {
                change(&mut all);
                file += &format!("{line}\n");
                flags += &format!("{words} ");
            }
        }
        let (file, flags) = (toml::from_str::<Settings>(&file).unwrap(), typed(&flags));
        assert_eq!((flags.limits(), file.limits()), (Ok(all), Ok(all)));
        let none = Settings::default();
        assert_eq!((none.clone().or(file.clone()), none.limits()), (file.clone(), Ok(Limits::default())));
        let faster = typed("--keepalive 1s").or(file).limits().unwrap();
        assert_eq!(
            (faster.keepalive_idle, faster.keepalive_count),
            (Duration::from_secs(1), 3),
            "flags come first"
        );
    }

    #[test]
    fn what_the_kernel_has_no_socket_option_for_is_refused() {
        for words in [
            "--ecn",
            "--ecn=off",
            "--sack on",
            "--timestamps on",
            "--answer-ecn off",
            "--slow-start-after-idle off",
            "--window-scaling off",
            "--synack-retries 2",
            "--rmem-default 1M",
            "--wmem-default 1M",
        ] {
            let why = typed(words).kernel().unwrap_err();
            assert!(
                why.starts_with(words.split([' ', '=']).next().unwrap()) && why.contains("sysctl"),
                "{why}"
            );
        }
        let why = typed("--fin-timeout 121s").kernel().unwrap_err();
        assert!(why.starts_with("--fin-timeout: ") && why.contains(" 120 s at most"), "{why}");
        let longest = typed("--fin-timeout 120s").kernel().unwrap().fin_timeout;
        assert_eq!(longest, Some(Duration::from_secs(120)));
        for words in ["--keepalive 1ms", "--keepalive-interval 1500ms", "--fin-timeout 2500ms"] {
            let why = typed(words).kernel().unwrap_err();
            assert!(
                why.starts_with(words.split(' ').next().unwrap()) && why.contains("whole seconds"),
                "{why}"
            );
            assert!(typed(words).limits().is_ok(), "{words}");
        }
        let options = typed("--congestion newreno --keepalive 60s --mss 900").kernel().unwrap();
        assert_eq!(
            (options.congestion, options.keepalive, options.max_segment),
            (Some("reno"), true, Some(900))
        );
    }

    #[test]
    fn values_without_sense_are_refused() {
        for words in [
            "--congestion bbr",
            "--ecn=maybe",
            "--keepalive 0s",
            "--keepalive 40000s",
            "--keepalive-count 0",
            "--mss 20",
            "--rmem-max 100",
            "--rmem-max 4G",
            "--sack",
        ] {
            let refused = Flags::try_parse_from(std::iter::once("x").chain(words.split_whitespace()));
            assert!(refused.is_err(), "{words}");
        }
        let why = typed("--rmem-max 64K --rmem-default 1M").limits().unwrap_err();
        assert!(why.contains("at first more than at most"), "{why}");
    }
}
