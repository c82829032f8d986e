//! `bywash` on a machine of its own: interfaces, huge pages and rights, as a user has them. Needs root.

#[cfg(test)]
mod bad_input;
#[cfg(test)]
mod bifurcation;
#[cfg(test)]
mod cleanup;
#[cfg(test)]
mod demo;
#[cfg(test)]
mod setup;
#[cfg(test)]
mod system_calls;
#[cfg(test)]
mod tcp;
