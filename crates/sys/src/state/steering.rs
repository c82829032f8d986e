//! How an interface steers packets, by whoever has asked for it: n-tuple rules and the RSS table, which its driver may forget when
//! it starts anew for an XDP program (Linux's ixgbe).
//!
//! They are noted before a program is attached, compared with what is there after it was attached and after it was
//! detached, and what is missing is added. Between these two they are whoever's who sets them: so they are noted once more before
//! it is detached.

use super::change::{Change, Record};
use super::network::{self, Place};
use super::{State, StateError, Undo, Undone};
use crate::ethtool::{Ethtool, EthtoolError, FlowSpec};

/// What an interface's driver may forget. It comes back when this is dropped.
#[derive(Debug)]
#[must_use = "dropping it puts back what is missing at once"]
pub struct Kept {
    interface: Place,
    /// `None` when there is nothing to forget.
    noted: Option<Undo>,
}

impl Kept {
    pub(super) fn of(interface: &str) -> Result<Self, StateError> {
        Ok(Self { interface: Place::of(interface)?, noted: None })
    }

    /// Notes what is there now instead of what was. The RSS table only if it is not one that we have set. An interface that is gone has
    /// nothing any more.
    ///
    /// # Errors
    /// When it can't be recorded, or is not known; then what was noted before stays.
    pub fn note(&mut self, with_table: bool) -> Result<(), StateError> {
        let name = match self.interface.name_now() {
            Ok(Ok(name)) => name,
            Ok(Err(_)) => return Ok(()),
            // Nothing was there before, so nothing is lost.
            Err(_) if self.noted.is_none() => return Ok(()),
            Err(error) => return Err(error),
        };
        let ethtool = Ethtool::open()?;
        let rules = match ethtool.specs(&name) {
            Ok(rules) => rules,
            Err(EthtoolError::Unsupported { .. }) => Vec::new(),
            // Of a driver that has never told any, none is missed.
            Err(_) if self.noted.is_none() => Vec::new(),
            Err(error) => return Err(error.into()),
        };
        let rules = self.of_others(rules)?;
        // Nobody misses what every driver begins with.
        let table = if with_table { own_table(&ethtool, &name) } else { None };
        if rules.is_empty() && table.is_none() {
            return self.noted.take().map_or(Ok(()), Undo::forget);
        }
        let change = Change::Steering { interface: self.interface.clone(), rules, table };
        match &self.noted {
            Some(noted) => noted.replace(change),
            None => {
                let state = State::of_process()?;
                let _lock = state.store.lock()?;
                self.noted = Some(state.make(change, || Ok(()))?);
                Ok(())
            }
        }
    }

    /// Rules that none of us has added. Whoever has will remove them, or `bywash cleanup` where he was killed: what is noted here comes
    /// back without a record that anybody would remove it by.
    fn of_others(&self, rules: Vec<FlowSpec>) -> Result<Vec<FlowSpec>, StateError> {
        if rules.is_empty() {
            return Ok(rules);
        }
        let state = State::of_process()?;
        let _lock = state.store.lock()?;
        let records = state.others(&state.records());
        Ok(rules.into_iter().filter(|rule| !is_ours(&self.interface, rule, &records)).collect())
    }

    /// Adds what is missing now. The RSS table only if none was set since by us.
    ///
    /// # Errors
    /// What can't be put back, and why.
    pub fn put_back(&self, with_table: bool) -> Result<(), StateError> {
        match self.noted.as_ref().and_then(Undo::change) {
            Some(Change::Steering { interface, rules, table }) => {
                let table = table.as_deref().filter(|_| with_table);
                put_back(&interface, &rules, table, &[]).map(drop)
            }
            _ => Ok(()),
        }
    }

    /// Adds what is missing for the last time.
    ///
    /// # Errors
    /// What can't be put back, and why; it is kept, for `bywash cleanup`.
    pub fn end(mut self) -> Result<Undone, StateError> {
        self.noted.take().map_or_else(|| Ok(Undone::Back("nothing was forgotten".into())), Undo::undo)
    }
}

impl Undo {
    /// The change, as it is recorded.
    fn change(&self) -> Option<Change> {
        let records = self.state.records();
        records.iter().find(|record| Some(record.id) == self.record).map(|record| record.change.clone())
    }

    /// Records another change instead.
    fn replace(&self, change: Change) -> Result<(), StateError> {
        let _lock = self.state.store.lock()?;
        let mut records = self.state.records();
        if let Some(record) = records.iter_mut().find(|record| Some(record.id) == self.record) {
            record.change = change;
        }
        self.state.store.save(&self.state.owner, &records)
    }

    /// There is nothing to be undone any more.
    fn forget(mut self) -> Result<(), StateError> {
        let _lock = self.state.store.lock()?;
        let mut records = self.state.records();
        match self.record.take() {
            Some(id) => self.state.forget(&mut records, id),
            None => Ok(()),
        }
    }
}

