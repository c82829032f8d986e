//! The fields that can be given values by name, and where they lie.

use std::fmt;
use std::ops::Range;
use std::str::FromStr;

use bywash_wire::{ETHERNET_HEADER, PseudoHeader};

use super::layers::{Layers, Transport, Version};
use super::values::{Kind, Values};

/// A field and its values, as a user writes them: `ipv4.src=10.0.0.0/8 random`.
///
/// What the values mean depends on the packet: `ip.src` takes addresses of its version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Field {
    name: String,
    values: String,
    /// How the user named it: the option that errors are about.
    option: String,
}

/// The text gives no field values.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct FieldError(String);

impl FromStr for Field {
    type Err = FieldError;

    fn from_str(text: &str) -> Result<Self, FieldError> {
        let (name, values) = text.split_once('=').ok_or_else(|| {
            FieldError(format!("'{text}' gives no values: write NAME=VALUES, as in ipv4.src=10.0.0.0/8"))
        })?;
        Self::new(name.trim(), values, &format!("--field {}", name.trim()))
    }
}

impl Field {
    /// A field of this name with these values, which the user gave by `option`.
    ///
    /// # Errors
    /// When there is no such field, or no bytes are at such a place.
    pub fn new(name: &str, values: &str, option: &str) -> Result<Self, FieldError> {
        if let Some((_, offset, bytes)) = raw(name)
            && (offset >= 1 << 16 || !matches!(bytes, 1 | 2 | 4))
        {
            return Err(FieldError(format!("{option}: {RAW}")));
        }
        if rows(name).next().is_none() && raw(name).is_none() {
            return Err(FieldError(format!("there is no field '{name}': there are {}", names())));
        }
        Ok(Self { name: name.into(), values: values.into(), option: option.into() })
    }

    /// Where it lies in the packet, and its values.
    pub(super) fn resolve(&self, layers: &Layers, is_template: bool) -> Result<(Place, Values), String> {
        let about = |reason: String| format!("{}: {reason}", self.option);
        if let Some((is_payload, offset, bytes)) = raw(&self.name) {
            let start = if is_payload { layers.payload } else { 0 } + offset;
            let place = Place { bits: start * 8..(start + bytes) * 8, is_raw: true };
            place.check(layers).map_err(about)?;
            let most = u128::MAX >> (128 - bytes * 8);
            return Ok((place, Values::parse(&self.values, Kind::Number, (0, most)).map_err(about)?));
        }
        let row = rows(&self.name).find_map(|(row, nth)| Some((row, row.layer.start(layers, nth)?)));
        let (row, start) = row.ok_or_else(|| {
            let layers: Vec<_> = rows(&self.name).map(|(row, _)| row.layer.to_string()).collect();
            let layers = layers.join(" and no ");
            about(if is_template {
                format!(
                    "the template has no {layers}, and only what it has can be changed: choose another one"
                )
            } else {
                format!("the packet has no {layers} (see --vlan, --mpls, --proto)")
            })
        })?;
        let start = start * 8 + row.offset;
        let place = Place { bits: start..start + row.bits, is_raw: false };
        place.check(layers).map_err(about)?;
        let most = u128::MAX >> (128 - row.bits);
        Ok((place, Values::parse(&self.values, row.kind, (row.least, most)).map_err(about)?))
    }

    /// How the user named it.
    pub(super) fn option(&self) -> &str {
        &self.option
    }
}

/// Bits of a packet, counted from its first byte's highest one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) bits: Range<usize>,
    /// By offset, not by name: it may lie anywhere.
    pub(super) is_raw: bool,
}

impl Place {
    pub(super) fn bytes(&self) -> Range<usize> {
        self.bits.start / 8..self.bits.end.div_ceil(8)
    }

    /// Parts of at most 64 bits that lie in one aligned word each, the upper one first.
    pub(super) fn parts(&self) -> Vec<Range<usize>> {
        let Range { start, end } = self.bits.clone();
        match end - start {
            128 => vec![start..start + 64, start + 64..end],
            // An Ethernet address: in no word together with its neighbour.
            48 => vec![start..start + 16, start + 16..end],
            _ => [self.bits.clone()].into(),
        }
    }

    /// Whether they have a bit in common.
    pub(super) fn overlaps(&self, other: &Self) -> bool {
        overlap(&self.bits, &other.bits)
    }

