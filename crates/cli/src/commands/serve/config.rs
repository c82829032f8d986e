//! What an instance is to be, from flags or from a TOML file: its ports, addresses, routes and settings of TCP.

use std::ops::Range;
use std::path::Path;

use bywash_engine::request::{AUTO6, RouteWords};
use bywash_engine::stack::{
    Address, Control, ControlError, InterfaceId, Prefix, PrefixError, Route, Timestamp,
};
use bywash_port::PortName;
use serde::Deserialize;
use toml::Spanned;

use super::settings::Settings;
use crate::failure::Failure;

/// The file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    name: Option<String>,
    #[serde(default)]
    forward: bool,
    accept_redirects: Option<bool>,
    #[serde(default)]
    port: Vec<FilePort>,
    #[serde(default)]
    route: Vec<Spanned<FileRoute>>,
    tcp: Option<Spanned<Settings>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct FilePort {
    port: Spanned<String>,
    /// The interface has the packets of this VLAN alone.
    vlan: Option<Spanned<i64>>,
    #[serde(default)]
    addresses: Vec<Spanned<String>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct FileRoute {
    prefix: String,
    via: Option<String>,
    dev: Option<String>,
    metric: Option<u32>,
}

/// What flags say of an instance.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Flags<'a> {
    pub(crate) ports: &'a [PortName],
    pub(crate) vlans: &'a [String],
    pub(crate) addresses: &'a [String],
    pub(crate) routes: &'a [String],
}

/// What an instance is to be.
#[derive(Clone, Debug, Default)]
pub(crate) struct Config {
    pub(crate) name: Option<String>,
    pub(crate) forward: bool,
    /// Redirects of routers are not taken.
    pub(crate) no_redirects: bool,
    pub(crate) ports: Vec<PortName>,
    /// A port's number, and a VLAN of it; without, the interface has the untagged packets.
    pub(crate) interfaces: Vec<(usize, Option<u16>)>,
    pub(crate) addresses: Vec<WantedAddress>,
    routes: Vec<WantedRoute>,
    pub(crate) tcp: Settings,
}

/// An address, before interfaces have numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WantedAddress {
    /// The number of the interface.
    interface: usize,
    pub(crate) what: What,
}

/// Which address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum What {
    /// This one.
    Given {
        prefix: Prefix,
        /// Only if nobody else has it.
        dad: bool,
    },
    /// Those of IPv6 that routers say.
    Auto6,
}

impl std::fmt::Display for What {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Given { prefix, .. } => prefix.fmt(f),
            Self::Auto6 => f.write_str(AUTO6),
        }
    }
}

impl WantedAddress {
    /// `10.0.0.2/24`, `10.0.0.2/24 dad`, or `auto6`.
    fn of(interface: usize, text: &str) -> Result<Self, String> {
        if text.trim() == AUTO6 {
            return Ok(Self { interface, what: What::Auto6 });
        }
        let mut words = text.split_whitespace();
        let prefix = words.next().unwrap_or(text).parse().map_err(|error: PrefixError| error.to_string())?;
        let dad = match (words.next(), words.next()) {
            (None, _) => false,
            (Some("dad"), None) => true,
            (Some("dad"), Some(word)) | (Some(word), _) => {
                return Err(format!("'{word}' is not known: only dad may follow the address"));
            }
        };
        Ok(Self { interface, what: What::Given { prefix, dad } })
    }
}

/// A route, before interfaces have numbers.
#[derive(Clone, Debug)]
struct WantedRoute {
    prefix: Prefix,
    gateway: Option<Address>,
    /// The number of the interface.
    interface: usize,
    metric: u32,
}

/// Reads a file.
///
/// # Errors
/// In one line what is wrong in which line and column.
pub(crate) fn read(path: &Path) -> Result<Config, Failure> {
    let shown = path.display();
    let text = std::fs::read_to_string(path)
        .map_err(|error| Failure::Usage(format!("--config {shown}: {error}")))?;
    parse(&text).map_err(|(at, what)| {
        let (line, column) = place(&text, at);
        Failure::Usage(format!("{shown}:{line}:{column}: {what}"))
    })
}

