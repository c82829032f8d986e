//! What the NIC counts, at both ends of a cable, of traffic that is known.

use std::collections::BTreeMap;

use bywash_drivers::ixgbe::Settings;
use bywash_drivers::port::{FdirFilters, Port};
use bywash_models::ixgbe::Faults;
use bywash_models::world::Shared;

use crate::bed::{End, Transport, end, frame, ipv4, memory, no_violations, packet, quiet, world};

/// How many frames of each length, check sequence included: at the edges of the classes by which they are counted.
const TRAFFIC: [(usize, usize); 11] = [
    (64, 3),
    (65, 1),
    (127, 4),
    (128, 2),
    (255, 5),
    (256, 3),
    (511, 6),
    (512, 4),
    (1023, 7),
    (1024, 5),
    (9728, 8),
];

/// The classes, by name, with most bytes.
const CLASSES: [(&str, usize); 6] = [
    ("64", 64),
    ("65_to_127", 127),
    ("128_to_255", 255),
    ("256_to_511", 511),
    ("512_to_1023", 1023),
    ("1024_and_more", usize::MAX),
];

/// What a NIC counts that is not 0.
fn counted(end: &End) -> BTreeMap<&'static str, u64> {
    let counters = end.port.counters().into_iter();
    counters.map(|counter| (counter.name, counter.value)).filter(|(_, value)| *value != 0).collect()
}

