//! What forwarding with MAC swap costs on our 82599 driver, on one core: receive with hash and checksum status, swap,
//! send, flush. The NIC is the model in this process; it works between the batches, so that what `forward_batch` costs is
//! the driver alone.
//!
//! Arguments: packets in a batch, how many batches, and `paged` when the NIC is to be told of each huge page by itself, as
//! without an IOMMU. Prints how many packets were forwarded and the median time of a
//! packet. Under callgrind, `--toggle-collect=*forward_batch*` counts the driver's instructions.
#![expect(clippy::print_stdout, reason = "its output is the result")]
#![expect(clippy::unwrap_used, reason = "a benchmark that can't run should stop")]

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Instant;

use bywash_apps::forward::MacEdit;
use bywash_drivers::ixgbe::{self, Settings};
use bywash_models::cable::Impairment;
use bywash_models::function::{Handle, InProcess};
use bywash_models::ixgbe::Board;
use bywash_models::world::Shared;
use bywash_port::frame::{Arena, Batch, Checksum, Packet, Pool, Stride};
use bywash_port::{Port, PortName, RxQueue, TxQueue};
use bywash_sys::function::{DeviceAddresses, DmaMemory, Function, FunctionError, PageTable, Registers};
use bywash_sys::memory::{HUGE_PAGE, HugePages, allocate};

/// Register writes that wait, as offset and value in one word.
const WAITING: usize = 8;

/// A model whose registers, while it runs, take writes as hardware does: one store, and what follows happens elsewhere.
struct Posted {
    model: InProcess,
    registers: Posts,
    paged: bool,
}

#[derive(Clone)]
struct Posts {
    model: Handle,
    running: Arc<AtomicU64>,
    posts: Arc<[AtomicU64; WAITING]>,
    count: Arc<AtomicUsize>,
}

impl Posts {
    /// The NIC sees what was written.
    fn deliver(&self) {
        for post in &self.posts[..self.count.swap(0, Ordering::Relaxed)] {
            let post = post.load(Ordering::Relaxed);
            self.model.write32((post >> 32) as u32, (post & 0xffff_ffff) as u32);
        }
    }
}

impl Registers for Posts {
    fn read32(&self, offset: u32) -> u32 {
        self.model.read32(offset)
    }

    #[inline]
    fn write32(&self, offset: u32, value: u32) {
        if self.running.load(Ordering::Relaxed) == 0 {
            return self.model.write32(offset, value);
        }
        let at = self.count.fetch_add(1, Ordering::Relaxed);
        self.posts[at].store(u64::from(offset) << 32 | u64::from(value), Ordering::Release);
    }
}

impl Function for Posted {
    type Registers = Posts;

    fn name(&self) -> &str {
        self.model.name()
    }

    fn registers(&self) -> Posts {
        self.registers.clone()
    }

    fn read_config(&mut self, offset: u64, to: &mut [u8]) -> Result<(), FunctionError> {
        self.model.read_config(offset, to)
    }

    fn write_config(&mut self, offset: u64, from: &[u8]) -> Result<(), FunctionError> {
        self.model.write_config(offset, from)
    }

    fn map(&mut self, memory: &DmaMemory<'_>) -> Result<DeviceAddresses, FunctionError> {
        let addresses = self.model.map(memory)?;
        if !self.paged {
            return Ok(addresses);
        }
        let pages: Vec<u64> = (0..memory.bytes).step_by(HUGE_PAGE).map(|at| addresses.of(at)).collect();
        Ok(DeviceAddresses::Paged(PageTable::new(&pages)))
    }

    fn unmap(&mut self, address: u64) -> Result<(), FunctionError> {
        self.model.unmap(address)
    }

    fn interrupts(&mut self, count: u16) -> Result<Vec<OwnedFd>, FunctionError> {
        self.model.interrupts(count)
    }

    fn reset(&mut self) -> Result<(), FunctionError> {
        self.model.reset()
    }
}