/// Line and column of a byte, from 1.
fn place(text: &str, at: usize) -> (usize, usize) {
    let before = text.get(..at).unwrap_or(text);
    let start = before.rfind('\n').map_or(0, |newline| newline + 1);
    (before.matches('\n').count() + 1, before[start..].chars().count() + 1)
}

/// What is wrong, and where it begins.
type Mistake = (usize, String);

fn parse(text: &str) -> Result<Config, Mistake> {
    let file: File = toml::from_str(text).map_err(|error: toml::de::Error| {
        let start = error.span().unwrap_or_default().start;
        (start, error.message().lines().collect::<Vec<_>>().join("; "))
    })?;
    let at = |span: Range<usize>| move |what: String| (span.start, what);
    let no_redirects = file.accept_redirects == Some(false);
    let mut config = Config { name: file.name, forward: file.forward, no_redirects, ..Config::default() };
    for (number, port) in file.port.iter().enumerate() {
        let name = port.port.get_ref().parse::<PortName>().map_err(|error| error.to_string());
        let name = name.map_err(at(port.port.span()))?;
        let vlan = port.vlan.as_ref().map(|vlan| vlan_of(*vlan.get_ref()).map_err(at(vlan.span())));
        config.add(&name, vlan.transpose()?).map_err(at(port.port.span()))?;
        for address in &port.addresses {
            let wanted = WantedAddress::of(number, address.get_ref());
            config.addresses.push(wanted.map_err(at(address.span()))?);
        }
    }
    for route in &file.route {
        let FileRoute { prefix, via, dev, metric } = route.get_ref();
        let made = config.route(prefix, via.as_deref(), dev.as_deref(), metric.unwrap_or(0));
        let made = made.map_err(at(route.span()))?;
        config.routes.push(made);
    }
    if let Some(tcp) = file.tcp {
        tcp.get_ref().limits().map_err(at(tcp.span()))?;
        config.tcp = tcp.into_inner();
    }
    Ok(config)
}

impl Config {
    /// From flags.
    ///
    /// # Errors
    /// What makes no sense, in one line.
    pub(crate) fn of(flags: &Flags<'_>) -> Result<Self, Failure> {
        let Flags { ports, vlans, addresses, routes } = flags;
        let mut config = Self::default();
        let tagged = vlans.iter().map(|text| {
            let (name, vlan) = text.split_once('=').unwrap_or(("", text));
            let at = ports
                .iter()
                .position(|port| interface(port) == name || (name.is_empty() && ports.len() == 1));
            let vlan = vlan.parse().map_err(|_| format!("'{vlan}' is no VLAN")).and_then(vlan_of)?;
            Ok((at.ok_or("of which port? Write eth1=7, say")?, vlan))
        });
        let tagged = tagged.zip(*vlans).map(|(tagged, text): (Result<_, String>, _)| {
            tagged.map_err(|what| Failure::Usage(format!("--vlan {text}: {what}")))
        });
        let tagged: Vec<(usize, u16)> = tagged.collect::<Result<_, _>>()?;
        for (number, port) in ports.iter().enumerate() {
            // Beside VLANs a port has untagged packets where somebody speaks of them.
            let plain = interface(port);
            let spoken =
                addresses.iter().any(|text| text.split_once('=').is_some_and(|(name, _)| name == plain))
                    || routes.iter().any(|text| {
                        text.split_whitespace().skip_while(|word| *word != "dev").nth(1) == Some(&plain)
                    });
            let mut vlans =
                tagged.iter().filter(|(at, _)| *at == number).map(|(_, vlan)| Some(*vlan)).peekable();
            let untagged = (vlans.peek().is_none() || spoken).then_some(None);
            for vlan in untagged.into_iter().chain(vlans) {
                config.add(port, vlan).map_err(Failure::Usage)?;
            }
        }
        for text in *addresses {
            let (number, address) = match text.split_once('=') {
                Some((name, address)) => (config.interface(name).map_err(Failure::Usage)?, address),
                None if config.interfaces.len() == 1 => (0, text.as_str()),
                None => {
                    return Err(Failure::Usage(format!(
                        "--addr {text}: of which interface? Write {}={text}, say",
                        config.interface_name(0).unwrap_or_else(|| "eth1".into())
                    )));
                }
            };
            let wanted = WantedAddress::of(number, address);
            let wanted = wanted.map_err(|what| Failure::Usage(format!("--addr {text}: {what}")))?;
            config.addresses.push(wanted);
        }
        for text in *routes {
            let route = config.route_of_words(text);
            config.routes.push(route.map_err(|what| Failure::Usage(format!("--route '{text}': {what}")))?);
        }
        Ok(config)
    }

