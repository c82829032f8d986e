//! Values behind qualifiers: hosts, networks, ports, protocols.

use std::net::{IpAddr, Ipv6Addr};

use bywash_wire::{EtherType, Protocol};

use super::link::{self, Link};
use super::names::ETHER_TYPES;
use super::{Reader, Wrong, iso, without_direction};
use crate::formula::{Formula, Size, Value};
use crate::language::{AS_ADDRESS, Direction, Id, Kind, Layer, Qualifiers, nearest};
use crate::walk::{Family, Walk};

/// An IPv4 address and which of its bits count.
#[derive(Clone, Copy)]
struct V4 {
    address: u32,
    mask: u32,
}

impl Reader<'_> {
    pub(super) fn address(&self, qualifiers: Qualifiers, id: &Id) -> Result<Formula, Wrong> {
        match qualifiers.kind {
            None | Some(Kind::Host) => self.host(qualifiers, id),
            Some(Kind::Net) => self.net(qualifiers, id),
            Some(Kind::Port) => self.port(qualifiers, id, false),
            Some(Kind::PortRange) => self.port(qualifiers, id, true),
            Some(kind @ (Kind::Proto | Kind::ProtoChain)) => {
                without_direction(qualifiers, kind.word())?;
                let number = self.protocol_number(qualifiers.layer, id)?;
                if kind == Kind::Proto {
                    self.proto(qualifiers.layer, number)
                } else {
                    self.protochain(qualifiers.layer, number)
                }
            }
        }
    }

    fn host(&self, qualifiers: Qualifiers, id: &Id) -> Result<Formula, Wrong> {
        match id {
            Id::Mac(mac) => match qualifiers.layer {
                Some(Layer::Ether) => self.link.station(qualifiers.direction, *mac),
                _ => Err(Wrong::new(format!("{mac} is an Ethernet address"))
                    .cure("write 'ether host'")
                    .all_together()),
            },
            Id::V6(address) => self.v6(qualifiers, *address, 128),
            Id::V6Prefix(..) | Id::DottedPrefix(..) | Id::DottedMask(..) => {
                Err(Wrong::new("a prefix is no host").cure("write 'net'").all_together())
            }
            Id::Dotted(parts) if qualifiers.layer == Some(Layer::Decnet) => {
                let [area, node] = parts[..] else { return Err(not_decnet()) };
                self.decnet(qualifiers.direction, area, node)
            }
            Id::Number(number) if qualifiers.layer == Some(Layer::Decnet) => {
                self.decnet(qualifiers.direction, number >> 10, number & 0x3ff)
            }
            Id::Dotted(parts) => {
                let (address, bits) = dotted(parts)?;
                self.v4(qualifiers, shifted(address, bits))
            }
            Id::Number(number) => self.v4(qualifiers, V4 { address: *number, mask: u32::MAX }),
            Id::Name(name) if qualifiers.layer == Some(Layer::Ether) => match self.names.ether(name) {
                Some(mac) => self.link.station(qualifiers.direction, mac),
                None => Err(Wrong::new(format!("/etc/ethers knows no '{name}'")).cure(AS_ADDRESS)),
            },
            Id::Name(name) => self.named_host(qualifiers, name),
        }
    }

    fn named_host(&self, qualifiers: Qualifiers, name: &str) -> Result<Formula, Wrong> {
        if qualifiers.layer == Some(Layer::Decnet) {
            return Err(not_decnet());
        }
        let addresses = self.names.host(name);
        let mut any = Vec::new();
        for address in addresses {
            match address {
                IpAddr::V4(address) if qualifiers.layer != Some(Layer::Ip6) => {
                    any.push(self.v4(qualifiers, V4 { address: address.to_bits(), mask: u32::MAX })?);
                }
                IpAddr::V6(address) if matches!(qualifiers.layer, None | Some(Layer::Ip6)) => {
                    any.push(self.v6(qualifiers, address, 128)?);
                }
                _ => {}
            }
        }
        if any.is_empty() {
            return Err(Wrong::new(format!("no address is known for the host '{name}'")));
        }
        Ok(Formula::any(any))
    }

    fn net(&self, qualifiers: Qualifiers, id: &Id) -> Result<Formula, Wrong> {
        match id {
            Id::Dotted(parts) => {
                let (address, bits) = dotted(parts)?;
                self.v4(qualifiers, shifted(address, bits))
            }
            Id::Number(number) => {
                let unused = if *number == 0 { 0 } else { number.leading_zeros() / 8 * 8 };
                self.v4(qualifiers, V4 { address: number << unused, mask: u32::MAX << unused })
            }
            Id::DottedPrefix(parts, bits) => {
                let (address, known) = dotted(parts)?;
                let mask = u32::MAX.checked_shl(32_u32.saturating_sub(*bits)).unwrap_or(0);
                self.v4(qualifiers, within(shifted(address, known).address, mask)?)
            }
            Id::DottedMask(parts, mask) => {
                let (address, known) = dotted(parts)?;
                let (mask, mask_bits) = dotted(mask)?;
                self.v4(
                    qualifiers,
                    within(shifted(address, known).address, shifted(mask, mask_bits).address)?,
                )
            }
            Id::V6(address) => self.v6(qualifiers, *address, 128),
            Id::V6Prefix(address, bits) => {
                let mask = u128::MAX.checked_shl(128_u32.saturating_sub(*bits)).unwrap_or(0);
                let network = Ipv6Addr::from_bits(address.to_bits() & mask);
                if network != *address {
                    return Err(Wrong::new(format!("{address} has bits beyond its prefix of {bits}"))
                        .cure(format!("did you mean {network}/{bits}?")));
                }
                self.v6(qualifiers, *address, *bits)
            }
            Id::Mac(_) => Err(Wrong::new("an Ethernet address is no network").cure("write 'ether host'")),
            Id::Name(name) => Err(self.named_net(name)),
        }
    }

    /// A network's name is no more than a hint: `/etc/networks` has no masks, and what tcpdump makes of `loopback`
    /// there, the network or the one address 127.0.0.0, depends on its C library.
    fn named_net(&self, name: &str) -> Wrong {
        match self.names.network(name) {
            Some((address, bits)) => Wrong::new("a network's name does not say how many of its bits count")
                .cure(format!("did you mean {address}/{bits}?")),
            None => Wrong::new(format!("/etc/networks knows no '{name}'"))
                .cure("write its number: 10.0.0.0/8, say"),
        }
    }

    /// An IPv4 address in an IPv4, ARP or RARP packet.
    fn v4(&self, qualifiers: Qualifiers, wanted: V4) -> Result<Formula, Wrong> {
        let in_header = |kind: EtherType, source: u32, destination: u32| -> Result<Formula, Wrong> {
            let carried = self.link.carries(kind)?;
            let at = |offset| {
                let field = self.link.network(offset, Size::Word).masked(wanted.mask, Size::Word);
                Formula::all([carried.clone(), field.is(wanted.address)])
            };
            Ok(directed(qualifiers.direction, || at(source), || at(destination)))
        };
        let ip = || in_header(EtherType::IPV4, 12, 16);
        let arp = || in_header(EtherType::ARP, 14, 24);
        let rarp = || in_header(EtherType::RARP, 14, 24);
        match qualifiers.layer {
            None if self.link.is_behind_label() => ip(),
            None => Ok(Formula::any([ip()?, arp()?, rarp()?])),
            Some(Layer::Ip) => ip(),
            Some(Layer::Arp) => arp(),
            Some(Layer::Rarp) => rarp(),
            Some(layer) => Err(no_addresses(layer, "IPv4")),
        }
    }

    fn v6(&self, qualifiers: Qualifiers, address: Ipv6Addr, bits: u32) -> Result<Formula, Wrong> {
        if !matches!(qualifiers.layer, None | Some(Layer::Ip6)) {
            return Err(qualifiers
                .layer
                .map_or_else(|| Wrong::new("no layer"), |layer| no_addresses(layer, "IPv6")));
        }
        let carried = self.link.carries(EtherType::IPV6)?;
        let at = |offset: u32| {
            let mut words = vec![carried.clone()];
            for word in 0..4 {
                let shift = 96 - 32 * word;
                let mask = u128::MAX.checked_shl(128 - bits).unwrap_or(0);
                let part =
                    |bits: u128| u32::try_from(bits >> shift & u128::from(u32::MAX)).unwrap_or(u32::MAX);
                let field = self.link.network(offset + 4 * word, Size::Word).masked(part(mask), Size::Word);
                words.push(field.is(part(address.to_bits())));
            }
            Formula::all(words)
        };
        Ok(directed(qualifiers.direction, || at(8), || at(24)))
    }

    /// A DECnet Phase IV node in short and long headers, each also behind one byte of padding.
    fn decnet(&self, direction: Option<Direction>, area: u32, node: u32) -> Result<Formula, Wrong> {
        if area > 63 || node > 1023 {
            return Err(not_decnet());
        }
        let number = u32::from((u16::try_from(area << 10 | node).unwrap_or(0)).swap_bytes());
        let carried = self.link.carries(EtherType(link::DECNET))?;
        let link = &self.link;
        let padded = |long: u32, offset| {
            Formula::all([
                link.network(2, Size::Half).masked(0xff07, Size::Half).is(0x8100 | long),
                link.network(offset, Size::Half).is(number),
            ])
        };
        let plain = |long: u32, offset| {
            Formula::all([
                link.network(2, Size::Byte).masked(0x07, Size::Byte).is(long),
                link.network(offset, Size::Half).is(number),
            ])
        };
        let at = |short: u32, long: u32| {
            let forms = Formula::any([
                plain(0x02, short),
                padded(0x02, short + 1),
                plain(0x06, long),
                padded(0x06, long + 1),
            ]);
            Formula::all([carried.clone(), forms])
        };
        Ok(directed(direction, || at(5, 17), || at(3, 9)))
    }

    pub(super) fn protocol_number(&self, layer: Option<Layer>, id: &Id) -> Result<u32, Wrong> {
        let name = match id {
            Id::Number(number) => return Ok(*number),
            Id::Name(name) => name,
            _ => {
                return Err(Wrong::new("an address is no protocol").cure("a number, or a name such as \\tcp"));
            }
        };
        let known = match layer {
            None | Some(Layer::Ip | Layer::Ip6) => {
                self.names.protocol(name).map(|protocol| u32::from(protocol.0))
            }
            Some(Layer::Ether) => {
                ETHER_TYPES.iter().find(|(known, _)| known == name).map(|(_, number)| u32::from(*number))
            }
            Some(Layer::Iso) => Layer::of(name).and_then(iso::protocol),
            Some(_) => None,
        };
        known.ok_or_else(|| {
            let names = match layer {
                Some(Layer::Ether) => ETHER_TYPES.iter().map(|(known, _)| (*known).to_string()).collect(),
                _ => self.names.protocols(),
            };
            let wrong = Wrong::new(format!("no protocol is called '{name}'"));
            match nearest(name, names.iter().map(String::as_str)) {
                // Most names of protocols are keywords too.
                Some(name) => wrong.cure(format!("did you mean '\\{name}'?")),
                None => wrong.cure("its number can be written too"),
            }
        })
    }

    fn proto(&self, layer: Option<Layer>, number: u32) -> Result<Formula, Wrong> {
        match layer {
            None | Some(Layer::Ip | Layer::Ip6) => self.protocol(layer, Protocol(protocol_byte(number)?)),
            Some(Layer::Ether) => match u16::try_from(number) {
                Ok(kind) => self.link.carries(EtherType(kind)),
                Err(_) => Err(Wrong::new(format!("{number} is no EtherType: 65535 is the greatest"))),
            },
            Some(Layer::Iso) => self.link.iso(number),
            Some(Layer::Isis) => self.link.isis_pdu(number),
            Some(layer) => Err(Wrong::new(format!("'{} proto' is not known", layer.word()))
                .all_together()
                .cure("'ip proto', 'ip6 proto' or 'ether proto'")),
        }
    }

    fn protochain(&self, layer: Option<Layer>, number: u32) -> Result<Formula, Wrong> {
        let protocol = protocol_byte(number)?;
        let chain = |family| Value::Walk(Walk::Chain { start: self.link.start(family), protocol }).is(1);
        let v4 = || Ok(Formula::all([self.link.carries(EtherType::IPV4)?, chain(Family::V4)]));
        let v6 = || Ok(Formula::all([self.link.carries(EtherType::IPV6)?, chain(Family::V6)]));
        match layer {
            None => Ok(Formula::any([v4()?, v6()?])),
            Some(Layer::Ip) => v4(),
            Some(Layer::Ip6) => v6(),
            Some(layer) => Err(Wrong::new(format!("'{} protochain' is not known", layer.word()))
                .all_together()
                .cure("'ip protochain' or 'ip6 protochain'")),
        }
    }
}

