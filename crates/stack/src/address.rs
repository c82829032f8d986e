//! Addresses of both families as one number, so that every table is made once.
//!
//! A link-local address means nothing without its link (RFC 4007, 6): the number of the interface, its zone, stands in
//! those 16 bits of the number that are zero on the wire. So two hosts `fe80::1` on two links are two addresses, and
//! no table needs another key.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::str::FromStr;

use crate::InterfaceId;

/// An IPv4 or IPv6 address in 16 bytes: IPv4 as `::ffff:a.b.c.d` (RFC 4291, 2.5.5.2), which never is on the wire; a
/// link-local one with its zone, see [`Address::with_zone`].
// A number of 16 bytes begins at every sixteenth, which would leave gaps in what has an address and little else.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(Rust, packed(8))]
pub struct Address(u128);

const MAPPED: u128 = 0xffff << 32;

/// Where a zone stands: the third and fourth byte, which are zero in `fe80::/64` and in `ff02::/64`.
const ZONE_SHIFT: u32 = 96;
const ZONE: u128 = 0xffff << ZONE_SHIFT;
/// Where the scope of a group stands (RFC 4291, 2.7).
const SCOPE: u128 = 0xf << 112;

impl Address {
    /// As a number, most significant byte first, with its zone: for tables and hashes, not for the wire.
    #[inline]
    pub const fn bits(self) -> u128 {
        self.0
    }

    /// As it is on the wire: without its zone.
    #[inline]
    pub const fn wire(self) -> u128 {
        if self.has_zone() { self.0 & !ZONE } else { self.0 }
    }

    /// Whether it is one of those that mean another host, or group, on each link.
    #[inline]
    pub const fn has_zone(self) -> bool {
        // Multicast of scope 1 (interface) and 2 (link), whatever its flags: RFC 4291, 2.7.
        self.is_link_local() || self.0 >> 120 == 0xff && matches!(self.0 >> 112 & 0xf, 1 | 2)
    }

    /// The same address on a link. One that means the same everywhere stays as it is.
    #[inline]
    #[must_use]
    pub const fn with_zone(self, zone: InterfaceId) -> Self {
        if self.has_zone() { Self(self.0 & !ZONE | (zone.0 as u128) << ZONE_SHIFT) } else { self }
    }

    /// The link that the address is on, if it has been said.
    #[inline]
    #[expect(clippy::cast_possible_truncation, reason = "16 bits are wanted")]
    pub const fn zone(self) -> Option<InterfaceId> {
        let zone = (self.0 >> ZONE_SHIFT) as u16;
        if self.has_zone() && zone != 0 { Some(InterfaceId(zone)) } else { None }
    }

    /// An address as it came in on a link; `None` for what is never on a wire: an IPv4 address written as IPv6
    /// (RFC 4291, 2.5.5.2), and a link-local one with bits set that are zero in all of them (2.5.6).
    #[inline]
    pub fn from_wire(address: Ipv6Addr, link: InterfaceId) -> Option<Self> {
        let address = Self(address.to_bits());
        if address.is_v4() || (address.has_zone() && address.0 & ZONE != 0) {
            return None;
        }
        Some(address.with_zone(link))
    }

    /// The group that is asked for a neighbour (RFC 4291, 2.7.1), on the address's link.
    pub const fn solicited_node(self, link: InterfaceId) -> Self {
        Self(0xff02_0000_0000_0000_0000_0001_ff00_0000 | self.0 & 0xff_ffff).with_zone(link)
    }

    /// `ff02::number` on a link: 1 is all nodes, 2 all routers.
    pub(crate) const fn link_group(number: u8, link: InterfaceId) -> Self {
        Self(0xff02 << 112 | number as u128).with_zone(link)
    }

    /// As IPv4, if it is.
    #[inline]
    #[expect(clippy::cast_possible_truncation, reason = "the lower 32 bits are what is wanted")]
    pub const fn v4(self) -> Option<Ipv4Addr> {
        if self.0 >> 32 == 0xffff { Some(Ipv4Addr::from_bits(self.0 as u32)) } else { None }
    }

