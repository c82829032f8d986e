//! Prefixes of addresses, as people write them.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

/// Addresses that begin alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Prefix {
    address: IpAddr,
    bits: u8,
}

/// Why a text is no prefix.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PrefixError {
    /// Not an address.
    #[error("'{0}' is no address: write 192.0.2.0/24 or 2001:db8::/32, or an address alone")]
    Address(String),
    /// Too many bits, or no number.
    #[error("'{0}' has no such length: 0 to 32 for IPv4, 0 to 128 for IPv6")]
    Bits(String),
    /// The address has bits behind the prefix.
    #[error("'{0}' has bits set behind its length: write {1}")]
    Behind(String, Prefix),
}

impl Prefix {
    /// The first `bits` bits of `address`.
    ///
    /// # Errors
    /// [`PrefixError`]
    pub fn new(address: IpAddr, bits: u8) -> Result<Self, PrefixError> {
        let most = if address.is_ipv4() { 32 } else { 128 };
        if bits > most {
            return Err(PrefixError::Bits(format!("{address}/{bits}")));
        }
        let cut = Self { address, bits }.cut();
        if cut.address != address {
            return Err(PrefixError::Behind(format!("{address}/{bits}"), cut));
        }
        Ok(cut)
    }

    /// Its first address.
    pub fn address(&self) -> IpAddr {
        self.address
    }

    /// How many bits are the same.
    pub fn bits(&self) -> u8 {
        self.bits
    }

    /// Whether an address begins so.
    pub fn contains(&self, address: IpAddr) -> bool {
        network(address, self.bits, self.bits) == self.address
    }

    fn cut(self) -> Self {
        Self { address: network(self.address, self.bits, self.bits), ..self }
    }
}

/// The first bits of an address, `v4` of IPv4 and `v6` of IPv6, the rest zero.
pub fn network(address: IpAddr, v4: u8, v6: u8) -> IpAddr {
    match address {
        IpAddr::V4(address) => IpAddr::V4((address.to_bits() & mask32(v4)).into()),
        IpAddr::V6(address) => IpAddr::V6((address.to_bits() & mask128(v6)).into()),
    }
}

pub(super) fn mask32(bits: u8) -> u32 {
    u32::MAX.checked_shl(32 - u32::from(bits.min(32))).unwrap_or(0)
}

pub(super) fn mask128(bits: u8) -> u128 {
    u128::MAX.checked_shl(128 - u32::from(bits.min(128))).unwrap_or(0)
}

impl FromStr for Prefix {
    type Err = PrefixError;

    fn from_str(text: &str) -> Result<Self, PrefixError> {
        let (address, bits) = text.split_once('/').map_or((text, None), |(a, b)| (a, Some(b)));
        let address: IpAddr = address.parse().map_err(|_| PrefixError::Address(text.into()))?;
        let whole = if address.is_ipv4() { 32 } else { 128 };
        let bits = bits.map_or(Ok(whole), str::parse).map_err(|_| PrefixError::Bits(text.into()))?;
        Self::new(address, bits)
    }
}

impl fmt::Display for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.bits)
    }
}
