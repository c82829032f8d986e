//! Files that others wrote, and others reading what we write: tcpdump is the judge.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::ffi::OsStr;
use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use bywash_lab::skip;
use bywash_pcap::{Format, Interface, ReadError, Reader, Statistics};

type Packets = Vec<(Option<u64>, u32, Vec<u8>)>;

fn read(file: &[u8]) -> (Packets, Option<ReadError>) {
    let mut reader = match Reader::new(file) {
        Ok(reader) => reader,
        Err(error) => return (Vec::new(), Some(error)),
    };
    let mut packets = Vec::new();
    loop {
        match reader.next_record() {
            Ok(Some(record)) => packets.push((record.time, record.original_len, record.bytes.to_vec())),
            Ok(None) => return (packets, None),
            Err(error) => return (packets, Some(error)),
        }
    }
}

/// The file as tcpdump reads it and writes it again, and whether it was content.
fn tcpdump(file: &[u8], precision: &str) -> Result<(Vec<u8>, bool), String> {
    let mut child = Command::new("tcpdump")
        // An unpacked Debian tcpdump has no user of its own to become.
        .args(["-Z", "root", &format!("--time-stamp-precision={precision}"), "-r", "-", "-w", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .map_err(|error| format!("tcpdump can't be run: {error}"))?;
    let mut stdin = child.stdin.take().unwrap();
    let file = file.to_vec();
    // It may have seen enough before it has read all.
    let feed = std::thread::spawn(move || stdin.write_all(&file).ok());
    let output = child.wait_with_output().unwrap();
    feed.join().unwrap();
    Ok((output.stdout, output.status.success()))
}

/// Microseconds after which the 32 bits for seconds in a file of tcpdump's begin again.
const WRAP: u64 = (1 << 32) * 1_000_000;

fn captures() -> Result<Vec<PathBuf>, String> {
    let directory = std::env::var_os("BYWASH_CAPTURES").ok_or("BYWASH_CAPTURES names no directory")?;
    let entries = std::fs::read_dir(directory).map_err(|error| error.to_string())?;
    let is_capture =
        |path: &PathBuf| matches!(path.extension().and_then(OsStr::to_str), Some("pcap" | "pcapng"));
    Ok(entries.map(|entry| entry.unwrap().path()).filter(is_capture).collect())
}

#[test]
fn captures_of_others_are_read_as_tcpdump_reads_them() {
    let files = match captures() {
        Ok(files) => files,
        Err(reason) => return skip(&reason),
    };
    let (mut compared, mut longer) = (0, 0);
    for path in &files {
        let file = std::fs::read(path).unwrap();
        let (ours, error) = read(&file);
        let (again, is_content) = match tcpdump(&file, "micro") {
            Ok(result) => result,
            Err(reason) => return skip(&reason),
        };
        if is_content {
            let (theirs, _) = read(&again);
            assert_eq!(ours.len(), theirs.len(), "{}: {error:?}", path.display());
            for (ours, theirs) in ours.iter().zip(&theirs) {
                // A packet without a time is given one by tcpdump; one that is longer than its file says any can be is
                // cut.
                let microseconds = |time: Option<u64>| time.or(theirs.0).map(|time| time / 1000 % WRAP);
                let (a, b) = ((microseconds(ours.0), ours.1), (microseconds(theirs.0), theirs.1));
                assert_eq!(a, b, "{}", path.display());
                assert!(ours.2.starts_with(&theirs.2), "{}", path.display());
                longer += usize::from(ours.2.len() > theirs.2.len());
            }
            assert!(error.is_none(), "{}: {error:?}", path.display());
            compared += theirs.len();
        } else {
            assert!(error.is_some() || !ours.is_empty(), "{}", path.display());
        }
    }
    assert!(longer * 20 < compared, "{longer} of {compared} packets are longer than tcpdump's");
    assert!(compared > 1000, "only {compared} packets in {} files", files.len());
}

#[test]
fn what_we_write_is_read_by_tcpdump() {
    for format in [Format::Pcap, Format::Pcapng] {
        let mut file = format.file_header(&Interface { filter: Some("udp"), ..Interface::named("eth1") });
        let mut expected = Vec::new();
        for length in 14..200_u32 {
            let bytes: Vec<u8> = (0..length).map(|byte| u8::try_from(byte % 251).unwrap()).collect();
            let (time, original) = (1_700_000_000_123_456_789 + u64::from(length), length + length % 3);
            file.extend(format.record_head(time, length, original).bytes());
            file.extend(&bytes);
            file.extend(format.record_tail(length).bytes());
            expected.push((Some(time), original, bytes));
        }
        file.extend(format.statistics(&Statistics { received: Some(186), ..Statistics::default() }));
        let (again, is_content) = match tcpdump(&file, "nano") {
            Ok(result) => result,
            Err(reason) => return skip(&reason),
        };
        let (theirs, error) = read(&again);
        assert!(is_content && error.is_none(), "{format:?}: {error:?}");
        assert_eq!(theirs, expected, "{format:?}");
    }
}
