//! The short way of a packet that is only passed on: plain IPv4 in plain Ethernet, whose router is known to be there.
//!
//! It is the same rules as the long way's, all looked at in one place: whatever is not plain is left to the long way,
//! which drops, counts, reports or cuts it. Routes are found for a whole batch before its packets are touched, so that
//! the memory accesses of many look-ups overlap.

use bywash_frame::{BATCH, Batch, Packet};
use bywash_wire::zerocopy::FromBytes;
use bywash_wire::{ETHERNET_HEADER, EtherType, EthernetHeader, IPV4_HEADER, Ipv4Header, Mac};

use crate::PortId;
use crate::snapshot::Snapshot;

/// Hop numbers for the packets of a batch; any number where the packet is no IPv4 at all.
pub(super) fn hops(snapshot: &Snapshot, batch: &Batch) -> [u32; BATCH] {
    let (mut addresses, mut hops) = ([0; BATCH], [0; BATCH]);
    for (to, packet) in addresses.iter_mut().zip(batch.iter()) {
        // Whether there is such a header in front of it is looked at later; a wrong look-up harms nobody.
        let address = packet.head().get(ETHERNET_HEADER + 16..).and_then(|bytes| bytes.first_chunk::<4>());
        *to = address.map_or(0, |address| u32::from_be_bytes(*address));
    }
    let count = batch.len().min(BATCH);
    snapshot.hops_v4(&addresses[..count], &mut hops[..count]);
    hops
}

/// Makes a packet ready to be passed on to its hop, and says by which port; [`PortId::NONE`], and the packet is as it was,
/// when it has to go the long way.
#[inline]
pub(super) fn pass_on(snapshot: &Snapshot, ours: Mac, hop: u32, packet: &mut Packet) -> PortId {
    let Some(next) = snapshot.adjacent(hop) else { return PortId::NONE };
    let length = packet.len();
    if packet.offload.asks_for_work() {
        return PortId::NONE;
    }
    let Some(front) = packet.head_mut().first_chunk_mut::<{ ETHERNET_HEADER + IPV4_HEADER }>() else {
        return PortId::NONE;
    };
    let (link, ip) = front.split_at_mut(ETHERNET_HEADER);
    let plain = EthernetHeader::ref_from_bytes(link)
        .is_ok_and(|link| link.destination == ours && link.kind.get() == EtherType::IPV4.0);
    let Ok(ip) = Ipv4Header::mut_from_bytes(ip) else { return PortId::NONE };
    let whole = usize::from(ip.total_length.get());
    let right = plain
        && ip.has_no_options()
        && (IPV4_HEADER..=length - ETHERNET_HEADER).contains(&whole)
        && length - ETHERNET_HEADER <= usize::from(next.mtu)
        && ip.time_to_live > 1
        && ip.is_sealed()
        && snapshot.is_passed_on(ip.source().to_bits())
        && snapshot.is_passed_on(ip.destination().to_bits());
    let header = next.link.header();
    if !right || header.len() != ETHERNET_HEADER {
        return PortId::NONE;
    }
    ip.take_hop();
    link.copy_from_slice(header);
    next.link.port
}
