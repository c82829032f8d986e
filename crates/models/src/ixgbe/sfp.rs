//! The SFP+ module behind I2CCTL: an I2C memory at address 0xa0, clocked bit by bit by software (SFF-8472).

use bywash_hw::ixgbe::regs::I2CCTL;

/// The module's address, as the first byte after a start says it; bit 0 says read.
const ADDRESS: u8 = 0xa0;

/// A short-range 10 Gb/s module of Intel's, so that no driver calls it unsupported.
fn memory() -> [u8; 256] {
    let mut bytes = [0; 256];
    bytes[0] = 0x03; // identifier: SFP
    bytes[3] = 0x10; // 10GBASE-SR
    bytes[20..36].copy_from_slice(b"Intel Corp      ");
    bytes[37..40].copy_from_slice(&[0x00, 0x1b, 0x21]);
    bytes[40..56].copy_from_slice(b"BYWASH-SR       ");
    bytes
}

/// What the next bits on the bus are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Nothing until a start.
    Idle,
    /// The device's address.
    Select,
    /// The memory's address.
    Offset,
    /// Bytes to write, which are ignored.
    Write,
    /// Bytes that are read.
    Read,
}

/// The module, and the bus as it was last seen.
#[derive(Clone, Debug)]
pub(super) struct Module {
    memory: [u8; 256],
    phase: Phase,
    clock: bool,
    data: bool,
    /// Bits of the byte so far; the ninth is the acknowledgment.
    bits: u8,
    byte: u8,
    offset: u8,
    /// What the module lets the data line be: low, or open.
    open: bool,
}

impl Module {
    pub(super) fn new() -> Self {
        let (clock, data) = (true, true);
        Self { memory: memory(), phase: Phase::Idle, clock, data, bits: 0, byte: 0, offset: 0, open: true }
    }

    /// What I2CCTL reads as after software wrote its two outputs.
    pub(super) fn pins(&mut self, i2cctl: u32) -> u32 {
        let (clock, data) = (I2CCTL::CLK_OUT.is_set(i2cctl), I2CCTL::DATA_OUT.is_set(i2cctl));
        if self.clock && clock && self.data != data {
            // Data that changes while the clock is high: falling is a start, rising a stop.
            self.phase = if data { Phase::Idle } else { Phase::Select };
            (self.bits, self.byte, self.open) = (0, 0, true);
        } else if clock && !self.clock {
            self.rise(data);
        } else if !clock && self.clock {
            self.fall();
        }
        (self.clock, self.data) = (clock, data);
        let i2cctl = I2CCTL::CLK_IN.put(i2cctl, u32::from(clock));
        I2CCTL::DATA_IN.put(i2cctl, u32::from(data && self.open))
    }

    /// The clock rises: a bit is valid.
    fn rise(&mut self, data: bool) {
        if self.phase == Phase::Idle {
            return;
        }
        self.bits += 1;
        match (self.phase, self.bits) {
            (Phase::Read, 9) if data => self.phase = Phase::Idle,
            (Phase::Read, _) => {}
            (_, 1..=8) => self.byte = self.byte << 1 | u8::from(data),
            _ => {}
        }
    }

    /// The clock falls: the data line may change.
    fn fall(&mut self) {
        self.open = true;
        match (self.phase, self.bits) {
            (Phase::Idle, _) => {}
            (Phase::Read, 9) => {
                self.bits = 0;
                self.offset = self.offset.wrapping_add(1);
                self.show();
            }
            (Phase::Read, _) => self.show(),
            (_, 8) => self.open = !(self.phase != Phase::Select || self.byte & 0xfe == ADDRESS),
            (_, 9) => self.next(),
            _ => {}
        }
    }

    /// A byte was taken and acknowledged.
    fn next(&mut self) {
        self.phase = match self.phase {
            Phase::Select if self.byte == ADDRESS => Phase::Offset,
            Phase::Select if self.byte == ADDRESS | 1 => Phase::Read,
            Phase::Offset => {
                self.offset = self.byte;
                Phase::Write
            }
            Phase::Write => Phase::Write,
            Phase::Select | Phase::Idle | Phase::Read => Phase::Idle,
        };
        (self.bits, self.byte) = (0, 0);
        if self.phase == Phase::Read {
            self.show();
        }
    }

    /// Puts the next bit of the byte on the line; in the ninth bit's place the line is the reader's.
    fn show(&mut self) {
        self.open = self.bits >= 8 || self.memory[usize::from(self.offset)] >> (7 - self.bits) & 1 != 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Bus(Module);

    impl Bus {
        fn set(&mut self, clock: u32, data: u32) -> u32 {
            let word = self.0.pins(I2CCTL::CLK_OUT.with(clock) | I2CCTL::DATA_OUT.with(data));
            I2CCTL::DATA_IN.of(word)
        }

        fn start(&mut self) {
            self.set(0, 1);
            self.set(1, 1);
            self.set(1, 0);
            self.set(0, 0);
        }

        fn bit(&mut self, data: u32) -> u32 {
            self.set(0, data);
            let seen = self.set(1, data);
            self.set(0, data);
            seen
        }

        /// Writes a byte; true when it was acknowledged.
        fn write(&mut self, byte: u32) -> bool {
            for bit in (0..8).rev() {
                self.bit(byte >> bit & 1);
            }
            self.bit(1) == 0
        }

        fn read(&mut self, more: bool) -> u32 {
            let byte = (0..8).fold(0, |byte, _| byte << 1 | self.bit(1));
            self.bit(u32::from(!more));
            byte
        }
    }

    #[test]
    fn bytes_are_read_by_random_and_sequential_reads() {
        let mut bus = Bus(Module::new());
        bus.start();
        assert!(bus.write(0xa0) && bus.write(0));
        bus.start();
        assert!(bus.write(0xa1));
        assert_eq!((bus.read(true), bus.read(true), bus.read(true), bus.read(false)), (3, 0, 0, 0x10));
        bus.start();
        assert!(bus.write(0xa0) && bus.write(39));
        bus.start();
        assert!(bus.write(0xa1));
        assert_eq!(bus.read(false), 0x21);
    }

    #[test]
    fn nobody_answers_at_another_address() {
        let mut bus = Bus(Module::new());
        bus.start();
        assert!(!bus.write(0xa2));
    }
}
