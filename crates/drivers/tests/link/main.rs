//! `link:`, a wire between two processes: its two ends in one process, and in two that are stopped, killed and restarted.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod opening;
mod processes;
mod traffic;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use bywash_drivers::{OpenOptions, open};
use bywash_frame::{Arena, Batch, FRAME_SIZE, Packet, Pool};
use bywash_port::{Port, RxQueue, TxQueue};

/// No test waits longer for anything.
const LIMIT: Duration = Duration::from_secs(20);

/// A directory for a test's socket.
struct Place(tempfile::TempDir);

impl Place {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn path(&self) -> PathBuf {
        self.0.path().join("wire.sock")
    }

    fn name(&self) -> String {
        format!("link:{}", self.path().display())
    }
}

/// One end of a wire with a single queue.
struct End {
    port: Box<dyn Port>,
    rx: Box<dyn RxQueue>,
    tx: Box<dyn TxQueue>,
    pool: Pool,
    batch: Batch,
}

const FRAMES: usize = 4096;

impl End {
    fn open(name: &str, options: &OpenOptions) -> Self {
        Self::try_open(name, options).unwrap_or_else(|error| panic!("{error}"))
    }

    fn try_open(name: &str, options: &OpenOptions) -> Result<Self, String> {
        let arena = Arena::new(vec![0; (FRAMES + 64) * FRAME_SIZE]).unwrap();
        let mut port = open(&name.parse().unwrap(), options, arena).map_err(|error| error.to_string())?.port;
        let mut queues = port.queues();
        assert!(port.queues().is_empty(), "queues are given out once");
        let queue = queues.remove(0);
        let (rx, tx) = (queue.rx.unwrap(), queue.tx.unwrap());
        Ok(Self { port, rx, tx, pool: arena.pool(FRAMES).unwrap(), batch: Batch::new() })
    }

    /// Sends a packet that begins with `number`; false when there is no room.
    fn send(&mut self, number: u64) -> bool {
        let mut packet = Packet::new(self.pool.take().unwrap());
        packet.extend_from_slice(&[&number.to_le_bytes()[..], &[0x55; 52]].concat()).unwrap();
        self.send_packet(packet)
    }

    fn send_packet(&mut self, packet: Packet) -> bool {
        self.batch.push(packet);
        let sent = self.tx.tx(&mut self.pool, &mut self.batch) == 1;
        self.pool.give_batch(&mut self.batch);
        self.tx.flush(&mut self.pool);
        sent
    }

    /// The numbers of the packets that are there.
    fn receive(&mut self) -> Vec<u64> {
        self.rx.rx(&mut self.pool, &mut self.batch);
        let numbers = self.batch.iter().map(number).collect();
        self.pool.give_batch(&mut self.batch);
        numbers
    }

    fn counter(&self, name: &str) -> u64 {
        self.port.counters().into_iter().find(|counter| counter.name == name).unwrap().value
    }

    fn close(mut self) {
        self.rx.close(&mut self.pool);
        self.tx.close(&mut self.pool);
        self.port.close().unwrap();
        assert_eq!((self.pool.free(), self.pool.arena().orphaned()), (FRAMES, 0));
    }
}

fn number(packet: &Packet) -> u64 {
    u64::from_le_bytes(packet.head()[..8].try_into().unwrap())
}

/// Turns until it is so.
fn until(what: &str, mut done: impl FnMut() -> bool) {
    let end = Instant::now() + LIMIT;
    while !done() {
        assert!(Instant::now() < end, "{what}");
        std::thread::sleep(Duration::from_micros(200));
    }
}
