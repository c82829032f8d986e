//! UDP (RFC 768; RFC 1122, 4.1): sockets, their queues, and datagrams out.

use std::collections::{HashMap, VecDeque};
use std::num::NonZeroU8;

use bywash_frame::{Checksum, NoRoom, Packet, Pool};
use bywash_wire::zerocopy::IntoBytes;
use bywash_wire::{IPV4_HEADER, Protocol, UDP_HEADER, UdpHeader};

use crate::flow::Purpose;
use crate::ip::{Fields, Identifications, Inbound, fragment, fragment6, header_length, pseudo, put_header};
use crate::packet::{slices, sum};
use crate::path_mtu::{Large, smallest};
use crate::snapshot::{Path, Snapshot};
use crate::stack::{Context, Event, Share};
use crate::{Address, Flow, Notice, SocketMemory, Unreachable};

/// A socket of UDP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct UdpId(u32);

/// Where a socket keeps datagrams until they are read: bytes of frames, as Linux's `rmem_default` counts them.
const QUEUE: usize = 212_992;
/// What a frame costs a queue, however little is in it.
const FRAME: usize = bywash_frame::FRAME_SIZE;
/// Bytes of the largest payload: 65507 over IPv4, whose length counts its own header, and 65527 over IPv6.
const fn largest(destination: Address) -> usize {
    u16::MAX as usize - UDP_HEADER - if destination.is_v4() { IPV4_HEADER } else { 0 }
}
/// Ports that are given to who does not ask for one (RFC 6335, 6).
const EPHEMERAL: std::ops::RangeInclusive<u16> = 49_152..=65_535;

/// Errors that a socket without a peer keeps until they are read: the oldest make room.
const ERRORS: usize = 8;

/// How a socket's datagrams are sent, as its program has it (RFC 1122, 4.1.4).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UdpOptions {
    /// The DiffServ field, in the upper six bits, and the bits of ECN, in the lower two.
    pub traffic_class: u8,
    /// The time to live, or hop limit; where nothing is said, 64, and in IPv6 what routers say.
    pub hop_limit: Option<NonZeroU8>,
    /// Of what goes to a group; where nothing is said, 1, so that it stays on the link (RFC 1112, 6.1).
    pub group_hop_limit: Option<NonZeroU8>,
}

/// Why UDP refuses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UdpError {
    /// Another socket has the port.
    #[error("the port is taken")]
    Taken,
    /// All ports are taken.
    #[error("no port is free")]
    NoPort,
    /// The socket was closed, or never was.
    #[error("no such socket")]
    Closed,
    /// The socket has no peer and none was named.
    #[error("no destination")]
    NoDestination,
    /// No route leads there, or no address of ours fits it.
    #[error("no route to {0}")]
    NoRoute(Address),
    /// The payload is longer than 65507 bytes, or 65527 over IPv6.
    #[error("too long for a datagram")]
    TooLong,
    /// Too few frames are free.
    #[error("no packet memory")]
    NoMemory,
    /// What an earlier datagram to the peer met: the other end refuses, or cannot be reached.
    #[error("unreachable: {0:?}")]
    Unreachable(Unreachable),
}

/// A datagram that came in. Give its packet back to the pool when it is read.
#[derive(Debug)]
pub struct Datagram {
    packet: Packet,
    start: usize,
    end: usize,
    /// Who sent it.
    pub source: (Address, u16),
    /// To which of our addresses, or to which group.
    pub destination: Address,
}

impl Datagram {
    /// Bytes of payload.
    #[expect(clippy::len_without_is_empty, reason = "a datagram without payload is a datagram")]
    pub fn len(&self) -> usize {
        self.end - self.start
    }

    /// The payload, in place, frame by frame.
    pub fn slices(&self) -> impl Iterator<Item = &[u8]> {
        slices(&self.packet, self.start..self.end)
    }

    /// Bytes of its frames.
    fn cost(&self) -> usize {
        self.packet.frames() * FRAME
    }