    fn route_of_words(&self, text: &str) -> Result<WantedRoute, String> {
        let mut words = text.split_whitespace();
        let prefix = words.next().ok_or("write 'default via 10.0.0.1', say")?;
        let (mut via, mut dev, mut metric) = (None, None, 0);
        while let Some(word) = words.next() {
            let value = words.next().ok_or_else(|| format!("nothing follows '{word}'"))?;
            match word {
                "via" => via = Some(value),
                "dev" => dev = Some(value),
                "metric" => metric = value.parse().map_err(|_| format!("'{value}' is no metric"))?,
                _ => return Err(format!("'{word}' is not known: write via, dev or metric")),
            }
        }
        self.route(prefix, via, dev, metric)
    }

    fn route(
        &self,
        prefix: &str,
        via: Option<&str>,
        dev: Option<&str>,
        metric: u32,
    ) -> Result<WantedRoute, String> {
        let words =
            RouteWords { prefix: prefix.into(), gateway: via.map(Into::into), ..RouteWords::default() };
        let (prefix, gateway) = words.meaning()?;
        let gateway = gateway.map(Address::from);
        let towards = gateway.and_then(|gateway| {
            let on = |ours: &&WantedAddress| matches!(ours.what, What::Given { prefix, .. } if prefix.contains(gateway));
            self.addresses.iter().find(on).map(|ours| ours.interface)
        });
        let interface = match (dev, towards) {
            (Some(dev), _) => self.interface(dev)?,
            (None, Some(interface)) => interface,
            (None, None) if self.interfaces.len() == 1 => 0,
            (None, None) => return Err(format!("by which interface? Name it (dev): {}", self.names())),
        };
        Ok(WantedRoute { prefix, gateway, interface, metric })
    }

    /// Adds an interface, and its port if it is the first there.
    fn add(&mut self, name: &PortName, vlan: Option<u16>) -> Result<(), String> {
        let port = self.ports.iter().position(|port| port == name).unwrap_or_else(|| {
            self.ports.push(name.clone());
            self.ports.len() - 1
        });
        if self.interfaces.contains(&(port, vlan)) {
            return Err(match vlan {
                None => format!("{name} is there twice"),
                Some(vlan) => format!("VLAN {vlan} of {name} is there twice"),
            });
        }
        self.interfaces.push((port, vlan));
        Ok(())
    }

    /// What an interface is called, as the engine has it.
    fn interface_name(&self, number: usize) -> Option<String> {
        let (port, vlan) = self.interfaces.get(number)?;
        let name = interface(self.ports.get(*port)?);
        Some(vlan.map_or_else(|| name.clone(), |vlan| format!("{name}.{vlan}")))
    }

    /// The number of the interface with this name, or of the untagged packets of the port with it.
    fn interface(&self, name: &str) -> Result<usize, String> {
        let found = (0..self.interfaces.len()).find(|number| {
            let (port, vlan) = self.interfaces[*number];
            let is_port =
                || vlan.is_none() && self.ports.get(port).is_some_and(|port| port.to_string() == name);
            self.interface_name(*number).as_deref() == Some(name) || is_port()
        });
        found.ok_or_else(|| format!("there is no interface '{name}', but {}", self.names()))
    }

    fn names(&self) -> String {
        (0..self.interfaces.len())
            .filter_map(|number| self.interface_name(number))
            .collect::<Vec<_>>()
            .join(", ")
    }

    /// What contradicts itself only as a whole.
    pub(crate) fn check(&self) -> Result<(), Failure> {
        if self.forward && self.addresses.iter().any(|address| address.what == What::Auto6) {
            return Err(Failure::Usage(
                "auto6 is for hosts: who passes packets on (forward) takes no advice from routers; give it addresses".into(),
            ));
        }
        Ok(())
    }

