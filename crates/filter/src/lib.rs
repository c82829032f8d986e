//! What a packet filter expression means: parser, matcher, eBPF generator.
//!
//! Expressions are tcpdump's, and they mean what tcpdump's mean on Ethernet (pcap-filter(7)):
//!
//! ```
//! use bywash_filter::Expression;
//!
//! let expression: Expression = "tcp dst port 443 and not net 10.0.0.0/8".parse()?;
//! assert!(!expression.matches(&[0; 60]));
//! # Ok::<(), bywash_filter::ParseError>(())
//! ```
//!
//! ```text
//!     text ──► language ──► meaning ──► graph ──► matcher      in this process
//!                                         └─────► ebpf ──► xdp   in the kernel
//! ```
//!
//! Packets begin with their Ethernet header. VLAN tags are looked for in the packet, not beside it: who takes packets
//! from the kernel with tags stripped off must put them back first.
#![forbid(unsafe_code)]

pub mod ebpf;
mod expression;
mod formula;
mod graph;
mod language;
mod matcher;
mod meaning;
mod walk;
pub mod xdp;

pub use bywash_wire as wire;
pub use expression::{Expression, Options};
pub use language::ParseError;
pub use meaning::{Names, NoNames, SystemNames};
