//! Rules by which a port steers packets, in one line: an expression, and behind it what becomes of the packets.
//!
//! ```text
//!     ip and udp dst port 53 queue 2
//!     vlan 7 and ip and src net 192.0.2.0/24 and tcp drop
//!     udp and len > 1000 pass
//! ```
//!
//! A NIC itself gives packets to one queue, or drops them: a [`Rule`] with [`Action::Steer`] or [`Action::Drop`] becomes a [`SteerRule`]
//! for each flow that it names, which is what drivers put into filters. On an `xdp:` port its program drops, passes and counts
//! ([`check_steer`]).
//!
//! Of several rules that match a packet, the first that decides counts.

use std::fmt;
use std::net::Ipv4Addr;
use std::ops::RangeInclusive;
use std::str::FromStr;

use bywash_filter::rules::{Action, Condition, Inexact, Known, Rule, exact};
use bywash_filter::{Expression, flows};

/// Which packets, and what becomes of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SteerRule {
    /// Which packets.
    pub flow: Flow,
    /// What becomes of them.
    pub to: SteerTo,
}

/// What becomes of packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SteerTo {
    /// This queue of the port gets them.
    Queue(u16),
    /// The NIC drops them.
    Drop,
}

/// Which packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flow {
    /// Those of an EtherType, also behind a VLAN tag.
    EtherType(u16),
    /// Those of IPv4 that are alike in some fields.
    Ipv4(Ipv4Flow),
}

/// What IPv4 packets have in common.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ipv4Flow {
    /// Transport protocol and ports; any protocol when `None`. Fragments have none that a NIC sees.
    pub transport: Option<Transport>,
    /// Source addresses.
    pub source: Ipv4Prefix,
    /// Destination addresses.
    pub destination: Ipv4Prefix,
    /// Id of the VLAN tag; with any and without one when `None`.
    pub vlan: Option<u16>,
}

/// A transport protocol and its ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transport {
    /// Which one.
    pub protocol: TransportProtocol,
    /// Source port; any when `None`.
    pub source_port: Option<u16>,
    /// Destination port; any when `None`.
    pub destination_port: Option<u16>,
}

/// Transport protocols that NICs know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransportProtocol {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
    /// SCTP.
    Sctp,
}

/// IPv4 addresses that begin alike; all of them by default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ipv4Prefix {
    address: u32,
    bits: u8,
}

