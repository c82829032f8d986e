//! What the NIC does for a port that has not all of an interface's queues: it gives these queues the flows that the port's
//! expression is about, and nothing else.
//!
//! N-tuple rules send flows to our queues, and the RSS table leaves them out. What would hide packets from the XDP program is
//! switched off before: packets that the NIC joins, tags that it takes off. The program still asks the whole expression and
//! the never-take list about each packet, so a rule may take more than it should. What the driver refuses stays with the
//! kernel, and is told.
//!
//! Drivers restart when a feature is switched or a program is attached, and some (ixgbe) then have the RSS table that they
//! begin with, and no n-tuple rules. So what is there is written down first, set again when all else is done, and put back last:
//! on every port, also where nothing is to be steered.

use bywash_filter::flows::{Beside, Flow, Flows};
use bywash_filter::{Expression, Hook};
use bywash_port::RulePlace;
use bywash_sys::ethtool::{Ethtool, EthtoolError, Fate, Table};
use bywash_sys::interface::Interface;
use bywash_sys::state::{self, Kept, StateError, Undo, Undone};

use super::Options;
use super::in_nic::RulesHeld;
use super::ntuple::{self, Held, as_rule, free_place};
use super::tags::{self, TAGS};
use crate::Ntuple;

/// The kernel's name of what `ethtool -K IFACE ntuple` switches.
pub(super) const NTUPLE: &str = "rx-ntuple-filter";

/// What must not be done to packets before the XDP program sees them: joining them, and taking off their tags. `ethtool -K` calls these
/// lro, rx-gro-hw, rxvlan and rx-vlan-stag-hw-parse.
const OFF: [&str; 4] = ["rx-lro", "rx-gro-hw", TAGS[0], TAGS[1]];

/// So many rules are told one by one.
const TOLD: usize = 16;

/// The NIC's part of a port. Dropping it puts all back.
pub(super) struct Steered {
    /// In the order in which they were made.
    undos: Vec<Undo>,
    /// Empty when it is not ours.
    table: Vec<u32>,
    /// Go before all that was done before them.
    rules: Vec<Held>,
    /// Where each part of the expression, and each rule by which the port steers, is: a line for each.
    told: Vec<String>,
    /// What it drops for the port's rules.
    in_nic: RulesHeld,
    /// What others have asked of the interface. After our own changes in every way: noted before them, put back behind them.
    kept: Option<Kept>,
    /// It is taken out again, and nothing is to come back.
    is_over: bool,
}

/// What is to be steered where.
pub(super) struct Wanted<'a> {
    pub(super) interface: &'a Interface,
    /// Queues that the port receives by.
    pub(super) queues: Vec<u32>,
    pub(super) options: &'a Options,
}

