//! What Linux and shared memory give us: system calls, sockets and files, as safe types.
//!
//! This is the one large place with `unsafe` code. Everything here stands alone: it knows no packets, ports or apps.

pub mod bpf;
pub mod clock;
pub mod dma;
pub mod ethtool;
pub mod folder_lock;
pub mod function;
pub mod intake;
pub mod interface;
pub mod mapped_registers;
pub mod memory;
pub mod modules;
pub mod namespace;
pub mod netdev;
pub mod netlink;
pub mod no_iommu;
pub mod open_files;
pub mod output_file;
pub mod packet_socket;
pub mod pci;
pub mod random;
pub mod region;
pub mod route;
pub mod shared;
pub mod signals;
pub mod softnet;
pub mod spool;
pub mod state;
pub mod sysctl;
pub mod tcp_option;
pub mod terminal;
pub mod tun;
pub mod vfio;
pub mod vfio_user;
pub mod virtio_header;
pub mod worker;
pub mod xsk;