/// Why a rule can't be one that a NIC obeys.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SteerError {
    /// It does not say what becomes of the packets.
    #[error("'{0}' does not say what becomes of its packets: end it with drop, pass, count or queue N")]
    NoEnd(String),
    /// What stands before its end is no expression.
    #[error("{0}")]
    Expression(String),
    /// What stands behind a word is none.
    #[error("'{0}' is no {1}: write {2}")]
    Value(String, &'static str, String),
    /// Bits of an address behind its length.
    #[error("'{0}' has bits set behind its length: write {1}")]
    Behind(String, Ipv4Prefix),
    /// Its action is for programs.
    #[error(
        "a NIC gives packets to a queue or drops them, and does not '{0}': write queue or drop; xdp: ports pass and count"
    )]
    Action(&'static str),
    /// What takes user space, memory, or the sending side.
    #[error("--steer has no '{0}': `bywash filter xdp:IFACE --rules FILE` has it")]
    ForFilter(&'static str),
    /// It ends at a moment.
    #[error("rules of --steer hold while the port is open: leave expires out")]
    Expires,
    /// A NIC would take too much or too little.
    #[error(transparent)]
    Inexact(#[from] Inexact),
    /// A part that no filter compares.
    #[error("'{0}': filters compare {1}")]
    Part(String, &'static str),
    /// It is several flows, where one is wanted.
    #[error("it is {0} flows, and one is wanted")]
    Several(usize),
}

/// Ids that a VLAN can have.
const VLANS: RangeInclusive<u16> = 1..=4094;
/// Below, the field is a length.
const FIRST_ETHER_TYPE: u16 = 0x600;
/// IPv4, IPv6, and VLAN tags.
const NOT_STEERED_BY_TYPE: [u16; 4] = [0x0800, 0x86dd, 0x8100, 0x88a8];

impl Flow {
    /// Whether there can be such packets, and a NIC may be asked to steer them.
    ///
    /// # Errors
    /// [`SteerError::Value`], for a VLAN or an EtherType.
    pub fn check(&self) -> Result<(), SteerError> {
        match self {
            Self::Ipv4(Ipv4Flow { vlan: Some(vlan), .. }) if !VLANS.contains(vlan) => {
                Err(SteerError::Value(vlan.to_string(), "VLAN", "an id from 1 to 4094".into()))
            }
            Self::EtherType(kind) if *kind < FIRST_ETHER_TYPE || NOT_STEERED_BY_TYPE.contains(kind) => {
                let wanted = "one from 0x600 to 0xffff that is neither IP nor a VLAN tag";
                Err(SteerError::Value(format!("{kind:#06x}"), "EtherType to steer by", wanted.into()))
            }
            _ => Ok(()),
        }
    }
}

impl Ipv4Flow {
    /// Whether a packet can be of both.
    pub fn overlaps(&self, other: &Self) -> bool {
        let transports = match (self.transport, other.transport) {
            (Some(a), Some(b)) => {
                a.protocol == b.protocol
                    && agree(a.source_port, b.source_port)
                    && agree(a.destination_port, b.destination_port)
            }
            _ => true,
        };
        transports
            && agree(self.vlan, other.vlan)
            && self.source.overlaps(&other.source)
            && self.destination.overlaps(&other.destination)
    }
}

fn agree(a: Option<u16>, b: Option<u16>) -> bool {
    a.zip(b).is_none_or(|(a, b)| a == b)
}

impl Ipv4Prefix {
    /// All addresses.
    pub const ANY: Self = Self { address: 0, bits: 0 };

    /// The first `bits` bits of `address`.
    ///
    /// # Errors
    /// [`SteerError`], when there are more than 32, or some are set behind them.
    pub fn new(address: Ipv4Addr, bits: u8) -> Result<Self, SteerError> {
        let written = || format!("{address}/{bits}");
        if bits > 32 {
            return Err(SteerError::Value(written(), "IPv4 prefix", "a length from 0 to 32".into()));
        }
        let cut = Self { address: address.to_bits(), bits };
        let cut = Self { address: cut.address & cut.mask(), bits };
        if cut.address == address.to_bits() { Ok(cut) } else { Err(SteerError::Behind(written(), cut)) }
    }

    /// Its first address.
    pub fn address(&self) -> Ipv4Addr {
        Ipv4Addr::from_bits(self.address)
    }

    /// How many bits are alike.
    pub fn bits(&self) -> u8 {
        self.bits
    }

    /// The bits that are alike, the address's first one highest.
    pub fn mask(&self) -> u32 {
        u32::MAX.checked_shl(32 - u32::from(self.bits)).unwrap_or(0)
    }

    /// The one address that it is, if it is one.
    pub fn single(&self) -> Option<Ipv4Addr> {
        (self.bits == 32).then(|| self.address())
    }

    fn overlaps(&self, other: &Self) -> bool {
        (self.address ^ other.address) & self.mask() & other.mask() == 0
    }
}

impl From<Ipv4Addr> for Ipv4Prefix {
    fn from(address: Ipv4Addr) -> Self {
        Self { address: address.to_bits(), bits: 32 }
    }
}

/// Words of rule files that ask for `bywash filter`; no expression has them.
const FOR_FILTER: [&str; 2] = ["sample", "limit"];

/// Reads a rule that is one line: an expression, and behind it `drop`, `pass`, `count` or `queue N`. It is called as it was written.
///
/// # Errors
/// [`SteerError`]
pub fn read_steer(text: &str) -> Result<Rule, SteerError> {
    let text = text.trim();
    if let Some(word) = FOR_FILTER.into_iter().find(|word| text.split_whitespace().any(|it| it == *word)) {
        return Err(SteerError::ForFilter(word));
    }
    let cut = |text: &str| {
        let (rest, last) = text.rsplit_once(char::is_whitespace).unwrap_or(("", text));
        (rest.trim_end().to_owned(), last.to_owned())
    };
    let (rest, last) = cut(text);
    let (expression, action) = match last.as_str() {
        "drop" => (rest, Action::Drop),
        "pass" => (rest, Action::Pass),
        "count" => (rest, Action::Count),
        _ => match cut(&rest) {
            (expression, word) if word == "queue" => (expression, Action::Steer(queue(&last)?)),
            _ => return Err(SteerError::NoEnd(text.into())),
        },
    };
    let expression = expression.parse::<Expression>();
    let expression = expression.map_err(|error| SteerError::Expression(error.what().to_string()))?;
    let condition = Condition { expression: Some(expression), ..Condition::default() };
    Ok(Rule { name: text.into(), condition, action, sample: None, expires: None, dry_run: false })
}

fn queue(text: &str) -> Result<u16, SteerError> {
    text.parse().map_err(|_| SteerError::Value(text.into(), "queue", "its number, from 0 on".into()))
}

/// Whether an `xdp:` port can steer by a rule: its program decides it alone, or its NIC may.
///
/// # Errors
/// [`SteerError`]
pub fn check_steer(rule: &Rule) -> Result<(), SteerError> {
    let Rule { condition, action, sample, expires, .. } = rule;
    if let Action::Steer(_) = action {
        return SteerRule::of(rule).map(drop);
    }
    let for_filter = [
        (action.answers_syns() || matches!(action, Action::Limit(_) | Action::Queue), action.name()),
        (sample.is_some(), "sample"),
        (!condition.names.is_empty(), "names"),
        (!condition.payload.is_empty(), "payload"),
        (condition.established.is_some(), "established"),
    ];
    match for_filter.into_iter().find(|(has_it, _)| *has_it) {
        Some((_, what)) => Err(SteerError::ForFilter(what)),
        None if expires.is_some() => Err(SteerError::Expires),
        None => Ok(()),
    }
}

impl SteerRule {
    /// What filters of a NIC must hold for a rule: one for each of its flows, which together are all that it is about.
    ///
    /// # Errors
    /// [`SteerError`], with the part that no filter can say.
    pub fn of(rule: &Rule) -> Result<Vec<Self>, SteerError> {
        let to = match rule.action {
            Action::Drop => SteerTo::Drop,
            Action::Steer(queue) => SteerTo::Queue(queue),
            other => return Err(SteerError::Action(other.name())),
        };
        if rule.expires.is_some() {
            return Err(SteerError::Expires);
        }
        let known = exact(rule)?;
        let rules = known.into_iter().map(|known| {
            let flow = match known {
                Known::EtherType(kind) => Flow::EtherType(kind),
                Known::Ipv4(flow, vlan) => Flow::Ipv4(Ipv4Flow::of(&flow, vlan)?),
            };
            flow.check().map(|()| Self { flow, to })
        });
        rules.collect()
    }
}

impl Ipv4Flow {
    fn of(flow: &flows::Flow, vlan: Option<u16>) -> Result<Self, SteerError> {
        let wrong = |what| SteerError::Part(flow.to_string(), what);
        let word = |bytes: &[u8], at: usize| {
            bytes.get(at..).and_then(|rest| rest.first_chunk()).map_or(0, |bytes| u32::from_be_bytes(*bytes))
        };
        let prefix = |at: usize| {
            let (address, mask) = (word(&flow.value, at), word(&flow.mask, at));
            let bits = mask.leading_ones();
            let prefix = Ipv4Prefix { address, bits: bits.to_le_bytes()[0] };
            if prefix.mask() == mask { Ok(prefix) } else { Err(wrong("addresses and prefixes of these")) }
        };
        let (ports, masks) = (word(&flow.value, 8), word(&flow.mask, 8));
        let port = |shift: u32| {
            let [port, mask] = [ports, masks].map(|both| (both >> shift & 0xffff) as u16);
            match mask {
                0 => Ok(None),
                u16::MAX => Ok(Some(port)),
                _ => Err(wrong("whole ports: write a rule for each")),
            }
        };
        let protocol = match flow.protocol {
            None => None,
            Some(6) => Some(TransportProtocol::Tcp),
            Some(17) => Some(TransportProtocol::Udp),
            Some(132) => Some(TransportProtocol::Sctp),
            Some(_) => return Err(wrong("no protocols but TCP, UDP and SCTP")),
        };
        let (source_port, destination_port) = (port(16)?, port(0)?);
        let transport = protocol.map(|protocol| Transport { protocol, source_port, destination_port });
        Ok(Self { transport, source: prefix(0)?, destination: prefix(4)?, vlan })
    }
}

impl FromStr for SteerRule {
    type Err = SteerError;

    /// A rule of one flow.
    fn from_str(text: &str) -> Result<Self, SteerError> {
        let rules = Self::of(&read_steer(text)?)?;
        match rules[..] {
            [rule] => Ok(rule),
            _ => Err(SteerError::Several(rules.len())),
        }
    }
}

impl fmt::Display for Ipv4Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.single() {
            Some(address) => write!(f, "{address}"),
            None => write!(f, "{}/{}", self.address(), self.bits),
        }
    }
}

impl fmt::Display for SteerRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ", self.flow)?;
        match self.to {
            SteerTo::Queue(queue) => write!(f, "queue {queue}"),
            SteerTo::Drop => f.write_str("drop"),
        }
    }
}

/// As the expression that means it.
impl fmt::Display for Flow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let flow = match self {
            Self::EtherType(kind) => return write!(f, "ether proto {kind:#06x}"),
            Self::Ipv4(flow) => flow,
        };
        if let Some(vlan) = flow.vlan {
            write!(f, "vlan {vlan} and ")?;
        }
        f.write_str("ip")?;
        for (name, prefix) in [("src", flow.source), ("dst", flow.destination)] {
            if prefix != Ipv4Prefix::ANY {
                let kind = if prefix.single().is_some() { "host" } else { "net" };
                write!(f, " and {name} {kind} {prefix}")?;
            }
        }
        let Some(Transport { protocol, source_port, destination_port }) = flow.transport else {
            return Ok(());
        };
        let protocol = match protocol {
            TransportProtocol::Tcp => "tcp",
            TransportProtocol::Udp => "udp",
            TransportProtocol::Sctp => "sctp",
        };
        if (source_port, destination_port) == (None, None) {
            return write!(f, " and {protocol}");
        }
        for (name, port) in [("src", source_port), ("dst", destination_port)] {
            if let Some(port) = port {
                write!(f, " and {protocol} {name} port {port}")?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
