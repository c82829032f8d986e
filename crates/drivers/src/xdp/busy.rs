//! What an interface needs besides the socket's options for busy polling: interrupts that wait while a worker polls.
//!
//! By sysfs, as every kernel takes it, for all NAPI instances of the interface. Since Linux 6.13 each can be set by
//! netlink, but its number means nothing in another namespace and need not outlive a restart of the interface, so that a
//! change that was written down could not be undone with certainty; and what netlink adds, `irq-suspend-timeout`, is
//! for epoll's own busy polling, which AF_XDP does not use.

use std::path::Path;

use bywash_sys::interface::Interface;
use bywash_sys::state::{self, Undo, Undone};

/// Settings of an interface that make its interrupts wait: empty polls before they are let through again, and for how
/// many nanoseconds at most. The kernel's documentation on busy polling AF_XDP sockets has these values.
const SETTINGS: [(&str, &str); 2] = [("napi_defer_hard_irqs", "2"), ("gro_flush_timeout", "200000")];

/// The settings as they are while a port polls; they come back when it is closed.
pub(super) struct Deferral(Vec<Undo>);

impl Deferral {
    /// Sets them; a warning for each that could not be set.
    pub(super) fn set(link: &Interface, warnings: &mut Vec<String>) -> Self {
        let directory = Path::new("/sys/class/net").join(&link.name);
        if !is_of(&directory, link) {
            warnings.push(format!(
                "/sys shows another {}: set {} and {} of it by hand for busy polling",
                link.name, SETTINGS[0].0, SETTINGS[1].0
            ));
            return Self(Vec::new());
        }
        Self(set_all(&directory, warnings))
    }

    /// Puts them back as they were.
    pub(super) fn restore(self) -> Result<(), String> {
        let mut left = Vec::new();
        for undo in self.0 {
            match undo.undo() {
                Ok(Undone::Back(_)) => {}
                Ok(Undone::LeftAlone(why)) => left.push(why),
                Err(error) => left.push(error.to_string()),
            }
        }
        if left.is_empty() { Ok(()) } else { Err(left.join("; ")) }
    }
}

/// Whether `/sys` shows this very interface: it shows those of the namespace it was mounted in.
fn is_of(directory: &Path, link: &Interface) -> bool {
    let shows = |file: &str, value: String| {
        std::fs::read_to_string(directory.join(file)).is_ok_and(|text| text.trim() == value)
    };
    shows("ifindex", link.index.to_string()) && link.mac.is_none_or(|mac| shows("address", mac.to_string()))
}

fn set_all(directory: &Path, warnings: &mut Vec<String>) -> Vec<Undo> {
    let mut set = Vec::new();
    for (name, value) in SETTINGS {
        match state::set_file(directory.join(name), value) {
            Ok(undo) => set.push(undo),
            Err(error) => warnings.push(format!("busy polling without {name}={value}: {error}")),
        }
    }
    set
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_set_comes_back() {
        let directory = tempfile::tempdir().unwrap();
        let file = |name: &str| directory.path().join(name);
        let read = |name: &str| std::fs::read_to_string(file(name)).unwrap().trim().to_string();
        std::fs::write(file("napi_defer_hard_irqs"), "0\n").unwrap();
        std::fs::write(file("gro_flush_timeout"), "7\n").unwrap();
        let mut warnings = Vec::new();
        let deferral = Deferral(set_all(directory.path(), &mut warnings));
        assert_eq!(
            (read("napi_defer_hard_irqs").as_str(), read("gro_flush_timeout").as_str()),
            ("2", "200000")
        );
        deferral.restore().unwrap();
        assert_eq!((read("napi_defer_hard_irqs").as_str(), read("gro_flush_timeout").as_str()), ("0", "7"));
        assert!(warnings.is_empty(), "{warnings:?}");

        std::fs::remove_file(file("gro_flush_timeout")).unwrap();
        let deferral = Deferral(set_all(directory.path(), &mut warnings));
        assert!(warnings[0].contains("gro_flush_timeout"), "{warnings:?}");
        deferral.restore().unwrap();
        assert_eq!(read("napi_defer_hard_irqs"), "0");
    }

    #[test]
    fn another_interface_of_that_name_is_told_from_ours() {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("ifindex"), "4\n").unwrap();
        std::fs::write(directory.path().join("address"), "02:00:00:00:00:01\n").unwrap();
        let mac = "02:00:00:00:00:01".parse().ok();
        let ours = Interface { index: 4, mac, ..Interface::default() };
        assert!(is_of(directory.path(), &ours));
        assert!(!is_of(directory.path(), &Interface { index: 5, ..ours.clone() }));
        assert!(!is_of(
            directory.path(),
            &Interface { mac: "02:00:00:00:00:02".parse().ok(), ..ours.clone() }
        ));
        assert!(!is_of(&directory.path().join("none"), &ours));
    }
}