impl Wanted<'_> {
    /// Notes what others have asked of the NIC, and has it do what it can. Of what it does for flows nothing is changed where it can do
    /// nothing of it, or, when all is required, not all. What works badly goes to `warnings`.
    pub(super) fn steer(&self, warnings: &mut Vec<String>) -> Result<Steered, String> {
        let mut steered = self.steer_flows()?;
        if !self.queues.is_empty() {
            // Where flows are steered they are off already, and who has a feature off twice is in its own way when it ends.
            let of: &[&str] = if steered.table.is_empty() { &TAGS } else { &[] };
            let kept = tags::keep(self.interface, of, self.options.shares());
            steered.undos.splice(0..0, kept.undos);
            steered.told.extend(kept.told);
            warnings.extend(kept.warning);
        }
        Ok(steered)
    }

    fn steer_flows(&self) -> Result<Steered, String> {
        let name = &self.interface.name;
        let Options { only, ntuple, steer, .. } = self.options;
        let some = !self.queues.is_empty() && self.queues.len() < self.interface.queues.rx as usize;
        let only = only.as_ref().filter(|only| some && !only.takes_all_kinds());
        let Some(only) = only.filter(|_| *ntuple != Some(Ntuple::Off)) else {
            return match ntuple {
                Some(Ntuple::Require) if steer.is_empty() => Err(format!(
                    "--ntuple require is for --steer, or for --only and one of several queues, and {name} has {}: name one \
                     (xdp:{name}/N --only ...), or leave it out",
                    self.interface.queues.rx
                )),
                _ => self.nothing_yet(),
            };
        };
        let mut steered = self.nothing_yet()?;
        let result = self.try_all(only, &mut steered);
        let require = *ntuple == Some(Ntuple::Require);
        match result {
            Ok(left) if left.is_empty() || !require => {
                steered.told.extend(left);
                Ok(steered)
            }
            Ok(left) => Err(format!("{} (--ntuple require)", left.join("; "))),
            Err(why) if require => Err(format!("'{only}' is not in the NIC: {why} (--ntuple require)")),
            Err(why) => {
                steered.undo_all()?;
                steered.table.clear();
                let queues = said(&self.queues);
                let told = format!(
                    "'{only}' is in the XDP program alone: {why}; packets that RSS gives to other queues than {queues} stay \
                     with the kernel"
                );
                steered.told = vec![told];
                Ok(steered)
            }
        }
    }

    /// Notes what others have asked of the NIC.
    fn nothing_yet(&self) -> Result<Steered, String> {
        let kept = state::keep_steering(&self.interface.name).map_err(|error| error.to_string())?;
        let mut steered = Steered::nothing(self.interface);
        steered.in_nic = RulesHeld::new(self.interface, self.queues.len(), self.options);
        steered.kept = Some(kept);
        Ok(steered)
    }

    /// Changes the NIC. Returns what is not in it, a line for each; why, when that is all.
    fn try_all(&self, only: &Expression, steered: &mut Steered) -> Result<Vec<String>, String> {
        let name = &self.interface.name;
        let Flows { flows, beside } = only.flows();
        if flows.is_empty() {
            return Err(
                "n-tuple rules say protocols, addresses and ports of IP, and no part of it is just that"
                    .into(),
            );
        }
        if flows.len() < self.queues.len() {
            return Err(format!(
                "an n-tuple rule gives packets to one queue, and it is {} of them for {} queues: name one \
                 (xdp:{name}/{})",
                flows.len(),
                self.queues.len(),
                self.queues[0]
            ));
        }
        let ethtool = Ethtool::open().map_err(|error| error.to_string())?;
        let rules = self.rule_table(&ethtool)?;
        steered.table = self.table_without(&ethtool)?;
        steered.undos.push(state::set_rss_table(name, &steered.table).map_err(|error| error.to_string())?);
        self.switch(&ethtool, steered)?;
        let mut left = self.add_rules(&flows, rules, steered)?;
        let queues = said(&self.queues);
        steered.told.push(format!("the RSS table of {name} leaves {queues} out"));
        left.extend(beside.into_iter().map(|beside| {
            let what = match beside {
                Beside::OtherTypes => "packets that are neither IPv4 nor IPv6",
                Beside::Many => "more flows than n-tuple rules can say",
            };
            format!("'{only}' matches {what}, too: these are in no n-tuple rule and stay with the kernel")
        }));
        Ok(left)
    }

    /// The table of n-tuple rules, which must have room.
    fn rule_table(&self, ethtool: &Ethtool) -> Result<Table, String> {
        let name = &self.interface.name;
        if !self.interface.ntuple.on && !self.interface.ntuple.changeable {
            return Err(format!("the driver of {name} has no n-tuple rules"));
        }
        let table = ethtool.rule_table(name).map_err(|error| error.to_string())?;
        free_place(name, &table).map(|_| table)
    }

    /// The RSS table with other queues in the places of ours: those that it has, in turn.
    fn table_without(&self, ethtool: &Ethtool) -> Result<Vec<u32>, String> {
        let name = &self.interface.name;
        let none =
            || format!("the driver of {name} has no RSS table that could leave {} out", said(&self.queues));
        let table = ethtool.rss(name).map_err(|_| none())?.table;
        if table.is_empty() {
            return Err(none());
        }
        without(&table, &self.queues)
            .ok_or_else(|| format!("the RSS table of {name} has no other queue than {}", said(&self.queues)))
    }

    /// Switches features.
    fn switch(&self, ethtool: &Ethtool, steered: &mut Steered) -> Result<(), String> {
        let name = &self.interface.name;
        let features = ethtool.features(name).map_err(|error| error.to_string())?;
        let mut switch = |feature, on| state::set_feature(name, feature, on).map(|it| steered.undos.push(it));
        let off = tags::have_off(&features, &OFF, |feature| switch(feature, false));
        let off =
            off.and_then(|off| switch(NTUPLE, true).map(|()| off)).map_err(|error| error.to_string())?;
        if !off.is_empty() {
            steered.told.push(tags::told(name, &off));
        }
        Ok(())
    }

    /// Adds a rule for each flow. Returns which the driver has not taken; an error when it has taken none.
    fn add_rules(
        &self,
        flows: &[Flow],
        mut table: Table,
        steered: &mut Steered,
    ) -> Result<Vec<String>, String> {
        let name = &self.interface.name;
        let (mut left, mut taken) = (Vec::new(), Vec::new());
        for (flow, queue) in flows.iter().zip(self.queues.iter().cycle()) {
            match Held::add(name, &mut table, &as_rule(flow), Fate::Queue(*queue)) {
                Ok(held) => {
                    taken.push(held.told(flow, name));
                    steered.rules.push(held);
                }
                Err(why) => left.push((flow, why)),
            }
        }
        if taken.is_empty() {
            let (flow, why) = &left[0];
            return Err(format!("'{flow}': {why}"));
        }
        let more = taken.len().saturating_sub(TOLD);
        taken.truncate(TOLD);
        steered.told.extend(taken);
        if more > 0 {
            steered.told.push(format!("{more} more n-tuple rules are as these"));
        }
        let more = left.len().saturating_sub(TOLD);
        let line = |(flow, why): (&Flow, String)| {
            format!("'{flow}' is not in the NIC: {why}; these packets stay with the kernel")
        };
        let mut left: Vec<String> = left.into_iter().take(TOLD).map(line).collect();
        if more > 0 {
            left.push(format!("{more} more are not in the NIC either"));
        }
        Ok(left)
    }
}

