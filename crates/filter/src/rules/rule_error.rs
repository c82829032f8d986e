//! Why rules can't be made a set of, and the rule at which.

use super::{MOST_JOINED, MOST_RULES, trie};

/// Why rules can't be made a set of.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RuleError {
    /// Two rules have one name.
    #[error("the name '{0}' is there twice: counters are known by it")]
    Name(String),
    /// More rules than there are counters; the first of those that are too many.
    #[error(
        "{0} rules: the rule '{1}' is the first above {MOST_RULES}; put prefixes and ports that share a fate into one rule's lists"
    )]
    Rules(usize, String),
    /// More conditions that join lists and ask for more than can be kept track of; the first rule for which there is no room.
    #[error(
        "{0} lists stand in rules that ask for more than lists (match, established, sample, block_seconds): the rule '{1}' is the \
         first above {MOST_JOINED}; put rules that are alike together"
    )]
    Joined(usize, String),
    /// Rules of lists alone, too many of which are about the same packets; the first of them.
    #[error(
        "the lists of {0} rules, from the rule '{1}' on, overlap in too many ways, or too many of these rules count the same packets; \
         put rules that are alike together"
    )]
    Crossed(usize, String),
    /// Patterns that no search can be made of.
    #[error("the rule '{0}' has too many payload patterns: {1}")]
    Payload(String, String),
    /// More prefixes of IPv4 than there is room for; the first rule with one that has none.
    #[error(
        "the rule '{0}' has the first prefix that there is no room for: those longer than /16 lie in {most} networks at most, on \
         either side, each /16 counted and each /24 where they are longer than that; leave some out, or write shorter ones",
        most = trie::MOST_BLOCKS
    )]
    Prefixes(String),
}
