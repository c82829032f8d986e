//! What an instance does with what it is asked over its control socket.

use std::collections::BTreeMap;
use std::time::Duration;

use bywash_port::QueueCounters;
use bywash_stack::wire::Mac;
use bywash_stack::{
    Address, AddressState, Control, Entry, Interface, InterfaceId, Medium, Origin, Prefix, Route, Timestamp,
};

use crate::instance::Handle;
use crate::request::{
    AUTO6, AddressRow, Answer, NEIGHBOUR_STATES, NeighbourRow, NeighbourWords, Request, RouteMeaning,
    RouteRow, RouteWords, Stats, WayRow, prefix, protocol,
};
use crate::scoped::{ScopedAddress, as_typed};
use crate::socket_rows;

/// Does what is asked.
pub(crate) fn answer(handle: &Handle, request: Request) -> Answer {
    done(handle, request).map_or_else(Answer::Error, Answer::Ok)
}

fn done(handle: &Handle, request: Request) -> Result<serde_json::Value, String> {
    match request {
        Request::Addresses { interface } => {
            let gone = handle.gone();
            let rows = handle.control(move |control, now| {
                let only = only(control, interface.as_deref())?;
                shown(&addresses(control, now, only, &gone))
            });
            rows.map_err(|error| error.to_string())?
        }
        Request::Sockets(details) => shown(&socket_rows::rows(handle, details)?),
        Request::SocketSummary {} => shown(&socket_rows::summary(handle)?),
        Request::Way { address, interface, source } => {
            shown(&way(handle, &address, interface.as_deref(), source.as_deref())?)
        }
        Request::Stats {} => shown(&stats(handle)?),
        request => {
            let answered = handle.control(move |control, now| with_control(control, now, request));
            answered.map_err(|error| error.to_string())?
        }
    }
}

fn shown<T: serde::Serialize>(rows: &T) -> Result<serde_json::Value, String> {
    serde_json::to_value(rows).map_err(|error| error.to_string())
}

fn with_control(
    control: &mut Control,
    now: Timestamp,
    request: Request,
) -> Result<serde_json::Value, String> {
    let nothing = serde_json::Value::Null;
    match request {
        Request::Routes { interface } => {
            let only = only(control, interface.as_deref())?;
            return shown(&routes(control, now, only));
        }
        Request::Neighbours { interface } => {
            let only = only(control, interface.as_deref())?;
            return shown(&neighbours(control, only));
        }
        Request::AddAddress { address, interface, dad, .. } if address == AUTO6 => {
            if dad {
                return Err(
                    "auto6 finds out by itself whether another station has an address: leave dad out".into(),
                );
            }
            let id = interface_named(control, interface.as_deref())?;
            control.autoconfigure(now, id).map_err(|error| error.to_string())?;
        }
        Request::AddAddress { address, interface, dad, replace } => {
            let id = interface_named(control, interface.as_deref())?;
            let prefix = prefix(&address)?;
            let added = match (replace, dad) {
                (true, _) => control.replace_address(now, id, prefix, dad),
                (false, true) => control.add_address_if_free(now, id, prefix),
                (false, false) => control.add_address(now, id, prefix),
            };
            added.map_err(|error| as_typed(error).to_string())?;
        }
        Request::RemoveAddress { address, interface } if address == AUTO6 => {
            let id = interface_named(control, interface.as_deref())?;
            if !control.stop_autoconfiguration(id) {
                return Err(format!("{AUTO6} is not on for {}", name(control, id)));
            }
        }
        Request::RemoveAddress { address, interface } => {
            remove_address(control, &address, interface.as_deref())?;
        }
        Request::AddRoute(words) => enter_route(control, Entry::Add, &words)?,
        Request::ReplaceRoute(words) => enter_route(control, Entry::Replace, &words)?,
        Request::ChangeRoute(words) => enter_route(control, Entry::Change, &words)?,
        Request::RemoveRoute(words) => remove_route(control, now, &words)?,
        Request::AddNeighbour(words) => enter_neighbour(control, Entry::Add, &words)?,
        Request::ReplaceNeighbour(words) => enter_neighbour(control, Entry::Replace, &words)?,
        Request::ChangeNeighbour(words) => enter_neighbour(control, Entry::Change, &words)?,
        Request::RemoveNeighbour { address, interface } => {
            let scoped = ScopedAddress::of(&address)?;
            let wanted: Address = scoped.ip().into();
            let ids: Vec<InterfaceId> = match scoped.interface(interface.as_deref())? {
                Some(name) => vec![interface_named(control, Some(name))?],
                None => control.interfaces().map(|(id, _)| id).collect(),
            };
            if ids.iter().map(|id| control.remove_neighbour(*id, wanted)).sum::<usize>() == 0 {
                return Err(format!("{address} is no neighbour that is known"));
            }
        }
        Request::Addresses { .. }
        | Request::Sockets(_)
        | Request::SocketSummary {}
        | Request::Way { .. }
        | Request::Stats {} => {}
    }
    Ok(nothing)
}

