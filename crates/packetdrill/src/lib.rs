//! The stack under packetdrill: its plug-in, as a shared library.
//!
//! packetdrill plays scripts of system calls and packets against a TCP. With `--so_filename=/abs/libbywash_packetdrill.so`
//! that is this stack: no kernel, no interface, no right is needed, and time is virtual, so that a script takes a
//! fraction of a second and always comes out the same.
//!
//! ```text
//! packetdrill --ip_version=ipv4 --so_filename=$PWD/target/debug/libbywash_packetdrill.so script.pkt
//! ```
//!
//! `--so_flags` takes words with commas between them: `mtu=1500`; `local=192.168.0.2`, our address before packets say
//! another one (both are read from packetdrill's own `--mtu` and `--local_ip`, where it has them); `sysctls=fixed` for the
//! stack's own defaults. Without the last, each socket begins with what this network namespace's `net.ipv4.tcp_*` say at
//! that moment, for scripts set these first.
//!
//! packetdrill itself asks the C library, not its plug-in, for the numbers that `%{ assert tcpi_cwnd == 10 }%` speaks of.
//! With the same library in `LD_PRELOAD` that question comes here, too, and so does `sendfile`.

mod bind;
mod connect;
mod datagrams;
mod errno;
mod fast_open;
mod ffi;
mod icmp;
mod machine;
mod options;
mod pipes;
mod poll;
mod reports;
mod settings;
mod shared;
mod sockets;
mod transfer;
mod urgent;

pub use ffi::{Interface, packetdrill_interface_init};
