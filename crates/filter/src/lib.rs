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
//!                                         ├─────► ebpf ──► xdp   in the kernel
//!                                         └─────► flows          for NICs
//!     rules: expressions and lists, and what becomes of what they match, in both
//! ```
//!
//! Packets begin with their Ethernet header. VLAN tags are looked for in the packet, not beside it: who takes packets
//! from the kernel with tags stripped off must put them back first.
//!
//! # The language
//!
//! All of tcpdump's language that has a meaning on Ethernet: `host`, `net`, `port`, `portrange`, `proto`, `protochain` with
//! their qualifiers, all protocol keywords, `ether`, `broadcast`, `multicast`, `less`, `greater`, `len`, `byte`, `vlan`,
//! `mpls`, `pppoed`, `pppoes`, `geneve`, `llc`, DECnet, ISO and IS-IS, and comparisons such as
//! `tcp[tcpflags] & tcp-syn != 0`. Some of its rules are easily overlooked:
//!
//! - `and` and `or` weigh the same and group from left to right; `not` binds tighter.
//! - A value without qualifiers takes those of the value before it: `port 80 or 443`.
//! - `vlan`, `mpls`, `pppoes` and `geneve` move everything to their right behind their header, also across `or`.
//! - `port` finds ports in first fragments only, and over IPv6 only directly behind its header.
//! - What no packet can match, such as `tcp and udp`, is refused ([`Expression::possible`]), where that is seen.
//! - What asks for bytes beyond the packet's end, or divides by zero, ends the whole expression: no match, whatever `not`
//!   or `or` stand around it.
//! - Of an operation only the protocols on its left are asked for: `1 + tcp[0] = 7` looks into packets that are not TCP.
//! - Beside `%` and `^` all operators group from right to left: `8 * 3 % 2` is `8 * (3 % 2)`.
//!
//! # What is ours
//!
//! | primitive | matches |
//! |---|---|
//! | `anyvlan` | every packet with a type; everything to its right looks behind any number of VLAN tags, up to 16 |
//! | `l4 [tcp\|udp\|sctp] [src\|dst] port N`, `portrange N-M` | as without `l4`, also behind IPv6 extension headers and AH |
//! | `l4 proto N` | the protocol behind them, in later fragments too |
//! | `fragment`, `fragment first`, `fragment later` | fragments over IPv4 and IPv6 |
//!
//! # Where it is not tcpdump's
//!
//! - `gateway`, `inbound`, `outbound`, `ifindex`, and what is for other links than Ethernet, is refused.
//! - `net NAME` is refused, and the error says the network's number. libpcap takes `loopback` for the one address 127.0.0.0
//!   or for 127.0.0.0/8, as the C library reads `/etc/networks`.
//! - `protochain` passes AH by its length. libpcap 1.10 takes the length for the offset, and may hang.
//! - `byte N & V` and `byte N | V` look at that byte. libpcap 1.10 looks at whatever it loaded last.
//! - `ip broadcast` takes the netmask as it is written. tcpdump on a little-endian machine takes its bytes the other way.
//! - Behind `geneve`, packets without a Geneve header are the same for every part. libpcap reads memory it never wrote.
//! - tcpdump optimizes its programs (without `-O`), which drops loads that decide nothing and refuses negative offsets such
//!   as `tcp[-4]`. Here an expression means what it means without that.
//! - At most 100 nested parentheses, 40 nested operations, 64 headers in a chain.
#![forbid(unsafe_code)]

pub mod ebpf;
mod ether_types;
mod expression;
mod extent;
pub mod flows;
mod formula;
mod graph;
mod hook;
mod impossible;
mod language;
mod matcher;
mod meaning;
#[cfg(test)]
mod mutants;
mod plain;
pub mod rules;
mod sets;
mod settled;
mod walk;
pub mod xdp;

pub use bywash_wire as wire;
pub use expression::{Expression, Options};
pub use hook::{Hook, TCX_DROP, TCX_NEXT};
pub use language::ParseError;
pub use meaning::{Names, NoNames, SystemNames};
