//! What an expression makes of packets that a NIC takes for a flow's: whether some can match, and whether some can fail to.
//!
//! A NIC that drops a flow asks nobody. So all packets are thought of that it may take for the flow's, not just plain ones:
//! behind up to two VLAN tags, with options, fragments where the flow has no ports. Of each such packet the bytes are known
//! that the flow names; the expression's graph is followed from its entry, both ways where an outcome is not known. What is
//! not understood is not known, so that the answer errs to the safe side: it names more outcomes than there are, never fewer.

use crate::Expression;
use crate::flows::Flow;
use crate::formula::{Comparison, Load, Operator, Test, Value};
use crate::graph::{Graph, Target};
use crate::plain::{NAMED_AT, NETWORK};
use crate::sets::{Check, Range};
use crate::walk::Walk;

/// What can become of a flow's packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Settled {
    /// Some may match.
    pub(crate) can_match: bool,
    /// Some may not.
    pub(crate) can_fail: bool,
}

impl Settled {
    /// Where a graph leads. `known` says of each check that is reached what comes of it, as far as that is known, and whether the
    /// packet may end before what it looks at.
    pub(crate) fn of(graph: &Graph, known: impl Fn(&Check) -> (Option<bool>, bool)) -> Self {
        let mut reached = vec![false; graph.nodes.len()];
        let mut settled = Self::default();
        let mut reach = |target: Target, reached: &mut Vec<bool>| match target {
            Target::Match => settled.can_match = true,
            Target::NoMatch => settled.can_fail = true,
            Target::Node(index) => reached[index] = true,
        };
        reach(graph.entry, &mut reached);
        for (index, node) in graph.nodes.iter().enumerate() {
            if !reached[index] {
                continue;
            }
            let (outcome, may_end) = known(&node.check);
            if may_end {
                reach(Target::NoMatch, &mut reached);
            }
            for (target, way) in [(node.yes, true), (node.no, false)] {
                if outcome.is_none_or(|outcome| outcome == way) {
                    reach(target, &mut reached);
                }
            }
        }
        settled
    }
}

/// Most VLAN tags that a NIC is thought to look behind.
pub(crate) const MOST_TAGS: u32 = 2;
/// EtherTypes of tags that a NIC is thought to look behind.
const TAGS: [u32; 2] = [0x8100, 0x88a8];
/// Where the outer tag's id stands.
const TAG_AT: u32 = NAMED_AT + 2;
const IPV4: u32 = 0x0800;
/// Bytes of an IPv4 header without options.
const HEADER: u32 = 20;
const FIRST_V4: u32 = 0x40;

impl Expression {
    /// What it makes of the packets of an IPv4 flow that have so many VLAN tags.
    pub(crate) fn settled(&self, flow: &Flow, tags: u32) -> Settled {
        self.settled_for(Packet { flow, tags, vlan: None })
    }

    /// What it makes of the packets of an IPv4 flow that have one VLAN tag, with this id.
    pub(crate) fn settled_in_vlan(&self, flow: &Flow, vlan: u16) -> Settled {
        self.settled_for(Packet { flow, tags: 1, vlan: Some(vlan) })
    }

    fn settled_for(&self, packet: Packet<'_>) -> Settled {
        Settled::of(self.graph(), |check| packet.check(check))
    }

    /// Whether it may match a packet of an IPv4 flow.
    pub(crate) fn may_match(&self, flow: &Flow) -> bool {
        (0..=MOST_TAGS).any(|tags| self.settled(flow, tags).can_match)
    }
}

/// What is known of a value.
#[derive(Clone, Debug)]
enum Known {
    /// These bits of it.
    Bits { value: u32, mask: u32 },
    /// It is one of these.
    OneOf(Vec<u32>),
    /// The length of the IPv4 header, and so much more.
    Behind(u32),
}

impl Known {
    const NOTHING: Self = Self::Bits { value: 0, mask: 0 };

    fn number(value: u32) -> Self {
        Self::Bits { value, mask: u32::MAX }
    }

    /// The value, when there is just one.
    fn one(&self) -> Option<u32> {
        match self {
            Self::Bits { value, mask: u32::MAX } => Some(*value),
            _ => None,
        }
    }

    /// The least and the greatest value that it may be.
    fn bounds(&self) -> (u32, u32) {
        match self {
            Self::Bits { value, mask } => (*value, value | !mask),
            Self::OneOf(values) => {
                (values.iter().copied().min().unwrap_or(0), values.iter().copied().max().unwrap_or(u32::MAX))
            }
            Self::Behind(_) => (0, u32::MAX),
        }
    }

