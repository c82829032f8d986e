//! The sockets of an instance, for who asks over the control socket.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::time::Duration;

use bywash_stack::{Address, InterfaceId, Socket, SocketState, Stack, State, TimerKind, Timestamp};

use crate::instance::Handle;
use crate::request::{Families, MemoryRow, SocketDetails, SocketRow, SocketSummary, TimerRow};
use crate::socket_info::SocketInfo;

/// Sockets of one engine that are shown at most: it stands still while it lists them.
const SOCKETS: usize = 100_000;

const TCP: &str = "tcp";
const UDP: &str = "udp";
const LISTEN: &str = "LISTEN";
const ESTABLISHED: &str = "ESTAB";

/// All of them, with what else is asked for of each.
pub(crate) fn rows(handle: &Handle, details: SocketDetails) -> Result<Vec<SocketRow>, String> {
    let links = handle.control(|control, _| {
        let named = control.interfaces().map(|(id, interface)| (id, interface.name.clone()));
        named.collect::<HashMap<InterfaceId, String>>()
    });
    let links = links.map_err(|error| error.to_string())?;
    let stacks = handle.stacks(move |stack, now| {
        let made = |socket: Socket| (socket.local, row(stack, now, &socket, (details, &links)));
        stack.sockets().take(SOCKETS).map(made).collect::<Vec<_>>()
    });
    // Listeners are the instance's: each is shown once, with the handshakes of all engines.
    let mut rows: Vec<SocketRow> = Vec::new();
    let mut listeners = BTreeMap::new();
    let stacks = stacks.map_err(|error| error.to_string())?;
    let all = (0..).zip(stacks).flat_map(|(engine, all)| all.into_iter().map(move |one| (engine, one)));
    for (engine, (local, row)) in all {
        let listens = row.state == LISTEN;
        let at = if listens { *listeners.entry(local).or_insert(rows.len()) } else { rows.len() };
        match rows.get_mut(at) {
            Some(known) => {
                known.receive_queue += row.receive_queue;
                known.send_queue += row.send_queue;
            }
            None => rows.push(SocketRow { engine: (!listens).then_some(engine), ..row }),
        }
    }
    Ok(rows)
}

fn row(
    stack: &Stack,
    now: Timestamp,
    socket: &Socket,
    (details, links): (SocketDetails, &HashMap<InterfaceId, String>),
) -> SocketRow {
    let end = |address: Option<Address>, port: u16| {
        let Some(address) = address else { return format!("*:{port}") };
        let link = address.zone().and_then(|zone| links.get(&zone));
        match (address.ip(), link) {
            (IpAddr::V6(v6), Some(link)) => format!("[{v6}%{link}]:{port}"),
            (IpAddr::V6(v6), None) => format!("[{v6}]:{port}"),
            (v4, _) => format!("{v4}:{port}"),
        }
    };
    let info = || {
        let (id, congestion) = socket.connection?;
        stack.tcp_info(now, id).ok().map(|info| SocketInfo::of(&info, congestion))
    };
    let (protocol, state) = names(socket.state, socket.remote.is_some());
    SocketRow {
        protocol: protocol.into(),
        state: state.into(),
        receive_queue: socket.receive_queue,
        send_queue: socket.send_queue,
        local: end(socket.local.0, socket.local.1),
        remote: socket.remote.map_or_else(|| "*".into(), |(address, port)| end(Some(address), port)),
        engine: None,
        info: if details.info { info() } else { None },
        timer: socket.timer.filter(|_| details.timer).map(|timer| TimerRow {
            name: match timer.kind {
                TimerKind::Retransmission => "on",
                TimerKind::Persist => "persist",
                TimerKind::KeepAlive => "keepalive",
                TimerKind::TimeWait => "timewait",
            }
            .into(),
            expires_us: micros(timer.at.since(now)),
            retrans: timer.repeats,
        }),
        memory: socket.memory.filter(|_| details.memory).map(|memory| MemoryRow {
            rmem: memory.receive,
            rcvbuf: memory.receive_max,
            wmem: memory.send,
            sndbuf: memory.send_max,
        }),
    }
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

/// Protocol and state, as `ss` writes them. `has_peer`: it speaks with one other end only.
fn names(state: SocketState, has_peer: bool) -> (&'static str, &'static str) {
    let state = match state {
        SocketState::Udp => return (UDP, if has_peer { ESTABLISHED } else { "UNCONN" }),
        SocketState::Listening => LISTEN,
        SocketState::Connection(state) => match state {
            State::Closed => "CLOSED",
            State::SynSent => "SYN-SENT",
            State::SynReceived => "SYN-RECV",
            State::Established => ESTABLISHED,
            State::FinWait1 => "FIN-WAIT-1",
            State::FinWait2 => "FIN-WAIT-2",
            State::CloseWait => "CLOSE-WAIT",
            State::Closing => "CLOSING",
            State::LastAck => "LAST-ACK",
            State::TimeWait => "TIME-WAIT",
        },
    };
    (TCP, state)
}

/// What is counted together: protocol, state, whether its address is IPv4 if it is tied to one, whether no program has it.
type Kind = (&'static str, &'static str, Option<bool>, bool);

/// How many there are.
pub(crate) fn summary(handle: &Handle) -> Result<SocketSummary, String> {
    let stacks = handle.stacks(|stack, _| {
        let mut counted: BTreeMap<Kind, usize> = BTreeMap::new();
        for Socket { state, local: (address, _), remote, orphaned, .. } in stack.sockets() {
            let (protocol, state) = names(state, remote.is_some());
            *counted.entry((protocol, state, address.map(Address::is_v4), orphaned)).or_default() += 1;
        }
        counted
    });
    let mut all: BTreeMap<Kind, usize> = BTreeMap::new();
    for (kind, count) in stacks.map_err(|error| error.to_string())?.into_iter().flatten() {
        let known = all.entry(kind).or_default();
        // Each engine has all listeners.
        *known = if kind.1 == LISTEN { count.max(*known) } else { *known + count };
    }
    let count = |is: &dyn Fn(Kind) -> bool| all.iter().filter(|(kind, _)| is(**kind)).map(|(_, n)| n).sum();
    let state = |of: &'static str| count(&|(protocol, state, ..)| (protocol, state) == (TCP, of));
    let families = |of: &'static str| Families {
        total: count(&|(protocol, ..)| protocol == of),
        ipv4: count(&|(protocol, _, v4, _)| protocol == of && v4 != Some(false)),
        ipv6: count(&|(protocol, _, v4, _)| protocol == of && v4 != Some(true)),
    };
    Ok(SocketSummary {
        established: state(ESTABLISHED),
        listening: state(LISTEN),
        syn_received: state("SYN-RECV"),
        time_wait: state("TIME-WAIT"),
        orphaned: count(&|(.., orphaned)| orphaned),
        tcp: families(TCP),
        udp: families(UDP),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn udp_is_established_with_a_peer() {
        assert_eq!(names(SocketState::Udp, true), ("udp", "ESTAB"));
        assert_eq!(names(SocketState::Udp, false), ("udp", "UNCONN"));
    }
}