    /// Whether it can be changed without making the packet another one.
    fn check(&self, layers: &Layers) -> Result<(), String> {
        let bytes = self.bytes();
        if layers.is_fragment
            && layers.addresses().is_some_and(|(at, len)| overlap(&bytes, &(at..at + 2 * len)))
        {
            return Err(
                "the template is a fragment, and the checksum over its whole datagram covers the addresses"
                    .into(),
            );
        }
        if !self.is_raw {
            return Ok(());
        }
        if structure(layers).iter().any(|part| overlap(&bytes, part)) {
            return Err("there lies a type, a length or a checksum, which must be right".into());
        }
        let mut borders = vec![layers.inside, layers.payload];
        borders.extend(layers.ip.map(|(_, at)| at));
        borders.extend(layers.addresses().into_iter().flat_map(|(at, len)| [at, at + 2 * len]));
        if borders.iter().any(|border| bytes.start < *border && *border < bytes.end) {
            return Err("it lies across two headers: give each part values of its own".into());
        }
        Ok(())
    }

    /// Whether a checksum covers it that is not worked out.
    pub(super) fn is_unsummed(&self, layers: &Layers) -> bool {
        let Some((_, pseudo)) = layers.unsummed else { return false };
        let bytes = self.bytes();
        let in_addresses = layers.addresses().is_some_and(|(at, len)| overlap(&bytes, &(at..at + 2 * len)));
        (in_addresses && pseudo != PseudoHeader::Never) || overlap(&bytes, &(layers.inside..layers.end))
    }

    /// Whether IPv4's checksum covers it, and whether the one over the payload does.
    pub(super) fn covered(&self, layers: &Layers) -> (bool, bool) {
        let bytes = self.bytes();
        let in_addresses = layers.addresses().is_some_and(|(at, len)| overlap(&bytes, &(at..at + 2 * len)));
        let in_ipv4 = matches!(layers.ip, Some((Version::V4, at)) if overlap(&bytes, &(at..layers.inside)));
        let in_transport = layers.summed.is_some_and(|(_, summed)| {
            bytes.start >= layers.inside || (in_addresses && summed.pseudo == PseudoHeader::Always)
        });
        (in_ipv4, in_transport)
    }
}

fn overlap(a: &Range<usize>, b: &Range<usize>) -> bool {
    a.start < b.end && b.start < a.end
}

/// Bytes that say what follows, how long it is, or whether it is whole.
fn structure(layers: &Layers) -> Vec<Range<usize>> {
    let mut parts = Vec::new();
    if !layers.vlans.is_empty() || !layers.mpls.is_empty() || layers.ip.is_some() {
        parts.push(ETHERNET_HEADER - 2..ETHERNET_HEADER);
    }
    parts.extend(layers.vlans.iter().map(|at| at + 2..at + 4));
    parts.extend(layers.mpls.iter().map(|at| at + 2..at + 3));
    match layers.ip {
        Some((Version::V4, at)) => {
            parts.extend([at..at + 1, at + 2..at + 4, at + 6..at + 8, at + 9..at + 12])
        }
        Some((Version::V6, at)) => parts.extend([at..at + 1, at + 4..at + 7, at + 40..layers.inside]),
        None => {}
    }
    let at = layers.inside;
    match layers.transport {
        Some(Transport::Udp) => parts.push(at + 4..at + 6),
        Some(Transport::Tcp) => parts.push(at + 12..at + 13),
        Some(Transport::Icmp | Transport::Icmpv6) | None => {}
    }
    parts.extend(layers.checksum().map(|at| at..at + 2));
    parts
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Layer {
    Ethernet,
    Vlan,
    Mpls,
    Ipv4,
    Ipv6,
    Udp,
    Tcp,
    Icmp,
}

impl Layer {
    fn start(self, layers: &Layers, nth: usize) -> Option<usize> {
        let ip = |wanted| layers.ip.filter(|(version, _)| *version == wanted).map(|(_, at)| at);
        let inside = |wanted: &[Transport]| {
            layers.transport.filter(|transport| wanted.contains(transport)).map(|_| layers.inside)
        };
        match self {
            Self::Ethernet => Some(0),
            Self::Vlan => layers.vlans.get(nth).copied(),
            Self::Mpls => layers.mpls.get(nth).copied(),
            Self::Ipv4 => ip(Version::V4),
            Self::Ipv6 => ip(Version::V6),
            Self::Udp => inside(&[Transport::Udp]),
            Self::Tcp => inside(&[Transport::Tcp]),
            Self::Icmp => inside(&[Transport::Icmp, Transport::Icmpv6]),
        }
    }
}

impl fmt::Display for Layer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Ethernet => "Ethernet header",
            Self::Vlan => "such VLAN tag",
            Self::Mpls => "such MPLS label",
            Self::Ipv4 => "IPv4 header",
            Self::Ipv6 => "IPv6 header",
            Self::Udp => "UDP header",
            Self::Tcp => "TCP header",
            Self::Icmp => "ICMP header",
        })
    }
}

