//! Addresses as they are typed: those that mean another host on each link with the interface of theirs, `fe80::1%eth1` (RFC 4007,
//! 11).

use std::fmt;
use std::net::{IpAddr, SocketAddr, SocketAddrV6};

use bywash_stack::{Address, ControlError, Prefix};

use crate::request;

/// The same, where what no host has, or we have not, is told as it was typed: the number of a link says nothing there.
#[must_use]
pub fn as_typed(error: ControlError) -> ControlError {
    match error {
        ControlError::NoHost(address) => ControlError::NoHost(address.ip().into()),
        ControlError::Source(address) => ControlError::Source(address.ip().into()),
        error => error,
    }
}

/// An address, and the interface whose link it is on, where that was said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScopedAddress {
    ip: IpAddr,
    zone: Option<String>,
}

impl ScopedAddress {
    /// Reads `10.0.0.1`, `fd00::1`, `fe80::1`, `fe80::1%eth1`.
    ///
    /// # Errors
    /// What cannot be meant, in a sentence.
    pub fn of(text: &str) -> Result<Self, String> {
        let (address, zone) = text.split_once('%').map_or((text, None), |(ip, zone)| (ip, Some(zone)));
        let ip: IpAddr =
            address.parse().map_err(|_| format!("'{text}' is no address: write 10.0.0.1 or fd00::1, say"))?;
        // `fe80:2::1` would be taken for `fe80::1` (RFC 4291, 2.5.6). An IPv4 address in IPv6's form means the same host.
        if Address::from(ip).has_zone() && Address::from(ip).ip() != ip {
            return Err(format!("{ip} has bits that are zero in all link-local addresses"));
        }
        match zone {
            Some(zone) if zone.is_empty() || zone.contains(['[', ']']) => {
                Err(format!("'{text}': an interface must follow the %"))
            }
            Some(zone) if !Address::from(ip).has_zone() => {
                Err(format!("{ip} is the same host on every link: leave %{zone} out"))
            }
            zone => Ok(Self { ip, zone: zone.map(Into::into) }),
        }
    }

    /// The address alone.
    pub fn ip(&self) -> IpAddr {
        self.ip
    }

    /// The interface that was named with it.
    pub fn zone(&self) -> Option<&str> {
        self.zone.as_deref()
    }

    /// The interface that was named with it, or beside it (`dev eth1`).
    ///
    /// # Errors
    /// They are two, in a sentence.
    pub fn interface<'a>(&'a self, dev: Option<&'a str>) -> Result<Option<&'a str>, String> {
        same(self.zone(), dev)
    }
}

impl fmt::Display for ScopedAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.ip.fmt(f)?;
        self.zone.as_ref().map_or(Ok(()), |zone| write!(f, "%{zone}"))
    }
}

/// A prefix, and the interface whose link it is on, where that was said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScopedPrefix {
    /// The prefix.
    pub prefix: Prefix,
    zone: Option<String>,
}

impl ScopedPrefix {
    /// Reads `10.0.0.0/8`, `fe80::%eth1/64` (RFC 4007, 11.7); an address alone is a prefix of all its bits.
    ///
    /// # Errors
    /// What cannot be meant, in a sentence.
    pub fn of(text: &str) -> Result<Self, String> {
        if !text.contains('%') {
            return Ok(Self { prefix: request::prefix(text)?, zone: None });
        }
        let (address, length) = text.split_once('/').map_or((text, None), |(ip, length)| (ip, Some(length)));
        let ScopedAddress { ip, zone } = ScopedAddress::of(address)?;
        let plain = length.map_or_else(|| ip.to_string(), |length| format!("{ip}/{length}"));
        Ok(Self { prefix: request::prefix(&plain)?, zone })
    }

    /// As [`ScopedAddress::interface`].
    ///
    /// # Errors
    /// They are two, in a sentence.
    pub fn interface<'a>(&'a self, dev: Option<&'a str>) -> Result<Option<&'a str>, String> {
        same(self.zone.as_deref(), dev)
    }

