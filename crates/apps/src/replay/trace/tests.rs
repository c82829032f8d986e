//! Which times packets have.

use std::fs;

use bywash_pcap::{Format, Interface};

use super::*;

const MS: u64 = 1_000_000;

/// A file of packets with these times, in milliseconds, opened.
fn opened(times: &[u64]) -> Trace {
    let format = Format::Pcap;
    let mut file = format.file_header(&Interface::named("test"));
    for time in times {
        file.extend(format.record_head(time * MS, 60, 60).bytes());
        file.extend([0; 60]);
    }
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("a.pcap");
    fs::write(&path, file).unwrap();
    let preparation = Preparation {
        rewrite: Rewrite::default(),
        capabilities: Capabilities { max_len: 1514, ..Capabilities::default() },
        too_long: TooLong::default(),
        max_gap: u64::MAX,
    };
    Trace::open(&Source::File(path), preparation, u64::MAX, Some(1)).unwrap()
}

#[test]
fn a_clock_that_was_set_back_is_followed_and_packets_that_were_swapped_are_not() {
    for (times, sent, backwards) in [
        // Two packets that another queue has had for a while.
        (&[1000, 1050, 1020, 1040, 1060, 1100][..], &[0, 50, 50, 50, 60, 100][..], 2),
        // An hour back.
        (&[3_700_000, 3_700_010, 100_020, 100_030, 100_050], &[0, 10, 10, 20, 40], 1),
        (&[1000, 799, 810], &[0, 0, 11], 1),
        (&[1000, 800, 810, 1003], &[0, 0, 0, 3], 2),
    ] {
        let mut trace = opened(times);
        let Next::Piece(piece, true) = trace.piece() else { panic!("the first piece") };
        let at: Vec<u64> = piece.entries.iter().map(|entry| entry.time / MS).collect();
        assert_eq!(at, sent, "{times:?}");
        assert_eq!(trace.notes().backwards, backwards, "{times:?}");
    }
}
