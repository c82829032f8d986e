//! Would the comparisons with libpcap and the kernel notice a mistake? Expressions are broken in every place, and random
//! packets of the same kind must tell the broken ones from the whole.

#[path = "../tests/random/mod.rs"]
#[expect(dead_code, reason = "not all of it is used by this test")]
mod random;

use crate::formula::{Comparison, Load, Size, Test, Value};
use crate::graph::Graph;
use crate::matcher::Matcher;
use crate::sets::{Check, Range};
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
                mutants.push((format!("{what} in {:?}", node.check), mutant));
            }
        };
        add("yes and no swapped", &|node| std::mem::swap(&mut node.yes, &mut node.no));
        add("another number", &|node| {
            if let Check::Compare(Test { right: Value::Number(number), .. }) = &mut node.check {
                *number ^= 1;
            }
        });
        add("the first number missing", &|node| {
            for_ranges(&mut node.check, &|ranges| match &mut ranges[..] {
                [first, ..] if !first.is_one() => first.least += 1,
                [_, _, ..] => drop(ranges.remove(0)),
                _ => {}
            })
        });
        add("the last number missing", &|node| {
            for_ranges(&mut node.check, &|ranges| match &mut ranges[..] {
                [.., last] if !last.is_one() => last.greatest -= 1,
                [_, _, ..] => drop(ranges.pop()),
                _ => {}
            })
        });
        add("source and destination swapped", &|node| {
            for_load(left(&mut node.check), &|load| {
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
        add("a byte further", &|node| for_load(left(&mut node.check), &|load| load.offset += 1));
        add("another comparison", &|node| {
            let Check::Compare(test) = &mut node.check else { return };
            test.comparison = match test.comparison {
                Comparison::Equal => Comparison::Greater,
                Comparison::Greater => Comparison::GreaterOrEqual,
                Comparison::GreaterOrEqual => Comparison::Greater,
                Comparison::CommonBit => Comparison::Equal,
            };
        });
    }
    mutants
}

fn left(check: &mut Check) -> &mut Value {
    match check {
        Check::Compare(test) => &mut test.left,
        Check::Among(left, _) => left,
    }
}

fn for_ranges(check: &mut Check, change: &dyn Fn(&mut Vec<Range>)) {
    if let Check::Among(_, ranges) = check {
        let mut changed = ranges.to_vec();
        change(&mut changed);
        *ranges = changed.into();
    }
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
        "src host 10.0.0.1 or 10.1.2.3",
        "udp dst port 53 or 80 or 81 or 443",
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
    // The share of each expression's mistakes: a long list has many more than a short expression.
    let mut shares = Vec::new();
    for _ in 0..60 {
        let text = expression(&mut random, &mut Used::new());
        if let Some((count @ 1.., survivors)) = judge(&text, &packets) {
            shares.push((count - survivors.len()) as f64 / count as f64);
        }
    }
    // Some can't be caught: what is behind `and` with a part that never matches, say.
    let mean = shares.iter().sum::<f64>() / shares.len() as f64;
    assert!(mean > 0.5, "{mean} of {}", shares.len());
}
