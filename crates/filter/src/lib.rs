//! What a packet filter expression means.

/// A parsed filter expression.
#[derive(Clone, Debug)]
pub struct Expression;
