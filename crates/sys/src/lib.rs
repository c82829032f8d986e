//! What Linux and shared memory give us.
//!
//! The only crate that talks to the kernel by raw system calls and the only one, beside `frame`'s arena, with `unsafe`:
//! what it hands out is safe to use.

pub mod bpf;
pub mod ethtool;
pub mod interface;
pub mod memory;
pub mod namespace;
pub mod netdev;
pub mod netlink;
pub mod packet_socket;
pub mod route;
pub mod shared;
pub mod state;
pub mod sysctl;
pub mod tun;
pub mod virtio_header;
pub mod xsk;
