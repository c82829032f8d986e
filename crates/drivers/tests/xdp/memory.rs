//! AF_XDP on huge pages, and huge pages that are reserved and given back.

use std::fs::read_to_string;

use bywash_frame::{Arena, BATCH, Batch};
use bywash_lab::PairOptions;
use bywash_sys::memory::{HugePages, allocate};

use crate::setup::{bytes, close, halves, open, options, packet, receive, send};

const CHILD: &str = "BYWASH_TEST_HUGE";

/// Pages of the pool, in use or not.
fn pages() -> String {
    read_to_string("/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages").unwrap_or_default()
}

#[test]
fn reserved_pages_carry_packets_and_leave_with_the_process() {
    let Some(_guard) = bywash_lab::lock() else { return };
    if pages().is_empty() {
        return bywash_lab::skip("this kernel has no huge pages of 2 MiB");
    }
    let before = pages();
    // An arena lives as long as its process: in a process of its own it can be seen to end.
    let output = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "memory::user_of_reserved_pages", "--ignored", "--nocapture"])
        .env(CHILD, "1")
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(pages(), before);
}

#[test]
#[ignore = "a process that another test starts, which holds the lock"]
fn user_of_reserved_pages() {
    if std::env::var_os(CHILD).is_none() {
        return;
    }
    let allocation = allocate(8 << 20, HugePages::Reserve, None).unwrap();
    assert!(allocation.memory.is_huge());
    assert!(allocation.warning.is_none());
    let arena = Arena::new(allocation.memory).unwrap();
    let lab = bywash_lab::Lab::row(2, &PairOptions::default()).unwrap();
    let mut pool = arena.pool(512).unwrap();
    let mut near = open(&lab.hosts[0], "right", &options(), arena);
    let mut far = open(&lab.hosts[1], "left", &options(), arena);
    let ((near_rx, mut tx), (mut rx, far_tx)) = (halves(&mut near), halves(&mut far));
    let mut batch = Batch::new();
    (0..BATCH as u64).for_each(|i| batch.push(packet(&mut pool, &bytes(i, 1500), 2048)));
    send(tx.as_mut(), &mut pool, &mut batch);
    let wanted: Vec<_> = (0..BATCH as u64).map(|i| bytes(i, 1500)).collect();
    assert!(receive(rx.as_mut(), &mut pool, BATCH) == wanted);
    close(near, near_rx, tx, &mut pool);
    close(far, rx, far_tx, &mut pool);
    drop(allocation.reservation);
}
