//! Files to be written that a person has named: a pipe may have the name.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::Errno;

/// As [`OpenOptions::open`], but of a pipe that nobody reads nobody is waited for. Writing waits, as it always does.
///
/// # Errors
/// The system's; of a pipe that nobody reads what to do about it.
pub fn open_without_waiting(options: &mut OpenOptions, path: &Path) -> io::Result<File> {
    let file = options.custom_flags(OFlags::NONBLOCK.bits().cast_signed()).open(path);
    // Of a socket's name it is told, too.
    let is_pipe = || path.metadata().is_ok_and(|file| file.file_type().is_fifo());
    let file = file.map_err(|error| match Errno::from_io_error(&error) {
        Some(Errno::NXIO) if is_pipe() => {
            io::Error::other("it is a pipe that nobody reads: begin to read it first")
        }
        _ => error,
    })?;
    fcntl_setfl(&file, fcntl_getfl(&file)? - OFlags::NONBLOCK)?;
    Ok(file)
}
