//! The matcher: runs an expression over a packet. It never allocates and never panics.

mod members;

use crate::formula::{Comparison, Load, Operator, Size, Test, Value};
use crate::graph::{Graph, Node, Target};
use crate::sets::{Check, Ranges};
use crate::walk::{MOST_WALKS, Walk};
use members::Members;

/// An expression in the form that runs.
#[derive(Clone, Debug)]
pub(crate) struct Matcher {
    entry: u32,
    steps: Box<[Step]>,
    /// Tests that are not simple.
    tests: Box<[Test]>,
    /// Values that are not simple, for sets.
    values: Box<[Value]>,
    sets: Box<[Set]>,
    walks: Box<[Walk]>,
}

/// One comparison and where it leads: whether what is loaded, masked, lies in a range. Every comparison with a number
/// has this form, so that there is one thing to decide at each step, and that is where to load from.
#[derive(Clone, Copy, Debug)]
struct Step {
    source: Source,
    mask: u32,
    least: u32,
    /// The greatest number of the range, less the least.
    span: u32,
    yes: u32,
    no: u32,
}

/// Where the left side comes from. The first ones are what nearly all comparisons need.
#[derive(Clone, Copy, Debug)]
enum Source {
    Byte(u32),
    Half(u32),
    Word(u32),
    /// Behind an IPv4 header that begins at `header`.
    ByteBehindIpv4 {
        header: u32,
        offset: u32,
    },
    HalfBehindIpv4 {
        header: u32,
        offset: u32,
    },
    Length,
    /// Any other test, by its place among them: 1 when it holds, else 0.
    Test(u32),
    /// Any other value, by its place among them.
    Value(u32),
    /// 1 when a value is in a set of numbers, else 0; by its place among them.
    Set(u32),
}

/// Many numbers that a value is compared with at once.
#[derive(Clone, Debug)]
struct Set {
    source: Source,
    members: Members,
}

const MATCH: u32 = u32::MAX;
const NO_MATCH: u32 = u32::MAX - 1;

impl Matcher {
    pub(crate) fn new(graph: &Graph) -> Self {
        let mut made = Self {
            entry: place(graph.entry),
            steps: Box::default(),
            tests: Box::default(),
            values: Box::default(),
            sets: Box::default(),
            walks: graph.walks[..].into(),
        };
        let mut lists = Lists::default();
        made.steps = graph.nodes.iter().map(|node| lists.step(node)).collect();
        (made.tests, made.values, made.sets) = (lists.tests.into(), lists.values.into(), lists.sets.into());
        made
    }

    /// Whether a packet matches that had `length` bytes on the wire, of which these are the first.
    pub(crate) fn matches(&self, packet: &[u8], length: u32) -> bool {
        self.run(packet, length).unwrap_or(false)
    }

    /// The same; `None` when something ends the expression that may lie in the bytes which are not here.
    pub(crate) fn decide(&self, head: &[u8], length: u32) -> Option<bool> {
        self.run(head, length)
    }

    /// `None` when something ends the expression: a load beyond the packet, a division by zero.
    #[inline]
    fn run(&self, packet: &[u8], length: u32) -> Option<bool> {
        let mut seen = Seen { packet, length, walks: &self.walks, found: [0; MOST_WALKS], walked: 0 };
        let mut next = self.entry;
        while let Some(step) = self.steps.get(next as usize) {
            let value = match step.source {
                Source::Byte(offset) => u32::from(*packet.get(offset as usize)?),
                Source::Half(offset) => half(packet, offset as usize)?,
                Source::Word(offset) => word(packet, offset as usize)?,
                Source::ByteBehindIpv4 { header, offset } => {
                    u32::from(*packet.get(offset as usize + header_length(packet, header)?)?)
                }
                Source::HalfBehindIpv4 { header, offset } => {
                    half(packet, offset as usize + header_length(packet, header)?)?
                }
                Source::Length => length,
                rare => seen.rare(self, rare)?,
            };
            // A branch, so that the processor guesses the next step instead of waiting for the packet's bytes.
            next = if (value & step.mask).wrapping_sub(step.least) <= step.span {
                branch();
                step.yes
            } else {
                step.no
            };
        }
        Some(next == MATCH)
    }
}

/// Keeps the compiler from choosing between two values without a branch.
#[cold]
#[inline(always)]
fn branch() {}

/// What steps refer to.
#[derive(Default)]
struct Lists {
    tests: Vec<Test>,
    values: Vec<Value>,
    sets: Vec<Set>,
}

impl Lists {
    fn step(&mut self, node: &Node) -> Step {
        let (source, mask, least, greatest) = match &node.check {
            Check::Compare(test) => simple(test).unwrap_or_else(|| {
                self.tests.push(test.clone());
                (Source::Test(number(self.tests.len() - 1)), u32::MAX, 1, 1)
            }),
            Check::Among(value, ranges) => self.among(value, ranges),
        };
        Step {
            source,
            mask,
            least,
            span: greatest.wrapping_sub(least),
            yes: place(node.yes),
            no: place(node.no),
        }
    }

