//! IP: what comes in is checked, delivered or passed on; what goes out gets its header.

mod forward;
mod fragment;
mod identification;
mod output;
mod quick;
mod reassembly;
mod v4;
mod v6;

use std::ops::Range;

use bywash_frame::{BATCH, Batch, Checksum, Packet, Pool};
use bywash_wire::checksum::Sum;
use bywash_wire::zerocopy::FromBytes;
use bywash_wire::{EtherType, EthernetHeader, Mac, Protocol, VlanTag};

pub(crate) use fragment::{fragment, fragment6};
pub(crate) use identification::Identifications;
pub(crate) use output::{Fields, header_length, network_length, put_header, write_header};
use quick::{Ahead, Known};
pub(crate) use reassembly::Reassembly;

use crate::segmentation::cut;
use crate::stack::Context;
use crate::{
    Address, Flow, InterfaceId, Medium, PortId, Request, Snapshot, Stack, Timestamp, Unreachable, gro, packet,
};

/// Where a packet came in.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Arrival {
    /// The loopback for packets of our own.
    pub(crate) interface: InterfaceId,
    /// The link that its link-local addresses are on.
    pub(crate) zone: InterfaceId,
    /// It was sent to more than one host, by its Ethernet address.
    pub(crate) group: bool,
}

/// "Congestion experienced" in the IP header (RFC 3168, 5).
pub(crate) const MARKED: u8 = 3;

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
    /// It came in pieces.
    pub(crate) reassembled: bool,
    /// It comes from this machine.
    pub(crate) inside: bool,
}

impl Inbound {
    /// Bytes from the transport header on, as far as they lie in the first frame.
    #[inline]
    pub(crate) fn transport(&self) -> &[u8] {
        let head = self.packet.head();
        head.get(self.start..self.end.min(head.len())).unwrap_or_default()
    }

    /// Whether the checksum of TCP or UDP is right, or known not to matter.
    pub(crate) fn checksum_right(&self) -> bool {
        let start = pseudo(self.source, self.destination, self.protocol, self.end - self.start);
        checksum_right(&self.packet, self.start..self.end, start)
    }
}

/// Whether the checksum of TCP or UDP in `place` of a packet is right, or known not to matter. `start`: the pseudo-header's sum.
#[inline(always)]
pub(crate) fn checksum_right(packet: &Packet, place: Range<usize>, start: Sum) -> bool {
    match packet.offload.checksum() {
        // Partial: it came from this machine, and nobody has summed it because nothing can have changed it.
        Checksum::Valid | Checksum::Partial { .. } => true,
        Checksum::Bad => false,
        Checksum::Unknown => packet::sum(start, packet, place).checksum() == 0,
    }
}

/// The sum of a pseudo-header.
#[inline]
pub(crate) fn pseudo(source: Address, destination: Address, protocol: u8, length: usize) -> Sum {
    let addresses = match (source.v4(), destination.v4()) {
        (Some(source), Some(destination)) => {
            Sum::new().quad(u64::from(source.to_bits()) << 32 | u64::from(destination.to_bits()))
        }
        _ => Sum::new().wide(source.wire()).wide(destination.wire()),
    };
    // A super-segment's length has more than 16 bits.
    addresses.word(protocol.into()).quad(length as u64)
}

/// A packet of TCP or UDP that came in pieces, and that is perhaps another stack's: see [`Stack::reassembled`].
#[derive(Debug)]
pub struct Reassembled(Inbound);

impl Reassembled {
    /// Its two ends, seen from here. Without ports when it ends before them.
    pub fn flow(&self) -> Flow {
        let Inbound { source: remote, destination: local, .. } = self.0;
        match *self.0.transport() {
            [a, b, c, d, ..] => {
                let (remote_port, local_port) = (u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d]));
                Flow { local, remote, local_port, remote_port }
            }
            _ => Flow { local, remote, ..Flow::default() },
        }
    }

    /// Its memory, for who has no use for the rest.
    pub fn into_packet(self) -> Packet {
        self.0.packet
    }
}

