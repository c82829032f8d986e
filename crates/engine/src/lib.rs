//! The loop of one core: queues in, stack, out; the instance and its control socket.
//!
//! An [`Instance`] is one or several engines and a control thread. An engine is a worker with its queues, its packets,
//! its [`Stack`](stack::Stack) and its [`Program`]; engines share nothing but rings. The control thread owns addresses,
//! routes, neighbours and listeners, and tells the engines when they change. A [`Handle`] asks a running instance from outside.
//!
//! `examples/echo.rs` is an echo server in 40 lines.
#![forbid(unsafe_code)]

mod answer;
mod clock;
mod control;
mod engine;
mod figures;
mod handoff;
mod instance;
mod links;
mod pending;
mod plan;
mod ports;
mod program;
pub mod request;
pub mod scoped;
pub mod socket;
mod socket_info;
mod socket_rows;
mod steer;

pub use bywash_port as port;
pub use bywash_stack as stack;
pub use bywash_sys as sys;

pub use engine::EngineCounters;
pub use figures::Figures;
pub use instance::{Configure, Failed, Handle, Instance, NoAnswer, Options, StartError, Summary};
pub use program::{Io, Program, Waker};
pub use socket_info::SocketInfo;
