//! Kernel settings by name: `net.ipv4.tcp_congestion_control`.
//!
//! Those under `net` are of the calling thread's network namespace: use
//! [`Namespace::enter`](crate::namespace::Namespace::enter) for another's.

use std::fs;
use std::io;
use std::path::PathBuf;

/// Why a setting could not be read or written.
#[derive(Debug, thiserror::Error)]
#[error("can't {verb} the kernel setting {name}: {source}")]
pub struct SysctlError {
    verb: &'static str,
    name: String,
    source: io::Error,
}

/// A setting's value, without the newline.
///
/// # Errors
/// When there is no such setting, or it may not be read.
pub fn read(name: &str) -> Result<String, SysctlError> {
    fs::read_to_string(path(name)).map(|value| value.trim_end().to_owned()).map_err(|source| SysctlError {
        verb: "read",
        name: name.into(),
        source,
    })
}

/// Sets a setting. It stays so until somebody sets it again or its network namespace ends; for one of the machine use
/// the state file, which puts it back.
///
/// # Errors
/// When there is no such setting, or the kernel refuses the value.
pub fn write(name: &str, value: &str) -> Result<(), SysctlError> {
    fs::write(path(name), value).map_err(|source| SysctlError { verb: "write", name: name.into(), source })
}

/// The file of a setting. A `/` in a name stands for a dot in it, as sysctl(8) has it:
/// `net.ipv4.conf.eth0/1.forwarding`.
#[must_use]
pub fn path(name: &str) -> PathBuf {
    let swapped: String = name
        .chars()
        .map(|c| match c {
            '.' => '/',
            '/' => '.',
            other => other,
        })
        .collect();
    PathBuf::from("/proc/sys").join(swapped.trim_start_matches('/'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_become_paths() {
        assert_eq!(path("net.ipv4.ip_forward"), PathBuf::from("/proc/sys/net/ipv4/ip_forward"));
        assert_eq!(
            path("net.ipv4.conf.eth0/1.rp_filter"),
            PathBuf::from("/proc/sys/net/ipv4/conf/eth0.1/rp_filter")
        );
    }

    #[test]
    fn an_absent_setting_is_named() {
        let error = read("net.ipv4.no_such_thing").unwrap_err().to_string();
        assert!(error.starts_with("can't read the kernel setting net.ipv4.no_such_thing: "), "{error}");
    }
}
