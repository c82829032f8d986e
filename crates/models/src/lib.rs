//! NICs in software, for testing drivers without hardware. No part of `bywash`.
//!
//! A model is a plain deterministic library ([`ixgbe::Nic`]): registers in, memory, interrupts and frames out. Drivers in this
//! process reach it through [`function`], guests and other processes through [`server`].
#![forbid(unsafe_code)]

pub mod cable;
pub mod config_space;
pub mod dma;
pub mod doorbells;
pub mod function;
pub mod host;
pub mod ixgbe;
pub mod server;
pub mod world;
