//! Kinds of changes, and how each is undone.
//!
//! A later kind is one more variant of [`Change`] and one more arm of `undo`.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

use super::network::{self, Place};
use super::steering;
use super::{StateError, Undone};
use crate::ethtool::{FlowSpec, Rule};
use crate::modules;
use crate::pci::{Config, Device};

/// One change, as the state file has it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub(super) enum Change {
    /// A file's whole content.
    File {
        /// The file.
        path: PathBuf,
        /// What it held at first.
        before: String,
        /// What it held after the change.
        set: String,
    },
    /// A number in a file that others raise, too.
    Added {
        /// The file.
        path: PathBuf,
        /// By how much it was raised.
        added: u64,
    },
    /// A number that is being raised: written down first, since its process may die while the kernel looks for huge pages.
    Raising {
        /// The file.
        path: PathBuf,
        /// The number at first.
        before: u64,
        /// What was asked for: the kernel may have got less far.
        wanted: u64,
    },
    /// Which driver has a PCI function.
    Driver {
        /// The function's address.
        device: String,
        /// Its driver at first.
        before: Option<String>,
        /// The driver that it was reserved for at first.
        reserved: Option<String>,
        /// Its driver after the change; none when a program drives it without the kernel.
        set: Option<String>,
    },
    /// Virtual functions of a NIC that had none.
    VirtualFunctions {
        /// The NIC's address.
        device: String,
        /// How many it has after the change.
        set: u32,
    },
    /// A kernel module that was not loaded.
    Module {
        /// Its name.
        name: String,
    },
    /// How an interface spreads packets over its queues.
    RssTable {
        /// The interface.
        interface: Place,
        /// The table at first.
        before: Vec<u32>,
        /// The table after the change.
        set: Vec<u32>,
        /// At first it was the driver's own, over all queues that there were then: nobody's wish, so what the driver has by itself for
        /// those of now is the way back.
        #[serde(default)]
        own: bool,
    },
    /// A feature of an interface.
    Feature {
        /// The interface.
        interface: Place,
        /// Its name.
        feature: String,
        /// Whether it was on at first.
        before: bool,
    },
    /// A setting of an interface: a file of its directory in `/sys`.
    Setting {
        /// The interface.
        interface: Place,
        /// The file's name.
        setting: String,
        /// What it held at first.
        before: String,
        /// What it held after the change.
        set: String,
    },
    /// An n-tuple rule that an interface did not have.
    Rule {
        /// The interface.
        interface: Place,
        /// The rule.
        rule: Rule,
    },
    /// How an interface steers packets, by whoever has asked for it: nothing that we have changed, but what its driver forgets
    /// when it starts anew for an XDP program.
    Steering {
        /// The interface.
        interface: Place,
        /// All its n-tuple rules.
        rules: Vec<FlowSpec>,
        /// Its RSS table; none where that is not the question.
        table: Option<Vec<u32>>,
    },
}

/// A change with its place in time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Record {
    /// Its number in its process.
    pub(super) id: u64,
    /// When it was made, in ns since the machine was started: the last change is the first to be undone.
    pub(super) at: u64,
    /// What was changed.
    pub(super) change: Change,
    /// It is to stay when its process ends: others treat it as one of a process that lives, until somebody undoes it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(super) kept: bool,
}

impl Record {
    pub(super) fn new(before: &[Self], change: Change) -> Self {
        let id = before.last().map_or(1, |last| last.id + 1);
        let now = clock_gettime(ClockId::Boottime);
        let at = u64::try_from(now.tv_sec).unwrap_or_default() * 1_000_000_000
            + u64::try_from(now.tv_nsec).unwrap_or_default();
        Self { id, at, change, kept: false }
    }

    /// Makes undoing safe to be cut short and tried again: a number to be lowered *by* something becomes one to be lowered
    /// *to* something. True when the record must be saved before the change is undone.
    pub(super) fn pin(&mut self, living: &[Self]) -> Result<bool, StateError> {
        let (path, before, now) = match &self.change {
            Change::Added { path, added } if path.exists() => {
                let now = read_number(path)?;
                (path.clone(), now.saturating_sub(*added), now)
            }
            Change::Raising { path, before, wanted } if path.exists() => {
                let now = read_number(path)?;
                // Who has raised it since lowers it by that himself.
                let later =
                    living.iter().filter(|record| record.at > self.at).map(|record| match &record.change {
                        Change::Added { path: theirs, added } if theirs == path => *added,
                        _ => 0,
                    });
                let later: u64 = later.sum();
                let before = before.saturating_add(later);
                if now <= before || now > wanted.saturating_add(later) {
                    return Ok(false);
                }
                (path.clone(), before, now)
            }
            _ => return Ok(false),
        };
        self.change = Change::File { path, before: before.to_string(), set: now.to_string() };
        self.kept = false;
        Ok(true)
    }
}

