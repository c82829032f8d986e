//! The EEPROM: its image, reading by EERD, and the serial chip behind EEC's pins.

use bywash_hw::ixgbe::Chip;
use bywash_hw::ixgbe::eeprom::{self as layout, spi};
use bywash_hw::ixgbe::regs::EEC;

/// Words a section of the image begins at: the firmware's module, its patch module, the SFP list, its one sequence,
/// and what an X540 has besides.
const FIRMWARE: u16 = 0x200;
const PATCH: u16 = 0x210;
const SFP_LIST: u16 = 0x220;
const SFP_SEQUENCE: u16 = 0x240;
const PHY: u16 = 0x250;
const OPTION_ROM: u16 = 0x258;

/// The words. What lies beyond the last one written reads as 0xffff.
#[derive(Clone, Debug)]
pub(super) struct Eeprom {
    words: Vec<u16>,
    spi: Spi,
}

impl Eeprom {
    /// An image with the MAC address `mac`, as a board with an SFP cage has it.
    pub(super) fn new(mac: [u8; 6], fixed_port: bool, chip: Chip) -> Self {
        let mut words = vec![0xffff; 0x280];
        let mut put =
            |at: u16, values: &[u16]| words[usize::from(at)..][..values.len()].copy_from_slice(values);
        put(0, &[0x8000]);
        put(layout::FIRMWARE_POINTER, &[FIRMWARE]);
        put(FIRMWARE + layout::FIRMWARE_PATCH_POINTER, &[PATCH]);
        // Above 5: a part from production.
        put(PATCH + layout::FIRMWARE_VERSION, &[9]);
        put(layout::PBA[0], &[0x4257, 0x0001]);
        if !fixed_port {
            put(layout::SFP_LIST_POINTER, &[SFP_LIST]);
            // Every kind of module has the same start-up sequence; the list ends with 0xffff.
            let kinds: Vec<u16> = (0..13).flat_map(|kind| [kind, SFP_SEQUENCE]).collect();
            put(SFP_LIST + 1, &kinds);
            put(SFP_SEQUENCE + 1, &[0x1234, 0xffff]);
        }
        if chip == Chip::X540 {
            // Neither is covered by the checksum, whatever stands in it.
            put(layout::PHY_POINTER, &[PHY]);
            put(PHY, &[3, 0x1111, 0x2222, 0x3333]);
            put(layout::OPTION_ROM_POINTER, &[OPTION_ROM]);
            put(OPTION_ROM, &[2, 0x4444, 0x5555]);
        }
        put(layout::CAPABILITIES, &[0]);
        put(layout::IMAGE_VERSION[0], &[0x8000, 0x0001]);
        let (pairs, _) = mac.as_chunks::<2>();
        for (i, pair) in (0..).zip(pairs) {
            put(layout::MAC_ADDRESS + i, &[u16::from_le_bytes(*pair)]);
        }
        let mut eeprom = Self { words, spi: Spi::default() };
        eeprom.seal();
        eeprom
    }

    /// Makes the checksum right.
    fn seal(&mut self) {
        self.words[usize::from(layout::CHECKSUM_WORD)] = 0;
        let sum = self.sum();
        self.words[usize::from(layout::CHECKSUM_WORD)] = layout::CHECKSUM_SUM.wrapping_sub(sum);
    }

    /// Sum of the covered words.
    pub(super) fn sum(&self) -> u16 {
        (0..=layout::CHECKSUM_WORD).fold(0, |sum: u16, at| sum.wrapping_add(self.word(at)))
    }

    /// A word.
    pub(super) fn word(&self, at: u16) -> u16 {
        self.words.get(usize::from(at)).copied().unwrap_or(0xffff)
    }

    /// What EEC's pins are after software wrote them: only while granted does the chip see them.
    pub(super) fn pins(&mut self, eec: u32) -> u32 {
        if !EEC::GNT.is_set(eec) {
            return eec;
        }
        let out = self.spi.step(eec, &self.words);
        EEC::DO.put(eec, u32::from(out))
    }
}

/// The serial chip, clocked bit by bit: it takes a bit when the clock rises and shows the next when it falls.
#[derive(Clone, Debug, Default)]
struct Spi {
    clock: bool,
    /// Bits since the chip was selected.
    bits: u32,
    command: u8,
    address: u32,
    out: bool,
}

