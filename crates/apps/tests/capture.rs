//! What a capture brings to its file, and when.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod fake;

use std::fs::File;
use std::io::Read;
use std::time::{Duration, Instant};

use bywash_apps::App;
use bywash_apps::WorkerOptions;
use bywash_apps::capture::pcap::Format;
use bywash_apps::capture::{Capture, Options};
use bywash_apps::port::frame::{Arena, Batch, FRAME_SIZE, Packet, Pool};
use bywash_apps::port::{QueueCounters, QueuePair, RxQueue};
use bywash_apps::sys::spool::Target;
use bywash_apps::sys::worker::Stop;
use fake::Fake;

/// A queue of so many packets, and then of none.
struct Burst(usize);

impl RxQueue for Burst {
    fn rx(&mut self, pool: &mut Pool, batch: &mut Batch) -> usize {
        let n = self.0.min(batch.room());
        for _ in 0..n {
            let mut packet = Packet::new(pool.take().unwrap());
            packet.extend_from_slice(&[0; 1000]).unwrap();
            batch.push(packet);
        }
        self.0 -= n;
        n
    }
    fn arm(&mut self) -> bool {
        true
    }
    fn wake_fd(&self) -> Option<std::os::fd::BorrowedFd<'_>> {
        None
    }
    fn counters(&self) -> QueueCounters {
        QueueCounters::default()
    }
    fn close(self: Box<Self>, _: &mut Pool) {}
}

#[test]
fn the_end_of_a_burst_reaches_the_file_though_the_disk_was_behind() {
    const PACKETS: usize = 2500;
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("pipe");
    rustix::fs::mkfifoat(rustix::fs::CWD, &path, rustix::fs::Mode::RWXU).unwrap();
    let mut pipe = File::options().read(true).write(true).open(&path).unwrap();
    let arena = Arena::new(vec![0; 1000 * FRAME_SIZE]).unwrap();
    let stop = Stop::new().unwrap();
    let queue = QueuePair { rx: Some(Box::new(Burst(PACKETS))), tx: None };
    // Four blocks of a mebibyte: one is being written, one waits, and one has the end of the burst.
    let options = Options {
        memory: 0,
        workers: WorkerOptions { frames: Some(500), ..WorkerOptions::default() },
        ..Options::to(Target::File(path), Format::Pcap)
    };
    let port = Fake::new("tap:burst", vec![queue], Box::new(|| Ok(())));
    let capture = Capture::start(port, &options, arena, &stop).unwrap();
    std::thread::sleep(Duration::from_millis(500));
    let reader = std::thread::spawn(move || {
        pipe.read_exact(&mut vec![0; 24 + PACKETS * 1016]).unwrap();
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
