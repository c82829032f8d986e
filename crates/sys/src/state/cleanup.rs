//! Undoing what killed processes have left.

use serde::Serialize;

use super::change::Record;
use super::store::{Owner, StateFile, Store};
use super::{StateError, Undone, directory};

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

impl super::State {
    /// As [`cleanup`].
    ///
    /// # Errors
    /// As [`cleanup`].
    pub fn cleanup(&self) -> Result<Report, StateError> {
        let _lock = self.store.lock()?;
        let mut report = Report::default();
        let (mut living, mut dead) = (Vec::new(), Vec::new());
        for file in self.store.files()? {
            match file.load() {
                Err(error) => report.failed.push(error.to_string()),
                Ok(records) if file.owner.lives() => {
                    let (pid, count) = (file.owner.pid(), records.len());
                    report.left_alone.push(format!(
                        "process {pid} lives; it will undo its {count} change{} itself",
                        if count == 1 { "" } else { "s" }
                    ));
                    living.extend(records);
                }
                Ok(records) => dead.push((file, records)),
            }
        }
        // The last change first, whoever made it.
        let mut order: Vec<(u64, usize, u64)> = Vec::new();
        for (place, (_, records)) in dead.iter().enumerate() {
            order.extend(records.iter().map(|record| (record.at, place, record.id)));
        }
        order.sort_unstable_by(|a, b| b.cmp(a));
        for (_, place, id) in order {
            let (file, records) = &mut dead[place];
            match undo(file, records, id, &living) {
                Ok(Undone::Back(line)) => report.undone.push(line),
                Ok(Undone::LeftAlone(line)) => report.left_alone.push(line),
                Err(error) => report.failed.push(error.to_string()),
            }
        }
        Ok(report)
    }
}

/// Undoes one change of a process that has ended; its record is kept when that fails.
fn undo(
    file: &StateFile,
    records: &mut Vec<Record>,
    id: u64,
    living: &[Record],
) -> Result<Undone, StateError> {
    let Some(at) = records.iter().position(|record| record.id == id) else {
        return Ok(Undone::LeftAlone("it was undone already".into()));
    };
    if records[at].change.pin()? {
        file.save(records)?;
    }
    let undone = records[at].change.undo(living)?;
    records.remove(at);
    file.save(records)?;
    Ok(undone)
}

/// The changes of processes that live, beside `own`.
pub(super) fn living(store: &Store, this: &Owner, own: &[Record]) -> Result<Vec<Record>, StateError> {
    let files = store.files()?;
    let others = files.iter().filter(|file| file.owner != *this && file.owner.lives());
    // A damaged file says nothing.
    Ok(others.filter_map(|file| file.load().ok()).flatten().chain(own.iter().cloned()).collect())
}
