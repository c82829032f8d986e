//! The shortest way in: a segment over plain Ethernet and IPv4, nearly every packet of a server.
//!
//! Whether the addresses of a connection that exists may speak with each other was asked when its way was found, and is asked
//! again with each snapshot: of its segments the headers alone are looked at here. Of others, which begin or end a connection,
//! the addresses are, too. Whatever is not as usual goes by `link_input`, which has all the
//! rules: nothing is refused here.

use bywash_frame::{Packet, Pool};
use bywash_wire::zerocopy::FromBytes;
use bywash_wire::{
    ETHERNET_HEADER, EtherType, EthernetHeader, IPV4_HEADER, Ipv4Header, Mac, Protocol, TcpHeader,
};

use crate::{Address, ConnectionId, Flow, Medium, PortId, Snapshot, Stack, Timestamp};

/// The address of a port's interface whose packets have no tag, if they begin with an Ethernet header: they are looked at here.
pub(super) fn mac_of(snapshot: &Snapshot, port: PortId) -> Option<Mac> {
    let interface = snapshot.interface_of(port, None)?;
    match snapshot.interface(interface).medium {
        Medium::Ethernet { mac, .. } => Some(mac),
        Medium::Ip => None,
    }
}

/// Of a packet whose headers are as usual: its connection, if there is one, and where it ends, from the IP header on.
pub(super) struct Known {
    connection: Option<ConnectionId>,
    end: u16,
}

impl Stack {
    /// Reads a packet's headers, and asks for its connection's memory; `None` when it is for the longer way.
    #[inline]
    pub(super) fn known(&self, mac: Mac, packet: &Packet) -> Option<Known> {
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
        let flow = Flow::of(tcp, ip.destination().into(), ip.source().into());
        let connection = self.tcp.known(&flow, &self.secret);
        Some(Known { connection, end: total })
    }

    /// Hands such a packet to TCP; back it comes when it is for the longer way. It keeps its Ethernet header, which would have to
    /// be written to, and what was just written in pieces is slow to be moved.
    #[inline]
    pub(super) fn known_input(
        &mut self,
        now: Timestamp,
        known: &Known,
        packet: Packet,
        pool: &mut Pool,
    ) -> Result<(), Packet> {
        let ecn = packet.head().get(ETHERNET_HEADER + 1).map_or(0, |class| class & 3);
        let place = ETHERNET_HEADER + IPV4_HEADER..ETHERNET_HEADER + usize::from(known.end);
        // The connection is still the packet's, after what others before it may have done, and its packets come in as usual.
        let generation = self.out.snapshot.generation;
        if let Some(id) = known.connection.filter(|id| self.tcp.is_heard(*id, generation)) {
            let (tcp, _, mut context) = self.protocols(now, pool);
            tcp.known_input(id, packet, (place, ecn), &mut context);
            return Ok(());
        }
        let Some(ends) = self.ends(&packet) else { return Err(packet) };
        let (tcp, _, mut context) = self.protocols(now, pool);
        tcp.host_input(ends, packet, (place, ecn), &mut context);
        Ok(())
    }

    /// The addresses of a packet whose headers are as usual, ours and the other's; `None` unless it is for us alone, from one
    /// other host.
    fn ends(&self, packet: &Packet) -> Option<(Address, Address)> {
        let (ip, _) = Ipv4Header::ref_from_prefix(packet.head().get(ETHERNET_HEADER..)?).ok()?;
        let (local, remote) = (Address::from(ip.destination()), Address::from(ip.source()));
        let snapshot = &self.out.snapshot;
        let usual = snapshot.is_ours(local)
            && !matches!(ip.destination().octets()[0], 0 | 127)
            && !snapshot.is_broadcast(local)
            && snapshot.is_passed_on(ip.source().to_bits());
        usual.then_some((local, remote))
    }
}