/// A named field.
#[derive(Clone, Copy, Debug)]
struct Row {
    name: &'static str,
    layer: Layer,
    /// Bits from the header's first one.
    offset: usize,
    bits: usize,
    kind: Kind,
    least: u128,
}

const fn row(name: &'static str, layer: Layer, offset: usize, bits: usize, kind: Kind) -> Row {
    Row { name, layer, offset, bits, kind, least: 0 }
}

const fn port(name: &'static str, layer: Layer, offset: usize) -> Row {
    // Port 0 can't be sent to or from.
    Row { name, layer, offset, bits: 16, kind: Kind::Number, least: 1 }
}

/// Every name. One that stands several times means the first header that the packet has.
const ROWS: &[Row] = {
    use Kind::{Flags, Number};
    use Layer::{Ethernet, Icmp, Ipv4, Ipv6, Mpls, Tcp, Udp, Vlan};
    &[
        row("eth.dst", Ethernet, 0, 48, Kind::Mac),
        row("eth.src", Ethernet, 48, 48, Kind::Mac),
        row("vlan.id", Vlan, 4, 12, Number),
        row("vlan.pcp", Vlan, 0, 3, Number),
        row("vlan.dei", Vlan, 3, 1, Number),
        row("mpls.label", Mpls, 0, 20, Number),
        row("mpls.tc", Mpls, 20, 3, Number),
        row("mpls.ttl", Mpls, 24, 8, Number),
        row("ip.src", Ipv4, 96, 32, Kind::Ipv4),
        row("ip.src", Ipv6, 64, 128, Kind::Ipv6),
        row("ip.dst", Ipv4, 128, 32, Kind::Ipv4),
        row("ip.dst", Ipv6, 192, 128, Kind::Ipv6),
        row("ip.tos", Ipv4, 8, 8, Number),
        row("ip.tos", Ipv6, 4, 8, Number),
        row("ip.dscp", Ipv4, 8, 6, Number),
        row("ip.dscp", Ipv6, 4, 6, Number),
        row("ip.ecn", Ipv4, 14, 2, Number),
        row("ip.ecn", Ipv6, 10, 2, Number),
        row("ip.ttl", Ipv4, 64, 8, Number),
        row("ip.ttl", Ipv6, 56, 8, Number),
        row("ipv4.src", Ipv4, 96, 32, Kind::Ipv4),
        row("ipv4.dst", Ipv4, 128, 32, Kind::Ipv4),
        row("ipv4.tos", Ipv4, 8, 8, Number),
        row("ipv4.dscp", Ipv4, 8, 6, Number),
        row("ipv4.ecn", Ipv4, 14, 2, Number),
        row("ipv4.id", Ipv4, 32, 16, Number),
        row("ipv4.df", Ipv4, 49, 1, Number),
        row("ipv4.ttl", Ipv4, 64, 8, Number),
        row("ipv6.src", Ipv6, 64, 128, Kind::Ipv6),
        row("ipv6.dst", Ipv6, 192, 128, Kind::Ipv6),
        row("ipv6.tc", Ipv6, 4, 8, Number),
        row("ipv6.dscp", Ipv6, 4, 6, Number),
        row("ipv6.ecn", Ipv6, 10, 2, Number),
        row("ipv6.flow", Ipv6, 12, 20, Number),
        row("ipv6.hop", Ipv6, 56, 8, Number),
        port("port.src", Udp, 0),
        port("port.src", Tcp, 0),
        port("port.dst", Udp, 16),
        port("port.dst", Tcp, 16),
        port("udp.src", Udp, 0),
        port("udp.dst", Udp, 16),
        port("tcp.src", Tcp, 0),
        port("tcp.dst", Tcp, 16),
        row("tcp.seq", Tcp, 32, 32, Number),
        row("tcp.ack", Tcp, 64, 32, Number),
        row("tcp.flags", Tcp, 104, 8, Flags),
        row("tcp.window", Tcp, 112, 16, Number),
        row("tcp.urgent", Tcp, 144, 16, Number),
        row("icmp.type", Icmp, 0, 8, Number),
        row("icmp.code", Icmp, 8, 8, Number),
        row("icmp.id", Icmp, 32, 16, Number),
        row("icmp.seq", Icmp, 48, 16, Number),
    ]
};

