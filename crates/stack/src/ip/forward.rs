//! The short way of a packet that is only passed on: plain IPv4 in plain Ethernet, whose router is known to be there.
//!
//! It is the same rules as the long way's, all looked at in one place: whatever is not plain is left to the long way,
//! which drops, counts, reports or cuts it. Routes are found for a whole batch before its packets are touched, so that
//! the memory accesses of many look-ups overlap.

use bywash_frame::{BATCH, Batch, Packet, Pool};
use bywash_wire::checksum::updated;
use bywash_wire::zerocopy::FromBytes;
use bywash_wire::{ETHERNET_HEADER, EtherType, EthernetHeader, IPV4_HEADER, Ipv4Header, Mac};

use crate::counters::Counters;
use crate::outbox::Outbox;
use crate::snapshot::Snapshot;

/// Hop numbers for the packets of a batch; 0 where there is none, or where the packet may be no IPv4 at all.
pub(super) fn hops(snapshot: &Snapshot, batch: &Batch) -> [u32; BATCH] {
    let mut hops = [0; BATCH];
    for (hop, packet) in hops.iter_mut().zip(batch.iter()) {
        // Whether there is such a header in front of it is looked at later; a wrong look-up harms nobody.
        let address = packet.head().get(ETHERNET_HEADER + 16..).and_then(|bytes| bytes.first_chunk::<4>());
        *hop = address.map_or(0, |address| snapshot.hop_v4(u32::from_be_bytes(*address)));
    }
    hops
}

/// Passes a packet on to its hop, or gives it back because it has to go the long way.
pub(super) fn pass_on(
    out: &mut Outbox,
    counters: &mut Counters,
    snapshot: &Snapshot,
    (ours, hop): (Mac, u32),
    mut packet: Packet,
    pool: &mut Pool,
) -> Option<Packet> {
    let Some(next) = snapshot.adjacent(hop) else { return Some(packet) };
    let length = packet.len();
    if packet.offload.asks_for_work() {
        return Some(packet);
    }
    let Some(front) = packet.head_mut().first_chunk_mut::<{ ETHERNET_HEADER + IPV4_HEADER }>() else {
        return Some(packet);
    };
    let (link, ip) = front.split_at_mut(ETHERNET_HEADER);
    let plain = EthernetHeader::ref_from_bytes(link)
        .is_ok_and(|link| link.destination == ours && link.kind.get() == EtherType::IPV4.0);
    let Ok(ip) = Ipv4Header::mut_from_bytes(ip) else { return Some(packet) };
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
        return Some(packet);
    }
    let word = |ttl: u8| u16::from_be_bytes([ttl, ip.protocol]);
    let checksum = updated(ip.checksum.get(), word(ip.time_to_live), word(ip.time_to_live - 1));
    (ip.time_to_live, ip.checksum) = (ip.time_to_live - 1, checksum.into());
    link.copy_from_slice(header);
    counters.forwarded += 1;
    out.enqueue(packet, next.link.port, pool);
    None
}
