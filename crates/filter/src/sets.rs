//! Comparisons of one value with many numbers become one search: a hundred hosts cost little more than one.
//!
//! `host A or host B or ...` is a chain in the graph: when one comparison fails the next one follows, and all lead to the
//! same place when they hold. Those of the same value are put together. Their order changes by that, which must not be
//! seen: a comparison only moves forward over others that can't end the expression, since all bytes that they load have
//! been loaded before.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use crate::formula::{Comparison, Operator, Size, Test, Value};
use crate::graph::{Node, Target, is_safe};

/// What a node asks.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Check {
    Compare(Test),
    /// Whether a value is in one of the ranges.
    Among(Value, Ranges),
}

/// Numbers: ranges in order, with gaps between them.
pub(crate) type Ranges = Arc<[Range]>;

/// The numbers from one to another, both included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Range {
    pub(crate) least: u32,
    pub(crate) greatest: u32,
}

/// Puts comparisons together; returns the entry and the nodes.
pub(crate) fn gather(entry: Target, nodes: Vec<Node<Test>>) -> (Target, Vec<Node>) {
    let mut gathering = Gathering::new(entry, nodes);
    for index in (0..gathering.nodes.len()).rev() {
        gathering.join_with_next(index);
    }
    for index in 0..gathering.nodes.len() {
        gathering.gather_from(index);
    }
    gathering.finish(entry)
}

struct Gathering {
    nodes: Vec<Node<Test>>,
    /// Each node as a set, where it is one; what was put into another node is gone from here.
    sets: Vec<Option<Set>>,
    /// How many ways lead to each node.
    ways: Vec<usize>,
    /// The node has become part of another.
    gone: Vec<bool>,
    /// What nodes that took others ask now.
    among: Vec<Option<(Value, Ranges)>>,
}

/// A comparison as a set of numbers.
#[derive(Clone)]
struct Set {
    left: Value,
    /// In any order, and they may overlap.
    ranges: Vec<Range>,
    yes: Target,
    no: Target,
    /// It is more than the comparison that its node had.
    changed: bool,
}

impl Gathering {
    fn new(entry: Target, nodes: Vec<Node<Test>>) -> Self {
        let mut ways = vec![0; nodes.len()];
        for target in nodes.iter().flat_map(|node| [node.yes, node.no]).chain([entry]) {
            if let Target::Node(index) = target {
                ways[index] += 1;
            }
        }
        let sets = nodes.iter().map(Set::of).collect();
        let (gone, among) = (vec![false; nodes.len()], vec![None; nodes.len()]);
        Self { nodes, sets, ways, gone, among }
    }

    /// The set that `target` leads to, when no other way leads there.
    fn only_after(&self, target: Target) -> Option<(usize, &Set)> {
        let Target::Node(index) = target else { return None };
        self.sets[index].as_ref().filter(|_| self.ways[index] == 1).map(|set| (index, set))
    }

    /// `least <= value` and then `value <= greatest`: a range.
    fn join_with_next(&mut self, index: usize) {
        let Some(set) = &self.sets[index] else { return };
        let Some((next, second)) = self.only_after(set.yes) else { return };
        let ([first], [other]) = (&set.ranges[..], &second.ranges[..]) else { return };
        if second.left != set.left {
            return;
        }
        let (range, yes) = if second.no == set.no {
            (first.common(*other), second.yes)
        } else if second.yes == set.no {
            (first.without_upper(*other), second.no)
        } else {
            return;
        };
        let Some(range) = range else { return };
        let (left, no) = (set.left.clone(), set.no);
        if let Target::Node(no) = no {
            self.ways[no] -= 1;
        }
        self.sets[index] = Some(Set { left, ranges: vec![range], yes, no, changed: true });
        self.sets[next] = None;
        self.gone[next] = true;
    }

    /// Puts together what is alike in the chain that begins here.
    fn gather_from(&mut self, start: usize) {
        let Some(first) = self.sets[start].clone() else { return };
        let mut known = HashSet::from([first.left.clone()]);
        // The nodes that stay, and by value which of them take more.
        let mut groups = vec![start];
        let mut takes = HashMap::from([(first.left.clone(), start)]);
        let mut end = first.no;
        while let Some((index, set)) = self.only_after(end).filter(|(_, set)| set.yes == first.yes) {
            let set = set.clone();
            end = set.no;
            let safe = is_safe(&set.left, self.nodes[index].proven, &known);
            if !safe {
                // Nothing may move over this one.
                takes.clear();
            }
            match takes.get(&set.left).and_then(|group| self.sets[*group].as_mut()) {
                Some(group) => {
                    group.ranges.extend(set.ranges);
                    group.changed = true;
                    self.sets[index] = None;
                    self.gone[index] = true;
                }
                None => {
                    known.insert(set.left.clone());
                    takes.insert(set.left, index);
                    groups.push(index);
                }
            }
        }
        let next = groups.iter().skip(1).map(|index| Target::Node(*index)).chain([end]);
        for (index, no) in groups.iter().zip(next) {
            if let Some(set) = self.sets[*index].take() {
                let node = &mut self.nodes[*index];
                (node.yes, node.no) = (set.yes, no);
                if set.changed {
                    self.among[*index] = Some((set.left, joined(set.ranges)));
                }
            }
        }
    }

