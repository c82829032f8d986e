//! What must not be taken away from the machine: all packets of an interface that it is itself reached by.

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
