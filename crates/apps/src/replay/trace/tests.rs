//! Which times packets have, and what is told of a file.

use std::fs;
use std::time::Instant;

use bywash_pcap::{Format, Interface};

use super::*;

const MS: u64 = 1_000_000;

/// A file of packets with these times, in milliseconds, all of so many bytes.
fn file(times: impl IntoIterator<Item = u64>, len: u32) -> Vec<u8> {
    let format = Format::Pcap;
    let mut file = format.file_header(&Interface::named("test"));
    for time in times {
        file.extend(format.record_head(time * MS, len, len).bytes());
        file.resize(file.len() + len as usize, 0);
    }
    file
}

/// It, opened, and the directory that it lies in.
fn opened(file: &[u8], preload: u64, loops: Option<u64>) -> (Trace, tempfile::TempDir) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("a.pcap");
    fs::write(&path, file).unwrap();
    let preparation = Preparation {
        rewrite: Rewrite::default(),
        capabilities: Capabilities { max_len: 1514, ..Capabilities::default() },
        too_long: TooLong::default(),
        max_gap: u64::MAX,
    };
    (Trace::open(&Source::File(path), preparation, preload, loops).unwrap(), directory)
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
        let (mut trace, _) = opened(&file(times.iter().copied(), 60), u64::MAX, Some(1));
        let Next::Piece(piece, true) = trace.piece() else { panic!("the first piece") };
        let at: Vec<u64> = piece.entries.iter().map(|entry| entry.time / MS).collect();
        assert_eq!(at, sent, "{times:?}");
        assert_eq!(trace.notes().backwards, backwards, "{times:?}");
    }
}

#[test]
fn what_is_wrong_with_a_file_is_told_however_often_it_is_read() {
    let packets = 2 * PIECE_PACKETS as u64 + 10;
    let mut bytes = file(0..packets, 60);
    // The first one is too short, the last one is not whole.
    let header = file([], 0).len();
    bytes.splice(header..header, file([0], 10)[header..].to_vec());
    bytes.truncate(bytes.len() - 1);
    let (mut trace, _directory) = opened(&bytes, 0, None);
    let began = Instant::now();
    let (mut pieces, mut readings) = (0, 0);
    while pieces < 60 {
        assert!(began.elapsed() < Duration::from_secs(60), "{pieces} pieces came");
        match trace.piece() {
            Next::Piece(_, is_first) => readings += u64::from(is_first),
            Next::Wait => {
                std::thread::sleep(Duration::from_millis(1));
                continue;
            }
            Next::End => panic!("{:?}", trace.failure()),
        }
        if readings > 1 {
            let notes = trace.notes();
            assert_eq!((notes.packets, notes.short), (packets - 1, 1), "after {pieces} pieces");
            assert!(notes.broken.is_some(), "after {pieces} pieces");
        }
        trace.advance();
        pieces += 1;
    }
    assert_eq!(readings, 20);
}
