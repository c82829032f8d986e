//! Takes packets out of capture files, one file each: what the targets that eat packets start from.
//!
//! `packets FROM TO`: FROM is a folder of captures, TO is filled.
#![forbid(unsafe_code)]

use std::fs::{self, File};
use std::path::Path;
use std::process::ExitCode;

use bywash_pcap::Reader;

/// Of each capture: it is the kinds of packets that count.
const PACKETS: usize = 8;

/// Bytes of the longest one.
const LONGEST: usize = 1600;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [from, to] = &arguments[..] else {
        eprintln!("packets FROM TO");
        return ExitCode::from(2);
    };
    match extract(Path::new(from), Path::new(to)) {
        Ok(packets) => {
            println!("{packets} packets");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn extract(from: &Path, to: &Path) -> std::io::Result<usize> {
    let mut packets = 0;
    for (number, entry) in fs::read_dir(from)?.enumerate() {
        // What is no capture gives no packets.
        let Ok(mut reader) = Reader::new(File::open(entry?.path())?) else { continue };
        for _ in 0..PACKETS {
            let Ok(Some(record)) = reader.next_record() else { break };
            if record.bytes.len() <= LONGEST {
                fs::write(to.join(format!("{number}-{packets}")), record.bytes)?;
                packets += 1;
            }
        }
    }
    Ok(packets)
}
