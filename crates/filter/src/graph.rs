//! A meaning as a graph of comparisons: what both back ends run.
//!
//! Every comparison leads to another one, to a match or to no match, and never back. Comparisons whose outcome is known
//! by the way they are reached are jumped over. That keeps the meaning exactly, truncated packets included, since an
//! outcome is only known where the same bytes have been loaded before.

use std::collections::{HashMap, HashSet};

use crate::formula::{Comparison, Connective, Formula, Load, Test, Value};
use crate::sets::{self, Check};
use crate::walk::{MOST_WALKS, Walk};

/// A graph in the order in which it runs: nodes lead only to later nodes.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Graph {
    pub(crate) entry: Target,
    pub(crate) nodes: Vec<Node>,
    /// The walks that its comparisons need and whose findings are kept, each once.
    pub(crate) walks: Vec<Walk>,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Node<C = Check> {
    pub(crate) check: C,
    pub(crate) yes: Target,
    pub(crate) no: Target,
    /// Bytes that the packet has for sure when this node is reached.
    pub(crate) proven: u64,
    /// Walks that are done for sure when this node is reached: a bit for each of [`Graph::walks`].
    pub(crate) walked: u32,
}

/// An expression has more comparisons or more different walks than can be run.
#[derive(Debug)]
pub(crate) struct TooLarge;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    Match,
    NoMatch,
    Node(usize),
}

/// Most comparisons of an expression.
const MOST_NODES: usize = 1 << 17;

impl Graph {
    pub(crate) fn new(formula: &Formula) -> Result<Self, TooLarge> {
        let mut backwards = Backwards { nodes: Vec::new(), walks: Vec::new() };
        let entry = backwards.add(formula, Target::Match, Target::NoMatch)?;
        Ok(Threading::new(backwards, entry).run())
    }

    /// How many numbers are compared with, all together.
    pub(crate) fn size(&self) -> usize {
        let of = |node: &Node| match &node.check {
            Check::Compare(_) => 1,
            Check::Among(_, ranges) => ranges.len(),
        };
        self.nodes.iter().map(of).sum()
    }

    /// Whether any way leads to a match. Where none does, no packet matches.
    pub(crate) fn can_match(&self) -> bool {
        let targets = self.nodes.iter().flat_map(|node| [node.yes, node.no]);
        targets.chain([self.entry]).any(|target| target == Target::Match)
    }
}

/// The graph while it is built, from the end to the start: nodes lead only to earlier ones.
struct Backwards {
    nodes: Vec<Node<Test>>,
    walks: Vec<Walk>,
}

impl Backwards {
    fn add(&mut self, formula: &Formula, yes: Target, no: Target) -> Result<Target, TooLarge> {
        Ok(match formula {
            Formula::Constant(true) => yes,
            Formula::Constant(false) => no,
            Formula::Not(inner) => self.add(inner, no, yes)?,
            Formula::Test(test) => {
                self.note_walks(&test.left);
                self.note_walks(&test.right);
                if self.nodes.len() == MOST_NODES || self.walks.len() > MOST_WALKS {
                    return Err(TooLarge);
                }
                self.nodes.push(Node { check: test.clone(), yes, no, proven: 0, walked: 0 });
                Target::Node(self.nodes.len() - 1)
            }
            Formula::Chain(first, rest) => {
                let (mut yes, mut no) = (yes, no);
                for (connective, part) in rest.iter().rev() {
                    let entry = self.add(part, yes, no)?;
                    match connective {
                        Connective::And => yes = entry,
                        Connective::Or => no = entry,
                    }
                }
                self.add(first, yes, no)?
            }
        })
    }

    fn note_walks(&mut self, value: &Value) {
        for_each_walk(value, &mut |walk| {
            let mut first = Some(walk);
            while let Some(walk) = first {
                if walk.is_kept() && !self.walks.contains(&walk) {
                    self.walks.push(walk);
                }
                first = walk.first();
            }
        });
    }
}

fn for_each_walk(value: &Value, act: &mut impl FnMut(Walk)) {
    match value {
        Value::Walk(walk) => act(*walk),
        Value::Number(_) | Value::Length => {}
        Value::Load(load) | Value::HeaderLength(load) => {
            if let Some(index) = &load.index {
                for_each_walk(index, act);
            }
        }
        Value::Negate(inner) => for_each_walk(inner, act),
        Value::Binary(_, left, right) => {
            for_each_walk(left, act);
            for_each_walk(right, act);
        }
    }
}

/// What is known at a place of the graph, however it was reached.
#[derive(Clone, Default)]
struct Facts {
    /// The packet has at least so many bytes.
    length: u64,
    /// These walks are done.
    walked: u32,
    /// Outcomes of tests, by their number.
    outcomes: Vec<(usize, bool)>,
}

/// How many outcomes are remembered at a place.
const MOST_FACTS: usize = 64;

/// Jumps over comparisons whose outcome is known.
struct Threading {
    nodes: Vec<Node<Test>>,
    walks: Vec<Walk>,
    entry: Target,
    /// Each different test has a number; this is each node's.
    test_of: Vec<usize>,
    /// A node with each different test.
    example: Vec<usize>,
    /// What is known at each node; `None` for one that nothing leads to.
    facts: Vec<Option<Facts>>,
}

impl Threading {
    fn new(Backwards { nodes, walks }: Backwards, entry: Target) -> Self {
        let mut numbers: HashMap<&Test, usize> = HashMap::new();
        let mut example = Vec::new();
        let mut test_of = Vec::new();
        for (index, node) in nodes.iter().enumerate() {
            let next = example.len();
            let number = *numbers.entry(&node.check).or_insert(next);
            if number == next {
                example.push(index);
            }
            test_of.push(number);
        }
        let facts = vec![None; nodes.len()];
        Self { nodes, walks, entry, test_of, example, facts }
    }

