//! The `xdp:` port against the kernel, over veth pairs of the tests' own. Needs root.

mod opening;
mod setup;
mod traffic;
