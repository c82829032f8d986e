//! What an expression asks of addresses, protocols and ports: flows that together hold all packets that it matches, and as few
//! others as can be said so.
//!
//! This is what NICs compare. Whoever has them give these flows to a queue must still ask the expression about each
//! packet: its lengths, flags and `not` are in no flow. Packets are taken for plain: of fragments and IPv6
//! extension headers a flow says nothing, and NICs look into few of them.
//!
//! The expression's graph is narrowed down to packets of each protocol, and then read backwards, from its match to its entry:
//! each comparison of bytes that flows have narrows the flows behind it.

use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr};

use crate::Expression;
use crate::ether_types::types_beside_ip;
use crate::formula::{Comparison, Load, Operator, Test, Value};
use crate::graph::{Graph, Target};
use crate::plain::{NETWORK, Plain};
use crate::sets::{Check, Range};
use crate::walk::Family;

/// Packets that are alike.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Flow {
    /// IPv6, else IPv4.
    pub ipv6: bool,
    /// The protocol behind IP; any when `None`.
    pub protocol: Option<u8>,
    /// Source address, destination address, source port, destination port, as they stand in packets: 12 bytes, or 36 of IPv6.
    pub value: Vec<u8>,
    /// The bits of `value` that count.
    pub mask: Vec<u8>,
}

/// The flows of an expression.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Flows {
    /// The flows. Packets may be in several.
    pub flows: Vec<Flow>,
    /// What it matches beside them.
    pub beside: Vec<Beside>,
}

/// What an expression matches and no flow says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Beside {
    /// Packets that are neither IPv4 nor IPv6.
    OtherTypes,
    /// More flows than [`MOST_FLOWS`].
    Many,
}

/// Most flows that an expression is told in.
pub const MOST_FLOWS: usize = 1024;

const TCP: u8 = 6;
const UDP: u8 = 17;
pub(crate) const SCTP: u8 = 132;
/// Those whose ports flows have.
pub(crate) const WITH_PORTS: [u8; 3] = [TCP, UDP, SCTP];
/// Not protocols but IPv6 extension headers, with the one that carries no packet.
const EXTENSIONS: [u8; 9] = [0, 43, 44, 51, 59, 60, 135, 139, 140];
/// So many protocols are told one by one; more of them as all.
const MOST_PROTOCOLS: usize = 8;

impl Expression {
    /// The flows that it is about.
    pub fn flows(&self) -> Flows {
        let mut all = Flows::default();
        for family in [Family::V4, Family::V6] {
            match of_family(self.graph(), family) {
                Some(flows) if all.flows.len() + flows.len() <= MOST_FLOWS => all.flows.extend(flows),
                _ => all.beside = vec![Beside::Many],
            }
        }
        if types_beside_ip(self.graph()).any(|(_, settled)| settled.can_match) {
            all.beside.push(Beside::OtherTypes);
        }
        all
    }
}

/// The flows of one version of IP; `None` when there are too many.
fn of_family(graph: &Graph, family: Family) -> Option<Vec<Flow>> {
    let mut by_protocol: Vec<Vec<Part>> = Vec::new();
    // Most expressions ask the same of most protocols.
    let mut last: Option<(Graph, u8)> = None;
    for protocol in 0..=u8::MAX {
        let rest = Plain { family, protocol }.rest(graph);
        let has_ports = |protocol| WITH_PORTS.contains(&protocol);
        let same =
            last.as_ref().filter(|(graph, of)| *graph == rest && !has_ports(*of) && !has_ports(protocol));
        let parts = match same {
            Some((_, of)) => by_protocol[usize::from(*of)].clone(),
            None => Narrowed { family, protocol }.flows(&rest)?,
        };
        by_protocol.push(parts);
        last = Some((rest, protocol));
    }
    let flow = |protocol: Option<u8>, part: &Part| {
        let (ipv6, bytes) = (family == Family::V6, bytes_of(family));
        Flow { ipv6, protocol, value: part.value[..bytes].to_vec(), mask: part.mask[..bytes].to_vec() }
    };
    let is_none = |protocol| family == Family::V6 && EXTENSIONS.contains(&protocol);
    let is_other = |protocol: &u8| !WITH_PORTS.contains(protocol) && !is_none(*protocol);
    let of = |protocol: u8| &by_protocol[usize::from(protocol)];
    let others: Vec<u8> =
        (0..=u8::MAX).filter(is_other).filter(|protocol| !of(*protocol).is_empty()).collect();
    let (mut any, mut told) = (Vec::new(), WITH_PORTS.to_vec());
    if others.len() > MOST_PROTOCOLS {
        others.iter().flat_map(|protocol| of(*protocol)).for_each(|part| add(&mut any, *part));
    } else {
        told.extend(others);
    }
    let mut flows: Vec<Flow> = any.iter().map(|part| flow(None, part)).collect();
    for protocol in told {
        let more = of(protocol).iter().filter(|part| !any.iter().any(|any| any.holds(part)));
        flows.extend(more.map(|part| flow(Some(protocol), part)));
    }
    Some(flows)
}

