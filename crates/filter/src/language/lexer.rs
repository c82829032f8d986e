//! From text to tokens, by tcpdump's rules: at each place the longest of what could stand there.

use std::net::Ipv6Addr;

use bywash_wire::Mac;

use super::error::Fault;
use super::slips::in_place_of_character;
use super::words::{KEYWORDS, NUMBERS};

/// A token and where it stands.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Token {
    pub(super) at: usize,
    pub(super) end: usize,
    pub(super) what: What,
}

/// What a token is.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum What {
    /// A keyword in its canonical spelling, or a symbol.
    Word(&'static str),
    /// A number, also one written as a name such as `tcp-syn`.
    Number(u32),
    /// Any other name; with a backslash in front, keywords too.
    Name(String),
    /// Two to four numbers between dots: an IPv4 address or the beginning of one.
    Dotted(Vec<u32>),
    /// An IPv6 address.
    V6(Ipv6Addr),
    /// An Ethernet address.
    Mac(Mac),
}

/// Longest expression, in bytes.
pub(crate) const LONGEST: usize = 1 << 16;

/// Symbols, longer ones first, with the keyword they stand for.
const SYMBOLS: &[(&str, &str)] = &[
    ("&&", "and"),
    ("||", "or"),
    ("==", "="),
    ("!=", "!="),
    ("<=", "<="),
    (">=", ">="),
    ("<<", "<<"),
    (">>", ">>"),
    ("!", "not"),
    ("=", "="),
    ("<", "<"),
    (">", ">"),
    ("+", "+"),
    ("-", "-"),
    ("*", "*"),
    ("/", "/"),
    ("%", "%"),
    ("^", "^"),
    ("&", "&"),
    ("|", "|"),
    ("(", "("),
    (")", ")"),
    ("[", "["),
    ("]", "]"),
    (":", ":"),
];

pub(super) fn tokens(text: &str) -> Result<Vec<Token>, Fault> {
    if text.len() > LONGEST {
        return Err(Fault::new(0, format!("it has {} bytes; {LONGEST} is the most", text.len())));
    }
    let mut tokens = Vec::new();
    let mut at = 0;
    while let Some(rest) = text.get(at..).filter(|rest| !rest.is_empty()) {
        let blank = rest.len() - rest.trim_start_matches([' ', '\t', '\r', '\n']).len();
        if blank > 0 {
            at += blank;
            continue;
        }
        let (length, what) = longest(rest, at)?;
        tokens.push(Token { at, end: at + length, what });
        at += length;
    }
    Ok(tokens)
}

/// The longest token at the start of `rest`; where two are as long, the more particular.
fn longest(rest: &str, at: usize) -> Result<(usize, What), Fault> {
    if let Some(escaped) = rest.strip_prefix('\\') {
        let end = escaped.find([' ', '!', '(', ')', '\n', '\t']).unwrap_or(escaped.len());
        if end == 0 {
            return Err(Fault::new(at, "a name must follow '\\'"));
        }
        return Ok((end + 1, What::Name(escaped[..end].into())));
    }
    let name = name_length(rest);
    let number = number_length(rest);
    let dotted = dotted_length(rest);
    let mac = mac_length(rest);
    let v6 = v6_length(rest);
    let best = name.max(number).max(dotted).max(mac).max(v6);
    if best == 0 {
        return symbol(rest, at);
    }
    let text = &rest[..best];
    if best == name {
        if let Some((_, word)) = KEYWORDS.iter().find(|(spelling, _)| *spelling == text) {
            return Ok((best, What::Word(word)));
        }
        if let Some((_, number)) = NUMBERS.iter().find(|(spelling, _)| *spelling == text) {
            return Ok((best, What::Number(*number)));
        }
    }
    // tcpdump takes for an Ethernet address what is one, be it a number or three numbers as well.
    let what = if best == mac && best > v6 {
        What::Mac(text.parse().map_err(|error| Fault::new(at, format!("{error}")))?)
    } else if best == number {
        What::Number(value(text, at)?)
    } else if best == dotted {
        let mut part = at;
        let mut numbers = Vec::new();
        for digits in text.split('.') {
            numbers.push(value(digits, part)?);
            part += digits.len() + 1;
        }
        What::Dotted(numbers)
    } else if best == v6 {
        What::V6(text.parse().map_err(|_| Fault::new(at, format!("'{text}' is no IPv6 address")))?)
    } else {
        What::Name(text.into())
    };
    Ok((best, what))
}