impl Stack {
    /// Says how many stacks, with this one, have our addresses and our packet memory, and which of them it is, from 0 on; flows are
    /// dealt out among them. Pieces of a packet show no ports, so they are all sent to one stack; what they become there is then not
    /// taken by one of several, but waits in [`Stack::reassembled`]. What arrives early and what waits to be sent may hold each
    /// stack's share of memory, and the control's listeners have its share of handshakes under way.
    pub fn set_stacks(&mut self, number: usize, stacks: usize) {
        (self.share.number, self.share.stacks) = (number, stacks.max(1));
        self.out.stacks = self.share.stacks;
        self.fragments.stacks = self.share.stacks;
        self.listen_as_told();
    }

    /// Packets that were put together since this was last called. Whoever knows whose a flow is gives them to
    /// [`Stack::take_reassembled`] of that stack.
    pub fn reassembled(&mut self) -> impl Iterator<Item = Reassembled> {
        self.reassembled.drain(..)
    }

    /// Takes a packet that this stack, or another one with its addresses, has put together.
    pub fn take_reassembled(&mut self, now: Timestamp, packet: Reassembled, pool: &mut Pool) {
        self.deliver_here(now, packet.0, pool);
    }

    /// Takes the packets that a port has received. Empties the batch.
    pub fn receive(&mut self, now: Timestamp, port: PortId, batch: &mut Batch, pool: &mut Pool) {
        self.counters.received += batch.len() as u64;
        let snapshot = &self.out.snapshot;
        let medium = snapshot.interface_of(port, None).map(|id| snapshot.interface(id).medium);
        if snapshot.forwarding {
            let snapshot = snapshot.clone();
            return match medium {
                Some(Medium::Ethernet { mac, .. }) => self.pass_on(now, (port, mac), &snapshot, batch, pool),
                _ => self.take_in_turn(now, port, &snapshot, batch, pool),
            };
        }
        gro::coalesce(batch, medium != Some(Medium::Ip), |_| true, pool);
        self.take_each(now, port, batch, pool);
    }

    #[inline]
    fn take_each(&mut self, now: Timestamp, port: PortId, batch: &mut Batch, pool: &mut Pool) {
        let quick = quick::mac_of(&self.out.snapshot, port);
        let mut ahead = Ahead::new(quick);
        batch.take_each(|packet, others| {
            if ahead.is_over() {
                self.look_ahead(&mut ahead, &packet, others);
            }
            self.port_input(now, port, ahead.take(), packet, pool);
        });
    }

    /// Takes a packet that a port has received, by the shorter way if there is one.
    #[inline]
    fn port_input(
        &mut self,
        now: Timestamp,
        port: PortId,
        known: Option<Known>,
        packet: Packet,
        pool: &mut Pool,
    ) {
        let taken = match known {
            Some(known) => self.known_input(now, known, packet, pool),
            None => Err(packet),
        };
        if let Err(packet) = taken {
            self.link_input(now, port, packet, pool);
        }
    }

    /// Takes packets that a router's port has received. They stay where they are until all are ready: most of them go the
    /// same way, together.
    // A function of its own: amid others, the processor's registers would not do for what its loops need.
    #[inline(never)]
    fn pass_on(
        &mut self,
        now: Timestamp,
        (port, mac): (PortId, Mac),
        snapshot: &Snapshot,
        batch: &mut Batch,
        pool: &mut Pool,
    ) {
        let hops = forward::hops(snapshot, batch);
        let mut ways = [PortId::NONE; BATCH];
        let count = batch.len().min(BATCH);
        let ways = &mut ways[..count];
        for ((way, hop), packet) in ways.iter_mut().zip(&hops[..count]).zip(&mut *batch) {
            *way = forward::pass_on(snapshot, mac, *hop, packet);
        }
        let Some(first) = ways.first().copied() else { return };
        // Looking at all of them is faster than stopping at the first that differs.
        if ways.iter().fold(true, |same, way| same & (*way == first)) {
            if first == PortId::NONE {
                return self.take_in_turn(now, port, snapshot, batch, pool);
            }
            self.counters.forwarded += batch.len() as u64;
            return self.out.enqueue_all(batch, first, pool);
        }
        let mut others = self.others.take().unwrap_or_default();
        for (way, packet) in ways.iter().zip(batch.drain()) {
            if *way == PortId::NONE {
                others.push(packet);
                continue;
            }
            // Those before it first: a flow's packets keep their order, also where some of them have to go the long way.
            if !others.is_empty() {
                self.take_in_turn(now, port, snapshot, &mut others, pool);
            }
            self.counters.forwarded += 1;
            self.out.enqueue(packet, *way, pool);
        }
        self.take_in_turn(now, port, snapshot, &mut others, pool);
        self.others = Some(others);
    }