    /// Gives the packet's frames back.
    pub fn release(self, pool: &mut Pool) {
        pool.give_packet(self.packet);
    }
}

#[derive(Debug, Default)]
struct Socket {
    /// What it was opened on: an address of ours, or the unspecified one, which is all of its family; all of both when `None`.
    bound: Option<Address>,
    /// Where it hears: that, or with a peer the address that the peer hears from.
    local: Option<Address>,
    port: u16,
    peer: Option<(Address, u16)>,
    queue: VecDeque<Datagram>,
    queued: usize,
    /// What came back from the peer.
    error: Option<Unreachable>,
    /// What came back for datagrams without one, and to whom they were.
    errors: VecDeque<((Address, u16), Unreachable)>,
    options: UdpOptions,
}

impl Socket {
    /// What of its queue counts among all that was not read: as with connections, all but the first frame.
    fn shared(&self) -> usize {
        self.queued.saturating_sub(FRAME)
    }

    /// An error that is no passing trouble, and was not told yet.
    fn fatal(&self) -> Option<Unreachable> {
        self.error.filter(|error| !error.may_pass())
    }
}

#[derive(Debug, Default)]
struct Port {
    /// Sockets that have it.
    sockets: usize,
    /// Those without a peer: more than one only if each is on another address of ours.
    unconnected: Vec<u32>,
}

/// All sockets of UDP on one stack.
#[derive(Debug, Default)]
pub(crate) struct Udp {
    sockets: HashMap<u32, Socket>,
    ports: HashMap<u16, Port>,
    /// Those with one, by port and peer: found at once, however many share the port.
    connected: HashMap<(u16, (Address, u16)), Vec<u32>>,
    next: u32,
    /// Where datagrams without a peer went.
    large: Large,
    identifications: Identifications,
}

impl Udp {
    /// Sockets opened so far, all around.
    pub(crate) fn opened(&self) -> u32 {
        self.next
    }

    pub(crate) fn bind(&mut self, local: Option<Address>, port: u16, start: u64) -> Result<UdpId, UdpError> {
        let port = if port == 0 { self.free_port(start, |_| true)? } else { port };
        if self.is_taken(local, port) {
            return Err(UdpError::Taken);
        }
        self.next = self.next.wrapping_add(1);
        let id = self.next;
        let socket = Socket { bound: local, local, port, ..Socket::default() };
        self.sockets.insert(id, socket);
        let port = self.ports.entry(port).or_default();
        port.sockets += 1;
        port.unconnected.push(id);
        Ok(UdpId(id))
    }

    /// A socket that is tied to a peer. Without a port it gets one of a flow that is wanted.
    pub(crate) fn open(
        &mut self,
        flow: Flow,
        start: u64,
        wanted: impl Fn(&Flow) -> bool,
    ) -> Result<UdpId, UdpError> {
        let fits = |local_port| wanted(&Flow { local_port, ..flow });
        let port = if flow.local_port == 0 { self.free_port(start, fits)? } else { flow.local_port };
        if self.is_tied(Some(flow.local), port, (flow.remote, flow.remote_port)) {
            return Err(UdpError::Taken);
        }
        let id = self.bind(Some(flow.local), port, start)?;
        self.tie(id, Some(flow.local), Some((flow.remote, flow.remote_port)))?;
        Ok(id)
    }

    /// Whether a socket without a peer has a port on an address that `local` has, too.
    fn is_taken(&self, local: Option<Address>, port: u16) -> bool {
        let overlaps = |id: &u32| match (self.sockets[id].local, local) {
            (Some(one), Some(other)) => {
                one.closeness(Some(other)).is_some() || other.closeness(Some(one)).is_some()
            }
            _ => true,
        };
        self.ports.get(&port).is_some_and(|port| port.unconnected.iter().any(overlaps))
    }

