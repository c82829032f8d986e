//! What the NIC does with packets: checksums, VLAN tags, segments, and what it says of those it received.

use std::num::NonZeroU16;

use bywash_drivers::ixgbe::Settings;
use bywash_drivers::port::frame::{Checksum, Packet, Pool, Segmentation, SegmentationKind};

use crate::bed::{
    Transport, bytes, end, frame, ipv4, ipv6, memory, no_violations, packet, quiet, sum, world,
};

const A4: [u8; 4] = [10, 0, 0, 1];
const B4: [u8; 4] = [10, 0, 0, 2];
const A6: [u8; 16] = [0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];
const B6: [u8; 16] = [0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2];

/// TCP's flag of that name.
const CWR: u8 = 0x80;

fn transport(protocol: u8, payload: usize) -> Transport {
    Transport { protocol, ports: (1000, 2000), payload: (0..payload).map(|i| i as u8).collect() }
}

/// Puts an 802.1Q tag behind the addresses.
fn tagged(mut frame: Vec<u8>, tag: u16) -> Vec<u8> {
    let [high, low] = tag.to_be_bytes();
    frame.splice(12..12, [0x81, 0, high, low]);
    frame
}

#[test]
fn received_checksums_are_judged_and_hashes_delivered() {
    let world = world(2);
    let (arena, mut pool) = memory(8192);
    let mut near = end(&world, 0, &quiet(), arena);
    let mut far = end(&world, 1, &quiet(), arena);
    far.receive(0, &mut pool);
    let tcp = ipv4(A4, B4, &transport(6, 100));
    let udp = ipv6(A6, B6, &transport(17, 100));
    let wrong = |frame: &[u8], at: usize| {
        let mut frame = frame.to_vec();
        frame[at] ^= 1;
        frame
    };
    let mut no_sum = ipv4(A4, B4, &transport(17, 30));
    no_sum[40..42].fill(0);
    let mut fragment = ipv4(A4, B4, &transport(17, 30));
    fragment[20] |= 0x20;
    fragment[24..26].fill(0);
    let check = !sum(&fragment[14..34]);
    fragment[24..26].copy_from_slice(&check.to_be_bytes());
    let cases = [
        (tcp.clone(), Checksum::Valid, true),
        (wrong(&tcp, 60), Checksum::Bad, true),
        (tagged(tcp.clone(), 5), Checksum::Valid, true),
        (udp.clone(), Checksum::Valid, true),
        // What the 82599 says of wrong UDP checksums is not believed: it is software's to look.
        (wrong(&udp, 70), Checksum::Unknown, true),
        // A wrong IPv4 header: nothing is said of what is above.
        (wrong(&tcp, 24), Checksum::Unknown, true),
        (no_sum, Checksum::Unknown, true),
        (fragment, Checksum::Unknown, true),
        (frame(0, 60), Checksum::Unknown, false),
    ];
    for (i, (bytes, checksum, hashed)) in cases.into_iter().enumerate() {
        let sent = packet(&bytes, 2048, &mut pool);
        near.send([sent], &mut pool);
        let [received] = far.receive(0, &mut pool).try_into().unwrap();
        assert_eq!(received.offload.checksum(), checksum, "{i}");
        assert_eq!(received.offload.hash().is_some(), hashed, "{i}");
        pool.give_packet(received);
    }
    near.close(&mut pool).unwrap();
    far.close(&mut pool).unwrap();
    no_violations(&world, 2);
}

/// The packet with only its pseudo-header's sum, as whoever leaves the checksum to the NIC makes it.
fn partial(bytes: &[u8], l4: usize, offset: usize, pseudo: &[u8], piece: usize, pool: &mut Pool) -> Packet {
    let mut bytes = bytes.to_vec();
    bytes[l4 + offset..l4 + offset + 2].copy_from_slice(&sum(pseudo).to_be_bytes());
    let mut packet = packet(&bytes, piece, pool);
    packet.offload.set_checksum(Checksum::Partial { start: l4 as u16, offset: offset as u16 });
    packet
}

