//! Refuses to write to a file that is read in the same run: opening it for that would empty it first.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use bywash_port::PortName;

use crate::failure::Failure;

/// The file that a port is.
pub(crate) fn file_of(port: &PortName) -> Option<&Path> {
    match port {
        PortName::Pcap { file } => Some(Path::new(file)),
        _ => None,
    }
}

/// Refuses outputs that are inputs, by whatever name, before any of them is opened; `-` is standard input or output.
///
/// # Errors
/// Which file it is.
pub(crate) fn refuse<'a>(
    inputs: impl IntoIterator<Item = &'a Path>,
    outputs: impl IntoIterator<Item = &'a Path>,
) -> Result<(), Failure> {
    let read: Vec<_> = inputs.into_iter().filter_map(|path| identity(path, "/dev/stdin")).collect();
    for output in outputs {
        if identity(output, "/dev/stdout").is_some_and(|file| read.contains(&file)) {
            return Err(Failure::Usage(format!(
                "{} is read in this run, and writing to it would destroy what it holds; name another file",
                output.display()
            )));
        }
    }
    Ok(())
}

/// Refuses outputs that are one file, by whatever names, whether it is there yet or not.
///
/// # Errors
/// Which file it is.
pub(crate) fn refuse_twice<'a>(outputs: impl IntoIterator<Item = &'a Path>) -> Result<(), Failure> {
    let mut places = Vec::new();
    for output in outputs {
        let Some(place) = place(output) else { continue };
        if places.contains(&place) {
            return Err(Failure::Usage(format!(
                "{} is named for two outputs, which would garble each other; name another file for one",
                output.display()
            )));
        }
        places.push(place);
    }
    Ok(())
}

/// What tells a file from others: its device and inode, or the folder's with its name where it is not there yet.
fn place(path: &Path) -> Option<(u64, u64, Option<&OsStr>)> {
    if path.exists() {
        return identity(path, "/dev/stdout").map(|(device, inode)| (device, inode, None));
    }
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let folder = fs::metadata(folder).ok()?;
    Some((folder.dev(), folder.ino(), path.file_name()))
}

/// The device and inode of a file of its own kind: a pipe or a device may well be read and written.
fn identity(path: &Path, stdio: &str) -> Option<(u64, u64)> {
    let path = if path.as_os_str() == "-" { Path::new(stdio) } else { path };
    let file = fs::metadata(path).ok()?;
    file.is_file().then(|| (file.dev(), file.ino()))
}
