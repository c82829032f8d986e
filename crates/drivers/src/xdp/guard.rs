//! What must not be taken away from the machine: all packets of an interface that it is itself reached by, and of any
//! interface those without which nobody could tell it to stop.

use std::net::{IpAddr, SocketAddr};

use bywash_filter::xdp::NeverTake;
use bywash_sys::netlink::NetlinkError;
use bywash_sys::route::{Link, Route};

/// Why all packets of this interface should not be taken; `None` when nobody would miss them.
pub(super) fn reason_to_refuse(route: &mut Route, link: &Link) -> Result<Option<String>, NetlinkError> {
    // Every interface that is up has a link-local address; it says nothing about who uses it.
    let addresses = route.addresses()?;
    let address = addresses.iter().find(|address| address.index == link.index && !address.link_local);
    if let Some(address) = address {
        return Ok(Some(format!("it has the address {}", address.prefix.address)));
    }
    if route.default_gateways()?.iter().any(|gateway| gateway.index == link.index) {
        return Ok(Some("the default route goes through it".into()));
    }
    if link.controller.is_some() {
        return Ok(Some("it is part of a bridge or bond".into()));
    }
    Ok(None)
}

/// What stays with the kernel also where a part of the packets is taken: the default gateways on this interface and the
/// connection by which the operator is logged in, if it is one of ssh's. Address resolution always does.
pub(super) fn never_take(route: &mut Route, link: &Link) -> Result<NeverTake, NetlinkError> {
    let gateways = route.default_gateways()?.into_iter().filter(|gateway| gateway.index == link.index);
    let connection = std::env::var("SSH_CONNECTION").unwrap_or_default();
    Ok(NeverTake {
        gateways: gateways.filter_map(|gateway| gateway.address).collect(),
        operator: ends(&connection),
    })
}

/// Both ends in sshd's form: `CLIENT PORT SERVER PORT`. An IPv6 address on the link has its interface behind a `%`.
fn ends(connection: &str) -> Option<(SocketAddr, SocketAddr)> {
    let mut words = connection.split_ascii_whitespace();
    let mut end = || {
        let address: IpAddr = words.next()?.split('%').next()?.parse().ok()?;
        Some(SocketAddr::new(address.to_canonical(), words.next()?.parse().ok()?))
    };
    Some((end()?, end()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_operators_connection_is_read_as_sshd_writes_it() {
        let both = |one: &str, other: &str| Some((one.parse().unwrap(), other.parse().unwrap()));
        assert_eq!(ends("10.0.0.9 50022 10.0.0.1 22"), both("10.0.0.9:50022", "10.0.0.1:22"));
        assert_eq!(ends("::ffff:10.0.0.9 50022 ::ffff:10.0.0.1 22"), both("10.0.0.9:50022", "10.0.0.1:22"));
        assert_eq!(ends("fe80::1%eth0 50022 fe80::2%eth0 22"), both("[fe80::1]:50022", "[fe80::2]:22"));
        assert_eq!(ends(""), None);
        assert_eq!(ends("10.0.0.9 50022 10.0.0.1"), None);
        assert_eq!(ends("10.0.0.9 70000 10.0.0.1 22"), None);
    }
}
