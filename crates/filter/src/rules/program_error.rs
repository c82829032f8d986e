//! Why rules can't be made a program of, and the rule at which.

use super::Rule;
use crate::ebpf::AssembleError;

/// Why rules can't be made a program of.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProgramError {
    /// They are too long.
    #[error("the rule '{rule}' is where there is no room left: {error}; {ALIKE}")]
    TooLong {
        /// The rule that a jump can't pass.
        rule: String,
        /// The jump.
        error: AssembleError,
    },
    /// What is never dropped is too long.
    #[error("there is no room for never_drop: {0}; {IN_FRONT}")]
    NeverTooLong(AssembleError),
    /// The kernel's verifier gives up.
    #[error("too much for the kernel's verifier: the rules{}; {ALIKE}", most_of_all(rule.as_deref()))]
    TooLarge {
        /// The rule whose expression asks most, where one has an expression.
        rule: Option<String>,
    },
    /// The kernel's verifier gives up, and what is never dropped asks more than any rule.
    #[error("too much for the kernel's verifier: never_drop most of all; {IN_FRONT}")]
    NeverTooLarge,
    /// Another reason, which is no single rule's.
    #[error("{0}; {ALIKE}")]
    Other(#[from] AssembleError),
}

/// What helps.
const ALIKE: &str = "put rules that are alike into lists (from, to, from_ports, to_ports)";

const IN_FRONT: &str =
    "put long lists of prefixes into rules in front of the others: from and to, with action = \"pass\"";

fn most_of_all(rule: Option<&str>) -> String {
    rule.map_or_else(String::new, |rule| format!(", and the rule '{rule}' most of all"))
}

impl ProgramError {
    /// Names the last rule that a jump which is too long would still have reached, or what is never dropped when that is all in front of
    /// the rules. `begun` says of rules behind how many instructions they begin, and their index; and `ended` behind how many that ends.
    pub(super) fn new(
        error: AssembleError,
        (begun, ended): (&[(usize, usize)], usize),
        rules: &[Rule],
    ) -> Self {
        const FARTHEST: usize = i16::MAX as usize;
        let AssembleError::TooFar { at, .. } = error else { return error.into() };
        if ended > at + FARTHEST {
            return Self::NeverTooLong(error);
        }
        let reached = begun.iter().rev().find(|(begins, _)| *begins <= at + FARTHEST);
        match reached.and_then(|(_, index)| rules.get(*index)) {
            Some(rule) => Self::TooLong { rule: rule.name.clone(), error },
            None => error.into(),
        }
    }
}
