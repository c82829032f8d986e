//! What a NIC model sees of the world: memory to read and write, interrupts to raise, a wire to send on. A model does no
//! I/O of its own, so that the same steps always have the same result.

/// Memory that the NIC reaches by DMA, by addresses of its own (I/O virtual addresses).
pub trait Memory {
    /// Copies bytes out of memory.
    ///
    /// # Errors
    /// When not all of them are mapped for reading.
    fn read(&self, address: u64, to: &mut [u8]) -> Result<(), NotMapped>;

    /// Says that the bytes at an address will be read soon.
    fn prefetch(&self, _address: u64) {}

    /// Copies bytes into memory.
    ///
    /// # Errors
    /// When not all of them are mapped for writing.
    fn write(&mut self, address: u64, from: &[u8]) -> Result<(), NotMapped>;

    /// Writes sixteen bytes, the last eight after the first, and both after everything written before: a descriptor that
    /// says it is done.
    ///
    /// # Errors
    /// As [`Memory::write`].
    fn publish(&mut self, address: u64, from: &[u8; 16]) -> Result<(), NotMapped> {
        self.write(address, from)
    }
}

/// An address that nothing is mapped at, or not for this.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{bytes} bytes at {address:#x} are not mapped")]
pub struct NotMapped {
    /// The address.
    pub address: u64,
    /// How many bytes were to be copied.
    pub bytes: usize,
}

/// Where interrupts go.
pub trait Interrupts {
    /// Sends the message of MSI-X vector `vector`.
    fn raise(&mut self, vector: u16);
}

/// Where frames go, without their check sequence.
pub trait Wire {
    /// Sends a frame.
    fn send(&mut self, frame: Vec<u8>);
}

/// All three.
#[expect(missing_debug_implementations, reason = "three trait objects")]
pub struct Host<'a> {
    /// Memory.
    pub memory: &'a mut dyn Memory,
    /// Interrupts.
    pub interrupts: &'a mut dyn Interrupts,
    /// The wire.
    pub wire: &'a mut dyn Wire,
}

/// Frames wait in a list.
impl Wire for Vec<Vec<u8>> {
    fn send(&mut self, frame: Vec<u8>) {
        self.push(frame);
    }
}

/// Vectors wait in a list.
impl Interrupts for Vec<u16> {
    fn raise(&mut self, vector: u16) {
        self.push(vector);
    }
}

/// Memory of a test: bytes from an address on, all mapped.
#[derive(Clone, Debug, Default)]
pub struct FlatMemory {
    /// Address of the first byte.
    pub base: u64,
    /// The bytes.
    pub bytes: Vec<u8>,
}

impl FlatMemory {
    fn range(&self, address: u64, bytes: usize) -> Result<std::ops::Range<usize>, NotMapped> {
        let start = address.checked_sub(self.base).and_then(|start| usize::try_from(start).ok());
        start
            .and_then(|start| Some(start..start.checked_add(bytes)?))
            .filter(|range| range.end <= self.bytes.len())
            .ok_or(NotMapped { address, bytes })
    }
}

impl Memory for FlatMemory {
    fn read(&self, address: u64, to: &mut [u8]) -> Result<(), NotMapped> {
        to.copy_from_slice(&self.bytes[self.range(address, to.len())?]);
        Ok(())
    }

    fn write(&mut self, address: u64, from: &[u8]) -> Result<(), NotMapped> {
        let range = self.range(address, from.len())?;
        self.bytes[range].copy_from_slice(from);
        Ok(())
    }
}