    /// Takes those of a router's packets that do not go the short way. What is passed on goes as it came, and only what is for us is
    /// put together.
    fn take_in_turn(
        &mut self,
        now: Timestamp,
        port: PortId,
        snapshot: &Snapshot,
        batch: &mut Batch,
        pool: &mut Pool,
    ) {
        let medium = snapshot.interface_of(port, None).map(|id| snapshot.interface(id).medium);
        gro::coalesce(batch, medium != Some(Medium::Ip), |to| snapshot.is_ours(to), pool);
        self.take_each(now, port, batch, pool);
    }

    /// Takes a packet that begins with its IP header and comes from this machine. `zone`: the link that its
    /// link-local addresses are on.
    pub fn deliver(&mut self, now: Timestamp, zone: InterfaceId, packet: Packet, pool: &mut Pool) {
        self.counters.received += 1;
        let arrival = Arrival { interface: InterfaceId::LOOPBACK, zone, group: false };
        self.ip_input(now, arrival, packet, pool);
    }

    /// Reads what is in front of the IP header and takes it off.
    fn link_input(&mut self, now: Timestamp, port: PortId, mut packet: Packet, pool: &mut Pool) {
        // Ports are few, and most have one interface: the first that fits is found at once.
        let tag = packet.offload.vlan().map(|tag| tag & 0xfff);
        if let Some(id) = self.out.snapshot.interface_of(port, None)
            && self.out.snapshot.interface(id).medium == Medium::Ip
        {
            return self.ip_input(now, Arrival { interface: id, zone: id, group: false }, packet, pool);
        }
        let read = read_ethernet(packet.head(), tag);
        let interface = read.and_then(|link| self.out.snapshot.interface_of(port, link.tag));
        let (Some(link), Some(id)) = (read, interface) else {
            self.counters.not_for_us += 1;
            return pool.give_packet(packet);
        };
        if tag.is_some() {
            // It has said what it had to: on the way out it would be another link's.
            packet.offload.set_vlan(None);
        }
        let group = link.destination.is_multicast();
        let ours = match self.out.snapshot.interface(id).medium {
            Medium::Ethernet { mac, .. } => link.destination == mac || group,
            Medium::Ip => false,
        };
        let arrival = Arrival { interface: id, zone: id, group };
        // The header was read in the head: it can be taken off there.
        let cut = take_off(&mut packet, link.length);
        match link.kind {
            EtherType::IPV4 if ours && cut => self.ipv4_input(now, arrival, packet, pool),
            EtherType::IPV6 if ours && cut => self.ipv6_input(now, arrival, packet, pool),
            EtherType::ARP if ours && cut => self.out.requests.push(Request::Arp { interface: id, packet }),
            _ => {
                self.counters.not_for_us += 1;
                pool.give_packet(packet);
            }
        }
    }

    /// Takes a packet that begins with an IP header of either version.
    fn ip_input(&mut self, now: Timestamp, arrival: Arrival, packet: Packet, pool: &mut Pool) {
        match packet.head().first().map(|first| first >> 4) {
            Some(6) => self.ipv6_input(now, arrival, packet, pool),
            _ => self.ipv4_input(now, arrival, packet, pool),
        }
    }

