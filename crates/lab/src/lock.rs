//! Tests that use the lab run one at a time, in whichever process, and leave the machine as it was.

use std::fs::{DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use crate::Snapshot;

/// Waits until no other test uses the lab and keeps it until the guard is dropped. `None` when this process may not
/// make network namespaces: the test has then been [skipped](crate::skip) and returns.
///
/// # Panics
/// When another process has it for longer than five minutes, or the lock can't be opened.
#[must_use = "the lab is free again when the guard is dropped: let Some(_guard) = lock() else { return };"]
pub fn lock() -> Option<Untouched> {
    lock_then(|| ())
}

/// [`lock`], with something done first that may change the machine, while no other test uses it.
///
/// # Panics
/// As [`lock`].
#[must_use = "the lab is free again when the guard is dropped"]
pub fn lock_then(first: impl FnOnce()) -> Option<Untouched> {
    if let Err(reason) = crate::root() {
        crate::skip(&reason);
        return None;
    }
    let lock = take(&path(), PATIENCE).unwrap_or_else(|why| panic!("{why}"));
    first();
    Some(Untouched { before: Snapshot::take(), _lock: lock })
}

/// The lab is this test's, and when it is dropped the machine must be as it was.
///
/// # Panics
/// When dropped and something of the machine has changed: [`Snapshot::difference`] says what. Not when the test has
/// failed anyway.
#[derive(Debug)]
pub struct Untouched {
    before: Snapshot,
    _lock: File,
}

impl Drop for Untouched {
    fn drop(&mut self) {
        if thread::panicking() {
            return;
        }
        let difference = self.before.difference();
        assert!(difference.is_empty(), "the machine is not as it was:\n  {}", difference.join("\n  "));
    }
}

/// One for the machine, not for a user: it has one set of BPF programs and huge pages.
fn path() -> PathBuf {
    bywash_sys::state::directory().join("lab.lock")
}

/// A test that uses the lab takes seconds.
const PATIENCE: Duration = Duration::from_secs(300);

/// Takes the lock and writes who has it. The kernel frees it with the file, so also when the process dies.
fn take(path: &Path, patience: Duration) -> Result<File, String> {
    let open = || -> io::Result<File> {
        // The state files are there, too, and those nobody else may write, whatever the umask.
        path.parent()
            .map_or(Ok(()), |parent| DirBuilder::new().recursive(true).mode(0o755).create(parent))?;
        OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path)
    };
    let mut file = open().map_err(|error| format!("can't open {}: {error}", path.display()))?;
    let start = Instant::now();
    loop {
        match file.try_lock() {
            Ok(()) => break,
            Err(TryLockError::WouldBlock) if start.elapsed() < patience => {
                thread::sleep(Duration::from_millis(5));
            }
            Err(TryLockError::WouldBlock) => {
                let mut owner = String::new();
                file.read_to_string(&mut owner).ok();
                return Err(format!(
                    "{} is held by {} for longer than {patience:?}",
                    path.display(),
                    owner.trim()
                ));
            }
            Err(TryLockError::Error(error)) => return Err(format!("can't lock {}: {error}", path.display())),
        }
    }
    let owner = format!("process {}, {}\n", std::process::id(), thread::current().name().unwrap_or("a test"));
    // Only for the message above.
    file.set_len(0).and_then(|()| file.rewind()).and_then(|()| file.write_all(owner.as_bytes())).ok();
    Ok(file)
}
