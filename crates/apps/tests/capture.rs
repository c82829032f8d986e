//! What a capture brings to its file, and when.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod fake;
mod ring;

use std::collections::HashMap;
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use bywash_apps::capture::pcap::Format;
use bywash_apps::capture::{Capture, Options};
use bywash_apps::port::frame::{Arena, FRAME_SIZE};
use bywash_apps::port::{Counter, QueuePair};
use bywash_apps::report::{Reporter, Style};
use bywash_apps::sys::spool::{Rotation, Target};
use bywash_apps::sys::worker::Stop;
use bywash_apps::{App, WorkerOptions, run};
use fake::Fake;
use ring::{LEN, Ring};
use rustix::fs::{CWD, Mode, OFlags, fcntl_setfl, mkfifoat};
use tempfile::TempDir;

/// Bytes of a packet in a file of pcap, with the head of its record.
const RECORD: usize = 16 + LEN;

/// Bytes before the first packet.
const HEADER: usize = 24;

/// Starts to capture what this queue has, with four blocks of a mebibyte: one is being written, one is filled, and two wait.
fn start(ring: Ring, path: PathBuf, stop: &Stop) -> Capture {
    let options = Options {
        memory: 0,
        workers: WorkerOptions { frames: Some(500), ..WorkerOptions::default() },
        ..Options::to(Target::File(path), Format::Pcap)
    };
    let queue = QueuePair { rx: Some(Box::new(ring)), tx: None };
    let port = Fake::new("tap:burst", vec![queue], Box::new(|| Ok(())));
    Capture::start(port, &options, Arena::new(vec![0; 1000 * FRAME_SIZE]).unwrap(), stop).unwrap()
}

fn fifo(directory: &TempDir) -> PathBuf {
    let path = directory.path().join("pipe");
    mkfifoat(CWD, &path, Mode::RWXU).unwrap();
    path
}

#[test]
fn the_end_of_a_burst_reaches_the_file_though_the_disk_was_behind() {
    const PACKETS: usize = 2500;
    let directory = tempfile::tempdir().unwrap();
    let path = fifo(&directory);
    let mut pipe = File::options().read(true).write(true).open(&path).unwrap();
    let stop = Stop::new().unwrap();
    let capture = start(Ring { ends: false, ..Ring::new(PACKETS, 0) }, path, &stop);
    std::thread::sleep(Duration::from_millis(500));
    let reader = std::thread::spawn(move || {
        pipe.read_exact(&mut vec![0; HEADER + PACKETS * RECORD]).unwrap();
        Instant::now()
    });
    let until = Instant::now() + Duration::from_secs(10);
    while !reader.is_finished() && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!(reader.is_finished(), "{:?}", capture.snapshot().total.value("written_packets"));
    stop.set();
    assert!(capture.finish().met);
}

#[test]
fn what_comes_when_a_queue_is_told_to_stop_is_in_the_file() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("out.pcap");
    let stop = Stop::new().unwrap();
    let capture = start(Ring::new(50, 5000), path.clone(), &stop);
    let until = Instant::now() + Duration::from_secs(10);
    while capture.snapshot().value("written_packets") < Some(50) && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(1));
    }
    stop.set();
    let summary = capture.finish();
    assert_eq!((&summary.unmet[..], summary.snapshot.value("written_packets")), (&[][..], Some(5050)));
    assert_eq!(std::fs::metadata(path).unwrap().len(), (HEADER + 5050 * RECORD) as u64);
}

