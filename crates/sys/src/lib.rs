//! What Linux and shared memory give us.
//!
//! The only crate that talks to the kernel by raw system calls and the only one, beside `frame`'s arena, with `unsafe`:
//! what it hands out is safe to use.

pub mod clock;
pub mod signals;
pub mod worker;
