//! A modelled NIC in this process, as drivers see a NIC: [`bywash_sys::function::Function`].

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;

use bywash_hw::ixgbe::VECTORS;
use bywash_sys::function::{DeviceAddresses, DmaMemory, Function, FunctionError, Registers};
use rustix::event::{EventfdFlags, eventfd};

use crate::world::Shared;

/// A device of a world.
#[derive(Debug)]
pub struct InProcess {
    name: String,
    registers: Handle,
    /// Where the next memory is mapped.
    next: u64,
}

/// Its registers.
#[derive(Clone, Debug)]
pub struct Handle {
    world: Shared,
    index: usize,
}

/// Addresses that devices are given begin here: no address of this process's is one by accident.
const FIRST_ADDRESS: u64 = 1 << 32;

impl InProcess {
    /// Device `index` of a world.
    pub fn new(world: &Shared, index: usize) -> Self {
        let registers = Handle { world: world.clone(), index };
        Self { name: format!("model:{index}"), registers, next: FIRST_ADDRESS }
    }
}

impl Registers for Handle {
    fn read32(&self, offset: u32) -> u32 {
        self.world.with(self.index, |device| device.nic.read32(offset))
    }

    fn write32(&self, offset: u32, value: u32) {
        self.world.with(self.index, |device| device.nic.write32(offset, value));
    }
}

impl Function for InProcess {
    type Registers = Handle;

    fn name(&self) -> &str {
        &self.name
    }

    fn registers(&self) -> Handle {
        self.registers.clone()
    }

    fn read_config(&mut self, offset: u64, to: &mut [u8]) -> Result<(), FunctionError> {
        let Handle { world, index } = &self.registers;
        let result = world.with(*index, |device| device.read_config(offset, to));
        result.map_err(|source| FunctionError::Config { function: self.name.clone(), offset, source })
    }

    fn write_config(&mut self, offset: u64, from: &[u8]) -> Result<(), FunctionError> {
        let Handle { world, index } = &self.registers;
        let result = world.with(*index, |device| device.write_config(offset, from));
        result.map_err(|source| FunctionError::Config { function: self.name.clone(), offset, source })
    }

    fn map(&mut self, memory: &DmaMemory<'_>) -> Result<DeviceAddresses, FunctionError> {
        let (address, bytes) = (self.next, memory.bytes as u64);
        let Handle { world, index } = &self.registers;
        let file = Some((memory.file, memory.offset));
        world.with(*index, |device| device.maps.map(address, bytes, file, (true, true))).map_err(
            |source| FunctionError::Map { function: self.name.clone(), bytes: memory.bytes, source },
        )?;
        self.next += bytes.next_multiple_of(2 << 20);
        Ok(DeviceAddresses::Linear(address))
    }

    fn unmap(&mut self, address: u64) -> Result<(), FunctionError> {
        let Handle { world, index } = &self.registers;
        let result = world.with(*index, |device| {
            let bytes = device.maps.bytes_at(address).ok_or(io::ErrorKind::NotFound)?;
            device.maps.unmap(address, bytes)
        });
        result.map_err(|source| FunctionError::Map { function: self.name.clone(), bytes: 0, source })
    }

    fn interrupts(&mut self, count: u16) -> Result<Vec<OwnedFd>, FunctionError> {
        let failed =
            |source| FunctionError::Interrupts { function: self.name.clone(), wanted: count, source };
        if u32::from(count) > VECTORS {
            return Err(failed(io::Error::other(format!("the device has {VECTORS}"))));
        }
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let made: io::Result<Vec<OwnedFd>> = (0..count).map(|_| Ok(eventfd(0, flags)?)).collect();
        let ours = made.map_err(&failed)?;
        let theirs: io::Result<Vec<File>> = ours.iter().map(|fd| Ok(File::from(fd.try_clone()?))).collect();
        let theirs = theirs.map_err(&failed)?;
        let Handle { world, index } = &self.registers;
        let set = world.with(*index, |device| {
            device.vectors.clear();
            device.vectors.set(0, theirs)
        });
        set.map_err(failed)?;
        Ok(ours)
    }

    fn reset(&mut self) -> Result<(), FunctionError> {
        self.registers.world.with(self.registers.index, |device| {
            device.reset();
            device.vectors.clear();
        });
        Ok(())
    }
}

impl Drop for InProcess {
    fn drop(&mut self) {
        self.registers.world.with(self.registers.index, |device| {
            device.reset();
            device.vectors.clear();
            device.maps.clear();
        });
    }
}
