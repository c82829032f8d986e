//! The state file: what this process has changed on the machine that does not undo itself when it dies.
//!
//! A namespace, a socket or an XDP link ends with the process. A number written to sysfs does not. So each such
//! change is recorded before it is made, undone when its [`Undo`] is dropped, and undone by [`cleanup`] (`bywash
//! cleanup`) when the process was killed. Every process has a file of its own, `/run/bywash/PID-STARTTIME.json`, that
//! only it writes while it lives; a file lock is held while the machine is changed, so that two processes that change
//! the same thing see each other's records and the value there was at first comes back whichever of them ends first:
//!
//! - who changes what another has changed takes over that record's first value as the one to put back;
//! - who undoes a change while another process still has one on the same file leaves that one's value there;
//! - what is to stay when its process ends ([`Undo::keep`]) counts as a living process's until somebody undoes it;
//! - a number that is raised ([`add_to_file`]) is lowered by as much, whatever it is by then;
//! - an RSS table, a feature and an n-tuple rule of an interface are known by the number of their network namespace;
//! - n-tuple rules and an RSS table that a driver may forget ([`keep_steering`]) are added where they are missing;
//! - a PCI function ([`set_driver`]) goes back to the driver that had it before the first of us.
//!
//! A value that somebody else has written since is left alone, and said so. Changes in a network namespace of our own
//! need no record: they end with it.

mod change;
mod cleanup;
mod network;
mod steering;
mod store;

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

pub use cleanup::{Report, cleanup, give_back, remove_virtual_functions, undo_setup};
pub use steering::Kept;

use crate::ethtool::{EthtoolError, Rule};
use crate::modules;
use crate::namespace::NamespaceError;
use crate::netlink::NetlinkError;
use crate::pci::{BUS, Device, SriovError};
use change::{Change, Record};
use store::{Owner, Store};

