//! Packets of every shape between two functions.

use bywash_drivers::ixgbevf::{Multicast, Settings};
use bywash_drivers::port::frame::{Checksum, Segmentation, SegmentationKind};
use bywash_drivers::port::{Certain, Port};

use super::{MACS, end, functions, quiet, set_policy};
use crate::bed::{Transport, bytes, frame, ipv4, memory, no_violations, packet};

#[test]
fn packets_of_every_length_arrive_in_order() {
    let world = functions(2);
    let (arena, mut pool) = memory(8192);
    let settings = Settings { queues: Some(1), max_len: Some(9724), ..quiet() };
    let (mut near, mut far) = (end(&world, 0, &settings, arena), end(&world, 1, &settings, arena));
    assert_eq!((near.port.api(), near.port.mac(), far.port.mac()), ("1.5", Some(MACS[0]), Some(MACS[1])));
    assert_eq!(near.port.capabilities().max_len, 9732);
    far.receive(0, &mut pool);
    let frames: Vec<_> = [60, 64, 1500, 1514, 2048, 2049, 9000, 9724].map(|len| frame(len as u8, len)).into();
    for _ in 0..50 {
        let packets: Vec<_> = frames.iter().map(|bytes| packet(bytes, 2048, &mut pool)).collect();
        near.send(packets, &mut pool);
        assert!(far.received(&mut pool) == frames);
    }
    let sum: usize = frames.iter().map(|frame| frame.len() + 4).sum();
    assert_eq!((near.counter("tx_good_packets"), far.counter("rx_good_packets")), (400, 400));
    assert_eq!(far.counter("rx_good_bytes"), 50 * sum as u64);
    assert_eq!((far.rx[0].counters().packets, near.tx[0].counters().packets), (400, 400));
    assert_eq!(near.observed().unchecked_packets, 0, "each names a context");
    near.close(&mut pool).unwrap();
    far.close(&mut pool).unwrap();
    assert_eq!((pool.free(), arena.orphaned()), (8192, 0));
    no_violations(&world, 2);
}

#[test]
fn who_does_not_ask_for_long_packets_gets_none() {
    let world = functions(2);
    let (arena, mut pool) = memory(8192);
    let settings = Settings { queues: Some(1), ..quiet() };
    let mut near = end(&world, 0, &Settings { max_len: Some(9000), ..settings.clone() }, arena);
    let mut far = end(&world, 1, &settings, arena);
    let lengths = [&near, &far].map(|end| end.port.capabilities().max_len);
    assert_eq!(lengths, [9008, 1522]);
    far.receive(0, &mut pool);
    near.send([1514, 4000, 60].map(|len| packet(&frame(1, len), 2048, &mut pool)), &mut pool);
    assert_eq!(far.received(&mut pool), [frame(1, 1514), frame(1, 60)]);
    near.close(&mut pool).unwrap();
    far.close(&mut pool).unwrap();
    no_violations(&world, 2);
}

#[test]
fn a_tag_comes_on_top_of_the_length_that_is_agreed_on() {
    let world = functions(2);
    let (arena, mut pool) = memory(8192);
    let settings = Settings { queues: Some(1), vlans: vec![9], ..quiet() };
    let (mut near, mut far) = (end(&world, 0, &settings, arena), end(&world, 1, &settings, arena));
    far.receive(0, &mut pool);
    let untagged = frame(1, 1514);
    let tagged = [&untagged[..12], &[0x81, 0, 0, 9], &untagged[12..]].concat();
    near.send([packet(&tagged, 2048, &mut pool)], &mut pool);
    assert_eq!(far.received(&mut pool), [tagged]);
    // Longer ones are no packets of this MTU's.
    near.send([packet(&frame(1, 1523), 2048, &mut pool)], &mut pool);
    assert_eq!((near.tx[0].counters().packets, near.tx[0].counters().errors), (1, 1));
    near.close(&mut pool).unwrap();
    far.close(&mut pool).unwrap();
    no_violations(&world, 2);
}