    /// Whether it holds an address. A prefix without an interface holds those of all links.
    pub fn contains(&self, address: &ScopedAddress) -> bool {
        self.prefix.contains(address.ip.into()) && (self.zone.is_none() || self.zone == address.zone)
    }
}

fn same<'a>(zone: Option<&'a str>, dev: Option<&'a str>) -> Result<Option<&'a str>, String> {
    match (zone, dev) {
        (Some(zone), Some(dev)) if zone != dev => Err(format!("on which of the two links, {zone} or {dev}?")),
        _ => Ok(zone.or(dev)),
    }
}

/// An address and a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScopedEnd {
    address: ScopedAddress,
    port: u16,
}

impl ScopedEnd {
    /// Reads `10.0.0.1:80`, `[fd00::1]:80`, `[fe80::1%eth1]:80`, and the last with `%25`, as it stands in URLs (RFC 6874).
    ///
    /// # Errors
    /// What cannot be meant, in a sentence.
    pub fn of(text: &str) -> Result<Self, String> {
        if text.contains("://") {
            return Err(
                "it is a URL: write an address and a port alone, 10.0.0.2:80, say; a path follows --path"
                    .into(),
            );
        }
        if let Ok(address) = ScopedAddress::of(text.trim_matches(['[', ']'])) {
            return Err(format!("a port must follow: {}, say", Self { address, port: 80 }));
        }
        let named =
            || "names are not looked up: write an address and a port, 10.0.0.2:80 or [fd00::2]:80, say";
        let parts = match text.strip_prefix('[') {
            Some(rest) => rest.split_once("]:"),
            // Without brackets the last group of IPv6 would be taken for a port.
            None => text.split_once(':'),
        };
        let (address, port) = parts.ok_or_else(named)?;
        let in_url = address.split_once("%25").filter(|(_, zone)| !zone.is_empty());
        let address = in_url.map_or_else(|| address.to_owned(), |(ip, zone)| format!("{ip}%{zone}"));
        let address = ScopedAddress::of(&address)
            .map_err(|why| if address.contains('%') { why } else { named().into() })?;
        match port.parse() {
            Ok(port) if port > 0 => Ok(Self { address, port }),
            _ => Err(format!("'{port}' is no port: write one from 1 to 65535")),
        }
    }

    /// The address and the port, as they are known beyond the link.
    pub fn without_link(&self) -> SocketAddr {
        SocketAddr::new(self.address.ip, self.port)
    }

    /// The same with the number of its interface, of which `links` has those there are, as scope id: where there is one only, it
    /// need not be named. Who has named a number means that one.
    ///
    /// # Errors
    /// There is no such interface, or several may be meant; in a sentence.
    pub fn resolve(&self, links: &[(String, u32)]) -> Result<SocketAddr, String> {
        let Self { address: ScopedAddress { ip, zone }, port } = self;
        let v6 = match ip {
            IpAddr::V6(v6) if Address::from(*ip).has_zone() => *v6,
            _ => return Ok(SocketAddr::new(*ip, *port)),
        };
        let names = || links.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>().join(", ");
        let (_, number) = match (zone, links) {
            (Some(zone), _) => {
                let named = links.iter().find(|(name, _)| name == zone);
                named
                    .or_else(|| links.iter().find(|(_, number)| number.to_string() == *zone))
                    .ok_or_else(|| format!("there is no interface '{zone}', but {}", names()))?
            }
            (None, [only]) => only,
            (None, _) => {
                return Err(format!("it may be on each of {}: write [{ip}%eth1]:{port}, say", names()));
            }
        };
        Ok(SocketAddrV6::new(v6, *port, 0, *number).into())
    }
}

