//! Changes of a network interface: how it spreads packets, what it does to them, its n-tuple rules.
//!
//! They are the driver's, and stay when the process that made them is gone. An interface is known by its number and the
//! network namespace that this is a number of; its name may change.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::change::{self, Change, Record};
use super::{State, StateError, Undo, Undone};
use crate::ethtool::{Ethtool, Rule};
use crate::namespace::Namespace;
use crate::route::Route;

/// An interface. It is the same by another name.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Place {
    namespace: u64,
    index: u32,
    /// When the change was made.
    name: String,
}

impl PartialEq for Place {
    fn eq(&self, other: &Self) -> bool {
        (self.namespace, self.index) == (other.namespace, other.index)
    }
}

impl Eq for Place {}

impl Place {
    pub(super) fn of(name: &str) -> Result<Self, StateError> {
        let absent = || StateError::Interface { name: name.into(), why: "there is none of this name".into() };
        let link = Route::open()?.link(name)?.ok_or_else(absent)?;
        Ok(Self { namespace: Namespace::current()?.number()?, index: link.index, name: link.name })
    }

    /// What it is called by now; else why it needs no undoing.
    pub(super) fn name_now(&self) -> Result<Result<String, Undone>, StateError> {
        let gone = |what: &str| Ok(Err(Undone::LeftAlone(format!("{what} of {} is gone", self.name))));
        if Namespace::current()?.number()? != self.namespace {
            if !has_processes(self.namespace) {
                return gone("the network namespace");
            }
            let why = "it is in another network namespace: run `bywash cleanup` there".into();
            return Err(StateError::Interface { name: self.name.clone(), why });
        }
        let link = Route::open()?.links()?.into_iter().find(|link| link.index == self.index);
        match link {
            Some(link) => Ok(Ok(link.name)),
            None => Ok(Err(Undone::LeftAlone(format!("{} is gone", self.name)))),
        }
    }
}

/// The file that holds a setting of an interface. `/sys` shows the interfaces of the namespace that it was mounted in, which may have
/// another of this name.
fn setting_of(place: &Place, name: &str, setting: &str) -> Result<PathBuf, StateError> {
    let directory = Path::new("/sys/class/net").join(name);
    let mac = Route::open()?.link(name)?.and_then(|link| link.mac);
    let shows = |file: &str, value: String| {
        fs::read_to_string(directory.join(file)).is_ok_and(|text| text.trim() == value)
    };
    if shows("ifindex", place.index.to_string()) && mac.is_none_or(|mac| shows("address", mac.to_string())) {
        return Ok(directory.join(setting));
    }
    let why = "/sys is another network namespace's: `ip netns exec` mounts one's own".into();
    Err(StateError::Interface { name: name.into(), why })
}

/// Whether anybody is in a network namespace, or it has a name.
fn has_processes(namespace: u64) -> bool {
    let under = |folder: &str| fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    let is_it = |path: PathBuf| fs::metadata(path).is_ok_and(|file| file.ino() == namespace);
    under("/proc").any(|process| is_it(process.join("ns/net"))) || under("/run/netns").any(is_it)
}

impl State {
    /// As [`set_rss_table`](super::set_rss_table).
    ///
    /// # Errors
    /// As [`set_rss_table`](super::set_rss_table).
    pub fn set_rss_table(self: &Arc<Self>, interface: &str, table: &[u32]) -> Result<Undo, StateError> {
        let _lock = self.store.lock()?;
        let (place, ethtool) = (Place::of(interface)?, Ethtool::open()?);
        let now = ethtool.rss(interface)?.table;
        let others = self.others(&self.records());
        let channels = channels(&ethtool, interface);
        let theirs = others.into_iter().find_map(|record| match record.change {
            Change::RssTable { interface, before, set, own } if interface == place => {
                (set == now || is_drivers(&now, channels, &before)).then_some((before, own))
            }
            Change::Steering { interface, table, .. } if interface == place => {
                table.filter(|before| is_drivers(&now, channels, before)).map(|before| (before, false))
            }
            _ => None,
        });
        let (before, own) = theirs.unwrap_or_else(|| {
            let own = is_drivers(&now, channels, &[]);
            (now, own)
        });
        let change = Change::RssTable { interface: place, before, set: table.to_vec(), own };
        self.make(change, || Ok(ethtool.set_rss_table(interface, Some(table))?))
    }

