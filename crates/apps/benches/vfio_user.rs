//! What our 82599 driver forwards on the modelled NIC, with MAC swap: the model in this process, or behind a socket in a process
//! of its own that maps the tails (`--mapped`). The cable leads back into the NIC, so that packets go round and round.
//!
//! Arguments: seconds; and `bywash-models`, for the second way. Prints how many packets were forwarded, and the rate. Under
//! callgrind, `--toggle-collect=*circulate*` counts the instructions of driver and model together, when it is in this process.
#![expect(clippy::print_stdout, reason = "its output is the result")]
#![expect(clippy::unwrap_used, reason = "a benchmark that can't run should stop")]

use std::path::Path;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use bywash_apps::forward::MacEdit;
use bywash_drivers::ixgbe::{self, Settings};
use bywash_models::cable::Impairment;
use bywash_models::function::InProcess;
use bywash_models::ixgbe::Board;
use bywash_models::world::Shared;
use bywash_port::frame::{Arena, Batch, Packet, Pool, Stride};
use bywash_port::{Port, PortName, RxQueue, TxQueue};
use bywash_sys::function::Function;
use bywash_sys::memory::{HugePages, allocate};
use bywash_sys::vfio_user::VfioUser;
use bywash_sys::worker::allowed_cores;

/// Packets that go round: four batches, so that driver and NIC can both be busy.
const PACKETS: usize = 256;

/// How long a server may take to be there, and packets to come back.
const PATIENCE: Duration = Duration::from_secs(10);

/// A server in a process of its own.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

/// This thread, and the processes that it starts from now on, stay on one core.
fn pin(core: usize) {
    let mut set = rustix::thread::CpuSet::new();
    set.set(core);
    rustix::thread::sched_setaffinity(None, &set).unwrap();
}

/// Serves a NIC at a socket, and connects to it.
fn serve(program: &str, socket: &Path) -> (Server, VfioUser) {
    let mut command = Command::new(program);
    let server = Server(command.args(["ixgbe", "--mapped"]).arg(socket).spawn().unwrap());
    let begun = Instant::now();
    loop {
        match VfioUser::connect(socket, "model") {
            Ok(function) => return (server, function),
            Err(error) => assert!(begun.elapsed() < PATIENCE, "{error}"),
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// A UDP packet of 64 bytes on the wire from the NIC to itself, its checksums right.
fn packet(pool: &mut Pool, mac: [u8; 6]) -> Packet {
    let mut packet = Packet::new(pool.take().unwrap());
    packet.extend_from_slice(&[mac, mac].concat()).unwrap();
    let header: [u8; 30] = [
        8, 0, 0x45, 0, 0, 46, 0, 0, 0x40, 0, 64, 17, 0x26, 0xbd, 10, 0, 0, 1, 10, 0, 0, 2, 4, 0, 4, 0, 0, 26,
        0xe3, 0xb7,
    ];
    packet.extend_from_slice(&header).unwrap();
    packet.extend_from_slice(&[0; 18]).unwrap();
    packet
}

/// Forwards until it is time, and returns how many packets.
#[inline(never)]
fn circulate(
    rx: &mut dyn RxQueue,
    tx: &mut dyn TxQueue,
    pool: &mut Pool,
    batch: &mut Batch,
    duration: Duration,
) -> usize {
    let (begun, mut forwarded) = (Instant::now(), 0);
    while begun.elapsed() < duration {
        for _ in 0..100 {
            rx.rx(pool, batch);
            MacEdit::Swap.apply(batch);
            let sent = tx.tx(pool, batch);
            tx.flush(pool);
            forwarded += sent;
            if sent == 0 {
                // As our workers do: the two processors may be one core's, and asking without a pause slows the other down.
                std::hint::spin_loop();
            }
        }
    }
    forwarded
}

fn measure(function: impl Function + 'static, duration: Duration) {
    let memory = allocate(Stride::Packed.memory_for(4096), HugePages::Auto, None).unwrap().memory;
    let arena = Arena::new(memory).unwrap();
    let mut pool = arena.pool(4096).unwrap();
    let settings = Settings { watch: None, ring: 512, ..Settings::default() };
    let mut port = ixgbe::open(function, PortName::Null, &settings, arena).unwrap();
    port.wait_for_link(PATIENCE).unwrap();
    let queue = port.queues().remove(0);
    let (mut rx, mut tx) = (queue.rx.unwrap(), queue.tx.unwrap());
    let (mac, mut batch) = (port.mac().unwrap(), Batch::new());
    // The first call gives the NIC its buffers.
    rx.rx(&mut pool, &mut batch);
    for _ in 0..PACKETS / batch.room() {
        (0..batch.room()).for_each(|_| batch.push(packet(&mut pool, mac)));
        tx.tx(&mut pool, &mut batch);
        tx.flush(&mut pool);
    }
    let begun = Instant::now();
    let forwarded = circulate(&mut *rx, &mut *tx, &mut pool, &mut batch, duration);
    let rate = forwarded as f64 / begun.elapsed().as_secs_f64() / 1e6;
    let (mut back, begun) = (0, Instant::now());
    while back < PACKETS && begun.elapsed() < PATIENCE {
        back += batch.len();
        pool.give_batch(&mut batch);
        rx.rx(&mut pool, &mut batch);
    }
    assert_eq!(back, PACKETS, "packets were lost");
    println!("{forwarded} packets forwarded, {rate:.3} Mpps");
}

fn main() {
    // Cargo adds `--bench`.
    let arguments: Vec<_> = std::env::args().skip(1).filter(|argument| !argument.starts_with("--")).collect();
    let duration = Duration::from_secs(arguments[0].parse().unwrap());
    let cores = allowed_cores();
    pin(cores[0]);
    match arguments.get(1) {
        Some(program) => {
            let directory = tempfile::tempdir().unwrap();
            pin(cores[1 % cores.len()]);
            let (_server, function) = serve(program, &directory.path().join("nic.sock"));
            pin(cores[0]);
            measure(function, duration);
        }
        None => {
            let world = Shared::new(&[Board::default()], Impairment::default());
            measure(InProcess::new(&world, 0), duration);
        }
    }
}
