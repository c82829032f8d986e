//! What an instance is to be, from flags or from a TOML file: its ports, addresses, routes and settings of TCP.

use std::ops::Range;
use std::path::Path;

use bywash_engine::request::RouteWords;
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

/// What an instance is to be.
#[derive(Clone, Debug, Default)]
pub(crate) struct Config {
    pub(crate) name: Option<String>,
    pub(crate) forward: bool,
    pub(crate) ports: Vec<PortName>,
    pub(crate) addresses: Vec<WantedAddress>,
    routes: Vec<WantedRoute>,
    pub(crate) tcp: Settings,
}

/// An address, before interfaces have numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WantedAddress {
    /// The number of the port.
    port: usize,
    pub(crate) prefix: Prefix,
    /// Only if nobody else has it.
    dad: bool,
}

impl WantedAddress {
    /// `10.0.0.2/24`, or `10.0.0.2/24 dad`.
    fn of(port: usize, text: &str) -> Result<Self, String> {
        let mut words = text.split_whitespace();
        let prefix = words.next().unwrap_or(text).parse().map_err(|error: PrefixError| error.to_string())?;
        let dad = match (words.next(), words.next()) {
            (None, _) => false,
            (Some("dad"), None) => true,
            (Some("dad"), Some(word)) | (Some(word), _) => {
                return Err(format!("'{word}' is not known: only dad may follow the address"));
            }
        };
        Ok(Self { port, prefix, dad })
    }
}

/// A route, before interfaces have numbers.
#[derive(Clone, Debug)]
struct WantedRoute {
    prefix: Prefix,
    gateway: Option<Address>,
    /// The number of the port.
    port: usize,
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
    let mut config = Config { name: file.name, forward: file.forward, ..Config::default() };
    for (number, port) in file.port.iter().enumerate() {
        let name = port.port.get_ref().parse::<PortName>().map_err(|error| error.to_string());
        config.ports.push(name.map_err(at(port.port.span()))?);
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
    pub(crate) fn of(ports: &[PortName], addresses: &[String], routes: &[String]) -> Result<Self, Failure> {
        let mut config = Self { ports: ports.to_vec(), ..Self::default() };
        for text in addresses {
            let (number, address) = match text.split_once('=') {
                Some((name, address)) => (config.port(name).map_err(Failure::Usage)?, address),
                None if ports.len() == 1 => (0, text.as_str()),
                None => {
                    return Err(Failure::Usage(format!(
                        "--addr {text}: of which port? Write {}={text}, say",
                        ports.first().map_or_else(|| "eth1".into(), interface)
                    )));
                }
            };
            let wanted = WantedAddress::of(number, address);
            let wanted = wanted.map_err(|what| Failure::Usage(format!("--addr {text}: {what}")))?;
            config.addresses.push(wanted);
        }
        for text in routes {
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
            RouteWords { prefix: prefix.into(), gateway: via.map(Into::into), interface: None, metric: None };
        let (prefix, gateway) = words.meaning()?;
        let gateway = gateway.map(Address::from);
        let towards = gateway.and_then(|gateway| {
            self.addresses.iter().find(|ours| ours.prefix.contains(gateway)).map(|ours| ours.port)
        });
        let port = match (dev, towards) {
            (Some(dev), _) => self.port(dev)?,
            (None, Some(port)) => port,
            (None, None) if self.ports.len() == 1 => 0,
            (None, None) => return Err(format!("by which port? Name it (dev): {}", self.names())),
        };
        Ok(WantedRoute { prefix, gateway, port, metric })
    }

    /// The number of the port with this name, or whose interface has it.
    fn port(&self, name: &str) -> Result<usize, String> {
        let found = self.ports.iter().position(|port| interface(port) == name || port.to_string() == name);
        found.ok_or_else(|| format!("there is no port '{name}', but {}", self.names()))
    }

    fn names(&self) -> String {
        self.ports.iter().map(interface).collect::<Vec<_>>().join(", ")
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
        for WantedAddress { port, prefix, dad } in &self.addresses {
            if let Some(id) = interfaces.get(*port) {
                let add = if *dad { Control::add_address_if_free } else { Control::add_address };
                add(control, now, *id, *prefix)?;
            }
        }
        for WantedRoute { prefix, gateway, port, metric } in &self.routes {
            if let Some(id) = interfaces.get(*port) {
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
        let file = "name = 'web'\nforward = true\n[[port]]\nport = 'xdp:eth1'\naddresses = ['10.0.0.2/24', '10.0.0.3/24 dad']\n\
                    [[port]]\nport = 'tap:t'\n[[route]]\nprefix = 'default'\nvia = '10.0.0.1'\n";
        let read = parse(file).unwrap();
        let ports: Vec<PortName> = ["xdp:eth1", "tap:t"].map(|name| name.parse().unwrap()).to_vec();
        let addresses = ["eth1=10.0.0.2/24", "eth1=10.0.0.3/24 dad"].map(String::from);
        let typed = Config::of(&ports, &addresses, &["default via 10.0.0.1".into()]).unwrap();
        assert_eq!(read.addresses.iter().map(|address| address.dad).collect::<Vec<_>>(), [false, true]);
        assert_eq!((read.name.as_deref(), read.forward), (Some("web"), true));
        assert_eq!((&read.ports, &read.addresses), (&typed.ports, &typed.addresses));
        assert_eq!(format!("{:?}", read.routes), format!("{:?}", typed.routes));
    }

    #[test]
    fn a_mistake_is_found_by_line_and_column() {
        for (file, line, column, says) in [
            ("name = \"web\nforward = true", 1, 12, "string"),
            ("forward = 3", 1, 11, "boolean"),
            ("[[port]]\nport = 'xdp:eth1'\naddresses = ['10.0.0.2/24', '10.0.0.3/99']", 3, 29, "10.0.0.3/99"),
            ("[[port]]\nport = 'nic:eth1'", 2, 8, "nic:eth1"),
            ("[[port]]\nport = 'xdp:eth1'\nmtu = 5", 3, 1, "mtu"),
            ("[[route]]\nprefix = 'default'\nvia = 'eth1'", 1, 1, "'eth1' is no address"),
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
    fn flags_that_make_no_sense_are_refused() {
        let ports: Vec<PortName> = ["tap:a", "tap:b"].map(|name| name.parse().unwrap()).to_vec();
        let refused = |addresses: &str, route: &str| {
            let one = |text: &str| if text.is_empty() { vec![] } else { vec![text.to_owned()] };
            Config::of(&ports, &one(addresses), &one(route)).unwrap_err().to_string()
        };
        assert!(refused("10.0.0.1/24", "").contains("a=10.0.0.1/24"));
        assert!(refused("c=10.0.0.1/24", "").contains("but a, b"));
        assert!(refused("a=10.0.0.1", "").contains("prefix length"));
        assert!(refused("a=10.0.0.1/24 nodad", "").contains("'nodad' is not known"));
        assert!(refused("a=10.0.0.1/24 dad twice", "").contains("'twice' is not known"));
        assert!(refused("", "default via").contains("nothing follows 'via'"));
        assert!(refused("", "default by 10.0.0.1").contains("'by' is not known"));
        assert!(refused("", "default via 10.0.0.1").contains("by which port? Name it (dev): a, b"));
        assert!(refused("", "10.0.0.0/8 via fd00::1 dev a").contains("different families"));
    }
}
