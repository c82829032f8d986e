//! ICMP for IPv4 (RFC 792, RFC 1122, 3.2.2): echoes answered, errors heard; errors of both families sent where they may
//! be.

use std::time::Duration;

use bywash_frame::{Offload, Packet, Pool};
use bywash_wire::checksum::{Sum, updated};
use bywash_wire::zerocopy::{FromBytes, IntoBytes};
use bywash_wire::{
    ICMP_HEADER, IPV4_HEADER, IPV4_MTU, IcmpHeader, Ipv4Header, MORE_FRAGMENTS, Protocol, icmpv4,
};

use super::Control;
use super::icmp6::{error6, notice6};
use crate::flow::Purpose;
use crate::packet::{append_range, sum};
use crate::{Address, Flow, InterfaceId, Notice, Timestamp, Unreachable};

/// Bytes of an error, IP header included (RFC 1812, 4.3.2.3: as much as fits 576).
const ERROR_LENGTH: usize = 576;

/// Messages that may be sent at once, and how long one takes to be allowed again: 1000 a second. RFC 1812, 4.3.2.8
/// wants a limit, so that a flood of bad packets does not become a flood of errors.
const BURST: u32 = 50;
const REFILL: Duration = Duration::from_millis(1);

/// A bucket of permissions to send.
#[derive(Debug)]
pub(super) struct Limit {
    left: u32,
    since: Timestamp,
    burst: u32,
    refill: Duration,
}

impl Default for Limit {
    fn default() -> Self {
        Self::new(BURST, REFILL)
    }
}

impl Limit {
    /// `burst` at once, and another each `refill`.
    pub(super) const fn new(burst: u32, refill: Duration) -> Self {
        Self { left: burst, since: Timestamp::ZERO, burst, refill }
    }

    pub(super) fn allow(&mut self, now: Timestamp) -> bool {
        self.allow_for(now, 1)
    }

    /// The same for what takes `cost` of the permissions that are left, if there is one.
    fn allow_for(&mut self, now: Timestamp, cost: u32) -> bool {
        let passed = now.since(self.since).as_nanos();
        let refills = u32::try_from(passed / self.refill.as_nanos()).unwrap_or(u32::MAX);
        let left = self.left.saturating_add(refills);
        // What is over stays for the next one, unless there is no room for one.
        (self.left, self.since) =
            if left < self.burst { (left, self.since + self.refill * refills) } else { (self.burst, now) };
        let allowed = self.left > 0;
        if allowed {
            // What it costs beyond what is left is paid by waiting.
            self.since = self.since + self.refill * cost.saturating_sub(self.left);
            self.left = self.left.saturating_sub(cost);
        }
        allowed
    }
}

impl Control {
    /// Takes an ICMP message for us, from its IP header on; the message begins at `start`.
    pub(super) fn icmp(
        &mut self,
        now: Timestamp,
        id: InterfaceId,
        packet: Packet,
        start: usize,
        pool: &mut Pool,
    ) {
        if is_v6(&packet) {
            return self.icmp6(now, id, packet, start, pool);
        }
        if self.take_icmp4(now, id, &packet).is_some_and(|echo| echo) {
            self.echo(now, packet, pool);
        } else {
            pool.give_packet(packet);
        }
    }

