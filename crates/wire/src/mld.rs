//! Multicast listener discovery, version 2 (RFC 3810): reports, and the queries that ask for them.

use std::net::Ipv6Addr;

use zerocopy::byteorder::network_endian::U16;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::IcmpHeader;

/// Record: nobody is left out, as an answer to a query (RFC 3810, 5.2.12).
pub const MODE_IS_EXCLUDE: u8 = 2;
/// Record: from now on nobody is let in, which is how a group is left.
pub const CHANGE_TO_INCLUDE: u8 = 3;
/// Record: from now on nobody is left out, which is how a group is joined.
pub const CHANGE_TO_EXCLUDE: u8 = 4;

/// The hop-by-hop header in front of every message: the router alert of RFC 2711 with value 0, and padding
/// (RFC 3810, 5). Its first byte, what follows, is ICMPv6.
pub const ROUTER_ALERT: [u8; 8] = [58, 0, 5, 2, 0, 0, 1, 0];

/// What a report says of one group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Record {
    kind: u8,
    auxiliary: u8,
    sources: U16,
    group: [u8; 16],
}

impl Record {
    /// A record without sources.
    pub fn new(kind: u8, group: Ipv6Addr) -> Self {
        Self { kind, auxiliary: 0, sources: 0.into(), group: group.octets() }
    }
}

/// A query, as far as version 1 has it too (RFC 3810, 5.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Query {
    /// The upper half of its third word says how long an answer may wait.
    pub icmp: IcmpHeader,
    group: [u8; 16],
}

impl Query {
    /// The group it asks for; unspecified: all.
    pub fn group(&self) -> Ipv6Addr {
        self.group.into()
    }

    /// Milliseconds within which the answer is wanted. Long ones are written with an exponent (RFC 3810, 5.1.3), but in version 1
    /// as they are (RFC 2710, 3.4). `rest`: what follows the query, which in version 1 is nothing (RFC 3810, 8.1).
    pub fn response_time(&self, rest: &[u8]) -> u32 {
        let code = self.icmp.rest.get() >> 16;
        if rest.is_empty() || code < 0x8000 {
            code
        } else {
            (code & 0xfff | 0x1000) << ((code >> 12 & 7) + 3)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_response_times_are_written_with_an_exponent_in_version_2() {
        let query = |code: u32| Query {
            icmp: IcmpHeader { kind: 130, code: 0, checksum: 0.into(), rest: (code << 16).into() },
            group: [0; 16],
        };
        let two = [0; 4];
        assert_eq!(query(1000).response_time(&two), 1000);
        assert_eq!(query(0x8000).response_time(&two), 0x1000 << 3);
        assert_eq!(query(0xffff).response_time(&two), 0x1fff << 10);
        assert_eq!([1000, 0x8001, 0xffff].map(|code| query(code).response_time(&[])), [1000, 0x8001, 0xffff]);
        assert_eq!((size_of::<Record>(), size_of::<Query>()), (20, 24));
    }
}
