//! N-tuple rules of ours in an interface's table, which others have rules in, too.

use bywash_filter::flows;
use bywash_sys::ethtool::{Ethtool, EthtoolError, Fate, Flow, Rule, Table};
use bywash_sys::state::{self, StateError, Undo};

/// So often a place is looked for which nobody takes first.
const LOOKS: usize = 8;

/// A rule of ours. Dropping it removes it.
pub(super) struct Held {
    pub(super) rule: Rule,
    undo: Undo,
}

impl Held {
    /// Adds a rule where there is room by a table that was read before, which has it then. It is read anew when somebody has added one in
    /// that place since.
    pub(super) fn add(interface: &str, table: &mut Table, flow: &Flow, fate: Fate) -> Result<Self, String> {
        for _ in 0..LOOKS {
            let rule = Rule { flow: flow.clone(), fate, location: free_place(interface, table)? };
            match state::add_rule(interface, &rule) {
                Ok(undo) => {
                    table.used.extend(rule.location);
                    return Ok(Self { rule, undo });
                }
                Err(StateError::Ethtool(EthtoolError::Taken { .. })) => {
                    let again = Ethtool::open().and_then(|ethtool| ethtool.rule_table(interface));
                    *table = again.map_err(|error| error.to_string())?;
                }
                Err(error) => return Err(error.to_string()),
            }
        }
        Err(format!("others take the free places of {interface} first"))
    }

    /// Where it is, which was made for this flow.
    pub(super) fn told(&self, flow: &flows::Flow, interface: &str) -> String {
        let place = self.rule.location.map_or_else(String::new, |place| format!(" {place}"));
        let to = match self.rule.fate {
            Fate::Queue(queue) => format!(", to queue {queue}"),
            Fate::Drop => String::new(),
        };
        format!("'{flow}' is n-tuple rule{place} of {interface}{to}")
    }

    /// What removes it.
    pub(super) fn into_undo(self) -> Undo {
        self.undo
    }

    /// Adds it again where it was, if it is not there.
    fn put_back(&self, interface: &str, ethtool: &Ethtool) -> Result<(), EthtoolError> {
        match ethtool.find_rule(interface, &self.rule)? {
            Some(_) => Ok(()),
            None => ethtool.add_rule(interface, &self.rule).map(drop),
        }
    }

    /// Adds it where there is room by a table that has just been read, since its place is somebody else's.
    fn move_elsewhere(&mut self, interface: &str, table: &mut Table) -> Result<(), String> {
        // With the one before goes the record of its place, where nothing of ours is any more.
        *self = Self::add(interface, table, &self.rule.flow, self.rule.fate)?;
        Ok(())
    }
}

/// Adds again what the driver of the interface, which is called `interface` now, has forgotten of these rules: all that can be.
///
/// # Errors
/// How many are still missing, and why the first of them is.
pub(super) fn renew(interface: &str, rules: &mut [Held]) -> Result<(), String> {
    if rules.is_empty() {
        return Ok(());
    }
    let all = rules.len();
    let ethtool = Ethtool::open().map_err(|error| error.to_string())?;
    let (mut taken, mut failed) = (Vec::new(), Vec::new());
    for held in rules {
        match held.put_back(interface, &ethtool) {
            Ok(()) => {}
            Err(EthtoolError::Taken { .. }) => taken.push(held),
            Err(error) => failed.push(error.to_string()),
        }
    }
    // Only now: none of them takes a place that is another's of ours.
    if !taken.is_empty() {
        let mut table = ethtool.rule_table(interface).map_err(|error| error.to_string())?;
        let moved = taken.into_iter().map(|held| held.move_elsewhere(interface, &mut table));
        failed.extend(moved.filter_map(Result::err));
    }
    match failed.first() {
        None => Ok(()),
        Some(why) => Err(format!(
            "{} of {all} n-tuple rules that the driver of {interface} has forgotten can't be added again: {why}",
            failed.len()
        )),
    }
}

/// Where the next rule may go; `None` where the driver chooses.
pub(super) fn free_place(interface: &str, table: &Table) -> Result<Option<u32>, String> {
    match table.last_free() {
        _ if table.chooses => Ok(None),
        Some(place) => Ok(Some(place)),
        None => Err(format!(
            "all {} n-tuple rules of {interface} are in use: `ethtool -n {interface}` shows them, `ethtool -N {interface} delete N` makes room",
            table.size
        )),
    }
}

pub(super) fn as_rule(flow: &flows::Flow) -> Flow {
    let flows::Flow { ipv6, protocol, value, mask } = flow.clone();
    Flow { ipv6, protocol, value, mask }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_table_says_so() {
        let table = |used, chooses| Table { size: 2, used, chooses };
        assert_eq!(free_place("eth1", &table(vec![1], false)), Ok(Some(0)));
        assert_eq!(free_place("eth1", &table(vec![0, 1], true)), Ok(None));
        let full = free_place("eth1", &table(vec![0, 1], false)).unwrap_err();
        assert!(full.starts_with("all 2 n-tuple rules of eth1 are in use: `ethtool -n eth1`"), "{full}");
    }
}
