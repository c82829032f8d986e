//! Rules by which a NIC itself gives received packets to one queue, or drops them, in words like those of `ethtool -N`.
//!
//! ```text
//!     udp4 dst-port 53 queue 2
//!     tcp4 src-ip 192.0.2.0/24 dst-ip 198.51.100.1 vlan 7 drop
//!     ether proto 0x88cc queue 1
//! ```
//!
//! Of several rules that match a packet, the one that was given first counts.

use std::fmt;
use std::net::Ipv4Addr;
use std::ops::RangeInclusive;
use std::str::FromStr;

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

/// Why a text is no rule, or a rule makes no sense.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SteerError {
    /// It does not begin with a kind of packet.
    #[error("'{0}' begins with no kind of packet that can be steered: write {KINDS}")]
    Kind(String),
    /// IPv6.
    #[error("'{0}': NICs that we drive steer IPv4 alone; write ip4, tcp4, udp4 or sctp4")]
    Ipv6(String),
    /// A word that is not known, or not for this kind of packet.
    #[error("'{0}' is no field of {1} packets: write {2}")]
    Field(String, String, &'static str),
    /// A field twice.
    #[error("'{0}' stands there twice: leave one out")]
    Twice(String),
    /// What stands behind a field is none.
    #[error("'{0}' is no {1}: write {2}")]
    Value(String, &'static str, String),
    /// Bits of an address behind its length.
    #[error("'{0}' has bits set behind its length: write {1}")]
    Behind(String, Ipv4Prefix),
    /// It does not say what becomes of the packets.
    #[error("'{0}' does not say where its packets go: end it with queue N, or with drop")]
    NoEnd(String),
    /// Something stands behind the end.
    #[error("'{0}' stands behind the end of the rule: leave it out")]
    AfterEnd(String),
}

const KINDS: &str = "ip4, tcp4, udp4 or sctp4 and fields, or ether proto 0x88cc";
const IP_FIELDS: &str = "src-ip, dst-ip, vlan; then queue N or drop";
const TRANSPORT_FIELDS: &str = "src-ip, dst-ip, src-port, dst-port, vlan; then queue N or drop";

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
                let wanted = "one from 0x600 to 0xffff that is neither IP (write ip4) nor a VLAN tag";
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

impl FromStr for Ipv4Prefix {
    type Err = SteerError;

    fn from_str(text: &str) -> Result<Self, SteerError> {
        let wrong = || SteerError::Value(text.into(), "IPv4 address", "192.0.2.1 or 192.0.2.0/24".into());
        let (address, bits) = text.split_once('/').unwrap_or((text, "32"));
        Self::new(address.parse().map_err(|_| wrong())?, bits.parse().map_err(|_| wrong())?)
    }
}

impl FromStr for SteerRule {
    type Err = SteerError;

    fn from_str(text: &str) -> Result<Self, SteerError> {
        let mut words = text.split_whitespace();
        let kind = words.next().unwrap_or_default();
        let transport = match kind {
            "ip4" => None,
            "tcp4" => Some(TransportProtocol::Tcp),
            "udp4" => Some(TransportProtocol::Udp),
            "sctp4" => Some(TransportProtocol::Sctp),
            "ether" => return ether(text, words),
            "ip6" | "tcp6" | "udp6" | "sctp6" => return Err(SteerError::Ipv6(kind.into())),
            _ => return Err(SteerError::Kind(text.into())),
        };
        let transport =
            transport.map(|protocol| Transport { protocol, source_port: None, destination_port: None });
        let mut flow = Ipv4Flow { transport, ..Ipv4Flow::default() };
        let mut seen = Vec::new();
        loop {
            let word = words.next().ok_or_else(|| SteerError::NoEnd(text.into()))?;
            if let Some(to) = end(word, &mut words)? {
                let rule = Self { flow: Flow::Ipv4(flow), to };
                return rule.flow.check().map(|()| rule);
            }
            if seen.contains(&word) {
                return Err(SteerError::Twice(word.into()));
            }
            seen.push(word);
            let value = words.next().unwrap_or_default();
            match (word, &mut flow.transport) {
                ("src-ip", _) => flow.source = value.parse()?,
                ("dst-ip", _) => flow.destination = value.parse()?,
                ("vlan", _) => flow.vlan = Some(number(value, "VLAN", "an id from 1 to 4094")?),
                ("src-port", Some(transport)) => transport.source_port = Some(port(value)?),
                ("dst-port", Some(transport)) => transport.destination_port = Some(port(value)?),
                (_, transport) => {
                    let fields = if transport.is_some() { TRANSPORT_FIELDS } else { IP_FIELDS };
                    return Err(SteerError::Field(word.into(), kind.into(), fields));
                }
            }
        }
    }
}

/// What stands behind `ether`.
fn ether<'a>(text: &str, mut words: impl Iterator<Item = &'a str>) -> Result<SteerRule, SteerError> {
    let word = words.next().unwrap_or_default();
    if word != "proto" {
        return Err(SteerError::Field(word.into(), "ether".into(), "proto and an EtherType"));
    }
    let value = words.next().unwrap_or_default();
    let digits = value.strip_prefix("0x").map(|digits| u16::from_str_radix(digits, 16));
    let wrong = |_| SteerError::Value(value.into(), "EtherType", "a number such as 0x88cc".into());
    let kind = digits.unwrap_or_else(|| value.parse()).map_err(wrong)?;
    let word = words.next().ok_or_else(|| SteerError::NoEnd(text.into()))?;
    let to = end(word, &mut words)?
        .ok_or_else(|| SteerError::Field(word.into(), "ether".into(), "nothing but proto; then queue N"))?;
    let rule = SteerRule { flow: Flow::EtherType(kind), to };
    rule.flow.check().map(|()| rule)
}

