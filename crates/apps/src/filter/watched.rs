//! Files that rules were read from: whether they have changed since.

use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// A file, as it was before it was read: what changes while it is read is a change, too.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Watched {
    /// Where it is.
    pub path: PathBuf,
    looks: Option<Looks>,
}

/// What tells a file from the one that was there before.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Looks {
    inode: u64,
    changed: SystemTime,
    len: u64,
}

impl Watched {
    /// As it is now; to be called before it is read.
    pub(super) fn now(path: &Path) -> Self {
        Self { path: path.into(), looks: looks(path) }
    }

    /// The same file, as it is now.
    pub(super) fn again(&self) -> Self {
        Self::now(&self.path)
    }
}

fn looks(path: &Path) -> Option<Looks> {
    let metadata = std::fs::metadata(path).ok()?;
    if metadata.file_type().is_fifo() {
        // It changes while it is written and read, and could not be read anew.
        return Some(Looks { inode: metadata.ino(), changed: SystemTime::UNIX_EPOCH, len: 0 });
    }
    Some(Looks { inode: metadata.ino(), changed: metadata.modified().ok()?, len: metadata.len() })
}
