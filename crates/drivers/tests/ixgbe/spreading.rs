//! Which queue gets a packet: RSS, EtherType and five-tuple filters.

use std::net::Ipv4Addr;

use bywash_drivers::ixgbe::{FiveTuple, NicError, Protocol, Rss, Settings};

use crate::bed::{End, Transport, end, frame, ipv4, memory, no_violations, packet, quiet, world};

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

#[test]
fn rules_send_packets_to_their_queue() {
    let world = world(2);
    let (arena, mut pool) = memory(16384);
    let mut near = end(&world, 0, &quiet(), arena);
    // More queues than RSS reaches: the twentieth gets what a rule sends it, and nothing else.
    let mut far = end(&world, 1, &Settings { queues: 20, ring: 64, ..quiet() }, arena);
    drain(&mut far, &mut pool);
    let dns = FiveTuple {
        destination: Some(Ipv4Addr::new(10, 2, 7, 0)),
        destination_port: Some(53),
        protocol: Some(Protocol::Udp),
        ..FiveTuple::default()
    };
    far.port.steer_five_tuple(3, &dns, 19).unwrap();
    far.port.steer_ether_type(1, 0x88b5, 17).unwrap();
    let packets = [udp(7), frame(0, 60), udp(8)].map(|bytes| packet(&bytes, 2048, &mut pool));
    near.send(packets, &mut pool);
    let counts: Vec<usize> = drain(&mut far, &mut pool).iter().map(Vec::len).collect();
    assert_eq!((counts[19], counts[17], counts[..16].iter().sum::<usize>()), (1, 1, 1));
    let error = far.port.steer_five_tuple(3, &dns, 20).unwrap_err();
    assert_eq!(error.to_string(), "queue 20: the port was opened with 20");
    assert!(matches!(far.port.steer_ether_type(8, 0x800, 0), Err(NicError::Setting(_))));
    assert!(matches!(far.port.steer_five_tuple(128, &dns, 0), Err(NicError::Setting(_))));
    near.close(&mut pool).unwrap();
    far.close(&mut pool).unwrap();
    no_violations(&world, 2);
}
