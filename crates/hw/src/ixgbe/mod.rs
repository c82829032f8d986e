//! The 82599 (and, where it is the same, the X540): registers, descriptors, and what its EEPROM holds.

pub mod desc;
pub mod eeprom;
pub mod regs;
pub mod vf;

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
