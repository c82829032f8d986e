//! Rewriting of addresses, VLAN tags and ports, with checksums that stay right.
//!
//! A checksum is updated by what changes under it (RFC 1624): one that was right stays right, also in fragments and in
//! packets whose end is missing, and one that was wrong stays wrong, for the test that wants it. Whoever has a capture of
//! packets whose checksums the NIC was to fill in asks for new ones.

use std::net::{IpAddr, Ipv6Addr};
use std::str::FromStr;

use bywash_wire::checksum::{Sum, updated};
use bywash_wire::{
    ETHERNET_HEADER, EtherType, IPV4_HEADER, IPV6_HEADER, Mac, Protocol, PseudoHeader, Summed,
};

/// One net's addresses in place of another's: `10.0.0.0/8=192.168.0.0/8`. The part behind the prefix is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Map {
    from: IpAddr,
    to: IpAddr,
    bits: u8,
}

/// The text is no map.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MapError {
    /// It has no `=`.
    #[error("write OLD=NEW: 10.0.0.0/8=172.16.0.0/8, say")]
    Form,
    /// One side is no address and no net.
    #[error("'{0}' is no address and no net: write 10.0.0.1, 10.0.0.0/8 or 2001:db8::/32")]
    Net(String),
    /// The two sides do not fit.
    #[error("'{0}' has not the same version of IP and length of prefix on both sides")]
    Sides(String),
    /// One side has bits behind its prefix.
    #[error("'{0}' has bits behind its prefix: write the net's own address")]
    Bits(String),
    /// One side is no port.
    #[error("'{0}' is no port: write 80=8080, say")]
    Port(String),
}

impl FromStr for Map {
    type Err = MapError;

    fn from_str(text: &str) -> Result<Self, MapError> {
        let (old, new) = text.split_once('=').ok_or(MapError::Form)?;
        let ((from, bits), (to, new_bits)) = (net(old)?, net(new)?);
        if bits != new_bits || from.is_ipv4() != to.is_ipv4() {
            return Err(MapError::Sides(text.into()));
        }
        Ok(Self { from, to, bits })
    }
}

/// An address and its prefix's length; a whole address without one.
fn net(text: &str) -> Result<(IpAddr, u8), MapError> {
    let wrong = || MapError::Net(text.into());
    let (address, bits) = text.split_once('/').map_or((text, None), |(address, bits)| (address, Some(bits)));
    let address: IpAddr = address.parse().map_err(|_| wrong())?;
    let most = if address.is_ipv4() { 32 } else { 128 };
    let bits = bits.map_or(Ok(most), |bits| bits.parse::<u8>().map_err(|_| wrong()))?;
    if bits > most {
        return Err(wrong());
    }
    if number(address) & !prefix(bits, most) & prefix(most, most) != 0 {
        return Err(MapError::Bits(text.into()));
    }
    Ok((address, bits))
}

fn number(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => address.to_bits().into(),
        IpAddr::V6(address) => address.to_bits(),
    }
}

/// The upper `bits` of `most`.
fn prefix(bits: u8, most: u8) -> u128 {
    let all = if most == 128 { u128::MAX } else { (1 << most) - 1 };
    all & !all.checked_shr(bits.into()).unwrap_or(0)
}

impl Map {
    /// The new address, when the old one lies in the net.
    fn apply(&self, address: u128, is_ipv4: bool) -> Option<u128> {
        let mask = prefix(self.bits, if is_ipv4 { 32 } else { 128 });
        let is_inside = self.from.is_ipv4() == is_ipv4 && (address ^ number(self.from)) & mask == 0;
        is_inside.then(|| (address & !mask) | number(self.to))
    }
}

/// One port in place of another: `80=8080`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortMap {
    from: u16,
    to: u16,
}

impl FromStr for PortMap {
    type Err = MapError;

    fn from_str(text: &str) -> Result<Self, MapError> {
        let port = |text: &str| text.parse::<u16>().map_err(|_| MapError::Port(text.into()));
        let (from, to) = text.split_once('=').ok_or_else(|| MapError::Port(text.into()))?;
        Ok(Self { from: port(from)?, to: port(to)? })
    }
}

