//! Which packets are ours, and what becomes of them.

use bywash_filter::Expression;

/// What becomes of a packet that a rule matches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// It is ours: to the port's RX queue.
    Take,
}

/// A filter expression and what becomes of the packets it matches. What no rule matches stays with the kernel.
#[derive(Clone, Debug)]
pub struct Rule {
    /// Which packets.
    pub expression: Expression,
    /// What becomes of them.
    pub action: Action,
}
