//! Numbers with units, as they are typed.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use bywash_port::{Rule, SteerError, read_steer};
use bywash_sys::interface::{self, SshConnection};

/// The longest time that can be asked for, in seconds: 31 years. Clocks that count nanoseconds hold it.
const LONGEST_SECONDS: f64 = 1e9;

/// `10`, `10s`, `500ms`, `100us`, `1.5m`, `2h`; seconds without a unit.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    let (number, unit) = split(text)?;
    let scale = match unit {
        "us" | "µs" => 1e-6,
        "ms" => 0.001,
        "" | "s" => 1.0,
        "m" | "min" => 60.0,
        "h" => 3600.0,
        _ => return Err(format!("'{unit}' is no unit of time: us, ms, s, m or h")),
    };
    let seconds = number.parse::<f64>().map_err(|_| "write 10s or 500ms, say".to_owned())? * scale;
    if seconds > LONGEST_SECONDS {
        return Err(format!("it is longer than {LONGEST_SECONDS} seconds; leave it out to run until Ctrl-C"));
    }
    let duration =
        Duration::try_from_secs_f64(seconds).map_err(|_| "that is no length of time".to_owned())?;
    if duration.is_zero() { Err("it must be longer than nothing".into()) } else { Ok(duration) }
}

/// An ssh connection, as sshd writes it.
pub(crate) fn ssh(text: &str) -> Result<SshConnection, String> {
    let cure = "write 'CLIENT PORT SERVER PORT', as it stands in SSH_CONNECTION";
    interface::ssh(text).ok_or_else(|| cure.into())
}

/// What `--steer` may say.
#[derive(Clone, Debug)]
pub(crate) enum Steer {
    /// A rule.
    Rule(Box<Rule>),
    /// A file of them.
    File(PathBuf),
}

/// A rule, `ip and udp dst port 53 queue 2`; or `@FILE`.
pub(crate) fn steer(text: &str) -> Result<Steer, SteerError> {
    if let Some(path) = text.strip_prefix('@') {
        return Ok(Steer::File(path.into()));
    }
    read_steer(text).map(|rule| Steer::Rule(Box::new(rule)))
}

/// `65536`, `64K`, `64M`, `1.5G`, also with `iB` or `B` after: bytes, in powers of 1024.
pub(crate) fn bytes(text: &str) -> Result<usize, String> {
    let (number, unit) = split(text)?;
    let scale: u32 = match unit.trim_end_matches('B').trim_end_matches('i') {
        "" => 1,
        "K" | "k" => 1 << 10,
        "M" => 1 << 20,
        "G" => 1 << 30,
        _ => return Err(format!("'{unit}' is no unit of memory: K, M or G")),
    };
    let too_great = || "that is more than any machine has: write 64M or 1G, say".to_owned();
    if let Ok(whole) = number.parse::<u64>() {
        return whole.checked_mul(scale.into()).and_then(|n| usize::try_from(n).ok()).ok_or_else(too_great);
    }
    let bytes = number.parse::<f64>().map_err(|_| "write 64M or 1G, say".to_owned())? * f64::from(scale);
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "the range was looked at")]
    if (0.0..1e15).contains(&bytes) { Ok(bytes as usize) } else { Err(too_great()) }
}

/// As [`bytes`], of a file that goes on in another one: not nothing.
pub(crate) fn file_size(text: &str) -> Result<u64, String> {
    match bytes(text)? {
        0 => Err("a file must be longer than nothing".into()),
        bytes => Ok(bytes as u64),
    }
}

/// Cores in the order of the workers. (clap takes a plain `Vec` for an option that is given several times.)
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Cores(pub(crate) Vec<usize>);