    /// As [`set_feature`](super::set_feature).
    ///
    /// # Errors
    /// As [`set_feature`](super::set_feature).
    pub fn set_feature(
        self: &Arc<Self>,
        interface: &str,
        feature: &str,
        on: bool,
    ) -> Result<Undo, StateError> {
        let _lock = self.store.lock()?;
        let (place, ethtool) = (Place::of(interface)?, Ethtool::open()?);
        let is_on = ethtool.features(interface)?.get(feature).is_some_and(|feature| feature.on);
        let others = self.others(&self.records());
        let theirs = others.into_iter().find_map(|record| match record.change {
            Change::Feature { interface, feature: theirs, before } => {
                (interface == place && theirs == feature).then_some(before)
            }
            _ => None,
        });
        let before = theirs.unwrap_or(is_on);
        if before == on && is_on == on {
            return Ok(Undo { state: Arc::clone(self), record: None, added: 0 });
        }
        let change = Change::Feature { interface: place, feature: feature.into(), before };
        self.make(change, || {
            ethtool.set_features(interface, &[feature], on).map_err(|error| {
                // The kernel keeps the wish, and would grant it later.
                ethtool.set_features(interface, &[feature], is_on).ok();
                error.into()
            })
        })
    }

    /// As [`set_setting`](super::set_setting).
    ///
    /// # Errors
    /// As [`set_setting`](super::set_setting).
    pub fn set_setting(
        self: &Arc<Self>,
        interface: &str,
        setting: &str,
        value: &str,
    ) -> Result<Undo, StateError> {
        let _lock = self.store.lock()?;
        let place = Place::of(interface)?;
        let path = setting_of(&place, interface, setting)?;
        let now = change::read(&path)?;
        let others = self.others(&self.records());
        let theirs = others.into_iter().find_map(|record| match record.change {
            Change::Setting { interface, setting: theirs, before, set } => {
                (interface == place && theirs == setting && set == now).then_some(before)
            }
            _ => None,
        });
        let before = theirs.unwrap_or_else(|| now.clone());
        if before == value && now == value {
            return Ok(Undo { state: Arc::clone(self), record: None, added: 0 });
        }
        let (setting, set) = (setting.into(), value.into());
        self.make(Change::Setting { interface: place, setting, before, set }, || change::write(&path, value))
    }

    /// As [`add_rule`](super::add_rule).
    ///
    /// # Errors
    /// As [`add_rule`](super::add_rule).
    pub fn add_rule(self: &Arc<Self>, interface: &str, rule: &Rule) -> Result<Undo, StateError> {
        let _lock = self.store.lock()?;
        let (interface, ethtool) = (Place::of(interface)?, Ethtool::open()?);
        let name = interface.name.clone();
        let change = Change::Rule { interface, rule: rule.clone() };
        self.make(change, || Ok(ethtool.add_rule(&name, rule).map(drop)?))
    }
}

/// Puts an RSS table back, unless somebody else has set one since.
pub(super) fn undo_table(place: &Place, table: Table<'_>, living: &[Record]) -> Result<Undone, StateError> {
    let name = match place.name_now()? {
        Ok(name) => name,
        Err(gone) => return Ok(gone),
    };
    if living
        .iter()
        .any(|record| matches!(&record.change, Change::RssTable { interface, .. } if interface == place))
    {
        return Ok(Undone::LeftAlone(format!("the RSS table of {name} is another process's by now")));
    }
    let ethtool = Ethtool::open()?;
    put_table_back(&ethtool, &name, table)
}

/// An RSS table as it was before, as we have set it, and whether what was before is the driver's own.
pub(super) type Table<'a> = (&'a [u32], &'a [u32], bool);