    /// As IPv6, if it is.
    #[inline]
    pub const fn v6(self) -> Option<Ipv6Addr> {
        if self.is_v4() { None } else { Some(Ipv6Addr::from_bits(self.wire())) }
    }

    /// Whether it is IPv4.
    #[inline]
    pub const fn is_v4(self) -> bool {
        self.0 >> 32 == 0xffff
    }

    /// As the standard library's type, which has no zone.
    pub fn ip(self) -> IpAddr {
        match self.v4() {
            Some(v4) => v4.into(),
            None => Ipv6Addr::from_bits(self.wire()).into(),
        }
    }

    /// How closely what is open on `local` has this address: on it alone, on all of its family (`local` is unspecified), or on all
    /// of both (`None`), which is the least. `None`: it has not.
    pub(crate) fn closeness(self, local: Option<Self>) -> Option<u8> {
        match local {
            None => Some(0),
            Some(all) if all.is_unspecified() => (all.is_v4() == self.is_v4()).then_some(1),
            Some(one) => (one == self).then_some(2),
        }
    }

    /// `0.0.0.0` or `::`.
    #[inline]
    pub const fn is_unspecified(self) -> bool {
        self.0 == MAPPED || self.0 == 0
    }

    /// A group's address.
    #[inline]
    pub const fn is_multicast(self) -> bool {
        self.0 >> 120 == 0xff || (self.is_v4() && self.0 >> 28 & 0xf == 0xe)
    }

    /// `255.255.255.255`.
    #[inline]
    pub const fn is_broadcast(self) -> bool {
        self.0 == MAPPED | 0xffff_ffff
    }

    /// `127.0.0.0/8` or `::1`.
    #[inline]
    pub const fn is_loopback(self) -> bool {
        self.0 == 1 || (self.is_v4() && self.0 >> 24 & 0xff == 127)
    }

    /// `fe80::/10`.
    #[inline]
    pub const fn is_link_local(self) -> bool {
        self.0 >> 118 == 0x3fa
    }

    /// `169.254.0.0/16`, whose packets no router passes on (RFC 3927, 2.7).
    #[inline]
    pub(crate) const fn is_link_local_v4(self) -> bool {
        self.is_v4() && self.0 >> 16 & 0xffff == 0xa9fe
    }

    /// `240.0.0.0/4`, class E, which hosts may have here, and to which no errors are sent (RFC 1122, 3.2.2).
    #[inline]
    pub(crate) const fn is_class_e(self) -> bool {
        self.is_v4() && self.0 >> 28 & 0xf == 0xf
    }

    /// Whether it can be one host's address, and so a packet's source.
    #[inline]
    pub const fn is_unicast(self) -> bool {
        // IPv4's class E is taken, as routers do by now; only the broadcast address is not.
        !self.is_unspecified() && !self.is_multicast() && !self.is_broadcast()
    }

    /// Whether it can be given to a host, and come in as a source: 0.0.0.0/8 means "this network" (RFC 1122, 3.2.1.3).
    pub(crate) const fn is_host(self) -> bool {
        self.is_unicast() && !(self.is_v4() && self.0 >> 24 & 0xff == 0)
    }
}

impl Address {
    /// Whether something can be sent to it: to one host, or to many beyond this one (RFC 1122, 3.2.1.3; RFC 4291, 2.7 on scopes
    /// 0 and 1).
    pub(crate) const fn is_destination(self) -> bool {
        if self.is_multicast() {
            self.is_v4() || self.0 >> 112 & 0xf > 1
        } else {
            self.is_host() || self.is_broadcast()
        }
    }
}

impl From<Ipv4Addr> for Address {
    #[inline]
    fn from(v4: Ipv4Addr) -> Self {
        Self(MAPPED | v4.to_bits() as u128)
    }
}

impl From<Ipv6Addr> for Address {
    /// A link-local address has no zone yet: [`Address::with_zone`]. A group of a link with bits set where zones stand (RFC 3306,
    /// RFC 4489) has no place here: it becomes one of the reserved scope 0, to which nothing is sent, and not another group.
    #[inline]
    fn from(v6: Ipv6Addr) -> Self {
        let address = Self(v6.to_bits());
        if !address.has_zone() {
            address
        } else if address.is_multicast() && address.0 & ZONE != 0 {
            Self(address.0 & !SCOPE)
        } else {
            Self(address.0 & !ZONE)
        }
    }
}

