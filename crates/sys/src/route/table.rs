//! Routes, and through whom the rest of the world is reached.

use std::net::IpAddr;

use netlink_packet_core::{NLM_F_CREATE, NLM_F_EXCL};
use rustix::io::Errno;
use serde::Serialize;

use super::{AF_INET, AF_INET6, Prefix, Route, address, family, number_at, octets};
use crate::netlink::{self, Attributes, Message, NetlinkError};

/// A unicast route.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RouteEntry {
    /// Where to. A length of 0 is the default route.
    pub destination: Prefix,
    /// The table it is in; 254 is the main one.
    pub table: u32,
    /// Lower wins.
    pub metric: u32,
    /// By which ways: one, or several that share the load.
    pub ways: Vec<Gateway>,
}

/// One way of a route.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Gateway {
    /// The interface's index.
    pub index: u32,
    /// The next router; `None` when the destination is on the link itself.
    pub address: Option<IpAddr>,
}

/// A route to be added to the main table.
#[derive(Clone, Copy, Debug)]
pub struct NewRoute<'a> {
    /// Where to. Host bits do not count.
    pub to: Prefix,
    /// By which way.
    pub way: Gateway,
    /// The TCP congestion control of connections that go this way; the namespace's own when absent. In a namespace of
    /// its own this is the only way to any but the machine's default: `net.ipv4.tcp_congestion_control` refuses there
    /// what is not in the machine's list of allowed ones.
    pub congestion_control: Option<&'a str>,
}

impl Route {
    /// Adds a route by a gateway, or to what is on the link.
    ///
    /// # Errors
    /// When the kernel refuses: the gateway is not on the link, or the route is there already.
    pub fn add_route(&mut self, route: &NewRoute<'_>) -> Result<(), NetlinkError> {
        let to = route.to.network();
        let mut header = header(family(to.address));
        header[1] = to.length;
        header[4] = libc::RT_TABLE_MAIN;
        header[5] = libc::RTPROT_STATIC;
        header[6] = if route.way.address.is_some() { libc::RT_SCOPE_UNIVERSE } else { libc::RT_SCOPE_LINK };
        header[7] = libc::RTN_UNICAST;
        let mut attributes = vec![
            netlink::bytes(libc::RTA_DST, &octets(to.address)),
            netlink::number(libc::RTA_OIF, route.way.index),
        ];
        attributes.extend(route.way.address.map(|router| netlink::bytes(libc::RTA_GATEWAY, &octets(router))));
        attributes.extend(
            route
                .congestion_control
                .map(|name| netlink::nested(libc::RTA_METRICS, &[netlink::text(RTAX_CC_ALGO, name)])),
        );
        let message = Message::new(format!("add a route to {to}"), libc::RTM_NEWROUTE, &header)
            .flags(NLM_F_CREATE | NLM_F_EXCL)
            .with(&attributes);
        self.socket.request(&message).map(drop)
    }

    /// Whether packets to an address are for this namespace itself, as the kernel would route them now. An IPv6
    /// address is listed a moment before it is.
    ///
    /// # Errors
    /// When the kernel does not answer.
    pub fn is_local(&mut self, address: IpAddr) -> Result<bool, NetlinkError> {
        Ok(self.look_up(address)?.is_some_and(|answer| answer.get(7) == Some(&libc::RTN_LOCAL)))
    }

    /// By which interface packets to an address leave, as the kernel would route them now; `None` when they do not.
    ///
    /// # Errors
    /// When the kernel does not answer.
    pub fn way_to(&mut self, address: IpAddr) -> Result<Option<u32>, NetlinkError> {
        let answer = self.look_up(address)?;
        let way = answer.as_deref().and_then(parse).and_then(|route| route.ways.first().copied());
        Ok(way.map(|way| way.index))
    }

