//! Tests that use the lab run one at a time, in whichever process, and leave the machine as it was.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Read, Seek, Write};
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

/// Waits until no other test uses the lab and keeps it until the guard is dropped. `None` when this process may not make
/// network namespaces: the test has then been [skipped](crate::skip) and returns.
///
/// # Panics
/// When another process has it for longer than five minutes, or the lock can't be opened.
#[must_use = "the lab is free again when the guard is dropped: let Some(_guard) = lock() else { return };"]
pub fn lock() -> Option<Untouched> {
    if let Err(reason) = crate::root() {
        crate::skip(&reason);
        return None;
    }
    let lock = take(&path(), PATIENCE).unwrap_or_else(|why| panic!("{why}"));
    Some(Untouched { _lock: lock })
}

/// The lab is this test's.
#[derive(Debug)]
pub struct Untouched {
    _lock: File,
}

/// One for the machine, not for a user: it has one set of BPF programs and huge pages.
fn path() -> PathBuf {
    PathBuf::from("/run/bywash/lab.lock")
}

/// A test that uses the lab takes seconds.
const PATIENCE: Duration = Duration::from_secs(300);

/// Takes the lock and writes who has it. The kernel frees it with the file, so also when the process dies.
fn take(path: &PathBuf, patience: Duration) -> Result<File, String> {
    let open = || -> io::Result<File> {
        path.parent().map_or(Ok(()), fs::create_dir_all)?;
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