#[test]
fn checksums_and_segments_are_made_by_the_function() {
    let world = functions(2);
    let (arena, mut pool) = memory(8192);
    let settings = Settings { queues: Some(1), ..quiet() };
    let (mut near, mut far) = (end(&world, 0, &settings, arena), end(&world, 1, &settings, arena));
    far.receive(0, &mut pool);
    let transport = Transport { protocol: 6, ports: (1, 2), payload: vec![7; 4000] };
    let whole = ipv4([10, 0, 0, 1], [10, 0, 0, 2], &transport);
    let mut cut = packet(&whole, 2000, &mut pool);
    cut.offload.set_checksum(Checksum::Partial { start: 34, offset: 16 });
    let size = std::num::NonZeroU16::new(1000).unwrap();
    cut.offload.set_segmentation(Some(Segmentation { kind: SegmentationKind::Tcp4, size }));
    near.send([cut], &mut pool);
    let pieces = far.receive(0, &mut pool);
    assert_eq!(pieces.len(), 4);
    for piece in pieces {
        assert_eq!(piece.offload.checksum(), Checksum::Valid);
        assert_eq!(bytes(piece, &mut pool).len(), 54 + 1000);
    }
    near.close(&mut pool).unwrap();
    far.close(&mut pool).unwrap();
    no_violations(&world, 2);
}

#[test]
fn as_many_queues_as_are_granted_share_a_thousand_flows() {
    for granted in [1, 2, 4] {
        let world = functions(2);
        set_policy(&world, 1, |policy| policy.queues = granted);
        world.with(1, |device| device.nic.spread_over(granted));
        let (arena, mut pool) = memory(16384);
        let mut near = end(&world, 0, &Settings { queues: Some(1), ..quiet() }, arena);
        let mut far = end(&world, 1, &Settings { ring: 2048, ..quiet() }, arena);
        assert_eq!(far.rx.len(), granted as usize);
        let rss = far.port.rss().unwrap();
        let table = rss.table.unwrap();
        let spread = far.port.spread().unwrap();
        assert_eq!((spread.key(), spread.table()), (&rss.key, &table.map(u16::from)[..]));
        assert_eq!(spread.certain(), Certain::Tcp, "of UDP it is told nothing");
        (0..far.rx.len()).for_each(|queue| drop(far.receive(queue, &mut pool)));
        let packets: Vec<_> = (0..1000_u16)
            .map(|flow| {
                let [a, b] = flow.to_be_bytes();
                let transport = Transport { protocol: 6, ports: (1024 + flow * 7, 53), payload: vec![0; 30] };
                packet(&ipv4([10, 1, a, b], [10, 2, b, a], &transport), 2048, &mut pool)
            })
            .collect();
        near.send(packets, &mut pool);
        let mut total = 0;
        for queue in 0..far.rx.len() {
            let packets = far.receive(queue, &mut pool);
            assert!(packets.len() * granted as usize > 600, "queue {queue} has {}", packets.len());
            total += packets.len();
            for packet in packets {
                let hash = packet.offload.hash().unwrap();
                assert_eq!(usize::from(table[hash as usize & 127]), queue, "as the table says");
                pool.give_packet(packet);
            }
        }
        assert_eq!(total, 1000);
        near.close(&mut pool).unwrap();
        far.close(&mut pool).unwrap();
        no_violations(&world, 2);
    }
}

