//! ICMP for IPv6 (RFC 4443): echoes answered, errors heard, errors made, and messages of neighbour discovery sent.

use bywash_frame::{Offload, Packet, Pool};
use bywash_wire::checksum::Sum;
use bywash_wire::zerocopy::{FromBytes, IntoBytes};
use bywash_wire::{
    EtherType, FragmentHeader, ICMP_HEADER, IPV6_HEADER, IPV6_MTU, IcmpHeader, Ipv6Header, Mac, Next, Place,
    Protocol, TIME_TO_LIVE, has_router_alert, icmpv6, mld,
};

use super::Control;
use crate::flow::Purpose;
use crate::ip::{Fields, fragment6, pseudo, put_header};
use crate::packet::{append_range, sum};
use crate::path_mtu::smallest;
use crate::snapshot::Path;
use crate::{Address, Flow, InterfaceId, Notice, Timestamp, Unreachable};

/// A message that came in, its checksum right.
#[derive(Clone, Copy, Debug)]
pub(super) struct Received<'a> {
    pub(super) interface: InterfaceId,
    pub(super) source: Address,
    pub(super) destination: Address,
    pub(super) hop_limit: u8,
    /// From the ICMPv6 header on, as far as they lie in the first frame.
    pub(super) bytes: &'a [u8],
}

impl Received<'_> {
    pub(super) fn code(&self) -> Option<u8> {
        self.bytes.get(1).copied()
    }
}

/// Where a message of ours goes that needs no route.
#[derive(Clone, Copy, Debug)]
pub(super) struct Message {
    pub(super) interface: InterfaceId,
    pub(super) source: Address,
    pub(super) destination: Address,
    /// Where the destination is, if that is known without asking.
    pub(super) to: Option<Mac>,
    pub(super) hop_limit: u8,
    /// Routers are to look at it (RFC 2711).
    pub(super) alert: bool,
}

impl Control {
    /// Takes an ICMPv6 message for us, from its IP header on.
    pub(super) fn icmp6(
        &mut self,
        now: Timestamp,
        id: InterfaceId,
        packet: Packet,
        start: usize,
        pool: &mut Pool,
    ) {
        let echo = self.take_icmp6(now, id, &packet, start, pool).unwrap_or(false);
        if echo {
            self.echo6(now, id, packet, start, pool);
        } else {
            pool.give_packet(packet);
        }
    }

    /// Whether it is an echo request to be answered; `None` when it is nothing at all.
    fn take_icmp6(
        &mut self,
        now: Timestamp,
        id: InterfaceId,
        packet: &Packet,
        start: usize,
        pool: &mut Pool,
    ) -> Option<bool> {
        let (ip, _) = Ipv6Header::read_from_prefix(packet.head()).ok()?;
        let source = Address::from_wire(ip.source(), id)?;
        let destination = Address::from_wire(ip.destination(), id)?;
        let end = IPV6_HEADER + usize::from(ip.payload_length.get());
        let pseudo = pseudo(source, destination, Protocol::ICMPV6.0, end.checked_sub(start)?);
        if end < start + ICMP_HEADER || sum(pseudo, packet, start..end).checksum() != 0 {
            self.counters.icmp_errors += 1;
            return None;
        }
        self.counters.icmp_received += 1;
        let head = packet.head();
        let bytes = head.get(start..end.min(head.len()))?;
        let received = Received { interface: id, source, destination, hop_limit: ip.hop_limit, bytes };
        let (icmp, quoted) = IcmpHeader::read_from_prefix(bytes).ok()?;
        match icmp.kind {
            icmpv6::ECHO_REQUEST => return Some(source.is_unicast()),
            icmpv6::UNREACHABLE
            | icmpv6::PACKET_TOO_BIG
            | icmpv6::TIME_EXCEEDED
            | icmpv6::PARAMETER_PROBLEM => self.take_error(now, id, &icmp, quoted),
            icmpv6::NEIGHBOUR_SOLICITATION => self.solicited(now, &received, pool),
            icmpv6::NEIGHBOUR_ADVERTISEMENT => self.advertised(now, &received),
            icmpv6::ROUTER_ADVERTISEMENT => self.router_advertised(now, &received),
            icmpv6::LISTENER_QUERY => self.queried(now, &received, has_router_alert(head)),
            icmpv6::REDIRECT => self.redirected6(now, &received),
            // Router solicitations are for routers that advertise, which this one does not.
            _ => {}
        }
        Some(false)
    }

