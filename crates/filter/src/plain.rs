//! Plain packets: TCP or UDP right behind an IP header without options, untagged and in one piece.
//!
//! Nearly all packets are plain. A program that has seen so once knows most bytes that expressions ask for, and where the
//! ports are; what it leaves of an expression is often one comparison, or none.

use crate::formula::{Comparison, Load, Operator, Size, Test, Value};
use crate::graph::{Graph, Node, Target};
use crate::sets::Check;
use crate::walk::{Family, Outer, Pushed, Start, Transport, Walk};

/// A kind of plain packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Plain {
    pub(crate) family: Family,
    /// TCP's number or UDP's.
    pub(crate) protocol: u8,
}

const TCP: u8 = 6;
const UDP: u8 = 17;

/// Where the EtherType stands.
pub(crate) const NAMED_AT: u32 = 12;
/// Where the IP header begins.
pub(crate) const NETWORK: u32 = 14;
/// The first byte of an IPv4 header without options.
pub(crate) const FIRST_V4: u8 = 0x45;
/// What must not be set in IPv4's fragment field: more fragments, and the offset.
pub(crate) const FRAGMENT: u16 = 0x3fff;
/// Where that field stands.
pub(crate) const FRAGMENT_AT: u32 = NETWORK + 6;

impl Plain {
    pub(crate) const ALL: [Self; 4] = [
        Self { family: Family::V4, protocol: TCP },
        Self { family: Family::V4, protocol: UDP },
        Self { family: Family::V6, protocol: TCP },
        Self { family: Family::V6, protocol: UDP },
    ];

    pub(crate) fn is_tcp(&self) -> bool {
        self.protocol == TCP
    }

    pub(crate) fn kind(self) -> u16 {
        self.family.ether_type()
    }

    /// Where the protocol is named.
    pub(crate) fn protocol_at(self) -> u32 {
        NETWORK
            + match self.family {
                Family::V4 => 9,
                Family::V6 => 6,
            }
    }

    /// Where the ports are.
    pub(crate) fn transport(self) -> u32 {
        NETWORK
            + match self.family {
                Family::V4 => 20,
                Family::V6 => 40,
            }
    }

    /// Bytes that such a packet has for sure: its headers, without TCP's options.
    pub(crate) fn len(self) -> u32 {
        self.transport() + if self.protocol == TCP { 20 } else { 8 }
    }

    /// What is left to be asked when the packet is of this kind.
    pub(crate) fn rest(self, graph: &Graph) -> Graph {
        let checks: Vec<_> = graph.nodes.iter().map(|node| self.check(&node.check)).collect();
        let lead = |mut target: Target| {
            while let Target::Node(index) = target
                && let Err(outcome) = checks[index]
            {
                let node = &graph.nodes[index];
                target = if outcome { node.yes } else { node.no };
            }
            target
        };
        let entry = lead(graph.entry);
        let mut is_reached = vec![false; checks.len()];
        let reach = |target: Target, is_reached: &mut Vec<bool>| {
            if let Target::Node(index) = target {
                is_reached[index] = true;
            }
        };
        reach(entry, &mut is_reached);
        for (index, node) in graph.nodes.iter().enumerate() {
            if is_reached[index] {
                reach(lead(node.yes), &mut is_reached);
                reach(lead(node.no), &mut is_reached);
            }
        }
        let mut place = Vec::with_capacity(checks.len());
        let mut count = 0;
        for is_reached in &is_reached {
            place.push(count);
            count += usize::from(*is_reached);
        }
        let moved = |target: Target| match lead(target) {
            Target::Node(index) => Target::Node(place[index]),
            end => end,
        };
        let all = graph.nodes.iter().zip(&checks).zip(is_reached).filter(|(_, is_reached)| *is_reached);
        let nodes = all.filter_map(|((node, check), _)| {
            let (yes, no) = (moved(node.yes), moved(node.no));
            let proven = node.proven.max(self.len().into());
            check.clone().ok().map(|check| Node { check, yes, no, proven, walked: node.walked })
        });
        let walks = graph.walks.iter().map(|walk| self.walk(*walk)).collect();
        Graph { entry: moved(graph.entry), nodes: nodes.collect(), walks }
    }

    /// What is left of a check; its outcome when that is known.
    fn check(self, check: &Check) -> Result<Check, bool> {
        match check {
            Check::Compare(Test { left, comparison, right }) => match (self.value(left), self.value(right)) {
                (Value::Number(left), Value::Number(right)) => Err(comparison.holds(left, right)),
                (left, Value::Number(mask))
                    if *comparison == Comparison::CommonBit && self.is_clear(&left, mask) =>
                {
                    Err(false)
                }
                (left, right) => Ok(Check::Compare(Test { left, comparison: *comparison, right })),
            },
            Check::Among(value, ranges) => match self.value(value) {
                Value::Number(number) => {
                    Err(ranges.iter().any(|range| (range.least..=range.greatest).contains(&number)))
                }
                value => Ok(Check::Among(value, ranges.clone())),
            },
        }
    }

