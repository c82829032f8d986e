//! The `xdp:` port against the kernel, over veth pairs of the tests' own. Needs root.

#[cfg(test)]
mod allocating;
#[cfg(test)]
mod closing;
#[cfg(test)]
mod examples;
#[cfg(test)]
mod failing;
#[cfg(test)]
mod memory;
#[cfg(test)]
mod opening;
#[cfg(test)]
mod setup;
#[cfg(test)]
mod steering;
#[cfg(test)]
mod traffic;