fn pseudo(v6: bool, protocol: u8, length: usize) -> Vec<u8> {
    let tail = [0, protocol, (length >> 8) as u8, length as u8];
    if v6 { [&A6[..], &B6, &tail].concat() } else { [&A4[..], &B4, &tail].concat() }
}

#[test]
fn sent_checksums_are_finished() {
    let world = world(2);
    let (arena, mut pool) = memory(8192);
    let mut near = end(&world, 0, &quiet(), arena);
    let mut far = end(&world, 1, &quiet(), arena);
    far.receive(0, &mut pool);
    for (v6, protocol, offset) in [(false, 6, 16), (false, 17, 6), (true, 6, 16), (true, 17, 6)] {
        for (payload, tag) in [(0, None), (1, Some(7)), (333, None), (3000, Some(0x2005))] {
            let make = if v6 {
                ipv6(A6, B6, &transport(protocol, payload))
            } else {
                ipv4(A4, B4, &transport(protocol, payload))
            };
            let (mut wanted, mut l4) = (make, if v6 { 54 } else { 34 });
            if let Some(tag) = tag {
                (wanted, l4) = (tagged(wanted, tag), l4 + 4);
            }
            let pseudo = pseudo(v6, protocol, wanted.len() - l4);
            let sent = partial(&wanted, l4, offset, &pseudo, 1000, &mut pool);
            near.send([sent], &mut pool);
            let [received] = far.receive(0, &mut pool).try_into().unwrap();
            assert_eq!(received.offload.checksum(), Checksum::Valid);
            wanted.resize(wanted.len().max(60), 0);
            assert_eq!(bytes(received, &mut pool), wanted, "{v6} {protocol} {payload} {tag:?}");
        }
    }
    near.close(&mut pool).unwrap();
    far.close(&mut pool).unwrap();
    no_violations(&world, 2);
}

#[test]
fn a_checksum_that_the_nic_cannot_make_software_makes() {
    let world = world(1);
    let (arena, mut pool) = memory(4096);
    let mut end = end(&world, 0, &Settings { loopback: true, ..quiet() }, arena);
    end.receive(0, &mut pool);
    // ICMPv6: the checksum lies at 2.
    let mut wanted = ipv6(A6, B6, &transport(58, 60));
    let length = wanted.len() - 54;
    wanted[56..58].copy_from_slice(&sum(&pseudo(true, 58, length)).to_be_bytes());
    let check = !sum(&wanted[54..]);
    let sent = partial(&wanted, 54, 2, &pseudo(true, 58, length), 2048, &mut pool);
    wanted[56..58].copy_from_slice(&check.to_be_bytes());
    // A place outside the packet is an error of whoever asks.
    let mut outside = packet(&frame(0, 60), 2048, &mut pool);
    outside.offload.set_checksum(Checksum::Partial { start: 50, offset: 16 });
    end.send([sent, outside], &mut pool);
    assert_eq!(end.received(&mut pool), [wanted]);
    assert_eq!(end.tx[0].counters().errors, 1);
    end.close(&mut pool).unwrap();
    no_violations(&world, 1);
}

#[test]
fn tags_are_taken_out_and_put_in() {
    let world = world(2);
    let (arena, mut pool) = memory(8192);
    let mut near = end(&world, 0, &quiet(), arena);
    let mut far = end(&world, 1, &Settings { strip_vlan: true, ..quiet() }, arena);
    far.receive(0, &mut pool);
    near.receive(0, &mut pool);
    for tag in [0x0001, 0xefff, 0x2064] {
        let sent = packet(&tagged(frame(1, 100), tag), 2048, &mut pool);
        near.send([sent], &mut pool);
        let [received] = far.receive(0, &mut pool).try_into().unwrap();
        assert_eq!(received.offload.vlan(), Some(tag));
        // Sent back as it came: the NIC puts the tag in again.
        far.send([received], &mut pool);
        assert_eq!(near.received(&mut pool), [tagged(frame(1, 100), tag)]);
    }
    let sent = packet(&frame(2, 100), 2048, &mut pool);
    near.send([sent], &mut pool);
    let [received] = far.receive(0, &mut pool).try_into().unwrap();
    assert_eq!(received.offload.vlan(), None);
    pool.give_packet(received);
    near.close(&mut pool).unwrap();
    far.close(&mut pool).unwrap();
    no_violations(&world, 2);
}