/// Puts an RSS table back, unless it is neither what we have set nor what a driver has when it starts.
pub(super) fn put_table_back(
    ethtool: &Ethtool,
    name: &str,
    (before, set, own): Table<'_>,
) -> Result<Undone, StateError> {
    let (now, channels) = (ethtool.rss(name)?.table, channels(ethtool, name));
    // What drivers make when they restart is nobody's wish.
    if now != before && now != set && !is_drivers(&now, channels, before) {
        let line = format!("the RSS table of {name} is another by now: somebody else has changed it since");
        return Ok(Undone::LeftAlone(line));
    }
    let by_itself = match now == before {
        // The kernel has not forgotten that a table was set, and would let nobody have fewer queues.
        true => own && is_drivers(&now, channels, &[]),
        false => own || is_in_turn(before),
    };
    if by_itself {
        ethtool.set_rss_table(name, None)?;
    }
    // The driver's own may be over more queues by now, or over fewer.
    if !own && ethtool.rss(name)?.table != before {
        ethtool.set_rss_table(name, Some(before))?;
    }
    Ok(Undone::Back(format!("the RSS table of {name} is as it was")))
}

/// How many queues an interface receives by; `None` when its driver does not tell.
pub(super) fn channels(ethtool: &Ethtool, name: &str) -> Option<u32> {
    ethtool.channels(name).ok().map(|channels| channels.rx)
}

/// Whether a table is one that a driver makes when it starts: all queues in turn, or, where it spreads packets over fewer than there are,
/// as many as the table had that was seen first.
pub(super) fn is_drivers(table: &[u32], channels: Option<u32>, first: &[u32]) -> bool {
    let queues = queues(table);
    is_in_turn(table) && (table.is_empty() || Some(queues) == channels || queues == self::queues(first))
}

/// How many queues a table is for, with those that it leaves out.
fn queues(table: &[u32]) -> u32 {
    table.iter().max().map_or(0, |last| last.saturating_add(1))
}

/// Whether a table has queues in turn, from 0 on.
fn is_in_turn(table: &[u32]) -> bool {
    let queues = queues(table).max(1);
    (0..).zip(table).all(|(place, queue): (u32, &u32)| place % queues == *queue)
}

/// Switches a feature to what it was, unless a process that lives needs it.
pub(super) fn undo_feature(
    place: &Place,
    feature: &str,
    before: bool,
    living: &[Record],
) -> Result<Undone, StateError> {
    let name = match place.name_now()? {
        Ok(name) => name,
        Err(gone) => return Ok(gone),
    };
    let is_theirs = |record: &Record| match &record.change {
        Change::Feature { interface, feature: theirs, .. } => interface == place && theirs == feature,
        _ => false,
    };
    if living.iter().any(is_theirs) {
        return Ok(Undone::LeftAlone(format!("{feature} of {name} is another process's by now")));
    }
    let ethtool = Ethtool::open()?;
    if ethtool.features(&name)?.get(feature).is_some_and(|feature| feature.on != before) {
        ethtool.set_features(&name, &[feature], before)?;
    }
    let state = if before { "on" } else { "off" };
    Ok(Undone::Back(format!("{feature} of {name} is {state} again")))
}

/// Puts a setting back as it was `before` we `set` it, unless somebody else has changed it since.
pub(super) fn undo_setting(
    place: &Place,
    setting: &str,
    (before, set): (&str, &str),
    living: &[Record],
) -> Result<Undone, StateError> {
    let name = match place.name_now()? {
        Ok(name) => name,
        Err(gone) => return Ok(gone),
    };
    let theirs = living.iter().filter_map(|record| match &record.change {
        Change::Setting { interface, setting: theirs, set, .. } => {
            (interface == place && theirs == setting).then_some((record.at, &**set))
        }
        _ => None,
    });
    let wanted = theirs.max().map(|(_, set)| set);
    change::put_back(&setting_of(place, &name, setting)?, before, set, wanted)
}

