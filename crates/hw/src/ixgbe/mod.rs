//! The 82599, and the X540 with what is different in it: registers, descriptors, and what their EEPROM holds.

pub mod desc;
pub mod eeprom;
pub mod phy;
pub mod regs;
pub mod vf;

/// Which of the family it is. What is different is as in `ixgbe_x540.c` of Intel's driver for Linux.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Chip {
    /// The 82599.
    I82599,
    /// The X540: less packet memory, a PHY of its own, the second semaphore in another register (SW_FW_SYNC.REGSMP).
    X540,
}

impl Chip {
    /// The chip with a device id of the family's, physical or virtual function.
    pub const fn of(device: u16) -> Self {
        match device {
            0x1515 | 0x1528 | 0x1560 => Self::X540,
            _ => Self::I82599,
        }
    }

    /// Bytes of memory for received packets, of which the flow director's filters have a part.
    pub const fn receive_memory(self) -> u32 {
        match self {
            Self::I82599 => 512 << 10,
            Self::X540 => 384 << 10,
        }
    }

    /// Whether the EEPROM's checksum covers the section that word `at` points to.
    pub const fn covers_section(self, at: u16) -> bool {
        let first = *eeprom::POINTERS.start() <= at && at <= *eeprom::POINTERS.end();
        first
            && !(matches!(self, Self::X540) && matches!(at, eeprom::PHY_POINTER | eeprom::OPTION_ROM_POINTER))
    }
}

/// Bytes of BAR 0.
pub const BAR_SIZE: u32 = 0x2_0000;
/// Receive queues, and as many transmit queues.
pub const QUEUES: u32 = 128;
/// MSI-X vectors.
pub const VECTORS: u32 = 64;
/// Most descriptors one transmitted packet may take.
pub const MAX_TX_DESCRIPTORS: usize = 40;
/// Descriptor rings begin at a multiple of this, and their lengths are multiples of it, in bytes.
pub const RING_ALIGNMENT: u32 = 128;
/// Most bytes of a frame, its check sequence included (MAXFRS.MFS).
pub const MAX_FRAME: u32 = 15_872;
/// Time in which no register may be touched after a reset, in microseconds.
pub const RESET_QUIET_US: u64 = 1_000;
/// Unit of EITR's interval, in microseconds, at 10 Gb/s and 1 Gb/s.
pub const EITR_UNIT_US: u64 = 2;
