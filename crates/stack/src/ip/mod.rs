//! IP: what comes in is checked, delivered or passed on; what goes out gets its header.

mod fragment;
mod reassembly;

use bywash_frame::{Batch, Checksum, Packet, Pool};
use bywash_wire::checksum::{Sum, updated};
use bywash_wire::zerocopy::{FromBytes, IntoBytes};
use bywash_wire::{DONT_FRAGMENT, EtherType, EthernetHeader, Ipv4Error, Ipv4Header, Mac, Protocol, VlanTag};

pub(crate) use fragment::fragment;
pub(crate) use reassembly::Reassembly;

use crate::stack::Context;
use crate::{Address, InterfaceId, Medium, PortId, Request, Stack, Timestamp, Unreachable, packet};

/// A packet for us, its IP header read.
#[derive(Debug)]
pub(crate) struct Inbound {
    /// From the IP header on.
    pub(crate) packet: Packet,
    pub(crate) interface: InterfaceId,
    pub(crate) source: Address,
    pub(crate) destination: Address,
    pub(crate) protocol: u8,
    /// Where the transport header begins, and where the payload ends.
    pub(crate) start: usize,
    pub(crate) end: usize,
    /// The two bits of RFC 3168.
    pub(crate) ecn: u8,
    /// Sent to more than one host, by its Ethernet or by its IP address.
    pub(crate) group: bool,
}

impl Inbound {
    /// Bytes from the transport header on, as far as they lie in the first frame.
    #[inline]
    pub(crate) fn transport(&self) -> &[u8] {
        let head = self.packet.head();
        head.get(self.start..self.end.min(head.len())).unwrap_or_default()
    }

    /// Whether the checksum of TCP or UDP is right, or known not to matter.
    #[inline]
    pub(crate) fn checksum_right(&self) -> bool {
        match self.packet.offload.checksum {
            // Partial: it came from this machine, and nobody has summed it because nothing can have changed it.
            Checksum::Valid | Checksum::Partial { .. } => true,
            Checksum::Bad => false,
            Checksum::Unknown => {
                let start = pseudo(self.source, self.destination, self.protocol, self.end - self.start);
                packet::sum(start, &self.packet, self.start..self.end).checksum() == 0
            }
        }
    }
}

/// The sum of a pseudo-header.
#[inline]
pub(crate) fn pseudo(source: Address, destination: Address, protocol: u8, length: usize) -> Sum {
    let length = u32::try_from(length).unwrap_or(u32::MAX);
    match (source.v4(), destination.v4()) {
        (Some(source), Some(destination)) => {
            Sum::pseudo(&source.octets(), &destination.octets(), protocol, length)
        }
        _ => {
            let (source, destination) = (source.bits().to_be_bytes(), destination.bits().to_be_bytes());
            Sum::pseudo(&source, &destination, protocol, length)
        }
    }
}

impl Stack {
    /// Takes the packets that a port has received. Empties the batch.
    pub fn receive(&mut self, now: Timestamp, port: PortId, batch: &mut Batch, pool: &mut Pool) {
        for packet in batch.drain() {
            self.counters.received += 1;
            self.link_input(now, port, packet, pool);
        }
    }

    /// Takes a packet that begins with its IP header and comes from this machine.
    pub fn deliver(&mut self, now: Timestamp, packet: Packet, pool: &mut Pool) {
        self.counters.received += 1;
        self.ip_input(now, InterfaceId::LOOPBACK, packet, false, pool);
    }

    /// Reads what is in front of the IP header and takes it off.
    fn link_input(&mut self, now: Timestamp, port: PortId, mut packet: Packet, pool: &mut Pool) {
        // Ports are few, and most have one interface: the first that fits is found at once.
        let tag = packet.offload.vlan.map(|tag| tag & 0xfff);
        if let Some(id) = self.out.snapshot.interface_of(port, None)
            && self.out.snapshot.interface(id).medium == Medium::Ip
        {
            return self.ip_input(now, id, packet, false, pool);
        }
        let read = read_ethernet(packet.head(), tag);
        let interface = read.and_then(|link| self.out.snapshot.interface_of(port, link.tag));
        let (Some(link), Some(id)) = (read, interface) else {
            self.counters.not_for_us += 1;
            return pool.give_packet(packet);
        };
        let group = link.destination.is_multicast();
        let ours = match self.out.snapshot.interface(id).medium {
            Medium::Ethernet { mac, .. } => link.destination == mac || group,
            Medium::Ip => false,
        };
        // The header was read in the head: it can be taken off there.
        let cut = packet.pull_front(link.length).is_ok();
        match link.kind {
            EtherType::IPV4 if ours && cut => self.ip_input(now, id, packet, group, pool),
            EtherType::ARP if ours && cut => self.out.requests.push(Request::Arp { interface: id, packet }),
            _ => {
                self.counters.not_for_us += 1;
                pool.give_packet(packet);
            }
        }
    }

