//! The ixgbe and ixgbevf drivers against the models of the NIC and of its virtual function, in this process: deterministic but for the clock, and without root.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]
#![expect(clippy::cast_possible_truncation, reason = "numbers in tests are small, or cut on purpose")]

mod allocating;
mod any_rules;
mod bed;
mod cable;
mod copper;
mod example;
mod faults;
mod offloads;
mod opening;
mod scattered;
mod socket;
mod spreading;
mod statistics;
mod steering;
mod traffic;
mod virtual_function;