/// Removes an n-tuple rule, if it is there, unless a process that lives has added the same at the same place: the driver had forgotten it
/// by then.
pub(super) fn undo_rule(place: &Place, rule: &Rule, living: &[Record]) -> Result<Undone, StateError> {
    let name = match place.name_now()? {
        Ok(name) => name,
        Err(gone) => return Ok(gone),
    };
    let is_theirs = |record: &Record| match &record.change {
        Change::Rule { interface, rule: theirs } => interface == place && theirs == rule,
        _ => false,
    };
    if living.iter().any(is_theirs) {
        return Ok(Undone::LeftAlone(format!("an n-tuple rule of {name} is another process's by now")));
    }
    let ethtool = Ethtool::open()?;
    Ok(match ethtool.find_rule(&name, rule)? {
        Some(location) => {
            ethtool.remove_rule(&name, location)?;
            Undone::Back(format!("{name} has no n-tuple rule {location} again"))
        }
        None => Undone::LeftAlone(format!("an n-tuple rule of {name} is gone")),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ethtool::{Fate, Flow};

    /// What a driver has forgotten and another process has added since is not the dead one's any more.
    #[test]
    fn a_rule_of_a_process_that_lives_stays() {
        let flow = Flow { ipv6: false, protocol: Some(17), value: vec![0; 12], mask: vec![0; 12] };
        let rule = Rule { flow, fate: Fate::Queue(3), location: Some(2045) };
        let place = Place::of("lo").unwrap();
        let elsewhere = Place { index: place.index + 1, ..place.clone() };
        let of = |interface: &Place, rule: Rule| {
            Record::new(&[], Change::Rule { interface: interface.clone(), rule })
        };
        let undone = undo_rule(&place, &rule, &[of(&place, rule.clone())]).unwrap();
        assert_eq!(undone, Undone::LeftAlone("an n-tuple rule of lo is another process's by now".into()));
        // The driver is asked, and `lo` has none.
        for other in [
            of(&elsewhere, rule.clone()),
            of(&place, Rule { location: Some(2044), ..rule.clone() }),
            of(&place, Rule { fate: Fate::Drop, ..rule.clone() }),
        ] {
            let asked = undo_rule(&place, &rule, std::slice::from_ref(&other));
            assert!(matches!(asked, Err(StateError::Ethtool(_))), "{other:?}: {asked:?}");
        }
    }

    #[test]
    fn an_interface_is_the_same_by_another_name() {
        let place = |index, name: &str| Place { namespace: 1, index, name: name.into() };
        assert_eq!(place(2, "eth1"), place(2, "wan"));
        assert_ne!(place(2, "eth1"), place(3, "eth1"));
    }

    #[test]
    fn an_earlier_versions_table_is_put_back_as_it_was() {
        let place = r#"{"namespace":1,"index":2,"name":"left"}"#;
        let written = format!(r#"{{"kind":"rss_table","interface":{place},"before":[0,1],"set":[1,1]}}"#);
        let read: Change = serde_json::from_str(&written).unwrap();
        assert!(matches!(read, Change::RssTable { own: false, .. }), "{read:?}");
    }

    #[test]
    fn queues_in_turn_are_known() {
        for (table, is_own) in [
            (&[0, 1, 2, 0, 1, 2, 0, 1][..], true),
            (&[0, 0, 0], true),
            (&[], true),
            (&[0, 1, 2, 3, 0], true),
            (&[1, 1, 1], false),
            (&[0, 1, 3, 0, 1, 3], false),
            (&[0, 2, 1, 0, 2, 1], false),
        ] {
            assert_eq!(is_in_turn(table), is_own, "{table:?}");
        }
    }

    #[test]
    fn a_drivers_own_table_is_told_from_one_that_somebody_has_set() {
        let four = [0, 1, 2, 3, 0, 1, 2, 3];
        // As by `ethtool -X eth1 equal 2`.
        let two = [0, 1, 0, 1, 0, 1, 0, 1];
        for (table, channels, first, is_own) in [
            (&four[..], Some(4), &[1, 1, 1][..], true),
            (&two, Some(4), &four, false),
            (&two, Some(2), &four, true),
            // The driver spreads over fewer than there are.
            (&four, Some(63), &[3, 2, 1], true),
            (&two, Some(63), &four, false),
            (&two, None, &four, false),
            (&[1, 1, 1], Some(2), &[1, 1, 1], false),
            (&[], Some(4), &four, true),
            (&four, Some(63), &[], false),
        ] {
            assert_eq!(is_drivers(table, channels, first), is_own, "{table:?}, {channels:?}, {first:?}");
        }
    }
}