    fn apply(operator: Operator, left: &Self, right: &Self) -> Self {
        match (left, right.one()) {
            (Self::OneOf(values), Some(right)) => {
                let values: Option<Vec<u32>> =
                    values.iter().map(|left| operator.apply(*left, right)).collect();
                values.map_or(Self::NOTHING, Self::OneOf)
            }
            (Self::Bits { value, mask }, Some(right)) if operator == Operator::And => {
                Self::Bits { value: value & right, mask: mask | !right }
            }
            (Self::Behind(more), Some(right)) if operator == Operator::Add => {
                more.checked_add(right).map_or(Self::NOTHING, Self::Behind)
            }
            (left, number) => match (left.one(), number, right) {
                (Some(left), Some(right), _) => {
                    operator.apply(left, right).map_or(Self::NOTHING, Self::number)
                }
                (Some(left), None, Self::Behind(more)) if operator == Operator::Add => {
                    more.checked_add(left).map_or(Self::NOTHING, Self::Behind)
                }
                _ => Self::NOTHING,
            },
        }
    }

    /// How a comparison with a number ends.
    fn compare(&self, comparison: Comparison, right: u32) -> Option<bool> {
        if let Self::OneOf(values) = self {
            return alike(values.iter().map(|left| comparison.holds(*left, right)));
        }
        let (least, greatest) = self.bounds();
        let Self::Bits { value, mask } = *self else { return None };
        match comparison {
            Comparison::Equal if (value ^ right) & mask != 0 => Some(false),
            Comparison::Equal => (mask == u32::MAX).then_some(true),
            Comparison::CommonBit if value & right != 0 => Some(true),
            Comparison::CommonBit => (greatest & right == 0).then_some(false),
            // Where the least and the greatest value agree, all between them do.
            _ => alike([least, greatest].into_iter().map(|left| comparison.holds(left, right))),
        }
    }

    fn is_among(&self, ranges: &[Range]) -> Option<bool> {
        let holds = |value: &u32| ranges.iter().any(|it| (it.least..=it.greatest).contains(value));
        if let Self::OneOf(values) = self {
            return alike(values.iter().map(holds));
        }
        let (least, greatest) = self.bounds();
        if ranges.iter().any(|it| it.least <= least && greatest <= it.greatest) {
            return Some(true);
        }
        ranges.iter().all(|it| greatest < it.least || it.greatest < least).then_some(false)
    }
}

/// What all of them are.
fn alike(outcomes: impl IntoIterator<Item = bool>) -> Option<bool> {
    let mut outcomes = outcomes.into_iter();
    let first = outcomes.next()?;
    outcomes.all(|outcome| outcome == first).then_some(first)
}

/// Packets that a NIC may take for those of an IPv4 flow.
#[derive(Clone, Copy)]
struct Packet<'a> {
    flow: &'a Flow,
    tags: u32,
    /// Id in the outer tag, where that is known.
    vlan: Option<u16>,
}