fn remove_address(control: &mut Control, text: &str, interface: Option<&str>) -> Result<(), String> {
    let (address, length) = match text.split_once('/') {
        Some((address, length)) => (address, Some(length)),
        None => (text, None),
    };
    let wanted = ScopedAddress::of(address)?;
    let interface = only(control, wanted.interface(interface)?)?;
    let fits = |(prefix, id, _): &(Prefix, InterfaceId, AddressState)| {
        prefix.address().ip() == wanted.ip()
            && length.is_none_or(|length| prefix.length().to_string() == length)
            && interface.is_none_or(|interface| *id == interface)
    };
    let ours: Vec<Address> = control.addresses().filter(fits).map(|(prefix, ..)| prefix.address()).collect();
    if ours.is_empty() {
        let elsewhere = control.addresses().find(|(prefix, ..)| prefix.address().ip() == wanted.ip());
        return Err(match elsewhere {
            Some((prefix, id, _)) if interface.is_some_and(|interface| interface != id) => {
                format!("{} is an address of {}", prefix.address().ip(), name(control, id))
            }
            Some((prefix, ..)) => format!("{} has another length: /{}", wanted.ip(), prefix.length()),
            None => format!("{text} is no address of this instance"),
        });
    }
    for address in ours {
        control.remove_address(address);
    }
    Ok(())
}

/// The interface of that name, if it is about one.
fn only(control: &Control, name: Option<&str>) -> Result<Option<InterfaceId>, String> {
    name.map(|name| interface_named(control, Some(name))).transpose()
}

/// The interface of that name; without one, the only one there is.
fn interface_named(control: &Control, name: Option<&str>) -> Result<InterfaceId, String> {
    let all: Vec<(InterfaceId, &Interface)> =
        control.interfaces().filter(|(id, _)| *id != InterfaceId::LOOPBACK).collect();
    let names = || all.iter().map(|(_, interface)| interface.name.as_str()).collect::<Vec<_>>().join(", ");
    match (name, &all[..]) {
        (Some(name), _) => match all.iter().find(|(_, interface)| interface.name == name) {
            Some((id, _)) => Ok(*id),
            None => Err(format!("there is no interface '{name}', but {}", names())),
        },
        (None, [(id, _)]) => Ok(*id),
        (None, _) => Err(format!("which interface? There are {}", names())),
    }
}

/// The address as it is on the link that was named with it. Where there is one only, a link-local one is on that.
fn on_its_link(control: &Control, scoped: &ScopedAddress, link: Option<&str>) -> Result<Address, String> {
    let address = Address::from(scoped.ip());
    if address.has_zone() {
        return Ok(address.with_zone(interface_named(control, link)?));
    }
    Ok(address)
}

/// The interface whose link a router or neighbour is on.
fn interface_towards(control: &Control, address: Address) -> Result<InterfaceId, String> {
    control.link_of(address, None).map_or_else(|| interface_named(control, None), Ok)
}

fn enter_neighbour(control: &mut Control, how: Entry, words: &NeighbourWords) -> Result<(), String> {
    let scoped = ScopedAddress::of(&words.address)?;
    let address = scoped.ip().into();
    let id = match scoped.interface(words.interface.as_deref())? {
        Some(name) => interface_named(control, Some(name))?,
        None => interface_towards(control, address)?,
    };
    let mac: Mac = words.mac.parse().map_err(|error| format!("{error}"))?;
    control.enter_neighbour(how, id, address, mac).map_err(|error| error.to_string())
}

fn enter_route(control: &mut Control, how: Entry, words: &RouteWords) -> Result<(), String> {
    let user = protocol(Origin::User);
    if words.protocol.as_deref().is_some_and(|protocol| protocol != user) {
        return Err(format!("what is added by hand is 'proto {user}'"));
    }
    let RouteMeaning { prefix, gateway, interface, source } = words.meaning()?;
    let (gateway, source) = (gateway.map(Address::from), source.map(Address::from));
    let interface = match (interface, gateway) {
        (None, Some(gateway)) => interface_towards(control, gateway)?,
        (name, _) => interface_named(control, name.as_deref())?,
    };
    let metric = words.metric.unwrap_or(0);
    let route = Route { prefix, gateway, interface, metric, source };
    control.enter_route(how, route).map_err(|error| as_typed(error).to_string())
}

