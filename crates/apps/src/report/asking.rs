//! Users who ask how a run stands: by SIGUSR1, or by Enter where standard input is a terminal.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bywash_sys::signals::ask_on_signal;
use bywash_sys::terminal::line_was_typed;

use super::Snapshot;

/// How users ask, and what they know already.
pub(super) struct Asking {
    signalled: Arc<AtomicBool>,
    keys: bool,
    /// What they were told last.
    pub(super) told: Option<Snapshot>,
}

impl Asking {
    /// By the signal, and by a key unless standard input is for something else.
    ///
    /// # Errors
    /// The process may have no more handlers of signals.
    pub(super) fn new(keys: bool) -> io::Result<Self> {
        Ok(Self { signalled: ask_on_signal()?, keys, told: None })
    }

    /// Whether somebody has asked since the last call.
    pub(super) fn has_asked(&self) -> bool {
        self.signalled.swap(false, Ordering::Relaxed) | (self.keys && line_was_typed())
    }
}
