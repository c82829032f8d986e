//! Undoing what killed processes have left.

use std::path::Path;

use serde::Serialize;

use super::change::{Change, Record};
use super::store::{Owner, StateFile, Store};
use super::{StateError, Undone, directory};
use crate::pci::Device;

/// What a cleanup did: a sentence for each thing.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Report {
    /// What is as it was before.
    pub undone: Vec<String>,
    /// What was left alone, and why.
    pub left_alone: Vec<String>,
    /// What could not be undone, and why. It is kept for the next time.
    pub failed: Vec<String>,
}

impl Report {
    /// There was nothing to do.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.undone.is_empty() && self.left_alone.is_empty() && self.failed.is_empty()
    }
}

/// Undoes what processes have changed that have ended without undoing it. Those that live are left alone. Doing it
/// twice does no harm.
///
/// # Errors
/// When the directory of the state files can't be used. A damaged state file is an entry in [`Report::failed`].
pub fn cleanup() -> Result<Report, StateError> {
    if !directory().exists() {
        return Ok(Report::default());
    }
    super::State::at(directory())?.cleanup()
}

/// Undoes what [`Undo::keep`](super::Undo::keep) has left of one sort; nothing when there is no such change.
fn undo_kept(is_meant: impl Fn(&Change) -> bool) -> Result<Report, StateError> {
    undo_kept_with(|change, _| is_meant(change))
}

/// Whether a change is meant, which is one of those that a process has made.
type Meant<'a> = dyn Fn(&Change, &[Record]) -> bool + 'a;

/// As [`undo_kept`], where it matters what else the same process has changed.
fn undo_kept_with(is_meant: impl Fn(&Change, &[Record]) -> bool) -> Result<Report, StateError> {
    if !directory().exists() {
        return Ok(Report::default());
    }
    super::State::at(directory())?.cleanup_of(Some(&is_meant))
}

/// Puts back what was set up and kept: numbers of huge pages, modules.
///
/// # Errors
/// As [`cleanup`].
pub fn undo_setup() -> Result<Report, StateError> {
    undo_kept(|change| {
        matches!(change, Change::Added { .. } | Change::Raising { .. } | Change::Module { .. })
    })
}

/// Gives a PCI function that a program may have back to the kernel: to the driver that had it, or, when that was not recorded,
/// to the one that the kernel finds. Returns a sentence about it.
///
/// # Errors
/// When it is open in a program, or the kernel refuses.
pub fn give_back(device: &Device) -> Result<String, StateError> {
    let address = device.address().to_string();
    if device.is_open() {
        return Err(StateError::Open { device: address });
    }
    let report = undo_kept(|change| matches!(change, Change::Driver { device, .. } if *device == address))?;
    if let Some(line) = report.undone.into_iter().next() {
        return Ok(line);
    }
    let refused =
        |source| StateError::Driver { device: address.clone(), driver: "the kernel".into(), source };
    device.give_to(None, None).and_then(|()| device.probe()).map_err(refused)?;
    Ok(device.driver().map_or_else(
        || format!("{address} has no driver: the kernel knows none for it"),
        |driver| format!("{address} is driven by {driver}"),
    ))
}

/// Removes all virtual functions of a NIC, whoever has made them, and undoes what else was done to make them or to them: huge pages
/// and modules by who has made them, their drivers by anybody. Returns what was undone with them.
///
/// # Errors
/// When one is in use, or the kernel refuses.
pub fn remove_virtual_functions(nic: &Device) -> Result<Report, StateError> {
    let address = nic.address().to_string();
    nic.check_virtual_functions_unused()?;
    let functions: Vec<String> =
        nic.virtual_function_devices().iter().map(|function| function.address().to_string()).collect();
    let makes =
        |change: &Change| matches!(change, Change::VirtualFunctions { device, .. } if *device == address);
    let takes =
        |change: &Change| matches!(change, Change::Driver { device, .. } if functions.contains(device));
    let is_meant = |change: &Change, together: &[Record]| {
        takes(change) || together.iter().any(|record| makes(&record.change))
    };
    let report = undo_kept_with(is_meant)?;
    if nic.virtual_functions() != 0 {
        nic.write_virtual_functions(0)?;
    }
    Ok(report)
}

impl super::State {
    /// As [`cleanup`].
    ///
    /// # Errors
    /// As [`cleanup`].
    pub fn cleanup(&self) -> Result<Report, StateError> {
        self.cleanup_of(None)
    }

