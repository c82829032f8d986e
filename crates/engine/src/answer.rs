//! What an instance does with what it is asked over its control socket.

use std::net::IpAddr;

use bywash_stack::wire::Mac;
use bywash_stack::{
    Address, AddressState, Control, Counters, Interface, InterfaceId, Medium, NeighbourState, Prefix, Route,
    Socket, SocketState, State,
};

use crate::instance::Handle;
use crate::request::{AddressRow, Answer, NeighbourRow, Request, RouteRow, RouteWords, SocketRow, Stats};

/// Sockets of one engine that are shown at most: it stands still while it lists them.
const SOCKETS: usize = 100_000;

/// Does what is asked.
pub(crate) fn answer(handle: &Handle, request: Request) -> Answer {
    done(handle, request).map_or_else(Answer::Error, Answer::Ok)
}

fn done(handle: &Handle, request: Request) -> Result<serde_json::Value, String> {
    match request {
        Request::Sockets {} => shown(&sockets(handle)?),
        Request::Stats {} => shown(&stats(handle)),
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
    now: bywash_stack::Timestamp,
    request: Request,
) -> Result<serde_json::Value, String> {
    let nothing = serde_json::Value::Null;
    match request {
        Request::Addresses {} => return shown(&addresses(control)),
        Request::Routes {} => return shown(&routes(control)),
        Request::Neighbours {} => return shown(&neighbours(control)),
        Request::AddAddress { address, interface } => {
            let id = interface_named(control, interface.as_deref())?;
            let prefix: Prefix = address.parse().map_err(|error| format!("{error}"))?;
            control.add_address(now, id, prefix).map_err(|error| error.to_string())?;
        }
        Request::RemoveAddress { address } => {
            let wanted = ip(address.split('/').next().unwrap_or_default())?;
            let ours = control.addresses().map(|(prefix, ..)| prefix.address());
            let ours: Vec<Address> = ours.filter(|our| our.ip() == wanted).collect();
            if ours.is_empty() {
                return Err(format!("{address} is no address of this instance"));
            }
            ours.into_iter().for_each(|address| {
                control.remove_address(address);
            });
        }
        Request::AddRoute(words) => add_route(control, &words)?,
        Request::RemoveRoute(words) => remove_route(control, &words)?,
        Request::AddNeighbour { address, mac, interface } => {
            let address = ip(&address)?.into();
            let id = match interface {
                Some(name) => interface_named(control, Some(&name))?,
                None => interface_towards(control, address)?,
            };
            let mac: Mac = mac.parse().map_err(|error| format!("{error}"))?;
            control.add_neighbour(id, address, mac).map_err(|error| error.to_string())?;
        }
        Request::RemoveNeighbour { address, interface } => {
            let wanted: Address = ip(&address)?.into();
            let ids: Vec<InterfaceId> = match interface {
                Some(name) => vec![interface_named(control, Some(&name))?],
                None => control.interfaces().map(|(id, _)| id).collect(),
            };
            if ids.iter().map(|id| control.remove_neighbour(*id, wanted)).sum::<usize>() == 0 {
                return Err(format!("{address} is no neighbour that is known"));
            }
        }
        Request::Sockets {} | Request::Stats {} => {}
    }
    Ok(nothing)
}

fn ip(text: &str) -> Result<IpAddr, String> {
    text.parse().map_err(|_| format!("'{text}' is no address: write 10.0.0.1 or fd00::1, say"))
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

/// The interface whose link a router or neighbour is on.
fn interface_towards(control: &Control, address: Address) -> Result<InterfaceId, String> {
    let mut links = control.addresses().filter(|(prefix, ..)| prefix.contains(address));
    match links.next() {
        Some((_, id, _)) => Ok(id),
        None => interface_named(control, None),
    }
}

fn prefix(text: &str) -> Result<Prefix, String> {
    match text {
        "default" => "0.0.0.0/0".parse(),
        "default6" => "::/0".parse(),
        text => text.parse(),
    }
    .map_err(|error: bywash_stack::PrefixError| error.to_string())
}

fn add_route(control: &mut Control, words: &RouteWords) -> Result<(), String> {
    let gateway: Option<Address> = words.gateway.as_deref().map(ip).transpose()?.map(Address::from);
    let interface = match (&words.interface, gateway) {
        (None, Some(gateway)) => interface_towards(control, gateway)?,
        (name, _) => interface_named(control, name.as_deref())?,
    };
    let mut prefix = prefix(&words.prefix)?;
    // "default" by a router of IPv6 is a route of IPv6.
    if words.prefix == "default" && gateway.is_some_and(|gateway| !gateway.is_v4()) {
        prefix = self::prefix("default6")?;
    }
    if gateway.is_some_and(|gateway| gateway.is_v4() != prefix.address().is_v4()) {
        return Err(format!("{} and its router are of different families", words.prefix));
    }
    let metric = words.metric.unwrap_or(0);
    control.add_route(Route { prefix, gateway, interface, metric }).map_err(|error| error.to_string())
}

fn remove_route(control: &mut Control, words: &RouteWords) -> Result<(), String> {
    let wanted = prefix(&words.prefix)?.network();
    let gateway = words.gateway.as_deref().map(ip).transpose()?;
    let interface =
        words.interface.as_deref().map(|name| interface_named(control, Some(name))).transpose()?;
    let removed = control.remove_routes(|route| {
        // A link-local prefix has its link's number in it: what is written is compared.
        route.prefix.address().ip() == wanted.address().ip()
            && route.prefix.length() == wanted.length()
            && gateway.is_none_or(|gateway| route.gateway.map(Address::ip) == Some(gateway))
            && interface.is_none_or(|interface| route.interface == interface)
            && words.metric.is_none_or(|metric| route.metric == metric)
    });
    if removed == 0 { Err(format!("there is no such route to {}", words.prefix)) } else { Ok(()) }
}

fn name(control: &Control, id: InterfaceId) -> String {
    let found = control.interfaces().find(|(other, _)| *other == id);
    found.map_or_else(String::new, |(_, interface)| interface.name.clone())
}

fn addresses(control: &Control) -> Vec<AddressRow> {
    let rows = control.addresses().filter_map(|(prefix, id, state)| {
        let (_, interface) = control.interfaces().find(|(other, _)| *other == id)?;
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
        })
    });
    rows.collect()
}

