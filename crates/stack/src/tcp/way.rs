//! The way of a connection's segments: found once for each snapshot, with the headers in front of TCP ready to be copied.

use std::num::NonZeroU8;

use bywash_frame::{Packet, Place, Pool};
use bywash_wire::checksum::Sum;
use bywash_wire::zerocopy::{FromBytes, IntoBytes};
use bywash_wire::{IPV4_HEADER, IPV6_HEADER, Ipv4Header, Ipv6Header, Protocol};

use crate::ip::{Fields, header_length, pseudo, write_header};
use crate::outbox::{Direct, Outbox};
use crate::snapshot::{Link, Reach};
use crate::{Address, Flow, InterfaceId, Offloads, PortId};

/// Bytes of link and IP header at most: Ethernet with a tag, and IPv6. All are copied in one go; those that a packet does not
/// have lie in front, where nobody looks.
pub(super) const HEADERS: usize = 18 + IPV6_HEADER;

/// How segments get to the peer.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct Way {
    /// Of which snapshot it is.
    generation: u32,
    /// Packets can be sent along the link; else the neighbour is asked for first.
    ready: bool,
    v4: bool,
    /// Nothing is to be asked of the addresses of what comes in: from one other host, to one of ours.
    heard: bool,
    /// Bytes of link header, and of that and the IP header.
    network: u8,
    transport: u8,
    pub(super) port: PortId,
    interface: InterfaceId,
    pub(super) offloads: Offloads,
    /// Sums of the IPv4 header and of the pseudo-header, without lengths and class.
    header_sum: u16,
    pseudo_sum: u16,
    /// They end where this ends.
    headers: [u8; HEADERS],
}

impl Way {
    /// The way for a flow; `None` without a route. It is kept if nothing is to be asked or told about it.
    pub(super) fn find(flow: &Flow, out: &mut Outbox) -> Option<Self> {
        let known = out.ways.get(flow);
        if known.is_some() {
            return known.copied();
        }
        let direct = out.direct(flow.remote);
        let way = Self::make(flow, direct, out)?;
        if direct.is_some() {
            out.ways.keep(flow, way);
        }
        Some(way)
    }

    /// Makes the way for a flow of the one to its destination, if that is known, or finds that, too.
    #[cold]
    fn make(flow: &Flow, direct: Option<Direct>, out: &mut Outbox) -> Option<Self> {
        let (path, ready, link) = match direct {
            Some(direct) => (direct.path, true, direct.link),
            None => {
                let path = out.snapshot.path(flow.remote)?;
                match out.reach(path) {
                    Reach::Ready { link, .. } => (path, true, link),
                    Reach::Unresolved | Reach::Absent => (path, false, Link::none(path.interface)),
                }
            }
        };
        let fields = Fields {
            source: flow.local,
            destination: flow.remote,
            protocol: Protocol::TCP.0,
            class: 0,
            hop_limit: out.snapshot.hop_limit(path, flow.remote),
            identification: None,
        };
        let v4 = flow.remote.is_v4();
        let (mut headers, link_header) = ([0; HEADERS], link.header());
        let (network, length) = (link_header.len(), header_length(flow.remote));
        let (front, ip) = headers.split_at_mut(HEADERS - length);
        front[HEADERS - length - network..].copy_from_slice(link_header);
        write_header(&fields, 0, ip)?;
        let header_sum = sum_without(v4, &mut headers);
        let heard = match (flow.local.v4(), flow.remote.v4()) {
            (Some(local), Some(remote)) => {
                let ours = out.snapshot.is_ours(flow.local) && !local.is_loopback();
                ours && out.snapshot.is_passed_on(remote.to_bits())
            }
            _ => false,
        };
        #[expect(clippy::cast_possible_truncation, reason = "at most 58")]
        Some(Self {
            generation: out.snapshot.generation,
            ready,
            v4,
            heard,
            network: network as u8,
            transport: (network + length) as u8,
            port: link.port,
            interface: link.interface,
            offloads: out.snapshot.interface(link.interface).offloads,
            headers,
            header_sum,
            pseudo_sum: pseudo(flow.local, flow.remote, Protocol::TCP.0, 0).partial(),
        })
    }