/// `0,1`, `0-3`, `0,4-7`: cores in that order, none twice, all of them ours to use.
pub(crate) fn cores(text: &str) -> Result<Cores, String> {
    let wrong = |part: &str| format!("'{part}' is no core: write 0,1 or 0-3, say");
    let mut cores = Vec::new();
    for part in text.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (usize, usize) =
            (first.parse().map_err(|_| wrong(part))?, last.parse().map_err(|_| wrong(part))?);
        if last < first || last >= 1 << 16 {
            return Err(wrong(part));
        }
        cores.extend(first..=last);
    }
    let allowed = bywash_sys::worker::allowed_cores();
    for (index, core) in cores.iter().enumerate() {
        if !allowed.contains(core) {
            let allowed: Vec<String> = allowed.iter().map(ToString::to_string).collect();
            return Err(format!("this process may not use core {core}; it may use {}", allowed.join(",")));
        }
        if cores[..index].contains(core) {
            return Err(format!(
                "core {core} is named twice: two workers on one core would wait for each other"
            ));
        }
    }
    Ok(Cores(cores))
}

/// `1000`, `10k`, `1.5M`, `2G`: packets or requests, in powers of 1000.
pub(crate) fn count(text: &str) -> Result<u64, String> {
    let (number, unit) = split(text)?;
    let scale: u32 = match unit {
        "" => 1,
        "k" | "K" => 1_000,
        "M" => 1_000_000,
        "G" => 1_000_000_000,
        _ => return Err(format!("'{unit}' is no unit: write k, M or G")),
    };
    let too_great = || "that is more than can be counted: write 1000 or 10M, say".to_owned();
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let digits = format!("{whole}{}", fraction.trim_end_matches('0'));
    if digits.is_empty() || !digits.bytes().all(|digit| digit.is_ascii_digit()) {
        return Err("write 1000 or 10M, say".into());
    }
    // What is cut off must be nothing: in whole numbers that is exact.
    let parts = u32::try_from(digits.len() - whole.len()).ok().and_then(|places| 10_u128.checked_pow(places));
    let scaled = digits.parse::<u128>().ok().and_then(|digits| digits.checked_mul(scale.into()));
    let (parts, scaled) = parts.zip(scaled).ok_or_else(too_great)?;
    if scaled % parts != 0 {
        return Err("that is no whole number: write 3, 1000 or 1.5k, say".into());
    }
    match u64::try_from(scaled / parts).map_err(|_| too_great())? {
        0 => Err("it must be 1 at least".into()),
        count => Ok(count),
    }
}

/// `9100` (this machine only), `:9100` (all addresses), `192.0.2.1:9100`, `[::1]:9100`: where to listen.
pub(crate) fn listener(text: &str) -> Result<SocketAddr, String> {
    let port = |text: &str| text.parse::<u16>().ok();
    if let Some(port) = port(text) {
        return Ok((Ipv4Addr::LOCALHOST, port).into());
    }
    if let Some(port) = text.strip_prefix(':').and_then(port) {
        return Ok((Ipv6Addr::UNSPECIFIED, port).into());
    }
    text.parse().map_err(|_| "write a port, or an address and a port: 9100, :9100 or 192.0.2.1:9100".into())
}

/// `10G`, `2.5G`, `100M`, also with `bit/s` or `bps` after: bits per second, in powers of 1000.
pub(crate) fn line_rate(text: &str) -> Result<u64, String> {
    let bits = text.strip_suffix("bit/s").or_else(|| text.strip_suffix("bps")).unwrap_or(text);
    count(bits).map_err(|_| "write 10G or 100M, say".to_owned())
}

