//! What a file's packets begin with.

use std::fmt;

/// A link type, by its number in the registry at tcpdump.org (`LINKTYPE_`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Link(pub u16);

impl Link {
    /// An Ethernet header.
    pub const ETHERNET: Self = Self(1);

    /// What people call it, for the common ones.
    fn name(self) -> Option<&'static str> {
        Some(match self.0 {
            0 => "BSD loopback",
            1 => "Ethernet",
            9 => "PPP",
            101 => "raw IP",
            105 => "IEEE 802.11",
            108 => "OpenBSD loopback",
            113 => "Linux cooked capture",
            127 => "IEEE 802.11 with radiotap",
            189 | 220 => "USB",
            195 | 230 => "IEEE 802.15.4",
            228 => "raw IPv4",
            229 => "raw IPv6",
            276 => "Linux cooked capture, version 2",
            _ => return None,
        })
    }
}

impl fmt::Display for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => write!(f, "{name} (link type {})", self.0),
            None => write!(f, "link type {}", self.0),
        }
    }
}