    /// An error about something that we, perhaps, have sent.
    fn take_error(&mut self, now: Timestamp, id: InterfaceId, icmp: &IcmpHeader, quoted: &[u8]) {
        self.counters.icmp_error_messages_received += 1;
        let error = match (icmp.kind, icmp.code) {
            (icmpv6::PACKET_TOO_BIG, _) => {
                let mtu = u16::try_from(icmp.rest.get()).unwrap_or(u16::MAX);
                // RFC 8201, 4: no path is so narrow.
                if mtu < IPV6_MTU {
                    return;
                }
                Unreachable::TooBig(mtu)
            }
            (icmpv6::UNREACHABLE, icmpv6::NO_ROUTE) => Unreachable::Network,
            (icmpv6::UNREACHABLE, icmpv6::PORT) => Unreachable::Port,
            (icmpv6::UNREACHABLE, icmpv6::SCOPE) => Unreachable::Scope,
            (icmpv6::UNREACHABLE, _) => Unreachable::Host,
            (icmpv6::TIME_EXCEEDED, 0) => Unreachable::TimeExceeded,
            (icmpv6::TIME_EXCEEDED, _) => Unreachable::Reassembly,
            (icmpv6::PARAMETER_PROBLEM, icmpv6::NEXT_HEADER) => Unreachable::Protocol,
            (_, code) => {
                let pointer = u16::try_from(icmp.rest.get()).unwrap_or(u16::MAX);
                Unreachable::Parameter { code, pointer, always: false }
            }
        };
        let Some(notice) = notice6(quoted, id, error) else { return };
        if !self.outbox.snapshot.is_ours(notice.flow.local) {
            return;
        }
        // Our own echo replies are the only large packets that no stack knows of. It is believed only if one went there (RFC
        // 8201, 4). Type and code stand where others have our port.
        let Flow { local, remote, local_port, .. } = notice.flow;
        let reply = (Protocol::ICMPV6.0, u16::from_be_bytes([icmpv6::ECHO_REPLY, 0]));
        if let Unreachable::TooBig(mtu) = error
            && (notice.protocol, local_port) == reply
            && self.large.holds(self.echo_hash(local, remote))
        {
            self.outbox.path_mtus.learn(now, remote, mtu);
        }
        self.notices.push(notice);
    }

    /// What large echo replies to a host are remembered by.
    fn echo_hash(&self, local: Address, remote: Address) -> u64 {
        self.secret.hash(Purpose::Datagram, &Flow { local, remote, ..Flow::default() })
    }

    /// Turns an echo request into its reply: the same bytes the other way (RFC 4443, 4.2), also to one for all.
    fn echo6(&mut self, now: Timestamp, id: InterfaceId, mut packet: Packet, start: usize, pool: &mut Pool) {
        let reply = |control: &Self, packet: &mut Packet| {
            let (ip, _) = Ipv6Header::read_from_prefix(packet.head()).ok()?;
            let to = Address::from_wire(ip.source(), id)?;
            let asked = Address::from_wire(ip.destination(), id)?;
            let snapshot = &control.outbox.snapshot;
            let by = |path: Path| {
                let ours = (!asked.is_multicast()).then_some(asked);
                snapshot.source_or(ours, path, to).map(|from| (from, path))
            };
            // Who has asked for an address that means something on one link alone is on that link, wherever the route to him leads
            // (RFC 4291, 2.5.6).
            let near = || asked.is_link_local().then_some((asked, Path { interface: id, next_hop: to }));
            let (from, path) = snapshot.path(to).and_then(by).or_else(near)?;
            let end = IPV6_HEADER + usize::from(ip.payload_length.get());
            // The header was read in the head, and so lies there.
            packet.pull_front(start).ok()?;
            let length = end - start;
            let (icmp, _) = IcmpHeader::mut_from_prefix(packet.head_mut()).ok()?;
            (icmp.kind, icmp.checksum) = (icmpv6::ECHO_REPLY, 0.into());
            let whole = sum(pseudo(from, to, Protocol::ICMPV6.0, length), packet, 0..length).checksum();
            let (icmp, _) = IcmpHeader::mut_from_prefix(packet.head_mut()).ok()?;
            icmp.checksum = whole.into();
            packet.offload = Offload::default();
            let fields = Fields {
                source: from,
                destination: to,
                protocol: Protocol::ICMPV6.0,
                class: ip.traffic_class() & !3,
                hop_limit: control.outbox.snapshot.hop_limit(path, to),
                identification: None,
            };
            put_header(packet, &fields).then_some(((from, to), path))
        };
        let reply = if self.may_reply(now) { reply(self, &mut packet) } else { None };
        match reply {
            Some((ends, path)) => {
                self.counters.icmp_echo_replies += 1;
                if packet.len() > smallest(ends.1).into() {
                    self.large.note(self.echo_hash(ends.0, ends.1));
                }
                self.send_cut(now, packet, ends, path, pool);
            }
            None => pool.give_packet(packet),
        }
    }

