//! IPv6 that comes in (RFC 8200): checked, its extension headers followed, delivered or passed on.

use bywash_frame::{Packet, Pool};
use bywash_wire::zerocopy::FromBytes;
use bywash_wire::{
    ExtensionError, FRAGMENT_HEADER, FragmentHeader, IPV6_HEADER, IcmpHeader, Ipv6Header, Next, Place,
    Protocol, TCP_HEADER, UDP_HEADER, icmpv6,
};

use super::reassembly::{Fragment, Whole};
use super::{Arrival, Inbound};
use crate::{Address, InterfaceId, Stack, Timestamp, Unreachable};

/// Headers of one fragmented packet inside another: the second round is the last.
const ROUNDS: usize = 2;

impl Stack {
    pub(super) fn ipv6_input(
        &mut self,
        now: Timestamp,
        arrival: Arrival,
        mut packet: Packet,
        pool: &mut Pool,
    ) {
        let Some(ip) = Ipv6Header::parse(packet.head(), packet.len()).copied() else {
            self.counters.malformed += 1;
            return pool.give_packet(packet);
        };
        super::trim(&mut packet, IPV6_HEADER + usize::from(ip.payload_length.get()), pool);
        let read = |address| Address::from_wire(address, arrival.zone);
        let (Some(source), Some(destination)) = (read(ip.source()), read(ip.destination())) else {
            self.counters.martian += 1;
            return pool.give_packet(packet);
        };
        let inside = arrival.interface == InterfaceId::LOOPBACK;
        // RFC 4291, 2.7: scope 1 never leaves a host, scope 0 is reserved.
        let scope = destination.bits() >> 112 & 0xf;
        let shut_in = destination.is_multicast() && (scope == 0 || (scope == 1 && !inside));
        // Who looks for an address of its own has none yet (RFC 4862, 5.4.2; RFC 3810, 5.2.13).
        let nobody = source.is_unspecified() && destination.is_multicast() && !destination.is_unspecified();
        if shut_in || (!nobody && self.is_martian(inside, source, destination)) {
            self.counters.martian += 1;
            return pool.give_packet(packet);
        }
        let to_group = destination.is_multicast();
        if to_group && !self.out.snapshot.is_our_group(destination) {
            self.counters.not_for_us += 1;
            return pool.give_packet(packet);
        }
        if !to_group && !self.out.snapshot.is_ours(destination) {
            return self.forward6(arrival, packet, &ip, (source, destination), pool);
        }
        let inbound = Inbound {
            interface: arrival.zone,
            source,
            destination,
            protocol: ip.next_header,
            start: IPV6_HEADER,
            end: IPV6_HEADER + usize::from(ip.payload_length.get()),
            ecn: ip.traffic_class() & 3,
            group: arrival.group || to_group,
            reassembled: false,
            inside,
            packet,
        };
        self.follow(now, inbound, pool);
    }

    /// Follows the extension headers of a packet for us, and puts it together if it is a piece.
    fn follow(&mut self, now: Timestamp, mut inbound: Inbound, pool: &mut Pool) {
        for _ in 0..ROUNDS {
            let head = inbound.packet.head();
            let bytes = &head[..inbound.end.min(head.len())];
            let next =
                Place::first(bytes).ok_or(ExtensionError::Malformed).and_then(|first| first.follow(bytes));
            match next {
                Ok(Next::Upper(place)) => return self.upper(now, inbound, place, pool),
                Ok(Next::Fragment(place)) if !inbound.reassembled => {
                    let Some(whole) = self.piece(now, inbound, place, pool) else { return };
                    inbound = whole;
                }
                Ok(Next::Fragment(_)) => break,
                Err(error) => return self.give_up(inbound, error, pool),
            }
        }
        self.counters.malformed += 1;
        pool.give_packet(inbound.packet);
    }

    /// The headers lead to something that is known here, or not.
    fn upper(&mut self, now: Timestamp, inbound: Inbound, place: Place, pool: &mut Pool) {
        let known = matches!(Protocol(place.protocol), Protocol::TCP | Protocol::UDP | Protocol::ICMPV6);
        if !known {
            let error =
                ExtensionError::Problem { code: icmpv6::NEXT_HEADER, pointer: place.named_at, always: false };
            return self.give_up(inbound, error, pool);
        }
        let icmp = place.protocol == Protocol::ICMPV6.0;
        let kind = inbound.packet.head().get(place.start).copied().unwrap_or(0);
        // RFC 6980, 5: pieces get past those who watch over neighbour discovery.
        let hidden =
            inbound.reassembled && icmp && (icmpv6::ROUTER_SOLICITATION..=icmpv6::REDIRECT).contains(&kind);
        // Only ICMPv6 has something to say without an address.
        if hidden || (inbound.source.is_unspecified() && !icmp) {
            self.counters.martian += 1;
            return pool.give_packet(inbound.packet);
        }
        self.deliver_up(now, Inbound { protocol: place.protocol, start: place.start, ..inbound }, pool);
    }

