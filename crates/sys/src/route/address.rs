//! Addresses of interfaces.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use netlink_packet_core::{NLM_F_CREATE, NLM_F_REPLACE};
use serde::Serialize;

use super::{Route, address, family, header, number_at, octets};
use crate::netlink::{self, Attributes, Message, NetlinkError};

/// An address and how many of its leading bits name the network. Written as `10.0.0.1/24`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Prefix {
    /// The address, host bits included.
    pub address: IpAddr,
    /// Leading bits of the network, at most 32 or 128.
    pub length: u8,
}

impl Prefix {
    /// The network: the prefix with its host bits cleared.
    #[must_use]
    pub fn network(self) -> Self {
        let address = match self.address {
            IpAddr::V4(v4) => IpAddr::from(
                (v4.to_bits() & u32::MAX.checked_shl(32 - u32::from(self.length)).unwrap_or(0)).to_be_bytes(),
            ),
            IpAddr::V6(v6) => IpAddr::from(
                (v6.to_bits() & u128::MAX.checked_shl(128 - u32::from(self.length)).unwrap_or(0))
                    .to_be_bytes(),
            ),
        };
        Self { address, length: self.length }
    }
}

/// Why a text is no prefix.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' is no address with a prefix length: write 10.0.0.1/24 or fd00::1/64")]
pub struct PrefixError(String);

impl FromStr for Prefix {
    type Err = PrefixError;

    fn from_str(text: &str) -> Result<Self, PrefixError> {
        let parse = || {
            let (address, length) = text.split_once('/')?;
            let address: IpAddr = address.parse().ok()?;
            let length: u8 = length.parse().ok()?;
            (length <= if address.is_ipv4() { 32 } else { 128 }).then_some(Self { address, length })
        };
        parse().ok_or_else(|| PrefixError(text.into()))
    }
}

impl fmt::Display for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.length)
    }
}

impl Serialize for Prefix {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// An address of an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Address {
    /// The interface's index.
    pub index: u32,
    /// Its own address, with its network's length.
    pub prefix: Prefix,
    /// Good on this link only (`fe80::…`, `169.254.…`): most interfaces that are up have one.
    pub link_local: bool,
}

impl Route {
    /// Gives an interface an address, but not the route to the address's network that usually comes with it: see
    /// [`Route::add_route`]. An IPv6 address is usable at once: duplicates are not looked for.
    ///
    /// # Errors
    /// When the kernel refuses: IPv6 may be off.
    pub fn add_address(&mut self, index: u32, prefix: Prefix) -> Result<(), NetlinkError> {
        let bytes = octets(prefix.address);
        let attributes = [
            netlink::bytes(IFA_LOCAL, &bytes),
            netlink::bytes(IFA_ADDRESS, &bytes),
            netlink::number(IFA_FLAGS, libc::IFA_F_NODAD | libc::IFA_F_NOPREFIXROUTE),
        ];
        let header = header([family(prefix.address), prefix.length, 0, 0], index);
        let message =
            Message::new(format!("give interface {index} the address {prefix}"), libc::RTM_NEWADDR, &header)
                .flags(NLM_F_CREATE | NLM_F_REPLACE)
                .with(&attributes);
        self.socket.request(&message).map(drop)
    }

    /// Every address of every interface.
    ///
    /// # Errors
    /// When the kernel does not answer.
    pub fn addresses(&mut self) -> Result<Vec<Address>, NetlinkError> {
        let message = Message::new("list the addresses", libc::RTM_GETADDR, &header([0; 4], 0));
        let mut addresses: Vec<Address> =
            self.socket.dump(&message)?.iter().filter_map(|answer| parse(answer)).collect();
        addresses.sort();
        Ok(addresses)
    }
}

/// An answer to RTM_GETADDR (`struct ifaddrmsg` and attributes).
pub(super) fn parse(answer: &[u8]) -> Option<Address> {
    let attributes = Attributes(answer.get(8..)?);
    // On a point-to-point interface ADDRESS is the other side's; LOCAL is always ours.
    let bytes = attributes.bytes(IFA_LOCAL).or_else(|| attributes.bytes(IFA_ADDRESS))?;
    Some(Address {
        index: number_at(answer, 4)?,
        prefix: Prefix { address: address(bytes)?, length: answer[1] },
        link_local: answer[3] == libc::RT_SCOPE_LINK,
    })
}

const IFA_ADDRESS: u16 = libc::IFA_ADDRESS;
const IFA_LOCAL: u16 = libc::IFA_LOCAL;
const IFA_FLAGS: u16 = 8;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_network_has_no_host_bits() {
        for (prefix, network) in [
            ("10.1.2.3/24", "10.1.2.0/24"),
            ("10.1.2.3/0", "0.0.0.0/0"),
            ("10.1.2.3/32", "10.1.2.3/32"),
            ("10.1.2.255/25", "10.1.2.128/25"),
            ("fd00:1:2:3:4:5:6:7/64", "fd00:1:2:3::/64"),
            ("fd00::1/0", "::/0"),
            ("fd00::1/128", "fd00::1/128"),
        ] {
            assert_eq!(prefix.parse::<Prefix>().unwrap().network(), network.parse().unwrap(), "{prefix}");
        }
    }

    #[test]
    fn prefixes_print_as_they_were_written() {
        for text in ["10.0.0.1/24", "0.0.0.0/0", "fd00::1/64", "::1/128"] {
            assert_eq!(text.parse::<Prefix>().unwrap().to_string(), text);
        }
        for text in ["10.0.0.1", "10.0.0.1/33", "fd00::1/129", "/24", "10.0.0.1/", "10.0.0.1/-1", "x/8"] {
            assert!(text.parse::<Prefix>().is_err(), "{text}");
        }
    }
}