    fn value(self, value: &Value) -> Value {
        match value {
            Value::Number(_) | Value::Length => value.clone(),
            Value::Load(load) => self.load(load),
            Value::HeaderLength(load) => match self.load(load) {
                Value::Load(load) => Value::HeaderLength(load),
                Value::Number(first) => Value::Number((first & 0xf) * 4),
                other => other,
            },
            Value::Negate(inner) => match self.value(inner) {
                Value::Number(number) => Value::Number(number.wrapping_neg()),
                inner => Value::Negate(Box::new(inner)),
            },
            Value::Binary(operator, left, right) => {
                self.binary(*operator, self.value(left), self.value(right))
            }
            Value::Walk(walk) => {
                let walk = self.walk(*walk);
                self.found(walk).map_or(Value::Walk(walk), Value::Number)
            }
        }
    }

    fn binary(self, operator: Operator, left: Value, right: Value) -> Value {
        let known = match (&left, &right) {
            (Value::Number(left), Value::Number(right)) => operator.apply(*left, *right),
            (_, Value::Number(mask)) if operator == Operator::And && self.is_clear(&left, *mask) => Some(0),
            _ => None,
        };
        known.map_or_else(|| Value::Binary(operator, Box::new(left), Box::new(right)), Value::Number)
    }

    /// Whether these bits of a value are those that say what kind of a fragment it is: it is none.
    fn is_clear(self, value: &Value, mask: u32) -> bool {
        let field = Load { index: None, offset: FRAGMENT_AT, size: Size::Half };
        self.family == Family::V4
            && mask & !u32::from(FRAGMENT) == 0
            && matches!(value, Value::Load(load) if **load == field)
    }

    fn load(self, load: &Load) -> Value {
        let mut load = load.clone();
        if let Some(index) = &load.index {
            let index = self.value(index);
            let fixed = match index {
                Value::Number(number) => load.offset.checked_add(number),
                _ => None,
            };
            (load.index, load.offset) = match fixed {
                Some(offset) => (None, offset),
                None => (Some(index), load.offset),
            };
        }
        let known = if load.index.is_none() { self.known(&load) } else { None };
        known.map_or_else(|| Value::Load(Box::new(load)), Value::Number)
    }

    /// The bytes at a fixed place, where all are known.
    fn known(self, load: &Load) -> Option<u32> {
        let [high, low] = self.kind().to_be_bytes();
        let byte = |at: u32| match at {
            NAMED_AT => Some(high),
            _ if at == NAMED_AT + 1 => Some(low),
            NETWORK if self.family == Family::V4 => Some(FIRST_V4),
            _ => (at == self.protocol_at()).then_some(self.protocol),
        };
        let mut bytes = (0..load.size.bytes()).map(|more| byte(load.offset.checked_add(more)?));
        bytes.try_fold(0_u32, |number, byte| Some(number << 8 | u32::from(byte?)))
    }

    /// The same walk in a packet without tags.
    fn walk(self, walk: Walk) -> Walk {
        let tagged = Pushed::Tags { named_at: NAMED_AT };
        let outer = |outer: Outer| Outer { tags_at: outer.tags_at.filter(|at| *at != NAMED_AT), ..outer };
        let start = |start: Start| Start {
            pushed: match start.pushed {
                pushed if pushed == tagged => Pushed::Nothing,
                Pushed::Geneve(within) => Pushed::Geneve(outer(within)),
                pushed => pushed,
            },
            ..start
        };
        match walk {
            Walk::Tags { .. } => walk,
            Walk::Chain { start: from, protocol } => Walk::Chain { start: start(from), protocol },
            Walk::Transport { start: from } => Walk::Transport { start: start(from) },
            Walk::Geneve { outer: within, part } => Walk::Geneve { outer: outer(within), part },
        }
    }

    /// What a walk finds, where that is known.
    fn found(self, walk: Walk) -> Option<u32> {
        let ours = Start { family: self.family, network: NETWORK, pushed: Pushed::Nothing };
        match walk {
            Walk::Tags { named_at: NAMED_AT } => Some(0),
            Walk::Chain { start, protocol } if start == ours => Some(u32::from(protocol == self.protocol)),
            Walk::Transport { start } if start == ours => {
                Some(u32::from(self.protocol) << Transport::PROTOCOL_SHIFT | self.transport())
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Expression, NoNames, Options};

    fn left(text: &str) -> [Graph; 4] {
        let expression = Expression::new(text, &Options { names: &NoNames, netmask: None }).unwrap();
        Plain::ALL.map(|plain| plain.rest(expression.graph()))
    }

    #[test]
    fn most_of_an_expression_is_known_of_a_plain_packet() {
        let nodes = |text: &str| left(text).map(|graph| (graph.nodes.len(), graph.entry));
        let (no, one) = ((0, Target::NoMatch), (1, Target::Node(0)));
        assert_eq!(nodes("udp dst port 9"), [no, one, no, one]);
        assert_eq!(nodes("anyvlan and l4 tcp src port 80"), [one, no, one, no]);
        assert_eq!(nodes("arp or icmp6 or fragment or vlan"), [no; 4]);
        let yes = (0, Target::Match);
        assert_eq!(nodes("ip"), [yes, yes, no, no]);
        assert_eq!(nodes("protochain 6"), [yes, no, yes, no]);
        assert_eq!(nodes("ip[6:2] & 0x1fff = 0 and udp"), [no, yes, no, no]);
    }
}