#[test]
fn addresses_groups_and_vlans_are_asked_for_by_messages() {
    for bits in 0..4 {
        let world = functions(2);
        set_policy(&world, 1, |policy| policy.multicast_bits = bits);
        let (arena, mut pool) = memory(8192);
        let mut near = end(&world, 0, &Settings { queues: Some(1), ..quiet() }, arena);
        let (own, new, more) = (MACS[1], [2, 0, 0, 0, 0, 0x55], [2, 0, 0, 0, 0, 0x66]);
        let group = [1, 0, 0x5e, 0x11, 0x22, 0x33];
        let settings = Settings {
            queues: Some(1),
            promiscuous: false,
            multicast: Multicast::Groups(vec![group]),
            vlans: vec![7],
            ..quiet()
        };
        let mut far = end(&world, 1, &settings, arena);
        assert_eq!(far.port.warnings(), [""; 0]);
        far.receive(0, &mut pool);
        let tagged = |vlan: u8| [&own[..], &MACS[0], &[0x81, 0, 0, vlan, 0x88, 0xb5], &[0; 46]].concat();
        let mut arrive = |far: &mut crate::bed::End<_>| {
            let plain = [own, new, more, group, [1, 0, 0x5e, 9, 9, 9], [0xff; 6]].map(|address| {
                let mut bytes = frame(1, 60);
                bytes[..6].copy_from_slice(&address);
                bytes
            });
            let all = plain.into_iter().chain([tagged(7), tagged(8)]);
            let packets: Vec<_> = all.map(|bytes| packet(&bytes, 2048, &mut pool)).collect();
            near.send(packets, &mut pool);
            let seen = far.received(&mut pool);
            seen.iter().map(|bytes| (bytes[5], bytes[15] * u8::from(bytes[12] == 0x81))).collect::<Vec<_>>()
        };
        assert_eq!(arrive(&mut far), [(2, 0), (0x33, 0), (0xff, 0), (2, 7)]);
        far.port.set_mac(new).unwrap();
        far.port.add_mac(more).unwrap();
        far.port.set_vlan(7, false).unwrap();
        far.port.set_multicast(Multicast::All).unwrap();
        assert_eq!(arrive(&mut far), [(0x55, 0), (0x66, 0), (0x33, 0), (9, 0), (0xff, 0)]);
        assert_eq!(far.port.mac(), Some(new));
        assert!(far.port.set_mac([1; 6]).is_err() && far.port.set_vlan(4095, true).is_err());
        let mut pool = arena.pool(0).unwrap();
        near.close(&mut pool).unwrap();
        far.close(&mut pool).unwrap();
        no_violations(&world, 2);
    }
}

#[test]
fn a_vlan_that_the_host_has_put_a_function_into_is_not_seen() {
    let world = functions(2);
    let (arena, mut pool) = memory(8192);
    let settings = Settings { queues: Some(1), ..quiet() };
    let (mut near, mut far) = (end(&world, 0, &settings, arena), end(&world, 1, &settings, arena));
    far.receive(0, &mut pool);
    let plain = frame(1, 600);
    let tagged = |vlan| [&plain[..12], &[0x81, 0, 0x20, vlan], &plain[12..]].concat();
    // None at first, then one, another one, and none.
    for (round, vlan) in (0..).zip([None, Some(7), Some(9), None]) {
        for (index, end) in [&near, &far].into_iter().enumerate() {
            set_policy(&world, index, |policy| policy.port_vlan = vlan);
            world.with(index, |device| device.nic.reset_physical_function());
            while end.counter("pf_resets") <= round {}
            assert_eq!(end.counter("pf_failures"), 0);
        }
        far.receive(0, &mut pool);
        near.send([packet(&plain, 2048, &mut pool)], &mut pool);
        for vlan in [7, 8] {
            world.with(1, |device| device.nic.receive(tagged(vlan), true));
        }
        let seen = far.receive(0, &mut pool);
        let tags: Vec<_> = seen.iter().map(|packet| packet.offload.vlan()).collect();
        let seen: Vec<_> = seen.into_iter().map(|packet| bytes(packet, &mut pool)).collect();
        let count = 1 + usize::from(vlan == Some(7));
        assert_eq!((seen, tags), (vec![plain.clone(); count], vec![None; count]), "{vlan:?}");
        let error = far.port.set_vlan(8, true).err().map(|error| error.to_string());
        let refused = error.as_ref().is_some_and(|error| error.contains("put the function into one VLAN"));
        assert_eq!(refused, vlan.is_some(), "{error:?}");
        if vlan.is_none() {
            far.port.set_vlan(8, false).unwrap();
        }
    }
    near.close(&mut pool).unwrap();
    far.close(&mut pool).unwrap();
    no_violations(&world, 2);
}