    /// Whether it is an echo request to be answered; `None` when it is nothing at all.
    fn take_icmp4(&mut self, now: Timestamp, id: InterfaceId, packet: &Packet) -> Option<bool> {
        let (ip, _) = Ipv4Header::ref_from_prefix(packet.head()).ok()?;
        let (start, end) = (ip.header_length(), usize::from(ip.total_length.get()));
        if end < start + ICMP_HEADER || sum(Sum::new(), packet, start..end).checksum() != 0 {
            self.counters.icmp_errors += 1;
            return None;
        }
        self.counters.icmp_received += 1;
        let (icmp, quoted) = IcmpHeader::ref_from_prefix(packet.head().get(start..)?).ok()?;
        let error =
            matches!(icmp.kind, icmpv4::UNREACHABLE | icmpv4::TIME_EXCEEDED | icmpv4::PARAMETER_PROBLEM);
        self.counters.icmp_error_messages_received += u64::from(error);
        let to = Address::from(ip.destination());
        let to_one = to.is_unicast() && !self.outbox.snapshot.is_broadcast(to);
        match (icmp.kind, icmp.code) {
            // RFC 1122, 3.2.2.6 lets us be silent to echoes for everyone: answers would be a flood for one.
            (icmpv4::ECHO_REQUEST, _) => return Some(to_one),
            (icmpv4::UNREACHABLE, code) => {
                let error = match code {
                    icmpv4::FRAGMENTATION_NEEDED => Unreachable::TooBig(next_mtu(icmp.rest.get(), quoted)),
                    icmpv4::PROTOCOL => Unreachable::Protocol,
                    icmpv4::PORT => Unreachable::Port,
                    icmpv4::NETWORK => Unreachable::Network,
                    _ => Unreachable::Host,
                };
                self.notices.extend(notice(quoted, error));
            }
            (icmpv4::TIME_EXCEEDED, code) => {
                let error = if code == icmpv4::REASSEMBLY {
                    Unreachable::Reassembly
                } else {
                    Unreachable::TimeExceeded
                };
                self.notices.extend(notice(quoted, error));
            }
            (icmpv4::PARAMETER_PROBLEM, code) => {
                // 0 to 255: the first byte of the word (RFC 792).
                let pointer = u16::from(icmp.rest.get().to_be_bytes()[0]);
                self.notices.extend(notice(quoted, Unreachable::Parameter { code, pointer, always: false }));
            }
            (icmpv4::REDIRECT, 0..=3) => {
                let hop = std::net::Ipv4Addr::from_bits(icmp.rest.get()).into();
                self.redirected4(now, id, (ip.source().into(), to, hop), quoted);
            }
            // Source quench is ignored (RFC 6633).
            _ => {}
        }
        Some(false)
    }

    /// Turns an echo request into its reply: the same bytes the other way (RFC 1122, 3.2.2.6).
    fn echo(&mut self, now: Timestamp, mut packet: Packet, pool: &mut Pool) {
        let reply = |head: &mut [u8]| {
            let (ip, _) = Ipv4Header::ref_from_prefix(head).ok()?;
            let (from, to, start) = (ip.destination(), ip.source(), ip.header_length());
            // RFC 1812, 4.3.2.5: as the request is served; marks are of its way.
            let class = ip.traffic_class & !3;
            let payload = ip.total_length.get() - u16::try_from(start).ok()?;
            let (icmp, _) = IcmpHeader::mut_from_prefix(&mut head[start..]).ok()?;
            let kind = |kind: u8| u16::from_be_bytes([kind, icmp.code]);
            let (old, new) = (kind(icmpv4::ECHO_REQUEST), kind(icmpv4::ECHO_REPLY));
            icmp.checksum = updated(icmp.checksum.get(), old, new).into();
            icmp.kind = icmpv4::ECHO_REPLY;
            // Options are not sent back: source routes are refused, and nobody records routes and times any more (RFC 1122,
            // 3.2.2.6 recommends to go on with that).
            let header = start - IPV4_HEADER;
            let mut ip = Ipv4Header::new(from, to, Protocol::ICMP.0, payload);
            ip.traffic_class = class;
            head[header..start].copy_from_slice(ip.as_bytes());
            Some((header, Address::from(to)))
        };
        packet.offload = Offload::default();
        let (Some((cut, to)), true) = (reply(packet.head_mut()), self.may_reply(now)) else {
            return pool.give_packet(packet);
        };
        self.counters.icmp_echo_replies += 1;
        // `cut` lies in the head: the header was read there.
        let _in_head = packet.pull_front(cut);
        self.send_along(packet, to, pool);
    }

    /// Whether an echo may be replied to now.
    pub(super) fn may_reply(&mut self, now: Timestamp) -> bool {
        let may = self.replies.allow(now);
        self.counters.icmp_echo_limited += u64::from(!may);
        may
    }

    /// Whether an error may be sent now. What says how narrow a path is has a limit of its own: without it nothing gets through
    /// there any more (RFC 1191, 4), while others are a help.
    ///
    /// Each costs one, on average: who counts those that he is sent must not learn from it whether others were sent any
    /// (CVE-2020-25705), as with Linux.
    fn may_send_error(&mut self, now: Timestamp, error: Unreachable) -> bool {
        let cost = self.secret.number(Purpose::Error, self.asked_for_errors) % 3;
        self.asked_for_errors = self.asked_for_errors.wrapping_add(1);
        let limit =
            if matches!(error, Unreachable::TooBig(_)) { &mut self.too_big } else { &mut self.errors };
        let may = limit.allow_for(now, u32::try_from(cost).unwrap_or(0));
        self.counters.icmp_error_messages_limited += u64::from(!may);
        may
    }

