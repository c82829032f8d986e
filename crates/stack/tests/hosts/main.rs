//! Whole hosts against each other, over wires and networks in memory and under a virtual clock.
#![forbid(unsafe_code)]
#![expect(clippy::unwrap_used, reason = "tests, and what they share")]
#![expect(clippy::print_stdout, reason = "a long run says what it came to")]

mod busy;
mod conflicts;
mod counters;
mod crossed;
mod datagrams;
mod entries;
mod fast_open;
mod fragments;
mod hostile;
mod icmp;
mod in_place;
mod ip;
mod ip6;
mod link_local;
mod link_mac;
mod link_mtu;
mod listeners;
mod neighbours;
mod opening;
mod passing_on;
mod pieces;
mod preferred;
mod programs;
#[path = "../random/mod.rs"]
mod random;
mod rates;
mod recoveries;
mod redirects;
mod routers;
mod rules;
mod sending;
mod smol;
mod sockets;
mod states;
mod streams;
mod tcp;
mod throughput;
mod timing;
mod undo;
mod urgent;
mod waiting;
mod whole_frames;
mod windows;
mod wire;