fn routes(control: &Control) -> Vec<RouteRow> {
    let rows = control.routes().map(|route| RouteRow {
        prefix: format!("{}/{}", route.prefix.address().ip(), route.prefix.length()),
        gateway: route.gateway.map(|gateway| gateway.ip().to_string()),
        interface: name(control, route.interface),
        metric: route.metric,
    });
    let mut rows: Vec<RouteRow> = rows.collect();
    // Within one length the order is chance.
    rows.sort_by(|a, b| (&a.prefix, a.metric).cmp(&(&b.prefix, b.metric)));
    rows
}

fn neighbours(control: &Control) -> Vec<NeighbourRow> {
    let rows = control.neighbours().map(|(id, address, mac, state)| NeighbourRow {
        address: address.ip().to_string(),
        interface: name(control, id),
        mac: (mac != Mac::default()).then(|| mac.to_string()),
        state: match state {
            NeighbourState::Incomplete => "incomplete",
            NeighbourState::Reachable => "reachable",
            NeighbourState::Stale => "stale",
            NeighbourState::Delay => "delay",
            NeighbourState::Probe => "probe",
            NeighbourState::Failed => "failed",
            NeighbourState::Permanent => "permanent",
        }
        .into(),
    });
    let mut rows: Vec<NeighbourRow> = rows.collect();
    rows.sort_by(|a, b| a.address.cmp(&b.address));
    rows
}