impl From<IpAddr> for Address {
    fn from(ip: IpAddr) -> Self {
        match ip {
            IpAddr::V4(v4) => v4.into(),
            IpAddr::V6(v6) => v6.into(),
        }
    }
}

impl From<SocketAddr> for Address {
    /// Without the port. The scope id of a link-local address is the number of its interface.
    fn from(end: SocketAddr) -> Self {
        match end {
            SocketAddr::V4(v4) => (*v4.ip()).into(),
            SocketAddr::V6(v6) => {
                let link = u16::try_from(v6.scope_id()).unwrap_or(0);
                Self::from(*v6.ip()).with_zone(InterfaceId(link))
            }
        }
    }
}

/// With its zone, `fe80::1%2` (RFC 4007, 11.2).
impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.zone() {
            Some(zone) => write!(f, "{}%{}", self.ip(), zone.0),
            None => self.ip().fmt(f),
        }
    }
}

/// An address and how many of its leading bits count.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Prefix {
    address: Address,
    /// Counted in the 128 bits of [`Address`].
    length: u8,
}

/// A text is no prefix.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' is no address with a prefix length: write 10.0.0.1/24 or fd00::1/64, say")]
pub struct PrefixError(String);

impl Prefix {
    /// The first `length` bits of `address`; `None` when the family has fewer.
    pub fn new(address: impl Into<Address>, length: u8) -> Option<Self> {
        let address = address.into();
        let length = if address.is_v4() { (length <= 32).then_some(length + 96)? } else { length };
        (length <= 128).then_some(Self { address, length })
    }

    /// The address, with the bits that do not count.
    pub fn address(self) -> Address {
        self.address
    }

    /// How many bits count, as its family writes it.
    pub fn length(self) -> u8 {
        if self.address.is_v4() { self.length - 96 } else { self.length }
    }

    /// How many of the 128 bits count.
    pub(crate) fn bits(self) -> u8 {
        self.length
    }

    /// The same prefix on a link: see [`Address::with_zone`].
    #[must_use]
    pub fn with_zone(self, zone: InterfaceId) -> Self {
        Self { address: self.address.with_zone(zone), length: self.length }
    }

    /// The prefix with all bits zero that do not count.
    #[must_use]
    pub fn network(self) -> Self {
        Self { address: Address(self.address.0 & mask(self.length)), length: self.length }
    }

    /// Whether an address lies in it. Those of IPv4 lie in none of IPv6, though they are numbers of `::/0` here.
    #[inline]
    pub fn contains(self, address: Address) -> bool {
        self.address.is_v4() == address.is_v4() && (self.address.0 ^ address.0) & mask(self.length) == 0
    }

    /// The IPv4 address with all bits one that do not count, where there is such a thing: not for /31 and /32
    /// (RFC 3021).
    pub fn broadcast(self) -> Option<Address> {
        (self.address.is_v4() && self.length < 127).then_some(Address(self.address.0 | !mask(self.length)))
    }
}

/// Ones in the first `length` bits.
#[inline]
pub(crate) const fn mask(length: u8) -> u128 {
    if length == 0 { 0 } else { u128::MAX << (128 - length) }
}

impl FromStr for Prefix {
    type Err = PrefixError;

    fn from_str(text: &str) -> Result<Self, PrefixError> {
        let parse = || {
            let (address, length) = text.split_once('/')?;
            let ip = address.parse::<IpAddr>().ok()?;
            // `::ffff:10.0.0.1` is IPv4 for programs, and no address of IPv6's (RFC 4291, 2.5.5.2); `fe80:2::1` has bits that are
            // zero in all of its kind (2.5.6).
            let written_so = Address::from(ip).ip() == ip;
            Self::new(ip, length.parse().ok()?).filter(|_| written_so)
        };
        parse().ok_or_else(|| PrefixError(text.into()))
    }
}

