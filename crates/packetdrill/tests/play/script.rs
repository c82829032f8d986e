//! Reading scripts: the part of packetdrill's language that ours use. Errors are sentences.

use std::time::Duration;

use crate::network::Network;

/// When something is to happen.
#[derive(Clone, Copy, Debug)]
pub(crate) struct When {
    pub(crate) after: Duration,
    /// `+A~+B`: between the two; `+0...0.2`: a call that waits until then.
    pub(crate) until: Option<Duration>,
}

#[derive(Debug)]
pub(crate) enum What {
    Call { name: String, arguments: Vec<String>, result: i64, errno: Option<String> },
    In(Packet),
    Out(Packet),
    Code(String),
}

#[derive(Debug)]
pub(crate) struct Event {
    pub(crate) when: When,
    pub(crate) what: What,
}

/// A segment as scripts write it, or an ICMP message about one.
#[derive(Clone, Debug, Default)]
pub(crate) struct Packet {
    pub(crate) tos: Option<u8>,
    pub(crate) ttl: Option<u8>,
    pub(crate) flags: String,
    pub(crate) seq: u32,
    pub(crate) len: u32,
    pub(crate) ack: Option<u32>,
    pub(crate) window: Option<u16>,
    pub(crate) options: Vec<String>,
    pub(crate) urgent: u16,
    /// The names of type and code.
    pub(crate) icmp: Option<String>,
}

/// What an ICMP error says.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Icmp {
    pub(crate) kind: u8,
    pub(crate) code: u8,
    pub(crate) mtu: u32,
}

pub(crate) fn parse(text: &str) -> Result<Vec<Event>, String> {
    let lines = text.lines().filter(|line| !line.starts_with("//") && !line.trim().is_empty());
    lines.map(|line| event(line).map_err(|error| format!("{line}: {error}"))).collect()
}

fn seconds(text: &str) -> Result<Duration, String> {
    let text = text.trim_start_matches('+');
    text.parse().map(Duration::from_secs_f64).map_err(|_| format!("what time is {text}?"))
}

fn event(line: &str) -> Result<Event, String> {
    let (time, rest) = line.split_once(' ').ok_or("no time")?;
    let (after, until) = match (time.split_once("..."), time.split_once('~')) {
        (Some((from, to)), _) | (_, Some((from, to))) => (seconds(from)?, Some(seconds(to)?)),
        _ => (seconds(time)?, None),
    };
    let what = match rest.split_once(' ') {
        Some((">", packet)) => What::Out(self::packet(packet)?),
        Some(("<", packet)) => What::In(self::packet(packet)?),
        Some(("%{", code)) => What::Code(code.trim_end().trim_end_matches("}%").to_owned()),
        _ => call(rest)?,
    };
    Ok(Event { when: When { after, until }, what })
}

fn call(text: &str) -> Result<What, String> {
    let (call, result) = text.rsplit_once(") = ").ok_or("no result")?;
    let (name, arguments) = call.split_once('(').ok_or("no arguments")?;
    let mut arguments_found = vec![String::new()];
    let mut depth = 0;
    for c in arguments.chars() {
        depth += i32::from("[{".contains(c)) - i32::from("]}".contains(c));
        match arguments_found.last_mut() {
            Some(_) if c == ',' && depth == 0 => arguments_found.push(String::new()),
            Some(last) => last.push(c),
            None => {}
        }
    }
    let mut words = result.split(' ');
    let number = words.next().unwrap_or_default();
    let result = integer(number).ok_or_else(|| format!("what is {number}?"))?;
    let errno = words.next().filter(|word| word.starts_with('E')).map(str::to_owned);
    let arguments = arguments_found.iter().map(|argument| argument.trim().to_owned()).collect();
    Ok(What::Call { name: name.to_owned(), arguments, result, errno })
}

/// A number, decimal or with 0x.
pub(crate) fn integer(text: &str) -> Option<i64> {
    text.strip_prefix("0x").map_or_else(|| text.parse().ok(), |hex| i64::from_str_radix(hex, 16).ok())
}

fn packet(text: &str) -> Result<Packet, String> {
    let mut packet = Packet::default();
    let mut text = text.trim();
    if let Some(rest) = text.strip_prefix("[tos 0x") {
        let (tos, rest) = rest.split_once("] ").ok_or("no ]")?;
        packet.tos = u8::from_str_radix(tos, 16).ok();
        text = rest;
    }
    if let Some(rest) = text.strip_prefix("[ttl ") {
        let (ttl, rest) = rest.split_once("] ").ok_or("no ]")?;
        packet.ttl = ttl.parse().ok();
        text = rest;
    }
    if let Some(rest) = text.strip_prefix("icmp ") {
        let (what, quoted) = rest.split_once(" [").ok_or("no quotation")?;
        packet.icmp = Some(what.to_owned());
        (packet.seq, packet.len) = range(quoted.trim_end_matches(']'))?;
        return Ok(packet);
    }
    let (main, options) = text.split_once(" <").unwrap_or((text, ""));
    packet.options = options.trim_end_matches('>').split(',').map(str::to_owned).collect();
    packet.options.retain(|option| !option.is_empty());
    let mut words = main.split(' ');
    packet.flags = words.next().unwrap_or_default().to_owned();
    (packet.seq, packet.len) = range(words.next().ok_or("no numbers")?)?;
    while let (Some(word), Some(value)) = (words.next(), words.next()) {
        let bad = |_| format!("what is {word} {value}?");
        match word {
            "ack" => packet.ack = Some(value.parse().map_err(bad)?),
            "win" => packet.window = Some(value.parse().map_err(bad)?),
            "urg" => packet.urgent = value.parse().map_err(bad)?,
            _ => return Err(format!("what is {word}?")),
        }
    }
    Ok(packet)
}

/// Type and code by the names that packetdrill's `icmp_packet.c` has for them, which are not the same for both protocols.
pub(crate) fn icmp(what: &str, network: Network) -> Result<Icmp, String> {
    let words: Vec<&str> = what.split(' ').collect();
    let (names, mtu) = match words[..] {
        [ref names @ .., "mtu", mtu] => (names, mtu.parse().map_err(|_| "no MTU")?),
        ref names => (names, 0),
    };
    let (kind, code) = match (network == Network::V6, names) {
        (false, ["unreachable", "net_unreachable"]) => (3, 0),
        (true, ["unreachable", "net_unreachable"]) => (1, 0),
        (false, ["unreachable", "host_unreachable"]) => (3, 1),
        (false, ["unreachable", "protocol_unreachable"]) => (3, 2),
        (false, ["unreachable", "frag_needed"]) => (3, 4),
        (true, ["unreachable", "admin_prohibited"]) => (1, 1),
        (true, ["unreachable", "address_unreachable"]) => (1, 3),
        (true, ["unreachable", "port_unreachable"]) => (1, 4),
        (true, ["packet_too_big"]) => (2, 0),
        _ => return Err(format!("what is {what}?")),
    };
    Ok(Icmp { kind, code, mtu })
}

/// `1:1001(1000)`: the first number, and how many.
fn range(text: &str) -> Result<(u32, u32), String> {
    let bad = || format!("what is {text}?");
    let (start, rest) = text.split_once(':').ok_or_else(bad)?;
    let (_, len) = rest.trim_end_matches(')').split_once('(').ok_or_else(bad)?;
    Ok((start.parse().map_err(|_| bad())?, len.parse().map_err(|_| bad())?))
}
