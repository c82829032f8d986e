//! Packet memory whose huge pages lie anywhere for the NIC, as physical ones do: each packet must be where the driver said.

use std::os::fd::OwnedFd;

use bywash_drivers::ixgbe;
use bywash_drivers::port::PortName;
use bywash_models::function::{Handle, InProcess};
use bywash_sys::function::{DeviceAddresses, DmaMemory, Function, FunctionError, PageTable};
use bywash_sys::memory::HUGE_PAGE;

use crate::bed::{End, PATIENCE, frame, memory, no_violations, packet, quiet, world};

/// A model to which the last huge page comes first. It raises no interrupts.
struct Scattered(InProcess);

impl Function for Scattered {
    type Registers = Handle;

    fn name(&self) -> &str {
        self.0.name()
    }

    fn registers(&self) -> Handle {
        self.0.registers()
    }

    fn read_config(&mut self, offset: u64, to: &mut [u8]) -> Result<(), FunctionError> {
        self.0.read_config(offset, to)
    }

    fn write_config(&mut self, offset: u64, from: &[u8]) -> Result<(), FunctionError> {
        self.0.write_config(offset, from)
    }

    fn map(&mut self, memory: &DmaMemory<'_>) -> Result<DeviceAddresses, FunctionError> {
        let mut map = |at: usize| {
            let bytes = HUGE_PAGE.min(memory.bytes - at);
            let (address, offset) = (memory.address + at, memory.offset + at as u64);
            Ok(self.0.map(&DmaMemory { address, bytes, offset, ..*memory })?.of(0))
        };
        let last_first = (0..memory.bytes).step_by(HUGE_PAGE).rev();
        let mut pages = last_first.map(&mut map).collect::<Result<Vec<_>, FunctionError>>()?;
        pages.reverse();
        Ok(DeviceAddresses::Paged(PageTable::new(&pages)))
    }

    fn unmap(&mut self, address: u64) -> Result<(), FunctionError> {
        self.0.unmap(address)
    }

    fn interrupts(&mut self, _: u16) -> Result<Vec<OwnedFd>, FunctionError> {
        Ok(Vec::new())
    }

    fn reset(&mut self) -> Result<(), FunctionError> {
        self.0.reset()
    }
}

#[test]
fn packets_in_scattered_pages_arrive_and_nobody_sleeps() {
    let world = world(2);
    let (arena, mut pool) = memory(8192);
    let [mut near, mut far] = [0, 1].map(|index| {
        let function = Scattered(InProcess::new(&world, index));
        let mut port = ixgbe::open(function, PortName::Null, &quiet(), arena).unwrap();
        port.wait_for_link(PATIENCE).unwrap();
        End::new(port, &world, index)
    });
    far.receive(0, &mut pool);
    for round in 0..200 {
        // A pool gives back first what came last: those that are held have it give others, of other pages.
        let held: Vec<_> = (0..20 * usize::from(round)).map(|_| pool.take().unwrap()).collect();
        let frames: Vec<_> = [60, 1514, 2048, 2049, 9000].map(|size| frame(round, size)).into();
        let packets: Vec<_> = frames.iter().map(|bytes| packet(bytes, 1000, &mut pool)).collect();
        near.send(packets, &mut pool);
        assert_eq!(far.received(&mut pool), frames);
        pool.give_many(held.into_iter());
    }
    // Without interrupts there is nothing to sleep on, and a worker is told so.
    assert!(far.rx[0].wake_fd().is_none() && !far.rx[0].arm());
    near.close(&mut pool).unwrap();
    far.close(&mut pool).unwrap();
    assert_eq!(pool.free(), 8192);
    no_violations(&world, 2);
}
