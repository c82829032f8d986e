//! Addresses of both families as one number, so that every table is made once.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

/// An IPv4 or IPv6 address in 16 bytes: IPv4 as `::ffff:a.b.c.d` (RFC 4291, 2.5.5.2), which never is on the wire.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Address(u128);

const MAPPED: u128 = 0xffff << 32;

impl Address {
    /// As a number, most significant byte first.
    #[inline]
    pub const fn bits(self) -> u128 {
        self.0
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
        if self.is_v4() { None } else { Some(Ipv6Addr::from_bits(self.0)) }
    }

    /// Whether it is IPv4.
    #[inline]
    pub const fn is_v4(self) -> bool {
        self.0 >> 32 == 0xffff
    }

    /// As the standard library's type.
    pub fn ip(self) -> IpAddr {
        match self.v4() {
            Some(v4) => v4.into(),
            None => Ipv6Addr::from_bits(self.0).into(),
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

    /// Whether it can be one host's address, and so a packet's source.
    #[inline]
    pub const fn is_unicast(self) -> bool {
        // IPv4's reserved 240.0.0.0/4 is taken, as routers do by now; only the broadcast address is not.
        !self.is_unspecified() && !self.is_multicast() && !self.is_broadcast()
    }
}

impl From<Ipv4Addr> for Address {
    #[inline]
    fn from(v4: Ipv4Addr) -> Self {
        Self(MAPPED | v4.to_bits() as u128)
    }
}

impl From<Ipv6Addr> for Address {
    #[inline]
    fn from(v6: Ipv6Addr) -> Self {
        Self(v6.to_bits())
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

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.ip().fmt(f)
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

    /// The prefix with all bits zero that do not count.
    #[must_use]
    pub fn network(self) -> Self {
        Self { address: Address(self.address.0 & mask(self.length)), length: self.length }
    }

    /// Whether an address lies in it.
    #[inline]
    pub fn contains(self, address: Address) -> bool {
        (self.address.0 ^ address.0) & mask(self.length) == 0
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
            Self::new(address.parse::<IpAddr>().ok()?, length.parse().ok()?)
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
    fn prefixes_contain_and_print() {
        let prefix: Prefix = "10.1.2.3/20".parse().unwrap();
        assert_eq!(prefix.network().to_string(), "10.1.0.0/20");
        assert!(prefix.contains(address("10.1.15.255")) && !prefix.contains(address("10.1.16.0")));
        assert!(!prefix.contains(address("::")), "families do not mix");
        assert_eq!(prefix.broadcast(), Some(address("10.1.15.255")));
        assert_eq!("10.0.0.0/31".parse::<Prefix>().unwrap().broadcast(), None);
        assert!("0.0.0.0/0".parse::<Prefix>().unwrap().contains(address("9.9.9.9")));
        for wrong in ["10.0.0.1", "10.0.0.1/33", "fd00::/129", "x/1", "10.0.0.1/"] {
            assert!(wrong.parse::<Prefix>().is_err(), "{wrong}");
        }
    }
}
