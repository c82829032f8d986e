//! Comparisons of numbers: `tcp[13] & 2 != 0`, `len > 100`.

use bywash_wire::{EtherType, Protocol};

use super::link::binary;
use super::{Reader, Wrong};
use crate::formula::{Comparison, Formula, Load, Operator, Size, Test, Value};
use crate::language::{Arithmetic, ByteTest, Layer, Relation};
use crate::walk::sum;

/// `byte offset test value`.
pub(super) fn byte(offset: u32, test: ByteTest, value: u32) -> Formula {
    let load = Value::Load(Box::new(Load { index: None, offset, size: Size::Byte }));
    match test {
        ByteTest::Equal => load.is(value),
        ByteTest::Less => load.test(Comparison::GreaterOrEqual, value).not(),
        ByteTest::Greater => load.test(Comparison::Greater, value),
        ByteTest::And => load.test(Comparison::CommonBit, value),
        ByteTest::Or => binary(Operator::Or, load, Value::Number(value)).is(0).not(),
    }
}

impl Reader<'_> {
    /// First that the protocols whose bytes are loaded are there, then the comparison.
    pub(super) fn compare(
        &self,
        left: &Arithmetic,
        relation: Relation,
        right: &Arithmetic,
    ) -> Result<Formula, Wrong> {
        let mut asked = Vec::new();
        let left = self.value(left, &mut asked)?;
        let right = self.value(right, &mut asked)?;
        let test = |comparison| Formula::Test(Test { left, comparison, right });
        asked.push(match relation {
            Relation::Equal => test(Comparison::Equal),
            Relation::NotEqual => test(Comparison::Equal).not(),
            Relation::Greater => test(Comparison::Greater),
            Relation::GreaterEqual => test(Comparison::GreaterOrEqual),
            Relation::Less => test(Comparison::GreaterOrEqual).not(),
            Relation::LessEqual => test(Comparison::Greater).not(),
        });
        Ok(Formula::all(asked))
    }

    /// A value; what must be so that it has a meaning is added to `asked`.
    fn value(&self, arithmetic: &Arithmetic, asked: &mut Vec<Formula>) -> Result<Value, Wrong> {
        Ok(match arithmetic {
            Arithmetic::Number(number) => Value::Number(*number),
            Arithmetic::Length => Value::Length,
            Arithmetic::Negate(inner) => match self.value(inner, asked)? {
                Value::Number(number) => Value::Number(number.wrapping_neg()),
                inner => Value::Negate(Box::new(inner)),
            },
            Arithmetic::Binary(operator, left, right, at) => {
                let left = self.value(left, asked)?;
                let right = self.value(right, asked)?;
                fold(*operator, left, right).map_err(|wrong| wrong.more_precisely(*at))?
            }
            Arithmetic::Load(layer, index, size, at) => {
                let index = self.value(index, asked)?;
                let size = match size {
                    1 => Size::Byte,
                    2 => Size::Half,
                    _ => Size::Word,
                };
                self.load(*layer, index, size, asked).map_err(|wrong| wrong.more_precisely(*at))?
            }
        })
    }

    fn load(&self, layer: Layer, index: Value, size: Size, asked: &mut Vec<Formula>) -> Result<Value, Wrong> {
        let network = self.link.network_at();
        Ok(match layer {
            Layer::Ether => at(None, index, 0, size),
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
                asked.push(self.first_fragment());
                let header = sum(self.link.pushed(), self.link.ipv4_header_length());
                match index {
                    // A header has at most 60 bytes, so that nothing can wrap.
                    Value::Number(number) if number < 1 << 31 => {
                        Value::Load(Box::new(Load { index: Some(header), offset: network + number, size }))
                    }
                    index => Value::Load(Box::new(Load {
                        index: Some(binary(Operator::Add, index, header)),
                        offset: network,
                        size,
                    })),
                }
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
        })
    }
}

/// A load at `base`, which tags may push further, and `index` behind it; the sum does not wrap, so that what is beyond
/// 32 bits is beyond the packet.
fn at(pushed: Option<Value>, index: Value, base: u32, size: Size) -> Value {
    let load = match index {
        Value::Number(number) if number.checked_add(base).is_some() => {
            Load { index: pushed, offset: base + number, size }
        }
        index => Load { index: Some(sum(pushed, index)), offset: base, size },
    };
    Value::Load(Box::new(load))
}

/// An operation, carried out now where both sides are known.
fn fold(operator: Operator, left: Value, right: Value) -> Result<Value, Wrong> {
    match (operator, &right) {
        (Operator::Divide | Operator::Modulo, Value::Number(0)) => {
            return Err(Wrong::new("this divides by zero"));
        }
        (Operator::ShiftLeft | Operator::ShiftRight, Value::Number(bits @ 32..)) => {
            return Err(Wrong::new(format!("a shift by {bits} bits leaves nothing")).cure("31 is the most"));
        }
        _ => {}
    }
    if let (Value::Number(left), Value::Number(right)) = (&left, &right)
        && let Some(number) = operator.apply(*left, *right)
    {
        return Ok(Value::Number(number));
    }
    Ok(binary(operator, left, right))
}
