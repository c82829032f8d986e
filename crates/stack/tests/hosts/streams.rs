//! Under loss, reordering, duplication and corruption a stream arrives intact, both ways at once, and nothing leaks.

use std::time::Duration;

use crate::wire::network::{Faults, Network};
use crate::wire::seeds::Told;
use crate::wire::{Node, address};
use bywash_stack::{CongestionControl, ConnectionId, Event, Limits};
use proptest::prelude::*;

/// One end of a connection that sends a stream and takes one.
#[derive(Default)]
struct End {
    id: Option<ConnectionId>,
    sent: usize,
    got: Vec<u8>,
    finished: bool,
    peer_finished: bool,
    failed: bool,
}

pub(crate) fn payload(length: usize, seed: u32) -> Vec<u8> {
    let mut x = seed.wrapping_mul(2_654_435_761) | 1;
    (0..length)
        .map(|_| {
            x ^= x << 13;
            x ^= x >> 17;
            x ^= x << 5;
            x.to_le_bytes()[1]
        })
        .collect()
}

impl End {
    fn work(&mut self, node: &mut Node, now: bywash_stack::Timestamp, stream: &[u8]) {
        for event in node.host.stack.events().collect::<Vec<_>>() {
            match event {
                Event::Accepted { connection, .. } | Event::Connected(connection) => {
                    self.id = Some(connection)
                }
                Event::PeerClosed(_) => self.peer_finished = true,
                Event::Closed(_, reason) => self.failed |= reason != bywash_stack::CloseReason::Done,
                _ => {}
            }
        }
        let Some(id) = self.id.filter(|_| !self.failed) else { return };
        let mut buffer = [0; 40_000];
        while let Ok(n @ 1..) = node.host.stack.receive_copy(now, id, &mut buffer, &mut node.pool) {
            self.got.extend(&buffer[..n]);
        }
        if self.sent < stream.len() {
            self.sent += node.host.stack.send(now, id, &stream[self.sent..], &mut node.pool).unwrap_or(0);
        }
        if self.sent == stream.len() && !self.finished {
            self.finished = node.host.stack.shutdown(now, id, &mut node.pool).is_ok();
        }
    }
}

/// Runs one connection to its end and returns how long that took.
fn run(faults: Faults, mtu: u16, lengths: [usize; 2], limits: Limits, seed: u64) -> Duration {
    let _told = Told(format!("seed {seed}, {faults:?}, MTU {mtu}, {lengths:?} bytes"));
    let a = Node::new(1).with_interface(0, 1, None, mtu, "10.0.0.1/24");
    let b = Node::new(2).with_interface(0, 2, None, mtu, "10.0.0.2/24");
    let mut network = Network::new(a, b, faults, seed);
    network.a.host.stack.set_limits(limits);
    network.b.host.stack.set_limits(limits);
    network.b.host.stack.listen(None, 80, 16).unwrap();
    let start = network.now;
    let streams = [payload(lengths[0], 1), payload(lengths[1], 2)];
    let (mut client, mut server) = (End::default(), End::default());
    let remote = (address("10.0.0.2"), 80);
    network.a.host.stack.connect(network.now, (None, 0), remote, &mut network.a.pool).unwrap();
    let over = network.run(Duration::from_secs(3600), |net| {
        client.work(&mut net.a, net.now, &streams[0]);
        server.work(&mut net.b, net.now, &streams[1]);
        let got_all = client.got.len() == streams[1].len() && server.got.len() == streams[0].len();
        client.failed || server.failed || (got_all && client.peer_finished && server.peer_finished)
    });
    let took = network.now.since(start);
    assert!(!client.failed && !server.failed, "the connection broke: {faults:?} seed {seed}");
    assert!(over, "not over after {took:?}: {faults:?} seed {seed}: {} of {}", server.got.len(), lengths[0]);
    assert!(
        server.got == streams[0] && client.got == streams[1],
        "a stream is not intact: {faults:?} seed {seed}"
    );
    for (node, end) in [(&mut network.a, &client), (&mut network.b, &server)] {
        if let Some(id) = end.id {
            node.host.stack.close(network.now, id, &mut node.pool).unwrap();
        }
    }
    network.run(Duration::from_secs(4000), |_| false);
    for node in [&network.a, &network.b] {
        assert_eq!(node.host.stack.connections(), (0, 0, 0), "{faults:?} seed {seed}");
        node.assert_nothing_leaked();
    }
    took
}