impl fmt::Display for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.length())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> Address {
        text.parse::<IpAddr>().unwrap().into()
    }

    #[test]
    fn addresses_say_what_they_are() {
        assert!(address("224.0.0.1").is_multicast() && address("ff02::1").is_multicast());
        assert!(!address("10.0.0.1").is_multicast() && !address("fe80::1").is_multicast());
        assert!(address("127.9.9.9").is_loopback() && address("::1").is_loopback());
        assert!(address("fe80::1").is_link_local() && !address("fec0::1").is_link_local());
        assert!(!address("0.0.0.0").is_unicast() && !address("::").is_unicast());
        assert_eq!(address("10.1.2.3").to_string(), "10.1.2.3");
        assert_eq!(address("10.1.2.3").v6(), None);
    }

    #[test]
    fn link_local_addresses_have_a_zone_that_is_not_on_the_wire() {
        let (one, two) = (InterfaceId(1), InterfaceId(2));
        for text in ["fe80::1", "ff02::1", "ff12::5"] {
            let plain = address(text);
            let zoned = plain.with_zone(one);
            assert_ne!(zoned, plain.with_zone(two));
            assert_eq!((plain.zone(), zoned.zone()), (None, Some(one)));
            assert_eq!((zoned.wire(), zoned.with_zone(two).zone()), (plain.bits(), Some(two)));
            assert_eq!(zoned.to_string(), format!("{text}%1"));
            assert_eq!(zoned.v6(), plain.v6());
            assert!(zoned.is_link_local() || zoned.is_multicast());
        }
        for text in ["fd00::1", "ff05::2", "10.0.0.1", "::1"] {
            assert_eq!(address(text).with_zone(one), address(text), "{text} is the same everywhere");
        }
        let end = |text: &str| Address::from(text.parse::<SocketAddr>().unwrap());
        assert_eq!(end("[fe80::1%2]:80"), address("fe80::1").with_zone(two));
        assert_eq!(end("[fe80::1]:80").zone(), None);
        assert_eq!(end("[fd00::1%2]:80"), address("fd00::1"));
        let wire = |text: &str| Address::from_wire(text.parse().unwrap(), one);
        assert_eq!(wire("fe80::1"), Some(address("fe80::1").with_zone(one)));
        assert_eq!(wire("fd00:7::1"), Some(address("fd00:7::1")));
        assert_eq!((wire("fe80:2::1"), wire("ff02:2::1"), wire("::ffff:1.2.3.4")), (None, None, None));
        for text in ["ff32:ff:1234::1", "ff02:2::1", "ff11:1::1"] {
            let group = address(text).with_zone(one);
            assert!(group.is_multicast() && !group.is_destination(), "{text} is no other group");
        }
        assert_eq!(
            address("fd00::12:3456").solicited_node(two),
            address("ff02::1:ff12:3456").with_zone(two),
            "RFC 4291, 2.7.1"
        );
    }

    #[test]
    fn prefixes_contain_and_print() {
        let prefix: Prefix = "10.1.2.3/20".parse().unwrap();
        assert_eq!(prefix.network().to_string(), "10.1.0.0/20");
        assert!(prefix.contains(address("10.1.15.255")) && !prefix.contains(address("10.1.16.0")));
        assert!(!prefix.contains(address("::")), "families do not mix");
        assert!(!"::/0".parse::<Prefix>().unwrap().contains(address("10.1.15.255")));
        assert_eq!(prefix.broadcast(), Some(address("10.1.15.255")));
        assert_eq!("10.0.0.0/31".parse::<Prefix>().unwrap().broadcast(), None);
        assert!("0.0.0.0/0".parse::<Prefix>().unwrap().contains(address("9.9.9.9")));
        for wrong in [
            "10.0.0.1",
            "10.0.0.1/33",
            "fd00::/129",
            "x/1",
            "10.0.0.1/",
            "::ffff:10.0.0.1/24",
            "fe80:2::1/64",
            "ff32:ff::1/128",
        ] {
            assert!(wrong.parse::<Prefix>().is_err(), "{wrong}");
        }
    }
}
