//! What an instance is to be, from flags or from a TOML file: its ports, addresses, routes and settings of TCP.

use std::cmp::Reverse;
use std::fmt;
use std::io::Read;
use std::ops::Range;
use std::path::Path;

use bywash_apps::text::{Garbled, place, text_of};
use bywash_engine::request::{AUTO6, RouteMeaning, RouteWords};
use bywash_engine::scoped::as_typed;
use bywash_engine::socket;
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
    name: Option<Spanned<String>>,
    #[serde(default)]
    forward: bool,
    accept_redirects: Option<bool>,
    #[serde(default)]
    port: Vec<FilePort>,
    #[serde(default)]
    route: Vec<FileRoute>,
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
    prefix: Spanned<String>,
    via: Option<Spanned<String>>,
    dev: Option<Spanned<String>>,
    src: Option<Spanned<String>>,
    metric: Option<u32>,
}

/// The word of a route that something is wrong with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Word {
    Prefix,
    Via,
    Dev,
    Src,
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
    /// Where those of `routes` lead that need no router, and by which interface: each of the others is looked for among them.
    direct: Vec<(Prefix, usize)>,
    pub(crate) tcp: Settings,
    /// Where each of `ports` stands in the file, the name, and the table of TCP.
    ports_at: Vec<usize>,
    name_at: Option<usize>,
    tcp_at: Option<usize>,
    source: Option<Source>,
}

/// The file a configuration is from: who finds a mistake later can say where it is.
#[derive(Clone, Debug)]
struct Source {
    name: String,
    text: String,
}

impl Source {
    /// Says in which line and column of the file something is wrong.
    fn say(&self, at: usize, what: &str) -> Failure {
        let (line, column) = place(&self.text, at);
        Failure::Usage(format!("{}:{line}:{column}: {what}", self.name))
    }
}

/// An address, before interfaces have numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WantedAddress {
    /// The number of the interface.
    interface: usize,
    pub(crate) what: What,
    /// Where it stands in the file.
    at: Option<usize>,
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

impl fmt::Display for What {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
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
            return Ok(Self { interface, what: What::Auto6, at: None });
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
        Ok(Self { interface, what: What::Given { prefix, dad }, at: None })
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
    source: Option<Address>,
    /// Where it stands in the file, and its source.
    at: Option<usize>,
    source_at: Option<usize>,
}

/// Reads a file.
///
/// # Errors
/// In one line what is wrong in which line and column.
pub(crate) fn read(path: &Path) -> Result<Config, Failure> {
    /// Bytes of a file at most: as many routes as the Internet has take half of them. One without end (a device) would fill the
    /// memory.
    const LARGEST: u64 = 1 << 27;
    let name = path.display().to_string();
    let failed = |why: &dyn fmt::Display| Failure::Usage(format!("--config {name}: {why}"));
    let mut bytes = Vec::new();
    let read = std::fs::File::open(path).and_then(|file| file.take(LARGEST + 1).read_to_end(&mut bytes));
    if read.map_err(|error| failed(&error))? as u64 > LARGEST {
        return Err(failed(&format!("it has more than {LARGEST} bytes, as no configuration has")));
    }
    let source = match text_of(bytes) {
        Ok(text) => Source { name, text },
        Err(Garbled { before, what }) => {
            let source = Source { name, text: before };
            return Err(source.say(source.text.len(), &what));
        }
    };
    let config = parse(&source.text).map_err(|(at, what)| source.say(at, &what))?;
    Ok(Config { source: Some(source), ..config })
}

/// What is wrong, and where it begins.
type Mistake = (usize, String);

