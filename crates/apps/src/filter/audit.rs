//! The audit log: what has changed, a JSON object on a line. Whoever rotates logs moves the file away and sends SIGHUP; then it is opened anew.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use rustix::fs::OFlags;
use serde_json::{Value, json};

/// An audit log that is open.
#[derive(Clone, Debug)]
pub struct Audit {
    path: PathBuf,
    file: Arc<File>,
    /// It could not be written: nothing is noted until it is opened anew.
    has_ended: bool,
}

impl Audit {
    /// Opens it, and makes it where there is none. What is in it stays.
    ///
    /// # Errors
    /// The system's.
    pub fn open(path: &Path) -> io::Result<Self> {
        let file = File::options().create(true).append(true).open(path)?;
        Ok(Self { path: path.into(), file: Arc::new(file), has_ended: false })
    }

    /// Opens what has its name by now, where that is another file or the old one took no more. When that fails, it stays as it was.
    ///
    /// # Errors
    /// The system's.
    pub(super) fn open_again(&mut self) -> io::Result<()> {
        let is = |file: &std::fs::Metadata| (file.dev(), file.ino());
        let named = std::fs::metadata(&self.path).ok();
        let is_same =
            named.is_some_and(|named| self.file.metadata().is_ok_and(|file| is(&file) == is(&named)));
        if !is_same {
            // Nobody may read a pipe: whoever looks after the rules must not wait for that.
            let flags = OFlags::NONBLOCK.bits().cast_signed();
            let file = OpenOptions::new().create(true).append(true).custom_flags(flags).open(&self.path)?;
            rustix::fs::fcntl_setfl(&file, OFlags::APPEND)?;
            self.file = Arc::new(file);
        }
        self.has_ended = false;
        Ok(())
    }

    /// Notes an event, with the time.
    ///
    /// # Errors
    /// The system's, once: what comes then is not noted.
    pub(super) fn note(&mut self, event: &Value) -> io::Result<()> {
        if self.has_ended {
            return Ok(());
        }
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let mut line = event.clone();
        line["time"] = json!(since.as_secs_f64());
        // In one piece: somebody may read or cut the file at any time.
        let written = (&*self.file).write_all(format!("{line}\n").as_bytes());
        self.has_ended = written.is_err();
        written
    }
}
