//! Requests for which there is no room yet in the ring to the control, and which of them are dropped when there are too many.
//!
//! A flood that the control does not get on with must cost an engine little: what is dropped is found at once.

use std::collections::VecDeque;

use bywash_stack::Request;
use bywash_stack::frame::{Packet, Pool};
use bywash_stack::wire::zerocopy::FromBytes;
use bywash_stack::wire::{Ipv6Header, icmpv4, icmpv6};

/// Requests of an engine, in their order, by what they are worth.
#[derive(Debug, Default)]
pub(crate) struct Pending {
    /// With its number each; by [`Worth`].
    queues: [VecDeque<(u64, Request)>; Worth::COUNT],
    /// Of the next one.
    number: u64,
}

impl Pending {
    pub(crate) fn is_empty(&self) -> bool {
        self.queues.iter().all(VecDeque::is_empty)
    }

    fn len(&self) -> usize {
        self.queues.iter().map(VecDeque::len).sum()
    }

    pub(crate) fn push(&mut self, request: Request) {
        self.queues[Worth::of(&request) as usize].push_back((self.number, request));
        self.number += 1;
    }

    /// Hands over the oldest ones until one is given back, which stays the oldest.
    pub(crate) fn hand_over(&mut self, mut to: impl FnMut(Request) -> Result<(), Request>) {
        loop {
            let oldest = |queue: &&mut VecDeque<(u64, Request)>| queue.front().map(|(number, _)| *number);
            let waiting = self.queues.iter_mut().filter(|queue| !queue.is_empty());
            let Some(queue) = waiting.min_by_key(oldest) else { return };
            let Some((number, request)) = queue.pop_front() else { return };
            if let Err(request) = to(request) {
                return queue.push_front((number, request));
            }
        }
    }

    /// Drops those beyond so many, of the least worth first and of these the oldest; says how many it has dropped.
    pub(crate) fn shed(&mut self, most: usize, pool: &mut Pool) -> u64 {
        let beyond = self.len().saturating_sub(most);
        let by_worth = self.queues.iter_mut().flat_map(|queue| std::iter::from_fn(|| queue.pop_front()));
        for (_, request) in by_worth.take(beyond) {
            request.into_packet().into_iter().for_each(|packet| pool.give_packet(packet));
        }
        beyond as u64
    }
}

/// What is dropped last, when the control does not get on: what strangers cannot make any number of at will.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Worth {
    /// A packet that was refused, an echo, what ICMP has no meaning for: nobody may rely on an answer, and most get none, as both
    /// are limited.
    Answer,
    /// What ICMP tells of packets of ours, or seems to.
    Told,
    /// ARP and neighbour discovery, which come from the link, and what connections know of neighbours.
    News,
    /// A neighbour that packets wait for: what is asked once is not asked again at once.
    Neighbour,
}

impl Worth {
    const COUNT: usize = Self::Neighbour as usize + 1;

    fn of(request: &Request) -> Self {
        match request {
            Request::Report { .. } => Self::Answer,
            Request::Icmp { packet, start, .. } => Self::of_icmp(packet, *start).unwrap_or(Self::Answer),
            Request::Resolve { .. } | Request::Used { .. } => Self::Neighbour,
            _ => Self::News,
        }
    }