    fn run(mut self) -> Graph {
        self.entry = self.lead(self.entry, Facts::default());
        for index in (0..self.nodes.len()).rev() {
            let Some(facts) = self.facts[index].clone() else { continue };
            self.nodes[index].proven = facts.length;
            self.nodes[index].walked = facts.walked;
            let after = |yes| self.after(index, &facts, yes);
            let (yes, no) = (after(true), after(false));
            self.nodes[index].yes = self.lead(self.nodes[index].yes, yes);
            self.nodes[index].no = self.lead(self.nodes[index].no, no);
        }
        self.forwards()
    }

    /// What is known behind a node.
    fn after(&self, index: usize, before: &Facts, outcome: bool) -> Facts {
        let mut facts = before.clone();
        let test = &self.nodes[index].check;
        facts.length = facts.length.max(reach(&test.left)).max(reach(&test.right));
        for value in [&test.left, &test.right] {
            for_each_walk(value, &mut |walk| facts.walked |= self.bits(walk));
        }
        let pins_down = outcome && test.comparison == Comparison::Equal;
        if facts.outcomes.len() == MOST_FACTS && pins_down {
            facts.outcomes.pop();
        }
        if facts.outcomes.len() < MOST_FACTS {
            facts.outcomes.push((self.test_of[index], outcome));
        }
        facts
    }

    /// The bits of a walk and of those that it begins with.
    fn bits(&self, walk: Walk) -> u32 {
        let mut bits = 0;
        let mut first = Some(walk);
        while let Some(walk) = first {
            bits |= self.walks.iter().position(|known| *known == walk).map_or(0, |index| 1 << index);
            first = walk.first();
        }
        bits
    }

    /// Follows a jump as far as its outcome is known, and notes at its end what is known on it.
    fn lead(&mut self, mut target: Target, facts: Facts) -> Target {
        while let Target::Node(index) = target {
            let node = &self.nodes[index];
            target = match self.outcome(index, &facts) {
                Some(true) => node.yes,
                Some(false) => node.no,
                None if node.yes == node.no && cannot_end(&node.check, facts.length) => node.yes,
                None => {
                    let known = &mut self.facts[index];
                    *known = Some(match known.take() {
                        Some(known) => known.common(&facts),
                        None => facts,
                    });
                    break;
                }
            };
        }
        target
    }

    /// How a node's test ends, where that is known.
    fn outcome(&self, index: usize, facts: &Facts) -> Option<bool> {
        let test = &self.nodes[index].check;
        if let (Value::Number(left), Value::Number(right)) = (&test.left, &test.right) {
            return Some(test.comparison.holds(*left, *right));
        }
        for (number, outcome) in &facts.outcomes {
            if *number == self.test_of[index] {
                return Some(*outcome);
            }
            let known = &self.nodes[self.example[*number]].check;
            let pinned_down = *outcome && known.comparison == Comparison::Equal && known.left == test.left;
            if let (true, Value::Number(left), Value::Number(right)) =
                (pinned_down, &known.right, &test.right)
            {
                return Some(test.comparison.holds(*left, *right));
            }
        }
        None
    }

    /// The nodes that are reached, in the order in which they run.
    fn forwards(self) -> Graph {
        let mut place = vec![0; self.nodes.len()];
        let mut nodes = Vec::new();
        for (index, node) in self.nodes.into_iter().enumerate().rev() {
            if self.facts[index].is_some() {
                place[index] = nodes.len();
                nodes.push(node);
            }
        }
        let moved = |target: Target| match target {
            Target::Node(index) => Target::Node(place[index]),
            end => end,
        };
        for node in &mut nodes {
            node.yes = moved(node.yes);
            node.no = moved(node.no);
        }
        let (entry, nodes) = sets::gather(moved(self.entry), nodes);
        Graph { entry, nodes, walks: self.walks }
    }
}

impl Facts {
    /// What is known by both.
    fn common(mut self, other: &Self) -> Self {
        self.length = self.length.min(other.length);
        self.walked &= other.walked;
        self.outcomes.retain(|fact| other.outcomes.contains(fact));
        self
    }
}

/// Bytes that a packet has for sure once this value was computed.
pub(crate) fn reach(value: &Value) -> u64 {
    let of_load = |load: &Load| load.fixed_end().unwrap_or_else(|| load.index.as_ref().map_or(0, reach));
    match value {
        Value::Number(_) | Value::Length | Value::Walk(_) => 0,
        Value::Load(load) | Value::HeaderLength(load) => of_load(load),
        Value::Negate(inner) => reach(inner),
        Value::Binary(_, left, right) => reach(left).max(reach(right)),
    }
}

/// Whether computing this test can't end the whole expression, in a packet of at least `length` bytes.
fn cannot_end(test: &Test, length: u64) -> bool {
    let known = HashSet::new();
    is_safe(&test.left, length, &known) && is_safe(&test.right, length, &known)
}

/// Whether computing this value can't end the whole expression, in a packet of at least `length` bytes, after these have
/// been computed.
pub(crate) fn is_safe(value: &Value, length: u64, known: &HashSet<Value>) -> bool {
    known.contains(value)
        || match value {
            Value::Number(_) | Value::Length => true,
            Value::Load(load) | Value::HeaderLength(load) => {
                load.fixed_end().is_some_and(|end| end <= length)
            }
            Value::Negate(inner) => is_safe(inner, length, known),
            Value::Binary(operator, left, right) => {
                !operator.divides() && is_safe(left, length, known) && is_safe(right, length, known)
            }
            Value::Walk(_) => false,
        }
}