fn remove_route(control: &mut Control, now: Timestamp, words: &RouteWords) -> Result<(), String> {
    let RouteMeaning { prefix: wanted, gateway, interface, source } = words.meaning()?;
    let interface = only(control, interface.as_deref())?;
    let fits = |route: &&Route| {
        // A link-local prefix has its link's number in it: what is written is compared.
        route.prefix.address().ip() == wanted.address().ip()
            && route.prefix.length() == wanted.length()
            && gateway.is_none_or(|gateway| route.gateway.map(Address::ip) == Some(gateway))
            && interface.is_none_or(|interface| route.interface == interface)
            && source.is_none_or(|source| route.source.map(Address::ip) == Some(source))
            && words.metric.is_none_or(|metric| route.metric == metric)
            && words.protocol.as_ref().is_none_or(|from| protocol(control.origin(now, route)) == from)
    };
    let all: Vec<Route> = control.routes().filter(fits).copied().collect();
    let removed = control.remove_route(|route| all.contains(route));
    removed.map(|_| ()).ok_or_else(|| format!("there is no such route to {}", words.prefix))
}

fn name(control: &Control, id: InterfaceId) -> String {
    let found = control.interfaces().find(|(other, _)| *other == id);
    found.map_or_else(String::new, |(_, interface)| interface.name.clone())
}

fn seconds(left: Option<Duration>) -> Option<u64> {
    left.map(|left| left.as_secs())
}

/// `gone` is what of each port has gone.
fn addresses(
    control: &Control,
    now: Timestamp,
    only: Option<InterfaceId>,
    gone: &[Option<String>],
) -> Vec<AddressRow> {
    let wanted = control.addresses().filter(|(_, id, _)| only.is_none_or(|only| *id == only));
    let rows = wanted.filter_map(|(prefix, id, state)| {
        let lasts = control.lifetimes(now, id, prefix.address())?;
        let (_, interface) = control.interfaces().find(|(other, _)| *other == id)?;
        let claims = control.claims(id, prefix.address());
        Some(AddressRow {
            interface: interface.name.clone(),
            address: format!("{}/{}", prefix.address().ip(), prefix.length()),
            state: match state {
                AddressState::Tentative => "tentative",
                AddressState::Preferred => "preferred",
                AddressState::Deprecated => "deprecated",
                AddressState::Duplicate => "duplicate",
            }
            .into(),
            mac: match interface.medium {
                Medium::Ethernet { mac, .. } => Some(mac.to_string()),
                Medium::Ip => None,
            },
            mtu: interface.mtu,
            gone: matches!(gone.get(usize::from(interface.port.0)), Some(Some(_))),
            claims: claims.count,
            claimed_by: claims.by.map(|mac| mac.to_string()),
            dynamic: lasts.dynamic,
            valid_life_time: seconds(lasts.valid),
            preferred_life_time: seconds(lasts.preferred),
        })
    });
    rows.collect()
}

fn routes(control: &Control, now: Timestamp, only: Option<InterfaceId>) -> Vec<RouteRow> {
    let wanted = |route: &&Route| only.is_none_or(|only| route.interface == only);
    let mut routes: Vec<&Route> = control.routes().filter(wanted).collect();
    routes.sort_by_key(|route| {
        let prefix = route.prefix;
        (!prefix.address().is_v4(), prefix.address(), prefix.length(), route.metric, route.interface)
    });
    let rows = routes.into_iter().map(|route| {
        let origin = control.origin(now, route);
        let expires = match origin {
            Origin::Router(left) => left,
            Origin::Redirect(left) => Some(left),
            Origin::Address | Origin::User => None,
        };
        let (ip, length) = (route.prefix.address().ip(), route.prefix.length());
        RouteRow {
            prefix: if length == 0 { "default".into() } else { format!("{ip}/{length}") },
            family: if ip.is_ipv4() { "inet" } else { "inet6" }.into(),
            gateway: route.gateway.map(|gateway| gateway.ip().to_string()),
            interface: name(control, route.interface),
            metric: route.metric,
            protocol: protocol(origin).into(),
            prefsrc: route.source.map(|source| source.ip().to_string()),
            expires: seconds(expires),
        }
    });
    rows.collect()
}

