//! What stands in a file that a person has named.

use std::fs::{File, FileType, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::OFlags;

use super::{Fault, RuleFileError, located};
use crate::text::{self, Garbled};

/// How long whoever writes a pipe may take. It may be at work for rules while nobody looks after them.
const PIPE: Duration = Duration::from_secs(5);

/// Most bytes of a pipe.
const MOST: usize = 1 << 26;

/// In UTF-8.
const BYTE_ORDER_MARK: &[u8] = "\u{feff}".as_bytes();

/// All that stands in a file, but for a byte order mark.
pub(super) fn text_of(path: &Path) -> Result<String, RuleFileError> {
    let mut bytes = bytes_of(path).map_err(|error| RuleFileError {
        file: path.display().to_string(),
        line: 0,
        column: 0,
        what: format!("it can't be read: {error}"),
    })?;
    // Some editors begin every text so.
    if bytes.starts_with(BYTE_ORDER_MARK) {
        bytes.drain(..BYTE_ORDER_MARK.len());
    }
    text::text_of(bytes).map_err(|Garbled { before, what }| {
        located(path, &before, Fault { at: before.len()..before.len(), within: None, what })
    })
}

fn bytes_of(path: &Path) -> io::Result<Vec<u8>> {
    // A pipe that nobody writes must not be waited for in here.
    let flags = OFlags::NONBLOCK.bits().cast_signed();
    let mut file = OpenOptions::new().read(true).custom_flags(flags).open(path)?;
    let kind = file.metadata()?.file_type();
    if kind.is_fifo() {
        return piped(&file);
    }
    if !kind.is_file() {
        return Err(io::Error::other(format!("it is {}: name a file", called(kind))));
    }
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// What is written to a pipe until its writers are gone.
fn piped(mut pipe: &File) -> io::Result<Vec<u8>> {
    let until = Instant::now() + PIPE;
    let mut bytes = Vec::new();
    let mut piece = vec![0; 1 << 16];
    loop {
        let left = Timespec::try_from(until.saturating_duration_since(Instant::now())).ok();
        if poll(&mut [PollFd::new(&pipe, PollFlags::IN)], left.as_ref())? == 0 {
            let what = format!("it is a pipe, and not all of it has come within {} s", PIPE.as_secs());
            return Err(io::Error::other(what));
        }
        match pipe.read(&mut piece) {
            // What came by a pipe is there once: who reads it again is told so.
            Ok(0) if bytes.is_empty() => {
                return Err(io::Error::other("it is a pipe, and nothing comes through it (any more)"));
            }
            Ok(0) => return Ok(bytes),
            Ok(count) => bytes.extend_from_slice(&piece[..count]),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
        if bytes.len() > MOST {
            return Err(io::Error::other(format!("it is a pipe, and more than {} MiB came", MOST >> 20)));
        }
    }
}

fn called(kind: FileType) -> &'static str {
    if kind.is_dir() {
        "a directory"
    } else if kind.is_socket() {
        "a socket"
    } else {
        "a device"
    }
}
