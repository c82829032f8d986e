//! The smallest forwarder, as the driver's walk-through starts it: between the NICs of two cables.

use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use bywash_hw::ixgbe::regs::RDT;
use bywash_models::world::Shared;

use crate::bed::{PATIENCE, end, frame, memory, no_violations, packet, quiet, world};
use crate::socket::serve;

/// A program that does not outlive its test.
struct Started(Child);

impl Drop for Started {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

/// Waits until the first NIC's driver has given it memory for packets. A copy is asked: while a NIC is reset, to read its
/// registers is forbidden.
fn wait_until_fed(world: &Shared) {
    let begun = Instant::now();
    while world.with(0, |device| device.nic.clone().read32(RDT.offset()) == 0) {
        assert!(begun.elapsed() < PATIENCE, "the forwarder does not begin");
        sleep(Duration::from_millis(5));
    }
}

#[test]
fn the_smallest_forwarder_carries_packets_from_cable_to_cable_both_ways() {
    let folder = tempfile::tempdir().unwrap();
    let worlds = [world(2), world(2)];
    // `cargo test` puts examples beside the tests.
    let test = std::env::current_exe().unwrap();
    let mut forward = Command::new(test.ancestors().nth(2).unwrap().join("examples/forward"));
    for (world, name) in worlds.iter().zip(["a.sock", "b.sock"]) {
        let path = folder.path().join(name);
        serve(world, &[&path], false);
        forward.arg(format!("vfio-user:{}", path.display()));
    }
    let _forwarder = Started(forward.stdout(Stdio::null()).spawn().unwrap());
    let (arena, mut pool) = memory(8192);
    let mut ends = worlds.each_ref().map(|world| end(world, 1, &quiet(), arena));
    ends.iter_mut().for_each(|end| assert!(end.receive(0, &mut pool).is_empty()));
    worlds.iter().for_each(wait_until_fed);
    for round in 0..20 {
        for (from, to) in [(0, 1), (1, 0)] {
            let sent = frame(round, 60 + 70 * usize::from(round));
            ends[from].send([packet(&sent, 2048, &mut pool)], &mut pool);
            let begun = Instant::now();
            let mut received = Vec::new();
            while received.is_empty() {
                assert!(begun.elapsed() < PATIENCE, "from {from}: round {round}");
                received = ends[to].received(&mut pool);
            }
            assert_eq!(received, [sent]);
        }
    }
    for end in ends {
        end.close(&mut pool).unwrap();
    }
    worlds.iter().for_each(|world| no_violations(world, 2));
}
