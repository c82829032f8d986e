//! How far into packets an expression looks, and whether it asks how long they are.

use crate::formula::{Load, Operator, Size, Value};
use crate::graph::Graph;
use crate::sets::Check;
use crate::walk::{MOST_TAGS, Walk};

/// Nobody knows how far.
pub(crate) const ANYWHERE: u64 = u64::MAX;

/// The most bytes of a packet, from its first one on, that decide whether it matches; [`ANYWHERE`] where that depends on the
/// packet too much.
pub(crate) fn extent(graph: &Graph) -> u64 {
    values(graph).map(looked_at).max().unwrap_or(0)
}

/// Whether it asks for the packet's length on the wire.
pub(crate) fn asks_length(graph: &Graph) -> bool {
    values(graph).any(has_length)
}

fn values(graph: &Graph) -> impl Iterator<Item = &Value> {
    graph.nodes.iter().flat_map(|node| match &node.check {
        Check::Compare(test) => vec![&test.left, &test.right],
        Check::Among(value, _) => vec![value],
    })
}

/// Bytes that computing a value may look at.
fn looked_at(value: &Value) -> u64 {
    match value {
        Value::Number(_) | Value::Length => 0,
        Value::Load(load) | Value::HeaderLength(load) => of_load(load),
        Value::Negate(inner) => looked_at(inner),
        Value::Binary(_, left, right) => looked_at(left).max(looked_at(right)),
        Value::Walk(Walk::Tags { named_at }) => u64::from(*named_at) + TAGS_LEN + 2,
        Value::Walk(_) => ANYWHERE,
    }
}

fn of_load(load: &Load) -> u64 {
    let index = load.index.as_ref();
    let from = index.map_or(0, greatest);
    if from > u64::from(u16::MAX) {
        // It is any number that the packet has.
        return ANYWHERE;
    }
    let end = from + u64::from(load.offset) + u64::from(load.size.bytes());
    end.max(index.map_or(0, looked_at))
}

/// Bytes of the most tags that are followed.
const TAGS_LEN: u64 = 4 * MOST_TAGS as u64;

/// The greatest number that a value can be.
fn greatest(value: &Value) -> u64 {
    let any = u64::from(u32::MAX);
    match value {
        Value::Number(number) => (*number).into(),
        Value::HeaderLength(_) => 60,
        Value::Load(load) => match load.size {
            Size::Byte => u8::MAX.into(),
            Size::Half => u16::MAX.into(),
            Size::Word => any,
        },
        Value::Walk(Walk::Tags { .. }) => TAGS_LEN,
        Value::Length | Value::Negate(_) | Value::Walk(_) => any,
        Value::Binary(operator, left, right) => {
            let [left, most] = [left, right].map(|value| greatest(value));
            match (operator, &**right) {
                // What is above wraps.
                (Operator::Add, _) if left + most <= any => left + most,
                (Operator::Multiply, _) if left * most <= any => left * most,
                (Operator::And, _) => left.min(most),
                (Operator::Divide, _) => left,
                (Operator::ShiftRight, Value::Number(by)) => left.checked_shr(*by).unwrap_or(0),
                (Operator::ShiftLeft, Value::Number(by @ 0..32)) if left << by <= any => left << by,
                _ => any,
            }
        }
    }
}

fn has_length(value: &Value) -> bool {
    let of_load = |load: &Load| load.index.as_ref().is_some_and(has_length);
    match value {
        Value::Length => true,
        Value::Number(_) | Value::Walk(_) => false,
        Value::Load(load) | Value::HeaderLength(load) => of_load(load),
        Value::Negate(inner) => has_length(inner),
        Value::Binary(_, left, right) => has_length(left) || has_length(right),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Expression;
    use crate::plain::Plain;

    fn graph(text: &str) -> Graph {
        text.parse::<Expression>().unwrap().graph().clone()
    }

    #[test]
    fn it_is_known_how_far_an_expression_looks() {
        let of = |text: &str| extent(&graph(text));
        for (text, bytes) in [
            ("", 0),
            ("ip", 14),
            ("host 10.0.0.1", 42),
            // 60 bytes of IPv4, and both ports.
            ("udp dst port 9", 14 + 60 + 4),
            ("tcp[13] & 2 != 0", 14 + 60 + 14),
            ("tcp[tcp[12] >> 4 << 2] = 7", 14 + 60 + 60 + 1),
            ("ip6[40] = 133", 55),
            ("udp[8:4] = 1 and less 100", 14 + 60 + 12),
            ("ether[(5 - len) & 0xff] = 1", 256),
            ("tcp[tcp[0:4]] = 1", ANYWHERE),
            ("l4 port 80", ANYWHERE),
        ] {
            assert_eq!(of(text), bytes, "{text}");
        }
        assert_eq!(of("anyvlan and tcp dst port 9"), 14 + 64 + 60 + 4);
    }

    #[test]
    fn of_plain_packets_it_looks_at_headers_alone() {
        for text in ["udp dst port 9", "anyvlan and l4 port 80", "tcp[13] & 2 != 0", "fragment or icmp6"] {
            for plain in Plain::ALL {
                let bytes = extent(&plain.rest(&graph(text)));
                assert!(bytes <= plain.len().into(), "{text} {plain:?}: {bytes}");
            }
        }
        assert_eq!(Plain::ALL.map(|plain| extent(&plain.rest(&graph("udp[8:2] = 5")))), [0, 44, 0, 0]);
    }

    #[test]
    fn who_asks_for_the_length_is_known() {
        for (text, asks) in [
            ("udp and len > 400", true),
            ("greater 5", true),
            ("ether[len - 1] = 7", true),
            ("udp dst port 9", false),
            ("ip[2:2] > 500", false),
        ] {
            assert_eq!(asks_length(&graph(text)), asks, "{text}");
        }
    }
}