/// The end of a rule, if `word` begins it; then nothing may follow.
fn end<'a>(word: &str, words: &mut impl Iterator<Item = &'a str>) -> Result<Option<SteerTo>, SteerError> {
    let to = match word {
        "drop" => SteerTo::Drop,
        "queue" => {
            SteerTo::Queue(number(words.next().unwrap_or_default(), "queue", "its number, from 0 on")?)
        }
        _ => return Ok(None),
    };
    match words.next() {
        None => Ok(Some(to)),
        Some(word) => Err(SteerError::AfterEnd(word.into())),
    }
}

fn port(text: &str) -> Result<u16, SteerError> {
    number(text, "port", "one from 0 to 65535")
}

fn number(text: &str, what: &'static str, wanted: &str) -> Result<u16, SteerError> {
    text.parse().map_err(|_| SteerError::Value(text.into(), what, wanted.into()))
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

impl fmt::Display for Flow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let flow = match self {
            Self::EtherType(kind) => return write!(f, "ether proto {kind:#06x}"),
            Self::Ipv4(flow) => flow,
        };
        f.write_str(match flow.transport.map(|transport| transport.protocol) {
            None => "ip4",
            Some(TransportProtocol::Tcp) => "tcp4",
            Some(TransportProtocol::Udp) => "udp4",
            Some(TransportProtocol::Sctp) => "sctp4",
        })?;
        for (name, prefix) in [("src-ip", flow.source), ("dst-ip", flow.destination)] {
            if prefix != Ipv4Prefix::ANY {
                write!(f, " {name} {prefix}")?;
            }
        }
        let ports = flow.transport.map(|transport| (transport.source_port, transport.destination_port));
        let (from, to) = ports.unwrap_or_default();
        for (name, value) in [("src-port", from), ("dst-port", to), ("vlan", flow.vlan)] {
            if let Some(value) = value {
                write!(f, " {name} {value}")?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_that_are_right_print_as_they_were_written() {
        for text in [
            "ip4 queue 0",
            "udp4 dst-port 53 queue 2",
            "tcp4 src-ip 192.0.2.0/24 dst-ip 198.51.100.1 src-port 0 dst-port 65535 vlan 4094 drop",
            "sctp4 src-ip 10.0.0.0/8 queue 65535",
            "ip4 dst-ip 224.0.0.0/4 vlan 1 drop",
            "ether proto 0x88cc queue 1",
            "ether proto 0x0600 drop",
        ] {
            assert_eq!(text.parse::<SteerRule>().unwrap().to_string(), text);
        }
        let spread = "  tcp4  dst-port 80\tsrc-ip 192.0.2.1/32 queue 3 ".parse::<SteerRule>().unwrap();
        assert_eq!(spread.to_string(), "tcp4 src-ip 192.0.2.1 dst-port 80 queue 3");
        let decimal = "ether proto 35020 queue 3".parse::<SteerRule>().unwrap();
        assert_eq!(decimal.to_string(), "ether proto 0x88cc queue 3");
        let all = "ip4 src-ip 0.0.0.0/0 drop".parse::<SteerRule>().unwrap();
        assert_eq!(all.to_string(), "ip4 drop");
    }

    #[test]
    fn each_wrong_rule_says_what_to_write() {
        for (text, says) in [
            (
                "",
                "'' begins with no kind of packet that can be steered: write ip4, tcp4, udp4 or sctp4 and fields",
            ),
            ("udp dst port 53 queue 2", "begins with no kind of packet"),
            ("udp6 dst-port 53 queue 2", "'udp6': NICs that we drive steer IPv4 alone"),
            ("udp4 dst-port 53", "does not say where its packets go: end it with queue N, or with drop"),
            ("ether proto 0x88cc", "does not say where its packets go"),
            ("udp4 port 53 queue 2", "'port' is no field of udp4 packets: write src-ip, dst-ip, src-port"),
            ("ip4 dst-port 53 queue 2", "'dst-port' is no field of ip4 packets: write src-ip, dst-ip, vlan;"),
            ("ether vlan 3 drop", "'vlan' is no field of ether packets: write proto"),
            (
                "ether proto 0x88cc vlan 3 drop",
                "'vlan' is no field of ether packets: write nothing but proto",
            ),
            ("udp4 dst-port 53 dst-port 54 drop", "'dst-port' stands there twice"),
            ("udp4 dst-port 65536 drop", "'65536' is no port: write one from 0 to 65535"),
            ("udp4 dst-port queue 2", "'queue' is no port"),
            ("udp4 queue", "'' is no queue: write its number"),
            ("udp4 queue -1", "'-1' is no queue"),
            ("udp4 queue 1 drop", "'drop' stands behind the end"),
            ("udp4 src-ip fd00::1 drop", "'fd00::1' is no IPv4 address: write 192.0.2.1 or 192.0.2.0/24"),
            ("udp4 src-ip 10.0.0.0/33 drop", "'10.0.0.0/33' is no IPv4 prefix: write a length from 0 to 32"),
            ("udp4 src-ip 10.0.0.1/8 drop", "'10.0.0.1/8' has bits set behind its length: write 10.0.0.0/8"),
            ("udp4 vlan 0 drop", "'0' is no VLAN: write an id from 1 to 4094"),
            ("udp4 vlan 4095 drop", "'4095' is no VLAN"),
            ("ether proto 0x800 queue 1", "'0x0800' is no EtherType to steer by: write one from 0x600"),
            ("ether proto 0x5ff queue 1", "'0x05ff' is no EtherType to steer by"),
            ("ether proto lldp queue 1", "'lldp' is no EtherType: write a number such as 0x88cc"),
        ] {
            let told = text.parse::<SteerRule>().unwrap_err().to_string();
            assert!(told.contains(says), "{text}: {told}");
            assert_eq!(told.lines().count(), 1);
        }
    }

    #[test]
    fn flows_overlap_when_a_packet_can_be_of_both() {
        let flow = |text: &str| match format!("{text} drop").parse::<SteerRule>().unwrap().flow {
            Flow::Ipv4(flow) => flow,
            Flow::EtherType(_) => unreachable!("not asked for"),
        };
        for (a, b, both) in [
            ("ip4", "udp4 vlan 3", true),
            ("udp4", "tcp4", false),
            ("udp4 src-port 3", "udp4 dst-port 3", true),
            ("udp4 src-port 3", "udp4 src-port 4", false),
            ("ip4 src-ip 10.0.0.0/8", "ip4 src-ip 10.1.0.0/16", true),
            ("ip4 src-ip 10.0.0.0/8", "ip4 src-ip 11.1.0.0/16", false),
            ("ip4 dst-ip 10.0.0.1", "ip4 dst-ip 10.0.0.2", false),
            ("ip4 vlan 3", "ip4 vlan 4", false),
        ] {
            assert_eq!(flow(a).overlaps(&flow(b)), both, "{a}, {b}");
            assert_eq!(flow(b).overlaps(&flow(a)), both, "{b}, {a}");
        }
    }
}
