//! Neighbour discovery (RFC 4861, 4): messages and their options.

use std::net::Ipv6Addr;

use zerocopy::byteorder::network_endian::U32;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::{IcmpHeader, Mac};

/// The hop limit of every message: who sees it knows that no router has passed it on (RFC 4861, 3.1).
pub const HOP_LIMIT: u8 = 255;

/// Option: the sender's link address.
pub const SOURCE_LINK: u8 = 1;
/// Option: the target's link address.
pub const TARGET_LINK: u8 = 2;
/// Option: a prefix.
pub const PREFIX: u8 = 3;
/// Option: the beginning of the packet that a redirect is about, behind eight bytes.
pub const REDIRECTED: u8 = 4;
/// Option: the link's MTU.
pub const MTU: u8 = 5;
/// Option: a random number, by which who has sent a solicitation knows it again (RFC 3971, 5.3.2; RFC 7527).
pub const NONCE: u8 = 14;

/// In the third word of a neighbour advertisement: a router sent it.
pub const ROUTER: u32 = 1 << 31;
/// It answers a solicitation.
pub const SOLICITED: u32 = 1 << 30;
/// It counts more than what was known before.
pub const OVERRIDE: u32 = 1 << 29;

/// A neighbour solicitation or advertisement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct NeighbourMessage {
    /// In an advertisement, its third word has the flags.
    pub icmp: IcmpHeader,
    target: [u8; 16],
}

impl NeighbourMessage {
    /// A message without its checksum.
    pub fn new(kind: u8, flags: u32, target: Ipv6Addr) -> Self {
        let icmp = IcmpHeader { kind, code: 0, checksum: 0.into(), rest: flags.into() };
        Self { icmp, target: target.octets() }
    }

    /// Whom it asks for, or speaks of.
    pub fn target(&self) -> Ipv6Addr {
        self.target.into()
    }
}

/// Which of several default routers hosts should send by (RFC 4191, 2.1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum RouterPreference {
    /// By another one, if there is one.
    Low,
    /// What a router has that knows nothing of preferences.
    #[default]
    Medium,
    /// By this one.
    High,
}

/// A router advertisement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct RouterAdvertisement {
    /// Its third word has hop limit (8 bits), flags (8) and the router's lifetime in seconds (16).
    pub icmp: IcmpHeader,
    /// Milliseconds that a neighbour counts as reachable; 0: not said.
    pub reachable_time: U32,
    /// Milliseconds between two solicitations; 0: not said.
    pub retransmit_time: U32,
}

impl RouterAdvertisement {
    /// The hop limit that hosts should use; 0: not said.
    pub fn hop_limit(&self) -> u8 {
        (self.icmp.rest.get() >> 24) as u8
    }

    /// How many seconds it is a default router; 0: it is none.
    pub fn lifetime(&self) -> u16 {
        (self.icmp.rest.get() & 0xffff) as u16
    }

    /// Which place it has among default routers, if it is one. The reserved value counts as medium (RFC 4191, 2.2).
    pub fn preference(&self) -> RouterPreference {
        match self.icmp.rest.get() >> 19 & 0b11 {
            0b01 => RouterPreference::High,
            0b11 => RouterPreference::Low,
            _ => RouterPreference::Medium,
        }
    }
}

/// The prefix option.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct PrefixInformation {
    kind: u8,
    length: u8,
    /// How many bits of the prefix count.
    pub prefix_length: u8,
    flags: u8,
    /// Seconds; all ones are for ever.
    pub valid: U32,
    /// Seconds that addresses of the prefix are preferred.
    pub preferred: U32,
    reserved: U32,
    prefix: [u8; 16],
}

impl PrefixInformation {
    /// Hosts of the prefix are on the link.
    pub fn is_on_link(&self) -> bool {
        self.flags & 0x80 != 0
    }

    /// Hosts may make themselves addresses of it.
    pub fn is_autonomous(&self) -> bool {
        self.flags & 0x40 != 0
    }

