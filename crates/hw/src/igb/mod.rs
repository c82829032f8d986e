//! The 82576: registers. Its advanced descriptors are the 82599's, see [`crate::ixgbe::desc`], but for [some of what they
//! say](rx) of packets received.

pub mod regs;
pub mod rx;
pub mod vf;

/// Bytes of BAR 0.
pub const BAR_SIZE: u32 = 0x2_0000;
/// Receive queues, and as many transmit queues.
pub const QUEUES: u32 = 16;
/// MSI-X vectors, of the physical function and all virtual ones.
pub const VECTORS: u32 = 25;
/// Most bytes of a frame, its check sequence included (RLPML's value after a reset).
pub const MAX_FRAME: u32 = 0x2600;
/// Virtual functions.
pub const POOLS: u32 = 8;