    /// A fragment header: the packet is whole (RFC 6946: then it is no matter for others of its number), or waits, or
    /// makes others whole. What comes back is marked as reassembled.
    fn piece(&mut self, now: Timestamp, inbound: Inbound, place: Place, pool: &mut Pool) -> Option<Inbound> {
        let Ok((header, _)) = FragmentHeader::read_from_prefix(&inbound.packet.head()[place.start..]) else {
            self.give_up(inbound, ExtensionError::Malformed, pool);
            return None;
        };
        let start = place.start + FRAGMENT_HEADER;
        let length = inbound.end.saturating_sub(start);
        let problem = |code, pointer| Some(ExtensionError::Problem { code, pointer, always: false });
        let headers = place.start - IPV6_HEADER;
        let atomic = header.offset() == 0 && !header.more();
        let error = if header.more() && !length.is_multiple_of(8) {
            problem(icmpv6::FIELD, 4)
        } else if header.offset() + length + headers > usize::from(u16::MAX) {
            problem(icmpv6::FIELD, place.start + 2)
        } else if header.offset() == 0 && !atomic && !has_all_headers(&inbound, header.next_header, place) {
            problem(icmpv6::INCOMPLETE, 0)
        } else {
            None
        };
        if let Some(error) = error {
            self.give_up(inbound, error, pool);
            return None;
        }
        self.counters.fragments += 1;
        let whole = Whole::V6 { header: place.start, named_at: place.named_at, next: header.next_header };
        let inbound = Inbound { start, ..inbound };
        let (identification, offset, more) = (header.identification.get(), header.offset(), header.more());
        let piece = Fragment { identification, offset, more, whole };
        if atomic {
            return self.fragments.unwrap_atomic(inbound, piece, &mut self.counters, pool);
        }
        self.fragments.take(now, inbound, piece, &mut self.counters, pool)
    }

    /// A packet goes no further; its sender is told if that is the rule (RFC 4443, 2.4 (e)).
    fn give_up(&mut self, inbound: Inbound, error: ExtensionError, pool: &mut Pool) {
        match error {
            ExtensionError::Problem { code, pointer, always } if always || !inbound.group => {
                self.counters.refused += 1;
                let pointer = u16::try_from(pointer).unwrap_or(u16::MAX);
                let error = Unreachable::Parameter { code, pointer, always };
                return self.report(inbound.interface, inbound.packet, error);
            }
            ExtensionError::Malformed => self.counters.malformed += 1,
            ExtensionError::Problem { .. } | ExtensionError::Silent => self.counters.refused += 1,
        }
        pool.give_packet(inbound.packet);
    }

    /// Passes a packet for another host on.
    fn forward6(
        &mut self,
        arrival: Arrival,
        mut packet: Packet,
        ip: &Ipv6Header,
        (source, destination): (Address, Address),
        pool: &mut Pool,
    ) {
        // RFC 4291, 2.5.2, 2.5.3 and 2.5.6: what no router passes on.
        let passable = destination.is_unicast() && !destination.is_loopback() && !destination.has_zone();
        if !self.out.snapshot.forwarding || arrival.group || !passable || source.is_unspecified() {
            self.counters.not_for_us += 1;
            return pool.give_packet(packet);
        }
        if ip.hop_limit <= 1 {
            return self.report(arrival.zone, packet, Unreachable::TimeExceeded);
        }
        let Some((path, link)) = self.out.snapshot.onward(destination) else {
            self.counters.no_route += 1;
            return self.report(arrival.zone, packet, Unreachable::Network);
        };
        if source.has_zone() {
            return self.report(arrival.zone, packet, Unreachable::Scope);
        }
        let (mtu, link) = (self.out.snapshot.mtu(path), link.copied());
        if super::output::largest_piece(&packet) > usize::from(mtu) {
            return self.report(arrival.zone, packet, Unreachable::TooBig(mtu));
        }
        if let Ok((header, _)) = Ipv6Header::mut_from_prefix(packet.head_mut()) {
            header.hop_limit = ip.hop_limit - 1;
        }
        self.counters.forwarded += 1;
        match link {
            Some(link) => self.out.send_link(packet, &link, pool),
            None => self.out.send(packet, path, pool),
        }
    }
}

/// Whether a first piece has all headers to the end of the upper layer's (RFC 7112, 5; RFC 8200, 4.5).
fn has_all_headers(inbound: &Inbound, next: u8, fragment: Place) -> bool {
    let head = inbound.packet.head();
    let bytes = &head[..inbound.end.min(head.len())];
    let place = Place { protocol: next, start: fragment.start + FRAGMENT_HEADER, named_at: fragment.start };
    let upper = match place.follow(bytes) {
        Ok(Next::Upper(upper)) => upper,
        // What is wrong with it, it will be when it is whole.
        Ok(Next::Fragment(_)) | Err(ExtensionError::Silent | ExtensionError::Problem { .. }) => return true,
        Err(ExtensionError::Malformed) => return false,
    };
    let needed = match Protocol(upper.protocol) {
        Protocol::TCP => TCP_HEADER,
        Protocol::UDP => UDP_HEADER,
        Protocol::ICMPV6 => size_of::<IcmpHeader>(),
        _ => 0,
    };
    upper.start + needed <= bytes.len()
}
