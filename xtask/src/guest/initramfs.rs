//! The initramfs of guests: busybox, the modules that mount the root folder, and a script; in the "newc" format of cpio.

use std::fs;
use std::path::Path;

use crate::project::{Problem, about};

/// What the kernel starts.
pub(super) const INIT: &str = include_str!("init.sh");

/// Modules in the order in which they are loaded, by their path below the kernel's folder of modules.
const MODULES: [&str; 4] =
    ["fs/netfs/netfs.ko.xz", "net/9p/9pnet.ko.xz", "net/9p/9pnet_virtio.ko.xz", "fs/9p/9p.ko.xz"];

/// The bytes of it, from the programs below `root` and the kernel's folder of modules.
///
/// # Errors
/// When a file is not there.
pub(super) fn image(root: &Path, modules: &Path) -> Result<Vec<u8>, Problem> {
    let mut image = Vec::new();
    for folder in ["dev", "root"] {
        entry(&mut image, folder, 0o040_755, &[]);
    }
    let busybox = root.join("usr/bin/busybox");
    entry(&mut image, "busybox", 0o100_755, &fs::read(&busybox).map_err(about(busybox.display()))?);
    for module in MODULES {
        let path = modules.join("kernel").join(module);
        let bytes = fs::read(&path).map_err(about(path.display()))?;
        entry(&mut image, module.rsplit('/').next().unwrap_or(module), 0o100_644, &bytes);
    }
    entry(&mut image, "init", 0o100_755, INIT.as_bytes());
    entry(&mut image, "TRAILER!!!", 0, &[]);
    Ok(image)
}

/// Adds a file: a header of eight hexadecimal digits each, the name with a zero at its end, the bytes; names and bytes end at
/// multiples of four.
fn entry(image: &mut Vec<u8>, name: &str, mode: u32, bytes: &[u8]) {
    let inode = image.len();
    let fields = [inode, mode as usize, 0, 0, 1, 0, bytes.len(), 0, 0, 0, 0, name.len() + 1, 0];
    image.extend_from_slice(b"070701");
    fields.iter().for_each(|field| image.extend_from_slice(format!("{field:08x}").as_bytes()));
    image.extend_from_slice(name.as_bytes());
    image.push(0);
    image.resize(image.len().next_multiple_of(4), 0);
    image.extend_from_slice(bytes);
    image.resize(image.len().next_multiple_of(4), 0);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_bytes_are_padded_to_four() {
        let mut image = Vec::new();
        entry(&mut image, "init", 0o100_755, b"hello");
        assert_eq!(&image[..6], b"070701");
        assert_eq!(&image[14..22], b"000081ed", "a file that can be run");
        assert_eq!(&image[54..62], b"00000005", "its size");
        assert_eq!(&image[110..115], b"init\0");
        assert_eq!(&image[116..124], b"hello\0\0\0");
        assert_eq!(image.len(), 124);
    }
}