/// Whether one of us, dead or alive, has added a rule.
fn is_ours(place: &Place, spec: &FlowSpec, records: &[Record]) -> bool {
    let is_it = |record: &Record| match &record.change {
        Change::Rule { interface, rule } => interface == place && spec.is(rule),
        _ => false,
    };
    records.iter().any(is_it)
}

/// The RSS table, when it is not what every driver begins with: all queues in turn. Over fewer, it may be somebody's wish.
fn own_table(ethtool: &Ethtool, name: &str) -> Option<Vec<u32>> {
    let table = ethtool.rss(name).ok()?.table;
    (!network::is_drivers(&table, network::channels(ethtool, name), &[])).then_some(table)
}

/// Adds the rules that an interface lacks, and puts its RSS table back where no living process has set one.
pub(super) fn put_back(
    place: &Place,
    rules: &[FlowSpec],
    table: Option<&[u32]>,
    living: &[Record],
) -> Result<Undone, StateError> {
    let name = match place.name_now()? {
        Ok(name) => name,
        Err(gone) => return Ok(gone),
    };
    let ethtool = Ethtool::open()?;
    let is_theirs =
        |record: &Record| matches!(&record.change, Change::RssTable { interface, .. } if interface == place);
    let table = table.filter(|_| !living.iter().any(is_theirs));
    let table = table.map(|table| network::put_table_back(&ethtool, &name, (table, table, false)));
    let mut left = add_missing(&ethtool, &name, rules)?;
    match table {
        Some(Err(error)) => left.push(error.to_string()),
        Some(Ok(Undone::LeftAlone(line))) if left.is_empty() => return Ok(Undone::LeftAlone(line)),
        _ => {}
    }
    if left.is_empty() {
        return Ok(Undone::Back(format!("{name} steers packets as it did")));
    }
    Err(StateError::Interface { name, why: left.join("; ") })
}

/// What can't be added, a line for each.
fn add_missing(ethtool: &Ethtool, name: &str, rules: &[FlowSpec]) -> Result<Vec<String>, EthtoolError> {
    if rules.is_empty() {
        return Ok(Vec::new());
    }
    let chooses = ethtool.rule_table(name)?.chooses;
    let now = ethtool.specs(name)?;
    let is_there = |rule: &FlowSpec| now.iter().any(|it| it == rule || chooses && it.is_alike(rule));
    let missing = rules.iter().filter(|rule| !is_there(rule));
    let add = |rule: &FlowSpec| {
        let taken = now.iter().find(|other| other.location() == rule.location());
        if let Some(other) = taken.filter(|_| !chooses) {
            return Err(format!("'{other}' is there by now"));
        }
        let added = ethtool.add_spec(name, rule, taken.is_some());
        // Where the driver chooses, its old place need not be one that can be asked for.
        let added = if chooses { added.or_else(|_| ethtool.add_spec(name, rule, true)) } else { added };
        added.map_err(|error| error.to_string())
    };
    let said = |(rule, why): (&FlowSpec, String)| {
        format!("n-tuple rule {} ('{rule}') can't be put back: {why}", rule.location())
    };
    Ok(missing.filter_map(|rule| add(rule).err().map(|why| said((rule, why)))).collect())
}

#[cfg(test)]
mod tests {
    use std::fmt::Write;

    use super::*;
    use crate::ethtool::{Fate, Flow, Rule};

    /// `udp4 dst-port 53 queue 3` at a place, as a driver tells of it: type, port and its mask, queue, place.
    fn told(place: u8) -> FlowSpec {
        let mut bytes = [0_u8; 172];
        for (at, byte) in [(0, 2), (15, 53), (86, 0xff), (87, 0xff), (152, 3), (160, place)] {
            bytes[at] = byte;
        }
        let mut text = String::new();
        bytes.iter().for_each(|byte| write!(text, "{byte:02x}").unwrap());
        serde_json::from_value(text.into()).unwrap()
    }

    fn asked(location: Option<u32>) -> Rule {
        let (mut value, mut mask) = (vec![0; 12], vec![0; 12]);
        (value[11], mask[10], mask[11]) = (53, 0xff, 0xff);
        let flow = Flow { ipv6: false, protocol: Some(17), value, mask };
        Rule { flow, fate: Fate::Queue(3), location }
    }

    #[test]
    fn a_rule_that_one_of_us_has_added_is_nobody_elses() {
        let place = |index: u32| -> Place {
            let text = format!("{{\"namespace\":1,\"index\":{index},\"name\":\"left\"}}");
            serde_json::from_str(&text).unwrap()
        };
        let spec = told(7);
        assert_eq!(spec.to_string(), "udp4 dst-port 53 queue 3");
        for (index, rule, is_ours) in [
            (2, asked(Some(7)), true),
            (2, asked(None), true),
            (2, asked(Some(8)), false),
            (3, asked(Some(7)), false),
            (2, Rule { fate: Fate::Drop, ..asked(Some(7)) }, false),
        ] {
            let record = Record::new(&[], Change::Rule { interface: place(index), rule: rule.clone() });
            assert_eq!(super::is_ours(&place(2), &spec, &[record]), is_ours, "{index}, {rule:?}");
        }
    }
}