impl Steered {
    /// Nothing: the NIC is left alone.
    pub(super) fn nothing(interface: &Interface) -> Self {
        Self {
            undos: Vec::new(),
            table: Vec::new(),
            rules: Vec::new(),
            told: Vec::new(),
            in_nic: RulesHeld::new(interface, 0, &Options::default()),
            kept: None,
            is_over: false,
        }
    }

    /// Adds where the rules are by which the port steers.
    pub(super) fn tell(&mut self, rules: &[bywash_port::Rule]) {
        let places = self.rule_places(rules, Hook::Xdp);
        self.told.extend(places.iter().take(TOLD).map(ToString::to_string));
        if places.len() > TOLD {
            self.told.push(format!("{} more rules: the summary says where each is", places.len() - TOLD));
        }
    }

    /// Where each part of the expression is, a line for each.
    pub(super) fn told(&self) -> &[String] {
        &self.told
    }

    /// What of the rules should be in the NIC, and is not any more.
    pub(super) fn missing(&self) -> Option<&str> {
        self.in_nic.missing()
    }

    /// What the NIC drops for the port's rules.
    pub(super) fn in_nic(&mut self) -> &mut RulesHeld {
        &mut self.in_nic
    }

    /// Where each rule of the port is, whose program is at `hook`.
    pub(super) fn rule_places(&self, rules: &[bywash_port::Rule], hook: Hook) -> Vec<RulePlace> {
        let in_nic = self.in_nic.places();
        if !in_nic.is_empty() {
            return in_nic;
        }
        rules.iter().map(|rule| RulePlace::outside_the_nic(rule, hook)).collect()
    }

    /// Sets again what the driver of the interface, which is called `name` now, has lost when it restarted. Returns what of others' can't
    /// be.
    pub(super) fn confirm(&mut self, name: &str) -> Result<Option<String>, String> {
        // Others' rules first: where drivers choose places, an earlier one may count for more.
        let lost = self.kept.as_ref().and_then(|kept| kept.put_back(self.table.is_empty()).err());
        self.renew(name)?;
        Ok(lost.map(|error| error.to_string()))
    }

