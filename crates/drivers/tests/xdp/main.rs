//! The `xdp:` port against the kernel, over veth pairs of the tests' own. Needs root.

mod allocating;
mod closing;
mod memory;
mod opening;
mod setup;
mod traffic;
