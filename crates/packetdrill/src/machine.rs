//! The stack, its virtual clock, and the packets it has sent, each with the moment it left.

use std::collections::{HashMap, VecDeque};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use bywash_frame::{Arena, Batch, FRAME_SIZE, Packet, Pool};
use bywash_stack::{
    Address, ConnectionId, Event, Host, Interface, InterfaceId, Medium, Offloads, PortId, Prefix, Route,
    Timestamp,
};

use crate::errno::{self, Errno};
use crate::settings::Flags;
use crate::sockets::Sockets;

const PORT: PortId = PortId(0);
/// Memory for packets: more than any window needs.
const FRAMES: usize = 16_384;
/// Turns of the stack at one moment; more would mean that it never falls silent.
const TURNS: usize = 10_000;
/// Where the virtual clock begins: in November 2023, as good a day as any.
const BEGIN: Duration = Duration::from_secs(1_700_000_000);

/// What events have told of a connection.
#[derive(Debug, Default)]
pub(crate) struct Link {
    pub(crate) connected: bool,
    pub(crate) peer_closed: bool,
    pub(crate) closed: bool,
    /// To be told to the program once.
    pub(crate) error: Option<Errno>,
    /// What ICMP remarked, to be told once if there is nothing worse (Linux's `sk_err_soft`).
    pub(crate) soft_error: Option<Errno>,
    /// The urgent byte was read by itself.
    pub(crate) urgent_read: bool,
    /// The number of our SYN.
    pub(crate) first: Option<u32>,
    /// How often the connection became writable, for edges.
    pub(crate) roomy: u64,
    /// Somebody has seen that there is no room to write, and waits to hear that there is (Linux's `SOCK_NOSPACE`).
    pub(crate) wants_room: bool,
    /// How often its state changed.
    pub(crate) changes: u64,
    /// Bytes that it was given to send.
    pub(crate) written: u64,
}

/// Everything behind the plug-in.
#[derive(Debug)]
pub(crate) struct Machine {
    pub(crate) host: Host,
    pub(crate) pool: Pool,
    pub(crate) now: Timestamp,
    pub(crate) sockets: Sockets,
    pub(crate) links: HashMap<ConnectionId, Link>,
    pub(crate) flags: Flags,
    interface: InterfaceId,
    batch: Batch,
    sent: VecDeque<(Timestamp, Vec<u8>)>,
}

impl Machine {
    /// A host with one interface that takes IP packets.
    ///
    /// # Errors
    /// A sentence: the flags name an address or an MTU that cannot be.
    pub(crate) fn new(flags: Flags) -> Result<Self, String> {
        let memory = vec![0; (FRAMES + 1) * FRAME_SIZE];
        let arena = Arena::new(memory).map_err(|error| error.to_string())?;
        let mut pool = arena.pool(FRAMES - 64).map_err(|error| error.to_string())?;
        let mut host = Host::new(*b"packetdrill seed", &mut pool);
        let interface = Interface {
            name: "packetdrill".into(),
            port: PORT,
            medium: Medium::Ip,
            mtu: flags.mtu,
            offloads: Offloads::default(),
        };
        let interface = host.control.add_interface(interface).map_err(|error| error.to_string())?;
        let now = Timestamp::from_nanos(10_000_000_000);
        let mut machine = Self {
            host,
            pool,
            now,
            sockets: Sockets::default(),
            links: HashMap::new(),
            flags,
            interface,
            batch: Batch::new(),
            sent: VecDeque::new(),
        };
        machine.route(Ipv4Addr::UNSPECIFIED.into());
        machine.route(Ipv6Addr::UNSPECIFIED.into());
        let local = machine.flags.local;
        machine.own(local.into());
        machine.run();
        Ok(machine)
    }

    /// Everyone is behind the one interface. What the control refuses is not sent anywhere.
    fn route(&mut self, any: IpAddr) {
        if let Some(prefix) = Prefix::new(any, 0) {
            let route = Route { prefix, gateway: None, interface: self.interface, metric: 0, source: None };
            self.host.control.add_route(route).ok();
        }
    }

    /// Makes an address ours, if it is not and can be: packetdrill makes them up, and tells its plug-in by using them.
    pub(crate) fn own(&mut self, address: Address) {
        let known = self.host.control.addresses().any(|(prefix, ..)| prefix.address() == address);
        if known || !address.is_unicast() || address.is_loopback() {
            return;
        }
        let length = if address.ip().is_ipv4() { 32 } else { 128 };
        if let Some(prefix) = Prefix::new(address, length) {
            // What cannot be an address of ours is a packet for someone else: it will be dropped as such.
            self.host.control.add_address(self.now, self.interface, prefix).ok();
            self.host.advance(self.now, &mut self.pool);
        }
    }

    /// The clock as the world has it.
    pub(crate) fn time(&self) -> Duration {
        BEGIN + Duration::from_nanos(self.now.as_nanos())
    }