    /// Tells the sender of a packet what became of it, unless RFC 1122, 3.2.2 or RFC 4443, 2.4 forbids.
    pub(super) fn report(
        &mut self,
        now: Timestamp,
        id: InterfaceId,
        packet: Packet,
        error: Unreachable,
        pool: &mut Pool,
    ) {
        let v6 = is_v6(&packet);
        let sender = if v6 { self.may_report6(&packet, id, error) } else { self.may_report(&packet) };
        let message = sender.and_then(|(destination, source)| {
            // Our own programs hear of it without a message, so without the limit that is for those.
            if self.outbox.snapshot.is_ours(source) {
                let head = packet.head();
                self.notices.extend(if v6 { notice6(head, id, error) } else { notice(head, error) });
                return None;
            }
            if source.is_class_e() || !self.may_send_error(now, error) {
                return None;
            }
            let snapshot = &self.outbox.snapshot;
            let Some(path) = snapshot.path(source) else {
                self.counters.no_memory += 1;
                return None;
            };
            // Where the packet was to go, if that is ours and means something on the way back. Else RFC 1812, 4.3.2.4: one of
            // the link that it leaves by, unless the route names another, wherever the packet came from.
            let ours = snapshot
                .source_or(Some(destination), path, source)
                .or_else(|| snapshot.source(path, source))?;
            let make = if v6 { error6 } else { error4 };
            let message = make(&packet, ours, source, error, pool);
            self.counters.no_memory += u64::from(message.is_none());
            Some((message?, source))
        });
        pool.give_packet(packet);
        if let Some((message, to)) = message {
            self.counters.icmp_error_messages_sent += 1;
            self.send_along(message, to, pool);
        }
    }

    /// Destination and source of a packet that an error may be about: not an error, not a later fragment, nothing
    /// for or from more than one host.
    fn may_report(&self, packet: &Packet) -> Option<(Address, Address)> {
        let (ip, _) = Ipv4Header::ref_from_prefix(packet.head()).ok()?;
        let (destination, source) = (Address::from(ip.destination()), Address::from(ip.source()));
        let one = |address: Address| address.is_unicast() && !self.outbox.snapshot.is_broadcast(address);
        let first = ip.fragment.get() & !MORE_FRAGMENTS & 0x1fff == 0;
        let echo = ip.protocol != Protocol::ICMP.0
            || matches!(
                packet.head().get(ip.header_length()),
                Some(&(icmpv4::ECHO_REQUEST | icmpv4::ECHO_REPLY))
            );
        (one(destination) && one(source) && first && echo).then_some((destination, source))
    }

    /// Sends a packet of the control's by its route. One of IPv4 may be fragmented, here and on its way, so it has a number of its own
    /// (RFC 6864, 4.1).
    fn send_along(&mut self, mut packet: Packet, to: Address, pool: &mut Pool) {
        if to.is_v4()
            && let Ok((ip, _)) = Ipv4Header::mut_from_prefix(packet.head_mut())
        {
            let number = self.identifications.next(&self.secret, (ip.source().into(), to), (0, 1));
            // IPv4's have 16 bits.
            (ip.fragment, ip.identification) = (0.into(), u16::try_from(number).unwrap_or(0).into());
            ip.seal();
        }
        match self.outbox.snapshot.path(to) {
            // Errors of IPv6 fit every link.
            Some(path) if !to.is_v4() => self.outbox.send(packet, path, pool),
            Some(path) => {
                let mtu = usize::from(self.outbox.snapshot.interface(path.interface).mtu);
                let send = |piece, pool: &mut Pool| self.outbox.send(piece, path, pool);
                let sent = crate::ip::fragment(packet, mtu, pool, send);
                self.counters.no_memory += u64::from(!sent);
            }
            None => self.outbox.drop(packet, pool),
        }
    }
}