    /// Whether a socket with that peer has a port on that address, or on all if none is named: another one like it would take
    /// all that comes for it.
    fn is_tied(&self, local: Option<Address>, port: u16, peer: (Address, u16)) -> bool {
        let same = |id: &u32| self.sockets[id].local == local;
        self.connected.get(&(port, peer)).is_some_and(|ids| ids.iter().any(same))
    }

    /// Ties a socket to a peer, and to the address of ours that this one hears from; with `None`, to what it was opened on.
    pub(crate) fn connect(
        &mut self,
        id: UdpId,
        peer: Option<(Address, u16)>,
        snapshot: &Snapshot,
    ) -> Result<(), UdpError> {
        let bound = self.sockets.get(&id.0).ok_or(UdpError::Closed)?.bound;
        let local = match (bound, peer) {
            (_, None) => bound,
            (bound, Some((remote, _))) => {
                let (_, source) = way(snapshot, bound, remote)?;
                // What is for a group is heard with a peer, too.
                bound.filter(|bound| !bound.is_unspecified()).or(Some(source))
            }
        };
        self.tie(id, local, peer)
    }

    fn tie(
        &mut self,
        id: UdpId,
        local: Option<Address>,
        peer: Option<(Address, u16)>,
    ) -> Result<(), UdpError> {
        let socket = self.sockets.get(&id.0).ok_or(UdpError::Closed)?;
        if (local, peer) == (socket.local, socket.peer) {
            return Ok(());
        }
        // While it had another peer, or none, another one may have come to have the port.
        let taken = match peer {
            Some(peer) => self.is_tied(local, socket.port, peer),
            None => self.is_taken(local, socket.port),
        };
        if taken {
            return Err(UdpError::Taken);
        }
        let socket = self.sockets.get_mut(&id.0).ok_or(UdpError::Closed)?;
        socket.local = local;
        socket.errors.clear();
        let (port, old) = (socket.port, std::mem::replace(&mut socket.peer, peer));
        self.unlist(id.0, port, old);
        self.list_of(port, peer).push(id.0);
        Ok(())
    }

    /// The sockets of a port with this peer, or with none.
    fn list_of(&mut self, port: u16, peer: Option<(Address, u16)>) -> &mut Vec<u32> {
        match peer {
            Some(peer) => self.connected.entry((port, peer)).or_default(),
            None => &mut self.ports.entry(port).or_default().unconnected,
        }
    }

    fn unlist(&mut self, id: u32, port: u16, peer: Option<(Address, u16)>) {
        let ids = self.list_of(port, peer);
        ids.retain(|other| *other != id);
        if let (true, Some(peer)) = (ids.is_empty(), peer) {
            self.connected.remove(&(port, peer));
        }
    }

    pub(crate) fn local_port(&self, id: UdpId) -> Option<u16> {
        self.sockets.get(&id.0).map(|socket| socket.port)
    }

    pub(crate) fn peer(&self, id: UdpId) -> Option<(Address, u16)> {
        self.sockets.get(&id.0)?.peer
    }

    pub(crate) fn receive(&mut self, id: UdpId, share: &mut Share) -> Result<Option<Datagram>, UdpError> {
        let socket = self.sockets.get_mut(&id.0).ok_or(UdpError::Closed)?;
        if let Some(error) = socket.error.take() {
            return Err(UdpError::Unreachable(error));
        }
        let datagram = socket.queue.pop_front();
        if let Some(datagram) = &datagram {
            let before = socket.shared();
            socket.queued -= datagram.cost();
            share.unread -= before - socket.shared();
        }
        Ok(datagram)
    }

    /// See [`Stack::udp_error`](crate::Stack::udp_error).
    pub(crate) fn error(&mut self, id: UdpId) -> Option<((Address, u16), Unreachable)> {
        self.sockets.get_mut(&id.0)?.errors.pop_front()
    }

