//! Namespaces, veth and tap pairs that we made, and their removal: for the demo and the tests. And QEMU [guests](guest).
//!
//! A [`Host`] is a network namespace of its own; a [`Pair`] is a cable between two of them; a [`Lab`] is a row of
//! hosts with a cable from each to the next; a [`TapPair`] is a cable to the test itself. None of them has a name
//! that anybody else could see: they are held by file descriptors, so the kernel removes them when the process ends,
//! however it ends. Needs no `ip` program.
//!
//! ```
//! # fn main() -> Result<(), bywash_lab::LabError> {
//! use bywash_lab::{Lab, PairOptions};
//!
//! // Without root the test is skipped, with a line that says so.
//! let Some(_guard) = bywash_lab::lock() else { return Ok(()) };
//! let lab = Lab::row(2, &PairOptions { queues: 4, ..PairOptions::default() })?;
//! let name = &lab.pairs[0].far.name;
//! assert!(lab.hosts[1].link(name)?.running);
//! # Ok(())
//! # }
//! ```
//!
//! A test takes [`lock`] first: such tests run one at a time, and when one ends the machine must be as it was.

#![forbid(unsafe_code)]

pub mod guest;
mod host;
mod lock;
mod ours;
mod pair;
mod skip;
mod snapshot;
mod tap;

pub use bywash_sys as sys;

pub use host::{Host, HostOptions, LabError};
pub use lock::{Untouched, lock, lock_then};
pub use pair::{End, Lab, Pair, PairOptions};
pub use skip::{root, skip};
pub use snapshot::Snapshot;
pub use tap::TapPair;
