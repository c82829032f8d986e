//! The state files themselves: whose they are, and how they are read and written.

use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::StateError;
use super::change::Record;

/// Who makes changes: a process, told from a later one with the same number by when it started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Owner {
    pid: u32,
    /// In clock ticks since the machine was started.
    started: u64,
}

impl Owner {
    pub(super) fn this() -> Self {
        let pid = std::process::id();
        Self { pid, started: running(pid).unwrap_or_default() }
    }

    pub(super) fn pid(&self) -> u32 {
        self.pid
    }

    pub(super) fn lives(&self) -> bool {
        running(self.pid) == Some(self.started)
    }

    fn file_name(&self) -> String {
        format!("{}-{}.json", self.pid, self.started)
    }

    fn of_file(name: &str) -> Option<Self> {
        let (pid, started) = name.strip_suffix(".json")?.split_once('-')?;
        Some(Self { pid: pid.parse().ok()?, started: started.parse().ok()? })
    }
}

/// When a process started, by proc_pid_stat(5); `None` when it has ended, waited for by its parent or not.
fn running(pid: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The second field is the program's name, which may hold blanks and brackets.
    let mut fields = stat.rsplit_once(')')?.1.split_ascii_whitespace();
    if matches!(fields.next()?, "Z" | "X") {
        return None;
    }
    fields.nth(22 - 4)?.parse().ok()
}

/// The directory of the state files.
#[derive(Debug)]
pub(super) struct Store {
    directory: PathBuf,
}

/// A state file.
#[derive(Debug)]
pub(super) struct StateFile {
    pub(super) path: PathBuf,
    pub(super) owner: Owner,
}

/// What is in a state file.
#[derive(Serialize, Deserialize)]
struct Content {
    changes: Vec<Record>,
}

impl Store {
    /// Nobody else may write there: what the files say is done by root.
    pub(super) fn at(directory: PathBuf) -> Result<Self, StateError> {
        let bad = |why: String| StateError::Directory { directory: directory.clone(), why };
        DirBuilder::new()
            .recursive(true)
            .mode(0o755)
            .create(&directory)
            .map_err(|error| bad(error.to_string()))?;
        let metadata = fs::metadata(&directory).map_err(|error| bad(error.to_string()))?;
        if metadata.uid() != rustix::process::geteuid().as_raw() {
            return Err(bad(format!("it belongs to user {}: delete it or run as that user", metadata.uid())));
        }
        if metadata.mode() & 0o022 != 0 {
            return Err(bad("others may write to it: `chmod go-w` it".into()));
        }
        Ok(Self { directory })
    }

    /// Nobody else changes anything while the lock is held; it is freed with the file.
    pub(super) fn lock(&self) -> Result<File, StateError> {
        let bad = |why: String| StateError::Directory { directory: self.directory.clone(), why };
        let path = self.directory.join("lock");
        let file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(&path)
            .map_err(|error| bad(format!("can't open {}: {error}", path.display())))?;
        let start = Instant::now();
        loop {
            match file.try_lock() {
                Ok(()) => return Ok(file),
                Err(TryLockError::WouldBlock) if start.elapsed() < PATIENCE => {
                    thread::sleep(Duration::from_millis(2));
                }
                Err(TryLockError::WouldBlock) => {
                    return Err(bad(format!("{} is locked for longer than {PATIENCE:?}", path.display())));
                }
                Err(TryLockError::Error(error)) => return Err(bad(error.to_string())),
            }
        }
    }

    /// Every state file, of this process, too.
    pub(super) fn files(&self) -> Result<Vec<StateFile>, StateError> {
        let bad = |error: io::Error| StateError::Directory {
            directory: self.directory.clone(),
            why: error.to_string(),
        };
        let mut files = Vec::new();
        for entry in fs::read_dir(&self.directory).map_err(bad)? {
            let name = entry.map_err(bad)?.file_name();
            if let Some(owner) = name.to_str().and_then(Owner::of_file) {
                files.push(StateFile { path: self.directory.join(name), owner });
            }
        }
        Ok(files)
    }

    /// Writes a process's file anew, in one step; with no record there is no file.
    pub(super) fn save(&self, owner: &Owner, records: &[Record]) -> Result<(), StateError> {
        save(&self.directory.join(owner.file_name()), records).map_err(|error| StateError::Directory {
            directory: self.directory.clone(),
            why: error.to_string(),
        })
    }
}

impl StateFile {
    pub(super) fn load(&self) -> Result<Vec<Record>, StateError> {
        let damaged = |why: String| StateError::Damaged { file: self.path.clone(), why };
        let text = fs::read(&self.path).map_err(|error| damaged(error.to_string()))?;
        let content: Content = serde_json::from_slice(&text).map_err(|error| damaged(error.to_string()))?;
        Ok(content.changes)
    }

    pub(super) fn save(&self, records: &[Record]) -> Result<(), StateError> {
        save(&self.path, records)
            .map_err(|error| StateError::Directory { directory: self.path.clone(), why: error.to_string() })
    }
}

/// A reader sees the old file or the new one. Not synced to a disk: what it records does not outlive the kernel
/// either.
fn save(path: &Path, records: &[Record]) -> io::Result<()> {
    if records.is_empty() {
        return match fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        };
    }
    let new = path.with_extension("new");
    let content = serde_json::to_vec_pretty(&Content { changes: records.to_vec() })?;
    let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&new)?;
    file.write_all(&content)?;
    fs::rename(&new, path)
}

/// The lock is held for a few small writes; the kernel may take seconds to find huge pages.
const PATIENCE: Duration = Duration::from_secs(30);