/// Why a change could not be recorded, made or undone.
#[derive(Debug, thiserror::Error)]
pub enum StateError {
    /// The directory of the state files can't be used. Nothing was changed.
    #[error("can't record changes to the machine in {}: {why}", .directory.display())]
    Directory {
        /// The directory.
        directory: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// A state file is damaged. It is kept.
    #[error("the state file {} is damaged ({why}): undo by hand what it names, then delete it", .file.display())]
    Damaged {
        /// The state file.
        file: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// A file of the machine can't be read.
    #[error("can't read {}: {source}", .path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// A file of the machine can't be written.
    #[error("can't write '{value}' to {}: {source}", .path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// What should be in it.
        value: String,
        /// Why.
        source: std::io::Error,
    },
    /// A PCI function can't be given to a driver.
    #[error("can't give {device} to {driver}: {source}")]
    Driver {
        /// The function's address.
        device: String,
        /// Who should get it.
        driver: String,
        /// Why.
        source: std::io::Error,
    },
    /// A PCI function can't be taken from a program.
    #[error("{device} is open in another program: end that first")]
    Open {
        /// The function's address.
        device: String,
    },
    /// Virtual functions can't be made, or must stay.
    #[error(transparent)]
    VirtualFunctions(#[from] SriovError),
    /// A kernel module can't be loaded.
    #[error("can't load the kernel's module {name}: {source}")]
    Module {
        /// Its name.
        name: String,
        /// Why.
        source: std::io::Error,
    },
    /// An interface can't be changed back from here, or is not there.
    #[error("{name}: {why}")]
    Interface {
        /// Its name.
        name: String,
        /// Why.
        why: String,
    },
    /// An interface's driver refuses.
    #[error(transparent)]
    Ethtool(#[from] EthtoolError),
    /// The kernel does not tell of its interfaces.
    #[error(transparent)]
    Netlink(#[from] NetlinkError),
    /// Which network namespace this is can't be known.
    #[error(transparent)]
    Namespace(#[from] NamespaceError),
    /// A number was expected.
    #[error("{} holds '{value}', which is no number", .path.display())]
    NoNumber {
        /// The file.
        path: PathBuf,
        /// What it holds.
        value: String,
    },
}

/// What became of a change that was to be undone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Undone {
    /// It is as it was before; a sentence about it.
    Back(String),
    /// It was left alone; a sentence that says why: somebody else has changed it since, or it is gone.
    LeftAlone(String),
}

/// Writes `value` to a file of `/proc` or `/sys` until the [`Undo`] is dropped.
///
/// # Errors
/// When the change can't be recorded or made; then the file is as it was.
pub fn set_file(path: impl AsRef<Path>, value: &str) -> Result<Undo, StateError> {
    State::of_process()?.set_file(path, value)
}

/// Raises the number in a file of `/proc` or `/sys` until the [`Undo`] is dropped. The kernel may give less than was
/// asked for (huge pages): [`Undo::added`] says how much.
///
/// # Errors
/// When the change can't be recorded or made; then the file is as it was.
pub fn add_to_file(path: impl AsRef<Path>, add: u64) -> Result<Undo, StateError> {
    State::of_process()?.add_to_file(path, add)
}

/// Gives a PCI function to another driver until the [`Undo`] is dropped; or to none, because a program drives it without the kernel.
///
/// # Errors
/// When the change can't be recorded or made; then the driver that had it has it again.
pub fn set_driver(device: &Device, driver: Option<&str>) -> Result<Undo, StateError> {
    State::of_process()?.set_driver(device, driver)
}

/// Makes virtual functions of a NIC that has none, until the [`Undo`] is dropped.
///
/// # Errors
/// When the change can't be recorded or made; then there are none.
pub fn set_virtual_functions(device: &Device, count: u32) -> Result<Undo, StateError> {
    State::of_process()?.set_virtual_functions(device, count)
}

/// Has the kernel look for no drivers for virtual functions of a NIC that are made, until the [`Undo`] is dropped.
///
/// # Errors
/// When the change can't be recorded or made.
pub fn leave_virtual_functions_alone(device: &Device) -> Result<Undo, StateError> {
    set_file(device.directory().join("sriov_drivers_autoprobe"), "0")
}

/// Loads a kernel module that is not loaded, until the [`Undo`] is dropped.
///
/// # Errors
/// When the change can't be recorded or made.
pub fn load_module(name: &str) -> Result<Undo, StateError> {
    State::of_process()?.load_module(name)
}

/// Sets the queue for each remainder of an interface's RSS hash, until the [`Undo`] is dropped.
///
/// # Errors
/// When the change can't be recorded or made; then the table is as it was.
pub fn set_rss_table(interface: &str, table: &[u32]) -> Result<Undo, StateError> {
    State::of_process()?.set_rss_table(interface, table)
}

/// Switches a feature of an interface, by the kernel's name, until the [`Undo`] is dropped.
///
/// # Errors
/// When the change can't be recorded or made; then it is as it was.
pub fn set_feature(interface: &str, feature: &str, on: bool) -> Result<Undo, StateError> {
    State::of_process()?.set_feature(interface, feature, on)
}

/// Sets a setting of an interface (a file of its directory in `/sys`), until the [`Undo`] is dropped.
///
/// # Errors
/// When the change can't be recorded or made, or `/sys` does not show the interface; then it is as it was.
pub fn set_setting(interface: &str, setting: &str, value: &str) -> Result<Undo, StateError> {
    State::of_process()?.set_setting(interface, setting, value)
}

/// Adds an n-tuple rule to an interface, until the [`Undo`] is dropped.
///
/// # Errors
/// When the change can't be recorded or made.
pub fn add_rule(interface: &str, rule: &Rule) -> Result<Undo, StateError> {
    State::of_process()?.add_rule(interface, rule)
}

/// Notes how an interface steers packets, by whoever has asked for it, so that what its driver forgets comes back when the [`Kept`] is
/// dropped: before an XDP program is attached. Where there is nothing to forget nothing is written down.
///
/// # Errors
/// When it can't be recorded.
pub fn keep_steering(interface: &str) -> Result<Kept, StateError> {
    let mut kept = Kept::of(interface)?;
    kept.note(true).map(|()| kept)
}

/// Where root's state files are.
#[must_use]
pub fn directory_of_root() -> PathBuf {
    "/run/bywash".into()
}

/// Whether there are state files of root's, and we are not root: what they say is not ours to undo, or to read.
#[must_use]
pub fn root_left_something() -> bool {
    let is_file = |entry: std::fs::DirEntry| entry.path().extension().is_some_and(|it| it == "json");
    !rustix::process::geteuid().is_root()
        && std::fs::read_dir(directory_of_root()).is_ok_and(|entries| entries.flatten().any(is_file))
}

/// Where state files are: in root's own directory for root, else in the user's own for such things.
#[must_use]
pub fn directory() -> PathBuf {
    let user = rustix::process::geteuid();
    if user.is_root() {
        return directory_of_root();
    }
    match std::env::var_os("XDG_RUNTIME_DIR") {
        Some(own) if !own.is_empty() => PathBuf::from(own).join("bywash"),
        _ => format!("/tmp/bywash-{}", user.as_raw()).into(),
    }
}

/// The changes of this process.
#[derive(Debug)]
pub struct State {
    store: Store,
    /// Where the PCI bus is shown.
    bus: PathBuf,
    owner: Owner,
    records: Mutex<Vec<Record>>,
}

/// A change that will be undone. Dropping it undoes it, too.
#[derive(Debug)]
#[must_use = "dropping it undoes the change at once"]
pub struct Undo {
    state: Arc<State>,
    /// `None` when there was nothing to change, or it is undone.
    record: Option<u64>,
    added: u64,
}

impl State {
    /// The changes of this process, in [`directory`].
    pub(crate) fn of_process() -> Result<&'static Arc<Self>, StateError> {
        static STATE: OnceLock<Arc<State>> = OnceLock::new();
        if let Some(state) = STATE.get() {
            return Ok(state);
        }
        let state = Self::at(directory())?;
        Ok(STATE.get_or_init(|| state))
    }

    /// The changes of this process, in a directory of one's own choice, which is made when absent. Only one of them
    /// per directory.
    ///
    /// # Errors
    /// When the directory can't be made, is somebody else's, or others may write to it.
    pub fn at(directory: impl Into<PathBuf>) -> Result<Arc<Self>, StateError> {
        Self::on(directory.into(), BUS.into())
    }

    /// As [`State::at`], on a PCI bus that is shown elsewhere.
    pub(crate) fn on(directory: PathBuf, bus: PathBuf) -> Result<Arc<Self>, StateError> {
        let store = Store::at(directory)?;
        Ok(Arc::new(Self { store, bus, owner: Owner::this(), records: Mutex::new(Vec::new()) }))
    }

    /// As [`set_file`].
    ///
    /// # Errors
    /// As [`set_file`].
    pub fn set_file(self: &Arc<Self>, path: impl AsRef<Path>, value: &str) -> Result<Undo, StateError> {
        let (path, value) = (path.as_ref(), value.trim());
        let _lock = self.store.lock()?;
        let mut records = self.records();
        let now = change::read(path)?;
        let others = self.others(&records);
        let before = change::first_value(&others, path, &now);
        if now == value && before == now {
            return Ok(Undo { state: Arc::clone(self), record: None, added: 0 });
        }
        let change = Change::File { path: path.into(), before, set: value.into() };
        let id = self.record(&mut records, change)?;
        if let Err(error) = change::write(path, value) {
            self.forget(&mut records, id)?;
            return Err(error);
        }
        // The kernel may hold it in another form.
        let held = change::read(path)?;
        if held != value {
            if let Some(Record { change: Change::File { set, .. }, .. }) = records.last_mut() {
                *set = held;
            }
            self.store.save(&self.owner, &records)?;
        }
        Ok(Undo { state: Arc::clone(self), record: Some(id), added: 0 })
    }

    /// As [`add_to_file`].
    ///
    /// # Errors
    /// As [`add_to_file`].
    pub fn add_to_file(self: &Arc<Self>, path: impl AsRef<Path>, add: u64) -> Result<Undo, StateError> {
        let path = path.as_ref();
        let _lock = self.store.lock()?;
        let mut records = self.records();
        let before = change::read_number(path)?;
        // Somebody has the surplus pages, so they are none of those that are asked for. They are the pool's again when it grows, and
        // its undoing gives them back as well.
        let all = before.saturating_add(change::surplus(path)?);
        let wanted = all.saturating_add(add);
        let raising = Change::Raising { path: path.into(), before, wanted };
        let id = self.record(&mut records, raising)?;
        if let Err(error) = change::write(path, &wanted.to_string()) {
            self.forget(&mut records, id)?;
            return Err(error);
        }
        let now = change::read_number(path)?;
        let added = now.saturating_add(change::surplus(path)?).saturating_sub(all);
        let raised = now.saturating_sub(before);
        if raised == 0 {
            self.forget(&mut records, id)?;
            return Ok(Undo { state: Arc::clone(self), record: None, added });
        }
        if let Some(last) = records.last_mut() {
            last.change = Change::Added { path: path.into(), added: raised };
        }
        self.store.save(&self.owner, &records)?;
        Ok(Undo { state: Arc::clone(self), record: Some(id), added })
    }

    /// As [`set_driver`].
    ///
    /// # Errors
    /// As [`set_driver`].
    pub fn set_driver(self: &Arc<Self>, device: &Device, driver: Option<&str>) -> Result<Undo, StateError> {
        let address = device.address().to_string();
        let _lock = self.store.lock()?;
        let mut records = self.records();
        let now = (device.driver(), device.reserved_for());
        let is_set = driver.is_some() && now.0.as_deref() == driver;
        let (before, reserved) = change::first_driver(&self.others(&records), &address, now);
        if is_set && before.as_deref() == driver {
            return Ok(Undo { state: Arc::clone(self), record: None, added: 0 });
        }
        let (device_before, reserved_before) = (before.clone(), reserved.clone());
        let change =
            Change::Driver { device: address.clone(), before, reserved, set: driver.map(Into::into) };
        let id = self.record(&mut records, change)?;
        // No driver of the kernel's has this name, so that none takes it meanwhile.
        if let Err(source) = device.give_to(driver, driver.or(Some("bywash"))) {
            // When the old driver does not take it either, the record stays for a cleanup.
            if device.give_to(device_before.as_deref(), reserved_before.as_deref()).is_ok() {
                self.forget(&mut records, id)?;
            }
            let driver = driver.unwrap_or(change::PROGRAM).into();
            return Err(StateError::Driver { device: address, driver, source });
        }
        Ok(Undo { state: Arc::clone(self), record: Some(id), added: 0 })
    }

    /// As [`set_virtual_functions`].
    ///
    /// # Errors
    /// As [`set_virtual_functions`].
    pub fn set_virtual_functions(self: &Arc<Self>, device: &Device, count: u32) -> Result<Undo, StateError> {
        let _lock = self.store.lock()?;
        device.check_virtual_functions(count)?;
        let change = Change::VirtualFunctions { device: device.address().to_string(), set: count };
        self.make(change, || Ok(device.write_virtual_functions(count)?))
    }

    /// As [`load_module`].
    ///
    /// # Errors
    /// As [`load_module`].
    pub fn load_module(self: &Arc<Self>, name: &str) -> Result<Undo, StateError> {
        let _lock = self.store.lock()?;
        let failed = |source| StateError::Module { name: name.into(), source };
        self.make(Change::Module { name: name.into() }, || modules::load(name).map_err(failed))
    }

    /// Records a change and makes it. The lock is held.
    fn make(
        self: &Arc<Self>,
        change: Change,
        make: impl FnOnce() -> Result<(), StateError>,
    ) -> Result<Undo, StateError> {
        let mut records = self.records();
        let id = self.record(&mut records, change)?;
        if let Err(error) = make() {
            self.forget(&mut records, id)?;
            return Err(error);
        }
        Ok(Undo { state: Arc::clone(self), record: Some(id), added: 0 })
    }

    fn records(&self) -> MutexGuard<'_, Vec<Record>> {
        // Each change to the list is whole before anything that could panic.
        self.records.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The records of every process, this one's included. A damaged file is [`cleanup`]'s business.
    fn others(&self, own: &[Record]) -> Vec<Record> {
        let files = self.store.files().unwrap_or_default();
        let foreign =
            files.iter().filter(|file| file.owner != self.owner).filter_map(|file| file.load().ok());
        foreign.flatten().chain(own.iter().cloned()).collect()
    }

    fn record(&self, records: &mut Vec<Record>, change: Change) -> Result<u64, StateError> {
        let record = Record::new(records, change);
        let id = record.id;
        records.push(record);
        if let Err(error) = self.store.save(&self.owner, records) {
            records.pop();
            return Err(error);
        }
        Ok(id)
    }

    fn forget(&self, records: &mut Vec<Record>, id: u64) -> Result<(), StateError> {
        records.retain(|record| record.id != id);
        self.store.save(&self.owner, records)
    }

    fn undo(&self, id: u64) -> Result<Undone, StateError> {
        let _lock = self.store.lock()?;
        let mut records = self.records();
        let Some(at) = records.iter().position(|record| record.id == id) else {
            return Ok(Undone::LeftAlone("it was undone already".into()));
        };
        let own: Vec<Record> = records.iter().filter(|record| record.id != id).cloned().collect();
        let living = cleanup::living(&self.store, &self.owner, &own)?;
        if records[at].pin(&living)? {
            self.store.save(&self.owner, &records)?;
        }
        let undone = records[at].change.undo(&self.bus, &living)?;
        self.forget(&mut records, id)?;
        Ok(undone)
    }
}

impl Undo {
    /// Undoes the change now.
    ///
    /// # Errors
    /// When it can't be undone; the record is kept, for `bywash cleanup`.
    pub fn undo(mut self) -> Result<Undone, StateError> {
        match self.record.take() {
            Some(id) => self.state.undo(id),
            None => Ok(Undone::Back("nothing was changed".into())),
        }
    }

    /// Leaves the change as it is when this process ends: until somebody undoes it, or `bywash cleanup` does. Who changes the same
    /// meanwhile leaves it so, too.
    ///
    /// # Errors
    /// When that can't be recorded; then it is undone.
    pub fn keep(mut self) -> Result<(), StateError> {
        let _lock = self.state.store.lock()?;
        let mut records = self.state.records();
        if let Some(record) = records.iter_mut().find(|record| Some(record.id) == self.record) {
            record.kept = true;
            self.state.store.save(&self.state.owner, &records)?;
        }
        drop(records);
        self.record = None;
        Ok(())
    }

    /// By how much the number was really raised, after [`add_to_file`].
    #[must_use]
    pub fn added(&self) -> u64 {
        self.added
    }
}

impl Drop for Undo {
    fn drop(&mut self) {
        if let Some(id) = self.record.take() {
            // What can't be undone stays in the state file, where `bywash cleanup` finds it.
            self.state.undo(id).ok();
        }
    }
}
