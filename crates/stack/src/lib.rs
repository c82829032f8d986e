//! TCP/IP with no I/O, no clock, no threads.
//!
//! Packets, time and randomness are arguments; the same code runs in tests under a virtual clock, in a worker on any
//! port, and behind sockets. A [`Stack`] belongs to one worker and shares nothing. A [`Control`] owns what all stacks
//! read (interfaces, addresses, routes, neighbours) and answers ARP and ICMP; it publishes [`Snapshot`]s. A [`Host`]
//! is one of each, side by side.
//!
//! A program lives on the worker: it takes events, does its part, and lets the host send. An echo server, with its
//! client on the same host so that no port is needed:
//!
//! ```
//! use bywash_stack::{Event, Host, Timestamp, frame::Arena};
//! use std::net::Ipv4Addr;
//!
//! let mut pool = Arena::new(vec![0; 1 << 20])?.pool(256)?;
//! let mut host = Host::new([7; 16], &mut pool); // random bytes in earnest
//! let mut now = Timestamp::ZERO; // the worker's clock in earnest
//! let listener = host.stack.listen(None, 7, 128)?;
//! let to = (Ipv4Addr::LOCALHOST.into(), 7);
//! let client = host.stack.connect(now, (None, 0), to, &mut pool)?;
//! let mut answer = [0; 5];
//! while answer != *b"hello" {
//!     // In earnest: host.receive(now, port, &mut batch, &mut pool) for what came in.
//!     now = now + std::time::Duration::from_millis(1);
//!     for event in host.stack.events().collect::<Vec<_>>() {
//!         match event {
//!             Event::Accepted { listener: of, .. } => assert_eq!(of, listener),
//!             Event::Connected(id) => {
//!                 host.stack.send(now, id, b"hello", &mut pool)?;
//!             }
//!             Event::Readable(id) if id == client => {
//!                 host.stack.receive_copy(now, id, &mut answer, &mut pool)?;
//!             }
//!             Event::Readable(id) => {
//!                 host.stack.pass(now, id, id, &mut pool)?;
//!             }
//!             Event::PeerClosed(id) | Event::Closed(id, _) => host.stack.close(now, id, &mut pool)?,
//!             _ => {}
//!         }
//!     }
//!     host.advance(now, &mut pool);
//!     // In earnest: host.transmit(port, &mut batch), then sleep until host.next_deadline().
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! An idle connection takes 1344 bytes (each segment needs eleven cache lines of it: RFC 9293's state and variables, both windows,
//! the timeout and the next deadlines are two of them; times, measurements, buffers and the way to the peer are the others), a
//! handshake under way 88, an entry in TIME-WAIT 96, and 11 to 22 bytes of hash table each; payload is held in frames only while
//! there is some.
//!
//! Not here yet: groups that programs join. `docs/compliance.md` says which rule of which
//! RFC is kept, and by which test that is known.
#![forbid(unsafe_code)]

mod address;
mod control;
mod counters;
mod ends;
mod fast_open;
mod flow;
mod gro;
mod host;
mod interface;
mod ip;
mod outbox;
mod packet;
mod pairs;
mod passing;
mod path_mtu;
mod queue;
mod request;
mod routes;
mod segmentation;
mod slab;
mod snapshot;
mod sockets;
mod source;
mod stack;
mod table;
mod tcp;
mod time;
mod trie;
mod udp;
mod wheel;

pub use address::{Address, Prefix, PrefixError};
pub use bywash_frame as frame;
pub use bywash_wire as wire;
pub use control::{
    AddressState, Claims, Control, ControlError, Entry, Lifetimes, Listen, NeighbourState, Origin,
};
pub use counters::{ControlCounters, Counters};
pub use fast_open::{FastOpenClient, FastOpenFailure, FastOpenKeys, FastOpenServer};
pub use flow::{Flow, Secret};
pub use host::Host;
pub use interface::{Interface, InterfaceId, Medium, Offloads, PortId};
pub use ip::Reassembled;
pub use request::{Notice, Request, Unreachable};
pub use routes::Route;
pub use snapshot::Snapshot;
pub use sockets::{Socket, SocketMemory, SocketState, SocketTimer, TimerKind};
pub use stack::{Event, Stack};
pub use tcp::{
    CloseReason, CongestionControl, ConnectionId, LINUX_TCP_INFO, Limits, ListenerId, State, TcpError,
    TcpInfo,
};
pub use time::Timestamp;
pub use udp::{Datagram, UdpError, UdpId, UdpOptions};
