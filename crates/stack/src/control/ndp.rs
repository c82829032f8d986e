//! Neighbour discovery (RFC 4861, 7; RFC 4862, 5.4): solicitations and advertisements of neighbours.

use bywash_frame::Pool;
use bywash_wire::ndp::{self, NeighbourMessage};
use bywash_wire::zerocopy::{FromBytes, IntoBytes};
use bywash_wire::{Mac, icmpv6};

use super::icmp6::{Message, Received};
use super::{AddressState, Control};
use crate::flow::Purpose;
use crate::{Address, Flow, InterfaceId, Timestamp};

impl Control {
    /// Takes a neighbour solicitation (RFC 4861, 7.2.3).
    pub(super) fn solicited(&mut self, now: Timestamp, received: &Received<'_>, pool: &mut Pool) {
        let Some((message, options)) = received.neighbour_message() else { return };
        let id = received.interface;
        let Some(target) = Address::from_wire(message.target(), id).filter(|target| target.is_unicast())
        else {
            return;
        };
        let sender_mac = ndp::link_address(options, ndp::SOURCE_LINK);
        let probing = received.source.is_unspecified();
        // 7.1.1: who has no address asks the group, and has no link address to be answered at.
        if probing && (sender_mac.is_some() || received.destination != target.solicited_node(id)) {
            return;
        }
        match self.state_of(id, target) {
            None | Some(AddressState::Duplicate) => return,
            // RFC 4862, 5.4.3: another one looks for the same address; whoever else asks is not answered yet.
            Some(AddressState::Tentative) if probing => {
                // RFC 7527, 4.2: our own question may come back.
                let nonce = self.nonce(target);
                if !ndp::options(options).is_some_and(|mut all| all.any(|(_, option)| option == nonce)) {
                    self.claimed(now, id, target, None);
                }
                return;
            }
            Some(AddressState::Tentative) => return,
            Some(AddressState::Preferred | AddressState::Deprecated) => {}
        }
        if let Some(mac) = sender_mac {
            self.neighbours.heard(now, (id, received.source), mac, true);
        }
        let (to, flags) = if probing {
            (Address::link_group(1, id), ndp::OVERRIDE)
        } else {
            (received.source, ndp::OVERRIDE | ndp::SOLICITED)
        };
        self.advertise((id, target), to, sender_mac, flags, pool);
    }

    /// Tells everyone on a link where an address of ours is by now (RFC 4861, 7.2.6).
    pub(super) fn advertise_to_all(&mut self, id: InterfaceId, address: Address, pool: &mut Pool) {
        self.advertise((id, address), Address::link_group(1, id), None, ndp::OVERRIDE, pool);
    }

    /// Says where an address of ours is.
    fn advertise(
        &mut self,
        (id, ours): (InterfaceId, Address),
        to: Address,
        mac: Option<Mac>,
        flags: u32,
        pool: &mut Pool,
    ) {
        let Some(wire) = ours.v6() else { return };
        let flags = flags | if self.forwarding { ndp::ROUTER } else { 0 };
        let message = NeighbourMessage::new(icmpv6::NEIGHBOUR_ADVERTISEMENT, flags, wire);
        let option = self.link_option(id, ndp::TARGET_LINK);
        self.send_neighbour((id, ours), to, mac, message, option, pool);
    }

