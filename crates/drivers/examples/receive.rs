//! The smallest receiver: one RX queue, and of that only the packets an expression names; the kernel keeps the others.
//!
//! `cargo run --release -p bywash-drivers --example receive -- xdp:eth1/0/rx 'udp dst port 53'`
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "an example shows what it does")]

use std::time::{Duration, Instant};

use bywash_drivers::{OpenOptions, open};
use bywash_frame::{Arena, Batch, Stride};
use bywash_sys::memory::{HugePages, allocate};

fn main() {
    if let Err(error) = run() {
        eprintln!("{error}");
        std::process::exit(1);
    }
}

fn run() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let name = arguments.next().ok_or("name a port: xdp:eth1/0/rx")?.parse()?;
    let only = arguments.next().map(|expression| expression.parse()).transpose()?;
    let memory = allocate(Stride::Packed.memory_for(8192), HugePages::Auto, None)?.memory;
    let arena = Arena::new(memory)?;
    let mut pool = arena.pool(4096)?;

    let options = OpenOptions { rx_only: true, only, ..OpenOptions::default() };
    let mut port = open(&name, &options, arena)?.port;
    let mut rx = port.queues().remove(0).rx.ok_or("this port does not receive")?;

    let (started, mut batch) = (Instant::now(), Batch::new());
    while started.elapsed() < Duration::from_secs(1) {
        rx.rx(&mut pool, &mut batch);
        for packet in &batch {
            if let Some([a, b, c, d, e, f]) = packet.head().get(6..12) {
                println!("{} bytes from {a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{f:02x}", packet.len());
            }
        }
        pool.give_batch(&mut batch);
    }
    println!("{} packets received", rx.counters().packets);
    for counter in port.counters() {
        println!("{}: {}", counter.name, counter.value);
    }
    rx.close(&mut pool);
    port.close().map_err(|sentences| sentences.join("; ").into())
}