fn assert_counted(end: &End, expected: &[(&'static str, u64)]) {
    assert_eq!(counted(end), expected.iter().copied().collect());
}

#[test]
fn both_ends_count_by_size_and_by_kind_and_agree() {
    let world = world(2);
    let (arena, mut pool) = memory(8192);
    let mut near = end(&world, 0, &quiet(), arena);
    let mut far = end(&world, 1, &quiet(), arena);
    far.receive(0, &mut pool);
    for (on_the_wire, count) in TRAFFIC {
        let packets: Vec<_> =
            (0..count).map(|_| packet(&frame(0, on_the_wire - 4), 2048, &mut pool)).collect();
        near.send(packets, &mut pool);
        assert_eq!(far.received(&mut pool).len(), count);
    }
    for (first, count) in [(0xff, 9), (0x33, 11)] {
        for _ in 0..count {
            let mut bytes = frame(0, 60);
            bytes[..6].fill(first);
            let sent = packet(&bytes, 2048, &mut pool);
            near.send([sent], &mut pool);
        }
        assert_eq!(far.received(&mut pool).len(), count);
    }
    let all = TRAFFIC.iter().copied().chain([(64, 9 + 11)]);
    let packets = all.clone().map(|(_, count)| count as u64).sum();
    let bytes = all.clone().map(|(length, count)| (length * count) as u64).sum();
    let class = |number: usize| {
        let above = number.checked_sub(1).map_or(0, |below| CLASSES[below].1);
        let mine = all.clone().filter(|(length, _)| above < *length && *length <= CLASSES[number].1);
        mine.map(|(_, count)| count as u64).sum::<u64>()
    };
    let classes: Vec<u64> = (0..CLASSES.len()).map(class).collect();
    assert_eq!(classes, [23, 5, 7, 9, 11, 13]);
    for (end, direction) in [(&near, "tx"), (&far, "rx")] {
        let mut expected = BTreeMap::from([
            (format!("{direction}_good_packets"), packets),
            (format!("{direction}_good_bytes"), bytes),
            (format!("{direction}_all_packets"), packets),
            (format!("{direction}_broadcast"), 9),
            (format!("{direction}_multicast"), 11),
        ]);
        if direction == "rx" {
            expected.insert("rx_all_bytes".into(), bytes);
        }
        let names = CLASSES.iter().map(|(name, _)| format!("{direction}_{name}"));
        expected.extend(names.zip(classes.iter().copied()));
        let counted: BTreeMap<_, _> =
            counted(end).into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
        assert_eq!(counted, expected);
    }
    near.close(&mut pool).unwrap();
    far.close(&mut pool).unwrap();
    no_violations(&world, 2);
}

/// A frame of so many bytes, check sequence included, comes from the wire.
fn arrive(world: &Shared, on_the_wire: usize, check_good: bool) {
    world.with(0, |device| device.nic.receive(frame(0, on_the_wire - 4), check_good));
}

#[test]
fn each_kind_of_bad_frame_has_its_counter() {
    for (on_the_wire, check_good, name) in [
        (100, false, "rx_crc_errors"),
        (63, true, "rx_undersize"),
        (63, false, "rx_fragments"),
        (1523, true, "rx_oversize"),
        (1523, false, "rx_jabber"),
    ] {
        let world = world(1);
        let (arena, mut pool) = memory(4096);
        let mut end = end(&world, 0, &Settings { max_len: 1518, ..quiet() }, arena);
        end.receive(0, &mut pool);
        (0..3).for_each(|_| arrive(&world, on_the_wire, check_good));
        assert!(end.received(&mut pool).is_empty());
        let bytes = 3 * on_the_wire as u64;
        assert_counted(&end, &[("rx_all_packets", 3), ("rx_all_bytes", bytes), (name, 3)]);
        // One byte less, or more, and it is a good one.
        arrive(&world, on_the_wire.clamp(64, 1522), true);
        assert_eq!(end.received(&mut pool).len(), 1);
        assert_eq!(end.counter(name), 3);
        end.close(&mut pool).unwrap();
        no_violations(&world, 1);
    }
}

#[test]
fn wrong_checksums_are_counted_by_packet() {
    let world = world(1);
    let (arena, mut pool) = memory(4096);
    let mut end = end(&world, 0, &quiet(), arena);
    end.receive(0, &mut pool);
    let right =
        ipv4([10, 0, 0, 1], [10, 0, 0, 2], &Transport { protocol: 6, ports: (1, 2), payload: vec![7; 40] });
    // Nothing, the IP header's, TCP's, and both.
    for (ip, tcp) in [(0, 0), (1, 0), (0, 1), (1, 1)] {
        let mut bytes = right.clone();
        bytes[24] ^= ip;
        bytes[50] ^= tcp;
        world.with(0, |device| device.nic.receive(bytes, true));
    }
    assert_eq!(end.received(&mut pool).len(), 4);
    assert_eq!((end.counter("rx_checksum_errors"), end.counter("rx_good_packets")), (3, 4));
    end.close(&mut pool).unwrap();
    no_violations(&world, 1);
}

#[test]
fn what_there_is_no_room_for_is_counted_by_what_was_missing() {
    // One of several queues drops when it has no descriptor, so as not to hold up the others. A queue alone leaves packets in the
    // NIC's memory, as long as that lasts.
    const LENGTH: usize = 1400;
    let in_memory = (512 << 10) / (LENGTH - 4);
    for (queues, name, kept) in [(2, "rx_no_descriptor", 63), (1, "rx_no_buffer_space", 63 + in_memory)] {
        let world = world(1);
        let (arena, mut pool) = memory(4096);
        let mut end = end(&world, 0, &Settings { queues, ring: 64, ..quiet() }, arena);
        end.receive(0, &mut pool);
        (0..600).for_each(|_| arrive(&world, LENGTH, true));
        assert_eq!(end.received(&mut pool).len(), kept);
        assert_counted(
            &end,
            &[
                ("rx_all_packets", 600),
                ("rx_all_bytes", 600 * LENGTH as u64),
                // All that queues were chosen for.
                ("rx_good_packets", if queues == 1 { kept as u64 } else { 600 }),
                ("rx_good_bytes", 600 * LENGTH as u64),
                ("rx_1024_and_more", 600),
                (name, (600 - kept) as u64),
            ],
        );
        end.close(&mut pool).unwrap();
        no_violations(&world, 1);
    }
}

#[test]
fn a_device_that_goes_away_while_it_is_read_has_counted_no_ones() {
    let world = world(1);
    let (arena, mut pool) = memory(4096);
    let end = end(&world, 0, &quiet(), arena);
    for removed_after in 1..=300 {
        end.set_faults(Faults { removed_after, ..Faults::default() });
        let counted = counted(&end);
        assert!(counted.values().all(|value| *value <= 1), "{removed_after} reads: {counted:?}");
        end.set_faults(Faults::default());
    }
    assert_counted(&end, &[("device_gone", 1)]);
    end.close(&mut pool).unwrap();
}

#[test]
fn the_flow_director_counts_filters_matches_and_misses() {
    let world = world(1);
    let (arena, mut pool) = memory(4096);
    let settings = Settings { fdir: Some(FdirFilters::K2), ..quiet() };
    let mut end = end(&world, 0, &settings, arena);
    end.receive(0, &mut pool);
    let [first, _] = ["vlan 7", "vlan 8"].map(|vlan| {
        let rule = format!("{vlan} and ip and src host 10.0.0.1 and udp drop");
        end.port.steer(&rule.parse().unwrap()).unwrap()
    });
    end.port.unsteer(first).unwrap();
    assert_counted(&end, &[("flow_director_added", 2), ("flow_director_removed", 1)]);
    let udp =
        ipv4([10, 0, 0, 1], [10, 0, 0, 2], &Transport { protocol: 17, ports: (1, 2), payload: vec![7; 40] });
    for vlan in [8, 8, 7] {
        let tagged = [&udp[..12], &[0x81, 0, 0, vlan], &udp[12..]].concat();
        world.with(0, |device| device.nic.receive(tagged, true));
    }
    assert_eq!(end.received(&mut pool).len(), 1);
    assert_eq!((end.counter("flow_director_matches"), end.counter("flow_director_misses")), (2, 1));
    end.close(&mut pool).unwrap();
    no_violations(&world, 1);
}
