//! What can be asked of a running instance over its control socket, and what it answers: one JSON object per line.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use bywash_stack::{Address, NeighbourState, Origin, Prefix, PrefixError};
use serde::{Deserialize, Serialize};

use crate::scoped::ScopedAddress;
use crate::socket_info::SocketInfo;

/// What stands for an address where routers are to say which there are (RFC 4862).
pub const AUTO6: &str = "auto6";

/// A request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "request", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Request {
    /// All addresses: a list of [`AddressRow`].
    Addresses {
        /// Of this interface alone.
        #[serde(default)]
        interface: Option<String>,
    },
    /// Gives an interface an address.
    AddAddress {
        /// `10.0.0.1/24`, without a length one of all its bits; `auto6`: what the link's routers say, from now on.
        address: String,
        /// The interface; may be left out where there is one only.
        interface: Option<String>,
        /// It is used only if no other station has it, also where it is IPv4's: those of IPv6 always are.
        #[serde(default)]
        dad: bool,
        /// The interface may have it already.
        #[serde(default)]
        replace: bool,
    },
    /// Takes an address away.
    RemoveAddress {
        /// `10.0.0.1`; with a length, only if it has that one. `auto6`: what the link's routers have said, which are heard no more.
        address: String,
        /// The interface; any when it is left out.
        interface: Option<String>,
    },
    /// All routes: a list of [`RouteRow`].
    Routes {
        /// By this interface alone.
        #[serde(default)]
        interface: Option<String>,
    },
    /// Which way packets to an address go: a [`WayRow`].
    Way {
        /// The address; a link-local one with its interface, `fe80::1%eth1`, where there are several.
        address: String,
        /// By this interface alone.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        interface: Option<String>,
        /// From this address of ours.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        source: Option<String>,
    },
    /// Adds a route, of whose prefix and metric there must be none.
    AddRoute(RouteWords),
    /// The same, in place of the one there is.
    ReplaceRoute(RouteWords),
    /// The same, in place of the one that there must be.
    ChangeRoute(RouteWords),
    /// Takes the first route away that fits.
    RemoveRoute(RouteWords),
    /// All neighbours: a list of [`NeighbourRow`].
    Neighbours {
        /// On this link alone.
        #[serde(default)]
        interface: Option<String>,
    },
    /// Enters a neighbour by hand that is not known yet.
    AddNeighbour(NeighbourWords),
    /// The same, whatever is known of it.
    ReplaceNeighbour(NeighbourWords),
    /// The same, if something is known of it.
    ChangeNeighbour(NeighbourWords),
    /// Forgets a neighbour.
    RemoveNeighbour {
        /// Its address.
        address: String,
        /// The link it is on; any when it is left out.
        interface: Option<String>,
    },
    /// All sockets: a list of [`SocketRow`].
    Sockets(SocketDetails),
    /// How many sockets there are: a [`SocketSummary`].
    SocketSummary {},
    /// What was counted: [`Stats`].
    Stats {},
}

/// What is to be told of each socket beside what is always.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SocketDetails {
    /// [`SocketInfo`] of connections.
    pub info: bool,
    /// The timer that comes next.
    pub timer: bool,
    /// Its packet memory.
    pub memory: bool,
}

/// A route as it is typed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RouteWords {
    /// `10.0.0.0/8`, a host's address, or `default`, `default6`.
    pub prefix: String,
    /// The router. A link-local one may have the interface in it, `fe80::1%eth1`.
    pub gateway: Option<String>,
    /// The interface; found by the gateway when it is left out.
    pub interface: Option<String>,
    /// Among routes of the same prefix, the lowest is used; 0 when it is left out, and any where routes are taken away.
    pub metric: Option<u32>,
    /// Where it is from, as in [`RouteRow`]; any when it is left out. What is added is `static`.
    pub protocol: Option<String>,
    /// The address of ours that our own packets by it come from. A link-local one may have the interface in it. Any when it is
    /// left out where routes are taken away.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
}

