//! The short way of a packet that is only passed on: plain IPv4 or IPv6 in plain Ethernet, whose router is known to be
//! there.
//!
//! It is the same rules as the long way's, all looked at in one place: whatever is not plain is left to the long way,
//! which drops, counts, reports or cuts it. Routes are found for a whole batch before its packets are touched, so that
//! the memory accesses of many look-ups overlap.

use bywash_frame::{BATCH, Batch, Packet};
use bywash_wire::zerocopy::FromBytes;
use bywash_wire::{ETHERNET_HEADER, EtherType, IPV4_HEADER, IPV6_HEADER, Ipv4Header, Ipv6Header, Mac};

use crate::PortId;
use crate::snapshot::{Adjacent, Snapshot};

/// What IPv4 without options begins with.
const PLAIN_IPV4: u8 = 0x45;

/// Hop numbers for the packets of a batch; any number where the packet is no IP at all.
pub(super) fn hops(snapshot: &Snapshot, batch: &Batch) -> [u32; BATCH] {
    let (mut addresses, mut hops, mut others) = ([0; BATCH], [0; BATCH], 0);
    for (to, packet) in addresses.iter_mut().zip(batch.iter()) {
        // Whether there is such a header in front of it is looked at later; a wrong look-up harms nobody.
        if let Some(front @ [.., a, b, c, d]) =
            packet.head().first_chunk::<{ ETHERNET_HEADER + IPV4_HEADER }>()
        {
            *to = u32::from_be_bytes([*a, *b, *c, *d]);
            others |= front[ETHERNET_HEADER] ^ PLAIN_IPV4;
        }
    }
    let count = batch.len().min(BATCH);
    if others == 0 {
        snapshot.hops_v4(&addresses[..count], &mut hops[..count]);
    } else {
        find_either(snapshot, batch, &addresses[..count], &mut hops);
    }
    hops
}

/// Whether a header that begins with this byte is IPv6.
fn is_six(first: u8) -> bool {
    first >> 4 == 6
}

/// Hop numbers for the packets of a batch of which some are not plain IPv4. `addresses`: where all of them would go if they were.
#[inline(never)]
fn find_either(snapshot: &Snapshot, batch: &Batch, addresses: &[u32], hops: &mut [u32; BATCH]) {
    let (mut places, mut addresses_v6, mut count) = ([0; BATCH], [0; BATCH], 0);
    for (place, packet) in batch.iter().take(BATCH).enumerate() {
        let front = packet.head().first_chunk::<{ ETHERNET_HEADER + IPV6_HEADER }>();
        if let Some(front) = front.filter(|front| is_six(front[ETHERNET_HEADER])) {
            let address = front.last_chunk::<16>().map_or(0, |address| u128::from_be_bytes(*address));
            (places[count], addresses_v6[count]) = (place, address);
            count += 1;
        }
    }
    if count < addresses.len() {
        snapshot.hops_v4(addresses, &mut hops[..addresses.len()]);
    }
    let mut found = [0; BATCH];
    snapshot.hops_v6(&addresses_v6[..count], &mut found[..count]);
    for (place, hop) in places.iter().zip(found).take(count) {
        hops[*place] = hop;
    }
}

/// Makes a packet ready to be passed on to its hop, and says by which port; [`PortId::NONE`], and the packet is as it was,
/// when it has to go the long way. What most packets are is looked at in a few whole words.
#[inline]
pub(super) fn pass_on(snapshot: &Snapshot, ours: Mac, hop: u32, packet: &mut Packet) -> PortId {
    let Some(next) = snapshot.adjacent(hop) else { return PortId::NONE };
    let length = packet.len();
    if packet.offload.asks_for_work() || length > next.longest {
        return PortId::NONE;
    }
    let head = packet.head_mut();
    let all_in_head = head.len() == length;
    let Some(front) = head.first_chunk_mut::<{ ETHERNET_HEADER + IPV4_HEADER }>() else {
        return PortId::NONE;
    };
    if !is_plain(front, ours) {
        return pass_on_v6(snapshot, ours, next, packet);
    }
    let (link, ip) = front.split_at_mut(ETHERNET_HEADER);
    let Ok(ip) = Ipv4Header::mut_from_bytes(ip) else { return PortId::NONE };
    let whole = ETHERNET_HEADER + usize::from(ip.total_length.get());
    let differs = whole != length;
    // More may stand behind it, but its header is in it.
    let shorter = ETHERNET_HEADER + IPV4_HEADER..length;
    let right = (!differs || all_in_head && shorter.contains(&whole))
        && ip.time_to_live > 1
        && ip.is_sealed()
        && snapshot.are_passed_on(ip.source().octets(), ip.destination().octets());
    if !right {
        return PortId::NONE;
    }
    ip.take_hop();
    let port = put(link, next);
    if differs {
        trim(packet, whole);
    }
    port
}

/// Takes off what stands behind IP, of a packet all of which is in its first frame: no port gives an empty one behind that.
#[cold]
fn trim(packet: &mut Packet, length: usize) {
    // It is longer than that.
    let shorter = packet.set_len(length);
    debug_assert!(shorter.is_ok());
}

/// Whether a packet begins with an Ethernet header for us and with IPv4 without options.
#[inline]
fn is_plain(front: &[u8; ETHERNET_HEADER + IPV4_HEADER], ours: Mac) -> bool {
    is_for(front, ours)
        && front[12..14] == EtherType::IPV4.0.to_be_bytes()
        && front[ETHERNET_HEADER] == PLAIN_IPV4
}

/// Whether a packet's Ethernet header says that it is for us.
#[inline]
fn is_for<const N: usize>(front: &[u8; N], ours: Mac) -> bool {
    let [a, b, c, d, e, f] = ours.0;
    let to = front.first_chunk().map_or(0, |to| u64::from_le_bytes(*to))
        ^ u64::from_le_bytes([a, b, c, d, e, f, 0, 0]);
    // Without the two bytes that are the sender's.
    to << 16 == 0
}

/// Puts the Ethernet header in front of a packet for a router that needs no other; says by which port it goes.
#[inline]
fn put(link: &mut [u8], next: &Adjacent) -> PortId {
    link.copy_from_slice(next.link.plain());
    next.link.port
}

/// The same for a packet that is not IPv4.
#[inline(never)]
fn pass_on_v6(snapshot: &Snapshot, ours: Mac, next: &Adjacent, packet: &mut Packet) -> PortId {
    let length = packet.len();
    let head = packet.head_mut();
    let all_in_head = head.len() == length;
    let Some(front) = head.first_chunk_mut::<{ ETHERNET_HEADER + IPV6_HEADER }>() else {
        return PortId::NONE;
    };
    let plain = is_for(front, ours)
        && front[12..14] == EtherType::IPV6.0.to_be_bytes()
        && is_six(front[ETHERNET_HEADER]);
    let (link, ip) = front.split_at_mut(ETHERNET_HEADER);
    let Ok(ip) = Ipv6Header::mut_from_bytes(ip) else { return PortId::NONE };
    let whole = ETHERNET_HEADER + IPV6_HEADER + usize::from(ip.payload_length.get());
    let right = plain
        && (whole == length || whole < length && all_in_head)
        && ip.hop_limit > 1
        && snapshot.are_passed_on_v6(ip.source(), ip.destination());
    if !right {
        return PortId::NONE;
    }
    ip.hop_limit -= 1;
    let port = put(link, next);
    if whole < length {
        trim(packet, whole);
    }
    port
}
