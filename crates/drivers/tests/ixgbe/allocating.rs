//! No allocation for a packet, however it is made: counted on the driver's thread, the model's own work left out.
#![expect(unsafe_code, reason = "an allocator that counts is an allocator")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::os::fd::OwnedFd;

use bywash_drivers::ixgbe;
use bywash_drivers::port::frame::{Batch, Checksum, Packet};
use bywash_drivers::port::{Port, PortName};
use bywash_models::function::{Handle, InProcess};
use bywash_sys::function::{DeviceAddresses, DmaMemory, Function, FunctionError, Registers};

use crate::bed::{PATIENCE, memory, packet, quiet, world};

struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
    /// The model is at work.
    static PAUSED: Cell<bool> = const { Cell::new(false) };
}

// SAFETY: every call is passed on to the system's allocator unchanged; counting touches only a thread's own cells, which
// need no allocation themselves.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + u64::from(!PAUSED.get()));
        // SAFETY: the caller's promise about `layout` is what the system's allocator asks for.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the pointer came from `alloc` above, which is the system's, with this layout.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// A model whose allocations do not count.
struct Quiet(InProcess);

#[derive(Clone)]
struct QuietRegisters(Handle);

fn paused<T>(act: impl FnOnce() -> T) -> T {
    PAUSED.set(true);
    let result = act();
    PAUSED.set(false);
    result
}

impl Registers for QuietRegisters {
    fn read32(&self, offset: u32) -> u32 {
        paused(|| self.0.read32(offset))
    }

    fn write32(&self, offset: u32, value: u32) {
        paused(|| self.0.write32(offset, value));
    }
}

impl Function for Quiet {
    type Registers = QuietRegisters;

    fn name(&self) -> &str {
        self.0.name()
    }

    fn registers(&self) -> QuietRegisters {
        QuietRegisters(self.0.registers())
    }

    fn read_config(&mut self, offset: u64, to: &mut [u8]) -> Result<(), FunctionError> {
        self.0.read_config(offset, to)
    }

    fn write_config(&mut self, offset: u64, from: &[u8]) -> Result<(), FunctionError> {
        self.0.write_config(offset, from)
    }

    fn map(&mut self, memory: &DmaMemory<'_>) -> Result<DeviceAddresses, FunctionError> {
        self.0.map(memory)
    }

    fn unmap(&mut self, address: u64) -> Result<(), FunctionError> {
        self.0.unmap(address)
    }

    fn interrupts(&mut self, count: u16) -> Result<Vec<OwnedFd>, FunctionError> {
        self.0.interrupts(count)
    }

    fn reset(&mut self) -> Result<(), FunctionError> {
        self.0.reset()
    }
}

#[test]
fn nothing_is_allocated_for_a_packet() {
    let world = world(1);
    let (arena, mut pool) = memory(4096);
    let settings = ixgbe::Settings { loopback: true, ..quiet() };
    let function = Quiet(InProcess::new(&world, 0));
    let mut port = ixgbe::open(function, PortName::Null, &settings, arena).unwrap();
    port.wait_for_link(PATIENCE).unwrap();
    let queue = port.queues().remove(0);
    let (mut rx, mut tx) = (queue.rx.unwrap(), queue.tx.unwrap());
    // Whole, in several frames, with a tag to put in, and with a checksum to finish.
    let mut batch = Batch::new();
    for len in [60, 1514, 5000, 9000].into_iter().chain([60; 28]) {
        let mut bytes = vec![0x45; len];
        bytes[12..14].copy_from_slice(&[8, 0]);
        batch.push(packet(&bytes, 2048, &mut pool));
    }
    batch.iter_mut().nth(1).unwrap().offload.set_vlan(Some(7));
    let mut received = Batch::new();
    rx.rx(&mut pool, &mut received);
    let mut round = |batch: &mut Batch, received: &mut Batch| {
        batch.iter_mut().for_each(|packet: &mut Packet| {
            packet.offload.set_checksum(Checksum::Partial { start: 34, offset: 6 });
        });
        tx.tx(&mut pool, batch);
        tx.flush(&mut pool);
        rx.rx(&mut pool, received);
        assert_eq!((received.len(), batch.len()), (32, 0));
        std::mem::swap(batch, received);
    };
    // The first rounds make boxes for chains.
    (0..100).for_each(|_| round(&mut batch, &mut received));
    let before = ALLOCATIONS.get();
    (0..10_000).for_each(|_| round(&mut batch, &mut received));
    assert_eq!(ALLOCATIONS.get() - before, 0);
    pool.give_batch(&mut batch);
    tx.close(&mut pool);
    rx.close(&mut pool);
    Box::new(port).close().unwrap();
}
