//! What an interface needs besides the socket's options for busy polling: interrupts that wait while a worker polls.
//!
//! By sysfs, as every kernel takes it, for all NAPI instances of the interface. Since Linux 6.13 each can be set by
//! netlink, but its number means nothing in another namespace and need not outlive a restart of the interface, so that a
//! change that was written down could not be undone with certainty; and what netlink adds, `irq-suspend-timeout`, is
//! for epoll's own busy polling, which AF_XDP does not use.

use bywash_sys::state::{self, Undo, Undone};

/// Settings of an interface that make its interrupts wait: empty polls before they are let through again, and for how
/// many nanoseconds at most. The kernel's documentation on busy polling AF_XDP sockets has these values.
const SETTINGS: [(&str, &str); 2] = [("napi_defer_hard_irqs", "2"), ("gro_flush_timeout", "200000")];

/// The settings as they are while a port polls; they come back when it is closed.
pub(super) struct Deferral(Vec<Undo>);

impl Deferral {
    /// Sets them; a warning for each that could not be set.
    pub(super) fn set(interface: &str, warnings: &mut Vec<String>) -> Self {
        let mut set = Vec::new();
        for (name, value) in SETTINGS {
            match state::set_setting(interface, name, value) {
                Ok(undo) => set.push(undo),
                Err(error) => warnings.push(format!("busy polling without {name}={value}: {error}")),
            }
        }
        Self(set)
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
