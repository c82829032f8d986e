//! From syntax to meaning: what each primitive asks of a packet that begins with an Ethernet header.
//!
//! `vlan`, `mpls` and `pppoes` not only ask something: what stands to the right of them looks behind their header, up to
//! the end of the expression and whatever `or` or parentheses stand between. So the syntax tree is read from left to
//! right with a [`Link`] that says where things are by now.

mod address;
mod compare;
mod iso;
mod link;
mod names;
mod port;
mod transport;

pub use names::{Names, NoNames, SystemNames};

use std::net::Ipv4Addr;

use bywash_wire::{EtherType, Mac, Protocol};

use crate::formula::{Comparison, Formula, Size, Value};
use crate::language::{Direction, Fault, Layer, Primitive, Qualifiers, Syntax};
use link::Link;

pub(crate) fn meaning(
    syntax: &Syntax,
    names: &dyn Names,
    netmask: Option<Ipv4Addr>,
) -> Result<Formula, Fault> {
    Reader { link: Link::ethernet(), names, netmask }.read(syntax)
}

/// What is known while an expression is read.
struct Reader<'a> {
    link: Link,
    names: &'a dyn Names,
    netmask: Option<Ipv4Addr>,
}

impl Reader<'_> {
    fn read(&mut self, syntax: &Syntax) -> Result<Formula, Fault> {
        Ok(match syntax {
            Syntax::Chain(first, rest) => {
                let first = self.read(first)?;
                let rest = rest.iter().map(|(connective, part)| Ok((*connective, self.read(part)?)));
                Formula::Chain(Box::new(first), rest.collect::<Result<_, Fault>>()?)
            }
            Syntax::Not(inner) => self.read(inner)?.not(),
            Syntax::Primitive(primitive, at) => self.primitive(primitive).map_err(|wrong| wrong.at(*at))?,
        })
    }

    fn primitive(&mut self, primitive: &Primitive) -> Result<Formula, Wrong> {
        match primitive {
            Primitive::Address(qualifiers, id, at) => {
                self.address(*qualifiers, id).map_err(|wrong| wrong.more_precisely(*at))
            }
            Primitive::Layer(layer) => self.layer(*layer),
            Primitive::Compare(left, relation, right) => self.compare(left, *relation, right),
            Primitive::Broadcast(layer) => self.broadcast(*layer),
            Primitive::Multicast(layer) => self.multicast(*layer),
            Primitive::Less(length) => Ok(Value::Length.test(Comparison::Greater, *length).not()),
            Primitive::Greater(length) => Ok(Value::Length.test(Comparison::GreaterOrEqual, *length)),
            Primitive::Byte(offset, test, value) => {
                Ok(compare::byte(self.link.header(*offset, Size::Byte), *test, *value))
            }
            Primitive::Vlan(id) => self.link.vlan(*id),
            Primitive::Mpls(label) => self.link.mpls(*label),
            Primitive::PppoeDiscovery => self.link.carries(EtherType::PPPOE_DISCOVERY),
            Primitive::PppoeSession(session) => self.link.pppoe_session(*session),
            Primitive::Llc(kind) => self.link.llc(*kind),
            Primitive::AnyVlan => self.link.any_vlan(),
            Primitive::Transport(direction, test, at) => {
                self.transport(*direction, test).map_err(|wrong| wrong.more_precisely(*at))
            }
            Primitive::Fragment(which) => self.fragment(*which),
            Primitive::Geneve(vni) => self.link.geneve(*vni),
        }
    }

    /// A protocol's keyword alone.
    fn layer(&self, layer: Layer) -> Result<Formula, Wrong> {
        let carries = |number| self.link.carries(EtherType(number));
        let either = |protocol| self.protocol(None, protocol);
        let over_v4 = |protocol| self.protocol(Some(Layer::Ip), protocol);
        match layer {
            Layer::Ether => Err(Wrong::new("'ether' says nothing alone")
                .cure("as in 'ether host MAC' or 'ether proto NUMBER'")),
            Layer::Ip => self.link.carries(EtherType::IPV4),
            Layer::Ip6 => self.link.carries(EtherType::IPV6),
            Layer::Arp => self.link.carries(EtherType::ARP),
            Layer::Rarp => self.link.carries(EtherType::RARP),
            Layer::Sctp => either(Protocol::SCTP),
            Layer::Tcp => either(Protocol::TCP),
            Layer::Udp => either(Protocol::UDP),
            Layer::Pim => either(Protocol::PIM),
            Layer::Ah => either(Protocol::AH),
            Layer::Esp => either(Protocol::ESP),
            Layer::Icmp => over_v4(Protocol::ICMP),
            Layer::Igmp => over_v4(Protocol::IGMP),
            Layer::Igrp => over_v4(Protocol::IGRP),
            Layer::Vrrp | Layer::Carp => over_v4(Protocol::VRRP),
            Layer::Icmp6 => self.protocol(Some(Layer::Ip6), Protocol::ICMPV6),
            Layer::Atalk => carries(link::APPLETALK),
            Layer::Aarp => carries(link::AARP),
            Layer::Decnet => carries(link::DECNET),
            Layer::Lat => carries(0x6004),
            Layer::Sca => carries(0x6007),
            Layer::Moprc => carries(0x6002),
            Layer::Mopdl => carries(0x6001),
            Layer::Stp => carries(link::SAP_STP),
            Layer::Ipx => carries(link::SAP_IPX),
            Layer::Netbeui => carries(link::SAP_NETBEUI),
            Layer::Iso => carries(link::SAP_ISO),
            Layer::Esis | Layer::Clnp | Layer::Isis => iso::protocol(layer)
                .map_or_else(|| Err(Wrong::new("no ISO protocol")), |number| self.link.iso(number)),
            Layer::IsisL1
            | Layer::IsisL2
            | Layer::IsisIih
            | Layer::IsisLsp
            | Layer::IsisSnp
            | Layer::IsisCsnp
            | Layer::IsisPsnp => self.link.isis(layer),
        }
    }

    /// IP packets whose header names `protocol`, behind at most an IPv6 fragment header.
    fn protocol(&self, layer: Option<Layer>, protocol: Protocol) -> Result<Formula, Wrong> {
        let number = u32::from(protocol.0);
        match layer {
            None => Ok(Formula::any([
                self.protocol(Some(Layer::Ip), protocol)?,
                self.protocol(Some(Layer::Ip6), protocol)?,
            ])),
            Some(Layer::Ip) => Ok(Formula::all([
                self.link.carries(EtherType::IPV4)?,
                self.link.network(9, Size::Byte).is(number),
            ])),
            Some(Layer::Ip6) => {
                let next = || self.link.network(6, Size::Byte);
                let behind_fragment = Formula::all([
                    next().is(u32::from(Protocol::FRAGMENT.0)),
                    self.link.network(40, Size::Byte).is(number),
                ]);
                Ok(Formula::all([
                    self.link.carries(EtherType::IPV6)?,
                    Formula::any([next().is(number), behind_fragment]),
                ]))
            }
            Some(layer) => Err(Wrong::new(format!("'{} proto' is not known", layer.word()))
                .all_together()
                .cure("'ip proto', 'ip6 proto' or 'ether proto'")),
        }
    }

    fn broadcast(&self, layer: Option<Layer>) -> Result<Formula, Wrong> {
        match layer {
            None | Some(Layer::Ether) => self.link.station(Some(Direction::Destination), Mac::BROADCAST),
            Some(Layer::Ip) => {
                let Some(netmask) = self.netmask else {
                    return Err(Wrong::new(
                        "'ip broadcast' needs the netmask of an interface, and none is known here",
                    )
                    .cure(
                        "write 'ip dst host ADDRESS' with the network's last address, or 'ether broadcast'",
                    ));
                };
                let host = !netmask.to_bits();
                let destination = || self.link.network(16, Size::Word).masked(host, Size::Word);
                Ok(Formula::all([
                    self.link.carries(EtherType::IPV4)?,
                    Formula::any([destination().is(0), destination().is(host)]),
                ]))
            }
            Some(layer) => Err(Wrong::new(format!("'{}' has no broadcast", layer.word()))
                .cure("'ether broadcast' or 'ip broadcast'")),
        }
    }

    fn multicast(&self, layer: Option<Layer>) -> Result<Formula, Wrong> {
        match layer {
            None | Some(Layer::Ether) => self.link.to_group(),
            Some(Layer::Ip) => Ok(Formula::all([
                self.link.carries(EtherType::IPV4)?,
                self.link.network(16, Size::Byte).test(Comparison::GreaterOrEqual, 224),
            ])),
            Some(Layer::Ip6) => Ok(Formula::all([
                self.link.carries(EtherType::IPV6)?,
                self.link.network(24, Size::Byte).is(255),
            ])),
            Some(layer) => Err(Wrong::new(format!("'{}' has no multicast", layer.word()))
                .cure("'ether', 'ip' or 'ip6' multicast")),
        }
    }
}

