//! Ports: of TCP, UDP and SCTP, over IPv4 and IPv6.
//!
//! As in tcpdump they are looked for in first fragments only, and over IPv6 only directly behind its header.

use bywash_wire::{EtherType, Protocol};

use super::names::ports_of;
use super::{Reader, Wrong};
use crate::formula::{Comparison, Formula, Size, Value};
use crate::language::{Direction, Id, Layer, Qualifiers};

/// The ports from one to another.
#[derive(Clone, Copy)]
pub(super) struct Ports {
    pub(super) least: u16,
    pub(super) greatest: u16,
}

impl Ports {
    /// `load()` is among them.
    pub(super) fn among(self, load: impl Fn() -> Value) -> Formula {
        let (least, greatest) = (u32::from(self.least), u32::from(self.greatest));
        if least == greatest {
            return load().is(least);
        }
        Formula::all([
            load().test(Comparison::GreaterOrEqual, least),
            load().test(Comparison::Greater, greatest).not(),
        ])
    }

    /// The source port, the destination port or both are among them. `load` loads two bytes of the header behind IP.
    pub(super) fn in_direction(self, direction: Option<Direction>, load: impl Fn(u32) -> Value) -> Formula {
        let source = || self.among(|| load(0));
        let destination = || self.among(|| load(2));
        match direction {
            Some(Direction::Source) => source(),
            Some(Direction::Destination) => destination(),
            Some(Direction::Both) => Formula::all([source(), destination()]),
            Some(Direction::Either) | None => Formula::any([source(), destination()]),
        }
    }
}

/// The protocols that have ports, in the order in which tcpdump asks for them.
pub(super) const WITH_PORTS: [Protocol; 3] = [Protocol::SCTP, Protocol::TCP, Protocol::UDP];

impl Reader<'_> {
    /// `port` and `portrange`.
    pub(super) fn port(&self, qualifiers: Qualifiers, id: &Id, range: bool) -> Result<Formula, Wrong> {
        let (ports, named_for) = self.ports(id, range)?;
        let protocols = protocols(qualifiers.layer, named_for)?;
        let v6 = protocols.iter().map(|protocol| {
            Formula::all([
                self.link.network(6, Size::Byte).is(u32::from(protocol.0)),
                ports.in_direction(qualifiers.direction, |offset| self.link.network(40 + offset, Size::Half)),
            ])
        });
        let v4 = protocols.iter().map(|protocol| {
            Formula::all([
                self.link.network(9, Size::Byte).is(u32::from(protocol.0)),
                self.link.first_fragment(),
                ports.in_direction(qualifiers.direction, |offset| self.link.behind_ipv4(offset, Size::Half)),
            ])
        });
        Ok(Formula::any([
            Formula::all([self.link.carries(EtherType::IPV6)?, Formula::any(v6)]),
            Formula::all([self.link.carries(EtherType::IPV4)?, Formula::any(v4)]),
        ]))
    }

    /// The ports that a value names, and the one protocol that its name belongs to.
    pub(super) fn ports(&self, id: &Id, range: bool) -> Result<(Ports, Option<Protocol>), Wrong> {
        match id {
            Id::Number(number) => {
                let port = u16::try_from(*number)
                    .map_err(|_| Wrong::new(format!("{number} is no port: 65535 is the greatest")))?;
                Ok((Ports { least: port, greatest: port }, None))
            }
            Id::Name(name) => ports_of(self.names, name, range),
            _ => Err(Wrong::new("an address is no port").cure("write 'host' or 'net' in place of 'port'")),
        }
    }
}

/// Which protocols' ports are meant.
pub(super) fn protocols(layer: Option<Layer>, named_for: Option<Protocol>) -> Result<Vec<Protocol>, Wrong> {
    let wanted = match layer {
        None => return Ok(named_for.map_or(WITH_PORTS.to_vec(), |protocol| vec![protocol])),
        Some(Layer::Tcp) => Protocol::TCP,
        Some(Layer::Udp) => Protocol::UDP,
        Some(Layer::Sctp) => Protocol::SCTP,
        Some(layer) => {
            return Err(Wrong::new(format!("'{}' has no ports", layer.word()))
                .all_together()
                .cure("tcp, udp or sctp have, or leave it out"));
        }
    };
    match named_for {
        Some(other) if other != wanted => {
            Err(Wrong::new(format!("that port's name belongs to {other}, not to {wanted}")).all_together())
        }
        _ => Ok(vec![wanted]),
    }
}