fn is_v6(packet: &Packet) -> bool {
    packet.head().first().is_some_and(|first| first >> 4 == 6)
}

/// The MTU an error names; a router older than RFC 1191 names none, and then it is the next plateau of RFC 1191, 7.1
/// below the packet's length.
fn next_mtu(rest: u32, quoted: &[u8]) -> u16 {
    const PLATEAUS: [u16; 9] = [32_000, 17_914, 8166, 4352, 2002, 1492, 1006, 508, 296];
    let named = u16::try_from(rest & 0xffff).unwrap_or(0);
    let length = Ipv4Header::ref_from_prefix(quoted).map_or(0, |(ip, _)| ip.total_length.get());
    if named > 0 { named } else { PLATEAUS.into_iter().find(|p| *p < length).unwrap_or(IPV4_MTU) }
}

/// What an error says of one of our packets, of which it quotes the beginning.
fn notice(quoted: &[u8], error: Unreachable) -> Option<Notice> {
    let (ip, _) = Ipv4Header::ref_from_prefix(quoted).ok()?;
    let (local, remote) = (Address::from(ip.source()), Address::from(ip.destination()));
    // What fits cannot have been too big, and only the first piece has ports.
    if matches!(error, Unreachable::TooBig(mtu) if mtu >= ip.total_length.get()) || ip.fragment_offset() != 0
    {
        return None;
    }
    let transport = quoted.get(ip.header_length()..)?;
    // Eight bytes are quoted at least: the ports, and the sequence number of TCP.
    let (ports, rest) = transport.split_first_chunk::<4>()?;
    let sequence = rest.first_chunk::<4>().map_or(0, |bytes| u32::from_be_bytes(*bytes));
    let [a, b, c, d] = *ports;
    let flow = Flow {
        local,
        remote,
        local_port: u16::from_be_bytes([a, b]),
        remote_port: u16::from_be_bytes([c, d]),
    };
    Some(Notice { flow, protocol: ip.protocol, sequence, error })
}

/// An error about a packet: its beginning, behind a header that says what became of it.
fn error4(
    packet: &Packet,
    from: Address,
    to: Address,
    error: Unreachable,
    pool: &mut Pool,
) -> Option<Packet> {
    let (kind, code, rest) = match error {
        Unreachable::Network => (icmpv4::UNREACHABLE, icmpv4::NETWORK, 0),
        Unreachable::Host | Unreachable::Scope => (icmpv4::UNREACHABLE, icmpv4::HOST, 0),
        Unreachable::Protocol => (icmpv4::UNREACHABLE, icmpv4::PROTOCOL, 0),
        Unreachable::Port => (icmpv4::UNREACHABLE, icmpv4::PORT, 0),
        Unreachable::TooBig(mtu) => (icmpv4::UNREACHABLE, icmpv4::FRAGMENTATION_NEEDED, u32::from(mtu)),
        Unreachable::TimeExceeded => (icmpv4::TIME_EXCEEDED, icmpv4::IN_TRANSIT, 0),
        Unreachable::Reassembly => (icmpv4::TIME_EXCEEDED, icmpv4::REASSEMBLY, 0),
        Unreachable::Parameter { pointer, .. } => {
            (icmpv4::PARAMETER_PROBLEM, 0, u32::from(pointer.min(255)) << 24)
        }
    };
    let quoted = packet.len().min(ERROR_LENGTH - IPV4_HEADER - ICMP_HEADER);
    let mut icmp = IcmpHeader { kind, code, checksum: 0.into(), rest: rest.into() };
    icmp.checksum = sum(Sum::new().bytes(icmp.as_bytes()), packet, 0..quoted).checksum().into();
    let length = u16::try_from(ICMP_HEADER + quoted).ok()?;
    let mut ip = Ipv4Header::new(from.v4()?, to.v4()?, Protocol::ICMP.0, length);
    // RFC 1812, 4.3.2.5: internetwork control.
    ip.traffic_class = 0xc0;
    let mut message = Packet::new(pool.take()?);
    let built = message
        .append(ip.as_bytes(), pool)
        .and_then(|()| message.append(icmp.as_bytes(), pool))
        .and_then(|()| append_range(&mut message, packet, 0..quoted, pool));
    if built.is_err() {
        pool.give_packet(message);
        return None;
    }
    Some(message)
}