/// What was there before anybody of us changed it: `now`, unless another's record says that it is a change of theirs.
pub(super) fn first_value(others: &[Record], path: &Path, now: &str) -> String {
    let theirs = others.iter().find_map(|record| match &record.change {
        Change::File { path: theirs, before, set } if theirs == path && set == now => Some(before.clone()),
        _ => None,
    });
    theirs.unwrap_or_else(|| now.to_owned())
}

/// The driver and the reservation that a PCI function had before anybody of us changed it: `now`, unless another's record
/// says that it is a change of theirs.
pub(super) fn first_driver(
    others: &[Record],
    address: &str,
    now: (Option<String>, Option<String>),
) -> (Option<String>, Option<String>) {
    let theirs = others.iter().find_map(|record| match &record.change {
        Change::Driver { device, before, reserved, set } if device == address && now.0 == *set => {
            Some((before.clone(), reserved.clone()))
        }
        _ => None,
    });
    theirs.unwrap_or(now)
}

impl Change {
    /// Takes the right to reach memory from a function that a program has driven without the kernel, and that nobody has by now.
    pub(super) fn stop_dma(&self, bus: &Path) -> io::Result<()> {
        let Self::Driver { device, set: None, .. } = self else { return Ok(()) };
        let device = device.parse().ok().and_then(|address| Device::on(bus.into(), address));
        let Some(device) = device.filter(|device| device.driver().is_none()) else { return Ok(()) };
        let config = Config::open(&device)?;
        if config.lock()? { config.forbid_dma() } else { Ok(()) }
    }

    /// Undoes it; functions are those of the PCI bus that is shown in `bus`. `living` are the changes that somebody still wants.
    pub(super) fn undo(&self, bus: &Path, living: &[Record]) -> Result<Undone, StateError> {
        let function = |address: &str| Device::on(bus.into(), address.parse().ok()?);
        match self {
            Self::Driver { device, before, reserved, set } => {
                let wanted = living.iter().any(
                    |record| matches!(&record.change, Self::Driver { device: theirs, .. } if theirs == device),
                );
                let Some(device) = function(device) else { return Ok(gone(device)) };
                give_back(&device, before.as_deref(), reserved.as_deref(), set.as_deref(), wanted)
            }
            Self::File { path, .. } | Self::Added { path, .. } | Self::Raising { path, .. }
                if !path.exists() =>
            {
                Ok(Undone::LeftAlone(format!("{} is gone", path.display())))
            }
            Self::Added { path, .. } => {
                let name = path.display();
                Ok(Undone::LeftAlone(format!("{name} was gone when the change was to be undone")))
            }
            Self::File { path, before, set } => Self::undo_file(path, before, set, living),
            // It was not raised, or is more than was asked for.
            Self::Raising { path, before, wanted } => {
                put_back(path, &before.to_string(), &wanted.to_string(), None)
            }
            Self::VirtualFunctions { device, set } => {
                function(device).map_or_else(|| Ok(gone(device)), |device| remove_functions(&device, *set))
            }
            Self::Module { name } => unload(name),
            Self::RssTable { interface, before, set, own } => {
                network::undo_table(interface, (before, set, *own), living)
            }
            Self::Feature { interface, feature, before } => {
                network::undo_feature(interface, feature, *before, living)
            }
            Self::Setting { interface, setting, before, set } => {
                network::undo_setting(interface, setting, (before, set), living)
            }
            Self::Rule { interface, rule } => network::undo_rule(interface, rule, living),
            Self::Steering { interface, rules, table } => {
                steering::put_back(interface, rules, table.as_deref(), living)
            }
        }
    }

    fn undo_file(path: &Path, before: &str, set: &str, living: &[Record]) -> Result<Undone, StateError> {
        let theirs = living.iter().filter_map(|record| match &record.change {
            Self::File { path: theirs, set, .. } if theirs == path => Some((record.at, &**set)),
            _ => None,
        });
        put_back(path, before, set, theirs.max().map(|(_, set)| set))
    }
}

/// Writes into a file what it held before we `set` it, or what another process that lives wants of it.
pub(super) fn put_back(
    path: &Path,
    before: &str,
    set: &str,
    wanted: Option<&str>,
) -> Result<Undone, StateError> {
    let (name, now) = (path.display(), read(path)?);
    if let Some(wanted) = wanted.filter(|_| now == set) {
        write(path, wanted)?;
        return Ok(Undone::LeftAlone(format!("{name} holds '{wanted}', which another process still wants")));
    }
    if now == before {
        return Ok(Undone::Back(format!("{name} holds '{before}' again")));
    }
    if now != set {
        return Ok(Undone::LeftAlone(format!(
            "{name} holds '{now}' by now: somebody else has changed it since we set '{set}' (it was '{before}')"
        )));
    }
    write(path, before)?;
    Ok(Undone::Back(format!("{name} holds '{before}' again, not '{set}'")))
}