    fn ip_input(&mut self, now: Timestamp, id: InterfaceId, packet: Packet, group: bool, pool: &mut Pool) {
        let ip = match Ipv4Header::parse(packet.head(), packet.len()) {
            Ok(ip) => *ip,
            Err(error) => {
                match error {
                    Ipv4Error::Malformed => self.counters.malformed += 1,
                    Ipv4Error::Checksum => self.counters.checksum += 1,
                }
                return pool.give_packet(packet);
            }
        };
        let (source, destination) = (Address::from(ip.source()), Address::from(ip.destination()));
        if self.is_martian(id, source, destination) {
            self.counters.martian += 1;
            return pool.give_packet(packet);
        }
        if has_source_route(&packet.head()[20..ip.header_length()]) {
            self.counters.source_route += 1;
            return pool.give_packet(packet);
        }
        let snapshot = &self.out.snapshot;
        let to_group = destination.is_multicast() || snapshot.is_broadcast(destination);
        if !to_group && !snapshot.is_ours(destination) {
            return self.forward(id, packet, &ip, group, pool);
        }
        let inbound = Inbound {
            interface: id,
            source,
            destination,
            protocol: ip.protocol,
            start: ip.header_length(),
            end: usize::from(ip.total_length.get()),
            ecn: ip.traffic_class & 3,
            group: group || to_group,
            packet,
        };
        if !ip.is_fragment() {
            return self.deliver_up(now, inbound, pool);
        }
        self.counters.fragments += 1;
        if let Some(whole) = self.fragments.take(now, inbound, &ip, &mut self.counters, pool) {
            self.deliver_up(now, whole, pool);
        }
    }

    /// Hands a whole packet for us to its protocol.
    fn deliver_up(&mut self, now: Timestamp, inbound: Inbound, pool: &mut Pool) {
        let mut context = Context {
            now,
            secret: &self.secret,
            out: &mut self.out,
            pool,
            events: &mut self.events,
            counters: &mut self.counters,
        };
        match Protocol(inbound.protocol) {
            Protocol::TCP => self.tcp.input(inbound, &mut context),
            Protocol::UDP => self.udp.input(inbound, &mut context),
            Protocol::ICMP => {
                let Inbound { interface, packet, .. } = inbound;
                self.out.requests.push(Request::Icmp { interface, packet });
            }
            _ => context.refuse(inbound, Unreachable::Protocol),
        }
    }

    /// Passes a packet for another host on (RFC 1812, 5.2).
    fn forward(
        &mut self,
        id: InterfaceId,
        mut packet: Packet,
        ip: &Ipv4Header,
        group: bool,
        pool: &mut Pool,
    ) {
        let destination = Address::from(ip.destination());
        if !self.out.snapshot.forwarding || group || destination.is_loopback() || !destination.is_unicast() {
            self.counters.not_for_us += 1;
            return pool.give_packet(packet);
        }
        let mut report =
            |packet, error| self.out.requests.push(Request::Report { interface: id, packet, error });
        if ip.time_to_live <= 1 {
            return report(packet, Unreachable::TimeExceeded);
        }
        let Some(path) = self.out.snapshot.path(destination) else {
            self.counters.no_route += 1;
            return report(packet, Unreachable::Network);
        };
        let mtu = self.out.snapshot.interface(path.interface).mtu;
        if packet.len() > usize::from(mtu) && ip.fragment.get() & DONT_FRAGMENT != 0 {
            return report(packet, Unreachable::TooBig(mtu));
        }
        if let Ok((header, _)) = Ipv4Header::mut_from_prefix(packet.head_mut()) {
            let word = |ttl: u8| u16::from_be_bytes([ttl, ip.protocol]);
            header.time_to_live = ip.time_to_live - 1;
            let checksum = updated(ip.checksum.get(), word(ip.time_to_live), word(ip.time_to_live - 1));
            header.checksum = checksum.into();
        }
        self.counters.forwarded += 1;
        fragment(packet, usize::from(mtu), pool, |piece, pool| self.out.send(piece, path, pool));
    }