    /// Gives an instance its addresses and routes.
    ///
    /// # Errors
    /// What the stack refuses.
    pub(crate) fn apply(
        &self,
        control: &mut Control,
        now: Timestamp,
        interfaces: &[InterfaceId],
    ) -> Result<(), ControlError> {
        for WantedAddress { interface, what } in &self.addresses {
            let Some(id) = interfaces.get(*interface) else { continue };
            match what {
                What::Given { prefix, dad: true } => control.add_address_if_free(now, *id, *prefix)?,
                What::Given { prefix, dad: false } => control.add_address(now, *id, *prefix)?,
                What::Auto6 => control.autoconfigure(now, *id)?,
            }
        }
        for WantedRoute { prefix, gateway, interface, metric } in &self.routes {
            if let Some(id) = interfaces.get(*interface) {
                control.add_route(Route {
                    prefix: *prefix,
                    gateway: *gateway,
                    interface: *id,
                    metric: *metric,
                })?;
            }
        }
        Ok(())
    }
}

/// IEEE 802.1Q: 0 is no VLAN, and 4095 is reserved.
fn vlan_of(number: i64) -> Result<u16, String> {
    let vlan = u16::try_from(number).ok().filter(|vlan| (1..=4094).contains(vlan));
    vlan.ok_or_else(|| format!("{number} is no VLAN: write a number from 1 to 4094"))
}