impl Packet<'_> {
    /// How a check ends, where that is known; and whether it may end the whole expression, because there is no such byte.
    fn check(self, check: &Check) -> (Option<bool>, bool) {
        let mut may_end = false;
        let outcome = match check {
            Check::Compare(Test { left, comparison, right }) => {
                let (left, right) = (self.value(left, &mut may_end), self.value(right, &mut may_end));
                right.one().and_then(|right| left.compare(*comparison, right))
            }
            Check::Among(value, ranges) => self.value(value, &mut may_end).is_among(ranges),
        };
        (outcome, may_end)
    }

    fn value(self, value: &Value, may_end: &mut bool) -> Known {
        match value {
            Value::Number(number) => Known::number(*number),
            Value::Length => Known::NOTHING,
            Value::Load(load) => self.load(load, may_end),
            Value::HeaderLength(load) => {
                let is_ours = self.place(load, may_end) == Some(Place::Start(self.network()));
                if is_ours {
                    return Known::Behind(0);
                }
                *may_end = true;
                Known::NOTHING
            }
            Value::Negate(inner) => {
                let inner = self.value(inner, may_end);
                inner.one().map_or(Known::NOTHING, |number| Known::number(number.wrapping_neg()))
            }
            Value::Binary(operator, left, right) => {
                let (left, right) = (self.value(left, may_end), self.value(right, may_end));
                *may_end |= operator.divides() && right.one().is_none_or(|right| right == 0);
                Known::apply(*operator, &left, &right)
            }
            Value::Walk(Walk::Tags { named_at: NAMED_AT }) => Known::number(4 * self.tags),
            Value::Walk(_) => {
                *may_end = true;
                Known::NOTHING
            }
        }
    }

    /// Where the IPv4 header begins.
    fn network(self) -> u32 {
        NETWORK + 4 * self.tags
    }

    fn place(self, load: &Load, may_end: &mut bool) -> Option<Place> {
        let index = load.index.as_ref().map(|index| self.value(index, may_end));
        match index {
            None => Some(Place::Start(load.offset)),
            Some(Known::Behind(more)) => {
                let at = load.offset.checked_add(more)?;
                at.checked_sub(self.network()).map(Place::Behind)
            }
            Some(index) => load.offset.checked_add(index.one()?).map(Place::Start),
        }
    }

    fn load(self, load: &Load, may_end: &mut bool) -> Known {
        let size = load.size.bytes();
        let place = self.place(load, may_end);
        *may_end |= !place.is_some_and(|place| self.is_there(place, size));
        let Some(place) = place else { return Known::NOTHING };
        let is_tag = |tag: u32| size == 2 && place == Place::Start(NAMED_AT + 4 * tag);
        if (0..self.tags).any(is_tag) {
            return Known::OneOf(TAGS.to_vec());
        }
        // What a short load does not fill is zero.
        let above = u32::MAX.checked_shl(8 * size).unwrap_or(0);
        (0..size).fold(Known::Bits { value: 0, mask: above }, |known, more| {
            let Known::Bits { value, mask } = known else { return known };
            let (byte, bits) = self.byte(place.and(more));
            let shift = 8 * (size - 1 - more);
            Known::Bits { value: value | (byte & bits) << shift, mask: mask | bits << shift }
        })
    }

    /// Whether such packets have these bytes for sure.
    fn is_there(self, place: Place, size: u32) -> bool {
        match place {
            Place::Start(at) => at.checked_add(size).is_some_and(|end| end <= self.network() + HEADER),
            Place::Behind(at) => self.flow.has_ports() && at.checked_add(size).is_some_and(|end| end <= 4),
        }
    }

    /// A byte, and which of its bits are known.
    fn byte(self, place: Place) -> (u32, u32) {
        const NOTHING: (u32, u32) = (0, 0);
        let named = NAMED_AT + 4 * self.tags;
        let of_flow = |at: u32| {
            let at = at as usize;
            let both = self.flow.value.get(at).zip(self.flow.mask.get(at));
            both.map_or(NOTHING, |(value, mask)| ((*value).into(), (*mask).into()))
        };
        let [high, low] = self.vlan.unwrap_or(0).to_be_bytes();
        match place {
            // Behind three bits of priority and one of eligibility.
            Place::Start(TAG_AT) if self.vlan.is_some() => (high.into(), 0x0f),
            Place::Start(at) if at == TAG_AT + 1 && self.vlan.is_some() => (low.into(), 0xff),
            Place::Behind(at @ 0..4) if self.flow.has_ports() => of_flow(8 + at),
            Place::Behind(_) => NOTHING,
            Place::Start(at) if at == named => (IPV4 >> 8, 0xff),
            Place::Start(at) if at == named + 1 => (IPV4 & 0xff, 0xff),
            Place::Start(at) => match at.checked_sub(self.network()) {
                Some(0) => (FIRST_V4, 0xf0),
                // A NIC finds ports in whole packets and first fragments.
                Some(6) if self.flow.has_ports() => (0, 0x1f),
                Some(7) if self.flow.has_ports() => (0, 0xff),
                Some(9) => self.flow.protocol.map_or(NOTHING, |protocol| (protocol.into(), 0xff)),
                Some(at @ 12..20) => of_flow(at - 12),
                _ => NOTHING,
            },
        }
    }
}

/// Where a byte stands: behind the packet's begin, or behind the IPv4 header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Start(u32),
    Behind(u32),
}

impl Place {
    fn and(self, more: u32) -> Self {
        match self {
            Self::Start(at) => Self::Start(at.saturating_add(more)),
            Self::Behind(at) => Self::Behind(at.saturating_add(more)),
        }
    }
}

#[cfg(test)]
mod tests;
