//! The values that a field takes, packet by packet, as users write them: `10.0.0.0/8 random seed 7`.
//!
//! A set of values, then words: `80`, `80,443`, `1000-2000`, `10.0.0.0/8`, `1000+` (counts up from there), `any` (all
//! there are); `step 4`, `down`, `random`, `seed 7`, `every 10`.

use std::net::{Ipv4Addr, Ipv6Addr};

use bywash_wire::Mac;

/// Most values in a list.
const LONGEST_LIST: usize = 4096;

/// How a field's values are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Decimal, or hexadecimal after `0x`.
    Number,
    /// An Ethernet address.
    Mac,
    /// An IPv4 address.
    Ipv4,
    /// An IPv6 address.
    Ipv6,
    /// TCP flags: `syn`, `syn+ack`, or a number.
    Flags,
}

/// Which values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Set {
    /// These.
    List(Vec<u128>),
    /// From the first, in steps, to the last that is reached.
    Range { first: u128, last: u128, step: u128 },
    /// Up from the first, and on from the least after the largest there is.
    From { first: u128, step: u128, least: u128 },
}

/// In which order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Order {
    /// As written.
    Up,
    /// The other way round.
    Down,
    /// Each value once, in an order that the seed decides; then again.
    Random { seed: Option<u64> },
}

/// The values of a field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Values {
    pub(super) set: Set,
    pub(super) order: Order,
    /// So many packets have the same value.
    pub(super) every: u64,
}

impl Values {
    /// Reads what a user wrote; a value must lie between `least` and `most`.
    pub(super) fn parse(text: &str, kind: Kind, (least, most): (u128, u128)) -> Result<Self, String> {
        let mut words = text.split_whitespace().peekable();
        let first = words.peek().copied().ok_or("no value is given")?;
        let mut set = if matches!(first, "random" | "down" | "step" | "any") {
            Set::Range { first: least, last: most, step: 1 }
        } else {
            set(first, kind, least)?
        };
        if !matches!(first, "random" | "down" | "step") {
            words.next();
        }
        let (mut order, mut seed, mut every) = (Order::Up, None, 1);
        while let Some(word) = words.next() {
            let mut number = || {
                let digits = words.next().ok_or_else(|| format!("a number must follow '{word}'"))?;
                integer(digits).ok_or_else(|| format!("'{digits}' after '{word}' is no number"))
            };
            match word {
                "step" => set.set_step(number()?)?,
                "down" => order = Order::Down,
                "random" => order = Order::Random { seed: None },
                "seed" => seed = Some(small(number()?, word)?),
                "every" => every = small(number()?, word)?,
                _ => return Err(format!("'{word}' is none of: step N, down, random, seed N, every N")),
            }
        }
        match (&mut order, seed) {
            (Order::Random { seed: to }, seed) => *to = seed,
            (_, Some(_)) => return Err("a seed is for random values: write random seed N".into()),
            _ => {}
        }
        if every == 0 {
            return Err("'every 0' is never: write every 1 or more".into());
        }
        set.check(kind, least, most)?;
        Ok(Self { set, order, every })
    }
}

impl Set {
    fn set_step(&mut self, by: u128) -> Result<(), String> {
        match self {
            Self::List(_) => Err("a step is for a range: write 1000-2000 step 4".into()),
            Self::Range { .. } | Self::From { .. } if by == 0 => Err("'step 0' leads nowhere".into()),
            Self::Range { step, .. } | Self::From { step, .. } => {
                *step = by;
                Ok(())
            }
        }
    }

    fn check(&self, kind: Kind, least: u128, most: u128) -> Result<(), String> {
        let (low, high) = match self {
            Self::List(values) => {
                (values.iter().min().copied().unwrap_or(least), values.iter().max().copied().unwrap_or(most))
            }
            Self::Range { first, last, .. } => (*first, *last),
            Self::From { first, .. } => (*first, *first),
        };
        let wrong = if low < least {
            low
        } else if high > most {
            high
        } else {
            return Ok(());
        };
        Err(format!("{} is not in {}-{}", show(wrong, kind), show(least, kind), show(most, kind)))
    }
}