    /// Lets the stack do all it has to do now.
    pub(crate) fn run(&mut self) {
        for _ in 0..TURNS {
            self.host.advance(self.now, &mut self.pool);
            self.collect();
            self.take_events();
            self.take_datagrams();
            self.take_reports();
            if self.host.next_deadline().is_none_or(|next| next > self.now) {
                return;
            }
        }
    }

    /// Moves the clock, and lets the stack do what is due on the way, each at its moment.
    pub(crate) fn advance_to(&mut self, until: Timestamp) {
        while let Some(next) = self.host.next_deadline().filter(|next| *next <= until) {
            self.now = next.max(self.now);
            self.run();
            // A deadline may be passed without anything being due.
            self.now = self.now + Duration::from_nanos(1);
        }
        self.now = until.max(self.now);
    }

    /// The time that passes while somebody looks at the clock.
    pub(crate) fn look(&mut self) -> Duration {
        let next = self.now + Duration::from_micros(1);
        self.advance_to(next);
        self.time()
    }

    /// A packet from the wire, which begins with its IP header.
    pub(crate) fn inject(&mut self, bytes: &[u8]) {
        if let Some(destination) = destination(bytes) {
            self.own(destination.into());
        }
        let trouble = self.trouble(bytes);
        if let Some(packet) = self.packet(bytes) {
            self.batch.push(packet);
            self.host.receive(self.now, PORT, &mut self.batch, &mut self.pool);
        }
        self.run();
        if let Some(trouble) = trouble {
            self.suffer(&trouble);
        }
    }

    /// The next packet that the stack has sent, and when.
    pub(crate) fn sent(&mut self) -> Option<(Duration, Vec<u8>)> {
        let (at, bytes) = self.sent.pop_front()?;
        Some((BEGIN + Duration::from_nanos(at.as_nanos()), bytes))
    }

    pub(crate) fn has_sent(&self) -> bool {
        !self.sent.is_empty()
    }

    fn packet(&mut self, bytes: &[u8]) -> Option<Packet> {
        let mut packet = Packet::new(self.pool.take()?);
        if packet.append(bytes, &mut self.pool).is_err() {
            self.pool.give_packet(packet);
            return None;
        }
        Some(packet)
    }

    fn collect(&mut self) {
        loop {
            self.host.transmit(PORT, &mut self.batch);
            if self.batch.is_empty() {
                return;
            }
            let packets: Vec<Packet> = self.batch.drain().collect();
            for packet in packets {
                let mut bytes = vec![0; packet.len()];
                packet.copy_to(&mut bytes);
                self.pool.give_packet(packet);
                self.note_first(&bytes);
                self.sent.push_back((self.now, bytes));
            }
        }
    }

    pub(crate) fn has_ended(&self, id: ConnectionId) -> bool {
        self.links.get(&id).is_none_or(|link| link.closed)
    }

    /// A connection is open.
    fn opened(&mut self, id: ConnectionId) {
        if let Ok(limits) = self.host.stack.connection_limits(id) {
            self.limit(id, limits);
        }
    }

    fn take_events(&mut self) {
        let events: Vec<Event> = self.host.stack.events().collect();
        for event in events {
            match event {
                Event::Accepted { listener, connection } => {
                    if !self.sockets.arrived(listener, connection) {
                        // Its socket was closed meanwhile: so are those that had waited in its queue.
                        self.host.stack.abort(self.now, connection, &mut self.pool).ok();
                        continue;
                    }
                    self.links.insert(connection, Link { connected: true, ..Link::default() });
                    self.host.stack.set_listener_full(listener, self.sockets.is_full(listener));
                    self.opened(connection);
                }
                Event::Connected(id) => {
                    let link = self.links.entry(id).or_default();
                    link.connected = true;
                    link.changes += 1;
                    self.opened(id);
                }
                Event::Urgent(id) => self.links.entry(id).or_default().urgent_read = false,
                Event::PeerClosed(id) => {
                    let link = self.links.entry(id).or_default();
                    link.peer_closed = true;
                    link.changes += 1;
                }
                Event::Closed(id, reason) => {
                    let link = self.links.entry(id).or_default();
                    link.closed = true;
                    link.changes += 1;
                    link.error = errno::closed(reason, link.peer_closed, link.soft_error);
                }
                _ => {}
            }
        }
        for (id, link) in self.links.iter_mut().filter(|(_, link)| link.wants_room) {
            if self.host.stack.is_writable(*id).unwrap_or(true) {
                link.wants_room = false;
                link.roomy += 1;
            }
        }
    }
}

/// Where an IP packet goes.
fn destination(bytes: &[u8]) -> Option<IpAddr> {
    match bytes.first()? >> 4 {
        4 => Some(IpAddr::from(<[u8; 4]>::try_from(bytes.get(16..20)?).ok()?)),
        6 => Some(IpAddr::from(<[u8; 16]>::try_from(bytes.get(24..40)?).ok()?)),
        _ => None,
    }
}