    fn of_icmp(packet: &Packet, start: usize) -> Option<Self> {
        let kind = *packet.head().get(start)?;
        // The version (RFC 791, 3.1; RFC 8200, 3): the packet begins with its IP header.
        if packet.head()[0] >> 4 == 4 {
            let told = matches!(
                kind,
                icmpv4::UNREACHABLE | icmpv4::TIME_EXCEEDED | icmpv4::PARAMETER_PROBLEM | icmpv4::REDIRECT
            );
            return told.then_some(Self::Told);
        }
        let (ip, _) = Ipv6Header::ref_from_prefix(packet.head()).ok()?;
        match kind {
            0..icmpv6::FIRST_INFORMATION => Some(Self::Told),
            // RFC 4861, 6.1 and 7.1: whatever a router has passed on has less.
            icmpv6::ROUTER_SOLICITATION..=icmpv6::REDIRECT if ip.hop_limit == 255 => Some(Self::News),
            // RFC 3810, 5.1.14: no router passes on what comes from there.
            icmpv6::LISTENER_QUERY if ip.source().is_unicast_link_local() => Some(Self::News),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use bywash_stack::frame::Arena;
    use bywash_stack::{InterfaceId, Unreachable};

    use super::*;

    /// Which requests they are, by a letter each.
    fn words(pending: &mut Pending) -> String {
        let mut said = String::new();
        pending.hand_over(|request| {
            said.push(match request {
                Request::Resolve { .. } => 'r',
                Request::Used { .. } => 'u',
                Request::Confirmed { .. } => 'c',
                Request::Arp { .. } => 'a',
                Request::Report { .. } => 'p',
                Request::Icmp { packet, start, .. } => char::from(packet.head()[start + 1]),
                _ => '?',
            });
            Ok(())
        });
        said
    }

    #[test]
    fn they_are_handed_over_in_their_order_while_there_is_room() {
        let interface = InterfaceId::default();
        let address = |last| Ipv4Addr::new(10, 0, 0, last).into();
        let mut pending = Pending::default();
        for last in 0..3 {
            pending.push(Request::Confirmed { interface, address: address(last) });
            pending.push(Request::Resolve { interface, address: address(last) });
        }
        let mut room = 3;
        let mut taken = Vec::new();
        pending.hand_over(|request| {
            if room == 0 {
                return Err(request);
            }
            room -= 1;
            taken.push(request);
            Ok(())
        });
        assert!(matches!(
            &taken[..],
            [Request::Confirmed { .. }, Request::Resolve { .. }, Request::Confirmed { .. }]
        ));
        pending.push(Request::Used { interface, address: address(9) });
        assert!(!pending.is_empty());
        assert_eq!(words(&mut pending), "rcru");
        assert!(pending.is_empty());
    }

    /// A message of ICMP with a letter as its code, behind the beginnings of an IP header.
    fn icmp(pool: &mut Pool, ip: &[u8], kind: u8, letter: u8) -> Request {
        let mut packet = Packet::new(pool.take().unwrap());
        packet.extend_from_slice(ip).unwrap();
        packet.extend_from_slice(&[kind, letter]).unwrap();
        Request::Icmp { interface: InterfaceId::default(), packet, start: ip.len() }
    }

    #[test]
    fn what_strangers_can_make_goes_first_and_of_that_the_oldest() {
        let mut pool = Arena::new(vec![0; 64 * 2304]).unwrap().pool(56).unwrap();
        let interface = InterfaceId::default();
        let v4 = [0x45; 20];
        // A source on the link, or one beyond.
        let v6 = |hop_limit: u8, first: [u8; 2]| {
            let mut ip = [0; 40];
            (ip[0], ip[7]) = (0x60, hop_limit);
            ip[8..10].copy_from_slice(&first);
            ip
        };
        let (link, beyond) = ([0xfe, 0x80], [0x20, 0x01]);
        let mut pending = Pending::default();
        for _ in 0..2 {
            let plain = |pool: &mut Pool| Packet::new(pool.take().unwrap());
            pending.push(Request::Resolve { interface, address: Ipv4Addr::LOCALHOST.into() });
            pending.push(Request::Arp { interface, packet: plain(&mut pool) });
            pending.push(Request::Report { interface, packet: plain(&mut pool), error: Unreachable::Port });
            for (ip, kind, letter) in [
                (&v6(255, link)[..], icmpv6::NEIGHBOUR_SOLICITATION, b'S'),
                (&v6(255, link), icmpv6::REDIRECT, b'R'),
                (&v6(254, link), icmpv6::NEIGHBOUR_ADVERTISEMENT, b'x'),
                (&v6(1, link), icmpv6::LISTENER_QUERY, b'Q'),
                (&v6(1, beyond), icmpv6::LISTENER_QUERY, b'x'),
                (&v6(64, beyond), icmpv6::PACKET_TOO_BIG, b'T'),
                (&v6(64, beyond), icmpv6::ECHO_REQUEST, b'x'),
                (&v6(64, beyond), icmpv6::ECHO_REPLY, b'x'),
                (&v4, icmpv4::UNREACHABLE, b'U'),
                (&v4, icmpv4::ECHO_REQUEST, b'x'),
                (&v4, icmpv4::ECHO_REPLY, b'x'),
                // No message of IPv4's.
                (&v4, icmpv6::NEIGHBOUR_SOLICITATION, b'x'),
            ] {
                pending.push(icmp(&mut pool, ip, kind, letter));
            }
        }
        assert_eq!(pending.shed(30, &mut pool), 0);
        assert_eq!(pending.shed(28, &mut pool), 2);
        assert_eq!(pending.shed(14, &mut pool), 14, "the rest of these");
        assert_eq!(pending.shed(11, &mut pool), 3, "what is told of packets");
        assert_eq!(pool.free(), 56 - 9);
        assert_eq!(words(&mut pending), "raSRQraSRQU");
    }

    #[test]
    fn last_is_dropped_what_neighbour_packets_wait_for() {
        let mut pool = Arena::new(vec![0; 16 * 2304]).unwrap().pool(8).unwrap();
        let interface = InterfaceId::default();
        let address = Ipv4Addr::LOCALHOST.into();
        let mut pending = Pending::default();
        for _ in 0..2 {
            pending.push(Request::Resolve { interface, address });
            pending.push(Request::Confirmed { interface, address });
            pending.push(Request::Used { interface, address });
        }
        assert_eq!(pending.shed(3, &mut pool), 3);
        assert_eq!(words(&mut pending), "uru");
    }
}