    /// Sends an IPv6 packet of the control's, in pieces if it must be.
    fn send_cut(
        &mut self,
        now: Timestamp,
        packet: Packet,
        (from, to): (Address, Address),
        path: Path,
        pool: &mut Pool,
    ) {
        // It may go by another link than the route's.
        let mtu = self.outbox.mtu_to(to, now).min(self.outbox.snapshot.mtu(path).into());
        // The even ones are the stacks'.
        let number = self.identifications.next(&self.secret, (from, to), (1, 2));
        let outbox = &mut self.outbox;
        let sent = fragment6(packet, mtu, number, pool, |piece, pool| outbox.send(piece, path, pool));
        self.counters.no_memory += u64::from(!sent);
    }

    /// Puts in a message's checksum and sends it on its link; `false`: there is no frame.
    pub(super) fn send_message(&mut self, message: &Message, bytes: &mut [u8], pool: &mut Pool) -> bool {
        let Message { interface, source, destination, to, hop_limit, alert } = *message;
        let start = pseudo(source, destination, Protocol::ICMPV6.0, bytes.len());
        let checksum = start.bytes(bytes).checksum();
        bytes[2..4].copy_from_slice(&checksum.to_be_bytes());
        let Some(frame) = pool.take() else {
            self.counters.no_memory += 1;
            return false;
        };
        match bytes[0] {
            icmpv6::NEIGHBOUR_SOLICITATION => self.counters.neighbour_solicitations_sent += 1,
            icmpv6::NEIGHBOUR_ADVERTISEMENT => self.counters.neighbour_advertisements_sent += 1,
            _ => {}
        }
        let mut packet = Packet::new(frame);
        let (protocol, front) =
            if alert { (Protocol::HOP_BY_HOP, &mld::ROUTER_ALERT[..]) } else { (Protocol::ICMPV6, &[][..]) };
        let fields =
            Fields { source, destination, protocol: protocol.0, class: 0, hop_limit, identification: None };
        // Some 1200 bytes at most fit a new frame.
        let built = packet.extend_from_slice(front).and_then(|()| packet.extend_from_slice(bytes));
        if built.is_err() || !put_header(&mut packet, &fields) {
            pool.give_packet(packet);
            return true;
        }
        match to {
            Some(mac) => {
                let link = self.outbox.snapshot.link_to(interface, mac, EtherType::IPV6);
                self.outbox.send_link(packet, &link, pool);
            }
            None => self.outbox.send(packet, Path { interface, next_hop: destination }, pool),
        }
        true
    }

    /// Destination and source of an IPv6 packet that an error may be about (RFC 4443, 2.4 (e)): no error itself, and
    /// nothing for or from many, but for what must be told all the same.
    pub(super) fn may_report6(
        &self,
        packet: &Packet,
        id: InterfaceId,
        error: Unreachable,
    ) -> Option<(Address, Address)> {
        let (ip, _) = Ipv6Header::ref_from_prefix(packet.head()).ok()?;
        let source = Address::from_wire(ip.source(), id)?;
        let destination = Address::from_wire(ip.destination(), id)?;
        let always = matches!(error, Unreachable::TooBig(_) | Unreachable::Parameter { always: true, .. });
        let to_one = always || !destination.is_multicast();
        (source.is_unicast() && to_one && !is_error(packet.head())).then_some((destination, source))
    }
}

/// Whether a packet carries an ICMPv6 error or a redirect, as far as can be seen: also behind headers that are wrong.
fn is_error(packet: &[u8]) -> bool {
    let Some(end) = Place::first(packet).and_then(|first| first.skip(packet)) else { return false };
    let kind = packet.get(end.start).copied();
    end.protocol == Protocol::ICMPV6.0
        && kind.is_none_or(|kind| kind < icmpv6::FIRST_INFORMATION || kind == icmpv6::REDIRECT)
}

