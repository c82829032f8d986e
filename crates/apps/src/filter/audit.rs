//! The audit log: what has changed, a JSON object on a line. Whoever rotates logs moves the file away and sends SIGHUP; then it is opened anew.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use bywash_port::PortName;
use bywash_sys::output_file::open_without_waiting;
use serde_json::{Value, json};

/// An audit log that is open. There is one, so that a file which it leaves is closed.
#[derive(Debug)]
pub struct Audit {
    path: PathBuf,
    port: String,
    file: File,
    /// It could not be written: nothing is noted until it is opened anew.
    has_ended: bool,
    /// What it ends with is half a line.
    is_within_line: bool,
}

impl Audit {
    /// Opens it for what becomes of `port`, and makes it where there is none. What is in it stays.
    ///
    /// # Errors
    /// The system's; or it is a pipe that nobody reads: nothing would be filtered until then.
    pub fn open(path: &Path, port: &PortName) -> io::Result<Self> {
        let file = opened(path)?;
        let is_within_line = ends_within_line(path);
        Ok(Self { path: path.into(), port: port.to_string(), file, has_ended: false, is_within_line })
    }

    /// Opens what has its name by now, where that is another file or the old one took no more. When that fails, it stays as it was.
    ///
    /// # Errors
    /// As of [`Audit::open`].
    pub(super) fn open_again(&mut self) -> io::Result<()> {
        let is = |file: &std::fs::Metadata| (file.dev(), file.ino());
        let named = std::fs::metadata(&self.path).ok();
        let is_same =
            named.is_some_and(|named| self.file.metadata().is_ok_and(|file| is(&file) == is(&named)));
        if !is_same {
            self.file = opened(&self.path)?;
            self.is_within_line = ends_within_line(&self.path);
        }
        self.has_ended = false;
        Ok(())
    }

    /// Notes an event, with the time, and with the port and the process: several filters may have one log.
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
        line["port"] = json!(self.port);
        line["pid"] = json!(std::process::id());
        let begin = if self.is_within_line { "\n" } else { "" };
        let written = self.write(format!("{begin}{line}\n").as_bytes());
        self.has_ended = written.is_err();
        written
    }

    /// In one piece, as long as the system takes it: somebody may read or cut the file at any time. A disk that is full takes half a line,
    /// which is taken back.
    fn write(&mut self, line: &[u8]) -> io::Result<()> {
        let mut rest = line;
        while !rest.is_empty() {
            match self.file.write(rest) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(written) => rest = &rest[written..],
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    let written = line.len() - rest.len();
                    self.is_within_line |= written > 0 && !self.take_back(written as u64);
                    return Err(error);
                }
            }
        }
        self.is_within_line = false;
        Ok(())
    }

    /// Cuts off what was written last. False where that can't be: in a pipe, or when somebody else has written since.
    fn take_back(&self, written: u64) -> bool {
        let mut file = &self.file;
        let (Ok(end), Ok(metadata)) = (file.stream_position(), file.metadata()) else { return false };
        metadata.is_file() && metadata.len() == end && file.set_len(end.saturating_sub(written)).is_ok()
    }
}

/// A file to which lines are added, whoever else writes to it.
fn opened(path: &Path) -> io::Result<File> {
    open_without_waiting(File::options().create(true).append(true), path)
}

/// Whether a file ends with half a line, as whoever was killed or had no room has left it.
fn ends_within_line(path: &Path) -> bool {
    let last = || {
        // To open a pipe would wait for who writes.
        let mut file = std::fs::metadata(path)
            .ok()
            .filter(std::fs::Metadata::is_file)
            .map(|_| File::open(path))?
            .ok()?;
        file.seek(SeekFrom::End(-1)).ok()?;
        let mut byte = [0];
        file.read_exact(&mut byte).ok().map(|()| byte[0])
    };
    last().is_some_and(|byte| byte != b'\n')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_somebody_has_left_half_a_line_of_is_no_part_of_the_next_one() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("audit.log");
        let port = "xdp:eth1".parse().unwrap();
        std::fs::write(&path, "{\"event\":\"start\"}\n{\"event\":\"blo").unwrap();
        for event in ["start", "stop"] {
            Audit::open(&path, &port).unwrap().note(&json!({ "event": event })).unwrap();
        }
        let log = std::fs::read_to_string(&path).unwrap();
        let events: Vec<Option<Value>> = log.lines().map(|line| serde_json::from_str(line).ok()).collect();
        let events: Vec<_> =
            events.iter().map(|event| event.as_ref().map(|event| event["event"].as_str().unwrap())).collect();
        assert_eq!(events, [Some("start"), None, Some("start"), Some("stop")], "{log}");
    }
}