impl fmt::Display for ScopedEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { address, port } = self;
        if address.ip.is_ipv6() { write!(f, "[{address}]:{port}") } else { write!(f, "{address}:{port}") }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_are_read_with_and_without_their_link() {
        let links = [("eth1".to_owned(), 1), ("25".to_owned(), 7), ("eth2".to_owned(), 2)];
        for (text, shown, number) in [
            ("10.0.0.1:80", "10.0.0.1:80", None),
            ("[fd00::1]:80", "[fd00::1]:80", None),
            ("[fe80::1%eth2]:80", "[fe80::1%eth2]:80", Some(2)),
            ("[fe80::1%25eth2]:80", "[fe80::1%eth2]:80", Some(2)),
            ("[fe80::1%25]:80", "[fe80::1%25]:80", Some(7)),
            ("[fe80::1%1]:80", "[fe80::1%1]:80", Some(1)),
        ] {
            let end = ScopedEnd::of(text).unwrap();
            let scope = match end.resolve(&links).unwrap() {
                SocketAddr::V6(v6) => Some(v6.scope_id()).filter(|id| *id > 0),
                SocketAddr::V4(_) => None,
            };
            assert_eq!((end.to_string().as_str(), scope), (shown, number), "{text}");
        }
        for (text, says) in [
            ("10.0.0.2", "a port must follow: 10.0.0.2:80, say"),
            ("fd00::2", "a port must follow: [fd00::2]:80, say"),
            ("fe80::1%eth1", "a port must follow: [fe80::1%eth1]:80, say"),
            ("[fe80::1]", "a port must follow"),
            ("[fe80::1%]:80", "an interface must follow"),
            ("[fe80::1%[eth1]:80", "an interface must follow"),
            ("[fd00::1%eth1]:80", "leave %eth1 out"),
            ("10.0.0.1%eth1:80", "leave %eth1 out"),
            ("http://10.0.0.2:80/", "it is a URL"),
            ("10.0.0.2:0", "'0' is no port"),
            ("10.0.0.2:65536", "'65536' is no port"),
            ("[fd00::2]:http", "'http' is no port"),
            ("example.com:80", "names are not looked up"),
            ("localhost", "names are not looked up"),
            ("[fe80:2::1%eth1]:80", "bits that are zero in all link-local addresses"),
            ("", "names are not looked up"),
        ] {
            let why = ScopedEnd::of(text).unwrap_err();
            assert!(why.contains(says), "{text}: {why}");
        }
        let plain = ScopedEnd::of("[fe80::1]:80").unwrap();
        assert_eq!(plain.resolve(&links[..1]).unwrap().to_string(), "[fe80::1%1]:80", "the only one");
        assert!(plain.resolve(&links).unwrap_err().contains("each of eth1, 25, eth2"));
        let elsewhere = ScopedEnd::of("[fe80::1%eth9]:80").unwrap().resolve(&links).unwrap_err();
        assert!(elsewhere.contains("no interface 'eth9', but eth1, 25, eth2"), "{elsewhere}");
    }

    #[test]
    fn a_prefix_without_a_link_holds_the_addresses_of_all() {
        let holds = |prefix: &str, address: &str| {
            ScopedPrefix::of(prefix).unwrap().contains(&ScopedAddress::of(address).unwrap())
        };
        assert!(holds("fe80::/64", "fe80::1%eth1") && holds("fe80::1", "fe80::1%eth1"));
        assert!(holds("fe80::%eth1/64", "fe80::1%eth1") && holds("fe80::1%eth1", "fe80::1%eth1"));
        assert!(!holds("fe80::%eth1/64", "fe80::1%eth2") && !holds("fe80::1%eth1", "fe80::2%eth1"));
        assert!(ScopedPrefix::of("10.0.0.0%eth1/8").is_err());
        let on =
            |text: &str, dev| ScopedAddress::of(text).unwrap().interface(dev).map(|on| on.map(String::from));
        assert_eq!(on("fe80::1%eth1", None), Ok(Some("eth1".into())));
        assert_eq!(on("fe80::1", Some("eth1")), Ok(Some("eth1".into())));
        assert!(on("fe80::1%eth1", Some("eth2")).unwrap_err().contains("eth1 or eth2"));
    }
}
