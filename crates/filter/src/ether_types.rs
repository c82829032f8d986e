//! What an expression makes of packets of each EtherType, as far as that alone tells.

use crate::Expression;
use crate::formula::{Size, Test, Value};
use crate::graph::Graph;
use crate::plain::NAMED_AT;
use crate::sets::Check;
use crate::settled::Settled;
use crate::walk::{TAGS, Walk};

const IP: [u32; 2] = [0x0800, 0x86dd];

impl Expression {
    /// The EtherTypes other than IP's of which it matches all packets, where it matches no others; `None` when it matches some
    /// packets of a type and not all, or types that it does not name.
    pub(crate) fn ether_types(&self) -> Option<Vec<u16>> {
        let types = types_beside_ip(self.graph()).filter(|(_, settled)| settled.can_match);
        types.map(|(kind, settled)| kind.filter(|_| !settled.can_fail)).collect()
    }
}

/// Each EtherType other than IP's that a graph asks for, and one for all others, which is `None`; with what becomes of such packets.
/// Those behind VLAN tags are none of them where tags are passed.
pub(crate) fn types_beside_ip(graph: &Graph) -> impl Iterator<Item = (Option<u16>, Settled)> {
    let passes_tags = graph.walks.iter().any(|walk| matches!(walk, Walk::Tags { named_at: NAMED_AT }));
    let mut types: Vec<u32> = graph
        .nodes
        .iter()
        .flat_map(|node| match &node.check {
            Check::Compare(Test { left, right: Value::Number(right), .. }) if names_type(left) => {
                vec![*right]
            }
            Check::Among(value, ranges) if names_type(value) => {
                ranges.iter().flat_map(|range| [range.least, range.greatest]).collect()
            }
            _ => Vec::new(),
        })
        .collect();
    types.sort_unstable();
    types.dedup();
    let is_passed = |kind: u32| passes_tags && TAGS.iter().any(|tag| u32::from(*tag) == kind);
    let nobody_asks = (0xf000..=0xffff).find(|kind| !types.contains(kind));
    types.retain(|kind| !IP.contains(kind) && !is_passed(*kind));
    let asked = types.into_iter().map(|kind| (u16::try_from(kind).ok(), kind));
    let all = asked.chain(nobody_asks.map(|kind| (None, kind)));
    all.map(|(named, kind)| (named, of_type(graph, kind)))
}

/// Whether a value is the EtherType, behind tags if there are any.
fn names_type(value: &Value) -> bool {
    let Value::Load(load) = value else { return false };
    let index = load.index.as_ref();
    load.offset == NAMED_AT
        && load.size == Size::Half
        && index.is_none_or(|index| matches!(index, Value::Walk(Walk::Tags { named_at: NAMED_AT })))
}

/// What becomes of packets of an EtherType, whatever else they hold.
fn of_type(graph: &Graph, kind: u32) -> Settled {
    Settled::of(graph, |check| {
        let known = match check {
            Check::Compare(Test { left, comparison, right: Value::Number(right) }) if names_type(left) => {
                Some(comparison.holds(kind, *right))
            }
            Check::Among(value, ranges) if names_type(value) => {
                Some(ranges.iter().any(|range| (range.least..=range.greatest).contains(&kind)))
            }
            _ => None,
        };
        // Where a packet of the type ends is not asked.
        (known, false)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{NoNames, Options};

    #[test]
    fn whole_ether_types_are_told_and_parts_of_them_are_not() {
        for (text, types) in [
            ("ether proto 0x88cc", Some(vec![0x88cc])),
            ("arp or ether proto 0x88cc", Some(vec![0x0806, 0x88cc])),
            ("anyvlan and arp", None),
            ("ip and udp dst port 53", Some(vec![])),
            ("arp or ip6", Some(vec![0x0806])),
            ("arp and ether src 02:00:00:00:00:01", None),
            ("", None),
            ("not arp", None),
            ("ether[12:2] > 0x8000", None),
        ] {
            let expression = Expression::new(text, &Options { names: &NoNames, netmask: None }).unwrap();
            assert_eq!(expression.ether_types(), types, "{text}");
        }
    }
}
