//! What people write by habit, from other tools or in a hurry, and what to write instead.

use super::lexer::What;
use super::words::{KEYWORDS, NUMBERS, meant};

/// Words of other tools and of daily speech.
const HABITS: &[(&str, &str)] = &[
    ("dport", "dst port"),
    ("sport", "src port"),
    ("dstport", "dst port"),
    ("srcport", "src port"),
    ("daddr", "dst host"),
    ("saddr", "src host"),
    ("ipv4", "ip"),
    ("ipv6", "ip6"),
    ("icmpv6", "icmp6"),
    ("ping", "icmp[icmptype] = icmp-echo"),
    ("http", "tcp port 80"),
    ("https", "tcp port 443"),
    ("dns", "port 53"),
    ("ssh", "tcp port 22"),
    ("ntp", "udp port 123"),
    ("dhcp", "udp port 67 or 68"),
];

/// How to write an Ethernet address.
pub(crate) const AS_ADDRESS: &str = "six bytes between ':' all through: 02:00:00:00:00:01, say";

const FLAGS: &str = "flags are asked for as in 'tcp[tcpflags] & tcp-syn != 0'";
pub(super) const RANGE: &str = "a range is written 'portrange 80-90', without blanks";

/// What to write in place of a name that stands where a keyword is expected.
pub(super) fn in_place_of(name: &str) -> Option<String> {
    if let Some((_, instead)) = HABITS.iter().find(|(habit, _)| *habit == name) {
        return Some(format!("did you mean '{instead}'?"));
    }
    let lower = name.to_ascii_lowercase();
    let is_keyword = |text: &str| KEYWORDS.iter().any(|(word, _)| *word == text);
    if lower != name && is_keyword(&lower) {
        return Some(format!("keywords are written in lower case: '{lower}'"));
    }
    if name.split_once('.').is_some_and(|(first, _)| is_keyword(first)) {
        return Some(
            "display filters of Wireshark's are another language: 'tcp port 80', 'host ADDRESS'".into(),
        );
    }
    meant(name).map(|word| format!("did you mean '{word}'?"))
}

/// The same for a name in the place of a number.
pub(super) fn in_place_of_number(name: &str) -> Option<String> {
    let is_number = |text: &str| NUMBERS.iter().any(|(known, _)| *known == text);
    let whole = ["tcp-", "icmp-", "icmp6-"].map(|prefix| format!("{prefix}{name}"));
    let known = whole.into_iter().find(|whole| is_number(whole));
    known.or_else(|| meant(name).map(str::to_owned)).map(|word| format!("did you mean '{word}'?"))
}

/// What to write when something can't follow what stands before it.
pub(super) fn between(before: Option<&What>, what: &What) -> &'static str {
    match (before, what) {
        (_, What::Word("=")) => "an address follows 'host', and a byte is compared as in 'ip[8] = 64'",
        (Some(What::Dotted(_)), What::Word(":")) => "write 'and port' for a port",
        (Some(What::Number(_)), What::Word(":")) => {
            "a range is written 'portrange 80-90'; an IPv6 address needs '::' or all eight parts"
        }
        (Some(What::V6(_)), What::Word("%")) => "leave out the interface: packets do not name it",
        (Some(What::Number(_)), What::Word("/")) => "write an address out: 10.0.0.0/8",
        (Some(What::Name(_)), What::Word("/")) => {
            "a name has no prefix; write a network's number: 10.0.0.0/8"
        }
        (Some(What::Dotted(_)), What::Dotted(_)) => "write 'mask' between a network and its mask, else 'or'",
        (Some(What::Word("ether")), What::Mac(_)) => "write 'ether host'",
        (Some(What::Number(_)), What::Name(to)) if to == "to" => RANGE,
        (Some(What::Word("tcp")), What::Name(_)) => FLAGS,
        (Some(What::Word("icmp" | "icmp6")), What::Name(_)) => {
            "types are asked for as in 'icmp[icmptype] = icmp-echo'"
        }
        (Some(What::Word("vlan" | "mpls" | "pppoes" | "geneve")), What::Name(_)) => {
            "what may follow is a number; else write 'and' or 'or'"
        }
        (_, What::Word("-")) => RANGE,
        (_, What::Word("]")) => "it closes no '['",
        (_, What::Word("&")) => "write 'and' or '&&' between two parts; a calculation needs a comparison",
        (_, What::Word("|")) => "write 'or' or '||' between two parts; a calculation needs a comparison",
        _ => "write 'and' or 'or' between two parts",
    }
}

/// What to write instead of a character that has no meaning.
pub(super) fn in_place_of_character(wrong: char) -> Option<&'static str> {
    match wrong {
        ',' => Some("values are joined by 'or': 'port 80 or 443'"),
        '"' | '\'' | '`' | '\u{2018}' | '\u{2019}' | '\u{201c}' | '\u{201d}' => {
            Some("leave out quotation marks; plain ones are for the shell alone")
        }
        '#' | ';' => Some("an expression has no comments"),
        '~' => Some("there are no patterns: compare bytes, as in 'tcp[20:4] = 0x47455420'"),
        _ => None,
    }
}

/// What to write for two symbols in a row of which the second can't stand there.
pub(super) fn symbols(first: Option<&str>, second: &str) -> Option<&'static str> {
    match (first, second) {
        (Some("="), ">") => Some("write '>='"),
        (Some("="), "<") => Some("write '<='"),
        (Some("="), "not") => Some("write '!='"),
        (Some("="), "=") => Some("write '='"),
        (Some("<"), ">") => Some("write '!='"),
        _ => None,
    }
}
