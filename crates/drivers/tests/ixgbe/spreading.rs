//! Which queue gets a packet: RSS.

use bywash_drivers::ixgbe::{Rss, Settings};

use crate::bed::{End, Transport, end, ipv4, memory, no_violations, packet, quiet, world};

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
