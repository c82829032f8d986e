//! ARP (RFC 826): questions, answers, probes, announcements.

use std::net::Ipv4Addr;

use bywash_frame::{Packet, Pool};
use bywash_wire::zerocopy::IntoBytes;
use bywash_wire::{ArpOperation, ArpPacket, EtherType, Mac};

use super::address::OurAddress;
use super::neighbour::Question;
use super::{ANNOUNCE_INTERVAL, AddressState, BURST_INTERVAL, Control, mac_of};
use crate::snapshot::Path;
use crate::{Address, InterfaceId, Timestamp};

impl Control {
    /// Takes an ARP packet (RFC 826, "Packet Reception").
    pub(super) fn arp(&mut self, now: Timestamp, id: InterfaceId, packet: Packet, pool: &mut Pool) {
        let read = ArpPacket::parse(packet.head()).map(|(packet, operation)| (*packet, operation));
        pool.give_packet(packet);
        let Some((packet, operation)) = read else { return };
        let Some(mac) = self.mac(id) else { return };
        let (sender, target) = (Address::from(packet.sender()), Address::from(packet.target()));
        use AddressState::{Deprecated, Duplicate, Preferred, Tentative};
        // What we have sent ourselves may come back (RFC 5227, 2.1.1).
        let stranger = !self.interfaces.iter().any(|ours| mac_of(ours) == Some(packet.sender_mac));
        match (self.state_of(id, sender), self.state_of(id, target)) {
            (Some(Tentative | Preferred | Deprecated), _) => {
                if stranger {
                    self.claimed(now, id, sender, Some(packet.sender_mac));
                }
                return;
            }
            // RFC 5227, 2.1.1: another one looks for the same address.
            (_, Some(Tentative))
                if stranger && sender.is_unspecified() && operation == ArpOperation::Request =>
            {
                return self.claimed(now, id, target, Some(packet.sender_mac));
            }
            // A duplicate is the other's, who is a neighbour as any.
            (None | Some(Duplicate), _) => {}
        }
        // What goes to an address of ours, of whichever link, leaves by none.
        if self.link_of_ours(sender).is_some() {
            return;
        }
        let link = self.link_of_ours(target);
        // Packets that leave by a link without an address have one of another, and who gets them asks for that one.
        let lent = || self.address_on(Some(id), target).is_none() && self.link_of(sender, Some(id)).is_some();
        let for_us = link.is_some_and(|link| link == id || lent());
        // A probe (RFC 5227, 1.1) has no sender's address: it is answered, and nothing is learnt.
        if sender.is_unicast() {
            match operation {
                ArpOperation::Reply if link.is_some() => self.answer(now, (id, sender), packet.sender_mac),
                _ => self.neighbours.heard(now, (id, sender), packet.sender_mac, for_us),
            }
        }
        if operation == ArpOperation::Request && for_us {
            let me = (mac, packet.target());
            let asker = (packet.sender_mac, packet.sender());
            self.send_arp(id, packet.sender_mac, (ArpOperation::Reply, me, asker), pool);
        }
    }

    /// Asks where an address is, everyone or whom it was last heard of from.
    pub(super) fn ask(&mut self, question: Question, pool: &mut Pool) {
        let Question { interface, address, to } = question;
        let (Some(ours), Some(mac)) = (self.asks_with(interface, address), self.mac(interface)) else {
            return;
        };
        let (Some(ours), Some(target)) = (ours.v4(), address.v4()) else {
            return self.solicit(interface, ours, address, to, pool);
        };
        let question = (ArpOperation::Request, (mac, ours), (Mac::default(), target));
        self.send_arp(interface, to.unwrap_or(Mac::BROADCAST), question, pool);
    }

    /// Our address that asks for a neighbour on a link: one of that link. Where it has none of IPv4, the one that packets to the
    /// neighbour have there; who asks in IPv6 must have one there (RFC 4861, 4.3).
    fn asks_with(&self, id: InterfaceId, neighbour: Address) -> Option<Address> {
        let path = Path { interface: id, next_hop: neighbour };
        let lent = || neighbour.is_v4().then(|| self.outbox.snapshot.source(path, neighbour))?;
        self.address_on(Some(id), neighbour).or_else(lent)
    }

    /// Asks everyone on a link whether anybody has an address that is to become ours (RFC 5227, 2.1.1).
    pub(super) fn probe_v4(&mut self, id: InterfaceId, address: Ipv4Addr, pool: &mut Pool) {
        let Some(mac) = self.mac(id) else { return };
        let nobody = (mac, Ipv4Addr::UNSPECIFIED);
        let probe = (ArpOperation::Request, nobody, (Mac::default(), address));
        self.send_arp(id, Mac::BROADCAST, probe, pool);
    }

