//! The matcher: runs an expression over a packet. It never allocates and never panics.

use crate::formula::{Comparison, Load, Operator, Size, Value};
use crate::graph::{Graph, Node, Target};
use crate::walk::{MOST_WALKS, Walk};

/// An expression in the form that runs.
#[derive(Clone, Debug)]
pub(crate) struct Matcher {
    entry: u32,
    steps: Box<[Step]>,
    walks: Box<[Walk]>,
}

/// One comparison and where it leads.
#[derive(Clone, Debug)]
struct Step {
    source: Source,
    mask: u32,
    comparison: Comparison,
    right: Right,
    yes: u32,
    no: u32,
}

/// Where the left side comes from. The first ones are what nearly all comparisons need.
#[derive(Clone, Debug)]
enum Source {
    Byte(usize),
    Half(usize),
    Word(usize),
    /// Two bytes behind an IPv4 header that begins at `header`.
    HalfBehindIpv4 {
        header: usize,
        offset: usize,
    },
    Length,
    Value(Box<Value>),
}

#[derive(Clone, Debug)]
enum Right {
    Number(u32),
    Value(Box<Value>),
}

const MATCH: u32 = u32::MAX;
const NO_MATCH: u32 = u32::MAX - 1;

impl Matcher {
    pub(crate) fn new(graph: &Graph) -> Self {
        let place = |target| match target {
            Target::Match => MATCH,
            Target::NoMatch => NO_MATCH,
            Target::Node(index) => u32::try_from(index).unwrap_or(NO_MATCH),
        };
        let step = |node: &Node| {
            let (left, mask) = match &node.test.left {
                Value::Binary(Operator::And, left, right) => match **right {
                    Value::Number(mask) => (&**left, mask),
                    _ => (&node.test.left, u32::MAX),
                },
                left => (left, u32::MAX),
            };
            let right = match &node.test.right {
                Value::Number(number) => Right::Number(*number),
                value => Right::Value(Box::new(value.clone())),
            };
            let (yes, no) = (place(node.yes), place(node.no));
            Step { source: source(left), mask, comparison: node.test.comparison, right, yes, no }
        };
        Self {
            entry: place(graph.entry),
            steps: graph.nodes.iter().map(step).collect(),
            walks: graph.walks[..].into(),
        }
    }

    /// Whether a packet matches that had `length` bytes on the wire, of which these are the first.
    pub(crate) fn matches(&self, packet: &[u8], length: u32) -> bool {
        self.run(packet, length).unwrap_or(false)
    }

    /// `None` when something ends the expression: a load beyond the packet, a division by zero.
    fn run(&self, packet: &[u8], length: u32) -> Option<bool> {
        let mut seen = Seen { packet, length, walks: &self.walks, found: [0; MOST_WALKS], walked: 0 };
        let mut next = self.entry;
        while let Some(step) = self.steps.get(next as usize) {
            let left = match step.source {
                Source::Byte(offset) => u32::from(*packet.get(offset)?),
                Source::Half(offset) => half(packet, offset)?,
                Source::Word(offset) => word(packet, offset)?,
                Source::HalfBehindIpv4 { header, offset } => {
                    half(packet, offset + 4 * usize::from(packet.get(header)? & 0xf))?
                }
                Source::Length => length,
                Source::Value(ref value) => seen.compute(value)?,
            } & step.mask;
            let right = match step.right {
                Right::Number(number) => number,
                Right::Value(ref value) => seen.compute(value)?,
            };
            next = if step.comparison.holds(left, right) { step.yes } else { step.no };
        }
        Some(next == MATCH)
    }
}

fn source(value: &Value) -> Source {
    let other = || Source::Value(Box::new(value.clone()));
    match value {
        Value::Length => Source::Length,
        Value::Load(load) => match (&load.index, load.size, usize::try_from(load.offset)) {
            (None, Size::Byte, Ok(offset)) => Source::Byte(offset),
            (None, Size::Half, Ok(offset)) => Source::Half(offset),
            (None, Size::Word, Ok(offset)) => Source::Word(offset),
            (Some(Value::HeaderLength(header)), Size::Half, Ok(offset)) if header.index.is_none() => {
                match usize::try_from(header.offset) {
                    Ok(header) => Source::HalfBehindIpv4 { header, offset },
                    Err(_) => other(),
                }
            }
            _ => other(),
        },
        _ => other(),
    }
}

/// A packet, and what walks over it found so far.
struct Seen<'a> {
    packet: &'a [u8],
    length: u32,
    walks: &'a [Walk],
    found: [u32; MOST_WALKS],
    /// A bit for each walk that is done.
    walked: u32,
}

impl Seen<'_> {
    /// The value, or `None` when computing it ends the expression.
    fn compute(&mut self, value: &Value) -> Option<u32> {
        Some(match value {
            Value::Number(number) => *number,
            Value::Length => self.length,
            Value::Load(load) => self.load(load)?,
            Value::HeaderLength(load) => 4 * (self.load(load)? & 0xf),
            Value::Negate(inner) => self.compute(inner)?.wrapping_neg(),
            Value::Binary(operator, left, right) => {
                operator.apply(self.compute(left)?, self.compute(right)?)?
            }
            Value::Walk(walk) => self.walk(*walk)?,
        })
    }

    fn load(&mut self, load: &Load) -> Option<u32> {
        let index = match &load.index {
            Some(index) => self.compute(index)?,
            None => 0,
        };
        let offset = usize::try_from(u64::from(index) + u64::from(load.offset)).ok()?;
        match load.size {
            Size::Byte => self.packet.get(offset).map(|byte| u32::from(*byte)),
            Size::Half => half(self.packet, offset),
            Size::Word => word(self.packet, offset),
        }
    }

    fn walk(&mut self, walk: Walk) -> Option<u32> {
        let index = self.walks.iter().position(|known| *known == walk)?;
        if self.walked & 1 << index == 0 {
            self.found[index] = walk.find(self.packet)?;
            self.walked |= 1 << index;
        }
        Some(self.found[index])
    }
}

fn half(packet: &[u8], offset: usize) -> Option<u32> {
    packet.get(offset..)?.first_chunk().map(|bytes| u32::from(u16::from_be_bytes(*bytes)))
}

fn word(packet: &[u8], offset: usize) -> Option<u32> {
    packet.get(offset..)?.first_chunk().map(|bytes| u32::from_be_bytes(*bytes))
}