/// A PCI function is not there any more.
fn gone(address: &str) -> Undone {
    Undone::LeftAlone(format!("{address} is gone"))
}

/// Gives a PCI function back to the driver that had it, unless somebody else has given it away since, or a process that
/// lives has taken it over.
fn give_back(
    device: &Device,
    before: Option<&str>,
    reserved: Option<&str>,
    set: Option<&str>,
    wanted: bool,
) -> Result<Undone, StateError> {
    let address = device.address().to_string();
    if wanted {
        return Ok(Undone::LeftAlone(format!("{address} is another process's by now")));
    }
    let now = device.driver();
    // Without a driver it is as we left it if we did not get further than that.
    if let Some(other) = now.as_deref().filter(|now| Some(*now) != set && Some(*now) != before) {
        let line = format!("{address} is driven by {other} by now: somebody else has changed it since");
        return Ok(Undone::LeftAlone(line));
    }
    if now.is_some() && now.as_deref() != before && device.is_open() {
        return Err(StateError::Open { device: address });
    }
    let failed = |source| StateError::Driver {
        device: address.clone(),
        driver: before.unwrap_or("no driver").into(),
        source,
    };
    if set.is_none() && now.is_none() {
        // The kernel's driver lets it do DMA before it has reset it: nothing of the program's may be running by then.
        let config = Config::open(device).map_err(failed)?;
        if !config.lock_soon().map_err(failed)? {
            return Err(StateError::Open { device: address });
        }
        config.forbid_dma().map_err(failed)?;
        device.reset().map_err(failed)?;
    }
    device.give_to(before, reserved).map_err(failed)?;
    let driver =
        before.map_or_else(|| "has no driver again".into(), |name| format!("is driven by {name} again"));
    Ok(Undone::Back(format!("{address} {driver}, not by {}", set.unwrap_or(PROGRAM))))
}

/// Who drives a function that has no driver of the kernel's.
pub(super) const PROGRAM: &str = "a program";

/// Removes a NIC's virtual functions, unless one is in use or their number is not ours.
fn remove_functions(device: &Device, set: u32) -> Result<Undone, StateError> {
    let address = device.address();
    match device.virtual_functions() {
        0 => {}
        now if now != set => {
            let line = format!(
                "{address} has {now} virtual functions by now: somebody else has changed that since we made {set}"
            );
            return Ok(Undone::LeftAlone(line));
        }
        _ => {
            device.check_virtual_functions_unused()?;
            device.write_virtual_functions(0)?;
        }
    }
    Ok(Undone::Back(format!("{address} has no virtual functions again, not {set}")))
}

/// Unloads a module, unless somebody needs it by now.
fn unload(name: &str) -> Result<Undone, StateError> {
    if !modules::is_loaded(name) {
        return Ok(Undone::LeftAlone(format!("module {name} is gone")));
    }
    Ok(match modules::unload(name) {
        Ok(()) => Undone::Back(format!("module {name} is not loaded again")),
        Err(error) => Undone::LeftAlone(format!("module {name} stays loaded: {error}")),
    })
}

/// What a file holds, without blanks around it. A number of huge pages is what was last asked for, as it is written: without the pages
/// that the kernel shows in it until who has them ends ([`surplus`]).
pub(super) fn read(path: &Path) -> Result<String, StateError> {
    loop {
        let surplus_before = surplus(path)?;
        let value = content(path)?;
        // Such pages go at any time.
        match surplus(path)? {
            now if now != surplus_before => {}
            0 => return Ok(value),
            now => return Ok(number(path, value)?.saturating_sub(now).to_string()),
        }
    }
}

pub(super) fn read_number(path: &Path) -> Result<u64, StateError> {
    number(path, read(path)?)
}

/// Huge pages that a pool has lost while they were in use, which leave it when they are not any more; 0 of another number. A larger pool
/// has them again (`hugetlbpage.rst` of the kernel's documentation).
pub(super) fn surplus(path: &Path) -> Result<u64, StateError> {
    let file = path.with_file_name("surplus_hugepages");
    if !path.ends_with("nr_hugepages") || !file.exists() {
        return Ok(0);
    }
    number(&file, content(&file)?)
}

fn content(path: &Path) -> Result<String, StateError> {
    fs::read_to_string(path)
        .map(|value| value.trim().to_owned())
        .map_err(|source| StateError::Read { path: path.into(), source })
}

fn number(path: &Path, value: String) -> Result<u64, StateError> {
    value.parse().map_err(|_| StateError::NoNumber { path: path.into(), value })
}

/// In one write(2), as `/proc` and `/sys` want it; never makes a file.
pub(super) fn write(path: &Path, value: &str) -> Result<(), StateError> {
    let whole = || -> io::Result<()> {
        OpenOptions::new().write(true).truncate(true).open(path)?.write_all(value.as_bytes())
    };
    whole().map_err(|source| StateError::Write { path: path.into(), value: value.into(), source })
}
