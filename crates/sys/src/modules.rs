//! Modules of the kernel: whether one is loaded; loading and unloading, by modprobe(8), which knows where they are and what
//! they need.

use std::io;
use std::path::Path;
use std::process::Command;

/// The name as the kernel has it: it takes `-` and `_` for the same.
fn canonical(name: &str) -> String {
    name.replace('-', "_")
}

/// Whether a module is loaded, or built into the kernel with parameters.
pub fn is_loaded(name: &str) -> bool {
    Path::new("/sys/module").join(canonical(name)).exists()
}

/// Loads a module, and what it needs.
pub(crate) fn load(name: &str) -> io::Result<()> {
    modprobe(&[name])
}

/// Unloads a module, and what nobody else needs.
pub(crate) fn unload(name: &str) -> io::Result<()> {
    modprobe(&["-r", name])
}

fn modprobe(arguments: &[&str]) -> io::Result<()> {
    let output = Command::new("modprobe").args(arguments).output()?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(io::Error::other(said.trim().lines().next().unwrap_or("modprobe failed").to_owned()))
}
