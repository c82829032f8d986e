//! The words between drivers and everything above.
//!
//! A [`Port`] is an opened NIC, real or virtual. It gives out its queues once, as [`RxQueue`] and [`TxQueue`]; each is
//! then owned by exactly one worker and called once per batch. What a port is called on the command line is a
//! [`PortName`]; what it can do is its [`Capabilities`].
//!
//! ```text
//!     rx ──► work ──► tx ──► flush        one turn of a worker: at most 64 packets, to completion
//! ```

#![forbid(unsafe_code)]

mod counters;
mod gone;
mod name;
mod port;
mod rss;
mod rules;
mod steer;

pub use bywash_filter as filter;
pub use bywash_frame as frame;

pub use bywash_filter::rules::{Action, Condition, Limit, Per, Prefix, Rule, RuleSet};
pub use counters::{Counter, QueueCounters};
pub use gone::{Gone, has_gone};
pub use name::{FdirFilters, MTUS, NameError, NicOptions, PortName, QueueChoice};
pub use port::{Capabilities, OpenError, Port, QueuePair, RxQueue, Samples, SentLen, TxQueue};
pub use rss::{Certain, RssSpread};
pub use rules::{Decider, LoadedRules, Moved, RuleCount, RuleId, RuleLoad, RulePlace, Rules, SteerCount};
pub use steer::{
    Flow, Ipv4Flow, Ipv4Prefix, SteerError, SteerRule, SteerTo, Transport, TransportProtocol, check_steer,
    read_steer,
};