    /// How a socket's datagrams are sent.
    pub(crate) fn options(&mut self, id: UdpId) -> Option<&mut UdpOptions> {
        self.sockets.get_mut(&id.0).map(|socket| &mut socket.options)
    }

    pub(crate) fn close(&mut self, id: UdpId, share: &mut Share, pool: &mut Pool) {
        let Some(socket) = self.sockets.remove(&id.0) else { return };
        share.unread -= socket.shared();
        for datagram in socket.queue {
            datagram.release(pool);
        }
        self.unlist(id.0, socket.port, socket.peer);
        if let Some(port) = self.ports.get_mut(&socket.port) {
            port.sockets -= 1;
            if port.sockets == 0 {
                self.ports.remove(&socket.port);
            }
        }
    }

    /// Takes a datagram from IP.
    pub(crate) fn input(&mut self, inbound: Inbound, context: &mut Context<'_>) {
        let Some(udp) = UdpHeader::parse(inbound.transport(), inbound.end - inbound.start).copied() else {
            context.counters.malformed += 1;
            context.counters.udp_errors += 1;
            return context.pool.give_packet(inbound.packet);
        };
        // What the length leaves out is padding; the checksum does not cover it.
        let end = inbound.start + usize::from(udp.length.get());
        let inbound = Inbound { end, ..inbound };
        // RFC 8200, 8.1: over IPv6 there is always one. (RFC 6935 knows tunnels without, which are not here.)
        let unsummed = udp.checksum.get() == 0 && inbound.source.is_v4();
        if !unsummed && (udp.checksum.get() == 0 || !inbound.checksum_right()) {
            context.counters.checksum += 1;
            context.counters.udp_errors += 1;
            return context.pool.give_packet(inbound.packet);
        }
        let flow = Flow {
            local: inbound.destination,
            remote: inbound.source,
            local_port: udp.destination_port.get(),
            remote_port: udp.source_port.get(),
        };
        let Some(id) = self.find(&flow) else {
            context.counters.udp_no_port += 1;
            return context.refuse(inbound, Unreachable::Port);
        };
        let Some(socket) = self.sockets.get_mut(&id) else { return };
        let cost = inbound.packet.frames() * FRAME;
        // One frame each may have, so that those who are read go on; the rest is a share of what all may leave unread.
        let alone = socket.queued == 0 && cost == FRAME && !context.share.low;
        if socket.queued + cost > QUEUE || !(alone || context.share.takes(cost)) {
            context.counters.udp_full += 1;
            return context.pool.give_packet(inbound.packet);
        }
        let before = socket.shared();
        socket.queued += cost;
        context.share.unread += socket.shared() - before;
        context.counters.udp_received += 1;
        if socket.queue.is_empty() {
            context.events.push(Event::UdpReadable(UdpId(id)));
        }
        socket.queue.push_back(Datagram {
            packet: inbound.packet,
            start: inbound.start + UDP_HEADER,
            end,
            source: (flow.remote, flow.remote_port),
            destination: flow.local,
        });
    }

    /// An error of ICMP came back for a datagram of ours: it is told (RFC 1122, 4.1.3.3). With a peer the last is the result of the
    /// next call, or where it may pass, of the next that reads; without one the last few are kept, with the destinations that they are
    /// about, for who asks. What a socket with a peer has sent to others is told to nobody.
    ///
    /// That a path is narrower is kept for all datagrams that follow (RFC 8201, 5.2), and told, too: this one is lost. It is
    /// believed only of a peer, or if such a datagram was sent (RFC 8201, 4): anyone can make up a port of ours.
    pub(crate) fn notice(&mut self, notice: &Notice, context: &mut Context<'_>) {
        let Some(id) = self.find(&notice.flow) else { return };
        let Some(socket) = self.sockets.get_mut(&id) else { return };
        let connected = socket.peer.is_some();
        if let Unreachable::TooBig(mtu) = notice.error
            && (connected || self.large.holds(context.secret.hash(Purpose::Datagram, &notice.flow)))
        {
            context.out.path_mtus.learn(context.now, notice.flow.remote, mtu);
        }
        if !connected {
            if socket.errors.is_empty() {
                context.events.push(Event::UdpReadable(UdpId(id)));
            } else if socket.errors.len() == ERRORS {
                socket.errors.pop_front();
            }
            socket.errors.push_back(((notice.flow.remote, notice.flow.remote_port), notice.error));
        } else if socket.fatal().is_none() || !notice.error.may_pass() {
            // What may pass does not hide what will not.
            socket.error = Some(notice.error);
            context.events.push(Event::UdpReadable(UdpId(id)));
        }
    }