#[test]
fn tags_of_vlans_that_a_function_has_asked_for_are_its_packets_own() {
    let world = functions(1);
    let (arena, mut pool) = memory(4096);
    let settings = Settings { queues: Some(1), vlans: vec![7], strip_vlan: true, ..quiet() };
    let mut end = end(&world, 0, &settings, arena);
    end.receive(0, &mut pool);
    let mut arrive = |end: &mut crate::bed::End<_>| {
        for vlan in [7, 8] {
            let tagged = [&MACS[0][..], &MACS[1], &[0x81, 0, 0x20, vlan, 0x88, 0xb5], &[0; 46]].concat();
            world.with(0, |device| device.nic.receive(tagged, true));
        }
        let seen = end.receive(0, &mut pool);
        let tags = seen.iter().map(|packet| packet.offload.vlan()).collect::<Vec<_>>();
        seen.into_iter().for_each(|packet| pool.give_packet(packet));
        tags
    };
    assert_eq!(arrive(&mut end), [Some(0x2007)]);
    end.port.set_vlan(8, true).unwrap();
    assert_eq!(arrive(&mut end), [Some(0x2007), Some(0x2008)]);
    end.port.set_vlan(7, false).unwrap();
    assert_eq!(arrive(&mut end), [Some(0x2008)]);
    let mut pool = arena.pool(0).unwrap();
    end.close(&mut pool).unwrap();
    no_violations(&world, 1);
}

#[test]
fn counters_that_wrap_lose_nothing() {
    let world = functions(2);
    // Five below the end of 36 bits, and so of 32.
    (0..2).for_each(|index| set_policy(&world, index, |policy| policy.counted = (1 << 36) - 5));
    let (arena, mut pool) = memory(8192);
    let settings = Settings { queues: Some(1), ..quiet() };
    let (mut near, mut far) = (end(&world, 0, &settings, arena), end(&world, 1, &settings, arena));
    far.receive(0, &mut pool);
    let packets: Vec<_> = (0..20).map(|seed| packet(&frame(seed, 96), 2048, &mut pool)).collect();
    near.send(packets, &mut pool);
    assert_eq!(far.received(&mut pool).len(), 20);
    assert_eq!((near.counter("tx_good_packets"), near.counter("tx_good_bytes")), (20, 2000));
    assert_eq!((far.counter("rx_good_packets"), far.counter("rx_good_bytes")), (20, 2000));
    near.close(&mut pool).unwrap();
    far.close(&mut pool).unwrap();
    no_violations(&world, 2);
}

#[test]
fn a_worker_is_woken_by_its_queue() {
    let world = functions(2);
    set_policy(&world, 1, |policy| policy.queues = 4);
    let (arena, mut pool) = memory(16384);
    let mut near = end(&world, 0, &Settings { queues: Some(1), ..quiet() }, arena);
    let mut far = end(&world, 1, &quiet(), arena);
    (0..4).for_each(|queue| drop(far.receive(queue, &mut pool)));
    let sleeps: Vec<bool> = far.rx.iter_mut().map(|rx| rx.arm()).collect();
    assert_eq!(sleeps, [true, true, true, false], "three vectors: the fourth queue is polled");
    assert!(far.rx[3].wake_fd().is_none());
    near.send([packet(&frame(1, 60), 2048, &mut pool)], &mut pool);
    let bell = far.rx[0].wake_fd().unwrap();
    let mut ready = [rustix::event::PollFd::new(&bell, rustix::event::PollFlags::IN)];
    let patience = rustix::time::Timespec { tv_sec: 10, tv_nsec: 0 };
    assert_eq!(rustix::event::poll(&mut ready, Some(&patience)).unwrap(), 1);
    assert_eq!(far.received(&mut pool).len(), 1);
    near.close(&mut pool).unwrap();
    far.close(&mut pool).unwrap();
    no_violations(&world, 2);
}