/// A value as it is written.
fn show(value: u128, kind: Kind) -> String {
    let [.., a, b, c, d, e, f] = value.to_be_bytes();
    match kind {
        Kind::Number | Kind::Flags => value.to_string(),
        Kind::Mac => Mac([a, b, c, d, e, f]).to_string(),
        Kind::Ipv4 => Ipv4Addr::new(c, d, e, f).to_string(),
        Kind::Ipv6 => Ipv6Addr::from(value).to_string(),
    }
}

fn set(text: &str, kind: Kind, least: u128) -> Result<Set, String> {
    let wrong = |text: &str| match kind {
        Kind::Number => format!("'{text}' is no number"),
        Kind::Mac => format!("'{text}' is no Ethernet address: write 02:00:00:00:00:01, say"),
        Kind::Ipv4 => format!("'{text}' is no IPv4 address"),
        Kind::Ipv6 => format!("'{text}' is no IPv6 address"),
        Kind::Flags => format!("'{text}' is none of the TCP flags fin, syn, rst, psh, ack, urg, ece, cwr"),
    };
    if let Some(value) = one(text, kind) {
        return Ok(Set::List(vec![value]));
    }
    if text.contains(',') {
        let values: Vec<u128> = text
            .split(',')
            .map(|text| one(text, kind).ok_or_else(|| wrong(text)))
            .collect::<Result<_, _>>()?;
        if values.len() > LONGEST_LIST {
            return Err(format!(
                "{} values are more than the {LONGEST_LIST} that a list may have",
                values.len()
            ));
        }
        return Ok(Set::List(values));
    }
    if let Some((address, length)) = text.split_once('/') {
        return prefix(address, length, kind).ok_or_else(|| wrong(text));
    }
    if let Some(first) = text.strip_suffix('+').and_then(|text| one(text, kind)) {
        return Ok(Set::From { first, step: 1, least });
    }
    let ends = text
        .match_indices('-')
        .find_map(|(at, _)| Some((one(&text[..at], kind)?, one(&text[at + 1..], kind)?)));
    match ends {
        Some((first, last)) if first > last => {
            Err(format!("'{text}' ends before it begins: write the smaller value first, and down after it"))
        }
        Some((first, last)) => Ok(Set::Range { first, last, step: 1 }),
        None => Err(wrong(text)),
    }
}

/// All addresses of a prefix.
fn prefix(address: &str, length: &str, kind: Kind) -> Option<Set> {
    let bits = match kind {
        Kind::Ipv4 => 32,
        Kind::Ipv6 => 128,
        Kind::Mac => 48,
        Kind::Number | Kind::Flags => return None,
    };
    let host = bits - length.parse::<u32>().ok().filter(|length| *length <= bits)?;
    let mask = u128::MAX.checked_shr(128 - host).unwrap_or(0);
    let first = one(address, kind)? & !mask;
    Some(Set::Range { first, last: first | mask, step: 1 })
}

fn one(text: &str, kind: Kind) -> Option<u128> {
    match kind {
        Kind::Number => integer(text),
        Kind::Mac => {
            let [a, b, c, d, e, f] = text.parse::<Mac>().ok()?.0;
            Some(u64::from_be_bytes([0, 0, a, b, c, d, e, f]).into())
        }
        Kind::Ipv4 => text.parse::<Ipv4Addr>().ok().map(|address| u32::from(address).into()),
        Kind::Ipv6 => text.parse::<Ipv6Addr>().ok().map(u128::from),
        Kind::Flags => integer(text).or_else(|| flags(text)),
    }
}

fn flags(text: &str) -> Option<u128> {
    const NAMES: [&str; 8] = ["fin", "syn", "rst", "psh", "ack", "urg", "ece", "cwr"];
    text.split('+').try_fold(0, |flags, name| {
        let bit = NAMES.iter().position(|known| known.eq_ignore_ascii_case(name))?;
        Some(flags | 1 << bit)
    })
}

