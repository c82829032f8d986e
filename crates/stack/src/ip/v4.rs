//! IPv4 that comes in (RFC 791, RFC 1122, RFC 1812): checked, delivered or passed on.

use std::net::Ipv4Addr;

use bywash_frame::{Packet, Pool};
use bywash_wire::zerocopy::FromBytes;
use bywash_wire::{DONT_FRAGMENT, Ipv4Error, Ipv4Header, MORE_FRAGMENTS};

use super::reassembly::{Fragment, Whole};
use super::{Arrival, Inbound, fragment};
use crate::segmentation::cut;
use crate::{Address, InterfaceId, Stack, Timestamp, Unreachable};

/// The only group that is ours (RFC 1112, 4): programs join none.
const ALL_HOSTS: Ipv4Addr = Ipv4Addr::new(224, 0, 0, 1);

impl Stack {
    pub(super) fn ipv4_input(
        &mut self,
        now: Timestamp,
        arrival: Arrival,
        mut packet: Packet,
        pool: &mut Pool,
    ) {
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
        super::trim(&mut packet, usize::from(ip.total_length.get()), pool);
        let (source, destination) = (Address::from(ip.source()), Address::from(ip.destination()));
        // Nearly every packet is from one host, another one and of no link alone, to one that is not "this host" (RFC 1122, 3.2.1.3).
        let ordinary = self.out.snapshot.is_passed_on(ip.source().to_bits())
            && !matches!(ip.destination().octets()[0], 0 | 127);
        if !ordinary && self.is_martian(arrival.interface == InterfaceId::LOOPBACK, source, destination) {
            self.counters.martian += 1;
            return pool.give_packet(packet);
        }
        if has_source_route(&packet.head()[20..ip.header_length()]) {
            self.counters.source_route += 1;
            return pool.give_packet(packet);
        }
        let snapshot = &self.out.snapshot;
        let to_group = ip.destination() == ALL_HOSTS || snapshot.is_broadcast(destination);
        if !to_group && (arrival.group || !snapshot.is_ours(destination)) {
            return self.forward4(arrival, packet, &ip, pool);
        }
        let inbound = Inbound {
            interface: arrival.interface,
            source,
            destination,
            protocol: ip.protocol,
            start: ip.header_length(),
            end: usize::from(ip.total_length.get()),
            ecn: ip.traffic_class & 3,
            group: to_group,
            reassembled: false,
            inside: arrival.interface == InterfaceId::LOOPBACK,
            packet,
        };
        if !ip.is_fragment() {
            return self.deliver_up(now, inbound, pool);
        }
        self.counters.fragments += 1;
        let piece = Fragment {
            identification: ip.identification.get().into(),
            offset: ip.fragment_offset(),
            more: ip.fragment.get() & MORE_FRAGMENTS != 0,
            whole: Whole::V4,
        };
        if let Some(whole) = self.fragments.take(now, inbound, piece, &mut self.counters, pool) {
            self.deliver_up(now, whole, pool);
        }
    }

    /// Passes a packet for another host on (RFC 1812, 5.2), unless it came to many stations: then it is nobody's, and not ours either (RFC
    /// 1122, 3.3.6).
    fn forward4(&mut self, arrival: Arrival, mut packet: Packet, ip: &Ipv4Header, pool: &mut Pool) {
        let (source, destination) = (Address::from(ip.source()), Address::from(ip.destination()));
        // RFC 1812, 5.3.7 and RFC 3927, 2.7.
        let of_a_link = source.is_link_local_v4() || destination.is_link_local_v4();
        let passable = destination.is_host() && !destination.is_loopback() && !of_a_link;
        if !self.out.snapshot.forwarding || arrival.group || !passable {
            self.counters.not_for_us += 1;
            return pool.give_packet(packet);
        }
        if ip.time_to_live <= 1 {
            return self.report(arrival.interface, packet, Unreachable::TimeExceeded);
        }
        let Some((path, link)) = self.out.snapshot.onward(destination) else {
            self.counters.no_route += 1;
            return self.report(arrival.interface, packet, Unreachable::Network);
        };
        let (mtu, link) = (self.out.snapshot.mtu(path), link.copied());
        let large = super::output::largest_piece(&packet) > usize::from(mtu);
        if large && ip.fragment.get() & DONT_FRAGMENT != 0 {
            return self.report(arrival.interface, packet, Unreachable::TooBig(mtu));
        }
        // It ends where no datagram does: pieces of it would begin from zero again.
        if large && ip.fragment_offset() + usize::from(ip.total_length.get()) > usize::from(u16::MAX) {
            self.counters.malformed += 1;
            return pool.give_packet(packet);
        }
        if let Ok((header, _)) = Ipv4Header::mut_from_prefix(packet.head_mut()) {
            header.take_hop();
        }
        self.counters.forwarded += 1;
        if let (Some(link), false) = (link, large) {
            return self.out.send_link(packet, &link, pool);
        }
        let whole = packet.offload.segmentation().is_some();
        let mut lost = 0;
        let mut send = |packet, pool: &mut Pool| {
            let send = |piece, pool: &mut Pool| self.out.send(piece, path, pool);
            lost += u64::from(!fragment(packet, usize::from(mtu), pool, send));
        };
        if !(large && whole) {
            send(packet, pool);
        } else if !cut(packet, 0, false, pool, send) {
            // Its segments may be cut up, as if they had come one by one.
            lost += 1;
        }
        self.out.dropped += lost;
    }
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