fn symbol(rest: &str, at: usize) -> Result<(usize, What), Fault> {
    match SYMBOLS.iter().find(|(spelling, _)| rest.starts_with(spelling)) {
        Some((spelling, word)) => Ok((spelling.len(), What::Word(word))),
        None => {
            let wrong: String = rest.chars().take(1).flat_map(char::escape_debug).collect();
            let fault = Fault::new(at, format!("'{wrong}' has no meaning here"));
            let cure = rest.chars().next().and_then(in_place_of_character);
            Err(match cure {
                Some(cure) => fault.cure(cure),
                None => fault,
            })
        }
    }
}

/// Letters, digits, `-`, `_` and `.`, from a letter or digit to a letter, digit or `.`.
fn name_length(rest: &str) -> usize {
    if !rest.starts_with(|c: char| c.is_ascii_alphanumeric()) {
        return 0;
    }
    let run =
        rest.bytes().take_while(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.')).count();
    rest[..run].trim_end_matches(['-', '_']).len()
}

/// Decimal, octal or hex digits.
fn number_length(rest: &str) -> usize {
    if let Some(hex) = rest.strip_prefix("0x").or_else(|| rest.strip_prefix("0X")) {
        let digits = hex.bytes().take_while(u8::is_ascii_hexdigit).count();
        if digits > 0 {
            return digits + 2;
        }
    }
    rest.bytes().take_while(u8::is_ascii_digit).count()
}

/// Two to four numbers between dots; 0 for a number alone.
fn dotted_length(rest: &str) -> usize {
    let mut length = number_length(rest);
    let first = length;
    for _ in 0..3 {
        let Some(more) = rest.get(length..).and_then(|rest| rest.strip_prefix('.')) else { break };
        match number_length(more) {
            0 => break,
            digits => length += 1 + digits,
        }
    }
    if length == first { 0 } else { length }
}

/// Six groups of one or two hex digits, three of four between dots, or twelve digits.
fn mac_length(rest: &str) -> usize {
    let groups = |count: usize, separator: u8, shortest: usize, longest: usize| -> usize {
        let mut length = 0;
        for group in 0..count {
            if group > 0 {
                if rest.as_bytes().get(length) != Some(&separator) {
                    return 0;
                }
                length += 1;
            }
            let digits = rest[length..].bytes().take(longest).take_while(u8::is_ascii_hexdigit).count();
            if digits < shortest {
                return 0;
            }
            length += digits;
        }
        length
    };
    let (colons, dashes, dots) = (groups(6, b':', 1, 2), groups(6, b'-', 1, 2), groups(6, b'.', 1, 2));
    [colons, dashes, dots, groups(3, b'.', 4, 4), groups(1, b'.', 12, 12)].into_iter().max().unwrap_or(0)
}

/// The longest beginning that is an IPv6 address.
fn v6_length(rest: &str) -> usize {
    let run = rest.bytes().take(45).take_while(|b| b.is_ascii_hexdigit() || matches!(b, b':' | b'.')).count();
    if !rest[..run].contains(':') {
        return 0;
    }
    (2..=run).rev().find(|&length| rest[..length].parse::<Ipv6Addr>().is_ok()).unwrap_or(0)
}

/// A number as C writes it: `0x` for hex, a leading `0` for octal.
fn value(digits: &str, at: usize) -> Result<u32, Fault> {
    let (digits_only, radix, kind) = match digits.strip_prefix("0x").or_else(|| digits.strip_prefix("0X")) {
        Some(hex) => (hex, 16, "hex"),
        None if digits.len() > 1 && digits.starts_with('0') => (&digits[1..], 8, "octal"),
        None => (digits, 10, "decimal"),
    };
    if !digits_only.chars().all(|c| c.is_digit(radix)) {
        return Err(Fault::new(at, format!("'{digits}' is no {kind} number")).cure("a leading 0 means octal"));
    }
    u32::from_str_radix(digits_only, radix)
        .map_err(|_| Fault::new(at, format!("{digits} does not fit 32 bits")))
}