    /// Whether it is of this snapshot, and the neighbour is known.
    #[inline]
    pub(super) fn is_current(&self, out: &Outbox) -> bool {
        self.generation == out.snapshot.generation && self.ready
    }

    /// With a time to live that is not the interface's.
    #[cold]
    pub(super) fn with_hop_limit(mut self, limit: NonZeroU8) -> Self {
        if self.v4 {
            if let Ok((_, ip)) = Ipv4Header::mut_from_suffix(&mut self.headers) {
                ip.time_to_live = limit.get();
            }
            self.header_sum = sum_without(true, &mut self.headers);
        } else if let Ok((_, ip)) = Ipv6Header::mut_from_suffix(&mut self.headers) {
            ip.hop_limit = limit.get();
        }
        self
    }

    /// Whether it is the way of a packet with these addresses, as they stand in its IPv4 header, and nothing more is to be asked
    /// about them, as of this snapshot.
    #[inline]
    pub(super) fn is_heard(&self, addresses: [u8; 8], generation: u32) -> bool {
        let ours = self.headers.last_chunk().map(|ours| u64::from_ne_bytes(*ours));
        // What comes in has them the other way around.
        let turned = u64::from_ne_bytes(addresses).rotate_left(32);
        self.heard && self.generation == generation && ours == Some(turned)
    }

    /// Bytes in front of the TCP header.
    #[inline]
    pub(super) fn transport(&self) -> usize {
        usize::from(self.transport)
    }

    /// Writes everything in front of the TCP header, for `length` bytes of TCP.
    #[inline]
    pub(super) fn put(&self, headers: &mut [u8; HEADERS], class: u8, length: u16) {
        *headers = self.headers;
        if self.v4 {
            let whole = length + 20;
            if let Ok((_, ip)) = Ipv4Header::mut_from_suffix(headers) {
                (ip.traffic_class, ip.total_length) = (class, whole.into());
                let sum = Sum::new().word(self.header_sum).word(class.into()).word(whole);
                ip.checksum = sum.checksum().into();
            }
        } else if let Ok((_, ip)) = Ipv6Header::mut_from_suffix(headers) {
            ip.payload_length = length.into();
            ip.set_traffic_class(class);
        }
    }

    /// The most bytes of TCP that IP has a length for.
    #[inline]
    pub(super) fn longest(&self) -> usize {
        usize::from(u16::MAX) - if self.v4 { IPV4_HEADER } else { 0 }
    }

    /// The sum of the pseudo-header (RFC 9293, 3.1).
    #[inline]
    pub(super) fn pseudo(&self, length: u16) -> Sum {
        Sum::new().word(self.pseudo_sum).word(length)
    }

    /// Where a packet will lie that begins with these headers, and that leaves no work but what the port does; `None` when it is to
    /// be handed to [`Way::send`] instead.
    #[inline(always)]
    pub(super) fn place<'a>(&self, out: &'a mut Outbox) -> Option<Place<'a>> {
        if !self.ready || self.port == PortId::NONE {
            return None;
        }
        out.place(self.port)
    }

    /// Sends a packet to `remote` that begins with these headers.
    pub(super) fn send(&self, packet: Packet, remote: Address, out: &mut Outbox, pool: &mut Pool) {
        if self.ready {
            return out.send_framed(packet, (self.port, self.interface), usize::from(self.network), pool);
        }
        match out.snapshot.path(remote) {
            Some(path) => out.send(packet, path, pool),
            None => out.drop(packet, pool),
        }
    }
}

/// The sum of an IPv4 header at the end of others without its length, which is taken out; IPv6 has none.
fn sum_without(v4: bool, headers: &mut [u8; HEADERS]) -> u16 {
    match Ipv4Header::mut_from_suffix(headers) {
        Ok((_, ip)) if v4 => {
            (ip.total_length, ip.checksum) = (0.into(), 0.into());
            Sum::new().bytes(ip.as_bytes()).partial()
        }
        _ => 0,
    }
}
