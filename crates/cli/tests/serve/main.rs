//! `bywash serve` and the programs on it, with Linux's own programs at the other end of a veth or a tap.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod answers;
mod by_hand;
mod changes;
mod descriptors;
#[path = "../full_pipe/mod.rs"]
mod full_pipe;
mod gone;
mod instance;
mod link_local;
mod link_mac;
mod link_mtu;
mod others;
mod ping;
mod redirects;
mod settings;
mod sources;
mod tcp;