    /// Hands a whole packet for us to its protocol, unless it has only now become whole and may be another stack's.
    fn deliver_up(&mut self, now: Timestamp, inbound: Inbound, pool: &mut Pool) {
        let ports = matches!(Protocol(inbound.protocol), Protocol::TCP | Protocol::UDP);
        // Packets of our own are on the stack where both their ends are.
        if self.share.stacks > 1 && inbound.reassembled && ports && !inbound.inside {
            return self.reassembled.push(Reassembled(inbound));
        }
        self.deliver_here(now, inbound, pool);
    }

    fn deliver_here(&mut self, now: Timestamp, inbound: Inbound, pool: &mut Pool) {
        let (tcp, udp, mut context) = self.protocols(now, pool);
        match Protocol(inbound.protocol) {
            Protocol::TCP => tcp.input(inbound, &mut context),
            Protocol::UDP if inbound.packet.offload.segmentation().is_some() => {
                self.deliver_each(now, inbound, pool);
            }
            Protocol::UDP => udp.input(inbound, &mut context),
            Protocol::ICMP if inbound.source.is_v4() => self.icmp_input(inbound),
            Protocol::ICMPV6 if !inbound.source.is_v4() => self.icmp_input(inbound),
            _ => context.refuse(inbound, Unreachable::Protocol),
        }
    }

    /// Datagrams that came as one super-segment, because they were sent so (Linux: `UDP_SEGMENT`) or the port has joined them: where
    /// each begins is a matter of the program's, so they are cut before it sees them.
    #[cold]
    fn deliver_each(&mut self, now: Timestamp, inbound: Inbound, pool: &mut Pool) {
        // What is cut counts as summed.
        if !inbound.checksum_right() {
            self.counters.checksum += 1;
            self.counters.udp_errors += 1;
            return pool.give_packet(inbound.packet);
        }
        let Inbound {
            interface, source, destination, protocol, start, ecn, group, reassembled, inside, ..
        } = inbound;
        let done = cut(inbound.packet, 0, false, pool, |packet, pool| {
            let end = packet.len();
            let (_, udp, mut context) = self.protocols(now, pool);
            let datagram = Inbound {
                packet,
                interface,
                source,
                destination,
                protocol,
                start,
                end,
                ecn,
                group,
                reassembled,
                inside,
            };
            udp.input(datagram, &mut context);
        });
        self.out.dropped += u64::from(!done);
    }

    fn icmp_input(&mut self, inbound: Inbound) {
        let Inbound { interface, packet, start, .. } = inbound;
        self.out.requests.push(Request::Icmp { interface, packet, start });
    }

    /// RFC 1122, 3.2.1.3 and RFC 4291, 2.5.2, 2.5.3 and 2.7: what cannot be a source, and what cannot come from
    /// outside.
    fn is_martian(&self, inside: bool, source: Address, destination: Address) -> bool {
        let snapshot = &self.out.snapshot;
        let loopback = (source.is_loopback() || destination.is_loopback()) && !inside;
        let ours = !inside && snapshot.is_ours(source);
        loopback || ours || !source.is_host() || snapshot.is_broadcast(source) || destination.is_unspecified()
    }

    /// Leaves it to the control to tell a packet's sender what became of it.
    fn report(&mut self, interface: InterfaceId, packet: Packet, error: Unreachable) {
        self.out.requests.push(Request::Report { interface, packet, error });
    }
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
}

/// Takes a header off the front, and counts anew where a checksum that is not finished yet begins.
fn take_off(packet: &mut Packet, length: usize) -> bool {
    if let Checksum::Partial { start, offset } = packet.offload.checksum() {
        let length = u16::try_from(length).unwrap_or(u16::MAX);
        let Some(start) = start.checked_sub(length) else { return false };
        packet.offload.set_checksum(Checksum::Partial { start, offset });
    }
    packet.pull_front(length).is_ok()
}

/// Takes off what stands behind an IP packet, of which it has nothing: padding of the link, or what somebody has hung on.
#[inline]
fn trim(packet: &mut Packet, length: usize, pool: &mut Pool) {
    if packet.len() > length {
        packet.truncate(length, pool);
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
