//! Ssh sessions that come inside of other packets: to spare them by their own addresses and ports is in vain where these packets are
//! what an interface receives.

use std::collections::BTreeSet;
use std::net::IpAddr;

use super::SshConnection;
use crate::netlink::NetlinkError;
use crate::route::{Link, Route};

/// Virtual interfaces that have packets of interfaces below them as they are, tags apart.
const STACKED: [&str; 5] = ["vlan", "macvlan", "macvtap", "ipvlan", "ipvtap"];

/// Virtual interfaces with ports.
const WITH_PORTS: [&str; 4] = ["bridge", "bond", "team", "vrf"];

/// Virtual interfaces that put no packets into others. What is behind a veth's other end is not known.
const PLAIN: [&str; 3] = ["veth", "dummy", "ifb"];

/// In one line which of these sessions may reach `interface` inside of other packets, which nobody spares, and what to do. That is asked of
/// the routes to those who are logged in: what IPsec does without an interface of its own they do not tell.
///
/// # Errors
/// When the kernel does not list its interfaces.
pub fn carried<'a>(
    route: &mut Route,
    interface: u32,
    sessions: impl IntoIterator<Item = &'a SshConnection>,
) -> Result<Option<String>, NetlinkError> {
    let ways: BTreeSet<(u32, IpAddr)> = sessions
        .into_iter()
        .filter_map(|session| Some((way_to(route, session)?, session.client.ip())))
        .collect();
    if ways.iter().all(|(out, _)| *out == interface) {
        return Ok(None);
    }
    let links = route.links()?;
    let name = |index: u32| links.iter().find(|link| link.index == index).map(|link| link.name.clone());
    let inside: Vec<(String, IpAddr)> = ways
        .into_iter()
        .filter(|(out, _)| may_be_inside(&links, interface, *out))
        .filter_map(|(out, client)| Some((name(out)?, client)))
        .collect();
    let Some((by, client)) = inside.first() else { return Ok(None) };
    let more = match inside.len() - 1 {
        0 => String::new(),
        more => format!(" (and {more} more)"),
    };
    let interface = name(interface).unwrap_or_default();
    Ok(Some(format!(
        "the ssh session of {client}{more} comes by {by}: what carries it is not protected where that comes in by {interface}; with \
         --rules: never_drop = ['host ADDRESS'], the address of the other end of {by}, or its protocol and port"
    )))
}

/// By which interface packets to who is logged in leave; `None` when that is not known. An address of one link alone is on no other.
fn way_to(route: &mut Route, session: &SshConnection) -> Option<u32> {
    let client = session.client.ip();
    let is_of_a_link = match client {
        IpAddr::V4(client) => client.is_link_local() || client.is_loopback(),
        IpAddr::V6(client) => client.is_unicast_link_local() || client.is_loopback(),
    };
    if is_of_a_link { None } else { route.way_to(client).ok().flatten() }
}

/// Whether what leaves by `out` may be inside of what leaves by `interface`: not where it is the same packets, nor where it leaves by
/// hardware or by what puts no packets into others.
fn may_be_inside(links: &[Link], interface: u32, out: u32) -> bool {
    let mut below = vec![out];
    let mut seen = BTreeSet::new();
    let mut is_inside = false;
    while let Some(index) = below.pop() {
        if index == interface {
            return false;
        }
        let Some(link) = links.iter().find(|link| link.index == index).filter(|_| seen.insert(index)) else {
            continue;
        };
        match link.kind.as_deref() {
            Some(kind) if WITH_PORTS.contains(&kind) => {
                below.extend(
                    links.iter().filter(|port| port.controller == Some(index)).map(|port| port.index),
                );
            }
            Some(kind) if STACKED.contains(&kind) => {
                below.extend(link.peer.filter(|_| link.peer_namespace.is_none()));
            }
            Some(kind) => is_inside |= !PLAIN.contains(&kind),
            // Hardware, or an interface of before there were kinds (IP in IP, PPP).
            None => is_inside |= !link.ethernet && !link.loopback,
        }
    }
    is_inside
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_tunnel_carries_is_inside_and_what_is_stacked_is_not() {
        let link = |index, kind: Option<&str>| Link {
            index,
            kind: kind.map(str::to_owned),
            ethernet: true,
            ..Link::default()
        };
        let above = |index, kind, peer| Link { peer: Some(peer), ..link(index, Some(kind)) };
        let port = |controller, link| Link { controller: Some(controller), ..link };
        let links = [
            Link { ethernet: false, loopback: true, ..link(1, None) },
            link(2, None),
            port(6, link(3, None)),
            above(4, "vlan", 2),
            above(5, "vlan", 6),
            link(6, Some("bond")),
            Link { ethernet: false, ..link(7, Some("wireguard")) },
            above(8, "vxlan", 2),
            port(10, above(9, "vxlan", 2)),
            link(10, Some("bridge")),
            above(11, "macsec", 2),
            above(12, "veth", 99),
            Link { ethernet: false, ..link(13, None) },
        ];
        let inside = |interface| {
            let all = links.iter().map(|link| link.index);
            all.filter(|out| may_be_inside(&links, interface, *out)).collect::<Vec<_>>()
        };
        // A VLAN of a bond of the interface, or of the interface itself, has its packets; hardware has others.
        assert_eq!(inside(3), [7, 8, 9, 10, 11, 13]);
        assert_eq!(inside(2), [7, 8, 9, 10, 11, 13]);
        assert_eq!(inside(7), [8, 9, 10, 11, 13], "the tunnel itself is filtered");
        assert!(!may_be_inside(&links, 2, 99), "gone");
    }
}
