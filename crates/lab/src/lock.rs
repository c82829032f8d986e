//! Tests that use the lab run one at a time, in whichever process, and leave the machine as it was.

use std::fs::{DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::Snapshot;

/// Waits until no other test uses the lab and keeps it until the guard is dropped. `None` when this process may not
/// make network namespaces: the test has then been [skipped](crate::skip) and returns.
///
/// # Panics
/// When one test of another process has it for longer than five minutes, or the lock can't be opened.
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
    // How long the one that has it now has had it at least; before it come all that were quicker than we were.
    let (mut since, mut owner) = (Instant::now(), String::new());
    loop {
        match file.try_lock() {
            Ok(()) => break,
            Err(TryLockError::WouldBlock) => {
                let now = read(&mut file);
                if now != owner {
                    (since, owner) = (Instant::now(), now);
                }
                if since.elapsed() < patience {
                    thread::sleep(Duration::from_millis(5));
                    continue;
                }
                return Err(format!(
                    "{} is held by {} for longer than {patience:?}",
                    path.display(),
                    owner.trim()
                ));
            }
            Err(TryLockError::Error(error)) => return Err(format!("can't lock {}: {error}", path.display())),
        }
    }
    let name = thread::current().name().unwrap_or("a test").to_owned();
    // A test may have it again, at once: the moment tells them apart.
    let at = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let owner =
        format!("process {}, {name}, at {}.{:09} s\n", std::process::id(), at.as_secs(), at.subsec_nanos());
    // Only for those that wait.
    file.set_len(0).and_then(|()| file.rewind()).and_then(|()| file.write_all(owner.as_bytes())).ok();
    Ok(file)
}

/// Who has it.
fn read(file: &mut File) -> String {
    let mut owner = String::new();
    file.rewind().and_then(|()| file.read_to_string(&mut owner)).ok();
    owner
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn many_that_have_it_shortly_are_waited_for_and_one_for_long_is_named() {
        let path = std::env::temp_dir().join(format!("bywash-lock-{}/lab.lock", std::process::id()));
        let first = take(&path, Duration::ZERO).unwrap();
        let name = "many_that_have_it_shortly_are_waited_for_and_one_for_long_is_named";
        let error = take(&path, Duration::from_millis(50)).unwrap_err();
        assert!(error.contains(name) && error.contains("for longer than 50ms"), "{error}");
        let second = thread::scope(|scope| {
            let second = scope.spawn(|| take(&path, Duration::from_secs(1)));
            for number in 0..20 {
                fs::write(&path, format!("test {number}")).unwrap();
                thread::sleep(Duration::from_millis(100));
            }
            drop(first);
            second.join().unwrap()
        });
        fs::remove_dir_all(path.parent().unwrap()).unwrap();
        second.unwrap();
    }
}
