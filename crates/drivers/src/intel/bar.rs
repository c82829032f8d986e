//! Registers by name, and waiting for them: every wait has an end, and an error that names the register.

use std::time::{Duration, Instant};

use bywash_hw::reg::Register;
use bywash_sys::function::Registers;

use super::NicError;

/// Enough for whatever the datasheet promises within microseconds, also where each read is a message to another process.
pub(crate) const SHORT: Duration = Duration::from_millis(20);

/// Offset of STATUS on all of Intel's NICs. It never reads as ones while the device is there.
const STATUS: u32 = 0x8;

/// What is waited for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wait {
    /// Bits that are looked at.
    pub(crate) mask: u32,
    /// What they are to be.
    pub(crate) value: u32,
    /// For how long.
    pub(crate) within: Duration,
    /// What it means when they are not, and what to do.
    pub(crate) meaning: &'static str,
}

impl Wait {
    /// Until all of `mask` is set.
    pub(crate) const fn set(mask: u32, within: Duration, meaning: &'static str) -> Self {
        Self { mask, value: mask, within, meaning }
    }

    /// Until all of `mask` is clear.
    pub(crate) const fn clear(mask: u32, within: Duration, meaning: &'static str) -> Self {
        Self { mask, value: 0, within, meaning }
    }
}

/// A NIC's registers.
#[derive(Clone, Debug)]
pub(crate) struct Bar<R> {
    registers: R,
}

impl<R: Registers> Bar<R> {
    pub(crate) const fn new(registers: R) -> Self {
        Self { registers }
    }

    /// Reads a register.
    pub(crate) fn get(&self, register: &Register) -> u32 {
        self.get_at(register, 0)
    }

    /// Reads instance `index` of an array.
    pub(crate) fn get_at(&self, register: &Register, index: u32) -> u32 {
        self.registers.read32(register.at(index))
    }

    /// Writes a register.
    pub(crate) fn put(&self, register: &Register, value: u32) {
        self.put_at(register, 0, value);
    }

    /// Writes instance `index` of an array.
    pub(crate) fn put_at(&self, register: &Register, index: u32, value: u32) {
        self.registers.write32(register.at(index), value);
    }

    /// Writes the register at an offset: for the hot path, which has looked it up before.
    #[inline]
    pub(crate) fn put_offset(&self, offset: u32, value: u32) {
        self.registers.write32(offset, value);
    }

    /// Writes all instances of an array.
    pub(crate) fn fill(&self, register: &Register, value: u32) {
        (0..register.count()).for_each(|index| self.put_at(register, index, value));
    }

    /// Reads, changes and writes instance `index`: bits of `clear` go, then bits of `set` come.
    pub(crate) fn change_at(&self, register: &Register, index: u32, clear: u32, set: u32) {
        self.put_at(register, index, self.get_at(register, index) & !clear | set);
    }

    /// Reads, changes and writes a register.
    pub(crate) fn change(&self, register: &Register, clear: u32, set: u32) {
        self.change_at(register, 0, clear, set);
    }

    /// Whether the device does not answer any more.
    pub(crate) fn is_gone(&self) -> bool {
        self.registers.read32(STATUS) == u32::MAX
    }

    /// Waits for a register.
    ///
    /// # Errors
    /// [`NicError::Timeout`], or [`NicError::Gone`].
    pub(crate) fn wait(&self, register: &Register, index: u32, wait: Wait) -> Result<u32, NicError> {
        self.wait_offset(register.at(index), (register.name, index), wait)
    }

    /// Waits for the register at an offset, which has this name and number.
    pub(crate) fn wait_offset(
        &self,
        offset: u32,
        (register, index): (&'static str, u32),
        wait: Wait,
    ) -> Result<u32, NicError> {
        let start = Instant::now();
        // Short naps first: most waits end at once, and none of them needs a core.
        let mut nap = Duration::from_micros(10);
        loop {
            let waited = start.elapsed();
            let value = self.registers.read32(offset);
            if value == u32::MAX && self.is_gone() {
                return Err(NicError::Gone);
            }
            if value & wait.mask == wait.value {
                return Ok(value);
            }
            if waited >= wait.within {
                return Err(NicError::Timeout { register, index, value, waited, meaning: wait.meaning });
            }
            std::thread::sleep(nap);
            nap = (nap * 2).min(Duration::from_millis(2));
        }
    }

    /// Until writes so far have arrived: posted ones do when a read is answered.
    pub(crate) fn flush(&self) {
        self.registers.read32(STATUS);
    }
}
