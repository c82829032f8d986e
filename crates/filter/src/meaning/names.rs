//! Names in place of numbers: hosts, services, protocols, networks.

use std::net::{IpAddr, Ipv4Addr, ToSocketAddrs};

use bywash_wire::{Mac, Protocol};

use super::Wrong;
use super::port::Ports;
use crate::language::nearest;

/// Where names in expressions are looked up. [`SystemNames`] asks the system, [`NoNames`] knows none.
pub trait Names {
    /// The addresses of a host.
    fn host(&self, name: &str) -> Vec<IpAddr>;

    /// The ports of a service, each with the protocol it is for.
    fn service(&self, name: &str) -> Vec<(u16, Protocol)>;

    /// The number of a protocol above IP.
    fn protocol(&self, name: &str) -> Option<Protocol>;

    /// The number of a network, as `/etc/networks` has it, and how many bits of it count.
    fn network(&self, name: &str) -> Option<(Ipv4Addr, u32)>;

    /// The Ethernet address of a host.
    fn ether(&self, name: &str) -> Option<Mac>;

    /// The names of services, of which the one that is nearest to an unknown name is suggested.
    fn services(&self) -> Vec<String> {
        Vec::new()
    }

    /// The names of protocols above IP, for the same purpose.
    fn protocols(&self) -> Vec<String> {
        Vec::new()
    }
}

/// Names as the system knows them: hosts by its resolver, the others by `/etc/services`, `/etc/protocols`,
/// `/etc/networks` and `/etc/ethers`. Where a machine has no such file, the best-known services and protocols are known
/// nevertheless.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemNames;

/// No names but the best-known services and protocols: nothing outside the process is asked.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoNames;

impl Names for SystemNames {
    fn host(&self, name: &str) -> Vec<IpAddr> {
        let mut addresses: Vec<IpAddr> = Vec::new();
        for address in (name, 0).to_socket_addrs().into_iter().flatten() {
            if !addresses.contains(&address.ip()) {
                addresses.push(address.ip());
            }
        }
        addresses
    }

    fn service(&self, name: &str) -> Vec<(u16, Protocol)> {
        let found: Vec<_> = table("/etc/services")
            .into_iter()
            .filter(|entry| entry.names().any(|known| known == name))
            .filter_map(|entry| {
                let (port, protocol) = entry.value().split_once('/')?;
                Some((port.parse().ok()?, with_ports(protocol)?))
            })
            .collect();
        if found.is_empty() { NoNames.service(name) } else { found }
    }

    fn protocol(&self, name: &str) -> Option<Protocol> {
        let entries = table("/etc/protocols");
        let entry = entries.iter().find(|entry| entry.names().any(|known| known == name));
        entry.and_then(|entry| entry.value().parse().ok()).map(Protocol).or_else(|| NoNames.protocol(name))
    }

    fn network(&self, name: &str) -> Option<(Ipv4Addr, u32)> {
        let entries = table("/etc/networks");
        let entry = entries.iter().find(|entry| entry.names().any(|known| known == name))?;
        network_number(entry.value())
    }

    fn ether(&self, name: &str) -> Option<Mac> {
        table("/etc/ethers").iter().find(|entry| entry.value() == name)?.first().parse().ok()
    }

    fn services(&self) -> Vec<String> {
        // The best-known ones first: of two that are as near the first one is suggested.
        [NoNames.services(), names_in("/etc/services")].concat()
    }

    fn protocols(&self) -> Vec<String> {
        [NoNames.protocols(), names_in("/etc/protocols")].concat()
    }
}

impl Names for NoNames {
    fn host(&self, _: &str) -> Vec<IpAddr> {
        Vec::new()
    }

    fn service(&self, name: &str) -> Vec<(u16, Protocol)> {
        let known = SERVICES.iter().filter(|(service, ..)| *service == name);
        known.flat_map(|(_, port, protocols)| protocols.iter().map(|protocol| (*port, *protocol))).collect()
    }

    fn protocol(&self, name: &str) -> Option<Protocol> {
        PROTOCOLS.iter().find(|(known, _)| *known == name).map(|(_, protocol)| *protocol)
    }

    fn network(&self, name: &str) -> Option<(Ipv4Addr, u32)> {
        (name == "loopback").then_some((Ipv4Addr::new(127, 0, 0, 0), 8))
    }

    fn ether(&self, _: &str) -> Option<Mac> {
        None
    }

    fn services(&self) -> Vec<String> {
        SERVICES.iter().map(|(name, ..)| (*name).to_string()).collect()
    }

    fn protocols(&self) -> Vec<String> {
        PROTOCOLS.iter().map(|(name, _)| (*name).to_string()).collect()
    }
}

const TCP: &[Protocol] = &[Protocol::TCP];
const UDP: &[Protocol] = &[Protocol::UDP];
const BOTH: &[Protocol] = &[Protocol::TCP, Protocol::UDP];

/// The services that are asked for most, by IANA's names.
const SERVICES: &[(&str, u16, &[Protocol])] = &[
    ("ftp", 21, TCP),
    ("ssh", 22, TCP),
    ("telnet", 23, TCP),
    ("smtp", 25, TCP),
    ("domain", 53, BOTH),
    ("bootps", 67, UDP),
    ("bootpc", 68, UDP),
    ("tftp", 69, UDP),
    ("http", 80, TCP),
    ("pop3", 110, TCP),
    ("ntp", 123, UDP),
    ("imap2", 143, TCP),
    ("snmp", 161, BOTH),
    ("bgp", 179, TCP),
    ("ldap", 389, BOTH),
    ("https", 443, BOTH),
    ("isakmp", 500, UDP),
    ("syslog", 514, UDP),
    ("mysql", 3306, TCP),
    ("postgresql", 5432, TCP),
];