/// Which way packets to an address go, by one interface and from one address if they are named: all stacks have the same picture.
fn way(handle: &Handle, text: &str, interface: Option<&str>, source: Option<&str>) -> Result<WayRow, String> {
    let scoped = ScopedAddress::of(text)?;
    let named = scoped.interface(interface)?.map(String::from);
    let from = source.map(ScopedAddress::of).transpose()?.map(|from| from.ip());
    let asked = handle.control(move |control, _| {
        let id = only(control, named.as_deref())?;
        let destination = on_its_link(control, &scoped, named.as_deref())?;
        if let Some(from) = from {
            let mut ours = control.addresses().map(|(prefix, ..)| prefix.address().ip());
            if !ours.any(|ours| ours == from) {
                return Err(format!("{from} is no address of this instance"));
            }
            if from.is_ipv4() != scoped.ip().is_ipv4() {
                return Err(format!("{from} and {} are of different families", scoped.ip()));
            }
        }
        Ok((destination, id.map(|id| (id, route_by(control, id, destination).copied()))))
    });
    let (destination, by) = asked.map_err(|error| error.to_string())??;
    let stacks = handle.stacks(move |stack, _| {
        let snapshot = stack.snapshot();
        let kind = if snapshot.has_address(destination) {
            "local"
        } else if destination.is_multicast() {
            "multicast"
        } else if snapshot.is_broadcast(destination) {
            "broadcast"
        } else {
            "unicast"
        };
        let usual = snapshot.next_hop(destination);
        let (found, named) = match by {
            // What is ours or everybody's on the link is no matter of routes.
            Some((id, _)) if usual.is_some_and(|(usual, _)| usual == id) || kind == "local" => (usual, None),
            Some((id, route)) => {
                let hop = route.map(|route| (id, route.gateway.unwrap_or(destination)));
                (hop, route.and_then(|route| route.source))
            }
            None => (usual, None),
        };
        let chosen = found.and_then(|(id, hop)| snapshot.source_by(id, hop, destination));
        let source = named.filter(|named| snapshot.has_address(*named)).or(chosen);
        (found, source, kind)
    });
    let mut stacks = stacks.map_err(|error| error.to_string())?.into_iter();
    let (found, source, kind) = stacks.next().unwrap_or((None, None, "unicast"));
    let Some((id, hop)) = found else {
        let by = interface.map_or_else(String::new, |name| format!(" by {name}"));
        return Err(format!("no route leads to {text}{by}"));
    };
    let source = from.map(Address::from).or(source);
    let interface = handle.control(move |control, _| name(control, id)).map_err(|error| error.to_string())?;
    Ok(WayRow {
        kind: kind.into(),
        destination: destination.ip().to_string(),
        gateway: (hop != destination).then(|| hop.ip().to_string()),
        interface,
        source: source.map(|source| source.ip().to_string()),
    })
}

/// The route to a destination by one interface.
fn route_by(control: &Control, id: InterfaceId, destination: Address) -> Option<&Route> {
    let leads = |route: &&Route| route.interface == id && route.prefix.contains(destination);
    let best = |route: &&Route| (route.prefix.length(), std::cmp::Reverse(route.metric));
    control.routes().filter(leads).max_by_key(best)
}

fn neighbours(control: &Control, only: Option<InterfaceId>) -> Vec<NeighbourRow> {
    let wanted = control.neighbours().filter(|(id, ..)| only.is_none_or(|only| *id == only));
    let mut neighbours: Vec<_> = wanted.collect();
    neighbours.sort_by_key(|(id, address, ..)| (!address.is_v4(), *address, *id));
    let rows = neighbours.into_iter().map(|(id, address, mac, state)| NeighbourRow {
        address: address.ip().to_string(),
        interface: name(control, id),
        mac: (mac != Mac::default()).then(|| mac.to_string()),
        state: NEIGHBOUR_STATES
            .iter()
            .find(|(of, _)| *of == state)
            .map_or_else(String::new, |(_, name)| (*name).into()),
    });
    rows.collect()
}

fn stats(handle: &Handle) -> Result<Stats, String> {
    let figures = handle.figures();
    let control = handle.control(|control, _| control.counters()).map_err(|error| error.to_string())?;
    let own = handle.port_counters();
    let ports = handle.ports().iter().enumerate().map(|(at, port)| {
        let queues = || figures.iter().filter_map(|figures| figures.ports.get(at));
        let rx: QueueCounters = queues().map(|(rx, _)| *rx).sum();
        let tx: QueueCounters = queues().map(|(_, tx)| *tx).sum();
        let counted = [
            ("rx_packets", rx.packets),
            ("rx_bytes", rx.bytes),
            ("rx_errors", rx.errors),
            ("rx_no_frame", rx.no_frame),
            ("tx_packets", tx.packets),
            ("tx_bytes", tx.bytes),
            ("tx_errors", tx.errors),
        ];
        let own = own.get(at).into_iter().flatten().map(|counter| (counter.name, counter.value));
        (port.clone(), named(own.chain(counted)))
    });
    let engines = figures.iter().map(|figures| {
        let engine = figures.engine;
        let others = [("handed_over", engine.handed_over), ("ring_full", engine.ring_full)];
        named(figures.stack.named().chain(others))
    });
    let (engines, ports) = (engines.collect(), ports.collect());
    Ok(Stats { control: named(control.named()), engines, ports })
}

fn named(counted: impl IntoIterator<Item = (&'static str, u64)>) -> BTreeMap<String, u64> {
    counted.into_iter().map(|(name, count)| (name.to_owned(), count)).collect()
}
