//! TCP/IP with no I/O, no clock, no threads.
//!
//! Packets, time and randomness are arguments; the same code runs in tests under a virtual clock, in a worker on any
//! port, and behind sockets. A [`Stack`] belongs to one worker and shares nothing. A [`Control`] owns what all stacks
//! read (interfaces, addresses, routes, neighbours) and answers ARP and ICMP; it publishes [`Snapshot`]s. A [`Host`]
//! is one of each, side by side.
#![forbid(unsafe_code)]

mod address;
mod control;
mod counters;
mod flow;
mod host;
mod interface;
mod ip;
mod outbox;
mod packet;
mod request;
mod routes;
mod slab;
mod snapshot;
mod stack;
mod table;
mod tcp;
mod time;
mod udp;
mod wheel;

pub use address::{Address, Prefix, PrefixError};
pub use bywash_frame as frame;
pub use bywash_wire as wire;
pub use control::{Control, ControlError, NeighbourState};
pub use counters::Counters;
pub use flow::{Flow, Secret};
pub use host::Host;
pub use interface::{Interface, InterfaceId, Medium, Offloads, PortId};
pub use request::{Notice, Request, Unreachable};
pub use routes::Route;
pub use snapshot::Snapshot;
pub use stack::{Event, Stack};
pub use tcp::{CloseReason, CongestionControl, ConnectionId, Limits, ListenerId, State, TcpError, TcpInfo};
pub use time::Timestamp;
pub use udp::{Datagram, UdpError, UdpId};