    /// The nodes that are left, in the same order.
    fn finish(self, entry: Target) -> (Target, Vec<Node>) {
        let mut place = Vec::new();
        let mut count = 0;
        for gone in &self.gone {
            place.push(count);
            count += usize::from(!gone);
        }
        let moved = |target: Target| match target {
            Target::Node(index) => Target::Node(place[index]),
            end => end,
        };
        let all = self.nodes.into_iter().zip(self.among).zip(self.gone);
        let nodes = all.filter(|(_, gone)| !gone).map(|((node, among), _)| {
            let Node { check, yes, no, proven, walked } = node;
            let check = match among {
                Some((left, ranges)) => Check::Among(left, ranges),
                None => Check::Compare(check),
            };
            Node { check, yes: moved(yes), no: moved(no), proven, walked }
        });
        (moved(entry), nodes.collect())
    }
}

impl Set {
    fn of(node: &Node<Test>) -> Option<Self> {
        let Test { left, comparison, right: Value::Number(right) } = &node.check else { return None };
        let (left, range) = match comparison {
            Comparison::Equal => network(left, *right).unwrap_or((left, Range::from_to(*right, *right))),
            Comparison::Greater => (left, Range::from_to(right.checked_add(1)?, u32::MAX)),
            Comparison::GreaterOrEqual => (left, Range::from_to(*right, u32::MAX)),
            Comparison::CommonBit => return None,
        };
        let left = left.clone();
        Some(Self { left, ranges: vec![range], yes: node.yes, no: node.no, changed: false })
    }
}

/// `load & mask = number` as a range of what is loaded, when the mask is a prefix.
fn network(left: &Value, number: u32) -> Option<(&Value, Range)> {
    let Value::Binary(Operator::And, load, mask) = left else { return None };
    let (Value::Load(bytes), Value::Number(mask)) = (&**load, &**mask) else { return None };
    let all = match bytes.size {
        Size::Byte => 0xff,
        Size::Half => 0xffff,
        Size::Word => u32::MAX,
    };
    let free = all & !mask;
    let is_prefix = free & free.wrapping_add(1) == 0;
    (is_prefix && number & !(mask & all) == 0).then(|| (&**load, Range::from_to(number, number | free)))
}

/// In order, and what touches put together.
fn joined(mut ranges: Vec<Range>) -> Ranges {
    ranges.sort_by_key(|range| range.least);
    let mut joined: Vec<Range> = Vec::new();
    for range in ranges {
        match joined.last_mut() {
            Some(last) if range.least <= last.greatest.saturating_add(1) => {
                last.greatest = last.greatest.max(range.greatest);
            }
            _ => joined.push(range),
        }
    }
    joined.into()
}

impl Range {
    fn from_to(least: u32, greatest: u32) -> Self {
        Self { least, greatest }
    }

    /// What is in both.
    fn common(self, other: Self) -> Option<Self> {
        let both = Self::from_to(self.least.max(other.least), self.greatest.min(other.greatest));
        (both.least <= both.greatest).then_some(both)
    }

    /// What is below the other, which reaches at least as far up.
    fn without_upper(self, other: Self) -> Option<Self> {
        let below = other.least.checked_sub(1).filter(|_| other.greatest >= self.greatest)?;
        self.common(Self::from_to(0, below))
    }

    pub(crate) fn is_one(self) -> bool {
        self.least == self.greatest
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Expression, NoNames, Options};

    fn nodes(text: &str) -> Vec<Node> {
        let expression = Expression::new(text, &Options { names: &NoNames, netmask: None }).unwrap();
        expression.graph().nodes.clone()
    }

    fn list(of: usize, make: impl Fn(usize) -> String) -> String {
        (0..of).map(make).collect::<Vec<_>>().join(" or ")
    }

    #[test]
    fn a_hundred_alternatives_are_as_many_comparisons_as_two() {
        let makers: [fn(usize) -> String; 5] = [
            |n| format!("host 10.0.{n}.1"),
            |n| format!("src net 10.{n}.0.0/17"),
            |n| format!("port {}", 1000 + 2 * n),
            |n| format!("udp portrange {}-{}", 1000 + 10 * n, 1003 + 10 * n),
            |n| format!("ether proto {}", 2000 + 2 * n),
        ];
        for make in makers {
            assert_eq!(nodes(&list(100, make)).len(), nodes(&list(2, make)).len(), "{}", make(0));
        }
    }

    #[test]
    fn what_touches_is_one_range() {
        let nodes = nodes("ether proto 0x600 or 0x602 or 0x601 or 0x700");
        let [Node { check: Check::Among(_, ranges), .. }] = &nodes[..] else { panic!("{nodes:?}") };
        assert_eq!(ranges[..], [Range::from_to(0x600, 0x602), Range::from_to(0x700, 0x700)]);
    }

    #[test]
    fn the_order_of_what_may_end_the_expression_stays() {
        let read = |text: &str| text.parse::<Expression>().unwrap();
        // The second comparison reaches beyond this packet, and ends it before the third.
        let packet = [7; 20];
        let expression = read("ether[4] = 1 or ether[40] = 1 or ether[4] = 7");
        assert!(!expression.matches(&packet));
        assert!(expression.matches(&[7; 41]));
        assert!(read("ether[4] = 1 or ether[4] = 7 or ether[40] = 1").matches(&packet));
        assert!(read("ether[4] = 1 or ether[6] = 1 or ether[4] = 7").matches(&packet));
    }
}
