//! What registers and descriptors mean: PCI, ixgbe, igb. Each fact stands once, in a table.
//!
//! Drivers and device models use the same tables and nothing else of each other. What sharing them could hide, a wrong
//! offset that both agree on, is caught by `tests/`: the tables are compared with a second transcription that was made
//! from other sources.
#![forbid(unsafe_code)]

pub mod igb;
pub mod ixgbe;
pub mod pci;
pub mod reg;