/// What a port is called as an interface: what follows its kind.
fn interface(port: &PortName) -> String {
    let name = port.to_string();
    match name.split_once(':') {
        Some((_, rest)) if !rest.is_empty() => rest.into(),
        _ => name,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_says_what_flags_say() {
        let file = "name = 'web'\nforward = true\naccept_redirects = false\n[[port]]\nport = 'xdp:eth1'\n\
                    addresses = ['10.0.0.2/24', '10.0.0.3/24 dad']\n[[port]]\nport = 'tap:t'\n[[route]]\nprefix = 'default'\nvia = '10.0.0.1'\n";
        let read = parse(file).unwrap();
        let ports: Vec<PortName> = ["xdp:eth1", "tap:t"].map(|name| name.parse().unwrap()).to_vec();
        let addresses = ["eth1=10.0.0.2/24", "eth1=10.0.0.3/24 dad"].map(String::from);
        let routes = ["default via 10.0.0.1".to_owned()];
        let flags = Flags { ports: &ports, vlans: &[], addresses: &addresses, routes: &routes };
        let typed = Config::of(&flags).unwrap();
        let dad = |address: &WantedAddress| matches!(address.what, What::Given { dad: true, .. });
        assert_eq!(read.addresses.iter().map(dad).collect::<Vec<_>>(), [false, true]);
        assert_eq!((read.name.as_deref(), read.forward, read.no_redirects), (Some("web"), true, true));
        assert!(!parse("name = 'web'").unwrap().no_redirects);
        assert_eq!((&read.ports, &read.addresses), (&typed.ports, &typed.addresses));
        assert_eq!(format!("{:?}", read.routes), format!("{:?}", typed.routes));
    }

    #[test]
    fn a_mistake_is_found_by_line_and_column() {
        for (file, line, column, says) in [
            ("name = \"web\nforward = true", 1, 12, "string"),
            ("forward = 3", 1, 11, "boolean"),
            ("accept_redirects = 0", 1, 20, "boolean"),
            ("[[port]]\nport = 'xdp:eth1'\naddresses = ['10.0.0.2/24', '10.0.0.3/99']", 3, 29, "10.0.0.3/99"),
            ("[[port]]\nport = 'nic:eth1'", 2, 8, "nic:eth1"),
            ("[[port]]\nport = 'xdp:eth1'\nmtu = 5", 3, 1, "mtu"),
            ("[[route]]\nprefix = 'default'\nvia = 'eth1'", 1, 1, "'eth1' is no address"),
            ("[[port]]\nport = 'tap:t'\nvlan = 4095", 3, 8, "from 1 to 4094"),
            ("[[port]]\nport = 'tap:t'\n[[port]]\nport = 'tap:t'", 4, 8, "tap:t is there twice"),
            ("[tcp]\nmaxseg = 20", 2, 10, "from 88 to 32767"),
            ("[tcp]\nsack = false\nkeepalive_time = '5d'", 3, 18, "5d: 'd' is no unit of time"),
            ("[tcp]\nrmem_max = true", 2, 12, "a number and its unit in quotes"),
            ("[tcp]\ncongestion_control = 'bbr'", 2, 22, "write cubic or newreno"),
            ("[tcp]\nwindow = 5", 2, 1, "window"),
            (
                "forward = true\n[tcp]\nrmem_max = '64K'\nrmem_default = '1M'",
                2,
                1,
                "at first more than at most",
            ),
        ] {
            let (at, what) = parse(file).unwrap_err();
            assert_eq!(place(file, at), (line, column), "{file}: {what}");
            assert!(what.contains(says) && !what.contains('\n'), "{what}");
        }
    }

    #[test]
    fn vlans_are_interfaces_of_their_own() {
        let file = "[[port]]\nport = 'xdp:eth1'\naddresses = ['10.0.0.2/24']\n[[port]]\nport = 'xdp:eth1'\nvlan = 7\n\
                    addresses = ['auto6']\n[[port]]\nport = 'xdp:eth2'\nvlan = 7\n[[route]]\nprefix = 'default'\n\
                    dev = 'eth2.7'\n";
        let read = parse(file).unwrap();
        let ports: Vec<PortName> = ["xdp:eth1", "xdp:eth2"].map(|name| name.parse().unwrap()).to_vec();
        let of = |ports, vlans: &[&str], addresses: &[&str], routes: &[&str]| {
            let owned = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>();
            let (vlans, addresses, routes) = (owned(vlans), owned(addresses), owned(routes));
            Config::of(&Flags { ports, vlans: &vlans, addresses: &addresses, routes: &routes })
        };
        let typed =
            of(&ports, &["eth1=7", "eth2=7"], &["eth1=10.0.0.2/24", "eth1.7=auto6"], &["default dev eth2.7"])
                .unwrap();
        assert_eq!(read.names(), "eth1, eth1.7, eth2.7");
        assert_eq!((&read.ports, &read.interfaces), (&typed.ports, &typed.interfaces));
        assert_eq!(read.addresses, typed.addresses);
        assert_eq!(format!("{:?}", read.routes), format!("{:?}", typed.routes));
        let alone = of(&ports[..1], &["7"], &["10.0.0.2/24"], &[]).unwrap();
        assert_eq!((alone.names().as_str(), alone.interfaces), ("eth1.7", vec![(0, Some(7))]));
        for (vlans, addresses, says) in [
            (&["7"][..], &[][..], "--vlan 7: of which port?"),
            (&["eth1=0"], &[], "from 1 to 4094"),
            (&["eth1=x"], &[], "'x' is no VLAN"),
            (&["eth1=7", "eth1=7"], &[], "twice"),
            (&["eth1=7"], &["eth1.8=10.0.0.2/24"], "there is no interface 'eth1.8', but eth1.7, eth2"),
            (&["eth1=7"], &["10.0.0.2/24"], "of which interface? Write eth1.7=10.0.0.2/24"),
        ] {
            let why = of(&ports, vlans, addresses, &[]).unwrap_err().to_string();
            assert!(why.contains(says), "{why}");
        }
    }

    #[test]
    fn flags_that_make_no_sense_are_refused() {
        let ports: Vec<PortName> = ["tap:a", "tap:b"].map(|name| name.parse().unwrap()).to_vec();
        let refused = |addresses: &str, route: &str| {
            let one = |text: &str| if text.is_empty() { vec![] } else { vec![text.to_owned()] };
            let (addresses, routes) = (one(addresses), one(route));
            Config::of(&Flags { ports: &ports, vlans: &[], addresses: &addresses, routes: &routes })
                .unwrap_err()
                .to_string()
        };
        assert!(refused("10.0.0.1/24", "").contains("a=10.0.0.1/24"));
        assert!(refused("c=10.0.0.1/24", "").contains("but a, b"));
        assert!(refused("a=10.0.0.1", "").contains("prefix length"));
        assert!(refused("a=10.0.0.1/24 nodad", "").contains("'nodad' is not known"));
        assert!(refused("a=10.0.0.1/24 dad twice", "").contains("'twice' is not known"));
        assert!(refused("", "default via").contains("nothing follows 'via'"));
        assert!(refused("", "default by 10.0.0.1").contains("'by' is not known"));
        assert!(refused("", "default via 10.0.0.1").contains("by which interface? Name it (dev): a, b"));
        assert!(refused("", "10.0.0.0/8 via fd00::1 dev a").contains("different families"));
    }
}