fn parse(text: &str) -> Result<Config, Mistake> {
    let file: File = toml::from_str(text).map_err(|error: toml::de::Error| {
        let start = error.span().unwrap_or_default().start;
        let what = error.message().lines().collect::<Vec<_>>().join("; ");
        (start, list_of_one(text, start).filter(|_| what.contains("sequence")).unwrap_or(what))
    })?;
    let at = |span: Range<usize>| move |what: String| (span.start, what);
    let no_redirects = file.accept_redirects == Some(false);
    let start = |span: Range<usize>| span.start;
    let mut config = Config {
        name_at: file.name.as_ref().map(|name| start(name.span())),
        tcp_at: file.tcp.as_ref().map(|tcp| start(tcp.span())),
        name: file.name.map(Spanned::into_inner),
        tcp: file.tcp.map(Spanned::into_inner).unwrap_or_default(),
        forward: file.forward,
        no_redirects,
        ..Config::default()
    };
    for (number, port) in file.port.iter().enumerate() {
        let name = port.port.get_ref().parse::<PortName>().map_err(|error| error.to_string());
        let name = name.map_err(at(port.port.span()))?;
        let vlan = port.vlan.as_ref().map(|vlan| vlan_of(*vlan.get_ref()).map_err(at(vlan.span())));
        config.add(&name, vlan.transpose()?).map_err(at(port.port.span()))?;
        if config.ports_at.len() < config.ports.len() {
            config.ports_at.push(port.port.span().start);
        }
        for address in &port.addresses {
            let wanted = WantedAddress::of(number, address.get_ref());
            let wanted = wanted.map_err(at(address.span()))?;
            config.addresses.push(WantedAddress { at: Some(address.span().start), ..wanted });
        }
    }
    for FileRoute { prefix, via, dev, src, metric } in &file.route {
        let text = |word: &Option<Spanned<String>>| word.as_ref().map(|word| word.get_ref().clone());
        let (router, link, source) = (text(via), text(dev), text(src));
        let ways = (router.as_deref(), link.as_deref(), source.as_deref());
        let mut made =
            config.route(prefix.get_ref(), ways, metric.unwrap_or(0)).map_err(|(word, what)| {
                let word = match word {
                    Word::Prefix => None,
                    Word::Via => via.as_ref(),
                    Word::Dev => dev.as_ref(),
                    Word::Src => src.as_ref(),
                };
                (word.unwrap_or(prefix).span().start, what)
            })?;
        // All that the stack may refuse of a route is its gateway and its source.
        made.at = Some(via.as_ref().unwrap_or(prefix).span().start);
        made.source_at = src.as_ref().map(|src| src.span().start);
        config.add_route(made);
    }
    Ok(config)
}

/// A table where there may be several of its kind is written in two brackets, which is easily forgotten.
fn list_of_one(text: &str, at: usize) -> Option<String> {
    let begins = text.get(..at)?.rfind('\n').map_or(0, |end| end + 1);
    let line = text[begins..].trim_start();
    let name = ["port", "route"].into_iter().find(|name| line.starts_with(&format!("[{name}]")))?;
    Some(format!("there may be several: write [[{name}]]"))
}

