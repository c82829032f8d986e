//! Comparisons of numbers: `tcp[13] & 2 != 0`, `len > 100`.

use bywash_wire::{EtherType, Protocol};

use super::link::binary;
use super::{Reader, Wrong};
use crate::formula::{Comparison, Formula, Load, Operator, Size, Test, Value};
use crate::language::{Arithmetic, ByteTest, Layer, Relation};
use crate::walk::sum;

/// `byte offset test value`; `load` loads that byte.
pub(super) fn byte(load: Value, test: ByteTest, value: u32) -> Formula {
    match test {
        ByteTest::Equal => load.is(value),
        ByteTest::Less => load.test(Comparison::GreaterOrEqual, value).not(),
        ByteTest::Greater => load.test(Comparison::Greater, value),
        ByteTest::And => load.test(Comparison::CommonBit, value),
        ByteTest::Or => binary(Operator::Or, load, Value::Number(value)).is(0).not(),
    }
}

/// A value, and what must be so that it has a meaning: the protocols whose bytes it loads are there.
struct Asking {
    value: Value,
    asked: Vec<Formula>,
}

impl Reader<'_> {
    /// First that the protocols whose bytes are loaded are there, then the comparison.
    pub(super) fn compare(
        &self,
        left: &Arithmetic,
        relation: Relation,
        right: &Arithmetic,
    ) -> Result<Formula, Wrong> {
        let left = self.value(left)?;
        let right = self.value(right)?;
        let mut parts = [left.asked, right.asked].concat();
        let test = |comparison| Formula::Test(Test { left: left.value, comparison, right: right.value });
        parts.push(match relation {
            Relation::Equal => test(Comparison::Equal),
            Relation::NotEqual => test(Comparison::Equal).not(),
            Relation::Greater => test(Comparison::Greater),
            Relation::GreaterEqual => test(Comparison::GreaterOrEqual),
            Relation::Less => test(Comparison::GreaterOrEqual).not(),
            Relation::LessEqual => test(Comparison::Greater).not(),
        });
        Ok(Formula::all(parts))
    }

    fn value(&self, arithmetic: &Arithmetic) -> Result<Asking, Wrong> {
        Ok(match arithmetic {
            Arithmetic::Number(number) => Asking { value: Value::Number(*number), asked: Vec::new() },
            Arithmetic::Length => Asking { value: Value::Length, asked: Vec::new() },
            Arithmetic::Negate(inner) => {
                let Asking { value, asked } = self.value(inner)?;
                let value = match value {
                    Value::Number(number) => Value::Number(number.wrapping_neg()),
                    value => Value::Negate(Box::new(value)),
                };
                Asking { value, asked }
            }
            // tcpdump asks only for the protocols on the left of an operator; where it stands on the right, as in
            // `1 + tcp[0]`, bytes are loaded whatever they are.
            Arithmetic::Binary(operator, left, right, at) => {
                check(*operator, right).map_err(|wrong| wrong.more_precisely(*at))?;
                let Asking { value, asked } = self.value(left)?;
                Asking { value: fold(*operator, value, self.value(right)?.value), asked }
            }
            Arithmetic::Load(layer, index, size, at) => {
                let index = self.value(index)?;
                let size = match size {
                    1 => Size::Byte,
                    2 => Size::Half,
                    _ => Size::Word,
                };
                self.load(*layer, index, size).map_err(|wrong| wrong.more_precisely(*at))?
            }
        })
    }

    fn load(&self, layer: Layer, index: Asking, size: Size) -> Result<Asking, Wrong> {
        let network = self.link.network_at();
        let Asking { value: index, mut asked } = index;
        let value = match layer {
            Layer::Ether => at(self.link.header_pushed(), index, self.link.header_at(), size),
            Layer::Ip
            | Layer::Arp
            | Layer::Rarp
            | Layer::Atalk
            | Layer::Decnet
            | Layer::Lat
            | Layer::Sca
            | Layer::Moprc
            | Layer::Mopdl
            | Layer::Ip6 => {
                asked.push(self.layer(layer)?);
                at(self.link.pushed(), index, network, size)
            }
            Layer::Sctp
            | Layer::Tcp
            | Layer::Udp
            | Layer::Icmp
            | Layer::Igmp
            | Layer::Igrp
            | Layer::Pim
            | Layer::Vrrp
            | Layer::Carp => {
                asked.insert(0, self.link.carries(EtherType::IPV4)?);
                asked.push(self.layer(layer)?);
                asked.push(self.link.first_fragment());
                let header = sum(self.link.pushed(), self.link.ipv4_header_length());
                at(Some(header), index, network, size)
            }
            Layer::Icmp6 => {
                asked.push(self.layer(Layer::Ip6)?);
                asked.push(self.link.network(6, Size::Byte).is(u32::from(Protocol::ICMPV6.0)));
                at(self.link.pushed(), index, network + 40, size)
            }
            _ => {
                return Err(Wrong::new(format!("bytes of '{}' can't be addressed", layer.word()))
                    .cure("ether, ip, ip6, arp, tcp, udp, icmp, icmp6, say"));
            }
        };
        Ok(Asking { value, asked })
    }
}

/// A load at `base`, which something may push further, and `index` behind it. What pushes and the index are added with
/// wrapping, as in `tcp[-4]`; the base is not, so that what is beyond 32 bits is beyond the packet.
fn at(pushed: Option<Value>, index: Value, base: u32, size: Size) -> Value {
    let load = match index {
        // What pushes is far less than 2^31: nothing can wrap.
        Value::Number(number) if number < 1 << 31 => Load { index: pushed, offset: base + number, size },
        index => Load { index: Some(sum(pushed, index)), offset: base, size },
    };
    Value::Load(Box::new(load))
}

/// An operation, carried out now where both sides are known. Only what is written as a number is refused as one: what a
/// calculation gives may divide by zero in each packet, which then does not match.
fn fold(operator: Operator, left: Value, right: Value) -> Value {
    if let (Value::Number(left), Value::Number(right)) = (&left, &right)
        && let Some(number) = operator.apply(*left, *right)
    {
        return Value::Number(number);
    }
    binary(operator, left, right)
}

/// Refuses what no packet can make right.
fn check(operator: Operator, right: &Arithmetic) -> Result<(), Wrong> {
    match (operator, right) {
        (Operator::Divide | Operator::Modulo, Arithmetic::Number(0)) => {
            Err(Wrong::new("this divides by zero"))
        }
        (Operator::ShiftLeft | Operator::ShiftRight, Arithmetic::Number(bits @ 32..)) => {
            Err(Wrong::new(format!("a shift by {bits} bits leaves nothing")).cure("31 is the most"))
        }
        _ => Ok(()),
    }
}
