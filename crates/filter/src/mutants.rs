//! Would the comparisons with libpcap and the kernel notice a mistake? Expressions are broken in every place, and random
//! packets of the same kind must tell the broken ones from the whole.

#[path = "../tests/random/mod.rs"]
#[expect(dead_code, reason = "not all of it is used by this test")]
mod random;

use crate::formula::{Comparison, Load, Size, Value};
use crate::graph::Graph;
use crate::matcher::Matcher;
use crate::{Expression, NoNames, Options};
use random::Random;
use random::expression::{Used, expression};
use random::packet::packet;

fn read(text: &str) -> Option<Expression> {
    Expression::new(text, &Options { names: &NoNames, netmask: None }).ok()
}

/// All ways to break one comparison of a graph.
fn mutants(graph: &Graph) -> Vec<(String, Graph)> {
    let mut mutants = Vec::new();
    for (index, node) in graph.nodes.iter().enumerate() {
        let mut add = |what: &str, change: &dyn Fn(&mut crate::graph::Node)| {
            let mut mutant = graph.clone();
            change(&mut mutant.nodes[index]);
            if mutant != *graph {
                mutants.push((format!("{what} in {:?}", node.test), mutant));
            }
        };
        add("yes and no swapped", &|node| std::mem::swap(&mut node.yes, &mut node.no));
        add("another number", &|node| {
            if let Value::Number(number) = &mut node.test.right {
                *number ^= 1;
            }
        });
        add("source and destination swapped", &|node| {
            for_load(&mut node.test.left, &|load| {
                load.offset = match (load.offset, load.size) {
                    (26, Size::Word) => 30,
                    (30, Size::Word) => 26,
                    (14, Size::Half) => 16,
                    (16, Size::Half) => 14,
                    (54, Size::Half) => 56,
                    (56, Size::Half) => 54,
                    (offset, _) => offset,
                };
            })
        });
        add("a byte further", &|node| for_load(&mut node.test.left, &|load| load.offset += 1));
        add("another comparison", &|node| {
            node.test.comparison = match node.test.comparison {
                Comparison::Equal => Comparison::Greater,
                Comparison::Greater => Comparison::GreaterOrEqual,
                Comparison::GreaterOrEqual => Comparison::Greater,
                Comparison::CommonBit => Comparison::Equal,
            };
        });
    }
    mutants
}

fn for_load(value: &mut Value, change: &dyn Fn(&mut Load)) {
    match value {
        Value::Load(load) => change(load),
        Value::Binary(_, left, _) => for_load(left, change),
        _ => {}
    }
}

/// How many mutants there are, and which of them no packet tells from the whole.
fn judge(text: &str, packets: &[Vec<u8>]) -> Option<(usize, Vec<String>)> {
    let whole = read(text)?;
    let mutants = mutants(whole.graph());
    let count = mutants.len();
    let survives = |mutant: &Graph| {
        let mutant = Matcher::new(mutant);
        packets.iter().all(|packet| {
            mutant.matches(packet, u32::try_from(packet.len()).unwrap()) == whole.matches(packet)
        })
    };
    let survivors = mutants.into_iter().filter(|(_, mutant)| survives(mutant)).map(|(what, _)| what);
    Some((count, survivors.collect()))
}

fn packets(count: usize) -> Vec<Vec<u8>> {
    let mut random = Random::new(11);
    (0..count).map(|_| packet(&mut random)).collect()
}

#[test]
fn every_mistake_in_a_common_expression_is_caught() {
    let packets = packets(30_000);
    for text in [
        "src host 10.0.0.1",
        "dst net 10.0.0.0/8",
        "udp dst port 53",
        "tcp src port 80",
        "portrange 53-80",
        "ether src 02:00:00:00:00:01",
        "vlan 5 and ip",
        "tcp[tcpflags] & tcp-syn != 0",
        "ip6 dst host fe80::1",
        "less 80",
    ] {
        let (count, survivors) = judge(text, &packets).unwrap();
        assert!(count > 0);
        assert_eq!(survivors, [""; 0], "{text}");
    }
}

#[test]
fn most_mistakes_in_a_random_expression_are_caught() {
    let packets = packets(8000);
    let mut random = Random::new(12);
    let (mut made, mut caught) = (0, 0);
    for _ in 0..60 {
        let text = expression(&mut random, &mut Used::new());
        if let Some((count, survivors)) = judge(&text, &packets) {
            made += count;
            caught += count - survivors.len();
        }
    }
    // Some can't be caught: what is behind `and` with a part that never matches, say.
    assert!(caught * 2 > made, "{caught} of {made}");
}
