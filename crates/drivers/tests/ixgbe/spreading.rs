//! Which queue gets a packet: RSS.

use bywash_drivers::ixgbe::{Rss, Settings};
use bywash_drivers::port::Port;

use crate::bed::{End, Transport, end, ipv4, ipv6, memory, no_violations, packet, quiet, world};

fn udp(flow: u16) -> Vec<u8> {
    let [a, b] = flow.to_be_bytes();
    let transport = Transport { protocol: 17, ports: (1024 + flow * 7, 53), payload: vec![0; 30] };
    ipv4([10, 1, a, b], [10, 2, b, a], &transport)
}

/// How many packets each queue has, and their hashes.
fn drain(end: &mut End, pool: &mut bywash_drivers::port::frame::Pool) -> Vec<Vec<u32>> {
    let queues = 0..end.rx.len();
    let hashes = |packets: Vec<bywash_drivers::port::frame::Packet>, pool: &mut _| -> Vec<u32> {
        let all = packets.iter().map(|packet| packet.offload.hash().unwrap_or(0)).collect();
        packets.into_iter().for_each(|packet| bywash_drivers::port::frame::Pool::give_packet(pool, packet));
        all
    };
    queues.map(|queue| hashes(end.receive(queue, pool), pool)).collect()
}

#[test]
fn a_thousand_flows_are_spread_over_four_queues() {
    let world = world(2);
    let (arena, mut pool) = memory(16384);
    let mut near = end(&world, 0, &quiet(), arena);
    let mut far = end(&world, 1, &Settings { queues: 4, ring: 2048, ..quiet() }, arena);
    drain(&mut far, &mut pool);
    let packets: Vec<_> = (0..1000).map(|flow| packet(&udp(flow), 2048, &mut pool)).collect();
    near.send(packets, &mut pool);
    let queues = drain(&mut far, &mut pool);
    assert_eq!(queues.iter().map(Vec::len).sum::<usize>(), 1000);
    let spread = far.port.spread().unwrap();
    let expected = (0..1000_u16).map(|flow| {
        let [a, b] = flow.to_be_bytes();
        let addresses = ([10, 1, a, b].into(), [10, 2, b, a].into());
        spread.queue(addresses, Some((1024 + flow * 7, 53)))
    });
    let mut counts = [0; 4];
    expected.for_each(|queue| counts[queue] += 1);
    assert_eq!(queues.iter().map(Vec::len).collect::<Vec<_>>(), counts, "as the port says");
    for (queue, hashes) in queues.iter().enumerate() {
        assert!(hashes.len() > 150, "queue {queue} has {}", hashes.len());
        assert!(hashes.iter().all(|hash| (hash & 127) as usize % 4 == queue));
    }
    // All to one queue, while it runs.
    far.port.set_rss(&Rss { table: Some([2; 128]), ..Rss::default() }).unwrap();
    let packets: Vec<_> = (0..100).map(|flow| packet(&udp(flow), 2048, &mut pool)).collect();
    near.send(packets, &mut pool);
    let counts: Vec<usize> = drain(&mut far, &mut pool).iter().map(Vec::len).collect();
    assert_eq!(counts, [0, 0, 100, 0]);
    assert_eq!(far.port.spread().unwrap().table(), [2; 128]);
    // With a rule, which may give a flow to any queue, RSS does not say it all.
    let place = far.port.steer(&"ip and udp dst port 53 queue 1".parse().unwrap()).unwrap();
    assert_eq!(far.port.spread(), None);
    far.port.unsteer(place).unwrap();
    assert!(far.port.spread().is_some());
    near.close(&mut pool).unwrap();
    far.close(&mut pool).unwrap();
    no_violations(&world, 2);
}

