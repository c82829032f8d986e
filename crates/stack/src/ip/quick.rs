//! The shortest way in: a segment over plain Ethernet and IPv4, nearly every packet of a server.
//!
//! Whether the addresses of a connection that exists may speak with each other was asked when its way was found, and is asked
//! again with each snapshot: of its segments the headers alone are looked at here. Of others, which begin or end a connection,
//! the addresses are, too. Whatever is not as usual goes by `link_input`, which has all the
//! rules: nothing is refused here.

use std::net::Ipv4Addr;

use bywash_frame::{Packet, Pool};
use bywash_wire::zerocopy::FromBytes;
use bywash_wire::{
    ETHERNET_HEADER, EtherType, EthernetHeader, IPV4_HEADER, Ipv4Header, Mac, Protocol, TcpHeader,
};

use crate::tcp::Entry;
use crate::{Flow, Medium, PortId, Snapshot, Stack, Timestamp};

/// The address of a port's interface whose packets have no tag, if they begin with an Ethernet header: they are looked at here.
pub(super) fn mac_of(snapshot: &Snapshot, port: PortId) -> Option<Mac> {
    let interface = snapshot.interface_of(port, None)?;
    match snapshot.interface(interface).medium {
        Medium::Ethernet { mac, .. } => Some(mac),
        Medium::Ip => None,
    }
}

/// Packets that are looked at before the first of them is taken.
pub(super) const AHEAD: usize = 8;

/// Of a packet whose headers are as usual.
#[derive(Clone, Copy)]
pub(super) struct Known {
    /// What the table seems to know its flow as.
    entry: Option<Entry>,
    /// Where it ends, from the IP header on.
    end: u16,
}

/// What was seen of the next packets.
///
/// Each step is done for all of them before the next: so the memory accesses of each overlap, and what the following step needs
/// is on its way into the cache.
pub(super) struct Ahead {
    /// The address that they are to be sent to; none where none is as usual.
    mac: Option<Mac>,
    hashes: [u64; AHEAD],
    /// Zero: the headers are not as usual.
    ends: [u16; AHEAD],
    entries: [Option<Entry>; AHEAD],
    next: usize,
}

impl Ahead {
    pub(super) fn new(mac: Option<Mac>) -> Self {
        Self { mac, hashes: [0; AHEAD], ends: [0; AHEAD], entries: [None; AHEAD], next: AHEAD }
    }

    /// Whether all packets that were looked at have been taken.
    #[inline]
    pub(super) fn is_over(&self) -> bool {
        self.next == AHEAD
    }

    /// What is known of the next packet; `None` when it is for the longer way.
    #[inline]
    pub(super) fn take(&mut self) -> Option<Known> {
        let i = self.next;
        self.next += 1;
        let known = Known { entry: self.entries[i], end: self.ends[i] };
        (known.end > 0).then_some(known)
    }
}

impl Stack {
    /// Reads the headers of the next packets, finds what the table knows of their flows, and asks for that memory.
    #[inline]
    pub(super) fn look_ahead(&self, ahead: &mut Ahead, first: &Packet, others: &[Packet]) {
        ahead.next = 0;
        ahead.ends = [0; AHEAD];
        let Some(mac) = ahead.mac else { return };
        for (i, packet) in std::iter::once(first).chain(others).take(AHEAD).enumerate() {
            if let Some((flow, end)) = usual(mac, packet) {
                (ahead.hashes[i], ahead.ends[i]) = (self.tcp.expect(&flow, &self.secret), end);
            }
        }
        for i in 0..AHEAD {
            if ahead.ends[i] > 0 {
                ahead.entries[i] = self.tcp.seems(ahead.hashes[i]);
            }
        }
    }

    /// Hands such a packet to TCP; back it comes when it is for the longer way. It keeps its Ethernet header, which would have to
    /// be written to, and what was just written in pieces is slow to be moved.
    #[inline]
    pub(super) fn known_input(
        &mut self,
        now: Timestamp,
        known: Known,
        packet: Packet,
        pool: &mut Pool,
    ) -> Result<(), Packet> {
        let Some((ip, tcp)) = headers(&packet) else { return Err(packet) };
        let (ecn, ours, theirs) = (ip.traffic_class & 3, ip.destination(), ip.source());
        let place = ETHERNET_HEADER + IPV4_HEADER..ETHERNET_HEADER + usize::from(known.end);
        // The connection is the packet's, after what others before it may have done, and its packets come in as usual.
        if let Some(Entry::Connection(i)) = known.entry
            && self.tcp.is_heard(i, ip.addresses(), tcp, self.out.snapshot.generation)
        {
            let (tcp, _, mut context) = self.protocols(now, pool);
            tcp.known_input(i, packet, (place, ecn), &mut context);
            return Ok(());
        }
        if !self.is_between_hosts(ours, theirs) {
            return Err(packet);
        }
        let (tcp, _, mut context) = self.protocols(now, pool);
        tcp.host_input((ours.into(), theirs.into()), packet, (place, ecn), &mut context);
        Ok(())
    }

    /// Whether a packet that other rules need not be asked about is for us alone, from one other host.
    // A function of its own: the packets of a connection, which are not asked, keep the registers.
    #[inline(never)]
    fn is_between_hosts(&self, ours: Ipv4Addr, theirs: Ipv4Addr) -> bool {
        let snapshot = &self.out.snapshot;
        snapshot.is_ours(ours.into())
            && !matches!(ours.octets()[0], 0 | 127)
            && !snapshot.is_broadcast(ours.into())
            && snapshot.is_passed_on(theirs.to_bits())
    }
}

/// The flow of a packet whose headers are as usual, and where it ends, from the IP header on.
#[inline]
fn usual(mac: Mac, packet: &Packet) -> Option<(Flow, u16)> {
    #[cfg(test)]
    if crate::tcp::by_steps() {
        return None;
    }
    let (ethernet, rest) = EthernetHeader::ref_from_prefix(packet.head()).ok()?;
    let plain = ethernet.destination == mac
        && ethernet.kind.get() == EtherType::IPV4.0
        && packet.offload.vlan().is_none();
    let (ip, _) = Ipv4Header::ref_from_prefix(rest).ok().filter(|_| plain)?;
    let total = ip.total_length.get();
    let end = usize::from(total);
    let whole = ip.has_no_options()
        && ip.protocol == Protocol::TCP.0
        && !ip.is_fragment()
        && ip.is_sealed()
        && end <= packet.len() - ETHERNET_HEADER;
    let transport = rest.get(IPV4_HEADER..end.min(rest.len())).filter(|_| whole)?;
    let tcp = TcpHeader::parse(transport)?;
    Some((Flow::of(tcp, ip.destination().into(), ip.source().into()), total))
}

/// The headers of such a packet once more.
#[inline]
fn headers(packet: &Packet) -> Option<(&Ipv4Header, &TcpHeader)> {
    let (ip, rest) = Ipv4Header::ref_from_prefix(packet.head().get(ETHERNET_HEADER..)?).ok()?;
    let (tcp, _) = TcpHeader::ref_from_prefix(rest).ok()?;
    Some((ip, tcp))
}