/// What becomes of VLAN tags.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Vlan {
    /// All are taken out.
    Remove,
    /// The outermost one gets this number, or is put in.
    Set(u16),
}

impl FromStr for Vlan {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.parse::<u16>() {
            _ if text == "none" => Ok(Self::Remove),
            Ok(number) if number < 4095 => Ok(Self::Set(number)),
            _ => Err("write a VLAN's number, 0 to 4094, or none".into()),
        }
    }
}

/// What is rewritten.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rewrite {
    /// Ethernet source.
    pub src_mac: Option<Mac>,
    /// Ethernet destination.
    pub dst_mac: Option<Mac>,
    /// VLAN tags.
    pub vlan: Option<Vlan>,
    /// Source addresses: the first map that has one counts.
    pub src_ip: Vec<Map>,
    /// Destination addresses.
    pub dst_ip: Vec<Map>,
    /// Source ports of TCP and UDP.
    pub src_port: Vec<PortMap>,
    /// Destination ports of TCP and UDP.
    pub dst_port: Vec<PortMap>,
    /// Compute all checksums anew.
    pub fix_checksums: bool,
}

impl Rewrite {
    /// Rewrites a packet that has an Ethernet header at least. When it `is_cut`, its end is missing.
    pub fn apply(&self, packet: &mut Vec<u8>, is_cut: bool) {
        if packet.len() < ETHERNET_HEADER {
            return;
        }
        if let Some(mac) = self.dst_mac {
            packet[..6].copy_from_slice(&mac.0);
        }
        if let Some(mac) = self.src_mac {
            packet[6..12].copy_from_slice(&mac.0);
        }
        if let Some(vlan) = self.vlan {
            retag(packet, vlan);
        }
        let (kind, at) = inside(packet);
        let Some(bytes) = packet.get_mut(at..) else { return };
        match kind {
            EtherType::IPV4 => self.ipv4(bytes, is_cut),
            EtherType::IPV6 => self.ipv6(bytes, is_cut),
            EtherType::ARP => self.arp(bytes),
            _ => {}
        }
    }

    fn ipv4(&self, ip: &mut [u8], is_cut: bool) {
        if ip.len() < IPV4_HEADER || ip[0] >> 4 != 4 {
            return;
        }
        let header = usize::from(ip[0] & 0xf) * 4;
        if header < IPV4_HEADER || ip.len() < header {
            return;
        }
        let fragment = word(ip, 6);
        let mut changes = Changes::default();
        changes.address(ip, 12, 4, &self.src_ip);
        changes.address(ip, 16, 4, &self.dst_ip);
        put(ip, 10, changes.of(word(ip, 10)));
        let total = usize::from(word(ip, 2));
        if self.fix_checksums {
            put(ip, 10, 0);
            put(ip, 10, Sum::new().bytes(&ip[..header]).checksum());
        }
        if fragment & 0x1fff != 0 {
            // Behind a datagram's first piece: no header of the transport's.
            return;
        }
        let protocol = Protocol(ip[9]);
        let is_whole = !is_cut && fragment & 0x2000 == 0 && (header..=ip.len()).contains(&total);
        let pseudo = is_whole.then(|| {
            let length = u32::try_from(total - header).unwrap_or_default();
            Sum::pseudo(&ip[12..16], &ip[16..20], protocol.0, length)
        });
        let end = if is_whole { total } else { ip.len() };
        self.transport(&mut ip[header..end], (protocol, false), changes, pseudo);
    }

