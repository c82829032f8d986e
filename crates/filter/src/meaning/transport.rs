//! Ours, beyond tcpdump: what stands behind IPv6 extension headers, and fragments.
//!
//! `l4 port` finds ports behind any extension header and AH, over IPv4 and IPv6, in whole packets and first fragments.
//! `l4 proto` finds the protocol behind them, in later fragments too. `fragment` is any part of a fragmented packet; an
//! IPv6 packet with a fragment header that is nevertheless whole (RFC 6946) is none.

use bywash_wire::EtherType;

use super::address::protocol_byte;
use super::port::{WITH_PORTS, protocols};
use super::{Reader, Wrong};
use crate::formula::{Comparison, Formula, Load, Size, Value};
use crate::language::{Direction, Fragments, TransportTest};
use crate::walk::{Family, Transport, Walk};

impl Reader<'_> {
    pub(super) fn transport(&self, direction: Direction, test: &TransportTest) -> Result<Formula, Wrong> {
        let (layer, id, range) = match test {
            TransportTest::Protocol(id) => {
                let number = u32::from(protocol_byte(self.protocol_number(None, id)?)?);
                return self.behind_extensions(|found| {
                    found.masked(Transport::PROTOCOL, Size::Word).is(number << Transport::PROTOCOL_SHIFT)
                });
            }
            TransportTest::Port(layer, id) => (*layer, id, false),
            TransportTest::PortRange(layer, id) => (*layer, id, true),
        };
        let (ports, named_for) = self.ports(id, range)?;
        let protocols = match (layer, named_for) {
            (None, None) => WITH_PORTS.to_vec(),
            _ => protocols(layer, named_for)?,
        };
        self.behind_extensions(|found| {
            let field = Transport::PROTOCOL | Transport::LATER;
            let has_ports = protocols.iter().map(|protocol| {
                found.clone().masked(field, Size::Word).is(u32::from(protocol.0) << Transport::PROTOCOL_SHIFT)
            });
            let port = |offset| {
                let index = Some(found.clone().masked(Transport::OFFSET, Size::Word));
                Value::Load(Box::new(Load { index, offset, size: Size::Half }))
            };
            Formula::all([Formula::any(has_ports), ports.in_direction(Some(direction), port)])
        })
    }

    pub(super) fn fragment(&self, which: Fragments) -> Result<Formula, Wrong> {
        let flags = match which {
            Fragments::Any => Transport::FIRST | Transport::LATER,
            Fragments::First => Transport::FIRST,
            Fragments::Later => Transport::LATER,
        };
        self.behind_extensions(|found| found.test(Comparison::CommonBit, flags))
    }

    /// IP packets of which `test` is so, given what the walk over their headers found.
    fn behind_extensions(&self, test: impl Fn(Value) -> Formula) -> Result<Formula, Wrong> {
        let over = |kind, family| {
            let found = Value::Walk(Walk::Transport { start: self.link.start(family) });
            Ok(Formula::all([self.link.carries(kind)?, test(found)]))
        };
        Ok(Formula::any([over(EtherType::IPV4, Family::V4)?, over(EtherType::IPV6, Family::V6)?]))
    }
}