/// What an error says of one of our packets, of which it quotes the beginning.
pub(super) fn notice6(quoted: &[u8], id: InterfaceId, error: Unreachable) -> Option<Notice> {
    let (ip, _) = Ipv6Header::ref_from_prefix(quoted).ok()?;
    let local = Address::from_wire(ip.source(), id)?;
    let remote = Address::from_wire(ip.destination(), id)?;
    // What fits cannot have been too big.
    let length = IPV6_HEADER + usize::from(ip.payload_length.get());
    if matches!(error, Unreachable::TooBig(mtu) if usize::from(mtu) >= length) {
        return None;
    }
    let place = match Place::first(quoted)?.follow(quoted).ok()? {
        Next::Upper(place) => place,
        Next::Fragment(place) => {
            let (fragment, _) = FragmentHeader::ref_from_prefix(quoted.get(place.start..)?).ok()?;
            if fragment.offset() != 0 {
                return None;
            }
            let start = place.start + bywash_wire::FRAGMENT_HEADER;
            Place { protocol: fragment.next_header, start, named_at: place.start }
        }
    };
    let transport = quoted.get(place.start..)?;
    let [a, b, c, d] = *transport.first_chunk::<4>()?;
    let sequence = transport.get(4..8).and_then(|bytes| bytes.first_chunk::<4>());
    let flow = Flow {
        local,
        remote,
        local_port: u16::from_be_bytes([a, b]),
        remote_port: u16::from_be_bytes([c, d]),
    };
    let sequence = sequence.map_or(0, |bytes| u32::from_be_bytes(*bytes));
    Some(Notice { flow, protocol: place.protocol, sequence, error })
}

/// An error about a packet: its beginning, behind a header that says what became of it.
pub(super) fn error6(
    packet: &Packet,
    from: Address,
    to: Address,
    error: Unreachable,
    pool: &mut Pool,
) -> Option<Packet> {
    let (kind, code, rest) = match error {
        Unreachable::Network => (icmpv6::UNREACHABLE, icmpv6::NO_ROUTE, 0),
        Unreachable::Host => (icmpv6::UNREACHABLE, icmpv6::ADDRESS, 0),
        Unreachable::Scope => (icmpv6::UNREACHABLE, icmpv6::SCOPE, 0),
        Unreachable::Port => (icmpv6::UNREACHABLE, icmpv6::PORT, 0),
        // The IPv6 header's own field; what stands behind others comes as a parameter.
        Unreachable::Protocol => (icmpv6::PARAMETER_PROBLEM, icmpv6::NEXT_HEADER, 6),
        Unreachable::TooBig(mtu) => (icmpv6::PACKET_TOO_BIG, 0, u32::from(mtu)),
        Unreachable::TimeExceeded => (icmpv6::TIME_EXCEEDED, 0, 0),
        Unreachable::Reassembly => (icmpv6::TIME_EXCEEDED, 1, 0),
        Unreachable::Parameter { code, pointer, .. } => (icmpv6::PARAMETER_PROBLEM, code, u32::from(pointer)),
    };
    // RFC 4443, 2.4 (c): as much as fits what every link takes.
    let quoted = packet.len().min(usize::from(IPV6_MTU) - IPV6_HEADER - ICMP_HEADER);
    let mut icmp = IcmpHeader { kind, code, checksum: 0.into(), rest: rest.into() };
    let start: Sum = pseudo(from, to, Protocol::ICMPV6.0, ICMP_HEADER + quoted);
    icmp.checksum = sum(start.bytes(icmp.as_bytes()), packet, 0..quoted).checksum().into();
    let mut message = Packet::new(pool.take()?);
    let fields = Fields {
        source: from,
        destination: to,
        protocol: Protocol::ICMPV6.0,
        class: 0,
        hop_limit: TIME_TO_LIVE,
        identification: None,
    };
    let built = message
        .append(icmp.as_bytes(), pool)
        .and_then(|()| append_range(&mut message, packet, 0..quoted, pool));
    if built.is_err() || !put_header(&mut message, &fields) {
        pool.give_packet(message);
        return None;
    }
    Some(message)
}