/// What is meant by [`RouteWords`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RouteMeaning {
    /// The destinations.
    pub prefix: Prefix,
    /// The router to them.
    pub gateway: Option<IpAddr>,
    /// The interface, if one is named.
    pub interface: Option<String>,
    /// The address of ours that our own packets come from.
    pub source: Option<IpAddr>,
}

/// A neighbour as it is typed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NeighbourWords {
    /// Its address. A link-local one may have the interface in it, `fe80::1%eth1`.
    pub address: String,
    /// Its Ethernet address.
    pub mac: String,
    /// The link it is on; found by the address when it is left out.
    pub interface: Option<String>,
}

impl RouteWords {
    /// What they mean.
    ///
    /// # Errors
    /// What cannot be meant, in a sentence.
    pub fn meaning(&self) -> Result<RouteMeaning, String> {
        let router = self.gateway.as_deref().map(ScopedAddress::of).transpose()?;
        let from = self.source.as_deref().map(ScopedAddress::of).transpose()?;
        let mut interface = self.interface.as_deref();
        for scoped in [&router, &from].into_iter().flatten() {
            interface = scoped.interface(interface)?;
        }
        let (gateway, source) =
            (router.as_ref().map(ScopedAddress::ip), from.as_ref().map(ScopedAddress::ip));
        let text = match (self.prefix.as_str(), gateway.or(source)) {
            ("default", Some(IpAddr::V6(_))) | ("default6", _) => "::/0",
            ("default", _) => "0.0.0.0/0",
            (other, _) => other,
        };
        let prefix = prefix(text)?;
        if prefix.network() != prefix {
            return Err(format!("{text} has bits beyond its length: is it {}?", prefix.network()));
        }
        if gateway.is_some_and(|gateway| gateway.is_ipv4() != prefix.address().is_v4()) {
            return Err(format!("{} and its router are of different families", self.prefix));
        }
        if source.is_some_and(|source| source.is_ipv4() != prefix.address().is_v4()) {
            return Err(format!("{} and its source are of different families", self.prefix));
        }
        Ok(RouteMeaning { prefix, gateway, interface: interface.map(Into::into), source })
    }
}

/// Reads a prefix; an address alone is one of all its bits.
///
/// # Errors
/// What cannot be meant, in a sentence.
pub fn prefix(text: &str) -> Result<Prefix, String> {
    let whole = text.parse().ok().and_then(|ip: IpAddr| {
        let written_so = Address::from(ip).ip() == ip;
        Prefix::new(ip, if ip.is_ipv4() { 32 } else { 128 }).filter(|_| written_so)
    });
    whole.map_or_else(|| text.parse().map_err(|error: PrefixError| error.to_string()), Ok)
}

/// Where a route is from, in iproute2's words.
pub(crate) fn protocol(origin: Origin) -> &'static str {
    match origin {
        Origin::Address => "kernel",
        Origin::User => "static",
        Origin::Router(_) => "ra",
        Origin::Redirect(_) => "redirect",
    }
}

/// All that can be in [`RouteRow::protocol`].
pub fn protocols() -> [&'static str; 4] {
    [Origin::Address, Origin::User, Origin::Router(None), Origin::Redirect(Duration::ZERO)].map(protocol)
}

/// All that can be in [`NeighbourRow::state`].
pub const NEIGHBOUR_STATES: [(NeighbourState, &str); 7] = [
    (NeighbourState::Incomplete, "incomplete"),
    (NeighbourState::Reachable, "reachable"),
    (NeighbourState::Stale, "stale"),
    (NeighbourState::Delay, "delay"),
    (NeighbourState::Probe, "probe"),
    (NeighbourState::Failed, "failed"),
    (NeighbourState::Permanent, "permanent"),
];

/// An answer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Answer {
    /// What was asked for, or null where something was to be done and was.
    Ok(serde_json::Value),
    /// Why not, in one line. Nothing was changed.
    Error(String),
}