impl Link {
    fn is_behind_label(&self) -> bool {
        self.carries(EtherType::ARP).is_err()
    }
}

pub(super) fn directed(
    direction: Option<Direction>,
    source: impl Fn() -> Formula,
    destination: impl Fn() -> Formula,
) -> Formula {
    match direction {
        Some(Direction::Source) => source(),
        Some(Direction::Destination) => destination(),
        Some(Direction::Both) => Formula::all([source(), destination()]),
        Some(Direction::Either) | None => Formula::any([source(), destination()]),
    }
}

/// One to four parts as the high bytes of an address, and how many bits they are.
fn dotted(parts: &[u32]) -> Result<(u32, u32), Wrong> {
    let mut address = 0;
    for part in parts {
        let byte = u8::try_from(*part)
            .map_err(|_| Wrong::new(format!("{part} can't be part of an address: 255 is the greatest")))?;
        address = address << 8 | u32::from(byte);
    }
    let bits = u32::try_from(parts.len()).unwrap_or(4) * 8;
    Ok((address, bits))
}

/// An address of which the first `bits` were written, moved to where they belong.
fn shifted(address: u32, bits: u32) -> V4 {
    let missing = 32 - bits.min(32);
    V4 {
        address: address.checked_shl(missing).unwrap_or(0),
        mask: u32::MAX.checked_shl(missing).unwrap_or(0),
    }
}

