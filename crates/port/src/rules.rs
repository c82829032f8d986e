//! The rules of a port, and what they count.

use std::any::Any;
use std::fmt::{self, Display};
use std::ops::AddAssign;
use std::sync::Arc;

use bywash_filter::rules::{FlowOptions, Rule, RuleSet};
use bywash_filter::{Expression, Hook};

use crate::QueuePair;

/// What becomes of a port's packets.
#[derive(Clone, Debug)]
pub struct Rules {
    /// The rules.
    pub set: Arc<RuleSet>,
    /// What matches one of these is the kernel's, whatever the rules say. ARP, neighbour discovery, the default gateway and
    /// the ssh sessions of the start always are.
    pub never: Vec<Expression>,
    /// What is kept of established flows, where a rule asks for them.
    pub flows: FlowOptions,
}

/// Rules on their way into a port: all about them that takes time, for who does not have the port meanwhile.
pub struct RuleLoad {
    load: Box<dyn FnOnce() -> Result<LoadedRules, String> + Send>,
    moves: bool,
}

impl RuleLoad {
    /// What is to be done, by the port's driver.
    pub fn new(load: impl FnOnce() -> Result<LoadedRules, String> + Send + 'static) -> Self {
        Self { load: Box::new(load), moves: false }
    }

    /// The same for rules with which the port moves.
    pub fn moving(load: impl FnOnce() -> Result<LoadedRules, String> + Send + 'static) -> Self {
        Self { moves: true, ..Self::new(load) }
    }

    /// Whether the machine is changed by it, so that somebody has to wait for its end and drop what comes of it: that changes it back.
    pub fn moves(&self) -> bool {
        self.moves
    }

    /// Does it.
    ///
    /// # Errors
    /// In one line why they can't be the port's rules.
    pub fn load(self) -> Result<LoadedRules, String> {
        (self.load)()
    }
}

/// Rules that are ready for the port by which they were loaded. What it needs for them is its driver's own.
pub struct LoadedRules(pub Box<dyn Any + Send>);

/// What a port has moved to, for rules that could not be where it was.
pub struct Moved {
    /// Queues in the place of all that it had; those show no life any more, and are closed with these.
    pub queues: Vec<QueuePair>,
    /// What the user should know of how they were opened: a line for each.
    pub told: Vec<String>,
}

/// What a rule has counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RuleCount {
    /// Packets that it was about.
    pub packets: u64,
    /// Their bytes, without FCS.
    pub bytes: u64,
}

impl AddAssign for RuleCount {
    fn add_assign(&mut self, more: Self) {
        self.packets += more.packets;
        self.bytes += more.bytes;
    }
}

/// What a rule's counters are known by. A rule of the same name that does something else begins new ones: nobody could tell
/// which of its packets were dropped.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct RuleId {
    /// The rule's name; empty for all those together whose own counters another rule has needed.
    pub name: String,
    /// Its action, as rule files have it.
    pub action: &'static str,
    /// It only counts what it would have decided.
    pub dry_run: bool,
}

impl RuleId {
    /// Whose packets are counted together when there are too many rules to tell apart.
    #[must_use]
    pub fn without_name(self) -> Self {
        Self { name: String::new(), ..self }
    }
}

impl From<&Rule> for RuleId {
    fn from(rule: &Rule) -> Self {
        Self { name: rule.name.clone(), action: rule.action_name(), dry_run: rule.dry_run }
    }
}

/// What a rule by which a port steers packets has counted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SteerCount {
    /// Its name.
    pub rule: String,
    /// Who decides it. What dies in the NIC is not among what was counted.
    pub decider: Decider,
    /// What the port's program has counted.
    pub count: RuleCount,
}

/// Who has the last word on a rule, as seen from the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Decider {
    /// The NIC.
    Nic,
    /// The NIC on a part of it, a program of the kernel on the rest.
    NicInPart,
    /// A program of the kernel, before it makes anything of a packet.
    Xdp,
    /// A program of the kernel, after it has.
    Tcx,
    /// Whoever receives by the port.
    UserSpace,
}

impl Decider {
    /// In a word, for programs.
    pub fn name(self) -> &'static str {
        match self {
            Self::Nic => "nic",
            Self::NicInPart => "nic_in_part",
            Self::Xdp => "xdp",
            Self::Tcx => "tcx",
            Self::UserSpace => "user_space",
        }
    }
}

/// For people.
impl Display for Decider {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Nic => "the NIC",
            Self::NicInPart => "the NIC in part",
            Self::Xdp => "XDP",
            Self::Tcx => "TCX",
            Self::UserSpace => "user space",
        })
    }
}

/// Where a rule is decided.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RulePlace {
    /// Its name.
    pub rule: String,
    /// Who decides what no NIC does.
    pub outside: Decider,
    /// What of it the NIC decides before the XDP program does: a phrase for each of its n-tuple rules.
    pub in_nic: Vec<String>,
    /// What of a rule that drops the NIC does not decide, and why: a phrase for each reason.
    pub left: Vec<String>,
}

impl RulePlace {
    /// The place of a rule that a program at `hook` decides, unless it leaves that to user space.
    pub fn outside_the_nic(rule: &Rule, hook: Hook) -> Self {
        let outside = match hook {
            _ if rule.asks_user_space() => Decider::UserSpace,
            Hook::Xdp => Decider::Xdp,
            Hook::Tcx => Decider::Tcx,
        };
        Self { rule: rule.name.clone(), outside, in_nic: Vec::new(), left: Vec::new() }
    }

    /// Who has the last word on it.
    pub fn decider(&self) -> Decider {
        match (self.in_nic.is_empty(), self.left.is_empty()) {
            (false, true) => Decider::Nic,
            (false, false) => Decider::NicInPart,
            (true, _) => self.outside,
        }
    }
}

impl Display for RulePlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "'{}' is in {}", self.rule, self.decider())?;
        if let [first, more @ ..] = &self.in_nic[..] {
            write!(f, " ({first}")?;
            if !more.is_empty() {
                write!(f, ", and {} more", more.len())?;
            }
            f.write_str(")")?;
        }
        match (self.left.is_empty(), self.in_nic.is_empty()) {
            (true, _) => Ok(()),
            (false, true) => write!(f, ": {}", self.left.join("; ")),
            (false, false) => write!(f, "; in XDP alone: {}", self.left.join("; ")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_told_with_what_is_not_there() {
        let of = |outside, in_nic: &[&str], left: &[&str]| {
            let lines = |lines: &[&str]| lines.iter().map(|line| (*line).to_owned()).collect();
            let place = RulePlace { rule: "r".into(), outside, in_nic: lines(in_nic), left: lines(left) };
            format!("{} {place}", place.decider().name())
        };
        assert_eq!(of(Decider::Xdp, &[], &[]), "xdp 'r' is in XDP");
        assert_eq!(of(Decider::Tcx, &[], &[]), "tcx 'r' is in TCX");
        assert_eq!(of(Decider::Xdp, &[], &["why", "also"]), "xdp 'r' is in XDP: why; also");
        assert_eq!(of(Decider::UserSpace, &[], &["why"]), "user_space 'r' is in user space: why");
        assert_eq!(of(Decider::Xdp, &["a", "b", "c"], &[]), "nic 'r' is in the NIC (a, and 2 more)");
        assert_eq!(
            of(Decider::Xdp, &["a"], &["b"]),
            "nic_in_part 'r' is in the NIC in part (a); in XDP alone: b"
        );
    }
}