    /// Takes a neighbour advertisement (RFC 4861, 7.2.5; RFC 4862, 5.4.4).
    pub(super) fn advertised(&mut self, now: Timestamp, received: &Received<'_>) {
        let Some((message, options)) = received.neighbour_message() else { return };
        let id = received.interface;
        let flags = message.icmp.rest.get();
        let solicited = flags & ndp::SOLICITED != 0;
        let Some(target) = Address::from_wire(message.target(), id).filter(|target| target.is_unicast())
        else {
            return;
        };
        // 7.1.2: nobody can have been asked by all.
        if solicited && received.destination.is_multicast() {
            return;
        }
        let mac = ndp::link_address(options, ndp::TARGET_LINK);
        use AddressState::{Deprecated, Duplicate, Preferred, Tentative};
        match self.state_of(id, target) {
            // What we have told everyone ourselves may come back.
            Some(Preferred | Deprecated) if mac.is_some_and(|mac| self.neighbours.is_ours(mac)) => return,
            Some(Tentative | Preferred | Deprecated) => return self.claimed(now, id, target, mac),
            // A duplicate is the other's, who is a neighbour as any.
            None | Some(Duplicate) => {}
        }
        let overrides = flags & ndp::OVERRIDE != 0;
        let taken = self.neighbours.advertised(now, (id, target), mac, solicited, overrides);
        if taken && flags & ndp::ROUTER == 0 {
            self.forget_routers(|router| *router == (id, target));
        }
    }

    /// Asks where a neighbour is: its group, or itself when it is doubted (RFC 4861, 7.2.2 and 7.3.3).
    pub(super) fn solicit(
        &mut self,
        id: InterfaceId,
        ours: Address,
        target: Address,
        doubted: Option<Mac>,
        pool: &mut Pool,
    ) {
        let Some(wire) = target.v6() else { return };
        let message = NeighbourMessage::new(icmpv6::NEIGHBOUR_SOLICITATION, 0, wire);
        let to = if doubted.is_some() { target } else { target.solicited_node(id) };
        let option = self.link_option(id, ndp::SOURCE_LINK);
        self.send_neighbour((id, ours), to, doubted, message, option, pool);
    }

    /// Asks whether anybody has an address that is to become ours (RFC 4862, 5.4.2), with a number of our own (RFC 7527, 4.1).
    pub(super) fn probe(&mut self, id: InterfaceId, address: Address, pool: &mut Pool) {
        let Some(wire) = address.v6() else { return };
        let message = NeighbourMessage::new(icmpv6::NEIGHBOUR_SOLICITATION, 0, wire);
        let nobody = Address::from(std::net::Ipv6Addr::UNSPECIFIED);
        let option = Some(self.nonce(address));
        self.send_neighbour((id, nobody), address.solicited_node(id), None, message, option, pool);
    }

    /// The option by which our own questions for an address of ours are known again. It is the same in all of them: who repeats it
    /// to have an address taken for ours could as well be silent.
    fn nonce(&self, address: Address) -> [u8; 8] {
        let flow = Flow { local: address, ..Flow::default() };
        ndp::nonce_option(self.secret.hash(Purpose::Probe, &flow))
    }

    fn link_option(&self, id: InterfaceId, kind: u8) -> Option<[u8; 8]> {
        self.mac(id).map(|mac| ndp::link_option(kind, mac))
    }

    fn send_neighbour(
        &mut self,
        (id, source): (InterfaceId, Address),
        destination: Address,
        to: Option<Mac>,
        message: NeighbourMessage,
        option: Option<[u8; 8]>,
        pool: &mut Pool,
    ) {
        let mut bytes = [0; size_of::<NeighbourMessage>() + 8];
        bytes[..24].copy_from_slice(message.as_bytes());
        let mut length = 24;
        if let Some(option) = option {
            bytes[24..].copy_from_slice(&option);
            length = 32;
        }
        let message =
            Message { interface: id, source, destination, to, hop_limit: ndp::HOP_LIMIT, alert: false };
        self.send_message(&message, &mut bytes[..length], pool);
    }
}

impl Received<'_> {
    /// Whether it can only come from the link itself (RFC 4861, 7.1).
    pub(super) fn is_from_the_link(&self) -> bool {
        self.hop_limit == ndp::HOP_LIMIT && self.code() == Some(0)
    }

    /// A solicitation or advertisement that passes the checks that both have, and its options.
    fn neighbour_message(&self) -> Option<(NeighbourMessage, &[u8])> {
        let (message, options) = NeighbourMessage::read_from_prefix(self.bytes).ok()?;
        let right = self.is_from_the_link() && ndp::options(options).is_some();
        right.then_some((message, options))
    }
}
