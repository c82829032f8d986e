//! No allocation for a packet: counted by thread, over many batches, on every way a packet can take.
#![expect(unsafe_code, reason = "an allocator that counts is an allocator")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::time::Instant;

use bywash_frame::{BATCH, Batch, Pool};
use bywash_lab::PairOptions;
use bywash_port::{RxQueue, TxQueue};

use crate::setup::{PATIENCE, arena, bytes, cable, close, halves, open, options, packet};

struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: every call is passed on to the system's allocator unchanged; counting touches only a thread's own cell, which
// needs no allocation itself.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: the caller's promise about `layout` is what the system's allocator asks for.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the pointer came from `alloc` above, which is the system's, with this layout.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Packets at once. Chains are kept by the pool for a batch; as many in flight and as many received are within that.
const PER_TURN: usize = BATCH / 2;

/// Packets there and back again, with every frame reused.
fn traffic(
    rx: &mut dyn RxQueue,
    tx: &mut dyn TxQueue,
    pool: &mut Pool,
    [batch, received]: &mut [Batch; 2],
) -> usize {
    let start = Instant::now();
    let (sent, mut got) = (batch.len(), 0);
    while (got < sent || tx.in_flight() > 0) && start.elapsed() < PATIENCE {
        tx.tx(pool, batch);
        tx.flush(pool);
        got += rx.rx(pool, received);
        pool.give_batch(received);
    }
    got
}

#[test]
fn nothing_is_allocated_for_a_packet() {
    // A million of the shortest, which go there and are received.
    for (mtu, len, per_frame, turns) in [
        (1500, 60, 2048, 1_000_000 / PER_TURN),
        (1500, 1514, 2048, 200),
        (9000, 9014, 2048, 200),
        (9000, 5000, 1000, 200),
    ] {
        let Some(cable) = cable(&PairOptions { mtu, ..PairOptions::default() }) else { return };
        let arena = arena(8192);
        let mut pool = arena.pool(2048).unwrap();
        let mut near = open(cable.near(), "right", &options(), arena);
        let mut far = open(cable.far(), "left", &options(), arena);
        let ((near_rx, mut tx), (mut rx, far_tx)) = (halves(&mut near), halves(&mut far));
        let bytes = bytes(1, len);
        let mut batches = [Batch::new(), Batch::new()];
        let mut counted = 0;
        for turn in 0..=turns {
            (0..PER_TURN).for_each(|_| batches[0].push(packet(&mut pool, &bytes, per_frame)));
            let before = ALLOCATIONS.get();
            assert_eq!(traffic(rx.as_mut(), tx.as_mut(), &mut pool, &mut batches), PER_TURN);
            if turn > 0 {
                counted += ALLOCATIONS.get() - before;
            }
        }
        assert_eq!(counted, 0, "MTU {mtu}, {len} bytes");
        close(near, near_rx, tx, &mut pool);
        close(far, rx, far_tx, &mut pool);
    }
}

#[test]
fn the_count_counts() {
    let before = ALLOCATIONS.get();
    drop(std::hint::black_box(Box::new(7)));
    assert_eq!(ALLOCATIONS.get() - before, 1);
}