#[test]
fn what_a_slow_reader_left_in_a_queue_at_the_end_is_written_or_counted_as_lost() {
    /// More than there is memory for.
    const PACKETS: usize = 6000;
    for is_late in [false, true] {
        let directory = tempfile::tempdir().unwrap();
        let path = fifo(&directory);
        let mut pipe = File::options().read(true).custom_flags(libc::O_NONBLOCK).open(&path).unwrap();
        let stop = Stop::new().unwrap();
        let capture = start(Ring { ends: false, ..Ring::new(PACKETS, 0) }, path, &stop);
        fcntl_setfl(&pipe, OFlags::empty()).unwrap();
        std::thread::sleep(Duration::from_millis(50));
        stop.set();
        let reader = std::thread::spawn(move || {
            // Longer than packets wait for the disk.
            std::thread::sleep(Duration::from_millis(if is_late { 800 } else { 0 }));
            pipe.read_to_end(&mut Vec::new()).unwrap()
        });
        let summary = capture.finish();
        let [written, lost] = ["written_packets", "lost_packets"]
            .map(|name| usize::try_from(summary.snapshot.value(name).unwrap()).unwrap());
        assert_eq!((written + lost, summary.met), (PACKETS, lost == 0), "{summary}");
        assert!(lost > 0 || !is_late, "{summary}");
        assert_eq!(reader.join().unwrap(), HEADER + written * RECORD);
    }
}

/// The counters of the statistics that a pcapng file ends with: packets received, lost by the system, and delivered.
fn statistics(file: &[u8]) -> [u64; 3] {
    let len = u32::from_le_bytes(*file.last_chunk().unwrap()) as usize;
    let block = &file[file.len() - len..];
    assert_eq!(block[..4], 5_u32.to_le_bytes(), "an Interface Statistics Block");
    let (mut options, mut found) = (&block[20..len - 4], HashMap::new());
    while let [a, b, len, 0, rest @ ..] = options {
        found
            .insert(u16::from_le_bytes([*a, *b]), rest.first_chunk().map(|value| u64::from_le_bytes(*value)));
        options = &rest[usize::from(*len).next_multiple_of(4)..];
    }
    [4, 7, 8].map(|code| found[&code].unwrap())
}

#[test]
fn each_of_several_files_tells_what_had_come_and_what_the_port_had_lost() {
    // By blocks that are full, and by each batch.
    [false, true].into_iter().for_each(each_of_several_files_tells);
}

fn each_of_several_files_tells(flush: bool) {
    /// Some blocks of memory of them, each in some files.
    const PACKETS: usize = 3000;
    let directory = tempfile::tempdir().unwrap();
    let queue = QueuePair { rx: Some(Box::new(Ring::new(PACKETS, PACKETS))), tx: None };
    let began = Instant::now();
    let lost = move || if began.elapsed() < Duration::from_millis(500) { 7 } else { 9 };
    let mut port = Fake::new("tap:full", vec![queue], Box::new(|| Ok(())));
    port.counting = Box::new(move || vec![Counter::count("rx_ring_full", lost())]);
    let options = Options {
        flush,
        rotation: Rotation { bytes: Some(64 << 10), ..Rotation::default() },
        workers: WorkerOptions { frames: Some(500), ..WorkerOptions::default() },
        ..Options::to(Target::File(directory.path().join("out.pcapng")), Format::Pcapng)
    };
    let stop = Stop::new().unwrap();
    let capture =
        Capture::start(port, &options, Arena::new(vec![0; 1000 * FRAME_SIZE]).unwrap(), &stop).unwrap();
    // Nobody is shown anything on the way. The second half of the packets comes at the end.
    let mut reporter = Reporter::stdio(Style::Quiet).unwrap();
    run(capture, Some(Duration::from_millis(1600)), &stop, &mut reporter);
    let mut files: Vec<_> =
        std::fs::read_dir(&directory).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    let told: Vec<_> = files.iter().map(|path| statistics(&std::fs::read(path).unwrap())).collect();
    let half = told.iter().position(|[.., delivered]| *delivered > PACKETS as u64).unwrap();
    assert!(half > 20 && told.len() > half + 20, "{told:?}");
    for (number, [received, lost, delivered]) in told.iter().enumerate() {
        assert!(*received >= delivered + lost, "file {number}: {received} received, {delivered} delivered");
        // The file into which the second half goes on began with the first.
        assert_eq!(*lost, if number < half { 7 } else { 9 }, "file {number}: {told:?}");
    }
    assert_eq!(told.last(), Some(&[2 * PACKETS as u64 + 9, 9, 2 * PACKETS as u64]));
}
