//! A folder's lock, by which processes that make files in it find each other.

use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, Mode, OFlags, flock, open};
use rustix::io::Errno;

/// How long another process may hold the lock.
const PATIENCE: Duration = Duration::from_secs(2);
/// How soon it is looked again.
const SOON: Duration = Duration::from_millis(2);

/// Why a folder is not locked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FolderLockError {
    /// It can't be opened.
    #[error("can't open it: {0}")]
    Open(Errno),
    /// Another process has held the lock for two seconds.
    #[error("another process holds a lock on it")]
    Held,
    /// There can be no lock, as on some file systems.
    #[error("can't lock it: {0}")]
    Lock(Errno),
}

/// Locks a folder until what is returned is closed.
///
/// # Errors
/// [`FolderLockError`].
pub fn lock_folder(folder: &Path) -> Result<OwnedFd, FolderLockError> {
    let folder = open(folder, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
        .map_err(FolderLockError::Open)?;
    let until = Instant::now() + PATIENCE;
    loop {
        match flock(&folder, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(folder),
            Err(Errno::WOULDBLOCK | Errno::INTR) if Instant::now() < until => std::thread::sleep(SOON),
            Err(Errno::WOULDBLOCK | Errno::INTR) => return Err(FolderLockError::Held),
            Err(errno) => return Err(FolderLockError::Lock(errno)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_at_a_time_has_it_and_others_wait_for_two_seconds() {
        let folder = tempfile::tempdir().unwrap();
        let first = lock_folder(folder.path()).unwrap();
        let second = std::thread::scope(|scope| {
            let second = scope.spawn(|| lock_folder(folder.path()));
            std::thread::sleep(Duration::from_millis(50));
            drop(first);
            second.join().unwrap()
        });
        assert_eq!(lock_folder(folder.path()).err(), Some(FolderLockError::Held));
        drop(second);
        lock_folder(folder.path()).unwrap();
        let nowhere = folder.path().join("nowhere");
        assert_eq!(lock_folder(&nowhere).err(), Some(FolderLockError::Open(Errno::NOENT)));
    }
}