/// One of the instance's addresses.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AddressRow {
    /// The interface's name.
    pub interface: String,
    /// The address and the length of its prefix.
    pub address: String,
    /// `preferred`, `tentative`, `deprecated`, `duplicate`.
    pub state: String,
    /// The interface's Ethernet address.
    pub mac: Option<String>,
    /// Bytes of the largest IP packet.
    pub mtu: u16,
    /// The interface of its port is gone: nothing comes to the address any more.
    #[serde(default)]
    pub gone: bool,
    /// Packets by which other stations claimed it.
    pub claims: u64,
    /// The Ethernet address of the last that did.
    pub claimed_by: Option<String>,
    /// It was made of what a router has said.
    #[serde(default)]
    pub dynamic: bool,
    /// Seconds that it is still ours; for ever when none.
    #[serde(default)]
    pub valid_life_time: Option<u64>,
    /// Seconds that new conversations may use it; for ever when none.
    #[serde(default)]
    pub preferred_life_time: Option<u64>,
}

/// One route.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RouteRow {
    /// Which destinations it is for: a prefix, or `default`.
    pub prefix: String,
    /// `inet` or `inet6`.
    #[serde(default)]
    pub family: String,
    /// The router; none when they are on the link.
    pub gateway: Option<String>,
    /// The interface's name.
    pub interface: String,
    /// Among routes of the same prefix, the lowest is used.
    pub metric: u32,
    /// Where it is from, in iproute2's words: `kernel`, the prefix of an address; `static`, given by hand; `ra`, a router;
    /// `redirect`, a router's redirect.
    #[serde(default)]
    pub protocol: String,
    /// The address of ours that our own packets by it come from, where it names one.
    #[serde(default)]
    pub prefsrc: Option<String>,
    /// Seconds that it lasts, if it does not for ever.
    #[serde(default)]
    pub expires: Option<u64>,
}

/// Which way packets to an address go.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WayRow {
    /// Whom the packets are for: `unicast`, one host; `local`, us; `multicast`, a group; `broadcast`, everyone on the link.
    #[serde(rename = "type", default)]
    pub kind: String,
    /// The address.
    pub destination: String,
    /// The router; none when it is on the link.
    pub gateway: Option<String>,
    /// The interface's name; `lo` when it is ours.
    pub interface: String,
    /// Which address of ours they come from.
    pub source: Option<String>,
}

/// One neighbour.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NeighbourRow {
    /// Its address.
    pub address: String,
    /// The interface's name.
    pub interface: String,
    /// Its Ethernet address, once it is known.
    pub mac: Option<String>,
    /// RFC 4861's name, of [`NEIGHBOUR_STATES`].
    pub state: String,
}

/// One socket.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SocketRow {
    /// `tcp` or `udp`.
    pub protocol: String,
    /// The state of RFC 9293, as `ss` writes it: `LISTEN`, `ESTAB`.
    pub state: String,
    /// Bytes that the program has not read; of a listener, handshakes under way, on all engines.
    pub receive_queue: usize,
    /// Bytes that the peer has not acknowledged; of a listener, handshakes that there may be.
    pub send_queue: usize,
    /// Our end.
    pub local: String,
    /// The other end; `*` when there is none.
    pub remote: String,
    /// Its engine's number; none for a listener, which all engines have.
    pub engine: Option<usize>,
    /// More of a connection, where it was asked for.
    #[serde(default)]
    pub info: Option<SocketInfo>,
    /// The timer that comes next, where it was asked for and one is set.
    #[serde(default)]
    pub timer: Option<TimerRow>,
    /// Its packet memory, where it was asked for and the socket has any.
    #[serde(default)]
    pub memory: Option<MemoryRow>,
}

/// A timer of a socket.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TimerRow {
    /// In the words of `ss`: `on`, of something that was sent; `persist`, `keepalive`, `timewait`.
    pub name: String,
    /// Microseconds until it goes off.
    pub expires_us: u64,
    /// How often it has gone off without an answer.
    pub retrans: u8,
}

/// Packet memory of a socket: bytes of frames, and how many there may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "each is one of the two, of one direction, as Linux calls it")]
pub struct MemoryRow {
    pub rmem: usize,
    pub rcvbuf: usize,
    pub wmem: usize,
    pub sndbuf: usize,
}

