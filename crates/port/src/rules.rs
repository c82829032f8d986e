//! The rules of a port, and what they count.

use std::sync::Arc;

use bywash_filter::Expression;
use bywash_filter::rules::{FlowOptions, RuleSet};

/// What becomes of a port's packets.
#[derive(Clone, Debug)]
pub struct Rules {
    /// The rules.
    pub set: Arc<RuleSet>,
    /// What matches one of these is the kernel's, whatever the rules say. ARP, neighbour discovery, the default gateway and
    /// the operator's ssh connection always are.
    pub never: Vec<Expression>,
    /// What is kept of established flows, where a rule asks for them.
    pub flows: FlowOptions,
}

/// What a rule has counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RuleCount {
    /// Packets that it was about.
    pub packets: u64,
    /// Their bytes, without FCS.
    pub bytes: u64,
}