    fn among(&mut self, value: &Value, ranges: &Ranges) -> (Source, u32, u32, u32) {
        let source = direct(value).unwrap_or_else(|| {
            self.values.push(value.clone());
            Source::Value(number(self.values.len() - 1))
        });
        if let [range] = ranges[..] {
            return (source, u32::MAX, range.least, range.greatest);
        }
        let members = Members::new(ranges, self.sets.len());
        self.sets.push(Set { source, members });
        (Source::Set(number(self.sets.len() - 1)), u32::MAX, 1, 1)
    }
}

fn place(target: Target) -> u32 {
    match target {
        Target::Match => MATCH,
        Target::NoMatch => NO_MATCH,
        Target::Node(index) => number(index),
    }
}

/// A graph has far fewer nodes than this can tell.
fn number(index: usize) -> u32 {
    u32::try_from(index).unwrap_or(NO_MATCH)
}

/// A test that compares loaded bytes with numbers: source, mask, the least and the greatest number.
fn simple(test: &Test) -> Option<(Source, u32, u32, u32)> {
    let Value::Number(right) = test.right else { return None };
    let (left, mask) = match &test.left {
        Value::Binary(Operator::And, left, right) => match **right {
            Value::Number(mask) => (&**left, mask),
            _ => return None,
        },
        left => (left, u32::MAX),
    };
    let source = direct(left)?;
    Some(match test.comparison {
        Comparison::Equal => (source, mask, right, right),
        Comparison::Greater => (source, mask, right.checked_add(1)?, u32::MAX),
        Comparison::GreaterOrEqual => (source, mask, right, u32::MAX),
        Comparison::CommonBit => (source, mask & right, 1, u32::MAX),
    })
}

/// Where a value is loaded from, when that is simple.
fn direct(value: &Value) -> Option<Source> {
    Some(match value {
        Value::Length => Source::Length,
        Value::Load(load) => match (&load.index, load.size) {
            (None, Size::Byte) => Source::Byte(load.offset),
            (None, Size::Half) => Source::Half(load.offset),
            (None, Size::Word) => Source::Word(load.offset),
            (Some(Value::HeaderLength(header)), size) if header.index.is_none() => {
                let (header, offset) = (header.offset, load.offset);
                match size {
                    Size::Byte => Source::ByteBehindIpv4 { header, offset },
                    Size::Half => Source::HalfBehindIpv4 { header, offset },
                    Size::Word => return None,
                }
            }
            _ => return None,
        },
        _ => return None,
    })
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
    /// What takes longer; not inlined, so that the steps that are simple stay short.
    #[inline(never)]
    fn rare(&mut self, matcher: &Matcher, source: Source) -> Option<u32> {
        Some(match source {
            Source::Test(index) => {
                let test = matcher.tests.get(index as usize)?;
                u32::from(test.comparison.holds(self.compute(&test.left)?, self.compute(&test.right)?))
            }
            Source::Set(index) => {
                let set = matcher.sets.get(index as usize)?;
                u32::from(set.members.contain(self.member(matcher, set.source)?))
            }
            Source::Value(index) => self.compute(matcher.values.get(index as usize)?)?,
            simple => self.member(matcher, simple)?,
        })
    }

    /// What is looked for in a set.
    #[inline(always)]
    fn member(&mut self, matcher: &Matcher, source: Source) -> Option<u32> {
        let packet = self.packet;
        Some(match source {
            Source::Byte(offset) => u32::from(*packet.get(offset as usize)?),
            Source::Half(offset) => half(packet, offset as usize)?,
            Source::Word(offset) => word(packet, offset as usize)?,
            Source::ByteBehindIpv4 { header, offset } => {
                u32::from(*packet.get(offset as usize + header_length(packet, header)?)?)
            }
            Source::HalfBehindIpv4 { header, offset } => {
                half(packet, offset as usize + header_length(packet, header)?)?
            }
            Source::Length => self.length,
            Source::Value(index) => self.compute(matcher.values.get(index as usize)?)?,
            // Sets are not made of these.
            Source::Test(_) | Source::Set(_) => return None,
        })
    }

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
        let Some(index) = self.walks.iter().position(|known| *known == walk) else {
            return walk.find(self.packet);
        };
        if self.walked & 1 << index == 0 {
            self.found[index] = walk.find(self.packet)?;
            self.walked |= 1 << index;
        }
        Some(self.found[index])
    }
}

#[inline]
fn header_length(packet: &[u8], header: u32) -> Option<usize> {
    Some(4 * usize::from(packet.get(header as usize)? & 0xf))
}

fn half(packet: &[u8], offset: usize) -> Option<u32> {
    packet.get(offset..)?.first_chunk().map(|bytes| u32::from(u16::from_be_bytes(*bytes)))
}

fn word(packet: &[u8], offset: usize) -> Option<u32> {
    packet.get(offset..)?.first_chunk().map(|bytes| u32::from_be_bytes(*bytes))
}
