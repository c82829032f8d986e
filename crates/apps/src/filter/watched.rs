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
    /// When anything of it changed, its time of change among that: seconds and nanoseconds. Nobody can set that back.
    touched: (i64, i64),
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
        return Some(Looks {
            inode: metadata.ino(),
            changed: SystemTime::UNIX_EPOCH,
            touched: (0, 0),
            len: 0,
        });
    }
    Some(Looks {
        inode: metadata.ino(),
        changed: metadata.modified().ok()?,
        touched: (metadata.ctime(), metadata.ctime_nsec()),
        len: metadata.len(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_edit_is_seen_when_length_and_time_are_as_they_were() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("rules.toml");
        std::fs::write(&path, "one").unwrap();
        let before = Watched::now(&path);
        let time = std::fs::metadata(&path).unwrap().modified().unwrap();
        // The kernel's own times go by its ticks.
        std::thread::sleep(std::time::Duration::from_millis(20));
        std::fs::write(&path, "two").unwrap();
        std::fs::File::options().write(true).open(&path).unwrap().set_modified(time).unwrap();
        assert_ne!(before.again(), before);
        let after = Watched::now(&path);
        assert_eq!(after.again(), after);
    }
}
