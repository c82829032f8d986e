//! The register file: one word for each register of the table, found by any of its addresses in one step.

use std::sync::OnceLock;

use bywash_hw::ixgbe::{BAR_SIZE, regs};
use bywash_hw::reg::{Access, Register};

/// A register and the number of its instance.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    pub(super) register: &'static Register,
    pub(super) index: u32,
}

/// Which register each word of the BAR is; aliases included.
fn places() -> &'static [Option<Place>] {
    static PLACES: OnceLock<Vec<Option<Place>>> = OnceLock::new();
    PLACES.get_or_init(|| {
        let mut places = vec![None; (BAR_SIZE / 4) as usize];
        for register in regs::TABLE {
            for index in 0..register.count() {
                places[(register.at(index) / 4) as usize] = Some(Place { register, index });
            }
            for alias in register.aliases {
                for index in 0..alias.count {
                    places[((alias.offset + index * alias.stride) / 4) as usize] =
                        Some(Place { register, index });
                }
            }
        }
        places
    })
}

/// The register at an offset.
pub(super) fn place(offset: u32) -> Option<Place> {
    if !offset.is_multiple_of(4) {
        return None;
    }
    *places().get((offset / 4) as usize)?
}

/// Values of all registers.
#[derive(Clone, Debug)]
pub(super) struct File {
    // An array, so that the place of a register that is known needs no check.
    words: Box<[u32; WORDS]>,
}

/// Words of the BAR.
const WORDS: usize = (BAR_SIZE / 4) as usize;

impl File {
    /// All as after a reset.
    pub(super) fn new() -> Self {
        let mut file = Self { words: Box::new([0; WORDS]) };
        for register in regs::TABLE {
            for index in 0..register.count() {
                file.words[(register.at(index) / 4) as usize] = register.reset.unwrap_or(0);
            }
        }
        file
    }

    /// A register's value.
    #[inline]
    pub(super) fn get(&self, register: &Register, index: u32) -> u32 {
        self.words[(register.at(index) / 4) as usize]
    }

    /// Value of a register that is no array.
    #[inline]
    pub(super) fn one(&self, register: &Register) -> u32 {
        self.words[(register.offset() / 4) as usize]
    }

    /// Value of the register whose first address is `offset`.
    #[inline]
    pub(super) fn word(&self, offset: u32) -> u32 {
        self.words[(offset / 4) as usize]
    }

    /// Changes a register as the device itself does, read-only bits too.
    #[inline]
    pub(super) fn set(&mut self, register: &Register, index: u32, value: u32) {
        self.words[(register.at(index) / 4) as usize] = value;
    }

    /// Changes a register that is no array as the device itself does.
    #[inline]
    pub(super) fn put(&mut self, register: &Register, value: u32) {
        self.set(register, 0, value);
    }

    /// What a driver's write leaves in a plain register: only its writable bits change. Returns what it is now.
    pub(super) fn write(&mut self, place: Place, value: u32) -> u32 {
        let mask = place.register.writable;
        let new = self.get(place.register, place.index) & !mask | value & mask;
        self.set(place.register, place.index, new);
        new
    }

    /// What a driver's read sees of a plain register: counters are cleared.
    pub(super) fn read(&mut self, place: Place) -> u32 {
        let value = self.get(place.register, place.index);
        match place.register.access {
            Access::RC => self.set(place.register, place.index, 0),
            Access::WO => return 0,
            Access::RO | Access::RW | Access::W1C => {}
        }
        value
    }

    /// Adds to a 32-bit counter, which sticks at its end.
    #[inline]
    pub(super) fn count(&mut self, register: &Register, index: u32, by: u32) {
        self.set(register, index, self.get(register, index).saturating_add(by));
    }

    /// Adds to a 36-bit counter in two registers, which sticks at its end.
    #[inline]
    pub(super) fn count_36(&mut self, low: &Register, high: &Register, index: u32, by: u32) {
        let word = &mut self.words[(low.at(index) / 4) as usize];
        match word.checked_add(by) {
            Some(sum) => *word = sum,
            None => self.carry_36(low, high, index, by),
        }
    }

    /// As [`File::count_36`], when the upper register changes or the counter ends.
    #[cold]
    fn carry_36(&mut self, low: &Register, high: &Register, index: u32, by: u32) {
        let now = u64::from(self.get(low, index)) | u64::from(self.get(high, index)) << 32;
        let sum = (now + u64::from(by)).min((1 << 36) - 1);
        self.set(low, index, u32::try_from(sum & 0xffff_ffff).unwrap_or(u32::MAX));
        self.set(high, index, u32::try_from(sum >> 32).unwrap_or(0xf));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_36_bit_counter_carries_and_sticks_at_its_end() {
        let mut file = File::new();
        let (low, high) = (&regs::GORCL, &regs::GORCH);
        file.put(low, u32::MAX - 9);
        file.count_36(low, high, 0, 9);
        assert_eq!((file.one(low), file.one(high)), (u32::MAX, 0));
        file.count_36(low, high, 0, 64);
        assert_eq!((file.one(low), file.one(high)), (63, 1));
        file.put(low, u32::MAX - 9);
        file.put(high, 0xf);
        for _ in 0..2 {
            file.count_36(low, high, 0, 64);
            assert_eq!((file.one(low), file.one(high)), (u32::MAX, 0xf));
        }
    }
}