    fn ipv6(&self, ip: &mut [u8], is_cut: bool) {
        if ip.len() < IPV6_HEADER || ip[0] >> 4 != 6 {
            return;
        }
        let mut changes = Changes::default();
        changes.address(ip, 8, 16, &self.src_ip);
        let of_source = changes;
        changes.address(ip, 24, 16, &self.dst_ip);
        let payload = usize::from(word(ip, 4));
        let Some(found) = Transport::find(ip) else { return };
        if found.is_source_routed {
            // The destination that is summed is the last one in the routing header, and stays.
            changes = of_source;
        }
        let end = IPV6_HEADER + payload;
        let is_whole = !is_cut
            && !found.is_fragment
            && !found.is_source_routed
            && (found.at..=ip.len()).contains(&end)
            && payload > 0;
        let pseudo = is_whole.then(|| {
            let length = u32::try_from(end - found.at).unwrap_or_default();
            Sum::pseudo(&ip[8..24], &ip[24..40], found.protocol.0, length)
        });
        let end = if is_whole { end } else { ip.len() };
        self.transport(&mut ip[found.at..end], (found.protocol, true), changes, pseudo);
    }

    /// Ports and the checksum of what IP carries. `pseudo` is the sum to begin with where all of it is here.
    fn transport(
        &self,
        bytes: &mut [u8],
        (protocol, is_v6): (Protocol, bool),
        mut changes: Changes,
        pseudo: Option<Sum>,
    ) {
        let Some(summed) = Summed::of(protocol, is_v6) else { return };
        let is_tcp_udp = matches!(protocol, Protocol::TCP | Protocol::UDP);
        if is_tcp_udp && bytes.len() >= 4 {
            changes.port(bytes, 0, &self.src_port);
            changes.port(bytes, 2, &self.dst_port);
        }
        let place = summed.offset;
        if bytes.len() < place + 2 {
            return;
        }
        let old = word(bytes, place);
        let seal = |bytes: &mut [u8], new| {
            put(bytes, place, if protocol == Protocol::UDP { never_zero(new) } else { new });
        };
        let start = if summed.pseudo == PseudoHeader::Never { pseudo.map(|_| Sum::new()) } else { pseudo };
        if self.fix_checksums
            && summed.whole
            && summed.pseudo != PseudoHeader::Either
            && let Some(start) = start
        {
            put(bytes, place, 0);
            let new = start.bytes(bytes).checksum();
            return seal(bytes, new);
        }
        // UDP over IPv4 may have none.
        let has_none = protocol == Protocol::UDP && old == 0;
        if summed.pseudo == PseudoHeader::Never || has_none || changes.is_none() {
            return;
        }
        seal(bytes, changes.of(old));
        // It was right with the old addresses if it is with the new ones. Else it does not cover them.
        if summed.pseudo == PseudoHeader::Either
            && start.is_none_or(|start| start.bytes(bytes).checksum() != 0)
        {
            put(bytes, place, old);
        }
    }

    /// The addresses in ARP for IPv4 over Ethernet.
    fn arp(&self, arp: &mut [u8]) {
        if arp.len() < 28 || arp[..6] != [0, 1, 8, 0, 6, 4] {
            return;
        }
        // The sender's and the target's; who asks and who is asked change places in the answer.
        let is_answer = word(arp, 6) == 2;
        let (sender, target) =
            if is_answer { (&self.dst_ip, &self.src_ip) } else { (&self.src_ip, &self.dst_ip) };
        let mut changes = Changes::default();
        // ARP has no checksum.
        changes.address(arp, 14, 4, sender);
        changes.address(arp, 24, 4, target);
    }
}

fn never_zero(checksum: u16) -> u16 {
    // Zero means that there is none (RFC 768).
    if checksum == 0 { 0xffff } else { checksum }
}

fn word(bytes: &[u8], at: usize) -> u16 {
    bytes.get(at..).and_then(|rest| rest.first_chunk()).map_or(0, |raw| u16::from_be_bytes(*raw))
}

fn put(bytes: &mut [u8], at: usize, value: u16) {
    if let Some(place) = bytes.get_mut(at..at + 2) {
        place.copy_from_slice(&value.to_be_bytes());
    }
}

/// The words that were changed under a checksum: of two addresses and two ports at most.
#[derive(Clone, Copy, Default)]
struct Changes {
    words: [(u16, u16); 18],
    len: usize,
}