/// Bytes from the source address up to behind the ports.
fn bytes_of(family: Family) -> usize {
    match family {
        Family::V4 => 12,
        Family::V6 => 36,
    }
}

/// Plain packets of one protocol.
#[derive(Clone, Copy)]
struct Narrowed {
    family: Family,
    protocol: u8,
}

/// Values of a flow's bytes, and which of their bits count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Part {
    value: [u8; 36],
    mask: [u8; 36],
}

impl Part {
    const ANY: Self = Self { value: [0; 36], mask: [0; 36] };

    /// What is in both; `None` when nothing can be.
    fn and(&self, other: &Self) -> Option<Self> {
        let mut both = *self;
        for at in 0..36 {
            let common = self.mask[at] & other.mask[at];
            if (self.value[at] ^ other.value[at]) & common != 0 {
                return None;
            }
            both.value[at] |= other.value[at];
            both.mask[at] |= other.mask[at];
        }
        Some(both)
    }

    /// Whether all of the other one is in this one.
    fn holds(&self, other: &Self) -> bool {
        (0..36).all(|at| {
            self.mask[at] & !other.mask[at] == 0 && (self.value[at] ^ other.value[at]) & self.mask[at] == 0
        })
    }
}

/// Adds a part, unless others hold it; those that it holds go.
fn add(parts: &mut Vec<Part>, part: Part) {
    if !parts.iter().any(|known| known.holds(&part)) {
        parts.retain(|known| !part.holds(known));
        parts.push(part);
    }
}

impl Narrowed {
    /// Flows in which all is that these packets can match of what is left of an expression; `None` when they are too many.
    fn flows(self, rest: &Graph) -> Option<Vec<Part>> {
        // What leads to a match from each node, the last one first.
        let mut behind: Vec<Vec<Part>> = vec![Vec::new(); rest.nodes.len()];
        let of = |target: Target, behind: &[Vec<Part>]| match target {
            Target::Match => vec![Part::ANY],
            Target::NoMatch => Vec::new(),
            Target::Node(index) => behind[index].clone(),
        };
        for (index, node) in rest.nodes.iter().enumerate().rev() {
            let mut parts = Vec::new();
            for (target, outcome) in [(node.no, false), (node.yes, true)] {
                let next = of(target, &behind);
                if next.is_empty() {
                    continue;
                }
                for asked in self.asked(&node.check, outcome) {
                    next.iter().filter_map(|part| part.and(&asked)).for_each(|part| add(&mut parts, part));
                    if parts.len() > MOST_FLOWS {
                        return None;
                    }
                }
            }
            behind[index] = parts;
        }
        Some(of(rest.entry, &behind))
    }

    /// What holds of the bytes when a check has this outcome: one of these. What can't be said narrows nothing.
    fn asked(self, check: &Check, outcome: bool) -> Vec<Part> {
        let asked = match check {
            Check::Among(value, ranges) if outcome => self.ranges(value, ranges),
            Check::Compare(Test { left, comparison, right: Value::Number(right) }) => {
                let up = |least: Option<u32>| {
                    least.map(|least| vec![Range { least, greatest: u32::MAX }]).unwrap_or_default()
                };
                let down = |end: Option<u32>| {
                    end.map(|greatest| vec![Range { least: 0, greatest }]).unwrap_or_default()
                };
                match (comparison, outcome) {
                    (Comparison::Equal, true) => self.masked(left, *right).map(|part| vec![part]),
                    (Comparison::Greater, true) => self.ranges(left, &up(right.checked_add(1))),
                    (Comparison::Greater, false) => self.ranges(left, &down(Some(*right))),
                    (Comparison::GreaterOrEqual, true) => self.ranges(left, &up(Some(*right))),
                    (Comparison::GreaterOrEqual, false) => self.ranges(left, &down(right.checked_sub(1))),
                    _ => None,
                }
            }
            _ => None,
        };
        asked.unwrap_or_else(|| vec![Part::ANY])
    }