/// What is wrong with a primitive; where it stands is known one level up.
struct Wrong {
    /// Where, when it is known more precisely than where the primitive begins.
    at: Option<usize>,
    /// How many bytes behind that place.
    further: usize,
    /// It is wrong all together, not at one place.
    whole: bool,
    what: String,
    cure: Option<String>,
}

impl Wrong {
    fn new(what: impl Into<String>) -> Self {
        Self { at: None, further: 0, whole: false, what: what.into(), cure: None }
    }

    fn cure(mut self, cure: impl Into<String>) -> Self {
        self.cure = Some(cure.into());
        self
    }

    /// It is not the beginning of a value that is wrong.
    fn further(self, further: usize) -> Self {
        Self { further, ..self }
    }

    /// It is no single word that is wrong.
    fn all_together(self) -> Self {
        Self { whole: true, ..self }
    }

    /// Says that it is not the beginning of the primitive that is wrong.
    fn more_precisely(self, at: usize) -> Self {
        Self { at: if self.whole { None } else { self.at.or(Some(at)) }, ..self }
    }

    fn at(self, primitive: usize) -> Fault {
        let fault = Fault::new(self.at.unwrap_or(primitive) + self.further, self.what);
        match self.cure {
            Some(cure) => fault.cure(cure),
            None => fault,
        }
    }
}

/// Refuses a direction where none makes sense.
fn without_direction(qualifiers: Qualifiers, word: &str) -> Result<(), Wrong> {
    match qualifiers.direction {
        None => Ok(()),
        Some(_) => Err(Wrong::new(format!("'{word}' has no direction"))
            .cure("leave out 'src' or 'dst'")
            .all_together()),
    }
}
