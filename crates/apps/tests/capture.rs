//! What a capture brings to its file, and when.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod fake;
mod ring;

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use bywash_apps::App;
use bywash_apps::WorkerOptions;
use bywash_apps::capture::pcap::Format;
use bywash_apps::capture::{Capture, Options};
use bywash_apps::port::QueuePair;
use bywash_apps::port::frame::{Arena, FRAME_SIZE};
use bywash_apps::sys::spool::Target;
use bywash_apps::sys::worker::Stop;
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