/// A turn of a forwarder's loop.
#[inline(never)]
fn forward_batch(rx: &mut dyn RxQueue, tx: &mut dyn TxQueue, pool: &mut Pool, batch: &mut Batch) -> usize {
    rx.rx(pool, batch);
    MacEdit::Swap.apply(batch);
    let sent = tx.tx(pool, batch);
    tx.flush(pool);
    sent
}

struct End {
    _port: Box<dyn Port>,
    rx: Box<dyn RxQueue>,
    tx: Box<dyn TxQueue>,
    registers: Posts,
}

fn end(world: &Shared, index: usize, arena: &'static Arena, paged: bool) -> End {
    let model = InProcess::new(world, index);
    let registers = Posts {
        model: model.registers(),
        running: Arc::default(),
        posts: Arc::default(),
        count: Arc::default(),
    };
    let settings = Settings { watch: None, ring: 512, ..Settings::default() };
    let function = Posted { model, registers: registers.clone(), paged };
    let mut port = ixgbe::open(function, PortName::Null, &settings, arena).unwrap();
    port.wait_for_link(std::time::Duration::from_secs(10)).unwrap();
    let queue = port.queues().remove(0);
    End { _port: Box::new(port), rx: queue.rx.unwrap(), tx: queue.tx.unwrap(), registers }
}

/// A UDP packet of 64 bytes on the wire, its checksums right.
fn packet(frame: bywash_port::frame::Frame) -> Packet {
    let mut packet = Packet::new(frame);
    let header: [u8; 42] = [
        2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0, 0x45, 0, 0, 46, 0, 0, 0x40, 0, 64, 17, 0x26, 0xbd, 10, 0,
        0, 1, 10, 0, 0, 2, 4, 0, 4, 0, 0, 26, 0xe3, 0xb7,
    ];
    packet.extend_from_slice(&header).unwrap();
    packet.extend_from_slice(&[0; 18]).unwrap();
    packet
}

fn main() {
    // Cargo adds `--bench`.
    let numbers: Vec<usize> = std::env::args().filter_map(|argument| argument.parse().ok()).collect();
    let [size, batches] = numbers[..] else { panic!("arguments: packets in a batch, batches") };
    let memory = allocate(Stride::Packed.memory_for(4096), HugePages::Auto, None).unwrap().memory;
    let arena = Arena::new(memory).unwrap();
    let mut pool = arena.pool(4096).unwrap();
    let boards = [1, 2].map(|last| Board { mac: [2, 0, 0, 0, 0, last], ..Board::default() });
    let world = Shared::new(&boards, Impairment::default());
    let paged = std::env::args().any(|argument| argument == "paged");
    let mut feeder = end(&world, 0, arena, paged);
    let mut forwarder = end(&world, 1, arena, paged);
    let mut batch = Batch::with_limit(size);
    feeder.rx.rx(&mut pool, &mut batch);
    forwarder.rx.rx(&mut pool, &mut batch);
    (0..size).for_each(|_| batch.push(packet(pool.take().unwrap())));
    forwarder.registers.running.store(1, Ordering::Relaxed);

    let mut work = Batch::with_limit(size);
    let mut times = Vec::with_capacity(batches);
    for _ in 0..batches {
        feeder.tx.tx(&mut pool, &mut batch);
        feeder.tx.flush(&mut pool);
        let begun = Instant::now();
        let sent = forward_batch(&mut *forwarder.rx, &mut *forwarder.tx, &mut pool, &mut work);
        times.push(begun.elapsed().as_secs_f64() * 1e9 / size as f64);
        assert_eq!((sent, work.len()), (size, 0), "packets were lost");
        forwarder.registers.deliver();
        feeder.rx.rx(&mut pool, &mut batch);
        assert_eq!(batch.len(), size, "packets were lost on the way back");
        let known = batch
            .iter()
            .all(|packet| packet.offload.hash().is_some() && packet.offload.checksum() == Checksum::Valid);
        assert!(known, "hash or checksum status is missing");
    }
    times.sort_by(f64::total_cmp);
    let (count, median) = (batches * size, times[batches / 2]);
    println!("{count} packets, {median:.2} ns each, batches of {size}");
}