/// The protocols that are asked for most, by the names of `/etc/protocols`.
const PROTOCOLS: &[(&str, Protocol)] = &[
    ("icmp", Protocol::ICMP),
    ("igmp", Protocol::IGMP),
    ("ipencap", Protocol::IPV4),
    ("tcp", Protocol::TCP),
    ("igp", Protocol::IGRP),
    ("udp", Protocol::UDP),
    ("ipv6", Protocol::IPV6),
    ("ipv6-route", Protocol::ROUTING),
    ("ipv6-frag", Protocol::FRAGMENT),
    ("gre", Protocol::GRE),
    ("esp", Protocol::ESP),
    ("ah", Protocol::AH),
    ("ipv6-icmp", Protocol::ICMPV6),
    ("ipv6-nonxt", Protocol::NO_NEXT_HEADER),
    ("ipv6-opts", Protocol::DESTINATION_OPTIONS),
    ("ospf", Protocol::OSPF),
    ("pim", Protocol::PIM),
    ("vrrp", Protocol::VRRP),
    ("sctp", Protocol::SCTP),
];

/// EtherTypes that `ether proto` knows by name.
pub(super) const ETHER_TYPES: &[(&str, u16)] = &[
    ("aarp", 0x80f3),
    ("arp", 0x0806),
    ("atalk", 0x809b),
    ("decnet", 0x6003),
    ("ip", 0x0800),
    ("ip6", 0x86dd),
    ("lat", 0x6004),
    ("loopback", 0x9000),
    ("mopdl", 0x6001),
    ("moprc", 0x6002),
    ("rarp", 0x8035),
    ("sca", 0x6007),
    // These stand in an LLC header.
    ("iso", 0xfe),
    ("stp", 0x42),
    ("ipx", 0xe0),
    ("netbeui", 0xf0),
];

/// The ports of a service by name, or of a range such as `1024-2047` or `ftp-smtp`, and the protocol a name is for.
pub(super) fn ports_of(
    names: &dyn Names,
    name: &str,
    range: bool,
) -> Result<(Ports, Option<Protocol>), Wrong> {
    if let (true, Some((from_text, to))) = (range, name.split_once('-')) {
        let (from, from_for) = port(names, from_text)?;
        let (to, to_for) = port(names, to).map_err(|wrong| wrong.further(from_text.len() + 1))?;
        let named_for = if from_for == to_for { from_for } else { None };
        return Ok((Ports { least: from.min(to), greatest: from.max(to) }, named_for));
    }
    let (port, named_for) = port(names, name)?;
    Ok((Ports { least: port, greatest: port }, named_for))
}

fn port(names: &dyn Names, name: &str) -> Result<(u16, Option<Protocol>), Wrong> {
    if let Ok(number) = name.parse::<u32>() {
        let port = u16::try_from(number)
            .map_err(|_| Wrong::new(format!("{number} is no port: 65535 is the greatest")))?;
        return Ok((port, None));
    }
    let known = names.service(name);
    let Some(&(first, protocol)) = known.first() else {
        let wrong = Wrong::new(format!("no service is called '{name}'"));
        return Err(match nearest(name, names.services().iter().map(String::as_str)) {
            Some(name) => wrong.cure(format!("did you mean '{name}'?")),
            None if name.contains('-') => wrong.cure("write 'portrange' for a range"),
            None => wrong.cure("a port's number can be written too"),
        });
    };
    let several = known.iter().any(|(port, other)| *port == first && *other != protocol);
    Ok((first, if several { None } else { Some(protocol) }))
}

fn with_ports(name: &str) -> Option<Protocol> {
    match name {
        "tcp" => Some(Protocol::TCP),
        "udp" => Some(Protocol::UDP),
        "sctp" => Some(Protocol::SCTP),
        _ => None,
    }
}

/// A network's number of one to four parts, and how many bits they are.
fn network_number(text: &str) -> Option<(Ipv4Addr, u32)> {
    let mut parts: Vec<u8> = text.split('.').map(|part| part.parse().ok()).collect::<Option<_>>()?;
    while parts.last() == Some(&0) {
        parts.pop();
    }
    let bits = u32::try_from(parts.len()).ok()? * 8;
    parts.resize(4, 0);
    let [a, b, c, d] = parts[..].try_into().ok()?;
    Some((Ipv4Addr::new(a, b, c, d), bits))
}

/// One line of a table in `/etc`.
struct Entry(Vec<String>);

impl Entry {
    fn first(&self) -> &str {
        self.0.first().map_or("", String::as_str)
    }

    /// The second column.
    fn value(&self) -> &str {
        self.0.get(1).map_or("", String::as_str)
    }

    /// The first column and, from the third on, its aliases.
    fn names(&self) -> impl Iterator<Item = &str> {
        self.0.iter().enumerate().filter(|(column, _)| *column != 1).map(|(_, name)| name.as_str())
    }
}

/// All names in a table, aliases too.
fn names_in(path: &str) -> Vec<String> {
    table(path).iter().flat_map(Entry::names).map(String::from).collect()
}

/// The lines of a table; none when it can't be read.
fn table(path: &str) -> Vec<Entry> {
    let text = std::fs::read(path).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let lines = text.lines().map(|line| line.split('#').next().unwrap_or_default());
    lines
        .map(|line| Entry(line.split_whitespace().map(String::from).collect()))
        .filter(|entry| entry.0.len() > 1)
        .collect()
}