    /// What the kernel answers when it is asked how packets to an address leave; `None` when they can't.
    fn look_up(&mut self, address: IpAddr) -> Result<Option<Vec<u8>>, NetlinkError> {
        let bytes = octets(address);
        let mut header = header(family(address));
        header[1] = if address.is_ipv4() { 32 } else { 128 };
        let message = Message::new(format!("look up the route to {address}"), libc::RTM_GETROUTE, &header)
            .with(&[netlink::bytes(libc::RTA_DST, &bytes)]);
        match self.socket.request(&message) {
            Err(error) if matches!(error.errno(), Some(Errno::NETUNREACH | Errno::HOSTUNREACH)) => Ok(None),
            answer => answer,
        }
    }

    /// Every unicast route, IPv4 and then IPv6.
    ///
    /// # Errors
    /// When the kernel does not answer.
    pub fn routes(&mut self) -> Result<Vec<RouteEntry>, NetlinkError> {
        let (mut routes, mut nexthops) = (Vec::new(), None);
        for family in [AF_INET, AF_INET6] {
            let message = Message::new("list the routes", libc::RTM_GETROUTE, &header(family));
            // A kernel without IPv6 answers with the other family's routes, which are there already.
            let answers = self.socket.dump(&message)?;
            for answer in answers.iter().filter(|answer| answer.first() == Some(&family)) {
                let Some(mut route) = parse(answer) else { continue };
                // With net.ipv4.nexthop_compat_mode off the kernel names no ways but the object that has them.
                if let (true, Some(id)) = (route.ways.is_empty(), Attributes(&answer[12..]).u32(RTA_NH_ID)) {
                    let all = match &mut nexthops {
                        Some(all) => all,
                        none => none.insert(self.nexthops()?),
                    };
                    route.ways = ways(id, all);
                }
                routes.push(route);
            }
        }
        Ok(routes)
    }

    /// The objects that have the ways of several routes (`ip nexthop`).
    fn nexthops(&mut self) -> Result<Vec<Nexthop>, NetlinkError> {
        // struct nhmsg: family, scope, protocol, nothing, flags (4).
        let message = Message::new("list the next hops", RTM_GETNEXTHOP, &[0; 8]);
        Ok(self.socket.dump(&message)?.iter().filter_map(|answer| nexthop(answer)).collect())
    }

    /// Every way of every default route, in any table: with policy routing each may be used.
    ///
    /// # Errors
    /// When the kernel does not answer.
    pub fn default_gateways(&mut self) -> Result<Vec<Gateway>, NetlinkError> {
        let mut gateways = Vec::new();
        for way in self.routes()?.into_iter().filter(|r| r.destination.length == 0).flat_map(|r| r.ways) {
            if !gateways.contains(&way) {
                gateways.push(way);
            }
        }
        Ok(gateways)
    }
}

/// An object that routes go by: a way, or a group of such.
#[derive(Debug)]
struct Nexthop {
    id: u32,
    way: Option<Gateway>,
    members: Vec<u32>,
}

fn nexthop(answer: &[u8]) -> Option<Nexthop> {
    let attributes = Attributes(answer.get(8..)?);
    let address = attributes.bytes(NHA_GATEWAY).and_then(address);
    // struct nexthop_grp: id (4), weight and nothing.
    let (members, _) = attributes.bytes(NHA_GROUP).unwrap_or_default().as_chunks::<8>();
    Some(Nexthop {
        id: attributes.u32(NHA_ID)?,
        way: attributes.u32(NHA_OIF).map(|index| Gateway { index, address }),
        members: members.iter().filter_map(|member| number_at(member, 0)).collect(),
    })
}

/// The ways of an object. Groups are of ways, never of groups.
fn ways(id: u32, all: &[Nexthop]) -> Vec<Gateway> {
    let Some(object) = all.iter().find(|object| object.id == id) else { return Vec::new() };
    let members = object.members.iter().filter_map(|id| all.iter().find(|member| member.id == *id));
    object.way.into_iter().chain(members.filter_map(|member| member.way)).collect()
}

