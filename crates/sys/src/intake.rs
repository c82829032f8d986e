//! What is read from front to back: a file, or a pipe or the like, whose next bytes nobody waits for in a read.

use std::fs::File;
use std::io::{self, ErrorKind, Read};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::OFlags;
use rustix::io::Errno;

/// A file, a pipe or a device that was opened.
///
/// Reading a file waits for the disk. Of all else it says [`WouldBlock`](ErrorKind::WouldBlock) when nothing is there: whoever waits in
/// a read can't be asked to stop.
#[derive(Debug)]
pub struct Intake {
    file: File,
    is_file: bool,
}

impl Intake {
    /// Standard input, whose flags stay as they are: others may have it, too.
    ///
    /// # Errors
    /// The process is out of file descriptors.
    pub fn stdin() -> io::Result<Self> {
        Self::of(io::stdin().as_fd().try_clone_to_owned()?.into())
    }

    /// Opens what has this name; also a pipe to which nobody writes yet.
    ///
    /// # Errors
    /// The kernel's.
    pub fn open(path: &Path) -> io::Result<Self> {
        let flags = OFlags::NONBLOCK.bits().cast_signed();
        Self::of(File::options().read(true).custom_flags(flags).open(path)?)
    }

    fn of(file: File) -> io::Result<Self> {
        let is_file = file.metadata()?.is_file();
        Ok(Self { file, is_file })
    }

    /// Whether it is a file: all of it is there, and it can be opened again.
    pub fn is_file(&self) -> bool {
        self.is_file
    }

    /// Waits until there is something to be read or nothing more will come, at most so long, and says whether that is so.
    pub fn wait(&self, timeout: Duration) -> bool {
        if self.is_file {
            return true;
        }
        let timeout = Timespec {
            tv_sec: i64::try_from(timeout.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: timeout.subsec_nanos().into(),
        };
        // Where that can't be asked, reading tells.
        let ready = poll(&mut [PollFd::new(&self.file, PollFlags::IN)], Some(&timeout));
        !matches!(ready, Ok(0) | Err(Errno::INTR))
    }
}

impl Read for Intake {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        // A pipe to which nobody has written yet would be one that has ended.
        if self.wait(Duration::ZERO) { self.file.read(into) } else { Err(ErrorKind::WouldBlock.into()) }
    }
}

impl AsFd for Intake {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::Write;

    use super::*;

    #[test]
    fn a_pipe_has_what_was_written_then_nothing_yet_and_at_last_its_end() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("pipe");
        rustix::fs::mkfifoat(rustix::fs::CWD, &path, rustix::fs::Mode::RWXU).unwrap();
        let mut pipe = Intake::open(&path).unwrap();
        let mut buffer = [0; 8];
        let mut read = |pipe: &mut Intake| pipe.read(&mut buffer).map_err(|error| error.kind());
        assert_eq!((pipe.is_file(), read(&mut pipe)), (false, Err(ErrorKind::WouldBlock)));
        let mut writer = File::options().write(true).open(&path).unwrap();
        assert!(!pipe.wait(Duration::from_millis(1)));
        writer.write_all(b"some").unwrap();
        assert!(pipe.wait(Duration::from_secs(10)));
        assert_eq!((read(&mut pipe), read(&mut pipe)), (Ok(4), Err(ErrorKind::WouldBlock)));
        writer.write_all(b"more").unwrap();
        drop(writer);
        assert_eq!((read(&mut pipe), read(&mut pipe)), (Ok(4), Ok(0)));
    }

    #[test]
    fn a_file_is_there_to_its_end() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        fs::write(&path, "all").unwrap();
        let mut file = Intake::open(&path).unwrap();
        let mut all = String::new();
        assert_eq!((file.is_file(), file.wait(Duration::ZERO)), (true, true));
        file.read_to_string(&mut all).unwrap();
        assert_eq!(all, "all");
        assert_eq!(Intake::open(&directory.path().join("absent")).unwrap_err().kind(), ErrorKind::NotFound);
    }
}