fn within(address: u32, mask: u32) -> Result<V4, Wrong> {
    if address & !mask != 0 {
        let [shown, network] = [address, address & mask].map(std::net::Ipv4Addr::from_bits);
        let mask = match mask.leading_ones() {
            bits if mask.checked_shl(bits).unwrap_or(0) == 0 => format!("/{bits}"),
            _ => format!(" mask {}", std::net::Ipv4Addr::from_bits(mask)),
        };
        return Err(Wrong::new(format!("{shown} has bits beyond its network"))
            .cure(format!("did you mean {network}{mask}?")));
    }
    Ok(V4 { address, mask })
}

pub(super) fn protocol_byte(number: u32) -> Result<u8, Wrong> {
    u8::try_from(number)
        .map_err(|_| Wrong::new(format!("{number} is no protocol number: 255 is the greatest")))
}

fn no_addresses(layer: Layer, family: &str) -> Wrong {
    let wrong = Wrong::new(format!("'{}' has no {family} addresses", layer.word())).all_together();
    match (layer, family) {
        (Layer::Ip6, _) => wrong.cure("write 'ip'"),
        (Layer::Ip, _) => wrong.cure("write 'ip6'"),
        (Layer::Ether, _) => wrong.cure("an Ethernet address must follow, or leave out 'ether'"),
        (layer, _) => wrong.cure(format!("join them: '{} and host ...'", layer.word())),
    }
}

fn not_decnet() -> Wrong {
    Wrong::new("that is no DECnet address").cure("AREA.NODE, up to 63.1023")
}
