//! Links, addresses, routes and neighbours of one network namespace, by rtnetlink.

mod address;
mod link;
mod neighbour;
mod news;
mod table;
mod virtual_function;

pub use address::{Address, Prefix, PrefixError};
pub use link::{Link, LinkCounters, LinkXdp, Mac, Veth, VethEnd};
pub use neighbour::Neighbour;
pub use news::LinkNews;
pub use table::{Gateway, NewRoute, RouteEntry};
pub use virtual_function::{VfInfo, VfLink, VfSetting};

use crate::netlink::{Family, NetlinkError, Socket};

/// What rtnetlink does in one network namespace: the one it was opened in, whichever thread uses it.
#[derive(Debug)]
pub struct Route {
    socket: Socket,
}

impl Route {
    /// Opens the calling thread's network namespace.
    ///
    /// # Errors
    /// When the kernel has no rtnetlink or this process has too many files open.
    pub fn open() -> Result<Self, NetlinkError> {
        Ok(Self { socket: Socket::open(Family::Route)? })
    }
}

/// The bytes of a fixed header that is an address family and three more bytes, then a number: most of them are.
fn header(bytes: [u8; 4], number: u32) -> [u8; 8] {
    let [a, b, c, d] = number.to_ne_bytes();
    [bytes[0], bytes[1], bytes[2], bytes[3], a, b, c, d]
}

/// The number at `at` of a fixed header.
fn number_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

/// The address family's number of an IP address.
fn family(address: std::net::IpAddr) -> u8 {
    if address.is_ipv4() { AF_INET } else { AF_INET6 }
}

/// The address's bytes in network byte order.
fn octets(address: std::net::IpAddr) -> Vec<u8> {
    match address {
        std::net::IpAddr::V4(v4) => v4.octets().to_vec(),
        std::net::IpAddr::V6(v6) => v6.octets().to_vec(),
    }
}

/// An address of four or sixteen bytes.
fn address(bytes: &[u8]) -> Option<std::net::IpAddr> {
    if let Ok(v4) = <[u8; 4]>::try_from(bytes) {
        return Some(v4.into());
    }
    Some(<[u8; 16]>::try_from(bytes).ok()?.into())
}

const AF_INET: u8 = 2;
const AF_INET6: u8 = 10;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// The kernel is believed, but not with our life.
        #[test]
        fn no_answer_can_make_us_panic(answer in prop::collection::vec(any::<u8>(), 0..200)) {
            link::parse(&answer);
            address::parse(&answer);
            neighbour::parse(&answer);
            table::parse(&answer);
            virtual_function::parse(&answer);
        }

        /// As above, with attributes that are whole.
        #[test]
        fn no_attribute_can_make_us_panic(
            header in prop::collection::vec(any::<u8>(), 16),
            values in prop::collection::vec((0..64_u16, prop::collection::vec(any::<u8>(), 0..40)), 0..8),
        ) {
            let attributes: Vec<_> = values.iter().map(|(kind, value)| crate::netlink::bytes(*kind, value)).collect();
            let attributes = crate::netlink::emit(&attributes);
            link::parse(&[&header[..], &attributes].concat());
            address::parse(&[&header[..8], &attributes].concat());
            neighbour::parse(&[&header[..12], &attributes].concat());
            let mut route = [&header[..12], &attributes].concat();
            route[7] = libc::RTN_UNICAST;
            table::parse(&route);
        }
    }
}
