//! The seam between a NIC's driver and how the NIC is reached: one PCI function, be it behind VFIO, behind a socket
//! (vfio-user) or a model in this process.
//!
//! A driver is generic over [`Function`]: registers are reached from every queue's thread, so they are a handle of their
//! own, [`Registers`], that is cheap to clone; what changes the function as a whole needs `&mut`.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;

use crate::memory::HUGE_PAGE;

/// A PCI function that a driver in this process has for itself.
///
/// Dropping it takes the function out of use: no DMA and no interrupt comes after that.
pub trait Function: Send {
    /// How its registers are reached.
    type Registers: Registers;

    /// What the user calls it: `pci:0000:03:00.0`.
    fn name(&self) -> &str;

    /// A handle to the registers in BAR 0.
    fn registers(&self) -> Self::Registers;

    /// Copies bytes of configuration space from `offset` on.
    ///
    /// # Errors
    /// [`FunctionError::Config`].
    fn read_config(&mut self, offset: u64, to: &mut [u8]) -> Result<(), FunctionError>;

    /// Writes bytes of configuration space from `offset` on.
    ///
    /// # Errors
    /// [`FunctionError::Config`].
    fn write_config(&mut self, offset: u64, from: &[u8]) -> Result<(), FunctionError>;

    /// Lets the function read and write `memory`, and returns the addresses that it must use for it. The memory must stay until
    /// [`Function::unmap`] or until the function is dropped.
    ///
    /// # Errors
    /// [`FunctionError::Map`].
    fn map(&mut self, memory: &DmaMemory<'_>) -> Result<DeviceAddresses, FunctionError>;

    /// Takes memory back whose first byte was mapped at `address`. Returns when no access to it is under way.
    ///
    /// # Errors
    /// [`FunctionError::Map`] when nothing was mapped there.
    fn unmap(&mut self, address: u64) -> Result<(), FunctionError>;

    /// Makes MSI-X vectors 0 up to `count` arrive, each at an eventfd of its own, in their order. Vectors of an earlier
    /// call are gone; 0 turns all off. Where a program can have no interrupts of the function there are fewer eventfds, or none:
    /// what has none must be polled.
    ///
    /// # Errors
    /// [`FunctionError::Interrupts`] when there are fewer vectors, or eventfds cannot be made.
    fn interrupts(&mut self, count: u16) -> Result<Vec<OwnedFd>, FunctionError>;

    /// Resets the function (function level reset). Mappings stay, bus mastering and interrupts are off.
    ///
    /// # Errors
    /// [`FunctionError::Reset`].
    fn reset(&mut self) -> Result<(), FunctionError>;
}

/// The registers of a [`Function`]. Clones reach the same ones, from any thread.
pub trait Registers: Clone + Send + Sync + 'static {
    /// Reads the register at `offset`, in bytes, a multiple of four. All ones when the function is gone, as on PCI.
    fn read32(&self, offset: u32) -> u32;

    /// Writes the register at `offset`. The function sees everything that was written to memory before. A write may be
    /// posted: only a read says that it has arrived.
    fn write32(&self, offset: u32, value: u32);
}

/// Memory for a function to read and write: packet memory, or rings.
#[derive(Clone, Copy, Debug)]
pub struct DmaMemory<'a> {
    /// Where it lies in this process; a multiple of the page size.
    pub address: usize,
    /// Bytes; a multiple of the page size.
    pub bytes: usize,
    /// Its file, for those who must map it themselves: a model, another process.
    pub file: BorrowedFd<'a>,
    /// Where in the file it begins.
    pub offset: u64,
}

/// The addresses by which a device reaches memory that it was given. None of its accesses may cross the end of a huge page.
#[derive(Clone, Debug)]
pub enum DeviceAddresses {
    /// They follow each other, as the bytes do: the first one's.
    Linear(u64),
    /// Each huge page lies elsewhere.
    Paged(PageTable),
}

impl DeviceAddresses {
    /// The address of the byte at an offset.
    ///
    /// # Panics
    /// When it is none of the memory's.
    pub fn of(&self, offset: usize) -> u64 {
        match self {
            Self::Linear(first) => first + offset as u64,
            Self::Paged(table) => table.of(offset),
        }
    }

    /// Those of the bytes that lie so many behind, in the same huge page.
    #[must_use]
    pub fn ahead(self, bytes: usize) -> Self {
        match self {
            Self::Linear(first) => Self::Linear(first + bytes as u64),
            Self::Paged(PageTable(pages)) => {
                Self::Paged(PageTable(pages.iter().map(|page| page.wrapping_add(bytes as u64)).collect()))
            }
        }
    }
}

/// What has to be added to an offset, for each huge page: so a hot path needs one addition, as with linear ones.
#[derive(Clone, Debug)]
pub struct PageTable(Arc<[u64]>);

impl PageTable {
    /// From the device's addresses of whole huge pages, in the order of the memory.
    pub fn new(pages: &[u64]) -> Self {
        let from = |(page, offset): (&u64, usize)| page.wrapping_sub(offset as u64);
        Self(pages.iter().zip((0..).step_by(HUGE_PAGE)).map(from).collect())
    }

    /// The address of the byte at an offset.
    ///
    /// # Panics
    /// When it is none of the memory's.
    #[inline]
    pub fn of(&self, offset: usize) -> u64 {
        self.0[offset / HUGE_PAGE].wrapping_add(offset as u64)
    }
}

/// What a [`Function`] could not do.
#[derive(Debug, thiserror::Error)]
pub enum FunctionError {
    /// Configuration space.
    #[error("{function}: configuration space at {offset:#x}: {source}")]
    Config {
        /// Which function.
        function: String,
        /// Where.
        offset: u64,
        /// Why.
        source: io::Error,
    },
    /// Memory.
    #[error("{function}: {bytes} bytes of memory for the device: {source}")]
    Map {
        /// Which function.
        function: String,
        /// How much.
        bytes: usize,
        /// Why.
        source: io::Error,
    },
    /// Interrupts.
    #[error("{function}: {wanted} interrupt vectors: {source}")]
    Interrupts {
        /// Which function.
        function: String,
        /// How many.
        wanted: u16,
        /// Why.
        source: io::Error,
    },
    /// Reset.
    #[error("{function}: reset: {source}")]
    Reset {
        /// Which function.
        function: String,
        /// Why.
        source: io::Error,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_huge_page_has_its_own_address() {
        // The second one lies in front of the first.
        let paged = DeviceAddresses::Paged(PageTable::new(&[0x4000_0000, 0x20_0000]));
        assert_eq!((paged.of(0), paged.of(0x1f_ffff)), (0x4000_0000, 0x401f_ffff));
        assert_eq!((paged.of(HUGE_PAGE), paged.of(HUGE_PAGE + 7)), (0x20_0000, 0x20_0007));
        assert_eq!(paged.ahead(256).of(HUGE_PAGE + 7), 0x20_0107);
        let linear = DeviceAddresses::Linear(1 << 32);
        assert_eq!(
            (linear.of(HUGE_PAGE + 7), linear.ahead(256).of(0)),
            ((1 << 32) + 0x20_0007, (1 << 32) + 256)
        );
    }
}