    /// As [`cleanup`], but, where that is said, only of changes that are meant.
    fn cleanup_of(&self, is_meant: Option<&Meant<'_>>) -> Result<Report, StateError> {
        let _lock = self.store.lock()?;
        let mut report = Report::default();
        let (mut living, mut dead) = (Vec::new(), Vec::new());
        for file in self.store.files()? {
            match file.load() {
                Err(error) => report.failed.push(error.to_string()),
                Ok(records) if file.owner.lives() => {
                    if is_meant.is_none() {
                        report.left_alone.push(lives(&file, records.len()));
                    }
                    living.extend(records);
                }
                Ok(records) => dead.push((file, records)),
            }
        }
        // Before all else: what those programs had as memory is others' by now, and their NICs may still write there.
        for record in dead.iter().flat_map(|(_, records)| records) {
            // What fails is said when the record is undone.
            record.change.stop_dma(&self.bus).ok();
        }
        // The last change first, whoever made it.
        let mut order: Vec<(u64, usize, u64)> = Vec::new();
        for (place, (_, records)) in dead.iter().enumerate() {
            let meant =
                records.iter().filter(|it| is_meant.is_none_or(|is_meant| is_meant(&it.change, records)));
            order.extend(meant.map(|record| (record.at, place, record.id)));
        }
        order.sort_unstable_by(|a, b| b.cmp(a));
        for (_, place, id) in order {
            let (file, records) = &mut dead[place];
            match undo(&self.bus, file, records, id, &living) {
                Ok(Undone::Back(line)) => report.undone.push(line),
                Ok(Undone::LeftAlone(line)) => report.left_alone.push(line),
                Err(error) => report.failed.push(error.to_string()),
            }
        }
        Ok(report)
    }
}

fn lives(file: &StateFile, count: usize) -> String {
    let plural = if count == 1 { "" } else { "s" };
    format!("process {} lives; it will undo its {count} change{plural} itself", file.owner.pid())
}

/// Undoes one change of a process that has ended; its record is kept when that fails.
fn undo(
    bus: &Path,
    file: &StateFile,
    records: &mut Vec<Record>,
    id: u64,
    living: &[Record],
) -> Result<Undone, StateError> {
    let Some(at) = records.iter().position(|record| record.id == id) else {
        return Ok(Undone::LeftAlone("it was undone already".into()));
    };
    if records[at].pin(living)? {
        file.save(records)?;
    }
    let undone = records[at].change.undo(bus, living)?;
    records.remove(at);
    file.save(records)?;
    Ok(undone)
}

/// The changes of processes that live, beside `own`, and those that were to stay.
pub(super) fn living(store: &Store, this: &Owner, own: &[Record]) -> Result<Vec<Record>, StateError> {
    let files = store.files()?;
    let mut living = Vec::new();
    for file in files.iter().filter(|file| file.owner != *this) {
        let lives = file.owner.lives();
        // A damaged file says nothing.
        let records = file.load().unwrap_or_default();
        living.extend(records.into_iter().filter(|record| lives || record.kept));
    }
    living.extend_from_slice(own);
    Ok(living)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::sync::Arc;

    use super::*;
    use crate::pci::{BUS_MASTER, COMMAND, Config};
    use crate::state::State;

    /// A bus with a function that may do DMA, and that a program without the kernel has left.
    fn left() -> (tempfile::TempDir, Device, State) {
        let folder = tempfile::tempdir().unwrap();
        let function = folder.path().join("devices/0000:01:00.0");
        fs::create_dir_all(&function).unwrap();
        fs::write(function.join("config"), [0; 64]).unwrap();
        let state = State::on(folder.path().join("state"), folder.path().into()).unwrap();
        let change = r#"{"kind":"driver","device":"0000:01:00.0","before":null,"reserved":null,"set":null}"#;
        let file = folder.path().join("state").join(format!("{}-1.json", u32::MAX));
        fs::write(file, format!(r#"{{"changes":[{{"id":1,"at":1,"change":{change}}}]}}"#)).unwrap();
        let device = Device::all_on(folder.path()).remove(0);
        Config::open(&device).unwrap().write(COMMAND, &BUS_MASTER.to_le_bytes()).unwrap();
        (folder, device, Arc::into_inner(state).unwrap())
    }

    fn may_do_dma(device: &Device) -> bool {
        let mut command = [0; 2];
        Config::open(device).unwrap().read(COMMAND, &mut command).unwrap();
        u16::from_le_bytes(command) & BUS_MASTER != 0
    }

    #[test]
    fn a_dead_programs_nic_is_stopped_whatever_is_undone() {
        let (_folder, device, state) = left();
        let report = state.cleanup_of(Some(&|_, _| false)).unwrap();
        assert_eq!((report.is_empty(), may_do_dma(&device)), (true, false));
    }

    #[test]
    fn a_nic_that_somebody_has_by_now_is_not_stopped() {
        let (_folder, device, state) = left();
        let config = Config::open(&device).unwrap();
        assert!(config.lock().unwrap());
        state.cleanup_of(Some(&|_, _| false)).unwrap();
        assert!(may_do_dma(&device), "another program has it");
        drop(config);
        std::os::unix::fs::symlink("../drivers/ixgbe", device.directory().join("driver")).unwrap();
        state.cleanup_of(Some(&|_, _| false)).unwrap();
        assert!(may_do_dma(&device), "the kernel has it");
    }
}