#[test]
fn a_clean_path_is_filled() {
    let limits = Limits::default();
    let took = run(Faults::default(), 1500, [3_000_000, 0], limits, 1);
    assert!(took < Duration::from_millis(600), "3 MB with 10 ms round trips took {took:?}");
}

#[test]
fn each_fault_alone() {
    for (name, faults) in [
        ("loss", Faults { loss: 30, ..Faults::default() }),
        ("reordering", Faults { reorder: 300, ..Faults::default() }),
        ("duplication", Faults { duplicate: 300, ..Faults::default() }),
        ("corruption", Faults { corrupt: 30, ..Faults::default() }),
        ("a narrow queue", Faults { bottleneck: Some((2_000_000, 20_000)), ..Faults::default() }),
    ] {
        let took = run(faults, 1500, [500_000, 100_000], Limits::default(), 7);
        assert!(took < Duration::from_secs(20), "{name}: {took:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, max_shrink_iters: 20, ..ProptestConfig::default() })]
    #[test]
    fn any_faults_at_once(
        seed in any::<u64>(),
        loss in 0u32..100,
        reorder in 0u32..300,
        duplicate in 0u32..100,
        corrupt in 0u32..50,
        delay in 0u64..50_000,
        mtu in 576u16..9000,
        newreno in any::<bool>(),
        small in any::<bool>(),
        forth in 0usize..200_000,
        back in 0usize..60_000,
    ) {
        let mut limits = Limits::default();
        if newreno {
            limits.congestion = CongestionControl::NewReno;
        }
        if small {
            (limits.receive_initial, limits.receive_max) = (3000, 20_000);
        }
        let delay = Duration::from_micros(delay);
        let faults = Faults { delay, loss, reorder, duplicate, corrupt, bottleneck: None };
        run(faults, mtu, [forth, back], limits, seed);
    }
}

/// Many more seeds than fit an ordinary run, each fault alone, two or three together, and all at once, over all MTUs. `BYWASH_SEEDS` says how many, or
/// which: `FROM..TO`.
#[test]
#[ignore = "takes many minutes; see CONTRIBUTING.md"]
fn ten_thousand_seeds_of_each_fault() {
    for seed in crate::wire::seeds::seeds(10_000) {
        let drawn = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 16;
        // Four bits say which faults there are together.
        let some = |fault: u64, thousandths: u32| if drawn >> fault & 1 == 1 { thousandths } else { 0 };
        let together = (some(0, 25), some(1, 200), some(2, 100), some(3, 20));
        for (loss, reorder, duplicate, corrupt) in
            [(30, 0, 0, 0), (0, 300, 0, 0), (0, 0, 200, 0), (0, 0, 0, 30), (20, 100, 50, 10), together]
        {
            let mtu = 576 + u16::try_from(drawn >> 16 & 0xffff).unwrap() % 8425;
            let faults = Faults { loss, reorder, duplicate, corrupt, ..Faults::default() };
            run(faults, mtu, [60_000, 20_000], Limits::default(), seed);
        }
    }
}

#[test]
fn buffers_grow_with_what_a_long_fat_path_holds() {
    // 100 ms there and back at 100 MB/s: what a window of 128 KiB lets through takes 16 times as long.
    let faults = Faults {
        delay: Duration::from_millis(50),
        bottleneck: Some((100_000_000, 8 << 20)),
        ..Faults::default()
    };
    let took = run(faults, 9000, [20 << 20, 0], Limits::default(), 1);
    assert!(took < Duration::from_secs(3), "20 MiB took {took:?}");
}
