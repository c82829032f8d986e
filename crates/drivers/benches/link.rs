//! What a wire between two processes carries, beside one within a process: packets of 64 bytes from one end to the other
//! as fast as they go, each end on a core of its own where there are two.
//!
//! `link` or `loop` says which. Prints the packets that arrived in a second.
#![expect(clippy::print_stdout, reason = "its output is the result")]
#![expect(clippy::unwrap_used, reason = "a benchmark that can't run should stop")]

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use bywash_drivers::{OpenOptions, open};
use bywash_frame::{Arena, Batch, Packet, Pool, Stride};
use bywash_port::{Port, RxQueue, TxQueue};
use bywash_sys::memory::{HugePages, allocate};
use bywash_sys::worker::allowed_cores;

/// How long it measures.
const DURATION: Duration = Duration::from_secs(2);

/// What tells the process at the far end which wire it is to fill.
const SENDER: &str = "BYWASH_BENCH_LINK";

const FRAMES: usize = 8192;

struct End {
    _port: Box<dyn Port>,
    rx: Box<dyn RxQueue>,
    tx: Box<dyn TxQueue>,
    pool: Pool,
}

fn arena() -> &'static Arena {
    Arena::new(allocate(Stride::Packed.memory_for(FRAMES), HugePages::Auto, None).unwrap().memory).unwrap()
}

fn end(name: &str, arena: &'static Arena) -> End {
    let mut port = open(&name.parse().unwrap(), &OpenOptions::default(), arena).unwrap().port;
    let queue = port.queues().remove(0);
    End { _port: port, rx: queue.rx.unwrap(), tx: queue.tx.unwrap(), pool: arena.pool(2048).unwrap() }
}

/// The `number`th core, or the first again.
fn pin(number: usize) {
    let cores = allowed_cores();
    let mut set = rustix::thread::CpuSet::new();
    set.set(cores[number % cores.len()]);
    rustix::thread::sched_setaffinity(None, &set).unwrap();
}

/// Sends until nobody is there any more, or for long enough.
fn send(mut end: End) {
    pin(1);
    let (mut batch, started) = (Batch::new(), Instant::now());
    while started.elapsed() < 2 * DURATION {
        for _ in 0..100 {
            let room = batch.room();
            for frame in end.pool.take_many(room) {
                let mut packet = Packet::new(frame);
                packet.set_len(60).unwrap();
                packet.head_mut()[..16].fill(0x55);
                batch.push(packet);
            }
            if end.tx.tx(&mut end.pool, &mut batch) == 0 {
                std::hint::spin_loop();
            }
            end.tx.flush(&mut end.pool);
        }
    }
    end.pool.give_batch(&mut batch);
}

/// Receives, and prints the rate.
fn receive(mut end: End) {
    pin(0);
    let mut batch = Batch::new();
    while end.rx.rx(&mut end.pool, &mut batch) == 0 {
        std::thread::yield_now();
    }
    let (started, mut packets, mut sum) = (Instant::now(), 0, 0_u64);
    while started.elapsed() < DURATION {
        for _ in 0..100 {
            packets += batch.len() as u64;
            // Something is read of each, as whoever receives does.
            sum += batch.iter().map(|packet| u64::from(packet.head()[12])).sum::<u64>();
            end.pool.give_batch(&mut batch);
            end.rx.rx(&mut end.pool, &mut batch);
        }
    }
    let rate = packets as f64 / started.elapsed().as_secs_f64() / 1e6;
    end.pool.give_batch(&mut batch);
    assert_eq!(sum, packets * 0x55, "something else arrived");
    println!("{rate:.2} Mpps");
}

fn main() {
    if let Ok(name) = std::env::var(SENDER) {
        return send(end(&name, arena()));
    }
    if std::env::args().any(|argument| argument == "loop") {
        let arena = arena();
        let (sender, receiver) = (end("loop:bench", arena), end("loop:bench", arena));
        std::thread::scope(|scope| {
            scope.spawn(move || send(sender));
            receive(receiver);
        });
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let name = format!("link:{}/wire.sock", directory.path().display());
    let receiver = end(&name, arena());
    let mut command = Command::new(std::env::current_exe().unwrap());
    let mut sender = command.env(SENDER, &name).stdout(Stdio::null()).spawn().unwrap();
    receive(receiver);
    sender.kill().unwrap();
    sender.wait().unwrap();
}