    /// Sends a datagram to `to`, or to the peer, from an address of ours that is named, or the socket's, or the route's.
    pub(crate) fn send(
        &mut self,
        id: UdpId,
        from: Option<Address>,
        to: Option<(Address, u16)>,
        payload: &[u8],
        context: &mut Context<'_>,
    ) -> Result<(), UdpError> {
        let socket = self.sockets.get_mut(&id.0).ok_or(UdpError::Closed)?;
        if let Some(error) = socket.fatal() {
            socket.error = None;
            return Err(UdpError::Unreachable(error));
        }
        let (remote, remote_port) = to.or(socket.peer).ok_or(UdpError::NoDestination)?;
        if payload.len() > largest(remote) {
            return Err(UdpError::TooLong);
        }
        let snapshot = context.out.snapshot.clone();
        let (path, local) =
            way(&snapshot, from.filter(|from| speaks(&snapshot, *from)).or(socket.local), remote)?;
        let flow = Flow { local, remote, local_port: socket.port, remote_port };
        let options = socket.options;
        if socket.peer.is_none()
            && payload.len() + UDP_HEADER + header_length(remote) > smallest(remote).into()
        {
            self.large.note(context.secret.hash(Purpose::Datagram, &flow));
        }
        let mtu = context.out.mtu_to(remote, context.now);
        let fits = payload.len() + UDP_HEADER + header_length(remote) <= mtu;
        let offload = snapshot.interface(path.interface).offloads.checksum && fits;
        let mut packet = build(&flow, payload, context.pool).map_err(|NoRoom| UdpError::NoMemory)?;
        finish(&mut packet, &flow, offload);
        // The control cuts packets of IPv6, too, where others of ICMP are not told apart.
        let (number, stacks) = (context.share.number, context.share.stacks);
        let mine = if remote.is_v4() { (number, stacks) } else { (2 * number, 2 * stacks) };
        let identification =
            (!fits).then(|| self.identifications.next(context.secret, (local, remote), mine));
        let fields = Fields {
            source: local,
            destination: remote,
            protocol: Protocol::UDP.0,
            class: options.traffic_class,
            hop_limit: if remote.is_multicast() {
                options.group_hop_limit.map_or(1, NonZeroU8::get)
            } else {
                options.hop_limit.map_or_else(|| snapshot.hop_limit(path, remote), NonZeroU8::get)
            },
            identification: identification.and_then(|number| u16::try_from(number).ok()),
        };
        if !put_header(&mut packet, &fields) {
            context.pool.give_packet(packet);
            return Err(UdpError::NoRoute(remote));
        }
        let out = &mut context.out;
        let send = |piece, pool: &mut Pool| out.send(piece, path, pool);
        let sent = if remote.is_v4() {
            fragment(packet, mtu, context.pool, send)
        } else {
            fragment6(packet, mtu, identification.unwrap_or_default(), context.pool, send)
        };
        context.counters.udp_sent += u64::from(sent);
        if sent { Ok(()) } else { Err(UdpError::NoMemory) }
    }