/// How many sockets there are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SocketSummary {
    /// Connections that are established.
    pub established: usize,
    /// Listeners.
    pub listening: usize,
    /// Handshakes of peers under way.
    pub syn_received: usize,
    /// Connections that no program has any more.
    pub orphaned: usize,
    /// Entries in TIME-WAIT.
    pub time_wait: usize,
    /// All of TCP.
    pub tcp: Families,
    /// All of UDP.
    pub udp: Families,
}

/// Sockets of a protocol.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Families {
    /// All of them.
    pub total: usize,
    /// Those for IPv4; who is tied to no address is for both.
    pub ipv4: usize,
    /// Those for IPv6.
    pub ipv6: usize,
}

/// What an instance has counted, a map of names and numbers for each part.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stats {
    /// The control: ICMP, ARP and neighbour discovery, for all engines.
    pub control: BTreeMap<String, u64>,
    /// Each engine's stack.
    pub engines: Vec<BTreeMap<String, u64>>,
    /// Each port: its queues, all engines together, and what it counts beside them.
    pub ports: BTreeMap<String, BTreeMap<String, u64>>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn default_is_of_its_routers_family() {
        let meaning = |prefix: &str, gateway: Option<&str>| {
            let words = RouteWords {
                prefix: prefix.into(),
                gateway: gateway.map(Into::into),
                ..RouteWords::default()
            };
            words.meaning().map(|meaning| meaning.prefix.to_string())
        };
        for (prefix, gateway, expected) in [
            ("default", None, "0.0.0.0/0"),
            ("default", Some("10.0.0.1"), "0.0.0.0/0"),
            ("default", Some("fe80::1%eth1"), "::/0"),
            ("default6", None, "::/0"),
            ("10.0.0.0/8", Some("10.0.0.1"), "10.0.0.0/8"),
            ("10.7.0.1", None, "10.7.0.1/32"),
            ("fd00::7", None, "fd00::7/128"),
        ] {
            assert_eq!(meaning(prefix, gateway).as_deref(), Ok(expected), "{prefix} {gateway:?}");
        }
        for (prefix, gateway, says) in [
            ("default6", Some("10.0.0.1"), "different families"),
            ("10.0.0.0/8", Some("fd00::1"), "different families"),
            ("10.0.0.0/8", Some("eth1"), "'eth1' is no address"),
            ("10.0.0.0/", None, "prefix length"),
            ("10.9.1.1/16", None, "is it 10.9.0.0/16?"),
            ("fd00::1/64", None, "is it fd00::/64?"),
        ] {
            let error = meaning(prefix, gateway).unwrap_err();
            assert!(error.contains(says), "{error}");
        }
    }

    #[test]
    fn a_source_is_of_its_routes_family_and_link() {
        let meaning = |prefix: &str, gateway: Option<&str>, interface: Option<&str>, source: &str| {
            let (gateway, interface) = (gateway.map(Into::into), interface.map(Into::into));
            let source = Some(source.into());
            let words =
                RouteWords { prefix: prefix.into(), gateway, interface, source, ..RouteWords::default() };
            words.meaning().map(|meant| (meant.prefix.to_string(), meant.interface))
        };
        let on = |name: &str| Some(name.to_owned());
        assert_eq!(meaning("default", None, None, "10.0.0.1"), Ok(("0.0.0.0/0".into(), None)));
        assert_eq!(meaning("default", None, None, "fd00::1"), Ok(("::/0".into(), None)), "of its family");
        assert_eq!(meaning("fd00::/8", None, None, "fe80::1%eth1"), Ok(("fd00::/8".into(), on("eth1"))));
        for (prefix, gateway, interface, source, says) in [
            ("10.0.0.0/8", None, None, "fd00::1", "and its source are of different families"),
            ("default6", None, None, "10.0.0.1", "and its source are of different families"),
            ("default", Some("10.0.0.1"), None, "fd00::1", "and its source are of different families"),
            ("default", Some("fe80::9%eth1"), None, "fe80::1%eth2", "on which of the two links"),
            ("default6", None, Some("eth1"), "fe80::1%eth2", "on which of the two links"),
            ("default", None, None, "eth1", "'eth1' is no address"),
        ] {
            let error = meaning(prefix, gateway, interface, source).unwrap_err();
            assert!(error.contains(says), "{error}");
        }
    }
}
