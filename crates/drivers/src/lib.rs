//! Every source and sink of packets, as `port` queues.
//!
//! [`open`] turns a name into a port. Each kind has a module of its own, whose first lines say what it copies, what
//! it can lose, and what it needs from the machine.

#![forbid(unsafe_code)]

mod intel;
mod nic;
mod open;
mod virtio;

pub mod igb;
pub mod igbvf;
pub mod ixgbe;
pub mod ixgbevf;
pub mod link;
pub mod loopback;
pub mod null;
pub mod packet;
pub mod pcap;
pub mod registers;
pub mod tap;
pub mod xdp;

pub use bywash_port as port;
pub use nic::{Known, known};
pub use open::{Ntuple, OpenOptions, Opened, RulesInNic, XdpMode, ZeroCopy, memory_for, open};
