//! Refuses to write to a file that is read in the same run: opening it for that would empty it first.

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

/// The device and inode of a file of its own kind: a pipe or a device may well be read and written.
fn identity(path: &Path, stdio: &str) -> Option<(u64, u64)> {
    let path = if path.as_os_str() == "-" { Path::new(stdio) } else { path };
    let file = fs::metadata(path).ok()?;
    file.is_file().then(|| (file.dev(), file.ino()))
}