impl Changes {
    fn push(&mut self, old: u16, new: u16) {
        if let Some(place) = self.words.get_mut(self.len).filter(|_| old != new) {
            *place = (old, new);
            self.len += 1;
        }
    }

    fn is_none(&self) -> bool {
        self.len == 0
    }

    /// The checksum after the changes.
    fn of(&self, checksum: u16) -> u16 {
        self.words[..self.len].iter().fold(checksum, |sum, (old, new)| updated(sum, *old, *new))
    }

    /// Maps the address of `len` bytes at `at`.
    fn address(&mut self, bytes: &mut [u8], at: usize, len: usize, maps: &[Map]) {
        let Some(place) = bytes.get_mut(at..at + len) else { return };
        let old = place.iter().fold(0_u128, |number, byte| number << 8 | u128::from(*byte));
        let Some(new) = maps.iter().find_map(|map| map.apply(old, len == 4)) else { return };
        let new = Ipv6Addr::from_bits(new).octets();
        for (to, from) in place.chunks_exact_mut(2).zip(new[16 - len..].chunks_exact(2)) {
            self.push(word(to, 0), word(from, 0));
            to.copy_from_slice(from);
        }
    }

    fn port(&mut self, bytes: &mut [u8], at: usize, maps: &[PortMap]) {
        let old = word(bytes, at);
        if let Some(map) = maps.iter().find(|map| map.from == old) {
            self.push(old, map.to);
            put(bytes, at, map.to);
        }
    }
}

/// What an Ethernet header with its tags is in front of, and where that begins.
fn inside(packet: &[u8]) -> (EtherType, usize) {
    let mut at = ETHERNET_HEADER;
    let mut kind = EtherType(word(packet, at - 2));
    while kind.is_vlan() && packet.len() >= at + 4 {
        kind = EtherType(word(packet, at + 2));
        at += 4;
    }
    (kind, at)
}

fn retag(packet: &mut Vec<u8>, vlan: Vlan) {
    let is_tagged = EtherType(word(packet, 12)).is_vlan() && packet.len() >= ETHERNET_HEADER + 4;
    match vlan {
        Vlan::Remove => {
            let (_, at) = inside(packet);
            packet.drain(12..at - 2);
        }
        Vlan::Set(number) if is_tagged => {
            // Priority and drop eligibility stay.
            let control = word(packet, 14) & 0xf000 | number;
            put(packet, 14, control);
        }
        Vlan::Set(number) => {
            let ([a, b], [c, d]) = (EtherType::VLAN.0.to_be_bytes(), number.to_be_bytes());
            packet.splice(12..12, [a, b, c, d]);
        }
    }
}

/// Where in an IPv6 packet the transport begins.
struct Transport {
    protocol: Protocol,
    at: usize,
    is_fragment: bool,
    is_source_routed: bool,
}

impl Transport {
    /// Goes over the extension headers; `None` behind a datagram's first piece, and where they make no sense.
    fn find(ip: &[u8]) -> Option<Self> {
        let mut found =
            Self { protocol: Protocol(ip[6]), at: IPV6_HEADER, is_fragment: false, is_source_routed: false };
        loop {
            let rest = ip.get(found.at..)?;
            let len = match found.protocol {
                Protocol::HOP_BY_HOP | Protocol::ROUTING | Protocol::DESTINATION_OPTIONS => {
                    // Segments left are those still to be visited.
                    found.is_source_routed |= found.protocol == Protocol::ROUTING && *rest.get(3)? > 0;
                    usize::from(*rest.get(1)?) * 8 + 8
                }
                Protocol::AH => usize::from(*rest.get(1)?) * 4 + 8,
                Protocol::FRAGMENT => {
                    let offset = word(rest.get(..8)?, 2);
                    if offset & 0xfff8 != 0 {
                        return None;
                    }
                    found.is_fragment |= offset & 1 != 0;
                    8
                }
                _ => return Some(found),
            };
            found.protocol = Protocol(*rest.first()?);
            found.at += len;
        }
    }
}

#[cfg(test)]
mod tests;