/// `struct rtmsg`.
fn header(family: u8) -> [u8; 12] {
    let mut header = [0; 12];
    header[0] = family;
    header
}

pub(super) fn parse(answer: &[u8]) -> Option<RouteEntry> {
    let attributes = Attributes(answer.get(12..)?);
    if answer[7] != libc::RTN_UNICAST {
        return None;
    }
    let any: IpAddr = if answer[0] == AF_INET { [0; 4].into() } else { [0; 16].into() };
    let destination = attributes.bytes(libc::RTA_DST).map_or(Some(any), address)?;
    let mut ways = Vec::new();
    if let Some(index) = attributes.u32(libc::RTA_OIF) {
        ways.push(Gateway { index, address: gateway(attributes) });
    }
    // struct rtnexthop: length (2), flags, hops, interface (4), attributes; padded to 4.
    let mut hops = attributes.bytes(libc::RTA_MULTIPATH).unwrap_or_default();
    while let (Some(&[low, high]), Some(index)) = (hops.first_chunk(), number_at(hops, 4)) {
        let length = usize::from(u16::from_ne_bytes([low, high]));
        let Some(inside) = hops.get(8..length) else { break };
        ways.push(Gateway { index, address: gateway(Attributes(inside)) });
        hops = hops.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
    Some(RouteEntry {
        destination: Prefix { address: destination, length: answer[1] },
        table: attributes.u32(libc::RTA_TABLE).unwrap_or(answer[4].into()),
        metric: attributes.u32(libc::RTA_PRIORITY).unwrap_or_default(),
        ways,
    })
}

/// The next router: of the route's own family, or of another one (`via inet6 fe80::1`), whose family's two bytes come
/// first.
fn gateway(attributes: Attributes<'_>) -> Option<IpAddr> {
    let other = || attributes.bytes(RTA_VIA)?.get(2..);
    address(attributes.bytes(libc::RTA_GATEWAY).or_else(other)?)
}

// linux/rtnetlink.h and linux/nexthop.h; libc has none of these.
const RTA_VIA: u16 = 18;
const RTA_NH_ID: u16 = 30;
const RTM_GETNEXTHOP: u16 = 106;
const NHA_ID: u16 = 1;
const NHA_GROUP: u16 = 2;
const NHA_OIF: u16 = 5;
const NHA_GATEWAY: u16 = 6;
const RTAX_CC_ALGO: u16 = 16;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn several_ways_of_one_route_are_found() {
        let mut hops = Vec::new();
        for (index, last) in [(3_u32, 1_u8), (4, 2)] {
            hops.extend([16, 0, 0, 0]);
            hops.extend(index.to_ne_bytes());
            hops.extend(netlink::emit(&[netlink::bytes(libc::RTA_GATEWAY, &[10, 0, 0, last])]));
        }
        let answer = |hops: &[u8]| {
            let mut bytes = header(AF_INET).to_vec();
            bytes[7] = libc::RTN_UNICAST;
            bytes.extend(netlink::emit(&[netlink::bytes(libc::RTA_MULTIPATH, hops)]));
            parse(&bytes).unwrap().ways
        };
        let way = |index, last| Gateway { index, address: Some([10, 0, 0, last].into()) };
        assert_eq!(answer(&hops), [way(3, 1), way(4, 2)]);
        assert_eq!(answer(&hops[..20]), [way(3, 1)], "cut in the second");
        assert_eq!(answer(&[0; 8]), [], "a length of 0 must not go round for ever");
    }

    #[test]
    fn a_gateway_of_another_family_is_found() {
        let router: std::net::Ipv6Addr = "fe80::1".parse().unwrap();
        let via = [&[10, 0][..], &router.octets()].concat();
        let bytes = netlink::emit(&[netlink::bytes(RTA_VIA, &via)]);
        assert_eq!(gateway(Attributes(&bytes)), Some(router.into()));
    }
}
