//! Every source and sink of packets, as port queues.

#![forbid(unsafe_code)]

pub mod xdp;