    /// `load = number` or `load & mask = number`.
    fn masked(self, value: &Value, number: u32) -> Option<Part> {
        match value {
            Value::Load(load) => self.part(load, number, u32::MAX),
            Value::Binary(Operator::And, load, mask) => match (&**load, &**mask) {
                (Value::Load(load), Value::Number(mask)) if number & !mask == 0 => {
                    self.part(load, number, *mask)
                }
                _ => None,
            },
            _ => None,
        }
    }

    /// A loaded number in one of the ranges, each as blocks whose numbers begin alike.
    fn ranges(self, value: &Value, ranges: &[Range]) -> Option<Vec<Part>> {
        let Value::Load(load) = value else { return None };
        let most = u32::MAX >> (32 - 8 * load.size.bytes());
        let mut parts = Vec::new();
        for (number, mask) in ranges.iter().flat_map(|range| blocks(*range, most)) {
            parts.push(self.part(load, number, mask)?);
        }
        Some(parts)
    }

    /// The bytes of a load that flows have; `None` when it has no such.
    fn part(self, load: &Load, number: u32, mask: u32) -> Option<Part> {
        let begin = NETWORK
            + match self.family {
                Family::V4 => 12,
                Family::V6 => 8,
            };
        let end = if WITH_PORTS.contains(&self.protocol) {
            bytes_of(self.family)
        } else {
            bytes_of(self.family) - 4
        };
        let size = load.size.bytes();
        let mut part = Part::ANY;
        if load.index.is_some() {
            return None;
        }
        for byte in 0..size {
            let shift = 8 * (size - 1 - byte);
            let at = load.offset.checked_add(byte)?.checked_sub(begin).map(|at| at as usize);
            let at = at.filter(|at| *at < end)?;
            part.mask[at] = (mask >> shift).to_le_bytes()[0];
            part.value[at] = (number >> shift).to_le_bytes()[0] & part.mask[at];
        }
        Some(part)
    }
}

/// A range of numbers, of which `most` is the greatest, as blocks whose numbers begin alike: a number of each, and the bits that
/// count.
pub(crate) fn blocks(range: Range, most: u32) -> impl Iterator<Item = (u32, u32)> {
    let (mut least, end) = (u64::from(range.least), u64::from(range.greatest.min(most)) + 1);
    std::iter::from_fn(move || {
        let left = end.checked_sub(least).filter(|left| *left > 0)?;
        let size = 1_u64 << least.trailing_zeros().min(left.ilog2());
        let block = (u32::try_from(least).ok()?, most & !u32::try_from(size - 1).ok()?);
        least += size;
        Some(block)
    })
}

impl Flow {
    /// Whether it names ports.
    pub(crate) fn has_ports(&self) -> bool {
        self.mask[self.ports_at()..].iter().any(|byte| *byte != 0)
    }

    /// Where the ports stand.
    pub(crate) fn ports_at(&self) -> usize {
        if self.ipv6 { 32 } else { 8 }
    }
}

/// In the words of `ethtool -N`, with lengths of prefixes where it has masks.
impl fmt::Display for Flow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (version, bytes) = if self.ipv6 { (6, 16) } else { (4, 4) };
        match self.protocol {
            Some(TCP) => write!(f, "tcp{version}")?,
            Some(UDP) => write!(f, "udp{version}")?,
            Some(SCTP) => write!(f, "sctp{version}")?,
            Some(protocol) => write!(f, "ip{version} l4proto {protocol}")?,
            None => write!(f, "ip{version}")?,
        }
        for (at, len, name) in [
            (0, bytes, "src-ip"),
            (bytes, bytes, "dst-ip"),
            (2 * bytes, 2, "src-port"),
            (2 * bytes + 2, 2, "dst-port"),
        ] {
            let (value, mask) = (number(&self.value[at..at + len]), number(&self.mask[at..at + len]));
            let all = u128::MAX >> (128 - 8 * len);
            if mask == 0 {
                continue;
            }
            let bits = mask.count_ones();
            let is_prefix = mask | (all >> (bits - 1) >> 1) == all;
            let text = |value: u128| match len {
                2 => value.to_string(),
                4 => Ipv4Addr::from(u32::try_from(value).unwrap_or_default()).to_string(),
                _ => Ipv6Addr::from(value).to_string(),
            };
            write!(f, " {name} {}", text(value))?;
            match len {
                _ if mask == all => {}
                2 => write!(f, "/{mask:#x}")?,
                _ if is_prefix => write!(f, "/{bits}")?,
                _ => write!(f, "/{}", text(mask))?,
            }
        }
        Ok(())
    }
}

