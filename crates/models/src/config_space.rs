//! Configuration space of a modelled NIC: ids, BARs, and the capabilities that drivers look for.

use bywash_hw::pci::{self, capability, command, config};

use crate::ixgbe::Board;

/// Bytes of it, the extended part included, which is empty.
pub const SIZE: usize = 4096;

const POWER: usize = 0x40;
const MSIX: usize = 0x70;
const EXPRESS: usize = 0xa0;

/// Type bits of a BAR: memory, 64 bits, prefetchable.
const BAR_TYPE: u8 = 0xc;

/// What a write asks of the device besides holding a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Nothing.
    None,
    /// Bus mastering may have changed.
    Command,
    /// Function level reset.
    Reset,
}

/// The bytes, and which bits software may change.
#[derive(Clone, Debug)]
pub struct ConfigSpace {
    bytes: Vec<u8>,
    writable: Vec<u8>,
}

impl ConfigSpace {
    /// Configuration space of a network controller.
    pub fn new(board: &Board) -> Self {
        let device = board.device;
        let mut space = Self { bytes: vec![0; SIZE], writable: vec![0; SIZE] };
        let put = |space: &mut Self, at: usize, bytes: &[u8]| {
            space.bytes[at..at + bytes.len()].copy_from_slice(bytes);
        };
        put(&mut space, 0, &[pci::INTEL.to_le_bytes(), device.to_le_bytes()].concat());
        put(&mut space, place(config::STATUS), &[0x10, 0]);
        put(&mut space, place(config::REVISION), &[1, 0, 0, 2]);
        put(&mut space, place(config::BAR0), &[BAR_TYPE]);
        put(&mut space, place(config::BAR0) + 16, &[BAR_TYPE]);
        put(&mut space, place(config::SUBSYSTEM_VENDOR), &[0x86, 0x80, 0x03, 0]);
        put(&mut space, place(config::CAPABILITIES), &[0x40]);
        put(&mut space, POWER, &[capability::POWER, 0x70, 0x03, 0]);
        let last = (board.vectors() - 1).to_le_bytes();
        // Table in BAR 4 from its start, pending bits from 0x2000.
        put(&mut space, MSIX, &[capability::MSIX, 0xa0, last[0], last[1], 4, 0, 0, 0, 4, 0x20, 0, 0]);
        // Version 2, an endpoint that knows function level reset; eight lanes of 5 GT/s, here and at most.
        put(
            &mut space,
            EXPRESS,
            &[capability::EXPRESS, 0, 0x02, 0, 0xc2, 0x8f, 0, 0x10, 0x10, 0x28, 0, 0, 0x82, 0x04],
        );
        put(&mut space, EXPRESS + 0x12, &[0x82, 0]);
        let [_, size, page, ..] = (!(board.bar_size() - 1)).to_le_bytes();
        let writable: [(usize, &[u8]); 7] = [
            (place(config::COMMAND), &[0x46, 0x05]),
            (place(config::BAR0), &[0, size, page, 0xff, 0xff, 0xff, 0xff, 0xff]),
            (place(config::BAR0) + 16, &[0, 0xc0, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff]),
            (place(config::INTERRUPT_LINE), &[0xff]),
            (POWER + 4, &[0x03, 0x01]),
            (MSIX + 2, &[0, 0xc0]),
            (EXPRESS + 8, &[0xff, 0x7f]),
        ];
        for (at, mask) in writable {
            space.writable[at..at + mask.len()].copy_from_slice(mask);
        }
        space
    }

    /// Copies bytes out. False when they do not lie in it.
    pub fn read(&self, offset: u64, to: &mut [u8]) -> bool {
        let from = usize::try_from(offset).ok().and_then(|at| self.bytes.get(at..at.checked_add(to.len())?));
        from.inspect(|from| to.copy_from_slice(from)).is_some()
    }

    /// Writes bytes, as far as they may be written. `None` when they do not lie in it.
    pub fn write(&mut self, offset: u64, from: &[u8]) -> Option<Effect> {
        let at = usize::try_from(offset)
            .ok()
            .filter(|at| at.checked_add(from.len()).is_some_and(|end| end <= SIZE))?;
        let mut effect = Effect::None;
        for (at, byte) in (at..).zip(from) {
            let mask = self.writable[at];
            self.bytes[at] = self.bytes[at] & !mask | byte & mask;
            if at == EXPRESS + place(pci::EXPRESS_DEVICE_CONTROL) + 1 && byte & 0x80 != 0 {
                effect = Effect::Reset;
            } else if at == place(config::COMMAND) && effect == Effect::None {
                effect = Effect::Command;
            }
        }
        Some(effect)
    }

    /// Whether bus mastering is on.
    pub fn bus_master(&self) -> bool {
        let at = place(config::COMMAND);
        u16::from_le_bytes([self.bytes[at], self.bytes[at + 1]]) & command::BUS_MASTER != 0
    }
}

fn place(offset: u64) -> usize {
    usize::try_from(offset).unwrap_or(SIZE - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_fixed_and_bars_show_their_size() {
        let mut space = ConfigSpace::new(&Board::default());
        space.write(0, &[0; 4]).unwrap();
        space.write(config::BAR0, &[0xff; 4]).unwrap();
        let mut bytes = [0; 4];
        assert!(space.read(0, &mut bytes));
        assert_eq!(bytes, [0x86, 0x80, 0xfb, 0x10]);
        assert!(space.read(config::BAR0, &mut bytes));
        assert_eq!(u32::from_le_bytes(bytes), 0xfffe_000c);
        assert!(!space.read(SIZE as u64 - 2, &mut bytes));
        assert_eq!(space.write(u64::MAX, &[0]), None);
    }

    #[test]
    fn the_list_of_capabilities_ends() {
        let space = ConfigSpace::new(&Board::default());
        let mut at = space.bytes[0x34];
        let mut seen = Vec::new();
        while at != 0 && seen.len() < 10 {
            seen.push(space.bytes[usize::from(at)]);
            at = space.bytes[usize::from(at) + 1];
        }
        assert_eq!(seen, [capability::POWER, capability::MSIX, capability::EXPRESS]);
    }

    #[test]
    fn bus_mastering_and_function_level_reset_are_noticed() {
        let mut space = ConfigSpace::new(&Board::default());
        assert_eq!(space.write(config::COMMAND, &[0x06, 0]), Some(Effect::Command));
        assert!(space.bus_master());
        assert_eq!(space.write(0xa8, &[0, 0x80]), Some(Effect::Reset));
        let mut bytes = [0; 2];
        assert!(space.read(0xa8, &mut bytes));
        assert_eq!(bytes[1] & 0x80, 0);
    }
}
