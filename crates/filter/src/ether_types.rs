//! What an expression makes of packets of each EtherType, as far as that alone tells.

use std::ops::RangeInclusive;

use crate::Expression;
use crate::formula::{Comparison, Size, Test, Value};
use crate::graph::Graph;
use crate::plain::NAMED_AT;
use crate::sets::{Check, Range};
use crate::settled::Settled;
use crate::walk::{TAGS, Walk};

const IP: [u32; 2] = [0x0800, 0x86dd];

/// How many EtherTypes there are.
const TYPES: u32 = 1 << 16;

/// Most EtherTypes that an expression is told in: several times as many as a NIC has filters for.
const MOST_TYPES: usize = 64;

impl Expression {
    /// The EtherTypes other than IP's of which it matches all packets, where it matches no others; `None` when it matches some
    /// packets of a type and not all, or more types than [`MOST_TYPES`].
    pub(crate) fn ether_types(&self) -> Option<Vec<u16>> {
        let mut all = Vec::new();
        for (types, settled) in types_beside_ip(self.graph()).filter(|(_, settled)| settled.can_match) {
            if settled.can_fail || all.len() + types.len() > MOST_TYPES {
                return None;
            }
            all.extend(types);
        }
        Some(all)
    }
}

/// All EtherTypes other than IP's, in ranges of those that are alike to a graph; with what becomes of such packets. Those of VLAN
/// tags are none of them where tags are passed.
pub(crate) fn types_beside_ip(graph: &Graph) -> impl Iterator<Item = (RangeInclusive<u16>, Settled)> {
    let passes_tags = graph.walks.iter().any(|walk| matches!(walk, Walk::Tags { named_at: NAMED_AT }));
    let tags = TAGS.iter().map(|tag| u32::from(*tag)).filter(|_| passes_tags);
    let left_out: Vec<u32> = IP.into_iter().chain(tags).collect();
    // Each is the first type of a range.
    let mut cuts = vec![0, TYPES];
    let around = |least: u32, greatest: u32| [least, greatest.saturating_add(1)];
    cuts.extend(left_out.iter().flat_map(|kind| around(*kind, *kind)));
    for node in &graph.nodes {
        match &node.check {
            Check::Compare(Test { left, right: Value::Number(right), .. }) if names_type(left) => {
                cuts.extend(around(*right, *right));
            }
            Check::Among(value, ranges) if names_type(value) => {
                cuts.extend(ranges.iter().flat_map(|range| around(range.least, range.greatest)));
            }
            _ => {}
        }
    }
    cuts.retain(|cut| *cut <= TYPES);
    cuts.sort_unstable();
    cuts.dedup();
    let ranges: Vec<Range> =
        cuts.array_windows().map(|[first, next]| Range { least: *first, greatest: next - 1 }).collect();
    ranges.into_iter().filter(move |range| !left_out.contains(&range.least)).filter_map(|range| {
        let [least, greatest] = [range.least, range.greatest].map(|kind| u16::try_from(kind).ok());
        Some((least?..=greatest?, of_types(graph, range)))
    })
}

/// Whether a value is the EtherType, behind tags if there are any.
fn names_type(value: &Value) -> bool {
    let Value::Load(load) = value else { return false };
    let index = load.index.as_ref();
    load.offset == NAMED_AT
        && load.size == Size::Half
        && index.is_none_or(|index| matches!(index, Value::Walk(Walk::Tags { named_at: NAMED_AT })))
}

/// What becomes of packets of EtherTypes that no comparison tells apart, whatever else they hold.
fn of_types(graph: &Graph, types: Range) -> Settled {
    let kind = types.least;
    Settled::of(graph, |check| {
        let known = match check {
            // Bits are not alike in a range.
            Check::Compare(Test { comparison: Comparison::CommonBit, .. }) if !types.is_one() => None,
            Check::Compare(Test { left, comparison, right: Value::Number(right) }) if names_type(left) => {
                Some(comparison.holds(kind, *right))
            }
            Check::Among(value, ranges) if names_type(value) => {
                Some(ranges.iter().any(|range| (range.least..=range.greatest).contains(&kind)))
            }
            _ => None,
        };
        // Where a packet of these types ends is not asked.
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
            ("ether proto 0x88b8 or 0x88b9 or 0x88ba", Some(vec![0x88b8, 0x88b9, 0x88ba])),
            ("ether[12:2] > 0x7fe and ether[12:2] < 0x804", Some(vec![0x07ff, 0x0801, 0x0802, 0x0803])),
            ("arp or ether[12:2] < 0x600", None),
            ("ether[12:2] > 0xf800", None),
            ("ether[12:2] > 0xfffd", Some(vec![0xfffe, 0xffff])),
            ("ether[12:2] > 0xffff", Some(vec![])),
            ("ether[12:2] & 0x0100 != 0 and ether[12:2] >= 0x8900 and ether[12:2] <= 0x8901", None),
            ("not (ether[12:2] < 0x88b8) and ether[12:2] < 0x88f8", Some((0x88b8..0x88f8).collect())),
            ("ether[12:2] >= 0x88b8 and ether[12:2] < 0x88f9", None),
        ] {
            let expression = Expression::new(text, &Options { names: &NoNames, netmask: None }).unwrap();
            assert_eq!(expression.ether_types(), types, "{text}");
        }
    }
}
