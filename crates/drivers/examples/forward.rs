//! The smallest complete forwarder: what one port receives the other one sends, both ways, for ten seconds.
//!
//! `cargo run --release -p bywash-drivers --example forward -- vfio-user:a.sock vfio-user:b.sock`, with NICs in software there
//! (docs/driver-walk-through.md), or other ports.
#![expect(clippy::print_stdout, reason = "an example shows what it does")]

use std::time::{Duration, Instant};

use bywash_drivers::{OpenOptions, open};
use bywash_frame::{Arena, Batch, Stride};
use bywash_sys::memory::{HugePages, allocate};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    // Packet memory, of which all NICs are told, and this thread's free frames in it.
    let arena = Arena::new(allocate(Stride::Packed.memory_for(16384), HugePages::Auto, None)?.memory)?;
    let mut pool = arena.pool(8192)?;

    let (mut ports, mut entrances, mut exits) = (Vec::new(), Vec::new(), Vec::new());
    for name in std::env::args().skip(1) {
        let mut port = open(&name.parse()?, &OpenOptions::default(), arena)?.port;
        let queue = port.queues().remove(0);
        entrances.push(queue.rx.ok_or("this port does not receive")?);
        exits.push(queue.tx.ok_or("this port does not send")?);
        ports.push(port);
    }
    if ports.len() != 2 {
        return Err("name two ports: vfio-user:a.sock vfio-user:b.sock".into());
    }
    // Each packet goes to the other port.
    exits.reverse();

    let (started, mut batch) = (Instant::now(), Batch::new());
    while started.elapsed() < Duration::from_secs(10) {
        for (rx, tx) in entrances.iter_mut().zip(&mut exits) {
            rx.rx(&mut pool, &mut batch);
            tx.tx(&mut pool, &mut batch);
            tx.flush(&mut pool);
            // What the full ring did not take is dropped.
            pool.give_batch(&mut batch);
        }
    }

    for (rx, tx) in entrances.iter().zip(&exits) {
        println!("{} packets received, {} sent", rx.counters().packets, tx.counters().packets);
    }
    entrances.into_iter().for_each(|rx| rx.close(&mut pool));
    exits.into_iter().for_each(|tx| tx.close(&mut pool));
    for port in ports {
        port.close().map_err(|sentences| sentences.join("; "))?;
    }
    Ok(())
}