fn sockets(handle: &Handle) -> Result<Vec<SocketRow>, String> {
    let stacks = handle.stacks(|stack, _| stack.sockets(SOCKETS)).map_err(|error| error.to_string())?;
    let rows = stacks
        .into_iter()
        .enumerate()
        .flat_map(|(engine, sockets)| sockets.into_iter().map(move |socket| socket_row(engine, &socket)));
    Ok(rows.collect())
}

fn socket_row(engine: usize, socket: &Socket) -> SocketRow {
    let end = |address: Option<Address>, port: u16| match address.map(Address::ip) {
        Some(IpAddr::V6(v6)) => format!("[{v6}]:{port}"),
        Some(v4) => format!("{v4}:{port}"),
        None => format!("*:{port}"),
    };
    let (protocol, state) = match socket.state {
        SocketState::Udp => ("udp", "UNCONN"),
        SocketState::Listening => ("tcp", "LISTEN"),
        SocketState::Connection(state) => ("tcp", state_name(state)),
    };
    SocketRow {
        protocol: protocol.into(),
        state: state.into(),
        receive_queue: socket.receive_queue,
        send_queue: socket.send_queue,
        local: end(socket.local.0, socket.local.1),
        remote: socket.remote.map_or_else(|| "*".into(), |(address, port)| end(Some(address), port)),
        engine,
    }
}

fn state_name(state: State) -> &'static str {
    match state {
        State::Closed => "CLOSED",
        State::SynSent => "SYN-SENT",
        State::SynReceived => "SYN-RECV",
        State::Established => "ESTAB",
        State::FinWait1 => "FIN-WAIT-1",
        State::FinWait2 => "FIN-WAIT-2",
        State::CloseWait => "CLOSE-WAIT",
        State::Closing => "CLOSING",
        State::LastAck => "LAST-ACK",
        State::TimeWait => "TIME-WAIT",
    }
}

fn stats(handle: &Handle) -> Stats {
    let figures = handle.figures();
    let named = |pairs: &[(&str, u64)]| pairs.iter().map(|(name, n)| ((*name).to_owned(), *n)).collect();
    let ports = handle.ports().iter().enumerate().map(|(at, port)| {
        let queues = figures.iter().filter_map(|figures| figures.ports.get(at));
        let (rx, tx) = queues.fold(Default::default(), |(rx, tx), queue| {
            (crate::figures::sum(rx, queue.0), crate::figures::sum(tx, queue.1))
        });
        let counted = [
            ("rx_packets", rx.packets),
            ("rx_bytes", rx.bytes),
            ("rx_errors", rx.errors),
            ("rx_no_frame", rx.no_frame),
            ("tx_packets", tx.packets),
            ("tx_bytes", tx.bytes),
            ("tx_errors", tx.errors),
        ];
        (port.clone(), named(&counted))
    });
    let engines = figures.iter().map(|figures| {
        let engine = figures.engine;
        let mut counted = stack_counters(&figures.stack);
        counted.extend([("handed_over", engine.handed_over), ("ring_full", engine.ring_full)]);
        named(&counted)
    });
    Stats { engines: engines.collect(), ports: ports.collect() }
}

fn stack_counters(counters: &Counters) -> Vec<(&'static str, u64)> {
    vec![
        ("received", counters.received),
        ("not_for_us", counters.not_for_us),
        ("malformed", counters.malformed),
        ("checksum", counters.checksum),
        ("martian", counters.martian),
        ("source_route", counters.source_route),
        ("forwarded", counters.forwarded),
        ("no_route", counters.no_route),
        ("refused", counters.refused),
        ("fragments", counters.fragments),
        ("reassembled", counters.reassembled),
        ("fragments_dropped", counters.fragments_dropped),
        ("tcp_received", counters.tcp_received),
        ("udp_received", counters.udp_received),
        ("udp_full", counters.udp_full),
        ("udp_sent", counters.udp_sent),
        ("no_memory", counters.no_memory),
    ]
}
