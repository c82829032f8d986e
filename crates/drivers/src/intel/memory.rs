//! Memory that a NIC reaches: packets, and all rings in one piece.

use std::os::fd::AsFd;

use bywash_frame::Arena;
use bywash_hw::ixgbe::desc;
use bywash_sys::dma::DmaBuffer;
use bywash_sys::function::{DeviceAddresses, DmaMemory, Function};
use bywash_sys::memory;

use super::{Bar, NicError, RingParts, Switch};

/// Memory that a NIC reaches. It must outlive the NIC's use of it.
#[derive(Debug)]
pub(crate) struct Memory {
    arena: &'static Arena,
    arena_addresses: DeviceAddresses,
    rings: DmaBuffer,
    ring_addresses: DeviceAddresses,
    /// Bytes of one ring.
    ring_bytes: u32,
}

impl Memory {
    /// Packet memory, and two rings of `ring` descriptors for each of `queues` queues.
    pub(crate) fn new<F: Function>(
        function: &mut F,
        arena: &'static Arena,
        queues: u16,
        ring: u32,
    ) -> Result<Self, NicError> {
        let (address, bytes) = (arena.base(), arena.bytes());
        let (file, offset) = memory::file_of(address, bytes).ok_or(NicError::PrivateMemory)?;
        let arena_addresses = function.map(&DmaMemory { address, bytes, file: file.as_fd(), offset })?;
        let ring_bytes = ring as usize * desc::SIZE;
        let rings = DmaBuffer::new(2 * usize::from(queues) * ring_bytes)?;
        let ring_addresses = function.map(&rings.memory())?;
        let ring_bytes = u32::try_from(ring_bytes).unwrap_or(0);
        Ok(Self { arena, arena_addresses, rings, ring_addresses, ring_bytes })
    }

    /// Bytes of one ring.
    pub(crate) fn ring_bytes(&self) -> u32 {
        self.ring_bytes
    }

    /// The device's address of ring number `number`, its low and its high half. A ring's size is a power of two and not that of
    /// a huge page, so that each lies in one.
    pub(crate) fn ring_address(&self, number: u32) -> [u32; 2] {
        let offset = number as usize * self.ring_bytes as usize;
        let [a, b, c, d, e, f, g, h] = self.ring_addresses.of(offset).to_le_bytes();
        [u32::from_le_bytes([a, b, c, d]), u32::from_le_bytes([e, f, g, h])]
    }

    /// What the engine of ring number `number` is made of.
    pub(crate) fn ring<R>(
        &self,
        bar: Bar<R>,
        number: u32,
        tail: u32,
        switch: Switch,
    ) -> Result<RingParts<R>, NicError> {
        let offset = number as usize * self.ring_bytes as usize;
        let count = self.ring_bytes / u32::try_from(desc::SIZE).unwrap_or(1);
        let descriptors = self.rings.descriptors(offset, count).map_err(NicError::Ring)?;
        let (arena, addresses) = (self.arena, self.arena_addresses.clone());
        Ok(RingParts { bar, descriptors, tail, switch, arena, addresses })
    }
}