/// A number and its unit.
fn split(text: &str) -> Result<(&str, &str), String> {
    if text.starts_with('-') {
        return Err("it can't be less than 0; leave out the '-'".into());
    }
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    Ok(text.split_at(end))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_units() {
        let ms = |text| duration(text).unwrap().as_millis();
        assert_eq!(
            [ms("10"), ms("10s"), ms("500ms"), ms("1.5m"), ms("2h")],
            [10_000, 10_000, 500, 90_000, 7_200_000]
        );
        for text in ["", "s", "-1", "0", "1d", "1e400", "nan", "..", "99999999999999999999999"] {
            duration(text).unwrap_err();
        }
        assert_eq!(ms("1000000000"), 1_000_000_000_000);
        assert!(duration("10000000000000000000").unwrap_err().contains("longer than 1000000000 seconds"));
    }

    #[test]
    fn sizes_have_units() {
        let sizes = ["65536", "64K", "64M", "1.5G", "2MiB", "2MB"].map(|text| bytes(text).unwrap());
        assert_eq!(sizes, [65536, 65536, 64 << 20, 3 << 29, 2 << 20, 2 << 20]);
        for text in ["", "M", "1T", "-1", "1e3", "99999999999999999999G", "9".repeat(400).as_str()] {
            bytes(text).unwrap_err();
        }
    }

    #[test]
    fn a_file_is_longer_than_nothing() {
        assert_eq!(["1", "100M"].map(|text| file_size(text).unwrap()), [1, 100 << 20]);
        for text in ["0", "0M", "0.0001"] {
            assert_eq!(file_size(text).unwrap_err(), "a file must be longer than nothing", "{text}");
        }
    }

    #[test]
    fn counts_have_units() {
        assert_eq!(
            ["7", "10k", "1.5M", "2G", "2.3M", "4.", ".5k", "1.0"].map(|text| count(text).unwrap()),
            [7, 10_000, 1_500_000, 2_000_000_000, 2_300_000, 4, 500, 1]
        );
        for text in ["", "0", "0.0", "-1", "1T", "M", ".", ".k", "1.2.3", "99999999999999999999"] {
            count(text).unwrap_err();
        }
        for text in ["2.7", "0.5", "1.2345k", "0.0001k"] {
            assert!(count(text).unwrap_err().contains("no whole number"), "{text}");
        }
        for text in ["1".repeat(100), format!("1.{}", "1".repeat(100)), "1".repeat(39)] {
            assert!(count(&text).unwrap_err().contains("more than can be counted"), "{text}");
        }
        for wrong in [count("-1").err(), duration("-1s").err(), bytes("-1M").err()] {
            assert!(wrong.is_some_and(|wrong| wrong.contains("less than 0")));
        }
    }

    #[test]
    fn listeners_are_ports_or_addresses_with_ports() {
        let shown =
            ["9100", ":9100", "192.0.2.1:1", "[::1]:0"].map(|text| listener(text).unwrap().to_string());
        assert_eq!(shown, ["127.0.0.1:9100", "[::]:9100", "192.0.2.1:1", "[::1]:0"]);
        for text in ["", ":", "x", "65536", "localhost:1", "192.0.2.1", "::1", "-1"] {
            assert!(listener(text).unwrap_err().contains("write a port"), "{text}");
        }
    }

    #[test]
    fn links_have_bits_per_second() {
        let rates = ["10G", "2.5Gbit/s", "100Mbps", "9600"].map(|text| line_rate(text).unwrap());
        assert_eq!(rates, [10_000_000_000, 2_500_000_000, 100_000_000, 9600]);
        for text in ["", "0", "fast", "10T", "G"] {
            assert!(line_rate(text).unwrap_err().contains("10G"), "{text}");
        }
    }

    #[test]
    fn cores_are_lists_and_ranges_of_those_we_may_use() {
        let allowed = bywash_sys::worker::allowed_cores();
        let first = allowed[0].to_string();
        assert_eq!(cores(&first), Ok(Cores(vec![allowed[0]])));
        assert_eq!(cores(&format!("{first}-{first}")), Ok(Cores(vec![allowed[0]])));
        assert!(cores(&format!("{first},{first}")).unwrap_err().contains("twice"));
        assert!(cores("9999").unwrap_err().contains("may not use core 9999"));
        for text in ["", "a", "1-", "3-1", "0,,1", "0-99999999999"] {
            assert!(cores(text).unwrap_err().contains("is no core"), "{text}");
        }
    }
}