/// Decimal, or hexadecimal after `0x`.
pub(super) fn integer(text: &str) -> Option<u128> {
    let (digits, radix) = text.strip_prefix("0x").map_or((text, 10), |digits| (digits, 16));
    // No sign: `from_str_radix` would take one.
    let plain = digits.starts_with(|c: char| c.is_ascii_hexdigit());
    plain.then(|| u128::from_str_radix(digits, radix).ok()).flatten()
}

fn small(number: u128, word: &str) -> Result<u64, String> {
    u64::try_from(number).map_err(|_| format!("the number after '{word}' is too large"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn number(text: &str) -> Result<Values, String> {
        Values::parse(text, Kind::Number, (1, 65_535))
    }

    fn set_of(text: &str, kind: Kind) -> Set {
        Values::parse(text, kind, (0, u128::MAX)).unwrap().set
    }

    #[test]
    fn sets_are_written_in_five_ways() {
        assert_eq!(number("80").unwrap().set, Set::List(vec![80]));
        assert_eq!(number("80,0x1bb").unwrap().set, Set::List(vec![80, 443]));
        assert_eq!(number("10-20").unwrap().set, Set::Range { first: 10, last: 20, step: 1 });
        assert_eq!(number("10+ step 3").unwrap().set, Set::From { first: 10, step: 3, least: 1 });
        assert_eq!(number("any").unwrap().set, Set::Range { first: 1, last: 65_535, step: 1 });
        assert_eq!(
            set_of("10.1.2.3/16", Kind::Ipv4),
            Set::Range { first: 0x0a01_0000, last: 0x0a01_ffff, step: 1 }
        );
        assert_eq!(set_of("0.0.0.0/0", Kind::Ipv4), Set::Range { first: 0, last: 0xffff_ffff, step: 1 });
        assert_eq!(set_of("fd00::7/128", Kind::Ipv6), set_of("fd00::7-fd00::7", Kind::Ipv6));
        assert_eq!(set_of("::/0", Kind::Ipv6), Set::Range { first: 0, last: u128::MAX, step: 1 });
        assert_eq!(
            set_of("02:00:00:00:00:01-02:00:00:00:00:ff", Kind::Mac),
            Set::Range { first: 0x0200_0000_0001, last: 0x0200_0000_00ff, step: 1 }
        );
        assert_eq!(set_of("02-00-00-00-00-01", Kind::Mac), Set::List(vec![0x0200_0000_0001]));
        assert_eq!(set_of("syn,SYN+ack,0", Kind::Flags), Set::List(vec![2, 0x12, 0]));
    }

    #[test]
    fn words_say_in_which_order() {
        let all = number("random seed 7 every 10").unwrap();
        assert_eq!((all.order, all.every), (Order::Random { seed: Some(7) }, 10));
        assert_eq!(all.set, number("any").unwrap().set);
        assert_eq!(number("5-9 down step 2").unwrap().order, Order::Down);
        assert_eq!(number("5-9 random").unwrap().order, Order::Random { seed: None });
    }

    #[test]
    fn what_is_wrong_is_said() {
        for (text, says) in [
            ("", "no value"),
            ("0", "0 is not in 1-65535"),
            ("70000", "70000 is not in 1-65535"),
            ("5-70000", "70000 is not in"),
            ("80,http", "'http' is no number"),
            ("9-5", "ends before it begins"),
            ("5 step 2", "a step is for a range"),
            ("5-9 step 0", "leads nowhere"),
            ("5-9 step", "must follow 'step'"),
            ("5-9 step x", "'x' after 'step'"),
            ("5-9 seed 3", "random seed N"),
            ("5-9 every 0", "never"),
            ("5-9 twice", "'twice' is none of"),
            ("+5", "is no number"),
            ("-5", "is no number"),
            ("10/8", "is no number"),
        ] {
            let reason = number(text).unwrap_err();
            assert!(reason.contains(says) && !reason.contains('\n'), "{text}: {reason}");
        }
        let refused = |text, kind| Values::parse(text, kind, (0, u128::MAX)).unwrap_err();
        assert!(refused("10.0.0.0/33", Kind::Ipv4).contains("no IPv4 address"));
        assert!(refused("10.0.0.1", Kind::Ipv6).contains("no IPv6 address"));
        assert!(refused("syn+fun", Kind::Flags).contains("TCP flags"));
    }
}