    /// The socket that fits a flow best: one connected to it, else one bound to the address, else one to the port, of one family
    /// before one of both.
    fn find(&self, flow: &Flow) -> Option<u32> {
        let best = |ids: &Vec<u32>| {
            let closeness = |id: &u32| flow.local.closeness(self.sockets[id].local);
            let fits = ids.iter().filter_map(|id| Some((closeness(id)?, *id)));
            fits.max_by_key(|(closeness, _)| *closeness).map(|(_, id)| id)
        };
        let connected = self.connected.get(&(flow.local_port, (flow.remote, flow.remote_port)));
        connected.and_then(best).or_else(|| best(&self.ports.get(&flow.local_port)?.unconnected))
    }

    /// For [`Stack::sockets`](crate::Stack::sockets).
    pub(crate) fn list(&self) -> impl Iterator<Item = crate::Socket> {
        self.sockets.values().map(|socket| crate::Socket {
            state: crate::SocketState::Udp,
            local: (socket.local, socket.port),
            remote: socket.peer,
            receive_queue: socket.queued,
            send_queue: 0,
            connection: None,
            orphaned: false,
            memory: Some(SocketMemory {
                receive: socket.queued,
                receive_max: QUEUE,
                ..SocketMemory::default()
            }),
            timer: None,
        })
    }

    fn free_port(&self, start: u64, fits: impl Fn(u16) -> bool) -> Result<u16, UdpError> {
        let count = u64::from(EPHEMERAL.end() - EPHEMERAL.start()) + 1;
        let port = |i: u64| u16::try_from(u64::from(*EPHEMERAL.start()) + (start.wrapping_add(i)) % count);
        (0..count)
            .filter_map(|i| port(i).ok())
            .find(|port| !self.ports.contains_key(port) && fits(*port))
            .ok_or(UdpError::NoPort)
    }
}

/// How datagrams get to another host, and which address of ours they come from: the given one, or the route's, of the same family.
pub(crate) fn way(
    snapshot: &Snapshot,
    given: Option<Address>,
    remote: Address,
) -> Result<(Path, Address), UdpError> {
    let possible = remote.is_destination() && given.is_none_or(|given| given.is_v4() == remote.is_v4());
    let path = snapshot.path(remote).filter(|_| possible).ok_or(UdpError::NoRoute(remote))?;
    let given = given.filter(|given| speaks(snapshot, *given));
    let local = snapshot.source_or(given, path, remote).ok_or(UdpError::NoRoute(remote))?;
    Ok((path, local))
}

/// Whether an address is one host's, as a source must be: who hears what is for many does not speak as they.
fn speaks(snapshot: &Snapshot, address: Address) -> bool {
    address.is_unicast() && !snapshot.is_broadcast(address)
}

/// A datagram without its checksum.
fn build(flow: &Flow, payload: &[u8], pool: &mut Pool) -> Result<Packet, NoRoom> {
    let length = u16::try_from(UDP_HEADER + payload.len()).map_err(|_| NoRoom)?;
    let header = UdpHeader {
        source_port: flow.local_port.into(),
        destination_port: flow.remote_port.into(),
        length: length.into(),
        checksum: 0.into(),
    };
    let mut packet = Packet::new(pool.take().ok_or(NoRoom)?);
    let built = packet.append(header.as_bytes(), pool).and_then(|()| packet.append(payload, pool));
    if built.is_err() {
        pool.give_packet(packet);
        return Err(NoRoom);
    }
    Ok(packet)
}

/// Puts the checksum in, or leaves it to the port.
fn finish(packet: &mut Packet, flow: &Flow, offload: bool) {
    const OFFSET: u16 = 6;
    let length = packet.len();
    let start = pseudo(flow.local, flow.remote, Protocol::UDP.0, length);
    let checksum = if offload {
        packet.offload.set_checksum(Checksum::Partial { start: 0, offset: OFFSET });
        start.partial()
    } else {
        match sum(start, packet, 0..length).checksum() {
            0 => 0xffff,
            checksum => checksum,
        }
    };
    let at = usize::from(OFFSET);
    packet.head_mut()[at..at + 2].copy_from_slice(&checksum.to_be_bytes());
}