#[test]
fn the_published_hash_and_the_symmetric_one() {
    let world = world(1);
    let (arena, mut pool) = memory(4096);
    let settings = Settings { loopback: true, ..quiet() };
    let mut end = end(&world, 0, &settings, arena);
    end.receive(0, &mut pool);
    let there = Transport { protocol: 6, ports: (2794, 1766), payload: vec![0; 10] };
    let back = Transport { protocol: 6, ports: (1766, 2794), payload: vec![0; 10] };
    let (a, b) = ([66, 9, 149, 187], [161, 142, 100, 80]);
    let frames = [ipv4(a, b, &there), ipv4(b, a, &back)];
    let mut hashes = |end: &mut End| {
        let packets: Vec<_> = frames.iter().map(|bytes| packet(bytes, 2048, &mut pool)).collect();
        end.send(packets, &mut pool);
        drain(end, &mut pool).remove(0)
    };
    let published = hashes(&mut end);
    assert_eq!(published[0], 0x51cc_c178, "of Microsoft's table");
    assert_ne!(published[0], published[1]);
    end.port.set_rss(&Rss::symmetric()).unwrap();
    let symmetric = hashes(&mut end);
    assert_eq!(symmetric[0], symmetric[1]);
    let mut pool = arena.pool(0).unwrap();
    end.close(&mut pool).unwrap();
    no_violations(&world, 1);
}

/// Both directions of a flow: UDP or TCP over IPv4 or IPv6.
fn both_ways(v6: bool, protocol: u8, flow: u8) -> [Vec<u8>; 2] {
    let [there, back] = [(1024 + u16::from(flow) * 7, 53), (53, 1024 + u16::from(flow) * 7)]
        .map(|ports| Transport { protocol, ports, payload: vec![0; 30] });
    if v6 {
        let (a, b) = ([0xfd, flow].repeat(8), [flow, 0x20, 1].repeat(6));
        let (a, b) = (a.try_into().unwrap(), b[..16].try_into().unwrap());
        [ipv6(a, b, &there), ipv6(b, a, &back)]
    } else {
        let (a, b) = ([10, 1, flow, 77], [192, flow, 2, 9]);
        [ipv4(a, b, &there), ipv4(b, a, &back)]
    }
}

#[test]
fn with_the_symmetric_key_both_directions_of_every_kind_of_flow_come_by_one_queue() {
    const FLOWS: usize = 100;
    let world = world(2);
    let (arena, mut pool) = memory(16384);
    let mut near = end(&world, 0, &quiet(), arena);
    let mut far = end(&world, 1, &Settings { queues: 4, ring: 512, ..quiet() }, arena);
    drain(&mut far, &mut pool);
    // Queue and hash of each packet: one at a time, so that it is known which is whose.
    let mut place = |far: &mut End, bytes: &[u8]| {
        let sent = packet(bytes, 2048, &mut pool);
        near.send([sent], &mut pool);
        let queues = drain(far, &mut pool);
        let mut found =
            (0..).zip(queues).flat_map(|(queue, hashes)| hashes.into_iter().map(move |h| (queue, h)));
        let place: (usize, u32) = found.next().unwrap();
        assert_eq!(found.next(), None);
        assert_ne!(place.1, 0, "it has a hash");
        place
    };
    for (rss, symmetric) in [(Rss::default(), false), (Rss::symmetric(), true)] {
        far.port.set_rss(&rss).unwrap();
        for (v6, protocol) in [(false, 6), (false, 17), (true, 6), (true, 17)] {
            let places = |flow: u8| both_ways(v6, protocol, flow).map(|bytes| place(&mut far, &bytes));
            let places: Vec<_> = (0..FLOWS as u8).map(places).collect();
            let same = places.iter().filter(|[there, back]| there == back).count();
            if symmetric {
                assert_eq!(same, FLOWS, "IPv6 {v6}, protocol {protocol}");
            } else {
                assert!(same < FLOWS / 10, "IPv6 {v6}, protocol {protocol}: {same}");
            }
            let on = |queue| places.iter().filter(|[there, _]| there.0 == queue).count();
            assert!((0..4).all(|queue| on(queue) > FLOWS / 10), "{:?}", [0, 1, 2, 3].map(on));
        }
    }
    near.close(&mut pool).unwrap();
    far.close(&mut pool).unwrap();
    no_violations(&world, 2);
}
