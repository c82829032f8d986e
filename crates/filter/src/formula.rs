//! What an expression means for any packet: comparisons of loaded bytes, joined by and, or and not.
//!
//! The order matters. Parts are evaluated from left to right and only as far as needed, and a load that reaches beyond
//! the packet, or a division by zero, ends everything: the expression does not match, whatever `not` stands around it.
//! This is how BPF programs behave, and so it is what tcpdump's expressions mean.

pub(crate) use crate::language::{Connective, Operator};
use crate::walk::Walk;

/// The meaning of an expression.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Formula {
    Constant(bool),
    Test(Test),
    Not(Box<Self>),
    /// From left to right, `and` and `or` of equal weight.
    Chain(Box<Self>, Vec<(Connective, Self)>),
}

/// One comparison.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Test {
    pub(crate) left: Value,
    pub(crate) comparison: Comparison,
    pub(crate) right: Value,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Comparison {
    Equal,
    Greater,
    GreaterOrEqual,
    /// Left and right have a set bit in common.
    CommonBit,
}

/// A number of 32 bits; arithmetic wraps.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Value {
    Number(u32),
    /// The length of the packet as it was on the wire.
    Length,
    Load(Box<Load>),
    /// The length of the IPv4 header whose first byte this loads: four times its lower half.
    HeaderLength(Box<Load>),
    Negate(Box<Self>),
    Binary(Operator, Box<Self>, Box<Self>),
    /// What a walk over headers found.
    Walk(Walk),
}

/// Bytes of the packet as a number, in network byte order.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Load {
    /// Added to the offset, without wrapping.
    pub(crate) index: Option<Value>,
    pub(crate) offset: u32,
    pub(crate) size: Size,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Size {
    Byte,
    Half,
    Word,
}

impl Size {
    pub(crate) fn bytes(self) -> u32 {
        match self {
            Self::Byte => 1,
            Self::Half => 2,
            Self::Word => 4,
        }
    }
}

impl Load {
    /// The first byte behind it, when that does not depend on the packet.
    pub(crate) fn fixed_end(&self) -> Option<u64> {
        self.index.is_none().then(|| u64::from(self.offset) + u64::from(self.size.bytes()))
    }
}

impl Formula {
    /// All of them, from left to right.
    pub(crate) fn all(parts: impl IntoIterator<Item = Self>) -> Self {
        Self::join(Connective::And, parts).unwrap_or(Self::Constant(true))
    }

    /// Any of them, from left to right.
    pub(crate) fn any(parts: impl IntoIterator<Item = Self>) -> Self {
        Self::join(Connective::Or, parts).unwrap_or(Self::Constant(false))
    }

    fn join(connective: Connective, parts: impl IntoIterator<Item = Self>) -> Option<Self> {
        let mut parts = parts.into_iter();
        let first = parts.next()?;
        let rest: Vec<_> = parts.map(|part| (connective, part)).collect();
        Some(if rest.is_empty() { first } else { Self::Chain(Box::new(first), rest) })
    }

    pub(crate) fn not(self) -> Self {
        Self::Not(Box::new(self))
    }
}

impl Value {
    /// `self & mask`; nothing is added for a full mask.
    pub(crate) fn masked(self, mask: u32, size: Size) -> Self {
        let full = match size {
            Size::Byte => 0xff,
            Size::Half => 0xffff,
            Size::Word => u32::MAX,
        };
        if mask & full == full {
            self
        } else {
            Self::Binary(Operator::And, Box::new(self), Box::new(Self::Number(mask)))
        }
    }

    pub(crate) fn test(self, comparison: Comparison, right: u32) -> Formula {
        Formula::Test(Test { left: self, comparison, right: Self::Number(right) })
    }

    pub(crate) fn is(self, right: u32) -> Formula {
        self.test(Comparison::Equal, right)
    }
}

impl Operator {
    /// The result; `None` for a division by zero.
    pub(crate) fn apply(self, left: u32, right: u32) -> Option<u32> {
        Some(match self {
            Self::Add => left.wrapping_add(right),
            Self::Subtract => left.wrapping_sub(right),
            Self::Multiply => left.wrapping_mul(right),
            Self::Divide => left.checked_div(right)?,
            Self::Modulo => left.checked_rem(right)?,
            Self::And => left & right,
            Self::Or => left | right,
            Self::Xor => left ^ right,
            Self::ShiftLeft => left.checked_shl(right).unwrap_or(0),
            Self::ShiftRight => left.checked_shr(right).unwrap_or(0),
        })
    }

    /// Whether it ends everything when the right side is 0.
    pub(crate) fn divides(self) -> bool {
        matches!(self, Self::Divide | Self::Modulo)
    }
}

impl Comparison {
    pub(crate) fn holds(self, left: u32, right: u32) -> bool {
        match self {
            Self::Equal => left == right,
            Self::Greater => left > right,
            Self::GreaterOrEqual => left >= right,
            Self::CommonBit => left & right != 0,
        }
    }
}
