//! The 82576: registers. Its advanced descriptors are the 82599's, see [`crate::ixgbe::desc`].

pub mod regs;

/// Bytes of BAR 0.
pub const BAR_SIZE: u32 = 0x2_0000;
/// Receive queues, and as many transmit queues.
pub const QUEUES: u32 = 16;
/// MSI-X vectors.
pub const VECTORS: u32 = 25;
/// Virtual functions.
pub const POOLS: u32 = 8;