    /// The prefix.
    pub fn prefix(&self) -> Ipv6Addr {
        self.prefix.into()
    }
}

/// The options of a message: kind, and all bytes from the kind on. `None` when one has no length or goes over the end:
/// then the whole message is void (RFC 4861, 4.6).
pub fn options(bytes: &[u8]) -> Option<impl Iterator<Item = (u8, &[u8])>> {
    let next = |bytes: &mut &'_ [u8]| -> Option<()> {
        let length = usize::from(*bytes.get(1)?) * 8;
        *bytes = bytes.get(length..).filter(|_| length > 0)?;
        Some(())
    };
    let mut rest = bytes;
    while !rest.is_empty() {
        next(&mut rest)?;
    }
    let mut rest = bytes;
    Some(std::iter::from_fn(move || {
        let length = usize::from(*rest.get(1)?) * 8;
        let (option, after) = rest.split_at_checked(length)?;
        rest = after;
        Some((option[0], option))
    }))
}

/// The link address in an option of kind [`SOURCE_LINK`] or [`TARGET_LINK`], for Ethernet (RFC 2464, 6).
pub fn link_address(options: &[u8], kind: u8) -> Option<Mac> {
    let (_, option) = self::options(options)?.find(|(k, option)| *k == kind && option.len() == 8)?;
    Mac::read_from_bytes(&option[2..8]).ok()
}

/// An option with a link address.
pub fn link_option(kind: u8, mac: Mac) -> [u8; 8] {
    let [a, b, c, d, e, f] = mac.0;
    [kind, 1, a, b, c, d, e, f]
}

/// An option with a random number.
pub fn nonce_option(nonce: u64) -> [u8; 8] {
    let [a, b, c, d, e, f, _, _] = nonce.to_be_bytes();
    [NONCE, 1, a, b, c, d, e, f]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_read_and_broken_ones_void_the_message() {
        let mac = Mac([2, 0, 0, 0, 0, 9]);
        let bytes = [&link_option(SOURCE_LINK, mac)[..], &[5, 1, 0, 0, 0, 0, 5, 220]].concat();
        let kinds: Vec<_> = options(&bytes).unwrap().map(|(kind, option)| (kind, option.len())).collect();
        assert_eq!(kinds, [(1, 8), (5, 8)]);
        assert_eq!(link_address(&bytes, SOURCE_LINK), Some(mac));
        assert_eq!(link_address(&bytes, TARGET_LINK), None);
        assert!(options(&[]).unwrap().next().is_none());
        for broken in [&[1][..], &[1, 0, 0, 0, 0, 0, 0, 0], &[1, 2, 0, 0, 0, 0, 0, 0], &bytes[..15]] {
            assert!(options(broken).is_none(), "{broken:?}");
        }
    }

    #[test]
    fn layouts_are_those_of_the_rfc() {
        assert_eq!(size_of::<NeighbourMessage>(), 24);
        assert_eq!(size_of::<RouterAdvertisement>(), 16);
        let mut option = [0; 32];
        option[..4].copy_from_slice(&[PREFIX, 4, 64, 0xc0]);
        (option[7], option[11]) = (100, 50);
        option[16..18].copy_from_slice(&[0xfd, 7]);
        let prefix = PrefixInformation::ref_from_bytes(&option).unwrap();
        assert!(prefix.is_on_link() && prefix.is_autonomous());
        assert_eq!((prefix.valid.get(), prefix.preferred.get()), (100, 50));
        assert_eq!(prefix.prefix(), "fd07::".parse::<Ipv6Addr>().unwrap());
        let mut message = [0; 16];
        message[..8].copy_from_slice(&[134, 0, 0, 0, 64, 0, 7, 8]);
        let router = RouterAdvertisement::ref_from_bytes(&message).unwrap();
        assert_eq!((router.hop_limit(), router.lifetime()), (64, 0x708));
    }
}