impl Config {
    /// From flags.
    ///
    /// # Errors
    /// What makes no sense, in one line.
    pub(crate) fn of(flags: &Flags<'_>) -> Result<Self, Failure> {
        let Flags { ports, vlans, addresses, routes } = flags;
        let mut config = Self::default();
        let given = [("--vlan", vlans), ("--addr", addresses), ("--route", routes)];
        if let Some((flag, _)) = given.iter().find(|(_, given)| ports.is_empty() && !given.is_empty()) {
            return Err(Failure::Usage(format!(
                "{flag} is about a port, and there is none; name one (--port xdp:eth1, say), or a file (--config)"
            )));
        }
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
            let names = [interface(port), port.to_string()];
            let of_addresses = addresses.iter().filter_map(|text| Some(text.split_once('=')?.0));
            let of_routes = routes.iter().flat_map(|text| interfaces_named(text));
            let spoken = of_addresses.chain(of_routes).any(|name| names.iter().any(|ours| ours == name));
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
            config.add_route(route.map_err(|what| Failure::Usage(format!("--route '{text}': {what}")))?);
        }
        Ok(config)
    }

    fn route_of_words(&self, text: &str) -> Result<WantedRoute, String> {
        let mut words = text.split_whitespace();
        let prefix = words.next().ok_or("write 'default via 10.0.0.1', say")?;
        let (mut via, mut dev, mut src, mut metric) = (None, None, None, None);
        while let Some(word) = words.next() {
            let value = words.next().ok_or_else(|| format!("nothing follows '{word}'"))?;
            let place = match word {
                "via" => &mut via,
                "dev" => &mut dev,
                "src" => &mut src,
                "metric" => &mut metric,
                _ => return Err(format!("'{word}' is not known: write via, dev, src or metric")),
            };
            if place.replace(value).is_some() {
                return Err(format!("'{word}' is there twice"));
            }
        }
        let metric = metric.map_or(Ok(0), |text| text.parse().map_err(|_| format!("'{text}' is no metric")));
        self.route(prefix, (via, dev, src), metric?).map_err(|(_, what)| what)
    }

    fn route(
        &self,
        prefix: &str,
        (via, dev, src): (Option<&str>, Option<&str>, Option<&str>),
        metric: u32,
    ) -> Result<WantedRoute, (Word, String)> {
        let wrong = |word| move |what| (word, what);
        let words = RouteWords { prefix: prefix.into(), ..RouteWords::default() };
        words.meaning().map_err(wrong(Word::Prefix))?;
        let words = RouteWords { gateway: via.map(Into::into), interface: dev.map(Into::into), ..words };
        let by_router = words.meaning().map_err(wrong(Word::Via))?.interface.is_some();
        let words = RouteWords { source: src.map(Into::into), ..words };
        let RouteMeaning { prefix, gateway, interface: named, source } =
            words.meaning().map_err(wrong(Word::Src))?;
        let (gateway, source) = (gateway.map(Address::from), source.map(Address::from));
        let towards = gateway.and_then(|gateway| {
            let given = self.addresses.iter().filter_map(|ours| match ours.what {
                What::Given { prefix, .. } => Some((prefix, ours.interface)),
                What::Auto6 => None,
            });
            let links = given.chain(self.direct.iter().copied());
            let same_family = |prefix: &Prefix| prefix.address().is_v4() == gateway.is_v4();
            let holding = links.filter(|(prefix, _)| same_family(prefix) && prefix.contains(gateway));
            holding.min_by_key(|(prefix, _)| Reverse(prefix.length())).map(|(_, interface)| interface)
        });
        let interface = match (&named, towards) {
            (Some(named), _) => {
                let word = match (dev, by_router) {
                    (Some(_), _) => Word::Dev,
                    (None, true) => Word::Via,
                    (None, false) => Word::Src,
                };
                self.interface(named).map_err(wrong(word))?
            }
            (None, Some(interface)) => interface,
            (None, None) if self.interfaces.len() == 1 => 0,
            (None, None) => {
                let what = format!("by which interface? Name it (dev): {}", self.names());
                return Err((Word::Prefix, what));
            }
        };
        Ok(WantedRoute { prefix, gateway, interface, metric, source, at: None, source_at: None })
    }

    fn add_route(&mut self, route: WantedRoute) {
        if route.gateway.is_none() {
            self.direct.push((route.prefix, route.interface));
        }
        self.routes.push(route);
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
        let added = self.interfaces.len() - 1;
        // Whoever names one of them would have the first.
        match self.interface_name(added) {
            Some(called) if (0..added).any(|other| self.interface_name(other).as_ref() == Some(&called)) => {
                Err(format!("two interfaces would be called {called}, of {}", self.ports_called(&called)))
            }
            _ => Ok(()),
        }
    }

    /// The ports of the interfaces of this name.
    fn ports_called(&self, called: &str) -> String {
        let named = |number: &usize| self.interface_name(*number).as_deref() == Some(called);
        let ports = (0..self.interfaces.len()).filter(named).filter_map(|number| {
            let (port, vlan) = self.interfaces[number];
            let port = self.ports.get(port)?;
            Some(vlan.map_or_else(|| port.to_string(), |vlan| format!("{port} (VLAN {vlan})")))
        });
        ports.collect::<Vec<_>>().join(" and ")
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

    /// All interfaces, by name and number. The stack counts them in this order, its own way back to itself being 0.
    pub(crate) fn links(&self) -> Vec<(String, u32)> {
        (0..self.interfaces.len()).filter_map(|number| self.interface_name(number)).zip(1..).collect()
    }

    fn names(&self) -> String {
        (0..self.interfaces.len())
            .filter_map(|number| self.interface_name(number))
            .collect::<Vec<_>>()
            .join(", ")
    }

    /// Its addresses, where all are given by hand: what routers say may come at any time.
    pub(crate) fn given(&self) -> Vec<Prefix> {
        let given = |address: &WantedAddress| match address.what {
            What::Given { prefix, .. } => Some(prefix),
            What::Auto6 => None,
        };
        self.addresses.iter().map(given).collect::<Option<_>>().unwrap_or_default()
    }

    /// With the name and the settings of TCP that flags say, which come before a file's.
    ///
    /// # Errors
    /// What makes no sense of both together, and where it stands where the file alone is to blame.
    pub(crate) fn with_flags(self, name: Option<String>, tcp: Settings) -> Result<Self, Failure> {
        let (named, of_file) = (name.is_some(), self.tcp);
        let merged = Self { name: name.or(self.name), tcp: tcp.or(of_file.clone()), ..self };
        if let Some(name) = merged.name.as_ref().filter(|_| !named) {
            // Who opens the socket refuses it, too, but does not know the file.
            let known = socket::path(name).map_err(|error| Failure::Usage(error.to_string()));
            known.map_err(|failure| merged.blame(merged.name_at, failure))?;
        }
        if let Err(what) = merged.tcp.limits() {
            let at = merged.tcp_at.filter(|_| of_file.limits().is_err());
            return Err(merged.blame(at, Failure::Usage(what)));
        }
        Ok(merged)
    }

    /// What contradicts itself only as a whole.
    pub(crate) fn check(&self) -> Result<(), Failure> {
        let auto6 = self.addresses.iter().find(|address| address.what == What::Auto6);
        if let Some(auto6) = auto6.filter(|_| self.forward) {
            let what = "auto6 is for hosts: who passes packets on (forward) takes no advice from routers; give it addresses";
            return Err(self.blame(auto6.at, Failure::Usage(what.into())));
        }
        Ok(())
    }

    /// A failure with the place in the file that it comes from, if that is known.
    pub(crate) fn blame(&self, at: Option<usize>, failure: Failure) -> Failure {
        let at = match &failure {
            Failure::Open(error) => {
                let port = self.ports.iter().position(|port| *port == error.port);
                port.and_then(|number| self.ports_at.get(number).copied())
            }
            _ => at,
        };
        match (&self.source, at) {
            (Some(source), Some(at)) => source.say(at, &failure.to_string()),
            _ => failure,
        }
    }

    /// Gives an instance its addresses and routes.
    ///
    /// # Errors
    /// What the stack refuses, and where that stands in the file.
    pub(crate) fn apply(
        &self,
        control: &mut Control,
        now: Timestamp,
        interfaces: &[InterfaceId],
    ) -> Result<(), (Option<usize>, ControlError)> {
        for WantedAddress { interface, what, at } in &self.addresses {
            let Some(id) = interfaces.get(*interface) else { continue };
            let done = match what {
                What::Given { prefix, dad: true } => control.add_address_if_free(now, *id, *prefix),
                What::Given { prefix, dad: false } => control.add_address(now, *id, *prefix),
                What::Auto6 => control.autoconfigure(now, *id),
            };
            done.map_err(|error| (*at, as_typed(error)))?;
        }
        for wanted in &self.routes {
            let WantedRoute { prefix, gateway, metric, source, .. } = *wanted;
            if let Some(id) = interfaces.get(wanted.interface) {
                let route = Route { prefix, gateway, interface: *id, metric, source };
                control.add_route(route).map_err(|error| match error {
                    ControlError::Source(_) => (wanted.source_at, as_typed(error)),
                    error => (wanted.at, error),
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

/// The interfaces that a route's words name: `dev eth1`, `via fe80::1%eth1`, `src fe80::2%eth1`.
fn interfaces_named(route: &str) -> impl Iterator<Item = &str> {
    let mut words = route.split_whitespace().skip(1);
    let pairs = std::iter::from_fn(move || words.next().zip(words.next()));
    pairs.filter_map(|(word, value)| match word {
        "dev" => Some(value),
        "via" | "src" => value.split_once('%').map(|(_, zone)| zone),
        _ => None,
    })
}

#[cfg(test)]
mod tests;
