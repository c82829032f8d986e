//! The little of Python that our scripts' assertions need: comparisons of names and numbers, joined by `and`.

use std::collections::HashMap;

/// What names mean.
pub(crate) type Names = HashMap<&'static str, u64>;

/// Whether `assert ...` holds.
pub(crate) fn holds(text: &str, names: &Names) -> Result<(), String> {
    let body = text.trim().strip_prefix("assert").ok_or("only assert is known")?;
    // Behind a comma stands what Python shows when it fails.
    let body = body.split(", ").next().unwrap_or_default();
    for part in body.split(" and ") {
        let operator = [" == ", " >= ", " <= ", " < ", " > "].into_iter().find(|op| part.contains(op));
        let (left, right) =
            operator.and_then(|op| part.split_once(op)).ok_or_else(|| format!("what is {part}?"))?;
        let (left, right) = (value(left, names)?, value(right, names)?);
        let right_way = match operator.map(str::trim) {
            Some("==") => left == right,
            Some(">=") => left >= right,
            Some("<=") => left <= right,
            Some("<") => left < right,
            _ => left > right,
        };
        if !right_way {
            return Err(format!("{}: it is {left}", part.trim()));
        }
    }
    Ok(())
}

fn value(text: &str, names: &Names) -> Result<u64, String> {
    text.split('|').map(str::trim).try_fold(0, |bits, word| {
        let value = word.parse().ok().or_else(|| names.get(word).copied());
        Ok(bits | value.ok_or_else(|| format!("what is {word}?"))?)
    })
}

/// The fields of Linux's `struct tcp_info` that scripts speak of, and the constants that go with them.
pub(crate) fn tcp_info(bytes: &[u8]) -> Names {
    let word = |at: usize| u64::from(u32::from_ne_bytes(bytes[at..at + 4].try_into().unwrap()));
    let long = |at: usize| u64::from_ne_bytes(bytes[at..at + 8].try_into().unwrap());
    let mut names: Names = [
        ("TCP_ESTABLISHED", 1),
        ("TCP_FIN_WAIT2", 5),
        ("TCP_CLOSE_WAIT", 8),
        ("TCP_CA_Open", 0),
        ("TCP_CA_Recovery", 3),
        ("TCP_CA_Loss", 4),
        ("TCPI_OPT_TIMESTAMPS", 1),
        ("TCPI_OPT_SACK", 2),
        ("TCPI_OPT_WSCALE", 4),
    ]
    .into();
    for (name, at) in [("tcpi_state", 0), ("tcpi_ca_state", 1), ("tcpi_backoff", 4), ("tcpi_options", 5)] {
        names.insert(name, bytes[at].into());
    }
    for (name, at) in [
        ("tcpi_rto", 8),
        ("tcpi_snd_mss", 16),
        ("tcpi_unacked", 24),
        ("tcpi_sacked", 28),
        ("tcpi_rtt", 68),
        ("tcpi_snd_ssthresh", 76),
        ("tcpi_snd_cwnd", 80),
        ("tcpi_total_retrans", 100),
        ("tcpi_notsent_bytes", 144),
    ] {
        names.insert(name, word(at));
    }
    names.insert("tcpi_bytes_acked", long(120));
    names
}