/// Every name that `--field` knows, for people.
pub fn names() -> String {
    let mut names: Vec<&str> = ROWS.iter().map(|row| row.name).collect();
    names.dedup();
    let names = names.join(", ");
    format!("{names}, frame[OFFSET:BYTES], payload[OFFSET:BYTES] ({RAW}); vlan2.id is the second tag's")
}

/// What can be written in brackets.
const RAW: &str = "OFFSET is below 65536, BYTES is 1, 2 or 4";

/// The rows of a name, and which of several equal headers is meant.
fn rows(name: &str) -> impl Iterator<Item = (&'static Row, usize)> {
    let (plain, nth) = nth(name);
    ROWS.iter().filter(move |row| row.name == plain).map(move |row| (row, nth))
}

/// `vlan2.id` is `vlan.id` of tag number 1, counted from 0.
fn nth(name: &str) -> (String, usize) {
    for layer in ["vlan", "mpls"] {
        if let Some((digits, rest)) = name.strip_prefix(layer).and_then(|rest| rest.split_once('.'))
            && let Ok(number @ 1..) = digits.parse::<usize>()
        {
            return (format!("{layer}.{rest}"), number - 1);
        }
    }
    (name.into(), 0)
}

/// `frame[12:2]` and `payload[0:4]`: of which, offset, and bytes.
fn raw(name: &str) -> Option<(bool, usize, usize)> {
    let (start, rest) = name.split_once('[')?;
    let (offset, bytes) = rest.strip_suffix(']')?.split_once(':')?;
    let is_payload = match start {
        "frame" => false,
        "payload" => true,
        _ => return None,
    };
    Some((is_payload, offset.parse().ok()?, bytes.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_field_lies_in_its_header_and_in_words_of_64_bits() {
        for (i, row) in ROWS.iter().enumerate() {
            let twice = |other: &&Row| other.name == row.name && other.layer == row.layer;
            assert_eq!(ROWS[i..].iter().filter(twice).count(), 1, "{}", row.name);
            let header = match row.layer {
                Layer::Ethernet => 14,
                Layer::Vlan => 2,
                Layer::Mpls => 4,
                Layer::Ipv4 | Layer::Tcp => 20,
                Layer::Ipv6 => 40,
                Layer::Udp => 4,
                Layer::Icmp => 8,
            };
            assert!(row.offset + row.bits <= header * 8, "{}", row.name);
            assert!(matches!(row.bits, 1..=32 | 48 | 128), "{}", row.name);
        }
    }

    #[test]
    fn names_are_known_or_listed() {
        for name in ["ip.src", "vlan.id", "vlan3.pcp", "mpls2.label", "frame[20:2]", "payload[3:4]"] {
            assert!(Field::new(name, "1", "--field").is_ok(), "{name}");
        }
        for name in ["ip.scr", "vlan0.id", "eth2.src", "frame[20]", "tail[0:1]", "ip"] {
            let reason = Field::new(name, "1", "--field").unwrap_err().to_string();
            assert!(reason.contains("there is no field") && reason.contains("tcp.flags"), "{reason}");
        }
        for name in ["frame[20:3]", "frame[0:6]", "payload[0:0]", "frame[65536:1]"] {
            let reason = format!("{name}=1").parse::<Field>().unwrap_err().to_string();
            assert_eq!(reason, format!("--field {name}: {RAW}"));
        }
        assert!("ipv4.src".parse::<Field>().unwrap_err().to_string().contains("NAME=VALUES"));
    }
}
