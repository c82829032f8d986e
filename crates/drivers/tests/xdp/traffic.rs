//! Packets through `xdp:` ports over a cable: every one, byte by byte.

use crate::setup::{arena, bytes, cable, counter, halves, open, options, packet, receive, send};
use bywash_frame::{BATCH, Batch};
use bywash_lab::PairOptions;
use bywash_port::Port;

#[test]
fn every_packet_arrives_byte_by_byte_and_every_frame_comes_home() {
    let Some(cable) = cable(&PairOptions::default()) else { return };
    let arena = arena(8192);
    let mut pool = arena.pool(2048).unwrap();
    let frames = pool.free() + arena.unused();
    let mut near = open(cable.near(), "right", &options(), arena);
    let mut far = open(cable.far(), "left", &options(), arena);
    assert_eq!(near.capabilities().mode, ["copy", "native XDP"]);
    assert!(
        near.warnings().iter().any(|warning| warning.contains("copy mode on right")),
        "{:?}",
        near.warnings()
    );
    let ((near_rx, mut tx), (mut rx, far_tx)) = (halves(&mut near), halves(&mut far));

    let (mut batch, mut sent) = (Batch::new(), 0);
    let mut total = 0;
    for _ in 0..200 {
        while batch.room() > 0 {
            let bytes = bytes(sent, 14 + (sent as usize * 7) % 1500);
            total += bytes.len() as u64;
            batch.push(packet(&mut pool, &bytes, 2048));
            sent += 1;
        }
        send(tx.as_mut(), &mut pool, &mut batch);
        let got = receive(rx.as_mut(), &mut pool, BATCH);
        for (got, number) in got.iter().zip(sent - BATCH as u64..) {
            assert!(*got == bytes(number, 14 + (number as usize * 7) % 1500), "packet {number}");
        }
        assert_eq!(got.len(), BATCH);
    }
    assert_eq!((tx.counters().packets, tx.counters().bytes, tx.counters().errors), (sent, total, 0));
    assert_eq!((rx.counters().packets, rx.counters().bytes, rx.counters().errors), (sent, total, 0));
    assert_eq!(counter(&far, "rx_dropped") + counter(&far, "rx_ring_full"), 0);
    assert_eq!(counter(&near, "tx_invalid_descriptors"), 0);

    near_rx.close(&mut pool);
    tx.close(&mut pool);
    rx.close(&mut pool);
    far_tx.close(&mut pool);
    assert_eq!((counter(&near, "abandoned_frames"), counter(&far, "abandoned_frames")), (0, 0));
    near.close().unwrap();
    far.close().unwrap();
    assert_eq!(pool.free() + arena.unused(), frames);
    assert_eq!(arena.orphaned(), 0);
}