    /// Makes the announcements that are due, `most` of them; the others follow.
    pub(super) fn announce_due(&mut self, now: Timestamp, most: usize, pool: &mut Pool) {
        let (mut due, neighbours) = (Vec::new(), &self.neighbours);
        self.announcements.retain_mut(|(at, interface, address, left)| {
            if *at <= now && due.len() == most {
                *at = now + BURST_INTERVAL;
            } else if *at <= now {
                due.push((*interface, *address));
                // RFC 4861, 7.2.6, in IPv6.
                let interval = ANNOUNCE_INTERVAL.max(neighbours.retransmit(&(*interface, *address)));
                (*at, *left) = (now + interval, *left - 1);
            }
            *left > 0
        });
        for (interface, address) in due {
            self.announce(interface, address, pool);
        }
    }

    /// Tells everyone on a link where an address of ours is (RFC 5227, 2.3; of IPv6 neighbour discovery does).
    fn announce(&mut self, id: InterfaceId, address: Address, pool: &mut Pool) {
        let Some(mac) = self.mac(id) else { return };
        let Some(address) = address.v4() else { return self.advertise_to_all(id, address, pool) };
        let announcement = (ArpOperation::Request, (mac, address), (Mac::default(), address));
        self.send_arp(id, Mac::BROADCAST, announcement, pool);
    }

    /// Only an answer to a question counts as one: who just says where it is, proves nothing.
    fn answer(&mut self, now: Timestamp, key: (InterfaceId, Address), mac: Mac) {
        use super::NeighbourState::{Incomplete, Probe};
        let asked = self.neighbours.state(key).is_some_and(|state| matches!(state, Incomplete | Probe));
        if asked {
            self.neighbours.answered(now, key, mac);
        } else {
            self.neighbours.heard(now, key, mac, false);
        }
    }

    /// The link that an address in use belongs to, if it is ours.
    fn link_of_ours(&self, address: Address) -> Option<InterfaceId> {
        let mut ours = self.addresses.iter().filter_map(OurAddress::usable);
        ours.find(|ours| ours.prefix.address() == address).map(|ours| ours.interface)
    }

    pub(super) fn is_on(&self, id: InterfaceId, address: Address) -> bool {
        self.addresses.iter().any(|our| our.interface == id && our.prefix.address() == address)
    }

    /// Sends what an ARP packet is made of: what it does, its sender, its target.
    fn send_arp(
        &mut self,
        id: InterfaceId,
        to: Mac,
        (operation, sender, target): (ArpOperation, (Mac, Ipv4Addr), (Mac, Ipv4Addr)),
        pool: &mut Pool,
    ) {
        let Some(frame) = pool.take() else {
            self.counters.no_memory += 1;
            return;
        };
        let mut packet = Packet::new(frame);
        let arp = ArpPacket::new(operation, sender, target);
        // 28 bytes always fit a new frame.
        if packet.extend_from_slice(arp.as_bytes()).is_ok() {
            let link = self.outbox.snapshot.link_to(id, to, EtherType::ARP);
            self.outbox.send_link(packet, &link, pool);
            match operation {
                ArpOperation::Request => self.counters.arp_requests_sent += 1,
                ArpOperation::Reply => self.counters.arp_replies_sent += 1,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use bywash_frame::Arena;

    use super::*;
    use crate::{Interface, Medium, Offloads, PortId, Request};

    #[test]
    fn all_news_of_a_turn_make_one_snapshot() {
        let mut pool = Arena::new(vec![0; 64 * 2304]).unwrap().pool(32).unwrap();
        let mut control = Control::new([7; 16]);
        let mac = |n: u8| Mac([2, 0, 0, 0, 0, n]);
        let interface = Interface {
            name: "test".into(),
            port: PortId(0),
            medium: Medium::Ethernet { mac: mac(1), vlan: None },
            mtu: 1500,
            offloads: Offloads::default(),
        };
        let id = control.add_interface(interface).unwrap();
        control.add_address(Timestamp::ZERO, id, "10.0.0.1/24".parse().unwrap()).unwrap();
        let before = control.snapshot(&mut pool).generation;
        for n in 2..10 {
            let (sender, target) = ((mac(n), [10, 0, 0, n].into()), (Mac::default(), [10, 0, 0, 1].into()));
            let mut packet = Packet::new(pool.take().unwrap());
            let arp = ArpPacket::new(ArpOperation::Request, sender, target);
            packet.extend_from_slice(arp.as_bytes()).unwrap();
            control.handle(Timestamp::ZERO, Request::Arp { interface: id, packet }, &mut pool);
        }
        let snapshot = control.snapshot(&mut pool);
        assert_eq!((snapshot.generation, snapshot.neighbours.len()), (before + 1, 8));
    }
}