fn number(bytes: &[u8]) -> u128 {
    bytes.iter().fold(0, |number, byte| number << 8 | u128::from(*byte))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{NoNames, Options};

    fn flows(text: &str) -> (Vec<String>, Vec<Beside>) {
        let expression = Expression::new(text, &Options { names: &NoNames, netmask: None }).unwrap();
        let Flows { flows, beside } = expression.flows();
        (flows.iter().map(ToString::to_string).collect(), beside)
    }

    #[test]
    fn what_an_expression_is_about() {
        for (text, says) in [
            ("udp dst port 53", &["udp4 dst-port 53", "udp6 dst-port 53"][..]),
            ("ip and udp dst port 53 and len > 100 and not src host 10.0.0.1", &["udp4 dst-port 53"]),
            ("udp port 53 and ip", &["udp4 src-port 53", "udp4 dst-port 53"]),
            ("ip host 192.0.2.1", &["ip4 src-ip 192.0.2.1", "ip4 dst-ip 192.0.2.1"]),
            ("tcp and src net 10.0.0.0/8", &["tcp4 src-ip 10.0.0.0/8"]),
            ("ip", &["ip4"]),
            ("ip and not tcp port 22", &["ip4"]),
            ("ip and not icmp", &["ip4"]),
            ("ip and tcp or (ip[9] > 200 and ip src 10.0.0.1)", &["tcp4", "ip4 src-ip 10.0.0.1"]),
            ("icmp or ip proto 47", &["ip4 l4proto 1", "ip4 l4proto 47"]),
            ("icmp6 and src host fd00::1", &["ip6 l4proto 58 src-ip fd00::1"]),
            ("ip and udp dst portrange 1000-1003", &["udp4 dst-port 1000/0xfffc"]),
            ("ip and sctp src port 9", &["sctp4 src-port 9"]),
            ("ip and tcp[2:2] < 2", &["tcp4 dst-port 0/0xfffe"]),
            ("ip[16:4] & 0xff0000ff = 0x0a000001 and udp", &["udp4 dst-ip 10.0.0.1/255.0.0.255"]),
            (
                "tcp port 80 and (ip dst 192.0.2.1 or ip dst 192.0.2.2) and tcp[13] & 2 != 0",
                &[
                    "tcp4 dst-ip 192.0.2.1 src-port 80",
                    "tcp4 dst-ip 192.0.2.2 src-port 80",
                    "tcp4 dst-ip 192.0.2.1 dst-port 80",
                    "tcp4 dst-ip 192.0.2.2 dst-port 80",
                ],
            ),
            ("anyvlan and ip and l4 udp dst port 53", &["udp4 dst-port 53"]),
            ("ip and icmp[0] = 8", &["ip4 l4proto 1"]),
        ] {
            let (mut told, beside) = flows(text);
            let mut says: Vec<String> = says.iter().map(|text| (*text).to_owned()).collect();
            told.sort();
            says.sort();
            assert_eq!((told, beside), (says, vec![]), "{text}");
        }
    }

    #[test]
    fn what_no_flow_says_is_named() {
        let other = vec![Beside::OtherTypes];
        for text in [
            "arp",
            "vlan 7 and udp",
            "ether src 02:00:00:00:00:01 and not ip and not ip6",
            "ether[12:2] > 0xf800",
        ] {
            assert_eq!(flows(text), (vec![], other.clone()), "{text}");
        }
        assert_eq!(flows("arp or ip"), (vec!["ip4".into()], other.clone()));
        assert_eq!(flows(""), (vec!["ip4".into(), "ip6".into()], other.clone()));
        assert_eq!(flows("len > 300").1, other);
        let hosts: Vec<String> = (0..2000).map(|n| format!("10.{}.{}.1", n / 200, n % 200)).collect();
        assert_eq!(flows(&format!("ip src host {}", hosts.join(" or "))), (vec![], vec![Beside::Many]));
        let few = flows(&format!("ip src host {}", hosts[..1000].join(" or ")));
        assert_eq!((few.0.len(), few.1), (1000, vec![]));
    }
}