#[test]
fn a_super_segment_is_cut() {
    let world = world(2);
    let (arena, mut pool) = memory(8192);
    let mut near = end(&world, 0, &quiet(), arena);
    let mut far = end(&world, 1, &quiet(), arena);
    far.receive(0, &mut pool);
    for (v6, tag, partial_sum) in
        [(false, None, true), (true, None, true), (false, Some(9), false), (true, Some(9), true)]
    {
        let payload = 30_000;
        let mut whole =
            if v6 { ipv6(A6, B6, &transport(6, payload)) } else { ipv4(A4, B4, &transport(6, payload)) };
        let l4 = if v6 { 54 } else { 34 };
        whole[l4 + 13] |= CWR;
        let seed = pseudo(v6, 6, whole.len() - l4);
        let mut sent = partial(&whole, l4, 16, &seed, 1990, &mut pool);
        let kind = if v6 { SegmentationKind::Tcp6 } else { SegmentationKind::Tcp4 };
        let size = NonZeroU16::new(1448).unwrap();
        sent.offload.set_segmentation(Some(Segmentation { kind, size }));
        sent.offload.set_vlan(tag);
        if !partial_sum {
            sent.offload.set_checksum(Checksum::Unknown);
        }
        near.send([sent], &mut pool);
        let pieces = far.receive(0, &mut pool);
        assert_eq!(pieces.len(), payload.div_ceil(1448));
        let count = pieces.len();
        let mut gathered = Vec::new();
        for (i, piece) in pieces.into_iter().enumerate() {
            assert_eq!(piece.offload.checksum(), Checksum::Valid, "{v6} {i}");
            let mut bytes = bytes(piece, &mut pool);
            if let Some(tag) = tag {
                assert_eq!(bytes.drain(12..16).collect::<Vec<_>>(), [0x81, 0, 0, tag as u8]);
            }
            let tcp = &bytes[l4..];
            assert_eq!(u32::from_be_bytes(tcp[4..8].try_into().unwrap()), 0x1000 + 1448 * i as u32);
            // CWR on the first alone, and PSH on the last.
            assert_eq!(tcp[13], 0x10 | if i == 0 { CWR } else { 0 } | if i + 1 == count { 0x08 } else { 0 });
            if !v6 {
                assert_eq!(sum(&bytes[14..34]), 0xffff, "the IPv4 header's checksum");
                assert_eq!(u16::from_be_bytes([bytes[18], bytes[19]]), 0x1234 + i as u16);
            }
            gathered.extend_from_slice(&tcp[20..]);
        }
        assert_eq!(gathered, transport(6, payload).payload);
    }
    assert_eq!(near.observed().tso_packets, 4);
    // UDP is not cut by this NIC, nor is what has no room for its headers.
    let mut udp = packet(&ipv4(A4, B4, &transport(17, 3000)), 2048, &mut pool);
    udp.offload.set_segmentation(Some(Segmentation { kind: SegmentationKind::Udp, size: NonZeroU16::MIN }));
    let mut long = packet(&ipv4(A4, B4, &transport(6, 30_000)), 1990, &mut pool);
    let size = NonZeroU16::new(9700).unwrap();
    long.offload.set_segmentation(Some(Segmentation { kind: SegmentationKind::Tcp4, size }));
    let mut short = packet(&frame(1, 60), 2048, &mut pool);
    short.offload.set_segmentation(Some(Segmentation { kind: SegmentationKind::Tcp6, size }));
    near.send([udp, long, short], &mut pool);
    assert_eq!(near.tx[0].counters().errors, 3);
    assert!(far.received(&mut pool).is_empty());
    near.close(&mut pool).unwrap();
    far.close(&mut pool).unwrap();
    assert_eq!(pool.free(), 8192);
    no_violations(&world, 2);
}
