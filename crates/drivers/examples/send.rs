//! The smallest sender: one AF_XDP queue, a packet built once per frame, as many of them as the queue takes for a second.
//!
//! `cargo run --release -p bywash-drivers --example send -- xdp:eth1/0`
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "an example shows what it does")]

use std::time::{Duration, Instant};

use bywash_drivers::{OpenOptions, open};
use bywash_frame::{Arena, Batch, Packet, Stride};
use bywash_sys::memory::{HugePages, allocate};

fn main() {
    if let Err(error) = run() {
        eprintln!("{error}");
        std::process::exit(1);
    }
}

fn run() -> Result<(), Box<dyn std::error::Error>> {
    let name = std::env::args().nth(1).ok_or("name a port: xdp:eth1/0")?.parse()?;
    let memory = allocate(Stride::Packed.memory_for(8192), HugePages::Auto, None)?.memory;
    let arena = Arena::new(memory)?;
    let mut pool = arena.pool(4096)?;

    let options = OpenOptions { tx_only: true, ..OpenOptions::default() };
    let mut port = open(&name, &options, arena)?.port;
    let mut tx = port.queues().remove(0).tx.ok_or("this port does not send")?;

    // To everyone, from nobody, of an EtherType for experiments (IEEE 802), and 46 bytes of nothing.
    let mut bytes = [0; 60];
    bytes[..6].fill(0xff);
    bytes[12..14].copy_from_slice(&[0x88, 0xb5]);

    let (started, mut batch) = (Instant::now(), Batch::new());
    while started.elapsed() < Duration::from_secs(1) {
        for frame in pool.take_many(batch.room()) {
            let mut packet = Packet::new(frame);
            packet.extend_from_slice(&bytes)?;
            batch.push(packet);
        }
        tx.tx(&mut pool, &mut batch);
        tx.flush(&mut pool);
    }
    println!("{} packets sent, {} under way", tx.counters().packets, tx.in_flight());
    pool.give_batch(&mut batch);
    tx.close(&mut pool);
    port.close().map_err(|sentences| sentences.join("; ").into())
}
