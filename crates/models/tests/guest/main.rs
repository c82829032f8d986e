//! The models are judged by drivers that others wrote for the real thing: Linux's own, and DPDK's, in a QEMU guest.
#![expect(clippy::unwrap_used, reason = "what cannot be set up must fail the test")]

mod bench;
mod dpdk;
mod linux;
mod linux_vf;
