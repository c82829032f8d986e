//! What is done to packets without a stack: forwarding, generating, receiving.
//!
//! Each app is a set of workers, one [`Task`](bywash_sys::worker::Task) each, that own their queues and share nothing
//! while they run. An app is started on opened ports, watched through [`App`], and finished, which closes the ports
//! and gives the summary. [`run`] does all of that and reports on the way.

#![forbid(unsafe_code)]

pub mod capture;
pub mod filter;
pub mod forward;
pub mod generate;
pub mod probe;
pub mod rate;
pub mod receive;
pub mod replay;
pub mod report;
pub mod text;

mod crew;
mod live;
mod queues;
mod session;

pub use bywash_port as port;
pub use bywash_sys as sys;
pub use bywash_wire as wire;

pub use crew::WorkerOptions;
pub use session::{App, StartError, Summary, run};
