//! What forwarding with MAC swap costs between two wires in memory, on one core: receive, swap, send, flush.
//!
//! A whole ring of packets is put in, forwarded, and taken out; only the forwarding is timed. Prints the nanoseconds per
//! packet of each round's median, and what one core that forwards both ways would do per direction.
#![expect(clippy::print_stdout, reason = "its output is the result")]
#![expect(clippy::unwrap_used, reason = "a benchmark that can't run should stop")]

use std::time::{Duration, Instant};

use bywash_apps::forward::MacEdit;
use bywash_drivers::{OpenOptions, open};
use bywash_port::frame::{Arena, Batch, Packet, Pool, Stride};
use bywash_port::{Port, QueuePair, RxQueue, TxQueue};
use bywash_sys::memory::{HugePages, allocate};

/// Packets in rotation: a wire's ring.
const RING: usize = 1024;

/// How long it measures.
const DURATION: Duration = Duration::from_secs(2);

struct End {
    _port: Box<dyn Port>,
    rx: Box<dyn RxQueue>,
    tx: Box<dyn TxQueue>,
}

fn end(name: &str, arena: &'static Arena) -> End {
    let mut port = open(&name.parse().unwrap(), &OpenOptions::default(), arena).unwrap().port;
    let QueuePair { rx, tx } = port.queues().remove(0);
    End { _port: port, rx: rx.unwrap(), tx: tx.unwrap() }
}

/// Moves all packets that wait at `from` to `to`, and returns how many.
#[inline]
fn pass(
    from: &mut dyn RxQueue,
    to: &mut dyn TxQueue,
    edit: MacEdit,
    pool: &mut Pool,
    batch: &mut Batch,
) -> usize {
    let mut moved = 0;
    while from.rx(pool, batch) > 0 {
        edit.apply(batch);
        moved += to.tx(pool, batch);
        to.flush(pool);
    }
    moved
}

fn main() {
    let memory = allocate(Stride::Packed.memory_for(4 * RING), HugePages::Auto, None).unwrap().memory;
    let arena = Arena::new(memory).unwrap();
    let mut pool = arena.pool(2 * RING).unwrap();
    let (mut feeder, mut near) = (end("loop:a", arena), end("loop:a", arena));
    let (mut away, mut drain) = (end("loop:b", arena), end("loop:b", arena));
    let mut batch = Batch::new();
    for _ in 0..RING / 64 {
        for frame in pool.take_many(64) {
            let mut packet = Packet::new(frame);
            packet.extend_from_slice(&[0x55; 64]).unwrap();
            batch.push(packet);
        }
        feeder.tx.tx(&mut pool, &mut batch);
    }

    let mut rounds = Vec::new();
    let started = Instant::now();
    while started.elapsed() < DURATION {
        let round = Instant::now();
        let moved = pass(&mut *near.rx, &mut *away.tx, MacEdit::Swap, &mut pool, &mut batch);
        let nanoseconds = round.elapsed().as_secs_f64() * 1e9 / moved as f64;
        assert_eq!(moved, RING, "a wire lost packets");
        rounds.push(nanoseconds);
        pass(&mut *drain.rx, &mut *feeder.tx, MacEdit::Keep, &mut pool, &mut batch);
    }
    rounds.sort_by(f64::total_cmp);
    let median = rounds[rounds.len() / 2];
    println!("{median:.2} ns per packet, {:.2} Mpps per direction", 1000.0 / median / 2.0);
}