/// Address bits that follow a command: EEC.ADDR_SIZE says 16.
const ADDRESS_BITS: u32 = 16;

impl Spi {
    fn step(&mut self, eec: u32, words: &[u16]) -> bool {
        // The select line is low when the chip is selected.
        if EEC::CS.is_set(eec) {
            *self = Self { clock: EEC::SK.is_set(eec), ..Self::default() };
            return false;
        }
        let clock = EEC::SK.is_set(eec);
        if clock && !self.clock {
            self.take(EEC::DI.is_set(eec));
        } else if !clock && self.clock {
            self.out = self.show(words);
        }
        self.clock = clock;
        self.out
    }

    fn take(&mut self, bit: bool) {
        if self.bits < 8 {
            self.command = self.command << 1 | u8::from(bit);
        } else if self.bits < 8 + ADDRESS_BITS {
            self.address = self.address << 1 | u32::from(bit);
        }
        self.bits += 1;
    }

    fn show(&self, words: &[u16]) -> bool {
        let Some(bit) = self.bits.checked_sub(8 + ADDRESS_BITS).filter(|_| self.command == spi::READ) else {
            // The status register says ready: all zeros.
            return false;
        };
        // The address counts bytes, the low byte of a word first.
        let byte = self.address as usize + (bit / 8) as usize;
        let word = words.get(byte / 2).copied().unwrap_or(0xffff);
        word.to_le_bytes()[byte % 2] >> (7 - bit % 8) & 1 != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_covered_words_add_up() {
        let eeprom = Eeprom::new([2, 0, 0, 0, 0, 1], false, Chip::I82599);
        assert_eq!(eeprom.sum(), layout::CHECKSUM_SUM);
        assert_eq!(eeprom.word(layout::MAC_ADDRESS), 0x0002);
        assert_eq!(eeprom.word(layout::MAC_ADDRESS + 2), 0x0100);
        // No section that the checksum would cover as well.
        assert!({ layout::POINTERS }.all(|at| eeprom.word(at) == 0xffff));
        let x540 = Eeprom::new([2, 0, 0, 0, 0, 1], true, Chip::X540);
        assert_eq!(x540.sum(), layout::CHECKSUM_SUM);
        let covered = |at: &u16| Chip::X540.covers_section(*at) && x540.word(*at) != 0xffff;
        assert_eq!({ layout::POINTERS }.find(covered), None);
        let version =
            eeprom.word(eeprom.word(FIRMWARE + layout::FIRMWARE_PATCH_POINTER) + layout::FIRMWARE_VERSION);
        assert!(version > 5);
    }

    /// Clocks `bits` out to the chip, high bit first, and returns what it showed before each.
    fn clock(eeprom: &mut Eeprom, value: u32, bits: u32) -> u32 {
        let granted = EEC::GNT.mask | EEC::REQ.mask;
        let mut seen = 0;
        for bit in (0..bits).rev() {
            let data = EEC::DI.with(value >> bit & 1);
            eeprom.pins(granted | data);
            seen = seen << 1 | EEC::DO.of(eeprom.pins(granted | data | EEC::SK.mask));
            eeprom.pins(granted | data);
        }
        seen
    }

    #[test]
    fn a_word_is_read_bit_by_bit() {
        let mut eeprom = Eeprom::new([2, 0x11, 0x22, 0x33, 0x44, 0x55], false, Chip::I82599);
        let granted = EEC::GNT.mask | EEC::REQ.mask;
        eeprom.pins(granted | EEC::CS.mask);
        eeprom.pins(granted);
        clock(&mut eeprom, u32::from(spi::READ), 8);
        clock(&mut eeprom, u32::from(layout::MAC_ADDRESS) * 2, 16);
        assert_eq!(clock(&mut eeprom, 0, 16), 0x0211);
        eeprom.pins(granted | EEC::CS.mask);
        eeprom.pins(granted);
        clock(&mut eeprom, u32::from(spi::READ_STATUS), 8);
        assert_eq!(clock(&mut eeprom, 0, 8), 0);
    }
}
