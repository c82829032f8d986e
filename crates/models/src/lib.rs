//! NICs in software, for testing drivers without hardware. No part of `bywash`.
//!
//! A model is a plain deterministic library ([`ixgbe::Nic`]): registers in, memory, interrupts and frames out.
#![forbid(unsafe_code)]

pub mod host;
pub mod ixgbe;