    /// The same with what is ours alone: all of it that can be.
    pub(super) fn renew(&mut self, name: &str) -> Result<(), String> {
        if self.is_over {
            return Ok(());
        }
        let in_nic = self.in_nic.confirm(name);
        if self.table.is_empty() {
            return in_nic;
        }
        let table = self.renew_table(name);
        let table = table.map_err(|error| format!("the RSS table of {name} can't be set again: {error}"));
        in_nic.and(table).and(ntuple::renew(name, &mut self.rules))
    }

    fn renew_table(&self, name: &str) -> Result<(), EthtoolError> {
        let ethtool = Ethtool::open()?;
        if ethtool.rss(name)?.table != self.table {
            ethtool.set_rss_table(name, Some(&self.table))?;
        }
        Ok(())
    }

    /// Removes our rules, and notes others': before the program is detached, since some drivers forget all rules then.
    pub(super) fn before_detaching(&mut self) -> Result<(), String> {
        self.is_over = true;
        self.in_nic.take_out()?;
        // What can't be removed is not to be taken for somebody else's.
        undo_each(self.rules.drain(..).map(Held::into_undo))?;
        let with_table = self.table.is_empty();
        self.kept.as_mut().map_or(Ok(()), |kept| kept.note(with_table)).map_err(|error| error.to_string())
    }

    /// Puts all back, the last change first.
    pub(super) fn put_back(&mut self) -> Result<(), String> {
        self.is_over = true;
        let in_nic = self.in_nic.put_back();
        let undone = self.undo_all();
        let kept = self.kept.take().map_or_else(|| Ok(()), |kept| done(kept.end()));
        let left: Vec<String> = [in_nic, undone, kept].into_iter().filter_map(Result::err).collect();
        if left.is_empty() { Ok(()) } else { Err(left.join("; ")) }
    }

    fn undo_all(&mut self) -> Result<(), String> {
        undo_each(self.undos.drain(..).chain(self.rules.drain(..).map(Held::into_undo)))
    }
}

/// The last one first.
fn undo_each(undos: impl DoubleEndedIterator<Item = Undo>) -> Result<(), String> {
    let left: Vec<String> = undos.rev().filter_map(|undo| done(undo.undo()).err()).collect();
    if left.is_empty() { Ok(()) } else { Err(left.join("; ")) }
}

/// Whether it is as it was before.
fn done(undone: Result<Undone, StateError>) -> Result<(), String> {
    match undone {
        Ok(Undone::Back(_)) => Ok(()),
        Ok(Undone::LeftAlone(why)) => Err(why),
        Err(error) => Err(error.to_string()),
    }
}

impl Drop for Steered {
    fn drop(&mut self) {
        // What can't be undone stays in the state file, for `bywash cleanup`.
        self.put_back().ok();
    }
}

/// `queue 4`, `queues 0, 1`.
fn said(queues: &[u32]) -> String {
    let numbers: Vec<String> = queues.iter().map(ToString::to_string).collect();
    format!("queue{} {}", if queues.len() == 1 { "" } else { "s" }, numbers.join(", "))
}

/// A table with its other queues, in turn, where it has `ours`; `None` when it has no others.
fn without(table: &[u32], ours: &[u32]) -> Option<Vec<u32>> {
    let mut others: Vec<u32> = table.iter().copied().filter(|queue| !ours.contains(queue)).collect();
    others.sort_unstable();
    others.dedup();
    if others.is_empty() {
        return None;
    }
    let mut next = others.iter().cycle();
    let other = |queue: &u32| if ours.contains(queue) { next.next().copied() } else { Some(*queue) };
    table.iter().map(other).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_without_our_queues_has_the_others_in_their_places() {
        assert_eq!(without(&[0, 1, 2, 3, 0, 1, 2, 3], &[2]), Some(vec![0, 1, 0, 3, 0, 1, 1, 3]));
        assert_eq!(without(&[0, 1, 2, 3], &[0, 3]), Some(vec![1, 1, 2, 2]));
        assert_eq!(without(&[1, 1, 1, 0], &[7]), Some(vec![1, 1, 1, 0]));
        assert_eq!(without(&[2, 2], &[2]), None);
    }
}