    /// RFC 1122, 3.2.1.3: what cannot be a source, and what cannot come from outside.
    fn is_martian(&self, id: InterfaceId, source: Address, destination: Address) -> bool {
        let inside = id == InterfaceId::LOOPBACK;
        let snapshot = &self.out.snapshot;
        let loopback = (source.is_loopback() || destination.is_loopback()) && !inside;
        let ours = !inside && snapshot.is_ours(source);
        loopback
            || ours
            || !source.is_unicast()
            || snapshot.is_broadcast(source)
            || destination.is_unspecified()
    }
}

#[derive(Clone, Copy)]
struct LinkInput {
    destination: Mac,
    tag: Option<u16>,
    kind: EtherType,
    length: usize,
}

/// Reads the Ethernet header and a VLAN tag, which may have been taken out by the port (`tag`).
fn read_ethernet(bytes: &[u8], tag: Option<u16>) -> Option<LinkInput> {
    let (header, rest) = EthernetHeader::ref_from_prefix(bytes).ok()?;
    let kind = EtherType(header.kind.get());
    let length = size_of::<EthernetHeader>();
    if kind != EtherType::VLAN || tag.is_some() {
        return Some(LinkInput {
            destination: header.destination,
            tag: tag.filter(|t| *t != 0),
            kind,
            length,
        });
    }
    let (inner, _) = VlanTag::ref_from_prefix(rest).ok()?;
    // VLAN 0 is a priority and no VLAN (IEEE 802.1Q, 9.6).
    let tag = Some(inner.number()).filter(|number| *number != 0);
    Some(LinkInput {
        destination: header.destination,
        tag,
        kind: EtherType(inner.kind.get()),
        length: length + size_of::<VlanTag>(),
    })
}

/// Whether IPv4 options hold a source route, loose or strict. The other options mean nothing to us (RFC 1122,
/// 3.2.1.8).
fn has_source_route(mut options: &[u8]) -> bool {
    const END: u8 = 0;
    const NOTHING: u8 = 1;
    const LOOSE: u8 = 131;
    const STRICT: u8 = 137;
    while let [kind, rest @ ..] = options {
        match (*kind, rest.first()) {
            (LOOSE | STRICT, _) => return true,
            (NOTHING, _) => options = rest,
            (END, _) | (_, None | Some(0 | 1)) => return false,
            (_, Some(length)) => options = options.get(usize::from(*length)..).unwrap_or_default(),
        }
    }
    false
}

impl Context<'_> {
    /// Nobody here takes the packet: its sender is told, if it may be.
    pub(crate) fn refuse(&mut self, inbound: Inbound, error: Unreachable) {
        self.counters.refused += 1;
        let Inbound { interface, packet, group, .. } = inbound;
        if group {
            return self.pool.give_packet(packet);
        }
        self.out.requests.push(Request::Report { interface, packet, error });
    }

    /// Puts an IP header in front of a transport segment that lies whole in a packet.
    pub(crate) fn ip_header(
        &mut self,
        packet: &mut Packet,
        source: Address,
        destination: Address,
        protocol: u8,
        fragment: Option<u16>,
        traffic_class: u8,
    ) -> bool {
        let (Some(source), Some(destination)) = (source.v4(), destination.v4()) else { return false };
        let Ok(length) = u16::try_from(packet.len()) else { return false };
        if length > u16::MAX - 20 {
            return false;
        }
        let mut ip = Ipv4Header::new(source, destination, protocol, length);
        if let Some(identification) = fragment {
            (ip.fragment, ip.identification) = (0.into(), identification.into());
        }
        if fragment.is_some() || traffic_class != 0 {
            ip.traffic_class = traffic_class;
            ip.seal();
        }
        let bytes = ip.as_bytes();
        packet.push_front(bytes.len()).map(|front| front[..bytes.len()].copy_from_slice(bytes)).is_ok()
    }
}
