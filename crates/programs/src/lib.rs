//! Servers and clients of TCP, on the stack or on the kernel's sockets.
//!
//! Each is one [`Service`], written once and generic over where its bytes come from: [`OnStack`] makes it a program of
//! an engine of Bywash, [`OnKernel`] a worker with the kernel's sockets. So one tool measures both.
#![forbid(unsafe_code)]

mod answer;
mod connect;
mod counters;
mod date;
mod dialect;
mod download;
mod http;
mod input;
mod kernel;
mod kernel_options;
mod load;
mod on_stack;
mod output;
mod server;
mod sockets;
mod stream;

pub use bywash_engine as engine;

pub use connect::Connect;
pub use counters::{Counted, Counters};
pub use dialect::{Dialect, Reader};
pub use download::{Download, Wanted};
pub use http::{File, Http};
pub use kernel::{KernelId, KernelSockets, OnKernel};
pub use kernel_options::KernelOptions;
pub use load::{Clockwork, Load, Pace, Plan};
pub use on_stack::OnStack;
pub use server::{Course, Serve, Server, Worked};
pub use sockets::{Ended, Happened, Service, Sockets};
pub use stream::{Manner, Stream};
